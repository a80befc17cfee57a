//! Turns job descriptions of other schedulers into job documents.
//!
//! A Job of Kubernetes, a JobSet, a PyTorchJob, an MPIJob, a RayJob, a LeaderWorkerSet, or a script for `sbatch` becomes one or more
//! job documents, as `muster-manifest` reads them, and a list of findings.
//!
//! **Invariant:** pure, and no bytes panic. **Invariant:** nothing is dropped in silence: every value of the input is either
//! read, and then listed in [`Conversion::honoured`], or is below the path of a finding.

mod accelerator;
mod advice;
mod affinity;
mod draft;
mod field;
mod finding;
mod gang;
mod job;
mod job_set;
mod kubeflow;
mod leader_worker_set;
mod metadata;
mod pod;
mod ray;
mod resources;
mod sbatch;
mod selection;
mod topology;
mod torchrun;
mod tree;
mod variables;
mod volumes;

use std::collections::BTreeMap;

use muster_types::PriorityTier;
use serde_json::Value;

use draft::Draft;
use field::Field;
use finding::{Findings, shown};
use tree::Node;

pub use finding::{Finding, FindingKind};

/// Largest input.
pub const INPUT_BYTES_MAX: usize = 1 << 20;
/// What job documents of Muster have for `apiVersion`.
const OWN_API: &str = "muster.dev/";
/// What a script for Muster has in its directives.
const OWN_DIRECTIVE: &str = "#MUSTER";
/// Kinds that are converted; shown to users.
const KINDS: &str = "Job (batch/v1), JobSet (jobset.x-k8s.io/v1alpha2), PyTorchJob (kubeflow.org/v1), MPIJob \
     (kubeflow.org/v2beta1), RayJob (ray.io/v1) and LeaderWorkerSet (leaderworkerset.x-k8s.io/v1)";

/// What cannot be read from the input itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The file's name, which a script without a name has.
    pub name: Option<String>,
    /// Arguments of a script.
    pub arguments: Vec<String>,
    /// The tier of each class of priority and quality of service.
    pub tiers: BTreeMap<String, PriorityTier>,
    /// The type of accelerators where the input names none.
    pub accelerator: Option<String>,
    /// Whether the command of a pod runs in the image of its container.
    pub images: bool,
}

/// What an input became.
#[derive(Clone, Debug, Default)]
pub struct Conversion {
    /// Job documents. They are what is meant only where nothing was refused.
    pub documents: Vec<Value>,
    /// What became of fields, refusals first.
    pub findings: Vec<Finding>,
    /// Paths of values that the documents were made from.
    pub honoured: Vec<String>,
}

impl Conversion {
    /// Whether there are findings of this kind.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    /// The job documents as one file.
    pub fn text(&self) -> String {
        let document = |document: &Value| serde_saphyr::to_string(document).unwrap_or_default();
        self.documents.iter().map(document).collect::<Vec<_>>().join("---\n")
    }
}

/// Why there is nothing to convert.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// It is longer than [`INPUT_BYTES_MAX`].
    #[error("it is larger than {} MiB", INPUT_BYTES_MAX >> 20)]
    TooLarge,
    /// It is no YAML, or has too much in it.
    #[error("line {line}: {description}")]
    Malformed {
        /// From 1; 0 where it is not known.
        line: u64,
        /// What is wrong.
        description: String,
    },
    /// It has lines for `sbatch`, and does not say what runs it.
    #[error("its first line must begin with #! and the path of an interpreter, as sbatch requires")]
    NoInterpreter,
    /// It describes something else.
    #[error("{0} is not converted; these are: {KINDS}, and scripts with #SBATCH lines")]
    Unknown(String),
}

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Objects of Kubernetes.
    Manifest,
    /// A script with directives for `sbatch`.
    Script,
}

/// Kinds that run work and are not converted: in a file with jobs they are refused, for the jobs alone are not what is meant.
const WORK: [&str; 17] = [
    "CronJob",
    "DaemonSet",
    "Deployment",
    "List",
    "MXJob",
    "PaddleJob",
    "Pod",
    "RayCluster",
    "RayService",
    "ReplicaSet",
    "ReplicationController",
    "SparkApplication",
    "StatefulSet",
    "TFJob",
    "TrainJob",
    "Workflow",
    "XGBoostJob",
];

/// What an input is that is not for Muster already; none for job documents, scripts for Muster, and whatever cannot be read.
pub fn recognise(bytes: &[u8]) -> Option<Source> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= INPUT_BYTES_MAX)?;
    if text.starts_with("#!") {
        return (sbatch::has_directives(text) && !is_script_for_muster(text)).then_some(Source::Script);
    }
    if is_bare_script(text) {
        return Some(Source::Script);
    }
    let documents = tree::documents(text).ok()?;
    let foreign = |node: &Node| {
        let (api, kind) = (node.get("apiVersion").and_then(Node::text), node.get("kind"));
        kind.is_some() && api.is_some_and(|api| api == "v1" || api.contains('/') && !api.starts_with(OWN_API))
    };
    documents.iter().any(foreign).then_some(Source::Manifest)
}

/// Lines for `sbatch` in a script that has lines for Muster as well, which then describe the job.
pub fn directives_of_both(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| sbatch::has_directives(text) && is_script_for_muster(text))
}

/// Whether it is a script for `sbatch` but for its first line.
fn is_bare_script(text: &str) -> bool {
    let is_manifest = |documents: Vec<Node>| {
        documents.iter().any(|document| matches!(document.content, tree::Content::Mapping(_)))
    };
    sbatch::has_lines(text) && !is_script_for_muster(text) && !tree::documents(text).is_ok_and(is_manifest)
}

