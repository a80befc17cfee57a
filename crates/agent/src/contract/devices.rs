//! Which devices a worker sees.
//!
//! `CUDA_VISIBLE_DEVICES` (CUDA C Programming Guide, "CUDA Environment Variables"), `ROCR_VISIBLE_DEVICES`
//! (ROCm, "GPU isolation techniques"), `TPU_VISIBLE_CHIPS` (libtpu; jax and Ray set it the same way).
//! Under the `environment` form, where every worker of the gang on this node has one device, each sees the
//! devices of all of them in local-rank order, as under torchrun: programs select device `LOCAL_RANK`, and
//! peer access needs the peers visible. Otherwise a worker sees its own devices only. TPU chips are
//! always its own.
//!
//! Where a worker cannot open the other devices of its host, CUDA and ROCm count those that are left: the numbers are then
//! among the worker's own, from 0, as in a container or under Slurm's `ConstrainDevices`. `libtpu` counts the chips of the host.
//!
//! A worker with a share of a device sees that device, `MUSTER_DEVICE_SHARE_MILLI`, and on NVIDIA
//! `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` (CUDA Multi-Process Service, "Environment Variables"). Nothing but an MPS server
//! holds it to that share, and nothing holds it to a part of the device's memory.

use super::{Form, Local, NodeContext, Pairs, comma, pairs};
use crate::rules::{DEVICE_MILLI, Launch, Placement};

/// What a type of accelerator is driven by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// CUDA.
    Nvidia,
    /// ROCm.
    Amd,
    /// libtpu.
    Tpu,
    /// No variable is known to select its devices.
    Other,
}

/// The family of an accelerator type, by its name: `v4`, `v5p`, `v5litepod`, `7x` and `tpu…` are TPUs, `mi…` is
/// AMD, and NVIDIA's names begin with a letter of an architecture and a number (`a100`, `gb200`, `l40s`, `rtx…`).
#[must_use]
pub fn family(accelerator_type: &str) -> Family {
    let name = accelerator_type;
    let digits_after = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // v100 is Volta; TPU generations have one digit.
    if name == "v100" {
        return Family::Nvidia;
    }
    if digits_after("v") || name == "7x" || name.starts_with("tpu") {
        return Family::Tpu;
    }
    if digits_after("mi") {
        return Family::Amd;
    }
    let nvidia = ["a", "b", "h", "l", "p", "t", "gb", "gh", "rtx", "k"];
    if nvidia.iter().any(|prefix| digits_after(prefix)) || name.starts_with("rtx") || name == "nvidia" {
        return Family::Nvidia;
    }
    Family::Other
}

/// Whether every worker of the gang on this node has one device and sees those of all of them.
fn is_one_each(placement: &Placement, worker: &Launch, local: Local) -> bool {
    placement.form == Form::Environment
        && placement.workers.iter().all(|w| w.device_milli == DEVICE_MILLI)
        && placement.workers.iter().all(|w| w.devices.count() == 1)
        && placement.workers.len() == local.world_size
        && matches!(family(&worker.accelerator_type), Family::Nvidia | Family::Amd)
}

/// The devices that a worker sees, in the order in which it does.
pub(super) fn seen(placement: &Placement, worker: &Launch, local: Local) -> Vec<u16> {
    if is_one_each(placement, worker, local) {
        placement.workers.iter().flat_map(|w| w.devices.iter()).collect()
    } else {
        worker.devices.iter().collect()
    }
}

/// `JAX_LOCAL_DEVICE_IDS` (numbers among the visible devices) and the variables of visibility.
pub(super) fn visible(
    placement: &Placement,
    worker: &Launch,
    local: Local,
    here: &NodeContext<'_>,
) -> (Option<String>, Pairs) {
    if worker.devices.is_empty() {
        // A worker that asked for no device must not find the node's.
        let hidden = match family(here.node_accelerator) {
            Family::Nvidia => pairs([("CUDA_VISIBLE_DEVICES", String::new())]),
            Family::Amd => pairs([("ROCR_VISIBLE_DEVICES", "-1".to_owned())]),
            Family::Tpu | Family::Other => Vec::new(),
        };
        return (None, hidden);
    }
    let kind = family(&worker.accelerator_type);
    let seen = seen(placement, worker, local);
    let ids = if is_one_each(placement, worker, local) { comma([local.rank]) } else { comma(0..seen.len()) };
    // Those that cannot be opened are not counted by the driver's libraries: the rest have other numbers.
    let visible = if here.hides_devices && matches!(kind, Family::Nvidia | Family::Amd) {
        comma(seen.iter().map(|device| seen.iter().filter(|other| *other < device).count()))
    } else {
        comma(seen)
    };
    let mut variables = match kind {
        // Device numbers are in the order of the PCI bus, as discovery and nvidia-smi have them.
        Family::Nvidia => {
            pairs([("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()), ("CUDA_VISIBLE_DEVICES", visible)])
        }
        Family::Amd => pairs([("ROCR_VISIBLE_DEVICES", visible)]),
        Family::Tpu => pairs([("TPU_VISIBLE_CHIPS", visible)]),
        Family::Other => Vec::new(),
    };
    if worker.device_milli < DEVICE_MILLI {
        variables.extend(pairs([("MUSTER_DEVICE_SHARE_MILLI", worker.device_milli.to_string())]));
        if kind == Family::Nvidia {
            // What a client of the MPS server may use of the processors; where none runs nobody reads it.
            let percent = worker.device_milli.div_ceil(DEVICE_MILLI / 100);
            variables.extend(pairs([("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string())]));
        }
    }
    (Some(ids), variables)
}
