//! What users and nodes can make as large as they like must not make a round too large, a pass
//! endless, or the leader stop.

use std::collections::BTreeMap;
use std::time::Instant;

use muster_decider::{
    Answer, BootstrapConfig, Command, EncodedRound, Pass, SUBMISSION_BYTES_MAX, Speculation, Steady, handle,
    schedule, settle_all, tick,
};
use muster_journal::{Decision, ROUND_BYTES_MAX, RankUpdate, encode_round};
use muster_planner::Budget;
use muster_state::{Phase, State};
use muster_types::health::HealthReport;
use muster_types::policy::{TenantLimits, TenantPolicy};
use muster_types::{
    AgentStart, ClusterId, Dependency, DependencyRule, ExitStatus, JobId, LogTime, NodeId, Parameters,
    Refusal, RefusalCode, Requester, StartId, limits,
};

use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded, founded_as, group, holder, job, job_draft, leadership,
    name, node_draft, node_spec, request,
};

fn register(speculation: &mut Speculation, spec: muster_types::NodeSpec) {
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(speculation, &command).unwrap();
}

fn submit(speculation: &mut Speculation, n: u128, specs: Vec<muster_types::JobSpec>) -> Answer {
    handle(speculation, &Command::submit(request(n), muster_types::Submission::plain(specs))).unwrap()
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
    // Reported, stopped, the attempt failed and so did the job, each with the text.
    assert_eq!(commit(&mut speculation, &mut state).unwrap().decisions.len(), 4);
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
        let refusal =
            handle(speculation, &Command::submit(request(1), muster_types::Submission::plain(specs)))
                .unwrap_err();
        assert_eq!(speculation.last_index(), before);
        refusal
    };
    let many = SUBMISSION_BYTES_MAX / 32_000 + 2;
    let refusal = refused(&mut speculation, vec![wordy.clone(); many]);
    assert_eq!((refusal.code, refusal.violations[0].field.as_str()), (RefusalCode::InvalidField, "jobs"));
    let refusal = refused(&mut speculation, vec![]);
    assert_eq!(refusal.violations[0].field, "jobs");
    let refusal = refused(&mut speculation, vec![job("j", 1, None); limits::BATCH_JOBS_MAX + 1]);
    assert_eq!(refusal.violations[0].field, "jobs");
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

/// One lost node can end more gangs than fit in one round: the rest is settled in the rounds
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

    let mut successor = Speculation::begin(state.clone(), leadership(2, 2), LogTime(2_000_000), BOOTSTRAP);
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
    let bootstrap = BootstrapConfig::new(ClusterId(0xc1), parameters);
    let start = LogTime(1_000_000);
    let mut speculation = Speculation::begin(State::default(), leadership(1, 1), start, bootstrap);
    let mut state = State::default();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let mut next = 0..;
    let mut submit_one = |speculation: &mut Speculation| {
        let n: u128 = next.next().unwrap();
        let specs = vec![job(&format!("j{n}"), 1, Some(accelerators("h100", 8)))];
        handle(speculation, &Command::submit(request(n), muster_types::Submission::plain(specs)))
    };
    // Cancelled at once: half of them are over.
    for n in 0..1_000u128 {
        if n.is_multiple_of(100) {
            commit(&mut speculation, &mut state);
        }
        let Ok(Answer::Submitted { jobs, .. }) = submit_one(&mut speculation) else {
            panic!("there is enough space")
        };
        if n.is_multiple_of(2) {
            handle(&mut speculation, &Command::cancel(request(10_000 + n), jobs[0])).unwrap();
        }
    }
    let code = |result: Result<Answer, Refusal>| result.err().map(|refusal| refusal.code);
    assert_eq!(code(submit_one(&mut speculation)), Some(RefusalCode::StateFull));
    // A repeated request is answered all the same.
    let again = Command::submit(
        request(7),
        muster_types::Submission::plain([job("j7", 1, Some(accelerators("h100", 8)))]),
    );
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

