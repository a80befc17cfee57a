//! The invariants over the whole state, for tests, restores and operators. The fold asserts the
//! local ones on every change; this recomputes everything from the rows.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_types::{DeviceSet, NodeId};

use crate::apply::State;
use crate::index::Indexes;
use crate::rows::{NodeStatus, Phase, Placement, RankState};

/// An invariant that does not hold, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant(pub String);

impl State {
    /// Recomputes every invariant from the rows. Costs the whole state.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn verify(&self) -> Result<(), BrokenInvariant> {
        self.verify_leases()?;
        self.verify_jobs()?;
        self.verify_indexes()
    }

    /// Capacity is conserved: what is free and what is held make up the host, and no device is held
    /// twice.
    fn verify_leases(&self) -> Result<(), BrokenInvariant> {
        let mut held: alloc::collections::BTreeMap<NodeId, (DeviceSet, u64, u64)> = Default::default();
        for (id, row) in self.jobs.iter() {
            let Some(placement) = &row.placement else { continue };
            let spec = self.specs.get(id).ok_or_else(|| broken(format!("{id} has no spec")))?;
            let ranks = placement.ranks.len();
            if ranks != placement.slots.len() || ranks != spec.worker_count() as usize {
                return Err(broken(format!("{id} has {} workers, placed {ranks}", spec.worker_count())));
            }
            let unstarted = placement.ranks.iter().filter(|r| **r == RankState::Assigned).count();
            if unstarted != placement.unstarted as usize {
                return Err(broken(format!("{id} counts {} unstarted ranks wrongly", placement.unstarted)));
            }
            let mut live = 0;
            for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
                if state.is_over() {
                    continue;
                }
                live += 1;
                let (group, _) =
                    spec.group_of(rank as u32).ok_or_else(|| broken(format!("{id} has no rank {rank}")))?;
                let entry = held.entry(slot.node).or_default();
                if !entry.0.is_disjoint(slot.devices) {
                    return Err(broken(format!(
                        "{id} rank {rank}: a device of {} is leased twice",
                        slot.node
                    )));
                }
                entry.0 = entry.0.union(slot.devices);
                // Saturating: the rows may come from a snapshot, and nothing has checked them yet.
                entry.1 = entry.1.saturating_add(group.request.cpu_milli);
                entry.2 = entry.2.saturating_add(group.request.memory_bytes);
                let node = self.nodes.get(&slot.node);
                let current =
                    node.is_some_and(|n| n.status == NodeStatus::Up && n.incarnation == slot.incarnation);
                if !current {
                    return Err(broken(format!("{id} rank {rank} is on a node that is not there")));
                }
            }
            if live != placement.live {
                return Err(broken(format!("{id} counts {} live ranks, has {live}", placement.live)));
            }
        }
        for (id, row) in self.nodes.iter() {
            let (devices, cpu_milli, memory_bytes) = held.remove(id).unwrap_or_default();
            let all = DeviceSet::first(row.spec.device_count());
            let sums = row.free_devices.is_disjoint(devices)
                && row.free_devices.union(devices) == all
                && row.free_cpu_milli.checked_add(cpu_milli) == Some(row.spec.cpu_milli)
                && row.free_memory_bytes.checked_add(memory_bytes) == Some(row.spec.memory_bytes);
            if !sums {
                return Err(broken(format!("{id}: free and held do not make up the host")));
            }
        }
        Ok(())
    }

    fn verify_jobs(&self) -> Result<(), BrokenInvariant> {
        if self.jobs.len() != self.specs.len() {
            return Err(broken("jobs and specs differ in number".into()));
        }
        for (id, row) in self.jobs.iter() {
            if !self.specs.contains(id) {
                return Err(broken(format!("{id} has no spec")));
            }
            let live = row.placement.as_ref().map_or(0, |p| p.live);
            let good = match &row.phase {
                Phase::Pending => live == 0,
                Phase::Starting => {
                    let waits = |p: &Placement| !p.ranks.iter().all(RankState::has_started);
                    row.started_at.is_none() && row.placement.as_deref().is_some_and(waits)
                }
                Phase::Running => row.started_at.is_some() && row.placement.is_some(),
                Phase::Stopping(_) => row.placement.is_some(),
                Phase::Finished(_) => live == 0 && row.finished_at.is_some(),
            };
            if !good {
                return Err(broken(format!("{id} is {:?} with {live} live ranks", row.phase)));
            }
        }
        Ok(())
    }

    /// The indexes are what a rebuild from the rows makes them.
    fn verify_indexes(&self) -> Result<(), BrokenInvariant> {
        let fresh = self.rebuilt_indexes();
        let ours = &self.indexes;
        let mut wrong: Vec<&str> = Vec::new();
        let same_pools = |a: &Indexes, b: &Indexes| {
            a.pools.size() == b.pools.size()
                && a.pools.iter().all(|(key, pool)| {
                    b.pools.get(key).is_some_and(|other| {
                        pool.by_free == other.by_free
                            && pool.free_devices == other.free_devices
                            && pool.total_devices == other.total_devices
                            && pool.shapes == other.shapes
                            && pool.placeable_shapes == other.placeable_shapes
                    })
                })
        };
        let checks = [
            ("pending", fresh.pending == ours.pending),
            ("pending_by_class", fresh.pending_by_class == ours.pending_by_class),
            ("active", fresh.active == ours.active),
            ("finished", fresh.finished == ours.finished),
            ("run_limits", fresh.run_limits == ours.run_limits),
            ("requests_by_time", fresh.requests_by_time == ours.requests_by_time),
            ("nodes_by_name", fresh.nodes_by_name == ours.nodes_by_name),
            ("gangs_by_node", fresh.gangs_by_node == ours.gangs_by_node),
            ("nodes_up", fresh.nodes_up == ours.nodes_up),
            ("pools", same_pools(&fresh, ours)),
        ];
        wrong.extend(checks.iter().filter(|(_, good)| !good).map(|(name, _)| *name));
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(broken(format!("indexes differ from a rebuild: {wrong:?}")))
        }
    }

    pub(crate) fn rebuilt_indexes(&self) -> Indexes {
        let mut fresh = Indexes::default();
        for (id, row) in self.nodes.iter() {
            fresh.nodes_by_name.insert_mut(row.spec.name.clone(), *id);
            fresh.nodes_up += u64::from(row.status == NodeStatus::Up);
            fresh.add_shape(&row.spec);
            if row.is_placeable() {
                fresh.add_placeable(&row.spec);
            }
            fresh.add_free(*id, row);
        }
        for (id, row) in self.jobs.iter() {
            if let Some(spec) = self.specs.get(id) {
                fresh.add_job(*id, row, spec);
            }
            let Some(placement) = &row.placement else { continue };
            for (slot, state) in placement.slots.iter().zip(&placement.ranks) {
                if !state.is_over() {
                    fresh.gangs_by_node.insert_mut((slot.node, *id));
                }
            }
        }
        for (id, row) in self.requests.iter() {
            fresh.requests_by_time.insert_mut((row.log_time, *id));
        }
        fresh
    }
}

fn broken(text: String) -> BrokenInvariant {
    BrokenInvariant(text)
}
