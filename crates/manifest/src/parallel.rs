//! What a job file leaves to the parallelism planner, as its file states it.

use muster_parallel::search::Fixed;
use muster_parallel::{Precision, Recompute, Sharding};
use serde_saphyr::Spanned;

use super::quantity;
use super::reader::Reader;
use super::shape::{Description, Parallel as Written, ParallelFields, Text};

/// Sequences of a step, where a file does not state them: as `muster parallel plan`.
const BATCH: u64 = 1024;
/// Tokens of a sequence, likewise.
const SEQUENCE: u64 = 4096;

/// Where the description of the model is.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// In a file, by a path from the directory of the job file.
    File(String),
    /// In the job file itself, as JSON.
    Inline(String),
}

/// A split that is planned when the job is submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Parallel {
    /// The model.
    pub model: ModelSource,
    /// Sequences of a step.
    pub batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Steps of the run; 0 if the file does not state them.
    pub steps: u64,
    /// Number formats.
    pub precision: Precision,
    /// Sizes that the file gives.
    pub fixed: Fixed,
    /// Fewest workers; 0 if the file does not state them.
    pub workers_min: u32,
}

impl Reader<'_> {
    /// A file without a path of the model has it in `config.json`.
    pub fn parallel(&mut self, at: &str, given: Spanned<Written>) -> Parallel {
        self.place(at, given.referenced);
        let fields = match given.value {
            Written::Short(word) => {
                if word != "auto" {
                    let shown: String = word.chars().take(80).collect();
                    let advice =
                        format!("must be auto, or a mapping with model, batch and more, got {shown:?}");
                    self.problem(Some(given.referenced), at, advice);
                }
                ParallelFields::default()
            }
            Written::Long(fields) => *fields,
        };
        let path = |field: &str| format!("{at}.{field}");
        let model = self.model_source(&path("model"), fields.model);
        let mut size = |field: &str, text: Option<Text>| {
            let advice = "leave it out for the planner's choice";
            let value = self.above_zero(&path(field), text, quantity::count, advice);
            Some(u64::from(value)).filter(|value| *value > 0)
        };
        let (batch, sequence) = (size("batch", fields.batch), size("sequence", fields.sequence));
        let steps = size("steps", fields.steps);
        let fixed = Fixed {
            tensor: size("tensor", fields.tensor),
            pipeline: size("pipeline", fields.pipeline),
            context: size("context", fields.context),
            expert: size("expert", fields.expert),
            micro_batch: size("microBatch", fields.micro_batch),
            interleave: size("interleave", fields.interleave),
            recompute: self.word(
                &path("recompute"),
                fields.recompute,
                &[("none", Recompute::None), ("selective", Recompute::Selective), ("full", Recompute::Full)],
            ),
            sharding: self.word(
                &path("sharding"),
                fields.sharding,
                &[("none", Sharding::None), ("optimizer", Sharding::Optimizer), ("full", Sharding::Full)],
            ),
            worker_devices: None,
        };
        let precision = self.word(
            &path("precision"),
            fields.precision,
            &[
                ("bf16", Precision::Bf16),
                ("fp16", Precision::Fp16),
                ("fp8", Precision::Fp8),
                ("fp32", Precision::Fp32),
            ],
        );
        Parallel {
            model,
            batch: batch.unwrap_or(BATCH),
            sequence: sequence.unwrap_or(SEQUENCE),
            steps: steps.unwrap_or_default(),
            precision: precision.unwrap_or(Precision::Bf16),
            fixed,
            workers_min: 0,
        }
    }

    fn model_source(&mut self, field: &str, given: Option<Spanned<Description>>) -> ModelSource {
        let Some(given) = given else { return ModelSource::File("config.json".to_owned()) };
        self.place(field, given.referenced);
        match given.value {
            Description::Path(path) => ModelSource::File(path),
            Description::Inline(value) => ModelSource::Inline(value.to_string()),
        }
    }

    /// One of a few words.
    fn word<T: Copy>(&mut self, field: &str, text: Option<Text>, words: &[(&str, T)]) -> Option<T> {
        let text = text?;
        self.place(field, text.referenced);
        let found = words.iter().find(|(name, _)| *name == text.value).map(|(_, value)| *value);
        if found.is_none() {
            let shown: String = text.value.chars().take(80).collect();
            let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
            self.problem(
                Some(text.referenced),
                field,
                format!("must be one of {}, got {shown:?}", names.join(", ")),
            );
        }
        found
    }
}
