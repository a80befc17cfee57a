//! Six coefficients of an accelerator, one set for each kind, never one for each run.

use serde::{Deserialize, Serialize};

use crate::accelerator::Accelerator;

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From steps that the user measured.
    Measured,
    /// From published steps on this accelerator.
    Calibrated,
    /// Taken over from another accelerator, or from what vendors say; no step on this one stands behind it.
    Assumed,
}

impl Origin {
    /// As tables show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Calibrated => "calibrated",
            Origin::Assumed => "assumed",
        }
    }
}

/// How far an accelerator and its libraries stay below what is published of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Share of the peak that products of endless matrices reach.
    pub matmul_efficiency: f64,
    /// Side of a matrix at which half of that is left.
    pub matmul_half: f64,
    /// Share of the memory bandwidth.
    pub memory_efficiency: f64,
    /// Share of the bandwidth of fast links.
    pub link_efficiency: f64,
    /// Share of the network's bandwidth.
    pub network_efficiency: f64,
    /// What starting the kernels of one layer's pass forward adds, in microseconds.
    pub layer_overhead_us: f64,
    /// Where they come from.
    pub origin: Origin,
}

impl Calibration {
    /// The numbers in their order: products, side at half, memory, links, network, start.
    #[must_use]
    pub fn values(&self) -> [f64; 6] {
        [
            self.matmul_efficiency,
            self.matmul_half,
            self.memory_efficiency,
            self.link_efficiency,
            self.network_efficiency,
            self.layer_overhead_us,
        ]
    }

    pub(crate) fn with(values: [f64; 6], origin: Origin) -> Calibration {
        let [
            matmul_efficiency,
            matmul_half,
            memory_efficiency,
            link_efficiency,
            network_efficiency,
            layer_overhead_us,
        ] = values;
        Calibration {
            matmul_efficiency,
            matmul_half,
            memory_efficiency,
            link_efficiency,
            network_efficiency,
            layer_overhead_us,
            origin,
        }
    }

    /// What the planner knows of an accelerator without being told.
    #[must_use]
    pub fn of(accelerator: &Accelerator) -> Calibration {
        let of = Calibration::fitted_on(accelerator);
        let origin = if of == accelerator.name { Origin::Calibrated } else { Origin::Assumed };
        let values = match of {
            "a100" => A100,
            "v5p" => V5P,
            "v6e" => V6E,
            _ => H100,
        };
        Calibration::with(values, origin)
    }

    /// What is believed of a kind before any step is looked at; a fit starts from it.
    #[must_use]
    pub fn prior(accelerator: &Accelerator) -> Calibration {
        let values = if accelerator.is_tpu() { PRIOR_TPU } else { PRIOR_GPU };
        Calibration::with(values, Origin::Assumed)
    }

    /// The kind whose published steps the calibration of a kind was fitted to.
    #[must_use]
    pub fn fitted_on(accelerator: &Accelerator) -> &'static str {
        match accelerator.name {
            "a100" | "a100-40" => "a100",
            "v4" | "v5p" => "v5p",
            "v5e" | "v6e" | "v7x" => "v6e",
            _ => "h100",
        }
    }

    /// Every number with its name and where it comes from, and what the model takes for granted.
    #[must_use]
    pub fn terms(&self) -> Vec<(&'static str, String, Origin)> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        vec![
            ("peaks, memory and link bandwidths", "as published".to_owned(), Origin::Assumed),
            ("matrix products, share of peak", percent(self.matmul_efficiency), self.origin),
            ("matrix side at half of it", format!("{:.0}", self.matmul_half), self.origin),
            ("memory bandwidth, share", percent(self.memory_efficiency), self.origin),
            ("fast links, share", percent(self.link_efficiency), self.origin),
            ("network, share", percent(self.network_efficiency), self.origin),
            ("start of a layer's kernels", format!("{:.0} us", self.layer_overhead_us), self.origin),
            ("overlap of communication", "by program".to_owned(), Origin::Assumed),
            ("experts", "evenly loaded".to_owned(), Origin::Assumed),
            ("stragglers, input, checkpoints", "none".to_owned(), Origin::Assumed),
        ]
    }
}

const PRIOR_GPU: [f64; 6] = [0.8, 100.0, 0.8, 0.7, 0.7, 60.0];
const PRIOR_TPU: [f64; 6] = [0.8, 100.0, 0.8, 0.8, 0.8, 20.0];
// Found by `fit` over the published rows (`cargo run --release -p muster-parallel --example fit`); a test finds them
// again.
const A100: [f64; 6] = [0.8, 69.6, 0.95, 0.85, 0.351, 250.0];
const H100: [f64; 6] = [0.615, 108.9, 0.4, 0.85, 0.9, 40.4];
const V5P: [f64; 6] = [0.876, 100.0, 0.4, 0.8, 0.8, 20.0];
const V6E: [f64; 6] = [0.627, 99.0, 0.95, 0.3, 0.712, 20.0];
