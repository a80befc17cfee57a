//! One job: who it is, why it waits or where it is, what happened to it, and what it asks for.

use maud::{Markup, html};
use muster_manifest::spec_fields;
use muster_types::{FailureClass, PriorityTier};
use muster_wire::address::encoded;
use muster_wire::closed::{phase_word, word};
use muster_wire::time::{span_ms, unix_ms};
use muster_wire::v1;

use crate::event::{self, Event};
use crate::frame::{Frame, Section, document_of};
use crate::starts::EstimateOf;
use crate::text;
use crate::text::Column::{Number, Text};

/// Workers of one placement that a page lists.
const WORKERS_MAX: usize = 256;
/// Rows of one part of an explanation that a page lists.
const ROWS_MAX: usize = 64;

/// What the page of a job shows.
#[derive(Clone, Debug, Default)]
pub struct JobDetail {
    /// All of it that the reader may see.
    pub job: v1::Job,
    /// Why it waits, or where it is.
    pub explanation: v1::Explanation,
    /// Which state that is of.
    pub explained_of: EstimateOf,
    /// How often to save its work; none when it does not say how long that takes.
    pub advice: Option<v1::CheckpointAdvice>,
    /// Its newest changes, newest first, as far as the replica keeps them in memory.
    pub changes: Vec<Event>,
    /// The array that it is a member of.
    pub array: Option<v1::Array>,
    /// Whether it has ended.
    pub is_over: bool,
    /// Whether its workers have output that the reader may read.
    pub has_output: bool,
}

/// The page.
#[must_use]
pub fn job(frame: &Frame, shown: &JobDetail) -> String {
    let job = &shown.job;
    let status = job.status.clone().unwrap_or_default();
    let history = html! {
        (timeline(&status))
        (attempts(&status))
        @if !shown.changes.is_empty() {
            (event::table(&shown.changes, "Changes that this replica keeps in memory"))
        }
    };
    let waits = status.phase() == v1::JobPhase::Pending;
    let title = match (waits, shown.is_over) {
        (true, _) => "Why it waits",
        (false, false) => "What it does",
        (false, true) => "How it ended",
    };
    let body = html! {
        (text::section("identity", "Identity", identity(shown, &status)))
        (text::section("reason", title, reason(shown, waits, frame.is_past())))
        @if let Some(placement) = &status.placement {
            // One that waits again has left it.
            (text::section("placement", if waits { "Last placement" } else { "Placement" }, placement_of(&status, placement)))
        }
        @if shown.has_output { (text::section("output", "Output", output(job, status.worker_count))) }
        (text::section("history", "History", history))
        @if let Some(spec) = &job.spec { (text::section("spec", "Spec", spec_of(spec))) }
    };
    let title = format!("Job {}", job.name);
    document_of(Some(frame), Some(Section::Jobs), (&title, &format!("{title}, {}", job.id)), body)
}

/// The most important of it, next to a list.
pub(crate) fn drawer(frame: &Frame, shown: &JobDetail) -> Markup {
    let job = &shown.job;
    let status = job.status.clone().unwrap_or_default();
    let waits = status.phase() == v1::JobPhase::Pending;
    html! {
        h2 { (job.name) }
        (identity(shown, &status))
        (reason(shown, waits, frame.is_past()))
        @if !shown.changes.is_empty() { (event::table(&shown.changes, "Its last changes")) }
        p { a href={ "/jobs/" (encoded(&job.id)) } { "The whole job" } }
    }
}

/// The place for the last lines of one worker, which the script fills; without it the command line has them.
fn output(job: &v1::Job, workers: u32) -> Markup {
    let source = format!("/jobs/{}/output", encoded(&job.id));
    html! {
        // The script shows it: without that nothing follows.
        p #output-choice hidden {
            label for="rank" { "Worker " }
            input #rank type="number" min="0" max=(workers.saturating_sub(1)) value="0" inputmode="numeric";
            " " button #read-output type="button" { "Follow its output" }
        }
        p #output-status role="status" { "The same: " code { "muster logs " (job.id) " --follow" } }
        pre #worker-output role="log" tabindex="0" aria-label="Output of the worker" data-source=(source) hidden {}
    }
}

