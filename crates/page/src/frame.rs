//! What every page has around its content: head, navigation, and which state it is of.

use maud::{DOCTYPE, Markup, html};
use muster_types::LogTime;
use muster_wire::time::{span_ms, unix_ms};
use muster_wire::v1;

use crate::filters::{JobQuery, filters};
use crate::text;
use crate::travel::{TimeTravel, address_at, kept};

/// Which state a page is of, and for whom.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// How current the state is, and who answered.
    pub freshness: v1::Freshness,
    /// The region of the replica.
    pub region: String,
    /// The reader, as the certificate says; `plaintext` without one.
    pub reader: String,
    /// Why the replica is not good for reads that have to be current; none where it is.
    pub not_ready: Option<String>,
    /// How the page leads to other moments; none where it has no past.
    pub travel: Option<TimeTravel>,
}

/// A part of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Jobs,
    Queues,
    Nodes,
    Fleet,
    Timeline,
    Events,
    Cluster,
    Plan,
}

const SECTIONS: [(Section, &str, &str); 9] = [
    (Section::Overview, "/", "Overview"),
    (Section::Jobs, "/jobs", "Jobs"),
    (Section::Queues, "/queues", "Queues"),
    (Section::Nodes, "/nodes", "Nodes"),
    (Section::Fleet, "/fleet", "Fleet"),
    (Section::Timeline, "/timeline", "Timeline"),
    (Section::Events, "/events", "Events"),
    (Section::Cluster, "/cluster", "Cluster"),
    (Section::Plan, "/plan", "Plan"),
];

impl Frame {
    /// Whether the page is of the past.
    pub(crate) fn is_past(&self) -> bool {
        self.travel.as_ref().is_some_and(|travel| travel.is_past)
    }

    /// The record that links stay at; none in the present.
    fn past_index(&self) -> Option<u64> {
        self.is_past().then_some(self.freshness.log_index)
    }

    /// Links to other moments.
    fn moments(&self) -> Markup {
        let time = LogTime(unix_ms(self.freshness.log_time).unwrap_or_default());
        html! { @if let Some(travel) = &self.travel { (travel.bar(self.freshness.log_index, time)) } }
    }

    /// The sentence that says which state it is. Of the past it is the same whenever it is asked for.
    fn as_of(&self) -> Markup {
        let of = &self.freshness;
        let region = &self.region;
        if self.is_past() {
            return html! {
                p.asof {
                    "As of log index " b { (of.log_index) } ", log time " (text::moment_utc(of.log_time))
                    ". Made by replica " (of.replica_id) " in " (region) " from its archive of the log. Reader: " (self.reader) "."
                }
            };
        }
        html! {
            p.asof {
                "As of log index " b { (of.log_index) } ", log time " (text::moment_utc(of.log_time)) ". "
                @match span_ms(of.staleness) {
                    Some(ms) => { "At most " b { (ms) " ms" } " old. " },
                    None => { b { "Its age is not known" } ": no leader has confirmed it. " },
                }
                "Answered by replica " (of.replica_id) " in " (region) "; "
                @match of.leader_id {
                    0 => "no leader is known",
                    own if own == of.replica_id => "it leads",
                    other => { "replica " (other) " leads" },
                }
                ". Reader: " (self.reader) "."
            }
        }
    }

    /// What a reader has to know before anything else.
    fn warning(&self) -> Markup {
        html! {
            @if let Some(why) = &self.not_ready {
                p.warning {
                    b { "What is below may be old or incomplete." } " Replica " (self.freshness.replica_id) " is not ready: " (why)
                    ". Other replicas may know more."
                }
            }
        }
    }
}

/// A whole page.
pub(crate) fn document(frame: Option<&Frame>, section: Option<Section>, title: &str, body: Markup) -> String {
    document_of(frame, section, (title, title), body)
}

