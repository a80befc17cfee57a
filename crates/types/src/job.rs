//! The user's unit of submission.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use serde::{Deserialize, Deserializer, Serialize};

use crate::fleet::Accelerators;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;

/// Coarse class of importance. Higher goes first; order is the declaration's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PriorityTier {
    /// Whatever is left over.
    Free,
    /// Work without a date.
    Batch,
    /// What a job gets that says nothing.
    #[default]
    Standard,
    /// Work that others wait for.
    Production,
    /// The service itself.
    Critical,
}

impl PriorityTier {
    /// Every tier, lowest first.
    pub const ALL: [PriorityTier; 5] = [
        PriorityTier::Free,
        PriorityTier::Batch,
        PriorityTier::Standard,
        PriorityTier::Production,
        PriorityTier::Critical,
    ];

    /// As users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PriorityTier::Free => "free",
            PriorityTier::Batch => "batch",
            PriorityTier::Standard => "standard",
            PriorityTier::Production => "production",
            PriorityTier::Critical => "critical",
        }
    }

    /// The tier a user named.
    #[must_use]
    pub fn parse(text: &str) -> Option<PriorityTier> {
        PriorityTier::ALL.into_iter().find(|tier| tier.as_str() == text)
    }
}

impl fmt::Display for PriorityTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What each worker of a group needs on its host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerRequest {
    /// Whole accelerators of one type; none for a worker without.
    pub accelerators: Option<Accelerators>,
    /// Milli-CPUs, from 1.
    pub cpu_milli: u64,
    /// Bytes of memory, from 1.
    pub memory_bytes: u64,
}

/// Workers that run the same command with the same needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGroup {
    /// Unique in the job.
    pub name: Name,
    /// How many; ranks run through the groups in order.
    pub workers: u32,
    /// Program and arguments; not passed through a shell.
    pub command: Vec<String>,
    /// Variables of the user's own.
    pub environment: BTreeMap<String, String>,
    /// What each worker needs.
    pub request: WorkerRequest,
}

/// What decides where a gang can go: gangs of one class get the same answer, so a deep queue costs
/// per class and not per job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangClass {
    groups: Vec<(u32, WorkerRequest)>,
    regions: Vec<Name>,
}

impl GangClass {
    /// The class of a job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> GangClass {
        GangClass {
            groups: spec.groups.iter().map(|g| (g.workers, g.request.clone())).collect(),
            regions: spec.regions.clone(),
        }
    }
}

/// Place of a job in an array of like jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayMember {
    /// From 0.
    pub index: u32,
    /// Jobs of the array.
    pub size: u32,
}

/// What a user submits; checked by [`JobDraft::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDraft {
    /// For people; need not be unique.
    pub name: Name,
    /// Who it is for.
    pub tenant: Name,
    /// How important it is.
    pub tier: PriorityTier,
    /// The gang, group by group. It starts all-or-nothing, inside one fleet cluster.
    pub groups: Vec<TaskGroup>,
    /// Regions it may run in; empty for any.
    pub regions: Vec<Name>,
    /// Longest run of one attempt, from its start; none for no limit.
    pub run_time_limit_ms: Option<u64>,
    /// From SIGTERM to SIGKILL.
    pub stop_grace_ms: u64,
    /// New attempts after a failure of the application. Evictions are always retried.
    pub failure_retries_max: u32,
    /// Directory readable and writable wherever the job may run; each job gets a folder of its own in it.
    pub checkpoint_directory: Option<String>,
    /// Where the command starts; the worker's own folder on the node when none is named.
    pub working_directory: Option<String>,
    /// Its place in an array.
    pub array: Option<ArrayMember>,
}

/// A checked job. There is no other way to make one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct JobSpec(JobDraft);

impl Deref for JobSpec {
    type Target = JobDraft;

    fn deref(&self) -> &JobDraft {
        &self.0
    }
}

impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let draft = JobDraft::deserialize(deserializer)?;
        draft.check().map_err(|found| {
            let first = found.first().map(ToString::to_string).unwrap_or_default();
            serde::de::Error::custom(first)
        })
    }
}

