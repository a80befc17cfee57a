//! How a model is split over devices, and which splits are legal.

use serde::{Deserialize, Serialize};

use crate::accelerator::Accelerator;
use crate::config::SEQUENCE_MAX;
use crate::error::PlanError;
use crate::model::Model;

/// The part of the forward pass that is computed again in the backward pass, so that it need not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// The core of attention: scores, softmax, and their product with the values.
    Selective,
    /// All but the projections of attention and the feed-forward block's result, which are kept on the host. No plan
    /// chooses it, for what a host has is not known; runs that others measured did.
    Projections,
    /// All but the queries, keys and values, which are kept on the host. Likewise of runs that others measured.
    Queries,
    /// Everything but each layer's input.
    Full,
}

/// What data parallel replicas hold once among them instead of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// Nothing.
    None,
    /// The state of the optimiser (a distributed optimiser, ZeRO-1).
    Optimizer,
    /// Everything (ZeRO-3, FSDP): parameters are gathered for each pass.
    Full,
}

/// Number formats of parameters, gradients and optimiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bf16 parameters, fp32 gradients, fp32 master copy and two moments: 18 bytes a parameter.
    Bf16,
    /// fp16 parameters and gradients, fp32 copies of both and two moments: 20 bytes.
    Fp16,
    /// As bf16, with the products of matrices in fp8.
    Fp8,
    /// All in fp32: 16 bytes.
    Fp32,
}

impl Precision {
    /// Bytes of a parameter, its gradient, and what the optimiser keeps of it.
    #[must_use]
    pub fn bytes(self) -> (f64, f64, f64) {
        match self {
            Precision::Bf16 | Precision::Fp8 => (2.0, 4.0, 12.0),
            Precision::Fp16 => (2.0, 2.0, 16.0),
            Precision::Fp32 => (4.0, 4.0, 8.0),
        }
    }

    /// Bytes of an activation.
    #[must_use]
    pub fn activation_bytes(self) -> f64 {
        if self == Precision::Fp32 { 4.0 } else { 2.0 }
    }
}

/// How the program behaves that does the training: what it hides behind computation, and which kernels it has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Program {
    /// Name.
    pub name: &'static str,
    /// Scores of attention are never written to memory.
    pub flash_attention: bool,
    /// Share of the communication of tensor parallel groups that hides behind products of matrices.
    pub hides_tensor: f64,
    /// Share of the computation behind which communication of data parallel groups hides.
    pub hides_data: f64,
    /// Share of what passes between pipeline stages that hides.
    pub hides_pipeline: f64,
    /// Share of what passes between experts that hides.
    pub hides_expert: f64,
    /// Share of a device's units that communication holds, and that compute nothing.
    pub units_held: f64,
    /// Tensor parallel ranks send a part each between pipeline stages.
    pub scatters_pipeline: bool,
    /// Attention and feed-forward block take the same input and need one reduction between them.
    pub parallel_block: bool,
    /// Collectives by which a layer's sharded parameters are gathered.
    pub gathers_a_layer: f64,
    /// Share of the network's bandwidth that those reach, of what large collectives reach.
    pub gather_share: f64,
    /// Full recomputation repeats a layer's last products as well, though nothing in its backward pass needs their
    /// result: a program that calls the layer again does, a compiler that sees the whole step removes them.
    pub repeats_last: bool,
    /// Rows of an expert's matrices over those that tokens fill: the capacity factor of programs that give every expert
    /// the same capacity.
    pub expert_padding: f64,
    /// Groups that fill no axis of a torus are blocks over two axes, which a ring goes around, instead of parts of one.
    pub rings_in_blocks: bool,
}

