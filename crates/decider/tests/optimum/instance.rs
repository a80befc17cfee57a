//! A small fleet with gangs that wait, and what one pass over the line makes of it.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{Answer, BootstrapConfig, Command, Pass, Speculation, handle, schedule};
use muster_journal::{Decision, WorkerSlot};
use muster_planner::Budget;
use muster_state::State;
use muster_types::policy::PolicyDraft;
use muster_types::{
    AcceleratorRequest, Accelerators, ClusterId, DeviceAmount, DeviceSet, HolderId, JobDraft, JobId, JobSpec,
    Leadership, LogTime, Name, NodeDraft, Parameters, ReplicaId, RequestId, TaskGroup, WorkerRequest,
};

use crate::exhaustive::Fleet;

/// Parts of a device in which everything here is counted.
pub const QUARTERS: u64 = 4;

/// Hosts of the largest fleet.
pub const HOSTS_MAX: usize = 6;

/// Hosts up to which gangs ask for shares of devices, too.
const SHARED_HOSTS_MAX: usize = 4;

const MILLI_PER_QUARTER: u64 = 1_000 / QUARTERS;
const GIB: u64 = 1 << 30;
const BOOTSTRAP: BootstrapConfig = BootstrapConfig::new(ClusterId(0xc1), Parameters::DEFAULT);

/// A host and how many of its devices run something.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub devices: u16,
    pub taken: u16,
}

/// A gang of one group.
#[derive(Clone, Copy, Debug)]
pub struct Gang {
    pub workers: u32,
    /// What each asks for: quarters of one device, or the quarters of whole devices.
    pub worker_quarters: u64,
    /// How long its owner expects it to run; the order goes by it.
    pub run_ms: u64,
}

impl Gang {
    /// Of all workers.
    pub fn quarters(&self) -> u64 {
        u64::from(self.workers) * self.worker_quarters
    }

    fn amount(&self) -> DeviceAmount {
        let part = |of: u64| u16::try_from(of).unwrap();
        if self.worker_quarters < QUARTERS {
            DeviceAmount::Share(part(self.worker_quarters * MILLI_PER_QUARTER))
        } else {
            DeviceAmount::Whole(part(self.worker_quarters / QUARTERS))
        }
    }

    fn fits_empty(&self, hosts: &[Host]) -> bool {
        let workers = hosts.iter().map(|host| u64::from(host.devices) * QUARTERS / self.worker_quarters);
        workers.sum::<u64>() >= u64::from(self.workers)
    }
}

/// A fleet and who waits.
#[derive(Clone, Debug)]
pub struct Instance {
    pub hosts: Vec<Host>,
    pub gangs: Vec<Gang>,
}

/// What a pass made of an instance. Gangs are named by their place in the instance.
pub struct Outcome {
    /// The line before the pass.
    pub order: Vec<usize>,
    /// Gangs placed, as they were.
    pub placed: Vec<usize>,
    /// What is left free.
    pub free: Fleet,
}

impl Instance {
    pub fn new(seed: u64) -> Instance {
        let mut random = Random::new(seed);
        let mut hosts = Vec::new();
        for _ in 0..random.between(3, HOSTS_MAX as u64) {
            let devices = if random.once_in(3) { 4 } else { 8 };
            // At least one stays free.
            let taken = if random.once_in(3) { 0 } else { random.below(u64::from(devices)) };
            hosts.push(Host { devices, taken: u16::try_from(taken).unwrap() });
        }
        let count = random.between(6, 12) as usize;
        // Shares multiply what a fleet may come to: larger ones would take too long to search.
        let mut shares_left: u32 = if hosts.len() <= SHARED_HOSTS_MAX { 2 } else { 0 };
        let mut gangs = Vec::new();
        while gangs.len() < count {
            let worker_quarters = match random.below(10) {
                0..3 if shares_left > 0 => 1 + random.below(2),
                0..6 => QUARTERS << random.below(4),
                _ => QUARTERS * random.between(1, 8),
            };
            let workers = random.between(1, 4) as u32;
            let gang = Gang { workers, worker_quarters, run_ms: random.between(10, 600) * 60_000 };
            if gang.fits_empty(&hosts) {
                shares_left -= u32::from(worker_quarters < QUARTERS);
                gangs.push(gang);
            }
        }
        Instance { hosts, gangs }
    }

    /// What is free before the pass.
    pub fn free(&self) -> Fleet {
        let mut fleet = Fleet::default();
        for (free, host) in fleet.iter_mut().zip(&self.hosts) {
            free[0] = u8::try_from(host.devices - host.taken).unwrap();
        }
        fleet.sort_unstable();
        fleet
    }

