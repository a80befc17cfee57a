//! A job for tests.

use muster_types::{Accelerators, JobDraft, Name, PriorityTier, TaskGroup, TopologyRule, WorkerRequest};
use std::collections::{BTreeMap, BTreeSet};

fn name(text: &str) -> Name {
    Name::new(text).expect("it is a name")
}

/// A job with one worker.
pub(crate) fn job(text: &str) -> JobDraft {
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: name("h100"), count: 1 }.into()),
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup {
        name: name("main"),
        workers: 1,
        workers_min: 1,
        command: vec!["true".to_owned()],
        environment: BTreeMap::new(),
        request,
        slice: None,
        container: None,
    };
    JobDraft {
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
    }
}
