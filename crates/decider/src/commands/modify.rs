//! Changes of a job that exists.

use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, Estimate, RequestKey, hash};
use muster_planner::could_ever;
use muster_policy::estimate_again;
use muster_state::{Phase, State};
use muster_types::{
    FieldChange, JobContract, JobId, JobSpec, LogIndex, LogTime, Name, Refusal, RefusalCode, RequestId,
    Requester, Span, Submission, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::controls::{
    check_acts_for, check_unfinished, end_claim, is_being_cancelled, not_found, not_waiting, with_state,
};
use crate::commands::submit::{above_job_limit, check_rights};
use crate::rules::deadline;
use crate::rules::requested::JobPath;
use crate::settle::job::settle;
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// The state of a job that a change was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobVersion {
    /// The generation of the cluster.
    pub generation: u32,
    /// The record that changed the job last.
    pub changed_at: LogIndex,
}

/// A change of one job, and who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks for the change, as it is recorded.
    pub by: Requester,
    /// The tenant that the one who asks acts for, and for those below it; none acts for all.
    pub acts_for: Option<Name>,
    /// Which job.
    pub job: JobId,
    /// The state of it that the change was made from; none changes it whatever it is by now.
    pub expected: Option<JobVersion>,
    /// Each field once.
    pub changes: Vec<FieldChange>,
}

/// What every change of a job must pass; also the check without a change. What is expected of the job then.
///
/// # Errors
/// The refusal.
pub fn check_modify(state: &State, order: &ModifyOrder, now: LogTime) -> Result<Estimate, Refusal> {
    let (job, changes) = (order.job, &order.changes);
    check_acts_for(state, order.acts_for.as_ref(), job)?;
    let (row, spec) = state.job(job).zip(state.spec(job)).ok_or_else(|| no_job(state, job))?;
    check_unfinished(job, row)?;
    if row.cancel_requested {
        return Err(is_being_cancelled(job, row));
    }
    let current = JobVersion { generation: state.generation(), changed_at: row.changed_at };
    if let Some(expected) = order.expected.filter(|expected| *expected != current) {
        let text = format!(
            "{job} has changed since record {}: record {} changed it last; read it again and make the change from that",
            expected.changed_at, current.changed_at
        );
        return Err(with_state(Refusal::new(RefusalCode::JobChanged, text), job, row));
    }
    if let Some(change) =
        changes.iter().find(|change| row.phase != Phase::Pending && !change.is_for_running())
    {
        return Err(not_waiting(job, row, change.field()));
    }
    check_fields(state, order)?;
    let (changed, _) = state.modified(job, changes).expect("its rules were checked just now");
    if changed == **spec {
        return Ok(row.estimate);
    }
    // What it has already run for is gone: a limit below that would only end it.
    if let (Some(limit_ms), Some(started)) = (changed.run_time_limit_ms, row.started_at)
        && row.phase == Phase::Running
        && started.plus_ms(limit_ms) <= now
    {
        let ran = Span(now.since_ms(started));
        let text = format!(
            "must be longer than the job has run already, {ran}, got {}; cancel the job to end it",
            Span(limit_ms)
        );
        return Err(Refusal::fields(alloc::vec![Violation::new("job.spec.run_time_limit", text)]));
    }
    let spares = state.contract(job).map_or(0, |contract| contract.spares);
    if let Some(above) = state.raised_above_job_limit(spec, &changed, spares) {
        return Err(above_job_limit(&changed, above).with("job_index", 0));
    }
    if row.phase == Phase::Pending {
        check_waiting(state, job, &changed, changes, now)?;
    }
    Ok(estimate_again(state, job, &changed, now))
}

/// There is no such job, or it is a member of an array that is not created.
fn no_job(state: &State, job: JobId) -> Refusal {
    let Some((member, array)) =
        state.waiting_member(job).and_then(|member| Some((member, state.array(member.array)?)))
    else {
        return not_found(job);
    };
    let text = format!(
        "{job} is a member of {} that is not created yet; `muster job hold {job}` makes it a job, which can be changed and \
         released then",
        member.array
    );
    let refusal = Refusal::new(RefusalCode::JobPhase, text).with("job_id", job).with("phase", "pending");
    refusal.with("changed_at_index", array.changed_at)
}

