//! `muster job …`.

pub mod age;
pub mod array;
mod asked;
pub mod attach;
pub mod controls;
pub mod exec;
pub mod explanation;
pub mod follow;
pub mod list;
pub mod logs;
pub mod port_forward;
pub mod resubmit;
pub mod wait;
pub mod when;

use std::collections::BTreeMap;

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use muster_client::Client;
use muster_console::{
    Console, Document, Exit, Failure, Format, Global, Grid, Items, Position, one_line, span,
};
use muster_types::policy::{NotificationEvent, PurchaseKind};
use muster_types::{AffinityLevel, AffinityRule, CommandShell, Control, CpuBinding, PriorityTier};
use muster_wire::closed::word;
use muster_wire::v1;
use serde_json::Value;

use self::age::age;
use self::array::ArrayCommand;
use self::controls::{ModifyArgs, SelectArgs};
use self::follow::{Subject, WaitCondition};
use self::list::ListArgs;
use self::logs::LogsArgs;
use self::wait::Awaited;
use crate::complete;
use crate::find::{Find, Found, all_resolved, find, one_job, resolve, targets};
use crate::reading::ReadArgs;
use crate::view;
use crate::view::recovery;

/// Commands about jobs.
#[derive(Subcommand)]
pub enum JobCommand {
    /// List jobs, newest first
    List(ListArgs),
    /// Show one job: where it runs, or why it waits
    #[command(after_help = "\
Examples:
  muster job show job-3f0
  muster job show job-3f0 -o yaml > again.yaml && muster submit again.yaml
  muster job show 'array-3f0[7]'         the member with the index 7

With -o yaml it is shown as a job file, which can be submitted again; what became of it stands under `status`, which is
not read.")]
    Show {
        /// Its id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Say why a job waits, what stands before it, what would help and when it will start
    #[command(
        visible_alias = "why",
        after_help = "\
Examples:
  muster job explain job-3f0
  muster job why job-3f0 --at 2026-11-22T08:30:00Z     why it waited then
  muster job explain job-3f0 -o json | jq .start
  muster job explain 'array-3f0[7]'      the member with the index 7

`muster plan FILE` says the same of a job that has not been submitted."
    )]
    Explain {
        /// Its id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Say when a job starts, with one chance, five and nine in ten
    #[command(after_help = "\
Examples:
  muster job when job-3f0
  muster job when job-3f0 --at 2026-11-22T08:30:00Z     what was expected then
  muster job when job-3f0 -o json | jq -r .p50

`muster report predictions` compares such predictions with when jobs started.")]
    When {
        /// Its id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Arrays: how far their members have come
    #[command(subcommand)]
    Array(ArrayCommand),
    /// Print each change of jobs, with its log index, until they end
    #[command(after_help = "\
Examples:
  muster job watch job-3f0
  muster job watch --tenant vision      every job of a tenant, until Ctrl-C
  muster job watch -o json | jq .job.status.phase

Survives the loss of replicas: goes on exactly behind the last change that was printed.")]
    Watch {
        /// Ids or names; none for every job, until Ctrl-C
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        ids: Vec<String>,
        /// Only jobs of this tenant
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// Only jobs whose labels match, as for `muster job list`
        #[arg(short = 'l', long, value_name = "SELECTOR")]
        selector: Option<String>,
    },
    /// Print the output of a worker
    Logs(LogsArgs),
    /// Cancel jobs: a waiting one at once, a running one after its workers have stopped
    #[command(after_help = "\
Examples:
  muster cancel job-3f0
  muster cancel train                    the job of that name, when there is one
  muster job cancel -l team=vision --phase pending
  muster job cancel array-3f0 job-5g1    every job of an array, and a job
  muster job cancel --array job-3f0      every job of the array that this job is in
  muster job cancel 'array-3f0[1-5,7]'   members of an array by their indices
  muster job cancel --mine --dry-run     how many that would be

Options that select jobs mean jobs that have not ended, of tenants that you act for. All that there are need --yes.")]
    Cancel(SelectArgs),
    /// Keep waiting jobs from starting, until they are released; they keep their positions in the queue
    #[command(after_help = "\
Examples:
  muster job hold job-3f0
  muster job hold -l stage=eval --tenant vision
  muster job hold 'array-3f0[1-5,7]'

A running job is stopped and held with: muster job suspend ID")]
    Hold(SelectArgs),
    /// Let held and suspended jobs go on waiting for capacity
    #[command(
        visible_alias = "resume",
        after_help = "Examples:\n  muster job release job-3f0\n  muster job release --mine\n  muster job release 'array-3f0[1-5,7]'\n\nWhat an operator holds only an operator can release."
    )]
    Release(SelectArgs),
    /// Stop running jobs, with time to save their work; they wait again in their positions
    #[command(
        after_help = "Examples:\n  muster job requeue job-3f0\n  muster job requeue -l team=vision --phase running\n  muster job requeue 'array-3f0[1-5,7]'\n\nIt counts as no failure and uses up no retry."
    )]
    Requeue(SelectArgs),
    /// Stop running jobs, with time to save their work, and hold them
    #[command(
        after_help = "Examples:\n  muster job suspend job-3f0\n  muster job suspend 'array-3f0[1-5,7]'\n  muster job release job-3f0             it waits for capacity again"
    )]
    Suspend(SelectArgs),
    /// Change a job: while it waits its tier, times, places, size and tenant, while it runs its limit and labels
    #[command(
        visible_alias = "update",
        after_help = "\
Examples:
  muster job modify job-3f0 --tier production --run-time-limit 4h
  muster job modify job-3f0 --not-before +2h --deadline none
  muster job modify job-3f0 --label team=vision --label debug-
  muster job modify job-3f0 --exclude h7,h8 --where 'memory-gib>512'
  muster job modify job-3f0 --tier batch --etag 1-4711
  muster job modify job-3f0 --nice 10 --workers 4..8
  muster job modify job-3f0 --workers 6           also of an elastic job that runs
  muster job modify array-3f0 --throttle 50       lets 50 members of an array be unfinished at a time

