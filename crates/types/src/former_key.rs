//! Keys that configuration files had before: each is refused with the key that replaced it.
//!
//! Who reads a file first reads its [`WrittenKeys`] and asks [`WrittenKeys::former`]. A file of an earlier form is then answered
//! with what to write, and not only with the list of keys that exist.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::quantity::{self, ByteCount};
use crate::time::Span;

/// No value that is repeated in a refusal is longer, in bytes.
const TEXT_BYTES_MAX: usize = 64;

/// What a number counted where a key had no unit in its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Milliseconds,
    Bytes,
    BytesPerSecond,
    MilliCpus,
}

/// A key that files had, and the one that replaced it in the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerKey {
    was: &'static str,
    now: &'static str,
    counted: Counted,
}

impl FormerKey {
    /// A key of milliseconds. `was` begins with its tables, `leader.settle_ms`; `now` is the key alone.
    #[must_use]
    pub const fn span(was: &'static str, now: &'static str) -> FormerKey {
        FormerKey { was, now, counted: Counted::Milliseconds }
    }

    /// A key of bytes.
    #[must_use]
    pub const fn bytes(was: &'static str, now: &'static str) -> FormerKey {
        FormerKey { was, now, counted: Counted::Bytes }
    }

    /// A key of bytes a second.
    #[must_use]
    pub const fn rate(was: &'static str, now: &'static str) -> FormerKey {
        FormerKey { was, now, counted: Counted::BytesPerSecond }
    }

    /// A key of thousandths of a CPU.
    #[must_use]
    pub const fn cpu(was: &'static str, now: &'static str) -> FormerKey {
        FormerKey { was, now, counted: Counted::MilliCpus }
    }

    /// The key with its tables.
    #[must_use]
    pub const fn was(&self) -> &'static str {
        self.was
    }

    /// The key that replaced it, without its tables.
    #[must_use]
    pub const fn now(&self) -> &'static str {
        self.now
    }

    /// What to write in place of it.
    fn instead_of(&self, written: &Written) -> String {
        let rule = match self.counted {
            Counted::Milliseconds => quantity::SPAN_RULE,
            Counted::Bytes => quantity::BYTES_RULE,
            Counted::BytesPerSecond => quantity::RATE_RULE,
            Counted::MilliCpus => quantity::CPU_RULE,
        };
        let value = match (written, self.counted) {
            (Written::Number(ms), Counted::Milliseconds) => Some(Span(*ms).to_string()),
            (Written::Number(bytes), Counted::Bytes) => Some(ByteCount(*bytes).to_string()),
            (Written::Number(rate), Counted::BytesPerSecond) => Some(format!("{}/s", ByteCount(*rate))),
            (Written::Number(milli), Counted::MilliCpus) if milli.is_multiple_of(1_000) => {
                Some((milli / 1_000).to_string())
            }
            (Written::Number(milli), Counted::MilliCpus) => Some(format!("{milli}m")),
            // A quantity under the earlier name.
            (Written::Text(text), Counted::BytesPerSecond) if !text.ends_with("/s") => {
                Some(format!("{text}/s"))
            }
            (Written::Text(text), _) => Some(text.clone()),
            (Written::Other, _) => None,
        };
        let now = self.now;
        match value.filter(|value| value.len() <= TEXT_BYTES_MAX) {
            Some(value) => {
                format!("is now `{now}`, with the unit in the value: {now} = {value:?}; takes {rule}")
            }
            None => format!("is now `{now}`, with the unit in the value; takes {rule}"),
        }
    }
}

/// The keys of a file in their order, with their tables, `leader.settle`. Keys inside of lists are passed over.
#[derive(Clone, Debug, Default)]
pub struct WrittenKeys(Vec<(String, Written)>);

/// The value of a key.
#[derive(Clone, Debug)]
enum Written {
    Number(u64),
    Text(String),
    Other,
}

impl WrittenKeys {
    /// The first key that is one of `former`, and what to write in place of it.
    #[must_use]
    pub fn former(&self, former: &[FormerKey]) -> Option<(&'static str, String)> {
        self.0.iter().find_map(|(path, written)| {
            let key = former.iter().find(|key| key.was == path)?;
            Some((key.was, key.instead_of(written)))
        })
    }
}

impl<'de> Deserialize<'de> for WrittenKeys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<WrittenKeys, D::Error> {
        let mut keys = Vec::new();
        from.deserialize_any(Table { path: "", keys: &mut keys })?;
        Ok(WrittenKeys(keys))
    }
}

