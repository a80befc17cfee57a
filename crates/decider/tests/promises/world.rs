//! A generated world: the fleet, the policy, what is submitted and what an operator does.

use std::collections::{BTreeMap, BTreeSet};

use muster_types::policy::{PolicyDraft, PolicyPart, Quota, TenantPolicy, TenantRights, UNLISTED_TENANT};
use muster_types::tpu::{PodPosition, SliceRequest, SliceShape};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, BookingClearing, CapacityRules, Control,
    DeviceAmount, FieldChange, JobDraft, JobSpec, LogTime, Name, NodeDraft, NodeSpec, PriorityTier,
    TaskGroup, WorkerRequest,
};

pub const SECOND: u64 = 1_000;
pub const MINUTE: u64 = 60 * SECOND;
pub const HOUR: u64 = 60 * MINUTE;
const GIB: u64 = 1 << 30;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// What its owner asks of a job while it waits or runs.
#[derive(Clone, Debug)]
pub enum JobOrder {
    Control(Control),
    Change(FieldChange),
}

/// A job as its tenant submits it, and what the scheduler does not know of it.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Milliseconds after the beginning of the world.
    pub at_ms: u64,
    pub name: String,
    pub tenant: String,
    /// Who submits it; empty for who is not known.
    pub user: &'static str,
    pub tier: PriorityTier,
    pub preemptible: bool,
    pub kind: &'static str,
    pub workers: u32,
    pub workers_min: u32,
    /// Devices of each worker.
    pub devices: u16,
    /// One slice of this shape, one worker to a host.
    pub slice: Option<&'static str>,
    pub cpu_milli: u64,
    /// How long it runs, which the scheduler is not told.
    pub run_ms: u64,
    /// What its owner says of that.
    pub expected_ms: Option<u64>,
    pub limit_ms: Option<u64>,
    pub deadline_ms: Option<u64>,
    pub grace_ms: u64,
    pub checkpointed: bool,
    /// How its nodes may have been bought.
    pub capacity: Option<CapacityRules>,
    /// When its owner cancels it.
    pub cancel_at_ms: Option<u64>,
    /// What else its owner asks of it, and when.
    pub orders: Vec<(u64, JobOrder)>,
    /// 1 for a single job. The first member of an array has the number of all of them and is submitted as the array; the others
    /// follow it in the world, with 0.
    pub members: u32,
    /// How many members of the array may be unfinished at a time.
    pub throttle: Option<u32>,
}

impl JobPlan {
    /// One worker, one device, an hour, told truly.
    pub fn new(at_ms: u64, name: &str, tenant: &str, kind: &'static str) -> JobPlan {
        JobPlan {
            at_ms,
            name: name.into(),
            tenant: tenant.into(),
            user: "",
            tier: PriorityTier::Standard,
            preemptible: true,
            kind,
            workers: 1,
            workers_min: 1,
            devices: 1,
            slice: None,
            cpu_milli: 10,
            run_ms: HOUR,
            expected_ms: None,
            limit_ms: None,
            deadline_ms: None,
            grace_ms: 20 * SECOND,
            checkpointed: false,
            capacity: None,
            cancel_at_ms: None,
            orders: Vec::new(),
            members: 1,
            throttle: None,
        }
    }

    /// A gang of `workers` workers with `devices` devices each.
    pub fn gang(mut self, workers: u32, devices: u16) -> JobPlan {
        (self.workers, self.workers_min, self.devices) = (workers, workers, devices);
        self
    }

    /// It runs for `run_ms`; its owner states that when `told`.
    pub fn runs(mut self, run_ms: u64, told: bool) -> JobPlan {
        self.run_ms = run_ms;
        self.expected_ms = told.then_some(run_ms);
        self
    }

    /// Its user submits it.
    pub fn by(mut self, user: &'static str) -> JobPlan {
        self.user = user;
        self
    }

    pub fn tier(mut self, tier: PriorityTier) -> JobPlan {
        self.tier = tier;
        self
    }

    /// Devices of the whole gang.
    pub fn device_count(&self) -> u64 {
        u64::from(self.workers) * u64::from(self.devices)
    }

    pub fn spec(&self, epoch: LogTime) -> JobSpec {
        let wants = AcceleratorRequest {
            choices: vec![AcceleratorChoice { kind: name(self.kind), throughput_milli: 1_000 }],
            amount: DeviceAmount::Whole(self.devices),
        };
        let request = WorkerRequest {
            accelerators: Some(wants),
            cpu_milli: self.cpu_milli,
            memory_bytes: GIB,
            exclusive: false,
            scratch_bytes: 0,
        };
        let mut group = TaskGroup::new(name("main"), self.workers, vec!["train".into()], request);
        group.workers_min = self.workers_min;
        group.slice = self
            .slice
            .map(|text| SliceRequest { shape: SliceShape::parse(text).expect("a shape"), count: 1 });
        let mut draft = JobDraft::new(name(&self.name), name(&self.tenant), vec![group]);
        draft.tier = self.tier;
        draft.preemptible = self.preemptible;
        draft.expected_run_ms = self.expected_ms;
        draft.run_time_limit_ms = self.limit_ms;
        draft.deadline = self.deadline_ms.map(|ms| epoch.plus_ms(ms));
        draft.stop_grace_ms = self.grace_ms;
        draft.capacity = self.capacity.map(Box::new);
        draft.checkpoint_directory = self.checkpointed.then(|| "/checkpoints".into());
        draft.check().expect("a generated job keeps to the rules")
    }
}

