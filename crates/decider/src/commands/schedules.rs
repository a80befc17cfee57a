//! Schedules: made, changed, controlled, and carried out at their moments.
//!
//! Which moments there are is found by the engine, which knows time zones, and comes with the command. What is decided here is whether a job is
//! made, from the state alone: the rights of the owner are looked at each time, and so is what has become of earlier jobs.
//!
//! **Invariant:** every moment has one record, and at most one job. Of several that were missed the last has one, and no other.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::{GuardError, ScheduleRow, ScheduleSuspension, State, schedule_bytes};
use muster_types::policy::Verb;
use muster_types::token::token_of;
use muster_types::{
    Control, Dependency, DependencyRule, JobId, LogIndex, LogTime, Name, NextRun, OverlapRule, OwnerRole,
    Refusal, RefusalCode, RequestId, Requester, Schedule, ScheduleKey, ScheduleRun, Span, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::controls::{ControlOrder, JobSelection, control as control_jobs};
use crate::commands::submit::{check_submission, submit_as, with_default_limits};
use crate::rules::requested::JobPath;
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// A schedule that is to be made or changed.
#[derive(Clone, Debug)]
pub struct ScheduleOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks, and owns it from then on.
    pub by: Requester,
    /// The tenant that the one who asks acts for, and for those below it; none acts for all.
    pub acts_for: Option<Name>,
    /// The role of the policy that the one who asks has; none for a whole built-in role, and for a certificate.
    pub role: Option<OwnerRole>,
    /// All of it.
    pub schedule: Schedule,
    /// Whether there must be none of its name, or has to be one.
    pub is_new: bool,
}

/// Something is asked of a schedule.
#[derive(Clone, Debug)]
pub struct ScheduleControl {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks.
    pub by: Requester,
    /// The tenant that the one who asks acts for, and for those below it; none acts for all.
    pub acts_for: Option<Name>,
    /// Which.
    pub schedule: ScheduleKey,
    /// What.
    pub action: ScheduleAction,
}

/// What may be asked of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleAction {
    /// It goes; its jobs stay.
    Delete,
    /// It makes no jobs until it is resumed.
    Suspend {
        /// Why, in a sentence; at most [`limits::DETAIL_BYTES_MAX`] bytes.
        reason: String,
    },
    /// It makes jobs again, from its next moment on.
    Resume,
    /// It makes one job now, in addition to those of its moments.
    Run,
}

/// What every schedule must pass; also the check without a change. That its zone exists is not known here.
///
/// # Errors
/// The refusal: of the schedule, or of the job that it would make now. What may pass by itself, like a limit of the tenant, is no
/// reason.
pub fn check_schedule(state: &State, order: &ScheduleOrder, now: LogTime) -> Result<(), Refusal> {
    let ScheduleOrder { by, acts_for, schedule, .. } = order;
    let mut found = schedule.violations();
    let (bytes, max) = (schedule_bytes(schedule), limits::SCHEDULE_BYTES_MAX);
    if bytes > max {
        found.push(Violation::new("schedule", format!("must be at most {max} bytes, got {bytes}")));
    }
    if !by.is_valid() {
        let max = limits::CREATOR_BYTES_MAX;
        found.push(Violation::new("by", format!("must be at most {max} bytes of printable ASCII")));
    }
    if !found.is_empty() {
        return Err(Refusal::fields(found));
    }
    let key = &schedule.key;
    if !acts_for_tenant(state, acts_for.as_ref(), &key.tenant) {
        return Err(if order.is_new { denied(order) } else { not_found(key) });
    }
    match (order.is_new, state.schedule(key)) {
        (true, Some(_)) => {
            let text = format!("tenant {} has a schedule {} already", key.tenant, key.name);
            return Err(Refusal::new(RefusalCode::ScheduleExists, text).with("schedule", key));
        }
        (false, None) => return Err(not_found(key)),
        _ => {}
    }
    let job = [schedule.template.submission(&key.name, &by.name)];
    match check_submission(state, &with_default_limits(state, &job), JobPath::Single, now) {
        Err(refusal) if is_lasting(refusal.code) || refusal.code == RefusalCode::NeverFits => Err(refusal),
        _ => Ok(()),
    }
}

fn denied(order: &ScheduleOrder) -> Refusal {
    let tenant = &order.schedule.key.tenant;
    let text = format!("{} does not act for tenant {tenant}", order.by);
    Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", tenant)
}

fn acts_for_tenant(state: &State, acts_for: Option<&Name>, tenant: &Name) -> bool {
    let policy = &state.policy().policy;
    acts_for.is_none_or(|own| policy.ancestry(tenant).any(|above| above == own))
}

