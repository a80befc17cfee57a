//! From YAML to messages.

use std::collections::BTreeMap;

use muster_wire::v1;
use serde_saphyr::{Error, Location, Spanned};

use super::quantity::{self, QuantityError};
use super::shape::{AcceleratorFields, Accelerators, Command, Document, Group, Spec, Text};
use super::suggest::nearest;
use super::{Manifest, ManifestError, PROBLEMS_MAX, Problem};

const API_VERSION: &str = "muster.dev/v1";
const KIND: &str = "Job";

/// Every document of a file.
pub fn documents(text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let documents: Vec<Spanned<Document>> =
        serde_saphyr::from_multiple(text).map_err(|error| ManifestError(vec![structure(&error)]))?;
    let mut problems = Vec::new();
    let mut manifests = Vec::with_capacity(documents.len());
    for document in documents {
        let mut reader = Reader { lines: BTreeMap::new(), problems: &mut problems };
        let (message, shorthand) = reader.document(document.value);
        let lines = reader.lines;
        manifests.push(Manifest { message, shorthand, lines, first_line: document.referenced.line() });
    }
    problems.truncate(PROBLEMS_MAX);
    if problems.is_empty() { Ok(manifests) } else { Err(ManifestError(problems)) }
}

/// What keeps a file from being read at all: syntax, an unknown field, a list where a mapping belongs.
fn structure(error: &Error) -> Problem {
    let error = error.without_snippet();
    let line = error.location().as_ref().map(Location::line).filter(|line| *line > 0);
    let (field, description) = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let shown: String = field.chars().take(80).collect();
            let known = expected.join(", ");
            let advice = match nearest(field, expected) {
                Some(name) => format!("unknown field; did you mean {name}? (known here: {known})"),
                None => format!("unknown field (known here: {known})"),
            };
            (shown, advice)
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

/// Reads one document, remembering places and problems.
struct Reader<'a> {
    lines: BTreeMap<String, u64>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn document(&mut self, document: Document) -> (v1::JobSpec, bool) {
        self.constant("apiVersion", document.api_version, API_VERSION);
        self.constant("kind", document.kind, KIND);
        let metadata = document.metadata.unwrap_or_default();
        let name = self.text("metadata.name", metadata.name);
        let tenant = self.text("metadata.tenant", metadata.tenant);
        let Some(spec) = document.spec else {
            self.problem(None, "spec", "must be given");
            return (v1::JobSpec { name, tenant, ..Default::default() }, false);
        };
        self.spec(name, tenant, spec)
    }

    fn spec(&mut self, name: String, tenant: String, spec: Spec) -> (v1::JobSpec, bool) {
        let Spec { workers, command, environment, accelerators, cpu, memory, .. } = spec;
        let only = Group { name: None, workers, command, environment, accelerators, cpu, memory };
        let shorthand = spec.groups.is_none();
        let groups = match spec.groups {
            Some(groups) => {
                self.no_shorthand_beside_groups(&only);
                groups
                    .into_iter()
                    .enumerate()
                    .map(|(i, g)| self.group(&format!("spec.groups[{i}]"), g))
                    .collect()
            }
            None => vec![self.group("spec", only)],
        };
        let regions = spec.regions.unwrap_or_default();
        let message = v1::JobSpec {
            name,
            tenant,
            tier: self.text("spec.tier", spec.tier),
            groups,
            regions: self.list("spec.regions", regions),
            run_time_limit_ms: self.above_zero(
                "spec.runTimeLimit",
                spec.run_time_limit,
                quantity::duration_ms,
                "leave it out for no limit",
            ),
            stop_grace_ms: self.value("spec.stopGrace", spec.stop_grace, quantity::duration_ms),
            failure_retries_max: self
                .value("spec.failureRetries", spec.failure_retries, quantity::count)
                .unwrap_or_default(),
            checkpoint_directory: self.text("spec.checkpointDirectory", spec.checkpoint_directory),
            working_directory: self.text("spec.workingDirectory", spec.working_directory),
            array_size: self.above_zero(
                "spec.array",
                spec.array,
                quantity::count,
                "leave it out for a single job",
            ),
        };
        (message, shorthand)
    }

    fn no_shorthand_beside_groups(&mut self, only: &Group) {
        let Group { name: _, workers, command, environment, accelerators, cpu, memory } = only;
        let given = [
            ("spec.workers", workers.as_ref().map(|v| v.referenced)),
            ("spec.command", command.as_ref().map(|v| v.referenced)),
            ("spec.environment", environment.as_ref().map(|_| Location::UNKNOWN)),
            ("spec.accelerators", accelerators.as_ref().map(|v| v.referenced)),
            ("spec.cpu", cpu.as_ref().map(|v| v.referenced)),
            ("spec.memory", memory.as_ref().map(|v| v.referenced)),
        ];
        for (field, place) in given {
            if let Some(place) = place {
                self.problem(Some(place), field, "belongs into each of spec.groups when there are groups");
            }
        }
    }

    fn group(&mut self, at: &str, group: Group) -> v1::TaskGroup {
        let path = |field: &str| format!("{at}.{field}");
        v1::TaskGroup {
            name: self.text(&path("name"), group.name),
            // One worker is what a job without a number means.
            workers: self.value(&path("workers"), group.workers, quantity::count).unwrap_or(1),
            command: self.command(&path("command"), group.command),
            environment: self.environment(&path("environment"), group.environment.unwrap_or_default()),
            accelerators: self.accelerators(&path("accelerators"), group.accelerators),
            cpu_milli: self.above_zero(
                &path("cpu"),
                group.cpu,
                quantity::cpu_milli,
                "leave it out for one CPU",
            ),
            memory_bytes: self.above_zero(
                &path("memory"),
                group.memory,
                quantity::memory_bytes,
                "leave it out for 1Gi",
            ),
        }
    }

    fn command(&mut self, field: &str, command: Option<Spanned<Command>>) -> Vec<String> {
        let Some(command) = command else { return Vec::new() };
        self.place(field, command.referenced);
        match command.value {
            Command::Words(words) => self.list(field, words),
            Command::Line(line) => {
                let words: Vec<&str> = line.split_whitespace().take(4).collect();
                let shown: String = words.join(", ").chars().take(80).collect();
                let advice = format!("must be a list of words, like [{shown}]; no shell reads it");
                self.problem(Some(command.referenced), field, advice);
                Vec::new()
            }
        }
    }

    fn environment(
        &mut self,
        field: &str,
        variables: BTreeMap<String, Text>,
    ) -> std::collections::HashMap<String, String> {
        let mut message = std::collections::HashMap::new();
        for (name, value) in variables {
            self.place(field, value.referenced);
            let shown: String = name.chars().take(80).collect();
            self.place(&format!("{field}.{shown}"), value.referenced);
            message.insert(name, value.value);
        }
        message
    }

    fn accelerators(
        &mut self,
        field: &str,
        given: Option<Spanned<Accelerators>>,
    ) -> Option<v1::Accelerators> {
        let given = given?;
        self.place(field, given.referenced);
        match given.value {
            Accelerators::Short(text) => {
                let parsed = text
                    .split_once(':')
                    .and_then(|(kind, count)| Some((kind.trim(), quantity::count(count.trim()).ok()?)));
                let Some((kind, count)) = parsed else {
                    let shown: String = text.chars().take(80).collect();
                    let advice = format!("must be a type and a count, like h100:4, got {shown:?}");
                    self.problem(Some(given.referenced), field, advice);
                    return None;
                };
                Some(v1::Accelerators { r#type: kind.to_owned(), count })
            }
            Accelerators::Long(AcceleratorFields { r#type, count }) => Some(v1::Accelerators {
                r#type: self.text(&format!("{field}.type"), r#type),
                count: self.value(&format!("{field}.count"), count, quantity::count).unwrap_or_default(),
            }),
        }
    }

    fn list(&mut self, field: &str, texts: Vec<Text>) -> Vec<String> {
        let mut values = Vec::with_capacity(texts.len());
        for (index, text) in texts.into_iter().enumerate() {
            values.push(self.text(&format!("{field}[{index}]"), Some(text)));
        }
        values
    }

    fn text(&mut self, field: &str, text: Option<Text>) -> String {
        let Some(text) = text else { return String::new() };
        self.place(field, text.referenced);
        text.value
    }

    fn value<T>(
        &mut self,
        field: &str,
        text: Option<Text>,
        read: impl Fn(&str) -> Result<T, QuantityError>,
    ) -> Option<T> {
        let text = text?;
        self.place(field, text.referenced);
        read(&text.value).map_err(|e| self.problem(Some(text.referenced), field, e.to_string())).ok()
    }

    /// Zero means "the default" in the message; in a file it can only be a mistake.
    fn above_zero<T: Default + PartialEq>(
        &mut self,
        field: &str,
        text: Option<Text>,
        read: impl Fn(&str) -> Result<T, QuantityError>,
        advice: &str,
    ) -> T {
        let place = text.as_ref().map(|t| t.referenced);
        let given = text.is_some();
        match self.value(field, text, read) {
            Some(value) if given && value == T::default() => {
                self.problem(place, field, format!("must be above zero; {advice}"));
                value
            }
            value => value.unwrap_or_default(),
        }
    }

    fn constant(&mut self, field: &str, text: Option<Text>, expected: &str) {
        let place = text.as_ref().map(|t| t.referenced);
        match text {
            Some(text) if text.value == expected => {}
            Some(text) => {
                let shown: String = text.value.chars().take(80).collect();
                self.problem(place, field, format!("must be {expected}, got {shown:?}"));
            }
            None => self.problem(None, field, format!("must be given: {expected}")),
        }
    }

    fn place(&mut self, field: &str, location: Location) {
        if location.line() > 0 {
            self.lines.entry(field.to_owned()).or_insert(location.line());
        }
    }

    fn problem(&mut self, place: Option<Location>, field: &str, description: impl Into<String>) {
        // One more than is shown would do; the rest is not worth its memory.
        if self.problems.len() > PROBLEMS_MAX {
            return;
        }
        let line = place.map(|l| l.line()).filter(|line| *line > 0);
        self.problems.push(Problem { line, field: field.to_owned(), description: description.into() });
    }
}