With --etag it is changed only if it is still as it was shown: muster job show ID -o json | jq -r .etag"
    )]
    Modify(Box<ModifyArgs>),
    /// Move a waiting job before the others of its tenant and tier; jobs of other tenants wait no longer for that
    #[command(after_help = "\
Examples:
  muster job top job-3f0
  muster job top train --dry-run

Of several jobs that were moved, the one that was moved last goes first. `muster job modify ID --nice N` orders them by numbers.")]
    Top {
        /// Its id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        /// Check the move, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Wait for jobs; exit code 1 unless all of them went well
    #[command(after_help = "\
Examples:
  muster job wait job-3f0 --for running --timeout 10m
  muster job wait job-3f0 --for checkpointed && muster job cancel job-3f0
  muster job wait array-3f0              every member of an array
  muster job wait $(muster submit array.yaml) && echo all succeeded

All of them have one --timeout. It goes on when one has failed, but for `--for succeeded`.")]
    Wait {
        /// Ids or names of jobs and arrays, or members in brackets
        #[arg(required = true, add = ArgValueCompleter::new(complete::jobs))]
        ids: Vec<String>,
        /// For what
        #[arg(long = "for", value_enum, default_value_t = WaitCondition::Finished)]
        until: WaitCondition,
    },
}

pub async fn run(global: &Global, console: &Console, command: JobCommand) -> Result<Exit, Failure> {
    match command {
        JobCommand::List(args) => list::run(global, console, args).await,
        JobCommand::Array(command) => array::run(global, console, command).await,
        JobCommand::Show { id, read } => {
            let client = read.client(global).await?;
            match find(&client, &id, Find::Newest).await? {
                Found::Array(id) => array::show(&client, console, id, &read).await,
                found => show(&client, console, one_job(&id, found)?, &read).await,
            }
        }
        JobCommand::Explain { id, read } => {
            let client = read.client(global).await?;
            let id = resolve(&client, &id, Find::Newest).await?;
            explanation::explain(&client, console, id, &read).await
        }
        JobCommand::When { id, read } => {
            let client = read.client(global).await?;
            let id = resolve(&client, &id, Find::Newest).await?;
            when::when(&client, console, id, &read).await
        }
        JobCommand::Logs(args) => logs::run(global, console, args).await,
        JobCommand::Cancel(args) => controls::run(global, console, Control::Cancel, args).await,
        JobCommand::Hold(args) => controls::run(global, console, Control::Hold, args).await,
        JobCommand::Release(args) => controls::run(global, console, Control::Release, args).await,
        JobCommand::Requeue(args) => controls::run(global, console, Control::Requeue, args).await,
        JobCommand::Suspend(args) => controls::run(global, console, Control::Suspend, args).await,
        JobCommand::Modify(args) => controls::modify(global, console, *args).await,
        JobCommand::Top { id, dry_run } => controls::to_front(global, console, &id, dry_run).await,
        JobCommand::Watch { ids, tenant, selector } => {
            let client = global.client().await?;
            let ids = all_resolved(&client, &ids, Find::Newest).await?;
            let (tenant, selector) = (tenant.unwrap_or_default(), selector.unwrap_or_default());
            let subject = Subject { tenant, selector, limit: global.timeout, ..Subject::of(ids) };
            let show = |item: &_, synced| follow::print(console, item, synced);
            Ok(follow::follow(&client, console, subject, show).await?.0)
        }
        JobCommand::Wait { ids, until } => {
            let client = global.client().await?;
            let found = targets(&client, &ids, Find::Newest).await?;
            let jobs = [found.jobs, found.members].concat();
            wait(&client, console, Awaited { arrays: found.arrays, jobs, until, limit: global.timeout }).await
        }
    }
}

