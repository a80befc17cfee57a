//! Leadership transfer: on request, and by policy when the leader's storage is not healthy or another region should lead.
//!
//! **Invariant:** leadership is never transferred to a voter that is silent, behind, or not healthy itself.
//! **Invariant:** leadership moves for a preference only after leader and successor have been well
//! for a while, and for storage at most once in two leases, so it does not go to and fro.

use crate::config::{ConsensusConfig, LeaderPolicy, Timing};
use crate::environment::{Environment, Raft};
use crate::error::MembershipError;
use crate::leader::LeadershipHandle;
use crate::messages::{PeerReport, Reports};
use crate::peers::Describer;
use crate::status::{Member, Members};
use crate::stop::StopHandle;
use muster_planted::{Rule, breaks};
use muster_store::Space;
use muster_types::{Leadership, ReplicaId};
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
    is_slower_than(own, successor?, timing).then_some(Cause::FlushesAreSlow)
}

/// Whether the flushes of `one` are slow by themselves, and slow compared with those of `other`.
fn is_slower_than(one: &PeerReport, other: &PeerReport, timing: Timing) -> bool {
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
struct TransferPolicy {
    leadership: Leadership,
    since: Instant,
    /// Since when each voter in a better region has been able to lead.
    able_since: BTreeMap<ReplicaId, Instant>,
    /// When it last tried a transfer.
    tried: Option<Instant>,
}

impl TransferPolicy {
    /// The replica that should lead now, and why.
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
        // A successor with a slow disk would transfer leadership again at once.
        let slow =
            reports.get(&first.replica).is_none_or(|report| is_slower_than(report, own, config.timing));
        (better && settled && !slow).then_some((first.replica, Cause::BetterRegion))
    }
}

/// Transfers this replica's leadership, on request and by its own policy. Clones share it.
pub(crate) struct LeadershipTransfer<E: Environment> {
    pub(crate) config: ConsensusConfig,
    pub(crate) raft: Raft<E>,
    pub(crate) leadership: LeadershipHandle,
    pub(crate) stop: StopHandle,
    pub(crate) members: Members<E>,
    pub(crate) describer: Describer<E>,
}

impl<E: Environment> Clone for LeadershipTransfer<E> {
    fn clone(&self) -> Self {
        LeadershipTransfer {
            config: self.config.clone(),
            raft: self.raft.clone(),
            leadership: self.leadership.clone(),
            stop: self.stop.clone(),
            members: self.members.clone(),
            describer: self.describer.clone(),
        }
    }
}

impl<E: Environment> LeadershipTransfer<E> {
    /// The voter that should lead next, if this replica may not go on.
    pub(crate) fn successor(&self) -> Option<ReplicaId> {
        let reports = self.members.reports().borrow().clone();
        let members = self.members.all();
        successors(&self.config, &members, &reports, E::instant()).first().map(|member| member.replica)
    }

