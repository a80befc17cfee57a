//! Placing waiting gangs.

use alloc::vec::Vec;
use muster_journal::{Decision, WorkerSlot};
use muster_planner::{Budget, Holds, Terms, Verdict, plan};
use muster_policy::{Candidate, headroom};
use muster_state::{JobRow, State};
use muster_types::{JobId, JobSpec, LogTime};

use crate::future::Future;
use crate::memory::counted_waiters::found_near;
use crate::memory::pass::UnfinishedPass;
use crate::memory::searches::Searches;
use crate::passes::turns::renew_turns;
use crate::passes::{drained, growth, preemption};
use crate::round::ROUND_BYTES_SOFT;
use crate::rules::affinity;
use crate::rules::bookings::is_open_to;
use crate::rules::counted::smallest;
use crate::rules::planned::{choices, planned_spec};
use crate::rules::terms::{QuotaPart, with_terms, with_terms_of};
use crate::settle::array::fill_arrays;
use crate::settle::job::{advance_arrays, has_its_promise};
use crate::speculation::Speculation;

/// How a pass over the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every waiting gang had its turn.
    Complete {
        /// Gangs placed.
        placed: u32,
    },
    /// The budget or the round is full; the next call goes on from there.
    Interrupted {
        /// Gangs placed.
        placed: u32,
    },
}

/// Gives every waiting gang its turn, in the policy's order, after what full rounds left undecided.
pub fn schedule(speculation: &mut Speculation, budget: &mut Budget) -> Pass {
    if speculation.is_recovering() {
        return Pass::Complete { placed: 0 };
    }
    leave_promised_near_others(speculation);
    if !advance_arrays(speculation) || !renew_turns(speculation) {
        return Pass::Interrupted { placed: 0 };
    }
    let mut pass = speculation.take_pass();
    let (finished, placed) = walk(speculation, &mut pass, budget);
    if !finished {
        speculation.keep_pass(pass);
        return Pass::Interrupted { placed };
    }
    let state = speculation.state();
    let asks_more = state.draining().next().is_some() || state.growable().next().is_some();
    if asks_more || pass.future().owes_images(state) {
        pass.future().keep_what_is_owed(state, budget);
    }
    let before = speculation.state().log_index();
    drained::move_drained(speculation, pass.future(), budget);
    let (future, mut memory, wanted) = pass.finish(speculation.searches_mut());
    growth::grow(speculation, &future, &wanted, &mut memory, budget);
    let mut kept = future.remember();
    if speculation.state().log_index() != before {
        kept.forget_reserved_nodes();
    }
    kept.set_licence_keepers(memory.waiters().licence_keepers());
    speculation.keep_memory(memory);
    speculation.keep_reservations(kept);
    Pass::Complete { placed }
}

/// Jobs that have what they are promised, and wait for others near it to be over: nobody else looks at them when these are.
fn leave_promised_near_others(speculation: &mut Speculation) {
    let state = speculation.state();
    let is_near =
        |job: &JobId| state.has_apart() || state.spec(*job).is_some_and(|spec| !spec.affinity.is_empty());
    let promised = state.promised().filter(is_near).filter(|job| has_its_promise(state, *job));
    let promised: Vec<JobId> = promised.collect();
    speculation.leave_unsettled(promised);
}

/// What became of a gang whose turn it was.
enum Outcome {
    Placed,
    PromisedCapacity,
    Waits,
    /// It does not fit within nominal now, and may yet fit by borrowing.
    MayBorrow,
    /// Its tenant has as many jobs placed as it may, or no accelerator time left: nothing is kept for it, and nothing kept free.
    AtLimit,
    /// Its user has no accelerator time left: the same, and jobs of other users do not wait for it.
    UserAtLimit,
    /// It names a booking that is not open to it, or less is left to it of what is counted than it needs: nothing is kept for it, and
    /// others go past it.
    NotOpen,
    /// Nothing runs that it has to be with: the same, and those that ask for the same and have other labels do not wait for it.
    WithoutOthers,
    /// It waits for capacity, and those that ask for the same and have other labels do not wait for it.
    WaitsAlone,
    OutOfBudget,
}

