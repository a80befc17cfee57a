//! `muster job cancel|hold|release|requeue|suspend|modify|top`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use muster_client::{CallError, Client};
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_manifest::quantity::{duration_ms, time_ms};
use muster_types::{Control, RefusalCode};
use muster_wire::closed::number;
use muster_wire::time::{duration, timestamp};
use muster_wire::{FieldMask, v1};

use super::array::array_of;
use super::list::Phase;
use super::print_jobs;
use crate::complete;
use crate::consent::Consent;
use crate::find::{Find, Found, Targets, find, listed, resolve, targets};
use crate::view;

/// Jobs of one call, at most.
const JOBS_AT_ONCE: u64 = 1_000;
/// How often jobs are looked at again that have moved on before it was asked of them.
const ABLE_TRIES: usize = 3;
/// How often a change is repeated from a job that has changed meanwhile.
const MODIFY_TRIES: usize = 5;

/// Which jobs a command is about.
#[derive(Args)]
pub struct SelectArgs {
    /// Ids or names of jobs and arrays, or members of an array in brackets: 'array-3f0[1-5,7]'
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    ids: Vec<String>,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    consent: Consent,
}

/// What narrows down jobs that nobody named.
#[derive(Args)]
#[group(multiple = true, conflicts_with = "ids")]
struct Filters {
    /// Jobs whose labels match, as for `muster job list`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Jobs of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Jobs whose names start so
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,
    /// Jobs of this array, or of the array that this job is in
    #[arg(long, value_name = "ID")]
    array: Option<String>,
    /// Jobs in these phases; repeat it or separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PHASE")]
    phase: Vec<Phase>,
    /// Jobs that you submitted, by the certificate that you use
    #[arg(long, conflicts_with = "creator")]
    mine: bool,
    /// Jobs that this principal submitted, such as tenant/vision/ada
    #[arg(long, value_name = "PRINCIPAL")]
    creator: Option<String>,
    /// Every job that you may change; needs --yes
    #[arg(long, conflicts_with_all = ["selector", "tenant", "name", "array", "phase", "mine", "creator"])]
    all: bool,
}

impl Filters {
    fn message(&self) -> v1::JobSelector {
        let filter = v1::JobFilter {
            array_id: self.array.clone().unwrap_or_default(),
            tenant: self.tenant.clone().unwrap_or_default(),
            name_prefix: self.name.clone().unwrap_or_default(),
            label_selector: self.selector.clone().unwrap_or_default(),
            creator: self.creator.clone().unwrap_or_default(),
            mine: self.mine,
            phases: self.phase.iter().map(|phase| phase.to_message()).collect(),
            ..v1::JobFilter::default()
        };
        v1::JobSelector { filter: Some(filter), all: self.all, ..Default::default() }
    }

    fn is_empty(&self) -> bool {
        !self.all && self.message().filter.unwrap_or_default() == v1::JobFilter::default()
    }
}

/// What a call about several jobs answers, whichever it was.
#[derive(Default)]
struct Counted {
    jobs: u64,
    remaining: u64,
    passed_over: u64,
    job_ids: Vec<String>,
    last_job_id: String,
    freshness: Option<v1::Freshness>,
}

impl Counted {
    /// What calls about different jobs come to.
    fn of(sum: Option<Counted>, more: Counted) -> Counted {
        match sum {
            Some(sum) => sum.and(more),
            None => more,
        }
    }

    /// With what a call about other jobs answered.
    fn and(self, more: Counted) -> Counted {
        Counted {
            jobs: self.jobs + more.jobs,
            remaining: self.remaining + more.remaining,
            passed_over: self.passed_over + more.passed_over,
            freshness: more.freshness.or(self.freshness),
            ..more
        }
    }
}

