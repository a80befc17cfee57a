//! What a replica tells monitoring systems about itself, read from its applied state and its consensus at the moment of the
//! request. The cost depends on the numbers of tenants, pools, racks, lost and restricted nodes, and gangs that start or stop or that
//! capacity is kept for, and not on other jobs and nodes.

use muster_engine::{Delivery, Engine, ReplicaStatus, Role};
use muster_metrics::{
    PoolFacts, QuotaFacts, ReplicaFacts, StateFacts, StrandedFacts, TENANTS_MAX, TenantFacts, UsedFacts,
};
use muster_monitoring::process_facts;
use muster_state::usage::Capacity;
use muster_state::{EligibleDemand, QuotaUse, State};
use muster_types::{DeviceSet, JobId, Name, NodeId, NodeSpec};
use std::collections::{BTreeMap, BTreeSet};

/// A leader that was not heard for this long passes for lost: longer than an election takes. In milliseconds.
const LEADER_SILENT_MAX_MS: u64 = 5_000;

/// Whether a follower knows a leader and heard it lately: one that is cut off still knows who led last.
pub(crate) fn hears_leader(own: &ReplicaStatus) -> bool {
    own.leader.is_some() && own.leader_silent_ms.is_some_and(|ms| ms <= LEADER_SILENT_MAX_MS)
}

/// Whether a quorum may count on this replica's vote: one that lost what it had promised gives none until it has rejoined.
fn votes(own: &ReplicaStatus) -> bool {
    !own.rejoining
        && own.stopped.is_none()
        && own.members.iter().any(|member| member.replica == own.replica && member.votes)
}

/// Whether this replica is good for reads that have to be current, and what it does, in a word or two.
pub(crate) fn readiness(engine: &Engine) -> (bool, String) {
    let own = engine.consensus().status();
    let leads = engine.consensus().leadership().borrow().mine.is_some();
    let hears = hears_leader(&own);
    let behind = own.committed_index.unwrap_or(0).saturating_sub(own.applied_index.unwrap_or(0));
    if let Some(why) = own.stopped {
        return (false, format!("stopped: {why}"));
    }
    if own.rejoining {
        return (false, "rejoining: its storage lost what it had promised".to_owned());
    }
    if engine.view().cluster().is_none() {
        return (false, "no state: the cluster is not founded, or not heard of".to_owned());
    }
    match (leads, hears) {
        (true, _) if engine.lacks_space() => {
            (false, "leader, and its disk has too little free space".to_owned())
        }
        (true, _) => (true, "leader".to_owned()),
        (false, true) if behind > BEHIND_MAX => (false, format!("follower, catching up: {behind} entries")),
        (false, true) => (true, "follower".to_owned()),
        (false, false) if own.role == Role::Leader => (false, "unconfirmed: no quorum answers".to_owned()),
        (false, false) => (false, "no leader is heard".to_owned()),
    }
}

/// Entries that a follower in step may have committed and not yet applied: some rounds.
const BEHIND_MAX: u64 = 256;

/// Everything that is read at the moment of asking.
pub(crate) fn facts(engine: &Engine) -> ReplicaFacts {
    let view = engine.view();
    let mut facts = of_state(&view);
    of_consensus(engine, &mut facts);
    of_storage(engine, &mut facts);
    facts.process = process_facts();
    facts.nodes_awaiting_admission = engine.pending_nodes().len() as u64;
    facts
}

fn of_consensus(engine: &Engine, facts: &mut ReplicaFacts) {
    let raft = engine.consensus().status();
    facts.version = env!("CARGO_PKG_VERSION").to_owned();
    facts.is_leader = engine.consensus().leadership().borrow().mine.is_some();
    facts.has_leader = facts.is_leader || hears_leader(&raft);
    facts.term = raft.term;
    facts.voters = raft.members.iter().filter(|member| member.votes).count() as u64;
    facts.is_voter = votes(&raft);
    facts.last_index = raft.last_log_index.unwrap_or(0);
    facts.committed_index = raft.committed_index.unwrap_or(0);
    facts.applied_index = raft.applied_index.unwrap_or(0);
    facts.snapshot_index = raft.snapshot_index.unwrap_or(0);
    facts.leader_silent_ms = raft.leader_silent_ms;
    facts.quorum_silent_ms = raft.quorum_silent_ms;
    facts.is_rejoining = raft.rejoining;
    let lags = raft.members.iter().filter(|member| member.replica != raft.replica);
    let lags = lags.filter_map(|member| Some((member.replica.0.to_string(), member.lag_entries?)));
    facts.peer_lag_entries = facts.is_leader.then(|| lags.collect());
}

