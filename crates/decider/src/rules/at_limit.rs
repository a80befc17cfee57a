//! Limits on what is placed and used: what they say of a job that waits for one, and who is refused at one.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use muster_state::{BudgetUse, JobAboveLimit, SpentBudget, State};
use muster_types::metadata::ANONYMOUS;
use muster_types::policy::OnLimit;
use muster_types::{JobId, JobSpec, LogTime, Name, Refusal, RefusalCode, Span, Submission};

/// Thousandths of a device times milliseconds that are a device-hour.
const HOUR_MILLI_MS: u128 = 3_600_000 * 1_000;

/// What a budget that is used up says of whose it is.
fn who(spent: &SpentBudget) -> String {
    let tenant = &spent.tenant;
    match spent.user.as_deref() {
        None => format!("tenant {tenant}"),
        Some(user) => format!("user {} of tenant {tenant}", shown(user)),
    }
}

fn shown(user: &str) -> &str {
    if user.is_empty() { ANONYMOUS } else { user }
}

/// Which budget is used up, by how much.
fn spent_clause(spent: &SpentBudget) -> String {
    let (who, limit, window) = (who(spent), spent.limit(), Span(spent.of.window_ms()));
    match &spent.of {
        of if !of.is_used_up() => format!(
            "as many users of tenant {} have used accelerators in this window of {window} as are counted (`{limit}` in the \
             policy)",
            spent.tenant
        ),
        BudgetUse::Hours { budget, used_milli_ms } => {
            let (used, most) = (hundredths(used_milli_ms / (HOUR_MILLI_MS / 100)), budget.hours);
            format!(
                "{who} has used {used} accelerator-hours and may use {most} in {window} (`{limit}` in the policy)"
            )
        }
        BudgetUse::Dollars { budget, used } => {
            let (used, most) = (hundredths(used / (HOUR_MILLI_MS * 10_000)), budget.dollars);
            format!("{who} has spent ${used} and may spend ${most} in {window} (`{limit}` in the policy)")
        }
    }
}

/// A number of hundredths, rounded down to them.
fn hundredths(number: u128) -> String {
    let (whole, rest) = (number / 100, number % 100);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:02}") }
}

/// What a job waits for whose tenant or user has used up a budget.
pub(crate) fn spent_text(spent: &SpentBudget) -> String {
    let (clause, renews_at) = (spent_clause(spent), spent.renews_at);
    if !spent.of.is_used_up() {
        return format!("{clause}; the next window begins at {renews_at}");
    }
    format!("{clause}; it is placed once the next window begins, at {renews_at}")
}

/// Which limit on what is placed at a time is reached, and what is placed.
struct Reached {
    limit: &'static str,
    most: u32,
    held: u64,
    clause: String,
    of_user: bool,
}

/// The limit on jobs that are placed at a time that a user of a tenant meets.
fn running_limit(state: &State, tenant: &Name, user: Option<&str>) -> Option<Reached> {
    if let Some((most, held)) = state.running_limit_reached(tenant) {
        let limit = "limits.runningJobs";
        let clause =
            format!("tenant {tenant} has {held} jobs placed and may have {most} (`{limit}` in the policy)");
        return Some(Reached { limit, most, held, clause, of_user: false });
    }
    let user = user?;
    let (most, held) = state.running_limit_of_user_reached(tenant, user)?;
    let limit = "limits.user.runningJobs";
    let user = shown(user);
    let clause = format!(
        "user {user} of tenant {tenant} has {held} jobs placed and may have {most} (`{limit}` in the policy)"
    );
    Some(Reached { limit, most, held, clause, of_user: true })
}

/// The limit on devices of a user that a job would exceed.
fn device_limit(state: &State, spec: &JobSpec, user: &str) -> Option<Reached> {
    let asked_milli = spec.device_milli();
    if asked_milli == 0 {
        return None;
    }
    let (most, held_milli) = state.user_devices_exceeded(&spec.tenant, user, asked_milli)?;
    let limit = "limits.user.devices";
    let (user, tenant) = (shown(user), &spec.tenant);
    let (held, asked) = (devices(held_milli), devices(asked_milli));
    let clause = format!(
        "user {user} of tenant {tenant} holds {held} devices and may hold {most} (`{limit}` in the policy), and the job \
         asks for {asked}"
    );
    Some(Reached { limit, most, held: held_milli.div_ceil(1_000), clause, of_user: true })
}

/// Thousandths of devices as devices.
fn devices(milli: u64) -> String {
    let (whole, rest) = (milli / 1_000, milli % 1_000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}").trim_end_matches('0').to_string() }
}

