//! Holds of parts of the fleet and of tenants: which there are, what they keep from starting, and guard and fold of their records.
//!
//! A hold lasts until a record ends it, and not by a time: so what a leader plans is never refused for a moment in between.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{RequestKey, WorkerSlot};
use muster_types::{FleetHold, FleetPart, HoldTarget, JobSpec, Name, NodeSpec, Requester, limits};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{FleetHoldRow, RequestAnswer};
use crate::state::State;

impl State {
    /// What operators hold, in the order of what is held.
    pub fn fleet_holds(&self) -> impl Iterator<Item = (&HoldTarget, &FleetHoldRow)> {
        self.fleet_holds.iter()
    }

    /// A hold of a part of the fleet or of a tenant.
    #[must_use]
    pub fn fleet_hold(&self, target: &HoldTarget) -> Option<&FleetHoldRow> {
        self.fleet_holds.get(target)
    }

    /// Whether a hold concerns the jobs of a tenant, somewhere at least.
    #[must_use]
    pub fn is_held_by(&self, target: &HoldTarget, tenant: &Name) -> bool {
        match target {
            HoldTarget::Part(_) => true,
            HoldTarget::Tenant(held) => self.policy.policy.ancestry(tenant).any(|above| above == held),
        }
    }

    /// The first hold that keeps the jobs of a tenant from a node.
    #[must_use]
    pub fn held_against(&self, tenant: &Name, node: &NodeSpec) -> Option<(&HoldTarget, &FleetHoldRow)> {
        let mut holds = self.fleet_holds();
        holds.find(|(target, _)| target.part().covers(node) && self.is_held_by(target, tenant))
    }

    /// The hold of a tenant, or of one above it.
    #[must_use]
    pub fn tenant_hold(&self, tenant: &Name) -> Option<(&HoldTarget, &FleetHoldRow)> {
        let mut holds = self.fleet_holds();
        holds.find(|(target, _)| matches!(target, HoldTarget::Tenant(_)) && self.is_held_by(target, tenant))
    }

    /// A job is on nodes that nobody holds.
    pub(crate) fn check_not_held(&self, spec: &JobSpec, slots: &[WorkerSlot]) -> Result<(), GuardError> {
        // Once for all workers, of which a gang may have thousands.
        let against = self.fleet_holds().filter(|(target, _)| self.is_held_by(target, &spec.tenant));
        let held: Vec<&FleetPart> = against.map(|(target, _)| target.part()).collect();
        if held.is_empty() {
            return Ok(());
        }
        for slot in slots {
            let node = &self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?.spec;
            require(!held.iter().any(|part| part.covers(node)), GuardError::FleetHeld)?;
        }
        Ok(())
    }

    pub(crate) fn check_fleet_hold_set(
        &self,
        (request, by): (RequestKey, &Requester),
        target: &HoldTarget,
        hold: Option<&FleetHold>,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid() && target.violations().is_empty(), GuardError::Limit)?;
        let is_there = self.fleet_holds.contains(target);
        let Some(hold) = hold else { return require(is_there, GuardError::NothingToDo) };
        require(is_sound(target, hold), GuardError::Limit)?;
        require(is_there || self.fleet_holds.len() < limits::FLEET_HOLDS_MAX, GuardError::Limit)
    }

    /// When the time of a hold is over is the leader's to say; one without a time is released by people alone.
    pub(crate) fn check_fleet_hold_ended(&self, target: &HoldTarget) -> Result<(), GuardError> {
        let row = self.fleet_holds.get(target).ok_or(GuardError::NothingToDo)?;
        require(row.hold.until.is_some(), GuardError::NothingToDo)
    }

    pub(crate) fn fold_fleet_hold_set(
        &mut self,
        (request, by): (RequestKey, &Requester),
        target: &HoldTarget,
        hold: Option<&FleetHold>,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        match hold {
            Some(hold) => {
                let (hold, by, since) = (Box::new(hold.clone()), by.kept(), self.meta.log_time);
                self.fleet_holds.insert(target.clone(), FleetHoldRow { hold, by, since });
            }
            None => _ = self.fleet_holds.remove(target),
        }
        Vec::new()
    }

    pub(crate) fn fold_fleet_hold_ended(&mut self, target: &HoldTarget) -> Vec<Effect> {
        self.fleet_holds.remove(target);
        Vec::new()
    }

    /// Whether every row keeps its rules.
    pub(crate) fn check_fleet_hold_rows(&self) -> Result<(), String> {
        let broken = |(target, row): &(&HoldTarget, &FleetHoldRow)| {
            !target.violations().is_empty() || !is_sound(target, &row.hold)
        };
        match self.fleet_holds().find(broken) {
            Some((target, _)) => Err(format!("the hold of {target} has a row that it may not have")),
            None => Ok(()),
        }
    }
}

/// Whether a hold keeps its rules. What runs is stopped by where it runs, and not by whose it is.
fn is_sound(target: &HoldTarget, hold: &FleetHold) -> bool {
    hold.violations().is_empty() && !(hold.stops_work && matches!(target, HoldTarget::Tenant(_)))
}
