//! `muster cluster add|promote|remove|replace|voters|transfer|upgrade`.
//!
//! What takes a while, a replica that catches up, is waited for here: the same call is repeated until
//! it is done, so neither a change of leader nor Ctrl-C loses anything.
//!
//! **Invariant:** nothing is asked back: what needs a second thought needs `--yes` or `--force` on the command line.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use muster_client::{CallError, Client};
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_types::RefusalCode;
use muster_wire::{admin, v1};
use tokio::time::Instant;

use crate::consent::Consent;
use crate::interrupt::Interrupts;
use crate::view::{ClusterFormat, ClusterLeader, Members};

/// Between two looks at a replica that catches up.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Looks at a replica that is no member before it counts as unknown: two seconds.
const UNKNOWN_LOOKS_MAX: u32 = 8;
/// Between two lines of progress where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Changes of the cluster itself.
#[derive(Subcommand)]
pub enum ChangeCommand {
    /// Take a new replica in; wait until it has caught up and give it a vote
    #[command(after_help = "\
Examples:
  muster cluster add 4 --region eu-north --peer r4:7500 --client r4:7400
  muster cluster add 4 --region eu-north --peer r4:7500 --client r4:7400 --learner

Start it on its host before or after, with an empty data directory:
  muster server --config server.toml --join

Given again after an interruption, it goes on.")]
    Add(AddArgs),
    /// Give a learner a vote, once it has caught up
    #[command(after_help = "Examples:\n  muster cluster promote 4\n  muster cluster promote 4 --no-wait")]
    Promote {
        /// The replica
        #[arg(value_name = "ID", value_parser = replica_id)]
        id: u64,
        /// Fail at once when it has not caught up
        #[arg(long)]
        no_wait: bool,
    },
    /// Take a replica out
    #[command(after_help = "\
Examples:
  muster cluster remove 4
  muster cluster remove 4 --keep-as-learner     takes its vote only
  muster cluster remove 4 --dry-run             says what would change

Refused when the voters that are left and answer would not be a majority of the voters that are left.")]
    Remove {
        /// The replica
        #[arg(value_name = "ID", value_parser = replica_id)]
        id: u64,
        /// Take its vote only
        #[arg(long)]
        keep_as_learner: bool,
        #[command(flatten)]
        consent: Consent,
        /// Do it even if the voters that answer are no majority then: nothing could be decided any more
        #[arg(long)]
        force: bool,
    },
    /// Put a new replica in the place of one that is gone; or set the addresses of a replica
    #[command(after_help = "\
Examples:
  muster cluster replace 3 --with 4 --region eu-west --peer r4:7500 --client r4:7400
  muster cluster replace 3 --with 3 --region eu-west --peer new:7500 --client new:7400
  muster cluster replace 3 --with 4 --region eu-west --peer r4:7500 --client r4:7400 --dry-run

Adds the new one, waits until it has caught up, and swaps the two in one change. Start it on its host
with `muster server --config server.toml --join`; one that keeps its id with `--rebuild`.
Given again after an interruption, it goes on.")]
    Replace(ReplaceArgs),
    /// Say which replicas vote, all at once
    #[command(after_help = "\
Examples:
  muster cluster voters 1 2 3 4 5
  muster cluster voters 1 2 3 --keep-as-learners

Each has to be a member that has caught up. Those that lose their vote are removed.")]
    Voters {
        /// The replicas
        #[arg(value_name = "ID", required = true, value_parser = replica_id)]
        ids: Vec<u64>,
        /// Those that lose their vote go on to follow
        #[arg(long)]
        keep_as_learners: bool,
        #[command(flatten)]
        consent: Consent,
        /// Do it even if the voters that answer are no majority then: nothing could be decided any more
        #[arg(long)]
        force: bool,
    },
    /// Hand the leadership over
    #[command(after_help = "\
Examples:
  muster cluster transfer                    to the voter that lacks least
  muster cluster transfer --to 2
  muster cluster transfer --away-from 1      nothing happens when another one leads")]
    Transfer {
        /// Who is to lead
        #[arg(long, value_name = "ID", value_parser = replica_id)]
        to: Option<u64>,
        /// Only if this one leads
        #[arg(long, value_name = "ID", value_parser = replica_id)]
        away_from: Option<u64>,
    },
    /// Bring a newer record format into force, once every replica reads it
    #[command(after_help = "\
Examples:
  muster cluster upgrade             the highest that every replica reads
  muster cluster upgrade --to 2
  muster cluster upgrade --dry-run   which format is in force, and which one would be

There is no way back: a release that does not read the format cannot join any more.")]
    Upgrade {
        /// Which format
        #[arg(long, value_name = "FORMAT", value_parser = clap::value_parser!(u32).range(1..=65_535))]
        to: Option<u32>,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// The region and the addresses of a replica.
#[derive(Args)]
pub struct AddressArgs {
    /// Its region
    #[arg(long)]
    region: String,
    /// Where other replicas reach it
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    /// Where clients and agents reach it
    #[arg(long, value_name = "HOST:PORT")]
    client: String,
}

impl AddressArgs {
    fn of(self, id: u64) -> admin::ReplicaAddress {
        admin::ReplicaAddress {
            id,
            region: self.region,
            peer_endpoint: self.peer,
            client_endpoint: self.client,
        }
    }
}

/// Options of `muster cluster add`.
#[derive(Args)]
pub struct AddArgs {
    /// Its id: one that no replica of this cluster has had before
    #[arg(value_name = "ID", value_parser = replica_id)]
    id: u64,
    #[command(flatten)]
    address: AddressArgs,
    /// Without a vote: it only follows
    #[arg(long)]
    learner: bool,
}

/// Options of `muster cluster replace`.
#[derive(Args)]
pub struct ReplaceArgs {
    /// The replica that is gone
    #[arg(value_name = "GONE-ID", value_parser = replica_id)]
    gone: u64,
    /// The new one: an id that no replica of this cluster has had before, or the same
    #[arg(long, value_name = "ID", value_parser = replica_id)]
    with: u64,
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    consent: Consent,
    /// Do it even if the voters that answer are no majority then: nothing could be decided any more
    #[arg(long)]
    force: bool,
}

/// `4` or `r4`.
fn replica_id(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix('r').unwrap_or(text).parse::<u64>();
    number.ok().filter(|id| *id > 0).ok_or_else(|| "must be a replica's id: 1 or more".to_owned())
}

/// Waits until the time is up, for ever where there is no end.
pub async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

pub async fn run(
    global: &Global,
    client: &Client,
    console: &Console,
    command: ChangeCommand,
) -> Result<Exit, Failure> {
    let wait = Wait { console, limit: global.timeout };
    let answer = match command {
        ChangeCommand::Add(args) => {
            let id = args.id;
            let request = admin::AddReplicaRequest { replica: Some(args.address.of(id)) };
            let added = wait.until_caught_up(id, || client.add_replica(request.clone())).await?;
            if args.learner {
                added
            } else {
                console.progress(&format!("replica {id} is a learner; waiting until it has caught up"));
                wait.until_caught_up(id, || promote(client, id)).await?
            }
        }
        ChangeCommand::Promote { id, no_wait: true } => promote(client, id).await?,
        ChangeCommand::Promote { id, no_wait: false } => {
            wait.until_caught_up(id, || promote(client, id)).await?
        }
        ChangeCommand::Remove { id, keep_as_learner, force, consent } => {
            let without = |mut voters: BTreeSet<u64>| {
                voters.remove(&id);
                voters
            };
            if !consent.to_voters(client, console, without).await? {
                return Ok(Exit::Ok);
            }
            let request = admin::RemoveReplicaRequest { replica_id: id, force, keep_as_learner };
            client.remove_replica(request).await?
        }
        ChangeCommand::Replace(args) => {
            let (id, replaced_replica_id, force) = (args.with, args.gone, args.force);
            let instead = |mut voters: BTreeSet<u64>| {
                voters.remove(&replaced_replica_id);
                voters.insert(id);
                voters
            };
            if !args.consent.to_voters(client, console, instead).await? {
                return Ok(Exit::Ok);
            }
            let replacement = Some(args.address.of(id));
            let request = admin::ReplaceReplicaRequest { replaced_replica_id, replacement, force };
            wait.until_caught_up(id, || client.replace_replica(request.clone())).await?
        }
        ChangeCommand::Voters { ids, keep_as_learners, force, consent } => {
            let these: BTreeSet<u64> = ids.iter().copied().collect();
            if !consent.to_voters(client, console, |_| these).await? {
                return Ok(Exit::Ok);
            }
            let request = admin::ChangeVotersRequest { voter_ids: ids, force, keep_as_learners };
            client.change_voters(request).await?
        }
        ChangeCommand::Transfer { to, away_from } => return transfer(client, console, to, away_from).await,
        ChangeCommand::Upgrade { to, dry_run } => {
            return upgrade(client, console, to, dry_run).await;
        }
    };
    show(console, answer)?;
    Ok(Exit::Ok)
}

async fn promote(client: &Client, id: u64) -> Result<admin::Membership, CallError> {
    client.promote_replica(admin::PromoteReplicaRequest { replica_id: id }).await
}

async fn transfer(
    client: &Client,
    console: &Console,
    to: Option<u64>,
    away_from: Option<u64>,
) -> Result<Exit, Failure> {
    let request = admin::TransferLeadershipRequest {
        target_replica_id: to.unwrap_or(0),
        from_replica_id: away_from.unwrap_or(0),
    };
    let leader = client.transfer_leadership(request).await?.leader_id;
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("ClusterLeader", None::<u64>, ClusterLeader { leader }))?;
        }
        Format::Name => console.line(&leader.to_string())?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.line(&format!("replica {leader} leads"))?
        }
    }
    Ok(Exit::Ok)
}

