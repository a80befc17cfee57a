//! Pages of the past: the bar that leads through time, and links that stay in it.

use maud::{Markup, PreEscaped, html};
use muster_manifest::quantity::time_ms;
use muster_types::LogTime;

use crate::text;

/// How far one step leads.
const STEP_MS: u64 = 3_600_000;
/// Pages of one thing, which also have a past; the lists are in [`LISTS`].
const THINGS: [&str; 2] = ["/jobs/", "/nodes/"];
/// Pages that are made of a state alone, and the records up to one.
const LISTS: [&str; 7] = ["/", "/jobs", "/queues", "/nodes", "/fleet", "/fleet/map", "/events"];

/// How a page of the same address leads to other moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeTravel {
    /// The path of the page.
    pub path: String,
    /// The parameters of its address, decoded and without `at`.
    pub parameters: Vec<(String, String)>,
    /// Whether the page is of the past.
    pub is_past: bool,
    /// Whether the present is a step or more later.
    pub has_later: bool,
}

impl TimeTravel {
    /// The address of the same page at a moment; of the present without one.
    fn address(&self, at: Option<LogTime>) -> String {
        let given = self.parameters.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let at = at.map(|at| at.to_string()).unwrap_or_default();
        text::address(&self.path, given.chain([("at", at.as_str())]))
    }

    /// Links to other moments, and a form for any of them.
    pub(crate) fn bar(&self, log_index: u64, time: LogTime) -> Markup {
        let earlier = LogTime(time.0.saturating_sub(STEP_MS));
        html! {
            nav.travel aria-label="Moment" {
                @if self.is_past {
                    p {
                        b { "This is the past" } ": as of index " b { (log_index) } ", "
                        (text::moment_utc(muster_wire::time::log_time(time))) "."
                    }
                }
                ul {
                    @if self.is_past { li { a href=(self.address(None)) { "Now" } } }
                    @if earlier.0 > 0 { li { a href=(self.address(Some(earlier))) { "1 h earlier" } } }
                    @if self.is_past && self.has_later {
                        li { a href=(self.address(Some(time.plus_ms(STEP_MS)))) { "1 h later" } }
                    }
                }
                form action=(self.path) method="get" aria-label="Another moment" {
                    @for (key, value) in &self.parameters { input type="hidden" name=(key) value=(value); }
                    label for="at" { "Log index or time" }
                    input #at name="at" required maxlength="40" placeholder="2027-01-31T18:00:00Z" autocomplete="off"
                        spellcheck="false" value=[self.is_past.then_some(log_index)];
                    button type="submit" { "Show" }
                }
            }
        }
    }
}

/// Milliseconds since the Unix epoch of a time that somebody wrote.
///
/// # Errors
/// What would be right, for what is no time in RFC 3339.
pub fn moment_ms(text: &str) -> Result<u64, String> {
    // A span from now has no place in an address, which is kept and sent to others.
    let absolute = Some(text).filter(|text| !text.starts_with('+')).unwrap_or_default();
    time_ms(absolute, 0).map_err(|_| "must be a time like 2027-01-31T18:00:00Z".to_owned())
}

/// Whether a page of this address can be of the past.
pub(crate) fn has_past(address: &str) -> bool {
    let path = address.split(['?', '#']).next().unwrap_or(address);
    LISTS.contains(&path) || THINGS.iter().any(|thing| path.starts_with(thing))
}

/// The content of a page with links and forms that lead to the same state. What is rendered here has a quote and an equals sign
/// in front of an address only where its own markup has them: those in text of people are escaped.
pub(crate) fn kept(body: Markup, log_index: u64) -> Markup {
    const QUOTED: &str = "=\"/";
    let html = body.into_string();
    let mut out = String::with_capacity(html.len() + html.len() / 8);
    let mut rest = html.as_str();
    while let Some(found) = rest.find(QUOTED) {
        let (before, behind) = rest.split_at(found + QUOTED.len() - 1);
        out.push_str(before);
        let (address, tail) = behind.split_at(behind.find('"').unwrap_or(behind.len()));
        rest = tail;
        let is_link = before.ends_with("href=\"") || before.ends_with("data-source=\"");
        // An address that states its moment leads there.
        let has_moment = address.contains("?at=") || address.contains("&amp;at=");
        if is_link && has_past(address) && !has_moment {
            out.push_str(&at_index(address, log_index));
            continue;
        }
        out.push_str(address);
        if before.ends_with("action=\"")
            && has_past(address)
            && let Some(end) = tail.find('>')
        {
            let (tag, content) = tail.split_at(end + 1);
            out.push_str(tag);
            out.push_str(&format!("<input type=\"hidden\" name=\"at\" value=\"{log_index}\">"));
            rest = content;
        }
    }
    out.push_str(rest);
    PreEscaped(out)
}

