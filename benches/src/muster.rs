//! Muster's own connections for the generator, and the jobs that they submit.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use muster_client::Client;
use muster_wire::v1;

use crate::cluster::Cluster;
use crate::load::Caller;

/// How long a client repeats a submission.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A job as people write them, small enough that nothing but its number counts.
pub(crate) fn job() -> v1::Job {
    let group = v1::TaskGroup {
        workers: 1,
        runtime: muster_wire::process(vec![
            "python3".into(),
            "train.py".into(),
            "--config".into(),
            "base.yaml".into(),
        ]),
        resources: Some(v1::Resources { cpu_milli: 1, memory_bytes: 1 << 20, ..Default::default() }),
        ..Default::default()
    };
    v1::Job {
        name: "bench".into(),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    }
}

/// Submits jobs; the ids of those that were acknowledged.
pub(crate) async fn submit(client: &Client, jobs: usize) -> Option<Vec<String>> {
    let answer = if jobs == 1 {
        let request = v1::SubmitJobRequest { job: Some(job()), ..Default::default() };
        client.submit_job(request).await.map(|answer| answer.job_ids)
    } else {
        let request = v1::SubmitJobsRequest { jobs: vec![job(); jobs], ..Default::default() };
        client.submit_jobs(request).await.map(|answer| answer.job_ids)
    };
    answer.inspect_err(|error| eprintln!("not acknowledged: {error}")).ok()
}

/// How one submission at a time travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// As a separate call.
    Call,
    /// Over a stream that its connection keeps.
    Stream,
}

/// Submits, over and over.
#[derive(Clone)]
pub(crate) struct Submitter {
    pub(crate) client: Client,
    pub(crate) jobs: usize,
    stream: Option<muster_client::Submitter>,
}

impl Submitter {
    /// Connections that begin at these replicas, round-robin.
    pub(crate) fn connections(
        cluster: &Cluster,
        count: usize,
        to: &[usize],
        jobs: usize,
        via: Via,
    ) -> Result<Vec<Submitter>> {
        let connect = |n: usize| {
            let client = cluster.client(to[n % to.len()], DEADLINE)?;
            let stream = (via == Via::Stream).then(|| client.submitter());
            Ok(Submitter { client, jobs, stream })
        };
        (0..count).map(connect).collect()
    }
}

impl Caller for Submitter {
    async fn call(&self) -> bool {
        match &self.stream {
            Some(stream) if self.jobs == 1 => {
                let request = v1::SubmitJobRequest { job: Some(job()), ..Default::default() };
                let answer = stream.submit_job(request).await;
                answer.inspect_err(|error| eprintln!("not acknowledged: {error}")).is_ok()
            }
            _ => submit(&self.client, self.jobs).await.is_some(),
        }
    }
}

/// Reads one of some jobs, over and over, from one replica.
#[derive(Clone)]
pub(crate) struct Reader {
    pub(crate) client: Client,
    pub(crate) jobs: Arc<[String]>,
}

/// What a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Whatever the replica has.
    Any,
    /// At most a second old, proved by what the leader said last.
    Bounded,
    /// Everything that was acknowledged before.
    Linearizable,
}

impl Read {
    /// For the client's library.
    pub(crate) fn options(self) -> muster_client::Read {
        match self {
            Read::Any => muster_client::Read::any(),
            Read::Bounded => muster_client::Read::bounded(Duration::from_secs(1)),
            Read::Linearizable => muster_client::Read::linearizable(),
        }
    }
}

impl Caller for Reader {
    async fn call(&self) -> bool {
        let n = uuid::Uuid::new_v4().as_u128() as usize % self.jobs.len();
        let request = v1::GetJobRequest { job_id: self.jobs[n].clone(), ..Default::default() };
        let answer = self.client.get_job(request).await;
        answer.inspect_err(|error| eprintln!("not read: {error}")).is_ok_and(|answer| answer.job.is_some())
    }
}

/// Submits this many jobs in large batches; the log index behind them.
pub(crate) async fn preload(cluster: &Cluster, leader: usize, jobs: usize) -> Result<u64> {
    use futures::StreamExt as _;
    const BATCH: usize = 500;
    const AT_ONCE: usize = 8;
    let client = cluster.client(leader, Duration::from_secs(120))?;
    let sizes = (0..jobs.div_ceil(BATCH)).map(|n| BATCH.min(jobs - n * BATCH));
    let mut done = futures::stream::iter(sizes)
        .map(|size| {
            let client = client.clone();
            async move { submit(&client, size).await.is_some() }
        })
        .buffer_unordered(AT_ONCE);
    while let Some(acknowledged) = done.next().await {
        anyhow::ensure!(acknowledged, "a batch of jobs was not acknowledged");
    }
    Ok(client.seen_log_index())
}
