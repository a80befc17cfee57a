//! Spares: capacity that is held for a gang, for ranks whose node fails. Nothing runs there, so no agent is asked to give it up.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_types::{FencingToken, JobId, JobSpec, NodeId};

use crate::effect::Effect;
use crate::fit;
use crate::free::Free;
use crate::guard_error::{GuardError, require};
use crate::rows::{Phase, Placement, PromiseRow};
use crate::state::State;

type Check = Result<(), GuardError>;

/// A placement with some ranks on spares, and behind them the spares that are left.
fn swapped(placement: &Placement, spares: &[WorkerSlot], ranks: &[(u32, WorkerSlot)]) -> Vec<WorkerSlot> {
    let mut slots = placement.slots.clone();
    for (rank, spare) in ranks {
        if let Some(slot) = slots.get_mut(*rank as usize) {
            *slot = *spare;
        }
    }
    let is_left = |spare: &&WorkerSlot| ranks.iter().all(|(_, taken)| taken != *spare);
    slots.extend(spares.iter().filter(is_left));
    slots
}

impl State {
    /// The spares of a job that holds devices.
    #[must_use]
    pub fn spares(&self, job: JobId) -> &[WorkerSlot] {
        self.spares.get(&job).map_or(&[], Vec::as_slice)
    }

    /// Jobs with spares on a node.
    pub fn spares_on(&self, node: NodeId) -> impl Iterator<Item = JobId> {
        let range = (node, JobId(0))..=(node, JobId(u64::MAX));
        self.indexes.spares_by_node.range(range).map(|(_, job)| *job)
    }

    /// Whether nodes may serve as spares of a gang: open to the job, in its cluster, of its type.
    pub(crate) fn check_spares(
        &self,
        job: JobId,
        spec: &JobSpec,
        gang: &[WorkerSlot],
        spares: &[WorkerSlot],
    ) -> Check {
        if spares.is_empty() {
            return Ok(());
        }
        let wanted = self.contracts.get(&job).map_or(0, |contract| contract.spares);
        require(spares.len() <= wanted as usize, GuardError::Limit)?;
        let first = gang.first().ok_or(GuardError::Limit)?;
        let first = self.nodes.get(&first.node).ok_or(GuardError::NodeUnknown)?;
        let request = &spec.groups.first().ok_or(GuardError::Limit)?.request;
        for slot in spares {
            let row = self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?;
            require(row.is_placeable() && row.incarnation == slot.incarnation, GuardError::NodeNotCurrent)?;
            let place = |row: &crate::rows::NodeRow| (row.spec.region.clone(), row.spec.cluster.clone());
            require(place(row) == place(first), GuardError::NotTheGang(fit::GangFault::Place))?;
            let is_allowed = fit::allows(&row.spec, spec, &self.policy.policy);
            require(is_allowed, GuardError::NotTheGang(fit::GangFault::Node))?;
            let kind = |row: &crate::rows::NodeRow| row.spec.accelerators.as_ref().map(|a| a.kind.clone());
            let same = request.accelerators.is_none() || kind(row) == kind(first);
            require(same, GuardError::NotTheGang(fit::GangFault::Kind))?;
        }
        Ok(())
    }

    pub(crate) fn hold_spares(&mut self, job: JobId, spec: &JobSpec, spares: &[WorkerSlot]) {
        if spares.is_empty() {
            return;
        }
        let request = &spec.groups.first().expect("a job has a group").request;
        for slot in spares {
            self.change_node(slot.node, false, |row| row.free.take(request, slot.devices));
            self.indexes.spares_by_node.insert((slot.node, job));
        }
        self.spares.insert(job, spares.to_vec());
    }

    /// Releases the spares of a job.
    pub(crate) fn drop_spares(&mut self, job: JobId) {
        let Some(spares) = self.spares.get(&job).cloned() else { return };
        self.spares.remove(&job);
        self.give_spares(job, &spares);
    }

    /// A node is lost: no job holds anything there.
    pub(crate) fn drop_spares_on(&mut self, node: NodeId) -> Vec<Effect> {
        let jobs: Vec<JobId> = self.spares_on(node).collect();
        for job in &jobs {
            let spares = self.spares(*job).to_vec();
            let (gone, left): (Vec<WorkerSlot>, Vec<WorkerSlot>) =
                spares.into_iter().partition(|slot| slot.node == node);
            if left.is_empty() {
                self.spares.remove(job);
            } else {
                self.spares.insert(*job, left);
            }
            self.give_spares(*job, &gone);
        }
        jobs.into_iter().map(Effect::JobChanged).collect()
    }

