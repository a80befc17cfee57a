//! Where jobs lie with respect to each other: what holds for each start at the moment of its decision, whatever happens, and what a
//! submission is refused for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_decider::{
    Answer, Command, DrainOrder, Pass, Speculation, explain_briefly, handle, schedule, tick,
};
use muster_journal::{Decision, RankUpdate, Round, WorkerSlot};
use muster_planner::{Budget, WaitReason};
use muster_state::{JobRow, Phase, State};
use muster_types::policy::{PolicyDraft, Quota, TenantPolicy};
use muster_types::{
    Affinity, AffinityLevel, AffinityRule, AffinityTarget, ExitStatus, JobContract, JobId, JobMetadata,
    JobSpec, LabelSelector, Level, LogTime, NodeId, PriorityTier, Refusal, Requester, Spread, Submission,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, commit, founded_as, group, holder, job_draft, name, node_draft, request,
    with_all_rights,
};

const LEVELS: [AffinityLevel; 5] = [
    AffinityLevel::Region,
    AffinityLevel::Cluster,
    AffinityLevel::Block,
    AffinityLevel::Rack,
    AffinityLevel::Host,
];

/// `video` is below `vision`, and `speech` is not.
fn fleet() -> (Speculation, State) {
    let (mut speculation, mut replica) = founded_as(BOOTSTRAP);
    let mut draft = PolicyDraft::default();
    draft.preemption.minimum_run_ms = 0;
    for tenant in ["vision", "video", "speech"] {
        let parent = (tenant == "video").then(|| name("vision"));
        draft.tenants.insert(name(tenant), TenantPolicy { parent, ..TenantPolicy::default() });
    }
    let command = Command::SetPolicy {
        request: request(1 << 100),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &command).expect("it is taken");
    for text in ["n1", "n2", "n3", "n4", "n5", "n6"] {
        register(&mut speculation, text);
    }
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

/// Two racks of two hosts, one host in another cluster, and one in another region.
fn register(speculation: &mut Speculation, text: &str) {
    let (region, cluster, rack) = match text {
        "n1" | "n2" => ("eu", "c1", "r1"),
        "n3" | "n4" => ("eu", "c1", "r2"),
        "n5" => ("eu", "c2", "r1"),
        _ => ("us", "c1", "r1"),
    };
    let mut draft = node_draft(text, region, cluster, Some(accelerators("h100", 4)));
    draft.rack = name(rack);
    let spec = draft.check().expect("a node");
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(speculation, &command).expect("it is taken");
}

fn labelled(app: Option<&str>) -> Option<Arc<JobMetadata>> {
    let labels = app.map(|app| ("app".to_owned(), app.to_owned())).into_iter().collect();
    let metadata = JobMetadata { labels, ..JobMetadata::default() };
    (!metadata.is_default()).then(|| Arc::new(metadata))
}

fn submission(tenant: &str, app: Option<&str>, affinity: Vec<Affinity>) -> Submission {
    let mut draft = job_draft("work", vec![group("main", 1, Some(accelerators("h100", 1)))]);
    draft.tenant = name(tenant);
    draft.affinity = affinity;
    let spec = draft.check().expect("a job");
    Submission { metadata: labelled(app), ..Submission::new(spec, JobContract::default()) }
}

fn submit(speculation: &mut Speculation, n: u128, jobs: Vec<Submission>) -> Result<Vec<JobId>, Refusal> {
    match handle(speculation, &Command::submit(request(n), jobs.into()))? {
        Answer::Submitted { jobs, .. } => Ok(jobs),
        other => panic!("{other:?}"),
    }
}

fn to(target: AffinityTarget, rule: AffinityRule) -> Affinity {
    Affinity { target, level: AffinityLevel::Host, rule, weight: None }
}

fn app(text: &str) -> AffinityTarget {
    AffinityTarget::Labels(format!("app={text}"))
}

/// The nodes of a job's workers.
fn nodes_of(state: &State, job: JobId) -> BTreeSet<NodeId> {
    let placement = state.job(job).and_then(|row| row.placement.clone());
    placement.into_iter().flat_map(|placement| placement.slots.clone()).map(|slot| slot.node).collect()
}

fn pass(speculation: &mut Speculation) {
    schedule(speculation, &mut Budget::new(1_000_000));
}

#[test]
fn jobs_of_other_tenants_are_not_found_and_not_gone_to() {
    let (mut speculation, _) = fleet();
    let theirs = submit(&mut speculation, 1, vec![submission("speech", Some("cache"), Vec::new())]).unwrap();
    let below = submit(&mut speculation, 2, vec![submission("video", Some("cache"), Vec::new())]).unwrap();
    pass(&mut speculation);
    let together = |target| vec![to(target, AffinityRule::Together)];
    let refused = submit(
        &mut speculation,
        3,
        vec![submission("vision", None, together(AffinityTarget::Job(theirs[0])))],
    );
    let refused = refused.unwrap_err();
    assert_eq!(refused.violations[0].field, "jobs[0].spec.affinity[0]");
    assert!(refused.violations[0].description.starts_with("there is no "), "{refused:?}");
    let unknown = submit(
        &mut speculation,
        4,
        vec![submission("vision", None, together(AffinityTarget::Job(JobId(1))))],
    );
    let shown =
        |job: JobId, refusal: &Refusal| refusal.violations[0].description.replace(&job.to_string(), "");
    assert_eq!(
        shown(theirs[0], &refused),
        shown(JobId(1), &unknown.unwrap_err()),
        "one cannot tell them apart"
    );
    // What is above it is as little its business.
    let above = together(AffinityTarget::Job(below[0]));
    assert!(submit(&mut speculation, 5, vec![submission("speech", None, above)]).is_err());
    // Nobody else's cache is gone to.
    let lonely = submit(&mut speculation, 6, vec![submission("vision", None, together(app("web")))]).unwrap();
    let near = submit(&mut speculation, 7, vec![submission("vision", None, together(app("cache")))]).unwrap();
    pass(&mut speculation);
    let state = speculation.state();
    assert_eq!(nodes_of(state, near[0]), nodes_of(state, below[0]));
    let reservations = speculation.kept_reservations();
    let (reason, text) =
        explain_briefly(state, speculation.now(), lonely[0], reservations).expect("it waits");
    assert_eq!(reason, WaitReason::Affinity, "{text}");
    assert_eq!(nodes_of(state, lonely[0]), BTreeSet::new());
}

#[test]
fn a_round_looks_at_the_many_others_of_few_jobs() {
    let (mut speculation, _) = fleet();
    let running = (0..20).map(|_| submission("vision", Some("web"), Vec::new())).collect();
    submit(&mut speculation, 1, running).unwrap();
    pass(&mut speculation);
    // Each looks at twenty jobs for each of five entries.
    let near = |level| Affinity { level, weight: Some(1), ..to(app("web"), AffinityRule::Together) };
    let entries: Vec<Affinity> = LEVELS.into_iter().map(near).collect();
    let others = (0..3).map(|_| submission("vision", None, entries.clone())).collect();
    let ids = submit(&mut speculation, 2, others).unwrap();
    check_that_each_takes_a_round(&mut speculation, &ids);
}

#[test]
fn a_round_looks_at_the_many_jobs_that_keep_few_jobs_away() {
    let (mut speculation, _) = fleet();
    // Eight kinds of entries, and all are about the others: who is not meant by a kind does not look at its jobs.
    let away = |n: u32| {
        let target = AffinityTarget::Labels(format!("app in (batch, other-{n})"));
        to(target, AffinityRule::Apart)
    };
    let entries: Vec<Affinity> = (0..8).map(away).collect();
    let in_eu = |_| {
        let mut submission = submission("vision", Some("web"), entries.clone());
        let mut draft = submission.spec.clone().into_draft();
        draft.regions = vec![name("eu")];
        submission.spec = draft.check().expect("a job");
        submission
    };
    submit(&mut speculation, 1, (0..20).map(in_eu).collect()).unwrap();
    pass(&mut speculation);
    // They are below its tenant, ask for nothing, and have one host left.
    let others = (0..3).map(|_| submission("video", Some("batch"), Vec::new())).collect();
    let ids = submit(&mut speculation, 2, others).unwrap();
    check_that_each_takes_a_round(&mut speculation, &ids);
}

/// What a pass spends on this many jobs that have to be apart from what is on every host of their region.
fn spent_on_kept_away(count: usize) -> u64 {
    let (mut speculation, mut replica) = fleet();
    let in_eu = |app: Option<&str>, devices, affinity| {
        let mut submission = submission("vision", app, affinity);
        let mut draft = submission.spec.clone().into_draft();
        draft.groups[0].request.accelerators = Some(accelerators("h100", devices).into());
        draft.regions = vec![name("eu")];
        submission.spec = draft.check().expect("a job");
        submission
    };
    let apart = || in_eu(None, 3, vec![to(app("web"), AffinityRule::Apart)]);
    submit(&mut speculation, 1, (0..5).map(|_| apart()).collect()).unwrap();
    pass(&mut speculation);
    commit(&mut speculation, &mut replica);
    assert_eq!(speculation.state().active_count(), 5, "one on each host");
    let kept = (0..count).map(|_| in_eu(Some("web"), 1, Vec::new())).collect();
    let kept = submit(&mut speculation, 2, kept).unwrap();
    commit(&mut speculation, &mut replica);
    let mut budget = Budget::new(1_000_000);
    schedule(&mut speculation, &mut budget);
    assert!(kept.iter().all(|job| nodes_of(speculation.state(), *job).is_empty()));
    // Once the others are over, all of them start.
    for job in speculation.state().active().collect::<Vec<_>>() {
        let on = *nodes_of(speculation.state(), job).first().expect("it has a worker");
        report(&mut speculation, job, on, RankUpdate::Running);
        report(&mut speculation, job, on, RankUpdate::Exited(ExitStatus::Code(0)));
    }
    commit(&mut speculation, &mut replica);
    pass(&mut speculation);
    let placed = kept.iter().filter(|job| !nodes_of(speculation.state(), **job).is_empty()).count();
    assert_eq!(placed, count.min(20));
    1_000_000 - budget.left()
}

#[test]
fn a_place_is_looked_for_once_for_jobs_that_are_alike_and_kept_away() {
    let (one, many) = (spent_on_kept_away(1), spent_on_kept_away(41));
    // To look at what keeps it away takes each of them eight times six looks, and a plan more.
    assert!(many < one + 40 * 24, "{one} for one, {many} for all");
}

#[test]
fn a_round_looks_at_the_many_workers_that_few_jobs_go_to() {
    let (mut speculation, _) = fleet();
    let mut large = job_draft("large", vec![group("main", 240, None)]);
    large.tenant = name("vision");
    let large = Submission::new(large.check().expect("a job"), JobContract::default());
    submit(&mut speculation, 1, vec![Submission { metadata: labelled(Some("web")), ..large }]).unwrap();
    pass(&mut speculation);
    let near = |level| Affinity { level, weight: Some(1), ..to(app("web"), AffinityRule::Together) };
    let away = |level| Affinity { level, weight: Some(1), ..to(app("web"), AffinityRule::Apart) };
    let entries: Vec<Affinity> =
        LEVELS.into_iter().map(near).chain(LEVELS.into_iter().take(3).map(away)).collect();
    let others = (0..3).map(|_| submission("vision", None, entries.clone())).collect();
    let ids = submit(&mut speculation, 2, others).unwrap();
    check_that_each_takes_a_round(&mut speculation, &ids);
}

/// What a pass spends on a job with these entries, for which another one is stopped.
fn spent_on(entries: Vec<Affinity>) -> u64 {
    let (mut speculation, mut replica) = fleet();
    let low = |devices| {
        let mut draft = job_draft("low", vec![group("main", 1, devices)]);
        (draft.tenant, draft.tier) = (name("vision"), PriorityTier::Free);
        let job = Submission::new(draft.check().expect("a job"), JobContract::default());
        Submission { metadata: labelled(Some("web")), ..job }
    };
    let with_device = (0..24).map(|_| low(Some(accelerators("h100", 1))));
    let without = (0..WITHOUT_DEVICES).map(|_| low(None));
    // Those without a device would fill hosts whose devices the others need.
    let mut running = Vec::new();
    for (request, jobs) in [(1, with_device.collect::<Vec<_>>()), (3, without.collect())] {
        let (of_request, mut placed) = (submit(&mut speculation, request, jobs).unwrap(), 0);
        commit(&mut speculation, &mut replica);
        // A round has no place for all of them.
        for _ in 0..50 {
            let (Pass::Complete { placed: now } | Pass::Interrupted { placed: now }) =
                schedule(&mut speculation, &mut Budget::new(1_000_000));
            commit(&mut speculation, &mut replica);
            placed += now as usize;
            if placed == of_request.len() {
                break;
            }
        }
        running.extend(of_request);
    }
    for job in running {
        let placement = replica.job(job).and_then(|row| row.placement.clone()).expect("it is placed");
        let (node, incarnation) = (placement.slots[0].node, placement.slots[0].incarnation);
        let updates = vec![(0, RankUpdate::Running)];
        let report = Command::Report { node, incarnation, job, token: placement.token, updates };
        handle(&mut speculation, &report).expect("it is taken");
    }
    commit(&mut speculation, &mut replica);
    let mut claimant = submission("vision", None, entries);
    let mut draft = claimant.spec.into_draft();
    draft.tier = PriorityTier::Production;
    claimant.spec = draft.check().expect("a job");
    submit(&mut speculation, 2, vec![claimant]).unwrap();
    let mut budget = Budget::new(1_000_000);
    schedule(&mut speculation, &mut budget);
    let state = speculation.state();
    let is_stopping = |job: &JobId| matches!(state.job(*job).expect("a job").phase, Phase::Stopping(_));
    assert_eq!(state.active().filter(is_stopping).count(), 1);
    1_000_000 - budget.left()
}

/// Jobs that are looked at, and that nobody would stop for a device.
const WITHOUT_DEVICES: u64 = 300;

#[test]
fn each_look_at_other_jobs_in_a_search_for_gangs_to_stop_is_paid_for() {
    let near = |level| Affinity { level, weight: Some(1), ..to(app("web"), AffinityRule::Together) };
    let entries: Vec<Affinity> = LEVELS.into_iter().map(near).collect();
    let others = 24 + WITHOUT_DEVICES;
    let look = LEVELS.len() as u64 * (others + others / 16);
    let (with, without) = (spent_on(entries), spent_on(Vec::new()));
    // Eight are paid for at the beginning of its turn. Two more: for the search, and for the place that it frees, where one runs less.
    assert!(
        with >= without + 9 * look + look / 2,
        "{with} with entries, {without} without, {look} for each look"
    );
}

/// Jobs of which each needs more than half of a budget to look at others: no round has two of them, and each has its turn.
fn check_that_each_takes_a_round(speculation: &mut Speculation, ids: &[JobId]) {
    let mut placed = Vec::new();
    for _ in 0..20 {
        let (Pass::Complete { placed: now } | Pass::Interrupted { placed: now }) =
            schedule(speculation, &mut Budget::new(1_500));
        placed.push(now);
        if placed.iter().sum::<u32>() == 3 {
            break;
        }
    }
    assert!(placed.iter().all(|now| *now <= 1), "no round looks for two of them: {placed:?}");
    assert!(ids.iter().all(|job| !nodes_of(speculation.state(), *job).is_empty()), "{placed:?}");
}

#[test]
fn a_job_of_the_request_is_named_by_its_name() {
    let (mut speculation, _) = fleet();
    let named = |text: &str| to(AffinityTarget::Named(name(text)), AffinityRule::Together);
    let job = |text: &str, affinity: Vec<Affinity>| {
        let mut submission = submission("vision", None, Vec::new());
        let mut draft = submission.spec.clone().into_draft();
        (draft.name, draft.affinity) = (name(text), affinity);
        submission.spec = draft.check().expect("a job");
        submission
    };
    let jobs = vec![job("cache", Vec::new()), job("reader", vec![named("cache")])];
    let ids = submit(&mut speculation, 1, jobs).unwrap();
    let target =
        |speculation: &Speculation| speculation.state().spec(ids[1]).unwrap().affinity[0].target.clone();
    assert_eq!(target(&speculation), AffinityTarget::Job(ids[0]));
    pass(&mut speculation);
    assert_eq!(nodes_of(speculation.state(), ids[0]), nodes_of(speculation.state(), ids[1]));
    for (jobs, text) in [
        (vec![job("a", vec![named("a")])], "a job cannot be with itself"),
        (vec![job("a", vec![named("b")])], "no job of this request"),
        (vec![job("a", vec![named("b")]), job("b", Vec::new())], "b has to stand before"),
        (vec![job("b", Vec::new()), job("b", Vec::new()), job("a", vec![named("b")])], "several jobs"),
    ] {
        let refused = submit(&mut speculation, 2, jobs).unwrap_err();
        assert!(refused.violations[0].description.starts_with(text), "{refused:?}");
    }
}

#[test]
fn a_job_that_is_kept_away_holds_up_none_with_other_labels() {
    let (mut speculation, _) = fleet();
    let apart = Affinity { level: AffinityLevel::Region, ..to(app("web"), AffinityRule::Apart) };
    let mut alone = submission("vision", None, vec![apart]);
    let mut draft = alone.spec.clone().into_draft();
    draft.groups[0].workers = 1;
    draft.regions = vec![name("eu")];
    alone.spec = draft.check().unwrap();
    let alone = submit(&mut speculation, 1, vec![alone]).unwrap();
    pass(&mut speculation);
    let in_eu = |app: Option<&str>| {
        let mut submission = submission("vision", app, Vec::new());
        let mut draft = submission.spec.clone().into_draft();
        draft.regions = vec![name("eu")];
        submission.spec = draft.check().unwrap();
        submission
    };
    let kept = submit(&mut speculation, 2, vec![in_eu(Some("web"))]).unwrap();
    let behind = submit(&mut speculation, 3, vec![in_eu(None)]).unwrap();
    pass(&mut speculation);
    let state = speculation.state();
    assert!(!nodes_of(state, alone[0]).is_empty() && !nodes_of(state, behind[0]).is_empty());
    assert!(nodes_of(state, kept[0]).is_empty());
    let reservations = speculation.kept_reservations();
    let (reason, text) = explain_briefly(state, speculation.now(), kept[0], reservations).expect("it waits");
    assert_eq!(reason, WaitReason::Affinity, "{text}");
}

/// What a job's worker on a node says.
fn report(speculation: &mut Speculation, job: JobId, on: NodeId, update: RankUpdate) {
    let placement = speculation.state().job(job).and_then(|row| row.placement.clone()).expect("it is placed");
    let rank = placement.slots.iter().position(|slot| slot.node == on).expect("it has a worker there");
    let report = Command::Report {
        node: on,
        incarnation: placement.slots[rank].incarnation,
        job,
        token: placement.token,
        updates: vec![(rank as u32, update)],
    };
    handle(speculation, &report).expect("its node is there");
}

#[test]
fn a_promise_waits_until_those_have_left_that_it_has_to_be_apart_from() {
    let (mut speculation, mut replica) = founded_as(BOOTSTRAP);
    let mut draft = PolicyDraft::default();
    draft.preemption.minimum_run_ms = 0;
    let quota = Quota {
        kind: name("h100"),
        region: None,
        nominal_milli: 8_000,
        borrowing_limit_milli: Some(0),
        lending_limit_milli: Some(0),
    };
    let vision = TenantPolicy { quotas: vec![quota], ..TenantPolicy::default() };
    draft.tenants.insert(name("vision"), vision);
    let command = Command::SetPolicy {
        request: request(1 << 100),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &command).expect("it is taken");
    // Both hosts of a rack.
    register(&mut speculation, "n1");
    register(&mut speculation, "n2");
    let hosts = |workers: u32, tier: PriorityTier, app: Option<&str>, affinity| {
        let mut submission = submission("vision", app, affinity);
        let mut draft = submission.spec.clone().into_draft();
        draft.groups = vec![group("main", workers, Some(accelerators("h100", 4)))];
        draft.tier = tier;
        submission.spec = draft.check().unwrap();
        submission
    };
    let low = hosts(2, PriorityTier::Free, Some("web"), Vec::new());
    let low = submit(&mut speculation, 1, vec![low]).unwrap()[0];
    pass(&mut speculation);
    for node in nodes_of(speculation.state(), low) {
        report(&mut speculation, low, node, RankUpdate::Running);
    }
    let apart = Affinity { level: AffinityLevel::Rack, ..to(app("web"), AffinityRule::Apart) };
    let high = hosts(1, PriorityTier::Critical, None, vec![apart]);
    let high = submit(&mut speculation, 2, vec![high]).unwrap()[0];
    // The quota of the tenant is in use: that is what the other one is stopped for.
    pass(&mut speculation);
    let promised = |speculation: &Speculation| {
        let promise = speculation.state().job(high).and_then(|row| row.promise.clone());
        promise.map(|promise| promise.slots[0].node)
    };
    assert!(matches!(speculation.state().job(low).unwrap().phase, Phase::Stopping(_)));
    let own = promised(&speculation).expect("the place is kept for it meanwhile");
    // The rest of the other one leaves the rack where nothing is promised.
    report(&mut speculation, low, own, RankUpdate::Exited(ExitStatus::Signal(15)));
    pass(&mut speculation);
    assert_eq!(promised(&speculation), Some(own));
    let rest = nodes_of(speculation.state(), low).into_iter().find(|node| *node != own).unwrap();
    report(&mut speculation, low, rest, RankUpdate::Exited(ExitStatus::Signal(15)));
    pass(&mut speculation);
    assert_eq!(nodes_of(speculation.state(), high), BTreeSet::from([own]));
    commit(&mut speculation, &mut replica);
}

#[test]
fn a_job_that_waits_for_one_that_never_ran_is_told_that_it_waits_in_vain() {
    let (mut speculation, _) = fleet();
    let cache = submit(&mut speculation, 1, vec![submission("vision", None, Vec::new())]).unwrap()[0];
    let near = vec![to(AffinityTarget::Job(cache), AffinityRule::Together)];
    let reader = submit(&mut speculation, 2, vec![submission("vision", None, near)]).unwrap()[0];
    let why = |speculation: &Speculation| {
        let known = {
            let (state, reservations) = (speculation.state(), speculation.kept_reservations());
            explain_briefly(state, speculation.now(), reader, reservations)
        };
        known.map(|(_, text)| text).expect("it waits")
    };
    assert!(why(&speculation).ends_with("it starts once that runs"), "{}", why(&speculation));
    handle(&mut speculation, &Command::cancel(request(3), cache)).expect("it is taken");
    pass(&mut speculation);
    let text = why(&speculation);
    assert!(text.ends_with("cancel the job, and submit it without that entry"), "{text}");
}

/// The first workers of all gangs that hold devices say that they run.
fn run_all(speculation: &mut Speculation) {
    for job in speculation.state().active().collect::<Vec<_>>() {
        let placement = speculation.state().job(job).unwrap().placement.clone().unwrap();
        let slot = placement.slots[0];
        let updates = vec![(0, RankUpdate::Running)];
        let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
        handle(speculation, &Command::Report { node, incarnation, job, token, updates }).unwrap();
    }
}

#[test]
fn nobody_is_stopped_for_two_jobs_of_which_one_can_start() {
    let (mut speculation, _) = fleet();
    // One host, with two devices for each.
    let in_us = |tier, app: Option<&str>, affinity| {
        let mut submission = submission("vision", app, affinity);
        let mut draft = submission.spec.clone().into_draft();
        draft.groups[0].request.accelerators = Some(accelerators("h100", 2).into());
        (draft.tier, draft.regions) = (tier, vec![name("us")]);
        submission.spec = draft.check().unwrap();
        submission
    };
    let low = (0..2).map(|_| in_us(PriorityTier::Free, None, Vec::new())).collect();
    submit(&mut speculation, 1, low).unwrap();
    pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), 2);
    run_all(&mut speculation);
    let replica = || in_us(PriorityTier::Standard, Some("web"), vec![to(app("web"), AffinityRule::Apart)]);
    let replicas = submit(&mut speculation, 2, vec![replica(), replica()]).unwrap();
    pass(&mut speculation);
    pass(&mut speculation);
    let state = speculation.state();
    let promised = replicas.iter().filter(|job| state.job(**job).is_some_and(|row| row.promise.is_some()));
    assert_eq!(promised.count(), 1);
    assert_eq!(state.stopping().count(), 1, "only one of them can be there");
    assert_eq!(state.verify(), Ok(()));
}

