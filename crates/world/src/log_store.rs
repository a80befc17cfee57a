//! A replica's log on a simulated disk, with the promises of `muster-store`: nothing is acknowledged before
//! it is synced and marked; what was marked and is not there is damage, never a short log; damage is reported;
//! on a full disk entries are held, never failed; a sync that fails is the end of the process.
//!
//! One journal holds entries, votes, truncations, purges and what is known to be committed, in the order
//! they were asked for. A separate mark records how far it was once synced.

use crate::disk::Disk;
use crate::raft_runtime::SimConfig;
use crate::runtime::{Host, event, local_ns, sleep_ms};
use crate::site::{Site, lock};
use bytes::Bytes;
use muster_planted::Rule;
use muster_store::{Entry, EntryPayload, FlushProgress, LeaderId, LogId, Vote, decode_entry, encode_entry};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::vote::RaftLeaderId;
use openraft::{OptionalSend, RaftLogReader};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot, watch};

const MARK: &str = "mark";
const KIND_ENTRY: u8 = 1;
const KIND_VOTE: u8 = 2;
const KIND_TRUNCATE: u8 = 3;
const KIND_PURGE: u8 = 4;
const KIND_COMMITTED: u8 = 5;
/// Kind, length, checksum.
const FRAME_BYTES: usize = 9;
/// A flush counts for the mean with one part in this number, as in `muster-store`.
const MEAN_WEIGHT: u64 = 16;
/// Between two checks whether the disk has space again.
const ROOM_PAUSE_MS: u64 = 50;
/// Between an acknowledgement that comes too early and the write, where that rule is broken.
const PLANTED_WRITE_BACK_MS: u64 = 200;

/// Ends the process of the replica, for a reason.
pub type Abort = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Less is there than was acknowledged.
#[derive(Debug)]
pub struct Damaged {
    /// Bytes that are intact.
    pub intact: usize,
    /// Bytes that were marked as synced.
    pub marked: usize,
}

enum Done {
    Flushed(IOFlushed<SimConfig>),
    Told(oneshot::Sender<()>),
    Nobody,
}

/// How long flushes take.
#[derive(Default)]
struct Flushes {
    mean_ns: u64,
    began: Option<u64>,
}

impl Flushes {
    fn end(&mut self, now: u64) {
        let Some(began) = self.began.take() else { return };
        let took = now.saturating_sub(began);
        self.mean_ns =
            if self.mean_ns == 0 { took } else { (self.mean_ns * (MEAN_WEIGHT - 1) + took) / MEAN_WEIGHT };
    }
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    floor: Option<LogId>,
    chain: u32,
    waiting: Vec<(Vec<u8>, u64, Done)>,
}

impl Inner {
    fn last(&self) -> Option<LogId> {
        self.entries.values().next_back().map(|entry| entry.log_id).or(self.floor)
    }
}

/// The log as openraft uses it. Clones share it.
#[derive(Clone)]
pub struct SimLog {
    site: Arc<Site>,
    abort: Abort,
    host: Host,
    disk: Disk,
    inner: Arc<Mutex<Inner>>,
    work: Arc<Notify>,
    flushed: watch::Sender<FlushProgress>,
    flushes: Arc<Mutex<Flushes>>,
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + FRAME_BYTES);
    out.push(kind);
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(body);
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The first whole frame, and how long it is.
fn unframe(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let kind = *bytes.first()?;
    let len = u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
    let end = 5usize.checked_add(len)?;
    let sum = u32::from_le_bytes(bytes.get(end..end.checked_add(4)?)?.try_into().ok()?);
    (crc32fast::hash(&bytes[..end]) == sum).then(|| (kind, &bytes[5..end], end + 4))
}

fn words(body: &[u8]) -> Vec<u64> {
    body.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes)).collect()
}

fn log_id_of(words: &[u64]) -> Option<LogId> {
    let [term, node, index] = words.try_into().ok()?;
    Some(LogId::new(LeaderId::new(term, node), index))
}

