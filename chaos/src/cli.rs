//! `muster-chaos`: the drills of `ops/drills`, carried out on real processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use muster_drill::scenario::Scenario;
use tokio::signal::unix::{SignalKind, signal};

use crate::bugs::{self, BugsArgs};
use crate::cluster::Disks;
use crate::cluster::plan::Replicas;
use crate::report::markdown;
use crate::run::drill::{Interrupted, directory};
use crate::run::evidence::{Collected, note_unfinished, stored, unfinished};
use crate::run::session::{Outcome, Session, Settings};
use crate::sandbox;
use crate::summary::{Bars, Row, Table};

/// Drills over real processes: regions, hosts and a wide-area network on this machine, faults, clients, and a judge.
#[derive(Parser)]
#[command(
    name = "muster-chaos",
    version,
    after_help = "\
Examples:
  muster-chaos list                                   the drills there are
  muster-chaos run leader-killed                      one of them, on five replicas in three regions
  muster-chaos run leader-region-lost --repeat 20 --out /tmp/drills
  muster-chaos all --repeat 5 --json                  all of them; one JSON object as the last line of output
  muster-chaos judge /tmp/drills/leader-killed-001    stored evidence once more

Exit codes: 0 every drill held or was skipped, 1 one did not, 2 usage, 130 interrupted.
Drills need network namespaces and /dev/net/tun; where they cannot be had they are skipped, with the reason."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the drills
    List {
        /// Directory of the scenarios
        #[arg(long, value_name = "DIR", default_value_os_t = drills())]
        drills: PathBuf,
    },
    /// Carry some drills out
    Run {
        /// Which, by name
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Carry all drills out
    All {
        #[command(flatten)]
        options: RunOptions,
    },
    Bugs(BugsArgs),
    /// Write a page about many runs, from their evidence
    Report {
        /// Directories of runs
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
        /// Into this file instead of standard output
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
        /// The table of a run of `muster-chaos bugs`, to stand at the end of the page
        #[arg(long, value_name = "FILE")]
        bugs: Option<PathBuf>,
        /// The command that made the runs, with its options, as the page gives it to its readers
        #[arg(long, value_name = "TEXT", default_value = "chaos/run-all")]
        command: String,
    },
    /// Judge stored evidence again
    Judge {
        /// The directory of one run, or of many
        dir: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct RunOptions {
    /// How often each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// What everything random is drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Size of the cluster
    #[arg(long, value_enum, default_value = "5")]
    replicas: Replicas,
    /// What the data of replicas lies on. Replicas that share one disk share its stalls, as machines do not
    #[arg(long, value_enum, default_value = "memory")]
    disks: Disks,
    /// Where evidence goes; must not exist yet. A temporary directory that is kept when a drill does not hold
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Report bars of time without holding runs to them: for builds without optimisation, and machines with other work
    #[arg(long)]
    say_times: bool,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    json: bool,
    /// The program that is drilled; usually the one in the directory of this program
    #[arg(long, value_name = "FILE")]
    muster: Option<PathBuf>,
    /// The release before it, for upgrades; without it the same program in an older record format
    #[arg(long, value_name = "FILE")]
    muster_old: Option<PathBuf>,
    /// Directory of the scenarios
    #[arg(long, value_name = "DIR", default_value_os_t = drills())]
    drills: PathBuf,
}

/// `ops/drills` of the source tree that this program was built from, unless there is one here.
fn drills() -> PathBuf {
    let here = PathBuf::from("ops/drills");
    if here.is_dir() { here } else { Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/drills") }
}

/// Everything that the program does.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::List { drills } => list(&drills),
        Command::Judge { dir, json } => judge(&dir, json),
        Command::Report { dirs, write, bugs, command } => {
            report(&dirs, write.as_deref(), bugs.as_deref(), &command)
        }
        Command::Run { names, options } => in_room(&options, Some(&names)),
        Command::All { options } => in_room(&options, None),
        Command::Bugs(args) => {
            bugs::run(&args).map(|noticed| if noticed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("muster-chaos: {error:#}");
        ExitCode::FAILURE
    })
}

/// A scenario with its text.
struct Loaded {
    scenario: Scenario,
    text: String,
}

fn load(dir: &Path) -> Result<BTreeMap<String, Loaded>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut loaded = BTreeMap::new();
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", dir.display()))?.path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let scenario = Scenario::parse(&path.to_string_lossy(), text.as_bytes())?;
        loaded.insert(scenario.name.clone(), Loaded { scenario, text });
    }
    ensure!(!loaded.is_empty(), "{} holds no scenario", dir.display());
    Ok(loaded)
}

