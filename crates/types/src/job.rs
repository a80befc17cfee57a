//! The user's unit of submission.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use serde::{Deserialize, Deserializer, Serialize};

use crate::affinity::{self, Affinity, AffinityTarget};
use crate::capacity::CapacityRules;
use crate::container::Container;
use crate::demand::{AcceleratorRequest, DeviceAmount};
use crate::ids::{JobId, LogIndex};
use crate::licence::{self, Licences};
use crate::limits;
use crate::name::Name;
use crate::node_requirements::NodeRequirements;
use crate::queue::QueueRank;
use crate::reason::Violation;
use crate::time::LogTime;
use crate::topology::TopologyRule;
use crate::tpu::{Generation, SliceRequest};

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
    /// Accelerators; none for a worker without.
    pub accelerators: Option<AcceleratorRequest>,
    /// Milli-CPUs, from 1.
    pub cpu_milli: u64,
    /// Bytes of memory, from 1.
    pub memory_bytes: u64,
    /// Whether it has its host to itself, with all of its CPUs and memory: then the two are the least that the host must have.
    pub exclusive: bool,
    /// Bytes of the directory that it has for itself on a local disk; 0 for none.
    pub scratch_bytes: u64,
}

/// Workers that run the same command with the same needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGroup {
    /// Unique in the job.
    pub name: Name,
    /// How many; ranks run through the groups in order.
    pub workers: u32,
    /// Fewest it can start and go on with; below `workers` only in an elastic job. Several groups shrink together.
    pub workers_min: u32,
    /// Program and arguments; not passed through a shell. Empty for those of its image.
    pub command: Vec<String>,
    /// Variables of the user's own.
    pub environment: BTreeMap<String, String>,
    /// What each worker needs.
    pub request: WorkerRequest,
    /// The TPU slices that the group's workers form, one worker to a host, in rank order.
    pub slice: Option<SliceRequest>,
    /// The image whose root directory the workers have; none for that of their host.
    pub container: Option<Container>,
}

/// When a job may start that waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DependencyRule {
    /// The other has succeeded; should it fail or be cancelled, so does this one.
    Succeeded,
    /// The other is over, however.
    Finished,
}

/// What a dependency is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DependencyScope {
    /// One job; a member of an array, too.
    #[default]
    Job,
    /// An array as a whole: its last member has to be over, and for success every one has to succeed.
    Array,
    /// Of two arrays with the same indices: each member waits for the other's member with its index.
    Member,
}

/// A job or an array that this one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// Which, submitted before; of an array the id of its first member.
    pub job: JobId,
    /// What must have become of it.
    pub rule: DependencyRule,
    /// Which part of it is waited for.
    pub scope: DependencyScope,
}

impl Dependency {
    /// On one job.
    #[must_use]
    pub const fn new(job: JobId, rule: DependencyRule) -> Dependency {
        Dependency { job, rule, scope: DependencyScope::Job }
    }

    /// Whether it is on an array as a whole.
    #[must_use]
    pub fn is_of_array(&self) -> bool {
        self.scope == DependencyScope::Array
    }

    /// Whether each member of an array waits for one member of another.
    #[must_use]
    pub fn is_of_members(&self) -> bool {
        self.scope == DependencyScope::Member
    }
}

/// Another job, or an array, of the same request that this one waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedDependency {
    /// The other's name, which is its own in the request.
    pub name: Name,
    /// What must have become of it: of an array, of every member.
    pub rule: DependencyRule,
    /// Whether each member of this array waits for the member with its index, and not for all.
    pub by_member: bool,
    /// Its place among all dependencies of the job, as the request has them.
    pub place: u32,
}

