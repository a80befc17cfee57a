//! What followers are told of applied records: made in one place for the records that are applied now and
//! for those of the past that are replayed, so that it is the same event either way, on every replica.

use muster_archive::Observer;
use muster_journal::Decision;
use muster_state::{Applied, Effect, QueueRow, State};
use muster_types::policy::NotificationEvent;
use muster_types::{LogIndex, Name, NodeSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::watch::changes::{Change, Event, JobBefore, WatchPosition};
use crate::watch::happening::Happening;

/// The receivers that a job names for what has happened to it.
fn named(state: &State, change: &Change, occurrence: NotificationEvent) -> Arc<[Name]> {
    let Change::Job { id, .. } = change else { return Arc::default() };
    let Some(contract) = state.contract(*id).filter(|contract| !contract.notify.is_empty()) else {
        return Arc::default();
    };
    let entries = contract.notify.iter().filter(|entry| entry.events.contains(&occurrence));
    entries.map(|entry| entry.receiver.clone()).collect()
}

/// Makes the events of records, in order.
pub(crate) struct EventMaker {
    events: Vec<Event>,
    /// Every queue as followers know it.
    queues: BTreeMap<Name, Arc<QueueRow>>,
    /// Tenants whose queues the present round may have changed.
    touched: BTreeSet<Name>,
    policy_changed: bool,
    /// Whether the present round says what jobs carry that were submitted in it.
    metadata_set: bool,
    /// The last record of the present round that has a position.
    reached: Option<LogIndex>,
    /// What a node said of itself that the next record describes again or forgets.
    node_before: Option<Arc<NodeSpec>>,
    /// What the job of the next record was, if that changes it.
    job_before: Option<JobBefore>,
    /// What the next record may be to receivers of notifications.
    happening: Option<Happening>,
}

impl EventMaker {
    /// For the records behind a state.
    pub(crate) fn behind(state: &State) -> EventMaker {
        let names = state.queues_behind(None, usize::MAX);
        let known = names.into_iter().filter_map(|name| Some((name.clone(), Arc::new(state.queue(&name)?))));
        EventMaker {
            events: Vec::new(),
            queues: known.collect(),
            touched: BTreeSet::new(),
            policy_changed: false,
            metadata_set: false,
            reached: None,
            node_before: None,
            job_before: None,
            happening: None,
        }
    }

    /// What was made since it was last asked for.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How many were made since they were last asked for.
    pub(crate) fn waiting(&self) -> usize {
        self.events.len()
    }

    fn change(&self, state: &State, effect: &Effect) -> Option<Change> {
        match effect {
            Effect::ClusterChanged
            | Effect::ArrayChanged(_)
            | Effect::PolicyChanged
            | Effect::HealthPolicyChanged
            | Effect::OrdersChanged(_)
            | Effect::Diverged { .. } => None,
            Effect::JobChanged(id) => {
                let metadata = state.carried(*id).cloned();
                let (row, spec) = match state.job(*id).zip(state.spec(*id)) {
                    Some((row, spec)) => (Arc::new(row.clone()), Arc::clone(spec)),
                    None => state.shown_member(*id).map(|(row, spec)| (Arc::new(row), Arc::new(spec)))?,
                };
                Some(Change::Job { id: *id, row, spec, metadata, before: self.job_before.clone() })
            }
            Effect::JobForgotten(id) => Some(Change::JobForgotten(*id)),
            Effect::NodeChanged(id) => Some(Change::Node {
                id: *id,
                row: Arc::new(state.node(*id)?.clone()),
                restriction: state.restriction(*id).cloned().map(Arc::new),
                gangs: state.gangs_on(*id).collect(),
                before: self.node_before.clone(),
            }),
            Effect::NodeForgotten(id) => {
                Some(Change::NodeForgotten { id: *id, spec: Arc::clone(self.node_before.as_ref()?) })
            }
        }
    }

    /// A job of the tenant has changed: so may have its queue, and those above it, whose use is counted with
    /// it.
    fn touch(&mut self, state: &State, tenant: &Name) {
        // Most rounds are many jobs of few tenants.
        if self.touched.contains(tenant) {
            return;
        }
        self.touched.extend(state.policy().policy.ancestry(tenant).cloned());
    }

    /// Labels and creators are recorded behind the jobs, in the same round: a watch that selects jobs by them must know
    /// them from the first event on.
    fn complete_submissions(&mut self, state: &State) {
        if !std::mem::take(&mut self.metadata_set) {
            return;
        }
        for event in &mut self.events {
            if let Change::Job { id, metadata: metadata @ None, .. } = &mut event.change {
                *metadata = state.carried(*id).cloned();
            }
        }
    }

    /// A schedule is no row that has an effect: what its record said of it is the change.
    fn suspended(&mut self, applied: &Applied, position: WatchPosition) {
        if applied.rejection.is_some() {
            return;
        }
        if let Some(Happening::Suspended { schedule, by, reason }) = &self.happening {
            let (schedule, by) = (schedule.clone(), by.clone());
            let change = Change::ScheduleSuspended { schedule, by, reason: Arc::clone(reason) };
            let occurrence = Some(NotificationEvent::ScheduleSuspended);
            self.events.push(Event { position, change, occurrence, named: Arc::default() });
        }
    }

    /// What the round did to the queues, as one event behind all others of its last record.
    fn queues_changed(&mut self, state: &State) -> Option<Change> {
        let mut touched = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.policy_changed) {
            // Places in the tree and quotas: anybody's.
            touched.extend(self.queues.keys().cloned());
            touched.extend(state.queues_behind(None, usize::MAX));
        }
        let mut changed = Vec::new();
        for tenant in touched {
            let (before, now) = (self.queues.get(&tenant), state.queue(&tenant).map(Arc::new));
            let is_like = match (before, &now) {
                (Some(before), Some(now)) => before.is_like(now),
                (None, None) => true,
                _ => false,
            };
            if is_like {
                continue;
            }
            match &now {
                Some(row) => _ = self.queues.insert(tenant.clone(), Arc::clone(row)),
                None => _ = self.queues.remove(&tenant),
            }
            changed.push((tenant, now));
        }
        if changed.is_empty() { None } else { Some(Change::Queues(changed.into())) }
    }
}