async fn show(client: &Client, console: &Console, job_id: String, read: &ReadArgs) -> Result<Exit, Failure> {
    let answer = client.get_job(v1::GetJobRequest { job_id, read: None }).await?;
    let message = answer.job.unwrap_or_default();
    let job = view::Job::from(message.clone());
    match console.format {
        Format::Json => console.object(&Document::new("Job", answer.freshness, job))?,
        Format::Yaml => {
            console.object(&muster_manifest::job_file(&message, status(answer.freshness, job)?))?
        }
        Format::Name => console.line(&job.id)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => describe(console, &job, message.spec())?,
    }
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

/// What became of a job, next to its job file.
fn status(position: impl Into<Position>, job: view::Job) -> Result<Value, Failure> {
    const IN_FILE: [&str; 7] = ["schema", "kind", "name", "tenant", "labels", "annotations", "spec"];
    let content = serde_json::to_value(Document::new("Job", position, job));
    let mut content = content
        .map_err(|error| Failure::new(Exit::Failed, format!("the answer could not be written: {error}")))?;
    if let Value::Object(fields) = &mut content {
        fields.retain(|name, _| !IN_FILE.contains(&name.as_str()));
        if let Some(Value::Object(status)) = fields.remove("status") {
            fields.extend(status);
        }
    }
    Ok(content)
}

/// How the nodes of a job may have been bought, in a line.
fn capacity(asked: &v1::CapacityRules) -> String {
    let named = |numbers: &[i32]| {
        numbers.iter().map(|number| word::<PurchaseKind>(*number)).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    if !asked.purchases.is_empty() {
        parts.push(named(&asked.purchases));
    }
    if let Some(fallback) = &asked.fallback {
        let after = span(fallback.after).unwrap_or_default();
        parts.push(format!("after {after} also {}", named(&fallback.purchases)));
    }
    if let Some(milli) = asked.max_interruptions_per_day_milli {
        let most = muster_manifest::quantity::Decimal::milli(milli.into());
        parts.push(format!("at most {most} interruptions for each node and day"));
    }
    parts.join("; ")
}

fn describe(console: &Console, job: &view::Job, spec: &v1::JobSpec) -> Result<(), Failure> {
    let status = &job.status;
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut say = |name: &str, value: String| {
        if !value.is_empty() {
            pairs.push((name.to_owned(), value));
        }
    };
    say("id", job.id.clone());
    say("name", job.name.clone());
    say("tenant", job.tenant.clone());
    say("creator", job.creator.clone());
    for (key, value) in &job.labels {
        say("label", format!("{key}={value}"));
    }
    for (key, value) in &job.annotations {
        say("annotation", format!("{key}: {value}"));
    }
    say("tier", status.tier.clone());
    say("phase", status.phase.to_owned());
    say("reason", reason(job));
    say("workers", format!("{} with {} devices", status.worker_count, status.device_count));
    say("estimate", status.estimate.as_ref().map(estimate).unwrap_or_default());
    for (name, text) in asked::lines(spec) {
        say(name, text);
    }
    if let Some(view::ArrayMember { array_id, index, size, ordinal }) = &job.array {
        say("array", format!("{array_id}, index {index}, member {} of {size}", ordinal.saturating_add(1)));
    }
    say("attempt", status.attempt.to_string());
    say("failures", status.failures.to_string());
    if status.preemptions > 0 {
        say("preemptions", status.preemptions.to_string());
    }
    if let Some(view::Checkpoint { attempt, time }) = &status.last_checkpoint {
        say("last saved", format!("{} in attempt {attempt}", time.as_deref().unwrap_or_default()));
    }
    say("submitted", status.create_time.clone().unwrap_or_default());
    say("started", status.start_time.clone().unwrap_or_default());
    say("finished", status.end_time.clone().unwrap_or_default());
    say("changed at", format!("log index {}", status.changed_at_index));
    for (name, text) in status.history.iter().flat_map(recovery::lines) {
        say(name, text);
    }
    for (name, text) in status.controls.iter().flat_map(controls::lines) {
        say(name, text);
    }
    if let Some(placement) = &status.placement {
        say("placed in", format!("{} / {}", placement.region, placement.cluster));
        say("fencing token", placement.fencing_token.clone());
    }
    if let Some(nominated) = &status.nominated_placement {
        say("reserved in", format!("{} / {}", nominated.region, nominated.cluster));
        say("reserved at", format!("log index {}", nominated.nominated_at_index));
    }
    if job.redacted {
        say("redacted", "what it is started with is shown to its tenant and to operators".to_owned());
    }
    if let Some(files) = &spec.workdir {
        say("workdir", files.digest.clone());
    }
    if !spec.booking.is_empty() {
        say("booking", spec.booking.clone());
    }
    if let Some(rules) = &spec.artifacts {
        say("artifacts", rules.paths.join(", "));
    }
    for entry in &spec.affinity {
        say("affinity", affinity(entry));
    }
    if !spec.licences.is_empty() {
        let licences = spec.licences.iter().map(|of| format!("{} {}", of.name, of.count));
        say("licences", licences.collect::<Vec<_>>().join(", "));
    }
    for entry in &spec.notify {
        let events: Vec<&str> = entry.events.iter().map(|event| word::<NotificationEvent>(*event)).collect();
        say("notifies", format!("{} of {}", entry.receiver, events.join(", ")));
    }
    if let Some(asked) = &spec.ulimits {
        let files = asked.open_files.map(|count| format!("{count} open files"));
        let sizes =
            [("core", asked.core_bytes), ("locked memory", asked.locked_bytes), ("stack", asked.stack_bytes)];
        let sizes = sizes.into_iter().filter_map(|(what, bytes)| {
            bytes.map(|bytes| format!("{what} {}", muster_manifest::quantity::show_bytes(bytes)))
        });
        say("ulimits", files.into_iter().chain(sizes).collect::<Vec<_>>().join(", "));
    }
    if let Some(rules) = &spec.host {
        let words =
            [("binding", word::<CpuBinding>(rules.binding)), ("shell", word::<CommandShell>(rules.shell))];
        for (field, text) in words.into_iter().filter(|(_, text)| !text.is_empty()) {
            say(field, text.to_owned());
        }
        if rules.shared_memory_bytes > 0 {
            say("shared memory", muster_manifest::quantity::show_bytes(rules.shared_memory_bytes));
        }
    }
    if spec.terminal {
        say("terminal", format!("muster attach {}", job.id));
    }
    if let Some(asked) = &spec.capacity {
        say("capacity", capacity(asked));
    }
    if spec.nice != 0 {
        say("nice", spec.nice.to_string());
    }
    if spec.exclusive {
        say("hosts", "each worker has one to itself".to_owned());
    }
    if spec.scratch_bytes > 0 {
        say("scratch", format!("{} each worker", muster_manifest::quantity::show_bytes(spec.scratch_bytes)));
    }
    if let Some(timeout) = spec.readiness.as_ref().and_then(|rule| span(rule.timeout)) {
        say("ready within", timeout);
    }
    // By this it is found where traces are kept.
    if let Some(trace_id) = spec.trace_parent.split('-').nth(1) {
        say("trace", trace_id.to_owned());
    }
    for group in &spec.groups {
        let image = group.container().map(|container| format!(" in {}", container.image));
        let image = image.unwrap_or_default();
        say("group", format!("{}: {} x {:?}{image}", group.name, group.workers, group.command()));
    }
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = pairs.iter().map(|(name, value)| format!("{name:width$}  {}\n", one_line(value)));
    console.bytes(lines.collect::<String>().as_bytes())?;
    match &status.placement {
        Some(placement) if !placement.workers.is_empty() => {
            console.line("")?;
            console.table(&workers(placement))?;
        }
        _ => {}
    }
    match &status.nominated_placement {
        Some(nominated) if !nominated.workers.is_empty() => {
            console.line("")?;
            console.table(&reserved(nominated))
        }
        _ => Ok(()),
    }
}

/// Where a job lies with respect to others, in one line.
fn affinity(entry: &v1::JobAffinity) -> String {
    let (level, rule) = (word::<AffinityLevel>(entry.level), word::<AffinityRule>(entry.rule));
    let ids = [&entry.job_id, &entry.array_id, &entry.job_name];
    let target = match ids.into_iter().find(|id| !id.is_empty()) {
        Some(id) => id.clone(),
        None => format!("jobs with {}", entry.label_selector),
    };
    let weight = if entry.required { "required".to_owned() } else { format!("weight {}", entry.weight) };
    format!("{rule}, by {level}: {target} ({weight})")
}

fn estimate(estimate: &view::Estimate) -> String {
    let view::Estimate { run_time, run_time_p90 } = estimate;
    format!("runs about {run_time}, p90 {run_time_p90}")
}

fn reserved(nominated: &view::NominatedPlacement) -> Grid {
    let mut grid = Grid::new(vec!["RANK", "WILL BE ON", "DEVICES"]);
    for slot in &nominated.workers {
        let devices: Vec<String> = slot.devices.iter().map(u32::to_string).collect();
        grid.row(vec![slot.index.to_string(), slot.node.clone(), devices.join(",")]);
    }
    grid
}

fn workers(placement: &view::Placement) -> Grid {
    let mut grid = Grid::new(vec!["RANK", "NODE", "DEVICES", "STATE", "EXIT"]);
    for worker in &placement.workers {
        let devices: Vec<String> = worker.devices.iter().map(u32::to_string).collect();
        grid.row(vec![
            worker.rank.to_string(),
            worker.node.clone(),
            devices.join(","),
            worker.state.clone(),
            worker.exit.clone().unwrap_or_default(),
        ]);
    }
    grid
}

/// Code and sentence of why it waits, stops or ended; a code that only repeats the phase is left out.
pub fn reason(job: &view::Job) -> String {
    let status = &job.status;
    let code = if status.reason.eq_ignore_ascii_case(status.phase) { "" } else { status.reason.as_str() };
    match (code, status.message.as_str()) {
        (code, "") => code.to_owned(),
        ("", detail) => detail.to_owned(),
        (code, detail) => format!("{code}: {detail}"),
    }
}

/// Jobs as a table in which those of an array that are in the same phase, for the same reason, are one row. Members that
/// are not created are counted in the row of those that wait, or have one where no other member waits.
pub fn grouped(jobs: &[view::Job], arrays: &[v1::Array], wide: bool) -> Grid {
    let mut groups: Vec<Vec<&view::Job>> = Vec::new();
    let mut of_key: BTreeMap<_, usize> = BTreeMap::new();
    for job in jobs {
        let status = &job.status;
        let key =
            job.array.as_ref().map(|array| (&array.array_id, status.phase, &status.reason, status.attempt));
        let group = key.map(|key| *of_key.entry(key).or_insert(groups.len()));
        match group.and_then(|group| groups.get_mut(group)) {
            Some(group) => group.push(job),
            None => groups.push(vec![job]),
        }
    }
    rows(&groups, arrays, wide)
}

/// Jobs as a table, a row each.
pub fn table(jobs: &[view::Job], wide: bool) -> Grid {
    rows(&jobs.iter().map(|job| vec![job]).collect::<Vec<_>>(), &[], wide)
}

/// Numbers as ranges: `0-3,7`.
fn ranges(mut numbers: Vec<u32>) -> String {
    numbers.sort_unstable();
    let mut found: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            Some((_, last)) if number <= last.saturating_add(1) => *last = number,
            _ => found.push((number, number)),
        }
    }
    let shown = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    found.into_iter().map(shown).collect::<Vec<_>>().join(",")
}

