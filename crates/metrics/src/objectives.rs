//! Service level objectives, and the Prometheus rules that watch them.
//!
//! An objective says what share of events may be bad within a period: its error budget. Alerts watch how fast the budget
//! is spent, over a long window so that a moment does not count and over a short one so that an alert ends soon after
//! its cause. Windows and speeds are those of chapter 5 of Google's SRE workbook.

use serde::Deserialize;
use std::fmt::{self, Write as _};

/// The largest file of an objective, in bytes.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// The API version of the files.
const API_VERSION: &str = "muster.dev/v1";
const KIND: &str = "ServiceLevelObjective";
/// What stands for the window in an expression.
const WINDOW: &str = "$window";
/// What stands for the time between two looks at a window, in an expression of bad time.
const STEP: &str = "$step";
/// Millionths in the whole.
const WHOLE: u64 = 1_000_000;
const NAME_BYTES_MAX: usize = 63;

/// A speed at which the budget is spent, and who hears of it.
struct Speed {
    severity: &'static str,
    long: &'static str,
    long_s: u64,
    short: &'static str,
    /// The percentage of the budget that is spent within the long window.
    budget_percent: u64,
}

const SPEEDS: [Speed; 4] = [
    Speed { severity: "page", long: "1h", long_s: 3_600, short: "5m", budget_percent: 2 },
    Speed { severity: "page", long: "6h", long_s: 21_600, short: "30m", budget_percent: 5 },
    Speed { severity: "ticket", long: "1d", long_s: 86_400, short: "2h", budget_percent: 10 },
    Speed { severity: "ticket", long: "3d", long_s: 259_200, short: "6h", budget_percent: 10 },
];

/// Every window that an alert reads, the shortest first, and the time between two looks at it. Of an objective of 99.95 % in 30 days
/// one bad look within an hour, six hours, a day or three days is less than what an alert takes: a failover that lasts for a moment
/// fires nothing, whenever it is seen.
const WINDOWS: [(&str, &str); 7] =
    [("5m", "15s"), ("30m", "15s"), ("1h", "15s"), ("2h", "30s"), ("6h", "30s"), ("1d", "1m"), ("3d", "2m")];

/// One objective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    name: String,
    description: String,
    /// The share of events that may be bad, in millionths.
    budget: u64,
    period_s: u64,
    ratio: Ratio,
    runbook: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ratio {
    /// Bad events and all events, as rates over `$window`.
    Events { bad: String, all: String, events_min: u64 },
    /// The share of bad time within `$window`.
    Time(String),
}

/// Why a file is not an objective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectiveError {
    /// The field in the file; empty for the file as a whole.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub description: String,
}

impl fmt::Display for ObjectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.description)
    }
}

impl std::error::Error for ObjectiveError {}

fn wrong(field: &'static str, description: impl Into<String>) -> ObjectiveError {
    ObjectiveError { field, description: description.into() }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    description: String,
    objective: String,
    period: String,
    bad: Option<String>,
    all: Option<String>,
    events_min: Option<u64>,
    bad_time: Option<String>,
    runbook: String,
}

impl Objective {
    /// Reads one file.
    ///
    /// # Errors
    /// The first mistake that it has.
    pub fn parse(text: &str) -> Result<Objective, ObjectiveError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(wrong("", format!("the file has more than {FILE_BYTES_MAX} bytes")));
        }
        let file: File = serde_saphyr::from_str(text).map_err(|error| wrong("", error.to_string()))?;
        if file.api_version != API_VERSION {
            return Err(wrong("apiVersion", format!("it has to be {API_VERSION}")));
        }
        if file.kind != KIND {
            return Err(wrong("kind", format!("it has to be {KIND}")));
        }
        let spec = file.spec;
        Ok(Objective {
            name: name("metadata.name", file.metadata.name)?,
            description: sentence(spec.description)?,
            budget: budget(&spec.objective)?,
            period_s: days(&spec.period)?,
            ratio: ratio(spec.bad, spec.all, spec.events_min, spec.bad_time)?,
            runbook: name("spec.runbook", spec.runbook)?,
        })
    }

    /// Its name, as in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn name(field: &'static str, name: String) -> Result<String, ObjectiveError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(name);
    }
    Err(wrong(field, "a name begins with a lower-case letter and has lower-case letters, digits and hyphens"))
}

fn sentence(text: String) -> Result<String, ObjectiveError> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err(wrong("spec.description", "one line of text is missing"));
    }
    Ok(text)
}

