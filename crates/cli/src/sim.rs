//! `muster sim …`: the scheduler of this program over a trace, without a cluster.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use muster_console::{Console, Exit, Failure, Grid, one_line};
use muster_manifest::{Problem, parse_policy, quantity};
use muster_sim::generate::{self, GenerateError, Like, Shape};
use muster_sim::trace::{self, Jobs, Order, SubmitOrder, TraceError};
use muster_sim::{EPOCH_MS, Preset, Quantiles, ReplayPolicy, TenantReport, html, pack, queue, side_by_side};
use muster_types::policy::Policy;
use muster_wire::convert;

use crate::job_files::{self, located};
use crate::told::TOLD_EVERY;

/// Most policies of one call.
const POLICIES_MAX: usize = 8;

/// Tenants of a table; `--json` has all of them.
const TENANTS_SHOWN: usize = 30;

/// Commands that replay traces.
#[derive(Subcommand)]
pub enum SimCommand {
    /// How full a fleet gets when jobs arrive and none ever ends
    Pack(PackArgs),
    /// How long jobs wait when they arrive and end as they did
    Queue(QueueArgs),
    /// Make a trace of a known shape
    Generate(GenerateArgs),
}

/// Options of `muster sim pack`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster sim pack --nodes nodes.csv.gz --jobs jobs.csv.gz --order order.txt.gz
  muster sim pack --nodes nodes.csv.gz --jobs jobs.csv.gz --order order.txt.gz --json | jq .allocated_percent_at_130
  muster sim pack --nodes nodes.csv.gz --jobs jobs.csv.gz --order order.txt.gz --policy policy.yaml

Each line of the order is one more instance of that job: it is placed at once or never. Arrived is what
the jobs so far ask for, placed or not; allocated is what those placed hold; both in percent of the
fleet's devices. The value at a percentage is the last one while arrived, rounded, equals it.
placements_per_s counts only the time that the scheduler itself took.

Files are CSV with a header, plain or gzip. Nodes: node_id, region, cluster, accel_type, accel_count,
cpu_milli, mem_mib. Jobs: job_id, submit_s, duration_s, accel_type (empty: any; A|B: either), replicas,
accel_milli (1000 is one device), cpu_milli, mem_mib, and if there are tenant, queue, tier, home_cluster,
preemptible (true or false) and deadline_s. `muster sim queue --help` says how a policy file is replayed.
An empty cell is unknown: a demand that restrains nothing, a supply without end.")]
pub struct PackArgs {
    /// The fleet
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// The jobs
    #[arg(long, value_name = "FILE")]
    jobs: PathBuf,
    /// Ids of jobs in the order of their arrival, one a line
    #[arg(long, value_name = "FILE")]
    order: PathBuf,
    /// A policy file, by a path with / or .yaml, or default, fifo, easy, shortest, fair or no-preemption; several
    /// times to compare [default: default]
    #[arg(long, value_name = "FILE|NAME")]
    policy: Vec<String>,
    /// Second 0 of the trace, for windows with dates, such as 2026-11-22T08:00:00Z [default: 2020-09-13T12:26:40Z]
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// One JSON object on one line instead of a table
    #[arg(long)]
    json: bool,
}

/// What the scheduler is told of run times.
#[derive(Clone, Copy, ValueEnum)]
enum Durations {
    /// What they will be
    True,
    /// A run-time limit: the next of 1h, 4h, 12h, 1d, 3d, 7d, 30d
    Limit,
    /// Nothing
    Predicted,
}

/// Options of `muster sim queue`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster sim queue --nodes nodes.csv.gz --jobs jobs.csv.gz
  muster sim queue --nodes nodes.csv.gz --jobs jobs.csv.gz --home-only --durations limit --html report.html
  muster sim queue --nodes nodes.csv.gz --jobs jobs.csv.gz --failures failures.csv.gz --json | jq .queue_p99_s
  muster sim queue --nodes nodes.csv.gz --jobs jobs.csv.gz --policy policy.yaml
  muster sim queue --nodes nodes.csv.gz --jobs jobs.csv.gz --policy now.yaml --policy next.yaml --html both.html

