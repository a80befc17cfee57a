//! Steps that others have published, as the planner's test.
//!
//! Where a source does not say how a run was split, every split that the rest permits is open, and the fastest by the
//! planner's own account is taken; such rows are marked. Nothing here is fitted to a row.

use crate::accelerator::{self, Accelerator};
use crate::calibration::Observation;
use crate::layout::{Layout, Precision, Program, Recompute, Sharding, Training};
use crate::memory;
use crate::model::{Attention, Experts, FeedForward, Model};

/// One published step.
#[derive(Clone, Debug)]
pub struct Row {
    /// The table that it is of.
    pub table: &'static str,
    /// The step, and with its time.
    pub observation: Observation,
    /// What the source does not say and the planner had to assume; empty if it says all.
    pub assumed: &'static str,
    /// Why no calibration is fitted to it, though it is predicted and counted; empty if one is.
    pub unfitted: &'static str,
}

/// One published run, before it is a [`Row`].
struct Run {
    table: &'static str,
    name: String,
    model: Model,
    accelerator: &'static str,
    training: Training,
    layout: Layout,
    /// Virtual stages are not stated.
    any_interleave: bool,
    /// The micro-batch is not stated.
    any_micro_batch: bool,
    /// Recomputation is not stated.
    any_recompute: bool,
    /// The run kept less than the planner's formulas give, so that memory cannot choose for it.
    any_memory: bool,
    assumed: &'static str,
}

/// How a source gives a step's speed.
enum Speed {
    /// Seconds of a step.
    Seconds(f64),
    /// TFLOP/s of each device, model operations alone.
    ModelTflops(f64),
    /// TFLOP/s of each device, model operations alone, of attention only those that a causal mask leaves.
    CausalTflops(f64),
    /// TFLOP/s of each device, with those of full recomputation.
    HardwareTflops(f64),
    /// Share of the peak, in percent, model operations alone.
    Utilisation(f64),
    /// Tokens a second and device.
    Tokens(f64),
}

fn known(name: &str) -> Accelerator {
    accelerator::find(name).expect("tables name kinds that exist")
}

impl Run {
    fn layouts(&self, accelerator: &Accelerator) -> Vec<Layout> {
        let mut layouts = Vec::new();
        let mut micro_batches = vec![self.layout.micro_batch];
        if self.any_micro_batch {
            micro_batches = [1, 2, 4, 8].to_vec();
        }
        let per_stage = self.model.layers.div_ceil(self.layout.pipeline);
        let interleaves: Vec<u64> = if self.any_interleave {
            (1..=per_stage)
                .filter(|v| Layout::layers_divide(self.model.layers, self.layout.pipeline, *v))
                .collect()
        } else {
            vec![self.layout.interleave]
        };
        let recomputes = match self.any_recompute {
            true => vec![Recompute::None, Recompute::Full],
            false => vec![self.layout.recompute],
        };
        for micro_batch in &micro_batches {
            for interleave in &interleaves {
                for recompute in &recomputes {
                    let layout = Layout {
                        micro_batch: *micro_batch,
                        interleave: *interleave,
                        recompute: *recompute,
                        ..self.layout
                    };
                    let even = self.training.batch.is_multiple_of(layout.data * micro_batch)
                        && (*interleave == 1
                            || !self.any_interleave
                            || layout.micro_batches(self.training.batch).is_multiple_of(layout.pipeline));
                    let open = !self.any_memory
                        && (self.any_interleave || self.any_micro_batch || self.any_recompute);
                    if even && (!open || memory::fits(&self.model, &layout, &self.training, accelerator)) {
                        layouts.push(layout);
                    }
                }
            }
        }
        if layouts.is_empty() {
            layouts.push(Layout { recompute: Recompute::Full, ..self.layout });
        }
        layouts
    }

