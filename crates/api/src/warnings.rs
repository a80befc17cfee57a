//! What an operator should look at, from what the replicas say.
//!
//! **Invariant:** the most urgent comes first, and each is reported once.

use crate::drills::Held;
use muster_engine::{LEADERSHIPS_COUNTED_FOR, LocalFacts, PeerReport, ReplicaStatus, Role, Space};
use muster_types::ReplicaId;
use muster_wire::v1;
use std::collections::{BTreeMap, BTreeSet};

/// A replica that did not answer for this long is called silent.
const SILENT_MS_MAX: u64 = 5_000;
/// Entries a replica may lack before it is called behind.
const LAG_ENTRIES_MAX: u64 = 10_000;
/// Wall clocks of replicas that are further apart are worth a word. Answers take part of it.
const SKEW_MS_MAX: u64 = 2_000;
/// More leaderships than this within [`LEADERSHIPS_COUNTED_FOR`] are too many: an upgrade of three replicas has three
/// or four.
const LEADERSHIPS_MAX: usize = 6;
/// Certificates that run out sooner are worth a word.
const CERTIFICATE_DAYS_MIN: i64 = 14;

/// What there is to warn about.
pub(crate) struct ClusterSnapshot<'a> {
    /// The drill that runs, as far as this replica was told.
    pub(crate) drill: Option<&'a Held>,
    pub(crate) status: &'a ReplicaStatus,
    pub(crate) reports: &'a BTreeMap<ReplicaId, PeerReport>,
    pub(crate) facts: &'a LocalFacts,
    pub(crate) format: u32,
    pub(crate) generation: u32,
    pub(crate) records_rejected: u64,
    /// Names of nodes that checks find at fault and that are not kept away, because as many as may be are already.
    pub(crate) slow_beyond: Vec<String>,
}

fn warn(code: &str, replica: Option<ReplicaId>, text: String) -> v1::ClusterWarning {
    v1::ClusterWarning { code: code.to_owned(), message: text, replica_id: replica.map_or(0, |id| id.0) }
}

fn joined(words: impl IntoIterator<Item = impl ToString>) -> String {
    words.into_iter().map(|word| word.to_string()).collect::<Vec<_>>().join(", ")
}

/// All warnings, the most urgent first.
pub(crate) fn warnings(snapshot: &ClusterSnapshot<'_>) -> Vec<v1::ClusterWarning> {
    let mut all = Vec::new();
    if snapshot.records_rejected > 0 {
        let text = format!(
            "the guard refused {} records of a current leader: a bug, report it with the log",
            snapshot.records_rejected
        );
        all.push(warn("RECORDS_REJECTED", None, text));
    }
    if let Some(fault) = &snapshot.facts.decision_fault {
        let own = snapshot.status.replica;
        let text =
            format!("{own} met a broken invariant while it decided, a bug, report it with its log: {fault}");
        all.push(warn("DECISION_FAILED", Some(own), text));
    }
    if let Some(generation) = snapshot.facts.recovers_as {
        let text = format!(
            "the cluster is being recovered: nothing is decided before every lease of generation {} is over, which takes one \
             lease and its margin; then generation {generation} begins by itself",
            snapshot.generation
        );
        all.push(warn("CLUSTER_RECOVERING", None, text));
    }
    if snapshot.status.role == Role::Leader {
        quorum(snapshot, &mut all);
        members(snapshot, &mut all);
        flapping(snapshot, &mut all);
        clocks(snapshot, &mut all);
        formats(snapshot, &mut all);
    } else {
        leader(snapshot, &mut all);
    }
    storage(snapshot, &mut all);
    if !snapshot.slow_beyond.is_empty() {
        let text = format!(
            "checks before starts find the network of {} at fault as well, and as many nodes as may be are kept away for \
             that already: look at the network; `muster probe` measures it",
            joined(&snapshot.slow_beyond)
        );
        all.push(warn("NETWORK_SLOW", None, text));
    }
    if let Some(text) = archive_damage(snapshot.status.replica, snapshot.facts) {
        all.push(warn("ARCHIVE_DAMAGED", Some(snapshot.status.replica), text));
    }
    if let Some(reason) = &snapshot.facts.archive_failing {
        let own = snapshot.status.replica;
        let text = format!(
            "the archive of {own} cannot be opened or written: {reason}; nothing is purged from its log meanwhile, so see to it \
             before the disk is full. It is tried again by itself"
        );
        all.push(warn("ARCHIVE_FAILING", Some(own), text));
    }
    if let Some(reason) = &snapshot.facts.archive_offload_failing {
        let own = snapshot.status.replica;
        let text = format!(
            "old segments of the archive of {own} cannot be moved away and stay on its disk: {reason}"
        );
        all.push(warn("ARCHIVE_OFFLOAD_FAILING", Some(own), text));
    }
    if let Some(text) = &snapshot.facts.retention_cut {
        all.push(warn("RETENTION_CUT", None, text.clone()));
    }
    if let Some(drill) = snapshot.drill {
        self::drill(snapshot.status.replica, drill, &mut all);
    }
    if let Some(days) = snapshot.facts.certificate_days_left.filter(|days| *days < CERTIFICATE_DAYS_MIN) {
        let text = format!("a certificate of {} runs out in {days} days", snapshot.status.replica);
        all.push(warn("CERTIFICATE_EXPIRES", Some(snapshot.status.replica), text));
    }
    all
}

