//! Variables of a container, and those of its values that only a worker knows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_types::Name;
use muster_types::limits::TEXT_BYTES_MAX;

use super::field::Field;
use super::finding::shown;

/// How a worker is told apart from the others of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// It is the only one.
    Only,
    /// By the index of the array's member that it is.
    Member,
    /// By its rank: those of a group begin with `first`, and `of` of them are one job of a JobSet.
    Rank {
        /// The rank of the group's first worker.
        first: u32,
        /// Workers of one job; 0 for all.
        of: u32,
    },
}

/// A value that a worker finds when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// The index of the pod in its job.
    CompletionIndex,
    /// The index of the job among those of one template.
    JobIndex,
    /// Attempts before this one.
    Restarts,
    /// The rank in the gang.
    Rank,
    /// The index of the array's member.
    Member,
    /// The name of the host.
    Node,
    /// The tenant.
    Tenant,
    /// A name that no other worker of the job has.
    Name,
    /// Processors, rounded down.
    Cpus,
    /// Bytes of memory.
    Memory,
}

impl Export {
    /// As a shell reads it.
    fn expression(self, index: &Index) -> String {
        let within = |first: u32| {
            if first == 0 { "MUSTER_RANK".to_owned() } else { format!("(MUSTER_RANK - {first})") }
        };
        match (self, index) {
            (Export::CompletionIndex | Export::JobIndex, Index::Only) => "0".to_owned(),
            (Export::CompletionIndex, Index::Member) => "$MUSTER_ARRAY_INDEX".to_owned(),
            (Export::CompletionIndex, Index::Rank { first: 0, of: 0 }) => "$MUSTER_RANK".to_owned(),
            (Export::CompletionIndex, Index::Rank { first, of: 0 }) => format!("$((MUSTER_RANK - {first}))"),
            (Export::CompletionIndex, Index::Rank { first, of }) => format!("$(({} % {of}))", within(*first)),
            (Export::JobIndex, Index::Rank { first, of }) if *of > 0 => {
                format!("$(({} / {of}))", within(*first))
            }
            (Export::JobIndex, _) => "0".to_owned(),
            (Export::Restarts, _) => "$((MUSTER_ATTEMPT - 1))".to_owned(),
            (Export::Rank, _) => "$MUSTER_RANK".to_owned(),
            (Export::Member, _) => "${MUSTER_ARRAY_INDEX:-0}".to_owned(),
            (Export::Node, _) => "$MUSTER_NODE".to_owned(),
            (Export::Tenant, _) => "$MUSTER_TENANT".to_owned(),
            (Export::Name, _) => "$MUSTER_JOB_NAME-${MUSTER_ARRAY_INDEX:-$MUSTER_RANK}".to_owned(),
            (Export::Cpus, _) => "$((MUSTER_CPU_MILLI / 1000))".to_owned(),
            (Export::Memory, _) => "$MUSTER_MEMORY_BYTES".to_owned(),
        }
    }
}

/// The command with variables that the worker itself fills in.
pub fn wrap(command: &[String], exports: &[(String, Export)], index: &Index) -> Vec<String> {
    if exports.is_empty() || command.is_empty() {
        return command.to_vec();
    }
    let mut text = String::from("export");
    for (name, export) in exports {
        let _ = write!(text, " {name}=\"{}\"", export.expression(index));
    }
    text.push_str("; exec \"$@\"");
    let words = ["/bin/sh", "-c", &text, "sh"].map(ToOwned::to_owned);
    words.into_iter().chain(command.iter().cloned()).collect()
}