#[test]
fn a_gang_that_keeps_another_away_stops_for_it_where_it_could_stop_anyway() {
    // One of its tier stays, and so does one whose minimum run is not over.
    let cases =
        [(PriorityTier::Free, 0, true), (PriorityTier::Standard, 0, false), (PriorityTier::Free, 1, false)];
    for (tier, minimum_run_ms, stops) in cases {
        let (mut speculation, _) = fleet();
        let mut draft = speculation.state().policy().policy.as_ref().clone().into_draft();
        draft.preemption.minimum_run_ms = minimum_run_ms;
        let command = Command::SetPolicy {
            request: request(1 << 101),
            by: Requester::default(),
            policy: Box::new(draft.check().expect("a policy")),
            expected_version: None,
        };
        handle(&mut speculation, &command).expect("it is taken");
        // One host, of which each takes a device: only that it has to be apart keeps the other away.
        let in_us = |tier, app: Option<&str>, affinity| {
            let mut submission = submission("vision", app, affinity);
            let mut draft = submission.spec.clone().into_draft();
            (draft.tier, draft.regions) = (tier, vec![name("us")]);
            submission.spec = draft.check().unwrap();
            submission
        };
        let apart = vec![to(app("web"), AffinityRule::Apart)];
        let keeper = submit(&mut speculation, 1, vec![in_us(tier, None, apart)]).unwrap()[0];
        let beside = submit(&mut speculation, 2, vec![in_us(tier, None, Vec::new())]).unwrap()[0];
        pass(&mut speculation);
        run_all(&mut speculation);
        let web = in_us(PriorityTier::Standard, Some("web"), Vec::new());
        let web = submit(&mut speculation, 3, vec![web]).unwrap()[0];
        pass(&mut speculation);
        let state = speculation.state();
        let is_stopping = |job: JobId| matches!(state.job(job).unwrap().phase, Phase::Stopping(_));
        assert_eq!(
            (is_stopping(keeper), is_stopping(beside)),
            (stops, false),
            "{tier:?}, {minimum_run_ms} ms"
        );
        assert_eq!(state.job(web).unwrap().promise.is_some(), stops);
        if stops {
            let on = *nodes_of(state, keeper).first().unwrap();
            report(&mut speculation, keeper, on, RankUpdate::Exited(ExitStatus::Signal(15)));
            pass(&mut speculation);
            assert_eq!(nodes_of(speculation.state(), web), BTreeSet::from([on]));
        }
        assert_eq!(speculation.state().verify(), Ok(()));
    }
}