Completion (JCT) is from submission to end. Queueing is from submission to the start of the run that the
job ended by: work that was lost before counts as waiting. Utilisation is the device-seconds that gangs
held over those of the whole fleet while some job waited or ran. The p-th percentile of n values is the
one at place ceil(p*n/100) in ascending order. Seconds everywhere.

A policy file is that of `muster policy set`: all of it holds, for the tenants, types and regions of the trace
that are written like its own in small letters. With --home-only each cluster is a region. Jobs that it refuses
are counted by reason, and every tenant is reported. Times in windows such as +2h count from the beginning of
the trace; with dates say when that was with --start. Presets give every tenant every right.

A gang on a node that fails begins again elsewhere. Jobs that could never run are counted and named; so
are those whose duration_s is empty. Failures: node_id, failed_s, repaired_s. `muster sim pack --help`
describes the other files; here jobs must be in the order of submit_s.")]
pub struct QueueArgs {
    /// The fleet
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// The jobs, in the order of their submission
    #[arg(long, value_name = "FILE")]
    jobs: PathBuf,
    /// Nodes that fail and when they are repaired
    #[arg(long, value_name = "FILE")]
    failures: Option<PathBuf>,
    /// A policy file, by a path with / or .yaml, or default, fifo, easy, shortest, fair or no-preemption; several
    /// times to compare [default: default]
    #[arg(long, value_name = "FILE|NAME")]
    policy: Vec<String>,
    /// Second 0 of the trace, for windows with dates, such as 2026-11-22T08:00:00Z [default: 2020-09-13T12:26:40Z]
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// What the scheduler is told of run times
    #[arg(long, value_enum, default_value_t = Durations::True)]
    durations: Durations,
    /// Keep each job in its home_cluster
    #[arg(long)]
    home_only: bool,
    /// One JSON object on one line instead of tables
    #[arg(long)]
    json: bool,
    /// Write a page with charts as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Say on stderr how far it is after each day, and not only each second
    #[arg(long)]
    progress: bool,
}

/// Options of `muster sim generate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster sim generate mix --like philly --seed 7 --out philly
  muster sim generate kueue-baseline --out baseline
  muster sim generate failures --nodes philly/nodes.csv.gz --days 30 --out philly

Shapes: kueue-baseline, kueue-large, kueue-tas and kai-scale are the published performance tests of these
schedulers; mix has the sizes and run times published of a cluster: seren, kalos, philly, helios or pai;
crowd is 300 hosts full of one-device jobs of the lowest tier, and four production jobs of a whole host;
failures are nodes that fail at the rates published of rsc1, rsc2 or llama3 and are repaired after 2 h in
the median and 6 h in the mean, which is an assumption.

Writes nodes.csv.gz, jobs.csv.gz and failures.csv.gz, whichever the shape has; their paths go to stdout.
The same options give the same bytes.")]
pub struct GenerateArgs {
    /// What to make
    shape: Shape,
    /// The directory to write to; made when it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Same seed, same trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After whom [default: seren for a mix, rsc1 for failures]
    #[arg(long, value_name = "NAME")]
    like: Option<Like>,
    /// Jobs of a mix [default: 20000]
    #[arg(long, value_name = "COUNT")]
    job_count: Option<u64>,
    /// Of a mix: what is asked for in percent of the fleet [default: 85]
    #[arg(long, value_name = "PERCENT")]
    load: Option<u32>,
    /// Days of failures [default: 30]
    #[arg(long, value_name = "DAYS")]
    days: Option<u64>,
    /// The fleet that fails, if it is there already
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
}

pub fn run(console: &Console, command: SimCommand) -> Result<Exit, Failure> {
    match command {
        SimCommand::Pack(args) => run_pack(console, &args),
        SimCommand::Queue(args) => run_queue(console, &args),
        SimCommand::Generate(args) => run_generate(console, args),
    }
}

/// The sentence of an error, and under it those of its causes.
fn wrong(exit: Exit, error: &dyn Error) -> Failure {
    Failure::of_error(exit, error)
}

/// A trace that cannot be read.
fn wrong_trace(error: TraceError) -> Failure {
    wrong(Exit::Usage, &error)
}

/// The policies named on a command line; the default one where there is none.
fn policies(given: &[String], start_ms: u64) -> Result<Vec<ReplayPolicy>, Failure> {
    if given.len() > POLICIES_MAX {
        return Err(Failure::usage(format!("at most {POLICIES_MAX} policies can be compared at once")));
    }
    if given.is_empty() {
        return Ok(vec![ReplayPolicy::default()]);
    }
    given.iter().map(|given| policy(given, start_ms)).collect()
}