/// Asks something of the jobs that a selector finds.
async fn ask(
    client: &Client,
    control: Control,
    selector: v1::JobSelector,
    validate_only: bool,
) -> Result<Counted, CallError> {
    macro_rules! call {
        ($call:ident, $request:ident) => {{
            let selector = Some(selector);
            let request = v1::$request { request_id: String::new(), selector, validate_only };
            let answer = client.$call(request).await?;
            Counted {
                jobs: answer.job_count.into(),
                remaining: answer.remaining_count,
                passed_over: answer.passed_over_count,
                job_ids: answer.job_ids,
                last_job_id: answer.last_job_id,
                freshness: answer.freshness,
            }
        }};
    }
    Ok(match control {
        Control::Cancel => call!(cancel_jobs, CancelJobsRequest),
        Control::Hold => call!(hold_jobs, HoldJobsRequest),
        Control::Release => call!(release_jobs, ReleaseJobsRequest),
        Control::Requeue => call!(requeue_jobs, RequeueJobsRequest),
        Control::Suspend => call!(suspend_jobs, SuspendJobsRequest),
    })
}

/// Past participle, for what was done.
fn done(control: Control) -> &'static str {
    match control {
        Control::Cancel => "cancelled",
        Control::Hold => "held",
        Control::Release => "released",
        Control::Requeue => "requeued",
        Control::Suspend => "suspended",
    }
}

fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// Runs one of the commands.
pub async fn run(
    global: &Global,
    console: &Console,
    control: Control,
    args: SelectArgs,
) -> Result<Exit, Failure> {
    let client = global.client().await?;
    if args.ids.is_empty() && args.filters.is_empty() {
        return Err(Failure::usage(format!(
            "say which jobs to {control}: their ids, or what they have in common"
        ))
        .with_next(
            "muster job list shows them; -l, --name, --tenant, --array and --mine select some, --all all",
        ));
    }
    if !args.ids.is_empty() {
        let targets = targets(&client, &args.ids, Find::Active).await?;
        return named(&client, console, (control, args.consent), targets).await;
    }
    let mut selector = args.filters.message();
    if let Some(filter) = selector.filter.as_mut().filter(|filter| !filter.array_id.is_empty()) {
        filter.array_id = array_of(&client, &filter.array_id).await?;
    }
    let counted = found(&client, console, (control, args.consent), selector, false).await?;
    counted.map_or(Ok(Exit::Ok), |counted| tell(console, control, &counted))
}

/// What was named. What comes to nothing keeps nothing else from being done.
async fn named(
    client: &Client,
    console: &Console,
    (control, consent): (Control, Consent),
    targets: Targets,
) -> Result<Exit, Failure> {
    let Targets { arrays, jobs, members } = targets;
    let only_jobs = arrays.is_empty() && members.is_empty();
    if only_jobs && control == Control::Cancel && !consent.is_dry_run() {
        return super::cancel(client, console, jobs).await;
    }
    let mut outcomes = Vec::new();
    for array_id in arrays {
        let filter = v1::JobFilter { array_id, ..Default::default() };
        let selector = v1::JobSelector { filter: Some(filter), ..Default::default() };
        outcomes.push(found(client, console, (control, consent), selector, true).await);
    }
    if !members.is_empty() {
        outcomes.push(able(client, console, (control, consent), &members).await);
    }
    // Of jobs by their ids it is done to all or to none, but one that has ended does not keep the others from being cancelled.
    if control == Control::Cancel && !jobs.is_empty() {
        outcomes.push(able(client, console, (control, consent), &jobs).await);
    } else if !jobs.is_empty() {
        outcomes.push(each(client, console, (control, consent), &jobs).await);
    }
    let (mut sum, mut first_failure): (Option<Counted>, Option<Failure>) = (None, None);
    for outcome in outcomes {
        match outcome {
            Ok(None) => {}
            Ok(Some(more)) => sum = Some(Counted::of(sum, more)),
            Err(failure) if first_failure.is_none() => first_failure = Some(failure),
            Err(failure) => _ = console.report(&failure),
        }
    }
    if let Some(sum) = sum {
        tell(console, control, &sum)?;
    }
    first_failure.map_or(Ok(Exit::Ok), Err)
}

/// Jobs by their ids: of a thousand, all of them or none.
async fn each(
    client: &Client,
    console: &Console,
    (control, consent): (Control, Consent),
    ids: &[String],
) -> Result<Option<Counted>, Failure> {
    let mut counted: Option<Counted> = None;
    let total = ids.len() as u64;
    for some in ids.chunks(JOBS_AT_ONCE as usize) {
        if consent.is_dry_run() {
            let preview = ask(client, control, of_ids(some.to_vec()), true).await?;
            console.line(&format!("{} of {} would be {}", preview.jobs, jobs(total), done(control)))?;
            continue;
        }
        let answer = ask(client, control, of_ids(some.to_vec()), false).await;
        let answer = answer.map_err(|error| after(counted.as_ref(), control, error))?;
        counted = Some(Counted::of(counted, answer));
    }
    Ok(counted)
}

