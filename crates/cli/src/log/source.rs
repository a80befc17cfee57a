//! Where a log is read from: archives at hand, the replicas of a cluster, or the first and what is behind it.
//!
//! **Invariant:** an archive at hand is only read. What comes from a replica is kept in memory above it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use muster_archive::{
    Archive, ArchivedRound, DirectoryStore, JoinedStores, MemoryStore, ObjectStore, RaftPosition,
};
use muster_client::Client;
use muster_console::{Console, Exit, Failure, Global};
use muster_types::{ClusterId, LogIndex, ReplicaId};

use super::PROGRESS_INTERVAL;
use super::archive::{failure, open};

/// Bytes of a log that are taken from replicas for one command.
const LOG_BYTES_MAX: u64 = 512 << 20;

/// Options of commands that read a log.
#[derive(Args, Clone, Debug, Default)]
pub struct SourceArgs {
    /// An archive directory, or the data directory that it is in; repeat the option to read what was moved elsewhere too
    /// [default: the log of the cluster, from a replica]
    #[arg(long, value_name = "DIR")]
    pub archive: Vec<PathBuf>,
    /// Go on behind the archive with the records that are in no segment of it yet, from a replica of its cluster
    #[arg(long, requires = "archive")]
    pub tail: bool,
}

/// A log that can be read, and which part of it comes from where.
pub struct LogSource {
    /// The log.
    pub archive: Arc<Archive>,
    /// A sentence on each part; none for an archive at hand alone.
    pub notes: Vec<String>,
}

impl SourceArgs {
    /// Opens what the options name.
    pub async fn open(&self, global: &Global, console: &Console) -> Result<LogSource, Failure> {
        if !self.archive.is_empty() && !self.tail {
            return self.open_at_hand();
        }
        let client = global.client().await?;
        from_cluster(&client, console, &self.directories()?).await
    }

    /// The archive at hand alone.
    pub fn open_at_hand(&self) -> Result<LogSource, Failure> {
        Ok(LogSource { archive: open(&self.directories()?)?, notes: Vec::new() })
    }

    fn directories(&self) -> Result<Vec<PathBuf>, Failure> {
        self.archive.iter().map(|dir| archive_in(dir)).collect()
    }
}

/// A data directory has the archive in it.
fn archive_in(dir: &Path) -> Result<PathBuf, Failure> {
    if dir.is_file() {
        let text = format!("{} is a file: a backup holds one state, and no time passes in it", dir.display());
        return Err(
            Failure::new(Exit::Usage, text).with_next("name an archive or the data directory of a replica")
        );
    }
    let within = dir.join("archive");
    Ok(if !dir.join("segments").exists() && within.join("segments").exists() {
        within
    } else {
        dir.to_owned()
    })
}

/// What is in these directories, and behind that what the replica that answers has.
async fn from_cluster(client: &Client, console: &Console, dirs: &[PathBuf]) -> Result<LogSource, Failure> {
    let mut stores: Vec<Arc<dyn ObjectStore>> = Vec::new();
    for dir in dirs {
        let store = DirectoryStore::open_read_only(dir).map_err(|error| {
            Failure::new(Exit::NotFound, format!("{} cannot be opened: {error}", dir.display()))
        })?;
        stores.push(Arc::new(store));
    }
    let store = MemoryStore::above(Arc::new(JoinedStores::new(stores)));
    let archive = Archive::open(Arc::new(store), None).map_err(|error| failure(&error))?;
    let info = client.get_server_info().await?;
    let cluster: ClusterId = info.cluster_id.parse().map_err(|_| {
        Failure::new(Exit::Failed, format!("replica {} does not say of which cluster it is", info.replica_id))
    })?;
    check(&archive, cluster, info.generation)?;
    let newest = client.get_archive_status().await?.newest_log_index;
    let end = archive.end().unwrap_or_default();
    let (rounds, next) = rounds_behind(client, console, end, newest).await?;
    archive.append(cluster, &rounds, next).map_err(|error| failure(&error))?;
    let summary = archive.summary();
    let Some(last) = summary.last else {
        return Err(Failure::new(Exit::NotFound, "the log of the cluster has no record yet"));
    };
    let parts = (summary.first.unwrap_or_default(), end.sequence.log_index, last);
    let notes = notes(parts, LogIndex(newest), info.replica_id);
    Ok(LogSource { archive: Arc::new(archive), notes })
}

