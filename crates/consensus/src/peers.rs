//! What the replicas say of themselves: the leader asks every peer. The others keep the ways open that they would need
//! to be elected and to lead.
//!
//! **Invariant:** a report never decides what is committed; it is advice, with its age.

use crate::config::{Advertise, ConsensusConfig, MEMBERS_MAX};
use crate::environment::{Environment, Metrics, PeerLink as _, Peers, Storage as _};
use crate::leader::LeadershipHandle;
use crate::messages::{PeerReport, Reports, bounded_version};
use crate::rejoin::RejoinGate;
use muster_store::{ReplicaNode, StorageHealth};
use muster_types::ReplicaId;
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// A report of a clock that is older than this says nothing about it.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);

/// What this replica says of itself.
pub(crate) struct Describer<E: Environment> {
    pub(crate) advertise: Advertise,
    pub(crate) store: E::Storage,
    pub(crate) storage: watch::Receiver<StorageHealth>,
    pub(crate) metrics: Metrics<E>,
    pub(crate) rejoin: RejoinGate<E>,
}

impl<E: Environment> Clone for Describer<E> {
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

impl<E: Environment> Describer<E> {
    pub(crate) fn report(&self) -> PeerReport {
        let metrics = self.metrics.borrow_watched();
        PeerReport {
            version: bounded_version(&self.advertise.version),
            format_max: self.advertise.format_max,
            generation: self.store.generation(),
            storage: *self.storage.borrow(),
            applied_index: metrics.last_applied.map(|log_id| log_id.index()),
            last_log_index: metrics.last_log_index,
            snapshot_index: metrics.snapshot.map(|log_id| log_id.index()),
            rejoining: self.rejoin.is_closed(),
            unix_ms: Some(E::unix_ms()),
            founding: self.store.founding().id(),
            is_volatile: self.advertise.is_volatile,
            state: self.advertise.marks.last(),
            has_diverged: false,
            received_at: E::instant(),
        }
    }
}

/// Whether the wall clocks of a quorum agree with this replica's now. A report that is older than `REPORT_AGE_MAX` says
/// nothing.
pub(crate) fn clock_agrees<E: Environment>(
    own: u64,
    metrics: &Metrics<E>,
    reports: &Reports,
    apart: Duration,
) -> bool {
    let (now, wall) = (E::instant(), E::unix_ms());
    let agrees = |id: &u64| {
        let report = || reports.get(&ReplicaId(*id)).filter(|report| report.age_at(now) <= REPORT_AGE_MAX);
        let theirs = || report().and_then(|report| report.unix_ms_at(now));
        *id == own || theirs().is_some_and(|theirs| u128::from(theirs.abs_diff(wall)) <= apart.as_millis())
    };
    let metrics = metrics.borrow_watched();
    let configs = metrics.membership_config.membership().get_joint_config();
    configs.iter().all(|voters| voters.iter().filter(|id| agrees(id)).count() > voters.len() / 2)
}

/// Keeps the reports: this replica's own always, those of the others while it leads.
pub(crate) async fn poll_peers<E: Environment>(
    config: ConsensusConfig,
    network: E::Peers,
    describer: Describer<E>,
    leadership: LeadershipHandle,
    reports: watch::Sender<Reports>,
) {
    let interval = Duration::from_millis(config.leader.report_interval_ms);
    let own = config.replica_id;
    let mut channels: BTreeMap<ReplicaId, <E::Peers as Peers>::Link> = BTreeMap::new();
    let mut next = E::instant();
    loop {
        tokio::select! {
            biased;
            () = reports.closed() => return,
            () = E::sleep(next.saturating_duration_since(E::instant())) => {}
        }
        next = E::instant() + interval;
        let leads = leadership.mine().is_some();
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
            let _ = E::timeout(interval, futures::future::join_all(kept)).await;
            reports.send_modify(|reports| *reports = [(own, describer.report())].into());
            continue;
        }
        let asked = links.into_iter().map(|(id, mut link)| async move {
            let answer = E::timeout(interval, link.describe()).await;
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
