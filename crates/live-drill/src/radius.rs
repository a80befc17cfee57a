//! How far a drill may reach, checked before it begins, before each step and while it runs.
//!
//! **Invariant:** what was not seen is not taken for well.

use std::collections::BTreeSet;

use super::cluster_snapshot::{ClusterSnapshot, ReplicaStatus};
use super::plan::{Plan, span};

/// What an operator permits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Share of the running accelerators within reach, in percent.
    pub share_max_percent: u64,
    /// Whether gangs whose work was never saved may be within reach.
    pub allow_unsaved: bool,
    /// Longest drill, from the first step to the last that is undone, in milliseconds.
    pub duration_max_ms: u64,
}

/// One limit, and how things stand to it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Stable, for programs.
    pub limit: &'static str,
    pub holds: bool,
    /// For people.
    pub text: String,
}

fn check(limit: &'static str, holds: bool, text: impl Into<String>) -> Check {
    Check { limit, holds, text: text.into() }
}

/// Gangs and accelerators that may notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlastRadius {
    pub gangs: usize,
    pub accelerators: u64,
    /// Of all that run.
    pub accelerators_running: u64,
    /// Gangs that would lose all they did, should they be stopped.
    pub gangs_never_saved: usize,
}

impl BlastRadius {
    /// Regions within reach are those whose replicas are all silent, for their agents may know no others, and those
    /// that are cordoned.
    pub fn of(plan: &Plan, snapshot: &ClusterSnapshot) -> BlastRadius {
        let silent = plan.silent_at_once();
        let lost = |region: &str| {
            let mut here = snapshot.replicas.iter().filter(|replica| replica.region == region).peekable();
            here.peek().is_some() && here.all(|replica| silent.contains(&replica.id))
        };
        let cordoned = plan.cordoned();
        let within = snapshot
            .gangs
            .iter()
            .filter(|gang| lost(&gang.region) || cordoned.contains(gang.region.as_str()));
        let mut reach = BlastRadius {
            accelerators_running: snapshot.gangs.iter().map(|gang| gang.accelerators).sum(),
            ..BlastRadius::default()
        };
        for gang in within {
            reach.gangs += 1;
            reach.accelerators += gang.accelerators;
            // What is cordoned runs on.
            reach.gangs_never_saved += usize::from(!gang.is_saved && lost(&gang.region));
        }
        reach
    }

    /// In percent, rounded up.
    pub fn share_percent(&self) -> u64 {
        (self.accelerators * 100).div_ceil(self.accelerators_running.max(1))
    }
}

/// Warnings that are no reason to leave a cluster alone.
fn is_harmless(code: &str) -> bool {
    matches!(code, "FORMAT_BEHIND" | "FEW_VOTERS" | "EVEN_VOTERS" | "CERTIFICATE_EXPIRES" | "VERSIONS_DIFFER")
}

/// Warnings that are about the drill itself: about what it makes silent, or that it does so.
fn is_own_doing(code: &str, replica: u64, silent: &BTreeSet<u64>) -> bool {
    match code {
        "DRILL_RUNNING" | "TRAFFIC_REFUSED" | "REGION_CORDONED" => true,
        "NO_SPARE_VOTER" => !silent.is_empty(),
        "REPLICA_SILENT" | "REPLICA_LAGGING" => silent.contains(&replica),
        _ => false,
    }
}

fn voters(snapshot: &ClusterSnapshot) -> impl Iterator<Item = &ReplicaStatus> {
    snapshot.replicas.iter().filter(|replica| replica.voter)
}

/// Voters that are not silent on purpose and yet not well, with why.
fn unwell(snapshot: &ClusterSnapshot, silent: &BTreeSet<u64>) -> Vec<String> {
    let others = voters(snapshot).filter(|replica| !silent.contains(&replica.id));
    let ills = others.filter_map(|replica| {
        let why = replica.silent.as_ref().or(replica.ailing.as_ref())?;
        Some(format!("replica {}: {why}", replica.id))
    });
    ills.collect()
}

