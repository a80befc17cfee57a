//! Sessions that stand at this replica, by node.

use muster_types::{Features, NodeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::sessions::health_pace::HealthPace;
use crate::sessions::images::ImageHints;
use crate::sessions::messages::Outbound;

struct RegistryEntry {
    session: u64,
    outbound: mpsc::Sender<Outbound>,
    takes: Features,
    end: CancellationToken,
}

/// Sessions that stand at this replica.
#[derive(Default)]
pub(crate) struct Sessions {
    next: AtomicU64,
    by_node: Mutex<BTreeMap<NodeId, RegistryEntry>>,
    /// Moves with every session that opens.
    opened: watch::Sender<u64>,
    /// How often their health reaches the log.
    pub(crate) health: HealthPace,
    /// What they say of images.
    pub(crate) images: ImageHints,
}

impl Sessions {
    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeMap<NodeId, RegistryEntry>> {
        self.by_node.lock()
    }

    /// A later session of a node takes the place of the one before.
    pub(crate) fn add(
        &self,
        node: NodeId,
        takes: Features,
        outbound: mpsc::Sender<Outbound>,
        end: CancellationToken,
    ) -> u64 {
        let session = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(old) = self.lock().insert(node, RegistryEntry { session, outbound, takes, end }) {
            old.end.cancel();
        }
        self.opened.send_replace(session);
        session
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Changes with every session that opens.
    pub(crate) fn opened(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }

    pub(crate) fn remove(&self, node: NodeId, session: u64) {
        let mut by_node = self.lock();
        if by_node.get(&node).is_some_and(|r| r.session == session) {
            by_node.remove(&node);
            self.images.forget(node);
        }
    }

    pub(crate) fn close_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        self.images.forget_all();
        for registered in all.into_values() {
            registered.end.cancel();
        }
    }

    /// An agent that has not listed its features has sent a message that shows them: every release that sends this message
    /// has all of them.
    pub(crate) fn show(&self, node: NodeId, session: u64) {
        let mut by_node = self.lock();
        let entry = by_node.get_mut(&node).filter(|r| r.session == session && r.takes.is_empty());
        if let Some(entry) = entry {
            entry.takes = Features::before_names();
        }
    }

    /// What the agent of a node takes, as far as it has said or shown.
    pub(crate) fn takes(&self, node: NodeId) -> Features {
        self.lock().get(&node).map_or(Features::NONE, |r| r.takes)
    }

    pub(crate) fn outbound(&self, node: NodeId) -> Option<mpsc::Sender<Outbound>> {
        self.lock().get(&node).map(|r| r.outbound.clone())
    }
}
