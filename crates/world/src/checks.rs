//! The judge: told of everything as it happens, and holding one copy of the truth.
//!
//! **Invariant:** nothing here changes what the cluster does.

use crate::accounts::Accounts;
use crate::asked::Asked;
use crate::follower::Follower;
use crate::pace::{Pace, Stamp};
use crate::runtime::{self, Host, event, now_ns};
use muster_engine::{Change, Event, WatchPosition};
use muster_journal::{Decision, FORMAT_MAX, StopCause, decode_round, hash};
use muster_state::{NodeStatus, Phase, State};
use muster_store::{Entry, EntryPayload, LogId, Vote};
use muster_types::schedule::SCHEDULE_LABEL;
use muster_types::{
    ArrayId, Control, DependencyScope, DeviceSet, FencingToken, JobId, LogIndex, Name, NodeId, RequestId,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};

/// Violations kept; what follows from the first is seldom news.
const VIOLATIONS_MAX: usize = 20;
/// After this many entries the invariants of the whole state are checked.
const VERIFY_EVERY: u64 = 64;
/// Clocks that agree are so far apart at most, with what passes between a look at them and an entry.
const CLOCKS_APART_MS_MAX: u64 = 30_000 + 5_000;
/// A bound on staleness is kept by clocks that run a little faster or slower than true time, and that pause.
const BOUND_SLACK_MS: u64 = 200;
/// A round that is appended so soon after its leader stood still may have been stamped before.
const STAMPED_BEFORE_MS_MAX: u64 = 1_000;

/// Term and replica of a leader, and an index.
type Id = (u64, u64, u64);

fn id_of(log_id: LogId) -> Id {
    let leader = log_id.committed_leader_id();
    (leader.term, leader.node_id, log_id.index())
}

/// One worker process.
#[derive(Clone, Debug)]
struct Process {
    machine: Host,
    devices: DeviceSet,
    /// Its machine stands still, and so does it.
    suspended: bool,
}

/// Which worker of which placement.
pub type WorkerKey = (JobId, FencingToken, u32);

#[derive(Default)]
struct Truth {
    violations: Vec<String>,
    /// Every entry that was ever written, and what it followed.
    log: BTreeMap<Id, (u64, Option<Id>)>,
    /// By index: what was applied, and the state behind it.
    applied: BTreeMap<u64, (Id, u64, u64)>,
    /// Log index by digest of state.
    digests: BTreeMap<u64, LogIndex>,
    votes: BTreeMap<Host, Vote>,
    /// Which start of a replica wrote under a leadership.
    writers: BTreeMap<(u64, u64), u64>,
    acknowledged: BTreeMap<RequestId, (Vec<JobId>, LogIndex)>,
    floor: LogIndex,
    events: BTreeMap<LogIndex, Vec<(u32, u64)>>,
    processes: BTreeMap<WorkerKey, Process>,
    tokens: BTreeMap<JobId, FencingToken>,
    /// Jobs that a record has held, whether or not it was applied.
    jobs_ever_held: BTreeSet<JobId>,
    hard_quota: Option<(Name, u64)>,
    pace: Pace,
    /// The log, followed by itself.
    follower: Follower,
    /// The log, charged.
    accounts: Accounts,
    sent: BTreeMap<&'static str, u64>,
    /// What was known to somebody, by the true time in milliseconds, rising.
    floors: Vec<(u64, LogIndex)>,
    counts: Counts,
}

