//! Jobs: what they wait for, what they hold, and which of their work is not known to be kept or lost yet.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Outcome, StopCause};
use muster_journal::{RearrangeCause, WorkerSlot};
use muster_state::{JobRow, Phase, State};
use muster_types::{FailureClass, JobId, JobSpec, LogTime, NodeId, PriorityTier};
use serde::{Deserialize, Serialize};

use crate::activity::{Activity, LossCause, UnplacedReason, WaitReason};
use crate::charges::{ChargeKey, Charges, DemandKey, Owner, Piece, WaitKey};
use crate::demand::Shape;

/// What a job waits for. The times of one that is not released pass without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Waits {
    Held,
    Unreleased { not_before: Option<LogTime>, backoff: Option<LogTime>, has_dependencies: bool },
    Throttled,
    Eligible(Option<UnplacedReason>),
    Assembling,
}

impl Waits {
    /// Of a job that is not placed.
    fn of(state: &State, id: JobId, row: &JobRow, spec: &JobSpec) -> Waits {
        if row.promise.is_some() {
            Waits::Assembling
        } else if row.held {
            Waits::Held
        } else if row.released {
            Waits::Eligible(None)
        } else {
            let backoff = state.recovery(id).and_then(|row| row.wait_until);
            Waits::unreleased(spec, backoff)
        }
    }

    /// Of a job or an array that has not been released.
    pub(crate) fn unreleased(spec: &JobSpec, backoff: Option<LogTime>) -> Waits {
        // A job that has failed had no dependencies left when it was placed.
        let has_dependencies = backoff.is_none() && !spec.dependencies.is_empty();
        Waits::Unreleased { not_before: spec.not_before, backoff, has_dependencies }
    }

    /// Whether it could start if there were capacity.
    pub(crate) fn is_eligible(&self) -> bool {
        matches!(self, Waits::Eligible(_))
    }

    /// A span, cut where the reason changes.
    pub(crate) fn spans(&self, from: LogTime, until: LogTime) -> Vec<(WaitReason, LogTime, LogTime)> {
        let one = |reason| alloc::vec![(reason, from, until)];
        let (not_before, backoff, has_dependencies) = match *self {
            Waits::Held => return one(WaitReason::Held),
            Waits::Throttled => return one(WaitReason::Throttled),
            Waits::Eligible(reason) => return one(WaitReason::Waiting(reason)),
            Waits::Assembling => return one(WaitReason::Assembling),
            Waits::Unreleased { not_before, backoff, has_dependencies } => {
                (not_before, backoff, has_dependencies)
            }
        };
        let mut spans = Vec::new();
        let mut next = from;
        for (time, reason) in [(not_before, WaitReason::NotBefore), (backoff, WaitReason::Backoff)] {
            let stop = time.map_or(next, |time| time.min(until)).max(next);
            if stop > next {
                spans.push((reason, next, stop));
                next = stop;
            }
        }
        // Behind its times it waits for others, or for the record that releases it.
        let rest = match (has_dependencies, backoff) {
            (true, _) => WaitReason::Dependencies,
            (false, Some(_)) => WaitReason::Backoff,
            (false, None) => WaitReason::NotBefore,
        };
        if until > next {
            spans.push((rest, next, until));
        }
        spans
    }
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Waiting(Waits),
    Starting,
    Running,
    Stopping,
}

/// What became of the work since the last checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Kept,
    Lost(LossCause),
}

/// What a job that was placed holds and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Thousandths that its workers hold, by pool.
    pub(crate) held: Vec<(u32, u64)>,
    /// Thousandths that are kept as its spares.
    pub(crate) spares: Vec<(u32, u64)>,
    /// Work since the last checkpoint.
    pub(crate) work: Vec<Piece>,
    /// Time of the workers since they were told to stop.
    pub(crate) stopping: Vec<Piece>,
    /// Everything that was decided, over all attempts.
    pub(crate) totals: BTreeMap<Activity, u128>,
}

/// A job that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Where jobs are kept apart.
    pub(crate) id: Option<JobId>,
    pub(crate) tenant: u32,
    pub(crate) tier: PriorityTier,
    pub(crate) label: u32,
    pub(crate) shape: Arc<Shape>,
    /// Thousandths of devices that it asks for.
    pub(crate) milli: u64,
    pub(crate) since: LogTime,
    pub(crate) mode: Mode,
    /// Milliseconds by reason.
    pub(crate) waited: Vec<(WaitReason, u64)>,
    pub(crate) run: Option<Box<Run>>,
}

