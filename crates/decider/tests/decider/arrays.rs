//! Arrays: many like jobs that are one row until they are near their turn, and what that costs.

use std::collections::BTreeMap;
use std::time::Instant;

use muster_decider::{
    Answer, Command, ControlOrder, JobSelection, Speculation, handle, schedule, settle_all, tick,
};
use muster_journal::{Decision, RankUpdate, encode_round};
use muster_planner::Budget;
use muster_state::{GuardError, MemberEnd, State};
use muster_types::policy::{PolicyDraft, TenantLimits, TenantPolicy};
use muster_types::{
    ArrayId, ArraySpec, Control, Dependency, DependencyRule, DependencyScope, ExitStatus, JobId, JobSpec,
    NodeId, Parameters, PriorityTier, Refusal, RefusalCode, Requester, Submission, limits,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, commit, founded, founded_as, group, holder, job, job_draft, leadership, name,
    node_spec, request, with_all_rights,
};

fn register(speculation: &mut Speculation, node: &str, devices: u16) {
    let spec = node_spec(node, "eu", "c1", Some(accelerators("h100", devices)));
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(speculation, &command).unwrap();
}

fn array(spec: JobSpec, text: &str) -> Submission {
    Submission { array: Some(ArraySpec::parse(text).expect("an array")), ..Submission::from(spec) }
}

fn submit(speculation: &mut Speculation, n: u128, jobs: Vec<Submission>) -> Result<Vec<JobId>, Refusal> {
    match handle(speculation, &Command::submit(request(n), jobs.into()))? {
        Answer::Submitted { jobs, .. } => Ok(jobs),
        other => panic!("{other:?}"),
    }
}

fn control(
    speculation: &mut Speculation,
    n: u128,
    control: Control,
    (arrays, jobs): (Vec<ArrayId>, Vec<JobId>),
) -> Result<Answer, Refusal> {
    let selection = JobSelection { arrays, is_found: true, ..JobSelection::named(jobs) };
    let order =
        ControlOrder { acts_for: None, request: request(n), by: Requester::default(), control, selection };
    handle(speculation, &Command::Control(Box::new(order)))
}

/// Rounds of one pass after the other, until one places nothing more and nothing is left over; how many records they had.
fn settle_down(speculation: &mut Speculation, state: &mut State) -> usize {
    let mut records = 0;
    for _ in 0..1_000 {
        schedule(speculation, &mut Budget::new(10_000_000));
        match commit(speculation, state) {
            Some(round) => records += round.decisions.len(),
            None if !speculation.wants_schedule() => return records,
            None => {}
        }
    }
    panic!("passes do not come to an end");
}

/// Every gang that runs ends, as its id says.
fn end_all(speculation: &mut Speculation, ends: impl Fn(JobId) -> ExitStatus) -> usize {
    let active: Vec<JobId> = speculation.state().active().collect();
    for job in &active {
        let row = speculation.state().job(*job).expect("an active job").clone();
        let placement = row.placement.expect("an active job is placed");
        let mut of_node: BTreeMap<NodeId, Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, slot) in placement.slots.iter().enumerate() {
            of_node.entry(slot.node).or_default().push((rank as u32, RankUpdate::Exited(ends(*job))));
        }
        for (node, updates) in of_node {
            let token = placement.token;
            let report = Command::Report { node, incarnation: 1, job: *job, token, updates };
            handle(speculation, &report).unwrap();
        }
    }
    active.len()
}

/// The only worker of each of these gangs says this.
fn tell(speculation: &mut Speculation, jobs: &[JobId], update: &RankUpdate) {
    for job in jobs {
        let row = speculation.state().job(*job).expect("a job").clone();
        let placement = row.placement.expect("it is placed");
        let (node, token) = (placement.slots[0].node, placement.token);
        let updates = vec![(0, update.clone())];
        let report = Command::Report { node, incarnation: 1, job: *job, token, updates };
        handle(speculation, &report).unwrap();
    }
}

fn advance(speculation: &mut Speculation, ms: u64) {
    speculation.set_now(speculation.now().plus_ms(ms));
    tick(speculation);
}

/// How every job of these ended, whether or not it still has a row.
fn outcomes(state: &State, jobs: &[JobId]) -> Vec<MemberEnd> {
    jobs.iter()
        .map(|job| match state.end_of(*job) {
            muster_state::JobEnd::Ended(how) => how,
            other => panic!("{job} is {other:?}"),
        })
        .collect()
}

