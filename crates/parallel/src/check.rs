//! The planner held against what others have published: sizes, memory and time, the rows that it misses too.

use serde::Serialize;

use crate::accelerator;
use crate::calibration::{self, Observation};
use crate::coefficients::{Calibration, Origin};
use crate::layout::{Layout, Precision, Program, Recompute, Training};
use crate::memory;
use crate::model::{Attention, Model};
use crate::published;
use crate::search::{Fixed, Question, usual_program};

/// One published time and the predicted one.
#[derive(Clone, Debug, Serialize)]
pub struct TimeRow {
    /// The table that it is of.
    pub table: &'static str,
    /// The run.
    pub name: String,
    /// On what.
    pub accelerator: &'static str,
    /// Published time of a step, in seconds.
    pub published_s: f64,
    /// Predicted time of a step, in seconds.
    pub predicted_s: f64,
    /// Predicted over published less one, in percent.
    pub error_percent: f64,
    /// The published layout fits by the planner's account of memory; runs that kept something on the host, or less, do
    /// not.
    pub fits: bool,
    /// Predicted time of the planner's own layout on as many devices, in seconds; none if nothing fits by its account.
    pub own_layout_s: Option<f64>,
    /// Where the accelerator's calibration comes from.
    pub calibration: Origin,
    /// What the source does not say.
    pub assumed: &'static str,
    /// Why no calibration is fitted to it; empty if one is.
    pub unfitted: &'static str,
}

/// Constants and the published steps that were in view when they were chosen.
#[derive(Clone, Debug, Serialize)]
pub struct ConstantsRow {
    /// Which constants.
    pub name: String,
    /// Their values.
    pub value: String,
    /// Where they come from.
    pub from: &'static str,
    /// How many steps stand behind them.
    pub rows: usize,
}

/// One published memory or size and ours.
#[derive(Clone, Debug, Serialize)]
pub struct ValueRow {
    /// What it is.
    pub name: String,
    /// As published.
    pub published: f64,
    /// Ours.
    pub computed: f64,
    /// They are the same to the digit that is published.
    pub exact: bool,
}

/// A published starting point that gives no time.
#[derive(Clone, Debug, Serialize)]
pub struct StartRow {
    /// Model, devices and sizes.
    pub name: String,
    /// It is legal, by the planner's rules.
    pub legal: bool,
    /// It fits with some micro-batch and recomputation.
    pub fits: bool,
}

/// Every row.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Times.
    pub times: Vec<TimeRow>,
    /// Parameters in billions, memory in GiB.
    pub exact: Vec<ValueRow>,
    /// Activations in percent of those kept without recomputation; read from a figure.
    pub figures: Vec<ValueRow>,
    /// Recommended starting points.
    pub starts: Vec<StartRow>,
    /// What gives nothing to predict, and why.
    pub not_predicted: Vec<(&'static str, &'static str)>,
    /// What was chosen with which steps in view.
    pub constants: Vec<ConstantsRow>,
}

/// Errors of a group of rows, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Rows.
    pub rows: usize,
    /// Mean of the absolute errors.
    pub average_percent: f64,
    /// The largest absolute error.
    pub worst_percent: f64,
    /// Rows beyond 10 %.
    pub missed: usize,
}

impl Check {
    /// Errors of the rows on one accelerator, or on all.
    #[must_use]
    pub fn summary(&self, accelerator: Option<&str>) -> Summary {
        let of = self.times.iter().filter(|row| accelerator.is_none_or(|name| name == row.accelerator));
        let errors: Vec<f64> = of.map(|row| row.error_percent.abs()).collect();
        Summary {
            rows: errors.len(),
            average_percent: errors.iter().sum::<f64>() / errors.len().max(1) as f64,
            worst_percent: errors.iter().copied().fold(0.0, f64::max),
            missed: errors.iter().filter(|error| **error > 10.0).count(),
        }
    }

    /// Accelerators that there are times of, in their order.
    #[must_use]
    pub fn accelerators(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        for row in &self.times {
            if !names.contains(&row.accelerator) {
                names.push(row.accelerator);
            }
        }
        names
    }
}

