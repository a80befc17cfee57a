//! Files that were written for other schedulers, as a user submits them.

use super::{Fake, command, finish, job, muster, with_stdin};

const MANIFEST: &str = "\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  backoffLimit: 0
  ttlSecondsAfterFinished: 60
  template:
    spec:
      restartPolicy: Never
      priorityClassName: urgent
      containers: [{name: main, command: [python3, train.py]}]
";

fn input(name: &str) -> String {
    format!("{}/../convert/testdata/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_manifest_is_submitted_and_its_losses_are_named() {
    let fake = Fake::start();
    let ran = with_stdin(&fake, &["submit", "-", "--tier-of", "urgent=batch"], MANIFEST);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let named = "stdin: spec.ttlSecondsAfterFinished: not honoured: jobs that ended are kept as long as the \
                 cluster keeps history\n";
    assert!(ran.err.contains(named), "{}", ran.err);
    let book = fake.book.lock();
    let spec = book.jobs[ran.out.trim()].spec();
    assert_eq!(spec.groups[0].command(), ["python3", "train.py"]);
    assert_eq!(spec.tier(), muster_wire::v1::Tier::Batch);
}

#[test]
fn a_dry_run_prints_what_can_be_submitted_and_needs_no_cluster() {
    for name in ["job-single.yaml", "job-set-pipeline.yaml", "sbatch-gang.sh"] {
        let ran = finish(command("", &["submit", "-f", &input(name), "--dry-run", "-o", "yaml"]));
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        assert!(!ran.err.is_empty(), "{name}");
        let again = with_stdin(&Fake::start(), &["submit", "-", "--dry-run"], &ran.out);
        assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (0, ran.out.as_str(), ""), "{name}");
    }
    let own = with_stdin(&Fake::start(), &["submit", "-", "--dry-run"], &job("x", "command: [run]"));
    assert!(own.code == 0 && own.out.starts_with("apiVersion: muster.dev/v1\nkind: Job\n"), "{}", own.err);
}

#[test]
fn refusals_and_strictness_submit_nothing() {
    let fake = Fake::start();
    let refused = muster(&fake, &["submit", &input("job-refused.yaml")]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("spec.template.spec.hostPID: refused: "), "{}", refused.err);
    let strict = with_stdin(&fake, &["submit", "-", "--strict"], MANIFEST);
    assert_eq!(strict.code, 2, "{}", strict.err);
    assert!(strict.err.contains("2 of its fields are not honoured"), "{}", strict.err);
    let unknown = with_stdin(&fake, &["submit", "-"], "apiVersion: apps/v1\nkind: Deployment\n");
    assert_eq!(unknown.code, 2, "{}", unknown.err);
    assert!(unknown.err.contains("Deployment (apps/v1) is not converted; these are: Job"), "{}", unknown.err);
    assert!(fake.book.lock().request_ids.is_empty());
}
