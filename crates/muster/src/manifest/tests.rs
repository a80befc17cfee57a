//! What people write is read; what they get wrong is named with its line.

use proptest::prelude::*;

use super::*;

const FULL: &str = "\
# A job that says everything.
apiVersion: muster.dev/v1
kind: Job
metadata:
  name: train
  tenant: vision
spec:
  tier: production
  regions: [eu-north, us-east]
  runTimeLimit: 2h
  stopGrace: 30s
  failureRetries: 3
  checkpointDirectory: /shared/checkpoints
  workingDirectory: /work
  groups:
    - name: trainers
      workers: 4
      command: [python, train.py, --epochs, 300]
      environment:
        NCCL_DEBUG: INFO
        SEED: 7
      accelerators: h100:8
      cpu: 500m
      memory: 4Gi
    - name: server
      workers: 1
      command:
        - serve
      accelerators: {type: l4, count: 1}
";

fn one(text: &str) -> Manifest {
    let mut manifests = parse(text.as_bytes()).unwrap();
    assert_eq!(manifests.len(), 1);
    manifests.remove(0)
}

fn problems(text: &str) -> Vec<String> {
    let error = match parse(text.as_bytes()) {
        Ok(manifests) => manifests[0].check().unwrap_err(),
        Err(error) => error,
    };
    error.0.iter().map(Problem::to_string).collect()
}

fn job(spec: &str) -> String {
    format!("apiVersion: muster.dev/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n{spec}")
}

