//! Workers as the agent speaks of them: to the leader, to what runs them, and to themselves.

use muster_types::{DeviceSet, ExitStatus, FencingToken, ForeignLoad, JobId, StopReason, limits as bounds};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// One worker of one placement: the unit that is launched, stopped and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerKey {
    /// Its job.
    pub job: JobId,
    /// The placement.
    pub token: FencingToken,
    /// Its rank in the gang.
    pub rank: u32,
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.job, self.token, self.rank)
    }
}

/// The state of a worker, as the leader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerState {
    /// Which worker.
    pub key: WorkerKey,
    /// How it ended; none while it runs.
    pub exit: Option<ExitStatus>,
}

/// How many workers are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Being launched.
    pub launching: usize,
    /// Launched, and not told to stop.
    pub running: usize,
    /// Told to stop, and not ended.
    pub stopping: usize,
    /// Ended, and not acknowledged.
    pub ended: usize,
}

impl WorkerCounts {
    pub(super) fn of(has_ended: bool, is_stopping: bool, is_running: bool) -> WorkerCounts {
        let mut one = WorkerCounts::default();
        match (has_ended, is_stopping, is_running) {
            (true, ..) => one.ended = 1,
            (_, true, _) => one.stopping = 1,
            (_, _, true) => one.running = 1,
            _ => one.launching = 1,
        }
        one
    }

    /// The sum of these counts and the others, state by state.
    #[must_use]
    pub fn plus(self, other: WorkerCounts) -> WorkerCounts {
        WorkerCounts {
            launching: self.launching + other.launching,
            running: self.running + other.running,
            stopping: self.stopping + other.stopping,
            ended: self.ended + other.ended,
        }
    }
}

/// What a worker reports of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerEvent {
    /// Its work is saved.
    CheckpointCommitted {
        /// After this step; 0 where it does not state the step.
        step: u64,
    },
    /// It has completed a step.
    Step {
        /// Which one, from 1.
        number: u64,
        /// How long it took.
        duration_ms: u64,
    },
    /// It does what it was started for.
    Ready,
}

/// Which of a worker's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// As the protocol has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        }
    }
}

/// What an executor tells by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorEvent {
    /// The worker is launched.
    Running(WorkerKey),
    /// Nothing of the worker is left, and its end is on record for an agent that is restarted.
    Ended(WorkerKey, ExitStatus),
}

/// A worker found at the start of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Which one.
    pub key: WorkerKey,
    /// What it holds.
    pub devices: DeviceSet,
    /// How much of each, in thousandths.
    pub device_milli: u16,
    /// How it ended; none while it runs.
    pub exit: Option<ExitStatus>,
    /// The lease epoch it was started in.
    pub epoch: u64,
}

/// Which output is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRequest {
    /// Of which worker.
    pub key: WorkerKey,
    /// One of them or both.
    pub streams: Vec<OutputStream>,
    /// Go on until the worker has ended.
    pub follow: bool,
    /// Only this many last bytes of what is asked for; 0 for all.
    pub tail_bytes: u64,
    /// Bytes of output, of both streams, since the worker's start that are not wanted again; 0 for none.
    pub from_position: u64,
}

/// What others than Muster hold of a node, where another scheduler gives it out too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Nothing can be started there for now.
    pub closed: bool,
    /// How many devices.
    pub devices: u16,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
}

impl Foreign {
    /// As it is reported of a host with this many devices. Of devices only the number is known: those that count as theirs are
    /// ones that no worker here has, the same ones as before as long as that is so.
    pub(super) fn load(self, before: DeviceSet, held: DeviceSet, device_count: u16) -> ForeignLoad {
        let kept = before.iter().count() == usize::from(self.devices) && before.is_disjoint(held);
        let devices = if kept {
            before
        } else {
            let left: Vec<u16> = DeviceSet::first(device_count).difference(held).iter().collect();
            let theirs = left.into_iter().rev().take(usize::from(self.devices));
            theirs.fold(DeviceSet::EMPTY, |set, device| set.union(DeviceSet(1 << device)))
        };
        let Foreign { closed, cpu_milli, memory_bytes, .. } = self;
        ForeignLoad { closed, devices, cpu_milli, memory_bytes }
    }
}

/// How a worker is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// From SIGTERM or its like to SIGKILL.
    pub grace: Duration,
    /// What the worker is told of why; none where that is not known.
    pub reason: Option<StopReason>,
}

impl StopRequest {
    /// This one behind an earlier one: the shorter grace, and the reason that was told first.
    #[must_use]
    pub fn behind(self, earlier: Option<StopRequest>) -> StopRequest {
        let Some(earlier) = earlier else { return self };
        StopRequest { grace: self.grace.min(earlier.grace), reason: earlier.reason.or(self.reason) }
    }
}

impl From<Duration> for StopRequest {
    fn from(grace: Duration) -> StopRequest {
        StopRequest { grace, reason: None }
    }
}

/// A device that nobody else uses, in thousandths.
pub const DEVICE_MILLI: u16 = 1_000;

pub(crate) fn whole_device() -> u16 {
    DEVICE_MILLI
}

/// What workers hold of the devices of a host, in thousandths of each.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLoad([u32; bounds::HOST_DEVICES_MAX as usize]);

impl DeviceLoad {
    /// Nothing.
    pub const NONE: DeviceLoad = DeviceLoad([0; bounds::HOST_DEVICES_MAX as usize]);

    /// Adds a worker that holds so much of each of these.
    pub fn add(&mut self, devices: DeviceSet, milli: u16) {
        for device in devices.iter() {
            // A set has no other devices.
            if let Some(load) = self.0.get_mut(usize::from(device)) {
                *load = load.saturating_add(milli.into());
            }
        }
    }

    /// The first device that both together hold more than once.
    #[must_use]
    pub fn overfull(&self, other: &DeviceLoad) -> Option<u16> {
        let sums = self.0.iter().zip(other.0).zip(0u16..);
        let mut over = sums.filter(|((own, other), _)| **own > 0 && **own + *other > DEVICE_MILLI.into());
        over.next().map(|(_, device)| device)
    }
}

/// Cut to what an error text may have, at a character's edge.
#[must_use]
pub(crate) fn detail(text: &str) -> String {
    let mut end = text.len().min(bounds::DETAIL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_cut_at_a_character() {
        let text = "é".repeat(400);
        assert_eq!(detail(&text).len(), 512);
        assert_eq!(detail(&"aé".repeat(300)).len(), 511);
    }
}
