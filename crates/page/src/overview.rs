//! The first page: replicas, devices, what waits, what runs, and what changed last.

use maud::{Markup, html};
use muster_manifest::quantity::show_scaled;
use muster_wire::address::encoded;
use muster_wire::time::span_ms;
use muster_wire::v1;

use crate::event::{self, Event};
use crate::filters::{ACTIVE, FINISHED};
use crate::frame::{Frame, Section, document};
use crate::starts::{EstimateOf, ExpectedStart};
use crate::text;
use crate::text::Column::{Number, Text};
use crate::text::JobCells;

/// Millionths in the whole.
const MILLIONTHS: u64 = 1_000_000;

/// Devices of one type in one cluster of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Region.
    pub region: String,
    /// Cluster of hosts.
    pub cluster: String,
    /// Type of accelerator.
    pub kind: String,
    /// Devices of every registered node.
    pub total: u64,
    /// Devices that nothing holds, on nodes that take work.
    pub free: u64,
    /// Devices on nodes that take no new work, and devices at fault.
    pub unavailable: u64,
    /// Devices that another scheduler holds, on nodes that take work.
    pub foreign: u64,
}

impl PoolUse {
    /// Devices that work holds, whole or in part, or that are kept for a gang, on nodes that take work.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.total.saturating_sub(self.free).saturating_sub(self.unavailable).saturating_sub(self.foreign)
    }
}

/// A job that is offered capacity soon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextJob {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its tenant.
    pub tenant: String,
    /// The word for its tier.
    pub tier: String,
    /// Devices that it asks for.
    pub devices: u64,
    /// Whether its tenant has nominal quota left for it.
    pub within_nominal: bool,
    /// Code of why it waits; empty where that was not asked.
    pub reason: String,
    /// The same as a sentence.
    pub message: String,
    /// When it is expected to start; none where that was not computed or is not known.
    pub start: Option<ExpectedStart>,
}

/// The front of the pending queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueShown {
    /// In the order in which they are offered capacity.
    pub jobs: Vec<NextJob>,
    /// Whether there are more that were not looked for.
    pub is_cut: bool,
    /// Which state the reasons are of.
    pub of: EstimateOf,
}

/// What was spent of the calls that may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorBudget {
    /// What is promised of calls, as a sentence.
    pub promise: &'static str,
    /// The calls that may fail, in millionths of all.
    pub budget_millionths: u64,
    /// Calls.
    pub calls: u64,
    /// Of those, the ones that failed by the fault of the service.
    pub failed: u64,
    /// Whether seconds of time are counted, and no calls.
    pub is_time: bool,
}

/// What was spent of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorBudgets {
    /// One for each objective; none in the past.
    pub rows: Vec<ErrorBudget>,
    /// Days that the account has.
    pub days: u64,
    /// Whether the account was damaged, so that it has begun again.
    pub is_restarted: bool,
}

impl ErrorBudget {
    /// The part of the budget that is spent, in thousandths; none without calls.
    fn spent_milli(&self) -> Option<u64> {
        let failed = u128::from(self.failed) * 1_000 * u128::from(MILLIONTHS);
        let allowed = u128::from(self.calls) * u128::from(self.budget_millionths);
        failed.checked_div(allowed).map(|spent| u64::try_from(spent).unwrap_or(u64::MAX))
    }
}

/// What the first page shows.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// Replicas, numbers of jobs and nodes, and warnings.
    pub status: v1::GetStatusResponse,
    /// Devices.
    pub pools: Vec<PoolUse>,
    /// Whether there are more pools than that.
    pub leaves_pools_out: bool,
    /// Error budgets of this replica; none in the past.
    pub budgets: ErrorBudgets,
    /// Pending jobs that wait for another job or a time, or that somebody holds.
    pub gated: u64,
    /// Whether there are tenants whose jobs are not in that number.
    pub gated_or_more: bool,
    /// Of the pending jobs, the members of arrays that are not created yet.
    pub uncreated: u64,
    /// The front of the pending queue.
    pub next: QueueShown,
    /// Jobs that hold devices, newest first.
    pub active: Vec<v1::Job>,
    /// What changed last, newest first.
    pub events: Vec<Event>,
}

