//! The binary as people and scripts use it: output, errors, exit codes.

// A panic here is the report; clippy knows that only of functions marked as tests.
#![allow(clippy::unwrap_used)]

mod arrays;
mod controls;
mod conversions;
mod fake;
mod interrupts;
mod labels;
mod nodes;
mod policies;
mod policy_files;
mod ports;

use std::io::Write;
use std::process::{Command, Stdio};

use fake::Fake;
use muster_wire::v1::JobPhase;

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn command(endpoints: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.args(args).env_clear().env("MUSTER_ENDPOINTS", endpoints).stdin(Stdio::null());
    command
}

fn finish(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn muster(fake: &Fake, args: &[&str]) -> Ran {
    finish(command(&fake.endpoint, args))
}

fn with_stdin(fake: &Fake, args: &[&str], text: &str) -> Ran {
    let mut child = command(&fake.endpoint, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments may be gone before it reads.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn job(name: &str, spec: &str) -> String {
    format!("apiVersion: muster.dev/v1\nkind: Job\nmetadata:\n  name: {name}\nspec:\n  {spec}\n")
}

fn example(name: &str) -> String {
    format!("{}/../../ops/examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn dead_endpoint() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_file_that_is_printed_for_a_held_job_is_said_not_to_hold_it() {
    let ran = finish(command(&dead_endpoint(), &["submit", &example("train.yaml"), "--hold", "--dry-run"]));
    assert!(ran.code == 0 && ran.err.contains("with --hold"), "{}", ran.err);
}

#[test]
fn nothing_is_submitted_for_a_terminal_that_is_not_there() {
    let fake = Fake::start();
    let words: [&[&str]; 3] =
        [&["run", "-it", "--", "bash"], &["attach", "job-3f0"], &["exec", "job-3f0", "-it", "--", "sh"]];
    for words in words {
        let ran = with_stdin(&fake, words, "");
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains("a terminal is needed"), "{words:?}: {}", ran.err);
    }
    assert!(fake.book.lock().submitted.is_empty());
}

#[test]
fn an_id_that_cannot_be_written_to_stdout_goes_to_stderr() {
    let fake = Fake::start();
    for words in [&["submit", &example("train.yaml")] as &[&str], &["run", "--detach", "--", "true"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command(&fake.endpoint, words);
        command.stdout(full).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
        assert!(
            err.contains("submitted job-") && err.contains("the output could not be written"),
            "{words:?}: {err}"
        );
    }
    assert_eq!(fake.book.lock().submitted.len(), 2);
}

#[test]
fn help_shows_commands_examples_and_exit_codes() {
    let ran = finish(command("", &["--help"]));
    assert_eq!(ran.code, 0);
    for part in [
        "submit",
        "run",
        "plan",
        "job",
        "node",
        "queue",
        "policy",
        "cluster",
        "completion",
        "Exit codes:",
        "Examples:",
    ] {
        assert!(ran.out.contains(part), "{part} is missing in\n{}", ran.out);
    }
    for args in [
        ["submit", "--help"].as_slice(),
        &["job", "list", "--help"],
        &["job", "logs", "--help"],
        &["exec", "--help"],
        &["port-forward", "--help"],
        &["run", "--help"],
        &["job", "wait", "--help"],
        &["plan", "--help"],
        &["policy", "set", "--help"],
        &["top", "--help"],
        &["open", "--help"],
        &["debug", "bundle", "--help"],
        &["log", "bisect", "--help"],
        &["incident", "capture", "--help"],
        &["report", "idle", "--help"],
        &["report", "waits", "--help"],
        &["report", "goodput", "--help"],
        &["report", "predictions", "--help"],
        &["job", "when", "--help"],
        &["placement", "why", "--help"],
        &["queue", "why", "--help"],
        &["fairness", "verify", "--help"],
        &["shadow", "--help"],
    ] {
        let ran = finish(command("", args));
        assert!(ran.code == 0 && ran.out.contains("Examples:"), "{args:?}\n{}", ran.out);
    }
}

#[test]
fn wrong_usage_is_2() {
    let train = example("train.yaml");
    for args in [
        ["nonsense"].as_slice(),
        &["job", "show"],
        &["job", "list", "--limit", "0"],
        &["submit", "x", "--wait", "--watch"],
        &["job", "list", "--timeout", "soon"],
        &["job", "logs", "job-1", "--rank", "99999999"],
        &["job", "wait", "job-1", "--for", "ever"],
        &["log", "bisect", "--check", "soon"],
        &["incident", "capture", "--out", "x"],
        &["report", "idle", "--tail"],
        &["report", "idle", "--sample", "1s", "--no-planner"],
        &["report", "waits", "--sample", "1s", "--ledger", "x"],
        &["report", "cost", "--ledger", "x"],
        &["report", "goodput", "--by", "price"],
        &["shadow", "--for", "1h"],
        &["shadow", "--policy", "next.yaml", "--for", "ever"],
        &["exec", "job-1"],
        &["exec", "job-1", "--env", "A", "--", "true"],
        &["exec", "job-1", "-t", "--", "true"],
        &["port-forward", "job-1"],
        &["port-forward", "job-1", "0"],
        &["port-forward", "job-1", "6006:x"],
        &["port-forward", "job-1", "6006", "--address", "here"],
        &["run"],
        &["run", "--workers", "none", "--", "true"],
        &["run", "--env", "NOT_SET_HERE", "--", "true"],
        &["run", "--detach", "--tiem-limit", "4h", "--", "true"],
        &["submit", train.as_str(), "--wath"],
        &["run", "--file", "x", "--workers", "2"],
        &["job", "list", "--consistency", "strong"],
        &["job", "list", "--max-staleness", "0"],
        &["job", "list", "--max-staleness", "2d"],
        &["job", "list", "--consistency", "bounded"],
        &["job", "list", "--consistency", "any", "--max-staleness", "1s"],
        &["job", "show", "job-1", "--at", "yesterday"],
        &["node", "list", "--at", "7", "--consistency", "any"],
        &["top", "-o", "name"],
        &["top", "--tab", "weather"],
        &["open", "fleet", "extra"],
        &["open", "fleet", "--print"],
        &["open", "fleet", "--at", "yesterday", "--web", "127.0.0.1:1"],
        &["open", "cluster", "--at", "7", "--web", "127.0.0.1:1"],
        &["debug", "bundle", "--decisions", "99999999"],
    ] {
        assert_eq!(finish(command("127.0.0.1:1", args)).code, 2, "{args:?}");
    }
}

#[test]
fn one_frame_of_the_live_view_is_a_document() {
    let fake = Fake::start();
    let ran = muster(&fake, &["top", "--once", "--tab", "queues", "-o", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let frame: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&frame["kind"], &frame["tab"]), (&"Top".into(), &"queues".into()), "{frame:#}");
    assert!(frame["items"].as_array().unwrap().iter().any(|row| row["tenant"] == "vision"), "{frame:#}");
    let ran = muster(&fake, &["top", "--tab", "replicas"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("no terminal") && ran.out.contains("NO: "), "{}\n{}", ran.err, ran.out);
}

#[test]
fn what_a_bundle_would_hold_needs_no_cluster() {
    let ran = finish(command(&dead_endpoint(), &["debug", "bundle", "--list"]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("manifest.json") && ran.out.contains("decisions.jsonl"), "{}", ran.out);
}

#[test]
fn unreachable_is_6_and_names_each_endpoint() {
    let (first, second) = (dead_endpoint(), dead_endpoint());
    let ran = finish(command(&format!("{first},{second}"), &["job", "list"]));
    assert_eq!(ran.code, 6, "{}", ran.err);
    assert!(ran.out.is_empty());
    for part in [first.as_str(), second.as_str(), "error: no replica could be reached", "next: "] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
}

#[test]
fn no_endpoint_is_2_and_the_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut without = command("", &["job", "list"]);
    without.env("XDG_CONFIG_HOME", directory.path());
    let ran = finish(without);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("muster/config.toml"), "{}", ran.err);
}

#[test]
fn endpoints_come_from_the_file_when_nothing_else_says() {
    let fake = Fake::start();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("muster")).unwrap();
    let text = format!("endpoints = [\"{}\"]\n", fake.endpoint);
    std::fs::write(directory.path().join("muster/config.toml"), text).unwrap();
    let mut configured = command("", &["job", "list"]);
    configured.env("XDG_CONFIG_HOME", directory.path());
    assert_eq!(finish(configured).code, 0);
    let flag = finish(command("127.0.0.1:1", &["--endpoint", &fake.endpoint, "job", "list"]));
    assert_eq!(flag.code, 0, "{}", flag.err);
}

#[test]
fn submit_prints_ids_and_keeps_the_request_id() {
    let fake = Fake::start();
    let id = "0000aaaa-0000-4000-8000-00000000000b";
    let ran = with_stdin(&fake, &["submit", "-", "--request-id", id], &job("train", "command: [run]"));
    assert_eq!((ran.code, ran.out.as_str()), (0, "job-1\n"), "{}", ran.err);
    assert!(ran.err.contains("submitted 1 job at log index 41"));
    assert_eq!(fake.book.lock().request_ids, [id]);
    let quiet = with_stdin(&fake, &["submit", "-", "-q", "-o", "json"], &job("b", "command: [run]"));
    assert!(quiet.err.is_empty());
    let document: serde_json::Value = serde_json::from_str(&quiet.out).unwrap();
    assert_eq!(document["schema"], "muster.dev/v1");
    assert_eq!(document["kind"], "Submission");
    assert_eq!(document["jobIds"][0], "job-2");
    assert_eq!(document["logIndex"], 41);
}

#[test]
fn a_bad_file_lists_every_mistake_and_asks_nobody() {
    let text = job("train", "workers: 0\n  command: [run]\n  cpu: lots\n  stopGrace: 30");
    let ran = with_stdin(&Fake::start(), &["submit", "-"], &text);
    assert_eq!(ran.code, 2);
    assert_eq!(
        ran.err,
        "error: the job file is not valid\n  \
           stdin:8: spec.cpu: must be CPUs like 2, 0.5 or 500m, got \"lots\"\n  \
           stdin:9: spec.stopGrace: must be a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms), got \"30\"\n\
         next: correct the file; `muster submit --validate-only FILE` checks it without submitting\n"
    );
    let fake = Fake::start();
    let ran = with_stdin(&fake, &["submit", "-"], &job("train", "workers: 0\n  comand: [run]"));
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("stdin:7: comand: unknown field; did you mean command?"), "{}", ran.err);
    assert!(fake.book.lock().request_ids.is_empty());
    assert_eq!(finish(command("127.0.0.1:1", &["submit", "/nowhere/x.yaml"])).code, 2);
}

#[test]
fn the_servers_refusal_speaks_of_the_file() {
    let fake = Fake::start();
    let ran = with_stdin(&fake, &["submit", "-"], &job("forbidden-group", "command: [run]\n  cpu: 2"));
    assert_eq!(ran.code, 2);
    assert_eq!(
        ran.err,
        "error: MS-1001 INVALID_FIELD: the request breaks these rules\n  \
           stdin:7: spec.cpu: must be odd today\n\
         next: correct the fields named above and try again\n"
    );
    let batch = format!(
        "{}---\n{}",
        job("a", "command: [run]"),
        job("forbidden-group", "command: [run]\n  memory: 2Gi")
    );
    let ran = with_stdin(&fake, &["submit", "-"], &batch);
    assert!(ran.err.contains("stdin:14: spec.memory: must be even"), "{}", ran.err);
}

#[test]
fn exit_codes_follow_the_refusal() {
    let fake = Fake::start();
    fake.add("job-5", "done", JobPhase::Succeeded);
    let denied = with_stdin(&fake, &["submit", "-"], &job("denied", "command: [run]"));
    assert_eq!(denied.code, 4, "{}", denied.err);
    let never = muster(&fake, &["submit", &example("too-big.yaml")]);
    assert_eq!(never.code, 5);
    assert!(never.err.starts_with("error: MS-1002 NEVER_FITS: 64 workers"), "{}", never.err);
    assert!(never.err.contains("next: ask for fewer"));
    let missing = muster(&fake, &["job", "show", "job-9"]);
    assert_eq!(missing.code, 3);
    assert!(missing.err.contains("MS-2001"));
    assert_eq!(muster(&fake, &["job", "cancel", "job-5"]).code, 5);
    assert_eq!(muster(&fake, &["node", "show", "host-9"]).code, 3);
    let name = muster(&fake, &["job", "show", "train"]);
    assert_eq!(name.code, 3);
    assert!(name.err.contains("muster job list --all --name train"), "{}", name.err);
    assert_eq!(muster(&fake, &["job", "show", "No Name"]).code, 2);
}

#[test]
fn a_name_stands_for_the_one_job_that_has_it() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Succeeded);
    fake.add("job-2", "train", JobPhase::Running);
    fake.add("job-3", "train-2", JobPhase::Running);
    fake.add("job-4", "twice", JobPhase::Running);
    fake.add("job-5", "twice", JobPhase::Pending);
    fake.add("job-6", "done", JobPhase::Succeeded);
    assert!(muster(&fake, &["job", "show", "train"]).out.contains("job-2"));
    assert!(muster(&fake, &["job", "show", "done"]).out.contains("job-6"));
    let twice = muster(&fake, &["cancel", "twice"]);
    assert_eq!(twice.code, 2, "{}", twice.err);
    assert!(twice.err.contains("job-4 job-5"), "{}", twice.err);
    // What has ended is shown by its name, and not cancelled by it.
    let done = muster(&fake, &["cancel", "done"]);
    assert_eq!(done.code, 5, "{}", done.err);
    let cancelled = muster(&fake, &["cancel", "train", "-o", "name"]);
    assert_eq!((cancelled.code, cancelled.out.as_str()), (0, "job-2\n"), "{}", cancelled.err);
}

