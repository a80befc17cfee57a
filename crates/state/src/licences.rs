//! Counted resources of the policy: who holds how many, and that no placement takes more than there are.
//!
//! A gang holds what it asks for as a whole, whatever its size, from when capacity is promised to it or it is placed until nothing
//! of it runs any more. One that is being stopped holds it still: its processes do.

use alloc::collections::BTreeMap;
use muster_journal::WorkerSlot;
use muster_types::{JobId, JobSpec, Name};

use crate::guard_error::{GuardError, require};
use crate::index::holds_licences;
use crate::state::State;

impl State {
    /// How many of a counted resource jobs hold, also where that is more than the policy has by now.
    #[must_use]
    pub fn licences_held(&self, name: &Name) -> u64 {
        self.indexes.licences.held(name)
    }

    /// How many of a counted resource nobody holds.
    #[must_use]
    pub fn licences_free(&self, name: &Name) -> u64 {
        self.policy.policy.resource_count(name).saturating_sub(self.licences_held(name))
    }

    /// Counted resources of which something is held, in the order of their names.
    pub fn licences_in_use(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.indexes.licences.in_use()
    }

    /// What each tenant holds of a counted resource, in the order of their names; those that hold nothing are left out.
    pub fn licences_by_tenant<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = (&'a Name, u64)> + 'a {
        self.indexes.licences.by_tenant(name)
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
