//! How long a step takes, by part.
//!
//! Products of matrices are priced by their shapes, everything else by the bytes that it moves, collectives by what
//! their groups cross; a pipeline adds its bubble, and what does not hide behind computation is added whole. What is
//! not known of a program is assumed, and named in [`Calibration::terms`].

use serde::Serialize;

use crate::accelerator::Accelerator;
use crate::coefficients::Calibration;
use crate::collective::Fabric;
use crate::layout::{Layout, Precision, Recompute, Sharding, Training};
use crate::memory::Held;
use crate::model::{Attention, Model};

/// The time of one step, by part, in microseconds. Parts add up to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// Products of matrices in the layers, forward and backward.
    pub matmul_us: f64,
    /// Scores and what follows from them.
    pub attention_us: f64,
    /// Normalisations, activations, residuals: what moves bytes.
    pub elementwise_us: f64,
    /// Output over the vocabulary, and the loss.
    pub output_us: f64,
    /// What is computed again.
    pub recompute_us: f64,
    /// Starting kernels.
    pub overhead_us: f64,
    /// Tensor parallel communication that does not hide.
    pub tensor_us: f64,
    /// Context parallel communication that does not hide.
    pub context_us: f64,
    /// Communication between experts that does not hide.
    pub expert_us: f64,
    /// What passes between stages and does not hide.
    pub pipeline_us: f64,
    /// Stages that wait for the first and the last micro-batches.
    pub bubble_us: f64,
    /// Data parallel communication that does not hide.
    pub data_us: f64,
    /// The optimiser.
    pub optimizer_us: f64,
    /// Whole.
    pub step_time_us: f64,
}

impl Step {
    /// Each part with its name.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 13] {
        [
            ("matmul", self.matmul_us),
            ("attention", self.attention_us),
            ("elementwise", self.elementwise_us),
            ("output", self.output_us),
            ("recompute", self.recompute_us),
            ("overhead", self.overhead_us),
            ("tensor", self.tensor_us),
            ("context", self.context_us),
            ("expert", self.expert_us),
            ("pipeline", self.pipeline_us),
            ("bubble", self.bubble_us),
            ("data", self.data_us),
            ("optimiser", self.optimizer_us),
        ]
    }
}

/// What one layer takes of one micro-batch on one device, forward, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Forward {
    matmul: f64,
    /// Of these, the products inside feed-forward blocks and experts.
    inner: f64,
    /// Of these, the products that lead out of attention.
    attention_out: f64,
    /// Of these, what only the next layer reads.
    last: f64,
    /// Of these, the results of experts: what weighs them needs them again for its own gradient.
    weighed: f64,
    attention: f64,
    elementwise: f64,
    overhead: f64,
    tensor: f64,
    context: f64,
    expert: f64,
}

/// How the pass backward relates to the pass forward.
const BACKWARD_MATMUL: f64 = 2.0;
const BACKWARD_FLASH: f64 = 2.5;
const BACKWARD_MOVES: f64 = 2.0;
/// Kernels of a layer's pass forward that start one after another; the pass backward has twice as many.
const BACKWARD_KERNELS: f64 = 2.0;
/// Share of the peak for products that flash attention reaches, of what large matrices reach.
const FLASH_SHARE: f64 = 0.7;

/// All that does not depend on interleaving, recomputation or sharding; from it each such choice is cheap.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    model: &'a Model,
    training: &'a Training,
    accelerator: &'a Accelerator,
    fabric: Fabric,
    memory_bytes_per_us: f64,
    layout: Layout,
    forward: Forward,
    /// Output and loss of one micro-batch, forward and backward.
    output: f64,
    send: f64,
    micro_batches: f64,
    layers_max: f64,
    flash: bool,
    calibration: Calibration,
    /// Parameters on a device of the first stage: without experts, and of experts.
    parameters: (f64, f64),
}

struct Shapes {
    peak: f64,
    efficiency: f64,
    half: f64,
    bytes_per_us: f64,
    unit: f64,
}

impl Shapes {
    /// Time of a product of matrices; a side that is not long compared with `half` leaves units idle.
    fn us(&self, rows: f64, inner: f64, columns: f64) -> f64 {
        let full = |side: f64| side / (side + self.half);
        let efficiency = self.efficiency * full(rows) * full(inner) * full(columns);
        let moved = self.unit * (rows * inner + inner * columns + rows * columns);
        (2.0 * rows * inner * columns / (self.peak * efficiency)).max(moved / self.bytes_per_us)
    }
}

