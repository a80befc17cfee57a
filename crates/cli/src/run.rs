//! `muster run`.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use muster_console::{Console, Exit, Failure, Global, local};
use muster_manifest::{Manifest, ManifestError, Overrides};
use muster_types::{PriorityTier, RequestId, limits};
use muster_wire::v1;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::foreign::ForeignArgs;
use crate::ids_on_stderr::or_on_stderr;
use crate::job::attach::{self, Ranks, Waited};
use crate::job::exec;
use crate::job_files::{self, Arguments, located, name_own_tenant, now_ms};
use crate::options;
use crate::parallel::auto;
use crate::submit::{MetadataArgs, NodeArgs};
use crate::workdir::WorkdirArgs;

/// Options of `muster run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster run -- hostname
  muster run --workers 4 --accelerators h100:8 --time-limit 2h -- python train.py --epochs 3
  muster run --workdir . --store /mnt/shared/muster -- python train.py
  muster run -it --accelerators h100:1 -- bash
  muster run --file train.sh --epochs 3
  muster run --accelerators h100:1 --cpu 8 --binding cores --shell login -- python train.py

The output of the workers comes to stdout and stderr as they write it; that of several with their ranks in
front. Ctrl-C detaches and the job goes on; a second one within two seconds cancels it. The exit code is the
job's: that of the worker that failed, 128 and the signal of one that was killed, and 6 when the job succeeded but its
output could not be read to the end. Workers read nothing from stdin, but with -it: then this terminal is that of one worker, every
key goes to it, and Ctrl-P Ctrl-Q leaves it. The command has to be on the nodes; a script given with --file travels with
the job, and so do the files of the directory given with --workdir. With a running `muster dev` the command starts in this directory.")]
pub struct RunArgs {
    /// The command, after --; with --file the arguments of the script: all from the first word on that is no option of this command,
    /// or behind --
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// A job file with one job, or a script, instead of a command; - for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "accelerators", "cpu", "memory", "time_limit", "env", "directory", "binding", "shell", "shared_memory"])]
    file: Option<String>,
    /// Name of the job; else that of the program or file
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Who it is for; else the tenant of the certificate
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// free, batch, standard, production or critical
    #[arg(long, value_name = "TIER", value_parser = muster_manifest::tier)]
    tier: Option<PriorityTier>,
    /// Regions it may run in; repeat it or separate several by commas
    #[arg(long, value_name = "REGION", value_delimiter = ',')]
    region: Vec<String>,
    /// How many workers, all at once or none [default: 1]
    #[arg(long, value_name = "N")]
    workers: Option<String>,
    /// Type and count per worker, as in a job file: h100:8, any:0.25
    #[arg(long, value_name = "TYPE:COUNT")]
    accelerators: Option<String>,
    /// CPUs per worker: 4, 500m
    #[arg(long, value_name = "CPUS")]
    cpu: Option<String>,
    /// Memory per worker: 16Gi
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// On which processors of its host each worker runs: none, numa or cores
    #[arg(long, value_name = "HOW")]
    binding: Option<String>,
    /// The shell that runs the command: none, or login for one that reads the host's profile and environment modules
    #[arg(long, value_name = "SHELL")]
    shell: Option<String>,
    /// Size of a /dev/shm that each worker has for itself: 16Gi
    #[arg(long, value_name = "BYTES")]
    shared_memory: Option<String>,
    /// Longest run of one attempt: 2h
    #[arg(long, aliases = ["time", "run-time-limit"], value_name = "DURATION")]
    time_limit: Option<String>,
    /// A variable of the workers, or one to pass on; repeat it
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Where the command starts on the nodes
    #[arg(long, value_name = "PATH")]
    directory: Option<String>,
    /// Only the output of this worker; else of all, or of rank 0 when there are more than 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..i64::from(limits::GANG_WORKERS_MAX)))]
    rank: Option<u32>,
    #[command(flatten)]
    metadata: MetadataArgs,
    #[command(flatten)]
    nodes: NodeArgs,
    #[command(flatten)]
    files: WorkdirArgs,
    /// Pass on what this command reads; with -t
    #[arg(short = 'i', long = "stdin", requires = "terminal", conflicts_with_all = ["detach", "file"])]
    stdin: bool,
    /// Give the workers terminals, and attach to that of rank 0, or of --rank, as `muster attach`; with -i
    #[arg(short = 't', long = "tty", requires = "stdin")]
    terminal: bool,
    /// Print the id and return at once
    #[arg(long)]
    detach: bool,
    /// A UUID for this submission; made up when there is none
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
}

