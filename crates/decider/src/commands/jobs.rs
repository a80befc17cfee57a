//! Jobs that exist: cancelled, and what is reported of them.

use alloc::format;
use muster_journal::{Decision, Outcome, RequestKey, hash};
use muster_state::Phase;
use muster_types::{FencingToken, JobId, Refusal, RefusalCode, RequestId};

use crate::commands::answer::{Answer, repeated};
use crate::settle::job::settle;
use crate::speculation::Speculation;

pub(super) fn cancel(
    speculation: &mut Speculation,
    request: RequestId,
    job: JobId,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("cancel", job)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let Some(row) = speculation.state().job(job) else {
        return Err(
            Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")).with("job_id", job)
        );
    };
    if let Phase::Finished(outcome) = &row.phase {
        let text = match outcome {
            Outcome::Succeeded => format!("{job} has already finished: it succeeded"),
            Outcome::Cancelled => format!("{job} has already finished: it was cancelled"),
            Outcome::Failed { detail } => format!("{job} has already finished: it failed, {detail}"),
        };
        return Err(Refusal::new(RefusalCode::JobFinished, text).with("job_id", job));
    }
    // An operator who ends many jobs is not held up. Repeated cancellations of one job count, because they end it no sooner.
    if row.cancel_requested {
        let tenant = speculation.state().spec(job).map(|spec| spec.tenant.clone());
        speculation.count_request(tenant.iter())?;
    }
    let at = speculation.push(Decision::JobCancelRequested { request: key, job });
    settle(speculation, job);
    Ok(Answer::Done { at })
}

/// What comes too late is not worth a refusal: it is said again if it stays so.
pub(super) fn note_straggler(
    speculation: &mut Speculation,
    job: JobId,
    token: FencingToken,
    rank: u32,
    slow_milli: Option<u32>,
) -> Answer {
    let decision = Decision::StragglerNoted { job, token, rank, slow_milli };
    if speculation.state().check(&decision).is_err() {
        return Answer::Done { at: speculation.last_index() };
    }
    Answer::Done { at: speculation.push(decision) }
}

/// Late and repeated reports change nothing: the gang may be over, or another attempt be running.
pub(super) fn commit_checkpoint(
    speculation: &mut Speculation,
    job: JobId,
    token: FencingToken,
) -> Result<Answer, Refusal> {
    let Some(row) = speculation.state().job(job) else {
        return Err(Refusal::new(RefusalCode::JobNotFound, format!("there is no {job}")).with("job_id", job));
    };
    let runs = matches!(row.phase, Phase::Running | Phase::Stopping(_));
    let current = row.placement.as_ref().is_some_and(|p| p.token == token && p.live > 0);
    if !runs || !current {
        let text = format!("{job} does not run under token {token}");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    }
    let at = speculation.push(Decision::CheckpointCommitted { job, token });
    Ok(Answer::Done { at })
}
