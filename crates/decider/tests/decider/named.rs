//! Jobs that wait for other jobs of the same request.

use std::sync::Arc;

use muster_decider::{Answer, Command, JobPath, Speculation, check_submission, handle};
use muster_journal::{Decision, Estimate, RequestKey};
use muster_state::{GuardError, State};
use muster_types::{
    Affinity, AffinityLevel, AffinityRule, AffinityTarget, ArraySpec, Dependency, DependencyRule,
    DependencyScope, JobContract, JobDraft, JobId, LogTime, NamedDependency, Refusal, RefusalCode,
    Submission,
};

use crate::random::Random;
use crate::support::{BOOTSTRAP, check, commit, founded_as, holder, job, name, node_spec, request};

fn founded() -> (Speculation, State) {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    let spec = node_spec("n0", "eu", "c1", None);
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &register).unwrap();
    commit(&mut speculation, &mut state);
    (speculation, state)
}

/// A job of a request that waits for others there, by name; `*` in front of a name is for each member.
fn waiting(own: &str, others: &[&str]) -> Submission {
    let mut submission =
        Submission::new(JobDraft::clone(&job(own, 1, None)).check().unwrap(), JobContract::default());
    let on = |(place, other): (usize, &&str)| NamedDependency {
        name: name(other.trim_start_matches('*')),
        rule: DependencyRule::Succeeded,
        by_member: other.starts_with('*'),
        place: place as u32,
    };
    submission.named_dependencies = others.iter().enumerate().map(on).collect();
    submission
}

fn array(mut submission: Submission, text: &str) -> Submission {
    submission.array = Some(ArraySpec::parse(text).unwrap());
    submission
}

/// A job that has to be on the host of another one of its request.
fn near(mut submission: Submission, other: &str) -> Submission {
    let target = AffinityTarget::Named(name(other));
    let mut draft = submission.spec.clone().into_draft();
    let (level, rule) = (AffinityLevel::Host, AffinityRule::Together);
    draft.affinity = vec![Affinity { target, level, rule, weight: None }];
    submission.spec = draft.check().unwrap();
    submission
}

fn submit(speculation: &mut Speculation, n: u128, jobs: &[Submission]) -> Result<Vec<JobId>, Refusal> {
    match handle(speculation, &Command::submit(request(n), Arc::from(jobs)))? {
        Answer::Submitted { jobs, .. } => Ok(jobs),
        other => panic!("{other:?}"),
    }
}

fn waits_for(state: &State, job: JobId) -> Vec<(JobId, DependencyScope)> {
    state.spec(job).unwrap().dependencies.iter().map(|on| (on.job, on.scope)).collect()
}

#[test]
fn jobs_of_a_request_wait_for_each_other_by_name() {
    let (mut speculation, mut state) = founded();
    // The last is waited for by the first, and comes behind it.
    let jobs = [waiting("evaluate", &["train"]), waiting("prepare", &[]), waiting("train", &["prepare"])];
    let ids = submit(&mut speculation, 1, &jobs).unwrap();
    assert_eq!(submit(&mut speculation, 1, &jobs).unwrap(), ids, "the same request");
    let other = [waiting("evaluate", &["prepare"]), waiting("prepare", &[]), waiting("train", &["prepare"])];
    assert_eq!(submit(&mut speculation, 1, &other).unwrap_err().code, RefusalCode::RequestIdReused);
    commit(&mut speculation, &mut state);
    check(&state);
    assert_eq!(waits_for(&state, ids[0]), [(ids[2], DependencyScope::Job)]);
    assert_eq!(waits_for(&state, ids[2]), [(ids[1], DependencyScope::Job)]);
    let released = |state: &State| ids.iter().map(|id| state.job(*id).unwrap().released).collect::<Vec<_>>();
    assert_eq!(released(&state), [false, true, false]);
    // What cannot succeed any more ends those that wait for it, all the way.
    handle(&mut speculation, &Command::cancel(request(2), ids[1])).unwrap();
    commit(&mut speculation, &mut state);
    check(&state);
    assert_eq!(state.finished_count(), 3);
}

