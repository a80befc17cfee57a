//! Members of arrays that wait for the same members of others, and which of them wait for these no longer.

use muster_types::ArrayId;

use crate::array::DependencyState;
use crate::rows::{EndRun, MemberEnds};
use crate::state::State;

impl State {
    /// Arrays with members that are not created and wait for those of this array.
    pub fn member_dependents_of(&self, array: ArrayId) -> impl Iterator<Item = ArrayId> {
        let range = (array, ArrayId(0))..=(array, ArrayId(u64::MAX));
        self.indexes.member_dependents.range(range).map(|(_, other)| *other)
    }

    /// Arrays with members that are not created and wait for those of another array, once for each of the others.
    pub fn arrays_waiting_by_member(&self) -> impl Iterator<Item = ArrayId> {
        self.indexes.member_dependents.iter().map(|(_, array)| *array)
    }

    /// How members of an array ended from an ordinal on, ordinals ascending. The first run may begin before it.
    pub fn member_ends_from(&self, array: ArrayId, ordinal: u32) -> impl Iterator<Item = EndRun> {
        let rows = self.array_ends.range((array, MemberEnds::row_of(ordinal))..=(array, u32::MAX));
        let runs = rows.flat_map(|(_, ends)| ends.runs.iter().copied());
        runs.filter(move |run| run.last >= ordinal)
    }

    /// Whether an array has a member with this ordinal that is not created.
    #[must_use]
    pub fn is_uncreated(&self, array: ArrayId, ordinal: u32) -> bool {
        let is_member = self.arrays.get(&array).is_some_and(|row| ordinal < row.size());
        is_member && !self.jobs.contains(&array.member(ordinal)) && self.member_end(array, ordinal).is_none()
    }

    /// Whether a member is not created and waits for no member of another array: each has ended, as it asks or otherwise.
    #[must_use]
    pub fn is_ready_member(&self, array: ArrayId, ordinal: u32) -> bool {
        let Some(row) = self.arrays.get(&array).filter(|row| row.uncreated > 0) else { return false };
        let mut others = row.template.spec.dependencies.iter().filter(|on| on.is_of_members());
        self.is_uncreated(array, ordinal)
            && others.all(|on| self.dependency(on, Some(ordinal)) != DependencyState::Waits)
    }
}
