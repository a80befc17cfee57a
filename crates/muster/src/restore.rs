//! `muster backup restore`: the data directory of the first replica of a cluster that begins from a backup.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_archive::{Archive, DirectoryStore};
use muster_cli::{RestoreArgs, read_backup, show_backup, with_causes};
use muster_console::{Console, Exit, Failure};
use muster_server::ServerConfig;

/// Between two lines of progress.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Makes the data directory of a first replica from a backup.
pub async fn restore(console: &Console, args: RestoreArgs) -> Result<Exit, Failure> {
    let config = ServerConfig::read(&args.config).map_err(|error| with_causes(Exit::Usage, &error))?;
    if args.replica_id.is_some_and(|id| id != config.replica_id.0) {
        let text = format!("{} is of replica {}", args.config.display(), config.replica_id.0);
        return Err(Failure::usage(text));
    }
    let (header, verified, state) = read_backup(console, &args.from)?;
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
    muster_planted::admit(&config.data_dir).map_err(|error| with_causes(Exit::Conflict, &error))?;
    let begun = muster_server::begin_from(&config, &state, generation).await;
    begun.map_err(|error| {
        with_causes(Exit::Conflict, &error).with_next("restore into a data directory that holds no replica")
    })?;
    let dir = config.data_dir.display();
    if let Some((from, to)) = history {
        let mut told_at = Instant::now();
        let mut told = |here: u64, all: u64| {
            if told_at.elapsed() >= TOLD_EVERY {
                told_at = Instant::now();
                console.progress(&format!("history: {} of {} MiB", here >> 20, all >> 20));
            }
        };
        let taken = muster_server::take_archive(from, to, config.cluster_id, &mut told).map_err(|error| {
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
    show_backup(console, &args.from, header, verified, Some(&state))
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
    let opened = opened.map_err(|error| with_causes(Exit::Conflict, &error))?;
    if opened.summary().segments == 0 {
        let text = format!("{} holds no segment of a log", from.display());
        return Err(
            Failure::new(Exit::NotFound, text).with_next("name the directory that has `segments` in it")
        );
    }
    Ok(Some((from, &archive.dir)))
}
