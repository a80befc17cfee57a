//! Runs the scripts in `testdata/`: each command is followed by exactly what it led to.
//!
//! `UPDATE_EXPECT=1` rewrites the outcomes; read the difference before committing it.
//!
//! Every command is one round, which also goes through its bytes to a second replica.

mod controls;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use muster_decider::{
    Answer, Command, DrainOrder, Founding, Pass, RepairOrder, Speculation, checkpoint_advice, explain_job,
    fails_more_often, handle, schedule, settle_all, tick,
};
use muster_journal::{Decision, Outcome, RankUpdate, RearrangeCause, StopCause, SubmittedPart, WorkerSlot};
use muster_planner::Budget;
use muster_state::{NodeStatus, Phase, RankState, State};
use muster_types::health::{Finding, HealthAction, HealthReport, Observation, RepairEnd, XidRule};
use muster_types::policy::{
    Dataset, Guarantee, NonPreemptible, Order, PolicyDraft, Price, Quota, TenantPolicy, Window,
    WindowPurpose, WindowScope,
};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, ArraySpec, DependencyRule, DeviceAmount, DeviceSet,
    ExitStatus, FailureClass, ForeignLoad, JobContract, JobId, JobMetadata, LogTime, NodeId, PriorityTier,
    RefusalCode, SIZES_VARIABLE, Submission, TaskGroup,
};

use crate::support::{
    self, FOUNDING, accelerators, commit, holder, job_draft, leadership, name, node_draft, request,
};

