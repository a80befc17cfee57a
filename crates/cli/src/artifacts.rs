//! `muster artifacts`: files of workers that have ended.

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use muster_blobs::{Store, UnpackError, Unpacking, unpack};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items};
use muster_types::{BlobDigest, limits, quantity};
use muster_wire::v1;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::complete;
use crate::find::{self, Find};
use crate::told::told_while;
use crate::view::recovery::Artifacts;
use crate::workdir::size;

/// `muster artifacts …`.
#[derive(Subcommand)]
pub enum ArtifactsCommand {
    /// Say which files of which workers were kept, and why not all
    #[command(after_help = "\
Examples:
  muster artifacts list job-3f0
  muster artifacts list train -o json

The files are those that `artifacts` in the job names. Of each worker the attempt counts that ended last.")]
    List {
        /// The job's id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
    },
    /// Fetch the files of a job's workers
    #[command(after_help = "\
Examples:
  muster artifacts get job-3f0                      into artifacts-job-3f0/rank-0, rank-1, ...
  muster artifacts get train --rank 0 -d results    of one worker, into results

A directory that exists is left alone. Nothing is written outside of it, whatever a worker has left.")]
    Get {
        /// The job's id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        /// Of this worker only, into the directory itself
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..i64::from(limits::ARTIFACT_WORKERS_MAX)))]
        rank: Option<u32>,
        /// The directory that is made; without it `artifacts-` and the job's id
        #[arg(short = 'd', long = "directory", value_name = "DIR")]
        directory: Option<PathBuf>,
        /// The store of files, which nodes have as files.store: a directory, or s3://BUCKET/PREFIX
        #[arg(long, env = "MUSTER_STORE", value_name = "STORE")]
        store: Option<PathBuf>,
    },
    /// Remove from a bucket what was not used for long, of artifacts and of files that were sent with jobs
    #[command(after_help = "\
Examples:
  muster artifacts expire --older-than 90d --dry-run    how much that is
  muster artifacts expire --older-than 90d

A job whose files are gone fails at its next attempt, so keep them longer than jobs wait and run. Of a store that is a directory, remove \
old files below `objects` with find.")]
    Expire {
        /// For how long it was not used; at least 8d, because a use is recorded once a week
        #[arg(long, value_name = "DURATION", value_parser = age_ms)]
        older_than: u64,
        /// Count only
        #[arg(long)]
        dry_run: bool,
        /// The bucket, s3://BUCKET/PREFIX, which nodes have as files.store
        #[arg(long, env = "MUSTER_STORE", value_name = "STORE")]
        store: Option<PathBuf>,
    },
}

/// The least age of what is removed: longer than a bucket does not record a use.
const AGE_MIN_MS: u64 = 8 * 24 * 3_600_000;

fn age_ms(text: &str) -> Result<u64, String> {
    let ms = quantity::span_ms(text).ok_or_else(|| format!("must be {}", quantity::SPAN_RULE))?;
    if ms < AGE_MIN_MS {
        return Err("must be at least 8d".to_owned());
    }
    Ok(ms)
}

/// The store that is named, else that of the configuration.
fn store_of(global: &Global, store: Option<PathBuf>) -> Result<Store, Failure> {
    let store = match store {
        Some(store) => Some(store),
        None => global.store()?,
    };
    let store = store.ok_or_else(|| {
        Failure::usage("the files are in a store, and none is named").with_next(
            "name what nodes have as files.store: --store STORE, MUSTER_STORE, or `store = \"STORE\"` next to \
             `endpoints` in $XDG_CONFIG_HOME/muster/config.toml (~/.config/muster/config.toml)",
        )
    })?;
    Ok(Store::at(store, &global.bucket()?))
}