fn identity(shown: &JobDetail, status: &v1::JobStatus) -> Markup {
    let job = &shown.job;
    html! {
        dl {
            dt { "Id" } dd { code { (job.id) } }
            dt { "Phase" } dd { (text::badge(phase_word(status.phase()))) }
            dt { "Tenant" } dd { a href={ "/jobs?tenant=" (encoded(&job.tenant)) } { (job.tenant) } }
            dt { "Tier" } dd { (word::<PriorityTier>(status.tier)) }
            dt { "Submitted by" } dd { (job.creator) }
            dt { "Size" }
            dd { (text::count(status.worker_count.into(), "worker", "workers")) ", " (text::count(status.device_count, "device", "devices")) }
            @if let Some(array) = &job.array {
                dt { "Array" }
                dd {
                    "index " (array.index) ", member " (array.ordinal.saturating_add(1)) " of " (array.size) " in "
                    a href={ "/jobs?array=" (encoded(&array.array_id)) } { (array.array_id) }
                    @if let Some(counts) = shown.array.as_ref().and_then(|array| array.counts.as_ref()) {
                        ": " (counts.uncreated) " not created yet, " (counts.pending) " pending, " (counts.active) " active, "
                        (counts.succeeded) " succeeded, " (counts.failed) " failed, " (counts.cancelled) " cancelled"
                    }
                }
            }
            @if !job.labels.is_empty() { dt { "Labels" } dd { (text::pairs(job.labels.iter())) } }
            @if !job.annotations.is_empty() { dt { "Annotations" } dd { (text::pairs(job.annotations.iter())) } }
        }
        @if job.redacted {
            p.note {
                "Command, environment, annotations, directories and failure texts are for its tenant and for operators; "
                "here they read " code { "redacted" } "."
            }
        }
    }
}

fn reason(shown: &JobDetail, waits: bool, is_past: bool) -> Markup {
    let explained = &shown.explanation;
    html! {
        p { code { (explained.reason) } " " span.sentence { (text::of_people(&explained.message)) } }
        dl {
            @if let Some(position) = explained.queue_position {
                dt { "Requests before it" }
                dd { (position.requests_before) @if position.or_more { " or more" } }
            }
            @if let Some(start) = &explained.start {
                dt { "Expected start (UTC)" }
                dd {
                    "p50 " (text::moment(start.p50)) ", p10 " (text::moment(start.p10)) ", p90 " (text::moment(start.p90))
                    ". Basis: " (start.basis)
                }
            }
            @if let Some(estimate) = &explained.estimate {
                dt { "Expected run" }
                dd { (text::span(estimate.run_time)) ", p90 " (text::span(estimate.run_time_p90)) }
            }
            @if let Some(advice) = &shown.advice {
                dt { "Save its work every" }
                dd { (text::span(advice.advised_interval)) " (a failure every " (text::span(advice.mttf)) " is expected)" }
            }
        }
        (details(explained))
        @if waits { (shown.explained_of.note()) }
        @if waits && !is_past && !explained.knows_reservations && shown.explained_of.is_made() {
            p.note { "This replica does not lead: it derives reservations from the state, and says of none that it has slipped." }
        }
    }
}

/// What would help, and what is in the way.
pub(crate) fn details(explained: &v1::Explanation) -> Markup {
    html! {
        @if !explained.remedies.is_empty() {
            h3 { "What would let it start now" }
            ul { @for remedy in &explained.remedies { li { (text::of_people(&remedy.message)) } } }
        }
        (blockers(explained))
        (quotas(explained))
        (clusters(explained))
    }
}

fn blockers(explained: &v1::Explanation) -> Markup {
    if explained.blocking_jobs.is_empty() && explained.borrowers.is_empty() {
        return html! {};
    }
    html! {
        @if !explained.blocking_jobs.is_empty() {
            h3 { "Jobs before it that have reservations" }
            ul {
                @for blocker in explained.blocking_jobs.iter().take(ROWS_MAX) {
                    li {
                        (text::job_link(&blocker.job_id, &blocker.name)) ", "
                        (text::count(blocker.workers.into(), "worker", "workers"))
                        ", starts " (text::moment_utc(blocker.start_time))
                        @if blocker.has_slipped { ", later than was expected" }
                    }
                }
            }
        }
        @if !explained.borrowers.is_empty() {
            h3 { "Who borrows what its tenant is promised" }
            ul {
                @for borrower in explained.borrowers.iter().take(ROWS_MAX) {
                    li {
                        (borrower.tenant) " holds " (text::devices(borrower.devices_milli)) " " (borrower.accelerator_type)
                        " in " (borrower.region) " with " (text::count(borrower.jobs, "job", "jobs"))
                        "; the largest is " (text::job_link(&borrower.largest_job_id, &borrower.largest_job_id))
                        @if !borrower.hindrance_message.is_empty() { ". " (borrower.hindrance_message) }
                    }
                }
            }
        }
    }
}

