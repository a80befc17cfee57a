//! What the replicas say of themselves: the leader asks every peer. The others keep the ways open that they would need
//! to be elected and to lead.
//!
//! **Invariant:** a report never decides what is committed; it is advice, with its age.

use crate::config::{Advertise, ConsensusConfig};
use crate::ground::{Ground, Metrics, PeerLink as _, Peers as _, Storage as _};
use crate::leadership::LeadershipView;
use crate::marks::StateMark;
use crate::membership::MEMBERS_MAX;
use crate::rejoin::RejoinGate;
use crate::status::millis;
use muster_store::{Founding, ReplicaNode, Space, StorageHealth};
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bytes of a version that are passed on.
const VERSION_BYTES_MAX: usize = 64;
/// A report of a clock that is older than this says nothing about it.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The release it runs.
    pub version: String,
    /// The newest record format it reads.
    pub format_max: u32,
    /// The cluster's generation as it knows it.
    pub generation: u32,
    /// How its storage fares.
    pub storage: StorageHealth,
    /// The last entry it applied.
    pub applied_index: Option<u64>,
    /// The last entry of its log.
    pub last_log_index: Option<u64>,
    /// Where its newest snapshot ends.
    pub snapshot_index: Option<u64>,
    /// Its storage lost what it had promised, and it was not taken in anew yet.
    pub rejoining: bool,
    /// What its wall clock said, in milliseconds since 1970; none of a release that does not say so.
    pub unix_ms: Option<u64>,
    /// Which founding of the cluster it belongs to, where it knows.
    pub founding: Option<u64>,
    /// Its storage is in memory, and lost with its machine.
    pub is_volatile: bool,
    /// The digest of its state, where it states one.
    pub state: Option<StateMark>,
    /// Whether that is another than the leader's behind the same entry.
    pub has_diverged: bool,
    /// When it said so.
    pub received_at: Instant,
}

impl PeerReport {
    /// How old the report is.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age_at(Instant::now())
    }

    /// How old the report is at a time.
    pub(crate) fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received_at)
    }

    /// What the replica's wall clock says at a time, in milliseconds since 1970, if it has gone on since the report.
    #[must_use]
    pub fn unix_ms_at(&self, now: Instant) -> Option<u64> {
        self.unix_ms.map(|then| then.saturating_add(millis(self.age_at(now))))
    }

    /// Whether storage takes new work and keeps up.
    #[must_use]
    pub fn storage_is_well(&self) -> bool {
        self.storage.space == Space::Enough && self.storage.stalled_ms.is_none() && !self.rejoining
    }
}

/// What this replica says of itself.
pub(crate) struct Describer<G: Ground> {
    pub(crate) advertise: Advertise,
    pub(crate) store: G::Storage,
    pub(crate) storage: watch::Receiver<StorageHealth>,
    pub(crate) metrics: Metrics<G>,
    pub(crate) rejoin: RejoinGate<G>,
}

impl<G: Ground> Clone for Describer<G> {
    fn clone(&self) -> Self {
        Describer {
            advertise: self.advertise.clone(),
            store: self.store.clone(),
            storage: self.storage.clone(),
            metrics: self.metrics.clone(),
            rejoin: self.rejoin.clone(),
        }
    }
}

