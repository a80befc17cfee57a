//! Arrays: one row for many like jobs, of which a few at a time are jobs.
//!
//! An array is submitted with all its members' ids known and none of them a job. A record makes the next members jobs
//! when they are near their turn; from then on they are jobs like all others. How members ended is kept with the array, so
//! that it is known when their rows are gone.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Bound, Range};
use muster_journal::{Estimate, Outcome, RequestKey, SubmittedPart};
use muster_types::cycle::cycle_of;
use muster_types::job::ArrayMember;
use muster_types::token::user_of;
use muster_types::{
    ArrayId, ArraySpec, Control, Dependency, DependencyRule, JobContract, JobId, JobMetadata, JobSpec,
    LogTime, Name, Requester, limits,
};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::index::{ArrayIndexKeys, JobIndexKeys};
use crate::rows::{
    ArrayFacts, ArrayLoad, ArrayRow, ArrayTemplate, BurstKey, BurstRow, EndRun, HoldRow, JobRow, MemberEnd,
    MemberEnds, Phase, RequestAnswer, rows_of_array,
};
use crate::state::State;
use crate::table::Table;

type Check = Result<(), GuardError>;

/// Members that were created before their turn and are stepped over by one record.
const STEPPED_OVER_MAX: u32 = 4_096;

/// A member of an array that is not a job yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingMember {
    /// Its array.
    pub array: ArrayId,
    /// Its place among the members.
    pub ordinal: u32,
}

/// What a dependency has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyState {
    /// Nothing is left to wait for.
    Met,
    /// What is waited for is not over.
    Waits,
    /// What had to succeed has ended otherwise.
    Broken(MemberEnd),
}

/// What has become of a job as far as those are concerned that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// It is not over.
    Unfinished,
    /// It is over.
    Ended(MemberEnd),
    /// Nothing is known of it: it never was, or its history has been dropped.
    Gone,
}

impl State {
    /// An array.
    #[must_use]
    pub fn array(&self, id: ArrayId) -> Option<&ArrayRow> {
        self.arrays.get(&id)
    }

    /// All arrays, in order of submission.
    #[must_use]
    pub fn arrays(&self) -> &Table<ArrayId, ArrayRow, ArrayFacts> {
        &self.arrays
    }

    /// Rows of jobs, of arrays, and of how their members ended: what the bound on jobs counts. Those of members that have not
    /// ended count from the beginning: nobody is asked when a member ends.
    #[must_use]
    pub fn rows_held(&self) -> u64 {
        self.jobs.len() as u64 + self.indexes.array_rows
    }

    /// The rows that an array takes; none when there is no such array.
    #[must_use]
    pub fn array_rows(&self, array: ArrayId) -> u64 {
        self.arrays.get(&array).map_or(0, |row| rows_of_array(row.size()))
    }

    /// Those of them that cannot be dropped: of jobs and arrays that are not over, and of arrays that others need.
    #[must_use]
    pub fn rows_unfinished(&self) -> u64 {
        self.rows_held() - self.finished_count() as u64 - self.indexes.droppable_rows
    }

    /// The array that has a member with this id, and its ordinal, whether or not the member is a job.
    #[must_use]
    pub fn array_of(&self, job: JobId) -> Option<(ArrayId, u32)> {
        let (id, row) = self.arrays.range(..=ArrayId(job.0)).next_back()?;
        let ordinal = u32::try_from(job.0 - id.0).ok()?;
        (ordinal < row.size()).then_some((*id, ordinal))
    }

    /// A member that is not created.
    #[must_use]
    pub fn waiting_member(&self, job: JobId) -> Option<WaitingMember> {
        if self.jobs.contains(&job) {
            return None;
        }
        let (array, ordinal) = self.array_of(job)?;
        let waits = self.member_end(array, ordinal).is_none();
        waits.then_some(WaitingMember { array, ordinal })
    }

    /// How a member of an array ended; none while it has not.
    #[must_use]
    pub fn member_end(&self, array: ArrayId, ordinal: u32) -> Option<MemberEnd> {
        self.array_ends.get(&(array, MemberEnds::row_of(ordinal)))?.end_of(ordinal)
    }

    /// How the members of an array ended, ordinals ascending; those side by side that ended alike are one run.
    pub fn member_ends(&self, array: ArrayId) -> impl Iterator<Item = EndRun> {
        let rows = self.array_ends.range((array, 0)..=(array, u32::MAX));
        let mut runs = rows.flat_map(|(_, ends)| ends.runs.iter().copied()).peekable();
        core::iter::from_fn(move || {
            let mut run = runs.next()?;
            // A run ends with its row, and may go on in the next.
            while let Some(more) = runs.next_if(|more| more.how == run.how && more.first == run.last + 1) {
                run.last = more.last;
            }
            Some(run)
        })
    }

    /// The ids of an array's members; empty when there is no such array.
    #[must_use]
    pub fn members(&self, array: ArrayId) -> Range<JobId> {
        let size = self.arrays.get(&array).map_or(0, ArrayRow::size);
        JobId(array.0)..array.member(size)
    }

