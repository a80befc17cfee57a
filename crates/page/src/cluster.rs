//! The replicas of the cluster, how far each of them is, and the drill that runs.

use maud::{Markup, html};
use muster_manifest::quantity::{show_about, show_bytes};
use muster_wire::v1;

use crate::frame::{Frame, Section, document};
use crate::overview::{replica_row, warnings};
use crate::text;
use crate::text::Column::{Number, Text};

/// A drill, as one replica knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningDrill {
    /// Its id.
    pub id: String,
    /// The name of its scenario.
    pub name: String,
    /// Who runs it, as they say.
    pub started_by: String,
    /// How long it goes on unless it is renewed, in milliseconds.
    pub left_ms: u64,
    /// Replicas that are silent for it.
    pub silent: Vec<u64>,
    /// Regions whose nodes take no work for it.
    pub cordoned_regions: Vec<String>,
}

/// The page.
#[must_use]
pub fn cluster(frame: &Frame, status: &v1::GetStatusResponse, drill: Option<&RunningDrill>) -> String {
    let body = html! {
        @if !status.warnings.is_empty() { (text::section("warnings", "Warnings", warnings(status))) }
        (text::section("replicas", "Replicas", replicas(status)))
        (text::section("log", "Log of this replica", log(status)))
        (text::section("drills", "Drills", drills(drill)))
    };
    document(Some(frame), Some(Section::Cluster), "Cluster", body)
}

fn replicas(status: &v1::GetStatusResponse) -> Markup {
    let roles = [
        Text("Replica"),
        Text("Region"),
        Text("Role"),
        Number("Entries behind"),
        Number("Not heard for"),
        Text("Disk"),
        Text("Version"),
    ];
    let health = [
        Text("Replica"),
        Text("For clients"),
        Text("For replicas"),
        Number("Free disk"),
        Number("A flush takes"),
        Number("Newest snapshot"),
        Number("Archive up to record"),
        Number("Certificate days"),
        Text("State"),
    ];
    let all = html! { @for replica in &status.replicas { (replica_row(replica)) } };
    let said = html! { @for replica in &status.replicas { (health_row(replica)) } };
    html! {
        (text::table("Replicas of the cluster", html! { "As this one knows them, in term " (status.term) }, &roles, all))
        (text::table("Health of the replicas", html! { "What each last said of itself" }, &health, said))
        @if !status.change_running.is_empty() { p { "A change of the members is being made: " (status.change_running) "." } }
        p.note { "Only the leader knows how far the others are, and hears from all of them." }
    }
}

/// Host and port: a page has no address of another host that a browser would follow.
fn without_scheme(endpoint: &str) -> &str {
    endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest)
}

fn health_row(replica: &v1::Replica) -> Markup {
    let health = replica.health.as_ref();
    let number = |known: Option<String>| known.unwrap_or_else(|| "–".to_owned());
    let state = match health {
        None => "not known",
        Some(health) if health.rejoining => "rejoining: its storage lost what it had promised",
        Some(health) if health.flush_stall.is_some() => "a flush does not end",
        Some(_) => "good",
    };
    html! {
        // `muster open replica` leads here.
        tr id={ "replica-" (replica.id) } {
            th scope="row" { (replica.id) }
            td { (without_scheme(&replica.client_endpoint)) }
            td { (without_scheme(&replica.peer_endpoint)) }
            td.number { (number(health.filter(|known| known.free_bytes > 0).map(|known| show_bytes(known.free_bytes)))) }
            td.number { (text::span(health.and_then(|known| known.flush_time))) }
            td.number { (text::span(health.and_then(|known| known.snapshot_age))) }
            td.number { (number(health.and_then(|known| known.archive_log_index).map(|index| index.to_string()))) }
            td.number { (number(health.and_then(|known| known.certificate_days_left).map(|days| days.to_string()))) }
            td { (state) }
        }
    }
}

fn log(status: &v1::GetStatusResponse) -> Markup {
    html! {
        dl {
            dt { "Cluster" } dd { code { (status.cluster_id) } ", generation " (status.cluster_generation) }
            dt { "Record format" } dd { (status.record_format) }
            dt { "Entries of the log" }
            dd {
                (status.raft_last_index) " written, " (status.raft_committed_index) " committed, " (status.raft_applied_index)
                " applied; the newest snapshot ends at " (status.raft_snapshot_index)
            }
            dt { "Records that were rejected" } dd { (status.records_rejected) }
        }
    }
}

fn drills(drill: Option<&RunningDrill>) -> Markup {
    html! {
        @if let Some(drill) = drill {
            p {
                "Drill " b { (drill.name) } " (" code { (drill.id) } ") runs, started by " (text::of_people(&drill.started_by))
                "; unless it is renewed it ends in " (show_about(drill.left_ms)) "."
            }
            ul.plain {
                @for replica in &drill.silent { li { "Replica " (replica) " is silent for it." } }
                @for region in &drill.cordoned_regions { li { "Nodes of " (region) " take no work for it." } }
            }
            p { code { "muster drill stop" } " ends it at once." }
        } @else {
            p { "No drill runs, as far as this replica was told." }
        }
        p.note {
            code { "muster drill run" } " practises the loss of replicas and regions on a live cluster; its report says what held. Drills "
            "are not kept in the log; " a href="/timeline" { "the timeline" } " and " a href="/events" { "the events" }
            " show what they did to jobs."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_say_how_they_are_and_what_is_not_known() {
        let health = v1::ReplicaHealth { rejoining: true, free_bytes: 1 << 30, ..Default::default() };
        let known = v1::Replica { id: 1, voter: true, health: Some(health), ..Default::default() };
        let status = v1::GetStatusResponse {
            replicas: vec![known, v1::Replica { id: 2, ..Default::default() }],
            records_rejected: 3,
            change_running: "adding replica 4".to_owned(),
            ..Default::default()
        };
        let page = cluster(&Frame::default(), &status, None);
        for text in [
            "rejoining: its storage lost",
            "not known",
            "learner",
            "adding replica 4",
            "<dd>3</dd>",
            "No drill runs",
            "<tr id=\"replica-2\">",
            "aria-current=\"page\">Cluster",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn a_drill_says_whose_it_is_and_texts_of_people_are_texts() {
        let drill = RunningDrill {
            id: "d-1".to_owned(),
            name: "leader-silent".to_owned(),
            started_by: "<b>ada</b>".to_owned(),
            left_ms: 9_000,
            silent: vec![2],
            cordoned_regions: vec!["eu".to_owned()],
        };
        let page = cluster(&Frame::default(), &v1::GetStatusResponse::default(), Some(&drill));
        for text in [
            "leader-silent",
            "&lt;b&gt;ada",
            "Replica 2 is silent",
            "Nodes of eu take no work",
            "muster drill stop",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("<b>ada"), "{page}");
    }
}
