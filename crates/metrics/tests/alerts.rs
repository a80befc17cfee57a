//! Rules and dashboards under `ops/` name series that replicas or agents have, alerts name runbooks that exist, each alert has a
//! test, and the rules of objectives are those that the objectives give.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_metrics::{AGENT_FAMILIES, FAMILIES, Kind, Objective, rules};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of a directory whose names end so, by name.
fn files(directory: &str, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().is_some_and(|name| name.ends_with(suffix)));
    files.sort();
    assert!(!files.is_empty(), "{directory} has no {suffix}");
    files
}

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: Option<String>,
    record: Option<String>,
    expr: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

fn all_rules() -> Vec<Rule> {
    let parse = |path: PathBuf| -> RuleFile {
        serde_saphyr::from_str(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files("ops/alerts", ".rules.yaml")
        .into_iter()
        .flat_map(|path| parse(path).groups)
        .flat_map(|group| group.rules)
        .collect()
}

/// The names in an expression that could be series of a replica or of an agent.
fn series_of(expression: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let is_ours = |word: &&str| word.starts_with("muster_") || word.starts_with("process_");
    expression.split(|letter| !is_part(letter)).filter(is_ours).map(ToOwned::to_owned).collect()
}

/// Every name under which a series of the families is exposed.
fn exposed() -> BTreeSet<String> {
    let names = FAMILIES.iter().chain(AGENT_FAMILIES).flat_map(|family| {
        let suffixes: &[&str] = match family.kind {
            Kind::Gauge => &[""],
            Kind::Counter => &["_total"],
            Kind::Histogram => &["_bucket", "_count", "_sum"],
            Kind::Info => &["_info"],
        };
        suffixes.iter().map(move |suffix| format!("{}{suffix}", family.name))
    });
    names.collect()
}

#[test]
fn every_series_in_a_rule_is_one_that_a_replica_or_an_agent_exposes() {
    let exposed = exposed();
    let mut named = 0;
    for rule in all_rules() {
        let name = rule.alert.or(rule.record).unwrap();
        for series in series_of(&rule.expr) {
            assert!(exposed.contains(&series), "{name}: nothing exposes {series}");
            named += 1;
        }
    }
    assert!(named > 20, "{named} names: the expressions are not read");
    assert!(!exposed.contains("muster_refusals"), "a counter is exposed with its suffix alone");
}

#[test]
fn every_alert_has_a_severity_a_summary_and_a_runbook_that_exists() {
    let mut names = BTreeSet::new();
    for rule in all_rules() {
        let Some(alert) = rule.alert else { continue };
        assert!(alert.starts_with("Muster"), "{alert}");
        assert!(names.insert(alert.clone()), "{alert} is there twice");
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("page" | "ticket" | "none")), "{alert}: {severity:?}");
        assert!(rule.annotations.get("summary").is_some_and(|summary| !summary.is_empty()), "{alert}");
        let runbook = rule.annotations.get("runbook_url").unwrap_or_else(|| panic!("{alert} has no runbook"));
        assert!(runbook.starts_with("ops/runbooks/") && root().join(runbook).is_file(), "{alert}: {runbook}");
    }
}

#[derive(Deserialize)]
struct TestFile {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    alert_rule_test: Vec<AlertTest>,
}

#[derive(Deserialize)]
struct AlertTest {
    alertname: String,
    exp_alerts: Vec<serde::de::IgnoredAny>,
}

/// `.ci/monitoring` lets promtool run these tests.
#[test]
fn every_alert_has_a_test_in_which_it_fires() {
    let mut fires = BTreeSet::new();
    for path in files("ops/alerts", ".tests.yaml") {
        let file: TestFile = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let tests = file.tests.into_iter().flat_map(|test| test.alert_rule_test);
        fires.extend(tests.filter(|test| !test.exp_alerts.is_empty()).map(|test| test.alertname));
    }
    let alerts: BTreeSet<String> = all_rules().into_iter().filter_map(|rule| rule.alert).collect();
    assert_eq!(fires, alerts);
}

#[test]
fn the_rules_of_objectives_are_those_that_the_objectives_give() {
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        Objective::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let objectives: Vec<Objective> = files("ops/slo", ".yaml").into_iter().map(parse).collect();
    let (path, made) = (root().join("ops/alerts/objectives.rules.yaml"), rules(&objectives));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "muster slo rules ops/slo/*.yaml > ops/alerts/objectives.rules.yaml");
}
