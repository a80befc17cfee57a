//! `muster cluster …`.

mod members;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use muster_client::{AttemptError, Client};
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, one_line, span};
use muster_wire::closed::word;
use muster_wire::v1;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::interrupt::Interrupts;
use crate::view::{ClusterStatus, Health, JobCounts, NodeCounts, Replica, ReplicaStatus, Warning};

/// Replicas are three or five; more than this is a broken answer, not a cluster.
const REPLICAS_MAX: usize = 64;
/// Commands about the scheduler cluster.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// How every replica stands: role, log positions, digest of its state, and what to look at
    #[command(after_help = "\
Examples:
  muster cluster status
  muster cluster status -o wide
  muster cluster status -o json | jq '.warnings[].message'

Each replica is asked itself. Two replicas with the same log index must have the same digest.")]
    Status,
    /// Follow the status; with --until, until the cluster is well
    #[command(after_help = "\
Examples:
  muster cluster watch
  muster cluster watch --until healthy --timeout 5m     for scripts: 0 when it is, 7 when it is not in time")]
    Watch(WatchArgs),
    #[command(flatten)]
    Change(members::ChangeCommand),
}

/// Options of `muster cluster watch`.
#[derive(clap::Args)]
pub struct WatchArgs {
    /// Stop when it is so
    #[arg(long, value_enum)]
    until: Option<WaitCondition>,
    /// Between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = muster_console::timeout)]
    every: Duration,
}

/// When to stop watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WaitCondition {
    /// There is a leader
    Led,
    /// Every replica answers, has the same state, and there is nothing to warn of
    Healthy,
}

pub async fn run(global: &Global, console: &Console, command: ClusterCommand) -> Result<Exit, Failure> {
    let client = global.client().await?;
    match command {
        ClusterCommand::Status => status(&client, console).await,
        ClusterCommand::Watch(args) => watch(global, &client, console, &args).await,
        ClusterCommand::Change(command) => members::run(global, &client, console, command).await,
    }
}

/// What every replica says, put together.
async fn look(client: &Client) -> Result<(Option<u64>, ClusterStatus), Failure> {
    let first = client.get_status(v1::GetStatusRequest::default()).await?;
    let (replicas, warnings) = ask_all(client, &first).await;
    let log_index = first.freshness.map(|f| f.log_index);
    let content = ClusterStatus {
        cluster_id: first.cluster_id,
        cluster_generation: first.cluster_generation,
        jobs: JobCounts {
            pending: first.jobs_pending,
            active: first.jobs_active,
            finished: first.jobs_finished,
        },
        nodes: NodeCounts { up: first.nodes_up, lost: first.nodes_lost },
        record_format: first.record_format,
        warnings,
        change_running: first.change_running,
        replicas,
    };
    Ok((log_index, content))
}

fn show(console: &Console, log_index: Option<u64>, content: &ClusterStatus) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("ClusterStatus", log_index, content)),
        Format::Name => {
            for replica in &content.replicas {
                console.line(&replica.endpoint)?;
            }
            Ok(())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => print(console, content),
    }
}

async fn status(client: &Client, console: &Console) -> Result<Exit, Failure> {
    let (log_index, content) = look(client).await?;
    for replica in content.replicas.iter().filter(|r| r.role == "unreachable") {
        let why = replica.error.as_deref().unwrap_or_default();
        console.progress(&format!("replica {} at {} did not answer: {why}", replica.id, replica.endpoint));
    }
    let diverged = diverged(&content.replicas);
    show(console, log_index, &content)?;
    match diverged {
        Some(index) => Err(Failure::new(
            Exit::Failed,
            format!("replicas have different digests of the state at log index {index}"),
        )
        .with_next(
            "see ops/runbooks/diverged-replica.md: keep the one that differs as evidence, rebuild it",
        )),
        None => Ok(Exit::Ok),
    }
}

/// Whether every replica answers with one state, and nobody warns.
fn is_healthy(content: &ClusterStatus) -> bool {
    let answers = |replica: &Replica| replica.status.is_some();
    content.warnings.iter().all(|warning| is_advice(&warning.code))
        && content.replicas.iter().all(answers)
        && content.replicas.iter().any(|replica| replica.role == "leader")
        && diverged(&content.replicas).is_none()
}

/// Warnings that say what could be done, not that something is broken.
fn is_advice(code: &str) -> bool {
    matches!(code, "FORMAT_BEHIND" | "FEW_VOTERS" | "EVEN_VOTERS" | "STORAGE_VOLATILE")
}

fn has_reached(until: WaitCondition, content: &ClusterStatus) -> bool {
    match until {
        WaitCondition::Led => content.replicas.iter().any(|replica| replica.role == "leader"),
        WaitCondition::Healthy => is_healthy(content),
    }
}

