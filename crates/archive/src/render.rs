//! Decisions as text for people and programs: JSON with the names of the record's fields, ids in the
//! form in which users see them everywhere.
//!
//! What serde is told of a value is enough: the names of its types say which numbers are ids. So a new
//! decision is rendered without a line here. `tests/render.rs` pins the names.
//!
//! **Invariant:** a rendering loses nothing but the order of fields.

use muster_journal::Decision;
use muster_types::{ClusterId, DeviceSet, JobId, NodeId, RequestId};
use serde::ser::{self, Serialize};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Bytes of a summary.
const SUMMARY_BYTES_MAX: usize = 160;

/// The content of a decision: an object with its fields; empty for one without any.
#[must_use]
pub fn content(decision: &Decision) -> Value {
    // An enum becomes `{"Variant": content}` or, without content, its name.
    match decision.serialize(Renderer) {
        Ok(Value::Object(tagged)) => tagged.into_iter().next().map_or(Value::Null, |(_, content)| content),
        Ok(_) => Value::Object(Map::new()),
        Err(error) => Value::String(format!("cannot be shown: {error}")),
    }
}

/// One line about a decision's content.
#[must_use]
pub fn summary(content: &Value) -> String {
    let mut text = String::new();
    if let Value::Object(fields) = content {
        for (name, value) in fields.iter().filter(|(name, _)| name.as_str() != "request") {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(name);
            text.push('=');
            shorten(value, &mut text);
        }
    }
    if text.len() > SUMMARY_BYTES_MAX {
        let mut end = SUMMARY_BYTES_MAX - 3;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// A value in a few words.
fn shorten(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("none"),
        Value::String(word) => text.push_str(word),
        Value::Array(items) if items.len() == 1 => shorten(&items[0], text),
        Value::Array(items) => text.push_str(&format!("[{}]", items.len())),
        Value::Object(fields) => match (fields.get("name"), fields.len()) {
            (Some(Value::String(name)), _) => text.push_str(name),
            (_, 1) => {
                let (name, value) = fields.iter().next().map_or(("", &Value::Null), |(n, v)| (n, v));
                text.push_str(name);
                if !value.is_null() {
                    text.push('(');
                    shorten(value, text);
                    text.push(')');
                }
            }
            (_, more) => text.push_str(&format!("{{{more} fields}}")),
        },
        other => text.push_str(&other.to_string()),
    }
}

/// `GangPlaced` as `gang_placed`.
fn snake(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// A value that cannot be told in JSON; none of the record's is.
#[derive(Debug)]
struct Unshown(String);

impl fmt::Display for Unshown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unshown {}

impl ser::Error for Unshown {
    fn custom<T: fmt::Display>(message: T) -> Unshown {
        Unshown(message.to_string())
    }
}

type Rendering = Result<Value, Unshown>;

#[derive(Clone, Copy)]
struct Renderer;

/// A number as an id, where the name of its type says that it is one.
fn named(name: &str, value: &Value) -> Option<Value> {
    let small = value.as_u64();
    let large = || value.as_str().and_then(|text| text.parse::<u128>().ok()).or(small.map(u128::from));
    Some(Value::String(match name {
        "JobId" => JobId(small?).to_string(),
        "NodeId" => NodeId(u32::try_from(small?).ok()?).to_string(),
        "RequestId" => RequestId(large()?).to_string(),
        "ClusterId" => ClusterId(large()?).to_string(),
        "HolderId" => format!("{:032x}", large()?),
        "DeviceSet" => {
            let devices: Vec<String> = DeviceSet(small?).iter().map(|n| n.to_string()).collect();
            return Some(Value::Array(devices.iter().map(|n| Value::Number(number(n))).collect()));
        }
        _ => return None,
    }))
}

fn number(digits: &str) -> Number {
    digits.parse::<u64>().map_or_else(|_| Number::from(0), Number::from)
}

macro_rules! plain {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Rendering { Ok(Value::from(value)) })*
    };
}

