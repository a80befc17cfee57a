//! The health of nodes.

use muster_types::health::{Condition, Drain, NodeHealth, Quarantine, Repair, RepairPhase};

use super::device_set_to_proto;
use crate::v1;

/// What keeps work away from a node.
#[must_use]
pub fn restriction_to_proto(
    drain: Option<&Drain>,
    quarantine: Option<&Quarantine>,
    repair: Option<&Repair>,
    health: &NodeHealth,
) -> v1::NodeRestriction {
    v1::NodeRestriction {
        drain: drain.map(|drain| v1::NodeDrain {
            since_ms: drain.since.0,
            deadline_ms: drain.deadline.map(|at| at.0),
            cause: drain.cause.name().to_owned(),
        }),
        quarantine: quarantine.map(|q| v1::NodeQuarantine { since_ms: q.since.0, reason: q.reason.clone() }),
        repair: repair.map(repair_to_proto),
        conditions: health.conditions.iter().map(condition_to_proto).collect(),
        recent: health.recent.iter().map(condition_to_proto).collect(),
        maintenance_at_ms: health.maintenance_at.map(|at| at.0),
        unusable_devices: device_set_to_proto(health.unusable),
        out_of_service: health.out_of_service,
    }
}

fn repair_to_proto(repair: &Repair) -> v1::NodeRepair {
    let detail = match &repair.phase {
        RepairPhase::Failed(detail) => detail.clone(),
        RepairPhase::Draining | RepairPhase::Working => String::new(),
    };
    v1::NodeRepair {
        number: repair.number,
        action: repair.action.name().to_owned(),
        devices: device_set_to_proto(repair.devices),
        since_ms: repair.since.0,
        phase: repair.phase.name().to_owned(),
        detail,
    }
}

fn condition_to_proto(condition: &Condition) -> v1::NodeCondition {
    let observation = &condition.observation;
    v1::NodeCondition {
        finding: observation.finding.to_string(),
        device: observation.device.map(u32::from),
        action: condition.action.name().to_owned(),
        since_ms: condition.since.0,
        detail: observation.detail.clone(),
        count: observation.count,
    }
}
