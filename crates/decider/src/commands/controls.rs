//! What people ask of jobs that exist: that they end, wait, go on or begin again.
//!
//! One record carries out a request for all its jobs, so that repeating the request has no further effect. A job that
//! was named is refused with what it is by now; one that a selector found, and that has moved on since, is passed over.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Outcome, RequestKey, hash};
use muster_state::{JobRow, MemberEnd, Phase, RequestAnswer, State, will_wait};
use muster_types::{
    ArrayId, Control, JobId, LogIndex, Name, Refusal, RefusalCode, RequestId, Requester, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::rules::share::check_rows;
use crate::settle::array::{leave_dependents, leave_dependents_of_jobs};
use crate::settle::job::settle_many;
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// Which jobs something is asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSelection {
    /// A hash of what was asked for, in the client's words: what a selector finds differs from one time to the next, and a
    /// request that is repeated is the same request.
    pub asked: u64,
    /// At most [`limits::CONTROLLED_JOBS_MAX`]. A member of an array may be named that is not created.
    pub jobs: Vec<JobId>,
    /// Arrays whose members that are not created are meant, too; at most [`limits::CONTROLLED_ARRAYS_MAX`].
    pub arrays: Vec<ArrayId>,
    /// Whether a selector found them: those that it cannot be asked of any more are passed over.
    pub is_found: bool,
}

impl JobSelection {
    /// Jobs that were named.
    #[must_use]
    pub fn named(jobs: Vec<JobId>) -> JobSelection {
        JobSelection { asked: hash(&jobs), jobs, arrays: Vec::new(), is_found: false }
    }
}

/// What is asked of some jobs, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks for it, as it is recorded.
    pub by: Requester,
    /// The tenant that the one who asks acts for, and for those below it; none acts for all.
    pub acts_for: Option<Name>,
    /// The control.
    pub control: Control,
    /// The jobs.
    pub selection: JobSelection,
}

/// A job is one of the tenant that is acted for, or of one below it. This is asked of the state that the order is carried out
/// on: the one who asks may have named a job that no replica has applied yet.
///
/// # Errors
/// As if there were no such job.
pub fn check_acts_for(state: &State, acts_for: Option<&Name>, job: JobId) -> Result<(), Refusal> {
    let Some(own) = acts_for else { return Ok(()) };
    let policy = &state.policy().policy;
    let may = |tenant: &Name| policy.ancestry(tenant).any(|above| above == own);
    if state.tenant_of(job).is_some_and(may) { Ok(()) } else { Err(not_found(job)) }
}

/// Whether it would change anything to ask this of a job; a refusal where it cannot be asked.
///
/// # Errors
/// With what the job is.
pub fn check_control(state: &State, control: Control, by: &Requester, job: JobId) -> Result<bool, Refusal> {
    let Some(row) = state.job(job) else { return check_member(state, control, by, job) };
    check_unfinished(job, row)?;
    let conflict = |text: String| Err(conflict(job, row, text));
    match control {
        Control::Cancel => Ok(!row.cancel_requested),
        _ if row.cancel_requested => conflict(format!("{job} is being cancelled")),
        Control::Release => {
            let Some(hold) = state.hold(job) else { return Ok(false) };
            if hold.by.is_operator && !by.is_operator {
                let text = format!(
                    "{job} is held by {}, an operator, since {}; only an operator can release it",
                    hold.by, hold.since
                );
                let refusal = Refusal::new(RefusalCode::JobHeld, text);
                return Err(refusal.with("job_id", job).with("held_by", &hold.by));
            }
            Ok(true)
        }
        Control::Hold if will_wait(row) => {
            let is_weaker = |hold: &muster_state::HoldRow| by.is_operator && !hold.by.is_operator;
            Ok(state.hold(job).is_none_or(is_weaker))
        }
        Control::Hold => conflict(format!(
            "{} and can be held only while it waits; `muster job suspend {job}` stops it and holds it",
            described(job, row)
        )),
        Control::Requeue | Control::Suspend => match &row.phase {
            Phase::Starting | Phase::Running => Ok(true),
            Phase::Pending if control == Control::Suspend => conflict(format!(
                "{} and can be suspended only while it runs; `muster job hold {job}` keeps it from starting",
                described(job, row)
            )),
            Phase::Pending => {
                conflict(format!("{}; only a job that runs can be requeued", described(job, row)))
            }
            _ => conflict(format!(
                "{} already; `muster job hold {job}` keeps it from starting again once it waits",
                described(job, row)
            )),
        },
    }
}

