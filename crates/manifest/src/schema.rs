//! The JSON Schema of a job file.
//!
//! It is learned from the types that read a job file, by reading one: [`Probe`] stands in for the file, notes what each
//! type asks for, and gives it that. So a field that is added to a type is in the schema, and nothing else can be.
//! Where a type takes several forms, each is tried once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::read::KIND;
use super::reader::API_VERSION;
use super::shape::Document;

/// The parser wraps what has a place in the file in another type, and asks for it by this name.
const SPANNED: &str = "__yaml_spanned";
const SPANNED_MARKER: &str = "__serde_saphyr_private_spanned";
/// A key that no mapping knows, and one that a user could have written.
const UNKNOWN: &str = "\u{0}unknown";
const ANY_KEY: &str = "key";
/// Readings until every form was tried: far more than there are forms.
const READINGS_MAX: usize = 1_000;

/// The schema of a job file, in the words of JSON Schema 2020-12.
pub fn job_schema() -> Value {
    let learned = RefCell::new(Learned::default());
    for _ in 0..READINGS_MAX {
        learned.borrow_mut().begin();
        let probe = Probe { learned: &learned, path: String::new() };
        let read = Document::deserialize(probe);
        if read.is_ok() && learned.borrow().is_complete() {
            break;
        }
    }
    let learned = learned.into_inner();
    let mut schema = learned.schema("");
    if let Value::Object(fields) = &mut schema {
        fields.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("title".into(), json!("Job file of Muster"));
        fields.insert("required".into(), json!(["apiVersion", "kind", "spec"]));
        if let Some(Value::Object(properties)) = fields.get_mut("properties") {
            properties.insert("apiVersion".into(), json!({ "const": API_VERSION }));
            properties.insert("kind".into(), json!({ "const": KIND }));
        }
    }
    schema
}

/// A form that a value may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Text,
    Flag,
    Whole,
    List,
    Mapping,
}

impl Form {
    const ALL: [Form; 5] = [Form::Text, Form::Flag, Form::Whole, Form::List, Form::Mapping];
}

/// What stands at a path.
#[derive(Clone, Debug)]
enum Node {
    /// Any scalar, as its text.
    Scalar,
    /// Fields by name, and no others.
    Fields(Vec<&'static str>),
    /// Keys of the user's own.
    Keys,
    List,
    /// Whatever.
    Anything,
    /// One of the forms of which it is known that they are taken.
    Forms,
}

#[derive(Default)]
struct Learned {
    nodes: BTreeMap<String, Node>,
    /// Paths whose value may be left empty.
    optional: BTreeSet<String>,
    /// By path: the forms that were tried, and whether each is taken.
    forms: BTreeMap<String, BTreeMap<Form, bool>>,
    /// Of mappings that are one form of several: their fields; none for keys of the user's own.
    mappings: BTreeMap<String, Option<Vec<&'static str>>>,
    /// Whether the cause of the present reading's end was noted.
    ended: bool,
}

impl Learned {
    fn begin(&mut self) {
        self.ended = false;
    }

    fn is_complete(&self) -> bool {
        self.forms.values().all(|tried| tried.len() == Form::ALL.len())
    }

    /// The next form to try at a path. When all were tried it is the last that is taken: a mapping has more to try in it.
    fn next_form(&self, path: &str) -> Form {
        let Some(tried) = self.forms.get(path) else { return Form::Text };
        let untried = Form::ALL.into_iter().find(|form| !tried.contains_key(form));
        let taken = tried.iter().rfind(|(_, taken)| **taken).map(|(form, _)| *form);
        untried.or(taken).unwrap_or(Form::Text)
    }

    fn schema(&self, path: &str) -> Value {
        let schema = match self.nodes.get(path) {
            None | Some(Node::Anything) => return json!(true),
            Some(Node::Scalar) => json!({ "type": ["string", "number", "boolean"] }),
            Some(Node::Fields(fields)) => self.object(path, fields),
            Some(Node::Keys) => self.keyed(path),
            Some(Node::List) => json!({ "type": "array", "items": self.schema(&item(path)) }),
            Some(Node::Forms) => {
                let tried = self.forms.get(path).into_iter().flatten();
                let taken = tried.filter(|(_, taken)| **taken).map(|(form, _)| self.form(path, *form));
                json!({ "anyOf": taken.collect::<Vec<_>>() })
            }
        };
        if self.optional.contains(path) {
            return json!({ "anyOf": [schema, { "type": "null" }] });
        }
        schema
    }

    fn form(&self, path: &str, form: Form) -> Value {
        match form {
            Form::Text => json!({ "type": "string" }),
            Form::Flag => json!({ "type": "boolean" }),
            Form::Whole => json!({ "type": "integer" }),
            Form::List => json!({ "type": "array", "items": self.schema(&item(path)) }),
            Form::Mapping => match self.mappings.get(path) {
                Some(Some(fields)) => self.object(path, fields),
                _ => json!({ "type": "object" }),
            },
        }
    }

