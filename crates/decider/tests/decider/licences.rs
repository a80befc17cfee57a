//! Counted resources of the policy, and limits of tenants on CPUs and memory: no more are held than there are, the first that waits
//! is not passed for ever, and a count that is lowered stops nobody.

use std::collections::BTreeMap;

use muster_decider::{
    Answer, Command, ModifyOrder, Speculation, explain_job, first_for_licences, handle, schedule,
};
use muster_journal::{Decision, RankUpdate};
use muster_planner::{Budget, WaitReason};
use muster_state::{GuardError, Phase, RankState, State};
use muster_types::policy::{CountedResource, PolicyDraft, TenantLimits, TenantPolicy};
use muster_types::{
    ExitStatus, FieldChange, JobContract, JobId, JobSpec, Name, NodeDraft, PriorityTier, Refusal,
    RefusalCode, Requester, Submission,
};

use crate::random::Random;
use crate::support::{
    GIB, accelerators, commit, founded, group, holder, job_draft, name, node_draft, node_spec, request,
    with_all_rights,
};

const SEEDS: u64 = 24;
const STEPS: u64 = 160;

/// What the policy counts: names, counts and regions.
type Counts<'a> = &'a [(&'a str, u32, Option<&'a str>)];

fn set_counts(speculation: &mut Speculation, n: u128, counts: Counts<'_>) {
    let resource = |(text, count, region): &(&str, u32, Option<&str>)| CountedResource {
        name: name(text),
        count: *count,
        region: region.map(name),
    };
    let mut draft =
        PolicyDraft { resources: counts.iter().map(resource).collect(), ..PolicyDraft::default() };
    draft.preemption.minimum_run_ms = 0;
    let command = Command::SetPolicy {
        request: request(n),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(speculation, &command).expect("it is taken");
}

fn register(speculation: &mut Speculation, text: &str, region: &str, devices: u16) {
    let has = (devices > 0).then(|| accelerators("h100", devices));
    let spec = node_spec(text, region, "c1", has);
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(speculation, &command).expect("it is taken");
}

fn asking(text: &str, devices: u16, licences: &[(&str, u32)], tier: PriorityTier) -> JobSpec {
    let wants = (devices > 0).then(|| accelerators("h100", devices));
    let mut draft = job_draft(text, vec![group("main", 1, wants)]);
    draft.licences = licences.iter().map(|(licence, count)| (name(licence), *count)).collect();
    draft.tier = tier;
    draft.check().expect("a job")
}

fn submit(speculation: &mut Speculation, n: u128, spec: JobSpec) -> Result<JobId, Refusal> {
    let jobs = [Submission::new(spec, JobContract::default())].into();
    match handle(speculation, &Command::submit(request(n), jobs))? {
        Answer::Submitted { jobs, .. } => Ok(jobs[0]),
        other => panic!("{other:?}"),
    }
}

fn plain(speculation: &mut Speculation, n: u128, licences: &[(&str, u32)]) -> JobId {
    let spec = asking(&format!("j{n}"), 0, licences, PriorityTier::Standard);
    submit(speculation, n, spec).expect("it is taken")
}

fn pass(speculation: &mut Speculation, state: &mut State) {
    schedule(speculation, &mut Budget::new(u64::MAX));
    commit(speculation, state);
}

/// The only worker of a job ends, in whatever way its job is about to end.
fn end(speculation: &mut Speculation, job: JobId) {
    let Some(row) = speculation.state().job(job).cloned() else { return };
    let Some(placement) = row.placement.filter(|placement| placement.live > 0) else { return };
    let exit = match row.phase {
        Phase::Stopping(_) => ExitStatus::Signal(15),
        _ => ExitStatus::Code(0),
    };
    let mut updates = vec![(0, RankUpdate::Exited(exit))];
    if placement.ranks[0] == RankState::Assigned {
        updates.insert(0, (0, RankUpdate::Running));
    }
    let (slot, token) = (&placement.slots[0], placement.token);
    let report = Command::Report { node: slot.node, incarnation: slot.incarnation, job, token, updates };
    handle(speculation, &report).expect("it is taken");
}

fn holds(state: &State, job: JobId) -> bool {
    state.job(job).is_some_and(|row| {
        row.promise.is_some() || matches!(row.phase, Phase::Starting | Phase::Running | Phase::Stopping(_))
    })
}

/// What is held of each resource, from the rows alone.
fn held(state: &State) -> BTreeMap<Name, u64> {
    let mut sums = BTreeMap::new();
    for (id, _) in state.jobs().iter().filter(|(id, _)| holds(state, **id)) {
        for (licence, count) in &state.spec(*id).expect("a job has a spec").licences {
            *sums.entry(licence.clone()).or_default() += u64::from(*count);
        }
    }
    sums
}

#[test]
fn no_more_is_held_than_there_is() {
    let mut contested = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let (mut speculation, mut state) = founded();
        for node in 0..3 {
            register(&mut speculation, &format!("n{node}"), "eu", 8);
        }
        set_counts(&mut speculation, 5_000, &[("x", 3, None), ("y", 2, None)]);
        commit(&mut speculation, &mut state);
        for step in 0..STEPS {
            let before = held(&state);
            let policy = state.policy().policy.clone();
            match random.below(10) {
                0..4 => {
                    let mut licences = vec![("x", 1 + random.below(3) as u32)];
                    if random.once_in(2) {
                        licences.push(("y", 1 + random.below(2) as u32));
                    }
                    let tier = PriorityTier::ALL[random.below(4) as usize];
                    let spec = asking("job", 1 + random.below(8) as u16, &licences, tier);
                    // The policy may have too few of them.
                    let _ = submit(&mut speculation, u128::from(step) + 10, spec);
                }
                4..7 => {
                    let active: Vec<JobId> = state.active().collect();
                    random.pick(&active).inspect(|job| end(&mut speculation, *job));
                }
                7 => {
                    let counts = [("x", random.below(5) as u32, None), ("y", random.below(4) as u32, None)];
                    set_counts(&mut speculation, 6_000 + u128::from(step), &counts);
                }
                _ => _ = schedule(&mut speculation, &mut Budget::new(100_000)),
            }
            commit(&mut speculation, &mut state);
            for (licence, sum) in held(&state) {
                let most =
                    policy.resource_count(&licence).max(state.policy().policy.resource_count(&licence));
                let had = before.get(&licence).copied().unwrap_or(0);
                assert!(
                    sum <= most.max(had),
                    "seed {seed}, step {step}: {sum} of {most} {licence}, {had} before"
                );
                assert_eq!(sum, state.licences_held(&licence), "seed {seed}, step {step}");
                let waits = |(id, row): (&JobId, &muster_state::JobRow)| {
                    row.is_in_line()
                        && state.spec(*id).is_some_and(|spec| state.lacking_licence(spec).is_some())
                };
                contested += u64::from(sum == most && state.jobs().iter().any(waits));
            }
        }
    }
    assert!(contested > SEEDS, "licences were scarce {contested} times");
}

