//! What measured steps say of an accelerator: the coefficients under which they are predicted best.

use crate::accelerator::Accelerator;
use crate::coefficients::{Calibration, Origin};
use crate::cost;
use crate::error::PlanError;
use crate::layout::{Layout, Training};
use crate::model::Model;

/// Bounds of the numbers, in their order: beyond these no machine is.
const BOUNDS: [(f64, f64); 6] =
    [(0.3, 0.97), (10.0, 600.0), (0.4, 0.95), (0.3, 0.85), (0.2, 0.9), (5.0, 250.0)];

/// A step whose time is known. Where the run did not say how it was split, each of `layouts` may have been it, and
/// the fastest is taken.
#[derive(Clone, Debug)]
pub struct Observation {
    /// What it is called in messages.
    pub name: String,
    /// The model.
    pub model: Model,
    /// How it was split.
    pub layouts: Vec<Layout>,
    /// What was trained.
    pub training: Training,
    /// On what.
    pub accelerator: Accelerator,
    /// How long the step took, in microseconds.
    pub step_time_us: f64,
}

impl Observation {
    /// What a calibration says of it: the layout and its step.
    #[must_use]
    pub fn predict(&self, calibration: &Calibration) -> Option<(Layout, cost::Step)> {
        let steps = self.layouts.iter().map(|layout| {
            (*layout, cost::step(&self.model, layout, &self.training, &self.accelerator, calibration))
        });
        steps.min_by(|a, b| a.1.step_time_us.total_cmp(&b.1.step_time_us))
    }

    /// Predicted over measured, less one.
    #[must_use]
    pub fn error(&self, calibration: &Calibration) -> f64 {
        self.predict(calibration)
            .map_or(f64::INFINITY, |(_, step)| step.step_time_us / self.step_time_us - 1.0)
    }
}

/// Errors beyond this count less and less: one odd run does not bend the rest.
const ODD: f64 = 0.12;

/// What moving a number away from what is known costs, so that none moves for nothing.
const STAY: f64 = 0.0005;

fn misfit(observations: &[Observation], values: [f64; 6], start: [f64; 6]) -> f64 {
    let calibration = Calibration::with(values, Origin::Measured);
    let square = |error: f64| {
        let square = (1.0 + error).max(1e-6).ln().powi(2);
        square / (1.0 + square / (ODD * ODD))
    };
    let moved: f64 = values.iter().zip(start).map(|(value, start)| (value / start).ln().powi(2)).sum();
    let missed: f64 = observations.iter().map(|observation| square(observation.error(&calibration))).sum();
    missed + STAY * moved
}

/// The numbers under which the observations are predicted best, sought from `start` by steps that become smaller. With
/// few observations only the first numbers move, or they would be bent to fit noise: one number for each two.
#[must_use]
pub fn fit(observations: &[Observation], start: &Calibration, origin: Origin) -> Calibration {
    // What few observations can tell first: how fast matrices are, then memory, then links.
    const ORDER: [usize; 6] = [0, 2, 1, 3, 4, 5];
    let free = observations.len().div_ceil(2).min(6);
    let start = start.values();
    let mut values = start;
    let mut best = misfit(observations, values, start);
    let mut stride: f64 = 0.3;
    while stride > 0.002 {
        let mut improved = false;
        for at in &ORDER[..free] {
            for factor in [1.0 + stride, 1.0 / (1.0 + stride)] {
                let mut tried = values;
                tried[*at] = (tried[*at] * factor).clamp(BOUNDS[*at].0, BOUNDS[*at].1);
                let misfit = misfit(observations, tried, start);
                if misfit < best - 1e-12 {
                    (best, values, improved) = (misfit, tried, true);
                }
            }
        }
        if !improved {
            stride /= 2.0;
        }
    }
    Calibration::with(values, origin)
}

/// Shares of overlap that a program may have: a tenth each.
const OVERLAP_STEPS: u32 = 10;

/// The shares of overlap under which steps of one program are predicted best with a calibration, in tenths, sought from
/// `start`: tensor, data, pipeline, expert.
#[must_use]
pub fn fit_overlap(observations: &[Observation], calibration: &Calibration, start: [f64; 4]) -> [f64; 4] {
    let missed = |shares: [f64; 4]| -> f64 {
        let errors = observations.iter().map(|observation| {
            let program = observation.training.program.with_overlap(shares);
            let training = Training { program, ..observation.training };
            let changed = Observation { training, ..observation.clone() };
            (1.0 + changed.error(calibration)).max(1e-6).ln().powi(2)
        });
        // A share that nothing speaks for stays where it is.
        let moved: f64 = shares.iter().zip(start).map(|(share, start)| (share - start).powi(2)).sum();
        errors.sum::<f64>() + STAY * moved
    };
    let (mut shares, mut least) = (start, missed(start));
    let mut improved = true;
    while improved {
        improved = false;
        for at in 0..shares.len() {
            for tenths in 0..OVERLAP_STEPS {
                let mut tried = shares;
                tried[at] = f64::from(tenths) / f64::from(OVERLAP_STEPS);
                let missed = missed(tried);
                if missed < least - 1e-12 {
                    (least, shares, improved) = (missed, tried, true);
                }
            }
        }
    }
    shares
}

