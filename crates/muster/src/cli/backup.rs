//! `muster backup …`.
//!
//! **Invariant:** what `verify` has not read as a consistent state of its own digest, `restore` does not
//! take; neither changes the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use muster_archive::{Archive, DirectoryStore};
use muster_backup::{BackupError, BackupHeader, BackupReader, BackupWriter, Verified};
use muster_console::{Console, Document, Exit, Failure, Format, Global, time};
use muster_server::{ServerConfig, now_ms};
use muster_state::State;
use muster_types::ClusterId;
use muster_wire::admin;

use super::view;

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
    /// Make the data folder of the first replica of a cluster that begins anew from a file
    #[command(after_help = "\
Examples:
  muster backup restore --from a.backup --config server.toml
  muster backup restore --from a.backup --config server.toml --archive /mnt/old/archive

Then start it with `muster server --config server.toml`, and take the others in with `muster cluster add`.
The cluster begins a new generation: every lease and token of before is over, and replicas of before are
refused. Everything after the backup is lost, so first see whether a replica is left (`muster server recover`).")]
    Restore(RestoreArgs),
}

/// Options of `muster backup restore`.
#[derive(Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The configuration of the replica; its data folder must not hold one yet
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The generation to begin, above every one the cluster has had [default: the backup's and one].
    /// Say it when this or a later backup was restored before
    #[arg(long, value_name = "N")]
    generation: Option<u32>,
    /// The archive of a replica of before, or a copy of one: history goes on behind it. Objects are shared with
    /// that folder where the disk is the same, else copied
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// The replica the configuration is of, to be sure
    #[arg(long, value_name = "ID")]
    replica_id: Option<u64>,
}

pub async fn run(global: &Global, console: &Console, command: BackupCommand) -> Result<Exit, Failure> {
    match command {
        BackupCommand::Create { out } => create(global, console, &out).await,
        BackupCommand::Verify { file } => {
            let (header, verified, state) = check(&file)?;
            show(console, &file, header, verified, Some(&state))
        }
        BackupCommand::Restore(args) => restore(console, args).await,
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
    while let Some(piece) = backup.next().await? {
        // One reader and one disk: nothing else waits on this thread.
        writer.write(&piece).map_err(refused)?;
    }
    let written = writer.finish().map_err(refused)?;
    let verified = Verified { pieces: written.pieces, bytes: written.bytes };
    show(console, out, header, verified, None)
}

fn header(sent: &admin::BackupHeader) -> Result<BackupHeader, Failure> {
    let strange =
        |what: &str| Failure::new(Exit::Failed, format!("the replica sent a backup with a wrong {what}"));
    Ok(BackupHeader {
        cluster_id: sent.cluster_id.parse::<ClusterId>().map_err(|_| strange("cluster id"))?,
        cluster_generation: sent.cluster_generation,
        log_index: sent.log_index,
        log_time_ms: sent.log_time_ms,
        state_digest: u64::from_str_radix(&sent.state_digest, 16).map_err(|_| strange("digest"))?,
        format: u16::try_from(sent.format).map_err(|_| strange("format"))?,
        replica_id: sent.replica_id,
        created_at_ms: now_ms(),
        version: sent.version.clone(),
    })
}

/// Reads a whole backup: every checksum, and the state with its digest and its invariants.
fn check(path: &Path) -> Result<(BackupHeader, Verified, State), Failure> {
    let mut reader = BackupReader::open(path).map_err(refused)?;
    let header = reader.header().clone();
    let mut pieces = Vec::new();
    for piece in reader.by_ref() {
        pieces.push(piece.map_err(refused)?);
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

async fn restore(console: &Console, args: RestoreArgs) -> Result<Exit, Failure> {
    let config = ServerConfig::read(&args.config).map_err(|error| chain(Exit::Usage, &error))?;
    if args.replica_id.is_some_and(|id| id != config.replica_id.0) {
        let text = format!("{} is of replica {}", args.config.display(), config.replica_id.0);
        return Err(Failure::usage(text));
    }
    let (header, verified, state) = check(&args.from)?;
    if header.cluster_id != config.cluster_id {
        let text = format!(
            "the backup is of cluster {}, the configuration of {}",
            header.cluster_id, config.cluster_id
        );
        return Err(Failure::new(Exit::Conflict, text).with_next("set cluster_id to the backup's"));
    }
    let history = old_archive(&config, args.archive.as_deref())?;
    let least = header.cluster_generation.saturating_add(1);
    let generation = args.generation.unwrap_or(least);
    if generation < least {
        return Err(Failure::usage(format!("--generation must be {least} or more, got {generation}")));
    }
    muster_planted::admit(&config.data_dir).map_err(|error| chain(Exit::Conflict, &error))?;
    let begun = muster_server::begin_from(&config, &state, generation).await;
    begun.map_err(|error| {
        chain(Exit::Conflict, &error).with_next("restore into a data folder that holds no replica")
    })?;
    let dir = config.data_dir.display();
    if let Some((from, to)) = history {
        let taken = muster_server::take_archive(from, to, config.cluster_id).map_err(|error| {
            Failure::new(Exit::Failed, format!("{dir} is restored, but without its history: {error}"))
                .with_next(format!("copy {} to {} before the first start", from.display(), to.display()))
        })?;
        let last = taken.1.map_or_else(|| "nothing".to_owned(), |last| last.to_string());
        console.progress(&format!("{} has history through log index {last}", to.display()));
    }
    console.progress(&format!(
        "{dir} is the first replica of generation {generation}; next: muster server --config {}",
        args.config.display()
    ));
    show(console, &args.from, header, verified, Some(&state))
}

/// An archive that is to be taken along, and where to; looked at before anything is made.
fn old_archive<'a>(
    config: &'a ServerConfig,
    from: Option<&'a Path>,
) -> Result<Option<(&'a Path, &'a Path)>, Failure> {
    let Some(from) = from else { return Ok(None) };
    let Some(archive) = &config.archive else {
        return Err(Failure::usage("the configuration says that no archive is kept, so none is taken along"));
    };
    let store = DirectoryStore::open_read_only(from).map_err(|error| {
        Failure::new(Exit::NotFound, format!("{} cannot be opened: {error}", from.display()))
    })?;
    let opened = Archive::open(Arc::new(store), Some(config.cluster_id));
    let opened = opened.map_err(|error| chain(Exit::Conflict, &error))?;
    if opened.summary().segments == 0 {
        let text = format!("{} holds no segment of a log", from.display());
        return Err(Failure::new(Exit::NotFound, text).with_next("name the folder that has `segments` in it"));
    }
    Ok(Some((from, &archive.dir)))
}

fn show(
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
        Format::Table | Format::Wide | Format::Html => {
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

fn chain(exit: Exit, error: &dyn std::error::Error) -> Failure {
    let mut details = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        details.push(inner.to_string());
        cause = inner.source();
    }
    Failure::new(exit, error.to_string()).with_details(details)
}

/// A backup that was not written or not accepted, with what to do.
fn refused(error: BackupError) -> Failure {
    let (exit, next) = match &error {
        BackupError::Exists { .. } => (Exit::Conflict, "a backup never replaces a file; give another name"),
        BackupError::Damaged { .. } => (Exit::Failed, "take another backup; this one must not be restored"),
        BackupError::Newer { .. } => (Exit::Failed, "use the release that wrote it"),
        BackupError::Foreign { .. } => (Exit::Usage, "give a file that `muster backup create` wrote"),
        BackupError::File { .. } => (Exit::Failed, "see that the folder is there, writable and has room"),
    };
    chain(exit, &error).with_next(next)
}