async fn watch(
    global: &Global,
    client: &Client,
    console: &Console,
    args: &WatchArgs,
) -> Result<Exit, Failure> {
    let end = global.timeout.and_then(|limit| Instant::now().checked_add(limit));
    let mut said = String::new();
    let mut interrupts = Interrupts::listen()?;
    loop {
        let looked = tokio::select! {
            looked = look(client) => looked,
            () = members::until(end) => return Err(too_late()),
            exit = interrupts.next() => return Ok(exit),
        };
        match looked {
            Ok((log_index, content)) => {
                let reached = args.until.is_some_and(|until| has_reached(until, &content));
                // Of a script's wait only the end is data.
                if args.until.is_none() || reached {
                    show(console, log_index, &content)?;
                }
                if reached {
                    return Ok(Exit::Ok);
                }
                let now = content.warnings.iter().map(|w| w.message.as_str()).collect::<Vec<_>>().join("; ");
                if args.until.is_some() && now != said && !now.is_empty() {
                    console.progress(&format!("not yet: {now}"));
                    said = now;
                }
            }
            // No replica answers: that may pass, and is what one waits for.
            Err(_) if args.until.is_some() => {}
            Err(failure) => return Err(failure),
        }
        tokio::select! {
            () = tokio::time::sleep(args.every) => {}
            () = members::until(end) => return Err(too_late()),
            exit = interrupts.next() => return Ok(exit),
        }
    }
}

fn too_late() -> Failure {
    Failure::new(Exit::Timeout, "the time is up and the cluster is not there yet")
        .with_next("`muster cluster status` shows what is missing")
}

/// Asks every replica that the first one knows of, at the same time.
async fn ask_all(client: &Client, first: &v1::GetStatusResponse) -> (Vec<Replica>, Vec<Warning>) {
    let mut replicas = BTreeMap::new();
    let mut answers = vec![first.clone()];
    let mut asking = JoinSet::new();
    let own = first.freshness.as_ref().map(|f| f.replica_id);
    for known in first.replicas.iter().take(REPLICAS_MAX) {
        let mut replica = Replica {
            id: known.id,
            region: known.region.clone(),
            endpoint: known.client_endpoint.clone(),
            voter: known.voter,
            role: if known.leader { "leader".into() } else { "unknown".into() },
            ..Default::default()
        };
        if own == Some(known.id) {
            fill(&mut replica, Ok(first.clone()));
        } else if !known.client_endpoint.is_empty() {
            let (client, endpoint, id) = (client.clone(), known.client_endpoint.clone(), known.id);
            asking.spawn(async move { (id, client.get_status_of(&endpoint).await) });
        }
        replicas.insert(known.id, replica);
    }
    while let Some(answered) = asking.join_next().await {
        if let Ok((id, answer)) = answered
            && let Some(replica) = replicas.get_mut(&id)
        {
            answers.extend(answer.as_ref().ok().cloned());
            fill(replica, answer);
        }
    }
    // The leader sees the others; each sees its own disk.
    answers.sort_by_key(|answer| answer.role() != v1::ReplicaRole::Leader);
    if let Some(leader) = answers.first().filter(|answer| answer.role() == v1::ReplicaRole::Leader) {
        for seen in &leader.replicas {
            if let Some(replica) = replicas.get_mut(&seen.id) {
                replica.lag_entries = seen.lag_entries;
                replica.silence = span(seen.silence);
            }
        }
    }
    let mut warnings: Vec<Warning> = Vec::new();
    for warning in answers.into_iter().flat_map(|answer| answer.warnings) {
        let replica = Some(warning.replica_id).filter(|id| *id > 0);
        if !warnings.iter().any(|known| known.code == warning.code && known.replica == replica) {
            warnings.push(Warning { code: warning.code, message: warning.message, replica });
        }
    }
    (replicas.into_values().collect(), warnings)
}

fn fill(replica: &mut Replica, answer: Result<v1::GetStatusResponse, AttemptError>) {
    match answer {
        Ok(status) => {
            replica.role = word::<v1::ReplicaRole>(status.role).to_owned();
            replica.status = Some(ReplicaStatus {
                log_index: status.freshness.map_or(0, |f| f.log_index),
                staleness: status.freshness.and_then(|f| span(f.staleness)),
                state_digest: status.state_digest,
                term: status.term,
                raft_last_index: status.raft_last_index,
                raft_committed_index: status.raft_committed_index,
                raft_applied_index: status.raft_applied_index,
                raft_snapshot_index: status.raft_snapshot_index,
                records_rejected: status.records_rejected,
                record_format: status.record_format,
                health: status.health.map(Health::from),
            });
        }
        Err(error) => {
            replica.role = "unreachable".to_owned();
            replica.error = Some(match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            });
        }
    }
}

