//! Who held what and when: a bar for each placement of a job, by node or by job.

use maud::{Markup, html};
use muster_manifest::quantity::show_about;
use muster_types::{LogTime, limits};
use muster_wire::address::encoded;
use muster_wire::time::log_time;

use crate::filters::{choice, field};
use crate::frame::{Frame, Section, document};
use crate::pager::Pager;
use crate::text;
use crate::text::Column::{Number, Text};

/// The range in the units of a drawing.
const WIDTH: u64 = 1_000;
/// A bar is no narrower, so that it can be seen and hit.
const BAR_WIDTH_MIN: u64 = 3;
/// Parts into which marks divide the range.
const MARKS: u64 = 6;
/// Characters of a time in the form.
const TIME_CHARS_MAX: usize = 40;

/// What a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowKind {
    /// A node, with the jobs on it.
    #[default]
    Node,
    /// A job, with its placements.
    Job,
}

impl RowKind {
    /// Every one.
    pub const ALL: [RowKind; 2] = [RowKind::Node, RowKind::Job];

    /// Its word in addresses.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            RowKind::Node => "node",
            RowKind::Job => "job",
        }
    }
}

/// How a placement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndKind {
    /// It has not.
    Holds,
    /// Its work was done.
    Succeeded,
    /// The application failed.
    Failed,
    /// Somebody cancelled the job.
    Cancelled,
    /// Another job goes before it.
    Preempted,
    /// A node or device failed, or was lost or drained.
    Node,
    /// A limit or deadline was over.
    Limit,
    /// It was moved, resized, suspended or placed again for another reason.
    Moved,
    /// Several placements in one bar.
    Several,
}

impl EndKind {
    /// Every one, in the order of the legend.
    pub const ALL: [EndKind; 9] = [
        EndKind::Holds,
        EndKind::Succeeded,
        EndKind::Failed,
        EndKind::Cancelled,
        EndKind::Preempted,
        EndKind::Node,
        EndKind::Limit,
        EndKind::Moved,
        EndKind::Several,
    ];

    /// Its class in the style sheet and the end of the id of its pattern.
    fn class(self) -> &'static str {
        match self {
            EndKind::Holds => "holds",
            EndKind::Succeeded => "succeeded",
            EndKind::Failed => "failed",
            EndKind::Cancelled => "cancelled",
            EndKind::Preempted => "preempted",
            EndKind::Node => "node",
            EndKind::Limit => "limit",
            EndKind::Moved => "moved",
            EndKind::Several => "several",
        }
    }

    /// In words.
    fn meaning(self) -> &'static str {
        match self {
            EndKind::Holds => "goes on",
            EndKind::Succeeded => "succeeded",
            EndKind::Failed => "failed",
            EndKind::Cancelled => "was cancelled",
            EndKind::Preempted => "was preempted",
            EndKind::Node => "its node failed, was lost or drained",
            EndKind::Limit => "ran into its time limit or deadline",
            EndKind::Moved => "was moved, resized or placed again",
            EndKind::Several => "several placements in one bar",
        }
    }

    /// What its pattern draws in a square of twelve by twelve: kinds differ without colours.
    fn pattern(self) -> &'static str {
        match self {
            EndKind::Holds => "M0 5H12V7H0Z",
            EndKind::Succeeded => "",
            EndKind::Failed => "M0 0H3L12 9V12H9L0 3ZM9 0H12V3L3 12H0V9Z",
            EndKind::Cancelled => "M0 9V12H3L12 3V0H9Z",
            EndKind::Preempted => "M0 0H3L12 9V12H9L0 3Z",
            EndKind::Node => "M0 0H6V6H0ZM6 6H12V12H6Z",
            EndKind::Limit => "M0 0H4V12H0Z",
            EndKind::Moved => "M3 3H9V9H3Z",
            EndKind::Several => "M0 0H12V2H0ZM0 4H12V6H0ZM0 8H12V10H0Z",
        }
    }
}

/// What the address asks for, as it was given; what is empty takes a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineQuery {
    /// What the rows are.
    pub by: RowKind,
    /// Beginning of the range.
    pub from: String,
    /// Its end.
    pub to: String,
    /// Only jobs of this tenant.
    pub tenant: String,
    /// Only what is on nodes whose name begins so.
    pub node: String,
    /// Only this job.
    pub job: String,
    /// The name behind which the rows go on.
    pub page: String,
}

