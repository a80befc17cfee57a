//! Many drills, one after the other, on one cluster as long as it is fit for another.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use muster_drill::scenario::{Action, Means as Needed, Scenario};

use super::drill::{Done, Interrupted, Order, directory, run};
use crate::cluster::plan::Replicas;
use crate::cluster::{Cluster, Disks, Fitness, Options};
use crate::faults::{ClockScope, Tool, install_missing};
use crate::load::gangs::Gangs;
use crate::unsupported::Unsupported;

/// Drills on one cluster: its log, which every judge replays whole, stays short.
const DRILLS_PER_CLUSTER: u32 = 12;
/// The previous format, where no older program is given.
const FORMAT_BEFORE: u16 = 1;

/// How drills are run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that is drilled.
    pub program: PathBuf,
    /// The release before it, for upgrades; the same program in an older format where there is none.
    pub program_before: Option<PathBuf>,
    /// Size of the cluster.
    pub replicas: Replicas,
    /// What the data of replicas lies on, unless a drill needs something else.
    pub disks: Disks,
    /// What everything random is drawn from.
    pub seed: u64,
    /// Where evidence goes.
    pub out: PathBuf,
    /// What machine this is.
    pub place: String,
    /// The release that is drilled.
    pub version: String,
    /// Whether to end at once.
    pub interrupted: Interrupted,
}

/// What came of one order.
pub enum Outcome {
    /// It was carried out.
    Ran(Box<Done>),
    /// This machine lacks what it needs.
    Skipped(String),
    /// It could not be carried out: it proves nothing, and counts as failed.
    Broke(anyhow::Error),
}

/// A cluster and the drills on it.
pub struct Session {
    settings: Settings,
    cluster: Option<(Cluster, Gangs, Fitness)>,
    drills: u32,
    clusters: u32,
    begun: Instant,
}

/// What a cluster has to be made for.
fn fitness(scenario: &Scenario, usual: Disks) -> Fitness {
    let means = scenario.means();
    let disks = match (means.contains(&Needed::LosingDisk), means.contains(&Needed::SmallDisk)) {
        (true, _) => Disks::Losing,
        (false, true) => Disks::Memory,
        (false, false) => usual,
    };
    let upgrades = |action: &Action| matches!(action, Action::RollingUpgrade { .. });
    Fitness {
        upgrade: scenario.processes.iter().any(|step| upgrades(&step.action)),
        disks,
        // The time of day alone: with it the library would make the monotonic clocks of running processes jump, as no
        // machine's do, and what followed would be found wrong for nothing.
        clocks: means.contains(&Needed::OtherClock).then_some(ClockScope::Wall),
    }
}

impl Session {
    /// One without a cluster yet.
    #[must_use]
    pub fn new(settings: Settings) -> Session {
        Session { settings, cluster: None, drills: 0, clusters: 0, begun: Instant::now() }
    }

    /// Prints something for the person who watches.
    pub fn say(&self, text: &str) {
        eprintln!("{:>7.1}s  {text}", self.begun.elapsed().as_secs_f32());
    }

    /// Carries one drill out.
    pub fn drill(&mut self, scenario: &Scenario, scenario_text: &str, number: u32) -> Outcome {
        if let Some(missing) = missing(scenario) {
            return Outcome::Skipped(missing);
        }
        let outcome = self.attempt(scenario, scenario_text, number);
        match outcome {
            Ok(done) => {
                self.drills += 1;
                if !done.fit {
                    self.cluster = None;
                }
                Outcome::Ran(Box::new(done))
            }
            Err(error) => {
                self.cluster = None;
                match error.chain().find_map(|cause| cause.downcast_ref::<Unsupported>()) {
                    Some(unsupported) => Outcome::Skipped(unsupported.to_string()),
                    None => Outcome::Broke(error),
                }
            }
        }
    }

    fn attempt(&mut self, scenario: &Scenario, scenario_text: &str, number: u32) -> Result<Done> {
        let fitness = fitness(scenario, self.settings.disks);
        let used_up = self.drills >= DRILLS_PER_CLUSTER;
        if used_up || self.cluster.as_ref().is_some_and(|(_, _, made_for)| *made_for != fitness) {
            self.cluster = None;
        }
        if self.cluster.is_none() {
            self.drills = 0;
            self.cluster = Some(self.new_cluster(fitness)?);
        }
        let dir = directory(&self.settings.out, &scenario.name, number);
        let begun = self.begun;
        let name = scenario.name.clone();
        let say =
            move |text: &str| eprintln!("{:>7.1}s  {name} {number}: {text}", begun.elapsed().as_secs_f32());
        let order = Order {
            scenario_text,
            scenario,
            number,
            seed: self.settings.seed,
            dir: &dir,
            place: &self.settings.place,
            version: &self.settings.version,
            interrupted: &self.settings.interrupted,
            say: &say,
        };
        let (cluster, gangs, _) = self.cluster.as_mut().context("a cluster was just made")?;
        run(cluster, gangs, &order)
    }

    fn new_cluster(&mut self, fitness: Fitness) -> Result<(Cluster, Gangs, Fitness)> {
        self.clusters += 1;
        let began = Instant::now();
        let settings = &self.settings;
        let options = Options {
            fitness,
            replicas: settings.replicas,
            program: settings.program.clone(),
            program_before: settings.program_before.clone().filter(|_| fitness.upgrade),
            format_before: (fitness.upgrade && settings.program_before.is_none()).then_some(FORMAT_BEFORE),
            dir: settings.out.join(format!("cluster-{:03}", self.clusters)),
            seed: settings.seed.wrapping_add(u64::from(self.clusters)),
        };
        let cluster = Cluster::start(options)?;
        let gangs = Gangs::new(&settings.program, &cluster.intervals(), &cluster.checkpoints())?;
        let client = cluster.observer().client().clone();
        cluster.operating(async move {
            let request =
                muster_wire::v1::SetPolicyRequest { policy: Some(Gangs::policy()), ..Default::default() };
            client.set_policy(request).await.context("setting the policy")
        })??;
        self.say(&format!(
            "cluster {}: {} replicas and {} nodes are well after {:.1} s",
            self.clusters,
            cluster.members().len(),
            cluster.plan().agents().len(),
            began.elapsed().as_secs_f32()
        ));
        Ok((cluster, gangs, fitness))
    }

    /// Whether somebody wants everything to end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.settings.interrupted.load(Ordering::Acquire)
    }
}

/// What a scenario needs and this harness cannot do here.
fn missing(scenario: &Scenario) -> Option<String> {
    if scenario.processes.is_empty() {
        return Some("it has steps for live clusters only".to_owned());
    }
    let tools = scenario.means().into_iter().filter_map(|means| match means {
        Needed::SystemCalls => Some(Tool::Strace),
        Needed::OtherClock => Some(Tool::Faketime),
        _ => None,
    });
    let tools: Vec<Tool> = tools.collect();
    // Disks show whether they can be had when a cluster is started on them.
    install_missing(&tools).first().map(ToString::to_string)
}
