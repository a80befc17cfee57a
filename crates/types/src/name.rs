//! Checked names, cheap to clone.

use alloc::sync::Arc;
use core::cmp::Ordering;
use core::fmt;
use core::ops::Deref;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::NAME_BYTES_MAX;

/// A name: 1 to 63 bytes of lower-case letters, digits, `-`, `_` and `.`, starting and ending with
/// a letter or digit. Tenants, regions, clusters, hosts, accelerator types and jobs have one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name(Arc<str>);

/// What a name must look like; shown to users.
pub const NAME_RULE: &str =
    "1 to 63 lower-case letters, digits, '-', '_' or '.', starting and ending with a letter or digit";

impl Name {
    /// The name, when it is one.
    #[must_use]
    pub fn new(text: &str) -> Option<Name> {
        let bytes = text.as_bytes();
        let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let inner = |b: &u8| edge(b) || matches!(b, b'-' | b'_' | b'.');
        let fits = !bytes.is_empty() && bytes.len() <= NAME_BYTES_MAX;
        if fits
            && bytes.iter().all(inner)
            && bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
        {
            Some(Name(Arc::from(text)))
        } else {
            None
        }
    }

    /// A name written in the source.
    ///
    /// # Panics
    /// When the literal breaks the rule.
    #[must_use]
    pub fn literal(text: &'static str) -> Name {
        Name::new(text).expect("a name written in the source keeps the rule")
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        // The keys of indexes have their names in common with the rows: most that are compared are equal, and nothing is read then.
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

/// Takes the text where it lies: a log is full of names.
struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME_RULE)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Name, E> {
        Name::new(text).ok_or_else(|| E::custom(NAME_RULE))
    }
}
