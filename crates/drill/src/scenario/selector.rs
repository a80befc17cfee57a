//! Hosts by the part they play.

use std::fmt;
use std::str::FromStr;

use super::value::ValueError;

/// Hosts by the part they play when the fault starts. The program that carries the drill out assigns parts to hosts
/// once.
///
/// A host runs one replica, or one agent and its workers, or clients. Where a step concerns only some of them (a
/// disk of replicas, say), the others of the selection are left alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// The leader's host.
    Leader,
    /// Every host in the leader's region: replicas, agents and clients.
    LeaderRegion,
    /// Agents in the leader's region.
    LeaderAgents,
    /// Clients in the leader's region.
    LeaderClients,
    /// One voter that does not lead: in another region where there is one, and of those with the lowest id.
    Follower,
    /// All replicas but the leader and `follower`.
    OtherFollowers,
    /// Every host in the region without the leader that has the most replicas (of equals the first by name).
    OtherRegion,
    /// Every host in the region without the leader that has the fewest replicas (of equals the last by name).
    LastRegion,
    /// Every host in this region.
    Region(String),
    /// The host of this replica.
    Replica(u64),
    /// All replicas.
    Replicas,
    /// One agent that runs part of a gang: the one with the lowest name; without any such, of all.
    Agent,
    /// All agents.
    Agents,
    /// Only with another side (`from`, `to`): all replicas that are not there.
    Peers,
    /// Only with another side (`from`, `to`): all hosts that are not there, clients too.
    Rest,
    /// All hosts.
    Everywhere,
}

/// Those without an argument, by name.
const NAMED: [(&str, Selector); 14] = [
    ("leader", Selector::Leader),
    ("leader-region", Selector::LeaderRegion),
    ("leader-agents", Selector::LeaderAgents),
    ("leader-clients", Selector::LeaderClients),
    ("follower", Selector::Follower),
    ("other-followers", Selector::OtherFollowers),
    ("other-region", Selector::OtherRegion),
    ("last-region", Selector::LastRegion),
    ("replicas", Selector::Replicas),
    ("agent", Selector::Agent),
    ("agents", Selector::Agents),
    ("peers", Selector::Peers),
    ("rest", Selector::Rest),
    ("everywhere", Selector::Everywhere),
];

/// Bytes of a region's name.
const REGION_BYTES_MAX: usize = 63;

impl FromStr for Selector {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Selector, ValueError> {
        if let Some((_, selector)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(selector.clone());
        }
        if let Some(region) = text.strip_prefix("region:") {
            let fits = !region.is_empty()
                && region.len() <= REGION_BYTES_MAX
                && region.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            return match fits {
                true => Ok(Selector::Region(region.to_owned())),
                false => Err(ValueError::new("region: and the name of a region", text)),
            };
        }
        if let Some(id) = text.strip_prefix("replica:") {
            return match id.parse() {
                Ok(id) if id > 0 => Ok(Selector::Replica(id)),
                _ => Err(ValueError::new("replica: and a number from 1", text)),
            };
        }
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        Err(ValueError::new(&format!("one of {}, region:NAME, replica:ID", names.join(", ")), text))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Region(name) => write!(f, "region:{name}"),
            Selector::Replica(id) => write!(f, "replica:{id}"),
            plain => {
                let name = NAMED.iter().find(|(_, selector)| selector == plain).map_or("", |(name, _)| name);
                f.write_str(name)
            }
        }
    }
}

/// All hosts that any of these selects; at least one selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(pub Vec<Selector>);

impl Selection {
    /// Whether it speaks of another side, and so says nothing alone.
    pub fn is_relative(&self) -> bool {
        self.0.iter().any(|selector| matches!(selector, Selector::Peers | Selector::Rest))
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, selector) in self.0.iter().enumerate() {
            write!(f, "{}{selector}", if i == 0 { "" } else { " + " })?;
        }
        Ok(())
    }
}