/// A placement of a job, or several of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Where it leads.
    pub job_id: String,
    /// The name of the job; its id where it is not kept any more.
    pub name: String,
    /// The tenant; empty where it is not known.
    pub tenant: String,
    /// Beginning, in milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// End; of one that goes on, the end of what is known.
    pub end_ms: u64,
    /// Devices that it held in this row.
    pub devices: u64,
    /// How it ended.
    pub end: EndKind,
    /// Placements in this bar.
    pub placements: u64,
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineRow {
    /// Name of the node, or id of the job.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// Whether there is a page of it: a node or job that is not kept any more has none.
    pub has_page: bool,
    /// In the order of time.
    pub bars: Vec<Bar>,
}

/// What the page shows.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Beginning of the range, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// Its end.
    pub to_ms: u64,
    /// Whether there is something behind its end.
    pub has_later: bool,
    /// By name.
    pub rows: Vec<TimelineRow>,
    /// The name behind which more rows come; empty for none.
    pub next: String,
    /// Up to when the log was read, where that is before the end of the range.
    pub cut_ms: Option<u64>,
    /// Whether the rest is being read.
    pub is_being_read: bool,
    /// From when on something is known, where that is after the beginning of the range.
    pub known_from_ms: Option<u64>,
}

/// The page.
#[must_use]
pub fn timeline(frame: &Frame, query: &TimelineQuery, shown: &Timeline) -> String {
    let parameters = [
        ("by", query.by.word()),
        ("from", query.from.as_str()),
        ("to", query.to.as_str()),
        ("tenant", query.tenant.as_str()),
        ("node", query.node.as_str()),
        ("job", query.job.as_str()),
    ];
    let parameters = parameters.map(|(key, value)| (key, value.to_owned())).into();
    let pager = Pager { path: "/timeline", parameters, page: query.page.clone(), next: shown.next.clone() };
    let body = html! {
        (form(query, shown))
        (moves(query, shown))
        p.note {
            "A bar is a placement of a job from its decision to its end, and leads to the job. Times are in UTC. "
            @if let Some(known) = shown.known_from_ms {
                b { "What was before " (moment(known)) " is not kept here. " }
            }
            @if let Some(cut) = shown.cut_ms {
                @if shown.is_being_read {
                    b { "The range is being read: it is shown up to " (moment(cut)) ". " }
                    "Load the page again for the rest."
                } @else {
                    b { "The range has more than one page reads: it is shown up to " (moment(cut)) ". " }
                    "Ask for a shorter one, or go on later."
                }
            }
        }
        (patterns())
        (legend())
        (rows(query.by, shown))
        (pager.links("First rows", "More rows"))
    };
    document(Some(frame), Some(Section::Timeline), "Timeline", body)
}

fn form(query: &TimelineQuery, shown: &Timeline) -> Markup {
    let kinds = RowKind::ALL.map(|kind| (kind.word(), kind.word()));
    let time =
        |given: &str, ms: u64| if given.is_empty() { LogTime(ms).to_string() } else { given.to_owned() };
    let name = limits::NAME_BYTES_MAX;
    html! {
        form.filters action="/timeline" method="get" aria-label="Range" {
            (choice(&[], ("by", "Rows"), &kinds, query.by.word()))
            (field(&[], ("from", "From"), &time(&query.from, shown.from_ms), TIME_CHARS_MAX))
            (field(&[], ("to", "To"), &time(&query.to, shown.to_ms), TIME_CHARS_MAX))
            (field(&[], ("tenant", "Tenant"), &query.tenant, name))
            (field(&[], ("node", "Node begins with"), &query.node, name))
            (field(&[], ("job", "Job by its id"), &query.job, name))
            div { button type="submit" { "Show" } " " a href="/timeline" { "Clear" } }
        }
    }
}

/// Links to the ranges before and behind.
fn moves(query: &TimelineQuery, shown: &Timeline) -> Markup {
    let span = shown.to_ms.saturating_sub(shown.from_ms);
    let address = |from: u64, to: u64| {
        let (from, to) = (LogTime(from).to_string(), LogTime(to).to_string());
        let parameters = [
            ("by", query.by.word()),
            ("from", from.as_str()),
            ("to", to.as_str()),
            ("tenant", query.tenant.as_str()),
            ("node", query.node.as_str()),
            ("job", query.job.as_str()),
        ];
        text::address("/timeline", parameters.into_iter())
    };
    html! {
        nav.travel aria-label="Range" {
            ul {
                @if shown.from_ms > span {
                    li { a href=(address(shown.from_ms - span, shown.from_ms)) { "Earlier" } }
                }
                @if shown.has_later {
                    li { a href=(address(shown.to_ms, shown.to_ms.saturating_add(span))) { "Later" } }
                }
            }
        }
    }
}