#[test]
fn the_first_that_waits_keeps_what_is_given_back() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    set_counts(&mut speculation, 5_000, &[("matlab", 4, None)]);
    let mut small: Vec<JobId> = (1..=4).map(|n| plain(&mut speculation, n, &[("matlab", 1)])).collect();
    pass(&mut speculation, &mut state);
    assert!(small.iter().all(|job| holds(&state, *job)));
    let large = plain(&mut speculation, 10, &[("matlab", 4)]);
    pass(&mut speculation, &mut state);
    // Others come all the time, and each would fit into what is given back.
    for n in 0..4 {
        let next = plain(&mut speculation, 20 + n, &[("matlab", 1)]);
        pass(&mut speculation, &mut state);
        assert!(!holds(&state, next) && !holds(&state, large));
        end(&mut speculation, small.remove(0));
        pass(&mut speculation, &mut state);
        assert!(!holds(&state, next), "{n}");
    }
    assert!(holds(&state, large));
    // What asks for none goes on past all of them.
    let without = plain(&mut speculation, 40, &[]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, without));
}

#[test]
fn jobs_with_several_licences_do_not_wait_for_each_other() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    set_counts(&mut speculation, 5_000, &[("x", 1, None), ("y", 1, None)]);
    let x = plain(&mut speculation, 1, &[("x", 1)]);
    let y = plain(&mut speculation, 2, &[("y", 1)]);
    pass(&mut speculation, &mut state);
    let both = plain(&mut speculation, 3, &[("x", 1), ("y", 1)]);
    pass(&mut speculation, &mut state);
    let mut waiting = Vec::new();
    for n in 0..6 {
        waiting.push(plain(&mut speculation, 10 + 2 * n, &[("x", 1)]));
        waiting.push(plain(&mut speculation, 11 + 2 * n, &[("y", 1)]));
    }
    pass(&mut speculation, &mut state);
    end(&mut speculation, x);
    pass(&mut speculation, &mut state);
    assert!(waiting.iter().all(|job| !holds(&state, *job)), "what is free is kept for the first that waits");
    end(&mut speculation, y);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, both));
    // And all others have their turn after it.
    end(&mut speculation, both);
    for _ in 0..waiting.len() {
        pass(&mut speculation, &mut state);
        let running: Vec<JobId> = waiting.iter().copied().filter(|job| holds(&state, *job)).collect();
        running.into_iter().for_each(|job| end(&mut speculation, job));
        commit(&mut speculation, &mut state);
    }
    let is_over = |job: &&JobId| state.job(**job).is_none_or(|row| matches!(row.phase, Phase::Finished(_)));
    assert_eq!(waiting.iter().filter(is_over).count(), waiting.len());
}

