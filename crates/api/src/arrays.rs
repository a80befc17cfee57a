//! Arrays as messages: one array, lists of them, and members that have no row among the jobs.

use muster_engine::{Engine, Reading};
use muster_state::{ArrayRow, DependencyState, HoldRow, MemberEnd, Phase, State};
use muster_types::array::ranges_of;
use muster_types::metadata::ANONYMOUS;
use muster_types::{ArrayId, ArraySpec, JobId, Refusal, RefusalCode, Violation, limits};
use muster_wire::closed::number;
use muster_wire::convert::{array_to_proto, job_spec_to_proto};
use muster_wire::shared::encoded_len;
use muster_wire::time::log_time;
use muster_wire::token::{List, PageToken, TokenError};
use muster_wire::v1;
use std::collections::BTreeMap;
use tonic::Status;

use crate::forward::{Caller, Router};
use crate::job_filter::JobFilter;
use crate::read::{PAGE_BYTES_MAX, bad_page, cluster, freshness, invalid};
use crate::render::{self, Detail};
use crate::visibility::Visibility;

/// Arrays that one page looks at: a filter that matches nothing must not walk through all of them.
const ARRAYS_LOOKED_AT_MAX: usize = 100_000;

/// Why members that are not created wait, as a code and a sentence; none when every member was created.
pub(crate) fn waits_for(view: &State, id: ArrayId, row: &ArrayRow) -> Option<(&'static str, String)> {
    if row.uncreated == 0 {
        return None;
    }
    if let Some(HoldRow { by, since, .. }) = &row.hold {
        let who = if by.is_operator { format!("operator {by}") } else { by.to_string() };
        return Some(("HELD", format!("{who} has held it since {since}; muster job release --array {id}")));
    }
    if !row.released {
        return Some(("NOT_RELEASED", not_released(view, row)));
    }
    // A held member counts neither for the throttle nor for the window.
    let load = view.array_load(id);
    let unfinished = row.unfinished() - load.held;
    if let Some(most) = row.template.array.throttle.filter(|most| unfinished >= *most) {
        let text = format!("{id} lets {most} of its members be unfinished at a time, and {unfinished} are");
        return Some(("ARRAY_THROTTLED", text));
    }
    let most = view.parameters().jobs_held_max;
    let before = load.pending - load.held;
    let is_full = view.rows_held() >= most && load.in_line < limits::ARRAY_WINDOW;
    let other = row.template.spec.dependencies.iter().find(|on| on.is_of_members());
    // With more in the queue it is for these that the next ones wait.
    let other = other.filter(|_| load.in_line <= limits::ARRAY_WINDOW / 2);
    let text = match (is_full, other) {
        (true, _) => format!(
            "the cluster holds {most} jobs and arrays, which is as many as it may; more members are created when history has been dropped"
        ),
        (false, Some(on)) => format!(
            "each member of {id} waits for the same member of {}; those are created first for which that is over",
            ArrayId(on.job.0)
        ),
        (false, None) => format!(
            "{before} of the members of {id} wait in the queue; the next are created when some have started"
        ),
    };
    Some(("ARRAY_NOT_CREATED", text))
}

/// What an array as a whole waits for.
fn not_released(view: &State, row: &ArrayRow) -> String {
    /// How many jobs a sentence names.
    const NAMED_MAX: usize = 4;
    let spec = &row.template.spec;
    let others: Vec<String> = spec
        .dependencies
        .iter()
        .filter(|on| view.dependency(on, None) == DependencyState::Waits)
        .map(|on| if on.is_of_array() { ArrayId(on.job.0).to_string() } else { on.job.to_string() })
        .collect();
    let named = others.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if others.len() > NAMED_MAX { ", ..." } else { "" };
    match (others.is_empty(), spec.not_before) {
        (false, _) => format!("the array waits for {named}{more}"),
        (true, Some(time)) => format!("the array is not to start before {time}"),
        (true, None) => "the array is about to be released".to_owned(),
    }
}

