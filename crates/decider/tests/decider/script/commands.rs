//! Commands about nodes and jobs, in words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_decider::{Answer, Command, OverridesOrder, handle};
use muster_journal::RankUpdate;
use muster_types::health::{Finding, HealthReport, Observation, RepairEnd};
use muster_types::policy::{Guarantee, NotificationEvent, PurchaseKind};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, Affinity, AffinityLevel, AffinityRule,
    AffinityTarget, ArrayId, ArraySpec, CapacityFallback, CapacityRules, DependencyRule, DeviceAmount,
    DeviceSet, ExitStatus, FailureClass, ForeignLoad, JobContract, JobMetadata, NodeId, NodeOverridesChange,
    PriorityTier, PurchaseSet, Requester, SIZES_VARIABLE, Submission, TaskGroup,
};

use super::{World, duration_ms};
use crate::support::{self, accelerators, holder, job_draft, name, node_draft};

impl World {
    pub(super) fn node(&mut self, words: &[&str]) -> Command {
        let has = words.iter().find_map(|word| asked(word));
        let region = self.number(words, "region=").unwrap_or("eu");
        let cluster = self.number(words, "cluster=").unwrap_or("c1");
        let mut draft = node_draft(words[0], region, cluster, has);
        if let Some(cpu) = self.number(words, "cpu=") {
            draft.cpu_milli = cpu.parse::<u64>().unwrap() * 1_000;
        }
        draft.scratch_bytes = self.gib(words, "scratch=");
        for guarantee in self.number(words, "isolates=").into_iter().flat_map(|text| text.split(',')) {
            let guarantee = Guarantee::parse(guarantee).expect("a guarantee");
            draft.labels.insert(name(guarantee.label()), "own".to_owned());
        }
        for label in words.iter().filter_map(|word| word.strip_prefix("label=")) {
            let (key, value) = label.split_once(':').expect("label=KEY:VALUE");
            draft.labels.insert(name(key), value.to_owned());
        }
        if let Some(rack) = self.number(words, "rack=") {
            draft.rack = name(rack);
        }
        draft.taints = words.iter().filter_map(|word| word.strip_prefix("taint=")).map(name).collect();
        let who = self.number(words, "holder=").map_or(1, |text| text.parse().unwrap());
        Command::Register {
            spec: draft.check().expect("a node"),
            holder: holder(who),
            other_session_is_over: words.contains(&"other-session-over"),
        }
    }

    /// A number of GiB behind this word; 0 without it.
    fn gib(&self, words: &[&str], prefix: &str) -> u64 {
        self.number(words, prefix).map_or(0, |text| text.parse::<u64>().unwrap() << 30)
    }

    /// `purchases=spot,owned`, `fallback=on_demand:30m` and `interruptions=MILLI`.
    fn capacity(&self, words: &[&str]) -> Option<Box<CapacityRules>> {
        let kinds = |text: &str| {
            let known = |word: &str| PurchaseKind::parse(word).expect("a purchase");
            text.split(',').map(known).collect::<PurchaseSet>()
        };
        let fallback = self.number(words, "fallback=").map(|text| {
            let (purchases, after) = text.split_once(':').expect("fallback=PURCHASE:DURATION");
            CapacityFallback { purchases: kinds(purchases), after_ms: duration_ms(after), is_open: false }
        });
        let rules = CapacityRules {
            purchases: self.number(words, "purchases=").map(kinds).unwrap_or_default(),
            fallback,
            interruptions_milli_max: self.number(words, "interruptions=").map(|text| text.parse().unwrap()),
        };
        (!rules.is_empty()).then(|| Box::new(rules))
    }

