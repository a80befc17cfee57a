//! Ids in JSON as people know them: `job-5k`, a UUID, sixteen hexadecimal digits.

/// Through `Display` and `FromStr`.
pub(crate) mod shown {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
    {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A list of such.
pub(crate) mod shown_list {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr,
        T::Err: Display,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

/// A digest as sixteen hexadecimal digits.
pub(crate) mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(digest: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{digest:016x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digest = plain.then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        digest.ok_or_else(|| serde::de::Error::custom("expected 16 hexadecimal digits"))
    }
}
