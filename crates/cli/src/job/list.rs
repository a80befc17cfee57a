//! `muster job list`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use muster_client::Client;
use muster_console::{Console, Exit, Failure, Format, Global};
use muster_wire::time::unix_ms;
use muster_wire::v1;

use super::{array, grouped, print_jobs};
use crate::find::all_arrays;
use crate::reading::ReadArgs;
use crate::view;

/// What the server gives at most at once.
const PAGE_SIZE: u32 = 1_000;
/// Jobs of one list that are explained, and how long that may take: an explanation costs the replica a plan.
const EXPLAINED_MAX: usize = 16;
const EXPLAINED_WITHIN: Duration = Duration::from_millis(600);
/// What a list states of a pending job without asking the planner.
const UNEXPLAINED: &str = "PENDING";

/// Phases of jobs that have not ended: what lists show when nothing else is asked for.
pub const ACTIVE: [Phase; 4] = [Phase::Pending, Phase::Starting, Phase::Running, Phase::Stopping];

/// A phase, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    Pending,
    Starting,
    Running,
    Stopping,
    Succeeded,
    Failed,
    Cancelled,
}

impl Phase {
    /// Its number in messages.
    pub fn to_message(self) -> i32 {
        i32::from(match self {
            Phase::Pending => v1::JobPhase::Pending,
            Phase::Starting => v1::JobPhase::Starting,
            Phase::Running => v1::JobPhase::Running,
            Phase::Stopping => v1::JobPhase::Stopping,
            Phase::Succeeded => v1::JobPhase::Succeeded,
            Phase::Failed => v1::JobPhase::Failed,
            Phase::Cancelled => v1::JobPhase::Cancelled,
        })
    }
}

/// Options of `muster job list`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster job list                                     what waits, runs or stops now
  muster job list --all --since 2h                    and what ended, of the jobs of the last two hours
  muster job list --phase pending,running --tenant vision -o wide
  muster job list --name train- --limit 20 -o json
  muster job list --phase pending --starts            and when each is expected to start
  muster job list --mine -l 'team=vision,stage in (train,eval),!debug'

Jobs of an array that are in the same phase are one row; --each gives each its own, and so does every form for
programs.")]
pub struct ListArgs {
    /// Jobs that have ended too
    #[arg(short, long, conflicts_with = "phase")]
    all: bool,
    /// Only jobs that were submitted within this time, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = muster_console::timeout)]
    since: Option<Duration>,
    /// One row for each job of an array
    #[arg(long)]
    each: bool,
    /// Only these phases; repeat it or separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PHASE")]
    phase: Vec<Phase>,
    /// Only this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// With --tenant: and the tenants below it
    #[arg(long, requires = "tenant")]
    descendants: bool,
    /// Only jobs of this array, or of the array that this job is in
    #[arg(long, value_name = "ID")]
    array: Option<String>,
    /// Only jobs that are or were last placed in this region
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Only jobs that are or were last placed on this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Only names that start so
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,
    /// Only jobs whose labels match: team=vision, stage!=eval, stage in (train,eval), team, !debug; several by commas
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Only jobs that you submitted, by the certificate that you use
    #[arg(long, conflicts_with = "creator")]
    mine: bool,
    /// Only jobs that this principal submitted, such as tenant/vision/ada
    #[arg(long, value_name = "PRINCIPAL")]
    creator: Option<String>,
    /// When each waiting job is expected to start, as far as one forecast of the queue comes; the first of a row's jobs
    #[arg(long)]
    starts: bool,
    /// At most this number, the newest [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    read: ReadArgs,
}

impl ListArgs {
    /// The phases to ask for; empty for all.
    fn phases(&self) -> Vec<i32> {
        let phases = match self.phase.as_slice() {
            [] if self.all => &[],
            [] => ACTIVE.as_slice(),
            named => named,
        };
        phases.iter().map(|phase| phase.to_message()).collect()
    }

    /// Whether jobs that wait or run may be missing in the list.
    fn is_narrowed(&self) -> bool {
        let named =
            [&self.tenant, &self.array, &self.region, &self.node, &self.name, &self.selector, &self.creator];
        self.mine || self.since.is_some() || named.iter().any(|option| option.is_some())
    }
}

