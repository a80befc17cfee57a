//! Archives that are at hand as a directory: no cluster is asked, and nothing in them is changed.

use std::path::PathBuf;
use std::sync::Arc;

use muster_archive::{
    Archive, ArchiveError, DirectoryStore, JoinedStores, ObjectStore, SegmentReport, Sizes, csv_line,
    json_line,
};
use muster_console::{Console, Document, Exit, Failure, Grid};
use muster_types::{LogIndex, LogTime, PastPoint};
use serde::Serialize;

use super::{ExportArgs, ExportFormat, Output, StateArgs, time};

/// A log index or an RFC 3339 time.
pub fn moment(text: &str) -> Result<PastPoint, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let index = text.parse().ok().filter(|index| *index > 0);
        return index
            .map(|index| PastPoint::Index(LogIndex(index)))
            .ok_or_else(|| "log indexes begin with 1".to_owned());
    }
    let time: jiff::Timestamp =
        text.parse().map_err(|_| "expected a log index or a time like 2026-11-22T08:30:00Z".to_owned())?;
    let ms = u64::try_from(time.as_millisecond()).ok().filter(|ms| *ms > 0);
    ms.map(|ms| PastPoint::Time(LogTime(ms)))
        .ok_or_else(|| "nothing is known of the time before 1970".to_owned())
}

pub fn failure(error: &ArchiveError) -> Failure {
    Failure::of_error(Exit::Failed, error)
}

pub fn open(dirs: &[PathBuf]) -> Result<Arc<Archive>, Failure> {
    let mut stores: Vec<Arc<dyn ObjectStore>> = Vec::new();
    for dir in dirs {
        let store = DirectoryStore::open_read_only(dir).map_err(|error| {
            Failure::new(Exit::NotFound, format!("{} cannot be opened: {error}", dir.display()))
        })?;
        stores.push(Arc::new(store));
    }
    let store = JoinedStores::new(stores);
    let place = store.place();
    let archive = Archive::open(Arc::new(store), None).map_err(|error| failure(&error))?;
    if archive.summary().segments == 0 {
        let text = format!("{place} holds no segment of a log");
        return Err(Failure::new(Exit::NotFound, text).with_next(
            "name the directory that has `segments` in it: <data_dir>/archive, unless configured",
        ));
    }
    Ok(Arc::new(archive))
}

