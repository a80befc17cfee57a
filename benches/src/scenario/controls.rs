//! Arrays, and what people ask of jobs: an array of the largest size, changes, holds and releases next to submissions, selectors
//! over very many jobs, and a replica that reads all of it again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use muster_client::{CallError, Client};
use muster_wire::{FieldMask, v1};
use serde_json::json;

use super::Common;
use crate::cluster::{Cluster, Settings};
use crate::figures::Latencies;
use crate::machine;
use crate::muster::{DEADLINE, job};
use crate::place::{self, Bar, Figure};

/// Members of an array: as many as one may have.
const MEMBERS: u32 = 100_000;
/// Arrays that are submitted, and calls with a selector.
const TIMES: usize = 20;
/// Jobs in one batch of those that selectors go over, and batches under way at a time.
const BATCH: usize = 500;
const BATCHES_AT_ONCE: usize = 8;
/// Different values of the label that selectors name.
const TEAMS: usize = 1_000;
/// Loops that submit, change, hold and release, next to one another.
const LOOPS: usize = 8;
/// Longest wait for a replica to come back.
const PATIENCE: Duration = Duration::from_secs(300);
/// Milliseconds for an array, and for a selector.
const ARRAY_MS_MAX: f64 = 50.0;
const SELECTOR_MS_MAX: f64 = 200.0;

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench controls --save\n  muster-bench controls --jobs 100000 --rounds 50"
)]
pub(crate) struct ControlsArgs {
    #[command(flatten)]
    common: Common,
    /// Jobs with labels that selectors go over: single jobs, each with its own row
    #[arg(long, default_value_t = 1_000_000)]
    jobs: usize,
    /// Jobs that each loop submits, changes, holds and releases
    #[arg(long, default_value_t = 100)]
    rounds: usize,
}

/// Waits for a call and keeps how long it took.
async fn timed<T>(latency: &mut Latencies, call: impl Future<Output = Result<T, CallError>>) -> Result<T> {
    let begun = Instant::now();
    let answer = call.await.context("a call of the bench")?;
    latency.record(begun.elapsed());
    Ok(answer)
}

fn everything() -> v1::JobSelector {
    v1::JobSelector { all: true, ..Default::default() }
}

fn with_label(selector: &str) -> v1::JobFilter {
    v1::JobFilter { label_selector: selector.to_owned(), ..Default::default() }
}

/// Arrays of the largest size, one after another; each is cancelled before the next.
async fn arrays(client: &Client) -> Result<Latencies> {
    let mut latency = Latencies::new()?;
    for _ in 0..TIMES {
        let mut array = job();
        if let Some(spec) = &mut array.spec {
            spec.array = Some(v1::JobArray { size: MEMBERS, ..Default::default() });
        }
        let request = v1::SubmitJobRequest { job: Some(array), ..Default::default() };
        let answer = timed(&mut latency, client.submit_job(request)).await?;
        ensure!(answer.job_ids.len() == MEMBERS as usize, "an array has {} jobs", answer.job_ids.len());
        loop {
            let request = v1::CancelJobsRequest { selector: Some(everything()), ..Default::default() };
            let answer = client.cancel_jobs(request).await.context("cancelling an array")?;
            if answer.remaining_count == 0 {
                break;
            }
        }
    }
    Ok(latency)
}

/// Latencies of one loop.
struct LoopLatencies {
    /// Of submissions in four parts: rounds with an even and an odd number, in the first and in the second half of the time.
    submit: [Latencies; 4],
    /// Of changes, holds and releases.
    others: [Latencies; 3],
}

impl LoopLatencies {
    fn new() -> Result<LoopLatencies> {
        let submit = [Latencies::new()?, Latencies::new()?, Latencies::new()?, Latencies::new()?];
        Ok(LoopLatencies { submit, others: [Latencies::new()?, Latencies::new()?, Latencies::new()?] })
    }
}

