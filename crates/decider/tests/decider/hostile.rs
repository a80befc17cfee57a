//! Records no honest leader makes, under the current leadership: the guard takes them or refuses
//! them, the same on every replica, and whatever it takes keeps every invariant. No record panics.

use muster_journal::{
    Decision, Estimate, FORMAT_MAX, NodeLostCause, Outcome, RankUpdate, RequestKey, Round, StopCause,
    SubmittedPart, WorkerSlot,
};
use muster_state::{CapacityKey, NodeRow, NodeStatus, Phase, State};
use muster_types::health::{
    Condition, Drain, DrainCause, Finding, HealthAction, HealthPolicy, NodeHealth, Observation, RepairStep,
};
use muster_types::policy::{PolicyDraft, PurchaseKind, TenantPolicy, TenantRights};
use muster_types::{
    ArrayId, ArraySpec, CapacityFallback, CapacityRules, ClusterId, Control, Dependency, DependencyRule,
    DependencyScope, DeviceSet, ExitStatus, FailureClass, FencingToken, FieldChange, ForeignLoad, GroupSize,
    IndexRange, JobContract, JobId, JobMetadata, JobSpec, LogIndex, LogTime, Name, NodeId, NodeOverrides,
    NodeRequirements, Parameters, PriorityTier, QueueKey, ReplicaId, Requester, limits,
};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::random::Random;
use crate::support::{
    accelerators, carried, check, group, holder, job_draft, name, node_draft, request, rows, submitted,
};

const SEEDS: u64 = 42;
const STEPS: u64 = 900;
/// Decisions that are tried here.
const VARIANTS: usize = 40;

#[test]
fn whatever_is_accepted_keeps_every_invariant() {
    let mut accepted = [0u64; VARIANTS];
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| run(seed));
        match result {
            Ok(counts) => accepted.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // Every variant must have been accepted, or the invariants were not put to the test.
    assert!(accepted.iter().all(|count| *count >= 3), "{accepted:?}");
}

fn run(seed: u64) -> [u64; VARIANTS] {
    let mut random = Random::new(seed);
    let mut state = State::default();
    let mut follower = State::default();
    let mut accepted = [0u64; VARIANTS];
    for _ in 0..STEPS {
        let decision = decision(&mut random, &state);
        let leads = state.leadership();
        let is_start = matches!(decision, Decision::LeaderStarted);
        let round = Round {
            format: FORMAT_MAX,
            term: leads.map_or(1, |l| l.term + u64::from(is_start)),
            replica: leads.map_or(ReplicaId(1), |l| l.replica),
            first_index: state.log_index().next(),
            basis_index: state.log_index(),
            log_time: state.log_time().plus_ms(random.below(3_000)),
            decisions: vec![decision],
        };
        let before = (rows(&state), state.rejected(), state.log_index());
        let applied = state.apply_round(&round).remove(0);
        follower.apply_round(&carried(&round));
        assert_eq!(state.digest(), follower.digest());
        match applied.rejection {
            None => accepted[variant(&round.decisions[0])] += 1,
            Some(_) if leads.is_none() && !is_start => continue,
            Some(_) => {
                assert_eq!(rows(&state), before.0, "{:?} was refused and changed rows", round.decisions[0]);
                assert_eq!(state.rejected(), before.1 + 1);
                assert_eq!(state.log_index(), before.2.next());
                assert!(applied.effects.is_empty());
            }
        }
        check(&state);
        check_nodes_up(&state);
    }
    let chunks: Vec<_> = state.snapshot().collect();
    assert_eq!(State::restore(&chunks).expect("restores").digest(), state.digest());
    accepted
}

/// What is counted of nodes that may be taken away is what there is of them.
fn check_nodes_up(state: &State) {
    let mut up: BTreeMap<CapacityKey, u32> = BTreeMap::new();
    for (_, row) in state.nodes().iter().filter(|(_, row)| row.status == NodeStatus::Up) {
        if let Some(key) = CapacityKey::of(&row.spec) {
            *up.entry(key).or_default() += 1;
        }
    }
    for key in state.capacity_keys() {
        let counted = state.interruptions(key, state.log_time()).nodes_up;
        assert_eq!(counted, up.remove(key).unwrap_or(0), "{key:?}");
    }
    assert!(up.is_empty(), "{up:?}");
}

