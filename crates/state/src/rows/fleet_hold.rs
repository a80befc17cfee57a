//! Rows of holds of parts of the fleet and of tenants.

use alloc::boxed::Box;
use muster_types::{FleetHold, LogTime, Requester};
use serde::{Deserialize, Serialize};

/// A hold of a part of the fleet or of a tenant, with who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetHoldRow {
    /// How, why and until when.
    pub hold: Box<FleetHold>,
    /// Who asked last.
    pub by: Requester,
    /// When that was, by log time.
    pub since: LogTime,
}