pub async fn run(global: &Global, console: &Console, args: RunArgs) -> Result<Exit, Failure> {
    if args.terminal {
        // Before a job is submitted that nobody could type to from here.
        exec::size_here()?;
    }
    let what = args.file.clone().unwrap_or_else(|| "muster run".to_owned());
    let mut manifest = match &args.file {
        Some(file) => of_file(console, file, &args)?,
        None => of_command(&args)?,
    };
    let workdir = args.files.apply(global, console, std::slice::from_mut(&mut manifest))?;
    if global.is_local() {
        local::localize(&mut manifest.message);
    } else if let Some(file) = left_behind(&manifest.message) {
        console.progress(&format!(
            "note: workers start in an empty directory on their node, and {file} is in this one; where the nodes share \
             this file system, --directory \"$PWD\" starts them here, and --workdir . sends them the files"
        ));
    }
    if let Some(workdir) = workdir {
        workdir.send(console)?;
    }
    let request_id = args.request_id.unwrap_or_else(|| RequestId(uuid::Uuid::new_v4().as_u128()));
    let client = global.client().await?;
    let mut manifests = [manifest];
    name_own_tenant(&client, &mut manifests);
    auto::choose(&client, console, &what, &mut manifests).await?;
    let [manifest] = &manifests;
    if args.terminal {
        check_rank(args.rank, &manifest.message)?;
    }
    let request = v1::SubmitJobRequest {
        request_id: request_id.to_string(),
        job: Some(manifest.message.clone()),
        validate_only: false,
    };
    let answer =
        client.submit_job(request).await.map_err(|e| job_files::refused(e, &what, &manifests, None))?;
    let Some(id) = answer.job_ids.into_iter().next() else {
        return Err(Failure::new(Exit::Failed, "the answer names no job"));
    };
    if !args.terminal && waits_there(std::io::stdin()) {
        console.progress(
            "note: workers read nothing from stdin, and something waits there that they do not get; send it as a file \
             (--workdir)",
        );
    }
    if args.detach {
        or_on_stderr(console, std::slice::from_ref(&id), console.line(&id))?;
        return Ok(Exit::Ok);
    }
    console.progress(&match args.terminal {
        true => format!(
            "{id}; until it runs Ctrl-C leaves it in the queue, a second one cancels it; then Ctrl-P Ctrl-Q leaves its terminal, \
             and muster attach {id} comes back to it"
        ),
        false => format!("{id}; Ctrl-C detaches, a second one cancels the job"),
    });
    let limit = global.timeout.unwrap_or(Duration::MAX);
    let begun = Instant::now();
    if args.stdin && args.terminal {
        match attach::until_it_runs(&client, console, &id, begun.checked_add(limit)).await? {
            Waited::Runs => {
                let goes_on = format!("if {id} still runs, muster cancel {id} ends it");
                let attached = exec::attach_to(&client, console, id, args.rank.unwrap_or(0)).await;
                return attached.map_err(|failure| failure.with_details([goes_on]));
            }
            Waited::Left(exit) => return Ok(exit),
            Waited::Ended => {}
        }
    }
    let ranks = args.rank.map_or(Ranks::All, Ranks::One);
    attach::attach(&client, console, &id, ranks, limit.saturating_sub(begun.elapsed())).await
}

/// Whether somebody has written what nobody reads: into a pipe, or a file that stdin is.
fn waits_there(stdin: impl AsFd) -> bool {
    // A terminal counts what was typed ahead for the shell. A device has no number, and nothing that is lost.
    !rustix::termios::isatty(&stdin) && rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)
}

/// The job has the worker whose terminal is asked for.
fn check_rank(rank: Option<u32>, job: &v1::Job) -> Result<(), Failure> {
    let workers = job.spec().groups.iter().map(|group| group.workers.max(1)).fold(0, u32::saturating_add);
    match rank {
        Some(rank) if rank >= workers => {
            let last = workers.saturating_sub(1);
            Err(Failure::usage(format!("--rank {rank}: the ranks of the job are from 0 to {last}")))
        }
        _ => Ok(()),
    }
}

/// A word of the command that names a file of this directory, which workers would look for in theirs.
fn left_behind(job: &v1::Job) -> Option<&str> {
    if !job.spec().working_directory.is_empty() || job.spec().workdir.is_some() {
        return None;
    }
    let words = job.spec().groups.iter().flat_map(v1::TaskGroup::command);
    let mut words = words.map(String::as_str);
    words.find(|word| is_left_behind(Path::new(word)))
}

fn is_left_behind(path: &Path) -> bool {
    path.is_relative() && path.is_file()
}

fn of_file(console: &Console, file: &str, args: &RunArgs) -> Result<Manifest, Failure> {
    let overrides = Overrides {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        tier: args.tier,
        regions: args.region.clone(),
        labels: args.metadata.label.clone(),
        annotations: args.metadata.annotation.clone(),
        ..Overrides::default()
    };
    let overrides = args.nodes.over(overrides);
    let arguments = Arguments { words: &args.command, nearest: options::nearest::<RunArgs> };
    let mut manifests =
        job_files::read_manifests_with(console, file, arguments, &overrides, &ForeignArgs::default())?;
    let one = manifests.pop().filter(|job| manifests.is_empty() && job.message.spec().array.is_none());
    one.ok_or_else(|| {
        Failure::usage(format!("{file} holds more than one job"))
            .with_next(format!("muster submit {file} --watch follows them all"))
    })
}

