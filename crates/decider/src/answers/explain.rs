//! Why a job waits, when it will start, and what would help: asked of a read view, on any replica.
//!
//! Nothing here decides: the same policy and planner that place jobs are asked what they would do, on a
//! state that nobody changes, together with what the leader keeps for others where that is known. Estimates of starts are made by
//! giving every gang that goes before the job its capacity first, at the time it is expected to get it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use muster_journal::Estimate;
use muster_planner::{Budget, Checkpoints, Holds, Plan, Terms, Verdict, WaitReason, plan};
use muster_policy::{blocked_by, estimate};
use muster_state::quota::QuotaBlock;
use muster_state::{
    DependencyState, Forecast, HoldRow, HostLimit, HostResource, JobRow, Phase, SpentBudget, State,
};
use muster_types::policy::NonPreemptible;
use muster_types::quantity::ByteCount;
use muster_types::{ArrayId, Dependency, JobId, JobMetadata, JobSpec, LogIndex, LogTime, Name, Span};

use crate::answers::borrowers::{Borrower, borrowers, clause};
use crate::answers::licences;
use crate::answers::queue_walk::{Ahead, NOT_SUBMITTED, Position, QueueForecast, VISITS};
use crate::answers::user_turns::turn_note;
use crate::future::{Future, KeptReservations, Pace};
use crate::rules::bookings::why_it_waits;
use crate::rules::counted::fewest;
use crate::rules::planned::{licensed, narrowed, planned_spec};
use crate::rules::terms::with_terms;
use crate::rules::{affinity, at_limit};

/// Blockers that are listed.
const BLOCKERS_MAX: usize = 8;

/// A gang ahead of the job that has a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Which job.
    pub job: JobId,
    /// Its name.
    pub name: Name,
    /// Its workers.
    pub workers: u32,
    /// When it is expected to start.
    pub starts_at: LogTime,
    /// Whether that is later than was expected at first: then nobody else gets any more of the nodes that are kept for
    /// it, however soon they would be gone. Known only on the leader.
    pub has_slipped: bool,
}

/// A quota whose headroom is too small for the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaReport {
    /// Type the job could use.
    pub kind: Name,
    /// Region.
    pub region: Name,
    /// What the tenant may still use there.
    pub room_milli: u64,
    /// What the job asks for.
    pub wanted_milli: u64,
    /// The limit that stands in the way first.
    pub blocked_by: QuotaBlock,
}

/// When the job is expected to start, with one chance, five and nine in ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    /// If everything before it ends early.
    pub q10: LogTime,
    /// If it ends as expected.
    pub q50: LogTime,
    /// If it ends late; none when it is not known to start at all then.
    pub q90: Option<LogTime>,
}

/// Why a job waits or where it would go, with everything that policy and planner know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobExplanation {
    /// The reason, from a closed set.
    pub reason: WaitReason,
    /// One sentence.
    pub sentence: String,
    /// The policy this follows from.
    pub policy_version: LogIndex,
    /// What is expected of the job.
    pub estimate: Estimate,
    /// Where it would go now.
    pub plan: Option<Plan>,
    /// Its position in the pending queue; none when it is not in the queue.
    pub position: Option<Position>,
    /// Cluster by cluster.
    pub places: muster_planner::Explanation,
    /// Quotas in the way.
    pub quotas: Vec<QuotaReport>,
    /// Gangs ahead of it that have a reservation.
    pub blockers: Vec<Blocker>,
    /// Who borrows what its tenant is promised, those that hold most first; at most 8 groups.
    pub borrowers: Vec<Borrower>,
    /// When it is expected to start.
    pub start: Option<StartEstimate>,
    /// Whether it was made with what the leader keeps for others. Otherwise reservations were made again from the state:
    /// none of them is known to have slipped, and they may be of other nodes.
    pub knows_reservations: bool,
}

impl fmt::Display for JobExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.code(), self.sentence)
    }
}

/// Why a job waits, with what the leader keeps for others; none when there is no such job or it does not wait.
#[must_use]
pub fn explain_job(
    state: &State,
    now: LogTime,
    job: JobId,
    kept: &KeptReservations,
) -> Option<JobExplanation> {
    explain_job_in(state, job, &mut QueueForecast::new(state, now, Arc::new(kept.clone())))
}

