//! Which jobs may join which submission group, and how long a group lasts.

use muster_journal::{Decision, Estimate, Outcome, RequestKey};
use muster_state::{BURST_GAP_MS, BurstKey, GuardError, State};
use muster_types::policy::{PolicyDraft, TenantRights, UNLISTED_TENANT};
use muster_types::{
    Accelerators, Affinity, AffinityLevel, AffinityRule, AffinityTarget, ClusterId, JobDraft, JobId, JobSpec,
    Leadership, LogTime, Name, Parameters, QueueKey, ReplicaId, RequestId, Requester, TaskGroup,
    WorkerRequest,
};

const NOW: u64 = 1_790_000_000_000;
const LEADERSHIP: Leadership = Leadership { term: 1, replica: ReplicaId(1) };

fn spec(tenant: &str, name: &str, devices: u16) -> JobSpec {
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: Name::literal("h100"), count: devices }.into()),
        cpu_milli: 1_000,
        memory_bytes: 1 << 30,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup::new(Name::literal("main"), 1, vec!["run".to_string()], request);
    JobDraft::new(Name::new(name).unwrap(), Name::new(tenant).unwrap(), vec![group]).check().unwrap()
}

fn founded() -> State {
    let mut state = State::default();
    let created =
        Decision::ClusterCreated { cluster: ClusterId(1), generation: 1, parameters: Parameters::DEFAULT };
    push(&mut state, NOW, &Decision::LeaderStarted).unwrap();
    push(&mut state, NOW, &created).unwrap();
    state
}

fn push(state: &mut State, at: u64, decision: &Decision) -> Result<(), GuardError> {
    let applied = state.apply(LEADERSHIP, state.log_index().next(), LogTime(at), decision);
    assert_eq!(state.verify(), Ok(()), "{decision:?}");
    applied.rejection.map_or(Ok(()), Err)
}

fn turn(n: u64) -> QueueKey {
    QueueKey::urgent(LogTime(n))
}

/// Submits jobs, each with the submission group it is to join and its turn.
fn submit(
    state: &mut State,
    at: u64,
    jobs: &[(JobSpec, Option<JobId>, u64)],
) -> Result<Vec<JobId>, GuardError> {
    let index = state.log_index().next();
    let estimates = jobs.iter().map(|(_, group, turn)| Estimate {
        turn: self::turn(*turn),
        burst: *group,
        ..Estimate::default()
    });
    let decision = Decision::JobsSubmitted {
        request: RequestKey { id: RequestId(index.0.into()), fingerprint: 0 },
        by: muster_types::Requester::default(),
        estimates: estimates.collect(),
        specs: jobs.iter().map(|(spec, ..)| spec.clone().into()).collect(),
    };
    push(state, at, &decision)?;
    Ok((0..jobs.len()).map(|n| JobId::derive(index, n)).collect())
}

fn cancel(state: &mut State, at: u64, job: JobId) {
    let request = RequestKey { id: RequestId(u128::MAX - u128::from(state.log_index().0)), fingerprint: 0 };
    push(state, at, &Decision::JobCancelRequested { request, by: Requester::default(), jobs: vec![job] })
        .unwrap();
    push(state, at, &Decision::JobFinished { job, outcome: Outcome::Cancelled }).unwrap();
}

#[test]
fn only_its_like_joins_a_burst() {
    let mut state = founded();
    let first = submit(&mut state, NOW, &[(spec("t", "sweep-1", 1), None, 5)]).unwrap()[0];
    assert!(state.submission_group(first).is_none(), "a job that is alone has no row");
    for (what, unlike) in [
        ("tenant", spec("u", "sweep-2", 1)),
        ("name", spec("t", "weep-2", 1)),
        ("size", spec("t", "sweep-2", 2)),
    ] {
        let refused = submit(&mut state, NOW, &[(unlike, Some(first), 5)]);
        assert_eq!(refused, Err(GuardError::BurstNotCurrent), "{what}");
    }
    let second = submit(&mut state, NOW + 1, &[(spec("t", "sweep-2", 1), Some(first), 7)]).unwrap()[0];
    let row = state.submission_group(first).unwrap();
    assert_eq!((row.members, row.turn, row.last_submitted), (2, turn(7), LogTime(NOW + 1)));
    assert_eq!((state.burst_of(second), state.turn_of(first)), (Some(first), Some(turn(7))));
    let through_a_member = submit(&mut state, NOW + 1, &[(spec("t", "sweep-3", 1), Some(second), 7)]);
    assert_eq!(through_a_member, Err(GuardError::BurstNotCurrent), "a group goes by its first job");
}

#[test]
fn a_record_may_name_its_own_jobs_but_not_later_ones() {
    let mut state = founded();
    let index = state.log_index().next();
    let own = |n| Some(JobId::derive(index, n));
    let job = |n: u32, group| (spec("t", &format!("s{n}"), 1), group, 3);
    let forward = submit(&mut state, NOW, &[job(0, own(1)), job(1, None)]);
    assert_eq!(forward, Err(GuardError::BurstNotCurrent));
    let index = state.log_index().next();
    let own = |n| Some(JobId::derive(index, n));
    let itself = submit(&mut state, NOW, &[job(0, own(0))]);
    assert_eq!(itself, Err(GuardError::BurstNotCurrent));
    let index = state.log_index().next();
    let own = |n| Some(JobId::derive(index, n));
    let jobs = submit(&mut state, NOW, &[job(0, None), job(1, own(0)), job(2, own(0))]).unwrap();
    assert_eq!(state.submission_group(jobs[0]).unwrap().members, 3);
}