fn is_script_for_muster(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(OWN_DIRECTIVE))
}

/// Converts an input.
///
/// # Errors
/// When it is too large, no YAML, or describes no jobs.
pub fn convert(text: &str) -> Result<Conversion, ConvertError> {
    convert_with(text, &Options::default())
}

/// The same, with what the input cannot state.
///
/// # Errors
/// As [`convert`].
pub fn convert_with(text: &str, options: &Options) -> Result<Conversion, ConvertError> {
    if text.len() > INPUT_BYTES_MAX {
        return Err(ConvertError::TooLarge);
    }
    let findings = Findings::default();
    let mut honoured = Vec::new();
    let drafts = if text.starts_with("#!") {
        if !sbatch::has_directives(text) {
            return Err(ConvertError::Unknown("a script without #SBATCH lines".to_owned()));
        }
        vec![sbatch::convert(text, options, &findings, &mut honoured)]
    } else if is_bare_script(text) {
        return Err(ConvertError::NoInterpreter);
    } else {
        manifests(text, options, &findings, &mut honoured)?
    };
    let findings = findings.into_list();
    honoured.retain(|path| !findings.iter().any(|finding| is_lost(finding, path)));
    Ok(Conversion { documents: drafts.iter().map(Draft::document).collect(), findings, honoured })
}

/// Whether a finding says that the value at a path is in no document.
fn is_lost(finding: &Finding, path: &str) -> bool {
    finding.kind != FindingKind::Approximated && is_below(path, &finding.path)
}

/// Whether a path is another one, or leads on from it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', ':']))
}

fn manifests(
    text: &str,
    options: &Options,
    findings: &Findings,
    honoured: &mut Vec<String>,
) -> Result<Vec<Draft>, ConvertError> {
    let documents =
        tree::documents(text).map_err(|(line, description)| ConvertError::Malformed { line, description })?;
    let is_one = documents.len() == 1;
    let mut objects = Vec::new();
    for (number, document) in (1..).zip(&documents) {
        let prefix = if is_one { String::new() } else { format!("document {number}: ") };
        let root = Field::root(document, &prefix, findings);
        if root.get("kind").peek().is_some_and(|kind| kind == "List") && root.get("items").is_given() {
            objects.extend(root.get("items").items());
            for (key, field) in root.entries() {
                if !["apiVersion", "kind", "metadata", "items"].contains(&key) {
                    field.drop("a list has items and nothing else that jobs are made of");
                }
            }
        } else {
            objects.push(root);
        }
    }
    let (mut drafts, mut others) = (Vec::new(), Vec::new());
    for object in &objects {
        match object_of(object, options) {
            Some(jobs) => {
                drafts.extend(jobs);
                object.report_unread(&advice::of_field, honoured);
            }
            None => others.push(object),
        }
    }
    if drafts.is_empty() && objects.len() == others.len() {
        let what = others.first().map_or_else(|| "an empty file".to_owned(), |object| about(object));
        return Err(ConvertError::Unknown(what));
    }
    for object in others {
        if object.get("apiVersion").peek().is_some_and(|api| api.starts_with(OWN_API)) {
            object.refuse(
                "a job document of Muster is submitted by itself, and not in one file with objects of others",
            );
        } else if object.get("kind").peek().is_some_and(|kind| WORK.contains(&kind)) {
            object.refuse(format!(
                "{} runs work and is not converted; put the jobs into a file without it",
                about(object)
            ));
        } else {
            object.drop(format!(
                "{} is no job; what the jobs need of it has to be on the nodes",
                about(object)
            ));
        }
    }
    Ok(drafts)
}

fn about(object: &Field<'_>) -> String {
    let text = |name: &str| object.get(name).peek().map(shown);
    match (text("kind"), text("apiVersion")) {
        (Some(kind), Some(api)) => format!("{kind} ({api})"),
        (Some(kind), None) => format!("{kind} without an apiVersion"),
        (None, _) => "an object without a kind".to_owned(),
    }
}

/// The jobs of one object; none where it is of no kind that is converted.
fn object_of(object: &Field<'_>, options: &Options) -> Option<Vec<Draft>> {
    let (kind, api) = (object.get("kind").peek()?, object.get("apiVersion").peek()?);
    let group = api.split('/').next().unwrap_or_default();
    let (drafts, version) = match (kind, group) {
        ("Job", "batch") => (vec![job::convert(object, options)], "batch/v1"),
        ("JobSet", "jobset.x-k8s.io") => (job_set::convert(object, options), "jobset.x-k8s.io/v1alpha2"),
        ("PyTorchJob", "kubeflow.org") => (vec![kubeflow::pytorch_job(object, options)], "kubeflow.org/v1"),
        ("MPIJob", "kubeflow.org") => (vec![kubeflow::mpi_job(object, options)], "kubeflow.org/v2beta1"),
        ("RayJob", "ray.io") => (vec![ray::convert(object, options)], "ray.io/v1"),
        ("LeaderWorkerSet", "leaderworkerset.x-k8s.io") => {
            (vec![leader_worker_set::convert(object, options)], "leaderworkerset.x-k8s.io/v1")
        }
        _ => return None,
    };
    if api != version {
        object.get("apiVersion").approximate(format!("it is read as {version}, whose fields these are"));
    }
    Some(drafts)
}