impl<'a> Base<'a> {
    /// Prices one layer of one micro-batch. The layout's interleaving, recomputation and sharding are not looked at.
    #[must_use]
    pub fn new(
        model: &'a Model,
        layout: &Layout,
        training: &'a Training,
        accelerator: &'a Accelerator,
        calibration: &Calibration,
    ) -> Base<'a> {
        let fabric = Fabric::new(accelerator, calibration, layout.devices())
            .with_rings_in_blocks(training.program.rings_in_blocks);
        let memory_bytes_per_us = accelerator.memory_gbs * 1e3 * calibration.memory_efficiency;
        let shapes = Shapes {
            peak: accelerator.peak_per_us(training.precision == Precision::Fp8),
            efficiency: calibration.matmul_efficiency * (1.0 - training.program.units_held),
            half: calibration.matmul_half,
            bytes_per_us: memory_bytes_per_us,
            unit: training.precision.activation_bytes(),
        };
        let tokens = (layout.micro_batch * training.sequence) as f64 / layout.context as f64;
        let mut base = Base {
            model,
            training,
            accelerator,
            fabric,
            memory_bytes_per_us,
            layout: *layout,
            forward: Forward::default(),
            output: 0.0,
            send: 0.0,
            micro_batches: layout.micro_batches(training.batch) as f64,
            layers_max: (0..layout.pipeline.min(2))
                .map(|stage| layout.layers_of_stage(model.layers, stage))
                .max()
                .unwrap_or(model.layers) as f64,
            flash: training.program.flash_attention,
            calibration: *calibration,
            parameters: Held::new(model, layout, training).parameters(layout, 0),
        };
        base.forward.matmul = base.matmul_us(&shapes, tokens);
        base.forward.inner = base.inner_us(&shapes, tokens);
        let output = model.attention_output_width() as f64 / layout.tensor as f64;
        base.forward.attention_out = shapes.us(tokens, output, model.hidden as f64);
        (base.forward.last, base.forward.weighed) = base.last_us(&shapes, tokens);
        base.forward.last += if training.program.parallel_block { base.forward.attention_out } else { 0.0 };
        base.forward.attention = base.attention_us(&shapes, tokens);
        base.forward.elementwise = base.elementwise_us(tokens);
        base.forward.overhead = calibration.layer_overhead_us;
        base.communication(tokens);
        let vocabulary = model.vocabulary as f64 / layout.tensor as f64;
        let product = shapes.us(tokens, model.hidden as f64, vocabulary);
        base.output = 3.0 * product + tokens * vocabulary * 16.0 / memory_bytes_per_us;
        base
    }

    fn matmul_us(&self, shapes: &Shapes, tokens: f64) -> f64 {
        let model = self.model;
        let tensor = self.layout.tensor as f64;
        let hidden = model.hidden as f64;
        let (queries, keys, values) = model.attention_widths();
        let output = model.attention_output_width() as f64;
        let mut time = shapes.us(tokens, output / tensor, hidden);
        match model.attention {
            Attention::Standard { .. } => {
                time += shapes.us(tokens, hidden, (queries + keys + values) as f64 / tensor);
            }
            Attention::Latent { q_rank, kv_rank, rope_dim, .. } => {
                let queries = queries as f64 / tensor;
                time += match q_rank {
                    Some(rank) => {
                        shapes.us(tokens, hidden, rank as f64) + shapes.us(tokens, rank as f64, queries)
                    }
                    None => shapes.us(tokens, hidden, queries),
                };
                let pairs = (keys + values - model.heads * rope_dim) as f64 / tensor;
                time += shapes.us(tokens, hidden, (kv_rank + rope_dim) as f64)
                    + shapes.us(tokens, kv_rank as f64, pairs);
            }
        }
        let up = (model.feed_forward.matrices() - 1) as f64;
        let block =
            |rows: f64, width: f64| shapes.us(rows, hidden, up * width) + shapes.us(rows, width, hidden);
        let sparse = (model.layers - model.dense_layers()) as f64 / model.layers as f64;
        time += (1.0 - sparse) * block(tokens, model.feed_forward.hidden as f64 / tensor);
        if let Some(experts) = &model.experts {
            let mine = experts.count as f64 / self.layout.expert as f64;
            let rows = self.rows_of_expert(tokens, mine);
            let mut each = mine * block(rows, experts.hidden as f64);
            if experts.shared_hidden > 0 {
                each += block(tokens, experts.shared_hidden as f64 / tensor);
            }
            time += sparse * (each + shapes.us(tokens / tensor, hidden, experts.count as f64));
        }
        time
    }

    /// Products into the inner width of feed-forward blocks and experts.
    fn inner_us(&self, shapes: &Shapes, tokens: f64) -> f64 {
        let model = self.model;
        let (hidden, tensor) = (model.hidden as f64, self.layout.tensor as f64);
        let up = (model.feed_forward.matrices() - 1) as f64;
        let sparse = (model.layers - model.dense_layers()) as f64 / model.layers as f64;
        let dense = shapes.us(tokens, hidden, up * model.feed_forward.hidden as f64 / tensor);
        let experts = model.experts.as_ref().map_or(0.0, |experts| {
            let mine = experts.count as f64 / self.layout.expert as f64;
            let rows = self.rows_of_expert(tokens, mine);
            mine * shapes.us(rows, hidden, up * experts.hidden as f64)
        });
        (1.0 - sparse) * dense + sparse * experts
    }

    /// Products out of the inner width of feed-forward blocks, and of experts.
    fn last_us(&self, shapes: &Shapes, tokens: f64) -> (f64, f64) {
        let model = self.model;
        let (hidden, tensor) = (model.hidden as f64, self.layout.tensor as f64);
        let sparse = (model.layers - model.dense_layers()) as f64 / model.layers as f64;
        let dense = shapes.us(tokens, model.feed_forward.hidden as f64 / tensor, hidden);
        let experts = model.experts.as_ref().map_or(0.0, |experts| {
            let mine = experts.count as f64 / self.layout.expert as f64;
            mine * shapes.us(self.rows_of_expert(tokens, mine), experts.hidden as f64, hidden)
        });
        ((1.0 - sparse) * dense, sparse * experts)
    }

    /// Rows that each of `mine` experts of a device computes: tokens of the ranks that share experts meet at each of
    /// them, evenly.
    fn rows_of_expert(&self, tokens: f64, mine: f64) -> f64 {
        let per_token = self.model.experts.as_ref().map_or(0.0, |experts| experts.per_token as f64);
        let padding = self.training.program.expert_padding;
        tokens / self.layout.tensor as f64 * per_token / mine * padding
    }

    fn attention_us(&self, shapes: &Shapes, tokens: f64) -> f64 {
        let model = self.model;
        let tensor = self.layout.tensor as f64;
        let (queries, ..) = model.attention_widths();
        let widths = (queries + model.attention_output_width()) as f64 / tensor;
        let sequence = self.training.sequence as f64;
        let operations = 2.0 * tokens * sequence * widths;
        if self.flash {
            // What lies in the future is left out.
            return operations
                / 2.0
                / (shapes.peak.min(self.accelerator.bf16_tflops * 1e6) * shapes.efficiency * FLASH_SHARE);
        }
        let head = widths / 2.0 / (model.heads as f64 / tensor);
        let full = |side: f64| side / (side + shapes.half);
        let products = operations / (shapes.peak * shapes.efficiency * full(sequence) * full(head));
        // Scores are written, scaled and masked, normalised, dropped out and read again.
        let passes = if model.dropout { 13.0 } else { 8.0 };
        let moved = passes * tokens * sequence * model.heads as f64 / tensor;
        products + moved / self.memory_bytes_per_us
    }

    fn elementwise_us(&self, tokens: f64) -> f64 {
        let model = self.model;
        let layout = &self.layout;
        let tensor = layout.tensor as f64;
        let unit = self.training.precision.activation_bytes();
        let replicated = if layout.sequence_parallel { tensor } else { 1.0 };
        let hidden = model.hidden as f64;
        // Each normalisation reads and writes; each residual reads two and writes one; dropout adds its mask.
        let masks = if model.dropout { 2.0 } else { 0.0 };
        let whole = hidden * (unit * (2.0 * model.norms as f64 + 6.0) + masks);
        let (queries, keys, values) = model.attention_widths();
        let moved = if model.feed_forward.gated { 3.0 } else { 2.0 };
        let mut split = unit * 2.0 * (queries + keys + values) as f64;
        let sparse = (model.layers - model.dense_layers()) as f64 / model.layers as f64;
        split += (1.0 - sparse) * unit * moved * model.feed_forward.hidden as f64;
        if let Some(experts) = &model.experts {
            let width = experts.per_token * experts.hidden + experts.shared_hidden;
            // Tokens are gathered by expert and put back.
            split += sparse * unit * (moved * width as f64 + 4.0 * experts.per_token as f64 * hidden);
        }
        if self.training.precision == Precision::Fp8 {
            // What goes into a product is read, scaled and written in half the size.
            let block = (1.0 - sparse) * model.feed_forward.hidden as f64;
            let experts = model.experts.as_ref().map_or(0.0, |experts| {
                let width = experts.per_token * (experts.hidden + model.hidden) + experts.shared_hidden;
                sparse * width as f64
            });
            split += 3.0 * (2.0 * hidden + model.attention_output_width() as f64 + block + experts);
        }
        tokens * (whole / replicated + split / tensor) / self.memory_bytes_per_us
    }

    fn communication(&mut self, tokens: f64) {
        let (model, layout) = (self.model, self.layout);
        let program = &self.training.program;
        let unit = self.training.precision.activation_bytes();
        let state = unit * tokens * model.hidden as f64;
        let group = self.fabric.group(layout.tensor, 1);
        let sums = if program.parallel_block { 1.0 } else { 2.0 };
        self.forward.tensor = sums * self.fabric.reduce_us(state, group) * (1.0 - program.hides_tensor);
        if layout.context > 1 {
            let ring = self.fabric.group(layout.context, layout.tensor);
            let width = match model.attention {
                Attention::Standard { .. } => model.cache_width() as f64 / layout.tensor as f64,
                Attention::Latent { .. } => model.cache_width() as f64,
            };
            let bytes = unit * tokens * width * layout.context as f64;
            // Each piece passes while the one before is attended to.
            self.forward.context = (self.fabric.gather_us(bytes, ring) - self.forward.attention)
                .max(self.fabric.gather_us(0.0, ring));
        }
        if let Some(experts) = &model.experts
            && layout.expert > 1
        {
            let sparse = (model.layers - model.dense_layers()) as f64 / model.layers as f64;
            let group = self.fabric.group(layout.expert, 1);
            let bytes = state / layout.tensor as f64 * experts.per_token as f64;
            let both = 2.0 * self.fabric.exchange_us(bytes, group);
            self.forward.expert = sparse * both * (1.0 - program.hides_expert);
        }
        if layout.pipeline > 1 {
            let inner = layout.tensor * layout.context * layout.data;
            let leaves = inner * 2 > self.accelerator.domain();
            let parts = if program.scatters_pipeline || layout.sequence_parallel {
                layout.tensor as f64
            } else {
                1.0
            };
            let mut send = self.fabric.send_us(state / parts, leaves);
            if parts > 1.0 && !layout.sequence_parallel {
                send += self.fabric.gather_us(state, group);
            }
            self.send = send;
        }
    }

    /// One layer of one micro-batch, both passes: (forward, backward, computed again).
    fn passes(&self, recompute: Recompute) -> (f64, f64, f64) {
        let f = &self.forward;
        let core = if self.flash { BACKWARD_FLASH } else { BACKWARD_MATMUL };
        let once = f.matmul + f.attention + f.elementwise + f.overhead + f.tensor + f.context + f.expert;
        let backward = BACKWARD_MATMUL * f.matmul
            + core * f.attention
            + BACKWARD_MOVES * f.elementwise
            + BACKWARD_KERNELS * f.overhead
            + f.tensor
            + 2.0 * f.context
            + f.expert;
        let again = match recompute {
            Recompute::None => 0.0,
            // Flash attention recomputes its core by itself.
            Recompute::Selective => {
                if self.flash {
                    0.0
                } else {
                    f.attention
                }
            }
            Recompute::Projections => f.inner + f.weighed + f.attention + f.elementwise + f.overhead,
            Recompute::Queries => {
                f.inner + f.weighed + f.attention_out + f.attention + f.elementwise + f.overhead
            }
            Recompute::Full if self.training.program.repeats_last => once,
            Recompute::Full => once - f.last,
        };
        (once, backward, again)
    }

    /// No step of this split can be shorter, whatever the interleaving, recomputation and sharding.
    #[must_use]
    pub fn bound_us(&self) -> f64 {
        let (forward, backward, _) = self.passes(Recompute::None);
        let layer = forward + backward;
        let stages = self.layout.pipeline as f64;
        let output = if self.layout.pipeline == 1 { self.output } else { 0.0 };
        // Pieces have a layer at least, or where embedding and output count as layers, nearly one.
        let bubble = (stages - 1.0) * layer * self.layers_max / (self.layers_max + 1.0);
        self.micro_batches * (self.layers_max * layer + output) + bubble
    }

    /// The step under one choice of what [`Base::new`] does not look at.
    #[must_use]
    pub fn step(&self, interleave: u64, recompute: Recompute, sharding: Sharding) -> Step {
        let f = &self.forward;
        let (forward, backward, again) = self.passes(recompute);
        let stages = self.layout.pipeline as f64;
        let count = self.micro_batches * self.layers_max;
        let core = if self.flash { BACKWARD_FLASH } else { BACKWARD_MATMUL };
        let mut step = Step {
            matmul_us: count * 3.0 * f.matmul,
            attention_us: count * (1.0 + core) * f.attention,
            elementwise_us: count * (1.0 + BACKWARD_MOVES) * f.elementwise,
            recompute_us: count * again,
            overhead_us: count * (1.0 + BACKWARD_KERNELS) * f.overhead,
            tensor_us: count * 2.0 * f.tensor,
            context_us: count * 3.0 * f.context,
            expert_us: count * 2.0 * f.expert,
            ..Step::default()
        };
        let layers_time = self.layers_max * (forward + backward + again);
        if stages > 1.0 {
            // The last stage also has the output; where it has a layer less for it, only the difference counts.
            let last = self.layout.layers_of_stage(self.model.layers, self.layout.pipeline - 1) as f64;
            let ahead = (self.layers_max - last) * (forward + backward + again);
            step.output_us = self.micro_batches * (self.output - ahead).max(0.0);
            step.bubble_us = (stages - 1.0) / interleave as f64 * layers_time;
            let crossings = 2.0 * interleave as f64 * self.micro_batches + 2.0 * (stages - 1.0);
            step.pipeline_us = crossings * self.send * 2.0 * (1.0 - self.training.program.hides_pipeline);
        } else {
            step.output_us = self.micro_batches * self.output;
        }
        let (data, optimizer) = self.replicas(interleave, sharding, layers_time);
        step.data_us = data;
        step.optimizer_us = optimizer;
        step.step_time_us = step.parts().iter().map(|(_, time)| time).sum();
        step
    }

    /// Communication of replicas that does not hide, and the optimiser.
    fn replicas(&self, interleave: u64, sharding: Sharding, layers_time: f64) -> (f64, f64) {
        let layout = &self.layout;
        let program = &self.training.program;
        let (parameter, gradient, state) = self.training.precision.bytes();
        let (common, experts) = self.parameters;
        let group = self.fabric.group(layout.data * layout.context, layout.tensor);
        let expert_group = self.fabric.group(layout.expert_replicas(), layout.expert.max(1));
        let gathered = |bytes: f64| {
            self.fabric.gather_us(bytes * common, group)
                + if experts > 0.0 { self.fabric.gather_us(bytes * experts, expert_group) } else { 0.0 }
        };
        let hides = program.hides_data;
        let replicas = (layout.data * layout.context) as f64;
        let mut held = common + experts;
        let data = match sharding {
            Sharding::None | Sharding::Optimizer => {
                let second = if sharding == Sharding::None { gradient } else { parameter };
                let all = gathered(gradient) + gathered(second);
                // There to hide behind are the last micro-batch's pass backward and the next step's first pass forward;
                // of interleaved stages, also what other pieces do once one has its last gradients.
                let pieces = interleave as f64;
                let window = 1.0 + (layout.pipeline - 1) as f64 * (pieces - 1.0) / pieces;
                (all - hides * window * layers_time).max(all * (1.0 - hides))
            }
            Sharding::Full => {
                let each = 2.0 * gathered(parameter) + gathered(gradient);
                let starts = 3.0 * (program.gathers_a_layer * self.layers_max - 1.0);
                let starts = starts.max(0.0) * self.fabric.gather_us(0.0, group);
                let all = (each / program.gather_share + starts) * self.micro_batches;
                let computing = self.micro_batches * layers_time;
                (all - hides * computing).max(all * (1.0 - hides))
            }
        };
        let data = if replicas * layout.expert_replicas() as f64 > 1.0 { data } else { 0.0 };
        if sharding != Sharding::None {
            held = common / replicas + experts / layout.expert_replicas() as f64;
        }
        let moved = held * (2.0 * state + gradient + parameter);
        (data, moved / self.memory_bytes_per_us + self.calibration.layer_overhead_us)
    }
}

/// The step of one layout.
#[must_use]
pub fn step(
    model: &Model,
    layout: &Layout,
    training: &Training,
    accelerator: &Accelerator,
    calibration: &Calibration,
) -> Step {
    Base::new(model, layout, training, accelerator, calibration).step(
        layout.interleave,
        layout.recompute,
        layout.sharding,
    )
}

/// Model operations over what the devices could do meanwhile: no recomputation counts.
#[must_use]
pub fn utilisation(
    model: &Model,
    devices: u64,
    training: &Training,
    accelerator: &Accelerator,
    step_us: f64,
) -> f64 {
    let peak = accelerator.peak_per_us(false) * devices as f64;
    model.step_flops(training.batch, training.sequence) / (peak * step_us)
}
