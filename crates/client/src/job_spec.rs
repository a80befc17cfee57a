//! Jobs as programs write them: the message of a submission, made by calls whose signatures stay when fields are added.
//!
//! Nothing is checked here. The cluster refuses what it does not take, and names every field that is wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_wire::time::{duration, timestamp};
use muster_wire::v1;
use muster_wire::v1::accelerator_request::Amount;
use muster_wire::v1::{DependencyRule, FailureClass, LaunchForm, Preflight, PullRule, Tier, TopologyLevel};

/// Rounded up: the protocol has whole milliseconds.
fn span_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// In milliseconds since 1970; a moment before that, which the cluster refuses, as 0.
fn moment_ms(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).map_or(0, span_ms)
}

/// A job that is to be submitted: its name, one group of workers or more, and what holds for all of them.
///
/// ```
/// # use muster_client::{JobSpec, RetryPolicy, TaskGroup};
/// # use std::time::Duration;
/// let workers = TaskGroup::process(["python", "train.py"]).workers(16).accelerators("h100", 8);
/// let job = JobSpec::new("train", workers)
///     .tenant("vision")
///     .label("experiment", "7")
///     .run_time_limit(Duration::from_secs(12 * 3_600))
///     .retry(RetryPolicy::new().max_failures(3));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct JobSpec(v1::Job);

impl JobSpec {
    /// A job of one group.
    pub fn new(name: impl Into<String>, group: TaskGroup) -> JobSpec {
        let spec = v1::JobSpec { groups: vec![group.0], ..Default::default() };
        JobSpec(v1::Job { name: name.into(), spec: Some(spec), ..Default::default() })
    }

    fn with(mut self, set: impl FnOnce(&mut v1::JobSpec)) -> JobSpec {
        set(self.0.spec_mut());
        self
    }

    /// Another group. Ranks run through the groups in order, and all of them start or none.
    pub fn group(self, group: TaskGroup) -> JobSpec {
        self.with(|spec| spec.groups.push(group.0))
    }

    /// Who it is for; `default` without it.
    pub fn tenant(mut self, tenant: impl Into<String>) -> JobSpec {
        self.0.tenant = tenant.into();
        self
    }