#[test]
fn jobs_and_arrays_of_a_request_wait_for_each_other() {
    let (mut speculation, mut state) = founded();
    let jobs = [
        waiting("report", &["score"]),
        array(waiting("score", &["*train"]), "0-9"),
        array(waiting("train", &["prepare"]), "0-9%3"),
        waiting("prepare", &[]),
    ];
    let ids = submit(&mut speculation, 1, &jobs).unwrap();
    assert_eq!(ids.len(), 22);
    commit(&mut speculation, &mut state);
    check(&state);
    let (report, score, train, prepare) = (ids[0], ids[1], ids[11], ids[21]);
    assert_eq!(waits_for(&state, report), [(score, DependencyScope::Array)]);
    let template = |first: JobId| &state.array(muster_types::ArrayId(first.0)).unwrap().template.spec;
    let on = |job, scope| Dependency { job, rule: DependencyRule::Succeeded, scope };
    assert_eq!(template(score).dependencies, [on(train, DependencyScope::Member)]);
    assert_eq!(template(train).dependencies, [on(prepare, DependencyScope::Job)]);
    handle(&mut speculation, &Command::cancel(request(2), prepare)).unwrap();
    for _ in 0..4 {
        muster_decider::settle_all(&mut speculation);
        commit(&mut speculation, &mut state);
    }
    check(&state);
    assert!(state.arrays().iter().all(|(_, row)| row.finished_at.is_some()), "nothing is left to wait for");
    assert!(state.jobs().iter().all(|(_, row)| row.finished_at.is_some()));
}

#[test]
fn what_cannot_be_waited_for_is_refused_with_its_field() {
    let (mut speculation, state) = founded();
    let before = speculation.last_index();
    let of_ten = |own, others: &[&str]| array(waiting(own, others), "0-9");
    let cases: [(&str, Vec<Submission>, &str, &str); 14] = [
        ("itself", vec![waiting("a", &["a"])], "jobs[0].spec.dependencies[0].job_name", "itself"),
        (
            "nobody",
            vec![waiting("a", &["b"]), waiting("c", &[])],
            "jobs[0].spec.dependencies[0].job_name",
            "no job of this request",
        ),
        (
            "nobody, alone",
            vec![waiting("a", &["b"])],
            "jobs[0].spec.dependencies[0].job_name",
            "no other job is in this request",
        ),
        (
            "one of two",
            vec![waiting("a", &[]), waiting("a", &[]), waiting("b", &["a"])],
            "jobs[2].spec.dependencies[0].job_name",
            "several jobs",
        ),
        (
            "a circle of two",
            vec![waiting("a", &["b"]), waiting("b", &["a"])],
            "jobs[0].spec.dependencies[0].job_name",
            "a -> b -> a",
        ),
        (
            "a circle behind a job",
            vec![
                waiting("z", &["c"]),
                waiting("a", &["b"]),
                waiting("b", &["c"]),
                waiting("c", &["y", "a"]),
                waiting("y", &[]),
            ],
            "jobs[3].spec.dependencies[1].job_name",
            "c -> a -> b -> c",
        ),
        (
            "members of a job",
            vec![waiting("a", &[]), of_ten("b", &["*a"])],
            "jobs[1].spec.dependencies[0].job_name",
            "member by member",
        ),
        (
            "a job of members",
            vec![of_ten("a", &[]), waiting("b", &["*a"])],
            "jobs[1].spec.dependencies[0].job_name",
            "member by member",
        ),
        (
            "other indices",
            vec![array(waiting("a", &[]), "0-8"), of_ten("b", &["*a"])],
            "jobs[1].spec.dependencies[0].job_name",
            "same indices",
        ),
        (
            "one twice",
            vec![waiting("a", &["b", "b"]), waiting("b", &[])],
            "jobs[0].spec.dependencies[1].job_name",
            "must not name b twice",
        ),
        (
            "members of one twice",
            vec![of_ten("a", &["b", "*b", "*b"]), of_ten("b", &[])],
            "jobs[0].spec.dependencies[2].job_name",
            "must not name b twice",
        ),
        (
            "arrays in a circle",
            vec![of_ten("a", &["*b"]), of_ten("b", &["*a"])],
            "jobs[0].spec.dependencies[0].job_name",
            "a -> b -> a",
        ),
        (
            "one that waits for who has to be with it",
            vec![waiting("a", &["b"]), near(waiting("b", &[]), "a")],
            "jobs[0].spec.dependencies[0].job_name",
            "a -> b -> a",
        ),
        (
            "the same behind a job",
            vec![waiting("z", &["b"]), waiting("a", &["b"]), near(waiting("b", &[]), "a")],
            "jobs[1].spec.dependencies[0].job_name",
            "a -> b -> a",
        ),
    ];
    for (n, (case, jobs, field, text)) in cases.into_iter().enumerate() {
        let refused = submit(&mut speculation, n as u128, &jobs).unwrap_err();
        assert_eq!(refused.violations.len(), 1, "{case}: {refused:?}");
        let violation = &refused.violations[0];
        assert_eq!(violation.field, field, "{case}");
        assert!(violation.description.contains(text), "{case}: {violation:?}");
        let checked = check_submission(&state, &jobs, JobPath::List, LogTime(0));
        assert_eq!(checked.unwrap_err(), refused, "{case}: the check says the same");
    }
    let many: Vec<String> = (0..65).map(|n| format!("j{n}")).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut jobs: Vec<Submission> = names.iter().map(|own| waiting(own, &[])).collect();
    jobs.push(waiting("all", &names));
    let refused = submit(&mut speculation, 100, &jobs).unwrap_err();
    assert_eq!(refused.violations[0].field, "jobs[65].spec.dependencies");
    assert_eq!(speculation.last_index(), before, "bad input changes nothing");
}