/// What a run has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Submissions acknowledged.
    pub acknowledged: u64,
    /// Linearizable reads answered.
    pub reads: u64,
    /// Bounded reads answered.
    pub bounded_reads: u64,
    /// Changes that watchers were told of.
    pub changes: u64,
    /// Worker processes that were started.
    pub started: u64,
    /// Faults that were made.
    pub faults: u64,
    /// Leaderships that wrote something.
    pub leaderships: u64,
    /// Snapshots that replaced a replica's state.
    pub installed: u64,
    /// Replicas that came back after their storage was lost.
    pub replaced: u64,
    /// Uploads of a snapshot that went on where an earlier one had broken off.
    pub resumed: u64,
    /// Checkpoints acknowledged.
    pub checkpoints: u64,
    /// Leaders that fell out of a cluster that was otherwise well, and were replaced in time.
    pub replaced_leaders: u64,
    /// Leaders that stood still until another led, and went on.
    pub thawed_leaders: u64,
    /// Times that every replica lost power at once.
    pub power_cuts: u64,
    /// Machines that were cut off until their nodes were lost, while their workers would have gone on.
    pub lost_machines: u64,
}

/// Everything that is checked. Every call may find a violation.
#[derive(Default)]
pub struct Checks(Mutex<Truth>);

impl Truth {
    fn fail(&mut self, text: String) {
        event("VIOLATION", format_args!("{text}"));
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    /// Somebody knows of this index from now on.
    fn raise_floor(&mut self, index: LogIndex) {
        if index > self.floor {
            self.floor = index;
            self.floors.push((runtime::elapsed_ms(), index));
        }
    }
}

fn change_hash(change: &Change) -> u64 {
    match change {
        Change::Job { id, row, .. } => hash(&(1u8, id, row.as_ref())),
        Change::JobForgotten(id) => hash(&(2u8, id)),
        Change::Node { id, row, gangs, .. } => hash(&(3u8, id, row.as_ref(), gangs.to_vec())),
        Change::NodeForgotten { id, .. } => hash(&(4u8, id)),
        Change::ScheduleSuspended { schedule, by, reason } => hash(&(6u8, schedule, by, &**reason)),
        Change::Queues(queues) => hash(&(5u8, format!("{queues:?}"))),
    }
}

fn listed(events: &[Event]) -> Vec<(LogIndex, u32, u64)> {
    let place = |e: &Event| (e.position.log_index, e.position.ordinal, change_hash(&e.change));
    events.iter().map(place).collect()
}

impl Checks {
    fn lock(&self) -> MutexGuard<'_, Truth> {
        self.0.lock()
    }

    /// Something that must not be.
    pub fn fail(&self, text: String) {
        self.lock().fail(text);
    }

    /// What was found, in the order it was found.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// What the run has come to.
    pub fn counts(&self) -> Counts {
        let truth = self.lock();
        Counts { leaderships: truth.writers.len() as u64, ..truth.counts }
    }