/// Whether a shell may export a variable of this name.
fn is_variable(name: &str) -> bool {
    let edge = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    edge && name.len() <= 256 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Reads the variables of a container.
pub fn read(
    container: &Field<'_>,
    environment: &mut BTreeMap<String, String>,
    exports: &mut Vec<(String, Export)>,
) {
    for variable in container.get("env").items() {
        let Some(name) = variable.get("name").text() else {
            variable.refuse("must have a name");
            continue;
        };
        if !is_variable(name) || name.starts_with("MUSTER_") {
            variable.drop(
                "names of variables have letters, digits and '_', and MUSTER_ is not theirs to begin with",
            );
            continue;
        }
        let (value, source) = (variable.get("value"), variable.get("valueFrom"));
        if !source.is_given() {
            let text = value.text().unwrap_or_default();
            let text = expand(text, environment, exports, &value);
            environment.insert(name.to_owned(), text);
            continue;
        }
        match of_source(&source) {
            Some(Source::Export(export)) => exports.push((name.to_owned(), export)),
            Some(Source::Secret(secret)) => {
                environment.insert(name.to_owned(), format!("muster-secret://{secret}"));
            }
            None => {}
        }
    }
}

enum Source {
    Export(Export),
    Secret(String),
}

fn of_source(source: &Field<'_>) -> Option<Source> {
    let (secret, field) = (source.get("secretKeyRef"), source.get("fieldRef"));
    if secret.is_given() {
        let (name, key) =
            (secret.get("name").text().unwrap_or_default(), secret.get("key").text().unwrap_or_default());
        let name = format!("{name}.{key}").to_ascii_lowercase();
        if Name::new(&name).is_none() {
            secret.drop("names of secrets have at most 63 lower-case letters, digits, '-', '_' and '.'");
            return None;
        }
        secret.approximate(format!(
            "its value is read from the file {name} of the tenant's secrets on the worker's host; an operator puts it there"
        ));
        return Some(Source::Secret(name));
    }
    if field.is_given() {
        let path = field.get("fieldPath").text().unwrap_or_default();
        let export = of_path(path);
        match export {
            None => field.drop(format!("a worker does not know {:?} of itself", shown(path))),
            Some(Export::Name) => field.approximate("the name of the job and the worker's index or rank"),
            Some(Export::Tenant) => field.approximate("tenants take the place of namespaces"),
            Some(_) => {}
        }
        return export.map(Source::Export);
    }
    let resource = source.get("resourceFieldRef");
    if resource.is_given() {
        let export = match resource.get("resource").text() {
            Some("limits.cpu" | "requests.cpu") => Some(Export::Cpus),
            Some("limits.memory" | "requests.memory") => Some(Export::Memory),
            _ => None,
        };
        if export.is_none() || resource.get("divisor").is_given() {
            resource.drop("a worker finds its needs in MUSTER_CPU_MILLI and MUSTER_MEMORY_BYTES");
            return None;
        }
        return export.map(Source::Export);
    }
    source.drop("variables are not taken from objects of that cluster; write the value");
    None
}

fn of_path(path: &str) -> Option<Export> {
    let label = path.split_once("['").and_then(|(_, rest)| rest.strip_suffix("']"));
    match label.unwrap_or(path) {
        "batch.kubernetes.io/job-completion-index" | "apps.kubernetes.io/pod-index" => {
            Some(Export::CompletionIndex)
        }
        "jobset.sigs.k8s.io/job-index" => Some(Export::JobIndex),
        "jobset.sigs.k8s.io/restart-attempt" => Some(Export::Restarts),
        "leaderworkerset.sigs.k8s.io/worker-index" | "training.kubeflow.org/replica-index" => {
            Some(Export::Rank)
        }
        "leaderworkerset.sigs.k8s.io/group-index" => Some(Export::Member),
        "spec.nodeName" => Some(Export::Node),
        "metadata.namespace" => Some(Export::Tenant),
        "metadata.name" => Some(Export::Name),
        _ => None,
    }
}

/// `$(NAME)` as Kubernetes fills it in; `$$` is one `$` there. Variables without a value stay as they are written.
pub fn expand(
    text: &str,
    environment: &BTreeMap<String, String>,
    exports: &[(String, Export)],
    field: &Field<'_>,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let Some(after) = from.strip_prefix('$') else { break };
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let named = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let Some((name, behind)) = named else {
            out.push('$');
            rest = after;
            continue;
        };
        match environment.get(name) {
            Some(value) if out.len() + value.len() > TEXT_BYTES_MAX => {
                field.refuse(format!(
                    "has more than {TEXT_BYTES_MAX} bytes with $({}) filled in",
                    shown(name)
                ));
                return out;
            }
            Some(value) if !value.starts_with("muster-secret://") => out.push_str(value),
            known => {
                if known.is_some() || exports.iter().any(|(export, _)| export == name) {
                    field.drop(format!(
                        "$({}) is known to the worker alone; begin with a shell: [sh, -c, …] reads it as ${}",
                        shown(name),
                        shown(name)
                    ));
                }
                let _ = write!(out, "$({name})");
            }
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}