async fn upgrade(
    client: &Client,
    console: &Console,
    to: Option<u32>,
    dry_run: bool,
) -> Result<Exit, Failure> {
    if dry_run {
        let status = client.get_status(v1::GetStatusRequest::default()).await?;
        console.line(&would_be_in_force(&status, to))?;
        return Ok(Exit::Ok);
    }
    let answer = client.raise_format(admin::RaiseFormatRequest { record_format: to.unwrap_or(0) }).await?;
    let format = answer.record_format;
    match console.format {
        Format::Json | Format::Yaml => {
            let log_index = answer.freshness.map(|f| f.log_index);
            console.object(&Document::new(
                "ClusterFormat",
                log_index,
                ClusterFormat { record_format: format },
            ))?;
        }
        Format::Name => console.line(&format.to_string())?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.line(&format!("record format {format} is in force"))?
        }
    }
    Ok(Exit::Ok)
}

/// What raising the format would do, as far as the replica that was asked knows: only the leader hears what others read.
fn would_be_in_force(status: &v1::GetStatusResponse, to: Option<u32>) -> String {
    let read: Option<Vec<u32>> =
        status.replicas.iter().map(|r| Some(r.health.as_ref()?.max_record_format)).collect();
    let readable = read.and_then(|read| read.into_iter().min());
    let then = match (to, readable) {
        (Some(format), Some(max)) if format > max => {
            format!("{format} would be refused: a replica reads up to {max}")
        }
        (Some(format), Some(_)) | (None, Some(format)) => format!("{format} would be in force for good"),
        (Some(format), None) => {
            format!("{format} would be in force for good if every replica reads it, which the leader knows")
        }
        (None, None) => {
            "the highest that every replica reads, which the leader knows, would be for good".to_owned()
        }
    };
    format!("record format {} is in force, and {then}", status.record_format)
}

