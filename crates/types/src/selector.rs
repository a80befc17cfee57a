//! Which labels jobs are selected by.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::limits;
use crate::metadata::{LABEL_KEY_RULE, LABEL_VALUE_RULE, is_label_key, is_label_value};
use crate::metadata_bits::MetadataBits;

/// Characters of what was found that an error shows.
const FOUND_CHARACTERS: usize = 24;

/// What ends a word of a selector.
const LABEL_STOPS: [char; 7] = [' ', '\t', ',', '=', '!', '(', ')'];

/// One condition on the labels of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    /// The label is there, with one of these values.
    In(String, BTreeSet<String>),
    /// The label is not there, or has none of these values.
    NotIn(String, BTreeSet<String>),
    /// The label is there.
    Exists(String),
    /// The label is not there.
    Absent(String),
}

/// Conditions on labels, all of which must hold: `team=vision,stage in (train,eval),!debug`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    terms: Vec<Term>,
}

/// Where a selector cannot be read, and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError {
    /// Character of the text, from 1.
    pub at: usize,
    /// What was expected and what was found.
    pub description: String,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "character {}: {}", self.at, self.description)
    }
}

impl core::error::Error for SelectorError {}

impl LabelSelector {
    /// Reads a selector; an empty text selects everything.
    ///
    /// # Errors
    /// At the first place that cannot be read.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let max = limits::SELECTOR_BYTES_MAX;
        if text.len() > max {
            let description = format!("a selector has at most {max} bytes, this one {}", text.len());
            return Err(SelectorError { at: 1, description });
        }
        let mut reader = Reader::new(text, &LABEL_STOPS);
        let mut terms = Vec::new();
        reader.skip_blanks();
        if reader.rest().is_empty() {
            return Ok(LabelSelector { terms });
        }
        loop {
            if terms.len() == limits::SELECTOR_TERMS_MAX {
                let text = format!("a selector has at most {} terms", limits::SELECTOR_TERMS_MAX);
                return Err(reader.error(text));
            }
            terms.push(reader.term()?);
            if reader.rest().is_empty() {
                return Ok(LabelSelector { terms });
            }
            reader.expect(',', "`,` and another term, or the end")?;
        }
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether only jobs that have labels can match.
    #[must_use]
    pub fn needs_labels(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, Term::In(..) | Term::Exists(_)))
    }

    /// Bits that every job has which it selects.
    #[must_use]
    pub fn needed_bits(&self) -> MetadataBits {
        self.terms.iter().fold(MetadataBits::default(), |bits, term| match term {
            Term::In(key, values) => {
                let bits = bits.and(MetadataBits::of_key(key));
                let only = values.first().filter(|_| values.len() == 1);
                only.map_or(bits, |value| bits.and(MetadataBits::of_label(key, value)))
            }
            Term::Exists(key) => bits.and(MetadataBits::of_key(key)),
            Term::NotIn(..) | Term::Absent(_) => bits,
        })
    }

    /// Whether a job with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.terms.iter().all(|term| match term {
            Term::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Term::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Term::Exists(key) => labels.contains_key(key),
            Term::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, term) in self.terms.iter().enumerate() {
            if place > 0 {
                f.write_str(",")?;
            }
            let list = |values: &BTreeSet<String>| {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                values.join(",")
            };
            match term {
                Term::In(key, values) => write!(f, "{key} in ({})", list(values))?,
                Term::NotIn(key, values) => write!(f, "{key} notin ({})", list(values))?,
                Term::Exists(key) => f.write_str(key)?,
                Term::Absent(key) => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

/// Reads conditions from a text, word by word.
pub(crate) struct Reader<'a> {
    text: &'a str,
    /// Byte of `text`, at the start of a character.
    at: usize,
    /// What ends a word.
    stops: &'static [char],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str, stops: &'static [char]) -> Reader<'a> {
        Reader { text, at: 0, stops }
    }

    pub(crate) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Takes a text that may stand here, and the blanks behind it.
    pub(crate) fn take(&mut self, text: &str) -> bool {
        let is_here = self.rest().starts_with(text);
        if is_here {
            self.at += text.len();
            self.skip_blanks();
        }
        is_here
    }

    pub(crate) fn error(&self, description: String) -> SelectorError {
        let before = self.text.get(..self.at).unwrap_or_default();
        SelectorError { at: before.chars().count() + 1, description }
    }

    pub(crate) fn expected(&self, what: &str) -> SelectorError {
        let found: String = self.rest().chars().take(FOUND_CHARACTERS).collect();
        let found = if found.is_empty() { "the end".to_string() } else { format!("{found:?}") };
        self.error(format!("expected {what}, found {found}"))
    }

    pub(crate) fn expect(&mut self, character: char, what: &str) -> Result<(), SelectorError> {
        if self.take(character.encode_utf8(&mut [0; 4])) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// What could be a key or a value, without the blanks behind it.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(self.stops).unwrap_or(rest.len());
        let (word, _) = rest.split_at(end);
        self.at += end;
        word
    }

    /// A word, or where it is not what it must be, an error at its beginning.
    pub(crate) fn checked_word<T>(
        &mut self,
        what: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, SelectorError> {
        let start = self.at;
        match read(self.word()) {
            Some(value) => {
                self.skip_blanks();
                Ok(value)
            }
            None => {
                self.at = start;
                Err(self.expected(what))
            }
        }
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        let start = self.at;
        let key = self.word();
        if !is_label_key(key) {
            self.at = start;
            return Err(if key.is_empty() {
                self.expected("the key of a label")
            } else {
                self.expected("the key of a label").because(LABEL_KEY_RULE)
            });
        }
        self.skip_blanks();
        Ok(key.to_string())
    }

    fn value(&mut self) -> Result<String, SelectorError> {
        let start = self.at;
        let value = self.word();
        if !is_label_value(value) {
            self.at = start;
            return Err(self.expected("the value of a label").because(LABEL_VALUE_RULE));
        }
        self.skip_blanks();
        Ok(value.to_string())
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        self.expect('(', "`(` and values, like (a,b)")?;
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?);
            if self.take(")") {
                return Ok(values);
            }
            self.expect(',', "`,` and another value, or `)`")?;
        }
    }

    fn term(&mut self) -> Result<Term, SelectorError> {
        if self.take("!") {
            return self.key().map(Term::Absent);
        }
        let key = self.key()?;
        if self.take("!=") {
            return Ok(Term::NotIn(key, [self.value()?].into()));
        }
        if self.take("==") || self.take("=") {
            return Ok(Term::In(key, [self.value()?].into()));
        }
        let start = self.at;
        match self.word() {
            "" => Ok(Term::Exists(key)),
            "in" => {
                self.skip_blanks();
                Ok(Term::In(key, self.values()?))
            }
            "notin" => {
                self.skip_blanks();
                Ok(Term::NotIn(key, self.values()?))
            }
            _ => {
                self.at = start;
                Err(self.expected("=, !=, in, notin, `,` or the end"))
            }
        }
    }
}

impl SelectorError {
    fn because(mut self, rule: &str) -> SelectorError {
        self.description.push_str("; it ");
        self.description.push_str(rule);
        self
    }
}