/// Place of a job in an array of like jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayMember {
    /// The index that its owner gave it.
    pub index: u32,
    /// Its place among the members, from 0: its id is the array's number plus this.
    pub ordinal: u32,
    /// Members of the array.
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
    /// Directory readable and writable wherever the job may run; each job gets its own directory in it.
    pub checkpoint_directory: Option<String>,
    /// Where the command starts; the worker's own directory on the node when none is named.
    pub working_directory: Option<String>,
    /// Its place in an array.
    pub array: Option<ArrayMember>,
    /// How close together or how far apart its workers have to be.
    pub topology: TopologyRule,
    /// Labels that its nodes must have, each with one of the values.
    pub node_selector: BTreeMap<Name, BTreeSet<String>>,
    /// Taints that it may be placed in spite of.
    pub tolerations: BTreeSet<Name>,
    /// Whether policy may preempt it; it then starts again from its last checkpoint.
    pub preemptible: bool,
    /// Jobs it waits for.
    pub dependencies: Vec<Dependency>,
    /// Not to be started before.
    pub not_before: Option<LogTime>,
    /// When it has to be over: a job that is not ends as failed. Where policy gives its tenant that right it goes before
    /// its like as the time draws near.
    pub deadline: Option<LogTime>,
    /// How long its owner expects it to run; none leaves it to what was learned.
    pub expected_run_ms: Option<u64>,
    /// Data sets it reads, by the names policy has for them.
    pub datasets: Vec<Name>,
    /// What else its nodes have to be; none for nothing else.
    pub nodes: Option<Box<NodeRequirements>>,
    /// The booking whose nodes it runs on, while a window of it is open; none for nodes that nobody has booked.
    pub booking: Option<Name>,
    /// How its nodes may have been bought; none for any.
    pub capacity: Option<Box<CapacityRules>>,
    /// Where its workers lie with respect to those of other jobs.
    pub affinity: Vec<Affinity>,
    /// What it holds of the counted resources of the policy, as a whole, from its placement to its end.
    pub licences: Licences,
    /// Its place among the waiting jobs of its tenant and tier: the lower goes first, from -100 to 100.
    pub nice: i8,
    /// The record that moved it before the other waiting jobs of its tenant and tier; none where nobody has.
    pub front: Option<LogIndex>,
    /// The most workers that it is placed with, where somebody has changed the size of an elastic job that ran; none for as many as
    /// its group has.
    pub size: Option<u32>,
    /// Within which time of the start of an attempt each worker has to say that it is ready; none asks for nothing.
    pub readiness_ms: Option<u64>,
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

    /// Thousandths of devices over all workers.
    #[must_use]
    pub fn device_milli(&self) -> u64 {
        let per_group = |g: &TaskGroup| u64::from(g.workers) * g.request.device_milli();
        self.groups.iter().map(per_group).sum()
    }

    /// Thousandths of devices that its fewest workers take, if all groups that accept a type get that type; zero where
    /// none accepts it.
    #[must_use]
    pub fn least_milli_of(&self, kind: &Name) -> u64 {
        let of_group = |group: &TaskGroup| {
            let accepts = group.request.accelerators.as_ref().is_some_and(|request| request.accepts(kind));
            if accepts { u64::from(group.workers_min) * group.request.device_milli() } else { 0 }
        };
        self.groups.iter().map(of_group).sum()
    }

    /// Devices over all workers; a share of one counts as one.
    #[must_use]
    pub fn device_count(&self) -> u64 {
        let per_group = |g: &TaskGroup| u64::from(g.workers) * u64::from(g.request.device_count());
        self.groups.iter().map(per_group).sum()
    }

    /// Fewest workers it can start with.
    #[must_use]
    pub fn worker_count_min(&self) -> u32 {
        self.groups.iter().map(|g| g.workers_min).sum()
    }

    /// Whether it is to lie with respect to a job that has no id yet, which no job that is submitted is.
    #[must_use]
    pub fn names_unsubmitted(&self) -> bool {
        self.affinity.iter().any(|entry| matches!(entry.target, AffinityTarget::Named(_)))
    }

    /// Whether it may run with fewer workers than it asks for.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.groups.iter().any(|g| g.workers_min < g.workers)
    }

    /// Whether each of its workers has a host to itself.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.groups.iter().any(|group| group.request.exclusive)
    }

    /// Bytes of the scratch directory of each worker; 0 for none.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.request.scratch_bytes).max().unwrap_or(0)
    }

    /// What goes before its position among the waiting jobs of its tenant and tier.
    #[must_use]
    pub fn rank(&self) -> QueueRank {
        QueueRank::new(self.nice, self.front)
    }

    /// The same job with no more workers than it is to be placed with; none where those are all that it asks for.
    #[must_use]
    pub fn at_size(&self) -> Option<JobSpec> {
        let size = self.size?;
        let mut draft = self.0.clone();
        draft.size = None;
        let [only] = draft.groups.as_mut_slice() else { return None };
        if size >= only.workers {
            return None;
        }
        only.workers = size;
        draft.check().ok()
    }

    /// Whether any of its workers has the root directory of an image.
    #[must_use]
    pub fn needs_container_runtime(&self) -> bool {
        self.groups.iter().any(|g| g.container.is_some())
    }

    /// Whether it loses only what came after its last checkpoint when it is stopped.
    #[must_use]
    pub fn is_checkpointed(&self) -> bool {
        self.checkpoint_directory.is_some()
    }

    /// Steps from its fewest workers to all of them. Each step has more workers than the one before it, because one group
    /// grows by at least one.
    #[must_use]
    pub fn size_steps(&self) -> u32 {
        let widest = self.groups.iter().map(|g| g.workers.saturating_sub(g.workers_min)).max();
        widest.unwrap_or(0).min(limits::ELASTIC_STEPS_MAX)
    }

    /// Workers of each group at a step: the groups grow in proportion from their fewest to all.
    pub fn sizes_at(&self, step: u32) -> impl Iterator<Item = u32> {
        let steps = self.size_steps();
        self.groups.iter().map(move |group| {
            let range = u64::from(group.workers.saturating_sub(group.workers_min));
            let more = range * u64::from(step.min(steps));
            let more = u32::try_from(more.div_ceil(u64::from(steps.max(1)))).unwrap_or(u32::MAX);
            group.workers_min.saturating_add(more).min(group.workers)
        })
    }

    /// Workers over all groups at a step.
    #[must_use]
    pub fn workers_at(&self, step: u32) -> u32 {
        self.sizes_at(step).sum()
    }

    /// The step at which a gang of several groups has this many workers; none where no step has.
    #[must_use]
    pub fn step_of(&self, workers: u32) -> Option<u32> {
        let (mut low, mut high) = (0, self.size_steps());
        while low < high {
            let middle = low.midpoint(high);
            if self.workers_at(middle) < workers { low = middle + 1 } else { high = middle }
        }
        (self.workers_at(low) == workers).then_some(low)
    }

    /// Whether the gang may have this many workers: one group any number from its fewest on, several groups that of a
    /// step.
    #[must_use]
    pub fn may_have(&self, workers: u32) -> bool {
        match self.groups.as_slice() {
            [only] => (only.workers_min..=only.workers).contains(&workers),
            _ => self.step_of(workers).is_some(),
        }
    }

    /// Workers of each group of a gang of this many; none where it may not have that many.
    #[must_use]
    pub fn sizes_of(&self, workers: u32) -> Option<Vec<u32>> {
        match self.groups.as_slice() {
            [_] => self.may_have(workers).then(|| Vec::from([workers])),
            _ => self.step_of(workers).map(|step| self.sizes_at(step).collect()),
        }
    }

    /// Thousandths of devices of a gang of this many workers; of all where it may not have that many.
    #[must_use]
    pub fn device_milli_of(&self, workers: u32) -> u64 {
        self.sum_of(workers, WorkerRequest::device_milli)
    }

    /// Devices of a gang of this many workers; of all where it may not have that many. A share of one counts as one.
    #[must_use]
    pub fn device_count_of(&self, workers: u32) -> u64 {
        self.sum_of(workers, |request| request.device_count().into())
    }

    /// Thousandths of CPUs of a gang of this many workers; of all where it may not have that many.
    #[must_use]
    pub fn cpu_milli_of(&self, workers: u32) -> u64 {
        self.sum_of(workers, |request| request.cpu_milli)
    }

    /// Bytes of memory of a gang of this many workers; of all where it may not have that many.
    #[must_use]
    pub fn memory_bytes_of(&self, workers: u32) -> u64 {
        self.sum_of(workers, |request| request.memory_bytes)
    }

    /// The sum over the workers of a gang of this many; over all where it may not have that many.
    fn sum_of(&self, workers: u32, of: impl Fn(&WorkerRequest) -> u64) -> u64 {
        if let [only] = self.groups.as_slice() {
            return of(&only.request).saturating_mul(workers.min(only.workers).into());
        }
        let step = self.step_of(workers).unwrap_or_else(|| self.size_steps());
        let groups = self.groups.iter().zip(self.sizes_at(step));
        groups.map(|(group, workers)| of(&group.request).saturating_mul(workers.into())).sum()
    }

    /// The group of a rank of a gang that has this many workers, and the rank's number in it. One that may not have that many
    /// is looked at as if it had all.
    #[must_use]
    pub fn group_of(&self, rank: u32, workers: usize) -> Option<(&TaskGroup, u32)> {
        if let [only] = self.groups.as_slice() {
            return (rank < only.workers).then_some((only, rank));
        }
        let steps = self.size_steps();
        let workers = u32::try_from(workers).ok().filter(|_| steps > 0);
        let step = workers.and_then(|workers| self.step_of(workers));
        let mut first = 0;
        for (group, workers) in self.groups.iter().zip(self.sizes_at(step.unwrap_or(steps))) {
            if rank < first + workers {
                return Some((group, rank - first));
            }
            first += workers;
        }
        None
    }

    /// The group of a worker's place in a gang that has this many workers: that of its rank, and behind the last rank that
    /// of a spare.
    #[must_use]
    pub fn group_of_slot(&self, place: u32, workers: usize) -> Option<&TaskGroup> {
        match self.groups.as_slice() {
            [only] => Some(only),
            _ => self.group_of(place, workers).map(|(group, _)| group),
        }
    }

    /// The same job as a member of an array.
    ///
    /// # Panics
    /// When the member breaks a rule: the array was checked before.
    #[must_use]
    pub fn as_member(&self, member: ArrayMember) -> JobSpec {
        let is_valid = member.ordinal < member.size
            && member.size <= limits::ARRAY_MEMBERS_MAX
            && member.index <= limits::ARRAY_INDEX_MAX;
        assert!(is_valid, "a member of an array has an ordinal and an index of it");
        JobSpec(JobDraft { array: Some(member), ..self.0.clone() })
    }

    /// The same job once it takes what it names as a fallback; none for one that names nothing, or that takes it already.
    #[must_use]
    pub fn with_open_fallback(&self) -> Option<JobSpec> {
        let capacity = self.capacity.as_deref()?;
        capacity.closed_fallback()?;
        Some(JobSpec(JobDraft { capacity: Some(Box::new(capacity.opened())), ..self.0.clone() }))
    }

    /// The same job with this number of spares behind its workers, in whole segments where it has segments: what is behind the
    /// spares is not needed. None where its rules do not allow for more workers.
    #[must_use]
    pub fn with_spares(&self, spares: u32) -> Option<JobSpec> {
        let unit = self.topology.segment_unit();
        let mut draft = self.0.clone();
        let [group] = draft.groups.as_mut_slice() else { return None };
        group.workers = group.workers.checked_add(spares.checked_next_multiple_of(unit)?)?;
        draft.check().ok()
    }

    /// Back to a draft, for building a variation of it.
    #[must_use]
    pub fn into_draft(self) -> JobDraft {
        self.0
    }
}

