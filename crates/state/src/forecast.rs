//! The state as it might become: what planning tries out before anything is decided.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::ops::Deref;
use muster_journal::WorkerSlot;
use muster_types::{JobId, JobMetadata, JobSpec, NodeId};

use crate::rows::PromiseRow;
use crate::state::State;

/// A copy of the state in which gangs have ended or begun without a record. Only its capacity is
/// true to that; it is never applied, compared or shown. Making one is constant-time.
#[derive(Clone, Debug)]
pub struct Forecast(State);

impl Forecast {
    /// The state as it is.
    #[must_use]
    pub fn new(state: &State) -> Forecast {
        Forecast(state.clone())
    }

    /// The state as it is, in which nothing of what is free is kept for promises that are met by what gangs will leave which are
    /// being stopped. What these hold is not free in it. No promise is to be dropped in it.
    #[must_use]
    pub fn with_leavers(state: &State) -> Forecast {
        let placements = state.stopping().filter_map(|job| state.job(job)?.placement.as_deref());
        let nodes: BTreeSet<NodeId> =
            placements.flat_map(|placement| placement.slots.iter().map(|slot| slot.node)).collect();
        let mut forecast = Forecast::new(state);
        for (node, promised) in state.promised_beyond_leavers(nodes.into_iter()) {
            if state.node(node).is_some_and(|row| row.promised != promised) {
                forecast.0.change_node(node, false, |row| row.promised = promised);
            }
        }
        forecast
    }

    /// The copy, to be changed.
    pub(crate) fn state_mut(&mut self) -> &mut State {
        &mut self.0
    }

    /// A gang that holds devices gives them back. Each gang at most once.
    pub fn end(&mut self, job: JobId) {
        let Some(row) = self.0.jobs.get(&job) else { return };
        let Some(placement) = row.placement.clone().filter(|p| p.live > 0) else { return };
        let is_promised = row.promise.is_some();
        let spec = self.0.specs.get(&job).expect("a placed job has a spec").clone();
        for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            if !state.is_over() {
                let group = spec.group_of(rank as u32, placement.slots.len());
                let (group, _) = group.expect("a placed rank has a group");
                self.0.change_node(slot.node, false, |row| row.free.give(&group.request, slot.devices));
            }
        }
        let spares = self.0.spares(job).to_vec();
        for slot in &spares {
            let request = &spec.groups.first().expect("a job has a group").request;
            self.0.change_node(slot.node, false, |row| row.free.give(request, slot.devices));
        }
        if let Some((region, charge)) = row_charge(&self.0, job) {
            self.0.change_charge(&spec, Some((&region, &charge)), None);
        }
        // Nobody goes to where it was, and nobody keeps away from there.
        self.0.indexes.leave_active_of(&spec.tenant, job);
        if !is_promised {
            self.0.indexes.set_apart(job, &spec, false);
        }
    }

    /// A job that has no row yet has these labels, for a plan of it.
    pub fn describe(&mut self, job: JobId, metadata: Arc<JobMetadata>) {
        self.0.metadata.insert(job, metadata);
    }

    /// A gang that holds nothing yet gives up the capacity that is promised to it.
    pub fn drop_promise(&mut self, job: JobId) {
        let Some(row) = self.0.jobs.get(&job) else { return };
        let Some(promise) = row.promise.clone().filter(|_| row.placement.is_none()) else { return };
        let spec = self.0.specs.get(&job).expect("a job that has a promise has a spec").clone();
        for (rank, slot) in promise.slots.iter().enumerate() {
            let group = spec.group_of_slot(rank as u32, promise.slots.len());
            let group = group.expect("a promised place has a group");
            self.0.change_node(slot.node, false, |row| {
                row.promised.remove(&group.request, slot.devices, &row.spec)
            });
        }
        if let Some((region, charge)) = row_charge(&self.0, job) {
            self.0.change_charge(&spec, Some((&region, &charge)), None);
        }
        self.0.jobs.change(&job, |row, _| row.promise = None);
        self.0.indexes.promised.remove(&job);
        self.0.indexes.set_apart(job, &spec, false);
    }

    /// A gang takes devices that are free and not promised.
    pub fn begin(&mut self, spec: &JobSpec, workers: &[WorkerSlot]) {
        for (rank, slot) in workers.iter().enumerate() {
            let group = spec.group_of(rank as u32, workers.len());
            let (group, _) = group.expect("a planned rank has a group");
            self.0.change_node(slot.node, false, |row| row.free.take(&group.request, slot.devices));
        }
        let charge = self.0.charge_for(spec, workers);
        let region = self.0.region_of(workers);
        self.0.change_charge(spec, None, Some((&region, &charge)));
    }

    /// The same for a job that is known: from here on others heed where it is going to be.
    pub fn begin_as(&mut self, job: JobId, spec: &JobSpec, workers: &[WorkerSlot]) {
        self.begin(spec, workers);
        let promise = PromiseRow {
            since: self.0.meta.log_index,
            region: self.0.region_of(workers),
            slots: workers.to_vec(),
            charge: self.0.charge_for(spec, workers),
        };
        let promise = Arc::new(promise);
        if self.0.jobs.change(&job, |row, _| row.promise = Some(promise)).is_none() {
            return;
        }
        self.0.indexes.promised.insert(job);
        self.0.indexes.set_apart(job, spec, true);
    }
}

fn row_charge(state: &State, job: JobId) -> Option<(muster_types::Name, crate::rows::Charge)> {
    let row = state.jobs.get(&job)?;
    row.charge().map(|(region, charge)| (region.clone(), charge.clone()))
}

impl Deref for Forecast {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}
