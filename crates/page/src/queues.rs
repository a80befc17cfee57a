//! The tree of tenants with what each uses of its quotas, and whose job is next.

use maud::{Markup, html};
use muster_wire::address::encoded;
use muster_wire::v1;
use std::collections::{BTreeMap, BTreeSet};

use crate::frame::{Frame, Section, document};
use crate::overview::{QueueShown, next_table};
use crate::pager::Pager;
use crate::starts::{ExpectedStart, StartsShown, all_starts, starts};
use crate::text;
use crate::text::Column::{Number, Text};

/// Tenants below tenants that are followed: more levels than a policy may have.
const DEPTH_MAX: usize = 16;

/// Jobs of one schedule that are linked.
const JOBS_OF_SCHEDULE_MAX: usize = 5;

/// Tenants with pending jobs of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierQueue {
    /// The word for the tier.
    pub tier: String,
    /// Tenants with pending jobs of it.
    pub tenants: u64,
}

/// What the page shows.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    /// Tenants, in the order of their names.
    pub tenants: Vec<v1::TenantUsage>,
    /// The front of the pending queue.
    pub next: QueueShown,
    /// Tiers with pending jobs.
    pub tiers: Vec<TierQueue>,
    /// Pending jobs that are members of arrays and not created yet.
    pub uncreated: u64,
    /// Bookings that are not over, by name.
    pub bookings: Vec<v1::Booking>,
    /// What operators hold.
    pub holds: Vec<v1::FleetHold>,
    /// The moment from which on starts are drawn, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Reservations of jobs, and when the jobs of the front are expected to start.
    pub starts: Vec<ExpectedStart>,
    /// When all waiting jobs are expected to start, as far as that was computed.
    pub all_starts: StartsShown,
    /// Where the list of tenants goes on.
    pub pager: Pager,
    /// Schedules of the tenants that the reader acts for.
    pub schedules: Vec<v1::Schedule>,
    /// Whether there are more of them.
    pub leaves_schedules_out: bool,
}

/// The page.
#[must_use]
pub fn queues(frame: &Frame, shown: &Queues) -> String {
    let next = html! {
        (next_table(&shown.next))
        @if !shown.tiers.is_empty() {
            p {
                "Tenants with jobs in the pending queue: "
                @for tier in &shown.tiers { (tier.tenants) " in " (tier.tier) "; " }
                "within a tier the tenant with the smaller share goes first, and those within their nominal quota go "
                "before all that borrow."
            }
        }
    };
    let quotas = html! {
        p.note {
            "A bar is as long as quota with what may be borrowed, or as use where that is more. Solid: used within the nominal "
            "quota. Striped: borrowed. Crossed: nominal, not used, and lent to others that ask. Outlined: nominal, not used and "
            "kept. Dashed: may be borrowed. Use counts the tenants below as well. "
            @if shown.uncreated > 0 {
                (shown.uncreated) " of all pending jobs are members of arrays that are not created yet: lists do not have those."
            }
        }
        (stripes())
        (tree(&shown.tenants))
        (shown.pager.links("First tenants", "More tenants"))
    };
    let body = html! {
        (text::section("next", "Who is next", next))
        @if let Some(drawn) = starts(shown.now_ms, &shown.starts, &shown.bookings) {
            (text::section("starts", "Reservations and expected starts", drawn))
        }
        @if shown.all_starts.waiting > 0 {
            (text::section("all-starts", "Expected start of each waiting job", all_starts(&shown.all_starts)))
        }
        (text::section("quotas", "Quotas", quotas))
        @if !shown.holds.is_empty() { (text::section("holds", "Held by operators", holds(&shown.holds))) }
        @if !shown.bookings.is_empty() { (text::section("bookings", "Bookings", bookings(&shown.bookings))) }
        @if !shown.schedules.is_empty() {
            (text::section("schedules", "Schedules", schedules(shown)))
        }
    };
    document(Some(frame), Some(Section::Queues), "Queues", body)
}