    /// A label, for people and programs to select jobs by.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> JobSpec {
        self.0.labels.insert(key.into(), value.into());
        self
    }

    /// A text of another program, which Muster keeps and never reads.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> JobSpec {
        self.0.annotations.insert(key.into(), value.into());
        self
    }

    /// Its priority tier; standard without it.
    pub fn tier(self, tier: Tier) -> JobSpec {
        self.with(|spec| spec.set_tier(tier))
    }

    /// What becomes of it when an attempt fails.
    pub fn retry(self, retry: RetryPolicy) -> JobSpec {
        self.with(|spec| spec.retry = Some(retry.0))
    }

    /// How it saves its work.
    pub fn checkpoint(self, checkpoint: CheckpointPolicy) -> JobSpec {
        self.with(|spec| spec.checkpoint = Some(checkpoint.0))
    }

    /// How close together or how far apart its workers have to be.
    pub fn topology(self, topology: TopologyRule) -> JobSpec {
        self.with(|spec| spec.topology = Some(topology.0))
    }

    /// A job that it waits for, and what must have become of that.
    pub fn after(self, job_id: impl Into<String>, rule: DependencyRule) -> JobSpec {
        let dependency = v1::Dependency { job_id: job_id.into(), rule: rule.into(), ..Default::default() };
        self.with(|spec| spec.dependencies.push(dependency))
    }

    /// The longest run of one attempt.
    pub fn run_time_limit(self, limit: Duration) -> JobSpec {
        self.with(|spec| spec.run_time_limit = Some(duration(span_ms(limit))))
    }

    /// When it has to be over.
    pub fn deadline(self, deadline: SystemTime) -> JobSpec {
        self.with(|spec| spec.deadline = Some(timestamp(moment_ms(deadline))))
    }

    /// Not to be started before.
    pub fn not_before(self, moment: SystemTime) -> JobSpec {
        self.with(|spec| spec.not_before = Some(timestamp(moment_ms(moment))))
    }

    /// How long its owner expects one attempt to run.
    pub fn expected_run(self, run: Duration) -> JobSpec {
        self.with(|spec| spec.expected_run = Some(duration(span_ms(run))))
    }

    /// A region that it may run in; any without one.
    pub fn region(self, region: impl Into<String>) -> JobSpec {
        self.with(|spec| spec.regions.push(region.into()))
    }

    /// From SIGTERM to SIGKILL; 30 s without it.
    pub fn stop_grace(self, grace: Duration) -> JobSpec {
        self.with(|spec| spec.stop_grace = Some(duration(span_ms(grace))))
    }

    /// Where its commands start; each worker's own directory without it.
    pub fn working_directory(self, directory: impl Into<String>) -> JobSpec {
        self.with(|spec| spec.working_directory = directory.into())
    }

    /// The booking on whose nodes it runs, while a window of it is open, and nowhere else.
    pub fn booking(self, name: impl Into<String>) -> JobSpec {
        self.with(|spec| spec.booking = name.into())
    }

    /// Where its workers lie with respect to those of other jobs: one entry more, of at most 8.
    pub fn affinity(self, entry: v1::JobAffinity) -> JobSpec {
        self.with(|spec| spec.affinity.push(entry))
    }

    /// How many it holds of a counted resource of the policy, as a whole.
    pub fn licence(self, name: impl Into<String>, count: u32) -> JobSpec {
        self.with(|spec| spec.licences.push(v1::LicenceRequest { name: name.into(), count }))
    }

    /// Its place among the waiting jobs of its tenant and tier, from -100 to 100: the lower goes first.
    pub fn nice(self, nice: i32) -> JobSpec {
        self.with(|spec| spec.nice = nice)
    }

    /// Each worker has a host without accelerators to itself.
    pub fn exclusive(self) -> JobSpec {
        self.with(|spec| spec.exclusive = true)
    }

    /// Each worker has a directory for itself on a local disk, which may hold this many bytes.
    pub fn scratch(self, bytes: u64) -> JobSpec {
        self.with(|spec| spec.scratch_bytes = bytes)
    }

    /// Each worker has to say within this time of the start of an attempt that it is ready.
    pub fn ready_within(self, timeout: Duration) -> JobSpec {
        let timeout = Some(duration(span_ms(timeout)));
        self.with(|spec| spec.readiness = Some(v1::ReadinessRule { timeout }))
    }

    /// It is held from the beginning, until somebody releases it.
    pub fn held(mut self) -> JobSpec {
        self.0.hold = true;
        self
    }

    /// A receiver of the policy that is told of what happens to it.
    pub fn notify(
        self,
        receiver: impl Into<String>,
        events: impl IntoIterator<Item = v1::NotificationEvent>,
    ) -> JobSpec {
        let events = events.into_iter().map(i32::from).collect();
        let entry = v1::JobNotification { receiver: receiver.into(), events };
        self.with(|spec| spec.notify.push(entry))
    }

    /// What the kernel bounds of each process of its workers; what is none is as the hosts have it.
    pub fn ulimits(self, ulimits: v1::Ulimits) -> JobSpec {
        self.with(|spec| spec.ulimits = Some(ulimits))
    }

    /// How its workers are run on their hosts: on which processors, by which shell, with how much shared memory.
    pub fn host(self, rules: v1::HostRules) -> JobSpec {
        self.with(|spec| spec.host = Some(rules))
    }

    /// Gives each worker a terminal, which people attach to.
    pub fn terminal(self) -> JobSpec {
        self.with(|spec| spec.terminal = true)
    }

    /// How its nodes may have been bought.
    pub fn capacity(self, capacity: v1::CapacityRules) -> JobSpec {
        self.with(|spec| spec.capacity = Some(capacity))
    }

    /// The files of a directory that `muster submit --workdir` has sent, by their digest: each worker starts in its own copy.
    /// Nodes that can have them have the label `files.store` with the value `yes`.
    pub fn workdir(self, digest: impl Into<String>) -> JobSpec {
        self.with(|spec| spec.workdir = Some(v1::Workdir { digest: digest.into() }))
    }

    /// Files of the workers that come back when these end, by paths relative to where they start: `muster artifacts get`.
    pub fn artifacts<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> JobSpec {
        let paths = paths.into_iter().map(Into::into).collect();
        self.with(|spec| spec.artifacts = Some(v1::ArtifactRules { paths, required: false }))
    }

    /// A label that its nodes must have, with one of these values.
    pub fn node_label(
        self,
        key: impl Into<String>,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) -> JobSpec {
        let values = v1::LabelValues { values: values.into_iter().map(Into::into).collect() };
        self.with(|spec| _ = spec.node_selector.insert(key.into(), values))
    }

    /// A test of a label of its nodes, in addition to those before; all must hold.
    pub fn node_test(
        self,
        key: impl Into<String>,
        operator: v1::NodeOperator,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) -> JobSpec {
        let values = values.into_iter().map(Into::into).collect();
        let test = v1::NodeExpression { key: key.into(), operator: operator.into(), values };
        self.with(|spec| spec.nodes.get_or_insert_default().expressions.push(test))
    }

    /// The only nodes that it may be on, in addition to those named before.
    pub fn only_nodes(self, names: impl IntoIterator<Item = impl Into<String>>) -> JobSpec {
        self.with(|spec| {
            spec.nodes.get_or_insert_default().only.extend(names.into_iter().map(Into::into));
        })
    }

    /// Nodes that it may not be on, in addition to those named before.
    pub fn exclude_nodes(self, names: impl IntoIterator<Item = impl Into<String>>) -> JobSpec {
        self.with(|spec| {
            spec.nodes.get_or_insert_default().exclude.extend(names.into_iter().map(Into::into));
        })
    }

    /// A taint of nodes that it may be placed in spite of.
    pub fn toleration(self, taint: impl Into<String>) -> JobSpec {
        self.with(|spec| spec.tolerations.push(taint.into()))
    }

    /// Whether policy may preempt it; it may without this.
    pub fn preemptible(self, is_preemptible: bool) -> JobSpec {
        self.with(|spec| spec.preemptible = Some(is_preemptible))
    }

    /// A data set that it reads, by the name that policy has for it.
    pub fn dataset(self, name: impl Into<String>) -> JobSpec {
        self.with(|spec| spec.datasets.push(name.into()))
    }

    /// What its command is wrapped in.
    pub fn launch(self, form: LaunchForm) -> JobSpec {
        self.with(|spec| spec.set_launch(form))
    }

    /// A POST to this port and path of each worker's host, in addition to SIGTERM, when it has to save its work and stop.
    pub fn notice(self, http_port: u16, http_path: impl Into<String>) -> JobSpec {
        let notice = v1::NoticeRules { http_port: http_port.into(), http_path: http_path.into() };
        self.with(|spec| spec.notice = Some(notice))
    }

    /// Capacity that is held for ranks whose node fails, in workers.
    pub fn spare_workers(self, count: u32) -> JobSpec {
        self.with(|spec| spec.spare_workers = count)
    }

    /// Whether its nodes are checked before it starts.
    pub fn preflight(self, preflight: Preflight) -> JobSpec {
        self.with(|spec| spec.set_preflight(preflight))
    }
}

