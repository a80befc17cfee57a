//! Files of a test.

use std::fs;
use std::path::{Path, PathBuf};

use muster_sim::queue::{Durations, Options, Report, queue};
use muster_sim::trace::{Jobs, SubmitOrder, read_failures, read_nodes};
use muster_sim::{EPOCH_MS, Preset, ReplayPolicy, stopped};
use tempfile::TempDir;

/// A directory with files in it.
pub struct Files(TempDir);

impl Files {
    pub fn new(files: &[(&str, &str)]) -> Files {
        let directory = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        Files(directory)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }
}

pub const NODES_HEADER: &str = "node_id,region,cluster,accel_type,accel_count,cpu_milli,mem_mib";
pub const JOBS_HEADER: &str =
    "job_id,submit_s,duration_s,accel_type,replicas,accel_milli,cpu_milli,mem_mib,home_cluster";

/// Nodes of one region: `id cluster type count`.
pub fn nodes(rows: &[&str]) -> String {
    let mut text = format!("{NODES_HEADER}\n");
    for row in rows {
        let [id, cluster, kind, count] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
        text += &format!("{id},r-a,{cluster},{kind},{count},,\n");
    }
    text
}

/// Jobs: `id submit duration replicas milli`, and the home cluster where there is one.
pub fn jobs(rows: &[&str]) -> String {
    let mut text = format!("{JOBS_HEADER}\n");
    for row in rows {
        let cells: Vec<&str> = row.split(' ').collect();
        let [id, submit, duration, replicas, milli] = cells[..5] else { panic!("{row}") };
        let home = cells.get(5).copied().unwrap_or_default();
        text += &format!("{id},{submit},{duration},,{replicas},{milli},,,{home}\n");
    }
    text
}

pub const PLAIN: Options = Options {
    policy: ReplayPolicy::Preset(Preset::Default),
    start_ms: EPOCH_MS,
    durations: Durations::True,
    home_only: false,
};

/// Replays `nodes.csv` and `jobs.csv`, with `failures.csv` where there is one.
pub fn replay(files: &Files, options: Options) -> Report {
    let nodes = read_nodes(&files.path("nodes.csv")).unwrap();
    let failures = files.path("failures.csv");
    let failures = if failures.exists() { read_failures(&failures, &nodes).unwrap() } else { Vec::new() };
    let jobs = Jobs::open(&files.path("jobs.csv"), SubmitOrder::Ascending).unwrap();
    queue(&nodes, jobs, &failures, options, &stopped, &mut |_| {}).unwrap()
}