#[test]
fn words_of_other_tools_lead_to_the_ones_here() {
    for (words, hint) in [
        (&["get", "jobs"][..], "muster job list"),
        (&["describe", "job", "train"], "muster job show"),
        (&["squeue"], "muster list"),
        (&["submt"], "muster submit"),
        (&["nonsense"], "--help"),
    ] {
        let ran = finish(command("", words));
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(hint), "{words:?}: {}", ran.err);
    }
    let bare = finish(command("", &[]));
    assert!(bare.code == 0 && bare.out.contains("Exit codes:"), "{}{}", bare.out, bare.err);
}

#[test]
fn a_list_shows_what_is_active_and_an_array_as_one_row() {
    let fake = Fake::start();
    fake.add("job-1", "old", JobPhase::Succeeded);
    for n in 2..=6 {
        fake.add(&format!("job-{n}"), "sweep", JobPhase::Pending);
    }
    for (id, job) in &mut fake.book.lock().jobs {
        let member = |index| muster_wire::v1::ArrayMember {
            array_id: "array-2".to_owned(),
            index,
            size: 5,
            ordinal: index,
        };
        job.array = (job.name == "sweep").then(|| member(id[4..].parse::<u32>().unwrap() - 2));
    }
    let ran = muster(&fake, &["job", "list"]);
    let rows: Vec<Vec<&str>> = ran.out.lines().skip(1).map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 1, "{}", ran.out);
    assert_eq!(rows[0][..7], ["job-2", "sweep[0-4]", "default", "standard", "pending", "20", "40"]);
    assert_eq!(muster(&fake, &["list", "--each"]).out.lines().count(), 6);
    assert_eq!(muster(&fake, &["list", "--all"]).out.lines().count(), 3);
    assert_eq!(muster(&fake, &["job", "list", "--all", "-o", "name"]).out.lines().count(), 6);
    // The fake's jobs are of 2023.
    let none = muster(&fake, &["list", "--since", "1h"]);
    assert!(none.out.lines().count() == 1 && none.err.contains("--all"), "{}{}", none.out, none.err);
}

