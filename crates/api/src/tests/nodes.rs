//! Watches of nodes.

use muster_decider::Command;
use muster_types::{Name, NodeId};
use muster_wire::time::{duration, unix_ms};
use muster_wire::v1::watch_nodes_response::Event;

use super::*;

impl TestServer {
    async fn watch_nodes(
        &self,
        region: &str,
        resume_token: &str,
    ) -> Result<Streaming<v1::WatchNodesResponse>, Status> {
        let request = v1::WatchNodesRequest { resume_token: resume_token.into(), region: region.into() };
        let mut fleet = FleetServiceClient::new(self.channel.clone());
        guarded("a watch", fleet.watch_nodes(request)).await.map(tonic::Response::into_inner)
    }

    /// The index behind which the node is so.
    async fn cordon(&self, number: u32, cordoned: bool) -> u64 {
        let request_id = format!("00000000-0000-4000-9000-{number:012}");
        let node = "h1".to_owned();
        let mut fleet = FleetServiceClient::new(self.channel.clone());
        let freshness = if cordoned {
            let request = v1::CordonNodeRequest { request_id, node, ..Default::default() };
            let answer = guarded("a cordon", fleet.cordon_node(request)).await.expect("it is taken");
            answer.into_inner().freshness
        } else {
            let request = v1::UncordonNodeRequest { request_id, node };
            let answer = guarded("its end", fleet.uncordon_node(request)).await.expect("it is taken");
            answer.into_inner().freshness
        };
        freshness.expect("it says").log_index
    }

    async fn run(&self, command: Command) -> u64 {
        guarded("a command", self.engine.execute(command)).await.expect("it is taken").at().0
    }
}

/// Everything but bookmarks, until the watch has come to the index.
async fn up_to(
    events: &mut Streaming<v1::WatchNodesResponse>,
    log_index: u64,
) -> Vec<v1::WatchNodesResponse> {
    let mut seen = Vec::new();
    guarded("the events", async {
        loop {
            let event = events.message().await.expect("it stands").expect("an event");
            let at = event.log_index;
            if !matches!(event.event, Some(Event::Bookmark(_))) {
                seen.push(event);
            }
            if at >= log_index {
                return;
            }
        }
    })
    .await;
    seen
}

fn token_of(text: &str, region: &str) -> ResumeToken {
    ResumeToken::decode(text, CLUSTER, filter_digest(["nodes", region])).expect("it is of this watch")
}

#[tokio::test]
async fn a_list_is_narrowed_by_the_word_that_a_node_is_shown_with() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    for (number, cordoned, word) in [(1, true, "cordoned"), (2, false, "up")] {
        served.cordon(number, cordoned).await;
        let view = served.engine.view();
        let row = view.node(NodeId(0)).expect("its agent has registered");
        assert_eq!(crate::render::state_of_node(&view, NodeId(0), row), word);
        assert_eq!(muster_wire::node_state::node_state(&crate::render::node(&view, NodeId(0), row)), word);
    }
}

