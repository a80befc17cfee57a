//! One drill, from a cluster that is well to a cluster that is well again, with everything that was seen between.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use muster_drill::history::History;
use muster_drill::judge::Verdict;
use muster_drill::run::{Host, Run, Runs, StateSeen, StepDone, WarningSeen};
use muster_drill::scenario::{Action, Scenario, Selection};
use tokio::sync::watch;

use super::evidence::{self, Collected, HISTORY, Harness};
use super::parts::{Hosts, Parts, Roles};
use super::stage::{Effect, LAG_MAX, Stage};
use super::timeline::timeline;
use crate::cluster::Cluster;
use crate::cluster::config::{LEASE_MARGIN_MS, LEASE_TTL_MS};
use crate::cluster::observe::{MemberStatuses, Observer};
use crate::cluster::plan::{OPERATOR, Purpose, REGIONS};
use crate::cluster::process::complaints;
use crate::load::clients::{self, Known, Made, Setting};
use crate::load::gangs::{Gangs, busy_nodes};
use crate::load::record::{Record, check_clock, now_us};

/// Load before the fault, so that there is something to compare with.
const BEFORE: Duration = Duration::from_secs(3);
/// Time for gangs to run where they belong.
const GANGS_LIMIT: Duration = Duration::from_secs(60);
/// Time for the cluster to be well after everything was undone.
const HEAL_LIMIT: Duration = Duration::from_secs(90);
/// Time for clients to end: the longest of their calls, and a little.
const CLIENTS_LIMIT: Duration = Duration::from_secs(45);
/// Time for all replicas to come to one position once clients are gone.
const EQUAL_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at warnings and states.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Looks that are kept: an hour of them.
const LOOKS_MAX: usize = 40_000;
/// Shortest sleep while something is waited for that may be interrupted.
const NAP: Duration = Duration::from_millis(20);

/// Set when somebody wants everything to end.
pub type Interrupted = Arc<AtomicBool>;

/// What is to be drilled, and where its evidence goes.
pub struct Order<'a> {
    /// As it was written.
    pub scenario_text: &'a str,
    /// What is to be done.
    pub scenario: &'a Scenario,
    /// Which run of it, from 1.
    pub number: u32,
    /// What everything random was drawn from.
    pub seed: u64,
    /// Where the evidence goes; a new directory.
    pub dir: &'a Path,
    /// What machine this is.
    pub place: &'a str,
    /// The release that is drilled.
    pub version: &'a str,
    /// Whether to end at once.
    pub interrupted: &'a Interrupted,
    /// Tells people how far it is.
    pub say: &'a dyn Fn(&str),
}

/// What came of a drill.
pub struct Done {
    /// What it proves.
    pub verdict: Verdict,
    /// Everything that was seen.
    pub collected: Collected,
    /// What clients wrote down.
    pub history: History,
    /// Whether the cluster is fit for another drill.
    pub fit: bool,
    /// How many operations were made.
    pub made: BTreeMap<&'static str, u64>,
}

impl Done {
    /// Whether the drill held.
    #[must_use]
    pub fn held(&self) -> bool {
        self.verdict.held
    }
}

/// What the operator saw while the drill ran.
#[derive(Clone, Default)]
struct Looks {
    seen: Arc<Mutex<(Vec<WarningSeen>, Vec<StateSeen>)>>,
}

impl Looks {
    fn add(&self, seen: &MemberStatuses) {
        let at_us = now_us();
        // What is behind the lock is whole between two calls.
        let mut looks = self.seen.lock();
        if looks.0.len() + looks.1.len() >= LOOKS_MAX {
            return;
        }
        for (replica, status) in &seen.statuses {
            for warning in &status.warnings {
                let about = (warning.replica_id > 0).then_some(warning.replica_id);
                looks.0.push(WarningSeen { at_us, code: warning.code.clone(), replica: about });
            }
            let log_index = status.freshness.unwrap_or_default().log_index;
            if let Ok(digest) = u64::from_str_radix(&status.state_digest, 16) {
                looks.1.push(StateSeen { at_us, replica: *replica, log_index, digest });
            }
        }
    }

