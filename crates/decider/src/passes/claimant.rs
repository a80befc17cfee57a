//! The claimant of a preemption, its means, and which gangs it may preempt.

use muster_planner::{Budget, Holds, Plan, Verdict, plan};
use muster_policy::{has_victims, may_make_room, may_make_room_later, resumes};
use muster_state::quota::QuotaUsage;
use muster_state::{Forecast, JobRow, NominalCover, Phase, State};
use muster_types::policy::QueuePreemption;
use muster_types::{JobId, JobSpec, LogTime};

use crate::future::Future;
use crate::memory::searches::Look;
use crate::rules::terms::with_paid_terms;

/// The budget ran out.
pub(super) struct Spent;

/// The gang that asks for capacity, with what its search looks at.
pub(super) struct Claimant<'a> {
    /// What is planned in: what is recorded, or a forecast of it.
    pub(super) state: &'a State,
    /// Which gangs are within nominal, and what is recorded.
    pub(super) cover: &'a NominalCover<'a>,
    pub(super) job: JobId,
    pub(super) spec: &'a JobSpec,
    pub(super) row: &'a JobRow,
    pub(super) holds: &'a Holds,
    pub(super) future: &'a Future,
    pub(super) look: &'a Look,
    pub(super) now: LogTime,
}

/// How capacity is made available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Only by moving gangs to other places that are free now.
    Move,
    /// By stopping gangs that go behind; those that find another place or a smaller size go on there.
    Stop,
    /// The same once those have run for the policy's minimum.
    StopLater,
}

impl Means {
    /// Whether there is anybody to ask, as far as counters say.
    pub(super) fn has_any(self, state: &State, spec: &JobSpec, row: &JobRow, now: LogTime) -> bool {
        let rules = &state.policy().policy.preemption;
        match self {
            Means::Stop | Means::StopLater => has_victims(state, spec),
            Means::Move => {
                // Who moves takes as much elsewhere: so much has to be free, if not in one place.
                let is_free = || {
                    let mut wanted = least_milli(spec);
                    state.pools().any(|(_, pool)| {
                        wanted = wanted.saturating_sub(pool.free_milli);
                        wanted == 0
                    })
                };
                rules.defragment
                    && state.policy().policy.queue_preemption(&spec.tenant) != QueuePreemption::None
                    && now.since_ms(row.submitted_at) >= rules.defragment_wait_ms
                    && state.preemptible(spec.tier).next().is_some()
                    && is_free()
            }
        }
    }
}

impl Claimant<'_> {
    /// How the claimant would fit in a state that may come.
    pub(super) fn plan_on(&self, forecast: &Forecast, budget: &mut Budget) -> Result<Option<Plan>, Spent> {
        let asker = (self.job, self.spec, self.row);
        let verdict = with_paid_terms(forecast, self.now, asker, self.holds, budget, |terms, budget| {
            plan(forecast, self.spec, terms, budget)
        });
        match verdict {
            Verdict::Fits(plan) => Ok(Some(plan)),
            Verdict::Waits => Ok(None),
            Verdict::OutOfBudget => Err(Spent),
        }
    }

    /// Whether a gang may be asked, with this in use once those are gone that were chosen before it.
    pub(super) fn may_ask(&self, job: JobId, usage: &QuotaUsage, means: Means) -> bool {
        let Claimant { cover, spec, now, .. } = *self;
        match means {
            Means::Move => self.may_move(job),
            Means::Stop => may_make_room(cover, usage, spec, job, now),
            Means::StopLater => may_make_room_later(cover, usage, spec, job, now),
        }
    }

    /// Whether a gang could go on elsewhere.
    fn may_move(&self, job: JobId) -> bool {
        let (Some(row), Some(spec)) = (self.state.job(job), self.state.spec(job)) else { return false };
        let minimum_run_ms = self.state.policy().policy.preemption.minimum_run_ms;
        spec.preemptible
            && spec.tier <= self.spec.tier
            && row.phase == Phase::Running
            && !row.cancel_requested
            && row.started_at.is_some_and(|at| self.now.since_ms(at) >= minimum_run_ms)
            && resumes(self.state, job)
    }
}

/// Thousandths of devices that a job needs at least.
fn least_milli(spec: &JobSpec) -> u64 {
    spec.groups.iter().map(|group| u64::from(group.workers_min) * group.request.device_milli()).sum()
}
