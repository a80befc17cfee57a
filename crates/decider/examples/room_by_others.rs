//! What one search for gangs to preempt costs on large fleets full of small jobs of the lowest tier: time, visits, and
//! who stops, for one host, a gang, a rack, whole TPU cubes and a rectangle.
//!
//! `cargo run --release -p muster-decider --example room_by_others`
#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use muster_decider::{Answer, BootstrapConfig, Command, Pass, Speculation, handle, schedule};
use muster_journal::{Decision, RankUpdate};
use muster_planner::Budget;
use muster_state::State;
use muster_types::policy::{PolicyDraft, TenantRights, UNLISTED_TENANT};
use muster_types::tpu::{PodPosition, SliceRequest, SliceShape};
use muster_types::{
    Accelerators, ClusterId, HolderId, JobDraft, JobId, Leadership, Level, LogTime, Name, NodeDraft, NodeId,
    Parameters, PriorityTier, ReplicaId, RequestId, Submission, TaskGroup, WorkerRequest,
};

/// What a leader spends in one round.
const VISITS: u64 = 200_000;
const GIB: u64 = 1 << 30;

fn main() {
    println!("{:<44} {:>8} {:>9} {:>8} {:>7}", "who asks, on what", "stop", "visits", "rounds", "ms");
    for hosts in [300, 500, 2_000] {
        let fleet = || Fleet::of_hosts(hosts);
        fleet().ask(&format!("1 x 8 on {hosts} hosts of 8"), gang(1, 8, None));
        fleet().ask(&format!("16 x 8 on {hosts} hosts of 8"), gang(16, 8, None));
        fleet().ask(&format!("16 x 8 in one rack on {hosts} hosts of 8"), gang(16, 8, Some(Level::Rack)));
        fleet().ask(&format!("64 x 1 in one rack on {hosts} hosts of 8"), gang(64, 1, Some(Level::Rack)));
    }
    for (cubes, shape) in [(1, "4x4x4"), (8, "8x8x8"), (16, "8x8x16")] {
        let text = format!("v5p {shape} ({cubes} cubes) on 2 pods of 2,240 hosts");
        Fleet::of_cubes().ask(&text, slice("v5p", shape, cubes * 16));
    }
    Fleet::of_grids().ask("v5e 8x8 on 32 pods of 64 hosts", slice("v5e", "8x8", 16));
}

fn gang(workers: u32, devices: u16, required: Option<Level>) -> JobDraft {
    let mut draft = draft(group(workers, "h100", devices), PriorityTier::Production);
    draft.topology.required = required;
    draft
}

fn slice(kind: &str, shape: &str, workers: u32) -> JobDraft {
    let mut group = group(workers, kind, 4);
    group.slice = Some(SliceRequest { shape: SliceShape::parse(shape).unwrap(), count: 1 });
    draft(group, PriorityTier::Production)
}

fn group(workers: u32, kind: &str, devices: u16) -> TaskGroup {
    let wants = Accelerators { kind: Name::new(kind).unwrap(), count: devices };
    let request = WorkerRequest {
        accelerators: Some(wants.into()),
        cpu_milli: 1_000,
        memory_bytes: GIB,
        exclusive: false,
        scratch_bytes: 0,
    };
    TaskGroup::new(Name::literal("main"), workers, vec!["run".into()], request)
}

fn draft(group: TaskGroup, tier: PriorityTier) -> JobDraft {
    let draft = JobDraft::new(Name::literal("job"), Name::literal("somebody"), vec![group]);
    JobDraft { tier, expected_run_ms: Some(100 * 3_600_000), ..draft }
}

/// A fleet that is full of gangs which began at different times.
struct Fleet {
    speculation: Speculation,
    requests: u128,
    now: LogTime,
}

impl Fleet {
    fn of_hosts(hosts: usize) -> Fleet {
        let nodes = (0..hosts).map(|host| node(format!("n{host}"), "h100", 8, host / 16, None));
        Fleet::full(nodes.collect(), group(1, "h100", 1), 8)
    }

    fn of_cubes() -> Fleet {
        let hosts = (0..2_u16)
            .flat_map(|pod| (0..140_u16).flat_map(move |cube| (0..16).map(move |at| (pod, cube, at))));
        let nodes = hosts.map(|(pod, cube, at): (u16, u16, u8)| {
            let position = PodPosition {
                pod: Name::new(&format!("p{pod}")).unwrap(),
                cube,
                at: [at % 2 * 2, at / 2 % 2 * 2, at / 4],
            };
            node(format!("n{pod}-{cube}-{at}"), "v5p", 4, usize::from(cube), Some(position))
        });
        Fleet::full(nodes.collect(), group(1, "v5p", 4), 1)
    }