/// What makes jobs again and again, and when next.
fn schedules(shown: &Queues) -> Markup {
    let columns = [
        Text("Schedule"),
        Text("Tenant"),
        Text("When"),
        Text("Next (UTC)"),
        Text("Jobs not over"),
        Text("Owner"),
    ];
    let rows = html! {
        @for schedule in &shown.schedules {
            // `muster open schedule` leads here.
            tr id={ "schedule-" (encoded(&schedule.name)) } {
                th scope="row" { (schedule.name) }
                td { a href={ "/jobs?tenant=" (encoded(&schedule.tenant)) } { (schedule.tenant) } }
                td { code { (schedule.cron) } " in " (schedule.time_zone) }
                td.message {
                    @if let Some(suspension) = &schedule.suspension {
                        "suspended since " (text::moment_utc(suspension.since)) ": " (text::of_people(&suspension.reason))
                    } @else {
                        (text::moment(schedule.next_run_at))
                    }
                }
                td { @for job in schedule.unfinished_job_ids.iter().take(JOBS_OF_SCHEDULE_MAX) { (text::job_link(job, job)) " " } }
                td { (schedule.owner) }
            }
        }
    };
    html! {
        (text::table("Schedules", html! { "Schedules of the tenants that you act for" }, &columns, rows))
        @if shown.leaves_schedules_out {
            p.note { "There are more: " code { "muster schedule list" } " has all of them." }
        }
    }
}

/// The patterns of what is borrowed and of what is lent, for all bars of the page.
fn stripes() -> Markup {
    html! {
        svg.visually-hidden aria-hidden="true" focusable="false" {
            defs {
                pattern #stripes width="24" height="60" patternUnits="userSpaceOnUse" {
                    rect.stripe x="0" y="0" width="12" height="60" {}
                }
                pattern #crosses width="24" height="20" patternUnits="userSpaceOnUse" {
                    rect.cross x="0" y="0" width="24" height="4" {}
                    rect.cross x="0" y="0" width="4" height="20" {}
                }
            }
        }
    }
}

/// The tenants in the order of the tree, each with its depth; those whose parent is on another page come first level.
fn ordered(tenants: &[v1::TenantUsage]) -> Vec<(usize, &v1::TenantUsage)> {
    let names: BTreeSet<&str> = tenants.iter().map(|tenant| tenant.tenant.as_str()).collect();
    let mut below: BTreeMap<&str, Vec<&v1::TenantUsage>> = BTreeMap::new();
    for tenant in tenants {
        let parent = if names.contains(tenant.parent.as_str()) { tenant.parent.as_str() } else { "" };
        below.entry(parent).or_default().push(tenant);
    }
    let mut rows = Vec::new();
    let mut stack: Vec<(usize, &v1::TenantUsage)> =
        below.get("").into_iter().flatten().rev().map(|tenant| (0, *tenant)).collect();
    while let Some((depth, tenant)) = stack.pop() {
        rows.push((depth, tenant));
        if depth < DEPTH_MAX {
            let children = below.get(tenant.tenant.as_str()).into_iter().flatten().rev();
            stack.extend(children.map(|child| (depth + 1, *child)));
        }
    }
    rows
}

fn tree(tenants: &[v1::TenantUsage]) -> Markup {
    if tenants.is_empty() {
        return html! { p { "No tenant is named by the policy or has jobs." } };
    }
    let columns = [
        Text("Tenant"),
        Number("Pending jobs"),
        Number("Jobs that hold devices"),
        Number("Weight"),
        Number("Share"),
        Text("Quota"),
    ];
    let rows = html! { @for (depth, tenant) in ordered(tenants) { (row(depth, tenant)) } };
    text::table("Tenants", html! { "Tenants and their quotas, in devices" }, &columns, rows)
}

