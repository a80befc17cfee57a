//! Changes of a job that exists.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, Estimate, RequestKey, hash};
use muster_policy::estimate_again;
use muster_state::{Phase, State};
use muster_types::worker_features::with_features;
use muster_types::{
    FieldChange, JobContract, JobId, JobSpec, LogIndex, LogTime, Name, Refusal, RefusalCode, RequestId,
    Requester, Span, Submission, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::controls::{
    check_acts_for, check_unfinished, end_claim, is_being_cancelled, not_found, not_waiting, with_state,
};
use crate::commands::submit::{
    above_job_limit, check_affinity, check_bookings, check_could_ever, check_licence_regions, check_limits,
    check_receivers, check_rights,
};
use crate::rules::at_limit::check_on_limit;
use crate::rules::deadline;
use crate::rules::requested::JobPath;
use crate::rules::share::check_share;
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
    let job = order.job;
    let changes = &*recorded(state, order);
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
    check_fields(state, order, changes)?;
    let (changed, _) = state.modified(job, changes).expect("its rules were checked just now");
    if changed == **spec {
        return Ok(row.estimate);
    }
    if changed.tenant != spec.tenant {
        check_tenant(state, order, &changed)?;
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
    if let Some(above) = state.raised_above_job_limit(spec, &changed, (spares, state.creator(job))) {
        return Err(above_job_limit(state, &changed, above).with("job_index", 0));
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
    let metadata = state.metadata(job).cloned();
    let submission = [Submission { metadata, ..Submission::new(changed.clone(), contract) }];
    let has = |is_it: fn(&FieldChange) -> bool| changes.iter().any(is_it);
    let is_moved = state.spec(job).is_some_and(|before| before.tenant != changed.tenant);
    let needs_right = |before: &JobSpec| before.tier != changed.tier || changed.nice < before.nice;
    if is_moved || state.spec(job).is_some_and(|before| needs_right(before)) {
        check_rights(state, &submission)?;
    }
    if is_moved {
        check_share(state, &submission)?;
        check_limits(state, &submission)?;
        check_bookings(state, &submission, JobPath::Single)?;
        check_affinity(state, &submission, JobPath::Single)?;
        check_receivers(state, &submission, JobPath::Single)?;
        check_on_limit(state, &submission, now)?;
    }
    if has(|change| {
        matches!(change, FieldChange::Deadline(_) | FieldChange::NotBefore(_) | FieldChange::ExpectedRun(_))
    }) {
        deadline::check(&submission, JobPath::Single, now)?;
    }
    if has(|change| matches!(change, FieldChange::Regions(_))) {
        check_licence_regions(state, &submission, JobPath::Single)?;
    }
    check_could_ever(state, changed, 0)
}

/// The rules of the fields themselves.
fn check_fields(state: &State, order: &ModifyOrder, changes: &[FieldChange]) -> Result<(), Refusal> {
    let ModifyOrder { job, by, .. } = order;
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
        found.extend(change.violation(&draft).map(|violation| violation.under("job.spec")));
        change.change_draft(&mut draft);
        change.change_metadata(&mut metadata);
    }
    let spares = state.contract(*job).map_or(0, |contract| contract.spares);
    if draft.size.is_some() && spares > 0 {
        let text = "cannot be changed while the job is placed, because it has spare workers";
        found.push(Violation::new("job.spec.groups[0].workers", text));
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
        let other = order.changes.iter().find_map(|change| match change {
            FieldChange::Tenant(name) => Some(name),
            _ => None,
        });
        let other = other.filter(|name| tenant.as_ref() != Some(*name));
        speculation.count_request(tenant.iter().chain(other))?;
    }
    pruning.carry_out(speculation);
    let state = speculation.state();
    let changed = state.modified(order.job, &recorded(state, order)).map(|(changed, _)| changed);
    if state.spec(order.job).is_some_and(|before| changed.is_some_and(|changed| changed != **before)) {
        end_claim(speculation, order.job);
    }
    let (by, job) = (order.by.clone(), order.job);
    // Behind all other records of this change: a move to the front names its own record.
    let changes = recorded(speculation.state(), order).into_owned();
    let at = speculation.push(Decision::JobModified { request: key, by, job, changes, estimate });
    stop_to_shrink(speculation, key, order);
    settle(speculation, job);
    Ok(Answer::Done { at })
}

/// The changes as they are recorded. Of a job that has been placed, another number of workers of its only group is a size within
/// the bounds that it was submitted with. A move to the front has the record that it will be. What it asks of its nodes keeps the
/// conditions that its contract comes to.
fn recorded<'a>(state: &State, order: &'a ModifyOrder) -> Cow<'a, [FieldChange]> {
    let is_placed = state.job(order.job).is_some_and(|row| row.phase != Phase::Pending);
    let only = state.spec(order.job).and_then(|spec| match spec.groups.as_slice() {
        [only] if is_placed && only.workers_min < only.workers => Some(only),
        _ => None,
    });
    let as_recorded = |change: &FieldChange| match change {
        FieldChange::Front(_) => Some(FieldChange::Front(Some(state.log_index().next()))),
        // What its workers ask for keeps it from the same nodes as before.
        FieldChange::Nodes(nodes) => {
            let required = with_features(nodes.as_deref(), state.contract(order.job)?);
            (required != *nodes).then_some(FieldChange::Nodes(required))
        }
        FieldChange::Groups(sizes) => match (only, sizes.as_slice()) {
            (Some(only), [size])
                if size.workers_min.is_none()
                    && size.group.as_ref().is_none_or(|name| *name == only.name) =>
            {
                Some(FieldChange::Size((size.workers != only.workers).then_some(size.workers)))
            }
            _ => None,
        },
        _ => None,
    };
    if !order.changes.iter().any(|change| as_recorded(change).is_some()) {
        return Cow::Borrowed(order.changes.as_slice());
    }
    let all = order.changes.iter().map(|change| as_recorded(change).unwrap_or_else(|| change.clone()));
    Cow::Owned(all.collect())
}

