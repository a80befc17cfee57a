//! Schedules: jobs that are submitted again and again at moments of a calendar.
//!
//! A schedule says local times and a zone. Which moment comes next is found by the leader, outside of the pure crates, and recorded: no
//! replica has to know zones to follow the log.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::contract::{JobContract, Submission};
use crate::cron::CronExpression;
use crate::ids::JobId;
use crate::job::JobSpec;
use crate::limits;
use crate::metadata::JobMetadata;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;
use crate::token::TokenRole;

/// The role of the policy with which somebody has set a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnerRole {
    /// As the policy names it.
    pub name: Name,
    /// The built-in role that it was a part of.
    pub part_of: TokenRole,
}

/// The label of every job that a schedule has made: the schedule's name.
pub const SCHEDULE_LABEL: &str = "schedule";

/// Names a schedule: one of its tenant's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ScheduleKey {
    /// Whose it is, and whose jobs it makes.
    pub tenant: Name,
    /// What people call it.
    pub name: Name,
}

impl fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

/// What becomes of a run that is due while an earlier one is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OverlapRule {
    /// It is made all the same.
    Allow,
    /// It is left out.
    #[default]
    Forbid,
    /// The earlier ones are cancelled, and it starts once they are over.
    Replace,
}

impl OverlapRule {
    /// Every one.
    pub const ALL: [OverlapRule; 3] = [OverlapRule::Allow, OverlapRule::Forbid, OverlapRule::Replace];

    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OverlapRule::Allow => "allow",
            OverlapRule::Forbid => "forbid",
            OverlapRule::Replace => "replace",
        }
    }

    /// By its stable name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<OverlapRule> {
        OverlapRule::ALL.into_iter().find(|rule| rule.name() == text)
    }
}

impl fmt::Display for OverlapRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What every job of a schedule is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleTemplate {
    /// The job; its tenant is the schedule's.
    pub spec: Arc<JobSpec>,
    /// What it asks of the agents that run it.
    pub contract: Arc<JobContract>,
    /// Its labels and annotations. The creator is set with each job.
    pub metadata: JobMetadata,
}

impl ScheduleTemplate {
    /// From what would be submitted.
    ///
    /// # Errors
    /// What a job that is made again and again cannot have, by fields of a job.
    pub fn of(job: Submission) -> Result<ScheduleTemplate, Vec<Violation>> {
        let mut found = Vec::new();
        let mut refuse = |is_there: bool, field: &str, text: &str| {
            if is_there {
                found.push(Violation::new(field, text));
            }
        };
        refuse(job.array.is_some(), "spec.array", "a schedule makes one job at a time, and no arrays");
        let waits = !job.spec.dependencies.is_empty() || !job.named_dependencies.is_empty();
        refuse(waits, "spec.dependencies", "a job of a schedule waits for no other jobs");
        let text =
            "a job of a schedule is made when it is due, and not held; `muster schedule suspend` makes none";
        refuse(job.held, "hold", text);
        refuse(
            job.spec.not_before.is_some(),
            "spec.not_before",
            "the moments of a schedule are its cron expression's",
        );
        refuse(
            job.spec.deadline.is_some(),
            "spec.deadline",
            "a job of a schedule has no moment to be over by; set a run time limit",
        );
        if !found.is_empty() {
            return Err(found);
        }
        let mut metadata = job.metadata.map(|shared| JobMetadata::clone(&shared)).unwrap_or_default();
        metadata.creator = String::new();
        Ok(ScheduleTemplate { spec: Arc::new(job.spec), contract: Arc::new(job.contract), metadata })
    }

    /// The job as it is submitted, with the schedule's name as a label.
    #[must_use]
    pub fn submission(&self, schedule: &Name, creator: &str) -> Submission {
        let mut metadata = self.metadata.clone();
        metadata.labels.insert(SCHEDULE_LABEL.into(), schedule.as_str().into());
        metadata.creator = creator.into();
        let mut job = Submission::new(JobSpec::clone(&self.spec), JobContract::clone(&self.contract));
        job.metadata = Some(Arc::new(metadata));
        job
    }
}

/// A schedule, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name.
    pub key: ScheduleKey,
    /// When it is due, in local time.
    pub cron: CronExpression,
    /// Where that local time is, by its name in the time zone database: `Europe/Berlin`, `UTC`.
    pub zone: String,
    /// What it makes.
    pub template: ScheduleTemplate,
    /// What becomes of a run that is due while an earlier one is not over.
    pub overlap: OverlapRule,
    /// How long after its moment a run may still be made, in milliseconds; later it is left out.
    pub starting_deadline_ms: u64,
    /// How many of its runs are listed.
    pub runs_max: u16,
}

impl Schedule {
    /// Every rule that it breaks. That its zone exists is not known here.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let is_zone = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
        if self.zone.is_empty() || self.zone.len() > limits::ZONE_BYTES_MAX || !self.zone.bytes().all(is_zone)
        {
            let text = "must be the name of a time zone, like Europe/Berlin or UTC";
            found.push(Violation::new("zone", text));
        }
        let (min, max) = limits::STARTING_DEADLINE_MS;
        if !(min..=max).contains(&self.starting_deadline_ms) {
            found.push(Violation::span("starting_deadline", self.starting_deadline_ms, min, max));
        }
        let max = limits::SCHEDULE_RUNS_MAX;
        if !(1..=max).contains(&self.runs_max) {
            found.push(Violation::limit("runs_max", self.runs_max.into(), 1, max.into()));
        }
        if self.template.spec.tenant != self.key.tenant {
            let text = format!("must be {}, the schedule's tenant", self.key.tenant);
            found.push(Violation::new("job.tenant", text));
        }
        found
    }
}

/// What became of one moment of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleRun {
    /// This job was submitted.
    Submitted(JobId),
    /// None was, with a sentence.
    Skipped(String),
}

/// What a schedule waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NextRun {
    /// That the leader finds the next moment.
    Unknown,
    /// This moment.
    At(LogTime),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_names() {
        for rule in OverlapRule::ALL {
            assert_eq!(OverlapRule::from_name(rule.name()), Some(rule));
        }
        assert_eq!(OverlapRule::from_name("never"), None);
    }
}