/// Which limit keeps a job from being placed whatever is free; `job` is none for one that nobody has submitted yet.
pub(crate) fn why_it_is_held(state: &State, job: Option<JobId>, spec: &JobSpec) -> Option<String> {
    if let Some(above) = job.and_then(|job| state.held_by_job_limit(job)) {
        return Some(above_text(state, spec, above));
    }
    let user = job.map(|job| state.creator(job));
    if let Some(reached) = running_limit(state, &spec.tenant, user) {
        let when = match reached.most {
            0 => "when the policy allows more",
            _ => "once one of them is over",
        };
        return Some(format!("{}; it is placed {when}", reached.clause));
    }
    let reached = device_limit(state, spec, user?)?;
    let never = spec.device_milli() > u64::from(reached.most) * 1_000;
    let when = if never { "when the policy allows more" } else { "once enough of them are free" };
    Some(format!("{}; it is placed {when}", reached.clause))
}

/// Whose limit of one job it is, in front of the tenant, and where it stands below `limits` in the policy: of every job or of its tier,
/// or of the user of this one.
pub(crate) fn whose_limit(
    state: &State,
    spec: &JobSpec,
    above: JobAboveLimit,
) -> (&'static str, &'static str) {
    let of_all = state.policy().policy.job_limits(&spec.tenant, spec.tier);
    if above.is_above_one_of(of_all) { ("", "job") } else { ("this user in ", "users") }
}

/// What a job above a limit of one job waits for.
fn above_text(state: &State, spec: &JobSpec, above: JobAboveLimit) -> String {
    let (tenant, tier) = (&spec.tenant, spec.tier);
    let (whose, at) = whose_limit(state, spec, above);
    let rest = "it waits until the policy allows that or the job is modified (`limits.onLimit` is hold)";
    match above {
        JobAboveLimit::Devices { most, asked } => format!(
            "a {tier} job of {whose}tenant {tenant} may ask for {most} devices (`limits.{at}.maxDevices` in the policy), and this one \
             asks for {asked} with its spare workers; {rest}"
        ),
        JobAboveLimit::Workers { most, asked } => format!(
            "a {tier} job of {whose}tenant {tenant} may have {most} workers (`limits.{at}.maxWorkers` in the policy), and this one \
             asks for {asked} with its spare workers; {rest}"
        ),
        JobAboveLimit::RunTime { most_ms, asked_ms } => {
            let asked = asked_ms.map_or_else(|| "none".into(), |ms| format!("{}", Span(ms)));
            format!(
                "the run time limit of a {tier} job of {whose}tenant {tenant} may be {} at most (`limits.{at}.maxRunTime` in the \
                 policy), and that of this one is {asked}; {rest}",
                Span(most_ms)
            )
        }
    }
}

/// Where a tenant has its work refused at a limit, no job is taken whose tenant or user has used up a budget, or has as much
/// placed as it may.
///
/// # Errors
/// `TENANT_LIMIT` with the limit.
pub(crate) fn check_on_limit(state: &State, jobs: &[Submission], now: LogTime) -> Result<(), Refusal> {
    let mut seen: BTreeSet<(&Name, &str, u64)> = BTreeSet::new();
    for job in jobs {
        let (tenant, user) = (&job.spec.tenant, job.metadata.as_ref().map_or("", |m| m.creator.as_str()));
        if !seen.insert((tenant, user, job.spec.device_milli())) {
            continue;
        }
        if state.policy().policy.on_limit(tenant) != Some(OnLimit::Refuse) {
            continue;
        }
        let spent = state.spent_budget(tenant, now);
        if let Some(spent) = spent.or_else(|| state.spent_budget_of_user(tenant, user, now)) {
            return Err(refused_as_spent(tenant, &spent));
        }
        let reached = running_limit(state, tenant, Some(user));
        if let Some(reached) = reached.or_else(|| device_limit(state, &job.spec, user)) {
            return Err(refused_as_reached(tenant, user, &reached));
        }
    }
    Ok(())
}

/// What can be done where work is refused that would wait elsewhere.
const REFUSED: &str = "such work is refused (`limits.onLimit` is refuse)";

fn refused_as_spent(tenant: &Name, spent: &SpentBudget) -> Refusal {
    let renews_at = spent.renews_at;
    let text =
        format!("{}; {REFUSED}: submit it once the next window begins, at {renews_at}", spent_clause(spent));
    let most = match &spent.of {
        BudgetUse::Hours { budget, .. } => budget.hours,
        BudgetUse::Dollars { budget, .. } => budget.dollars,
    };
    let refusal = Refusal::new(RefusalCode::TenantLimit, text)
        .with("tenant", tenant)
        .with("limit", fact(spent.limit()))
        .with("limit_max", most);
    match spent.user.as_deref() {
        Some(user) => refusal.with("user", shown(user)),
        None => refusal,
    }
}

fn refused_as_reached(tenant: &Name, user: &str, reached: &Reached) -> Refusal {
    let text = format!("{}; {REFUSED}: submit it once less is placed", reached.clause);
    let refusal = Refusal::new(RefusalCode::TenantLimit, text)
        .with("tenant", tenant)
        .with("limit", fact(reached.limit))
        .with("limit_max", reached.most)
        .with("held", reached.held);
    if reached.of_user { refusal.with("user", shown(user)) } else { refusal }
}

/// The name of a limit as facts of refusals have it.
fn fact(limit: &'static str) -> &'static str {
    limit.strip_prefix("limits.").unwrap_or(limit)
}