/// Whether the voters that are left are a majority.
fn quorum(snapshot: &ClusterSnapshot, silent: &BTreeSet<u64>) -> Check {
    let count = voters(snapshot).count();
    let left = voters(snapshot).filter(|r| !silent.contains(&r.id) && r.silent.is_none()).count();
    let needed = count / 2 + 1;
    check("quorum", left >= needed, format!("{left} of {count} voters are left, {needed} are needed"))
}

/// Another drill than this one.
fn alone(snapshot: &ClusterSnapshot, own: Option<&str>) -> Check {
    let held = snapshot.replicas.iter().filter_map(|replica| replica.drill.as_ref());
    match held.into_iter().find(|drill| Some(drill.id.as_str()) != own) {
        Some(drill) => {
            let text = format!("drill {} ({}), started by {}, runs", drill.name, drill.id, drill.started_by);
            check("one-drill", false, text)
        }
        None => check("one-drill", true, "no other drill runs"),
    }
}

fn wellness(snapshot: &ClusterSnapshot, silent: &BTreeSet<u64>) -> Vec<Check> {
    let ills = unwell(snapshot, silent);
    let voters_text = if ills.is_empty() {
        "all voters answer, have caught up and are well".to_owned()
    } else {
        ills.join("; ")
    };
    let warned = snapshot
        .warnings
        .iter()
        .filter(|w| !is_harmless(&w.code) && !is_own_doing(&w.code, w.replica, silent));
    let warned: Vec<&str> = warned.map(|warning| warning.text.as_str()).collect();
    let warned_text =
        if warned.is_empty() { "the cluster warns of nothing".to_owned() } else { warned.join("; ") };
    vec![check("voters", ills.is_empty(), voters_text), check("warnings", warned.is_empty(), warned_text)]
}

/// Everything that has to hold before anything is done. `own` is this drill, once it is announced.
pub fn before(plan: &Plan, snapshot: &ClusterSnapshot, limits: &Limits, own: Option<&str>) -> Vec<Check> {
    let silent = plan.silent_at_once();
    let mut all = vec![alone(snapshot, own)];
    all.extend(wellness(snapshot, &BTreeSet::new()));
    all.push(match snapshot.leader {
        Some(id) => check("leader", true, format!("replica {id} leads")),
        None => check("leader", false, "no replica is known to lead"),
    });
    let change = &snapshot.change_running;
    let text =
        if change.is_empty() { "the members do not change".into() } else { format!("{change} is going on") };
    all.push(check("members", change.is_empty(), text));
    all.push(quorum(snapshot, &silent));
    all.push(duration(plan, limits));
    all.push(silence(plan, snapshot));
    all.extend(reach(plan, snapshot, limits));
    all
}

fn duration(plan: &Plan, limits: &Limits) -> Check {
    let text = format!("{} of at most {} (--max-duration)", span(plan.end_ms), span(limits.duration_max_ms));
    check("duration", plan.end_ms <= limits.duration_max_ms, text)
}

/// What the replicas themselves permit.
fn silence(plan: &Plan, snapshot: &ClusterSnapshot) -> Check {
    let longest = plan.longest_silence_ms();
    if longest == 0 {
        return check("silence", true, "no replica is made silent");
    }
    let silent = plan.silent_at_once();
    for replica in snapshot.replicas.iter().filter(|replica| silent.contains(&replica.id)) {
        match replica.refuse_max_ms {
            Some(max) if max >= longest => {}
            Some(max) => {
                let text = format!(
                    "replica {} may be silent for {} at most, not {}",
                    replica.id,
                    span(max),
                    span(longest)
                );
                return check("silence", false, text);
            }
            None => {
                return check(
                    "silence",
                    false,
                    format!("replica {} does not say what it permits", replica.id),
                );
            }
        }
    }
    check("silence", true, format!("the replicas permit {} of silence", span(longest)))
}