    fn of_grids() -> Fleet {
        let hosts = (0..32_u16).flat_map(|pod| (0..64_u8).map(move |at| (pod, at)));
        let nodes = hosts.map(|(pod, at)| {
            let position = PodPosition {
                pod: Name::new(&format!("p{pod}")).unwrap(),
                cube: 0,
                at: [at % 8 * 2, at / 8 * 2, 0],
            };
            node(format!("n{pod}-{at}"), "v5e", 4, usize::from(pod), Some(position))
        });
        Fleet::full(nodes.collect(), group(1, "v5e", 4), 1)
    }

    /// `per_host` gangs of this kind for each host, a tenth of them every ten minutes.
    fn full(nodes: Vec<NodeDraft>, group: TaskGroup, per_host: usize) -> Fleet {
        let bootstrap = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let now = LogTime(1_600_000_000_000);
        let speculation = Speculation::begin(State::default(), leadership, now, bootstrap);
        let mut fleet = Fleet { speculation, requests: 0, now };
        fleet.commit();
        let mut policy = PolicyDraft::default();
        policy.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default().rights = TenantRights::ALL;
        let request = fleet.next_request();
        let policy = Box::new(policy.check().unwrap());
        fleet.carry_out(&Command::SetPolicy {
            request,
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        });
        let count = nodes.len() * per_host;
        for node in nodes {
            let spec = node.check().unwrap();
            fleet.carry_out(&Command::Register { spec, holder: HolderId(1), other_session_is_over: true });
        }
        for part in 0..10 {
            let jobs = count / 10 + usize::from(part < count % 10);
            for _ in 0..jobs {
                fleet.submit(draft(group.clone(), PriorityTier::Free));
            }
            while let Pass::Interrupted { .. } = schedule(&mut fleet.speculation, &mut Budget::new(VISITS)) {
                fleet.commit();
            }
            fleet.commit();
            fleet.report_running();
            fleet.now = fleet.now.plus_ms(600_000);
            fleet.speculation.set_now(fleet.now);
        }
        assert_eq!(fleet.speculation.state().active_count(), count);
        fleet
    }

    fn ask(mut self, text: &str, draft: JobDraft) {
        self.submit(draft);
        let begin = Instant::now();
        let (mut visits, mut rounds, mut stops) = (0, 0, 0);
        loop {
            let mut budget = Budget::new(VISITS);
            let pass = schedule(&mut self.speculation, &mut budget);
            visits += VISITS - budget.left();
            rounds += 1;
            let round = self.speculation.take_round();
            for decision in round.iter().flat_map(|round| &round.decisions) {
                if let Decision::Rearranged { stops: of_round, .. } = decision {
                    stops += of_round.len();
                }
            }
            if let Pass::Complete { .. } = pass {
                break;
            }
        }
        let ms = begin.elapsed().as_secs_f64() * 1_000.0;
        println!("{text:<44} {stops:>8} {visits:>9} {rounds:>8} {ms:>7.1}");
    }

    fn submit(&mut self, draft: JobDraft) -> JobId {
        let request = self.next_request();
        let jobs = Submission::plain([draft.check().unwrap()]);
        let Answer::Submitted { jobs, .. } = self.carry_out(&Command::submit(request, jobs)) else {
            panic!("a submission is answered as one");
        };
        jobs[0]
    }

    fn report_running(&mut self) {
        let active: Vec<JobId> = self.speculation.state().active().collect();
        for job in active {
            let row = self.speculation.state().job(job).unwrap();
            if row.started_at.is_some() {
                continue;
            }
            let placement = row.placement.clone().unwrap();
            let (slot, token) = (placement.slots[0], placement.token);
            let (node, incarnation): (NodeId, u32) = (slot.node, slot.incarnation);
            let updates = vec![(0, RankUpdate::Running)];
            self.carry_out(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    fn carry_out(&mut self, command: &Command) -> Answer {
        let answer = handle(&mut self.speculation, command).unwrap();
        self.commit();
        answer
    }

    fn commit(&mut self) {
        let _ = self.speculation.take_round();
    }

    fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }
}

fn node(name: String, kind: &str, devices: u16, rack: usize, pod: Option<PodPosition>) -> NodeDraft {
    NodeDraft {
        address: name.clone(),
        name: Name::new(&name).unwrap(),
        region: Name::literal("eu"),
        cluster: Name::literal("c1"),
        block: Name::new(&format!("b{}", rack / 8)).unwrap(),
        rack: Name::new(&format!("r{rack}")).unwrap(),
        accelerators: Some(Accelerators { kind: Name::new(kind).unwrap(), count: devices }),
        cpu_milli: 64_000,
        memory_bytes: 512 * GIB,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod,
        scratch_bytes: 0,
    }
}