#[tokio::test]
async fn each_change_of_a_node_comes_once_as_it_was_then_behind_any_event() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut whole = served.watch_nodes("", "").await.expect("it opens");
    let present = guarded("the present", whole.message()).await.expect("it stands").expect("an event");
    assert!(present.resume_token.is_empty(), "a part of the present is no place to go on from");
    assert!(matches!(present.event, Some(Event::Changed(node)) if !node.cordoned && node.free_devices == 8));
    let synced = guarded("the present", whole.message()).await.expect("it stands").expect("an event");
    assert_eq!(synced.event, Some(Event::SyncEnd(v1::SyncEnd {})));
    let mut last = 0;
    for number in 0..6 {
        last = served.cordon(number, number % 2 == 0).await;
    }
    let seen = up_to(&mut whole, last).await;
    let cordoned = |event: &v1::WatchNodesResponse| match &event.event {
        Some(Event::Changed(node)) => node.cordoned,
        other => panic!("{other:?}"),
    };
    // Should its session run out meanwhile, that is one more event of the same cordon.
    let mut cordons: Vec<bool> = seen.iter().map(cordoned).collect();
    cordons.dedup();
    assert_eq!(cordons, [true, false, true, false, true, false], "read late, and yet as it was");
    assert!(seen.is_sorted_by(|a, b| a.log_index < b.log_index), "{seen:?}");

    let behind_present = std::iter::once((&synced, &seen[..]));
    let behind_each = seen.iter().enumerate().map(|(at, event)| (event, &seen[at + 1..]));
    for (event, rest) in behind_present.chain(behind_each).filter(|(_, rest)| !rest.is_empty()) {
        let mut again = served.watch_nodes("", &event.resume_token).await.expect("it is kept");
        let last = rest.last().map_or(0, |event| event.log_index);
        assert_eq!(up_to(&mut again, last).await, rest, "behind {}", event.log_index);
    }

    served.engine.stop();
    let told = guarded("the watch ends", async {
        loop {
            match whole.message().await {
                Ok(event) => assert!(event.is_some(), "without a word"),
                Err(status) => return Refused::from_status(&status),
            }
        }
    })
    .await;
    assert_eq!(told.code, Some(RefusalCode::ReplicaStopping));
    let place = token_of(&told.metadata["resume_token"], "");
    assert!(place.log_index.0 >= last, "behind everything that was sent: {told:?}");
}

#[tokio::test]
async fn a_forgotten_node_is_said_to_be_and_only_where_its_region_is_watched() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut here = served.watch_nodes("eu", "").await.expect("it opens");
    let mut elsewhere = served.watch_nodes("us", "").await.expect("it opens");
    let node = NodeId(0);
    served.run(Command::SessionOver { node, incarnation: 1 }).await;
    let last =
        served.run(Command::ForgetNode { request: None, by: muster_types::Requester::default(), node }).await;
    // The session may have been over before the watch began; then the present shows it.
    let mut seen = up_to(&mut here, last).await;
    assert_eq!(seen.pop().and_then(|event| event.event), Some(Event::Forgotten(node.to_string())));
    let lost = seen.iter().rev().find_map(|event| match &event.event {
        Some(Event::Changed(node)) => Some(node.status()),
        _ => None,
    });
    assert_eq!(lost, Some(v1::NodeStatus::Lost));
    let other: Vec<_> = up_to(&mut elsewhere, last).await.into_iter().map(|event| event.event).collect();
    assert_eq!(other, [Some(Event::SyncEnd(v1::SyncEnd {}))]);
}

#[tokio::test]
async fn tokens_of_another_watch_and_of_the_future_are_refused() {
    let served = TestServer::start().await;
    let place = ResumeToken::behind(1, LogIndex(1));
    let nodes = |region| filter_digest(["nodes", region]);
    let of_jobs = place.encode(CLUSTER, filter_digest(["jobs"]));
    for token in [of_jobs, place.encode(CLUSTER, nodes("us")), "zz".to_owned()] {
        let refused = refused(served.watch_nodes("", &token).await);
        assert_eq!(refused.code, Some(RefusalCode::InvalidField), "{token}");
        assert_eq!(refused.violations[0].field, "resume_token");
    }
    let of_nodes = place.encode(CLUSTER, nodes(""));
    let request = v1::WatchJobsRequest { resume_token: of_nodes.clone(), ..Default::default() };
    let jobs = guarded("a watch", served.jobs().watch_jobs(request)).await;
    assert_eq!(refused(jobs).code, Some(RefusalCode::InvalidField));
    let ahead = ResumeToken::behind(1, LogIndex(1 << 40)).encode(CLUSTER, nodes(""));
    assert_eq!(refused(served.watch_nodes("", &ahead).await).code, Some(RefusalCode::LogIndexNotReached));
    served.watch_nodes("", &of_nodes).await.expect("it is a place in this log");
}