/// Adds to the entry of a reason.
pub(crate) fn add_wait(waited: &mut Vec<(WaitReason, u64)>, reason: WaitReason, ms: u64) {
    match waited.iter_mut().find(|(known, _)| *known == reason) {
        _ if ms == 0 => {}
        Some((_, sum)) => *sum = sum.saturating_add(ms),
        None => {
            waited.push((reason, ms));
            waited.sort_unstable_by_key(|(reason, _)| *reason);
        }
    }
}

impl Job {
    pub(crate) fn owner(&self) -> Owner {
        Some((self.tenant, self.tier, self.id))
    }

    fn wait_key(&self, reason: WaitReason) -> WaitKey {
        WaitKey { day: 0, tenant: self.tenant, tier: self.tier, label: self.label, reason }
    }

    fn demand_key(&self) -> DemandKey {
        DemandKey { day: 0, tenant: self.tenant, tier: self.tier, label: self.label, job: self.id }
    }

    /// Charges everything up to a time, as far as it is decided what it was.
    pub(crate) fn flush(&mut self, now: LogTime, charges: &mut Charges) {
        let (span, owner) = ((self.since, now), self.owner());
        self.since = now;
        match self.mode {
            Mode::Waiting(waits) => {
                for (reason, from, until) in waits.spans(span.0, now) {
                    let ms = charges.wait(from, until, 1, self.wait_key(reason));
                    add_wait(&mut self.waited, reason, ms);
                    if reason.is_demand() {
                        charges.demand(from, until, self.milli, self.demand_key());
                    }
                }
            }
            Mode::Starting => {
                let ms = charges.wait(span.0, now, 1, self.wait_key(WaitReason::Starting));
                add_wait(&mut self.waited, WaitReason::Starting, ms);
            }
            Mode::Running | Mode::Stopping => {}
        }
        let Some(run) = &mut self.run else { return };
        for (pool, milli) in &run.held {
            match self.mode {
                Mode::Starting => {
                    let sum = charges.charge(span, *milli, (*pool, owner, Activity::Starting));
                    total(&mut run.totals, Activity::Starting, sum);
                }
                Mode::Running => charges.put(span, *pool, *milli, &mut run.work),
                // Nothing is held by a job that waits.
                Mode::Stopping | Mode::Waiting(_) => charges.put(span, *pool, *milli, &mut run.stopping),
            }
        }
        for (pool, milli) in &run.spares {
            let sum = charges.charge(span, *milli, (*pool, owner, Activity::Spare));
            total(&mut run.totals, Activity::Spare, sum);
        }
    }

    /// Decides what the work since the last checkpoint was. A checkpoint that is committed while the gang is being stopped
    /// says what the time until then was for.
    pub(crate) fn settle(&mut self, settlement: Settlement, is_checkpoint: bool, charges: &mut Charges) {
        let owner = self.owner();
        let Some(run) = &mut self.run else { return };
        let of_work = match settlement {
            Settlement::Kept => Activity::Kept,
            Settlement::Lost(cause) => Activity::Lost(cause),
        };
        let of_stop = if is_checkpoint { Activity::Checkpointing } else { Activity::Stopping };
        for (pieces, activity) in [(&mut run.work, of_work), (&mut run.stopping, of_stop)] {
            for Piece { day, period, pool, milli_ms } in pieces.drain(..) {
                charges.add(ChargeKey { day, period, pool, owner, activity }, milli_ms);
                total(&mut run.totals, activity, milli_ms);
            }
        }
    }

    /// Takes what its workers and spares hold from the state. `pool` says where a node is.
    pub(crate) fn hold(&mut self, state: &State, id: JobId, pool: impl Fn(NodeId) -> Option<u32>) {
        let (held, spares) = holdings(state, id, pool);
        if held.is_empty() && spares.is_empty() && self.run.is_none() {
            return;
        }
        let run = self.run.get_or_insert_default();
        (run.held, run.spares) = (held, spares);
    }

    /// Some workers are over.
    pub(crate) fn free(&mut self, freed: &[(u32, u64)]) {
        let Some(run) = &mut self.run else { return };
        for (pool, milli) in freed {
            if let Some((_, held)) = run.held.iter_mut().find(|(known, _)| known == pool) {
                *held = held.saturating_sub(*milli);
            }
        }
        run.held.retain(|(_, milli)| *milli > 0);
    }
}

fn total(totals: &mut BTreeMap<Activity, u128>, activity: Activity, milli_ms: u128) {
    if milli_ms > 0 {
        *totals.entry(activity).or_default() += milli_ms;
    }
}

