//! The files next to a replica's log on its disk: the mark of a storage that was lost.

use crate::disk::Disk;
use crate::log_store::SimLog;
use crate::runtime::{Host, event};
use muster_consensus::Storage;
use muster_store::{Entry, FlushProgress, Rejoin, SnapshotStore, StorageHealth, StoreError};
use std::sync::Arc;
use tokio::sync::watch;

const MARK: &str = "rejoin";
/// Storage as the agreement sees it. Clones share it.
#[derive(Clone)]
pub struct SimStorage {
    host: Host,
    disk: Disk,
    log: SimLog,
    snapshots: SnapshotStore,
    mark: Arc<watch::Sender<Option<Rejoin>>>,
}

fn encode(mark: Rejoin) -> Vec<u8> {
    match mark {
        Rejoin::Unknown => vec![0],
        Rejoin::From { index, voted } => {
            let mut bytes = vec![1, u8::from(voted)];
            bytes.extend_from_slice(&index.to_le_bytes());
            bytes
        }
        Rejoin::AwaitingVote => vec![2],
    }
}

fn decode(bytes: &[u8]) -> Option<Rejoin> {
    match bytes {
        [0] => Some(Rejoin::Unknown),
        [1, voted, index @ ..] => {
            let index = u64::from_le_bytes(index.try_into().ok()?);
            Some(Rejoin::From { index, voted: *voted == 1 })
        }
        [2] => Some(Rejoin::AwaitingVote),
        _ => None,
    }
}

/// Marks an emptied disk: what its replica had promised is not known any more.
pub fn mark_as_lost(disk: &Disk) {
    disk.put(MARK, Some(encode(Rejoin::Unknown)));
}

impl SimStorage {
    /// Over a log that was opened.
    pub fn new(host: Host, disk: &Disk, log: &SimLog, snapshots: SnapshotStore) -> SimStorage {
        let mark = disk.file(MARK).and_then(|bytes| decode(&bytes));
        let mark = Arc::new(watch::Sender::new(mark));
        SimStorage { host, disk: disk.clone(), log: log.clone(), snapshots, mark }
    }
}

impl Storage for SimStorage {
    fn generation(&self) -> u32 {
        0
    }

    fn health(&self) -> watch::Receiver<StorageHealth> {
        self.log.health()
    }

    fn flushed(&self) -> watch::Receiver<FlushProgress> {
        self.log.flushed()
    }

    fn rejoin(&self) -> watch::Receiver<Option<Rejoin>> {
        self.mark.subscribe()
    }

    async fn set_rejoin(&self, mark: Option<Rejoin>) -> Result<(), String> {
        let bytes = mark.map(encode);
        // Under a temporary name, synced, renamed; a full disk refuses.
        self.disk.set(MARK, bytes).await.map_err(|_full| "no space left".to_owned())?;
        event("mark", format_args!("n{} {mark:?}", self.host));
        self.mark.send_replace(mark);
        Ok(())
    }

    async fn close(&self) {
        self.log.close().await;
    }

    fn is_blank(&self) -> bool {
        self.log.is_blank()
    }

    fn snapshots(&self) -> SnapshotStore {
        self.snapshots.clone()
    }

    async fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        self.log.read(start, end, bytes_max).await
    }

    async fn adopt_generation(&self, _generation: u32) -> Result<(), String> {
        Err("a simulated cluster has one generation".to_owned())
    }

    async fn belong_to(&self, _founding: u64) -> Result<(), String> {
        Err("a simulated cluster has one founding".to_owned())
    }
}