fn show(console: &Console, answer: admin::Membership) -> Result<(), Failure> {
    let members = Members {
        changed: answer.raft_index > 0,
        voters: answer.voter_ids,
        learners: answer.learner_ids,
        warnings: answer.warnings,
    };
    let list = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("ClusterMembers", None::<u64>, members)),
        Format::Name => {
            let ids = members.voters.iter().chain(&members.learners);
            ids.map(u64::to_string).try_for_each(|id| console.line(&id))
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let learners = match members.learners.as_slice() {
                [] => String::new(),
                some => format!("; learners {}", list(some)),
            };
            let unchanged = if members.changed { "" } else { " (as before)" };
            console.line(&format!("voters {}{learners}{unchanged}", list(&members.voters)))?;
            for warning in &members.warnings {
                console.progress(&format!("warning: {warning}"));
            }
            Ok(())
        }
    }
}

/// Waiting for a replica that catches up.
struct Wait<'a> {
    console: &'a Console,
    limit: Option<Duration>,
}

impl Wait<'_> {
    /// Repeats a call until the replica has caught up, showing what it lacks.
    async fn until_caught_up<F>(&self, id: u64, call: impl Fn() -> F) -> Result<admin::Membership, Failure>
    where
        F: Future<Output = Result<admin::Membership, CallError>>,
    {
        let end = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut meter = Meter::new(self.console, id);
        let mut unknown_left = UNKNOWN_LOOKS_MAX;
        let mut interrupts = Interrupts::listen()?;
        loop {
            let answered = tokio::select! {
                answered = call() => answered,
                () = until(end) => return Err(self.too_late(id)),
                _ = interrupts.next() => return Err(self.interrupted(id)),
            };
            let error = match answered {
                Ok(answer) => {
                    meter.done();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let refused = error.refused();
            match refused.and_then(|refused| refused.code) {
                Some(RefusalCode::ReplicaNotCaughtUp) => {
                    let lag = refused.and_then(|r| r.metadata.get("lag_entries")?.parse().ok());
                    meter.lacks(lag);
                }
                // Another change, or that of a replica that is admitted again, is not over.
                Some(RefusalCode::MembershipBusy) => meter.waits_for_another_change(),
                // Between the two steps of that change the replica is no member.
                Some(RefusalCode::ReplicaUnknown) if unknown_left > 0 => unknown_left -= 1,
                _ => return Err(error.into()),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = until(end) => return Err(self.too_late(id)),
                _ = interrupts.next() => return Err(self.interrupted(id)),
            }
        }
    }

    fn too_late(&self, id: u64) -> Failure {
        Failure::new(Exit::Timeout, format!("the time is up and replica {id} has not caught up"))
            .with_next("give the same command again: it goes on where it was")
    }

    fn interrupted(&self, id: u64) -> Failure {
        Failure::new(Exit::Interrupted, format!("replica {id} goes on to catch up as a learner"))
            .with_next("give the same command again: it goes on where it was")
    }
}

/// Shows what a replica lacks: a bar on a terminal, a line now and then elsewhere.
struct Meter<'a> {
    console: &'a Console,
    id: u64,
    bar: Option<ProgressBar>,
    most: u64,
    said: Option<(Option<u64>, Instant)>,
    said_busy: bool,
}