/// Whether every turn was taken, and how many gangs were placed.
fn walk(speculation: &mut Speculation, pass: &mut UnfinishedPass, budget: &mut Budget) -> (bool, u32) {
    let mut placed = 0;
    pass.future().give_up_at_limit(speculation.state(), budget);
    let whole = budget.left();
    loop {
        if budget.is_spent() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return (false, placed);
        }
        let Some(candidate) = pass.take_next(speculation.state(), budget) else {
            if !pass.line().is_over() {
                return (false, placed);
            }
            pass.future().end_turns();
            return (true, placed);
        };
        // Where many were stepped over before it, it is offered more by the next call.
        let (has_whole, has_most) = (budget.left() == whole, budget.left() > whole / 2);
        match offer(speculation, pass, (&candidate, has_most), budget) {
            Outcome::Placed => {
                placed += 1;
                pass.forget_alike();
                // The next members of its array have their turn before the jobs behind them.
                fill_arrays(speculation);
                pass.line().placed(speculation.state(), &candidate);
            }
            Outcome::PromisedCapacity => {
                pass.forget_alike();
                fill_arrays(speculation);
                pass.line().placed(speculation.state(), &candidate);
            }
            // A gang that a whole budget is too small for would stop every pass at itself.
            Outcome::OutOfBudget if !has_whole => {
                pass.line().put_back(speculation.state(), candidate);
                return (false, placed);
            }
            Outcome::MayBorrow => pass.line().borrows(speculation.state(), &candidate),
            Outcome::AtLimit => pass.line().at_limit(speculation.state(), &candidate),
            Outcome::UserAtLimit => pass.line().user_at_limit(speculation.state(), &candidate),
            Outcome::NotOpen => pass.line().passed_over(speculation.state(), &candidate),
            Outcome::WithoutOthers => pass.line().waits_alone(speculation.state(), &candidate, true),
            Outcome::WaitsAlone => pass.waits_alone(speculation.state(), &candidate),
            Outcome::Waits | Outcome::OutOfBudget => {
                pass.waits(speculation.state(), &candidate);
            }
        }
    }
}

/// Offers capacity to one gang: what is free, else what others can make free, else a time when it will be. It is told whether most of
/// the budget is left.
fn offer(
    speculation: &mut Speculation,
    pass: &mut UnfinishedPass,
    (candidate, has_most): (&Candidate, bool),
    budget: &mut Budget,
) -> Outcome {
    speculation.refresh_valuation();
    let state = speculation.state();
    let job = candidate.turn.job;
    let row = state.job(job).expect("a pending job has a row").clone();
    // Where its checkpoints cannot be read it would begin again.
    let Some(spec) = planned_spec(state, job) else {
        pass.waiters().forget(job);
        return Outcome::Waits;
    };
    if !is_open_to(state, &spec) {
        budget.take(1);
        return Outcome::NotOpen;
    }
    let now = speculation.now();
    if state.running_limit_reached(&spec.tenant).is_some() || state.spent_budget(&spec.tenant, now).is_some()
    {
        pass.waiters().forget(job);
        pass.future().give_up_of(state, &spec.tenant, budget);
        return Outcome::AtLimit;
    }
    // Its time may have run out since the walk began.
    if state.spent_user_budget(job, now).is_some() {
        pass.waiters().forget(job);
        return Outcome::UserAtLimit;
    }
    if let Some(is_without_others) = pass.waits_like_another(state, (candidate, &spec)) {
        budget.take(1);
        return if is_without_others { Outcome::WithoutOthers } else { Outcome::WaitsAlone };
    }
    // Nodes that are kept for it would stand idle until others give back what is counted.
    if !pass.waiters().admit(state, job, &spec) {
        budget.take(1);
        pass.future().give_up_job(state, job, budget);
        leave_without_start(state, pass, (job, &spec, &row), now, budget);
        return Outcome::NotOpen;
    }
    let spec = if pass.waiters().is_kept_from(state, job, &spec) { smallest(&spec) } else { spec };
    let Some(others) = look_at_others(state, job, &spec, has_most, budget) else {
        return Outcome::OutOfBudget;
    };
    let is_alone = others.is_alone;
    if is_alone && others.is_missing && !others.is_by_id {
        pass.keep_like(state, (candidate, &spec), true);
    }
    if others.is_missing {
        pass.waiters().forget(job);
        return if is_alone { Outcome::WithoutOthers } else { Outcome::NotOpen };
    }
    // In strict order all that are behind it wait, whatever their labels are.
    if is_alone && state.policy().policy.backfill.depth_max > 1 {
        pass.future().turn_alone(state, job, candidate.within_nominal, budget);
    } else {
        pass.future().turn_of(state, job, candidate.within_nominal, budget);
    }
    let quota = if candidate.within_nominal { QuotaPart::Nominal } else { QuotaPart::All };
    let offer = Offer { job, spec: &spec, row: &row, quota, is_alone };
    let mut found = offer.find(speculation, pass.future(), budget);
    // Where there is something to be had, what those before it are owed is kept from it.
    if matches!(found, Found::Place(_)) && pass.future().keep_what_is_owed(speculation.state(), budget) {
        found = offer.find(speculation, pass.future(), budget);
    }
    match found {
        Found::Place(workers) => {
            speculation.push(Decision::GangPlaced { job, workers });
            pass.future().placed(speculation.state(), job);
            return Outcome::Placed;
        }
        Found::OutOfBudget => return Outcome::OutOfBudget,
        Found::Nothing => {}
    }
    // What it can have by borrowing is asked for before anybody is stopped for it; what it is promised, right away if
    // there is nothing for it to borrow.
    let quota_left = headroom(speculation.state(), &spec);
    if candidate.within_nominal && quota_left.may_borrow {
        let state = speculation.state();
        let mut may_borrow = !quota_left.is_promised || offer.may_borrow(speculation, pass.future(), budget);
        if may_borrow && quota_left.is_promised && pass.future().keep_what_is_owed(state, budget) {
            may_borrow = offer.may_borrow(speculation, pass.future(), budget);
        }
        if may_borrow {
            return Outcome::MayBorrow;
        }
    }
    if let Some(outcome) = offer.ask_others(speculation, pass, budget) {
        return outcome;
    }
    pass.future().reserve(speculation.state(), job, &spec, &row, budget);
    leave_without_start(speculation.state(), pass, (job, &spec, &row), now, budget);
    if is_alone && !others.is_by_id {
        pass.keep_like(speculation.state(), (candidate, &spec), false);
    }
    if is_alone { Outcome::WaitsAlone } else { Outcome::Waits }
}

