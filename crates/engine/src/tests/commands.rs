//! Commands, reads and watches, and what bounds them.

use muster_decider::{Answer, BootstrapConfig, Command, QuotaOrder, ScheduleOrder, Speculation, handle};
use muster_journal::FORMAT_MAX;
use muster_state::State;
use muster_types::policy::{PolicyDraft, PurchaseKind, QuotaGrant, TenantPolicy};
use muster_types::{
    ArraySpec, CapacityFallback, CapacityRules, Consistency, FencingToken, HolderId, JobDraft, JobId,
    Leadership, LogIndex, LogTime, NextRun, NodeDraft, OverlapRule, Parameters, PurchaseSet, RefusalCode,
    RequestId, Requester, Schedule, ScheduleKey, ScheduleTemplate, limits,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::retention_cut;
use crate::sample::{host, job, name};
use crate::tests::{
    CLUSTER, GUARD, REPLICA, code, config, consensus, engine_with, guarded, leader, open, opening, submit,
    submitted, until,
};
use crate::{Change, Engine, EngineConfig, ReplicaInfo, WatchPosition, replicated};

#[tokio::test]
async fn a_submission_is_answered_when_it_can_be_read_and_repeats_its_answer() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let first = guarded("a submission", engine.execute(submit(7, 3, 1))).await.expect("it is taken");
    let Answer::Submitted { jobs, at } = &first else { panic!("{first:?}") };
    let view = engine.view();
    assert!(view.log_index() >= *at && jobs.iter().all(|id| view.job(*id).is_some()));
    let again = guarded("the same again", engine.execute(submit(7, 3, 1))).await.expect("it is repeated");
    assert_eq!(again, first);
    let other = guarded("another under its id", engine.execute(submit(7, 2, 1))).await;
    assert_eq!(code(other), Some(RefusalCode::RequestIdReused));
    assert_eq!(engine.view().jobs().len(), 3);
}

#[tokio::test]
async fn a_job_whose_time_comes_waits_for_nothing_else() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(400);
    let mut draft = JobDraft::clone(&job("later", 1));
    draft.not_before = Some(LogTime(u64::try_from(soon.as_millis()).unwrap()));
    let jobs = muster_types::Submission::plain(vec![draft.check().unwrap()]);
    let answer = guarded("it", engine.execute(Command::submit(RequestId(1), jobs))).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(engine.view().not_before().count(), 1);
    // What is done now and then is done every ten seconds.
    let released = until(&engine, "its time", |view| view.not_before().next().is_none());
    tokio::time::timeout(Duration::from_secs(6), released).await.expect("nothing else has to happen");
}

#[tokio::test]
async fn a_fallback_opens_when_it_is_due_and_waits_for_nothing_else() {
    let engine = leader().await;
    let mut opening = opening("h1", 1);
    let mut spec = NodeDraft::clone(&opening.spec);
    spec.labels.insert(name("purchase"), PurchaseKind::OnDemand.as_str().to_owned());
    opening.spec = spec.check().unwrap();
    let _session = open(&engine, opening).await;
    let mut draft = JobDraft::clone(&job("waits", 1));
    let set = |kind: PurchaseKind| -> PurchaseSet { [kind].into_iter().collect() };
    draft.capacity = Some(Box::new(CapacityRules {
        purchases: set(PurchaseKind::Spot),
        fallback: Some(CapacityFallback {
            purchases: set(PurchaseKind::OnDemand),
            after_ms: limits::CAPACITY_FALLBACK_MS_MIN,
            is_open: false,
        }),
        interruptions_milli_max: None,
    }));
    let jobs = muster_types::Submission::plain(vec![draft.check().unwrap()]);
    let answer = guarded("it", engine.execute(Command::submit(RequestId(1), jobs))).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(engine.view().closed_fallbacks().count(), 1);
    // What is done now and then is done every ten seconds.
    let opened = until(&engine, "its fallback", |view| view.closed_fallbacks().next().is_none());
    tokio::time::timeout(Duration::from_secs(6), opened).await.expect("nothing else has to happen");
}

