//! Commands next to workers and connections to their ports: what is checked and recorded before a node is asked for one.

use muster_decider::Command;
use muster_state::{Phase, RankState};
use muster_types::{Feature, FencingToken, JobId, Refusal, RefusalCode, Requester, Violation};

use crate::engine::Engine;
use crate::sessions::execs::{CallerSide, ExecOrder, NodeSide, RELAY_BEGINS_MAX};
use crate::sessions::messages::Outbound;

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// Who asks.
    pub by: Requester,
    /// Which job.
    pub job: JobId,
    /// Which placement; none for the current one.
    pub token: Option<FencingToken>,
    /// The worker, by its rank in the gang.
    pub rank: u32,
    /// What for.
    pub purpose: ExecPurpose,
}

/// What somebody wants next to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecPurpose {
    /// To run a command. What that begins with, for the record; at most [`muster_types::limits::EXEC_TEXT_BYTES_MAX`] bytes.
    Command(String),
    /// To connect to this port of the worker; never 0.
    Port(u16),
}

impl Engine {
    /// Records that a command is run next to a worker, or that somebody connects to a port of it, and asks the worker's agent to
    /// open a relay for it. This replica must lead: sessions are here. The command or the port is the first that the caller
    /// sends.
    ///
    /// # Errors
    /// When no such worker runs, or its node has no session or cannot do this.
    pub async fn exec(&self, request: ExecRequest) -> Result<CallerSide, Refusal> {
        let ExecRequest { by, job, token, rank, purpose } = request;
        let view = self.view();
        let row = view.job(job).ok_or_else(|| {
            Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")).with("job_id", job)
        })?;
        if matches!(row.phase, Phase::Finished(_)) {
            let text = format!("{job} has ended; nothing of it runs");
            return Err(Refusal::new(RefusalCode::JobFinished, text).with("job_id", job));
        }
        let not_started = |text: String| {
            Refusal::new(RefusalCode::WorkerNotStarted, text).with("job_id", job).with("rank", rank)
        };
        let placement = row.placement.as_ref().ok_or_else(|| not_started(format!("{job} is not placed")))?;
        if token.is_some_and(|token| token != placement.token) {
            let text =
                format!("{job} runs under token {}, not under the one that is asked for", placement.token);
            return Err(Refusal::new(RefusalCode::Fenced, text));
        }
        let (slot, state) =
            placement.slots.get(rank as usize).zip(placement.ranks.get(rank as usize)).ok_or_else(|| {
                let last = placement.slots.len().saturating_sub(1);
                let text = format!("{job} has no rank {rank}; its ranks are 0 to {last}");
                Refusal::fields(vec![Violation::new("start.rank", text)])
            })?;
        match state {
            RankState::Running if matches!(row.phase, Phase::Starting | Phase::Running) => {}
            RankState::Assigned => {
                return Err(not_started(format!("rank {rank} of {job} is placed and has not started")));
            }
            RankState::Running | RankState::Exited(_) | RankState::Lost => {
                let text = format!("rank {rank} of {job} does not run, or is being stopped");
                return Err(Refusal::new(RefusalCode::Fenced, text));
            }
        }
        let (node, token) = (slot.node, placement.token);
        let Some(name) = view.node(node).map(|row| row.spec.name.clone()) else {
            let text = format!("the worker is on {node}, which has been forgotten");
            return Err(Refusal::new(RefusalCode::ExecUnavailable, text));
        };
        let unavailable = |text: String| Refusal::new(RefusalCode::ExecUnavailable, text).with("node", &name);
        let outbound = self.session_of(node).await.map_err(|refusal| match refusal.code {
            RefusalCode::LogsUnavailable | RefusalCode::OutputNotFound => {
                unavailable(format!("the worker is on {name}, which has no session at present"))
            }
            _ => refusal,
        })?;
        let (feature, lacking) = match &purpose {
            ExecPurpose::Command(_) => (Feature::Exec, "runs no commands next to workers"),
            ExecPurpose::Port(_) => (Feature::PortForward, "connects nobody to ports of workers"),
        };
        if !self.inner.sessions.takes(node).has(feature) {
            return Err(unavailable(format!("the agent of {name} is of a release that {lacking}")));
        }
        // In the log before anything is run.
        let record = match purpose {
            ExecPurpose::Command(command) => Command::OpenExec { by, job, token, rank, command },
            ExecPurpose::Port(port) => Command::OpenPortForward { by, job, token, rank, port },
        };
        self.execute(record).await?;
        let (relay_id, side) = self.inner.execs.open(name.clone(), token)?;
        if outbound.try_send(Outbound::Exec(ExecOrder { relay_id, job, token, rank })).is_err() {
            self.inner.execs.give_up(relay_id, "the node's session takes no order at present");
            return Ok(side);
        }
        let engine = self.clone();
        tokio::spawn(async move {
            // A relay that was opened ends by itself; one that is not opened is noticed by nobody.
            tokio::select! {
                () = tokio::time::sleep(RELAY_BEGINS_MAX) => {}
                () = outbound.closed() => {}
                () = engine.stopping() => {}
            }
            engine.inner.execs.give_up(relay_id, "the node's agent did not answer");
        });
        Ok(side)
    }

    /// The side of the node of a relay, for the agent of that node; none when nobody waits for it any more.
    #[must_use]
    pub fn exec_relay(&self, relay_id: u64, node: &str) -> Option<NodeSide> {
        self.inner.execs.take(relay_id, node)
    }
}
