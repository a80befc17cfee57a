//! What holds of arrays, and is checked after a restore and by tests.

use alloc::format;
use muster_types::{ArrayId, JobId, limits};

use crate::rows::{ArrayRow, ArrayTemplate, MemberEnd, Phase};
use crate::state::State;
use crate::verify::BrokenInvariant;

impl State {
    /// What makes a rebuild of the indexes possible.
    pub(crate) fn check_array_rows(&self) -> Result<(), alloc::string::String> {
        for (id, row) in self.arrays.iter() {
            let ArrayTemplate { spec, array, .. } = &*row.template;
            if !array.violations().is_empty() || spec.array.is_some() {
                return Err(format!("{id} breaks a rule of arrays"));
            }
            let known = [row.uncreated, row.succeeded, row.failed, row.cancelled];
            let counted = known.into_iter().map(u64::from).sum::<u64>();
            if row.cancelled_by.len() > limits::ARRAY_CANCELLERS_MAX {
                return Err(format!("{id} was cancelled by too many"));
            }
            if row.cancellers_left_out > 0 && row.cancelled_by.len() < limits::ARRAY_CANCELLERS_MAX {
                return Err(format!("{id} leaves out some who cancelled it and has places for them"));
            }
            if counted > u64::from(row.size()) || row.next > row.size() {
                return Err(format!("{id} counts {counted} members of {}", row.size()));
            }
        }
        Ok(())
    }

    /// An array counts its members right, and every member of one is known to it.
    pub(crate) fn verify_arrays(&self) -> Result<(), BrokenInvariant> {
        let broken = |text| Err(BrokenInvariant(text));
        self.check_array_rows().map_err(BrokenInvariant)?;
        for ((array, number), ends) in self.array_ends.iter() {
            let is_of_array = |row: &ArrayRow| ends.runs.last().is_some_and(|run| run.last < row.size());
            if !ends.is_valid(*number) || !self.arrays.get(array).is_some_and(is_of_array) {
                return broken(format!("row {number} of the ends of {array} is not valid"));
            }
        }
        let mut members = 0;
        let mut end = 0;
        for (id, row) in self.arrays.iter() {
            if id.0 < end {
                return broken(format!("{id} has ids of the array before it"));
            }
            end = id.0 + u64::from(row.size());
            members += self.verify_array(*id, row)?;
        }
        let of_arrays = self.specs.iter().filter(|(_, spec)| spec.array.is_some()).count();
        if members != of_arrays {
            return broken(format!("{of_arrays} jobs are members of arrays, and {members} are known to one"));
        }
        Ok(())
    }

    /// How many members of the array are jobs.
    fn verify_array(&self, id: ArrayId, row: &ArrayRow) -> Result<usize, BrokenInvariant> {
        let broken = |text| Err(BrokenInvariant(text));
        let mut counts = ArrayRow { succeeded: 0, failed: 0, cancelled: 0, ..row.clone() };
        for run in self.member_ends(id) {
            counts.count(run.how, run.last - run.first + 1);
        }
        if counts != *row {
            return broken(format!("{id} does not count its ends right"));
        }
        let (mut jobs, mut unfinished) = (0, 0);
        for (job, of_job, spec) in self.jobs_with_specs(JobId(id.0)..=JobId(id.member(row.size()).0 - 1)) {
            let place = spec.array.map(|member| (member.ordinal, member.size, member.index));
            let ordinal = (job.0 - id.0) as u32;
            if place != row.template.array.index_of(ordinal).map(|index| (ordinal, row.size(), index)) {
                return broken(format!("{job} is not the member of {id} that its id says"));
            }
            let end = match &of_job.phase {
                Phase::Finished(outcome) => Some(MemberEnd::of(outcome)),
                _ => None,
            };
            if self.member_end(id, ordinal) != end {
                return broken(format!("{id} does not know how {job} ended"));
            }
            jobs += 1;
            unfinished += u32::from(end.is_none());
        }
        let uncreated: u32 = self.uncreated(id).iter().map(|(first, last)| last - first + 1).sum();
        let is_over = row.ended() == row.size();
        if uncreated != row.uncreated
            || unfinished != row.unfinished()
            || is_over != row.finished_at.is_some()
        {
            return broken(format!("{id} counts {} members as not created, has {uncreated}", row.uncreated));
        }
        if row.uncreated == 0 && row.hold.is_some() {
            return broken(format!("{id} is held, and nothing of it is left to be created"));
        }
        Ok(jobs)
    }
}