    /// Counts something.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.lock().counts);
    }

    /// A client asks for something, by the name that the log has for it.
    pub fn sent(&self, name: &'static str) {
        *self.lock().sent.entry(name).or_default() += 1;
    }

    /// What was asked for, and what became records.
    pub fn asked(&self) -> Asked {
        let truth = self.lock();
        Asked { sent: truth.sent.clone(), accepted: truth.follower.accepted.clone() }
    }

    /// This tenant never holds more than this many thousandths of devices.
    pub fn set_hard_quota(&self, tenant: Name, milli: u64) {
        self.lock().hard_quota = Some((tenant, milli));
    }

    /// Log matching: one entry under one id, and one way there.
    pub fn appended(&self, host: Host, entry: &Entry, after: Option<LogId>) {
        let content = match &entry.payload {
            EntryPayload::Normal(payload) => hash(&payload.0.as_ref()),
            EntryPayload::Blank => 1,
            EntryPayload::Membership(membership) => hash(&format!("{membership:?}")),
        };
        let (id, after) = (id_of(entry.log_id), after.map(id_of));
        let mut truth = self.lock();
        if let Some((known, before)) = truth.log.get(&id).copied() {
            if known != content {
                truth.fail(format!("log matching: n{host} holds another entry at {id:?}"));
            }
            if before != after {
                truth.fail(format!(
                    "log matching: n{host} has {id:?} behind {after:?}, others behind {before:?}"
                ));
            }
            return;
        }
        truth.log.insert(id, (content, after));
        if let EntryPayload::Normal(payload) = &entry.payload
            && let Ok(round) = decode_round(&payload.0, FORMAT_MAX)
        {
            truth.note_holds(&round.decisions);
        }
    }

    /// Log time: a round that its own leader appends, before `hosts` know of it.
    pub fn stamped(&self, host: Host, entry: &Entry, hosts: &[Host]) {
        let EntryPayload::Normal(payload) = &entry.payload else { return };
        let leader = entry.log_id.committed_leader_id();
        let now_ms = runtime::local_ns() / 1_000_000;
        let thawed_ms = runtime::thawed_at(host).map(|at_ns| at_ns / 1_000_000 + STAMPED_BEFORE_MS_MAX);
        if leader.node_id != u64::from(host) || thawed_ms.is_some_and(|until_ms| now_ms < until_ms) {
            return;
        }
        let mut truth = self.lock();
        let Ok(round) = decode_round(&payload.0, FORMAT_MAX) else {
            return truth.fail(format!("n{host} appends a round that cannot be read"));
        };
        let agrees = |other: &Host| {
            let (now, before) = runtime::wall_ms_of(*other);
            let apart_ms = now.abs_diff(round.log_time.0).min(before.abs_diff(round.log_time.0));
            *other != host && apart_ms <= CLOCKS_APART_MS_MAX
        };
        let is_borne_out = hosts.iter().any(agrees);
        let stamp = Stamp { local_ms: now_ms, log_time: round.log_time, is_borne_out };
        if let Some(wrong) = truth.pace.stamped((leader.term, leader.node_id), stamp) {
            truth.fail(format!("n{host} in term {}: {wrong}", leader.term));
        }
    }

    /// Election safety: one start of one replica leads under a leadership.
    pub fn leads(&self, term: u64, replica: u64, start: u64) {
        let mut truth = self.lock();
        let known = *truth.writers.entry((term, replica)).or_insert(start);
        if known != start {
            truth.fail(format!(
                "election safety: starts {known} and {start} of n{replica} both led in term {term}"
            ));
        }
    }

    /// A vote is durable now.
    pub fn voted(&self, host: Host, vote: Vote) {
        self.lock().votes.insert(host, vote);
    }

    /// A vote is never forgotten.
    pub fn reopened(&self, host: Host, vote: Option<Vote>) {
        let mut truth = self.lock();
        let Some(known) = truth.votes.get(&host).copied() else { return };
        if vote.is_none_or(|vote| (vote.leader_id, vote.committed) < (known.leader_id, known.committed)) {
            truth.fail(format!("n{host} had voted {known} and came back with {vote:?}"));
        }
    }

    /// The replica starts without its earlier storage: the cluster has removed it before.
    pub fn emptied(&self, host: Host) {
        self.lock().votes.remove(&host);
    }

    /// Applied equals applied, and what must hold of every state.
    pub fn applied(
        &self,
        host: Host,
        log_id: LogId,
        (content, payload): (u64, Option<&[u8]>),
        state: &State,
    ) {
        let (index, digest) = (log_id.index(), state.digest());
        let now = (id_of(log_id), content, digest);
        let mut truth = self.lock();
        if let Some(known) = truth.applied.get(&index).copied() {
            if known != now {
                truth.fail(format!("n{host} applied {now:x?} at {index} where {known:x?} was applied"));
            }
            return;
        }
        truth.applied.insert(index, now);
        truth.digests.insert(digest, state.log_index());
        truth.follow(payload, state, index);
        truth.check_state(state, index);
    }

    /// Every accelerator was in exactly one state at each moment.
    pub fn accounts_balance(&self) {
        let mut truth = self.lock();
        let found = truth.accounts.unbalanced();
        for text in found {
            truth.fail(text);
        }
    }

    /// A snapshot stands for what was applied.
    pub fn restored(&self, host: Host, raft_index: u64, state: &State) {
        let mut truth = self.lock();
        truth.counts.installed += 1;
        let digest = state.digest();
        let known = truth.applied.get(&raft_index).map(|(.., digest)| *digest);
        if known.is_some_and(|known| known != digest) {
            truth.fail(format!("n{host} restored a snapshot at {raft_index} that is another state"));
        }
    }

    /// Exactly the changes of these records, on every replica.
    pub fn published(&self, host: Host, before: LogIndex, until: LogIndex, events: &[Event]) {
        let mut truth = self.lock();
        let mut by_index: BTreeMap<LogIndex, Vec<(u32, u64)>> = BTreeMap::new();
        for (index, ordinal, content) in listed(events) {
            by_index.entry(index).or_default().push((ordinal, content));
        }
        for index in before.0 + 1..=until.0 {
            let list = by_index.remove(&LogIndex(index)).unwrap_or_default();
            match truth.events.get(&LogIndex(index)) {
                Some(known) if *known != list => {
                    truth.fail(format!("n{host} tells other changes of record {index} than others"));
                }
                Some(_) => {}
                None => _ = truth.events.insert(LogIndex(index), list),
            }
        }
        if !by_index.is_empty() {
            truth.fail(format!("n{host} tells changes of records outside {before}..={until}"));
        }
    }

    /// A watcher is told everything between two places, in order, once.
    pub fn watched(&self, who: Host, from: WatchPosition, reached: WatchPosition, events: &[Event]) {
        let mut truth = self.lock();
        truth.counts.changes += events.len() as u64;
        let got = listed(events);
        let range = truth.events.range(from.log_index..=reached.log_index);
        let all =
            range.flat_map(|(index, list)| list.iter().map(|(ordinal, hash)| (*index, *ordinal, *hash)));
        let inside = |(index, ordinal, _): &(LogIndex, u32, u64)| {
            let place = WatchPosition { log_index: *index, ordinal: *ordinal };
            place > from && place <= reached
        };
        let expected: Vec<_> = all.filter(inside).collect();
        if got != expected {
            truth.fail(format!(
                "watcher {who} was told {} changes between {from:?} and {reached:?}, there were {}",
                got.len(),
                expected.len()
            ));
        }
    }

    /// The newest index anybody was told of: what begins now must not be older.
    pub fn floor(&self) -> LogIndex {
        self.lock().floor
    }

    /// A submission is acknowledged; `floor` is from before it was first sent.
    pub fn acknowledged(&self, floor: LogIndex, request: RequestId, jobs: Vec<JobId>, at: LogIndex) {
        event("ack", format_args!("{request} at {at}"));
        let mut truth = self.lock();
        if at <= floor {
            truth.fail(format!("{request} was acknowledged at {at}, though it began behind {floor}"));
        }
        if let Some((known, index)) = truth.acknowledged.get(&request).cloned()
            && (known != jobs || index != at)
        {
            truth.fail(format!("{request} was acknowledged at {index} and again at {at}"));
        }
        truth.acknowledged.insert(request, (jobs, at));
        truth.counts.acknowledged += 1;
        truth.raise_floor(at);
    }

    /// A linearizable read was answered from this state.
    pub fn read(&self, who: Host, floor: LogIndex, log_index: LogIndex, digest: u64) {
        let mut truth = self.lock();
        truth.counts.reads += 1;
        if log_index < floor {
            truth.fail(format!(
                "stale read: {who} was answered at {log_index}, though {floor} was known before"
            ));
        }
        if truth.digests.get(&digest) != Some(&log_index) {
            truth.fail(format!("{who} read a state at {log_index} that no prefix of the log makes"));
        }
        truth.raise_floor(log_index);
    }

    /// A read that began then was answered from this state, and may lack what was committed so shortly before.
    pub fn read_bounded(
        &self,
        who: Host,
        (begun_ms, max_staleness_ms): (u64, u64),
        log_index: LogIndex,
        digest: u64,
    ) {
        let mut truth = self.lock();
        truth.counts.bounded_reads += 1;
        let known_ms = begun_ms.saturating_sub(max_staleness_ms + max_staleness_ms / 4 + BOUND_SLACK_MS);
        let behind = truth.floors.partition_point(|(at_ms, _)| *at_ms <= known_ms);
        let floor = behind.checked_sub(1).and_then(|last| truth.floors.get(last)).map(|(_, index)| *index);
        if floor.is_some_and(|floor| log_index < floor) {
            truth.fail(format!(
                "stale bounded read: {who} was answered at {log_index} within {max_staleness_ms} ms, though {floor:?} was \
                 known before that"
            ));
        }
        if truth.digests.get(&digest) != Some(&log_index) {
            truth.fail(format!("{who} read a state at {log_index} that no prefix of the log makes"));
        }
    }

    /// A worker's process exists from now on.
    pub fn process_started(&self, key: WorkerKey, machine: Host, devices: DeviceSet) {
        event("start", format_args!("{} {} rank {} on {machine}", key.0, key.1, key.2));
        let mut truth = self.lock();
        truth.counts.started += 1;
        let newest = truth.tokens.get(&key.0).copied().unwrap_or_default();
        let next = newest.max(key.1);
        truth.tokens.insert(key.0, next);
        truth.processes.insert(key, Process { machine, devices, suspended: false });
        truth.check_processes(&key);
    }

    /// A worker's process is gone.
    pub fn process_ended(&self, key: WorkerKey) {
        event("end", format_args!("{} {} rank {}", key.0, key.1, key.2));
        self.lock().processes.remove(&key);
    }

    /// Every process of a machine is gone with it.
    pub fn machine_lost(&self, machine: Host) {
        self.lock().processes.retain(|_, process| process.machine != machine);
    }

    /// A machine stands still, or goes on.
    pub fn set_suspended(&self, machine: Host, suspended: bool) {
        let mut truth = self.lock();
        let mut changed = Vec::new();
        for (key, process) in &mut truth.processes {
            if process.machine == machine && process.suspended != suspended {
                process.suspended = suspended;
                changed.push(*key);
            }
        }
        if !suspended {
            for key in changed {
                truth.check_processes(&key);
            }
        }
    }

    /// A checkpoint is in the log.
    pub fn checkpointed(&self, job: JobId, token: FencingToken) {
        event("checkpoint", format_args!("{job} {token}"));
        self.lock().counts.checkpoints += 1;
    }

    /// Processes that run now.
    pub fn running(&self) -> usize {
        self.lock().processes.len()
    }

    /// At the end: nothing that was acknowledged is missing from a state.
    pub fn nothing_lost(&self, host: Host, state: &State) {
        let mut truth = self.lock();
        let acknowledged = truth.acknowledged.clone();
        for (request, (jobs, at)) in acknowledged {
            let is_missing = jobs.iter().any(|job| !is_there(state, *job));
            let known = state.request(request).map(|row| row.log_index);
            if is_missing || known != Some(at) {
                truth.fail(format!("lost: {request}, acknowledged at {at}, is not in the state of n{host}"));
            }
        }
    }

    /// At the end: every job stands for one acknowledged or open request, once.
    pub fn no_extra_jobs(&self, state: &State, asked: &BTreeSet<RequestId>) {
        // The policy was set by the harness, under request 1.
        let (scheduled, size_stops) = {
            let truth = self.lock();
            (truth.follower.scheduled.clone(), truth.follower.size_stops.clone())
        };
        let is_derived = |request: &RequestId| scheduled.contains(request) || size_stops.contains(request);
        let is_known = |request: &RequestId| asked.contains(request) || is_derived(request);
        let known = state.requests_by_time().map(|(_, request)| request);
        let foreign = known.filter(|request| request.0 > 1 && !is_known(request)).count();
        if foreign > 0 {
            self.fail(format!("{foreign} requests in the state that no client made"));
        }
        // Every submission names its jobs as nobody else does.
        let mut names: BTreeSet<Name> = BTreeSet::new();
        let is_scheduled = |job: JobId| {
            state.metadata(job).is_some_and(|metadata| metadata.labels.contains_key(SCHEDULE_LABEL))
        };
        let single = state.jobs().iter().filter(|(job, _)| state.array_of(**job).is_none());
        // Those of a schedule are all called the same.
        let single = single.filter(|(job, _)| !is_scheduled(**job));
        let single = single.filter_map(|(job, _)| state.spec(*job)).map(|spec| spec.name.clone());
        let arrays = state.arrays().iter().map(|(_, row)| row.template.spec.name.clone());
        for name in single.chain(arrays) {
            if !names.insert(name.clone()) {
                self.fail(format!("{name} was submitted once and is there twice"));
            }
        }
    }
}

