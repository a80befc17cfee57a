//! Damage in the archive is found before somebody needs what is damaged, named, and mended from this replica's own log or
//! from other replicas.
//!
//! **Invariant:** what others say gets into the archive only where its chain proves it, see [`muster_archive::Lack`].
//! **Invariant:** looking for damage and mending it are bounded: one object at a time, and a pause behind each.

use muster_archive::{Archive, ArchivedRound, Lack};
use muster_consensus::LogSlice;
use muster_types::ClusterId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use crate::history::records::{History, generation_of, round};
use crate::history::settings::{PeerHistory, archive_error_text, blocking};

/// Between two objects that are read to see whether they are what was written: a disk full of archive is read in days, at
/// less than a megabyte a second.
const LOOK_OVER_EVERY: Duration = Duration::from_secs(10);
/// Between two looks whether something has to be mended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Behind an attempt that could not mend something.
const PAUSE: Duration = Duration::from_secs(30);
/// Bytes of payloads that are held for one segment: none has as many.
const SEGMENT_PAYLOADS_MAX: usize = 64 << 20;

/// Finds damage in an archive, and mends it.
pub(super) struct Mender {
    history: Arc<History>,
    archive: Arc<Archive>,
    peers: Option<Arc<dyn PeerHistory>>,
    /// The object that is read next.
    number: usize,
    looks_over_at: Instant,
    mends_at: Instant,
}

impl Mender {
    pub(super) fn new(
        history: Arc<History>,
        archive: Arc<Archive>,
        peers: Option<Arc<dyn PeerHistory>>,
    ) -> Mender {
        let now = Instant::now();
        Mender { history, archive, peers, number: 0, looks_over_at: now + LOOK_OVER_EVERY, mends_at: now }
    }