fn times() -> Vec<TimeRow> {
    let mut times = Vec::new();
    for row in published::rows() {
        let observation = &row.observation;
        let calibration = Calibration::of(&observation.accelerator);
        let Some((layout, step)) = observation.predict(&calibration) else { continue };
        let question = Question {
            model: observation.model.clone(),
            training: observation.training,
            accelerator: observation.accelerator,
            calibration,
            devices_max: layout.devices(),
            fixed: Fixed::default(),
        };
        times.push(TimeRow {
            table: row.table,
            name: observation.name.clone(),
            accelerator: observation.accelerator.name,
            published_s: observation.step_time_us / 1e6,
            predicted_s: step.step_time_us / 1e6,
            error_percent: (step.step_time_us / observation.step_time_us - 1.0) * 100.0,
            fits: !matches!(layout.recompute, Recompute::Projections | Recompute::Queries)
                && memory::fits(&observation.model, &layout, &observation.training, &observation.accelerator),
            own_layout_s: question.fastest_on(layout.devices()).map(|best| best.step.step_time_us / 1e6),
            calibration: calibration.origin,
            assumed: row.assumed,
            unfitted: row.unfitted,
        });
    }
    times
}

const GIB: f64 = (1_u64 << 30) as f64;

/// A model with nothing but the matrices of its layers, as the published column counts.
fn matrices_alone(model: &Model) -> Model {
    let mut model = Model { norms: 0, ..model.clone() };
    model.feed_forward.bias = false;
    if let Attention::Standard { qkv_bias, output_bias, .. } = &mut model.attention {
        (*qkv_bias, *output_bias) = (false, false);
    }
    model
}

/// The published numbers of parameters.
fn parameters() -> Vec<ValueRow> {
    let mut rows = Vec::new();
    for (layers, hidden, heads, billions) in [
        (24, 2304, 24, 1.7),
        (30, 3072, 32, 3.6),
        (36, 4096, 32, 7.5),
        (40, 6144, 48, 18.4),
        (48, 8192, 64, 39.1),
        (60, 10240, 80, 76.1),
        (80, 12288, 96, 145.6),
        (96, 16384, 128, 310.1),
        (105, 20480, 128, 529.6),
        (128, 25600, 160, 1008.0),
    ] {
        let count = Model::gpt(layers, hidden, heads, 51200, 2048).parameters().total as f64 / 1e9;
        let computed = (count * 10.0).round() / 10.0;
        rows.push(ValueRow {
            name: format!("parameters of {layers} layers of {hidden}, billions"),
            published: billions,
            computed,
            exact: computed == billions,
        });
    }
    rows
}

/// The published memory of four models: columns that have to be met exactly, and percentages.
fn memory_columns() -> (Vec<ValueRow>, Vec<ValueRow>) {
    let (mut exact, mut figures) = (Vec::new(), Vec::new());
    for (name, (layers, hidden, heads), (t, p, v, b, batch), weights, none, selective, percents) in [
        ("22B", (48, 6144, 64), (8, 1, 1, 4, 4), 45.5625, 59.25, 9.5625, [66.84, 49.42, 16.18, 7.64]),
        (
            "175B",
            (96, 12288, 96),
            (8, 8, 3, 1, 64),
            45.5625,
            66.84375,
            12.351_562_5,
            [62.04, 56.53, 18.49, 8.71],
        ),
        (
            "530B",
            (105, 20480, 128),
            (8, 35, 3, 1, 280),
            31.640_625,
            114.023_437_5,
            23.076_171_875,
            [58.31, 62.04, 20.27, 9.42],
        ),
        (
            "1T",
            (128, 25600, 160),
            (8, 64, 1, 1, 512),
            32.958_984_375,
            131.25,
            26.5625,
            [58.31, 62.04, 20.27, 9.42],
        ),
    ] {
        let model = Model::gpt(layers, hidden, heads, 51200, 2048);
        let training =
            Training { batch, sequence: 2048, precision: Precision::Bf16, program: Program::MEGATRON_2021 };
        let layout = Layout { tensor: t, pipeline: p, interleave: v, micro_batch: b, ..Layout::ONE };
        let share = memory::layer_share(&matrices_alone(&model), &layout).dense;
        let layers_of_stage = layout.layers_of_stage(layers, 0) as f64;
        let activations = |sequence_parallel, recompute| {
            let layout = Layout { sequence_parallel, recompute, ..layout };
            memory::stage(&model, &layout, &training, 0).activations_bytes / GIB
        };
        let bytes = memory::bytes_per_parameter(Precision::Bf16);
        for (part, published, computed) in [
            ("weights and optimiser", weights, share * layers_of_stage * bytes / GIB),
            ("activations, all kept", none, activations(false, Recompute::None)),
            ("activations, selective", selective, activations(true, Recompute::Selective)),
        ] {
            exact.push(ValueRow {
                name: format!("{name}: {part}, GiB"),
                published,
                computed,
                exact: published == computed,
            });
        }
        let base = activations(false, Recompute::None);
        for (what, percent, (sequence_parallel, recompute)) in [
            ("sequence parallel", percents[0], (true, Recompute::None)),
            ("selective", percents[1], (false, Recompute::Selective)),
            ("both", percents[2], (true, Recompute::Selective)),
            ("full", percents[3], (false, Recompute::Full)),
        ] {
            let computed = activations(sequence_parallel, recompute) / base * 100.0;
            figures.push(ValueRow {
                name: format!("{name}: activations, {what}, percent"),
                published: percent,
                computed: (computed * 100.0).round() / 100.0,
                exact: (computed - percent).abs() < 0.005,
            });
        }
    }
    (exact, figures)
}

