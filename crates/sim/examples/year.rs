//! A year of a busy cluster, through the shipping decider and state: what grows, and what does not.
//!
//! `cargo run --release -p muster-sim --example year -- [DAYS] [JOBS_A_DAY]`, 365 and 1,000 by default.
//!
//! A cluster with a million jobs a day is scaled down in one thing: jobs a day and nodes are fewer, by the same factor.
//! Everything else is as in production: the retention of jobs, requests and nodes, log time with 1,440 steps a day, run times,
//! gangs, failures with retries, cancellations, nodes that are lost and come back, nodes that are replaced for good, names
//! that are never used again, and a new tenant every day. So rows that a day's jobs leave are fewer by the factor, and rows that are never
//! removed would show as growth whatever the factor is.
//!
//! Prints a table and fails when the rows of day 300 are more than a tenth more than those of day 60, or when what is learned
//! of run times has more rows than its bound. That bound is not scaled: a cluster with a million jobs a day reaches it within
//! days, one that is scaled down within years, so its rows grow in the table and are no part of the comparison. It fails as well
//! when the state of the last day does not come back from its snapshot as it was.

use muster_decider::{Answer, BootstrapConfig, Command, Pass, Speculation, handle, schedule, tick};
use muster_journal::{Decision, RankUpdate, encode_round};
use muster_planner::Budget;
use muster_state::{HISTORY_ROWS_MAX, State};
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, ClusterId, DeviceAmount, ExitStatus, FencingToken,
    HolderId, JobDraft, JobId, Leadership, LogTime, Name, NodeDraft, NodeId, NodeSpec, Parameters, ReplicaId,
    RequestId, TaskGroup, WorkerRequest,
};
use std::collections::{BTreeMap, BTreeSet};

/// Log time of the begin: September 2020.
const EPOCH_MS: u64 = 1_600_000_000_000;
const MINUTE_MS: u64 = 60_000;
const MINUTES_A_DAY: u64 = 1_440;
/// Planning work in one round, as much as a leader does in one.
const VISITS_PER_ROUND: u64 = 200_000;
/// Jobs a day of the cluster that is scaled down.
const FULL_JOBS_A_DAY: u64 = 1_000_000;
/// Jobs a day for each node: a mean job holds six devices for about 50 minutes, so two thirds of a node are busy.
const JOBS_A_NODE: u64 = 25;
const DEVICES: u16 = 8;
/// The warm-up is over, and much later.
const WARM_DAY: u64 = 60;
const LATE_DAY: u64 = 300;

/// Draws numbers; the same ones every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// What is still to come.
enum Due {
    Running(JobId, FencingToken),
    Over(JobId, FencingToken, i32),
    Stopped(JobId),
    Cancel(JobId),
    Back(usize),
}

struct Host {
    spec: NodeSpec,
    node: NodeId,
    incarnation: u32,
    registrations: u64,
}

struct Year {
    speculation: Speculation,
    hosts: Vec<Host>,
    due: BTreeMap<u64, Vec<Due>>,
    random: Random,
    minute: u64,
    requests: u128,
    holders: u128,
    jobs: u64,
    finished: u64,
    refused: u64,
    nodes: u64,
    rounds: u64,
    decisions: u64,
    log_bytes: u64,
}

/// One line of the table.
#[derive(Clone, Copy)]
struct Line {
    day: u64,
    rows: u64,
    history: u64,
    snapshot_bytes: u64,
}

fn name(text: &str) -> Name {
    Name::new(text).expect("it is a name")
}

impl Year {
    fn new(nodes: u64) -> Year {
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut year = Year {
            speculation: Speculation::begin(State::default(), leadership, LogTime(EPOCH_MS), founding),
            hosts: Vec::new(),
            due: BTreeMap::new(),
            random: Random(0x9E37_79B9_7F4A_7C15),
            minute: 0,
            requests: 0,
            holders: 0,
            jobs: 0,
            finished: 0,
            refused: 0,
            nodes: 0,
            rounds: 0,
            decisions: 0,
            log_bytes: 0,
        };
        year.commit();
        for place in 0..nodes as usize {
            let spec = year.new_node();
            year.hosts.push(Host { spec, node: NodeId::default(), incarnation: 0, registrations: 0 });
            year.register(place);
        }
        year
    }