#[test]
fn a_job_that_others_keep_away_from_everywhere_is_reserved_what_they_leave() {
    let (mut speculation, _) = fleet();
    const HOUR_MS: u64 = 3_600_000;
    // All of them on one host.
    let in_us = |tier, app: Option<&str>, devices, hours: u64, affinity| {
        let mut submission = submission("vision", app, affinity);
        let mut draft = submission.spec.clone().into_draft();
        draft.groups[0].request.accelerators = Some(accelerators("h100", devices).into());
        draft.expected_run_ms = Some(hours * HOUR_MS);
        (draft.tier, draft.regions) = (tier, vec![name("us")]);
        submission.spec = draft.check().unwrap();
        submission
    };
    let apart = vec![to(app("web"), AffinityRule::Apart)];
    submit(&mut speculation, 1, vec![in_us(PriorityTier::Critical, None, 1, 1, apart)]).unwrap();
    pass(&mut speculation);
    run_all(&mut speculation);
    let kept = in_us(PriorityTier::Critical, Some("web"), 4, 1, Vec::new());
    submit(&mut speculation, 2, vec![kept]).unwrap();
    let long = in_us(PriorityTier::Standard, None, 3, 100, Vec::new());
    let long = submit(&mut speculation, 3, vec![long]).unwrap()[0];
    pass(&mut speculation);
    assert_eq!(nodes_of(speculation.state(), long), BTreeSet::new(), "it would run for much too long");
}