/// Runs jobs to their ends on a fleet; how they ended, and in which order they were placed.
fn run(seed: u64, jobs: Vec<Submission>) -> (Vec<MemberEnd>, Vec<usize>) {
    let mut random = Random::new(seed);
    let (mut speculation, mut state) = founded();
    for node in 0..1 + random.below(4) {
        register(&mut speculation, &format!("n{node}"), 1 + random.below(8) as u16);
    }
    commit(&mut speculation, &mut state);
    let mut ids = Vec::new();
    for (n, batch) in jobs.chunks(1_000).enumerate() {
        ids.extend(submit(&mut speculation, n as u128 + 1, batch.to_vec()).expect("it is taken"));
    }
    commit(&mut speculation, &mut state);
    let place: BTreeMap<JobId, usize> = ids.iter().enumerate().map(|(n, id)| (*id, n)).collect();
    let mut placed = Vec::new();
    for step in 0..100_000 {
        schedule(&mut speculation, &mut Budget::new(10_000_000));
        if let Some(round) = commit(&mut speculation, &mut state) {
            placed.extend(round.decisions.iter().filter_map(|decision| match decision {
                Decision::GangPlaced { job, .. } => place.get(job).copied(),
                _ => None,
            }));
        }
        if ids.iter().all(|id| state.end_of(*id) != muster_state::JobEnd::Unfinished) {
            return (outcomes(&state, &ids), placed);
        }
        // One in seven fails.
        let ends = |job: JobId| ExitStatus::Code(i32::from(place.get(&job).is_some_and(|n| n % 7 == 3)));
        end_all(&mut speculation, ends);
        advance(&mut speculation, 60_000 + step);
        commit(&mut speculation, &mut state);
    }
    panic!("seed {seed}: jobs do not end");
}

/// An array is placed in the order of its members, and ends as as many single jobs end, whatever the fleet.
#[test]
fn an_array_ends_as_single_jobs_do() {
    for seed in 0..6 {
        let mut random = Random::new(seed + 100);
        let devices = 1 + random.below(2) as u16;
        let size = 20 + random.below(60) as u32;
        let mut draft = job_draft("work", vec![group("main", 1, Some(accelerators("h100", devices)))]);
        draft.failure_retries_max = 0;
        let spec = draft.check().unwrap();
        let fleet = seed * 3;
        let single = run(fleet, vec![Submission::from(spec.clone()); size as usize]);
        let as_array = run(fleet, vec![array(spec.clone(), &size.to_string())]);
        assert_eq!(as_array, single, "seed {seed}");
        // A throttle changes when they run and not how they end.
        let throttled = run(fleet, vec![array(spec, &format!("{size}%3"))]);
        assert_eq!(throttled.0, single.0, "seed {seed}");
        assert!(throttled.1.is_sorted(), "seed {seed}: members go in their order");
    }
}

/// The same with more members than a window: no other job of the tenant that was submitted later goes before one of them.
#[test]
fn a_later_job_does_not_pass_an_array_that_is_larger_than_a_window() {
    let (mut speculation, mut state) = founded();
    for node in 0..64 {
        register(&mut speculation, &format!("n{node}"), 64);
    }
    let spec = job("many", 1, Some(accelerators("h100", 1)));
    let size = 3_000;
    let members = submit(&mut speculation, 1, vec![array(spec, &size.to_string())]).unwrap();
    let later =
        submit(&mut speculation, 2, vec![job("later", 1, Some(accelerators("h100", 2))).into()]).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(state.jobs().len(), limits::ARRAY_WINDOW as usize + 1);
    settle_down(&mut speculation, &mut state);
    let token = |job: JobId| state.job(job).and_then(|row| row.placement.as_ref()).map(|placed| placed.token);
    assert!(members.iter().all(|job| token(*job).is_some()), "all of them fit");
    assert!(members.iter().all(|job| token(*job) < token(later[0])), "they were submitted before");
}

/// Five hosts with 320 devices in all.
fn five_hosts(speculation: &mut Speculation) {
    for node in 0..5 {
        register(speculation, &format!("n{node}"), 64);
    }
}