fn of_command(args: &RunArgs) -> Result<Manifest, Failure> {
    let Some(program) = args.command.first() else {
        return Err(Failure::usage("there is no command to run").with_next("muster run -- COMMAND …"));
    };
    if program.starts_with('-') {
        // A misspelt option would otherwise be submitted as the program of a job.
        return Err(Failure::usage(format!("the command to run begins with a dash: {program}"))
            .with_next(options::unknown(program, options::nearest::<RunArgs>(program))));
    }
    let text =
        |key: &'static str, value: &Option<String>| value.clone().map(|text| (key, Value::String(text)));
    let mut metadata: Vec<_> =
        [text("name", &args.name), text("tenant", &args.tenant)].into_iter().flatten().collect();
    for (key, pairs) in [("labels", &args.metadata.label), ("annotations", &args.metadata.annotation)] {
        if !pairs.is_empty() {
            let texts = pairs.iter().map(|(key, value)| (key.clone(), Value::String(value.clone())));
            metadata.push((key, Value::Object(texts.collect())));
        }
    }
    let mut spec: Vec<_> = [
        text("tier", &args.tier.map(|tier| tier.to_string())),
        text("workers", &args.workers),
        text("accelerators", &args.accelerators),
        text("cpu", &args.cpu),
        text("memory", &args.memory),
        text("binding", &args.binding),
        text("shell", &args.shell),
        text("sharedMemory", &args.shared_memory),
        text("runTimeLimit", &args.time_limit),
        text("workingDirectory", &args.directory),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !args.region.is_empty() {
        spec.push(("regions", json!(args.region)));
    }
    if args.terminal {
        spec.push(("terminal", Value::String("true".to_owned())));
    }
    if !args.env.is_empty() {
        let mut variables = serde_json::Map::new();
        for given in &args.env {
            let (name, value) = variable(given)?;
            variables.insert(name, Value::String(value));
        }
        spec.push(("environment", Value::Object(variables)));
    }
    let wrong = |ManifestError(problems): ManifestError| {
        Failure::usage("the job is not valid")
            .with_details(problems.iter().map(|problem| located("muster run", problem)))
            .with_next("muster run --help shows what the options take")
    };
    let mut manifest =
        muster_manifest::from_options(&metadata, &spec, args.command.clone(), now_ms()).map_err(wrong)?;
    manifest.apply(&args.nodes.over(Overrides::default()));
    manifest.check().map_err(wrong)?;
    Ok(manifest)
}

/// `NAME=VALUE`, or `NAME` with the value that it has here.
fn variable(given: &str) -> Result<(String, String), Failure> {
    if let Some((name, value)) = given.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    match std::env::var(given) {
        Ok(value) => Ok((given.to_owned(), value)),
        Err(error) => Err(Failure::usage(format!("--env {given}: {error}"))
            .with_next(format!("give it a value: --env {given}=…"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_on_stdin_is_noticed() {
        let (read, mut write) = std::io::pipe().expect("a pipe");
        assert!(!waits_there(&read));
        std::io::Write::write_all(&mut write, b"hello").expect("a pipe takes five bytes");
        assert!(waits_there(&read));
        assert!(!waits_there(std::fs::File::open("/dev/null").expect("it is there")));
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    #[test]
    fn a_limit_of_time_has_the_name_that_other_commands_have_for_it_too() {
        for name in ["--time-limit", "--time", "--run-time-limit"] {
            let line = <Line as clap::Parser>::try_parse_from(["run", name, "4h", "--", "true"]);
            let args = line.expect("the option is known").args;
            assert_eq!(args.time_limit.as_deref(), Some("4h"));
            assert_eq!(args.command, ["true"]);
        }
    }

    #[test]
    fn the_program_of_a_job_is_no_misspelt_option() {
        let of = |words: &[&str]| {
            let line = <Line as clap::Parser>::try_parse_from([&["run"], words].concat());
            of_command(&line.expect("the words are taken").args)
        };
        let refused = of(&["--tiem-limit", "4h", "--", "true"]).expect_err("it is refused");
        assert!(refused.next().is_some_and(|next| next.contains("did you mean --time-limit?")));
        assert!(of(&["--after", "job-1", "--", "true"]).is_err());
        assert!(of(&["--", "python", "train.py", "--epochs", "3"]).is_ok());
    }

    #[test]
    fn a_terminal_is_that_of_a_worker_of_the_job() {
        let group = v1::TaskGroup { workers: 2, ..v1::TaskGroup::default() };
        let spec = v1::JobSpec { groups: vec![group], ..v1::JobSpec::default() };
        let job = v1::Job { spec: Some(spec), ..v1::Job::default() };
        assert!(check_rank(None, &job).is_ok() && check_rank(Some(1), &job).is_ok());
        assert!(check_rank(Some(2), &job).is_err());
    }
}
