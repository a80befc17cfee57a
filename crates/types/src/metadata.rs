//! What a job carries in addition to what is run: labels, annotations, and who submitted it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::reason::Violation;

/// Shown in the place of a creator that nobody knows: a listener without certificates took the submission, or it was
/// before creators were kept.
pub const ANONYMOUS: &str = "anonymous";

/// What the key of a label or annotation must look like; shown to users.
pub const LABEL_KEY_RULE: &str = "must be 1 to 63 letters, digits, '-', '_' or '.', starting and ending with a letter \
     or digit; a prefix of lower-case letters, digits, '-' and '.' may stand before it, like team.example/experiment, \
     and counts towards the 63";

/// What the value of a label must look like; shown to users.
pub const LABEL_VALUE_RULE: &str = "must be empty, or at most 63 letters, digits, '-', '_' or '.', starting and ending with a letter or digit";

/// Bytes of a violation's path that a user's own key may take.
const KEY_SHOWN_BYTES: usize = 80;

/// Labels and annotations of a job, and the principal that submitted it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobMetadata {
    /// For people and programs to select jobs by; at most [`limits::LABELS_MAX`].
    pub labels: BTreeMap<String, String>,
    /// Texts of other programs, which Muster never reads; at most [`limits::ANNOTATIONS_BYTES_MAX`] bytes together.
    pub annotations: BTreeMap<String, String>,
    /// Who submitted it, as its certificate says; empty when nobody knows. Set by the server.
    pub creator: String,
}

impl JobMetadata {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.creator.is_empty()
    }

    /// Who submitted it, as it is shown and selected by.
    #[must_use]
    pub fn creator(&self) -> &str {
        if self.creator.is_empty() { ANONYMOUS } else { &self.creator }
    }

    /// Bytes of all its texts.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let bytes = |texts: &BTreeMap<String, String>| texts.iter().map(pair_bytes).sum::<usize>();
        bytes(&self.labels) + bytes(&self.annotations) + self.creator.len()
    }

    /// Every rule that it breaks, by fields of a job: `labels.KEY` and `annotations.KEY`.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let max = limits::LABELS_MAX;
        if self.labels.len() > max {
            found.push(Violation::count("labels", self.labels.len(), (0, max), "labels"));
            return found;
        }
        for (key, value) in &self.labels {
            if !is_label_key(key) {
                found.push(Violation::new(below("labels", key), format!("the key {LABEL_KEY_RULE}")));
            } else if !is_label_value(value) {
                found.push(Violation::new(below("labels", key), format!("the value {LABEL_VALUE_RULE}")));
            }
        }
        self.check_annotations(&mut found);
        if self.creator.len() > limits::CREATOR_BYTES_MAX
            || !self.creator.bytes().all(|b| b.is_ascii_graphic())
        {
            let text = format!("must be at most {} bytes of printable ASCII", limits::CREATOR_BYTES_MAX);
            found.push(Violation::new("creator", text));
        }
        found
    }

    fn check_annotations(&self, found: &mut Vec<Violation>) {
        let bytes: usize = self.annotations.iter().map(pair_bytes).sum();
        let max = limits::ANNOTATIONS_BYTES_MAX;
        if bytes > max {
            let text = format!("must be at most {max} bytes together, keys and values, got {bytes}");
            found.push(Violation::new("annotations", text));
            return;
        }
        for (key, value) in &self.annotations {
            if !is_label_key(key) {
                found.push(Violation::new(below("annotations", key), format!("the key {LABEL_KEY_RULE}")));
            } else if value.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
                let text =
                    "the value must be text without control characters; line ends and tabs may be in it";
                found.push(Violation::new(below("annotations", key), text));
            }
        }
    }
}

fn pair_bytes((key, value): (&String, &String)) -> usize {
    key.len() + value.len()
}

/// The path of an entry. A key that is no key may be long or have control characters: its start is shown, escaped.
fn below(field: &str, key: &str) -> String {
    if is_label_key(key) {
        return format!("{field}.{key}");
    }
    let mut shown: String = key.escape_debug().take(KEY_SHOWN_BYTES).collect();
    if shown.is_empty() {
        shown.push_str("\"\"");
    }
    format!("{field}.{shown}")
}

/// Whether a text may be the key of a label or annotation: [`LABEL_KEY_RULE`].
#[must_use]
pub fn is_label_key(key: &str) -> bool {
    if key.len() > limits::LABEL_KEY_BYTES_MAX {
        return false;
    }
    match key.split_once('/') {
        Some((prefix, name)) => {
            let part = |part: &str| {
                let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
                let bytes = part.as_bytes();
                let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
                edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
            };
            prefix.split('.').all(part) && is_word(name)
        }
        None => is_word(key),
    }
}

/// Whether a text may be the value of a label: [`LABEL_VALUE_RULE`].
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || (value.len() <= limits::LABEL_VALUE_BYTES_MAX && is_word(value))
}

/// Letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}
