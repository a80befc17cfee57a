//! The PyTorchJob (kubeflow.org/v1) and the MPIJob (kubeflow.org/v2beta1) of Kubeflow's operators.

use super::Options;
use super::draft::{Draft, FAILURES_MAX, Needs};
use super::field::Field;
use super::finding::shown;
use super::gang::{Part, assemble};
use super::job::{self, Shape};
use super::metadata;
use super::pod::{self, Pod, Program};
use super::torchrun::{self, Torchrun};

/// Programs that start the processes of an MPI job.
const STARTERS: [&str; 6] = ["mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "mpirun.openmpi"];

/// Converts a PyTorchJob.
pub fn pytorch_job(object: &Field<'_>, options: &Options) -> Draft {
    let mut draft = metadata::read(object, options);
    let spec = object.get("spec");
    let replicas = spec.get("pytorchReplicaSpecs");
    let mut parts = Vec::new();
    for (key, name) in [("Master", "master"), ("Worker", "worker")] {
        let role = replicas.get(key);
        if role.is_given() {
            parts.extend(part(&role, name, &["pytorch"], Program::Needed, &mut draft, options));
        }
    }
    if parts.is_empty() {
        replicas.refuse("must have a Master or a Worker");
        spec.refuse("must have `pytorchReplicaSpecs` with a Master or a Worker");
        return draft;
    }
    let is_like =
        matches!(parts.as_slice(), [a, b] if a.template.get("spec").is_like(&b.template.get("spec")));
    let elastic = spec.get("elasticPolicy");
    let mut only = None;
    if is_like && parts.len() == 2 {
        let workers = parts[0].workers.saturating_add(parts[1].workers);
        parts.pop();
        parts[0].workers = workers;
        parts[0].name = String::new();
    }
    if let [part] = parts.as_mut_slice() {
        part.name = String::new();
        only = Some(part.workers);
    }
    let launcher = parts.iter_mut().map(|part| unwrap(part, &spec)).collect::<Vec<bool>>();
    let is_torchrun = launcher.iter().any(|is_torchrun| *is_torchrun) || elastic.is_there();
    if launcher.iter().any(|is_one| *is_one) && !launcher.iter().all(|is_one| *is_one) {
        replicas.refuse("torchrun has to start either all commands or none of them");
    }
    run_policy(&spec, &mut draft, options);
    let limit = draft.rules.run_time_limit_s;
    assemble(&mut draft, &parts);
    draft.rules.run_time_limit_s = limit.into_iter().chain(draft.rules.run_time_limit_s).min();
    if is_torchrun {
        draft.launch = Some("torchrun");
    }
    if elastic.is_there() {
        elastic_policy(&elastic, only, &mut draft);
    }
    draft
}

/// Takes torchrun out of the command, which the launch form brings back.
fn unwrap(part: &mut Part<'_>, spec: &Field<'_>) -> bool {
    let container = part.template.at(["spec", "containers"]);
    let found = torchrun::unwrap(&part.pod.command);
    let per_node = spec.get("nprocPerNode");
    match found {
        Torchrun::None => {
            if per_node.is_given() {
                per_node.drop("it is for torchrun, with which the command does not begin");
            }
            false
        }
        Torchrun::Program { command, options } => {
            part.pod.command = command;
            if let Some(count) = per_node.scalar()
                && !matches!(count, "auto" | "gpu")
                && Some(count) != devices(&part.pod).as_deref()
            {
                per_node.approximate("torchrun starts a process for each accelerator of a worker");
            }
            container.approximate(format!(
                "the launch form starts torchrun, with the workers, ranks and addresses of the placement in the place of: {}",
                shown(&options.join(" "))
            ));
            true
        }
        Torchrun::Unknown(why) => {
            container.refuse(why);
            true
        }
    }
}

/// How many accelerators a worker has.
fn devices(pod: &Pod) -> Option<String> {
    pod.needs.accelerators.as_deref().and_then(|text| text.rsplit(':').next()).map(ToOwned::to_owned)
}

fn elastic_policy(elastic: &Field<'_>, only: Option<u32>, draft: &mut Draft) {
    let (least, most) = (elastic.get("minReplicas").count(), elastic.get("maxReplicas").count());
    for name in ["rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"] {
        let field = elastic.get(name);
        if field.is_given() {
            field.approximate("the launch form has the rendezvous of the placement");
        }
    }
    let per_node = elastic.get("nProcPerNode");
    if per_node.is_given() {
        per_node.approximate("torchrun starts a process for each accelerator of a worker");
    }
    if let Some(restarts) = elastic.get("maxRestarts").count() {
        draft.failures_max = Some(draft.failures_max.unwrap_or_default().max(restarts.min(FAILURES_MAX)));
        elastic.get("maxRestarts").approximate("the job is tried again this often, from its last checkpoint");
    }
    let Some(workers) = only else {
        elastic.refuse("torchrun changes the size of one group of workers: Master and Worker have to be alike, or without a Master");
        return;
    };
    let most = most.unwrap_or(workers);
    let least = least.unwrap_or(most);
    if least == 0 || least > most {
        elastic.refuse("`minReplicas` must be from 1 to `maxReplicas`");
        return;
    }
    if most != workers {
        elastic.get("maxReplicas").approximate(format!(
            "the gang has {most} workers when there is capacity for them, and not the {workers} of `replicas` at first"
        ));
    }
    draft.groups[0].workers = Some(most);
    if least < most {
        draft.groups[0].min_workers = Some(least);
        draft.launch = Some("torchrun_elastic");
    }
}

/// Converts an MPIJob.
pub fn mpi_job(object: &Field<'_>, options: &Options) -> Draft {
    // mpirun is a program of the host.
    let options = &Options { images: false, ..options.clone() };
    let mut draft = metadata::read(object, options);
    let spec = object.get("spec");
    let replicas = spec.get("mpiReplicaSpecs");
    let launcher =
        part(&replicas.get("Launcher"), "launcher", &["mpi-launcher"], Program::Needed, &mut draft, options);
    let worker =
        part(&replicas.get("Worker"), "", &["mpi-worker"], Program::OfFramework, &mut draft, options);
    let (Some(launcher), Some(mut worker)) = (launcher, worker) else {
        spec.refuse("must have `mpiReplicaSpecs` with a Launcher and a Worker");
        return draft;
    };
    if launcher.workers > 1 {
        replicas.at(["Launcher", "replicas"]).refuse("an MPI job has one launcher");
    }
    starter(&launcher, &spec);
    worker.pod.command = launcher.pod.command.clone();
    for (name, value) in &launcher.pod.environment {
        worker.pod.environment.entry(name.clone()).or_insert_with(|| value.clone());
    }
    worker.pod.exports.extend(launcher.pod.exports.iter().cloned());
    let rules = &mut worker.pod.rules;
    if rules.working_directory.is_none() {
        rules.working_directory.clone_from(&launcher.pod.rules.working_directory);
    }
    rules.tier = rules.tier.take().or_else(|| launcher.pod.rules.tier.clone());
    let apart = launcher.template.at(["spec", "nodeSelector"]);
    let needs = launcher.template.at(["spec", "containers"]);
    if apart.is_given() && launcher.pod.rules.node_selector != worker.pod.rules.node_selector {
        apart.drop("the launcher is the first worker, and has no place apart");
    }
    if launcher.pod.needs != Needs::default() {
        needs.items().iter().map(|container| container.get("resources")).filter(Field::is_given).for_each(
            |field| {
                field.drop("the launcher runs in the first worker, with what that needs");
            },
        );
    }
    slots(&spec, &worker);
    for name in ["sshAuthMountPath", "launcherCreationPolicy"] {
        let field = spec.get(name);
        if field.is_given() {
            field.approximate("daemons start through the workers of the gang, all together and without ssh");
        }
    }
    let kind = spec.get("mpiImplementation");
    if let Some(text) = kind.text()
        && text != "OpenMPI"
    {
        kind.approximate(
            "the `mpirun` of the nodes counts: Open MPI is tested, and Hydra gets its own variables",
        );
    }
    run_policy(&spec, &mut draft, options);
    let limit = draft.rules.run_time_limit_s;
    assemble(&mut draft, &[worker]);
    draft.rules.run_time_limit_s = limit.into_iter().chain(draft.rules.run_time_limit_s).min();
    draft.launch = Some("mpi");
    draft
}

fn starter(launcher: &Part<'_>, spec: &Field<'_>) {
    let Some(first) = launcher.pod.command.first() else { return };
    let name = first.rsplit('/').next().unwrap_or_default();
    let container = spec.at(["mpiReplicaSpecs", "Launcher", "template", "spec", "containers"]);
    if ["sh", "bash", "dash", "zsh"].contains(&name) {
        container.refuse(format!(
            "the command begins with {}, where the launch form looks for mpirun or the program; write the words of mpirun",
            shown(first)
        ));
    } else if !STARTERS.contains(&name) {
        container.approximate("the launch form starts this program with mpirun, a process for each slot");
    }
}

fn slots(spec: &Field<'_>, worker: &Part<'_>) {
    let field = spec.get("slotsPerWorker");
    let Some(slots) = field.count() else { return };
    let own = devices(&worker.pod).unwrap_or_else(|| "1".to_owned());
    if slots.to_string() != own {
        field.approximate(format!("a worker has a slot for each accelerator, and one without: {own} here"));
    }
}

/// One role of a job.
fn part<'a>(
    role: &Field<'a>,
    name: &str,
    containers: &[&str],
    program: Program,
    draft: &mut Draft,
    options: &Options,
) -> Option<Part<'a>> {
    if !role.is_given() {
        return None;
    }
    let workers = role.get("replicas").count().unwrap_or(1);
    if workers == 0 {
        role.approximate("there are none of this role");
        return None;
    }
    let template = role.get("template");
    let pod = pod::read(&template, containers, program, &mut draft.labels, options);
    restart_policy(&role.get("restartPolicy"), draft);
    restart_policy(&template.at(["spec", "restartPolicy"]), draft);
    Some(Part { name: name.to_owned(), workers, per_job: 0, pod, template })
}

