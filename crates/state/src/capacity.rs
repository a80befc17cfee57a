//! Nodes that may be taken away: how often they were, and what jobs take as a fallback.
//!
//! An interruption is the loss of a node that nobody here had asked for: its session ran out, and no operator had drained or
//! cordoned it, and it was not in quarantine or being repaired. A drain that follows from what its provider announced is nobody's
//! wish here. Where another holder takes over its name, it counts only if the end of the host that its provider had announced was
//! near: else the agent was started again. A recovery of the cluster is no interruption.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Bound;
use muster_journal::{Estimate, NodeLostCause};
use muster_types::health::DrainCause;
use muster_types::{JobId, LogTime, NodeId};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{CAPACITY_DAYS, CapacityKey, CapacityRow, RestrictionRow};
use crate::state::State;
use crate::verify::BrokenInvariant;

/// Most rows: what is new beyond them is not counted until others are forgotten.
pub const CAPACITY_ROWS_MAX: usize = 4_096;
/// The time of nodes in milliseconds from which on what was seen counts, and not what the policy states: ten days.
pub const CAPACITY_SEEN_MS_MIN: u64 = 10 * DAY_MS;

const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// How many nodes there are, and how often they are taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interruptions {
    /// Nodes whose session stands.
    pub nodes_up: u32,
    /// How many were, in the days that are kept.
    pub seen: u64,
    /// The time of nodes that this is counted against, in milliseconds.
    pub node_ms: u64,
    /// Thousandths of interruptions for each node and day; none where nobody knows.
    pub per_day_milli: Option<u32>,
    /// Whether that follows from what was seen, and not from the policy.
    pub is_measured: bool,
}

impl State {
    /// How often nodes like these are taken away.
    #[must_use]
    pub fn interruptions(&self, key: &CapacityKey, now: LogTime) -> Interruptions {
        let row = self.capacity.get(key);
        let nodes_up = row.map_or(0, |row| row.nodes_up);
        let (seen, node_ms) = row.map_or((0, 0), |row| row.seen(now));
        if node_ms >= CAPACITY_SEEN_MS_MIN {
            let milli = u128::from(seen) * 1_000 * u128::from(DAY_MS) / u128::from(node_ms);
            let per_day_milli = Some(u32::try_from(milli).unwrap_or(u32::MAX));
            return Interruptions { nodes_up, seen, node_ms, per_day_milli, is_measured: true };
        }
        let stated = self.policy.policy.stated_interruptions_milli(key.purchase, &key.region);
        Interruptions { nodes_up, seen, node_ms, per_day_milli: stated, is_measured: false }
    }

    /// Nodes of which something was seen.
    pub fn capacity_keys(&self) -> impl Iterator<Item = &CapacityKey> {
        self.capacity.iter().map(|(key, _)| key)
    }

    /// When a waiting job takes what it names as a fallback; none for one that names none, or that takes it already.
    #[must_use]
    pub fn fallback_due(&self, job: JobId) -> Option<LogTime> {
        let spec = self.specs.get(&job)?;
        let fallback = spec.capacity.as_deref()?.closed_fallback()?;
        // Before the time from which on it may start nothing could be had for it.
        let since = self.waits_since(job)?.max(spec.not_before.unwrap_or_default());
        Some(since.plus_ms(fallback.after_ms))
    }

