//! What a device holds, by part, exactly as the published formulas count it.

use serde::Serialize;

use crate::accelerator::Accelerator;
use crate::layout::{Layout, Precision, Recompute, Sharding, Training};
use crate::model::{Attention, Model, Parameters};

/// What drivers, libraries and fragments take, in bytes.
const RESERVE_BYTES: f64 = 3.5e9;
/// Buffers of collectives, in bytes.
const BUFFER_BYTES: f64 = 0.4e9;

/// The memory of one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Parameters.
    pub parameters_bytes: f64,
    /// Gradients.
    pub gradients_bytes: f64,
    /// What the optimiser keeps.
    pub optimizer_bytes: f64,
    /// What the pass forward leaves for the pass backward.
    pub activations_bytes: f64,
    /// The layer that is being computed again.
    pub recompute_bytes: f64,
    /// The output over the vocabulary.
    pub logits_bytes: f64,
    /// Parameters that are gathered for a pass, and buffers of collectives.
    pub communication_bytes: f64,
    /// What the planner leaves for drivers and fragments.
    pub reserve_bytes: f64,
}

impl Memory {
    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> f64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Each part with its name.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        [
            ("parameters", self.parameters_bytes),
            ("gradients", self.gradients_bytes),
            ("optimiser", self.optimizer_bytes),
            ("activations", self.activations_bytes),
            ("recompute", self.recompute_bytes),
            ("logits", self.logits_bytes),
            ("communication", self.communication_bytes),
            ("reserve", self.reserve_bytes),
        ]
    }
}

/// Parameters that a device holds of one layer: those that data parallel ranks share, and those of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerShare {
    /// In an ordinary layer.
    pub dense: f64,
    /// In a layer with experts, without them.
    pub sparse: f64,
    /// Of experts, in a layer with experts.
    pub experts: f64,
}

/// A layer's parameters on one of the ranks that share it.
#[must_use]
pub fn layer_share(model: &Model, layout: &Layout) -> LayerShare {
    share_of(model, &model.parameters(), layout)
}

fn share_of(model: &Model, parts: &Parameters, layout: &Layout) -> LayerShare {
    let tensor = layout.tensor as f64;
    let hidden = model.hidden as f64;
    // Compressions of latent attention are whole on every rank.
    let whole = match model.attention {
        Attention::Standard { .. } => 0.0,
        Attention::Latent { q_rank, kv_rank, rope_dim, .. } => {
            let queries = q_rank.map_or(0.0, |rank| rank as f64 * (hidden + 1.0));
            queries + (kv_rank + rope_dim) as f64 * hidden + kv_rank as f64
        }
    };
    let attention = (parts.attention as f64 - whole) / tensor + whole + parts.norms as f64;
    let mut share =
        LayerShare { dense: attention + parts.dense_block as f64 / tensor, ..LayerShare::default() };
    if let Some(experts) = &model.experts {
        let router = (experts.count * model.hidden) as f64;
        share.sparse = attention + router + (parts.shared_block as f64 - router) / tensor;
        share.experts = experts.count as f64 / layout.expert as f64 * parts.expert as f64;
    }
    share
}

