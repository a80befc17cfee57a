//! What people ask of jobs, in scripts.

use muster_decider::{Command, ControlOrder, JobSelection, JobVersion, ModifyOrder, ThrottleOrder};
use muster_types::{
    ArrayId, Control, Dependency, DependencyRule, DependencyScope, FieldChange, GroupSize, JobId, LogIndex,
    NodeExpression, NodeRequirements, PriorityTier, Requester,
};

use super::{World, duration_ms};
use crate::support::name;

impl World {
    /// Jobs, and who asked where that is known.
    pub(super) fn controlled(&self, jobs: &[JobId], by: &Requester) -> String {
        let jobs: Vec<String> = jobs.iter().map(|job| format!(" {}", self.label(*job))).collect();
        let by = if by.is_unknown() { String::new() } else { format!(" by {by}") };
        format!("{}{by}", jobs.concat())
    }

    /// An array by the name that its members have in scripts.
    pub(super) fn array_id(&self, name: &str) -> ArrayId {
        ArrayId(self.job_id(&format!("{name}[0]")).0)
    }

    pub(super) fn array_label(&self, array: ArrayId) -> String {
        let label = self.label(JobId(array.0));
        label.strip_suffix("[0]").map_or(label.clone(), str::to_owned)
    }

    /// `JOB`, `array:NAME` or `members:NAME`.
    pub(super) fn dependency(&self, on: &str, rule: DependencyRule) -> Dependency {
        for (prefix, scope) in [("array:", DependencyScope::Array), ("members:", DependencyScope::Member)] {
            if let Some(array) = on.strip_prefix(prefix) {
                return Dependency { job: JobId(self.array_id(array).0), rule, scope };
            }
        }
        Dependency::new(self.job_id(on), rule)
    }

    /// `show array NAME`.
    pub(super) fn show_array(&self, name: &str) -> String {
        let id = self.array_id(name);
        let Some(row) = self.state().array(id) else { return format!("no array {name}\n") };
        let mut text = format!(
            "{name}: {} not created, {} unfinished, {} succeeded, {} failed, {} cancelled",
            row.uncreated,
            row.unfinished(),
            row.succeeded,
            row.failed,
            row.cancelled
        );
        if row.hold.is_some() {
            text.push_str("; held");
        }
        if !row.released {
            text.push_str("; waits");
        }
        let ends =
            self.state().member_ends(id).map(|run| format!("{}-{} {:?}", run.first, run.last, run.how));
        let ends: Vec<String> = ends.collect();
        let left: Vec<String> =
            self.state().uncreated(id).iter().map(|(first, last)| format!("{first}-{last}")).collect();
        text.push_str(&format!("; ends [{}]; left [{}]\n", ends.join(", "), left.join(", ")));
        text
    }

    /// `by=NAME` who asks, an operator where it is `by=admin/…`.
    pub(super) fn requester(&self, words: &[&str]) -> Requester {
        let name = self.number(words, "by=").unwrap_or_default().to_owned();
        let is_operator = name.starts_with("admin/");
        Requester::named(name, is_operator)
    }

    /// `hold JOB... [by=NAME] [found]`, and `resume` for a release: of jobs that a selector found, those that it cannot be asked of are passed over.
    pub(super) fn control(&mut self, verb: &str, words: &[&str]) -> String {
        let is_option = |word: &&str| !word.contains('=') && *word != "found";
        let arrays = words.iter().filter_map(|word| word.strip_prefix("array="));
        let arrays: Vec<ArrayId> = arrays.map(|array| self.array_id(array)).collect();
        let jobs: Vec<JobId> = words.iter().copied().filter(is_option).map(|job| self.job_id(job)).collect();
        let verb = if verb == "resume" { "release" } else { verb };
        let control = Control::ALL.into_iter().find(|control| control.as_str() == verb).expect("a control");
        let selection =
            JobSelection { is_found: words.contains(&"found"), arrays, ..JobSelection::named(jobs) };
        let (request, by) = (self.request(words), self.requester(words));
        self.carry_out(&Command::Control(Box::new(ControlOrder {
            acts_for: None,
            request,
            by,
            control,
            selection,
        })))
    }

