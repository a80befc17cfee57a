//! `muster cluster …`.

use std::collections::BTreeMap;

use clap::Subcommand;
use muster_client::{AttemptError, Client};
use muster_wire::v1;
use tokio::task::JoinSet;

use super::Global;
use super::console::{Console, Format, Grid};
use super::failure::{Exit, Failure};
use super::view::{ClusterStatus, Document, JobCounts, NodeCounts, Replica, ReplicaStatus};

/// Replicas are three or five; more than this is a broken answer, not a cluster.
const REPLICAS_MAX: usize = 64;
/// Sooner than this, the end of a replica's certificate is said unasked.
const CERTIFICATE_WARN_DAYS: i64 = 14;

/// Commands about the scheduler cluster.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// How every replica stands: role, log positions, digest of its state
    #[command(after_help = "\
Examples:
  muster cluster status
  muster cluster status -o json | jq '.replicas[].status.stateDigest'

Each replica is asked itself. Two replicas with the same log index must have the same digest.")]
    Status,
}

pub async fn run(global: &Global, console: &Console, command: ClusterCommand) -> Result<Exit, Failure> {
    let client = global.client().await?;
    match command {
        ClusterCommand::Status => status(&client, console).await,
    }
}

async fn status(client: &Client, console: &Console) -> Result<Exit, Failure> {
    let first = client.get_status(v1::GetStatusRequest::default()).await?;
    let replicas = ask_all(client, &first).await;
    for replica in replicas.iter().filter(|r| r.role == "unreachable") {
        let why = replica.error.as_deref().unwrap_or_default();
        console.progress(&format!("replica {} at {} did not answer: {why}", replica.id, replica.endpoint));
    }
    for replica in &replicas {
        if let Some(days) = replica.status.as_ref().and_then(|status| status.certificate_days_left)
            && days < CERTIFICATE_WARN_DAYS
        {
            console.progress(&format!("the certificate of replica {} ends in {days} days", replica.id));
        }
    }
    let diverged = diverged(&replicas);
    let content = ClusterStatus {
        cluster_id: first.cluster_id,
        cluster_generation: first.cluster_generation,
        jobs: JobCounts {
            pending: first.jobs_pending,
            active: first.jobs_active,
            finished: first.jobs_finished,
        },
        nodes: NodeCounts { up: first.nodes_up, lost: first.nodes_lost },
        replicas,
    };
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("ClusterStatus", first.freshness, content))?;
        }
        Format::Name => {
            for replica in &content.replicas {
                console.line(&replica.endpoint)?;
            }
        }
        Format::Table | Format::Wide => print(console, &content)?,
    }
    match diverged {
        Some(index) => Err(Failure::new(
            Exit::Failed,
            format!("replicas have different digests of the state at log index {index}"),
        )
        .with_next("stop the replica that differs from the others and restore it from them")),
        None => Ok(Exit::Ok),
    }
}

/// Asks every replica that the first one knows of, at the same time.
async fn ask_all(client: &Client, first: &v1::GetStatusResponse) -> Vec<Replica> {
    let mut replicas = BTreeMap::new();
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
            fill(replica, answer);
        }
    }
    replicas.into_values().collect()
}

fn fill(replica: &mut Replica, answer: Result<v1::GetStatusResponse, AttemptError>) {
    match answer {
        Ok(status) => {
            replica.role = status.role;
            replica.status = Some(ReplicaStatus {
                log_index: status.freshness.map_or(0, |f| f.log_index),
                staleness_ms: status.freshness.and_then(|f| f.staleness_ms),
                state_digest: status.state_digest,
                term: status.term,
                raft_last_index: status.raft_last_index,
                raft_committed_index: status.raft_committed_index,
                raft_applied_index: status.raft_applied_index,
                raft_snapshot_index: status.raft_snapshot_index,
                records_rejected: status.records_rejected,
                format: status.format,
                certificate_days_left: status.certificate_days_left,
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
        "cluster {} generation {}: {} jobs pending, {} active, {} finished; {} nodes up, {} lost",
        content.cluster_id,
        content.cluster_generation,
        content.jobs.pending,
        content.jobs.active,
        content.jobs.finished,
        content.nodes.up,
        content.nodes.lost,
    ))?;
    console.line("")?;
    let mut header = vec!["REPLICA", "REGION", "ROLE", "TERM", "LOG-INDEX", "DIGEST"];
    if console.is_wide() {
        header.extend([
            "STALE-MS",
            "LAST",
            "COMMITTED",
            "APPLIED",
            "SNAPSHOT",
            "REJECTED",
            "FORMAT",
            "VOTER",
        ]);
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
            replica.status.as_ref().map(|s| s.state_digest.clone()).unwrap_or_default(),
        ];
        if console.is_wide() {
            let staleness = replica.status.as_ref().and_then(|s| s.staleness_ms);
            cells.push(staleness.map(|ms| ms.to_string()).unwrap_or_default());
            cells.push(number(|s| s.raft_last_index));
            cells.push(number(|s| s.raft_committed_index));
            cells.push(number(|s| s.raft_applied_index));
            cells.push(number(|s| s.raft_snapshot_index));
            cells.push(number(|s| s.records_rejected));
            cells.push(number(|s| s.format.into()));
            cells.push(if replica.voter { "yes" } else { "no" }.to_owned());
        }
        cells.push(replica.endpoint.clone());
        grid.row(cells);
    }
    console.table(&grid)
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