/// The same where the window has a title that says more.
pub(crate) fn document_of(
    frame: Option<&Frame>,
    section: Option<Section>,
    (title, window): (&str, &str),
    body: Markup,
) -> String {
    let past_index = frame.and_then(Frame::past_index);
    let body = match past_index {
        Some(index) => kept(body, index),
        None => body,
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (window) " – Muster" }
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/assets/page.css";
                script src="/assets/page.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    p.brand { a href=(address_at("/", past_index)) { "Muster" } }
                    nav aria-label="Pages" {
                        ul {
                            @for (own, path, name) in SECTIONS {
                                li { a href=(address_at(path, past_index)) aria-current=[(Some(own) == section).then_some("page")] { (name) } }
                            }
                        }
                    }
                }
                main #main tabindex="-1" {
                    @if let Some(frame) = frame { (frame.warning()) }
                    h1 { (title) }
                    @if let Some(frame) = frame { (frame.moments()) (frame.as_of()) }
                    (body)
                }
            }
        }
    };
    page.into_string()
}

/// A page that says why there is no other one. `fields` name the parts of the address that are wrong; a form that was filled in
/// so is shown with them.
#[must_use]
pub fn problem(title: &str, sentence: &str, fields: &[(String, String)], form: Option<&JobQuery>) -> String {
    let body = html! {
        p { (sentence) }
        @if !fields.is_empty() {
            ul.problems {
                @for (field, text) in fields { li { code { (field) } " " (text) } }
            }
        }
        @if let Some(query) = form { (filters(query, fields)) }
        p { a href="/" { "Overview" } }
    };
    document(None, None, title, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_people_is_text() {
        let page = problem(
            "There is no such job",
            "<script>alert(1)</script>",
            &[("tenant".to_owned(), "\"><img src=x onerror=alert(1)>".to_owned())],
            None,
        );
        assert!(!page.contains("<script>alert") && !page.contains("<img"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    }

    #[test]
    fn a_page_says_which_state_it_is_of() {
        let frame = Frame {
            freshness: v1::Freshness { log_index: 77, replica_id: 2, leader_id: 1, ..Default::default() },
            region: "eu".to_owned(),
            reader: "plaintext".to_owned(),
            not_ready: None,
            travel: None,
        };
        let page = document(Some(&frame), Some(Section::Jobs), "Jobs", html! {});
        assert!(page.contains("As of log index <b>77</b>"), "{page}");
        assert!(page.contains("Its age is not known") && page.contains("replica 1 leads"), "{page}");
        assert_eq!(page.matches("aria-current=\"page\"").count(), 1);
        assert!(!page.contains("style=") && !page.contains("onclick"), "nothing is inline");
    }

    #[test]
    fn a_page_of_the_past_states_its_moment_and_leads_on_within_it() {
        let travel = TimeTravel { path: "/jobs".to_owned(), is_past: true, ..TimeTravel::default() };
        let freshness = v1::Freshness { log_index: 77, replica_id: 2, leader_id: 1, ..Default::default() };
        let frame = Frame { freshness, travel: Some(travel), ..Frame::default() };
        let body = html! { a href="/jobs/job-1" { "one" } };
        let page = document(Some(&frame), Some(Section::Jobs), "Jobs", body);
        for text in [
            "as of index <b>77</b>",
            "from its archive",
            "href=\"/nodes?at=77\"",
            "href=\"/jobs/job-1?at=77\"",
            "href=\"/jobs\">Now",
            "href=\"/events?at=77\"",
            "href=\"/cluster\"",
        ] {
            assert!(page.contains(text), "{text} in {page}");
        }
        assert!(!page.contains("leads") && !page.contains("age is not known"), "{page}");
    }

    #[test]
    fn a_replica_that_is_not_ready_warns_first() {
        let mut frame = Frame::default();
        let page = |frame: &Frame| document(Some(frame), None, "Overview", html! {});
        assert!(!page(&frame).contains("class=\"warning\""));
        frame.not_ready = Some("rejoining: its storage lost <something>".to_owned());
        let shown = page(&frame);
        let warned = shown.find("rejoining: its storage lost &lt;something&gt;").expect("it warns");
        assert!(warned < shown.find("<h1>").expect("it has a title"), "{shown}");
    }
}
