//! From messages back to job files: what is shown of a job can be submitted again.

mod text;

use std::collections::BTreeMap;

use muster_types::policy::{NotificationEvent, PurchaseKind};
use muster_types::{
    AffinityLevel, AffinityRule, CommandShell, CpuBinding, DependencyRule, FailureClass, LaunchForm, Level,
    Preflight, PriorityTier, PullRule,
};
use muster_wire::closed::word;
use muster_wire::time::{Duration, Timestamp, span_ms, unix_ms};
use muster_wire::v1;
use muster_wire::v1::accelerator_request::Amount;
use muster_wire::v1::env_var::Source;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::quantity::{Decimal, show_array, show_bytes, show_duration, show_scaled};
use super::read::{KIND, SECRET};
use super::reader::API_VERSION;

pub use text::Entry;

/// The name that the only group of a job gets from the server when it has none.
const ONLY_GROUP: &str = "workers";

/// A mapping whose fields keep their order; those without a value are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Vec<(&'static str, Content)>);

/// What a field has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Value(Value),
    Decimal(Decimal),
    Fields(Fields),
    List(Vec<Content>),
    /// With names of the user's own.
    Named(BTreeMap<String, Content>),
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Value(value) => value.serialize(serializer),
            Content::Decimal(number) => number.serialize(serializer),
            Content::Fields(fields) => fields.serialize(serializer),
            Content::List(list) => list.serialize(serializer),
            Content::Named(named) => named.serialize(serializer),
        }
    }
}

impl Content {
    /// As a cell or a part of a sentence has it; none where there is nothing to show.
    fn text(&self) -> Option<String> {
        let text = match self {
            Content::Value(Value::Bool(flag)) => if *flag { "on" } else { "off" }.to_owned(),
            Content::Value(Value::String(text)) => text.clone(),
            Content::Value(Value::Number(number)) => number.to_string(),
            Content::Value(Value::Array(items)) => {
                let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                items.join(",")
            }
            Content::Value(Value::Null | Value::Object(_)) | Content::List(_) | Content::Named(_) => {
                String::new()
            }
            Content::Decimal(number) => number.to_string(),
            Content::Fields(fields) => {
                let part = |(name, content): &(&str, Content)| Some(format!("{name} {}", content.text()?));
                let parts: Vec<String> = fields.0.iter().filter_map(part).collect();
                parts.join(", ")
            }
        };
        Some(text).filter(|text| !text.is_empty())
    }
}

impl Fields {
    /// A field, also where its content is empty.
    pub(crate) fn put(&mut self, name: &'static str, content: Option<Content>) {
        self.0.extend(content.map(|content| (name, content)));
    }

    /// A field with a value; one that is empty says nothing and is left out.
    pub(crate) fn say(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        let is_empty = match &value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        };
        if !is_empty {
            self.0.push((name, Content::Value(value)));
        }
    }

    fn say_fields(&mut self, name: &'static str, fields: Fields) {
        if !fields.0.is_empty() {
            self.0.push((name, Content::Fields(fields)));
        }
    }
}

/// A job as a job file, with what became of it under `status`, which is not read back.
pub fn job_file(job: &v1::Job, status: Value) -> Fields {
    let mut metadata = Fields::default();
    metadata.say("name", job.name.as_str());
    metadata.say("tenant", job.tenant.as_str());
    metadata.say("labels", texts(&job.labels));
    metadata.say("annotations", texts(&job.annotations));
    let mut file = Fields::default();
    file.say("apiVersion", API_VERSION);
    file.say("kind", KIND);
    file.say_fields("metadata", metadata);
    file.say_fields("spec", described(job.spec(), true));
    file.say("status", status);
    file
}

/// By name, whatever the order of the message.
fn texts(texts: &std::collections::HashMap<String, String>) -> Value {
    texts.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect()
}

/// What a job asks for, as its file has it, and always with `groups`.
pub fn spec_fields(spec: &v1::JobSpec) -> Fields {
    described(spec, false)
}

