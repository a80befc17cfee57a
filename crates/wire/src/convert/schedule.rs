//! Schedules.

use muster_types::fleet::checked_name;
use muster_types::{
    CronExpression, Name, OverlapRule, Schedule, ScheduleKey, ScheduleTemplate, Violation, limits,
};

use super::job::{submission_to_proto, submissions_from_proto};
use super::{Found, below};
use crate::time::{duration, duration_from_proto};
use crate::v1;

/// The tenant of a schedule whose message names none.
const TENANT_DEFAULT: &str = "default";
/// The zone of a schedule whose message names none.
const ZONE_DEFAULT: &str = "UTC";

/// The value of a rule in messages.
#[must_use]
pub fn overlap_rule_to_proto(rule: OverlapRule) -> v1::OverlapRule {
    match rule {
        OverlapRule::Allow => v1::OverlapRule::Allow,
        OverlapRule::Forbid => v1::OverlapRule::Forbid,
        OverlapRule::Replace => v1::OverlapRule::Replace,
    }
}

/// The rule behind a number, zero among them; none for one that this version does not know.
#[must_use]
pub fn overlap_rule_from_proto(number: i32) -> Option<OverlapRule> {
    if number == 0 {
        return Some(OverlapRule::default());
    }
    OverlapRule::ALL.into_iter().find(|rule| i32::from(overlap_rule_to_proto(*rule)) == number)
}

/// Which schedule is meant. `at` is the path of the message; empty for the request itself.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn schedule_key_from_proto(at: &str, tenant: &str, name: &str) -> Result<ScheduleKey, Vec<Violation>> {
    let mut found = Found::default();
    let path = |field: &str| if at.is_empty() { field.to_owned() } else { below(at, field) };
    let tenant = if tenant.is_empty() { TENANT_DEFAULT } else { tenant };
    let tenant: Option<Name> = found.take(checked_name(&path("tenant"), tenant));
    let name: Option<Name> = found.take(checked_name(&path("name"), name));
    match (tenant, name) {
        (Some(tenant), Some(name)) => Ok(ScheduleKey { tenant, name }),
        _ => Err(found.into_violations()),
    }
}

/// Reads a schedule. `at` is its path in the message. What the server sets is passed over. That its zone exists is not known here.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn schedule_from_proto(at: &str, message: Option<v1::Schedule>) -> Result<Schedule, Vec<Violation>> {
    let Some(message) = message else { return Err(vec![Violation::new(at, "must be given")]) };
    let mut found = Found::default();
    let key = match schedule_key_from_proto(at, &message.tenant, &message.name) {
        Ok(key) => Some(key),
        Err(violations) => {
            found.extend(violations);
            None
        }
    };
    let cron: Option<CronExpression> =
        found.take(message.cron.parse().map_err(|violation: Violation| violation.under(at)));
    let unknown = || Violation::new(below(at, "overlap"), "must be a rule that this release knows");
    let overlap = found.take(overlap_rule_from_proto(message.overlap).ok_or_else(unknown));
    let deadline = message.starting_deadline.map_or(Ok(limits::STARTING_DEADLINE_MS_DEFAULT), |deadline| {
        duration_from_proto(&below(at, "starting_deadline"), deadline)
    });
    let starting_deadline_ms = found.take(deadline);
    let runs = match message.runs_max {
        0 => Ok(limits::SCHEDULE_RUNS_DEFAULT),
        count => u16::try_from(count).map_err(|_| {
            let max = limits::SCHEDULE_RUNS_MAX.into();
            Violation::limit(&below(at, "runs_max"), count.into(), 0, max)
        }),
    };
    let runs_max = found.take(runs);
    let template = template_from_proto(&below(at, "job"), &message.tenant, message.job, &mut found);
    let made = match (key, cron, overlap, starting_deadline_ms, runs_max, template) {
        (
            Some(key),
            Some(cron),
            Some(overlap),
            Some(starting_deadline_ms),
            Some(runs_max),
            Some(template),
        ) => {
            let zone = if message.time_zone.is_empty() { ZONE_DEFAULT.to_owned() } else { message.time_zone };
            Schedule { key, cron, zone, template, overlap, starting_deadline_ms, runs_max }
        }
        _ => return Err(found.into_violations()),
    };
    let in_message = |violation: Violation| {
        let field = if violation.field == "zone" { "time_zone".to_owned() } else { violation.field };
        Violation { field, ..violation }.under(at)
    };
    found.extend(made.violations().into_iter().map(in_message).collect());
    if found.is_empty() { Ok(made) } else { Err(found.into_violations()) }
}

