//! Schedules: which there are, what each waits for, and what became of its runs.
//!
//! **Invariant:** a moment of a schedule is taken once: the record of its run names the moment that the row waits for, and puts a later
//! one, or none that is known yet, in its place.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{RequestKey, canonical};
use muster_types::{
    JobId, LogTime, Name, NextRun, OverlapRule, OwnerRole, Requester, Schedule, ScheduleKey, ScheduleRun,
    limits,
};

use crate::array::JobEnd;
use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::index::waits_for;
use crate::rows::{RequestAnswer, ScheduleRow, ScheduleRunRow, ScheduleSuspension};
use crate::state::State;

impl State {
    /// A schedule.
    #[must_use]
    pub fn schedule(&self, key: &ScheduleKey) -> Option<&ScheduleRow> {
        self.schedules.get(key)
    }

    /// All schedules, by tenant and name.
    pub fn schedules(&self) -> impl Iterator<Item = (&ScheduleKey, &ScheduleRow)> {
        self.schedules.iter()
    }

    /// Schedules that wait for a moment up to this one, the first moment first.
    pub fn schedules_due(&self, now: LogTime) -> impl Iterator<Item = (&ScheduleKey, &ScheduleRow)> {
        let waiting = self.indexes.scheduled.range(first_at(NextRun::At(LogTime(0)))..);
        let due = waiting.take_while(move |(next, _)| *next <= NextRun::At(now));
        due.filter_map(move |(_, key)| Some((key, self.schedules.get(key)?)))
    }

    /// Schedules whose next moment is not known, by tenant and name.
    pub fn schedules_unplanned(&self) -> impl Iterator<Item = (&ScheduleKey, &ScheduleRow)> {
        let unknown = self.indexes.scheduled.iter().take_while(|(next, _)| *next == NextRun::Unknown);
        unknown.filter_map(move |(_, key)| Some((key, self.schedules.get(key)?)))
    }

    /// The first moment behind this one that a schedule waits for.
    #[must_use]
    pub fn next_schedule_after(&self, now: LogTime) -> Option<LogTime> {
        let later = self.indexes.scheduled.range(first_at(NextRun::At(now.plus_ms(1)))..).next();
        later.and_then(|(next, _)| match next {
            NextRun::At(time) => Some(*time).filter(|time| *time > now),
            NextRun::Unknown => None,
        })
    }

    /// How many schedules there are.
    #[must_use]
    pub fn schedule_count(&self) -> usize {
        self.schedules.len()
    }

    /// How many schedules a tenant has.
    #[must_use]
    pub fn schedule_count_of(&self, tenant: &Name) -> usize {
        self.schedules().filter(|(key, _)| key.tenant == *tenant).count()
    }

    /// The jobs of a schedule that are not over.
    #[must_use]
    pub fn unfinished_of(&self, row: &ScheduleRow) -> Vec<JobId> {
        row.jobs.iter().copied().filter(|job| self.end_of(*job) == JobEnd::Unfinished).collect()
    }