/// What a job that waits must pass as one that is submitted must.
fn check_waiting(
    state: &State,
    job: JobId,
    changed: &JobSpec,
    changes: &[FieldChange],
    now: LogTime,
) -> Result<(), Refusal> {
    let contract = state.contract(job).map(|contract| JobContract::clone(contract)).unwrap_or_default();
    let submission = [Submission::new(changed.clone(), contract)];
    let has = |is_it: fn(&FieldChange) -> bool| changes.iter().any(is_it);
    if state.spec(job).is_some_and(|before| before.tier != changed.tier) {
        check_rights(state, &submission)?;
    }
    if has(|change| {
        matches!(change, FieldChange::Deadline(_) | FieldChange::NotBefore(_) | FieldChange::ExpectedRun(_))
    }) {
        deadline::check(&submission, JobPath::Single, now)?;
    }
    if let Err(never) = could_ever(state, changed) {
        let text = format!("job {}: {never}", changed.name);
        return Err(Refusal::new(RefusalCode::NeverFits, text)
            .with("job_index", 0)
            .with("group", &never.group)
            .with("wanted", &never.wanted)
            .with("closest", &never.closest));
    }
    Ok(())
}

/// The rules of the fields themselves.
fn check_fields(state: &State, order: &ModifyOrder) -> Result<(), Refusal> {
    let ModifyOrder { job, by, changes, .. } = order;
    let mut found = Vec::new();
    if changes.is_empty() {
        found.push(Violation::new("update_mask", "must name a field to be changed"));
    }
    for (place, change) in changes.iter().enumerate() {
        if changes.iter().skip(place + 1).any(|other| other.field() == change.field()) {
            found.push(Violation::new("update_mask", format!("must not name {} twice", change.field())));
        }
    }
    if !by.is_valid() {
        let max = limits::CREATOR_BYTES_MAX;
        found.push(Violation::new("by", format!("must be at most {max} bytes of printable ASCII")));
    }
    let mut metadata = state.metadata(*job).map(|carried| (**carried).clone()).unwrap_or_default();
    let Some(spec) = state.spec(*job) else { return Err(not_found(*job)) };
    let mut draft = JobSpec::clone(spec).into_draft();
    for change in changes {
        change.change_draft(&mut draft);
        change.change_metadata(&mut metadata);
    }
    found.extend(metadata.violations().into_iter().map(|violation| violation.under("job")));
    match draft.check() {
        Ok(changed) => {
            let broken =
                state.contract(*job).map(|contract| contract.violations(&changed)).unwrap_or_default();
            found.extend(broken.into_iter().map(|violation| violation.under("job.spec")));
        }
        Err(broken) => found.extend(broken.into_iter().map(|violation| violation.under("job.spec"))),
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::fields(found)) }
}

/// Changes a job.
pub(super) fn modify(speculation: &mut Speculation, order: &ModifyOrder) -> Result<Answer, Refusal> {
    let expected = order.expected.map(|expected| (expected.generation, expected.changed_at));
    let asked = ("modify", order.job, expected, &order.changes);
    let key = RequestKey { id: order.request, fingerprint: hash(&asked) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let estimate = check_modify(speculation.state(), order, speculation.now())?;
    let pruning = pruning_for_request(speculation, !order.by.is_operator, 0)?;
    let tenant = speculation.state().spec(order.job).map(|spec| spec.tenant.clone());
    if !order.by.is_operator {
        speculation.count_request(tenant.iter())?;
    }
    pruning.carry_out(speculation);
    let state = speculation.state();
    let changed = state.modified(order.job, &order.changes).map(|(changed, _)| changed);
    if state.spec(order.job).is_some_and(|before| changed.is_some_and(|changed| changed != **before)) {
        end_claim(speculation, order.job);
    }
    let (by, job, changes) = (order.by.clone(), order.job, order.changes.clone());
    let at = speculation.push(Decision::JobModified { request: key, by, job, changes, estimate });
    settle(speculation, job);
    Ok(Answer::Done { at })
}