fn of_ids(job_ids: Vec<String>) -> v1::JobSelector {
    let filter = v1::JobFilter { job_ids, ..Default::default() };
    v1::JobSelector { filter: Some(filter), ..Default::default() }
}

/// Whether something can be asked of a job as it is.
fn is_able(control: Control, job: &v1::Job) -> bool {
    use v1::JobPhase::{Pending, Running, Starting, Stopping};
    let hold = job.status().controls.as_ref().and_then(|controls| controls.hold.as_ref());
    match control {
        Control::Cancel => !view::has_ended(job.phase()),
        // An operator can hold what its owner holds; the server alone knows which of them asks.
        Control::Hold => {
            matches!(job.phase(), Pending | Stopping) && hold.is_none_or(|hold| !hold.by_operator)
        }
        Control::Release => hold.is_some(),
        Control::Requeue | Control::Suspend => matches!(job.phase(), Starting | Running),
    }
}

/// Those of the jobs with these ids of which it can be asked as they are; the others are passed over.
async fn able(
    client: &Client,
    console: &Console,
    (control, consent): (Control, Consent),
    ids: &[String],
) -> Result<Option<Counted>, Failure> {
    let mut sum: Option<Counted> = None;
    for some in ids.chunks(JOBS_AT_ONCE as usize) {
        let mut tries = ABLE_TRIES;
        let counted = loop {
            tries -= 1;
            let filter = v1::JobFilter { job_ids: some.to_vec(), ..Default::default() };
            // Who holds a job is in the full view alone.
            let shown = listed(client, filter, v1::JobView::Full).await?;
            let able = shown.iter().filter(|job| is_able(control, job)).map(|job| job.id.clone());
            let able: Vec<String> = able.collect();
            let (asked, passed_over) = (able.len() as u64, (some.len() - able.len()) as u64);
            if able.is_empty() {
                break Counted { passed_over, ..Counted::default() };
            }
            match ask(client, control, of_ids(able), consent.is_dry_run()).await {
                Ok(counted) => {
                    // Those that are so already are passed over, too.
                    let rest = passed_over + asked.saturating_sub(counted.jobs);
                    break Counted { passed_over: counted.passed_over.max(rest), ..counted };
                }
                // One of them has moved on since it was listed.
                Err(error) if tries > 0 && has_moved_on(&error) => {}
                Err(error) => return Err(after(sum.as_ref(), control, error)),
            }
        };
        sum = Some(Counted::of(sum, counted));
    }
    let sum = sum.unwrap_or_default();
    if sum.jobs == 0 {
        return Err(nothing(control, sum.passed_over));
    }
    if consent.is_dry_run() {
        console.line(&format!("{} of {} would be {}", sum.jobs, jobs(ids.len() as u64), done(control)))?;
        return Ok(None);
    }
    Ok(Some(sum))
}

fn has_moved_on(error: &CallError) -> bool {
    let code = error.refused().and_then(|refused| refused.code);
    matches!(code, Some(RefusalCode::JobFinished | RefusalCode::JobPhase))
}

/// Nothing can be done to any job that was found.
fn nothing(control: Control, passed_over: u64) -> Failure {
    let passed = match passed_over {
        0 => String::new(),
        some => format!("; {} match and cannot be {} as they are", jobs(some), done(control)),
    };
    let text = format!("no job that can be {} matches{passed}", done(control));
    Failure::new(Exit::NotFound, text)
        .with_next("muster job list takes the same options and shows what matches")
}

/// Whether a number of jobs is all that there are, and more than one.
async fn is_every_job(client: &Client, control: Control, total: u64) -> Result<bool, CallError> {
    let all = v1::JobSelector { all: true, ..Default::default() };
    let everything = ask(client, control, all, true).await?;
    Ok(total > 1 && everything.jobs + everything.remaining <= total)
}

