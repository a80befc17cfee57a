//! `muster backup …`.
//!
//! **Invariant:** what `verify` has not read as a consistent state with the digest that the file states, `restore`
//! does not take; neither changes the file.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use muster_archive::backup::{BackupError, BackupHeader, BackupReader, BackupWriter, Verified};
use muster_console::{Console, Document, Exit, Failure, Format, Global, time};
use muster_manifest::quantity::show_bytes;
use muster_state::State;
use muster_types::ClusterId;
use muster_wire::admin;
use muster_wire::time::unix_ms;

use crate::job_files::now_ms;
use crate::{Program, view};

/// Between two lines of progress.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Bytes that were read or written, which are told while that lasts.
struct Progress<'a> {
    console: &'a Console,
    verb: &'static str,
    bytes: u64,
    told_at: Instant,
}

impl<'a> Progress<'a> {
    fn new(console: &'a Console, verb: &'static str) -> Progress<'a> {
        Progress { console, verb, bytes: 0, told_at: Instant::now() }
    }

    fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if let Some(line) = self.line(self.told_at.elapsed()) {
            self.told_at = Instant::now();
            self.console.progress(&line);
        }
    }

    /// The next line of progress; none as long as the line before is recent.
    fn line(&self, since: Duration) -> Option<String> {
        (since >= TOLD_EVERY).then(|| format!("{} {}", self.verb, show_bytes(self.bytes)))
    }
}

/// Commands about backups.
#[derive(Subcommand)]
pub enum BackupCommand {
    /// Save one consistent state of the running cluster into a file
    #[command(after_help = "\
Examples:
  muster backup create --out /backups/muster-$(date +%F).backup
  muster --endpoint follower:7401 backup create --out a.backup     from that replica

The cluster serves on meanwhile. The file appears under its name when it is complete and flushed.")]
    Create {
        /// The file; it must not exist
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Check a file, byte by byte, and the state in it; needs no cluster
    #[command(
        after_help = "Examples:\n  muster backup verify a.backup\n  muster backup verify a.backup -o json"
    )]
    Verify {
        /// The file
        file: PathBuf,
    },
    /// Make the data directory of the first replica of a cluster that begins again from a file
    #[command(after_help = "\
Examples:
  muster backup restore --from a.backup --config server.toml
  muster backup restore --from a.backup --config server.toml --archive /mnt/old/archive

Then start it with `muster server --config server.toml`, and take the others in with `muster cluster add`.
The cluster begins a new generation: every earlier lease and token is over, and replicas of earlier generations are
refused. Everything after the backup is lost, so first see whether a replica is left (`muster server recover`).")]
    Restore(RestoreArgs),
}

/// Options of `muster backup restore`.
#[derive(Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// The configuration of the replica; its data directory must not hold one yet
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The generation to begin, above every one the cluster has had [default: the backup's and one].
    /// Say it when this or a later backup was restored before
    #[arg(long, value_name = "N")]
    pub generation: Option<u32>,
    /// The archive of a replica of an earlier generation, or a copy of one: history goes on behind it. Objects are
    /// shared with that directory where the disk is the same, else copied
    #[arg(long, value_name = "DIR")]
    pub archive: Option<PathBuf>,
    /// The replica the configuration is of, to be sure
    #[arg(long, value_name = "ID")]
    pub replica_id: Option<u64>,
}

/// Makes the data directory of a first replica from a backup. A program that contains a replica has it.
pub type Restore =
    for<'a> fn(&'a Console, RestoreArgs) -> Pin<Box<dyn Future<Output = Result<Exit, Failure>> + 'a>>;

pub async fn run(
    program: &Program,
    global: &Global,
    console: &Console,
    command: BackupCommand,
) -> Result<Exit, Failure> {
    match command {
        BackupCommand::Create { out } => create(global, console, &out).await,
        BackupCommand::Verify { file } => {
            let (header, verified, state) = read_backup(console, &file)?;
            show_backup(console, &file, header, verified, Some(&state))
        }
        BackupCommand::Restore(args) => (program.restore)(console, args).await,
    }
}

async fn create(global: &Global, console: &Console, out: &Path) -> Result<Exit, Failure> {
    if out.symlink_metadata().is_ok() {
        return Err(refused(BackupError::Exists { path: out.to_path_buf() }));
    }
    let client = global.client().await?;
    let mut backup = client.create_backup(admin::CreateBackupRequest::default()).await?;
    let header = header(backup.header())?;
    let mut writer = BackupWriter::create(out, &header).map_err(refused)?;
    let mut progress = Progress::new(console, "written:");
    while let Some(piece) = backup.next().await? {
        // One reader and one disk: nothing else waits on this thread.
        writer.write(&piece).map_err(refused)?;
        progress.add(&piece);
    }
    let written = writer.finish().map_err(refused)?;
    let verified = Verified { pieces: written.pieces, bytes: written.bytes };
    show_backup(console, out, header, verified, None)
}