fn expire(console: &Console, store: &Store, older_than_ms: u64, dry_run: bool) -> Result<Exit, Failure> {
    let Store::Bucket(bucket) = store else {
        return Err(Failure::usage("the store is no bucket").with_next(
            "name one with --store s3://BUCKET/PREFIX; of a directory, remove old files: find DIR/objects -type f -mtime +90 -delete",
        ));
    };
    let older_than = Duration::from_millis(older_than_ms);
    let expired = told_while(console, "looking at all objects", || bucket.expire(older_than, dry_run));
    let expired = expired.map_err(|error| {
        Failure::new(Exit::Unavailable, error.to_string())
            .with_next("repeat it; what was removed is not looked at again")
    })?;
    let done = if dry_run { "would be removed" } else { "were removed" };
    let (objects, kept) = (expired.objects, expired.kept);
    console.line(&format!("{objects} objects with {} {done}, {kept} stay", size(expired.bytes)))?;
    Ok(Exit::Ok)
}

pub async fn run(global: &Global, console: &Console, command: ArtifactsCommand) -> Result<Exit, Failure> {
    let (id, wanted) = match command {
        ArtifactsCommand::Expire { older_than, dry_run, store } => {
            return expire(console, &store_of(global, store)?, older_than, dry_run);
        }
        ArtifactsCommand::List { id } => (id, None),
        ArtifactsCommand::Get { id, rank, directory, store } => (id, Some((rank, directory, store))),
    };
    let client = global.client().await?;
    match wanted {
        None => list(&client, console, &id).await,
        Some((rank, directory, store)) => {
            let store = store_of(global, store)?;
            get(&client, console, (&id, rank), directory, &store).await
        }
    }
}

/// What is known of a job's artifacts.
async fn known(client: &Client, text: &str) -> Result<(v1::Job, Option<v1::Freshness>), Failure> {
    let job_id = find::resolve(client, text, Find::Newest).await?;
    let answer = client.get_job(v1::GetJobRequest { job_id, read: None }).await?;
    Ok((answer.job.unwrap_or_default(), answer.freshness))
}

fn kept_of(job: &v1::Job) -> Vec<v1::WorkerArtifacts> {
    job.status().history.as_ref().map(|history| history.artifacts.clone()).unwrap_or_default()
}

/// Why not all of them were kept, with the path by which that was seen.
fn fault_of(job: &v1::Job, kept: &v1::WorkerArtifacts) -> String {
    if kept.fault.is_empty() {
        return String::new();
    }
    let paths = job.spec().artifacts.as_ref().map(|rules| rules.paths.as_slice()).unwrap_or_default();
    match paths.get(kept.fault_path as usize) {
        Some(path) => format!("{} {path}", kept.fault),
        None => kept.fault.clone(),
    }
}

/// The list of the files of a worker. Who does not act for the job's tenant is shown a word in its place.
fn list_of(kept: &v1::WorkerArtifacts) -> Result<BlobDigest, Failure> {
    BlobDigest::parse(&kept.digest).map_err(|_| {
        let text = format!("which files of rank {} were kept is shown to the job's tenant alone", kept.rank);
        Failure::new(Exit::Denied, text).with_next("ask with a certificate or a token of that tenant")
    })
}

async fn list(client: &Client, console: &Console, id: &str) -> Result<Exit, Failure> {
    let (job, freshness) = known(client, id).await?;
    let all = kept_of(&job);
    match console.format {
        Format::Json | Format::Yaml => {
            let items: Vec<Artifacts> = all.into_iter().map(Artifacts::from).collect();
            console.object(&Document::new("ArtifactsList", freshness, Items { items }))?;
        }
        Format::Name => {
            for kept in all.iter().filter(|kept| !kept.digest.is_empty()) {
                console.line(&kept.digest)?;
            }
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let mut grid = Grid::new(vec!["RANK", "FILES", "SIZE", "LEFT OUT", "NOT KEPT", "DIGEST"]);
            for kept in &all {
                grid.row(vec![
                    kept.rank.to_string(),
                    kept.files.to_string(),
                    size(kept.bytes),
                    kept.left_out.to_string(),
                    fault_of(&job, kept),
                    kept.digest.clone(),
                ]);
            }
            console.list(
                &grid,
                "no files of its workers have been kept so far; `artifacts` in a job file names those that are",
            )?;
        }
    }
    Ok(Exit::Ok)
}

