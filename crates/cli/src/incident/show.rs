//! What is shown of an incident.

use std::collections::BTreeMap;
use std::path::Path;

use muster_archive::capsule::{Capsule, CapsuleHeader, CapsuleRecord};
use muster_archive::{content, summary};
use muster_console::{Console, Document, Exit, Failure, Grid, one_line, time};
use muster_decider::JobExplanation;
use muster_state::{JobRow, Phase};
use muster_types::{JobId, LogIndex};
use serde::Serialize;

/// A capsule for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CapsuleView {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    cluster_id: String,
    cluster_generation: u32,
    first_log_index: u64,
    last_log_index: u64,
    around_log_index: u64,
    begin_time: Option<String>,
    end_time: Option<String>,
    version: String,
    create_time: Option<String>,
    /// Digests of the cluster's own states, as its replicas have them.
    original_digest_before: String,
    original_digest_after: String,
    digest_before: String,
    digest_after: String,
    /// By the name of the decision.
    left_out: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    records: Vec<RecordView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordView {
    log_index: u64,
    log_time: Option<String>,
    decision: String,
    summary: String,
}

fn view(file: &Path, header: &CapsuleHeader) -> CapsuleView {
    let mut left_out: BTreeMap<String, u64> = BTreeMap::new();
    for record in &header.left_out {
        *left_out.entry(record.decision.clone()).or_default() += 1;
    }
    let digest = |digest: u64| format!("{digest:016x}");
    CapsuleView {
        file: file.display().to_string(),
        bytes: None,
        cluster_id: header.cluster_id.clone(),
        cluster_generation: header.cluster_generation,
        first_log_index: header.first_log_index,
        last_log_index: header.last_log_index,
        around_log_index: header.around_log_index,
        begin_time: time(header.begin_time_ms),
        end_time: time(header.end_time_ms),
        version: header.version.clone(),
        create_time: time(header.created_at_ms),
        original_digest_before: digest(header.original_digest_before),
        original_digest_after: digest(header.original_digest_after),
        digest_before: digest(header.digest_before),
        digest_after: digest(header.digest_after),
        left_out,
        records: Vec::new(),
        notes: Vec::new(),
    }
}

impl CapsuleView {
    fn lines(&self) -> Vec<String> {
        let text = |time: &Option<String>| time.clone().unwrap_or_else(|| "no time".to_owned());
        let mut lines = vec![
            format!(
                "{}: cluster {} generation {}, records {} to {}, from {} to {}",
                self.file,
                one_line(&self.cluster_id),
                self.cluster_generation,
                self.first_log_index,
                self.last_log_index,
                text(&self.begin_time),
                text(&self.end_time)
            ),
            format!("made {} by release {}", text(&self.create_time), one_line(&self.version)),
            format!(
                "digests of the cluster: {} before the first record, {} behind the last",
                self.original_digest_before, self.original_digest_after
            ),
        ];
        if !self.left_out.is_empty() {
            let kinds = self.left_out.iter().map(|(name, count)| format!("{} ({count})", one_line(name)));
            lines.push(format!("records that are left out: {}", kinds.collect::<Vec<_>>().join(", ")));
        }
        lines.extend(self.notes.iter().cloned());
        lines
    }
}

/// A capsule was written.
pub(super) fn written(
    console: &Console,
    file: &Path,
    bytes: u64,
    header: &CapsuleHeader,
    notes: &[String],
) -> Result<Exit, Failure> {
    let view = CapsuleView { bytes: Some(bytes), notes: notes.to_vec(), ..view(file, header) };
    if console.is_structured() {
        console.object(&Document::new("IncidentCapsule", Some(header.around_log_index), view))?;
        return Ok(Exit::Ok);
    }
    for line in view.lines() {
        console.line(&line)?;
    }
    console.progress(&format!(
        "{bytes} bytes; read it before you pass it on: names of jobs, nodes, tenants and regions are in it"
    ));
    Ok(Exit::Ok)
}

/// Whether a record names a job.
fn names(record: &CapsuleRecord, job: JobId) -> bool {
    content(&record.decision).to_string().contains(&format!("\"{job}\""))
}

/// The records to show: at most this many, those around the moment.
fn shown(capsule: &Capsule, job: Option<JobId>, most: usize) -> (Vec<&CapsuleRecord>, usize) {
    let wanted = |record: &&CapsuleRecord| job.is_none_or(|job| names(record, job));
    let all: Vec<&CapsuleRecord> = capsule.records.iter().filter(wanted).collect();
    let around = all.partition_point(|record| record.log_index.0 < capsule.header.around_log_index);
    let begin = around.saturating_sub(most / 2).min(all.len().saturating_sub(most));
    let count = all.len();
    (all.into_iter().skip(begin).take(most).collect(), count)
}

