//! Scenario files: those of `ops/drills`, and how others are refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use muster_drill::scenario::{
    Action, LIVE_VERBS, LinkShape, LiveAction, Means, MeasuredFrom, RecoveryTime, Scenario, Selection,
    Selector, VERBS,
};

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops")
}

/// All files of `ops/drills`, read.
fn shipped() -> Vec<Scenario> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(ops().join("drills"))
        .expect("the directory is there")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let bytes = std::fs::read(path).expect("a readable file");
        let scenario = Scenario::parse(&path.display().to_string(), &bytes);
        scenario.unwrap_or_else(|error| panic!("{error}"))
    };
    files.iter().map(read).collect()
}

/// A file around these lines.
fn file(processes: &str, expect: &str) -> String {
    format!(
        "name: one\ntitle: One\nstory: Something breaks.\nrunbook: one.md\nprocesses:\n{processes}\nexpect: {expect}\n"
    )
}

fn read(text: &str) -> Result<Scenario, String> {
    Scenario::parse("one.yaml", text.as_bytes()).map_err(|error| error.to_string())
}

fn refusal(text: &str) -> String {
    read(text).expect_err("must be refused")
}

#[test]
fn the_shipped_scenarios_are_read() {
    let all = shipped();
    assert!(all.len() >= 24, "{} files", all.len());
    let lost = all.iter().find(|scenario| scenario.name == "leader-region-lost").expect("it is there");
    assert_eq!(
        lost.expect.submission_again,
        Some(RecoveryTime { median_ms: Some(1_500), worst_ms: 2_500, since: MeasuredFrom::Fault })
    );
    assert_eq!(lost.processes_end_ms(), 12_000);
    assert_eq!(lost.heal_ms(), Some(12_000));
    assert_eq!(lost.live_end_ms(), 15_000);
    assert!(lost.means().contains(&Means::Wire));
    assert_eq!(
        lost.live[0].action,
        LiveAction::RefuseTraffic { what: Selection(vec![Selector::LeaderRegion]), for_ms: 15_000 }
    );
}

/// Where to read on must be there, and no verb may be a word that nothing says.
#[test]
fn the_shipped_scenarios_name_their_runbooks_and_use_every_verb() {
    let all = shipped();
    for scenario in &all {
        let page = ops().join("runbooks").join(&scenario.runbook);
        assert!(page.is_file(), "{} names {}, which is not there", scenario.name, scenario.runbook);
    }
    let verbs: BTreeSet<&str> =
        all.iter().flat_map(|scenario| &scenario.processes).map(|step| step.action.verb()).collect();
    assert_eq!(verbs, VERBS.into_iter().collect());
    let live: BTreeSet<&str> =
        all.iter().flat_map(|scenario| &scenario.live).map(|step| step.action.verb()).collect();
    assert_eq!(live, LIVE_VERBS.into_iter().collect());
}

#[test]
fn every_field_is_read() {
    let text = file(
        "  - {at: 0s, do: link, from: [leader, leader-agents], to: rest, both: true, delay: 20ms, jitter: 500us, loss: 5%,\n     duplicate: 0.5%, reorder: 1%, corrupt: 0.0001%, rate: 1.5mbit, for: 1m30s}\n  - {at: 250ms, do: clock, what: region:eu-west, offset: -1h, speed: 1.3}",
        "{}",
    );
    let scenario = read(&text).expect("a good file");
    let Action::Link { pair, shape, for_ms } = &scenario.processes[0].action else {
        panic!("{:?}", scenario.processes[0])
    };
    assert_eq!(pair.from.to_string(), "leader + leader-agents");
    assert!(pair.both);
    assert_eq!(*for_ms, Some(90_000));
    let expected = LinkShape {
        delay_us: 20_000,
        jitter_us: 500,
        loss_ppm: 50_000,
        duplicate_ppm: 5_000,
        reorder_ppm: 10_000,
        corrupt_ppm: 1,
        rate_bits: Some(1_500_000),
    };
    assert_eq!(*shape, expected);
    assert_eq!(scenario.processes[1].at_ms, 250);
    assert_eq!(scenario.processes[1].line, 8);
    let what = Selection(vec![Selector::Region("eu-west".into())]);
    let clock = Action::Clock { what, offset_ms: -3_600_000, rate_milli: 1_300, for_ms: None };
    assert_eq!(scenario.processes[1].action, clock);
}