#[test]
fn everything_is_read() {
    let manifest = one(FULL);
    manifest.check().unwrap();
    let message = &manifest.message;
    assert_eq!((message.name.as_str(), message.tenant.as_str()), ("train", "vision"));
    assert_eq!(message.tier, "production");
    assert_eq!(message.regions, ["eu-north", "us-east"]);
    assert_eq!((message.run_time_limit_ms, message.stop_grace_ms), (7_200_000, Some(30_000)));
    assert_eq!((message.failure_retries_max, message.array_size), (3, 0));
    assert_eq!(message.checkpoint_directory, "/shared/checkpoints");
    assert_eq!(message.working_directory, "/work");
    let [trainers, server] = message.groups.as_slice() else { panic!() };
    assert_eq!((trainers.name.as_str(), trainers.workers), ("trainers", 4));
    // Numbers in a command or an environment stay what was written.
    assert_eq!(trainers.command, ["python", "train.py", "--epochs", "300"]);
    assert_eq!(trainers.environment["SEED"], "7");
    assert_eq!(trainers.accelerators, Some(v1::Accelerators { r#type: "h100".into(), count: 8 }));
    assert_eq!((trainers.cpu_milli, trainers.memory_bytes), (500, 4 << 30));
    assert_eq!(server.accelerators, Some(v1::Accelerators { r#type: "l4".into(), count: 1 }));
}

#[test]
fn one_group_needs_no_list() {
    let manifest = one(&job("  workers: 2\n  command: [run]\n  accelerators: h100:2\n  array: 20\n"));
    manifest.check().unwrap();
    assert_eq!(manifest.message.groups.len(), 1);
    assert_eq!(manifest.message.groups[0].workers, 2);
    assert_eq!(manifest.message.array_size, 20);
    assert_eq!(one(&job("  command: [run]\n")).message.groups[0].workers, 1);
}

#[test]
fn several_documents_are_several_jobs() {
    let text = format!("{}---\n{}", job("  command: [a]\n"), job("  command: [b]\n"));
    let manifests = parse(text.as_bytes()).unwrap();
    assert_eq!(manifests.len(), 2);
    assert_eq!(manifests[1].message.groups[0].command, ["b"]);
}

#[test]
fn unknown_fields_are_named_with_line_and_neighbour() {
    assert_eq!(
        problems(&job("  comand: [run]\n")),
        ["line 5: comand: unknown field; did you mean command? (known here: tier, regions, groups, \
          runTimeLimit, stopGrace, failureRetries, checkpointDirectory, workingDirectory, array, workers, \
          command, environment, accelerators, cpu, memory)"]
    );
    assert!(
        problems(&job("  groups:\n  - gpus: 3\n"))[0]
            .starts_with("line 6: gpus: unknown field; did you mean accelerators?")
    );
    assert!(problems("Kind: Job\n")[0].starts_with("line 1: Kind: unknown field; did you mean kind?"));
    assert!(
        problems(&job("  accelerators: {typ: x, count: 1}\n"))[0]
            .starts_with("line 5: typ: unknown field; did you mean type?")
    );
}

#[test]
fn every_mistake_is_listed_with_its_line() {
    let text = job(
        "  workers: many\n  command: python train.py\n  cpu: 0\n  memory: 4gigs\n  accelerators: h100\n  runTimeLimit: 90\n",
    );
    assert_eq!(
        problems(&text),
        [
            "line 5: spec.workers: must be a whole number from 0 to 4294967295, got \"many\"",
            "line 6: spec.command: must be a list of words, like [python, train.py]; no shell reads it",
            "line 9: spec.accelerators: must be a type and a count, like h100:4, got \"h100\"",
            "line 7: spec.cpu: must be above zero; leave it out for one CPU",
            "line 8: spec.memory: must be memory like 4Gi, 512Mi or 64G (units: Ki, Mi, Gi, Ti, k, M, G, T), got \"4gigs\"",
            "line 10: spec.runTimeLimit: must be a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms), got \"90\"",
        ]
    );
}

#[test]
fn the_servers_rules_speak_of_the_file() {
    let text = job(
        "  tier: urgent\n  workers: 0\n  command: [run]\n  environment:\n    A: b\n    MUSTER_X: y\n  stopGrace: 1d\n  array: 2000\n",
    );
    let mut found = problems(&text);
    found.sort();
    assert_eq!(
        found,
        [
            "line 10: spec.environment.MUSTER_X: MUSTER_ variables are set by Muster",
            "line 11: spec.stopGrace: must be between 0 and 600000, got 86400000",
            "line 12: spec.array: must be between 0 and 1000, got 2000",
            "line 5: spec.tier: must be one of free, batch, standard, production, critical, got \"urgent\"",
            "line 6: spec.workers: must be between 1 and 16384, got 0",
        ]
    );
    let groups =
        job("  groups:\n  - workers: 1\n    command: [a]\n  - workers: 1\n    name: B\n    cpu: 9999999\n");
    let mut found = problems(&groups);
    found.sort();
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].starts_with("line 10: spec.groups[1].cpu: must be between"), "{found:?}");
    assert!(found[3].starts_with("line 9: spec.groups[1].name: must be 1 to 63"), "{found:?}");
    assert!(found.iter().any(|p| p.contains("spec.groups[1].command")), "{found:?}");
}

#[test]
fn a_missing_name_points_to_the_option_and_the_option_helps() {
    let text = "apiVersion: muster.dev/v1\nkind: Job\nspec: {command: [run]}\n";
    assert_eq!(problems(text), ["line 1: metadata.name: must be given (or --name)"]);
    let mut manifest = one(text);
    let overrides = Overrides {
        name: Some("y".into()),
        tier: Some("free".into()),
        regions: vec!["eu".into()],
        tenant: None,
    };
    manifest.apply(&overrides);
    manifest.check().unwrap();
    assert_eq!((manifest.message.tier.as_str(), manifest.message.regions.len()), ("free", 1));
}

#[test]
fn what_is_no_job_is_said() {
    for (text, part) in [
        ("", "holds no job"),
        ("# nothing\n", "holds no job"),
        (
            "apiVersion: v1\nkind: Pod\nspec: {command: [a]}\n",
            "line 1: apiVersion: must be muster.dev/v1, got \"v1\"",
        ),
        ("kind: Job\napiVersion: muster.dev/v1\n", "spec: must be given"),
        ("- a\n- b\n", "line 1: expected mapping"),
        ("a: [", "line 1"),
        ("kind: Job\nkind: Job\n", "line 2: kind: is given twice"),
    ] {
        assert!(problems(text)[0].contains(part), "{text:?}: {:?}", problems(text));
    }
    let both = job("  groups: [{command: [a]}]\n  workers: 3\n");
    assert_eq!(
        problems(&both),
        ["line 6: spec.workers: belongs into each of spec.groups when there are groups"]
    );
    let latin = parse(b"kind: Job\nname: \xe9\n").unwrap_err();
    assert_eq!(latin.0[0].to_string(), "line 2: the file is not UTF-8 text");
    assert!(parse(&vec![b' '; FILE_BYTES_MAX + 1]).is_err());
}

#[test]
fn paths_of_a_batch_name_the_document() {
    assert_eq!(
        split_batch_path("specs[3].groups[0].workers"),
        Some((3, "spec.groups[0].workers".to_owned()))
    );
    for path in ["specs", "specs[", "specs[x].a", "spec.name", ""] {
        assert_eq!(split_batch_path(path), None);
    }
}

#[test]
fn hostile_yaml_ends() {
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (from, to) in "abcdefghi".chars().zip("bcdefghij".chars()) {
        bomb.push_str(&format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 9].join(", ")));
    }
    assert!(parse(bomb.as_bytes()).is_err());
    assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    assert!(parse("- ".repeat(100_000).as_bytes()).is_err());
    assert!(parse("---\n".repeat(100_000).as_bytes()).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        if let Ok(manifests) = parse(&bytes) {
            for manifest in manifests {
                let _ = manifest.check();
            }
        }
    }

    /// Cuts, doublings and strange bytes in the middle of something that is nearly right.
    #[test]
    fn no_damage_panics(at in 0usize..900, length in 0usize..40, put in "[\\PC\n ]{0,12}") {
        let mut bytes = FULL.as_bytes().to_vec();
        let start = at.min(bytes.len());
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, put.bytes());
        if let Ok(manifests) = parse(&bytes) {
            for manifest in manifests {
                if let Err(error) = manifest.check() {
                    prop_assert!(error.0.iter().all(|p| p.line.is_some()), "{error:?}");
                }
            }
        }
    }
}
