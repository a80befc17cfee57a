//! A pass over the pending queue that has not come to its end.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use muster_planner::Budget;
use muster_policy::{Candidate, Line};
use muster_state::State;
use muster_types::policy::Policy;
use muster_types::{JobSpec, LogTime, Name};

use crate::future::{Future, KeptReservations, is_at_limit};
use crate::memory::counted_waiters::CountedWaiters;
use crate::memory::rotation::{PassMemory, WantedPools};
use crate::memory::searches::{Claim, Searches, Tries, TryKind};

/// Jobs of a tenant that ask for the same and have the same labels, and whether they are offered nominal quota alone.
type AlikeKey = (Claim, Name, bool);

/// Kinds of jobs that are remembered; with more, the others are looked at one by one.
const ALIKE_MAX: usize = 4_096;

fn alike_key(state: &State, (candidate, spec): (&Candidate, &JobSpec)) -> AlikeKey {
    let claim = Searches::claim_by_labels(state, (candidate.turn.job, spec));
    (claim, spec.tenant.clone(), candidate.within_nominal)
}

/// What a pass has found out so far. It goes on where it was interrupted: from the top it would
/// spend its budget on the same gangs again, and the tail of a long queue would never have a turn.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedPass {
    line: Line,
    future: Future,
    tries: Tries,
    /// Where those who wait could go.
    wanted: WantedPools,
    /// Those that wait because of where other jobs are, as far as the same holds for all of their like with the same labels.
    /// With each is whether nothing runs that they have to be with.
    alike: BTreeMap<AlikeKey, bool>,
    /// What passes leave for each other.
    memory: PassMemory,
    /// What the order was made under.
    policy: Arc<Policy>,
}

impl UnfinishedPass {
    /// Begins a pass with what the ones before left for it.
    pub(crate) fn begin(
        state: &State,
        now: LogTime,
        mut memory: PassMemory,
        kept: KeptReservations,
    ) -> UnfinishedPass {
        let depth_max = state.policy().policy.backfill.depth_max;
        memory.waiters().retain(state, now, |job| is_at_limit(state, job, now));
        UnfinishedPass {
            line: Line::of_pass(state, now, depth_max, memory.take_marks()),
            future: Future::of_pass(state, now, kept),
            tries: Tries::default(),
            wanted: WantedPools::default(),
            alike: BTreeMap::new(),
            memory,
            policy: Arc::clone(state.effective_policy()),
        }
    }

    /// Whether a policy is the one that the order was made under.
    pub(crate) fn is_under(&self, policy: &Arc<Policy>) -> bool {
        Arc::ptr_eq(&self.policy, policy)
    }

    /// The pending queue as this pass goes through it.
    pub(crate) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// What is kept for later.
    pub(crate) fn future(&mut self) -> &mut Future {
        &mut self.future
    }

    /// Who waits for licences, or for limits on CPUs and memory.
    pub(crate) fn waiters(&mut self) -> &mut CountedWaiters {
        self.memory.waiters()
    }

    /// The gang whose turn it is next; none once nobody is left, and when the budget has gone for those that were stepped
    /// over: then the queue is not over.
    pub(crate) fn take_next(&mut self, state: &State, budget: &mut Budget) -> Option<Candidate> {
        let next = self.line.take_some(state, budget.left());
        budget.take(self.line.take_steps());
        next
    }

    /// A gang waits for capacity.
    pub(crate) fn waits(&mut self, state: &State, candidate: &Candidate) {
        self.wanted.add(state, candidate.turn.job);
        self.line.waits(state, candidate);
    }

    /// The same, while those of its tenant that ask for the same and have other labels do not wait for it.
    pub(crate) fn waits_alone(&mut self, state: &State, candidate: &Candidate) {
        self.wanted.add(state, candidate.turn.job);
        self.line.waits_alone(state, candidate, false);
    }

    /// Whether a gang waits as one of its like does that other jobs keep away, so that neither a place nor gangs to stop are
    /// looked for; and whether nothing runs that it has to be with. One for which something is kept has a turn whatever its like
    /// do: what is kept for it is kept from them.
    pub(crate) fn waits_like_another(
        &self,
        state: &State,
        (candidate, spec): (&Candidate, &JobSpec),
    ) -> Option<bool> {
        if self.alike.is_empty() || self.future.keeps_for(candidate.turn.job) {
            return None;
        }
        self.alike.get(&alike_key(state, (candidate, spec))).copied()
    }

    /// A gang waits because of where other jobs are, and so does each of its like with the same labels.
    pub(crate) fn keep_like(
        &mut self,
        state: &State,
        (candidate, spec): (&Candidate, &JobSpec),
        is_without_others: bool,
    ) {
        if self.alike.len() < ALIKE_MAX {
            self.alike.insert(alike_key(state, (candidate, spec)), is_without_others);
        }
    }

    /// Another gang has a place, or others are stopped for it: those that wait may go to where it is.
    pub(crate) fn forget_alike(&mut self) {
        self.alike.clear();
    }

    /// Whether preemption is tried for a request in this pass.
    pub(crate) fn may_search(&mut self, searches: &Searches, claim: &Claim) -> Option<TryKind> {
        self.tries.may_try(searches, claim)
    }

    /// It was tried in vain.
    pub(crate) fn searched_in_vain(&mut self, claim: &Claim, kind: TryKind) {
        self.tries.count(claim, kind);
    }

    /// What is left of a pass that is not gone on with.
    pub(crate) fn into_memory(self) -> (PassMemory, KeptReservations) {
        (self.memory, self.future.remember())
    }

    /// What is kept for later, what the next pass has to know, and where those who wait could go.
    pub(crate) fn finish(self, searches: &mut Searches) -> (Future, PassMemory, WantedPools) {
        let mut memory = self.memory;
        searches.end_pass(&self.tries);
        let wanted = memory.wanted_by_all(self.wanted, self.line.is_cut());
        memory.leave_marks(self.line.into_marks());
        (self.future, memory, wanted)
    }
}
