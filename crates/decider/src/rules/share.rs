//! How many rows of the state one tenant may have while others have some.

use alloc::collections::BTreeMap;
use alloc::format;
use muster_state::{State, rows_of_array};
use muster_types::{Name, Refusal, RefusalCode, Submission, limits};

/// Where a policy names tenants, none may have more rows of unfinished jobs and arrays than are left then for others: one
/// alone gets half of the rows, two that take all they can get a third each, and some are always left for the next tenant. Rows of
/// what is over are dropped when others need them.
struct RowLoad {
    /// Rows of the tenant's unfinished jobs and arrays; 0 where so few rows are taken in all that no tenant is limited.
    own: u64,
    /// Rows that unfinished jobs and arrays do not take.
    free: u64,
}

fn row_load(state: &State, tenant: &Name, new: u64) -> RowLoad {
    let most = state.parameters().jobs_held_max;
    let unfinished = state.rows_unfinished();
    let is_asked = !state.policy().policy.tenants.is_empty() && unfinished + new > most / 4;
    let own = if is_asked { unfinished_of(state, tenant) } else { 0 };
    RowLoad { own, free: most.saturating_sub(unfinished) }
}

/// Rows of a tenant's jobs and arrays that are not over, and of the arrays that are kept for its arrays' sake. Members that are not
/// created take no row but those of their array.
fn unfinished_of(state: &State, tenant: &Name) -> u64 {
    let load = state.queue(tenant).map(|queue| queue.load).unwrap_or_default();
    load.pending_jobs + load.active_jobs + load.array_rows + load.awaited_rows - load.uncreated_jobs
}

/// How many of the rows that are wanted a tenant may have now. Rows of what is over count as taken until they are dropped.
pub(crate) fn rows_left(state: &State, tenant: &Name, wanted: u64) -> u64 {
    let held = state.parameters().jobs_held_max.saturating_sub(state.rows_held());
    let RowLoad { own, free } = row_load(state, tenant, wanted);
    let of_tenant = if own > 0 { free.saturating_sub(own) } else { free };
    wanted.min(held).min(of_tenant)
}

/// No tenant would have more than its share with these rows more.
pub(crate) fn check_rows(state: &State, new: &BTreeMap<&Name, u64>) -> Result<(), Refusal> {
    let all = new.values().sum();
    for (tenant, new) in new {
        let RowLoad { own, free } = row_load(state, tenant, all);
        if own == 0 || own + new <= free {
            continue;
        }
        let most = state.parameters().jobs_held_max;
        let text = format!(
            "tenant {tenant} has {own} jobs and arrays that are not over, by their rows, of the {most} that the cluster may hold, \
             and {free} are left: the rest is kept for other tenants; cancel some, or wait until some are over"
        );
        return Err(Refusal::new(RefusalCode::StateFull, text)
            .with("limit", "jobs_held_share")
            .with("tenant", tenant)
            .with("held", own)
            .with("held_max", free)
            .with("retry_after_ms", 5_000));
    }
    Ok(())
}

/// The same of what is submitted.
pub(crate) fn check_share(state: &State, jobs: &[Submission]) -> Result<(), Refusal> {
    // No tenant is limited then.
    if state.policy().policy.tenants.is_empty() {
        return Ok(());
    }
    let mut new: BTreeMap<&Name, u64> = BTreeMap::new();
    for job in jobs {
        *new.entry(&job.spec.tenant).or_default() += rows_of_one(job) + awaited_rows(job);
    }
    check_rows(state, &new)
}

/// And of members of arrays that are not created: no tenant has more of them than are left for others.
pub(crate) fn check_members_share(state: &State, jobs: &[Submission]) -> Result<(), Refusal> {
    let mut new: BTreeMap<&Name, u64> = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.array.is_some()) {
        *new.entry(&job.spec.tenant).or_default() += u64::from(job.job_count());
    }
    let (most, waiting) = (limits::UNCREATED_MEMBERS_MAX, state.uncreated_count());
    let all: u64 = new.values().sum();
    if state.policy().policy.tenants.is_empty() || waiting + all <= most / 4 {
        return Ok(());
    }
    let free = most.saturating_sub(waiting);
    for (tenant, new) in new {
        let own = state.queue(tenant).map_or(0, |queue| queue.load.uncreated_jobs);
        if own == 0 || own + new <= free {
            continue;
        }
        let text = format!(
            "{own} members of arrays of tenant {tenant} wait to be created, of the {most} that may, and {free} are left: the \
             rest is kept for other tenants; wait until some have started, or cancel some"
        );
        return Err(Refusal::new(RefusalCode::StateFull, text)
            .with("limit", "members_waiting_share")
            .with("tenant", tenant)
            .with("held", own)
            .with("held_max", free)
            .with("retry_after_ms", 5_000));
    }
    Ok(())
}

/// How many rows a submission has at once, or soon: those of an array, and those of the members that a window and its throttle
/// let be created.
pub(crate) fn rows_of(jobs: &[Submission]) -> u64 {
    jobs.iter().map(rows_of_one).sum()
}

fn rows_of_one(job: &Submission) -> u64 {
    let Some(array) = &job.array else { return 1 };
    let members = array.size().min(limits::ARRAY_WINDOW).min(array.throttle.unwrap_or(u32::MAX));
    u64::from(members) + rows_of_array(array.size())
}

/// Rows of arrays that are kept for as long as a job has members that ask how those of the arrays ended.
fn awaited_rows(job: &Submission) -> u64 {
    let Some(array) = &job.array else { return 0 };
    let by_id = job.dependencies.iter().filter(|on| on.is_of_members()).count();
    let by_name = job.named_dependencies.iter().filter(|on| on.by_member).count();
    (by_id + by_name) as u64 * rows_of_array(array.size())
}
