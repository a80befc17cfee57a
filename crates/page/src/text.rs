//! Numbers, times and words as people read them.

use maud::{Markup, html};
use muster_manifest::quantity::{show_about, show_scaled};
use muster_types::{LogTime, PriorityTier};
use muster_wire::address::encoded;
use muster_wire::closed::{phase_word, word};
use muster_wire::time::{Duration, Timestamp, span_ms, unix_ms};
use muster_wire::v1;

/// A moment, to the second, under a heading that states that it is in UTC; `–` for none.
pub(crate) fn moment(time: Option<Timestamp>) -> Markup {
    moment_with(time, "")
}

/// The same in a sentence, with its zone.
pub(crate) fn moment_utc(time: Option<Timestamp>) -> Markup {
    moment_with(time, " UTC")
}

fn moment_with(time: Option<Timestamp>, zone: &str) -> Markup {
    match unix_ms(time) {
        Some(ms) => {
            let exact = LogTime(ms).to_string();
            let seconds = LogTime(ms - ms % 1_000).to_string();
            html! { time datetime=(exact) { (seconds.replace('T', " ").trim_end_matches('Z')) (zone) } }
        }
        None => html! { "–" },
    }
}

/// The sentence of a job without the hint at the command line: its page is a link away.
#[must_use]
pub fn brief(message: &str) -> &str {
    message.split_once("; why: muster ").map_or(message, |(brief, _)| brief)
}

/// Text of people inside of other text: marks of direction in it reorder nothing around it.
pub(crate) fn of_people(text: &str) -> Markup {
    html! { bdi { (text) } }
}

/// Keys and values of people.
pub(crate) fn pairs<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>) -> Markup {
    let mut sorted: Vec<_> = pairs.collect();
    sorted.sort_unstable();
    html! { ul.plain { @for (key, value) in sorted { li { code { (of_people(key)) "=" (of_people(value)) } } } } }
}

/// A span in its two largest units; `–` for none.
pub(crate) fn span(span: Option<Duration>) -> String {
    span_ms(span).map_or_else(|| "–".to_owned(), show_about)
}

/// Thousandths of devices, as devices.
pub(crate) fn devices(milli: u64) -> String {
    show_scaled(milli, 3)
}

/// A number with its noun.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A word that stands for a state, with a class by which it is coloured.
pub(crate) fn badge(word: &str) -> Markup {
    html! { span class={ "badge " (word) } { (word) } }
}

/// A job by its id.
pub(crate) fn job_link(id: &str, text: &str) -> Markup {
    html! { a href={ "/jobs/" (encoded(id)) } { (text) } }
}

/// A node by its name.
pub(crate) fn node_link(name: &str) -> Markup {
    html! { a href={ "/nodes/" (encoded(name)) } { (name) } }
}

/// An address with the parameters that say something.
pub(crate) fn address<'a>(path: &str, parameters: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let given = parameters.filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> = given.map(|(key, value)| format!("{key}={}", encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// A part of a page under its own heading.
pub(crate) fn section(id: &str, title: &str, body: Markup) -> Markup {
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (title) }
            (body)
        }
    }
}

/// A column of a table by its heading.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    Text(&'static str),
    Number(&'static str),
}

/// A table, which scrolls by itself on a narrow screen, by keyboard too.
pub(crate) fn table(label: &str, caption: Markup, columns: &[Column], rows: Markup) -> Markup {
    table_of(label, caption, columns, html! { tbody { (rows) } })
}

/// The same with a body that is made already.
pub(crate) fn table_of(label: &str, caption: Markup, columns: &[Column], body: Markup) -> Markup {
    html! {
        div.scroll role="group" aria-label=(label) tabindex="0" {
            table {
                caption { (caption) }
                thead {
                    tr {
                        @for column in columns {
                            @match column {
                                Column::Text(title) => th scope="col" { (title) },
                                Column::Number(title) => th.number scope="col" { (title) },
                            }
                        }
                    }
                }
                (body)
            }
        }
    }
}

