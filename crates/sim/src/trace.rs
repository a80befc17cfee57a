//! Traces: who asked for what and when, and the nodes it was asked of.
//!
//! CSV files, plain or gzip, with a header row. Columns are found by their names in any order; columns
//! nobody knows are left alone; an empty cell means *unknown*. Rows are read one at a time, so a trace
//! may be larger than memory; only the ids are kept, to find one that comes twice.
//!
//! | file | columns |
//! |---|---|
//! | jobs | `job_id, submit_s, duration_s, accel_type, replicas, accel_milli, cpu_milli, mem_mib`, and where there are such `tenant, queue, tier, home_cluster, preemptible, deadline_s` |
//! | nodes | `node_id, region, cluster, accel_type, accel_count, cpu_milli, mem_mib`, and where there are such `block, rack` |
//! | order | no header: one `job_id` a line, each an instance of that job |
//! | failures | `node_id, failed_s, repaired_s` |
//!
//! `accel_type` of a job is empty for any type, and `A|B` for either. `accel_milli` is per worker, 1000 to
//! the device: below 1000 it is a share of one device, from there on whole devices of one node.
//!
//! What is unknown restrains nothing: an unknown demand for CPU or memory counts as the least there is (1
//! milli-CPU, 1 byte), an unknown supply as the most. A share of the node per device would be as natural,
//! but in a fleet of several host shapes it would keep jobs from nodes for a reason that is in no trace.

mod cells;
mod input;

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead as _};
use std::path::{Path, PathBuf};

use muster_types::{PriorityTier, limits};
use thiserror::Error;

use cells::{Row, Rows};
use input::Input;

pub use input::LINE_BYTES_MAX;

/// Most devices' worth of thousandths one worker can ask for.
const ACCEL_MILLI_MAX: u64 = limits::HOST_DEVICES_MAX as u64 * 1_000;
/// Latest second of a trace: over three thousand years, and still far from the end of a `u64` of
/// milliseconds.
const SECONDS_MAX: u64 = 100_000_000_000;
/// Mebibytes of the largest host.
const MEM_MIB_MAX: u64 = limits::MEMORY_BYTES_MAX >> 20;