/// The same at the time of a forecast of that state, which makes it much cheaper to explain several jobs of one state. A forecast
/// of another state is made again.
#[must_use]
pub fn explain_job_in(state: &State, job: JobId, forecast: &mut QueueForecast) -> Option<JobExplanation> {
    forecast.ensure_of(state);
    let row = state.job(job)?;
    let spec = state.spec(job)?;
    if row.phase != Phase::Pending {
        return None;
    }
    Some(explain(state, forecast, Some(job), (spec, place_of(state, job)), row))
}

/// The data set that a job's checkpoints are in.
fn place_of(state: &State, job: JobId) -> Option<&Name> {
    state.contract(job)?.checkpoint.place.as_ref()
}

/// The same without what takes long to find out: its queue position, which gangs have reservations, and when it starts.
#[must_use]
pub fn explain_briefly(
    state: &State,
    now: LogTime,
    job: JobId,
    kept: &KeptReservations,
) -> Option<(WaitReason, String)> {
    let (row, spec) = (state.job(job)?, state.spec(job)?);
    if row.phase != Phase::Pending {
        return None;
    }
    if let Some(known) = known_reason(state, Some(job), (spec, place_of(state, job)), row, (now, kept)) {
        return Some(known);
    }
    let planned = planned_spec(state, job);
    let spec = planned.as_deref().unwrap_or(spec);
    let holds = Future::of(now).holds_for(state, &spec.tenant);
    let places = with_terms(state, now, (job, spec, row), &holds, |terms| {
        muster_planner::explain(state, spec, terms, None)
    });
    Some((places.reason, places.sentence))
}

/// What would become of a job that was submitted now, with its checkpoints in that data set, if in one, and with what
/// the leader keeps for others. Its labels count where jobs are kept apart by them.
#[must_use]
pub fn explain_spec(
    state: &State,
    now: LogTime,
    (spec, metadata): (&JobSpec, Option<&Arc<JobMetadata>>),
    place: Option<&Name>,
    kept: &KeptReservations,
) -> JobExplanation {
    let mut described = Forecast::new(state);
    if let Some(metadata) = metadata {
        described.describe(NOT_SUBMITTED, Arc::clone(metadata));
    }
    let state: &State = &described;
    let row = JobRow::submitted(now, estimate(state, spec, now), spec);
    let mut forecast = QueueForecast::new(state, now, Arc::new(kept.clone()));
    explain(state, &mut forecast, None, (spec, place), &row)
}

