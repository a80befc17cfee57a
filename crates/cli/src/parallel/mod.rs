//! `muster parallel …`: how a model is best split over accelerators, without a cluster.

pub mod auto;
mod measured;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use muster_console::{Console, Exit, Failure, Format, Global, Grid};
use muster_parallel::accelerator;
use muster_parallel::calibration;
use muster_parallel::check::{self, Check, LeftOutRow};
use muster_parallel::search::{Candidate, Fixed, Question, usual_program};
use muster_parallel::serving::Serving;
use muster_parallel::{
    Accelerator, Calibration, Model, PlanError, Precision, Recompute, Report, Sharding, Training, html,
    parse_config,
};
use serde::Serialize;

use crate::told::told_while;

/// Plans of each model whose time is taken.
const TIMED_PLANS: usize = 21;
const GIB: f64 = (1_u64 << 30) as f64;

/// Commands that plan how a model is split.
#[derive(Subcommand)]
pub enum ParallelCommand {
    /// Layouts that train a model, fastest first: sizes, memory, time, ranks and arguments
    Plan(Box<PlanArgs>),
    /// Sizes of a server of a model: memory with its cache, and bounds on its speed
    Serve(ServeArgs),
    /// Published runs next to the predictions for them, also where a prediction is wrong
    #[command(after_help = "\
Examples:
  muster parallel check
  muster parallel check --timing")]
    Check(CheckArgs),
}

/// Number formats, as options name them.
#[derive(Clone, Copy, ValueEnum)]
enum PrecisionName {
    /// bf16 parameters, fp32 gradients and optimiser
    Bf16,
    /// fp16 parameters and gradients
    Fp16,
    /// Products of matrices in fp8
    Fp8,
    /// All in fp32
    Fp32,
}

/// Recomputation, as options name it.
#[derive(Clone, Copy, ValueEnum)]
enum RecomputeName {
    /// Nothing is computed again
    None,
    /// The core of attention
    Selective,
    /// All but each layer's input
    Full,
}

/// Sharding, as options name it.
#[derive(Clone, Copy, ValueEnum)]
enum ShardingName {
    /// Each replica has all
    None,
    /// The optimiser's state is held once
    Optimizer,
    /// Everything is held once
    Full,
}

/// Options of `muster parallel plan`.
#[derive(Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  muster parallel plan config.json --accelerators h100 --max 1024
  muster parallel plan config.json --accelerators h100 --max 64 --batch 512 --sequence 4096 --html plan.html
  muster parallel plan config.json --accelerators a100 --max 512 --tensor 8 --recompute full -o json
  muster parallel plan config.json --accelerators h100 --max 64 -o html > plan.html
  muster parallel plan config.json --accelerators h100 --max 256 --steps steps.json
  muster parallel plan config.json --accelerators h100 --max 256 --calibrate-from pretrain

The model is a config.json as Hugging Face keeps it with the weights. Sizes that are not given are the planner's.
A time is a prediction: the last table says what it rests on, `muster parallel check` how far it is off for runs
that were published.

