//! The YAML of a job, as serde reads it.
//!
//! Every scalar is kept as its text with its place: values are judged later and all together, so that
//! one run of the command names every mistake and its line, not only the first.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
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
    /// What became of a job that was shown as a file; not read.
    pub status: Option<Spanned<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    pub name: Option<Text>,
    pub tenant: Option<Text>,
    pub labels: Option<BTreeMap<String, Text>>,
    pub annotations: Option<BTreeMap<String, Text>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spec {
    pub tier: Option<Text>,
    pub regions: Option<Vec<Text>>,
    pub groups: Option<Vec<Group>>,
    pub run_time_limit: Option<Text>,
    pub stop_grace: Option<Text>,
    pub working_directory: Option<Text>,
    pub array: Option<Text>,
    pub topology: Option<Topology>,
    pub node_selector: Option<BTreeMap<String, Spanned<Values>>>,
    pub nodes: Option<Nodes>,
    pub tolerations: Option<Vec<Text>>,
    pub preemptible: Option<Text>,
    pub after: Option<Vec<Spanned<After>>>,
    pub not_before: Option<Text>,
    pub deadline: Option<Text>,
    pub expected_run: Option<Text>,
    pub datasets: Option<Vec<Text>>,
    pub launch: Option<Text>,
    pub retry: Option<Retry>,
    pub checkpoint: Option<Checkpoint>,
    pub notice: Option<Notice>,
    pub spare_workers: Option<Text>,
    pub preflight: Option<Text>,
    pub workdir: Option<Workdir>,
    pub booking: Option<Text>,
    pub artifacts: Option<Artifacts>,
    pub ulimits: Option<Ulimits>,
    pub binding: Option<Text>,
    pub shell: Option<Text>,
    pub shared_memory: Option<Text>,
    pub capacity: Option<Spanned<Capacity>>,
    pub affinity: Option<Vec<Spanned<Affinity>>>,
    pub licences: Option<BTreeMap<String, Text>>,
    pub nice: Option<Text>,
    pub exclusive: Option<Text>,
    pub scratch: Option<Text>,
    pub readiness: Option<Readiness>,
    pub terminal: Option<Text>,
    pub notify: Option<Vec<Spanned<Notify>>>,
    pub parallel: Option<Spanned<Parallel>>,
    // The only group, written without a list around it. Not `flatten`: that loses places and names.
    pub workers: Option<Text>,
    pub min_workers: Option<Text>,
    pub slice: Option<Spanned<Slice>>,
    pub command: Option<Spanned<Command>>,
    pub environment: Option<BTreeMap<String, Text>>,
    pub accelerators: Option<Spanned<Accelerators>>,
    pub cpu: Option<Text>,
    pub memory: Option<Text>,
    pub container: Option<Container>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Retry {
    pub max_failures: Option<Text>,
    pub limits: Option<BTreeMap<String, Text>>,
    pub backoff: Option<Text>,
    pub max_backoff: Option<Text>,
    pub avoid: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Checkpoint {
    pub directory: Option<Text>,
    pub dataset: Option<Text>,
    pub step: Option<Text>,
    pub save: Option<Text>,
    pub interval: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Readiness {
    pub timeout: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Notice {
    pub http_port: Option<Text>,
    pub http_path: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Group {
    pub name: Option<Text>,
    pub workers: Option<Text>,
    pub min_workers: Option<Text>,
    pub slice: Option<Spanned<Slice>>,
    pub command: Option<Spanned<Command>>,
    pub environment: Option<BTreeMap<String, Text>>,
    pub accelerators: Option<Spanned<Accelerators>>,
    pub cpu: Option<Text>,
    pub memory: Option<Text>,
    pub container: Option<Container>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Workdir {
    pub digest: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Artifacts {
    pub paths: Option<Vec<Text>>,
    pub required: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Ulimits {
    pub open_files: Option<Text>,
    pub core_size: Option<Text>,
    pub locked_memory: Option<Text>,
    pub stack_size: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Affinity {
    pub to: Option<Text>,
    pub jobs: Option<Text>,
    pub level: Option<Text>,
    pub rule: Option<Text>,
    pub required: Option<Text>,
    pub weight: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Notify {
    pub receiver: Option<Text>,
    pub events: Option<Vec<Text>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Container {
    pub image: Option<Text>,
    pub pull: Option<Text>,
    pub mounts: Option<Vec<Mount>>,
    pub shared_memory: Option<Text>,
    pub credentials: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Mount {
    pub source: Option<Text>,
    pub target: Option<Text>,
    pub read_only: Option<Text>,
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

/// What may be written short, as one text, or long, as a mapping.
macro_rules! short_or_long {
    ($(#[$doc:meta])* $name:ident, $fields:ty, $expected:literal) => {
        $(#[$doc])*
        pub enum $name {
            Short(String),
            Long(Box<$fields>),
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                struct Either;

                impl<'de> Visitor<'de> for Either {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E>(self, text: &str) -> Result<$name, E> {
                        Ok($name::Short(text.to_owned()))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        <$fields>::deserialize(MapAccessDeserializer::new(map)).map(|fields| $name::Long(Box::new(fields)))
                    }
                }

                deserializer.deserialize_any(Either)
            }
        }
    };
}

short_or_long!(
    /// `h100:4`, `h100|a100:1`, `any:0.25`, or a mapping of `type` or `types` and `count`.
    Accelerators,
    AcceleratorFields,
    "accelerators like h100:4, or a mapping of type and count"
);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AcceleratorFields {
    pub r#type: Option<Text>,
    pub types: Option<BTreeMap<String, Text>>,
    pub count: Option<Text>,
}

short_or_long!(
    /// `4x4x8`, or a mapping of `shape` and `count`.
    Slice,
    SliceFields,
    "a slice like 4x4x8, or a mapping of shape and count"
);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SliceFields {
    pub shape: Option<Text>,
    pub count: Option<Text>,
}

short_or_long!(
    /// `job-3f0`, `array-3f0`, the name of another job of the file, or a mapping of `job`, `array` or `name` and `when`.
    After,
    AfterFields,
    "a job's or an array's id, the name of another job of the file, or a mapping of job and when"
);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AfterFields {
    pub job: Option<Text>,
    pub when: Option<Text>,
    pub array: Option<Text>,
    pub by_member: Option<Text>,
    pub name: Option<Text>,
}

short_or_long!(
    /// One purchase, or a mapping of `purchases` and what else is asked.
    Capacity,
    CapacityFields,
    "one purchase like spot, or a mapping of purchases, fallback and maxInterruptionsPerDay"
);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CapacityFields {
    pub purchases: Option<Vec<Text>>,
    pub fallback: Option<CapacityFallback>,
    pub max_interruptions_per_day: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CapacityFallback {
    pub purchases: Option<Vec<Text>>,
    pub after: Option<Text>,
}

short_or_long!(
    /// `auto`, or a mapping of the model and what is trained.
    Parallel,
    ParallelFields,
    "auto, or a mapping of model, batch, sequence and sizes that are given"
);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ParallelFields {
    pub model: Option<Spanned<Description>>,
    pub batch: Option<Text>,
    pub sequence: Option<Text>,
    pub steps: Option<Text>,
    pub precision: Option<Text>,
    pub tensor: Option<Text>,
    pub pipeline: Option<Text>,
    pub context: Option<Text>,
    pub expert: Option<Text>,
    pub micro_batch: Option<Text>,
    pub interleave: Option<Text>,
    pub recompute: Option<Text>,
    pub sharding: Option<Text>,
}

/// A model: the path of its config.json, or what that says.
pub enum Description {
    Path(String),
    Inline(serde_json::Value),
}

impl<'de> Deserialize<'de> for Description {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Description, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Description;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the path of a model's config.json, or a mapping of what it says")
            }

            fn visit_str<E>(self, path: &str) -> Result<Description, E> {
                Ok(Description::Path(path.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Description, A::Error> {
                serde_json::Map::deserialize(MapAccessDeserializer::new(map))
                    .map(|fields| Description::Inline(fields.into()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Topology {
    pub required: Option<Text>,
    pub preferred: Option<Text>,
    pub balanced: Option<Text>,
    pub segment_workers: Option<Text>,
    pub segments: Option<Vec<Spanned<Segment>>>,
    pub spread: Option<Spanned<Spread>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Segment {
    pub level: Option<Text>,
    pub workers: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spread {
    pub level: Option<Text>,
    pub max_workers: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Nodes {
    pub expressions: Option<Vec<Spanned<NodeExpression>>>,
    pub only: Option<Vec<Text>>,
    pub exclude: Option<Vec<Text>>,
}

/// A test of a label: the field that is given says which.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeExpression {
    pub key: Option<Text>,
    pub r#in: Option<Spanned<Values>>,
    pub not_in: Option<Spanned<Values>>,
    pub exists: Option<Text>,
    pub greater: Option<Text>,
    pub less: Option<Text>,
}

/// A text, or a list of texts.
pub struct Values(pub Vec<String>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Values, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts; numbers with a point in quotes")
            }

            fn visit_str<E>(self, text: &str) -> Result<Values, E> {
                Ok(Values(vec![text.to_owned()]))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(Values(values))
            }
        }

        deserializer.deserialize_any(Either)
    }
}