/// A job keeps nothing of what is counted while it has no start near: its tenant has no quota for it for long, or its nodes are not
/// there.
fn leave_without_start(
    state: &State,
    pass: &mut UnfinishedPass,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    now: LogTime,
    budget: &mut Budget,
) {
    if !pass.waiters().is_start_unknown(job, now) {
        return;
    }
    let kept = pass.future().start_kept_for(job);
    let earliest = || pass.future().earliest(state, (job, spec, row), budget).map(|(_, start)| start.at);
    let start = kept.or_else(earliest);
    // What is kept for it is known. Where the budget has run out in a look, nobody knows what else there is.
    let is_whole = kept.is_some() || !budget.is_spent();
    let waited_ms = now.since_ms(state.waits_since(job).unwrap_or(row.submitted_at));
    if let Some(has_near_start) = found_near(start, is_whole, now, waited_ms) {
        pass.waiters().set_start(job, has_near_start, now);
    }
}

/// Times that a turn looks at where other jobs are, about.
const LOOKS_AT_OTHERS: u64 = 8;

/// What other jobs mean for one.
struct Others {
    /// Whether nothing runs that it has to be with.
    is_missing: bool,
    /// Whether it would be otherwise for a job with other labels.
    is_alone: bool,
    /// Whether it would be otherwise for a job with the same ones.
    is_by_id: bool,
}

/// What other jobs mean for one. None where the look takes more than half of a budget that others have used already: it has its
/// turn in the next round.
fn look_at_others(
    state: &State,
    job: JobId,
    spec: &JobSpec,
    has_most: bool,
    budget: &mut Budget,
) -> Option<Others> {
    let resolved = affinity::resolve(state, job, spec);
    let (visits, half) = (resolved.looked_at.saturating_mul(LOOKS_AT_OTHERS), budget.left() / 2);
    // Else one round would have many of them, each for half of what the one before it has left, and would take as long as all.
    if visits > half && !has_most {
        return None;
    }
    // Half of what is left stays for finding a place: a job with many others would never have one.
    budget.take(visits.min(half));
    Some(Others {
        is_missing: resolved.waits_for.is_some(),
        is_alone: resolved.depends_on_labels,
        is_by_id: resolved.depends_on_id,
    })
}

/// A gang whose turn it is, and how much of its quota it is offered.
struct Offer<'a> {
    job: JobId,
    spec: &'a JobSpec,
    row: &'a JobRow,
    quota: QuotaPart,
    /// Whether it would be otherwise for a job that asks for the same and has other labels.
    is_alone: bool,
}

/// What there is for a gang now.
enum Found {
    /// It can be placed so; spares, if any, are among its workers.
    Place(Vec<WorkerSlot>),
    Nothing,
    OutOfBudget,
}