#[test]
fn tenants_take_turns_however_many_jobs_one_of_them_sends() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    let resource = |text: &str| CountedResource { name: name(text), count: 1, region: None };
    let draft = PolicyDraft {
        resources: ["matlab", "a", "b"].map(resource).into(),
        tenants: ["greedy", "modest"].map(|text| (name(text), TenantPolicy::default())).into(),
        ..PolicyDraft::default()
    };
    let command = Command::SetPolicy {
        request: request(5_000),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &command).expect("it is taken");
    let send = |speculation: &mut Speculation, n: u128, tenant: &str, licences: &[(&str, u32)]| {
        let mut draft = asking(&format!("j{n}"), 0, licences, PriorityTier::Standard).into_draft();
        draft.tenant = name(tenant);
        submit(speculation, n, draft.check().expect("a job")).expect("it is taken")
    };
    let first = send(&mut speculation, 1, "greedy", &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, first));
    let second = send(&mut speculation, 2, "greedy", &[("matlab", 1)]);
    let third = send(&mut speculation, 3, "greedy", &[("matlab", 1), ("a", 1)]);
    let fourth = send(&mut speculation, 4, "greedy", &[("matlab", 1), ("b", 1)]);
    pass(&mut speculation, &mut state);
    let modest = send(&mut speculation, 5, "modest", &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    end(&mut speculation, first);
    pass(&mut speculation, &mut state);
    // Which of them is noted first its order says.
    let greedy = [second, third, fourth];
    let next = greedy.into_iter().find(|job| holds(&state, *job)).expect("one of them was noted before");
    assert!(!holds(&state, modest));
    end(&mut speculation, next);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, modest));
    assert!(greedy.into_iter().all(|job| !holds(&state, job)));
}

#[test]
fn a_job_without_a_start_in_sight_keeps_no_licences_from_others() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    register(&mut speculation, "n1", "eu", 8);
    set_counts(&mut speculation, 5_000, &[("matlab", 4, None)]);
    let node = speculation.state().node_named(&name("n1")).expect("it is there");
    let cordon = |n, cordoned| {
        let by = Requester::default();
        Command::SetCordon { request: request(n), by, node, cordoned, reason: None }
    };
    handle(&mut speculation, &cordon(5_001, true)).expect("it is taken");
    let small = plain(&mut speculation, 1, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    let spec = asking("large", 8, &[("matlab", 4)], PriorityTier::Standard);
    let large = submit(&mut speculation, 2, spec).expect("it is taken");
    pass(&mut speculation, &mut state);
    let next = plain(&mut speculation, 3, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, small) && holds(&state, next) && !holds(&state, large));
    // Nor once it has found all of them.
    end(&mut speculation, small);
    end(&mut speculation, next);
    pass(&mut speculation, &mut state);
    let next = plain(&mut speculation, 4, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, next) && !holds(&state, large));
    // With its node it is as every other job again, a while later.
    handle(&mut speculation, &cordon(5_002, false)).expect("it is taken");
    commit(&mut speculation, &mut state);
    let later = speculation.now().plus_ms(10 * 60_000);
    speculation.set_now(later);
    pass(&mut speculation, &mut state);
    let last = plain(&mut speculation, 5, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(!holds(&state, last) && !holds(&state, large));
    end(&mut speculation, next);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, large) && !holds(&state, last));
}