fn variant(decision: &Decision) -> usize {
    let names = [
        "cluster_created",
        "leader_started",
        "jobs_submitted",
        "job_cancel_requested",
        "node_registered",
        "node_cordon_set",
        "node_lost",
        "workers_reported",
        "gang_placed",
        "gang_stop_requested",
        "job_requeued",
        "job_finished",
        "history_pruned",
        "digest_recorded",
        "format_raised",
        "cluster_recovered",
        "node_forgotten",
        "job_contracts_set",
        "job_metadata_set",
        "attempt_failed",
        "spares_taken",
        "straggler_noted",
        "node_health_changed",
        "node_drain_set",
        "node_quarantine_set",
        "node_repair_set",
        "health_policy_set",
        "foreign_load_set",
        "policy_set",
        "job_hold_set",
        "job_requeue_requested",
        "job_modified",
        "arrays_submitted",
        "array_members_created",
        "array_released",
        "array_members_failed",
        "arrays_controlled",
        "node_overrides_set",
        "array_throttle_set",
        "fallback_opened",
    ];
    names.iter().position(|n| *n == decision.name()).expect("a known variant")
}

/// Mostly plausible: ids, tokens and devices are taken from the state, then sometimes bent.
fn decision(random: &mut Random, state: &State) -> Decision {
    if state.leadership().is_none() && !random.once_in(4) {
        return Decision::LeaderStarted;
    }
    if state.cluster().is_none() && !random.once_in(4) {
        let mut parameters = Parameters::DEFAULT;
        parameters.request_retention_ms = 60_000;
        return Decision::ClusterCreated { cluster: ClusterId(7), generation: 1, parameters };
    }
    let jobs: Vec<JobId> = state.jobs().iter().map(|(id, _)| *id).collect();
    let active: Vec<JobId> = state.active().collect();
    let job = match random.below(20) {
        0 => JobId(random.next()),
        1..12 if !active.is_empty() => random.pick(&active).unwrap_or_default(),
        _ => random.pick(&jobs).unwrap_or_default(),
    };
    let placement = state.job(job).and_then(|row| row.placement.clone());
    let mut token = placement.as_ref().map_or(FencingToken::default(), |p| p.token);
    if random.once_in(20) {
        token.log_index = LogIndex(random.below(50));
    }
    let mut node = NodeId(random.below(state.nodes().len() as u64 + 1) as u32);
    if let Some(placement) = placement.as_ref().filter(|_| random.once_in(2)) {
        node = placement.slots[random.below(placement.slots.len() as u64) as usize].node;
    }
    let mut incarnation = state.node(node).map_or(1, |row| row.incarnation);
    if random.once_in(20) {
        incarnation = random.next() as u32;
    }
    let key = RequestKey { id: request(u128::from(random.below(400))), fingerprint: random.next() };
    match random.below(100) {
        0 => Decision::LeaderStarted,
        1 => {
            Decision::ClusterCreated { cluster: ClusterId(8), generation: 2, parameters: Parameters::DEFAULT }
        }
        2..8 => {
            let wants = random.once_in(2).then(|| accelerators("h100", 1 + random.below(8) as u16));
            let mut groups = vec![group("main", 1 + random.below(3) as u32, wants)];
            if random.once_in(8) {
                // Both shrink together, where they have more than one worker.
                groups.push(group("rest", 1 + random.below(2) as u32, None));
                groups.iter_mut().for_each(|group| group.workers_min = 1);
            }
            let mut draft = job_draft("job", groups);
            draft.run_time_limit_ms = random.once_in(2).then_some(5_000);
            draft.capacity = random.once_in(8).then(|| Box::new(spot_first()));
            let specs = vec![draft.check().expect("a job"); random.below(3) as usize];
            submitted(key, specs)
        }
        8..10 => Decision::JobCancelRequested { request: key, by: Requester::default(), jobs: vec![job] },
        10..14 => {
            let has = Some(accelerators("h100", 8));
            let mut draft = node_draft(&format!("n{}", random.below(6)), "eu", "c1", has);
            if random.once_in(4) {
                draft.cpu_milli = 1_000 * (1 + random.below(64));
            }
            if random.once_in(2) {
                let purchase = PurchaseKind::ALL[random.below(4) as usize];
                draft.labels.insert(name("purchase"), purchase.as_str().to_owned());
            }
            let spec = draft.check().expect("a node");
            Decision::NodeRegistered { spec, holder: holder(u128::from(random.below(2))) }
        }
        14 => Decision::NodeCordonSet {
            request: key,
            by: muster_types::Requester::default(),
            node,
            cordoned: random.once_in(2),
            reason: random.once_in(3).then(|| "power work".to_owned()),
        },
        15..17 => Decision::NodeLost { node, incarnation, cause: NodeLostCause::Replaced },
        17..25 => {
            let count = placement.as_ref().map_or(1, |p| p.slots.len() as u32);
            let mut updates = Vec::new();
            for rank in 0..count + 1 {
                let there = placement.as_ref().and_then(|p| p.slots.get(rank as usize));
                if there.is_some_and(|slot| slot.node == node) || random.once_in(10) {
                    updates.push((rank, update(random)));
                }
            }
            Decision::WorkersReported { node, incarnation, job, token, updates }
        }
        25..31 => {
            let with: Vec<JobId> =
                jobs.iter().copied().filter(|job| state.contract(*job).is_some()).collect();
            let job = random.pick(&with).filter(|_| random.once_in(2)).unwrap_or(job);
            Decision::GangPlaced { job, workers: workers(random, state, job) }
        }
        31..34 => {
            let with: Vec<JobId> =
                active.iter().copied().filter(|job| !state.spares(*job).is_empty()).collect();
            let job = random.pick(&with).filter(|_| random.once_in(2)).unwrap_or(job);
            let placement = state.job(job).and_then(|row| row.placement.clone());
            let token = placement.as_ref().map_or(token, |p| p.token);
            let cause = match random.below(5) {
                0 => StopCause::Cancelled,
                1 => {
                    let failed = placement.as_ref().and_then(|p| {
                        p.ranks.iter().enumerate().find_map(|(rank, state)| match state {
                            muster_state::RankState::Exited(exit) => Some((rank as u32, exit.clone())),
                            _ => None,
                        })
                    });
                    let (rank, exit) = failed.unwrap_or((random.below(4) as u32, ExitStatus::Signal(9)));
                    StopCause::WorkerFailed { rank, exit }
                }
                2 => {
                    let slot = placement.as_ref().and_then(|p| p.slots.first().copied());
                    StopCause::Evicted { node: slot.map_or(node, |slot| slot.node) }
                }
                3 => StopCause::Fault {
                    class: FailureClass::Preflight,
                    node,
                    detail: "x".repeat(random.below(600) as usize),
                },
                _ => StopCause::RunTimeLimit,
            };
            Decision::GangStopRequested { job, token, cause }
        }
        34..36 => Decision::JobRequeued { job, failed: random.once_in(2) },
        36..38 => {
            let outcome = match random.below(3) {
                0 => Outcome::Succeeded,
                1 => Outcome::Failed { detail: "x".repeat(random.below(1_500) as usize) },
                _ => Outcome::Cancelled,
            };
            Decision::JobFinished { job, outcome }
        }
        38 => {
            let before = LogTime(random.below(state.log_time().0 + 10));
            Decision::HistoryPruned { requests_before: before, jobs_before: before }
        }
        39 => Decision::DigestRecorded { digest: random.next() },
        40 => Decision::FormatRaised {
            by: muster_types::Requester::default(),
            format: random.below(u64::from(FORMAT_MAX) + 1) as u16,
        },
        42 => {
            let mut draft = PolicyDraft::default();
            draft.preemption.backoff_ms = random.below(1_000);
            draft.tenants.insert(
                Name::literal("research"),
                TenantPolicy { rights: TenantRights::ALL, ..Default::default() },
            );
            Decision::PolicySet {
                request: key,
                by: muster_types::Requester::default(),
                policy: Box::new(draft.check().expect("a policy")),
            }
        }
        43 => {
            let closed: Vec<JobId> = state.closed_fallbacks().map(|(_, job)| job).collect();
            let job = random.pick(&closed).filter(|_| !random.once_in(4)).unwrap_or(job);
            Decision::FallbackOpened { job }
        }
        44..48 => {
            let contract = JobContract { spares: 1 + random.below(2) as u32, ..JobContract::default() };
            let is_new = |job: &JobId| state.job(*job).is_some_and(|row| row.attempt == 0);
            let new: Vec<JobId> = jobs.iter().copied().filter(is_new).collect();
            let mut contracts = Vec::new();
            for _ in 0..random.below(3) {
                contracts.extend(random.pick(&new).map(|job| (job, contract.clone().into())));
            }
            Decision::JobContractsSet { contracts }
        }
        48..50 => {
            let metadata = JobMetadata {
                labels: [("team".to_owned(), ["a", "b", "not a value"][random.below(3) as usize].to_owned())]
                    .into(),
                ..JobMetadata::default()
            };
            let first = JobId(job.0.saturating_add(random.below(2)));
            let runs = (0..random.below(3)).map(|n| (first, n as u32 + 1, metadata.clone().into()));
            Decision::JobMetadataSet { runs: runs.collect() }
        }
        50..54 => Decision::AttemptFailed {
            job,
            token,
            class: FailureClass::ALL[random.below(9) as usize],
            rank: random.once_in(2).then(|| random.below(4) as u32),
            node: random.once_in(2).then_some(node),
            detail: "x".repeat(random.below(600) as usize),
            streak: random.next() as u32,
            wait_until: random.once_in(2).then(|| state.log_time().plus_ms(random.below(5_000))),
            avoid: random.once_in(2).then(|| state.log_time().plus_ms(random.below(5_000))),
        },
        54..66 => {
            let with: Vec<JobId> = state.stopping().filter(|job| !state.spares(*job).is_empty()).collect();
            let job = random.pick(&with).unwrap_or(job);
            let placed = state.job(job).and_then(|row| row.placement.as_ref());
            let token = placed.map_or(token, |placement| placement.token);
            let spares = state.spares(job).to_vec();
            let mut ranks: Vec<(u32, WorkerSlot)> = Vec::new();
            for rank in 0..1 + random.below(2) as u32 {
                ranks.extend(random.pick(&spares).map(|slot| (rank, slot)));
            }
            Decision::SparesTaken { job, token, ranks }
        }
        66..70 => {
            let is_running = |job: &JobId| state.job(*job).is_some_and(|row| row.phase == Phase::Running);
            let running: Vec<JobId> = active.iter().copied().filter(is_running).collect();
            let job = random.pick(&running).unwrap_or(job);
            let placed = state.job(job).and_then(|row| row.placement.as_ref());
            let token = placed.map_or(token, |placement| placement.token);
            let slow_milli = random.once_in(2).then(|| random.next() as u32);
            Decision::StragglerNoted { job, token, rank: random.below(4) as u32, slow_milli }
        }
        88.. => of_arrays(random, state, job, key),
        80.. => controlled(random, state, job, key),
        70.. => restriction(random, state, node, key),
        41 if random.once_in(8) => {
            Decision::ClusterRecovered { generation: state.generation() + random.below(2) as u32 }
        }
        _ => Decision::NodeForgotten {
            request: random.once_in(2).then_some(key),
            by: muster_types::Requester::default(),
            node,
        },
    }
}