impl Meter<'_> {
    fn new(console: &Console, id: u64) -> Meter<'_> {
        let bar = console.shows_bars().then(|| {
            let style =
                ProgressStyle::with_template("replica {prefix} {bar:32} {pos}/{len} entries {elapsed}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style).with_prefix(id.to_string())
        });
        Meter { console, id, bar, most: 0, said: None, said_busy: false }
    }

    fn lacks(&mut self, lag_entries: Option<u64>) {
        if let (Some(bar), Some(lag)) = (&self.bar, lag_entries) {
            self.most = self.most.max(lag);
            bar.set_length(self.most);
            bar.set_position(self.most - lag);
            return;
        }
        let is_news = self.said.as_ref().is_none_or(|(said, at)| {
            said.is_none() != lag_entries.is_none() || (*said != lag_entries && at.elapsed() >= LINE_EVERY)
        });
        if is_news {
            let id = self.id;
            self.console.progress(&match lag_entries {
                Some(lag) => format!("replica {id} lacks {lag} entries"),
                None => format!("replica {id} has not answered so far; is it started with --join?"),
            });
            self.said = Some((lag_entries, Instant::now()));
        }
    }

    fn waits_for_another_change(&mut self) {
        if !std::mem::replace(&mut self.said_busy, true) {
            self.console.progress("another change of the members is under way; waiting until it is over");
        }
    }

    fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.done();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_shown() {
        assert_eq!((replica_id("4"), replica_id("r4")), (Ok(4), Ok(4)));
        for bad in ["", "0", "r", "r0", "four", "-1", "rr1"] {
            assert!(replica_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_raising_the_format_would_do_is_said_as_far_as_it_is_known() {
        let replica = |format_max: Option<u32>| v1::Replica {
            health: format_max
                .map(|max_record_format| v1::ReplicaHealth { max_record_format, ..Default::default() }),
            ..Default::default()
        };
        let said = |read: [Option<u32>; 2], to| {
            let replicas = read.map(replica).into();
            let status = v1::GetStatusResponse { record_format: 4, replicas, ..Default::default() };
            would_be_in_force(&status, to)
        };
        let known = [Some(6), Some(5)];
        assert_eq!(said(known, None), "record format 4 is in force, and 5 would be in force for good");
        assert!(said(known, Some(5)).ends_with("5 would be in force for good"));
        assert!(said(known, Some(6)).ends_with("6 would be refused: a replica reads up to 5"));
        // A follower does not know what the others read.
        assert!(said([Some(6), None], Some(6)).contains("if every replica reads it, which the leader knows"));
        assert!(said([Some(6), None], None).contains("which the leader knows"));
    }
}