/// A preset by its name, or else a file by its path. A word that is neither a preset nor looks like a path is no
/// file, even if there is one: a preset that is misspelt must not become one.
fn policy(given: &str, start_ms: u64) -> Result<ReplayPolicy, Failure> {
    let unknown = match given.parse::<Preset>() {
        Ok(preset) => return Ok(preset.into()),
        Err(unknown) => unknown,
    };
    let is_path = given.contains('/') || [".yaml", ".yml"].iter().any(|ending| given.ends_with(ending));
    if !is_path {
        return Err(Failure::usage(format!("--policy {given}: {unknown}")).with_next(
            "name a policy file by a path with a / in it, such as ./policy, or with the ending .yaml",
        ));
    }
    Ok(ReplayPolicy::Whole { label: given.to_owned(), policy: Box::new(policy_file(given, start_ms)?) })
}

/// The policy of a file, checked as the server would. Times such as `+2h` count from `start_ms`.
pub(crate) fn policy_file(given: &str, start_ms: u64) -> Result<Policy, Failure> {
    let wrong = |problems: Vec<Problem>| {
        Failure::usage(format!("the policy file {given} is not valid"))
            .with_details(problems.iter().map(|problem| located(given, problem)))
            .with_next("correct the file; `muster policy check FILE` checks it")
    };
    let file = parse_policy(&job_files::read(given)?, start_ms).map_err(|error| wrong(error.0))?;
    file.check().map_err(|error| wrong(error.0))?;
    convert::policy_from_proto("policy", Some(file.message.clone()))
        .map_err(|found| wrong(found.iter().map(|violation| file.explain(violation)).collect()))
}

/// When second 0 of a trace is.
fn start_ms(given: Option<&String>) -> Result<u64, Failure> {
    let Some(text) = given else { return Ok(EPOCH_MS) };
    let ms = quantity::time_ms(text, job_files::now_ms())
        .map_err(|error| Failure::usage(format!("--start {text}: {error}")))?;
    // Retention reaches back from there, and must not reach before the epoch.
    if ms < EPOCH_MS / 100 {
        return Err(Failure::usage(format!("--start {text}: must be after 1970")));
    }
    Ok(ms)
}

/// What several replays came to, for programs.
#[derive(serde::Serialize)]
struct Compared<'a, R> {
    policies: &'a [R],
}

/// One report as itself, several as a list.
fn reports<R: serde::Serialize>(console: &Console, is_line: bool, reports: &[R]) -> Result<(), Failure> {
    match reports {
        [one] => structured(console, is_line, one),
        several => structured(console, is_line, &Compared { policies: several }),
    }
}

fn run_pack(console: &Console, args: &PackArgs) -> Result<Exit, Failure> {
    let start_ms = start_ms(args.start.as_ref())?;
    let policies = policies(&args.policy, start_ms)?;
    let nodes = trace::read_nodes(&args.nodes).map_err(wrong_trace)?;
    let jobs = Jobs::read(&args.jobs, SubmitOrder::Any).map_err(wrong_trace)?;
    let mut packed = Vec::new();
    for policy in &policies {
        let order = Order::open(&args.order, &jobs).map_err(wrong_trace)?;
        let started = Instant::now();
        let report = pack::pack(&nodes, &jobs, order, policy, start_ms, &|| started.elapsed())
            .map_err(|error| wrong(Exit::Usage, &error))?;
        packed.push(report);
    }
    if args.json || console.is_structured() {
        reports(console, args.json, &packed)?;
        return Ok(Exit::Ok);
    }
    for (place, report) in packed.iter().enumerate() {
        if place > 0 {
            console.line("")?;
        }
        print_pack(console, report)?;
    }
    Ok(Exit::Ok)
}

/// One line with `--json`; what `-o` says without it.
pub(crate) fn structured(
    console: &Console,
    is_line: bool,
    report: &impl serde::Serialize,
) -> Result<(), Failure> {
    if !is_line {
        return console.object(report);
    }
    let text = serde_json::to_string(report)
        .map_err(|error| Failure::new(Exit::Failed, format!("the report could not be written: {error}")))?;
    console.line(&text)
}