    /// Members of an array that are not created, as ranges of ordinals from the first to the last, ascending.
    #[must_use]
    pub fn uncreated(&self, array: ArrayId) -> Vec<(u32, u32)> {
        let Some(row) = self.arrays.get(&array).filter(|row| row.uncreated > 0) else { return Vec::new() };
        let (mut next, size) = (row.next, row.size());
        let created = self.jobs.range(array.member(next)..array.member(size));
        let mut created = created.map(|(id, _)| (id.0 - array.0) as u32).peekable();
        let mut ended = self.member_ends(array).skip_while(|run| run.last < row.next).peekable();
        let mut found = Vec::new();
        while next < size {
            // The nearest member that is a job or has ended.
            let job = created.peek().copied().unwrap_or(size);
            let run = ended.peek().map_or((size, size), |run| (run.first, run.last));
            let taken = if job < run.0 { (job, job) } else { run };
            if next < taken.0 {
                found.push((next, taken.0.min(size) - 1));
            }
            next = next.max(taken.1.saturating_add(1));
            while created.next_if(|ordinal| *ordinal < next).is_some() {}
            while ended.next_if(|run| run.last < next).is_some() {}
        }
        found
    }

    /// Members of an array that exist as jobs and wait.
    #[must_use]
    pub fn array_load(&self, array: ArrayId) -> ArrayLoad {
        self.indexes.array_loads.get(&array).copied().unwrap_or_default()
    }

    /// How many more members of an array a leader creates: by the window of those that may be offered capacity, by the bound on
    /// all that wait as jobs, and by the array's throttle. A member that somebody holds counts for none of them.
    #[must_use]
    pub fn array_room(&self, array: ArrayId) -> u32 {
        // Members that are in back-off, or that wait for what is promised to them, take nothing that the next ones could have.
        let window = limits::ARRAY_WINDOW.saturating_sub(self.array_load(array).in_line);
        window.min(self.array_room_at_most(array))
    }

    /// The same by the rules of the log, without the window.
    fn array_room_at_most(&self, array: ArrayId) -> u32 {
        let Some(row) = self.arrays.get(&array).filter(|row| row.is_open()) else { return 0 };
        let load = self.array_load(array);
        let window = limits::ARRAY_CREATED_MAX.saturating_sub(load.pending - load.held);
        let unfinished = row.unfinished() - load.held;
        let throttle = row.template.array.throttle.map_or(u32::MAX, |most| most.saturating_sub(unfinished));
        window.min(throttle).min(row.uncreated)
    }

    /// Arrays whose next members may be created as far as the arrays themselves are concerned.
    pub fn open_arrays(&self) -> impl Iterator<Item = ArrayId> {
        self.indexes.open_arrays.iter().copied()
    }

    /// Arrays that wait for a job.
    pub fn array_dependents(&self, job: JobId) -> impl Iterator<Item = ArrayId> {
        let range = (job, ArrayId(0))..=(job, ArrayId(u64::MAX));
        self.indexes.array_dependents.range(range).map(|(_, array)| *array)
    }

    /// Arrays that wait for one of these jobs.
    pub fn array_dependents_of(&self, jobs: Range<JobId>) -> impl Iterator<Item = ArrayId> {
        let range = (jobs.start, ArrayId(0))..(jobs.end, ArrayId(0));
        self.indexes.array_dependents.range(range).map(|(_, array)| *array)
    }

    /// Jobs that wait for one of these jobs.
    pub fn dependents_of(&self, jobs: Range<JobId>) -> impl Iterator<Item = JobId> {
        let range = (jobs.start, JobId(0))..(jobs.end, JobId(0));
        self.indexes.dependents.range(range).map(|(_, job)| *job)
    }

    /// Arrays that wait for others, once for each.
    pub fn arrays_waiting_for_others(&self) -> impl Iterator<Item = ArrayId> {
        self.indexes.array_dependents.iter().map(|(_, array)| *array)
    }

    /// Arrays that may not begin before a time, by that time.
    pub fn arrays_not_before(&self) -> impl Iterator<Item = (LogTime, ArrayId)> {
        self.indexes.arrays_not_before.iter().copied()
    }

    /// The same behind one of them.
    pub fn arrays_not_before_behind(
        &self,
        place: (LogTime, ArrayId),
    ) -> impl Iterator<Item = (LogTime, ArrayId)> {
        self.indexes.arrays_not_before.range((Bound::Excluded(place), Bound::Unbounded)).copied()
    }

    /// Arrays with members that are not created and have to be over by a time, by that time.
    pub fn array_deadlines(&self) -> impl Iterator<Item = (LogTime, ArrayId)> {
        self.indexes.array_deadlines.iter().copied()
    }

    /// Arrays of which every member has ended, and of which no array has members that ask how they did, by the time when the
    /// last one did.
    pub fn finished_arrays(&self) -> impl Iterator<Item = (LogTime, ArrayId)> {
        self.indexes.finished_arrays.iter().copied()
    }

