//! History of one replica, whole: a log in memory that is purged, an archive in a directory.

use bytes::Bytes;
use muster_archive::{Archive, ObjectStore, Record};
use muster_consensus::{Consensus, ConsensusConfig, ReplicaNode, SnapshotPolicy, Timing};
use muster_decider::{Answer, BootstrapConfig, Command};
use muster_journal::Decision;
use muster_store::{MemoryDisk, ReplicaStore, SnapshotStore, StoreOptions};
use muster_types::{
    ClusterId, HolderId, LogIndex, LogTime, Parameters, PastPoint, ReadFrom, RefusalCode, ReplicaId,
    RequestId,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::sample::{host, job, name};
use crate::services::watching::follow;
use crate::{
    Engine, EngineConfig, HistorySettings, LogFollower, RecordVisitor, ReplicaInfo, Visited, WatchPosition,
    open_archive, replicated,
};

const CLUSTER: ClusterId = ClusterId(0xe7);
const REPLICA: ReplicaId = ReplicaId(1);
const GUARD: Duration = Duration::from_secs(60);

async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(GUARD, future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

/// What survives a restart.
struct Replica {
    disk: MemoryDisk,
    snapshots: SnapshotStore,
    options: StoreOptions,
    archive: tempfile::TempDir,
}

struct Running {
    engine: Engine,
    consensus: Consensus,
    archive: Weak<Archive>,
}

impl Replica {
    fn new() -> Replica {
        let options = StoreOptions::small();
        let snapshots = SnapshotStore::memory(&options);
        let archive = tempfile::tempdir().expect("a directory can be made");
        Replica { disk: MemoryDisk::default(), snapshots, options, archive }
    }

    async fn start(&self, every_entries: u64, archive: Option<Archive>) -> Running {
        let store = ReplicaStore::in_memory(self.disk.clone(), self.snapshots.clone(), self.options.clone());
        let store = store.expect("memory opens");
        let mut settings = ConsensusConfig::new(CLUSTER, REPLICA);
        settings.timing =
            Timing { heartbeat_interval_ms: 50, election_timeout_min_ms: 150, election_timeout_max_ms: 300 };
        settings.snapshots =
            SnapshotPolicy { every_entries: Some(every_entries), ..SnapshotPolicy::ON_DEMAND };
        let (application, view) = replicated(muster_journal::FORMAT_MAX);
        let consensus = Consensus::start(settings, store, application).await.expect("it starts");
        let parameters = Parameters { digest_interval_records: 7, ..Parameters::DEFAULT };
        let founding = BootstrapConfig::new(CLUSTER, parameters);
        let config = EngineConfig {
            founding,
            client_commands_waiting_max: 64,
            node_commands_waiting_max: 64,
            contain_faults: false,
        };
        let info = ReplicaInfo { replica: REPLICA, region: name("eu") };
        let engine = Engine::start(config, info, view, consensus.clone());
        let archive = archive.map(Arc::new);
        let kept = archive.as_ref().map(Arc::downgrade).unwrap_or_default();
        let mut history = HistorySettings::new(archive);
        history.segment_age = Duration::from_millis(200);
        engine.keep_history(history);
        let node = ReplicaNode {
            region: "eu".to_owned(),
            peer_endpoint: "here".to_owned(),
            client_endpoint: "http://here".to_owned(),
        };
        consensus.initialize(BTreeMap::from([(REPLICA, node)])).await.expect("it forms");
        let running = Running { engine, consensus, archive: kept };
        let register =
            Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
        running.execute(register).await;
        running
    }

    fn open(&self) -> Archive {
        open_archive(self.archive.path(), CLUSTER).expect("the archive opens")
    }
}

impl Running {
    /// Carries out a command; repeated while a busy machine changes its mind about who leads.
    async fn execute(&self, command: Command) -> Answer {
        guarded("a command", async {
            loop {
                match self.engine.execute(command.clone()).await {
                    Ok(answer) => return answer,
                    Err(refusal) => {
                        let code = refusal.code;
                        let transient = matches!(code, RefusalCode::NotLeader | RefusalCode::OutcomeUnknown);
                        assert!(transient, "{refusal}");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        })
        .await
    }

    /// Submits a job, and cancels every other one; the digest of the state behind every record that can
    /// be told apart.
    async fn work(&self, requests: std::ops::Range<u128>, seen: &mut BTreeMap<LogIndex, u64>) {
        for number in requests {
            let submit = Command::submit(RequestId(number), muster_types::Submission::plain([job("j", 1)]));
            let answer = self.execute(submit).await;
            self.note(seen);
            if let (0, Answer::Submitted { jobs, .. }) = (number % 2, answer) {
                let cancel = Command::cancel(RequestId(number + (1 << 64)), jobs[0]);
                self.execute(cancel).await;
                self.note(seen);
            }
        }
    }

    fn note(&self, seen: &mut BTreeMap<LogIndex, u64>) {
        let view = self.engine.view();
        seen.insert(view.log_index(), view.digest());
    }

    /// Every record that there is.
    async fn records(&self) -> Vec<Record> {
        let follower = self.engine.read_log(LogIndex(1)).expect("it is kept");
        read(follower, self.engine.view().log_index()).await
    }

    /// Waits until the log itself begins behind an entry.
    async fn purged(&self) -> u64 {
        guarded("a purge", async {
            loop {
                if let Some(floor) = self.consensus.log_floor().filter(|floor| *floor > 0) {
                    return floor;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// Ends once nothing of it writes to the archive any more: a segment may be in the making when it is told to stop.
    async fn stop(self) {
        let Running { engine, consensus, archive } = self;
        engine.stop();
        consensus.shutdown().await;
        drop((engine, consensus));
        guarded("the archive is closed", async {
            while archive.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

async fn read(mut follower: LogFollower, to: LogIndex) -> Vec<Record> {
    let mut found: Vec<Record> = Vec::new();
    while found.last().is_none_or(|last| last.log_index < to) {
        let batch = guarded("records", follower.next()).await.expect("they are kept");
        if batch.records.is_empty() {
            guarded("more records", follower.more()).await.expect("the replica stands");
        }
        found.extend(batch.records);
    }
    found
}

fn assert_whole(records: &[Record], from: u64) {
    let indexes: Vec<u64> = records.iter().map(|record| record.log_index.0).collect();
    assert_eq!(indexes, (from..from + records.len() as u64).collect::<Vec<_>>());
}

fn segments(dir: &Path) -> usize {
    let directory = dir.join("segments/0000000001");
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_log_is_purged_and_the_replica_starts_again() {
    let replica = Replica::new();
    let mut seen = BTreeMap::new();
    let running = replica.start(10, Some(replica.open())).await;
    running.work(1..40, &mut seen).await;
    let floor = running.purged().await;
    let end = replica.open().end().expect("what was purged is in the archive");
    assert!(end.next_raft > floor, "{end:?} against a log from {floor} on");
    let before = running.records().await;
    assert_whole(&before, 1);
    running.stop().await;

    // In the middle of a segment: what was not closed yet is still in the log.
    let running = replica.start(10, Some(replica.open())).await;
    running.work(40..60, &mut seen).await;
    let after = running.records().await;
    assert_whole(&after, 1);
    assert_eq!(after[..before.len()], before[..]);
    for (index, digest) in &seen {
        let past = guarded("a past state", running.engine.view_at(PastPoint::Index(*index))).await;
        assert_eq!(past.expect("it is kept").digest(), *digest, "at {index}");
    }
    let last = running.engine.view().log_index();
    running.stop().await;
    let report = replica.open().verify(|_| true);
    assert!(report.is_whole(), "{report:?}");
    assert!(report.records <= last.0 && report.digests_compared > 0, "{report:?}");
    assert!(segments(replica.archive.path()) > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_of_the_log_sees_every_record_once() {
    let replica = Replica::new();
    let running = replica.start(8, Some(replica.open())).await;
    let mut seen = BTreeMap::new();
    let follower = running.engine.read_log(LogIndex(1)).expect("it is kept");
    let end = LogIndex(60);
    let following = tokio::spawn(read(follower, end));
    running.work(1..70, &mut seen).await;
    let records = guarded("the follower", following).await.expect("it did not panic");
    assert_whole(&records, 1);
    // Anybody who comes back anywhere gets exactly the rest.
    for from in [1, 2, 17, 40, 60] {
        let follower = running.engine.read_log(LogIndex(from)).expect("it is kept");
        let rest = read(follower, end).await;
        assert_eq!(rest[..=(60 - from as usize)], records[from as usize - 1..60]);
    }
    let newest = running.engine.view().log_index();
    let refused = running.engine.read_log(LogIndex(newest.0 + 1_000)).err().expect("it is not there yet");
    assert_eq!(refused.code, RefusalCode::LogIndexNotReached);
    running.stop().await;
}

/// Notes the records that it is told of, a number at a time.
struct Notes {
    seen: Vec<(LogIndex, LogTime, Decision)>,
    left: usize,
}

impl RecordVisitor for Notes {
    fn visit(&mut self, log_index: LogIndex, log_time: LogTime, decision: &Decision) -> ControlFlow<()> {
        if self.left == 0 {
            return ControlFlow::Break(());
        }
        self.left -= 1;
        self.seen.push((log_index, log_time, decision.clone()));
        ControlFlow::Continue(())
    }
}

/// What a visitor is told that stops behind every `each` records and goes on from there with another follower.
async fn visited(engine: &Engine, to: LogIndex, each: usize) -> Vec<(LogIndex, LogTime, Decision)> {
    let mut follower = engine.read_log(LogIndex(1)).expect("it is kept");
    let mut notes = Notes { seen: Vec::new(), left: each };
    loop {
        let (told, visited) = guarded("records", follower.visit(notes)).await.expect("they are kept");
        notes = told;
        match visited {
            Visited::Part => {}
            Visited::All if notes.seen.last().is_some_and(|(index, ..)| *index >= to) => break,
            Visited::All => guarded("more records", follower.more()).await.expect("the replica stands"),
            Visited::Stopped => {
                notes.left = each;
                let position = follower.position();
                follower = engine.read_log(position.log_index()).expect("it is kept");
                follower.go_back(position);
            }
        }
    }
    notes.seen.retain(|(index, ..)| *index <= to);
    notes.seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visitor_is_told_what_a_reader_gets() {
    let replica = Replica::new();
    let running = replica.start(8, Some(replica.open())).await;
    let mut seen = BTreeMap::new();
    running.work(1..70, &mut seen).await;
    let records = running.records().await;
    let last = records.last().expect("there are records").log_index;
    let read = records.into_iter().map(|record| (record.log_index, record.log_time, record.decision));
    let read: Vec<(LogIndex, LogTime, Decision)> = read.collect();
    for each in [1, 2, 7, 1_000] {
        assert_eq!(visited(&running.engine, last, each).await, read, "{each} at a time");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_past_by_time_and_what_is_no_past() {
    let replica = Replica::new();
    let running = replica.start(1_000, Some(replica.open())).await;
    let mut seen = BTreeMap::new();
    running.work(1..20, &mut seen).await;
    let records = running.records().await;
    for record in records.iter().take(records.len() - 1) {
        let last = records.iter().rfind(|r| r.log_time <= record.log_time).expect("this one at least");
        let past = guarded("a past state", running.engine.view_at(PastPoint::Time(record.log_time))).await;
        assert_eq!(past.expect("it is kept").log_index(), last.log_index);
    }
    // Kept for the next who asks: a state that takes longer to make than its caller waits is there the next time.
    let time = records[0].log_time;
    let again =
        async || guarded("a past state", running.engine.view_at(PastPoint::Time(time))).await.expect("kept");
    let _made = again().await;
    assert!(Arc::ptr_eq(&again().await, &again().await), "it is made once");
    let code = |at| {
        let engine = running.engine.clone();
        async move { engine.view_at(at).await.err().map(|refusal| refusal.code) }
    };
    assert_eq!(code(PastPoint::Index(LogIndex(1 << 40))).await, Some(RefusalCode::LogIndexNotReached));
    assert_eq!(code(PastPoint::Time(LogTime(u64::MAX))).await, Some(RefusalCode::LogIndexNotReached));
    assert_eq!(code(PastPoint::Time(LogTime(1))).await, Some(RefusalCode::ResumeTokenCompacted));
    // A caller who asks for it is told at once, and asks no other replica: a leader says that nobody has it.
    for at in [PastPoint::Index(LogIndex(1 << 40)), PastPoint::Time(LogTime(u64::MAX))] {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let read = running.engine.read_view(ReadFrom::Past(at), deadline);
        let refusal = guarded("a refusal", read).await.err().expect("nobody has it");
        assert_eq!(refusal.code, RefusalCode::InvalidField);
        assert!(refusal.message.contains("lies in the future"), "{}", refusal.message);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_cannot_be_written_holds_the_log_and_says_so() {
    let replica = Replica::new();
    let archive = replica.open();
    // A file where the directory of the segments would be: nobody can write there, not even root.
    let obstacle = replica.archive.path().join("segments");
    std::fs::write(&obstacle, b"in the way").expect("a file can be written");
    let running = replica.start(5, Some(archive)).await;
    let mut seen = BTreeMap::new();
    running.work(1..30, &mut seen).await;
    let mut status = running.engine.archive_status().expect("history is kept");
    let failing = guarded("the failure", status.wait_for(|status| status.failing.is_some())).await;
    drop(failing.expect("the replica stands"));
    running.work(30..40, &mut seen).await;
    assert_eq!(running.consensus.log_floor().unwrap_or(0), 0, "nothing was purged that is not archived");
    assert_whole(&running.records().await, 1);
    std::fs::remove_file(&obstacle).expect("it can be removed");
    guarded("the archive", status.wait_for(|s| s.failing.is_none() && s.summary.segments > 0))
        .await
        .expect("the replica stands");
    running.work(40..50, &mut seen).await;
    running.purged().await;
    assert_whole(&running.records().await, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_archive_history_is_what_the_log_has() {
    let replica = Replica::new();
    let running = replica.start(5, None).await;
    let mut seen = BTreeMap::new();
    running.work(1..60, &mut seen).await;
    running.purged().await;
    running.work(60..70, &mut seen).await;
    let first = guarded("the index map", async {
        loop {
            let (first, _) = running.engine.log_range().expect("history is kept");
            if first > LogIndex(1) {
                return first;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let gone = running.engine.read_log(LogIndex(1)).err().expect("it is gone");
    assert_eq!(gone.code, RefusalCode::ResumeTokenCompacted);
    assert!(gone.metadata.iter().any(|(name, _)| *name == "oldest_log_index"));
    let _ = first;
    let past = running.engine.view_at(PastPoint::Index(LogIndex(2))).await.err().map(|refusal| refusal.code);
    assert_eq!(past, Some(RefusalCode::ArchiveUnavailable));
    running.stop().await;
}

/// Changes behind a place, up to a record, in words.
async fn changes(engine: &Engine, from: WatchPosition, to: LogIndex) -> Vec<(WatchPosition, String)> {
    let mut follower = engine.watch(from).expect("it is kept");
    let mut seen = Vec::new();
    guarded("the changes", async {
        loop {
            let (events, reached) = follower.next().await.expect("they are kept");
            let wanted = events.into_iter().filter(|event| event.position.log_index <= to);
            seen.extend(wanted.map(|event| (event.position, format!("{:?}", event.change))));
            if reached.log_index >= to {
                return;
            }
        }
    })
    .await;
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_not_in_memory_any_more_come_from_the_archive_as_they_were() {
    let replica = Replica::new();
    let mut states = BTreeMap::new();
    let running = replica.start(10, Some(replica.open())).await;
    running.work(1..30, &mut states).await;
    running.purged().await;
    let last = running.engine.view().log_index();
    let told = changes(&running.engine, WatchPosition::after(LogIndex::ZERO), last).await;
    assert!(told.iter().any(|(_, change)| change.starts_with("Queues")), "{told:?}");
    running.stop().await;

    let running = replica.start(10, Some(replica.open())).await;
    let hub = &running.engine.inner.shared.hub;
    let kept = |from| follow(hub, from).is_ok();
    assert!(!kept(WatchPosition::after(LogIndex::ZERO)), "it began with a snapshot");
    let places = std::iter::once(WatchPosition::after(LogIndex::ZERO)).chain(told.iter().map(|(at, _)| *at));
    let mut replayed = 0;
    for from in places.filter(|from| !kept(*from)).step_by(5) {
        // In the middle of a round what it did to queues is not told yet; no watch of queues begins there.
        let whole = from == WatchPosition::after(from.log_index);
        let is_comparable =
            |(at, change): &&(WatchPosition, String)| *at > from && (whole || !change.starts_with("Queues"));
        let expected: Vec<_> = told.iter().filter(is_comparable).cloned().collect();
        let again = changes(&running.engine, from, last).await;
        let again: Vec<_> = again.iter().filter(is_comparable).cloned().collect();
        assert_eq!(again, expected, "behind {from:?}");
        replayed += 1;
    }
    assert!(replayed > 3, "{replayed} places were not in memory");

    // Out of the archive and on with what is decided now, without a break.
    let mut follower = running.engine.watch(WatchPosition::after(LogIndex(3))).expect("it is kept");
    running.work(30..40, &mut states).await;
    let end = running.engine.view().log_index();
    let mut seen: Vec<WatchPosition> = Vec::new();
    guarded("the changes", async {
        while seen.last().is_none_or(|last| last.log_index < end) {
            let (events, reached) = follower.next().await.expect("they are kept");
            seen.extend(events.into_iter().map(|event| event.position));
            if reached.log_index >= end {
                break;
            }
        }
    })
    .await;
    let live = changes(&running.engine, WatchPosition::after(last), end).await;
    assert!(seen.is_sorted_by(|a, b| a < b));
    let behind: Vec<WatchPosition> =
        seen.into_iter().filter(|at| at.log_index > last && at.log_index <= end).collect();
    assert_eq!(behind, live.into_iter().map(|(at, _)| at).collect::<Vec<_>>());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_archive_a_place_that_is_not_kept_is_refused() {
    let replica = Replica::new();
    let running = replica.start(10, None).await;
    running.work(1..150, &mut BTreeMap::new()).await;
    running.purged().await;
    running.stop().await;
    let running = replica.start(10, None).await;
    let refused = running.engine.watch(WatchPosition::after(LogIndex(1))).err();
    assert_eq!(refused.map(|refusal| refusal.code), Some(RefusalCode::ResumeTokenCompacted));
    running.stop().await;
}

/// An archive whose reads take their time, and that counts those under way.
struct Slow {
    inner: muster_archive::DirectoryStore,
    reads: AtomicUsize,
    most: AtomicUsize,
}

impl ObjectStore for Slow {
    fn put(
        &self,
        name: &str,
        content: &mut dyn Iterator<Item = std::io::Result<Bytes>>,
    ) -> std::io::Result<()> {
        self.inner.put(name, content)
    }

    fn get(&self, name: &str, from: u64, length: usize) -> std::io::Result<Bytes> {
        let reads = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(reads, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        self.reads.fetch_sub(1, Ordering::SeqCst);
        self.inner.get(name, from, length)
    }

    fn size(&self, name: &str) -> std::io::Result<u64> {
        self.inner.size(name)
    }

    fn list(&self, prefix: &str) -> std::io::Result<Vec<muster_archive::ObjectInfo>> {
        self.inner.list(prefix)
    }

    fn place(&self) -> String {
        self.inner.place()
    }
}

/// The bound on states of the past holds for the work, not for those who wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_give_up_do_not_have_more_states_of_the_past_made_at_a_time() {
    let replica = Replica::new();
    let running = replica.start(10, Some(replica.open())).await;
    running.work(1..30, &mut BTreeMap::new()).await;
    running.purged().await;
    running.stop().await;
    let inner = muster_archive::DirectoryStore::open(replica.archive.path()).expect("the directory opens");
    let store = Arc::new(Slow { inner, reads: AtomicUsize::new(0), most: AtomicUsize::new(0) });
    let archive = Archive::open(Arc::clone(&store) as Arc<dyn ObjectStore>, Some(CLUSTER)).expect("it opens");
    let running = replica.start(10, Some(archive)).await;
    store.most.store(0, Ordering::SeqCst);
    let read = |index: u64, patience: u64| {
        let deadline = tokio::time::Instant::now() + Duration::from_millis(patience);
        running.engine.read_view(ReadFrom::Past(PastPoint::Index(LogIndex(index))), deadline)
    };
    for index in 2..22 {
        // Too little, on purpose.
        drop(guarded("a past state", read(index, 20)).await);
    }
    // The one that was begun first is there for a caller that asks again.
    assert!(guarded("a past state", read(2, 20_000)).await.is_ok());
    assert_eq!(store.most.load(Ordering::SeqCst), 1, "replays at a time");
    running.stop().await;
}

/// What a round does to queues is told behind its last record: also to one who goes on in its middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_queues_that_goes_on_in_the_middle_of_a_round_misses_nothing_of_it() {
    let replica = Replica::new();
    let running = replica.start(10, Some(replica.open())).await;
    let submit = |number: u128| {
        let mut draft = muster_types::JobDraft::clone(&job("j", 1));
        draft.tenant = name(&format!("tenant-{}", number % 7));
        let jobs = muster_types::Submission::plain([draft.check().expect("a job")]);
        running.execute(Command::submit(RequestId(number), jobs))
    };
    // Together, so that rounds have many records.
    for batch in 0..10 {
        futures::future::join_all((batch * 30..batch * 30 + 30).map(submit)).await;
    }
    running.purged().await;
    let last = running.engine.view().log_index();
    let told = changes(&running.engine, WatchPosition::after(LogIndex::ZERO), last).await;
    running.stop().await;
    let running = replica.start(10, Some(replica.open())).await;
    let mut replayed = 0;
    for index in (1..last.0).step_by(3) {
        let from = WatchPosition::after(LogIndex(index));
        if follow(&running.engine.inner.shared.hub, from).is_ok() {
            continue;
        }
        let again = changes(&running.engine, from, last).await;
        let expected: Vec<_> = told.iter().filter(|(at, _)| *at > from).cloned().collect();
        assert_eq!(again, expected, "behind {from:?}");
        replayed += 1;
    }
    assert!(replayed > 10, "{replayed} places were not in memory");
    running.stop().await;
}