#[test]
fn the_guard_refuses_more_than_there_is_and_another_region() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    register(&mut speculation, "n1", "us", 0);
    set_counts(&mut speculation, 5_000, &[("matlab", 1, None), ("ansys", 1, Some("us"))]);
    let first = plain(&mut speculation, 1, &[("matlab", 1)]);
    let second = plain(&mut speculation, 2, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, first) && !holds(&state, second));
    let there = state.job(first).and_then(|row| row.placement.clone()).expect("it is placed");
    let placed = |job| Decision::GangPlaced { job, workers: there.slots.clone() };
    assert_eq!(state.check(&placed(second)), Err(GuardError::LicencesExceeded));
    // A licence of a region takes its job there, and nowhere else.
    let bound = plain(&mut speculation, 3, &[("ansys", 1)]);
    commit(&mut speculation, &mut state);
    let place = |node: &str| {
        let id = state.node_named(&name(node)).expect("it is there");
        let slot = muster_journal::WorkerSlot { node: id, ..there.slots[0] };
        Decision::GangPlaced { job: bound, workers: vec![slot] }
    };
    assert_eq!(state.check(&place("n0")), Err(GuardError::LicencesExceeded));
    assert_eq!(state.check(&place("n1")), Ok(()));
    pass(&mut speculation, &mut state);
    let placement = state.job(bound).and_then(|row| row.placement.clone()).expect("it is placed");
    assert_eq!(placement.region, name("us"));
}

#[test]
fn licences_of_a_region_that_a_job_may_not_use_are_refused() {
    let (mut speculation, _) = founded();
    register(&mut speculation, "n0", "eu", 0);
    register(&mut speculation, "n1", "us", 0);
    set_counts(&mut speculation, 5_000, &[("matlab", 1, Some("eu")), ("ansys", 1, Some("us"))]);
    let within = |licences: &[(&str, u32)], regions: &[&str]| {
        let mut draft = asking("job", 0, licences, PriorityTier::Standard).into_draft();
        draft.regions = regions.iter().map(|region| name(region)).collect();
        draft.check().expect("a job")
    };
    for (n, spec) in [(1, within(&[("ansys", 1)], &["eu"])), (2, within(&[("ansys", 1), ("matlab", 1)], &[]))]
    {
        let refused = submit(&mut speculation, n, spec).expect_err("it would wait for good");
        assert!(refused.violations[0].field.ends_with(".spec.licences"), "{:?}", refused.violations);
    }
    let job = submit(&mut speculation, 3, within(&[("ansys", 1)], &["eu", "us"])).expect("it is taken");
    let order = ModifyOrder {
        request: request(4),
        by: Requester::default(),
        acts_for: None,
        job,
        expected: None,
        changes: vec![FieldChange::Regions(vec![name("eu")])],
    };
    let refused = handle(&mut speculation, &Command::Modify(Box::new(order))).expect_err("it is refused");
    assert_eq!(refused.violations[0].field, "job.spec.licences");
}