impl ser::Serializer for Renderer {
    type Ok = Value;
    type Error = Unshown;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = List;
    type SerializeMap = Fields;
    type SerializeStruct = Fields;
    type SerializeStructVariant = Fields;

    plain!(
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_f32: f32,
        serialize_f64: f64, serialize_str: &str
    );

    // Beyond what JSON's readers take for a number: as text.
    fn serialize_u128(self, value: u128) -> Rendering {
        Ok(u64::try_from(value).map_or_else(|_| Value::String(value.to_string()), Value::from))
    }

    fn serialize_i128(self, value: i128) -> Rendering {
        Ok(i64::try_from(value).map_or_else(|_| Value::String(value.to_string()), Value::from))
    }

    fn serialize_char(self, value: char) -> Rendering {
        Ok(Value::String(value.to_string()))
    }

    fn serialize_bytes(self, value: &[u8]) -> Rendering {
        Ok(Value::String(value.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    fn serialize_none(self) -> Rendering {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Rendering {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Rendering {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Rendering {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Rendering {
        Ok(Value::String(snake(variant)))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Rendering {
        let inner = value.serialize(self)?;
        Ok(named(name, &inner).unwrap_or(inner))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Rendering {
        Ok(tagged(Some(variant), value.serialize(self)?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List, Unshown> {
        Ok(List { items: Vec::new(), variant: None })
    }

    fn serialize_tuple(self, _: usize) -> Result<List, Unshown> {
        Ok(List { items: Vec::new(), variant: None })
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List, Unshown> {
        Ok(List { items: Vec::new(), variant: None })
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List, Unshown> {
        Ok(List { items: Vec::new(), variant: Some(variant) })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields, Unshown> {
        Ok(Fields { fields: Map::new(), key: None, variant: None })
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields, Unshown> {
        Ok(Fields { fields: Map::new(), key: None, variant: None })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields, Unshown> {
        Ok(Fields { fields: Map::new(), key: None, variant: Some(variant) })
    }
}

fn tagged(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => Value::Object(Map::from_iter([(snake(variant), value)])),
        None => value,
    }
}

struct List {
    items: Vec<Value>,
    variant: Option<&'static str>,
}

impl List {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unshown> {
        self.items.push(value.serialize(Renderer)?);
        Ok(())
    }

    fn finish(self) -> Rendering {
        Ok(tagged(self.variant, Value::Array(self.items)))
    }
}

macro_rules! list {
    ($($trait:ident: $method:ident),*) => {
        $(impl ser::$trait for List {
            type Ok = Value;
            type Error = Unshown;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unshown> { self.push(value) }
            fn end(self) -> Rendering { self.finish() }
        })*
    };
}

list!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

struct Fields {
    fields: Map<String, Value>,
    key: Option<String>,
    variant: Option<&'static str>,
}

impl Fields {
    fn put<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Unshown> {
        self.fields.insert(name.to_owned(), value.serialize(Renderer)?);
        Ok(())
    }

    fn finish(self) -> Rendering {
        Ok(tagged(self.variant, Value::Object(self.fields)))
    }
}

impl ser::SerializeMap for Fields {
    type Ok = Value;
    type Error = Unshown;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unshown> {
        self.key = Some(match key.serialize(Renderer)? {
            Value::String(text) => text,
            other => other.to_string(),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unshown> {
        let key = self.key.take().unwrap_or_default();
        self.fields.insert(key, value.serialize(Renderer)?);
        Ok(())
    }

    fn end(self) -> Rendering {
        self.finish()
    }
}

macro_rules! fields {
    ($($trait:ident),*) => {
        $(impl ser::$trait for Fields {
            type Ok = Value;
            type Error = Unshown;
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Unshown> {
                self.put(name, value)
            }
            fn end(self) -> Rendering { self.finish() }
        })*
    };
}

fields!(SerializeStruct, SerializeStructVariant);
