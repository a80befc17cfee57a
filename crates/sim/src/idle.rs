//! Why accelerators are idle although jobs wait: what policy and planner say of the first requests in the pending queue, at
//! bounded moments of a log that is replayed.
//!
//! Between two moments the idle part of a type in a region is divided as it was at the last one.
//!
//! **Invariant:** no rule of scheduling is written here: each reason is that of [`muster_decider::explain_job`].
//! **Invariant:** what nobody was asked about stays unexplained, and the sums of the ledger stay as they are.

use std::collections::BTreeMap;

use muster_decider::{JobExplanation, KeptReservations, explain_job, queue_front_counted};
use muster_ledger::{Ledger, UnplacedPart, UnplacedPool, UnplacedReason};
use muster_planner::{ClusterReport, NodeCounts, WaitReason};
use muster_state::State;
use muster_types::{JobSpec, LogTime, Name, PriorityTier};

/// Requests that are asked about at one moment.
pub const REQUESTS_MAX: usize = 8;
/// Requests that are stepped over at one moment.
pub(crate) const STEPS_MAX: u64 = 10_000;
/// Jobs of one request that are counted.
const ALIKE_MAX: u64 = 10_000;

/// What was said of the idle part of a type in a region.
#[derive(Clone, Debug)]
struct Division {
    /// What was idle then, in thousandths.
    milli: u64,
    parts: Vec<UnplacedPart>,
}

/// Asks why jobs do not have what is idle, and tells a ledger.
#[derive(Clone, Debug)]
pub struct IdleReasons {
    interval_ms: u64,
    asked_at: Option<LogTime>,
    moments: u64,
    /// By type and region.
    said: BTreeMap<(Name, Name), Division>,
}

impl IdleReasons {
    /// Asks no two times within this many milliseconds of log time; 0 for behind each round.
    #[must_use]
    pub fn every(interval_ms: u64) -> IdleReasons {
        IdleReasons { interval_ms, asked_at: None, moments: 0, said: BTreeMap::new() }
    }

    /// At how many moments it has asked.
    #[must_use]
    pub fn moments(&self) -> u64 {
        self.moments
    }

    /// The least time between two of them, in milliseconds of log time.
    #[must_use]
    pub fn interval_ms(&self) -> u64 {
        self.interval_ms
    }

    /// Another ledger begins; nothing is known of what is before it.
    pub fn begin(&mut self) {
        self.asked_at = None;
        self.said.clear();
    }

    /// Looks at the state behind a round that the ledger has charged.
    pub fn look(&mut self, ledger: &mut Ledger, state: &State) {
        let pools = ledger.unplaced();
        self.said.retain(|(kind, region), _| {
            pools.iter().any(|pool| pool.kind == *kind && pool.region == *region)
        });
        if pools.is_empty() {
            return;
        }
        let now = state.log_time();
        if self.asked_at.is_none_or(|at| now.since_ms(at) >= self.interval_ms) {
            self.ask(ledger, state, &pools);
        } else {
            self.hold(ledger, &pools);
        }
    }

    fn ask(&mut self, ledger: &mut Ledger, state: &State, pools: &[UnplacedPool]) {
        let now = state.log_time();
        (self.asked_at, self.moments) = (Some(now), self.moments + 1);
        let front = queue_front_counted(state, now, (REQUESTS_MAX, STEPS_MAX), ALIKE_MAX);
        let is_all = !front.is_cut
            && front.requests.len() < REQUESTS_MAX
            && front.requests.iter().all(|request| request.alike < ALIKE_MAX)
            && !state.arrays().iter().any(|(_, row)| row.uncreated > 0);
        let asked = front.requests.iter().filter_map(|request| {
            let spec = state.spec(request.job)?;
            pools.iter().find(|pool| accepts(spec, pool))?;
            let why = explain_job(state, now, request.job, &KeptReservations::default())?;
            Some(Question { spec, alike: request.alike, why })
        });
        let asked: Vec<Question<'_>> = asked.collect();
        for pool in pools {
            let parts = parts_of(state, pool, &asked, is_all);
            ledger.explain_idle(&pool.kind, &pool.region, &parts);
            self.said.insert((pool.kind.clone(), pool.region.clone()), Division { milli: pool.milli, parts });
        }
    }