#[tokio::test]
async fn what_restricts_a_node_is_asked_for_answered_and_refused() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut fleet = FleetServiceClient::new(served.channel.clone());
    let id = |n: u32| format!("00000000-0000-4000-9100-{n:012}");
    let drain = |n, node: &str, stop_after_ms: Option<u64>| v1::DrainNodeRequest {
        request_id: id(n),
        node: node.into(),
        stop_after: stop_after_ms.map(duration),
        reason: "power work".into(),
    };
    let reason = |answer: Status| Refused::from_status(&answer).code;
    let early = v1::QuarantineNodeRequest {
        request_id: id(1),
        node: "h1".into(),
        reason: muster_journal::TEST_FORMAT_REASON.into(),
    };
    let early = fleet.quarantine_node(early).await.unwrap_err();
    assert_eq!(reason(early), Some(RefusalCode::FormatNotActive));

    for (request, expected) in [
        (drain(2, "h9", None), RefusalCode::NodeNotFound),
        (drain(3, "h1", Some(u64::MAX)), RefusalCode::InvalidField),
        (v1::DrainNodeRequest { request_id: "x".into(), ..drain(4, "h1", None) }, RefusalCode::InvalidField),
    ] {
        let refused = fleet.drain_node(request).await.unwrap_err();
        assert_eq!(reason(refused), Some(expected));
    }
    let drained = fleet.drain_node(drain(5, "h1", Some(60_000))).await.unwrap().into_inner();
    let node = drained.node.unwrap();
    assert_eq!(node.drain_reason.map(|said| said.reason).as_deref(), Some("power work"));
    let restriction = node.restriction.unwrap();
    let drain = restriction.drain.unwrap();
    let cordon = |n, reason: &str| v1::CordonNodeRequest {
        request_id: id(n),
        node: "h1".into(),
        reason: reason.into(),
    };
    let said = |node: Option<v1::Node>| node.and_then(|node| node.cordon_reason).map(|said| said.reason);
    let cordoned = fleet.cordon_node(cordon(30, "power work in row 4")).await.unwrap().into_inner();
    assert_eq!(said(cordoned.node).as_deref(), Some("power work in row 4"));
    let again = fleet.cordon_node(cordon(31, "")).await.unwrap().into_inner();
    assert_eq!(said(again.node).as_deref(), Some("power work in row 4"), "nothing was given, and it stays");
    for (n, bad) in [(32, "x".repeat(513)), (33, "a\nb".to_owned())] {
        let refused = fleet.cordon_node(cordon(n, &bad)).await.unwrap_err();
        assert_eq!(reason(refused), Some(RefusalCode::InvalidField));
    }
    let open = v1::UncordonNodeRequest { request_id: id(34), node: "h1".into() };
    let opened = fleet.uncordon_node(open).await.unwrap().into_inner();
    assert_eq!(said(opened.node), None, "it goes with the cordon");
    assert_eq!(
        (drain.cause(), unix_ms(drain.stop_time)),
        (v1::DrainCause::Operator, unix_ms(drain.start_time).map(|since| since + 60_000))
    );

    let quarantine = |n, reason: &str| v1::QuarantineNodeRequest {
        request_id: id(n),
        node: "h1".into(),
        reason: reason.into(),
    };
    for (n, bad) in [(6, String::new()), (7, "x".repeat(513))] {
        let refused = fleet.quarantine_node(quarantine(n, &bad)).await.unwrap_err();
        assert_eq!(reason(refused), Some(RefusalCode::InvalidField));
    }
    assert!(fleet.quarantine_node(quarantine(8, "odd")).await.is_ok());

    let begin = |n, action: i32, devices| v1::BeginNodeRepairRequest {
        request_id: id(n),
        node: "h1".into(),
        action,
        devices,
        stop_after: None,
    };
    for (n, action, devices) in [
        (12, 17, vec![]),
        (13, v1::HealthAction::Cordon.into(), vec![]),
        (14, 0, vec![64]),
        (15, 0, vec![63]),
    ] {
        let refused = fleet.begin_node_repair(begin(n, action, devices)).await.unwrap_err();
        assert_eq!(reason(refused), Some(RefusalCode::InvalidField), "request {n}");
    }
    let finish = |n, outcome: v1::RepairOutcome, message: &str| v1::FinishNodeRepairRequest {
        request_id: id(n),
        node: "h1".into(),
        outcome: outcome.into(),
        message: message.into(),
    };
    use v1::RepairOutcome as Repair;
    for (n, outcome, detail, expected) in [
        (10, Repair::Unspecified, "", RefusalCode::InvalidField),
        (11, Repair::Done, "why", RefusalCode::InvalidField),
        (16, Repair::Failed, "why", RefusalCode::RepairNotBegun),
    ] {
        let refused = fleet.finish_node_repair(finish(n, outcome, detail)).await.unwrap_err();
        assert_eq!(reason(refused), Some(expected), "request {n}");
    }
    let unknown = v1::FinishNodeRepairRequest { outcome: 99, ..finish(19, Repair::Done, "") };
    let refused = fleet.finish_node_repair(unknown).await.unwrap_err();
    assert_eq!(reason(refused), Some(RefusalCode::InvalidField), "an outcome of a newer release");
    let begun = fleet
        .begin_node_repair(begin(17, v1::HealthAction::ResetGpu.into(), vec![3]))
        .await
        .unwrap()
        .into_inner();
    let repairing = begun.node.unwrap().restriction.unwrap().repair.unwrap();
    assert_eq!(
        (repairing.action(), repairing.devices.as_slice()),
        (v1::HealthAction::ResetGpu, [3].as_slice())
    );
    assert!(fleet.finish_node_repair(finish(18, Repair::Done, "")).await.is_ok());

    let policy = fleet.get_health_policy(v1::GetHealthPolicyRequest::default()).await.unwrap().into_inner();
    assert_eq!(
        (policy.version, policy.policy.as_ref().unwrap().xids[&79]),
        (0, v1::XidAction::RebootNode.into())
    );
    let set = |n, policy, expected_version| v1::SetHealthPolicyRequest {
        request_id: id(n),
        policy,
        expected_version,
        validate_only: false,
    };
    let check = |policy: Option<v1::HealthPolicy>, expected_version| v1::SetHealthPolicyRequest {
        request_id: String::new(),
        policy,
        expected_version,
        validate_only: true,
    };
    let bad = v1::HealthPolicy { xid_unlisted: 99, ..Default::default() };
    for (request, expected) in [
        (set(20, None, None), RefusalCode::InvalidField),
        (set(21, Some(bad), None), RefusalCode::InvalidField),
        (set(22, policy.policy.clone(), Some(9)), RefusalCode::PolicyChanged),
        (check(policy.policy.clone(), Some(9)), RefusalCode::PolicyChanged),
        (check(None, None), RefusalCode::InvalidField),
    ] {
        let refused = fleet.set_health_policy(request).await.unwrap_err();
        assert_eq!(reason(refused), Some(expected));
    }
    let checked = fleet.set_health_policy(check(policy.policy.clone(), Some(0))).await.unwrap().into_inner();
    assert_eq!((checked.version, served.engine.view().health_policy().version), (0, LogIndex::ZERO));
    assert!(fleet.set_health_policy(set(23, policy.policy, Some(0))).await.is_ok());
}