/// `is_short`: whether an only group may stand without a list around it.
fn described(spec: &v1::JobSpec, is_short: bool) -> Fields {
    let mut shown = Fields::default();
    shown.say("tier", word::<PriorityTier>(spec.tier));
    shown.say("regions", spec.regions.clone());
    match spec.groups.as_slice() {
        [only] if is_short && (only.name.is_empty() || only.name == ONLY_GROUP) => {
            shown.0.extend(group(only).0.into_iter().filter(|(field, _)| *field != "name"));
        }
        groups => shown
            .0
            .push(("groups", Content::List(groups.iter().map(|of| Content::Fields(group(of))).collect()))),
    }
    shown.say("runTimeLimit", span(spec.run_time_limit));
    shown.say("stopGrace", span(spec.stop_grace));
    shown.say("workingDirectory", spec.working_directory.as_str());
    if let Some(files) = &spec.workdir {
        let mut workdir = Fields::default();
        workdir.say("digest", files.digest.as_str());
        // Also where nothing is in it: without it the workers had no files.
        shown.put("workdir", Some(Content::Fields(workdir)));
    }
    if let Some(rules) = &spec.artifacts {
        let mut artifacts = Fields::default();
        artifacts.say("paths", rules.paths.clone());
        if rules.required {
            artifacts.say("required", true);
        }
        shown.put("artifacts", Some(Content::Fields(artifacts)));
    }
    shown.say_fields("ulimits", spec.ulimits.as_ref().map(ulimits).unwrap_or_default());
    if let Some(rules) = &spec.host {
        shown.say("binding", word::<CpuBinding>(rules.binding));
        shown.say("shell", word::<CommandShell>(rules.shell));
        shown.say("sharedMemory", Some(rules.shared_memory_bytes).filter(|bytes| *bytes > 0).map(show_bytes));
    }
    shown.say_fields("capacity", spec.capacity.as_ref().map(capacity).unwrap_or_default());
    if spec.nice != 0 {
        shown.say("nice", spec.nice);
    }
    if spec.exclusive {
        shown.say("exclusive", true);
    }
    shown.say("scratch", Some(spec.scratch_bytes).filter(|bytes| *bytes > 0).map(show_bytes));
    if let Some(rule) = &spec.readiness {
        let mut readiness = Fields::default();
        readiness.say("timeout", span(rule.timeout));
        shown.say_fields("readiness", readiness);
    }
    if let Some(array) = &spec.array {
        let is_count = array.indices.is_empty() && array.throttle.is_none();
        shown.say("array", if is_count { json!(array.size) } else { json!(show_array(array)) });
    }
    shown.say_fields("topology", spec.topology.as_ref().map(topology).unwrap_or_default());
    let selector = spec.node_selector.iter();
    let selector: Value = selector.map(|(label, of)| (label.clone(), json!(of.values))).collect();
    shown.say("nodeSelector", selector);
    shown.say_fields("nodes", spec.nodes.as_ref().map(nodes).unwrap_or_default());
    if !spec.affinity.is_empty() {
        let entries = spec.affinity.iter().map(|entry| Content::Fields(affinity(entry)));
        shown.put("affinity", Some(Content::List(entries.collect())));
    }
    let licences = spec.licences.iter().map(|of| (of.name.clone(), json!(of.count)));
    shown.say("licences", licences.collect::<Value>());
    if !spec.notify.is_empty() {
        let entries = spec.notify.iter().map(|entry| Content::Fields(notify(entry)));
        shown.put("notify", Some(Content::List(entries.collect())));
    }
    shown.say("tolerations", spec.tolerations.clone());
    shown.say("preemptible", spec.preemptible);
    let after = |dependency: &v1::Dependency| {
        let mut after = Fields::default();
        after.say("job", dependency.job_id.as_str());
        after.say("array", dependency.array_id.as_str());
        after.say("name", dependency.job_name.as_str());
        after.say("when", word::<DependencyRule>(dependency.rule));
        if dependency.by_member {
            after.say("byMember", true);
        }
        Content::Fields(after)
    };
    if !spec.dependencies.is_empty() {
        shown.0.push(("after", Content::List(spec.dependencies.iter().map(after).collect())));
    }
    shown.say("notBefore", moment(spec.not_before));
    shown.say("deadline", moment(spec.deadline));
    shown.say("expectedRun", span(spec.expected_run));
    shown.say("datasets", spec.datasets.clone());
    shown.say("launch", word::<LaunchForm>(spec.launch));
    say_rules(spec, &mut shown);
    shown.say("spareWorkers", count(spec.spare_workers));
    shown.say("preflight", word::<Preflight>(spec.preflight));
    shown.say("terminal", Some(true).filter(|_| spec.terminal));
    shown.say("booking", spec.booking.as_str());
    shown
}

fn say_rules(spec: &v1::JobSpec, shown: &mut Fields) {
    if let Some(rules) = &spec.retry {
        let mut retry = Fields::default();
        let limits = rules
            .limits
            .iter()
            .map(|limit| (word::<FailureClass>(limit.failure_class).to_owned(), json!(limit.retries)));
        retry.say("maxFailures", count(rules.max_failures));
        retry.say("limits", limits.collect::<Value>());
        retry.say("backoff", span(rules.backoff));
        retry.say("maxBackoff", span(rules.max_backoff));
        retry.say("avoid", span(rules.avoid));
        shown.say_fields("retry", retry);
    }
    if let Some(rules) = &spec.checkpoint {
        let mut checkpoint = Fields::default();
        checkpoint.say("directory", rules.directory.as_str());
        checkpoint.say("dataset", rules.dataset.as_str());
        checkpoint.say("step", span(rules.step));
        checkpoint.say("save", span(rules.save));
        checkpoint.say("interval", span(rules.interval));
        shown.say_fields("checkpoint", checkpoint);
    }
    if let Some(rules) = &spec.notice {
        let mut notice = Fields::default();
        notice.say("httpPort", count(rules.http_port));
        notice.say("httpPath", rules.http_path.as_str());
        shown.say_fields("notice", notice);
    }
}

