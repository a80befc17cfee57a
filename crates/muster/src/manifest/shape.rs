//! The YAML of a job, as serde reads it.
//!
//! Every scalar is kept as its text with its place: values are judged later and all together, so that
//! one run of the command names every mistake and its line, not only the first.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A scalar as it was written.
pub type Text = Spanned<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Document {
    pub api_version: Option<Text>,
    pub kind: Option<Text>,
    pub metadata: Option<Metadata>,
    pub spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    pub name: Option<Text>,
    pub tenant: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spec {
    pub tier: Option<Text>,
    pub regions: Option<Vec<Text>>,
    pub groups: Option<Vec<Group>>,
    pub run_time_limit: Option<Text>,
    pub stop_grace: Option<Text>,
    pub failure_retries: Option<Text>,
    pub checkpoint_directory: Option<Text>,
    pub working_directory: Option<Text>,
    pub array: Option<Text>,
    // The only group, written without a list around it. Not `flatten`: that loses places and names.
    pub workers: Option<Text>,
    pub command: Option<Spanned<Command>>,
    pub environment: Option<BTreeMap<String, Text>>,
    pub accelerators: Option<Spanned<Accelerators>>,
    pub cpu: Option<Text>,
    pub memory: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Group {
    pub name: Option<Text>,
    pub workers: Option<Text>,
    pub command: Option<Spanned<Command>>,
    pub environment: Option<BTreeMap<String, Text>>,
    pub accelerators: Option<Spanned<Accelerators>>,
    pub cpu: Option<Text>,
    pub memory: Option<Text>,
}

/// A list of words; the text of a shell line is kept to say what is wrong with it.
pub enum Command {
    Words(Vec<Text>),
    Line(String),
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Command, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Command;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of words: [program, argument, …]")
            }

            fn visit_str<E>(self, line: &str) -> Result<Command, E> {
                Ok(Command::Line(line.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Command, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Command::Words(words))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// `h100:4`, or a mapping of `type` and `count`.
pub enum Accelerators {
    Short(String),
    Long(AcceleratorFields),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AcceleratorFields {
    pub r#type: Option<Text>,
    pub count: Option<Text>,
}

impl<'de> Deserialize<'de> for Accelerators {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Accelerators, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Accelerators;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("accelerators like h100:4, or a mapping of type and count")
            }

            fn visit_str<E>(self, text: &str) -> Result<Accelerators, E> {
                Ok(Accelerators::Short(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Accelerators, A::Error> {
                AcceleratorFields::deserialize(MapAccessDeserializer::new(map)).map(Accelerators::Long)
            }
        }

        deserializer.deserialize_any(Either)
    }
}
