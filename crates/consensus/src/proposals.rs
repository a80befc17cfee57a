//! Proposals: payloads bound to the leadership that they were decided under.
//!
//! **Invariant:** proposals are appended in the order of the calls of [`Proposals::propose`].
//! **Invariant:** a proposal is appended only under the leadership it was made for.

use crate::environment::{Environment, Raft};
use crate::error::{Committed, ProposeError};
use crate::leader::{LeadershipHandle, NotLeader, ReadPoint};
use crate::stop::StopHandle;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_planted::{Rule, breaks};
use muster_store::{LeaderId, Payload};
use muster_types::Leadership;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use openraft::type_config::TypeConfigExt as _;
use openraft::vote::RaftLeaderId;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

/// The outcome of a proposal that waits to be appended. Dropping it gives up the answer, not the proposal.
pub type Proposal = BoxFuture<'static, Result<Committed, ProposeError>>;

/// Appends to the log while this replica leads.
pub(crate) struct Proposals<E: Environment> {
    pub(crate) raft: Raft<E>,
    pub(crate) leadership: LeadershipHandle,
    pub(crate) stop: StopHandle,
    pub(crate) lease: Duration,
    pub(crate) payload_bytes_max: usize,
}

impl<E: Environment> Proposals<E> {
    /// Queues a payload, bound to `leadership`. It is queued when this returns, so proposals are appended in the
    /// order of the calls. The future resolves with `Ok` once the entry is committed and applied on this replica.
    pub(crate) fn propose(self: &Arc<Self>, payload: Bytes, leadership: Leadership) -> Proposal {
        let refuse = |error: ProposeError| futures::future::ready(Err(error)).boxed();
        let bytes_max = self.payload_bytes_max;
        if payload.len() > bytes_max {
            return refuse(ProposeError::TooLarge { bytes: payload.len(), bytes_max });
        }
        let bound = !breaks(Rule::SkipGuard);
        if bound && !self.leadership.holds(leadership) {
            return refuse(self.leadership.not_leader().into());
        }
        let (responder, answer) = E::responder();
        let mut write = self.raft.write(Payload(payload)).responder(responder);
        if bound {
            write = write.with_leader(LeaderId::new(leadership.term, leadership.replica.0));
        }
        let enqueue = write.into_future();
        // One poll queues it or finds the queue full; nothing was sent in the second case. Unconstrained, because a
        // task that used up its budget would see a full queue.
        match tokio::task::unconstrained(enqueue).now_or_never() {
            Some(Ok(())) => {}
            Some(Err(_)) => return refuse(ProposeError::Shutdown),
            None if self.stop.is_stopped() => return refuse(ProposeError::Shutdown),
            None => return refuse(ProposeError::Overloaded),
        }
        let this = Arc::clone(self);
        async move {
            tokio::select! {
                biased;
                answer = answer => this.outcome(answer),
                () = this.leadership_over(leadership) => Err(ProposeError::Unknown),
                () = this.stop.stopped() => Err(ProposeError::Shutdown),
            }
        }
        .boxed()
    }

    fn outcome(&self, answer: Option<ClientWriteResult<E>>) -> Result<Committed, ProposeError> {
        match answer {
            Some(Ok(response)) => Ok(Committed { raft_index: response.log_id.index() }),
            // Refused before it was appended.
            Some(Err(ClientWriteError::ForwardToLeader(_))) => Err(self.leadership.not_leader().into()),
            Some(Err(_)) => Err(ProposeError::Unknown),
            None if self.stop.is_stopped() => Err(ProposeError::Shutdown),
            None => Err(ProposeError::Unknown),
        }
    }

    /// Resolves one lease after a leadership ended: by then whatever could still be answered was.
    async fn leadership_over(&self, leadership: Leadership) {
        let mut view = self.leadership.subscribe();
        loop {
            let _ = view.wait_for(|view| view.mine != Some(leadership)).await;
            E::sleep(self.lease).await;
            // A leader that missed its quorum for a moment leads on under the same leadership.
            if view.borrow().mine != Some(leadership) {
                return;
            }
        }
    }

    /// Waits until everything appended before this call, under any leadership, is applied here.
    ///
    /// # Errors
    /// When `leadership` is over before that.
    pub(crate) async fn barrier(&self, leadership: Leadership) -> Result<ReadPoint, NotLeader> {
        if !self.leadership.holds(leadership) {
            return Err(self.leadership.not_leader());
        }
        let written = tokio::select! {
            biased;
            written = self.raft.write_blank() => written,
            () = self.leadership_over(leadership) => return Err(self.leadership.not_leader()),
            () = self.stop.stopped() => return Err(NotLeader::default()),
        };
        let response = written.map_err(|error| {
            tracing::debug!(%error, "a barrier was refused");
            self.leadership.not_leader()
        })?;
        let leader = response.log_id.committed_leader_id();
        if (leader.term, leader.node_id) != (leadership.term, leadership.replica.0) {
            return Err(self.leadership.not_leader());
        }
        Ok(ReadPoint { raft_index: response.log_id.index(), leadership })
    }
}