#[test]
fn a_job_keeps_licences_from_others_once_its_start_is_near() {
    const HOUR_MS: u64 = 3_600_000;
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    register(&mut speculation, "n1", "eu", 8);
    set_counts(&mut speculation, 5_000, &[("matlab", 4, None)]);
    let mut draft = asking("long", 8, &[], PriorityTier::Standard).into_draft();
    draft.expected_run_ms = Some(20 * HOUR_MS);
    let long = submit(&mut speculation, 1, draft.check().expect("a job")).expect("it is taken");
    let small = plain(&mut speculation, 2, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, long) && holds(&state, small));
    let spec = asking("large", 8, &[("matlab", 4)], PriorityTier::Standard);
    let large = submit(&mut speculation, 3, spec).expect("it is taken");
    pass(&mut speculation, &mut state);
    // Its node is in use for most of a day: others have the licences until then.
    let next = plain(&mut speculation, 4, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, next) && !holds(&state, large));
    // Also where it finds all of them: nothing stands idle for it.
    end(&mut speculation, small);
    end(&mut speculation, next);
    pass(&mut speculation, &mut state);
    let other = plain(&mut speculation, 5, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, other) && !holds(&state, large));
    let next_for = |speculation: &Speculation| {
        let (state, kept) = (speculation.state(), speculation.kept_reservations());
        first_for_licences(state, speculation.now(), kept, [&name("matlab")]).get(&name("matlab")).copied()
    };
    assert_eq!(next_for(&speculation), None, "nothing is kept for it");
    // An hour before its start it keeps what is free.
    let later = speculation.now().plus_ms(19 * HOUR_MS + HOUR_MS / 2);
    speculation.set_now(later);
    pass(&mut speculation, &mut state);
    let last = plain(&mut speculation, 6, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(!holds(&state, last) && !holds(&state, large));
    assert_eq!(next_for(&speculation), Some(large));
    end(&mut speculation, other);
    pass(&mut speculation, &mut state);
    assert!(!holds(&state, last) && !holds(&state, large), "it has yet to get its node");
    end(&mut speculation, long);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, large) && !holds(&state, last));
}

#[test]
fn a_job_with_a_host_to_itself_is_counted_by_the_hosts_of_the_region_of_its_licences() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    register(&mut speculation, "n1", "eu", 0);
    // A host elsewhere is above what the tenant may have.
    let draft = NodeDraft { cpu_milli: 400_000, ..node_draft("n2", "us", "c1", None) };
    let spec = draft.check().expect("a node");
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(&mut speculation, &command).expect("it is taken");
    let limits = TenantLimits { cpu_milli: Some(200_000), ..TenantLimits::default() };
    let research = TenantPolicy { limits, ..TenantPolicy::default() };
    let draft = PolicyDraft {
        resources: vec![CountedResource { name: name("matlab"), count: 2, region: Some(name("eu")) }],
        tenants: [(name("research"), research)].into(),
        ..PolicyDraft::default()
    };
    let command = Command::SetPolicy {
        request: request(5_000),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &command).expect("it is taken");
    let holder = plain(&mut speculation, 1, &[("matlab", 2)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, holder));
    let mut draft = asking("whole", 0, &[("matlab", 2)], PriorityTier::Standard).into_draft();
    draft.groups[0].request.exclusive = true;
    let whole = submit(&mut speculation, 2, draft.check().expect("a job")).expect("it is taken");
    pass(&mut speculation, &mut state);
    let mut draft = asking("other", 0, &[("matlab", 1)], PriorityTier::Standard).into_draft();
    draft.tenant = name("vision");
    let other = submit(&mut speculation, 3, draft.check().expect("a job")).expect("it is taken");
    // It keeps its place before the other, pass after pass.
    for _ in 0..2 {
        pass(&mut speculation, &mut state);
        let kept = speculation.kept_reservations();
        let next = first_for_licences(&state, state.log_time(), kept, [&name("matlab")]);
        assert_eq!(next.get(&name("matlab")), Some(&whole));
        let explained = explain_job(&state, state.log_time(), whole, kept).expect("it waits");
        assert_eq!(explained.reason, WaitReason::Licence, "{}", explained.sentence);
    }
    end(&mut speculation, holder);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, whole) && !holds(&state, other));
}

