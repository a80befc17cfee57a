//! A layout in the words of the programs that train with it.

use serde::Serialize;

use crate::layout::{Layout, Precision, Recompute, Sharding, Training};
use crate::model::{Attention, Model};

/// The same layout for each program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arguments {
    /// Megatron-LM's arguments.
    pub megatron: Vec<String>,
    /// torchtitan's arguments.
    pub torchtitan: Vec<String>,
    /// MaxText's settings.
    pub maxtext: Vec<String>,
    /// DeepSpeed's configuration, as JSON.
    pub deepspeed: String,
    /// Environment of every worker.
    pub environment: Vec<(String, String)>,
    /// What a program cannot do of it.
    pub notes: Vec<String>,
}

fn option(name: &str, value: impl ToString) -> [String; 2] {
    [format!("--{name}"), value.to_string()]
}

fn megatron(model: &Model, layout: &Layout, training: &Training) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    list.extend(option("tensor-model-parallel-size", layout.tensor));
    list.extend(option("pipeline-model-parallel-size", layout.pipeline));
    list.extend(option("context-parallel-size", layout.context));
    if layout.expert > 1 {
        list.extend(option("expert-model-parallel-size", layout.expert));
        list.extend(option("expert-tensor-parallel-size", 1));
    }
    list.extend(option("micro-batch-size", layout.micro_batch));
    list.extend(option("global-batch-size", training.batch));
    list.extend(option("seq-length", training.sequence));
    let mut flag = |name: &str| list.push(format!("--{name}"));
    if layout.sequence_parallel {
        flag("sequence-parallel");
    }
    match training.precision {
        Precision::Bf16 => flag("bf16"),
        Precision::Fp16 => flag("fp16"),
        Precision::Fp8 => {
            flag("bf16");
            flag("fp8-format=hybrid");
        }
        Precision::Fp32 => {}
    }
    match layout.sharding {
        Sharding::None => {}
        Sharding::Optimizer => {
            flag("use-distributed-optimizer");
            flag("overlap-grad-reduce");
            flag("overlap-param-gather");
        }
        Sharding::Full => {
            flag("use-megatron-fsdp");
            flag("data-parallel-sharding-strategy=optim_grads_params");
            flag("use-distributed-optimizer");
        }
    }
    if layout.tensor > 1 && layout.sequence_parallel {
        flag("tp-comm-overlap");
    }
    match layout.recompute {
        Recompute::None => {}
        Recompute::Selective | Recompute::Projections | Recompute::Queries => flag("recompute-activations"),
        Recompute::Full => {
            list.extend(option("recompute-granularity", "full"));
            list.extend(option("recompute-method", "uniform"));
            list.extend(option("recompute-num-layers", 1));
        }
    }
    if layout.interleave > 1 {
        let slots =
            if model.layers.is_multiple_of(layout.pipeline) { model.layers } else { model.layers + 2 };
        let each = slots / (layout.pipeline * layout.interleave);
        list.extend(option("num-layers-per-virtual-pipeline-stage", each));
    }
    if !model.layers.is_multiple_of(layout.pipeline) {
        if (model.layers + 2).is_multiple_of(layout.pipeline) {
            list.push("--account-for-embedding-in-pipeline-split".to_owned());
            list.push("--account-for-loss-in-pipeline-split".to_owned());
        } else {
            let last = layout.layers_of_stage(model.layers, layout.pipeline - 1);
            list.extend(option("decoder-last-pipeline-num-layers", last));
        }
    }
    list
}

fn torchtitan(layout: &Layout, training: &Training) -> Vec<String> {
    let mut list = Vec::new();
    let mut set = |name: &str, value: String| list.push(format!("--{name}={value}"));
    let (replicate, shard) = match layout.sharding {
        Sharding::Full => (1, layout.data),
        Sharding::None | Sharding::Optimizer => (layout.data, 1),
    };
    set("parallelism.data_parallel_replicate_degree", replicate.to_string());
    set("parallelism.data_parallel_shard_degree", shard.to_string());
    set("parallelism.tensor_parallel_degree", layout.tensor.to_string());
    set("parallelism.pipeline_parallel_degree", layout.pipeline.to_string());
    set("parallelism.context_parallel_degree", layout.context.to_string());
    if layout.expert > 1 {
        set("parallelism.expert_parallel_degree", layout.expert.to_string());
    }
    if layout.pipeline > 1 {
        let schedule = if layout.interleave > 1 { "Interleaved1F1B" } else { "1F1B" };
        set("parallelism.pipeline_parallel_schedule", schedule.to_owned());
        set("parallelism.pipeline_parallel_microbatch_size", layout.micro_batch.to_string());
    }
    let local = if layout.pipeline > 1 { training.batch / layout.data } else { layout.micro_batch };
    set("training.local_batch_size", local.to_string());
    set("training.global_batch_size", training.batch.to_string());
    set("training.seq_len", training.sequence.to_string());
    let mode = match layout.recompute {
        Recompute::None => "none",
        Recompute::Selective | Recompute::Projections | Recompute::Queries => "selective",
        Recompute::Full => "full",
    };
    set("activation_checkpoint.mode", mode.to_owned());
    list
}