/// What a job is doing, by the state; none when it is over.
pub(crate) fn mode_of(state: &State, id: JobId, row: &JobRow, spec: &JobSpec) -> Option<Mode> {
    Some(match &row.phase {
        Phase::Pending => Mode::Waiting(Waits::of(state, id, row, spec)),
        Phase::Starting => Mode::Starting,
        Phase::Running => Mode::Running,
        Phase::Stopping(_) => Mode::Stopping,
        Phase::Finished(_) => return None,
    })
}

/// Thousandths of a worker's devices, of a gang that has this many workers.
pub(crate) fn milli_of(spec: &JobSpec, place: usize, workers: usize) -> u64 {
    let group = u32::try_from(place).ok().and_then(|place| spec.group_of_slot(place, workers));
    group.map_or(0, |group| group.request.device_milli())
}

type Amounts = Vec<(u32, u64)>;

fn holdings(state: &State, id: JobId, pool: impl Fn(NodeId) -> Option<u32>) -> (Amounts, Amounts) {
    let (mut held, mut spares) = (Amounts::new(), Amounts::new());
    let (Some(row), Some(spec)) = (state.job(id), state.spec(id)) else { return (held, spares) };
    let add = |amounts: &mut Amounts, slot: &WorkerSlot, milli: u64| {
        let Some(pool) = pool(slot.node).filter(|_| milli > 0) else { return };
        match amounts.iter_mut().find(|(known, _)| *known == pool) {
            Some((_, sum)) => *sum += milli,
            None => amounts.push((pool, milli)),
        }
    };
    if let Some(placement) = row.placement.as_ref().filter(|placement| placement.live > 0) {
        let live = placement.slots.iter().zip(&placement.ranks).enumerate();
        for (rank, (slot, _)) in live.filter(|(_, (_, rank))| !rank.is_over()) {
            add(&mut held, slot, milli_of(spec, rank, placement.slots.len()));
        }
    }
    // Every spare is like a worker of the first group.
    for slot in state.spares(id) {
        add(&mut spares, slot, milli_of(spec, 0, 1));
    }
    (held, spares)
}

/// What becomes of the work of a job that waits again.
pub(crate) fn requeued(state: &State, id: JobId) -> Settlement {
    Settlement::Lost(loss(state, id, LossCause::Requeued))
}

/// What becomes of the work of a job that is over.
pub(crate) fn finished(state: &State, id: JobId, outcome: &Outcome) -> Settlement {
    match outcome {
        Outcome::Succeeded => Settlement::Kept,
        Outcome::Failed { .. } => Settlement::Lost(loss(state, id, LossCause::Application)),
        Outcome::Cancelled => Settlement::Lost(loss(state, id, LossCause::Cancelled)),
    }
}

/// Why the attempt of a job ends: what was decided about it, and for failures what was found.
fn loss(state: &State, id: JobId, otherwise: LossCause) -> LossCause {
    let Some(row) = state.job(id) else { return otherwise };
    let Phase::Stopping(cause) = &row.phase else { return otherwise };
    let token = row.placement.as_ref().map(|placement| placement.token);
    let last = state.recovery(id).and_then(|row| row.last.as_ref());
    let found = last.filter(|last| Some(last.token) == token).map(|last| of_class(last.class));
    match cause {
        StopCause::Cancelled => LossCause::Cancelled,
        StopCause::RunTimeLimit | StopCause::Deadline => LossCause::TimeLimit,
        StopCause::Requested { .. } => LossCause::Requeued,
        StopCause::Rearranged(RearrangeCause::Preempted { .. }) => LossCause::Preempted,
        StopCause::Rearranged(RearrangeCause::Moved { .. }) => LossCause::Moved,
        StopCause::Rearranged(RearrangeCause::Resized) => LossCause::Resized,
        StopCause::Rearranged(RearrangeCause::Drained { .. }) => LossCause::Drained,
        StopCause::WorkerFailed { .. } => found.unwrap_or(LossCause::Application),
        StopCause::Evicted { .. } => found.unwrap_or(LossCause::NodeLost),
        StopCause::Fault { class, .. } => found.unwrap_or(of_class(*class)),
    }
}

fn of_class(class: FailureClass) -> LossCause {
    match class {
        FailureClass::Application | FailureClass::OutOfMemory | FailureClass::LaunchFailed => {
            LossCause::Application
        }
        FailureClass::NodeFault => LossCause::NodeFault,
        FailureClass::Preflight => LossCause::Network,
        FailureClass::Preempted => LossCause::Preempted,
        FailureClass::Evicted => LossCause::Drained,
        FailureClass::Lost => LossCause::NodeLost,
        FailureClass::BackendLost => LossCause::Backend,
    }
}
