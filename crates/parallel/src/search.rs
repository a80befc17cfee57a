//! Every legal layout that fits, fastest first.
//!
//! Layouts are looked at in two steps: what a split over devices and a micro-batch costs is priced once, with a time
//! that no choice of interleaving, recomputation and sharding can be below; only where that bound is better than what
//! was found already are those choices tried. So pruning loses nothing, which a test holds against an exhaustive
//! search.

use serde::Serialize;

use crate::accelerator::Accelerator;
use crate::coefficients::Calibration;
use crate::cost::{self, Base, Step};
use crate::error::PlanError;
use crate::layout::{DEVICES_MAX, Layout, Precision, Program, Recompute, Sharding, Training};
use crate::memory::{self, Held, Memory};
use crate::model::Model;

/// Layouts that are kept for each number of devices.
pub const KEPT: usize = 5;
/// Largest micro-batch that is tried.
const MICRO_BATCH_MAX: u64 = 64;
/// Largest context parallel size that is tried.
const CONTEXT_MAX: u64 = 64;

/// Sizes that the user has chosen; the rest is the planner's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// Tensor parallel size.
    pub tensor: Option<u64>,
    /// Pipeline parallel size.
    pub pipeline: Option<u64>,
    /// Context parallel size.
    pub context: Option<u64>,
    /// Expert parallel size.
    pub expert: Option<u64>,
    /// Micro-batch.
    pub micro_batch: Option<u64>,
    /// Pieces of a stage.
    pub interleave: Option<u64>,
    /// Recomputation.
    pub recompute: Option<Recompute>,
    /// Sharding.
    pub sharding: Option<Sharding>,
    /// Devices of a worker of the gang, which no tensor parallel group leaves.
    pub worker_devices: Option<u64>,
}

impl Fixed {
    fn allows(&self, layout: &Layout) -> bool {
        fn same<T: PartialEq>(fixed: Option<T>, value: T) -> bool {
            fixed.is_none_or(|fixed| fixed == value)
        }
        same(self.tensor, layout.tensor)
            && same(self.pipeline, layout.pipeline)
            && same(self.context, layout.context)
            && same(self.expert, layout.expert)
            && same(self.micro_batch, layout.micro_batch)
            && same(self.interleave, layout.interleave)
            && same(self.recompute, layout.recompute)
            && same(self.sharding, layout.sharding)
            && self.inside_worker(layout.tensor)
    }

    /// Consecutive tensor parallel groups of this size begin and end with workers.
    fn inside_worker(&self, tensor: u64) -> bool {
        self.worker_devices.is_none_or(|devices| devices.is_multiple_of(tensor))
    }

    /// Nothing is given but the shape of workers.
    fn free(&self) -> Fixed {
        Fixed { worker_devices: self.worker_devices, ..Fixed::default() }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The model.
    pub model: Model,
    /// What is trained.
    pub training: Training,
    /// On what.
    pub accelerator: Accelerator,
    /// What is known of it.
    pub calibration: Calibration,
    /// Most devices.
    pub devices_max: u64,
    /// Sizes that are given.
    pub fixed: Fixed,
}

/// One layout that fits, with what it needs and takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Devices.
    pub devices: u64,
    /// The layout.
    pub layout: Layout,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// The stage that needs most memory.
    pub fullest_stage: u64,
    /// What it needs.
    pub memory: Memory,
    /// The time of a step.
    pub step: Step,
    /// Model operations over the peak.
    pub utilisation: f64,
    /// Tokens a second, of all devices.
    pub tokens_per_s: f64,
    /// Joules a token at full power; 0 if the accelerator's power is not published.
    pub energy_j_per_token: f64,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The fastest layouts on as many devices as are allowed and useful.
    pub candidates: Vec<Candidate>,
    /// The fastest layout for each number of devices, fewest first.
    pub by_devices: Vec<Candidate>,
    /// Splits that were priced.
    pub priced: u64,
    /// Layouts that were timed.
    pub timed: u64,
}