fn log_id_body(log_id: Option<LogId>) -> Vec<u8> {
    let Some(log_id) = log_id else { return Vec::new() };
    let leader = log_id.committed_leader_id();
    [leader.term, leader.node_id, log_id.index()].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads the journal back; how much of it is intact.
fn replay(bytes: &[u8], inner: &mut Inner) -> usize {
    let mut at = 0;
    while let Some((kind, body, len)) = unframe(&bytes[at..]) {
        match kind {
            KIND_ENTRY => {
                let Ok((entry, chain)) = decode_entry(&Bytes::copy_from_slice(body)) else { break };
                if chain != inner.chain {
                    break;
                }
                inner.chain = crc32fast::hash(body);
                inner.entries.insert(entry.log_id.index(), entry);
            }
            KIND_VOTE => {
                let [term, node, committed] = words(body)[..] else { break };
                let vote =
                    if committed == 1 { Vote::new_committed(term, node) } else { Vote::new(term, node) };
                inner.vote = Some(vote);
            }
            KIND_TRUNCATE => {
                let from = log_id_of(&words(body)).map_or(0, |keep| keep.index() + 1);
                inner.entries.split_off(&from);
            }
            KIND_PURGE => {
                let Some(floor) = log_id_of(&words(body)) else { break };
                inner.floor = inner.floor.max(Some(floor));
                inner.entries = inner.entries.split_off(&(floor.index() + 1));
            }
            KIND_COMMITTED => inner.committed = log_id_of(&words(body)),
            _ => break,
        }
        at += len;
    }
    // Never past what is there: a start that waits for more would wait for ever.
    inner.committed = inner.committed.min(inner.last());
    at
}

impl SimLog {
    /// Opens what a host's disk has.
    ///
    /// # Errors
    /// When less is intact than was once marked.
    pub fn open(site: &Arc<Site>, abort: Abort, host: Host, disk: &Disk) -> Result<SimLog, Damaged> {
        let bytes = disk.log();
        let mut inner = Inner::default();
        let intact = replay(&bytes, &mut inner);
        let mark = disk.file(MARK).and_then(|mark| mark.try_into().ok()).map_or(0, u64::from_le_bytes);
        let marked = usize::try_from(mark).unwrap_or(usize::MAX);
        if intact < marked {
            return Err(Damaged { intact, marked });
        }
        if intact < bytes.len() {
            event("torn", format_args!("n{host} {} of {} bytes", intact, bytes.len()));
            disk.cut(intact);
        }
        site.checks.reopened(host, inner.vote);
        let log = SimLog {
            site: Arc::clone(site),
            abort,
            host,
            disk: disk.clone(),
            inner: Arc::new(Mutex::new(inner)),
            work: Arc::new(Notify::new()),
            flushed: watch::Sender::default(),
            flushes: Arc::default(),
        };
        crate::runtime::spawn_on(host, log.clone().write_behind());
        Ok(log)
    }

    /// Whether nothing was ever promised or stored.
    pub fn is_blank(&self) -> bool {
        let inner = self.lock();
        inner.vote.is_none() && inner.last().is_none()
    }

    /// Everything up to here was purged.
    pub fn floor(&self) -> Option<LogId> {
        self.lock().floor
    }

    /// How far it is durable.
    pub fn flushed(&self) -> watch::Receiver<FlushProgress> {
        self.flushed.subscribe()
    }

    /// Moving mean of how long flushes took, in nanoseconds, and since when one has been under way.
    pub fn flushes(&self) -> (u64, Option<u64>) {
        let flushes = lock(&self.flushes);
        (flushes.mean_ns, flushes.began)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, bytes: Vec<u8>, app_entries: u64, done: Done) {
        self.lock().waiting.push((bytes, app_entries, done));
        self.work.notify_one();
    }

    /// The one writer: everything that waits in one go, as a group commit does.
    async fn write_behind(self) {
        loop {
            let batch = std::mem::take(&mut self.lock().waiting);
            if batch.is_empty() {
                self.work.notified().await;
                continue;
            }
            // As in the product: entries are acknowledged a moment before they are written, a vote is not.
            let lies = self.site.settings.bug == Some(Rule::AckBeforeFlush)
                && batch.iter().all(|(.., done)| !matches!(done, Done::Told(_)));
            let batch = if lies { self.acknowledge_early(batch).await } else { batch };
            let mut end = 0;
            for (bytes, ..) in &batch {
                end = loop {
                    match self.disk.append(bytes) {
                        Ok(end) => break end,
                        Err(_full) => sleep_ms(ROOM_PAUSE_MS).await,
                    }
                };
            }
            lock(&self.flushes).began = Some(local_ns());
            let flushed = self.flush(end).await;
            lock(&self.flushes).end(local_ns());
            if !flushed {
                (self.abort)("a flush failed");
                return;
            }
            let app_entries = batch.iter().map(|(_, app, _)| app).sum::<u64>();
            let last_index = self.lock().last().map(|last| last.index());
            self.flushed.send_modify(|flushed| {
                flushed.last_index = last_index;
                flushed.app_entries_flushed += app_entries;
            });
            if self.disk.synced() < end {
                self.site.checks.fail(format!("n{}: acknowledged before it was synced", self.host));
            }
            for (.., done) in batch {
                match done {
                    Done::Flushed(callback) => callback.io_completed(Ok(())),
                    // The caller may be gone.
                    Done::Told(told) => _ = told.send(()),
                    Done::Nobody => {}
                }
            }
        }
    }

    /// Answers the callers and only then goes on to write, which the rule forbids.
    async fn acknowledge_early(&self, batch: Vec<(Vec<u8>, u64, Done)>) -> Vec<(Vec<u8>, u64, Done)> {
        let answered = batch.into_iter().map(|(bytes, app, done)| {
            if let Done::Flushed(callback) = done {
                callback.io_completed(Ok(()));
            }
            (bytes, app, Done::Nobody)
        });
        let batch = answered.collect();
        sleep_ms(PLANTED_WRITE_BACK_MS).await;
        batch
    }

    /// The journal first, then the mark: the mark never says more than is there.
    async fn flush(&self, end: usize) -> bool {
        if self.disk.sync().await.is_err() {
            return false;
        }
        let mark = (end as u64).to_le_bytes().to_vec();
        while self.disk.replace(MARK, mark.clone()).await.is_err() {
            sleep_ms(ROOM_PAUSE_MS).await;
        }
        true
    }

    fn stopped(&self) -> io::Error {
        io::Error::other("the storage of this replica has failed")
    }

    async fn write(&self, bytes: Vec<u8>) -> Result<(), io::Error> {
        let (told, done) = oneshot::channel();
        self.queue(bytes, 0, Done::Told(told));
        done.await.map_err(|_| self.stopped())
    }
}

impl RaftLogReader<SimConfig> for SimLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let inner = self.lock();
        let empty = match (range.start_bound(), range.end_bound()) {
            (Bound::Included(start), Bound::Excluded(end)) => start >= end,
            _ => false,
        };
        if empty {
            return Ok(Vec::new());
        }
        Ok(inner.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.lock().vote)
    }
}

