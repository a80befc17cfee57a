//! JSON in which every name stands once: of two values for one name, two readers may take two different ones.
//!
//! **Invariant:** what is read has no object, at any level, in which a name stands twice; no bytes make the reader panic.
#![deny(missing_docs)]

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Number, Value};
use std::fmt;

/// Characters of a repeated name that a fault shows.
const NAME_SHOWN_MAX: usize = 60;

/// Why a text is no such object, with a sentence that shows at most a name of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonFault {
    /// It is no JSON, or no object.
    Form(String),
    /// A name stands in one object more than once.
    Repeated(String),
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonFault::Form(why) | JsonFault::Repeated(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for JsonFault {}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Unique, D::Error> {
        from.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Unique(value))) = entries.next_entry::<String, Unique>()? {
            if object.contains_key(&name) {
                let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
                return Err(A::Error::custom(format!("{shown:?} is there twice")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

/// The object that a text is.
///
/// # Errors
/// When it is no JSON, another kind of value, or has a name twice in one object.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, JsonFault> {
    match serde_json::from_slice::<Unique>(bytes) {
        Ok(Unique(Value::Object(object))) => Ok(object),
        Ok(_) => Err(JsonFault::Form("it is another kind of value".to_owned())),
        // Every kind of value is taken, so that nothing else is wrong with the data.
        Err(error) if error.classify() == Category::Data => Err(JsonFault::Repeated(error.to_string())),
        Err(error) => Err(JsonFault::Form(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_once_at_every_level() {
        let read =
            object(br#"{"a":1,"b":[{"c":"x","d":null}],"e":1.5,"f":-1,"g":true}"#).expect("it is JSON");
        assert_eq!(read["b"][0]["c"], "x");
        for repeated in [r#"{"a":1,"a":1}"#, r#"{"b":{"a":1,"a":2}}"#, r#"{"b":[{"a":1,"\u0061":2}]}"#] {
            let fault = object(repeated.as_bytes()).expect_err("a name is there twice");
            assert!(matches!(fault, JsonFault::Repeated(_)), "{repeated}: {fault}");
            assert!(fault.to_string().starts_with("\"a\" is there twice"), "{repeated}: {fault}");
        }
        for wrong in ["", "[]", "1", "{", "{}x", "\u{feff}{}", &"[".repeat(10_000)] {
            assert!(matches!(object(wrong.as_bytes()), Err(JsonFault::Form(_))), "{wrong:?}");
        }
        assert!(matches!(object(b"\xff"), Err(JsonFault::Form(_))));
    }

    #[test]
    fn a_fault_shows_no_more_than_a_line_of_a_name() {
        let name = "x".repeat(10_000);
        let fault = object(format!("{{\"{name}\":1,\"{name}\":2}}").as_bytes()).expect_err("twice");
        assert!(fault.to_string().len() < 120, "{fault}");
    }
}