#[tokio::test]
async fn a_name_that_reads_as_an_id_is_the_host_of_that_name() {
    let served = TestServer::start().await;
    let first = served.agent_of("h1", 7).await;
    let id = served.engine.view().node_named(&Name::literal("h1")).expect("it has registered").to_string();
    let second = served.agent_of(&id, 8).await;
    let mut fleet = FleetServiceClient::new(served.channel.clone());
    let request_id = "00000000-0000-4000-9300-000000000001".to_owned();
    let cordon = v1::CordonNodeRequest { request_id, node: id.clone(), ..Default::default() };
    let cordoned = fleet.cordon_node(cordon).await.expect("a node has that name").into_inner();
    let description = cordoned.node.and_then(|node| node.description).expect("it is described");
    assert_eq!(description.name, id, "the host that is named so, and not the one whose id that is");
    let read = v1::GetNodeRequest { node: "h1".to_owned(), read: None };
    let other = fleet.get_node(read).await.expect("it is known").into_inner();
    assert!(!other.node.expect("it is there").cordoned);

    // Where hosts are named like ids, a name that no host has is not the id of another host, whatever is asked.
    let name = Name::new(id.as_str()).expect("it is a name");
    let absent = served.engine.view().node_named(&name).expect("it has registered").to_string();
    let refused = |status: Status| {
        let refused = Refused::from_status(&status);
        assert_eq!(refused.code, Some(RefusalCode::NodeNotFound), "{refused:?}");
        assert!(refused.message.contains(&format!("by its name, {id}")), "{refused:?}");
    };
    let request_id = |number: u32| format!("00000000-0000-4000-9300-{number:012}");
    let (drain_id, node) = (request_id(2), absent.clone());
    let drain = v1::DrainNodeRequest { request_id: drain_id, node, ..Default::default() };
    refused(fleet.drain_node(drain).await.expect_err("no host has that name"));
    let forget = v1::ForgetNodeRequest { request_id: request_id(3), node: absent.clone() };
    refused(fleet.forget_node(forget).await.expect_err("no host has that name"));
    let read = v1::GetNodeRequest { node: absent, read: None };
    refused(fleet.get_node(read).await.expect_err("no host has that name"));
    drop((first, second));
}

