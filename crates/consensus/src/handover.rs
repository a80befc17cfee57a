//! When a leader hands over of its own accord: its storage is not well, or another region should lead.
//!
//! **Invariant:** nobody hands over to a voter that is silent, behind, or unwell itself.
//! **Invariant:** leadership moves for a preference only after leader and successor have been well
//! for a while, and for storage at most once in two leases, so it does not go to and fro.

use crate::config::{ConsensusConfig, LeaderPolicy, Timing};
use crate::consensus::Consensus;
use crate::ground::Ground;
use crate::leadership::Leadership;
use crate::peers::{PeerReport, Reports};
use crate::status::Member;
use muster_planted::{Rule, breaks};
use muster_store::Space;
use muster_types::ReplicaId;
use openraft::type_config::TypeConfigExt as _;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Entries a successor may lack: it is waited for while it catches up, and nothing is taken meanwhile.
const SUCCESSOR_LAG_ENTRIES_MAX: u64 = 256;
/// A leader whose flushes take this many times as long as a peer's is slow.
const SLOWER_TIMES: u64 = 8;
/// Heartbeat intervals a flush may take before it counts as stalled.
const STALL_HEARTBEATS: u64 = 2;

/// Why a leader gives up leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    NoSpace,
    FlushStalls,
    FlushesAreSlow,
    BetterRegion,
}

impl Cause {
    fn text(self) -> &'static str {
        match self {
            Cause::NoSpace => "its disk is nearly full",
            Cause::FlushStalls => "a flush of its disk does not end",
            Cause::FlushesAreSlow => "its disk is much slower than those of its peers",
            Cause::BetterRegion => "another region should lead",
        }
    }

    fn is_urgent(self) -> bool {
        self != Cause::BetterRegion
    }
}

/// The place of a region in the order of preference; lower is better.
fn preference(policy: &LeaderPolicy, region: &str) -> usize {
    policy.preferred_regions.iter().position(|name| name == region).unwrap_or(usize::MAX)
}

fn stall_ms_max(timing: Timing) -> u64 {
    timing.heartbeat_interval_ms * STALL_HEARTBEATS
}

fn is_stalled(report: &PeerReport, timing: Timing) -> bool {
    report.storage.stalled_ms.is_some_and(|ms| ms > stall_ms_max(timing))
}

/// What is wrong with the leader's own storage.
fn own_trouble(own: &PeerReport, successor: Option<&PeerReport>, timing: Timing) -> Option<Cause> {
    if breaks(Rule::KeepsOnBadDisk) {
        return None;
    }
    if own.storage.space != Space::Enough {
        return Some(Cause::NoSpace);
    }
    if is_stalled(own, timing) {
        return Some(Cause::FlushStalls);
    }
    is_slow_beside(own, successor?, timing).then_some(Cause::FlushesAreSlow)
}

/// Whether one's flushes are slow by themselves, and slow beside the other's.
fn is_slow_beside(one: &PeerReport, other: &PeerReport, timing: Timing) -> bool {
    let slow_us = timing.heartbeat_interval_ms * 1_000;
    one.storage.flush_mean_us > slow_us
        && one.storage.flush_mean_us / other.storage.flush_mean_us.max(1) >= SLOWER_TIMES
}

/// The voters that could lead, the best first.
fn successors<'m>(
    config: &ConsensusConfig,
    members: &'m [Member],
    reports: &Reports,
    now: Instant,
) -> Vec<&'m Member> {
    let report_age_max = Duration::from_millis(config.leader.report_interval_ms * 3);
    let silent_ms_max = config.timing.election_timeout_max_ms;
    let mut able: Vec<&Member> = members
        .iter()
        .filter(|member| member.replica != config.replica_id && member.votes)
        .filter(|member| member.silent_ms.is_some_and(|ms| ms <= silent_ms_max))
        .filter(|member| member.lag_entries.is_some_and(|lag| lag <= SUCCESSOR_LAG_ENTRIES_MAX))
        .filter(|member| {
            reports.get(&member.replica).is_some_and(|report| {
                report.age_at(now) <= report_age_max
                    && report.storage.space == Space::Enough
                    && !report.rejoining
                    && !is_stalled(report, config.timing)
            })
        })
        .collect();
    able.sort_by_key(|member| {
        let flush_us = reports.get(&member.replica).map_or(u64::MAX, |report| report.storage.flush_mean_us);
        // A hundredth of a second more or less says nothing about a disk.
        (
            preference(&config.leader, &member.node.region),
            flush_us / 10_000,
            member.lag_entries,
            member.replica,
        )
    });
    able
}

