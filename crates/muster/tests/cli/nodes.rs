//! Commands about nodes and their certificates.

use super::{Fake, command, finish, muster};

#[test]
fn nodes() {
    let fake = Fake::start();
    let ran = muster(&fake, &["node", "list"]);
    assert_eq!(
        ran.out,
        "NAME    REGION    CLUSTER  STATUS    ACCELERATORS  FREE  JOBS\n\
         host-0  eu-north  a        up        h100:8        6     1\n\
         host-1  eu-north  a        cordoned  h100:8        6     1\n"
    );
    assert_eq!(muster(&fake, &["node", "cordon", "host-0", "host-1"]).code, 0);
    assert_eq!(muster(&fake, &["node", "uncordon", "host-0"]).code, 0);
    assert_eq!(fake.book.lock().cordoned, ["host-0=true", "host-1=true", "host-0=false"]);
    let told = muster(&fake, &["node", "cordon", "host-0", "--reason", "power work", "-o", "wide"]);
    assert!(told.out.contains("power work"), "{}", told.out);
    assert_eq!(fake.book.lock().cordoned.last().map(String::as_str), Some("host-0=true \"power work\""));
    for wrong in ["", "a\nb", &"x".repeat(513)] {
        assert_ne!(muster(&fake, &["node", "cordon", "host-0", "--reason", wrong]).code, 0);
    }
}

