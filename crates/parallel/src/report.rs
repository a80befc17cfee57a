//! A plan with all that people and programs want to know of it.

use serde::Serialize;

use crate::coefficients::Origin;
use crate::error::PlanError;
use crate::layout::{Layout, Training};
use crate::memory::{self, Memory};
use crate::model::Parameters;
use crate::programs::{self, Arguments};
use crate::ranks::{self, Mesh, Order, RankMap};
use crate::search::{Plan, Question};

/// One term that the answer rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Term {
    /// What it is.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// Everything about one answer.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Architecture of the model.
    pub architecture: String,
    /// Its parameters.
    pub parameters: Parameters,
    /// What is trained.
    pub training: Training,
    /// On what.
    pub accelerator: &'static str,
    /// A device's memory, in bytes.
    pub memory_bytes: u64,
    /// The layouts.
    pub plan: Plan,
    /// Memory of each stage of the first layout.
    pub stages: Vec<Memory>,
    /// The first layout in the words of programs.
    pub arguments: Arguments,
    /// Ranks of the first layout on a fleet that is filled in order.
    pub ranks: RankMap,
    /// Its mesh, on TPUs.
    pub mesh: Option<Mesh>,
    /// Dollars for a million tokens, if a price was given.
    pub usd_per_million_tokens: Option<f64>,
    /// What the answer rests on.
    pub terms: Vec<Term>,
}

/// Highest price of an accelerator and hour, in dollars.
const PRICE_MAX_USD: f64 = 1e6;

impl Report {
    /// Answers a question; `usd_per_hour` is the price of one accelerator.
    ///
    /// # Errors
    /// As [`Question::plan`], and if the price is none.
    pub fn new(question: &Question, usd_per_hour: Option<f64>) -> Result<Report, PlanError> {
        if let Some(price) = usd_per_hour
            && !(0.0..=PRICE_MAX_USD).contains(&price)
        {
            return Err(PlanError::BadOption {
                option: "price",
                value: price.to_string(),
                expected: format!("from 0 to {PRICE_MAX_USD} dollars an hour"),
            });
        }
        let plan = question.plan()?;
        let Some(first) = plan.candidates.first().copied() else {
            return Err(PlanError::FitsNowhere { text: "no layout fits".to_owned() });
        };
        let layout: Layout = first.layout;
        let (model, training, accelerator) = (&question.model, &question.training, &question.accelerator);
        let held = memory::Held::new(model, &layout, training);
        let hosts = ranks::imagined(accelerator, layout.devices());
        let ranks = ranks::map(model, &layout, training, accelerator, &hosts)?;
        let mut arguments = programs::arguments(model, &layout, training);
        if ranks.order == Order::PipelineFirst {
            arguments.megatron.push("--use-tp-pp-dp-mapping".to_owned());
        }
        arguments.environment.extend(ranks.environment.iter().cloned());
        let mesh = if accelerator.is_tpu() { ranks::mesh(accelerator, &layout).ok() } else { None };
        let usd_per_million_tokens =
            usd_per_hour.map(|price| price * first.devices as f64 / 3600.0 / first.tokens_per_s * 1e6);
        Ok(Report {
            architecture: model.architecture.clone(),
            parameters: model.parameters(),
            training: *training,
            accelerator: accelerator.name,
            memory_bytes: accelerator.memory_bytes,
            stages: (0..layout.pipeline).map(|stage| held.stage(&layout, stage)).collect(),
            arguments,
            ranks,
            mesh,
            usd_per_million_tokens,
            terms: question
                .calibration
                .terms()
                .into_iter()
                .map(|(name, value, origin)| Term { name, value, origin })
                .collect(),
            plan,
        })
    }
}