fn of_storage(engine: &Engine, facts: &mut ReplicaFacts) {
    let own = engine.info().replica;
    let reports = engine.consensus().peer_reports();
    if let Some(report) = reports.borrow().get(&own) {
        facts.storage_free_bytes = Some(report.storage.free_bytes);
        facts.log_bytes = Some(report.storage.log_bytes);
        facts.stalled_ms = report.storage.stalled_ms;
    }
    let inbox = engine.inbox();
    facts.inbox = vec![("clients", inbox.clients as u64), ("nodes", inbox.nodes as u64)];
    let local = engine.local_facts();
    facts.leaderships_recent = local.leaderships_begun as u64;
    facts.snapshot_age_ms = local.snapshot_age_ms;
    facts.archive_log_index = local.archive_log_index;
    facts.archive_is_failing = local.archive_failing.is_some();
    facts.archive_offload_is_failing = local.archive_offload_failing.is_some();
    facts.decision_faults = local.decision_faults;
    facts.archive_damaged_objects = local.archive_unmended.len() as u64;
    facts.certificate_days_left = local.certificate_days_left;
    if facts.is_leader {
        facts.sessions = Some(engine.open_sessions() as u64);
        of_notifications(&local.deliveries, facts);
    }
}

/// What the leader has done for receivers of notifications, over all of them.
fn of_notifications(deliveries: &BTreeMap<Name, Delivery>, facts: &mut ReplicaFacts) {
    let sum = |of: fn(&Delivery) -> u64| deliveries.values().map(of).fold(0, u64::saturating_add);
    facts.notifications = vec![
        ("acknowledged", sum(|delivery| delivery.progress.acknowledged)),
        ("given_up", sum(|delivery| delivery.progress.given_up)),
        ("skipped", sum(|delivery| delivery.progress.skipped)),
        ("failed", sum(|delivery| delivery.failed_attempts)),
    ];
    let last = deliveries.values().map(|delivery| delivery.progress.delivered.0).min();
    facts.notification_lag_records = last.map(|last| facts.log_index.saturating_sub(last));
}

fn of_state(view: &State) -> ReplicaFacts {
    let nodes_up = view.nodes_up();
    let names = view.queues_behind(None, TENANTS_MAX + 1);
    let eligible = view.eligible_demand();
    let capacity = view.capacity();
    let of_tenant = |name: &Name| tenant(view, (&eligible, &capacity), name);
    let tenants = names.iter().take(TENANTS_MAX).filter_map(of_tenant).collect();
    let pool = |(key, pool): (&muster_state::PoolKey, &muster_state::Pool)| {
        let kind = key.kind.as_ref()?;
        Some(PoolFacts {
            region: key.region.to_string(),
            cluster: key.cluster.to_string(),
            kind: kind.to_string(),
            hourly_micro_dollars: view.policy().policy.price(kind, &key.region, view.log_time()),
            total: pool.total_devices,
            free_milli: pool.free_milli,
            idle: pool.idle_devices,
            idle_in_one_rack: pool.racks.values().map(|rack| rack.idle_devices).max().unwrap_or(0),
        })
    };
    ReplicaFacts {
        log_index: view.log_index().0,
        log_time_ms: view.log_time().0,
        format: view.format().into(),
        records_rejected: view.rejected(),
        jobs_pending: view.pending_count() as u64,
        jobs_held_back: view.pending_by_reason().collect(),
        jobs_active: view.active_count() as u64,
        jobs_finished: view.finished_count() as u64,
        nodes_up,
        nodes_lost: (view.nodes().len() as u64).saturating_sub(nodes_up),
        nodes_restricted: view.restrictions().count() as u64,
        tenants,
        leaves_tenants_out: names.len() > TENANTS_MAX,
        used: used(view),
        states: states(view),
        stranded: stranded(view),
        pools: view.pools().filter_map(pool).collect(),
        ..ReplicaFacts::default()
    }
}

