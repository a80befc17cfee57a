//! What became of fields: those that a job document has nothing for, and those that it has something like.

use std::cell::RefCell;
use std::fmt;

/// Most findings that are listed; of more, the last one says how many there are.
const FINDINGS_MAX: usize = 1_000;
/// Characters of a user's text within a sentence or a path.
const SHOWN_MAX: usize = 80;

/// What became of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// Nothing of it is in the job document.
    NotHonoured,
    /// The job document has something that is close to it.
    Approximated,
    /// No job document can have it, and the job would not be the same without it.
    Refused,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FindingKind::NotHonoured => "not honoured",
            FindingKind::Approximated => "approximated",
            FindingKind::Refused => "refused",
        })
    }
}

/// What became of one field, or of everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where the field is: `spec.template.spec.hostIPC`, or `line 4: --gres` in a script.
    pub path: String,
    /// What became of it.
    pub kind: FindingKind,
    /// Why, and what to do instead.
    pub sentence: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.path, self.kind, self.sentence)
    }
}

/// Findings as they are collected.
#[derive(Debug, Default)]
pub struct Findings(RefCell<Vec<Finding>>);

impl Findings {
    /// Adds one, unless it was there.
    pub fn add(&self, path: &str, kind: FindingKind, sentence: impl Into<String>) {
        let finding = Finding { path: path.to_owned(), kind, sentence: sentence.into() };
        let mut findings = self.0.borrow_mut();
        let is_full = findings.len() >= 2 * FINDINGS_MAX && kind != FindingKind::Refused;
        if !is_full && findings.len() < 3 * FINDINGS_MAX && !findings.contains(&finding) {
            findings.push(finding);
        }
    }

    /// All of them, in the order of the input as far as it is known: refusals first.
    pub fn into_list(self) -> Vec<Finding> {
        let mut findings = self.0.into_inner();
        findings.sort_by_key(|finding| finding.kind != FindingKind::Refused);
        if findings.len() > FINDINGS_MAX {
            let more = findings.len() - FINDINGS_MAX;
            findings.truncate(FINDINGS_MAX);
            let sentence = format!("there is more to say than is listed: at least {more} other findings");
            findings.push(Finding { path: "(input)".into(), kind: FindingKind::NotHonoured, sentence });
        }
        findings
    }
}

/// The beginning of a user's text, for a sentence.
pub fn shown(text: &str) -> String {
    let shown: String = text.escape_debug().take(SHOWN_MAX).collect();
    if text.chars().count() > SHOWN_MAX { shown + "…" } else { shown }
}