#[tokio::test]
async fn a_grant_of_quota_is_over_when_its_time_is_and_waits_for_nothing_else() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let mut policy = PolicyDraft::default();
    policy.tenants.insert(name("lab"), TenantPolicy::default());
    let set = Command::SetPolicy {
        request: RequestId(1),
        by: Requester::default(),
        policy: Box::new(policy.check().expect("a policy")),
        expected_version: None,
    };
    let answer = guarded("the policy", engine.execute(set)).await;
    assert!(answer.is_ok(), "{answer:?}");
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(400);
    let grant = QuotaGrant {
        tenant: name("lab"),
        kind: name("h100"),
        region: None,
        amount_milli: 1_000,
        until: LogTime(u64::try_from(soon.as_millis()).unwrap()),
        reason: "a deadline".to_owned(),
    };
    let order = QuotaOrder { request: RequestId(2), by: Requester::default(), acts_for: None, grant };
    let answer = guarded("the grant", engine.execute(Command::GrantQuota(Box::new(order)))).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(engine.view().grants_in_force().count(), 1);
    // What is done now and then is done every ten seconds.
    let over = until(&engine, "its end", |view| view.grants_in_force().next().is_none());
    tokio::time::timeout(Duration::from_secs(6), over).await.expect("nothing else has to happen");
}

#[tokio::test]
async fn a_refusal_changes_nothing_and_is_told() {
    let engine = leader().await;
    let before = engine.view().jobs().len();
    let refused = guarded("a job without a fleet", engine.execute(submit(1, 1, 1))).await;
    assert_eq!(code(refused), Some(RefusalCode::NeverFits));
    assert_eq!(engine.view().jobs().len(), before);
}