/// `muster log export --archive`.
pub fn export(console: &Console, args: &ExportArgs) -> Result<Exit, Failure> {
    let archive = open(&args.archive)?;
    let last = archive.summary().last.unwrap_or_default();
    let to = args.to.map_or(last, LogIndex);
    let mut output = Output::open(args)?;
    for record in archive.records(LogIndex(args.from), to) {
        let record = record.map_err(|error| failure(&error))?;
        output.line(&match args.form {
            ExportFormat::Jsonl => json_line(&record),
            ExportFormat::Csv => csv_line(&record),
        })?;
        output.progress(console, record.log_index.0, to.0);
    }
    if to > last {
        return Err(Failure::new(Exit::Failed, format!("the archive ends at {last}, before {to}")));
    }
    output.finish(console, args.file.as_ref())?;
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportView {
    whole: bool,
    records: u64,
    digests_compared: u64,
    bases_good: u64,
    gaps: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offloaded_through: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offloaded_to: Option<String>,
    problems: Vec<String>,
    replayed_to: Option<u64>,
    state_digest: Option<String>,
    segments: Vec<SegmentView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SegmentView {
    object: String,
    first_log_index: u64,
    last_log_index: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// `muster log verify --archive`.
pub fn verify(console: &Console, dirs: &[PathBuf]) -> Result<Exit, Failure> {
    let archive = open(dirs)?;
    let total = archive.summary().segments;
    let mut done = 0u64;
    let mut told_at = std::time::Instant::now();
    let report = archive.verify(|_: &SegmentReport| {
        done += 1;
        if told_at.elapsed().as_secs() >= 1 {
            told_at = std::time::Instant::now();
            console.progress(&format!("segment {done} of {total}"));
        }
        true
    });
    let segments = report.segments.iter().map(|segment| SegmentView {
        object: segment.name.object(),
        first_log_index: segment.name.first.0,
        last_log_index: segment.name.last.0,
        bytes: segment.name.bytes,
        problem: segment.problem.clone(),
    });
    let view = ReportView {
        whole: report.is_whole(),
        records: report.records,
        digests_compared: report.digests_compared,
        bases_good: report.bases_good,
        gaps: report.gaps.iter().map(|gap| [gap.from.0, gap.to.0]).collect(),
        offloaded_through: report.floor.as_ref().map(|floor| floor.through.0),
        offloaded_to: report.floor.as_ref().map(|floor| floor.place.clone()),
        problems: report.problems.clone(),
        replayed_to: report.replayed.map(|(index, _)| index.0),
        state_digest: report.replayed.map(|(_, digest)| format!("{digest:016x}")),
        segments: segments.collect(),
    };
    let exit = if view.whole { Exit::Ok } else { Exit::Failed };
    if console.is_structured() {
        console.object(&Document::new("ArchiveReport", None::<u64>, view))?;
        return Ok(exit);
    }
    let mut grid = Grid::new(vec!["FIRST", "LAST", "BYTES", "STATE", "DETAIL"]);
    for segment in &view.segments {
        let state = if segment.problem.is_some() { "failed" } else { "good" };
        // Where all is well, the names would only be in the way.
        let detail = match &segment.problem {
            Some(problem) => format!("{}: {problem}", segment.object),
            None => String::new(),
        };
        let (first, last) = (segment.first_log_index.to_string(), segment.last_log_index.to_string());
        grid.row(vec![first, last, segment.bytes.to_string(), state.to_owned(), detail]);
    }
    console.table(&grid)?;
    console.line("")?;
    if let (Some(through), Some(place)) = (view.offloaded_through, &view.offloaded_to) {
        console.line(&format!("elsewhere: records 1 to {through} were moved to {place} and not read"))?;
    }
    for [from, to] in &view.gaps {
        console.line(&format!("missing: records {from} to {to}"))?;
    }
    for problem in &view.problems {
        console.line(&format!("problem: {problem}"))?;
    }
    let verdict = if view.whole { "whole" } else { "not whole" };
    console.line(&format!(
        "{verdict}: {} records in {} segments, {} digests of the leader and {} bases came out of a replay",
        view.records,
        view.segments.len(),
        view.digests_compared,
        view.bases_good
    ))?;
    if let (Some(index), Some(digest)) = (view.replayed_to, &view.state_digest) {
        console.line(&format!("state digest at log index {index}: {digest}"))?;
    }
    Ok(exit)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StateView {
    log_time: Option<String>,
    cluster_id: String,
    generation: u32,
    state_digest: String,
    jobs_pending: u64,
    jobs_active: u64,
    jobs_finished: u64,
    nodes: u64,
    nodes_up: u64,
    policy_version: u64,
}

/// `muster log state`.
pub fn state(console: &Console, args: &StateArgs) -> Result<Exit, Failure> {
    let archive = open(&args.archive)?;
    let last = archive.summary().last.unwrap_or_default();
    let at = args.at.unwrap_or(PastPoint::Index(last));
    let (replay, reached) = archive.replay(at, None).map_err(|error| failure(&error))?;
    if !reached && matches!(at, PastPoint::Index(_)) {
        return Err(Failure::new(Exit::NotFound, format!("the archive ends at log index {last}")));
    }
    let state = replay.state();
    let cluster = state.cluster();
    let view = StateView {
        log_time: time(state.log_time().0),
        cluster_id: cluster.map(|c| c.cluster.to_string()).unwrap_or_default(),
        generation: cluster.map_or(0, |c| c.generation),
        state_digest: format!("{:016x}", state.digest()),
        jobs_pending: state.pending_count() as u64,
        jobs_active: state.active_count() as u64,
        jobs_finished: state.finished_count() as u64,
        nodes: state.nodes().len() as u64,
        nodes_up: state.nodes_up(),
        policy_version: state.policy().version.0,
    };
    if console.is_structured() {
        console.object(&Document::new("PastState", Some(state.log_index().0), view))?;
        return Ok(Exit::Ok);
    }
    console.line(&format!(
        "log index  {} ({})",
        state.log_index(),
        view.log_time.as_deref().unwrap_or("no time")
    ))?;
    console.line(&format!("cluster    {} generation {}", view.cluster_id, view.generation))?;
    console.line(&format!("digest     {}", view.state_digest))?;
    console.line(&format!(
        "jobs       {} pending, {} active, {} finished",
        view.jobs_pending, view.jobs_active, view.jobs_finished
    ))?;
    console.line(&format!("nodes      {} of {} up", view.nodes_up, view.nodes))?;
    console.line(&format!("policy     version {}", view.policy_version))?;
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatsView {
    first_log_index: u64,
    last_log_index: u64,
    last_log_time: Option<String>,
    segments: SizesView,
    bases: SizesView,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SizesView {
    objects: u64,
    stored_bytes: u64,
    uncompressed_bytes: u64,
    /// Stored bytes for each thousand records that the archive has.
    stored_bytes_per_thousand_records: u64,
}

/// `muster log stats --archive`.
pub fn stats(console: &Console, dirs: &[PathBuf]) -> Result<Exit, Failure> {
    let archive = open(dirs)?;
    let summary = archive.summary();
    let stats = archive.stats().map_err(|error| failure(&error))?;
    let (first, last) = (summary.first.unwrap_or_default(), summary.last.unwrap_or_default());
    let missing: u64 =
        summary.gaps.iter().filter(|gap| gap.from > first).map(|gap| gap.to.0 - gap.from.0 + 1).sum();
    let records = (last.0 + 1).saturating_sub(first.0).saturating_sub(missing).max(1);
    let sizes = |sizes: Sizes| SizesView {
        objects: sizes.objects,
        stored_bytes: sizes.stored_bytes,
        uncompressed_bytes: sizes.plain_bytes,
        stored_bytes_per_thousand_records: sizes.stored_bytes.saturating_mul(1_000) / records,
    };
    let view = StatsView {
        first_log_index: first.0,
        last_log_index: last.0,
        last_log_time: time(summary.last_time.0),
        segments: sizes(stats.segments),
        bases: sizes(stats.bases),
    };
    if console.is_structured() {
        console.object(&Document::new("ArchiveStats", None::<u64>, view))?;
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(vec!["KIND", "OBJECTS", "STORED", "UNCOMPRESSED", "RATIO", "PER 1,000 RECORDS"]);
    for (kind, sizes) in [("segments", &view.segments), ("bases", &view.bases)] {
        let tenths = sizes.uncompressed_bytes.saturating_mul(10) / sizes.stored_bytes.max(1);
        grid.row(vec![
            kind.to_owned(),
            sizes.objects.to_string(),
            sizes.stored_bytes.to_string(),
            sizes.uncompressed_bytes.to_string(),
            format!("{}.{}", tenths / 10, tenths % 10),
            sizes.stored_bytes_per_thousand_records.to_string(),
        ]);
    }
    console.table(&grid)?;
    let until = view.last_log_time.as_deref().unwrap_or("no time");
    console.line(&format!("\nrecords {first} to {last}, the last of {until}"))?;
    Ok(Exit::Ok)
}