/// A member that has no row among the jobs, as it is shown to a caller; none when nothing is known of it.
pub(crate) fn member(view: &State, job: JobId, shown: (Detail, Visibility)) -> Option<v1::Job> {
    let (row, spec) = view.shown_member(job)?;
    let mut message = render::job(view, job, &row, &spec, shown);
    let (array, _) = view.array_of(job)?;
    if row.phase == Phase::Pending
        && let Some((code, text)) = view.array(array).and_then(|row| waits_for(view, array, row))
    {
        let status = message.status_mut();
        status.reason = code.to_owned();
        status.message = text;
        status.eligible = false;
    }
    Some(message)
}

/// A job with the reason why it waits, when it does, as it is shown to a caller; none when there is no such job.
pub(crate) async fn job_explained(
    router: &Router,
    view: &Reading,
    id: JobId,
    caller: Caller,
) -> Result<Option<v1::Job>, Refusal> {
    let (Some(row), Some(spec)) = (view.job(id), view.spec(id)) else {
        return Ok(member(view, id, (Detail::Full, caller.visibility())));
    };
    let mut message = render::job(view, id, row, spec, (Detail::Full, caller.visibility()));
    if row.phase != Phase::Pending {
        return Ok(Some(message));
    }
    let work = {
        let (engine, view) = (router.engine().clone(), view.clone());
        async move { engine.explain_briefly(&view, id).await }
    };
    if let Some((reason, sentence)) = router.in_turn(caller.account(), work).await? {
        let status = message.status_mut();
        status.reason = reason.code().to_owned();
        status.message = sentence;
    }
    Ok(Some(message))
}

/// A job after a change of it, as a list shows it: why it waits is looked for by those who ask. That search takes longer than the
/// change itself, and takes a turn from those who wait for one.
pub(crate) fn job_after_change(view: &State, id: JobId, visibility: Visibility) -> Option<v1::Job> {
    let shown = (Detail::Full, visibility);
    match view.job(id).zip(view.spec(id)) {
        Some((row, spec)) => Some(render::job(view, id, row, spec, shown)),
        None => member(view, id, shown),
    }
}

/// Why such a member waits, or how it ended.
pub(crate) fn member_explained(view: &State, job: JobId) -> Option<v1::Explanation> {
    let (row, _) = view.shown_member(job)?;
    let (array, _) = view.array_of(job)?;
    let (reason, message) = match view.array(array).and_then(|row| waits_for(view, array, row)) {
        Some((code, text)) if row.phase == Phase::Pending => (code.to_owned(), text),
        _ => render::status_of(view, job, &row),
    };
    Some(v1::Explanation {
        reason,
        message,
        policy_version: view.policy().version.0,
        estimate: Some(render::estimate(&row.estimate)),
        ..Default::default()
    })
}