/// What every list of jobs says of one of them.
pub(crate) struct JobCells<'a> {
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) tenant: &'a str,
    /// None in a list of one phase alone.
    pub(crate) phase: Option<v1::JobPhase>,
    pub(crate) tier: &'a str,
    pub(crate) devices: u64,
}

/// The first cells of a job's row: its name, tenant, phase, tier and devices.
pub(crate) fn job_cells(job: &JobCells<'_>) -> Markup {
    html! {
        th scope="row" { (job_link(job.id, job.name)) }
        td { (job.tenant) }
        @if let Some(phase) = job.phase { td { (badge(phase_word(phase))) } }
        td { (job.tier) }
        td.number { (job.devices) }
    }
}

impl<'a> JobCells<'a> {
    pub(crate) fn of(job: &'a v1::Job, status: &v1::JobStatus) -> JobCells<'a> {
        JobCells {
            id: &job.id,
            name: &job.name,
            tenant: &job.tenant,
            phase: Some(status.phase()),
            tier: word::<PriorityTier>(status.tier),
            devices: status.device_count,
        }
    }
}

/// Where a job is, or was when it ended. What waits holds nothing, wherever it was before.
pub(crate) fn region(status: &v1::JobStatus) -> &str {
    let placed = status.placement.as_ref().filter(|_| status.phase() != v1::JobPhase::Pending);
    placed.map_or("–", |placement| placement.region.as_str())
}

/// Parts of a whole as a bar: each with its class, where it begins and how wide it is, in thousandths. With a label it is an image;
/// without, the text next to it says the same.
pub(crate) fn bar(label: Option<&str>, parts: &[(&str, u64, u64)]) -> Markup {
    html! {
        svg.bar viewBox="0 0 1000 60" preserveAspectRatio="none" role=[label.map(|_| "img")] aria-label=[label]
            aria-hidden=[label.is_none().then_some("true")] {
            @for (class, x, width) in parts { rect class=(class) x=(x) y="0" width=(width) height="60" {} }
        }
    }
}

/// A part of a whole in thousandths.
pub(crate) fn milli_of(part: u64, whole: u64) -> u64 {
    let milli = u128::from(part) * 1_000 / u128::from(whole.max(1));
    u64::try_from(milli).unwrap_or(u64::MAX).min(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_seconds_and_exact_underneath() {
        let shown = moment(muster_wire::time::log_time(LogTime(1_700_000_000_123))).into_string();
        assert_eq!(shown, "<time datetime=\"2023-11-14T22:13:20.123Z\">2023-11-14 22:13:20</time>");
        let time = muster_wire::time::log_time(LogTime(1_700_000_000_000));
        assert!(moment_utc(time).into_string().contains("2023-11-14 22:13:20 UTC</time>"));
        assert_eq!(moment(None).into_string(), "–");
    }

    #[test]
    fn hints_at_the_command_line_are_left_out() {
        assert_eq!(brief("not placed yet; why: muster explain job-1"), "not placed yet");
        assert_eq!(brief("rank 0: exited"), "rank 0: exited");
    }

    #[test]
    fn what_waits_is_in_no_region() {
        let placement = Some(v1::Placement { region: "eu".to_owned(), ..Default::default() });
        let mut status =
            v1::JobStatus { placement, phase: v1::JobPhase::Running.into(), ..Default::default() };
        assert_eq!(region(&status), "eu");
        status.phase = v1::JobPhase::Pending.into();
        assert_eq!(region(&status), "–");
    }

    #[test]
    fn parts_of_a_whole_are_bounded() {
        assert_eq!(
            [milli_of(1, 2), milli_of(5, 2), milli_of(1, 0), milli_of(u64::MAX, 1)],
            [500, 1_000, 1_000, 1_000]
        );
    }
}