#[test]
fn gangs_that_have_to_be_together_leave_a_drained_host_together() {
    let (mut speculation, _) = fleet();
    let web = || {
        let together = vec![to(app("web"), AffinityRule::Together)];
        let mut submission = submission("vision", Some("web"), together);
        let mut draft = submission.spec.clone().into_draft();
        draft.checkpoint_directory = Some("/checkpoints".to_owned());
        submission.spec = draft.check().unwrap();
        submission
    };
    let jobs = submit(&mut speculation, 1, vec![web(), web()]).unwrap();
    pass(&mut speculation);
    let before = nodes_of(speculation.state(), jobs[0]);
    assert_eq!((nodes_of(speculation.state(), jobs[1]), before.len()), (before.clone(), 1));
    run_all(&mut speculation);
    let drained = *before.first().unwrap();
    let order = DrainOrder::Begin { deadline_ms: Some(3_600_000) };
    let by = Requester::default();
    let drain = Command::SetDrain { request: request(2), by, node: drained, order, reason: None };
    handle(&mut speculation, &drain).expect("it is taken");
    pass(&mut speculation);
    let state = speculation.state();
    let promised = |job: JobId| state.job(job).and_then(|row| row.promise.clone()).map(|p| p.slots[0].node);
    let next = promised(jobs[0]).expect("both fit elsewhere");
    assert_eq!(promised(jobs[1]), Some(next));
    assert_ne!(next, drained);
    for job in jobs.clone() {
        report(&mut speculation, job, drained, RankUpdate::Exited(ExitStatus::Signal(15)));
    }
    pass(&mut speculation);
    for job in jobs {
        assert_eq!(nodes_of(speculation.state(), job), BTreeSet::from([next]));
    }
}

