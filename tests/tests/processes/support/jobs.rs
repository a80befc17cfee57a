//! Jobs: what is submitted, and following it.

use muster_client::{Client, WatchItem};
use muster_wire::v1;
use std::path::Path;

use super::{PATIENCE, muster};

/// A job of one worker.
pub fn job(name: &str, command: &[&str]) -> v1::Job {
    let group = v1::TaskGroup {
        workers: 1,
        runtime: muster_wire::process(command.iter().map(|word| (*word).to_owned()).collect()),
        resources: Some(v1::Resources { cpu_milli: 100, memory_bytes: 1 << 20, ..Default::default() }),
        ..Default::default()
    };
    v1::Job {
        name: name.to_owned(),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    }
}

/// `count` whole devices of one type.
pub fn accelerators(kind: &str, count: u32) -> v1::AcceleratorRequest {
    let choice = v1::AcceleratorChoice { r#type: kind.to_owned(), throughput_milli: 0 };
    v1::AcceleratorRequest {
        choices: vec![choice],
        amount: Some(v1::accelerator_request::Amount::Count(count)),
    }
}

/// A job of `workers` with `devices` each that run for `duration_ms`, write down when they ran, and end
/// with `exit_code`.
pub fn work(name: &str, intervals: &Path, duration_ms: u64, exit_code: u8, shape: (u32, u32)) -> v1::Job {
    let (workers, devices) = shape;
    let program = muster().to_str().expect("the program's path is text");
    let intervals = intervals.to_str().expect("the test's directory is text");
    let (duration_ms, exit_code) = (duration_ms.to_string(), exit_code.to_string());
    let command = [
        program,
        "example",
        "work",
        "--duration-ms",
        &duration_ms,
        "--exit-code",
        &exit_code,
        "--interval-dir",
        intervals,
    ];
    let mut wanted = job(name, &command);
    wanted.spec_mut().groups[0].workers = workers;
    wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", devices));
    wanted
}

/// Whether the job is over.
pub fn is_finished(job: &v1::Job) -> bool {
    matches!(job.phase(), v1::JobPhase::Succeeded | v1::JobPhase::Failed | v1::JobPhase::Cancelled)
}

/// Follows one job until `done` holds of it; the job then.
pub async fn wait_for_job(client: &Client, id: &str, done: impl Fn(&v1::Job) -> bool) -> v1::Job {
    follow_until(client, id, done).await.pop().expect("a job that was followed was seen")
}

/// The same, with everything that was seen of it on the way.
pub async fn follow_until(client: &Client, id: &str, done: impl Fn(&v1::Job) -> bool) -> Vec<v1::Job> {
    let request = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { job_ids: vec![id.to_owned()], ..Default::default() }),
        ..Default::default()
    };
    let mut watch = client.watch_jobs(request);
    let mut seen: Vec<v1::Job> = Vec::new();
    let following = async {
        loop {
            let item = watch.next().await.unwrap_or_else(|error| panic!("watching {id}: {error:?}"));
            if let WatchItem::Changed { job, .. } = item {
                let enough = done(&job);
                seen.push(*job);
                if enough {
                    return;
                }
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, following).await;
    assert!(ended.is_ok(), "{id} did not come so far: {:#?}", seen.last());
    seen
}

/// Every job, newest first, page by page.
pub async fn all_jobs(client: &Client) -> Vec<v1::Job> {
    let mut jobs = Vec::new();
    let mut request = v1::ListJobsRequest { page_size: 1_000, ..Default::default() };
    loop {
        let page = client.list_jobs(request.clone()).await.expect("jobs can be listed");
        jobs.extend(page.jobs);
        if page.next_page_token.is_empty() {
            return jobs;
        }
        request.page_token = page.next_page_token;
    }
}

/// Submits a job that fits; its id.
pub async fn submit(client: &Client, wanted: v1::Job) -> String {
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    client.submit_job(request).await.expect("a job that fits is accepted").job_ids.remove(0)
}

/// All that the first worker of a job has written so far.
pub async fn output(client: &Client, id: &str) -> String {
    output_of_rank(client, id, 0).await
}

/// All that one worker of a job has written so far.
pub async fn output_of_rank(client: &Client, id: &str, rank: u32) -> String {
    let request = v1::ReadLogsRequest { job_id: id.to_owned(), rank, ..Default::default() };
    let mut stream = client.read_logs(request).await.expect("output can be read");
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await.expect("output comes to its end") {
        bytes.extend_from_slice(&piece.data);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
