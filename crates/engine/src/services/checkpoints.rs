//! Commits of checkpoints, at most one a second of each placement.
//!
//! A program that commits after every step would otherwise write to the replicated log as fast as the log takes
//! it. What is reported of a placement within a second of its last record waits for the end of that second and
//! becomes one record, which is the newest; everybody who waited gets its answer.

use muster_consensus::Environment;
use muster_decider::{Answer, Command};
use muster_state::Phase;
use muster_types::{FencingToken, JobId, Refusal, RefusalCode};

use crate::clock::{instant, until};
use crate::engine::Engine;
use crate::refusals::stopping;
use crate::sessions::checkpoints::CommitAction;

/// Which lane a command takes to the decision loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Clients,
    Nodes,
}

impl<G: Environment> Engine<G> {
    /// Logs that a gang has saved its work, as a client reports. Of the reports of one placement within a second only
    /// the newest becomes a record.
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub async fn commit_checkpoint(&self, job: JobId, token: FencingToken) -> Result<Answer, Refusal> {
        self.commit_checkpoint_in(Lane::Clients, (job, token), None).await
    }

    pub(super) async fn commit_checkpoint_in(
        &self,
        lane: Lane,
        (job, token): (JobId, FencingToken),
        step: Option<u64>,
    ) -> Result<Answer, Refusal> {
        // A worker that does not state it may have reported its steps.
        let step = step.or_else(|| self.inner.stragglers.last_step(job, token));
        if !self.is_current(job, token) {
            // Refused, with its reason; there is nothing to remember.
            return self.record_checkpoint(lane, (job, token), step).await;
        }
        let mut next = match self.inner.checkpoints.enter((job, token), step, instant::<G>())? {
            CommitAction::Record => return self.record_checkpoint(lane, (job, token), step).await,
            CommitAction::Wait(next) => next,
            CommitAction::RecordAt(at, sender, receiver) => {
                let engine = self.clone();
                // The caller that asked may go; others may have come to wait by then.
                G::detach(async move {
                    G::pause(until::<G>(at)).await;
                    let step = engine.inner.checkpoints.begin((job, token), instant::<G>());
                    sender.send_replace(Some(engine.record_checkpoint(lane, (job, token), step).await));
                });
                receiver
            }
        };
        let answered = next.wait_for(Option::is_some).await.map_err(|_| stopping())?;
        match answered.clone() {
            // The gang was over before the second was: what was recorded of it is less than a second older.
            Some(Err(Refusal { code: RefusalCode::Fenced, .. })) => {
                Ok(Answer::Done { at: self.view().log_index() })
            }
            Some(answer) => answer,
            None => Err(stopping()),
        }
    }

    /// Whether workers of a placement run, by the applied state.
    fn is_current(&self, job: JobId, token: FencingToken) -> bool {
        let view = self.view();
        let Some(row) = view.job(job) else { return false };
        let runs = matches!(row.phase, Phase::Running | Phase::Stopping(_));
        runs && row.placement.as_ref().is_some_and(|placement| placement.token == token && placement.live > 0)
    }

    async fn record_checkpoint(
        &self,
        lane: Lane,
        (job, token): (JobId, FencingToken),
        step: Option<u64>,
    ) -> Result<Answer, Refusal> {
        let command = Command::CommitCheckpoint { job, token, step };
        match lane {
            Lane::Clients => self.execute(command).await,
            Lane::Nodes => self.execute_for_node(command).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::messages::{Inbound, Outbound};
    use crate::tests::{guarded, leader, open, opening, running, say, submitted, told};
    use std::time::Duration;

    #[tokio::test]
    async fn a_loop_of_commits_is_a_record_a_second_and_the_newest_is_recorded() {
        let engine = leader().await;
        let mut session = open(&engine, opening("h1", 1)).await;
        let job = submitted(&engine, 1, 2).await;
        let token = told(&mut session, "a start order", |message| match message {
            Outbound::Order(crate::Order::Start(start)) => Some(start.placement.token),
            _ => None,
        })
        .await;
        let fenced = engine.commit_checkpoint(job, token).await.expect_err("nothing runs");
        assert_eq!(fenced.code, RefusalCode::Fenced);
        let workers = vec![running(job, token, 0), running(job, token, 1)];
        say(&session, Inbound::Report { sequence: 1, workers }).await;
        told(&mut session, "it runs", |m| matches!(m, Outbound::ReportAck { .. }).then_some(())).await;
        let inbound = session.inbound();
        let beating = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(50));
            for sequence in 1.. {
                ticks.tick().await;
                if inbound.send(Inbound::Heartbeat { sequence }).await.is_err() {
                    return;
                }
            }
        });
        let saved = |at: &Answer| {
            assert!(engine.view().log_index() >= at.at(), "it is answered once it is in the log");
            at.at()
        };
        let mut records = std::collections::BTreeSet::new();
        let first = guarded("the first", engine.commit_checkpoint(job, token)).await.expect("it is taken");
        records.insert(saved(&first));
        let before = engine.view().job(job).and_then(|row| row.checkpointed_at).expect("it has saved");
        for _ in 0..2 {
            let commits = (0..300).map(|_| engine.commit_checkpoint(job, token));
            for answer in guarded("many commits", futures::future::join_all(commits)).await {
                records.insert(saved(&answer.expect("each is answered")));
            }
        }
        assert_eq!(records.len(), 3, "one at once, and one for each of the two rounds: {records:?}");
        let after = engine.view().job(job).and_then(|row| row.checkpointed_at).expect("it has saved");
        assert!(after > before, "the newest is what is known");
        beating.abort();
    }
}
