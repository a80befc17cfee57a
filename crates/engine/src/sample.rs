//! Jobs and hosts for tests.

use muster_types::{
    Accelerators, JobDraft, JobSpec, Name, NodeDraft, NodeSpec, PriorityTier, TaskGroup, TopologyRule,
    WorkerRequest,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("it is a name")
}

/// A job with this number of workers, each with one accelerator.
pub(crate) fn job(text: &str, workers: u32) -> JobSpec {
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: name("h100"), count: 1 }.into()),
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup {
        name: name("main"),
        workers,
        workers_min: workers,
        command: vec!["true".to_owned()],
        environment: BTreeMap::new(),
        request,
        slice: None,
        container: None,
    };
    let draft = JobDraft {
        name: name(text),
        tenant: name("lab"),
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
    draft.check().expect("it is a job")
}

/// A host with eight accelerators.
pub(crate) fn host(text: &str) -> NodeSpec {
    let draft = NodeDraft {
        name: name(text),
        region: name("eu"),
        cluster: name("eu-1"),
        block: name("b"),
        rack: name("k"),
        address: "10.0.0.1".to_owned(),
        accelerators: Some(Accelerators { kind: name("h100"), count: 8 }),
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().expect("it is a host")
}