/// Members that wait for their next attempt take no place of those behind them: devices are not idle while an array has members.
/// But an array of which every member fails does not become as many jobs.
#[test]
fn members_in_back_off_leave_the_queue_to_the_next() {
    let (mut speculation, mut state) = founded();
    five_hosts(&mut speculation);
    let spec = job("many", 1, Some(accelerators("h100", 1)));
    let members = submit(&mut speculation, 1, vec![array(spec, "5000")]).unwrap();
    let id = ArrayId(members[0].0);
    settle_down(&mut speculation, &mut state);
    let active: Vec<JobId> = state.active().collect();
    assert_eq!(active.len(), 320);
    // As many on each host.
    let some = active.iter().enumerate().filter(|(n, _)| n % 8 < 5).map(|(_, job)| *job);
    let failing: Vec<JobId> = some.collect();
    assert_eq!(failing.len(), 200);
    tell(&mut speculation, &failing, &RankUpdate::Exited(ExitStatus::Code(1)));
    settle_down(&mut speculation, &mut state);
    let load = state.array_load(id);
    assert_eq!(load.pending - load.in_line, 200, "they wait for their next attempt");
    assert_eq!(state.active_count(), 320, "others have their devices");
    assert!(load.in_line <= limits::ARRAY_WINDOW);
    for _ in 0..10 {
        end_all(&mut speculation, |_| ExitStatus::Code(1));
        settle_down(&mut speculation, &mut state);
    }
    let jobs = state.jobs().len();
    assert!(jobs <= limits::ARRAY_CREATED_MAX as usize + 320, "{jobs} members of which all fail are jobs");
}

/// Nor do members that wait for those who are preempted for them. As many are stopped as members are promised something, whatever
/// those hold until they have stopped: the hosts have no CPU to spare.
#[test]
fn members_with_promised_capacity_leave_the_queue_to_the_next() {
    let (mut speculation, mut state) = founded();
    five_hosts(&mut speculation);
    let of_tier = |tier: PriorityTier| {
        let mut draft = job_draft("many", vec![group("main", 1, Some(accelerators("h100", 1)))]);
        draft.tier = tier;
        array(draft.check().unwrap(), "320")
    };
    submit(&mut speculation, 1, vec![of_tier(PriorityTier::Free)]).unwrap();
    settle_down(&mut speculation, &mut state);
    let low: Vec<JobId> = state.active().collect();
    assert_eq!(low.len(), 320);
    tell(&mut speculation, &low, &RankUpdate::Running);
    commit(&mut speculation, &mut state);
    advance(&mut speculation, 3_600_000);
    commit(&mut speculation, &mut state);
    let members = submit(&mut speculation, 2, vec![of_tier(PriorityTier::Production)]).unwrap();
    for _ in 0..50 {
        schedule(&mut speculation, &mut Budget::new(10_000_000));
        commit(&mut speculation, &mut state);
    }
    let promised = u32::try_from(state.promised().count()).unwrap();
    let load = state.array_load(ArrayId(members[0].0));
    assert!(promised > limits::ARRAY_WINDOW, "{promised} members have capacity promised");
    assert_eq!(load.pending - load.in_line, promised, "they have left the queue");
    assert_eq!(state.stopping().count(), promised as usize, "nobody stops for nothing");
    end_all(&mut speculation, |_| ExitStatus::Code(0));
    settle_down(&mut speculation, &mut state);
    assert!(members.iter().all(|job| state.job(*job).is_some_and(|row| row.placement.is_some())));
}

/// Two arrays of which each member waits for the same one of a third that runs as a whole; of one two members may be there at a time.
fn arrays_by_member() -> (Speculation, State, [Vec<JobId>; 3]) {
    let (mut speculation, mut state) = founded();
    for node in 0..32 {
        register(&mut speculation, &format!("n{node}"), 64);
    }
    let made =
        submit(&mut speculation, 1, vec![array(job("make", 1, Some(accelerators("h100", 1))), "2000")]);
    let made = made.unwrap();
    settle_down(&mut speculation, &mut state);
    assert_eq!(state.active_count(), 2_000);
    let mut draft = job_draft("use", vec![group("main", 1, Some(accelerators("h100", 1)))]);
    let (rule, scope) = (DependencyRule::Succeeded, DependencyScope::Member);
    draft.dependencies = vec![Dependency { job: made[0], rule, scope }];
    let spec = draft.check().unwrap();
    let all = submit(&mut speculation, 2, vec![array(spec.clone(), "2000")]).unwrap();
    let few = submit(&mut speculation, 3, vec![array(spec, "2000%2")]).unwrap();
    settle_down(&mut speculation, &mut state);
    (speculation, state, [made, all, few])
}

fn is_placed(state: &State, job: JobId) -> bool {
    state.job(job).is_some_and(|row| row.placement.is_some())
}