impl Observer for EventMaker {
    fn before(&mut self, state: &State, decision: &Decision) {
        self.happening = Happening::before(state, decision);
        self.metadata_set |= matches!(decision, Decision::JobMetadataSet { .. });
        self.job_before = match decision {
            Decision::JobModified { job, .. } => state.spec(*job).map(|spec| JobBefore {
                tier: spec.tier,
                tenant: spec.tenant.clone(),
                metadata: state.metadata(*job).cloned(),
            }),
            _ => None,
        };
        let node = match decision {
            Decision::NodeRegistered { spec, .. } => state.node_named(&spec.name),
            Decision::NodeForgotten { node, .. } => Some(*node),
            _ => None,
        };
        self.node_before = node.and_then(|node| state.node(node)).map(|row| Arc::clone(&row.spec));
    }

    fn after(&mut self, state: &State, applied: &Applied) {
        let Some(log_index) = applied.log_index else { return };
        self.reached = Some(log_index);
        let mut ordinal = 0;
        for effect in &applied.effects {
            self.policy_changed |= *effect == Effect::PolicyChanged;
            if let Effect::ArrayChanged(id) = effect
                && let Some(row) = state.array(*id)
            {
                self.touch(state, &row.template.spec.tenant);
            }
            if let Some(change) = self.change(state, effect) {
                if let Change::Job { spec, before, .. } = &change {
                    self.touch(state, &spec.tenant);
                    if let Some(before) = before {
                        self.touch(state, &before.tenant);
                    }
                }
                ordinal += 1;
                let occurrence = self.happening.as_ref().and_then(|happening| happening.of(&change));
                let named =
                    occurrence.map_or_else(Arc::default, |occurrence| named(state, &change, occurrence));
                let position = WatchPosition { log_index, ordinal };
                self.events.push(Event { position, change, occurrence, named });
            }
        }
        self.suspended(applied, WatchPosition { log_index, ordinal: ordinal + 1 });
    }

    fn round_over(&mut self, state: &State) {
        self.complete_submissions(state);
        let Some(log_index) = self.reached.take() else { return };
        if let Some(change) = self.queues_changed(state) {
            let position = WatchPosition::after(log_index);
            self.events.push(Event { position, change, occurrence: None, named: Arc::default() });
        }
    }
}
