//! Following jobs until something is so: the engine of watch and wait.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::{CallError, Client, WatchItem};
use muster_console::{Console, Document, Exit, Failure, Format, one_line};
use muster_wire::v1;
use tokio::time::Instant;

use crate::interrupt::Interrupts;
use crate::view::{self, JobEvent, has_ended};

/// How often members of arrays are looked at that are not created.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WaitCondition {
    /// Every job has ended
    Finished,
    /// Every worker of every job has started (or the job has ended)
    Running,
    /// Every job has ended well; at once when one has ended otherwise
    Succeeded,
    /// Every job has saved its work in its present attempt (or has ended)
    Checkpointed,
}

/// What to follow and for how long.
pub struct Subject {
    /// None for every job, until Ctrl-C.
    pub ids: Vec<String>,
    /// Only this tenant; empty for all.
    pub tenant: String,
    /// Only jobs whose labels match; empty for all.
    pub selector: String,
    pub until: WaitCondition,
    pub limit: Option<Duration>,
}

impl Subject {
    /// Jobs by their ids, until they have ended.
    pub fn of(ids: Vec<String>) -> Subject {
        Subject {
            ids,
            tenant: String::new(),
            selector: String::new(),
            until: WaitCondition::Finished,
            limit: None,
        }
    }
}

/// Whether it has saved its work in its present attempt.
fn has_saved(job: &v1::Job) -> bool {
    let status = job.status();
    status.last_checkpoint.is_some_and(|saved| saved.attempt == status.attempt)
}

fn has_reached(until: WaitCondition, job: &v1::Job) -> bool {
    let so = match until {
        WaitCondition::Finished | WaitCondition::Succeeded => false,
        WaitCondition::Running => job.phase() == v1::JobPhase::Running,
        WaitCondition::Checkpointed => has_saved(job),
    };
    so || has_ended(job.phase())
}

/// Whether this is what was waited for rather than the end of waiting.
fn is_well(until: WaitCondition, job: &v1::Job) -> bool {
    match until {
        WaitCondition::Checkpointed => has_saved(job),
        _ => !has_ended(job.phase()) || job.phase() == v1::JobPhase::Succeeded,
    }
}