/// However many wait before it, and where the array has a throttle: it is for those that can run.
#[test]
fn a_member_whose_counterpart_is_over_does_not_wait_for_those_before_it() {
    let (mut speculation, mut state, [made, all, few]) = arrays_by_member();
    assert!(state.job(all[1_500]).is_none() && state.job(few[0]).is_none(), "their turn is far away");
    let done = RankUpdate::Exited(ExitStatus::Code(0));
    tell(&mut speculation, &[made[1_900], made[1_700], made[1_500]], &done);
    settle_down(&mut speculation, &mut state);
    assert_eq!([1_500, 1_700, 1_900].map(|n| is_placed(&state, all[n])), [true; 3]);
    assert_eq!([1_500, 1_700, 1_900].map(|n| is_placed(&state, few[n])), [true, true, false]);
    assert!(state.array_load(ArrayId(all[0].0)).pending <= limits::ARRAY_CREATED_MAX / 2, "others wait");
    tell(&mut speculation, &[few[1_500]], &done);
    settle_down(&mut speculation, &mut state);
    assert!(is_placed(&state, few[1_900]), "it is the next one that can run");
    assert!(state.job(few[0]).is_none());
    tell(&mut speculation, &[made[0], few[1_700]], &done);
    settle_down(&mut speculation, &mut state);
    assert!(is_placed(&state, all[0]) && is_placed(&state, few[0]));
    crate::support::check(&state);
}

/// Those that are jobs, or over, before their turn are no longer looked at when the one before them is created.
#[test]
fn members_before_their_turn_are_stepped_over_with_the_one_before_them() {
    let (mut speculation, mut state, [made, _, few]) = arrays_by_member();
    let next = |state: &State| state.array(ArrayId(few[0].0)).map(|row| row.next);
    let done = RankUpdate::Exited(ExitStatus::Code(0));
    tell(&mut speculation, &made[1..=2], &done);
    settle_down(&mut speculation, &mut state);
    assert_eq!([1, 2].map(|n| is_placed(&state, few[n])), [true; 2]);
    assert_eq!(next(&state), Some(0));
    tell(&mut speculation, &[made[0], few[1], few[2]], &done);
    settle_down(&mut speculation, &mut state);
    assert!(is_placed(&state, few[0]));
    assert_eq!(next(&state), Some(3));
}

/// Members that a record names are taken where none of them is a job, or over, and all of them are members.
#[test]
fn members_that_a_record_names_are_created_once() {
    let (mut speculation, mut state, [made, all, few]) = arrays_by_member();
    let check = |state: &State, members: &[JobId], first: u32, count: u32| {
        let array = ArrayId(members[0].0);
        state.check(&Decision::ArrayMembersCreated { array, first: Some(first), count })
    };
    assert_eq!(check(&state, &all, 1_500, 2), Ok(()));
    assert_eq!(check(&state, &all, 1_500, 0), Err(GuardError::Limit));
    assert_eq!(check(&state, &all, 500, limits::ARRAY_CREATED_MAX), Err(GuardError::Limit), "others wait");
    assert_eq!(check(&state, &all, u32::MAX, 2), Err(GuardError::Limit));
    assert_eq!(check(&state, &all, 1_999, 2), Err(GuardError::JobPhase), "there are 2,000");
    assert_eq!(check(&state, &all, 0, 1), Err(GuardError::JobPhase), "it waits as a job");
    assert_eq!(check(&state, &few, 1_500, 2), Ok(()));
    assert_eq!(check(&state, &few, 1_500, 3), Err(GuardError::Limit), "two may be there at a time");
    tell(&mut speculation, &made[1_500..=1_500], &RankUpdate::Exited(ExitStatus::Code(0)));
    settle_down(&mut speculation, &mut state);
    assert_eq!(check(&state, &all, 1_499, 2), Err(GuardError::JobPhase), "the second is a job");
    assert_eq!(check(&state, &all, 1_501, 2), Ok(()));
    tell(&mut speculation, &all[1_500..=1_500], &RankUpdate::Exited(ExitStatus::Code(0)));
    settle_down(&mut speculation, &mut state);
    assert_eq!(check(&state, &all, 1_500, 1), Err(GuardError::JobPhase), "it is over");
}