#[test]
fn a_job_is_refused_whose_licences_are_for_a_region_without_its_accelerators() {
    let (mut speculation, _) = founded();
    register(&mut speculation, "n0", "eu", 8);
    register(&mut speculation, "n1", "us", 0);
    let counts = [("matlab", 1, Some("eu")), ("ansys", 1, Some("us")), ("nastran", 1, Some("nowhere"))];
    set_counts(&mut speculation, 5_000, &counts);
    let h100 = |licence: &str| asking("job", 1, &[(licence, 1)], PriorityTier::Standard);
    submit(&mut speculation, 1, h100("matlab")).expect("they are in one region");
    let refused = submit(&mut speculation, 2, h100("ansys")).expect_err("it would wait for good");
    assert_eq!(refused.code, RefusalCode::NeverFits);
    assert!(refused.message.contains("its licences are for region us"), "{}", refused.message);
    let plain = asking("job", 0, &[("ansys", 1)], PriorityTier::Standard);
    submit(&mut speculation, 3, plain).expect("it needs no accelerators");
    // A region that has no nodes at all is one that the policy names: they are to come.
    submit(&mut speculation, 4, h100("nastran")).expect("it waits for the first node there");
}

/// A policy under which `team` is below `lab`, and `lab` has these limits.
fn limited(speculation: &mut Speculation, n: u128, cpus: Option<u64>, memory_gib: Option<u64>) {
    let limits = TenantLimits {
        cpu_milli: cpus.map(|cpus| cpus * 1_000),
        memory_bytes: memory_gib.map(|gib| gib * GIB),
        ..TenantLimits::default()
    };
    let lab = TenantPolicy { limits, ..TenantPolicy::default() };
    let team = TenantPolicy { parent: Some(name("lab")), ..TenantPolicy::default() };
    let tenants = [(name("lab"), lab), (name("team"), team)].into();
    let mut draft = PolicyDraft { tenants, ..PolicyDraft::default() };
    draft.preemption.minimum_run_ms = 0;
    let command = Command::SetPolicy {
        request: request(n),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(speculation, &command).expect("it is taken");
}

/// A job of that many workers, each of which takes one CPU and one GiB.
fn of_tenant(speculation: &mut Speculation, n: u128, tenant: &str, (fewest, workers): (u32, u32)) -> JobId {
    let mut group = group("main", workers, None);
    group.workers_min = fewest;
    let mut draft = job_draft(&format!("j{n}"), vec![group]);
    draft.tenant = name(tenant);
    submit(speculation, n, draft.check().expect("a job")).expect("it is taken")
}

/// Thousandths of CPUs that all tenants but `other` are charged for, from the rows alone.
fn cpus_in_use(state: &State) -> u64 {
    let charged = state.jobs().iter().filter_map(|(id, row)| {
        let is_limited = state.spec(*id).is_some_and(|spec| spec.tenant != name("other"));
        row.charge().filter(|_| is_limited).map(|(_, charge)| charge.cpu_milli)
    });
    charged.sum()
}

#[test]
fn a_tenant_and_those_below_it_have_no_more_cpus_and_memory_than_their_limit() {
    for limits in [(Some(4), None), (None, Some(4))] {
        let (mut speculation, mut state) = founded();
        register(&mut speculation, "n0", "eu", 0);
        limited(&mut speculation, 5_000, limits.0, limits.1);
        let first = of_tenant(&mut speculation, 1, "team", (3, 3));
        pass(&mut speculation, &mut state);
        let second = of_tenant(&mut speculation, 2, "lab", (2, 2));
        let other = of_tenant(&mut speculation, 3, "other", (8, 8));
        pass(&mut speculation, &mut state);
        assert!(holds(&state, first) && holds(&state, other) && !holds(&state, second));
        let said = explain_job(&state, state.log_time(), second, speculation.kept_reservations()).unwrap();
        assert_eq!(said.reason, WaitReason::TenantLimit, "{said}");
        assert!(said.sentence.starts_with("tenant lab and those below it hold 3"), "{said}");
        // What is left is kept for the first that found too little.
        let third = of_tenant(&mut speculation, 4, "team", (1, 1));
        pass(&mut speculation, &mut state);
        assert!(!holds(&state, third));
        // The guard counts for itself.
        let slots =
            state.job(other).and_then(|row| row.placement.clone()).expect("it is placed").slots.clone();
        let placed = Decision::GangPlaced { job: second, workers: slots[..2].to_vec() };
        assert_eq!(state.check(&placed), Err(GuardError::HostLimitExceeded));
        let placed = Decision::GangPlaced { job: third, workers: slots[..1].to_vec() };
        assert_eq!(state.check(&placed), Ok(()));
        // A limit that is raised lets both start.
        limited(&mut speculation, 5_001, limits.0.map(|most| most + 2), limits.1.map(|most| most + 2));
        pass(&mut speculation, &mut state);
        assert!(holds(&state, second) && holds(&state, third));
        assert_eq!(cpus_in_use(&state), 6_000);
    }
}

#[test]
fn an_elastic_gang_starts_as_large_as_limits_allow() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    limited(&mut speculation, 5_000, Some(5), None);
    let first = of_tenant(&mut speculation, 1, "lab", (2, 2));
    pass(&mut speculation, &mut state);
    let elastic = of_tenant(&mut speculation, 2, "lab", (2, 8));
    pass(&mut speculation, &mut state);
    assert!(holds(&state, first));
    let placement = state.job(elastic).and_then(|row| row.placement.clone()).expect("it is placed");
    assert_eq!(placement.slots.len(), 3);
    assert_eq!(cpus_in_use(&state), 5_000);
    let next = of_tenant(&mut speculation, 3, "lab", (1, 1));
    pass(&mut speculation, &mut state);
    assert!(!holds(&state, next));
}

