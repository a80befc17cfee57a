//! What is reported of jobs that run.

use alloc::borrow::ToOwned;
use alloc::format;
use muster_journal::Decision;
use muster_state::Phase;
use muster_types::{Artifacts, FencingToken, JobId, Refusal, RefusalCode, Requester};

use crate::commands::answer::Answer;
use crate::speculation::Speculation;

/// What comes too late is not worth a refusal: it is reported again if it stays so.
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

/// Notes that somebody has a command run next to a worker.
pub(super) fn open_exec(
    speculation: &mut Speculation,
    by: &Requester,
    job: JobId,
    token: FencingToken,
    rank: u32,
    command: &str,
) -> Result<Answer, Refusal> {
    let decision = Decision::ExecOpened { by: by.clone(), job, token, rank, command: command.to_owned() };
    if speculation.state().check(&decision).is_err() {
        let text = format!("rank {rank} of {job} does not run under token {token}");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    }
    Ok(Answer::Done { at: speculation.push(decision) })
}

/// Notes that somebody connects to a port of a worker.
pub(super) fn open_port_forward(
    speculation: &mut Speculation,
    by: &Requester,
    job: JobId,
    token: FencingToken,
    rank: u32,
    port: u16,
) -> Result<Answer, Refusal> {
    let decision = Decision::PortForwardOpened { by: by.clone(), job, token, rank, port };
    if speculation.state().check(&decision).is_err() {
        let text = format!("rank {rank} of {job} does not run under token {token}");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    }
    Ok(Answer::Done { at: speculation.push(decision) })
}

/// Notes what became of the files of a worker. It comes again until it is acknowledged, so what is known is no new record.
pub(super) fn keep_artifacts(
    speculation: &mut Speculation,
    job: JobId,
    token: FencingToken,
    rank: u32,
    artifacts: Artifacts,
) -> Answer {
    let decision = Decision::ArtifactsKept { job, token, rank, artifacts };
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
    step: Option<u64>,
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
    let at = speculation.push(Decision::CheckpointCommitted { job, token, step });
    Ok(Answer::Done { at })
}