/// Activations of one layer and micro-batch on one device, in bytes: (all, what selective recomputation drops, a
/// layer's input alone).
#[must_use]
pub fn layer_activations(model: &Model, layout: &Layout, training: &Training) -> (f64, f64, f64) {
    let tokens = (layout.micro_batch * training.sequence) as f64 / layout.context as f64;
    let tensor = layout.tensor as f64;
    let replicated = if layout.sequence_parallel { tensor } else { 1.0 };
    let unit = training.precision.activation_bytes();
    let hidden = model.hidden as f64;
    let (queries, keys, values) = model.attention_widths();
    let output = model.attention_output_width() as f64;
    // Inputs of both blocks and of their normalisations; masks of two dropouts at a byte each.
    let masks = if model.dropout { 2.0 } else { 0.0 };
    let mut whole = hidden * ((2.0 + model.norms as f64) * unit + masks);
    let mut split = unit * ((queries + keys + values) as f64 + output);
    if let Attention::Latent { q_rank, kv_rank, rope_dim, .. } = model.attention {
        whole += unit * (2 * (q_rank.unwrap_or(0) + kv_rank) + rope_dim) as f64;
    }
    let block_widths = if model.feed_forward.gated { 3.0 } else { 2.0 };
    let mut dispatched = 0.0;
    let dense_block = unit * block_widths * model.feed_forward.hidden as f64;
    if let Some(experts) = &model.experts {
        let sparse = (model.layers - model.dense_layers()) as f64 / model.layers as f64;
        let shared = unit * block_widths * experts.shared_hidden as f64;
        split += (1.0 - sparse) * dense_block + sparse * shared;
        // Tokens come split over tensor parallel ranks; each expert's are whole, evenly spread.
        let each = unit * (2.0 * hidden + block_widths * experts.hidden as f64);
        dispatched = sparse * experts.per_token as f64 * each / tensor;
        whole += sparse * 4.0 * experts.count as f64;
    } else {
        split += dense_block;
    }
    let heads = model.heads as f64;
    let core = if training.program.flash_attention {
        // One number a row: the sum that the pass backward begins from.
        4.0 * heads / tensor
    } else {
        // Scores after softmax, after dropout, and the mask between them.
        let scores = if model.dropout { 2.0 * unit + 1.0 } else { unit };
        scores * heads * training.sequence as f64 / tensor
    };
    let all = tokens * (whole / replicated + split / tensor + dispatched + core);
    let dropped = if training.program.flash_attention { 0.0 } else { tokens * core };
    (all, dropped, tokens * unit * hidden / replicated)
}

/// Micro-batches' worth of layers that stage `stage` keeps at once.
#[must_use]
pub fn layers_in_flight(model: &Model, layout: &Layout, training: &Training, stage: u64) -> f64 {
    let layers = layout.layers_of_stage(model.layers, stage) as f64;
    let micro_batches = layout.micro_batches(training.batch);
    if layout.pipeline == 1 {
        return layers;
    }
    let stages = layout.pipeline;
    if layout.interleave == 1 {
        return layers * (stages - stage).min(micro_batches) as f64;
    }
    let pieces = 2 * (stages - stage - 1) + (layout.interleave - 1) * stages + 1;
    let pieces = pieces.min(micro_batches * layout.interleave);
    layers * pieces as f64 / layout.interleave as f64
}

/// What a split needs whatever its interleaving, recomputation and sharding; each choice of these is cheap from here.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    model: &'a Model,
    training: &'a Training,
    share: LayerShare,
    /// Embedding, and its copy on the last stage if it is also the output.
    embedding: f64,
    embedding_again: f64,
    /// Output and last normalisation.
    output: f64,
    activations: (f64, f64, f64),
    logits: f64,
}