/// What the schedule submits. A job that names no tenant is its schedule's.
fn template_from_proto(
    at: &str,
    tenant: &str,
    job: Option<v1::Job>,
    found: &mut Found,
) -> Option<ScheduleTemplate> {
    let job = job.map(|mut job| {
        if job.tenant.is_empty() {
            job.tenant = tenant.to_owned();
        }
        job
    });
    let read = submissions_from_proto(at, job).and_then(|jobs| {
        let job = jobs.into_iter().next().ok_or_else(|| vec![Violation::new(at, "must be given")])?;
        let under =
            |violations: Vec<Violation>| violations.into_iter().map(|found| found.under(at)).collect();
        ScheduleTemplate::of(job).map_err(under)
    });
    match read {
        Ok(template) => Some(template),
        Err(violations) => {
            found.extend(violations);
            None
        }
    }
}

/// A schedule as it was asked for.
#[must_use]
pub fn schedule_to_proto(schedule: &Schedule) -> v1::Schedule {
    let mut job = submission_to_proto(&schedule.template.submission(&schedule.key.name, ""));
    // As it was given: each job of the schedule has it.
    if !schedule.template.metadata.labels.contains_key(muster_types::schedule::SCHEDULE_LABEL) {
        job.labels.remove(muster_types::schedule::SCHEDULE_LABEL);
    }
    v1::Schedule {
        tenant: schedule.key.tenant.to_string(),
        name: schedule.key.name.to_string(),
        cron: schedule.cron.to_string(),
        time_zone: schedule.zone.clone(),
        job: Some(job),
        overlap: overlap_rule_to_proto(schedule.overlap).into(),
        starting_deadline: Some(duration(schedule.starting_deadline_ms)),
        runs_max: schedule.runs_max.into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{JobDraft, Submission, TaskGroup, WorkerRequest};

    fn schedule() -> Schedule {
        let name = |text: &str| Name::new(text).unwrap();
        let request = WorkerRequest {
            accelerators: None,
            cpu_milli: 1_000,
            memory_bytes: 1 << 30,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(name("main"), 1, vec!["train".into()], request);
        let job = JobDraft::new(name("nightly"), name("research"), vec![group]).check().unwrap();
        Schedule {
            key: ScheduleKey { tenant: name("research"), name: name("nightly") },
            cron: "0 6 * * 1-5".parse().unwrap(),
            zone: "Europe/Berlin".into(),
            template: ScheduleTemplate::of(Submission::from(job)).unwrap(),
            overlap: OverlapRule::Replace,
            starting_deadline_ms: 60_000,
            runs_max: 5,
        }
    }

    #[test]
    fn a_schedule_comes_back_as_it_was() {
        let message = schedule_to_proto(&schedule());
        assert_eq!(schedule_from_proto("schedule", Some(message)), Ok(schedule()));
    }

    #[test]
    fn what_is_left_out_has_a_usual_value_and_what_is_wrong_is_named() {
        let mut message = schedule_to_proto(&schedule());
        message.overlap = 0;
        message.starting_deadline = None;
        message.runs_max = 0;
        message.time_zone.clear();
        let read = schedule_from_proto("schedule", Some(message.clone())).unwrap();
        assert_eq!((read.overlap, read.zone.as_str()), (OverlapRule::Forbid, "UTC"));
        let usual = (limits::STARTING_DEADLINE_MS_DEFAULT, limits::SCHEDULE_RUNS_DEFAULT);
        assert_eq!((read.starting_deadline_ms, read.runs_max), usual);
        let fields = |change: &dyn Fn(&mut v1::Schedule)| {
            let mut message = message.clone();
            change(&mut message);
            let found = schedule_from_proto("schedule", Some(message)).unwrap_err();
            found.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(&|message| message.cron = "daily".into()), ["schedule.cron"]);
        assert_eq!(fields(&|message| message.time_zone = "a b".into()), ["schedule.time_zone"]);
        assert_eq!(fields(&|message| message.overlap = 9), ["schedule.overlap"]);
        assert_eq!(fields(&|message| message.runs_max = 51), ["schedule.runs_max"]);
        assert_eq!(fields(&|message| message.runs_max = 70_000), ["schedule.runs_max"]);
        assert_eq!(fields(&|message| message.name = "No".into()), ["schedule.name"]);
        assert_eq!(fields(&|message| message.job = None), ["schedule.job"]);
        let held = |message: &mut v1::Schedule| {
            message.job = message.job.take().map(|job| v1::Job { hold: true, ..job });
        };
        assert_eq!(fields(&held), ["schedule.job.hold"]);
        let other = |message: &mut v1::Schedule| {
            message.job = message.job.take().map(|job| v1::Job { tenant: "speech".into(), ..job });
        };
        assert_eq!(fields(&other), ["schedule.job.tenant"]);
        assert!(schedule_from_proto("schedule", None).is_err());
    }
}
