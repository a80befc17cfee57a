//! A scenario on this cluster: its steps with the replicas, regions and nodes that they mean here.
//!
//! Parts are given once, before anything is done: who led then stays `leader` in all later steps.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use muster_drill::scenario::{LiveAction, Scenario, Selection, Selector};

use super::cluster_snapshot::ClusterSnapshot;

/// What one step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedAction {
    /// Replicas refuse all traffic.
    Silence {
        /// Which.
        replicas: BTreeSet<u64>,
        /// How long at most.
        for_ms: u64,
    },
    /// Nodes get no new work.
    Cordon {
        /// Where.
        region: String,
        /// Those that could get some now.
        nodes: Vec<String>,
        /// How long.
        for_ms: u64,
    },
    /// The leader transfers its leadership.
    Transfer {
        /// To whom; none for whom the cluster takes.
        to: Option<u64>,
    },
}

impl PlannedAction {
    /// How long it lasts; 0 for one that is over at once.
    pub fn for_ms(&self) -> u64 {
        match self {
            PlannedAction::Silence { for_ms, .. } | PlannedAction::Cordon { for_ms, .. } => *for_ms,
            PlannedAction::Transfer { .. } => 0,
        }
    }

    /// For a person.
    pub fn describe(&self) -> String {
        match self {
            PlannedAction::Silence { replicas, for_ms } => {
                format!(
                    "{} refuse all traffic of replicas, agents and clients for {}",
                    names(replicas),
                    span(*for_ms)
                )
            }
            PlannedAction::Cordon { region, nodes, for_ms } => {
                format!("the {} nodes of {region} that take work get none for {}", nodes.len(), span(*for_ms))
            }
            PlannedAction::Transfer { to: Some(to) } => {
                format!("the leader transfers leadership to replica {to}")
            }
            PlannedAction::Transfer { to: None } => {
                "the leader transfers leadership to the voter that lacks least".to_owned()
            }
        }
    }

    /// As in a scenario's file.
    pub fn verb(&self) -> &'static str {
        match self {
            PlannedAction::Silence { .. } => "refuse-traffic",
            PlannedAction::Cordon { .. } => "cordon-region",
            PlannedAction::Transfer { .. } => "transfer-leadership",
        }
    }

    /// How it is undone.
    pub fn undone(&self) -> &'static str {
        match self {
            PlannedAction::Silence { .. } => {
                "each replica takes all traffic again by its own clock, and within seconds when this command dies"
            }
            PlannedAction::Cordon { .. } => {
                "this command puts the nodes back; should it die, `muster drill stop` does"
            }
            PlannedAction::Transfer { .. } => "nothing to undo: the new leader keeps the leadership",
        }
    }
}

/// `1m30s`, `250ms`.
pub fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        _ => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
    }
}

/// A step as its file has it.
pub fn step_text(action: &LiveAction) -> String {
    match action {
        LiveAction::RefuseTraffic { what, for_ms } => format!("refuse-traffic {what} for {}", span(*for_ms)),
        LiveAction::CordonRegion { what, for_ms } => format!("cordon-region {what} for {}", span(*for_ms)),
        LiveAction::TransferLeadership { to: Some(to) } => format!("transfer-leadership to {to}"),
        LiveAction::TransferLeadership { to: None } => "transfer-leadership".to_owned(),
    }
}

fn names(replicas: &BTreeSet<u64>) -> String {
    let mut text = String::from(if replicas.len() == 1 { "replica" } else { "replicas" });
    for (place, id) in replicas.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{} {id}", if place > 0 { "," } else { "" });
    }
    text
}

/// One step on this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// From the start of the fault.
    pub at_ms: u64,
    pub action: PlannedAction,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub steps: Vec<PlannedStep>,
    /// When the last step has undone itself.
    pub end_ms: u64,
    /// How long the cluster is watched behind that.
    pub settle_ms: u64,
    /// No acknowledged probe for so long ends the drill at once.
    pub silence_max_ms: u64,
}