/// What the leader remembers from one look to the next.
struct Watch {
    leadership: Leadership,
    since: Instant,
    /// Since when each voter in a better region has been able to lead.
    able_since: BTreeMap<ReplicaId, Instant>,
    /// When it last tried to hand over.
    tried: Option<Instant>,
}

impl Watch {
    /// Whom to hand over to now, and why.
    fn decide(
        &mut self,
        config: &ConsensusConfig,
        members: &[Member],
        reports: &Reports,
        own: &PeerReport,
        now: Instant,
    ) -> Option<(ReplicaId, Cause)> {
        let able = successors(config, members, reports, now);
        let since = |at: Instant| now.saturating_duration_since(at);
        self.able_since.retain(|id, _| able.iter().any(|member| member.replica == *id));
        for member in &able {
            self.able_since.entry(member.replica).or_insert(now);
        }
        let first = able.first()?;
        if let Some(cause) = own_trouble(own, reports.get(&first.replica), config.timing) {
            let pause = config.timing.lease() * 2;
            let again = self.tried.is_none_or(|tried| since(tried) >= pause);
            return again.then_some((first.replica, cause));
        }
        let region = members.iter().find(|member| member.replica == config.replica_id)?.node.region.as_str();
        let better = preference(&config.leader, &first.node.region) < preference(&config.leader, region);
        let settle = Duration::from_millis(config.leader.settle_ms)
            // Replicas that would move it at the same time do not.
            + Duration::from_millis(config.replica_id.0 % 8 * config.timing.heartbeat_interval_ms);
        let settled = since(self.since) >= settle
            && self.able_since.get(&first.replica).is_some_and(|at| since(*at) >= settle)
            && self.tried.is_none_or(|tried| since(tried) >= settle);
        // It would hand over again at once.
        let slow =
            reports.get(&first.replica).is_none_or(|report| is_slow_beside(report, own, config.timing));
        (better && settled && !slow).then_some((first.replica, Cause::BetterRegion))
    }
}

/// Looks after this replica's leadership while it has it.
pub(crate) async fn look_after_leadership<G: Ground>(consensus: Consensus<G>) {
    let config = consensus.inner.config.clone();
    let interval = Duration::from_millis(config.timing.heartbeat_interval_ms);
    let mut view = consensus.leadership();
    let mut stop = consensus.stopped();
    let mut watch: Option<Watch> = None;
    loop {
        let mine = view.borrow_and_update().mine;
        let pause = if mine.is_some() { interval } else { Duration::from_secs(3_600) };
        tokio::select! {
            biased;
            _ = stop.wait_for(Option::is_some) => return,
            changed = view.changed() => if changed.is_err() { return },
            () = G::sleep(pause) => {}
        }
        let Some(leadership) = view.borrow().mine else {
            watch = None;
            continue;
        };
        let watch = match &mut watch {
            Some(watch) if watch.leadership == leadership => watch,
            other => other.insert(Watch {
                leadership,
                since: G::instant(),
                able_since: BTreeMap::new(),
                tried: None,
            }),
        };
        let own = consensus.inner.describer.report();
        let reports = consensus.inner.reports.borrow().clone();
        let now = G::instant();
        let Some((to, cause)) = watch.decide(&config, &consensus.members(), &reports, &own, now) else {
            continue;
        };
        watch.tried = Some(now);
        tracing::warn!(%to, cause = cause.text(), urgent = cause.is_urgent(), "this replica hands over leadership");
        if let Err(error) = consensus.transfer_leadership(to).await {
            tracing::warn!(%to, %error, "leadership was not handed over");
        }
    }
}

