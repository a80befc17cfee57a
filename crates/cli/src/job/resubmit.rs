//! `muster job array resubmit`: members that failed or were cancelled, submitted again.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure};
use muster_types::array::{IndexRange, indices, ranges_of};
use muster_types::{ArrayId, ArraySpec, RequestId, limits};
use muster_wire::convert::array_to_proto;
use muster_wire::time::unix_ms;
use muster_wire::v1;

use super::array::array_of;
use super::list::Phase;
use crate::consent::Consent;
use crate::find::{listed, spec_of};
use crate::view::Submission;

/// Members that are asked for by their ids at once.
const LISTED_AT_ONCE: usize = 1_000;

/// Options of `muster job array resubmit`.
#[derive(Args)]
pub struct ResubmitArgs {
    /// Its id or name, or the id of one of its members
    id: String,
    /// Members that failed
    #[arg(long)]
    failed: bool,
    /// Members that were cancelled
    #[arg(long)]
    cancelled: bool,
    /// A UUID for this submission; made up when there is none
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
    #[command(flatten)]
    consent: Consent,
}

impl ResubmitArgs {
    /// What the members that are meant have in common, for a sentence.
    fn wanted(&self) -> Result<&'static str, Failure> {
        match (self.failed, self.cancelled) {
            (true, true) => Ok("failed or was cancelled"),
            (true, false) => Ok("failed"),
            (false, true) => Ok("was cancelled"),
            (false, false) => Err(Failure::usage("say which members to submit again")
                .with_next("--failed is for those that failed, --cancelled for those that were cancelled")),
        }
    }

    fn phases(&self) -> Vec<i32> {
        let wanted = [(self.failed, Phase::Failed), (self.cancelled, Phase::Cancelled)];
        wanted.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, phase)| phase.to_message()).collect()
    }
}

pub async fn run(client: &Client, console: &Console, args: ResubmitArgs) -> Result<Exit, Failure> {
    let wanted = args.wanted()?;
    let array_id = array_of(client, &args.id).await?;
    let request = v1::GetArrayRequest { array_id: array_id.clone(), read: None };
    let array = client.get_array(request).await?.array.unwrap_or_default();
    if array.redacted {
        let text = format!("{array_id} is shown to you without what its members are started with");
        return Err(
            Failure::new(Exit::Denied, text).with_next("its tenant and operators can submit it again")
        );
    }
    let found = indices_in(client, &array, &args.phases()).await?;
    if found.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("{array_id} has no member that {wanted}"))
            .with_next(format!("muster job array show {array_id}")));
    }
    let ranges = ranges_of(found.iter().copied());
    let counts = array.counts.unwrap_or_default();
    let unfinished = counts.uncreated + counts.pending + counts.active;
    let loss = (unfinished > 0)
        .then(|| format!("{} of the array have not ended, and may fail too", members(unfinished as usize)));
    let effect =
        format!("{} of {array_id} would be submitted again: {}", members(found.len()), shown(&ranges));
    if !args.consent.given(console, &effect, loss.as_deref())? {
        return Ok(Exit::Ok);
    }
    submit(client, console, (&array, &ranges), args.request_id).await
}

fn members(count: usize) -> String {
    if count == 1 { "1 member".to_owned() } else { format!("{count} members") }
}

/// The first ranges, as people read them.
fn shown(ranges: &[IndexRange]) -> String {
    const SHOWN_MAX: usize = 16;
    let texts: Vec<String> = ranges.iter().take(SHOWN_MAX).map(IndexRange::to_string).collect();
    let more = if ranges.len() > SHOWN_MAX { ",..." } else { "" };
    format!("{}{more}", texts.join(","))
}