/// A trace that cannot be read. Every variant names the file; those about its content the line as well.
#[derive(Debug, Error)]
pub enum TraceError {
    /// There is no such file, or it may not be read.
    #[error("{}: cannot be opened", file.display())]
    Open {
        /// Which.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Reading stopped, or what is compressed is damaged.
    #[error("{}, after line {line}: cannot be read on", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// The last line that could be read.
        line: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A compressed file ends before its end.
    #[error("{}, after line {line}: the gzip file is cut short", file.display())]
    Truncated {
        /// Which.
        file: PathBuf,
        /// The last line that could be read.
        line: u64,
    },
    /// There is nothing in it.
    #[error("{}: is empty, expected {expected}", file.display())]
    Empty {
        /// Which.
        file: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// The header row does not do.
    #[error("{}, line 1: {reason}", file.display())]
    Header {
        /// Which.
        file: PathBuf,
        /// The column concerned.
        column: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A line as a whole does not do.
    #[error("{}, line {line}: {reason}", file.display())]
    Line {
        /// Which.
        file: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A cell does not do.
    #[error("{}, line {line}, column {column}: {reason}, got {value:?}", file.display())]
    Cell {
        /// Which.
        file: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The column's name.
        column: &'static str,
        /// What stands there, cut to 80 characters.
        value: String,
        /// What would be right.
        reason: String,
    },
}

/// One node of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Unique in the file.
    pub id: String,
    /// Where it is; empty when unknown.
    pub region: String,
    /// One network that a gang can use; empty when unknown.
    pub cluster: String,
    /// Spine block; empty when unknown.
    pub block: String,
    /// Rack or NVLink domain; empty when unknown.
    pub rack: String,
    /// Type of its accelerators; empty for a plain host.
    pub accel_type: String,
    /// How many.
    pub accel_count: u16,
    /// Milli-CPUs, unless unknown.
    pub cpu_milli: Option<u64>,
    /// Mebibytes, unless unknown.
    pub mem_mib: Option<u64>,
}

/// One job of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEntry {
    /// Unique in the file.
    pub id: String,
    /// Seconds from the beginning of the trace.
    pub submit_s: u64,
    /// Seconds it ran, unless unknown.
    pub duration_s: Option<u64>,
    /// Accelerator types it may have, in the order given, none twice; empty for any.
    pub accel_types: Vec<String>,
    /// Workers of the gang.
    pub replicas: u32,
    /// Thousandths of a device for each worker: below 1000 a share of one device, else whole devices.
    pub accel_milli: u64,
    /// Milli-CPUs for each worker, unless unknown.
    pub cpu_milli: Option<u64>,
    /// Mebibytes for each worker, unless unknown.
    pub mem_mib: Option<u64>,
    /// For whom; empty when unknown.
    pub tenant: String,
    /// The line it waited in; empty when unknown.
    pub queue: String,
    /// How important it is.
    pub tier: PriorityTier,
    /// The cluster it was submitted to; empty when unknown.
    pub home_cluster: String,
    /// Whether policy may stop it; where the trace does not say, it may.
    pub preemptible: bool,
    /// When it must be over, in seconds from the beginning of the trace.
    pub deadline_s: Option<u64>,
}

impl JobEntry {
    /// Thousandths of devices that the whole gang asks for.
    #[must_use]
    pub fn total_milli(&self) -> u64 {
        u64::from(self.replicas) * self.accel_milli
    }
}

/// A node out of service for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureEntry {
    /// Place of the node in its file, from 0.
    pub node: usize,
    /// Seconds from the beginning of the trace.
    pub failed_s: u64,
    /// The same, later.
    pub repaired_s: u64,
}

/// Whether the rows of a file of jobs must be in the order of their submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitOrder {
    /// They must: a replay goes through them once.
    Ascending,
    /// They need not: something else gives the order.
    Any,
}

/// Jobs of a file, one at a time. After the first error there is nothing more.
pub struct Jobs {
    rows: Rows,
    order: SubmitOrder,
    ids: HashSet<String>,
    last_submit_s: u64,
}