    pub(super) fn submit(&mut self, words: &[&str]) -> String {
        let mut groups: Vec<TaskGroup> = Vec::new();
        for (place, part) in words[1..].split(|word| *word == "+").enumerate() {
            let workers = self.number(part, "workers=").map_or(1, |text| text.parse().unwrap());
            let mut group = support::group(&format!("g{place}"), workers, None);
            group.request.accelerators = part.iter().find_map(|word| wanted(word));
            if let Some(cpu) = self.number(part, "cpu=") {
                group.request.cpu_milli = cpu.parse::<u64>().unwrap() * 1_000;
            }
            if let Some(min) = self.number(part, "min=") {
                group.workers_min = min.parse().unwrap();
            }
            group.request.exclusive = words.contains(&"exclusive");
            group.request.scratch_bytes = self.gib(words, "scratch=");
            groups.push(group);
        }
        let mut draft = job_draft(words[0], groups);
        if let Some(tier) = self.number(words, "tier=") {
            draft.tier = PriorityTier::parse(tier).expect("a tier");
        }
        if let Some(regions) = self.number(words, "regions=") {
            draft.regions = regions.split(',').map(name).collect();
        }
        for label in words.iter().filter_map(|word| word.strip_prefix("select=")) {
            let (key, values) = label.split_once(':').expect("select=KEY:VALUE,VALUE");
            draft.node_selector.insert(name(key), values.split(',').map(str::to_owned).collect());
        }
        if let Some(taints) = self.number(words, "tolerates=") {
            draft.tolerations = taints.split(',').map(name).collect();
        }
        if let Some(retries) = self.number(words, "retries=") {
            draft.failure_retries_max = retries.parse().unwrap();
        }
        draft.nodes = Self::asked_nodes(words);
        draft.booking = self.number(words, "booking=").map(name);
        draft.capacity = self.capacity(words);
        draft.affinity = self.affinity(words);
        // `licences=NAME:COUNT,NAME:COUNT`.
        for licence in self.number(words, "licences=").into_iter().flat_map(|text| text.split(',')) {
            let (licence, count) = licence.split_once(':').expect("licences=NAME:COUNT");
            draft.licences.insert(name(licence), count.parse().unwrap());
        }
        draft.run_time_limit_ms = self.number(words, "limit=").map(duration_ms);
        if let Some(tenant) = self.number(words, "tenant=") {
            draft.tenant = name(tenant);
        }
        draft.preemptible = !words.contains(&"not-preemptible");
        draft.nice = self.number(words, "nice=").map_or(0, |nice| nice.parse().unwrap());
        draft.readiness_ms = self.number(words, "ready-within=").map(duration_ms);
        if words.contains(&"checkpointed") {
            draft.checkpoint_directory = Some("/checkpoints".into());
        }
        if let Some(sizes) = self.number(words, "sizes=") {
            let sizes = (SIZES_VARIABLE.to_owned(), sizes.to_owned());
            draft.groups[0].environment.extend([sizes]);
        }
        draft.expected_run_ms = self.number(words, "runs=").map(duration_ms);
        if let Some(grace) = self.number(words, "grace=") {
            draft.stop_grace_ms = duration_ms(grace);
        }
        draft.not_before =
            self.number(words, "not-before=+").map(|after| self.now.plus_ms(duration_ms(after)));
        draft.deadline = self.number(words, "deadline=+").map(|after| self.now.plus_ms(duration_ms(after)));
        for after in words.iter().filter_map(|word| word.strip_prefix("after=")) {
            let (job, rule) = match after.strip_suffix("!") {
                Some(job) => (job, DependencyRule::Finished),
                None => (after, DependencyRule::Succeeded),
            };
            draft.dependencies.push(self.dependency(job, rule));
        }
        let contract = self.contract(words);
        draft.datasets.extend(contract.checkpoint.place.clone());
        draft
            .datasets
            .extend(self.number(words, "reads=").into_iter().flat_map(|sets| sets.split(',').map(name)));
        let array = self.number(words, "array=").map(|text| ArraySpec::parse(text).expect("an array"));
        let size = array.as_ref().map_or(0, ArraySpec::size);
        // Each with another amount of CPU: no two of them ask for the same.
        let different = self.number(words, "different=").map_or(0, |text| text.parse::<u64>().unwrap());
        let mut specs = Vec::new();
        if different > 0 {
            for milli in 0..different {
                let mut other = draft.clone();
                other.groups[0].request.cpu_milli += milli;
                specs.push(other.check().expect("a job"));
            }
        } else {
            specs.push(draft.check().expect("a job"));
        }
        let labels: Vec<String> = (0..specs.len().max(size as usize))
            .map(|n| {
                let is_one = array.is_none() && different == 0;
                if is_one { words[0].to_string() } else { format!("{}[{n}]", words[0]) }
            })
            .collect();
        let request = self.request(words);
        let metadata = Self::metadata(words);
        let jobs = specs
            .into_iter()
            .map(|spec| Submission {
                spec,
                contract: contract.clone(),
                metadata: metadata.clone(),
                array: array.clone(),
                named_dependencies: Vec::new(),
                held: words[1..].contains(&"held"),
            })
            .collect();
        let before = self.state().log_index();
        let answer = handle(&mut self.speculation, &Command::submit(request, jobs));
        if let Ok(Answer::Submitted { jobs, at }) = &answer
            && *at > before
        {
            for (id, label) in jobs.iter().zip(labels) {
                self.jobs.insert(label.clone(), *id);
                self.labels.insert(*id, label);
            }
        }
        self.finish(answer.map(Some))
    }

