//! Arrays by what is asked of them, and what their members that are not created count as.

use muster_types::{ArrayId, JobId, JobSpec, LogTime};

use super::loads::{QueueLoad, UserLoad};
use super::pending_reasons::PendingReason;
use super::{Indexes, JobIndexKeys, toggle};
use crate::rows::{ArrayRow, ArrayTemplate, rows_of_array};

/// Where an array stands in the indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrayIndexKeys {
    load: QueueLoad,
    /// Rows of the array and of how its members end; none when there is no array.
    rows: u64,
    /// What holds back the members that are not created.
    reason: Option<PendingReason>,
    is_open: bool,
    /// Members that are not created and wait for nothing but capacity and their turn: a throttle keeps back all that are not jobs.
    eligible: u64,
    /// Not released yet, and the time that it waits for in addition to other jobs.
    held: Option<Option<LogTime>>,
    /// When it has to be over; none once no member is left to be created.
    deadline: Option<LogTime>,
    finished: Option<LogTime>,
}

impl ArrayIndexKeys {
    pub(crate) fn of(row: &ArrayRow) -> ArrayIndexKeys {
        let (uncreated, spec) = (u64::from(row.uncreated), &row.template.spec);
        let waits = uncreated > 0;
        let rows = rows_of_array(row.size());
        // An array that is waited for member by member has as many members.
        let by_member = spec.dependencies.iter().filter(|on| on.is_of_members()).count() as u64;
        ArrayIndexKeys {
            load: QueueLoad {
                pending_jobs: uncreated,
                held_jobs: if row.is_open() { 0 } else { uncreated },
                pending_milli: uncreated * spec.device_milli(),
                uncreated_jobs: uncreated,
                array_rows: if row.finished_at.is_none() { rows } else { 0 },
                awaited_rows: if waits { rows * by_member } else { 0 },
                ..QueueLoad::default()
            },
            rows,
            reason: waits.then(|| PendingReason::of_array(row)),
            is_open: row.is_open(),
            eligible: if row.is_open() && row.template.array.throttle.is_none() { uncreated } else { 0 },
            held: (waits && !row.released).then_some(spec.not_before),
            deadline: spec.deadline.filter(|_| waits),
            finished: row.finished_at,
        }
    }
}

impl Indexes {
    /// Moves an array from where it stood to where it stands.
    pub(crate) fn shift_array(
        &mut self,
        id: ArrayId,
        template: &ArrayTemplate,
        before: &ArrayIndexKeys,
        after: &ArrayIndexKeys,
    ) {
        self.uncreated += after.load.uncreated_jobs;
        self.uncreated -= before.load.uncreated_jobs;
        self.array_rows += after.rows;
        self.array_rows -= before.rows;
        let held_back = |keys: &ArrayIndexKeys| keys.reason.map(|reason| (reason, keys.load.uncreated_jobs));
        self.pending_by_reason.shift(held_back(before), held_back(after));
        let ArrayTemplate { spec, metadata, .. } = template;
        self.change_load(&spec.tenant, before.load, after.load);
        let of_user = |keys: &ArrayIndexKeys| UserLoad::of_uncreated(keys.load.uncreated_jobs);
        self.change_user(&spec.tenant, metadata.as_deref(), of_user(before), of_user(after));
        if before.eligible != after.eligible {
            self.shift_eligible(spec, before.eligible, after.eligible);
        }
        if before.is_open != after.is_open {
            toggle(&mut self.open_arrays, id, after.is_open);
        }
        if before.held != after.held {
            let others = || spec.dependencies.iter().filter(|on| !on.is_of_members());
            if let Some(time) = before.held {
                time.inspect(|time| _ = self.arrays_not_before.remove(&(*time, id)));
                others().for_each(|on| _ = self.array_dependents.remove(&(on.job, id)));
            }
            if let Some(time) = after.held {
                time.inspect(|time| self.arrays_not_before.insert((*time, id)));
                others().for_each(|on| self.array_dependents.insert((on.job, id)));
            }
        }
        let waits = |keys: &ArrayIndexKeys| keys.load.uncreated_jobs > 0;
        if waits(before) != waits(after) {
            for on in spec.dependencies.iter().filter(|on| on.is_of_members()) {
                let other = ArrayId(on.job.0);
                toggle(&mut self.member_dependents, (other, id), waits(after));
                self.shift_droppable(other);
            }
        }
        if before.deadline != after.deadline {
            before.deadline.inspect(|at| _ = self.array_deadlines.remove(&(*at, id)));
            after.deadline.inspect(|at| self.array_deadlines.insert((*at, id)));
        }
        if before.finished != after.finished {
            match after.finished {
                Some(at) => self.finished_times.insert(id, (at, after.rows)),
                None => self.forget_finished(id),
            }
            self.shift_droppable(id);
        }
    }

    /// An array is over, or is needed by others, or is neither: it can be dropped once it is over and no array has members to
    /// be created that ask how its members ended.
    fn shift_droppable(&mut self, id: ArrayId) {
        let Some((at, rows)) = self.finished_times.get(&id).copied() else { return };
        let dependents = (id, ArrayId(0))..=(id, ArrayId(u64::MAX));
        let is_droppable = self.member_dependents.range(dependents).next().is_none();
        if self.finished_arrays.contains(&(at, id)) == is_droppable {
            return;
        }
        toggle(&mut self.finished_arrays, (at, id), is_droppable);
        if is_droppable {
            self.droppable_rows += rows;
        } else {
            self.droppable_rows -= rows;
        }
    }

    /// An array that was over is not there any more.
    fn forget_finished(&mut self, id: ArrayId) {
        let Some((at, rows)) = self.finished_times.take(&id) else { return };
        if self.finished_arrays.remove(&(at, id)) {
            self.droppable_rows -= rows;
        }
    }

    /// A job of an array stands elsewhere; arrays without a waiting job are not there.
    pub(super) fn shift_member(
        &mut self,
        id: JobId,
        spec: &JobSpec,
        before: &JobIndexKeys,
        after: &JobIndexKeys,
    ) {
        let Some(member) = spec.array else { return };
        let counted = |keys: &JobIndexKeys| (keys.pending, keys.on_hold, keys.line.is_some());
        let (was, is) = (counted(before), counted(after));
        if was == is {
            return;
        }
        let array = ArrayId::of_member(id, member.ordinal);
        let mut load = self.array_loads.get(&array).copied().unwrap_or_default();
        load.pending = load.pending + u32::from(is.0) - u32::from(was.0);
        load.held = load.held + u32::from(is.1) - u32::from(was.1);
        load.in_line = load.in_line + u32::from(is.2) - u32::from(was.2);
        if load.pending == 0 {
            self.array_loads.remove(&array);
        } else {
            self.array_loads.insert(array, load);
        }
    }
}
