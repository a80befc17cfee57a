//! `muster server recover`: a cluster begins again from the one replica that is left.
//!
//! What can be lost: nothing that this replica has. An acknowledged write was on a majority of the
//! voters when it was acknowledged, and nobody can know any more whether this replica was in that majority. So all
//! entries that it has are kept, also those that it did not know to be committed, and the last one is named with its
//! time: writes that were acknowledged after that, or only by others, are lost.
//!
//! The previous data directory is kept next to the new one. The archive of the log moves with it: an archive inside
//! the directory is in both, and records that only the old log had are appended to it. Other replicas of the previous
//! generation are refused from here on.
//!
//! **Invariant:** at every moment the data directory is either the old one or the complete new one; an
//! interrupted recovery is taken up by the next.

use bytes::Bytes;
use muster_archive::{Archive, ArchiveError, ArchivedRound, DirectoryStore};
use muster_consensus::offline::{self, OfflineError, Position};
use muster_store::{Identity, ReplicaNode, StoreError};
use muster_types::{ClusterId, LogIndex};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::{ConfigError, ServerConfig};
use super::open::expected;

/// Runs a cluster on from one replica of it, while no replica runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  \
    muster server recover --config /etc/muster/server.toml --lost-majority\n\n\
    Only when a majority of the voters is lost for good. Of several replicas that are left, take the one\n\
    with the highest last log index; without --lost-majority the command only says what it has.\n\
    See ops/runbooks/disaster-recovery.md.")]
pub struct RecoverArgs {
    /// Configuration file of the replica that is left
    #[arg(long, env = "MUSTER_CONFIG")]
    config: PathBuf,
    /// Do it: a majority of the voters is lost for good, and none of them will be started again as it was
    #[arg(long)]
    lost_majority: bool,
}

/// Why a recovery was not made.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This build breaks rules on purpose, and may not do so here.
    #[error(transparent)]
    Planted(#[from] muster_planted::Refusal),
    /// The directory cannot be read.
    #[error("data_dir: {dir} cannot be recovered from")]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: OfflineError,
    },
    /// The directory's identity cannot be read.
    #[error("data_dir: {dir} cannot be recovered from")]
    Identity {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The generations are used up.
    #[error("the cluster has no generation left to begin")]
    Generations,
    /// A directory could not be named or flushed.
    #[error("{operation} {path}")]
    File {
        /// What was being done.
        operation: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// A line for the operator; nobody is left to tell when standard output is gone.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = writeln!(std::io::stdout().lock(), $($words)*);
    }};
}

fn file_error(operation: &'static str, path: &Path, source: std::io::Error) -> RecoverError {
    RecoverError::File { operation, path: path.to_path_buf(), source }
}

/// The name of a directory with a suffix: a sibling of it.
fn with_suffix(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    dir.with_file_name(name)
}

fn rename(from: &Path, to: &Path) -> Result<(), RecoverError> {
    muster_files::rename_durably(from, to).map_err(|source| file_error("renaming", from, source))
}

fn name_time(log_time_ms: u64) -> String {
    let time = i64::try_from(log_time_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| "an unknown time".to_owned(), |time| time.to_string())
}

/// Recovers, or says what could be.
///
/// # Errors
/// Says what is wrong with the directory; nothing was changed then.
pub async fn run(args: RecoverArgs) -> Result<(), RecoverError> {
    let config = ServerConfig::read(&args.config)?;
    muster_planted::admit(&config.data_dir)?;
    let dir = config.data_dir.clone();
    let made = with_suffix(&dir, ".recovered");
    let old_name = |generation: u32| with_suffix(&dir, &format!(".generation-{generation}"));
    if !dir.exists() && made.exists() {
        // Interrupted between the two names.
        rename(&made, &dir)?;
        say!("an interrupted recovery is complete: {} is the new data directory", dir.display());
        return Ok(());
    }
    let identity = expected(&config).map_err(|source| RecoverError::Identity { dir: dir.clone(), source })?;
    let node = config.members[&config.replica_id].clone();
    let read = read(&config, identity).await;
    let (state, held) = read.map_err(|source| RecoverError::Directory { dir: dir.clone(), source })?;
    let old = identity.generation.max(state.generation());
    let generation = old.checked_add(1).ok_or(RecoverError::Generations)?;
    say!("replica {} of cluster {} in {}", config.replica_id, config.cluster_id, dir.display());
    say!("last log index {} of {}", state.log_index(), name_time(state.log_time().0));
    say!(
        "raft: last entry {} of term {}, known to be committed through {}",
        held.last.index,
        held.last.term,
        held.committed_index.map_or_else(|| "nothing".to_owned(), |index| index.to_string()),
    );
    say!(
        "jobs {} waiting, {} placed; nodes {}",
        state.pending_count(),
        state.active_count(),
        state.nodes().len()
    );
    if !args.lost_majority {
        say!("nothing was changed; --lost-majority makes this replica the first of generation {generation}");
        return Ok(());
    }
    // What an interrupted recovery had begun.
    if made.exists() {
        std::fs::remove_dir_all(&made).map_err(|source| file_error("removing", &made, source))?;
    }
    let old_identity = identity;
    let identity = Identity { generation, ..identity };
    let at = Position { term: held.term, index: held.last.index };
    let chunks: Vec<Bytes> = state.snapshot().map(Bytes::from).collect();
    let founded = offline::found_from(&made, identity, node, at, chunks.into_iter()).await;
    founded.map_err(|source| RecoverError::Directory { dir: made.clone(), source })?;
    let history = carry_archive(&config, old_identity, &made).await;
    let kept = old_name(old);
    rename(&dir, &kept)?;
    rename(&made, &dir)?;
    say!("\nrecovered: {} is the only voter of generation {generation}", config.replica_id);
    say!("the previous data directory is kept as {}", kept.display());
    match history {
        Ok(Some(last)) => say!("the archive of the log is moved, through log index {last}"),
        Ok(None) => {}
        // The cluster matters more, and nothing of the old archive is lost.
        Err(error) => {
            say!("the archive of the log was not moved completely: {error}");
            say!("the previous archive is kept in {}", kept.display());
        }
    }
    say!(
        "\nwhat is lost: writes that only other replicas had, at most those after log index {}",
        state.log_index()
    );
    say!("next:");
    say!("  1. muster server --config {}", args.config.display());
    say!("  2. every other replica with an empty data directory: muster server --config … --join");
    say!("  3. muster cluster add ID --region … --peer … --client …   for each of them");
    say!("agents reconnect without help; every earlier lease is void, and its token is refused");
    Ok(())
}