fn divisors(number: u64) -> Vec<u64> {
    let mut found: Vec<u64> =
        (1..).take_while(|d| d * d <= number).filter(|d| number.is_multiple_of(*d)).collect();
    let large: Vec<u64> = found.iter().rev().map(|d| number / d).filter(|d| !found.contains(d)).collect();
    found.extend(large);
    found
}

/// Numbers of devices that are looked at: powers of two, and the most that there are.
#[must_use]
pub fn device_counts(devices_max: u64) -> Vec<u64> {
    let powers = (0..).map(|exponent| 1_u64 << exponent).take_while(|count| *count < devices_max);
    powers.chain([devices_max]).collect()
}

/// The best few, best first.
struct Best {
    found: Vec<(f64, Layout, Step)>,
}

impl Best {
    fn limit(&self) -> f64 {
        if self.found.len() < KEPT { f64::INFINITY } else { self.found[KEPT - 1].0 }
    }

    fn offer(&mut self, time: f64, layout: Layout, step: Step) {
        let at = self.found.partition_point(|(other, kept, _)| (*other, *kept) < (time, layout));
        self.found.insert(at, (time, layout, step));
        self.found.truncate(KEPT);
    }
}

impl Question {
    /// # Errors
    /// If a size is zero or beyond every use.
    pub fn check(&self) -> Result<(), PlanError> {
        self.training.check()?;
        if !(1..=DEVICES_MAX).contains(&self.devices_max) {
            return Err(PlanError::BadOption {
                option: "max",
                value: self.devices_max.to_string(),
                expected: format!("from 1 to {DEVICES_MAX} devices"),
            });
        }
        let fixed = &self.fixed;
        let sizes = [
            ("tensor", fixed.tensor),
            ("pipeline", fixed.pipeline),
            ("context", fixed.context),
            ("expert", fixed.expert),
            ("micro-batch", fixed.micro_batch),
            ("interleave", fixed.interleave),
        ];
        for (option, value) in sizes {
            if let Some(value) = value
                && !(1..=DEVICES_MAX).contains(&value)
            {
                return Err(PlanError::BadOption {
                    option,
                    value: value.to_string(),
                    expected: format!("from 1 to {DEVICES_MAX}"),
                });
            }
        }
        if let Some(micro_batch) = fixed.micro_batch
            && !self.training.batch.is_multiple_of(micro_batch)
        {
            return Err(PlanError::IllegalLayout(format!(
                "{} sequences do not divide into micro-batches of {micro_batch}",
                self.training.batch
            )));
        }
        if let Some(tensor) = fixed.tensor {
            if let Some(devices) = fixed.worker_devices
                && !fixed.inside_worker(tensor)
            {
                return Err(PlanError::IllegalLayout(format!(
                    "tensor parallel size {tensor} does not divide the {devices} devices of a worker"
                )));
            }
            let layout = Layout { tensor, sequence_parallel: false, ..Layout::ONE };
            let training = Training { batch: 1, ..self.training };
            layout.check(&self.model, &training, &self.accelerator)?;
        }
        if let Some(pipeline) = fixed.pipeline
            && !Layout::layers_divide(self.model.layers, pipeline, fixed.interleave.unwrap_or(1))
        {
            return Err(PlanError::IllegalLayout(format!(
                "{} layers do not divide over {pipeline} stages of {} pieces",
                self.model.layers,
                fixed.interleave.unwrap_or(1)
            )));
        }
        Ok(())
    }

    fn tensor_sizes(&self) -> Vec<u64> {
        divisors(self.model.heads)
            .into_iter()
            .filter(|t| {
                *t <= self.accelerator.tensor_max()
                    && Layout::heads_divide(&self.model, *t, &self.accelerator)
                    && self.model.feed_forward.hidden.is_multiple_of(*t)
                    && self.fixed.inside_worker(*t)
                    && self.fixed.tensor.is_none_or(|fixed| fixed == *t)
            })
            .collect()
    }