impl Jobs {
    const COLUMNS: &'static [&'static str] = &[
        "job_id",
        "submit_s",
        "duration_s",
        "accel_type",
        "replicas",
        "accel_milli",
        "cpu_milli",
        "mem_mib",
    ];
    const OPTIONAL: &'static [&'static str] =
        &["tenant", "queue", "tier", "home_cluster", "preemptible", "deadline_s"];

    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When it cannot be read, is empty, or a column is missing.
    pub fn open(path: &Path, order: SubmitOrder) -> Result<Jobs, TraceError> {
        let rows = Rows::open(path, Jobs::COLUMNS, Jobs::OPTIONAL)?;
        Ok(Jobs { rows, order, ids: HashSet::new(), last_submit_s: 0 })
    }

    /// Every job of a file.
    ///
    /// # Errors
    /// The first thing wrong with it.
    pub fn read(path: &Path, order: SubmitOrder) -> Result<Vec<JobEntry>, TraceError> {
        Jobs::open(path, order)?.collect()
    }

    fn entry(&mut self, row: &Row<'_>) -> Result<JobEntry, TraceError> {
        let id = row.id("job_id", &mut self.ids)?;
        let submit_s = row.number("submit_s", 0, SECONDS_MAX)?;
        if self.order == SubmitOrder::Ascending && submit_s < self.last_submit_s {
            let reason = format!("must not be before the row above, which has {}", self.last_submit_s);
            return Err(row.wrong("submit_s", reason));
        }
        self.last_submit_s = submit_s;
        let mut accel_types: Vec<String> = Vec::new();
        for kind in row.text("accel_type").split('|').map(str::trim) {
            if kind.is_empty() && accel_types.is_empty() && row.text("accel_type").is_empty() {
                break;
            }
            if kind.is_empty() {
                return Err(
                    row.wrong("accel_type", "must be types separated by '|', none of them empty".into())
                );
            }
            if !accel_types.iter().any(|known| known == kind) {
                accel_types.push(kind.to_owned());
            }
        }
        let accel_milli = row.number("accel_milli", 0, ACCEL_MILLI_MAX)?;
        if accel_milli > 1_000 && accel_milli % 1_000 != 0 {
            let reason = "must be at most 1000 (a share of one device) or whole thousands".to_owned();
            return Err(row.wrong("accel_milli", reason));
        }
        let tier = match row.text("tier") {
            "" => PriorityTier::default(),
            text => PriorityTier::parse(text).ok_or_else(|| {
                let known: Vec<&str> = PriorityTier::ALL.iter().map(|tier| tier.as_str()).collect();
                row.wrong("tier", format!("must be one of {}", known.join(", ")))
            })?,
        };
        let preemptible = match row.text("preemptible") {
            "" | "true" => true,
            "false" => false,
            _ => return Err(row.wrong("preemptible", "must be true or false".to_owned())),
        };
        Ok(JobEntry {
            id,
            submit_s,
            duration_s: row.optional("duration_s", 0, SECONDS_MAX)?,
            accel_types,
            replicas: row.small("replicas", 1, limits::GANG_WORKERS_MAX)?,
            accel_milli,
            cpu_milli: row.optional("cpu_milli", 0, limits::CPU_MILLI_MAX)?,
            mem_mib: row.optional("mem_mib", 0, MEM_MIB_MAX)?,
            tenant: row.text("tenant").to_owned(),
            queue: row.text("queue").to_owned(),
            tier,
            home_cluster: row.text("home_cluster").to_owned(),
            preemptible,
            deadline_s: row.optional("deadline_s", 0, SECONDS_MAX)?,
        })
    }
}

impl Iterator for Jobs {
    type Item = Result<JobEntry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rows = std::mem::take(&mut self.rows);
        let entry = rows.next_row(|row| self.entry(row));
        self.rows = rows;
        entry
    }
}

/// Every node of a file: a fleet is at most as large as one cluster of schedulers may have it.
///
/// # Errors
/// The first thing wrong with the file, or that it has no nodes or too many.
pub fn read_nodes(path: &Path) -> Result<Vec<NodeEntry>, TraceError> {
    const COLUMNS: &[&str] =
        &["node_id", "region", "cluster", "accel_type", "accel_count", "cpu_milli", "mem_mib"];
    let mut rows = Rows::open(path, COLUMNS, &["block", "rack"])?;
    let mut ids = HashSet::new();
    let mut nodes = Vec::new();
    while let Some(node) = rows.next_row(|row| node_entry(row, &mut ids)) {
        nodes.push(node?);
        if nodes.len() > limits::NODES_MAX as usize {
            return Err(rows.line_error(format!("a fleet has at most {} nodes", limits::NODES_MAX)));
        }
    }
    if nodes.is_empty() {
        return Err(TraceError::Empty {
            file: path.to_owned(),
            expected: "at least one node below the header",
        });
    }
    Ok(nodes)
}

