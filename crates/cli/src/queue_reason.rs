//! `muster queue why`: why the jobs of a tenant wait.

use std::collections::BTreeMap;

use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_wire::v1;
use serde::Serialize;

use crate::job::list::Phase;
use crate::queue_text::{milli, quotas, share};
use crate::reading::ReadArgs;
use crate::view;

/// Jobs in one page, and pages: they come newest first, and the oldest wait longest.
const PAGE_SIZE: u32 = 1_000;
const PAGES_MAX: usize = 100;
/// Jobs that are explained: an explanation costs the replica a plan.
const EXPLAINED_MAX: usize = 8;
/// Tenants before it that people are shown.
const AHEAD_MAX: usize = 8;

/// Content of `QueueReason`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueReason {
    queue: view::Queue,
    /// Tenants with pending jobs and the same parent that have a smaller share, the smallest first.
    ahead: Vec<String>,
    /// Why its oldest jobs wait.
    jobs: Vec<JobReason>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobReason {
    job: String,
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_before: Option<u64>,
}

impl QueueReason {
    fn new(queues: &[v1::TenantUsage], tenant: &str, jobs: Vec<JobReason>) -> Option<QueueReason> {
        let queue = queues.iter().find(|queue| queue.tenant == tenant)?;
        let mut ahead: Vec<&v1::TenantUsage> = queues
            .iter()
            .filter(|other| other.parent == queue.parent && other.tenant != queue.tenant)
            .filter(|other| {
                other.pending_jobs > other.gated_jobs && other.share_billionths < queue.share_billionths
            })
            .collect();
        ahead.sort_by_key(|other| other.share_billionths);
        let ahead = ahead.into_iter().map(|other| other.tenant.clone()).collect();
        Some(QueueReason { queue: view::Queue::from(queue.clone()), ahead, jobs })
    }

    fn lines(&self) -> Vec<String> {
        let queue = &self.queue;
        let mut lines = vec![format!(
            "{}: {} jobs wait for {} devices, of which {} may not start yet; share {}",
            queue.tenant,
            queue.pending_jobs,
            milli(queue.pending_devices_milli),
            queue.gated_jobs,
            share(queue.share_billionths)
        )];
        let quotas = quotas(queue);
        if !quotas.is_empty() {
            lines.push(format!("  quotas, in use of nominal: {quotas}"));
        }
        for turn in &queue.user_turns {
            let user = if turn.user.is_empty() { "who is not known" } else { turn.user.as_str() };
            let (weight, share) = (milli(turn.weight_milli.into()), share(turn.share_billionths));
            lines.push(format!(
                "  user by turn, {}: {user} with a share of {share} for weight {weight}",
                turn.tier
            ));
        }
        match self.ahead.len() {
            0 => lines.push("  no tenant next to it that waits has a smaller share".to_owned()),
            count => {
                let named: Vec<&str> = self.ahead.iter().take(AHEAD_MAX).map(String::as_str).collect();
                let more = count.saturating_sub(AHEAD_MAX);
                let more = if more == 0 { String::new() } else { format!(" and {more} more") };
                lines.push(format!("  with a smaller share: {}{more}", named.join(", ")));
            }
        }
        let mut by_reason: BTreeMap<&str, Vec<&JobReason>> = BTreeMap::new();
        for job in &self.jobs {
            by_reason.entry(&job.reason).or_default().push(job);
        }
        for (reason, jobs) in by_reason {
            let Some(first) = jobs.first() else { continue };
            let before = first.requests_before.map_or(String::new(), |before| {
                format!("; {before} different requests are before it in the pending queue")
            });
            lines.push(format!(
                "  {} of its {} oldest: {reason}, such as {}: {}{before}",
                jobs.len(),
                self.jobs.len(),
                first.job,
                first.message
            ));
        }
        lines
    }
}

