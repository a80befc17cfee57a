//! A replica's log: the product's own, over a simulated disk, with everything shown to the judge.
//!
//! openraft's view of the log, the writer with its batches, held entries and answers, and the watchdog are those of
//! `muster-store`. Here they are driven: each storage operation takes its simulated time, and meanwhile others queue.

use crate::disk::{Disk, RESERVE_BYTES};
use crate::log_disk::{Damaged, LogDisk};
use crate::raft_runtime::SimConfig;
use crate::runtime::{Host, event, sleep, spawn_on, timeout};
use crate::site::Site;
use muster_consensus::Environment;
use muster_store::{
    Entry, FileLayer, FlushProgress, LogId, LogParts, LogStore, LogWriter, Step, StorageHealth, StoreError,
    StoreOptions, Vote, Watchdog,
};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Operations that may wait before appenders wait too.
const QUEUE_DEPTH_MAX: usize = 256;
/// Few, so that a batch does not always take everything.
const BATCH_ENTRIES_MAX: usize = 16;
/// Little, so that entries are read from the disk.
const TAIL_BYTES_MAX: usize = 4 << 10;

/// Ends the process of the replica, for a reason.
pub type Abort = Arc<dyn Fn(&'static str) + Send + Sync>;

/// How full a simulated disk is.
struct Space(Disk);

impl FileLayer for Space {
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.0.free_bytes())
    }
}

fn options(abort: Abort, disk: &Disk) -> StoreOptions {
    StoreOptions {
        tail_bytes_max: TAIL_BYTES_MAX,
        queue_depth_max: QUEUE_DEPTH_MAX,
        batch_entries_max: BATCH_ENTRIES_MAX,
        space_soft_bytes: 2 * RESERVE_BYTES,
        space_hard_bytes: RESERVE_BYTES,
        files: Arc::new(Space(disk.clone())),
        clock: <SimConfig as Environment>::instant,
        fatal: Arc::new(move |_error| abort("a flush failed")),
        ..StoreOptions::production()
    }
}

/// The log as openraft uses it. Clones share it.
#[derive(Clone)]
pub struct SimLog {
    site: Arc<Site>,
    host: Host,
    log: LogStore<SimConfig>,
}

/// Carries out what the writer asks for, one operation after the other.
async fn write(
    site: Arc<Site>,
    host: Host,
    (mut writer, mut disk): (LogWriter<SimConfig>, LogDisk),
    flushed: watch::Receiver<FlushProgress>,
) {
    loop {
        match writer.step() {
            Step::Storage(operation) => {
                let result = disk.carry_out(&operation).await;
                writer.finished(operation, result);
            }
            Step::Receive => writer.receive().await,
            Step::Pause(pause) => sleep(pause).await,
            Step::Close(closing) => return closing.answer(),
        }
        let (answered, durable) = (flushed.borrow().last_index, disk.durable().map(|last| last.index()));
        if answered > durable {
            site.checks
                .fail(format!("n{host}: told that {answered:?} is durable, and the disk has {durable:?}"));
        }
    }
}

async fn watch_over(mut watchdog: Watchdog<SimConfig>) {
    let woken = Arc::new(Notify::new());
    let wakes = Arc::clone(&woken);
    watchdog.set_waker(move || wakes.notify_one());
    while let Some(pause) = watchdog.pause() {
        // Woken or not, it looks.
        let _ = timeout(pause, woken.notified()).await;
        watchdog.look();
    }
}

impl SimLog {
    /// Opens what a host's disk has.
    ///
    /// # Errors
    /// When less is intact than was once marked.
    pub fn open(site: &Arc<Site>, abort: Abort, host: Host, disk: &Disk) -> Result<SimLog, Damaged> {
        let (log_disk, recovered) = LogDisk::open(host, disk)?;
        site.checks.reopened(host, recovered.vote);
        let parts = LogStore::assemble(&recovered, &options(abort, disk), Path::new("."));
        let LogParts { store: log, writer, watchdog } = parts;
        spawn_on(host, write(Arc::clone(site), host, (writer, log_disk), log.flushed()));
        spawn_on(host, watch_over(watchdog));
        Ok(SimLog { site: Arc::clone(site), host, log })
    }

    /// Whether nothing was ever promised or stored.
    pub fn is_blank(&self) -> bool {
        self.log.is_blank()
    }

    /// Everything up to here was purged.
    pub fn floor(&self) -> Option<LogId> {
        self.log.floor()
    }

    /// How far it is durable.
    pub fn flushed(&self) -> watch::Receiver<FlushProgress> {
        self.log.flushed()
    }

    /// How the storage fares.
    pub fn health(&self) -> watch::Receiver<StorageHealth> {
        self.log.health()
    }

    /// Entries from `start` until before `end`.
    ///
    /// # Errors
    /// As the product's.
    pub async fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        self.log.read(start, end, bytes_max).await
    }

    /// Finishes what is queued.
    pub async fn close(&self) {
        self.log.close().await;
    }
}

impl RaftLogReader<SimConfig> for SimLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        self.log.try_get_log_entries(range).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        RaftLogReader::<SimConfig>::read_vote(&mut self.log).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.log.limited_get_log_entries(start, end).await
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl futures::Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.log.entries_stream(range).await
    }
}

impl RaftLogStorage<SimConfig> for SimLog {
    type LogReader = SimLog;

    async fn get_log_state(&mut self) -> Result<LogState<SimConfig>, io::Error> {
        self.log.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> SimLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.log.save_vote(vote).await?;
        event("vote", format_args!("n{} {vote}", self.host));
        self.site.checks.voted(self.host, *vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.log.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        self.log.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<SimConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let vote = self.read_vote().await?;
        let hosts = self.site.replica_hosts();
        let mut after = self.log.last();
        for entry in &entries {
            self.site.checks.appended(self.host, entry, after);
            after = Some(entry.log_id);
            // A replica that lost its own entries has them back from others, and did not stamp them now.
            let leads = vote
                .is_some_and(|vote| vote.committed && vote.leader_id == *entry.log_id.committed_leader_id());
            if leads {
                self.site.checks.stamped(self.host, entry, &hosts);
            }
        }
        self.log.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        self.log.truncate_after(last_log_id).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.log.purge(log_id).await
    }
}
