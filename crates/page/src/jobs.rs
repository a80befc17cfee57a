//! The list of jobs, with its counts.

use maud::{Markup, html};
use muster_wire::v1;

use crate::filters::{GroupBy, JobQuery, filters};
use crate::frame::{Frame, Section, document};
use crate::job::{JobDetail, drawer};
use crate::text;
use crate::text::Column::{Number, Text};
use crate::text::JobCells;

/// Jobs of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// A tenant, a phase and so on; empty for jobs that have none, as those that were never placed have no region.
    pub value: String,
    /// Those that wait.
    pub pending: u64,
    /// Those that hold devices.
    pub active: u64,
    /// Those that are over; none where they are not counted by group.
    pub finished: Option<u64>,
}

/// Counts of jobs by group.
#[derive(Clone, Debug)]
pub struct Groups {
    /// By what.
    pub by: GroupBy,
    /// In the order of names.
    pub rows: Vec<Group>,
    /// Jobs that match and were counted one by one, and those that were looked at for that; none for counts from an index.
    pub counted: Option<(u64, u64)>,
    /// Whether there are older jobs that were not counted, or more groups.
    pub is_cut: bool,
}

/// The list. `next` is the token of the page behind it; empty for none. `open` is the job that is shown next to the list.
#[must_use]
pub fn jobs(
    frame: &Frame,
    query: &JobQuery,
    (jobs, next): (&[v1::Job], &str),
    groups: Option<&Groups>,
    open: Option<&JobDetail>,
) -> String {
    let body = html! {
        (filters(query, &[]))
        @if let Some(groups) = groups { (counts(query, groups)) }
        @if !query.open.is_empty() {
            aside #open-job aria-label="Open job" {
                @match open {
                    Some(shown) => (drawer(frame, shown)),
                    None => { p { "There is no job " code { (query.open) } "." } },
                }
                p { a href=(query.with_open("").address()) { "Close" } }
            }
        }
        (list(query, jobs))
        (query.pager(next).links("Newest", "Older"))
    };
    document(Some(frame), Some(Section::Jobs), "Jobs", body)
}

fn counts(query: &JobQuery, groups: &Groups) -> Markup {
    let by = groups.by.word();
    let rows = html! {
        @for group in &groups.rows {
            tr {
                th scope="row" {
                    @if group.value.is_empty() { (groups.by.without()) }
                    @else if !groups.by.narrows() { (group.value) }
                    @else { a href=(query.narrowed(groups.by, &group.value).address()) { (group.value) } }
                }
                td.number { (group.pending) }
                td.number { (group.active) }
                td.number { (group.finished.map_or("–".to_owned(), |count| count.to_string())) }
            }
        }
    };
    let columns = [Text(by), Number("Pending"), Number("Hold devices"), Number("Over")];
    let caption = match groups.by {
        GroupBy::Label => format!("Jobs by {by} {}", query.label),
        _ => format!("Jobs by {by}"),
    };
    let body = html! {
        (text::table(&caption, html! { (caption) }, &columns, rows))
        p.note {
            @match groups.counted {
                Some((matching, looked_at)) => {
                    "Counted one by one: " (matching) " jobs that match, among the newest " (looked_at) " of the cluster. "
                    @if groups.is_cut { "There are more, which are not in these counts." }
                },
                None => {
                    "From the index of jobs that are not over. Pending are also members of arrays that are not created yet: no list "
                    "has those. "
                    @if groups.is_cut { "There are more tenants." }
                },
            }
        }
    };
    text::section("counts", "Counts", body)
}

fn list(query: &JobQuery, jobs: &[v1::Job]) -> Markup {
    if jobs.is_empty() {
        return html! { p { "No job matches on this page." } };
    }
    let columns = [
        Text("Name"),
        Text("Tenant"),
        Text("Phase"),
        Text("Tier"),
        Number("Devices"),
        Number("Workers"),
        Text("Region"),
        Text("Submitted (UTC)"),
        Text("Id"),
        Text("Because"),
        Text("Here"),
    ];
    let caption = html! { (text::count(jobs.len() as u64, "job", "jobs")) ", newest first" };
    text::table("Jobs", caption, &columns, html! { @for job in jobs { (row(query, job)) } })
}

fn row(query: &JobQuery, job: &v1::Job) -> Markup {
    let status = job.status.clone().unwrap_or_default();
    let address = format!("{}#open-job", query.with_open(&job.id).address());
    html! {
        tr {
            (text::job_cells(&JobCells::of(job, &status)))
            td.number { (status.worker_count) }
            td { (text::region(&status)) }
            td { (text::moment(status.create_time)) }
            td { code { (job.id) } }
            td.message { (text::of_people(text::brief(&status.message))) }
            td { a href=(address) { "Open" span.visually-hidden { " " (job.name) " next to the list" } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_filters_are_text() {
        let bad = "<script>alert(1)</script>".to_owned();
        let job = v1::Job { id: bad.clone(), name: bad.clone(), tenant: bad.clone(), ..Default::default() };
        let query =
            JobQuery { tenant: bad.clone(), name: "\" onfocus=\"alert(1)".to_owned(), ..Default::default() };
        let page = jobs(&Frame::default(), &query, (&[job], "\"><b>"), None, None);
        assert!(!page.contains("<script>alert") && !page.contains("\" onfocus"), "{page}");
        assert!(!page.contains("\"><b>"), "{page}");
    }

    #[test]
    fn a_job_opens_next_to_the_list_and_closes_again() {
        let query = JobQuery { tenant: "lab".to_owned(), open: "job-1".to_owned(), ..Default::default() };
        let detail = JobDetail {
            job: v1::Job { id: "job-1".to_owned(), name: "<b>train".to_owned(), ..Default::default() },
            ..JobDetail::default()
        };
        let other = v1::Job { id: "job-2".to_owned(), ..Default::default() };
        let page = jobs(&Frame::default(), &query, (&[other], ""), None, Some(&detail));
        assert!(page.contains("<aside id=\"open-job\"") && page.contains("href=\"/jobs/job-1\""), "{page}");
        assert!(page.contains("href=\"/jobs?tenant=lab&amp;open=job-2#open-job\""), "{page}");
        assert!(page.contains("href=\"/jobs?tenant=lab\">Close"), "{page}");
        assert!(!page.contains("<b>train"), "{page}");
        let gone = jobs(&Frame::default(), &query, (&[], ""), None, None);
        assert!(gone.contains("There is no job <code>job-1</code>"), "{gone}");
    }

    #[test]
    fn counts_state_how_far_they_look() {
        let counted = |counted| {
            let groups = Groups { by: GroupBy::Phase, rows: Vec::new(), counted, is_cut: true };
            counts(&JobQuery::default(), &groups).into_string()
        };
        let one_by_one = counted(Some((3, 100_000)));
        assert!(
            one_by_one.contains("3 jobs that match, among the newest 100000 of the cluster"),
            "{one_by_one}"
        );
        assert!(one_by_one.contains("There are more, which are not in these counts"), "{one_by_one}");
        assert!(counted(None).contains("members of arrays that are not created yet"));
    }
}