/// Every tenant, and of when the answer is.
async fn tenants(client: &Client) -> Result<(Vec<v1::TenantUsage>, Option<v1::Freshness>), Failure> {
    let mut request = v1::ListTenantsRequest { page_size: PAGE_SIZE, ..Default::default() };
    let mut queues = Vec::new();
    let mut freshness: Option<v1::Freshness> = None;
    loop {
        let page = client.list_tenants(request.clone()).await?;
        freshness = freshness.or(page.freshness);
        queues.extend(page.tenants);
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            return Ok((queues, freshness));
        }
        request.page_token = page.next_page_token;
    }
}

/// The oldest jobs of a tenant that wait, the oldest first.
async fn oldest(client: &Client, tenant: &str) -> Result<Vec<String>, Failure> {
    let filter = v1::JobFilter {
        tenant: tenant.to_owned(),
        phases: vec![Phase::Pending.to_message()],
        ..Default::default()
    };
    let mut request =
        v1::ListJobsRequest { page_size: PAGE_SIZE, filter: Some(filter), ..Default::default() };
    let mut ids: Vec<String> = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = client.list_jobs(request.clone()).await?;
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        // The oldest that are known so far.
        ids.drain(..ids.len().saturating_sub(EXPLAINED_MAX));
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            break;
        }
        request.page_token = page.next_page_token;
    }
    ids.reverse();
    Ok(ids)
}

/// Prints why the jobs of a tenant wait.
pub async fn why(global: &Global, console: &Console, tenant: &str, read: &ReadArgs) -> Result<Exit, Failure> {
    let client = read.client(global).await?;
    let (queues, freshness) = tenants(&client).await?;
    let mut jobs = Vec::new();
    for job in oldest(&client, tenant).await? {
        let request = v1::ExplainJobRequest { job_id: job.clone(), read: None };
        // It may have started or ended since.
        let Some(explanation) = client.explain_job(request).await.ok().and_then(|answer| answer.explanation)
        else {
            continue;
        };
        jobs.push(JobReason {
            job,
            reason: explanation.reason,
            message: explanation.message,
            requests_before: explanation.queue_position.map(|position| position.requests_before),
        });
    }
    let Some(reason) = QueueReason::new(&queues, tenant, jobs) else {
        return Err(Failure::new(Exit::NotFound, format!("there is no tenant {tenant:?}"))
            .with_next("muster queue list lists them"));
    };
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("QueueReason", freshness, reason))?,
        Format::Name => console.line(&reason.queue.tenant)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            for line in reason.lines() {
                console.line(&line)?;
            }
        }
    }
    read.tell_age(console, freshness.as_ref());
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(tenant: &str, share_billionths: u64, pending_jobs: u64, gated_jobs: u64) -> v1::TenantUsage {
        v1::TenantUsage {
            tenant: tenant.to_owned(),
            share_billionths,
            pending_jobs,
            gated_jobs,
            ..Default::default()
        }
    }

    #[test]
    fn those_with_a_smaller_share_that_wait_are_before_it() {
        let queues = [
            queue("vision", 500_000_000, 3, 1),
            queue("speech", 250_000_000, 1, 0),
            queue("ranking", 100_000_000, 2, 2),
            queue("agents", 125_000_000, 4, 0),
            queue("later", 750_000_000, 4, 0),
            v1::TenantUsage { parent: "vision".to_owned(), ..queue("below", 1, 1, 0) },
        ];
        let job = |id: &str, reason: &str| JobReason {
            job: id.to_owned(),
            reason: reason.to_owned(),
            message: "it waits".to_owned(),
            requests_before: Some(2),
        };
        let jobs = vec![job("job-1", "QUOTA"), job("job-2", "QUOTA"), job("job-3", "HELD")];
        let reason = QueueReason::new(&queues, "vision", jobs).unwrap();
        assert_eq!(
            reason.lines(),
            [
                "vision: 3 jobs wait for 0 devices, of which 1 may not start yet; share 50.000%",
                "  with a smaller share: agents, speech",
                "  1 of its 3 oldest: HELD, such as job-3: it waits; 2 different requests are before it in the pending queue",
                "  2 of its 3 oldest: QUOTA, such as job-1: it waits; 2 different requests are before it in the pending queue",
            ]
        );
        assert!(QueueReason::new(&queues, "nobody", Vec::new()).is_none());
    }
}
