//! Builders, and the checks that hold after every round.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{BootstrapConfig, Command, Speculation, handle};
use muster_journal::{
    Decision, Estimate, FORMAT_MAX, Outcome, RequestKey, Round, decode_round, encode_round,
};
use muster_state::{NodeStatus, Phase, State};
use muster_types::policy::{PolicyDraft, TenantRights, UNLISTED_TENANT};
use muster_types::{
    Accelerators, ClusterId, DependencyRule, HolderId, JobDraft, JobSpec, Leadership, LogTime, Name,
    NodeDraft, NodeId, NodeSpec, Parameters, ReplicaId, RequestId, TaskGroup, WorkerRequest,
};

pub const GIB: u64 = 1 << 30;

/// A cluster that begins in the lowest format.
pub const BOOTSTRAP: BootstrapConfig = BootstrapConfig::new(ClusterId(0xc1), Parameters::DEFAULT);

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn leadership(term: u64, replica: u64) -> Leadership {
    Leadership { term, replica: ReplicaId(replica) }
}

pub fn request(n: u128) -> RequestId {
    RequestId(n)
}

pub fn accelerators(kind: &str, count: u16) -> Accelerators {
    Accelerators { kind: name(kind), count }
}

pub fn node_draft(node: &str, region: &str, cluster: &str, has: Option<Accelerators>) -> NodeDraft {
    NodeDraft {
        name: name(node),
        region: name(region),
        cluster: name(cluster),
        block: name("b1"),
        rack: name("r1"),
        address: node.to_string(),
        accelerators: has,
        cpu_milli: 64_000,
        memory_bytes: 512 * GIB,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    }
}

pub fn node_spec(node: &str, region: &str, cluster: &str, has: Option<Accelerators>) -> NodeSpec {
    node_draft(node, region, cluster, has).check().expect("a node")
}

pub fn group(group: &str, workers: u32, wants: Option<Accelerators>) -> TaskGroup {
    let request = WorkerRequest {
        accelerators: wants.map(Into::into),
        cpu_milli: 1_000,
        memory_bytes: GIB,
        exclusive: false,
        scratch_bytes: 0,
    };
    TaskGroup::new(name(group), workers, vec!["train".into()], request)
}

pub fn job_draft(job: &str, groups: Vec<TaskGroup>) -> JobDraft {
    JobDraft { failure_retries_max: 1, ..JobDraft::new(name(job), name("research"), groups) }
}

pub fn job(job: &str, workers: u32, wants: Option<Accelerators>) -> JobSpec {
    job_draft(job, vec![group("main", workers, wants)]).check().expect("a job")
}

/// A submission with estimates of nothing.
pub fn submitted(request: RequestKey, specs: Vec<JobSpec>) -> Decision {
    let estimates = vec![Estimate::default(); specs.len()];
    let specs = specs.into_iter().map(Into::into).collect();
    Decision::JobsSubmitted { request, by: muster_types::Requester::default(), specs, estimates }
}

pub fn holder(n: u128) -> HolderId {
    HolderId(n)
}