/// A row for each group of jobs that differ in nothing that is shown but their ids and array indexes.
fn rows(groups: &[Vec<&view::Job>], arrays: &[v1::Array], wide: bool) -> Grid {
    let mut arrays: BTreeMap<&str, &v1::Array> =
        arrays.iter().map(|array| (array.id.as_str(), array)).collect();
    let mut header = vec!["ID", "NAME", "TENANT", "TIER", "PHASE", "WORKERS", "DEVICES", "AGE"];
    if wide {
        header.extend(["REGION", "CLUSTER", "ATTEMPT", "FAILURES", "CHANGED-AT"]);
    }
    let has_starts = groups.iter().flatten().any(|job| job.status.expected_start.is_some());
    if has_starts {
        header.push("EXPECTED START");
    }
    header.push("REASON");
    let mut grid = Grid::new(header).optional(&["TIER", "DEVICES", "TENANT", "WORKERS"]);
    for group in groups {
        let Some(job) = group.first() else { continue };
        let indexes: Vec<u32> =
            group.iter().filter_map(|job| job.array.as_ref().map(|array| array.index)).collect();
        let status = &job.status;
        let waits = status.phase == muster_wire::closed::phase_word(v1::JobPhase::Pending);
        let rest = job.array.as_ref().filter(|_| waits);
        let rest = rest.and_then(|member| arrays.remove(member.array_id.as_str()));
        let more = rest.and_then(|array| array.counts).map_or(0, |counts| counts.uncreated);
        let name = match indexes.as_slice() {
            [] => job.name.clone(),
            _ if more > 0 => format!("{}[{}] and {more} more", job.name, ranges(indexes)),
            _ => format!("{}[{}]", job.name, ranges(indexes)),
        };
        let workers = rest.map_or(0, |array| u64::from(array.worker_count) * u64::from(more));
        let devices = rest.map_or(0, |array| array.device_count * u64::from(more));
        let mut cells = vec![
            job.id.clone(),
            name,
            job.tenant.clone(),
            status.tier.clone(),
            status.phase.to_owned(),
            (group.iter().map(|job| u64::from(job.status.worker_count)).sum::<u64>() + workers).to_string(),
            (group.iter().map(|job| job.status.device_count).sum::<u64>() + devices).to_string(),
            age(status.create_time.as_deref()),
        ];
        if wide {
            let place = |of: fn(&view::Placement) -> &String| {
                status.placement.as_ref().map(of).cloned().unwrap_or_default()
            };
            cells.push(place(|p| &p.region));
            cells.push(place(|p| &p.cluster));
            cells.push(status.attempt.to_string());
            cells.push(status.failures.to_string());
            cells.push(status.changed_at_index.to_string());
        }
        if has_starts {
            let expected = group.iter().filter_map(|job| job.status.expected_start.as_ref()?.p50.clone());
            cells.push(expected.min().unwrap_or_default());
        }
        cells.push(reason(job));
        grid.row(cells);
    }
    for array in arrays.into_values() {
        let more = array.counts.map_or(0, |counts| counts.uncreated);
        let mut cells = vec![
            array.id.clone(),
            format!("{}[{more} of {}]", array.name, array.size),
            array.tenant.clone(),
            word::<PriorityTier>(array.tier).to_owned(),
            muster_wire::closed::phase_word(v1::JobPhase::Pending).to_owned(),
            (u64::from(array.worker_count) * u64::from(more)).to_string(),
            (array.device_count * u64::from(more)).to_string(),
            age(muster_console::moment(array.create_time).as_deref()),
        ];
        if wide {
            cells.extend(["", "", "0", "0", ""].map(str::to_owned));
        }
        if has_starts {
            cells.push(String::new());
        }
        cells.push(format!("{}: {}", array.reason, array.message));
        grid.row(cells);
    }
    grid
}

