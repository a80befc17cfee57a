//! What users and nodes can make as large as they like must not make a round too large, a pass
//! endless, or the leader stop.

use std::collections::BTreeMap;
use std::time::Instant;

use muster_decider::{
    Answer, Command, Founding, Pass, SUBMISSION_BYTES_MAX, Speculation, handle, schedule, settle_all, tick,
};
use muster_journal::{ROUND_BYTES_MAX, RankUpdate, encode_round};
use muster_planner::Budget;
use muster_state::State;
use muster_types::{ClusterId, ExitStatus, LogTime, NodeId, Parameters, Refusal, RefusalCode, limits};

use crate::support::{
    FOUNDING, accelerators, check, commit, founded, group, holder, job, job_draft, leadership, name,
    node_draft, node_spec, request,
};

fn register(speculation: &mut Speculation, spec: muster_types::NodeSpec) {
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(speculation, &command).unwrap();
}

fn submit(speculation: &mut Speculation, n: u128, specs: Vec<muster_types::JobSpec>) -> Answer {
    handle(
        speculation,
        &Command::Submit { request: request(n), jobs: muster_types::Submission::plain(specs) },
    )
    .unwrap()
}

/// The count of a round's bytes is never below the bytes, whichever field users fill.
#[test]
fn a_round_is_never_larger_than_counted() {
    let (mut speculation, mut state) = founded();
    let long = |n: usize| "x".repeat(n);
    let mut host = node_draft("n0", "eu", "c1", Some(accelerators("h100", 8)));
    host.address = long(253);
    for label in 0..limits::NODE_LABELS_MAX {
        host.labels.insert(name(&format!("{}{label:02}", long(61))), long(256));
    }
    register(&mut speculation, host.check().unwrap());
    let mut draft = job_draft(&long(63), vec![]);
    draft.tenant = name(&long(63));
    for n in 0..limits::TASK_GROUPS_MAX {
        let mut group = group(&format!("{}{n:02}", long(61)), 1, None);
        group.request.accelerators = Some(accelerators("h100", 1).into());
        group.command = vec![long(1); limits::COMMAND_WORDS_MAX];
        group.environment =
            (0..limits::ENVIRONMENT_MAX).map(|n| (format!("K{n}"), long(2))).collect::<BTreeMap<_, _>>();
        draft.groups.push(group);
    }
    draft.groups.truncate(8);
    draft.regions = (0..limits::JOB_REGIONS_MAX - 1).map(|n| name(&format!("{}{n:02}", long(61)))).collect();
    draft.regions.push(name("eu"));
    draft.run_time_limit_ms = Some(limits::RUN_TIME_LIMIT_MS_MAX);
    draft.stop_grace_ms = limits::STOP_GRACE_MS_MAX;
    draft.failure_retries_max = 0;
    draft.checkpoint_directory = Some(format!("/{}", long(4_000)));
    draft.working_directory = Some(format!("/{}", long(4_000)));
    let answer = submit(&mut speculation, 1, vec![draft.check().unwrap()]);
    let Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
    commit(&mut speculation, &mut state);
    schedule(&mut speculation, &mut Budget::new(1_000));
    commit(&mut speculation, &mut state);
    let token = state.job(jobs[0]).unwrap().placement.as_ref().unwrap().token;
    let failed = RankUpdate::Exited(ExitStatus::LaunchFailed(long(10_000)));
    let updates = (0..8).map(|rank| (rank, failed.clone())).collect();
    let report = Command::Report { node: NodeId(0), incarnation: 1, job: jobs[0], token, updates };
    handle(&mut speculation, &report).unwrap();
    // Reported, stopped and failed, each with the text.
    assert_eq!(commit(&mut speculation, &mut state).unwrap().decisions.len(), 3);
}