impl From<JobSpec> for v1::Job {
    fn from(spec: JobSpec) -> v1::Job {
        spec.0
    }
}

/// Workers that run the same program with the same needs. One worker, one CPU and 1 GiB of memory without more.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct TaskGroup(v1::TaskGroup);

impl TaskGroup {
    /// A program and its arguments, as a process of the host; not passed through a shell.
    pub fn process(command: impl IntoIterator<Item = impl Into<String>>) -> TaskGroup {
        let command = command.into_iter().map(Into::into).collect();
        let runtime = muster_wire::process(command);
        TaskGroup(v1::TaskGroup { workers: 1, runtime, ..Default::default() })
    }

    /// The same with the root directory of an image, by its registry and its tag or digest. It is pulled where a node does not
    /// have it; an empty command is the image's own.
    pub fn image(self, image: impl Into<String>) -> TaskGroup {
        self.with_container(|container| container.image = image.into())
    }

    /// When the image is pulled; where a node does not have it without this. For a group with an image.
    pub fn pull(self, rule: PullRule) -> TaskGroup {
        self.with_container(|container| container.set_pull(rule))
    }

    /// A file or directory of the host that its workers see at this path in addition to the image, in addition to those before;
    /// at most 32. For a group with an image.
    pub fn mount(self, source: impl Into<String>, target: impl Into<String>) -> TaskGroup {
        self.mounted(source.into(), target.into(), false)
    }

