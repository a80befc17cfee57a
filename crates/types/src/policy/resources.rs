//! Resources that the policy counts and no node has: licences of programs, shares of a network.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::{PolicyDraft, check_bound, check_count};
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;

/// Counted resources of one policy.
pub const COUNTED_RESOURCES_MAX: usize = 256;

/// Something that there is a number of for all nodes together, and that jobs hold as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedResource {
    /// Unique in the policy; what jobs ask for.
    pub name: Name,
    /// How many may be held at a time.
    pub count: u32,
    /// The only region where jobs that ask for it are placed; none for every region.
    pub region: Option<Name>,
}

impl PolicyDraft {
    /// The counted resource of this name.
    #[must_use]
    pub fn resource(&self, name: &Name) -> Option<&CountedResource> {
        self.resources.iter().find(|resource| resource.name == *name)
    }

    /// How many of a counted resource may be held at a time; none of one that the policy does not have.
    #[must_use]
    pub fn resource_count(&self, name: &Name) -> u64 {
        self.resource(name).map_or(0, |resource| resource.count.into())
    }

    pub(super) fn check_resources(&self, found: &mut Vec<Violation>) {
        check_count("resources", self.resources.len(), COUNTED_RESOURCES_MAX, found);
        let mut named = BTreeSet::new();
        for (index, resource) in self.resources.iter().enumerate() {
            let at = format!("resources[{index}]");
            let most = limits::LICENCE_COUNT_MAX.into();
            check_bound(&format!("{at}.count"), resource.count.into(), 0, most, found);
            if !named.insert(&resource.name) {
                found.push(Violation::new(format!("{at}.name"), "must be unique in the policy"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_resource_is_named_once_and_counted() {
        let resource = |name, count| CountedResource { name: Name::literal(name), count, region: None };
        let draft = PolicyDraft { resources: vec![resource("matlab", 40)], ..PolicyDraft::default() };
        assert_eq!(draft.resource_count(&Name::literal("matlab")), 40);
        assert_eq!(draft.resource_count(&Name::literal("ansys")), 0);
        assert!(draft.check().is_ok());
        let twice = vec![resource("matlab", 1), resource("matlab", limits::LICENCE_COUNT_MAX + 1)];
        let found = PolicyDraft { resources: twice, ..PolicyDraft::default() }.check().unwrap_err();
        let fields: Vec<&str> = found.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["resources[1].count", "resources[1].name"]);
    }
}
