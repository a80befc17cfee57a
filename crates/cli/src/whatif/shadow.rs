//! `muster shadow`: what a change would have come to, while the log of a cluster grows.
//!
//! It is a process of its user and no part of a replica: it asks for applied rounds as a replica asks for those that its
//! archive lacks, and keeps a separate state. A replica gives rounds to few readers at a time, and waits for none.
//!
//! **Invariant:** what the log does not have any more is stated, and nothing is filled in: a range ends in front of a gap.
//! **Invariant:** memory is bounded by one state, one range and one comparison.

use std::time::{Duration, Instant};

use clap::Args;
use muster_archive::{ArchivedRound, Observer, Replay};
use muster_client::{CallError, Client};
use muster_console::{Console, Exit, Failure, Global};
use muster_journal::Decision;
use muster_manifest::quantity;
use muster_sim::whatif::{Change, Shadow};
use muster_state::{Applied, State};
use muster_types::{ClusterId, PastPoint, RefusalCode, ReplicaId};

use super::reading::Reading;
use super::{ChangeArgs, Progress, change_of, compare_reading, display, refused, words};
use crate::interrupt::Interrupts;
use crate::log::{SourceArgs, archive_failure};

/// Between two questions for new rounds when there were none.
const POLL: Duration = Duration::from_secs(1);
/// Between two attempts to reach a cluster that does not answer.
const AWAY: Duration = Duration::from_secs(10);
/// The longest span that an option takes: 366 days.
const SPAN_MS_MAX: u64 = 366 * 86_400_000;

/// Options of `muster shadow`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster shadow --policy next.yaml --for 24h
  muster shadow --policy next.yaml --archive /var/lib/muster/replica-1 --tail --for 7d --every 1h
  muster shadow --quota research=+128 --for 12h --json >> shadow.jsonl
  muster shadow --fleet +64xh100@eu-west/train --window 6h

It begins with the state at the end of the log, follows the log, and prints now and then what `muster whatif` would print of
the same range: the record, the replay without the change and the replay with it. After --window, or when a range is full,
another one begins with the state of the cluster at that time. The cluster is not changed, and nothing of this runs in a
replica. It needs a certificate of kind admin or a token of the role admin. When it is interrupted (Ctrl-C, SIGINT) it prints
a last comparison. `ops/guide/ledger.md` states what each figure is.")]
pub struct ShadowArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    change: ChangeArgs,
    /// How long to follow the log
    #[arg(long = "for", value_name = "DURATION", default_value = "24h", value_parser = span)]
    lasts_ms: u64,
    /// Between two comparisons
    #[arg(long = "every", value_name = "DURATION", default_value = "10m", value_parser = span)]
    every_ms: u64,
    /// The longest range that is compared, in log time; another one begins behind it
    #[arg(long = "window", value_name = "DURATION", default_value = "24h", value_parser = span)]
    window_ms: u64,
    /// One JSON object on one line for each comparison instead of tables
    #[arg(long)]
    json: bool,
}

fn span(text: &str) -> Result<u64, String> {
    let ms = quantity::duration_ms(text).map_err(|error| error.to_string())?;
    match ms {
        1_000..=SPAN_MS_MAX => Ok(ms),
        _ => Err("expected at least 1s and at most 366d".to_owned()),
    }
}

/// What a question for rounds came to.
enum Step {
    /// There may be more.
    More,
    /// There was nothing new.
    Current,
    /// The next rounds are kept nowhere that was asked.
    Gap,
    /// Nobody answered.
    Away(String),
}

/// The shadow as it looks at the replay of the log.
struct Watcher<'a>(&'a mut Shadow);

impl Observer for Watcher<'_> {
    fn before(&mut self, state: &State, decision: &Decision) {
        self.0.before(state, decision);
    }

    fn after(&mut self, state: &State, applied: &Applied) {
        self.0.after(state, applied);
    }

    fn round_over(&mut self, state: &State) {
        self.0.round_over(state);
    }
}