fn explain(
    state: &State,
    forecast: &mut QueueForecast,
    job: Option<JobId>,
    (own, place): (&JobSpec, Option<&Name>),
    row: &JobRow,
) -> JobExplanation {
    let (now, kept) = (forecast.now(), Arc::clone(forecast.kept()));
    // Where its checkpoints cannot be read is no place for it.
    let planned = place.and_then(|place| narrowed(state, own, place));
    let spec = planned.as_ref().unwrap_or(own);
    let licensed = licensed(state, spec);
    let spec = licensed.as_deref().unwrap_or(spec);
    let policy = state.policy();
    let checkpoints = place.and_then(|data_set| {
        let copies = &policy.policy.datasets.get(data_set)?.regions;
        Some(Checkpoints { data_set, copies, regions: &own.regions })
    });
    let mut ahead = forecast.ahead(state, (job, spec, row), None);
    let holds = ahead.future.holds_for_job(state, job.unwrap_or(NOT_SUBMITTED), spec, row);
    let mut budget = Budget::new(VISITS);
    let asker = (job.unwrap_or(NOT_SUBMITTED), spec, row);
    let holding = kept.images().term(state, spec);
    let places = with_terms(state, now, asker, &holds, |terms| {
        let terms = Terms { image: holding.as_ref(), ..*terms };
        muster_planner::explain(state, spec, &terms, checkpoints.as_ref())
    });
    let verdict = with_terms(state, now, asker, &holds, |terms| {
        let terms = Terms { image: holding.as_ref(), ..*terms };
        plan(state, spec, &terms, &mut budget)
    });
    let found = match verdict {
        Verdict::Fits(plan) => Some(plan),
        Verdict::Waits | Verdict::OutOfBudget => None,
    };
    let mut borrowers = Vec::new();
    let (reason, sentence) = match known_reason(state, job, (own, place), row, (now, &*kept)) {
        Some(known) => known,
        None if found.is_none() && ahead.position.is_first() && comes(state, now, asker, &holds) => {
            let text = "gangs that are stopping leave enough for it; it starts once they have stopped";
            (WaitReason::MakingRoom, text.to_string())
        }
        None => {
            let (reason, mut sentence) = reason(found.as_ref(), &ahead, &places);
            if found.is_none() {
                borrowers = self::borrowers(state, now, spec);
                sentence.push_str(&partition_note(state, spec));
                sentence.push_str(&must_not_borrow(state, spec, reason));
                sentence.push_str(&clause(&borrowers, &spec.tenant));
            }
            (reason, sentence)
        }
    };
    let waiting = job.filter(|_| row.is_in_line());
    let turn = waiting.map(|job| turn_note(state, job, own, now)).unwrap_or_default();
    let sentence = format!("{sentence}{}{turn}", fallback_note(state, waiting, own));
    let mut places = places;
    if found.is_none() && !spec.preemptible {
        places.would_help.extend(preemptible_would_fit(state, now, asker, &holds));
    }
    let blockers = ahead.future.reservations().iter().take(BLOCKERS_MAX).filter_map(|reservation| {
        let spec = state.spec(reservation.job)?;
        Some(Blocker {
            job: reservation.job,
            name: spec.name.clone(),
            workers: spec.worker_count(),
            starts_at: reservation.start.at,
            has_slipped: reservation.is_closed(),
        })
    });
    let blockers = blockers.collect();
    let is_next = found.is_some() && ahead.position.is_first();
    // When quota comes free that may be borrowed is foreseen, and not what others hold that must not be stopped.
    let may_borrow = must_not_borrow(state, spec, reason).is_empty();
    // Nor is it known when licences are given back, or when what a tenant or a user has placed is over.
    let is_at_limit = reason == WaitReason::TenantLimit
        && (spent(state, job, own, now).is_none() || at_limit::why_it_is_held(state, job, own).is_some());
    // Nor for how long others block it that it may not go past.
    let waiting = job.filter(|_| row.is_in_line());
    let is_blocked = waiting.is_some_and(|job| blocked_by(state, job, now).is_some());
    let is_foreseen = may_borrow && reason != WaitReason::Licence && !is_at_limit && !is_blocked;
    let start = is_foreseen.then(|| start(state, forecast, (job, spec, row), is_next)).flatten();
    JobExplanation {
        reason,
        sentence,
        policy_version: state.policy().version,
        estimate: row.estimate,
        plan: found,
        position: row.is_in_line().then_some(ahead.position),
        places,
        quotas: quotas(state, spec),
        blockers,
        borrowers,
        start,
        knows_reservations: kept.is_of_a_pass(),
    }
}

/// What a job takes as a fallback, and when; empty for one that names nothing. `job` is none for one that could not be placed yet.
fn fallback_note(state: &State, job: Option<JobId>, spec: &JobSpec) -> String {
    let Some(fallback) = spec.capacity.as_deref().and_then(|asked| asked.fallback) else {
        return String::new();
    };
    let purchases = fallback.purchases;
    match job.and_then(|job| state.fallback_due(job)) {
        _ if fallback.is_open => format!("; as its fallback says, {purchases} is allowed as well by now"),
        Some(at) => format!("; from {at} on {purchases} is allowed as well, if it still waits then"),
        None => format!(
            "; {purchases} is allowed as well once it has waited for {} from when it could be placed on",
            Span(fallback.after_ms)
        ),
    }
}

/// What else holds for a job that must not be preempted, where quota is in its way.
fn must_not_borrow(state: &State, spec: &JobSpec, reason: WaitReason) -> String {
    let rights = state.policy().policy.rights(&spec.tenant);
    let is_fixed =
        !spec.preemptible && state.has_quotas() && rights.non_preemptible != NonPreemptible::Always;
    if is_fixed && !could_be_within(state, spec) {
        return "; it says that policy must not stop it, so it never borrows, and it asks for more than the nominal quota of \
                its tenant: under this policy it cannot start"
            .to_string();
    }
    if !is_fixed || reason != WaitReason::QuotaExceeded {
        return String::new();
    }
    "; it says that policy must not stop it, so it starts only within nominal quota and never borrows"
        .to_string()
}