#[test]
fn no_more_gangs_stop_than_keep_another_away_from_where_it_goes() {
    let (mut speculation, _) = fleet();
    let in_eu = |workers, tier, app: &str, affinity| {
        let mut submission = submission("vision", Some(app), affinity);
        let mut draft = submission.spec.clone().into_draft();
        draft.groups[0].workers = workers;
        draft.groups[0].workers_min = workers;
        draft.topology.spread = Some(Spread { level: Level::Host, workers_max: 1 });
        (draft.tier, draft.regions) = (tier, vec![name("eu")]);
        submission.spec = draft.check().unwrap();
        submission
    };
    let entries = || vec![to(app("web"), AffinityRule::Apart), to(app("keep"), AffinityRule::Apart)];
    let keepers = (0..5).map(|_| in_eu(1, PriorityTier::Free, "keep", entries())).collect();
    submit(&mut speculation, 1, keepers).unwrap();
    pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), 5, "one on each host");
    run_all(&mut speculation);
    // It needs two hosts of a cluster.
    let web = in_eu(2, PriorityTier::Standard, "web", Vec::new());
    let web = submit(&mut speculation, 2, vec![web]).unwrap()[0];
    pass(&mut speculation);
    let state = speculation.state();
    let promise = state.job(web).unwrap().promise.clone().expect("two hosts can be made free for it");
    let hosts: BTreeSet<NodeId> = promise.slots.iter().map(|slot| slot.node).collect();
    let stopped: BTreeSet<NodeId> = state.stopping().flat_map(|job| nodes_of(state, job)).collect();
    assert_eq!((stopped, hosts.len()), (hosts.clone(), 2));
}

