//! `muster job cancel|hold|release|requeue|suspend|modify`.

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

use super::array::{self, array_of};
use super::list::Phase;
use super::print_jobs;
use crate::complete;
use crate::consent::Consent;
use crate::find::{Find, all_resolved, resolve};
use crate::view;

/// Jobs of one call, at most.
const JOBS_AT_ONCE: u64 = 1_000;
/// How often a change is repeated from a job that has changed meanwhile.
const MODIFY_TRIES: usize = 5;

/// Which jobs a command is about.
#[derive(Args)]
pub struct SelectArgs {
    /// Their ids, or names
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
        v1::JobSelector { filter: Some(filter), all: self.all }
    }

    fn is_empty(&self) -> bool {
        !self.all && self.message().filter.unwrap_or_default() == v1::JobFilter::default()
    }
}

/// What a call about several jobs answers, whichever it was.
struct Counted {
    jobs: u64,
    remaining: u64,
    passed_over: u64,
    job_ids: Vec<String>,
    freshness: Option<v1::Freshness>,
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
    let (arrays, ids): (Vec<String>, Vec<String>) =
        args.ids.iter().cloned().partition(|id| array::is_array_id(id));
    if let ([array_id], []) = (arrays.as_slice(), ids.as_slice()) {
        let filter = v1::JobFilter { array_id: array_id.clone(), ..Default::default() };
        let selector = v1::JobSelector { filter: Some(filter), all: false };
        return found(&client, console, (control, args.consent), selector, true).await;
    }
    if !arrays.is_empty() {
        return Err(Failure::usage("name one array at a time, and no jobs next to it"));
    }
    if !args.ids.is_empty() {
        let ids = all_resolved(&client, &args.ids, Find::Active).await?;
        if control == Control::Cancel && !args.consent.is_dry_run() {
            return super::cancel(&client, console, ids).await;
        }
        return named(&client, console, (control, args.consent), ids).await;
    }
    let mut selector = args.filters.message();
    if let Some(filter) = selector.filter.as_mut().filter(|filter| !filter.array_id.is_empty()) {
        filter.array_id = array_of(&client, &filter.array_id).await?;
    }
    found(&client, console, (control, args.consent), selector, false).await
}

/// Jobs that were named: all of them or none.
async fn named(
    client: &Client,
    console: &Console,
    (control, consent): (Control, Consent),
    ids: Vec<String>,
) -> Result<Exit, Failure> {
    let mut counted = None;
    let total = ids.len() as u64;
    for some in ids.chunks(JOBS_AT_ONCE as usize) {
        let filter = v1::JobFilter { job_ids: some.to_vec(), ..Default::default() };
        let selector = v1::JobSelector { filter: Some(filter), all: false };
        if consent.is_dry_run() {
            let preview = ask(client, control, selector, true).await?;
            console.line(&format!("{} of {} would be {}", preview.jobs, jobs(total), done(control)))?;
            continue;
        }
        let answer = ask(client, control, selector, false).await?;
        counted = Some(add(counted, answer));
    }
    counted.map_or(Ok(Exit::Ok), |counted| tell(console, control, &counted))
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
) -> Result<Exit, Failure> {
    let preview = ask(client, control, selector.clone(), true).await?;
    let total = preview.jobs + preview.remaining;
    if total == 0 {
        let passed = match preview.passed_over {
            0 => String::new(),
            some => format!("; {} match and cannot be {} as they are", jobs(some), done(control)),
        };
        return Err(Failure::new(
            Exit::NotFound,
            format!("no job that can be {} matches{passed}", done(control)),
        )
        .with_next("muster job list takes the same options and shows what matches"));
    }
    // One array that was named is what was meant, whether or not there are other jobs.
    let is_all = selector.all || (!is_named && is_every_job(client, control, total).await?);
    let shown: Vec<&str> = preview.job_ids.iter().take(8).map(String::as_str).collect();
    let more = if total > shown.len() as u64 { ", ..." } else { "" };
    let effect = format!("{} would be {}: {}{more}", jobs(total), done(control), shown.join(", "));
    let loss = is_all.then(|| format!("that is every job that you may {control}"));
    if !consent.given(console, &effect, loss.as_deref())? {
        return Ok(Exit::Ok);
    }
    let mut counted = None;
    // As many calls as were needed when it began: jobs that come to match meanwhile are left alone.
    for _ in 0..total.div_ceil(JOBS_AT_ONCE) {
        let answer = ask(client, control, selector.clone(), false).await?;
        let is_last = answer.remaining == 0 || answer.jobs == 0;
        counted = Some(add(counted, answer));
        if is_last {
            break;
        }
    }
    counted.map_or(Ok(Exit::Ok), |counted| tell(console, control, &counted))
}

fn add(sum: Option<Counted>, more: Counted) -> Counted {
    let before = sum.map_or(0, |sum| sum.jobs);
    Counted { jobs: before + more.jobs, ..more }
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
        Format::Table | Format::Wide | Format::Html => {
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
    #[arg(long, visible_alias = "time", value_name = "DURATION")]
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
    /// A label: key=value, or key- to take it away; repeat it
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// An annotation: key=value, or key- to take it away; repeat it
    #[arg(long = "annotation", value_name = "ANNOTATION")]
    annotations: Vec<String>,
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
        !(self.labels.is_empty() && self.annotations.is_empty() && self.node_selector.is_empty())
    }
}

/// `muster job modify`.
pub async fn modify(global: &Global, console: &Console, args: ModifyArgs) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let job_id = resolve(&client, &args.id, Find::Active).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let mut tries = MODIFY_TRIES;
    loop {
        tries -= 1;
        let shown = client.get_job(v1::GetJobRequest { job_id: job_id.clone(), read: None }).await?;
        let shown = shown.job.unwrap_or_default();
        let (changed, paths) = args.changes(now_ms, &shown)?;
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
        };
        let answer = match client.update_job(request).await {
            Err(error) if tries > 0 && args.etag.is_none() && has_changed(&error) => continue,
            answer => answer?,
        };
        if args.dry_run {
            console.progress("the change would be made; nothing was changed");
        }
        let jobs = answer.job.into_iter().map(view::Job::from).collect();
        print_jobs(console, answer.freshness, jobs)?;
        return Ok(Exit::Ok);
    }
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
    lines
}