/// What an operator does, and what happens to hosts.
#[derive(Clone, Debug)]
pub enum Act {
    Drain {
        node: usize,
        deadline_ms: Option<u64>,
    },
    EndDrain {
        node: usize,
    },
    Lose {
        node: usize,
    },
    Return {
        node: usize,
    },
    /// Somebody asks something of a job, whatever has become of it by then.
    Control {
        job: usize,
        control: Control,
        is_operator: bool,
    },
    /// Somebody changes a job.
    Modify {
        job: usize,
        change: FieldChange,
    },
    /// An operator sets hosts aside for a tenant, from now on.
    Book {
        booking: &'static str,
        tenant: &'static str,
        hosts: u32,
        length_ms: u64,
        clearing: BookingClearing,
    },
    /// An operator gives a booking up.
    Unbook {
        booking: &'static str,
    },
    /// An operator grants quota for some time.
    Grant {
        tenant: &'static str,
        devices: u64,
        length_ms: u64,
    },
    /// A tenant asks for quota for some time.
    AskQuota {
        tenant: &'static str,
        devices: u64,
        length_ms: u64,
    },
    /// An operator answers the oldest request for quota that nobody has answered.
    AnswerQuota {
        approved: bool,
    },
    /// An operator keeps new work away from a host, or lets it back.
    Cordon {
        node: usize,
        cordoned: bool,
    },
    /// An operator sets a taint that no job tolerates, or takes it back.
    Taint {
        node: usize,
        is_set: bool,
    },
    /// An operator holds the region, or the jobs of a tenant; without a length until that is released.
    HoldFleet {
        tenant: Option<&'static str>,
        length_ms: Option<u64>,
        stops_work: bool,
    },
    /// An operator releases it.
    ReleaseFleet {
        tenant: Option<&'static str>,
    },
    /// An operator sets a host or the region aside for maintenance, now and again a day later.
    Maintain {
        booking: &'static str,
        node: Option<usize>,
        length_ms: u64,
    },
    /// An operator changes the throttle of the oldest array that has members which are not created.
    Throttle {
        throttle: u32,
    },
    /// Another policy, whatever runs, waits or has reserved under the one before.
    SetPolicy {
        policy: Box<PolicyDraft>,
    },
    /// One part of the policy becomes as this one has it; the others stay as they are in force.
    UpdatePolicy {
        given: Box<PolicyDraft>,
        part: PolicyPart,
    },
    /// Another leader, who knows what is in the log and nothing else.
    ChangeLeader,
    /// The leader's clock is found to be so much later than it seemed.
    Jump {
        ms: u64,
    },
}

#[derive(Clone, Debug)]
pub struct World {
    pub seed: u64,
    pub hosts: Vec<NodeSpec>,
    pub policy: PolicyDraft,
    /// In the order of their times.
    pub jobs: Vec<JobPlan>,
    pub acts: Vec<(u64, Act)>,
    /// After this nothing is looked at any more.
    pub horizon_ms: u64,
    /// Time between two looks of the leader at the clock.
    pub tick_ms: u64,
    /// Planning work in one round, in visits.
    pub visits: u64,
}

impl World {
    pub fn new(seed: u64, hosts: Vec<NodeSpec>, policy: PolicyDraft) -> World {
        World {
            seed,
            hosts,
            policy,
            jobs: Vec::new(),
            acts: Vec::new(),
            horizon_ms: 24 * HOUR,
            tick_ms: 15 * SECOND,
            visits: 200_000,
        }
    }

    pub fn submit(&mut self, job: JobPlan) {
        self.jobs.push(job);
    }

    /// Jobs in the order of their times, those of one time as they were added.
    pub fn sorted(mut self) -> World {
        self.jobs.sort_by_key(|job| job.at_ms);
        self
    }
}

/// Hosts of one type, eight to a rack.
pub fn hosts(kind: &str, count: usize, devices: u16) -> Vec<NodeSpec> {
    (0..count).map(|n| host(kind, &format!("{kind}-{n}"), devices, &format!("r{}", n / 8), None)).collect()
}

/// The corner of a grid pod of a TPU generation: hosts of 2x2 chips, `columns` by `rows` chips together.
pub fn grid(kind: &str, pod: &str, columns: u8, rows: u8) -> Vec<NodeSpec> {
    let mut found = Vec::new();
    for x in (0..columns).step_by(2) {
        for y in (0..rows).step_by(2) {
            let at = PodPosition { pod: name(pod), cube: 0, at: [x, y, 0] };
            found.push(host(kind, &format!("{pod}-{x}-{y}"), 4, pod, Some(at)));
        }
    }
    found
}

fn host(kind: &str, node: &str, devices: u16, rack: &str, pod: Option<PodPosition>) -> NodeSpec {
    let draft = NodeDraft {
        name: name(node),
        region: name("eu"),
        cluster: name("c1"),
        block: name("b1"),
        rack: name(rack),
        address: node.to_string(),
        accelerators: Some(Accelerators { kind: name(kind), count: devices }),
        // Devices are what is short.
        cpu_milli: 256_000,
        memory_bytes: 2_048 * GIB,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod,
        scratch_bytes: 0,
    };
    draft.check().expect("a node")
}

/// A tenant with `nominal` devices of a type; more with [`quota`].
pub fn tenant(parent: Option<&str>, kind: &str, nominal: u64) -> TenantPolicy {
    TenantPolicy { parent: parent.map(name), quotas: vec![quota(kind, nominal)], ..TenantPolicy::default() }
}

/// Gives every right to everybody: for worlds that are about something else.
pub fn give_all_rights(policy: &mut PolicyDraft) {
    policy.tenants.entry(name(UNLISTED_TENANT)).or_default();
    for tenant in policy.tenants.values_mut() {
        tenant.rights = TenantRights::ALL;
    }
}

pub fn quota(kind: &str, nominal: u64) -> Quota {
    Quota {
        kind: name(kind),
        region: None,
        nominal_milli: nominal * 1_000,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    }
}
