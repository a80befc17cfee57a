//! Confirms leadership: one round of a quorum answers everybody who asked before it began.

use super::coalescing::{Caller, Rounds};
use crate::environment::{Environment, Peers, Raft};
use crate::leader::{LeadershipHandle, NotLeader, ReadPoint};
use futures::FutureExt;
use muster_types::{Leadership, ReplicaId};
use openraft::ReadPolicy;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Confirmations in a row that may count for nothing.
const TRIES_MAX: usize = 16;

pub(crate) type Confirmation = Result<ReadPoint, NotLeader>;

/// Where a confirmation is asked for.
pub(crate) type Confirmations = mpsc::Sender<Caller<Confirmation>>;

/// Runs rounds until nobody can ask any more.
pub(crate) async fn run_confirmations<E: Environment>(
    raft: Raft<E>,
    network: E::Peers,
    leadership: LeadershipHandle,
    callers: mpsc::Receiver<Caller<Confirmation>>,
    pause: Duration,
) {
    let mut rounds = Rounds::<E, _>::new(callers, pause);
    let round = || {
        let (raft, network, leadership) = (raft.clone(), network.clone(), leadership.clone());
        async move { proved(&network, || confirm::<E>(&raft, &leadership)).await }.boxed()
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

/// Confirms until no answer that was never asked for takes part in it. There are such only where a leadership begins.
async fn proved<P: Peers, F: Future<Output = Confirmation>>(
    network: &P,
    confirm: impl Fn() -> F,
) -> Confirmation {
    for _ in 0..TRIES_MAX {
        let before = network.answered_unsent();
        let confirmation = confirm().await;
        if confirmation.is_err() || network.answered_unsent() == before {
            return confirmation;
        }
    }
    Err(NotLeader::default())
}

async fn confirm<E: Environment>(raft: &Raft<E>, leadership: &LeadershipHandle) -> Confirmation {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => {
            let point = linearizer.read_log_id();
            let leader = point.committed_leader_id();
            let leadership = Leadership { term: leader.term, replica: ReplicaId(leader.node_id) };
            Ok(ReadPoint { raft_index: point.index(), leadership })
        }
        // A leader that could not be confirmed is not named: callers would come back to it.
        Err(_) => Err(leadership.not_leader()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_store::ReplicaNode;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicU64>);

    impl Peers for Counted {
        type Link = crate::network::PeerChannel<crate::TokioEnv, crate::network::Grpc>;

        fn link(&self, _: ReplicaId, _: &ReplicaNode) -> Self::Link {
            unreachable!("nobody is called")
        }

        fn are_uploading(&self) -> bool {
            false
        }

        fn answered_unsent(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }

        fn traffic(&self) -> &crate::Traffic {
            unreachable!("nothing is refused")
        }
    }

    #[tokio::test]
    async fn an_answer_that_was_never_asked_for_confirms_nothing() {
        let network = Counted::default();
        let rounds = AtomicU64::new(0);
        // The first three rounds are satisfied by such answers.
        let confirm = || {
            if rounds.fetch_add(1, Ordering::SeqCst) < 3 {
                network.0.fetch_add(1, Ordering::SeqCst);
            }
            let leadership = Leadership { term: 1, replica: ReplicaId(1) };
            futures::future::ready(Ok(ReadPoint { raft_index: 7, leadership }))
        };
        assert!(proved(&network, confirm).await.is_ok());
        assert_eq!(rounds.load(Ordering::SeqCst), 4);
    }
}