/// Which part of a log comes from where: its first record, the last one of the archive and the last one of all.
fn notes(
    (first, before, last): (LogIndex, LogIndex, LogIndex),
    newest: LogIndex,
    replica: u64,
) -> Vec<String> {
    let mut notes = Vec::new();
    if before > LogIndex::ZERO {
        notes.push(format!("records {first} to {before} are those of the archive"));
    }
    notes.push(match last > before {
        true => format!(
            "records {} to {last} are those of the cluster, as replica {replica} has them",
            before.next()
        ),
        false => format!("replica {replica} has no record behind the archive"),
    });
    if last < newest {
        notes.push(format!(
            "records {} to {newest} are not in it: the replica that answered did not have them yet; repeat the command",
            last.next()
        ));
    }
    notes
}

/// The archive is of this cluster, and of its generation.
fn check(archive: &Archive, cluster: ClusterId, generation: u32) -> Result<(), Failure> {
    if let Some(found) = archive.cluster().filter(|found| *found != cluster) {
        let text = format!("the archive is of cluster {found}, and the replica is of cluster {cluster}");
        return Err(Failure::usage(text).with_next("name the archive and the endpoint of one cluster"));
    }
    match archive.end() {
        Some(end) if end.generation != generation => {
            let text = format!(
                "the archive ends in generation {}, and the cluster is in generation {generation}",
                end.generation
            );
            Err(Failure::usage(text).with_next("name the archive of a replica of the present generation"))
        }
        _ => Ok(()),
    }
}

/// The rounds behind a place, up to a record, and the Raft entry that the next one begins at.
async fn rounds_behind(
    client: &Client,
    console: &Console,
    end: RaftPosition,
    newest: u64,
) -> Result<(Vec<ArchivedRound>, u64), Failure> {
    let mut rounds = Vec::new();
    let (mut from, mut bytes) = (end.next_raft, 0u64);
    // Rounds of a leadership that had ended have positions that are no records.
    let mut place = end;
    let mut told_at = Instant::now();
    while place.sequence.log_index.0 < newest {
        let (some, next) = client.read_rounds(from).await?;
        for round in some {
            bytes = bytes.saturating_add(round.payload.len() as u64);
            let round = ArchivedRound {
                raft_index: round.raft_index,
                term: round.term,
                leader: ReplicaId(round.leader_id),
                payload: round.payload.into(),
            };
            place.step(&round).map_err(|error| failure(&error))?;
            rounds.push(round);
        }
        if bytes > LOG_BYTES_MAX {
            let text = format!("the cluster has more than {} MiB of log behind this", LOG_BYTES_MAX >> 20);
            return Err(Failure::new(Exit::Failed, text).with_next(
                "name the archive of a replica with --archive, and --tail for what is behind it",
            ));
        }
        if next <= from {
            break;
        }
        from = next;
        if told_at.elapsed() >= PROGRESS_INTERVAL {
            told_at = Instant::now();
            console.progress(&format!("record {} of {newest}", place.sequence.log_index));
        }
    }
    Ok((rounds, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_has_its_archive_in_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(archive_in(dir.path()).unwrap(), dir.path());
        std::fs::create_dir_all(dir.path().join("archive/segments")).unwrap();
        assert_eq!(archive_in(dir.path()).unwrap(), dir.path().join("archive"));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(archive_in(file.path()).is_err());
    }

    #[test]
    fn a_log_says_where_its_parts_come_from_and_what_is_not_in_it() {
        let notes = |first, before, last, newest| {
            notes((LogIndex(first), LogIndex(before), LogIndex(last)), LogIndex(newest), 3)
        };
        assert_eq!(notes(1, 0, 9, 9), ["records 1 to 9 are those of the cluster, as replica 3 has them"]);
        let both = notes(4, 6, 9, 9);
        assert_eq!(both[0], "records 4 to 6 are those of the archive");
        assert_eq!(both[1], "records 7 to 9 are those of the cluster, as replica 3 has them");
        assert_eq!(notes(4, 6, 6, 6)[1], "replica 3 has no record behind the archive");
        assert!(notes(4, 6, 8, 9)[2].starts_with("records 9 to 9 are not in it"));
    }

    #[test]
    fn another_cluster_and_another_generation_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        crate::report::archives::archive(dir.path());
        let archive = open(&[dir.path().to_owned()]).unwrap();
        assert!(check(&archive, ClusterId(0xa1), 1).is_ok());
        let headline = |cluster, generation| {
            check(&archive, ClusterId(cluster), generation).unwrap_err().headline().to_owned()
        };
        assert!(headline(0xa2, 1).starts_with("the archive is of cluster"));
        assert!(headline(0xa1, 2).starts_with("the archive ends in generation 1"));
    }
}