struct Follower<'a> {
    global: &'a Global,
    console: &'a Console,
    args: &'a ShadowArgs,
    client: Client,
    change: Change,
    replay: Replay,
    shadow: Shadow,
}

pub async fn run(global: &Global, console: &Console, args: &ShadowArgs) -> Result<Exit, Failure> {
    if words(&args.change).is_empty() {
        return Err(Failure::usage("there is no change to follow the log with")
            .with_next("name one with --policy, --fleet or --quota"));
    }
    let client = global.client().await?;
    let replay = base(global, console, &args.source, &client).await?;
    let shadow = Shadow::begin(replay.state());
    let change = change_of(&args.change, shadow.from())?;
    // A change that cannot be made is refused now, and not after a day.
    let begin = shadow.so_far(replay.state()).map_err(refused)?;
    begin.check(&change).map_err(refused)?;
    console.progress(&format!("following the log behind record {}", replay.state().log_index()));
    let mut follower = Follower { global, console, args, client, change, replay, shadow };
    let mut interrupts = Interrupts::listen()?;
    tokio::select! {
        done = follower.follow() => done?,
        exit = interrupts.next() => {
            follower.compare(&[]).await?;
            return Ok(exit);
        }
    }
    Ok(Exit::Ok)
}

/// The state at the end of the log.
async fn base(
    global: &Global,
    console: &Console,
    source: &SourceArgs,
    client: &Client,
) -> Result<Replay, Failure> {
    let source = source.open(global, console).await?;
    let last = source.archive.summary().last.unwrap_or_default();
    let at = source.archive.replay(PastPoint::Index(last), None);
    let (replay, _) = at.map_err(|error| archive_failure(&error))?;
    let info = client.get_server_info().await?;
    check(replay.state(), &info.cluster_id, info.generation)?;
    Ok(replay)
}

/// The state is one of this cluster, in its generation.
fn check(state: &State, cluster: &str, generation: u32) -> Result<(), Failure> {
    let Some(found) = state.cluster() else {
        return Err(Failure::usage("the log has no record of a cluster yet").with_next("try again later"));
    };
    if cluster.parse::<ClusterId>().ok() != Some(found.cluster) {
        let text =
            format!("the log is of cluster {}, and the replica is of cluster {cluster}", found.cluster);
        return Err(Failure::usage(text).with_next("name the archive and the endpoint of one cluster"));
    }
    if found.generation != generation {
        let text =
            format!("the log is of generation {}, and the cluster is in {generation}", found.generation);
        return Err(
            Failure::usage(text).with_next("start it again, with the archive of the present generation")
        );
    }
    Ok(())
}

/// Whether the rounds that were asked for are not kept any more.
fn is_gap(error: &CallError) -> bool {
    error.refused().is_some_and(|refused| refused.code == Some(RefusalCode::ResumeTokenCompacted))
}