/// Jobs that a selector finds: the command prints how many before it does anything, and asks for `--yes` where they are all jobs.
async fn found(
    client: &Client,
    console: &Console,
    (control, consent): (Control, Consent),
    selector: v1::JobSelector,
    is_named: bool,
) -> Result<Option<Counted>, Failure> {
    let preview = ask(client, control, selector.clone(), true).await?;
    let total = preview.jobs + preview.remaining;
    if total == 0 {
        return Err(nothing(control, preview.passed_over));
    }
    // One array that was named is what was meant, whether or not there are other jobs.
    let is_all = selector.all || (!is_named && is_every_job(client, control, total).await?);
    let shown: Vec<&str> = preview.job_ids.iter().take(8).map(String::as_str).collect();
    let more = if total > shown.len() as u64 { ", ..." } else { "" };
    let effect = format!("{} would be {}: {}{more}", jobs(total), done(control), shown.join(", "));
    let loss = is_all.then(|| format!("that is every job that you may {control}"));
    if !consent.given(console, &effect, loss.as_deref())? {
        return Ok(None);
    }
    let mut counted: Option<Counted> = None;
    let mut selector = selector;
    // Until it was asked of as many as matched when it began: jobs that come to match meanwhile are left alone. Each call goes on
    // behind the last, because a job that was requeued may run again, and match, before all others have had their turn.
    let mut calls = 0;
    while calls == 0 || (calls < total && counted.as_ref().is_some_and(|counted| counted.jobs < total)) {
        calls += 1;
        let answer = ask(client, control, selector.clone(), false).await;
        let answer = answer.map_err(|error| after(counted.as_ref(), control, error))?;
        let is_last = answer.remaining == 0 || answer.last_job_id.is_empty();
        selector.after_job_id.clone_from(&answer.last_job_id);
        counted = Some(add(counted.as_ref(), answer));
        if is_last {
            break;
        }
    }
    Ok(counted)
}

fn add(sum: Option<&Counted>, more: Counted) -> Counted {
    let Some(before) = sum else { return more };
    // The first call has counted all that were passed over.
    Counted { jobs: before.jobs + more.jobs, passed_over: before.passed_over, ..more }
}

/// What ended the command, and what it had done by then.
fn after(counted: Option<&Counted>, control: Control, error: CallError) -> Failure {
    let failure = Failure::from(error);
    match counted.map_or(0, |counted| counted.jobs) {
        0 => failure,
        before => failure.with_details([format!("{} {} before that", jobs(before), done(control))]),
    }
}

fn tell(console: &Console, control: Control, counted: &Counted) -> Result<Exit, Failure> {
    match console.format {
        Format::Json | Format::Yaml => {
            let shown = view::ControlledJobs {
                control: control.as_str(),
                jobs: counted.jobs,
                remaining: counted.remaining,
                passed_over: counted.passed_over,
            };
            console.object(&Document::new("ControlledJobs", counted.freshness, shown))?;
        }
        Format::Name => {}
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.line(&format!("{} {}", jobs(counted.jobs), done(control)))?;
        }
    }
    if counted.remaining > 0 {
        console.progress(&format!("{} more match; repeat the command for them", jobs(counted.remaining)));
    }
    if counted.passed_over > 0 {
        let text = format!("{} match and cannot be {} as they are", jobs(counted.passed_over), done(control));
        console.progress(&text);
    }
    Ok(Exit::Ok)
}