#[test]
fn scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "there are scripts");
    let mut wrong = Vec::new();
    for path in paths {
        let expected = std::fs::read_to_string(&path).unwrap();
        let actual = run(&expected, &path.display().to_string());
        if actual == expected {
            continue;
        }
        if update {
            std::fs::write(&path, &actual).unwrap();
        } else {
            let differs = expected.lines().zip(actual.lines()).position(|(e, a)| e != a);
            let line = differs.unwrap_or(expected.lines().count().min(actual.lines().count()));
            wrong.push(format!(
                "{}:{}\n  expected: {}\n  actual:   {}",
                path.display(),
                line + 1,
                expected.lines().nth(line).unwrap_or("(end)"),
                actual.lines().nth(line).unwrap_or("(end)")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}\nUPDATE_EXPECT=1 rewrites", wrong.join("\n"));
}

fn run(script: &str, origin: &str) -> String {
    let mut world = World::new();
    let mut text = String::new();
    for (number, line) in script.lines().enumerate() {
        if line.starts_with('#') || line.is_empty() {
            text.push_str(line);
            text.push('\n');
        } else if let Some(command) = line.strip_prefix("> ") {
            text.push_str(line);
            text.push('\n');
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(command)));
            match result {
                Ok(output) => text.push_str(&output),
                Err(panic) => {
                    eprintln!("at {origin}:{}: {line}", number + 1);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
    text
}

struct World {
    speculation: Speculation,
    replica: State,
    now: LogTime,
    jobs: BTreeMap<String, JobId>,
    labels: BTreeMap<JobId, String>,
    requests: u128,
    founding: Founding,
}

impl World {
    fn new() -> World {
        World::of(support::founded())
    }

    fn of((speculation, replica): (Speculation, State)) -> World {
        World {
            now: speculation.now(),
            speculation,
            replica,
            jobs: BTreeMap::new(),
            labels: BTreeMap::new(),
            requests: 1_000,
            founding: FOUNDING,
        }
    }

    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = words.split_first().expect("a command has a verb");
        match *verb {
            // In place of the cluster that every script begins with: one for which nobody has set a policy.
            "cluster" => {
                assert_eq!(rest, ["new"], "no other cluster is known");
                *self = World::of(support::founded_as(FOUNDING));
                String::new()
            }
            "node" => {
                let command = self.node(rest);
                self.carry_out(&command)
            }
            // `lost where JOB`: the node that its first rank is on.
            "lost" if rest[0] == "where" => {
                let job = self.job_id(rest[1]);
                let node =
                    self.state().job(job).and_then(|row| row.placement.as_ref()).expect("a placed job");
                let (node, incarnation) = (node.slots[0].node, node.slots[0].incarnation);
                self.carry_out(&Command::SessionOver { node, incarnation })
            }
            "lost" => {
                let node = self.node_id(rest[0]);
                let incarnation = self.number(rest, "incarnation=").map_or_else(
                    || self.state().node(node).unwrap().incarnation,
                    |text| text.parse().unwrap(),
                );
                self.carry_out(&Command::SessionOver { node, incarnation })
            }
            "lapsed" => {
                let nodes: Vec<NodeId> = rest.iter().map(|name| self.node_id(name)).collect();
                self.speculation.set_silent(nodes.clone());
                self.speculation.set_lapsed(nodes);
                self.speculation.want_schedule();
                String::new()
            }
            "silent" => {
                let nodes: Vec<NodeId> = rest.iter().map(|name| self.node_id(name)).collect();
                self.speculation.set_silent(nodes);
                String::new()
            }
            "forget" => {
                let node = self.node_id(rest[0]);
                self.carry_out(&Command::ForgetNode { request: None, node })
            }
            "format" => self.carry_out(&Command::RaiseFormat { format: rest[0].parse().unwrap() }),
            "recover" => self.carry_out(&Command::Recover { generation: rest[0].parse().unwrap() }),
            "cordon" | "uncordon" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                self.carry_out(&Command::SetCordon { request, node, cordoned: *verb == "cordon" })
            }
            "health" => {
                let command = self.health(rest);
                self.carry_out(&command)
            }
            "drain" | "undrain" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let deadline_ms = self.number(rest, "deadline=").map(duration_ms);
                let order =
                    if *verb == "drain" { DrainOrder::Begin { deadline_ms } } else { DrainOrder::End };
                self.carry_out(&Command::SetDrain { request, node, order })
            }
            "quarantine" | "release" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let words: Vec<&str> = rest[1..].iter().filter(|w| !w.contains('=')).copied().collect();
                let reason = (*verb == "quarantine").then(|| words.join(" "));
                self.carry_out(&Command::SetQuarantine { request, node, reason })
            }
            "repair" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let order = match rest.get(1) {
                    Some(&"done") => RepairOrder::Done,
                    Some(&"failed") => RepairOrder::Failed { detail: rest[2..].join(" ") },
                    _ => RepairOrder::Begin {
                        action: self.number(rest, "action=").and_then(HealthAction::of_name),
                        devices: DeviceSet::EMPTY,
                        deadline_ms: self.number(rest, "deadline=").map(duration_ms),
                    },
                };
                self.carry_out(&Command::SetRepair { request, node, order })
            }
            "health-policy" => {
                let mut policy = (*self.state().health_policy().policy).clone();
                for word in rest {
                    let Some((finding, action)) = word.split_once('=') else { continue };
                    match finding.parse().expect("a finding") {
                        Finding::Xid(code) => {
                            policy.xids.insert(code, XidRule::of_name(action).expect("a rule"));
                        }
                        other => {
                            policy.findings.insert(other, HealthAction::of_name(action).expect("an action"));
                        }
                    }
                }
                let request = self.request(&[]);
                let expected_version = None;
                let policy = Box::new(policy);
                self.carry_out(&Command::SetHealthPolicy { request, policy, expected_version })
            }
            "submit" => self.submit(rest),
            "cancel" | "hold" | "resume" | "requeue" | "suspend" => self.control(verb, rest),
            "modify" => self.modify(rest),
            "checkpoint" => {
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                self.carry_out(&Command::CommitCheckpoint { job, token })
            }
            "straggler" => {
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                let (rank, slow_milli) = (rest[1].parse().unwrap(), rest[2].parse().ok());
                self.carry_out(&Command::NoteStraggler { job, token, rank, slow_milli })
            }
            "sound" => {
                let nodes = rest.iter().map(|text| self.node_id(text)).collect();
                self.carry_out(&Command::NoteSoundNetwork { nodes })
            }
            "foreign" => {
                let command = self.foreign(rest);
                self.carry_out(&command)
            }
            "policy" => self.policy(rest),
            "report" => {
                let command = self.report(rest);
                self.carry_out(&command)
            }
            "running" => self.report_all(rest, &RankUpdate::Running),
            "stopped" => self.report_all(rest, &RankUpdate::Exited(ExitStatus::Signal(15))),
            "done" => self.report_all(rest, &RankUpdate::Exited(ExitStatus::Code(0))),
            "anew" => {
                *self = World::new();
                String::new()
            }
            "schedule" => self.schedule(rest),
            "tick" => self.tick(rest),
            "leader" => self.leader(rest),
            "why" => self.why(rest[0]),
            "show" => match rest[0] {
                "jobs" => self.show_jobs(),
                "array" => self.show_array(rest[1]),
                "nodes" => self.show_nodes(),
                "recoveries" => self.show_recoveries(),
                "spares" => self.show_spares(),
                "advice" => self.show_advice(rest[1]),
                "estimate" => self.show_estimate(rest[1]),
                other => panic!("cannot show {other}"),
            },
            other => panic!("unknown command {other}"),
        }
    }

    fn state(&self) -> &State {
        self.speculation.state()
    }

    fn number<'a>(&self, words: &[&'a str], prefix: &str) -> Option<&'a str> {
        words.iter().find_map(|word| word.strip_prefix(prefix))
    }

    fn request(&mut self, words: &[&str]) -> muster_types::RequestId {
        self.requests += 1;
        let n = self.number(words, "request=").map_or(self.requests, |text| text.parse().unwrap());
        request(n)
    }

    fn node_id(&self, text: &str) -> NodeId {
        // One that is gone goes by the id it had.
        let id = |text: &str| text.parse::<NodeId>().ok();
        self.state().node_named(&name(text)).or_else(|| id(text)).unwrap_or(NodeId(999))
    }

    fn job_id(&self, text: &str) -> JobId {
        self.jobs.get(text).copied().unwrap_or(JobId(999_999))
    }

    fn label(&self, job: JobId) -> String {
        self.labels.get(&job).cloned().unwrap_or_else(|| job.to_string())
    }

    fn node_label(&self, node: NodeId) -> String {
        self.state().node(node).map_or_else(|| node.to_string(), |row| row.spec.name.to_string())
    }

    fn node(&mut self, words: &[&str]) -> Command {
        let has = words.iter().find_map(|word| asked(word));
        let region = self.number(words, "region=").unwrap_or("eu");
        let cluster = self.number(words, "cluster=").unwrap_or("c1");
        let mut draft = node_draft(words[0], region, cluster, has);
        if let Some(cpu) = self.number(words, "cpu=") {
            draft.cpu_milli = cpu.parse::<u64>().unwrap() * 1_000;
        }
        for guarantee in self.number(words, "isolates=").into_iter().flat_map(|text| text.split(',')) {
            let guarantee = Guarantee::parse(guarantee).expect("a guarantee");
            draft.labels.insert(name(guarantee.label()), "own".to_owned());
        }
        let who = self.number(words, "holder=").map_or(1, |text| text.parse().unwrap());
        Command::Register {
            spec: draft.check().expect("a node"),
            holder: holder(who),
            other_session_is_over: words.contains(&"other-session-over"),
        }
    }

    fn submit(&mut self, words: &[&str]) -> String {
        let mut groups: Vec<TaskGroup> = Vec::new();
        for (place, part) in words[1..].split(|word| *word == "+").enumerate() {
            let workers = self.number(part, "workers=").map_or(1, |text| text.parse().unwrap());
            let mut group = support::group(&format!("g{place}"), workers, None);
            group.request.accelerators = part.iter().find_map(|word| wanted(word));
            if let Some(cpu) = self.number(part, "cpu=") {
                group.request.cpu_milli = cpu.parse::<u64>().unwrap() * 1_000;
            }
            groups.push(group);
        }
        let mut draft = job_draft(words[0], groups);
        if let Some(tier) = self.number(words, "tier=") {
            draft.tier = PriorityTier::parse(tier).expect("a tier");
        }
        if let Some(regions) = self.number(words, "regions=") {
            draft.regions = regions.split(',').map(name).collect();
        }
        if let Some(retries) = self.number(words, "retries=") {
            draft.failure_retries_max = retries.parse().unwrap();
        }
        draft.run_time_limit_ms = self.number(words, "limit=").map(duration_ms);
        if let Some(tenant) = self.number(words, "tenant=") {
            draft.tenant = name(tenant);
        }
        draft.preemptible = !words.contains(&"not-preemptible");
        if words.contains(&"checkpointed") {
            draft.checkpoint_directory = Some("/checkpoints".into());
        }
        if let Some(min) = self.number(words, "min=") {
            draft.groups[0].workers_min = min.parse().unwrap();
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
            })
            .collect();
        let before = self.state().log_index();
        let answer = handle(&mut self.speculation, &Command::Submit { request, jobs });
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

    /// `health NODE boot=N xid-79@0 slowdown@2 monitor-hung maintenance=+20m reset=3 repair=done`.
    fn health(&mut self, words: &[&str]) -> Command {
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
    fn foreign(&mut self, words: &[&str]) -> Command {
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
    fn report(&mut self, words: &[&str]) -> Command {
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
            "exit" => RankUpdate::Exited(ExitStatus::Code(words[4].parse().unwrap())),
            "signal" => RankUpdate::Exited(ExitStatus::Signal(words[4].parse().unwrap())),
            "vanished" => RankUpdate::Exited(ExitStatus::Vanished),
            "lease-expired" => RankUpdate::Exited(ExitStatus::LeaseExpired),
            "not-started" => RankUpdate::Exited(ExitStatus::NotStarted),
            "out-of-memory" => RankUpdate::Exited(ExitStatus::OutOfMemory),
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
    fn report_all(&mut self, jobs: &[&str], update: &RankUpdate) -> String {
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

    /// `policy` and any of: `preemption=off`, `order=submission|predicted`, `fair-share=off`,
    /// `reservations=N`, `reserve-after=D`, `minimum-run=D`, `defragment-after=D`, `victims-max=N`, `price=KIND,N`,
    /// `tenant=NAME,parent=P,weight=N,KIND=NOMINAL/BORROWING/LENDING,tier-max=T,non-preemptible=R,deadlines=on|off`
    /// (a tenant of the first level that states no right has all of them), `backoff=D`, `stopping-deadline=D`,
    /// `starting-deadline=D`, `end-overrunners=on|off`, `isolation=devices,pid,tmp,user`,
    /// `maintenance=NODE,+FROM,+UNTIL`, `reserved=NODE,TENANT,+FROM,+UNTIL`. All of it is set anew.
    fn policy(&mut self, words: &[&str]) -> String {
        let mut draft = PolicyDraft::default();
        for word in words.iter().filter(|word| !word.starts_with("request=")) {
            let (key, value) = word.split_once('=').expect("key=value");
            let times = |from: &str, until: &str| {
                let time = |text: &str| self.now.plus_ms(duration_ms(text.strip_prefix('+').unwrap()));
                (time(from), time(until))
            };
            let window = |node: &str, from: &str, until: &str, purpose| {
                let (from, until) = times(from, until);
                let scope = WindowScope { node: Some(name(node)), ..WindowScope::default() };
                Window { name: name(&format!("w-{node}")), from, until, scope, purpose }
            };
            let parts: Vec<&str> = value.split(',').collect();
            match key {
                "spread" => draft.weights.spread = value.parse().unwrap(),
                "preemption" => draft.preemption.enabled = value == "on",
                "order" => {
                    draft.order.order =
                        if value == "predicted" { Order::Predicted } else { Order::Submission }
                }
                "fair-share" => draft.order.fair_share = value == "on",
                "reservations" => draft.backfill.reservations_max = value.parse().unwrap(),
                "reserve-after" => {
                    draft.backfill.reserve_after_ms = duration_ms(value);
                    draft.backfill.reserve_after_runs_milli = 0;
                }
                "minimum-run" => draft.preemption.minimum_run_ms = duration_ms(value),
                "backoff" => draft.preemption.backoff_ms = duration_ms(value),
                "stopping-deadline" => draft.preemption.stopping_deadline_ms = duration_ms(value),
                "starting-deadline" => draft.preemption.starting_deadline_ms = duration_ms(value),
                "end-overrunners" => draft.backfill.end_overrunners = value == "on",
                "victims-max" => draft.preemption.victims_max = value.parse().unwrap(),
                "isolation" => {
                    let guarantee = |part: &&str| Guarantee::parse(part).expect("a guarantee");
                    draft.required_isolation = parts.iter().map(guarantee).collect();
                }
                "price" => draft.prices.push(Price {
                    kind: name(parts[0]),
                    region: None,
                    micro_dollars_per_device_hour: parts[1].parse().unwrap(),
                }),
                "defragment-after" => draft.preemption.defragment_wait_ms = duration_ms(value),
                "maintenance" => {
                    let purpose = WindowPurpose::Maintenance;
                    draft.windows.push(window(parts[0], parts[1], parts[2], purpose));
                }
                "reserved" => {
                    let purpose = WindowPurpose::ReservedFor { tenant: name(parts[1]) };
                    draft.windows.push(window(parts[0], parts[2], parts[3], purpose));
                }
                "dataset" => {
                    let regions = parts[1..].iter().map(|region| name(region)).collect();
                    draft.datasets.insert(name(parts[0]), Dataset { bytes: 1 << 30, regions });
                }
                "tenant" => {
                    let mut tenant = TenantPolicy::default();
                    for part in &parts[1..] {
                        let (what, value) = part.split_once('=').expect("what=value");
                        match what {
                            "parent" => tenant.parent = Some(name(value)),
                            "weight" => tenant.weight_milli = value.parse::<u32>().unwrap() * 1_000,
                            "tier-max" => tenant.rights.tier_max = PriorityTier::parse(value),
                            "non-preemptible" => tenant.rights.non_preemptible = NonPreemptible::parse(value),
                            "deadlines" => tenant.rights.deadlines = Some(value == "on"),
                            kind => tenant.quotas.push(quota(kind, value)),
                        }
                    }
                    draft.tenants.insert(name(parts[0]), tenant);
                }
                other => panic!("no policy {other}"),
            }
        }
        let request = self.request(words);
        match support::with_all_rights(draft).check() {
            Ok(policy) => self.carry_out(&Command::SetPolicy {
                request,
                policy: Box::new(policy),
                expected_version: None,
            }),
            Err(violations) => violations.iter().map(|violation| format!("refused: {violation}\n")).collect(),
        }
    }

    fn carry_out(&mut self, command: &Command) -> String {
        let answer = handle(&mut self.speculation, command);
        self.finish(answer.map(Some))
    }

    fn schedule(&mut self, words: &[&str]) -> String {
        let visits = self.number(words, "visits=").map_or(10_000, |text| text.parse().unwrap());
        let pass = schedule(&mut self.speculation, &mut Budget::new(visits));
        let mut text = self.finish(Ok(None));
        if let Pass::Interrupted { .. } = pass {
            text.push_str("interrupted\n");
        }
        text
    }

    fn tick(&mut self, words: &[&str]) -> String {
        let ahead = words.first().and_then(|word| word.strip_prefix('+')).map_or(0, duration_ms);
        self.now = self.now.plus_ms(ahead);
        self.speculation.set_now(self.now);
        tick(&mut self.speculation);
        self.finish(Ok(None))
    }

    /// Another replica leads from here on; it has applied everything. `generation=N`: its folder is of that
    /// generation; `knows=N`: its binary knows formats up to that.
    fn leader(&mut self, words: &[&str]) -> String {
        let replica = words[0].strip_prefix('r').unwrap().parse().unwrap();
        let term = self.speculation.leadership().term + 1;
        if let Some(generation) = self.number(words, "generation=") {
            self.founding.generation = generation.parse().unwrap();
        }
        if let Some(format_max) = self.number(words, "knows=") {
            self.founding.format_max = format_max.parse().unwrap();
        }
        self.speculation =
            Speculation::begin(self.replica.clone(), leadership(term, replica), self.now, self.founding);
        settle_all(&mut self.speculation);
        self.finish(Ok(None))
    }

    fn finish(&mut self, answer: Result<Option<Answer>, muster_types::Refusal>) -> String {
        let round = commit(&mut self.speculation, &mut self.replica);
        let mut text = String::new();
        match &round {
            Some(round) => {
                for (n, decision) in round.decisions.iter().enumerate() {
                    let index = round.first_index.0 + n as u64;
                    writeln!(text, "{index} {}{}", decision.name(), self.short(decision)).unwrap();
                }
            }
            None => match &answer {
                Ok(Some(answer)) => {
                    writeln!(text, "no record; the answer stands at {}", answer.at()).unwrap()
                }
                Ok(None) => text.push_str("no record\n"),
                Err(_) => {}
            },
        }
        if let Err(refusal) = answer {
            assert!(round.is_none(), "a refusal pushes nothing");
            assert!(RefusalCode::ALL.contains(&refusal.code));
            writeln!(text, "refused: {refusal}").unwrap();
        }
        text
    }

    fn short(&self, decision: &Decision) -> String {
        match decision {
            Decision::ClusterCreated { generation, .. } => format!(" generation={generation}"),
            Decision::LeaderStarted => format!(" {}", self.speculation.leadership().replica),
            Decision::DigestRecorded { .. } => String::new(),
            Decision::JobsSubmitted { specs, .. } => {
                let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
                match names.len() {
                    1 => format!(" {}", names[0]),
                    many => format!(" {} x{many}", names[0]),
                }
            }
            Decision::ArraysSubmitted { parts, .. } => {
                let part = |part: &SubmittedPart| match &part.array {
                    Some(array) => format!(" {} x{} ({array})", part.spec.name, array.size()),
                    None => format!(" {}", part.spec.name),
                };
                parts.iter().map(part).collect()
            }
            Decision::ArrayMembersCreated { array, count } => {
                format!(" {} x{count}", self.array_label(*array))
            }
            Decision::ArrayReleased { array } => format!(" {}", self.array_label(*array)),
            Decision::ArrayMembersFailed { array, detail } => {
                format!(" {}: {detail}", self.array_label(*array))
            }
            Decision::ArraysControlled { by, control, arrays, jobs, .. } => {
                let arrays: Vec<String> = arrays.iter().map(|array| self.array_label(*array)).collect();
                format!(" {control} {}{}", arrays.join(" "), self.controlled(jobs, by))
            }
            Decision::JobCancelRequested { by, jobs, .. } => self.controlled(jobs, by),
            Decision::JobHoldSet { by, jobs, held, .. } => {
                format!("{} {}", self.controlled(jobs, by), if *held { "held" } else { "released" })
            }
            Decision::JobRequeueRequested { by, jobs, suspended, .. } => {
                let how = if *suspended { " suspended" } else { "" };
                format!("{}{how}", self.controlled(jobs, by))
            }
            Decision::JobModified { by, job, changes, .. } => {
                let changes: Vec<String> = changes.iter().map(|change| format!(" {change}")).collect();
                format!("{}{}", self.controlled(&[*job], by), changes.concat())
            }
            Decision::NodeRegistered { spec, holder } => {
                let row = self.state().node_named(&spec.name).and_then(|id| self.state().node(id)).unwrap();
                format!(" {} holder={} incarnation={}", spec.name, holder.0, row.incarnation)
            }
            Decision::NodeCordonSet { node, cordoned, .. } => {
                format!(" {} {}", self.node_label(*node), if *cordoned { "cordoned" } else { "open" })
            }
            Decision::NodeLost { node, incarnation, cause } => {
                format!(" {} incarnation={incarnation} {cause:?}", self.node_label(*node))
            }
            Decision::WorkersReported { node, job, updates, .. } => {
                let mut text = format!(" {} {}", self.node_label(*node), self.label(*job));
                for (rank, update) in updates {
                    match update {
                        RankUpdate::Running => write!(text, " {rank}=running").unwrap(),
                        RankUpdate::Exited(exit) => write!(text, " {rank}=({exit})").unwrap(),
                    }
                }
                text
            }
            Decision::GangPlaced { job, workers } => {
                format!(" {} on {}", self.label(*job), self.slots(workers))
            }
            Decision::GangStopRequested { job, cause, .. } => {
                format!(" {}: {}", self.label(*job), self.cause(cause))
            }
            Decision::JobRequeued { job, failed } => {
                format!(" {}, {}", self.label(*job), if *failed { "a failure" } else { "not to blame" })
            }
            Decision::JobFinished { job, outcome } => {
                format!(" {}: {}", self.label(*job), outcome_text(outcome))
            }
            Decision::HistoryPruned { .. } => String::new(),
            Decision::PolicySet { .. }
            | Decision::NodeAdmissionSet { .. }
            | Decision::NodeApprovalSet { .. }
            | Decision::CertificateRevoked { .. } => String::new(),
            Decision::SessionResumed { node, incarnation } => {
                format!(" {} incarnation={incarnation}", self.node_label(*node))
            }
            Decision::Rearranged { stops, promises } => {
                let mut text = String::new();
                for stop in stops {
                    let cause = self.cause(&StopCause::Rearranged(stop.cause));
                    write!(text, " stop {} ({cause});", self.label(stop.job)).unwrap();
                }
                for promise in promises {
                    let slots = self.slots(&promise.workers);
                    write!(text, " promise {} {slots};", self.label(promise.job)).unwrap();
                }
                text.trim_end_matches(';').to_string()
            }
            Decision::PromiseDropped { job }
            | Decision::JobReleased { job }
            | Decision::CheckpointCommitted { job, .. } => format!(" {}", self.label(*job)),
            Decision::FormatRaised { format } => format!(" {format}"),
            Decision::ClusterRecovered { generation } => format!(" generation={generation}"),
            Decision::NodeForgotten { node, .. } => format!(" {node}"),
            Decision::JobContractsSet { contracts } => {
                contracts.iter().map(|(job, _)| format!(" {}", self.label(*job))).collect()
            }
            Decision::JobMetadataSet { runs } => runs
                .iter()
                .map(|(first, count, metadata)| {
                    let labels: Vec<String> =
                        metadata.labels.iter().map(|(key, value)| format!(" {key}={value}")).collect();
                    let labels = labels.concat();
                    format!(" {}x{count} by {}{labels};", self.label(*first), metadata.creator())
                })
                .collect::<String>()
                .trim_end_matches(';')
                .to_owned(),
            Decision::AttemptFailed { job, class, rank, node, detail, streak, wait_until, avoid, .. } => {
                let mut text = format!(" {}: {class}", self.label(*job));
                rank.inspect(|rank| write!(text, " of rank {rank}").unwrap());
                node.inspect(|node| write!(text, " on {}", self.node_label(*node)).unwrap());
                write!(text, " ({detail}); {streak} in a row").unwrap();
                wait_until.inspect(|at| write!(text, ", waits {} ms", at.since_ms(self.now)).unwrap());
                avoid.inspect(|at| write!(text, ", avoids it {} s", at.since_ms(self.now) / 1_000).unwrap());
                text
            }
            Decision::SparesTaken { job, ranks, .. } => {
                let ranks: Vec<String> =
                    ranks.iter().map(|(rank, slot)| format!("{rank} to {}", self.slots(&[*slot]))).collect();
                format!(" {}: {}", self.label(*job), ranks.join(", "))
            }
            Decision::StragglerNoted { job, rank, slow_milli, .. } => match slow_milli {
                Some(milli) => format!(" {}: rank {rank} takes {milli} thousandths", self.label(*job)),
                None => format!(" {}: rank {rank} keeps up", self.label(*job)),
            },
            Decision::NodeHealthChanged { node, health, events, .. } => {
                let mut text = format!(" {}", self.node_label(*node));
                for event in events {
                    write!(text, " {} {};", seen(&event.observation), event.action).unwrap();
                }
                let conditions: Vec<String> = health
                    .conditions
                    .iter()
                    .map(|c| format!("{}={}", seen(&c.observation), c.action))
                    .collect();
                format!("{text} now [{}]", conditions.join(" "))
            }
            Decision::ForeignLoadSet { node, load, .. } => format!(
                " {} closed={} devices={} cpu={} memory={}",
                self.node_label(*node),
                load.closed,
                load.devices.count(),
                load.cpu_milli,
                load.memory_bytes
            ),
            Decision::NodeDrainSet { node, drain, .. } => match drain {
                None => format!(" {} ended", self.node_label(*node)),
                Some(drain) => {
                    let deadline = drain.deadline.map(|at| at.since_ms(self.now) / 1_000);
                    let deadline = deadline.map_or("none".to_string(), |s| format!("+{s}s"));
                    format!(" {} {} deadline={deadline}", self.node_label(*node), drain.cause.name())
                }
            },
            Decision::NodeQuarantineSet { node, reason, .. } => {
                format!(" {} {}", self.node_label(*node), reason.as_deref().unwrap_or("ended"))
            }
            Decision::NodeRepairSet { node, step, .. } => {
                format!(" {} {}", self.node_label(*node), step.name())
            }
            Decision::HealthPolicySet { .. } => String::new(),
            Decision::TurnsChanged { bursts } => {
                bursts.iter().map(|(burst, _)| format!(" {}", self.label(*burst))).collect()
            }
        }
    }

    fn slots(&self, workers: &[WorkerSlot]) -> String {
        let texts: Vec<String> = workers
            .iter()
            .map(|slot| {
                let devices: Vec<String> = slot.devices.iter().map(|d| d.to_string()).collect();
                format!("{}[{}]", self.node_label(slot.node), devices.join(","))
            })
            .collect();
        texts.join(" ")
    }

    fn cause(&self, cause: &StopCause) -> String {
        match cause {
            StopCause::Cancelled => "cancelled".into(),
            StopCause::WorkerFailed { rank, exit } => format!("rank {rank} failed ({exit})"),
            StopCause::Evicted { node } => format!("evicted from {}", self.node_label(*node)),
            StopCause::Fault { class, node, detail } => {
                format!("{class} on {}: {detail}", self.node_label(*node))
            }
            StopCause::RunTimeLimit => "run-time limit".into(),
            StopCause::Deadline => "deadline".into(),
            StopCause::Requested { suspended: true } => "suspended".into(),
            StopCause::Requested { suspended: false } => "requeued".into(),
            StopCause::Rearranged(RearrangeCause::Preempted { by }) => {
                format!("preempted by {}", self.label(*by))
            }
            StopCause::Rearranged(RearrangeCause::Moved { by }) => format!("moved for {}", self.label(*by)),
            StopCause::Rearranged(RearrangeCause::Resized) => "resized".into(),
            StopCause::Rearranged(RearrangeCause::Drained { node }) => {
                format!("{} is drained", self.node_label(*node))
            }
        }
    }

    fn why(&self, job: &str) -> String {
        let explained =
            explain_job(self.state(), self.now, self.job_id(job), self.speculation.kept_reservations());
        let explained = explained.expect("a job");
        let mut text = format!("{explained}\n");
        if let Some(start) = explained.start {
            let after = |at: LogTime| format!("+{}m", at.since_ms(self.now) / 60_000);
            let q90 = start.q90.map_or("unknown".to_string(), after);
            writeln!(
                text,
                "  starts {} to {q90}, as likely before {} as after",
                after(start.q10),
                after(start.q50)
            )
            .unwrap();
        }
        for blocker in &explained.blockers {
            let slipped = if blocker.has_slipped { ", whose start has slipped" } else { "" };
            writeln!(text, "  room is kept for {}{slipped}", blocker.name).unwrap();
        }
        for quota in &explained.quotas {
            let tenant = quota.blocked_by.tenant.as_ref().map_or("the fleet", |name| name.as_str());
            writeln!(
                text,
                "  quota of {tenant}: {} of {} thousandths of {} left",
                quota.room_milli, quota.wanted_milli, quota.kind
            )
            .unwrap();
        }
        for borrower in explained.borrowers.iter().skip(1) {
            writeln!(text, "  also, {borrower}").unwrap();
        }
        for help in &explained.places.would_help {
            writeln!(text, "  would help: {help}").unwrap();
        }
        text
    }

    fn show_jobs(&self) -> String {
        let mut text = String::new();
        for (id, row) in self.state().jobs().iter() {
            let phase = match &row.phase {
                Phase::Pending => "pending".into(),
                Phase::Starting => "starting".into(),
                Phase::Running => "running".into(),
                Phase::Stopping(cause) => format!("stopping: {}", self.cause(cause)),
                Phase::Finished(outcome) => format!("finished: {}", outcome_text(outcome)),
            };
            let label = self.label(*id);
            write!(text, "{label}: {phase}; attempt {}, failures {}", row.attempt, row.failures).unwrap();
            if let Some(hold) = self.state().hold(*id) {
                let since = self.now.since_ms(hold.since) / 1_000;
                write!(text, ", held by {} for {since} s", hold.by).unwrap();
            }
            if let Some(control) = self.state().control(*id).filter(|control| control.requeues > 0) {
                write!(text, ", requeued {}", control.requeues).unwrap();
            }
            if let Some(placement) = &row.placement {
                let ranks: Vec<&str> = placement.ranks.iter().map(rank_text).collect();
                write!(text, "; ranks {}", ranks.join(" ")).unwrap();
            }
            text.push('\n');
        }
        if text.is_empty() { "no jobs\n".into() } else { text }
    }

    /// What jobs ask of whoever runs them: `on=CLASS:N`, `backoff=D`, `backoff-max=D`, `avoid=D`, `place=NAME`,
    /// `save=D`, `interval=D`, `spares=N`.
    fn contract(&self, words: &[&str]) -> JobContract {
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
        contract
    }

    /// `label=KEY:VALUE`, `annotation=KEY:VALUE`, `by=CREATOR`.
    fn metadata(words: &[&str]) -> Option<Arc<JobMetadata>> {
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

    fn show_recoveries(&self) -> String {
        let mut text = String::new();
        for (id, _) in self.state().jobs().iter() {
            let Some(row) = self.state().recovery(*id) else { continue };
            let counts: Vec<String> = row.counts.iter().map(|(class, n)| format!("{class} {n}")).collect();
            write!(text, "{}: {}; {} in a row", self.label(*id), counts.join(", "), row.streak).unwrap();
            for node in row.avoided_at(self.now) {
                write!(text, "; avoids {}", self.node_label(node)).unwrap();
            }
            if let Some(saved) = row.saved {
                write!(text, "; saved in attempt {}", saved.attempt).unwrap();
            }
            for (rank, slow) in &row.stragglers {
                write!(text, "; rank {rank} slow by {}", slow.slow_milli).unwrap();
            }
            text.push('\n');
        }
        for (node, times) in self.state().node_faults() {
            writeln!(text, "{}: {} faults", self.node_label(node), times.len()).unwrap();
            if let Some(why) = fails_more_often(self.state(), node, self.now, |_| false) {
                writeln!(text, "  more often than others: {why}").unwrap();
            }
        }
        if text.is_empty() { "nothing\n".into() } else { text }
    }

    fn show_spares(&self) -> String {
        let mut text = String::new();
        for (id, _) in self.state().jobs().iter() {
            let spares = self.state().spares(*id);
            if !spares.is_empty() {
                writeln!(text, "{}: {}", self.label(*id), self.slots(spares)).unwrap();
            }
        }
        if text.is_empty() { "no spares\n".into() } else { text }
    }

    fn show_advice(&self, job: &str) -> String {
        let advice =
            checkpoint_advice(self.state(), self.job_id(job), self.now).expect("it says how long it saves");
        format!("{advice:?}\n")
    }

    /// What was expected of a job when it was submitted.
    fn show_estimate(&self, job: &str) -> String {
        let estimate = self.state().job(self.job_id(job)).expect("a job").estimate;
        let seconds = |ms: u64| ms / 1_000;
        format!("{} s, nine in ten {} s\n", seconds(estimate.run_ms), seconds(estimate.run_high_ms))
    }

    fn show_nodes(&self) -> String {
        let mut text = String::new();
        for (_, row) in self.state().nodes().iter() {
            let status = match row.status {
                NodeStatus::Up => "up",
                NodeStatus::Lost => "lost",
            };
            let cordoned = if row.cordoned { ", cordoned" } else { "" };
            let restricted = match (row.restricted.blocked, row.restricted.unusable) {
                (true, _) => ", out of service".to_string(),
                (false, devices) if devices.is_empty() => String::new(),
                (false, devices) => format!(", not to be used {devices:?}"),
            };
            let cordoned = format!("{cordoned}{restricted}");
            writeln!(
                text,
                "{}: {status}{cordoned}; holder {}, incarnation {}, {} of {} devices free",
                row.spec.name,
                row.holder.0,
                row.incarnation,
                row.free.devices.count(),
                row.spec.device_count()
            )
            .unwrap();
        }
        text
    }
}

fn seen(observation: &Observation) -> String {
    match observation.device {
        Some(device) => format!("{}@{device}", observation.finding),
        None => observation.finding.to_string(),
    }
}

fn rank_text(rank: &RankState) -> &'static str {
    match rank {
        RankState::Assigned => "assigned",
        RankState::Running => "running",
        RankState::Exited(_) => "exited",
        RankState::Lost => "lost",
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Succeeded => "succeeded".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Failed { detail } => format!("failed, {detail}"),
    }
}

/// `NOMINAL/BORROWING/LENDING` in devices; `-` or nothing for no limit.
fn quota(kind: &str, text: &str) -> Quota {
    let mut parts = text.split('/').map(|part| part.parse::<u64>().ok().map(|devices| devices * 1_000));
    Quota {
        kind: name(kind),
        region: None,
        nominal_milli: parts.next().flatten().expect("a nominal quota"),
        borrowing_limit_milli: parts.next().flatten(),
        lending_limit_milli: parts.next().flatten(),
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

fn duration_ms(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        other => panic!("unknown unit {other}"),
    };
    number.parse::<u64>().unwrap() * seconds * 1_000
}
