//! Changes, newest first, and the page that goes on with them live.

use maud::{Markup, html};
use muster_wire::address::encoded;
use muster_wire::v1;

use crate::frame::{Frame, Section, document};
use crate::text;
use crate::text::Column::{Number, Text};

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A job.
    Job,
    /// A node.
    Node,
}

/// One change, as a row says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The record that changed it.
    pub log_index: u64,
    /// What it is about.
    pub subject: Subject,
    /// Id of the job, name of the node.
    pub id: String,
    /// Name of the job; empty for a node and for a job that is not kept any more.
    pub name: String,
    /// Tenant of the job, region of the node.
    pub owner: String,
    /// What it is since: a phase, or a state of a node.
    pub state: String,
    /// One sentence; may be empty.
    pub text: String,
}

impl Event {
    /// The page about its subject; none for what is not kept any more.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        let id = encoded(&self.id);
        match self.subject {
            _ if self.state == FORGOTTEN => None,
            Subject::Job => Some(format!("/jobs/{id}")),
            Subject::Node => Some(format!("/nodes/{id}")),
        }
    }
}

/// The state of what was dropped.
pub const FORGOTTEN: &str = "forgotten";

/// A table of events.
pub(crate) fn table(events: &[Event], caption: &str) -> Markup {
    let columns =
        [Number("Log index"), Text("What"), Text("Tenant or region"), Text("Is now"), Text("Because")];
    let body = html! { tbody #events { @for event in events { (row(event)) } } };
    text::table_of(caption, html! { (caption) }, &columns, body)
}

fn row(event: &Event) -> Markup {
    html! {
        tr {
            td.number { (event.log_index) }
            th scope="row" {
                @match event.address() {
                    Some(address) => a href=(address) { (event.id) },
                    None => (event.id),
                }
                @if !event.name.is_empty() { " " span.name { (event.name) } }
            }
            td { (event.owner) }
            td { (text::badge(&event.state)) }
            td.message { (text::of_people(&event.text)) }
        }
    }
}

/// The page of events of the past: records of the log, newest first.
#[must_use]
pub fn records(frame: &Frame, records: &[v1::LogRecord]) -> String {
    let columns = [Number("Log index"), Text("Time (UTC)"), Text("Leader"), Text("Decision"), Text("What")];
    let rows = html! {
        @for record in records {
            tr {
                td.number { a href={ "/?at=" (record.log_index) } { (record.log_index) } }
                td { (text::moment(record.log_time)) }
                td { @if record.leader_id > 0 { "replica " (record.leader_id) ", term " (record.term) } }
                th scope="row" { (record.decision) }
                td.message { (text::of_people(&record.summary)) }
            }
        }
    };
    let older = records.last().map(|record| record.log_index).filter(|index| *index > 1);
    let body = html! {
        p { "Records of the log up to this moment, newest first. The number of one leads to the cluster as it was behind it." }
        (text::table("Records of the log", html! { "The last records of the log" }, &columns, rows))
        @if let Some(index) = older { p { a href={ "/events?at=" (index - 1) } { "Earlier records" } } }
        p.note { code { "muster log" } " has their content." }
    };
    document(Some(frame), Some(Section::Events), "Events", body)
}

/// The page of events. `log_index` is where a stream of them goes on.
#[must_use]
pub fn events(frame: &Frame, events: &[Event], log_index: u64) -> String {
    let body = html! {
        p {
            "Changes of jobs and nodes that this replica has applied, newest first. "
            span #live role="status" data-stream={ "/events/stream?from=" (log_index) } {
                "Load the page again for newer ones."
            }
        }
        // Only a page that goes on can pause: its script shows it.
        p { button #pause type="button" aria-pressed="false" hidden { "Pause" } }
        (table(events, "Newest changes"))
        @if events.is_empty() { p { "This replica keeps no change in memory that came before the state of this page." } }
    };
    document(Some(frame), Some(Section::Events), "Events", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_past_lead_to_the_cluster_behind_each_and_to_earlier_ones() {
        let record = |log_index, summary: &str| v1::LogRecord {
            log_index,
            leader_id: log_index - 75,
            term: 4,
            decision: "job_submitted".to_owned(),
            summary: summary.to_owned(),
            ..Default::default()
        };
        let travel = crate::TimeTravel { path: "/events".to_owned(), is_past: true, ..Default::default() };
        let frame = Frame {
            freshness: v1::Freshness { log_index: 77, ..Default::default() },
            travel: Some(travel),
            ..Frame::default()
        };
        let page = records(&frame, &[record(77, "<b>late</b>"), record(76, "early")]);
        for text in [
            "href=\"/?at=77\">77<",
            "href=\"/?at=76\">76<",
            "href=\"/events?at=75\">Earlier",
            "&lt;b&gt;late",
            "<td>replica 2, term 4</td>",
            "<td>replica 1, term 4</td>",
            "href=\"/events\">Now",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(
            !page.contains("EventSource") && !page.contains("data-stream"),
            "nothing is live there: {page}"
        );
        let from_the_first = records(&frame, &[v1::LogRecord { log_index: 1, ..record(76, "first") }]);
        assert!(!from_the_first.contains("Earlier records"), "{from_the_first}");
    }

    #[test]
    fn rows_have_headers_and_texts_keep_their_direction_to_themselves() {
        let event = Event {
            log_index: 7,
            subject: Subject::Job,
            id: "job-1".to_owned(),
            name: "train".to_owned(),
            owner: "lab".to_owned(),
            state: "failed".to_owned(),
            text: "\u{202e}txet".to_owned(),
        };
        let page = events(&Frame::default(), &[event], 7);
        assert!(page.contains("<th scope=\"row\"><a href=\"/jobs/job-1\">job-1</a>"), "{page}");
        assert!(page.contains("<bdi>\u{202e}txet</bdi>"), "{page}");
        assert!(
            page.contains("<button id=\"pause\" type=\"button\" aria-pressed=\"false\" hidden>"),
            "{page}"
        );
    }
}