/// Longest time to the next acknowledged submission where a scenario says nothing.
const AGAIN_MS: u64 = 5_000;
/// How many times the scenario's own bound without an acknowledged probe ends a drill.
const BOUND_TIMES: u64 = 3;

impl Plan {
    /// What a scenario means here.
    ///
    /// # Errors
    /// When it has no steps for a live cluster, or names a part that nobody has here.
    pub fn of(scenario: &Scenario, snapshot: &ClusterSnapshot) -> Result<Plan, String> {
        if scenario.live.is_empty() {
            return Err(format!("{} has no steps for a live cluster", scenario.name));
        }
        let parts = Parts { snapshot };
        let steps = scenario.live.iter().map(|step| {
            let action = match &step.action {
                LiveAction::RefuseTraffic { what, for_ms } => {
                    PlannedAction::Silence { replicas: parts.replicas(what)?, for_ms: *for_ms }
                }
                LiveAction::CordonRegion { what, for_ms } => {
                    let region = parts.region(what)?;
                    PlannedAction::Cordon { nodes: parts.working_nodes(&region), region, for_ms: *for_ms }
                }
                LiveAction::TransferLeadership { to } => {
                    let to = to.as_ref().map(|to| parts.replicas(to)).transpose()?;
                    PlannedAction::Transfer { to: to.and_then(|to| to.first().copied()) }
                }
            };
            Ok(PlannedStep { at_ms: step.at_ms, action })
        });
        let mut steps = steps.collect::<Result<Vec<_>, String>>()?;
        steps.sort_by_key(|step| step.at_ms);
        let expect = &scenario.expect;
        let again = expect.submission_again.map(|again| again.worst_ms).or(expect.acknowledged_within_ms);
        Ok(Plan {
            end_ms: scenario.live_end_ms(),
            steps,
            settle_ms: scenario.settle_ms,
            silence_max_ms: again.unwrap_or(AGAIN_MS) * BOUND_TIMES,
        })
    }

    /// Replicas that are silent at some moment, the most at one time.
    pub fn silent_at_once(&self) -> BTreeSet<u64> {
        let moments = self.steps.iter().map(|step| self.silent_at(step.at_ms));
        moments.max_by_key(BTreeSet::len).unwrap_or_default()
    }

    /// Replicas that are silent at some time.
    pub fn silent_ever(&self) -> BTreeSet<u64> {
        let silenced = self.steps.iter().filter_map(|step| match &step.action {
            PlannedAction::Silence { replicas, .. } => Some(replicas.iter().copied()),
            PlannedAction::Cordon { .. } | PlannedAction::Transfer { .. } => None,
        });
        silenced.flatten().collect()
    }

    /// Replicas that are silent at a moment from the start of the fault.
    pub fn silent_at(&self, at_ms: u64) -> BTreeSet<u64> {
        let now =
            self.steps.iter().filter(|step| step.at_ms <= at_ms && at_ms < step.at_ms + step.action.for_ms());
        let silenced = now.filter_map(|step| match &step.action {
            PlannedAction::Silence { replicas, .. } => Some(replicas.iter().copied()),
            PlannedAction::Cordon { .. } | PlannedAction::Transfer { .. } => None,
        });
        silenced.flatten().collect()
    }

    /// Regions that are cordoned at some time.
    pub fn cordoned(&self) -> BTreeSet<&str> {
        let regions = self.steps.iter().filter_map(|step| match &step.action {
            PlannedAction::Cordon { region, .. } => Some(region.as_str()),
            PlannedAction::Silence { .. } | PlannedAction::Transfer { .. } => None,
        });
        regions.collect()
    }

    /// The longest that one replica is to be silent in one go.
    pub fn longest_silence_ms(&self) -> u64 {
        let silences = self.steps.iter().filter(|step| matches!(step.action, PlannedAction::Silence { .. }));
        silences.map(|step| step.action.for_ms()).max().unwrap_or(0)
    }
}

