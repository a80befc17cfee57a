//! A job document as it is put together.

use std::collections::{BTreeMap, BTreeSet};

use muster_types::{Name, Span};
use serde_json::{Map, Value, json};

/// The longest time between SIGTERM and SIGKILL, in seconds.
pub const STOP_GRACE_S_MAX: u64 = muster_types::limits::STOP_GRACE_MS_MAX / 1_000;
/// The most new attempts after failures.
pub const FAILURES_MAX: u32 = muster_types::limits::FAILURE_RETRIES_MAX;

/// One job, or one array.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// The name.
    pub name: String,
    /// Who it is for; empty for the user's own tenant.
    pub tenant: String,
    /// What it is selected by.
    pub labels: BTreeMap<String, String>,
    /// Texts that are kept.
    pub annotations: BTreeMap<String, String>,
    /// The groups of its gang.
    pub groups: Vec<Group>,
    /// What its pods ask of places and times.
    pub rules: Rules,
    /// As `array:` takes it.
    pub array: Option<String>,
    /// Other jobs of the file that it waits for, and ids, each with `when` and `byMember`.
    pub after: Vec<Value>,
    /// As `notBefore:` takes it.
    pub not_before: Option<String>,
    /// As `deadline:` takes it.
    pub deadline: Option<String>,
    /// The form that its command is started in; none for the plain one.
    pub launch: Option<&'static str>,
    /// New attempts after failures of the application.
    pub failures_max: Option<u32>,
    /// New attempts after failures of a class.
    pub retry_limits: BTreeMap<&'static str, u32>,
}

/// What a job as a whole asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The tier.
    pub tier: Option<String>,
    /// Where the command starts.
    pub working_directory: Option<String>,
    /// Of one attempt, in seconds.
    pub run_time_limit_s: Option<u64>,
    /// From SIGTERM to SIGKILL, in seconds.
    pub stop_grace_s: Option<u64>,
    /// Labels of nodes, with the values that they may have.
    pub node_selector: BTreeMap<String, Vec<String>>,
    /// Tests of labels of nodes, as `nodes.expressions` takes them.
    pub expressions: Vec<Value>,
    /// The booking on whose nodes it runs.
    pub booking: Option<String>,
    /// How many it holds of each counted resource.
    pub licences: BTreeMap<String, u32>,
    /// The only nodes; empty for any.
    pub only: Vec<String>,
    /// Nodes that are excluded.
    pub exclude: Vec<String>,
    /// Where other jobs are, as `affinity` takes it.
    pub affinity: Vec<Value>,
    /// Regions it may run in.
    pub regions: Vec<String>,
    /// Taints of nodes that it tolerates.
    pub tolerations: BTreeSet<String>,
    /// The level within which all workers have to be.
    pub required: Option<&'static str>,
    /// The level within which all workers should be.
    pub preferred: Option<&'static str>,
    /// The level within which the workers of a segment have to be.
    pub segment_level: Option<&'static str>,
    /// How many workers a segment has.
    pub segment_workers: Option<u32>,
    /// Its place among the jobs of its tenant and tier; none for the usual one.
    pub nice: Option<i32>,
    /// Whether each worker has a host to itself.
    pub exclusive: Option<bool>,
    /// The shell that runs the command; none where it is executed as it is.
    pub shell: Option<&'static str>,
    /// Bytes of each worker's scratch directory.
    pub scratch_bytes: Option<u64>,
}

/// One group of workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Empty for the only one.
    pub name: String,
    /// How many; none where a slice says it.
    pub workers: Option<u32>,
    /// The fewest.
    pub min_workers: Option<u32>,
    /// Shape and number of TPU slices.
    pub slice: Option<(String, u32)>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables.
    pub environment: BTreeMap<String, String>,
    /// What each worker needs.
    pub needs: Needs,
    /// The image that its command runs in.
    pub container: Option<Container>,
}

/// An image, and what its workers see of their hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// With its registry and its tag or digest.
    pub image: String,
    /// When it is pulled; none for what a job document says by saying nothing.
    pub pull: Option<&'static str>,
    /// Files and directories of the host.
    pub mounts: Vec<Mount>,
}

/// A file or directory of the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mount {
    /// Where it is on the host.
    pub source: String,
    /// Where workers see it.
    pub target: String,
    /// Whether they can only read it.
    pub read_only: bool,
}

impl Container {
    fn value(&self) -> Value {
        let mount = |mount: &Mount| {
            let mut fields = Map::new();
            put(&mut fields, "source", json!(mount.source));
            put(&mut fields, "target", json!(mount.target));
            put(&mut fields, "readOnly", json!(mount.read_only.then_some(true)));
            Value::Object(fields)
        };
        let mut fields = Map::new();
        put(&mut fields, "image", json!(self.image));
        put(&mut fields, "pull", json!(self.pull));
        put(&mut fields, "mounts", self.mounts.iter().map(mount).collect());
        Value::Object(fields)
    }
}

/// What a worker needs of its host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Type and count, like `h100:8`.
    pub accelerators: Option<String>,
    /// Thousandths of a processor.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