/// A wall clock that is days ahead must not make a leader forget what it was told to remember.
#[test]
fn nothing_is_forgotten_by_age_before_a_monotonic_clock_bears_the_age_out() {
    let (first, day) = (LogTime(1_000_000), 24 * 3_600_000);
    let bootstrap = BOOTSTRAP;
    let mut speculation = Speculation::begin(State::default(), leadership(1, 1), first, bootstrap);
    let mut state = State::default();
    let spec = node_spec("n0", "eu", "c1", Some(accelerators("h100", 8)));
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    let answer = handle(&mut speculation, &register).unwrap();
    let Answer::Registered { node, incarnation, .. } = answer else { panic!("{answer:?}") };
    let specs = vec![job("j", 1, Some(accelerators("h100", 8)))];
    let submit = Command::submit(request(42), muster_types::Submission::plain(specs));
    let answer = handle(&mut speculation, &submit).unwrap();
    let Answer::Submitted { jobs, .. } = &answer else { panic!("{answer:?}") };
    handle(&mut speculation, &Command::cancel(request(43), jobs[0])).unwrap();
    handle(&mut speculation, &Command::SessionOver { node, incarnation }).unwrap();
    commit(&mut speculation, &mut state);

    let wrong = first.plus_ms(30 * day);
    let mut next = Speculation::begin(state.clone(), leadership(2, 2), wrong, bootstrap);
    let mut lead = |for_ms: u64| {
        next.set_now(wrong.plus_ms(for_ms));
        next.set_steady(Steady { since: first, for_ms });
        tick(&mut next);
        let held = next.state();
        let held = (held.request(request(42)).is_some(), held.job(jobs[0]).is_some(), held.nodes().len());
        commit(&mut next, &mut state);
        held
    };
    assert_eq!(lead(0), (true, true, 1));
    assert_eq!(lead(Steady::LEAST_MS - 1), (true, true, 1));
    assert_eq!(lead(Steady::LEAST_MS), (false, false, 0), "the clock stayed what it was for long enough");
}