impl Program {
    /// Megatron-LM as of 2021 and 2022: nothing overlaps.
    pub const MEGATRON_2021: Program = Program {
        name: "megatron-2021",
        flash_attention: false,
        hides_tensor: 0.0,
        hides_data: 0.0,
        hides_pipeline: 0.0,
        hides_expert: 0.0,
        units_held: 0.0,
        scatters_pipeline: true,
        parallel_block: false,
        gathers_a_layer: 1.0,
        gather_share: 1.0,
        repeats_last: true,
        expert_padding: 1.0,
        rings_in_blocks: false,
    };
    /// DeepSpeed's pipeline of 2022: every rank sends the whole between stages.
    pub const DEEPSPEED_2022: Program =
        Program { name: "deepspeed-2022", scatters_pipeline: false, ..Program::MEGATRON_2021 };
    /// DeepSpeed's ZeRO-3 of 2021: every tensor of a layer is gathered by itself, little of it ahead of the layer.
    pub const ZERO3_2021: Program = Program {
        name: "zero3-2021",
        hides_data: 0.1,
        gathers_a_layer: 12.0,
        gather_share: 0.6,
        ..Program::MEGATRON_2021
    };
    /// Megatron-LM as the authors of MegaScale measured it: flash attention.
    pub const MEGATRON_2023: Program =
        Program { name: "megatron-2023", flash_attention: true, ..Program::MEGATRON_2021 };
    /// MegaScale: most of the communication overlaps, and blocks are parallel.
    pub const MEGASCALE: Program = Program {
        name: "megascale",
        hides_tensor: 0.7,
        hides_data: 0.9,
        hides_pipeline: 0.8,
        parallel_block: true,
        ..Program::MEGATRON_2023
    };
    /// Megatron Core with its overlap options on: what a plan assumes on GPUs.
    pub const MEGATRON_CORE: Program = Program {
        name: "megatron-core",
        hides_tensor: 0.6,
        hides_data: 0.8,
        hides_pipeline: 0.6,
        hides_expert: 0.3,
        ..Program::MEGATRON_2023
    };
    /// DeepSeek's own: two directions of micro-batches hide what passes between experts and stages; 20 of the 132
    /// multiprocessors do nothing else.
    pub const DUALPIPE: Program = Program {
        name: "dualpipe",
        units_held: 20.0 / 132.0,
        hides_data: 0.9,
        hides_pipeline: 0.9,
        hides_expert: 0.9,
        ..Program::MEGATRON_2023
    };
    /// PaLM's program of 2022: parallel blocks, and nothing overlaps, as in other programs of that time.
    pub const PALM_2022: Program =
        Program { name: "palm-2022", parallel_block: true, repeats_last: false, ..Program::MEGATRON_2023 };
    /// MaxText on the compiler's own schedule: what a plan assumes on TPUs.
    pub const MAXTEXT: Program = Program {
        name: "maxtext",
        hides_tensor: 0.3,
        hides_data: 0.9,
        hides_pipeline: 0.0,
        hides_expert: 0.9,
        repeats_last: false,
        ..Program::MEGATRON_2023
    };
    /// MaxText on a mesh of rings of 64 and of 4 chips.
    pub const MAXTEXT_RINGS: Program =
        Program { name: "maxtext-rings", rings_in_blocks: true, ..Program::MAXTEXT };
    /// MaxText with a fixed capacity for each expert, a quarter more than tokens fill if they are spread evenly.
    pub const MAXTEXT_DROPPED: Program =
        Program { name: "maxtext-dropped", expert_padding: 1.25, ..Program::MAXTEXT };
    /// Both.
    pub const MAXTEXT_DROPPED_RINGS: Program =
        Program { name: "maxtext-dropped-rings", rings_in_blocks: true, ..Program::MAXTEXT_DROPPED };
}

impl Program {
    /// The program whose shares of overlap this one has: variants differ in other things.
    #[must_use]
    pub fn overlap_of(&self) -> &'static str {
        if self.name.starts_with(Program::MAXTEXT.name) { Program::MAXTEXT.name } else { self.name }
    }

    /// Shares that hide: tensor, data, pipeline, expert.
    #[must_use]
    pub fn overlap(&self) -> [f64; 4] {
        [self.hides_tensor, self.hides_data, self.hides_pipeline, self.hides_expert]
    }

    /// The same program with other shares.
    #[must_use]
    pub fn with_overlap(self, [tensor, data, pipeline, expert]: [f64; 4]) -> Program {
        Program {
            hides_tensor: tensor,
            hides_data: data,
            hides_pipeline: pipeline,
            hides_expert: expert,
            ..self
        }
    }
}