impl JobSpec {
    /// Workers over all groups.
    #[must_use]
    pub fn worker_count(&self) -> u32 {
        self.groups.iter().map(|g| g.workers).sum()
    }

    /// Devices over all workers.
    #[must_use]
    pub fn device_count(&self) -> u64 {
        let per_group = |g: &TaskGroup| {
            u64::from(g.workers) * u64::from(g.request.accelerators.as_ref().map_or(0, |a| a.count))
        };
        self.groups.iter().map(per_group).sum()
    }

    /// The group of a rank, and the rank's number in it.
    #[must_use]
    pub fn group_of(&self, rank: u32) -> Option<(&TaskGroup, u32)> {
        let mut first = 0;
        for group in &self.groups {
            if rank < first + group.workers {
                return Some((group, rank - first));
            }
            first += group.workers;
        }
        None
    }

    /// Back to a draft, for building a variation of it.
    #[must_use]
    pub fn into_draft(self) -> JobDraft {
        self.0
    }
}

impl JobDraft {
    /// The job, or every rule it breaks.
    ///
    /// # Errors
    /// Lists all violations, not just the first.
    pub fn check(self) -> Result<JobSpec, Vec<Violation>> {
        let mut found = Vec::new();
        self.check_groups(&mut found);
        if self.regions.len() > limits::JOB_REGIONS_MAX {
            found.push(Violation::limit(
                "regions",
                self.regions.len() as u64,
                0,
                limits::JOB_REGIONS_MAX as u64,
            ));
        }
        let distinct: BTreeSet<&Name> = self.regions.iter().collect();
        if distinct.len() != self.regions.len() {
            found.push(Violation::new("regions", "must not name a region twice"));
        }
        if let Some(limit) = self.run_time_limit_ms
            && (limit == 0 || limit > limits::RUN_TIME_LIMIT_MS_MAX)
        {
            found.push(Violation::limit("run_time_limit_ms", limit, 1, limits::RUN_TIME_LIMIT_MS_MAX));
        }
        if self.stop_grace_ms > limits::STOP_GRACE_MS_MAX {
            found.push(Violation::limit("stop_grace_ms", self.stop_grace_ms, 0, limits::STOP_GRACE_MS_MAX));
        }
        if self.failure_retries_max > limits::FAILURE_RETRIES_MAX {
            let max = limits::FAILURE_RETRIES_MAX.into();
            found.push(Violation::limit("failure_retries_max", self.failure_retries_max.into(), 0, max));
        }
        let directories = [
            ("checkpoint_directory", &self.checkpoint_directory),
            ("working_directory", &self.working_directory),
        ];
        for (field, directory) in directories {
            if let Some(path) = directory {
                check_directory(field, path, &mut found);
            }
        }
        if let Some(array) = self.array
            && (array.index >= array.size || array.size as usize > limits::BATCH_JOBS_MAX)
        {
            let max = limits::BATCH_JOBS_MAX;
            found.push(Violation::new(
                "array",
                format!("must have an index below its size and a size of at most {max}"),
            ));
        }
        if found.is_empty() { Ok(JobSpec(self)) } else { Err(found) }
    }

    fn check_groups(&self, found: &mut Vec<Violation>) {
        if self.groups.is_empty() || self.groups.len() > limits::TASK_GROUPS_MAX {
            let max = limits::TASK_GROUPS_MAX as u64;
            found.push(Violation::limit("groups", self.groups.len() as u64, 1, max));
        }
        let mut workers = 0u64;
        let mut text_bytes = 0usize;
        let mut names = BTreeSet::new();
        for (index, group) in self.groups.iter().enumerate() {
            let at = format!("groups[{index}]");
            if !names.insert(&group.name) {
                found.push(Violation::new(format!("{at}.name"), "must be unique in the job"));
            }
            workers += u64::from(group.workers);
            text_bytes += group.text_bytes();
            group.check(&at, found);
        }
        if workers > u64::from(limits::GANG_WORKERS_MAX) {
            let max = limits::GANG_WORKERS_MAX;
            found.push(Violation::new(
                "groups",
                format!("must have at most {max} workers together, got {workers}"),
            ));
        }
        if text_bytes > limits::JOB_TEXT_BYTES_MAX {
            let max = limits::JOB_TEXT_BYTES_MAX;
            found.push(Violation::new(
                "groups",
                format!("commands and environments must be at most {max} bytes together, got {text_bytes}"),
            ));
        }
    }
}

