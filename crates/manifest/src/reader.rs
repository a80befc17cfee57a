//! Scalars and lists of a file, with the lines of their fields and the problems found.

use std::collections::BTreeMap;

use muster_wire::closed::{ClosedSet, number_or_zero, of_word, words};
use muster_wire::time::{Duration, Timestamp, duration, timestamp};
use serde_saphyr::{Error, Location};

use super::quantity::{self, QuantityError};
use super::shape::Text;
use super::suggest::nearest;
use super::{ManifestError, PROBLEMS_MAX, Problem, line_of};

/// What `apiVersion` must be.
pub const API_VERSION: &str = "muster.dev/v1";

/// The kinds of documents that files of Muster hold.
const KINDS: [&str; 2] = ["Job", "Policy"];

/// What keeps a file with documents of a kind from being read. Where it is a file of the other kind, that explains a field
/// which is unknown here.
pub fn unreadable(text: &str, kind: &str, error: &Error) -> Problem {
    let is_field = matches!(error.without_snippet(), Error::SerdeUnknownField { .. });
    is_field.then(|| other_kind(text, kind)).flatten().unwrap_or_else(|| structure(error))
}

/// The first document of the other kind, by its line `kind: …`.
fn other_kind(text: &str, kind: &str) -> Option<Problem> {
    (1_u64..).zip(text.lines()).find_map(|(line, words)| {
        let word = words.strip_prefix("kind:")?.split_whitespace().next()?.trim_matches(['"', '\'']);
        let other = KINDS.into_iter().find(|known| *known == word && *known != kind)?;
        let description = format!("must be {kind}, got {other:?}");
        Some(Problem { line: Some(line), field: "kind".to_owned(), description })
    })
}

/// What keeps a file from being read at all: syntax, an unknown field, a list where a mapping belongs.
pub fn structure(error: &Error) -> Problem {
    let error = error.without_snippet();
    let line = error.location().as_ref().map(Location::line).filter(|line| *line > 0);
    let (field, description) = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let shown: String = field.chars().take(80).collect();
            let known = expected.join(", ");
            let advice = match nearest(field, expected) {
                Some(name) => format!("unknown field; did you mean {name}? (known here: {known})"),
                None => format!("unknown field (known here: {known})"),
            };
            (shown, advice)
        }
        Error::DuplicateMappingKey { key, .. } => {
            (key.clone().unwrap_or_default().chars().take(80).collect(), "is given twice".to_owned())
        }
        other => (String::new(), description_of(other)),
    };
    Problem { line, field, description }
}

/// What is wrong, where no field can be named. The parser's own words for some of it are for programmers.
fn description_of(error: &Error) -> String {
    match error {
        Error::NullIntoString { .. } => {
            "must have a value; a text that is empty, `null` or `~` needs quotes".to_owned()
        }
        Error::Unexpected { expected: "mapping start", .. } => {
            "must be a mapping (`name: value`), and not a list or a single value".to_owned()
        }
        Error::Unexpected { expected: "sequence start", .. } => "must be a list, like [a, b]".to_owned(),
        Error::Unexpected { expected: "string scalar", .. } => {
            "must be a single value, and not a list or a mapping".to_owned()
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias must not be within what it repeats".to_owned()
        }
        other => {
            let text = other.to_string();
            // The place is shown in front; the parser repeats it at the end.
            let plain = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
            plain.chars().take(300).collect()
        }
    }
}

/// Reads one document, remembering places and problems.
pub struct Reader<'a> {
    /// By their paths in the file.
    pub lines: BTreeMap<String, u64>,
    pub problems: &'a mut Vec<Problem>,
    /// Since the Unix epoch.
    pub now_ms: u64,
    /// Problems that are words of no closed set: their fields have a default in the message, so the rules for everything
    /// else can be checked as well.
    pub unknown_words: usize,
}