/// What was over before this leadership, while nobody could create members, is found, more of it than is noted at a time. It waits for no
/// tick.
#[test]
fn a_new_leader_finds_members_whose_counterparts_are_over() {
    let (mut speculation, mut state, [made, all, _]) = arrays_by_member();
    let id = ArrayId(all[0].0);
    control(&mut speculation, 4, Control::Hold, (vec![id], vec![])).unwrap();
    tell(&mut speculation, &made[1_000..1_600], &RankUpdate::Exited(ExitStatus::Code(0)));
    settle_down(&mut speculation, &mut state);
    assert!(state.job(all[1_000]).is_none(), "it is held");
    speculation = Speculation::begin(state.clone(), leadership(2, 2), speculation.now(), BOOTSTRAP);
    settle_all(&mut speculation);
    commit(&mut speculation, &mut state);
    control(&mut speculation, 5, Control::Release, (vec![id], vec![])).unwrap();
    settle_down(&mut speculation, &mut state);
    let placed = all[1_000..1_600].iter().filter(|job| is_placed(&state, **job)).count();
    assert_eq!(placed, 600);
    assert!(state.job(all[999]).is_none() && state.job(all[1_600]).is_none(), "their turn is far away");
    crate::support::check(&state);
}

/// Ids are known when the submission is acknowledged, and no later job gets one of them.
#[test]
fn ids_of_members_are_theirs_alone() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", 8);
    let one = || Submission::from(job("one", 1, None));
    let mut known = Vec::new();
    for n in 0..4 {
        known.extend(
            submit(&mut speculation, 2 * n + 1, vec![one(), array(one().spec, "100%1"), one()]).unwrap(),
        );
        known.extend(submit(&mut speculation, 2 * n + 2, vec![array(one().spec, "2500"), one()]).unwrap());
    }
    assert!(known.is_sorted_by(|a, b| a < b), "ids rise in the order of submission");
    commit(&mut speculation, &mut state);
    let again = submit(&mut speculation, 1, vec![one(), array(one().spec, "100%1"), one()]).unwrap();
    assert_eq!(again, known[..102], "a repeated request gets the same ids");
    let other = submit(&mut speculation, 1, vec![one(), array(one().spec, "100%2"), one()]).unwrap_err();
    assert_eq!(other.code, RefusalCode::RequestIdReused);
    for (n, id) in known.iter().enumerate() {
        assert!(state.job(*id).is_some() || state.waiting_member(*id).is_some(), "{n}: {id}");
    }
}

/// What concerns an array survives a snapshot, another leader, and the end of its members' rows.
#[test]
fn an_array_outlives_its_rows_and_its_leader() {
    let mut bootstrap = BOOTSTRAP;
    bootstrap.parameters =
        Parameters { job_retention_ms: 60_000, jobs_held_max: 2_000, ..Parameters::DEFAULT };
    let (mut speculation, mut state) = founded_as(bootstrap);
    register(&mut speculation, "n0", 64);
    let spec = job("many", 1, Some(accelerators("h100", 1)));
    let members = submit(&mut speculation, 1, vec![array(spec.clone(), "5000")]).unwrap();
    let id = ArrayId(members[0].0);
    commit(&mut speculation, &mut state);
    for step in 0..200 {
        settle_down(&mut speculation, &mut state);
        end_all(&mut speculation, |_| ExitStatus::Code(0));
        advance(&mut speculation, 30_000);
        commit(&mut speculation, &mut state);
        if step == 20 {
            let bytes: Vec<Vec<u8>> = state.snapshot().collect();
            let restored = State::restore(&bytes).expect("it restores");
            assert_eq!(restored.digest(), state.digest());
            let now = speculation.now();
            speculation = Speculation::begin(restored, leadership(2, 2), now, bootstrap);
            settle_all(&mut speculation);
            commit(&mut speculation, &mut state);
        }
        assert!(state.jobs().len() <= 2_000, "the state holds no more jobs than it may");
        if state.array(id).is_some_and(|row| row.finished_at.is_some()) {
            break;
        }
    }
    let row = state.array(id).expect("it is kept as long as its jobs");
    assert_eq!((row.succeeded, row.uncreated), (5_000, 0));
    assert!(state.job(members[0]).is_none(), "the first rows are gone");
    assert_eq!(outcomes(&state, &members), vec![MemberEnd::Succeeded; 5_000]);
    for _ in 0..20 {
        advance(&mut speculation, 600_000);
        commit(&mut speculation, &mut state);
    }
    assert!(state.array(id).is_none() && state.jobs().is_empty(), "nothing of it is kept for ever");
}