/// What is damaged in this replica's archive, and what became of it.
fn archive_damage(own: ReplicaId, facts: &LocalFacts) -> Option<String> {
    let mut parts = Vec::new();
    if let [first, ..] = facts.archive_unmended.as_slice() {
        parts.push(format!(
            "{} objects of the archive of {own} are damaged or gone ({first}); what they had is asked of the other replicas, \
             and `muster log verify` shows what is missing",
            facts.archive_unmended.len()
        ));
    }
    if let [first, ..] = facts.archive_damaged.as_slice() {
        parts.push(format!(
            "{} damaged segments of the archive of {own} were set aside ({first}); what they had comes from the log or from \
             another replica, and `muster log verify` shows what is missing",
            facts.archive_damaged.len()
        ));
    }
    if facts.archive_mended > 0 {
        parts.push(format!(
            "{} damaged objects of the archive of {own} were rebuilt, and the damaged ones kept in its directory `damaged`: check its disk",
            facts.archive_mended
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn drill(own: ReplicaId, drill: &Held, all: &mut Vec<v1::ClusterWarning>) {
    let text = format!(
        "drill {} ({}), started by {}, runs; `muster drill stop` ends it at once",
        drill.name, drill.id, drill.started_by
    );
    all.push(warn("DRILL_RUNNING", None, text));
    for id in drill.silent.iter().filter(|id| **id != own) {
        all.push(warn(
            "TRAFFIC_REFUSED",
            Some(*id),
            format!("{id} is silent on purpose, for drill {}", drill.id),
        ));
    }
    if let Some((scope, left)) = drill.refused {
        let text = format!(
            "{own} refuses traffic ({scope}) for another {} s at most, for a drill",
            left.as_secs() + 1
        );
        all.push(warn("TRAFFIC_REFUSED", Some(own), text));
    }
    if !drill.cordoned_regions.is_empty() {
        let regions = joined(&drill.cordoned_regions);
        all.push(warn(
            "REGION_CORDONED",
            None,
            format!("nodes in {regions} get no new work, for drill {}", drill.id),
        ));
    }
}

fn is_silent(snapshot: &ClusterSnapshot<'_>, id: ReplicaId, silent_ms: Option<u64>) -> bool {
    id != snapshot.status.replica && silent_ms.is_none_or(|ms| ms > SILENT_MS_MAX)
}

/// A replica that follows nobody any more knows only that: whether others have a leader, they say.
fn leader(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    let own = snapshot.status.replica;
    let Some(ms) = snapshot.status.leader_silent_ms.filter(|ms| *ms > SILENT_MS_MAX) else { return };
    let text = format!(
        "{own} has heard no leader for {} s: what it shows may be old, and unless others have one nothing is decided",
        ms / 1_000
    );
    all.push(warn("NO_LEADER", Some(own), text));
}

fn quorum(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    let voters: Vec<_> = snapshot.status.members.iter().filter(|member| member.votes).collect();
    let healthy = voters.iter().filter(|m| !is_silent(snapshot, m.replica, m.silent_ms)).count();
    let (count, needed) = (voters.len(), voters.len() / 2 + 1);
    if healthy < needed {
        let text =
            format!("only {healthy} of {count} voters answer, {needed} are needed: nothing can be decided");
        all.push(warn("QUORUM_LOST", None, text));
    } else if count >= 3 && healthy == needed {
        let text = format!("{healthy} of {count} voters healthy: a further loss stops the cluster");
        all.push(warn("NO_SPARE_VOTER", None, text));
    }
    if count < 3 {
        let text = format!("{count} of 3 voters that production takes: the loss of one stops the cluster");
        all.push(warn("FEW_VOTERS", None, text));
    } else if count.is_multiple_of(2) {
        let text =
            format!("{count} voters survive no more losses than {}, and each decision takes more", count - 1);
        all.push(warn("EVEN_VOTERS", None, text));
    }
}

fn members(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    for member in snapshot.status.members.iter().filter(|member| member.replica != snapshot.status.replica) {
        let id = member.replica;
        if is_silent(snapshot, id, member.silent_ms) {
            let text = match member.silent_ms {
                Some(ms) => format!("{id} has not answered for {} s", ms / 1_000),
                None => format!("{id} has not answered this leader so far"),
            };
            all.push(warn("REPLICA_SILENT", Some(id), text));
        } else if member.lag_entries.is_some_and(|lag| lag > LAG_ENTRIES_MAX) {
            let lag = member.lag_entries.unwrap_or(0);
            all.push(warn("REPLICA_LAGGING", Some(id), format!("{id} lacks {lag} entries of the log")));
        }
        let Some(report) = snapshot.reports.get(&id) else { continue };
        if report.has_diverged {
            let entry = report.state.map_or(0, |mark| mark.raft_index);
            let text = format!(
                "the state of {id} behind entry {entry} is another than that of the leader, {}: one of the two answers \
                 wrongly; stop {id} and see `ops/runbooks/diverged-replica.md`",
                snapshot.status.replica
            );
            all.push(warn("REPLICA_DIVERGED", Some(id), text));
        }
        if report.rejoining {
            let text = format!("{id} lost its storage and is rejoining: it does not vote yet");
            all.push(warn("REPLICA_REJOINING", Some(id), text));
        }
        if report.generation != snapshot.generation && snapshot.generation > 0 && report.generation > 0 {
            let text = format!(
                "{id} is of generation {}, the cluster of {}: start it again with an empty directory",
                report.generation, snapshot.generation
            );
            all.push(warn("GENERATION_DIFFERS", Some(id), text));
        }
    }
}

/// Each election costs seconds in which nothing is decided, and agents open their sessions again after it.
fn flapping(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    let (begun, minutes) = (snapshot.facts.leaderships_begun, LEADERSHIPS_COUNTED_FOR.as_secs() / 60);
    if begun > LEADERSHIPS_MAX {
        let text = format!(
            "{begun} leaderships began within {minutes} minutes: look for a disk that stalls, a network that loses \
             packets or a replica that restarts; `muster cluster transfer` to a replica that is well may help"
        );
        all.push(warn("LEADER_FLAPPING", None, text));
    }
}

/// Clocks are compared with the middle one of them: the leader's own may be the wrong one.
fn clocks(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    let Some(now) = snapshot.reports.values().map(|report| report.received_at).max() else { return };
    let clock = |(id, report): (&ReplicaId, &PeerReport)| {
        let is_new =
            now.saturating_duration_since(report.received_at).as_millis() <= u128::from(SILENT_MS_MAX);
        report.unix_ms_at(now).filter(|_| is_new).map(|at| (at, *id))
    };
    let mut clocks: Vec<(u64, ReplicaId)> = snapshot.reports.iter().filter_map(clock).collect();
    clocks.sort_unstable();
    let Some((middle, _)) = clocks.get(clocks.len() / 2).copied() else { return };
    for (at, id) in clocks.into_iter().filter(|(at, _)| at.abs_diff(middle) > SKEW_MS_MAX) {
        let (seconds, which) = (at.abs_diff(middle) / 1_000, if at > middle { "ahead of" } else { "behind" });
        let text = format!(
            "the wall clock of {id} is {seconds} s {which} the others': run limits and waits go by the leader's \
             clock; repair it, and let another replica lead until then"
        );
        all.push(warn("CLOCK_SKEW", Some(id), text));
    }
}

fn storage(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    for (id, report) in snapshot.reports {
        let gib = report.storage.free_bytes as f64 / f64::from(1u32 << 30);
        match report.storage.space {
            Space::Enough => {}
            Space::Low => {
                let text = format!("the data disk of {id} has {gib:.1} GiB left; it should not lead");
                all.push(warn("STORAGE_LOW", Some(*id), text));
            }
            Space::Full => {
                let text = format!("the data disk of {id} is full ({gib:.1} GiB left): it takes nothing new");
                all.push(warn("STORAGE_FULL", Some(*id), text));
            }
        }
        if report.is_volatile {
            let text = format!(
                "the data directory of {id} is in memory: what it promised is lost when its machine restarts, and what was \
                 acknowledged with it when a majority does; move `data_dir` to a disk"
            );
            all.push(warn("STORAGE_VOLATILE", Some(*id), text));
        }
        if let Some(ms) = report.storage.stalled_ms {
            let text = format!("the data disk of {id} has been flushing for {ms} ms");
            all.push(warn("STORAGE_STALLED", Some(*id), text));
        }
    }
}

fn formats(snapshot: &ClusterSnapshot<'_>, all: &mut Vec<v1::ClusterWarning>) {
    let members: BTreeSet<ReplicaId> = snapshot.status.members.iter().map(|member| member.replica).collect();
    let reports: Vec<&PeerReport> = members.iter().filter_map(|id| snapshot.reports.get(id)).collect();
    let versions: BTreeSet<&str> = reports.iter().map(|report| report.version.as_str()).collect();
    if versions.len() > 1 {
        let text = format!("the replicas run different releases: {}", joined(versions));
        all.push(warn("VERSIONS_DIFFER", None, text));
    }
    let lowest = reports.iter().map(|report| report.format_max).min().unwrap_or(0);
    if reports.len() == members.len() && lowest > snapshot.format {
        let text = format!(
            "record format {} is in force and every replica reads {lowest}: `muster cluster upgrade` raises it",
            snapshot.format
        );
        all.push(warn("FORMAT_BEHIND", None, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_engine::{Member, ReplicaNode};
    use std::time::Instant;

    fn member(id: u64, votes: bool, silent_ms: Option<u64>) -> Member {
        Member {
            replica: ReplicaId(id),
            node: ReplicaNode::default(),
            votes,
            matched_index: Some(9),
            lag_entries: Some(0),
            silent_ms,
            leads: id == 1,
            report: None,
        }
    }

    fn report(format_max: u32) -> PeerReport {
        PeerReport {
            is_volatile: false,
            state: None,
            has_diverged: false,
            version: "0.1.0".to_owned(),
            format_max,
            generation: 1,
            storage: muster_engine::StorageHealth { free_bytes: 1 << 40, ..Default::default() },
            applied_index: Some(9),
            last_log_index: Some(9),
            snapshot_index: None,
            rejoining: false,
            unix_ms: Some(1_000_000),
            founding: None,
            received_at: Instant::now(),
        }
    }

    fn status(members: Vec<Member>) -> ReplicaStatus {
        ReplicaStatus {
            replica: ReplicaId(1),
            role: Role::Leader,
            term: 2,
            leader: Some(ReplicaId(1)),
            last_log_index: Some(9),
            committed_index: Some(9),
            applied_index: Some(9),
            snapshot_index: None,
            purged_index: None,
            quorum_silent_ms: Some(1),
            leader_silent_ms: None,
            members,
            stopped: None,
            membership_settled: true,
            rejoining: false,
        }
    }

    fn codes(members: Vec<Member>, change: impl FnOnce(&mut BTreeMap<ReplicaId, PeerReport>)) -> Vec<String> {
        let mut reports: BTreeMap<_, _> = members.iter().map(|m| (m.replica, report(1))).collect();
        change(&mut reports);
        codes_of(&status(members), &reports)
    }

    fn codes_of(status: &ReplicaStatus, reports: &BTreeMap<ReplicaId, PeerReport>) -> Vec<String> {
        codes_with(status, reports, &LocalFacts::default())
    }

    fn codes_with(
        status: &ReplicaStatus,
        reports: &BTreeMap<ReplicaId, PeerReport>,
        facts: &LocalFacts,
    ) -> Vec<String> {
        let snapshot = ClusterSnapshot {
            drill: None,
            status,
            reports,
            facts,
            format: 1,
            generation: 1,
            records_rejected: 0,
            slow_beyond: Vec::new(),
        };
        warnings(&snapshot).into_iter().map(|warning| warning.code).collect()
    }

    #[test]
    fn a_replica_that_hears_no_leader_says_so() {
        let follower = |leader_silent_ms| ReplicaStatus {
            role: Role::Follower,
            leader: Some(ReplicaId(2)),
            quorum_silent_ms: None,
            leader_silent_ms,
            ..status(vec![member(1, true, None), member(2, true, None), member(3, true, None)])
        };
        let reports = [(ReplicaId(1), report(1))].into();
        assert!(codes_of(&follower(Some(300)), &reports).is_empty());
        assert!(codes_of(&follower(None), &reports).is_empty(), "it has only just started");
        assert_eq!(codes_of(&follower(Some(9_000)), &reports), ["NO_LEADER"]);
    }

    #[test]
    fn jobs_that_are_forgotten_before_their_time_are_a_warning() {
        let members: Vec<Member> = (1..=3).map(|id| member(id, true, Some(1))).collect();
        let reports: BTreeMap<_, _> = members.iter().map(|m| (m.replica, report(1))).collect();
        let text = "finished jobs are forgotten before their 7 days".to_owned();
        let facts = LocalFacts { retention_cut: Some(text), ..LocalFacts::default() };
        assert_eq!(codes_with(&status(members), &reports, &facts), ["RETENTION_CUT"]);
    }

    #[test]
    fn each_fault_of_a_replica_is_a_warning() {
        let members = || (1..=3).map(|id| member(id, true, Some(1))).collect::<Vec<Member>>();
        let reports: BTreeMap<_, _> = members().iter().map(|m| (m.replica, report(1))).collect();
        let text = || Some("no space left".to_owned());
        let nothing = LocalFacts::default;
        let faults = [
            ("DECISION_FAILED", LocalFacts { decision_fault: text(), ..nothing() }),
            ("ARCHIVE_FAILING", LocalFacts { archive_failing: text(), ..nothing() }),
            ("ARCHIVE_OFFLOAD_FAILING", LocalFacts { archive_offload_failing: text(), ..nothing() }),
            ("CERTIFICATE_EXPIRES", LocalFacts { certificate_days_left: Some(13), ..nothing() }),
        ];
        for (code, facts) in faults {
            assert_eq!(codes_with(&status(members()), &reports, &facts), [code]);
        }
        let later = LocalFacts { certificate_days_left: Some(CERTIFICATE_DAYS_MIN), ..nothing() };
        assert!(codes_with(&status(members()), &reports, &later).is_empty());
    }

    #[test]
    fn records_that_are_refused_and_a_network_beyond_the_bound_are_warnings() {
        let members: Vec<Member> = (1..=3).map(|id| member(id, true, Some(1))).collect();
        let reports: BTreeMap<_, _> = members.iter().map(|m| (m.replica, report(1))).collect();
        let (status, facts) = (status(members), LocalFacts::default());
        let snapshot = ClusterSnapshot {
            drill: None,
            status: &status,
            reports: &reports,
            facts: &facts,
            format: 1,
            generation: 1,
            records_rejected: 2,
            slow_beyond: vec!["h3".to_owned()],
        };
        let said = warnings(&snapshot);
        let codes: Vec<&str> = said.iter().map(|warning| warning.code.as_str()).collect();
        assert_eq!(codes, ["RECORDS_REJECTED", "NETWORK_SLOW"]);
        assert!(said[1].message.contains("h3"), "{}", said[1].message);
    }

    #[test]
    fn waiting_for_leases_of_an_earlier_generation_is_a_warning() {
        let members: Vec<Member> = (1..=3).map(|id| member(id, true, Some(1))).collect();
        let reports: BTreeMap<_, _> = members.iter().map(|m| (m.replica, report(1))).collect();
        let facts = LocalFacts { recovers_as: Some(2), ..LocalFacts::default() };
        assert_eq!(codes_with(&status(members), &reports, &facts), ["CLUSTER_RECOVERING"]);
    }

    #[test]
    fn leaders_that_follow_each_other_too_fast_are_said() {
        let members = vec![member(1, true, None), member(2, true, Some(3)), member(3, true, Some(3))];
        let reports: BTreeMap<_, _> = members.iter().map(|m| (m.replica, report(1))).collect();
        let status = status(members);
        let said = |leaderships_begun| {
            let facts = LocalFacts { leaderships_begun, ..LocalFacts::default() };
            let snapshot = ClusterSnapshot {
                drill: None,
                status: &status,
                reports: &reports,
                facts: &facts,
                format: 1,
                generation: 1,
                records_rejected: 0,
                slow_beyond: Vec::new(),
            };
            warnings(&snapshot).into_iter().map(|warning| warning.code).collect::<Vec<_>>()
        };
        assert!(said(LEADERSHIPS_MAX).is_empty(), "as many as an upgrade makes");
        assert_eq!(said(LEADERSHIPS_MAX + 1), ["LEADER_FLAPPING"]);
    }

    #[test]
    fn damage_of_an_archive_is_named_and_so_is_what_became_of_it() {
        let own = ReplicaId(2);
        assert_eq!(archive_damage(own, &LocalFacts::default()), None);
        let unmended = vec!["segments/1".to_owned(), "bases/7".to_owned()];
        let facts = LocalFacts { archive_unmended: unmended, archive_mended: 3, ..LocalFacts::default() };
        let said = archive_damage(own, &facts).expect("there is something to say");
        assert!(said.contains("2 objects") && said.contains("(segments/1)"), "{said}");
        assert!(said.contains("3 damaged objects") && said.contains("rebuilt"), "{said}");
    }

    #[test]
    fn storage_in_memory_is_said_of_each_replica_that_has_it() {
        let members = || vec![member(1, true, None), member(2, true, Some(3)), member(3, true, Some(3))];
        let volatile = codes(members(), |reports| {
            for id in [1, 3] {
                reports.get_mut(&ReplicaId(id)).expect("it is there").is_volatile = true;
            }
        });
        assert_eq!(volatile, ["STORAGE_VOLATILE", "STORAGE_VOLATILE"]);
    }

    #[test]
    fn a_replica_whose_state_is_another_is_named() {
        let members = || vec![member(1, true, None), member(2, true, Some(3)), member(3, true, Some(3))];
        let diverged = codes(members(), |reports| {
            let third = reports.get_mut(&ReplicaId(3)).expect("it is there");
            third.state = Some(muster_engine::StateMark { raft_index: 7, digest: 1 });
            third.has_diverged = true;
        });
        assert_eq!(diverged, ["REPLICA_DIVERGED"]);
    }

    #[test]
    fn a_healthy_cluster_has_nothing_to_say() {
        let members = vec![member(1, true, None), member(2, true, Some(3)), member(3, true, Some(3))];
        assert!(codes(members, |_| {}).is_empty());
    }

    #[test]
    fn lost_voters_are_said_before_everything_else() {
        let members = vec![member(1, true, None), member(2, true, Some(9_000)), member(3, true, Some(3))];
        assert_eq!(codes(members, |_| {}), ["NO_SPARE_VOTER", "REPLICA_SILENT"]);
        let members = vec![member(1, true, None), member(2, true, None), member(3, true, Some(9_000))];
        assert_eq!(codes(members, |_| {}), ["QUORUM_LOST", "REPLICA_SILENT", "REPLICA_SILENT"]);
        let members = vec![member(1, true, None), member(2, true, Some(1))];
        assert_eq!(codes(members, |_| {}), ["FEW_VOTERS"]);
        let four = [None, Some(1), Some(1), Some(1)];
        let members = (1..).zip(four).map(|(id, silent)| member(id, true, silent)).collect();
        assert_eq!(codes(members, |_| {}), ["EVEN_VOTERS"]);
    }

    #[test]
    fn disks_formats_and_generations_are_said() {
        let members = || vec![member(1, true, None), member(2, true, Some(3)), member(3, true, Some(3))];
        let two = ReplicaId(2);
        let with = |change: fn(&mut PeerReport)| {
            codes(members(), move |reports| change(reports.get_mut(&two).expect("it is a member")))
        };
        assert_eq!(with(|r| r.storage.space = Space::Full), ["STORAGE_FULL"]);
        assert_eq!(with(|r| r.storage.space = Space::Low), ["STORAGE_LOW"]);
        assert_eq!(with(|r| r.storage.stalled_ms = Some(900)), ["STORAGE_STALLED"]);
        assert_eq!(with(|r| r.unix_ms = Some(1_000_000 + 3 * 3_600_000)), ["CLOCK_SKEW"]);
        assert_eq!(with(|r| r.unix_ms = Some(900_000)), ["CLOCK_SKEW"]);
        assert!(with(|r| r.unix_ms = Some(1_001_000)).is_empty());
        assert!(with(|r| r.unix_ms = None).is_empty(), "an older release does not say");
        assert_eq!(with(|r| r.rejoining = true), ["REPLICA_REJOINING"]);
        assert_eq!(with(|r| r.generation = 2), ["GENERATION_DIFFERS"]);
        assert_eq!(with(|r| r.version = "0.2.0".into()), ["VERSIONS_DIFFER"]);
        assert!(with(|r| r.format_max = 2).is_empty(), "one alone raises nothing");
        let all = codes(members(), |reports| reports.values_mut().for_each(|r| r.format_max = 2));
        assert_eq!(all, ["FORMAT_BEHIND"]);
    }
}
