//! What the quota of a tenant leaves for one of its gangs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::hash;
use muster_state::State;
use muster_types::{JobSpec, Name, TaskGroup};

/// Whether a gang could be within the nominal quota of its tenant, and whether borrowing opens more to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// In some region every group accepts a type of which its tenant has that much nominal quota left, no
    /// matter who borrows that at present.
    pub is_promised: bool,
    /// Of some type and region that it accepts, less nominal quota is left than it wants, and more may be used.
    pub may_borrow: bool,
    /// The same as `is_promised`, if its tenant used nothing.
    would_be_promised: bool,
}

impl Headroom {
    /// Whether a gang has its turn among those within nominal: if it could be, or if waiting for its own tenant's
    /// quota is all that is left to it. Then its tenant's own order decides who waits for that first. One that asks for more
    /// than its tenant's quota has its turn among those that borrow, also while there is nothing to borrow.
    #[must_use]
    pub fn is_offered_nominal(self) -> bool {
        self.is_promised || !self.may_borrow && self.would_be_promised
    }
}

/// What is left of a tenant's quota for a type in a region.
#[derive(Clone, Copy)]
struct RemainingQuota {
    /// Of its nominal quota, as far as its limits and those above it go.
    nominal_milli: u64,
    /// The same as far as nobody borrows it.
    unlent_milli: u64,
    /// All of it, used or not.
    whole_milli: u64,
}

/// The headroom of a gang. A gang for which nobody is promised anything, or which asks for no
/// devices, is not within nominal: there is nothing that it could be within, nor that it borrows.
#[must_use]
pub fn headroom(state: &State, spec: &JobSpec) -> Headroom {
    let mut found = Headroom { is_promised: false, may_borrow: true, would_be_promised: false };
    let groups: Vec<&TaskGroup> = spec.groups.iter().filter(|g| g.request.accelerators.is_some()).collect();
    if !state.has_quotas() || groups.is_empty() {
        return found;
    }
    found.may_borrow = false;
    // By region and type: each is asked once, however many clusters there are.
    let mut known: BTreeMap<(&Name, &Name), RemainingQuota> = BTreeMap::new();
    for (key, _) in state.pools() {
        let Some(kind) = &key.kind else { continue };
        let allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
        if !allowed || known.contains_key(&(&key.region, kind)) || !groups.iter().any(|g| accepts(g, kind)) {
            continue;
        }
        let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
        let usage = state.quota_usage();
        let all = usage.headroom(capacity, &spec.tenant, kind, &key.region).total_milli();
        let limits = usage.headroom(|_, _| u64::MAX, &spec.tenant, kind, &key.region).total_milli();
        let nominal = usage.nominal_room_milli(&spec.tenant, kind, &key.region).unwrap_or(0);
        let whole_milli = usage.nominal_milli(&spec.tenant, kind, &key.region);
        let mut left = RemainingQuota {
            nominal_milli: nominal.min(limits),
            unlent_milli: nominal.min(all),
            whole_milli,
        };
        let of_kind = groups.iter().filter(|group| accepts(group, kind));
        let wanted = of_kind.map(|group| u64::from(group.workers) * group.request.device_milli()).max();
        let wants_more = |milli: u64| wanted.is_some_and(|wanted| milli < wanted);
        // Siblings may borrow what a tenant above is promised; the tenant can take that back too.
        if wants_more(left.nominal_milli) && left.nominal_milli < whole_milli {
            let promised = usage.promised_room_milli(&spec.tenant, kind, &key.region);
            left.nominal_milli = left.nominal_milli.max(promised.unwrap_or(0));
        }
        found.may_borrow |= all > left.unlent_milli && wants_more(left.unlent_milli);
        known.insert((&key.region, kind), left);
    }
    // One that may have fewer workers begins with as many as it can, rather than with what is within nominal.
    let workers = |group: &TaskGroup| if found.may_borrow { group.workers } else { group.workers_min };
    let mut regions: Vec<&Name> = known.keys().map(|(region, _)| *region).collect();
    regions.dedup();
    let fits = |milli: fn(&RemainingQuota) -> u64| {
        let holds = |region: &Name, group: &TaskGroup| {
            let need_milli = u64::from(workers(group)) * group.request.device_milli();
            let mut kinds = known.iter().filter(|((r, kind), _)| *r == region && accepts(group, kind));
            kinds.any(|(_, left)| milli(left) >= need_milli)
        };
        regions.iter().any(|region| groups.iter().all(|group| holds(region, group)))
    };
    found.is_promised = fits(|left| left.nominal_milli);
    found.would_be_promised = fits(|left| left.whole_milli);
    found
}

fn accepts(group: &TaskGroup, kind: &Name) -> bool {
    group.request.accelerators.as_ref().is_some_and(|request| request.accepts(kind))
}

/// Where a gang could go at all: its regions and the types it accepts. A hash; two that collide are counted
/// together, and nothing worse.
#[must_use]
pub fn places_wanted(spec: &JobSpec) -> u64 {
    // It is asked for every job that has its turn, and most have one group that accepts one type: nothing is allocated for them.
    if let [group] = spec.groups.as_slice()
        && let Some(request) = &group.request.accelerators
        && let [choice] = request.choices.as_slice()
    {
        let kinds: &[&Name] = &[&choice.kind];
        let of_groups: &[Option<&[&Name]>] = &[Some(kinds)];
        return hash(&(&spec.regions, of_groups));
    }
    places_of_groups(spec)
}

fn places_of_groups(spec: &JobSpec) -> u64 {
    let of_group = |group: &TaskGroup| -> Option<Vec<Name>> {
        let request = group.request.accelerators.as_ref()?;
        Some(request.choices.iter().map(|choice| choice.kind.clone()).collect())
    };
    let kinds: Vec<Option<Vec<Name>>> = spec.groups.iter().map(of_group).collect();
    hash(&(&spec.regions, kinds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{AcceleratorRequest, Accelerators, JobDraft, WorkerRequest};

    #[test]
    fn one_group_is_hashed_as_several_are() {
        let name = |text| Name::new(text).expect("a name");
        let request = WorkerRequest {
            accelerators: Some(AcceleratorRequest::from(Accelerators { kind: name("h100"), count: 2 })),
            cpu_milli: 1_000,
            memory_bytes: 1 << 30,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(name("main"), 1, Vec::from(["train".into()]), request);
        let mut draft = JobDraft::new(name("job"), name("lab"), Vec::from([group]));
        for regions in [Vec::new(), Vec::from([name("eu"), name("us")])] {
            draft.regions = regions;
            let spec = draft.clone().check().expect("it keeps to the bounds");
            assert_eq!(places_wanted(&spec), places_of_groups(&spec));
        }
    }
}
