//! One job, and what is asked about it: the calls that most programs need, without the messages of the protocol.
//!
//! **Invariant:** waiting is told by a watch, which goes on at another replica; nothing is asked again after a time.

use muster_types::RefusalCode;
use muster_wire::v1;
use muster_wire::v1::{JobPhase, OutputStream};

use crate::error::CallError;
use crate::job_spec::JobSpec;
use crate::output::LogStream;
use crate::watch::{Watch, WatchItem};
use crate::{Client, Read};

/// Which output of a worker is read.
///
/// ```
/// # use muster_client::LogOptions;
/// let of_the_second_worker = LogOptions::new().rank(1).follow();
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct LogOptions(v1::ReadLogsRequest);

impl LogOptions {
    /// All that is kept of the first worker, both streams in the order in which they were written.
    pub fn new() -> LogOptions {
        LogOptions::default()
    }

    /// Of the worker with this rank, from 0.
    pub fn rank(mut self, rank: u32) -> LogOptions {
        self.0.rank = rank;
        self
    }

    /// Until the worker has ended; its start is waited for.
    pub fn follow(mut self) -> LogOptions {
        self.0.follow = true;
        self
    }

    /// Of the attempt before the current one.
    pub fn previous(mut self) -> LogOptions {
        self.0.previous = true;
        self
    }

    /// One stream alone.
    pub fn stream(mut self, stream: OutputStream) -> LogOptions {
        self.0.set_stream(stream);
        self
    }

    /// No more than this at the end.
    pub fn tail_bytes(mut self, bytes: u64) -> LogOptions {
        self.0.tail_bytes = bytes;
        self
    }
}

/// A job of the cluster. Cheap to clone; what becomes of the handle does nothing to the job.
#[derive(Clone)]
pub struct JobHandle {
    client: Client,
    id: String,
}

impl Client {
    /// Submits one job; durable on a quorum when it returns.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn submit(&self, spec: JobSpec) -> Result<JobHandle, CallError> {
        let request = v1::SubmitJobRequest { job: Some(spec.into()), ..Default::default() };
        let answer = self.submit_job(request).await?;
        Ok(self.job(answer.job_ids.into_iter().next().unwrap_or_default()))
    }

    /// What would become of a job if it were submitted now, and why. Changes nothing.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn plan(&self, spec: JobSpec) -> Result<v1::Explanation, CallError> {
        let request = v1::PlanJobRequest { job: Some(spec.into()), read: None };
        Ok(self.plan_job(request).await?.explanation.unwrap_or_default())
    }

    /// A handle of a job that there is. Nothing is sent.
    #[must_use]
    pub fn job(&self, id: impl Into<String>) -> JobHandle {
        JobHandle { client: self.clone(), id: id.into() }
    }

    /// Waits until a job is over, through any change of the leader; the job then.
    ///
    /// There is no limit of time: put a timeout around it where there is to be one.
    ///
    /// # Errors
    /// Refusals at once, among them that there is no such job; everything else when no replica could be watched for the deadline.
    pub async fn wait_job(&self, job_id: &str) -> Result<v1::Job, CallError> {
        self.job(job_id).wait().await
    }
}

impl JobHandle {
    /// `job-…`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The job as it is, with its spec, its placement and the reason why it waits.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get(&self) -> Result<v1::Job, CallError> {
        self.read(None).await
    }

    async fn read(&self, read: Option<v1::ReadOptions>) -> Result<v1::Job, CallError> {
        let request = v1::GetJobRequest { job_id: self.id.clone(), read };
        Ok(self.client.get_job(request).await?.job.unwrap_or_default())
    }

    /// Why it waits, what stands before it and when it will start; or where it is.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn explain(&self) -> Result<v1::Explanation, CallError> {
        let request = v1::ExplainJobRequest { job_id: self.id.clone(), read: None };
        Ok(self.client.explain_job(request).await?.explanation.unwrap_or_default())
    }

    /// Cancels it: at once while it waits, else after its workers have stopped; the job as it is then.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn cancel(&self) -> Result<v1::Job, CallError> {
        let request = v1::CancelJobRequest { job_id: self.id.clone(), ..Default::default() };
        Ok(self.client.cancel_job(request).await?.job.unwrap_or_default())
    }

    /// The output of one of its workers.
    ///
    /// # Errors
    /// As [`Client::read_logs`].
    pub async fn logs(&self, options: LogOptions) -> Result<LogStream, CallError> {
        self.client.read_logs(v1::ReadLogsRequest { job_id: self.id.clone(), ..options.0 }).await
    }

    /// Its changes, from its present on.
    #[must_use]
    pub fn watch(&self, view: v1::JobView) -> Watch {
        let filter = v1::JobFilter { job_ids: vec![self.id.clone()], ..Default::default() };
        let request = v1::WatchJobsRequest { filter: Some(filter), view: view.into(), ..Default::default() };
        self.client.watch_jobs(request)
    }

    /// Waits until it is over; the job then.
    ///
    /// # Errors
    /// As [`Client::wait_job`].
    pub async fn wait(&self) -> Result<v1::Job, CallError> {
        self.wait_until(is_over).await
    }

    /// Waits until it is in this phase, or over: look at its phase. The job then.
    ///
    /// # Errors
    /// As [`Client::wait_job`].
    pub async fn wait_for(&self, phase: JobPhase) -> Result<v1::Job, CallError> {
        self.wait_until(|job| job.phase() == phase || is_over(job)).await
    }

    async fn wait_until(&self, there: impl Fn(&v1::Job) -> bool) -> Result<v1::Job, CallError> {
        // The events say no more than what is waited for: those of a large gang would else be megabytes.
        let mut watch = self.watch(v1::JobView::Basic);
        let mut is_shown = false;
        loop {
            match watch.next().await? {
                WatchItem::Changed { job, .. } if there(&job) => return self.in_full(*job).await,
                WatchItem::Changed { .. } => is_shown = true,
                WatchItem::Restarted => is_shown = false,
                // One that is not among the present jobs: not applied there yet, or not kept any more. A read tells.
                WatchItem::SyncEnd { .. } if !is_shown => {
                    let job = self.read(Read::linearizable().into()).await?;
                    if there(&job) {
                        return Ok(job);
                    }
                    is_shown = true;
                }
                // It is over, and nothing of it is left; the refusal tells so.
                WatchItem::Forgotten { .. } => return self.read(Read::linearizable().into()).await,
                WatchItem::SyncEnd { .. } | WatchItem::Bookmark { .. } => {}
            }
        }
    }

    /// All of a job of which an event told. It may have changed once more; one that is over does not change, but it may have been
    /// dropped, and then there is what the event said.
    async fn in_full(&self, told: v1::Job) -> Result<v1::Job, CallError> {
        match self.read(None).await {
            Err(error) if is_over(&told) && is_not_found(&error) => Ok(told),
            read => read,
        }
    }
}

fn is_over(job: &v1::Job) -> bool {
    matches!(job.phase(), JobPhase::Succeeded | JobPhase::Failed | JobPhase::Cancelled)
}

fn is_not_found(error: &CallError) -> bool {
    error.refused().is_some_and(|refused| refused.code == Some(RefusalCode::JobNotFound))
}