/// What is in use by type: zero of those of which none is.
fn used(view: &State) -> Vec<UsedFacts> {
    let mut used = view.used_milli();
    for kind in view.pools().filter_map(|(key, _)| key.kind.as_ref()) {
        used.entry(kind.clone()).or_default();
    }
    used.into_iter().map(|(kind, milli)| UsedFacts { kind: kind.to_string(), milli }).collect()
}

/// Thousandths of accelerators by region, type and what they do.
#[derive(Default)]
struct States<'a>(BTreeMap<(&'a Name, &'a Name), BTreeMap<&'static str, u64>>);

impl<'a> States<'a> {
    fn add(&mut self, (region, kind): (&'a Name, &'a Name), state: &'static str, milli: u64) {
        *self.0.entry((region, kind)).or_default().entry(state).or_default() += milli;
    }

    fn take(&mut self, (region, kind): (&'a Name, &'a Name), state: &'static str, milli: u64) {
        let found = self.0.entry((region, kind)).or_default().entry(state).or_default();
        *found = found.saturating_sub(milli);
    }

    /// What gangs hold that run for all that is known, and do something else.
    fn moves(&mut self, view: &'a State, jobs: impl Iterator<Item = JobId>, state: &'static str) {
        for placement in jobs.filter_map(|job| view.job(job)?.placement.as_deref()) {
            for (kind, milli) in &placement.charge.devices_milli {
                self.add((&placement.region, kind), state, *milli);
                self.take((&placement.region, kind), "running", *milli);
            }
        }
    }
}

/// What accelerators do: those that jobs are charged for by whether their gangs start, run or stop, and the others by what keeps
/// them from work.
fn states(view: &State) -> Vec<StateFacts> {
    let mut states = States::default();
    for (key, pool) in view.pools() {
        let Some(kind) = &key.kind else { continue };
        let placeable = pool.placeable_shapes.iter();
        let placeable: u64 =
            placeable.map(|(shape, nodes)| u64::from(shape.devices) * u64::from(*nodes)).sum();
        let of = (&key.region, kind);
        states.add(of, "idle", pool.idle_devices * 1_000);
        states.add(of, "cordoned", pool.total_devices.saturating_sub(placeable) * 1_000);
        for state in ["starting", "running", "stopping", "unhealthy", "foreign", "lost"] {
            states.add(of, state, 0);
        }
    }
    for ((_, kind, region), milli) in view.quota_usage().own() {
        states.add((region, kind), "running", milli);
    }
    states.moves(view, view.starting().map(|(_, job)| job), "starting");
    states.moves(view, view.stopping(), "stopping");
    for node in view.lost_nodes().filter_map(|(_, id)| view.node(id)) {
        let Some(of) = kind_of(&node.spec) else { continue };
        let milli = u64::from(node.spec.device_count()) * 1_000;
        states.add(of, "lost", milli);
        states.take(of, "cordoned", milli);
    }
    for (id, restriction) in view.restrictions() {
        let Some(node) = view.node(id).filter(|node| node.is_placeable()) else { continue };
        let Some(of) = kind_of(&node.spec) else { continue };
        let (DeviceSet(faulty), DeviceSet(foreign)) =
            (restriction.health.unusable, restriction.foreign.devices);
        let of_free = |devices: u64| u64::from((devices & node.free.devices.0).count_ones()) * 1_000;
        let (faulty, foreign) = (of_free(faulty), of_free(foreign & !faulty));
        states.add(of, "unhealthy", faulty);
        states.add(of, "foreign", foreign);
    }
    let rows = states.0.into_iter().flat_map(|((region, kind), states)| {
        let row = move |(state, milli)| StateFacts {
            region: region.to_string(),
            kind: kind.to_string(),
            state,
            milli,
        };
        states.into_iter().map(row)
    });
    rows.collect()
}