/// Each with the line and the words of its refusal.
#[test]
fn bad_files_are_refused_with_line_and_advice() {
    let cases = [
        (
            "  - {at: 0s, do: explode, what: leader}",
            "{}",
            "one.yaml:6: processes[0].do: must be one of cut, heal,",
        ),
        ("  - {at: 0s, do: kill}", "{}", "one.yaml:6: processes[0].what: must be given"),
        (
            "  - {at: 0s, do: kill, what: boss}",
            "{}",
            "processes[0].what: must be one of leader, leader-region",
        ),
        ("  - {at: 0s, do: kill, what: rest}", "{}", "must not be `peers` or `rest`"),
        (
            "  - {at: 0s, do: kill, what: leader, from: rest}",
            "{}",
            "processes[0].from: `kill` has no such field",
        ),
        ("  - {at: 0s, do: cut, from: rest, to: peers}", "{}", "only one side may be"),
        ("  - {at: 0s, do: cut, from: leader}", "{}", "processes[0].to: must be given"),
        ("  - {at: 3s, do: kill, what: leader}", "{}", "processes[0].at: must be 0s for the first step"),
        (
            "  - {at: 0s, do: start, what: leader}",
            "{}",
            "leader must be named by a step above with `do: kill",
        ),
        ("  - {at: 0s, do: resume, what: leader}", "{}", "`do: pause (without `for`)`"),
        ("  - {at: 0s, do: link, from: leader, to: rest}", "{}", "does nothing"),
        (
            "  - {at: 0s, do: link, from: leader, to: rest, loss: 5}",
            "{}",
            "processes[0].loss: must be a percentage",
        ),
        ("  - {at: 0s, do: pause, what: leader, for: 0}", "{}", "must be longer than 0"),
        ("  - {at: 1.5s, do: pause, what: leader}", "{}", "processes[0].at: must be a duration"),
        ("  - {at: 0s, do: clock, what: leader}", "{}", "does nothing: give offset"),
        ("  - {at: 0s, do: clock, what: leader, offset: 1h}", "{}", "with its sign"),
        (
            "  - {at: 0s, do: kill, what: leader, colour: red}",
            "{}",
            "one.yaml:6: colour: unknown field (known here: at, do,",
        ),
        ("  - {at: 0s, do: kill, what: leader, what: agents}", "{}", "is given twice"),
        (
            "  - {at: 0s, do: kill, what: leader}",
            "{submission_again: {median: 900ms}}",
            "expect.submission_again.worst: must be given",
        ),
        (
            "  - {at: 0s, do: kill, what: leader}",
            "{submission_again: {median: 9ms, worst: 8ms}}",
            "expect.submission_again.median: must not be above worst",
        ),
        (
            "  - {at: 0s, do: kill, what: leader}",
            "{submission_again: {worst: 8ms, since: heal}}",
            "must be `fault`",
        ),
        ("  - {at: 0s, do: kill, what: leader}", "{lost_at_most: 5ms}", "may lose what was acknowledged"),
        ("  - {at: 0s, do: kill, what: leader}", "{reads_on_survivors: often}", "must be never-stop, or"),
        (
            "  - {at: 0s, do: kill, what: leader}",
            "{acknowledged_within: 5000}",
            "expect.acknowledged_within: must be a duration from 1ms to 1h like 2s, 1500ms or 1m30s, got \"5000\"",
        ),
        ("  - {at: 0s, do: kill, what: leader}", "{acknowledged_within: 0s}", "must be a duration from 1ms"),
        ("  - {at: 0s, do: kill, what: leader}", "{replicas_equal_within: 1.5s}", "got \"1.5s\""),
        ("  - {at: 0s, do: kill, what: leader}", "{gangs_elsewhere_after_lease: 2h}", "got \"2h\""),
        ("  - {at: 0s, do: kill, what: leader}", "{reads_on_survivors: 5000}", "longest silence like 2s"),
        // Keys of an earlier form.
        (
            "  - {at: 0s, do: kill, what: leader}",
            "{acknowledged_within_ms: 5000}",
            "acknowledged_within_ms: is now `acknowledged_within`, with the unit in the value like acknowledged_within: 2s",
        ),
        (
            "  - {at: 0s, do: kill, what: leader}",
            "{submission_again: {worst_ms: 8}}",
            "worst_ms: is now `worst`, with the unit in the value like worst: 2s or worst: 1500ms",
        ),
        ("  - {at: 0s, do: kill, what: leader}", "{leadership_ms: 8}", "leadership_ms: unknown field (known"),
        ("  - {at: 0s, do: kill, what: leader}", "{warnings: [full]}", "must be a code like STORAGE_FULL"),
        ("  - {at: 0s, do: transfer-leadership, to: leader}", "{}", "must be follower or replica:ID"),
        ("  - {at: 0s, do: kill, what: []}", "{}", "must have 1 to 8 selectors"),
        (
            "  - {at: 0s, do: damage, what: leader, file: log, how: flip-bit}",
            "{}",
            "leader must be named by a step above",
        ),
        ("  []", "{}", "nothing is done here"),
    ];
    for (steps, expect, words) in cases {
        let said = refusal(&file(steps, expect));
        assert!(said.contains(words), "for {steps} {expect}\nexpected {words}\ngot {said}");
        assert!(
            said.lines().all(|line| line.starts_with("one.yaml:") && !line.starts_with("one.yaml:0:")),
            "{said}"
        );
    }
}