/// What is said of a founding to others.
pub(crate) fn founding_of(founding: Founding) -> Option<u64> {
    match founding {
        Founding::Of(founding) => Some(founding),
        Founding::Unknown | Founding::Awaited => None,
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(VERSION_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl<G: Ground> Describer<G> {
    pub(crate) fn report(&self) -> PeerReport {
        let metrics = self.metrics.borrow_watched();
        PeerReport {
            version: cut(&self.advertise.version),
            format_max: self.advertise.format_max,
            generation: self.store.generation(),
            storage: *self.storage.borrow(),
            applied_index: metrics.last_applied.map(|log_id| log_id.index()),
            last_log_index: metrics.last_log_index,
            snapshot_index: metrics.snapshot.map(|log_id| log_id.index()),
            rejoining: self.rejoin.is_closed(),
            unix_ms: Some(G::unix_ms()),
            founding: founding_of(self.store.founding()),
            is_volatile: self.advertise.is_volatile,
            state: self.advertise.marks.last(),
            has_diverged: false,
            received_at: G::instant(),
        }
    }
}

pub(crate) fn to_wire(report: &PeerReport) -> wire::DescribeResponse {
    let space = match report.storage.space {
        Space::Enough => wire::Space::Enough,
        Space::Low => wire::Space::Low,
        Space::Full => wire::Space::Full,
    };
    wire::DescribeResponse {
        version: report.version.clone(),
        format_max: report.format_max,
        generation: report.generation,
        space: space.into(),
        free_bytes: report.storage.free_bytes,
        stalled_ms: report.storage.stalled_ms,
        flush_us: report.storage.flush_mean_us,
        applied_index: report.applied_index,
        last_log_index: report.last_log_index,
        snapshot_index: report.snapshot_index,
        rejoining: report.rejoining,
        unix_ms: report.unix_ms,
        founding: report.founding,
        volatile: report.is_volatile,
        state_entry: report.state.map(|mark| mark.raft_index),
        state_digest: report.state.map_or(0, |mark| mark.digest),
    }
}

pub(crate) fn from_wire(message: wire::DescribeResponse, received_at: Instant) -> PeerReport {
    let space = match message.space() {
        wire::Space::Enough => Space::Enough,
        wire::Space::Low => Space::Low,
        // One that says what nobody here knows is not to be relied on.
        wire::Space::Full | wire::Space::Unspecified => Space::Full,
    };
    let storage = StorageHealth {
        free_bytes: message.free_bytes,
        space,
        stalled_ms: message.stalled_ms,
        flush_mean_us: message.flush_us,
        ..StorageHealth::default()
    };
    PeerReport {
        version: cut(&message.version),
        format_max: message.format_max,
        generation: message.generation,
        storage,
        applied_index: message.applied_index,
        last_log_index: message.last_log_index,
        snapshot_index: message.snapshot_index,
        rejoining: message.rejoining,
        unix_ms: message.unix_ms,
        founding: message.founding,
        is_volatile: message.volatile,
        state: message.state_entry.map(|raft_index| StateMark { raft_index, digest: message.state_digest }),
        has_diverged: false,
        received_at,
    }
}

/// Whether the wall clocks of a quorum agree with this replica's now. A report that is older than `REPORT_AGE_MAX` says
/// nothing.
pub(crate) fn clock_agrees<G: Ground>(
    own: u64,
    metrics: &Metrics<G>,
    reports: &Reports,
    apart: Duration,
) -> bool {
    let (now, wall) = (G::instant(), G::unix_ms());
    let agrees = |id: &u64| {
        let report = || reports.get(&ReplicaId(*id)).filter(|report| report.age_at(now) <= REPORT_AGE_MAX);
        let theirs = || report().and_then(|report| report.unix_ms_at(now));
        *id == own || theirs().is_some_and(|theirs| u128::from(theirs.abs_diff(wall)) <= apart.as_millis())
    };
    let metrics = metrics.borrow_watched();
    let configs = metrics.membership_config.membership().get_joint_config();
    configs.iter().all(|voters| voters.iter().filter(|id| agrees(id)).count() > voters.len() / 2)
}

pub(crate) type Reports = BTreeMap<ReplicaId, PeerReport>;

/// Keeps the reports: this replica's own always, those of the others while it leads.
pub(crate) async fn poll_peers<G: Ground>(
    config: ConsensusConfig,
    network: G::Peers,
    describer: Describer<G>,
    view: watch::Receiver<LeadershipView>,
    reports: watch::Sender<Reports>,
) {
    let interval = Duration::from_millis(config.leader.report_interval_ms);
    let own = config.replica_id;
    let mut channels: BTreeMap<ReplicaId, <G::Peers as crate::ground::Peers>::Link> = BTreeMap::new();
    let mut next = G::instant();
    loop {
        tokio::select! {
            biased;
            () = reports.closed() => return,
            () = G::sleep(next.saturating_duration_since(G::instant())) => {}
        }
        next = G::instant() + interval;
        let leads = view.borrow().mine.is_some();
        let (members, running): (Vec<(ReplicaId, ReplicaNode)>, bool) = {
            let metrics = describer.metrics.borrow_watched();
            let nodes = metrics.membership_config.nodes().filter(|(id, _)| **id != own.0);
            let members = nodes.take(MEMBERS_MAX).map(|(id, node)| (ReplicaId(*id), node.clone())).collect();
            (members, metrics.running_state.is_ok())
        };
        if !running {
            return;
        }
        channels.retain(|id, _| members.iter().any(|(peer, _)| peer == id));
        let links: Vec<_> = members
            .iter()
            .map(|(id, node)| (*id, channels.entry(*id).or_insert_with(|| network.link(*id, node)).clone()))
            .collect();
        if !leads {
            let kept = links.into_iter().map(|(_, mut link)| async move { link.keep_open().await });
            // One that hangs holds up nothing but the next time.
            let _ = G::timeout(interval, futures::future::join_all(kept)).await;
            reports.send_modify(|reports| *reports = [(own, describer.report())].into());
            continue;
        }
        let asked = links.into_iter().map(|(id, mut link)| async move {
            let answer = G::timeout(interval, link.describe()).await;
            (id, answer.ok().and_then(Result::ok))
        });
        let answers = futures::future::join_all(asked).await;
        reports.send_modify(|reports| {
            reports.retain(|id, _| members.iter().any(|(peer, _)| peer == id));
            for (id, report) in answers {
                // One that does not answer keeps what it last said, with its age.
                if let Some(mut report) = report {
                    let differs = report.state.and_then(|theirs| describer.advertise.marks.differs(theirs));
                    // Where nothing can be compared, what was seen before stands.
                    let before = reports.get(&id).is_some_and(|before: &PeerReport| before.has_diverged);
                    report.has_diverged = differs.unwrap_or(before);
                    reports.insert(id, report);
                }
            }
            reports.insert(own, describer.report());
        });
    }
}