/// Whether the fewest workers of a job would be within nominal quota somewhere if nobody used any.
fn could_be_within(state: &State, spec: &JobSpec) -> bool {
    let usage = state.quota_usage();
    let mut asks = false;
    for (key, _) in state.pools() {
        let Some(kind) = &key.kind else { continue };
        let wanted_milli = spec.least_milli_of(kind);
        let is_allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
        if wanted_milli == 0 || !is_allowed {
            continue;
        }
        asks = true;
        let is_unpromised = usage.sides_of(&spec.tenant, kind, &key.region).is_empty();
        if is_unpromised || usage.nominal_milli(&spec.tenant, kind, &key.region) >= wanted_milli {
            return true;
        }
    }
    !asks
}

/// Whether gangs that are stopping leave enough for a job.
fn comes(state: &State, now: LogTime, asker: (JobId, &JobSpec, &JobRow), holds: &Holds) -> bool {
    let mut forecast = Forecast::new(state);
    let mut any = false;
    for job in state.stopping() {
        forecast.end(job);
        any = true;
    }
    let mut budget = Budget::new(VISITS);
    let (_, spec, _) = asker;
    any && with_terms(&forecast, now, asker, holds, |terms| {
        matches!(plan(&forecast, spec, terms, &mut budget), Verdict::Fits(_))
    })
}

/// Whether the job would start now if it could be stopped.
fn preemptible_would_fit(
    state: &State,
    now: LogTime,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    holds: &Holds,
) -> Option<String> {
    let mut draft = JobSpec::clone(spec).into_draft();
    draft.preemptible = true;
    let spec = draft.check().ok()?;
    let mut budget = Budget::new(VISITS);
    let verdict =
        with_terms(state, now, (job, &spec, row), holds, |terms| plan(state, &spec, terms, &mut budget));
    matches!(verdict, Verdict::Fits(_)).then(|| "preemptible: true (fits now, by borrowing)".to_string())
}

/// When a job will start, found by giving every job ahead of it the capacity it will get. None for a job that waits for
/// other jobs, that is held, or to which capacity is promised that other jobs still hold.
fn start(
    state: &State,
    forecast: &mut QueueForecast,
    (job, spec, row): (Option<JobId>, &JobSpec, &JobRow),
    is_next: bool,
) -> Option<StartEstimate> {
    let now = forecast.now();
    let waits_for_jobs = !row.released && !spec.dependencies.is_empty();
    let is_above_limit = job.is_some_and(|job| state.held_by_job_limit(job).is_some());
    if row.promise.is_some() || row.held || waits_for_jobs || is_above_limit {
        return None;
    }
    // Before its budget is renewed it does not start, whatever is free.
    let spent = spent(state, job, spec, now);
    if is_next && row.released && spent.is_none() {
        return Some(StartEstimate { q10: now, q50: now, q90: Some(now) });
    }
    let renewed = spent.map_or(LogTime(0), |spent| spent.renews_at);
    let mut at = |pace: Pace| {
        let start = forecast.start(state, (job, spec, row), pace);
        start.map(|start| start.max(renewed))
    };
    let expected = at(Pace::Expected)?;
    Some(StartEstimate {
        q10: at(Pace::Early).unwrap_or(expected).min(expected),
        q50: expected,
        q90: at(Pace::Late).map(|late| late.max(expected)),
    })
}

/// Where it would fit, or why nowhere.
fn reason(found: Option<&Plan>, ahead: &Ahead, places: &muster_planner::Explanation) -> (WaitReason, String) {
    match found {
        Some(plan) => {
            let place = format!("{}/{}", plan.region, plan.cluster);
            let before = ahead.position.requests_before;
            let text = match ahead.position.or_more {
                false if before == 0 => format!("it fits now in {place} and is first in the pending queue"),
                false => {
                    format!("it fits now in {place}; {before} different requests have their turn before it")
                }
                true => format!(
                    "it fits now in {place}; {before} different requests or more have their turn before it"
                ),
            };
            (WaitReason::InLine, text)
        }
        None => (places.reason, places.sentence.clone()),
    }
}

