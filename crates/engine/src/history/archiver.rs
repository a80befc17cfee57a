//! Keeps the archive: closes segments behind what is applied, lets the log be purged no further than
//! that, and puts a state next to them now and then.
//!
//! Nothing is collected between two segments: what is not in the archive is in the log, which is held
//! for it. So there is nothing to lose, and nothing to recover after a crash.
//!
//! **Invariant:** no entry is purged from the log before the archive has it, durably.
//! **Invariant:** an archive that cannot be written holds the purge and reports that; it never stops apply.

use muster_archive::{
    Archive, ArchiveError, ArchivedRound, DirectoryStore, RaftPosition, SEGMENT_BYTES_TARGET, Start,
};
use muster_consensus::LogSlice;
use muster_types::{ClusterId, LogTime};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use crate::history::mending::Mender;
use crate::history::records::{History, Mark, generation_of, place_of, round};
use crate::history::settings::{
    HistorySettings, PeerHistory, Retention, archive_error_text, blocking, purge_up_to,
};

/// Smallest number of stored segment bytes between two bases. Uncompressed rounds take several times as much.
const BASE_EVERY_BYTES: u64 = 8 << 20;
/// And behind this many times its own size: bases take at most half of what the segments take.
const BASE_EVERY_OWN: u64 = 2;
/// Between two checks whether a segment is due, when nothing else causes one.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// After a failure, and the longest this grows to.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// How often every peer is asked for records that are missing here, before the gap is left.
const PEER_ROUNDS: u32 = 5;
/// Between two such rounds.
const PEER_PAUSE: Duration = Duration::from_secs(2);
/// The generation that a cluster is founded with, as its storage has it.
const FIRST_GENERATION: u32 = 1;
/// Between two checks whether old segments have to be moved away.
const OFFLOAD_EVERY: Duration = Duration::from_secs(5);
/// Before peers are asked again for what none of them had.
const PEER_REST: Duration = Duration::from_secs(60);

pub(crate) fn spawn(history: Arc<History>, settings: HistorySettings) {
    let up_to = match (history.archive(), &settings.unopened) {
        (Some(archive), _) => purge_up_to(archive, history.generation()),
        // Nobody knows what it has.
        (None, Some(_)) => 0,
        (None, None) => return,
    };
    history.consensus.hold_purge(Some(up_to));
    tokio::spawn(async move {
        let shutdown = history.shutdown.clone();
        let archiving = async {
            let archive = opened(&history, &settings).await;
            let offloads_at = Instant::now();
            let mender = Mender::new(Arc::clone(&history), Arc::clone(&archive), settings.peers.clone());
            let archiver = Archiver { history, archive, settings, rests_until: None, offloads_at };
            // What is damaged never delays what is new.
            tokio::join!(archiver.run(), mender.run());
        };
        tokio::select! {
            () = archiving => {}
            () = shutdown.cancelled() => {}
        }
    });
}