/// The log index at which two replicas' digests differ. Replicas are asked at different moments, so only
/// those at the same index can be compared.
fn diverged(replicas: &[Replica]) -> Option<u64> {
    let mut digests = BTreeMap::new();
    for status in replicas.iter().filter_map(|r| r.status.as_ref()).filter(|s| !s.state_digest.is_empty()) {
        let first = digests.entry(status.log_index).or_insert(&status.state_digest);
        if *first != &status.state_digest {
            return Some(status.log_index);
        }
    }
    None
}

fn print(console: &Console, content: &ClusterStatus) -> Result<(), Failure> {
    console.line(&format!(
        "cluster {} generation {} format {}: {} jobs pending, {} active, {} finished; {} nodes up, {} lost",
        content.cluster_id,
        content.cluster_generation,
        content.record_format,
        content.jobs.pending,
        content.jobs.active,
        content.jobs.finished,
        content.nodes.up,
        content.nodes.lost,
    ))?;
    console.line("")?;
    let mut header = vec!["REPLICA", "REGION", "ROLE", "TERM", "LOG-INDEX", "LAG", "DIGEST"];
    if console.is_wide() {
        header.push("STALE-MS");
        header.extend(["LAST", "COMMITTED", "APPLIED", "SNAPSHOT", "REJECTED", "FORMAT", "VOTER"]);
        header.extend(["VERSION", "READS", "FREE", "SNAPSHOT-AGE", "ARCHIVE", "CERT-DAYS"]);
    }
    header.push("ENDPOINT");
    let mut grid = Grid::new(header);
    for replica in &content.replicas {
        let number = |of: fn(&ReplicaStatus) -> u64| {
            replica.status.as_ref().map(|s| of(s).to_string()).unwrap_or_default()
        };
        let mut cells = vec![
            replica.id.to_string(),
            replica.region.clone(),
            replica.role.clone(),
            number(|s| s.term),
            number(|s| s.log_index),
            replica.lag_entries.map(|lag| lag.to_string()).unwrap_or_default(),
            replica.status.as_ref().map(|s| s.state_digest.clone()).unwrap_or_default(),
        ];
        if console.is_wide() {
            let staleness = replica.status.as_ref().and_then(|s| s.staleness.clone());
            cells.push(staleness.unwrap_or_default());
            cells.push(number(|s| s.raft_last_index));
            cells.push(number(|s| s.raft_committed_index));
            cells.push(number(|s| s.raft_applied_index));
            cells.push(number(|s| s.raft_snapshot_index));
            cells.push(number(|s| s.records_rejected));
            cells.push(number(|s| s.record_format.into()));
            cells.push(if replica.voter { "yes" } else { "no" }.to_owned());
            let health = replica.status.as_ref().and_then(|status| status.health.as_ref());
            let of = |get: &dyn Fn(&Health) -> Option<String>| health.and_then(get).unwrap_or_default();
            cells.push(of(&|h| Some(h.version.clone())));
            cells.push(of(&|h| Some(h.max_record_format.to_string())));
            cells.push(of(&|h| Some(format!("{}Gi", h.free_bytes >> 30))));
            cells.push(of(&|h| h.snapshot_age.clone()));
            cells.push(of(&|h| h.archive_log_index.map(|index| index.to_string())));
            cells.push(of(&|h| h.certificate_days_left.map(|days| days.to_string())));
        }
        cells.push(replica.endpoint.clone());
        grid.row(cells);
    }
    console.table(&grid)?;
    if !content.change_running.is_empty() {
        console.line(&format!("\nchange: {}", one_line(&content.change_running)))?;
    }
    if !content.warnings.is_empty() {
        console.line("")?;
    }
    for warning in &content.warnings {
        console.line(&format!("warning: {}", one_line(&warning.message)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(log_index: u64, digest: &str) -> Replica {
        let mut replica = Replica::default();
        fill(
            &mut replica,
            Ok(v1::GetStatusResponse {
                freshness: Some(v1::Freshness { log_index, ..Default::default() }),
                state_digest: digest.to_owned(),
                ..Default::default()
            }),
        );
        replica
    }

    #[test]
    fn only_digests_of_the_same_index_are_compared() {
        assert_eq!(diverged(&[replica(5, "a"), replica(6, "b"), Replica::default()]), None);
        assert_eq!(diverged(&[replica(5, "a"), replica(5, "a")]), None);
        assert_eq!(diverged(&[replica(5, "a"), replica(6, "b"), replica(5, "c")]), Some(5));
    }
}