/// Limits of tenants count members that are not created, and a tenant's array is one request.
#[test]
fn limits_count_members_that_are_not_created() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", 8);
    let mut policy = PolicyDraft::default();
    let limits =
        TenantLimits { pending_jobs: Some(1_500), unfinished_jobs: Some(2_000), ..Default::default() };
    policy.tenants.insert(name("research"), TenantPolicy { limits, ..TenantPolicy::default() });
    let policy = Box::new(with_all_rights(policy).check().unwrap());
    let command = Command::SetPolicy {
        request: request(50),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    let spec = || job("many", 1, Some(accelerators("h100", 1)));
    let refused = submit(&mut speculation, 1, vec![array(spec(), "1501")]).unwrap_err();
    assert_eq!(refused.code, RefusalCode::TenantLimit);
    let members = submit(&mut speculation, 2, vec![array(spec(), "1500")]).unwrap();
    let refused = submit(&mut speculation, 3, vec![spec().into()]).unwrap_err();
    assert_eq!(refused.code, RefusalCode::TenantLimit);
    let load = speculation.state().queue(&name("research")).unwrap().load;
    assert_eq!((load.pending_jobs, load.uncreated_jobs), (1_500, 1_500 - u64::from(limits::ARRAY_WINDOW)));
    control(&mut speculation, 4, Control::Cancel, (vec![ArrayId(members[0].0)], vec![])).unwrap();
    submit(&mut speculation, 5, vec![spec().into()]).unwrap();
    commit(&mut speculation, &mut state);
}

/// A member that is not created and is named together with its array is one job of the answer.
#[test]
fn a_member_that_is_named_with_its_array_is_counted_once() {
    for asked in [Control::Hold, Control::Cancel] {
        let (mut speculation, mut state) = founded();
        register(&mut speculation, "n0", 8);
        let spec = job("many", 1, Some(accelerators("h100", 1)));
        let members = submit(&mut speculation, 1, vec![array(spec, "5000")]).unwrap();
        let id = ArrayId(members[0].0);
        let uncreated = speculation.state().array(id).unwrap().uncreated;
        match control(&mut speculation, 2, asked, (vec![id], vec![members[4_000]])) {
            Ok(Answer::Controlled { jobs, .. }) => assert_eq!(jobs, uncreated, "{asked:?}"),
            other => panic!("{other:?}"),
        }
        commit(&mut speculation, &mut state);
    }
}

/// Members that are not created have no rows: their array keeps who cancelled them, each user once and no more than a few. Nobody's
/// tokens fill the places, and the last is among them whatever others did.
#[test]
fn an_array_keeps_who_cancelled_members_that_were_not_created() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", 8);
    let spec = job("many", 1, Some(accelerators("h100", 1)));
    let members = submit(&mut speculation, 1, vec![array(spec, "5000")]).unwrap();
    let id = ArrayId(members[0].0);
    let cancel = |speculation: &mut Speculation, n, name: &str, arrays, jobs| {
        let selection = JobSelection { arrays, is_found: true, ..JobSelection::named(jobs) };
        let by = Requester { name: name.to_owned(), ..Requester::default() };
        let control = Control::Cancel;
        let order = ControlOrder { acts_for: None, request: request(n), by, control, selection };
        handle(speculation, &Command::Control(Box::new(order))).unwrap();
    };
    let names = |speculation: &Speculation| -> Vec<String> {
        speculation.state().array(id).unwrap().cancelled_by.iter().map(ToString::to_string).collect()
    };
    cancel(&mut speculation, 2, "ada", vec![], vec![members[4_000], members[4_001]]);
    cancel(&mut speculation, 3, "", vec![], vec![members[4_002]]);
    cancel(&mut speculation, 50, "+token/0000000000000007", vec![], vec![members[4_005]]);
    cancel(&mut speculation, 4, "bob", vec![], vec![members[4_003]]);
    cancel(&mut speculation, 5, "ada", vec![], vec![members[4_004]]);
    for n in 0..10_u32 {
        let (member, token) = (members[4_200 + n as usize], format!("ada+token/{n:016x}"));
        cancel(&mut speculation, 40 + u128::from(n), &token, vec![], vec![member]);
    }
    assert_eq!(names(&speculation), ["ada", "bob"]);
    // One that is a job says it itself.
    cancel(&mut speculation, 6, "cyd", vec![], vec![members[0]]);
    assert_eq!(names(&speculation), ["ada", "bob"]);
    for n in 0..10_u32 {
        let member = members[4_100 + n as usize];
        cancel(&mut speculation, 10 + u128::from(n), &format!("u{n}"), vec![], vec![member]);
    }
    let left_out = |speculation: &Speculation| speculation.state().array(id).unwrap().cancellers_left_out;
    assert_eq!(names(&speculation).len(), limits::ARRAY_CANCELLERS_MAX);
    assert_eq!(left_out(&speculation), 4);
    cancel(&mut speculation, 30, "eve+token/0000000000000007", vec![id], vec![]);
    assert_eq!(names(&speculation), ["ada", "bob", "u0", "u1", "u2", "u3", "u4", "eve"]);
    assert_eq!(left_out(&speculation), 5);
    commit(&mut speculation, &mut state);
    crate::support::check(&state);
}

