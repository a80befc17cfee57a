//! Job files: YAML in, `JobSpec` messages out.
//!
//! A file holds one or more documents of `apiVersion: muster.dev/v1`, `kind: Job`. What people write is
//! kept apart from what is sent: `2h`, `4Gi` and `h100:4` here, milliseconds, bytes and a type with a
//! count there. The places of all values are remembered, so that a refusal, ours or the server's, names
//! the field *of the file* and its line.
//!
//! **Invariant:** pure, and no bytes panic. A file that passes [`Manifest::check`] is refused by a
//! server of the same version only for what the file cannot show (capacity, quota, permission).

mod parallel;
mod policy;
pub mod quantity;
mod read;
mod reader;
mod rules;
mod schema;
mod script;
mod shape;
mod show;
pub mod suggest;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_types::{NodeExpression, PriorityTier, Violation};
use muster_wire::closed::{number_or_zero, words};
use muster_wire::{convert, v1};

pub use parallel::{ModelSource, Parallel};
pub use policy::{PolicyFile, parse_policy, parse_policy_parts, policy_file};
pub use quantity::{Decimal, duration_ms};
pub use schema::job_schema;
pub use script::{from_options, is_script, parse_script, script_command};
pub use show::{Entry, Fields, job_file, spec_fields};

/// Largest job file. The API takes 4 MiB at once.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Most problems that are listed.
const PROBLEMS_MAX: usize = 100;

/// One mistake in a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// From 1; none when the place is not known.
    pub line: Option<u64>,
    /// As in the file, for example `spec.groups[0].cpu`; empty for the file as a whole.
    pub field: String,
    /// What is wrong and what would be right.
    pub description: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.description)
    }
}

/// Everything that is wrong with a job file; at least one problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job file has {} problem(s)", .0.len())]
pub struct ManifestError(pub Vec<Problem>);

impl ManifestError {
    fn whole(description: impl Into<String>) -> ManifestError {
        ManifestError(vec![Problem { line: None, field: String::new(), description: description.into() }])
    }
}

/// How a job was written, and so what its fields are called there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A document of a job file.
    File,
    /// Directives of a script.
    Script,
    /// Options of a command line.
    Options,
}

impl Form {
    /// A problem in the words of this form.
    fn show(self, problem: Problem) -> Problem {
        let short = |field: &str| {
            let inner = field.strip_prefix("spec.").or_else(|| field.strip_prefix("metadata."));
            inner.unwrap_or(field).to_owned()
        };
        match self {
            Form::File => problem,
            Form::Script => Problem { field: short(&problem.field), ..problem },
            Form::Options => {
                const OPTIONS: [(&str, &str); 7] = [
                    ("runTimeLimit", "time-limit"),
                    ("environment", "env"),
                    ("workingDirectory", "directory"),
                    ("regions", "region"),
                    ("labels", "label"),
                    ("annotations", "annotation"),
                    ("expressions", "where"),
                ];
                let field = short(&problem.field);
                let inner = field.strip_prefix("nodes.").unwrap_or(&field);
                let name = inner.split(['.', '[']).next().unwrap_or_default();
                let option = OPTIONS.iter().find(|(key, _)| *key == name).map_or(name, |(_, option)| option);
                let field = if option.is_empty() { field } else { format!("--{option}") };
                Problem { field, line: None, ..problem }
            }
        }
    }
}

/// One job (or array of jobs) of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// What is sent.
    pub message: v1::Job,
    /// Whether the only group is written directly in `spec`.
    shorthand: bool,
    /// How the model is split, where that is left to the parallelism planner; the message then asks for the most workers.
    pub parallel: Option<Parallel>,
    form: Form,
    /// Lines of fields, by their paths in the file.
    lines: BTreeMap<String, u64>,
    /// Where the document begins.
    first_line: u64,
}

/// What the command line says over what the file says; nothing where it is silent.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The name of the job.
    pub name: Option<String>,
    /// The tenant it belongs to.
    pub tenant: Option<String>,
    /// Its priority tier.
    pub tier: Option<PriorityTier>,
    /// Empty for the file's.
    pub regions: Vec<String>,
    /// In addition to the file's, or in their place where the key is the same.
    pub labels: Vec<(String, String)>,
    /// Likewise.
    pub annotations: Vec<(String, String)>,
    /// Which members it has.
    pub array: Option<v1::JobArray>,
    /// Tests of labels of nodes, in addition to the file's.
    pub node_tests: Vec<NodeTests>,
    /// The only nodes; empty for the file's.
    pub only: Vec<String>,
    /// Nodes that are excluded, in addition to the file's.
    pub exclude: Vec<String>,
    /// The booking on whose nodes it runs; none for the file's.
    pub booking: Option<String>,
}

/// Tests of labels of nodes, as one option says them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTests(pub Vec<v1::NodeExpression>);

/// The tests that an option says, like `zone in (a,b),memory-gib>512`.
pub fn node_tests(text: &str) -> Result<NodeTests, String> {
    let expressions = NodeExpression::parse_all(text).map_err(|error| error.to_string())?;
    Ok(NodeTests(expressions.iter().map(convert::node_expression_to_proto).collect()))
}