    fn new_node(&mut self) -> NodeSpec {
        self.nodes += 1;
        let number = self.nodes;
        let draft = NodeDraft {
            name: name(&format!("node-{number}")),
            region: name("eu"),
            cluster: name("main"),
            block: name(&format!("block-{}", number % 2)),
            rack: name(&format!("rack-{}", number % 4)),
            address: format!("10.0.{}.{}", number / 250 % 250, number % 250 + 1),
            accelerators: Some(Accelerators { kind: name("h100"), count: DEVICES }),
            cpu_milli: 128_000,
            memory_bytes: 1 << 40,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        };
        draft.check().expect("it is a node")
    }

    fn register(&mut self, place: usize) {
        self.holders += 1;
        let holder = HolderId(self.holders);
        let spec = self.hosts[place].spec.clone();
        match self.tell(&Command::Register { spec, holder, other_session_is_over: true }) {
            Some(Answer::Registered { node, incarnation, .. }) => {
                let host = &mut self.hosts[place];
                (host.node, host.incarnation) = (node, incarnation);
            }
            other => panic!("a node is refused: {other:?}"),
        }
    }

    fn tell(&mut self, command: &Command) -> Option<Answer> {
        let answer = handle(&mut self.speculation, command);
        self.commit();
        answer.ok()
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        // As clients draw them: far apart.
        RequestId(self.requests.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
    }

    fn at(&mut self, minutes: u64, due: Due) {
        self.due.entry(self.minute + minutes.max(1)).or_default().push(due);
    }

    /// The round made so far is in the log; what follows of it happens later.
    fn commit(&mut self) {
        let Some(round) = self.speculation.take_round() else { return };
        self.rounds += 1;
        self.decisions += round.decisions.len() as u64;
        self.log_bytes += encode_round(&round).len() as u64;
        for decision in &round.decisions {
            match decision {
                Decision::GangPlaced { job, .. } => self.placed(*job),
                Decision::GangStopRequested { job, .. } => self.at(1, Due::Stopped(*job)),
                Decision::Rearranged { stops, .. } => {
                    for stop in stops {
                        self.at(1, Due::Stopped(stop.job));
                    }
                }
                Decision::JobFinished { .. } => self.finished += 1,
                _ => {}
            }
        }
    }

    fn placed(&mut self, job: JobId) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.as_ref());
        let Some(token) = placement.map(|placement| placement.token) else { return };
        let code = if self.random.below(20) == 0 { 1 } else { 0 };
        let minutes = 5 + self.random.below(60) + if self.random.below(10) == 0 { 150 } else { 0 };
        self.at(1, Due::Running(job, token));
        self.at(1 + minutes, Due::Over(job, token, code));
    }

    fn report(&mut self, job: JobId, token: Option<FencingToken>, update: &RankUpdate) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.clone());
        let Some(placement) = placement.filter(|found| token.is_none_or(|token| found.token == token)) else {
            return;
        };
        let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            if !state.is_over() {
                by_node.entry((slot.node, slot.incarnation)).or_default().push((rank as u32, update.clone()));
            }
        }
        for ((node, incarnation), updates) in by_node {
            self.tell(&Command::Report { node, incarnation, job, token: placement.token, updates });
        }
    }

    fn submit(&mut self, day: u64) {
        self.jobs += 1;
        let names = if self.random.below(5) == 0 {
            format!("once-{}", self.jobs)
        } else {
            format!("model-{}", self.random.below(200))
        };
        // Most work is that of 20 tenants; one tenant a day comes for the first time and is gone the next.
        let tenant = match self.random.below(50) {
            0 => format!("guest-{day}"),
            other => format!("team-{}", other % 20),
        };
        let amount = DeviceAmount::Whole([1, 2, 4, 8][self.random.below(4) as usize]);
        let request = WorkerRequest {
            accelerators: Some(AcceleratorRequest {
                choices: vec![AcceleratorChoice { kind: name("h100"), throughput_milli: THROUGHPUT_MILLI }],
                amount,
            }),
            cpu_milli: 4_000,
            memory_bytes: 8 << 30,
            exclusive: false,
            scratch_bytes: 0,
        };
        let workers = 1 + (self.random.below(4) == 0) as u32 * 2;
        let group =
            TaskGroup::new(name("main"), workers, vec!["python".to_owned(), "train.py".to_owned()], request);
        let draft = JobDraft::new(name(&names), name(&tenant), vec![group]);
        let spec = draft.check().expect("it is a job");
        let request = self.request();
        match self.tell(&Command::submit(request, [spec.into()].into())) {
            Some(Answer::Submitted { jobs, .. }) => {
                if self.random.below(50) == 0 {
                    let minutes = self.random.below(40);
                    self.at(minutes, Due::Cancel(jobs[0]));
                }
            }
            _ => self.refused += 1,
        }
    }

    fn happens(&mut self, due: Due) {
        match due {
            Due::Running(job, token) => self.report(job, Some(token), &RankUpdate::Running),
            Due::Over(job, token, code) => {
                self.report(job, Some(token), &RankUpdate::Exited(ExitStatus::Code(code)));
            }
            Due::Stopped(job) => self.report(job, None, &RankUpdate::Exited(ExitStatus::Signal(15))),
            Due::Cancel(job) => {
                let request = self.request();
                self.tell(&Command::cancel(request, job));
            }
            Due::Back(place) => self.register(place),
        }
    }

    /// A node loses its session for a while; every fifth time another machine comes in its place.
    fn lose_a_node(&mut self) {
        let place = self.random.below(self.hosts.len() as u64) as usize;
        let Host { node, incarnation, .. } = self.hosts[place];
        self.tell(&Command::SessionOver { node, incarnation });
        self.hosts[place].registrations += 1;
        if self.random.below(5) == 0 {
            self.hosts[place].spec = self.new_node();
        }
        self.at(30, Due::Back(place));
    }

    /// What an operator does with nodes that were taken out of use because jobs failed on them.
    fn trust_nodes(&mut self) {
        let restrictions = self.speculation.state().restrictions();
        let out: Vec<NodeId> =
            restrictions.filter(|(_, row)| row.quarantine.is_some()).map(|(node, _)| node).collect();
        for node in out {
            let request = self.request();
            self.tell(&Command::SetQuarantine {
                request,
                by: muster_types::Requester::default(),
                node,
                reason: None,
            });
        }
    }

    fn minute(&mut self, jobs_a_day: u64) {
        self.speculation.set_now(LogTime(EPOCH_MS + self.minute * MINUTE_MS));
        let (day, within) = (self.minute / MINUTES_A_DAY, self.minute % MINUTES_A_DAY);
        for due in self.due.remove(&self.minute).unwrap_or_default() {
            self.happens(due);
        }
        let so_far = |minute| jobs_a_day * minute / MINUTES_A_DAY;
        for _ in so_far(within)..so_far(within + 1) {
            self.submit(day);
        }
        if within == 700 {
            self.lose_a_node();
        }
        if within % 120 == 0 {
            self.trust_nodes();
        }
        tick(&mut self.speculation);
        self.commit();
        while self.speculation.wants_schedule() {
            let mut budget = Budget::new(VISITS_PER_ROUND);
            let pass = schedule(&mut self.speculation, &mut budget);
            self.commit();
            if matches!(pass, Pass::Complete { .. }) {
                break;
            }
        }
        self.minute += 1;
    }

    fn line(&self, day: u64, log_of_day: u64) -> Line {
        let state = self.speculation.state();
        let (jobs, requests, nodes) =
            (state.jobs().iter().count(), state.requests_count(), state.nodes().iter().count());
        let history = state.history().iter().count();
        let snapshot_bytes: u64 = state.snapshot().map(|chunk| chunk.len() as u64).sum();
        let rows = (jobs + requests + nodes) as u64;
        println!(
            "{day:>4} {jobs:>8} {requests:>8} {nodes:>6} {history:>8} {rows:>8} {:>11} {:>9} {:>11} {:>9} {:>10} {:>6}",
            snapshot_bytes >> 10,
            resident_mib(),
            self.log_bytes >> 10,
            log_of_day >> 10,
            self.jobs,
            state.pending_count(),
        );
        Line { day, rows, history: history as u64, snapshot_bytes }
    }

    /// What a job takes of the disk, and how long a replica that starts again needs for its snapshot. A job and a row of the
    /// cluster that is scaled down are as large as those of the whole one.
    fn sizes(&self) {
        let state = self.speculation.state();
        let chunks: Vec<Vec<u8>> = state.snapshot().collect();
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let begun = std::time::Instant::now();
        let restored = State::restore(&chunks).expect("what was written is read");
        let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        assert_eq!(
            restored.digest(),
            state.digest(),
            "a replica that starts again has the state that there was"
        );
        let rows = state.jobs().iter().count() + state.requests_count() + state.nodes().iter().count();
        let rows = (rows + state.history().iter().count()) as u64;
        let log_bytes = self.log_bytes / self.jobs.max(1);
        println!(
            "disk: {log_bytes} bytes of log a job before compression, {} MB a day for a million jobs",
            log_bytes * FULL_JOBS_A_DAY / 1_000_000
        );
        println!(
            "restart: {rows} rows in {} KiB of snapshot are a state again after {us} us, {} bytes a row",
            bytes >> 10,
            bytes / rows.max(1)
        );
    }
}

