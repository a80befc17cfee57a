//! `muster drill run`.

use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use muster_client::{AttemptError, Client};
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_drill::history::{Line, Operation, Writer};
use muster_types::RefusalCode;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tokio::sync::mpsc;

use super::cluster_snapshot::{self, ClusterSnapshot};
use super::drive::{Driver, End, Interrupts, Parts};
use super::means::{Hold, Identity, cancel_probes, probe_name, release};
use super::plan::{Plan, span};
use super::probes::{Load, Probes};
use super::radius::{self, BlastRadius, Check, Limits};
use super::record::{DrillsDirectory, Member, Record, Timeline};
use super::standard::{self, LoadedScenario};
use super::{DirectoryArgs, report};

/// Options of `muster drill run`.
#[derive(Args)]
pub struct RunArgs {
    /// The scenario; see `muster drill list`
    #[arg(value_name = "SCENARIO", required_unless_present = "file", conflicts_with = "file")]
    scenario: Option<String>,
    /// A scenario of your own
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Say what would be done, to whom, and whether it may be; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for the scenario's name
    #[arg(long)]
    yes: bool,
    /// The tenant that probes are submitted for
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Submissions, and linearizable reads of each replica, in a second
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    rate: u32,
    /// Refuse to run when more of the running accelerators are within reach
    #[arg(long, value_name = "PERCENT", default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=100))]
    max_share: u64,
    /// Run although gangs that never saved their work are within reach
    #[arg(long)]
    allow_unsaved: bool,
    /// Refuse to run what lasts longer
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = muster_console::timeout)]
    max_duration: Duration,
    /// How long probes are made before anything is done
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = muster_console::timeout)]
    baseline: Duration,
    #[command(flatten)]
    directory: DirectoryArgs,
}