#[tokio::test]
async fn a_node_is_forgotten_once_however_often_that_is_asked() {
    let served = TestServer::start().await;
    let mut fleet = FleetServiceClient::new(served.channel.clone());
    let (send, session) = served.agent().await;
    let node = served.engine.view().node_named(&Name::literal("h1")).expect("it has registered");
    drop((send, session));
    served.run(Command::SessionOver { node, incarnation: 1 }).await;
    let forget = |n: u32, node: &str| v1::ForgetNodeRequest {
        request_id: if n == 0 { String::new() } else { format!("00000000-0000-4000-9200-{n:012}") },
        node: node.into(),
    };
    let reason = |answer: Status| Refused::from_status(&answer).code;
    let bad = v1::ForgetNodeRequest { request_id: "x".into(), ..forget(1, "h1") };
    assert_eq!(reason(fleet.forget_node(bad).await.unwrap_err()), Some(RefusalCode::InvalidField));
    let first = fleet.forget_node(forget(1, "h1")).await.expect("it is lost").into_inner();
    assert_eq!(first.node_id, node.to_string());
    let again = fleet.forget_node(forget(1, "h1")).await.expect("its answer is repeated").into_inner();
    assert_eq!(again.node_id, first.node_id);
    assert_eq!(
        again.freshness.map(|freshness| freshness.log_index),
        first.freshness.map(|freshness| freshness.log_index)
    );
    // Its id names no other node, so there is nothing left to do; its name may be another's by now.
    let by_id = fleet.forget_node(forget(0, &first.node_id)).await.expect("nothing is left to do");
    assert_eq!(by_id.into_inner().node_id, first.node_id);
    for request in [forget(0, "h1"), forget(2, "h1"), forget(3, "node-999")] {
        let refused = fleet.forget_node(request).await.unwrap_err();
        assert_eq!(reason(refused), Some(RefusalCode::NodeNotFound));
    }
    let request_id = forget(1, "").request_id;
    let cordon = v1::CordonNodeRequest { request_id, node: "h2".into(), ..Default::default() };
    assert_eq!(reason(fleet.cordon_node(cordon).await.unwrap_err()), Some(RefusalCode::NodeNotFound));
}

