//! What a drill cost the gangs that ran: from the log alone.
//!
//! A gang is interrupted when it is stopped while it runs, for any reason but its own end or its owner's wish, and is
//! back when all its workers run again under another token. What that cost is its accelerators times the time from its
//! last committed checkpoint (or its start) to the interruption, which has to be done again, and times the time from
//! there until it ran again. Where an attempt went on unseen for some time (a host that is cut off computes until its
//! lease ends), that time counts as idle or as work to be done again: the sum is the same.

use std::collections::BTreeMap;

use muster_journal::StopCause;
use muster_state::{Effect, Phase, State};
use muster_types::{FencingToken, JobId};
use serde::{Deserialize, Serialize};

use crate::run::{Run, Runs};
use crate::text;

/// One interruption of one gang. Times are log times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    /// Which job.
    #[serde(with = "text::shown")]
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Whose.
    pub tenant: String,
    /// Why, one word.
    pub cause: String,
    /// Its accelerators.
    pub accelerators: u64,
    /// Where it ran.
    pub region: String,
    /// Whether one of its hosts was touched by the drill.
    pub touched: bool,
    /// Start of the attempt, or its last committed checkpoint.
    pub saved_ms: u64,
    /// When it was stopped, as the log knows.
    pub stopped_ms: u64,
    /// When it was placed again.
    pub placed_ms: Option<u64>,
    /// When all of it ran again, and where; none when it had not by the end.
    pub running_ms: Option<u64>,
    /// Where it runs now.
    pub region_after: Option<String>,
    /// Whether it ended meanwhile.
    pub ended: bool,
    /// Work to be done again.
    pub redone_ms: u64,
    /// Time in which nothing of it ran.
    pub idle_ms: u64,
    /// Both, times its accelerators.
    pub lost_accelerator_ms: u64,
}

/// Sums over interruptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// How many.
    pub interruptions: u64,
    /// Of them, those that ran again.
    pub running_again: u64,
    /// Lost accelerator time.
    pub accelerator_ms: u64,
}

/// All interruptions of a drill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// In the order of the log.
    pub interruptions: Vec<Interruption>,
    /// All of them.
    pub total: Loss,
    /// By tenant.
    pub by_tenant: BTreeMap<String, Loss>,
    /// By the region where it ran.
    pub by_region: BTreeMap<String, Loss>,
}

/// A gang as the log has it at the moment.
struct Gang {
    token: FencingToken,
    running_ms: Option<u64>,
}

/// Follows gangs through the log.
#[derive(Default)]
pub(super) struct LedgerMaker<'a> {
    run: Option<&'a Run>,
    gangs: BTreeMap<JobId, Gang>,
    open: BTreeMap<JobId, Interruption>,
    closed: Vec<Interruption>,
    gangs_at_fault: Option<u64>,
}