/// Members that are not created are counted in the row of their array, and an array of which none is created has one.
#[test]
fn arrays_are_listed_and_shown_with_members_that_are_not_created() {
    let fake = Fake::start();
    fake.add("job-2", "sweep", JobPhase::Pending);
    let counts = muster_wire::v1::ArrayCounts { uncreated: 99_000, pending: 1_000, ..Default::default() };
    let array = |id: &str, name: &str| muster_wire::v1::Array {
        id: id.to_owned(),
        name: name.to_owned(),
        tenant: "default".to_owned(),
        size: 100_000,
        array: Some(muster_wire::v1::JobArray { size: 100_000, throttle: Some(7), ..Default::default() }),
        counts: Some(counts),
        states: vec![muster_wire::v1::ArrayState {
            phase: JobPhase::Failed.into(),
            created: true,
            count: 2,
            indices: "4,9".to_owned(),
            complete: true,
        }],
        reason: "ARRAY_THROTTLED".to_owned(),
        worker_count: 1,
        ..Default::default()
    };
    let mut book = fake.book.lock();
    book.arrays = vec![array("array-2", "sweep"), array("array-zz", "held")];
    for job in book.jobs.values_mut() {
        let (array_id, size) = ("array-2".to_owned(), 100_000);
        job.array = Some(muster_wire::v1::ArrayMember { array_id, index: 0, size, ordinal: 0 });
    }
    drop(book);
    let ran = muster(&fake, &["job", "list"]);
    assert_eq!(ran.out.lines().count(), 3, "{}{}", ran.out, ran.err);
    for part in ["sweep[0] and 99000 more", "array-zz", "held[99000 of 100000]"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let ran = muster(&fake, &["job", "array", "list", "-o", "name"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "array-2\narray-zz\n"), "{}", ran.err);
    for show in [
        &["job", "array", "show", "array-2"][..],
        &["job", "show", "array-2"],
        &["job", "array", "show", "job-2"],
    ] {
        let ran = muster(&fake, show);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains("100000 (100000%7)") && ran.out.contains("4,9"), "{}", ran.out);
    }
    assert_eq!(muster(&fake, &["job", "array", "show", "array-3"]).code, 3);
    let large = with_stdin(&fake, &["submit", "-"], &job("large", "command: [x]\n  array: 2000"));
    assert_eq!((large.code, large.out.lines().count()), (0, 1), "{}{}", large.out, large.err);
    assert!(large.out.starts_with("array-"), "{}", large.out);
}

