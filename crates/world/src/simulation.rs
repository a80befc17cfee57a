//! One run: the cluster forms, things break for a while, everything is mended, and then it must come to rest:
//! within a bound somebody leads and answers, every replica is the same, and no job is left that could run.

use crate::admin_client;
use crate::agent::Machine;
use crate::asked::Asked;
use crate::checks::Counts;
use crate::clients::{Clients, ask, policy};
use crate::cluster::Cluster;
use crate::faults::Faults;
use crate::operator::Operator;
use crate::runtime::{self, RunDigest, elapsed_ms, event, sleep_ms, spawn_on};
use crate::settings::Settings;
use crate::site::{FIRST_CLIENT, Site, lock};
use muster_decider::Command;
use muster_state::Phase;
use muster_types::RequestId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Until every agent has a session.
const FLEET_MS_MAX: u64 = 20_000;
/// From the end of all faults to the next acknowledged submission.
const ANSWER_MS_MAX: u64 = 15_000;
/// From there until every replica votes again and has applied the same.
const LEVEL_MS_MAX: u64 = 40_000;
/// From there until no job is left.
const DRAIN_MS_MAX: u64 = 300_000;

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it was made of.
    pub settings: Settings,
    /// Everything that must not have been; empty when all is well.
    pub violations: Vec<String>,
    /// What it came to.
    pub counts: Counts,
    /// What clients asked for.
    pub asked: Asked,
    /// From the end of all faults to the next acknowledged submission, in milliseconds.
    pub recovered_ms: Option<u64>,
    /// What identifies it.
    pub digest: RunDigest,
    /// Every event, where it was asked for.
    pub trace: Vec<String>,
}

impl Report {
    /// The line that makes it happen again.
    #[must_use]
    pub fn replay_line(&self) -> String {
        let Settings { seed, replicas, chaos_ms, bug, .. } = self.settings;
        let bug = bug.map(|bug| format!(" --bug {bug}")).unwrap_or_default();
        format!("muster-world run --seed {seed} --replicas {replicas} --chaos-ms {chaos_ms}{bug} --trace")
    }
}

/// Runs a seed from its begin to its end.
#[must_use]
pub fn simulate(settings: Settings, keep_trace: bool) -> Report {
    runtime::reset(settings.seed, keep_trace);
    muster_planted::break_here(settings.bug);
    let cluster = Cluster::new(settings);
    let inside = Arc::clone(&cluster);
    let outcome = runtime::run(async move { whole_run(inside).await });
    let mut violations = cluster.site.checks.violations();
    violations.extend(runtime::take_panics().into_iter().map(|panic| format!("panic: {panic}")));
    let recovered_ms = match outcome {
        Ok(recovered) => recovered,
        Err(stuck) => {
            violations.push(format!("the run came to a stop at {} ms: {stuck}", elapsed_ms()));
            None
        }
    };
    let report = Report {
        settings,
        violations,
        counts: cluster.site.checks.counts(),
        asked: cluster.site.checks.asked(),
        recovered_ms,
        digest: runtime::digest(),
        trace: runtime::take_trace(),
    };
    runtime::reset(0, false);
    report
}

async fn found(cluster: &Arc<Cluster>) {
    for host in cluster.site.replica_hosts() {
        cluster.boot(host).await;
    }
    let members: BTreeMap<_, _> =
        cluster.site.replica_hosts().into_iter().map(|host| (u64::from(host), Site::node(host))).collect();
    if let Some(first) = cluster.replica(1) {
        let consensus = first.consensus.clone();
        let formed = spawn_on(1, async move { consensus.raft().initialize(members).await.is_ok() }).await;
        if formed.ok() != Some(true) {
            cluster.site.checks.fail("the cluster did not form".to_owned());
        }
    }
    let who = FIRST_CLIENT + 7;
    let policy = policy().check().expect("it is a policy");
    let set = ask(cluster, who, 40, |_| Command::SetPolicy {
        request: RequestId(1),
        by: muster_types::Requester::default(),
        policy: Box::new(policy.clone()),
        expected_version: None,
    })
    .await;
    if !matches!(set, Some(Ok(_))) {
        cluster.site.checks.fail(format!("the cluster could not be set up: {set:?}"));
    }
}