/// An array as it is shown to a caller.
pub(crate) fn array(
    view: &State,
    id: ArrayId,
    row: &ArrayRow,
    (detail, visibility): (Detail, Visibility),
) -> v1::Array {
    let (template, full) = (&row.template, detail == Detail::Full);
    let spec = &template.spec;
    let metadata = template.metadata.as_deref();
    // What is hidden of a job is hidden here, by the same rules.
    let job = v1::Job {
        annotations: metadata
            .filter(|_| full)
            .map(|said| said.annotations.clone().into_iter().collect())
            .unwrap_or_default(),
        spec: full.then(|| v1::JobSpec {
            array: Some(array_to_proto(&template.array)),
            ..job_spec_to_proto(spec, template.contract.as_deref())
        }),
        ..v1::Job::default()
    };
    let job = visibility.job(view, &spec.tenant, job);
    let (reason, message) = waits_for(view, id, row).unwrap_or_default();
    v1::Array {
        id: id.to_string(),
        name: spec.name.to_string(),
        tenant: spec.tenant.to_string(),
        labels: metadata.map(|said| said.labels.clone().into_iter().collect()).unwrap_or_default(),
        annotations: job.annotations,
        creator: metadata.map_or(ANONYMOUS, |said| said.creator()).to_owned(),
        // A list has a thousand of them, and the indices of one may be kilobytes.
        array: Some(if full { array_to_proto(&template.array) } else { without_indices(&template.array) }),
        size: row.size(),
        first_job_id: JobId(id.0).to_string(),
        spec: job.spec,
        counts: Some(counts(view, id, row)),
        states: if full { states(view, id, row) } else { Vec::new() },
        hold: row.hold.as_ref().map(|hold| v1::JobHold {
            principal: hold.by.to_string(),
            by_operator: hold.by.is_operator,
            start_time: log_time(hold.since),
            suspended: hold.suspended,
        }),
        reason: reason.to_owned(),
        message,
        create_time: log_time(row.submitted_at),
        end_time: row.finished_at.and_then(log_time),
        redacted: job.redacted,
        tier: number(spec.tier),
        worker_count: spec.worker_count(),
        device_count: spec.device_count(),
        cancelled_by: row.cancelled_by.iter().map(ToString::to_string).collect(),
        cancelled_by_left_out: row.cancellers_left_out,
    }
}

fn without_indices(array: &ArraySpec) -> v1::JobArray {
    v1::JobArray { size: array.size(), indices: String::new(), throttle: array.throttle }
}

fn counts(view: &State, id: ArrayId, row: &ArrayRow) -> v1::ArrayCounts {
    let pending = view.array_load(id).pending;
    v1::ArrayCounts {
        uncreated: row.uncreated,
        pending,
        active: row.unfinished() - pending,
        succeeded: row.succeeded,
        failed: row.failed,
        cancelled: row.cancelled,
    }
}

/// Whether an array has a member in one of these phases; as far as counts say, those that are placed are in all of the
/// phases of placed jobs.
fn has_phase(counts: &v1::ArrayCounts, phase: i32) -> bool {
    let members = match v1::JobPhase::try_from(phase) {
        Ok(v1::JobPhase::Pending) => counts.uncreated + counts.pending,
        Ok(v1::JobPhase::Starting | v1::JobPhase::Running | v1::JobPhase::Stopping) => counts.active,
        Ok(v1::JobPhase::Succeeded) => counts.succeeded,
        Ok(v1::JobPhase::Failed) => counts.failed,
        Ok(v1::JobPhase::Cancelled) => counts.cancelled,
        Ok(v1::JobPhase::Unspecified) | Err(_) => 0,
    };
    members > 0
}

/// Members by phase: those that are not created first, then those that are jobs, then those that have ended.
fn states(view: &State, id: ArrayId, row: &ArrayRow) -> Vec<v1::ArrayState> {
    let template = &row.template.array;
    let mut members: BTreeMap<(bool, i32), Vec<u32>> = BTreeMap::new();
    let mut add = |created: bool, phase: v1::JobPhase, ordinals: &mut dyn Iterator<Item = u32>| {
        members.entry((created, phase.into())).or_default().extend(ordinals);
    };
    for (first, last) in view.uncreated(id) {
        add(false, v1::JobPhase::Pending, &mut (first..=last));
    }
    let range = view.members(id);
    for (job, of_job) in view.jobs().range(range).filter(|(_, row)| !matches!(row.phase, Phase::Finished(_)))
    {
        let ordinal = u32::try_from(job.0 - id.0).unwrap_or(u32::MAX);
        add(true, render::phase_of(&of_job.phase), &mut std::iter::once(ordinal));
    }
    for run in view.member_ends(id) {
        let phase = match run.how {
            MemberEnd::Succeeded => v1::JobPhase::Succeeded,
            MemberEnd::Failed => v1::JobPhase::Failed,
            MemberEnd::Cancelled => v1::JobPhase::Cancelled,
        };
        add(true, phase, &mut (run.first..=run.last));
    }
    let with_indices = |((created, phase), ordinals)| state(created, phase, indices_of(template, ordinals));
    members.into_iter().map(with_indices).collect()
}

