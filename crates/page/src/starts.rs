//! What is promised and expected to begin, as bars over time: windows of bookings, reservations of jobs, and starts.

use maud::{Markup, html};
use muster_types::LogTime;
use muster_wire::time::{log_time, unix_ms};
use muster_wire::v1;

use crate::text;
use crate::text::Column::Text;

/// The range of a drawing is no shorter, and nothing that is further away is drawn to scale.
const RANGE_MIN_MS: u64 = 300_000;
const RANGE_MAX_MS: u64 = 31 * 24 * 3_600_000;
/// A part is no narrower, in thousandths of the range, so that it can be seen.
const WIDTH_MIN: u64 = 4;
/// Bookings that are drawn.
const BOOKINGS_SHOWN: usize = 50;

/// Which state an estimate on a page is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EstimateOf {
    /// That of the page.
    #[default]
    Page,
    /// An earlier one, by the last record of the log that it knows of.
    Earlier(u64),
    /// None: it is not made yet.
    Unmade,
    /// None: it could not be made.
    Failed,
}

impl EstimateOf {
    /// Whether there is one.
    pub(crate) fn is_made(self) -> bool {
        matches!(self, EstimateOf::Page | EstimateOf::Earlier(_))
    }

    /// What a reader is to know of that; nothing where the estimate is of the state of the page.
    pub(crate) fn note(self) -> Markup {
        match self {
            EstimateOf::Page => html! {},
            EstimateOf::Earlier(log_index) => html! {
                p.note { "What is estimated is as of log index " (log_index) "; a newer estimate is being made." }
            },
            EstimateOf::Unmade => {
                html! { p.note { "Estimates are being made: load the page again to see them." } }
            }
            EstimateOf::Failed => html! {
                p.note { "Estimates could not be made: the log of this replica has the reason. Another replica may make them." }
            },
        }
    }
}

/// When a job is expected to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedStart {
    /// The job.
    pub job_id: String,
    /// Its name.
    pub name: String,
    /// Whether nodes are kept for it; else this is an estimate.
    pub is_reserved: bool,
    /// Whether the reservation was earlier once.
    pub has_slipped: bool,
    /// The earliest time, in milliseconds since the Unix epoch.
    pub earliest_ms: u64,
    /// The latest one; none where nobody knows.
    pub latest_ms: Option<u64>,
    /// How long it runs then; none where that is not known here.
    pub run_ms: Option<u64>,
}

impl ExpectedStart {
    /// From when to when it may be.
    pub(crate) fn range(&self) -> Markup {
        html! {
            @match self.latest_ms {
                Some(latest) if latest == self.earliest_ms => (moment(latest)),
                Some(latest) => { (moment(self.earliest_ms)) " to " (moment(latest)) },
                None => { "not before " (moment(self.earliest_ms)) },
            }
        }
    }
}

/// Expected starts of all waiting jobs, as far as they were computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartsShown {
    /// Those that are shown, in the order in which the jobs are given their capacity.
    pub starts: Vec<ExpectedStart>,
    /// Jobs for which one was computed, also where it is not known.
    pub computed: u64,
    /// Jobs of them that are not known to start at all.
    pub unknown: u64,
    /// Jobs that wait, with those that may not start yet and those that are not created.
    pub waiting: u64,
    /// As many as waited in the state that the starts are of.
    pub waited: u64,
    /// Whether the bound on the work came before the end of the queue.
    pub is_cut: bool,
    /// Which state they are of.
    pub of: EstimateOf,
}

