//! `muster schedule create|update|list|show|suspend|resume|run|delete`: jobs that are submitted again and again.

use clap::{Args, Subcommand};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, local, moment, span};
use muster_manifest::{Overrides, quantity};
use muster_types::{OverlapRule, RequestId, limits};
use muster_wire::convert::{overlap_rule_from_proto, overlap_rule_to_proto};
use muster_wire::time::duration;
use muster_wire::v1;
use serde::Serialize;

use crate::consent::DryRun;
use crate::job_files::{name_own_tenant, read_manifests};
use crate::parallel::auto;
use crate::reading::ReadArgs;

/// Commands about schedules.
#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// Make a schedule: a job file, when it is due, and where that local time is
    #[command(after_help = "\
Examples:
  muster schedule create nightly -f train.yaml --cron '0 6 * * 1-5' --zone Europe/Berlin
  muster schedule create -f report.yaml --cron @hourly --overlap allow
  muster schedule create backup -f backup.yaml --cron '30 2 * * sun' --starting-deadline 1h

The five fields are minute, hour, day of the month, month and day of the week. A local time that is skipped when clocks are set
forward is due at the first moment after; one that comes twice is due at its first moment. Each job has the label schedule=NAME, and
is yours. A run is made up to --starting-deadline after its moment; of several that were missed the last alone is made.")]
    Create(CreateArgs),
    /// Change a schedule; what is not named stays as it is, and it is yours from then on
    #[command(after_help = "\
Examples:
  muster schedule update nightly --cron '0 5 * * 1-5'
  muster schedule update nightly -f train.yaml
  muster schedule update nightly --overlap replace --tenant research")]
    Update(UpdateArgs),
    /// List the schedules of the tenants that you act for
    #[command(after_help = "\
Examples:
  muster schedule list
  muster schedule list --tenant research
  muster schedule list -o json | jq -r '.items[] | select(.suspended).name'")]
    List {
        /// Only those of this tenant
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        #[command(flatten)]
        #[allow(missing_docs, reason = "a flattened field has no help text")]
        read: ReadArgs,
    },
    /// Show a schedule: when it is due, why it is suspended, and its newest runs
    #[command(after_help = "\
Examples:
  muster schedule show nightly
  muster schedule show nightly --tenant research -o json")]
    Show {
        /// Its name
        name: String,
        /// Whose it is; without it, the tenant of the certificate
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        #[command(flatten)]
        #[allow(missing_docs, reason = "a flattened field has no help text")]
        read: ReadArgs,
    },
    /// Have a schedule make no jobs until it is resumed; what runs goes on
    #[command(after_help = "\
Examples:
  muster schedule suspend nightly --reason 'the data set moves'")]
    Suspend {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a flattened field has no help text")]
        which: WhichArgs,
        /// Why, for people
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Have a suspended schedule make jobs again, from its next moment on
    #[command(after_help = "\
Examples:
  muster schedule resume nightly")]
    Resume(WhichArgs),
    /// Make one job of a schedule now, in addition to those of its moments
    #[command(after_help = "\
Examples:
  muster job logs $(muster schedule run nightly) -f
  muster schedule run nightly --tenant research")]
    Run(WhichArgs),
    /// Delete a schedule; the jobs that it made stay
    #[command(after_help = "\
Examples:
  muster schedule delete nightly --dry-run
  muster schedule delete nightly --tenant research")]
    Delete {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a flattened field has no help text")]
        which: WhichArgs,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which schedule is meant.
#[derive(Args)]
pub struct WhichArgs {
    /// Its name
    name: String,
    /// Whose it is; without it, the tenant of the certificate
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// A UUID for this request; made up when there is none
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
}

/// What to make.
#[derive(Args)]
pub struct CreateArgs {
    /// What to call it: one of the tenant's schedules [default: the name of the job]
    name: Option<String>,
    /// Job file (YAML) or script with one job; - for stdin
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: String,
    /// When it is due, in local time: minute, hour, day of the month, month, day of the week
    #[arg(long, value_name = "CRON")]
    cron: String,
    /// Whose it is, instead of the file's tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    rules: RuleArgs,
    /// A UUID for this request; made up when there is none
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
}

/// What to change.
#[derive(Args)]
pub struct UpdateArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// Job file (YAML) or script with one job; - for stdin
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<String>,
    /// When it is due, in local time: minute, hour, day of the month, month, day of the week
    #[arg(long, value_name = "CRON")]
    cron: Option<String>,
    #[command(flatten)]
    rules: RuleArgs,
}

/// Where and how its moments are.
#[derive(Args)]
pub struct RuleArgs {
    /// Where the local time is, like Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// How a run is treated while an earlier one is not over: allow, forbid or replace [default: forbid]
    #[arg(long, value_name = "RULE", value_parser = overlap)]
    overlap: Option<OverlapRule>,
    /// How long after its moment a run may still be made [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = starting_deadline)]
    starting_deadline: Option<u64>,
    /// How many runs are kept, up to 50 [default: 10]
    #[arg(long, value_name = "COUNT")]
    keep: Option<u16>,
}

fn overlap(text: &str) -> Result<OverlapRule, String> {
    OverlapRule::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = OverlapRule::ALL.into_iter().map(OverlapRule::name).collect();
        format!("must be one of {}", names.join(", "))
    })
}