/// The first page.
#[must_use]
pub fn overview(frame: &Frame, shown: &Overview) -> String {
    let status = &shown.status;
    let newest = html! {
        (event::table(&shown.events, "Newest changes"))
        p { a href="/events" { "All that are kept, and live" } }
    };
    let body = html! {
        @if !frame.is_past() && !status.warnings.is_empty() { (text::section("warnings", "Warnings", warnings(status))) }
        (text::section("numbers", "Numbers", numbers(shown)))
        @if !shown.budgets.rows.is_empty() { (text::section("budgets", "Error budgets", budgets(&shown.budgets))) }
        (text::section("devices", "Devices", devices(shown)))
        (text::section("pending", "The front of the pending queue", pending(shown)))
        (text::section("active", "Jobs that hold devices", active(shown)))
        // Replicas and what is kept in memory are of the present alone.
        @if !frame.is_past() {
            (text::section("newest", "Events", newest))
            (text::section("replicas", "Replicas", html! {
                (replicas(status))
                p { a href="/cluster" { "Their health, and drills" } }
            }))
        }
    };
    document(Some(frame), Some(Section::Overview), "Overview", body)
}

pub(crate) fn warnings(status: &v1::GetStatusResponse) -> Markup {
    html! {
        ul.problems {
            @for warning in &status.warnings { li { code { (warning.code) } " " (warning.message) } }
        }
    }
}

/// The numbers, each a link to what it counts.
fn numbers(shown: &Overview) -> Markup {
    let status = &shown.status;
    let jobs = |phases: &str| format!("/jobs?phase={}", encoded(phases));
    let or_more = if shown.gated_or_more { " or more" } else { "" };
    let all = [
        (status.jobs_pending.to_string(), "pending jobs", jobs("pending")),
        (format!("{}{or_more}", shown.gated), "of them may not start yet", "/queues".to_owned()),
        (status.jobs_active.to_string(), "jobs that hold devices", jobs(ACTIVE)),
        (status.jobs_finished.to_string(), "finished jobs that are kept", jobs(FINISHED)),
        (status.nodes_up.to_string(), "nodes that are not lost", "/nodes?state=not-lost".to_owned()),
        (status.nodes_lost.to_string(), "nodes that are lost", "/nodes?state=lost".to_owned()),
    ];
    html! {
        ul.numbers {
            @for (number, what, address) in &all {
                li { a href=(address) { span.value { (number) } " " span.what { (what) } } }
            }
        }
        @if shown.uncreated > 0 {
            p.note {
                (shown.uncreated) " of the pending jobs are members of arrays that are not created yet: lists do not have those."
            }
        }
    }
}

fn budgets(budgets: &ErrorBudgets) -> Markup {
    let columns = [
        Text("Objective"),
        Number("Promised"),
        Number("Calls or time"),
        Number("Bad"),
        Number("Budget spent"),
    ];
    let amount = |budget: &ErrorBudget, number: u64| match budget.is_time {
        true => format!("{number} s"),
        false => number.to_string(),
    };
    let percent = |tenths: u64| format!("{} %", show_scaled(tenths, 1));
    let rows = html! {
        @for budget in &budgets.rows {
            tr {
                th.message scope="row" { (budget.promise) }
                td.number { (show_scaled(MILLIONTHS.saturating_sub(budget.budget_millionths), 4)) " %" }
                td.number { (amount(budget, budget.calls)) }
                td.number { (amount(budget, budget.failed)) }
                td.number { (budget.spent_milli().map_or("–".to_owned(), percent)) }
            }
        }
    };
    html! {
        (text::table("Error budgets", html! { "By this replica, of the last 30 days as far as its account goes" }, &columns, rows))
        p.note {
            "The account has " (text::count(budgets.days, "day", "days")) ". "
            @if budgets.is_restarted { "What was in it before was damaged, so it has begun again. " }
            "A refusal with a reason is an answer. The objectives are promised over 30 days and all replicas: alerts watch that, from "
            code { "ops/slo" } "."
        }
    }
}