#[test]
fn a_submission_is_bounded() {
    let (mut speculation, _) = founded();
    register(&mut speculation, node_spec("n0", "eu", "c1", None));
    let mut wordy = job_draft("wordy", vec![group("main", 1, None)]);
    wordy.groups[0].command = vec!["x".repeat(4_000); 8];
    let wordy = wordy.check().unwrap();
    let refused = |speculation: &mut Speculation, specs: Vec<muster_types::JobSpec>| {
        let before = speculation.last_index();
        let refusal = handle(
            speculation,
            &Command::Submit { request: request(1), jobs: muster_types::Submission::plain(specs) },
        )
        .unwrap_err();
        assert_eq!(speculation.last_index(), before);
        refusal
    };
    let many = SUBMISSION_BYTES_MAX / 32_000 + 2;
    let refusal = refused(&mut speculation, vec![wordy.clone(); many]);
    assert_eq!((refusal.code, refusal.violations[0].field.as_str()), (RefusalCode::InvalidField, "specs"));
    let refusal = refused(&mut speculation, vec![]);
    assert_eq!(refusal.violations[0].field, "specs");
    let refusal = refused(&mut speculation, vec![job("j", 1, None); limits::BATCH_JOBS_MAX + 1]);
    assert_eq!(refusal.violations[0].field, "specs");
    submit(&mut speculation, 2, vec![wordy; many - 3]);
    submit(&mut speculation, 3, vec![job("j", 1, None); limits::BATCH_JOBS_MAX]);
    let bytes = encode_round(&speculation.take_round().unwrap()).len();
    assert!(bytes < ROUND_BYTES_MAX / 4 * 3, "{bytes} bytes");
}

#[test]
fn a_report_is_bounded() {
    let (mut speculation, _) = founded();
    register(&mut speculation, node_spec("n0", "eu", "c1", None));
    let answer = submit(&mut speculation, 1, vec![job("j", 1, None)]);
    let Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
    schedule(&mut speculation, &mut Budget::new(1_000));
    let token = speculation.state().job(jobs[0]).unwrap().placement.as_ref().unwrap().token;
    let updates = vec![(0, RankUpdate::Running); limits::REPORT_RANKS_MAX + 1];
    let report = Command::Report { node: NodeId(0), incarnation: 1, job: jobs[0], token, updates };
    assert_eq!(handle(&mut speculation, &report).unwrap_err().code, RefusalCode::InvalidField);
}

/// In one report the end of a rank is not undone by a word about its start, in whatever order.
#[test]
fn an_end_in_a_report_is_final() {
    for updates in [
        vec![(0, RankUpdate::Exited(ExitStatus::Code(0))), (0, RankUpdate::Running)],
        vec![(0, RankUpdate::Running), (0, RankUpdate::Exited(ExitStatus::Code(0)))],
    ] {
        let (mut speculation, mut state) = founded();
        register(&mut speculation, node_spec("n0", "eu", "c1", None));
        let answer = submit(&mut speculation, 1, vec![job("j", 1, None)]);
        let Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
        schedule(&mut speculation, &mut Budget::new(1_000));
        let token = speculation.state().job(jobs[0]).unwrap().placement.as_ref().unwrap().token;
        let report = Command::Report { node: NodeId(0), incarnation: 1, job: jobs[0], token, updates };
        handle(&mut speculation, &report).unwrap();
        commit(&mut speculation, &mut state);
        assert_eq!(state.active_count(), 0);
    }
}

/// One lost node can end more gangs than one round has room for: the rest is settled in the rounds
/// after it, and by a new leader when there is one in between.
#[test]
fn the_loss_of_a_crowded_node_is_spread_over_rounds() {
    let (mut speculation, mut state) = founded();
    let mut host = node_draft("n0", "eu", "c1", None);
    host.cpu_milli = limits::CPU_MILLI_MAX;
    register(&mut speculation, host.check().unwrap());
    let mut draft = job_draft("tiny", vec![group("main", 1, None)]);
    draft.groups[0].request.cpu_milli = 1;
    draft.groups[0].request.memory_bytes = 1;
    let tiny = draft.check().unwrap();
    for n in 0..4 {
        submit(&mut speculation, n, vec![tiny.clone(); limits::BATCH_JOBS_MAX]);
    }
    while speculation.wants_schedule() {
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        state.apply_round(&speculation.take_round().unwrap());
    }
    assert_eq!(state.active_count(), 4_000);
    handle(&mut speculation, &Command::SessionOver { node: NodeId(0), incarnation: 1 }).unwrap();
    state.apply_round(&speculation.take_round().unwrap());
    check(&state);
    assert!(state.active_count() > 0, "one round is not enough for this test");

    let mut successor = Speculation::begin(state.clone(), leadership(2, 2), LogTime(2_000_000), FOUNDING);
    settle_all(&mut successor);
    for speculation in [&mut speculation, &mut successor] {
        let mut state = state.clone();
        while speculation.wants_schedule() {
            schedule(speculation, &mut Budget::new(1_000_000));
            let Some(round) = speculation.take_round() else { continue };
            assert!(encode_round(&round).len() < ROUND_BYTES_MAX / 4);
            state.apply_round(&round);
        }
        check(&state);
        assert_eq!((state.active_count(), state.pending_count()), (0, 4_000));
    }
}