/// The same as a table that can be opened.
pub(crate) fn all_starts(shown: &StartsShown) -> Markup {
    if !shown.of.is_made() {
        return shown.of.note();
    }
    let columns = [Text("Job"), Text("Expected start (UTC)")];
    let rows = html! {
        @for start in &shown.starts {
            tr {
                th scope="row" { (text::job_link(&start.job_id, &start.name)) }
                td { (start.range()) }
            }
        }
    };
    let caption = html! { "Expected starts, in the order in which jobs are given capacity" };
    html! {
        details {
            summary { "Expected starts of " (shown.starts.len()) " waiting jobs" }
            (text::table("Expected starts", caption, &columns, rows))
        }
        (shown.of.note())
        p.note {
            "Computed for " (shown.computed) " of " (shown.waited) " jobs that wait, by one forecast in which each gets its "
            "capacity in the order of the queue. "
            @if shown.unknown > 0 {
                (shown.unknown) " of them are not known to start: their tenant is at a limit, or nothing that they may use comes free. "
            }
            @if shown.is_cut { "The forecast ended at its bound on the work; " code { "muster explain JOB" } " has each of the others." }
        }
    }
}

/// A row of the drawing.
struct Row {
    what: Markup,
    text: Markup,
    label: String,
    class: &'static str,
    earliest_ms: u64,
    latest_ms: Option<u64>,
    end_ms: Option<u64>,
}

fn moment(ms: u64) -> Markup {
    text::moment_utc(log_time(LogTime(ms)))
}

fn row_of_start(start: &ExpectedStart) -> Row {
    let kind = if start.is_reserved { "reservation" } else { "expected start" };
    Row {
        what: text::job_link(&start.job_id, &start.name),
        text: html! {
            (kind) ", " (start.range())
            @if start.has_slipped { ", later than was expected" }
        },
        label: format!("{kind} of {}", start.name),
        class: if start.is_reserved { "reserved" } else { "expected" },
        earliest_ms: start.earliest_ms,
        latest_ms: start.latest_ms,
        end_ms: start.latest_ms.zip(start.run_ms).map(|(latest, run)| latest.saturating_add(run)),
    }
}

fn row_of_booking(booking: &v1::Booking) -> Option<Row> {
    let (from, to) = (unix_ms(booking.window_start_time)?, unix_ms(booking.window_end_time)?);
    let whose = |spec: &v1::BookingSpec| match spec.maintenance {
        true => "maintenance".to_owned(),
        false => spec.tenant.clone(),
    };
    let tenant = booking.spec.as_ref().map(whose).unwrap_or_default();
    Some(Row {
        what: html! { (booking.name) },
        text: html! { "booking for " (tenant) ", " (moment(from)) " to " (moment(to)) },
        label: format!("booking {}", booking.name),
        class: "booked",
        earliest_ms: from,
        latest_ms: Some(from),
        end_ms: Some(to),
    })
}

/// The drawing; none where nothing is promised or expected.
pub(crate) fn starts(now_ms: u64, starts: &[ExpectedStart], bookings: &[v1::Booking]) -> Option<Markup> {
    let mut rows: Vec<Row> = bookings.iter().filter_map(row_of_booking).take(BOOKINGS_SHOWN).collect();
    rows.extend(starts.iter().map(row_of_start));
    rows.sort_by_key(|row| row.earliest_ms);
    let last = rows.iter().map(|row| row.end_ms.or(row.latest_ms).unwrap_or(row.earliest_ms)).max()?;
    let range_ms = last.saturating_sub(now_ms).clamp(RANGE_MIN_MS, RANGE_MAX_MS);
    let shown = html! {
        @for row in &rows {
            tr {
                th scope="row" { (row.what) }
                td { (row.text) }
                td { (text::bar(Some(&row.label), &parts(row, now_ms, range_ms))) }
            }
        }
    };
    let caption = html! { "From " (moment(now_ms)) " to " (moment(now_ms.saturating_add(range_ms))) };
    Some(html! {
        (text::table("Reservations and expected starts", caption, &[Text("For"), Text("When"), Text("Time")], shown))
        p.note {
            "Dashed: from the earliest start to the latest. Solid: from then on, as long as it is expected to last where that is "
            "known. Nodes are kept for bookings and reservations; an expected start is an estimate for the last of the jobs above."
        }
    })
}