    /// The same, which its workers can only read.
    pub fn read_only_mount(self, source: impl Into<String>, target: impl Into<String>) -> TaskGroup {
        self.mounted(source.into(), target.into(), true)
    }

    fn mounted(self, source: String, target: String, read_only: bool) -> TaskGroup {
        self.with_container(|container| {
            container.mounts.push(v1::ContainerMount { source, target, read_only });
        })
    }

    /// A separate /dev/shm of this size for each worker, which counts as its memory. For a group with an image.
    pub fn shared_memory(self, bytes: u64) -> TaskGroup {
        self.with_container(|container| container.shared_memory_bytes = bytes)
    }

    /// The secret of its tenant that opens the registry of the image. For a group with an image.
    pub fn credentials(self, secret: impl Into<String>) -> TaskGroup {
        self.with_container(|container| container.credentials = secret.into())
    }

    /// Changes what the image is run with. The order of calls does not matter: of a group that is no container yet, it becomes one
    /// without an image, which the cluster refuses unless [`TaskGroup::image`] names one.
    fn with_container(self, set: impl FnOnce(&mut v1::ContainerRuntime)) -> TaskGroup {
        self.with(|group| {
            if !matches!(group.runtime, Some(v1::task_group::Runtime::Container(_))) {
                let command = std::mem::take(group.command_mut());
                let container = v1::ContainerRuntime { command, ..Default::default() };
                group.runtime = Some(v1::task_group::Runtime::Container(container));
            }
            if let Some(v1::task_group::Runtime::Container(container)) = &mut group.runtime {
                set(container);
            }
        })
    }

    fn with(mut self, set: impl FnOnce(&mut v1::TaskGroup)) -> TaskGroup {
        set(&mut self.0);
        self
    }

    /// Its name, which a job of several groups needs.
    pub fn name(self, name: impl Into<String>) -> TaskGroup {
        self.with(|group| group.name = name.into())
    }

    /// How many workers.
    pub fn workers(self, count: u32) -> TaskGroup {
        self.with(|group| group.workers = count)
    }

    /// The fewest workers that it can start and go on with; all of them without it.
    pub fn min_workers(self, count: u32) -> TaskGroup {
        self.with(|group| group.min_workers = count)
    }

    /// A variable in the environment of its workers. The value is in the log and in backups.
    pub fn variable(self, name: impl Into<String>, value: impl Into<String>) -> TaskGroup {
        self.with(|group| group.environment.push(v1::EnvVar::new(name, value)))
    }

    /// A variable whose value is in a file of the worker's host, among the secrets of its tenant.
    pub fn secret(self, name: impl Into<String>, secret: impl Into<String>) -> TaskGroup {
        self.with(|group| group.environment.push(v1::EnvVar::secret(name, secret)))
    }

    /// Thousandths of a CPU for each worker.
    pub fn cpu_milli(self, milli: u64) -> TaskGroup {
        self.with(|group| group.resources_mut().cpu_milli = milli)
    }

    /// Memory for each worker.
    pub fn memory_bytes(self, bytes: u64) -> TaskGroup {
        self.with(|group| group.resources_mut().memory_bytes = bytes)
    }

    /// Whole devices for each worker, of this type.
    pub fn accelerators(self, kind: impl Into<String>, count: u32) -> TaskGroup {
        self.devices(kind.into(), Amount::Count(count))
    }

    /// Thousandths of one device for each worker, of this type; others may share it.
    pub fn accelerator_share(self, kind: impl Into<String>, milli: u32) -> TaskGroup {
        self.devices(kind.into(), Amount::ShareMilli(milli))
    }

