//! What restricts nodes: their health, drains, quarantine and repair. Guard and fold of those records.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::RequestKey;
use muster_types::health::{
    Condition, HealthAction, HealthPolicy, NodeHealth, Repair, RepairPhase, RepairStep,
};
use muster_types::{DeviceSet, ForeignLoad, LogIndex, LogTime, NodeId, limits};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{HealthPolicyRow, NodeStatus, RequestAnswer, RestrictionRow};
use crate::state::State;

/// Where in the log a change is made.
#[derive(Clone, Copy)]
pub(crate) struct LogPosition {
    pub(crate) index: LogIndex,
    pub(crate) time: LogTime,
}

impl State {
    /// One that changes nothing is recorded too when it was asked for: a repetition must find its answer.
    pub(crate) fn check_restriction(
        &self,
        request: Option<RequestKey>,
        node: NodeId,
    ) -> Result<(), GuardError> {
        let is_new = request.is_none_or(|request| !self.requests.contains(&request.id));
        require(is_new, GuardError::RequestRepeated)?;
        self.nodes.get(&node).map(|_| ()).ok_or(GuardError::NodeUnknown)
    }

    /// Within its bounds, and about devices that are there.
    pub(crate) fn check_health(
        &self,
        node: NodeId,
        health: &NodeHealth,
        events: &[Condition],
    ) -> Result<(), GuardError> {
        let row = self.nodes.get(&node).ok_or(GuardError::NodeUnknown)?;
        require(health.is_bounded() && events.len() <= limits::HEALTH_EVENTS_MAX, GuardError::Limit)?;
        let short = |event: &Condition| event.observation.detail.len() <= limits::HEALTH_DETAIL_BYTES_MAX;
        require(events.iter().all(short), GuardError::Limit)?;
        let of_host = DeviceSet::first(row.spec.device_count());
        require(of_host.contains(health.unusable), GuardError::Limit)?;
        let known = self.restrictions.get(&node).is_some_and(|row| row.health == *health);
        let is_blank = !self.restrictions.contains(&node) && health.is_blank();
        require(!events.is_empty() || !(known || is_blank), GuardError::NothingToDo)
    }

    /// Of the session that stands, about devices that are there, and news.
    pub(crate) fn check_foreign(
        &self,
        node: NodeId,
        incarnation: u32,
        load: &ForeignLoad,
    ) -> Result<(), GuardError> {
        let row = self.nodes.get(&node).ok_or(GuardError::NodeUnknown)?;
        require(row.status == NodeStatus::Up && row.incarnation == incarnation, GuardError::NodeNotCurrent)?;
        let within = DeviceSet::first(row.spec.device_count()).contains(load.devices)
            && load.cpu_milli <= row.spec.cpu_milli
            && load.memory_bytes <= row.spec.memory_bytes;
        require(within, GuardError::Limit)?;
        require(self.foreign_load(node) != *load, GuardError::NothingToDo)
    }

    /// What others than Muster hold of a node.
    #[must_use]
    pub fn foreign_load(&self, node: NodeId) -> ForeignLoad {
        self.restrictions.get(&node).map_or_else(ForeignLoad::default, |row| row.foreign)
    }

    /// Steps come in their order: one begins where there is none, work begins once nothing runs there.
    pub(crate) fn check_repair(
        &self,
        node: NodeId,
        step: &RepairStep,
        is_asked: bool,
    ) -> Result<(), GuardError> {
        let repair = self.restrictions.get(&node).and_then(|row| row.repair.as_ref());
        let phase = repair.map(|repair| &repair.phase);
        match step {
            RepairStep::Begin { action, .. } => {
                require(repair.is_none() && action.stops_work(), GuardError::NothingToDo)
            }
            RepairStep::Work => {
                require(phase == Some(&RepairPhase::Draining), GuardError::NothingToDo)?;
                require(self.gangs_on(node).next().is_none(), GuardError::WorkersRemain)
            }
            RepairStep::Fail(detail) => {
                require(detail.len() <= limits::DETAIL_BYTES_MAX, GuardError::Limit)?;
                require(repair.is_some(), GuardError::NothingToDo)
            }
            RepairStep::End => require(repair.is_some() || is_asked, GuardError::NothingToDo),
        }
    }

    pub(crate) fn remember_restriction(&mut self, request: Option<RequestKey>, node: NodeId) {
        if let Some(request) = request {
            self.remember(request, RequestAnswer::RestrictionSet { node });
        }
    }

    /// Changes what restricts a node, and what the node's own row knows of it.
    pub(crate) fn change_restriction(
        &mut self,
        node: NodeId,
        change: impl FnOnce(&mut RestrictionRow, LogPosition),
    ) -> Vec<Effect> {
        let before = self.restrictions.get(&node).cloned().unwrap_or_default();
        let mut after = before.clone();
        change(&mut after, LogPosition { index: self.meta.log_index, time: self.meta.log_time });
        if before == after {
            return Vec::new();
        }
        self.indexes.remove_restriction(node, &before);
        self.indexes.add_restriction(node, &after);
        let restricted = after.restricted();
        if after.is_blank() {
            self.restrictions.remove(&node);
        } else {
            self.restrictions.insert(node, after);
        }
        self.change_node(node, true, |row| row.restricted = restricted);
        vec![Effect::NodeChanged(node), Effect::OrdersChanged(node)]
    }

    pub(crate) fn fold_health_policy(&mut self, request: RequestKey, policy: &HealthPolicy) -> Vec<Effect> {
        self.remember(request, RequestAnswer::HealthPolicySet);
        let row = HealthPolicyRow {
            version: self.meta.log_index,
            set_at: self.meta.log_time,
            policy: Arc::new(policy.clone()),
        };
        self.health_policy.insert((), row);
        vec![Effect::HealthPolicyChanged]
    }
}

/// Takes one step of a repair.
pub(crate) fn repair(row: &mut RestrictionRow, step: &RepairStep, now: LogPosition) {
    match step {
        RepairStep::Begin { action, devices } => {
            row.repair = Some(Repair {
                number: now.index.0,
                action: *action,
                devices: *devices,
                since: now.time,
                phase: RepairPhase::Draining,
            });
        }
        RepairStep::End => row.repair = None,
        RepairStep::Work | RepairStep::Fail(_) => {
            let repair = row.repair.as_mut().expect("the guard has seen the repair");
            repair.phase = match step {
                RepairStep::Fail(detail) => RepairPhase::Failed(detail.clone()),
                _ => RepairPhase::Working,
            };
        }
    }
}

impl RestrictionRow {
    /// The gravest of what is wrong; none where nothing is.
    #[must_use]
    pub fn gravest(&self) -> Option<HealthAction> {
        self.health.conditions.iter().map(|condition| condition.action).max()
    }
}
