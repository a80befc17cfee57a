//! A state that is led by hand.

use std::collections::BTreeMap;

use muster_journal::{Decision, Outcome, RankUpdate, RequestKey, StopCause, WorkerSlot};
use muster_policy::{Line, Refresh, estimates};
use muster_state::{Phase, State};
use muster_types::policy::{PolicyDraft, TenantRights, UNLISTED_TENANT};
use muster_types::{
    Accelerators, ClusterId, DeviceSet, ExitStatus, FencingToken, HolderId, JobDraft, JobId, JobSpec,
    Leadership, LogTime, Name, NodeDraft, NodeId, Parameters, PriorityTier, ReplicaId, RequestId, Requester,
    TaskGroup, WorkerRequest,
};

pub const START_MS: u64 = 1_790_000_000_000;

pub struct World {
    pub state: State,
    pub now: LogTime,
    pub refresh: Refresh,
    leadership: Leadership,
    requests: u128,
    /// Nodes that nothing holds, one job each.
    free: Vec<NodeId>,
}

impl World {
    /// A fleet under a policy, in which every tenant has every right.
    pub fn new(nodes: u32, mut policy: PolicyDraft) -> World {
        policy.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default();
        for tenant in policy.tenants.values_mut() {
            tenant.rights = TenantRights::ALL;
        }
        let mut world = World {
            state: State::default(),
            now: LogTime(START_MS),
            refresh: Refresh::default(),
            leadership: Leadership { term: 1, replica: ReplicaId(1) },
            requests: 0,
            free: (0..nodes).rev().map(NodeId).collect(),
        };
        world.push(Decision::LeaderStarted);
        world.push(Decision::ClusterCreated {
            cluster: ClusterId(1),
            generation: 1,
            parameters: Parameters::DEFAULT,
        });
        for n in 0..nodes {
            let name = Name::new(&format!("n{n}")).unwrap();
            let place = || Name::literal("here");
            let draft = NodeDraft {
                name,
                region: place(),
                cluster: place(),
                block: place(),
                rack: place(),
                address: "a:1".to_string(),
                accelerators: Some(Accelerators { kind: Name::literal("h100"), count: 64 }),
                cpu_milli: 64_000,
                memory_bytes: 1 << 40,
                labels: BTreeMap::new(),
                taints: Default::default(),
                pod: None,
                scratch_bytes: 0,
            };
            world.push(Decision::NodeRegistered { spec: draft.check().unwrap(), holder: HolderId(1) });
        }
        let request = world.request();
        world.push(Decision::PolicySet {
            request,
            by: muster_types::Requester::default(),
            policy: Box::new(policy.check().unwrap()),
        });
        world
    }

    pub fn push(&mut self, decision: Decision) {
        let index = self.state.log_index().next();
        let applied = self.state.apply(self.leadership, index, self.now, &decision);
        assert_eq!(applied.rejection, None, "{decision:?}");
    }

    pub fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    fn request(&mut self) -> RequestKey {
        self.requests += 1;
        RequestKey { id: RequestId(self.requests), fingerprint: 1 }
    }

    pub fn submit(&mut self, specs: Vec<JobSpec>) -> Vec<JobId> {
        let estimates = estimates(&self.state, &specs, self.now);
        let request = self.request();
        let index = self.state.log_index().next();
        let count = specs.len();
        let specs = specs.into_iter().map(Into::into).collect();
        self.push(Decision::JobsSubmitted {
            request,
            by: muster_types::Requester::default(),
            specs,
            estimates,
        });
        let jobs: Vec<JobId> = (0..count).map(|n| JobId::derive(index, n)).collect();
        for job in &jobs {
            self.refresh.note(&self.state, *job);
        }
        jobs
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Places a job on a separate node; it runs at once.
    pub fn start(&mut self, job: JobId) {
        let node = self.free.pop().expect("the test has a node for it");
        let devices = self.state.spec(job).unwrap().device_count() as u16;
        let slot = WorkerSlot { node, incarnation: 1, devices: DeviceSet(u64::MAX >> (64 - devices)) };
        self.push(Decision::GangPlaced { job, workers: vec![slot] });
        self.report(job, RankUpdate::Running);
    }

    fn token(&self, job: JobId) -> FencingToken {
        self.state.job(job).unwrap().placement.as_ref().unwrap().token
    }

    fn report(&mut self, job: JobId, update: RankUpdate) {
        let (node, token) = (self.node(job), self.token(job));
        self.push(Decision::WorkersReported { node, incarnation: 1, job, token, updates: vec![(0, update)] });
        self.refresh.note(&self.state, job);
    }

    fn node(&self, job: JobId) -> NodeId {
        self.state.job(job).unwrap().placement.as_ref().unwrap().slots[0].node
    }

    pub fn end(&mut self, job: JobId) {
        self.free.push(self.node(job));
        self.report(job, RankUpdate::Exited(ExitStatus::Code(0)));
        self.push(Decision::JobFinished { job, outcome: Outcome::Succeeded });
        self.refresh.note(&self.state, job);
    }

    /// Stops a running job; it waits again.
    pub fn requeue(&mut self, job: JobId) {
        let node = self.node(job);
        let token = self.token(job);
        self.push(Decision::GangStopRequested { job, token, cause: StopCause::Evicted { node } });
        self.free.push(node);
        self.report(job, RankUpdate::Exited(ExitStatus::Signal(15)));
        self.push(Decision::JobRequeued { job, failed: false });
        self.refresh.note(&self.state, job);
    }

    pub fn cancel(&mut self, job: JobId) {
        let request = self.request();
        self.push(Decision::JobCancelRequested { request, by: Requester::default(), jobs: vec![job] });
        if self.state.job(job).unwrap().phase == Phase::Pending {
            self.push(Decision::JobFinished { job, outcome: Outcome::Cancelled });
            self.refresh.note(&self.state, job);
        }
    }

    /// Gives pending groups the turns that are due; how many changed.
    pub fn renew(&mut self) -> usize {
        let groups = self.refresh.due(&self.state, self.now);
        let count = groups.len();
        if count > 0 {
            self.push(Decision::TurnsChanged { bursts: groups });
        }
        count
    }

    pub fn running(&self) -> Vec<JobId> {
        self.state.active().collect()
    }

    /// Who would go next, one after the other, if each could be placed.
    pub fn order(&self) -> Vec<JobId> {
        let mut world =
            World { state: self.state.clone(), refresh: Refresh::default(), free: Vec::new(), ..*self };
        let mut line = Line::form(&world.state, world.now);
        let mut order = Vec::new();
        while let Some(candidate) = line.take_next(&world.state) {
            let job = candidate.turn.job;
            order.push(job);
            // Out of the queue, without taking capacity from anyone.
            let request = RequestKey { id: RequestId(u128::MAX - order.len() as u128), fingerprint: 1 };
            world.push(Decision::JobCancelRequested { request, by: Requester::default(), jobs: vec![job] });
            world.push(Decision::JobFinished { job, outcome: Outcome::Cancelled });
            line.placed(&world.state, &candidate);
        }
        order
    }
}

pub fn spec(tenant: &str, name: &str, devices: u16) -> JobDraft {
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: Name::literal("h100"), count: devices }.into()),
        cpu_milli: 1_000,
        memory_bytes: 1 << 30,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup::new(Name::literal("main"), 1, vec!["run".to_string()], request);
    let draft = JobDraft::new(Name::new(name).unwrap(), Name::new(tenant).unwrap(), vec![group]);
    JobDraft { tier: PriorityTier::Standard, ..draft }
}
