//! Arrays by what is asked of them, and what their members that are not created count as.

use muster_types::{ArrayId, JobId, JobSpec, LogTime};

use super::loads::QueueLoad;
use super::{Indexes, JobIndexKeys, toggle};
use crate::rows::ArrayRow;

/// Where an array stands in the indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrayIndexKeys {
    load: QueueLoad,
    is_open: bool,
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
        ArrayIndexKeys {
            load: QueueLoad {
                pending_jobs: uncreated,
                held_jobs: if row.is_open() { 0 } else { uncreated },
                pending_milli: uncreated * spec.device_milli(),
                uncreated_jobs: uncreated,
                ..QueueLoad::default()
            },
            is_open: row.is_open(),
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
        spec: &JobSpec,
        before: &ArrayIndexKeys,
        after: &ArrayIndexKeys,
    ) {
        self.uncreated += after.load.uncreated_jobs;
        self.uncreated -= before.load.uncreated_jobs;
        self.change_load(&spec.tenant, before.load, after.load);
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
        if before.deadline != after.deadline {
            before.deadline.inspect(|at| _ = self.array_deadlines.remove(&(*at, id)));
            after.deadline.inspect(|at| self.array_deadlines.insert((*at, id)));
        }
        if before.finished != after.finished {
            before.finished.inspect(|at| _ = self.finished_arrays.remove(&(*at, id)));
            after.finished.inspect(|at| self.finished_arrays.insert((*at, id)));
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
        let was = (before.pending, before.on_hold);
        let is = (after.pending, after.on_hold);
        if was == is {
            return;
        }
        let array = ArrayId::of_member(id, member.ordinal);
        let mut load = self.array_loads.get(&array).copied().unwrap_or_default();
        load.pending = load.pending + u32::from(is.0) - u32::from(was.0);
        load.held = load.held + u32::from(is.1) - u32::from(was.1);
        if load.pending == 0 {
            self.array_loads.remove(&array);
        } else {
            self.array_loads.insert(array, load);
        }
    }
}