    /// One pass over the line, on a state in which the taken devices run something.
    pub fn schedule(&self) -> Outcome {
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1_000_000), BOOTSTRAP);
        // Places are compared, not times: the first that cannot start would keep a place from others for later.
        let mut policy = PolicyDraft::default();
        policy.backfill.reservations_max = 0;
        let policy = Box::new(policy.check().expect("a policy"));
        let set = Command::SetPolicy {
            request: RequestId(1 << 64),
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        };
        handle(&mut speculation, &set).expect("the first policy is taken");
        for (number, host) in self.hosts.iter().enumerate() {
            add_host(&mut speculation, number, host);
        }
        let draft = |(number, gang): (usize, &Gang)| job(&format!("gang-{number}"), gang);
        let ids = submit(&mut speculation, self.gangs.iter().enumerate().map(draft).collect());
        let number_of: BTreeMap<JobId, usize> = ids.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let mut order: Vec<JobId> = ids.clone();
        order.sort_unstable_by_key(|job| (speculation.state().turn_of(*job), *job));
        let order = order.iter().map(|job| number_of[job]).collect();
        speculation.take_round();
        let pass = schedule(&mut speculation, &mut Budget::new(1_000_000));
        assert!(matches!(pass, Pass::Complete { .. }), "the budget is for all of the line");
        let decisions = speculation.take_round().map(|round| round.decisions).unwrap_or_default();
        let placed = decisions.iter().filter_map(|decision| match decision {
            Decision::GangPlaced { job, .. } => Some(number_of[job]),
            _ => None,
        });
        Outcome { order, placed: placed.collect(), free: free_of(speculation.state()) }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn job(called: &str, gang: &Gang) -> JobSpec {
    let mut devices: AcceleratorRequest = Accelerators { kind: name("h100"), count: 1 }.into();
    devices.amount = gang.amount();
    let request = WorkerRequest {
        accelerators: Some(devices),
        cpu_milli: 100,
        memory_bytes: GIB,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup::new(name("main"), gang.workers, vec!["train".into()], request);
    let draft = JobDraft::new(name(called), name("research"), vec![group]);
    JobDraft { expected_run_ms: Some(gang.run_ms), ..draft }.check().expect("a job")
}

fn submit(speculation: &mut Speculation, specs: Vec<JobSpec>) -> Vec<JobId> {
    let request = RequestId(u128::from(speculation.state().log_index().0) + 1);
    match handle(speculation, &Command::submit(request, muster_types::Submission::plain(specs))) {
        Ok(Answer::Submitted { jobs, .. }) => jobs,
        other => panic!("jobs were not taken: {other:?}"),
    }
}

/// Registers a host and starts one job on what is taken of it.
fn add_host(speculation: &mut Speculation, number: usize, host: &Host) {
    let draft = NodeDraft {
        name: name(&format!("host-{number}")),
        region: name("eu"),
        cluster: name("c1"),
        block: name("b1"),
        rack: name("r1"),
        address: format!("host-{number}"),
        accelerators: Some(Accelerators { kind: name("h100"), count: host.devices }),
        cpu_milli: 64_000,
        memory_bytes: 512 * GIB,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    };
    let register = Command::Register {
        spec: draft.check().expect("a node"),
        holder: HolderId(number as u128 + 1),
        other_session_is_over: false,
    };
    let Ok(Answer::Registered { node, incarnation, .. }) = handle(speculation, &register) else {
        panic!("a node was not taken");
    };
    if host.taken > 0 {
        let gang = Gang { workers: 1, worker_quarters: u64::from(host.taken) * QUARTERS, run_ms: 36_000_000 };
        let running = submit(speculation, vec![job(&format!("running-{number}"), &gang)])[0];
        let workers = vec![WorkerSlot { node, incarnation, devices: DeviceSet::first(host.taken) }];
        speculation.push(Decision::GangPlaced { job: running, workers });
    }
}

fn free_of(state: &State) -> Fleet {
    let mut fleet = Fleet::default();
    for (free, (_, node)) in fleet.iter_mut().zip(state.nodes().iter()) {
        free[0] = u8::try_from(node.free.devices.count()).unwrap();
        for share in &node.free.shares {
            let milli = u64::from(share.milli);
            assert_eq!(milli % MILLI_PER_QUARTER, 0, "shares are of quarters");
            free[usize::try_from(milli / MILLI_PER_QUARTER).unwrap()] += 1;
        }
    }
    fleet.sort_unstable();
    fleet
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Both ends can come.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