/// Of another tenant's schedules nobody is told whether they exist.
fn not_found(key: &ScheduleKey) -> Refusal {
    let text = format!("there is no schedule {} of tenant {}", key.name, key.tenant);
    Refusal::new(RefusalCode::ScheduleNotFound, text).with("schedule", key)
}

/// Whether a job that is refused so would be refused again: its owner or somebody else has to change something.
fn is_lasting(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::InvalidField
            | RefusalCode::RightMissing
            | RefusalCode::PermissionDenied
            | RefusalCode::JobAboveLimit
            | RefusalCode::FeatureUnknown
            | RefusalCode::DeadlineUnmeetable
    )
}

pub(super) fn set(speculation: &mut Speculation, order: &ScheduleOrder) -> Result<Answer, Refusal> {
    let ScheduleOrder { request, by, acts_for, role, schedule, is_new } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("set schedule", *is_new, schedule)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_schedule(speculation.state(), order, speculation.now())?;
    let decision = Decision::ScheduleSet {
        request: key,
        by: by.clone(),
        acts_for: acts_for.clone(),
        role: role.clone(),
        schedule: Box::new(schedule.clone()),
        is_new: *is_new,
    };
    let state = speculation.state();
    if let Err(GuardError::Limit) = state.check(&decision) {
        return Err(full(state, &schedule.key.tenant));
    }
    count(speculation, by, &schedule.key.tenant, true)?;
    Ok(Answer::Done { at: speculation.push(decision) })
}

fn full(state: &State, tenant: &Name) -> Refusal {
    let of_tenant = state.schedule_count_of(tenant);
    let (held, limit, max) = if of_tenant >= limits::TENANT_SCHEDULES_MAX {
        (of_tenant, "tenant_schedules_max", limits::TENANT_SCHEDULES_MAX)
    } else {
        (state.schedule_count(), "schedules_max", limits::SCHEDULES_MAX)
    };
    let text = format!("there are as many schedules as there may be: {max}; delete one");
    let refusal = Refusal::new(RefusalCode::StateFull, text);
    refusal.with("limit", limit).with("held", held).with("held_max", max)
}

/// Requests about schedules can be made without end, and each is remembered: those of a tenant are counted.
fn count(
    speculation: &mut Speculation,
    by: &Requester,
    tenant: &Name,
    is_refused: bool,
) -> Result<(), Refusal> {
    let is_counted = is_refused && !by.is_operator;
    let pruning = pruning_for_request(speculation, is_counted, 0)?;
    if is_counted {
        speculation.count_request([tenant])?;
    }
    pruning.carry_out(speculation);
    Ok(())
}