    fn row(self, speed: &Speed) -> Row {
        let accelerator = known(self.accelerator);
        let devices = self.layout.devices() as f64;
        let training = self.training;
        let model_flops = self.model.step_flops(training.batch, training.sequence);
        let layers_flops = self.model.forward_flops_per_token(training.sequence)
            - 2.0 * self.model.vocabulary as f64 * self.model.hidden as f64;
        let tokens = (training.batch * training.sequence) as f64;
        let seconds = match *speed {
            Speed::Seconds(seconds) => seconds,
            Speed::ModelTflops(tflops) => model_flops / (devices * tflops * 1e12),
            Speed::CausalTflops(tflops) => {
                // Each token attends to half of the others.
                let left = self.model.step_flops(1, training.sequence / 2) * 2.0 * training.batch as f64;
                left / (devices * tflops * 1e12)
            }
            Speed::HardwareTflops(tflops) => {
                (model_flops + tokens * layers_flops) / (devices * tflops * 1e12)
            }
            Speed::Utilisation(percent) => {
                model_flops / (devices * accelerator.bf16_tflops * 1e12 * percent / 100.0)
            }
            Speed::Tokens(rate) => tokens / (rate * devices),
        };
        let layouts = self.layouts(&accelerator);
        Row {
            table: self.table,
            observation: Observation {
                name: self.name,
                model: self.model,
                layouts,
                training,
                accelerator,
                step_time_us: seconds * 1e6,
            },
            assumed: self.assumed,
            unfitted: "",
        }
    }
}

const fn sizes(tensor: u64, pipeline: u64, data: u64, micro_batch: u64, interleave: u64) -> Layout {
    Layout { tensor, pipeline, data, micro_batch, interleave, ..Layout::ONE }
}

fn training(batch: u64, sequence: u64, program: Program) -> Training {
    Training { batch, sequence, precision: Precision::Bf16, program }
}

fn run(
    table: &'static str,
    name: String,
    model: Model,
    accelerator: &'static str,
    layout: Layout,
    training: Training,
) -> Run {
    Run {
        table,
        name,
        model,
        accelerator,
        training,
        layout,
        any_interleave: false,
        any_micro_batch: false,
        any_recompute: false,
        any_memory: false,
        assumed: "",
    }
}

/// Weak scaling of GPT on A100, all recomputed.
fn megatron_2021(rows: &mut Vec<Row>) {
    let table = "Megatron-LM 2021, table 1";
    for (name, heads, hidden, layers, t, p, devices, batch, micro, v, seconds) in [
        ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 3.53),
        ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 16, 1, 3.70),
        ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 16, 1, 3.70),
        ("18B", 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 9.40),
        ("39B", 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 14.45),
        ("76B", 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 16.06),
        ("145B", 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 24.82),
        ("310B", 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 37.61),
        ("530B", 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 54.08),
        ("1T", 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 102.63),
    ] {
        let layout = Layout { recompute: Recompute::Full, ..sizes(t, p, devices / (t * p), micro, v) };
        let model = Model::gpt(layers, hidden, heads, 51200, 2048);
        let training =
            Training { precision: Precision::Fp16, ..training(batch, 2048, Program::MEGATRON_2021) };
        rows.push(
            run(table, format!("{name} on {devices}"), model, "a100", layout, training)
                .row(&Speed::Seconds(seconds)),
        );
    }
    let table = "Megatron-LM 2021, table 2";
    let (gpt3, large) = ((96, 12288, 96, 12, 1536), (105, 20480, 128, 35, 2240));
    for ((layers, hidden, heads, p, batch), devices, tflops) in [
        (gpt3, 384, 153.0),
        (gpt3, 768, 149.0),
        (gpt3, 1536, 141.0),
        (large, 560, 171.0),
        (large, 1120, 167.0),
        (large, 2240, 159.0),
    ] {
        let layout = Layout { recompute: Recompute::Full, ..sizes(8, p, devices / (8 * p), 1, 1) };
        let model = Model::gpt(layers, hidden, heads, 51200, 2048);
        let training =
            Training { precision: Precision::Fp16, ..training(batch, 2048, Program::MEGATRON_2021) };
        let name = format!("{} on {devices}", if p == 12 { "175B" } else { "530B" });
        let assumed = "no interleaving";
        rows.push(
            Run { assumed, ..run(table, name, model, "a100", layout, training) }
                .row(&Speed::HardwareTflops(tflops)),
        );
    }
    let (gpt3, large) = ((96, 12288, 96), (105, 20480, 128));
    for ((layers, hidden, heads), devices, batch, micro, tflops) in [
        (gpt3, 384, 1536, 4, 144.0),
        (gpt3, 768, 1536, 2, 88.0),
        (gpt3, 1536, 1536, 1, 44.0),
        (large, 640, 2560, 4, 138.0),
        (large, 1120, 2240, 2, 98.0),
        (large, 2240, 2240, 1, 48.0),
    ] {
        let layout =
            Layout { recompute: Recompute::Full, sharding: Sharding::Full, ..sizes(1, 1, devices, micro, 1) };
        let model = Model::gpt(layers, hidden, heads, 51200, 2048);
        let training = Training { precision: Precision::Fp16, ..training(batch, 2048, Program::ZERO3_2021) };
        let name = format!("ZeRO-3 {} on {devices}", if hidden == 12288 { "175B" } else { "530B" });
        rows.push(run(table, name, model, "a100", layout, training).row(&Speed::HardwareTflops(tflops)));
    }
}