fn parts(row: &Row, now_ms: u64, range_ms: u64) -> Vec<(&'static str, u64, u64)> {
    let place = |ms: u64| text::milli_of(ms.saturating_sub(now_ms), range_ms);
    let from = place(row.earliest_ms).min(1_000 - WIDTH_MIN);
    let begun = row.latest_ms.map_or(1_000, place);
    let mut parts = vec![("range", 0, 1_000)];
    if begun > from {
        parts.push(("uncertain", from, begun - from));
    }
    if row.latest_ms.is_some() {
        let begun = begun.clamp(from, 1_000 - WIDTH_MIN);
        let end = row.end_ms.map_or(1_000, place);
        parts.push((row.class, begun, end.saturating_sub(begun).max(WIDTH_MIN)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn start() -> ExpectedStart {
        ExpectedStart {
            job_id: "job-1".to_owned(),
            name: "<b>wide</b>".to_owned(),
            earliest_ms: 2 * HOUR_MS,
            latest_ms: Some(3 * HOUR_MS),
            run_ms: Some(2 * HOUR_MS),
            ..ExpectedStart::default()
        }
    }

    #[test]
    fn bars_lie_where_their_times_are() {
        let row = row_of_start(&start());
        assert_eq!(
            parts(&row, HOUR_MS, 4 * HOUR_MS),
            [("range", 0, 1_000), ("uncertain", 250, 250), ("expected", 500, 500)]
        );
        let open = row_of_start(&ExpectedStart { latest_ms: None, ..start() });
        assert_eq!(parts(&open, HOUR_MS, 4 * HOUR_MS), [("range", 0, 1_000), ("uncertain", 250, 750)]);
        let kept = ExpectedStart { is_reserved: true, latest_ms: Some(2 * HOUR_MS), run_ms: None, ..start() };
        assert_eq!(
            parts(&row_of_start(&kept), HOUR_MS, 4 * HOUR_MS),
            [("range", 0, 1_000), ("reserved", 250, 750)]
        );
        let far = ExpectedStart { earliest_ms: u64::MAX, latest_ms: Some(u64::MAX), ..start() };
        assert_eq!(
            parts(&row_of_start(&far), HOUR_MS, 4 * HOUR_MS),
            [("range", 0, 1_000), ("uncertain", 996, 4), ("expected", 996, 4)]
        );
    }

    #[test]
    fn an_estimate_of_an_earlier_state_says_so() {
        let drawn = |of| {
            let shown = StartsShown { computed: 5, waiting: 2, waited: 7, of, ..StartsShown::default() };
            all_starts(&shown).into_string()
        };
        assert!(drawn(EstimateOf::Page).contains("of 7 jobs that wait"));
        assert!(!drawn(EstimateOf::Page).contains("log index"));
        let earlier = drawn(EstimateOf::Earlier(41));
        assert!(earlier.contains("as of log index 41"));
        assert!(earlier.contains("Computed for 5 of 7 jobs that wait"), "as many as waited then: {earlier}");
        let unmade = drawn(EstimateOf::Unmade);
        assert!(unmade.contains("being made") && !unmade.contains("Computed for"), "{unmade}");
        let failed = drawn(EstimateOf::Failed);
        assert!(failed.contains("could not be made") && !failed.contains("Computed for"), "{failed}");
    }

    #[test]
    fn what_is_promised_and_expected_is_listed_by_time_and_names_are_text() {
        let booking = v1::Booking {
            name: "demo".to_owned(),
            window_start_time: Some(muster_wire::time::timestamp(HOUR_MS)),
            window_end_time: Some(muster_wire::time::timestamp(2 * HOUR_MS)),
            ..Default::default()
        };
        let shown = starts(HOUR_MS, &[start()], &[booking]).expect("there is something").into_string();
        assert!(shown.find("booking demo") < shown.find("expected start of"), "{shown}");
        assert!(shown.contains("&lt;b&gt;wide") && !shown.contains("<b>wide"), "{shown}");
        let styles = include_str!("../assets/page.css");
        for class in ["range", "uncertain", "reserved", "expected", "booked"] {
            assert!(styles.contains(&format!("rect.{class} {{")), "{class}");
        }
        assert!(starts(HOUR_MS, &[], &[]).is_none());
    }
}