fn devices(shown: &Overview) -> Markup {
    if shown.pools.is_empty() {
        return html! { p { "No node with accelerators has registered." } };
    }
    let columns = [
        Text("Type"),
        Text("Region"),
        Text("Cluster"),
        Number("Free"),
        Number("Busy"),
        Number("Held by others"),
        Number("Unavailable"),
        Number("All"),
        Text("Use"),
    ];
    let rows = html! {
        @for pool in &shown.pools {
            tr {
                th scope="row" { (pool.kind) }
                td { (pool.region) }
                td { (pool.cluster) }
                td.number { (pool.free) }
                td.number { (pool.busy()) }
                td.number { (pool.foreign) }
                td.number { (pool.unavailable) }
                td.number { (pool.total) }
                td { (use_bar(pool)) }
            }
        }
    };
    html! {
        (text::table("Devices", html! { "Devices by type and place" }, &columns, rows))
        @if shown.leaves_pools_out { p { "There are more; " code { "/metrics" } " has up to a thousand." } }
        p.note {
            "Free: nothing holds the device, and its node takes work. Held by others: another scheduler of the same hosts has it. "
            "Unavailable: its node is lost, cordoned, drained, quarantined, closed or in repair, or the device is at fault. Busy: all "
            "others, also where only a share is held, or where the device is kept for a gang that waits for others to stop."
        }
    }
}

fn use_bar(pool: &PoolUse) -> Markup {
    let [busy, foreign, unavailable] =
        [pool.busy(), pool.foreign, pool.unavailable].map(|part| text::milli_of(part, pool.total));
    let label = format!(
        "{} of {} busy, {} held by others, {} unavailable",
        pool.busy(),
        pool.total,
        pool.foreign,
        pool.unavailable
    );
    let from = 1_000_u64.saturating_sub(unavailable);
    let parts = [
        ("nominal", 0, 1_000),
        ("used", 0, busy),
        ("foreign", busy, foreign),
        ("unavailable", from, unavailable),
    ];
    text::bar(Some(&label), &parts)
}

fn pending(shown: &Overview) -> Markup {
    html! {
        (next_table(&shown.next))
        p.note {
            "Jobs that ask for the same in the same queue are one row: the first of them. The reason is what "
            code { "muster job explain" } " says."
        }
    }
}

/// The front of the queue as a table.
pub(crate) fn next_table(next: &QueueShown) -> Markup {
    let has_starts = next.jobs.iter().any(|job| job.start.is_some());
    let mut columns = vec![
        Text("Job"),
        Text("Tenant"),
        Text("Tier"),
        Number("Devices"),
        Text("Quota"),
        Text("Waits because"),
    ];
    if has_starts {
        columns.push(Text("Expected start (UTC)"));
    }
    let rows = html! {
        @for job in &next.jobs {
            tr {
                (text::job_cells(&JobCells {
                    id: &job.id,
                    name: &job.name,
                    tenant: &job.tenant,
                    phase: None,
                    tier: &job.tier,
                    devices: job.devices,
                }))
                td { (if job.within_nominal { "within nominal" } else { "borrows, or no quota" }) }
                td.message {
                    @if !job.reason.is_empty() { code { (job.reason) } " " }
                    (text::of_people(&job.message))
                }
                @if has_starts { td { (job.start.as_ref().map_or_else(|| html! { "–" }, ExpectedStart::range)) } }
            }
        }
    };
    html! {
        @if !next.jobs.is_empty() {
            (text::table("Next in the pending queue", html! { "Jobs that are offered capacity next" }, &columns, rows))
            (next.of.note())
        } @else if !next.is_cut {
            p { "No job waits for capacity." }
        }
        @if next.is_cut {
            p.note {
                "There are more: too many requests without nominal quota come before those that borrow to look at all of them here."
            }
        }
    }
}

fn active(shown: &Overview) -> Markup {
    if shown.active.is_empty() {
        return html! { p { "No job holds devices." } };
    }
    let columns = [
        Text("Job"),
        Text("Tenant"),
        Text("Phase"),
        Text("Tier"),
        Number("Devices"),
        Text("Region"),
        Text("Since (UTC)"),
    ];
    let rows = html! {
        @for job in &shown.active {
            @let status = job.status.clone().unwrap_or_default();
            tr {
                (text::job_cells(&JobCells::of(job, &status)))
                td { (text::region(&status)) }
                td { (text::moment(status.placement.as_ref().and_then(|placement| placement.create_time))) }
            }
        }
    };
    text::table("Active jobs", html! { "The newest of them" }, &columns, rows)
}

fn replicas(status: &v1::GetStatusResponse) -> Markup {
    let columns = [
        Text("Replica"),
        Text("Region"),
        Text("Role"),
        Number("Entries behind"),
        Number("Not heard for"),
        Text("Disk"),
        Text("Version"),
    ];
    let caption = html! {
        "As this one knows them: term " (status.term) ", record format " (status.record_format)
    };
    let rows = html! { @for replica in &status.replicas { (replica_row(replica)) } };
    text::table("Replicas of the cluster", caption, &columns, rows)
}