impl Follower<'_> {
    /// Until its time is over.
    async fn follow(&mut self) -> Result<(), Failure> {
        let (begun, lasts) = (Instant::now(), Duration::from_millis(self.args.lasts_ms));
        let every = Duration::from_millis(self.args.every_ms);
        let mut compared = begun;
        loop {
            match self.step().await? {
                Step::More => {}
                Step::Current => tokio::time::sleep(POLL).await,
                Step::Gap => self.over_gap().await?,
                Step::Away(text) => {
                    let state = self.replay.state();
                    self.console.progress(&format!("stands at record {}: {text}", state.log_index()));
                    tokio::time::sleep(AWAY).await;
                }
            }
            if begun.elapsed() >= lasts {
                return self.compare(&[]).await;
            }
            if compared.elapsed() >= every {
                compared = Instant::now();
                self.compare(&[]).await?;
            }
        }
    }

    /// Takes the next rounds.
    async fn step(&mut self) -> Result<Step, Failure> {
        let from = self.replay.next_raft();
        let (rounds, next) = match self.client.read_rounds(from).await {
            Ok(read) => read,
            Err(error) if is_gap(&error) => return Ok(Step::Gap),
            Err(error @ CallError::Refused { .. }) => return Err(error.into()),
            Err(error) => return Ok(Step::Away(error.to_string())),
        };
        for round in rounds {
            let round = ArchivedRound {
                raft_index: round.raft_index,
                term: round.term,
                leader: ReplicaId(round.leader_id),
                payload: round.payload.into(),
            };
            let applied = self.replay.apply_observed(&round, None, &mut Watcher(&mut self.shadow));
            applied.map_err(|error| archive_failure(&error))?;
            let ran_ms = self.replay.state().log_time().since_ms(self.shadow.from());
            if self.shadow.is_full() || ran_ms >= self.args.window_ms {
                let over = "this range is over, and the next one begins behind it".to_owned();
                self.compare(std::slice::from_ref(&over)).await?;
                self.shadow = Shadow::begin(self.replay.state());
            }
        }
        self.replay.pass(next);
        Ok(if next > from { Step::More } else { Step::Current })
    }

    /// Ends the range in front of a gap, and goes on behind it where a log at hand has a state there.
    async fn over_gap(&mut self) -> Result<(), Failure> {
        let last = self.replay.state().log_index();
        let text = format!(
            "the records behind {last} are not kept by the replica any more: this range ends here, and nothing is filled in"
        );
        self.compare(std::slice::from_ref(&text)).await?;
        let replay = base(self.global, self.console, &self.args.source, &self.client).await?;
        if replay.state().log_index() <= last {
            return Err(Failure::new(Exit::NotFound, text)
                .with_next("name the archive of a replica with --archive, and --tail, and start it again"));
        }
        self.console.error(&format!("goes on behind record {}", replay.state().log_index()));
        self.shadow = Shadow::begin(replay.state());
        self.replay = replay;
        Ok(())
    }

    /// Prints what the range has come to so far.
    async fn compare(&self, notes: &[String]) -> Result<(), Failure> {
        let state = self.replay.state();
        let (from, to, last) = (self.shadow.from(), state.log_time(), state.log_index());
        if last < self.shadow.first() || from >= to {
            self.console.progress(&format!("nothing happened behind record {last}"));
            return Ok(());
        }
        let mut notes = notes.to_vec();
        notes.push(format!("records {} to {last} are compared", self.shadow.first()));
        notes.push(self.lag(last.0).await?);
        let recording = match self.shadow.so_far(state) {
            Ok(recording) => recording,
            Err(error) => {
                self.console.error(&format!("{from} to {to} is not compared: {}", error.sentence));
                return Ok(());
            }
        };
        let reading = Reading { recording, note: None };
        let mut progress = Progress { console: self.console, last: Instant::now() };
        let change = (&self.change, words(&self.args.change));
        match compare_reading(&mut progress, &reading, change, (from, to), (last.0, &notes)) {
            Ok(comparison) => display::show(self.console, self.args.json, &comparison),
            // What happened since may not go with the change, such as a policy without the tenant of a quota.
            Err(failure) => {
                self.console.error(&format!("{from} to {to} is not compared: {}", failure.headline()));
                Ok(())
            }
        }
    }

    /// How far the cluster is ahead, in words. A cluster that is another one now ends it.
    async fn lag(&self, last: u64) -> Result<String, Failure> {
        let Ok(info) = self.client.get_server_info().await else {
            return Ok("how far it is behind is not known: no replica answered".to_owned());
        };
        check(self.replay.state(), &info.cluster_id, info.generation)?;
        Ok(match self.client.get_archive_status().await {
            Ok(status) => match status.newest_log_index.saturating_sub(last) {
                0 => "it is not behind the cluster".to_owned(),
                behind => format!("it is behind by {behind} records"),
            },
            Err(_) => "how far it is behind is not known: no replica answered".to_owned(),
        })
    }
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