/// What sequence parallelism and selective recomputation save, on A100.
fn korthikanti(rows: &mut Vec<Row>) {
    let table = "Korthikanti 2022, table 5";
    for (name, layers, hidden, heads, p, v, micro, batch, full, selective) in [
        ("22B", 48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
        ("175B", 96, 12288, 96, 8, 3, 1, 64, 18.13, 13.75),
        ("530B", 105, 20480, 128, 35, 3, 1, 280, 49.05, 37.83),
        ("1T", 128, 25600, 160, 64, 1, 1, 512, 94.42, 71.49),
    ] {
        let model = Model::gpt(layers, hidden, heads, 51200, 2048);
        let training = training(batch, 2048, Program::MEGATRON_2021);
        for (recompute, seconds) in [(Recompute::Full, full), (Recompute::Selective, selective)] {
            let sequence_parallel = recompute == Recompute::Selective;
            let layout = Layout { recompute, sequence_parallel, ..sizes(8, p, 1, micro, v) };
            let what = if sequence_parallel { "selective" } else { "full" };
            let name = format!("{name} {what} on {}", 8 * p);
            rows.push(
                run(table, name, model.clone(), "a100", layout, training).row(&Speed::Seconds(seconds)),
            );
        }
    }
    for (nodes, seconds) in [(280, 60.1), (350, 50.2), (420, 44.4)] {
        let layout = Layout { recompute: Recompute::Full, ..sizes(8, 35, nodes / 35, 1, 1) };
        let training = training(1920, 2048, Program::DEEPSPEED_2022);
        let model = Model::gpt(105, 20480, 128, 51200, 2048);
        let name = format!("530B on {}", nodes * 8);
        rows.push(run("MT-NLG 2022", name, model, "a100", layout, training).row(&Speed::Seconds(seconds)));
    }
}

/// 175B on A100, with two programs.
fn megascale(rows: &mut Vec<Row>) {
    for (batch, devices, megatron, megascale) in [
        (768, 256, 40.0, 32.0),
        (768, 512, 21.2, 16.5),
        (768, 768, 15.2, 11.5),
        (768, 1024, 11.9, 8.9),
        (6144, 3072, 29.02, 23.66),
        (6144, 6144, 14.78, 12.21),
        (6144, 8192, 12.24, 9.56),
        (6144, 12288, 8.57, 6.34),
    ] {
        let layout = Layout {
            sequence_parallel: true,
            sharding: Sharding::Optimizer,
            ..sizes(8, 8, devices / 64, 1, 6)
        };
        for (program, seconds) in [(Program::MEGATRON_2023, megatron), (Program::MEGASCALE, megascale)] {
            let model = Model::gpt(96, 12288, 128, 64000, 2048);
            let run = run(
                "MegaScale 2024",
                format!("{} 175B on {devices}", program.name),
                model,
                "a100",
                layout,
                training(batch, 2048, program),
            );
            let assumed = "sizes 8x8, interleave 6";
            rows.push(Run { assumed, ..run }.row(&Speed::Seconds(seconds)));
        }
    }
}

/// Weak and strong scaling of GPT on H100.
fn megatron_core(rows: &mut Vec<Row>) {
    for (name, heads, hidden, layers, t, p, batch, tflops) in [
        ("1.7B", 16, 2048, 24, 1, 1, 192, 408.8),
        ("7.1B", 32, 4096, 30, 2, 1, 192, 465.9),
        ("16B", 48, 6144, 32, 4, 1, 192, 489.1),
        ("32B", 56, 7168, 48, 8, 1, 192, 459.6),
        ("70B", 64, 8192, 84, 8, 2, 384, 419.7),
        ("119B", 80, 10240, 92, 8, 4, 768, 420.5),
        ("177B", 96, 12288, 96, 8, 6, 1152, 432.8),
        ("314B", 128, 16384, 96, 8, 8, 1536, 474.4),
        ("462B", 144, 18432, 112, 8, 16, 3072, 459.9),
    ] {
        let layout =
            Layout { sequence_parallel: t > 1, sharding: Sharding::Optimizer, ..sizes(t, p, 48, 1, 1) };
        let model = Model::gpt(layers, hidden, heads, 131_072, 4096);
        let name = format!("{name} on {}", t * p * 48);
        let run = run(
            "Megatron Core r0.8",
            name,
            model,
            "h100",
            layout,
            training(batch, 4096, Program::MEGATRON_CORE),
        );
        let assumed = "micro-batch, interleave, recompute";
        rows.push(
            Run { any_interleave: true, any_micro_batch: true, any_recompute: true, assumed, ..run }
                .row(&Speed::ModelTflops(tflops)),
        );
    }
    for (devices, percent) in [(96, 47.0), (4608, 42.0)] {
        let layout = Layout {
            sequence_parallel: true,
            sharding: Sharding::Optimizer,
            ..sizes(8, 12, devices / 96, 1, 1)
        };
        let run = run(
            "Megatron Core, strong scaling",
            format!("175B on {devices}"),
            Model::gpt(96, 12288, 96, 51200, 2048),
            "h100",
            layout,
            training(1152, 2048, Program::MEGATRON_CORE),
        );
        let assumed = "sizes 8x12, micro-batch, interleave";
        rows.push(
            Run { any_interleave: true, any_micro_batch: true, any_recompute: true, assumed, ..run }
                .row(&Speed::Utilisation(percent)),
        );
    }
}

/// Sizes of a model with a gated block and grouped heads.
fn llama(layers: u64, hidden: u64, heads: (u64, u64), block: u64, vocabulary: u64) -> Model {
    Model {
        architecture: "llama".to_owned(),
        layers,
        hidden,
        heads: heads.0,
        vocabulary,
        positions: 0,
        sequence_max: 0,
        tied_embeddings: false,
        output_bias: false,
        attention: Attention::Standard {
            kv_heads: heads.1,
            head_dim: hidden / heads.0,
            qkv_bias: false,
            output_bias: false,
            qk_norm: false,
        },
        feed_forward: FeedForward { hidden: block, gated: true, bias: false },
        experts: None,
        norms: 2,
        norm_bias: false,
        dropout: false,
    }
}

/// The same with experts in every layer.
pub(crate) fn mixtral(layers: u64, hidden: u64, heads: (u64, u64), block: u64, vocabulary: u64) -> Model {
    let experts = Experts {
        count: 8,
        per_token: 2,
        hidden: block,
        shared_hidden: 0,
        shared_gate: false,
        dense_layers: 0,
        router_bias: false,
    };
    Model { experts: Some(experts), ..llama(layers, hidden, heads, block, vocabulary) }
}

/// DeepSeek-V3's sizes.
pub(crate) fn deepseek_v3() -> Model {
    let experts = Experts {
        count: 256,
        per_token: 8,
        hidden: 2048,
        shared_hidden: 2048,
        shared_gate: false,
        dense_layers: 3,
        router_bias: true,
    };
    Model {
        architecture: "deepseek_v3".to_owned(),
        attention: Attention::Latent {
            q_rank: Some(1536),
            kv_rank: 512,
            rope_dim: 64,
            nope_dim: 128,
            value_dim: 128,
        },
        experts: Some(experts),
        ..llama(61, 7168, (128, 128), 18432, 129_280)
    }
}

/// Llama 3.1 of 405 billion parameters.
pub(crate) fn llama_405b() -> Model {
    llama(126, 16384, (128, 8), 53248, 128_256)
}

/// Llama 3 of 70 billion parameters.
pub(crate) fn llama_70b() -> Model {
    llama(80, 8192, (64, 8), 28672, 128_256)
}

/// Llama 3 of 8 billion parameters.
pub(crate) fn llama_8b() -> Model {
    llama(32, 4096, (32, 8), 14336, 128_256)
}

fn large_runs(rows: &mut Vec<Row>) {
    for (devices, context, data, sequence, batch, tflops) in [
        (8192, 1, 64, 8192, 2048, 430.0),
        (16384, 1, 128, 8192, 2048, 400.0),
        (16384, 16, 8, 131_072, 128, 380.0),
    ] {
        let layout = Layout {
            context,
            sequence_parallel: true,
            sharding: Sharding::Optimizer,
            ..sizes(8, 16, data, 1, 1)
        };
        let run = run(
            "Llama 3.1 405B",
            format!("405B on {devices}, {sequence} tokens"),
            llama_405b(),
            "h100",
            layout,
            training(batch, sequence, Program::MEGATRON_CORE),
        );
        let assumed = "interleave, no recompute; what is masked is not counted";
        rows.push(
            Run { any_interleave: true, any_memory: true, assumed, ..run }.row(&Speed::CausalTflops(tflops)),
        );
    }
    // Two directions leave about the bubble of two pieces.
    let layout = Layout { expert: 64, sharding: Sharding::Optimizer, ..sizes(1, 16, 128, 1, 2) };
    let run = run(
        "DeepSeek-V3",
        "671B on 2048".to_owned(),
        deepseek_v3(),
        "h800",
        layout,
        Training { precision: Precision::Fp8, ..training(15360, 4096, Program::DUALPIPE) },
    );
    let assumed = "micro-batch, batch, bubble, h100's calibration";
    rows.push(Run { assumed, any_memory: true, ..run }.row(&Speed::Tokens(1543.0)));
}

fn tpu(rows: &mut Vec<Row>) {
    let mut palm = llama(118, 18432, (48, 1), 73728, 256_000);
    palm.tied_embeddings = true;
    if let Attention::Standard { head_dim, .. } = &mut palm.attention {
        *head_dim = 256;
    }
    let layout = Layout {
        sequence_parallel: true,
        sharding: Sharding::Full,
        recompute: Recompute::Full,
        ..sizes(12, 1, 512, 4, 1)
    };
    let training_of_palm = training(2048, 2048, Program::PALM_2022);
    let palm = run("PaLM", "540B on 6144".to_owned(), palm, "v4", layout, training_of_palm);
    let assumed = "recompute, no overlap, v5p's calibration";
    rows.push(Run { assumed, ..palm }.row(&Speed::Tokens(238_300.0 / 6144.0)));
    maxtext(rows);
}

/// Why one row of MaxText's table cannot be met together with the others.
const CONTRADICTED: &str = "the table gives 123 tokens a second and device and 38.55 % of the peak, which are 135; a log of the \
    same configuration that the authors publish has 139";

/// One run of MaxText.
struct MaxTextRun {
    model: Model,
    kind: &'static str,
    devices: u64,
    tensor: u64,
    expert: u64,
    /// Sequences of each replica.
    each: u64,
    sequence: u64,
    /// Tokens a second and device.
    rate: f64,
    recompute: Recompute,
    program: Program,
}

/// Batch, mesh, recomputation and the capacity of experts are those of the configurations that the authors publish with their
/// logs; the table of speeds names the configurations alone.
fn maxtext(rows: &mut Vec<Row>) {
    use Recompute::{Full, Projections, Queries};
    let llama2 = llama(80, 8192, (64, 8), 28672, 32000);
    let small = mixtral(32, 4096, (32, 8), 14336, 32000);
    let large = mixtral(56, 6144, (48, 8), 16384, 32768);
    let run_of = |model: &Model, kind, devices, each, sequence, rate, recompute| MaxTextRun {
        model: model.clone(),
        kind,
        devices,
        tensor: 1,
        expert: 1,
        each,
        sequence,
        rate,
        recompute,
        program: Program::MAXTEXT,
    };
    let dropped = |run: MaxTextRun| MaxTextRun { program: Program::MAXTEXT_DROPPED, ..run };
    let (table, log) = ("MaxText", "MaxText, logs");
    let (stated, hosts) = ("", "traffic with hosts");
    let slices = "traffic with hosts; release";
    let of_405b = |tensor, rate, recompute| MaxTextRun {
        tensor,
        program: if tensor > 1 { Program::MAXTEXT_RINGS } else { Program::MAXTEXT },
        ..run_of(&llama_405b(), "v6e", 512, tensor, 8192, rate, recompute)
    };
    for (table, name, assumed, run) in [
        (table, "Llama2-70B", hosts, run_of(&llama2, "v6e", 256, 3, 4096, 900.0, Queries)),
        (
            table,
            "Llama3.1-8B",
            "batch, traffic with hosts",
            run_of(&llama_8b(), "v6e", 256, 4, 8192, 7207.0, Projections),
        ),
        (table, "Llama3.1-70B", hosts, run_of(&llama_70b(), "v6e", 256, 5, 8192, 960.0, Queries)),
        (log, "Llama3.1-70B", hosts, run_of(&llama_70b(), "v6e", 64, 2, 8192, 876.7, Queries)),
        (table, "Llama3.1-405B, tensor 4", slices, of_405b(4, 123.0, Projections)),
        (log, "Llama3.1-405B, tensor 4", hosts, of_405b(4, 139.3, Projections)),
        (log, "Llama3.1-405B", hosts, of_405b(1, 149.5, Full)),
        (table, "Mixtral-8x7B", hosts, dropped(run_of(&small, "v6e", 256, 12, 4096, 3899.0, Projections))),
        (log, "Mixtral-8x7B", hosts, dropped(run_of(&small, "v6e", 256, 12, 4096, 3645.0, Projections))),
        (
            table,
            "Mixtral-8x22B",
            hosts,
            MaxTextRun {
                expert: 4,
                program: Program::MAXTEXT_DROPPED_RINGS,
                ..run_of(&large, "v6e", 256, 8, 4096, 1326.0, Projections)
            },
        ),
        (table, "Llama2-70B", stated, run_of(&llama2, "v5p", 512, 4, 4096, 692.0, Projections)),
        (table, "Mixtral-8x7B", stated, run_of(&small, "v5p", 128, 36, 4096, 2909.0, Full)),
        (log, "Llama3.1-405B", hosts, run_of(&llama_405b(), "v5p", 512, 2, 8192, 124.6, Full)),
    ] {
        let unfitted = if assumed == slices { CONTRADICTED } else { "" };
        rows.push(Row { unfitted, ..maxtext_row(table, name, assumed, run) });
    }
}

fn maxtext_row(table: &'static str, name: &str, assumed: &'static str, of: MaxTextRun) -> Row {
    let layout = Layout {
        sharding: Sharding::Full,
        sequence_parallel: of.tensor > 1,
        recompute: of.recompute,
        expert: of.expert,
        ..sizes(of.tensor, 1, of.devices / of.tensor, of.each, 1)
    };
    let name = format!("{name} on {} {}", of.devices, of.kind);
    let training = training(of.each * layout.data, of.sequence, of.program);
    let run = run(table, name, of.model, of.kind, layout, training);
    Run { assumed, ..run }.row(&Speed::Tokens(of.rate))
}

/// Every published step.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    megatron_2021(&mut rows);
    korthikanti(&mut rows);
    megascale(&mut rows);
    megatron_core(&mut rows);
    large_runs(&mut rows);
    tpu(&mut rows);
    rows
}

/// A published fact that gives no step to predict, and why.
pub const NOT_PREDICTED: &[(&str, &str)] = &[
    (
        "MaxText, one MoE from 1 pod (34.5 %) to 16 pods (26.2 %)",
        "neither the model nor the batch is published",
    ),
    ("PaLM's table: GPT-3 21.3 %, Gopher 32.5 %", "neither the layout nor the batch is published"),
];
