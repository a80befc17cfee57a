//! Nodes: the list, and one of them.

use maud::{Markup, html};
use muster_manifest::quantity::show_scaled;
use muster_types::health::HealthAction;
use muster_types::limits;
use muster_wire::closed::word;
use muster_wire::node_state::{NODE_STATES, node_state};
use muster_wire::v1;

use crate::event::{self, Event};
use crate::frame::{Frame, Section, document};
use crate::pager::Pager;
use crate::text;
use crate::text::Column::{Number, Text};

/// Jobs of one node that a list names, and that its own page does.
const JOBS_LISTED: usize = 4;
const JOBS_MAX: usize = 256;

/// What the list is narrowed to, as the address has it; what is empty narrows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeQuery {
    /// Region.
    pub region: String,
    /// Cluster of hosts.
    pub cluster: String,
    /// Block.
    pub block: String,
    /// A state, or `not-lost`.
    pub state: String,
    /// The token of a later page.
    pub page: String,
}

impl NodeQuery {
    fn pager(&self, next: &str) -> Pager {
        let parameters = [
            ("region", &self.region),
            ("cluster", &self.cluster),
            ("block", &self.block),
            ("state", &self.state),
        ];
        let parameters = parameters.map(|(key, value)| (key, value.clone())).into();
        Pager { path: "/nodes", parameters, page: self.page.clone(), next: next.to_owned() }
    }
}

/// The list. `next` is the token of the page behind it; empty for none.
#[must_use]
pub fn nodes(frame: &Frame, query: &NodeQuery, nodes: &[v1::Node], next: &str) -> String {
    let body = html! {
        (filters(query))
        (list(nodes))
        (query.pager(next).links("First nodes", "More nodes"))
    };
    document(Some(frame), Some(Section::Nodes), "Nodes", body)
}

fn filters(query: &NodeQuery) -> Markup {
    let field = |id: &str, label: &str, value: &str| {
        html! {
            div {
                label for=(id) { (label) }
                input id=(id) name=(id) value=(value) maxlength=(limits::NAME_BYTES_MAX) autocomplete="off" spellcheck="false";
            }
        }
    };
    let states = [("", "any"), ("not-lost", "any but lost")].into_iter();
    let states = states.chain(NODE_STATES.into_iter().map(|state| (state, state)));
    html! {
        form.filters action="/nodes" method="get" aria-label="Filters" {
            (field("region", "Region", &query.region))
            (field("cluster", "Cluster", &query.cluster))
            (field("block", "Block", &query.block))
            div {
                label for="state" { "State" }
                select #state name="state" {
                    @for (value, name) in states { option value=(value) selected[value == query.state] { (name) } }
                }
            }
            div { button type="submit" { "Show" } " " a href="/nodes" { "Clear" } }
        }
    }
}

fn list(nodes: &[v1::Node]) -> Markup {
    if nodes.is_empty() {
        return html! { p { "No node matches." } };
    }
    let columns = [
        Text("Node"),
        Text("State"),
        Text("Place"),
        Text("Accelerators"),
        Number("Free devices"),
        Text("Jobs"),
        Text("Since (UTC)"),
    ];
    let caption = html! { (text::count(nodes.len() as u64, "node", "nodes")) ", by name" };
    text::table("Nodes", caption, &columns, html! { @for node in nodes { (row(node)) } })
}

fn row(node: &v1::Node) -> Markup {
    let described = node.description.clone().unwrap_or_default();
    html! {
        tr {
            th scope="row" { (text::node_link(&described.name)) }
            td { (text::badge(node_state(node))) }
            td { (place(&described)) }
            td { (accelerators(&described)) }
            td.number { (node.free_devices) }
            td {
                @for job in node.job_ids.iter().take(JOBS_LISTED) { (text::job_link(job, job)) " " }
                @if node.job_ids.len() > JOBS_LISTED { "and " (node.job_ids.len() - JOBS_LISTED) " more" }
            }
            td { (text::moment(node.change_time)) }
        }
    }
}