impl JobDraft {
    /// A job that says nothing but who it is for and what it runs: of the standard tier, anywhere, without
    /// limit, stopped within half a minute, preemptible, never retried.
    #[must_use]
    pub fn new(name: Name, tenant: Name, groups: Vec<TaskGroup>) -> JobDraft {
        JobDraft {
            name,
            tenant,
            tier: PriorityTier::default(),
            groups,
            regions: Vec::new(),
            run_time_limit_ms: None,
            stop_grace_ms: 30_000,
            failure_retries_max: 0,
            checkpoint_directory: None,
            working_directory: None,
            array: None,
            topology: TopologyRule::default(),
            node_selector: BTreeMap::new(),
            tolerations: BTreeSet::new(),
            preemptible: true,
            dependencies: Vec::new(),
            not_before: None,
            deadline: None,
            expected_run_ms: None,
            datasets: Vec::new(),
            nodes: None,
            booking: None,
            capacity: None,
            affinity: Vec::new(),
            licences: Licences::new(),
            nice: 0,
            front: None,
            size: None,
            readiness_ms: None,
        }
    }

    /// The job, or every rule it breaks.
    ///
    /// # Errors
    /// Lists all violations, not just the first.
    pub fn check(self) -> Result<JobSpec, Vec<Violation>> {
        let mut found = Vec::new();
        self.check_groups(&mut found);
        if self.regions.len() > limits::JOB_REGIONS_MAX {
            let bounds = (0, limits::JOB_REGIONS_MAX);
            found.push(Violation::count("regions", self.regions.len(), bounds, "regions"));
        }
        if has_twice(&self.regions) {
            found.push(Violation::new("regions", "must not name a region twice"));
        }
        if let Some(limit) = self.run_time_limit_ms
            && (limit == 0 || limit > limits::RUN_TIME_LIMIT_MS_MAX)
        {
            found.push(Violation::span("run_time_limit", limit, 1, limits::RUN_TIME_LIMIT_MS_MAX));
        }
        if self.stop_grace_ms > limits::STOP_GRACE_MS_MAX {
            found.push(Violation::span("stop_grace", self.stop_grace_ms, 0, limits::STOP_GRACE_MS_MAX));
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
            && (array.ordinal >= array.size
                || array.size > limits::ARRAY_MEMBERS_MAX
                || array.index > limits::ARRAY_INDEX_MAX)
        {
            let (max, index_max) = (limits::ARRAY_MEMBERS_MAX, limits::ARRAY_INDEX_MAX);
            found.push(Violation::new(
                "array",
                format!("must have an ordinal below its size, a size of at most {max} and an index of at most {index_max}"),
            ));
        }
        self.check_place(&mut found);
        self.check_order(&mut found);
        self.check_size(&mut found);
        if found.is_empty() { Ok(JobSpec(self)) } else { Err(found) }
    }

    /// The size that was asked for is one of its only group.
    fn check_size(&self, found: &mut Vec<Violation>) {
        let Some(size) = self.size else { return };
        match self.groups.as_slice() {
            [only] if (only.workers_min..=only.workers).contains(&size) => {}
            [only] => {
                let (least, most) = (only.workers_min.into(), only.workers.into());
                found.push(Violation::limit("groups[0].workers", size.into(), least, most));
            }
            _ => {
                let text = "can be changed of a job that has been placed only where the job has one group";
                found.push(Violation::new("groups", text));
            }
        }
    }

    /// Rules about where it may go.
    fn check_place(&self, found: &mut Vec<Violation>) {
        let workers = self.groups.iter().map(|g| g.workers).fold(0, u32::saturating_add);
        self.topology.check(workers, found);
        let mut bound = |field: &str, count: usize, max: usize, what: &str| {
            if count > max {
                found.push(Violation::count(field, count, (0, max), what));
            }
        };
        bound("node_selector", self.node_selector.len(), limits::NODE_LABELS_MAX, "labels");
        bound("tolerations", self.tolerations.len(), limits::NODE_TAINTS_MAX, "taints");
        bound("datasets", self.datasets.len(), limits::JOB_DATASETS_MAX, "data sets");
        for (label, values) in &self.node_selector {
            let long = values.iter().any(|value| value.len() > limits::LABEL_BYTES_MAX);
            if values.is_empty() || values.len() > limits::SELECTOR_VALUES_MAX || long {
                let (max, bytes) = (limits::SELECTOR_VALUES_MAX, limits::LABEL_BYTES_MAX);
                found.push(Violation::new(
                    format!("node_selector.{label}"),
                    format!("must have 1 to {max} values of at most {bytes} bytes"),
                ));
            }
        }
        if let Some(nodes) = &self.nodes {
            nodes.check(found);
        }
        if let Some(capacity) = &self.capacity {
            capacity.check(found);
        }
        affinity::check_all(&self.affinity, found);
        licence::check_all(&self.licences, found);
        if has_twice(&self.datasets) {
            found.push(Violation::new("datasets", "must not name a data set twice"));
        }
        let elastic = self.groups.iter().position(|g| g.workers_min < g.workers);
        if let Some(elastic) = elastic.filter(|_| self.groups.iter().any(|g| g.slice.is_some())) {
            found.push(Violation::new(
                format!("groups[{elastic}].workers_min"),
                "may be below workers only in a job of which no group forms slices",
            ));
        }
    }

    /// Rules about when it may go.
    fn check_order(&self, found: &mut Vec<Violation>) {
        if self.dependencies.len() > limits::JOB_DEPENDENCIES_MAX {
            let bounds = (0, limits::JOB_DEPENDENCIES_MAX);
            found.push(Violation::count("dependencies", self.dependencies.len(), bounds, "jobs"));
        }
        let jobs: Vec<_> = self.dependencies.iter().map(|on| (on.job, on.scope)).collect();
        if has_twice(&jobs) {
            found.push(Violation::new("dependencies", "must not name a job twice"));
        }
        if let (Some(start), Some(end)) = (self.not_before, self.deadline)
            && start >= end
        {
            found.push(Violation::new("deadline", "must be after not_before"));
        }
        if let Some(expected) = self.expected_run_ms
            && (expected == 0 || expected > limits::RUN_TIME_LIMIT_MS_MAX)
        {
            let max = limits::RUN_TIME_LIMIT_MS_MAX;
            found.push(Violation::span("expected_run", expected, 1, max));
        }
        let (shortest, longest) = (limits::READINESS_MS_MIN, limits::READINESS_MS_MAX);
        if let Some(ms) = self.readiness_ms.filter(|ms| !(shortest..=longest).contains(ms)) {
            found.push(Violation::span("readiness.timeout", ms, shortest, longest));
        }
        if self.nice.unsigned_abs() > limits::NICE_MAX {
            let max = limits::NICE_MAX;
            let text = format!("must be between -{max} and {max}, got {}", self.nice);
            found.push(Violation::new("nice", text));
        }
    }

    fn check_groups(&self, found: &mut Vec<Violation>) {
        if self.groups.is_empty() || self.groups.len() > limits::TASK_GROUPS_MAX {
            let bounds = (1, limits::TASK_GROUPS_MAX);
            found.push(Violation::count("groups", self.groups.len(), bounds, "groups"));
        }
        let mut workers = 0u64;
        let mut text_bytes = 0usize;
        let mut names = BTreeSet::new();
        for (index, group) in self.groups.iter().enumerate() {
            let at = GroupPath(index);
            if self.groups.len() > 1 && !names.insert(&group.name) {
                found.push(Violation::new(format!("{at}.name"), "must be unique in the job"));
            }
            workers += u64::from(group.workers);
            text_bytes += group.text_bytes();
            group.check(at, found);
        }
        let is_exclusive = |group: &TaskGroup| group.request.exclusive;
        if self.groups.iter().any(is_exclusive) && !self.groups.iter().all(is_exclusive) {
            found.push(Violation::new("exclusive", "must be so for every group of the job or for none"));
        }
        if self.groups.iter().any(|group| is_exclusive(group) && group.request.accelerators.is_some()) {
            let text = "may be so only for workers without accelerators, which take whole hosts by asking for all devices";
            found.push(Violation::new("exclusive", text));
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
                format!("commands, environments, images and mounts must be at most {max} bytes together, got {text_bytes}"),
            ));
        }
    }
}