/// Reasons that lie in the job itself: known without looking at a node.
fn known_reason(
    state: &State,
    job: Option<JobId>,
    (spec, place): (&JobSpec, Option<&Name>),
    row: &JobRow,
    (now, kept): (LogTime, &KeptReservations),
) -> Option<(WaitReason, String)> {
    if row.promise.is_some() {
        let text = "capacity is promised to it; it starts once the jobs that hold that capacity have stopped";
        return Some((WaitReason::MakingRoom, text.to_string()));
    }
    if let Some(hold) = job.filter(|_| row.held).and_then(|job| state.hold(job)) {
        return Some((WaitReason::Held, held(state, job, spec, hold)));
    }
    if !row.released {
        let open: Vec<String> = waited_for(state, spec).map(|on| named(spec, on)).collect();
        if let Some(first) = open.first() {
            let more = match open.len() {
                1 => String::new(),
                many => format!(" and {} more", many - 1),
            };
            return Some((WaitReason::Dependency, format!("it waits for {first}{more}")));
        }
        let time = spec.not_before.unwrap_or_default();
        if let Some(waits) = job.and_then(|job| retry_wait(state, job, now)) {
            return Some((WaitReason::RetryBackoff, waits));
        }
        return Some((WaitReason::NotBefore, format!("it is not to start before {time}")));
    }
    if let Some((target, row)) = state.tenant_hold(&spec.tenant) {
        let until = row
            .hold
            .until
            .map_or("until an operator releases it".to_string(), |until| format!("until {until}"));
        let text = format!("{target} is held ({}): none of its jobs starts {until}", row.hold.reason);
        return Some((WaitReason::Held, text));
    }
    if let Some(text) = why_it_waits(state, spec) {
        return Some((WaitReason::Booked, text));
    }
    if let Some(text) = affinity::why_it_waits(state, job.unwrap_or(NOT_SUBMITTED), spec) {
        return Some((WaitReason::Affinity, text));
    }
    if let Some(place) = place
        && narrowed(state, spec, place).is_none()
    {
        let text = format!("no region that it may use has a copy of {place}, which its checkpoints are in");
        return Some((WaitReason::CheckpointNotReadable, text));
    }
    at_limit::why_it_is_held(state, job, spec)
        .or_else(|| spent(state, job, spec, now).map(|spent| at_limit::spent_text(&spent)))
        .or_else(|| {
            // Only hosts count where it may be: others may be larger.
            let narrowed = place.and_then(|place| narrowed(state, spec, place));
            let spec = narrowed.as_ref().unwrap_or(spec);
            let licensed = licensed(state, spec);
            host_limit(state, licensed.as_deref().unwrap_or(spec))
        })
        .map(|text| (WaitReason::TenantLimit, text))
        .or_else(|| {
            let text = licences::why_it_waits(state, (now, kept), job, spec)?;
            Some((WaitReason::Licence, text))
        })
        .or_else(|| {
            Some((WaitReason::InLine, strict_order(state, job.filter(|_| row.is_in_line())?, spec, now)?))
        })
}

/// Which job keeps another from its turn where those of a tenant do not go past one another.
fn strict_order(state: &State, job: JobId, spec: &JobSpec, now: LogTime) -> Option<String> {
    let (first, until) = blocked_by(state, job, now)?;
    let tenant = &spec.tenant;
    Some(format!(
        "{first} has its turn before it, and in the strict order of tenant {tenant} (`queue.order` in the policy) none of its \
         jobs goes past it before {until}"
    ))
}

/// Where a tenant's jobs run on some nodes only, as the end of a sentence; empty for one that may be anywhere.
fn partition_note(state: &State, spec: &JobSpec) -> String {
    let policy = &state.policy().policy;
    match policy.partition(&spec.tenant) {
        None => String::new(),
        Some((holder, nodes)) => {
            format!("; jobs of tenant {} run on nodes of {holder} only ({nodes}: `queue.nodes`)", spec.tenant)
        }
    }
}

/// The budget of a job's tenant or user, where it is used up.
fn spent(state: &State, job: Option<JobId>, spec: &JobSpec, now: LogTime) -> Option<SpentBudget> {
    let of_user = || state.spent_user_budget(job?, now);
    state.spent_budget(&spec.tenant, now).or_else(of_user)
}