/// Jobs that were placed before those that they wait for were over.
fn out_of_order(state: &State) -> Vec<String> {
    let mut found = Vec::new();
    for job in state.active() {
        let Some(spec) = state.spec(job) else { continue };
        for on in &spec.dependencies {
            let others_are_over = match on.scope {
                DependencyScope::Array => {
                    state.array(ArrayId(on.job.0)).is_none_or(|row| row.finished_at.is_some())
                }
                // The spec of a member names the first member of the other array.
                DependencyScope::Member => {
                    let ordinal = state.array_of(job).map_or(0, |(_, ordinal)| ordinal);
                    is_over(state, ArrayId(on.job.0).member(ordinal))
                }
                DependencyScope::Job => is_over(state, on.job),
            };
            if !others_are_over {
                found.push(format!("{job} is placed before {} is over", on.job));
            }
        }
    }
    found
}

/// Whether a state has a job. A member of an array has no row before it is created, and none any more once that was dropped; how
/// it ended is kept as long as its array is.
fn is_there(state: &State, job: JobId) -> bool {
    let is_member = |(array, ordinal): (ArrayId, u32)| {
        let waits = || state.uncreated(array).iter().any(|(first, last)| (*first..=*last).contains(&ordinal));
        state.member_end(array, ordinal).is_some() || waits()
    };
    state.job(job).is_some() || state.array_of(job).is_some_and(is_member)
}