/// What is changed of a job.
#[derive(Args)]
pub struct ModifyArgs {
    /// Its id, or its name
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    id: String,
    /// Another tier; only while it waits
    #[arg(long, value_name = "TIER", value_parser = muster_manifest::tier)]
    tier: Option<muster_types::PriorityTier>,
    /// The longest run of one attempt, such as 2h, or none; also while it runs
    #[arg(long, visible_alias = "time", alias = "time-limit", value_name = "DURATION")]
    run_time_limit: Option<String>,
    /// When it has to be over: an RFC 3339 time, +2h, or none; only while it waits
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// Not to be started before: an RFC 3339 time, +2h, or none; only while it waits
    #[arg(long, value_name = "TIME")]
    not_before: Option<String>,
    /// How long it is expected to run, or none; only while it waits
    #[arg(long, value_name = "DURATION")]
    expected_run: Option<String>,
    /// Regions that it may run in, separated by commas, or any; only while it waits
    #[arg(long, value_name = "REGIONS", value_delimiter = ',')]
    regions: Vec<String>,
    /// A label that its nodes must have: label=value, label=value|value, or label- for none; only while it waits
    #[arg(long, value_name = "LABEL")]
    node_selector: Vec<String>,
    /// Tests of the labels of its nodes, like 'zone in (a,b),memory-gib>512', in place of those that it has, or none; only
    /// while it waits
    #[arg(long = "where", value_name = "TESTS")]
    node_tests: Option<String>,
    /// The only nodes that it may be on, separated by commas, or any; only while it waits
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    only: Vec<String>,
    /// Nodes that it may not be on, separated by commas, in place of those before, or none; only while it waits
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    exclude: Vec<String>,
    /// Its place among the waiting jobs of its tenant and tier, from -100 to 100: the lower goes first; only while it waits
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = muster_manifest::nice)]
    nice: Option<i32>,
    /// How many workers it has: 8, 4..8 for one that may start with 4, or GROUP=8; repeat it for several groups. Of an elastic job of
    /// one group that runs, a number within its bounds
    #[arg(long, value_name = "WORKERS")]
    workers: Vec<String>,
    /// Another tenant, which you have to act for, too; only while it waits
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// A label: key=value, or key- to take it away; repeat it
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// An annotation: key=value, or key- to take it away; repeat it
    #[arg(long = "annotation", value_name = "ANNOTATION")]
    annotations: Vec<String>,
    /// How many members of an array may be unfinished at a time, or none: all that can be changed of an array
    #[arg(long, value_name = "N", conflicts_with_all = [
        "tier", "run_time_limit", "deadline", "not_before", "expected_run", "regions", "node_selector", "labels",
        "annotations", "etag", "nice", "workers", "tenant", "node_tests", "only", "exclude",
    ])]
    throttle: Option<String>,
    /// Only if the job is still as it was shown with this etag
    #[arg(long, value_name = "ETAG")]
    etag: Option<String>,
    /// Check the change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A key and what it is to be; none to take it away.
fn pair(text: &str) -> Result<(String, Option<String>), Failure> {
    if let Some((key, value)) = text.split_once('=') {
        return Ok((key.to_owned(), Some(value.to_owned())));
    }
    match text.strip_suffix('-') {
        Some(key) if !key.is_empty() => Ok((key.to_owned(), None)),
        _ => Err(Failure::usage(format!("{text:?} is neither key=value nor key-"))),
    }
}

/// The workers that a group is to have: `8`, `4..8`, `GROUP=8` or `GROUP=4..8`.
fn group_size(text: &str) -> Result<v1::TaskGroup, Failure> {
    let (group, size) = text.split_once('=').unwrap_or(("", text));
    let (least, most) = match size.split_once("..") {
        Some((least, most)) => (Some(least), most),
        None => (None, size),
    };
    let count = |text: &str| text.parse::<u32>().ok().filter(|count| *count > 0);
    let (Some(workers), Some(min_workers)) = (count(most), least.map_or(Some(0), count)) else {
        let text = format!("--workers: {text:?} is none of 8, 4..8, GROUP=8 and GROUP=4..8");
        return Err(Failure::usage(text));
    };
    Ok(v1::TaskGroup { name: group.to_owned(), workers, min_workers, ..v1::TaskGroup::default() })
}

/// `none` for what is cleared.
fn unless_none<T>(
    option: &str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, muster_manifest::quantity::QuantityError>,
) -> Result<Option<T>, Failure> {
    if text == "none" {
        return Ok(None);
    }
    read(text).map(Some).map_err(|error| Failure::usage(format!("--{option}: {error}")))
}