/// Most that two measurements of the same step may differ, larger over smaller.
const SAME_STEP_MAX: f64 = 1.15;
/// Most that a measured step may differ from what the best calibration of all of them says.
const RESIDUAL_MAX: f64 = 0.25;

/// A calibration from a user's own steps.
///
/// # Errors
/// If there are none, if a time is not a time, if two measurements of the same step differ, if a step is faster than
/// the accelerator's peak, or if no calibration explains them together: the two that disagree most are named.
pub fn from_measurements(observations: &[Observation]) -> Result<Calibration, PlanError> {
    let Some(first) = observations.first() else { return Err(PlanError::NoMeasurements) };
    for observation in observations {
        let time = observation.step_time_us;
        if !time.is_finite() || time <= 0.0 || time > 1e12 {
            return Err(PlanError::BadOption {
                option: "step_time_s",
                value: format!("{}", time / 1e6),
                expected: format!("a time above 0 and below a million seconds ({})", observation.name),
            });
        }
        if observation.accelerator.name != first.accelerator.name {
            return Err(PlanError::Contradiction(format!(
                "{} ran on {} and {} on {}: a calibration is of one accelerator; split the file",
                first.name, first.accelerator.name, observation.name, observation.accelerator.name
            )));
        }
        check_peak(observation)?;
    }
    for (at, a) in observations.iter().enumerate() {
        for b in &observations[..at] {
            let same = a.layouts == b.layouts && a.model == b.model && a.training == b.training;
            let ratio = (a.step_time_us / b.step_time_us).max(b.step_time_us / a.step_time_us);
            if same && ratio > SAME_STEP_MAX {
                return Err(PlanError::Contradiction(format!(
                    "{} and {} are the same step and took {:.3} s and {:.3} s: more than {:.0} % apart; measure \
                     again, or leave out the one that was disturbed",
                    b.name,
                    a.name,
                    b.step_time_us / 1e6,
                    a.step_time_us / 1e6,
                    (SAME_STEP_MAX - 1.0) * 100.0
                )));
            }
        }
    }
    let found = fit(observations, &Calibration::of(&first.accelerator), Origin::Measured);
    contradiction(observations, &found).map_or(Ok(found), Err)
}

/// A step that does more than the accelerator can was not measured right.
fn check_peak(observation: &Observation) -> Result<(), PlanError> {
    let Some(layout) = observation.layouts.first() else { return Err(PlanError::NoMeasurements) };
    let fp8 = observation.training.precision == crate::layout::Precision::Fp8;
    let mut share = cost::utilisation(
        &observation.model,
        layout.devices(),
        &observation.training,
        &observation.accelerator,
        observation.step_time_us,
    );
    if fp8 {
        share *= observation.accelerator.peak_per_us(false) / observation.accelerator.peak_per_us(true);
    }
    if share < 1.0 {
        return Ok(());
    }
    Err(PlanError::Contradiction(format!(
        "{} took {:.3} s, which would be {:.0} % of the peak of {} {}: check its batch, its sequence and its devices",
        observation.name,
        observation.step_time_us / 1e6,
        share * 100.0,
        layout.devices(),
        observation.accelerator.name
    )))
}

fn contradiction(observations: &[Observation], found: &Calibration) -> Option<PlanError> {
    let mut by_error: Vec<(f64, &Observation)> =
        observations.iter().map(|observation| (observation.error(found), observation)).collect();
    by_error.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (least, fast) = by_error.first()?;
    let (most, slow) = by_error.last()?;
    if least.abs().max(most.abs()) <= RESIDUAL_MAX {
        return None;
    }
    Some(PlanError::Contradiction(format!(
        "no calibration explains these steps together: for {} ({:.3} s) the best one predicts {:+.0} %, for {} \
         ({:.3} s) {:+.0} %; check both, and that they come from the same program",
        fast.name,
        fast.step_time_us / 1e6,
        least * 100.0,
        slow.name,
        slow.step_time_us / 1e6,
        most * 100.0
    )))
}
