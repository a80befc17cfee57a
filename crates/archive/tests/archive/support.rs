//! A small cluster's log, made by hand, and archives of it.

use bytes::Bytes;
use muster_archive::{Archive, ArchivedRound, DirectoryStore, ObjectStore, RaftPosition, Start};
use muster_journal::{Decision, Estimate, RequestKey, Round, encode_round};
use muster_state::State;
use muster_types::{
    ClusterId, JobDraft, JobId, JobSpec, LogIndex, LogTime, Name, Parameters, PriorityTier, ReplicaId,
    RequestId, Requester, TaskGroup, TopologyRule, WorkerRequest,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

pub const CLUSTER: ClusterId = ClusterId(0xa1);
pub const FIRST: ReplicaId = ReplicaId(1);
pub const SECOND: ReplicaId = ReplicaId(2);

pub fn job(text: &str) -> JobSpec {
    let group = TaskGroup {
        name: Name::literal("main"),
        workers: 1,
        workers_min: 1,
        command: vec!["true".to_owned()],
        environment: BTreeMap::new(),
        request: WorkerRequest {
            accelerators: None,
            cpu_milli: 100,
            memory_bytes: 1 << 20,
            exclusive: false,
            scratch_bytes: 0,
        },
        slice: None,
        container: None,
    };
    let draft = JobDraft {
        name: Name::new(text).unwrap(),
        tenant: Name::literal("lab"),
        tier: PriorityTier::default(),
        groups: vec![group],
        regions: Vec::new(),
        run_time_limit_ms: None,
        stop_grace_ms: 1_000,
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
        licences: muster_types::Licences::new(),
        nice: 0,
        front: None,
        size: None,
        readiness_ms: None,
    };
    draft.check().unwrap()
}

/// A log that grows round by round, with the digest of the state behind every record.
pub struct Log {
    pub rounds: Vec<ArchivedRound>,
    /// By record, from the first.
    pub digests: Vec<u64>,
    pub times: Vec<LogTime>,
    pub state: State,
    raft_index: u64,
    term: u64,
    leader: ReplicaId,
    time: u64,
    requests: u128,
}

impl Log {
    /// Founded, with nothing in it.
    pub fn founded() -> Log {
        let mut log = Log {
            rounds: Vec::new(),
            digests: Vec::new(),
            times: Vec::new(),
            state: State::default(),
            raft_index: 0,
            term: 1,
            leader: FIRST,
            time: 1_000,
            requests: 0,
        };
        let created =
            Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
        log.append(vec![Decision::LeaderStarted, created]);
        log
    }

    /// A round of the present leader.
    pub fn append(&mut self, decisions: Vec<Decision>) {
        let (term, leader, first) = (self.term, self.leader, self.state.log_index().next());
        self.append_of(term, leader, first, decisions);
    }

    /// A round of anybody, as it would come out of the Raft log.
    pub fn append_of(&mut self, term: u64, replica: ReplicaId, first: LogIndex, decisions: Vec<Decision>) {
        // Entries of the protocol's own lie between those of the application.
        self.raft_index += 1 + self.requests as u64 % 2;
        self.time += 7;
        let round = Round {
            format: muster_journal::FORMAT_MIN,
            term,
            replica,
            first_index: first,
            basis_index: LogIndex(first.0 - 1),
            log_time: LogTime(self.time),
            decisions,
        };
        let leadership = muster_types::Leadership { term, replica };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(first.0 + ordinal as u64);
            if self.state.apply(leadership, index, round.log_time, decision).log_index.is_some() {
                self.digests.push(self.state.digest());
                self.times.push(round.log_time);
            }
        }
        let payload = Bytes::from(encode_round(&round));
        self.rounds.push(ArchivedRound { raft_index: self.raft_index, term, leader: replica, payload });
    }

    fn key(&mut self) -> RequestKey {
        self.requests += 1;
        RequestKey { id: RequestId(self.requests), fingerprint: 1 }
    }

    pub fn submit(&mut self, count: usize) {
        let request = self.key();
        let specs = (0..count).map(|n| std::sync::Arc::new(job(&format!("j{n}")))).collect();
        let estimates = vec![Estimate::default(); count];
        self.append(vec![Decision::JobsSubmitted {
            request,
            by: muster_types::Requester::default(),
            specs,
            estimates,
        }]);
    }

    /// Cancels the first job that waits, if there is one.
    pub fn cancel(&mut self) {
        let first = self.state.jobs().iter().map(|(id, _)| *id).find(|id| self.waits(*id));
        let Some(job) = first else { return };
        let request = self.key();
        let outcome = muster_journal::Outcome::Cancelled;
        self.append(vec![
            Decision::JobCancelRequested { request, by: Requester::default(), jobs: vec![job] },
            Decision::JobFinished { job, outcome },
        ]);
    }

    fn waits(&self, id: JobId) -> bool {
        self.state.job(id).is_some_and(|row| row.phase == muster_state::Phase::Pending)
    }

    pub fn digest(&mut self) {
        let digest = self.state.rows_digest();
        self.append(vec![Decision::DigestRecorded { digest }]);
    }

    /// Another leader begins; a round of the one before comes too late.
    pub fn change_leader(&mut self) {
        let (term, leader) = (self.term, self.leader);
        self.term += 1;
        self.leader = if leader == FIRST { SECOND } else { FIRST };
        self.append(vec![Decision::LeaderStarted]);
        let late = self.state.log_index();
        self.append_of(term, leader, late.next(), vec![Decision::DigestRecorded { digest: 7 }]);
    }

    /// One of the above.
    pub fn step(&mut self, what: u8) {
        match what % 5 {
            0 | 1 => self.submit(1 + usize::from(what) % 3),
            2 => self.cancel(),
            3 => self.digest(),
            _ => self.change_leader(),
        }
    }

    /// A log of some length with everything in it.
    pub fn of_steps(steps: usize) -> Log {
        let mut log = Log::founded();
        for step in 0..steps {
            log.step((step * 7 % 11) as u8);
        }
        log.digest();
        log
    }
}