/// One loop: a job is submitted, changed, held and released, again and again.
async fn asked(client: &Client, rounds: usize) -> Result<LoopLatencies> {
    let mut latencies = LoopLatencies::new()?;
    let LoopLatencies { submit, others: [modify, hold, release] } = &mut latencies;
    for round in 0..rounds {
        let request = v1::SubmitJobRequest { job: Some(job()), ..Default::default() };
        let part = round % 2 + if 2 * round < rounds { 0 } else { 2 };
        let answer = timed(&mut submit[part], client.submit_job(request)).await?;
        let job_id = answer.job_ids.into_iter().next().context("a submission has a job")?;
        let labels = [("phase".to_owned(), "changed".to_owned())].into();
        let request = v1::UpdateJobRequest {
            job_id: job_id.clone(),
            job: Some(v1::Job { labels, ..Default::default() }),
            update_mask: Some(FieldMask { paths: vec!["labels".to_owned()] }),
            ..Default::default()
        };
        timed(modify, client.update_job(request)).await?;
        let filter = v1::JobFilter { job_ids: vec![job_id], ..Default::default() };
        let selector = Some(v1::JobSelector { filter: Some(filter), ..Default::default() });
        let request = v1::HoldJobsRequest { selector: selector.clone(), ..Default::default() };
        timed(hold, client.hold_jobs(request)).await?;
        let request = v1::ReleaseJobsRequest { selector, ..Default::default() };
        timed(release, client.release_jobs(request)).await?;
    }
    Ok(latencies)
}

/// By how many milliseconds two medians of the same differ in this run: submissions against submissions, divided into two halves in
/// several ways (by loops, by even and odd rounds, by time); the largest difference.
fn noise_ms(loops: &[LoopLatencies]) -> Result<f64> {
    let ways: [fn(usize, usize) -> bool; 5] = [
        |number, _| number.is_multiple_of(2),
        |number, _| (number / 2).is_multiple_of(2),
        |number, _| (number / 4).is_multiple_of(2),
        |_, part| part.is_multiple_of(2),
        |_, part| part < 2,
    ];
    let mut largest = 0.0f64;
    for is_first in ways {
        let (mut first, mut second) = (Latencies::new()?, Latencies::new()?);
        for (number, of_loop) in loops.iter().enumerate() {
            for (part, latencies) in of_loop.submit.iter().enumerate() {
                let half = if is_first(number, part) { &mut first } else { &mut second };
                half.add(latencies);
            }
        }
        if first.count() > 0 && second.count() > 0 {
            largest = largest.max((first.ms(0.5) - second.ms(0.5)).abs());
        }
    }
    Ok(largest)
}

/// All loops next to one another: every call meets the same load.
async fn controls(client: &Client, rounds: usize) -> Result<Vec<Figure>> {
    let loops = futures::future::try_join_all((0..LOOPS).map(|_| asked(client, rounds))).await?;
    compared(&loops)
}

/// What calls take next to submissions. A control costs as much as a submission, so each median may be larger than that of
/// submissions by what two medians of submissions differ by.
fn compared(loops: &[LoopLatencies]) -> Result<Vec<Figure>> {
    let mut submit = Latencies::new()?;
    loops.iter().flat_map(|of_loop| &of_loop.submit).for_each(|part| submit.add(part));
    let noise = noise_ms(loops)?;
    let text = "submit against submit in two halves, largest difference of p50: what is allowed for noise";
    let mut figures = vec![
        Figure::new("controls", "submit, p50", submit.ms(0.5), "ms").detail(submit.json()),
        Figure::new("controls", "submit, p99", submit.ms(0.99), "ms"),
        Figure::new("controls", text, noise, "ms"),
    ];
    for (place, what) in ["modify", "hold", "release"].into_iter().enumerate() {
        let mut latency = Latencies::new()?;
        loops.iter().for_each(|of_loop| latency.add(&of_loop.others[place]));
        let figure = Figure::new("controls", format!("{what}, p50"), latency.ms(0.5), "ms");
        figures.push(figure.bar(Bar::AtMost(submit.ms(0.5) + noise)).detail(latency.json()));
        figures.push(Figure::new("controls", format!("{what}, p99"), latency.ms(0.99), "ms"));
    }
    Ok(figures)
}

