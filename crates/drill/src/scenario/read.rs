//! From YAML to a scenario.
//!
//! Scalars are read as their text with its place and judged afterwards, all together: one run names every mistake.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_saphyr::{Error, Location, Spanned};

use super::value::{self, ValueError};
use super::{
    Action, Corruption, DataFile, Expectations, FILE_BYTES_MAX, LIVE_FOR_MS_MAX, LIVE_VERBS, Leadership,
    LinkShape, LiveAction, MeasuredFrom, NEVER_STOP_SILENCE_MS, Pair, Problem, RecoveryTime, SETTLE_MS,
    STEPS_MAX, Scenario, Selection, Selector, SettledLatency, Step, VERBS,
};

/// Bytes of a title, and of a story.
const TITLE_BYTES_MAX: usize = 100;
const STORY_BYTES_MAX: usize = 2_000;
/// Selectors of one field.
const SELECTORS_MAX: usize = 8;
const WARNINGS_MAX: usize = 8;
/// Expectations that are durations; files had them with `_ms` behind the name.
const BARS: [&str; 8] = [
    "acknowledged_within",
    "gangs_elsewhere_after_lease",
    "lost_at_most",
    "replicas_equal_within",
    "median",
    "worst",
    "p50",
    "within",
];
/// Most problems that are listed.
const PROBLEMS_MAX: usize = 100;

