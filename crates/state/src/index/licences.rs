//! What jobs hold of counted resources, kept as jobs change.

use muster_types::{JobSpec, Name};

use crate::rows::{JobRow, holds_devices};
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

impl LicenceUse {
    /// A job begins or ceases to hold what it asks for.
    pub(crate) fn shift(&mut self, spec: &JobSpec, holds: bool) {
        for (name, count) in &spec.licences {
            change(&mut self.held, name.clone(), (*count).into(), holds);
            change(&mut self.by_tenant, (name.clone(), spec.tenant.clone()), (*count).into(), holds);
        }
    }

    /// How many of a counted resource jobs hold.
    pub(crate) fn held(&self, name: &Name) -> u64 {
        self.held.get(name).copied().unwrap_or(0)
    }

    /// Counted resources of which something is held, in the order of their names.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.held.iter().map(|(name, held)| (name, *held))
    }

    /// What each tenant holds of a counted resource, in the order of their names.
    pub(crate) fn by_tenant<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = (&'a Name, u64)> + 'a {
        // No name is before this one.
        let first = (name.clone(), Name::literal("0"));
        let held = self.by_tenant.range(first..).take_while(move |((of, _), _)| of == name);
        held.map(|((_, tenant), count)| (tenant, *count))
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
