//! A pod as a worker: its command, variables, needs, and what it asks of places.

use std::collections::BTreeMap;

use super::Options;
use super::draft::{Container, Group, Mount, Needs, Rules, STOP_GRACE_S_MAX};
use super::field::Field;
use super::finding::shown;
use super::selection::{self, Selection};
use super::variables::{self, Export};
use super::{metadata, resources, topology, volumes};

/// What a container that states no command is run by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// It has to state one.
    Needed,
    /// Its framework says it: a command would be that of its daemon.
    OfFramework,
}

/// One pod of a template.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Program and arguments, without [`Pod::exports`].
    pub command: Vec<String>,
    /// Variables with values.
    pub environment: BTreeMap<String, String>,
    /// Variables whose values a worker finds when it starts.
    pub exports: Vec<(String, Export)>,
    /// What it needs of its host.
    pub needs: Needs,
    /// The shape of the TPU slice that its pods form.
    pub slice: Option<String>,
    /// What it asks of places and times.
    pub rules: Rules,
    /// Whether pods find each other by names of hosts.
    pub has_names: bool,
    /// The image that its command runs in, where images are taken over.
    pub container: Option<Container>,
}

impl Pod {
    /// A group of workers like this pod.
    pub fn group(&self, name: &str, workers: u32, index: &variables::Index) -> Group {
        Group {
            name: name.to_owned(),
            workers: Some(workers),
            min_workers: None,
            slice: None,
            command: variables::wrap(&self.command, &self.exports, index),
            environment: self.environment.clone(),
            needs: self.needs.clone(),
            container: self.container.clone(),
        }
    }
}

/// Reads the template of a pod. `names` are those that its main container usually has.
pub fn read(
    template: &Field<'_>,
    names: &[&str],
    program: Program,
    labels: &mut BTreeMap<String, String>,
    options: &Options,
) -> Pod {
    let spec = template.get("spec");
    let mut pod = Pod::default();
    about(template, &mut pod.rules, labels);
    let Some(container) = container(&spec, names) else { return pod };
    let mut selection: Selection = selection::read(&spec, &mut pod.rules);
    if selection.types.is_empty() {
        selection.types.extend(options.accelerator.clone());
    }
    pod.needs = resources::read(&container.get("resources"), &selection);
    pod.rules.scratch_bytes = resources::scratch_bytes(&container.get("resources"));
    pod.slice = selection.slice.filter(|_| pod.needs.accelerators.is_some());
    metadata::priority(&spec.get("priorityClassName"), options, &mut pod.rules.tier);
    times(&spec, &mut pod.rules);
    isolation(&spec, &container);
    // What a framework starts has programs of the host.
    let takes_image = options.images && program == Program::Needed;
    let mounts = volumes::read(&spec, &container, takes_image);
    pod.has_names = spec.get("subdomain").is_given();
    variables::read(&container, &mut pod.environment, &mut pod.exports);
    command(&container, program, takes_image, &mut pod);
    if let Some(directory) = container.get("workingDir").text() {
        if directory.starts_with('/') {
            pod.rules.working_directory = Some(directory.to_owned());
        } else {
            container.get("workingDir").refuse("must be an absolute path, which the nodes have");
        }
    }
    let image = container.get("image");
    if takes_image {
        pod.container = contained(&container, mounts);
    } else if let Some(name) = image.peek() {
        image.drop(format!(
            "the command runs as a process of its host, which needs the programs of {}; `--images` has it run in \
             the image, or put them on the nodes",
            shown(name)
        ));
    }
    let _ = container.get("name").text();
    pod
}

fn about(template: &Field<'_>, rules: &mut Rules, labels: &mut BTreeMap<String, String>) {
    for (key, field) in template.at(["metadata", "labels"]).entries() {
        if let Some(value) = field.text() {
            metadata::label(key, value, &field, labels);
        }
    }
    let annotations = template.at(["metadata", "annotations"]);
    for (key, field) in annotations.entries() {
        let Some(value) = field.text() else { continue };
        match topology::exclusive(key) {
            Some(strength) => topology::require(value, &field, strength, rules),
            None if topology::segment(key, value, &field, rules) => {}
            None => field.drop("annotations are those of the job, and workers have none"),
        }
    }
    topology::check_segment(&annotations, rules);
}

