//! What a script does with Slurm's programs: two of them are there as functions of its shell.

use crate::finding::{FindingKind, Findings, shown};

use super::directives::{DIRECTIVE, is_command};

/// Shells whose functions the two can be.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ksh", "zsh"];
/// Runs the command behind its options, once, as the task that this worker is.
const SRUN: &str = r#"srun() { while [ "$#" -gt 0 ]; do case "$1" in --) shift; break;; --*=*) shift;; --account|--chdir|--comment|--constraint|--container|--container-env|--container-image|--container-mounts|--container-name|--container-save|--container-workdir|--cpu-bind|--cpus-per-gpu|--cpus-per-task|--distribution|--error|--exclude|--export|--gpu-bind|--gpus|--gpus-per-node|--gpus-per-task|--gres|--hint|--input|--job-name|--licenses|--mem|--mem-bind|--mem-per-cpu|--mem-per-gpu|--mpi|--network|--nodelist|--nodes|--ntasks|--ntasks-per-core|--ntasks-per-gpu|--ntasks-per-node|--ntasks-per-socket|--output|--partition|--qos|--relative|--signal|--threads-per-core|--time|--wait|-[ABCDGJLMNSTWacdeimnopqrtwx]) shift; shift $(( $# > 0 ));; -?*) shift;; *) break;; esac; done; "$@"; }"#;
/// Lists the hosts of the job, one a line.
const SCONTROL: &str = r#"scontrol() { case "$1 $2" in "show hostnames"|"show hostname") printf '%s\n' "${3:-$SLURM_JOB_NODELIST}" | tr , '\n';; *) echo "scontrol $*: there is no Slurm on this node" >&2; return 1;; esac; }"#;
/// Programs that run another one, which a function is not.
const RUNNERS: [&str; 7] = ["exec", "timeout", "nohup", "env", "xargs", "nice", "sudo"];
/// Programs of Slurm that the nodes do not have.
const PROGRAMS: [&str; 9] =
    ["sbatch", "salloc", "sacct", "squeue", "scancel", "sbcast", "sattach", "sstat", "sinfo"];
/// Programs that start the processes of an MPI job.
const STARTERS: [&str; 4] = ["mpirun", "mpiexec", "orterun", "mpiexec.hydra"];
/// How variables begin that Slurm sets or reads.
const PREFIXES: [&str; 3] = ["SLURM_", "SLURMD_", "SBATCH_"];
/// Slurm's variables that workers have.
const VARIABLES: [&str; 28] = [
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP",
    "SLURM_SUBMIT_DIR",
];

/// The script as it travels, and findings about its lines.
pub fn prepare(script: &str, findings: &Findings) -> String {
    let shell = shell(script);
    let (mut has_srun, mut has_scontrol) = (false, false);
    for (number, line) in (1..).zip(script.lines()) {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let mut before = "";
        for word in line
            .split(|c: char| c.is_whitespace() || ";&|()`\"'{}=".contains(c))
            .filter(|word| !word.is_empty())
        {
            let add = |name: &str, kind, sentence: &str| {
                findings.add(&format!("line {number}: {name}"), kind, sentence)
            };
            match word {
                "srun" if shell.is_some() => {
                    has_srun = true;
                    srun(line, before, &add);
                }
                "scontrol" if shell.is_some() => {
                    has_scontrol = true;
                    let sentence = "the shell has a function of this name for `scontrol show hostnames`, which lists the gang's hosts";
                    add("scontrol", FindingKind::Approximated, sentence);
                }
                "srun" | "scontrol" => add(word, FindingKind::NotHonoured, "there is no Slurm on the nodes"),
                program if PROGRAMS.contains(&program) => {
                    add(
                        program,
                        FindingKind::NotHonoured,
                        "there is no Slurm on the nodes; `muster` has a command for most of it",
                    );
                }
                program if STARTERS.contains(&program) => add(
                    program,
                    FindingKind::NotHonoured,
                    "it starts processes on its own host, once for every worker; a job document with `launch: mpi` starts the gang's",
                ),
                _ => {}
            }
            before = word;
        }
        variables(line, number, findings);
    }
    let functions: Vec<&str> = [(has_srun, SRUN), (has_scontrol, SCONTROL)]
        .into_iter()
        .filter(|(has, _)| *has)
        .map(|(_, text)| text)
        .collect();
    if functions.is_empty() { script.to_owned() } else { with_functions(script, &functions.join("; ")) }
}

fn srun(line: &str, before: &str, add: &dyn Fn(&str, FindingKind, &str)) {
    if RUNNERS.contains(&before) {
        let sentence = format!(
            "`{before} srun` looks for a program, and the nodes have none of this name; leave out `{before}`"
        );
        add("srun", FindingKind::Refused, &sentence);
    } else if line.contains("--multi-prog") || line.contains("--het-group") {
        add(
            "srun",
            FindingKind::Refused,
            "every worker of a group runs the same command; others are `groups` of a job document",
        );
    } else {
        let sentence =
            "each worker runs the command once, as the task of its rank; the options of srun are not read";
        add("srun", FindingKind::Approximated, sentence);
    }
    if line.contains("--container-") {
        add(
            "srun --container",
            FindingKind::NotHonoured,
            "the command runs as a process of its host; write `container: {image: …}` into the converted document",
        );
    }
}

/// Names variables of Slurm that workers do not have.
fn variables(line: &str, number: usize, findings: &Findings) {
    for name in line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !VARIABLES.contains(&name) {
            let path = format!("line {number}: ${}", shown(name));
            findings.add(
                &path,
                FindingKind::NotHonoured,
                "workers do not have this variable; most of Slurm's they have",
            );
        }
    }
}

/// The shell that runs the script.
fn shell(script: &str) -> Option<&str> {
    let first = script.lines().next()?.strip_prefix("#!")?;
    let names = first.split_whitespace().map(|word| word.rsplit('/').next().unwrap_or_default());
    names.into_iter().find(|name| *name != "env").filter(|name| SHELLS.contains(name))
}

/// Functions in front of the first directive or command, on its line: what a shell says of lines stays right.
fn with_functions(script: &str, functions: &str) -> String {
    let mut is_placed = false;
    let mut text = String::with_capacity(script.len() + functions.len() + 8);
    for line in script.split_inclusive('\n') {
        if !is_placed && (line.starts_with(DIRECTIVE) || is_command(line)) {
            text.push_str(functions);
            text.push_str(if is_command(line) { "; " } else { " " });
            is_placed = true;
        }
        text.push_str(line);
    }
    text
}