/// Spot nodes, and any that were bought after a wait.
fn spot_first() -> CapacityRules {
    let fallback = CapacityFallback {
        purchases: PurchaseKind::ALL.into_iter().collect(),
        after_ms: 1_000,
        is_open: false,
    };
    CapacityRules {
        purchases: [PurchaseKind::Spot].into_iter().collect(),
        fallback: Some(fallback),
        interruptions_milli_max: None,
    }
}

/// What people ask of a job, often of one that it cannot be asked of.
fn controlled(random: &mut Random, state: &State, job: JobId, request: RequestKey) -> Decision {
    let mut jobs = vec![job; usize::from(!random.once_in(10))];
    if random.once_in(4) {
        jobs.push(JobId(job.0.saturating_add(random.below(2))));
    }
    let who = "x".repeat(random.below(170) as usize);
    let by = Requester::named(who, random.once_in(4));
    match random.below(6) {
        0..2 => Decision::JobHoldSet { request, by, jobs, held: true },
        2 => Decision::JobHoldSet { request, by, jobs, held: false },
        3 => Decision::JobRequeueRequested { request, by, jobs, suspended: random.once_in(2) },
        _ => {
            let now = state.log_time();
            let soon = random.once_in(2).then(|| now.plus_ms(random.below(5_000)));
            let mut changes = vec![match random.below(11) {
                6 => FieldChange::Nice(random.below(256) as u8 as i8),
                7 => FieldChange::Front(
                    random.once_in(8).then(|| LogIndex(state.log_index().0 + random.below(3))),
                ),
                8 => FieldChange::Groups(vec![GroupSize {
                    group: random.once_in(4).then(|| Name::literal("g1")),
                    workers: random.below(4) as u32,
                    workers_min: random.once_in(2).then(|| random.below(4) as u32),
                }]),
                9 => FieldChange::Size(random.once_in(6).then(|| random.below(4) as u32)),
                10 => FieldChange::Tenant(Name::literal(["a", "b", "vision"][random.below(3) as usize])),
                0 => FieldChange::Tier(PriorityTier::ALL[random.below(5) as usize]),
                1 => FieldChange::RunTimeLimit(random.once_in(4).then(|| random.below(9_000))),
                2 => FieldChange::NotBefore(soon),
                3 => FieldChange::Deadline(soon),
                4 => FieldChange::Regions(vec![Name::literal("eu"); random.below(3) as usize]),
                _ => {
                    FieldChange::Labels([("team".to_owned(), "a b".repeat(random.below(2) as usize))].into())
                }
            }];
            if random.once_in(6) {
                // Of two names that are the same one breaks a rule; without any the requirement is empty.
                let names = |count: u64| (0..count).map(|_| Name::literal("n1")).collect();
                let nodes = NodeRequirements {
                    only: names(random.below(2)),
                    exclude: names(random.below(2)),
                    ..NodeRequirements::default()
                };
                changes.push(FieldChange::Nodes(random.once_in(2).then(|| Box::new(nodes))));
            }
            if random.once_in(4) {
                changes.push(FieldChange::ExpectedRun(Some(random.below(2) * 7_000)));
            }
            let estimate =
                Estimate { turn: QueueKey::urgent(LogTime(random.below(100))), ..Estimate::default() };
            Decision::JobModified { request, by, job, changes, estimate }
        }
    }
}