/// The indices of members, in one walk over the array's ranges.
fn indices_of(array: &ArraySpec, mut ordinals: Vec<u32>) -> Vec<u32> {
    ordinals.sort_unstable();
    let mut ranges = array.ranges.iter();
    let (mut range, mut begin) = (ranges.next(), 0);
    let mut indices = Vec::with_capacity(ordinals.len());
    for ordinal in ordinals {
        while let Some(left) = range.filter(|range| ordinal >= begin + range.count()) {
            begin += left.count();
            range = ranges.next();
        }
        indices.extend(range.map(|range| range.first + (ordinal - begin) * range.step));
    }
    indices
}

/// As text that an array can be submitted with again, as far as it may be that long.
fn state(created: bool, phase: i32, mut numbers: Vec<u32>) -> v1::ArrayState {
    numbers.sort_unstable();
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    let mut indices = String::new();
    let mut complete = true;
    // A number by itself would be a number of members.
    let is_one = numbers.len() == 1;
    for (place, range) in ranges_of(numbers).into_iter().enumerate() {
        let text = if is_one { format!("{0}-{0}", range.first) } else { range.to_string() };
        if place == limits::ARRAY_RANGES_MAX || indices.len() + text.len() + 1 > limits::ARRAY_TEXT_BYTES_MAX
        {
            complete = false;
            break;
        }
        if !indices.is_empty() {
            indices.push(',');
        }
        indices.push_str(&text);
    }
    v1::ArrayState { phase, created, count, indices, complete }
}

pub(crate) fn no_such_array(id: ArrayId) -> Refusal {
    Refusal::new(RefusalCode::JobNotFound, format!("there is no {id}")).with("job_id", JobId(id.0))
}

/// What a filter of arrays may not have.
pub(crate) fn check_filter(filter: &JobFilter) -> Result<(), Status> {
    filter.field_of_jobs().map_or(Ok(()), |field| {
        let text = "says nothing of arrays; list the jobs instead";
        Err(invalid(vec![Violation::new(format!("filter.{field}"), text)]))
    })
}

/// One page of arrays, newest first.
pub(crate) fn list(
    engine: &Engine,
    view: &Reading,
    page_token: &str,
    filter: &JobFilter,
    (size, visibility): (usize, Visibility),
) -> Result<v1::ListArraysResponse, Status> {
    let (cluster, digest) = (cluster(view)?, filter.digest());
    let after = match page_token {
        "" => None,
        text => {
            let token = PageToken::decode(text, cluster, List::Arrays, digest).map_err(bad_page)?;
            Some(token.after.parse::<ArrayId>().map_err(|_| bad_page(TokenError::ReadToken))?)
        }
    };
    let mut arrays = Vec::new();
    let mut bytes = 0;
    let mut last = None;
    let mut more = false;
    for (looked_at, (id, row)) in filter.array_candidates(view, after).enumerate() {
        if arrays.len() == size || looked_at == ARRAYS_LOOKED_AT_MAX || bytes > PAGE_BYTES_MAX {
            more = true;
            break;
        }
        last = Some(id);
        if !filter.covers_array(view, id, row) {
            continue;
        }
        let counts = counts(view, id, row);
        let phases = filter.phases();
        if phases.is_empty() || phases.iter().any(|phase| has_phase(&counts, *phase)) {
            let shown = array(view, id, row, (Detail::Basic, visibility));
            bytes += encoded_len(&shown);
            arrays.push(shown);
        }
    }
    let log_index = view.log_index();
    let next = last
        .filter(|_| more)
        .map(|id| PageToken { after: id.to_string(), log_index }.encode(cluster, List::Arrays, digest));
    let freshness = Some(freshness(engine, view));
    Ok(v1::ListArraysResponse { arrays, next_page_token: next.unwrap_or_default(), freshness })
}
