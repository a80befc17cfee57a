//! What the leader is asked to do, and what it answers.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, NodeLostCause, Outcome, RankUpdate, RequestKey, canonical, hash};
use muster_planner::could_ever;
use muster_state::{Phase, RequestAnswer, State};
use muster_types::{
    FencingToken, GangClass, HolderId, JobId, JobSpec, LogIndex, NodeId, NodeSpec, Refusal, RefusalCode,
    RequestId, Violation, limits,
};

use crate::speculation::Speculation;
use crate::{job, node};

/// Bytes of one submission: keeps a round far below its bound.
pub const SUBMISSION_BYTES_MAX: usize = 1 << 20;

/// An input for the leader.
#[derive(Clone, Debug)]
pub enum Command {
    /// Submit jobs, all or none.
    Submit {
        /// The client's name for it.
        request: RequestId,
        /// At most [`limits::BATCH_JOBS_MAX`].
        specs: Vec<JobSpec>,
    },
    /// Cancel a job.
    Cancel {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        job: JobId,
    },
    /// Cordon a node or put it back.
    SetCordon {
        /// The client's name for it.
        request: RequestId,
        /// Which.
        node: NodeId,
        /// Which way.
        cordoned: bool,
    },
    /// An agent opens a session.
    Register {
        /// Its host.
        spec: NodeSpec,
        /// Itself.
        holder: HolderId,
        /// Whether the session of another holder, if there is one, is known to have run out.
        other_session_is_over: bool,
    },
    /// A session has run out by the leader's clock.
    SessionOver {
        /// Which node.
        node: NodeId,
        /// The incarnation whose session it was.
        incarnation: u32,
    },
    /// A node reports on a gang's workers.
    Report {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Rank and what happened; obsolete ones are dropped.
        updates: Vec<(u32, RankUpdate)>,
    },
}

/// What a command led to. `at` is the record to wait for before anybody is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Jobs exist.
    Submitted {
        /// In the order submitted.
        jobs: Vec<JobId>,
        /// The record.
        at: LogIndex,
    },
    /// A node's session stands.
    Registered {
        /// Its id.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
    /// Carried out, or nothing left to do.
    Done {
        /// The record, or the position when nothing had to change.
        at: LogIndex,
    },
}

impl Answer {
    /// The record to wait for.
    #[must_use]
    pub fn at(&self) -> LogIndex {
        match self {
            Answer::Submitted { at, .. } | Answer::Registered { at, .. } | Answer::Done { at } => *at,
        }
    }
}

/// Carries out a command on the speculation.
///
/// # Errors
/// A refusal; then nothing was pushed.
pub fn handle(speculation: &mut Speculation, command: &Command) -> Result<Answer, Refusal> {
    match command {
        Command::Submit { request, specs } => submit(speculation, *request, specs),
        Command::Cancel { request, job } => cancel(speculation, *request, *job),
        Command::SetCordon { request, node, cordoned } => cordon(speculation, *request, *node, *cordoned),
        Command::Register { spec, holder, other_session_is_over } => {
            node::register(speculation, spec, *holder, *other_session_is_over)
        }
        Command::SessionOver { node, incarnation } => {
            Ok(node::lost(speculation, *node, *incarnation, NodeLostCause::LeaseExpired))
        }
        Command::Report { node, incarnation, job, token, updates } => {
            node::report(speculation, *node, *incarnation, *job, *token, updates)
        }
    }
}

/// The answer given before under this request id, if there was one.
fn repeated(speculation: &Speculation, key: RequestKey) -> Result<Option<Answer>, Refusal> {
    let Some(row) = speculation.state().request(key.id) else { return Ok(None) };
    if row.fingerprint != key.fingerprint {
        let text = format!("request id {} was used before for a different request; make a new one", key.id);
        return Err(Refusal::new(RefusalCode::RequestIdReused, text).with("log_index", row.log_index));
    }
    let at = row.log_index;
    Ok(Some(match row.answer {
        RequestAnswer::Submitted { jobs } => {
            Answer::Submitted { jobs: (0..jobs as usize).map(|n| JobId::derive(at, n)).collect(), at }
        }
        RequestAnswer::CancelRequested { .. } | RequestAnswer::CordonSet { .. } => Answer::Done { at },
    }))
}

/// What every submission must pass besides each job's own rules; also the check without a change.
///
/// # Errors
/// The refusal.
pub fn check_submission(state: &State, specs: &[JobSpec]) -> Result<(), Refusal> {
    let max = limits::BATCH_JOBS_MAX;
    if specs.is_empty() || specs.len() > max {
        return Err(Refusal::fields(alloc::vec![Violation::limit(
            "specs",
            specs.len() as u64,
            1,
            max as u64
        )]));
    }
    // Members of an array ask for the same: one look at the fleet answers for all.
    let mut seen: BTreeSet<GangClass> = BTreeSet::new();
    for (place, spec) in specs.iter().enumerate() {
        if !seen.insert(GangClass::of(spec)) {
            continue;
        }
        if let Err(never) = could_ever(state, spec) {
            return Err(Refusal::new(RefusalCode::NeverFits, format!("job {}: {never}", spec.name))
                .with("spec_index", place)
                .with("group", &never.group)
                .with("wanted", &never.wanted)
                .with("closest", &never.closest));
        }
    }
    Ok(())
}

fn submit(speculation: &mut Speculation, request: RequestId, specs: &[JobSpec]) -> Result<Answer, Refusal> {
    let bytes = canonical(specs);
    if bytes.len() > SUBMISSION_BYTES_MAX {
        let text = format!("must be at most {SUBMISSION_BYTES_MAX} bytes together, got {}", bytes.len());
        return Err(Refusal::fields(alloc::vec![Violation::new("specs", text)]));
    }
    let key = RequestKey { id: request, fingerprint: hash(&bytes) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_submission(speculation.state(), specs)?;
    let at = speculation.push(Decision::JobsSubmitted { request: key, specs: specs.to_vec() });
    Ok(Answer::Submitted { jobs: (0..specs.len()).map(|n| JobId::derive(at, n)).collect(), at })
}

fn cancel(speculation: &mut Speculation, request: RequestId, job: JobId) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("cancel", job)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let Some(row) = speculation.state().job(job) else {
        return Err(Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")));
    };
    if let Phase::Finished(outcome) = &row.phase {
        let text = match outcome {
            Outcome::Succeeded => format!("{job} has already finished: it succeeded"),
            Outcome::Cancelled => format!("{job} has already finished: it was cancelled"),
            Outcome::Failed { detail } => format!("{job} has already finished: it failed, {detail}"),
        };
        return Err(Refusal::new(RefusalCode::JobFinished, text));
    }
    let at = speculation.push(Decision::JobCancelRequested { request: key, job });
    job::settle(speculation, job);
    Ok(Answer::Done { at })
}

fn cordon(
    speculation: &mut Speculation,
    request: RequestId,
    node: NodeId,
    cordoned: bool,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("cordon", node, cordoned)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    if speculation.state().node(node).is_none() {
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")));
    }
    let at = speculation.push(Decision::NodeCordonSet { request: key, node, cordoned });
    Ok(Answer::Done { at })
}
