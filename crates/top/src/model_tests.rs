use muster_client::v1;
use muster_wire::time::timestamp;

use super::*;

pub(crate) fn job(id: &str, name: &str, tenant: &str, phase: v1::JobPhase) -> v1::Job {
    v1::Job {
        id: id.into(),
        name: name.into(),
        tenant: tenant.into(),
        status: Some(v1::JobStatus {
            phase: phase.into(),
            tier: v1::Tier::Standard.into(),
            reason: if phase == v1::JobPhase::Pending { "PENDING".into() } else { String::new() },
            worker_count: 2,
            device_count: 16,
            create_time: Some(timestamp(1_000_000)),
            changed_at_index: 7,
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn node(name: &str, region: &str, free: u32) -> v1::Node {
    v1::Node {
        id: format!("node-{name}"),
        description: Some(v1::NodeDescription {
            name: name.into(),
            region: region.into(),
            cluster: format!("{region}-a"),
            accelerators: Some(v1::Accelerators { r#type: "h100".into(), count: 8 }),
            ..Default::default()
        }),
        status: v1::NodeStatus::Up.into(),
        free_devices: free,
        changed_at_index: 5,
        ..Default::default()
    }
}

pub(crate) fn changed(log_index: u64, job: v1::Job) -> Update {
    Update::Job(WatchItem::Changed { log_index, job: Box::new(job) })
}

pub(crate) fn changed_node(log_index: u64, node: v1::Node) -> Update {
    Update::Node(NodeItem::Changed { log_index, node: Box::new(node) })
}

pub(crate) fn apply(model: &mut Model, updates: impl IntoIterator<Item = Update>) {
    for update in updates {
        model.apply(update, 1_000);
    }
}

fn synced() -> Model {
    let mut model = Model::default();
    let mut holder = node("n1", "eu", 0);
    holder.job_ids = vec!["job-1".into()];
    apply(
        &mut model,
        [
            changed(9, job("job-1", "train", "vision", v1::JobPhase::Running)),
            changed(9, job("job-2", "next", "vision", v1::JobPhase::Pending)),
            Update::Job(WatchItem::SyncEnd { log_index: 9 }),
            changed_node(9, holder),
            changed_node(9, node("n2", "eu", 8)),
            Update::Node(NodeItem::SyncEnd { log_index: 9 }),
        ],
    );
    model
}

#[test]
fn changes_become_rows_and_events_and_jobs_know_their_nodes() {
    let mut model = synced();
    assert_eq!(model.nodes_of("job-1"), ["n1"]);
    // The last changes of what was there, newest first.
    let first: Vec<(u64, &str)> =
        model.events.iter().map(|event| (event.log_index, event.id.as_str())).collect();
    assert_eq!(first, [(7, "job-1"), (7, "job-2"), (5, "n1"), (5, "n2")]);
    let mut freed = node("n1", "eu", 8);
    freed.changed_at_index = 12;
    apply(
        &mut model,
        [changed(12, job("job-1", "train", "vision", v1::JobPhase::Succeeded)), changed_node(12, freed)],
    );
    assert!(model.nodes_of("job-1").is_empty());
    assert_eq!(model.log_index, 12);
    let newest: Vec<&str> = model.events.iter().take(2).map(|event| event.state.as_str()).collect();
    assert_eq!(newest, ["up", "succeeded"]);
    apply(&mut model, [Update::Job(WatchItem::Forgotten { log_index: 13, job_id: "job-1".into() })]);
    assert!(!model.jobs.contains_key("job-1"));
    assert_eq!(model.events.front().map(|event| event.state.as_str()), Some("forgotten"));
}

#[test]
fn a_watch_that_begins_again_replaces_what_was_there() {
    let mut model = synced();
    apply(&mut model, [Update::Job(WatchItem::Restarted), Update::Node(NodeItem::Restarted)]);
    assert!(model.jobs.is_empty() && model.nodes.is_empty() && model.nodes_of("job-1").is_empty());
    assert!(!model.is_complete());
    let events = model.events.len();
    apply(&mut model, [changed(20, job("job-3", "new", "speech", v1::JobPhase::Pending))]);
    assert_eq!(model.events.len(), events, "the present is no event");
}

#[test]
fn memory_is_bounded_and_a_cut_is_shown() {
    let mut model = Model::default();
    for n in 0..JOBS_MAX + 10 {
        apply(&mut model, [changed(1, job(&format!("job-{n}"), "a", "t", v1::JobPhase::Pending))]);
    }
    assert_eq!(model.jobs.len(), JOBS_MAX);
    assert!(model.is_cut());
    apply(&mut model, [Update::Job(WatchItem::Restarted)]);
    assert!(!model.is_cut(), "what comes then may be all");
    let mut model = synced();
    for n in 0..ENDED_MAX * 2 {
        apply(&mut model, [changed(30, job(&format!("job-e{n}"), "a", "t", v1::JobPhase::Failed))]);
    }
    assert_eq!(model.jobs.values().filter(|job| job.state.has_ended()).count(), ENDED_MAX);
    assert_eq!(model.events.len(), EVENTS_MAX);
    assert!(model.jobs.contains_key("job-2"), "what waits stays");
}

#[test]
fn explanations_are_kept_while_a_job_waits_and_grow_old() {
    let mut model = synced();
    let reason = WaitReason {
        reason: "WAITING_FOR_CAPACITY".into(),
        message: "0 of 2 workers fit".into(),
        requests_before: Some(3),
    };
    let update = || Update::Explained { job_id: "job-2".into(), reason: reason.clone() };
    apply(&mut model, [update(), Update::Explained { job_id: "job-9".into(), reason: reason.clone() }]);
    let waiting = model.jobs["job-2"].clone();
    assert_eq!(model.why(&waiting), "WAITING_FOR_CAPACITY: 0 of 2 workers fit");
    assert_eq!(model.position(&waiting), Some(3));
    assert_eq!(model.next_of("vision").map(|job| job.id.as_str()), Some("job-2"));
    assert_eq!(model.front().len(), 1, "nothing is known of job-9");
    assert!(!model.lacks_reason(&waiting, 2_000));
    assert!(model.lacks_reason(&waiting, 1_000 + EXPLAINED_FOR_MS));
    apply(&mut model, [changed(14, job("job-2", "next", "vision", v1::JobPhase::Running))]);
    assert_eq!(model.wait_reason("job-2"), None);
}

#[test]
fn the_oldest_explanation_makes_room() {
    let mut model = Model::default();
    let reason = WaitReason { reason: "WAITING_FOR_CAPACITY".into(), ..WaitReason::default() };
    for n in 0..=EXPLAINED_MAX {
        let id = format!("job-{n:04}");
        apply(&mut model, [changed(1, job(&id, "a", "t", v1::JobPhase::Pending))]);
        // The first one is renewed, so the second one is the oldest.
        let at = if n == 0 { 5_000 } else { 1_000 + n as u64 };
        model.apply(Update::Explained { job_id: id, reason: reason.clone() }, at);
    }
    assert_eq!(model.explained.len(), EXPLAINED_MAX);
    assert_eq!(model.wait_reason("job-0001"), None);
    assert!(model.wait_reason("job-0000").is_some());
    assert!(model.wait_reason(&format!("job-{EXPLAINED_MAX:04}")).is_some());
}

#[test]
fn silence_and_errors_are_shown_until_there_is_an_answer() {
    let model = Model::default();
    assert_eq!(model.silence_ms(1_000), None);
    assert_eq!(model.silence_ms(60_000), Some(60_000));
    let mut model = synced();
    model.apply(Update::Lost { feed: Feed::Jobs, error: "connection\u{1b}[31m refused".into() }, 30_000);
    assert_eq!(model.silence_ms(30_000), Some(29_000));
    assert_eq!(model.feed(Feed::Jobs).error, "connection [31m refused");
    model.apply(Update::Job(WatchItem::Bookmark { log_index: 40 }), 31_000);
    assert_eq!((model.silence_ms(31_000), model.feed(Feed::Jobs).error.as_str()), (None, ""));
}

#[test]
fn devices_of_a_node_are_busy_free_or_unusable() {
    let mut shown = node("n", "eu", 3);
    shown.restriction = Some(v1::NodeRestriction { unusable_devices: vec![7], ..Default::default() });
    let row = NodeRow::of(&shown);
    assert_eq!((row.busy, row.free, row.unusable), (4, 3, 1));
    shown.cordoned = true;
    let row = NodeRow::of(&shown);
    assert_eq!((row.state, row.busy, row.free, row.unusable), ("cordoned", 4, 0, 4));
    shown.status = v1::NodeStatus::Lost.into();
    assert_eq!(NodeRow::of(&shown).unusable, 8);
    // An answer that makes no sense does not make a row without sense.
    shown.status = v1::NodeStatus::Up.into();
    shown.free_devices = 900;
    shown.restriction =
        Some(v1::NodeRestriction { unusable_devices: (0..60).collect(), ..Default::default() });
    let row = NodeRow::of(&shown);
    assert_eq!(row.busy + row.free + row.unusable, 8);
}