impl RunArgs {
    fn limits(&self) -> Limits {
        Limits {
            share_max_percent: self.max_share,
            allow_unsaved: self.allow_unsaved,
            duration_max_ms: u64::try_from(self.max_duration.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What would be done, and what forbids it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Proposal {
    scenario: String,
    title: String,
    steps: Vec<ProposedStep>,
    reach: BlastRadius,
    limits: Vec<Check>,
    permitted: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProposedStep {
    at_ms: u64,
    what: String,
    undone: &'static str,
}

fn proposal(given: &LoadedScenario, plan: &Plan, snapshot: &ClusterSnapshot, limits: &Limits) -> Proposal {
    let checks = radius::before(plan, snapshot, limits, None);
    let steps = plan.steps.iter().map(|step| ProposedStep {
        at_ms: step.at_ms,
        what: step.action.describe(),
        undone: step.action.undone(),
    });
    Proposal {
        scenario: given.scenario.name.clone(),
        title: given.scenario.title.clone(),
        steps: steps.collect(),
        reach: BlastRadius::of(plan, snapshot),
        permitted: checks.iter().all(|check| check.holds),
        limits: checks,
    }
}

fn print(proposal: &Proposal, mut line: impl FnMut(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    line(&format!("{}: {}", proposal.scenario, proposal.title))?;
    for (place, step) in proposal.steps.iter().enumerate() {
        line(&format!("step {} after {}: {}", place + 1, span(step.at_ms), step.what))?;
        line(&format!("  undone: {}", step.undone))?;
    }
    for check in &proposal.limits {
        let verdict = if check.holds { "ok     " } else { "FORBIDS" };
        line(&format!("{verdict} {}: {}", check.limit, check.text))?;
    }
    Ok(())
}

fn forbidden(checks: &[Check]) -> Option<Failure> {
    let broken: Vec<String> = checks
        .iter()
        .filter(|check| !check.holds)
        .map(|check| format!("{}: {}", check.limit, check.text))
        .collect();
    (!broken.is_empty()).then(|| {
        Failure::new(Exit::Conflict, "the drill may not run now; nothing was done").with_details(broken)
    })
}

/// Who says to run it, and where.
fn started_by() -> String {
    let user =
        std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "somebody".into());
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    let text = format!("{user}@{}", host.unwrap_or_else(|| "an unknown host".into()));
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// `d-20260131t080000z-1f3a`: in order of time, and no two alike.
fn new_id(now: jiff::Timestamp) -> String {
    let time: String =
        now.to_string().chars().take_while(|c| *c != '.').filter(|c| !"-:Z".contains(*c)).collect();
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("d-{}z-{}", time.to_lowercase(), &random[..4])
}

/// Microseconds of the clock that histories are written by.
fn boot_us() -> u64 {
    // It does not fail for a clock that the system has.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// The scenario's name, typed.
fn confirmed(console: &Console, name: &str) -> Result<(), Failure> {
    console.error(&format!("This acts on a live cluster. Type the name of the drill ({name}) to run it:"));
    let mut typed = String::new();
    std::io::stdin().lock().read_line(&mut typed)?;
    if typed.trim() == name {
        return Ok(());
    }
    Err(Failure::usage("that is not the name of the drill; nothing was done")
        .with_next("--yes runs it without a question"))
}

pub async fn run(global: &Global, console: &Console, args: RunArgs) -> Result<Exit, Failure> {
    let given = match (&args.file, &args.scenario) {
        (Some(path), _) => standard::read(path)?,
        (None, Some(name)) => standard::named(name)?,
        (None, None) => return Err(Failure::usage("name a scenario")),
    };
    let limits = args.limits();
    let client = global.client().await?;
    let seen = cluster_snapshot::all(&client).await?;
    if let Some(why) = seen.replicas.iter().find_map(|replica| replica.denied.as_ref()) {
        return Err(Failure::new(Exit::Denied, why.as_str())
            .with_next("drills are for operators: use an admin's certificate"));
    }
    let plan = Plan::of(&given.scenario, &seen).map_err(|why| Failure::new(Exit::Conflict, why))?;
    let proposal = proposal(&given, &plan, &seen, &limits);
    if args.dry_run {
        match console.format {
            Format::Json | Format::Yaml => {
                console.object(&Document::new("DrillProposal", Some(seen.log_index), &proposal))?;
            }
            Format::Name => console.line(&proposal.scenario)?,
            Format::Table | Format::Wide | Format::Html | Format::Csv => {
                print(&proposal, |line| console.line(line))?
            }
        }
        return Ok(if proposal.permitted { Exit::Ok } else { Exit::Conflict });
    }
    print(&proposal, |line| {
        console.progress(line);
        Ok(())
    })?;
    if let Some(failure) = forbidden(&proposal.limits) {
        return Err(failure);
    }
    let directory = DrillsDirectory::find(args.directory.dir.clone())?;
    if !args.yes {
        confirmed(console, &given.scenario.name)?;
    }
    let drill =
        DrillRun { client: &client, console, args: &args, limits, given: &given, directory: &directory };
    let (record, end) = drill.run().await?;
    let good = report::after_run(&client, console, &directory, &record).await?;
    Ok(match end {
        End::Completed if good => Exit::Ok,
        End::Completed | End::Aborted(_) | End::Stopped(_) => Exit::Failed,
        End::Interrupted => Exit::Interrupted,
    })
}

/// A drill that was confirmed and is to be run.
struct DrillRun<'a> {
    client: &'a Client,
    console: &'a Console,
    args: &'a RunArgs,
    limits: Limits,
    given: &'a LoadedScenario,
    directory: &'a DrillsDirectory,
}

fn not_held((replica, error): &(u64, AttemptError)) -> Failure {
    let code = match error {
        AttemptError::Answer { refused, .. } => refused.code,
        _ => None,
    };
    let headline = format!("replica {replica} does not take part: {}", cluster_snapshot::why(error));
    let exit = match code {
        Some(RefusalCode::DrillRunning) => Exit::Conflict,
        Some(RefusalCode::PermissionDenied) => Exit::Denied,
        _ => Exit::Unavailable,
    };
    Failure::new(exit, headline).with_next("nothing was done; `muster cluster status` shows what runs")
}

impl DrillRun<'_> {
    async fn run(&self) -> Result<(Record, End), Failure> {
        let started_at = jiff::Timestamp::now();
        let identity = Identity {
            id: new_id(started_at),
            name: self.given.scenario.name.clone(),
            started_by: started_by(),
        };
        let id = identity.id.clone();
        let path = self.directory.create(&id)?;
        let mut interrupts = Interrupts::listen()?;
        // Once every replica holds it no other drill can begin: what is seen from here on stays so.
        let first = cluster_snapshot::replicas(self.client).await?;
        let services = cluster_snapshot::drill_services(self.client, &first);
        let held = Hold::begin(identity.clone(), services).await;
        let (hold, news) = held.map_err(|refused| not_held(&refused))?;
        let (plan, seen) = match self.look_again(&id).await {
            Ok(looked) => looked,
            Err(failure) => {
                hold.end().await;
                return Err(failure);
            }
        };
        self.console.progress(&format!(
            "drill {id} begins; Ctrl-C or `muster drill stop` ends it and undoes everything"
        ));
        let clock = (Instant::now(), boot_us());
        let mut timeline = Timeline::new(clock.0);
        if let Some(leader) = seen.leader {
            timeline.leads(leader);
        }
        let load = Load {
            name: probe_name(&id),
            tenant: self.args.tenant.clone(),
            per_second: self.args.rate,
            clock,
        };
        let probing = Probes::begin(self.client, &seen, load);
        let (probes, operations) = match probing {
            Ok(probing) => probing,
            Err(error) => {
                hold.end().await;
                return Err(Failure::new(Exit::Failed, error.to_string()));
            }
        };
        let writing = tokio::spawn(write_down(path.join("probes.jsonl"), operations));
        let parts = Parts {
            client: self.client,
            console: self.console,
            plan: &plan,
            hold: &hold,
            news,
            probes: &probes,
            interrupts: &mut interrupts,
            timeline: &mut timeline,
        };
        let end = Driver::new(parts).run(self.args.baseline).await;
        let undone = self.undo(hold, &plan, &mut timeline).await;
        let probes_unmade = probes.finish().await;
        let written = writing.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let left = cancel_probes(self.client, Some(&id)).await;
        let last = cluster_snapshot::replicas(self.client).await;
        for replica in last.iter().flat_map(|snapshot| &snapshot.replicas) {
            if let Some((log_index, digest)) = &replica.state {
                timeline.state_seen(replica.id, *log_index, digest);
            }
        }
        let record = Record {
            id: id.clone(),
            scenario: self.given.text.clone(),
            name: identity.name,
            started_by: identity.started_by,
            started_at: started_at.to_string(),
            clock_us: clock.1,
            fault_unix_ms: fault_unix_ms(started_at, &timeline),
            tenant: self.args.tenant.clone(),
            members: members(&seen),
            silent: plan.silent_ever().into_iter().collect(),
            first_log_index: seen.log_index,
            last_log_index: last.as_ref().map_or(0, |snapshot| snapshot.log_index),
            fault_at_ms: timeline.fault_at_ms,
            healed_at_ms: timeline.healed_at_ms,
            ended_at_ms: timeline.now_ms(),
            end: end_word(&end).to_owned(),
            end_detail: end.describe(),
            probes_unmade,
            states: std::mem::take(&mut timeline.states),
            warnings: std::mem::take(&mut timeline.warnings),
            steps: std::mem::take(&mut timeline.steps),
            notes: std::mem::take(&mut timeline.notes),
            led: std::mem::take(&mut timeline.led),
        };
        self.directory.save(&record)?;
        written?;
        undone?;
        left?;
        self.console.progress(&format!("drill {id}: {}; kept in {}", end.describe(), path.display()));
        Ok((record, end))
    }

    /// Every limit once more, now that no other drill can begin.
    async fn look_again(&self, own: &str) -> Result<(Plan, ClusterSnapshot), Failure> {
        let seen = cluster_snapshot::all(self.client).await?;
        let plan = Plan::of(&self.given.scenario, &seen).map_err(|why| Failure::new(Exit::Conflict, why))?;
        match forbidden(&radius::before(&plan, &seen, &self.limits, Some(own))) {
            Some(failure) => Err(failure),
            None => Ok((plan, seen)),
        }
    }

    /// Takes back whatever is still in force.
    async fn undo(&self, hold: Hold, plan: &Plan, timeline: &mut Timeline) -> Result<(), Failure> {
        let id = hold.identity.id.clone();
        let untold = hold.end().await;
        for (replica, why) in untold {
            timeline.note(
                "undone",
                &format!("replica {replica} could not be told, and forgets it by itself: {why}"),
            );
            let text = format!(
                "replica {replica} could not be told that the drill is over ({why}); it forgets it within seconds"
            );
            self.console.progress(&text);
        }
        if !plan.cordoned().is_empty() {
            let put_back = release(self.client, |_, by| by == id).await.map_err(|error| {
                Failure::from(error)
                    .with_next("nodes are still kept away from work: `muster drill stop` puts them back")
            })?;
            if put_back > 0 {
                timeline.note("undone", &format!("{put_back} nodes take work again"));
            }
        }
        Ok(())
    }
}

fn end_word(end: &End) -> &'static str {
    match end {
        End::Completed => "completed",
        End::Interrupted => "interrupted",
        End::Stopped(_) => "stopped",
        End::Aborted(_) => "aborted",
    }
}

fn fault_unix_ms(started_at: jiff::Timestamp, timeline: &Timeline) -> u64 {
    let began = u64::try_from(started_at.as_millisecond()).unwrap_or(0);
    began + timeline.fault_at_ms.unwrap_or(0)
}

fn members(seen: &ClusterSnapshot) -> Vec<Member> {
    let member = |replica: &cluster_snapshot::ReplicaStatus| Member {
        id: replica.id,
        region: replica.region.clone(),
        voter: replica.voter,
    };
    seen.replicas.iter().map(member).collect()
}

/// Appends what probes saw, line by line, so that what was seen is kept also when this process dies.
async fn write_down(path: PathBuf, mut operations: mpsc::Receiver<Operation>) -> Result<(), Failure> {
    let failed = |error: std::io::Error, path: &Path| {
        Failure::new(Exit::Failed, format!("{} cannot be written: {error}", path.display()))
    };
    let file = File::create(&path).map_err(|error| failed(error, &path))?;
    let mut writer = Writer::new(file);
    let mut outcome = Ok(());
    // Drained also when the disk is full: a drill never waits for its own notes.
    while let Some(operation) = operations.recv().await {
        if outcome.is_ok() {
            outcome = writer.append(&Line::Operation(operation)).map_err(|error| failed(error, &path));
        }
    }
    writer.into_inner().flush().map_err(|error| failed(error, &path))?;
    outcome
}