fn reach(plan: &Plan, snapshot: &ClusterSnapshot, limits: &Limits) -> Vec<Check> {
    let reach = BlastRadius::of(plan, snapshot);
    let share = format!(
        "{} gangs with {} of {} running accelerators are within reach: {} %, of at most {} % (--max-share)",
        reach.gangs,
        reach.accelerators,
        reach.accelerators_running,
        reach.share_percent(),
        limits.share_max_percent
    );
    let unsaved = match (reach.gangs_never_saved, limits.allow_unsaved) {
        (0, _) => "every gang within reach has saved its work".to_owned(),
        (count, true) => {
            format!("{count} gangs within reach never saved their work, which --allow-unsaved permits")
        }
        (count, false) => {
            format!("{count} gangs within reach never saved their work; --allow-unsaved if they may lose it")
        }
    };
    let is_saved = reach.gangs_never_saved == 0 || limits.allow_unsaved;
    vec![
        check("share", reach.share_percent() <= limits.share_max_percent, share),
        check("unsaved", is_saved, unsaved),
    ]
}

/// What has to hold while it runs, with these replicas silent. Those excused were silent before, and may still be
/// catching up.
pub fn during(
    snapshot: &ClusterSnapshot,
    silent: &BTreeSet<u64>,
    excused: &BTreeSet<u64>,
    own: &str,
) -> Vec<Check> {
    let mut all = vec![alone(snapshot, Some(own)), quorum(snapshot, silent)];
    let silent = &(silent | excused);
    // Behind a fault the cluster warns of what it has not caught up with yet; who is well decides.
    all.extend(wellness(snapshot, silent).into_iter().filter(|check| check.limit == "voters"));
    all
}

#[cfg(test)]
mod tests {
    use super::super::cluster_snapshot::{Gang, Warning};
    use super::super::plan::{PlannedAction, PlannedStep};
    use super::*;
    use muster_wire::admin;

    const LIMITS: Limits = Limits { share_max_percent: 40, allow_unsaved: false, duration_max_ms: 60_000 };

    fn of(action: PlannedAction) -> Plan {
        let steps = vec![PlannedStep { at_ms: 0, action }];
        Plan { steps, end_ms: 10_000, settle_ms: 0, silence_max_ms: 5_000 }
    }

    fn plan(silent: &[u64]) -> Plan {
        of(PlannedAction::Silence { replicas: silent.iter().copied().collect(), for_ms: 10_000 })
    }

    fn cordon(region: &str) -> Plan {
        of(PlannedAction::Cordon { region: region.to_owned(), nodes: vec!["n".to_owned()], for_ms: 10_000 })
    }

    fn drill(id: &str) -> Option<admin::Drill> {
        Some(admin::Drill { id: id.to_owned(), ..Default::default() })
    }

    /// Five voters in regions a, a, b, b, c, and gangs in a and c.
    fn snapshot() -> ClusterSnapshot {
        let replica = |(id, region): (u64, &str)| ReplicaStatus {
            id,
            region: region.to_owned(),
            voter: true,
            refuse_max_ms: Some(60_000),
            ..ReplicaStatus::default()
        };
        let gang =
            |region: &str, accelerators| Gang { region: region.to_owned(), accelerators, is_saved: true };
        ClusterSnapshot {
            leader: Some(1),
            replicas: [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c")].into_iter().map(replica).collect(),
            gangs: vec![gang("a", 60), gang("c", 39), gang("c", 1)],
            ..ClusterSnapshot::default()
        }
    }

    fn broken(plan: &Plan, snapshot: &ClusterSnapshot, limits: &Limits) -> Vec<&'static str> {
        let checks = before(plan, snapshot, limits, None);
        checks.into_iter().filter(|check| !check.holds).map(|check| check.limit).collect()
    }