fn moment(ms: u64) -> Markup {
    text::moment_utc(log_time(LogTime(ms)))
}

/// The patterns of all bars of the page.
fn patterns() -> Markup {
    html! {
        svg.visually-hidden aria-hidden="true" focusable="false" {
            defs {
                @for kind in EndKind::ALL {
                    pattern id={ "end-" (kind.class()) } width="12" height="12" patternUnits="userSpaceOnUse" {
                        rect class={ "back-" (kind.class()) } width="12" height="12" {}
                        path.mark d=(kind.pattern()) {}
                    }
                }
            }
        }
    }
}

fn legend() -> Markup {
    html! {
        ul.legend aria-label="How placements ended" {
            @for kind in EndKind::ALL {
                li {
                    svg.swatch viewBox="0 0 12 12" aria-hidden="true" {
                        rect class={ "end-" (kind.class()) } width="12" height="12" {}
                    }
                    " " (kind.meaning())
                }
            }
        }
    }
}

fn rows(by: RowKind, shown: &Timeline) -> Markup {
    if shown.rows.is_empty() {
        let up_to = if shown.cut_ms.is_some() { " up to then" } else { "" };
        return html! { p { "Nothing was placed in this range" (up_to) " that matches." } };
    }
    let (what, heading) = match by {
        RowKind::Node => (text::count(shown.rows.len() as u64, "node", "nodes"), "Node"),
        RowKind::Job => (text::count(shown.rows.len() as u64, "job", "jobs"), "Job"),
    };
    let caption = html! {
        (what) ", from " (moment(shown.from_ms)) " to " (moment(shown.to_ms)) ". Marks are at "
        @for mark in 1..MARKS {
            @if mark > 1 { ", " }
            (moment(shown.from_ms + shown.to_ms.saturating_sub(shown.from_ms) / MARKS * mark))
        }
        "."
    };
    let columns = [Text(heading), Number("Placements"), Text("Time")];
    let rows = html! { @for row in &shown.rows { (row_of(by, row, shown)) } };
    text::table("Timeline", caption, &columns, rows)
}

fn row_of(by: RowKind, row: &TimelineRow, shown: &Timeline) -> Markup {
    let placements: u64 = row.bars.iter().map(|bar| bar.placements).sum();
    html! {
        tr {
            th scope="row" {
                @match (row.has_page, by) {
                    (false, _) => (row.name),
                    (true, RowKind::Node) => (text::node_link(&row.name)),
                    (true, RowKind::Job) => (text::job_link(&row.id, &row.name)),
                }
            }
            td.number { (placements) }
            td {
                svg.timeline viewBox={ "0 0 " (WIDTH) " 24" } preserveAspectRatio="none" role="group"
                    aria-label={ "Placements of " (row.name) } {
                    @for mark in 1..MARKS {
                        rect.tick x=(WIDTH / MARKS * mark) y="0" width="1" height="24" {}
                    }
                    @for bar in &row.bars { (drawn(by, bar, shown)) }
                }
            }
        }
    }
}

/// A bar: a link with a title, in the part of the range that it has.
fn drawn(by: RowKind, bar: &Bar, shown: &Timeline) -> Markup {
    let span = shown.to_ms.saturating_sub(shown.from_ms);
    let place = |ms: u64| text::milli_of(ms.saturating_sub(shown.from_ms), span).min(WIDTH);
    let start = place(bar.start_ms).min(WIDTH - BAR_WIDTH_MIN);
    let width = place(bar.end_ms).saturating_sub(start).max(BAR_WIDTH_MIN);
    let label = label(bar);
    let address = match (by, bar.placements) {
        // One bar of several jobs leads to none of them.
        (RowKind::Node, 2..) => "/jobs".to_owned(),
        _ => format!("/jobs/{}", encoded(&bar.job_id)),
    };
    html! {
        a href=(address) aria-label=(label) {
            title { (label) }
            rect class={ "end-" (bar.end.class()) } x=(start) y="3" width=(width) height="18" {}
        }
    }
}