#[test]
fn an_elastic_gang_takes_nothing_of_what_is_kept_for_another() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    limited(&mut speculation, 5_000, Some(8), None);
    let first = of_tenant(&mut speculation, 1, "lab", (2, 2));
    let second = of_tenant(&mut speculation, 2, "lab", (2, 2));
    let third = of_tenant(&mut speculation, 3, "lab", (3, 3));
    pass(&mut speculation, &mut state);
    assert!(holds(&state, first) && holds(&state, second) && holds(&state, third));
    let waits = of_tenant(&mut speculation, 4, "lab", (4, 4));
    pass(&mut speculation, &mut state);
    // Five are free then, of which four are kept: one worker is left for it, and not five.
    end_all(&mut speculation, first);
    end_all(&mut speculation, second);
    let elastic = of_tenant(&mut speculation, 5, "lab", (1, 5));
    pass(&mut speculation, &mut state);
    assert!(holds(&state, waits));
    let placement = state.job(elastic).and_then(|row| row.placement.clone()).expect("it is placed");
    assert_eq!(placement.slots.len(), 1);
    assert_eq!(cpus_in_use(&state), 8_000);
}

#[test]
fn limits_on_cpus_hold_whatever_is_asked() {
    let mut reached = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let (mut speculation, mut state) = founded();
        register(&mut speculation, "n0", "eu", 0);
        let mut most = 12;
        limited(&mut speculation, 5_000, Some(most), None);
        commit(&mut speculation, &mut state);
        for step in 0..STEPS {
            let before = cpus_in_use(&state);
            match random.below(10) {
                0..4 => {
                    let workers = 1 + random.below(6) as u32;
                    let fewest =
                        if random.once_in(2) { workers } else { 1 + random.below(workers.into()) as u32 };
                    let mut group = group("main", workers, None);
                    group.workers_min = fewest;
                    let mut draft = job_draft("job", vec![group]);
                    draft.tenant = name(["lab", "team", "other"][random.below(3) as usize]);
                    draft.tier = PriorityTier::ALL[random.below(4) as usize];
                    draft.checkpoint_directory = random.once_in(2).then(|| "/checkpoints".to_owned());
                    submit(&mut speculation, u128::from(step) + 10, draft.check().unwrap())
                        .expect("it is taken");
                }
                4..7 => {
                    let active: Vec<JobId> = state.active().collect();
                    random.pick(&active).inspect(|job| end_all(&mut speculation, *job));
                }
                7 => {
                    most = random.below(20);
                    limited(&mut speculation, 6_000 + u128::from(step), Some(most), None);
                }
                _ => _ = schedule(&mut speculation, &mut Budget::new(100_000)),
            }
            commit(&mut speculation, &mut state);
            let after = cpus_in_use(&state);
            assert!(after <= (most * 1_000).max(before), "seed {seed}, step {step}: {after} of {most} CPUs");
            reached += u64::from(after == most * 1_000);
        }
    }
    assert!(reached > SEEDS, "the limit was reached {reached} times");
}

