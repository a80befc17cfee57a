//! What keeps work away from a node, as commands show it.

use muster_console::time;
use muster_wire::v1;
use serde::Serialize;

/// What keeps work away from a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Restriction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance_at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unusable_devices: Vec<u32>,
    pub out_of_service: bool,
}

/// Everything is to go.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    pub since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    pub cause: String,
}

/// Kept away from work.
#[derive(Clone, Debug, Serialize)]
pub struct Quarantine {
    pub since: Option<String>,
    pub reason: String,
}

/// Being repaired.
#[derive(Clone, Debug, Serialize)]
pub struct Repair {
    pub number: u64,
    pub action: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
    pub since: Option<String>,
    pub phase: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    pub finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    pub action: String,
    pub since: Option<String>,
    pub count: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl From<v1::NodeCondition> for Condition {
    fn from(condition: v1::NodeCondition) -> Condition {
        Condition {
            finding: condition.finding,
            device: condition.device,
            action: condition.action,
            since: time(condition.since_ms),
            count: condition.count,
            detail: condition.detail,
        }
    }
}

impl From<v1::NodeRestriction> for Restriction {
    fn from(restriction: v1::NodeRestriction) -> Restriction {
        Restriction {
            drain: restriction.drain.map(|drain| Drain {
                since: time(drain.since_ms),
                deadline: drain.deadline_ms.and_then(time),
                cause: drain.cause,
            }),
            quarantine: restriction
                .quarantine
                .map(|quarantine| Quarantine { since: time(quarantine.since_ms), reason: quarantine.reason }),
            repair: restriction.repair.map(|repair| Repair {
                number: repair.number,
                action: repair.action,
                devices: repair.devices,
                since: time(repair.since_ms),
                phase: repair.phase,
                detail: repair.detail,
            }),
            conditions: restriction.conditions.into_iter().map(Into::into).collect(),
            recent: restriction.recent.into_iter().map(Into::into).collect(),
            maintenance_at: restriction.maintenance_at_ms.and_then(time),
            unusable_devices: restriction.unusable_devices,
            out_of_service: restriction.out_of_service,
        }
    }
}

impl Restriction {
    /// Whether it keeps anything away.
    pub fn is_felt(&self) -> bool {
        self.drain.is_some()
            || self.quarantine.is_some()
            || self.repair.is_some()
            || self.out_of_service
            || !self.unusable_devices.is_empty()
    }

    /// In one word, what says most first.
    pub fn status(&self, is_empty: bool) -> &'static str {
        match (&self.repair, &self.drain) {
            (Some(repair), _) if repair.phase == "failed" => "repair-failed",
            (Some(_), _) => "in-repair",
            (None, Some(_)) if is_empty => "drained",
            (None, Some(_)) => "draining",
            (None, None) if self.quarantine.is_some() => "quarantined",
            (None, None) if self.out_of_service => "unhealthy",
            (None, None) => "degraded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_status() {
        let restriction = |message: v1::NodeRestriction| Restriction::from(message);
        let nothing = restriction(v1::NodeRestriction::default());
        assert!(!nothing.is_felt());
        let drained = v1::NodeRestriction { drain: Some(v1::NodeDrain::default()), ..Default::default() };
        assert_eq!(restriction(drained.clone()).status(true), "drained");
        assert_eq!(restriction(drained.clone()).status(false), "draining");
        let repair = v1::NodeRepair { phase: "failed".into(), ..Default::default() };
        let failed = v1::NodeRestriction { repair: Some(repair), ..drained };
        assert_eq!(restriction(failed).status(true), "repair-failed");
        let degraded = v1::NodeRestriction { unusable_devices: vec![1], ..Default::default() };
        assert!(restriction(degraded.clone()).is_felt());
        assert_eq!(restriction(degraded).status(true), "degraded");
    }
}