impl ModifyArgs {
    /// The fields that are changed, made from the job as it is.
    fn changes(&self, now_ms: u64, job: &v1::Job) -> Result<(v1::Job, Vec<String>), Failure> {
        let spec = job.spec.clone().unwrap_or_default();
        let (mut carried, mut changed) = (v1::Job::default(), v1::JobSpec::default());
        let mut paths = Vec::new();
        let mut names = |path: &str| paths.push(path.to_owned());
        let moment = |option: &str, text: &str| unless_none(option, text, |text| time_ms(text, now_ms));
        if let Some(tier) = self.tier {
            names("spec.tier");
            changed.tier = number(tier);
        }
        if let Some(text) = &self.run_time_limit {
            names("spec.run_time_limit");
            changed.run_time_limit = unless_none("run-time-limit", text, duration_ms)?.map(duration);
        }
        if let Some(text) = &self.expected_run {
            names("spec.expected_run");
            changed.expected_run = unless_none("expected-run", text, duration_ms)?.map(duration);
        }
        if let Some(text) = &self.deadline {
            names("spec.deadline");
            changed.deadline = moment("deadline", text)?.map(timestamp);
        }
        if let Some(text) = &self.not_before {
            names("spec.not_before");
            changed.not_before = moment("not-before", text)?.map(timestamp);
        }
        if !self.regions.is_empty() {
            names("spec.regions");
            changed.regions = self.regions.iter().filter(|region| *region != "any").cloned().collect();
        }
        if !self.node_selector.is_empty() {
            names("spec.node_selector");
            changed.node_selector.clone_from(&spec.node_selector);
            for text in &self.node_selector {
                match pair(text)? {
                    (label, Some(values)) => {
                        let values = values.split('|').map(str::to_owned).collect();
                        changed.node_selector.insert(label, v1::LabelValues { values });
                    }
                    (label, None) => _ = changed.node_selector.remove(&label),
                }
            }
        }
        if let Some(nice) = self.nice {
            names("spec.nice");
            changed.nice = nice;
        }
        if !self.workers.is_empty() {
            names("spec.groups");
            changed.groups = self.workers.iter().map(|text| group_size(text)).collect::<Result<_, _>>()?;
        }
        if let Some(tenant) = &self.tenant {
            names("tenant");
            carried.tenant.clone_from(tenant);
        }
        if self.changes_nodes() {
            names("spec.nodes");
            changed.nodes = self.nodes(spec.nodes.unwrap_or_default())?;
        }
        let texts = |own: &std::collections::HashMap<String, String>, given: &[String]| {
            let mut texts = own.clone();
            for text in given {
                match pair(text)? {
                    (key, Some(value)) => _ = texts.insert(key, value),
                    (key, None) => _ = texts.remove(&key),
                }
            }
            Ok::<_, Failure>(texts)
        };
        if !self.labels.is_empty() {
            names("labels");
            carried.labels = texts(&job.labels, &self.labels)?;
        }
        if !self.annotations.is_empty() {
            names("annotations");
            carried.annotations = texts(&job.annotations, &self.annotations)?;
        }
        if paths.is_empty() {
            return Err(Failure::usage("say what to change").with_next("muster job modify --help lists it"));
        }
        carried.spec = Some(changed);
        Ok((carried, paths))
    }

    /// Whether what is sent depends on what the job has.
    fn builds_on_the_job(&self) -> bool {
        let has_map =
            !(self.labels.is_empty() && self.annotations.is_empty() && self.node_selector.is_empty());
        has_map || self.changes_nodes()
    }

    fn changes_nodes(&self) -> bool {
        self.node_tests.is_some() || !self.only.is_empty() || !self.exclude.is_empty()
    }

    /// What it asks of its nodes then; each of the parts stays that no option names.
    fn nodes(&self, mut nodes: v1::NodeRequirements) -> Result<Option<v1::NodeRequirements>, Failure> {
        match self.node_tests.as_deref() {
            None => {}
            Some("none") => nodes.expressions.clear(),
            Some(text) => {
                let tests = muster_manifest::node_tests(text);
                nodes.expressions = tests.map_err(|error| Failure::usage(format!("--where: {error}")))?.0;
            }
        }
        let named = |given: &[String], nobody: &str| -> Vec<String> {
            given.iter().filter(|name| *name != nobody).cloned().collect()
        };
        if !self.only.is_empty() {
            nodes.only = named(&self.only, "any");
        }
        if !self.exclude.is_empty() {
            nodes.exclude = named(&self.exclude, "none");
        }
        Ok(Some(nodes).filter(|nodes| *nodes != v1::NodeRequirements::default()))
    }
}

