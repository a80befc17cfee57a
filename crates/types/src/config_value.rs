//! Quantities in configuration files: the texts that job files have, as fields of structures that serde reads.
//!
//! The name of a key tells what is bounded (an age, a size, a rate) and no unit; the unit is in the value.
//!
//! A field says `#[serde(with = "muster_types::config_value::span_ms")]`, and is a `u64`, or an `Option<u64>` that has
//! `default` as well. What is written otherwise is refused with the form that is needed; the reader of the file names the key.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// How a quantity is read.
#[derive(Clone, Copy)]
struct Form {
    rule: &'static str,
    read: fn(&str) -> Option<u64>,
}

impl Form {
    fn take<E: Error>(self, text: &str, written: Unexpected<'_>) -> Result<u64, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(written, &self))
    }
}

impl Visitor<'_> for Form {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        self.take(text, Unexpected::Str(text))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        self.take(&number.to_string(), Unexpected::Unsigned(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        self.take(&number.to_string(), Unexpected::Signed(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        self.take(&number.to_string(), Unexpected::Float(number))
    }
}

fn read<'de, D: Deserializer<'de>, T: From<u64>>(from: D, form: Form) -> Result<T, D::Error> {
    from.deserialize_any(form).map(T::from)
}

/// What a reader of TOML says of a value of the wrong type, in plain words: `invalid type: string "one", expected u64` is
/// `expected a whole number, 0 or more; got the text "one"`. Other lines stay as they are: those that name the key, and other mistakes.
#[must_use]
pub fn plain_mistake(text: &str) -> String {
    let lines: Vec<String> = text.trim_end().lines().map(plain_line).collect();
    lines.join("\n")
}

fn plain_line(line: &str) -> String {
    let mistake = line.strip_prefix("invalid type: ").or_else(|| line.strip_prefix("invalid value: "));
    // The text that was written may have the same word in it.
    let Some((got, expected)) = mistake.and_then(|mistake| mistake.rsplit_once(", expected ")) else {
        return line.to_string();
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" => "a text in quotes",
        "a sequence" => "a list",
        "a map" => "a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    let kinds = [("string ", "the text "), ("integer ", "the number "), ("floating point ", "the number ")];
    let of_kind =
        kinds.into_iter().find_map(|(kind, plain)| Some(format!("{plain}{}", got.strip_prefix(kind)?)));
    let got = of_kind.unwrap_or_else(|| match got {
        "sequence" => "a list".to_string(),
        "map" => "a table".to_string(),
        other => other.strip_prefix("boolean ").unwrap_or(other).to_string(),
    });
    format!("expected {expected}; got {got}")
}

/// Milliseconds, written as a duration: `90s`, `1h30m`.
pub mod span_ms {
    use super::{Form, read};
    use crate::quantity;
    use crate::time::Span;
    use serde::{Deserializer, Serializer};

    /// Reads it.
    ///
    /// # Errors
    /// When it is no duration.
    pub fn deserialize<'de, D: Deserializer<'de>, T: From<u64>>(from: D) -> Result<T, D::Error> {
        read(from, Form { rule: quantity::SPAN_RULE, read: quantity::span_ms })
    }

    /// Writes it, as it is read.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn serialize<S: Serializer, T: Copy + Into<Option<u64>>>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match (*value).into() {
            Some(ms) => to.collect_str(&Span(ms)),
            None => to.serialize_none(),
        }
    }
}

/// Bytes: `64MiB`, `4Gi`, `64G`, or a plain number.
pub mod bytes {
    use super::{Form, read};
    use crate::quantity;
    use serde::{Deserializer, Serializer};

    /// Reads it.
    ///
    /// # Errors
    /// When it is no number of bytes.
    pub fn deserialize<'de, D: Deserializer<'de>, T: From<u64>>(from: D) -> Result<T, D::Error> {
        read(from, Form { rule: quantity::BYTES_RULE, read: quantity::bytes })
    }

    /// Writes it, as a plain number.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn serialize<S: Serializer, T: Copy + Into<Option<u64>>>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match (*value).into() {
            Some(bytes) => to.serialize_u64(bytes),
            None => to.serialize_none(),
        }
    }
}

/// Bytes a second: `64MiB/s`, `1G/s`.
pub mod bytes_per_second {
    use super::{Form, read};
    use crate::quantity::{self, ByteCount};
    use alloc::format;
    use serde::{Deserializer, Serializer};

    /// Reads it.
    ///
    /// # Errors
    /// When it is no rate.
    pub fn deserialize<'de, D: Deserializer<'de>, T: From<u64>>(from: D) -> Result<T, D::Error> {
        read(from, Form { rule: quantity::RATE_RULE, read: quantity::bytes_per_second })
    }

    /// Writes it, as it is read.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn serialize<S: Serializer, T: Copy + Into<Option<u64>>>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match (*value).into() {
            Some(rate) => to.collect_str(&format!("{}/s", ByteCount(rate))),
            None => to.serialize_none(),
        }
    }
}

