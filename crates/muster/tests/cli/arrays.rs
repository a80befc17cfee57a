//! Arrays at the edges: waits, members by their indices, names, and what is submitted again.

use muster_wire::time::timestamp;
use muster_wire::v1;
use v1::JobPhase;

use super::fake::arrays::{array, member};
use super::{Fake, Ran, job, muster, with_stdin};

fn counted(size: u32) -> v1::JobArray {
    v1::JobArray { size, ..Default::default() }
}

/// A cluster with these arrays.
fn cluster(arrays: Vec<v1::Array>) -> Fake {
    let fake = Fake::start();
    fake.book.lock().arrays = arrays;
    fake
}

/// An array `array-8` of ten, with the indices 0, 5, … 45. Of its jobs three wait, and one has ended.
fn sweep() -> Fake {
    let mut sweep = array("array-8", "sweep", counted(10));
    sweep.array = Some(v1::JobArray { indices: "0-45:5".to_owned(), ..Default::default() });
    let fake = cluster(vec![sweep.clone()]);
    let phases = [JobPhase::Pending, JobPhase::Pending, JobPhase::Succeeded, JobPhase::Pending];
    for (ordinal, phase) in (0..).zip(phases) {
        let job = member(&sweep, ordinal, phase);
        fake.book.lock().jobs.insert(job.id.clone(), job);
    }
    fake
}

/// Ids that the calls were about, in their order: those that changed something.
fn asked(fake: &Fake) -> Vec<(&'static str, Vec<String>)> {
    let book = fake.book.lock();
    let done = book.controls.iter().filter(|(_, _, only_looks)| !only_looks);
    done.map(|(call, selector, _)| (*call, selector.filter.clone().unwrap_or_default().job_ids)).collect()
}