fn restart_policy(policy: &Field<'_>, draft: &mut Draft) {
    match policy.text() {
        None | Some("Never") => {}
        Some("OnFailure" | "Always") => {
            draft.failures_max = Some(FAILURES_MAX);
            policy.approximate(format!(
                "a worker does not start again alone: the gang does as a whole, at most {FAILURES_MAX} times or as `backoffLimit` says"
            ));
        }
        Some("ExitCode") => {
            draft.failures_max = Some(FAILURES_MAX);
            policy.approximate("every code but 0 is a failure, after which the gang starts again as a whole");
        }
        Some(other) => {
            policy.refuse(format!("must be Never, OnFailure, Always or ExitCode, got {:?}", shown(other)))
        }
    }
}

fn run_policy(spec: &Field<'_>, draft: &mut Draft, options: &Options) {
    let policy = spec.get("runPolicy");
    if let Some(failures) = policy.get("backoffLimit").count() {
        if failures > FAILURES_MAX {
            policy
                .get("backoffLimit")
                .approximate(format!("a job is tried again at most {FAILURES_MAX} times"));
        }
        draft.failures_max = Some(failures.min(FAILURES_MAX));
    }
    draft.rules.run_time_limit_s = job::limit(&policy, None, Shape::Gang(1));
    job::suspended(&policy, !draft.tenant.is_empty());
    let scheduling = policy.get("schedulingPolicy");
    let queue = scheduling.get("queue");
    if let Some(name) = queue.text().and_then(muster_types::Name::new) {
        if draft.tenant.is_empty() {
            draft.tenant = name.to_string();
        } else if draft.tenant != *name {
            queue.drop("the queue's label names the tenant");
        }
    } else if queue.is_given() {
        queue.drop("a tenant's name has lower-case letters, digits, '-', '_' and '.'");
    }
    metadata::priority(&scheduling.get("priorityClass"), options, &mut draft.rules.tier);
    let least = scheduling.get("minAvailable");
    if least.count().is_some() {
        least.approximate("a gang starts with all of its workers");
    }
}
