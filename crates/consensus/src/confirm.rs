//! Confirms leadership: one round of a quorum answers everybody who asked before it began.

use crate::error::{NotLeader, ReadPoint};
use crate::ground::{Ground, Raft};
use crate::leadership::{Leadership, LeadershipView};
use crate::rounds::{Caller, Rounds};
use futures::FutureExt;
use muster_types::ReplicaId;
use openraft::ReadPolicy;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) type Confirmation = Result<ReadPoint, NotLeader>;

/// Where a confirmation is asked for.
pub(crate) type Confirmations = mpsc::Sender<Caller<Confirmation>>;

/// Runs rounds until nobody can ask any more.
pub(crate) async fn run_confirmations<G: Ground>(
    raft: Raft<G>,
    view: watch::Receiver<LeadershipView>,
    callers: mpsc::Receiver<Caller<Confirmation>>,
    pause: Duration,
) {
    let mut rounds = Rounds::<G, _>::new(callers, pause);
    let round = || {
        let (raft, view) = (raft.clone(), view.clone());
        async move { confirm::<G>(&raft, &view).await }.boxed()
    };
    while let Some(finished) = rounds.next(&round).await {
        finished.answer();
    }
}

/// Asks for one; waits its turn.
pub(crate) async fn confirmed(confirmations: &Confirmations) -> Confirmation {
    let (caller, answer) = oneshot::channel();
    if confirmations.send(caller).await.is_err() {
        return Err(NotLeader::default());
    }
    answer.await.unwrap_or_else(|_| Err(NotLeader::default()))
}

async fn confirm<G: Ground>(raft: &Raft<G>, view: &watch::Receiver<LeadershipView>) -> Confirmation {
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