/// What is trained, how much of it at once, and by which program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Sequences of a step.
    pub batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Number formats.
    pub precision: Precision,
    /// The program.
    pub program: Program,
}

/// Most sequences of a step.
pub const BATCH_MAX: u64 = 1 << 24;
/// Most devices of a plan.
pub const DEVICES_MAX: u64 = 1 << 20;

impl Training {
    /// # Errors
    /// If a size is zero or beyond every use.
    pub fn check(&self) -> Result<(), PlanError> {
        for (option, value, max) in
            [("batch", self.batch, BATCH_MAX), ("sequence", self.sequence, SEQUENCE_MAX)]
        {
            if !(1..=max).contains(&value) {
                return Err(PlanError::BadOption {
                    option,
                    value: value.to_string(),
                    expected: format!("from 1 to {max}"),
                });
            }
        }
        Ok(())
    }
}

/// One way to split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Layout {
    /// Devices that share each matrix.
    pub tensor: u64,
    /// Stages that share the layers.
    pub pipeline: u64,
    /// Replicas that share the batch.
    pub data: u64,
    /// Devices that share each sequence.
    pub context: u64,
    /// Devices that share the experts; taken from data, context and tensor parallel ranks.
    pub expert: u64,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// Pieces of the model that each stage has (virtual stages).
    pub interleave: u64,
    /// What is computed again.
    pub recompute: Recompute,
    /// What tensor parallel ranks would all hold is split along the sequence.
    pub sequence_parallel: bool,
    /// What replicas hold once among them.
    pub sharding: Sharding,
}

impl Layout {
    /// One device that does everything.
    pub const ONE: Layout = Layout {
        tensor: 1,
        pipeline: 1,
        data: 1,
        context: 1,
        expert: 1,
        micro_batch: 1,
        interleave: 1,
        recompute: Recompute::None,
        sequence_parallel: false,
        sharding: Sharding::None,
    };

    /// Devices of the gang.
    #[must_use]
    pub fn devices(&self) -> u64 {
        self.tensor * self.pipeline * self.data * self.context
    }

    /// Micro-batches of a step.
    #[must_use]
    pub fn micro_batches(&self, batch: u64) -> u64 {
        (batch / (self.data * self.micro_batch)).max(1)
    }

    /// Layers of a stage. Where they do not divide, embedding and output count as layers; where that does not help, the
    /// last stage has fewer.
    #[must_use]
    pub fn layers_of_stage(&self, layers: u64, stage: u64) -> u64 {
        let stages = self.pipeline;
        if layers.is_multiple_of(stages) {
            return layers / stages;
        }
        let ends = |stage: u64| u64::from(stage == 0) + u64::from(stage + 1 == stages);
        let slots = (layers + 2).div_ceil(stages);
        if (layers + 2).is_multiple_of(stages) {
            return slots - ends(stage);
        }
        // The last stage has what is left.
        let each = layers.div_ceil(stages);
        if stage + 1 == stages { layers.saturating_sub(each * (stages - 1)) } else { each }
    }

    /// The layers divide over stages and their pieces: by themselves, with embedding and output as layers, or without
    /// pieces so that the last stage has fewer.
    #[must_use]
    pub fn layers_divide(layers: u64, pipeline: u64, interleave: u64) -> bool {
        let pieces = pipeline * interleave;
        if layers.is_multiple_of(pipeline) {
            return layers.is_multiple_of(pieces);
        }
        if (layers + 2).is_multiple_of(pipeline) {
            return (layers + 2).is_multiple_of(pieces) && (layers + 2) / pieces > 1;
        }
        interleave == 1 && pipeline < layers && layers.div_ceil(pipeline) * (pipeline - 1) < layers
    }