/// The same of a member of an array that has no row among the jobs.
fn check_member(state: &State, control: Control, by: &Requester, job: JobId) -> Result<bool, Refusal> {
    let (array, ordinal) = state.array_of(job).ok_or_else(|| not_found(job))?;
    if let Some(how) = state.member_end(array, ordinal) {
        let how = match how {
            MemberEnd::Succeeded => "it succeeded",
            MemberEnd::Failed => "it failed",
            MemberEnd::Cancelled => "it was cancelled",
        };
        let text = format!("{job} has already finished: {how}");
        return Err(Refusal::new(RefusalCode::JobFinished, text).with("job_id", job));
    }
    let row = state.array(array).ok_or_else(|| not_found(job))?;
    let refusal = |text: String| {
        let refusal = Refusal::new(RefusalCode::JobPhase, text).with("job_id", job);
        Err(refusal.with("phase", "pending").with("changed_at_index", row.changed_at))
    };
    match control {
        Control::Cancel => Ok(true),
        // What its array is held by holds it already.
        Control::Hold => Ok(row.hold.as_ref().is_none_or(|hold| by.is_operator && !hold.by.is_operator)),
        Control::Release if row.hold.is_some() => refusal(format!(
            "{job} is held with the rest of {array}, and can be released only with it; `muster job release --array {array}`"
        )),
        Control::Release => Ok(false),
        Control::Requeue => refusal(format!("{job} waits; only a job that runs can be requeued")),
        Control::Suspend => refusal(format!(
            "{job} waits and can be suspended only while it runs; `muster job hold {job}` keeps it from starting"
        )),
    }
}

/// Whether it would change anything to ask this of the members of an array that are not created.
///
/// # Errors
/// `JOB_NOT_FOUND` when there is no such array, and `JOB_HELD` when an operator holds it.
pub fn check_array_control(
    state: &State,
    control: Control,
    by: &Requester,
    array: ArrayId,
) -> Result<bool, Refusal> {
    let row = state.array(array).ok_or_else(|| not_found(JobId(array.0)))?;
    let hold = row.hold.as_ref();
    Ok(match control {
        _ if row.uncreated == 0 => false,
        Control::Cancel => true,
        Control::Hold => hold.is_none_or(|hold| by.is_operator && !hold.by.is_operator),
        Control::Release => match hold {
            Some(hold) if hold.by.is_operator && !by.is_operator => {
                let text = format!(
                    "{array} is held by {}, an operator, since {}; only an operator can release it",
                    hold.by, hold.since
                );
                let refusal = Refusal::new(RefusalCode::JobHeld, text);
                return Err(refusal.with("job_id", JobId(array.0)).with("held_by", &hold.by));
            }
            hold => hold.is_some(),
        },
        Control::Requeue | Control::Suspend => false,
    })
}

/// What a job does, with the record since which it does.
fn described(job: JobId, row: &JobRow) -> String {
    let at = row.placement.as_ref().map(|placement| placement.token.log_index);
    let placed = at.map(|at| format!(" (placed by record {at})")).unwrap_or_default();
    match &row.phase {
        Phase::Pending if row.held => format!("{job} is held"),
        Phase::Pending => format!("{job} waits"),
        Phase::Starting => format!("{job} is being started{placed}"),
        Phase::Running => format!("{job} runs{placed}"),
        Phase::Stopping(_) => format!("{job} is being stopped"),
        Phase::Finished(_) => format!("{job} has finished"),
    }
}

pub(super) fn not_found(job: JobId) -> Refusal {
    Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")).with("job_id", job)
}