    /// Looks and mends for as long as the replica runs. What cannot be mended is tried again.
    pub(super) async fn run(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Some(cluster) = self.archive.cluster() {
                self.step(cluster).await;
            }
        }
    }

    async fn step(&mut self, cluster: ClusterId) {
        let now = Instant::now();
        if self.looks_over_at <= now {
            self.looks_over_at = now + LOOK_OVER_EVERY;
            self.look_over().await;
        }
        if self.mends_at > now {
            return;
        }
        let is_whole = self.archive.unmended().is_empty() && self.archive.summary().gaps.is_empty();
        if !is_whole && !self.mend(cluster).await {
            self.mends_at = Instant::now() + PAUSE;
        }
        self.report();
    }

    /// Reads one object whole; what is wrong with it, the archive notes.
    async fn look_over(&mut self) {
        let (archive, number) = (Arc::clone(&self.archive), self.number);
        let looked = blocking(move || Ok(archive.look_over(number))).await;
        // From the beginning again behind the last one.
        self.number = if matches!(looked, Ok(None)) { 0 } else { number + 1 };
    }

    /// Publishes what is damaged; something new is logged once.
    fn report(&self) {
        let (unmended, mended) = (self.archive.unmended(), self.archive.mended());
        self.history.status.send_if_modified(|status| {
            for object in unmended.iter().filter(|object| !status.unmended.contains(object)) {
                tracing::error!(object, "an object of the archive is damaged or gone; it is being rebuilt");
            }
            let changed = status.unmended != unmended || status.mended != mended;
            (status.unmended, status.mended) = (unmended, mended);
            changed
        });
    }

    /// Mends what can be mended; whether nothing is left to do at once.
    async fn mend(&self, cluster: ClusterId) -> bool {
        self.report();
        let archive = Arc::clone(&self.archive);
        let lacks = match blocking(move || archive.lacks()).await {
            Ok(lacks) => lacks,
            Err(error) => {
                tracing::warn!(
                    error = archive_error_text(&error),
                    "damage of the archive cannot be looked at"
                );
                return false;
            }
        };
        for lack in lacks {
            if self.mend_segment(cluster, &lack).await {
                tracing::info!(first_log_index = %lack.first_log_index(), last_log_index = %lack.last_log_index(), object = lack.object(), "a segment of the archive was rebuilt");
                // The next one may have waited for this one.
                return true;
            }
        }
        let Some(base) = self.archive.damaged_bases().into_iter().next() else { return false };
        let archive = Arc::clone(&self.archive);
        match blocking(move || archive.mend_base(cluster, &base)).await {
            Ok(()) => {
                tracing::info!(last_log_index = %base.log_index, object = base.object(), "a base of the archive was rebuilt by a replay");
                true
            }
            Err(error) => {
                let error = archive_error_text(&error);
                tracing::warn!(
                    error,
                    last_log_index = %base.log_index,
                    object = base.object(),
                    "a damaged base of the archive cannot be rebuilt"
                );
                false
            }
        }
    }

    /// Rebuilds one segment from the log of this replica, or from the first other replica that has its rounds.
    async fn mend_segment(&self, cluster: ClusterId, lack: &Lack) -> bool {
        // Raft entries of an earlier generation are counted in another way.
        if lack.generation() != generation_of(&self.history.shared.view.load()).max(self.history.generation())
        {
            return false;
        }
        if let Some(rounds) = self.own_rounds(lack).await
            && self.try_rounds(cluster, lack, rounds, "this replica's log").await
        {
            return true;
        }
        let Some(peers) = self.peers.clone() else { return false };
        let status = self.history.consensus.status();
        for member in status.members.iter().filter(|member| member.replica != status.replica) {
            let endpoint = &member.node.client_endpoint;
            match rounds_of(peers.as_ref(), endpoint, lack).await {
                Ok(rounds) => {
                    if self.try_rounds(cluster, lack, rounds, endpoint).await {
                        return true;
                    }
                }
                Err(detail) => {
                    tracing::info!(endpoint, detail, "a peer does not have what the archive lacks");
                }
            }
        }
        false
    }

    async fn try_rounds(
        &self,
        cluster: ClusterId,
        lack: &Lack,
        rounds: Vec<ArchivedRound>,
        whose: &str,
    ) -> bool {
        let (archive, wanted) = (Arc::clone(&self.archive), lack.clone());
        let mended = blocking(move || archive.mend(cluster, &wanted, &rounds)).await;
        let Err(error) = mended else { return true };
        tracing::warn!(
            error = archive_error_text(&error),
            first_log_index = %lack.first_log_index(),
            last_log_index = %lack.last_log_index(),
            whose,
            "a segment of the archive cannot be rebuilt"
        );
        false
    }

    /// What the log here still has of it, if that is all of it.
    async fn own_rounds(&self, lack: &Lack) -> Option<Vec<ArchivedRound>> {
        let consensus = &self.history.consensus;
        if consensus.log_floor().is_some_and(|floor| floor >= lack.first_raft()) {
            return None;
        }
        let (mut rounds, mut next) = (Vec::new(), lack.first_raft());
        while next < lack.next_raft() {
            match consensus.read_applied(next).await {
                Ok(LogSlice::Entries(entries)) if !entries.is_empty() => {
                    next = entries.last().map_or(next, |entry| entry.raft_index + 1);
                    let wanted = entries.into_iter().filter(|entry| entry.raft_index < lack.next_raft());
                    rounds.extend(wanted.filter_map(round));
                }
                // Purged meanwhile, or the replica stops.
                _ => return None,
            }
        }
        Some(rounds)
    }
}

/// What a peer has of a segment; why it does not have all of it.
pub(super) async fn rounds_of(
    peers: &dyn PeerHistory,
    endpoint: &str,
    lack: &Lack,
) -> Result<Vec<ArchivedRound>, String> {
    let (mut rounds, mut next, mut bytes) = (Vec::new(), lack.first_raft(), 0_usize);
    while next < lack.next_raft() {
        let (found, behind) = peers.rounds(endpoint.to_owned(), next).await?;
        if behind <= next {
            return Err("it has nothing behind that".to_owned());
        }
        for round in found.into_iter().filter(|round| (next..lack.next_raft()).contains(&round.raft_index)) {
            bytes = bytes.saturating_add(round.payload.len());
            if bytes > SEGMENT_PAYLOADS_MAX {
                return Err("it has more than a segment can hold".to_owned());
            }
            rounds.push(round);
        }
        next = behind;
    }
    Ok(rounds)
}