/// `muster job modify`.
pub async fn modify(global: &Global, console: &Console, args: ModifyArgs) -> Result<Exit, Failure> {
    let client = global.client().await?;
    if let Some(text) = &args.throttle {
        return throttle(&client, console, &args, text).await;
    }
    let job_id = resolve(&client, &args.id, Find::Active).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let mut tries = MODIFY_TRIES;
    loop {
        tries -= 1;
        let shown = client.get_job(v1::GetJobRequest { job_id: job_id.clone(), read: None }).await?;
        let shown = shown.job.unwrap_or_default();
        let (changed, paths) = args.changes(now_ms, &shown)?;
        let stop = stopped_for_size(&changed, &shown);
        // A part of a map is changed in what was read: nobody else may have changed it meanwhile.
        let etag = match (&args.etag, args.builds_on_the_job()) {
            (Some(etag), _) => etag.clone(),
            (None, true) => shown.etag,
            (None, false) => String::new(),
        };
        let request = v1::UpdateJobRequest {
            request_id: String::new(),
            job_id: job_id.clone(),
            job: Some(changed),
            update_mask: Some(FieldMask { paths }),
            etag,
            validate_only: args.dry_run,
            move_to_front: false,
        };
        let answer = match client.update_job(request).await {
            Err(error) if tries > 0 && args.etag.is_none() && has_changed(&error) => continue,
            answer => answer?,
        };
        if let Some(stop) = stop {
            console.progress(&stop);
        }
        if args.dry_run {
            console.progress("the change would be made; nothing was changed");
        }
        let jobs = answer.job.into_iter().map(view::Job::from).collect();
        print_jobs(console, answer.freshness, jobs)?;
        return Ok(Exit::Ok);
    }
}

/// What fewer workers mean for a job that runs with more; none where nothing is stopped.
fn stopped_for_size(changed: &v1::Job, job: &v1::Job) -> Option<String> {
    let [group] = changed.spec.as_ref()?.groups.as_slice() else { return None };
    let has = job.status.as_ref()?.worker_count;
    let runs = matches!(job.phase(), v1::JobPhase::Starting | v1::JobPhase::Running);
    let fewer = group.workers;
    (runs && fewer < has).then(|| {
        format!(
            "it runs with {has} workers: with {fewer} it is stopped with its grace, and waits again in its \
             position"
        )
    })
}

/// `muster job top`: a job goes before the others of its tenant and tier.
pub async fn to_front(global: &Global, console: &Console, id: &str, dry_run: bool) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let job_id = resolve(&client, id, Find::Active).await?;
    let request = v1::UpdateJobRequest {
        job_id,
        move_to_front: true,
        validate_only: dry_run,
        ..v1::UpdateJobRequest::default()
    };
    let answer = client.update_job(request).await?;
    if dry_run {
        console.progress("the job would be moved; nothing was changed");
    }
    let jobs = answer.job.into_iter().map(view::Job::from).collect();
    print_jobs(console, answer.freshness, jobs)?;
    Ok(Exit::Ok)
}

/// Changes the throttle of an array.
async fn throttle(
    client: &Client,
    console: &Console,
    args: &ModifyArgs,
    text: &str,
) -> Result<Exit, Failure> {
    let throttle = match text {
        "none" => None,
        text => Some(text.parse::<u32>().map_err(|_| {
            Failure::usage(format!("--throttle: {text:?} is neither a number of members nor none"))
        })?),
    };
    let Found::Array(job_id) = find(client, &args.id, Find::Active).await? else {
        return Err(Failure::usage(format!("{} is no array, and has no throttle", args.id))
            .with_next("muster job array list shows arrays"));
    };
    let array = v1::JobArray { throttle, ..v1::JobArray::default() };
    let spec = v1::JobSpec { array: Some(array), ..v1::JobSpec::default() };
    let request = v1::UpdateJobRequest {
        request_id: String::new(),
        job_id,
        job: Some(v1::Job { spec: Some(spec), ..v1::Job::default() }),
        update_mask: Some(FieldMask { paths: vec!["spec.array.throttle".to_owned()] }),
        etag: String::new(),
        validate_only: args.dry_run,
        move_to_front: false,
    };
    let answer = client.update_job(request).await?;
    if args.dry_run {
        console.progress("the change would be made; nothing was changed");
    }
    super::array::print_changed(console, answer.array.unwrap_or_default(), answer.freshness)?;
    Ok(Exit::Ok)
}