fn print_pack(console: &Console, report: &pack::Report) -> Result<(), Failure> {
    console.line(&format!(
        "{} nodes with {} devices; {} of {} jobs placed, {} without capacity, {} could never fit",
        report.nodes,
        report.capacity_milli / 1_000,
        report.placed,
        report.jobs,
        report.unplaced.no_room,
        report.unplaced.never_fit,
    ))?;
    for (code, count) in &report.unplaced.refused {
        console.line(&format!("{count} were refused by the policy: {code}"))?;
    }
    for (code, count) in &report.unplaced.no_room_by_reason {
        console.line(&format!("{count} would have waited: {code}"))?;
    }
    for note in &report.notes {
        console.line(&format!("note: {note}"))?;
    }
    console.line("")?;
    console.line("Allocated percent while so much has arrived:")?;
    let mut grid = Grid::new(vec!["ARRIVED", "+0", "+1", "+2", "+3", "+4", "+5", "+6", "+7", "+8", "+9"]);
    for (ten, percents) in report.allocated_percent.chunks(10).enumerate() {
        let mut cells = vec![format!("{}%", ten * 10)];
        cells.extend(percents.iter().map(|percent| format!("{percent:.2}")));
        cells.resize(11, String::new());
        grid.row(cells);
    }
    console.table(&grid)?;
    console.line("")?;
    console.line(&format!(
        "0% {} {}%",
        sparkline(&report.allocated_percent),
        report.allocated_percent.len() - 1
    ))?;
    let score = |percent: Option<f64>| percent.map_or("not reached".to_owned(), |p| format!("{p:.2} %"));
    console.line(&format!(
        "policy {}: allocated {} at 100 % arrived, {} at 130 %; {} placements/s",
        report.policy,
        score(report.allocated_percent_at_100),
        score(report.allocated_percent_at_130),
        report.placements_per_s,
    ))?;
    if report.tenants.len() < 2 {
        return Ok(());
    }
    console.line("")?;
    let mut grid =
        Grid::new(vec!["TENANT", "JOBS", "PLACED", "REFUSED", "DEVICES ASKED", "DEVICES HELD", "BORROWED"]);
    let devices = |milli| quantity::show_scaled(milli, 3);
    for tenant in report.tenants.iter().take(TENANTS_SHOWN) {
        grid.row(vec![
            tenant.tenant.clone(),
            tenant.jobs.to_string(),
            tenant.placed.to_string(),
            tenant.refused.to_string(),
            devices(tenant.arrived_milli),
            devices(tenant.allocated_milli),
            devices(tenant.borrowed_milli),
        ]);
    }
    console.table(&grid)?;
    more_tenants(console, report.tenants.len())
}

fn more_tenants(console: &Console, count: usize) -> Result<(), Failure> {
    match count.saturating_sub(TENANTS_SHOWN) {
        0 => Ok(()),
        more => console.line(&format!("and {more} more tenants; --json has all of them")),
    }
}

/// Every second percentage as a bar from 0 to 100.
fn sparkline(percents: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |percent: &f64| BARS[((percent / 100.0 * 8.0) as usize).min(7)];
    percents.iter().step_by(2).map(bar).collect()
}

fn run_queue(console: &Console, args: &QueueArgs) -> Result<Exit, Failure> {
    let start_ms = start_ms(args.start.as_ref())?;
    let policies = policies(&args.policy, start_ms)?;
    let nodes = trace::read_nodes(&args.nodes).map_err(wrong_trace)?;
    let failures = match &args.failures {
        Some(path) => trace::read_failures(path, &nodes).map_err(wrong_trace)?,
        None => Vec::new(),
    };
    let durations = match args.durations {
        Durations::True => queue::Durations::True,
        Durations::Limit => queue::Durations::Limit,
        Durations::Predicted => queue::Durations::Predicted,
    };
    let mut replayed = Vec::new();
    for policy in policies {
        let jobs = Jobs::open(&args.jobs, SubmitOrder::Ascending).map_err(wrong_trace)?;
        let options = queue::Options { policy, start_ms, durations, home_only: args.home_only };
        let started = Instant::now();
        let mut told = Instant::now();
        let mut progress = |now: &queue::Progress| {
            if args.progress || told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                console.progress(&format!(
                    "day {}: {} submitted, {} waiting, {} running, {} finished",
                    now.day, now.submitted, now.waiting, now.running, now.finished
                ));
            }
        };
        let report = queue::queue(&nodes, jobs, &failures, options, &|| started.elapsed(), &mut progress)
            .map_err(|error| wrong(Exit::Usage, &error))?;
        replayed.push(report);
    }
    if let Some(path) = &args.html {
        write_page(path, &html::page(&replayed))?;
    }
    if args.json || console.is_structured() {
        reports(console, args.json, &replayed)?;
        return Ok(Exit::Ok);
    }
    for report in &replayed {
        print_queue(console, report)?;
        if replayed.len() > 1 {
            console.line("")?;
        }
    }
    if replayed.len() > 1 {
        print_side_by_side(console, &replayed)?;
    }
    Ok(Exit::Ok)
}

