//! What one side comes to: the record, or a replay. All are counted in the same way.

use std::collections::BTreeMap;

use muster_journal::Outcome;
use muster_state::{NodeStatus, Phase, State};
use muster_types::{JobId, LogTime, Name, PriorityTier};
use serde::Serialize;

use crate::driver::{Happened, StopKind};
use crate::whatif::Range;

/// How long jobs waited from their submission to their first placement. A job that ended before it was ever placed counts with
/// its wait until then, and one that still waits when the range ends with its wait until the end: so a job that waits on one
/// side counts there as it does on a side where it starts. Members of arrays that ended before they became jobs do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waits {
    /// How many jobs.
    pub jobs: u64,
    /// Median, in milliseconds.
    pub p50_ms: u64,
    /// 90th percentile, in milliseconds.
    pub p90_ms: u64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: u64,
}

/// The waits of one tenant's jobs of one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantWaits {
    /// The tenant, without those below it.
    pub tenant: String,
    /// The tier.
    pub tier: &'static str,
    /// How long they waited.
    #[serde(flatten)]
    pub waits: Waits,
}

/// How much of the accelerators of one type was held by jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeUse {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Accelerator-seconds of the nodes whose session stood.
    pub capacity_seconds: u64,
    /// Accelerator-seconds that placed gangs held.
    pub held_seconds: u64,
    /// Held of capacity, in millionths.
    pub utilisation_ppm: u64,
}

/// The figures of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// Jobs submitted in the range, members of arrays counted.
    pub submitted: u64,
    /// Of those, the ones that the scheduler did not take.
    pub refused: u64,
    /// Jobs placed for the first time.
    pub started: u64,
    /// Jobs that succeeded.
    pub finished: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that hold devices when the range ends.
    pub running: u64,
    /// Jobs that have never started when the range ends.
    pub waiting: u64,
    /// Times that a gang was preempted for another job.
    pub preemptions: u64,
    /// Jobs that were not done by their deadline.
    pub deadline_misses: u64,
    /// Attempts whose run time is an estimate, because the log does not contain their end; 0 for the record.
    pub estimated_runs: u64,
    /// Inputs that had no effect, such as a cancellation of a job that is over; 0 for the record.
    pub inputs_without_effect: u64,
    /// Jobs that were submitted without the booking that they name, because the replay does not have it for them; 0 for the record.
    pub without_booking: u64,
    /// Waits of all jobs.
    pub waits: Waits,
    /// Waits by tenant and tier.
    pub by_tenant: Vec<TenantWaits>,
    /// Use by type of accelerator.
    pub types: Vec<TypeUse>,
}

/// Accelerators of one type, in thousandths and in thousandths times milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    capacity_now: u64,
    held_now: u64,
    capacity: u128,
    held: u128,
}

/// Counts what happens in a range.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    now: LogTime,
    uses: BTreeMap<Name, Use>,
    /// What gangs hold: thousandths of accelerators by type.
    holding: BTreeMap<JobId, Vec<(Name, u64)>>,
    /// Waits in milliseconds, and how many jobs waited as long.
    waits: BTreeMap<(Name, PriorityTier), Vec<(u64, u64)>>,
    pub(super) side: Side,
}

impl Meter {
    /// Begins with a state, at the beginning of a range.
    pub(super) fn begin(state: &State, range: Range) -> Meter {
        let mut meter = Meter {
            now: range.from,
            uses: BTreeMap::new(),
            holding: BTreeMap::new(),
            waits: BTreeMap::new(),
            side: Side::default(),
        };
        meter.fleet(state);
        for job in state.active() {
            meter.hold(state, job);
        }
        meter
    }

    /// Time passes in which nothing changes.
    pub(super) fn advance(&mut self, to: LogTime) {
        let ms = u128::from(to.since_ms(self.now));
        self.now = self.now.max(to);
        for kind in self.uses.values_mut() {
            kind.capacity += u128::from(kind.capacity_now) * ms;
            kind.held += u128::from(kind.held_now) * ms;
        }
    }

    /// Sessions of nodes have begun or ended.
    pub(super) fn fleet(&mut self, state: &State) {
        self.uses.values_mut().for_each(|kind| kind.capacity_now = 0);
        for (_, row) in state.nodes().iter().filter(|(_, row)| row.status == NodeStatus::Up) {
            if let Some(has) = &row.spec.accelerators {
                self.uses.entry(has.kind.clone()).or_default().capacity_now += u64::from(has.count) * 1_000;
            }
        }
    }

    /// What the scheduler decided; the state has it.
    pub(super) fn follow(&mut self, state: &State, happened: Happened) {
        match happened {
            Happened::Placed(job) => {
                self.hold(state, job);
                let first = state.job(job).filter(|row| row.attempt == 1).zip(state.spec(job));
                if let Some((row, spec)) = first {
                    self.side.started += 1;
                    let wait_ms = self.now.since_ms(row.submitted_at);
                    self.wait(&spec.tenant, spec.tier, wait_ms, 1);
                }
            }
            Happened::MustStop { why, .. } => {
                self.side.preemptions += u64::from(why == StopKind::Preempted);
            }
            Happened::Requeued(job) => self.release(job),
            Happened::Finished { job, .. } => {
                self.release(job);
                self.finish(state, job);
            }
        }
    }