/// Why an archive was not taken along.
#[derive(Debug, thiserror::Error)]
enum CarryError {
    #[error("{dir}: {source}")]
    Directory {
        dir: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the previous log cannot be read: {0}")]
    Log(#[from] OfflineError),
}

/// Takes the archive along into the new directory, where it lies in the old one, and puts what only the log has
/// behind it. The last record it has then; none without an archive.
async fn carry_archive(
    config: &ServerConfig,
    identity: Identity,
    made: &Path,
) -> Result<Option<LogIndex>, CarryError> {
    let Some(archive) = &config.archive else { return Ok(None) };
    let inside = archive.dir.strip_prefix(&config.data_dir).ok();
    let to = inside.map_or_else(|| archive.dir.clone(), |inside| made.join(inside));
    if !archive.dir.exists() {
        return Ok(None);
    }
    let (from, cluster) = (archive.dir.clone(), config.cluster_id);
    let taken = tokio::task::spawn_blocking(move || take_in(&from, &to, cluster, &mut |_, _| {})).await;
    let archive = taken.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    let next = archive.end().map_or(0, |end| end.next_raft);
    let entries = offline::read_entries(&config.data_dir, identity, next).await?;
    let end = entries.last().map_or(next, |entry| entry.raft_index + 1);
    let rounds: Vec<ArchivedRound> = entries.into_iter().filter_map(muster_engine::archived_round).collect();
    let appended = tokio::task::spawn_blocking(move || {
        archive.append(cluster, &rounds, end)?;
        Ok::<_, CarryError>(archive.summary().last)
    });
    appended.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Opens the archive in `to`, with everything that the one in `from` has.
fn take_in(
    from: &Path,
    to: &Path,
    cluster: ClusterId,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Archive, CarryError> {
    let directory_error = |dir: &Path| {
        let dir = dir.to_path_buf();
        move |source| CarryError::Directory { dir, source }
    };
    let store = DirectoryStore::open(to).map_err(directory_error(to))?;
    if from != to {
        let old = DirectoryStore::open_read_only(from).map_err(directory_error(from))?;
        store.take_in(&old, told).map_err(directory_error(to))?;
    }
    Ok(Archive::open(Arc::new(store), Some(cluster))?)
}

/// Takes the archive of another replica, or a copy of one, into the one of a replica that is made from a
/// backup. The first and the last record it has. `told` hears how many bytes of how many are there by now.
///
/// # Errors
/// Says which directory cannot be read or written, or what is wrong with the archive.
pub fn take_archive(
    from: &Path,
    to: &Path,
    cluster: ClusterId,
    told: &mut dyn FnMut(u64, u64),
) -> Result<(Option<LogIndex>, Option<LogIndex>), Box<dyn std::error::Error + Send + Sync>> {
    let summary = take_in(from, to, cluster, told)?.summary();
    Ok((summary.first, summary.last))
}

/// Everything the directory has, as a state.
async fn read(
    config: &ServerConfig,
    identity: Identity,
) -> Result<(std::sync::Arc<muster_state::State>, offline::Held), OfflineError> {
    let (mut replicated, view) = muster_engine::replicated(config.format_max());
    let held = offline::read_everything(&config.data_dir, identity, &mut replicated).await?;
    Ok((view.state(), held))
}

/// Makes the first data directory of a cluster that begins again from a state.
///
/// # Errors
/// When the directory is there already or cannot be written.
pub async fn begin_from(
    config: &ServerConfig,
    state: &muster_state::State,
    generation: u32,
) -> Result<(), OfflineError> {
    let node: ReplicaNode = config.members[&config.replica_id].clone();
    let identity = Identity { cluster_id: config.cluster_id, replica_id: config.replica_id, generation };
    // The first leadership has to be newer than the one the state was made under.
    let term = state.leadership().map_or(0, |leadership| leadership.term);
    let at = Position { term, index: state.log_index().0.max(1) };
    let chunks: Vec<Bytes> = state.snapshot().map(Bytes::from).collect();
    offline::found_from(&config.data_dir, identity, node, at, chunks.into_iter()).await
}
