//! `muster job cancel|hold|release|requeue|suspend|modify`.

use muster_wire::time::duration;
use muster_wire::v1;

use super::{Fake, example, muster};

/// A fake cluster with two jobs of one team and one of another.
fn cluster() -> (Fake, Vec<String>) {
    let fake = Fake::start();
    let file = example("train.yaml");
    let mut ids = Vec::new();
    for team in ["vision", "vision", "speech"] {
        let ran = muster(&fake, &["submit", &file, "--label", &format!("team={team}")]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ids.push(ran.out.trim().to_owned());
    }
    (fake, ids)
}

/// What was asked: the call, and whether it only looked.
fn asked(fake: &Fake) -> Vec<(&'static str, bool)> {
    let book = fake.book.lock();
    book.controls.iter().map(|(call, _, validate_only)| (*call, *validate_only)).collect()
}

#[test]
fn a_selector_is_looked_at_before_it_does_anything() {
    let (fake, ids) = cluster();
    let ran = muster(&fake, &["job", "hold", "-l", "team=vision", "--dry-run"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains("2 jobs would be held") && ran.out.contains(&ids[1]), "{}", ran.out);
    assert!(asked(&fake).iter().all(|(_, validate_only)| *validate_only), "{:?}", asked(&fake));
    for (command, call, done) in [
        ("hold", "hold", "2 jobs held"),
        ("release", "release", "2 jobs released"),
        ("resume", "release", "2 jobs released"),
        ("requeue", "requeue", "2 jobs requeued"),
        ("suspend", "suspend", "2 jobs suspended"),
        ("cancel", "cancel", "2 jobs cancelled"),
    ] {
        fake.book.lock().controls.clear();
        let ran = muster(&fake, &["job", command, "-l", "team=vision"]);
        assert_eq!((ran.code, ran.out.trim()), (0, done), "{}", ran.err);
        let asked = asked(&fake);
        assert_eq!(asked.last(), Some(&(call, false)));
        assert_eq!(asked.iter().filter(|(_, validate_only)| !validate_only).count(), 1, "{asked:?}");
    }
    let json = muster(&fake, &["job", "hold", "-l", "team=vision", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["kind"], &json["jobs"]), (&"ControlledJobs".into(), &2.into()));
}

/// A selector that finds every job needs `--yes`. One that finds none fails.
#[test]
fn all_jobs_are_asked_for_and_none_are_not_found() {
    let (fake, _) = cluster();
    for args in [["--all"].as_slice(), &["--name", "t"]] {
        fake.book.lock().controls.clear();
        let command: Vec<&str> = ["job", "cancel"].iter().chain(args).copied().collect();
        let ran = muster(&fake, &command);
        assert_eq!(ran.code, 5, "{}", ran.err);
        let text = "3 jobs would be cancelled";
        assert!(ran.err.contains(text) && ran.err.contains("every job that you may cancel"), "{}", ran.err);
        assert!(ran.err.contains("--yes"), "{}", ran.err);
        assert!(asked(&fake).iter().all(|(_, validate_only)| *validate_only));
        let ran = muster(&fake, &command.iter().copied().chain(["--yes"]).collect::<Vec<_>>());
        assert_eq!((ran.code, ran.out.trim()), (0, "3 jobs cancelled"), "{}", ran.err);
    }
    let ran = muster(&fake, &["job", "hold", "-l", "team=nobody"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("no job that can be held matches"), "{}", ran.err);
    let ran = muster(&fake, &["job", "hold"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("say which jobs to hold"), "{}", ran.err);
    let ran = muster(&fake, &["job", "hold", "job-1", "--all"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
}

#[test]
fn jobs_that_are_named_are_asked_together() {
    let (fake, ids) = cluster();
    let ran = muster(&fake, &["job", "requeue", &ids[0], &ids[2], &ids[0]]);
    assert_eq!((ran.code, ran.out.trim()), (0, "2 jobs requeued"), "{}", ran.err);
    let controls = fake.book.lock().controls.clone();
    assert_eq!(controls.len(), 1);
    assert_eq!(controls[0].1.filter.clone().unwrap_or_default().job_ids, [ids[0].clone(), ids[2].clone()]);
}

#[test]
fn a_change_names_its_fields_and_what_it_was_made_from() {
    let (fake, ids) = cluster();
    let id = ids[0].as_str();
    let ran = muster(
        &fake,
        &["job", "modify", id, "--tier", "batch", "--run-time-limit", "2h", "--deadline", "none"],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    // A part of the labels is changed in what the job has.
    let ran = muster(&fake, &["job", "modify", id, "--label", "stage=eval", "--label", "team-"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = muster(&fake, &["job", "modify", id, "--tier", "batch", "--etag", "1-1", "--dry-run"]);
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains("MS-2007"), "{}", ran.err);
    let updates = fake.book.lock().updates.clone();
    let paths = |update: &v1::UpdateJobRequest| update.update_mask.clone().unwrap_or_default().paths;
    assert_eq!(paths(&updates[0]), ["spec.tier", "spec.run_time_limit", "spec.deadline"]);
    let spec = updates[0].job.clone().unwrap().spec.unwrap();
    assert_eq!((spec.run_time_limit, spec.deadline), (Some(duration(7_200_000)), None));
    assert_eq!(updates[0].etag, "", "nothing of it depends on the job");
    assert_eq!(paths(&updates[1]), ["labels"]);
    let labels = updates[1].job.clone().unwrap().labels;
    assert_eq!(labels, [("stage".to_owned(), "eval".to_owned())].into());
    assert!(updates[2].validate_only);
    // Of an array the throttle is changed, and nothing else.
    let array = id.replacen("job-", "array-", 1);
    for (throttle, expected) in [("50", Some(50)), ("none", None)] {
        let ran = muster(&fake, &["job", "modify", &array, "--throttle", throttle]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let update = fake.book.lock().updates.last().cloned().expect("it was asked for");
        assert_eq!((&update.job_id, paths(&update)), (&array, vec!["spec.array.throttle".to_owned()]));
        let asked = update.job.unwrap().spec.unwrap().array.unwrap();
        assert_eq!(asked, v1::JobArray { throttle: expected, ..Default::default() });
    }
    for args in [
        &[array.as_str(), "--throttle", "few"][..],
        &[&array, "--throttle", "-1"],
        &[&array, "--throttle", "5", "--tier", "batch"],
        &[id, "--throttle", "5"],
    ] {
        let ran = muster(&fake, &[&["job", "modify"][..], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
    }
    for (args, expected) in [
        (["--tier", "urgent"], "tier"),
        (["--run-time-limit", "soon"], "--run-time-limit"),
        (["--label", "team"], "neither key=value nor key-"),
    ] {
        let ran = muster(&fake, &["job", "modify", id, args[0], args[1]]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
    }
    let ran = muster(&fake, &["job", "modify", id]);
    assert!(ran.code == 2 && ran.err.contains("say what to change"), "{}", ran.err);
}

#[test]
fn nodes_are_asked_for_by_tests_and_by_name() {
    let fake = Fake::start();
    let file = example("train.yaml");
    let options = ["--where", "zone in (a,b),gib>512", "--only", "h1,h2", "--exclude", "h3"];
    let ran = muster(&fake, &[&["submit", &file], options.as_slice()].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let id = ran.out.trim().to_owned();
    let dry = muster(&fake, &[&["submit", &file, "--dry-run"], options.as_slice()].concat());
    for part in ["key: zone", "greater: 512", "- h2", "exclude:"] {
        assert!(dry.code == 0 && dry.out.contains(part), "{part}\n{}\n{}", dry.out, dry.err);
    }
    for change in [["--exclude", "h4,h5"], ["--where", "none"], ["--only", "any"]] {
        let ran = muster(&fake, &["job", "modify", &id, change[0], change[1]]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let updates = fake.book.lock().updates.clone();
    let nodes: Vec<v1::NodeRequirements> = updates
        .iter()
        .map(|update| update.job.clone().unwrap().spec.unwrap().nodes.unwrap_or_default())
        .collect();
    assert!(updates.iter().all(|update| update.update_mask.clone().unwrap().paths == ["spec.nodes"]));
    assert_eq!((nodes[0].expressions.len(), nodes[0].only.len()), (2, 2));
    assert_eq!(nodes[0].exclude, ["h4", "h5"]);
    assert!(nodes[1].expressions.is_empty() && nodes[1].only.len() == 2, "{nodes:?}");
    assert!(nodes[2].only.is_empty() && nodes[2].expressions.len() == 2, "{nodes:?}");
    for (args, expected) in [
        (["--where", "zone near a"], "character 6"),
        (["--only", "H1"], "spec.nodes.only[0]"),
        (["--exclude", "h1,H2"], "spec.nodes.exclude[1]"),
    ] {
        let ran = muster(&fake, &["submit", &file, args[0], args[1]]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(expected), "{expected}\n{}", ran.err);
    }
    let ran = muster(&fake, &["job", "modify", &id, "--where", "gib>much"]);
    assert!(ran.code == 2 && ran.err.contains("--where: character 5"), "{}", ran.err);
}
