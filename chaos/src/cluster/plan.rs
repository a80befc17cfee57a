//! What runs where: regions, hosts, replicas, agents, and the distances between them.
//!
//! The operator, and with it every look at the cluster that the harness itself takes, has a separate host in
//! a separate place, which no drill ever cuts off.

use std::net::Ipv4Addr;
use std::time::Duration;

/// The regions, in the order of their numbers.
pub const REGIONS: [&str; 3] = ["a", "b", "c"];
/// The place of the operator, which is no region of the cluster.
pub const OPERATOR: &str = "operator";
/// Hosts with accelerators in each region.
pub const AGENTS_PER_REGION: usize = 2;
/// Declared accelerators of a host.
pub const DEVICES_PER_HOST: u32 = 8;
/// Where clients and agents connect to a replica; each host has all ports to itself.
pub const CLIENT_PORT: u16 = 7400;
/// Where replicas connect to a replica.
pub const PEER_PORT: u16 = 7500;

/// Half a round trip inside a region.
const NEAR: Duration = Duration::from_micros(300);
/// Half a round trip between the operator and anybody.
const OPERATOR_AWAY: Duration = Duration::from_micros(500);

/// What a host is there for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A replica with this id; a spare one is not among the first members.
    Replica {
        /// Its id.
        id: u64,
        /// Whether it stands by to replace another.
        spare: bool,
    },
    /// A node with accelerators, by its name.
    Agent(String),
    /// The clients of a region.
    Clients,
    /// The operator.
    Operator,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// Unique: `a1`, `a-node-2`, `a-clients`, `operator`.
    pub name: String,
    /// Its region.
    pub region: &'static str,
    /// Its only address.
    pub address: Ipv4Addr,
    /// What it is there for.
    pub purpose: Purpose,
}

/// All hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In the order they are made.
    pub hosts: Vec<HostPlan>,
}

impl Plan {
    /// Three replicas, one a region, or five: two, two and one; a spare in each region; agents, clients.
    #[must_use]
    pub fn new(replicas: Replicas) -> Plan {
        let mut hosts = Vec::new();
        let mut next_id = 0;
        let mut add = |name: String, region: &'static str, purpose: Purpose| {
            // Regions and hosts are counted from 1, as the network counts them.
            let place = REGIONS.iter().position(|known| *known == region).unwrap_or(REGIONS.len()) as u8 + 1;
            let number = hosts.iter().filter(|host: &&HostPlan| host.region == region).count() as u8 + 1;
            hosts.push(HostPlan { name, region, address: Ipv4Addr::new(10, place, number, 1), purpose });
        };
        for (place, region) in REGIONS.into_iter().enumerate() {
            for in_region in 1..=replicas.in_region(place) {
                next_id += 1;
                let purpose = Purpose::Replica { id: next_id, spare: false };
                add(format!("{region}{in_region}"), region, purpose);
            }
            for node in 1..=AGENTS_PER_REGION {
                let name = format!("{region}-node-{node}");
                add(name.clone(), region, Purpose::Agent(name));
            }
            add(format!("{region}-clients"), region, Purpose::Clients);
        }
        for region in REGIONS {
            next_id += 1;
            add(format!("{region}-spare"), region, Purpose::Replica { id: next_id, spare: true });
        }
        add(OPERATOR.to_owned(), OPERATOR, Purpose::Operator);
        Plan { hosts }
    }

    /// The host of a replica.
    #[must_use]
    pub fn replica(&self, wanted: u64) -> Option<&HostPlan> {
        self.hosts.iter().find(|host| matches!(host.purpose, Purpose::Replica { id, .. } if id == wanted))
    }

    /// Ids of the first members.
    #[must_use]
    pub fn founders(&self) -> Vec<u64> {
        let id = |host: &HostPlan| match host.purpose {
            Purpose::Replica { id, spare: false } => Some(id),
            _ => None,
        };
        self.hosts.iter().filter_map(id).collect()
    }

    /// Names of the nodes.
    #[must_use]
    pub fn agents(&self) -> Vec<String> {
        let name = |host: &HostPlan| match &host.purpose {
            Purpose::Agent(name) => Some(name.clone()),
            _ => None,
        };
        self.hosts.iter().filter_map(name).collect()
    }

    /// How long a packet takes from one host to another.
    #[must_use]
    pub fn delay(from: &HostPlan, to: &HostPlan) -> Duration {
        let pair = [from.region, to.region];
        let half = |round_trip_ms: u64| Duration::from_micros(round_trip_ms * 500);
        match pair {
            [OPERATOR, _] | [_, OPERATOR] => OPERATOR_AWAY,
            [one, other] if one == other => NEAR,
            ["a", "b"] | ["b", "a"] => half(30),
            ["b", "c"] | ["c", "b"] => half(80),
            // What is left is a and c.
            _ => half(140),
        }
    }
}

/// How many replicas form the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Replicas {
    /// One in each region.
    #[value(name = "3")]
    Three,
    /// Two in a, two in b, one in c.
    #[value(name = "5")]
    Five,
}

impl Replicas {
    fn in_region(self, place: usize) -> usize {
        match self {
            Replicas::Three => 1,
            Replicas::Five => [2, 2, 1][place],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn hosts_differ_and_distances_are_those_of_the_regions() {
        let plan = Plan::new(Replicas::Five);
        assert_eq!(plan.founders(), [1, 2, 3, 4, 5]);
        assert_eq!(Plan::new(Replicas::Three).founders(), [1, 2, 3]);
        let addresses: BTreeSet<Ipv4Addr> = plan.hosts.iter().map(|host| host.address).collect();
        let names: BTreeSet<&str> = plan.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!((addresses.len(), names.len()), (plan.hosts.len(), plan.hosts.len()));
        let between = |from: u64, to: u64| {
            let host = |id| plan.replica(id).expect("it is planned");
            Plan::delay(host(from), host(to)) + Plan::delay(host(to), host(from))
        };
        let ms = Duration::from_millis;
        assert_eq!((between(1, 3), between(3, 5), between(1, 5)), (ms(30), ms(80), ms(140)));
        assert_eq!(between(1, 2), Duration::from_micros(600));
    }
}
