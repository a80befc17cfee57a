//! Holds of regions, clusters and tenants.

use muster_decider::{Command, FleetHoldOrder};
use muster_state::{FleetHoldRow, State};
use muster_types::{HoldTarget, Violation};
use muster_wire::convert::{fleet_hold_from_proto, hold_target_from_proto, hold_target_to_proto, request_id};
use muster_wire::time::log_time;
use muster_wire::v1;
use tonic::Status;

use crate::controls::requester;
use crate::forward::Caller;
use crate::read::invalid;
use crate::visibility::Visibility;

/// What a row of an answer takes.
pub(super) const ROW_BYTES: usize = 1 << 10;

/// The command, and what it is about.
pub(super) fn command(
    caller: &Caller,
    message: &v1::SetFleetHoldRequest,
) -> Result<(Command, HoldTarget), Status> {
    let request = request_id("request_id", &message.request_id);
    let target = hold_target_from_proto(message.target.clone());
    let hold = fleet_hold_from_proto(message);
    match (request, target, hold) {
        (Ok(request), Ok(target), Ok(hold)) => {
            let (by, about) = (requester(caller), target.clone());
            let order = FleetHoldOrder { request, by, target, hold };
            Ok((Command::SetFleetHold(Box::new(order)), about))
        }
        (request, target, hold) => {
            let mut violations: Vec<Violation> = request.err().into_iter().collect();
            violations.extend(target.err().unwrap_or_default());
            violations.extend(hold.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

/// A hold as it is shown: which operator holds it is for those who act for the whole cluster.
pub(super) fn shown(visibility: Visibility, target: &HoldTarget, row: &FleetHoldRow) -> v1::FleetHold {
    let creator = if visibility == Visibility::All { row.by.name.clone() } else { String::new() };
    v1::FleetHold {
        target: Some(hold_target_to_proto(target)),
        reason: row.hold.reason.clone(),
        end_time: row.hold.until.and_then(log_time),
        drain: row.hold.stops_work,
        creator,
        create_time: log_time(row.since),
    }
}

/// All holds as they are shown.
pub(crate) fn list(view: &State, visibility: Visibility) -> Vec<v1::FleetHold> {
    view.fleet_holds().map(|(target, row)| shown(visibility, target, row)).collect()
}