fn has_changed(error: &CallError) -> bool {
    error.refused().is_some_and(|refused| refused.code == Some(RefusalCode::JobChanged))
}

/// Lines of a job's description about what was asked of it.
pub fn lines(controls: &view::Controls) -> BTreeMap<&'static str, String> {
    let mut lines = BTreeMap::new();
    if let Some(hold) = &controls.hold {
        let operator = if hold.by_operator { "operator " } else { "" };
        let what = if hold.suspended { ", suspended" } else { "" };
        let since = hold.start_time.as_deref().unwrap_or_default();
        lines.insert("held by", format!("{operator}{} since {since}{what}", hold.principal));
    }
    if controls.requeues > 0 {
        lines.insert("requeues", format!("{}, the last by {}", controls.requeues, controls.requeued_by));
    }
    if !controls.cancelled_by.is_empty() {
        lines.insert("cancelled by", controls.cancelled_by.clone());
    }
    if !controls.modified_by.is_empty() {
        let at = controls.modified_at_index;
        lines.insert("modified by", format!("{} at log index {at}", controls.modified_by));
    }
    if controls.moved_to_front_at_index > 0 {
        lines.insert("moved to the front", format!("at log index {}", controls.moved_to_front_at_index));
    }
    if controls.size > 0 {
        lines.insert("workers at most", controls.size.to_string());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ModifyArgs,
    }

    #[test]
    fn nothing_that_goes_with_a_throttle_is_left_out() {
        let parsed = |more: &[&str]| {
            let usual = ["modify", "array-3f0", "--throttle", "5"];
            Line::try_parse_from([&usual[..], more].concat()).map(|line| line.args.throttle)
        };
        assert_eq!(parsed(&["--dry-run"]).ok(), Some(Some("5".to_owned())));
        for more in [
            ["--only", "h1"],
            ["--exclude", "h1"],
            ["--where", "zone in (a)"],
            ["--nice", "1"],
            ["--workers", "2"],
            ["--tenant", "lab"],
        ] {
            assert!(parsed(&more).is_err(), "{more:?}");
        }
    }

    #[test]
    fn a_job_that_is_stopped_for_its_size_is_said_to_be() {
        let changed = |workers| v1::Job {
            spec: Some(v1::JobSpec {
                groups: vec![v1::TaskGroup { workers, ..v1::TaskGroup::default() }],
                ..v1::JobSpec::default()
            }),
            ..v1::Job::default()
        };
        let job = |phase: v1::JobPhase| v1::Job {
            status: Some(v1::JobStatus { phase: phase.into(), worker_count: 8, ..v1::JobStatus::default() }),
            ..v1::Job::default()
        };
        let said = stopped_for_size(&changed(6), &job(v1::JobPhase::Running));
        assert!(said.is_some_and(|said| said.contains("with 6 it is stopped")));
        assert_eq!(stopped_for_size(&changed(8), &job(v1::JobPhase::Running)), None);
        assert_eq!(stopped_for_size(&changed(6), &job(v1::JobPhase::Pending)), None);
        assert_eq!(stopped_for_size(&v1::Job::default(), &job(v1::JobPhase::Running)), None);
    }

    #[test]
    fn workers_are_read_with_and_without_bounds_and_groups() {
        let size = |text: &str| group_size(text).map(|group| (group.name, group.min_workers, group.workers));
        assert_eq!(size("8").ok(), Some((String::new(), 0, 8)));
        assert_eq!(size("4..8").ok(), Some((String::new(), 4, 8)));
        assert_eq!(size("learners=2").ok(), Some(("learners".to_owned(), 0, 2)));
        assert_eq!(size("learners=1..2").ok(), Some(("learners".to_owned(), 1, 2)));
        for wrong in ["", "0", "x", "-1", "4..", "..8", "0..8", "a=", "a=b", "99999999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