async fn whole_run(cluster: Arc<Cluster>) -> Option<u64> {
    let machines: Vec<_> =
        (0..cluster.site.settings.agents).map(|place| Arc::new(Machine::new(place))).collect();
    found(&cluster).await;
    for machine in &machines {
        machine.start_agent(&cluster);
    }
    let operator = Operator::start(&cluster);
    // What fits nowhere is refused: the whole fleet first.
    if !until(FLEET_MS_MAX, || fleet_is_up(&cluster)).await {
        cluster.site.checks.fail("the fleet did not register".to_owned());
    }
    let mut clients = Clients::start(&cluster);
    if cluster.site.settings.faults {
        let until_ms = runtime::elapsed_ms() + 2_000 + cluster.site.settings.chaos_ms;
        admin_client::start(&cluster, clients.asked(), until_ms);
    }
    sleep_ms(2_000).await;
    let faults = Arc::new(Faults::new(&cluster, machines, operator.clone()));
    if cluster.site.settings.faults {
        faults.run(cluster.site.settings.chaos_ms).await;
    } else {
        sleep_ms(cluster.site.settings.chaos_ms).await;
    }
    faults.heal().await;
    Arc::clone(&faults).supervise();
    let recovered = clients.probe(60).await;
    match recovered {
        Some(ms) if ms <= ANSWER_MS_MAX => {}
        Some(ms) => {
            cluster.site.checks.fail(format!("no submission was acknowledged for {ms} ms after the heal"))
        }
        None => cluster.site.checks.fail("no submission was acknowledged after the heal".to_owned()),
    }
    clients.finish().await;
    if !until(LEVEL_MS_MAX, || is_level(&cluster, &operator)).await {
        cluster.site.checks.fail(format!(
            "the replicas are not level {LEVEL_MS_MAX} ms after the heal: {}",
            places(&cluster)
        ));
    }
    if !until(DRAIN_MS_MAX, || is_drained(&cluster)).await {
        cluster
            .site
            .checks
            .fail(format!("jobs are left {DRAIN_MS_MAX} ms after the heal: {}", left(&cluster)));
    }
    sleep_ms(500).await;
    last_look(&cluster, &clients);
    event("end", format_args!("{:?}", cluster.site.checks.counts()));
    recovered
}

fn fleet_is_up(cluster: &Arc<Cluster>) -> bool {
    cluster
        .leader()
        .is_some_and(|leader| leader.view.state().nodes_up() == u64::from(cluster.site.settings.agents))
}

async fn until(ms: u64, mut holds: impl FnMut() -> bool) -> bool {
    let end = elapsed_ms() + ms;
    while !holds() {
        if elapsed_ms() > end {
            return false;
        }
        sleep_ms(100).await;
    }
    true
}

fn applied(cluster: &Cluster) -> Vec<u64> {
    cluster.replicas().iter().map(|replica| *replica.machine.applied().borrow()).collect()
}

fn places(cluster: &Cluster) -> String {
    format!(
        "{:?} of {} replicas, damaged {:?}",
        applied(cluster),
        cluster.site.replica_hosts().len(),
        cluster.damaged()
    )
}

fn is_level(cluster: &Arc<Cluster>, operator: &Operator) -> bool {
    let applied = applied(cluster);
    operator.is_whole()
        && applied.len() == cluster.site.replica_hosts().len()
        && applied.windows(2).all(|pair| pair[0].abs_diff(pair[1]) < 20)
}

fn is_drained(cluster: &Arc<Cluster>) -> bool {
    let Some(leader) = cluster.leader() else { return false };
    let state = leader.view.state();
    let over = state.jobs().iter().all(|(_, row)| matches!(row.phase, Phase::Finished(_)));
    let over = over && state.arrays().iter().all(|(_, row)| row.finished_at.is_some());
    let applied = applied(cluster);
    over && cluster.site.checks.running() == 0 && applied.windows(2).all(|pair| pair[0] == pair[1])
}

fn left(cluster: &Arc<Cluster>) -> String {
    let Some(leader) = cluster.leader() else { return "nobody leads".to_owned() };
    let state = leader.view.state();
    let open = state.jobs().iter().filter(|(_, row)| !matches!(row.phase, Phase::Finished(_)));
    let why = |id| {
        muster_decider::explain_job(&state, state.log_time(), id, &Default::default())
            .map(|found| found.sentence)
    };
    let open: Vec<String> = open
        .take(4)
        .map(|(id, row)| format!("{id} {:?}: {}", row.phase, why(*id).unwrap_or_default()))
        .collect();
    let arrays = state.arrays().iter().filter(|(_, row)| row.finished_at.is_none());
    let arrays: Vec<String> = arrays
        .take(4)
        .map(|(id, row)| format!("{id}: {} not created, {:?}", row.uncreated, row.hold))
        .collect();
    format!(
        "{open:?}, {arrays:?}, {} processes, nodes up {}, applied {:?}",
        cluster.site.checks.running(),
        state.nodes_up(),
        applied(cluster)
    )
}

fn last_look(cluster: &Arc<Cluster>, clients: &Clients) {
    let asked = lock(&clients.asked()).clone();
    for replica in cluster.replicas() {
        let state = replica.view.state();
        cluster.site.checks.nothing_lost(replica.host, &state);
        if let Err(broken) = state.verify() {
            cluster.site.checks.fail(format!("the state of n{} is inconsistent: {broken:?}", replica.host));
        }
        cluster.site.checks.no_extra_jobs(&state, &asked);
    }
    cluster.site.checks.accounts_balance();
}