fn starting_deadline(text: &str) -> Result<u64, String> {
    let ms = quantity::duration_ms(text).map_err(|error| error.to_string())?;
    let (min, max) = limits::STARTING_DEADLINE_MS;
    if (min..=max).contains(&ms) { Ok(ms) } else { Err("must be from 1s to 7d".to_owned()) }
}

impl RuleArgs {
    /// What they say, over what a schedule has.
    fn over(&self, schedule: &mut v1::Schedule) {
        if let Some(zone) = &self.zone {
            schedule.time_zone.clone_from(zone);
        }
        if let Some(rule) = self.overlap {
            schedule.overlap = overlap_rule_to_proto(rule).into();
        }
        if let Some(ms) = self.starting_deadline {
            schedule.starting_deadline = Some(duration(ms));
        }
        if let Some(count) = self.keep {
            schedule.runs_max = count.into();
        }
    }
}

/// Carries out a command about schedules.
pub async fn run(global: &Global, console: &Console, command: ScheduleCommand) -> Result<Exit, Failure> {
    match command {
        ScheduleCommand::Create(args) => create(global, console, args).await?,
        ScheduleCommand::Update(args) => update(global, console, args).await?,
        ScheduleCommand::List { tenant, read } => list(global, console, tenant, &read).await?,
        ScheduleCommand::Show { name, tenant, read } => show(global, console, (name, tenant), &read).await?,
        ScheduleCommand::Suspend { which, reason } => suspend(global, console, which, reason).await?,
        ScheduleCommand::Resume(which) => {
            let (client, tenant, request_id) = asked(global, &which).await?;
            let name = which.name.clone();
            client.resume_schedule(v1::ResumeScheduleRequest { request_id, tenant, name }).await?;
            console.progress(&format!("schedule {} makes jobs again, from its next moment on", which.name));
        }
        ScheduleCommand::Run(which) => {
            let (client, tenant, request_id) = asked(global, &which).await?;
            let name = which.name.clone();
            let made = client.run_schedule(v1::RunScheduleRequest { request_id, tenant, name }).await?;
            let id = std::slice::from_ref(&made.job_id);
            crate::ids_on_stderr::or_on_stderr(console, id, console.line(&made.job_id))?;
            console.progress(&format!("submitted 1 job of schedule {}", which.name));
        }
        ScheduleCommand::Delete { which, dry_run: true } => would_delete(global, console, which).await?,
        ScheduleCommand::Delete { which, dry_run: false } => {
            let (client, tenant, request_id) = asked(global, &which).await?;
            let name = which.name.clone();
            client.delete_schedule(v1::DeleteScheduleRequest { request_id, tenant, name }).await?;
            console.progress(&format!("schedule {} is deleted; its jobs stay", which.name));
        }
    }
    Ok(Exit::Ok)
}

/// Says what deleting a schedule would change.
async fn would_delete(global: &Global, console: &Console, which: WhichArgs) -> Result<(), Failure> {
    let (client, tenant, _) = asked(global, &which).await?;
    let read = v1::GetScheduleRequest { tenant, name: which.name, read: None };
    let view = ScheduleView::of(client.get_schedule(read).await?.schedule.unwrap_or_default());
    if console.is_structured() {
        return console.object(&Document::new("Schedule", None::<u64>, DryRun::of(view)));
    }
    console.line(&format!(
        "schedule {} of tenant {} would be deleted: {} in {}, next: {}; {} of its jobs are not over, and would go on",
        view.name,
        view.tenant,
        view.cron,
        view.time_zone,
        view.next(),
        view.unfinished_job_ids.len()
    ))?;
    console.progress("nothing was deleted");
    Ok(())
}

/// A client, the tenant that is meant, and the id of the request.
async fn asked(global: &Global, which: &WhichArgs) -> Result<(Client, String, String), Failure> {
    let client = global.client().await?;
    let tenant = tenant_of(&client, which.tenant.as_deref());
    Ok((client, tenant, id_text(which.request_id)))
}

/// The tenant that was named, or that of the user's certificate.
fn tenant_of(client: &Client, named: Option<&str>) -> String {
    if let Some(tenant) = named {
        return tenant.to_owned();
    }
    crate::job_files::own_tenant(client).unwrap_or_default()
}

