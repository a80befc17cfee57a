//! What a worker's shim is told: its command, its environment, and what it is held to.

use super::{ProcessExecutor, ProcessSettings};
use crate::contract::{self, NodeContext};
use crate::limits;
use crate::own_program;
use crate::process::cdi::{self, Edits};
use crate::process::image_root;
use crate::process::isolation::Isolation;
use crate::process::runtime::Prepared;
use crate::process::task::{TaskDir, TaskSpec};
use crate::rules::{HttpNotice, Launch, Placement};
use crate::settings::MemoryLimit;
use crate::temporary;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The kind of terminal that a worker finds in `TERM` where its job does not say.
const USUAL_TERMINAL: &str = "xterm-256color";

/// A worker, and the variables that its environment begins with.
type WorkerBase<'a> = (Cow<'a, Launch>, Cow<'a, BTreeMap<String, String>>);

/// The worker with the command of its image where it has none, and the variables of image and host.
fn based<'a>(
    settings: &'a ProcessSettings,
    worker: &'a Launch,
    image: Option<&Prepared>,
    edits: &Edits,
) -> Result<WorkerBase<'a>, String> {
    let Some(image) = image else { return Ok((Cow::Borrowed(worker), Cow::Borrowed(&settings.environment))) };
    let command = image.config.command(&worker.command).map_err(|error| error.to_string())?;
    let variables = image.config.environment(&settings.environment);
    let mut variables = variables.map_err(|error| error.to_string())?;
    variables.extend(edits.variables.clone());
    Ok((Cow::Owned(Launch { command, ..worker.clone() }), Cow::Owned(variables)))
}

/// Where the worker starts.
fn working_directory(placement: &Placement, task: &TaskDir, image: Option<&Prepared>) -> PathBuf {
    if placement.workdir.is_some() {
        task.work()
    } else if placement.working_directory.is_empty() {
        let of_image = image.and_then(|image| image.config.working_directory());
        of_image.unwrap_or_else(|| task.work())
    } else {
        PathBuf::from(&placement.working_directory)
    }
}

/// The call that tells the worker of this rank to stop, where its job wants one.
fn stop_notice(settings: &ProcessSettings, placement: &Placement, rank: u32) -> Option<HttpNotice> {
    let to = placement.notice.as_ref()?;
    let local_rank = contract::local_rank(placement, &settings.node, rank);
    let port = contract::notice_port(to.port, local_rank)?;
    Some(HttpNotice { port, path: to.path.clone() })
}

impl ProcessExecutor {
    /// `image` is the worker's, prepared; none for a worker of the host.
    pub(super) fn spec(
        &self,
        placement: &Placement,
        worker: &Launch,
        epoch: u64,
        isolation: &Isolation,
        image: Option<&Prepared>,
    ) -> Result<TaskSpec, String> {
        let settings = &self.shared.settings;
        let seen = contract::seen_devices(placement, worker, &settings.node);
        let of_images = settings.images.as_deref().filter(|_| image.is_some());
        let edits = of_images.map(|images| images.edits(seen)).unwrap_or_default();
        let (worker, base) = based(settings, worker, image, &edits)?;
        let worker = &*worker;
        let key = placement.key(worker.rank);
        let task = self.task(key);
        let (rank_map, hostfile, rank_hostfile) = (task.rank_map(), task.hostfile(), task.rank_hostfile());
        let notice = task.notice();
        let mut launcher = settings.shim_command.clone();
        launcher.push(crate::launch::LAUNCH.to_owned());
        let here = NodeContext {
            node: &settings.node,
            node_accelerator: &settings.accelerator,
            base: &base,
            rank_map_path: &rank_map,
            hostfile_path: &hostfile,
            rank_hostfile_path: &rank_hostfile,
            notice_path: &notice,
            agent_socket: settings.agent_socket.as_deref(),
            hides_devices: settings.isolating.hides_devices(),
            launcher: &launcher,
        };
        let mut environment = contract::environment(placement, worker, &here);
        if let Some(path) = cdi::library_path(environment.get(cdi::LIBRARY_PATH), &edits.libraries) {
            environment.insert(cdi::LIBRARY_PATH.to_owned(), path);
        }
        if placement.terminal {
            environment.entry("TERM".to_owned()).or_insert_with(|| USUAL_TERMINAL.to_owned());
        }
        let working_directory = working_directory(placement, &task, image);
        environment.extend(contract::submit_directory(placement, worker, &working_directory));
        let isolation = settings.isolating.of_worker(isolation, (key, worker), seen)?;
        environment.extend(isolation.variables(&placement.tenant, &task.work(), &worker.environment));
        // With its own `/tmp` it needs none, and a directory that the job names for that is the job's.
        let has_its_own =
            isolation.private_tmp || image.is_some() || worker.environment.contains_key(temporary::VARIABLE);
        let (scratch_dir, holder) = (settings.scratch_dir.as_deref(), settings.holder);
        let scratch = temporary::scratch_of(scratch_dir, placement, key, holder)?;
        let temporary = scratch.clone().or_else(|| (!has_its_own).then(|| temporary::of(key, holder)));
        environment.extend(temporary::variables(scratch.as_deref(), temporary.as_deref(), worker));
        let (images, socket) = (settings.images.as_deref(), settings.agent_socket.as_deref());
        let shown = (images, socket, &edits, scratch.as_deref());
        let root_of = |image| image_root::of(shown, placement, worker, image, &task);
        let image = image.map(root_of).transpose()?;
        Ok(TaskSpec {
            image,
            isolation,
            key,
            tenant: placement.tenant.clone(),
            is_in_job: settings.is_in_job,
            command: contract::command(placement, worker, &here),
            environment,
            working_directory,
            devices: worker.devices,
            device_milli: worker.device_milli,
            lease_path: settings.lease.clone(),
            holder: settings.holder,
            epoch,
            stop_grace_ms: u64::try_from(placement.stop_grace.as_millis()).unwrap_or(u64::MAX),
            shim_arguments: own_program::arguments_of(&settings.guard_command).to_vec(),
            log_bytes_max: settings.logs.worker_bytes_max,
            log_free_min: settings.logs.free_bytes_min,
            cgroup_parent: self.shared.cgroup_parent.clone(),
            memory_bytes: match settings.memory_limit {
                MemoryLimit::Off => 0,
                _ => worker.memory_bytes.max(limits::WORKER_MEMORY_MIN),
            },
            memory_watched: settings.memory_limit == MemoryLimit::Enforced,
            cpu_milli: worker.cpu_milli,
            cpu_max_milli: settings.isolating.cpu_max_milli(worker.cpu_milli),
            io: settings.isolating.io().clone(),
            temporary,
            disk_bytes_max: settings.isolating.disk_bytes_max(),
            scratch_bytes: placement.scratch_bytes,
            artifacts: placement.artifacts.clone(),
            artifacts_bytes_max: placement.artifacts_bytes_max,
            terminal: placement.terminal,
            notice: stop_notice(settings, placement, worker.rank),
        })
    }
}