pub fn store(dir: &Path) -> Arc<dyn ObjectStore> {
    Arc::new(DirectoryStore::open(dir).unwrap())
}

pub fn open(dir: &Path) -> Arc<Archive> {
    Arc::new(Archive::open(store(dir), Some(CLUSTER)).unwrap())
}

/// The place right before the first of `rounds`, when `before` lie before them.
pub fn place_behind(before: &[ArchivedRound]) -> RaftPosition {
    let mut place = RaftPosition::default();
    for round in before {
        place.step(round).unwrap();
    }
    place
}

/// Puts rounds into segments of `each`, and a base behind every `base_every`-th segment.
pub fn write(archive: &Archive, rounds: &[ArchivedRound], each: usize, base_every: usize) {
    let mut from = archive.end().unwrap_or_default();
    let mut state = muster_archive::Replay::founding();
    for (number, chunk) in chunks(rounds, each).into_iter().enumerate() {
        let start = if archive.end().is_none() { Start::Founding } else { Start::Follows };
        let mut draft = archive.draft(CLUSTER, start, from).unwrap();
        let first_time = chunk[0].decode().unwrap().log_time;
        let begins = from.sequence.log_index;
        let mut before_last = begins;
        for round in chunk {
            draft.push(round);
            before_last = from.sequence.log_index;
            from.step(round).unwrap();
            state.apply(round, None).unwrap();
        }
        if from.sequence.log_index == begins {
            // Only late rounds: they go into a segment with the record behind them.
            panic!("choose chunks with a record in each");
        }
        archive.seal(draft, from, first_time).unwrap();
        let exact = from.sequence.log_index > before_last;
        if exact && base_every > 0 && number % base_every == base_every - 1 {
            archive.put_base(CLUSTER, from, state.state()).unwrap();
        }
    }
}

/// Parts of about `each` rounds. One that would contain no record goes with the part before it.
fn chunks(rounds: &[ArchivedRound], each: usize) -> Vec<&[ArchivedRound]> {
    let mut place = RaftPosition::default();
    let mut parts: Vec<&[ArchivedRound]> = Vec::new();
    let (mut begins, mut counted) = (0, place.sequence.log_index);
    for (at, round) in rounds.iter().enumerate() {
        place.step(round).unwrap();
        let full = at + 1 - begins >= each || at + 1 == rounds.len();
        if full && place.sequence.log_index > counted {
            parts.push(&rounds[begins..=at]);
            (begins, counted) = (at + 1, place.sequence.log_index);
        }
    }
    if begins < rounds.len()
        && let Some(last) = parts.last_mut()
    {
        let from = begins - last.len();
        *last = &rounds[from..];
    }
    parts
}

/// Every file below a directory.
pub fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