fn node_entry(row: &Row<'_>, ids: &mut HashSet<String>) -> Result<NodeEntry, TraceError> {
    let accel_count = match row.text("accel_count") {
        "" => 0,
        _ => row.small("accel_count", 0, u32::from(limits::HOST_DEVICES_MAX))?,
    };
    let accel_type = row.text("accel_type");
    if accel_count > 0 && accel_type.is_empty() {
        return Err(row.wrong("accel_type", format!("must name the type of the {accel_count} accelerators")));
    }
    Ok(NodeEntry {
        id: row.id("node_id", ids)?,
        region: row.text("region").to_owned(),
        cluster: row.text("cluster").to_owned(),
        block: row.text("block").to_owned(),
        rack: row.text("rack").to_owned(),
        accel_type: if accel_count == 0 { String::new() } else { accel_type.to_owned() },
        accel_count: u16::try_from(accel_count).unwrap_or(limits::HOST_DEVICES_MAX),
        cpu_milli: row.optional("cpu_milli", 1, limits::CPU_MILLI_MAX)?,
        mem_mib: row.optional("mem_mib", 1, MEM_MIB_MAX)?,
    })
}

/// The failures of a file, in order of time. Of one node no two overlap.
///
/// # Errors
/// The first thing wrong with the file.
pub fn read_failures(path: &Path, nodes: &[NodeEntry]) -> Result<Vec<FailureEntry>, TraceError> {
    let places: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(n, node)| (node.id.as_str(), n)).collect();
    let mut repaired: HashMap<usize, u64> = HashMap::new();
    let mut rows = Rows::open(path, &["node_id", "failed_s", "repaired_s"], &[])?;
    let mut failures: Vec<FailureEntry> = Vec::new();
    let mut last_s = 0;
    let mut entry = |row: &Row<'_>| {
        let Some(node) = places.get(row.text("node_id")).copied() else {
            return Err(row.wrong("node_id", "must be a node of the file of nodes".into()));
        };
        let failed_s = row.number("failed_s", 0, SECONDS_MAX)?;
        let repaired_s = row.number("repaired_s", 0, SECONDS_MAX)?;
        if failed_s < last_s {
            return Err(
                row.wrong("failed_s", format!("must not be before the row above, which has {last_s}"))
            );
        }
        if repaired_s <= failed_s {
            return Err(row.wrong("repaired_s", format!("must be after the failure at {failed_s}")));
        }
        if let Some(until) = repaired.insert(node, repaired_s)
            && failed_s <= until
        {
            return Err(row.wrong("failed_s", format!("must be after the node's last repair at {until}")));
        }
        last_s = failed_s;
        Ok(FailureEntry { node, failed_s, repaired_s })
    };
    while let Some(failure) = rows.next_row(&mut entry) {
        failures.push(failure?);
    }
    Ok(failures)
}

/// The lines of an order file, each as the place of its job, one at a time.
pub struct Order<'a> {
    input: Input,
    file: PathBuf,
    line: u64,
    is_over: bool,
    places: HashMap<&'a str, usize>,
}

impl<'a> Order<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read or is empty.
    pub fn open(path: &Path, jobs: &'a [JobEntry]) -> Result<Order<'a>, TraceError> {
        let input = input::open(path, "one job_id a line")?;
        let places = jobs.iter().enumerate().map(|(place, job)| (job.id.as_str(), place)).collect();
        Ok(Order { input, file: path.to_owned(), line: 0, is_over: false, places })
    }

    fn line(&mut self) -> Result<Option<usize>, TraceError> {
        loop {
            let mut text = Vec::new();
            let read = self.input.read_until(b'\n', &mut text);
            let read = read.map_err(|error| input::failed(&self.file, self.line, error))?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            let text = String::from_utf8_lossy(&text);
            let id = text.trim();
            if id.is_empty() {
                continue;
            }
            return match self.places.get(id) {
                Some(place) => Ok(Some(*place)),
                None => Err(TraceError::Cell {
                    file: self.file.clone(),
                    line: self.line,
                    column: "job_id",
                    value: id.chars().take(80).collect(),
                    reason: "must be a job of the file of jobs".into(),
                }),
            };
        }
    }
}

impl Iterator for Order<'_> {
    type Item = Result<usize, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let line = self.line();
        self.is_over = !matches!(line, Ok(Some(_)));
        line.transpose()
    }
}