#[test]
fn nobody_is_asked_in_vain_for_jobs_with_other_labels() {
    let (mut speculation, _) = fleet();
    let in_eu = |tier, app: Option<&str>, affinity| {
        let mut submission = submission("vision", app, affinity);
        let mut draft = submission.spec.clone().into_draft();
        draft.groups[0].request.accelerators = Some(accelerators("h100", 4).into());
        (draft.tier, draft.regions) = (tier, vec![name("eu")]);
        submission.spec = draft.check().unwrap();
        submission
    };
    let apart = Affinity { level: AffinityLevel::Region, ..to(app("web"), AffinityRule::Apart) };
    submit(&mut speculation, 1, vec![in_eu(PriorityTier::Critical, None, vec![apart])]).unwrap();
    pass(&mut speculation);
    let low = (0..4).map(|_| in_eu(PriorityTier::Free, None, Vec::new())).collect();
    submit(&mut speculation, 2, low).unwrap();
    pass(&mut speculation);
    assert_eq!(speculation.state().active_count(), 5, "every host there has a gang");
    run_all(&mut speculation);
    // The first of them is kept away from everywhere, so nobody stops for it; the other asks for the same.
    let kept = submit(&mut speculation, 3, vec![in_eu(PriorityTier::Standard, Some("web"), Vec::new())]);
    let behind = submit(&mut speculation, 4, vec![in_eu(PriorityTier::Standard, None, Vec::new())]);
    pass(&mut speculation);
    let is_promised = |job: JobId| speculation.state().job(job).is_some_and(|row| row.promise.is_some());
    assert!(!is_promised(kept.unwrap()[0]) && is_promised(behind.unwrap()[0]));
}