    pub(crate) fn check_schedule_set(
        &self,
        (request, by): (RequestKey, &Requester),
        schedule: &Schedule,
        is_new: bool,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid() && schedule.violations().is_empty(), GuardError::Limit)?;
        require(schedule_bytes(schedule) <= limits::SCHEDULE_BYTES_MAX, GuardError::Limit)?;
        let key = &schedule.key;
        if !is_new {
            return require(self.schedules.contains(key), GuardError::ScheduleUnknown);
        }
        require(!self.schedules.contains(key), GuardError::ScheduleExists)?;
        require(self.schedules.len() < limits::SCHEDULES_MAX, GuardError::Limit)?;
        require(self.schedule_count_of(&key.tenant) < limits::TENANT_SCHEDULES_MAX, GuardError::Limit)
    }

    pub(crate) fn check_schedule_deleted(
        &self,
        request: RequestKey,
        by: &Requester,
        key: &ScheduleKey,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid(), GuardError::Limit)?;
        require(self.schedules.contains(key), GuardError::ScheduleUnknown)
    }

    /// A request is recorded also where it changes nothing, so that repeating it has no effect later. What an operator has suspended
    /// only an operator resumes.
    pub(crate) fn check_schedule_suspension(
        &self,
        request: Option<RequestKey>,
        by: &Requester,
        key: &ScheduleKey,
        reason: Option<&String>,
    ) -> Result<(), GuardError> {
        let is_repeated = request.is_some_and(|request| self.requests.contains(&request.id));
        require(!is_repeated, GuardError::RequestRepeated)?;
        let length = reason.map_or(0, |reason| reason.len());
        require(by.is_valid() && length <= limits::DETAIL_BYTES_MAX, GuardError::Limit)?;
        let row = self.schedules.get(key).ok_or(GuardError::ScheduleUnknown)?;
        let is_operators = row.suspension.as_ref().is_some_and(|suspension| suspension.by.is_operator);
        require(reason.is_some() || by.is_operator || !is_operators, GuardError::HeldByOperator)?;
        let changes = row.suspension.is_none() == reason.is_some();
        require(request.is_some() || changes, GuardError::NothingToDo)
    }

    pub(crate) fn check_schedule_planned(&self, key: &ScheduleKey) -> Result<(), GuardError> {
        let row = self.schedules.get(key).ok_or(GuardError::ScheduleUnknown)?;
        require(row.suspension.is_none() && row.next == NextRun::Unknown, GuardError::ScheduleNotDue)
    }

    pub(crate) fn check_schedule_ran(
        &self,
        key: &ScheduleKey,
        due: Option<LogTime>,
        next: Option<LogTime>,
        run: &ScheduleRun,
    ) -> Result<(), GuardError> {
        let row = self.schedules.get(key).ok_or(GuardError::ScheduleUnknown)?;
        let is_bounded = match run {
            ScheduleRun::Submitted(_) => true,
            ScheduleRun::Skipped(why) => why.len() <= limits::DETAIL_BYTES_MAX,
        };
        require(is_bounded, GuardError::Limit)?;
        if let ScheduleRun::Submitted(job) = run {
            require(self.jobs.contains(job), GuardError::JobUnknown)?;
            // What is over by now goes with this record.
            let unfinished = self.unfinished_of(row).len();
            require(unfinished < limits::SCHEDULE_JOBS_MAX, GuardError::Limit)?;
            let overlaps = unfinished > 0 && row.schedule.overlap == OverlapRule::Forbid;
            require(!overlaps, GuardError::ScheduleNotDue)?;
        }
        let Some(due) = due else {
            // A run that somebody asked for is no moment of the calendar.
            return require(next.is_none(), GuardError::ScheduleNotDue);
        };
        // The moment of the record may lie behind the one that the row waits for: of several that were missed it is the last.
        let waits = matches!(row.next, NextRun::At(first) if first <= due);
        require(waits && row.suspension.is_none(), GuardError::ScheduleNotDue)?;
        require(next.is_none_or(|next| next > due), GuardError::ScheduleNotDue)
    }

    pub(crate) fn fold_schedule_set(
        &mut self,
        (request, by): (RequestKey, &Requester),
        (acts_for, role): (Option<&Name>, Option<&OwnerRole>),
        schedule: &Schedule,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let key = schedule.key.clone();
        let before = self.schedules.get(&key);
        let mut row = ScheduleRow {
            schedule: Arc::new(schedule.clone()),
            by: by.kept(),
            acts_for: acts_for.cloned(),
            role: role.cloned(),
            tenant_was_listed: self.policy.policy.tenants.contains_key(&key.tenant),
            set_index: self.meta.log_index,
            set_at: self.meta.log_time,
            next: NextRun::Unknown,
            suspension: before.and_then(|row| row.suspension.clone()),
            jobs: before.map(|row| row.jobs.clone()).unwrap_or_default(),
            runs: before.map(|row| row.runs.clone()).unwrap_or_default(),
            submitted: before.map_or(0, |row| row.submitted),
            skipped: before.map_or(0, |row| row.skipped),
        };
        trim_runs(&mut row);
        let was_for = before.and_then(waits_for);
        self.indexes.shift_schedule(&key, was_for, waits_for(&row));
        self.schedules.insert(key, row);
        Vec::new()
    }

    pub(crate) fn fold_schedule_deleted(&mut self, request: RequestKey, key: &ScheduleKey) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let was_for = self.schedules.get(key).and_then(waits_for);
        self.indexes.shift_schedule(key, was_for, None);
        self.schedules.remove(key);
        Vec::new()
    }

    pub(crate) fn fold_schedule_suspension(
        &mut self,
        request: Option<RequestKey>,
        by: &Requester,
        key: &ScheduleKey,
        reason: Option<&String>,
    ) -> Vec<Effect> {
        if let Some(request) = request {
            self.remember(request, RequestAnswer::Done);
        }
        let since = self.meta.log_time;
        self.change_schedule(key, |row| {
            // An operator's stands in the place of anybody else's.
            let is_weaker = |before: &ScheduleSuspension| by.is_operator && !before.by.is_operator;
            match reason {
                Some(reason) if row.suspension.as_ref().is_none_or(is_weaker) => {
                    let (by, reason) = (by.kept(), reason.clone());
                    row.suspension = Some(ScheduleSuspension { by, reason, since });
                    row.next = NextRun::Unknown;
                }
                None if row.suspension.is_some() => {
                    row.suspension = None;
                    row.next = NextRun::Unknown;
                }
                _ => {}
            }
        });
        Vec::new()
    }

    pub(crate) fn fold_schedule_planned(&mut self, key: &ScheduleKey, next: LogTime) -> Vec<Effect> {
        self.change_schedule(key, |row| row.next = NextRun::At(next));
        Vec::new()
    }

    pub(crate) fn fold_schedule_ran(
        &mut self,
        key: &ScheduleKey,
        due: Option<LogTime>,
        next: Option<LogTime>,
        run: &ScheduleRun,
    ) -> Vec<Effect> {
        let at = self.meta.log_time;
        let unfinished = self.schedules.get(key).map(|row| self.unfinished_of(row)).unwrap_or_default();
        self.change_schedule(key, |row| {
            if due.is_some() {
                row.next = next.map_or(NextRun::Unknown, NextRun::At);
            }
            row.jobs = unfinished;
            match run {
                ScheduleRun::Submitted(job) => {
                    row.jobs.push(*job);
                    row.submitted += 1;
                }
                ScheduleRun::Skipped(_) => row.skipped += 1,
            }
            row.runs.push(ScheduleRunRow { due, at, run: run.clone() });
            trim_runs(row);
        });
        Vec::new()
    }

    /// Changes a schedule, and where it stands among those that wait.
    fn change_schedule(&mut self, key: &ScheduleKey, change: impl FnOnce(&mut ScheduleRow)) {
        let moved = self.schedules.change(key, |row, _| {
            let before = waits_for(row);
            change(row);
            (before, waits_for(row))
        });
        if let Some((before, after)) = moved {
            self.indexes.shift_schedule(key, before, after);
        }
    }

    /// Whether every row keeps its rules, as far as the row alone tells.
    pub(crate) fn check_schedule_rows(&self) -> Result<(), String> {
        for (key, row) in self.schedules() {
            let is_sound = row.schedule.key == *key
                && row.schedule.violations().is_empty()
                && row.jobs.len() <= limits::SCHEDULE_JOBS_MAX
                && row.runs.len() <= usize::from(row.schedule.runs_max);
            if !is_sound {
                return Err(format!("schedule {key} has a row that it may not have"));
            }
        }
        Ok(())
    }
}

/// The first place of those that wait for this.
fn first_at(next: NextRun) -> (NextRun, ScheduleKey) {
    let least = Name::literal("0");
    (next, ScheduleKey { tenant: least.clone(), name: least })
}

/// Keeps as many runs as the schedule lists, the newest. Within one change of the row: each hashes all of it, its job included.
fn trim_runs(row: &mut ScheduleRow) {
    let surplus = row.runs.len().saturating_sub(usize::from(row.schedule.runs_max));
    row.runs.drain(..surplus);
}

/// Bytes of a schedule, as it is recorded.
#[must_use]
pub fn schedule_bytes(schedule: &Schedule) -> usize {
    canonical(schedule).len()
}