/// Recommended starting points on H100: (model, devices, tensor, pipeline, context, expert).
fn starts() -> Vec<StartRow> {
    let h100 = accelerator::ACCELERATORS.iter().find(|kind| kind.name == "h100");
    let Some(h100) = h100 else { return Vec::new() };
    let gpt3 = Model::gpt(96, 12288, 96, 51200, 2048);
    let mixtral = published::mixtral(32, 4096, (32, 8), 14336, 32000);
    let mixtral_large = published::mixtral(56, 6144, (48, 8), 16384, 32768);
    let mut rows = Vec::new();
    for (name, model, devices, t, p, c, e) in [
        ("Llama3-8B", published::llama_8b(), 8, 1, 1, 2, 1),
        ("Llama3-70B", published::llama_70b(), 64, 4, 4, 2, 1),
        ("Llama3.1-405B", published::llama_405b(), 1024, 8, 8, 2, 1),
        ("GPT-3 175B", gpt3, 128, 4, 8, 1, 1),
        ("Mixtral-8x7B", mixtral, 64, 1, 4, 1, 8),
        ("Mixtral-8x22B", mixtral_large, 256, 4, 4, 1, 8),
        ("DeepSeek-V3", published::deepseek_v3(), 1024, 2, 16, 1, 64),
    ] {
        let sequence = if model.positions > 0 { 2048 } else { 8192 };
        let training =
            Training { batch: 1024, sequence, precision: Precision::Bf16, program: usual_program(h100) };
        let fixed = Fixed {
            tensor: Some(t),
            pipeline: Some(p),
            context: Some(c),
            expert: Some(e),
            ..Fixed::default()
        };
        let layout = Layout {
            tensor: t,
            pipeline: p,
            context: c,
            expert: e,
            data: devices / (t * p * c),
            sequence_parallel: t > 1,
            ..Layout::ONE
        };
        let legal = layout.check(&model, &training, h100).is_ok();
        let question = Question {
            model,
            training,
            accelerator: *h100,
            calibration: Calibration::of(h100),
            devices_max: devices,
            fixed,
        };
        let fits = question.fastest_on(devices).is_some();
        rows.push(StartRow {
            name: format!("{name} on {devices}: tensor {t}, pipeline {p}, context {c}, expert {e}"),
            legal,
            fits,
        });
    }
    rows
}

/// The constants of each accelerator and of each program, with the number of steps that they were chosen by.
fn constants() -> Vec<ConstantsRow> {
    let rows = published::rows();
    let mut found = Vec::new();
    for kind in FITTED {
        let of_kind =
            |row: &&published::Row| row.observation.accelerator.name == kind && row.unfitted.is_empty();
        let count = rows.iter().filter(of_kind).count();
        if let Some(row) = rows.iter().find(of_kind) {
            let [peak, half, memory, links, network, start] =
                Calibration::of(&row.observation.accelerator).values();
            found.push(ConstantsRow {
                name: format!("calibration of {kind}"),
                value: format!(
                    "products {peak:.2} (half at {half:.0}), memory {memory:.2}, links {links:.2}, network {network:.2}, \
                     start {start:.0} us"
                ),
                from: "a fit",
                rows: count,
            });
        }
    }
    let mut programs: Vec<Program> = Vec::new();
    for program in rows.iter().map(|row| row.observation.training.program) {
        if programs.iter().all(|known| known.overlap_of() != program.overlap_of()) {
            programs.push(program);
        }
    }
    for program in programs {
        let name = program.overlap_of();
        let of_program = |row: &&published::Row| row.observation.training.program.overlap_of() == name;
        let [tensor, data, pipeline, expert] = program.overlap();
        found.push(ConstantsRow {
            name: format!("overlap of {name}"),
            value: format!("tensor {tensor:.1}, data {data:.1}, pipeline {pipeline:.1}, expert {expert:.1}"),
            from: "chosen with them in view",
            rows: rows.iter().filter(of_program).count(),
        });
    }
    found
}