Steps that you measured calibrate it: a JSON list of objects with step_time_s, tensor, pipeline, data, micro_batch and
where they differ from 1, none or the options, context, expert, interleave, recompute, sharding, batch and sequence,
all of this model on these accelerators. Or they come from jobs that were submitted with `parallel`: their layout is
in their environment, and their step times are in the output of their first and last worker, as Megatron-LM and
MaxText print them or as step_time_s=SECONDS."
)]
pub struct PlanArgs {
    /// The model's config.json; - for stdin
    config: PathBuf,
    /// Kind of accelerator
    #[arg(long, value_name = "NAME")]
    accelerators: String,
    /// Most accelerators
    #[arg(long, value_name = "COUNT")]
    max: u64,
    /// Sequences of a step
    #[arg(long, default_value_t = 1024)]
    batch: u64,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 4096)]
    sequence: u64,
    /// Number formats
    #[arg(long, value_enum, default_value_t = PrecisionName::Bf16)]
    precision: PrecisionName,
    /// Tensor parallel size
    #[arg(long)]
    tensor: Option<u64>,
    /// Pipeline parallel size
    #[arg(long)]
    pipeline: Option<u64>,
    /// Context parallel size
    #[arg(long)]
    context: Option<u64>,
    /// Expert parallel size
    #[arg(long)]
    expert: Option<u64>,
    /// Sequences of a micro-batch
    #[arg(long)]
    micro_batch: Option<u64>,
    /// Pieces of each pipeline stage
    #[arg(long)]
    interleave: Option<u64>,
    /// What is computed again
    #[arg(long, value_enum)]
    recompute: Option<RecomputeName>,
    /// What replicas hold once among them
    #[arg(long, value_enum)]
    sharding: Option<ShardingName>,
    /// Dollars for one accelerator and hour
    #[arg(long, value_name = "DOLLARS")]
    price: Option<f64>,
    /// Steps that you measured
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
    /// A job of the cluster whose steps calibrate it, by id or name; may be repeated
    #[arg(long, value_name = "JOB")]
    calibrate_from: Vec<String>,
    /// Write a page with pictures as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Options of `muster parallel serve`.
#[derive(Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  muster parallel serve config.json --accelerators h200 --context 8192 --requests 64
  muster parallel serve config.json --accelerators h100 --bytes 1 -o json

Every time is a bound that follows from bandwidths and peaks; no measured server stands behind it."
)]
pub struct ServeArgs {
    /// The model's config.json; - for stdin
    config: PathBuf,
    /// Kind of accelerator
    #[arg(long, value_name = "NAME")]
    accelerators: String,
    /// Tokens of each request, prompt and answer
    #[arg(long, default_value_t = 8192)]
    context: u64,
    /// Requests at once
    #[arg(long, default_value_t = 32)]
    requests: u64,
    /// Bytes of a parameter and of an element of the cache: 2 for bf16, 1 for fp8
    #[arg(long, default_value_t = 2)]
    bytes: u64,
}

/// Options of `muster parallel check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Only print how long plans for 16,384 accelerators take on this machine
    #[arg(long, conflicts_with = "left_out")]
    timing: bool,
    /// Only print what a fit predicts for each published run that has not seen it; takes a minute
    #[arg(long)]
    left_out: bool,
}

/// Runs one command.
pub async fn run(global: &Global, console: &Console, command: ParallelCommand) -> Result<Exit, Failure> {
    match command {
        ParallelCommand::Plan(args) => plan(global, console, &args).await,
        ParallelCommand::Serve(args) => serve(console, &args),
        ParallelCommand::Check(CheckArgs { timing: true, .. }) => timing(console),
        ParallelCommand::Check(CheckArgs { left_out: true, .. }) => left_out(console),
        ParallelCommand::Check(_) => published(console),
    }
}

fn wrong(error: &PlanError) -> Failure {
    let exit = match error {
        PlanError::FitsNowhere { .. } => Exit::Conflict,
        _ => Exit::Usage,
    };
    Failure::new(exit, coded(error))
}

/// The text of a file, or of stdin; an error if it is longer.
pub fn read(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    let mut text = String::new();
    // One byte more than allowed says that there is too much, without reading all of it.
    let read = if path == Path::new("-") {
        std::io::stdin().take(bytes_max + 1).read_to_string(&mut text)
    } else {
        fs::File::open(path).map_err(failed)?.take(bytes_max + 1).read_to_string(&mut text)
    };
    if read.map_err(failed)? as u64 > bytes_max {
        return Err(Failure::usage(format!("{} is longer than {bytes_max} bytes", path.display())));
    }
    Ok(text)
}

/// An error behind its stable code.
pub fn coded(error: &PlanError) -> String {
    format!("{}: {error}", error.code())
}

fn read_model(path: &Path) -> Result<Model, Failure> {
    let text = read(path, muster_parallel::CONFIG_BYTES_MAX as u64)?;
    parse_config(&text).map_err(|error| Failure::usage(format!("{}: {}", path.display(), coded(&error))))
}

