//! Traces of workloads that are known by their description only.
//!
//! The same options give the same bytes, on every machine. The functions that make a shape describe
//! what it stands for, and what it leaves out of what it is named after.

mod crowd;
mod failures;
mod mix;
mod peers;
mod starvation;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::{Compression, GzBuilder};
use muster_types::PriorityTier;
use thiserror::Error;

use crate::trace::{FailureEntry, JobEntry, NodeEntry};

pub use crowd::crowd;

/// Most jobs of one trace: they are made in memory.
pub const JOBS_MAX: u64 = 5_000_000;
/// Longest time for which failures are made: ten years.
pub const DAYS_MAX: u64 = 3_660;

/// Names of a closed set, as users write them.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$item])* $variant,)*
        }

        impl $name {
            /// Every one of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// As users write it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                $name::ALL.iter().copied().find(|known| known.as_str() == text).ok_or_else(|| {
                    let known: Vec<&str> = $name::ALL.iter().map(|known| known.as_str()).collect();
                    format!("known: {}", known.join(", "))
                })
            }
        }
    };
}

named! {
    /// What to make.
    Shape {
        /// 15,000 workloads in 30 queues of 5 cohorts, as Kueue's performance test of that name.
        KueueBaseline = "kueue-baseline",
        /// 50,000 workloads in 1,000 queues, as Kueue's large-scale performance test.
        KueueLarge = "kueue-large",
        /// 15,000 workloads of several pods on 640 nodes, as Kueue's topology-aware performance test.
        KueueTas = "kueue-tas",
        /// What KAI's scale test does on 500 nodes, one part after another.
        KaiScale = "kai-scale",
        /// 300 hosts full of one-device jobs of the lowest tier, and four jobs of a high one that take a host.
        Crowd = "crowd",
        /// Sizes and run times as published of a company's cluster.
        Mix = "mix",
        /// Nodes that fail and are repaired.
        Failures = "failures",
        /// Gangs of half a fleet that small jobs keep busy.
        Starvation = "starvation",
    }
}

named! {
    /// After whose published figures. The first five are mixes of jobs, the others rates of failure.
    Like {
        /// Seren, LLM development, 2023.
        Seren = "seren",
        /// Kalos, LLM development, 2023.
        Kalos = "kalos",
        /// Philly, deep learning, 2017.
        Philly = "philly",
        /// Helios, deep learning, 2020.
        Helios = "helios",
        /// PAI, with shares of devices.
        Pai = "pai",
        /// Meta's RSC-1, 16,000 devices.
        Rsc1 = "rsc1",
        /// Meta's RSC-2, 8,000 devices.
        Rsc2 = "rsc2",
        /// The training of Llama 3 405B.
        Llama3 = "llama3",
    }
}

/// What to make, in full.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which shape.
    pub shape: Shape,
    /// Same seed, same trace.
    pub seed: u64,
    /// After whom; the shape's own first when not said. Only for mixes and failures.
    pub like: Option<Like>,
    /// Jobs of a mix.
    pub jobs: u64,
    /// Of a mix, and of small jobs: device-seconds asked for, in percent of what the fleet has while they arrive.
    pub load_percent: u32,
    /// Days of failures, and in which small jobs come.
    pub days: u64,
    /// The fleet that fails; one of 1,000 nodes is made when there is none.
    pub fleet: Option<Vec<NodeEntry>>,
}

impl Options {
    /// A shape with everything else as it comes.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Options {
        Options { shape, seed, like: None, jobs: 20_000, load_percent: 85, days: 30, fleet: None }
    }
}

/// Why there is no trace.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// An option does not do.
    #[error("{0}")]
    Option(String),
    /// A file cannot be written.
    #[error("{}: cannot be written", file.display())]
    Write {
        /// Which.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A trace that was made. Empty parts are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The fleet, unless it was given.
    pub nodes: Vec<NodeEntry>,
    /// In order of submission.
    pub jobs: Vec<JobEntry>,
    /// In order of time; places are those of the fleet.
    pub failures: Vec<FailureEntry>,
    /// Ids of the nodes that `failures` gives places of.
    node_ids: Vec<String>,
}

/// Makes a trace.
///
/// # Errors
/// When an option is out of its bounds or does not go with the shape.
pub fn generate(options: &Options) -> Result<Trace, GenerateError> {
    check(options)?;
    let mut trace = match options.shape {
        Shape::KueueBaseline => peers::kueue_baseline(),
        Shape::KueueLarge => peers::kueue_large(),
        Shape::KueueTas => peers::kueue_tas(),
        Shape::KaiScale => peers::kai_scale(),
        Shape::Crowd => crowd::crowd(300, options.seed),
        Shape::Mix => mix::mix(options),
        Shape::Failures => failures::failures(options),
        Shape::Starvation => starvation::starvation(options),
    };
    // Stable: of jobs submitted in one second the order is the one they were made in.
    trace.jobs.sort_by_key(|job| job.submit_s);
    Ok(trace)
}

