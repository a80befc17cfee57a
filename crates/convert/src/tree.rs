//! YAML as a tree that remembers which of its leaves were read.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Levels of a manifest: those of Kubernetes have at most about twenty.
const DEPTH_MAX: usize = 48;
/// Mappings, lists and scalars of all documents.
const NODES_MAX: usize = 100_000;
/// What aliases may bring in again, altogether.
const REPLAYED_EVENTS_MAX: usize = 50_000;
/// Documents of one file; a submission has no more jobs.
const DOCUMENTS_MAX: usize = 1_000;

/// A value of a manifest.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub content: Content,
    /// Whether it is a scalar that YAML reads as a number or a flag, which may not be the text that was written.
    pub is_typed: bool,
    is_read: Cell<bool>,
    is_named: Cell<bool>,
}

/// What a value is.
#[derive(Clone, Debug)]
pub enum Content {
    /// Nothing.
    Null,
    /// A text, number or flag, as text.
    Scalar(String),
    /// A list.
    List(Vec<Node>),
    /// Fields, in their order.
    Mapping(Vec<(String, Node)>),
}

impl Node {
    fn new(content: Content) -> Node {
        Node { content, is_typed: false, is_read: Cell::new(false), is_named: Cell::new(false) }
    }

    fn typed(value: impl fmt::Display) -> Node {
        Node { is_typed: true, ..Node::new(Content::Scalar(value.to_string())) }
    }

    /// The field of this name.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.content {
            Content::Mapping(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// Notes that this leaf was read.
    pub fn mark_read(&self) {
        self.is_read.set(true);
    }

    /// Whether it was.
    pub fn is_read(&self) -> bool {
        self.is_read.get()
    }

    /// Whether it was read, or a finding names it.
    pub fn is_accounted(&self) -> bool {
        self.is_read.get() || self.is_named.get()
    }

    /// Notes that a finding names everything below.
    pub fn mark_named(&self) {
        self.is_named.set(true);
        match &self.content {
            Content::List(items) => items.iter().for_each(Node::mark_named),
            Content::Mapping(fields) => fields.iter().for_each(|(_, node)| node.mark_named()),
            Content::Null | Content::Scalar(_) => {}
        }
    }

    /// Whether it states anything: an empty list or mapping does not.
    pub fn is_empty(&self) -> bool {
        match &self.content {
            Content::Null => true,
            Content::Scalar(_) => false,
            Content::List(items) => items.iter().all(Node::is_empty),
            Content::Mapping(fields) => fields.iter().all(|(_, node)| node.is_empty()),
        }
    }

    /// The same content, whatever was read of it.
    pub fn is_like(&self, other: &Node) -> bool {
        match (&self.content, &other.content) {
            (Content::Null, Content::Null) => true,
            (Content::Scalar(a), Content::Scalar(b)) => a == b,
            (Content::List(a), Content::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_like(b))
            }
            (Content::Mapping(a), Content::Mapping(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && a.is_like(b))
            }
            _ => false,
        }
    }
}

/// The documents of a text, within bounds; else the line and the sentence of what is wrong.
pub fn documents(text: &str) -> Result<Vec<Node>, (u64, String)> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_documents: DOCUMENTS_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: REPLAYED_EVENTS_MAX,
        },
        with_snippet: false,
        // `y` and `on` are texts.
        strict_booleans: true,
    };
    let documents: Vec<Option<Node>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(0, |location| location.line());
            let text = error.without_snippet().to_string();
            let plain = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
            (line, plain.chars().take(300).collect::<String>())
        })?;
    Ok(documents.into_iter().flatten().filter(|document| !document.is_empty()).collect())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value of a manifest")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::new(Content::Null))
            }

            fn visit_none<E>(self) -> Result<Node, E> {
                Ok(Node::new(Content::Null))
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
                Node::deserialize(deserializer)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::typed(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::typed(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::typed(value))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
                Ok(Node::typed(value))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
                Ok(Node::typed(value))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::typed(value))
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::new(Content::Scalar(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::new(Content::List(items)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, node)) = map.next_entry::<String, Node>()? {
                    fields.push((name, node));
                }
                Ok(Node::new(Content::Mapping(fields)))
            }
        }

        deserializer.deserialize_any(Any)
    }
}
