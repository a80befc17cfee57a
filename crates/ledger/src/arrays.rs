//! Members of arrays that are not created as jobs: they wait, and are counted together.

use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_state::{ArrayRow, State};
use muster_types::{ArrayId, LogTime, PriorityTier};
use serde::{Deserialize, Serialize};

use crate::activity::WaitReason;
use crate::charges::{Charges, DemandKey, WaitKey};
use crate::demand::Shape;
use crate::jobs::{Waits, add_wait};

/// An array with members that are not created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Array {
    pub(crate) tenant: u32,
    pub(crate) tier: PriorityTier,
    pub(crate) label: u32,
    pub(crate) shape: Arc<Shape>,
    pub(crate) since: LogTime,
    pub(crate) waits: Waits,
    pub(crate) members: u32,
    /// Thousandths of devices that each of them asks for.
    pub(crate) milli: u64,
    /// Milliseconds by reason that each of them has waited.
    pub(crate) waited: Vec<(WaitReason, u64)>,
}

impl Array {
    /// Charges everything up to a time.
    pub(crate) fn flush(&mut self, now: LogTime, charges: &mut Charges) {
        let from = self.since;
        self.since = now;
        for (reason, from, until) in self.waits.spans(from, now) {
            let key = WaitKey { day: 0, tenant: self.tenant, tier: self.tier, label: self.label, reason };
            let ms = charges.wait(from, until, u64::from(self.members), key);
            add_wait(&mut self.waited, reason, ms);
            if reason.is_demand() {
                let (tenant, tier, label) = (self.tenant, self.tier, self.label);
                let key = DemandKey { day: 0, tenant, tier, label, job: None };
                charges.demand(from, until, self.milli.saturating_mul(u64::from(self.members)), key);
            }
        }
    }
}

/// What the members of an array wait for that are not created.
pub(crate) fn waits_of(state: &State, id: ArrayId, row: &ArrayRow) -> Waits {
    if row.hold.is_some() {
        return Waits::Held;
    }
    if !row.released {
        return Waits::unreleased(&row.template.spec, None);
    }
    // A member that somebody holds does not count for the throttle.
    let counted = row.unfinished().saturating_sub(state.array_load(id).held);
    if row.template.array.throttle.is_some_and(|most| counted >= most) {
        return Waits::Throttled;
    }
    Waits::Eligible(None)
}
