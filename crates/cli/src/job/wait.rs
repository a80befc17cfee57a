//! Waiting for jobs and arrays together, until all of them are where they should be.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use muster_client::{Client, WatchItem};
use muster_console::{Console, Exit, Failure};
use muster_wire::v1;
use tokio::time::Instant;

use super::follow::{self, Subject, WaitCondition};
use crate::find::all_arrays;
use crate::interrupt::Interrupts;

/// Jobs that one watch follows by their ids, at most.
pub const FOLLOWED_MAX: usize = 1_000;
/// How soon an array is looked at again at first; each time after twice as long, up to the longest.
const LOOK_AFTER: Duration = Duration::from_millis(250);
const LOOK_AFTER_MAX: Duration = Duration::from_secs(5);

/// What is waited for.
pub struct Awaited {
    pub arrays: Vec<String>,
    pub jobs: Vec<String>,
    pub until: WaitCondition,
    /// One for all of them.
    pub limit: Option<Duration>,
}

type Jobs = BTreeMap<String, v1::Job>;
type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(Exit, Jobs), Failure>> + 'a>>;

/// Waits; hands what happens to single jobs to `show`. Ends when all are where they should be, with the worst that has become of one; at
/// once with Ctrl-C, with a failure, and where all have to succeed and one has not.
pub async fn wait(
    client: &Client,
    console: &Console,
    awaited: Awaited,
    show: &dyn Fn(&WatchItem, bool) -> Result<(), Failure>,
) -> Result<(Exit, Jobs), Failure> {
    let Awaited { arrays, jobs, until, limit } = awaited;
    if !arrays.is_empty() && !matches!(until, WaitCondition::Finished | WaitCondition::Succeeded) {
        return Err(Failure::usage("an array can be waited for until it has finished, or succeeded"));
    }
    let everything: Vec<String> = arrays.iter().chain(&jobs).cloned().collect();
    let mut waiting: Vec<Waiting<'_>> = Vec::new();
    for ids in jobs.chunks(FOLLOWED_MAX) {
        let subject = Subject { until, limit, ..Subject::of(ids.to_vec()) };
        let show = |item: &WatchItem, synced: bool| show(item, synced);
        waiting.push(Box::pin(follow::follow(client, console, subject, show)));
    }
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    for id in &arrays {
        waiting.push(Box::pin(
            async move { Ok((ended(client, console, id, (until, end)).await?, Jobs::new())) },
        ));
    }
    let has_several = waiting.len() > 1;
    let mut found = Jobs::new();
    let mut worst = Exit::Ok;
    while !waiting.is_empty() {
        let outcome = next(&mut waiting).await;
        let (exit, jobs) = outcome.map_err(|failure| match failure.exit() {
            Exit::Timeout if has_several => {
                failure.with_next(format!("muster job wait {}", everything.join(" ")))
            }
            _ => failure,
        })?;
        found.extend(jobs);
        match exit {
            Exit::Ok => {}
            Exit::Failed if until != WaitCondition::Succeeded => worst = exit,
            // Waiting longer would not make one succeed that has failed.
            other => return Ok((other, found)),
        }
    }
    Ok((worst, found))
}

/// The outcome of the first that ends, which waits no longer.
async fn next(waiting: &mut Vec<Waiting<'_>>) -> Result<(Exit, Jobs), Failure> {
    std::future::poll_fn(|context| {
        for at in 0..waiting.len() {
            if let Poll::Ready(outcome) = waiting[at].as_mut().poll(context) {
                drop(waiting.swap_remove(at));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// Looks at an array until every member of it has ended; whether all of them succeeded.
async fn ended(
    client: &Client,
    console: &Console,
    array_id: &str,
    (until, end): (WaitCondition, Option<Instant>),
) -> Result<Exit, Failure> {
    let mut pause = LOOK_AFTER;
    let mut interrupts = Interrupts::listen()?;
    loop {
        let array = counted(client, array_id).await?;
        let v1::ArrayCounts { succeeded, failed, cancelled, .. } = array.counts.unwrap_or_default();
        let is_well = failed + cancelled == 0;
        if array.end_time.is_some() || (until == WaitCondition::Succeeded && !is_well) {
            console.progress(&format!(
                "{array_id}: {succeeded} succeeded, {failed} failed, {cancelled} cancelled"
            ));
            return Ok(if is_well { Exit::Ok } else { Exit::Failed });
        }
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            return Err(Failure::new(Exit::Timeout, "the time is up; the jobs go on")
                .with_next(format!("muster job wait {array_id}")));
        }
        let until = now.checked_add(pause).map_or(end, |at| Some(end.map_or(at, |end| end.min(at))));
        tokio::select! {
            () = follow::sleep_until(until) => {}
            exit = interrupts.next() => {
                console.progress(&format!("the jobs go on; wait for them with: muster job wait {array_id}"));
                return Ok(exit);
            }
        }
        pause = (pause * 2).min(LOOK_AFTER_MAX);
    }
}

/// One array without its indices, which costs the replica far less than the whole.
async fn counted(client: &Client, array_id: &str) -> Result<v1::Array, Failure> {
    let filter = v1::JobFilter { array_id: array_id.to_owned(), ..Default::default() };
    let arrays = all_arrays(client, filter).await?.0;
    arrays.into_iter().find(|array| array.id == array_id).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no array {array_id}")).with_next(
            "`muster job array list --all` shows the ids; arrays that have ended are kept for a limited time",
        )
    })
}