/// Collects the keys of a table, and of the tables in it.
struct Table<'a> {
    path: &'a str,
    keys: &'a mut Vec<(String, Written)>,
}

impl<'de> DeserializeSeed<'de> for Table<'_> {
    type Value = Written;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Written, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Table<'_> {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a configuration")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Written, E> {
        Ok(Written::Other)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Written, E> {
        Ok(Written::Number(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
        Ok(u64::try_from(number).map_or(Written::Other, Written::Number))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Written, E> {
        Ok(Written::Other)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
        Ok(Written::Text(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Written, E> {
        Ok(Written::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Written, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Written::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Written, A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            let path = if self.path.is_empty() { key } else { format!("{}.{key}", self.path) };
            let value = fields.next_value_seed(Table { path: &path, keys: &mut *self.keys })?;
            self.keys.push((path, value));
        }
        Ok(Written::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use serde::de::IntoDeserializer as _;
    use serde::de::value::{Error as ValueError, MapDeserializer};

    const FORMER: [FormerKey; 5] = [
        FormerKey::span("settle_ms", "settle"),
        FormerKey::bytes("limits.kept_bytes", "kept_size"),
        FormerKey::bytes("kept_bytes", "kept_size"),
        FormerKey::rate("send_bytes_per_s", "send_rate"),
        FormerKey::cpu("cpu_milli", "cpu"),
    ];

    /// The refusal of a file with these keys of numbers.
    fn numbers(keys: &[(&'static str, u64)]) -> Option<(&'static str, String)> {
        let from: MapDeserializer<'_, _, ValueError> = MapDeserializer::new(keys.iter().copied());
        WrittenKeys::deserialize(from).unwrap().former(&FORMER)
    }

    fn text(key: &'static str, value: &str) -> Option<String> {
        let from: MapDeserializer<'_, _, ValueError> = MapDeserializer::new([(key, value)].into_iter());
        WrittenKeys::deserialize(from).unwrap().former(&FORMER).map(|(_, said)| said)
    }

    #[test]
    fn a_number_is_answered_with_the_quantity() {
        for (key, number, written) in [
            ("settle_ms", 90_000, "settle = \"1m30s\"; takes a duration like 90s"),
            ("settle_ms", 0, "settle = \"0s\";"),
            ("kept_bytes", 64 << 20, "kept_size = \"64Mi\"; takes bytes like 64MiB"),
            ("send_bytes_per_s", 1_000, "send_rate = \"1000/s\"; takes bytes a second like 64MiB/s"),
            ("cpu_milli", 8_000, "cpu = \"8\"; takes CPUs like 2, 0.5 or 500m"),
            ("cpu_milli", 500, "cpu = \"500m\";"),
        ] {
            let (named, said) = numbers(&[("other", 1), (key, number)]).unwrap();
            assert_eq!(named, key);
            assert!(said.starts_with("is now `") && said.contains(written), "{said}");
        }
        assert_eq!(numbers(&[("settle", 5), ("ms", 5)]), None);
    }

    #[test]
    fn a_text_keeps_its_value() {
        assert!(text("settle_ms", "90s").unwrap().contains("settle = \"90s\""));
        assert!(text("send_bytes_per_s", "64MiB").unwrap().contains("send_rate = \"64MiB/s\""));
        let long = "9".repeat(100);
        let said = text("settle_ms", &long).unwrap();
        assert!(!said.contains(&long) && said.contains("`settle`"), "{said}");
        assert_eq!(text("settle", "90s"), None);
    }

    #[test]
    fn keys_have_their_tables_and_lists_are_passed_over() {
        let table = |path: &'static str, keys: Vec<(&'static str, u64)>| {
            let inner: MapDeserializer<'_, _, ValueError> = MapDeserializer::new(keys.into_iter());
            let mut found = Vec::new();
            Table { path, keys: &mut found }.deserialize(inner).unwrap();
            WrittenKeys(found).former(&FORMER).map(|(key, _)| key)
        };
        assert_eq!(table("limits", vec![("kept_bytes", 1)]), Some("limits.kept_bytes"));
        assert_eq!(table("limits", vec![("settle_ms", 1)]), None);
        let list: serde::de::value::SeqDeserializer<_, ValueError> = vec![1u64, 2].into_deserializer();
        assert_eq!(WrittenKeys::deserialize(list).unwrap().former(&FORMER), None);
    }
}