/// Where a group is, for violations; said only when there is one, because every job is checked at every replay.
#[derive(Clone, Copy)]
struct GroupPath(usize);

impl fmt::Display for GroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups[{}]", self.0)
    }
}

/// Whether something is in a list twice. Most lists have one entry or none.
fn has_twice<T: Ord>(list: &[T]) -> bool {
    list.len() > 1 && list.iter().collect::<BTreeSet<&T>>().len() != list.len()
}

fn check_directory(field: &str, path: &str, found: &mut Vec<Violation>) {
    if !path.starts_with('/') || path.len() > limits::TEXT_BYTES_MAX || path.contains('\0') {
        let max = limits::TEXT_BYTES_MAX;
        found.push(Violation::new(field, format!("must be an absolute path of at most {max} bytes")));
    }
}

/// The variable of a group's environment that lists, separated by commas, the numbers of workers that an elastic job may
/// have. It bounds what is proposed, not what is valid: a replica that does not know it accepts the same records.
pub const SIZES_VARIABLE: &str = "PARALLEL_SIZES";

impl TaskGroup {
    /// The largest number of workers that the group lists, at most this number and at least its fewest. This number where it
    /// lists none of these.
    #[must_use]
    pub fn size_at_most(&self, workers: u32) -> u32 {
        let listed = self.environment.get(SIZES_VARIABLE).map_or("", String::as_str);
        let sizes = listed.split(',').filter_map(|size| size.trim().parse().ok());
        let fits = |size: &u32| (self.workers_min..=workers).contains(size);
        sizes.filter(fits).max().unwrap_or(workers)
    }