#[test]
fn labels_and_taints_are_set_taken_back_and_checked() {
    let fake = Fake::start();
    let ran = muster(&fake, &["node", "label", "host-0", "zone=b", "stage-"]);
    assert_eq!(
        ran.out,
        "NODE    LABEL  VALUE  SET-BY\nhost-0  pool   train  agent\nhost-0  zone   b      operator\n",
        "{}",
        ran.err
    );
    let ran =
        muster(&fake, &["node", "taint", "-l", "pool=eval", "bring-up:NoSchedule", "spot-", "--dry-run"]);
    assert_eq!(ran.out, "NODE    TAINT     SET-BY\nhost-1  bring-up  operator\n", "{}", ran.err);
    assert!(ran.err.contains("nothing was changed"), "{}", ran.err);
    let json = muster(&fake, &["node", "label", "host-0", "zone=b", "--dry-run", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(answer["dryRun"], true, "{answer}");
    assert_eq!(answer["items"][0]["overrides"]["labels"]["zone"], "b", "{answer}");
    let asked = fake.book.lock().labelled.clone();
    assert_eq!(
        (asked[0].remove_labels.as_slice(), asked[0].validate_only),
        (&["stage".to_owned()][..], false)
    );
    assert_eq!((asked[1].node.as_str(), asked[1].validate_only), ("host-1", true));
    assert_eq!(
        (&asked[1].set_taints, &asked[1].remove_taints),
        (&vec!["bring-up".into()], &vec!["spot".into()])
    );
    assert_eq!(muster(&fake, &["node", "list", "-l", "pool in (eval)", "-o", "name"]).out, "host-1\n");

    // What was changed before a refusal is printed as well.
    let ran = muster(&fake, &["node", "label", "host-0", "host-7", "zone=c"]);
    assert!(ran.code == 3 && ran.out.contains("zone") && ran.err.contains("NODE_NOT_FOUND"), "{}", ran.err);
    for bad in [
        &["node", "label", "host-0"][..],
        &["node", "label", "zone=b"],
        &["node", "label", "host-0", "-l", "pool=eval", "zone=b"],
        &["node", "label", "-l", "pool=", "zone=b", "zone=c"],
        &["node", "taint", "host-0", "spot:NoExecute"],
        &["node", "taint", "host-0", "spot=yes:NoSchedule"],
        &["node", "list", "-l", "pool in"],
    ] {
        assert_eq!(muster(&fake, bad).code, 2, "{bad:?}");
    }
}

#[test]
fn nodes_are_drained_quarantined_and_repaired() {
    let fake = Fake::start();
    let ran = muster(&fake, &["node", "drain", "host-0", "--deadline", "30m"]);
    assert!(ran.code == 0 && ran.out.contains("  draining  "), "{}{}", ran.out, ran.err);
    let ran = muster(&fake, &["node", "drain", "host-0", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("would be emptied"), "{}{}", ran.out, ran.err);
    let ran = muster(&fake, &["node", "drain", "host-0", "host-99", "--dry-run"]);
    assert!(ran.code == 3 && ran.out.is_empty(), "{}{}", ran.out, ran.err);
    assert_eq!(muster(&fake, &["node", "undrain", "host-0"]).code, 0);
    assert_eq!(muster(&fake, &["node", "quarantine", "host-0", "--reason", "odd"]).code, 0);
    assert_eq!(muster(&fake, &["node", "release", "host-0"]).code, 0);
    assert_eq!(
        muster(&fake, &["node", "repair", "host-0", "--action", "reset-gpu", "--device", "3"]).code,
        0
    );
    assert_eq!(muster(&fake, &["node", "repair", "host-0", "--done"]).code, 0);
    assert_eq!(muster(&fake, &["node", "health-policy", "set", "xid-79=inspect"]).out, "48\n");
    let said = fake.book.lock().restricted.clone();
    assert_eq!(said[0], "host-0 drained Some(1800000)");
    assert_eq!(said[1], "host-0 drain ended");
    assert_eq!(said[2..4], ["host-0 quarantined \"odd\"", "host-0 released"]);
    assert!(said[4].contains("ResetGpu") && said[4].contains("[3]"), "{}", said[4]);
    assert_eq!(said[5], "host-0 repair Done \"\"");
    assert_eq!(said[6], "xid-79=inspect at Some(7)");
    let shown = muster(&fake, &["node", "health-policy", "show"]);
    assert!(shown.out.contains("xid-79") && shown.out.contains("reboot-node"), "{}", shown.out);
    assert_eq!(muster(&fake, &["node", "health", "host-0"]).out, "host-0: nothing is known against it\n");
    for bad in [
        &["node", "drain", "host-0", "--deadline", "soon"][..],
        &["node", "quarantine", "host-0"],
        &["node", "repair", "host-0", "--done", "--action", "inspect"],
        &["node", "repair", "host-0", "--action", "dance"],
        &["node", "health-policy", "set", "xid-79=explode"],
        &["node", "health-policy", "set", "slowdown"],
    ] {
        assert_eq!(muster(&fake, bad).code, 2, "{bad:?}");
    }
}

#[test]
fn a_place_is_emptied_only_where_somebody_says_yes() {
    let fake = Fake::start();
    let usual = ["region", "hold", "--reason", "repair"];
    let hold = |more: &[&str]| muster(&fake, &[&usual[..], more].concat());
    assert_eq!(hold(&["eu-north"]).code, 0);
    let ran = hold(&["eu-north", "--drain"]);
    assert!(ran.code != 0 && ran.err.contains("would be stopped"), "{}", ran.err);
    let ran = hold(&["eu-north", "--drain", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("would be stopped"), "{}{}", ran.out, ran.err);
    assert!(!ran.err.contains("is held until"), "{}", ran.err);
    let ran = hold(&["eu-north", "--drain", "--yes"]);
    assert!(ran.code == 0 && ran.err.contains("region eu-north is held until"), "{}", ran.err);
    let ran = hold(&["eu-nort"]);
    assert!(ran.code != 0 && ran.err.contains("the name may be wrong"), "{}", ran.err);
    let ran = muster(&fake, &["region", "list"]);
    assert!(ran.code == 0 && ran.err.contains("nothing is held"), "{}", ran.err);
    let ran = hold(&["--tenant", "vision", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("tenant vision would be held"), "{}{}", ran.out, ran.err);
}

#[test]
fn nodes_that_wait_are_listed_approved_and_rejected() {
    let fake = Fake::start();
    let ran = muster(&fake, &["node", "pending"]);
    assert!(
        ran.code == 0 && ran.out.contains("host-9") && ran.out.contains("nobody has approved"),
        "{}",
        ran.out
    );
    assert_eq!(muster(&fake, &["node", "pending", "-o", "name"]).out, "host-9\n");
    let ran = muster(&fake, &["node", "approve", "host-9"]);
    assert!(ran.code == 0 && ran.out.contains("approved  eu"), "{}{}", ran.out, ran.err);
    let bounds = ["node", "approve", "host-9", "--cluster", "eu-1", "--devices", "h100:8", "-o", "json"];
    let ran = muster(&fake, &bounds);
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown["bounds"], serde_json::json!({"cluster": "eu-1", "devices": ["h100:8"]}), "{}", ran.out);
    let ran = muster(&fake, &["node", "reject", "host-9"]);
    assert!(ran.code == 0 && ran.out.contains("rejected"), "{}", ran.out);
    let ran = muster(
        &fake,
        &["node", "admission", "set", "approve", "--rule", "eu-*:region=eu,devices=h100:8+a100:4"],
    );
    assert!(
        ran.code == 0 && ran.out.contains("mode: approve") && ran.out.contains("eu-*"),
        "{}{}",
        ran.out,
        ran.err
    );
    for wrong in [
        &["node", "approve", "h", "--devices", "h100"][..],
        &["node", "admission", "set", "open", "--rule", "a:b"],
    ] {
        assert_eq!(muster(&fake, wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_dry_run_of_forgetting_nodes_says_what_would_become_of_each_and_forgets_none() {
    let fake = Fake::start();
    let dry = ["node", "forget", "host-5", "host-0", "--dry-run"];
    let ran = muster(&fake, &dry);
    let said = "host-5 (node-1) is lost and would be forgotten\n\
                host-0 (node-1) is not lost: that would be refused\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, said), "{}", ran.err);
    let json = muster(&fake, &[&dry[..], &["-o", "json"]].concat());
    let answer: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&answer["kind"], &answer["dryRun"]), (&"ForgottenNodes".into(), &true.into()), "{answer}");
    let would = |at: usize| answer["items"][at]["wouldBeForgotten"].as_bool();
    assert_eq!((would(0), would(1)), (Some(true), Some(false)), "{answer}");
    let unknown = muster(&fake, &["node", "forget", "host-7", "--dry-run"]);
    assert!(unknown.code == 3 && unknown.err.contains("NODE_NOT_FOUND"), "{} {}", unknown.code, unknown.err);
    assert!(fake.book.lock().forgotten.is_empty(), "a look changes nothing");

    // For real: what was forgotten before a refusal is printed as well.
    let ran = muster(&fake, &["node", "forget", "host-5", "host-0", "host-8"]);
    assert!(ran.code != 0 && ran.err.contains("NODE_IN_USE"), "{} {}", ran.code, ran.err);
    assert_eq!(ran.out, "node-of-host-5\n");
    assert_eq!(fake.book.lock().forgotten, ["host-5"]);
}

#[test]
fn dry_runs_of_an_issue_and_of_a_rotation_write_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, out) = (directory.path().join("authority"), directory.path().join("bob"));
    let (dir, to) = (authority.to_str().unwrap(), out.to_str().unwrap());
    let id = "6d757374657200000000000000000001";
    assert_eq!(finish(command("", &["ca", "init", dir, "--cluster-id", id])).code, 0);
    let issue = |more: &[&str]| {
        let words = ["ca", "issue", dir, "client", "bob", "--tenant", "vision", "--out", to];
        finish(command("", &[&words[..], more].concat()))
    };
    let ran = issue(&["--dry-run"]);
    assert!(
        ran.code == 0 && ran.out.contains("would be written") && !out.exists(),
        "{} {}",
        ran.out,
        ran.err
    );
    assert_eq!(issue(&[]).code, 0);
    let issued = std::fs::read(out.join("tls.crt")).unwrap();
    assert_ne!(issue(&["--dry-run"]).code, 0, "it is there, and without --force it stays");
    let ran = issue(&["--force", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("would be replaced"), "{} {}", ran.out, ran.err);
    let json = issue(&["--force", "--dry-run", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&answer["dryRun"], &answer["replaced"]), (&true.into(), &true.into()), "{answer}");
    assert_eq!(std::fs::read(out.join("tls.crt")).unwrap(), issued);
    std::fs::remove_file(out.join("tls.crt")).unwrap();
    let ran = issue(&["--force", "--dry-run"]);
    assert!(ran.out.contains("would be replaced"), "the key is there still: {} {}", ran.out, ran.err);

    let rotate = |words: &[&str]| finish(command("", &[&["ca", "rotate", dir], words].concat()));
    let ran = rotate(&["prepare", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("authority 2 would be made"), "{} {}", ran.out, ran.err);
    assert!(!authority.join("ca-2.crt").exists());
    assert_ne!(rotate(&["finish", "--dry-run"]).code, 0, "no rotation is under way");
    assert_eq!((rotate(&["prepare"]).code, rotate(&["switch"]).code), (0, 0));
    let ran = rotate(&["finish", "--dry-run"]);
    assert!(ran.code == 0 && ran.out.contains("authority 1 would be dropped"), "{} {}", ran.out, ran.err);
    assert!(authority.join("ca-1.key").exists());
}

#[test]
fn a_dry_run_of_a_revocation_names_the_certificates_and_asks_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let authority = text(directory.path().join("authority"));
    let id = "6d757374657200000000000000000001";
    assert_eq!(finish(command("", &["ca", "init", &authority, "--cluster-id", id])).code, 0);
    let outs: Vec<String> = (0..2).map(|n| text(directory.path().join(format!("bob-{n}")))).collect();
    for out in &outs {
        let issued = ["ca", "issue", &authority, "client", "bob", "--tenant", "vision", "--out", out];
        assert_eq!(finish(command("", &issued)).code, 0);
    }
    // Nobody listens there: a dry run that asked somebody would fail.
    let dry =
        |words: &[&str]| finish(command("127.0.0.1:1", &[&["ca", "revoke", "--dry-run"], words].concat()));
    let name = ["--authority", authority.as_str(), "--name", "tenant/vision/bob"];
    let all = dry(&name);
    assert_eq!(all.code, 0, "{}", all.err);
    assert!(all.err.contains("nothing was revoked; these would be"), "{}", all.err);
    let rows: Vec<&str> = all.out.lines().collect();
    assert!(rows.len() == 3 && rows[0].starts_with("SERIAL"), "{}", all.out);
    assert!(rows[1..].iter().all(|row| row.contains("tenant/vision/bob")), "{}", all.out);

    let file = text(std::path::Path::new(&outs[0]).join("tls.crt"));
    let json = dry(&[&file, "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&answer["dryRun"], answer["items"].as_array().map(Vec::len)),
        (&true.into(), Some(1)),
        "{answer}"
    );
    let serial = answer["items"][0]["serial"].as_str().unwrap();
    assert!(all.out.contains(serial), "{serial} is not in {}", all.out);
    let by_serial = dry(&["--serial", serial]);
    assert!(by_serial.code == 0 && by_serial.out.contains(serial), "{} {}", by_serial.out, by_serial.err);
    // The same for real needs somebody who revokes.
    let real = finish(command("127.0.0.1:1", &["ca", "revoke", &file, "--timeout", "1s"]));
    assert_ne!(real.code, 0, "{}", real.out);
}