/// Set in the id of a request whose change of size stops the gang, for the record that stops it.
const STOPS_FOR_SIZE: u128 = (1 << 127) | 0x5349_5a45;

/// The id of the record that stops a gang for a change of its size, by the id of the request that changed it.
#[must_use]
pub fn stop_request_of(request: RequestId) -> RequestId {
    RequestId(request.0 ^ STOPS_FOR_SIZE)
}

/// A gang that runs with more workers than it is to have is stopped, and waits again in its position. One that is being stopped and
/// has a place for more elsewhere gives that up. One that is to have more grows when nobody waits for the capacity.
fn stop_to_shrink(speculation: &mut Speculation, key: RequestKey, order: &ModifyOrder) {
    let state = speculation.state();
    let Some((row, spec)) = state.job(order.job).zip(state.spec(order.job)) else { return };
    let above = |workers: usize| spec.size.is_some_and(|size| workers > size as usize);
    let is_larger = row.placement.as_ref().is_some_and(|placement| above(placement.slots.len()));
    let runs = matches!(row.phase, Phase::Starting | Phase::Running) && !row.cancel_requested;
    let request = RequestKey { id: stop_request_of(key.id), ..key };
    let is_asked = order.changes.iter().any(|change| matches!(change, FieldChange::Groups(_)));
    let is_promised_more = row.promise.as_ref().is_some_and(|promise| above(promise.slots.len()));
    if is_asked && is_promised_more && matches!(row.phase, Phase::Stopping(_)) {
        speculation.push(Decision::PromiseDropped { job: order.job });
        return;
    }
    if !(is_larger && runs && is_asked) || state.request(request.id).is_some() {
        return;
    }
    let (by, jobs) = (order.by.clone(), alloc::vec![order.job]);
    speculation.push(Decision::JobRequeueRequested { request, by, jobs, suspended: false });
}

/// The tenant that a job is to be of from now on is one that the caller acts for, and can have the job.
fn check_tenant(state: &State, order: &ModifyOrder, changed: &JobSpec) -> Result<(), Refusal> {
    let tenant = &changed.tenant;
    let policy = &state.policy().policy;
    if let Some(own) =
        order.acts_for.as_ref().filter(|own| !policy.ancestry(tenant).any(|above| above == *own))
    {
        let text = format!("acts for tenant {own} and those below it, not for {tenant}");
        return Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", tenant));
    }
    if changed.array.is_some() {
        let text = "is that of the array, of which this job is a member";
        return Err(Refusal::fields(alloc::vec![Violation::new("job.tenant", text)]));
    }
    Ok(())
}