#[test]
fn a_live_step_undoes_itself_and_breaks_nothing() {
    let live = |step: &str| {
        let text = file("  []", "{}").replace("processes:", "live:").replace("  []", step);
        read(&text)
    };
    assert!(live("  - {at: 0s, do: refuse-traffic, what: follower, for: 20s}").is_ok());
    let cases = [
        (
            "  - {at: 0s, do: kill, what: leader}",
            "must be one of transfer-leadership, cordon-region, refuse-traffic",
        ),
        ("  - {at: 0s, do: refuse-traffic, what: follower}", "live[0].for: must be given"),
        ("  - {at: 0s, do: refuse-traffic, what: follower, for: 1h}", "must be a duration from 1ms to 5m"),
        ("  - {at: 0s, do: refuse-traffic, what: agents, for: 10s}", "must name replicas or regions"),
        ("  - {at: 0s, do: cordon-region, what: follower, for: 10s}", "must be one of leader-region"),
    ];
    for (step, words) in cases {
        let said = live(step).expect_err("must be refused");
        assert!(said.contains(words), "for {step}\nexpected {words}\ngot {said}");
    }
}

#[test]
fn all_mistakes_are_named_at_once() {
    let text = file(
        "  - {at: 0s, do: kill, what: boss}\n  - {at: 1s, do: pause, what: leader, for: soon}",
        "{leadership: wobbles}",
    );
    let said = refusal(&text.replace("name: one", "name: two"));
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn a_name_is_the_files_name_and_a_runbook_no_path() {
    let good = file("  - {at: 0s, do: kill, what: leader}", "{}");
    assert!(Scenario::parse("ops/drills/one.yaml", good.as_bytes()).is_ok());
    assert!(Scenario::parse("ops/drills/other.yaml", good.as_bytes()).is_err());
    assert!(refusal(&good.replace("one.md", "../one.md")).contains("a file of ops/runbooks"));
}

#[test]
fn no_bytes_panic() {
    let good = file("  - {at: 0s, do: kill, what: leader}", "{}");
    for end in 0..good.len() {
        let _ = Scenario::parse("one.yaml", &good.as_bytes()[..end]);
    }
    assert!(Scenario::parse("one.yaml", &[0xff, 0xfe]).is_err());
    assert!(Scenario::parse("one.yaml", &vec![b'a'; 70_000]).is_err());
    assert!(Scenario::parse("one.yaml", b"[[[[[[").is_err());
}