/// Accelerators whose calibration is fitted to published steps on them.
pub const FITTED: [&str; 4] = ["a100", "h100", "v5p", "v6e"];

/// What is taken of a program's overlap by who knows nothing of it: that half of everything hides.
const OVERLAP_UNKNOWN: [f64; 4] = [0.5; 4];

/// A published time, and what is predicted for it without it.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOutRow {
    /// The table that it is of.
    pub table: &'static str,
    /// The run.
    pub name: String,
    /// On what.
    pub accelerator: &'static str,
    /// Its program, as far as overlap goes.
    pub program: &'static str,
    /// Predicted over published less one, in percent, by the constants that are kept.
    pub error_percent: f64,
    /// The same by a calibration that was fitted to all other rows on the accelerator.
    pub left_out_error_percent: f64,
    /// The same where the program's overlap was chosen without this row as well; where it is the only row of its
    /// program, half of everything is taken to hide.
    pub no_overlap_error_percent: f64,
}

/// Each row on an accelerator against constants that have not seen it: whether they predict, or remember.
#[must_use]
pub fn left_out(accelerator: &str) -> Vec<LeftOutRow> {
    let rows = published::rows();
    let of_kind = |name: &str| -> Vec<&published::Row> {
        rows.iter().filter(|row| row.observation.accelerator.name == name).collect()
    };
    let mut found = Vec::new();
    for row in of_kind(accelerator) {
        let observation = &row.observation;
        let others =
            |row: &&&published::Row| !std::ptr::eq(&row.observation, observation) && row.unfitted.is_empty();
        let fitted_on = of_kind(Calibration::fitted_on(&observation.accelerator));
        let fitted_on: Vec<Observation> =
            fitted_on.iter().filter(others).map(|row| row.observation.clone()).collect();
        let fitted =
            calibration::fit(&fitted_on, &Calibration::prior(&observation.accelerator), Origin::Calibrated);
        let program = observation.training.program;
        let alike =
            of_kind(accelerator).iter().filter(others).map(|row| row.observation.clone()).collect::<Vec<_>>();
        let alike: Vec<Observation> = alike
            .into_iter()
            .filter(|other| other.training.program.overlap_of() == program.overlap_of())
            .collect();
        let overlap = calibration::fit_overlap(&alike, &fitted, OVERLAP_UNKNOWN);
        let training = Training { program: program.with_overlap(overlap), ..observation.training };
        let unknown = Observation { training, ..observation.clone() };
        let kept = Calibration::of(&observation.accelerator);
        found.push(LeftOutRow {
            table: row.table,
            name: observation.name.clone(),
            accelerator: observation.accelerator.name,
            program: program.overlap_of(),
            error_percent: observation.error(&kept) * 100.0,
            left_out_error_percent: observation.error(&fitted) * 100.0,
            no_overlap_error_percent: unknown.error(&fitted) * 100.0,
        });
    }
    found
}

/// Devices of the largest plans that are timed.
pub const TIMED_DEVICES: u64 = 16_384;

/// The largest questions that a plan has to answer at once: a dense model and one of experts on 16,384 devices.
#[must_use]
pub fn large_questions() -> Vec<(&'static str, Question)> {
    let h100 = accelerator::ACCELERATORS.iter().find(|kind| kind.name == "h100");
    let Some(h100) = h100 else { return Vec::new() };
    let models = [("Llama3.1-405B", published::llama_405b()), ("DeepSeek-V3", published::deepseek_v3())];
    let question = |model| Question {
        model,
        training: Training {
            batch: 2048,
            sequence: 8192,
            precision: Precision::Bf16,
            program: usual_program(h100),
        },
        accelerator: *h100,
        calibration: Calibration::of(h100),
        devices_max: TIMED_DEVICES,
        fixed: Fixed::default(),
    };
    models.into_iter().map(|(name, model)| (name, question(model))).collect()
}

/// Computes every row.
#[must_use]
pub fn check() -> Check {
    let (memory, figures) = memory_columns();
    Check {
        times: times(),
        exact: parameters().into_iter().chain(memory).collect(),
        figures,
        starts: starts(),
        not_predicted: published::NOT_PREDICTED.to_vec(),
        constants: constants(),
    }
}
