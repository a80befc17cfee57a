//! Labels, annotations, and jobs that are shown as job files.

use muster_wire::v1;

use super::{Fake, example, finish, muster, with_stdin};

#[test]
fn labels_go_with_a_job_and_come_back_as_a_job_file() {
    let fake = Fake::start();
    let options =
        ["--label", "team=vision", "--label", "stage=", "--annotation", "note=a: b", "--tenant", "vision"];
    let file = example("train.yaml");
    let args: Vec<&str> = ["submit", file.as_str()].into_iter().chain(options).collect();
    let ran = muster(&fake, &args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let id = ran.out.trim();
    let shown = muster(&fake, &["job", "show", id]);
    for part in ["creator", "tenant/vision/ada", "label", "team=vision", "stage=", "annotation", "note: a: b"]
    {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    let json = muster(&fake, &["job", "show", id, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["labels"]["team"], &json["annotations"]["note"]), (&"vision".into(), &"a: b".into()));
    let yaml = muster(&fake, &["job", "show", id, "-o", "yaml"]);
    assert!(yaml.out.starts_with("apiVersion: muster.dev/v1\nkind: Job\nmetadata:\n"), "{}", yaml.out);
    assert!(yaml.out.contains("\nstatus:\n") && !yaml.out.contains("cpuMilli"), "{}", yaml.out);
    let again = with_stdin(&fake, &["submit", "-"], &yaml.out);
    assert_eq!(again.code, 0, "{}", again.err);
    let book = fake.book.lock();
    assert_eq!(book.jobs[id].spec, book.jobs[again.out.trim()].spec);
}

#[test]
fn mistakes_in_labels_are_named() {
    let fake = Fake::start();
    let file = example("train.yaml");
    for (options, expected) in [
        (["--label", "team"], "a key and a value have `=` between them"),
        (["--label", "=x"], "metadata.labels.\"\": the key must be"),
        (["--label", "te am=x"], "metadata.labels.te am: the key must be"),
        (["--annotation", "note=\u{1b}"], "metadata.annotations.note: the value must be text"),
    ] {
        let args: Vec<&str> = ["submit", file.as_str()].into_iter().chain(options).collect();
        let ran = muster(&fake, &args);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(expected), "{options:?}: {}", ran.err);
    }
    assert!(fake.book.lock().request_ids.is_empty());
}

#[test]
fn a_list_asks_for_labels_and_for_who_submitted() {
    let fake = Fake::start();
    for args in [["-l", "team=a,!debug"].as_slice(), &["--mine"], &["--creator", "admin/ops"]] {
        let ran = muster(&fake, &["job", "list", "--all"].iter().chain(args).copied().collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let lists = fake.book.lock().lists.clone();
    let lists: Vec<v1::JobFilter> = lists.into_iter().map(|list| list.filter.unwrap_or_default()).collect();
    assert_eq!((lists[0].label_selector.as_str(), lists[0].mine), ("team=a,!debug", false));
    assert_eq!((lists[1].label_selector.as_str(), lists[1].mine), ("", true));
    assert_eq!((lists[2].creator.as_str(), lists[2].mine), ("admin/ops", false));
}

#[test]
fn the_schema_is_printed_without_a_cluster() {
    let ran = finish(super::command("", &["schema", "job"]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let schema: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(schema["properties"]["apiVersion"]["const"], "muster.dev/v1");
    assert_eq!(schema["properties"]["kind"]["const"], "Job");
    assert!(schema.to_string().contains("runTimeLimit"), "{schema}");
}