fn place(described: &v1::NodeDescription) -> String {
    format!("{}/{}/{}/{}", described.region, described.cluster, described.block, described.rack)
}

fn accelerators(described: &v1::NodeDescription) -> String {
    match &described.accelerators {
        Some(has) => format!("{} × {}", has.count, has.r#type),
        None => "none".to_owned(),
    }
}

/// One node, with its newest changes.
#[must_use]
pub fn node(frame: &Frame, node: &v1::Node, changes: &[Event]) -> String {
    let described = node.description.clone().unwrap_or_default();
    let body = html! {
        (text::section("about", "Description", about(node, &described)))
        @if let Some(known) = &node.restriction {
            (text::section("restriction", "What keeps work away", restriction(known)))
        }
        (text::section("jobs", "Jobs with workers here", jobs(&node.job_ids)))
        @if !changes.is_empty() {
            (text::section("changes", "History", event::table(changes, "Changes that this replica keeps in memory")))
        }
    };
    document(Some(frame), Some(Section::Nodes), &format!("Node {}", described.name), body)
}

fn jobs(ids: &[String]) -> Markup {
    html! {
        @if ids.is_empty() { p { "None." } }
        @else {
            ul { @for job in ids.iter().take(JOBS_MAX) { li { (text::job_link(job, job)) } } }
            @if ids.len() > JOBS_MAX { p.note { (ids.len()) " jobs; the first " (JOBS_MAX) " are listed." } }
        }
    }
}

fn about(node: &v1::Node, described: &v1::NodeDescription) -> Markup {
    html! {
        dl {
            dt { "Id" } dd { code { (node.id) } ", incarnation " (node.incarnation) }
            dt { "State" }
            dd {
                (text::badge(node_state(node))) " since " (text::moment_utc(node.change_time))
                ", log index " (node.changed_at_index)
            }
            dt { "Place" } dd { (place(described)) }
            dt { "Address" } dd { (described.address) }
            dt { "Accelerators" } dd { (accelerators(described)) ", " (node.free_devices) " free" }
            dt { "CPUs" } dd { (show_scaled(described.cpu_milli, 3)) ", " (show_scaled(node.free_cpu_milli, 3)) " free" }
            dt { "Memory" } dd { (gibibytes(described.memory_bytes)) " GiB, " (gibibytes(node.free_memory_bytes)) " GiB free" }
            @if described.scratch_bytes > 0 {
                dt { "Scratch" } dd { (gibibytes(described.scratch_bytes)) " GiB" }
            }
            @if let Some(pod) = &described.pod {
                dt { "TPU pod" } dd { (pod.pod) ", cube " (pod.cube) }
            }
            @if !described.labels.is_empty() {
                dt { "Labels" } dd { (text::pairs(described.labels.iter())) }
            }
            @if !described.taints.is_empty() {
                dt { "Taints" } dd { (described.taints.join(", ")) }
            }
            @if let Some(set) = &node.overrides {
                dt { "Set by operators" }
                dd {
                    @if !set.labels.is_empty() { (text::pairs(set.labels.iter())) }
                    @if !set.taints.is_empty() { "Taints: " (set.taints.join(", ")) ". " }
                    "Last changed " (text::moment_utc(set.change_time))
                    @if !set.changed_by.is_empty() { " by " (text::of_people(&set.changed_by)) }
                }
            }
            @for (what, said) in [("Cordoned", &node.cordon_reason), ("Drained", &node.drain_reason)] {
                @if let Some(said) = said {
                    dt { (what) }
                    dd {
                        @if !said.reason.is_empty() { (text::of_people(&said.reason)) ". " }
                        "Asked for " (text::moment_utc(said.create_time))
                        @if !said.creator.is_empty() { " by " (text::of_people(&said.creator)) }
                    }
                }
            }
            @if let Some(load) = &node.foreign_load {
                dt { "Held by others" }
                dd { (load.devices.len()) " devices, " (show_scaled(load.cpu_milli, 3)) " CPUs" @if load.closed { ", closed" } }
            }
        }
    }
}

fn gibibytes(bytes: u64) -> u64 {
    bytes >> 30
}

fn restriction(known: &v1::NodeRestriction) -> Markup {
    html! {
        ul {
            @if let Some(drain) = &known.drain {
                li {
                    "It is drained since " (text::moment_utc(drain.start_time))
                    @if drain.stop_time.is_some() { "; what is still there is stopped at " (text::moment_utc(drain.stop_time)) }
                }
            }
            @if let Some(quarantine) = &known.quarantine {
                li { "It is quarantined since " (text::moment_utc(quarantine.start_time)) ": " (text::of_people(&quarantine.reason)) }
            }
            @if let Some(repair) = &known.repair {
                li {
                    "It is repaired (" (word::<HealthAction>(repair.action)) ", " (word::<v1::RepairPhase>(repair.phase)) ") since "
                    (text::moment_utc(repair.start_time))
                    @if !repair.message.is_empty() { ": " (text::of_people(&repair.message)) }
                }
            }
            @if known.out_of_service { li { "Its health keeps everything new away." } }
            @if !known.unusable_devices.is_empty() {
                li { "Nothing new is placed on devices " (known.unusable_devices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")) "." }
            }
            @if known.maintenance_time.is_some() { li { "Its provider takes it away at " (text::moment_utc(known.maintenance_time)) } }
        }
        @if !known.conditions.is_empty() || !known.recent.is_empty() { (findings(known)) }
    }
}

fn findings(known: &v1::NodeRestriction) -> Markup {
    let columns = [Text("Finding"), Text("Device"), Text("Asks for"), Text("Since (UTC)"), Text("Text")];
    let rows = html! {
        @for found in known.conditions.iter().chain(&known.recent) {
            tr {
                th scope="row" { (found.finding) }
                td { (found.device.map_or("host".to_owned(), |device| device.to_string())) }
                td { (word::<HealthAction>(found.action)) }
                td { (text::moment(found.start_time)) }
                td.message { (text::of_people(&found.message)) }
            }
        }
    };
    text::table("Findings", html! { "What was found" }, &columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_list_keeps_what_it_is_narrowed_to() {
        let query = NodeQuery { state: "lost".to_owned(), block: "b 1".to_owned(), ..NodeQuery::default() };
        let page = nodes(&Frame::default(), &query, &[], "token");
        assert!(page.contains("href=\"/nodes?block=b%201&amp;state=lost&amp;page=token\""), "{page}");
        assert!(page.contains("<option value=\"lost\" selected>lost</option>"), "{page}");
    }

    #[test]
    fn a_crowded_node_names_a_part_of_its_jobs() {
        let shown = v1::Node { job_ids: vec!["job-1".to_owned(); 1_000], ..Default::default() };
        let page = node(&Frame::default(), &shown, &[]);
        assert_eq!(page.matches("/jobs/job-1").count(), JOBS_MAX);
        assert!(page.contains("1000 jobs; the first 256 are listed"), "{page}");
    }

    #[test]
    fn a_cordon_says_why_and_by_whom() {
        let said = v1::NodeReason {
            reason: "<b>power work</b>".to_owned(),
            creator: "admin/ada".to_owned(),
            create_time: None,
        };
        let shown = v1::Node { cordoned: true, cordon_reason: Some(said), ..Default::default() };
        let page = node(&Frame::default(), &shown, &[]);
        assert!(page.contains("&lt;b&gt;power work&lt;/b&gt;") && page.contains("admin/ada"), "{page}");
    }

    #[test]
    fn labels_of_nodes_are_text() {
        let bad = "<img src=x>".to_owned();
        let description =
            v1::NodeDescription { labels: [(bad.clone(), bad.clone())].into(), ..Default::default() };
        let shown = v1::Node { description: Some(description), ..Default::default() };
        assert!(!node(&Frame::default(), &shown, &[]).contains("<img"));
    }
}