    fn take(&self) -> (Vec<WarningSeen>, Vec<StateSeen>) {
        std::mem::take(&mut *self.seen.lock())
    }

    async fn watch(self, observer: Observer, mut stop: watch::Receiver<bool>) {
        loop {
            self.add(&observer.look().await);
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }
}

/// Clients of all regions at work.
struct Clients {
    stop: watch::Sender<bool>,
    regions: Vec<tokio::task::JoinHandle<Result<Made>>>,
    record: Record,
}

impl Clients {
    fn start(cluster: &Cluster, history: &Path) -> Result<Clients> {
        let record = Record::create(history)?;
        let (stop, known) = (watch::Sender::new(false), Known::default());
        let mut regions = Vec::new();
        for (place, region) in (0u32..).zip(REGIONS) {
            let host = format!("{region}-clients");
            let each = cluster.members().iter().map(|id| Ok((*id, cluster.endpoint_of(*id)?)));
            let setting = Setting {
                region: region.to_owned(),
                endpoints: cluster.endpoints_from(region),
                each: each.collect::<Result<_>>()?,
                security: cluster.security(&host)?,
                first_number: (place + 1) * 100,
                known: known.clone(),
                record: record.clone(),
            };
            regions.push(cluster.host(&host)?.spawn(clients::run(setting, stop.subscribe())));
        }
        Ok(Clients { stop, regions, record })
    }

    /// Ends the loops, waits for what is under way, and closes the history.
    fn end(self, cluster: &Cluster) -> Result<BTreeMap<&'static str, u64>> {
        self.stop.send_replace(true);
        let mut made: BTreeMap<&'static str, u64> = BTreeMap::new();
        let ends = cluster.operating(async move {
            tokio::time::timeout(CLIENTS_LIMIT, futures::future::join_all(self.regions)).await
        })?;
        for end in ends.context("clients do not end")? {
            for (kind, counts) in end.context("clients panicked")?? {
                ensure!(
                    counts.left_out == 0,
                    "{} of {kind} were left out: too many were under way",
                    counts.left_out
                );
                *made.entry(kind).or_default() += counts.made;
            }
        }
        self.record.close()?;
        Ok(made)
    }
}