/// A capsule was replayed.
pub(super) fn replayed(
    console: &Console,
    file: &Path,
    capsule: &Capsule,
    (job, most): (Option<JobId>, usize),
) -> Result<Exit, Failure> {
    let left_out = capsule.header.left_out.iter().map(|record| (record.log_index, &record.decision));
    let left_out: BTreeMap<u64, &String> = left_out.collect();
    let (records, count) = shown(capsule, job, most);
    let records = records.into_iter().map(|record| {
        let index = record.log_index.0;
        let (decision, summary) = match left_out.get(&index) {
            Some(decision) => ((*decision).clone(), "left out".to_owned()),
            None => (record.decision.name().to_owned(), summary(&content(&record.decision))),
        };
        RecordView { log_index: index, log_time: time(record.log_time.0), decision, summary }
    });
    let records: Vec<RecordView> = records.collect();
    let mut view = view(file, &capsule.header);
    if console.is_structured() {
        view.records = records;
        console.object(&Document::new("IncidentReplay", Some(capsule.header.around_log_index), view))?;
        return Ok(Exit::Ok);
    }
    for line in view.lines() {
        console.line(&line)?;
    }
    console.line(&format!(
        "verified: every checksum holds, and {} records replay to the digests of the file\n",
        capsule.records.len()
    ))?;
    let mut grid = Grid::new(vec!["INDEX", "TIME", "DECISION", "SUMMARY"]);
    for record in &records {
        let at = record.log_time.clone().unwrap_or_default();
        let (decision, summary) = (one_line(&record.decision), one_line(&record.summary));
        grid.row(vec![record.log_index.to_string(), at, decision, summary]);
    }
    console.table(&grid)?;
    if records.len() < count {
        console.line(&format!("{} of {count} records are shown; --records shows more", records.len()))?;
    }
    Ok(Exit::Ok)
}

/// An explanation for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplanationView {
    job: String,
    phase: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_before: Option<u64>,
    would_help: Vec<String>,
    clusters: Vec<ClusterView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterView {
    region: String,
    cluster: String,
    r#type: Option<String>,
    workers_that_fit: u32,
    free_devices: u64,
    total_devices: u64,
}

/// Why a job waits, or how far it has come.
pub(super) fn explained(
    console: &Console,
    (job, at): (JobId, LogIndex),
    row: &JobRow,
    explained: Option<&JobExplanation>,
) -> Result<Exit, Failure> {
    let phase = match row.phase {
        Phase::Pending => "pending",
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Stopping(_) => "stopping",
        Phase::Finished(_) => "over",
    };
    let clusters = explained.into_iter().flat_map(|explained| &explained.places.clusters);
    let clusters = clusters.map(|report| ClusterView {
        region: report.region.to_string(),
        cluster: report.cluster.to_string(),
        r#type: report.kind.as_ref().map(ToString::to_string),
        workers_that_fit: report.workers_that_fit,
        free_devices: report.free_devices,
        total_devices: report.total_devices,
    });
    let view = ExplanationView {
        job: job.to_string(),
        phase,
        reason: explained.map(|explained| explained.reason.code()),
        message: explained.map(|explained| explained.sentence.clone()),
        requests_before: explained
            .and_then(|explained| explained.position)
            .map(|position| position.requests_before as u64),
        would_help: explained.map(|explained| explained.places.would_help.clone()).unwrap_or_default(),
        clusters: clusters.collect(),
    };
    if console.is_structured() {
        console.object(&Document::new("IncidentExplanation", Some(at.0), view))?;
        return Ok(Exit::Ok);
    }
    console.line(&format!("{job} behind record {at}: {phase}"))?;
    if let (Some(reason), Some(message)) = (view.reason, &view.message) {
        console.line(&format!("{reason}: {}", one_line(message)))?;
    }
    for help in &view.would_help {
        console.line(&format!("would help: {}", one_line(help)))?;
    }
    let mut grid = Grid::new(vec!["REGION", "CLUSTER", "TYPE", "FIT", "FREE", "TOTAL"]);
    for cluster in &view.clusters {
        let kind = cluster.r#type.clone().unwrap_or_else(|| "-".to_owned());
        let numbers = [u64::from(cluster.workers_that_fit), cluster.free_devices, cluster.total_devices];
        let mut cells = vec![cluster.region.clone(), cluster.cluster.clone(), kind];
        cells.extend(numbers.map(|number| number.to_string()));
        grid.row(cells);
    }
    if !view.clusters.is_empty() {
        console.line("")?;
        console.table(&grid)?;
    }
    Ok(Exit::Ok)
}