/// Jobs in whichever form was asked for.
pub fn print_jobs(
    console: &Console,
    position: impl Into<Position>,
    jobs: Vec<view::Job>,
) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("JobList", position, Items { items: jobs }))
        }
        Format::Name => {
            let lines: String = jobs.iter().map(|job| format!("{}\n", job.id)).collect();
            console.bytes(lines.as_bytes())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.table(&table(&jobs, console.is_wide()))
        }
    }
}

async fn cancel(client: &Client, console: &Console, ids: Vec<String>) -> Result<Exit, Failure> {
    let mut jobs = Vec::with_capacity(ids.len());
    let mut log_index = None;
    let mut first_failure: Option<Failure> = None;
    for job_id in ids {
        // One that has ended must not keep the others from being cancelled.
        match client
            .cancel_job(v1::CancelJobRequest { request_id: String::new(), job_id: job_id.clone() })
            .await
        {
            Ok(answer) => {
                log_index = answer.freshness.map(|f| f.log_index);
                let job = view::Job::from(answer.job.unwrap_or_default());
                console.progress(&format!("{job_id}: {}", job.status.phase));
                jobs.push(job);
            }
            Err(error) => {
                let failure = Failure::from(error);
                match &first_failure {
                    None => first_failure = Some(failure),
                    Some(_) => {
                        console.report(&failure);
                    }
                }
            }
        }
    }
    if !jobs.is_empty() {
        print_jobs(console, log_index, jobs)?;
    }
    first_failure.map_or(Ok(Exit::Ok), Err)
}

async fn wait(client: &Client, console: &Console, awaited: Awaited) -> Result<Exit, Failure> {
    let ids = awaited.jobs.clone();
    let (exit, mut jobs) = wait::wait(client, console, awaited, &|_, _| Ok(())).await?;
    let in_order: Vec<view::Job> = ids.iter().filter_map(|id| jobs.remove(id)).map(view::Job::from).collect();
    if !ids.is_empty() {
        print_jobs(console, Some(client.seen_log_index()), in_order)?;
    }
    Ok(exit)
}
