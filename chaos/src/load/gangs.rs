//! Work in every region: gangs that train and save their work, and single workers, each of which writes down
//! itself when it ran.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use muster_client::{Client, Read};
use muster_wire::time::duration;
use muster_wire::v1;

use crate::cluster::plan::REGIONS;

/// How long a gang's workers have from SIGTERM to SIGKILL.
const STOP_GRACE_MS: u64 = 2_000;
/// Between two looks at the gangs.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Names of this work begin so.
pub const PREFIX: &str = "gang-";

/// A piece of work that belongs into one region as long as that region is there.
struct Kind {
    name: &'static str,
    workers: u32,
    devices: u32,
}

/// With these, less than half of a region is in use: the others have capacity for what one loses.
const KINDS: [Kind; 2] =
    [Kind { name: "train", workers: 2, devices: 2 }, Kind { name: "serve", workers: 1, devices: 3 }];

/// What gangs need to be started.
#[derive(Clone, Debug)]
pub struct Gangs {
    /// The program of the workers.
    pub program: String,
    /// Where they write when they ran.
    pub intervals: String,
    /// Where they save their work.
    pub checkpoints: String,
}

impl Gangs {
    /// Work of this program, with evidence in these directories.
    ///
    /// # Errors
    /// When a path is no text.
    pub fn new(program: &Path, intervals: &Path, checkpoints: &Path) -> Result<Gangs> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is text");
        Ok(Gangs { program: text(program)?, intervals: text(intervals)?, checkpoints: text(checkpoints)? })
    }

    /// A policy by which work goes where its data is, as long as there is capacity.
    #[must_use]
    pub fn policy() -> v1::Policy {
        let dataset = |region: &str| v1::Dataset { bytes: 1 << 40, regions: vec![region.to_owned()] };
        let datasets = REGIONS.iter().map(|region| (format!("data-{region}"), dataset(region))).collect();
        let weights = v1::PlacementWeights {
            packing: Some(0),
            throughput: Some(0),
            cost: Some(0),
            data: Some(1_000),
            topology: Some(0),
            spread: Some(0),
        };
        let transfer =
            v1::Transfer { micro_dollars_per_gib: 20_000, bytes_per_second: 1 << 30, ..Default::default() };
        v1::Policy { datasets, weights: Some(weights), transfers: vec![transfer], ..Default::default() }
    }

    fn job(&self, kind: &Kind, region: &str) -> v1::Job {
        let command: Vec<&str> = match kind.name {
            "train" => vec![
                &self.program,
                "example",
                "train",
                "--steps",
                "1000000",
                "--step-ms",
                "250",
                "--samples",
                "64",
                "--features",
                "4",
                "--classes",
                "2",
                "--checkpoint-every",
                "8",
                "--log-every",
                "1000",
                "--interval-dir",
                &self.intervals,
            ],
            _ => vec![
                &self.program,
                "example",
                "work",
                "--duration-ms",
                "86400000",
                "--interval-dir",
                &self.intervals,
            ],
        };
        let choice = v1::AcceleratorChoice { r#type: "h100".to_owned(), throughput_milli: 0 };
        let accelerators = v1::AcceleratorRequest {
            choices: vec![choice],
            amount: Some(v1::accelerator_request::Amount::Count(kind.devices)),
        };
        let group = v1::TaskGroup {
            workers: kind.workers,
            runtime: muster_wire::process(command.into_iter().map(str::to_owned).collect()),
            resources: Some(v1::Resources {
                accelerators: Some(accelerators),
                cpu_milli: 100,
                memory_bytes: 256 << 20,
            }),
            ..Default::default()
        };
        let checkpoints = if kind.name == "train" { self.checkpoints.clone() } else { String::new() };
        let spec = v1::JobSpec {
            groups: vec![group],
            datasets: vec![format!("data-{region}")],
            checkpoint: Some(v1::CheckpointPolicy { directory: checkpoints, ..Default::default() }),
            stop_grace: Some(duration(STOP_GRACE_MS)),
            retry: Some(v1::RetryPolicy {
                // A rank that dies with its host takes its gang with it: it is tried again at once.
                backoff: Some(duration(100)),
                max_backoff: Some(duration(1_000)),
                avoid: Some(duration(0)),
                ..Default::default()
            }),
            ..Default::default()
        };
        v1::Job { name: format!("{PREFIX}{}-{region}", kind.name), spec: Some(spec), ..Default::default() }
    }

    /// Sees to it that every region has its work, and that all of it runs where it belongs.
    ///
    /// # Errors
    /// When it does not come to run in time.
    pub async fn settle(&self, client: &Client, limit: Duration) -> Result<Vec<v1::Job>> {
        let until = Instant::now() + limit;
        let mut cancelled: BTreeMap<String, ()> = BTreeMap::new();
        loop {
            let jobs = list(client).await?;
            let mut settled = Vec::new();
            for (kind, region) in KINDS.iter().flat_map(|kind| REGIONS.map(|region| (kind, region))) {
                let name = format!("{PREFIX}{}-{region}", kind.name);
                let mut own = jobs.iter().filter(|job| job.name == name && !cancelled.contains_key(&job.id));
                match own.next() {
                    None => submit(client, self.job(kind, region)).await?,
                    Some(job) if is_placed(job) && place(job) != Some(region) => {
                        cancel(client, &job.id).await?;
                        cancelled.insert(job.id.clone(), ());
                    }
                    Some(job) if job.phase() == v1::JobPhase::Running => settled.push(job.clone()),
                    Some(_) => {}
                }
            }
            let stopping = jobs.iter().filter(|job| cancelled.contains_key(&job.id)).count();
            if settled.len() == KINDS.len() * REGIONS.len() && stopping == 0 {
                return Ok(settled);
            }
            if Instant::now() >= until {
                let states = jobs.iter().map(|job| {
                    format!(
                        "{} {} {:?} in {:?}: {}",
                        job.id,
                        job.name,
                        job.phase(),
                        place(job),
                        job.status().message
                    )
                });
                let states: Vec<String> = states.collect();
                anyhow::bail!("work did not come to run where it belongs: {}", states.join("; "));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Work that is not over.
async fn list(client: &Client) -> Result<Vec<v1::Job>> {
    let phases =
        [v1::JobPhase::Pending, v1::JobPhase::Starting, v1::JobPhase::Running, v1::JobPhase::Stopping];
    let request = v1::ListJobsRequest {
        page_size: 1_000,
        read: Read::linearizable().into(),
        filter: Some(v1::JobFilter {
            phases: phases.map(i32::from).to_vec(),
            name_prefix: PREFIX.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    Ok(client.list_jobs(request).await.context("listing the work")?.jobs)
}

/// Nodes that run part of a gang.
///
/// # Errors
/// When the cluster does not say.
pub async fn busy_nodes(client: &Client, gangs: &[v1::Job]) -> Result<std::collections::BTreeSet<String>> {
    let mut nodes = std::collections::BTreeSet::new();
    for gang in gangs {
        let request = v1::GetJobRequest { job_id: gang.id.clone(), read: Read::linearizable().into() };
        let job = client.get_job(request).await.context("looking at a gang")?.job.unwrap_or_default();
        let workers = job
            .status
            .and_then(|status| status.placement)
            .map(|placement| placement.workers)
            .unwrap_or_default();
        nodes.extend(workers.into_iter().map(|worker| worker.node_name));
    }
    Ok(nodes)
}

async fn submit(client: &Client, job: v1::Job) -> Result<()> {
    let name = job.name.clone();
    let request = v1::SubmitJobRequest { job: Some(job), ..Default::default() };
    client.submit_job(request).await.with_context(|| format!("submitting {name}"))?;
    Ok(())
}

async fn cancel(client: &Client, id: &str) -> Result<()> {
    let request = v1::CancelJobRequest { job_id: id.to_owned(), ..Default::default() };
    client.cancel_job(request).await.with_context(|| format!("cancelling {id}"))?;
    Ok(())
}

fn is_placed(job: &v1::Job) -> bool {
    matches!(job.phase(), v1::JobPhase::Starting | v1::JobPhase::Running)
}

fn place(job: &v1::Job) -> Option<&str> {
    job.status().placement.as_ref().map(|placement| placement.region.as_str())
}
