//! Submits a command, explains it, follows its output, and cancels it: one job, whatever becomes of the leader meanwhile.
//!
//!     MUSTER_ENDPOINTS=replica-1:7401,replica-2:7401,replica-3:7401 job sh -c "echo hello; sleep 600"
use muster_client::v1::JobPhase;
use muster_client::{Client, Endpoints, JobSpec, LogOptions, Options, Read, TaskGroup};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoints = Endpoints::parse(&[std::env::var("MUSTER_ENDPOINTS")?])?;
    let client = Client::connect(endpoints, Options::STANDARD).await?.reading(Read::linearizable());
    let command = TaskGroup::process(std::env::args().skip(1)).cpu_milli(100).memory_bytes(64 << 20);
    let job = client.submit(JobSpec::new("example", command)).await?;
    println!("submitted {}", job.id());
    job.wait_for(JobPhase::Running).await?;
    println!("explained {}", job.explain().await?.reason);
    let mut output = job.logs(LogOptions::new().follow()).await?;
    let piece = output.next().await?.ok_or("it printed nothing")?;
    println!("printed {}", String::from_utf8_lossy(&piece.data).trim());
    job.cancel().await?;
    let ended = job.wait().await?.phase();
    println!("ended {}", ended.as_str_name().trim_start_matches("JOB_PHASE_").to_lowercase());
    Ok(())
}