    /// How many members of all arrays are not created.
    #[must_use]
    pub fn uncreated_count(&self) -> u64 {
        self.indexes.uncreated
    }

    /// A member as it would be submitted by itself; none when there is no such member.
    #[must_use]
    pub fn member_spec(&self, member: WaitingMember) -> Option<JobSpec> {
        let template = &self.arrays.get(&member.array)?.template;
        Some(template.spec.as_member(place_of(template, member.ordinal)?))
    }

    /// A member as it is shown that has no row among the jobs: its row and spec as they would be. One that has ended says how,
    /// and not when. None for a job that has a row, and where nothing is known.
    #[must_use]
    pub fn shown_member(&self, job: JobId) -> Option<(JobRow, JobSpec)> {
        if self.jobs.contains(&job) {
            return None;
        }
        let (array, ordinal) = self.array_of(job)?;
        let member = WaitingMember { array, ordinal };
        let row = self.arrays.get(&array)?;
        let spec = self.member_spec(member)?;
        let mut shown = JobRow { changed_at: row.changed_at, ..row.job_row(member, &spec) };
        shown.held = row.hold.is_some();
        if let Some(how) = self.member_end(array, ordinal) {
            // The text is about those that were not created when the rest failed.
            let detail = row.detail.as_deref().filter(|_| ordinal >= row.next);
            let detail = detail.unwrap_or("its history has been dropped");
            shown.held = false;
            shown.phase = Phase::Finished(match how {
                MemberEnd::Succeeded => Outcome::Succeeded,
                MemberEnd::Failed => Outcome::Failed { detail: detail.into() },
                MemberEnd::Cancelled => Outcome::Cancelled,
            });
        }
        Some((shown, spec))
    }

    /// Labels, annotations and creator of a job or of a member that has no row among the jobs.
    #[must_use]
    pub fn carried(&self, job: JobId) -> Option<&Arc<JobMetadata>> {
        if self.jobs.contains(&job) {
            return self.metadata.get(&job);
        }
        self.arrays.get(&self.array_of(job)?.0)?.template.metadata.as_ref()
    }

    /// The contract of such a job; none for the default one.
    #[must_use]
    pub fn agreed(&self, job: JobId) -> Option<&Arc<JobContract>> {
        if self.jobs.contains(&job) {
            return self.contracts.get(&job);
        }
        self.arrays.get(&self.array_of(job)?.0)?.template.contract.as_ref()
    }

    /// What has become of a job, whether or not it has a row.
    #[must_use]
    pub fn end_of(&self, job: JobId) -> JobEnd {
        match self.jobs.get(&job).map(|row| &row.phase) {
            Some(Phase::Finished(outcome)) => JobEnd::Ended(MemberEnd::of(outcome)),
            Some(_) => JobEnd::Unfinished,
            None => self.array_of(job).map_or(JobEnd::Gone, |(array, ordinal)| {
                self.member_end(array, ordinal).map_or(JobEnd::Unfinished, JobEnd::Ended)
            }),
        }
    }

    /// What has become of an array as a whole.
    #[must_use]
    pub fn end_of_array(&self, array: ArrayId) -> JobEnd {
        match self.arrays.get(&array).map(ArrayRow::end) {
            None => JobEnd::Gone,
            Some(None) => JobEnd::Unfinished,
            Some(Some(how)) => JobEnd::Ended(how),
        }
    }

    /// What a dependency has come to, of the member with an ordinal; without one, of a job that is in no array or of an
    /// array as a whole, which rules about members do not hold back. What is gone from the state was looked at before it
    /// went.
    #[must_use]
    pub fn dependency(&self, on: &Dependency, ordinal: Option<u32>) -> DependencyState {
        let array = ArrayId(on.job.0);
        let end = match (on.is_of_members(), on.is_of_array(), ordinal) {
            (true, _, None) => return DependencyState::Met,
            (true, _, Some(ordinal)) => self.end_of(array.member(ordinal)),
            (false, true, _) => self.end_of_array(array),
            (false, false, _) => self.end_of(on.job),
        };
        match end {
            JobEnd::Gone | JobEnd::Ended(MemberEnd::Succeeded) => DependencyState::Met,
            JobEnd::Ended(how) if on.rule == DependencyRule::Succeeded => DependencyState::Broken(how),
            JobEnd::Ended(_) => DependencyState::Met,
            JobEnd::Unfinished => DependencyState::Waits,
        }
    }

    /// Whether nothing is left to wait for but times and capacity.
    pub(crate) fn is_met(&self, spec: &JobSpec, ordinal: Option<u32>) -> bool {
        spec.dependencies.iter().all(|on| self.dependency(on, ordinal) == DependencyState::Met)
    }

    /// Whether that many more members may wait to be created, and there are ids for all `jobs` of the submission that they are
    /// of.
    ///
    /// # Errors
    /// How many wait now.
    pub fn check_members_waiting(&self, members: u64, jobs: u64) -> Result<(), u64> {
        let waiting = self.uncreated_count();
        let positions = u32::try_from(jobs).map_or(u64::MAX, JobId::positions_of);
        let ahead = self.meta.ids_ahead.saturating_add(positions);
        let may = waiting.saturating_add(members) <= limits::UNCREATED_MEMBERS_MAX
            && ahead <= JobId::RECORDS_PER_GENERATION / 2;
        if may { Ok(()) } else { Err(waiting) }
    }