fn question(args: &PlanArgs) -> Result<Question, Failure> {
    let model = read_model(&args.config)?;
    let accelerator = accelerator::find(&args.accelerators).map_err(|error| wrong(&error))?;
    let recompute = args.recompute.map(|name| match name {
        RecomputeName::None => Recompute::None,
        RecomputeName::Selective => Recompute::Selective,
        RecomputeName::Full => Recompute::Full,
    });
    let sharding = args.sharding.map(|name| match name {
        ShardingName::None => Sharding::None,
        ShardingName::Optimizer => Sharding::Optimizer,
        ShardingName::Full => Sharding::Full,
    });
    let question = Question {
        model,
        training: Training {
            batch: args.batch,
            sequence: args.sequence,
            precision: match args.precision {
                PrecisionName::Bf16 => Precision::Bf16,
                PrecisionName::Fp16 => Precision::Fp16,
                PrecisionName::Fp8 => Precision::Fp8,
                PrecisionName::Fp32 => Precision::Fp32,
            },
            program: usual_program(&accelerator),
        },
        accelerator,
        calibration: Calibration::of(&accelerator),
        devices_max: args.max,
        fixed: Fixed {
            tensor: args.tensor,
            pipeline: args.pipeline,
            context: args.context,
            expert: args.expert,
            micro_batch: args.micro_batch,
            interleave: args.interleave,
            recompute,
            sharding,
            worker_devices: None,
        },
    };
    question.check().map_err(|error| wrong(&error))?;
    Ok(question)
}

async fn plan(global: &Global, console: &Console, args: &PlanArgs) -> Result<Exit, Failure> {
    let mut question = question(args)?;
    let mut steps = match &args.steps {
        Some(path) => measured::of_file(path, &question)?,
        None => Vec::new(),
    };
    if !args.calibrate_from.is_empty() {
        let client = global.client().await?;
        steps.extend(measured::of_jobs(&client, &args.calibrate_from, &question, console).await?);
    }
    if args.steps.is_some() || !steps.is_empty() {
        question.calibration = calibration::from_measurements(&steps).map_err(|error| {
            Failure::usage(coded(&error)).with_next("leave out the steps that are named, or correct them")
        })?;
    }
    let planned =
        told_while(console, "looking for the fastest layouts", || Report::new(&question, args.price));
    let report = planned.map_err(|error| wrong(&error))?;
    if let Some(path) = &args.html {
        fs::write(path, html::page(&report))
            .map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))?;
    }
    if console.format == Format::Html {
        console.bytes(html::page(&report).as_bytes())?;
    } else if console.is_structured() {
        console.object(&report)?;
    } else {
        print_plan(console, &report, &question.accelerator)?;
    }
    Ok(Exit::Ok)
}

fn layouts(console: &Console, candidates: &[Candidate]) -> Result<(), Failure> {
    let mut grid = Grid::new(vec![
        "DEVICES",
        "TENSOR",
        "PIPELINE",
        "DATA",
        "CONTEXT",
        "EXPERT",
        "MICRO",
        "INTERLEAVE",
        "RECOMPUTE",
        "SHARDING",
        "GIB",
        "STEP S",
        "MFU %",
        "TOKENS/S",
    ]);
    for candidate in candidates {
        let layout = &candidate.layout;
        grid.row(vec![
            candidate.devices.to_string(),
            layout.tensor.to_string(),
            layout.pipeline.to_string(),
            layout.data.to_string(),
            layout.context.to_string(),
            layout.expert.to_string(),
            layout.micro_batch.to_string(),
            layout.interleave.to_string(),
            format!("{:?}", layout.recompute).to_lowercase(),
            format!("{:?}", layout.sharding).to_lowercase(),
            format!("{:.1}", candidate.memory.total_bytes() / GIB),
            format!("{:.2}", candidate.step.step_time_us / 1e6),
            format!("{:.1}", candidate.utilisation * 100.0),
            format!("{:.0}", candidate.tokens_per_s),
        ]);
    }
    console.table(&grid)
}