#[test]
fn the_examples_are_valid() {
    let fake = Fake::start();
    let one_job = [
        "train.yaml",
        "train.sh",
        "serving-spread.yaml",
        "segments.yaml",
        "spot.yaml",
        "tpu-slice.yaml",
        "elastic.yaml",
        "elastic-groups.yaml",
        "share.yaml",
        "torchrun.yaml",
        "mpi.yaml",
        "ray.yaml",
        "parallel.yaml",
    ];
    for (file, jobs) in one_job.map(|file| (file, 1)).into_iter().chain([
        ("short-array.yaml", 20),
        ("array.yaml", 21),
        ("near-cache.yaml", 2),
    ]) {
        let ran = muster(&fake, &["submit", &example(file)]);
        assert_eq!((ran.code, ran.out.lines().count()), (0, jobs), "{}", ran.err);
    }
    for file in one_job.into_iter().chain(["short-array.yaml", "too-big.yaml"]) {
        let ran = muster(&fake, &["submit", "--validate-only", &example(file)]);
        assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
        assert!(ran.err.contains("nothing was submitted"));
    }
}

#[test]
fn a_plan_fits_a_terminal_and_has_every_number() {
    let fake = Fake::start();
    let ran = muster(&fake, &["plan", &example("train.yaml")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
    for part in [
        "train: WAITING_FOR_CAPACITY\n  4 workers with h100:8 have to be in one rack;",
        "\n  2 different requests are before it in the pending queue\n",
        "\n  expected to run 2h (p90 3h)\n",
        "\n  by policy version 812\n",
        "\nplace: eu-north / eu-north-1 on h100\n  host-0: 1 workers, 8 devices\n",
        "\n  and 4 more; -o json shows all of them\n",
        "\n  score 550000: topology 500 x 900, packing 400 x 250\n",
        "\n  p50  2100-01-01T01:00:00Z (in ",
        "\ncapacity is reserved for\n  job-3e1 big, 64 workers, starts 2100-01-01T00:00:00Z (in ",
        ", its start\n      has slipped\n",
        "\n  h100 in eu-north: wants 4.5, 4 left, 0.5 short: nominal quota and borrowing\n",
        "\nCLUSTER              TYPE  FREE  OF  KEPT  FIT  DOMAIN  HOLDS\n",
        "\neu-north/eu-north-1  h100  24    96  16    3    3       yes\n",
        "\nus-east/us-east-1    h100  0     96  16    0    0       if up\n",
        "\n  eu-north/eu-north-1: 12 nodes: 3 fit, 7 full, 2 cordoned\n",
        "\nwould help\n  - topology.required: block instead of rack: it would start now\n",
    ] {
        assert!(ran.out.contains(part), "{part:?} is missing in\n{}", ran.out);
    }
    assert!(!ran.out.contains("\n  p90  "), "what is not known is not shown:\n{}", ran.out);
    let json = muster(&fake, &["plan", &example("elastic.yaml"), "--json"]);
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(document["kind"], "Explanation");
    assert_eq!(document["placement"]["nodes"].as_array().unwrap().len(), 20);
    assert_eq!(document["quotas"][0]["short"], 0.5);
    assert_eq!(document["start"]["p50"], "2100-01-01T01:00:00Z");
    assert!(fake.book.lock().jobs.is_empty());
    let wrong = with_stdin(&fake, &["plan", "-"], &job("x", "command: [run]\n  slice: 4x4x8"));
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("stdin:7: spec.slice: needs whole accelerators"), "{}", wrong.err);
}

#[test]
fn a_job_is_explained() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Pending);
    let ran = muster(&fake, &["job", "explain", "job-1"]);
    assert!(ran.code == 0 && ran.out.starts_with("job-1: WAITING_FOR_CAPACITY\n"), "{}{}", ran.out, ran.err);
    assert_eq!(muster(&fake, &["job", "explain", "job-1", "-o", "name"]).out, "WAITING_FOR_CAPACITY\n");
    assert_eq!(muster(&fake, &["job", "explain", "job-9"]).code, 3);
    assert!(muster(&fake, &["explain", "train"]).out.starts_with("job-1: "), "a name stands for its job");
}