impl<'a> Reader<'a> {
    /// Of one document.
    pub fn new(problems: &'a mut Vec<Problem>, now_ms: u64) -> Reader<'a> {
        Reader { lines: BTreeMap::new(), problems, now_ms, unknown_words: 0 }
    }
}

/// Problems of a document that was read, and those that its rules find where nothing but unknown words was wrong.
pub fn with_rules(
    mut problems: Vec<Problem>,
    unknown_words: usize,
    check: impl FnOnce() -> Result<(), ManifestError>,
) -> Vec<Problem> {
    if unknown_words > 0 && unknown_words == problems.len() {
        let known: Vec<String> = problems.iter().map(|problem| problem.field.clone()).collect();
        let found = check().err().into_iter().flat_map(|error| error.0);
        problems.extend(found.filter(|problem| !known.contains(&problem.field)));
    }
    problems.truncate(PROBLEMS_MAX);
    problems
}

/// Scalars and lists, of jobs and policies.
impl Reader<'_> {
    /// The number of a word of a closed set; zero when none is given.
    pub fn closed<T: ClosedSet>(&mut self, field: &str, text: Option<Text>) -> i32 {
        let place = text.as_ref().map(|text| text.referenced);
        let text = self.text(field, text);
        let value = of_word::<T>(&text);
        if value.is_none() && !text.is_empty() {
            let short: String = text.chars().take(80).collect();
            self.unknown_words += 1;
            self.problem(place, field, format!("must be one of {}, got {short:?}", words::<T>()));
        }
        number_or_zero(value)
    }

    /// A moment; `None` when the file has none.
    pub fn time(&mut self, field: &str, text: Option<Text>) -> Option<Timestamp> {
        let now_ms = self.now_ms;
        self.value(field, text, |text| quantity::time_ms(text, now_ms)).map(timestamp)
    }

    /// A span; `None` when the file has none.
    pub fn span(&mut self, field: &str, text: Option<Text>) -> Option<Duration> {
        self.value(field, text, quantity::duration_ms).map(duration)
    }

    /// A span that may be left out and not be zero.
    pub fn span_above_zero(&mut self, field: &str, text: Option<Text>, advice: &str) -> Option<Duration> {
        let ms = self.above_zero(field, text, quantity::duration_ms, advice);
        (ms > 0).then(|| duration(ms))
    }

    pub fn list(&mut self, field: &str, texts: Vec<Text>) -> Vec<String> {
        let mut values = Vec::with_capacity(texts.len());
        if let Some(first) = texts.first() {
            self.place(field, first.referenced);
        }
        for (index, text) in texts.into_iter().enumerate() {
            values.push(self.text(&format!("{field}[{index}]"), Some(text)));
        }
        values
    }

    pub fn text(&mut self, field: &str, text: Option<Text>) -> String {
        let Some(text) = text else { return String::new() };
        self.place(field, text.referenced);
        text.value
    }

    pub fn value<T>(
        &mut self,
        field: &str,
        text: Option<Text>,
        read: impl Fn(&str) -> Result<T, QuantityError>,
    ) -> Option<T> {
        let text = text?;
        self.place(field, text.referenced);
        read(&text.value).map_err(|e| self.problem(Some(text.referenced), field, e.to_string())).ok()
    }

    /// Zero means "the default" in the message; in a file it can only be a mistake.
    pub fn above_zero<T: Default + PartialEq>(
        &mut self,
        field: &str,
        text: Option<Text>,
        read: impl Fn(&str) -> Result<T, QuantityError>,
        advice: &str,
    ) -> T {
        let place = text.as_ref().map(|t| t.referenced);
        let given = text.is_some();
        match self.value(field, text, read) {
            Some(value) if given && value == T::default() => {
                self.problem(place, field, format!("must be above zero; {advice}"));
                value
            }
            value => value.unwrap_or_default(),
        }
    }

    pub fn constant(&mut self, field: &str, text: Option<Text>, expected: &str) {
        let place = text.as_ref().map(|t| t.referenced);
        match text {
            Some(text) if text.value == expected => {}
            Some(text) => {
                let shown: String = text.value.chars().take(80).collect();
                self.problem(place, field, format!("must be {expected}, got {shown:?}"));
            }
            None => self.problem(None, field, format!("must be given: {expected}")),
        }
    }

    pub fn place(&mut self, field: &str, location: Location) {
        if location.line() > 0 {
            self.lines.entry(field.to_owned()).or_insert(location.line());
        }
    }

    /// A problem with a field that the file does not have, at the line of what it should be in.
    pub fn problem_near(&mut self, field: &str, description: &str) {
        if self.problems.len() <= PROBLEMS_MAX {
            let line = line_of(field, &self.lines, 0);
            self.problems.push(Problem {
                line,
                field: field.to_owned(),
                description: description.to_owned(),
            });
        }
    }

    pub fn problem(&mut self, place: Option<Location>, field: &str, description: impl Into<String>) {
        // One more than is shown would do; the rest is not worth its memory.
        if self.problems.len() > PROBLEMS_MAX {
            return;
        }
        let line = place.map(|l| l.line()).filter(|line| *line > 0);
        self.problems.push(Problem { line, field: field.to_owned(), description: description.into() });
    }
}