/// Milli-CPUs, written as CPUs: `2`, `0.5`, `500m`.
pub mod cpu_milli {
    use super::{Form, read};
    use crate::quantity;
    use alloc::format;
    use serde::{Deserializer, Serializer};

    /// Reads it.
    ///
    /// # Errors
    /// When it is no number of CPUs.
    pub fn deserialize<'de, D: Deserializer<'de>, T: From<u64>>(from: D) -> Result<T, D::Error> {
        read(from, Form { rule: quantity::CPU_RULE, read: quantity::cpu_milli })
    }

    /// Writes it, as it is read.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn serialize<S: Serializer, T: Copy + Into<Option<u64>>>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match (*value).into() {
            Some(milli) => to.collect_str(&format!("{milli}m")),
            None => to.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plain_mistake;
    use alloc::string::{String, ToString};
    use serde::de::IntoDeserializer as _;
    use serde::de::value::Error as ValueError;

    /// What is read of a value, or why not.
    macro_rules! read {
        ($form:ident, $value:expr) => {{
            let from = serde::de::IntoDeserializer::<ValueError>::into_deserializer($value);
            let read: Result<u64, ValueError> = super::$form::deserialize(from);
            read.map_err(|error| error.to_string())
        }};
    }

    #[test]
    fn quantities_are_read_as_job_files_have_them() {
        assert_eq!(read!(span_ms, "1m30s"), Ok(90_000));
        assert_eq!(read!(span_ms, 0u64), Ok(0), "no unit is needed");
        assert_eq!(read!(bytes, "64MiB"), Ok(64 << 20));
        assert_eq!(read!(bytes, "1.5Gi"), Ok(3 << 29));
        assert_eq!(read!(bytes, 4_096i64), Ok(4_096));
        assert_eq!(read!(bytes_per_second, "64MiB/s"), Ok(64 << 20));
        assert_eq!(read!(cpu_milli, "500m"), Ok(500));
        assert_eq!(read!(cpu_milli, 8i64), Ok(8_000));
        assert_eq!(read!(cpu_milli, 0.5f64), Ok(500));
        let from: serde::de::value::StrDeserializer<'_, ValueError> = "2s".into_deserializer();
        let optional: Result<Option<u64>, ValueError> = super::span_ms::deserialize(from);
        assert_eq!(optional, Ok(Some(2_000)));
    }

    #[test]
    fn what_is_none_is_refused_with_the_form_that_is_needed() {
        let refused = |read: Result<u64, String>, value: &str, form: &str| {
            let error = read.expect_err("it is none");
            assert!(error.contains(value) && error.contains(form), "{error}");
        };
        let (span, bytes) = ("expected a duration like 90s, 2h or 1h30m", "expected bytes like 64MiB");
        refused(read!(span_ms, 10u64), "integer `10`", span);
        refused(read!(span_ms, -1i64), "integer `-1`", span);
        refused(read!(span_ms, "10"), "string \"10\"", span);
        refused(read!(span_ms, "64MiB"), "string \"64MiB\"", span);
        refused(read!(span_ms, true), "boolean `true`", span);
        refused(read!(bytes, "10s"), "string \"10s\"", bytes);
        refused(read!(bytes, -1i64), "integer `-1`", bytes);
        refused(read!(bytes, 0.5f64), "floating point `0.5`", bytes);
        let rate = "expected bytes a second like 64MiB/s";
        refused(read!(bytes_per_second, "64MiB"), "string \"64MiB\"", rate);
        refused(read!(bytes_per_second, 67_108_864u64), "integer `67108864`", rate);
        refused(read!(span_ms, "9999999999d"), "string \"9999999999d\"", span);
        refused(read!(cpu_milli, "two"), "string \"two\"", "expected CPUs like 2, 0.5 or 500m");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_in_plain_words() {
        for (line, plain) in [
            (
                "invalid type: string \"one\", expected u64",
                "expected a whole number, 0 or more; got the text \"one\"",
            ),
            ("invalid type: integer `7`, expected a boolean", "expected true or false; got the number `7`"),
            ("invalid type: boolean `true`, expected a string", "expected a text in quotes; got `true`"),
            ("invalid type: sequence, expected struct Tls", "expected a table; got a list"),
            (
                "invalid value: integer `-1`, expected u32",
                "expected a whole number, 0 or more; got the number `-1`",
            ),
            ("unknown field `a`, expected `b`", "unknown field `a`, expected `b`"),
        ] {
            assert_eq!(plain_mistake(line), plain);
        }
        let whole = "TOML parse error at line 3, column 8\n  |\n3 | port = \"x\"\n  |        ^^^\ninvalid type: string \"x\", expected u16\n";
        let plain = plain_mistake(whole);
        assert!(
            plain.starts_with("TOML parse error at line 3, column 8\n") && plain.contains("3 | port = "),
            "{plain}"
        );
        assert!(plain.ends_with("^^^\nexpected a whole number, 0 or more; got the text \"x\""), "{plain}");
    }
}