/// Gangs that cannot be placed use up the budget of a pass; the next goes on behind them.
#[test]
fn the_tail_of_a_long_queue_has_its_turn() {
    let (mut speculation, mut state) = founded();
    for n in 0..20 {
        register(&mut speculation, node_spec(&format!("n{n:02}"), "eu", "c1", Some(accelerators("h100", 8))));
        // Plain hosts for the one at the end.
    }
    register(&mut speculation, node_spec("plain", "us", "c9", None));
    for n in 0..30u16 {
        // All of another class, all in need of a node that is no more.
        let mut draft = job_draft("waits", vec![group("main", 20, Some(accelerators("h100", 8)))]);
        draft.groups[0].request.cpu_milli = 1_000 + u64::from(n);
        submit(&mut speculation, u128::from(n), vec![draft.check().unwrap()]);
    }
    handle(&mut speculation, &Command::SessionOver { node: NodeId(3), incarnation: 1 }).unwrap();
    let mut last = job_draft("last", vec![group("main", 1, None)]);
    last.tier = muster_types::PriorityTier::Free;
    submit(&mut speculation, 100, vec![last.check().unwrap()]);
    // Enough for two of the waiting at a time.
    let mut passes = 0;
    while let Pass::Interrupted { .. } = schedule(&mut speculation, &mut Budget::new(60)) {
        passes += 1;
        assert!(passes < 100, "passes begin from the top again and again");
        assert!(speculation.wants_schedule());
    }
    assert!(!speculation.wants_schedule());
    commit(&mut speculation, &mut state);
    assert_eq!((state.active_count(), state.pending_count()), (1, 30));
}

/// A gang that even a whole budget is too small for does not stop the queue at itself.
#[test]
fn a_gang_beyond_the_budget_is_passed_over() {
    let (mut speculation, _) = founded();
    for n in 0..50 {
        register(&mut speculation, node_spec(&format!("n{n:02}"), "eu", "c1", Some(accelerators("h100", 1))));
    }
    submit(&mut speculation, 1, vec![job("wide", 50, Some(accelerators("h100", 1)))]);
    submit(&mut speculation, 2, vec![job("small", 1, Some(accelerators("h100", 1)))]);
    let mut passes = 0;
    while let Pass::Interrupted { .. } = schedule(&mut speculation, &mut Budget::new(20)) {
        passes += 1;
        assert!(passes < 10);
    }
    assert_eq!(speculation.state().active_count(), 1);
}