    /// What has changed since is divided as it was.
    fn hold(&self, ledger: &mut Ledger, pools: &[UnplacedPool]) {
        for pool in pools.iter().filter(|pool| !pool.is_explained) {
            if let Some(said) = self.said.get(&(pool.kind.clone(), pool.region.clone())) {
                ledger.explain_idle(&pool.kind, &pool.region, &said.of(pool.milli));
            }
        }
    }
}

impl Division {
    /// The same parts of another amount. What rounding leaves goes to the last one where all of it had reasons.
    fn of(&self, milli: u64) -> Vec<UnplacedPart> {
        let scaled = |part: &UnplacedPart| {
            let scaled = u128::from(part.milli) * u128::from(milli) / u128::from(self.milli.max(1));
            UnplacedPart { milli: u64::try_from(scaled).unwrap_or(u64::MAX), ..part.clone() }
        };
        let mut parts: Vec<UnplacedPart> = self.parts.iter().map(scaled).collect();
        let sum = |parts: &[UnplacedPart]| parts.iter().map(|part| part.milli).sum::<u64>();
        let rest = milli.saturating_sub(sum(&parts));
        if sum(&self.parts) == self.milli
            && let Some(last) = parts.last_mut()
        {
            last.milli += rest;
        }
        parts
    }
}

/// A request that was asked about.
struct Question<'a> {
    spec: &'a JobSpec,
    alike: u64,
    why: JobExplanation,
}

/// Whether a job may have the type in the region, whatever else keeps it from there.
fn accepts(spec: &JobSpec, pool: &UnplacedPool) -> bool {
    let is_in = spec.regions.is_empty() || spec.regions.contains(&pool.region);
    is_in && spec.least_milli_of(&pool.kind) > 0
}