fn id_text(request: Option<RequestId>) -> String {
    request.map(|request| request.to_string()).unwrap_or_default()
}

/// The one job of a file, as it would be submitted.
async fn job_of(
    global: &Global,
    console: &Console,
    client: &Client,
    (file, tenant): (&str, Option<&str>),
) -> Result<v1::Job, Failure> {
    let overrides = Overrides { tenant: tenant.map(str::to_owned), ..Overrides::default() };
    let mut manifests = read_manifests(console, file, &overrides)?;
    if manifests.len() != 1 {
        let text = format!("a schedule makes one job at a time, and {file} holds {}", manifests.len());
        return Err(Failure::usage(text));
    }
    if global.is_local() {
        manifests.iter_mut().for_each(|manifest| local::localize(&mut manifest.message));
    }
    name_own_tenant(client, &mut manifests);
    auto::choose(client, console, file, &mut manifests).await?;
    let job = manifests.pop().map(|manifest| manifest.message);
    job.ok_or_else(|| Failure::usage(format!("{file} holds no job")))
}

async fn create(global: &Global, console: &Console, args: CreateArgs) -> Result<(), Failure> {
    let client = global.client().await?;
    let job = job_of(global, console, &client, (&args.file, args.tenant.as_deref())).await?;
    let mut schedule = v1::Schedule {
        tenant: job.tenant.clone(),
        name: args.name.unwrap_or_else(|| job.name.clone()),
        cron: args.cron,
        job: Some(job),
        ..Default::default()
    };
    args.rules.over(&mut schedule);
    let request_id = id_text(args.request_id);
    let request = v1::CreateScheduleRequest { request_id, schedule: Some(schedule.clone()) };
    let made = client.create_schedule(request).await?;
    shown(console, "created", made.schedule.unwrap_or(schedule))
}

async fn update(global: &Global, console: &Console, args: UpdateArgs) -> Result<(), Failure> {
    let (client, tenant, request_id) = asked(global, &args.which).await?;
    let name = args.which.name;
    let read = v1::GetScheduleRequest { tenant, name, read: None };
    let mut schedule = client.get_schedule(read).await?.schedule.unwrap_or_default();
    if let Some(file) = &args.file {
        let job = job_of(global, console, &client, (file, Some(&schedule.tenant))).await?;
        schedule.job = Some(job);
    }
    if let Some(cron) = args.cron {
        schedule.cron = cron;
    }
    args.rules.over(&mut schedule);
    let request = v1::UpdateScheduleRequest { request_id, schedule: Some(schedule.clone()) };
    let made = client.update_schedule(request).await?;
    shown(console, "changed", made.schedule.unwrap_or(schedule))
}

fn shown(console: &Console, what: &str, schedule: v1::Schedule) -> Result<(), Failure> {
    if console.is_structured() {
        return console.object(&Document::new("Schedule", None::<u64>, ScheduleView::of(schedule)));
    }
    let ScheduleView { tenant, name, cron, time_zone, .. } = ScheduleView::of(schedule);
    console.progress(&format!("schedule {name} of tenant {tenant} is {what}: {cron} in {time_zone}"));
    Ok(())
}