/// Batches of the jobs that selectors go over, with the size of each.
fn batches(jobs: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..jobs.div_ceil(BATCH)).map(move |n| (n, BATCH.min(jobs - n * BATCH)))
}

/// Submits the jobs that selectors go over: each batch has one of the teams as its label, and each job a label that no other has,
/// so that no two carry the same.
async fn preload(client: &Client, jobs: usize) -> Result<()> {
    let mut done = futures::stream::iter(batches(jobs))
        .map(|(n, size)| async move {
            let labelled = |place: usize| {
                let labels =
                    [("team", format!("t{}", n % TEAMS)), ("run", format!("r{}", n * BATCH + place))];
                let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
                v1::Job { labels, ..job() }
            };
            let jobs = (0..size).map(labelled).collect();
            client.submit_jobs(v1::SubmitJobsRequest { jobs, ..Default::default() }).await
        })
        .buffer_unordered(BATCHES_AT_ONCE);
    while let Some(answer) = done.next().await {
        answer.context("a batch of jobs")?;
    }
    Ok(())
}

/// The first jobs that a list shows. A page that ends before it has found any is gone on with, as a client does.
async fn first_listed(client: &Client, filter: Option<v1::JobFilter>) -> Result<usize, CallError> {
    let mut request = v1::ListJobsRequest { filter, ..Default::default() };
    loop {
        let page = client.list_jobs(request.clone()).await?;
        if !page.jobs.is_empty() || page.next_page_token.is_empty() {
            return Ok(page.jobs.len());
        }
        request.page_token = page.next_page_token;
    }
}

/// Lists and previews by label, of jobs that are there and of none.
async fn selectors(client: &Client, jobs: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let size: usize = batches(jobs).filter(|(n, _)| n % TEAMS == 0).map(|(_, size)| size).sum();
    let team = format!("a team with {size} jobs");
    for (what, selector, expected) in [(team.as_str(), "team=t0", size), ("no job", "team=nobody", 0)] {
        let (mut list, mut preview) = (Latencies::new()?, Latencies::new()?);
        for _ in 0..TIMES {
            let filter = Some(with_label(selector));
            let found = timed(&mut list, first_listed(client, filter.clone())).await?;
            ensure!((found == 0) == (expected == 0), "{selector} lists {found} jobs");
            let filtered = Some(v1::JobSelector { filter, ..Default::default() });
            let request =
                v1::CancelJobsRequest { selector: filtered, validate_only: true, ..Default::default() };
            let found = timed(&mut preview, client.cancel_jobs(request)).await?;
            let would = u64::from(found.job_count) + found.remaining_count;
            ensure!(would == expected as u64, "{selector} would cancel {would} jobs, not {expected}");
        }
        for (call, latency) in [("first page of a list", &list), ("preview of a cancellation", &preview)] {
            let text = format!("{call}, {what}, {jobs} jobs in all, p99 of {TIMES}");
            let figure = Figure::new("selectors", text, latency.ms(0.99), "ms");
            figures.push(figure.bar(Bar::AtMost(SELECTOR_MS_MAX)).detail(latency.json()));
        }
    }
    Ok(figures)
}

/// A replica's place in the log, and the digest of its state there.
async fn digest_of(cluster: &Cluster, replica: usize) -> Result<(u64, String)> {
    let answer = cluster.client_of(replica)?.get_status(v1::GetStatusRequest::default()).await;
    let status = answer.context("asking a replica")?;
    let freshness = status.freshness.context("an answer says how current it is")?;
    let own = replica as u64 + 1;
    ensure!(freshness.replica_id == own, "replica {} answered for replica {own}", freshness.replica_id);
    Ok((freshness.log_index, status.state_digest))
}

