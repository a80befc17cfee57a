//! The environment of a server: tokio, a data directory and gRPC.

use crate::environment::{Environment, Storage, TokioEnv};
use crate::network::{Grpc, PeerNetwork};
use crate::state_machine::StateMachine;
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_store::{
    Entry, FlushProgress, FoundingId, Rejoin, ReplicaStore, SnapshotStore, StorageHealth, StoreError,
};
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::type_config::alias::WriteResponderOf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

impl Environment for TokioEnv {
    type Machine = StateMachine;
    type Storage = ReplicaStore;
    type Peers = PeerNetwork<TokioEnv, Grpc>;

    fn responder() -> (WriteResponderOf<Self>, BoxFuture<'static, Option<ClientWriteResult<Self>>>) {
        let (responder, answer) = ProgressResponder::complete_only();
        (responder, answer.map(Result::ok).boxed())
    }

    fn instant() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn unix_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Storage for ReplicaStore {
    fn generation(&self) -> u32 {
        self.identity().generation
    }

    fn founding(&self) -> FoundingId {
        ReplicaStore::founding(self)
    }

    fn health(&self) -> watch::Receiver<StorageHealth> {
        self.log.health()
    }

    fn flushed(&self) -> watch::Receiver<FlushProgress> {
        self.log.flushed()
    }

    fn rejoin(&self) -> watch::Receiver<Option<Rejoin>> {
        ReplicaStore::rejoin(self)
    }

    async fn set_rejoin(&self, mark: Option<Rejoin>) -> Result<(), String> {
        let store = self.clone();
        written(move || match mark {
            None => store.clear_rejoin(),
            Some(rejoin) => ReplicaStore::set_rejoin(&store, rejoin),
        })
        .await
    }

    async fn close(&self) {
        self.log.close().await;
    }

    fn is_blank(&self) -> bool {
        ReplicaStore::is_blank(self)
    }

    fn snapshots(&self) -> SnapshotStore {
        self.snapshots.clone()
    }

    async fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        self.log.read(start, end, bytes_max).await
    }

    async fn adopt_generation(&self, generation: u32) -> Result<(), String> {
        let store = self.clone();
        written(move || store.set_generation(generation)).await
    }

    async fn belong_to(&self, founding: u64) -> Result<(), String> {
        let store = self.clone();
        written(move || store.set_founding(founding)).await
    }
}

/// Waits for a write next to the log.
async fn written(work: impl FnOnce() -> Result<(), StoreError> + Send + 'static) -> Result<(), String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
