//! What keeps work away from a node, as commands show it.

use muster_console::moment;
use muster_types::health::{DrainCause, HealthAction};
use muster_wire::closed::word;
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
    pub maintenance_time: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unusable_devices: Vec<u32>,
    pub out_of_service: bool,
}

/// Everything is to go.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    pub start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<String>,
    pub cause: String,
}

/// Kept away from work.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quarantine {
    pub start_time: Option<String>,
    pub reason: String,
}

/// Being repaired.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    pub number: u64,
    pub action: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
    pub start_time: Option<String>,
    pub phase: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    pub finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    pub action: String,
    pub start_time: Option<String>,
    pub count: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl From<v1::NodeCondition> for Condition {
    fn from(condition: v1::NodeCondition) -> Condition {
        Condition {
            finding: condition.finding,
            device: condition.device,
            action: word::<HealthAction>(condition.action).to_owned(),
            start_time: moment(condition.start_time),
            count: condition.count,
            message: condition.message,
        }
    }
}

impl From<v1::NodeRestriction> for Restriction {
    fn from(restriction: v1::NodeRestriction) -> Restriction {
        Restriction {
            drain: restriction.drain.map(|drain| Drain {
                start_time: moment(drain.start_time),
                stop_time: moment(drain.stop_time),
                cause: word::<DrainCause>(drain.cause).to_owned(),
            }),
            quarantine: restriction.quarantine.map(|quarantine| Quarantine {
                start_time: moment(quarantine.start_time),
                reason: quarantine.reason,
            }),
            repair: restriction.repair.map(|repair| Repair {
                number: repair.number,
                action: word::<HealthAction>(repair.action).to_owned(),
                devices: repair.devices,
                start_time: moment(repair.start_time),
                phase: word::<v1::RepairPhase>(repair.phase).to_owned(),
                message: repair.message,
            }),
            conditions: restriction.conditions.into_iter().map(Into::into).collect(),
            recent: restriction.recent.into_iter().map(Into::into).collect(),
            maintenance_time: moment(restriction.maintenance_time),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_keeps_work_away_or_not() {
        let is_felt = |message: v1::NodeRestriction| Restriction::from(message).is_felt();
        assert!(!is_felt(v1::NodeRestriction::default()));
        assert!(is_felt(v1::NodeRestriction { drain: Some(v1::NodeDrain::default()), ..Default::default() }));
        assert!(is_felt(v1::NodeRestriction { unusable_devices: vec![1], ..Default::default() }));
    }
}