    fn finish(&mut self, state: &State, job: JobId) {
        let Some((row, spec)) = state.job(job).zip(state.spec(job)) else { return };
        if row.attempt == 0 {
            self.wait(&spec.tenant, spec.tier, self.now.since_ms(row.submitted_at), 1);
        }
        let is_late = spec.deadline.is_some_and(|deadline| deadline <= self.now);
        match &row.phase {
            Phase::Finished(Outcome::Succeeded) => self.side.finished += 1,
            Phase::Finished(Outcome::Cancelled) => {
                self.side.cancelled += 1;
                return;
            }
            _ => self.side.failed += 1,
        }
        self.side.deadline_misses += u64::from(is_late);
    }

    fn hold(&mut self, state: &State, job: JobId) {
        let Some(placement) = state.job(job).and_then(|row| row.placement.as_ref()) else { return };
        self.release(job);
        for (kind, milli) in &placement.charge.devices_milli {
            self.uses.entry(kind.clone()).or_default().held_now += milli;
        }
        self.holding.insert(job, placement.charge.devices_milli.clone());
    }

    fn release(&mut self, job: JobId) {
        for (kind, milli) in self.holding.remove(&job).unwrap_or_default() {
            let kind = self.uses.entry(kind).or_default();
            kind.held_now = kind.held_now.saturating_sub(milli);
        }
    }

    fn wait(&mut self, tenant: &Name, tier: PriorityTier, wait_ms: u64, jobs: u64) {
        self.waits.entry((tenant.clone(), tier)).or_default().push((wait_ms, jobs));
    }

    /// The figures at the end of the range.
    pub(super) fn close(mut self, state: &State, to: LogTime) -> Side {
        self.advance(to);
        for (job, row) in state.jobs().iter() {
            match (&row.phase, state.spec(*job)) {
                (Phase::Pending, Some(spec)) if row.attempt == 0 => {
                    self.side.waiting += 1;
                    self.wait(&spec.tenant, spec.tier, to.since_ms(row.submitted_at), 1);
                }
                (Phase::Starting | Phase::Running | Phase::Stopping(_), _) => self.side.running += 1,
                _ => {}
            }
        }
        // Members of arrays that are not jobs yet wait as well.
        for (_, row) in state.arrays().iter().filter(|(_, row)| row.uncreated > 0) {
            let spec = &row.template.spec;
            self.side.waiting += u64::from(row.uncreated);
            self.wait(&spec.tenant, spec.tier, to.since_ms(row.submitted_at), row.uncreated.into());
        }
        let mut all: Vec<(u64, u64)> = self.waits.values().flatten().copied().collect();
        self.side.waits = waits_of(&mut all);
        let rows = self.waits.iter_mut().map(|((tenant, tier), waits)| TenantWaits {
            tenant: tenant.to_string(),
            tier: tier.as_str(),
            waits: waits_of(waits),
        });
        self.side.by_tenant = rows.collect();
        self.side.types = self.uses.iter().map(|(kind, sum)| type_use(kind, sum)).collect();
        self.side
    }
}

fn type_use(kind: &Name, sum: &Use) -> TypeUse {
    let seconds = |milli_ms: u128| u64::try_from(milli_ms / 1_000_000).unwrap_or(u64::MAX);
    let ppm = (sum.held * 1_000_000).checked_div(sum.capacity).unwrap_or(0);
    TypeUse {
        kind: kind.to_string(),
        capacity_seconds: seconds(sum.capacity),
        held_seconds: seconds(sum.held),
        utilisation_ppm: u64::try_from(ppm).unwrap_or(u64::MAX),
    }
}

/// Percentiles by nearest rank, of waits with their numbers of jobs.
fn waits_of(waits: &mut [(u64, u64)]) -> Waits {
    waits.sort_unstable();
    let jobs: u64 = waits.iter().map(|(_, jobs)| jobs).sum();
    let at = |percent: u64| {
        let rank = (u128::from(jobs) * u128::from(percent)).div_ceil(100);
        let mut passed = 0u128;
        let found = waits.iter().find(|(_, jobs)| {
            passed += u128::from(*jobs);
            passed >= rank
        });
        found.map_or(0, |(ms, _)| *ms)
    };
    Waits { jobs, p50_ms: at(50), p90_ms: at(90), p99_ms: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_jobs_and_not_rows() {
        let mut waits = [(500, 1), (10, 98), (90, 1)];
        let found = waits_of(&mut waits);
        assert_eq!((found.jobs, found.p50_ms, found.p90_ms, found.p99_ms), (100, 10, 10, 90));
        assert_eq!(waits_of(&mut []), Waits::default());
    }
}