pub(super) fn check_unfinished(job: JobId, row: &JobRow) -> Result<(), Refusal> {
    let Phase::Finished(outcome) = &row.phase else { return Ok(()) };
    let text = match outcome {
        Outcome::Succeeded => format!("{job} has already finished: it succeeded"),
        Outcome::Cancelled => format!("{job} has already finished: it was cancelled"),
        Outcome::Failed { detail } => format!("{job} has already finished: it failed, {detail}"),
    };
    Err(Refusal::new(RefusalCode::JobFinished, text).with("job_id", job))
}

/// Something else came first: the job is not what it was taken for.
fn conflict(job: JobId, row: &JobRow, text: String) -> Refusal {
    with_state(Refusal::new(RefusalCode::JobPhase, text), job, row)
}

/// With what a job is by now.
pub(super) fn with_state(refusal: Refusal, job: JobId, row: &JobRow) -> Refusal {
    let phase = match &row.phase {
        Phase::Pending => "pending",
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Stopping(_) => "stopping",
        Phase::Finished(_) => "finished",
    };
    refusal.with("job_id", job).with("phase", phase).with("changed_at_index", row.changed_at)
}

/// The same where a change is asked for that only a waiting job can have.
pub(super) fn not_waiting(job: JobId, row: &JobRow, field: &str) -> Refusal {
    let text = format!(
        "{}: its {field} can be changed only while it waits; of a job that has been placed the run time limit, labels and \
         annotations can, and of an elastic one with one group the number of workers",
        described(job, row)
    );
    conflict(job, row, text)
}

pub(super) fn is_being_cancelled(job: JobId, row: &JobRow) -> Refusal {
    conflict(job, row, format!("{job} is being cancelled"))
}

/// Carries out what is asked of some jobs: of all that are named, or of none.
pub(super) fn control(speculation: &mut Speculation, order: &ControlOrder) -> Result<Answer, Refusal> {
    let ControlOrder { request, by, control, selection, .. } = order;
    let fingerprint = hash(&(control.as_str(), selection.asked, selection.is_found));
    let key = RequestKey { id: *request, fingerprint };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let max = limits::CONTROLLED_JOBS_MAX;
    if selection.jobs.len() > max {
        let found = Violation::limit("job_ids", selection.jobs.len() as u64, 1, max as u64);
        return Err(Refusal::fields(alloc::vec![found]));
    }
    if !by.is_valid() {
        let max = limits::CREATOR_BYTES_MAX;
        let text = format!("must be at most {max} bytes of printable ASCII");
        return Err(Refusal::fields(alloc::vec![Violation::new("by", text)]));
    }
    let mut named = selection.jobs.clone();
    named.sort_unstable();
    named.dedup();
    let jobs = jobs_to_change(speculation.state(), order, &named)?;
    let arrays = arrays_to_change(speculation.state(), order)?;
    if named.is_empty() && selection.arrays.is_empty() {
        // Nothing was asked of anybody, so that there is nothing to remember.
        let at = speculation.last_index();
        return Ok(Answer::Controlled { jobs: 0, last: None, is_repeat: false, at });
    }
    // A caller that ends many jobs is not held up, nor is an operator. Everything else can be asked of one job without end.
    let asks_to_end = *control == Control::Cancel && !(jobs.is_empty() && arrays.is_empty());
    let is_counted = !asks_to_end && !by.is_operator;
    let state = speculation.state();
    let new_rows = match control {
        Control::Hold => new_rows(state, &jobs),
        _ => BTreeMap::new(),
    };
    if !by.is_operator {
        check_rows(state, &new_rows)?;
    }
    let pruning = pruning_for_request(speculation, is_counted, new_rows.values().sum())?;
    if is_counted {
        let state = speculation.state();
        let of_arrays = selection.arrays.iter().map(|array| JobId(array.0));
        let named = named.iter().copied().chain(of_arrays);
        let tenants: Vec<Name> = named.filter_map(|job| state.tenant_of(job)).cloned().collect();
        speculation.count_request(tenants.iter())?;
    }
    pruning.carry_out(speculation);
    let at = record(speculation, key, order, jobs, arrays);
    let (jobs, last) = match speculation.state().request(key.id).map(|row| &row.answer) {
        Some(RequestAnswer::Controlled { jobs, last }) => (*jobs, *last),
        _ => (0, None),
    };
    Ok(Answer::Controlled { jobs, last, is_repeat: false, at })
}