/// Follows; hands each item to `show` with whether the first sync is complete. Ends when every job is
/// where it should be; `Exit::Failed` when one of them ended otherwise than well.
pub async fn follow(
    client: &Client,
    console: &Console,
    subject: Subject,
    mut show: impl FnMut(&WatchItem, bool) -> Result<(), Failure>,
) -> Result<(Exit, BTreeMap<String, v1::Job>), Failure> {
    let mut watched = Watched::new(&subject, client.seen_log_index());
    let request = v1::WatchJobsRequest {
        resume_token: String::new(),
        filter: Some(v1::JobFilter {
            job_ids: subject.ids.clone(),
            tenant: subject.tenant.clone(),
            label_selector: subject.selector.clone(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut watch = client.watch_jobs(request);
    let end = subject.limit.and_then(|limit| Instant::now().checked_add(limit));
    let forever = subject.ids.is_empty();
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut interrupts = Interrupts::listen()?;
    loop {
        let item = tokio::select! {
            item = watch.next() => item?,
            _ = look.tick(), if watched.synced => {
                for item in ended_uncreated(client, &watched).await? {
                    show(&item, true)?;
                    watched.take(item)?;
                }
                if !forever && watched.is_complete() {
                    return Ok((watched.exit(), watched.jobs));
                }
                continue;
            }
            () = sleep_until(end) => {
                return Err(Failure::new(Exit::Timeout, "the time is up; the jobs go on")
                    .with_next(goes_on_with(&watched.open())));
            }
            exit = interrupts.next() => {
                if !forever {
                    console.progress(&format!("the jobs go on; follow them with: muster job watch {}", watched.open().join(" ")));
                }
                return Ok((exit, watched.jobs));
            }
        };
        show(&item, watched.synced)?;
        watched.take(item)?;
        if !forever && watched.is_complete() {
            return Ok((watched.exit(), watched.jobs));
        }
    }
}

/// The command that goes on with those that are left of some jobs; none are named where every job is followed.
fn goes_on_with(open: &[String]) -> String {
    if open.is_empty() {
        "muster job watch".to_owned()
    } else {
        format!("muster job wait {}", open.join(" "))
    }
}

/// Members of arrays that have ended without having been created: a watch is told of the jobs that there are, and an array
/// that ends as a whole is one change. The members of each array are looked at in their order, up to the first that waits.
async fn ended_uncreated(client: &Client, watched: &Watched) -> Result<Vec<WatchItem>, Failure> {
    let mut found = Vec::new();
    for members in watched.uncreated().into_values() {
        for job_id in members.into_values() {
            let answer = client.get_job(v1::GetJobRequest { job_id, read: None }).await?;
            let Some(job) = answer.job.filter(|job| has_ended(job.phase())) else { break };
            let log_index = answer.freshness.map_or(0, |freshness| freshness.log_index);
            found.push(WatchItem::Changed { log_index, job: Box::new(job) });
        }
    }
    Ok(found)
}

/// What came of waiting for the next item of a watch that does not end by itself.
pub enum Next<T> {
    Item(T),
    Ended(Exit),
}

/// The next item, unless Ctrl-C or the end of the command's time comes first.
pub async fn next_until<T>(
    item: impl Future<Output = Result<T, CallError>>,
    end: Option<Instant>,
    interrupts: &mut Interrupts,
) -> Result<Next<T>, Failure> {
    tokio::select! {
        item = item => Ok(Next::Item(item?)),
        () = sleep_until(end) => Err(Failure::new(Exit::Timeout, "the time is up")),
        exit = interrupts.next() => Ok(Next::Ended(exit)),
    }
}

/// Says on stderr that changes were not printed one by one.
pub fn say_restarted(console: &Console) {
    console.progress("the cluster no longer has the changes in between; starting from the present state");
}

/// Until a moment; for ever without one.
pub async fn sleep_until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// What is known of the jobs.
struct Watched {
    ids: Vec<String>,
    until: WaitCondition,
    jobs: BTreeMap<String, v1::Job>,
    /// A replica that is behind this cannot say that a job does not exist.
    known_log_index: u64,
    synced: bool,
    /// Ids in the sync that is going on.
    in_sync: Vec<String>,
}

impl Watched {
    fn new(subject: &Subject, known_log_index: u64) -> Watched {
        Watched {
            ids: subject.ids.clone(),
            until: subject.until,
            jobs: BTreeMap::new(),
            known_log_index,
            synced: false,
            in_sync: Vec::new(),
        }
    }

    fn take(&mut self, item: WatchItem) -> Result<(), Failure> {
        match item {
            WatchItem::Changed { job, .. } if self.ids.contains(&job.id) => {
                if !self.synced {
                    self.in_sync.push(job.id.clone());
                }
                self.jobs.insert(job.id.clone(), *job);
            }
            WatchItem::SyncEnd { log_index } => {
                self.synced = true;
                let in_sync = std::mem::take(&mut self.in_sync);
                let missing = self.open().into_iter().find(|id| !in_sync.contains(id));
                if let Some(id) = missing.filter(|_| log_index >= self.known_log_index) {
                    return Err(gone(&id, log_index));
                }
            }
            WatchItem::Restarted => self.synced = false,
            WatchItem::Forgotten { job_id, log_index } if self.open().contains(&job_id) => {
                return Err(gone(&job_id, log_index));
            }
            _ => {}
        }
        Ok(())
    }

    /// Members that were not created when they were last seen: their ids by their ordinals, by their arrays.
    fn uncreated(&self) -> BTreeMap<&str, BTreeMap<u32, String>> {
        let mut found: BTreeMap<&str, BTreeMap<u32, String>> = BTreeMap::new();
        for job in self.jobs.values().filter(|job| !has_reached(self.until, job)) {
            let status = job.status();
            let waits = job.phase() == v1::JobPhase::Pending && status.attempt == 0 && !status.eligible;
            if let Some(member) = job.array.as_ref().filter(|_| waits) {
                found.entry(&member.array_id).or_default().insert(member.ordinal, job.id.clone());
            }
        }
        found
    }

    fn reached(&self, id: &str) -> bool {
        self.jobs.get(id).is_some_and(|job| has_reached(self.until, job))
    }

    /// Those that are not yet where they should be.
    fn open(&self) -> Vec<String> {
        self.ids.iter().filter(|id| !self.reached(id)).cloned().collect()
    }

    fn is_complete(&self) -> bool {
        // Waiting longer would not make one succeed that has failed.
        let in_vain = self.until == WaitCondition::Succeeded && self.exit() == Exit::Failed;
        in_vain || self.ids.iter().all(|id| self.reached(id))
    }

    fn exit(&self) -> Exit {
        if self.jobs.values().all(|job| is_well(self.until, job)) { Exit::Ok } else { Exit::Failed }
    }
}

fn gone(id: &str, log_index: u64) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no job {id} (as of log index {log_index})"))
        .with_next("`muster job list` shows the ids; finished jobs are kept for a limited time")
}

/// Prints one item of a watch.
pub fn print(console: &Console, item: &WatchItem, synced: bool) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => console.event(&document(item)),
        Format::Name => match item {
            WatchItem::Changed { job, .. } => console.line(&job.id),
            _ => Ok(()),
        },
        Format::Table | Format::Wide | Format::Html | Format::Csv => match item {
            WatchItem::Changed { log_index, job } => {
                // In the first sync the position is that of the sync; the job's own says more.
                let index = if synced { *log_index } else { job.status().changed_at_index };
                console.line(&line(index, job))
            }
            WatchItem::Forgotten { log_index, job_id } => {
                console.line(&format!("#{log_index}  {job_id}  forgotten"))
            }
            WatchItem::Restarted => {
                say_restarted(console);
                Ok(())
            }
            _ => Ok(()),
        },
    }
}

fn line(log_index: u64, job: &v1::Job) -> String {
    let job = view::Job::from(job.clone());
    let attempt =
        if job.status.attempt > 1 { format!("  attempt {}", job.status.attempt) } else { String::new() };
    let why = super::reason(&job);
    let line = format!("#{log_index}  {}  {}  {}{attempt}  {why}", job.id, job.name, job.status.phase);
    one_line(line.trim_end())
}

fn document(item: &WatchItem) -> Document<JobEvent> {
    let event = |r#type, job: Option<&v1::Job>, job_id: Option<&String>| JobEvent {
        r#type,
        job: job.cloned().map(view::Job::from),
        job_id: job_id.cloned(),
    };
    let (log_index, content) = match item {
        WatchItem::Changed { log_index, job } => (Some(*log_index), event("changed", Some(job), None)),
        WatchItem::SyncEnd { log_index } => (Some(*log_index), event("syncEnd", None, None)),
        WatchItem::Bookmark { log_index } => (Some(*log_index), event("bookmark", None, None)),
        WatchItem::Forgotten { log_index, job_id } => {
            (Some(*log_index), event("forgotten", None, Some(job_id)))
        }
        WatchItem::Restarted => (None, event("restarted", None, None)),
        _ => (None, event("unknown", None, None)),
    };
    Document::new("JobEvent", log_index, content)
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
