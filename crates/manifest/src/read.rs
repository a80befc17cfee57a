//! From YAML to messages.

use std::collections::{BTreeMap, HashMap};

use muster_types::fleet::checked_name;
use muster_types::policy::NotificationEvent;
use muster_types::{
    AffinityLevel, AffinityRule, CommandShell, CpuBinding, DependencyRule, LaunchForm, Level, Preflight,
    PriorityTier, PullRule,
};
use muster_wire::v1::task_group::Runtime;
use muster_wire::{process, v1};
use serde_saphyr::{Location, Spanned};

use super::parallel::Parallel;
use super::quantity;
use super::reader::{API_VERSION, Reader, unreadable, with_rules};
use super::shape::{
    AcceleratorFields, Accelerators, Affinity, After, AfterFields, Command, Container, Document, Group,
    Metadata, NodeExpression, Nodes, Notify, Slice, Spec, Text, Topology, Ulimits, Values,
};
use super::{Form, Manifest, ManifestError};

/// What stands before the name of a secret where a variable has a value.
pub const SECRET: &str = "muster-secret://";
/// What `kind` must be.
pub const KIND: &str = "Job";

/// Every document of a file. `now_ms` is what times like `+2h` count from.
pub fn documents(text: &str, now_ms: u64) -> Result<Vec<Manifest>, ManifestError> {
    let documents: Vec<Spanned<Document>> = serde_saphyr::from_multiple(text)
        .map_err(|error| ManifestError(vec![unreadable(text, KIND, &error)]))?;
    let (mut problems, mut unknown_words) = (Vec::new(), 0);
    let mut manifests: Vec<Manifest> = Vec::with_capacity(documents.len());
    for document in documents {
        let mut reader = Reader::new(&mut problems, now_ms);
        let (message, shorthand, parallel) = reader.document(document.value);
        unknown_words += reader.unknown_words;
        let lines = reader.lines;
        let (form, first_line) = (Form::File, document.referenced.line());
        manifests.push(Manifest { message, shorthand, parallel, form, lines, first_line });
    }
    let problems = with_rules(problems, unknown_words, || manifests.iter().try_for_each(Manifest::check));
    if problems.is_empty() { Ok(manifests) } else { Err(ManifestError(problems)) }
}