#[test]
fn an_explanation_of_a_follower_says_what_only_the_leader_knows() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Pending);
    let explain = |options: &[&str]| {
        let ran = muster(&fake, &[["job", "explain", "job-1"].as_slice(), options].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        // However the terminal breaks its lines.
        ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = "which nodes are reserved, and which starts have slipped, replica 2 cannot tell: only the leader knows, \
                replica 1";
    assert!(!explain(&[]).contains("cannot tell"));
    assert!(explain(&["-o", "json"]).contains("\"knowsReservations\": true"));
    fake.book.lock().follows = true;
    assert!(explain(&[]).contains(said), "{}", explain(&[]));
    assert!(explain(&["-o", "json"]).contains("\"knowsReservations\": false"));
    assert!(explain(&["--at", "41"]).contains("had slipped, is in no record"));
}

#[test]
fn several_documents_are_one_batch() {
    let fake = Fake::start();
    let text = format!("{}---\n{}", job("a", "command: [run]"), job("b", "command: [run]\n  array: 2"));
    let ran = with_stdin(&fake, &["submit", "-"], &text);
    assert_eq!((ran.code, ran.out.as_str()), (0, "job-1\njob-2\njob-3\n"), "{}", ran.err);
    assert_eq!(fake.book.lock().request_ids.len(), 1);
}

#[test]
fn waiting_ends_with_the_jobs() {
    let fake = Fake::start();
    let well = with_stdin(&fake, &["submit", "-", "--wait"], &job("train", "command: [run]"));
    assert_eq!((well.code, well.out.as_str()), (0, "job-1\n"), "{}", well.err);
    assert!(well.err.contains("job-1 succeeded"));
    let failed = with_stdin(&fake, &["submit", "-", "--watch"], &job("fails", "command: [run]"));
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert_eq!(
        failed.out,
        "job-2\n\
         #12  job-2  fails  pending\n\
         #42  job-2  fails  running\n\
         #43  job-2  fails  failed  APPLICATION_FAILED\n"
    );
    let running = muster(&fake, &["job", "wait", "job-2", "--for", "running", "-o", "name"]);
    assert_eq!((running.code, running.out.as_str()), (0, "job-2\n"), "{}", running.err);
    assert_eq!(muster(&fake, &["job", "wait", "job-2"]).code, 1);
    assert_eq!(muster(&fake, &["job", "wait", "job-9"]).code, 3);
}

#[test]
fn the_address_for_clients_has_no_web_page() {
    let fake = Fake::start();
    let ran =
        muster(&fake, &["open", "fleet", "--print", "--web", fake.endpoint.trim_start_matches("http://")]);
    assert_eq!((ran.code, ran.out.as_str()), (6, ""), "{}", ran.err);
    assert!(ran.err.contains("not with a web page") && ran.err.contains("http_listen"), "{}", ran.err);
}

#[test]
fn an_empty_list_is_told() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Running);
    let ran = muster(&fake, &["artifacts", "list", "job-1"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 1), "{}", ran.out);
    assert!(ran.err.contains("no files of its workers have been kept so far"), "{}", ran.err);
    let ran = muster(&fake, &["artifacts", "list", "job-1", "-o", "json"]);
    assert!(!ran.err.contains("kept so far"), "{}", ran.err);
}

