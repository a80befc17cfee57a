//! What people ask of jobs that exist: cancel, hold, release, requeue, suspend and modify.
//!
//! A held job is out of the pending queue and keeps its position in it: its turn does not change. What else it waits for
//! goes on being counted. Its age decides about reservations: after a hold by its tenant the age begins again with the
//! release, because a job that may not start has not waited for capacity; an operator's hold takes
//! nothing from it.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Decision, Estimate, RequestKey, StopCause};
use muster_types::{FieldChange, JobId, JobMetadata, JobSpec, LogTime, QueueKey, Requester, limits};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::index::{Described, JobIndexKeys};
use crate::rows::{BurstRow, ControlRow, HoldRow, JobRow, ModificationRow, Phase, RequestAnswer};
use crate::state::State;
use crate::verify::BrokenInvariant;

type Check = Result<(), GuardError>;

/// Whether a job waits, or does once its workers have stopped because somebody asked for that.
#[must_use]
pub fn will_wait(row: &JobRow) -> bool {
    matches!(row.phase, Phase::Pending | Phase::Stopping(StopCause::Requested { .. }))
}

impl State {
    /// What people have asked of a job; `None` when nothing was.
    #[must_use]
    pub fn control(&self, job: JobId) -> Option<&ControlRow> {
        self.controls.get(&job)
    }

    /// Who holds a job; `None` when nobody does.
    #[must_use]
    pub fn hold(&self, job: JobId) -> Option<&HoldRow> {
        self.controls.get(&job)?.hold.as_ref()
    }

