//! A drill that never was: a log made round by round, and clients that saw exactly what it says.

use std::collections::BTreeMap;

use muster_archive::ArchivedRound;
use muster_drill::history::{
    Call, Consistency, History, JobSeen, Observation, Operation, Outcome, Query, WatchChange, WatchEvent,
    digest_of_jobs,
};
use muster_drill::judge::{Evidence, Interval, LogRound, Verdict, judge};
use muster_drill::run::{Host, Run, Runs, StateSeen, StepDone};
use muster_drill::scenario::Scenario;
use muster_journal::{
    Decision, Estimate, NodeLostCause, Outcome as JobOutcome, RankUpdate, RequestKey, Round, StopCause,
    WorkerSlot, encode_round,
};
use muster_state::{Effect, State};
use muster_types::{
    Accelerators, ClusterId, DeviceSet, FencingToken, HolderId, JobDraft, JobId, JobSpec, Leadership,
    LogIndex, LogTime, Name, NodeDraft, NodeId, NodeSpec, Parameters, ReplicaId, RequestId, Requester,
    TaskGroup, WorkerRequest,
};

/// What the wall clock shows at 0 of the drill's.
pub const UNIX_MS: u64 = 1_700_000_000_000;
/// Tenants by turns.
const TENANTS: [&str; 2] = ["lab", "shop"];
pub const LEASE_MS: u64 = 2_000;

/// Numbers that follow from a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// From `low` to below `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn h100(count: u16) -> Accelerators {
    Accelerators { kind: name("h100"), count }
}