/// A replica as a row of the tables of replicas.
pub(crate) fn replica_row(replica: &v1::Replica) -> Markup {
    let role = match (replica.leader, replica.voter) {
        (true, _) => "leader",
        (false, true) => "follower",
        (false, false) => "learner",
    };
    let health = replica.health.as_ref();
    let disk = match health.map(v1::ReplicaHealth::space) {
        Some(v1::StorageSpace::Enough) => "enough",
        Some(v1::StorageSpace::Low) => "low",
        Some(v1::StorageSpace::Full) => "full",
        Some(v1::StorageSpace::Unspecified) | None => "not known",
    };
    html! {
        tr {
            th scope="row" { (replica.id) }
            td { (replica.region) }
            td { (text::badge(role)) }
            td.number { (replica.lag_entries.map_or("–".to_owned(), |lag| lag.to_string())) }
            td.number { (span_ms(replica.silence).map_or("–".to_owned(), |ms| format!("{ms} ms"))) }
            td { (disk) }
            td { (health.map_or("not known", |health| health.version.as_str())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_free_nor_unavailable_is_busy() {
        let pool = PoolUse { total: 16, free: 3, unavailable: 8, foreign: 1, ..Default::default() };
        assert_eq!(pool.busy(), 4);
        let shown = use_bar(&pool).into_string();
        assert!(shown.contains("4 of 16 busy, 1 held by others, 8 unavailable"), "{shown}");
        assert_eq!(PoolUse { total: 1, free: 3, ..Default::default() }.busy(), 0);
    }

    #[test]
    fn error_budgets_say_what_is_spent() {
        let budget = ErrorBudget {
            promise: "It answers.",
            budget_millionths: 500,
            calls: 10_000,
            failed: 1,
            is_time: false,
        };
        let spent = |calls, failed| ErrorBudget { calls, failed, ..budget }.spent_milli();
        assert_eq!([spent(10_000, 1), spent(10_000, 5), spent(0, 0)], [Some(200), Some(1_000), None]);
        assert_eq!(spent(u64::MAX, u64::MAX), Some(2_000_000));
        let time = ErrorBudget { calls: 86_400, failed: 0, is_time: true, ..budget };
        let rows = vec![budget, ErrorBudget { calls: 0, failed: 0, ..budget }, time];
        let shown = budgets(&ErrorBudgets { rows, days: 3, is_restarted: true }).into_string();
        for text in
            ["It answers.", "99.95 %", ">10000<", ">20 %<", ">–<", ">86400 s<", "3 days", "begun again"]
        {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let past = overview(&Frame::default(), &Overview::default());
        assert!(!past.contains("Error budgets"), "{past}");
    }

    #[test]
    fn an_empty_cluster_has_a_page() {
        let page = overview(&Frame::default(), &Overview::default());
        for text in ["No job holds devices", "No job waits for capacity", "No node with accelerators"] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn the_past_has_no_replicas_and_no_warnings() {
        let warning = v1::ClusterWarning { message: "of now".to_owned(), ..Default::default() };
        let status = v1::GetStatusResponse { warnings: vec![warning], ..Default::default() };
        let shown = Overview { status, ..Overview::default() };
        let travel = crate::TimeTravel { path: "/".to_owned(), is_past: true, ..Default::default() };
        let page = overview(&Frame { travel: Some(travel), ..Frame::default() }, &shown);
        assert!(!page.contains("of now") && !page.contains("Replicas of the cluster"), "{page}");
        assert!(overview(&Frame::default(), &shown).contains("of now"));
    }

    #[test]
    fn numbers_lead_to_what_they_count() {
        let status = v1::GetStatusResponse { jobs_active: 12, nodes_lost: 3, ..Default::default() };
        let shown = Overview { status, gated: 9, gated_or_more: true, uncreated: 5, ..Default::default() };
        let page = overview(&Frame::default(), &shown);
        for text in [
            "<a href=\"/jobs?phase=starting%2Crunning%2Cstopping\"><span class=\"value\">12</span>",
            "<a href=\"/nodes?state=lost\"><span class=\"value\">3</span>",
            "9 or more</span>",
            "5 of the pending jobs are members of arrays that are not created yet",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn a_front_that_was_not_found_is_no_empty_queue() {
        let shown = next_table(&QueueShown { is_cut: true, ..QueueShown::default() }).into_string();
        assert!(!shown.contains("No job waits") && shown.contains("There are more"), "{shown}");
    }
}