    /// `near=TARGET@LEVEL` and `apart=TARGET@LEVEL`, with `/WEIGHT` behind one that is not required. A target is a job or an
    /// array of the script, `KEY:VALUE` for a label, or else the name of a job of the request.
    fn affinity(&self, words: &[&str]) -> Vec<Affinity> {
        let rules = [("near=", AffinityRule::Together), ("apart=", AffinityRule::Apart)];
        let given = words.iter().filter_map(|word| {
            rules.iter().find_map(|(start, rule)| Some((word.strip_prefix(start)?, *rule)))
        });
        let entry = |(text, rule): (&str, AffinityRule)| {
            let (target, rest) = text.split_once('@').expect("TARGET@LEVEL");
            let (level, weight) =
                rest.split_once('/').map_or((rest, None), |(level, weight)| (level, Some(weight)));
            let first = |job: &str| self.jobs.get(&format!("{job}[0]")).copied();
            let target = match (target.split_once(':'), self.jobs.get(target), first(target)) {
                (Some((key, value)), ..) => AffinityTarget::Labels(format!("{key}={value}")),
                (None, Some(job), _) => AffinityTarget::Job(*job),
                (None, None, Some(first)) => AffinityTarget::Array(ArrayId(first.0)),
                (None, None, None) => AffinityTarget::Named(name(target)),
            };
            let level = match level {
                "region" => AffinityLevel::Region,
                "cluster" => AffinityLevel::Cluster,
                "block" => AffinityLevel::Block,
                "rack" => AffinityLevel::Rack,
                "host" => AffinityLevel::Host,
                other => panic!("no level {other}"),
            };
            Affinity { target, level, rule, weight: weight.map(|weight| weight.parse().unwrap()) }
        };
        given.map(entry).collect()
    }

    /// `label NODE KEY=VALUE KEY-` and `taint NODE KEY KEY-`, with `request=N`.
    pub(super) fn overrides(&mut self, verb: &str, words: &[&str]) -> Command {
        let node = self.node_id(words[0]);
        let request = self.request(words);
        let mut change = NodeOverridesChange::default();
        for word in words[1..].iter().filter(|word| !word.starts_with("request=")) {
            match (word.strip_suffix('-'), word.split_once('=')) {
                (Some(key), _) if verb == "label" => _ = change.remove_labels.insert(name(key)),
                (Some(key), _) => _ = change.remove_taints.insert(name(key)),
                (None, Some((key, value))) => _ = change.set_labels.insert(name(key), value.to_owned()),
                (None, None) => _ = change.set_taints.insert(name(word)),
            }
        }
        let by = Requester::named("admin/ada".to_owned(), true);
        Command::SetNodeOverrides(Box::new(OverridesOrder { request, by, node, change }))
    }

    /// `health NODE boot=N xid-79@0 slowdown@2 monitor-hung maintenance=+20m reset=3 repair=done`.
    pub(super) fn health(&mut self, words: &[&str]) -> Command {
        let node = self.node_id(words[0]);
        let incarnation = self.state().node(node).map_or(0, |row| row.incarnation);
        let mut report = HealthReport {
            boot: self.number(words, "boot=").map_or(1, |text| text.parse().unwrap()),
            maintenance_at: self
                .number(words, "maintenance=+")
                .map(|after| self.now.plus_ms(duration_ms(after))),
            ..HealthReport::default()
        };
        if let Some(device) = self.number(words, "reset=") {
            report.reset = DeviceSet(1 << device.parse::<u32>().unwrap());
        }
        report.repair = self.number(words, "repair=").map(|how| match how {
            "done" => RepairEnd::Done,
            why => RepairEnd::Failed(why.into()),
        });
        for word in words[1..].iter().filter(|word| !word.contains('=')) {
            let (finding, device) = match word.split_once('@') {
                Some((finding, device)) => (finding, Some(device.parse().unwrap())),
                None => (*word, None),
            };
            let observation = Observation::of(finding.parse().expect("a finding"), device);
            match observation.finding {
                Finding::Xid(_) => report.events.push(observation),
                _ => report.findings.push(observation),
            }
        }
        Command::ReportHealth { node, incarnation, report: Box::new(report) }
    }