/// What a job and its groups are read from.
impl Reader<'_> {
    fn document(&mut self, document: Document) -> (v1::Job, bool, Option<Parallel>) {
        self.constant("apiVersion", document.api_version, API_VERSION);
        self.constant("kind", document.kind, KIND);
        if let Some(status) = document.status {
            self.place("status", status.referenced);
        }
        let metadata = document.metadata.unwrap_or_default();
        let Some(spec) = document.spec else {
            self.problem(None, "spec", "must be given");
            return (v1::Job::default(), false, None);
        };
        self.spec(metadata, spec)
    }

    /// The message, whether its only group is written directly in `spec`, and what is left to the parallelism planner.
    pub fn spec(&mut self, metadata: Metadata, spec: Spec) -> (v1::Job, bool, Option<Parallel>) {
        let Spec {
            workers,
            min_workers,
            slice,
            command,
            environment,
            accelerators,
            cpu,
            memory,
            container,
            ..
        } = spec;
        let only = Group {
            name: None,
            workers,
            min_workers,
            slice,
            command,
            environment,
            accelerators,
            cpu,
            memory,
            container,
        };
        let shorthand = spec.groups.is_none();
        let parallel = spec.parallel.map(|given| self.parallel("spec.parallel", given));
        let mut groups = match spec.groups {
            Some(groups) => {
                if parallel.is_some() {
                    let advice = "plans a job of one group; write the group directly in spec";
                    self.problem(None, "spec.parallel", advice);
                }
                self.no_shorthand_beside_groups(&only);
                groups
                    .into_iter()
                    .enumerate()
                    .map(|(i, g)| self.group(&format!("spec.groups[{i}]"), g))
                    .collect()
            }
            None => vec![self.group("spec", only)],
        };
        // Fewest workers of a job whose size is chosen when it is submitted, and then stays.
        let parallel = parallel.map(|parallel| Parallel {
            workers_min: groups.first_mut().map_or(0, |group| std::mem::take(&mut group.min_workers)),
            ..parallel
        });
        let regions = spec.regions.unwrap_or_default();
        let message = v1::Job {
            name: self.text("metadata.name", metadata.name),
            tenant: self.text("metadata.tenant", metadata.tenant),
            labels: self.texts("metadata.labels", metadata.labels.unwrap_or_default()),
            annotations: self.texts("metadata.annotations", metadata.annotations.unwrap_or_default()),
            ..v1::Job::default()
        };
        let asked = v1::JobSpec {
            tier: self.closed::<PriorityTier>("spec.tier", spec.tier),
            groups,
            regions: self.list("spec.regions", regions),
            run_time_limit: self.span_above_zero(
                "spec.runTimeLimit",
                spec.run_time_limit,
                "leave it out for no limit",
            ),
            stop_grace: self.span("spec.stopGrace", spec.stop_grace),
            working_directory: self.text("spec.workingDirectory", spec.working_directory),
            array: self.array("spec.array", spec.array),
            topology: spec.topology.map(|topology| self.topology("spec.topology", topology)),
            node_selector: self.node_selector("spec.nodeSelector", spec.node_selector.unwrap_or_default()),
            nodes: spec.nodes.map(|nodes| self.nodes("spec.nodes", nodes)),
            tolerations: self.list("spec.tolerations", spec.tolerations.unwrap_or_default()),
            preemptible: self.value("spec.preemptible", spec.preemptible, quantity::flag),
            dependencies: self.dependencies("spec.after", spec.after.unwrap_or_default()),
            not_before: self.time("spec.notBefore", spec.not_before),
            deadline: self.time("spec.deadline", spec.deadline),
            expected_run: self.span_above_zero(
                "spec.expectedRun",
                spec.expected_run,
                "leave it out for what was learned",
            ),
            datasets: self.list("spec.datasets", spec.datasets.unwrap_or_default()),
            launch: self.closed::<LaunchForm>("spec.launch", spec.launch),
            retry: spec.retry.map(|rules| self.retry(rules)),
            checkpoint: spec.checkpoint.map(|rules| self.checkpoint(rules)),
            notice: spec.notice.map(|rules| self.notice(rules)),
            spare_workers: self
                .value("spec.spareWorkers", spec.spare_workers, quantity::count)
                .unwrap_or_default(),
            preflight: self.closed::<Preflight>("spec.preflight", spec.preflight),
            workdir: spec
                .workdir
                .map(|files| v1::Workdir { digest: self.text("spec.workdir.digest", files.digest) }),
            booking: self.text("spec.booking", spec.booking),
            artifacts: spec.artifacts.map(|rules| v1::ArtifactRules {
                paths: self.list("spec.artifacts.paths", rules.paths.unwrap_or_default()),
                required: self
                    .value("spec.artifacts.required", rules.required, quantity::flag)
                    .unwrap_or_default(),
            }),
            ulimits: spec.ulimits.map(|asked| self.ulimits(asked)),
            host: self.host_rules(spec.binding, spec.shell, spec.shared_memory),
            capacity: spec.capacity.map(|asked| self.capacity(asked)),
            // A file is submitted more than once, and each time in another span.
            trace_parent: String::new(),
            affinity: self.affinity("spec.affinity", spec.affinity.unwrap_or_default()),
            licences: self.licences("spec.licences", spec.licences.unwrap_or_default()),
            nice: self.value("spec.nice", spec.nice, quantity::nice).unwrap_or_default(),
            exclusive: self.value("spec.exclusive", spec.exclusive, quantity::flag).unwrap_or_default(),
            scratch_bytes: self.above_zero(
                "spec.scratch",
                spec.scratch,
                quantity::worker_bytes,
                "leave it out for no directory",
            ),
            readiness: spec
                .readiness
                .map(|rule| v1::ReadinessRule { timeout: self.span("spec.readiness.timeout", rule.timeout) }),
            terminal: self.value("spec.terminal", spec.terminal, quantity::flag).unwrap_or_default(),
            notify: self.notify("spec.notify", spec.notify.unwrap_or_default()),
        };
        let message = v1::Job { spec: Some(asked), ..message };
        (message, shorthand, parallel)
    }

    /// How workers are run on their hosts; none where the file has nothing.
    fn host_rules(
        &mut self,
        binding: Option<Text>,
        shell: Option<Text>,
        shared_memory: Option<Text>,
    ) -> Option<v1::HostRules> {
        let is_said = binding.is_some() || shell.is_some() || shared_memory.is_some();
        let shared = self.value("spec.sharedMemory", shared_memory, quantity::memory_bytes);
        let rules = v1::HostRules {
            binding: self.closed::<CpuBinding>("spec.binding", binding),
            shell: self.closed::<CommandShell>("spec.shell", shell),
            shared_memory_bytes: shared.unwrap_or_default(),
        };
        is_said.then_some(rules)
    }

    fn ulimits(&mut self, asked: Ulimits) -> v1::Ulimits {
        v1::Ulimits {
            open_files: self
                .value("spec.ulimits.openFiles", asked.open_files, quantity::count)
                .map(u64::from),
            core_bytes: self.value("spec.ulimits.coreSize", asked.core_size, quantity::memory_bytes),
            locked_bytes: self.value(
                "spec.ulimits.lockedMemory",
                asked.locked_memory,
                quantity::memory_bytes,
            ),
            stack_bytes: self.value("spec.ulimits.stackSize", asked.stack_size, quantity::memory_bytes),
        }
    }

    /// How many of each counted resource, by name.
    fn licences(&mut self, at: &str, given: BTreeMap<String, Text>) -> Vec<v1::LicenceRequest> {
        let mut asked = Vec::with_capacity(given.len());
        for (name, count) in given {
            self.place(at, count.referenced);
            let shown: String = name.chars().take(80).collect();
            let field = format!("{at}.{shown}");
            // Here, because the message has a list, in which a place says nothing about the file.
            if let Err(broken) = checked_name(&field, &name) {
                self.problem(Some(count.referenced), &field, broken.description);
            }
            let count = self.value(&field, Some(count), quantity::count);
            asked.push(v1::LicenceRequest { name, count: count.unwrap_or_default() });
        }
        asked
    }

    fn notify(&mut self, at: &str, given: Vec<Spanned<Notify>>) -> Vec<v1::JobNotification> {
        let mut entries = Vec::with_capacity(given.len());
        for (index, entry) in given.into_iter().enumerate() {
            let field = format!("{at}[{index}]");
            self.place(&field, entry.referenced);
            let Notify { receiver, events } = entry.value;
            let receiver = self.text(&format!("{field}.receiver"), receiver);
            let mut message = v1::JobNotification { receiver, events: Vec::new() };
            for (index, event) in events.unwrap_or_default().into_iter().enumerate() {
                let event =
                    self.closed::<NotificationEvent>(&format!("{field}.events[{index}]"), Some(event));
                message.events.push(event);
            }
            entries.push(message);
        }
        entries
    }

    fn affinity(&mut self, at: &str, given: Vec<Spanned<Affinity>>) -> Vec<v1::JobAffinity> {
        let mut entries = Vec::with_capacity(given.len());
        for (index, entry) in given.into_iter().enumerate() {
            let field = format!("{at}[{index}]");
            self.place(&field, entry.referenced);
            let path = |name: &str| format!("{field}.{name}");
            let Affinity { to, jobs, level, rule, required, weight } = entry.value;
            let mut message = v1::JobAffinity {
                label_selector: self.text(&path("jobs"), jobs),
                level: self.closed::<AffinityLevel>(&path("level"), level),
                rule: self.closed::<AffinityRule>(&path("rule"), rule),
                required: self.value(&path("required"), required, quantity::flag).unwrap_or_default(),
                weight: self.above_zero(
                    &path("weight"),
                    weight,
                    quantity::count,
                    "leave it out with `required: true`",
                ),
                ..v1::JobAffinity::default()
            };
            match self.text(&path("to"), to) {
                id if id.starts_with("array-") => message.array_id = id,
                id if id.starts_with("job-") => message.job_id = id,
                name => message.job_name = name,
            }
            entries.push(message);
        }
        entries
    }

    fn no_shorthand_beside_groups(&mut self, only: &Group) {
        let Group {
            name: _,
            workers,
            min_workers,
            slice,
            command,
            environment,
            accelerators,
            cpu,
            memory,
            container,
        } = only;
        let given = [
            ("spec.workers", workers.as_ref().map(|v| v.referenced)),
            ("spec.minWorkers", min_workers.as_ref().map(|v| v.referenced)),
            ("spec.slice", slice.as_ref().map(|v| v.referenced)),
            ("spec.command", command.as_ref().map(|v| v.referenced)),
            ("spec.environment", environment.as_ref().map(|_| Location::UNKNOWN)),
            ("spec.accelerators", accelerators.as_ref().map(|v| v.referenced)),
            ("spec.cpu", cpu.as_ref().map(|v| v.referenced)),
            ("spec.memory", memory.as_ref().map(|v| v.referenced)),
            ("spec.container", container.as_ref().map(|_| Location::UNKNOWN)),
        ];
        for (field, place) in given {
            if let Some(place) = place {
                self.problem(Some(place), field, "belongs into each of spec.groups when there are groups");
            }
        }
    }

    fn group(&mut self, at: &str, group: Group) -> v1::TaskGroup {
        let path = |field: &str| format!("{at}.{field}");
        let has_slice = group.slice.is_some();
        let workers_place = group.workers.as_ref().map(|workers| workers.referenced);
        let workers = self.value(&path("workers"), group.workers, quantity::workers);
        if has_slice && workers == Some(0) {
            let advice = "must be above zero; leave it out: the slice says how many there are";
            self.problem(workers_place, &path("workers"), advice);
        }
        v1::TaskGroup {
            name: self.text(&path("name"), group.name),
            // One worker is what a job without a number means; a slice says it itself.
            workers: workers.unwrap_or(u32::from(!has_slice)),
            min_workers: self.above_zero(
                &path("minWorkers"),
                group.min_workers,
                quantity::workers,
                "leave it out for a gang that never changes its size",
            ),
            slice: group.slice.map(|slice| self.slice(&path("slice"), slice)),
            runtime: self.runtime(at, group.command, group.container),
            environment: self.environment(&path("environment"), group.environment.unwrap_or_default()),
            resources: self.resources(at, (group.accelerators, has_slice), group.cpu, group.memory),
        }
    }

    /// A command as a process of the host, or in the root directory of an image.
    fn runtime(
        &mut self,
        at: &str,
        command: Option<Spanned<Command>>,
        container: Option<Container>,
    ) -> Option<Runtime> {
        let command = self.command(&format!("{at}.command"), command);
        let Some(container) = container else { return process(command) };
        let container = self.container(&format!("{at}.container"), container);
        Some(Runtime::Container(v1::ContainerRuntime { command, ..container }))
    }

    /// The image of a group, without a command.
    fn container(&mut self, at: &str, container: Container) -> v1::ContainerRuntime {
        let path = |field: &str| format!("{at}.{field}");
        let mut mounts = Vec::new();
        for (index, mount) in container.mounts.unwrap_or_default().into_iter().enumerate() {
            let path = |field: &str| format!("{at}.mounts[{index}].{field}");
            mounts.push(v1::ContainerMount {
                source: self.text(&path("source"), mount.source),
                target: self.text(&path("target"), mount.target),
                read_only: self.value(&path("readOnly"), mount.read_only, quantity::flag).unwrap_or_default(),
            });
        }
        v1::ContainerRuntime {
            image: self.text(&path("image"), container.image),
            pull: self.closed::<PullRule>(&path("pull"), container.pull),
            mounts,
            shared_memory_bytes: self.above_zero(
                &path("sharedMemory"),
                container.shared_memory,
                quantity::memory_bytes,
                "leave it out for that of the gang",
            ),
            credentials: self.secret(&path("credentials"), container.credentials),
            ..Default::default()
        }
    }

    /// The name of a secret, from a value like `muster-secret://NAME`.
    fn secret(&mut self, field: &str, text: Option<Text>) -> String {
        let Some(text) = text else { return String::new() };
        self.place(field, text.referenced);
        match text.value.strip_prefix(SECRET).filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => {
                // What stands here may be the secret itself, and is not repeated.
                let rule = format!("must be a reference like {SECRET}NAME, never the credentials themselves");
                self.problem(Some(text.referenced), field, rule);
                String::new()
            }
        }
    }

    /// None where the file says nothing of it.
    fn resources(
        &mut self,
        at: &str,
        (accelerators, has_slice): (Option<Spanned<Accelerators>>, bool),
        cpu: Option<Text>,
        memory: Option<Text>,
    ) -> Option<v1::Resources> {
        let path = |field: &str| format!("{at}.{field}");
        let asked = v1::Resources {
            accelerators: self.accelerators(&path("accelerators"), accelerators, has_slice),
            cpu_milli: self.above_zero(&path("cpu"), cpu, quantity::cpu_milli, "leave it out for one CPU"),
            memory_bytes: self.above_zero(
                &path("memory"),
                memory,
                quantity::worker_bytes,
                "leave it out for 1Gi",
            ),
        };
        (asked != v1::Resources::default()).then_some(asked)
    }

    /// Variables by name; a value like `muster-secret://NAME` is a reference.
    fn environment(&mut self, field: &str, variables: BTreeMap<String, Text>) -> Vec<v1::EnvVar> {
        let named: BTreeMap<String, String> = self.texts(field, variables).into_iter().collect();
        let variable = |(name, value): (String, String)| match value.strip_prefix(SECRET) {
            Some(secret) => v1::EnvVar::secret(name, secret),
            None => v1::EnvVar::new(name, value),
        };
        named.into_iter().map(variable).collect()
    }

    fn command(&mut self, field: &str, command: Option<Spanned<Command>>) -> Vec<String> {
        let Some(command) = command else { return Vec::new() };
        self.place(field, command.referenced);
        match command.value {
            Command::Words(words) => self.list(field, words),
            Command::Line(line) => {
                let words: Vec<&str> = line.split_whitespace().take(4).collect();
                let shown: String = words.join(", ").chars().take(80).collect();
                let advice = format!("must be a list of words, like [{shown}]; no shell reads it");
                self.problem(Some(command.referenced), field, advice);
                Vec::new()
            }
        }
    }

    /// Texts by names of the user's own.
    fn texts(&mut self, field: &str, variables: BTreeMap<String, Text>) -> HashMap<String, String> {
        let mut message = HashMap::new();
        for (name, value) in variables {
            self.place(field, value.referenced);
            let shown: String = name.chars().take(80).collect();
            self.place(&format!("{field}.{shown}"), value.referenced);
            message.insert(name, value.value);
        }
        message
    }

    fn accelerators(
        &mut self,
        field: &str,
        given: Option<Spanned<Accelerators>>,
        has_slice: bool,
    ) -> Option<v1::AcceleratorRequest> {
        let given = given?;
        self.place(field, given.referenced);
        let choice = |kind: &str, throughput_milli| v1::AcceleratorChoice {
            r#type: kind.trim().to_owned(),
            throughput_milli,
        };
        match given.value {
            Accelerators::Short(text) => {
                let (kinds, amount) = match text.split_once(':') {
                    Some((kinds, amount)) => (kinds, quantity::devices(amount.trim()).ok()),
                    None => (text.as_str(), None),
                };
                if amount.is_none() && (!has_slice || text.contains(':')) {
                    let shown: String = text.chars().take(80).collect();
                    let advice = format!(
                        "must be a type and a count, like h100:4, h100|a100:1 or any:0.25, got {shown:?}"
                    );
                    self.problem(Some(given.referenced), field, advice);
                    return None;
                }
                let kinds = kinds.trim();
                let any = kinds == "any";
                let choices = kinds.split('|').filter(|_| !any).map(|kind| choice(kind, 0));
                Some(v1::AcceleratorRequest { choices: choices.collect(), amount })
            }
            Accelerators::Long(fields) => {
                let AcceleratorFields { r#type, types, count } = *fields;
                let amount = self.value(&format!("{field}.count"), count, quantity::devices);
                let mut choices = Vec::new();
                match (r#type, types) {
                    (Some(kind), None) if kind.value == "any" => {}
                    (Some(kind), None) => {
                        choices.push(choice(&self.text(&format!("{field}.type"), Some(kind)), 0))
                    }
                    (None, Some(types)) => {
                        for (kind, throughput) in types {
                            let shown: String = kind.chars().take(80).collect();
                            let field = format!("{field}.types.{shown}");
                            let advice = "leave the type out if it cannot be used";
                            let milli =
                                self.above_zero(&field, Some(throughput), quantity::throughput_milli, advice);
                            choices.push(choice(&kind, milli));
                        }
                    }
                    _ => {
                        let advice = "must have either type or types, like types: {h100: 1.0, a100: 0.45}";
                        self.problem(Some(given.referenced), field, advice);
                    }
                }
                Some(v1::AcceleratorRequest { choices, amount })
            }
        }
    }

    fn slice(&mut self, field: &str, given: Spanned<Slice>) -> v1::SliceRequest {
        self.place(field, given.referenced);
        match given.value {
            Slice::Short(shape) => v1::SliceRequest { shape, count: 0 },
            Slice::Long(fields) => v1::SliceRequest {
                shape: self.text(&format!("{field}.shape"), fields.shape),
                count: self.above_zero(
                    &format!("{field}.count"),
                    fields.count,
                    quantity::count,
                    "leave it out for one slice",
                ),
            },
        }
    }

    fn topology(&mut self, at: &str, given: Topology) -> v1::TopologyRule {
        let path = |field: &str| format!("{at}.{field}");
        let spread = given.spread.map(|spread| {
            self.place(&path("spread"), spread.referenced);
            let advice = "it is how many workers a domain may have";
            v1::Spread {
                level: self.closed::<Level>(&path("spread.level"), spread.value.level),
                max_workers: self.above_zero(
                    &path("spread.maxWorkers"),
                    spread.value.max_workers,
                    quantity::count,
                    advice,
                ),
            }
        });
        let mut segments = Vec::new();
        for (place, segment) in given.segments.unwrap_or_default().into_iter().enumerate() {
            let field = path(&format!("segments[{place}]"));
            self.place(&field, segment.referenced);
            let advice = "it is how many workers are in one domain together";
            segments.push(v1::Segment {
                level: self.closed::<Level>(&format!("{field}.level"), segment.value.level),
                workers: self.above_zero(
                    &format!("{field}.workers"),
                    segment.value.workers,
                    quantity::count,
                    advice,
                ),
            });
        }
        v1::TopologyRule {
            required: self.closed::<Level>(&path("required"), given.required),
            preferred: self.closed::<Level>(&path("preferred"), given.preferred),
            balanced: self.value(&path("balanced"), given.balanced, quantity::flag).unwrap_or_default(),
            segment_workers: self.above_zero(
                &path("segmentWorkers"),
                given.segment_workers,
                quantity::count,
                "leave it out for no segments",
            ),
            segments,
            spread,
        }
    }

    fn node_selector(
        &mut self,
        field: &str,
        given: BTreeMap<String, Spanned<Values>>,
    ) -> HashMap<String, v1::LabelValues> {
        let mut message = HashMap::new();
        for (label, values) in given {
            self.place(field, values.referenced);
            let shown: String = label.chars().take(80).collect();
            self.place(&format!("{field}.{shown}"), values.referenced);
            message.insert(label, v1::LabelValues { values: values.value.0 });
        }
        message
    }

    pub(crate) fn nodes(&mut self, at: &str, given: Nodes) -> v1::NodeRequirements {
        let expressions = given.expressions.unwrap_or_default().into_iter().enumerate();
        v1::NodeRequirements {
            expressions: expressions
                .map(|(index, test)| self.node_expression(&format!("{at}.expressions[{index}]"), test))
                .collect(),
            only: self.list(&format!("{at}.only"), given.only.unwrap_or_default()),
            exclude: self.list(&format!("{at}.exclude"), given.exclude.unwrap_or_default()),
        }
    }

    fn node_expression(&mut self, field: &str, given: Spanned<NodeExpression>) -> v1::NodeExpression {
        self.place(field, given.referenced);
        let path = |name: &str| format!("{field}.{name}");
        let NodeExpression { key, r#in, not_in, exists, greater, less } = given.value;
        let key = self.text(&path("key"), key);
        let mut tests: Vec<(v1::NodeOperator, Vec<String>)> = Vec::new();
        tests.extend(r#in.map(|values| (v1::NodeOperator::In, values.value.0)));
        tests.extend(not_in.map(|values| (v1::NodeOperator::NotIn, values.value.0)));
        if exists.is_some() {
            let exists = self.value(&path("exists"), exists, quantity::flag).unwrap_or_default();
            let operator = if exists { v1::NodeOperator::Exists } else { v1::NodeOperator::DoesNotExist };
            tests.push((operator, Vec::new()));
        }
        for (name, bound, operator) in
            [("greater", greater, v1::NodeOperator::Greater), ("less", less, v1::NodeOperator::Less)]
        {
            if bound.is_some() {
                tests.push((operator, vec![self.text(&path(name), bound)]));
            }
        }
        if tests.len() != 1 {
            let text = "must have one of in, notIn, exists, greater and less, like {key: zone, in: [a, b]}";
            self.problem(Some(given.referenced), field, text);
        }
        let (operator, values) = tests.pop().unwrap_or((v1::NodeOperator::Exists, Vec::new()));
        v1::NodeExpression { key, operator: operator.into(), values }
    }

    fn dependencies(&mut self, at: &str, given: Vec<Spanned<After>>) -> Vec<v1::Dependency> {
        let mut dependencies = Vec::with_capacity(given.len());
        for (index, after) in given.into_iter().enumerate() {
            let field = format!("{at}[{index}]");
            self.place(&field, after.referenced);
            dependencies.push(match after.value {
                After::Short(name) if name.is_empty() => {
                    let text = "must be the id of a job or an array, or the name of a job of this file";
                    self.problem(Some(after.referenced), &field, text);
                    v1::Dependency::default()
                }
                After::Short(array_id) if array_id.starts_with("array-") => {
                    v1::Dependency { array_id, ..v1::Dependency::default() }
                }
                After::Short(job_id) if job_id.starts_with("job-") => {
                    v1::Dependency { job_id, ..v1::Dependency::default() }
                }
                After::Short(job_name) => v1::Dependency { job_name, ..v1::Dependency::default() },
                After::Long(fields) => {
                    let AfterFields { job, when, array, by_member, name } = *fields;
                    v1::Dependency {
                        job_name: self.text(&format!("{field}.name"), name),
                        job_id: self.text(&format!("{field}.job"), job),
                        rule: self.closed::<DependencyRule>(&format!("{field}.when"), when),
                        array_id: self.text(&format!("{field}.array"), array),
                        by_member: self
                            .value(&format!("{field}.byMember"), by_member, quantity::flag)
                            .unwrap_or_default(),
                    }
                }
            });
        }
        dependencies
    }

    fn array(&mut self, field: &str, text: Option<Text>) -> Option<v1::JobArray> {
        let place = text.as_ref().map(|text| text.referenced);
        let array = self.value(field, text, quantity::array)?;
        if array.size == 0 && array.indices.is_empty() {
            self.problem(place, field, "must be above zero; leave it out for a single job".to_owned());
        }
        Some(array)
    }
}