impl Offer<'_> {
    /// Where the gang can go now, outside of what is kept for others.
    fn find(&self, speculation: &Speculation, future: &mut Future, budget: &mut Budget) -> Found {
        let Offer { job, spec, row, quota, .. } = *self;
        let (state, valuation) = (speculation.state(), speculation.valuation());
        let holds = future.holds_for_job(state, job, spec, row);
        let holding = speculation.images().term(state, spec);
        let mut place = |spec: &JobSpec, holds: &Holds| {
            with_terms_of(state, speculation.now(), (job, spec, row), holds, quota, |terms| {
                let terms = Terms { valuation: Some(valuation), image: holding.as_ref(), ..*terms };
                plan(state, spec, &terms, budget)
            })
        };
        let choices = choices(state, job, &holds, speculation.unheard(), speculation.now());
        let wanted = state.contract(job).map_or(0, |contract| contract.spares);
        if let Some(larger) = (wanted > 0).then(|| spec.with_spares(wanted)).flatten()
            && let Verdict::Fits(mut found) = place(&larger, &choices[0])
        {
            // Of the last segment of spares no more than it asks for.
            found.workers.truncate(spec.worker_count().saturating_add(wanted) as usize);
            let decision = Decision::GangPlaced { job, workers: found.workers };
            // With spares among them, ranks may lie otherwise than its topology rule asks for.
            if state.check(&decision).is_ok()
                && let Decision::GangPlaced { workers, .. } = decision
            {
                return Found::Place(workers);
            }
        }
        // Away from nodes that failed under it or are silent, as long as there are others.
        let mut found = Verdict::Waits;
        for (at, choice) in choices.iter().enumerate() {
            let next = place(spec, choice);
            if let Verdict::Fits(known) = &found
                && !matches!(&next, Verdict::Fits(more) if more.workers.len() > known.workers.len())
            {
                break;
            }
            found = next;
            // A silent node may be back in a moment, so an elastic gang does not start smaller because of it.
            let goes_round_silent = at == 0 && !speculation.unheard().silent.is_empty();
            let is_smaller = |workers: usize| goes_round_silent && workers < spec.worker_count() as usize;
            match &found {
                Verdict::Waits => {}
                Verdict::Fits(known) if is_smaller(known.workers.len()) => {}
                Verdict::Fits(_) | Verdict::OutOfBudget => break,
            }
        }
        match found {
            Verdict::Fits(found) => Found::Place(found.workers),
            Verdict::OutOfBudget => Found::OutOfBudget,
            Verdict::Waits => Found::Nothing,
        }
    }

    /// Whether there is something for it by borrowing.
    fn may_borrow(&self, speculation: &Speculation, future: &mut Future, budget: &mut Budget) -> bool {
        let Offer { job, spec, row, .. } = *self;
        let state = speculation.state();
        let holds = future.holds_for_job(state, job, spec, row);
        let asker = (job, spec, row);
        let verdict =
            with_terms(state, speculation.now(), asker, &holds, |terms| plan(state, spec, terms, budget));
        !matches!(verdict, Verdict::Waits)
    }

    /// Preempts other gangs, if this pass still searches. `None` when none of them is preempted now.
    fn ask_others(
        &self,
        speculation: &mut Speculation,
        pass: &mut UnfinishedPass,
        budget: &mut Budget,
    ) -> Option<Outcome> {
        let Offer { job, spec, row, is_alone, .. } = *self;
        let claim = if is_alone {
            Searches::claim_by_labels(speculation.state(), (job, spec))
        } else {
            Searches::claim(speculation.state(), spec)
        };
        let kind = pass.may_search(speculation.searches(), &claim)?;
        match preemption::claim_capacity(speculation, (job, spec, row), claim.clone(), pass.future(), budget)
        {
            preemption::PreemptOutcome::Promised { places } => {
                pass.future().placed(speculation.state(), job);
                for (region, cluster) in places {
                    pass.future().changed(&region, &cluster);
                }
                return Some(Outcome::PromisedCapacity);
            }
            // What it waits for comes within the time that those take to stop.
            preemption::PreemptOutcome::Coming => return Some(Outcome::Waits),
            preemption::PreemptOutcome::OutOfBudget => return Some(Outcome::OutOfBudget),
            preemption::PreemptOutcome::NobodyToAsk => {}
            preemption::PreemptOutcome::NotEnough => pass.searched_in_vain(&claim, kind),
        }
        None
    }
}