/// The nice value that an option says.
pub fn nice(text: &str) -> Result<i32, String> {
    quantity::nice(text).map_err(|error| error.to_string())
}

/// The array that an option says.
pub fn array(text: &str) -> Result<v1::JobArray, String> {
    quantity::array(text).map_err(|error| error.to_string())
}

/// The tier that an option names.
pub fn tier(text: &str) -> Result<PriorityTier, String> {
    PriorityTier::parse(text).ok_or_else(|| format!("must be one of {}", words::<PriorityTier>()))
}

/// Reads a job file. `now_ms` is what times like `+2h` count from, since the Unix epoch.
pub fn parse(bytes: &[u8], now_ms: u64) -> Result<Vec<Manifest>, ManifestError> {
    let manifests = read::documents(text(bytes)?, now_ms)?;
    if manifests.is_empty() {
        return Err(ManifestError::whole("the file holds no job (expected kind: Job)"));
    }
    let ambiguous = ambiguous(&manifests);
    if ambiguous.is_empty() { Ok(manifests) } else { Err(ManifestError(ambiguous)) }
}

/// Dependencies of a word that is both an id and the name of a job of the file.
fn ambiguous(manifests: &[Manifest]) -> Vec<Problem> {
    let names: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.message.name.as_str()).collect();
    let mut found = Vec::new();
    for manifest in manifests {
        let dependencies = manifest.message.spec.as_ref().map(|spec| &spec.dependencies[..]);
        for (place, on) in dependencies.unwrap_or_default().iter().enumerate() {
            let field = format!("spec.after[{place}]");
            let (id, key) =
                if on.array_id.is_empty() { (&on.job_id, "job") } else { (&on.array_id, "array") };
            // Where a key says which it is, it is that.
            let is_word = !id.is_empty() && !manifest.lines.contains_key(&format!("{field}.{key}"));
            if is_word && names.contains(id.as_str()) && found.len() < PROBLEMS_MAX {
                let text = format!(
                    "{id} is the name of a job of this file, and has the form of an id: write {{name: {id}}} for that job, or \
                     {{{key}: {id}}} for the one with the id"
                );
                found.push(manifest.problem(&field, text));
            }
        }
    }
    found
}

/// The text of a file, when it is one and not too long.
fn text(bytes: &[u8]) -> Result<&str, ManifestError> {
    if bytes.len() > FILE_BYTES_MAX {
        let mib = FILE_BYTES_MAX >> 20;
        return Err(ManifestError::whole(format!("the file is larger than {mib} MiB")));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count();
        ManifestError(vec![Problem {
            line: Some(line as u64),
            field: String::new(),
            description: "the file is not UTF-8 text".into(),
        }])
    })
}

/// The line of a field, or of the nearest one around it; else the first.
fn line_of(field: &str, lines: &BTreeMap<String, u64>, first_line: u64) -> Option<u64> {
    let mut path = field;
    loop {
        if let Some(line) = lines.get(path) {
            return Some(*line);
        }
        match path.rfind(['.', '[']) {
            Some(end) => path = &path[..end],
            None => return Some(first_line).filter(|line| *line > 0),
        }
    }
}

impl Manifest {
    /// Lets the command line have the last word.
    pub fn apply(&mut self, overrides: &Overrides) {
        let Overrides { name, tenant, tier, regions, labels, annotations, array, .. } = overrides;
        if tier.is_some() {
            self.message.spec_mut().tier = number_or_zero(*tier);
        }
        let fields = [(&mut self.message.name, name), (&mut self.message.tenant, tenant)];
        for (field, value) in fields {
            if let Some(value) = value {
                field.clone_from(value);
            }
        }
        if array.is_some() {
            self.message.spec_mut().array.clone_from(array);
        }
        self.message.labels.extend(labels.iter().cloned());
        self.message.annotations.extend(annotations.iter().cloned());
        if !regions.is_empty() {
            self.message.spec_mut().regions.clone_from(regions);
        }
        if let Some(booking) = &overrides.booking {
            self.message.spec_mut().booking.clone_from(booking);
        }
        self.apply_nodes(overrides);
    }

    fn apply_nodes(&mut self, Overrides { node_tests, only, exclude, .. }: &Overrides) {
        if node_tests.is_empty() && only.is_empty() && exclude.is_empty() {
            return;
        }
        let nodes = self.message.spec_mut().nodes.get_or_insert_default();
        nodes.expressions.extend(node_tests.iter().flat_map(|tests| tests.0.iter().cloned()));
        if !only.is_empty() {
            nodes.only.clone_from(only);
        }
        for name in exclude {
            if !nodes.exclude.contains(name) {
                nodes.exclude.push(name.clone());
            }
        }
    }

    /// Every rule the server would refuse this job for, in the file's words.
    pub fn check(&self) -> Result<(), ManifestError> {
        match convert::submissions_from_proto("job", Some(self.message.clone())) {
            Ok(_) => Ok(()),
            Err(found) => {
                Err(ManifestError(found.iter().take(PROBLEMS_MAX).map(|v| self.explain(v)).collect()))
            }
        }
    }