fn ok(ran: &Ran) {
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn members_are_named_by_their_indices() {
    let fake = sweep();
    let ran = muster(&fake, &["cancel", "array-8[0-5,15]"]);
    ok(&ran);
    assert_eq!(asked(&fake), [("cancel", vec!["job-8".to_owned(), "job-9".to_owned(), "job-b".to_owned()])]);
    fake.book.lock().controls.clear();
    let ran = muster(&fake, &["cancel", "sweep[0-10]"]);
    ok(&ran);
    assert_eq!(asked(&fake), [("cancel", vec!["job-8".to_owned(), "job-9".to_owned()])], "one has ended");
    assert!(
        ran.out.contains("2 jobs cancelled") && ran.err.contains("1 job match"),
        "{}{}",
        ran.out,
        ran.err
    );
    fake.book.lock().controls.clear();
    ok(&muster(&fake, &["job", "hold", "array-8[5]"]));
    assert_eq!(asked(&fake), [("hold", vec!["job-9".to_owned()])]);
    for command in [&["job", "show"][..], &["job", "explain"], &["job", "logs"]] {
        let ran = muster(&fake, &[command, &["array-8[15]"]].concat());
        ok(&ran);
    }
    assert_eq!(fake.book.lock().logs[0].job_id, "job-b");
    let several = muster(&fake, &["job", "logs", "array-8[0-5]"]);
    assert!(several.code == 2 && several.err.contains("2 jobs"), "{}", several.err);
    for wrong in ["array-8[7]", "array-8[]", "array-8[x]", "job-8[0]", "array-8[50-60]"] {
        let ran = muster(&fake, &["job", "hold", wrong]);
        assert_eq!(ran.code, 2, "{wrong}: {}", ran.err);
    }
    assert_eq!(muster(&fake, &["job", "requeue", "array-8[0]"]).code, 3, "it does not run");
}

/// The one who asks may be an operator, whose hold goes over that of the owner: the server knows.
#[test]
fn members_that_their_owner_holds_can_be_held() {
    let fake = sweep();
    for (id, by_operator) in [("job-8", false), ("job-9", true)] {
        let hold = v1::JobHold { principal: "somebody".to_owned(), by_operator, ..Default::default() };
        let controls = v1::JobControls { hold: Some(hold), ..Default::default() };
        let mut book = fake.book.lock();
        book.jobs.get_mut(id).unwrap().status_mut().controls = Some(controls);
    }
    ok(&muster(&fake, &["job", "hold", "array-8[0,5]"]));
    assert_eq!(asked(&fake), [("hold", vec!["job-8".to_owned()])]);
}

/// One call may take fewer than a thousand jobs: it takes a hundred arrays.
#[test]
fn calls_go_on_until_nothing_is_left() {
    let fake = Fake::start();
    for n in 1..=5 {
        fake.add(&format!("job-{n}"), "small", JobPhase::Pending);
    }
    fake.book.lock().cancelled_at_once = Some(2);
    let ran = muster(&fake, &["cancel", "--name", "small", "--yes"]);
    ok(&ran);
    assert!(ran.out.contains("5 jobs cancelled"), "{}{}", ran.out, ran.err);
    let behind: Vec<String> =
        fake.book.lock().controls.iter().map(|(_, selector, _)| selector.after_job_id.clone()).collect();
    assert_eq!(behind[behind.len() - 3..], ["", "job-2", "job-4"], "{behind:?}");
}

#[test]
fn a_name_stands_for_its_array_before_its_members() {
    let fake = sweep();
    for args in [&["job", "array", "show", "sweep"][..], &["job", "show", "sweep"]] {
        let ran = muster(&fake, args);
        ok(&ran);
        assert!(ran.out.contains("array-8"), "{}", ran.out);
    }
    let ran = muster(&fake, &["cancel", "sweep"]);
    ok(&ran);
    let selectors: Vec<String> = {
        let book = fake.book.lock();
        book.controls
            .iter()
            .map(|(_, selector, _)| selector.filter.clone().unwrap_or_default().array_id)
            .collect()
    };
    assert!(selectors.iter().all(|array| array == "array-8"), "{selectors:?}");
    for args in [
        &["job", "explain", "sweep"][..],
        &["job", "logs", "array-8"],
        &["job", "modify", "array-8", "--tier", "batch"],
    ] {
        let ran = muster(&fake, args);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("muster job array show array-8"), "{}", ran.err);
    }
    fake.book.lock().arrays.push(array("array-zz", "sweep", counted(3)));
    let ran = muster(&fake, &["cancel", "sweep"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("array-8") && ran.err.contains("array-zz"), "{}", ran.err);
    // A name that begins like an array's id is a name.
    fake.add("job-1", "array-of-things", JobPhase::Running);
    ok(&muster(&fake, &["job", "show", "array-of-things"]));
}

#[test]
fn arrays_and_jobs_are_asked_together() {
    let fake = sweep();
    fake.book.lock().arrays.push(array("array-zz", "other", counted(3)));
    fake.add("job-1", "train", JobPhase::Running);
    let ran = muster(&fake, &["cancel", "array-8", "array-zz", "job-1"]);
    ok(&ran);
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    let book = fake.book.lock();
    let done = book.controls.iter().filter(|(_, _, only_looks)| !only_looks);
    let about: Vec<String> = done
        .map(|(_, selector, _)| {
            let filter = selector.filter.clone().unwrap_or_default();
            format!("{}{}", filter.array_id, filter.job_ids.join(" "))
        })
        .collect();
    assert_eq!(about, ["array-8", "array-zz", "job-1"]);
}

#[test]
fn arrays_are_waited_for_by_their_ids() {
    let fake = cluster(Vec::new());
    let text = format!(
        "{}---\n{}---\n{}",
        job("a", "command: [x]\n  array: 600"),
        job("b", "command: [x]\n  array: 600"),
        job("c", "command: [x]")
    );
    let watched = with_stdin(&fake, &["submit", "-", "--watch"], &text);
    assert_eq!(watched.code, 2, "{}", watched.err);
    assert!(fake.book.lock().request_ids.is_empty(), "it is refused before it is submitted");
    let named = with_stdin(&fake, &["submit", "-", "--name", "one"], &text);
    assert!(named.code == 2 && named.err.contains("--name is for one job"), "{}", named.err);
    assert!(fake.book.lock().request_ids.is_empty(), "they would all have one name");
    let waits = [1, 601].map(|id| array(&muster_types::ArrayId(id).to_string(), "a", counted(600)));
    fake.book.lock().arrays = waits.to_vec();
    let ran = with_stdin(&fake, &["submit", "-", "--wait"], &text);
    ok(&ran);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert!(
        lines[0] == "array-1" && lines[1].starts_with("array-") && lines[2].starts_with("job-"),
        "{lines:?}"
    );
    assert!(ran.err.contains("array-1: 600 succeeded, 0 failed, 0 cancelled"), "{}", ran.err);
}

#[test]
fn a_wait_goes_on_and_ends_with_the_worst() {
    let arrays = || vec![array("array-8", "fails", counted(3)), array("array-zz", "sweep", counted(3))];
    let fake = cluster(arrays());
    fake.add("job-1", "train", JobPhase::Pending);
    let ran = muster(&fake, &["job", "wait", "array-8", "array-zz", "job-1", "-o", "name"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, "job-1\n"), "{}", ran.err);
    for part in ["array-8: 0 succeeded, 3 failed", "array-zz: 3 succeeded, 0 failed"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    // One that has failed is enough, however long the others take.
    let fake = cluster(arrays());
    fake.add("job-1", "stuck", JobPhase::Pending);
    let ran = muster(&fake, &["job", "wait", "array-8", "job-1", "--for", "succeeded", "--timeout", "1m"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    // All have one time, and the next command names all of them.
    let fake = cluster(arrays());
    fake.book.lock().array_stays = true;
    let ran = muster(&fake, &["job", "wait", "array-8", "array-zz", "--timeout", "300ms"]);
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(ran.err.contains("next: muster job wait array-8 array-zz"), "{}", ran.err);
    let lists = fake.book.lock().array_lists.clone();
    assert!(lists.iter().all(|filter| !filter.array_id.is_empty()), "{lists:?}");
    assert_eq!(muster(&fake, &["job", "wait", "array-9"]).code, 3);
    assert_eq!(muster(&fake, &["job", "wait", "array-8", "--for", "running"]).code, 2);
}

#[test]
fn lists_say_how_many_members_are_not_created() {
    let fake = cluster(vec![array("array-8", "sweep", counted(3))]);
    for args in
        [&["list", "-o", "name"][..], &["list", "-o", "json"], &["list", "--each"], &["list", "--limit", "5"]]
    {
        let ran = muster(&fake, args);
        ok(&ran);
        assert!(ran.err.contains("3 members of array-8 are not created"), "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("nothing waits"), "{}", ran.err);
    }
    fake.book.lock().arrays[0].counts = Some(v1::ArrayCounts { uncreated: 1, ..Default::default() });
    let ran = muster(&fake, &["list", "--each"]);
    assert!(ran.err.contains("1 member of array-8 is not created"), "{}", ran.err);
}

#[test]
fn jobs_of_an_array_are_listed_by_one_of_them() {
    let fake = sweep();
    fake.add("job-1", "train", JobPhase::Pending);
    let ran = muster(&fake, &["job", "list", "--array", "job-8", "-o", "name"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 3), "{}{}", ran.out, ran.err);
    assert_eq!(fake.book.lock().lists.last().unwrap().filter.as_ref().unwrap().array_id, "array-8");
}

#[test]
fn arrays_are_listed_as_jobs_are() {
    let mut old = array("array-9", "old", counted(3));
    old.counts = Some(v1::ArrayCounts { succeeded: 3, ..Default::default() });
    old.end_time = Some(timestamp(1_700_000_001_000));
    let fake = cluster(vec![old, array("array-8", "sweep", counted(3))]);
    assert_eq!(muster(&fake, &["job", "array", "list", "-o", "name"]).out, "array-8\n");
    assert_eq!(muster(&fake, &["job", "array", "list", "--all", "-o", "name"]).out, "array-9\narray-8\n");
    assert_eq!(
        muster(&fake, &["job", "array", "list", "--all", "--limit", "1", "-o", "name"]).out,
        "array-9\n"
    );
    ok(&muster(&fake, &["job", "array", "list", "--mine", "--phase", "succeeded"]));
    let filter = fake.book.lock().array_lists.last().unwrap().clone();
    assert!(filter.mine && filter.phases == [i32::from(JobPhase::Succeeded)], "{filter:?}");
    ok(&muster(&fake, &["job", "array", "list", "--creator", "tenant/vision/ada"]));
    assert_eq!(fake.book.lock().array_lists.last().unwrap().creator, "tenant/vision/ada");
}

/// An array that is over, of which members with these indices have failed.
fn failed(indices: &str, complete: bool) -> v1::Array {
    let mut failed = array("array-8", "sweep", v1::JobArray { throttle: Some(5), ..counted(2_000) });
    failed.counts = Some(v1::ArrayCounts { failed: 2, succeeded: 1_998, ..Default::default() });
    failed.labels = [("team".to_owned(), "vision".to_owned())].into();
    failed.states = vec![v1::ArrayState {
        phase: JobPhase::Failed.into(),
        created: true,
        count: 2,
        indices: indices.to_owned(),
        complete,
    }];
    let mut group = v1::TaskGroup { workers: 1, ..Default::default() };
    group.command_mut().push("x".to_owned());
    failed.spec = Some(v1::JobSpec {
        groups: vec![group],
        dependencies: vec![v1::Dependency { job_id: "job-1".to_owned(), ..Default::default() }],
        ..Default::default()
    });
    failed
}

#[test]
fn failed_members_are_submitted_again() {
    let fake = cluster(vec![failed("4-4,9", true)]);
    let looked = muster(&fake, &["job", "array", "resubmit", "sweep", "--failed", "--dry-run"]);
    ok(&looked);
    assert!(looked.out.contains("2 members of array-8 would be submitted again: 4,9"), "{}", looked.out);
    assert!(fake.book.lock().submitted.is_empty());
    let ran = muster(&fake, &["job", "array", "resubmit", "array-8", "--failed"]);
    ok(&ran);
    assert_eq!(ran.out, "array-1\n");
    let sent = fake.book.lock().submitted.clone();
    let spec = sent[0].spec();
    let members = spec.array.clone().unwrap();
    assert_eq!((members.indices.as_str(), members.throttle), ("4,9", Some(5)));
    assert_eq!((sent[0].name.as_str(), sent[0].labels["team"].as_str()), ("sweep", "vision"));
    assert!(spec.dependencies.is_empty(), "what it waited for is over");
    let none = muster(&fake, &["job", "array", "resubmit", "array-8", "--cancelled"]);
    assert!(none.code == 3 && none.err.contains("no member that was cancelled"), "{}", none.err);
    let unsaid = muster(&fake, &["job", "array", "resubmit", "array-8"]);
    assert!(unsaid.code == 2 && unsaid.err.contains("--cancelled"), "{}", unsaid.err);
    fake.book.lock().arrays[0].counts = Some(v1::ArrayCounts { failed: 2, active: 1, ..Default::default() });
    let early = muster(&fake, &["job", "array", "resubmit", "array-8", "--failed"]);
    assert!(early.code == 5 && early.err.contains("1 member of the array"), "{}", early.err);
    ok(&muster(&fake, &["job", "array", "resubmit", "array-8", "--failed", "--yes"]));
}

#[test]
fn members_in_many_ranges_are_submitted_again_as_several_arrays() {
    let array = failed("0-0", false);
    let fake = cluster(vec![array.clone()]);
    // No three of them have one distance.
    for ordinal in (0..300_u32).map(|n| n * 6 + n % 2 * 2 + n % 3) {
        let job = member(&array, ordinal, JobPhase::Failed);
        fake.book.lock().jobs.insert(job.id.clone(), job);
    }
    let ran = muster(&fake, &["job", "array", "resubmit", "array-8", "--failed"]);
    ok(&ran);
    let sent = fake.book.lock().submitted.clone();
    let members: u32 = sent
        .iter()
        .map(|job| job.spec().array.clone().unwrap().indices)
        .map(|indices| muster_types::array::indices(&indices).unwrap())
        .map(|ranges| ranges.iter().map(muster_types::IndexRange::count).sum::<u32>())
        .sum();
    assert_eq!((ran.out.lines().count(), members), (sent.len(), 300), "{}", ran.err);
}

#[test]
fn an_option_replaces_the_array_of_a_file() {
    let fake = Fake::start();
    let file = job("sweep", "command: [x]\n  array: 100");
    let ran = with_stdin(&fake, &["submit", "-", "--array", "4-4%2"], &file);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 1), "{}", ran.err);
    let array = fake.book.lock().submitted[0].spec().array.clone().unwrap();
    assert_eq!((array.indices.as_str(), array.throttle), ("4", Some(2)));
    assert_eq!(
        with_stdin(&fake, &["submit", "-", "--array", "3"], &job("one", "command: [x]")).out.lines().count(),
        3
    );
    let two = format!("{file}---\n{file}");
    assert_eq!(with_stdin(&fake, &["submit", "-", "--array", "3"], &two).code, 2);
    assert_eq!(with_stdin(&fake, &["submit", "-", "--array", "x"], &file).code, 2);
}

#[test]
fn jobs_of_one_file_wait_for_each_other_by_name() {
    let fake = Fake::start();
    ok(&muster(&fake, &["submit", "--validate-only", &super::example("pipeline.yaml")]));
    let ran = muster(&fake, &["submit", &super::example("pipeline.yaml")]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 6), "{}", ran.err);
    let sent = fake.book.lock().submitted.clone();
    let named: Vec<&str> =
        sent.iter().flat_map(|job| &job.spec().dependencies).map(|on| on.job_name.as_str()).collect();
    assert!(named.ends_with(&["prepare", "train"]), "{named:?}");
}