fn ulimits(asked: &v1::Ulimits) -> Fields {
    let mut shown = Fields::default();
    shown.say("openFiles", asked.open_files);
    shown.say("coreSize", asked.core_bytes.map(show_bytes));
    shown.say("lockedMemory", asked.locked_bytes.map(show_bytes));
    shown.say("stackSize", asked.stack_bytes.map(show_bytes));
    shown
}

fn capacity(asked: &v1::CapacityRules) -> Fields {
    let purchases = |numbers: &[i32]| {
        numbers.iter().map(|number| json!(word::<PurchaseKind>(*number))).collect::<Value>()
    };
    let mut shown = Fields::default();
    shown.say("purchases", purchases(&asked.purchases));
    if let Some(rules) = &asked.fallback {
        let mut fallback = Fields::default();
        fallback.say("purchases", purchases(&rules.purchases));
        fallback.say("after", span(rules.after));
        shown.say_fields("fallback", fallback);
    }
    let most = asked.max_interruptions_per_day_milli.map(|milli| Decimal::milli(milli.into()));
    shown.put("maxInterruptionsPerDay", most.map(Content::Decimal));
    shown
}

fn affinity(entry: &v1::JobAffinity) -> Fields {
    let mut shown = Fields::default();
    let ids = [&entry.job_id, &entry.array_id, &entry.job_name];
    let to = ids.into_iter().find(|id| !id.is_empty()).map_or("", String::as_str);
    shown.say("to", to);
    shown.say("jobs", entry.label_selector.as_str());
    shown.say("level", word::<AffinityLevel>(entry.level));
    shown.say("rule", word::<AffinityRule>(entry.rule));
    shown.say("required", Some(true).filter(|_| entry.required));
    shown.say("weight", count(entry.weight));
    shown
}

fn notify(entry: &v1::JobNotification) -> Fields {
    let mut shown = Fields::default();
    shown.say("receiver", entry.receiver.as_str());
    let events = entry.events.iter().map(|event| word::<NotificationEvent>(*event));
    shown.say("events", events.map(str::to_owned).collect::<Vec<String>>());
    shown
}

pub(crate) fn nodes(asked: &v1::NodeRequirements) -> Fields {
    let mut shown = Fields::default();
    if !asked.expressions.is_empty() {
        let expressions = asked.expressions.iter().map(|test| Content::Fields(node_expression(test)));
        shown.put("expressions", Some(Content::List(expressions.collect())));
    }
    shown.say("only", asked.only.clone());
    shown.say("exclude", asked.exclude.clone());
    shown
}

fn node_expression(test: &v1::NodeExpression) -> Fields {
    let mut shown = Fields::default();
    shown.say("key", test.key.as_str());
    // A number where it is one: in a file it needs no quotes.
    let bound = || {
        let text = test.values.first().map(String::as_str).unwrap_or_default();
        text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number))
    };
    match test.operator() {
        v1::NodeOperator::In => shown.say("in", test.values.clone()),
        v1::NodeOperator::NotIn => shown.say("notIn", test.values.clone()),
        v1::NodeOperator::Exists => shown.say("exists", true),
        v1::NodeOperator::DoesNotExist => shown.say("exists", false),
        v1::NodeOperator::Greater => shown.say("greater", bound()),
        v1::NodeOperator::Less => shown.say("less", bound()),
        v1::NodeOperator::Unspecified => {}
    }
    shown
}

fn topology(rule: &v1::TopologyRule) -> Fields {
    let mut shown = Fields::default();
    shown.say("required", word::<Level>(rule.required));
    shown.say("preferred", word::<Level>(rule.preferred));
    shown.say("balanced", Some(true).filter(|_| rule.balanced));
    shown.say("segmentWorkers", count(rule.segment_workers));
    let segments = rule.segments.iter().map(|segment| {
        let mut shown = Fields::default();
        shown.say("level", word::<Level>(segment.level));
        shown.say("workers", count(segment.workers));
        Content::Fields(shown)
    });
    shown.put("segments", (!rule.segments.is_empty()).then(|| Content::List(segments.collect())));
    if let Some(spread) = &rule.spread {
        let mut limit = Fields::default();
        limit.say("level", word::<Level>(spread.level));
        limit.say("maxWorkers", count(spread.max_workers));
        shown.say_fields("spread", limit);
    }
    shown
}