    /// Jobs in the pending queue with a fallback that they do not take yet, by the earliest time at which they might.
    pub fn closed_fallbacks(&self) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.fallbacks.iter().copied()
    }

    /// The same behind one of them.
    pub fn closed_fallbacks_behind(&self, place: (LogTime, JobId)) -> impl Iterator<Item = (LogTime, JobId)> {
        self.indexes.fallbacks.range((Bound::Excluded(place), Bound::Unbounded)).copied()
    }

    pub(crate) fn check_fallback_opened(&self, job: JobId) -> Result<(), GuardError> {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let spec = self.specs.get(&job).ok_or(GuardError::JobUnknown)?;
        require(row.is_in_line() && !row.cancel_requested, GuardError::JobPhase)?;
        let has_one = spec.capacity.as_deref().is_some_and(|asked| asked.closed_fallback().is_some());
        require(has_one, GuardError::NothingToDo)
    }

    /// The job is one that takes more from here on, and has other answers than its like.
    pub(crate) fn fold_fallback_opened(&mut self, job: JobId) -> Vec<Effect> {
        let row = self.jobs.get(&job).expect("the guard has seen the job");
        let spec = self.specs.get(&job).and_then(|spec| spec.with_open_fallback());
        let spec = spec.expect("the guard has seen the fallback");
        let turn = self.burst_turn(job, row).map_or(row.estimate.turn, |(_, turn)| turn);
        let estimate = Estimate { turn, ..row.estimate };
        self.replace_spec(job, spec, estimate);
        vec![Effect::JobChanged(job)]
    }

    /// A node is about to be lost: counted where it is an interruption.
    pub(crate) fn count_interruption(&mut self, node: NodeId, cause: NodeLostCause) {
        let Some(row) = self.nodes.get(&node) else { return };
        let restriction = self.restrictions.get(&node);
        // A repair may reboot the node. A drain for maintenance follows from what the provider announced.
        let is_withdrawn = |row: &RestrictionRow| {
            let is_drained = row.drain.is_some_and(|drain| drain.cause != DrainCause::Maintenance);
            is_drained || row.quarantine.is_some() || row.repair.is_some()
        };
        let is_planned = row.cordoned || restriction.is_some_and(is_withdrawn);
        let now = self.meta.log_time;
        // An end that is announced for later says nothing of a loss before it.
        let is_announced = restriction.and_then(|row| row.health.maintenance_at).is_some_and(|at| {
            let lead_ms = self.health_policy().policy.maintenance_lead_ms;
            at.minus_ms(lead_ms) <= now
        });
        let is_one = match cause {
            NodeLostCause::LeaseExpired => !is_planned,
            NodeLostCause::Replaced => !is_planned && is_announced,
        };
        let Some(key) = CapacityKey::of(&row.spec).filter(|_| is_one) else { return };
        if let Some(mut row) = self.capacity.get(&key).cloned() {
            row.interrupt(now);
            self.capacity.insert(key, row);
        }
    }

    /// A node's session begins or ends, or the node is another from now on. With the keys go the nodes whose session stands.
    pub(crate) fn count_capacity(&mut self, before: Option<CapacityKey>, after: Option<CapacityKey>) {
        if before == after {
            return;
        }
        let now = self.meta.log_time;
        if let Some(key) = before
            && let Some(mut row) = self.capacity.get(&key).cloned()
        {
            row.count_to(now);
            row.nodes_up = row.nodes_up.saturating_sub(1);
            self.capacity.insert(key, row);
        }
        let Some(key) = after else { return };
        let row = self.capacity.get(&key).cloned();
        if row.is_none() && self.capacity.len() >= CAPACITY_ROWS_MAX {
            self.forget_capacity(now);
            if self.capacity.len() >= CAPACITY_ROWS_MAX {
                return;
            }
        }
        let mut row = row.unwrap_or(CapacityRow { counted_until: now, ..CapacityRow::default() });
        row.count_to(now);
        row.nodes_up = row.nodes_up.saturating_add(1);
        self.capacity.insert(key, row);
    }

    /// No row has more days than are kept, and each of them once.
    pub(crate) fn verify_capacity(&self) -> Result<(), BrokenInvariant> {
        for (key, row) in self.capacity.iter() {
            let is_right =
                row.days.len() as u64 <= CAPACITY_DAYS && row.days.is_sorted_by(|a, b| a.day < b.day);
            if !is_right || self.capacity.len() > CAPACITY_ROWS_MAX {
                let CapacityKey { region, purchase, .. } = key;
                return Err(BrokenInvariant(format!("more is kept of {purchase} in {region} than may be")));
            }
        }
        Ok(())
    }

    fn forget_capacity(&mut self, now: LogTime) {
        let over = self.capacity.iter().filter(|(_, row)| row.is_over(now)).map(|(key, _)| key.clone());
        let over: Vec<CapacityKey> = over.collect();
        for key in over {
            self.capacity.remove(&key);
        }
    }
}