#[test]
fn a_job_that_another_names_to_be_apart_from_holds_up_none_of_its_like() {
    let (mut speculation, _) = fleet();
    let in_eu = |tier, affinity| {
        let mut submission = submission("vision", None, affinity);
        let mut draft = submission.spec.clone().into_draft();
        (draft.tier, draft.regions) = (tier, vec![name("eu")]);
        submission.spec = draft.check().unwrap();
        submission
    };
    let named = submit(&mut speculation, 1, vec![in_eu(PriorityTier::Standard, Vec::new())]).unwrap()[0];
    let target = AffinityTarget::Job(named);
    let apart = Affinity { level: AffinityLevel::Region, ..to(target, AffinityRule::Apart) };
    let first = submit(&mut speculation, 2, vec![in_eu(PriorityTier::Critical, vec![apart])]).unwrap()[0];
    let alike = submit(&mut speculation, 3, vec![in_eu(PriorityTier::Standard, Vec::new())]).unwrap()[0];
    pass(&mut speculation);
    let state = speculation.state();
    assert!(!nodes_of(state, first).is_empty() && nodes_of(state, named).is_empty());
    assert!(!nodes_of(state, alike).is_empty(), "nobody names this one");
}

/// One random world: jobs of three tenants that are to be together and apart, hosts that are lost and come back, preemption.
struct World {
    random: Random,
    speculation: Speculation,
    replica: State,
    requests: u128,
    now: LogTime,
    /// How often a gang was placed that something is asked of, by what.
    made: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(seed: u64) -> World {
        let (speculation, replica) = fleet();
        let now = speculation.now();
        World { random: Random::new(seed), speculation, replica, requests: 0, now, made: BTreeMap::new() }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..6 => self.submit(),
            6 => self.lose(),
            7..9 => self.come_back(),
            9..13 => self.report(),
            13..18 => pass(&mut self.speculation),
            _ => {
                self.now = self.now.plus_ms(10_000 + self.random.below(600_000));
                self.take();
                self.speculation.set_now(self.now);
                tick(&mut self.speculation);
            }
        }
        self.take();
    }

    /// Applies what was decided, record by record, and looks at each start with the eyes of the state before it.
    fn take(&mut self) {
        let mut before = self.replica.clone();
        let Some(round) = commit(&mut self.speculation, &mut self.replica) else { return };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            if let Decision::GangPlaced { job, workers } = decision {
                check_start(&before, *job, workers, &mut self.made);
            }
            let first_index = muster_types::LogIndex(round.first_index.0 + ordinal as u64);
            before.apply_round(&Round { first_index, decisions: vec![decision.clone()], ..round.clone() });
        }
        assert_eq!(before.rows_digest(), self.replica.rows_digest(), "one by one is the same");
    }

    fn submit(&mut self) {
        let tenant = ["vision", "video", "speech"][self.random.below(3) as usize];
        let apps = ["web", "cache", "batch"];
        let own = (!self.random.once_in(4)).then(|| apps[self.random.below(3) as usize]);
        let mut affinity = Vec::new();
        for _ in 0..self.random.below(3) {
            let known: Vec<JobId> = self.replica.jobs().iter().map(|(id, _)| *id).collect();
            let target = match self.random.pick(&known).filter(|_| self.random.once_in(4)) {
                Some(job) => AffinityTarget::Job(job),
                None => app(apps[self.random.below(3) as usize]),
            };
            affinity.push(Affinity {
                target,
                level: LEVELS[self.random.below(5) as usize],
                rule: if self.random.once_in(2) { AffinityRule::Together } else { AffinityRule::Apart },
                weight: self.random.once_in(3).then(|| 1 + self.random.below(100) as u8),
            });
        }
        let workers = 1 + self.random.below(3) as u32;
        let devices = 1 + self.random.below(3) as u16;
        let mut draft = job_draft("work", vec![group("main", workers, Some(accelerators("h100", devices)))]);
        if self.random.once_in(4) {
            draft.groups[0].workers_min = 1;
        }
        draft.tenant = name(tenant);
        draft.tier = PriorityTier::ALL[self.random.below(5) as usize];
        draft.checkpoint_directory = self.random.once_in(2).then(|| "/checkpoints".to_owned());
        draft.expected_run_ms = Some(60_000 + self.random.below(3_600_000));
        draft.affinity = affinity;
        // Some contradict themselves, and some are about jobs of others: these are refused.
        let Ok(spec) = draft.check() else { return };
        let job = Submission { metadata: labelled(own), ..Submission::new(spec, JobContract::default()) };
        self.requests += 1;
        let _ = submit(&mut self.speculation, self.requests, vec![job]);
    }

    fn lose(&mut self) {
        let node = NodeId(self.random.below(6) as u32);
        let incarnation = self.speculation.state().node(node).map_or(0, |row| row.incarnation);
        handle(&mut self.speculation, &Command::SessionOver { node, incarnation }).expect("never refused");
    }

    fn come_back(&mut self) {
        let text = ["n1", "n2", "n3", "n4", "n5", "n6"][self.random.below(6) as usize];
        register(&mut self.speculation, text);
    }

    /// Gangs start, end, fail, or have stopped.
    fn report(&mut self) {
        let active: Vec<JobId> = self.speculation.state().active().collect();
        let Some(job) = self.random.pick(&active) else { return };
        let row = self.speculation.state().job(job).unwrap().clone();
        let Some(placement) = row.placement.clone() else { return };
        let update = match row.phase {
            Phase::Starting => RankUpdate::Running,
            Phase::Running if self.random.once_in(3) => {
                RankUpdate::Exited(ExitStatus::Code(i32::from(self.random.once_in(3))))
            }
            Phase::Stopping(_) => RankUpdate::Exited(ExitStatus::Signal(15)),
            _ => return,
        };
        for (rank, slot) in placement.slots.iter().enumerate() {
            let updates = vec![(rank as u32, update.clone())];
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            let report = Command::Report { node, incarnation, job, token, updates };
            let _ = handle(&mut self.speculation, &report);
        }
    }
}

