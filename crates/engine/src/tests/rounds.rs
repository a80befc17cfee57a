//! Rounds that are applied, rounds that stop a replica, and what a change of leadership means for nodes.

use muster_consensus::{Application as _, CommittedEntry};
use muster_decider::{Answer, Command};
use muster_journal::{Decision, FORMAT_MAX, FORMAT_MIN, Round, encode_round};
use muster_state::State;
use muster_types::{HolderId, LogIndex, LogTime, Parameters, RefusalCode, ReplicaId};
use std::time::{Duration, Instant};

use crate::sample::{host, name};
use crate::services::watching::follow;
use crate::tests::{CLUSTER, REPLICA, config, consensus, form, guarded, open, opening, parameters, until};
use crate::{Engine, ReplicaInfo, WatchPosition, replicated};

#[test]
fn rounds_of_a_lost_leadership_answer_nobody_and_publish_nothing() {
    use muster_consensus::Application;
    let (mut application, view) = replicated(FORMAT_MAX);
    let entry = |raft_index, round: &Round| CommittedEntry {
        raft_index,
        term: round.term,
        leader: round.replica,
        payload: Some(encode_round(round).into()),
    };
    let round = |term, first_index, decisions| Round {
        format: FORMAT_MIN,
        term,
        replica: REPLICA,
        first_index: LogIndex(first_index),
        basis_index: LogIndex(first_index - 1),
        log_time: LogTime(1),
        decisions,
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    application.apply(&[
        entry(1, &round(2, 1, vec![Decision::LeaderStarted, created])),
        entry(2, &round(3, 3, vec![Decision::LeaderStarted])),
    ]);
    let shared = &view.shared;
    let mut follower = follow(&shared.hub, WatchPosition::after(LogIndex(3))).expect("it is kept");
    let (reply, mut told) = tokio::sync::oneshot::channel();
    let new = muster_types::Leadership { term: 3, replica: REPLICA };
    shared.pending_replies.add(LogIndex(4), new, reply, Ok(Answer::Done { at: LogIndex(4) }));
    // Appended late, of the leadership before: takes no position.
    application.apply(&[entry(3, &round(2, 3, vec![Decision::LeaderStarted]))]);
    assert_eq!(shared.view.load().log_index(), LogIndex(3));
    assert!(told.try_recv().is_err(), "not yet");
    application.apply(&[entry(4, &round(3, 4, vec![Decision::LeaderStarted]))]);
    // A leadership begins once: the guard refused that one, and no position was taken either.
    assert_eq!(shared.view.load().log_index(), LogIndex(3));
    let mark = |raft_index| muster_consensus::StateMark { raft_index, digest: shared.view.load().digest() };
    assert_eq!(view.marks().last(), Some(mark(4)));
    assert_eq!(view.marks().differs(muster_consensus::StateMark { digest: 1, ..mark(4) }), Some(true));
    let digest = shared.view.load().rows_digest();
    application.apply(&[entry(5, &round(3, 4, vec![Decision::DigestRecorded { digest }]))]);
    assert!(told.try_recv().is_ok_and(|answer| answer.is_ok()), "its own record is applied");
    let place = futures::executor::block_on(follower.next()).expect("it is kept").1;
    assert_eq!(place, WatchPosition::after(LogIndex(4)));
}

/// A node that is gone is declared lost though every leader ends before a whole lease has passed under it.
#[test]
fn a_node_that_no_leader_hears_is_over_though_leaders_change_faster_than_a_lease() {
    use muster_consensus::Application;
    use muster_decider::{Speculation, handle};
    use std::cell::Cell;
    thread_local!(static SECONDS: Cell<u64> = const { Cell::new(0) });
    fn clock() -> std::time::Instant {
        static BASE: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        *BASE + Duration::from_secs(SECONDS.get())
    }
    let (application, view) = replicated(FORMAT_MAX);
    let mut application = application.with_clock(clock);
    let mut raft_index = 0;
    let leases = crate::sessions::liveness::Liveness::default();
    let parameters = Parameters { lease_ttl_ms: 10_000, lease_margin_ms: 3_000, ..Parameters::DEFAULT };
    let founding = config(1).founding;
    // One leadership: what it decides is applied, and a leader of its term counts leases from there.
    let mut lead = |term: u64, second: u64, agents: &[&str]| -> Vec<String> {
        SECONDS.set(second);
        let mine = muster_types::Leadership { term, replica: REPLICA };
        let state = State::clone(&view.shared.view.load());
        let mut speculation = Speculation::begin(state, mine, LogTime(second * 1_000), founding);
        let begun = speculation.take_round();
        for agent in agents {
            let command =
                Command::Register { spec: host(agent), holder: HolderId(7), other_session_is_over: false };
            handle(&mut speculation, &command).expect("it is registered");
        }
        let entries: Vec<CommittedEntry> = begun
            .into_iter()
            .chain(speculation.take_round())
            .map(|round| {
                raft_index += 1;
                let payload = Some(encode_round(&round).into());
                CommittedEntry { raft_index, term, leader: REPLICA, payload }
            })
            .collect();
        let (began, opened) = entries.split_at(1);
        application.apply(began);
        let (state, contacts) = (view.shared.view.load(), view.shared.contacts());
        let now = tokio::time::Instant::from_std(clock());
        let heard = |node| contacts.last_before(mine, node).map_or(now, tokio::time::Instant::from_std);
        let up = state.nodes().iter().map(|(id, row)| (*id, row.incarnation, heard(*id)));
        leases.begin(mine, &parameters, up);
        drop(contacts);
        application.apply(opened);
        let over = std::iter::from_fn(|| leases.next_expired(now));
        over.map(|(node, _)| state.node(node).expect("it is known").spec.name.to_string()).collect()
    };
    assert!(lead(2, 0, &[]).is_empty());
    assert!(lead(3, 3, &["dead", "alive"]).is_empty());
    // The dead one was last heard before the fourth term began, at 6 s.
    for (term, second) in (4..).zip([6, 9, 12, 15, 18]) {
        assert!(lead(term, second, &["alive"]).is_empty(), "its lease may stand, at {second} s");
    }
    assert_eq!(lead(9, 19, &["alive"]), ["dead"]);
}

#[test]
fn a_state_that_differs_and_a_record_that_cannot_be_read_stop_the_replica() {
    use muster_consensus::Application;
    let apply = |payload: Vec<u8>| {
        let (mut application, _view) = replicated(FORMAT_MAX);
        let entry = CommittedEntry { raft_index: 1, term: 1, leader: REPLICA, payload: Some(payload.into()) };
        let run = std::panic::AssertUnwindSafe(|| application.apply(&[entry]));
        let panic = std::panic::catch_unwind(run).expect_err("it must not go on");
        muster_consensus::Halt::detail_of(panic.as_ref())
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    let decisions = vec![Decision::LeaderStarted, created, Decision::DigestRecorded { digest: 7 }];
    let round = Round {
        format: FORMAT_MIN,
        term: 1,
        replica: REPLICA,
        first_index: LogIndex(1),
        basis_index: LogIndex(0),
        log_time: LogTime(1),
        decisions,
    };
    let said = apply(encode_round(&round));
    assert!(said.contains("diverged at log index 3") && said.contains("0000000000000007"), "{said}");
    let said = apply(b"not a round".to_vec());
    assert!(said.contains("raft index 1 cannot be applied"), "{said}");
}

/// Formats are raised by a record that older binaries can read; what comes after it they must not touch.
#[test]
fn a_replica_that_is_held_back_stops_before_the_first_round_it_does_not_know() {
    use muster_consensus::Application;
    let (mut application, view) = replicated(1);
    let entry = |raft_index, round: &Round| CommittedEntry {
        raft_index,
        term: 1,
        leader: REPLICA,
        payload: Some(encode_round(round).into()),
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    let first = Round {
        format: FORMAT_MIN,
        term: 1,
        replica: REPLICA,
        first_index: LogIndex(1),
        basis_index: LogIndex(0),
        log_time: LogTime(1),
        decisions: vec![
            Decision::LeaderStarted,
            created,
            Decision::FormatRaised { by: muster_types::Requester::default(), format: 2 },
        ],
    };
    application.apply(&[entry(1, &first)]);
    let digest = view.shared.view.load().rows_digest();
    let decisions = vec![Decision::DigestRecorded { digest }];
    let next = Round { format: 2, first_index: LogIndex(4), basis_index: LogIndex(3), decisions, ..first };
    let run = std::panic::AssertUnwindSafe(|| application.apply(&[entry(2, &next)]));
    let panic = std::panic::catch_unwind(run).expect_err("it must not go on");
    let said = muster_consensus::Halt::detail_of(panic.as_ref());
    assert!(said.contains("format 2 is needed") && said.contains("upgrade this replica"), "{said}");
    assert_eq!(view.shared.view.load().log_index(), LogIndex(3), "everything before it is applied");
}

/// A replica whose directory is of a later generation than its log: nothing is decided before every lease of the
/// earlier one has run out, and then everything of it is over.
#[tokio::test]
async fn a_recovered_cluster_waits_for_old_leases_and_begins_its_generation() {
    use muster_consensus::Application;
    let (mut application, view) = replicated(FORMAT_MAX);
    let created = Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: parameters() };
    let registered = Decision::NodeRegistered { spec: host("n1"), holder: HolderId(1) };
    let backup = Round {
        format: FORMAT_MIN,
        // Of a log that is gone; the first leadership here is newer.
        term: 0,
        replica: REPLICA,
        first_index: LogIndex(1),
        basis_index: LogIndex(0),
        log_time: LogTime(1),
        decisions: vec![Decision::LeaderStarted, created, registered],
    };
    let payload = Some(encode_round(&backup).into());
    application.apply(&[CommittedEntry { raft_index: 0, term: 0, leader: REPLICA, payload }]);
    let began = Instant::now();
    let consensus = consensus(application).await;
    let mut config = config(64);
    config.founding.generation = 2;
    let info = ReplicaInfo { replica: REPLICA, region: name("eu") };
    let engine = Engine::start(config, info, view, consensus.clone());
    assert_eq!(engine.local_facts().recovers_as, Some(2), "nobody leads so far");
    form(&consensus).await;
    until(&engine, "a leadership begins", |view| view.log_index() >= LogIndex(5)).await;
    let refused = guarded("a session", engine.open_session(opening("n1", 1))).await;
    assert_eq!(refused.err().map(|refusal| refusal.code), Some(RefusalCode::ClusterRecovering));
    let view = until(&engine, "the generation begins", |view| view.generation() == 2).await;
    assert!(began.elapsed() >= Duration::from_millis(900), "one lease and its margin");
    assert_eq!((view.nodes_up(), engine.local_facts().recovers_as), (0, None));
    let session = open(&engine, opening("n1", 1)).await;
    assert_eq!(session.incarnation, 2, "registered again");
}

#[test]
fn a_round_of_the_leadership_in_force_that_begins_elsewhere_stops_the_replica() {
    let begin = |term: u64, replica: u64, first: u64, decisions: Vec<Decision>| {
        let (format, log_time) = (FORMAT_MIN, LogTime(1));
        let (first_index, basis_index) = (LogIndex(first), LogIndex(first - 1));
        let replica = ReplicaId(replica);
        let round = Round { format, term, replica, first_index, basis_index, log_time, decisions };
        let payload = Some(encode_round(&round).into());
        CommittedEntry { raft_index: 1, term, leader: replica, payload }
    };
    let created = || Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: parameters() };
    let founding = || begin(1, 1, 1, vec![Decision::LeaderStarted, created()]);
    let applies = |round: CommittedEntry| {
        let (mut replicated, view) = replicated(FORMAT_MAX);
        replicated.apply(&[founding()]);
        let applied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| replicated.apply(&[round])));
        applied
            .map(|()| view.state().log_index().0)
            .map_err(|panic| muster_consensus::Halt::detail_of(panic.as_ref()))
    };
    let refused = |round: CommittedEntry| {
        let why = applies(round).expect_err("the replica has to stop");
        assert!(why.contains("has diverged at log index 2") && why.contains("--rebuild"), "{why}");
    };
    let digest = || vec![Decision::HistoryPruned { requests_before: LogTime(0), jobs_before: LogTime(0) }];
    refused(begin(1, 1, 1, digest()));
    refused(begin(1, 1, 2, digest()));
    refused(begin(2, 2, 2, vec![Decision::LeaderStarted]));
    refused(begin(2, 2, 4, vec![Decision::LeaderStarted]));
    // Of leaderships that have ended, behind a proposal that was left out, and as it should be.
    assert_eq!(applies(begin(1, 0, 1, digest())), Ok(2));
    assert_eq!(applies(begin(1, 1, 4, digest())), Ok(2));
    assert_eq!(applies(begin(2, 2, 3, digest())), Ok(2));
    assert_eq!(applies(begin(1, 1, 3, digest())), Ok(3));
    assert_eq!(applies(begin(2, 2, 3, vec![Decision::LeaderStarted])), Ok(3));
}