/// Each policy's own columns of what every tenant got.
fn print_side_by_side(console: &Console, reports: &[queue::Report]) -> Result<(), Failure> {
    let mut grid =
        Grid::new(vec!["TENANT", "POLICY", "AVG", "P90", "MAX", "WITHIN", "BORROWED", "STOPPED", "REFUSED"]);
    for report in reports {
        let refused: u64 = report.refused.iter().map(|reason| reason.jobs.count).sum();
        let sum = |of: fn(&TenantReport) -> f64| report.tenants.iter().map(of).sum::<f64>();
        let stopped: u64 = report.tenants.iter().map(|tenant| tenant.stopped_by_policy).sum();
        grid.row(vec![
            "everybody".to_owned(),
            report.policy.clone(),
            span(report.queueing.avg_s),
            span(report.queueing.p90_s),
            span(report.queueing.max_s),
            format!("{:.1}", sum(|tenant| tenant.device_hours_within_nominal)),
            format!("{:.1}", sum(|tenant| tenant.device_hours_borrowed)),
            stopped.to_string(),
            refused.to_string(),
        ]);
    }
    for row in side_by_side(reports).into_iter().take(TENANTS_SHOWN) {
        for (tenant, report) in row.reports.iter().zip(reports) {
            let Some(tenant) = tenant else { continue };
            let mut cells = vec![row.tenant.to_owned(), report.policy.clone()];
            let waits = &tenant.queueing;
            cells.extend([waits.avg_s, waits.p90_s, waits.max_s].map(span));
            cells.extend(hours_and_stops(tenant));
            cells.push(tenant.refused.to_string());
            grid.row(cells);
        }
    }
    console.table(&grid)
}

fn hours_and_stops(tenant: &TenantReport) -> [String; 3] {
    [
        format!("{:.1}", tenant.device_hours_within_nominal),
        format!("{:.1}", tenant.device_hours_borrowed),
        tenant.stopped_by_policy.to_string(),
    ]
}

/// What every tenant got. Device-hours are within its nominal quotas, borrowed, and lost when policy stopped it.
fn print_tenants(console: &Console, tenants: &[TenantReport]) -> Result<(), Failure> {
    let mut grid = Grid::new(vec![
        "TENANT", "JOBS", "AVG", "P50", "P90", "MAX", "WITHIN", "BORROWED", "STOPPED", "LOST", "REFUSED",
        "WAITING",
    ]);
    for tenant in tenants.iter().take(TENANTS_SHOWN) {
        let waits = &tenant.queueing;
        let mut cells = vec![tenant.tenant.clone(), tenant.jobs.to_string()];
        cells.extend([waits.avg_s, waits.p50_s, waits.p90_s, waits.max_s].map(span));
        cells.extend(hours_and_stops(tenant));
        cells.push(format!("{:.1}", tenant.device_hours_lost));
        cells.extend([tenant.refused.to_string(), tenant.unfinished.to_string()]);
        grid.row(cells);
    }
    console.table(&grid)?;
    more_tenants(console, tenants.len())
}

fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    fs::write(path, page).map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))
}