    /// Jobs and parts of a submission whose groups and limits are looked at, each with how many jobs it comes to.
    fn counted(parts: &[SubmittedPart]) -> impl Iterator<Item = (&JobSpec, u64)> + Clone {
        parts.iter().map(|part| (&*part.spec, u64::from(part.job_count())))
    }

    pub(crate) fn check_arrays_submitted(&self, request: RequestKey, parts: &[SubmittedPart]) -> Check {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(!parts.is_empty() && parts.len() <= limits::BATCH_JOBS_MAX, GuardError::Limit)?;
        require(parts.iter().any(|part| part.array.is_some()), GuardError::NothingToDo)?;
        let mut jobs = 0_u32;
        for part in parts {
            let SubmittedPart { spec, contract, metadata, array, .. } = part;
            require(spec.array.is_none() && !spec.names_unsubmitted(), GuardError::Limit)?;
            require(array.as_ref().is_none_or(|array| array.violations().is_empty()), GuardError::Limit)?;
            let contract = contract.as_ref();
            let is_good = contract.is_none_or(|said| !said.is_default() && said.violations(spec).is_empty());
            require(is_good, GuardError::Limit)?;
            let metadata = metadata.as_ref();
            let is_good = metadata.is_none_or(|said| !said.is_default() && said.violations().is_empty());
            require(is_good, GuardError::Limit)?;
            jobs = jobs.saturating_add(part.job_count());
            require(jobs <= limits::ARRAY_MEMBERS_MAX, GuardError::Limit)?;
        }
        let of_arrays = parts.iter().filter(|part| part.array.is_some());
        let members = of_arrays.map(|part| u64::from(part.job_count())).sum();
        require(self.check_members_waiting(members, u64::from(jobs)).is_ok(), GuardError::Limit)?;
        let specs = parts.iter().map(|part| &*part.spec);
        require(self.missing_right(specs).is_none(), GuardError::RightMissing)?;
        let spares = |part: &SubmittedPart| part.contract.as_ref().map_or(0, |contract| contract.spares);
        let with_spares = parts.iter().map(|part| {
            let creator = part.metadata.as_ref().map_or("", |metadata| metadata.creator.as_str());
            (&*part.spec, spares(part), creator)
        });
        require(self.above_job_limit(with_spares).is_none(), GuardError::TenantLimit)?;
        require(self.exceeded_limit(State::counted(parts)).is_none(), GuardError::TenantLimit)?;
        let of_users = parts.iter().map(|part| {
            let creator = part.metadata.as_ref().map(|metadata| metadata.creator.clone());
            (part.spec.tenant.clone(), creator.unwrap_or_default(), u64::from(part.job_count()))
        });
        require(self.exceeded_user_limit(of_users).is_none(), GuardError::TenantLimit)?;
        self.check_waits_within(State::counted(parts))?;
        self.check_part_bursts(parts)
    }

    /// What a record submits may wait for other parts of it, and not for itself by way of them; nor for what comes later. With
    /// each part is how many jobs it comes to.
    pub(crate) fn check_waits_within<'a>(
        &self,
        parts: impl Iterator<Item = (&'a JobSpec, u64)> + Clone,
    ) -> Check {
        let first = self.job_id(self.meta.log_index.next(), 0);
        let is_new = |on: &Dependency| on.job >= first;
        if !parts.clone().any(|(spec, _)| spec.dependencies.iter().any(is_new)) {
            return Ok(());
        }
        let mut end = first.0;
        let mut starts = Vec::new();
        for (_, count) in parts.clone() {
            starts.push(end);
            end += count;
        }
        let mut waits_for = Vec::with_capacity(starts.len());
        for (spec, _) in parts {
            let mut others = Vec::new();
            for on in spec.dependencies.iter().filter(|on| is_new(on)) {
                require(on.job.0 < end, GuardError::JobUnknown)?;
                others.push(starts.partition_point(|start| *start <= on.job.0) - 1);
            }
            waits_for.push(others);
        }
        require(cycle_of(&waits_for).is_none(), GuardError::Limit)
    }

    /// Whether the parts may join the submission groups that their estimates name: ones that are there, or those that
    /// earlier parts began.
    fn check_part_bursts(&self, parts: &[SubmittedPart]) -> Check {
        let first = self.job_id(self.meta.log_index.next(), 0);
        let mut begun: Vec<(JobId, BurstKey)> = Vec::new();
        let mut ahead = 0;
        for part in parts {
            let key = BurstKey::of(&part.spec);
            match part.estimate.burst {
                None => begun.push((JobId(first.0 + ahead), key)),
                Some(group) if group >= first => {
                    require(begun.contains(&(group, key)), GuardError::BurstNotCurrent)?;
                }
                Some(group) => self.check_known_burst(key, group)?,
            }
            ahead += u64::from(part.job_count());
        }
        Ok(())
    }