/// The error budget of an objective in percent, in millionths.
fn budget(objective: &str) -> Result<u64, ObjectiveError> {
    let error = || {
        wrong(
            "spec.objective",
            "a percentage above 0 and below 100 is needed, with at most four decimals: \"99.95\"",
        )
    };
    let (whole, decimals) = objective.split_once('.').unwrap_or((objective, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 2 || decimals.len() > 4 || !is_digits(whole) || !is_digits(decimals)
    {
        return Err(error());
    }
    let kept: u64 = format!("{whole}{decimals:0<4}").parse().map_err(|_| error())?;
    if kept == 0 { Err(error()) } else { Ok(WHOLE - kept) }
}

/// A number of days, in seconds.
fn days(period: &str) -> Result<u64, ObjectiveError> {
    let days = period.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    match days.filter(|days| (7..=90).contains(days)) {
        Some(days) => Ok(days * 86_400),
        None => Err(wrong("spec.period", "7d to 90d are possible")),
    }
}

fn ratio(
    bad: Option<String>,
    all: Option<String>,
    events_min: Option<u64>,
    bad_time: Option<String>,
) -> Result<Ratio, ObjectiveError> {
    let with_window = |field, text: String| {
        if text.contains(WINDOW) {
            Ok(text)
        } else {
            Err(wrong(field, format!("the expression has no {WINDOW}")))
        }
    };
    match (bad, all, bad_time) {
        (Some(bad), Some(all), None) => Ok(Ratio::Events {
            bad: with_window("spec.bad", bad)?,
            all: with_window("spec.all", all)?,
            events_min: events_min.unwrap_or(0),
        }),
        (None, None, Some(_)) if events_min.is_some() => {
            Err(wrong("spec.eventsMin", "time has no events to count"))
        }
        (None, None, Some(time)) => Ok(Ratio::Time(with_window("spec.badTime", time)?)),
        _ => Err(wrong("spec", "either bad and all, or badTime has to be given")),
    }
}

/// A rule file of Prometheus for these objectives: the share of bad events over each window, and the alerts.
#[must_use]
pub fn rules(objectives: &[Objective]) -> String {
    let mut text =
        String::from("# Made by `muster slo rules`; change the objectives and make it again.\ngroups:\n");
    for objective in objectives {
        objective.write(&mut text);
    }
    text
}

impl Objective {
    fn write(&self, text: &mut String) {
        let Objective { name, .. } = self;
        put(text, format_args!("  - name: muster-slo-{name}\n    rules:\n"));
        for (window, step) in WINDOWS {
            let expression = match &self.ratio {
                Ratio::Events { bad, all, .. } => format!("(({bad}) or vector(0)) / ({all})"),
                Ratio::Time(time) => time.replace(STEP, step),
            };
            let expression = quoted(&expression.replace(WINDOW, window));
            put(
                text,
                format_args!("      - record: muster:slo_bad_ratio:{window}\n        expr: {expression}\n"),
            );
            put(text, format_args!("        labels:\n          slo: {name}\n"));
        }
        for (severity, alert) in [("page", "Fast"), ("ticket", "Slow")] {
            let speeds: Vec<String> = SPEEDS
                .iter()
                .filter(|speed| speed.severity == severity)
                .map(|speed| self.condition(speed))
                .collect();
            let expression = quoted(&speeds.join(" or "));
            let summary = quoted(&format!("The error budget is spent too fast: {}", self.description));
            put(text, format_args!("      - alert: Muster{}Burns{alert}\n", camel(name)));
            put(
                text,
                format_args!("        expr: {expression}\n        labels:\n          severity: {severity}\n"),
            );
            put(
                text,
                format_args!("          slo: {name}\n        annotations:\n          summary: {summary}\n"),
            );
            put(text, format_args!("          runbook_url: ops/runbooks/{}.md\n", self.runbook));
        }
    }

    /// True while the budget is spent at this speed.
    fn condition(&self, speed: &Speed) -> String {
        let Speed { long, short, .. } = speed;
        let limit = self.limit(speed);
        let over = |window: &str| format!("muster:slo_bad_ratio:{window}{{slo=\"{}\"}} > {limit}", self.name);
        let mut condition = format!("({} and {}", over(long), over(short));
        if let Ratio::Events { all, events_min: 1.., .. } = &self.ratio {
            let (all, least) = (all.replace(WINDOW, long), self.events_min());
            // An expression over other series has other labels than the ratio.
            condition += &format!(" and on() ({all}) * {} >= {least}", speed.long_s);
        }
        condition + ")"
    }

    fn events_min(&self) -> u64 {
        match self.ratio {
            Ratio::Events { events_min, .. } => events_min,
            Ratio::Time(_) => 0,
        }
    }

    /// The share of bad events at which a part of the budget is spent within the long window:
    /// budget x part x period / window. At most 1.
    fn limit(&self, speed: &Speed) -> String {
        // In 1/10^8.
        let limit = self.budget * speed.budget_percent * self.period_s / speed.long_s;
        decimal(limit.min(WHOLE * 100))
    }
}

/// Hundred-millionths as a decimal fraction.
fn decimal(value: u64) -> String {
    let (whole, rest) = (value / (WHOLE * 100), value % (WHOLE * 100));
    let text = format!("{whole}.{rest:08}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

/// A name of an alert: `leader-present` becomes `LeaderPresent`.
fn camel(name: &str) -> String {
    let upper = |part: &str| {
        let mut letters = part.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
            .unwrap_or_default()
    };
    name.split('-').map(upper).collect()
}

/// A string in double quotes, as YAML and JSON have it. Descriptions and expressions have no control characters but line
/// ends, which stand for spaces.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for part in text.split_whitespace() {
        if quoted.len() > 1 {
            quoted.push(' ');
        }
        for letter in part.chars() {
            if matches!(letter, '"' | '\\') {
                quoted.push('\\');
            }
            quoted.push(letter);
        }
    }
    quoted.push('"');
    quoted
}

fn put(text: &mut String, words: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(words);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is the report of a test")]
mod tests {
    use super::*;

    const FILE: &str = r#"
apiVersion: muster.dev/v1
kind: ServiceLevelObjective
metadata:
  name: calls-answered
spec:
  description: Calls are answered.
  objective: "99.95"
  period: 30d
  bad: sum(rate(bad_total{code="INTERNAL"}[$window]))
  all: sum(rate(all_total[$window]))
  eventsMin: 20
  runbook: leader-lost
"#;

    #[test]
    fn the_limits_are_those_of_the_workbook() {
        let objective = Objective::parse(FILE).unwrap();
        let limits: Vec<String> = SPEEDS.iter().map(|speed| objective.limit(speed)).collect();
        // 14.4, 6, 3 and 1 times a budget of 0.05 %.
        assert_eq!(limits, ["0.0072", "0.003", "0.0015", "0.0005"]);
        let generous = Objective { budget: WHOLE / 2, ..objective };
        assert_eq!(generous.limit(&SPEEDS[0]), "1", "no more than everything can be bad");
    }

    #[test]
    fn an_objective_becomes_records_and_two_alerts() {
        let text = rules(&[Objective::parse(FILE).unwrap()]);
        assert_eq!(text.matches("- record: muster:slo_bad_ratio:").count(), WINDOWS.len(), "{text}");
        let record = r#"expr: "((sum(rate(bad_total{code=\"INTERNAL\"}[5m]))) or vector(0)) / (sum(rate(all_total[5m])))""#;
        assert!(text.contains(record), "{text}");
        assert!(text.contains("- alert: MusterCallsAnsweredBurnsFast"), "{text}");
        assert!(text.contains("- alert: MusterCallsAnsweredBurnsSlow"), "{text}");
        assert!(text.contains(r#"and on() (sum(rate(all_total[1h]))) * 3600 >= 20)"#), "{text}");
        assert!(text.contains("runbook_url: ops/runbooks/leader-lost.md"), "{text}");
        let is_recorded = |window: &str| WINDOWS.iter().any(|(recorded, _)| *recorded == window);
        for speed in &SPEEDS {
            assert!(is_recorded(speed.long) && is_recorded(speed.short));
        }
    }

    #[test]
    fn one_look_at_a_bad_moment_fires_nothing() {
        let counts = FILE.split_once("  bad: ").unwrap().0.to_owned();
        let objective =
            format!("{counts}  badTime: 1 - avg_over_time(good[$window:$step])\n  runbook: leader-lost\n");
        let objective = Objective::parse(&objective).unwrap();
        let text = rules(std::slice::from_ref(&objective));
        assert!(text.contains(r#"expr: "1 - avg_over_time(good[1h:15s])""#), "{text}");
        assert!(!text.contains('$'), "{text}");
        let seconds = |time: &str| -> f64 {
            let (number, unit) = time.split_at(time.len() - 1);
            number.parse::<f64>().unwrap() * if unit == "m" { 60.0 } else { 1.0 }
        };
        for speed in &SPEEDS {
            let (_, step) = WINDOWS.iter().find(|(window, _)| *window == speed.long).unwrap();
            let limit: f64 = objective.limit(speed).parse().unwrap();
            let share = seconds(step) / f64::from(u32::try_from(speed.long_s).unwrap());
            assert!(share < limit, "{step} of {}: {share} and {limit}", speed.long);
        }
    }

    #[test]
    fn bad_files_are_refused_with_their_field() {
        let with = |from: &str, to: &str| Objective::parse(&FILE.replace(from, to)).unwrap_err().field;
        for objective in ["100", "0", "99.", "x", "99.99999", "-1", "1e1", ""] {
            if objective != "99." {
                assert_eq!(with("99.95", objective), "spec.objective", "{objective}");
            }
        }
        for period in ["30", "6d", "91d", "1h", "99999999999999999999d"] {
            assert_eq!(with("30d", period), "spec.period", "{period}");
        }
        assert_eq!(with("calls-answered", "Calls"), "metadata.name");
        assert_eq!(with("calls-answered", "9"), "metadata.name");
        assert_eq!(with("leader-lost", "../secret"), "spec.runbook");
        assert_eq!(with("  all: sum(rate(all_total[$window]))\n", ""), "spec");
        assert_eq!(with("all_total[$window]", "all_total[5m]"), "spec.all");
        assert_eq!(with("muster.dev/v1", "muster.dev/v9"), "apiVersion");
        assert_eq!(with("ServiceLevelObjective", "Job"), "kind");
        assert_eq!(with("Calls are answered.", "\"\""), "spec.description");
        assert_eq!(with("  period: 30d", "  period: 30d\n  colour: red"), "");
        assert_eq!(Objective::parse("").unwrap_err().field, "");
        assert_eq!(Objective::parse(&"#".repeat(FILE_BYTES_MAX + 1)).unwrap_err().field, "");
    }
}
