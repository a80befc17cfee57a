//! Confirms leadership: one round of a quorum answers everybody who asked before it began.
//!
//! **Invariant:** a caller is answered only by a round that began after it asked; an answer from an
//! earlier round could miss what was committed in between.

use crate::error::{NotLeader, ReadPoint};
use crate::leadership::{Leadership, LeadershipView};
use crate::state_machine::Raft;
use muster_types::ReplicaId;
use openraft::ReadPolicy;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) type Confirmation = Result<ReadPoint, NotLeader>;

/// Callers one round may serve before the next is started for the rest.
const CALLERS_MAX: usize = 65_536;

/// Runs rounds until nobody can ask any more.
pub(crate) async fn run_confirmations(
    raft: Raft,
    view: watch::Receiver<LeadershipView>,
    mut callers: mpsc::Receiver<oneshot::Sender<Confirmation>>,
) {
    let mut waiting = Vec::new();
    while callers.recv_many(&mut waiting, CALLERS_MAX).await > 0 {
        let outcome = confirm(&raft, &view).await;
        for caller in waiting.drain(..) {
            let _ = caller.send(outcome.clone());
        }
    }
}

async fn confirm(raft: &Raft, view: &watch::Receiver<LeadershipView>) -> Confirmation {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => {
            let point = linearizer.read_log_id();
            let leader = point.committed_leader_id();
            let leadership = Leadership { term: leader.term, replica: ReplicaId(leader.node_id) };
            Ok(ReadPoint { raft_index: point.index(), leadership })
        }
        Err(_) => {
            // Whoever could not be confirmed is not named: it would send callers in a circle.
            let view = view.borrow();
            let leader = view.leader.clone().filter(|_| view.mine.is_none());
            Err(NotLeader { leader })
        }
    }
}
