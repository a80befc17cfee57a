//! Holds of parts of the fleet and of tenants whose time is over.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::HoldTarget;

use crate::speculation::Speculation;

/// Ends each hold whose time has come: nobody has to release it.
pub(super) fn end(speculation: &mut Speculation) {
    let now = speculation.now();
    let holds = speculation.state().fleet_holds();
    let over = holds.filter(|(_, row)| row.hold.until.is_some_and(|until| until <= now));
    let over: Vec<HoldTarget> = over.map(|(target, _)| target.clone()).collect();
    for target in over {
        speculation.push(Decision::FleetHoldEnded { target });
    }
}