fn is_over(state: &State, job: JobId) -> bool {
    let row = state.job(job);
    row.is_none_or(|row| matches!(row.phase, Phase::Finished(_))) && state.waiting_member(job).is_none()
}

impl Truth {
    /// Jobs that these decisions hold.
    fn note_holds(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            if let Decision::JobHoldSet { jobs, held: true, .. }
            | Decision::ArraysControlled { jobs, control: Control::Hold, .. }
            | Decision::JobRequeueRequested { jobs, suspended: true, .. } = decision
            {
                self.jobs_ever_held.extend(jobs);
            }
        }
    }

    /// Arrays with more members under way than any throttle that they have had allows. A member does not count for it while
    /// somebody holds it, so there may be more by each one that was held and released. Those that nobody ever held are never
    /// more than it.
    fn beyond_throttles(&self, state: &State) -> Vec<String> {
        let mut running: BTreeMap<ArrayId, u32> = BTreeMap::new();
        let never_held = state.active().filter(|job| !self.jobs_ever_held.contains(job));
        for (array, _) in never_held.filter_map(|job| state.array_of(job)) {
            *running.entry(array).or_default() += 1;
        }
        let beyond =
            running.into_iter().filter(|(array, running)| self.follower.throttles.forbade(*array, *running));
        beyond
            .map(|(array, running)| {
                format!("{running} members of {array} that nobody held are under way, beyond its throttles")
            })
            .collect()
    }

    /// What this round breaks, by the records alone.
    fn follow(&mut self, payload: Option<&[u8]>, state: &State, index: u64) {
        let Some(payload) = payload else { return };
        let Ok(round) = decode_round(payload, FORMAT_MAX) else {
            return self.fail(format!("at raft index {index}: a round was applied that cannot be read"));
        };
        for text in self.follower.applied(&round, state) {
            self.fail(format!("at raft index {index}: {text}"));
        }
        if let Some(text) = self.accounts.charge(&round) {
            self.fail(format!("at raft index {index}: {text}"));
        }
    }

    /// Of the log's own view: no device twice, quotas kept, tokens rising.
    fn check_state(&mut self, state: &State, index: u64) {
        let mut taken: BTreeMap<NodeId, DeviceSet> = BTreeMap::new();
        let mut used: BTreeMap<Name, u64> = BTreeMap::new();
        let mut found = Vec::new();
        for job in state.active() {
            let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
            let Some(placement) = &row.placement else { continue };
            for (rank, (slot, state_of)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
                if state_of.is_over() {
                    continue;
                }
                let node = state.node(slot.node);
                if node.is_none_or(|n| n.status != NodeStatus::Up || n.incarnation != slot.incarnation) {
                    found.push(format!("{job} rank {rank} is leased on {} that is not up", slot.node));
                }
                let before = taken.entry(slot.node).or_insert(DeviceSet::EMPTY);
                if !before.is_disjoint(slot.devices) {
                    found.push(format!("a device of {} is leased twice, to {job} as well", slot.node));
                }
                *before = before.union(slot.devices);
                // A gang that is being preempted is no longer charged: the jobs that it is preempted for are.
                if matches!(row.phase, Phase::Stopping(StopCause::Rearranged(_))) {
                    continue;
                }
                *used.entry(spec.tenant.clone()).or_default() += u64::from(slot.devices.count()) * 1_000;
            }
            if matches!(row.phase, Phase::Starting | Phase::Running) {
                let newest = self.tokens.get(&job).copied().unwrap_or_default();
                if placement.token < newest {
                    found.push(format!("{job} is placed under {} behind {newest}", placement.token));
                }
            }
        }
        found.extend(out_of_order(state));
        found.extend(self.beyond_throttles(state));
        if let Some((tenant, most)) = &self.hard_quota {
            let held = used.get(tenant).copied().unwrap_or_default();
            if held > *most {
                found.push(format!("{tenant} holds {held} thousandths of devices, its quota is {most}"));
            }
        }
        if state.rejected() > 0 {
            found.push(format!("the guard refused {} records of current leaders", state.rejected()));
        }
        if index.is_multiple_of(VERIFY_EVERY)
            && let Err(broken) = state.verify()
        {
            found.push(format!("the state at {index} is inconsistent: {broken:?}"));
        }
        for text in found {
            self.fail(format!("at raft index {index}: {text}"));
        }
    }

    /// Of what really runs: one incarnation of a gang, one process on a device.
    fn check_processes(&mut self, key: &WorkerKey) {
        let Some(mine) = self.processes.get(key).cloned() else { return };
        let mut found = Vec::new();
        for (other, process) in &self.processes {
            if other == key || process.suspended || mine.suspended {
                continue;
            }
            if other.0 == key.0 && other.1 != key.1 {
                found.push(format!("two incarnations of {}: {} and {} run at once", key.0, other.1, key.1));
            }
            if process.machine == mine.machine && !process.devices.is_disjoint(mine.devices) {
                found.push(format!(
                    "a device of machine {} is used by {} and {} at once",
                    mine.machine, other.0, key.0
                ));
            }
        }
        found.dedup();
        for text in found {
            self.fail(format!("at {} ms: {text}", now_ns() / 1_000_000));
        }
    }
}