pub(super) fn control(speculation: &mut Speculation, order: &ScheduleControl) -> Result<Answer, Refusal> {
    let ScheduleControl { request, by, acts_for, schedule, action } = order;
    let asked = match action {
        ScheduleAction::Delete => ("delete", None),
        ScheduleAction::Suspend { reason } => ("suspend", Some(reason)),
        ScheduleAction::Resume => ("resume", None),
        ScheduleAction::Run => ("run", None),
    };
    let key = RequestKey { id: *request, fingerprint: hash(&("control schedule", schedule, asked)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    let mut found = Vec::new();
    if !by.is_valid() {
        let max = limits::CREATOR_BYTES_MAX;
        found.push(Violation::new("by", format!("must be at most {max} bytes of printable ASCII")));
    }
    let (length, max) = (asked.1.map_or(0, |reason| reason.len()), limits::DETAIL_BYTES_MAX);
    if length > max {
        found.push(Violation::new("reason", format!("must be at most {max} bytes, got {length}")));
    }
    if !found.is_empty() {
        return Err(Refusal::fields(found));
    }
    let state = speculation.state();
    let row =
        state.schedule(schedule).filter(|_| acts_for_tenant(state, acts_for.as_ref(), &schedule.tenant));
    let Some(row) = row else { return Err(not_found(schedule)) };
    let is_operators = |suspension: &&ScheduleSuspension| suspension.by.is_operator && !by.is_operator;
    if *action == ScheduleAction::Resume
        && let Some(suspension) = row.suspension.as_ref().filter(is_operators)
    {
        return Err(suspended_by_operator(schedule, suspension));
    }
    let decision = match action {
        ScheduleAction::Run => {
            let row = row.clone();
            return run_now(speculation, (key, by), &row);
        }
        ScheduleAction::Delete => {
            Decision::ScheduleDeleted { request: key, by: by.clone(), schedule: schedule.clone() }
        }
        ScheduleAction::Suspend { .. } | ScheduleAction::Resume => Decision::ScheduleSuspensionSet {
            request: Some(key),
            by: by.clone(),
            schedule: schedule.clone(),
            reason: asked.1.cloned(),
        },
    };
    // Nobody who ends something is held up.
    count(speculation, by, &schedule.tenant, *action == ScheduleAction::Resume)?;
    Ok(Answer::Done { at: speculation.push(decision) })
}

fn suspended_by_operator(key: &ScheduleKey, suspension: &ScheduleSuspension) -> Refusal {
    let ScheduleSuspension { by, since, .. } = suspension;
    let text = format!(
        "schedule {} is suspended by {by}, an operator, since {since}; only an operator can resume it",
        key.name
    );
    Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", &key.tenant)
}

/// A run that somebody asked for.
fn run_now(
    speculation: &mut Speculation,
    (key, by): (RequestKey, &Requester),
    row: &ScheduleRow,
) -> Result<Answer, Refusal> {
    let unfinished = speculation.state().unfinished_of(row);
    let schedule = &row.schedule.key;
    if let Some((job, why)) = overlapping(row, &unfinished) {
        let refusal = Refusal::new(RefusalCode::ScheduleBusy, format!("schedule {}: {why}", schedule.name));
        return Err(refusal.with("schedule", schedule).with("job_id", job));
    }
    let (job, answer) = submit_run(speculation, (key, by), row, &unfinished)?;
    record_run(speculation, schedule, (None, None), ScheduleRun::Submitted(job));
    Ok(answer)
}

/// A job because of which none is made, with the reason.
fn overlapping(row: &ScheduleRow, unfinished: &[JobId]) -> Option<(JobId, String)> {
    let job = *unfinished.first()?;
    let max = limits::SCHEDULE_JOBS_MAX;
    if row.schedule.overlap == OverlapRule::Forbid {
        return Some((job, format!("{job} is not over, and none of its runs may overlap")));
    }
    (unfinished.len() >= max).then(|| (job, format!("{max} of its jobs are not over, {job} among them")))
}

/// Submits a job of a schedule, and has it take the place of the others where that is the rule.
fn submit_run(
    speculation: &mut Speculation,
    (key, by): (RequestKey, &Requester),
    row: &ScheduleRow,
    unfinished: &[JobId],
) -> Result<(JobId, Answer), Refusal> {
    let schedule = &row.schedule;
    let mut job = schedule.template.submission(&schedule.key.name, &by.name);
    let replaces = schedule.overlap == OverlapRule::Replace && !unfinished.is_empty();
    if replaces {
        let mut draft = job.spec.clone().into_draft();
        let after = |job: &JobId| Dependency::new(*job, DependencyRule::Finished);
        draft.dependencies = unfinished.iter().map(after).collect();
        job.spec = draft.check().map_err(Refusal::fields)?;
    }
    let answer = submit_as(speculation, (key, by), &[job], JobPath::Single)?;
    let made = match &answer {
        Answer::Submitted { jobs, .. } => jobs.first().copied(),
        _ => None,
    };
    let Some(made) = made else {
        return Err(Refusal::new(RefusalCode::Internal, "a submission has made no job"));
    };
    if replaces {
        let order = ControlOrder {
            request: derived_request(hash(&("replaced by", made, key.id)), hash(&("replaces", key.id, made))),
            by: by.clone(),
            acts_for: None,
            control: Control::Cancel,
            // What cannot be cancelled any more is over, or nearly.
            selection: JobSelection { is_found: true, ..JobSelection::named(unfinished.to_vec()) },
        };
        // The new one waits for them in any case.
        let _ = control_jobs(speculation, &order);
    }
    Ok((made, answer))
}

/// The id of a request that nobody made: on the same state every leader gives the same to the same.
fn derived_request(high: u64, low: u64) -> RequestId {
    RequestId(u128::from(high) << 64 | u128::from(low))
}

/// The leader has found the next moment of a schedule; none where it knows no zone of this name, or no moment.
pub(super) fn plan(
    speculation: &mut Speculation,
    key: &ScheduleKey,
    set_index: LogIndex,
    next: Option<LogTime>,
) -> Answer {
    let row = speculation.state().schedule(key).filter(|row| row.set_index == set_index);
    if row.is_none_or(|row| row.suspension.is_some() || row.next != NextRun::Unknown) {
        return Answer::Done { at: speculation.last_index() };
    }
    match next {
        Some(next) => {
            let at = speculation.push(Decision::SchedulePlanned { schedule: key.clone(), next });
            Answer::Done { at }
        }
        None => {
            let why = "the leader finds no next moment: it does not know the time zone, or there is none in 40 years";
            suspend(speculation, key, why)
        }
    }
}

/// A moment of a schedule has come. Repeating it changes nothing: the schedule waits for another moment then.
pub(super) fn fire(
    speculation: &mut Speculation,
    key: &ScheduleKey,
    set_index: LogIndex,
    (due, next): (LogTime, Option<LogTime>),
) -> Answer {
    let (state, now) = (speculation.state(), speculation.now());
    let waits = |row: &&ScheduleRow| {
        let is_due = matches!(row.next, NextRun::At(first) if first <= due) && due <= now;
        row.set_index == set_index && row.suspension.is_none() && is_due
    };
    let Some(row) = state.schedule(key).filter(waits).cloned() else {
        return Answer::Done { at: speculation.last_index() };
    };
    if let Some(why) = lost_right(state, &row, now) {
        return suspend(speculation, key, &why);
    }
    let unfinished = state.unfinished_of(&row);
    let (late_ms, most_ms) = (now.since_ms(due), row.schedule.starting_deadline_ms);
    let skipped = if late_ms > most_ms {
        Some(format!("it is {} late, and may be {} late", Span(late_ms), Span(most_ms)))
    } else {
        overlapping(&row, &unfinished).map(|(_, why)| why)
    };
    let at = (Some(due), next);
    if let Some(why) = skipped {
        return record_run(speculation, key, at, ScheduleRun::Skipped(bounded(&why)));
    }
    // Request ids are one space for all tenants. What the whole state comes to is known to nobody before, so nobody can have used this
    // id to keep the run from being made. That a moment is taken once does not depend on it.
    let digest = state.rows_digest();
    let request = RequestKey {
        id: derived_request(
            hash(&("run", key, set_index, due, digest)),
            hash(&("moment", due, set_index, key, digest)),
        ),
        fingerprint: hash(&("run of a schedule", key, due)),
    };
    match submit_run(speculation, (request, &row.by), &row, &unfinished) {
        Ok((job, _)) => record_run(speculation, key, at, ScheduleRun::Submitted(job)),
        Err(refusal) if is_lasting(refusal.code) => suspend(speculation, key, &reason_of(&refusal)),
        Err(refusal) => record_run(speculation, key, at, ScheduleRun::Skipped(bounded(&reason_of(&refusal)))),
    }
}

/// Why the owner of a schedule may not have its jobs any more.
fn lost_right(state: &State, row: &ScheduleRow, now: LogTime) -> Option<String> {
    let tenant = &row.schedule.key.tenant;
    if row.tenant_was_listed && !state.policy().policy.tenants.contains_key(tenant) {
        return Some(format!("the policy does not list tenant {tenant} any more"));
    }
    if !acts_for_tenant(state, row.acts_for.as_ref(), tenant) {
        return Some(format!("{}, its owner, does not act for tenant {tenant} any more", row.by));
    }
    let (own, part_of) = match token_of(&row.by.name) {
        Some(token) => {
            let Some(known) = state.live_token(token, now) else {
                return Some(format!("token {token} of its owner has expired or was revoked"));
            };
            (known.grant.own_role.as_ref()?, known.grant.role)
        }
        // Whether a person that has signed in would still be given it, the log does not know.
        None => row.role.as_ref().map(|role| (&role.name, role.part_of))?,
    };
    let role = state.policy().policy.own_role(own, part_of);
    let submits = role.is_some_and(|role| role.verbs.contains(&Verb::Submit));
    (!submits).then(|| format!("role {own} of its owner lacks the verb submit"))
}

fn reason_of(refusal: &Refusal) -> String {
    let first = refusal.violations.first().map(|found| format!(": {found}")).unwrap_or_default();
    format!("its job is refused ({}): {}{first}", refusal.code, refusal.message)
}

fn suspend(speculation: &mut Speculation, key: &ScheduleKey, why: &str) -> Answer {
    let at = speculation.push(Decision::ScheduleSuspensionSet {
        request: None,
        by: Requester::default(),
        schedule: key.clone(),
        reason: Some(bounded(why)),
    });
    Answer::Done { at }
}

/// Suspends the schedules of an owner whose token or certificate is taken back at this moment, and says why. They are not resumed
/// with it: who resumes or updates one may have its jobs now.
pub(super) fn suspend_those_of(speculation: &mut Speculation, is_owner: impl Fn(&str) -> bool, why: &str) {
    let schedules = speculation.state().schedules();
    let of_owner = schedules.filter(|(_, row)| row.suspension.is_none() && is_owner(&row.by.name));
    let keys: Vec<ScheduleKey> = of_owner.map(|(key, _)| key.clone()).collect();
    for key in &keys {
        suspend(speculation, key, why);
    }
}

fn record_run(
    speculation: &mut Speculation,
    key: &ScheduleKey,
    (due, next): (Option<LogTime>, Option<LogTime>),
    run: ScheduleRun,
) -> Answer {
    Answer::Done { at: speculation.push(Decision::ScheduleRan { schedule: key.clone(), due, next, run }) }
}

/// Cut to what a sentence of a record may have, at a character's edge.
fn bounded(text: &str) -> String {
    let mut end = text.len().min(limits::DETAIL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
