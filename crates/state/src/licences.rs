//! Counted resources of the policy: who holds how many, and that no placement takes more than there are.
//!
//! A gang holds what it asks for as a whole, whatever its size, from when capacity is promised to it or it is placed until nothing
//! of it runs any more. One that is being stopped holds it still: its processes do.

use alloc::collections::BTreeMap;
use muster_journal::WorkerSlot;
use muster_types::{JobId, JobSpec, Name};

use crate::guard_error::{GuardError, require};
use crate::index::Indexes;
use crate::rows::{JobRow, holds_devices};
use crate::state::State;
use crate::tree::Map;

/// Whether a job holds what it asks for of counted resources.
pub(crate) fn holds_licences(row: &JobRow) -> bool {
    row.promise.is_some() || holds_devices(row)
}

/// What is held of counted resources. Cloning is constant-time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LicenceUse {
    /// By resource; one of which nothing is held is not there.
    held: Map<Name, u64>,
    /// The same by resource and tenant.
    by_tenant: Map<(Name, Name), u64>,
}

impl Indexes {
    /// A job begins or ceases to hold what it asks for.
    pub(crate) fn shift_licences(&mut self, spec: &JobSpec, holds: bool) {
        for (name, count) in &spec.licences {
            let licences = &mut self.licences;
            change(&mut licences.held, name.clone(), (*count).into(), holds);
            change(&mut licences.by_tenant, (name.clone(), spec.tenant.clone()), (*count).into(), holds);
        }
    }
}

/// A sum over jobs of at most `LICENCE_COUNT_MAX` each: far below 2^64. What goes was added before.
fn change<K: Ord + Clone>(sums: &mut Map<K, u64>, key: K, count: u64, is_more: bool) {
    let before = sums.get(&key).copied().unwrap_or(0);
    let after = if is_more { before + count } else { before - count };
    if after == 0 {
        sums.remove(&key);
    } else {
        sums.insert(key, after);
    }
}

impl State {
    /// How many of a counted resource jobs hold, also where that is more than the policy has by now.
    #[must_use]
    pub fn licences_held(&self, name: &Name) -> u64 {
        self.indexes.licences.held.get(name).copied().unwrap_or(0)
    }

    /// How many of a counted resource nobody holds.
    #[must_use]
    pub fn licences_free(&self, name: &Name) -> u64 {
        self.policy.policy.resource_count(name).saturating_sub(self.licences_held(name))
    }

    /// Counted resources of which something is held, in the order of their names.
    pub fn licences_in_use(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.indexes.licences.held.iter().map(|(name, held)| (name, *held))
    }

    /// What each tenant holds of a counted resource, in the order of their names; those that hold nothing are left out.
    pub fn licences_by_tenant<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = (&'a Name, u64)> + 'a {
        // No name is before this one.
        let first = (name.clone(), Name::literal("0"));
        let held = self.indexes.licences.by_tenant.range(first..).take_while(move |((of, _), _)| of == name);
        held.map(|((_, tenant), count)| (tenant, *count))
    }

    /// The first counted resource of which fewer are free than a job asks for.
    #[must_use]
    pub fn lacking_licence<'a>(&self, spec: &'a JobSpec) -> Option<&'a Name> {
        let lacks = |(name, count): &(&Name, &u32)| self.licences_free(name) < u64::from(**count);
        spec.licences.iter().find(lacks).map(|(name, _)| name)
    }

    /// Jobs that begin to hold what they ask for find enough of it. Those that hold it already take no more.
    pub(crate) fn check_licences(
        &self,
        gangs: &[(JobId, &JobSpec, &[WorkerSlot])],
    ) -> Result<(), GuardError> {
        let mut taken: BTreeMap<&Name, u64> = BTreeMap::new();
        for (job, spec, workers) in gangs {
            if spec.licences.is_empty() {
                continue;
            }
            self.check_licence_regions(spec, workers)?;
            let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
            if holds_licences(row) {
                continue;
            }
            for (name, count) in &spec.licences {
                *taken.entry(name).or_default() += u64::from(*count);
            }
        }
        let is_free = |(name, count): (&&Name, &u64)| *count <= self.licences_free(name);
        require(taken.iter().all(is_free), GuardError::LicencesExceeded)
    }

    /// The workers lie in the region of each counted resource that has one.
    fn check_licence_regions(&self, spec: &JobSpec, workers: &[WorkerSlot]) -> Result<(), GuardError> {
        let named =
            spec.licences.keys().filter_map(|name| self.policy.policy.resource(name)?.region.as_ref());
        for region in named {
            for slot in workers {
                let row = self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?;
                require(row.spec.region == *region, GuardError::LicencesExceeded)?;
            }
        }
        Ok(())
    }
}