    fn object(&self, path: &str, fields: &[&'static str]) -> Value {
        let properties: Map<String, Value> =
            fields.iter().map(|name| ((*name).to_owned(), self.schema(&field(path, name)))).collect();
        json!({ "type": "object", "properties": properties, "additionalProperties": false })
    }

    fn keyed(&self, path: &str) -> Value {
        json!({ "type": "object", "additionalProperties": self.schema(&field(path, ANY_KEY)) })
    }
}

fn field(path: &str, name: &str) -> String {
    format!("{path}.{name}")
}

fn item(path: &str) -> String {
    format!("{path}[]")
}

/// Why a reading ended: a form was not taken, or a mapping has other fields.
#[derive(Debug)]
struct Ended {
    /// Fields that a mapping knows, when that is why.
    expected: Option<&'static [&'static str]>,
    text: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Ended {}

impl serde::de::Error for Ended {
    fn custom<T: fmt::Display>(text: T) -> Ended {
        Ended { expected: None, text: text.to_string() }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Ended {
        Ended { expected: Some(expected), text: format!("unknown field {field:?}") }
    }
}

/// Stands in for a value of the file.
struct Probe<'a> {
    learned: &'a RefCell<Learned>,
    path: String,
}

impl<'a> Probe<'a> {
    fn note(&self, node: Node) {
        self.learned.borrow_mut().nodes.insert(self.path.clone(), node);
    }

    fn below(&self, path: String) -> Probe<'a> {
        Probe { learned: self.learned, path }
    }

    /// Notes whether a form was taken. Of forms inside of one another it is the inner one that was not.
    fn judge<T>(&self, form: Form, read: Result<T, Ended>) -> Result<T, Ended> {
        let mut learned = self.learned.borrow_mut();
        let is_cause = read.is_err() && !std::mem::replace(&mut learned.ended, true);
        if read.is_ok() || is_cause {
            learned.forms.entry(self.path.clone()).or_default().insert(form, read.is_ok());
        }
        read
    }

    /// As a mapping: first with a key that nobody knows, to be told of those that are known.
    fn mapping<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        let known = self.learned.borrow().mappings.get(&self.path).cloned();
        let keys: Vec<&'static str> = match &known {
            None => vec![UNKNOWN],
            Some(None) => Vec::new(),
            Some(Some(fields)) => fields.clone(),
        };
        let is_first = known.is_none();
        let read = visitor.visit_map(Entries { probe: &self, keys, at: 0, is_free: is_first });
        if is_first {
            let expected = match &read {
                Err(ended) => ended.expected.map(<[&str]>::to_vec),
                Ok(_) => None,
            };
            let mut learned = self.learned.borrow_mut();
            if read.is_ok() || expected.is_some() {
                learned.mappings.insert(self.path.clone(), expected.clone());
            }
            if expected.is_some() {
                // Not the form was wrong: the next reading has the right fields.
                learned.ended = true;
                return read;
            }
        }
        self.judge(Form::Mapping, read)
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Ended;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.note(Node::Forms);
        let form = self.learned.borrow().next_form(&self.path);
        let read = match form {
            Form::Text => visitor.visit_str("text"),
            Form::Flag => visitor.visit_bool(true),
            Form::Whole => visitor.visit_u64(1),
            Form::List => visitor.visit_seq(Items { probe: &self, is_over: false }),
            Form::Mapping => return self.mapping(visitor),
        };
        self.judge(form, read)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.learned.borrow_mut().optional.insert(self.path.clone());
        visitor.visit_some(self)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.note(Node::Scalar);
        visitor.visit_str("text")
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.deserialize_str(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        if name == SPANNED {
            return visitor.visit_newtype_struct(Placed(self));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.note(Node::List);
        visitor.visit_seq(Items { probe: &self, is_over: false })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.note(Node::Keys);
        visitor.visit_map(Entries { probe: &self, keys: vec![ANY_KEY], at: 0, is_free: false })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Ended> {
        self.note(Node::Fields(fields.to_vec()));
        visitor.visit_map(Entries { probe: &self, keys: fields.to_vec(), at: 0, is_free: false })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.note(Node::Anything);
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier
    }
}

/// One value of a list.
struct Items<'a, 'p> {
    probe: &'p Probe<'a>,
    is_over: bool,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Ended;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Ended> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(None);
        }
        seed.deserialize(self.probe.below(item(&self.probe.path))).map(Some)
    }
}

/// Entries of a mapping.
struct Entries<'a, 'p> {
    probe: &'p Probe<'a>,
    keys: Vec<&'static str>,
    at: usize,
    /// The values are whatever the reader makes of them, and are not looked at.
    is_free: bool,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Ended;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Ended> {
        let Some(key) = self.keys.get(self.at) else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Ended> {
        let key = self.keys.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        if self.is_free {
            return seed.deserialize(BorrowedStrDeserializer::new("text"));
        }
        seed.deserialize(self.probe.below(field(&self.probe.path, key)))
    }
}

/// A value with its place in the file.
struct Placed<'a>(Probe<'a>);

impl<'de> Deserializer<'de> for Placed<'_> {
    type Error = Ended;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        visitor.visit_map(Spanned { probe: Some(self.0), at: 0 })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// What the parser gives for a value with its place: a marker, the value, and where it is.
struct Spanned<'a> {
    probe: Option<Probe<'a>>,
    at: usize,
}

impl<'de> MapAccess<'de> for Spanned<'_> {
    type Error = Ended;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Ended> {
        let Some(key) = [SPANNED_MARKER, "value", "referenced", "defined"].get(self.at) else {
            return Ok(None);
        };
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Ended> {
        self.at += 1;
        let place = || json!({ "line": 1, "column": 1 });
        match self.at {
            1 => seed.deserialize(json!(true)).map_err(Ended::custom),
            2 => match self.probe.take() {
                Some(probe) => seed.deserialize(probe),
                None => Err(Ended::custom("a value is read once")),
            },
            _ => seed.deserialize(place()).map_err(Ended::custom),
        }
    }
}