/// The archive, which is tried again until it can be opened.
async fn opened(history: &History, settings: &HistorySettings) -> Arc<Archive> {
    let mut pause = PAUSE_FIRST;
    loop {
        if let Some(archive) = history.archive() {
            return Arc::clone(archive);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
        let Some(open) = settings.unopened.as_ref().map(|unopened| Arc::clone(&unopened.open)) else {
            return std::future::pending().await;
        };
        match blocking(move || open()).await {
            Ok(archive) => {
                tracing::info!(archive = archive.place(), "the archive is open; the log goes on behind it");
                history.archive_is_open(Arc::new(archive)).await;
            }
            Err(error) => {
                let text = archive_error_text(&error);
                history.status.send_if_modified(|status| {
                    let changed = status.failing.as_ref() != Some(&text);
                    status.failing = Some(text);
                    changed
                });
            }
        }
    }
}

struct Archiver {
    history: Arc<History>,
    archive: Arc<Archive>,
    settings: HistorySettings,
    /// Peers do not have what is missing, and are not asked again before this.
    rests_until: Option<Instant>,
    /// When it is next checked whether old segments have to be moved away.
    offloads_at: Instant,
}

/// Why a segment was not made.
enum Failure {
    /// It is reported, and tried again.
    Archive(ArchiveError),
    /// The log was replaced meanwhile.
    Moved,
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Failure {
        Failure::Archive(error)
    }
}

impl Archiver {
    async fn run(mut self) {
        let mut end = self.history.end.subscribe();
        let mut pause = PAUSE_FIRST;
        loop {
            end.mark_unchanged();
            self.offload().await;
            match self.step().await {
                Ok(true) => {
                    pause = PAUSE_FIRST;
                    self.report(None);
                }
                Ok(false) => {
                    self.report(None);
                    // New records, or the age of those that are there.
                    let _ = tokio::time::timeout(LOOK_AGAIN, end.changed()).await;
                    // Many small rounds make one segment; looking at each of them would make none sooner.
                    tokio::time::sleep(LOOK_AGAIN / 20).await;
                }
                Err(Failure::Moved) => tokio::time::sleep(LOOK_AGAIN / 20).await,
                Err(Failure::Archive(error)) => {
                    self.report(Some(&error));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_LONGEST);
                }
            }
        }
    }

    /// Publishes how the archive stands; a failure is logged when it begins, changes or ends.
    fn report(&self, error: Option<&ArchiveError>) {
        let failing = error.map(archive_error_text);
        let place = self.archive.place();
        self.history.status.send_if_modified(|status| {
            let summary = self.archive.summary();
            if status.failing != failing {
                match &failing {
                    Some(text) => tracing::error!(
                        archive = place,
                        error = text,
                        "the archive cannot be written; the log is kept until it can"
                    ),
                    None => tracing::info!(archive = place, "the archive is written again"),
                }
            }
            let changed = status.failing != failing || status.summary != summary;
            (status.failing, status.summary) = (failing, summary);
            changed
        });
    }

    /// The first place that is not in the archive, and the one to close the next segment at.
    fn due(&self) -> Option<(Mark, Mark)> {
        let snapshot = self.history.consensus.status().snapshot_index;
        let index_map = self.history.index_map();
        let index_map = index_map.as_ref()?;
        let (first, end) = (index_map.marks[0], index_map.end);
        let has_records = |mark: &&Mark| mark.place.sequence.log_index > first.place.sequence.log_index;
        let full = |mark: &&Mark| mark.bytes - first.bytes >= SEGMENT_BYTES_TARGET as u64;
        if let Some(target) = index_map.marks.iter().filter(has_records).find(full) {
            return Some((first, *target));
        }
        let end = Some(&end).filter(has_records)?;
        let aged = first.noted_at.elapsed() >= self.settings.segment_age;
        // The log waits to be purged.
        let wanted = snapshot.is_some_and(|snapshot| snapshot >= first.place.next_raft);
        let full = end.bytes - first.bytes >= SEGMENT_BYTES_TARGET as u64;
        (aged || wanted || full).then_some((first, *end))
    }

    /// Closes one segment, if one is due.
    async fn step(&mut self) -> Result<bool, Failure> {
        let Some(cluster) = self.history.shared.view.load().cluster().map(|meta| meta.cluster) else {
            return Ok(false);
        };
        let Some(first) = self.history.index_map().as_ref().map(|index_map| index_map.marks[0]) else {
            return Ok(false);
        };
        let rests = self.rests_until.is_some_and(|until| until > Instant::now());
        if let Some(end) = self.lacks_from(first.place).filter(|_| !rests) {
            // A snapshot took this replica past what its archive has.
            self.history.consensus.hold_purge(Some(first.place.next_raft.saturating_sub(1)));
            let is_filled = self.fill(cluster, end, first.place).await?;
            self.rests_until = (!is_filled).then(|| Instant::now() + PEER_REST);
        }
        let Some((first, target)) = self.due() else { return Ok(false) };
        let start = self.start(cluster, first.place).await?;
        let rounds = self.rounds(first.place, target.place).await?;
        self.seal(cluster, start, first.place, rounds, target.place).await?;
        self.sealed(target);
        self.make_base(cluster).await?;
        Ok(true)
    }

    /// Where the archive ends, when that is before `first` and peers can have what is between. An archive without
    /// a segment lacks everything: a replica that has just been taken in, or that a snapshot reached before its
    /// first segment. Were it left so, the history would be gone once every replica had been replaced. Peers can fill it
    /// if theirs reach back to the first record.
    fn lacks_from(&self, first: RaftPosition) -> Option<RaftPosition> {
        let from = match self.archive.end() {
            Some(end) if end.generation >= first.generation => end,
            // The entries of another generation are counted in another way.
            None if first.generation <= FIRST_GENERATION => RaftPosition::default(),
            _ => return None,
        };
        (from.sequence.log_index < first.sequence.log_index).then_some(from)
    }

    /// How the next segment begins; with a state where nothing comes before it.
    async fn start(&self, cluster: ClusterId, from: RaftPosition) -> Result<Start, Failure> {
        match self.archive.end() {
            Some(end) if end.sequence == from.sequence && end.next_raft <= from.next_raft => {
                return Ok(Start::Follows);
            }
            None if from.sequence == Default::default() => return Ok(Start::Founding),
            _ => {}
        }
        let origin = self.history.index_map().as_ref().and_then(|index_map| index_map.origin.clone());
        let Some(origin) = origin else { return Err(Failure::Moved) };
        let archive = Arc::clone(&self.archive);
        blocking(move || archive.put_base(cluster, from, &origin)).await?;
        tracing::warn!(
            first_log_index = %from.sequence.log_index.next(),
            "the archive goes on behind records that it does not have"
        );
        Ok(Start::Gap)
    }

    async fn rounds(&self, from: RaftPosition, to: RaftPosition) -> Result<Vec<ArchivedRound>, Failure> {
        let mut rounds = Vec::new();
        let mut next = from.next_raft;
        while next < to.next_raft {
            match self.history.consensus.read_applied(next).await {
                Ok(LogSlice::Entries(entries)) if !entries.is_empty() => {
                    next = entries.last().map_or(next, |entry| entry.raft_index + 1);
                    let wanted = entries.into_iter().filter(|entry| entry.raft_index < to.next_raft);
                    rounds.extend(wanted.filter_map(round));
                }
                // A snapshot replaced the log, or the replica stops.
                _ => return Err(Failure::Moved),
            }
        }
        Ok(rounds)
    }

    async fn seal(
        &self,
        cluster: ClusterId,
        start: Start,
        from: RaftPosition,
        rounds: Vec<ArchivedRound>,
        to: RaftPosition,
    ) -> Result<(), ArchiveError> {
        let archive = Arc::clone(&self.archive);
        blocking(move || {
            let mut draft = archive.draft(cluster, start, from)?;
            let first_time = match rounds.first() {
                Some(round) => round.decode()?.log_time,
                None => LogTime(0),
            };
            for round in &rounds {
                draft.push(round);
            }
            // A late round of a lost leadership may stand first, with the time of its leader.
            archive.seal(draft, to, first_time.min(to.sequence.log_time)).map(|_| ())
        })
        .await
    }

    /// The archive has everything up to a mark: the log may go, and what was noted of it.
    fn sealed(&self, target: Mark) {
        if let Some(index_map) = self.history.index_map().as_mut() {
            while index_map.marks.front().is_some_and(|mark| mark.place.next_raft < target.place.next_raft) {
                index_map.marks.pop_front();
            }
            if index_map.marks.front().is_none_or(|mark| mark.place != target.place) {
                index_map.marks.push_front(Mark { noted_at: Instant::now(), ..target });
            }
            index_map.origin = None;
        }
        self.history.consensus.hold_purge(Some(target.place.next_raft.saturating_sub(1)));
    }

    /// Moves to the other directory what must not stay here. A failure is reported, and costs nothing but space on
    /// this disk.
    async fn offload(&mut self) {
        let Some(retention) = self.settings.retention.clone().filter(|_| self.offloads_at <= Instant::now())
        else {
            return;
        };
        self.offloads_at = Instant::now() + OFFLOAD_EVERY;
        let failing = self.try_offload(retention).await.err().map(|error| archive_error_text(&error));
        self.history.status.send_if_modified(|status| {
            if let Some(error) = failing.as_ref().filter(|_| status.offload_failing != failing) {
                tracing::error!(
                    error,
                    "old segments of the archive cannot be moved away; they stay until they can"
                );
            }
            let summary = self.archive.summary();
            let changed = status.offload_failing != failing || status.summary != summary;
            (status.offload_failing, status.summary) = (failing, summary);
            changed
        });
    }

    async fn try_offload(&self, retention: Retention) -> Result<(), ArchiveError> {
        let now = self.history.shared.view.load().log_time();
        let Some(through) = self.archive.offload_due(retention.bounds, now) else { return Ok(()) };
        let Some(cluster) = self.archive.cluster() else { return Ok(()) };
        let archive = Arc::clone(&self.archive);
        if !blocking(move || Ok(archive.has_base_from(through))).await? {
            // What stays has to begin with a state.
            self.put_present_state(cluster).await?;
        }
        let archive = Arc::clone(&self.archive);
        let done = blocking(move || {
            let dir = &retention.offload_dir;
            let failed = |source| ArchiveError::Store {
                operation: "opening",
                object: dir.display().to_string(),
                source,
            };
            // It is not made here: a directory that is missing may be a disk that is not mounted.
            DirectoryStore::open_read_only(dir).map_err(failed)?;
            let to = DirectoryStore::open(dir).map_err(failed)?;
            if archive.has_base_from(through) {
                archive.offload(cluster, &to, through).map(Some)
            } else {
                Ok(None)
            }
        })
        .await?;
        if let Some(done) = done {
            tracing::info!(last_log_index = %through, objects = done.objects, bytes = done.bytes, "old segments of the archive were moved away");
        }
        Ok(())
    }

    /// Puts the present state next to the segments, when there are enough behind the last one.
    async fn make_base(&self, cluster: ClusterId) -> Result<(), ArchiveError> {
        let newest = self.archive.newest_base();
        let due = newest.map_or(BASE_EVERY_BYTES, |base| BASE_EVERY_BYTES.max(base.bytes * BASE_EVERY_OWN));
        let behind = newest.map(|base| base.log_index).unwrap_or_default();
        if self.archive.segment_bytes_behind(behind) < due {
            return Ok(());
        }
        self.put_present_state(cluster).await
    }

    /// Puts the present state next to the segments, where it stands at the end of a record.
    async fn put_present_state(&self, cluster: ClusterId) -> Result<(), ArchiveError> {
        let position = self.history.shared.position.load_full();
        if !position.exact {
            return Ok(());
        }
        let place = place_of(position.raft_index, &position.state);
        let archive = Arc::clone(&self.archive);
        let state = Arc::clone(&position.state);
        drop(position);
        debug_assert_eq!(place.generation, generation_of(&state));
        blocking(move || archive.put_base(cluster, place, &state)).await.map(|_| ())
    }

    /// Gets records that this replica never had as a log from its peers' archives and logs; whether it has them all
    /// now. Where none of them has them, they stay missing, and a verification reports that.
    async fn fill(
        &self,
        cluster: ClusterId,
        from: RaftPosition,
        to: RaftPosition,
    ) -> Result<bool, ArchiveError> {
        let Some(peers) = self.settings.peers.clone() else { return Ok(false) };
        let mut place = from;
        for attempt in 0..PEER_ROUNDS {
            if attempt > 0 {
                tokio::time::sleep(PEER_PAUSE).await;
            }
            let status = self.history.consensus.status();
            for member in status.members.iter().filter(|member| member.replica != status.replica) {
                let endpoint = member.node.client_endpoint.clone();
                while place.next_raft < to.next_raft {
                    match self.fill_step(cluster, peers.as_ref(), &endpoint, place, to).await? {
                        Ok(next) => place = next,
                        Err(detail) => {
                            tracing::info!(endpoint, detail, "a peer does not have what the archive lacks");
                            break;
                        }
                    }
                }
                if place.next_raft >= to.next_raft {
                    tracing::info!(
                        first_log_index = %from.sequence.log_index.next(),
                        last_log_index = %to.sequence.log_index,
                        "the archive got what it lacked from its peers"
                    );
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// One segment of them; the place behind it, or why this peer was of no use.
    async fn fill_step(
        &self,
        cluster: ClusterId,
        peers: &dyn PeerHistory,
        endpoint: &str,
        from: RaftPosition,
        to: RaftPosition,
    ) -> Result<Result<RaftPosition, String>, ArchiveError> {
        let (mut rounds, next) = match peers.rounds(endpoint.to_owned(), from.next_raft).await {
            Ok(found) => found,
            Err(detail) => return Ok(Err(detail)),
        };
        rounds.retain(|round| round.raft_index < to.next_raft);
        let mut place = from;
        for round in &rounds {
            if round.raft_index < place.next_raft {
                return Ok(Err("its rounds are out of order".to_owned()));
            }
            // What a peer says is held against its checksums and against the place it has to lead to.
            if let Err(error) = place.step(round) {
                return Ok(Err(error.to_string()));
            }
        }
        place.next_raft = next.min(to.next_raft).max(place.next_raft);
        let arrived = place.next_raft == to.next_raft;
        if place.next_raft == from.next_raft {
            return Ok(Err("it has nothing behind that".to_owned()));
        }
        if arrived && place.sequence != to.sequence {
            return Ok(Err("its records do not lead to this replica's snapshot".to_owned()));
        }
        if place.sequence.log_index > from.sequence.log_index {
            // Entries of the protocol before the first record are of the first segment as well.
            let (start, from) = match self.archive.end() {
                Some(_) => (Start::Follows, from),
                None => (Start::Founding, RaftPosition::default()),
            };
            self.seal(cluster, start, from, rounds, place).await?;
        } else if !rounds.is_empty() {
            return Ok(Err("it has only rounds without a record there".to_owned()));
        }
        Ok(Ok(place))
    }
}