#[test]
fn a_burst_is_open_for_a_minute_and_lasts_as_long_as_a_member() {
    let mut state = founded();
    let like = || spec("t", "sweep-1", 1);
    let key = BurstKey::of(&like());
    let open = |state: &State, at: u64| state.open_burst(key, &like(), LogTime(at));
    assert_eq!(open(&state, NOW), None);
    let first = submit(&mut state, NOW, &[(like(), None, 1)]).unwrap()[0];
    assert_eq!(open(&state, NOW + BURST_GAP_MS), Some(first));
    assert_eq!(open(&state, NOW + BURST_GAP_MS + 1), None);
    let later = NOW + BURST_GAP_MS;
    let second = submit(&mut state, later, &[(like(), Some(first), 1)]).unwrap()[0];
    assert_eq!(open(&state, later + BURST_GAP_MS), Some(first), "each member holds it open");
    cancel(&mut state, later, first);
    assert_eq!(state.submission_group(first).map(|row| row.members), Some(1), "it outlives its first job");
    assert_eq!(state.first_in_line(first), Some(second));
    cancel(&mut state, later, second);
    assert_eq!((state.submission_group(first), open(&state, later)), (None, None));
    let gone = submit(&mut state, later, &[(like(), Some(first), 1)]);
    assert_eq!(gone, Err(GuardError::BurstNotCurrent));
}

#[test]
fn jobs_that_take_turns_in_what_they_have_to_be_with_join_their_like() {
    let mut state = founded();
    let with = |name: &str, app: &str| {
        let mut draft = spec("t", name, 1).into_draft();
        draft.affinity = vec![Affinity {
            target: AffinityTarget::Labels(format!("app={app}")),
            level: AffinityLevel::Rack,
            rule: AffinityRule::Together,
            weight: None,
        }];
        draft.check().unwrap()
    };
    let open = |state: &State, app: &str| {
        let job = with("s9", app);
        state.open_burst(BurstKey::of(&job), &job, LogTime(NOW))
    };
    let a = submit(&mut state, NOW, &[(with("s1", "a"), None, 1)]).unwrap()[0];
    assert_eq!((open(&state, "a"), open(&state, "b")), (Some(a), None));
    let b = submit(&mut state, NOW, &[(with("s2", "b"), None, 1)]).unwrap()[0];
    assert_eq!(
        (open(&state, "a"), open(&state, "b")),
        (Some(a), Some(b)),
        "the last group is not the only one"
    );
}

#[test]
fn a_burst_moves_as_one() {
    let mut state = founded();
    let jobs = submit(&mut state, NOW, &[(spec("t", "a0", 1), None, 10), (spec("t", "b0", 1), None, 20)]);
    let (a, b) = (jobs.clone().unwrap()[0], jobs.unwrap()[1]);
    submit(&mut state, NOW, &[(spec("t", "a1", 1), Some(a), 10)]).unwrap();
    let member = JobId::derive(state.log_index(), 0);
    let moved = |groups| Decision::TurnsChanged { bursts: groups };
    push(&mut state, NOW, &moved(vec![(a, turn(30))])).unwrap();
    let (turns, _) = state.in_line_behind(None, 10);
    assert_eq!(turns, [b, a]);
    assert_eq!(push(&mut state, NOW, &moved(vec![(member, turn(1))])), Err(GuardError::JobUnknown));
    assert_eq!(
        push(&mut state, NOW, &moved(vec![(b, turn(1)), (a, turn(1))])),
        Err(GuardError::Limit),
        "ascending"
    );
    assert_eq!(push(&mut state, NOW, &moved(vec![])), Err(GuardError::Limit));
}

#[test]
fn a_burst_of_two_classes_stands_in_the_lane_of_its_first_job() {
    let mut state = founded();
    let mut policy = PolicyDraft::default();
    policy.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default().rights = TenantRights::ALL;
    let request = RequestKey { id: RequestId(u128::MAX), fingerprint: 0 };
    let policy = Box::new(policy.check().unwrap());
    push(&mut state, NOW, &Decision::PolicySet { request, by: muster_types::Requester::default(), policy })
        .unwrap();
    let like = |name: &str, preemptible| {
        let mut draft = spec("t", name, 1).into_draft();
        draft.preemptible = preemptible;
        draft.check().unwrap()
    };
    let fixed = submit(&mut state, NOW, &[(like("s0", false), None, 10)]).unwrap()[0];
    let key = BurstKey::of(&like("s1", true));
    let open = |preemptible| state.open_burst(key, &like("s1", preemptible), LogTime(NOW));
    assert_eq!(open(true), None, "they wait for different things");
    assert_eq!(open(false), Some(fixed));
    let movable = submit(&mut state, NOW, &[(like("s1", true), Some(fixed), 10)]).unwrap()[0];
    submit(&mut state, NOW, &[(like("s2", false), Some(fixed), 10)]).unwrap();
    assert_eq!((state.first_in_line(fixed), state.classes_in_line()), (Some(fixed), 1));
    push(&mut state, NOW, &Decision::TurnsChanged { bursts: vec![(fixed, turn(20))] }).unwrap();
    let other = submit(&mut state, NOW, &[(like("other", true), None, 15)]).unwrap()[0];
    assert_eq!(state.classes_in_line(), 2, "another lane");
    cancel(&mut state, NOW, fixed);
    assert_eq!((state.first_in_line(fixed), state.classes_in_line()), (Some(movable), 1));
    assert_eq!(state.in_line_behind(None, 10).0, [other, fixed], "a group goes by its first job");
    cancel(&mut state, NOW, movable);
    assert_eq!(state.classes_in_line(), 2);
}