    /// Heads divide over a tensor parallel group. Programs on TPUs give several ranks the same head of keys and
    /// values where there are fewer of these.
    #[must_use]
    pub fn heads_divide(model: &Model, tensor: u64, accelerator: &Accelerator) -> bool {
        let kv = model.kv_heads();
        model.heads.is_multiple_of(tensor)
            && (kv.is_multiple_of(tensor) || (accelerator.is_tpu() && tensor.is_multiple_of(kv)))
    }

    /// Whether a model can be split so.
    ///
    /// # Errors
    /// Names the rule that is broken, and the numbers.
    pub fn check(
        &self,
        model: &Model,
        training: &Training,
        accelerator: &Accelerator,
    ) -> Result<(), PlanError> {
        let broken = |text: String| Err(PlanError::IllegalLayout(text));
        let Layout { tensor, pipeline, data, context, expert, micro_batch, interleave, .. } = *self;
        if [tensor, pipeline, data, context, expert, micro_batch, interleave].contains(&0) {
            return broken("every parallel size is at least 1".to_owned());
        }
        if tensor > accelerator.tensor_max() {
            return broken(format!(
                "tensor parallel size {tensor} leaves the {} devices that fast links join",
                accelerator.tensor_max()
            ));
        }
        if !Layout::heads_divide(model, tensor, accelerator) {
            return broken(format!(
                "tensor parallel size {tensor} does not divide the {} heads and the {} heads of keys and values",
                model.heads,
                model.kv_heads()
            ));
        }
        if !model.feed_forward.hidden.is_multiple_of(tensor) {
            return broken(format!(
                "tensor parallel size {tensor} does not divide the feed-forward width {}",
                model.feed_forward.hidden
            ));
        }
        if !Layout::layers_divide(model.layers, pipeline, interleave) {
            return broken(format!(
                "{} layers do not divide over {pipeline} stages of {interleave} pieces",
                model.layers
            ));
        }
        if !training.batch.is_multiple_of(data * micro_batch) {
            return broken(format!(
                "{} sequences do not divide over {data} replicas and micro-batches of {micro_batch}",
                training.batch
            ));
        }
        if interleave > 1 && (pipeline == 1 || !self.micro_batches(training.batch).is_multiple_of(pipeline)) {
            return broken(format!(
                "with interleaved stages the {} micro-batches have to divide by the {pipeline} stages",
                self.micro_batches(training.batch)
            ));
        }
        let pieces =
            context * if self.sequence_parallel { tensor } else { 1 } * if context > 1 { 2 } else { 1 };
        if !training.sequence.is_multiple_of(pieces) {
            return broken(format!("{} tokens do not divide into {pieces} pieces", training.sequence));
        }
        self.check_experts(model)
    }

    fn check_experts(&self, model: &Model) -> Result<(), PlanError> {
        let broken = |text: String| Err(PlanError::IllegalLayout(text));
        let Layout { tensor, data, context, expert, .. } = *self;
        let Some(experts) = &model.experts else {
            return match expert {
                1 => Ok(()),
                _ => broken(format!("expert parallel size {expert} for a model without experts")),
            };
        };
        if !experts.count.is_multiple_of(expert) {
            return broken(format!(
                "expert parallel size {expert} does not divide {} experts",
                experts.count
            ));
        }
        if !(tensor * data * context).is_multiple_of(expert) {
            return broken(format!(
                "expert parallel size {expert} does not divide the {} ranks of a stage",
                tensor * data * context
            ));
        }
        if expert > 1 && tensor > 1 && !self.sequence_parallel {
            return broken("expert and tensor parallelism together need sequence parallelism".to_owned());
        }
        Ok(())
    }

    /// Ranks that share each expert's gradients.
    #[must_use]
    pub fn expert_replicas(&self) -> u64 {
        (self.tensor * self.data * self.context / self.expert).max(1)
    }
}