    /// Workers of a fixed number, with no variables and no slice.
    #[must_use]
    pub fn new(name: Name, workers: u32, command: Vec<String>, request: WorkerRequest) -> TaskGroup {
        TaskGroup {
            name,
            workers,
            workers_min: workers,
            command,
            environment: BTreeMap::new(),
            request,
            slice: None,
            container: None,
        }
    }

    fn text_bytes(&self) -> usize {
        let words: usize = self.command.iter().map(String::len).sum();
        let variables: usize = self.environment.iter().map(|(k, v)| k.len() + v.len()).sum();
        let container = self.container.as_ref().map_or(0, Container::text_bytes);
        words + variables + container
    }

    fn check(&self, at: GroupPath, found: &mut Vec<Violation>) {
        if self.workers == 0 || self.workers > limits::GANG_WORKERS_MAX {
            let max = limits::GANG_WORKERS_MAX.into();
            found.push(Violation::limit(&format!("{at}.workers"), self.workers.into(), 1, max));
        } else if self.workers_min == 0 || self.workers_min > self.workers {
            let max = self.workers.into();
            found.push(Violation::limit(&format!("{at}.workers_min"), self.workers_min.into(), 1, max));
        }
        self.check_slice(at, found);
        let words = self.command.len();
        let least = usize::from(self.container.is_none());
        let command = if least == 0 { "container.command" } else { "command" };
        if words < least || words > limits::COMMAND_WORDS_MAX {
            let bounds = (least, limits::COMMAND_WORDS_MAX);
            found.push(Violation::count(&format!("{at}.{command}"), words, bounds, "words"));
        }
        for (place, word) in self.command.iter().enumerate() {
            if word.len() > limits::TEXT_BYTES_MAX || word.contains('\0') || (place == 0 && word.is_empty()) {
                let max = limits::TEXT_BYTES_MAX;
                found.push(Violation::new(
                    format!("{at}.{command}[{place}]"),
                    format!("must be at most {max} bytes without a zero byte, and the program not empty"),
                ));
            }
        }
        self.check_environment(at, found);
        self.request.check(at, found);
        if let Some(container) = &self.container {
            container.check(&format!("{at}.container"), found);
            let (shared, memory) = (container.shared_memory_bytes, self.request.memory_bytes);
            if memory != 0 && shared > memory {
                let text =
                    format!("must be at most the memory of the worker, {memory} bytes: it counts as that");
                found.push(Violation::new(format!("{at}.container.shared_memory_bytes"), text));
            }
        }
    }

