//! Capacity that is promised before it is free, also on hosts which change until then.

use muster_decider::{Answer, Command, Speculation, handle, schedule};
use muster_journal::{CapacityHold, Decision, RankUpdate, RearrangeCause, Stop, WorkerSlot};
use muster_planner::Budget;
use muster_state::{GuardError, HostResource, Phase, Promised, State};
use muster_types::{
    DeviceSet, ExitStatus, ForeignLoad, JobContract, JobDraft, JobId, JobSpec, NodeDraft, NodeId,
    PriorityTier, Submission,
};

use crate::support::{commit, founded, group, holder, job_draft, name, node_draft, request};

const CPU_MILLI: u64 = 64_000;

fn register(speculation: &mut Speculation, host: &str, cpu_milli: u64) -> NodeId {
    let draft = NodeDraft { cpu_milli, ..node_draft(host, "eu", "c1", None) };
    let spec = draft.check().expect("a host");
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(speculation, &command).expect("it is taken");
    speculation.state().node_named(&name(host)).expect("it was registered")
}

fn submit(speculation: &mut Speculation, n: u128, spec: JobSpec) -> JobId {
    let jobs = [Submission::new(spec, JobContract::default())].into();
    match handle(speculation, &Command::submit(request(n), jobs)) {
        Ok(Answer::Submitted { jobs, .. }) => jobs[0],
        other => panic!("{other:?}"),
    }
}

fn low(speculation: &mut Speculation, n: u128) -> JobId {
    let mut draft = job_draft("low", vec![group("main", 1, None)]);
    draft.tier = PriorityTier::Batch;
    let job = submit(speculation, n, draft.check().expect("a job"));
    schedule(speculation, &mut Budget::new(u64::MAX));
    job
}

/// A gang stops for another one, to which these hosts are promised.
fn promise(speculation: &mut Speculation, (low, high): (JobId, JobId), hosts: &[NodeId]) {
    let placement = speculation.state().job(low).and_then(|row| row.placement.as_ref());
    let token = placement.expect("a placement").token;
    let stops = vec![Stop { job: low, token, cause: RearrangeCause::Preempted { by: high } }];
    let slot = |node: &NodeId| WorkerSlot { node: *node, incarnation: 1, devices: DeviceSet::EMPTY };
    let promises = vec![CapacityHold { job: high, workers: hosts.iter().map(slot).collect() }];
    speculation.push(Decision::Rearranged { stops, promises });
}

/// The only worker of a gang that is being stopped ends.
fn end(speculation: &mut Speculation, job: JobId) {
    let placement = speculation.state().job(job).and_then(|row| row.placement.clone()).expect("a placement");
    let (slot, token) = (&placement.slots[0], placement.token);
    let updates = vec![(0, RankUpdate::Exited(ExitStatus::Signal(15)))];
    let report = Command::Report { node: slot.node, incarnation: slot.incarnation, job, token, updates };
    handle(speculation, &report).expect("it is taken");
}

/// What a gang leaves that is being stopped counts for what is promised already, so that the next one to stop leaves all it has to
/// others. No two are promised the same of it, neither before the first gang has left nor after that.
#[test]
fn what_a_gang_leaves_is_promised_once() {
    let (mut speculation, mut state) = founded();
    let host = register(&mut speculation, "h1", CPU_MILLI);
    let mut half = |n: u128, tier: PriorityTier| {
        let mut main = group("main", 1, None);
        main.request.cpu_milli = CPU_MILLI / 2;
        let mut draft = job_draft("half", vec![main]);
        draft.tier = tier;
        let job = submit(&mut speculation, n, draft.check().expect("a job"));
        if tier == PriorityTier::Batch {
            schedule(&mut speculation, &mut Budget::new(u64::MAX));
        }
        job
    };
    let low = [half(1, PriorityTier::Batch), half(2, PriorityTier::Batch)];
    let high = [3, 4, 5].map(|n| half(n, PriorityTier::Production));
    promise(&mut speculation, (low[0], high[0]), &[host]);
    let second = |state: &State, promised: &[JobId]| {
        let placement = state.job(low[1]).and_then(|row| row.placement.as_ref());
        let token = placement.expect("a placement").token;
        let stops = vec![Stop { job: low[1], token, cause: RearrangeCause::Preempted { by: high[1] } }];
        let workers = vec![WorkerSlot { node: host, incarnation: 1, devices: DeviceSet::EMPTY }];
        let hold = |job: &JobId| CapacityHold { job: *job, workers: workers.clone() };
        Decision::Rearranged { stops, promises: promised.iter().map(hold).collect() }
    };
    for has_left in [false, true] {
        if has_left {
            end(&mut speculation, low[0]);
        }
        let state = speculation.state();
        assert_eq!(state.check(&second(state, &high[1..2])), Ok(()), "one left: {has_left}");
        let both = state.check(&second(state, &high[1..]));
        assert_eq!(both, Err(GuardError::DoesNotFit), "one left: {has_left}");
    }
    let decision = second(speculation.state(), &high[1..2]);
    speculation.push(decision);
    end(&mut speculation, low[1]);
    commit(&mut speculation, &mut state);
    let is_placed = high.map(|job| state.job(job).is_some_and(|row| row.placement.is_some()));
    assert_eq!(is_placed, [true, true, false]);
}