/// A tenant cannot buy a better position with an array than with single jobs: both have the position of their submission.
#[test]
fn an_array_has_the_position_of_its_submission() {
    let (mut speculation, mut state) = founded();
    let spec = |text: &str| job(text, 1, Some(accelerators("h100", 1)));
    register(&mut speculation, "n0", 2);
    let first = submit(&mut speculation, 1, vec![spec("alpha").into()]).unwrap();
    let members = submit(&mut speculation, 2, vec![array(spec("beta"), "2000%1")]).unwrap();
    let last = submit(&mut speculation, 3, vec![spec("gamma").into()]).unwrap();
    let turn = |job: JobId| {
        let state = speculation.state();
        (state.turn_of(state.burst_of(job).unwrap()).unwrap(), job)
    };
    assert!(turn(first[0]) < turn(members[0]) && turn(members[0]) < turn(last[0]));
    settle_down(&mut speculation, &mut state);
    let is_placed = |job: JobId| state.job(job).is_some_and(|row| row.placement.is_some());
    assert!(is_placed(first[0]) && is_placed(members[0]) && !is_placed(last[0]));
}

/// Bad input changes nothing.
#[test]
fn bad_arrays_are_refused_and_change_nothing() {
    let (mut speculation, _) = founded();
    register(&mut speculation, "n0", 8);
    let spec = || job("bad", 1, None);
    let before = speculation.last_index();
    let ranges = |list: &[(u32, u32, u32)]| {
        let range = |(first, last, step): &(u32, u32, u32)| muster_types::IndexRange {
            first: *first,
            last: *last,
            step: *step,
        };
        ArraySpec { ranges: list.iter().map(range).collect(), throttle: None }
    };
    let many: Vec<(u32, u32, u32)> = (0..257).map(|n| (2 * n, 2 * n, 1)).collect();
    for (what, wrong, field) in [
        ("size 0", ArraySpec::of_size(0), "array.size"),
        ("too many members", ArraySpec::of_size(100_001), "array.size"),
        ("twice", ranges(&[(1, 1, 1), (1, 1, 1)]), "array.indices"),
        ("out of order", ranges(&[(5, 5, 1), (1, 1, 1)]), "array.indices"),
        ("no step", ranges(&[(0, 9, 0)]), "array.indices"),
        ("backwards", ranges(&[(9, 0, 1)]), "array.indices"),
        ("a step that misses the end", ranges(&[(0, 9, 2)]), "array.indices"),
        ("too high", ranges(&[(0, 0, 1), (u32::MAX, u32::MAX, 1)]), "array.indices"),
        ("too many ranges", ranges(&many), "array.indices"),
        ("throttle 0", ArraySpec { throttle: Some(0), ..ArraySpec::of_size(5) }, "array.throttle"),
    ] {
        let wrong = Submission { array: Some(wrong), ..Submission::from(spec()) };
        let refusal = submit(&mut speculation, 1, vec![wrong]).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::InvalidField, "{what}");
        assert_eq!(refusal.violations[0].field, format!("jobs[0].spec.{field}"), "{what}");
    }
    let two = vec![array(spec(), "60000"), array(spec(), "60000")];
    let refusal = submit(&mut speculation, 1, two).unwrap_err();
    assert_eq!(refusal.violations[0].field, "jobs");
    let never = job("never", 1, Some(accelerators("h100", 9)));
    let refusal = submit(&mut speculation, 1, vec![spec().into(), array(never, "9")]).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::NeverFits);
    assert_eq!(speculation.last_index(), before);
}

/// Bytes of a state's snapshot.
fn bytes_of(state: &State) -> usize {
    state.snapshot().map(|chunk| chunk.len()).sum()
}