impl<'a> Held<'a> {
    /// Of a split.
    #[must_use]
    pub fn new(model: &'a Model, split: &Layout, training: &'a Training) -> Held<'a> {
        let parts = model.parameters();
        let tensor = split.tensor as f64;
        let vocabulary = model.vocabulary as f64 / tensor;
        let tokens = (split.micro_batch * training.sequence) as f64 / split.context as f64;
        Held {
            model,
            training,
            share: share_of(model, &parts, split),
            embedding: parts.embedding as f64 / tensor,
            embedding_again: if model.tied_embeddings { vocabulary * model.hidden as f64 } else { 0.0 },
            output: parts.last_norm as f64 + parts.output as f64 / tensor,
            activations: layer_activations(model, split, training),
            logits: tokens * vocabulary * (training.precision.activation_bytes() + 4.0),
        }
    }

    /// Parameters on a device of a stage: those shared by data parallel ranks, and those of experts.
    #[must_use]
    pub fn parameters(&self, layout: &Layout, stage: u64) -> (f64, f64) {
        let model = self.model;
        let layers = layout.layers_of_stage(model.layers, stage);
        let dense_all = model.dense_layers();
        let dense = if dense_all == model.layers {
            layers as f64
        } else {
            let before: u64 = (0..stage).map(|earlier| layout.layers_of_stage(model.layers, earlier)).sum();
            dense_all.saturating_sub(before).min(layers) as f64
        };
        let sparse = layers as f64 - dense;
        let (first, last) = (stage == 0, stage + 1 == layout.pipeline);
        let mut common = dense * self.share.dense + sparse * self.share.sparse;
        if first {
            common += self.embedding;
        }
        if last {
            common += self.output + if first { 0.0 } else { self.embedding_again };
        }
        (common, sparse * self.share.experts)
    }

    /// The memory of a device of a stage.
    #[must_use]
    pub fn stage(&self, layout: &Layout, stage: u64) -> Memory {
        let (parameter, gradient, optimizer) = self.training.precision.bytes();
        let (common, experts) = self.parameters(layout, stage);
        let whole = common + experts;
        let sharded =
            common / (layout.data * layout.context) as f64 + experts / layout.expert_replicas() as f64;
        let (of_parameters, of_optimizer) = match layout.sharding {
            Sharding::None => (whole, whole),
            Sharding::Optimizer => (whole, sharded),
            Sharding::Full => (sharded, sharded),
        };
        let mut memory = Memory {
            parameters_bytes: parameter * of_parameters,
            gradients_bytes: gradient * of_parameters,
            optimizer_bytes: optimizer * of_optimizer,
            reserve_bytes: RESERVE_BYTES,
            ..Memory::default()
        };
        if layout.sharding == Sharding::Full {
            // The layer at work and the one that is fetched ahead, and one layer's gradients on their way.
            let largest = self.share.dense.max(self.share.sparse + self.share.experts);
            memory.communication_bytes += largest * (2.0 * parameter + gradient);
        }
        if layout.devices() > 1 {
            memory.communication_bytes += BUFFER_BYTES;
        }
        let (all, dropped, input) = self.activations;
        let in_flight = layers_in_flight(self.model, layout, self.training, stage);
        match layout.recompute {
            Recompute::None => memory.activations_bytes = all * in_flight,
            Recompute::Selective => {
                memory.activations_bytes = (all - dropped) * in_flight;
                memory.recompute_bytes = dropped;
            }
            // What else is kept is on the host.
            Recompute::Projections | Recompute::Queries | Recompute::Full => {
                memory.activations_bytes = input * in_flight;
                memory.recompute_bytes = all;
            }
        }
        if stage + 1 == layout.pipeline {
            memory.logits_bytes = self.logits;
        }
        memory
    }

    /// Stages of which one needs most. Later stages keep fewer micro-batches, so it is one of the ends, or the first
    /// that has all that a stage may have: as many layers as any, and experts in each of them.
    fn candidates(&self, layout: &Layout) -> impl Iterator<Item = u64> {
        let last = layout.pipeline - 1;
        let layers = (self.model.layers / layout.pipeline).max(1);
        let sparse = (self.model.dense_layers() % self.model.layers).div_ceil(layers);
        [0, 1, sparse.saturating_sub(1), sparse, sparse + 1, last]
            .into_iter()
            .filter(move |stage| *stage <= last)
    }

    /// The stage that needs most, and what it needs.
    #[must_use]
    pub fn worst(&self, layout: &Layout) -> (u64, Memory) {
        let mut worst = (0, self.stage(layout, 0));
        for candidate in self.candidates(layout) {
            let memory = self.stage(layout, candidate);
            if memory.total_bytes() > worst.1.total_bytes() {
                worst = (candidate, memory);
            }
        }
        worst
    }

    /// Whether every stage fits into a device's memory.
    #[must_use]
    pub fn fits(&self, layout: &Layout, accelerator: &Accelerator) -> bool {
        let most = accelerator.memory_bytes as f64;
        self.candidates(layout).all(|stage| self.stage(layout, stage).total_bytes() <= most)
    }
}

/// The memory of a device of a stage.
#[must_use]
pub fn stage(model: &Model, layout: &Layout, training: &Training, stage: u64) -> Memory {
    Held::new(model, layout, training).stage(layout, stage)
}

/// The stage that needs most, and what it needs.
#[must_use]
pub fn worst(model: &Model, layout: &Layout, training: &Training) -> (u64, Memory) {
    Held::new(model, layout, training).worst(layout)
}

/// Whether every stage fits into a device's memory.
#[must_use]
pub fn fits(model: &Model, layout: &Layout, training: &Training, accelerator: &Accelerator) -> bool {
    Held::new(model, layout, training).fits(layout, accelerator)
}

/// Bytes that a program in this precision holds of each parameter when nothing is sharded.
#[must_use]
pub fn bytes_per_parameter(precision: Precision) -> f64 {
    let (parameter, gradient, optimizer) = precision.bytes();
    parameter + gradient + optimizer
}
