//! Which hosts play which part in a drill: decided once, when its fault begins.

use std::collections::{BTreeMap, BTreeSet};

use muster_drill::scenario::{Pair, Selection, Selector};

use crate::cluster::plan::{HostPlan, Plan, Purpose};

/// Who leads, who votes and where work runs, when a fault begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The leader.
    pub leader: u64,
    /// Replicas that vote; only these are replicas of the cluster.
    pub voters: BTreeSet<u64>,
    /// Nodes that run part of a gang.
    pub busy: BTreeSet<String>,
}

/// Hosts by the parts they play.
#[derive(Clone, Debug)]
pub struct Parts {
    hosts: Vec<HostPlan>,
    roles: Roles,
    leader_region: &'static str,
}

/// A selector that matches no host of this cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{selector}` matches no host of this cluster")]
pub struct UnmatchedSelector {
    selector: String,
}

/// Names of hosts.
pub type Hosts = BTreeSet<String>;

impl Parts {
    /// Gives the parts. The operator's host has none.
    ///
    /// # Errors
    /// When the leader is not among the hosts.
    pub fn give(plan: &Plan, roles: Roles) -> Result<Parts, UnmatchedSelector> {
        // A host that stands by has no part before a replica runs there: it is what one goes on with when a region is
        // lost for good.
        let takes_part = |host: &&HostPlan| match &host.purpose {
            Purpose::Replica { id, .. } => roles.voters.contains(id),
            Purpose::Agent(_) | Purpose::Clients => true,
            Purpose::Operator => false,
        };
        let hosts: Vec<HostPlan> = plan.hosts.iter().filter(takes_part).cloned().collect();
        let of_leader = |host: &&HostPlan| replica_of(host) == Some(roles.leader);
        let leader_region = hosts.iter().find(of_leader).map(|host| host.region);
        let unmatched = || UnmatchedSelector { selector: "leader".to_owned() };
        Ok(Parts { leader_region: leader_region.ok_or_else(unmatched)?, hosts, roles })
    }

    /// Who leads, who votes and where work runs.
    #[must_use]
    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    /// Every host that can be given a part.
    #[must_use]
    pub fn all(&self) -> &[HostPlan] {
        &self.hosts
    }

    /// The region of the leader.
    #[must_use]
    pub fn leader_region(&self) -> &'static str {
        self.leader_region
    }

    /// The hosts that a selection names.
    ///
    /// # Errors
    /// When one of its selectors matches no host, or speaks of another side that is not there.
    pub fn select(&self, selection: &Selection) -> Result<Hosts, UnmatchedSelector> {
        self.select_relative(selection, &Hosts::new())
    }

    /// The hosts of both sides of a pair.
    ///
    /// # Errors
    /// When one of them matches no host.
    pub fn pair(&self, pair: &Pair) -> Result<(Hosts, Hosts), UnmatchedSelector> {
        let empty = Hosts::new();
        if pair.from.is_relative() {
            let to = self.select(&pair.to)?;
            return Ok((self.select_relative(&pair.from, &to)?, to));
        }
        let from = self.select_relative(&pair.from, &empty)?;
        let to = self.select_relative(&pair.to, &from)?;
        Ok((from, to))
    }

    fn select_relative(&self, selection: &Selection, other: &Hosts) -> Result<Hosts, UnmatchedSelector> {
        let mut hosts = Hosts::new();
        for selector in &selection.0 {
            let found = self.hosts_of(selector, other);
            if found.is_empty() {
                return Err(UnmatchedSelector { selector: selector.to_string() });
            }
            hosts.extend(found);
        }
        Ok(hosts)
    }

    fn hosts_of(&self, selector: &Selector, other: &Hosts) -> Hosts {
        let leader = self.roles.leader;
        match selector {
            Selector::Leader => self.named(|host| replica_of(host) == Some(leader)),
            Selector::LeaderRegion => self.named(|host| host.region == self.leader_region),
            Selector::LeaderAgents => self.named(|host| host.region == self.leader_region && is_agent(host)),
            Selector::LeaderClients => {
                self.named(|host| host.region == self.leader_region && host.purpose == Purpose::Clients)
            }
            Selector::Follower => {
                let follower = self.follower();
                self.named(|host| follower.is_some() && replica_of(host) == follower)
            }
            Selector::OtherFollowers => {
                let named = [Some(leader), self.follower()];
                self.named(|host| replica_of(host).is_some_and(|id| !named.contains(&Some(id))))
            }
            Selector::OtherRegion => {
                let region = self.regions_without_leader().into_iter().max_by(|one, other| {
                    // Of equals the first by name.
                    one.1.cmp(&other.1).then(other.0.cmp(one.0))
                });
                self.named(|host| region.is_some_and(|(name, _)| host.region == name))
            }
            Selector::LastRegion => {
                let region = self.regions_without_leader().into_iter().min_by(|one, other| {
                    // Of equals the last by name.
                    one.1.cmp(&other.1).then(other.0.cmp(one.0))
                });
                self.named(|host| region.is_some_and(|(name, _)| host.region == name))
            }
            Selector::Region(wanted) => self.named(|host| host.region == wanted),
            Selector::Replica(wanted) => self.named(|host| replica_of(host) == Some(*wanted)),
            Selector::Replicas => self.named(|host| replica_of(host).is_some()),
            Selector::Agent => {
                let agents = self.hosts.iter().filter(|host| is_agent(host)).map(|host| &host.name);
                let busy = agents.clone().filter(|name| self.roles.busy.contains(*name)).min();
                busy.or(agents.min()).cloned().into_iter().collect()
            }
            Selector::Agents => self.named(is_agent),
            Selector::Peers => self.named(|host| replica_of(host).is_some() && !other.contains(&host.name)),
            Selector::Rest => self.named(|host| !other.contains(&host.name)),
            Selector::Everywhere => self.named(|_| true),
        }
    }

    fn named(&self, wanted: impl Fn(&HostPlan) -> bool) -> Hosts {
        self.hosts.iter().filter(|host| wanted(host)).map(|host| host.name.clone()).collect()
    }

    /// In another region where there is one, and of those the lowest.
    fn follower(&self) -> Option<u64> {
        let followers = || {
            let others = self.hosts.iter().filter_map(|host| Some((host.region, replica_of(host)?)));
            others.filter(|(_, id)| *id != self.roles.leader)
        };
        let elsewhere =
            followers().filter(|(region, _)| *region != self.leader_region).map(|(_, id)| id).min();
        elsewhere.or_else(|| followers().map(|(_, id)| id).min())
    }

    /// The regions of the cluster but the leader's, with their replicas.
    fn regions_without_leader(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for host in self.hosts.iter().filter(|host| host.region != self.leader_region) {
            *counts.entry(host.region).or_insert(0) += usize::from(replica_of(host).is_some());
        }
        counts
    }
}