/// An array that waits costs as good as nothing: bytes, and the work of a pass.
#[test]
fn an_array_that_waits_costs_little() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", 1);
    commit(&mut speculation, &mut state);
    let spec = job("many", 1, Some(accelerators("h100", 1)));
    let held = |speculation: &mut Speculation, n, text: &str| {
        let members = submit(speculation, n, vec![array(spec.clone(), text)]).unwrap();
        ArrayId(members[0].0)
    };
    let small = held(&mut speculation, 1, "1%1");
    commit(&mut speculation, &mut state);
    let before = bytes_of(&state);
    let large = held(&mut speculation, 2, "100000%1");
    let round = commit(&mut speculation, &mut state).unwrap();
    let bytes = bytes_of(&state) - before;
    // The first array has the same rows: what is more are the members that wait.
    assert!(bytes < 8 << 10, "{bytes} bytes for an array of 100,000 members");
    assert!(encode_round(&round).len() < 4 << 10);
    assert_eq!(state.array(large).unwrap().uncreated, 99_999);
    assert_eq!(state.array(small).unwrap().uncreated, 0);
    // All of them end with one record that is small, too.
    control(&mut speculation, 3, Control::Cancel, (vec![large], vec![])).unwrap();
    let round = commit(&mut speculation, &mut state).unwrap();
    assert!(encode_round(&round).len() < 1 << 10);
    assert!(bytes_of(&state) - before < 16 << 10);
    assert_eq!(state.array(large).unwrap().cancelled, 99_999);
}

/// `cargo test --release -p muster-decider --test decider costs_of_arrays -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn costs_of_arrays() {
    let (mut speculation, mut state) = founded();
    for node in 0..100 {
        register(&mut speculation, &format!("n{node}"), 8);
    }
    commit(&mut speculation, &mut state);
    let spec = job("many", 1, Some(accelerators("h100", 8)));
    let timed = |what: &str, begun: Instant| eprintln!("{what}: {:?}", begun.elapsed());

    let begun = Instant::now();
    let members = submit(&mut speculation, 1, vec![array(spec.clone(), "100000")]).unwrap();
    timed("submission of 100,000 members, with its first window of jobs", begun);
    let begun = Instant::now();
    let round = speculation.take_round().unwrap();
    eprintln!("its round: {} bytes, {} records", encode_round(&round).len(), round.decisions.len());
    state.apply_round(&round);
    timed("the same applied by another replica", begun);
    let begun = Instant::now();
    submit(&mut speculation, 2, vec![array(spec.clone(), "100000%1")]).unwrap();
    timed("submission of 100,000 members of which one may be unfinished", begun);
    state.apply_round(&speculation.take_round().unwrap());
    let begun = Instant::now();
    let singles = vec![Submission::from(job("single", 1, Some(accelerators("h100", 8)))); 1_000];
    submit(&mut speculation, 3, singles).unwrap();
    timed("submission of 1,000 single jobs", begun);
    state.apply_round(&speculation.take_round().unwrap());

    let (mut alone, mut replica) = founded();
    let before = bytes_of(&replica);
    register(&mut alone, "n0", 8);
    submit(&mut alone, 1, vec![array(spec.clone(), "100000%1")]).unwrap();
    replica.apply_round(&alone.take_round().unwrap());
    let bytes = bytes_of(&replica) - before;
    eprintln!(
        "bytes of an array of 100,000, its first job and its host: {bytes}, {} per thousand",
        bytes / 100
    );

    for size in [1_024, 100_000_u32] {
        let (mut speculation, mut state) = founded();
        for node in 0..100 {
            register(&mut speculation, &format!("n{node}"), 8);
        }
        submit(&mut speculation, 1, vec![array(spec.clone(), &size.to_string())]).unwrap();
        commit(&mut speculation, &mut state);
        schedule(&mut speculation, &mut Budget::new(10_000_000));
        state.apply_round(&speculation.take_round().unwrap());
        let mut spent = Vec::new();
        for _ in 0..20 {
            speculation.want_schedule();
            let begun = Instant::now();
            schedule(&mut speculation, &mut Budget::new(10_000_000));
            spent.push(begun.elapsed());
            speculation.take_round();
        }
        spent.sort_unstable();
        eprintln!("a pass with {size} members waiting and nothing free: {:?} (median of 20)", spent[10]);
    }

    let begun = Instant::now();
    control(&mut speculation, 4, Control::Hold, (vec![ArrayId(members[0].0)], vec![])).unwrap();
    timed("hold of an array of 100,000", begun);
    let begun = Instant::now();
    control(&mut speculation, 5, Control::Cancel, (vec![ArrayId(members[0].0)], vec![])).unwrap();
    timed("cancel of the members of it that are not created", begun);
    let begun = Instant::now();
    state.apply_round(&speculation.take_round().unwrap());
    timed("both applied by another replica", begun);
    let begun = Instant::now();
    state.verify().unwrap();
    timed("every invariant of the state recomputed", begun);
}