    fn pipeline_sizes(&self) -> Vec<u64> {
        (1..=self.model.layers.min(DEVICES_MAX))
            .filter(|p| {
                Layout::layers_divide(self.model.layers, *p, 1)
                    && self.fixed.pipeline.is_none_or(|fixed| fixed == *p)
            })
            .collect()
    }

    fn expert_sizes(&self) -> Vec<u64> {
        let sizes = match &self.model.experts {
            Some(experts) => divisors(experts.count),
            None => vec![1],
        };
        sizes.into_iter().filter(|e| self.fixed.expert.is_none_or(|fixed| fixed == *e)).collect()
    }

    fn micro_batches(&self, data: u64) -> impl Iterator<Item = u64> + '_ {
        let each = self.training.batch / data;
        let powers = (0..).map(|exponent| 1_u64 << exponent).take_while(|b| *b <= MICRO_BATCH_MAX);
        let fixed = self.fixed.micro_batch;
        let tried: Vec<u64> = match fixed {
            Some(size) => vec![size],
            None => powers.collect(),
        };
        tried.into_iter().filter(move |b| each.is_multiple_of(*b) && *b <= each)
    }

    /// Splits of `devices` devices: all sizes, without interleaving, recomputation and sharding.
    fn splits(&self, devices: u64, sizes: &Sizes) -> Vec<Layout> {
        let mut splits = sizes.over_devices(devices);
        splits.retain(|split| self.training.batch.is_multiple_of(split.data));
        for split in &mut splits {
            let pieces = split.tensor * split.context * if split.context > 1 { 2 } else { 1 };
            split.sequence_parallel = split.tensor > 1 && self.training.sequence.is_multiple_of(pieces);
        }
        let with_experts = splits.iter().flat_map(|split| sizes.over_experts(*split));
        let with_micro_batches = with_experts.flat_map(|split| {
            self.micro_batches(split.data).map(move |micro_batch| Layout { micro_batch, ..split })
        });
        with_micro_batches
            .filter(|split| split.check(&self.model, &self.training, &self.accelerator).is_ok())
            .collect()
    }

    fn sizes(&self) -> Sizes {
        let context = (0..)
            .map(|exponent| 1_u64 << exponent)
            .take_while(|c| *c <= CONTEXT_MAX)
            .filter(|c| {
                (*c == 1 || self.training.sequence.is_multiple_of(2 * c))
                    && self.fixed.context.is_none_or(|fixed| fixed == *c)
            })
            .collect();
        Sizes {
            tensor: self.tensor_sizes(),
            pipeline: self.pipeline_sizes(),
            context,
            expert: self.expert_sizes(),
        }
    }

    fn interleaves(&self, split: &Layout) -> Vec<u64> {
        let layers = self.model.layers;
        let each = (layers + 2).div_ceil(split.pipeline);
        (1..=if split.pipeline > 1 { each } else { 1 })
            .filter(|v| {
                Layout::layers_divide(layers, split.pipeline, *v)
                    && (*v == 1 || split.micro_batches(self.training.batch).is_multiple_of(split.pipeline))
                    && self.fixed.interleave.is_none_or(|fixed| fixed == *v)
            })
            .collect()
    }

    /// Choices of recomputation, the fastest first. Where attention's core is never kept, there is nothing to select.
    fn recomputes(&self) -> Vec<Recompute> {
        let flash = self.training.program.flash_attention;
        [Recompute::None, Recompute::Selective, Recompute::Full]
            .into_iter()
            .filter(|choice| match self.fixed.recompute {
                Some(fixed) => fixed == *choice,
                None => *choice != Recompute::Selective || !flash,
            })
            .collect()
    }

    fn shardings(&self, split: &Layout) -> Vec<Sharding> {
        let replicated = split.data * split.context * split.expert_replicas() > 1;
        [Sharding::None, Sharding::Optimizer, Sharding::Full]
            .into_iter()
            .filter(|choice| match self.fixed.sharding {
                Some(fixed) => fixed == *choice,
                None => *choice == Sharding::None || replicated,
            })
            .collect()
    }

    fn best_on(&self, devices: u64, sizes: &Sizes, counts: &mut (u64, u64)) -> Best {
        let mut best = Best { found: Vec::new() };
        // Every parameter is held at least once by somebody.
        let weights = self.weights_bytes();
        if weights > self.accelerator.memory_bytes as f64 * devices as f64 {
            return best;
        }
        let splits = self.splits(devices, sizes);
        let bases: Vec<Base<'_>> = splits
            .iter()
            .map(|split| Base::new(&self.model, split, &self.training, &self.accelerator, &self.calibration))
            .collect();
        counts.0 += bases.len() as u64;
        let mut order: Vec<(f64, usize)> =
            bases.iter().enumerate().map(|(at, base)| (base.bound_us(), at)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (bound, at) in order {
            if bound > best.limit() {
                break;
            }
            counts.1 += self.try_choices(&splits[at], &bases[at], &mut best);
        }
        best
    }

    /// Times every choice of interleaving, recomputation and sharding for one split; how many that were.
    fn try_choices(&self, split: &Layout, base: &Base<'_>, best: &mut Best) -> u64 {
        let held = Held::new(&self.model, split, &self.training);
        // Interleaving only adds to what is kept: what does not fit without it never fits.
        let mut choices = Vec::new();
        for sharding in self.shardings(split) {
            let with =
                self.recomputes().into_iter().map(|recompute| Layout { sharding, recompute, ..*split });
            choices.extend(with.filter(|layout| held.fits(layout, &self.accelerator)));
        }
        if choices.is_empty() {
            return 0;
        }
        let mut timed = 0;
        for interleave in self.interleaves(split) {
            for choice in &choices {
                let layout = Layout { interleave, ..*choice };
                let step = base.step(interleave, layout.recompute, layout.sharding);
                timed += 1;
                let time = step.step_time_us;
                if time <= best.limit() && (interleave == 1 || held.fits(&layout, &self.accelerator)) {
                    best.offer(time, layout, step);
                }
            }
        }
        timed
    }

    fn candidate(&self, layout: Layout, step: Step) -> Candidate {
        let devices = layout.devices();
        let (fullest_stage, memory) = memory::worst(&self.model, &layout, &self.training);
        let tokens = (self.training.batch * self.training.sequence) as f64;
        let seconds = step.step_time_us / 1e6;
        Candidate {
            devices,
            layout,
            micro_batches: layout.micro_batches(self.training.batch),
            fullest_stage,
            memory,
            step,
            utilisation: cost::utilisation(
                &self.model,
                devices,
                &self.training,
                &self.accelerator,
                step.step_time_us,
            ),
            tokens_per_s: tokens / seconds,
            energy_j_per_token: self.accelerator.power_watts * devices as f64 * seconds / tokens,
        }
    }

    /// Prices one layout, whether it fits or not.
    ///
    /// # Errors
    /// If it is not legal.
    pub fn price(&self, layout: &Layout) -> Result<Candidate, PlanError> {
        layout.check(&self.model, &self.training, &self.accelerator)?;
        let step = cost::step(&self.model, layout, &self.training, &self.accelerator, &self.calibration);
        Ok(self.candidate(*layout, step))
    }

    /// Every legal layout that fits on `devices` devices, unordered and without pruning. For tests on small spaces.
    #[must_use]
    pub fn exhaustive(&self, devices: u64) -> Vec<Candidate> {
        let sizes = self.sizes();
        let splits = self.splits(devices, &sizes).into_iter();
        let all = splits.flat_map(|split| self.variations(split));
        all.filter(|layout| {
            self.fixed.allows(layout) && memory::fits(&self.model, layout, &self.training, &self.accelerator)
        })
        .filter_map(|layout| self.price(&layout).ok())
        .collect()
    }

    /// Every choice of what a split leaves open, legal or not.
    fn variations(&self, split: Layout) -> impl Iterator<Item = Layout> + use<> {
        let interleaves = 1..=self.model.layers;
        let recomputes = [Recompute::None, Recompute::Selective, Recompute::Full];
        let shardings = [Sharding::None, Sharding::Optimizer, Sharding::Full];
        let split = [false, true].map(|sequence_parallel| Layout { sequence_parallel, ..split }).into_iter();
        let split = split
            .flat_map(move |split| interleaves.clone().map(move |interleave| Layout { interleave, ..split }));
        let split = split.flat_map(move |split| recomputes.map(|recompute| Layout { recompute, ..split }));
        split.flat_map(move |split| shardings.map(|sharding| Layout { sharding, ..split }))
    }

    /// The fastest layout on exactly `devices` devices, if any fits.
    #[must_use]
    pub fn fastest_on(&self, devices: u64) -> Option<Candidate> {
        let best = self.best_on(devices, &self.sizes(), &mut (0, 0));
        best.found.first().map(|(_, layout, step)| self.candidate(*layout, *step))
    }

    /// The fastest layouts.
    ///
    /// # Errors
    /// If a size makes no sense, or if nothing fits: then with the smallest fleet that would do and what else helps.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.check()?;
        let plan = self.search();
        if plan.by_devices.is_empty() { Err(self.fits_nowhere()) } else { Ok(plan) }
    }

    fn search(&self) -> Plan {
        let sizes = self.sizes();
        let mut counts = (0, 0);
        let mut plan = Plan { candidates: Vec::new(), by_devices: Vec::new(), priced: 0, timed: 0 };
        let mut fastest = f64::INFINITY;
        for devices in device_counts(self.devices_max) {
            let best = self.best_on(devices, &sizes, &mut counts);
            let Some((time, layout, step)) = best.found.first() else { continue };
            plan.by_devices.push(self.candidate(*layout, *step));
            // More devices that are not faster are no use.
            if *time < fastest {
                fastest = *time;
                plan.candidates =
                    best.found.iter().map(|(_, layout, step)| self.candidate(*layout, *step)).collect();
            }
        }
        (plan.priced, plan.timed) = counts;
        plan
    }

    fn smallest_fleet(&self) -> Option<u64> {
        let larger = (0..21).map(|exponent| 1_u64 << exponent).filter(|n| *n > self.devices_max);
        let sizes = self.sizes();
        let mut fleets = larger.filter(|devices| {
            let mut counts = (0, 0);
            !self.best_on(*devices, &sizes, &mut counts).found.is_empty()
        });
        fleets.next()
    }

    /// What helps, the cheapest first: freeing what was fixed, then sharding, number formats, shorter sequences.
    fn changes(&self) -> Vec<(String, Question)> {
        let mut changes = Vec::new();
        let fixed = self.fixed;
        let mut change = |text: &str, question: Question| changes.push((text.to_owned(), question));
        if fixed.sharding.is_some() {
            let fixed = Fixed { sharding: None, ..fixed };
            change("shard the optimiser (--sharding optimizer)", Question { fixed, ..self.clone() });
        }
        if fixed.recompute.is_some() {
            let fixed = Fixed { recompute: None, ..fixed };
            change("compute activations again (--recompute full)", Question { fixed, ..self.clone() });
        }
        if fixed.micro_batch.is_some_and(|size| size > 1) {
            let fixed = Fixed { micro_batch: None, ..fixed };
            change("a smaller micro-batch", Question { fixed, ..self.clone() });
        }
        if fixed != fixed.free() {
            change("leave every size to the planner", Question { fixed: fixed.free(), ..self.clone() });
        }
        if matches!(self.training.precision, Precision::Fp16 | Precision::Fp32) {
            let training = Training { precision: Precision::Bf16, ..self.training };
            change("bf16 (--precision bf16)", Question { training, ..self.clone() });
        }
        let mut sequence = self.training.sequence;
        while sequence > 1024 && sequence.is_multiple_of(2) {
            sequence /= 2;
            let training = Training { sequence, ..self.training };
            change(&format!("sequences of {sequence} tokens"), Question { training, ..self.clone() });
        }
        changes
    }

    /// Parameters, gradients and optimiser, once.
    fn weights_bytes(&self) -> f64 {
        self.model.parameters().total as f64 * memory::bytes_per_parameter(self.training.precision)
    }

    fn fits_nowhere(&self) -> PlanError {
        let gib = |bytes: f64| bytes / (1_u64 << 30) as f64;
        let weights = self.weights_bytes();
        let mut text = format!(
            "no layout fits on up to {} {}: parameters, gradients and optimiser alone are {:.0} GiB, and all the \
             devices have {:.0} GiB",
            self.devices_max,
            self.accelerator.name,
            gib(weights),
            gib(self.accelerator.memory_bytes as f64) * self.devices_max as f64
        );
        let helping =
            self.changes().into_iter().find(|(_, question)| !question.search().by_devices.is_empty());
        if let Some((change, _)) = helping {
            text.push_str(&format!("; the cheapest change that helps: {change}"));
        }
        match self.smallest_fleet() {
            Some(devices) => text.push_str(&format!("; the smallest fleet that would do: {devices} devices")),
            None => text.push_str(&format!("; no fleet of up to {DEVICES_MAX} devices would do")),
        }
        PlanError::FitsNowhere { text }
    }
}

