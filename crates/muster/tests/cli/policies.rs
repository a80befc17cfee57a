//! Policies: checked, set, shown and replayed.

use super::{Fake, command, example, finish, muster, with_stdin};

#[test]
fn a_policy_is_checked_set_and_shown_as_a_file() {
    let fake = Fake::start();
    let file = example("policy.yaml");
    assert_eq!(finish(command("127.0.0.1:1", &["policy", "check", &file])).code, 0, "asks nobody");
    let ran = muster(&fake, &["policy", "set", &file, "--dry-run"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    // Where the file says it, with the code, and that there is more.
    for part in ["warning: ", "policy.yaml:", "spec.tenants.research.quotas[1]", "UNKNOWN_TYPE", "and 2 more"]
    {
        assert!(ran.err.contains(part), "{part:?} is missing in {}", ran.err);
    }
    let json = muster(&fake, &["policy", "set", &file, "--dry-run", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(answer["warnings"][0]["code"], "UNKNOWN_TYPE");
    assert_eq!(answer["warnings"][0]["field"], "spec.tenants.research.quotas[1]");
    assert!(fake.book.lock().policy.is_none());
    let ran = muster(&fake, &["policy", "set", &file, "--expect-version", "7"]);
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.starts_with("error: MS-1004 POLICY_CHANGED"), "{}", ran.err);
    assert!(ran.err.contains("next: `muster policy show -o yaml`"), "{}", ran.err);
    let ran = muster(&fake, &["policy", "set", &file, "--expect-version", "0"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "41\n"), "{}", ran.err);
    assert_eq!(ran.err.matches("UNKNOWN_TYPE").count(), 1, "it is told before it is set: {}", ran.err);
    let first = fake.book.lock().policy.clone().unwrap();
    // What is shown as a file can be set again, and is the same policy.
    let shown = muster(&fake, &["policy", "show", "-o", "yaml"]);
    assert!(
        shown.out.starts_with("apiVersion: muster.dev/v1\nkind: Policy\nmetadata:\n  version: 41\n"),
        "{}",
        shown.out
    );
    let again = with_stdin(&fake, &["policy", "set", "-"], &shown.out);
    assert_eq!((again.code, again.out.as_str()), (0, "82\n"), "{}", again.err);
    assert_eq!(fake.book.lock().policy.clone().unwrap().1, first.1);
    // The file names the version that it was made from.
    let stale = with_stdin(&fake, &["policy", "set", "-"], &shown.out);
    assert_eq!(stale.code, 5, "{}", stale.err);
    let json = muster(&fake, &["policy", "show", "-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(document["spec"]["tenants"]["research"]["quotas"][0]["borrowingLimit"], 32);
    assert_eq!(document["spec"]["prices"][1]["perDeviceHour"], 1.95);
}

#[test]
fn parts_of_a_policy_are_set_and_the_others_stay() {
    let fake = Fake::start();
    muster(&fake, &["policy", "set", &example("policy.yaml")]);
    let before = fake.book.lock().policy.clone().unwrap().1;
    // A new tenant below one that only the cluster has; what the file says of the order is not read.
    let file = "apiVersion: muster.dev/v1\nkind: Policy\nspec:\n  order: {by: submission}\n  tenants:\n    speech: {parent: \
                research}\n  spareHostsPerRack: {h100: 2}\n";
    let only = |parts: &str, more: &[&str]| {
        let arguments = [&["policy", "set", "-", "--only", parts], more].concat();
        with_stdin(&fake, &arguments, file)
    };
    let ran = only("tenants.speech", &["--dry-run"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert!(ran.err.contains("tenants.speech of stdin can be set; nothing was"), "{}", ran.err);
    let ran = only("tenants.speech,spareHostsPerRack.h100", &[]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "82\n"), "{}", ran.err);
    let after = fake.book.lock().policy.clone().unwrap().1;
    assert_eq!(after.tenants["speech"].parent, "research");
    assert_eq!(after.spare_hosts_per_rack["h100"], 2);
    assert_eq!((after.order, after.prices), (before.order, before.prices));
    // One that the file does not have is removed; what the others need of it, the refusal says.
    let ran = only("tenants.research", &[]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("parent"), "{}", ran.err);
    let ran = only("price", &[]);
    assert!(ran.code == 2 && ran.err.contains("`price` is no part of a policy"), "{}", ran.err);
}

#[test]
fn a_report_of_cost_refuses_what_it_could_not_show() {
    let cases: [(&[&str], &str); 8] = [
        (&["--form", "focus", "--by", "tenant"], "--by can only add job"),
        (&["--form", "html", "-o", "json"], "two forms of one report"),
        (&["--form", "csv", "-o", "csv"], "two forms of one report"),
        // It is a form of reports, so that only the archive is missing.
        (&["-o", "csv"], "nowhere"),
        (&["--by", "price"], "invalid value 'price'"),
        (&["--form", "pdf"], "invalid value 'pdf'"),
        (&["--from", "yesterday"], "yesterday"),
        (&[], "nowhere"),
    ];
    for (more, part) in cases {
        let arguments = [&["report", "cost", "--archive", "/nowhere"], more].concat();
        let ran = finish(command("127.0.0.1:1", &arguments));
        assert!(ran.code != 0 && ran.out.is_empty(), "{more:?}: {}", ran.out);
        assert!(ran.err.contains(part), "{more:?}: {}", ran.err);
    }
    let ran = finish(command("127.0.0.1:1", &["policy", "show", "-o", "csv"]));
    assert!(ran.code == 2 && ran.err.contains("-o csv is for muster report"), "{}", ran.err);
}

#[test]
fn a_policy_is_shown_to_people() {
    let fake = Fake::start();
    muster(&fake, &["policy", "set", &example("policy.yaml")]);
    let ran = muster(&fake, &["policy", "show"]);
    for part in [
        "version     41, set 2023-11-14T22:13:20Z\n",
        "order       predicted, fair share on, usage halves every 7d, ageing 0.01\n",
        "TENANT      WEIGHT  TYPE  REGION    NOMINAL  BORROWS  LENDS\n\
         research    2       h100  eu-north  64       32       48\n\
         research    2       v5p   all       256      any      all\n  \
         language  1       -     -         -        -        -\n  \
         vision    1       h100  eu-north  48       any      all\n\
         serving     1       h100  all       16       any      0\n",
        "h100  us-east  all       -",
        "  $1.95\n",
        "  by parts\n",
        "launch       2027-04-01T00:00:00Z  2027-04-08T00:00:00Z  for serving",
    ] {
        assert!(ran.out.contains(part), "{part:?} is missing in\n{}", ran.out);
    }
}

#[test]
fn a_replay_takes_whole_policies_and_says_what_is_wrong_with_them() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let nodes = file(
        "nodes.csv",
        "node_id,region,cluster,accel_type,accel_count,cpu_milli,mem_mib\nn1,r,c,A100,4,,\n",
    );
    let jobs = file(
        "jobs.csv",
        "job_id,submit_s,duration_s,accel_type,replicas,accel_milli,cpu_milli,mem_mib,tenant,tier\n\
         borrows,0,36000,,1,4000,,,Guest,\nhigh,0,10,,1,1000,,,guest,production\nown,600,3600,,1,4000,,,owner,\n",
    );
    let policy =
        |tenants: &str| format!("apiVersion: muster.dev/v1\nkind: Policy\nspec:\n  tenants:\n{tenants}");
    let good = "    owner:\n      quotas:\n        - {type: a100, nominal: 4}\n    guest: {}\n";
    let good = file("good.yaml", &policy(good));
    let bad = file("bad.yaml", &policy("    owner:\n      weight: 0.5\n      quota: []\n"));
    let loops = file("loops.yaml", &policy("    a: {parent: b}\n    b: {parent: a}\n"));
    let replay = |policies: &[&str]| {
        let mut args = vec!["sim", "queue", "--nodes", &nodes, "--jobs", &jobs];
        for policy in policies {
            args.extend(["--policy", policy]);
        }
        finish(command("127.0.0.1:1", &args))
    };
    let ran = replay(&[&good]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in ["1 were refused by the policy, RIGHT_MISSING:", "BORROWED", "guest", "1 preemptions"] {
        assert!(ran.out.contains(part), "{part:?} is missing in {}", ran.out);
    }
    let both = replay(&[&good, "fifo"]);
    assert!(both.code == 0 && both.out.contains("everybody"), "{}{}", both.out, both.err);
    let cases = [
        (bad.as_str(), "bad.yaml:7: quota: unknown field; did you mean quotas?"),
        (loops.as_str(), "loops.yaml:5: spec.tenants.a.parent: must not lead back to itself"),
        ("./there-is-none.yaml", "there-is-none.yaml could not be read"),
        ("lifo", "there is no policy of that name; known: default, fifo"),
    ];
    for (given, part) in cases {
        let ran = replay(&[given]);
        assert!(ran.code == 2 && ran.err.contains(part), "{given}: {}", ran.err);
    }
}

#[test]
fn mistakes_in_a_policy_name_the_line_and_the_nearest_key() {
    let fake = Fake::start();
    let policy = |spec: &str| format!("apiVersion: muster.dev/v1\nkind: Policy\nspec:\n{spec}");
    let unknown = with_stdin(&fake, &["policy", "check", "-"], &policy("  tenant: {}\n"));
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("stdin:4: tenant: unknown field; did you mean tenants?"), "{}", unknown.err);
    let cycle = policy("  tenants:\n    a: {parent: b}\n    b: {parent: a}\n");
    let cycle = with_stdin(&fake, &["policy", "set", "-"], &cycle);
    assert_eq!(cycle.code, 2);
    assert!(
        cycle.err.contains("stdin:5: spec.tenants.a.parent: must not lead back to itself: a -> b -> a"),
        "{}",
        cycle.err
    );
    assert!(fake.book.lock().policy.is_none());
    let refused = policy("  tenants:\n    forbidden:\n      weight: 2\n");
    let refused = with_stdin(&fake, &["policy", "set", "-"], &refused);
    assert!(
        refused.err.contains("stdin:6: spec.tenants.forbidden.weight: no (in thousandths)"),
        "{}",
        refused.err
    );
}