/// Memory of this process, in MiB; 0 where the system does not say.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// Whether a value of a late day is within a tenth of that of a day behind the warm-up.
fn is_bounded(what: &str, warm: u64, late: u64) -> bool {
    let holds = late * 10 <= warm * 11;
    println!(
        "{what}: {warm} on day {WARM_DAY}, {late} on day {LATE_DAY}: {}",
        if holds { "bounded" } else { "GROWS" }
    );
    holds
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|text| text.parse::<u64>().ok());
    let days = arguments.next().unwrap_or(365);
    let jobs_a_day = arguments.next().unwrap_or(1_000).max(1);
    let nodes = (jobs_a_day / JOBS_A_NODE).max(2);
    println!(
        "{days} days of {jobs_a_day} jobs on {nodes} nodes of {DEVICES}: {FULL_JOBS_A_DAY} jobs a day scaled by 1/{}; \
         retention as in production",
        FULL_JOBS_A_DAY / jobs_a_day
    );
    println!(
        "{:>4} {:>8} {:>8} {:>6} {:>8} {:>8} {:>11} {:>9} {:>11} {:>9} {:>10} {:>6}",
        "day",
        "jobs",
        "requests",
        "nodes",
        "history",
        "rows",
        "snap KiB",
        "RSS MiB",
        "log KiB",
        "KiB/day",
        "ids",
        "queue"
    );
    let begun = std::time::Instant::now();
    let mut year = Year::new(nodes);
    let mut lines = Vec::new();
    let mut log_before = 0;
    for day in 1..=days {
        for _ in 0..MINUTES_A_DAY {
            year.minute(jobs_a_day);
        }
        if day % 30 == 0 || day == 1 || day == 7 || day == days {
            lines.push(year.line(day, year.log_bytes - log_before));
        }
        log_before = year.log_bytes;
    }
    println!(
        "{} jobs finished, {} refused, {} rounds, {} records, {} nodes ever; {} s",
        year.finished,
        year.refused,
        year.rounds,
        year.decisions,
        year.nodes,
        begun.elapsed().as_secs()
    );
    year.sizes();
    let on = |day: u64| lines.iter().find(|line| line.day == day).copied();
    if let (Some(warm), Some(late)) = (on(WARM_DAY), on(LATE_DAY)) {
        let learned_bytes = late.snapshot_bytes.saturating_sub(warm.snapshot_bytes)
            / late.history.saturating_sub(warm.history).max(1);
        println!(
            "learned run times: {} rows on day {WARM_DAY}, {} on day {LATE_DAY}, at most {HISTORY_ROWS_MAX}, about {} KiB then",
            warm.history,
            late.history,
            (HISTORY_ROWS_MAX as u64 * learned_bytes) >> 10
        );
        let is_learned_bounded = late.history <= HISTORY_ROWS_MAX as u64;
        if !(is_bounded("rows", warm.rows, late.rows) && is_learned_bounded) {
            std::process::exit(1);
        }
    }
}