impl Rules {
    /// Whether they ask for the same nodes.
    pub fn asks_like(&self, other: &Rules) -> bool {
        self.node_selector == other.node_selector
            && self.regions == other.regions
            && self.expressions == other.expressions
            && self.affinity == other.affinity
            && (&self.only, &self.exclude) == (&other.only, &other.exclude)
    }
}

impl Draft {
    /// The job document.
    pub fn document(&self) -> Value {
        let mut metadata = Map::new();
        metadata.insert("name".into(), json!(self.name));
        put(&mut metadata, "tenant", json!(self.tenant));
        put(&mut metadata, "labels", json!(self.labels));
        put(&mut metadata, "annotations", json!(self.annotations));
        json!({ "apiVersion": "muster.dev/v1", "kind": "Job", "metadata": metadata, "spec": self.spec() })
    }

    fn spec(&self) -> Value {
        let rules = &self.rules;
        let mut spec = Map::new();
        put(&mut spec, "tier", json!(rules.tier));
        put(&mut spec, "regions", json!(rules.regions));
        match self.groups.as_slice() {
            [only] if only.name.is_empty() => spec.extend(only.fields(false)),
            groups => {
                let groups = groups.iter().map(|group| Value::Object(group.fields(true)));
                spec.insert("groups".into(), groups.collect());
            }
        }
        put(&mut spec, "runTimeLimit", json!(rules.run_time_limit_s.map(span)));
        put(&mut spec, "stopGrace", json!(rules.stop_grace_s.map(span)));
        put(&mut spec, "workingDirectory", json!(rules.working_directory));
        put(&mut spec, "array", json!(self.array));
        let mut topology = Map::new();
        put(&mut topology, "required", json!(rules.required));
        put(&mut topology, "preferred", json!(rules.preferred));
        if let (Some(level), Some(workers)) = (rules.segment_level, rules.segment_workers) {
            put(&mut topology, "segments", json!([{ "level": level, "workers": workers }]));
        }
        put(&mut spec, "topology", Value::Object(topology));
        put(&mut spec, "nodeSelector", json!(rules.node_selector));
        let mut nodes = Map::new();
        put(&mut nodes, "expressions", json!(rules.expressions));
        put(&mut nodes, "only", json!(rules.only));
        put(&mut nodes, "exclude", json!(rules.exclude));
        put(&mut spec, "nodes", Value::Object(nodes));
        put(&mut spec, "booking", json!(rules.booking));
        put(&mut spec, "affinity", json!(rules.affinity));
        put(&mut spec, "licences", json!(rules.licences));
        put(&mut spec, "nice", json!(rules.nice));
        put(&mut spec, "exclusive", json!(rules.exclusive));
        put(&mut spec, "shell", json!(rules.shell));
        put(&mut spec, "scratch", json!(rules.scratch_bytes));
        put(&mut spec, "tolerations", json!(rules.tolerations));
        put(&mut spec, "after", json!(self.after));
        put(&mut spec, "notBefore", json!(self.not_before));
        put(&mut spec, "deadline", json!(self.deadline));
        put(&mut spec, "launch", json!(self.launch));
        let mut retry = Map::new();
        put(&mut retry, "maxFailures", json!(self.failures_max.filter(|failures| *failures > 0)));
        put(&mut retry, "limits", json!(self.retry_limits));
        put(&mut spec, "retry", Value::Object(retry));
        Value::Object(spec)
    }
}

impl Group {
    fn fields(&self, is_named: bool) -> Map<String, Value> {
        let mut fields = Map::new();
        if is_named {
            put(&mut fields, "name", json!(self.name));
        }
        put(&mut fields, "workers", json!(self.workers));
        put(&mut fields, "minWorkers", json!(self.min_workers.filter(|min| Some(*min) != self.workers)));
        if let Some((shape, count)) = &self.slice {
            let slice = if *count == 1 { json!(shape) } else { json!({ "shape": shape, "count": count }) };
            fields.insert("slice".into(), slice);
        }
        put(&mut fields, "command", json!(self.command));
        if let Some(container) = &self.container {
            fields.insert("container".into(), container.value());
        }
        put(&mut fields, "environment", json!(self.environment));
        put(&mut fields, "accelerators", json!(self.needs.accelerators));
        put(&mut fields, "cpu", json!(self.needs.cpu_milli.map(|milli| format!("{milli}m"))));
        put(&mut fields, "memory", json!(self.needs.memory_bytes));
        fields
    }
}

/// A field that states something.
fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    let is_empty = match &value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    if !is_empty {
        fields.insert(name.to_owned(), value);
    }
}

fn span(seconds: u64) -> String {
    Span(seconds.saturating_mul(1_000)).to_string()
}

/// A name of the letters that names have, from any text; none where nothing of it can be kept.
pub fn name_of(text: &str) -> Option<String> {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.') => c,
        _ => '-',
    };
    let name: String = text.chars().map(letter).take(muster_types::limits::NAME_BYTES_MAX).collect();
    let name = name.trim_matches(['-', '_', '.']);
    Name::new(name).map(|name| name.to_string())
}