async fn suspend(
    global: &Global,
    console: &Console,
    which: WhichArgs,
    reason: String,
) -> Result<(), Failure> {
    let (client, tenant, request_id) = asked(global, &which).await?;
    let name = which.name.clone();
    let request = v1::SuspendScheduleRequest { request_id, tenant, name, reason };
    client.suspend_schedule(request).await?;
    console.progress(&format!("schedule {} makes no jobs until `muster schedule resume`", which.name));
    Ok(())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleView {
    tenant: String,
    name: String,
    cron: String,
    time_zone: String,
    overlap: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    starting_deadline: Option<String>,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_run: Option<String>,
    suspended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    suspension: Option<SuspensionView>,
    unfinished_job_ids: Vec<String>,
    submitted_count: u64,
    skipped_count: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs: Vec<RunView>,
}

#[derive(Serialize)]
struct SuspensionView {
    by: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunView {
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decided: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    job_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    skipped: String,
}

impl ScheduleView {
    fn of(schedule: v1::Schedule) -> ScheduleView {
        let suspension = schedule.suspension.map(|suspension| SuspensionView {
            by: suspension.by,
            reason: suspension.reason,
            since: moment(suspension.since),
        });
        let run = |run: v1::ScheduleRun| RunView {
            due: moment(run.due_at),
            decided: moment(run.decided_at),
            job_id: run.job_id,
            skipped: run.skipped,
        };
        ScheduleView {
            tenant: schedule.tenant,
            name: schedule.name,
            cron: schedule.cron,
            time_zone: if schedule.time_zone.is_empty() { "UTC".to_owned() } else { schedule.time_zone },
            overlap: overlap_rule_from_proto(schedule.overlap).map_or("unknown", OverlapRule::name),
            starting_deadline: span(schedule.starting_deadline),
            owner: schedule.owner,
            next_run: moment(schedule.next_run_at),
            suspended: suspension.is_some(),
            suspension,
            unfinished_job_ids: schedule.unfinished_job_ids,
            submitted_count: schedule.submitted_count,
            skipped_count: schedule.skipped_count,
            runs: schedule.runs.into_iter().map(run).collect(),
        }
    }

    /// When it is due next, or that it is not.
    fn next(&self) -> String {
        match (&self.next_run, self.suspended) {
            (_, true) => "suspended".to_owned(),
            (Some(next), false) => next.clone(),
            (None, false) => "-".to_owned(),
        }
    }
}

#[derive(Serialize)]
struct ScheduleList {
    items: Vec<ScheduleView>,
}

async fn list(
    global: &Global,
    console: &Console,
    tenant: Option<String>,
    read: &ReadArgs,
) -> Result<(), Failure> {
    let client = read.client(global).await?;
    let request = v1::ListSchedulesRequest { tenant: tenant.unwrap_or_default(), read: None };
    let answer = client.list_schedules(request).await?;
    let items: Vec<ScheduleView> = answer.schedules.into_iter().map(ScheduleView::of).collect();
    if console.is_structured() {
        return console.object(&Document::new("ScheduleList", None::<u64>, ScheduleList { items }));
    }
    if console.format == Format::Name {
        return items.iter().try_for_each(|row| console.line(&row.name));
    }
    let header = vec!["NAME", "TENANT", "CRON", "ZONE", "NEXT", "RUNNING", "OWNER", "REASON"];
    let mut grid = Grid::new(header).optional(&["OWNER", "RUNNING", "ZONE"]);
    for row in items {
        let (next, running) = (row.next(), row.unfinished_job_ids.len().to_string());
        let reason = row.suspension.map_or_else(|| "-".to_owned(), |suspension| suspension.reason);
        grid.row(vec![row.name, row.tenant, row.cron, row.time_zone, next, running, row.owner, reason]);
    }
    console.list(&grid, "there are no schedules; `muster schedule create` makes one")
}

async fn show(
    global: &Global,
    console: &Console,
    (name, tenant): (String, Option<String>),
    read: &ReadArgs,
) -> Result<(), Failure> {
    let client = read.client(global).await?;
    let tenant = tenant_of(&client, tenant.as_deref());
    let request = v1::GetScheduleRequest { tenant, name, read: None };
    let answer = client.get_schedule(request).await?;
    let view = ScheduleView::of(answer.schedule.unwrap_or_default());
    if console.is_structured() {
        return console.object(&Document::new("Schedule", None::<u64>, view));
    }
    let next = view.next();
    console.line(&format!("schedule  {} of tenant {}, owned by {}", view.name, view.tenant, view.owner))?;
    console.line(&format!("due       {} in {}, next: {next}", view.cron, view.time_zone))?;
    if let Some(suspension) = &view.suspension {
        let by = if suspension.by.is_empty() { "the leader" } else { suspension.by.as_str() };
        console.line(&format!("suspended by {by}: {}", suspension.reason))?;
    }
    console.line(&format!(
        "overlap   {}; {} jobs made, {} moments left out, {} not over",
        view.overlap,
        view.submitted_count,
        view.skipped_count,
        view.unfinished_job_ids.len()
    ))?;
    let mut grid = Grid::new(vec!["DUE", "DECIDED", "JOB"]);
    for run in view.runs {
        let job = if run.job_id.is_empty() { format!("none: {}", run.skipped) } else { run.job_id };
        grid.row(vec![
            run.due.unwrap_or_else(|| "asked for".to_owned()),
            run.decided.unwrap_or_default(),
            job,
        ]);
    }
    console.table(&grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_over_what_a_schedule_has() {
        let before = v1::Schedule { time_zone: "UTC".into(), runs_max: 7, ..Default::default() };
        let rules = RuleArgs {
            zone: Some("Europe/Berlin".into()),
            overlap: Some(OverlapRule::Replace),
            starting_deadline: None,
            keep: None,
        };
        let mut after = before.clone();
        rules.over(&mut after);
        assert_eq!((after.time_zone.as_str(), after.runs_max), ("Europe/Berlin", 7));
        assert_eq!(overlap_rule_from_proto(after.overlap), Some(OverlapRule::Replace));
        assert_eq!(after.starting_deadline, None);
    }

    #[test]
    fn quantities_are_read_and_bounded() {
        assert_eq!(starting_deadline("1h"), Ok(3_600_000));
        for wrong in ["", "0s", "8d", "90"] {
            assert!(starting_deadline(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(overlap("forbid"), Ok(OverlapRule::Forbid));
        assert!(overlap("never").is_err());
    }
}