    /// `foreign NODE closed devices=0,3 cpu=MILLI memory=BYTES incarnation=N`: what others hold; none of it is nothing.
    pub(super) fn foreign(&mut self, words: &[&str]) -> Command {
        let node = self.node_id(words[0]);
        let number = |prefix: &str| self.number(words, prefix).map_or(0, |text| text.parse().unwrap());
        let devices = self.number(words, "devices=").unwrap_or_default();
        let devices = devices.split(',').filter_map(|device| device.parse::<u32>().ok());
        let load = ForeignLoad {
            closed: words.contains(&"closed"),
            devices: DeviceSet(devices.fold(0, |set, device| set | 1 << device)),
            cpu_milli: number("cpu="),
            memory_bytes: number("memory="),
        };
        let incarnation = self.number(words, "incarnation=").map_or_else(
            || self.state().node(node).map_or(0, |row| row.incarnation),
            |text| text.parse().unwrap(),
        );
        Command::ReportForeignLoad { node, incarnation, load }
    }

    /// `report NODE JOB RANKS WHAT`: ranks are `all`, `3` or `0..4`.
    pub(super) fn report(&mut self, words: &[&str]) -> Command {
        let node = self.node_id(words[0]);
        let job = self.job_id(words[1]);
        let row = self.state().job(job);
        let placement = if words.contains(&"of-previous") {
            row.and_then(|row| row.previous.clone())
        } else {
            row.and_then(|row| row.placement.clone())
        };
        let placement = placement.expect("a placed job");
        let ranks: Vec<u32> = match words[2] {
            "all" => {
                let pairs = placement.slots.iter().zip(&placement.ranks).enumerate();
                let own = pairs.filter(|(_, (slot, state))| slot.node == node && !state.is_over());
                own.map(|(rank, _)| rank as u32).collect()
            }
            text => match text.split_once("..") {
                Some((from, to)) => (from.parse().unwrap()..to.parse().unwrap()).collect(),
                None => vec![text.parse().unwrap()],
            },
        };
        let update = match words[3] {
            "running" => RankUpdate::Running,
            "ready" => RankUpdate::Ready,
            "exit" => RankUpdate::Exited(ExitStatus::Code(words[4].parse().unwrap())),
            "signal" => RankUpdate::Exited(ExitStatus::Signal(words[4].parse().unwrap())),
            "vanished" => RankUpdate::Exited(ExitStatus::Vanished),
            "lease-expired" => RankUpdate::Exited(ExitStatus::LeaseExpired),
            "not-started" => RankUpdate::Exited(ExitStatus::NotStarted),
            "out-of-memory" => RankUpdate::Exited(ExitStatus::OutOfMemory),
            "out-of-scratch" => RankUpdate::Exited(ExitStatus::OutOfScratch),
            "node-fault" => RankUpdate::Exited(ExitStatus::NodeFault(words[4..].join(" "))),
            "backend-lost" => RankUpdate::Exited(ExitStatus::BackendLost(words[4..].join(" "))),
            "preflight-failed" => RankUpdate::Exited(ExitStatus::PreflightFailed(words[4..].join(" "))),
            "launch-failed" => RankUpdate::Exited(ExitStatus::LaunchFailed(words[4..].join(" "))),
            other => panic!("nobody reports {other}"),
        };
        let incarnation = self.number(words, "incarnation=").map_or_else(
            || self.state().node(node).map_or(0, |row| row.incarnation),
            |text| text.parse().unwrap(),
        );
        Command::Report {
            node,
            incarnation,
            job,
            token: placement.token,
            updates: ranks.into_iter().map(|rank| (rank, update.clone())).collect(),
        }
    }