/// Carries a drill out.
///
/// # Errors
/// When it could not be carried out or its evidence not be had: then it proves nothing.
pub fn run(cluster: &mut Cluster, gangs: &Gangs, order: &Order<'_>) -> Result<Done> {
    check_clock()?;
    evidence::begin(order.dir, order.scenario_text)?;
    let (mine, client) = (gangs.clone(), cluster.observer().client().clone());
    let (running, busy) = cluster.operating(async move {
        let running = mine.settle(&client, GANGS_LIMIT).await?;
        let busy = busy_nodes(&client, &running).await?;
        anyhow::Ok((running.len(), busy))
    })??;
    (order.say)(&format!("{running} gangs run on {} nodes", busy.len()));
    cluster.take_endings();
    let marks = cluster.log_marks();
    let start_us = now_us();
    let clients = Clients::start(cluster, &order.dir.join(HISTORY))?;
    let looks = Looks::default();
    let looking = (looks.clone(), cluster.observer().clone(), clients.stop.subscribe());
    let watcher = cluster.host(OPERATOR)?.spawn(looking.0.watch(looking.1, looking.2));
    let mut carried = carry_out(cluster, order, busy);
    let reshaped = carried.as_ref().is_ok_and(|carried| carried.reshaped);
    let made = clients.end(cluster);
    let end_us = now_us();
    cluster.operating(async move { drop(watcher.await) })?;
    let mut harness = Harness::default();
    let quiet = quieten(cluster, &looks);
    harness.troubles.extend(quiet.err().map(|error| format!("{error:#}")));
    let made = match made {
        Ok(made) => made,
        Err(error) => {
            harness.troubles.push(format!("{error:#}"));
            BTreeMap::new()
        }
    };
    if let Ok(carried) = &mut carried {
        harness.troubles.append(&mut carried.troubles);
        harness.effects.append(&mut carried.effects);
    }
    harness.endings = cluster.take_endings();
    let harmed = carried
        .as_ref()
        .map_or_else(|_| Ok(Hosts::new()), |carried| harmed(&carried.parts, order.scenario))?;
    for (host, mark) in &marks {
        let text = mark.text()?;
        // A replica whose disk is harmed has to report it, and does so as an error; nobody may panic.
        let may_err = |line: &String| harmed.contains(host) && !line.contains("panicked at");
        let complaints = complaints(&text).into_iter().filter(|line| !may_err(line));
        harness.complaints.extend(complaints.map(|line| (host.clone(), line)));
        std::fs::write(order.dir.join(format!("{host}.log")), text).context("keeping a log")?;
    }
    let carried = carried?;
    let (warnings, states) = looks.take();
    let steps = harness.effects.iter().map(step_done).collect();
    let run = Run {
        scenario: order.scenario.name.clone(),
        number: order.number,
        seed: order.seed,
        place: order.place.to_owned(),
        version: order.version.to_owned(),
        start_us,
        fault_us: carried.fault_us,
        heal_us: carried.heal_us,
        end_us,
        fault_unix_ms: carried.fault_unix_ms,
        hosts: hosts(cluster, &carried, &harness.effects),
        steps,
        lease_ttl_ms: LEASE_TTL_MS,
        lease_margin_ms: LEASE_MARGIN_MS,
        clock_drift_milli: carried.clock_drift_milli,
        only_ours: true,
        recovered_us: carried.recovered_us,
        warnings,
        states,
        skipped: Vec::new(),
    };
    let log = log_of(cluster, carried.recovered_us.is_some())?;
    let intervals = evidence::intervals(&cluster.intervals(), start_us * 1_000)?;
    let scenario = order.scenario.clone();
    let scenario_text = order.scenario_text.to_owned();
    let collected = Collected { scenario_text, scenario, run, log, intervals, harness };
    collected.store(order.dir)?;
    let (history, verdict) = collected.judge(order.dir)?;
    let fit = collected.harness.findings().is_empty() && !reshaped;
    Ok(Done { verdict, collected, history, fit, made })
}

/// What is known once the steps were carried out.
struct Carried {
    effects: Vec<Effect>,
    troubles: Vec<String>,
    parts: Parts,
    touched: Hosts,
    members_before: std::collections::BTreeSet<u64>,
    fault_us: u64,
    fault_unix_ms: u64,
    heal_us: Option<u64>,
    recovered_us: Option<u64>,
    clock_drift_milli: u32,
    /// When what had not been undone by then was undone.
    over_ns: u64,
    reshaped: bool,
}