/// What concerns arrays, often of one that is not there, or more than may be.
fn of_arrays(random: &mut Random, state: &State, job: JobId, request: RequestKey) -> Decision {
    let known: Vec<ArrayId> = state.arrays().iter().map(|(id, _)| *id).collect();
    let array = random.pick(&known).unwrap_or(ArrayId(job.0));
    let who = "x".repeat(random.below(170) as usize);
    let by = Requester::named(who, random.once_in(4));
    let waits = |array: &ArrayId| state.array(*array).is_some_and(|row| row.uncreated > 0);
    let waiting: Vec<ArrayId> = known.iter().copied().filter(waits).collect();
    // Those that are kept back although what they depend on is over.
    let is_over =
        |on: &Dependency| state.job(on.job).is_none_or(|row| matches!(row.phase, Phase::Finished(_)));
    let is_kept = |array: &ArrayId| {
        state
            .array(*array)
            .is_some_and(|row| !row.released && row.template.spec.dependencies.iter().all(is_over))
    };
    let kept: Vec<ArrayId> = waiting.iter().copied().filter(is_kept).collect();
    // Few arrays can be released at all.
    if random.once_in(2)
        && let Some(array) = random.pick(&kept)
    {
        return Decision::ArrayReleased { array };
    }
    match random.below(6) {
        0 => {
            let Some(spec) = state.jobs().iter().next().and_then(|(id, _)| state.spec(*id)) else {
                return Decision::ArrayReleased { array };
            };
            let mut draft = JobSpec::clone(spec).into_draft();
            draft.array = None;
            let scope = [DependencyScope::Job, DependencyScope::Array, DependencyScope::Member];
            let scope = scope[random.below(3) as usize];
            let on = Dependency { job, rule: DependencyRule::Finished, scope };
            draft.dependencies = vec![on; usize::from(random.once_in(2))];
            let spec = Arc::new(draft.check().expect("a job"));
            let mut ranges = Vec::new();
            for n in 0..random.below(3) as u32 {
                let (last, step) = (n * 10 + random.below(12) as u32, random.below(3) as u32);
                ranges.push(IndexRange { first: n * 10, last, step });
            }
            let throttle = random.once_in(2).then(|| random.below(3) as u32);
            let array = random.once_in(2).then_some(ArraySpec { ranges, throttle });
            let part = SubmittedPart {
                spec,
                contract: None,
                metadata: None,
                array,
                estimate: Estimate {
                    turn: QueueKey::urgent(LogTime(random.below(100))),
                    ..Estimate::default()
                },
            };
            Decision::ArraysSubmitted {
                request,
                by: muster_types::Requester::default(),
                parts: vec![part; random.below(3) as usize],
            }
        }
        1 => {
            let array = random.pick(&waiting).unwrap_or(array);
            let first = random.once_in(2).then(|| random.below(12) as u32);
            Decision::ArrayMembersCreated { array, first, count: random.below(9) as u32 }
        }
        2 => Decision::ArrayReleased { array: random.pick(&kept).unwrap_or(array) },
        3 => {
            let array = random.pick(&waiting).unwrap_or(array);
            Decision::ArrayMembersFailed { array, detail: "x".repeat(random.below(1_100) as usize) }
        }
        4 => {
            let throttle = random.once_in(4).then(|| random.below(4) as u32);
            Decision::ArrayThrottleSet { request, by, array, throttle }
        }
        _ => {
            let control = Control::ALL[random.below(5) as usize];
            let jobs = vec![job; usize::from(random.once_in(3))];
            Decision::ArraysControlled { request, by, control, arrays: vec![array], jobs }
        }
    }
}