    fn check_environment(&self, at: GroupPath, found: &mut Vec<Violation>) {
        if self.environment.len() > limits::ENVIRONMENT_MAX {
            let (field, bounds) = (format!("{at}.environment"), (0, limits::ENVIRONMENT_MAX));
            found.push(Violation::count(&field, self.environment.len(), bounds, "variables"));
        }
        for (key, value) in &self.environment {
            let field = || {
                let shown: String = key.chars().take(80).collect();
                format!("{at}.environment.{shown}")
            };
            let first_is_digit = key.bytes().next().is_some_and(|b| b.is_ascii_digit());
            let form = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if key.is_empty() || key.len() > 256 || first_is_digit || !form {
                found.push(Violation::new(field(), "must be a variable name: letters, digits and '_', not starting with a digit, at most 256 bytes"));
            } else if value.len() > limits::TEXT_BYTES_MAX || value.contains('\0') {
                found.push(Violation::new(
                    field(),
                    format!("must be at most {} bytes without a zero byte", limits::TEXT_BYTES_MAX),
                ));
            } else if key.starts_with("MUSTER_") {
                found.push(Violation::new(field(), "MUSTER_ variables are set by Muster"));
            }
        }
    }
}

impl TaskGroup {
    /// A slice says how many workers there are and what each has: all chips of a host, or one worker
    /// for a slice of less than a host.
    fn check_slice(&self, at: GroupPath, found: &mut Vec<Violation>) {
        let Some(slice) = &self.slice else { return };
        let fault = |text: String| Violation::new(format!("{at}.slice"), text);
        let one_kind = self.request.accelerators.as_ref().and_then(|a| match a.choices.as_slice() {
            [choice] => Some((&choice.kind, a.amount)),
            _ => None,
        });
        let Some((kind, DeviceAmount::Whole(chips))) = one_kind else {
            found.push(fault("needs whole accelerators of one TPU type".to_string()));
            return;
        };
        let Some(generation) = Generation::of_kind(kind) else {
            found.push(fault(format!("{kind} is no TPU generation: v4, v5e, v5p, v6e or tpu7x")));
            return;
        };
        let broken = slice.check(generation);
        if !broken.is_empty() {
            found.extend(broken.into_iter().map(|violation| violation.under(&format!("{at}.slice"))));
            return;
        }
        let fits = generation.chips_per_host().iter().any(|per_host| {
            slice.chips_per_worker(*per_host) == chips && slice.workers(*per_host) == Some(self.workers)
        });
        if !fits {
            let forms = generation.chips_per_host().iter().filter_map(|per_host| {
                let workers = slice.workers(*per_host)?;
                Some(format!("{workers} workers with {} chips", slice.chips_per_worker(*per_host)))
            });
            let forms: BTreeSet<String> = forms.collect();
            let forms: Vec<String> = forms.into_iter().collect();
            let text = format!(
                "{} x {} of {generation} is {}, not {} workers with {chips} chips",
                slice.count,
                slice.shape,
                forms.join(" or "),
                self.workers
            );
            found.push(fault(text));
        }
    }
}

impl WorkerRequest {
    /// Thousandths of devices.
    #[must_use]
    pub fn device_milli(&self) -> u64 {
        self.accelerators.as_ref().map_or(0, |a| a.amount.milli())
    }

    /// Devices; a share of one counts as one.
    #[must_use]
    pub fn device_count(&self) -> u16 {
        self.accelerators.as_ref().map_or(0, |a| a.amount.devices())
    }

    fn check(&self, at: GroupPath, found: &mut Vec<Violation>) {
        if let Some(accelerators) = &self.accelerators {
            let mut broken = Vec::new();
            accelerators.check(&mut broken);
            found.extend(broken.into_iter().map(|v| v.under(&format!("{at}.request.accelerators"))));
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
        if self.scratch_bytes > limits::SCRATCH_BYTES_MAX {
            found.push(Violation::size("scratch_bytes", self.scratch_bytes, 0, limits::SCRATCH_BYTES_MAX));
        }
    }
}