    fn give_spares(&mut self, job: JobId, spares: &[WorkerSlot]) {
        let spec = self.specs.get(&job).expect("a placed job has a spec").clone();
        let request = &spec.groups.first().expect("a job has a group").request;
        for slot in spares {
            self.change_node(slot.node, false, |row| row.free.give(request, slot.devices));
            self.indexes.spares_by_node.remove(&(slot.node, job));
        }
    }

    /// Some ranks of a gang that is being stopped go on in its spares, the others where they are: all of that fits into
    /// what the gang and its spares leave, in addition to what others were promised.
    pub(crate) fn check_taken(&self, job: JobId, token: FencingToken, ranks: &[(u32, WorkerSlot)]) -> Check {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let spec = self.specs.get(&job).ok_or(GuardError::JobUnknown)?;
        let placement = row.placement.as_deref().ok_or(GuardError::JobPhase)?;
        let may = matches!(row.phase, Phase::Stopping(_))
            && !row.cancel_requested
            && !row.held
            && row.promise.is_none();
        require(may, GuardError::JobPhase)?;
        require(placement.token == token, GuardError::TokenNotCurrent)?;
        let spares = self.spares(job);
        let count = placement.slots.len();
        let in_order = ranks.is_sorted_by(|a, b| a.0 < b.0);
        let ranked = ranks.iter().all(|(rank, _)| (*rank as usize) < count);
        require(!ranks.is_empty() && in_order && ranked, GuardError::RankNotCurrent)?;
        let distinct: BTreeSet<(NodeId, u64)> = ranks.iter().map(|(_, s)| (s.node, s.devices.0)).collect();
        // Two workers without devices on one node are told apart by their number alone.
        let enough = |slot: &WorkerSlot| {
            let of =
                |slots: &mut dyn Iterator<Item = &WorkerSlot>| slots.filter(|other| *other == slot).count();
            of(&mut spares.iter()) >= of(&mut ranks.iter().map(|(_, taken)| taken))
        };
        let has_devices = ranks.iter().all(|(_, slot)| !slot.devices.is_empty());
        require(!has_devices || distinct.len() == ranks.len(), GuardError::DoesNotFit)?;
        require(ranks.iter().all(|(_, slot)| enough(slot)), GuardError::DoesNotFit)?;
        let next = swapped(placement, spares, ranks);
        let (gang, rest) = next.split_at(count);
        self.check_gang(spec, gang)?;
        self.check_spares(job, spec, gang, rest)?;
        self.check_booked(spec, &next)?;
        self.check_not_held(spec, &next)?;
        let mut left: BTreeMap<NodeId, Free> = BTreeMap::new();
        self.give_all(job, spec, placement, &mut left)?;
        for (node, free) in &mut left {
            let row = self.nodes.get(node).ok_or(GuardError::NodeUnknown)?;
            *free = free.without_promised(&row.promised);
        }
        self.take_all(spec, &next, &mut left, |node| node.offer().into_owned())
    }

    /// The free resources of nodes once a gang and its spares have left.
    pub(crate) fn give_all(
        &self,
        job: JobId,
        spec: &JobSpec,
        placement: &Placement,
        left: &mut BTreeMap<NodeId, Free>,
    ) -> Check {
        let live = placement.slots.iter().zip(&placement.ranks).enumerate();
        let live = live.filter(|(_, (_, state))| !state.is_over()).map(|(rank, (slot, _))| (rank, slot));
        let spares = self.spares(job).iter().enumerate();
        let spares = spares.map(|(place, slot)| (spec.worker_count() as usize + place, slot));
        for (rank, slot) in live.chain(spares) {
            let group = spec.group_of_slot(rank as u32, placement.slots.len()).ok_or(GuardError::Limit)?;
            let node = self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?;
            let free = left.entry(slot.node).or_insert_with(|| node.free.clone());
            free.give(&group.request, slot.devices);
        }
        Ok(())
    }

    pub(crate) fn fold_taken(&mut self, job: JobId, ranks: &[(u32, WorkerSlot)]) -> Vec<Effect> {
        let spec = self.specs.get(&job).expect("the guard has seen the job").clone();
        let row = self.jobs.get(&job).expect("the guard has seen the job");
        let placement = row.placement.as_deref().expect("the guard has seen the placement");
        let slots = swapped(placement, self.spares(job), ranks);
        self.drop_spares(job);
        for (rank, slot) in slots.iter().enumerate() {
            let group = spec.group_of_slot(rank as u32, slots.len());
            let group = group.expect("the guard has counted the workers");
            self.change_node(slot.node, false, |row| {
                row.promised.add(&group.request, slot.devices, &row.spec)
            });
        }
        let promise = PromiseRow {
            since: self.meta.log_index,
            region: self.region_of(&slots),
            charge: self.charge_for(&spec, &slots),
            slots,
        };
        self.change_job(job, |row| row.promise = Some(Arc::new(promise)));
        vec![Effect::JobChanged(job)]
    }
}