/// What restricts a node, often beyond its bounds or out of order.
fn restriction(random: &mut Random, state: &State, node: NodeId, key: RequestKey) -> Decision {
    let request = random.once_in(2).then_some(key);
    let action = HealthAction::ALL[random.below(6) as usize];
    let devices = DeviceSet(random.next() & if random.once_in(8) { 0x1ff } else { 0xff });
    match random.below(5) {
        0 => {
            let detail = "x".repeat(random.below(limits::HEALTH_DETAIL_BYTES_MAX as u64 + 10) as usize);
            let finding = if random.once_in(4) { Finding::Network } else { Finding::Xid(79) };
            let mut observation = Observation::of(finding, Some(0));
            observation.detail = detail;
            let condition = Condition { observation, action, since: state.log_time(), boot: 1 };
            let conditions = vec![condition; random.below(3) as usize];
            let health = NodeHealth {
                unusable: if random.once_in(2) { devices } else { DeviceSet::EMPTY },
                out_of_service: random.once_in(3),
                maintenance_at: random.once_in(3).then(|| state.log_time().plus_ms(random.below(90_000))),
                conditions: conditions.clone(),
                ..NodeHealth::default()
            };
            let policy = state.health_policy().version;
            Decision::NodeHealthChanged { node, policy, health: Box::new(health), events: conditions }
        }
        1 if random.once_in(2) => {
            let load = ForeignLoad {
                closed: random.once_in(3),
                devices: if random.once_in(2) { devices } else { DeviceSet::EMPTY },
                cpu_milli: random.below(20_000),
                memory_bytes: random.below(1 << 40),
            };
            Decision::ForeignLoadSet { node, incarnation: random.below(3) as u32, load }
        }
        1 => {
            let since = state.log_time();
            let drain = Drain { since, deadline: None, cause: DrainCause::Operator };
            Decision::NodeDrainSet {
                request,
                by: muster_types::Requester::default(),
                node,
                drain: random.once_in(2).then_some(drain),
                reason: random.once_in(3).then(|| "power work".to_owned()),
            }
        }
        2 if random.once_in(2) => {
            let prefix = if random.once_in(4) { "gpu." } else { "" };
            let keys = |count: u64| (0..count).filter_map(move |n| Name::new(&format!("{prefix}k{n}")));
            // Most jobs tolerate no taint, and most records are to be about jobs that can be placed.
            let taints = if random.once_in(6) { random.below(20) } else { 0 };
            let mut overrides = NodeOverrides {
                labels: keys(random.below(80)).map(|key| (key, "x".to_owned())).collect(),
                taints: keys(taints).collect(),
            };
            if random.once_in(4) {
                overrides.labels.insert(name("purchase"), "spot".to_owned());
            }
            let by = Requester::default();
            Decision::NodeOverridesSet { request: key, by, node, overrides: Box::new(overrides) }
        }
        2 => {
            let reason = "x".repeat(random.below(2 * limits::DETAIL_BYTES_MAX as u64) as usize);
            Decision::NodeQuarantineSet {
                request,
                by: muster_types::Requester::default(),
                node,
                reason: random.once_in(2).then_some(reason),
            }
        }
        3 => {
            let step = match random.below(4) {
                0 => RepairStep::Begin { action, devices },
                1 => RepairStep::Work,
                2 => RepairStep::Fail("x".into()),
                _ => RepairStep::End,
            };
            Decision::NodeRepairSet { request, by: muster_types::Requester::default(), node, step }
        }
        _ => {
            let reboots_max = random.below(150) as u16;
            let policy = HealthPolicy { reboots_max, ..HealthPolicy::default() };
            Decision::HealthPolicySet {
                request: key,
                by: muster_types::Requester::default(),
                policy: Box::new(policy),
            }
        }
    }
}

