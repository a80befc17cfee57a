//! Parts of the fleet that are named by where they are, and what operators hold until further notice.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;

/// Every node of a region, of a cluster, or of a cluster in a region, also those that join later.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FleetPart {
    /// The region; none for any.
    pub region: Option<Name>,
    /// The cluster; none for any.
    pub cluster: Option<Name>,
}

impl FleetPart {
    /// Whether it names nothing, and so is the whole fleet.
    #[must_use]
    pub fn is_whole_fleet(&self) -> bool {
        self.region.is_none() && self.cluster.is_none()
    }

    /// Whether a node lies in it.
    #[must_use]
    pub fn covers(&self, node: &NodeDraft) -> bool {
        let within = |part: &Option<Name>, own: &Name| part.as_ref().is_none_or(|name| name == own);
        within(&self.region, &node.region) && within(&self.cluster, &node.cluster)
    }
}

impl fmt::Display for FleetPart {
    /// As in `region eu-1`, `cluster c1` or `cluster c1 of region eu-1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.region, &self.cluster) {
            (None, None) => f.write_str("the fleet"),
            (Some(region), None) => write!(f, "region {region}"),
            (None, Some(cluster)) => write!(f, "cluster {cluster}"),
            (Some(region), Some(cluster)) => write!(f, "cluster {cluster} of region {region}"),
        }
    }
}

/// Every node there is or will be.
pub static WHOLE_FLEET: FleetPart = FleetPart { region: None, cluster: None };

/// What operators hold: where nothing starts, or whose jobs do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HoldTarget {
    /// A part of the fleet.
    Part(FleetPart),
    /// The jobs of a tenant and of those below it, wherever they would start.
    Tenant(Name),
}

impl HoldTarget {
    /// The nodes that are closed by it.
    #[must_use]
    pub fn part(&self) -> &FleetPart {
        match self {
            HoldTarget::Part(part) => part,
            HoldTarget::Tenant(_) => &WHOLE_FLEET,
        }
    }

    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        match self {
            HoldTarget::Part(part) if part.is_whole_fleet() => {
                alloc::vec![Violation::new("target", "must name a region, a cluster or a tenant")]
            }
            HoldTarget::Part(_) | HoldTarget::Tenant(_) => Vec::new(),
        }
    }
}

impl fmt::Display for HoldTarget {
    /// As in `region eu-1` or `tenant vision`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldTarget::Part(part) => part.fmt(f),
            HoldTarget::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

/// A hold of a part of the fleet or of a tenant, which lasts until somebody releases it or its time is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FleetHold {
    /// Why, for people.
    pub reason: String,
    /// Until when; none for until it is released.
    pub until: Option<LogTime>,
    /// Whether what runs there is stopped with its grace as well.
    pub stops_work: bool,
}

impl FleetHold {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let is_text = !self.reason.is_empty() && self.reason.len() <= limits::DETAIL_BYTES_MAX;
        if !is_text || self.reason.chars().any(char::is_control) {
            let text = format!("must be 1 to {} bytes without control characters", limits::DETAIL_BYTES_MAX);
            found.push(Violation::new("reason", text));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_names_what_it_holds_and_why() {
        let name = |text: &str| Name::new(text).expect("a name");
        let part = |region: Option<&str>, cluster: Option<&str>| {
            HoldTarget::Part(FleetPart { region: region.map(name), cluster: cluster.map(name) })
        };
        for (target, text) in [
            (part(Some("eu"), None), "region eu"),
            (part(None, Some("c1")), "cluster c1"),
            (part(Some("eu"), Some("c1")), "cluster c1 of region eu"),
            (HoldTarget::Tenant(name("vision")), "tenant vision"),
        ] {
            assert_eq!(format!("{target}"), text);
            assert_eq!(target.violations(), Vec::new());
        }
        assert_eq!(part(None, None).violations().len(), 1);
        let good = FleetHold { reason: "a flood".into(), until: Some(LogTime(2)), stops_work: false };
        assert_eq!(good.violations(), Vec::new());
        for reason in ["", "a\nb"] {
            assert_eq!(FleetHold { reason: reason.into(), ..good.clone() }.violations().len(), 1);
        }
    }
}