fn carry_out(
    cluster: &mut Cluster,
    order: &Order<'_>,
    busy: std::collections::BTreeSet<String>,
) -> Result<Carried> {
    nap(Instant::now() + BEFORE, order.interrupted)?;
    let observer = cluster.observer().clone();
    let seen = cluster.operating(async move {
        observer
            .until("no leader", HEAL_LIMIT, |seen| {
                seen.leader().map(|_| seen.clone()).ok_or_else(String::new)
            })
            .await
    })??;
    let leader = seen.leader().context("a leader")?;
    let roles = Roles { leader, voters: seen.voters(), busy };
    let parts = Parts::give(cluster.plan(), roles)?;
    let touched = touched(&parts, order.scenario)?;
    let members_before = cluster.members().clone();
    (order.say)(&format!("replica {leader} leads, in region {}", parts.leader_region()));
    let mut stage = Stage::new(cluster, order.scenario, parts.clone(), order.seed);
    let begun = Instant::now();
    let fault_us = now_us();
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("the clock")?;
    let mut troubles = Vec::new();
    let mut recovered_us = None;
    let steps = (|| {
        for due in timeline(&order.scenario.processes) {
            nap(begun + due.at, order.interrupted)?;
            if matches!(order.scenario.processes[due.step].action, Action::Recover { .. }) {
                // From its beginning: the survivor stops then, and what it says later is of the new generation.
                recovered_us = Some(now_us());
            }
            stage.carry_out(due)?;
            let told = stage.effects().iter().rfind(|effect| effect.step == due.step);
            let text = told.map(|effect| format!("{:?} {}: {}", due.phase, effect.verb, effect.seen));
            (order.say)(&format!("{:>6.2} s  {}", begun.elapsed().as_secs_f32(), text.unwrap_or_default()));
        }
        Ok(())
    })();
    // Something that takes as long as it takes may end behind the last step's time.
    let ended = Instant::now().max(begun + Duration::from_millis(order.scenario.processes_end_ms()));
    let heal_us = order.scenario.heal_ms().map(|_| now_us());
    let watched = match &steps {
        Ok(()) => nap(ended + Duration::from_millis(order.scenario.settle_ms), order.interrupted),
        Err(_) => Ok(()),
    };
    let over_ns = now_us().saturating_mul(1_000);
    let undone = stage.undo_all();
    let healed = undone.and_then(|()| stage.cluster().well(LAG_MAX, HEAL_LIMIT));
    let (effects, reshaped) = (stage.effects().to_vec(), stage.is_reshaped());
    if order.interrupted.load(Ordering::Acquire) {
        bail!("interrupted; everything was undone");
    }
    watched?;
    troubles.extend(
        steps.err().map(|error: anyhow::Error| format!("a step could not be carried out: {error:#}")),
    );
    troubles.extend(healed.err().map(|error| format!("the cluster did not recover: {error:#}")));
    Ok(Carried {
        effects,
        troubles,
        parts,
        touched,
        members_before,
        fault_us,
        fault_unix_ms: u64::try_from(unix.as_millis()).context("the clock")?,
        heal_us,
        recovered_us,
        clock_drift_milli: clock_drift(order.scenario),
        over_ns,
        reshaped,
    })
}