/// The program that a plan assumes on a kind of accelerator.
#[must_use]
pub fn usual_program(accelerator: &Accelerator) -> Program {
    if accelerator.is_tpu() { Program::MAXTEXT } else { Program::MEGATRON_CORE }
}

struct Sizes {
    tensor: Vec<u64>,
    pipeline: Vec<u64>,
    context: Vec<u64>,
    expert: Vec<u64>,
}

impl Sizes {
    /// Tensor, pipeline and context parallel sizes that divide the devices; data parallelism takes the rest.
    fn over_devices(&self, devices: u64) -> Vec<Layout> {
        let start = [(Layout::ONE, devices)];
        let tensor = divided(&start, &self.tensor, |split, tensor| Layout { tensor, ..split });
        let pipeline = divided(&tensor, &self.pipeline, |split, pipeline| Layout { pipeline, ..split });
        let context = divided(&pipeline, &self.context, |split, context| Layout { context, ..split });
        context.into_iter().map(|(split, data)| Layout { data, ..split }).collect()
    }

    /// Every number of experts a rank that the ranks of a stage can share.
    fn over_experts(&self, split: Layout) -> impl Iterator<Item = Layout> + '_ {
        let ranks = split.tensor * split.data * split.context;
        let allowed = split.tensor == 1 || split.sequence_parallel;
        let shared = move |expert: &u64| ranks.is_multiple_of(*expert) && (*expert == 1 || allowed);
        self.expert.iter().copied().filter(shared).map(move |expert| Layout { expert, ..split })
    }
}

/// Each split with each size that divides the devices it has left, and those left then.
fn divided(
    splits: &[(Layout, u64)],
    sizes: &[u64],
    with: impl Fn(Layout, u64) -> Layout,
) -> Vec<(Layout, u64)> {
    let mut found = Vec::new();
    for (split, left) in splits {
        let fitting = sizes.iter().filter(|size| left.is_multiple_of(**size));
        found.extend(fitting.map(|size| (with(*split, *size), left / size)));
    }
    found
}