#[test]
fn waiting_too_long_is_7() {
    let fake = Fake::start();
    fake.add("job-1", "stuck", JobPhase::Pending);
    let ran = muster(&fake, &["job", "wait", "job-1", "--timeout", "300ms"]);
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(ran.err.contains("next: muster job wait job-1"), "{}", ran.err);
}

#[test]
fn watching_in_json_is_one_document_per_line() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Pending);
    let ran = muster(&fake, &["job", "watch", "job-1", "-o", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let events: Vec<serde_json::Value> = ran.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["changed", "syncEnd", "changed", "changed"]);
    assert_eq!(events[3]["job"]["status"]["phase"], "succeeded");
    assert_eq!(events[3]["logIndex"], 43);
}

#[test]
fn lists_page_through_everything_and_obey_the_limit() {
    let fake = Fake::start();
    for n in 1..=5 {
        fake.add(&format!("job-{n}"), "train", if n == 3 { JobPhase::Running } else { JobPhase::Pending });
    }
    let ran = muster(&fake, &["job", "list", "-o", "name"]);
    assert_eq!(ran.out, "job-1\njob-2\njob-3\njob-4\njob-5\n");
    assert_eq!(fake.book.lock().list_pages, 3);
    let ran = muster(&fake, &["job", "list", "-o", "name", "--limit", "3"]);
    assert_eq!(ran.out, "job-1\njob-2\njob-3\n");
    let ran = muster(&fake, &["job", "list", "--phase", "running"]);
    let shown: Vec<Vec<&str>> = ran.out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(shown[0], ["ID", "NAME", "TENANT", "TIER", "PHASE", "WORKERS", "DEVICES", "AGE", "REASON"]);
    assert_eq!(shown[1][..7], ["job-3", "train", "default", "standard", "running", "4", "8"]);
    assert_eq!(shown.len(), 2);
    let ran = muster(&fake, &["job", "list", "-o", "yaml", "--limit", "1"]);
    assert!(
        ran.out.starts_with("schema: muster.dev/v1\nkind: JobList\nlogIndex: 41\nfreshness:\n  replica: 1\n"),
        "{}",
        ran.out
    );
}

#[test]
fn show_and_cancel() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Pending);
    let ran = muster(&fake, &["job", "show", "job-1"]);
    assert!(ran.out.contains("phase       pending\nreason      WAITING_FOR_CAPACITY\n"), "{}", ran.out);
    let ran = muster(&fake, &["job", "cancel", "job-1", "-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(document["items"][0]["status"]["phase"], "cancelled");
}

#[test]
fn logs_are_written_as_they_are() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Running);
    let args = ["job", "logs", "job-1", "--rank", "2", "-f", "--stream", "stderr", "--previous"];
    let output = command(&fake.endpoint, &args).output().unwrap();
    assert_eq!(output.stdout, b"step 1\n\xff\x00warn\n");
    let book = fake.book.lock();
    let asked = &book.logs[0];
    assert_eq!(
        (asked.rank, asked.follow, asked.previous, asked.stream()),
        (2, true, true, muster_wire::v1::OutputStream::Stderr)
    );
}