#[tokio::test]
async fn labels_and_taints_that_operators_set_are_answered_checked_and_refused() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut fleet = FleetServiceClient::new(served.channel.clone());
    let base = |n: u32| v1::SetNodeLabelsRequest {
        request_id: format!("00000000-0000-4000-9400-{n:012}"),
        node: "h1".into(),
        ..Default::default()
    };
    let pool = |value: &str| -> std::collections::HashMap<String, String> {
        [("pool".to_owned(), value.to_owned())].into()
    };
    let set = v1::SetNodeLabelsRequest {
        set_labels: pool("research"),
        set_taints: vec!["bring-up".into()],
        ..base(1)
    };
    let check = v1::SetNodeLabelsRequest { validate_only: true, request_id: String::new(), ..set.clone() };
    let would_be = fleet.set_node_labels(check).await.unwrap().into_inner().node.unwrap();
    let before = fleet.get_node(v1::GetNodeRequest { node: "h1".into(), read: None }).await.unwrap();
    assert_eq!(before.into_inner().node.unwrap().overrides, None, "a check changes nothing");
    let after = fleet.set_node_labels(set.clone()).await.unwrap().into_inner().node.unwrap();
    let shown = |node: &v1::Node| {
        let described = node.description.clone().unwrap_or_default();
        let overrides = node.overrides.clone().unwrap_or_default();
        (described.labels.get("pool").cloned(), described.taints, overrides.labels, overrides.taints)
    };
    assert_eq!(shown(&would_be), shown(&after));
    assert_eq!(shown(&after).0.as_deref(), Some("research"));
    assert_eq!(shown(&after).3, ["bring-up"]);

    let reason = |answer: Status| Refused::from_status(&answer).code;
    let many = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
    let reserved = [("isolation.user".to_owned(), "own".to_owned())].into();
    for (request, expected) in [
        (
            v1::SetNodeLabelsRequest { node: "h9".into(), set_labels: pool("a"), ..base(2) },
            RefusalCode::NodeNotFound,
        ),
        (base(3), RefusalCode::InvalidField),
        (v1::SetNodeLabelsRequest { set_labels: many, ..base(4) }, RefusalCode::InvalidField),
        (v1::SetNodeLabelsRequest { set_labels: reserved, ..base(5) }, RefusalCode::InvalidField),
        (
            v1::SetNodeLabelsRequest { set_labels: pool(&"x".repeat(257)), ..base(6) },
            RefusalCode::InvalidField,
        ),
        (v1::SetNodeLabelsRequest { set_taints: vec!["NO".into()], ..base(7) }, RefusalCode::InvalidField),
        (
            v1::SetNodeLabelsRequest { remove_labels: vec!["a b".into()], ..base(8) },
            RefusalCode::InvalidField,
        ),
        (v1::SetNodeLabelsRequest { set_taints: vec!["t".into(); 17], ..base(9) }, RefusalCode::InvalidField),
        (
            v1::SetNodeLabelsRequest { request_id: "x".into(), set_labels: pool("a"), ..base(10) },
            RefusalCode::InvalidField,
        ),
        (v1::SetNodeLabelsRequest { set_labels: pool("other"), ..base(1) }, RefusalCode::RequestIdReused),
    ] {
        let refused = fleet.set_node_labels(request).await.unwrap_err();
        assert_eq!(reason(refused), Some(expected));
    }
    let repeated = fleet.set_node_labels(set).await.unwrap().into_inner().node.unwrap();
    assert_eq!(shown(&repeated), shown(&after), "what was refused has changed nothing");
    let remove = v1::SetNodeLabelsRequest {
        remove_labels: vec!["pool".into()],
        remove_taints: vec!["bring-up".into(), "unknown".into()],
        ..base(11)
    };
    let removed = fleet.set_node_labels(remove).await.unwrap().into_inner().node.unwrap();
    assert_eq!(removed.overrides, None);
}
