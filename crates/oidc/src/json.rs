//! JSON in which every name stands once: of two claims with one name, two readers may take two different ones.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

const REPEATED: &str = "a name is repeated";

/// Why a text is no such object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonFault {
    /// It is no JSON, or no object.
    Form,
    /// A name stands in one object more than once.
    Repeated,
}

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
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom(REPEATED));
            }
        }
        Ok(Value::Object(object))
    }
}

/// The object that a text is.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, JsonFault> {
    match serde_json::from_slice::<Unique>(bytes) {
        Ok(Unique(Value::Object(object))) => Ok(object),
        Ok(_) => Err(JsonFault::Form),
        Err(error) if error.to_string().starts_with(REPEATED) => Err(JsonFault::Repeated),
        Err(_) => Err(JsonFault::Form),
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
            assert_eq!(object(repeated.as_bytes()), Err(JsonFault::Repeated), "{repeated}");
        }
        for wrong in ["", "[]", "1", "{", "{}x", "\u{feff}{}", &"[".repeat(10_000)] {
            assert_eq!(object(wrong.as_bytes()), Err(JsonFault::Form), "{wrong:?}");
        }
        assert_eq!(object(b"\xff"), Err(JsonFault::Form));
    }
}