#[tokio::test]
async fn a_watch_goes_on_exactly_inside_a_batch_of_a_thousand() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let start = WatchPosition::after(engine.view().log_index());
    let answer = guarded("a batch", engine.execute(submit(1, 1_000, 8))).await.expect("it is taken");
    let Answer::Submitted { jobs, at } = answer else { panic!("{answer:?}") };
    let mut places: Vec<(WatchPosition, JobId)> = Vec::new();
    let mut watch = engine.watch(start).expect("the place is kept");
    while places.len() < 1_000 {
        let (events, _) = guarded("changes", watch.next()).await.expect("they are kept");
        let of_batch = events.into_iter().filter(|e| e.position.log_index == at);
        places.extend(of_batch.filter_map(|e| match e.change {
            Change::Job { id, .. } => Some((e.position, id)),
            // What became of the queue, behind all of them.
            Change::Queues(_) => None,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(places.iter().map(|(_, id)| *id).collect::<Vec<_>>(), jobs, "each once, in order");
    for behind in [0, 255, 256, 511, 998] {
        let mut again = engine.watch(places[behind].0).expect("the place is kept");
        let (events, _) = guarded("changes", again.next()).await.expect("they are kept");
        assert_eq!(events[0].position, places[behind + 1].0);
    }
    let future = WatchPosition::after(LogIndex(engine.view().log_index().0 + 1_000));
    assert_eq!(code(engine.watch(future)), Some(RefusalCode::LogIndexNotReached));
}

#[tokio::test]
async fn a_read_waits_for_its_index_and_not_for_ever() {
    let engine = leader().await;
    let next = engine.view().log_index().next();
    let waiting = engine.wait_applied(next, GUARD);
    let (view, _session) = tokio::join!(waiting, open(&engine, opening("h1", 1)));
    assert!(view.expect("it came").log_index() >= next);
    let never = engine.wait_applied(LogIndex(u64::MAX), Duration::from_millis(50)).await;
    let refusal = never.expect_err("that far nobody is");
    assert_eq!(refusal.code, RefusalCode::LogIndexNotReached);
    assert!(refusal.metadata.iter().any(|(key, _)| *key == "applied_log_index"));
}

#[tokio::test]
async fn full_lanes_refuse_with_a_hint_and_nodes_have_their_own() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    // One task at a time runs here: the loop takes nothing while these are queued.
    let mut waiting: Vec<_> = (0..65).map(|n| Box::pin(engine.execute(submit(100 + n, 1, 1)))).collect();
    for call in &mut waiting[..64] {
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    let std::task::Poll::Ready(Err(refused)) = futures::poll!(waiting[64].as_mut()) else {
        panic!("the lane is full")
    };
    assert_eq!(refused.code, RefusalCode::Overloaded);
    assert!(refused.metadata.iter().any(|(key, value)| *key == "retry_after_ms" && value == "100"));
    let mut registration = Box::pin(engine.open_session(opening("h2", 2)));
    assert!(futures::poll!(registration.as_mut()).is_pending(), "nodes are not refused for that");
    waiting.pop();
    let answers = guarded("what waited is answered", futures::future::join_all(waiting)).await;
    assert!(answers.iter().all(Result::is_ok));
    guarded("the node's session", registration).await.expect("it is opened");
}

/// The nodes' lane is bounded by size as well, and its memory is given in order of arrival.
#[tokio::test]
async fn what_nodes_say_is_bounded_by_its_size_and_waits_for_its_turn() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let large = || {
        let exit = muster_types::ExitStatus::LaunchFailed("x".repeat(40 << 20));
        Command::Report {
            node: session.node,
            incarnation: session.incarnation,
            job: JobId::derive(LogIndex(1), 0),
            token: FencingToken::default(),
            updates: vec![(0, muster_journal::RankUpdate::Exited(exit))],
        }
    };
    let mut first = Box::pin(engine.execute_for_node(large()));
    let mut second = Box::pin(engine.execute_for_node(large()));
    let mut third = Box::pin(engine.open_session(opening("h2", 2)));
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert!(futures::poll!(second.as_mut()).is_pending() && futures::poll!(third.as_mut()).is_pending());
    let kib = engine.inner.node_memory.available_permits();
    assert!(kib < 24 << 10, "the first alone is queued: {kib} KiB are left");
    // All of them are answered, one behind the other; nobody knows the job.
    drop(guarded("the first", first).await);
    drop(guarded("the second", second).await);
    guarded("the small one behind them", third).await.expect("it is opened");
}

#[tokio::test]
async fn waiting_submissions_are_bounded_by_their_size_too() {
    let engine = leader().await;
    let large = |request: u128| {
        let mut spec = muster_types::JobDraft::clone(&job("large", 1));
        spec.groups[0].command = vec!["x".repeat(4_000); 8];
        let spec = spec.check().expect("it is a job");
        Command::submit(RequestId(request), muster_types::Submission::plain(vec![spec; 1_000]))
    };
    let mut first = Box::pin(engine.execute(large(1)));
    let mut second = Box::pin(engine.execute(large(2)));
    let mut third = Box::pin(engine.execute(large(3)));
    assert!(futures::poll!(first.as_mut()).is_pending() && futures::poll!(second.as_mut()).is_pending());
    let std::task::Poll::Ready(refused) = futures::poll!(third.as_mut()) else { panic!("96 MB wait") };
    assert_eq!(code(refused), Some(RefusalCode::Overloaded));
    // Too large for a record each; the memory they took is free again.
    assert_eq!(code(guarded("the first", first).await), Some(RefusalCode::InvalidField));
    assert_eq!(code(guarded("the second", second).await), Some(RefusalCode::InvalidField));
    assert_eq!(code(guarded("again", engine.execute(large(4))).await), Some(RefusalCode::InvalidField));
}

#[tokio::test]
async fn a_replica_that_does_not_lead_refuses_what_only_a_leader_can() {
    let engine = engine_without_cluster().await;
    assert_eq!(
        code(guarded("a submission", engine.execute(submit(1, 1, 1))).await),
        Some(RefusalCode::NotLeader)
    );
    let session = guarded("a session", engine.open_session(opening("h1", 1))).await;
    assert_eq!(code(session), Some(RefusalCode::NotLeader));
    assert_eq!(code(guarded("a read", engine.linearizable_view()).await), Some(RefusalCode::NotLeader));
    engine.stop();
    guarded("it stops", engine.stopping()).await;
    let late = guarded("too late", engine.execute(submit(2, 1, 1))).await;
    assert!(matches!(code(late), Some(RefusalCode::OutcomeUnknown | RefusalCode::NotLeader)));
    let deadline = tokio::time::Instant::now() + GUARD;
    let read = engine.read_present(Consistency::Linearizable, LogIndex::ZERO, deadline);
    let read = guarded("a read that is too late", read).await;
    assert_eq!(code(read), Some(RefusalCode::ReplicaStopping), "nothing is unknown of a read");
}

#[tokio::test]
async fn a_decision_loop_that_breaks_off_ends_the_sessions_and_is_noticed() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let broken = async { panic!("the guard refused the leader's own record at {}", 7) };
    guarded("it is noticed", engine.clone().supervise(broken)).await;
    let detail = engine.failed().borrow().clone();
    assert_eq!(detail.as_deref(), Some("the guard refused the leader's own record at 7"));
    guarded("no agent is kept alive", session.ended()).await;
    assert!(engine.is_stopping());
}

#[tokio::test]
async fn a_command_that_meets_a_broken_invariant_costs_itself_alone() {
    let engine = engine_with(EngineConfig { contain_faults: true, ..config(64) }).await;
    until(&engine, "the cluster is founded", |view| view.cluster().is_some()).await;
    let _session = open(&engine, opening("h1", 1)).await;
    let poison = || {
        let jobs = muster_types::Submission::plain([job("poison", 1)]);
        Command::submit(RequestId(9), jobs)
    };
    // In one round with others, which are carried out all the same.
    let (before, poisoned, behind) = guarded("all three", async {
        tokio::join!(
            engine.execute(submit(1, 3, 1)),
            engine.execute(poison()),
            engine.execute(submit(2, 3, 1))
        )
    })
    .await;
    assert!(before.is_ok() && behind.is_ok(), "{before:?} {behind:?}");
    let refusal = poisoned.expect_err("it must not be carried out");
    assert_eq!(refusal.code, RefusalCode::Internal);
    let fingerprint = refusal.metadata.iter().find(|(name, _)| *name == "fingerprint").expect("it has one");
    let facts = engine.local_facts();
    assert!(facts.decision_fault.is_some_and(|fault| fault.contains(&fingerprint.1)));
    assert_eq!(facts.decision_faults, 1);
    // The client repeats it, and the leader goes on.
    assert_eq!(code(guarded("the same again", engine.execute(poison())).await), Some(RefusalCode::Internal));
    assert_eq!(engine.view().jobs().len(), 6);
    submitted(&engine, 3, 1).await;
    assert!(engine.is_leader() && engine.failed().borrow().is_none());
}

#[tokio::test]
async fn a_step_that_meets_a_broken_invariant_is_left_out_and_the_leader_goes_on() {
    for step in ["planning", "images", "retention"] {
        let engine = engine_with(EngineConfig { contain_faults: true, ..config(64) }).await;
        until(&engine, "the cluster is founded", |view| view.cluster().is_some()).await;
        let _session = open(&engine, opening("h1", 1)).await;
        // What time brings about is looked at when the job may start.
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(300);
        let mut draft = JobDraft::clone(&job(&format!("poison-{step}"), 1));
        draft.not_before = Some(LogTime(u64::try_from(soon.as_millis()).unwrap()));
        let jobs = muster_types::Submission::plain([draft.check().unwrap()]);
        let answer = guarded("it", engine.execute(Command::submit(RequestId(1), jobs))).await;
        assert!(answer.is_ok(), "{step}: {answer:?}");
        until(&engine, "its time", |view| view.not_before().next().is_none()).await;
        guarded("the fault is known", async {
            while engine.local_facts().decision_faults == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let other = submitted(&engine, 2, 1).await;
        if step != "planning" {
            let is_placed = |view: &State| view.job(other).is_some_and(|row| row.placement.is_some());
            until(&engine, "the other steps are taken", is_placed).await;
        }
        let facts = engine.local_facts();
        let fault = facts.decision_fault.unwrap_or_default();
        assert!(fault.contains(&format!("`{step}`")), "{fault}");
        assert_eq!(facts.decision_faults, 1, "{step} is not taken again at once");
        assert!(engine.is_leader() && engine.failed().borrow().is_none());
    }
}

/// An order for a schedule of this name, which is due every hour.
fn schedule_order(request: u128, text: &str) -> Command {
    let schedule = Schedule {
        key: ScheduleKey { tenant: name("lab"), name: name(text) },
        cron: "0 * * * *".parse().expect("an expression"),
        zone: "UTC".to_owned(),
        template: ScheduleTemplate::of(job("nightly", 1).into()).expect("a job"),
        overlap: OverlapRule::Allow,
        starting_deadline_ms: 60_000,
        runs_max: 5,
    };
    Command::SetSchedule(Box::new(ScheduleOrder {
        request: RequestId(request),
        by: Requester::named("admin/ops".to_owned(), true),
        acts_for: None,
        role: None,
        schedule,
        is_new: true,
    }))
}

/// Moments are found from texts of users.
#[tokio::test]
async fn a_schedule_whose_moments_cannot_be_found_stops_neither_the_leader_nor_another_schedule() {
    let engine = engine_with(EngineConfig { contain_faults: true, ..config(64) }).await;
    until(&engine, "the cluster is founded", |view| view.cluster().is_some()).await;
    let _session = open(&engine, opening("h1", 1)).await;
    // It comes before the other one in every order.
    let culprit = ScheduleKey { tenant: name("lab"), name: name("a-poison") };
    for (request, text) in [(1, "a-poison"), (2, "nightly")] {
        let answer = guarded("it", engine.execute(schedule_order(request, text))).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
    let other = ScheduleKey { name: name("nightly"), ..culprit.clone() };
    let view = until(&engine, "the moment of the other one is found", |view| {
        view.schedule(&other).is_some_and(|row| matches!(row.next, NextRun::At(_)))
    })
    .await;
    assert_eq!(view.schedule(&culprit).map(|row| row.next), Some(NextRun::Unknown));
    let facts = engine.local_facts();
    let fault = facts.decision_fault.unwrap_or_default();
    let fingerprint = format!("fingerprint {:016x}", crate::decide::containment::fingerprint(&culprit));
    assert!(fault.contains(&fingerprint) && fault.contains("schedule"), "{fault}");
    assert_eq!(facts.decision_faults, 1, "it is not taken again at once");
    submitted(&engine, 3, 1).await;
    assert!(engine.is_leader() && engine.failed().borrow().is_none());
}

/// As many as one round looks after, whose commands are undone each time: they would be found again and again, without a pause and
/// before all others.
#[tokio::test]
async fn schedules_whose_commands_are_undone_leave_the_round_to_others() {
    const POISONED: usize = 64;
    let engine = engine_with(EngineConfig { contain_faults: true, ..config(64) }).await;
    until(&engine, "the cluster is founded", |view| view.cluster().is_some()).await;
    let _session = open(&engine, opening("h1", 1)).await;
    for number in 0..POISONED {
        let order = schedule_order(number as u128 + 1, &format!("b-poison-{number:02}"));
        let answer = guarded("it", engine.execute(order)).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
    let answer = guarded("the last", engine.execute(schedule_order(1_000, "nightly"))).await;
    assert!(answer.is_ok(), "{answer:?}");
    let other = ScheduleKey { tenant: name("lab"), name: name("nightly") };
    until(&engine, "its moment is found", |view| {
        view.schedule(&other).is_some_and(|row| matches!(row.next, NextRun::At(_)))
    })
    .await;
    assert_eq!(engine.local_facts().decision_faults, POISONED as u64, "each is tried once");
    assert!(engine.is_leader() && engine.failed().borrow().is_none());
}

/// Where arrays fill the state, it has far fewer jobs than rows when it begins to forget.
#[test]
fn jobs_that_are_forgotten_early_are_told_of_also_where_arrays_fill_the_state() {
    let parameters = Parameters { jobs_held_max: 1_000, ..Parameters::DEFAULT };
    let founding = BootstrapConfig::new(CLUSTER, parameters);
    let leadership = Leadership { term: 1, replica: REPLICA };
    let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1_000_000), founding);
    let register = Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
    handle(&mut speculation, &register).expect("it is admitted");
    let mut told = Vec::new();
    for request in 1..200 {
        let of_one = |at: usize| muster_types::Submission {
            array: Some(ArraySpec::of_size(1)),
            ..muster_types::Submission::from(job(&format!("a{request}-{at}"), 1))
        };
        let submit = Command::submit(RequestId(request), (0..5).map(of_one).collect());
        handle(&mut speculation, &submit).expect("there is enough space");
        let state = speculation.state();
        let rows = state.rows_held();
        assert_eq!(retention_cut(state).is_some(), rows >= 900, "{rows} rows");
        told.extend(retention_cut(state));
        if rows >= 950 {
            break;
        }
        let _ = speculation.take_round();
    }
    assert!(speculation.state().jobs().len() < 900, "{} jobs", speculation.state().jobs().len());
    assert!(told.first().is_some_and(|text| text.contains("of at most 1000")), "{told:?}");
}

async fn engine_without_cluster() -> Engine {
    let (application, view) = replicated(FORMAT_MAX);
    let consensus = consensus(application).await;
    Engine::start(config(8), ReplicaInfo { replica: REPLICA, region: name("eu") }, view, consensus)
}