/// A founded cluster under its first leader, and a replica that has applied the bootstrap. Everybody has every right.
pub fn founded() -> (Speculation, State) {
    let (mut speculation, mut replica) = founded_as(BOOTSTRAP);
    let policy = with_all_rights(PolicyDraft::default()).check().expect("a policy");
    let command = Command::SetPolicy {
        request: request(999),
        by: muster_types::Requester::default(),
        policy: Box::new(policy),
        expected_version: None,
    };
    handle(&mut speculation, &command).expect("the first policy is taken");
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

/// The same with nothing but what its bootstrap brings.
pub fn founded_as(bootstrap: BootstrapConfig) -> (Speculation, State) {
    let mut speculation =
        Speculation::begin(State::default(), leadership(1, 1), LogTime(1_000_000), bootstrap);
    let mut replica = State::default();
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

/// Gives every right to the tenants that a policy does not name and to those that it puts on the first level, unless
/// it says what theirs are.
pub fn with_all_rights(mut policy: PolicyDraft) -> PolicyDraft {
    policy.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default();
    for tenant in policy.tenants.values_mut().filter(|tenant| tenant.parent.is_none()) {
        if tenant.rights == TenantRights::default() {
            tenant.rights = TenantRights::ALL;
        }
    }
    policy
}

/// A round as another replica sees it: through its bytes.
pub fn carried(round: &Round) -> Round {
    let bytes = encode_round(round);
    let back = decode_round(&bytes, FORMAT_MAX).expect("what was encoded decodes");
    assert_eq!(back, *round);
    back
}

/// Takes the round made so far and applies it to a replica, which must accept all of it and then be
/// what the leader speculated.
pub fn commit(speculation: &mut Speculation, replica: &mut State) -> Option<Round> {
    let encoded = speculation.clone().take_encoded();
    let round = speculation.take_round()?;
    if let [only] = encoded.as_slice() {
        assert_eq!((&only.round, &only.bytes), (&round, &encode_round(&round)));
    }
    for applied in replica.apply_round(&carried(&round)) {
        assert_eq!(applied.rejection, None, "an honest leader's record was refused");
    }
    assert_eq!(replica.rows_digest(), speculation.state().rows_digest(), "speculation came true");
    assert_eq!(replica.log_index(), speculation.last_index());
    check(replica);
    Some(round)
}

/// Everything that must hold at every position of the log. `State::verify` and the part below are
/// two ways to the same end, on purpose.
pub fn check(state: &State) {
    if let Err(broken) = state.verify() {
        panic!("at {}: {}", state.log_index(), broken.0);
    }
    // Thousandths of every device that are leased.
    let mut leased: BTreeMap<(NodeId, u16), u64> = BTreeMap::new();
    for (id, row) in state.jobs().iter() {
        if let Some(previous) = &row.previous {
            assert!(previous.ranks.iter().all(|r| r.is_over()), "{id} has two live placements");
        }
        let spec = state.spec(*id).expect("a job has a spec");
        if row.released && !matches!(row.phase, Phase::Finished(_)) {
            for dependency in &spec.dependencies {
                let is_of_job = !dependency.is_of_array() && !dependency.is_of_members();
                let Some(other) = state.job(dependency.job).filter(|_| is_of_job) else { continue };
                let Phase::Finished(outcome) = &other.phase else {
                    panic!("{id} goes on before {}", dependency.job)
                };
                let is_met = dependency.rule == DependencyRule::Finished || *outcome == Outcome::Succeeded;
                assert!(is_met, "{id} goes on although {} did not succeed", dependency.job);
            }
        }
        let Some(placement) = &row.placement else { continue };
        // One that waits again may have been given other regions since.
        let (regions, is_over) = (&spec.regions, placement.live == 0);
        let is_there = is_over || regions.is_empty() || regions.contains(&placement.region);
        assert!(is_there, "{id} is out of its regions");
        let workers = placement.slots.iter().zip(&placement.ranks).enumerate();
        let workers =
            workers.filter(|(_, (_, state))| !state.is_over()).map(|(rank, (slot, _))| (rank, slot));
        let spares = state.spares(*id).iter().map(|slot| (0, slot));
        for (rank, slot) in workers.chain(spares) {
            let node = state.node(slot.node).expect("a leased node exists");
            assert_eq!(node.status, NodeStatus::Up, "{id} holds devices of a lost node");
            assert_eq!(node.incarnation, slot.incarnation);
            assert_eq!((&node.spec.region, &node.spec.cluster), (&placement.region, &placement.cluster));
            let (group, _) = spec.group_of(rank as u32, placement.slots.len()).expect("a rank has a group");
            let each = group.request.device_milli() / u64::from(slot.devices.count().max(1));
            for device in slot.devices.iter() {
                let sum = leased.entry((slot.node, device)).or_default();
                *sum += each;
                assert!(*sum <= 1_000, "{id}: device {device} of {} is leased beyond what it is", slot.node);
            }
        }
    }
    for (id, node) in state.nodes().iter() {
        let held: u64 = leased.range((*id, 0)..=(*id, u16::MAX)).map(|(_, milli)| milli).sum();
        let all = u64::from(node.spec.device_count()) * 1_000;
        assert_eq!(held + node.free.device_milli(), all, "capacity of {id}");
    }
    check_quotas(state);
}

/// No tenant came to use more than its quotas allow, counted from the rows alone. Those that did before
/// the policy was set may go on.
fn check_quotas(state: &State) {
    let policy = &state.policy().policy;
    let version = state.policy().version;
    let mut used: BTreeMap<(Name, Name), (u64, bool)> = BTreeMap::new();
    for (id, row) in state.jobs().iter() {
        let Some((_, charge)) = row.charge() else { continue };
        let since =
            row.promise.as_ref().map(|p| p.since).or(row.placement.as_ref().map(|p| p.token.log_index));
        let tenant = &state.spec(*id).expect("a job has a spec").tenant;
        for above in policy.ancestry(tenant) {
            for (kind, milli) in &charge.devices_milli {
                let (sum, is_new) = used.entry((above.clone(), kind.clone())).or_default();
                *sum += milli;
                *is_new |= since.is_some_and(|since| since > version);
            }
        }
    }
    for ((tenant, kind), (used, is_new)) in used {
        let Some(rules) = policy.tenants.get(&tenant) else { continue };
        for quota in rules.quotas.iter().filter(|quota| quota.kind == kind && quota.region.is_none()) {
            let limit = quota.borrowing_limit_milli.map(|more| quota.nominal_milli + more);
            let within = limit.is_none_or(|limit| used <= limit);
            assert!(within || !is_new, "{tenant} uses {used} of {limit:?} thousandths of {kind}");
        }
    }
}

/// The rows alone, as text: what a refused record must not change.
pub fn rows(state: &State) -> (u64, u64, usize, usize, String) {
    let requests: Vec<_> =
        state.requests_by_time().map(|(at, id)| (at, id, state.request(id).cloned())).collect();
    (
        state.jobs().digest(),
        state.nodes().digest(),
        state.pending_count(),
        state.active_count(),
        format!("{:?} {requests:?}", state.cluster()),
    )
}