/// Names and ids stand in one list, and a refusal shows the place in it.
#[test]
fn ids_between_names_are_refused_at_their_place() {
    let (mut speculation, _) = founded();
    let mut waits = waiting("b", &["a", "c"]);
    waits.named_dependencies[1].place = 2;
    let mut draft = waits.spec.clone().into_draft();
    let on = |job| Dependency::new(JobId(job), DependencyRule::Succeeded);
    draft.dependencies = vec![on(u64::MAX - 1), on(u64::MAX)];
    waits.spec = draft.check().unwrap();
    let refused = submit(&mut speculation, 1, &[waiting("a", &[]), waits, waiting("c", &[])]).unwrap_err();
    assert_eq!(refused.code, RefusalCode::DependencyNotFound);
    let fields: Vec<&str> = refused.violations.iter().map(|found| found.field.as_str()).collect();
    assert_eq!(fields, ["jobs[1].spec.dependencies[1]", "jobs[1].spec.dependencies[3]"]);
}

/// It is the indices that count, and not how they are written.
#[test]
fn indices_are_the_same_however_they_are_written() {
    let (mut speculation, mut state) = founded();
    for (n, (one, other)) in
        [("0-9", "0-4,5-9"), ("0,5,10", "0-10:5"), ("1-3,7", "1,2-3,7")].into_iter().enumerate()
    {
        let jobs = [array(waiting("a", &[]), one), array(waiting("b", &["*a"]), other)];
        submit(&mut speculation, n as u128, &jobs).unwrap();
    }
    commit(&mut speculation, &mut state);
    check(&state);
}

/// The guard takes no record of jobs that would wait for themselves or for what comes later.
#[test]
fn the_guard_refuses_circles() {
    let (_, state) = founded();
    let first = state.job_id(state.log_index().next(), 0);
    let record = |waits: &[&[u64]]| {
        let spec = |others: &&[u64]| {
            let mut draft = JobDraft::clone(&job("a", 1, None));
            let on = |other: &u64| Dependency::new(JobId(first.0 + other), DependencyRule::Finished);
            draft.dependencies = others.iter().map(on).collect();
            Arc::new(draft.check().unwrap())
        };
        let specs: Vec<_> = waits.iter().map(spec).collect();
        let estimates = vec![Estimate::default(); specs.len()];
        Decision::JobsSubmitted {
            request: RequestKey { id: request(1), fingerprint: 1 },
            by: muster_types::Requester::default(),
            specs,
            estimates,
        }
    };
    assert_eq!(state.check(&record(&[&[1], &[2], &[]])), Ok(()));
    assert_eq!(state.check(&record(&[&[0]])), Err(GuardError::Limit));
    assert_eq!(state.check(&record(&[&[1], &[0]])), Err(GuardError::Limit));
    assert_eq!(state.check(&record(&[&[1]])), Err(GuardError::JobUnknown));
}

/// Graphs at random: what is taken ends in an order in which nothing ran before what it waits for, and circles are refused.
#[test]
fn graphs_are_taken_when_they_have_no_circle() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (mut speculation, mut state) = founded();
        let count = 2 + random.below(7) as usize;
        let names: Vec<String> = (0..count).map(|n| format!("j{n}")).collect();
        let mut edges = vec![Vec::new(); count];
        let jobs: Vec<Submission> = (0..count)
            .map(|own| {
                let others: Vec<usize> =
                    (0..count).filter(|other| *other != own && random.once_in(5)).collect();
                edges[own].clone_from(&others);
                let others: Vec<&str> = others.iter().map(|other| names[*other].as_str()).collect();
                waiting(&names[own], &others)
            })
            .collect();
        let has_circle = muster_types::cycle::cycle_of(&edges).is_some();
        match submit(&mut speculation, 1, &jobs) {
            Err(refusal) => {
                refused += 1;
                assert!(has_circle, "seed {seed}: {refusal}");
            }
            Ok(ids) => {
                taken += 1;
                assert!(!has_circle, "seed {seed}");
                commit(&mut speculation, &mut state);
                check(&state);
                for (own, others) in edges.iter().enumerate() {
                    let expected: Vec<JobId> = others.iter().map(|other| ids[*other]).collect();
                    let found: Vec<JobId> =
                        waits_for(&state, ids[own]).into_iter().map(|(id, _)| id).collect();
                    assert_eq!(found, expected, "seed {seed}");
                    assert_eq!(state.job(ids[own]).unwrap().released, others.is_empty(), "seed {seed}");
                }
            }
        }
    }
    assert!(taken > 20 && refused > 20, "{taken} taken, {refused} refused");
}
