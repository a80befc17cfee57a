//! Notes of workers inside another scheduler's job, on their way to the agent: which wait for its answer, and which do not.
//!
//! **Invariant:** no worker stands still for a note that nobody has to answer, while the agent is away; the agent is told once that a
//! worker is ready, however often the worker says it.

use super::runner::{WINDOW, complain};
use crate::limits;
use crate::process::socket::{self, WorkerReport};
use crate::rules::{Placement, WorkerEvent, WorkerKey};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// A socket for the notes of these workers, and what they say there; none where it cannot be made.
pub(super) fn take_notes(
    directory: &Path,
    placement: &Placement,
) -> (Option<PathBuf>, Option<mpsc::Receiver<WorkerReport>>) {
    let path = directory.join("notes");
    let listener = match socket::open(&path) {
        Ok(listener) => listener,
        Err(error) => {
            let at = path.display();
            complain(0, &format!("{at}: {error}: checkpoints and steps are not reported"));
            return (None, None);
        }
    };
    let (events, heard) = mpsc::channel(WINDOW);
    let (tell, said) = mpsc::channel(limits::NOTES_WAITING_MAX);
    let keys = placement.ranks().map(|rank| placement.key(rank)).collect();
    tokio::spawn(socket::serve::<WorkerReport>(listener, events, directory.join("tasks")));
    tokio::spawn(sort_notes(keys, heard, tell));
    (Some(path), Some(said))
}

type Answer = Result<(), String>;

/// Workers that are ready: of which the agent knows, and who waits for its answer.
#[derive(Default)]
struct ReadyWorkers {
    known: BTreeSet<WorkerKey>,
    waiting: BTreeMap<WorkerKey, Vec<oneshot::Sender<Answer>>>,
    /// One for each worker of which the agent was told; no answer where nobody gives one any more.
    asked: JoinSet<(WorkerKey, Option<Answer>)>,
}

impl ReadyWorkers {
    /// Takes a worker that is ready. Returns what the agent is to be told, where it does not know that and was not told.
    fn take(&mut self, key: WorkerKey, answer: oneshot::Sender<Answer>) -> Option<WorkerReport> {
        // A worker that asked may have ended; here and below nobody waits for the answer then.
        if self.known.contains(&key) {
            let _ = answer.send(Ok(()));
            return None;
        }
        let was_told = self.waiting.contains_key(&key);
        let waiting = self.waiting.entry(key).or_default();
        waiting.retain(|one| !one.is_closed());
        if waiting.len() >= limits::NOTES_WAITING_MAX {
            let _ = answer.send(Err(TOO_MANY.to_owned()));
            return None;
        }
        waiting.push(answer);
        if was_told {
            return None;
        }
        let (answer, told) = oneshot::channel();
        self.asked.spawn(async move { (key, told.await.ok()) });
        Some(WorkerReport { key, event: WorkerEvent::Ready, answer })
    }

    /// Passes an answer on. One that refuses is asked for again when the worker is ready again.
    fn take_answer(&mut self, key: WorkerKey, answer: Option<&Answer>) {
        if answer == Some(&Ok(())) {
            self.known.insert(key);
        }
        for one in self.waiting.remove(&key).unwrap_or_default() {
            if let Some(answer) = answer {
                let _ = one.send(answer.clone());
            }
        }
    }
}

/// Why a note is refused where too many wait.
const TOO_MANY: &str = "too many notes wait for the cluster's answer";

/// Answers what nobody needs to wait for at once, so that no worker stands still while the agent is away.
async fn sort_notes(
    keys: BTreeSet<WorkerKey>,
    mut heard: mpsc::Receiver<WorkerReport>,
    tell: mpsc::Sender<WorkerReport>,
) {
    let mut ready = ReadyWorkers::default();
    let mut is_open = true;
    loop {
        let WorkerReport { key, event, answer } = tokio::select! {
            report = heard.recv(), if is_open => match report {
                Some(report) => report,
                None => {
                    is_open = false;
                    continue;
                }
            },
            Some(answered) = ready.asked.join_next() => {
                if let Ok((key, answer)) = answered {
                    ready.take_answer(key, answer.as_ref());
                }
                continue;
            }
            else => return,
        };
        if !keys.contains(&key) {
            let _ = answer.send(Err(format!("{key} does not run in this job of the other scheduler")));
            continue;
        }
        match event {
            WorkerEvent::Step { .. } => {
                let _ = answer.send(Ok(()));
                // The next one will do where checkpoints wait already.
                if tell.capacity() > tell.max_capacity() / 2 {
                    let (nobody, _) = oneshot::channel();
                    let _ = tell.try_send(WorkerReport { key, event, answer: nobody });
                }
            }
            WorkerEvent::CheckpointCommitted { .. } => send(&tell, WorkerReport { key, event, answer }),
            WorkerEvent::Ready => {
                if let Some(report) = ready.take(key, answer) {
                    send(&tell, report);
                }
            }
        }
    }
}

fn send(tell: &mpsc::Sender<WorkerReport>, report: WorkerReport) {
    if let Err(full) = tell.try_send(report) {
        let _ = full.into_inner().answer.send(Err(TOO_MANY.to_owned()));
    }
}

/// The next word of a worker; never, where nobody takes them.
pub(super) async fn next_said(said: &mut Option<mpsc::Receiver<WorkerReport>>) -> WorkerReport {
    if let Some(heard) = said {
        if let Some(next) = heard.recv().await {
            return next;
        }
        *said = None;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{FencingToken, JobId, LogIndex};

    #[tokio::test]
    async fn the_agent_is_told_once_that_a_worker_is_ready() {
        let token = FencingToken { generation: 1, log_index: LogIndex(9) };
        let key = WorkerKey { job: JobId(1), token, rank: 3 };
        let (events, heard) = mpsc::channel(WINDOW);
        let (tell, mut said) = mpsc::channel(limits::NOTES_WAITING_MAX);
        let sorting = tokio::spawn(sort_notes([key].into(), heard, tell));
        #[expect(clippy::async_yields_async, reason = "what is answered is awaited later")]
        let say = || async {
            let (answer, told) = oneshot::channel();
            let report = WorkerReport { key, event: WorkerEvent::Ready, answer };
            events.send(report).await.expect("it listens");
            told
        };
        // Two wait, and one question is asked. A refusal answers both, and is no knowledge.
        let (first, second) = (say().await, say().await);
        said.recv().await.unwrap().answer.send(Err("later".to_owned())).unwrap();
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Err("later".into()), Err("later".into())));
        let third = say().await;
        said.recv().await.unwrap().answer.send(Ok(())).unwrap();
        assert_eq!(third.await.unwrap(), Ok(()));
        // The agent knows it: a loop in a program is answered here.
        for _ in 0..100 {
            assert_eq!(say().await.await.unwrap(), Ok(()));
        }
        drop(events);
        sorting.await.unwrap();
        assert!(said.recv().await.is_none(), "nothing more was told");
    }
}
