//! Why a replica no longer takes part.

use std::sync::Arc;
use thiserror::Error;
use tokio::sync::watch;

/// Why a replica stopped taking part.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StopReason {
    /// It was asked to.
    #[error("it was shut down")]
    Shutdown,
    /// The application stopped it, with a reason.
    #[error("{detail}")]
    Halted {
        /// The reason.
        detail: String,
    },
    /// The application panicked while it applied an entry.
    #[error("the application panicked: {detail}")]
    ApplicationPanicked {
        /// The panic's message.
        detail: String,
    },
    /// Storage failed or the protocol found a contradiction.
    #[error("the protocol stopped: {detail}")]
    Raft {
        /// What it said.
        detail: String,
    },
}

/// The reason, once there is one. The first one stays. Clones share it.
#[derive(Clone)]
pub(crate) struct StopHandle {
    reason: Arc<watch::Sender<Option<StopReason>>>,
}

impl StopHandle {
    pub(crate) fn new(reason: Arc<watch::Sender<Option<StopReason>>>) -> StopHandle {
        StopHandle { reason }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<StopReason>> {
        self.reason.subscribe()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.reason.borrow().is_some()
    }

    /// Resolves once the replica has stopped.
    pub(crate) async fn stopped(&self) {
        let _ = self.reason.subscribe().wait_for(Option::is_some).await;
    }

    /// Records why the replica stops; true if no reason was known before.
    pub(crate) fn stop(&self, reason: StopReason) -> bool {
        self.reason.send_if_modified(|current| {
            let is_first = current.is_none();
            if is_first {
                *current = Some(reason);
            }
            is_first
        })
    }
}