/// Rough times, printed and not asserted: `cargo test -p muster-decider timing -- --nocapture`.
#[test]
fn timing() {
    for (nodes, jobs) in [(250, 250), (1_000, 1_000)] {
        let (mut speculation, mut state) = founded();
        for n in 0..nodes {
            register(
                &mut speculation,
                node_spec(&format!("n{n:04}"), "eu", "c1", Some(accelerators("h100", 8))),
            );
        }
        for n in 0..jobs / 250 {
            submit(&mut speculation, n, vec![job("one", 1, Some(accelerators("h100", 1))); 250]);
        }
        state.apply_round(&speculation.take_round().unwrap());
        let start = Instant::now();
        let mut visits = Budget::new(u64::MAX);
        let pass = schedule(&mut speculation, &mut visits);
        let spent = start.elapsed();
        let round = speculation.take_round().unwrap();
        let start = Instant::now();
        state.apply_round(&round);
        println!("{jobs} jobs on {nodes} nodes: {pass:?} in {spent:?}, applied in {:?}", start.elapsed());
        assert_eq!(state.active_count(), jobs as usize);
    }
    let (mut speculation, mut state) = founded();
    for n in 0..512 {
        register(&mut speculation, node_spec(&format!("n{n:04}"), "eu", "c1", Some(accelerators("h100", 8))));
    }
    submit(&mut speculation, 1, vec![job("wide", 4_096, Some(accelerators("h100", 1)))]);
    state.apply_round(&speculation.take_round().unwrap());
    let start = Instant::now();
    let pass = schedule(&mut speculation, &mut Budget::new(u64::MAX));
    println!("one gang of 4096 on 512 nodes: {pass:?} in {:?}", start.elapsed());
    assert_eq!(State::active_count(speculation.state()), 1);
}

/// Memory is bounded whatever comes in: what is over or old goes before its time, then new work is refused, and
/// nothing that was accepted is lost by it.
#[test]
fn a_full_state_forgets_what_is_over_and_then_takes_nothing_new() {
    let parameters = Parameters { jobs_held_max: 1_000, requests_held_max: 1_500, ..Parameters::DEFAULT };
    let founding = Founding::new(ClusterId(0xc1), parameters);
    let start = LogTime(1_000_000);
    let mut speculation = Speculation::begin(State::default(), leadership(1, 1), start, founding);
    let mut state = State::default();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let mut next = 0..;
    let mut submit_one = |speculation: &mut Speculation| {
        let n: u128 = next.next().unwrap();
        let specs = vec![job(&format!("j{n}"), 1, Some(accelerators("h100", 8)))];
        handle(
            speculation,
            &Command::Submit { request: request(n), jobs: muster_types::Submission::plain(specs) },
        )
    };
    // Cancelled at once: half of them are over.
    for n in 0..1_000u128 {
        if n.is_multiple_of(100) {
            commit(&mut speculation, &mut state);
        }
        let Ok(Answer::Submitted { jobs, .. }) = submit_one(&mut speculation) else {
            panic!("there is room")
        };
        if n.is_multiple_of(2) {
            handle(&mut speculation, &Command::Cancel { request: request(10_000 + n), job: jobs[0] })
                .unwrap();
        }
    }
    let code = |result: Result<Answer, Refusal>| result.err().map(|refusal| refusal.code);
    assert_eq!(code(submit_one(&mut speculation)), Some(RefusalCode::StateFull));
    // A repeated request is answered all the same.
    let again = Command::Submit {
        request: request(7),
        jobs: muster_types::Submission::plain([job("j7", 1, Some(accelerators("h100", 8)))]),
    };
    assert!(matches!(handle(&mut speculation, &again), Ok(Answer::Submitted { .. })));
    commit(&mut speculation, &mut state);
    speculation.set_now(start.plus_ms(1_000));
    tick(&mut speculation);
    assert!(speculation.state().jobs().len() <= 900, "a tenth is free again");
    assert_eq!(
        speculation.state().jobs().len() - speculation.state().finished_count(),
        500,
        "nobody's work is lost"
    );
    // Requests are 1,500 by now, all of them young: none is forgotten, so none may come in.
    assert_eq!(speculation.state().requests_count(), 1_500);
    let refused = submit_one(&mut speculation).unwrap_err();
    assert_eq!(refused.code, RefusalCode::StateFull);
    assert!(refused.metadata.contains(&("limit", "requests_held_max".to_owned())), "{refused:?}");
    commit(&mut speculation, &mut state);
    speculation.set_now(start.plus_ms(Parameters::REQUEST_RETENTION_MIN_MS + 2_000));
    tick(&mut speculation);
    assert!(speculation.state().requests_count() <= 1_350, "old enough to go, a day before their time");
    assert_eq!(code(submit_one(&mut speculation)), None);
    commit(&mut speculation, &mut state);
    check(&state);
}
