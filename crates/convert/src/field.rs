//! A field of a manifest: its value, its path, and what became of it.
//!
//! **Invariant:** reading a scalar marks it, and a finding marks all that is below. What is left without a mark in the end is
//! reported by [`Field::report_unread`], so no field is dropped in silence.

use super::finding::{FindingKind, Findings, shown};
use super::tree::{Content, Node};

/// A field, present or not.
#[derive(Clone)]
pub struct Field<'a> {
    node: Option<&'a Node>,
    path: String,
    findings: &'a Findings,
}

impl<'a> Field<'a> {
    /// A whole document; `prefix` tells documents of one file apart.
    pub fn root(node: &'a Node, prefix: &str, findings: &'a Findings) -> Field<'a> {
        Field { node: Some(node), path: prefix.to_owned(), findings }
    }

    fn below(&self, key: &str, node: Option<&'a Node>) -> Field<'a> {
        Field { node, path: join(&self.path, key), findings: self.findings }
    }

    /// The field of this name below.
    pub fn get(&self, key: &str) -> Field<'a> {
        self.below(key, self.node.and_then(|node| node.get(key)))
    }

    /// The field below, by the names on the way.
    pub fn at<const N: usize>(&self, keys: [&str; N]) -> Field<'a> {
        keys.into_iter().fold(self.clone(), |field, key| field.get(key))
    }

    /// The items of a list.
    pub fn items(&self) -> Vec<Field<'a>> {
        let Some(Content::List(items)) = self.node.map(|node| &node.content) else { return Vec::new() };
        let field = |(index, node)| {
            let path = format!("{}[{index}]", self.path);
            Field { node: Some(node), path, findings: self.findings }
        };
        items.iter().enumerate().map(field).collect()
    }

    /// The fields of a mapping with keys of the user's own. A finding names those without a value.
    pub fn entries(&self) -> Vec<(&'a str, Field<'a>)> {
        let Some(Content::Mapping(fields)) = self.node.map(|node| &node.content) else { return Vec::new() };
        let entries: Vec<(&str, Field<'_>)> =
            fields.iter().map(|(key, node)| (key.as_str(), self.below(key, Some(node)))).collect();
        for (_, field) in entries.iter().filter(|(_, field)| !field.is_there()) {
            field.drop("it has no value (null)");
        }
        entries
    }

    /// Whether it is there and states anything.
    pub fn is_given(&self) -> bool {
        self.node.is_some_and(|node| !node.is_empty())
    }

    /// Whether it is there, if only as an empty mapping.
    pub fn is_there(&self) -> bool {
        self.node.is_some_and(|node| !matches!(node.content, Content::Null))
    }

    /// Whether two fields state the same.
    pub fn is_like(&self, other: &Field<'_>) -> bool {
        match (self.node, other.node) {
            (Some(a), Some(b)) => a.is_like(b),
            (None, None) => true,
            _ => false,
        }
    }

    /// The text of a scalar, which is looked at and not read.
    pub fn peek(&self) -> Option<&'a str> {
        self.node.and_then(Node::text)
    }

    /// A text. One that YAML reads as a number or a flag is refused, as Kubernetes does: it may be another one than was
    /// written.
    pub fn text(&self) -> Option<&'a str> {
        let text = self.scalar()?;
        if self.node.is_some_and(|node| node.is_typed) {
            self.refuse("must be a text, and YAML reads a number or a flag; put it into quotes");
        }
        Some(text)
    }

    /// The text of a scalar, which may be a number or a flag.
    pub fn scalar(&self) -> Option<&'a str> {
        let node = self.node?;
        let text = node.text()?;
        node.mark_read();
        Some(text)
    }

    /// A whole number.
    pub fn count(&self) -> Option<u32> {
        let text = self.scalar()?;
        let count = muster_types::quantity::whole(text).and_then(|count| u32::try_from(count).ok());
        if count.is_none() {
            self.refuse(format!("must be a whole number, got {:?}", shown(text)));
        }
        count
    }

    /// `true` or `false`.
    pub fn flag(&self) -> Option<bool> {
        match self.scalar()? {
            "true" => Some(true),
            "false" => Some(false),
            other => {
                self.refuse(format!("must be true or false, got {:?}", shown(other)));
                None
            }
        }
    }

    /// Texts of a list.
    pub fn texts(&self) -> Vec<&'a str> {
        self.items().iter().filter_map(Field::word).collect()
    }

    /// A text of a list, where nothing (null) is none.
    pub fn word(&self) -> Option<&'a str> {
        if !self.is_there() {
            self.refuse("must be a text, and is nothing (null); put it into quotes");
        }
        self.text()
    }

    /// Says that nothing of it is in the job document.
    pub fn drop(&self, sentence: impl Into<String>) {
        self.say(FindingKind::NotHonoured, sentence);
    }

    /// Says that the job document has something close to it.
    pub fn approximate(&self, sentence: impl Into<String>) {
        self.say(FindingKind::Approximated, sentence);
    }

    /// Says that no job document can have it.
    pub fn refuse(&self, sentence: impl Into<String>) {
        self.say(FindingKind::Refused, sentence);
    }

    fn say(&self, kind: FindingKind, sentence: impl Into<String>) {
        if let Some(node) = self.node {
            node.mark_named();
        }
        let path = self.path.trim_end_matches(": ");
        self.findings.add(if path.is_empty() { "(object)" } else { path }, kind, sentence);
    }

    /// Reports what nobody has read, each at the highest field of which nothing was read; the paths of all that was.
    pub fn report_unread(&self, advice: &dyn Fn(&str) -> String, honoured: &mut Vec<String>) {
        let Some(node) = self.node else { return };
        if node.is_empty() {
            return;
        }
        if !is_touched(node) {
            let name = self.path.rsplit(['.', '[']).next().unwrap_or_default();
            self.drop(advice(name.trim_end_matches(']')));
            return;
        }
        match &node.content {
            Content::Null => {}
            Content::Scalar(_) if node.is_read() => honoured.push(self.path.clone()),
            Content::Scalar(_) => {}
            Content::List(_) => self.items().iter().for_each(|item| item.report_unread(advice, honoured)),
            Content::Mapping(fields) => {
                for (key, node) in fields {
                    self.below(key, Some(node)).report_unread(advice, honoured);
                }
            }
        }
    }
}

/// Whether anything below was read or named.
fn is_touched(node: &Node) -> bool {
    match &node.content {
        Content::Null => false,
        Content::Scalar(_) => node.is_accounted(),
        Content::List(items) => items.iter().any(is_touched),
        Content::Mapping(fields) => fields.iter().any(|(_, node)| is_touched(node)),
    }
}

/// A key behind a path; keys with other letters than a field's are in brackets.
fn join(path: &str, key: &str) -> String {
    let is_plain =
        !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match (is_plain, path.is_empty() || path.ends_with(": ")) {
        (true, true) => format!("{path}{key}"),
        (true, false) => format!("{path}.{key}"),
        (false, _) => format!("{path}[{}]", shown(key)),
    }
}