/// Parts of a whole that matter, in percent of it.
fn shares(parts: &[(&'static str, f64)], whole: f64) -> String {
    let shown = parts.iter().filter(|(_, part)| *part >= 0.005 * whole);
    let shown = shown.map(|(name, part)| format!("{name} {:.0} %", part / whole * 100.0));
    shown.collect::<Vec<_>>().join(", ")
}

fn print_plan(console: &Console, report: &Report, accelerator: &Accelerator) -> Result<(), Failure> {
    console.line(&format!(
        "{}: {:.2} billion parameters, {:.2} billion of them for each token; {} sequences of {} tokens a step on {} \
         with {:.0} GiB",
        report.architecture,
        report.parameters.total as f64 / 1e9,
        report.parameters.active as f64 / 1e9,
        report.training.batch,
        report.training.sequence,
        report.accelerator,
        accelerator.memory_bytes as f64 / GIB
    ))?;
    console.line("")?;
    console.line("Fastest layouts:")?;
    layouts(console, &report.plan.candidates)?;
    console.line("")?;
    console.line("Fastest layout for each number of devices:")?;
    layouts(console, &report.plan.by_devices)?;
    let Some(first) = report.plan.candidates.first() else { return Ok(()) };
    console.line("")?;
    console.line(&format!("Of the first, time: {}", shares(&first.step.parts(), first.step.step_time_us)))?;
    let memory = first.memory;
    console.line(&format!(
        "memory of stage {}: {}",
        first.fullest_stage,
        shares(&memory.parts(), memory.total_bytes())
    ))?;
    if first.energy_j_per_token > 0.0 {
        console.line(&format!("energy at full power: {:.4} J a token", first.energy_j_per_token))?;
    }
    if let Some(price) = report.usd_per_million_tokens {
        console.line(&format!("cost: {price:.3} $ for a million tokens"))?;
    }
    console.line(&format!(
        "ranks: {}{}",
        report.ranks.order.name(),
        if report.ranks.rail_aligned { ", data parallel groups on one rail each" } else { "" }
    ))?;
    if let Some(mesh) = &report.mesh {
        console.line(&format!(
            "mesh: {} slices of {:?}, tensor parallel on axes {:?}",
            mesh.slices, mesh.shape, mesh.tensor_axes
        ))?;
    }
    console.line("")?;
    let arguments = &report.arguments;
    console.line(&format!("Megatron-LM: {}", arguments.megatron.join(" ")))?;
    console.line(&format!("torchtitan: {}", arguments.torchtitan.join(" ")))?;
    console.line(&format!("MaxText: {}", arguments.maxtext.join(" ")))?;
    console.line(&format!("DeepSpeed: {}", arguments.deepspeed))?;
    let environment: Vec<String> =
        arguments.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    console.line(&format!("environment: {}", environment.join(" ")))?;
    for note in &arguments.notes {
        console.line(&format!("note: {note}"))?;
    }
    console.line("")?;
    console.line("What this rests on:")?;
    let mut grid = Grid::new(vec!["TERM", "VALUE", "ORIGIN"]);
    for term in &report.terms {
        grid.row(vec![term.name.to_owned(), term.value.clone(), term.origin.name().to_owned()]);
    }
    console.table(&grid)
}

fn serve(console: &Console, args: &ServeArgs) -> Result<Exit, Failure> {
    let serving = Serving {
        model: read_model(&args.config)?,
        accelerator: accelerator::find(&args.accelerators).map_err(|error| wrong(&error))?,
        context: args.context,
        requests: args.requests,
        bytes: args.bytes,
    };
    let servers = serving.plan().map_err(|error| wrong(&error))?;
    if console.is_structured() {
        console.object(&servers)?;
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(vec![
        "DEVICES",
        "WEIGHTS GIB",
        "CACHE KIB/TOKEN",
        "REQUESTS MAX",
        "REQUESTS",
        "DECODE MS",
        "TOKENS/S",
        "PREFILL MS",
        "ORIGIN",
    ]);
    for server in &servers {
        grid.row(vec![
            server.tensor.to_string(),
            format!("{:.1}", server.parameters_bytes / GIB),
            format!("{:.1}", server.cache_bytes_per_token / 1024.0),
            server.requests_max.to_string(),
            server.requests.to_string(),
            format!("{:.1}", server.decode_ms),
            format!("{:.0}", server.tokens_per_s),
            format!("{:.0}", server.prefill_ms),
            server.origin.name().to_owned(),
        ]);
    }
    console.table(&grid)?;
    Ok(Exit::Ok)
}

/// How long one plan takes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Timing {
    model: &'static str,
    devices: u64,
    plans: usize,
    median_ms: f64,
    longest_ms: f64,
    splits_priced: u64,
    layouts_timed: u64,
}

fn timing(console: &Console) -> Result<Exit, Failure> {
    let mut timings = Vec::new();
    for (model, question) in check::large_questions() {
        let mut times_ms = Vec::new();
        let mut counts = (0, 0);
        for _ in 0..TIMED_PLANS {
            let started = Instant::now();
            let plan = question.plan().map_err(|error| wrong(&error))?;
            times_ms.push(started.elapsed().as_secs_f64() * 1e3);
            counts = (plan.priced, plan.timed);
        }
        times_ms.sort_by(f64::total_cmp);
        timings.push(Timing {
            model,
            devices: check::TIMED_DEVICES,
            plans: TIMED_PLANS,
            median_ms: times_ms[TIMED_PLANS / 2],
            longest_ms: times_ms[TIMED_PLANS - 1],
            splits_priced: counts.0,
            layouts_timed: counts.1,
        });
    }
    if console.is_structured() {
        console.object(&timings)?;
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(vec![
        "MODEL",
        "DEVICES",
        "PLANS",
        "MEDIAN MS",
        "LONGEST MS",
        "SPLITS PRICED",
        "LAYOUTS TIMED",
    ]);
    for timing in &timings {
        grid.row(vec![
            timing.model.to_owned(),
            timing.devices.to_string(),
            timing.plans.to_string(),
            format!("{:.1}", timing.median_ms),
            format!("{:.1}", timing.longest_ms),
            timing.splits_priced.to_string(),
            timing.layouts_timed.to_string(),
        ]);
    }
    console.table(&grid)?;
    Ok(Exit::Ok)
}

fn left_out(console: &Console) -> Result<Exit, Failure> {
    let rows: Vec<LeftOutRow> = LEFT_OUT.into_iter().flat_map(check::left_out).collect();
    if console.is_structured() {
        console.object(&rows)?;
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(vec![
        "TABLE",
        "RUN",
        "ON",
        "PROGRAM",
        "ERROR %",
        "CALIBRATION LEFT OUT %",
        "OVERLAP TOO %",
    ]);
    for row in &rows {
        grid.row(vec![
            row.table.to_owned(),
            row.name.clone(),
            row.accelerator.to_owned(),
            row.program.to_owned(),
            format!("{:+.1}", row.error_percent),
            format!("{:+.1}", row.left_out_error_percent),
            format!("{:+.1}", row.no_overlap_error_percent),
        ]);
    }
    console.table(&grid)?;
    console.line("")?;
    left_out_summary(console, &rows)?;
    Ok(Exit::Ok)
}

/// Accelerators with published steps; those without a separate calibration are predicted with that of another.
const LEFT_OUT: [&str; 6] = ["a100", "h100", "v6e", "v5p", "v4", "h800"];

fn left_out_summary(console: &Console, rows: &[LeftOutRow]) -> Result<(), Failure> {
    let mut grid = Grid::new(vec![
        "ON",
        "ROWS",
        "AVERAGE %",
        "WORST %",
        "CALIBRATION LEFT OUT: AVERAGE %",
        "WORST %",
        "OVERLAP TOO: AVERAGE %",
        "WORST %",
    ]);
    for kind in LEFT_OUT.into_iter().map(Some).chain([None]) {
        let of_kind: Vec<&LeftOutRow> =
            rows.iter().filter(|row| kind.is_none_or(|kind| row.accelerator == kind)).collect();
        let mut cells = vec![kind.unwrap_or("all").to_owned(), of_kind.len().to_string()];
        for value in [
            |row: &LeftOutRow| row.error_percent,
            |row: &LeftOutRow| row.left_out_error_percent,
            |row: &LeftOutRow| row.no_overlap_error_percent,
        ] {
            let errors = of_kind.iter().map(|row| value(row).abs());
            let average = errors.clone().sum::<f64>() / of_kind.len().max(1) as f64;
            cells.push(format!("{average:.1}"));
            cells.push(format!("{:.1}", errors.fold(0.0, f64::max)));
        }
        grid.row(cells);
    }
    console.table(&grid)
}

fn published(console: &Console) -> Result<Exit, Failure> {
    let check = check::check();
    if console.is_structured() {
        console.object(&check)?;
    } else {
        print_check(console, &check)?;
    }
    Ok(Exit::Ok)
}

fn print_check(console: &Console, check: &Check) -> Result<(), Failure> {
    let mut grid = Grid::new(vec![
        "TABLE",
        "RUN",
        "ON",
        "PUBLISHED S",
        "PREDICTED S",
        "ERROR %",
        "",
        "OUR LAYOUT S",
        "CALIBRATION",
        "NOT PUBLISHED",
    ]);
    for row in &check.times {
        grid.row(vec![
            row.table.to_owned(),
            row.name.clone(),
            row.accelerator.to_owned(),
            format!("{:.2}", row.published_s),
            format!("{:.2}", row.predicted_s),
            format!("{:+.1}", row.error_percent),
            if row.error_percent.abs() > 10.0 { "missed".to_owned() } else { String::new() },
            row.own_layout_s.map_or("-".to_owned(), |own| format!("{own:.2}")),
            row.calibration.name().to_owned(),
            row.assumed.to_owned(),
        ]);
    }
    console.table(&grid)?;
    console.line("")?;
    let mut grid = Grid::new(vec!["ON", "ROWS", "AVERAGE %", "WORST %", "BEYOND 10 %"]);
    for name in check.accelerators().into_iter().map(Some).chain([None]) {
        let summary = check.summary(name);
        grid.row(vec![
            name.unwrap_or("all").to_owned(),
            summary.rows.to_string(),
            format!("{:.1}", summary.average_percent),
            format!("{:.1}", summary.worst_percent),
            summary.missed.to_string(),
        ]);
    }
    console.table(&grid)?;
    console.line("")?;
    let mut grid = Grid::new(vec!["SIZE OR MEMORY", "PUBLISHED", "COMPUTED", "EXACT"]);
    for row in check.exact.iter().chain(&check.figures) {
        let exact = if row.exact { "yes" } else { "no" };
        grid.row(vec![
            row.name.clone(),
            row.published.to_string(),
            row.computed.to_string(),
            exact.to_owned(),
        ]);
    }
    console.table(&grid)?;
    console.line("")?;
    let mut grid = Grid::new(vec!["RECOMMENDED STARTING POINT", "LEGAL", "FITS"]);
    let said = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    for row in &check.starts {
        grid.row(vec![row.name.clone(), said(row.legal), said(row.fits)]);
    }
    console.table(&grid)?;
    for (what, why) in &check.not_predicted {
        console.line(&format!("not predicted: {what}: {why}"))?;
    }
    for row in check.times.iter().filter(|row| !row.unfitted.is_empty()) {
        console.line(&format!("not fitted to: {}, {}: {}", row.table, row.name, row.unfitted))?;
    }
    console.line("")?;
    let mut grid = Grid::new(vec!["CONSTANTS", "VALUES", "FROM", "STEPS"]);
    for row in &check.constants {
        grid.row(vec![row.name.clone(), row.value.clone(), row.from.to_owned(), row.rows.to_string()]);
    }
    console.table(&grid)?;
    console.line(
        "what these constants predict for steps that they have not seen: muster parallel check --left-out",
    )
}