    /// `where=TESTS only=NODE,NODE exclude=NODE,NODE`; the tests have `~` for a blank.
    pub(super) fn asked_nodes(words: &[&str]) -> Option<Box<NodeRequirements>> {
        let of = |prefix: &str| words.iter().find_map(|word| word.strip_prefix(prefix));
        let names =
            |prefix: &str| of(prefix).into_iter().flat_map(|text| text.split(',').map(name)).collect();
        let tests = of("where=").map(|text| text.replace('~', " "));
        let asked = NodeRequirements {
            expressions: tests
                .map_or_else(Vec::new, |tests| NodeExpression::parse_all(&tests).expect("tests")),
            only: names("only="),
            exclude: names("exclude="),
        };
        (!asked.is_empty()).then(|| Box::new(asked))
    }

    /// `modify JOB [by=NAME] [stale] tier=T limit=D|none not-before=+D|none deadline=+D|none runs=D|none regions=A,B
    /// label=KEY:VALUE annotation=KEY:VALUE where=TESTS|nodes=any only=NODE,NODE exclude=NODE,NODE nice=N workers=N|MIN..N
    /// tenant=NAME front acts-for=TENANT`, or
    /// `modify array=NAME [by=NAME] throttle=N|none`.
    pub(super) fn modify(&mut self, words: &[&str]) -> String {
        if let Some(array) = words[0].strip_prefix("array=") {
            let array = self.array_id(array);
            let throttle = self.number(words, "throttle=").and_then(|most| most.parse().ok());
            let (request, by) = (self.request(words), self.requester(words));
            let order = ThrottleOrder { request, by, acts_for: None, array, throttle };
            return self.carry_out(&Command::SetThrottle(Box::new(order)));
        }
        let job = self.job_id(words[0]);
        let span = |text: &str| (text != "none").then(|| duration_ms(text));
        let time = |text: &str| text.strip_prefix('+').map(|after| self.now.plus_ms(duration_ms(after)));
        let mut changes = Vec::new();
        for word in &words[1..] {
            let Some((field, value)) = word.split_once('=') else { continue };
            changes.extend(match field {
                "tier" => Some(FieldChange::Tier(PriorityTier::parse(value).expect("a tier"))),
                "limit" => Some(FieldChange::RunTimeLimit(span(value))),
                "runs" => Some(FieldChange::ExpectedRun(span(value))),
                "not-before" => Some(FieldChange::NotBefore(time(value))),
                "deadline" => Some(FieldChange::Deadline(time(value))),
                "regions" => {
                    let regions = value.split(',').filter(|region| !region.is_empty());
                    Some(FieldChange::Regions(regions.map(name).collect()))
                }
                "nice" => Some(FieldChange::Nice(value.parse().expect("a nice value"))),
                "tenant" => Some(FieldChange::Tenant(name(value))),
                "workers" => {
                    let (least, most) = value.split_once("..").map_or((None, value), |(a, b)| (Some(a), b));
                    let workers_min = least.map(|least| least.parse().expect("a number of workers"));
                    let workers = most.parse().expect("a number of workers");
                    Some(FieldChange::Groups(vec![GroupSize { group: None, workers, workers_min }]))
                }
                _ => None,
            });
        }
        if words.contains(&"front") {
            changes.push(FieldChange::Front(None));
        }
        let nodes = Self::asked_nodes(words);
        if nodes.is_some() || words.contains(&"nodes=any") {
            changes.push(FieldChange::Nodes(nodes));
        }
        let carried = Self::metadata(words).unwrap_or_default();
        if !carried.labels.is_empty() {
            changes.push(FieldChange::Labels(carried.labels.clone()));
        }
        if !carried.annotations.is_empty() {
            changes.push(FieldChange::Annotations(carried.annotations.clone()));
        }
        let expected =
            words.contains(&"stale").then_some(JobVersion { generation: 1, changed_at: LogIndex(1) });
        let (request, by) = (self.request(words), self.requester(words));
        self.carry_out(&Command::Modify(Box::new(ModifyOrder {
            acts_for: self.number(words, "acts-for=").map(name),
            request,
            by,
            job,
            expected,
            changes,
        })))
    }
}
