//! `--workdir`: the files of a directory go into the store that nodes have too, and the job names them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use muster_blobs::{BlobError, PackError, Packed, Progress, Store};
use muster_console::{Console, Exit, Failure, Global};
use muster_manifest::Manifest;
use muster_types::blob::{HAS_STORE, STORE_LABEL};
use muster_types::bucket::BucketConfig;
use muster_wire::v1;

use crate::told::told_while;

/// Between two lines of progress.
const TELL: Duration = Duration::from_secs(2);

/// Options for the files of jobs.
#[derive(Args)]
pub struct WorkdirArgs {
    /// Send the files of this directory, in which each worker starts; .musterignore and .gitignore say what stays here
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// The store of files, which nodes have as files.store: a directory, or s3://BUCKET/PREFIX; for --workdir
    #[arg(long, env = "MUSTER_STORE", value_name = "STORE")]
    pub store: Option<PathBuf>,
}

/// Files that jobs are to have.
pub struct Workdir {
    packed: Packed,
    store: Option<PathBuf>,
    bucket: BucketConfig,
}

impl WorkdirArgs {
    /// Lists the files and has the jobs name them; nothing is sent yet. None where no directory is given.
    pub fn apply(
        &self,
        global: &Global,
        console: &Console,
        manifests: &mut [Manifest],
    ) -> Result<Option<Workdir>, Failure> {
        for manifest in manifests.iter_mut().filter(|job| job.message.spec().artifacts.is_some()) {
            select_store(manifest.message.spec_mut());
        }
        let Some(directory) = &self.workdir else { return Ok(None) };
        let has = |of: fn(&v1::JobSpec) -> bool| manifests.iter().any(|job| of(job.message.spec()));
        if has(|spec| !spec.working_directory.is_empty()) {
            return Err(Failure::usage("the job names a working directory, and --workdir is one")
                .with_next("leave out either workingDirectory in the file (--directory) or --workdir"));
        }
        if has(|spec| spec.workdir.is_some()) {
            return Err(Failure::usage("the job names the files of a directory already")
                .with_next("leave out either workdir in the file or --workdir"));
        }
        let packed = told_while(console, "reading the files", || muster_blobs::pack(directory));
        let packed = packed.map_err(unpacked)?;
        for manifest in manifests {
            let spec = manifest.message.spec_mut();
            spec.workdir = Some(v1::Workdir { digest: packed.digest().to_string() });
            select_store(spec);
        }
        let store = match &self.store {
            Some(store) => Some(store.clone()),
            None => global.store()?,
        };
        Ok(Some(Workdir { packed, store, bucket: global.bucket()? }))
    }
}

/// Other nodes could not have the files, or keep any.
fn select_store(spec: &mut v1::JobSpec) {
    let label = spec.node_selector.entry(STORE_LABEL.to_owned());
    label.or_insert_with(|| v1::LabelValues { values: vec![HAS_STORE.to_owned()] });
}

impl Workdir {
    /// Sends what the store does not have.
    pub fn send(&self, console: &Console) -> Result<(), Failure> {
        let Some(store) = &self.store else {
            return Err(Failure::usage("--workdir needs a store, and none is named").with_next(
                "name what nodes have as files.store: --store STORE, MUSTER_STORE, or `store = \"STORE\"` next to \
                 `endpoints` in $XDG_CONFIG_HOME/muster/config.toml (~/.config/muster/config.toml)",
            ));
        };
        let store = Store::open_or_make(store.clone(), &self.bucket, records());
        let store = store.map_err(|error| unstored(&error))?;
        let mut last = Instant::now();
        let sent = self.packed.send(&store, &mut |progress| {
            if last.elapsed() >= TELL {
                last = Instant::now();
                console.progress(&so_far(progress));
            }
        });
        let sent = sent.map_err(unpacked)?;
        let Progress { files, bytes, files_sent, bytes_sent, .. } = sent;
        let which = match files_sent {
            0 => "the store has all of them".to_owned(),
            all if all == files => "all of them were sent".to_owned(),
            some => format!("{some} with {} were sent, the store had the others", size(bytes_sent)),
        };
        console.progress(&format!("{}: {files} files with {}; {which}", self.packed.digest(), size(bytes)));
        Ok(())
    }
}

/// Where it is on record what a bucket has of a large file whose sending was interrupted: `$XDG_CACHE_HOME/muster/uploads`, or below
/// `~/.cache`.
fn records() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("muster").join("uploads"))
}

fn so_far(progress: &Progress) -> String {
    format!("the store has {} of {}", size(progress.bytes_done), size(progress.bytes))
}

pub fn size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} bytes"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn unpacked(error: PackError) -> Failure {
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    match &error {
        PackError::Send { error: BlobError::Changed, .. } => Failure::new(Exit::Conflict, error.to_string())
            .with_next("submit again when nothing changes the directory; what was sent is not sent again"),
        PackError::Send { .. } => Failure::new(Exit::Unavailable, error.to_string())
            .with_next("submit again; what was sent is not sent again"),
        _ => Failure::usage(format!("--workdir: {error}")).with_details(cause),
    }
}

fn unstored(error: &BlobError) -> Failure {
    Failure::usage(format!("--store: {error}"))
        .with_next("name what nodes have as files.store: the directory, where this machine has it mounted, or the bucket")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifests(spec: &str) -> Vec<Manifest> {
        let file = format!(
            "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {{name: a, tenant: t}}\nspec: {{command: [a]{spec}}}\n"
        );
        muster_manifest::parse(file.as_bytes(), 0).expect("it is a job")
    }

    fn asked(directory: &std::path::Path) -> WorkdirArgs {
        WorkdirArgs { workdir: Some(directory.to_owned()), store: Some(directory.join("store")) }
    }

    fn global() -> Global {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            global: Global,
        }
        <Line as clap::Parser>::parse_from(["muster"]).global
    }

    fn console() -> Console {
        Console::new(muster_console::Format::Table, true, true)
    }

    #[test]
    fn a_job_names_the_files_and_goes_to_nodes_with_the_store() {
        let scratch = tempfile::tempdir().expect("a directory");
        std::fs::write(scratch.path().join("a"), "a").expect("a file");
        let mut jobs = manifests("");
        let workdir = asked(scratch.path()).apply(&global(), &console(), &mut jobs);
        let workdir = workdir.unwrap_or_else(|_| panic!("it can be sent")).expect("a directory is given");
        let spec = jobs[0].message.spec();
        let digest = spec.workdir.as_ref().map(|files| files.digest.clone());
        assert_eq!(digest, Some(workdir.packed.digest().to_string()));
        assert_eq!(spec.node_selector[STORE_LABEL].values, [HAS_STORE]);
        let none = WorkdirArgs { workdir: None, store: None }.apply(&global(), &console(), &mut jobs);
        assert!(none.is_ok_and(|none| none.is_none()));
        let mut jobs = manifests(", artifacts: {paths: [out]}");
        assert!(WorkdirArgs { workdir: None, store: None }.apply(&global(), &console(), &mut jobs).is_ok());
        assert_eq!(jobs[0].message.spec().node_selector[STORE_LABEL].values, [HAS_STORE]);
        for taken in
            [", workingDirectory: /work", &format!(", workdir: {{digest: \"{}\"}}", workdir.packed.digest())]
        {
            assert!(
                asked(scratch.path()).apply(&global(), &console(), &mut manifests(taken)).is_err(),
                "{taken}"
            );
        }
        assert!(
            asked(&scratch.path().join("absent")).apply(&global(), &console(), &mut manifests("")).is_err()
        );
    }
}