fn check(options: &Options) -> Result<(), GenerateError> {
    let wrong = |text: String| Err(GenerateError::Option(text));
    let mixes = &Like::ALL[..5];
    let suits = match (options.shape, options.like) {
        (_, None) => true,
        (Shape::Mix, Some(like)) => mixes.contains(&like),
        (Shape::Failures, Some(like)) => !mixes.contains(&like),
        (_, Some(_)) => false,
    };
    if !suits {
        let likes = |likes: &[Like]| likes.iter().map(|like| like.as_str()).collect::<Vec<_>>().join(", ");
        return wrong(format!(
            "a mix is like one of {}, failures are like one of {}, and other shapes are like nothing else",
            likes(mixes),
            likes(&Like::ALL[5..])
        ));
    }
    if options.jobs == 0 || options.jobs > JOBS_MAX {
        return wrong(format!("jobs: must be from 1 to {JOBS_MAX}, got {}", options.jobs));
    }
    if options.load_percent == 0 || options.load_percent > 1_000 {
        return wrong(format!("load: must be from 1 to 1000 percent, got {}", options.load_percent));
    }
    if options.days == 0 || options.days > DAYS_MAX {
        return wrong(format!("days: must be from 1 to {DAYS_MAX}, got {}", options.days));
    }
    Ok(())
}

/// Writes the parts of a trace into a directory, which is made when it is not there: `nodes.csv.gz`,
/// `jobs.csv.gz` and `failures.csv.gz`. The paths written.
///
/// # Errors
/// When a file cannot be written.
pub fn write(trace: &Trace, directory: &Path) -> Result<Vec<PathBuf>, GenerateError> {
    fs::create_dir_all(directory)
        .map_err(|source| GenerateError::Write { file: directory.to_owned(), source })?;
    let parts = [
        ("nodes.csv.gz", node_rows(trace)),
        ("jobs.csv.gz", job_rows(trace)),
        ("failures.csv.gz", failure_rows(trace)),
    ];
    let mut written = Vec::new();
    for (name, rows) in parts {
        if rows.len() > 1 {
            let file = directory.join(name);
            let failed = |source| GenerateError::Write { file: file.clone(), source };
            write_rows(&file, &rows).map_err(failed)?;
            written.push(file);
        }
    }
    Ok(written)
}

fn write_rows(path: &Path, rows: &[Vec<String>]) -> io::Result<()> {
    // No name and no time in the header of the file: they would differ from run to run.
    let packed = GzBuilder::new().mtime(0).write(File::create(path)?, Compression::default());
    let mut writer = csv::Writer::from_writer(packed);
    for row in rows {
        writer.write_record(row)?;
    }
    let packed = writer.into_inner().map_err(|error| error.into_error())?;
    packed.finish()?.flush()
}

fn header(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

fn known(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn node_rows(trace: &Trace) -> Vec<Vec<String>> {
    let mut rows =
        vec![header("node_id,region,zone,cluster,block,rack,accel_type,accel_count,cpu_milli,mem_mib")];
    rows.extend(trace.nodes.iter().map(|node| {
        vec![
            node.id.clone(),
            node.region.clone(),
            node.region.clone(),
            node.cluster.clone(),
            node.block.clone(),
            node.rack.clone(),
            node.accel_type.clone(),
            node.accel_count.to_string(),
            known(node.cpu_milli),
            known(node.mem_mib),
        ]
    }));
    rows
}

fn job_rows(trace: &Trace) -> Vec<Vec<String>> {
    let columns = "job_id,submit_s,duration_s,accel_type,replicas,accel_milli,cpu_milli,mem_mib,tenant,queue,\
                   status,tier,home_cluster";
    let mut rows = vec![header(columns)];
    rows.extend(trace.jobs.iter().map(|job| {
        vec![
            job.id.clone(),
            job.submit_s.to_string(),
            known(job.duration_s),
            job.accel_types.join("|"),
            job.replicas.to_string(),
            job.accel_milli.to_string(),
            known(job.cpu_milli),
            known(job.mem_mib),
            job.tenant.clone(),
            job.queue.clone(),
            String::new(),
            job.tier.to_string(),
            job.home_cluster.clone(),
        ]
    }));
    rows
}

fn failure_rows(trace: &Trace) -> Vec<Vec<String>> {
    let mut rows = vec![header("node_id,failed_s,repaired_s")];
    rows.extend(trace.failures.iter().map(|failure| {
        let id = trace.node_ids[failure.node].clone();
        vec![id, failure.failed_s.to_string(), failure.repaired_s.to_string()]
    }));
    rows
}

/// A job of which only what matters differs.
fn plain_job(id: String, submit_s: u64, duration_s: u64, replicas: u32, accel_milli: u64) -> JobEntry {
    JobEntry {
        id,
        submit_s,
        duration_s: Some(duration_s),
        accel_types: Vec::new(),
        replicas,
        accel_milli,
        cpu_milli: None,
        mem_mib: None,
        tenant: String::new(),
        queue: String::new(),
        tier: PriorityTier::Standard,
        home_cluster: String::new(),
        preemptible: true,
        deadline_s: None,
    }
}

/// A host with eight accelerators of one type, as most training fleets have them.
fn host(id: String, region: &str, cluster: &str, rack: usize) -> NodeEntry {
    NodeEntry {
        id,
        region: region.to_owned(),
        cluster: cluster.to_owned(),
        block: "b00".to_owned(),
        rack: format!("r{rack:02}"),
        accel_type: "gpu".to_owned(),
        accel_count: 8,
        cpu_milli: Some(96_000),
        mem_mib: Some(1_048_576),
    }
}
