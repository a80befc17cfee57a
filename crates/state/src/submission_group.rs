//! Submission groups: jobs of one kind that a tenant submits together. They have one position in the pending queue, and
//! the first of them that end show how long the others will take.
//!
//! A group has the id of its first job. A job that no other has joined is a group by itself and has no row here: its
//! turn is in its own row. A job that was changed while it was in a group, so that it has not in common any more what that
//! has, is in a separate group from then on, which has an id that no job has.

use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::Estimate;
use muster_types::{ArrayId, JobId, JobSpec, LogTime, QueueKey};

use crate::guard_error::GuardError;
use crate::index::JobIndexKeys;
use crate::rows::{BURST_GAP_MS, BurstKey, BurstRow, BurstTurn, JobRow, Phase, add, holds_devices};
use crate::state::State;

/// Groups with one key that a new job is compared with, the youngest first.
const GROUPS_LOOKED_AT_MAX: usize = 16;

impl State {
    /// The submission group of a job; the job's own id when it is alone.
    #[must_use]
    pub fn burst_of(&self, job: JobId) -> Option<JobId> {
        self.jobs.get(&job).map(|row| row.submission_group(job))
    }

    /// The row of a submission group of two or more jobs.
    #[must_use]
    pub fn submission_group(&self, group: JobId) -> Option<&BurstRow> {
        self.submission_groups.get(&group)
    }

    /// The submission group that a job with this key would join, which is the job's. Those that policy may stop are in one, those
    /// that it must not stop in another, and so are those that have to be with different jobs: they wait for different things.
    #[must_use]
    pub fn open_burst(&self, key: BurstKey, spec: &JobSpec, now: LogTime) -> Option<JobId> {
        let range = (key, JobId(0))..=(key, JobId(u64::MAX));
        let spec_of = |group: &JobId| {
            let of_array = || self.arrays.get(&ArrayId(group.0)).map(|array| &array.template.spec);
            self.spec(*group).or_else(of_array)
        };
        // Of a group whose first job is gone, and of one that a changed job left its group for, it is not known.
        let is_alike = |group: &JobId| {
            let first = spec_of(group);
            first.is_some_and(|of| of.preemptible == spec.preemptible && of.affinity == spec.affinity)
        };
        let is_open = |group: &JobId| {
            let last = match self.submission_groups.get(group) {
                Some(row) => Some(row.last_submitted),
                None => self.jobs.get(group).map(|row| row.submitted_at),
            };
            last.is_some_and(|last| now.since_ms(last) <= BURST_GAP_MS)
        };
        // Jobs that take turns in what they have to be with are of groups that are open at the same time.
        let groups = self.indexes.bursts_by_key.range(range).rev().take(GROUPS_LOOKED_AT_MAX);
        groups.map(|(_, group)| *group).find(|group| is_alike(group) && is_open(group))
    }

    /// The turn of a submission group, or of a job that is alone.
    #[must_use]
    pub fn turn_of(&self, group: JobId) -> Option<QueueKey> {
        match self.submission_groups.get(&group) {
            Some(row) => Some(row.turn),
            None => self.alone(group).map(|row| row.estimate.turn),
        }
    }

    /// The job that a submission group without a row is. A job that was changed may have left the group that has its id.
    fn alone(&self, group: JobId) -> Option<&JobRow> {
        self.jobs.get(&group).filter(|row| row.submission_group(group) == group)
    }

    /// The first pending job of a submission group.
    #[must_use]
    pub fn first_in_line(&self, group: JobId) -> Option<JobId> {
        if self.submission_groups.contains(&group) {
            return self.indexes.first_waiting(group);
        }
        self.alone(group).filter(|row| row.is_in_line()).map(|_| group)
    }

    /// Jobs of a submission group that hold devices, by id.
    pub fn running_in(&self, group: JobId) -> impl Iterator<Item = JobId> {
        let range = (group, JobId(0))..=(group, JobId(u64::MAX));
        let of_row = self.indexes.running.range(range).map(|(_, job)| *job);
        let alone = !self.submission_groups.contains(&group) && self.alone(group).is_some_and(holds_devices);
        of_row.chain(alone.then_some(group))
    }

    /// Submission groups of two or more jobs some of which hold devices.
    pub fn bursts_running(&self) -> impl Iterator<Item = JobId> {
        let mut last = None;
        self.indexes.running.iter().filter_map(move |(group, _)| {
            let is_new = last != Some(*group);
            last = Some(*group);
            is_new.then_some(*group)
        })
    }

    /// Every submission group that has a turn, from an id on: those of two or more jobs, and pending jobs that are
    /// alone. Walks over the jobs that are kept.
    pub fn bursts_from(&self, from: JobId) -> impl Iterator<Item = JobId> {
        let mut rows = self.submission_groups.range(from..).map(|(group, _)| *group).peekable();
        let alone = self.jobs.range(from..).filter(|(id, row)| {
            row.phase == Phase::Pending
                && row.submission_group(**id) == **id
                && !self.submission_groups.contains(*id)
        });
        let mut alone = alone.map(|(id, _)| *id).peekable();
        core::iter::from_fn(move || match (rows.peek(), alone.peek()) {
            (Some(row), Some(single)) if row < single => rows.next(),
            (Some(_), None) => rows.next(),
            _ => alone.next(),
        })
    }

    /// Whether submitted jobs may join what their estimates say.
    pub(crate) fn check_bursts(
        &self,
        specs: &[Arc<JobSpec>],
        estimates: &[Estimate],
    ) -> Result<(), GuardError> {
        let mut seen: Option<(JobId, BurstKey)> = None;
        for (ordinal, (spec, estimate)) in specs.iter().zip(estimates).enumerate() {
            let Some(group) = estimate.burst else { continue };
            let key = BurstKey::of(spec);
            // The members of a sweep stand side by side.
            if seen != Some((group, key)) {
                self.check_burst(key, group, (&specs[..ordinal], &estimates[..ordinal]))?;
                seen = Some((group, key));
            }
        }
        Ok(())
    }

