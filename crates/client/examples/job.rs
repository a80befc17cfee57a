//! Submits a command, explains it, follows its output, and cancels it once it has printed something.
//!
//!     MUSTER_ENDPOINTS=replica-1:7401,replica-2:7401,replica-3:7401 job sh -c "echo hello; sleep 600"
//!
//! Whatever happens to the leader meanwhile, there is one job, and it is cancelled.

use futures::{StreamExt as _, TryStreamExt as _};
use muster_client::{Client, Endpoints, Options, Read, WatchItem};
use muster_wire::v1;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoints = Endpoints::parse(&[std::env::var("MUSTER_ENDPOINTS")?])?;
    let client = Client::connect(endpoints, Options::STANDARD).await?.reading(Read::linearizable());

    let command = std::env::args().skip(1).collect();
    let group = v1::TaskGroup {
        runtime: muster_wire::process(command),
        workers: 1,
        resources: Some(v1::Resources { cpu_milli: 100, memory_bytes: 64 << 20, ..Default::default() }),
        ..Default::default()
    };
    let spec = v1::Job {
        name: "example".to_owned(),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    };
    let submitted = client.submit_job(v1::SubmitJobRequest { job: Some(spec), ..Default::default() }).await?;
    let job_id = submitted.job_ids.first().ok_or("no id")?.clone();
    println!("submitted {job_id}");

    let mine = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { job_ids: vec![job_id.clone()], ..Default::default() }),
        ..Default::default()
    };
    let mut changes = Box::pin(client.watch_jobs(mine).into_stream());
    let mut until = async |phase| loop {
        match changes.next().await.ok_or("the watch has ended")?? {
            WatchItem::Changed { job, .. } if job.phase() == phase => {
                return Ok::<_, Box<dyn std::error::Error>>(());
            }
            _ => {}
        }
    };
    until(v1::JobPhase::Running).await?;
    let answer = client.explain_job(v1::ExplainJobRequest { job_id: job_id.clone(), read: None }).await?;
    println!("explained {}", answer.explanation.unwrap_or_default().reason);

    let output = v1::ReadLogsRequest { job_id: job_id.clone(), follow: true, ..Default::default() };
    let mut pieces = Box::pin(client.read_logs(output).await?.into_stream());
    let piece = pieces.try_next().await?.ok_or("it printed nothing")?;
    println!("printed {}", String::from_utf8_lossy(&piece.data).trim());

    client.cancel_job(v1::CancelJobRequest { job_id, ..Default::default() }).await?;
    until(v1::JobPhase::Cancelled).await?;
    println!("ended cancelled");
    Ok(())
}