    fn broken_with(change: impl FnOnce(&mut ClusterSnapshot)) -> Vec<&'static str> {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        broken(&plan(&[5]), &snapshot, &LIMITS)
    }

    #[test]
    fn a_well_cluster_permits_what_leaves_enough() {
        assert!(broken(&plan(&[5]), &snapshot(), &LIMITS).is_empty());
        assert!(broken(&plan(&[1]), &snapshot(), &LIMITS).is_empty(), "agents of its region have another");
    }

    #[test]
    fn each_limit_forbids() {
        assert_eq!(broken(&plan(&[1, 2, 3]), &snapshot(), &LIMITS), ["quorum", "share"]);
        assert_eq!(broken(&plan(&[1, 2]), &snapshot(), &LIMITS), ["share"], "60 of 100 accelerators");
        assert_eq!(broken(&cordon("a"), &snapshot(), &LIMITS), ["share"]);
        let generous = Limits { share_max_percent: 60, ..LIMITS };
        assert!(broken(&plan(&[1, 2]), &snapshot(), &generous).is_empty());
        let short = Limits { duration_max_ms: 9_999, ..LIMITS };
        assert_eq!(broken(&plan(&[5]), &snapshot(), &short), ["duration"]);
        assert_eq!(broken_with(|snapshot| snapshot.replicas[4].refuse_max_ms = Some(9_999)), ["silence"]);
        assert_eq!(broken_with(|snapshot| snapshot.replicas[4].refuse_max_ms = None), ["silence"]);
        assert_eq!(broken_with(|snapshot| snapshot.leader = None), ["leader"]);
        assert_eq!(broken_with(|snapshot| snapshot.change_running = "adding r6".to_owned()), ["members"]);
        assert_eq!(
            broken_with(|snapshot| snapshot.replicas[1].ailing = Some("behind".to_owned())),
            ["voters"]
        );
        let gone = broken_with(|snapshot| snapshot.replicas[4].silent = Some("gone".to_owned()));
        assert_eq!(gone, ["voters"], "the one that is to be silent has to be well first");
        assert_eq!(broken_with(|snapshot| snapshot.replicas[2].drill = drill("d-2")), ["one-drill"]);
        let warning = |code: &str| Warning { code: code.to_owned(), text: String::new(), replica: 0 };
        assert_eq!(broken_with(|snapshot| snapshot.warnings = vec![warning("STORAGE_LOW")]), ["warnings"]);
        assert!(broken_with(|snapshot| snapshot.warnings = vec![warning("FORMAT_BEHIND")]).is_empty());
    }

    #[test]
    fn gangs_that_would_lose_all_they_did_are_left_alone() {
        let mut snapshot = snapshot();
        snapshot.gangs[2].is_saved = false;
        assert_eq!(broken(&plan(&[5]), &snapshot, &LIMITS), ["unsaved"]);
        assert!(broken(&plan(&[5]), &snapshot, &Limits { allow_unsaved: true, ..LIMITS }).is_empty());
        assert!(broken(&cordon("c"), &snapshot, &LIMITS).is_empty(), "what is cordoned runs on");
        let reach = BlastRadius::of(&plan(&[5]), &snapshot);
        assert_eq!((reach.gangs, reach.accelerators, reach.accelerators_running), (2, 40, 100));
        assert_eq!((reach.gangs_never_saved, reach.share_percent()), (1, 40));
    }

    #[test]
    fn while_it_runs_only_the_silent_may_be_missing() {
        let silent = BTreeSet::from([1, 2]);
        let broken = |seen: &ClusterSnapshot| {
            let checks =
                during(seen, &silent, &BTreeSet::new(), "d-1").into_iter().filter(|check| !check.holds);
            checks.map(|check| check.limit).collect::<Vec<_>>()
        };
        let mut seen = snapshot();
        seen.replicas[0].silent = Some("it is silent".to_owned());
        seen.replicas[1].silent = Some("it is silent".to_owned());
        seen.replicas[3].drill = drill("d-1");
        assert!(broken(&seen).is_empty());
        seen.replicas[4].silent = Some("gone".to_owned());
        assert_eq!(broken(&seen), ["quorum", "voters"], "two of five are left");
        let mut behind = snapshot();
        behind.replicas[2].ailing = Some("it lacks entries".to_owned());
        assert_eq!(broken(&behind), ["voters"]);
        let excused = BTreeSet::from([3]);
        assert!(during(&behind, &silent, &excused, "d-1").iter().all(|check| check.holds));
        let mut another = snapshot();
        another.replicas[0].drill = drill("d-2");
        assert_eq!(broken(&another), ["one-drill"]);
    }
}