/// Indices of the members in these phases. An answer has at most 256 ranges of each phase: where there are more, every
/// member is asked for.
async fn indices_in(client: &Client, array: &v1::Array, phases: &[i32]) -> Result<BTreeSet<u32>, Failure> {
    let wanted: Vec<&v1::ArrayState> =
        array.states.iter().filter(|state| phases.contains(&state.phase)).collect();
    let unreadable =
        |what: &str| Failure::new(Exit::Failed, format!("the server's answer is not understood: {what}"));
    if wanted.iter().all(|state| state.complete) {
        let mut found = BTreeSet::new();
        for state in wanted.iter().filter(|state| state.count > 0) {
            for range in indices(&state.indices).map_err(|error| unreadable(&error))? {
                found.extend((range.first..=range.last).step_by(range.step.max(1) as usize));
            }
        }
        return Ok(found);
    }
    let first: ArrayId = array.id.parse().map_err(|_| unreadable(&array.id))?;
    let size = array.size.min(limits::ARRAY_MEMBERS_MAX);
    let ids: Vec<String> = (0..size).map(|ordinal| first.member(ordinal).to_string()).collect();
    let members = spec_of(array);
    let mut found = BTreeSet::new();
    for some in ids.chunks(LISTED_AT_ONCE) {
        let filter = v1::JobFilter { job_ids: some.to_vec(), phases: phases.to_vec(), ..Default::default() };
        for job in listed(client, filter, v1::JobView::Basic).await? {
            let ordinal = job.array.as_ref().map(|member| member.ordinal);
            found.extend(ordinal.and_then(|ordinal| members.index_of(ordinal)));
        }
    }
    Ok(found)
}

/// The template of an array as a submission of these members. What it waited for is over, and a moment that has passed
/// bounds nothing.
fn template(array: &v1::Array, ranges: &[IndexRange], now_ms: u64) -> v1::Job {
    let throttle = array.array.as_ref().and_then(|members| members.throttle);
    let mut spec = array.spec.clone().unwrap_or_default();
    spec.array = Some(array_to_proto(&ArraySpec { ranges: ranges.to_vec(), throttle }));
    spec.dependencies.clear();
    // It is a part of the span that it is submitted in now.
    spec.trace_parent.clear();
    let is_past = |at: Option<_>| unix_ms(at).is_some_and(|at_ms| at_ms <= now_ms);
    spec.not_before = spec.not_before.filter(|at| !is_past(Some(*at)));
    spec.deadline = spec.deadline.filter(|at| !is_past(Some(*at)));
    v1::Job {
        name: array.name.clone(),
        tenant: array.tenant.clone(),
        labels: array.labels.clone(),
        annotations: array.annotations.clone(),
        spec: Some(spec),
        ..v1::Job::default()
    }
}

/// All or none, as several arrays where one has too many ranges.
async fn submit(
    client: &Client,
    console: &Console,
    (array, ranges): (&v1::Array, &[IndexRange]),
    request_id: Option<RequestId>,
) -> Result<Exit, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let request_id = request_id.unwrap_or_else(|| RequestId(uuid::Uuid::new_v4().as_u128())).to_string();
    let parts: Vec<&[IndexRange]> = ranges.chunks(limits::ARRAY_RANGES_MAX).collect();
    let jobs: Vec<v1::Job> = parts.iter().map(|part| template(array, part, now_ms)).collect();
    let request = v1::SubmitJobsRequest { request_id: request_id.clone(), jobs, validate_only: false };
    let answer = client.submit_jobs(request).await?;
    let mut rest = answer.job_ids.as_slice();
    let mut arrays = Vec::new();
    for part in parts {
        let size = ArraySpec { ranges: part.to_vec(), throttle: None }.size() as usize;
        let (own, behind) = rest.split_at(size.min(rest.len()));
        arrays.extend(own.first().map(|first| first.replacen("job-", "array-", 1)));
        rest = behind;
    }
    let written = if console.is_structured() {
        let content = Submission { job_ids: answer.job_ids.clone(), request_id, validate_only: false };
        console.object(&Document::new("Submission", answer.freshness, content))
    } else {
        arrays.iter().try_for_each(|id| console.line(id))
    };
    crate::ids_on_stderr::or_on_stderr(console, &arrays, written)?;
    console.progress(&format!("submitted {} of {} again", members(answer.job_ids.len()), array.id));
    Ok(Exit::Ok)
}