/// Who has which part.
struct Parts<'a> {
    snapshot: &'a ClusterSnapshot,
}

impl Parts<'_> {
    fn leader(&self) -> Result<u64, String> {
        self.snapshot.leader.ok_or_else(|| "no replica is known to lead".to_owned())
    }

    fn leader_region(&self) -> Result<String, String> {
        let leader = self.leader()?;
        let replica = self.snapshot.replica(leader);
        replica.map(|replica| replica.region.clone()).ok_or_else(|| "the leader is no member".to_owned())
    }

    /// Regions without the leader, with how many replicas each has.
    fn others(&self) -> Result<Vec<(usize, String)>, String> {
        let leads = self.leader_region()?;
        let regions: BTreeSet<&String> =
            self.snapshot.replicas.iter().map(|replica| &replica.region).collect();
        let count = |region: &String| self.snapshot.replicas.iter().filter(|r| r.region == *region).count();
        Ok(regions.into_iter().filter(|region| **region != leads).map(|r| (count(r), r.clone())).collect())
    }

    fn region_of(&self, selector: &Selector) -> Result<Option<String>, String> {
        let nowhere = || "no region is without the leader".to_owned();
        Ok(Some(match selector {
            Selector::LeaderRegion => self.leader_region()?,
            Selector::OtherRegion => {
                let others = self.others()?;
                let most = others.iter().map(|(count, _)| *count).max().ok_or_else(nowhere)?;
                others.into_iter().find(|(count, _)| *count == most).ok_or_else(nowhere)?.1
            }
            Selector::LastRegion => {
                let others = self.others()?;
                let fewest = others.iter().map(|(count, _)| *count).min().ok_or_else(nowhere)?;
                others.into_iter().rfind(|(count, _)| *count == fewest).ok_or_else(nowhere)?.1
            }
            Selector::Region(name) if self.snapshot.regions().contains(name.as_str()) => name.clone(),
            Selector::Region(name) => {
                let known: Vec<&str> = self.snapshot.regions().into_iter().collect();
                return Err(format!("there is no region {name:?} here; there are {}", known.join(", ")));
            }
            _ => return Ok(None),
        }))
    }

    fn region(&self, what: &Selection) -> Result<String, String> {
        let none = || format!("{what} is no region");
        self.region_of(what.0.first().ok_or_else(none)?)?.ok_or_else(none)
    }

    fn follower(&self) -> Result<u64, String> {
        let (leader, region) = (self.leader()?, self.leader_region()?);
        let voters = self.snapshot.replicas.iter().filter(|replica| replica.voter && replica.id != leader);
        let follower = voters.min_by_key(|replica| (replica.region == region, replica.id));
        follower.map(|replica| replica.id).ok_or_else(|| "no voter follows the leader".to_owned())
    }

    fn replicas(&self, what: &Selection) -> Result<BTreeSet<u64>, String> {
        let mut chosen = BTreeSet::new();
        for selector in &what.0 {
            if let Some(region) = self.region_of(selector)? {
                chosen.extend(self.snapshot.replicas.iter().filter(|r| r.region == region).map(|r| r.id));
                continue;
            }
            chosen.insert(match selector {
                Selector::Leader => self.leader()?,
                Selector::Follower => self.follower()?,
                Selector::Replica(id) if self.snapshot.replica(*id).is_some() => *id,
                Selector::Replica(id) => return Err(format!("there is no replica {id} here")),
                other => return Err(format!("{other} names no replica of a live cluster")),
            });
        }
        if chosen.is_empty() {
            return Err(format!("{what} has no replica here"));
        }
        Ok(chosen)
    }

    /// Nodes of a region that nothing keeps away from work so far: what keeps the others stays in force.
    fn working_nodes(&self, region: &str) -> Vec<String> {
        let nodes = self.snapshot.nodes.iter().filter(|node| node.region == region);
        let nodes = nodes.filter(|node| !node.is_cordoned && node.quarantine.is_none());
        nodes.map(|node| node.name.clone()).collect()
    }
}