fn update(random: &mut Random) -> RankUpdate {
    match random.below(7) {
        0..3 => RankUpdate::Running,
        6 => RankUpdate::Ready,
        3 => RankUpdate::Exited(ExitStatus::Code(0)),
        4 => RankUpdate::Exited(ExitStatus::Vanished),
        _ => {
            let long = random.below(2 * limits::DETAIL_BYTES_MAX as u64);
            RankUpdate::Exited(ExitStatus::LaunchFailed("x".repeat(long as usize)))
        }
    }
}

fn workers(random: &mut Random, state: &State, job: JobId) -> Vec<WorkerSlot> {
    let Some(spec) = state.spec(job) else { return Vec::new() };
    let mut workers = Vec::new();
    let count = state.nodes().len() as u64;
    let spares = state.contract(job).filter(|_| random.once_in(2)).map_or(0, |contract| contract.spares);
    let is_honest = random.once_in(2);
    let mut taken: BTreeMap<NodeId, DeviceSet> = BTreeMap::new();
    for rank in 0..spec.worker_count() + spares {
        let group = spec.group_of_slot(rank, spec.worker_count() as usize).expect("a place");
        let wanted = group.request.device_count();
        let mut node = NodeId(random.below(count.max(1)) as u32);
        // An honest planner's choice, half of the time.
        let fits = |row: &NodeRow, taken: Option<&DeviceSet>| {
            let free = row.free.devices.difference(taken.copied().unwrap_or(DeviceSet::EMPTY));
            row.is_placeable() && free.lowest(wanted).is_some()
        };
        let fitting = state.nodes().iter().find(|(id, row)| fits(row, taken.get(id)));
        if let Some((id, _)) = fitting.filter(|_| is_honest) {
            node = *id;
        }
        let row = state.node(node);
        let taken = taken.entry(node).or_insert(DeviceSet::EMPTY);
        let free = row.map_or(DeviceSet::EMPTY, |row| row.free.devices.difference(*taken));
        let mut devices = free.lowest(wanted).unwrap_or_default();
        *taken = DeviceSet(taken.0 | devices.0);
        if !is_honest && random.once_in(8) {
            devices = DeviceSet(random.next() & 0x1ff);
        }
        workers.push(WorkerSlot { node, incarnation: row.map_or(1, |row| row.incarnation), devices });
    }
    if !is_honest && random.once_in(10) {
        workers.pop();
    }
    workers
}