/// What a bar says, in words.
fn label(bar: &Bar) -> String {
    let (start, end) = (LogTime(bar.start_ms), LogTime(bar.end_ms));
    let long = show_about(end.since_ms(start));
    if bar.placements > 1 {
        return format!("{} placements from {start} to {end}", bar.placements);
    }
    let tenant = if bar.tenant.is_empty() { String::new() } else { format!(" of {}", bar.tenant) };
    let devices = text::count(bar.devices, "device", "devices");
    let until = if bar.end == EndKind::Holds { String::new() } else { format!(" to {end}") };
    format!("{}{tenant}, {devices}, from {start}{until}, {long}: {}", bar.name, bar.end.meaning())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn bar(start_ms: u64, end_ms: u64, end: EndKind) -> Bar {
        Bar {
            job_id: "job-1".to_owned(),
            name: "<script>alert(1)</script>".to_owned(),
            tenant: "lab".to_owned(),
            start_ms,
            end_ms,
            devices: 8,
            end,
            placements: 1,
        }
    }

    fn shown(bars: Vec<Bar>) -> Timeline {
        let row = TimelineRow { id: "h1".to_owned(), name: "h1".to_owned(), has_page: true, bars };
        Timeline { from_ms: 1_000_000, to_ms: 2_000_000, rows: vec![row], ..Timeline::default() }
    }

    #[test]
    fn a_bar_is_a_link_that_says_what_it_is() {
        let shown = shown(vec![bar(900_000, 1_500_000, EndKind::Preempted)]);
        let page = timeline(&Frame::default(), &TimelineQuery::default(), &shown);
        assert!(page.contains("<a href=\"/jobs/job-1\" aria-label=\"&lt;script&gt;"), "{page}");
        assert!(
            page.contains("of lab, 8 devices, from 1970-01-01T00:15:00Z to 1970-01-01T00:25:00Z"),
            "{page}"
        );
        assert!(page.contains("was preempted</title>"), "{page}");
        assert!(page.contains("<rect class=\"end-preempted\" x=\"0\" y=\"3\" width=\"500\""), "{page}");
        assert!(!page.contains("<script>alert") && !page.contains("style="), "{page}");
    }

    #[test]
    fn bars_stay_within_the_range_and_can_be_hit() {
        let times = [(0, 1), (2_000_000, 3_000_000), (1_500_000, 1_500_000), (1 << 40, 0), (0, 1 << 40)];
        for (start, end) in times {
            let range = shown(Vec::new());
            let shown = drawn(RowKind::Node, &bar(start, end, EndKind::Holds), &range).into_string();
            let number = |name: &str| -> u64 {
                let rest = shown.split(&format!(" {name}=\"")).nth(1).expect("it has one");
                rest.split('"').next().and_then(|text| text.parse().ok()).expect("a number")
            };
            let (x, width) = (number("x"), number("width"));
            assert!(width >= BAR_WIDTH_MIN && x + width <= WIDTH, "{start} {end}: {shown}");
        }
    }

    #[test]
    fn kinds_of_ends_differ_without_colours() {
        let styles = include_str!("../assets/page.css");
        let differing =
            |of: fn(EndKind) -> &'static str| EndKind::ALL.into_iter().map(of).collect::<BTreeSet<_>>().len();
        for of in [EndKind::class, EndKind::meaning, EndKind::pattern] {
            assert_eq!(differing(of), EndKind::ALL.len());
        }
        for kind in EndKind::ALL {
            let class = kind.class();
            assert!(styles.contains(&format!("rect.end-{class} {{ fill: url(#end-{class})")), "{class}");
            assert!(styles.contains(&format!("rect.back-{class} {{")), "{class}");
        }
    }

    #[test]
    fn what_is_left_out_is_named() {
        let cut = Timeline { cut_ms: Some(1_200_000), known_from_ms: Some(1_100_000), ..shown(Vec::new()) };
        let page = timeline(&Frame::default(), &TimelineQuery::default(), &cut);
        assert!(page.contains("is not kept here") && page.contains("it is shown up to"), "{page}");
        assert!(page.contains("more than one page reads") && !page.contains("is being read"), "{page}");
        let late = Timeline { is_being_read: true, ..cut.clone() };
        let page = timeline(&Frame::default(), &TimelineQuery::default(), &late);
        assert!(page.contains("is being read") && page.contains("it is shown up to"), "{page}");
        assert!(!page.contains("more than one page reads"), "{page}");
        let none = Timeline { rows: Vec::new(), next: "h1".to_owned(), ..cut };
        let query = TimelineQuery { tenant: "\"><b>".to_owned(), ..TimelineQuery::default() };
        let page = timeline(&Frame::default(), &query, &none);
        assert!(page.contains("Nothing was placed") && !page.contains("\"><b>"), "{page}");
        assert!(page.contains("href=\"/timeline?by=node&amp;tenant=%22%3E%3Cb%3E&amp;page=h1\""), "{page}");
    }
}