    /// Whether a submitted job may join a submission group. The jobs before it in the same record are
    /// `earlier`, with the ids that [`State::job_id`] gives them.
    fn check_burst(
        &self,
        key: BurstKey,
        group: JobId,
        earlier: (&[Arc<JobSpec>], &[Estimate]),
    ) -> Result<(), GuardError> {
        let alike = |other: &JobSpec| BurstKey::of(other) == key;
        let joins = if self.submission_groups.contains(&group) || self.jobs.contains(&group) {
            return self.check_known_burst(key, group);
        } else {
            let first = self.job_id(self.meta.log_index.next(), 0);
            let ordinal = group.0.checked_sub(first.0).and_then(|n| usize::try_from(n).ok());
            let first = ordinal.and_then(|n| Some((earlier.0.get(n)?, earlier.1.get(n)?)));
            first.is_some_and(|(first, estimate)| estimate.burst.is_none() && alike(first))
        };
        if joins { Ok(()) } else { Err(GuardError::BurstNotCurrent) }
    }

    /// The same of a submission group that is there.
    pub(crate) fn check_known_burst(&self, key: BurstKey, group: JobId) -> Result<(), GuardError> {
        let joins = if let Some(row) = self.submission_groups.get(&group) {
            row.key == key
        } else {
            let stands_alone = |row: &JobRow| {
                row.submission_group(group) == group && !matches!(row.phase, Phase::Finished(_))
            };
            self.jobs.get(&group).is_some_and(stands_alone)
                && self.specs.get_with_facts(&group).is_some_and(|(_, first)| first.group_key == key)
        };
        if joins { Ok(()) } else { Err(GuardError::BurstNotCurrent) }
    }

    /// Where a job stands in the order, for the indexes.
    pub(crate) fn burst_turn(&self, id: JobId, row: &JobRow) -> BurstTurn {
        let group = row.submission_group(id);
        self.submission_groups.get(&group).map(|of_group| (group, of_group.turn))
    }

    /// Jobs have been submitted into a group: the group has a row from now on, and this turn.
    pub(crate) fn join_burst(&mut self, group: JobId, turn: QueueKey, count: u32) {
        let now = self.meta.log_time;
        let known = self.submission_groups.get(&group).map(|row| row.turn);
        if let Some(before) = known {
            self.move_burst(group, before, turn);
            self.submission_groups.change(&group, |row, ()| {
                row.members += count;
                row.last_submitted = now;
                row.turn = turn;
            });
            return;
        }
        let spec = self.described(group).expect("the guard has seen the first job of the group");
        let first = self.jobs.get(&group).expect("the guard has seen the first job of the group");
        let before = first.estimate.turn;
        let wait = self.retry_wait(group);
        // From its own position in the pending queue to that of the group.
        let alone = JobIndexKeys::of(first, &spec, None, wait);
        let in_group = JobIndexKeys::of(first, &spec, Some((group, before)), wait);
        self.indexes.shift(group, &spec, &alone, &in_group);
        self.move_burst(group, before, turn);
        let (key, members) = (spec.facts.group_key, 1 + count);
        let row = BurstRow { key, turn, members, last_submitted: now, ended: Vec::new() };
        self.submission_groups.insert(group, row);
    }

    /// Gives a submission group another turn.
    pub(crate) fn set_turn(&mut self, group: JobId, turn: QueueKey) {
        match self.submission_groups.get(&group).map(|row| row.turn) {
            Some(before) => {
                self.move_burst(group, before, turn);
                self.submission_groups.change(&group, |row, ()| row.turn = turn);
            }
            None => self.change_job(group, |row| row.estimate.turn = turn),
        }
    }

    fn move_burst(&mut self, group: JobId, before: QueueKey, after: QueueKey) {
        if before == after {
            return;
        }
        let Some(first) = self.indexes.first_waiting(group) else { return };
        let spec = self.described(first).expect("a waiting job has a spec");
        self.indexes.change_turn(first, &spec, before, after);
        self.indexes.change_user_turns(group, &spec, before, after);
    }

    /// Members of an array have ended that were not created. The group ends with its last member.
    pub(crate) fn leave_burst_uncreated(&mut self, group: JobId, count: u32) {
        let mut row =
            self.submission_groups.get(&group).cloned().expect("the submission group of an array has a row");
        row.members -= count;
        if row.members > 0 {
            self.submission_groups.insert(group, row);
            return;
        }
        self.submission_groups.remove(&group);
        let was_there = self.indexes.bursts_by_key.remove(&(row.key, group));
        assert!(was_there, "a submission group is indexed until its end");
    }

    /// A job is over, and its submission group records the run time. The group ends with its last member.
    pub(crate) fn leave_burst(&mut self, job: JobId, bucket: Option<u8>) {
        let group = self.burst_of(job).expect("a job that ends has a row");
        let left = self.submission_groups.change(&group, |row, ()| {
            if let Some(bucket) = bucket {
                add(&mut row.ended, bucket, 1);
            }
            row.members -= 1;
            (row.key, row.members)
        });
        let key = match left {
            Some((_, members)) if members > 0 => return,
            Some((key, _)) => {
                self.submission_groups.remove(&group);
                key
            }
            None => self.specs.get_with_facts(&job).expect("a job has a spec").1.group_key,
        };
        assert!(
            self.indexes.bursts_by_key.remove(&(key, group)),
            "a submission group is indexed until its end"
        );
    }
}