fn waits_without_a_promise(state: &State, job: JobId) -> bool {
    state.job(job).is_some_and(|row| row.phase == Phase::Pending && row.promise.is_none())
}

#[test]
fn a_host_that_is_promised_as_a_whole_may_come_back_larger_or_smaller() {
    for cpu_milli in [CPU_MILLI + 32_000, CPU_MILLI - 32_000] {
        let (mut speculation, mut state) = founded();
        let busy = register(&mut speculation, "h1", CPU_MILLI);
        let low = low(&mut speculation, 1);
        let idle = register(&mut speculation, "h2", CPU_MILLI);
        let mut whole = group("main", 2, None);
        whole.request.exclusive = true;
        let mut draft = job_draft("high", vec![whole]);
        draft.tier = PriorityTier::Production;
        let high = submit(&mut speculation, 2, draft.check().expect("a job"));
        promise(&mut speculation, (low, high), &[busy, idle]);
        commit(&mut speculation, &mut state);
        assert_eq!(state.node(idle).expect("a host").promised.cpu_milli, CPU_MILLI);
        // Nothing runs there, so that its agent may say something else of it.
        register(&mut speculation, "h2", cpu_milli);
        commit(&mut speculation, &mut state);
        assert_eq!(state.node(idle).expect("a host").promised.cpu_milli, cpu_milli);
        end(&mut speculation, low);
        commit(&mut speculation, &mut state);
        assert!(waits_without_a_promise(&state, high), "the session is another one");
        for host in [busy, idle] {
            assert_eq!(state.node(host).expect("a host").promised, Promised::default());
        }
    }
}

#[test]
fn a_promise_is_dropped_where_others_have_taken_what_was_left() {
    let (mut speculation, mut state) = founded();
    let host = register(&mut speculation, "h1", CPU_MILLI);
    let low = low(&mut speculation, 1);
    let mut all = group("main", 1, None);
    all.request.cpu_milli = CPU_MILLI;
    let mut draft = job_draft("high", vec![all]);
    draft.tier = PriorityTier::Production;
    let high = submit(&mut speculation, 2, draft.check().expect("a job"));
    promise(&mut speculation, (low, high), &[host]);
    commit(&mut speculation, &mut state);
    let load = ForeignLoad { cpu_milli: 1_000, ..ForeignLoad::default() };
    let command = Command::ReportForeignLoad { node: host, incarnation: 1, load };
    handle(&mut speculation, &command).expect("it is taken");
    commit(&mut speculation, &mut state);
    assert!(!waits_without_a_promise(&state, high), "the other gang has yet to leave");
    end(&mut speculation, low);
    commit(&mut speculation, &mut state);
    assert!(waits_without_a_promise(&state, high), "1 of 64 CPUs is not there any more");
}

#[test]
fn a_job_with_hosts_to_itself_is_counted_by_hosts_of_its_regions() {
    let (mut speculation, _) = founded();
    register(&mut speculation, "h1", CPU_MILLI);
    let draft = NodeDraft { cpu_milli: 4 * CPU_MILLI, ..node_draft("h2", "us", "c2", None) };
    let spec = draft.check().expect("a host");
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &command).expect("it is taken");
    let mut whole = group("main", 2, None);
    whole.request.exclusive = true;
    let mut draft = job_draft("job", vec![whole]);
    let asked = |draft: &JobDraft| {
        let spec = draft.clone().check().expect("a job");
        speculation.state().host_asked(&spec, HostResource::Cpu, 2)
    };
    assert_eq!(asked(&draft), 2 * 4 * CPU_MILLI, "it may be anywhere");
    draft.regions = vec![name("eu")];
    assert_eq!(asked(&draft), 2 * CPU_MILLI);
}

#[test]
fn a_running_job_with_hosts_to_itself_is_counted_by_those_until_it_grows() {
    let (mut speculation, mut state) = founded();
    for host in ["h1", "h2"] {
        register(&mut speculation, host, CPU_MILLI);
    }
    let mut whole = group("main", 3, None);
    whole.workers_min = 1;
    whole.request.exclusive = true;
    let spec = job_draft("job", vec![whole]).check().expect("a job");
    let job = submit(&mut speculation, 1, spec.clone());
    let asked = |speculation: &Speculation, workers| {
        speculation.state().host_asked_by(job, &spec, HostResource::Cpu, workers)
    };
    assert_eq!(asked(&speculation, 2), 2 * CPU_MILLI, "it has no place yet");
    schedule(&mut speculation, &mut Budget::new(u64::MAX));
    let placed = speculation.state().job(job).and_then(|row| row.placement.as_ref()).expect("a placement");
    assert_eq!(placed.slots.len(), 2);
    // A host joins that is four times as large.
    register(&mut speculation, "h3", 4 * CPU_MILLI);
    commit(&mut speculation, &mut state);
    assert_eq!(speculation.state().host_asked(&spec, HostResource::Cpu, 2), 2 * 4 * CPU_MILLI);
    assert_eq!(asked(&speculation, 1), 2 * CPU_MILLI, "no less than what it holds");
    assert_eq!(asked(&speculation, 2), 2 * CPU_MILLI);
    assert_eq!(asked(&speculation, 3), (2 + 4) * CPU_MILLI);
}