pub async fn run(global: &Global, console: &Console, args: ListArgs) -> Result<Exit, Failure> {
    let client = args.read.client(global).await?;
    let array_id = match &args.array {
        Some(text) => array::array_of(&client, text).await?,
        None => String::new(),
    };
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let oldest_ms = args.since.map(|since| now_ms().saturating_sub(since.as_millis() as u64));
    let is_recent =
        |job: &v1::Job| oldest_ms.is_none_or(|oldest| unix_ms(job.status().create_time) >= Some(oldest));
    let mut request = v1::ListJobsRequest {
        page_size: args.limit.unwrap_or(PAGE_SIZE).min(PAGE_SIZE),
        filter: Some(v1::JobFilter {
            phases: args.phases(),
            tenant: args.tenant.clone().unwrap_or_default(),
            name_prefix: args.name.clone().unwrap_or_default(),
            label_selector: args.selector.clone().unwrap_or_default(),
            creator: args.creator.clone().unwrap_or_default(),
            mine: args.mine,
            descendants: args.descendants,
            array_id,
            region: args.region.clone().unwrap_or_default(),
            node: args.node.clone().unwrap_or_default(),
            ..Default::default()
        }),
        expected_starts: args.starts,
        ..Default::default()
    };
    let mut forecast: Option<v1::StartForecast> = None;
    let mut jobs: Vec<view::Job> = Vec::new();
    let mut freshness: Option<v1::Freshness> = None;
    loop {
        let page = client.list_jobs(request.clone()).await?;
        // The first page's position is the one the whole list is complete up to.
        freshness = freshness.or(page.freshness);
        forecast = forecast.or(page.forecast);
        let remaining = limit - jobs.len();
        // Newest first: behind one that is too old are older ones.
        let too_old = page.jobs.iter().any(|job| !is_recent(job));
        jobs.extend(page.jobs.into_iter().filter(is_recent).take(remaining).map(view::Job::from));
        let over = page.next_page_token.is_empty() || page.next_page_token == request.page_token;
        if over || too_old || jobs.len() >= limit {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let (mut is_empty, is_table) =
        (jobs.is_empty(), !console.is_structured() && console.format != Format::Name);
    if is_table {
        // As many as are answered in time; the others lead to `muster explain`.
        let _ = tokio::time::timeout(EXPLAINED_WITHIN, explain(&client, &mut jobs)).await;
    }
    let arrays = uncreated(&client, &request.filter.unwrap_or_default(), &args).await?;
    is_empty &= arrays.is_empty();
    // Behind a limit a row of an array would stand in the place of newer jobs.
    if is_table && !args.each && args.limit.is_none() {
        console.table(&grouped(&jobs, &arrays, console.is_wide()))?;
    } else {
        print_jobs(console, freshness, jobs)?;
        tell_uncreated(console, &arrays);
    }
    if is_table && is_empty && !args.all && args.phase.is_empty() {
        let what = if args.is_narrowed() { "nothing that matches" } else { "nothing" };
        console.progress(&format!("{what} waits or runs; --all shows the jobs that have ended"));
    }
    if let Some(forecast) = forecast {
        tell_forecast(console, &forecast);
    }
    args.read.tell_age(console, freshness.as_ref());
    Ok(Exit::Ok)
}

/// Says how far a forecast of starts came.
pub fn tell_forecast(console: &Console, forecast: &v1::StartForecast) {
    let v1::StartForecast { computed_jobs, waiting_jobs, is_cut } = forecast;
    let rest = if *is_cut { "; muster explain JOB has each of the others" } else { "" };
    console.progress(&format!(
        "expected starts were computed for {computed_jobs} of {waiting_jobs} jobs that wait{rest}"
    ));
}

/// Arrays with members that are not created, where the list shows what waits.
async fn uncreated(
    client: &Client,
    filter: &v1::JobFilter,
    args: &ListArgs,
) -> Result<Vec<v1::Array>, Failure> {
    let pending = Phase::Pending.to_message();
    let shows_waiting = filter.phases.is_empty() || filter.phases.contains(&pending);
    let is_of_places = args.region.is_some() || args.node.is_some();
    if !shows_waiting || is_of_places {
        return Ok(Vec::new());
    }
    let filter = v1::JobFilter { phases: vec![pending], ..filter.clone() };
    let (mut arrays, _) = all_arrays(client, filter).await?;
    let oldest_ms = args.since.map(|since| now_ms().saturating_sub(since.as_millis() as u64));
    arrays.retain(|array| {
        let is_recent = oldest_ms.is_none_or(|oldest| unix_ms(array.create_time) >= Some(oldest));
        is_recent && array.counts.is_some_and(|counts| counts.uncreated > 0)
    });
    Ok(arrays)
}

/// Says how many members a list of jobs has no item for.
fn tell_uncreated(console: &Console, arrays: &[v1::Array]) {
    let members =
        arrays.iter().map(|array| array.counts.map_or(0, |counts| u64::from(counts.uncreated))).sum();
    let what = match (members, arrays) {
        (0, _) => return,
        (1, [only]) => format!("1 member of {} is", only.id),
        (members, [only]) => format!("{members} members of {} are", only.id),
        (members, several) => format!("{members} members of {} arrays are", several.len()),
    };
    console.progress(&format!("{what} not created, and not among these jobs; see: muster job array list"));
}

/// Asks why pending jobs wait, the newest first. The jobs of an array wait for the same reason.
async fn explain(client: &Client, jobs: &mut [view::Job]) {
    let mut arrays: BTreeMap<String, v1::Explanation> = BTreeMap::new();
    let mut asked = 0;
    for job in jobs.iter_mut().filter(|job| job.status.reason == UNEXPLAINED) {
        let array = job.array.as_ref().map(|array| array.array_id.clone());
        let explanation = match array.as_ref().and_then(|array| arrays.get(array)) {
            Some(known) => known.clone(),
            None if asked == EXPLAINED_MAX => return,
            None => {
                asked += 1;
                let request = v1::ExplainJobRequest { job_id: job.id.clone(), ..Default::default() };
                // It may have started or ended since; then the next list shows that.
                let answer = client.explain_job(request).await.ok();
                let Some(explanation) = answer.and_then(|answer| answer.explanation) else { continue };
                explanation
            }
        };
        job.status.reason.clone_from(&explanation.reason);
        job.status.message.clone_from(&explanation.message);
        arrays.extend(array.map(|array| (array, explanation)));
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::ListArgs;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ListArgs,
    }

    #[test]
    fn a_list_of_some_jobs_does_not_speak_for_all() {
        let is_narrowed = |words: &[&str]| {
            let line = Line::try_parse_from([&["list"], words].concat());
            line.is_ok_and(|line| line.args.is_narrowed())
        };
        for words in [&["--node", "h1"][..], &["--mine"], &["-l", "team=vision"], &["--since", "2h"]] {
            assert!(is_narrowed(words), "{words:?}");
        }
        assert!(!is_narrowed(&[]) && !is_narrowed(&["--each", "--limit", "3"]));
    }
}