fn maxtext(layout: &Layout, training: &Training) -> Vec<String> {
    let replicas =
        if layout.sharding == Sharding::Full { "ici_fsdp_parallelism" } else { "ici_data_parallelism" };
    let devices = layout.devices() as f64;
    let batch = training.batch as f64 / devices;
    let mut list = vec![
        format!("{replicas}={}", layout.data),
        format!("ici_tensor_parallelism={}", layout.tensor),
        format!("ici_pipeline_parallelism={}", layout.pipeline),
        format!("ici_context_parallelism={}", layout.context),
        format!("per_device_batch_size={batch}"),
        format!("max_target_length={}", training.sequence),
        format!(
            "remat_policy={}",
            match layout.recompute {
                Recompute::None | Recompute::Selective => "minimal",
                Recompute::Projections | Recompute::Queries => "custom",
                Recompute::Full => "full",
            }
        ),
    ];
    if matches!(layout.recompute, Recompute::Projections | Recompute::Queries) {
        let kept = ["decoder_layer_input", "query_proj", "key_proj", "value_proj"];
        list.extend(kept.map(|name| format!("{name}=offload")));
    }
    if layout.recompute == Recompute::Projections {
        list.push("out_proj=offload".to_owned());
    }
    if layout.expert > 1 {
        list.push(format!("ici_expert_parallelism={}", layout.expert));
    }
    if layout.pipeline > 1 {
        list.push(format!("num_pipeline_microbatches={}", layout.micro_batches(training.batch)));
        list.push(format!("num_pipeline_repeats={}", layout.interleave));
    }
    list
}

fn deepspeed(layout: &Layout, training: &Training) -> String {
    let stage = match layout.sharding {
        Sharding::None => 0,
        Sharding::Optimizer => 1,
        Sharding::Full => 3,
    };
    let value = serde_json::json!({
        "train_batch_size": training.batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches(training.batch),
        "bf16": {"enabled": matches!(training.precision, Precision::Bf16 | Precision::Fp8)},
        "fp16": {"enabled": training.precision == Precision::Fp16},
        "zero_optimization": {"stage": stage, "overlap_comm": true},
        "pipeline": {"stages": layout.pipeline},
        "tensor_parallel": {"autotp_size": layout.tensor},
    });
    value.to_string()
}

/// Sizes as variables that a job gives its workers, whatever their program. The names are outside of `MUSTER_`, which a
/// job must not set.
#[must_use]
pub fn environment(layout: &Layout, training: &Training) -> Vec<(String, String)> {
    [
        ("PARALLEL_TENSOR", layout.tensor),
        ("PARALLEL_PIPELINE", layout.pipeline),
        ("PARALLEL_DATA", layout.data),
        ("PARALLEL_CONTEXT", layout.context),
        ("PARALLEL_EXPERT", layout.expert),
        ("PARALLEL_MICRO_BATCH", layout.micro_batch),
        ("PARALLEL_INTERLEAVE", layout.interleave),
        ("PARALLEL_BATCH", training.batch),
        ("PARALLEL_SEQUENCE", training.sequence),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_string()))
    .chain(choices(layout, training))
    .collect()
}

/// Choices that are words: what a calibration from the job has to know in addition to the sizes.
fn choices(layout: &Layout, training: &Training) -> [(String, String); 3] {
    let recompute = match layout.recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Projections => "projections",
        Recompute::Queries => "queries",
        Recompute::Full => "full",
    };
    let sharding = match layout.sharding {
        Sharding::None => "none",
        Sharding::Optimizer => "optimizer",
        Sharding::Full => "full",
    };
    let precision = match training.precision {
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
        Precision::Fp8 => "fp8",
        Precision::Fp32 => "fp32",
    };
    [("PARALLEL_RECOMPUTE", recompute), ("PARALLEL_SHARDING", sharding), ("PARALLEL_PRECISION", precision)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

impl Arguments {
    /// The arguments of each program in one variable each, for a command that puts them into its own line.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        [
            ("PARALLEL_MEGATRON", self.megatron.join(" ")),
            ("PARALLEL_TORCHTITAN", self.torchtitan.join(" ")),
            ("PARALLEL_MAXTEXT", self.maxtext.join(" ")),
            ("PARALLEL_DEEPSPEED", self.deepspeed.clone()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// A layout for every program.
#[must_use]
pub fn arguments(model: &Model, layout: &Layout, training: &Training) -> Arguments {
    let mut notes = Vec::new();
    if layout.interleave > 1 {
        notes.push("DeepSpeed's pipeline has no interleaved stages: its bubble is larger".to_owned());
    }
    if layout.context > 1 || layout.expert > 1 {
        notes.push(
            "DeepSpeed takes context and expert parallel sizes in the program, not in its file".to_owned(),
        );
    }
    if layout.tensor > 1 || layout.pipeline > 1 {
        notes.push("DeepSpeed takes the pipeline's stages in the program as well".to_owned());
    }
    if layout.sharding == Sharding::Optimizer {
        notes.push("torchtitan and MaxText shard everything or nothing: they hold the optimiser whole here, which may not fit".to_owned());
    }
    if matches!(model.attention, Attention::Latent { .. }) {
        notes.push("torchtitan and MaxText need their own model of latent attention".to_owned());
    }
    Arguments {
        megatron: megatron(model, layout, training),
        torchtitan: torchtitan(layout, training),
        maxtext: maxtext(layout, training),
        deepspeed: deepspeed(layout, training),
        environment: environment(layout, training),
        notes,
    }
}