fn row(depth: usize, tenant: &v1::TenantUsage) -> Markup {
    html! {
        // Addresses of other pages and of `muster open queue` lead here.
        tr id={ "tenant-" (encoded(&tenant.tenant)) } {
            th scope="row" {
                @for _ in 0..depth { span.indent aria-hidden="true" { "└ " } }
                a href={ "/jobs?tenant=" (encoded(&tenant.tenant)) } { (tenant.tenant) }
                @if !tenant.parent.is_empty() { span.visually-hidden { ", below " (tenant.parent) } }
            }
            td.number {
                (tenant.pending_jobs)
                @if tenant.gated_jobs > 0 { " (" (tenant.gated_jobs) " may not start yet)" }
            }
            td.number { (tenant.active_jobs) " (" (text::devices(tenant.active_devices_milli)) " devices)" }
            td.number { (text::devices(tenant.weight_milli.into())) }
            td.number { (share(tenant.share_billionths)) }
            td {
                @if tenant.quotas.is_empty() {
                    @for used in tenant.uses.iter().filter(|used| used.used_milli > 0) {
                        div { (text::devices(used.used_milli)) " " (used.r#type) ", no quota" }
                    }
                } @else {
                    @for quota in &tenant.quotas { (bar(quota)) }
                }
            }
        }
    }
}

/// When windows recur, as in `mon-fri at 09:00 in Europe/Berlin`.
fn rule_text(rule: &v1::BookingRule) -> String {
    format!("{} at {} in {}", rule.weekdays, rule.time, rule.zone)
}

/// Which nodes are kept for whom, and when.
fn bookings(bookings: &[v1::Booking]) -> Markup {
    let columns = [
        Text("Booking"),
        Text("Tenant"),
        Text("Window"),
        Number("Windows left"),
        Number("Nodes"),
        Text("Reason"),
    ];
    let rows = html! {
        @for booking in bookings {
            // `muster open booking` leads here.
            tr id={ "booking-" (encoded(&booking.name)) } {
                th scope="row" { (booking.name) }
                td { (booking.spec.as_ref().map_or("", whose)) }
                td {
                    (if booking.open { "open, " } else { "" })
                    (text::moment_utc(booking.window_start_time)) " to " (text::moment_utc(booking.window_end_time))
                    @if let Some(rule) = booking.spec.as_ref().and_then(|spec| spec.rule.as_ref()) {
                        ", " (rule_text(rule))
                    }
                }
                td.number { (booking.windows_left) }
                td.number { (place(booking)) }
                td { (text::of_people(booking.spec.as_ref().map_or("", |spec| spec.reason.as_str()))) }
            }
        }
    };
    text::table(
        "Bookings",
        html! { "Nodes that are kept for one tenant, or for maintenance" },
        &columns,
        rows,
    )
}

/// The owner of a booking.
fn whose(spec: &v1::BookingSpec) -> &str {
    if spec.maintenance { "maintenance" } else { spec.tenant.as_str() }
}

/// How many nodes a booking has, or the place of which it has all.
fn place(booking: &v1::Booking) -> String {
    let shape = booking.spec.as_ref().and_then(|spec| spec.shape.as_ref());
    let is_place = |shape: &&v1::BookingShape| booking.nodes.is_empty() && !shape.region.is_empty();
    let is_cluster = |shape: &&v1::BookingShape| booking.nodes.is_empty() && !shape.cluster.is_empty();
    match (shape.filter(is_place), shape.filter(is_cluster)) {
        (Some(shape), Some(_)) => format!("all of {}/{}", shape.region, shape.cluster),
        (Some(shape), None) => format!("all of {}", shape.region),
        (None, Some(shape)) => format!("all of cluster {}", shape.cluster),
        (None, None) => booking.nodes.len().to_string(),
    }
}

/// Where nothing starts, and whose jobs do not.
fn holds(holds: &[v1::FleetHold]) -> Markup {
    let columns =
        [Text("Region"), Text("Cluster"), Text("Tenant"), Text("Until"), Text("Drained"), Text("Reason")];
    let rows = html! {
        @for hold in holds {
            @let target = hold.target.clone().unwrap_or_default();
            tr {
                th scope="row" { (target.region) }
                td { (target.cluster) }
                td { (target.tenant) }
                td { @if hold.end_time.is_some() { (text::moment_utc(hold.end_time)) } @else { "it is released" } }
                td { (if hold.drain { "yes" } else { "no" }) }
                td { (text::of_people(&hold.reason)) }
            }
        }
    };
    text::table("Holds", html! { "Nothing starts there, or of the tenant" }, &columns, rows)
}

/// Billionths as percent, with three decimals.
fn share(billionths: u64) -> String {
    format!("{} %", muster_manifest::quantity::show_scaled(billionths / 10_000, 3))
}

/// A quota as a bar, with the numbers next to it.
fn bar(quota: &v1::QuotaUse) -> Markup {
    // Without a limit nobody knows how long that part would be.
    let may_borrow = quota.borrowing_limit_milli.unwrap_or_default();
    let whole = quota.nominal_milli.saturating_add(may_borrow).max(quota.used_milli);
    let within = quota.used_milli.min(quota.nominal_milli);
    let borrowed = quota.used_milli.saturating_sub(quota.nominal_milli);
    let (nominal_part, within_part) =
        (text::milli_of(quota.nominal_milli, whole), text::milli_of(within, whole));
    let idle = quota.nominal_milli.saturating_sub(within);
    let lendable = quota.lending_limit_milli.map_or(idle, |limit| limit.min(idle));
    let place = if quota.region.is_empty() { "all regions" } else { quota.region.as_str() };
    let label = format!(
        "{} in {place}: {} used of {} nominal, {} borrowed, {} for others to borrow",
        quota.r#type,
        text::devices(quota.used_milli),
        text::devices(quota.nominal_milli),
        text::devices(borrowed),
        text::devices(lendable)
    );
    let mut parts = vec![("nominal", 0, nominal_part), ("used", 0, within_part)];
    if may_borrow > 0 {
        parts.insert(0, ("may-borrow", nominal_part, text::milli_of(may_borrow, whole)));
    }
    if lendable > 0 {
        parts.push(("lendable", within_part, text::milli_of(lendable, whole)));
    }
    if borrowed > 0 {
        parts.push(("borrowed", nominal_part, text::milli_of(borrowed, whole)));
    }
    html! {
        div.quota {
            (text::bar(None, &parts))
            span { (label) }
            @if let Some(limit) = quota.borrowing_limit_milli { span { "; may borrow " (text::devices(limit)) } }
            @if let Some(limit) = quota.lending_limit_milli { span { "; lends " (text::devices(limit)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, parent: &str) -> v1::TenantUsage {
        v1::TenantUsage { tenant: name.to_owned(), parent: parent.to_owned(), ..Default::default() }
    }

    #[test]
    fn schedules_say_when_they_are_due_or_why_they_are_not() {
        let due = v1::Schedule {
            name: "nightly".into(),
            tenant: "a".into(),
            cron: "0 6 * * 1-5".into(),
            time_zone: "Europe/Berlin".into(),
            next_run_at: Some(muster_wire::time::timestamp(1_800_000_000_000)),
            unfinished_job_ids: (1..9).map(|number| format!("job-{number}")).collect(),
            ..Default::default()
        };
        let reason = "<b>the owner is gone</b>".to_owned();
        let suspension = v1::ScheduleSuspension { reason, ..Default::default() };
        let suspended = v1::Schedule { suspension: Some(suspension), next_run_at: None, ..due.clone() };
        let shown =
            Queues { schedules: vec![due, suspended], leaves_schedules_out: true, ..Default::default() };
        let page = schedules(&shown).into_string();
        assert!(page.contains("<code>0 6 * * 1-5</code> in Europe/Berlin"), "{page}");
        assert!(page.contains("job-5") && !page.contains("job-6"), "{page}");
        assert!(page.contains("&lt;b&gt;the owner is gone") && !page.contains("<b>"), "{page}");
        assert!(page.contains("muster schedule list"), "{page}");
        assert!(page.contains("<tr id=\"schedule-nightly\">"), "{page}");
    }

    #[test]
    fn tenants_come_in_the_order_of_the_tree() {
        let tenants =
            [tenant("a", "z"), tenant("b", ""), tenant("c", "gone"), tenant("d", "a"), tenant("z", "")];
        let rows: Vec<(usize, &str)> =
            ordered(&tenants).into_iter().map(|(depth, tenant)| (depth, tenant.tenant.as_str())).collect();
        assert_eq!(rows, [(0, "b"), (0, "c"), (0, "z"), (1, "a"), (2, "d")]);
    }

    #[test]
    fn bookings_are_listed_and_texts_of_people_are_texts() {
        let spec = v1::BookingSpec {
            tenant: "vision".to_owned(),
            reason: "<b>demo</b>".to_owned(),
            rule: Some(v1::BookingRule {
                weekdays: "mon-fri".to_owned(),
                time: "09:00".to_owned(),
                zone: "Europe/Berlin".to_owned(),
            }),
            ..Default::default()
        };
        let booking = v1::Booking {
            name: "demo".to_owned(),
            spec: Some(spec),
            nodes: vec!["h1".to_owned(), "h2".to_owned()],
            open: true,
            ..Default::default()
        };
        let shown = bookings(&[booking]).into_string();
        assert!(shown.contains("demo") && shown.contains("vision") && shown.contains("open, "), "{shown}");
        assert!(shown.contains("mon-fri at 09:00 in Europe/Berlin"), "{shown}");
        assert!(shown.contains("<tr id=\"booking-demo\">"), "{shown}");
        assert!(!shown.contains("<b>"), "{shown}");
    }

    #[test]
    fn holds_and_maintenance_say_what_they_are_of() {
        let target = v1::HoldTarget { region: "eu".to_owned(), ..Default::default() };
        let hold =
            v1::FleetHold { target: Some(target), reason: "a <flood>".to_owned(), ..Default::default() };
        let shown = holds(&[hold]).into_string();
        assert!(shown.contains("eu") && shown.contains("it is released"), "{shown}");
        assert!(!shown.contains("<flood>"), "{shown}");
        let shape = v1::BookingShape { region: "eu".to_owned(), ..Default::default() };
        let spec = v1::BookingSpec { maintenance: true, shape: Some(shape), ..Default::default() };
        let upgrade = v1::Booking { name: "upgrade".to_owned(), spec: Some(spec), ..Default::default() };
        let shown = bookings(&[upgrade]).into_string();
        assert!(shown.contains("maintenance") && shown.contains("all of eu"), "{shown}");
    }

    #[test]
    fn bars_say_what_is_borrowed() {
        let quota = v1::QuotaUse {
            r#type: "h100".to_owned(),
            nominal_milli: 8_000,
            used_milli: 12_000,
            borrowing_limit_milli: Some(8_000),
            ..Default::default()
        };
        let shown = bar(&quota).into_string();
        assert!(shown.contains("h100 in all regions: 12 used of 8 nominal, 4 borrowed"), "{shown}");
        assert!(shown.contains("may borrow 8"), "{shown}");
        assert!(shown.contains("<rect class=\"borrowed\""), "{shown}");
        let styles = include_str!("../assets/page.css");
        assert!(styles.contains("rect.borrowed { fill: url(#stripes)"), "it is striped");
        assert!(stripes().into_string().contains("id=\"stripes\""));
    }

    #[test]
    fn bars_say_what_is_lent_and_what_may_be_borrowed() {
        let quota = v1::QuotaUse {
            r#type: "h100".to_owned(),
            nominal_milli: 8_000,
            used_milli: 2_000,
            borrowing_limit_milli: Some(8_000),
            lending_limit_milli: Some(4_000),
            ..Default::default()
        };
        let shown = bar(&quota).into_string();
        assert!(shown.contains("2 used of 8 nominal, 0 borrowed, 4 for others to borrow"), "{shown}");
        for rect in [
            "<rect class=\"may-borrow\" x=\"500\" y=\"0\" width=\"500\"",
            "<rect class=\"nominal\" x=\"0\" y=\"0\" width=\"500\"",
            "<rect class=\"used\" x=\"0\" y=\"0\" width=\"125\"",
            "<rect class=\"lendable\" x=\"125\" y=\"0\" width=\"250\"",
        ] {
            assert!(shown.contains(rect), "{rect}: {shown}");
        }
        // Without a limit all that is idle is lent; nothing is where everything is in use.
        let all = v1::QuotaUse { lending_limit_milli: None, ..quota.clone() };
        assert!(bar(&all).into_string().contains("6 for others to borrow"));
        let none = v1::QuotaUse { used_milli: 8_000, ..quota };
        assert!(!bar(&none).into_string().contains("lendable"));
        let styles = include_str!("../assets/page.css");
        assert!(styles.contains("rect.lendable { fill: url(#crosses)"), "it is crossed");
        assert!(stripes().into_string().contains("id=\"crosses\""));
    }
}