    pub(crate) fn check_created(&self, array: ArrayId, first: Option<u32>, count: u32) -> Check {
        let row = self.arrays.get(&array).ok_or(GuardError::JobUnknown)?;
        require(row.is_open(), GuardError::JobPhase)?;
        require(count > 0 && count <= self.array_room_at_most(array), GuardError::Limit)?;
        let Some(first) = first else { return Ok(()) };
        let end = first.checked_add(count).ok_or(GuardError::Limit)?;
        require((first..end).all(|ordinal| self.is_uncreated(array, ordinal)), GuardError::JobPhase)
    }

    pub(crate) fn check_array_released(&self, array: ArrayId) -> Check {
        let row = self.arrays.get(&array).ok_or(GuardError::JobUnknown)?;
        require(row.uncreated > 0 && !row.released, GuardError::JobPhase)?;
        require(self.is_met(&row.template.spec, None), GuardError::JobPhase)
    }

    pub(crate) fn check_members_failed(&self, array: ArrayId, detail: &str) -> Check {
        let row = self.arrays.get(&array).ok_or(GuardError::JobUnknown)?;
        require(row.uncreated > 0, GuardError::NothingToDo)?;
        require(detail.len() <= limits::OUTCOME_BYTES_MAX, GuardError::Limit)
    }