/// An escaped address with the parameter for a record of the log.
fn at_index(address: &str, log_index: u64) -> String {
    let (page, part) = address.split_at(address.find('#').unwrap_or(address.len()));
    let between = if page.contains('?') { "&amp;" } else { "?" };
    format!("{page}{between}at={log_index}{part}")
}

/// An address of this site, at a record of the log where its page has a past.
pub(crate) fn address_at(path: &str, log_index: Option<u64>) -> String {
    match log_index.filter(|_| has_past(path)) {
        Some(index) => format!("{path}?at={index}"),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_past_stay_there() {
        let bad = "x href=\"/jobs\" <a href=\"/jobs/1\">";
        let body = html! {
            a href="/jobs?tenant=a&b=c#row" { (bad) }
            a href="/nodes/h1" title=(bad) { "h1" }
            a href="/timeline" { "placements" }
            a href="/events" { "records" }
            a href="/?at=5" { "another moment" }
            link href="/assets/page.css";
            form action="/jobs" method="get" aria-label="a > b" { input name="x"; }
            div data-source="/fleet/map" {}
        };
        let shown = kept(body, 77).into_string();
        for text in [
            "href=\"/jobs?tenant=a&amp;b=c&amp;at=77#row\"",
            "href=\"/nodes/h1?at=77\"",
            "href=\"/timeline\"",
            "href=\"/events?at=77\"",
            "href=\"/?at=5\"",
            "href=\"/assets/page.css\"",
            "data-source=\"/fleet/map?at=77\"",
            "aria-label=\"a &gt; b\"><input type=\"hidden\" name=\"at\" value=\"77\"><input name=\"x\">",
            "x href=&quot;/jobs&quot; &lt;a href=&quot;/jobs/1&quot;&gt;",
        ] {
            assert!(shown.contains(text), "{text} in {shown}");
        }
        assert_eq!(shown.matches("at=77").count(), 4, "{shown}");
    }

    #[test]
    fn the_bar_leads_to_other_moments() {
        let travel = TimeTravel {
            path: "/jobs".to_owned(),
            parameters: vec![("tenant".to_owned(), "a \"b".to_owned())],
            is_past: true,
            has_later: false,
        };
        let time = LogTime(1_700_000_000_000);
        let shown = travel.bar(77, time).into_string();
        for text in [
            "as of index <b>77</b>",
            "2023-11-14 22:13:20 UTC",
            "href=\"/jobs?tenant=a%20%22b\">Now",
            "href=\"/jobs?tenant=a%20%22b&amp;at=2023-11-14T21%3A13%3A20Z\">1 h earlier",
            "<input type=\"hidden\" name=\"tenant\" value=\"a &quot;b\">",
        ] {
            assert!(shown.contains(text), "{text} in {shown}");
        }
        assert!(!shown.contains("later"), "{shown}");
        let present = TimeTravel { is_past: false, ..travel }.bar(77, time).into_string();
        assert!(!present.contains(">Now<") && !present.contains("This is the past"), "{present}");
    }

    #[test]
    fn times_are_read_or_refused() {
        assert_eq!(moment_ms("2023-11-14T22:13:20Z"), Ok(1_700_000_000_000));
        assert_eq!(moment_ms("2023-11-14T23:13:20+01:00"), Ok(1_700_000_000_000));
        for text in ["", "now", "+2h", "-1", "1969-12-31T00:00:00Z", "<script>", &"9".repeat(10_000)] {
            assert!(moment_ms(text).is_err(), "{text}");
        }
    }
}