/// The replica of a host.
#[must_use]
pub fn replica_of(host: &HostPlan) -> Option<u64> {
    match host.purpose {
        Purpose::Replica { id, .. } => Some(id),
        _ => None,
    }
}

fn is_agent(host: &HostPlan) -> bool {
    matches!(host.purpose, Purpose::Agent(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::plan::Replicas;

    fn parts(leader: u64) -> Parts {
        let plan = Plan::new(Replicas::Five);
        let busy = BTreeSet::from(["b-node-2".to_owned()]);
        let roles = Roles { leader, voters: plan.founders().into_iter().collect(), busy };
        Parts::give(&plan, roles).expect("the leader is planned")
    }

    fn select(parts: &Parts, text: &str) -> Vec<String> {
        let selection = Selection(vec![text.parse().expect("a selector")]);
        parts.select(&selection).expect("somebody").into_iter().collect()
    }

    #[test]
    fn parts_are_what_the_scenario_says() {
        let parts = parts(1);
        assert_eq!(select(&parts, "leader"), ["a1"]);
        assert_eq!(select(&parts, "leader-region"), ["a-clients", "a-node-1", "a-node-2", "a1", "a2"]);
        assert_eq!(select(&parts, "leader-agents"), ["a-node-1", "a-node-2"]);
        assert_eq!(select(&parts, "follower"), ["b1"]);
        assert_eq!(select(&parts, "other-followers"), ["a2", "b2", "c1"]);
        assert_eq!(select(&parts, "other-region")[0], "b-clients");
        assert_eq!(select(&parts, "last-region")[0], "c-clients");
        assert_eq!(select(&parts, "agent"), ["b-node-2"]);
        assert_eq!(select(&parts, "replica:5"), ["c1"]);
        assert_eq!(
            select(&parts, "everywhere").len(),
            5 + 6 + 3,
            "without the operator and hosts that stand by"
        );
    }

    #[test]
    fn one_side_speaks_of_the_other() {
        let parts = parts(5);
        let side = |text: &str| Selection(vec![text.parse().expect("a selector")]);
        let pair = Pair { from: side("leader"), to: side("peers"), both: true };
        let (from, to) = parts.pair(&pair).expect("both are there");
        assert_eq!(from, Hosts::from(["c1".to_owned()]));
        assert_eq!(to.into_iter().collect::<Vec<_>>(), ["a1", "a2", "b1", "b2"]);
        let pair = Pair { from: side("rest"), to: side("leader-region"), both: false };
        let (from, to) = parts.pair(&pair).expect("both are there");
        assert!(from.is_disjoint(&to) && from.len() + to.len() == 14);
        assert_eq!(select(&parts, "other-region")[0], "a-clients", "of equals the first by name");
        assert_eq!(select(&parts, "last-region")[0], "b-clients", "of equals the last by name");
    }

    #[test]
    fn nobody_is_said() {
        let missing = parts(1).select(&Selection(vec![Selector::Replica(9)])).expect_err("there is none");
        assert_eq!(missing.to_string(), "`replica:9` matches no host of this cluster");
    }
}
