//! What a form makes of a job's command.
//!
//! - torchrun (PyTorch, *torchrun (Elastic Launch)*): every worker runs a torchrun agent, which starts one
//!   process for each device. Static by default, so that ranks stay in the order that the placement gave
//!   them; elastic (`c10d`) when the job asks for it, with the gang's minimum. `--no-python` takes any program.
//! - DeepSpeed (`deepspeed --help`): the same by `--no_ssh`. Its launcher numbers visible devices
//!   by itself from the host file, so the worker's own ones are told by `--include`. `--no_local_rank`,
//!   because the argument it would add goes to the first word of the command.
//! - MPI and Ray start through [`crate::launch`].
//!
//! A command that begins with the framework's own launcher keeps its options: ours come first, and the
//! last one given counts.

use super::{Form, NodeContext, comma, endpoint, master, rank_name};
use crate::rules::{Launch, Placement, RankPlace};
use muster_types::CommandShell;
use std::path::Path;

/// The program and its arguments, as they are executed.
#[must_use]
pub fn command(placement: &Placement, worker: &Launch, here: &NodeContext<'_>) -> Vec<String> {
    let command = formed(placement, worker, here);
    match placement.host.shell {
        CommandShell::None => command,
        // The words stay words: the shell executes them as they are.
        CommandShell::Login => LOGIN_SHELL.map(str::to_owned).into_iter().chain(command).collect(),
    }
}

/// A login shell that executes the words behind these; the last of them is its name.
const LOGIN_SHELL: [&str; 5] = ["/bin/bash", "-l", "-c", "exec \"$@\"", "muster-login"];

fn formed(placement: &Placement, worker: &Launch, here: &NodeContext<'_>) -> Vec<String> {
    match placement.form {
        Form::Environment => worker.command.clone(),
        Form::Torchrun | Form::TorchrunElastic => {
            let options = torchrun_options(placement, worker);
            wrap("torchrun", "torch.distributed.run", "--no-python", options, &worker.command)
        }
        Form::DeepSpeed => {
            let options = deepspeed_options(placement, worker, here);
            wrap("deepspeed", "deepspeed.launcher.runner", "--no_python", options, &worker.command)
        }
        Form::Ray | Form::Mpi => {
            let own = here.launcher.iter().cloned().chain([placement.form.as_str().to_owned()]);
            own.chain(worker.command.iter().cloned()).collect()
        }
    }
}

fn file_name(word: &str) -> &str {
    Path::new(word).file_name().and_then(|name| name.to_str()).unwrap_or(word)
}

/// The framework's launcher before the command: the one that the command begins with, the module of the
/// Python that it begins with (so that the same virtual environment is used), or the one on the PATH.
fn wrap(
    program: &str,
    module: &str,
    any_program: &str,
    options: Vec<String>,
    command: &[String],
) -> Vec<String> {
    let Some((first, rest)) = command.split_first() else { return Vec::new() };
    if file_name(first) == program {
        return [vec![first.clone()], options, rest.to_vec()].concat();
    }
    let launcher = if file_name(first).starts_with("python") {
        vec![first.clone(), "-m".to_owned(), module.to_owned()]
    } else {
        vec![program.to_owned()]
    };
    [launcher, options, vec![any_program.to_owned()], command.to_vec()].concat()
}

fn torchrun_options(placement: &Placement, worker: &Launch) -> Vec<String> {
    let world = placement.rank_map.len();
    let processes = worker.devices.count().max(1);
    let (host, port) = (master(placement), placement.rendezvous_port);
    let identity = format!("{}@{}", placement.job, placement.token);
    if placement.form == Form::Torchrun {
        return vec![
            format!("--nnodes={world}"),
            format!("--node-rank={}", worker.rank),
            format!("--nproc-per-node={processes}"),
            format!("--rdzv-id={identity}"),
            format!("--master-addr={host}"),
            format!("--master-port={port}"),
        ];
    }
    let least = (placement.world_size_min as usize).clamp(1, world);
    // Who holds the store is stated, not guessed by comparing host names; a group's own address likewise.
    let holds_store = u8::from(worker.rank == 0);
    let own = placement.rank_map.get(worker.rank as usize).map_or("", |place| place.address.as_str());
    vec![
        format!("--nnodes={least}:{world}"),
        format!("--nproc-per-node={processes}"),
        format!("--rdzv-id={identity}"),
        "--rdzv-backend=c10d".to_owned(),
        format!("--rdzv-endpoint={}", endpoint(host, port)),
        format!("--rdzv-conf=is_host={holds_store}"),
        format!("--local-addr={own}"),
        format!("--max-restarts={ELASTIC_RESTARTS}"),
    ]
}

/// Membership changes and failures together that one elastic attempt goes on after; beyond, the job's own
/// retry rules count.
const ELASTIC_RESTARTS: u32 = 3;

fn deepspeed_options(placement: &Placement, worker: &Launch, here: &NodeContext<'_>) -> Vec<String> {
    vec![
        format!("--hostfile={}", here.rank_hostfile_path.display()),
        format!("--include={}", deepspeed_include(placement, worker)),
        "--no_ssh".to_owned(),
        format!("--node_rank={}", worker.rank),
        format!("--master_addr={}", master(placement)),
        format!("--master_port={}", placement.rendezvous_port),
        "--no_local_rank".to_owned(),
    ]
}

/// `rank-0:0,1@rank-1:4,5`: of other workers only the counts matter.
fn deepspeed_include(placement: &Placement, worker: &Launch) -> String {
    let slots = |(rank, place): (usize, &RankPlace)| {
        let ids = if rank == worker.rank as usize && !worker.devices.is_empty() {
            comma(worker.devices.iter())
        } else {
            comma(0..place.slots())
        };
        format!("{}:{ids}", rank_name(rank))
    };
    let all: Vec<String> = placement.rank_map.iter().enumerate().map(slots).collect();
    all.join("@")
}
