//! Nodes that a job may wait for although none like them has joined yet: the policy names their type or their region.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;
use muster_state::State;
use muster_types::policy::NamedPlaces;
use muster_types::{JobSpec, Name};

/// Nodes of a type, of a region, or of a type in a region, of which none is registered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AwaitedNodes {
    /// The type of accelerator; none for nodes of any type.
    kind: Option<Name>,
    /// The region; none for nodes in any region.
    region: Option<Name>,
}

impl fmt::Display for AwaitedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.region) {
            (Some(kind), Some(region)) => write!(f, "with {kind} in region {region}"),
            (Some(kind), None) => write!(f, "with {kind}"),
            (None, Some(region)) => write!(f, "in region {region}"),
            (None, None) => Ok(()),
        }
    }
}

/// The nodes that a job asks for, that the policy names and of which none is registered; empty where the registered fleet
/// alone says whether the job can run.
///
/// A job asks for the regions and types that it lists. Of its regions and types each must be known, by a node or by the
/// policy. How large nodes are that have not joined nobody knows, so a gang of any size may wait for them.
pub(crate) fn awaited(state: &State, spec: &JobSpec) -> BTreeSet<AwaitedNodes> {
    let fleet = Fleet::of(state);
    let mut found = BTreeSet::new();
    if spec.regions.is_empty() {
        // A cluster that has nodes may get others, and there may be new clusters.
        let regions = fleet.regions.iter().copied().map(Some).chain([None]);
        regions.for_each(|region| found.extend(fleet.awaited_in(region, false, spec)));
    } else {
        let known = |region: &&Name| fleet.regions.contains(*region) || fleet.named.has_region(region);
        for region in spec.regions.iter().filter(known) {
            found.extend(fleet.awaited_in(Some(region), true, spec));
        }
    }
    found
}

/// What is known of a fleet: by its nodes, and by the policy.
struct Fleet<'a> {
    named: &'a NamedPlaces,
    regions: BTreeSet<&'a Name>,
    kinds: BTreeSet<&'a Name>,
    pairs: BTreeSet<(&'a Name, &'a Name)>,
}

impl<'a> Fleet<'a> {
    fn of(state: &'a State) -> Fleet<'a> {
        let named = state.policy().policy.named();
        let mut fleet =
            Fleet { named, regions: BTreeSet::new(), kinds: BTreeSet::new(), pairs: BTreeSet::new() };
        for (key, _) in state.pools() {
            fleet.regions.insert(&key.region);
            if let Some(kind) = &key.kind {
                fleet.kinds.insert(kind);
                fleet.pairs.insert((kind, &key.region));
            }
        }
        fleet
    }

    /// What a gang would wait for in one region, or in one that nobody knows yet; nothing where one of its groups could
    /// have no nodes there. Only a region that the job `lists` is waited for itself.
    fn awaited_in(&self, region: Option<&Name>, lists: bool, spec: &JobSpec) -> Vec<AwaitedNodes> {
        let new_region = region.filter(|region| lists && !self.regions.contains(*region));
        let mut found = Vec::new();
        for group in &spec.groups {
            let Some(request) = &group.request.accelerators else { continue };
            let mut may_be_there = request.choices.is_empty()
                && (new_region.is_some() || region.is_some_and(|region| self.has_accelerators(region)));
            for kind in request.choices.iter().map(|choice| &choice.kind) {
                let joined = self.kinds.contains(kind);
                let in_region = region.filter(|region| lists && self.named.has_kind_in(kind, region));
                if region.is_some_and(|region| self.pairs.contains(&(kind, region))) {
                    may_be_there = true;
                } else if !joined && self.named.has_kind(kind) {
                    found.push(AwaitedNodes { kind: Some(kind.clone()), region: new_region.cloned() });
                    may_be_there = true;
                } else if let Some(region) = in_region {
                    found.push(AwaitedNodes { kind: Some(kind.clone()), region: Some(region.clone()) });
                    may_be_there = true;
                } else {
                    may_be_there |= joined && new_region.is_some();
                }
            }
            if !may_be_there {
                return Vec::new();
            }
        }
        if found.is_empty() {
            found.extend(new_region.map(|region| AwaitedNodes { kind: None, region: Some(region.clone()) }));
        }
        found
    }

    fn has_accelerators(&self, region: &Name) -> bool {
        self.pairs.iter().any(|(_, of)| *of == region)
    }
}