    /// Transfers leadership, and waits until this replica no longer leads, or for two leases.
    ///
    /// # Errors
    /// When this replica does not lead or still leads afterwards.
    pub(crate) async fn transfer(&self, to: ReplicaId) -> Result<(), MembershipError> {
        let mut view = self.leadership.subscribe();
        let Some(mine) = view.borrow_and_update().mine else {
            return Err(self.leadership.not_leader().into());
        };
        self.raft.trigger().transfer_leader(to.0).await.map_err(|_| MembershipError::Shutdown)?;
        let lost = async { view.wait_for(|view| view.mine != Some(mine)).await.is_ok() };
        match E::within(self.config.timing.lease() * 2, lost).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(MembershipError::Shutdown),
            Err(_) => Err(MembershipError::Refused { detail: format!("{to} did not take over") }),
        }
    }

    /// Runs the policy while this replica leads, until it stops.
    pub(crate) async fn run_policy(self) {
        let interval = Duration::from_millis(self.config.timing.heartbeat_interval_ms);
        let mut view = self.leadership.subscribe();
        let mut stop = self.stop.subscribe();
        let mut policy: Option<TransferPolicy> = None;
        loop {
            let mine = view.borrow_and_update().mine;
            let pause = if mine.is_some() { interval } else { Duration::from_secs(3_600) };
            tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some) => return,
                changed = view.changed() => if changed.is_err() { return },
                () = E::sleep(pause) => {}
            }
            let Some(leadership) = view.borrow().mine else {
                policy = None;
                continue;
            };
            let policy = match &mut policy {
                Some(policy) if policy.leadership == leadership => policy,
                other => other.insert(TransferPolicy {
                    leadership,
                    since: E::instant(),
                    able_since: BTreeMap::new(),
                    tried: None,
                }),
            };
            let own = self.describer.report();
            let reports = self.members.reports().borrow().clone();
            let now = E::instant();
            let Some((to, cause)) = policy.decide(&self.config, &self.members.all(), &reports, &own, now)
            else {
                continue;
            };
            policy.tried = Some(now);
            tracing::warn!(%to, cause = cause.text(), urgent = cause.is_urgent(), "this replica transfers its leadership");
            if let Err(error) = self.transfer(to).await {
                tracing::warn!(%to, %error, "leadership was not transferred");
            }
        }
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

    fn policy() -> TransferPolicy {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap_or_else(Instant::now);
        let able_since = [(ReplicaId(2), long_ago), (ReplicaId(3), long_ago)].into();
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        TransferPolicy { leadership, since: long_ago, able_since, tried: None }
    }

    fn config() -> ConsensusConfig {
        ConsensusConfig::new(ClusterId(1), ReplicaId(1))
    }

    #[test]
    fn a_leader_that_is_well_stays() {
        let members = [member(1, "a"), member(2, "b"), member(3, "c")];
        let well = report(flushes_in(500));
        let reports: Reports = (1..=3).map(|id| (ReplicaId(id), well.clone())).collect();
        assert_eq!(policy().decide(&config(), &members, &reports, &well, Instant::now()), None);
    }

    #[test]
    fn a_slow_disk_gives_up_leadership_only_to_a_faster_one() {
        let members = [member(1, "a"), member(2, "b"), member(3, "c")];
        let slow = report(flushes_in(400_000));
        let mut reports: Reports = (2..=3).map(|id| (ReplicaId(id), slow.clone())).collect();
        assert_eq!(
            policy().decide(&config(), &members, &reports, &slow, Instant::now()),
            None,
            "all are as slow"
        );
        reports.insert(ReplicaId(3), report(flushes_in(900)));
        let expected = Some((ReplicaId(3), Cause::FlushesAreSlow));
        assert_eq!(policy().decide(&config(), &members, &reports, &slow, Instant::now()), expected);
        let mut tried = policy();
        tried.tried = Some(Instant::now());
        assert_eq!(
            tried.decide(&config(), &members, &reports, &slow, Instant::now()),
            None,
            "not at once again"
        );
    }

    #[test]
    fn leadership_is_not_transferred_to_a_voter_that_is_silent_behind_or_unwell() {
        let full = report(StorageHealth { space: Space::Full, ..StorageHealth::default() });
        let reports: Reports = [(ReplicaId(2), report(flushes_in(500)))].into();
        let decide = |other: Member, reports: &Reports| {
            policy()
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
        assert_eq!(policy().decide(&config, &members, &reports, &well, Instant::now()), expected);
        let mut fresh = policy();
        fresh.able_since.clear();
        assert_eq!(
            fresh.decide(&config, &members, &reports, &well, Instant::now()),
            None,
            "it was just unwell"
        );
        reports.insert(ReplicaId(3), report(flushes_in(400_000)));
        assert_eq!(
            policy().decide(&config, &members, &reports, &well, Instant::now()),
            None,
            "it would transfer leadership again"
        );
    }
}