fn header(sent: &admin::BackupHeader) -> Result<BackupHeader, Failure> {
    let strange =
        |what: &str| Failure::new(Exit::Failed, format!("the replica sent a backup with a wrong {what}"));
    Ok(BackupHeader {
        cluster_id: sent.cluster_id.parse::<ClusterId>().map_err(|_| strange("cluster id"))?,
        cluster_generation: sent.cluster_generation,
        log_index: sent.log_index,
        log_time_ms: unix_ms(sent.log_time).unwrap_or_default(),
        state_digest: u64::from_str_radix(&sent.state_digest, 16).map_err(|_| strange("digest"))?,
        format: u16::try_from(sent.record_format).map_err(|_| strange("format"))?,
        replica_id: sent.replica_id,
        created_at_ms: now_ms(),
        version: sent.version.clone(),
    })
}

/// Reads a whole backup: every checksum, and the state with its digest and its invariants.
///
/// # Errors
/// The backup is damaged, or is not a state to restore.
pub fn read_backup(console: &Console, path: &Path) -> Result<(BackupHeader, Verified, State), Failure> {
    let mut reader = BackupReader::open(path).map_err(refused)?;
    let header = reader.header().clone();
    let mut pieces = Vec::new();
    let mut progress = Progress::new(console, "read:");
    for piece in reader.by_ref() {
        let piece = piece.map_err(refused)?;
        progress.add(&piece);
        pieces.push(piece);
    }
    let Some(verified) = reader.verified() else {
        return Err(Failure::new(Exit::Failed, format!("{} has no end", path.display())));
    };
    let broken = |why: String| {
        Failure::new(Exit::Failed, format!("{} is not a state to restore: {why}", path.display()))
    };
    let state = State::restore(pieces.iter()).map_err(|error| broken(error.to_string()))?;
    let found = (state.digest(), state.log_index().0, state.generation(), state.format());
    let said = (header.state_digest, header.log_index, header.cluster_generation, header.format);
    if found != said || state.cluster().map(|cluster| cluster.cluster) != Some(header.cluster_id) {
        return Err(broken("its header is of another state".to_owned()));
    }
    Ok((header, verified, state))
}

/// Prints what a backup holds.
///
/// # Errors
/// The output cannot be written.
pub fn show_backup(
    console: &Console,
    path: &Path,
    header: BackupHeader,
    verified: Verified,
    state: Option<&State>,
) -> Result<Exit, Failure> {
    let backup = view::Backup {
        file: path.display().to_string(),
        cluster_id: header.cluster_id.to_string(),
        cluster_generation: header.cluster_generation,
        backup_log_index: header.log_index,
        log_time: time(header.log_time_ms),
        state_digest: format!("{:016x}", header.state_digest),
        format: header.format,
        replica: header.replica_id,
        version: header.version,
        pieces: verified.pieces,
        bytes: verified.bytes,
        jobs: state
            .map(|state| (state.pending_count() + state.active_count() + state.finished_count()) as u64),
        nodes: state.map(|state| state.nodes().len() as u64),
    };
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("Backup", None::<u64>, backup))?,
        Format::Name => console.line(&backup.file)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.line(&format!(
                "{}: cluster {} generation {} at log index {} ({})",
                backup.file,
                backup.cluster_id,
                backup.cluster_generation,
                backup.backup_log_index,
                backup.log_time.as_deref().unwrap_or("unknown time"),
            ))?;
            console.line(&format!(
                "digest {}, format {}, {} bytes in {} pieces, from replica {} ({})",
                backup.state_digest,
                backup.format,
                backup.bytes,
                backup.pieces,
                backup.replica,
                backup.version
            ))?;
            if let (Some(jobs), Some(nodes)) = (backup.jobs, backup.nodes) {
                console.line(&format!(
                    "verified: {jobs} jobs, {nodes} nodes, every checksum and invariant holds"
                ))?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// An error with a line for each of its causes.
#[must_use]
pub fn with_causes(exit: Exit, error: &dyn std::error::Error) -> Failure {
    Failure::of_error(exit, error)
}

/// A backup that was not written or not accepted, with what to do.
fn refused(error: BackupError) -> Failure {
    let (exit, next) = match &error {
        BackupError::Exists { .. } => (Exit::Conflict, "a backup never replaces a file; give another name"),
        BackupError::Damaged { .. } => (Exit::Failed, "take another backup; this one must not be restored"),
        BackupError::Newer { .. } => (Exit::Failed, "use the release that wrote it"),
        BackupError::Foreign { .. } => (Exit::Usage, "give a file that `muster backup create` wrote"),
        BackupError::File { .. } => {
            (Exit::Failed, "see that the directory is there, is writable and has free space")
        }
    };
    with_causes(exit, &error).with_next(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_each_second_and_no_sooner() {
        let console = Console::new(Format::Table, true, true);
        let mut progress = Progress::new(&console, "read:");
        progress.add(&[0; 2_048]);
        assert_eq!(progress.line(Duration::from_millis(999)), None);
        assert_eq!(progress.line(TOLD_EVERY), Some(format!("read: {}", show_bytes(2_048))));
    }
}