/// Kills a follower, starts it again, and compares its digest with the leader's once both are at one place of the log.
async fn replayed(cluster: &mut Cluster, leader: usize) -> Result<Figure> {
    let follower = (leader + 1) % 3;
    let (target, _) = digest_of(cluster, leader).await?;
    cluster.kill(follower)?;
    let begun = Instant::now();
    cluster.run(follower, false)?;
    cluster.wait_for(follower, target, PATIENCE).await?;
    let caught_up = begun.elapsed();
    let mut agree = None;
    while agree.is_none() && begun.elapsed() < PATIENCE {
        let (own, theirs) = (digest_of(cluster, leader).await?, digest_of(cluster, follower).await?);
        agree = (own.0 == theirs.0).then_some(own.1 == theirs.1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let is_same = agree.context("the replicas were never at one place of the log")?;
    let text = "a follower that was killed and reads its storage again has the same digest (1 is yes)";
    let figure = Figure::new("replay", text, f64::from(u8::from(is_same)), "");
    Ok(figure.bar(Bar::AtLeast(1.0)).detail(json!({ "caught_up_s": caught_up.as_secs_f64() })))
}

pub(crate) async fn run(args: ControlsArgs) -> Result<()> {
    let mut figures = place::waiting_array();
    let mut cluster = Cluster::start(args.common.dir.as_deref(), Settings::default()).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let client = cluster.client(leader, DEADLINE)?;
    let latency = arrays(&client).await?;
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let text = format!("an array of 100,000 submitted, {name} of {TIMES}");
        let figure = Figure::new("array", text, latency.ms(quantile), "ms");
        figures.push(figure.bar(Bar::AtMost(ARRAY_MS_MAX)).detail(latency.json()));
    }
    figures.extend(controls(&client, args.rounds).await?);
    preload(&client, args.jobs).await?;
    cluster.rest().await;
    figures.extend(selectors(&client, args.jobs).await?);
    figures.push(replayed(&mut cluster, leader).await?);
    for figure in &figures {
        println!("{}", figure.line());
    }
    let mut report = place::report(machine, &figures);
    report["scenario"] = json!("controls");
    report["rows"] = json!(
        "jobs that selectors go over are single jobs, each with its own row, and with labels that no other has"
    );
    args.common.output.write("controls", &report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loops whose calls take this number of microseconds, by loop, part and call: 0 for a submission.
    fn loops(micros: fn(usize, usize, usize) -> u64) -> Vec<LoopLatencies> {
        let of = |number: usize| {
            let mut latencies = LoopLatencies::new().unwrap();
            for part in 0..4 {
                latencies.submit[part].record(Duration::from_micros(micros(number, part, 0)));
                for (call, latency) in latencies.others.iter_mut().enumerate() {
                    latency.record(Duration::from_micros(micros(number, part, call + 1)));
                }
            }
            latencies
        };
        (0..LOOPS).map(of).collect()
    }

    fn missed(micros: fn(usize, usize, usize) -> u64) -> Vec<String> {
        let figures = compared(&loops(micros)).unwrap();
        figures.iter().filter(|figure| figure.is_met() == Some(false)).map(Figure::line).collect()
    }

    #[test]
    fn a_control_may_differ_from_a_submission_by_as_much_as_submissions_differ() {
        // Every second loop takes 400 us longer, and a control 100 us.
        let noisy = |number: usize, _: usize, call: usize| {
            1_000 + 400 * (number as u64 % 2) + if call > 0 { 100 } else { 0 }
        };
        let noise = noise_ms(&loops(noisy)).unwrap();
        assert!((0.35..0.45).contains(&noise), "{noise}");
        assert_eq!(missed(noisy), [""; 0]);
        // Without noise nothing is allowed for it.
        assert_eq!(missed(|_, _, call| if call > 0 { 1_100 } else { 1_000 }).len(), 3);
        assert_eq!(missed(|_, _, _| 1_000), [""; 0]);
    }
}