/// Free accelerators by region, type and why no job has them: they are kept for a gang, or are what jobs leave of an accelerator,
/// or jobs wait that ask for as many of the type and are not placed, or none does. All but the first add up to what a new gang
/// is offered.
fn stranded(view: &State) -> Vec<StrandedFacts> {
    let mut free: BTreeMap<(&Name, &Name), (u64, u64)> = BTreeMap::new();
    for (key, pool) in view.pools() {
        let Some(kind) = &key.kind else { continue };
        let (all, idle) = free.entry((&key.region, kind)).or_default();
        *all = all.saturating_add(pool.free_milli);
        *idle = idle.saturating_add(pool.idle_devices.saturating_mul(1_000));
    }
    let reserved = reserved_milli(view);
    let rows = free.into_iter().flat_map(|((region, kind), (all, idle))| {
        let unplaced = view.eligible_milli(kind).min(idle);
        let causes = [
            ("reserved", reserved.get(&(region, kind)).copied().unwrap_or_default()),
            ("part_used", all.saturating_sub(idle)),
            ("unplaced", unplaced),
            ("no_demand", idle - unplaced),
        ];
        causes.map(|(cause, milli)| StrandedFacts {
            region: region.to_string(),
            kind: kind.to_string(),
            cause,
            milli,
        })
    });
    rows.collect()
}

/// Thousandths of accelerators that nobody holds and that are kept for gangs while others stop, by region and type.
fn reserved_milli(view: &State) -> BTreeMap<(&Name, &Name), u64> {
    let promises = view.promised().filter_map(|job| view.job(job)?.promise.as_deref());
    let nodes: BTreeSet<NodeId> = promises.flat_map(|row| row.slots.iter().map(|slot| slot.node)).collect();
    let mut reserved: BTreeMap<(&Name, &Name), u64> = BTreeMap::new();
    for node in nodes.into_iter().filter_map(|id| view.node(id)).filter(|node| node.is_placeable()) {
        let Some(of) = kind_of(&node.spec) else { continue };
        // What a new gang is offered is without what is kept for others.
        let milli = node.usable().device_milli().saturating_sub(node.offer().device_milli());
        let sum = reserved.entry(of).or_default();
        *sum = sum.saturating_add(milli);
    }
    reserved
}

/// Where a node's accelerators are counted; none for one without any.
fn kind_of(spec: &NodeSpec) -> Option<(&Name, &Name)> {
    spec.accelerators.as_ref().map(|has| (&spec.region, &has.kind))
}