type Text = Spanned<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Option<Text>,
    title: Option<Text>,
    story: Option<Text>,
    runbook: Option<Text>,
    processes: Option<Vec<Spanned<StepFields>>>,
    live: Option<Vec<Spanned<StepFields>>>,
    settle: Option<Text>,
    expect: Option<Spanned<ExpectFields>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StepFields {
    at: Option<Text>,
    r#do: Option<Text>,
    what: Option<Spanned<Words>>,
    from: Option<Spanned<Words>>,
    to: Option<Spanned<Words>>,
    both: Option<Text>,
    r#for: Option<Text>,
    down: Option<Text>,
    up: Option<Text>,
    delay: Option<Text>,
    jitter: Option<Text>,
    loss: Option<Text>,
    duplicate: Option<Text>,
    reorder: Option<Text>,
    corrupt: Option<Text>,
    rate: Option<Text>,
    flush: Option<Text>,
    file: Option<Text>,
    how: Option<Text>,
    offset: Option<Text>,
    speed: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectFields {
    leadership: Option<Text>,
    submission_again: Option<Spanned<AgainFields>>,
    linearizable_read_again: Option<Spanned<AgainFields>>,
    acknowledged_within: Option<Text>,
    submissions_settle: Option<Spanned<SettledFields>>,
    reads_on_survivors: Option<Text>,
    gangs_elsewhere_after_lease: Option<Text>,
    gangs_untouched: Option<Text>,
    lost_at_most: Option<Text>,
    warnings: Option<Vec<Text>>,
    replicas_equal_within: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgainFields {
    median: Option<Text>,
    worst: Option<Text>,
    since: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettledFields {
    p50: Option<Text>,
    within: Option<Text>,
}

/// One word, or a list of them.
struct Words(Vec<String>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Words, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a selector or a list of selectors")
            }

            fn visit_str<E>(self, word: &str) -> Result<Words, E> {
                Ok(Words(vec![word.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Words(words))
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}

fn whole(description: impl Into<String>) -> Vec<Problem> {
    vec![Problem { line: 0, field: String::new(), description: description.into() }]
}

/// Reads a file.
pub(super) fn scenario(file: &str, bytes: &[u8]) -> Result<Scenario, Vec<Problem>> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(whole(format!("the file is larger than {} KiB", FILE_BYTES_MAX >> 10)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        vec![Problem { line: line as u64, ..whole("the file is not UTF-8 text").remove(0) }]
    })?;
    let document: Document = serde_saphyr::from_str(text).map_err(|error| vec![structure(&error)])?;
    let mut reader = Reader { problems: Vec::new() };
    let scenario = reader.document(file, document);
    reader.problems.sort_by_key(|problem| problem.line);
    reader.problems.truncate(PROBLEMS_MAX);
    if reader.problems.is_empty() { Ok(scenario) } else { Err(reader.problems) }
}

/// What keeps a file from being read at all: syntax, an unknown field, a list where a mapping belongs.
fn structure(error: &Error) -> Problem {
    let error = error.without_snippet();
    let line = error.location().as_ref().map_or(0, Location::line);
    let (field, description) = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let shown: String = field.chars().take(80).collect();
            // A key of an earlier form, which had the unit in the key.
            let is_bar = |now: &&str| BARS.contains(now) && expected.iter().any(|known| known == now);
            let now = field.strip_suffix("_ms").filter(is_bar);
            let description = match now {
                Some(now) => {
                    format!("is now `{now}`, with the unit in the value like {now}: 2s or {now}: 1500ms")
                }
                None => format!("unknown field (known here: {})", expected.join(", ")),
            };
            (shown, description)
        }
        Error::DuplicateMappingKey { key, .. } => {
            (key.clone().unwrap_or_default().chars().take(80).collect(), "is given twice".to_owned())
        }
        other => {
            let text = other.to_string();
            // The place is shown in front; the parser repeats it at the end.
            let plain = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
            (String::new(), plain.chars().take(300).collect())
        }
    };
    Problem { line, field, description }
}

fn line_of<T>(spanned: &Spanned<T>) -> u64 {
    spanned.referenced.line()
}

struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn problem(&mut self, line: u64, field: impl Into<String>, description: impl fmt::Display) {
        self.problems.push(Problem { line, field: field.into(), description: description.to_string() });
    }

    fn document(&mut self, file: &str, document: Document) -> Scenario {
        let name = self.needed("", 1, "name", document.name, value::name).unwrap_or_default();
        let stem = file.rsplit('/').next().unwrap_or(file);
        let stem = stem.strip_suffix(".yaml").unwrap_or(stem);
        if !name.is_empty() && name != stem {
            self.problem(1, "name", format!("must be the file's name, {stem:?}, got {name:?}"));
        }
        let title = self.needed("", 1, "title", document.title, |text| prose(text, TITLE_BYTES_MAX));
        let story = self.needed("", 1, "story", document.story, |text| prose(text, STORY_BYTES_MAX));
        let runbook = self.needed("", 1, "runbook", document.runbook, page);
        let settle_ms = self.value("settle", document.settle, value::duration_ms).unwrap_or(SETTLE_MS);
        let processes = self.steps("processes", document.processes, |fields, verb| fields.action(verb));
        let live = self.steps("live", document.live, |fields, verb| fields.live_action(verb));
        if processes.is_empty() && live.is_empty() {
            self.problem(1, "processes", "must be given, or `live`: nothing is done here");
        }
        self.after(&processes);
        let (expect_line, expect) = match document.expect {
            Some(expect) => (line_of(&expect), self.expectations(expect.value)),
            None => {
                self.problem(
                    1,
                    "expect",
                    "must be given: what must hold beyond what always does; `{}` for nothing",
                );
                (1, Expectations::default())
            }
        };
        let scenario = Scenario {
            name,
            title: title.unwrap_or_default(),
            story: story.unwrap_or_default(),
            runbook: runbook.unwrap_or_default(),
            processes,
            live,
            settle_ms,
            expect,
        };
        self.fitting(expect_line, &scenario);
        scenario
    }

    /// Expectations that nothing in the steps could meet or miss.
    fn fitting(&mut self, line: u64, scenario: &Scenario) {
        let expect = &scenario.expect;
        let recovers = scenario.processes.iter().any(|step| matches!(step.action, Action::Recover { .. }));
        if expect.lost_at_most_ms > 0 && !recovers {
            self.problem(
                line,
                "expect.lost_at_most",
                "only a drill that has a `recover` step may lose what was acknowledged",
            );
        }
        let heals = scenario.heal_ms().is_some() || scenario.processes.is_empty();
        let fields = [
            ("expect.submission_again.since", expect.submission_again),
            ("expect.linearizable_read_again.since", expect.linearizable_read_again),
        ];
        for (field, again) in fields {
            if again.is_some_and(|again| again.since == MeasuredFrom::Heal) && !heals {
                self.problem(line, field, "must be `fault`: no step undoes anything");
            }
        }
        if expect.gangs_untouched && expect.gangs_elsewhere_after_lease_ms.is_some() {
            self.problem(
                line,
                "expect.gangs_untouched",
                "cannot be combined with `gangs_elsewhere_after_lease`",
            );
        }
    }

    fn value<T>(
        &mut self,
        field: &str,
        text: Option<Text>,
        read: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let text = text?;
        match read(&text.value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problem(line_of(&text), field, error);
                None
            }
        }
    }

    fn needed<T>(
        &mut self,
        prefix: &str,
        line: u64,
        field: &str,
        text: Option<Text>,
        read: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let field = format!("{prefix}{field}");
        if text.is_none() {
            self.problem(line, field, "must be given");
            return None;
        }
        self.value(&field, text, read)
    }

    fn steps<A>(
        &mut self,
        list: &str,
        steps: Option<Vec<Spanned<StepFields>>>,
        action: impl Fn(&mut Fields<'_>, &str) -> Option<A>,
    ) -> Vec<Step<A>> {
        let steps = steps.unwrap_or_default();
        if steps.len() > STEPS_MAX {
            self.problem(line_of(&steps[STEPS_MAX]), list, format!("must have at most {STEPS_MAX} steps"));
        }
        let mut read = Vec::with_capacity(steps.len());
        let mut last_ms = 0;
        for (i, step) in steps.into_iter().enumerate() {
            let line = line_of(&step);
            let mut fields = Fields::new(self, format!("{list}[{i}]"), line, step.value);
            let at_ms = fields.needed("at", value::duration_ms).unwrap_or(last_ms);
            let verb = fields.needed("do", |text| Ok(text.to_owned()));
            let action = verb.and_then(|verb| action(&mut fields, &verb).map(|found| (verb, found)));
            if let Some((verb, found)) = action {
                fields.end(&verb);
                read.push(Step { at_ms, action: found, line });
            }
            let field = format!("{list}[{i}].at");
            if i == 0 && at_ms != 0 {
                self.problem(line, field, "must be 0s for the first step: time counts from it");
            } else if at_ms < last_ms {
                self.problem(line, field, "must not be before the step above");
            }
            last_ms = last_ms.max(at_ms);
        }
        read
    }

    /// Steps that undo something, or need a host that does not run, stand behind one that did it.
    fn after(&mut self, steps: &[Step<Action>]) {
        let mut down: Vec<&Selector> = Vec::new();
        let mut paused: Vec<&Selector> = Vec::new();
        let mut full: Vec<&Selector> = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            let (before, what, must) = match &step.action {
                Action::Kill { what } | Action::PowerCut { what } => {
                    down.extend(&what.0);
                    continue;
                }
                Action::Pause { what, for_ms: None } => {
                    paused.extend(&what.0);
                    continue;
                }
                Action::FullDisk { what, for_ms: None } => {
                    full.extend(&what.0);
                    continue;
                }
                Action::Start { what }
                | Action::Damage { what, .. }
                | Action::LoseDisk { what }
                | Action::ReplaceReplica { what } => (&down, what, "kill or power-cut"),
                Action::Resume { what } => (&paused, what, "pause (without `for`)"),
                Action::DiskRoom { what } => (&full, what, "full-disk (without `for`)"),
                _ => continue,
            };
            if let Some(selector) = what.0.iter().find(|selector| !covered(selector, before)) {
                let description = format!("{selector} must be named by a step above with `do: {must}`");
                self.problem(step.line, format!("processes[{i}].what"), description);
            }
        }
    }

    fn again(&mut self, field: &str, fields: Option<Spanned<AgainFields>>) -> Option<RecoveryTime> {
        let fields = fields?;
        let (line, prefix) = (line_of(&fields), format!("expect.{field}."));
        let AgainFields { median, worst, since } = fields.value;
        let median_ms = self.value(&format!("{prefix}median"), median, value::bar_ms);
        let worst_ms = self.needed(&prefix, line, "worst", worst, value::bar_ms)?;
        let since = self.value(&format!("{prefix}since"), since, |text| {
            choice(text, &[("fault", MeasuredFrom::Fault), ("heal", MeasuredFrom::Heal)])
        });
        if median_ms.is_some_and(|median_ms| median_ms > worst_ms) {
            self.problem(line, format!("{prefix}median"), "must not be above worst");
        }
        Some(RecoveryTime { median_ms, worst_ms, since: since.unwrap_or_default() })
    }

    fn expectations(&mut self, fields: ExpectFields) -> Expectations {
        let leadership = self.value("expect.leadership", fields.leadership, |text| {
            choice(text, &[("moves", Leadership::Moves), ("stays", Leadership::Stays)])
        });
        let submissions_settle = fields.submissions_settle.and_then(|fields| {
            let (line, prefix) = (line_of(&fields), "expect.submissions_settle.");
            let SettledFields { p50, within } = fields.value;
            let p50_ms = self.needed(prefix, line, "p50", p50, value::bar_ms);
            let within_ms = self.needed(prefix, line, "within", within, value::bar_ms);
            Some(SettledLatency { p50_ms: p50_ms?, within_ms: within_ms? })
        });
        let silence = |text: &str| match text {
            "never-stop" => Ok(NEVER_STOP_SILENCE_MS),
            other => value::bar_ms(other)
                .map_err(|_| ValueError::new("never-stop, or the longest silence like 2s or 1500ms", other)),
        };
        let warnings = fields.warnings.unwrap_or_default();
        if warnings.len() > WARNINGS_MAX {
            self.problem(line_of(&warnings[WARNINGS_MAX]), "expect.warnings", "must have at most 8 codes");
        }
        let bar = |reader: &mut Reader, field: &str, text| {
            reader.value(&format!("expect.{field}"), text, value::bar_ms)
        };
        Expectations {
            leadership,
            submission_again: self.again("submission_again", fields.submission_again),
            linearizable_read_again: self.again("linearizable_read_again", fields.linearizable_read_again),
            acknowledged_within_ms: bar(self, "acknowledged_within", fields.acknowledged_within),
            submissions_settle,
            reads_on_survivors_silence_ms: self.value(
                "expect.reads_on_survivors",
                fields.reads_on_survivors,
                silence,
            ),
            gangs_elsewhere_after_lease_ms: bar(
                self,
                "gangs_elsewhere_after_lease",
                fields.gangs_elsewhere_after_lease,
            ),
            gangs_untouched: self
                .value("expect.gangs_untouched", fields.gangs_untouched, value::flag)
                .unwrap_or_default(),
            lost_at_most_ms: bar(self, "lost_at_most", fields.lost_at_most).unwrap_or_default(),
            warnings: warnings
                .into_iter()
                .filter_map(|text| self.value("expect.warnings", Some(text), warning_code))
                .collect(),
            replicas_equal_within_ms: bar(self, "replicas_equal_within", fields.replicas_equal_within),
        }
    }
}