    fn check_controlled(&self, request: RequestKey, by: &Requester, jobs: &[JobId]) -> Check {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid() && jobs.len() <= limits::CONTROLLED_JOBS_MAX, GuardError::Limit)?;
        require(jobs.is_sorted_by(|a, b| a < b), GuardError::Limit)
    }

    fn check_each(&self, jobs: &[JobId], check: impl Fn(JobId, &JobRow) -> Check) -> Check {
        jobs.iter().try_for_each(|job| check(*job, self.jobs.get(job).ok_or(GuardError::JobUnknown)?))
    }

    /// The same of those that are jobs; members of arrays that are not created pass.
    fn check_each_created(&self, jobs: &[JobId], check: impl Fn(JobId, &JobRow) -> Check) -> Check {
        jobs.iter().try_for_each(|job| match self.jobs.get(job) {
            Some(row) => check(*job, row),
            None => require(self.waiting_member(*job).is_some(), GuardError::JobUnknown),
        })
    }

    pub(crate) fn check_cancelled(&self, request: RequestKey, by: &Requester, jobs: &[JobId]) -> Check {
        self.check_controlled(request, by, jobs)?;
        self.check_each_created(jobs, |_, row| {
            require(!matches!(row.phase, Phase::Finished(_)), GuardError::JobPhase)
        })
    }

    /// Jobs that wait, or do once their workers have stopped, are held, none of them one that capacity is held for; and what an
    /// operator holds only an operator releases.
    pub(crate) fn check_held(
        &self,
        request: RequestKey,
        by: &Requester,
        jobs: &[JobId],
        held: bool,
    ) -> Check {
        self.check_controlled(request, by, jobs)?;
        if !held {
            return self.check_each(jobs, |job, _| {
                let hold = self.hold(job).ok_or(GuardError::NothingToDo)?;
                require(by.is_operator || !hold.by.is_operator, GuardError::HeldByOperator)
            });
        }
        let is_weaker =
            |hold: Option<&HoldRow>| hold.is_none_or(|hold| by.is_operator && !hold.by.is_operator);
        for member in jobs.iter().filter_map(|job| self.waiting_member(*job)) {
            let of_array = self.array(member.array).and_then(|row| row.hold.as_ref());
            require(is_weaker(of_array), GuardError::NothingToDo)?;
        }
        self.check_each_created(jobs, |job, row| {
            let may = will_wait(row) && !row.cancel_requested && row.promise.is_none();
            require(may, GuardError::JobPhase)?;
            require(is_weaker(self.hold(job)), GuardError::NothingToDo)
        })
    }

    pub(crate) fn check_requeued(&self, request: RequestKey, by: &Requester, jobs: &[JobId]) -> Check {
        self.check_controlled(request, by, jobs)?;
        self.check_each(jobs, |_, row| {
            let runs = matches!(row.phase, Phase::Starting | Phase::Running);
            require(runs && !row.cancel_requested, GuardError::JobPhase)
        })
    }

    /// The job is valid with the changes; what it is bound by once it has been placed is not changed.
    pub(crate) fn check_modified(
        &self,
        request: RequestKey,
        by: &Requester,
        job: JobId,
        changes: &[FieldChange],
    ) -> Check {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid(), GuardError::Limit)?;
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let waits = row.phase == Phase::Pending;
        let runs = matches!(row.phase, Phase::Starting | Phase::Running | Phase::Stopping(_));
        let may_change = |change: &FieldChange| waits || (runs && change.is_for_running());
        require(!row.cancel_requested && changes.iter().all(may_change), GuardError::JobPhase)?;
        require(!changes.is_empty(), GuardError::NothingToDo)?;
        for (place, change) in changes.iter().enumerate() {
            let is_twice = changes.iter().skip(place + 1).any(|other| other.field() == change.field());
            require(!is_twice, GuardError::Limit)?;
        }
        let (spec, metadata) = self.modified(job, changes).ok_or(GuardError::Limit)?;
        require(metadata.violations().is_empty(), GuardError::Limit)?;
        let before = self.specs.get(&job).ok_or(GuardError::JobUnknown)?;
        // A job that capacity is held for asks for what that was held for.
        let is_claimed = waits && row.promise.is_some();
        require(!is_claimed || spec == **before, GuardError::JobPhase)?;
        // Who is moved to the front later goes before those that were moved earlier: the record says which one it is.
        let own = Some(self.meta.log_index.next());
        let is_other = |change: &FieldChange| matches!(change, FieldChange::Front(front) if *front != own);
        require(!changes.iter().any(is_other), GuardError::Limit)?;
        let is_moved = spec.tenant != before.tenant;
        if is_moved {
            // The members of an array are of one tenant.
            require(spec.array.is_none(), GuardError::JobPhase)?;
            require(self.exceeded_limit([(&spec, 1)]).is_none(), GuardError::TenantLimit)?;
        }
        // What stays as it is needs no right: the policy may have changed since the job was submitted.
        if is_moved || spec.tier != before.tier || spec.nice < before.nice {
            require(self.missing_right([&spec]).is_none(), GuardError::RightMissing)?;
        }
        let contract = self.contract(job);
        let spares = contract.map_or(0, |contract| contract.spares);
        require(spec.size.is_none() || spares == 0, GuardError::Limit)?;
        let carried = (spares, self.creator(job));
        require(self.raised_above_job_limit(before, &spec, carried).is_none(), GuardError::TenantLimit)?;
        require(contract.is_none_or(|contract| contract.violations(&spec).is_empty()), GuardError::Limit)
    }

    /// A job as it would be with some changes; `None` when there is no such job, or it would break a rule.
    #[must_use]
    pub fn modified(&self, job: JobId, changes: &[FieldChange]) -> Option<(JobSpec, JobMetadata)> {
        let mut draft = JobSpec::clone(self.specs.get(&job)?).into_draft();
        let mut metadata = self.metadata(job).map(|carried| JobMetadata::clone(carried)).unwrap_or_default();
        for change in changes {
            if change.violation(&draft).is_some() {
                return None;
            }
            change.change_draft(&mut draft);
            change.change_metadata(&mut metadata);
        }
        Some((draft.check().ok()?, metadata))
    }

    fn remember_control(&mut self, request: RequestKey, jobs: &[JobId]) {
        self.remember(
            request,
            RequestAnswer::Controlled { jobs: jobs.len() as u32, last: jobs.last().copied() },
        );
    }

    fn change_control(&mut self, job: JobId, change: impl FnOnce(&mut ControlRow)) {
        let mut row = self.controls.get(&job).cloned().unwrap_or_default();
        change(&mut row);
        if row.is_blank() {
            self.controls.remove(&job);
        } else {
            self.controls.insert(job, row);
        }
    }

    pub(crate) fn fold_cancelled(
        &mut self,
        request: RequestKey,
        by: &Requester,
        jobs: &[JobId],
    ) -> Vec<Effect> {
        self.remember_control(request, jobs);
        for job in jobs {
            if let Some(member) = self.waiting_member(*job) {
                self.cancel_waiting(member, by);
                continue;
            }
            if !by.is_unknown() {
                self.change_control(*job, |row| _ = row.cancelled_by.get_or_insert_with(|| by.kept()));
            }
            self.change_job(*job, |row| row.cancel_requested = true);
        }
        jobs.iter().map(|job| Effect::JobChanged(*job)).collect()
    }

    pub(crate) fn fold_held(
        &mut self,
        request: RequestKey,
        by: &Requester,
        jobs: &[JobId],
        held: bool,
    ) -> Vec<Effect> {
        self.remember_control(request, jobs);
        let now = self.meta.log_time;
        for job in jobs {
            if held {
                if let Some(member) = self.waiting_member(*job) {
                    self.create_out_of_turn(member);
                }
                self.set_hold(*job, by, false);
                continue;
            }
            let hold = self.hold(*job).cloned().expect("the guard has seen the hold");
            let is_held = hold.beneath.is_some();
            self.change_control(*job, |row| row.hold = hold.beneath.map(|beneath| *beneath));
            // Before the row changes, so that the indexes see the new age.
            let waits = self.jobs.get(job).is_some_and(|row| row.phase == Phase::Pending);
            if !hold.by.is_operator && waits {
                self.change_times(*job, |times| times.waits_since = Some(now));
            }
            self.change_job(*job, |row| row.held = is_held);
        }
        jobs.iter().map(|job| Effect::JobChanged(*job)).collect()
    }

    fn set_hold(&mut self, job: JobId, by: &Requester, suspended: bool) {
        let now = self.meta.log_time;
        self.change_control(job, |row| row.hold = Some(HoldRow::over(row.hold.take(), by, now, suspended)));
        self.change_job(job, |row| row.held = true);
    }

    /// A job is held as its array is.
    pub(crate) fn inherit_hold(&mut self, job: JobId, hold: HoldRow) {
        self.change_control(job, |row| row.hold = Some(hold));
        self.change_job(job, |row| row.held = true);
    }

    /// Nobody holds a job that is over.
    pub(crate) fn end_hold(&mut self, job: JobId) {
        if self.hold(job).is_some() {
            self.change_control(job, |row| row.hold = None);
        }
    }

    pub(crate) fn fold_requeued(
        &mut self,
        request: RequestKey,
        by: &Requester,
        jobs: &[JobId],
        suspended: bool,
    ) -> Vec<Effect> {
        self.remember_control(request, jobs);
        let mut effects = Vec::new();
        for job in jobs {
            self.change_control(*job, |row| {
                row.requeues += 1;
                row.requeued_by = Some(by.kept());
            });
            self.change_job(*job, |row| row.phase = Phase::Stopping(StopCause::Requested { suspended }));
            if suspended {
                self.set_hold(*job, by, true);
            }
            self.note_stopping(*job);
            effects.extend(self.gang_effects(*job));
        }
        effects
    }

    pub(crate) fn fold_modified(&mut self, decision: &Decision) -> Vec<Effect> {
        let Decision::JobModified { request, by, job, changes, estimate } = decision else {
            return Vec::new();
        };
        let (spec, metadata) = self.modified(*job, changes).expect("the guard has seen the changes");
        self.remember(*request, RequestAnswer::Done);
        let (at, index) = (self.meta.log_time, self.meta.log_index);
        self.change_control(*job, |row| row.modified = Some(ModificationRow { by: by.kept(), at, index }));
        if changes.iter().any(FieldChange::is_of_metadata) {
            if metadata.is_default() {
                self.metadata.remove(job);
            } else {
                self.metadata.insert(*job, Arc::new(metadata));
            }
        }
        if self.specs.get(job).is_some_and(|before| **before == spec) {
            self.change_job(*job, |_| {});
        } else {
            self.replace_spec(*job, spec, *estimate);
        }
        alloc::vec![Effect::JobChanged(*job)]
    }

    /// Since when a job waits once it asks for `after`. It has not waited for capacity while its earliest start lay ahead of it,
    /// and a tenant must not gain age by parking it there.
    #[must_use]
    pub fn waits_since_as(&self, job: JobId, after: &JobSpec, now: LogTime) -> Option<LogTime> {
        let since = self.waits_since(job)?;
        let before = self.specs.get(&job)?;
        let parked_until = before.not_before.filter(|_| before.not_before != after.not_before);
        Some(parked_until.map_or(since, |time| since.max(time.min(now))))
    }

    /// The job is another one from now on, to everybody who knows jobs by what they ask for: the indexes, and the submission
    /// group that it was in.
    pub(crate) fn replace_spec(&mut self, job: JobId, spec: JobSpec, estimate: Estimate) {
        let before = self.described(job).expect("the guard has seen the job");
        let row = self.jobs.get(&job).expect("the guard has seen the job");
        let keys = JobIndexKeys::of(row, &before, self.burst_turn(job, row), self.retry_wait(job));
        let waits_for_time = row.released && spec.not_before.is_some_and(|time| time > self.meta.log_time);
        let is_due = !row.released && before.not_before.is_some() && self.is_free_to_start(job, &spec);
        let waits_since = self.waits_since_as(job, &spec, self.meta.log_time);
        let is_later = waits_since > self.waits_since(job);
        self.indexes.shift(job, &before, &keys, &JobIndexKeys::default());
        self.specs.insert(job, Arc::new(spec));
        if is_later {
            self.change_times(job, |times| times.waits_since = waits_since);
        }
        let after = self.described(job).expect("it was put there just now");
        let group = self.regroup(job, &before, &after, estimate.turn);
        let now = self.meta.log_index;
        let changed = self.jobs.change(&job, |row, ()| {
            // A job in a group goes by the turn of that.
            row.estimate = Estimate { burst: group.or(row.estimate.burst), ..estimate };
            row.released = (row.released && !waits_for_time) || is_due;
            row.changed_at = now;
        });
        changed.expect("it was there just now");
        let row = self.jobs.get(&job).expect("it was there just now");
        let keys = JobIndexKeys::of(row, &after, self.burst_turn(job, row), self.retry_wait(job));
        self.indexes.shift(job, &after, &JobIndexKeys::default(), &keys);
    }

    /// Whether nothing but capacity is left for a job to wait for, at the time of this record.
    fn is_free_to_start(&self, job: JobId, spec: &JobSpec) -> bool {
        let now = self.meta.log_time;
        let is_past = |time: Option<LogTime>| time.is_none_or(|time| time <= now);
        is_past(spec.not_before) && is_past(self.retry_wait(job)) && spec.dependencies.is_empty()
    }

    /// The submission group that a job is in once it asks for something else: the same as before where it still has in
    /// common what the group has, else a separate one.
    fn regroup(
        &mut self,
        job: JobId,
        before: &Described,
        after: &Described,
        turn: QueueKey,
    ) -> Option<JobId> {
        let (old_key, key) = (before.facts.group_key, after.facts.group_key);
        if old_key == key {
            return None;
        }
        let row = self.jobs.get(&job).expect("the guard has seen the job");
        let (old, submitted_at) = (row.submission_group(job), row.submitted_at);
        let Some(mut group) = self.submission_groups.get(&old).cloned() else {
            self.indexes.bursts_by_key.remove(&(old_key, old));
            self.indexes.bursts_by_key.insert((key, old));
            return None;
        };
        group.members -= 1;
        if group.members == 0 {
            self.submission_groups.remove(&old);
            self.indexes.bursts_by_key.remove(&(old_key, old));
        } else {
            self.submission_groups.insert(old, group);
        }
        // The first member gave the group its id, so that no id of a job is free for the new one: that of this record is.
        let own = self.job_id(self.meta.log_index, 0);
        let group = BurstRow { key, turn, members: 1, last_submitted: submitted_at, ended: Vec::new() };
        self.submission_groups.insert(own, group);
        self.indexes.bursts_by_key.insert((key, own));
        Some(own)
    }

    /// A row says something of a job that is there, and the job knows whether it is held.
    pub(crate) fn verify_controls(&self) -> Result<(), BrokenInvariant> {
        for (job, row) in self.controls.iter() {
            if row.is_blank() || !self.jobs.contains(job) {
                return Err(BrokenInvariant(format!("{job} has a row of controls without a meaning")));
            }
        }
        for (job, row) in self.jobs.iter() {
            if row.held != self.hold(*job).is_some() {
                return Err(BrokenInvariant(format!("{job} does not know whether it is held")));
            }
            if row.held && (!will_wait(row) || row.promise.is_some()) {
                return Err(BrokenInvariant(format!("{job} is held, and is {:?}", row.phase)));
            }
        }
        Ok(())
    }
}
