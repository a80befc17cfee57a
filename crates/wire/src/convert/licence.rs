//! Counted resources of the policy, and what jobs ask for of them.

use std::collections::btree_map::Entry;

use muster_types::policy::CountedResource;
use muster_types::{Licences, Name, Violation, fleet::checked_name, limits, policy};

use super::{Found, below, bound};
use crate::v1;

/// What a job asks for, by name.
pub(super) fn licences(at: &str, mut messages: Vec<v1::LicenceRequest>, found: &mut Found) -> Licences {
    let mut asked = Licences::new();
    if messages.is_empty() {
        return asked;
    }
    let at = below(at, "licences");
    bound(&at, &mut messages, limits::JOB_LICENCES_MAX, found);
    for (index, message) in messages.into_iter().enumerate() {
        let field = format!("{at}[{index}].name");
        let Some(name) = found.take(checked_name(&field, &message.name)) else { continue };
        match asked.entry(name) {
            Entry::Occupied(_) => found.push(Violation::new(field, "must be named once")),
            Entry::Vacant(place) => _ = place.insert(message.count),
        }
    }
    asked
}

/// The messages of them.
pub(super) fn licences_to_proto(licences: &Licences) -> Vec<v1::LicenceRequest> {
    let message = |(name, count): (&Name, &u32)| v1::LicenceRequest { name: name.to_string(), count: *count };
    licences.iter().map(message).collect()
}

/// What the policy counts.
pub(super) fn resources(
    at: &str,
    mut messages: Vec<v1::CountedResource>,
    found: &mut Found,
) -> Vec<CountedResource> {
    bound(at, &mut messages, policy::COUNTED_RESOURCES_MAX, found);
    let mut resources = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let name = found.take(checked_name(&below(&at, "name"), &message.name));
        let region = Some(message.region.as_str()).filter(|region| !region.is_empty());
        let region = region.and_then(|region| found.take(checked_name(&below(&at, "region"), region)));
        let Some(count) = message.count else {
            found.push(Violation::new(below(&at, "count"), "must be given: how many there are, or 0"));
            continue;
        };
        // Where one is left out, the places of those behind it are not theirs: the policy is refused anyway.
        resources.extend(name.map(|name| CountedResource { name, count, region }));
    }
    resources
}

/// The message of one of them.
pub(super) fn resource_to_proto(resource: &CountedResource) -> v1::CountedResource {
    v1::CountedResource {
        name: resource.name.to_string(),
        count: Some(resource.count),
        region: resource.region.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(found: Found) -> Vec<String> {
        found.into_violations().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn what_is_asked_is_read_and_shown_by_name() {
        let asked = |name: &str, count| v1::LicenceRequest { name: name.to_owned(), count };
        let mut found = Found::default();
        let read = licences("spec", vec![asked("matlab", 2), asked("ansys", 1)], &mut found);
        assert_eq!(licences_to_proto(&read), [asked("ansys", 1), asked("matlab", 2)]);
        assert_eq!(fields(found), Vec::<String>::new());
        let mut found = Found::default();
        licences("spec", vec![asked("matlab", 2), asked("No name", 1), asked("matlab", 1)], &mut found);
        assert_eq!(fields(found), ["spec.licences[1].name", "spec.licences[2].name"]);
    }

    #[test]
    fn a_resource_has_a_name_and_a_count() {
        let message =
            v1::CountedResource { name: "matlab".to_owned(), count: Some(40), region: "eu".to_owned() };
        let mut found = Found::default();
        let read = resources("resources", vec![message.clone()], &mut found);
        assert_eq!(read.iter().map(resource_to_proto).collect::<Vec<_>>(), [message]);
        assert_eq!(fields(found), Vec::<String>::new());
        let mut found = Found::default();
        resources("resources", vec![v1::CountedResource::default()], &mut found);
        assert_eq!(fields(found), ["resources[0].name", "resources[0].count"]);
    }
}