/// Whether all hosts of a selector are surely among those of `others`.
fn covered(selector: &Selector, others: &[&Selector]) -> bool {
    let wider: &[Selector] = match selector {
        Selector::Leader => &[Selector::LeaderRegion, Selector::Replicas],
        Selector::LeaderAgents => &[Selector::LeaderRegion, Selector::Agents],
        Selector::LeaderClients => &[Selector::LeaderRegion],
        Selector::Follower | Selector::OtherFollowers | Selector::Replica(_) => &[Selector::Replicas],
        Selector::Agent => &[Selector::Agents],
        _ => &[],
    };
    others
        .iter()
        .any(|other| **other == *selector || **other == Selector::Everywhere || wider.contains(other))
}

/// The fields of one step, each taken at most once; what no one took does not belong there.
struct Fields<'a> {
    reader: &'a mut Reader,
    path: String,
    line: u64,
    scalars: BTreeMap<&'static str, Text>,
    selections: BTreeMap<&'static str, Spanned<Words>>,
}

impl<'a> Fields<'a> {
    fn new(reader: &'a mut Reader, path: String, line: u64, step: StepFields) -> Fields<'a> {
        let scalars = [
            ("at", step.at),
            ("do", step.r#do),
            ("both", step.both),
            ("for", step.r#for),
            ("down", step.down),
            ("up", step.up),
            ("delay", step.delay),
            ("jitter", step.jitter),
            ("loss", step.loss),
            ("duplicate", step.duplicate),
            ("reorder", step.reorder),
            ("corrupt", step.corrupt),
            ("rate", step.rate),
            ("flush", step.flush),
            ("file", step.file),
            ("how", step.how),
            ("offset", step.offset),
            ("speed", step.speed),
        ];
        let selections = [("what", step.what), ("from", step.from), ("to", step.to)];
        Fields {
            reader,
            path,
            line,
            scalars: scalars.into_iter().filter_map(|(name, text)| Some((name, text?))).collect(),
            selections: selections.into_iter().filter_map(|(name, words)| Some((name, words?))).collect(),
        }
    }

    fn problem(&mut self, line: u64, field: &str, description: impl fmt::Display) {
        let field = format!("{}.{field}", self.path);
        self.reader.problem(line, field, description);
    }

    fn value<T>(&mut self, field: &str, read: impl Fn(&str) -> Result<T, ValueError>) -> Option<T> {
        let text = self.scalars.remove(field);
        self.reader.value(&format!("{}.{field}", self.path), text, read)
    }

    fn needed<T>(&mut self, field: &str, read: impl Fn(&str) -> Result<T, ValueError>) -> Option<T> {
        let (line, text) = (self.line, self.scalars.remove(field));
        let prefix = format!("{}.", self.path);
        self.reader.needed(&prefix, line, field, text, read)
    }

    fn selection(&mut self, field: &str) -> Option<Selection> {
        let words = self.selections.remove(field)?;
        let line = line_of(&words);
        let count = words.value.0.len();
        if count == 0 || count > SELECTORS_MAX {
            self.problem(line, field, format!("must have 1 to {SELECTORS_MAX} selectors, got {count}"));
            return None;
        }
        let mut selectors = Vec::with_capacity(count);
        for word in &words.value.0 {
            match word.parse::<Selector>() {
                Ok(selector) => selectors.push(selector),
                Err(error) => self.problem(line, field, error),
            }
        }
        (selectors.len() == count).then_some(Selection(selectors))
    }

    /// Hosts that are named without another side.
    fn what(&mut self) -> Option<Selection> {
        if !self.selections.contains_key("what") {
            self.problem(self.line, "what", "must be given: which hosts are meant");
            return None;
        }
        let what = self.selection("what")?;
        if what.is_relative() {
            self.problem(self.line, "what", "must not be `peers` or `rest`: there is no other side here");
            return None;
        }
        Some(what)
    }

    fn pair(&mut self) -> Option<Pair> {
        for side in ["from", "to"] {
            if !self.selections.contains_key(side) {
                self.problem(self.line, side, "must be given: whose packets are meant");
            }
        }
        let (from, to) = (self.selection("from"), self.selection("to"));
        let both = self.value("both", value::flag).unwrap_or_default();
        let (from, to) = (from?, to?);
        if from.is_relative() && to.is_relative() {
            self.problem(self.line, "to", "must name hosts: only one side may be `peers` or `rest`");
            return None;
        }
        Some(Pair { from, to, both })
    }

    fn for_ms(&mut self) -> Option<u64> {
        self.value("for", above_zero)
    }

    fn link_shape(&mut self) -> Option<LinkShape> {
        let shape = LinkShape {
            delay_us: self.value("delay", value::duration_us).unwrap_or_default(),
            jitter_us: self.value("jitter", value::duration_us).unwrap_or_default(),
            loss_ppm: self.value("loss", value::chance_ppm).unwrap_or_default(),
            duplicate_ppm: self.value("duplicate", value::chance_ppm).unwrap_or_default(),
            reorder_ppm: self.value("reorder", value::chance_ppm).unwrap_or_default(),
            corrupt_ppm: self.value("corrupt", value::chance_ppm).unwrap_or_default(),
            rate_bits: self.value("rate", value::rate_bits),
        };
        if shape == LinkShape::default() {
            let description = "does nothing: give delay, jitter, loss, duplicate, reorder, corrupt or rate";
            self.problem(self.line, "do", description);
            return None;
        }
        const MINUTE_US: u64 = 60_000_000;
        if shape.delay_us > MINUTE_US || shape.jitter_us > MINUTE_US {
            self.problem(self.line, "delay", "must be at most 1m, and so must jitter");
        }
        Some(shape)
    }

    fn clock(&mut self) -> Option<Action> {
        let what = self.what();
        let offset_ms = self.value("offset", value::offset_ms).unwrap_or_default();
        let rate_milli = self.value("speed", value::clock_rate_milli).unwrap_or(1_000);
        let for_ms = self.for_ms();
        if offset_ms == 0 && rate_milli == 1_000 {
            self.problem(self.line, "do", "does nothing: give offset (+1h) or speed (1.3)");
        }
        Some(Action::Clock { what: what?, offset_ms, rate_milli, for_ms })
    }

    fn damage(&mut self) -> Option<Action> {
        let what = self.what();
        let file = self.needed("file", |text| {
            choice(
                text,
                &[
                    ("log", DataFile::Log),
                    ("log-tail", DataFile::LogTail),
                    ("snapshot", DataFile::Snapshot),
                    ("vote", DataFile::Vote),
                    ("archive", DataFile::Archive),
                ],
            )
        });
        let how = self.needed("how", |text| {
            choice(
                text,
                &[
                    ("flip-bit", Corruption::FlipBit),
                    ("truncate", Corruption::Truncate),
                    ("remove", Corruption::Remove),
                ],
            )
        });
        Some(Action::Damage { what: what?, file: file?, how: how? })
    }

    fn action(&mut self, verb: &str) -> Option<Action> {
        Some(match verb {
            "cut" => {
                let (pair, for_ms) = (self.pair(), self.for_ms());
                Action::Cut { pair: pair?, for_ms }
            }
            "heal" => {
                let some = self.selections.contains_key("from") || self.selections.contains_key("to");
                Action::Heal { pair: if some { Some(self.pair()?) } else { None } }
            }
            "link" => {
                let (pair, shape, for_ms) = (self.pair(), self.link_shape(), self.for_ms());
                Action::Link { pair: pair?, shape: shape?, for_ms }
            }
            "flap" => {
                let pair = self.pair();
                let down_ms = self.needed("down", above_zero);
                let up_ms = self.needed("up", above_zero);
                let for_ms = self.needed("for", above_zero);
                Action::Flap { pair: pair?, down_ms: down_ms?, up_ms: up_ms?, for_ms: for_ms? }
            }
            "kill" => Action::Kill { what: self.what()? },
            "start" => Action::Start { what: self.what()? },
            "pause" => {
                let (what, for_ms) = (self.what(), self.for_ms());
                Action::Pause { what: what?, for_ms }
            }
            "resume" => Action::Resume { what: self.what()? },
            "slow-disk" => {
                let (what, flush_ms) = (self.what(), self.needed("flush", above_zero));
                let for_ms = self.for_ms();
                Action::SlowDisk { what: what?, flush_ms: flush_ms?, for_ms }
            }
            "full-disk" => {
                let (what, for_ms) = (self.what(), self.for_ms());
                Action::FullDisk { what: what?, for_ms }
            }
            "disk-room" => Action::DiskRoom { what: self.what()? },
            "damage" => self.damage()?,
            "lose-disk" => Action::LoseDisk { what: self.what()? },
            "power-cut" => Action::PowerCut { what: self.what()? },
            "clock" => self.clock()?,
            "replace-replica" => Action::ReplaceReplica { what: self.one_replica()? },
            "rolling-restart" => Action::RollingRestart { what: self.what()? },
            "rolling-upgrade" => Action::RollingUpgrade { what: self.what()? },
            "recover" => Action::Recover { what: self.what()? },
            "transfer-leadership" => Action::TransferLeadership { to: self.successor()? },
            other => {
                self.unknown(other, &VERBS);
                return None;
            }
        })
    }

    fn live_action(&mut self, verb: &str) -> Option<LiveAction> {
        let brief = |text: &str| {
            let for_ms = above_zero(text).ok().filter(|for_ms| *for_ms <= LIVE_FOR_MS_MAX);
            for_ms.ok_or_else(|| ValueError::new("a duration from 1ms to 5m", text))
        };
        Some(match verb {
            "transfer-leadership" => LiveAction::TransferLeadership { to: self.successor()? },
            "cordon-region" => {
                let (what, for_ms) = (self.what(), self.needed("for", brief));
                let what = what?;
                let regions = |selector: &Selector| is_region(selector);
                if what.0.len() != 1 || !what.0.iter().all(regions) {
                    self.problem(
                        self.line,
                        "what",
                        "must be one of leader-region, other-region, last-region, region:NAME",
                    );
                    return None;
                }
                LiveAction::CordonRegion { what, for_ms: for_ms? }
            }
            "refuse-traffic" => {
                let (what, for_ms) = (self.what(), self.needed("for", brief));
                let what = what?;
                if !what.0.iter().all(|selector| is_region(selector) || is_replica(selector)) {
                    self.problem(self.line, "what", "must name replicas or regions on a live cluster");
                    return None;
                }
                LiveAction::RefuseTraffic { what, for_ms: for_ms? }
            }
            other => {
                self.unknown(other, &LIVE_VERBS);
                return None;
            }
        })
    }

    fn one_replica(&mut self) -> Option<Selection> {
        let what = self.what()?;
        if what.0.len() == 1 && what.0.iter().all(is_replica) {
            return Some(what);
        }
        self.problem(self.line, "what", "must be one of leader, follower, replica:ID");
        None
    }

    /// The outer none is a problem that was said.
    fn successor(&mut self) -> Option<Option<Selection>> {
        if !self.selections.contains_key("to") {
            return Some(None);
        }
        let to = self.selection("to")?;
        // Who led when the fault began has the leadership at the first step, and may get it back later.
        let is_first = self.path.ends_with("[0]");
        let may = |s: &Selector| is_replica(s) && (*s != Selector::Leader || !is_first);
        let fits = to.0.len() == 1 && to.0.iter().all(may);
        if !fits {
            let text =
                "must be follower or replica:ID, behind the first step also leader; leave it out for any";
            self.problem(self.line, "to", text);
            return None;
        }
        Some(Some(to))
    }

    fn unknown(&mut self, verb: &str, known: &[&str]) {
        let error = ValueError::new(&format!("one of {}", known.join(", ")), verb);
        let line = self.line;
        self.problem(line, "do", error);
        self.scalars.clear();
        self.selections.clear();
    }

    /// Refuses what is left.
    fn end(mut self, verb: &str) {
        let lines = self.scalars.iter().map(|(name, text)| (*name, line_of(text)));
        let more = self.selections.iter().map(|(name, words)| (*name, line_of(words)));
        let left: Vec<(&str, u64)> = lines.chain(more).collect();
        for (name, line) in left {
            self.problem(line, name, format!("`{verb}` has no such field: remove it"));
        }
    }
}

fn is_region(selector: &Selector) -> bool {
    matches!(
        selector,
        Selector::LeaderRegion | Selector::OtherRegion | Selector::LastRegion | Selector::Region(_)
    )
}

fn is_replica(selector: &Selector) -> bool {
    matches!(selector, Selector::Leader | Selector::Follower | Selector::Replica(_))
}

fn above_zero(text: &str) -> Result<u64, ValueError> {
    match value::duration_ms(text)? {
        0 => Err(ValueError::new("longer than 0", text)),
        ms => Ok(ms),
    }
}

fn choice<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, ValueError> {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| ValueError::new(&format!("one of {}", names.join(", ")), text))
}

fn prose(text: &str, bytes_max: usize) -> Result<String, ValueError> {
    let text = text.trim();
    let plain = text.chars().all(|c| !c.is_control() || c == '\n');
    if text.is_empty() || text.len() > bytes_max || !plain {
        return Err(ValueError::new(&format!("text of 1 to {bytes_max} bytes"), text));
    }
    Ok(text.to_owned())
}

/// A file name in `ops/runbooks`, and no path that leads elsewhere.
fn page(text: &str) -> Result<String, ValueError> {
    let error = || ValueError::new("a file of ops/runbooks like slow-disk.md", text);
    let stem = text.strip_suffix(".md").ok_or_else(error)?;
    value::name(stem).map_err(|_| error())?;
    Ok(text.to_owned())
}

fn warning_code(text: &str) -> Result<String, ValueError> {
    let fits =
        !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    if fits { Ok(text.to_owned()) } else { Err(ValueError::new("a code like STORAGE_FULL", text)) }
}