    /// `running JOB...`, `stopped JOB...`, `done JOB...`: every node says the same of all ranks that are not over.
    pub(super) fn report_all(&mut self, jobs: &[&str], update: &RankUpdate) -> String {
        let mut text = String::new();
        for job in jobs {
            let job = self.job_id(job);
            let placement =
                self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job");
            let mut by_node: BTreeMap<NodeId, (u32, Vec<(u32, RankUpdate)>)> = BTreeMap::new();
            for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
                if !state.is_over() {
                    let (_, updates) = by_node.entry(slot.node).or_insert((slot.incarnation, Vec::new()));
                    updates.push((rank as u32, update.clone()));
                }
            }
            for (node, (incarnation, updates)) in by_node {
                let token = placement.token;
                text.push_str(&self.carry_out(&Command::Report { node, incarnation, job, token, updates }));
            }
        }
        text
    }

    /// What jobs ask of the system that runs them: `on=CLASS:N`, `backoff=D`, `backoff-max=D`, `avoid=D`, `place=NAME`,
    /// `save=D`, `interval=D`, `spares=N`, `artifacts=PATH,PATH`, `notify=RECEIVER:EVENT`.
    pub(super) fn contract(&self, words: &[&str]) -> JobContract {
        let mut contract = JobContract::default();
        for limit in words.iter().filter_map(|word| word.strip_prefix("on=")) {
            let (class, retries) = limit.split_once(':').expect("on=CLASS:N");
            let class = FailureClass::parse(class).expect("a class");
            contract.retry.limits.insert(class, retries.parse().unwrap());
        }
        contract.retry.backoff_ms = self.number(words, "backoff=").map(duration_ms);
        contract.retry.backoff_max_ms = self.number(words, "backoff-max=").map(duration_ms);
        contract.retry.avoid_ms = self.number(words, "avoid=").map(duration_ms);
        contract.checkpoint.place = self.number(words, "place=").map(name);
        contract.checkpoint.save_ms = self.number(words, "save=").map(duration_ms);
        contract.checkpoint.interval_ms = self.number(words, "interval=").map(duration_ms);
        contract.spares = self.number(words, "spares=").map_or(0, |text| text.parse().unwrap());
        let paths = words.iter().find_map(|word| word.strip_prefix("artifacts="));
        contract.artifacts = paths.map(|paths| muster_types::ArtifactRules {
            paths: paths.split(',').map(str::to_owned).collect(),
            required: false,
        });
        for entry in words.iter().filter_map(|word| word.strip_prefix("notify=")) {
            let (receiver, event) = entry.split_once(':').expect("RECEIVER:EVENT");
            let event = NotificationEvent::ALL.into_iter().find(|known| known.as_str() == event);
            let events = BTreeSet::from([event.expect("an event")]);
            contract.notify.push(muster_types::JobNotification { receiver: name(receiver), events });
        }
        contract
    }

    /// `label=KEY:VALUE`, `annotation=KEY:VALUE`, `by=CREATOR`.
    pub(super) fn metadata(words: &[&str]) -> Option<Arc<JobMetadata>> {
        let texts = |start: &str| {
            let said = words.iter().filter_map(|word| word.strip_prefix(start));
            said.map(|said| said.split_once(':').expect("KEY:VALUE"))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        let creator = words.iter().find_map(|word| word.strip_prefix("by=")).unwrap_or_default();
        let metadata = JobMetadata {
            labels: texts("label="),
            annotations: texts("annotation="),
            creator: creator.to_owned(),
        };
        (!metadata.is_default()).then(|| Arc::new(metadata))
    }
}

/// What a worker asks for: `h100:8`, `h100|a100:1`, `any:0.25`.
fn wanted(word: &str) -> Option<AcceleratorRequest> {
    let (kinds, amount) = word.split_once(':')?;
    let amount = match amount.strip_prefix("0.") {
        Some(digits) => DeviceAmount::Share(format!("{digits:0<3}").parse().ok()?),
        None => DeviceAmount::Whole(amount.parse().ok()?),
    };
    let choices = kinds
        .split('|')
        .filter(|kind| *kind != "any")
        .map(|kind| AcceleratorChoice { kind: name(kind), throughput_milli: 1_000 });
    Some(AcceleratorRequest { choices: choices.collect(), amount })
}

/// What a node has: `h100:8`.
fn asked(word: &str) -> Option<Accelerators> {
    let (kind, count) = word.split_once(':')?;
    Some(accelerators(kind, count.parse().ok()?))
}