fn group(group: &v1::TaskGroup) -> Fields {
    let mut shown = Fields::default();
    shown.say("name", group.name.as_str());
    shown.say("workers", count(group.workers));
    shown.say("minWorkers", count(group.min_workers));
    if let Some(slice) = &group.slice {
        let mut slices = Fields::default();
        slices.say("shape", slice.shape.as_str());
        slices.say("count", count(slice.count));
        shown.say_fields("slice", slices);
    }
    shown.say("command", group.command().to_vec());
    if let Some(container) = group.container() {
        // Also where nothing is in it: without it the workers were processes of the host.
        shown.put("container", Some(Content::Fields(image(container))));
    }
    shown.say("environment", group.environment.iter().map(variable).collect::<Value>());
    let resources = group.resources();
    if let Some(request) = &resources.accelerators {
        say_accelerators(request, &mut shown);
    }
    let cpu = match resources.cpu_milli {
        0 => String::new(),
        whole if whole.is_multiple_of(1_000) => (whole / 1_000).to_string(),
        milli => format!("{milli}m"),
    };
    shown.say("cpu", cpu);
    shown.say("memory", Some(resources.memory_bytes).filter(|bytes| *bytes > 0).map(show_bytes));
    shown
}

fn image(container: &v1::ContainerRuntime) -> Fields {
    let mut shown = Fields::default();
    shown.say("image", container.image.as_str());
    shown.say("pull", word::<PullRule>(container.pull));
    let mount = |mount: &v1::ContainerMount| {
        let mut fields = Fields::default();
        fields.say("source", mount.source.as_str());
        fields.say("target", mount.target.as_str());
        fields.say("readOnly", Some(true).filter(|_| mount.read_only));
        Content::Fields(fields)
    };
    let mounts: Vec<Content> = container.mounts.iter().map(mount).collect();
    shown.put("mounts", Some(Content::List(mounts)).filter(|_| !container.mounts.is_empty()));
    let shared = Some(container.shared_memory_bytes).filter(|bytes| *bytes > 0);
    shown.say("sharedMemory", shared.map(show_bytes));
    let credentials = Some(&container.credentials).filter(|name| !name.is_empty());
    shown.say("credentials", credentials.map(|name| format!("{SECRET}{name}")));
    shown
}

fn variable(variable: &v1::EnvVar) -> (String, Value) {
    let value = match &variable.source {
        Some(Source::Value(value)) => value.clone(),
        Some(Source::SecretRef(secret)) => format!("{SECRET}{secret}"),
        None => String::new(),
    };
    (variable.name.clone(), Value::from(value))
}

/// Short where the types are alike, else with their throughput.
fn say_accelerators(request: &v1::AcceleratorRequest, shown: &mut Fields) {
    let amount = match request.amount {
        Some(Amount::Count(count)) => count.to_string(),
        Some(Amount::ShareMilli(milli)) => show_scaled(milli.into(), 3),
        None => String::new(),
    };
    let are_alike = request.choices.iter().all(|choice| matches!(choice.throughput_milli, 0 | 1_000));
    let kinds: Vec<&str> = request.choices.iter().map(|choice| choice.r#type.as_str()).collect();
    let kinds = if kinds.is_empty() { "any".to_owned() } else { kinds.join("|") };
    match (are_alike, amount.as_str()) {
        (true, "") => shown.say("accelerators", kinds),
        (true, amount) => shown.say("accelerators", format!("{kinds}:{amount}")),
        (false, amount) => {
            let throughput = |milli| match milli {
                0 => "1".to_owned(),
                milli => show_scaled(u64::from(milli), 3),
            };
            let choices = request.choices.iter();
            let types: Value = choices
                .map(|choice| (choice.r#type.clone(), json!(throughput(choice.throughput_milli))))
                .collect();
            let mut fields = Fields::default();
            fields.say("types", types);
            fields.say("count", amount);
            shown.say_fields("accelerators", fields);
        }
    }
}

/// Zero stands for what is not there.
fn count(count: u32) -> Option<u32> {
    Some(count).filter(|count| *count > 0)
}

pub(crate) fn span(span: Option<Duration>) -> Option<String> {
    span_ms(span).map(show_duration)
}

pub(crate) fn moment(moment: Option<Timestamp>) -> Option<String> {
    let ms = i64::try_from(unix_ms(moment)?).ok()?;
    jiff::Timestamp::from_millisecond(ms).ok().map(|time| time.to_string())
}