/// Whether a job is of a tenant or of one below it.
fn is_within(state: &State, tenant: &muster_types::Name, of: &JobSpec) -> bool {
    state.policy().policy.ancestry(&of.tenant).any(|above| above == tenant)
}

/// Whether an entry is about a job.
fn selects(state: &State, target: &AffinityTarget, job: JobId) -> bool {
    match target {
        AffinityTarget::Job(other) => *other == job,
        AffinityTarget::Labels(text) => {
            let labels = state.metadata(job).map(|metadata| metadata.labels.clone()).unwrap_or_default();
            LabelSelector::parse(text).unwrap().matches(&labels)
        }
        AffinityTarget::Array(_) | AffinityTarget::Named(_) => panic!("not made here"),
    }
}

type Domains = BTreeSet<String>;

fn domains<'n>(state: &State, nodes: impl Iterator<Item = &'n WorkerSlot>, level: AffinityLevel) -> Domains {
    let specs = nodes.filter_map(|slot| state.node(slot.node));
    specs.map(|row| format!("{:?}", level.domain(&row.spec))).collect()
}

/// Where a job is; where it was last once it is over.
fn place(state: &State, row: &JobRow, level: AffinityLevel) -> Domains {
    let placement = row.placement.as_ref().or(row.previous.as_ref());
    placement.map_or_else(Domains::new, |placement| domains(state, placement.slots.iter(), level))
}

/// What is required of a start holds in the state in which it is decided, found by looking at all jobs.
fn check_start(state: &State, job: JobId, workers: &[WorkerSlot], made: &mut BTreeMap<&'static str, u32>) {
    let spec = state.spec(job).expect("it is known");
    let live = |row: &JobRow| row.placement.as_ref().is_some_and(|placement| placement.live > 0);
    for entry in spec.affinity.iter().filter(|entry| entry.is_required()) {
        let own = domains(state, workers.iter(), entry.level);
        let is_by_id = matches!(entry.target, AffinityTarget::Job(_));
        let (mut there, mut any) = (Domains::new(), false);
        for (other, row) in state.jobs().iter().filter(|(other, _)| **other != job) {
            let of = state.spec(*other).expect("it is known");
            let counts = match (&row.phase, entry.rule) {
                (Phase::Starting | Phase::Running, _) => true,
                (Phase::Stopping(_), AffinityRule::Apart) => live(row),
                (Phase::Finished(_), AffinityRule::Together) => is_by_id,
                _ => false,
            };
            if counts && is_within(state, &spec.tenant, of) && selects(state, &entry.target, *other) {
                let found = place(state, row, entry.level);
                any |= !found.is_empty();
                there.extend(found);
            }
        }
        match entry.rule {
            AffinityRule::Together if !any => {
                assert!(!is_by_id && selects(state, &entry.target, job), "{job} starts alone: {entry}");
                *made.entry("first").or_default() += 1;
            }
            AffinityRule::Together => {
                assert!(own.is_subset(&there), "{job} is not {entry}");
                *made.entry("together").or_default() += 1;
            }
            AffinityRule::Apart => {
                assert!(own.is_disjoint(&there), "{job} is not {entry}");
                *made.entry("apart").or_default() += u32::from(any);
            }
        }
    }
    for (other, row) in state.jobs().iter().filter(|(other, row)| **other != job && live(row)) {
        let theirs = state.spec(*other).expect("it is known");
        let entries = theirs.affinity.iter().filter(|entry| entry.is_required());
        for entry in entries.filter(|entry| entry.rule == AffinityRule::Apart) {
            if is_within(state, &theirs.tenant, spec) && selects(state, &entry.target, job) {
                let own = domains(state, workers.iter(), entry.level);
                assert!(
                    own.is_disjoint(&place(state, row, entry.level)),
                    "{job} is where {other} keeps it away"
                );
                *made.entry("kept away").or_default() += 1;
            }
        }
    }
}

#[test]
fn what_is_required_of_a_start_holds_in_every_world() {
    let mut made: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..60 {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..250 {
                world.step();
            }
            world.made
        });
        match result {
            Ok(of_seed) => {
                of_seed.into_iter().for_each(|(name, count)| *made.entry(name).or_default() += count)
            }
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    for kind in ["first", "together", "apart", "kept away"] {
        assert!(made.get(kind).is_some_and(|count| *count > 0), "{kind} never came about: {made:?}");
    }
}