impl RaftLogStorage<SimConfig> for SimLog {
    type LogReader = SimLog;

    async fn get_log_state(&mut self) -> Result<LogState<SimConfig>, io::Error> {
        let inner = self.lock();
        Ok(LogState { last_purged_log_id: inner.floor, last_log_id: inner.last() })
    }

    async fn get_log_reader(&mut self) -> SimLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.lock().vote = Some(*vote);
        let fields = [vote.leader_id.term, vote.leader_id.node_id, u64::from(vote.committed)];
        let body: Vec<u8> = fields.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(frame(KIND_VOTE, &body)).await?;
        event("vote", format_args!("n{} {vote}", self.host));
        self.site.checks.voted(self.host, *vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.lock().committed = committed;
        // A hint: it goes with the next flush.
        self.lock().waiting.push((frame(KIND_COMMITTED, &log_id_body(committed)), 0, Done::Nobody));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<SimConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut bytes = Vec::new();
        let mut app_entries = 0;
        let hosts = self.site.replica_hosts();
        for entry in entries {
            let mut inner = self.lock();
            let envelope = encode_entry(&entry, inner.chain);
            inner.chain = crc32fast::hash(&envelope);
            bytes.extend(frame(KIND_ENTRY, &envelope));
            app_entries += u64::from(matches!(entry.payload, EntryPayload::Normal(_)));
            self.site.checks.appended(self.host, &entry, inner.last());
            // A replica that lost its own entries has them back from others, and did not stamp them now.
            let leads = inner
                .vote
                .is_some_and(|vote| vote.committed && vote.leader_id == *entry.log_id.committed_leader_id());
            if leads {
                self.site.checks.stamped(self.host, &entry, &hosts);
            }
            inner.entries.insert(entry.log_id.index(), entry);
        }
        self.queue(bytes, app_entries, Done::Flushed(callback));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let keep = {
            let mut inner = self.lock();
            let keep = last_log_id.max(inner.floor);
            let from = keep.map_or(0, |keep| keep.index() + 1);
            inner.entries.split_off(&from);
            keep
        };
        event("truncate", format_args!("n{} after {keep:?}", self.host));
        self.write(frame(KIND_TRUNCATE, &log_id_body(keep))).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        {
            let mut inner = self.lock();
            inner.floor = inner.floor.max(Some(log_id));
            inner.entries = inner.entries.split_off(&(log_id.index() + 1));
        }
        self.queue(frame(KIND_PURGE, &log_id_body(Some(log_id))), 0, Done::Nobody);
        Ok(())
    }
}