/// Where there are tenants, a tenant that submits without end leaves capacity for the others.
#[test]
fn one_tenants_jobs_never_take_the_room_of_all_others() {
    let parameters = Parameters { jobs_held_max: 1_200, ..Parameters::DEFAULT };
    let bootstrap = BootstrapConfig::new(ClusterId(0xc1), parameters);
    let mut speculation =
        Speculation::begin(State::default(), leadership(1, 1), LogTime(1_000_000), bootstrap);
    let mut state = State::default();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let mut draft = muster_types::policy::PolicyDraft::default();
    for tenant in ["greedy", "modest", "late"] {
        draft.tenants.insert(name(tenant), Default::default());
    }
    let policy = Box::new(draft.check().unwrap());
    let command = Command::SetPolicy {
        request: request(1),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    let mut next = 10..;
    let mut submit = |speculation: &mut Speculation, state: &mut State, tenant: &str, count: usize| {
        let n: u128 = next.next().unwrap();
        let one = |at: usize| {
            let mut draft = muster_types::JobDraft::clone(&job(&format!("j{n}-{at}"), 1, None));
            draft.tenant = name(tenant);
            draft.check().unwrap()
        };
        let jobs = muster_types::Submission::plain((0..count).map(one).collect::<Vec<_>>());
        let answer = handle(speculation, &Command::submit(request(n), jobs));
        commit(speculation, state);
        answer
    };
    let mut taken = 0;
    let refused = loop {
        match submit(&mut speculation, &mut state, "greedy", 50) {
            Ok(_) => taken += 50,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((refused.code, taken), (RefusalCode::StateFull, 600), "{refused:?}");
    assert!(refused.metadata.contains(&("limit", "jobs_held_share".to_owned())), "{refused:?}");
    assert!(refused.message.contains("tenant greedy has 600 jobs"), "{refused:?}");
    for tenant in ["modest", "late"] {
        submit(&mut speculation, &mut state, tenant, 100)
            .unwrap_or_else(|refusal| panic!("{tenant}: {refusal}"));
    }
    check(&state);
}

/// Nodes of the fleet below; `MUSTER_MAINTENANCE_NODES` asks for another number.
const MAINTENANCE_NODES: usize = 12_000;

/// A provider may take its whole fleet away at one time.
#[test]
fn maintenance_of_a_whole_fleet_is_announced_over_several_rounds() {
    let asked = std::env::var("MUSTER_MAINTENANCE_NODES").ok().and_then(|text| text.parse().ok());
    let nodes: usize = asked.unwrap_or(MAINTENANCE_NODES);
    let (mut speculation, mut state) = founded();
    let begins = LogTime(1_000_000).plus_ms(30 * 24 * 3_600_000);
    for n in 0..nodes {
        let spec = node_spec(&format!("n{n}"), "eu", "c1", Some(accelerators("h100", 8)));
        let register =
            Command::Register { spec, holder: holder(1 + n as u128), other_session_is_over: false };
        let answer = handle(&mut speculation, &register).unwrap();
        let Answer::Registered { node, incarnation, .. } = answer else { panic!("{answer:?}") };
        let report = HealthReport { boot: 1, maintenance_at: Some(begins), ..HealthReport::default() };
        let report = Command::ReportHealth { node, incarnation, report: Box::new(report) };
        handle(&mut speculation, &report).unwrap();
        if speculation.round_bytes() > 60_000 {
            apply(&mut speculation, &mut state);
        }
    }
    apply(&mut speculation, &mut state);
    speculation.set_now(begins);
    let mut rounds = 0;
    while speculation.state().draining().count() < nodes {
        tick(&mut speculation);
        let round = speculation.take_round().expect("there is more to say");
        let bytes = encode_round(&round).len();
        assert!(bytes < ROUND_BYTES_MAX / 4, "{bytes} bytes in one round");
        state.apply_round(&round);
        rounds += 1;
    }
    assert!(rounds > 1 && rounds < nodes / 100, "{rounds} rounds");
    assert_eq!(state.rows_digest(), speculation.state().rows_digest());
}

/// The same as `commit`, without the checks that take long on a large fleet.
fn apply(speculation: &mut Speculation, state: &mut State) {
    if let Some(round) = speculation.take_round() {
        state.apply_round(&round);
    }
}

#[test]
fn a_round_that_is_too_large_is_cut_into_several_that_say_the_same() {
    let (mut speculation, mut state) = founded();
    let mut whole = state.clone();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let long = "x".repeat(4_000);
    for n in 0..600u128 {
        let mut draft = job_draft(&format!("j{n}"), vec![group("main", 1, Some(accelerators("h100", 8)))]);
        draft.groups[0].command = vec![long.as_str().into()];
        submit(&mut speculation, n, vec![draft.check().unwrap()]);
    }
    let parts = speculation.clone().take_encoded();
    let round = speculation.take_round().unwrap();
    whole.apply_round(&round);
    assert!(parts.len() > 2, "{} parts", parts.len());
    for EncodedRound { round: part, bytes } in &parts {
        assert!(bytes.len() <= ROUND_BYTES_MAX);
        assert_eq!(*bytes, encode_round(part));
        assert_eq!(part.basis_index.next(), part.first_index);
        for applied in state.apply_round(part) {
            assert_eq!(applied.rejection, None);
        }
    }
    assert_eq!((state.log_index(), state.digest()), (whole.log_index(), whole.digest()));
    let decisions = parts.into_iter().flat_map(|part| part.round.decisions);
    assert!(decisions.eq(round.decisions), "all of it, in order");
    assert!(speculation.take_encoded().is_empty());
}

/// A leader goes on from the applied state, so that rows are in memory once, only while nothing is between the two.
#[test]
fn a_leader_goes_on_from_the_applied_state_while_nothing_is_between_them() {
    let (mut speculation, mut state) = founded();
    assert!(speculation.adopt(&state), "nothing is between them");
    let before = state.clone();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    assert!(!speculation.adopt(&state), "a round is being made");
    let round = speculation.take_round().expect("a node came");
    assert!(!speculation.adopt(&state), "a round is on its way");
    state.apply_round(&round);
    assert!(!speculation.adopt(&before), "it lacks that round");
    assert!(speculation.adopt(&state), "it was applied");
    assert_eq!(speculation.state().digest(), state.digest());
    submit(&mut speculation, 1, vec![job("j", 1, Some(accelerators("h100", 8)))]);
    apply(&mut speculation, &mut state);
    assert_eq!(speculation.state().rows_digest(), state.rows_digest());
}

/// A submission for which there is no space is not refused while finished jobs could be dropped.
#[test]
fn what_is_over_goes_before_anything_new_is_refused() {
    let parameters = Parameters { jobs_held_max: 1_000, ..Parameters::DEFAULT };
    let bootstrap = BootstrapConfig { parameters, ..BOOTSTRAP };
    let mut speculation =
        Speculation::begin(State::default(), leadership(1, 1), LogTime(1_000_000), bootstrap);
    let mut state = State::default();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let batch = |n: u128, count: usize| {
        let specs = (0..count).map(|k| job(&format!("j{n}-{k}"), 1, Some(accelerators("h100", 8))));
        Command::submit(request(n), muster_types::Submission::plain(specs))
    };
    for n in 0..10 {
        let Ok(Answer::Submitted { jobs, .. }) = handle(&mut speculation, &batch(n, 100)) else {
            panic!("there is enough space")
        };
        for job in jobs.iter().take(30) {
            let cancel = Command::cancel(request(1_000_000 + u128::from(job.0)), *job);
            handle(&mut speculation, &cancel).unwrap();
        }
        commit(&mut speculation, &mut state);
        speculation.set_now(LogTime(1_000_000 + 1_000 * n as u64));
    }
    assert_eq!((state.jobs().len(), state.finished_count()), (1_000, 300));
    for n in 10..13 {
        assert!(handle(&mut speculation, &batch(n, 100)).is_ok(), "batch {n}");
        commit(&mut speculation, &mut state);
    }
    assert_eq!((state.jobs().len(), state.finished_count()), (1_000, 0));
    let before = speculation.last_index();
    let refused = handle(&mut speculation, &batch(14, 100)).unwrap_err();
    assert_eq!((refused.code, speculation.last_index()), (RefusalCode::StateFull, before));
}

/// A job that waits for one that is over keeps that one, and those that finished later; the older ones go for it.
#[test]
fn what_is_over_goes_before_a_job_that_waits_for_another_is_refused() {
    let parameters = Parameters { jobs_held_max: 1_000, ..Parameters::DEFAULT };
    let bootstrap = BootstrapConfig { parameters, ..BOOTSTRAP };
    let start = LogTime(1_000_000);
    let mut speculation = Speculation::begin(State::default(), leadership(1, 1), start, bootstrap);
    let mut state = State::default();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let mut finished = Vec::new();
    for n in 0..10 {
        let specs = (0..100).map(|k| job(&format!("j{n}-{k}"), 1, Some(accelerators("h100", 8)))).collect();
        let Answer::Submitted { jobs, .. } = submit(&mut speculation, n, specs) else {
            panic!("there is enough space")
        };
        for job in jobs.into_iter().take(2) {
            let cancel = Command::cancel(request(1_000_000 + u128::from(job.0)), job);
            handle(&mut speculation, &cancel).unwrap();
            finished.push(job);
        }
        commit(&mut speculation, &mut state);
        speculation.set_now(start.plus_ms(1_000 * (1 + n as u64)));
    }
    assert_eq!((state.jobs().len(), state.finished_count()), (1_000, 20));
    let waiting = |n: u128, count: usize, waited_for: &[JobId]| {
        let one = |k: usize| {
            let mut draft = job_draft(&format!("w{n}-{k}"), vec![group("main", 1, None)]);
            let rule = DependencyRule::Finished;
            draft.dependencies = waited_for.iter().map(|job| Dependency::new(*job, rule)).collect();
            draft.check().unwrap()
        };
        let jobs = muster_types::Submission::plain((0..count).map(one));
        Command::submit(request(n), jobs)
    };
    // The tenth and the last that finished: eight finished before both.
    let waited_for = [finished[9], finished[19]];
    let answer = handle(&mut speculation, &waiting(20, 8, &waited_for));
    assert!(matches!(answer, Ok(Answer::Submitted { .. })), "{answer:?}");
    commit(&mut speculation, &mut state);
    assert!(waited_for.iter().all(|job| state.job(*job).is_some()), "what is waited for is kept");
    assert_eq!((state.jobs().len(), state.finished_count()), (1_000, 12));
    // What could go now is waited for.
    let before = speculation.last_index();
    let refused = handle(&mut speculation, &waiting(21, 1, &waited_for)).unwrap_err();
    assert_eq!((refused.code, speculation.last_index()), (RefusalCode::StateFull, before));
    check(&state);
}

/// A submission is not refused for the requests that are remembered while some are older than their callers repeat them.
#[test]
fn old_requests_go_before_anything_new_is_refused() {
    let parameters = Parameters { requests_held_max: 1_000, ..Parameters::DEFAULT };
    let bootstrap = BootstrapConfig { parameters, ..BOOTSTRAP };
    let start = LogTime(1_000_000);
    let mut speculation = Speculation::begin(State::default(), leadership(1, 1), start, bootstrap);
    let mut state = State::default();
    register(&mut speculation, node_spec("n0", "eu", "c1", None));
    let one = |n: u128| {
        Command::submit(request(n), muster_types::Submission::plain([job(&format!("j{n}"), 1, None)]))
    };
    for n in 0..1_000 {
        if n == 500 {
            commit(&mut speculation, &mut state);
            speculation.set_now(start.plus_ms(30_000));
        }
        handle(&mut speculation, &one(n)).unwrap();
    }
    commit(&mut speculation, &mut state);
    let youngest = Parameters::REQUEST_RETENTION_MIN_MS;
    speculation.set_now(start.plus_ms(youngest));
    let refused = handle(&mut speculation, &one(1_000)).unwrap_err();
    assert!(refused.metadata.contains(&("limit", "requests_held_max".to_owned())), "{refused:?}");
    assert!(speculation.take_round().is_none(), "a refusal leaves no record");
    // A millisecond later half of them are old enough.
    speculation.set_now(start.plus_ms(youngest + 1));
    for n in 1_000..1_500 {
        handle(&mut speculation, &one(n)).unwrap_or_else(|refusal| panic!("{n}: {refusal:?}"));
    }
    assert_eq!(handle(&mut speculation, &one(1_500)).unwrap_err().code, RefusalCode::StateFull);
    commit(&mut speculation, &mut state);
    assert!(
        state.request(request(499)).is_none() && state.request(request(500)).is_some(),
        "the oldest went"
    );
    check(&state);
}

/// How many jobs a tenant may have is what the policy says of it, or of the nearest tenant above.
#[test]
fn a_tenant_has_no_more_jobs_than_its_policy_lets_it_have() {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    register(&mut speculation, node_spec("n0", "eu", "c1", None));
    let mut draft = muster_types::policy::PolicyDraft::default();
    let limits = TenantLimits { pending_jobs: Some(3), unfinished_jobs: Some(4), ..TenantLimits::default() };
    let parent = Some(name("team"));
    draft.tenants.insert(name("team"), TenantPolicy { limits, ..TenantPolicy::default() });
    draft.tenants.insert(name("below"), TenantPolicy { parent, ..TenantPolicy::default() });
    let policy = Box::new(draft.check().unwrap());
    let command = Command::SetPolicy {
        request: request(1),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    commit(&mut speculation, &mut state);
    let mut next = 10..;
    let mut submit = |speculation: &mut Speculation, tenant: &str, count: usize| {
        let n: u128 = next.next().unwrap();
        let one = |at: usize| {
            let mut draft = muster_types::JobDraft::clone(&job(&format!("j{n}-{at}"), 1, None));
            draft.tenant = name(tenant);
            draft.check().unwrap()
        };
        let jobs = muster_types::Submission::plain((0..count).map(one).collect::<Vec<_>>());
        handle(speculation, &Command::submit(request(n), jobs))
    };
    let exceeded = |refused: Result<Answer, Refusal>| {
        let refused = refused.expect_err("it is more than the tenant may have");
        assert_eq!(refused.code, RefusalCode::TenantLimit, "{refused:?}");
        refused.metadata.iter().find(|(key, _)| *key == "limit").map(|(_, limit)| limit.clone()).unwrap()
    };
    let before = speculation.last_index();
    assert_eq!(exceeded(submit(&mut speculation, "team", 4)), "pendingJobs", "all or none");
    assert_eq!(speculation.last_index(), before, "a refusal pushes nothing");
    let Ok(Answer::Submitted { jobs, .. }) = submit(&mut speculation, "team", 3) else { panic!("it may") };
    assert_eq!(exceeded(submit(&mut speculation, "team", 1)), "pendingJobs");
    // What runs does not wait any more, and counts for the other limit.
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    assert!(
        jobs.iter().all(|job| speculation.state().job(*job).is_some_and(|row| row.phase != Phase::Pending))
    );
    submit(&mut speculation, "team", 1).unwrap();
    assert_eq!(exceeded(submit(&mut speculation, "team", 1)), "unfinishedJobs");
    // A tenant below has the same limits for itself, and one that nobody limits has none.
    submit(&mut speculation, "below", 3).unwrap();
    assert_eq!(exceeded(submit(&mut speculation, "below", 1)), "pendingJobs");
    submit(&mut speculation, "other", 100).unwrap();
    // A job that is over frees space for the next.
    handle(&mut speculation, &Command::cancel(request(2), jobs[0])).unwrap();
    commit(&mut speculation, &mut state);
    check(&state);
    // A record that says more is refused by every replica.
    let specs = muster_types::Submission::plain([{
        let mut draft = muster_types::JobDraft::clone(&job("more", 1, None));
        draft.tenant = name("below");
        draft.check().unwrap()
    }]);
    let decision = Decision::JobsSubmitted {
        request: muster_journal::RequestKey { id: request(900), fingerprint: 0 },
        by: muster_types::Requester::default(),
        specs: specs.iter().map(|job| std::sync::Arc::new(job.spec.clone())).collect(),
        estimates: vec![muster_journal::Estimate::default()],
    };
    assert_eq!(state.check(&decision), Err(muster_state::GuardError::TenantLimit));
}

/// Two agents on copies of one state directory do not both hold the node.
#[test]
fn an_agent_of_an_older_copy_is_another_holder() {
    let mut state = State::default();
    let mut speculation = Speculation::begin(state.clone(), leadership(1, 1), LogTime(1_000_000), BOOTSTRAP);
    commit(&mut speculation, &mut state);
    let register = |speculation: &mut Speculation, id: u64, before: u64| {
        let spec = node_spec("n0", "eu", "c1", None);
        let start = AgentStart { id: StartId(id), before: (before > 0).then_some(StartId(before)) };
        handle(speculation, &Command::RegisterStart { spec, holder: holder(1), start })
    };
    let incarnation = |answer: Result<Answer, Refusal>| match answer {
        Ok(Answer::Registered { incarnation, .. }) => incarnation,
        other => panic!("it may register: {other:?}"),
    };
    let known = |speculation: &Speculation| speculation.state().node(NodeId(0)).and_then(|row| row.start);
    assert_eq!(incarnation(register(&mut speculation, 7, 0)), 1);
    assert_eq!(known(&speculation), Some(StartId(7)));
    // The same start again, and the next one, go on.
    assert_eq!(incarnation(register(&mut speculation, 7, 0)), 1);
    assert_eq!(incarnation(register(&mut speculation, 8, 7)), 1);
    assert_eq!(known(&speculation), Some(StartId(8)));
    // The first one again, or another one behind it, is of an older copy, as long as the lease stands.
    for id in [7, 9] {
        let before = if id == 7 { 0 } else { 7 };
        let refusal = register(&mut speculation, id, before).expect_err("another one holds it");
        assert_eq!(refusal.code, RefusalCode::NodeHeldByAnother);
        assert!(refusal.to_string().contains("on a copy of this state directory"), "{refusal}");
    }
    assert_eq!(known(&speculation), Some(StartId(8)));
    // After that it is a new session, and the copy that was the newer one is the older one.
    let over = Command::SessionOver { node: NodeId(0), incarnation: 1 };
    handle(&mut speculation, &over).expect("it is over");
    assert_eq!(incarnation(register(&mut speculation, 9, 7)), 2);
    let refusal = register(&mut speculation, 8, 7).expect_err("another one holds it");
    assert_eq!(refusal.code, RefusalCode::NodeHeldByAnother);
    // Who does not say which start it is is believed, as before.
    let plain = Command::Register {
        spec: node_spec("n0", "eu", "c1", None),
        holder: holder(1),
        other_session_is_over: false,
    };
    assert_eq!(incarnation(handle(&mut speculation, &plain)), 2);
    let round = speculation.take_round().expect("a round");
    state.apply_round(&round);
    check(&state);
}

/// Who leads next knows from the log which leaders have heard a node.
#[test]
fn a_session_that_goes_on_is_recorded_once_under_each_leadership() {
    let mut state = State::default();
    let spec = node_spec("n0", "eu", "c1", None);
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    let mut records = Vec::new();
    for term in 1..=3 {
        let now = LogTime(1_000_000 + term * 1_000);
        let mut speculation = Speculation::begin(state.clone(), leadership(term, 1), now, BOOTSTRAP);
        commit(&mut speculation, &mut state);
        for _ in 0..2 {
            let before = speculation.last_index();
            let Ok(Answer::Registered { incarnation, at, .. }) = handle(&mut speculation, &command) else {
                panic!("it may register")
            };
            assert_eq!(incarnation, 1);
            records.push(at > before);
            let round = speculation.take_round();
            let names: Vec<_> = round.iter().flat_map(|round| &round.decisions).map(Decision::name).collect();
            let expected = match (records.len(), at > before) {
                (_, false) => vec![],
                (1, true) => vec!["node_registered"],
                (_, true) => vec!["session_resumed"],
            };
            assert_eq!(names, expected);
            round.iter().for_each(|round| drop(state.apply_round(round)));
        }
    }
    assert_eq!(records, [true, false, true, false, true, false]);
    check(&state);
    // One of another incarnation, or of a node that is not up, is refused.
    let resumed = |node, incarnation| Decision::SessionResumed { node: NodeId(node), incarnation };
    assert_eq!(state.check(&resumed(0, 1)), Ok(()));
    assert_eq!(state.check(&resumed(0, 2)), Err(muster_state::GuardError::NodeNotCurrent));
    assert_eq!(state.check(&resumed(9, 1)), Err(muster_state::GuardError::NodeUnknown));
}

/// An agent of another release says more about itself. That ends nothing that runs.
#[test]
fn a_newer_agent_takes_over_a_node_on_which_gangs_run() {
    let (mut speculation, mut state) = founded();
    let known = node_draft("n0", "eu", "c1", None);
    let mut newer = known.clone();
    let facts = [("isolation.pid", "namespace"), ("worker.binding", "none"), ("cpu.numa-nodes", "2")];
    for (fact, value) in facts {
        newer.labels.insert(name(fact), value.to_owned());
    }
    let (known, newer) = (known.check().unwrap(), newer.check().unwrap());
    let says = |spec: &muster_types::NodeSpec, speculation: &mut Speculation| {
        let command =
            Command::Register { spec: spec.clone(), holder: holder(1), other_session_is_over: false };
        match handle(speculation, &command) {
            Ok(Answer::Registered { incarnation, .. }) => Ok(incarnation),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.code),
        }
    };
    assert_eq!(says(&known, &mut speculation), Ok(1));
    let Answer::Submitted { jobs, .. } = submit(&mut speculation, 1, vec![job("runs", 1, None)]) else {
        panic!("it is taken")
    };
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    assert_eq!(says(&newer, &mut speculation), Ok(1), "its session goes on");
    let mut other = muster_types::NodeDraft::clone(&newer);
    other.labels.insert(name("zone"), "z".to_owned());
    let other = other.check().unwrap();
    assert_eq!(says(&other, &mut speculation), Err(RefusalCode::NodeChanged), "that is not its own to say");
    let row = speculation.state().job(jobs[0]).unwrap();
    assert_eq!((&row.phase, row.attempt), (&Phase::Starting, 1));
    // Once nothing runs there, the node is what its agent says.
    let token = row.placement.as_ref().unwrap().token;
    let command = Command::Report {
        node: NodeId(0),
        incarnation: 1,
        job: jobs[0],
        token,
        updates: vec![(0, RankUpdate::Exited(ExitStatus::Code(0)))],
    };
    handle(&mut speculation, &command).unwrap();
    assert_eq!(says(&newer, &mut speculation), Ok(2));
    let described = speculation.state().node(NodeId(0)).unwrap();
    assert_eq!(described.spec.labels.len(), 3, "{described:?}");
    commit(&mut speculation, &mut state);
    check(&state);
}

/// Names of tenants come from the users that submit: one that the policy does not name leaves nothing behind for ever.
#[test]
fn tenants_that_the_policy_does_not_name_are_forgotten() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, node_spec("n0", "eu", "c1", Some(accelerators("h100", 8))));
    let mut draft = job_draft("j", vec![group("main", 1, Some(accelerators("h100", 1)))]);
    draft.tenant = name("branch-7");
    submit(&mut speculation, 1, vec![draft.check().unwrap()]);
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    commit(&mut speculation, &mut state);
    let (id, token) = {
        let (id, row) = state.jobs().iter().next().unwrap();
        (*id, row.placement.as_ref().unwrap().token)
    };
    let tenant = name("branch-7");
    let leadership = state.leadership().unwrap();
    let apply = |state: &mut State, after_ms: u64, decision: Decision| {
        let (index, at) = (state.log_index().next(), state.log_time().plus_ms(after_ms));
        assert_eq!(state.apply(leadership, index, at, &decision).rejection, None);
        assert_eq!(state.verify(), Ok(()));
    };
    const YEAR_MS: u64 = 366 * 86_400_000;
    let prune = || Decision::HistoryPruned { requests_before: LogTime(0), jobs_before: LogTime(0) };
    // It holds something, however long nothing else happens.
    apply(&mut state, YEAR_MS, prune());
    assert!(state.usage(&tenant).is_some());
    let key = |n: u128| muster_journal::RequestKey { id: request(n), fingerprint: 0 };
    apply(
        &mut state,
        0,
        Decision::JobCancelRequested { request: key(70), by: Requester::default(), jobs: vec![id] },
    );
    let exited = RankUpdate::Exited(ExitStatus::Code(0));
    let ended = Decision::WorkersReported {
        node: NodeId(0),
        incarnation: state.node(NodeId(0)).unwrap().incarnation,
        job: id,
        token,
        updates: vec![(0, exited)],
    };
    apply(&mut state, 1_000, ended);
    apply(&mut state, 0, Decision::JobFinished { job: id, outcome: muster_journal::Outcome::Cancelled });
    // What it used counts for a while.
    apply(&mut state, 1_000, prune());
    assert!(state.usage(&tenant).is_some());
    apply(&mut state, 5 * YEAR_MS, prune());
    assert!(state.usage(&tenant).is_none());
    let bytes: Vec<Vec<u8>> = state.snapshot().collect();
    assert_eq!(State::restore(bytes).unwrap().digest(), state.digest());
}