/// Which limit on CPUs or memory keeps a job from being placed.
fn host_limit(state: &State, spec: &JobSpec) -> Option<String> {
    let least = fewest(spec);
    let too_little = |limit: &HostLimit<'_>| state.host_asked(spec, limit.resource, least) > limit.free();
    let limit = state.host_limits(&spec.tenant).find(too_little)?;
    let amount = |amount: u64| match limit.resource {
        HostResource::Cpu => format!("{} CPUs", thousandths(amount)),
        HostResource::Memory => format!("{} of memory", ByteCount(amount)),
    };
    let asked = state.host_asked(spec, limit.resource, least);
    let when = if asked > limit.most { "when the policy allows more" } else { "once enough is given back" };
    Some(format!(
        "tenant {} and those below it hold {} and may have {} (`{}` in the policy), and this one needs {}; it is placed {when}",
        limit.tenant,
        amount(limit.used),
        amount(limit.most),
        limit.resource.limit(),
        amount(asked)
    ))
}

/// A number of thousandths as people write it.
fn thousandths(milli: u64) -> String {
    let (whole, rest) = (milli / 1_000, milli % 1_000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}") }
}

/// What a job still waits for.
fn waited_for<'a>(state: &'a State, spec: &'a JobSpec) -> impl Iterator<Item = &'a Dependency> {
    let ordinal = spec.array.map(|member| member.ordinal);
    spec.dependencies.iter().filter(move |on| state.dependency(on, ordinal) == DependencyState::Waits)
}

/// A job, an array, or a member of one, by its id.
fn named(spec: &JobSpec, on: &Dependency) -> String {
    let array = ArrayId(on.job.0);
    match (on.is_of_array(), spec.array.filter(|_| on.is_of_members())) {
        (true, _) => array.to_string(),
        (_, Some(member)) => array.member(member.ordinal).to_string(),
        _ => on.job.to_string(),
    }
}

/// Who holds a job, and what else it waits for.
fn held(state: &State, job: Option<JobId>, spec: &JobSpec, hold: &HoldRow) -> String {
    let HoldRow { by, since, suspended, beneath: _ } = hold;
    let what = if *suspended { "suspended" } else { "held" };
    let (who, may) = if by.is_operator { ("operator ", ", which only an operator may do") } else { ("", "") };
    let also = match waited_for(state, spec).count() {
        0 => String::new(),
        1 => "; it also waits for another job".to_string(),
        many => format!("; it also waits for {many} other jobs"),
    };
    let name = job.map(|job| job.to_string()).unwrap_or_default();
    format!(
        "{who}{by} has {what} it since {since}; it waits until somebody releases it with `muster job release \
         {name}`{may}{also}"
    )
}

/// How long a job waits that failed, and how it did.
fn retry_wait(state: &State, job: JobId, now: LogTime) -> Option<String> {
    let recovery = state.recovery(job)?;
    let until = recovery.wait_until?;
    let last = recovery.last.as_ref()?;
    let node = last.node.and_then(|node| state.node(node)).map(|row| format!(" on {}", row.spec.name));
    let node = node.unwrap_or_default();
    let rank = last.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
    Some(format!(
        "attempt {} failed ({}{rank}{node}: {}); failure {} in a row, it is tried again in {}, at {until}",
        last.attempt,
        last.class,
        last.detail,
        recovery.streak,
        Span::about(until.since_ms(now))
    ))
}

/// Quotas whose headroom is less than the job asks for.
fn quotas(state: &State, spec: &JobSpec) -> Vec<QuotaReport> {
    let mut found: Vec<QuotaReport> = Vec::new();
    if !state.has_quotas() {
        return found;
    }
    for (key, _) in state.pools() {
        let Some(kind) = &key.kind else { continue };
        let wanted_milli = spec.least_milli_of(kind);
        let known = found.iter().any(|report| report.kind == *kind && report.region == key.region);
        let allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
        if wanted_milli == 0 || known || !allowed {
            continue;
        }
        let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
        let headroom = state.quota_usage().headroom(capacity, &spec.tenant, kind, &key.region);
        let fixed =
            if spec.preemptible { u64::MAX } else { state.fixed_room_milli(&spec.tenant, kind, &key.region) };
        let room_milli = headroom.total_milli().min(fixed);
        if room_milli < wanted_milli {
            found.push(QuotaReport {
                kind: kind.clone(),
                region: key.region.clone(),
                room_milli,
                wanted_milli,
                blocked_by: headroom.blocked_by,
            });
        }
    }
    found
}