pub fn job(text: &str, tenant: &str, wants: Option<Accelerators>) -> JobSpec {
    let request = WorkerRequest {
        accelerators: wants.map(Into::into),
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup::new(name("main"), 1, vec!["true".into()], request);
    JobDraft::new(name(text), name(tenant), vec![group]).check().expect("a job")
}

pub fn node(text: &str, region: &str) -> NodeSpec {
    let draft = NodeDraft {
        name: name(text),
        region: name(region),
        cluster: name("c1"),
        block: name("b"),
        rack: name("k"),
        address: "10.0.0.1".to_owned(),
        accelerators: Some(h100(8)),
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: Default::default(),
        taints: Default::default(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().expect("a host")
}

/// Everything of one drill.
#[derive(Clone)]
pub struct Sample {
    pub scenario: Scenario,
    pub run: Run,
    pub history: History,
    pub rounds: Vec<LogRound>,
    pub intervals: Vec<Interval>,
    pub troubles: Vec<String>,
    /// States at the ends of rounds, with the times at which they were committed.
    pub past: Vec<(u64, State)>,
}

impl Sample {
    pub fn judge(&self) -> Verdict {
        judge(Evidence {
            scenario: &self.scenario,
            run: &self.run,
            history: &self.history,
            log: Some(&self.rounds),
            intervals: Some(&self.intervals),
            troubles: &self.troubles,
        })
    }
}

/// What a state answers.
pub fn seen(state: &State, query: &Query) -> Option<Observation> {
    Some(match query {
        Query::Job { job } => Observation::Job(JobSeen::of(*job, state.job(*job)?)),
        Query::Jobs { count, tenant } => {
            let of = |id: &JobId| {
                let spec = state.spec(*id).expect("a job has a spec");
                tenant.as_ref().is_none_or(|tenant| *spec.tenant == **tenant)
            };
            let newest = state.jobs().iter().rev().filter(|(id, _)| of(id));
            let page: Vec<JobSeen> =
                newest.take(*count as usize).map(|(id, row)| JobSeen::of(*id, row)).collect();
            Observation::Jobs { count: page.len() as u32, digest: digest_of_jobs(&page) }
        }
        Query::Status => Observation::Status {
            digest: state.digest(),
            pending: state.pending_count() as u64,
            active: state.active_count() as u64,
            finished: state.finished_count() as u64,
        },
    })
}

pub struct Maker {
    random: Random,
    now_us: u64,
    state: State,
    term: u64,
    leader: u64,
    raft_index: u64,
    requests: u128,
    operations: u64,
    /// Of every record: position and what it changed.
    changes: Vec<(u64, WatchChange, Option<String>)>,
    /// States of the past that reads are answered from, at least.
    past_kept: usize,
    sample: Sample,
}

pub const EXPECTATIONS: &str = "name: sample
title: A sample
story: Something breaks.
runbook: sample.md
processes:
  - {at: 0s, do: kill, what: leader-region}
  - {at: 4s, do: start, what: leader-region}
expect:
  leadership: moves
  submission_again: {median: 1500ms, worst: 2500ms}
  linearizable_read_again: {worst: 2500ms}
  acknowledged_within: 5s
  reads_on_survivors: never-stop
  gangs_elsewhere_after_lease: 5s
  replicas_equal_within: 5s
";

impl Maker {
    fn new(seed: u64) -> Maker {
        let scenario = Scenario::parse("sample.yaml", EXPECTATIONS.as_bytes()).expect("a scenario");
        let host = |text: &str, region: &str, runs: Runs| Host {
            name: text.into(),
            region: region.into(),
            runs,
            touched: region == "a",
            gone: false,
        };
        let run = Run {
            scenario: "sample".into(),
            number: 1,
            seed,
            place: "a test".into(),
            version: "0.1.0".into(),
            start_us: 0,
            fault_us: 0,
            heal_us: None,
            end_us: 0,
            fault_unix_ms: 0,
            hosts: vec![
                host("a-r1", "a", Runs::Replica(1)),
                host("b-r2", "b", Runs::Replica(2)),
                host("c-r3", "c", Runs::Replica(3)),
                host("a-h1", "a", Runs::Agent("a1".into())),
                host("b-h1", "b", Runs::Agent("b1".into())),
                host("a-clients", "a", Runs::Clients),
                host("b-clients", "b", Runs::Clients),
            ],
            steps: Vec::new(),
            lease_ttl_ms: LEASE_MS,
            lease_margin_ms: 1_000,
            clock_drift_milli: 0,
            only_ours: true,
            recovered_us: None,
            warnings: Vec::new(),
            states: Vec::new(),
            skipped: Vec::new(),
        };
        let sample = Sample {
            scenario,
            run,
            history: History::default(),
            rounds: Vec::new(),
            intervals: Vec::new(),
            troubles: Vec::new(),
            past: Vec::new(),
        };
        Maker {
            random: Random::new(seed),
            now_us: 1_000_000,
            state: State::default(),
            term: 1,
            leader: 1,
            raft_index: 0,
            requests: u128::from(seed) << 64,
            operations: 0,
            changes: Vec::new(),
            past_kept: 10_000,
            sample,
        }
    }

    /// Commits a round now; the position of its first record.
    fn commit(&mut self, decisions: Vec<Decision>) -> u64 {
        self.raft_index += 1 + self.random.below(2);
        let first_index = self.state.log_index().next();
        let round = Round {
            format: muster_journal::FORMAT_MIN,
            term: self.term,
            replica: ReplicaId(self.leader),
            first_index,
            basis_index: LogIndex(first_index.0 - 1),
            log_time: LogTime(UNIX_MS + self.now_us / 1_000),
            decisions,
        };
        let leadership = Leadership { term: self.term, replica: ReplicaId(self.leader) };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(first_index.0 + ordinal as u64);
            let applied = self.state.apply(leadership, index, round.log_time, decision);
            assert_eq!(applied.rejection, None, "{decision:?}");
            for effect in &applied.effects {
                if let Effect::JobChanged(id) = effect {
                    let row = self.state.job(*id).expect("a changed job is there");
                    let tenant = self.state.spec(*id).map(|spec| spec.tenant.to_string());
                    self.changes.push((index.0, WatchChange::Changed(JobSeen::of(*id, row)), tenant));
                }
            }
        }
        let payload = encode_round(&round).into();
        let (raft_index, term, leader) = (self.raft_index, self.term, ReplicaId(self.leader));
        let round = ArchivedRound { raft_index, term, leader, payload };
        self.sample.rounds.push(LogRound::whole(round));
        self.remember();
        first_index.0
    }

    /// A round of a leadership that has ended: it takes no position.
    fn stale(&mut self) {
        self.raft_index += 1;
        let index = self.state.log_index().next();
        let (term, replica) = (self.term - 1, ReplicaId(9));
        let round = Round {
            format: muster_journal::FORMAT_MIN,
            term,
            replica,
            first_index: index,
            basis_index: index,
            log_time: self.state.log_time(),
            decisions: vec![Decision::DigestRecorded { digest: 0 }],
        };
        let leadership = Leadership { term, replica };
        let applied = self.state.apply(leadership, index, round.log_time, &round.decisions[0]);
        assert_eq!(applied.log_index, None);
        let payload = encode_round(&round).into();
        let round = ArchivedRound { raft_index: self.raft_index, term, leader: replica, payload };
        self.sample.rounds.push(LogRound::whole(round));
        self.remember();
    }

    fn remember(&mut self) {
        let past = &mut self.sample.past;
        past.push((self.now_us, self.state.clone()));
        if past.len() > 2 * self.past_kept {
            past.drain(..self.past_kept);
        }
    }

    fn key(&mut self) -> RequestKey {
        self.requests += 1;
        RequestKey { id: RequestId(self.requests), fingerprint: 1 }
    }

    /// Writes an operation down whose point in time is now.
    fn operation(&mut self, replica: Option<u64>, call: Call, outcome: Outcome) {
        let invoked_us = self.now_us - self.random.between(1, 20_000);
        let completed_us = self.now_us + self.random.between(1, 20_000);
        self.operations += 1;
        let region = if self.random.below(2) == 0 && self.now_us < 3_000_000 { "a" } else { "b" };
        self.sample.history.operations.push(Operation {
            id: self.operations,
            client: 1 + (self.operations % 3) as u32,
            region: region.into(),
            replica,
            call,
            invoked_us,
            completed_us,
            outcome,
        });
    }

    fn submit(&mut self) {
        let request = self.key();
        let count = 1 + self.random.below(3) as u32;
        let tenant = TENANTS[self.random.below(2) as usize];
        let specs = (0..count).map(|_| std::sync::Arc::new(job("small", tenant, None))).collect();
        let estimates = vec![Estimate::default(); count as usize];
        let call = Call::Submit { request: request.id, jobs: count };
        // Behind the fault every submission is answered in the end, as the scenario expects.
        let fate = self.random.below(20).max(if self.sample.run.fault_us > 0 { 4 } else { 0 });
        if fate == 0 {
            // Nobody knows, and it was not done.
            return self.operation(None, call, Outcome::TimedOut);
        }
        if fate == 1 {
            return self.operation(None, call, Outcome::Refused { code: "OVERLOADED".into() });
        }
        let index = self.commit(vec![Decision::JobsSubmitted {
            request,
            by: muster_types::Requester::default(),
            specs,
            estimates,
        }]);
        let jobs = (0..count).map(|ordinal| JobId::derive(LogIndex(index), ordinal as usize)).collect();
        let acknowledged = Outcome::Acknowledged { log_index: index, jobs };
        if fate <= 3 {
            // Nobody knows, and it was done; one of two asks again.
            self.operation(None, call.clone(), Outcome::Unknown { error: "connection reset".into() });
            if fate == 2 {
                return;
            }
            self.now_us += self.random.between(50_000, 100_000);
        }
        self.operation(None, call, acknowledged);
    }

    fn cancel(&mut self) {
        let waits = self.state.jobs().iter().rev().find(|(_, row)| row.is_in_line()).map(|(id, _)| *id);
        let Some(job) = waits else { return };
        let request = self.key();
        let index = self.commit(vec![
            Decision::JobCancelRequested { request, by: Requester::default(), jobs: vec![job] },
            Decision::JobFinished { job, outcome: JobOutcome::Cancelled },
        ]);
        let outcome = Outcome::Acknowledged { log_index: index, jobs: Vec::new() };
        self.operation(None, Call::Cancel { request: request.id, job }, outcome);
    }

    fn read(&mut self) {
        let newest = self.state.jobs().last_key().copied();
        let query = match (self.random.below(4), newest) {
            (0, _) => Query::Status,
            (1, Some(newest)) => Query::Job { job: newest },
            (2, _) => Query::Jobs { count: 10, tenant: Some(TENANTS[0].into()) },
            _ => Query::Jobs { count: 20, tenant: None },
        };
        let (consistency, lag_ms) = match self.random.below(4) {
            0 => {
                let max_staleness_ms = self.random.between(100, 500);
                (Consistency::Bounded { max_staleness_ms }, self.random.below(max_staleness_ms))
            }
            1 => (Consistency::Any, self.random.below(800)),
            _ => (Consistency::Linearizable, 0),
        };
        let (replica, session) = (1 + self.random.below(3), self.random.below(3) == 0);
        self.read_at(replica, query, consistency, lag_ms, session);
    }

    fn read_at(&mut self, replica: u64, query: Query, consistency: Consistency, lag_ms: u64, session: bool) {
        let as_of = self.now_us.saturating_sub(lag_ms * 1_000);
        let at = self.sample.past.partition_point(|(committed, _)| *committed <= as_of);
        let Some((_, state)) = at.checked_sub(1).map(|at| &self.sample.past[at]) else { return };
        let log_index = state.log_index().0;
        let min_log_index = if session { log_index.saturating_sub(self.random.below(5)) } else { 0 };
        let told = self.random.below(2) == 0;
        let outcome = match seen(state, &query) {
            Some(seen) => Outcome::Answered { log_index, staleness_ms: told.then_some(lag_ms), seen },
            None => Outcome::Refused { code: "JOB_NOT_FOUND".into() },
        };
        let query = Call::Read { query, consistency, min_log_index };
        self.operation(Some(replica), query, outcome);
    }

    fn found(&mut self) {
        let parameters = Parameters::DEFAULT;
        let cluster = ClusterId(0xd1);
        self.commit(vec![
            Decision::LeaderStarted,
            Decision::ClusterCreated { cluster, generation: 1, parameters },
            Decision::NodeRegistered { spec: node("a1", "a"), holder: HolderId(1) },
            Decision::NodeRegistered { spec: node("b1", "b"), holder: HolderId(2) },
        ]);
    }

    /// Submits the gang; its id.
    fn gang(&mut self) -> JobId {
        let request = self.key();
        let specs = vec![std::sync::Arc::new(job("train", "lab", Some(h100(4))))];
        let index = self.commit(vec![Decision::JobsSubmitted {
            request,
            by: muster_types::Requester::default(),
            specs,
            estimates: vec![Estimate::default()],
        }]);
        let job = JobId::derive(LogIndex(index), 0);
        let outcome = Outcome::Acknowledged { log_index: index, jobs: vec![job] };
        self.operation(None, Call::Submit { request: request.id, jobs: 1 }, outcome);
        job
    }

    /// Places the gang, lets it run, and writes its worker's interval; its token.
    fn place(&mut self, job: JobId, on: NodeId, for_us: u64) -> FencingToken {
        let incarnation = self.state.node(on).expect("a node").incarnation;
        let worker = WorkerSlot { node: on, incarnation, devices: DeviceSet::first(4) };
        let index = self.commit(vec![Decision::GangPlaced { job, workers: vec![worker] }]);
        let token = FencingToken { generation: 1, log_index: LogIndex(index) };
        self.now_us += 50_000;
        let updates = vec![(0, RankUpdate::Running)];
        self.commit(vec![Decision::WorkersReported { node: on, incarnation, job, token, updates }]);
        self.sample.intervals.push(Interval {
            job: job.to_string(),
            attempt: token.to_string(),
            rank: 0,
            pid: 7,
            start_ns: self.now_us * 1_000,
            end_ns: (self.now_us + for_us) * 1_000,
            stopped: false,
        });
        token
    }

    fn some(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now_us += self.random.between(1_000, 20_000);
            match self.random.below(20) {
                0..=7 => self.submit(),
                8 => self.cancel(),
                9 => {
                    let digest = self.state.rows_digest();
                    self.commit(vec![Decision::DigestRecorded { digest }]);
                }
                _ => self.read(),
            }
        }
    }

    /// Submissions and reads go on until then.
    fn until(&mut self, at_us: u64) {
        while self.now_us + 200_000 < at_us {
            self.now_us += 200_000;
            self.submit();
            let query = Query::Jobs { count: 5, tenant: None };
            self.read_at(2, query, Consistency::Linearizable, 0, false);
        }
        self.now_us = self.now_us.max(at_us);
    }

    /// Reads of any age on survivors, as the load of a drill makes them all the time.
    fn survive(&mut self, from_us: u64, to_us: u64) {
        let now_us = self.now_us;
        for at in (from_us..to_us).step_by(200_000) {
            self.now_us = at;
            for replica in [2, 3] {
                let query = Query::Jobs { count: 5, tenant: None };
                self.read_at(replica, query, Consistency::Any, 0, false);
            }
        }
        self.now_us = now_us;
    }

    /// What two watches saw: one from the beginning, one of a tenant that was cut and began again.
    fn watch(&mut self) {
        let end = self.state.log_index().0;
        let mut of_record: BTreeMap<u64, u32> = BTreeMap::new();
        for (index, ..) in &self.changes {
            *of_record.entry(*index).or_default() += 1;
        }
        let begins = [(1, None, 3), (2, Some("lab"), 6), (2, Some("lab"), end / 2)];
        let ends = [end, end / 3, end];
        for (part, ((watch, tenant, begin), until)) in begins.into_iter().zip(ends).enumerate() {
            let event = |log_index, change| WatchEvent {
                watch,
                region: String::new(),
                tenant: tenant.map(str::to_owned),
                at_us: 0,
                log_index,
                change,
            };
            let mut events = Vec::new();
            if part == 2 {
                events.push(event(0, WatchChange::Restarted));
            }
            let mut present: BTreeMap<JobId, JobSeen> = BTreeMap::new();
            for (index, change, of) in &self.changes {
                if tenant.is_some() && of.as_deref() != tenant {
                    continue;
                }
                let WatchChange::Changed(seen) = change else { continue };
                if *index <= begin {
                    present.insert(seen.job, seen.clone());
                }
            }
            events.extend(present.into_values().map(|seen| event(begin, WatchChange::Changed(seen))));
            events.push(event(begin, WatchChange::SyncEnd));
            for (index, change, of) in &self.changes {
                if *index > begin && *index <= until && (tenant.is_none() || of.as_deref() == tenant) {
                    events.push(event(*index, change.clone()));
                    if index % 5 == 0 && self.changes.iter().filter(|(other, ..)| other == index).count() == 1
                    {
                        events.push(event(*index, WatchChange::Bookmark));
                    }
                }
            }
            self.sample.history.watch_events.extend(events);
        }
    }

    fn finish(mut self) -> Sample {
        let run = &mut self.sample.run;
        run.end_us = self.now_us + 100_000;
        for replica in 1..=3 {
            run.states.push(StateSeen {
                at_us: self.now_us + 50_000,
                replica,
                log_index: self.state.log_index().0,
                digest: self.state.digest(),
            });
        }
        self.sample
    }
}

/// A drill of `steps` steps before and after the loss of region `a`, in which everything is as it should be.
pub fn sample(seed: u64, steps: usize) -> Sample {
    sample_with(seed, steps, 10_000)
}

/// The same with fewer states of the past kept, so that it may be long.
pub fn sample_with(seed: u64, steps: usize, past_kept: usize) -> Sample {
    let mut maker = Maker::new(seed);
    maker.past_kept = past_kept;
    maker.found();
    let gang = maker.gang();
    let token = maker.place(gang, NodeId(0), 2_500_000);
    maker.now_us += 100_000;
    maker.commit(vec![Decision::CheckpointCommitted { job: gang, token, step: None }]);
    maker.some(steps);
    maker.now_us = maker.now_us.max(2_900_000);
    maker.submit();
    maker.now_us += 100_000;
    let fault_us = maker.now_us;
    maker.sample.run.fault_us = fault_us;
    maker.sample.run.fault_unix_ms = UNIX_MS + fault_us / 1_000;
    maker.sample.intervals[0].end_ns = fault_us * 1_000;
    // 800 ms without a leader.
    maker.now_us += 800_000;
    (maker.term, maker.leader) = (2, 2);
    maker.commit(vec![Decision::LeaderStarted]);
    maker.stale();
    maker.some(steps);
    maker.until(fault_us + 3_000_000);
    let cause = NodeLostCause::LeaseExpired;
    maker.commit(vec![Decision::NodeLost { node: NodeId(0), incarnation: 1, cause }]);
    let evicted = StopCause::Evicted { node: NodeId(0) };
    maker.commit(vec![
        Decision::GangStopRequested { job: gang, token, cause: evicted },
        Decision::JobRequeued { job: gang, failed: false },
    ]);
    maker.now_us += 100_000;
    maker.place(gang, NodeId(1), 1_000_000);
    maker.until(fault_us + 4_000_000);
    let heal_us = maker.now_us;
    maker.some(20);
    maker.submit();
    let end_us = maker.now_us;
    maker.survive(fault_us, end_us);
    maker.watch();
    let run = &mut maker.sample.run;
    run.heal_us = Some(heal_us);
    run.steps = vec![
        StepDone {
            at_us: fault_us,
            until_us: Some(heal_us),
            verb: "kill".into(),
            text: "a-r1, a-h1 are killed".into(),
        },
        StepDone { at_us: heal_us, until_us: None, verb: "start".into(), text: "a-r1, a-h1 start".into() },
    ];
    maker.finish()
}