    fn devices(self, kind: String, amount: Amount) -> TaskGroup {
        let choice = v1::AcceleratorChoice { r#type: kind, throughput_milli: 0 };
        let wanted = v1::AcceleratorRequest { choices: vec![choice], amount: Some(amount) };
        self.with(|group| group.resources_mut().accelerators = Some(wanted))
    }

    /// Another type that its workers can use, and how fast they are on it, in thousandths of what they are on the type that
    /// the job was written for.
    pub fn or_accelerators(self, kind: impl Into<String>, throughput_milli: u32) -> TaskGroup {
        let choice = v1::AcceleratorChoice { r#type: kind.into(), throughput_milli };
        self.with(|group| {
            let wanted = group.resources_mut().accelerators.get_or_insert_default();
            wanted.choices.push(choice);
        })
    }

    /// TPU slices of this shape, like `4x4x8`, of this type. How many workers they have follows from that.
    pub fn slices(self, kind: impl Into<String>, shape: impl Into<String>, count: u32) -> TaskGroup {
        let choice = v1::AcceleratorChoice { r#type: kind.into(), throughput_milli: 0 };
        let wanted = v1::AcceleratorRequest { choices: vec![choice], amount: None };
        self.with(|group| {
            group.workers = 0;
            group.resources_mut().accelerators = Some(wanted);
            group.slice = Some(v1::SliceRequest { shape: shape.into(), count });
        })
    }
}

/// What becomes of a job when an attempt fails.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct RetryPolicy(v1::RetryPolicy);

impl RetryPolicy {
    /// No new attempt after a failure of the application.
    pub fn new() -> RetryPolicy {
        RetryPolicy::default()
    }

    /// New attempts after failures of the application.
    pub fn max_failures(mut self, count: u32) -> RetryPolicy {
        self.0.max_failures = count;
        self
    }

    /// New attempts after failures of one class.
    pub fn limit(mut self, class: FailureClass, retries: u32) -> RetryPolicy {
        self.0.limits.push(v1::RetryLimit { failure_class: class.into(), retries });
        self
    }

    /// The wait before the first repetition, and the longest one; a second and five minutes without them.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> RetryPolicy {
        self.0.backoff = Some(duration(span_ms(first)));
        self.0.max_backoff = Some(duration(span_ms(longest)));
        self
    }

    /// How long the job keeps away from a node that failed under it; half an hour without it.
    pub fn avoid(mut self, span: Duration) -> RetryPolicy {
        self.0.avoid = Some(duration(span_ms(span)));
        self
    }
}

/// How a job saves its work.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct CheckpointPolicy(v1::CheckpointPolicy);

impl CheckpointPolicy {
    /// Into a directory that every region can reach.
    pub fn directory(path: impl Into<String>) -> CheckpointPolicy {
        CheckpointPolicy(v1::CheckpointPolicy { directory: path.into(), ..Default::default() })
    }

    /// Into a data set of policy: the job runs where there is a copy of it.
    pub fn dataset(mut self, name: impl Into<String>) -> CheckpointPolicy {
        self.0.dataset = name.into();
        self
    }

    /// How long one step takes.
    pub fn step(mut self, span: Duration) -> CheckpointPolicy {
        self.0.step = Some(duration(span_ms(span)));
        self
    }

    /// How long the work stands still while it is saved.
    pub fn save(mut self, span: Duration) -> CheckpointPolicy {
        self.0.save = Some(duration(span_ms(span)));
        self
    }

    /// How long it works from one checkpoint to the next.
    pub fn interval(mut self, span: Duration) -> CheckpointPolicy {
        self.0.interval = Some(duration(span_ms(span)));
        self
    }
}

/// How close together or how far apart the workers of a gang have to be.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct TopologyRule(v1::TopologyRule);

impl TopologyRule {
    /// No rule.
    pub fn new() -> TopologyRule {
        TopologyRule::default()
    }

    /// All workers in one domain of this level, or the gang does not start.
    pub fn required(mut self, level: TopologyLevel) -> TopologyRule {
        self.0.set_required(level);
        self
    }

    /// All workers in one domain of this level, where that can be had now.
    pub fn preferred(mut self, level: TopologyLevel) -> TopologyRule {
        self.0.set_preferred(level);
        self
    }

    /// Spread evenly over as few racks as can hold them.
    pub fn balanced(mut self) -> TopologyRule {
        self.0.balanced = true;
        self
    }

    /// Consecutive ranks that stay in one rack together, as many as this in each segment.
    pub fn segment_workers(mut self, count: u32) -> TopologyRule {
        self.0.segment_workers = count;
        self
    }

    /// Consecutive ranks that stay in one domain of this level together. Called again for segments within these, from the
    /// outside in: `segment(TopologyLevel::Rack, 16).segment(TopologyLevel::Host, 4)`.
    pub fn segment(mut self, level: TopologyLevel, workers: u32) -> TopologyRule {
        self.0.segments.push(v1::Segment { level: level.into(), workers });
        self
    }

    /// The most workers that one domain of this level may have.
    pub fn spread(mut self, level: TopologyLevel, max_workers: u32) -> TopologyRule {
        self.0.spread = Some(v1::Spread { level: level.into(), max_workers });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_sets_the_field_of_its_name() {
        let workers = TaskGroup::process(["python", "train.py"])
            .name("main")
            .workers(16)
            .min_workers(8)
            .variable("A", "b")
            .secret("TOKEN", "hub")
            .cpu_milli(500)
            .memory_bytes(1 << 30)
            .accelerators("h100", 8)
            .or_accelerators("a100", 450);
        let spec = JobSpec::new("train", workers)
            .group(TaskGroup::process(["sleep"]).slices("v5p", "4x4x8", 2))
            .tenant("vision")
            .label("team", "x")
            .annotation("note", "y")
            .tier(Tier::Critical)
            .retry(RetryPolicy::new().max_failures(3).limit(FailureClass::OutOfMemory, 1))
            .checkpoint(CheckpointPolicy::directory("/shared").save(Duration::from_secs(5)))
            .topology(TopologyRule::new().required(TopologyLevel::Block).spread(TopologyLevel::Rack, 2))
            .after("job-1", DependencyRule::Finished)
            .run_time_limit(Duration::from_nanos(1))
            .deadline(UNIX_EPOCH + Duration::from_secs(9))
            .region("eu")
            .node_label("zone", ["a", "b"])
            .toleration("serving")
            .preemptible(false)
            .notice(9_000, "/stop")
            .launch(LaunchForm::Torchrun)
            .preflight(Preflight::On)
            .ulimits(v1::Ulimits { open_files: Some(4_096), ..Default::default() })
            .notify("chat", [v1::NotificationEvent::JobFailed])
            .spare_workers(1);
        let job = v1::Job::from(spec);
        assert_eq!((job.name.as_str(), job.tenant.as_str()), ("train", "vision"));
        assert_eq!((job.labels["team"].as_str(), job.annotations["note"].as_str()), ("x", "y"));
        let (spec, group) = (job.spec(), &job.spec().groups[0]);
        assert_eq!((group.workers, group.min_workers, group.command().len()), (16, 8, 2));
        assert_eq!(group.variable("A"), Some("b"));
        let wanted = group.resources().accelerators.as_ref().expect("it asks for some");
        assert_eq!((wanted.choices.len(), wanted.amount), (2, Some(Amount::Count(8))));
        assert_eq!(spec.groups[1].slice.as_ref().map(|slice| slice.count), Some(2));
        assert_eq!(
            (spec.tier(), spec.launch(), spec.preflight()),
            (Tier::Critical, LaunchForm::Torchrun, Preflight::On)
        );
        assert_eq!(spec.retry.as_ref().map(|retry| (retry.max_failures, retry.limits.len())), Some((3, 1)));
        assert_eq!(
            spec.run_time_limit,
            Some(duration(1)),
            "less than the protocol can say becomes what it can"
        );
        assert_eq!(spec.deadline, Some(timestamp(9_000)));
        assert_eq!(spec.node_selector["zone"].values, ["a", "b"]);
        assert_eq!((spec.preemptible, spec.spare_workers), (Some(false), 1));
        assert_eq!(spec.ulimits.as_ref().and_then(|ulimits| ulimits.open_files), Some(4_096));
        assert_eq!((spec.notify[0].receiver.as_str(), spec.notify[0].events.len()), ("chat", 1));
    }

    /// Names of the fields of a job that are as they are without a call. One that is added does not compile before it is
    /// named here.
    macro_rules! unset_fields {
        ($spec:expr, $($field:ident),* $(,)?) => {{
            let v1::JobSpec { $($field),* } = $spec;
            let unset = v1::JobSpec::default();
            let fields = [$((stringify!($field), *$field == unset.$field)),*];
            fields.into_iter().filter_map(|(name, is_unset)| is_unset.then_some(name)).collect::<Vec<_>>()
        }};
    }

    #[test]
    fn every_field_of_a_job_has_a_call() {
        let second = Duration::from_secs(1);
        let affinity = v1::JobAffinity { job_name: "cache".to_owned(), ..Default::default() };
        let spec = JobSpec::new("all", TaskGroup::process(["true"]))
            .tier(Tier::Batch)
            .retry(RetryPolicy::new().max_failures(1))
            .checkpoint(CheckpointPolicy::directory("/shared"))
            .topology(TopologyRule::new().balanced())
            .after("job-1", DependencyRule::Finished)
            .run_time_limit(second)
            .deadline(UNIX_EPOCH + second)
            .not_before(UNIX_EPOCH + second)
            .expected_run(second)
            .region("eu")
            .stop_grace(second)
            .working_directory("/work")
            .booking("night")
            .affinity(affinity)
            .licence("matlab", 1)
            .nice(5)
            .exclusive()
            .scratch(1 << 30)
            .ready_within(second)
            .held()
            .notify("chat", [v1::NotificationEvent::JobFailed])
            .ulimits(v1::Ulimits::default())
            .host(v1::HostRules::default())
            .terminal()
            .capacity(v1::CapacityRules::default())
            .workdir("sha256:00")
            .artifacts(["out"])
            .node_label("zone", ["a"])
            .node_test("zone", v1::NodeOperator::In, ["a"])
            .only_nodes(["h1"])
            .exclude_nodes(["h2"])
            .toleration("serving")
            .preemptible(false)
            .dataset("corpus")
            .launch(LaunchForm::Torchrun)
            .notice(9_000, "/stop")
            .spare_workers(1)
            .preflight(Preflight::On);
        let job = v1::Job::from(spec);
        assert!(job.hold);
        let nodes = job.spec().nodes.as_ref().expect("it asks for some");
        assert_eq!((nodes.expressions.len(), nodes.only.len(), nodes.exclude.len()), (1, 1, 1));
        #[rustfmt::skip]
        let unset = unset_fields!(
            job.spec(), groups, tier, retry, checkpoint, topology, dependencies, run_time_limit, deadline, array, regions,
            stop_grace, working_directory, node_selector, tolerations, preemptible, not_before, expected_run, datasets,
            launch, notice, spare_workers, preflight, nodes, workdir, booking, artifacts, ulimits, capacity, affinity,
            licences, trace_parent, nice, exclusive, readiness, host, terminal, notify, scratch_bytes,
        );
        // An array has several handles, and the span is that of the call.
        assert_eq!(unset, ["array", "trace_parent"]);
    }

    #[test]
    fn every_field_of_a_container_has_a_call_in_whatever_order() {
        let of = |group: TaskGroup| match group.0.runtime {
            Some(v1::task_group::Runtime::Container(container)) => container,
            other => panic!("no container: {other:?}"),
        };
        let set = |group: TaskGroup| {
            group
                .pull(PullRule::Always)
                .mount("/data", "/data")
                .read_only_mount("/models", "/models")
                .shared_memory(1 << 30)
                .credentials("registry")
        };
        let image = "registry.example.org/train:1";
        let container = of(set(TaskGroup::process(["train"]).image(image)));
        assert_eq!(container, of(set(TaskGroup::process(["train"])).image(image)));
        // One that is added does not compile before it is named here. No release has another user than the tenant's.
        let v1::ContainerRuntime {
            image: named,
            command,
            user: _,
            pull,
            mounts,
            shared_memory_bytes,
            credentials,
        } = container;
        assert_eq!((named.as_str(), command.as_slice()), (image, &["train".to_owned()][..]));
        assert_eq!(
            (pull, shared_memory_bytes, credentials.as_str()),
            (i32::from(PullRule::Always), 1 << 30, "registry")
        );
        let seen: Vec<_> = mounts.iter().map(|mount| (mount.target.as_str(), mount.read_only)).collect();
        assert_eq!(seen, [("/data", false), ("/models", true)]);
    }

    #[test]
    fn no_span_and_no_moment_makes_it_panic() {
        assert_eq!(span_ms(Duration::MAX), u64::MAX);
        assert_eq!(moment_ms(UNIX_EPOCH - Duration::from_secs(1)), 0);
        let spec = JobSpec::new("x", TaskGroup::process(["true"])).run_time_limit(Duration::MAX);
        assert!(v1::Job::from(spec).spec().run_time_limit.is_some());
    }
}