#[test]
fn a_command_next_to_a_worker_has_its_input_and_its_exit_code() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Running);
    let args = ["exec", "train", "--rank", "2", "-i", "--", "sh", "-c", "cat"];
    let mut child = command(&fake.endpoint, &args)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in\xff").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"rank 2 sh -c cat\nin\xff");
    assert_eq!((output.stderr.as_slice(), output.status.code()), (&b"careful\n"[..], Some(7)));
    let ran = muster(&fake, &["exec", "job-9", "--", "true"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
}

#[test]
fn cluster_status_asks_each_replica() {
    let fake = Fake::start();
    let ran = muster(&fake, &["cluster", "status"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(
        lines[0].contains("generation 1 format 0: 2 jobs pending, 0 active, 0 finished; 12 nodes up, 0 lost")
    );
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[3])[..7], ["1", "eu-north", "leader", "3", "41", "-", "00000000000000aa"]);
    assert_eq!(words(lines[4])[..7], ["2", "us-east", "unreachable", "-", "-", "-", "-"]);
    assert!(ran.err.contains("replica 2 at http://127.0.0.1:1 did not answer"), "{}", ran.err);
}

#[test]
fn version_and_completion() {
    let fake = Fake::start();
    let ran = muster(&fake, &["version", "--server"]);
    assert!(ran.out.ends_with("replica 1 in eu-north: 9.9.9\n"), "{}", ran.out);
    for shell in ["bash", "zsh", "fish"] {
        let ran = finish(command("", &["completion", shell]));
        assert!(ran.code == 0 && ran.out.contains("COMPLETE"), "{shell}: {}", ran.out);
    }
    // As the script of fish asks.
    let complete = |endpoint: &str, words: &[&str]| {
        let mut asked = command("", &[&["--", "muster"], words].concat());
        asked.env("COMPLETE", "fish").env("MUSTER_ENDPOINTS", endpoint);
        let ran = finish(asked);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
        ran.out
    };
    fake.add("job-3f0", "train", JobPhase::Pending);
    assert!(complete("", &["node", ""]).contains("cordon"));
    let ids = complete(&fake.endpoint, &["job", "cancel", "job-"]);
    assert!(ids.contains("job-3f0") && ids.contains("train pending"), "{ids}");
    let names = complete(&fake.endpoint, &["logs", "tr"]);
    assert!(names.starts_with("train") && names.contains("job-3f0"), "{names}");
    assert!(complete(&fake.endpoint, &["logs", "zz"]).is_empty());
    // Without a cluster nothing is offered, and nothing is complained of.
    assert!(complete("127.0.0.1:1", &["job", "cancel", "job-"]).is_empty());
    assert_eq!(finish(command("", &["version"])).code, 0);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = command(&fake.endpoint, &["completion", "bash"]);
    let output = child.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn reads_say_how_fresh_they_have_to_be() {
    use muster_client::Read;
    use muster_wire::v1::ReadOptions;
    use std::time::Duration;
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Pending);
    for options in [
        [].as_slice(),
        &["--consistency", "any"],
        &["--max-staleness", "2s"],
        &["--consistency", "bounded", "--max-staleness", "250ms"],
        &["--consistency", "linearizable"],
        &["--at", "4711"],
        &["--at", "1970-01-01T00:00:02Z"],
    ] {
        let ran = muster(&fake, &[["job", "show", "job-1"].as_slice(), options].concat());
        assert_eq!(ran.code, 0, "{options:?}: {}", ran.err);
    }
    let reads = std::mem::take(&mut fake.book.lock().reads);
    let expected = [
        Read::any(),
        Read::any(),
        Read::bounded(Duration::from_secs(2)),
        Read::bounded(Duration::from_millis(250)),
        Read::linearizable(),
        Read::at_log_index(4_711),
        Read::at_time_ms(2_000),
    ];
    assert_eq!(reads, expected.map(ReadOptions::from));
    // Every page of a list is asked for alike; the later ones with what the first was complete up to.
    for n in 2..=5 {
        fake.add(&format!("job-{n}"), "train", JobPhase::Pending);
    }
    muster(&fake, &["job", "list", "--consistency", "linearizable"]);
    let reads = std::mem::take(&mut fake.book.lock().reads);
    assert_eq!(reads.len(), 3);
    assert!(reads.iter().all(|r| r.state == ReadOptions::from(Read::linearizable()).state), "{reads:?}");
    assert_eq!(reads[1].min_log_index, 41);
}

#[test]
fn answers_say_how_fresh_they_are() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Pending);
    let show = |staleness_ms, more: &[&str]| {
        fake.book.lock().staleness_ms = staleness_ms;
        muster(&fake, &[["job", "show", "job-1"].as_slice(), more].concat())
    };
    let document: serde_json::Value = serde_json::from_str(&show(Some(12), &["-o", "json"]).out).unwrap();
    assert_eq!(document["logIndex"], 41);
    assert_eq!(
        document["freshness"],
        serde_json::json!({ "replica": 1, "leader": 1, "staleness": "12ms", "logTime": "2023-11-14T22:13:20Z" })
    );
    let unknown: serde_json::Value = serde_json::from_str(&show(None, &["-o", "json"]).out).unwrap();
    assert_eq!(unknown["freshness"].get("staleness"), None);
    assert!(!show(Some(12), &[]).err.contains("as of log index"));
    let old = show(Some(72_000), &[]);
    assert!(old.err.contains("as of log index 41 (2023-11-14T22:13:20Z): replica 1 may be 1m12s behind"));
    assert!(!old.out.contains("as of"), "data alone goes to stdout");
    assert!(show(None, &[]).err.contains("how far replica 1 is behind is not known"));
    assert!(show(None, &["--at", "41"]).err.contains("as it was at log index 41"));
    assert!(show(None, &["--quiet"]).err.is_empty());
}