/// All workers of a job that are not over end.
fn end_all(speculation: &mut Speculation, job: JobId) {
    let Some(row) = speculation.state().job(job).cloned() else { return };
    let Some(placement) = row.placement.filter(|placement| placement.live > 0) else { return };
    let exit = match row.phase {
        Phase::Stopping(_) => ExitStatus::Signal(15),
        _ => ExitStatus::Code(0),
    };
    let token = placement.token;
    for update in [RankUpdate::Running, RankUpdate::Exited(exit)] {
        let concerns = |state: &RankState| match update {
            RankUpdate::Running => *state == RankState::Assigned,
            RankUpdate::Exited(_) | RankUpdate::Ready => !state.is_over(),
        };
        let ranks = placement.ranks.iter().enumerate().filter(|(_, state)| concerns(state));
        let updates: Vec<(u32, RankUpdate)> = ranks.map(|(rank, _)| (rank as u32, update.clone())).collect();
        if updates.is_empty() {
            continue;
        }
        let slot = &placement.slots[0];
        let report = Command::Report { node: slot.node, incarnation: slot.incarnation, job, token, updates };
        handle(speculation, &report).expect("it is taken");
    }
}

#[test]
fn a_count_that_is_lowered_stops_nobody() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    set_counts(&mut speculation, 5_000, &[("matlab", 3, None)]);
    let jobs: Vec<JobId> = (1..=3).map(|n| plain(&mut speculation, n, &[("matlab", 1)])).collect();
    pass(&mut speculation, &mut state);
    set_counts(&mut speculation, 5_001, &[("matlab", 1, None)]);
    let next = plain(&mut speculation, 4, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(jobs.iter().all(|job| holds(&state, *job)) && !holds(&state, next));
    assert_eq!((state.licences_held(&name("matlab")), state.licences_free(&name("matlab"))), (3, 0));
    for job in &jobs[..2] {
        end(&mut speculation, *job);
        pass(&mut speculation, &mut state);
        assert!(!holds(&state, next));
    }
    end(&mut speculation, jobs[2]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, next));
}

#[test]
fn what_is_not_counted_is_refused_and_what_waits_is_explained() {
    let (mut speculation, mut state) = founded();
    register(&mut speculation, "n0", "eu", 0);
    set_counts(&mut speculation, 5_000, &[("matlab", 2, None)]);
    for (n, licences) in [(90, ("ansys", 1)), (91, ("matlab", 3))] {
        let spec = asking("job", 0, &[licences], PriorityTier::Standard);
        let refused = submit(&mut speculation, n, spec).expect_err("it is refused");
        assert_eq!(refused.code, RefusalCode::InvalidField);
        let field = format!(".spec.licences.{}", licences.0);
        assert!(refused.violations[0].field.ends_with(&field), "{:?}", refused.violations);
    }
    let first = plain(&mut speculation, 1, &[("matlab", 2)]);
    pass(&mut speculation, &mut state);
    let second = plain(&mut speculation, 2, &[("matlab", 1)]);
    pass(&mut speculation, &mut state);
    assert!(holds(&state, first) && !holds(&state, second));
    let said = explain_job(&state, state.log_time(), second, speculation.kept_reservations()).unwrap();
    assert_eq!(said.reason, WaitReason::Licence, "{said}");
    assert!(said.sentence.contains("2 of 2 are in use, 2 of them by tenant research"), "{said}");
    assert!(said.sentence.contains("it is the first in the queue that asks for it"), "{said}");
    assert_eq!(said.start, None);
    let kept = speculation.kept_reservations();
    let next = first_for_licences(&state, state.log_time(), kept, [&name("matlab")]);
    assert_eq!(next.get(&name("matlab")), Some(&second));
    let by_tenant: Vec<(Name, u64)> =
        state.licences_by_tenant(&name("matlab")).map(|(tenant, held)| (tenant.clone(), held)).collect();
    assert_eq!(by_tenant, [(name("research"), 2)]);
}