async fn get(
    client: &Client,
    console: &Console,
    (id, rank): (&str, Option<u32>),
    directory: Option<PathBuf>,
    store: &Store,
) -> Result<Exit, Failure> {
    let (job, _) = known(client, id).await?;
    let wanted: Vec<_> = kept_of(&job)
        .into_iter()
        .filter(|kept| !kept.digest.is_empty() && rank.is_none_or(|rank| rank == kept.rank))
        .collect();
    if wanted.is_empty() {
        let of = rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
        let text = format!("no files{of} of {} were kept", job.id);
        return Err(Failure::new(Exit::NotFound, text).with_next("`muster artifacts list` says why"));
    }
    let lists = wanted.iter().map(list_of).collect::<Result<Vec<BlobDigest>, Failure>>()?;
    let directory = directory.unwrap_or_else(|| PathBuf::from(format!("artifacts-{}", job.id)));
    if directory.symlink_metadata().is_ok() {
        let text = format!("{} exists already", directory.display());
        return Err(Failure::usage(text).with_next("name another one with -d, or remove it"));
    }
    if rank.is_none() {
        std::fs::create_dir(&directory)?;
    }
    for (kept, digest) in wanted.iter().zip(lists) {
        let into = match rank {
            Some(_) => directory.clone(),
            None => directory.join(format!("rank-{}", kept.rank)),
        };
        let what = format!("fetching {} of rank {}", size(kept.bytes), kept.rank);
        told_while(console, &what, || fetch(store, digest, &into, kept.bytes)).inspect_err(|_| {
            // It stays where others of its workers' files are in it, and goes where the first ones could not be had.
            if rank.is_none() {
                let _ = std::fs::remove_dir(&directory);
            }
        })?;
        console.progress(&format!("{}: {} files with {}", into.display(), kept.files, size(kept.bytes)));
        let fault = fault_of(&job, kept);
        if !fault.is_empty() {
            console.progress(&format!("rank {}: not all of its files were kept: {fault}", kept.rank));
        }
    }
    console.line(&directory.display().to_string())?;
    Ok(Exit::Ok)
}

/// Makes the directory with all files of one worker, or leaves nothing of it.
fn fetch(store: &Store, digest: BlobDigest, into: &Path, bytes_max: u64) -> Result<(), Failure> {
    let asked = Unpacking { digest, into, bytes_max, owner: None, is_given_up: &|| false };
    unpack(store, &asked).map_err(|error| {
        // It was made here.
        let _ = std::fs::remove_dir_all(into);
        let exit = match &error {
            UnpackError::Blob(_) => Exit::Unavailable,
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("{}: {error}", into.display()))
            .with_next("name the store that the job's nodes have as files.store with --store: a directory where this machine has it mounted, or the bucket")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_another_tenant_are_refused_before_anything_is_made() {
        let kept = |digest: &str| v1::WorkerArtifacts { digest: digest.to_owned(), ..Default::default() };
        let digest = BlobDigest::new([7; 32]);
        assert!(list_of(&kept(&digest.to_string())).is_ok_and(|list| list == digest));
        let refused = list_of(&kept("redacted")).expect_err("it is no digest");
        assert!(refused.headline().contains("the job's tenant"), "{}", refused.headline());
    }

    #[test]
    fn a_fault_names_the_path_of_the_job() {
        let mut job = v1::Job::default();
        job.spec_mut().artifacts =
            Some(v1::ArtifactRules { paths: vec!["a".to_owned(), "out/*".to_owned()], required: false });
        let fault = |fault: &str, fault_path| {
            fault_of(&job, &v1::WorkerArtifacts { fault: fault.to_owned(), fault_path, ..Default::default() })
        };
        assert_eq!(fault("", 1), "");
        assert_eq!(fault("NOT_FOUND", 1), "NOT_FOUND out/*");
        assert_eq!(fault("NO_STORE", 9), "NO_STORE");
    }
}
