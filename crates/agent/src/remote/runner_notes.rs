//! Notes of workers inside another scheduler's job, on their way to the agent: which wait for its answer, and which do not.
//!
//! **Invariant:** no worker stands still for a note that nobody has to answer, while the agent is away.

use super::runner::{WINDOW, complain};
use crate::limits;
use crate::process::socket::{self, WorkerReport};
use crate::rules::{Placement, WorkerEvent, WorkerKey};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tokio::sync::{mpsc, oneshot};

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

/// Answers what nobody needs to wait for at once, so that no worker stands still while the agent is away.
async fn sort_notes(
    keys: BTreeSet<WorkerKey>,
    mut heard: mpsc::Receiver<WorkerReport>,
    tell: mpsc::Sender<WorkerReport>,
) {
    while let Some(WorkerReport { key, event, answer }) = heard.recv().await {
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
            WorkerEvent::CheckpointCommitted { .. } | WorkerEvent::Ready => {
                if let Err(full) = tell.try_send(WorkerReport { key, event, answer }) {
                    let why = "too many notes wait for the cluster's answer".to_owned();
                    let _ = full.into_inner().answer.send(Err(why));
                }
            }
        }
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