fn print_queue(console: &Console, report: &queue::Report) -> Result<(), Failure> {
    console.line(&format!(
        "{} nodes with {} devices; {} of {} jobs ran to their end in {}",
        report.nodes,
        report.devices,
        report.finished,
        report.jobs,
        span(report.present_s),
    ))?;
    let missing = [
        ("could never run".to_owned(), &report.never_fit),
        ("were left out".to_owned(), &report.without_duration),
        ("were ended at their deadline".to_owned(), &report.late),
    ];
    let refused = |reason| format!("were refused by the policy, {reason}");
    let refused = report.refused.iter().map(|reason| (refused(&reason.code), &reason.jobs));
    let waiting = report.unfinished_by_reason.iter();
    let waiting = waiting.map(|reason| (format!("still wait, {}", reason.code), &reason.jobs));
    for (what, missing) in missing.into_iter().chain(refused).chain(waiting) {
        if missing.count == 0 {
            continue;
        }
        console.line(&format!("{} {what}:", missing.count))?;
        for example in &missing.examples {
            console.line(&format!("  {}: {}", example.job, one_line(&example.reason)))?;
        }
    }
    for note in &report.notes {
        console.line(&format!("note: {note}"))?;
    }
    console.line("")?;
    let mut grid = Grid::new(vec!["DEVICES", "JOBS", "AVG", "P50", "P90", "P99", "MAX"]);
    quantile_row(&mut grid, "completion", &report.completion);
    quantile_row(&mut grid, "queueing", &report.queueing);
    for class in &report.queueing_by_size {
        quantile_row(&mut grid, &class.devices, &class.waits);
    }
    console.table(&grid)?;
    console.line("")?;
    if report.tenants.len() > 1 {
        print_tenants(console, &report.tenants)?;
        console.line("")?;
    }
    let mut grid = Grid::new(vec!["REGION", "DEVICES", "UTILISATION", "BY-DAY"]);
    for region in &report.regions {
        let days: Vec<f64> = region.by_day_percent.iter().map(|percent| percent.unwrap_or(0.0)).collect();
        grid.row(vec![
            region.region.clone(),
            region.devices.to_string(),
            format!("{:.1}%", region.utilisation * 100.0),
            days.iter().map(|percent| sparkline(&[*percent])).collect(),
        ]);
    }
    console.table(&grid)?;
    console.line("")?;
    console.line(&format!(
        "policy {}: utilisation {:.1} %, {} preemptions, {} moves, {} stops for windows, {} evictions, {} device-hours lost",
        report.policy,
        report.utilisation * 100.0,
        report.preemptions,
        report.moves,
        report.window_stops,
        report.evictions,
        report.device_hours_lost,
    ))?;
    console.line(&format!(
        "{} decisions in {} s of the scheduler ({}/s), {} s in all",
        report.decisions, report.scheduler_s, report.decisions_per_s, report.wall_s
    ))
}

fn quantile_row(grid: &mut Grid, what: &str, of: &Quantiles) {
    let mut cells = vec![what.to_owned(), of.count.to_string()];
    cells.extend([of.avg_s, of.p50_s, of.p90_s, of.p99_s, of.max_s].map(span));
    grid.row(cells);
}

/// Seconds as people say them, in two units at most.
fn span(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", whole % 60),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

fn run_generate(console: &Console, args: GenerateArgs) -> Result<Exit, Failure> {
    let mut options = generate::Options::new(args.shape, args.seed);
    options.like = args.like;
    options.jobs = args.job_count.unwrap_or(options.jobs);
    options.load_percent = args.load.unwrap_or(options.load_percent);
    options.days = args.days.unwrap_or(options.days);
    options.fleet = args.nodes.as_deref().map(trace::read_nodes).transpose().map_err(wrong_trace)?;
    let failed = |error: GenerateError| {
        let exit = if matches!(error, GenerateError::Option(_)) { Exit::Usage } else { Exit::Failed };
        wrong(exit, &error)
    };
    let trace = generate::generate(&options).map_err(failed)?;
    for path in generate::write(&trace, &args.out).map_err(failed)? {
        console.line(&path.display().to_string())?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_and_exact_enough() {
        let cases =
            [(0.0, "0s"), (59.6, "1m00s"), (3_599.0, "59m59s"), (5_400.0, "1h30m"), (200_000.0, "2d07h")];
        for (seconds, text) in cases {
            assert_eq!(span(seconds), text);
        }
        assert_eq!(sparkline(&[0.0, 1.0, 50.0, 2.0, 100.0]), "▁▅█");
    }
}