impl<'a> LedgerMaker<'a> {
    pub(super) fn new(run: &'a Run) -> LedgerMaker<'a> {
        LedgerMaker { run: Some(run), ..LedgerMaker::default() }
    }

    fn fault_ms(&self) -> u64 {
        self.run.map_or(0, |run| run.fault_unix_ms)
    }

    fn running(&self) -> u64 {
        self.gangs.values().filter(|gang| gang.running_ms.is_some()).count() as u64
    }

    /// Gangs that ran when the fault began.
    pub(super) fn gangs_at_fault(&self) -> u64 {
        self.gangs_at_fault.unwrap_or_else(|| self.running())
    }

    /// Behind a record.
    pub(super) fn record(
        &mut self,
        state: &State,
        now_ms: u64,
        stop: Option<(JobId, StopCause)>,
        effects: &[Effect],
    ) {
        if self.gangs_at_fault.is_none() && now_ms >= self.fault_ms() {
            // This record's own changes are behind the fault.
            self.gangs_at_fault = Some(self.running());
        }
        for effect in effects {
            if let Effect::JobChanged(job) = effect {
                let stop = stop.as_ref().filter(|(stopped, _)| stopped == job).map(|(_, cause)| cause);
                self.changed(state, *job, now_ms, stop);
            }
        }
    }

    fn changed(&mut self, state: &State, job: JobId, now_ms: u64, stop: Option<&StopCause>) {
        let Some(row) = state.job(job) else { return };
        let token = row.placement.as_ref().map(|placement| placement.token);
        match (&row.phase, token) {
            (Phase::Starting, Some(token)) => {
                if let Some(open) = self.open.get_mut(&job) {
                    open.placed_ms.get_or_insert(now_ms);
                }
                self.gangs.insert(job, Gang { token, running_ms: None });
            }
            (Phase::Running, Some(token)) => {
                let known = self.gangs.get(&job).is_some_and(|gang| gang.token == token);
                let since = self.gangs.get(&job).and_then(|gang| gang.running_ms).filter(|_| known);
                self.gangs.insert(job, Gang { token, running_ms: since.or(Some(now_ms)) });
                if let Some(open) = self.open.remove(&job) {
                    let region = row.placement.as_ref().map(|placement| placement.region.to_string());
                    self.close(open, Some(now_ms), region, now_ms);
                }
            }
            (Phase::Stopping(cause), _) => self.stopped(state, job, now_ms, stop.unwrap_or(cause)),
            (Phase::Pending, _) => {
                // Its session ended with the generation of the cluster: there was no order to stop.
                self.stopped(state, job, now_ms, &StopCause::Evicted { node: Default::default() });
            }
            (Phase::Finished(_), _) => {
                self.gangs.remove(&job);
                if let Some(mut open) = self.open.remove(&job) {
                    open.ended = true;
                    self.close(open, None, None, now_ms);
                }
            }
            (Phase::Starting | Phase::Running, None) => {}
        }
    }

    fn stopped(&mut self, state: &State, job: JobId, now_ms: u64, cause: &StopCause) {
        let Some(gang) = self.gangs.remove(&job) else { return };
        let (Some(running_ms), Some(row), Some(spec)) = (gang.running_ms, state.job(job), state.spec(job))
        else {
            return;
        };
        let is_wanted = matches!(
            cause,
            StopCause::Cancelled
                | StopCause::RunTimeLimit
                | StopCause::Deadline
                | StopCause::Requested { .. }
        );
        if now_ms < self.fault_ms() || is_wanted {
            return;
        }
        let Some(placement) = row.placement.as_ref().or(row.previous.as_ref()) else { return };
        let accelerators = placement.slots.iter().map(|slot| u64::from(slot.devices.count())).sum();
        let is_touched = |name: &str| {
            let of = |host: &crate::run::Host| {
                host.touched && matches!(&host.runs, Runs::Agent(agent) if agent.as_str() == name)
            };
            self.run.is_some_and(|run| run.hosts.iter().any(of))
        };
        let mut nodes = placement.slots.iter().filter_map(|slot| state.node(slot.node));
        let saved_ms = row.checkpointed_at.map_or(running_ms, |at| at.0.max(running_ms));
        let interruption = Interruption {
            job,
            name: spec.name.to_string(),
            tenant: spec.tenant.to_string(),
            cause: word(cause).to_owned(),
            accelerators,
            region: placement.region.to_string(),
            touched: nodes.any(|node| is_touched(&node.spec.name)),
            saved_ms,
            stopped_ms: now_ms,
            placed_ms: None,
            running_ms: None,
            region_after: None,
            ended: false,
            redone_ms: now_ms.saturating_sub(saved_ms),
            idle_ms: 0,
            lost_accelerator_ms: 0,
        };
        self.open.insert(job, interruption);
    }

    fn close(
        &mut self,
        mut interruption: Interruption,
        running_ms: Option<u64>,
        region_after: Option<String>,
        until_ms: u64,
    ) {
        interruption.running_ms = running_ms;
        interruption.region_after = region_after;
        interruption.idle_ms = until_ms.saturating_sub(interruption.stopped_ms);
        let lost_ms = interruption.redone_ms.saturating_add(interruption.idle_ms);
        interruption.lost_accelerator_ms = lost_ms.saturating_mul(interruption.accelerators);
        self.closed.push(interruption);
    }

    /// Behind the last record.
    pub(super) fn end(mut self, last_ms: u64) -> Ledger {
        for (_, open) in std::mem::take(&mut self.open) {
            self.close(open, None, None, last_ms);
        }
        let mut ledger = Ledger { interruptions: self.closed, ..Ledger::default() };
        ledger.interruptions.sort_by_key(|interruption| (interruption.stopped_ms, interruption.job));
        for interruption in &ledger.interruptions {
            let of_tenant = ledger.by_tenant.entry(interruption.tenant.clone()).or_default();
            let of_region = ledger.by_region.entry(interruption.region.clone()).or_default();
            for loss in [&mut ledger.total, of_tenant, of_region] {
                loss.interruptions += 1;
                loss.running_again += u64::from(interruption.running_ms.is_some());
                loss.accelerator_ms += interruption.lost_accelerator_ms;
            }
        }
        ledger
    }
}

fn word(cause: &StopCause) -> &'static str {
    match cause {
        StopCause::Cancelled => "cancelled",
        StopCause::WorkerFailed { .. } => "worker-failed",
        StopCause::Evicted { .. } => "evicted",
        StopCause::RunTimeLimit => "run-time-limit",
        StopCause::Deadline => "deadline",
        StopCause::Rearranged(_) => "rearranged",
        StopCause::Requested { .. } => "requested",
        StopCause::Fault { .. } => "fault",
    }
}