/// Sleeps until then, or until somebody wants everything to end.
fn nap(until: Instant, interrupted: &Interrupted) -> Result<()> {
    loop {
        ensure!(!interrupted.load(Ordering::Acquire), "interrupted");
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// The clients' jobs are cancelled; then all replicas come to one position, and say how they stand.
fn quieten(cluster: &Cluster, looks: &Looks) -> Result<()> {
    let (observer, looks) = (cluster.observer().clone(), looks.clone());
    cluster.operating(async move {
        looks.add(&observer.look().await);
        clients::cancel_all(observer.client()).await?;
        let seen = observer.equal(EQUAL_LIMIT).await?;
        looks.add(&seen);
        for (replica, status) in &seen.statuses {
            ensure!(
                status.records_rejected == 0,
                "replica {replica} rejected {} records",
                status.records_rejected
            );
        }
        anyhow::Ok(())
    })?
}

fn log_of(cluster: &Cluster, has_life_before: bool) -> Result<Vec<muster_drill::judge::LogRound>> {
    let observer = cluster.observer().clone();
    let leader = cluster.operating(async move {
        observer.until("no leader", HEAL_LIMIT, |seen| seen.leader().ok_or_else(String::new)).await
    })??;
    let archive =
        has_life_before.then(|| cluster.data_of(leader)).transpose()?.map(|data| data.join("archive"));
    let (client, endpoint) = (cluster.observer().client().clone(), cluster.endpoint_of(leader)?);
    cluster.operating(evidence::rounds(client, endpoint, archive))?
}

fn step_done(effect: &Effect) -> StepDone {
    StepDone {
        at_us: effect.at_ns / 1_000,
        until_us: effect.undone_at_ns.map(|at| at / 1_000),
        verb: effect.verb.clone(),
        text: format!("{}: {}", effect.hosts.join(" "), effect.seen),
    }
}

fn hosts(cluster: &Cluster, carried: &Carried, effects: &[Effect]) -> Vec<Host> {
    let of = |host: &crate::cluster::plan::HostPlan| {
        let runs = match &host.purpose {
            Purpose::Replica { id, .. } => Runs::Replica(*id),
            Purpose::Agent(name) => Runs::Agent(name.clone()),
            Purpose::Clients => Runs::Clients,
            Purpose::Operator => return None,
        };
        let gone = match runs {
            // A host that stood by all the time takes no part.
            Runs::Replica(id)
                if !carried.members_before.contains(&id) && !cluster.members().contains(&id) =>
            {
                return None;
            }
            Runs::Replica(id) => !cluster.members().contains(&id),
            Runs::Clients => effects.iter().any(|effect| {
                let is_undone_before = effect.undone_at_ns.is_some_and(|at| at < carried.over_ns);
                effect.verb == "cut" && effect.hosts.contains(&host.name) && !is_undone_before
            }),
            Runs::Agent(_) => false,
        };
        let joined = matches!(runs, Runs::Replica(id) if !carried.members_before.contains(&id));
        let touched = carried.touched.contains(&host.name) || joined;
        Some(Host { name: host.name.clone(), region: host.region.to_owned(), runs, touched, gone })
    };
    cluster.plan().hosts.iter().filter_map(of).collect()
}

/// A link that carries nothing.
const WHOLE_PPM: u32 = 1_000_000;

/// Hosts that a step touches. A cut touches the side that is cut off; a link that is only slower or loses some of what
/// it carries touches nobody, for everybody is still there; and neither does what is done to bring hosts back.
fn touched(parts: &Parts, scenario: &Scenario) -> Result<Hosts> {
    let mut touched = Hosts::new();
    let mut add = |selection: &Selection| -> Result<()> {
        touched.extend(parts.select(selection)?);
        Ok(())
    };
    for step in &scenario.processes {
        match &step.action {
            Action::Link { shape, .. } if shape.loss_ppm < WHOLE_PPM => {}
            Action::Cut { pair, .. } | Action::Link { pair, .. } | Action::Flap { pair, .. } => {
                if !pair.from.is_relative() {
                    add(&pair.from)?;
                }
                if !pair.to.is_relative() {
                    add(&pair.to)?;
                }
            }
            Action::Kill { what }
            | Action::Pause { what, .. }
            | Action::SlowDisk { what, .. }
            | Action::FullDisk { what, .. }
            | Action::Damage { what, .. }
            | Action::LoseDisk { what }
            | Action::PowerCut { what }
            | Action::Clock { what, .. }
            | Action::ReplaceReplica { what }
            | Action::RollingRestart { what }
            | Action::RollingUpgrade { what } => add(what)?,
            Action::Heal { .. }
            | Action::Recover { .. }
            | Action::Start { .. }
            | Action::Resume { .. }
            | Action::DiskRoom { .. }
            | Action::TransferLeadership { .. } => {}
        }
    }
    Ok(touched)
}

/// Hosts whose disk a step harms.
fn harmed(parts: &Parts, scenario: &Scenario) -> Result<Hosts> {
    let mut harmed = Hosts::new();
    for step in &scenario.processes {
        if let Action::SlowDisk { what, .. }
        | Action::FullDisk { what, .. }
        | Action::Damage { what, .. }
        | Action::LoseDisk { what }
        | Action::PowerCut { what } = &step.action
        {
            harmed.extend(parts.select(what)?);
        }
    }
    Ok(harmed)
}

/// How far off the rate of a clock is, at most, in thousandths.
fn clock_drift(scenario: &Scenario) -> u32 {
    let rate = |step: &muster_drill::scenario::Step<Action>| match step.action {
        Action::Clock { rate_milli, .. } => rate_milli.abs_diff(1_000),
        _ => 0,
    };
    scenario.processes.iter().map(rate).max().unwrap_or(0)
}

/// Where the evidence of a run goes.
#[must_use]
pub fn directory(out: &Path, scenario: &str, number: u32) -> PathBuf {
    out.join(format!("{scenario}-{number:03}"))
}