/// What each request asks for has its reason, the first of them first; the rest is more than anybody asks for, or of requests
/// that were not asked about.
fn parts_of(state: &State, pool: &UnplacedPool, asked: &[Question<'_>], is_all: bool) -> Vec<UnplacedPart> {
    let mut parts: Vec<UnplacedPart> = Vec::new();
    let mut rest = pool.milli;
    for one in asked.iter().filter(|one| accepts(one.spec, pool)) {
        let Some(reason) = one.reason(pool) else { continue };
        let wanted = one.spec.least_milli_of(&pool.kind).saturating_mul(one.alike);
        let milli = rest.min(wanted);
        rest -= milli;
        let owner = Some(one.owner(state, reason));
        match parts.iter_mut().find(|part| part.reason == reason && part.owner == owner) {
            _ if milli == 0 => {}
            Some(part) => part.milli += milli,
            None => parts.push(UnplacedPart { reason, owner, milli }),
        }
    }
    if is_all && rest > 0 {
        parts.push(UnplacedPart { reason: UnplacedReason::Surplus, owner: None, milli: rest });
    }
    parts
}

/// Nodes that no free capacity would make fit.
fn mismatched(nodes: &NodeCounts) -> bool {
    nodes.fit == 0
        && nodes.wrong_labels + nodes.wrong_purchase + nodes.tainted + nodes.not_isolated + nodes.too_small
            > 0
}

/// The word of the ledger for why a job waits; none for one that would take nothing now. `is_mismatch` where no capacity would make
/// the nodes fit that are looked at.
fn reason_of(spec: &JobSpec, reason: WaitReason, is_mismatch: bool) -> Option<UnplacedReason> {
    Some(match reason {
        WaitReason::QuotaExceeded | WaitReason::TenantLimit | WaitReason::Licence => UnplacedReason::Quota,
        WaitReason::CheckpointNotReadable | WaitReason::Purchase | WaitReason::Affinity => {
            UnplacedReason::Constraint
        }
        WaitReason::BehindOtherGangs => UnplacedReason::Priority,
        // It takes nothing but the nodes of its booking, and the others are kept for nobody.
        WaitReason::Booked if spec.booking.is_some() => UnplacedReason::Constraint,
        WaitReason::Window | WaitReason::Booked | WaitReason::SpareHosts => UnplacedReason::Kept,
        WaitReason::InLine | WaitReason::MakingRoom => UnplacedReason::Turn,
        WaitReason::Held | WaitReason::NotBefore | WaitReason::Dependency | WaitReason::RetryBackoff => {
            return None;
        }
        _ if is_mismatch => UnplacedReason::NodeMismatch,
        WaitReason::Topology => UnplacedReason::Topology,
        WaitReason::Fragmented | WaitReason::SliceFragmented => UnplacedReason::Fragmentation,
        WaitReason::WaitingForCpu | WaitReason::WaitingForMemory => UnplacedReason::HostResources,
        WaitReason::NoClusterAllowed
        | WaitReason::NodesNotJoined
        | WaitReason::NoClusterLargeEnough
        | WaitReason::WaitingForNodes
        | WaitReason::WaitingForCapacity => UnplacedReason::TooFew,
    })
}

/// The same of all clusters together.
pub(crate) fn reason_anywhere(spec: &JobSpec, why: &JobExplanation) -> Option<UnplacedReason> {
    let clusters = &why.places.clusters;
    let is_mismatch = !clusters.is_empty() && clusters.iter().all(|report| mismatched(&report.nodes));
    reason_of(spec, why.reason, is_mismatch)
}

impl Question<'_> {
    /// Why it does not have what is idle there; none for one that would not take it now.
    fn reason(&self, pool: &UnplacedPool) -> Option<UnplacedReason> {
        let is_there = |report: &&ClusterReport| {
            report.region == pool.region && report.kind.as_ref() == Some(&pool.kind)
        };
        let mut reports = self.why.places.clusters.iter().filter(is_there).peekable();
        if reports.peek().is_none() {
            // It accepts the type and the region, and is not planned there: its checkpoints are elsewhere.
            return Some(UnplacedReason::Constraint);
        }
        reason_of(self.spec, self.why.reason, reports.all(|report| mismatched(&report.nodes)))
    }

    /// Whom the idle part is kept for, else whose job waits.
    fn owner(&self, state: &State, reason: UnplacedReason) -> (Name, PriorityTier) {
        let first = self.why.blockers.first().filter(|_| reason == UnplacedReason::Priority);
        let spec = first.and_then(|blocker| state.spec(blocker.job));
        let spec = spec.map_or(self.spec, |spec| &**spec);
        (spec.tenant.clone(), spec.tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(reason: UnplacedReason, milli: u64) -> UnplacedPart {
        UnplacedPart { reason, owner: None, milli }
    }

    #[test]
    fn another_amount_is_divided_as_the_first_was() {
        let parts = vec![part(UnplacedReason::Quota, 1_000), part(UnplacedReason::Surplus, 2_000)];
        let whole = Division { milli: 3_000, parts };
        let amounts =
            |said: &Division, milli| said.of(milli).iter().map(|part| part.milli).collect::<Vec<_>>();
        assert_eq!(amounts(&whole, 3_000), [1_000, 2_000]);
        assert_eq!(amounts(&whole, 8_000), [2_666, 5_334]);
        // What had no reason has none.
        let half = Division { milli: 4_000, parts: vec![part(UnplacedReason::Quota, 2_000)] };
        assert_eq!(amounts(&half, 1_000), [500]);
        assert_eq!(amounts(&half, 0), [0]);
    }
}
