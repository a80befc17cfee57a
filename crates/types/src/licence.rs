//! Licences: how many of what the policy counts, and no node has, a gang asks for.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use crate::limits;
use crate::name::Name;
use crate::reason::Violation;

/// How many of each counted resource of the policy a job holds as a whole, from its placement to its end, whatever its size.
pub type Licences = BTreeMap<Name, u32>;

/// Rules that licences of a job break.
pub(crate) fn check_all(licences: &Licences, found: &mut Vec<Violation>) {
    let max = limits::JOB_LICENCES_MAX;
    if licences.len() > max {
        found.push(Violation::limit("licences", licences.len() as u64, 0, max as u64));
    }
    for (name, count) in licences.iter().take(max) {
        if *count == 0 || *count > limits::LICENCE_COUNT_MAX {
            let field = format!("licences.{name}");
            found.push(Violation::limit(&field, (*count).into(), 1, limits::LICENCE_COUNT_MAX.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_counted_from_one_to_the_largest_count() {
        let most = limits::LICENCE_COUNT_MAX;
        let fields = |counts: &[(&'static str, u32)]| {
            let licences = counts.iter().map(|&(name, count)| (Name::literal(name), count)).collect();
            let mut found = Vec::new();
            check_all(&licences, &mut found);
            found.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
        };
        assert!(fields(&[("matlab", 1), ("ansys", most)]).is_empty());
        assert_eq!(fields(&[("matlab", 0), ("ansys", most + 1)]), ["licences.ansys", "licences.matlab"]);
        let many: Vec<_> = (0..=limits::JOB_LICENCES_MAX).map(|at| Name::new(&format!("l{at}"))).collect();
        let licences = many.into_iter().flatten().map(|name| (name, 1)).collect();
        let mut found = Vec::new();
        check_all(&licences, &mut found);
        assert_eq!(found.len(), 1);
    }
}
