//! What people ask of jobs that exist: that they end, wait, go on or begin again.
//!
//! One record carries out a request for all its jobs, so that repeating the request has no further effect. A job that
//! was named is refused with what it is by now; one that a selector found, and that has moved on since, is passed over.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Outcome, RequestKey, hash};
use muster_state::{JobRow, Phase, State, will_wait};
use muster_types::{
    Control, JobId, LogIndex, Name, Refusal, RefusalCode, RequestId, Requester, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::settle::job::settle_many;
use crate::settle::retention::headroom_for_request;
use crate::speculation::Speculation;

/// Which jobs something is asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSelection {
    /// A hash of what was asked for, in the client's words: what a selector finds differs from one time to the next, and a
    /// request that is repeated is the same request.
    pub asked: u64,
    /// At most [`limits::CONTROLLED_JOBS_MAX`].
    pub jobs: Vec<JobId>,
    /// Whether a selector found them: those that it cannot be asked of any more are passed over.
    pub is_found: bool,
}

impl JobSelection {
    /// Jobs that were named.
    #[must_use]
    pub fn named(jobs: Vec<JobId>) -> JobSelection {
        JobSelection { asked: hash(&jobs), jobs, is_found: false }
    }
}

/// What is asked of some jobs, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks for it, as it is recorded.
    pub by: Requester,
    /// The control.
    pub control: Control,
    /// The jobs.
    pub selection: JobSelection,
}

/// Whether it would change anything to ask this of a job; a refusal where it cannot be asked.
///
/// # Errors
/// With what the job is.
pub fn check_control(state: &State, control: Control, by: &Requester, job: JobId) -> Result<bool, Refusal> {
    let row = state.job(job).ok_or_else(|| not_found(job))?;
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
         annotations can",
        described(job, row)
    );
    conflict(job, row, text)
}

pub(super) fn is_being_cancelled(job: JobId, row: &JobRow) -> Refusal {
    conflict(job, row, format!("{job} is being cancelled"))
}

/// Carries out what is asked of some jobs: of all that are named, or of none.
pub(super) fn control(speculation: &mut Speculation, order: &ControlOrder) -> Result<Answer, Refusal> {
    let ControlOrder { request, by, control, selection } = order;
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
    let mut jobs = Vec::with_capacity(named.len());
    for job in &named {
        match check_control(speculation.state(), *control, by, *job) {
            Ok(true) => jobs.push(*job),
            Ok(false) => {}
            Err(_) if selection.is_found => {}
            Err(refusal) => return Err(refusal),
        }
    }
    if named.is_empty() {
        // Nothing was asked of anybody, so that there is nothing to remember.
        return Ok(Answer::Controlled { jobs: 0, is_repeat: false, at: speculation.last_index() });
    }
    // A caller that ends many jobs is not held up, nor is an operator. Everything else can be asked of one job without end.
    let is_counted = (jobs.is_empty() || *control != Control::Cancel) && !by.is_operator;
    let headroom = headroom_for_request(speculation, is_counted)?;
    if is_counted {
        let state = speculation.state();
        let tenants: Vec<Name> =
            named.iter().filter_map(|job| state.spec(*job)).map(|spec| spec.tenant.clone()).collect();
        speculation.count_request(tenants.iter())?;
    }
    headroom.make(speculation);
    let count = jobs.len() as u32;
    let at = record(speculation, key, order, jobs);
    Ok(Answer::Controlled { jobs: count, is_repeat: false, at })
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
) -> LogIndex {
    if order.control == Control::Hold {
        jobs.iter().for_each(|job| end_claim(speculation, *job));
    }
    let by = order.by.clone();
    let decision = match order.control {
        Control::Cancel => Decision::JobCancelRequested { request, by, jobs: jobs.clone() },
        Control::Hold => Decision::JobHoldSet { request, by, jobs: jobs.clone(), held: true },
        Control::Release => Decision::JobHoldSet { request, by, jobs: jobs.clone(), held: false },
        Control::Requeue => {
            Decision::JobRequeueRequested { request, by, jobs: jobs.clone(), suspended: false }
        }
        Control::Suspend => {
            Decision::JobRequeueRequested { request, by, jobs: jobs.clone(), suspended: true }
        }
    };
    let at = speculation.push(decision);
    settle_many(speculation, jobs);
    at
}