/// The container that the worker is.
fn container<'a>(spec: &Field<'a>, names: &[&str]) -> Option<Field<'a>> {
    let mut containers = spec.get("containers").items();
    if containers.is_empty() {
        spec.get("containers").refuse("must have one container");
        if !spec.get("containers").is_given() {
            spec.refuse("must have one container");
        }
        return None;
    }
    let named =
        |container: &Field<'_>| container.get("name").peek().is_some_and(|name| names.contains(&name));
    let container = containers.remove(containers.iter().position(named).unwrap_or(0));
    for other in containers {
        let name = shown(other.get("name").peek().unwrap_or("without a name"));
        other.refuse(format!(
            "a worker is one command, and the container {name} is another; make it a group or a job"
        ));
    }
    Some(container)
}

fn times(spec: &Field<'_>, rules: &mut Rules) {
    let grace = spec.get("terminationGracePeriodSeconds");
    if let Some(seconds) = grace.count().map(u64::from) {
        rules.stop_grace_s = Some(seconds.min(STOP_GRACE_S_MAX));
        if seconds > STOP_GRACE_S_MAX {
            grace.approximate(format!("a worker has at most {STOP_GRACE_S_MAX} s to stop"));
        }
    }
    let limit = spec.get("activeDeadlineSeconds");
    rules.run_time_limit_s = limit.count().map(u64::from).filter(|seconds| *seconds > 0);
}

/// What a pod asks of its host beyond its share.
fn isolation(spec: &Field<'_>, container: &Field<'_>) {
    if spec.get("hostNetwork").flag() == Some(true) {
        spec.get("hostNetwork")
            .approximate("workers are processes of their hosts and have their networks, asked or not");
    }
    for name in ["hostPID", "hostIPC"] {
        if spec.get(name).flag() == Some(true) {
            spec.get(name).refuse("workers do not see the processes of their host or of other workers");
        }
    }
    let privileged = container.at(["securityContext", "privileged"]);
    if privileged.flag() == Some(true) {
        privileged.refuse(
            "workers have no privileges; what needs them belongs to the host, whose operator sets it up",
        );
    }
    let escalation = container.at(["securityContext", "allowPrivilegeEscalation"]);
    if escalation.flag() == Some(true) {
        escalation.refuse("workers have no privileges, and gain none");
    }
}

/// The image of a container, completed as Kubernetes does.
fn contained(container: &Field<'_>, mounts: Vec<Mount>) -> Option<Container> {
    let (image, policy) = (container.get("image"), container.get("imagePullPolicy"));
    let Some(name) = image.text() else {
        container.refuse("has no `image`");
        return None;
    };
    let full = completed(name);
    if !muster_types::container::is_reference(&full) {
        image.refuse(format!("must be a reference with a tag or a digest, got {}", shown(name)));
        return None;
    }
    let pull = match policy.text() {
        Some("Always") => Some("always"),
        Some("IfNotPresent") => Some("missing"),
        Some("Never") => Some("never"),
        Some(other) => {
            policy.refuse(format!("must be Always, IfNotPresent or Never, got {}", shown(other)));
            None
        }
        None => full.ends_with(":latest").then_some("always"),
    };
    Some(Container { image: full, pull, mounts })
}

/// A reference with the registry and the tag that one without has.
fn completed(name: &str) -> String {
    let first = name.split('/').next().unwrap_or_default();
    let has_path = name.contains('/');
    let has_registry = has_path && (first.contains(['.', ':']) || first == "localhost");
    let mut full = match (has_registry, has_path) {
        (true, _) => name.to_owned(),
        (false, true) => format!("docker.io/{name}"),
        (false, false) => format!("docker.io/library/{name}"),
    };
    let is_open = !full.rsplit('/').next().unwrap_or_default().contains([':', '@']);
    if is_open {
        full.push_str(":latest");
    }
    full
}

fn command(container: &Field<'_>, program: Program, takes_image: bool, pod: &mut Pod) {
    let (entry, args) = (container.get("command"), container.get("args"));
    if program == Program::OfFramework {
        for field in [entry, args].into_iter().filter(Field::is_given) {
            field.drop("the daemons of the framework are started by the launch form, not by this command");
        }
        return;
    }
    for word in entry.items().into_iter().chain(args.items()) {
        if let Some(text) = word.word() {
            pod.command.push(variables::expand(text, &pod.environment, &pod.exports, &word));
        }
    }
    // Without either the image's own program runs, if nothing has to be wrapped around it.
    let is_of_image = takes_image && !args.is_given() && pod.exports.is_empty();
    if !entry.is_given() && !is_of_image {
        container.refuse(
            "has no `command`: the program of an image is not known here, so write the words of it, and behind them `args`",
        );
    }
}
