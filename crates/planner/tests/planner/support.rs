//! Fleets made of decisions, as a log makes them.

use std::collections::{BTreeMap, BTreeSet};

use muster_journal::{Decision, Estimate, RequestKey, WorkerSlot};
use muster_planner::{Budget, Holds, Plan, Terms, Verdict, plan};
use muster_state::{GuardError, State};
use muster_types::policy::{PolicyDraft, TenantRights, UNLISTED_TENANT};
use muster_types::{
    AcceleratorRequest, ClusterId, HolderId, JobDraft, JobId, JobSpec, Leadership, LogIndex, LogTime, Name,
    NodeDraft, NodeId, Parameters, PriorityTier, QueueKey, ReplicaId, RequestId, TaskGroup, TopologyRule,
    WorkerRequest,
};

pub const GIB: u64 = 1 << 30;

const LEADER: Leadership = Leadership { term: 1, replica: ReplicaId(1) };

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_else(|| panic!("{text:?} is no name"))
}

/// A fleet, as the records of one leader make it.
#[derive(Clone)]
pub struct Fleet {
    pub state: State,
    pub time: LogTime,
    requests: u128,
}

impl Fleet {
    pub fn new() -> Fleet {
        let mut fleet = Fleet { state: State::default(), time: LogTime(0), requests: 0 };
        fleet.apply(Decision::LeaderStarted);
        let cluster = ClusterId(1);
        fleet.apply(Decision::ClusterCreated { cluster, generation: 1, parameters: Parameters::DEFAULT });
        fleet.set_policy(PolicyDraft::default());
        fleet
    }

    pub fn try_apply(&mut self, decision: Decision) -> Result<LogIndex, GuardError> {
        let index = self.state.log_index().next();
        let applied = self.state.apply(LEADER, index, self.time, &decision);
        match applied.rejection {
            None => Ok(index),
            Some(error) => Err(error),
        }
    }

    pub fn apply(&mut self, decision: Decision) -> LogIndex {
        let name = decision.name();
        self.try_apply(decision).unwrap_or_else(|error| panic!("{name} was refused: {error:?}"))
    }

    fn request(&mut self) -> RequestKey {
        self.requests += 1;
        RequestKey { id: RequestId(self.requests), fingerprint: 0 }
    }

    pub fn add_node(&mut self, draft: NodeDraft) -> NodeId {
        let name = draft.name.clone();
        let spec = draft.check().unwrap_or_else(|found| panic!("{name}: {found:?}"));
        self.apply(Decision::NodeRegistered { spec, holder: HolderId(1) });
        self.state.node_named(&name).expect("it was registered")
    }

    /// Sets a policy, under which tenants that it does not name have every right.
    pub fn set_policy(&mut self, mut draft: PolicyDraft) {
        draft.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default().rights = TenantRights::ALL;
        let policy = Box::new(draft.check().unwrap_or_else(|found| panic!("{found:?}")));
        let request = self.request();
        self.apply(Decision::PolicySet { request, by: muster_types::Requester::default(), policy });
    }

    pub fn cordon(&mut self, node: NodeId, cordoned: bool) {
        let request = self.request();
        self.apply(Decision::NodeCordonSet {
            request,
            by: muster_types::Requester::default(),
            node,
            cordoned,
            reason: None,
        });
    }

    pub fn lose(&mut self, node: NodeId) {
        let incarnation = self.state.node(node).expect("a node").incarnation;
        let cause = muster_journal::NodeLostCause::LeaseExpired;
        self.apply(Decision::NodeLost { node, incarnation, cause });
    }

    pub fn submit(&mut self, spec: &JobSpec, run_ms: u64) -> JobId {
        let request = self.request();
        let estimates = vec![Estimate { run_ms, run_high_ms: run_ms, turn: QueueKey::FIRST, burst: None }];
        let index = self.apply(Decision::JobsSubmitted {
            request,
            by: muster_types::Requester::default(),
            specs: vec![spec.clone().into()],
            estimates,
        });
        JobId::derive(index, 0)
    }

    /// Has the guard look at workers for a job, and places them.
    pub fn start(
        &mut self,
        spec: &JobSpec,
        run_ms: u64,
        workers: Vec<WorkerSlot>,
    ) -> Result<JobId, GuardError> {
        let job = self.submit(spec, run_ms);
        self.try_apply(Decision::GangPlaced { job, workers })?;
        Ok(job)
    }

    /// Plans with everything allowed.
    pub fn plan(&self, spec: &JobSpec) -> Option<Plan> {
        let holds = Holds::new();
        match plan(&self.state, spec, &self.terms(&holds, spec), &mut Budget::new(10_000_000)) {
            Verdict::Fits(plan) => Some(plan),
            Verdict::Waits => None,
            Verdict::OutOfBudget => panic!("the budget is more than any test needs"),
        }
    }

    pub fn terms<'a>(&'a self, holds: &'a Holds, spec: &JobSpec) -> Terms<'a> {
        Terms {
            now: self.time,
            run_ms: spec.expected_run_ms.unwrap_or(3_600_000),
            room_milli: &|_| u64::MAX,
            lanes: &[],
            holds,
            closures: &[],
            closures_are_indexed: false,
            affinity: &[],
            openings: &[],
            image: None,
            policy: &self.state.policy().policy,
            own_work: &|_, _| (0, 0),
            interruptions: &|_| muster_state::Interruptions::default(),
            elastic: spec.is_elastic(),
            valuation: None,
        }
    }
}

pub fn node_draft(node: &str) -> NodeDraft {
    NodeDraft {
        name: name(node),
        region: name("eu"),
        cluster: name("c1"),
        block: name("b1"),
        rack: name("r1"),
        address: node.to_string(),
        accelerators: None,
        cpu_milli: 64_000,
        memory_bytes: 512 * GIB,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    }
}

pub fn group(text: &str, workers: u32, wants: Option<AcceleratorRequest>) -> TaskGroup {
    TaskGroup {
        name: name(text),
        workers,
        workers_min: workers,
        command: vec!["train".into()],
        environment: BTreeMap::new(),
        request: WorkerRequest {
            accelerators: wants,
            cpu_milli: 1_000,
            memory_bytes: GIB,
            exclusive: false,
            scratch_bytes: 0,
        },
        slice: None,
        container: None,
    }
}

pub fn job_draft(groups: Vec<TaskGroup>) -> JobDraft {
    JobDraft {
        name: name("job"),
        tenant: name("research"),
        tier: PriorityTier::Standard,
        groups,
        regions: Vec::new(),
        run_time_limit_ms: None,
        stop_grace_ms: 30_000,
        failure_retries_max: 1,
        checkpoint_directory: None,
        working_directory: None,
        array: None,
        topology: TopologyRule::default(),
        node_selector: BTreeMap::new(),
        tolerations: BTreeSet::new(),
        preemptible: false,
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
    }
}