fn check_directory(field: &str, path: &str, found: &mut Vec<Violation>) {
    if !path.starts_with('/') || path.len() > limits::TEXT_BYTES_MAX || path.contains('\0') {
        let max = limits::TEXT_BYTES_MAX;
        found.push(Violation::new(field, format!("must be an absolute path of at most {max} bytes")));
    }
}

impl TaskGroup {
    fn text_bytes(&self) -> usize {
        let words: usize = self.command.iter().map(String::len).sum();
        let variables: usize = self.environment.iter().map(|(k, v)| k.len() + v.len()).sum();
        words + variables
    }

    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        if self.workers == 0 || self.workers > limits::GANG_WORKERS_MAX {
            let max = limits::GANG_WORKERS_MAX.into();
            found.push(Violation::limit(&format!("{at}.workers"), self.workers.into(), 1, max));
        }
        let words = self.command.len();
        if words == 0 || words > limits::COMMAND_WORDS_MAX {
            found.push(Violation::limit(
                &format!("{at}.command"),
                words as u64,
                1,
                limits::COMMAND_WORDS_MAX as u64,
            ));
        }
        for (place, word) in self.command.iter().enumerate() {
            if word.len() > limits::TEXT_BYTES_MAX || word.contains('\0') || (place == 0 && word.is_empty()) {
                let max = limits::TEXT_BYTES_MAX;
                found.push(Violation::new(
                    format!("{at}.command[{place}]"),
                    format!("must be at most {max} bytes without a zero byte, and the program not empty"),
                ));
            }
        }
        self.check_environment(at, found);
        self.request.check(at, found);
    }

    fn check_environment(&self, at: &str, found: &mut Vec<Violation>) {
        if self.environment.len() > limits::ENVIRONMENT_MAX {
            found.push(Violation::limit(
                &format!("{at}.environment"),
                self.environment.len() as u64,
                0,
                limits::ENVIRONMENT_MAX as u64,
            ));
        }
        for (key, value) in &self.environment {
            let shown: String = key.chars().take(80).collect();
            let field = format!("{at}.environment.{shown}");
            let first_is_digit = key.bytes().next().is_some_and(|b| b.is_ascii_digit());
            let form = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if key.is_empty() || key.len() > 256 || first_is_digit || !form {
                found.push(Violation::new(field, "must be a variable name: letters, digits and '_', not starting with a digit, at most 256 bytes"));
            } else if value.len() > limits::TEXT_BYTES_MAX || value.contains('\0') {
                found.push(Violation::new(
                    field,
                    format!("must be at most {} bytes without a zero byte", limits::TEXT_BYTES_MAX),
                ));
            } else if key.starts_with("MUSTER_") {
                found.push(Violation::new(field, "MUSTER_ variables are set by Muster"));
            }
        }
    }
}

impl WorkerRequest {
    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        if let Some(accelerators) = &self.accelerators {
            let max = limits::HOST_DEVICES_MAX;
            if accelerators.count == 0 || accelerators.count > max {
                found.push(Violation::limit(
                    &format!("{at}.request.accelerators.count"),
                    accelerators.count.into(),
                    1,
                    max.into(),
                ));
            }
        }
        if self.cpu_milli == 0 || self.cpu_milli > limits::CPU_MILLI_MAX {
            found.push(Violation::limit(
                &format!("{at}.request.cpu_milli"),
                self.cpu_milli,
                1,
                limits::CPU_MILLI_MAX,
            ));
        }
        if self.memory_bytes == 0 || self.memory_bytes > limits::MEMORY_BYTES_MAX {
            found.push(Violation::limit(
                &format!("{at}.request.memory_bytes"),
                self.memory_bytes,
                1,
                limits::MEMORY_BYTES_MAX,
            ));
        }
    }
}