#[test]
fn queues_are_listed_over_all_pages() {
    let fake = Fake::start();
    let ran = muster(&fake, &["queue", "list"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(
        ran.out,
        "TENANT  PENDING  ASKED  ACTIVE  DEVICES  IN-USE  SHARE    QUOTAS\n\
         speech  0        0      1       8        h100:8  12.500%  h100:8/16@eu\n\
         vision  3        1.5    1       8        h100:8  12.500%  h100:8/16@eu\n"
    );
    assert_eq!(muster(&fake, &["queues", "list", "-o", "name"]).out, "speech\nvision\n");
    let wide = muster(&fake, &["queue", "list", "-o", "wide"]);
    assert!(
        wide.out.contains("WEIGHT") && wide.out.contains("HELD") && wide.out.contains("1.5"),
        "{}",
        wide.out
    );
    let listed: serde_json::Value =
        serde_json::from_str(&muster(&fake, &["queue", "list", "-o", "json"]).out).unwrap();
    assert_eq!((&listed["kind"], &listed["items"][1]["pendingJobs"]), (&"QueueList".into(), &3.into()));
}

#[test]
fn watches_of_queues_and_nodes_print_each_change_until_the_time_is_up() {
    let fake = Fake::start();
    let ran = muster(&fake, &["queue", "watch", "--timeout", "1s"]);
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert_eq!(
        ran.out,
        "#41  vision  3 jobs pending for 1.5 devices  1 job active on 8 devices  quotas h100:8/16@eu\n\
         #47  vision  1 job pending for 0.5 devices  1 job active on 8 devices  quotas h100:8/16@eu\n\
         #47  speech  gone\n"
    );
    let ran = muster(&fake, &["queue", "watch", "--timeout", "1s", "-o", "json"]);
    let events: Vec<serde_json::Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 3, "{}", ran.out);
    assert_eq!((&events[1]["type"], &events[2]["forgotten"][0]), (&"syncEnd".into(), &"speech".into()));
    let ran = muster(&fake, &["node", "watch", "--region", "eu", "--timeout", "1s"]);
    assert_eq!(ran.code, 7, "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert!(lines[0].starts_with("#41  host-0  ") && lines[1].contains("  cordoned  "), "{}", ran.out);
    assert_eq!(lines[2], "#44  node-7  forgotten");
}

#[test]
fn a_client_certificate_may_name_a_tenant() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("authority");
    let authority = authority.to_str().unwrap();
    let id = "6d757374657200000000000000000001";
    assert_eq!(finish(command("", &["ca", "init", authority, "--cluster-id", id])).code, 0);
    let out = directory.path().join("ada");
    let out = out.to_str().unwrap();
    let issue = |kind: &str, tenant: &str| {
        finish(command("", &["ca", "issue", authority, kind, "ada", "--tenant", tenant, "--out", out]))
    };
    for (kind, tenant) in [("agent", "vision"), ("admin", "vision"), ("client", "No"), ("client", "a/b")] {
        let ran = issue(kind, tenant);
        assert!(ran.code == 2 && ran.err.starts_with("error: "), "{kind} of {tenant}: {}", ran.err);
    }
    let ran = issue("client", "vision");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains(&format!("spiffe://{id}/tenant/vision/ada")), "{}", ran.out);
}

#[test]
fn a_client_certificate_says_for_whom_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let authority = text(directory.path().join("authority"));
    let id = "6d757374657200000000000000000001";
    assert_eq!(finish(command("", &["ca", "init", &authority, "--cluster-id", id])).code, 0);
    let issue = |number: usize, kind: &str, more: &[&str]| {
        let out = text(directory.path().join(number.to_string()));
        finish(command("", &[&["ca", "issue", &authority, kind, "ada", "--out", &out], more].concat()))
    };
    let ran = issue(1, "client", &[]);
    assert!(
        ran.code == 2 && ran.err.contains("--tenant"),
        "nobody rules all tenants by leaving a word out: {}",
        ran.err
    );
    let cases: [(&str, &[&str], &str); 3] = [
        ("client", &["--all-tenants"], "all-tenants/ada"),
        ("client", &["--read-only"], "client/ada"),
        ("agent-group", &[], "agent-group/ada"),
    ];
    for (number, (kind, more, name)) in cases.into_iter().enumerate() {
        let ran = issue(number + 2, kind, more);
        assert!(
            ran.code == 0 && ran.out.contains(&format!("spiffe://{id}/{name}")),
            "{}{}",
            ran.out,
            ran.err
        );
    }
    let revoke = |words: &[&str]| finish(command("", &[&["ca", "revoke"], words].concat()));
    for words in [&[][..], &["--name", "client/ada"], &["a.crt", "--serial", "01"]] {
        assert_eq!(revoke(words).code, 2, "{words:?}");
    }
    let nobody = revoke(&["--authority", &authority, "--name", "admin/eve"]);
    assert!(nobody.code == 3 && nobody.err.contains("has issued nothing to admin/eve"), "{}", nobody.err);
    let refused: [(&str, &[&str]); 5] = [
        ("client", &["--all-tenants", "--read-only"]),
        ("client", &["--tenant", "vision", "--all-tenants"]),
        ("agent", &["--all-tenants"]),
        ("agent-group", &["--read-only"]),
        ("admin", &["--all-tenants"]),
    ];
    for (kind, more) in refused {
        assert_eq!(issue(9, kind, more).code, 2, "{kind} {more:?}");
    }
}