    pub(crate) fn check_arrays_controlled(
        &self,
        (request, by): (RequestKey, &Requester),
        control: Control,
        arrays: &[ArrayId],
        jobs: &[JobId],
    ) -> Check {
        require(!arrays.is_empty() && arrays.len() <= limits::CONTROLLED_ARRAYS_MAX, GuardError::Limit)?;
        require(arrays.is_sorted_by(|a, b| a < b), GuardError::Limit)?;
        match control {
            Control::Cancel => self.check_cancelled(request, by, jobs)?,
            Control::Hold => self.check_held(request, by, jobs, true)?,
            Control::Release => self.check_held(request, by, jobs, false)?,
            Control::Requeue | Control::Suspend => return Err(GuardError::JobPhase),
        }
        for array in arrays {
            let row = self.arrays.get(array).ok_or(GuardError::JobUnknown)?;
            require(row.uncreated > 0, GuardError::NothingToDo)?;
            let hold = row.hold.as_ref();
            match control {
                Control::Hold => {
                    let is_weaker = hold.is_none_or(|hold| by.is_operator && !hold.by.is_operator);
                    require(is_weaker, GuardError::NothingToDo)?;
                }
                Control::Release => {
                    let hold = hold.ok_or(GuardError::NothingToDo)?;
                    require(by.is_operator || !hold.by.is_operator, GuardError::HeldByOperator)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn check_throttled(
        &self,
        request: RequestKey,
        by: &Requester,
        array: ArrayId,
        throttle: Option<u32>,
    ) -> Check {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid(), GuardError::Limit)?;
        let row = self.arrays.get(&array).ok_or(GuardError::JobUnknown)?;
        require(row.uncreated > 0, GuardError::NothingToDo)?;
        let after = ArraySpec { throttle, ..row.template.array.clone() };
        require(after.violations().is_empty(), GuardError::Limit)
    }

    pub(crate) fn fold_arrays_submitted(
        &mut self,
        request: RequestKey,
        parts: &[SubmittedPart],
    ) -> Vec<Effect> {
        let first = self.job_id(self.meta.log_index, 0);
        let jobs: u32 = parts.iter().map(SubmittedPart::job_count).sum();
        self.remember(request, RequestAnswer::Submitted { first, jobs });
        let mut effects = Vec::with_capacity(parts.len());
        let mut ahead = 0;
        for part in parts {
            let id = JobId(first.0 + ahead);
            ahead += u64::from(part.job_count());
            match &part.array {
                None => {
                    // What it carries first: a job is counted for the user that its metadata names.
                    self.add_carried(id, part.contract.as_ref(), part.metadata.as_ref());
                    self.add_job(id, &part.spec, part.estimate);
                    effects.push(Effect::JobChanged(id));
                }
                Some(array) => {
                    let template = ArrayTemplate {
                        spec: Arc::clone(&part.spec),
                        contract: part.contract.clone(),
                        metadata: part.metadata.clone(),
                        array: array.clone(),
                    };
                    self.add_array(ArrayId(id.0), template, part.estimate);
                    effects.push(Effect::ArrayChanged(ArrayId(id.0)));
                }
            }
        }
        self.meta.ids_ahead += JobId::positions_of(jobs) - 1;
        effects
    }

    fn add_array(&mut self, id: ArrayId, template: ArrayTemplate, estimate: Estimate) {
        let (now, size) = (self.meta.log_time, template.array.size());
        let template = Arc::new(template);
        let spec = &template.spec;
        let row = ArrayRow {
            released: spec.not_before.is_none() && spec.dependencies.iter().all(|on| on.is_of_members()),
            template: Arc::clone(&template),
            estimate,
            submitted_at: now,
            hold: None,
            waits_since: None,
            cancelled_by: Vec::new(),
            cancellers_left_out: 0,
            detail: None,
            next: 0,
            uncreated: size,
            succeeded: 0,
            failed: 0,
            cancelled: 0,
            finished_at: None,
            changed_at: self.meta.log_index,
        };
        let keys = ArrayIndexKeys::of(&row);
        self.arrays.insert(id, row);
        let (_, facts) = self.arrays.get_with_facts(&id).expect("it was put there just now");
        let key = facts.spec.group_key;
        match estimate.burst {
            Some(group) => self.join_burst(group, estimate.turn, size),
            None => {
                let group = JobId(id.0);
                let turn = estimate.turn;
                let row = BurstRow { key, turn, members: size, last_submitted: now, ended: Vec::new() };
                self.submission_groups.insert(group, row);
                self.indexes.bursts_by_key.insert((key, group));
            }
        }
        self.indexes.shift_array(id, &template, &ArrayIndexKeys::default(), &keys);
    }

    /// Labels, annotations, creator and contract of a job that was made just now.
    fn add_carried(
        &mut self,
        job: JobId,
        contract: Option<&Arc<JobContract>>,
        metadata: Option<&Arc<JobMetadata>>,
    ) {
        if let Some(contract) = contract {
            self.contracts.insert(job, Arc::clone(contract));
        }
        if let Some(metadata) = metadata {
            self.metadata.insert(job, Arc::clone(metadata));
        }
    }

    /// Changes an array's row and moves it between the indexes. Members that were not created and are gone from its count
    /// were created or have ended.
    fn change_array(&mut self, id: ArrayId, change: impl FnOnce(&mut ArrayRow)) {
        let (now, index) = (self.meta.log_time, self.meta.log_index);
        let changed = self.arrays.change(&id, |row, _| {
            let before = ArrayIndexKeys::of(row);
            change(row);
            row.changed_at = index;
            if row.uncreated == 0 {
                row.hold = None;
            }
            if row.finished_at.is_none() && row.ended() == row.size() {
                row.finished_at = Some(now);
            }
            (Arc::clone(&row.template), before, ArrayIndexKeys::of(row))
        });
        let (template, before, after) = changed.expect("the guard has seen the array");
        self.indexes.shift_array(id, &template, &before, &after);
    }

    /// Makes a member a job.
    fn create_member(&mut self, member: WaitingMember) {
        let row = self.arrays.get(&member.array).expect("the guard has seen the array");
        let template = Arc::clone(&row.template);
        let place = place_of(&template, member.ordinal).expect("a member has a place in its array");
        let spec = Arc::new(template.spec.as_member(place));
        // One that the throttle kept from being created has not waited for capacity. A throttle lets its number begin at once.
        let is_throttled = template.array.throttle.is_some_and(|most| member.ordinal >= most);
        let waits_since = if is_throttled { Some(self.meta.log_time) } else { row.waits_since };
        let job = member.array.member(member.ordinal);
        let released = row.released && self.is_met(&spec, Some(member.ordinal));
        let row = JobRow { changed_at: self.meta.log_index, released, ..row.job_row(member, &spec) };
        self.specs.insert(job, Arc::clone(&spec));
        self.add_carried(job, template.contract.as_ref(), template.metadata.as_ref());
        let described = self.described(job).expect("it was put there just now");
        let standing = JobIndexKeys::of(&row, &described, self.burst_turn(job, &row), None);
        self.indexes.shift(job, &described, &JobIndexKeys::default(), &standing);
        self.demand.observe(&spec);
        self.jobs.insert(job, row);
        if waits_since.is_some() {
            self.change_times(job, |times| times.waits_since = waits_since);
        }
    }

    /// Makes a member a job out of its turn, because something is asked of it by its id.
    /// What holds its array holds it too: it must not come free by being named.
    pub(crate) fn create_out_of_turn(&mut self, member: WaitingMember) {
        let hold = self.arrays.get(&member.array).and_then(|row| row.hold.clone());
        self.create_member(member);
        self.change_array(member.array, |row| row.uncreated -= 1);
        if let Some(hold) = hold {
            self.inherit_hold(member.array.member(member.ordinal), hold);
        }
    }

    pub(crate) fn fold_created(&mut self, array: ArrayId, first: Option<u32>, count: u32) -> Vec<Effect> {
        let mut effects = Vec::with_capacity(count as usize + 1);
        let mut next = self.arrays.get(&array).expect("the guard has seen the array").next;
        let mut behind = first.unwrap_or(next);
        let mut created = 0;
        while created < count {
            let (ordinal, job) = (behind, array.member(behind));
            behind += 1;
            if self.jobs.contains(&job) || self.member_end(array, ordinal).is_some() {
                continue;
            }
            self.create_member(WaitingMember { array, ordinal });
            effects.push(Effect::JobChanged(job));
            created += 1;
        }
        if first.is_none_or(|first| first == next) {
            next = behind;
        }
        // Those that were created before their turn are stepped over once they are next, each once: each look for the next
        // members would look at them again and again.
        if first.is_some() {
            let end = self.arrays.get(&array).map_or(next, ArrayRow::size);
            let end = end.min(next.saturating_add(STEPPED_OVER_MAX));
            while next < end && !self.is_uncreated(array, next) {
                next += 1;
            }
        }
        self.change_array(array, |row| {
            row.next = next;
            row.uncreated -= created;
        });
        effects.push(Effect::ArrayChanged(array));
        effects
    }

    pub(crate) fn fold_array_released(&mut self, array: ArrayId) -> Vec<Effect> {
        self.change_array(array, |row| row.released = true);
        alloc::vec![Effect::ArrayChanged(array)]
    }

    pub(crate) fn fold_members_failed(&mut self, array: ArrayId, detail: &str) -> Vec<Effect> {
        let text: Arc<str> = Arc::from(detail);
        self.change_array(array, |row| row.detail = Some(text));
        self.end_uncreated(array, MemberEnd::Failed);
        alloc::vec![Effect::ArrayChanged(array)]
    }

    pub(crate) fn fold_arrays_controlled(
        &mut self,
        (request, by): (RequestKey, &Requester),
        control: Control,
        arrays: &[ArrayId],
        jobs: &[JobId],
    ) -> Vec<Effect> {
        // Jobs first: one of them may be a member that is not created. It is counted with the jobs, and not with its array again.
        let mut effects = match control {
            Control::Cancel => self.fold_cancelled(request, by, jobs),
            _ => self.fold_held(request, by, jobs, control == Control::Hold),
        };
        let of_arrays: u32 =
            arrays.iter().filter_map(|array| self.arrays.get(array)).map(|row| row.uncreated).sum();
        self.requests.change(&request.id, |row, ()| {
            let all = (jobs.len() as u32).saturating_add(of_arrays);
            let last = jobs.last().copied().max(arrays.last().map(|array| JobId(array.0)));
            row.answer = RequestAnswer::Controlled { jobs: all, last };
        });
        let now = self.meta.log_time;
        for array in arrays {
            match control {
                Control::Cancel => {
                    self.note_canceller(*array, by);
                    self.end_uncreated(*array, MemberEnd::Cancelled);
                }
                Control::Hold => self.change_array(*array, |row| {
                    row.hold = Some(HoldRow::over(row.hold.take(), by, now, false));
                }),
                _ => self.change_array(*array, |row| {
                    let hold = row.hold.take();
                    // A member that may not be created has not waited for capacity, unless an operator kept it from that.
                    if hold.as_ref().is_some_and(|hold| !hold.by.is_operator) {
                        row.waits_since = Some(now);
                    }
                    row.hold = hold.and_then(|hold| hold.beneath).map(|beneath| *beneath);
                }),
            }
            effects.push(Effect::ArrayChanged(*array));
        }
        effects
    }

    pub(crate) fn fold_throttled(
        &mut self,
        request: RequestKey,
        array: ArrayId,
        throttle: Option<u32>,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let mut row = self.arrays.get(&array).expect("the guard has seen the array").clone();
        let before = ArrayIndexKeys::of(&row);
        // Members that a throttle kept from being created have not waited for capacity: a higher one gives them no age.
        if row.template.array.throttle.is_some() {
            row.waits_since = Some(self.meta.log_time);
        }
        let array_spec = ArraySpec { throttle, ..row.template.array.clone() };
        let template = Arc::new(ArrayTemplate { array: array_spec, ..ArrayTemplate::clone(&row.template) });
        row.template = Arc::clone(&template);
        row.changed_at = self.meta.log_index;
        let after = ArrayIndexKeys::of(&row);
        // In place of the whole row: what follows from a template is derived when its row is put there.
        self.arrays.insert(array, row);
        self.indexes.shift_array(array, &template, &before, &after);
        alloc::vec![Effect::ArrayChanged(array)]
    }

    /// Every member that is not created ends so.
    fn end_uncreated(&mut self, array: ArrayId, how: MemberEnd) {
        let ranges = self.uncreated(array);
        let members = ranges.iter().map(|(first, last)| last - first + 1).sum();
        let runs = ranges.into_iter().map(|(first, last)| EndRun { first, last, how });
        // Each row of ends once, however many runs it has.
        let parts: Vec<EndRun> = runs.flat_map(EndRun::by_row).collect();
        for of_row in parts.chunk_by(|a, b| MemberEnds::row_of(a.first) == MemberEnds::row_of(b.first)) {
            let key = (array, of_row.first().map_or(0, |part| MemberEnds::row_of(part.first)));
            if self.array_ends.change(&key, |ends, ()| ends.add_all(of_row)).is_none() {
                let mut ends = MemberEnds::default();
                ends.add_all(of_row);
                self.array_ends.insert(key, ends);
            }
        }
        self.leave_array(array, how, members);
    }

    /// A member that is not created has no row that could say who cancelled it: its array says who did so with any of them. Where
    /// they are too many, the last of them takes the place of the one before: who came last is always known, whatever others did.
    fn note_canceller(&mut self, array: ArrayId, by: &Requester) {
        // The tokens of one user are not several people.
        let user = user_of(&by.name);
        let is_new = |row: &ArrayRow| row.cancelled_by.iter().all(|known| known.name != user);
        let kept = Requester::named(user.into(), by.is_operator);
        // Nor does a token say who it is where it spoke for nobody who has a name.
        if kept.is_unknown() || !self.arrays.get(&array).is_some_and(is_new) {
            return;
        }
        self.change_array(array, |row| {
            if row.cancelled_by.len() >= limits::ARRAY_CANCELLERS_MAX {
                row.cancelled_by.truncate(limits::ARRAY_CANCELLERS_MAX - 1);
                row.cancellers_left_out = row.cancellers_left_out.saturating_add(1);
            }
            row.cancelled_by.push(kept);
        });
    }

    /// One member that is not created is cancelled.
    pub(crate) fn cancel_waiting(&mut self, member: WaitingMember, by: &Requester) {
        let WaitingMember { array, ordinal } = member;
        self.note_canceller(array, by);
        self.add_end(array, ordinal, MemberEnd::Cancelled);
        self.leave_array(array, MemberEnd::Cancelled, 1);
    }

    /// Members that were not created have ended: their array counts them, and so does its submission group.
    fn leave_array(&mut self, array: ArrayId, how: MemberEnd, members: u32) {
        if members == 0 {
            return;
        }
        let row = self.arrays.get(&array).expect("the guard has seen the array");
        let group = row.submission_group(array);
        self.leave_burst_uncreated(group, members);
        self.change_array(array, |row| {
            row.uncreated -= members;
            row.count(how, members);
        });
    }

    /// Writes down how one member ended.
    fn add_end(&mut self, array: ArrayId, ordinal: u32, how: MemberEnd) {
        let end = EndRun { first: ordinal, last: ordinal, how };
        let key = (array, MemberEnds::row_of(ordinal));
        if self.array_ends.change(&key, |ends, ()| ends.add(end)).is_none() {
            let mut ends = MemberEnds::default();
            ends.add(end);
            self.array_ends.insert(key, ends);
        }
    }

    /// A job has ended; if it is a member of an array, the array knows how.
    pub(crate) fn note_member_end(&mut self, job: JobId, outcome: &Outcome) -> Option<Effect> {
        let member = self.specs.get(&job)?.array?;
        let (array, how) = (ArrayId::of_member(job, member.ordinal), MemberEnd::of(outcome));
        self.arrays.get(&array)?;
        self.add_end(array, member.ordinal, how);
        self.change_array(array, |row| row.count(how, 1));
        Some(Effect::ArrayChanged(array))
    }

    /// Drops arrays that ended before a time, once no member has a row; at most `most`.
    pub(crate) fn prune_arrays(&mut self, before: LogTime, most: usize) {
        // Rows of members are as old, and go first.
        let is_needed = |array: &ArrayId| self.jobs.range(self.members(*array)).next().is_some();
        let old = self.finished_arrays().take_while(|(at, _)| *at < before).map(|(_, id)| id);
        // Some that have to stay do not keep those behind them.
        let old: Vec<ArrayId> =
            old.take(most.saturating_mul(4)).filter(|id| !is_needed(id)).take(most).collect();
        for array in old {
            let row = self.arrays.get(&array).expect("an indexed array has a row");
            let (template, keys) = (Arc::clone(&row.template), ArrayIndexKeys::of(row));
            self.indexes.shift_array(array, &template, &keys, &ArrayIndexKeys::default());
            let numbers: Vec<u32> = self
                .array_ends
                .range((array, 0)..=(array, u32::MAX))
                .map(|((_, number), _)| *number)
                .collect();
            for number in numbers {
                self.array_ends.remove(&(array, number));
            }
            self.arrays.remove(&array);
        }
    }

    /// The tenant of a job or of a member that is not created; none when there is neither.
    #[must_use]
    pub fn tenant_of(&self, job: JobId) -> Option<&Name> {
        if let Some(spec) = self.specs.get(&job) {
            return Some(&spec.tenant);
        }
        let (array, _) = self.array_of(job)?;
        Some(&self.arrays.get(&array)?.template.spec.tenant)
    }
}

/// The place of a member in its array.
fn place_of(template: &ArrayTemplate, ordinal: u32) -> Option<ArrayMember> {
    let (index, size) = (template.array.index_of(ordinal)?, template.array.size());
    Some(ArrayMember { index, ordinal, size })
}

impl ArrayRow {
    /// The row of a member that is created now.
    fn job_row(&self, member: WaitingMember, spec: &JobSpec) -> JobRow {
        // The first member of a group gives it its id.
        let group = Some(self.submission_group(member.array))
            .filter(|group| *group != member.array.member(member.ordinal));
        let estimate = Estimate { burst: group, ..self.estimate };
        JobRow { released: self.released, ..JobRow::submitted(self.submitted_at, estimate, spec) }
    }
}