fn quotas(explained: &v1::Explanation) -> Markup {
    if explained.quotas.is_empty() {
        return html! {};
    }
    let columns = [
        Text("Type"),
        Text("Region"),
        Text("Limit of"),
        Number("Wanted"),
        Number("Left"),
        Number("Used"),
        Number("Limit"),
    ];
    let rows = html! {
        @for quota in explained.quotas.iter().take(ROWS_MAX) {
            tr {
                th scope="row" { (quota.r#type) }
                td { (quota.region) }
                td { (if quota.tenant.is_empty() { "the fleet" } else { quota.tenant.as_str() }) " (" (word::<v1::QuotaLimit>(quota.limit)) ")" }
                td.number { (text::devices(quota.wanted_milli)) }
                td.number { (text::devices(quota.room_milli)) }
                td.number { (text::devices(quota.used_milli)) }
                td.number { (text::devices(quota.limit_milli)) }
            }
        }
    };
    html! {
        h3 { "Quotas that have less left than it asks for" }
        (text::table("Quotas", html! { "Quotas, in devices" }, &columns, rows))
    }
}

fn clusters(explained: &v1::Explanation) -> Markup {
    if explained.clusters.is_empty() {
        return html! {};
    }
    let columns =
        [Text("Cluster"), Text("Type"), Number("Free devices"), Number("Workers that fit"), Text("Nodes")];
    let caption = html! { "What each cluster has for it, and what keeps its workers from nodes" };
    let rows = html! {
        @for fit in explained.clusters.iter().take(ROWS_MAX) {
            tr {
                th scope="row" { (fit.region) "/" (fit.cluster) }
                td { (fit.accelerator_type) }
                td.number { (fit.free_devices) " of " (fit.total_devices) }
                td.number { (fit.workers_that_fit) }
                td {
                    (fit.nodes.as_ref().map(node_counts).unwrap_or_default())
                    @for reason in &fit.out_of_service_reasons { br; (text::of_people(reason)) }
                }
            }
        }
    };
    html! {
        h3 { "Clusters that were looked at" }
        (text::table("Clusters", caption, &columns, rows))
    }
}

/// Nodes by what keeps a worker from them; what counts none is left out.
fn node_counts(counts: &v1::NodeCounts) -> String {
    let all = [
        ("fit", counts.fit),
        ("full", counts.full),
        ("reserved", counts.reserved),
        ("lost", counts.not_up),
        ("cordoned", counts.cordoned),
        ("other labels", counts.wrong_labels),
        ("other purchases", counts.wrong_purchase),
        ("tainted", counts.tainted),
        ("not isolated", counts.not_isolated),
        ("too small", counts.too_small),
        ("in a window", counts.blocked_by_window),
        ("other jobs", counts.kept_away),
    ];
    let given = all.into_iter().filter(|(_, count)| *count > 0);
    let parts: Vec<String> = given.map(|(word, count)| format!("{count} {word}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn placement_of(status: &v1::JobStatus, placement: &v1::Placement) -> Markup {
    let columns = [Number("Rank"), Text("Node"), Text("Devices"), Text("State"), Text("Ended")];
    let caption = html! {
        (text::count(placement.workers.len() as u64, "worker", "workers"))
        @if placement.workers.len() > WORKERS_MAX { "; the first " (WORKERS_MAX) " are listed" }
    };
    let rows = html! {
        @for worker in placement.workers.iter().take(WORKERS_MAX) {
            tr {
                th.number scope="row" { (worker.rank) }
                td { (text::node_link(&worker.node_name)) }
                td { (numbers(&worker.devices)) }
                td { (word::<v1::WorkerState>(worker.state)) }
                td.message { (text::of_people(&worker.exit.as_ref().map(ended).unwrap_or_default())) }
            }
        }
    };
    html! {
        p {
            "Attempt " (status.attempt) " in " (placement.region) "/" (placement.cluster)
            " since " (text::moment_utc(placement.create_time)) "."
            @if status.phase() == v1::JobPhase::Pending { " It is over: the job holds nothing there." }
        }
        (text::table("Workers", caption, &columns, rows))
        @if !placement.spares.is_empty() {
            p { "Spare workers are held on: "
                @for spare in placement.spares.iter().take(ROWS_MAX) { (text::node_link(&spare.node_name)) " " }
            }
        }
    }
}

fn numbers(devices: &[u32]) -> String {
    if devices.is_empty() {
        return "–".to_owned();
    }
    devices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// How a worker ended.
fn ended(exit: &v1::ExitStatus) -> String {
    use v1::exit_status::Kind;
    match &exit.kind {
        Some(Kind::Code(code)) => format!("with code {code}"),
        Some(Kind::Signal(signal)) => format!("by signal {signal}"),
        Some(Kind::LeaseExpired(_)) => "the lease of its node ran out".to_owned(),
        Some(Kind::LaunchFailed(why)) => format!("never started: {why}"),
        Some(Kind::Vanished(_)) => "the agent has no trace of it".to_owned(),
        Some(Kind::NotStarted(_)) => "stopped before it had a process".to_owned(),
        Some(Kind::OutOfMemory(_)) => "used more memory than it asked for".to_owned(),
        Some(Kind::OutOfScratch(_)) => "wrote more to its scratch directory than it asked for".to_owned(),
        Some(Kind::NodeFault(how)) => format!("fault of its node: {how}"),
        Some(Kind::BackendLost(how)) => format!("lost by the cluster below: {how}"),
        Some(Kind::PreflightFailed(how)) => format!("network check failed: {how}"),
        None => String::new(),
    }
}

/// What the state keeps of when things happened, in that order.
fn timeline(status: &v1::JobStatus) -> Markup {
    let history = status.history.clone().unwrap_or_default();
    let controls = status.controls.clone().unwrap_or_default();
    let placed = status.placement.as_ref().and_then(|placement| placement.create_time);
    let failed = history.last_failure.clone();
    let mut moments = vec![
        (status.create_time, "submitted".to_owned()),
        (controls.modify_time, format!("changed by {}", controls.modified_by)),
        (placed, format!("placed, attempt {}", status.attempt)),
        (status.start_time, format!("every worker started, attempt {}", status.attempt)),
        (status.end_time, format!("ended: {}", phase_word(status.phase()))),
        (history.retry_time, "may be placed again".to_owned()),
    ];
    if let Some(hold) = &controls.hold {
        let what = if hold.suspended { "suspended" } else { "held" };
        moments.push((hold.start_time, format!("{what} by {}", hold.principal)));
    }
    if let Some(saved) = &status.last_checkpoint {
        moments.push((saved.time, format!("saved its work, attempt {}", saved.attempt)));
    }
    if let Some(failed) = &failed {
        let class = word::<FailureClass>(failed.failure_class);
        let node =
            if failed.node_name.is_empty() { String::new() } else { format!(" on {}", failed.node_name) };
        moments.push((
            failed.time,
            format!("attempt {} failed ({class}{node}): {}", failed.attempt, failed.message),
        ));
    }
    moments.retain(|(time, _)| time.is_some());
    moments.sort_by_key(|(time, _)| unix_ms(*time));
    let rows = html! {
        @for (time, what) in &moments {
            tr { th scope="row" { (text::moment(*time)) } td.message { (text::of_people(what)) } }
        }
    };
    let caption = html! { "What the state keeps, in the order of log time" };
    text::table("What happened to it", caption, &[Text("When (UTC)"), Text("What")], rows)
}

fn attempts(status: &v1::JobStatus) -> Markup {
    let history = status.history.clone().unwrap_or_default();
    let controls = status.controls.clone().unwrap_or_default();
    html! {
        h3 { "Attempts" }
        dl {
            dt { "Placements" } dd { (status.attempt) }
            dt { "Failures of the application" } dd { (status.failures) }
            dt { "Preemptions" } dd { (status.preemptions) }
            dt { "Requeued by request" }
            dd { (controls.requeue_count) @if !controls.requeued_by.is_empty() { ", last by " (controls.requeued_by) } }
            @if !history.failures.is_empty() {
                dt { "Failures by class" }
                dd {
                    @for count in &history.failures { (count.count) " " (word::<FailureClass>(count.failure_class)) "; " }
                    (history.consecutive_failures) " in a row"
                }
            }
            @if !history.avoided.is_empty() {
                dt { "Keeps away from" }
                dd { @for node in history.avoided.iter().take(ROWS_MAX) { (text::node_link(&node.node_name)) " until " (text::moment_utc(node.expire_time)) "; " } }
            }
            @if !history.stragglers.is_empty() {
                dt { "Slow ranks" }
                dd {
                    @for slow in history.stragglers.iter().take(ROWS_MAX) {
                        "rank " (slow.rank) " takes " (text::devices(slow.slow_milli.into())) " times as long; "
                    }
                }
            }
            @if !history.artifacts.is_empty() {
                dt { "Files kept" }
                dd {
                    @for kept in history.artifacts.iter().take(ROWS_MAX) {
                        "rank " (kept.rank) ": " (kept.files) " files"
                        @if !kept.fault.is_empty() { ", not all: " (text::of_people(&kept.fault)) }
                        "; "
                    }
                }
            }
            @if let Some(saved) = &status.last_checkpoint {
                dt { "Work saved" } dd { (text::moment_utc(saved.time)) ", attempt " (saved.attempt) }
            }
            @if let Some(age) = span_ms(status.estimate.as_ref().and_then(|estimate| estimate.run_time)) {
                dt { "Expected when admitted" } dd { (muster_manifest::quantity::show_about(age)) }
            }
        }
    }
}

fn spec_of(spec: &v1::JobSpec) -> Markup {
    match serde_saphyr::to_string(&spec_fields(spec)) {
        Ok(text) => html! {
            p { "As a job file has it:" }
            pre tabindex="0" role="group" aria-label="Spec as a job file" { (text) }
        },
        Err(_) => {
            html! { p { "It cannot be written as a job file; " code { "muster job show" } " has it." } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail() -> JobDetail {
        let bad = "<script>alert(1)</script>";
        let mut group = v1::TaskGroup {
            name: "main".to_owned(),
            workers: 2,
            runtime: muster_wire::process(vec!["echo".to_owned(), bad.to_owned()]),
            ..Default::default()
        };
        group.environment = vec![v1::EnvVar::new("KEY".to_owned(), bad.to_owned())];
        JobDetail {
            job: v1::Job {
                id: "job-1".to_owned(),
                name: "train".to_owned(),
                tenant: "lab".to_owned(),
                labels: [(bad.to_owned(), bad.to_owned())].into(),
                spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
                status: Some(v1::JobStatus { phase: v1::JobPhase::Pending.into(), ..Default::default() }),
                ..Default::default()
            },
            explanation: v1::Explanation {
                reason: "WAITING_FOR_CAPACITY".to_owned(),
                message: "4 of 8 devices are free".to_owned(),
                remedies: vec![v1::Remedy { message: bad.to_owned() }],
                ..Default::default()
            },
            ..JobDetail::default()
        }
    }

    #[test]
    fn a_pending_job_says_why_and_shows_text_as_text() {
        let page = job(&Frame::default(), &detail());
        for text in ["Why it waits", "WAITING_FOR_CAPACITY", "4 of 8 devices are free", "command:"] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("<script>alert"), "{page}");
    }

    #[test]
    fn a_large_gang_is_listed_in_part() {
        let mut shown = detail();
        let worker = v1::WorkerPlacement { node_name: "h1".to_owned(), ..Default::default() };
        let placement = v1::Placement { workers: vec![worker; 1_000], ..Default::default() };
        shown.job.status_mut().placement = Some(placement);
        let page = job(&Frame::default(), &shown);
        assert!(page.contains("1000 workers; the first 256 are listed"), "{page}");
        assert_eq!(page.matches("/nodes/h1").count(), 256);
    }

    #[test]
    fn what_waits_again_holds_nothing_where_it_was() {
        let mut shown = detail();
        shown.job.status_mut().placement =
            Some(v1::Placement { region: "eu".to_owned(), ..Default::default() });
        let page = job(&Frame::default(), &shown);
        assert!(page.contains("Last placement") && page.contains("the job holds nothing there"), "{page}");
        shown.job.status_mut().phase = v1::JobPhase::Running.into();
        let page = job(&Frame::default(), &shown);
        assert!(page.contains(">Placement</h2>") && !page.contains("holds nothing"), "{page}");
    }

    #[test]
    fn a_member_of_an_array_leads_to_the_others() {
        let mut shown = detail();
        shown.job.array =
            Some(v1::ArrayMember { array_id: "array-1".to_owned(), index: 3, size: 9, ..Default::default() });
        let counts = v1::ArrayCounts { uncreated: 5, pending: 4, ..Default::default() };
        shown.array = Some(v1::Array { counts: Some(counts), ..Default::default() });
        let page = job(&Frame::default(), &shown);
        assert!(page.contains("<a href=\"/jobs?array=array-1\">array-1</a>"), "{page}");
        assert!(page.contains("5 not created yet, 4 pending"), "{page}");
        assert!(
            page.contains("<title>Job train, job-1 – Muster</title>"),
            "two jobs of one name differ: {page}"
        );
    }
}
