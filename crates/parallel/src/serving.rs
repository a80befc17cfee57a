//! What serving a model takes: memory with its cache, and bounds on how fast it answers.
//!
//! Decoding is priced by the bytes that one token makes a device read and the operations that it needs, whichever is
//! longer, and prefill by its operations. No published step calibrates this: every time here is assumed, and a bound that
//! real servers stay above.

use serde::Serialize;

use crate::accelerator::Accelerator;
use crate::coefficients::{Calibration, Origin};
use crate::collective::Fabric;
use crate::config::SEQUENCE_MAX;
use crate::error::PlanError;
use crate::layout::Layout;
use crate::memory;
use crate::model::Model;

/// Share of a device's memory that a server uses.
const MEMORY_SHARE: f64 = 0.9;
/// What drivers and buffers take of a device, in bytes.
const RESERVE_BYTES: f64 = 3.5e9;
/// Share of the memory bandwidth that decoding reaches.
const BANDWIDTH_SHARE: f64 = 0.8;
/// Share of the peak that prefill reaches.
const PREFILL_SHARE: f64 = 0.5;
/// Most requests at once.
pub const REQUESTS_MAX: u64 = 1 << 20;

/// What is served.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The model.
    pub model: Model,
    /// On what.
    pub accelerator: Accelerator,
    /// Tokens of each request, prompt and answer.
    pub context: u64,
    /// Requests at once.
    pub requests: u64,
    /// Bytes of a parameter and of an element of the cache: 2 for bf16, 1 for fp8.
    pub bytes: u64,
}

/// One size of a server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Devices that share each matrix.
    pub tensor: u64,
    /// Parameters on a device, in bytes.
    pub parameters_bytes: f64,
    /// Cache of one token on a device, in bytes.
    pub cache_bytes_per_token: f64,
    /// Requests of this length that fit at once.
    pub requests_max: u64,
    /// Requests that the times are of.
    pub requests: u64,
    /// One step of decoding, in milliseconds.
    pub decode_ms: f64,
    /// Tokens a second that all requests get together.
    pub tokens_per_s: f64,
    /// A prompt as long as the context, alone, in milliseconds.
    pub prefill_ms: f64,
    /// Where the times come from.
    pub origin: Origin,
}

impl Serving {
    /// Sizes that hold the model and at least one request, the smallest first.
    ///
    /// # Errors
    /// If a size makes no sense, or if no domain of fast links holds the model.
    pub fn plan(&self) -> Result<Vec<Server>, PlanError> {
        for (option, value, max) in [
            ("context", self.context, SEQUENCE_MAX),
            ("requests", self.requests, REQUESTS_MAX),
            ("bytes", self.bytes, 4),
        ] {
            if !(1..=max).contains(&value) {
                return Err(PlanError::BadOption {
                    option,
                    value: value.to_string(),
                    expected: format!("from 1 to {max}"),
                });
            }
        }
        let largest = self.accelerator.tensor_max();
        let servers: Vec<Server> = (0..)
            .map(|exponent| 1_u64 << exponent)
            .take_while(|tensor| *tensor <= largest)
            .filter(|tensor| self.model.heads.is_multiple_of(*tensor))
            .filter_map(|tensor| self.server(tensor))
            .collect();
        if servers.is_empty() {
            let gib = |bytes: f64| bytes / (1_u64 << 30) as f64;
            let weights = self.model.parameters().total as f64 * self.bytes as f64;
            return Err(PlanError::FitsNowhere {
                text: format!(
                    "parameters of {:.0} GiB and a request of {} tokens fit into no {} {}, the most that fast links \
                     join; the cheapest change that helps: {}",
                    gib(weights),
                    self.context,
                    largest,
                    self.accelerator.name,
                    if self.bytes > 1 {
                        "fp8 parameters (--bytes 1)"
                    } else {
                        "an accelerator with more memory"
                    },
                ),
            });
        }
        Ok(servers)
    }

    fn server(&self, tensor: u64) -> Option<Server> {
        let model = &self.model;
        // Experts lie whole on the devices that share them.
        let expert =
            if model.experts.as_ref().is_some_and(|e| e.count.is_multiple_of(tensor)) { tensor } else { 1 };
        let layout = Layout { tensor, expert, ..Layout::ONE };
        let unit = self.bytes as f64;
        let share = memory::layer_share(model, &layout);
        let parts = model.parameters();
        let dense = model.dense_layers() as f64;
        let sparse = model.layers as f64 - dense;
        let ends = (parts.embedding + parts.output + parts.last_norm) as f64 / tensor as f64;
        let parameters = unit * (dense * share.dense + sparse * (share.sparse + share.experts) + ends);
        // A compressed cache is whole on every device; heads are split as far as there are any.
        let split = match model.attention {
            crate::model::Attention::Standard { kv_heads, .. } => kv_heads.min(tensor),
            crate::model::Attention::Latent { .. } => 1,
        };
        let cache = unit * (model.layers * model.cache_width()) as f64 / split as f64;
        let free = self.accelerator.memory_bytes as f64 * MEMORY_SHARE - parameters - RESERVE_BYTES;
        let requests_max = (free / (cache * self.context as f64)).floor();
        if requests_max < 1.0 {
            return None;
        }
        let requests = self.requests.min(requests_max as u64);
        let active = parts.active as f64 / parts.total as f64;
        // Many requests at once meet all experts; one meets only its own.
        let met = (active * requests as f64).min(1.0).max(active);
        let read = parameters * met + requests as f64 * self.context as f64 * cache;
        let peak = self.accelerator.peak_per_us(self.bytes == 1) * tensor as f64;
        let flops = model.forward_flops_per_token(self.context);
        let computing = requests as f64 * flops / (peak * PREFILL_SHARE);
        let reading = read / (self.accelerator.memory_gbs * 1e3 * BANDWIDTH_SHARE);
        let fabric = Fabric::new(&self.accelerator, &Calibration::of(&self.accelerator), tensor);
        let group = fabric.group(tensor, 1);
        let state = |tokens: f64| tokens * model.hidden as f64 * 2.0;
        let sums = |tokens: f64| 2.0 * model.layers as f64 * fabric.reduce_us(state(tokens), group);
        let prefill =
            self.context as f64 * model.forward_flops_per_token(self.context / 2) / (peak * PREFILL_SHARE);
        let decode_us = reading.max(computing);
        Some(Server {
            tensor,
            parameters_bytes: parameters,
            cache_bytes_per_token: cache,
            requests_max: requests_max as u64,
            requests,
            decode_ms: decode_us / 1e3,
            tokens_per_s: requests as f64 / decode_us * 1e6,
            prefill_ms: (prefill + sums(self.context as f64)) / 1e3,
            origin: Origin::Assumed,
        })
    }
}