/// The jobs that were named and of which something is left to be asked.
fn jobs_to_change(state: &State, order: &ControlOrder, named: &[JobId]) -> Result<Vec<JobId>, Refusal> {
    let ControlOrder { by, acts_for, control, selection, .. } = order;
    let mut jobs = Vec::with_capacity(named.len());
    for job in named {
        let may = check_acts_for(state, acts_for.as_ref(), *job);
        match may.and_then(|()| check_control(state, *control, by, *job)) {
            Ok(true) => jobs.push(*job),
            Ok(false) => {}
            Err(_) if selection.is_found => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(jobs)
}

/// Rows that members get which are made jobs because they are named, by tenant.
fn new_rows<'a>(state: &'a State, jobs: &[JobId]) -> BTreeMap<&'a Name, u64> {
    let mut new = BTreeMap::new();
    let members = jobs.iter().filter(|job| state.waiting_member(**job).is_some());
    members.filter_map(|job| state.tenant_of(*job)).for_each(|tenant| *new.entry(tenant).or_default() += 1);
    new
}

/// The arrays that were selected and of which something is left to be asked.
fn arrays_to_change(state: &State, order: &ControlOrder) -> Result<Vec<ArrayId>, Refusal> {
    let ControlOrder { by, acts_for, control, selection, .. } = order;
    let max = limits::CONTROLLED_ARRAYS_MAX;
    if selection.arrays.len() > max {
        let found = Violation::limit("array_ids", selection.arrays.len() as u64, 0, max as u64);
        return Err(Refusal::fields(alloc::vec![found]));
    }
    let mut named = selection.arrays.clone();
    named.sort_unstable();
    named.dedup();
    let mut arrays = Vec::new();
    for array in named {
        let may = check_acts_for(state, acts_for.as_ref(), JobId(array.0));
        match may.and_then(|()| check_array_control(state, *control, by, array)) {
            Ok(true) => arrays.push(array),
            Ok(false) => {}
            Err(_) if selection.is_found => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(arrays)
}

/// Capacity that is held for a job that waits is given back: the job is not to be placed, or asks for something else.
pub(super) fn end_claim(speculation: &mut Speculation, job: JobId) {
    let row = speculation.state().job(job);
    if row.is_some_and(|row| row.phase == Phase::Pending && row.promise.is_some()) {
        speculation.push(Decision::PromiseDropped { job });
    }
}

fn record(
    speculation: &mut Speculation,
    request: RequestKey,
    order: &ControlOrder,
    jobs: Vec<JobId>,
    arrays: Vec<ArrayId>,
) -> LogIndex {
    if order.control == Control::Hold {
        jobs.iter().for_each(|job| end_claim(speculation, *job));
    }
    let by = order.by.clone();
    // Members that are cancelled without having been jobs: nothing is to be settled of them but who waits for them.
    let state = speculation.state();
    let is_ended = |job: &JobId| order.control == Control::Cancel && state.waiting_member(*job).is_some();
    let (members, unsettled): (Vec<JobId>, Vec<JobId>) = jobs.iter().copied().partition(is_ended);
    let ended_arrays = if order.control == Control::Cancel { arrays.clone() } else { Vec::new() };
    let decision = match order.control {
        control if !arrays.is_empty() => Decision::ArraysControlled { request, by, control, arrays, jobs },
        Control::Cancel => Decision::JobCancelRequested { request, by, jobs },
        Control::Hold => Decision::JobHoldSet { request, by, jobs, held: true },
        Control::Release => Decision::JobHoldSet { request, by, jobs, held: false },
        Control::Requeue => Decision::JobRequeueRequested { request, by, jobs, suspended: false },
        Control::Suspend => Decision::JobRequeueRequested { request, by, jobs, suspended: true },
    };
    let at = speculation.push(decision);
    leave_dependents_of_jobs(speculation, &members);
    ended_arrays.into_iter().for_each(|array| leave_dependents(speculation, array));
    settle_many(speculation, unsettled);
    at
}
