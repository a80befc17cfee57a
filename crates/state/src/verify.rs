//! The invariants over the whole state, for tests, restores and operators. The fold asserts the
//! local ones on every change; this recomputes everything from the rows.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::FORMAT_MIN;
use muster_types::{JobId, NodeId};

use crate::free::{Free, Promised};
use crate::index::{ArrayIndexKeys, Indexes, JobIndexKeys};
use crate::rows::{NodeStatus, Phase, Placement, RankState};
use crate::state::State;

/// An invariant that does not hold, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant(pub String);

impl State {
    /// Recomputes every invariant from the rows. Costs the whole state.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn verify(&self) -> Result<(), BrokenInvariant> {
        if let Some(what) = self.wrong_digest() {
            return Err(broken(format!("the digest of a table is not that of its rows: {what}")));
        }
        self.verify_rows()?;
        self.verify_indexes()
    }

    /// What must hold of the rows, whatever the indexes say.
    pub(crate) fn verify_rows(&self) -> Result<(), BrokenInvariant> {
        self.verify_cluster()?;
        self.verify_restrictions()?;
        self.verify_overrides()?;
        self.verify_node_reasons()?;
        self.verify_leases()?;
        self.verify_jobs()?;
        self.verify_metadata()?;
        self.verify_controls()?;
        self.verify_bursts()?;
        self.verify_arrays()?;
        self.verify_notifications()?;
        self.verify_grants()?;
        self.verify_capacity()?;
        self.verify_user_usage()?;
        self.check_booking_rows().map_err(BrokenInvariant)?;
        self.check_fleet_hold_rows().map_err(BrokenInvariant)?;
        self.demand.verify().map_err(BrokenInvariant)
    }

    /// Every node has an id that was given, and no token is of a generation that has not begun.
    fn verify_cluster(&self) -> Result<(), BrokenInvariant> {
        if self.meta.format < FORMAT_MIN {
            return Err(broken(format!("format {} was never in force", self.meta.format)));
        }
        if let Some(last) = self.nodes.last_key().filter(|last| last.0 >= self.meta.nodes_registered) {
            return Err(broken(format!("{last} is there, and {} were given", self.meta.nodes_registered)));
        }
        let generation = self.generation();
        for (id, row) in self.jobs.iter() {
            let placements = [&row.placement, &row.previous];
            for placement in placements.into_iter().flatten() {
                let is_live = placement.live > 0;
                let given = placement.token.generation;
                if given > generation || (is_live && given != generation) {
                    return Err(broken(format!("{id} holds token {} in {generation}", placement.token)));
                }
            }
        }
        Ok(())
    }

    /// A row of restrictions says something, of a node that is there, and the node's row knows what it comes to.
    fn verify_restrictions(&self) -> Result<(), BrokenInvariant> {
        for (id, row) in self.restrictions.iter() {
            if row.is_blank() || !self.nodes.contains(id) {
                return Err(broken(format!("{id} has a row of restrictions without a meaning")));
            }
        }
        for (id, node) in self.nodes.iter() {
            let restricted = self.restrictions.get(id).map(|row| row.restricted()).unwrap_or_default();
            if node.restricted != restricted {
                return Err(broken(format!("{id} does not know what restricts it")));
            }
        }
        Ok(())
    }

    /// Capacity is conserved: what is free and what is held make up the host, and no device is held
    /// twice.
    fn verify_leases(&self) -> Result<(), BrokenInvariant> {
        let mut held: alloc::collections::BTreeMap<NodeId, Free> = Default::default();
        for (id, row) in self.jobs.iter() {
            let Some(placement) = &row.placement else { continue };
            let spec = self.specs.get(id).ok_or_else(|| broken(format!("{id} has no spec")))?;
            let ranks = placement.ranks.len();
            // One that waits again may have been given another size since.
            let is_size = placement.live == 0 || u32::try_from(ranks).is_ok_and(|ranks| spec.may_have(ranks));
            if ranks != placement.slots.len() || !is_size {
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
                let (group, _) = spec
                    .group_of(rank as u32, ranks)
                    .ok_or_else(|| broken(format!("{id} has no rank {rank}")))?;
                let Some(node) = self.nodes.get(&slot.node) else {
                    return Err(broken(format!("{id} rank {rank} is on a node that is not there")));
                };
                let free = held.entry(slot.node).or_insert_with(|| Free::all_of(&node.spec));
                if !free.admits(&group.request, slot.devices) {
                    return Err(broken(format!(
                        "{id} rank {rank}: more of {} is leased than there is",
                        slot.node
                    )));
                }
                free.take(&group.request, slot.devices);
                let current = node.status == NodeStatus::Up && node.incarnation == slot.incarnation;
                if !current {
                    return Err(broken(format!("{id} rank {rank} is on a node that is not there")));
                }
            }
            if placement.ready.last().is_some_and(|last| *last as usize >= ranks) {
                return Err(broken(format!("{id} has a rank that is ready and is not there")));
            }
            if live != placement.live {
                return Err(broken(format!("{id} counts {} live ranks, has {live}", placement.live)));
            }
        }
        self.verify_spares(&mut held)?;
        for (id, row) in self.nodes.iter() {
            let free = held.remove(id).unwrap_or_else(|| Free::all_of(&row.spec));
            if row.free != free {
                return Err(broken(format!("{id}: free and held do not make up the host")));
            }
        }
        self.verify_promises()
    }

    /// Spares are of jobs that hold devices, on nodes that are there, and nobody else holds them.
    fn verify_spares(
        &self,
        held: &mut alloc::collections::BTreeMap<NodeId, Free>,
    ) -> Result<(), BrokenInvariant> {
        for (id, slots) in self.spares.iter() {
            let wrong = || broken(format!("{id} has spares and holds nothing else, or not there"));
            let row = self.jobs.get(id).ok_or_else(wrong)?;
            let spec = self.specs.get(id).ok_or_else(wrong)?;
            let holds = matches!(row.phase, Phase::Starting | Phase::Running | Phase::Stopping(_));
            let request = &spec.groups.first().ok_or_else(wrong)?.request;
            if slots.is_empty() || !holds {
                return Err(wrong());
            }
            for slot in slots {
                let node = self.nodes.get(&slot.node).ok_or_else(wrong)?;
                let free = held.entry(slot.node).or_insert_with(|| Free::all_of(&node.spec));
                let current = node.status == NodeStatus::Up && node.incarnation == slot.incarnation;
                if !current || !free.admits(request, slot.devices) {
                    return Err(wrong());
                }
                free.take(request, slot.devices);
            }
        }
        Ok(())
    }

    /// What is promised on every node is what the promises say, nothing is promised twice, and only to
    /// jobs that may still be placed.
    fn verify_promises(&self) -> Result<(), BrokenInvariant> {
        let mut sums: alloc::collections::BTreeMap<NodeId, Promised> = Default::default();
        for (id, row) in self.jobs.iter() {
            let Some(promise) = &row.promise else { continue };
            let spec = self.specs.get(id).ok_or_else(|| broken(format!("{id} has no spec")))?;
            if matches!(row.phase, Phase::Finished(_) | Phase::Starting | Phase::Running) {
                return Err(broken(format!("{id} has a promise and is {:?}", row.phase)));
            }
            for (rank, slot) in promise.slots.iter().enumerate() {
                let group = spec
                    .group_of_slot(rank as u32, promise.slots.len())
                    .ok_or_else(|| broken(format!("{id} has no rank {rank}")))?;
                let sum = sums.entry(slot.node).or_default();
                let twice = group.request.accelerators.as_ref().is_some_and(|a| {
                    matches!(a.amount, muster_types::DeviceAmount::Whole(_))
                        && !sum.devices.is_disjoint(slot.devices)
                });
                if twice {
                    return Err(broken(format!("{id} rank {rank}: a device is promised twice")));
                }
                let node = self.nodes.get(&slot.node);
                let node =
                    node.ok_or_else(|| broken(format!("{id} is promised a node that is not there")))?;
                sum.add(&group.request, slot.devices, &node.spec);
            }
        }
        for (id, row) in self.nodes.iter() {
            if row.promised != sums.remove(id).unwrap_or_default() {
                return Err(broken(format!("{id}: what is promised is not what the promises say")));
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

    /// A submission group has as many members as name it, at least one, and what they have in common; a job that is
    /// not over has joined a group that is there.
    fn verify_bursts(&self) -> Result<(), BrokenInvariant> {
        let mut members: alloc::collections::BTreeMap<JobId, u32> = Default::default();
        for (id, row) in self.jobs.iter().filter(|(_, row)| !matches!(row.phase, Phase::Finished(_))) {
            let group = row.submission_group(*id);
            if let Some(of_group) = self.submission_groups.get(&group) {
                *members.entry(group).or_default() += 1;
                let spec =
                    self.specs.get_with_facts(id).ok_or_else(|| broken(format!("{id} has no spec")))?;
                if of_group.key != spec.1.group_key {
                    return Err(broken(format!("{id} is unlike the rest of its submission group {group}")));
                }
            } else if group != *id {
                return Err(broken(format!("{id} has joined {group}, which is not there")));
            }
        }
        for (id, row) in self.arrays.iter().filter(|(_, row)| row.uncreated > 0) {
            let group = row.submission_group(*id);
            let key = self.arrays.get_with_facts(id).map(|(_, facts)| facts.spec.group_key);
            if self.submission_groups.get(&group).map(|of_group| of_group.key) != key {
                return Err(broken(format!("{id} is unlike the rest of its submission group")));
            }
            *members.entry(group).or_default() += row.uncreated;
        }
        for (group, row) in self.submission_groups.iter() {
            let counted = members.get(group).copied().unwrap_or(0);
            if counted != row.members || counted == 0 {
                return Err(broken(format!(
                    "submission group {group} counts {} members, has {counted}",
                    row.members
                )));
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
                && a.pools.iter().all(|(key, pool)| b.pools.get(key).is_some_and(|other| pool == other))
        };
        // A tier whose last job left keeps an empty map, which a rebuild does not make.
        let line = |i: &Indexes| -> Vec<_> {
            let tiers = i.line.iter().filter(|(_, tenants)| !tenants.is_empty());
            tiers.map(|(tier, tenants)| (*tier, tenants.clone())).collect()
        };
        let ends = |i: &Indexes| -> Vec<_> {
            let clusters = i.ends.iter().filter(|(_, ends)| !ends.is_empty());
            clusters.map(|(place, ends)| (place.clone(), ends.clone())).collect()
        };
        let checks = [
            ("pending", fresh.pending == ours.pending),
            ("pending_by_reason", fresh.pending_by_reason == ours.pending_by_reason),
            ("loads", fresh.loads == ours.loads),
            ("users", fresh.users == ours.users),
            ("eligible", fresh.eligible == ours.eligible),
            ("work", fresh.work == ours.work),
            ("lanes", fresh.lanes == ours.lanes),
            ("line", line(&fresh) == line(ours)),
            ("user_lines", fresh.user_lines == ours.user_lines),
            ("waiting_by_user", fresh.waiting_by_user == ours.waiting_by_user),
            ("idle_users", fresh.idle_users == ours.idle_users),
            ("waiting", fresh.waiting == ours.waiting),
            ("running", fresh.running == ours.running),
            ("bursts_by_key", fresh.bursts_by_key == ours.bursts_by_key),
            ("not_before", fresh.not_before == ours.not_before),
            ("dependents", fresh.dependents == ours.dependents),
            ("promised", fresh.promised == ours.promised),
            ("promises_by_node", fresh.promises_by_node == ours.promises_by_node),
            ("stopping", fresh.stopping == ours.stopping),
            ("preemptible", fresh.preemptible == ours.preemptible),
            ("growable", fresh.growable == ours.growable),
            ("ends", ends(&fresh) == ends(ours)),
            ("history_by_time", fresh.history_by_time == ours.history_by_time),
            ("charged", fresh.charged == ours.charged),
            ("quota", fresh.quota == ours.quota),
            ("fixed_quota", fresh.fixed_quota == ours.fixed_quota),
            ("has_quotas", fresh.has_quotas == ours.has_quotas),
            ("effective", fresh.effective == ours.effective),
            ("grant_ends", fresh.grant_ends == ours.grant_ends),
            ("budget_users", fresh.budget_users == ours.budget_users),
            ("spend_users", fresh.spend_users == ours.spend_users),
            ("budget_ends", fresh.budget_ends == ours.budget_ends),
            ("booked", fresh.booked == ours.booked),
            ("scheduled", fresh.scheduled == ours.scheduled),
            ("active", fresh.active == ours.active),
            ("active_by_tenant", fresh.active_by_tenant == ours.active_by_tenant),
            ("apart", fresh.apart == ours.apart),
            ("licences", fresh.licences == ours.licences),
            ("finished", fresh.finished == ours.finished),
            ("run_limits", fresh.run_limits == ours.run_limits),
            ("deadlines", fresh.deadlines == ours.deadlines),
            ("fallbacks", fresh.fallbacks == ours.fallbacks),
            ("starting", fresh.starting == ours.starting),
            ("unready", fresh.unready == ours.unready),
            ("killed_by", fresh.killed_by == ours.killed_by),
            ("requests_by_time", fresh.requests_by_time == ours.requests_by_time),
            ("nodes_by_name", fresh.nodes_by_name == ours.nodes_by_name),
            ("gangs_by_node", fresh.gangs_by_node == ours.gangs_by_node),
            ("spares_by_node", fresh.spares_by_node == ours.spares_by_node),
            ("nodes_up", fresh.nodes_up == ours.nodes_up),
            ("lost_nodes", fresh.lost_nodes == ours.lost_nodes),
            ("draining", fresh.draining == ours.draining),
            ("maintenance", fresh.maintenance == ours.maintenance),
            ("pools", same_pools(&fresh, ours)),
            ("open_arrays", fresh.open_arrays == ours.open_arrays),
            ("uncreated", fresh.uncreated == ours.uncreated),
            ("array_loads", fresh.array_loads == ours.array_loads),
            ("array_dependents", fresh.array_dependents == ours.array_dependents),
            ("arrays_not_before", fresh.arrays_not_before == ours.arrays_not_before),
            ("array_deadlines", fresh.array_deadlines == ours.array_deadlines),
            ("finished_arrays", fresh.finished_arrays == ours.finished_arrays),
            ("finished_times", fresh.finished_times == ours.finished_times),
            ("droppable_rows", fresh.droppable_rows == ours.droppable_rows),
            ("array_rows", fresh.array_rows == ours.array_rows),
            ("member_dependents", fresh.member_dependents == ours.member_dependents),
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
            fresh.nodes_by_name.insert(row.spec.name.clone(), *id);
            fresh.add_status(*id, row);
            fresh.add_shape(*id, &row.spec);
            if row.is_placeable() {
                fresh.add_placeable(&row.spec);
            }
            fresh.add_free(*id, row);
        }
        for (id, row) in self.restrictions.iter() {
            fresh.add_restriction(*id, row);
        }
        for (key, row) in self.history.iter() {
            fresh.history_by_time.insert((row.last, *key));
        }
        for (id, row) in self.jobs.iter() {
            if let Some(spec) = self.described(*id) {
                let standing = JobIndexKeys::of(row, &spec, self.burst_turn(*id, row), self.retry_wait(*id));
                fresh.shift(*id, &spec, &JobIndexKeys::default(), &standing);
                let is_alone = row.submission_group(*id) == *id && !self.submission_groups.contains(id);
                if is_alone && !matches!(row.phase, Phase::Finished(_)) {
                    fresh.bursts_by_key.insert((spec.facts.group_key, *id));
                }
            }
            let Some(placement) = &row.placement else { continue };
            for (slot, state) in placement.slots.iter().zip(&placement.ranks) {
                if !state.is_over() {
                    fresh.gangs_by_node.insert((slot.node, *id));
                }
            }
        }
        for (id, row) in self.arrays.iter() {
            let keys = ArrayIndexKeys::of(row);
            fresh.shift_array(*id, &row.template, &ArrayIndexKeys::default(), &keys);
        }
        for (id, slots) in self.spares.iter() {
            for slot in slots {
                fresh.spares_by_node.insert((slot.node, *id));
            }
        }
        for (id, times) in self.times.iter() {
            self.kill_time(*id, times).inspect(|at| fresh.killed_by.insert((*at, *id)));
        }
        for (group, row) in self.submission_groups.iter() {
            fresh.bursts_by_key.insert((row.key, *group));
        }
        for (id, row) in self.requests.iter() {
            fresh.requests_by_time.insert((row.log_time, *id));
        }
        for (key, row) in self.budget_rows() {
            fresh.add_budget(key, row);
        }
        for (key, row) in self.spend_rows() {
            fresh.add_spend(key, row);
        }
        for (name, booking) in self.bookings() {
            fresh.book(name, &booking.nodes);
        }
        for (key, row) in self.schedules() {
            fresh.shift_schedule(key, None, crate::index::waits_for(row));
        }
        for (key, row) in self.user_usage.iter() {
            fresh.add_user_usage(key, row);
        }
        self.count_quotas(&mut fresh);
        self.line_up_users(&mut fresh);
        fresh
    }
}

fn broken(text: String) -> BrokenInvariant {
    BrokenInvariant(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Set;
    use muster_types::Name;

    /// What is found of a state whose indexes are not those of its rows.
    fn found(damage: impl FnOnce(&mut Indexes)) -> String {
        let indexes = State::default().rebuilt_indexes();
        let mut state = State { indexes, ..State::default() };
        assert_eq!(state.verify_indexes(), Ok(()));
        damage(&mut state.indexes);
        state.verify_indexes().expect_err("it is damaged").0
    }

    #[test]
    fn what_is_charged_is_compared_with_a_rebuild() {
        let lab = Name::literal("lab");
        let charged = found(|indexes| indexes.charged.insert(lab.clone(), Set::of(JobId(1))));
        assert!(charged.contains("\"charged\""), "{charged}");
        let fixed = found(|indexes| indexes.fixed_quota.add(&lab, &lab, &lab, 1));
        assert!(fixed.contains("\"fixed_quota\""), "{fixed}");
        let flag = found(|indexes| indexes.has_quotas = !indexes.has_quotas);
        assert!(flag.contains("\"has_quotas\""), "{flag}");
    }
}