fn tenant(
    view: &State,
    (eligible, capacity): (&EligibleDemand, &Capacity),
    name: &Name,
) -> Option<TenantFacts> {
    let row = view.queue(name)?;
    let quota = |QuotaUse { quota, used_milli }: &QuotaUse| QuotaFacts {
        kind: quota.kind.to_string(),
        region: quota.region.as_ref().map(ToString::to_string).unwrap_or_default(),
        nominal_milli: quota.nominal_milli,
        used_milli: *used_milli,
        borrowing_limit_milli: quota.borrowing_limit_milli,
        lending_limit_milli: quota.lending_limit_milli,
    };
    let eligible = eligible.get(name).into_iter().flatten();
    let running = row.usage.iter().flat_map(|usage| usage.running());
    Some(TenantFacts {
        tenant: name.to_string(),
        pending: row.load.pending_jobs,
        held: row.load.held_jobs,
        active: row.load.active_jobs,
        pending_milli: row.load.pending_milli,
        share_billionths: row
            .usage
            .as_ref()
            .map_or(0, |usage| usage.share(row.at, capacity, row.weight_milli)),
        eligible_milli: eligible.map(|(kind, milli)| (kind.to_string(), *milli)).collect(),
        used_milli: running.map(|(kind, milli)| (kind.to_string(), milli)).collect(),
        quotas: row.quotas.iter().map(quota).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use muster_decider::{BootstrapConfig, Command, Speculation, handle, schedule};
    use muster_planner::Budget;
    use muster_types::{
        AcceleratorRequest, Accelerators, ClusterId, DeviceAmount, HolderId, JobDraft, Leadership, LogTime,
        NodeDraft, Parameters, ReplicaId, RequestId, Submission, TaskGroup, WorkerRequest,
    };

    #[tokio::test]
    async fn a_replica_that_cannot_vote_is_no_voter() {
        assert!(!facts(&sample::engine_alone().await).is_voter, "it is in no cluster");
        let leader = sample::leader().await;
        let found = facts(&leader);
        assert!(found.is_voter && found.has_leader && found.voters == 1, "{found:?}");
        let status = leader.consensus().status();
        assert!(votes(&status));
        assert!(!votes(&ReplicaStatus { rejoining: true, ..status.clone() }), "it lost what it had promised");
        assert!(!votes(&ReplicaStatus { stopped: Some("it diverged".to_owned()), ..status.clone() }));
        let mut learner = status;
        learner.members.iter_mut().for_each(|member| member.votes = false);
        assert!(!votes(&learner), "it hears the leader and has no vote");
    }

    #[test]
    fn what_is_free_is_divided_by_why_no_job_has_it() {
        let name = |text: &str| Name::new(text).expect("a name");
        let devices = |count| Accelerators { kind: name("h100"), count };
        let host = NodeDraft {
            name: name("h1"),
            region: name("eu"),
            cluster: name("eu-1"),
            block: name("b"),
            rack: name("k"),
            address: "10.0.0.1".to_owned(),
            accelerators: Some(devices(8)),
            cpu_milli: 64_000,
            memory_bytes: 64 << 30,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        };
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation =
            Speculation::begin(State::default(), leadership, LogTime(1_800_000_000_000), founding);
        let spec = host.check().expect("a host");
        let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: true };
        handle(&mut speculation, &register).expect("a host comes");
        let by_cause = |speculation: &Speculation| -> Vec<(&'static str, u64)> {
            let found = stranded(speculation.state());
            let free: u64 = speculation.state().pools().map(|(_, pool)| pool.free_milli).sum();
            assert_eq!(found.iter().map(|row| row.milli).sum::<u64>(), free, "{found:?}");
            found.iter().filter(|row| row.milli > 0).map(|row| (row.cause, row.milli)).collect()
        };
        assert_eq!(by_cause(&speculation), [("no_demand", 8_000)]);
        let submit = |speculation: &mut Speculation, number: u128, accelerators: AcceleratorRequest| {
            let request = WorkerRequest {
                accelerators: Some(accelerators),
                cpu_milli: 100,
                memory_bytes: 1 << 20,
                exclusive: false,
                scratch_bytes: 0,
            };
            let group = TaskGroup::new(name("main"), 1, vec!["train".to_owned()], request);
            let spec = JobDraft::new(name("train"), name("lab"), vec![group]).check().expect("a job");
            let submit = Command::submit(RequestId(number), vec![Submission::from(spec)].into());
            handle(speculation, &submit).expect("it is taken");
            schedule(speculation, &mut Budget::new(10_000));
        };
        let part = AcceleratorRequest { amount: DeviceAmount::Share(250), ..devices(1).into() };
        submit(&mut speculation, 1, part);
        assert_eq!(by_cause(&speculation), [("part_used", 750), ("no_demand", 7_000)]);
        submit(&mut speculation, 2, devices(5).into());
        assert_eq!(by_cause(&speculation), [("part_used", 750), ("no_demand", 2_000)]);
        // Four are not free, so both that are stay idle although a job waits for such.
        submit(&mut speculation, 3, devices(4).into());
        assert_eq!(by_cause(&speculation), [("part_used", 750), ("unplaced", 2_000)]);
    }

    #[tokio::test]
    async fn faults_and_an_archive_that_cannot_be_moved_away_are_facts() {
        let engine = sample::leader().await;
        let before = facts(&engine);
        assert!(!before.archive_offload_is_failing && before.decision_faults == 0);
        engine.update_local_facts(|local| local.archive_offload_failing = Some("no space".to_owned()));
        assert!(facts(&engine).archive_offload_is_failing);
    }
}