    /// A violation in the message, as a problem of the file. The path starts with `job`.
    pub fn explain(&self, violation: &Violation) -> Problem {
        let field = self.path_in_file(&violation.field);
        let line = line_of(&field, &self.lines, self.first_line);
        let description = match field.as_str() {
            "metadata.name" if self.message.name.is_empty() => "must be given (or --name)".to_owned(),
            // Sentences name other fields as the messages do.
            _ => violation
                .description
                .replace("not_before", "notBefore")
                .replace("segment_workers", "segmentWorkers")
                .replace("`container.shared_memory_bytes`", "`container.sharedMemory`")
                .replace("`stop_grace`", "`stopGrace`")
                .replace("job_id, array_id and job_name", "job, array and name")
                .replace("job_id, array_id, job_name and label_selector", "to and jobs")
                .replace("array_id or job_name", "array or name")
                .replace(
                    "must be given, or share_milli",
                    "must be given: how many devices, or a share like 0.25",
                ),
        };
        self.form.show(Problem { line, field, description })
    }

    /// A problem with a field of the file.
    pub fn problem(&self, field: &str, description: impl Into<String>) -> Problem {
        let line = line_of(field, &self.lines, self.first_line);
        self.form.show(Problem { line, field: field.to_owned(), description: description.into() })
    }

    fn path_in_file(&self, path: &str) -> String {
        // What a file has another name for. Everything else has the name of the message, in camel case.
        const RENAMED: [(&str, &str); 7] = [
            ("host.shared_memory_bytes", "shared_memory"),
            ("scratch_bytes", "scratch"),
            ("array.size", "array"),
            ("array.indices", "array"),
            ("array.throttle", "array"),
            ("dependencies", "after"),
            ("capacity.max_interruptions_per_day_milli", "capacity.max_interruptions_per_day"),
        ];
        let Some(rest) = path.strip_prefix("job.") else { return path.to_owned() };
        let Some(rest) = rest.strip_prefix("spec.") else { return format!("metadata.{rest}") };
        if let Some(place) = rest.strip_prefix("dependencies[") {
            return format!(
                "spec.after[{}",
                place
                    .replace(".job_id", ".job")
                    .replace(".array_id", ".array")
                    .replace(".job_name", ".name")
                    .replace(".by_member", ".byMember")
                    .replace(".rule", ".when")
            );
        }
        // Ids and names of other jobs are one field, and so is a selector of them.
        if rest.starts_with("affinity[") {
            let ids = [".job_id", ".array_id", ".job_name"];
            let shown = ids.iter().fold(rest.to_owned(), |path, id| path.replace(id, ".to"));
            return format!("spec.{}", shown.replace(".label_selector", ".jobs"));
        }
        // Names of labels, variables and classes are the user's own and stay as they are.
        if let Some(label) = rest.strip_prefix("node_selector") {
            return format!("spec.nodeSelector{label}");
        }
        if let Some(name) = rest.strip_prefix("licences") {
            return format!("spec.licences{name}");
        }
        // A test of a label has its values in the field that says which test it is.
        if rest.starts_with("nodes.expressions[") {
            return format!("spec.{}", rest.trim_end_matches(".values").trim_end_matches(".operator"));
        }
        let (known, own) = match rest.find(".environment.") {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let mut known = known.to_owned();
        if let Some((name, renamed)) = RENAMED.iter().find(|(name, _)| *name == known) {
            known = known.replace(name, renamed);
        }
        for (name, renamed) in [
            (".resources.cpu_milli", ".cpu"),
            (".resources.memory_bytes", ".memory"),
            (".resources.", "."),
            (".process.", "."),
            (".container.command", ".command"),
            (".container.shared_memory_bytes", ".container.sharedMemory"),
        ] {
            known = known.replace(name, renamed);
        }
        // The types of accelerators have no numbers in a file, and the short form has no fields.
        if let Some((group, field)) = known.split_once(".accelerators.") {
            let field = if field == "count" { ".count" } else { "" };
            known = format!("{group}.accelerators{field}");
        }
        let path = format!("spec.{}{own}", camel_case(&known));
        if self.shorthand { path.replacen("spec.groups[0].", "spec.", 1) } else { path }
    }
}

/// `run_time_limit` as files have it: `runTimeLimit`. Classes of failures keep their names.
fn camel_case(path: &str) -> String {
    if path.starts_with("retry.limits.") {
        return path.to_owned();
    }
    let mut shown = String::with_capacity(path.len());
    let mut is_next_capital = false;
    for letter in path.chars() {
        match letter {
            '_' => is_next_capital = true,
            letter if std::mem::take(&mut is_next_capital) => shown.extend(letter.to_uppercase()),
            letter => shown.push(letter),
        }
    }
    shown
}

/// The file and job of a violation in a batch (`jobs[3].spec.groups[0].workers`): its number in the list and
/// the path as of a single job (`job.spec.groups[0].workers`).
pub fn split_batch_path(path: &str) -> Option<(usize, String)> {
    let (index, rest) = path.strip_prefix("jobs[")?.split_once(']')?;
    Some((index.parse().ok()?, format!("job{rest}")))
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod shown_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod user_tests;