fn list(dir: &Path) -> Result<ExitCode> {
    for (name, Loaded { scenario, .. }) in load(dir)? {
        let needs: Vec<String> = scenario.means().into_iter().map(|means| format!("{means:?}")).collect();
        let on = match (scenario.processes.is_empty(), scenario.live.is_empty()) {
            (false, false) => "processes, live",
            (false, true) => "processes",
            _ => "live",
        };
        println!("{name:<26} {:<52} {on}; needs {}", scenario.title, needs.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn judge(dir: &Path, json: bool) -> Result<ExitCode> {
    let mut table = Table::default();
    for directory in stored(dir)? {
        if let Some(left) = unfinished(&directory)? {
            match left.is_skipped {
                true => table.skip(&left.scenario, &left.why),
                false => table.broke(&left.scenario, 0, &left.why),
            }
            continue;
        }
        let collected = Collected::load(&directory)?;
        let (_, verdict) = collected.judge(&directory)?;
        print_findings(&verdict);
        table.add(Row::of(&collected, &verdict, Bars::Held));
    }
    finish(&table, json)
}

fn report(dirs: &[PathBuf], write: Option<&Path>, bugs: Option<&Path>, command: &str) -> Result<ExitCode> {
    let (mut runs, mut left) = (Vec::new(), Vec::new());
    for dir in dirs {
        for directory in stored(dir)? {
            if let Some(unfinished) = unfinished(&directory)? {
                left.push(unfinished);
                continue;
            }
            let collected = Collected::load(&directory)?;
            let (_, verdict) = collected.judge(&directory)?;
            runs.push((collected, verdict));
        }
    }
    let mut page = markdown(&runs, &left, command, &crate::summary::load());
    if let Some(bugs) = bugs {
        let table = std::fs::read_to_string(bugs).with_context(|| format!("reading {}", bugs.display()))?;
        page.push_str(&crate::report::rules_broken(&table));
    }
    match write {
        None => print!("{page}"),
        Some(path) => std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_findings(verdict: &muster_drill::judge::Verdict) {
    for (rule, breaches) in &verdict.findings.0 {
        eprintln!("{} {}: {rule}, {} times", verdict.scenario, verdict.number, breaches.count);
        for finding in breaches.first.iter().take(3) {
            eprintln!("    {}", finding.text);
            for line in finding.evidence.iter().take(4) {
                eprintln!("        {line}");
            }
        }
    }
}

fn finish(table: &Table, json: bool) -> Result<ExitCode> {
    eprintln!("{}", table.text());
    if json {
        println!("{}", serde_json::to_string(table).context("as JSON")?);
    }
    Ok(if table.held() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Drills leave nothing behind: they run where everything ends with the harness.
fn in_room(options: &RunOptions, names: Option<&[String]>) -> Result<ExitCode> {
    if let Err(unsupported) = sandbox::enter() {
        println!("skipped: {unsupported}");
        return Ok(ExitCode::SUCCESS);
    }
    let all = load(&options.drills)?;
    let chosen: Vec<&Loaded> = match names {
        None => all.values().filter(|loaded| !loaded.scenario.processes.is_empty()).collect(),
        Some(names) => {
            let find = |name: &String| {
                let known = || all.keys().cloned().collect::<Vec<_>>().join(", ");
                all.get(name).with_context(|| format!("there is no drill {name:?}; there are {}", known()))
            };
            names.iter().map(find).collect::<Result<_>>()?
        }
    };
    let (out, is_ours) = match &options.out {
        Some(out) => {
            ensure!(!out.exists(), "{} exists already; name a new directory", out.display());
            std::fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
            (out.canonicalize().with_context(|| format!("finding {}", out.display()))?, false)
        }
        None => (temporary()?, true),
    };
    let program = program(options.muster.as_deref())?;
    let interrupted: Interrupted = Arc::new(AtomicBool::new(false));
    watch_signals(&interrupted)?;
    let settings = Settings {
        version: version(&program)?,
        program,
        program_before: options.muster_old.as_deref().map(|path| self::program(Some(path))).transpose()?,
        replicas: options.replicas,
        disks: options.disks,
        seed: options.seed,
        out: out.clone(),
        place: crate::summary::machine(),
        interrupted: Arc::clone(&interrupted),
    };
    let bars = if options.say_times { Bars::Said } else { Bars::Held };
    let mut session = Session::new(settings);
    let mut table = Table::default();
    // One drill after the other, and then all of them again: a machine that gets slower shows in all of them alike.
    'rounds: for number in 1..=options.repeat {
        for Loaded { scenario, text } in &chosen {
            if session.is_interrupted() {
                break 'rounds;
            }
            session.say(&format!("{} {number} of {}: {}", scenario.name, options.repeat, scenario.title));
            match session.drill(scenario, text, number) {
                Outcome::Ran(done) => {
                    print_findings(&done.verdict);
                    let row = Row::of(&done.collected, &done.verdict, bars);
                    session.say(&format!("{} {number}: {}", scenario.name, row.line()));
                    table.add(row);
                }
                Outcome::Skipped(why) => {
                    println!("skipped: {}: {why}", scenario.name);
                    note_unfinished(&directory(&out, &scenario.name, number), text, true, &why)?;
                    table.skip(&scenario.name, &why);
                }
                Outcome::Broke(error) => {
                    session
                        .say(&format!("{} {number}: it could not be carried out: {error:#}", scenario.name));
                    let why = format!("{error:#}");
                    note_unfinished(&directory(&out, &scenario.name, number), text, false, &why)?;
                    table.broke(&scenario.name, number, &why);
                }
            }
        }
    }
    drop(session);
    if interrupted.load(Ordering::Acquire) {
        eprintln!("interrupted; everything was ended. Evidence so far is in {}", out.display());
        return Ok(ExitCode::from(130));
    }
    let code = finish(&table, options.json)?;
    if is_ours && table.held() {
        // Nothing to look at.
        std::fs::remove_dir_all(&out).with_context(|| format!("removing {}", out.display()))?;
    } else {
        eprintln!("evidence is in {}, for example {}", out.display(), directory(&out, "NAME", 1).display());
    }
    Ok(code)
}

fn temporary() -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("muster-chaos-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
    Ok(directory)
}

fn program(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_path_buf(),
        None => std::env::current_exe().context("finding this program")?.with_file_name("muster"),
    };
    let advice = || {
        format!("{} is not there; build it (cargo build -p muster) or name it with --muster", path.display())
    };
    path.canonicalize().with_context(advice)
}

fn version(program: &Path) -> Result<String> {
    let said = std::process::Command::new(program).arg("--version").output();
    let said = said.with_context(|| format!("running {}", program.display()))?;
    ensure!(said.status.success(), "{} does not say its version", program.display());
    let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    Ok(match commit() {
        Some(commit) => format!("{version}, from a checkout of {commit}"),
        None => version,
    })
}

/// The commit of the checkout that this program was built in, with `-dirty` where files differ from it. None where it was
/// built outside any.
fn commit() -> Option<String> {
    let described = std::process::Command::new("git")
        .args([
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
            "--always",
            "--abbrev=10",
            "--dirty",
            "--exclude=*",
        ])
        .output()
        .ok()?;
    let commit = String::from_utf8_lossy(&described.stdout).trim().to_owned();
    (described.status.success() && !commit.is_empty()).then_some(commit)
}

/// SIGINT and SIGTERM end drills in order, undoing what was done.
fn watch_signals(interrupted: &Interrupted) -> Result<()> {
    let interrupted = Arc::clone(interrupted);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("a runtime for signals")?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let wanted = |kind| signal(kind).context("listening for signals");
        (wanted(SignalKind::interrupt())?, wanted(SignalKind::terminate())?)
    };
    let watching = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            eprintln!("undoing what was done; this takes a moment");
            interrupted.store(true, Ordering::Release);
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watching).context("a thread for signals")?;
    Ok(())
}