impl<G: Ground> Consensus<G> {
    /// The voter that should lead next, if this replica may not go on: healthy, caught up, in the
    /// best region.
    #[must_use]
    pub fn successor(&self) -> Option<ReplicaId> {
        let reports = self.inner.reports.borrow().clone();
        let members = self.members();
        successors(&self.inner.config, &members, &reports, G::instant()).first().map(|member| member.replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_store::{ReplicaNode, StorageHealth};
    use muster_types::ClusterId;

    fn report(storage: StorageHealth) -> PeerReport {
        PeerReport {
            is_volatile: false,
            state: None,
            has_diverged: false,
            version: String::new(),
            format_max: 1,
            generation: 1,
            storage,
            applied_index: None,
            last_log_index: None,
            snapshot_index: None,
            rejoining: false,
            unix_ms: None,
            founding: None,
            received_at: Instant::now(),
        }
    }

    fn flushes_in(flush_mean_us: u64) -> StorageHealth {
        StorageHealth { flush_mean_us, ..StorageHealth::default() }
    }

    fn member(id: u64, region: &str) -> Member {
        Member {
            replica: ReplicaId(id),
            node: ReplicaNode { region: region.to_owned(), ..ReplicaNode::default() },
            votes: true,
            matched_index: Some(9),
            lag_entries: Some(0),
            silent_ms: Some(1),
            leads: id == 1,
            report: None,
        }
    }

    fn watch() -> Watch {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap_or_else(Instant::now);
        let able_since = [(ReplicaId(2), long_ago), (ReplicaId(3), long_ago)].into();
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        Watch { leadership, since: long_ago, able_since, tried: None }
    }

    fn config() -> ConsensusConfig {
        ConsensusConfig::new(ClusterId(1), ReplicaId(1))
    }

    #[test]
    fn a_leader_that_is_well_stays() {
        let members = [member(1, "a"), member(2, "b"), member(3, "c")];
        let well = report(flushes_in(500));
        let reports: Reports = (1..=3).map(|id| (ReplicaId(id), well.clone())).collect();
        assert_eq!(watch().decide(&config(), &members, &reports, &well, Instant::now()), None);
    }

    #[test]
    fn a_slow_disk_hands_over_only_beside_a_faster_one() {
        let members = [member(1, "a"), member(2, "b"), member(3, "c")];
        let slow = report(flushes_in(400_000));
        let mut reports: Reports = (2..=3).map(|id| (ReplicaId(id), slow.clone())).collect();
        assert_eq!(
            watch().decide(&config(), &members, &reports, &slow, Instant::now()),
            None,
            "all are as slow"
        );
        reports.insert(ReplicaId(3), report(flushes_in(900)));
        let expected = Some((ReplicaId(3), Cause::FlushesAreSlow));
        assert_eq!(watch().decide(&config(), &members, &reports, &slow, Instant::now()), expected);
        let mut tried = watch();
        tried.tried = Some(Instant::now());
        assert_eq!(
            tried.decide(&config(), &members, &reports, &slow, Instant::now()),
            None,
            "not at once again"
        );
    }

    #[test]
    fn nobody_hands_over_to_one_that_is_silent_behind_or_unwell() {
        let full = report(StorageHealth { space: Space::Full, ..StorageHealth::default() });
        let reports: Reports = [(ReplicaId(2), report(flushes_in(500)))].into();
        let decide = |other: Member, reports: &Reports| {
            watch()
                .decide(&config(), &[member(1, "a"), other], reports, &full, Instant::now())
                .map(|(to, _)| to)
        };
        assert_eq!(decide(member(2, "b"), &reports), Some(ReplicaId(2)));
        assert_eq!(decide(Member { silent_ms: Some(10_000), ..member(2, "b") }, &reports), None);
        assert_eq!(decide(Member { silent_ms: None, ..member(2, "b") }, &reports), None);
        assert_eq!(decide(Member { lag_entries: Some(5_000), ..member(2, "b") }, &reports), None);
        assert_eq!(decide(Member { votes: false, ..member(2, "b") }, &reports), None);
        assert_eq!(decide(member(2, "b"), &Reports::new()), None, "it never said how it fares");
        let unwell: Reports = [(ReplicaId(2), full.clone())].into();
        assert_eq!(decide(member(2, "b"), &unwell), None);
    }

    #[test]
    fn a_better_region_waits_until_all_is_settled_and_takes_no_slow_disk() {
        let mut config = config();
        config.leader.preferred_regions = vec!["c".to_owned()];
        let members = [member(1, "a"), member(2, "b"), member(3, "c")];
        let well = report(flushes_in(500));
        let mut reports: Reports = (1..=3).map(|id| (ReplicaId(id), well.clone())).collect();
        let expected = Some((ReplicaId(3), Cause::BetterRegion));
        assert_eq!(watch().decide(&config, &members, &reports, &well, Instant::now()), expected);
        let mut fresh = watch();
        fresh.able_since.clear();
        assert_eq!(
            fresh.decide(&config, &members, &reports, &well, Instant::now()),
            None,
            "it was just unwell"
        );
        reports.insert(ReplicaId(3), report(flushes_in(400_000)));
        assert_eq!(
            watch().decide(&config, &members, &reports, &well, Instant::now()),
            None,
            "it would hand over again"
        );
    }
}
