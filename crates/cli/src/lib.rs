//! The client commands.
//!
//! Promises to scripts: data goes to stdout and nothing else does; progress and errors go to stderr.
//! `-o json` and `-o yaml` have the stable shape of [`view`]. The exit code says how it ended; see
//! [`Exit`].
//!
//! **Invariant:** no command decides anything about a job: it asks, shows, and checks what the server
//! would check anyway.

mod artifacts;
mod audit;
mod backup;
mod booking;
mod ca;
mod capacity;
mod cluster;
pub mod complete;
mod consent;
mod ctl;
mod debug;
mod file_arguments;
mod find;
mod foreign;
mod ids_on_stderr;
mod incident;
mod interrupt;
mod job;
mod job_files;
mod licence;
mod log;
mod login;
mod man;
mod node;
mod notification;
mod open;
mod options;
mod parallel;
mod placement;
mod policy;
mod probe;
mod queue;
mod queue_reason;
mod queue_text;
mod quota;
mod reading;
mod region;
mod report;
mod run;
mod schedule;
mod sim;
mod slo;
mod submit;
mod token;
mod told;
mod view;
mod whatif;
mod workdir;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use muster_console::{Console, Exit, Failure, Format, Global};

pub use backup::{Restore, RestoreArgs, read_backup, show_backup, with_causes};

/// What the commands need of the program that they are part of.
pub struct Program {
    /// Its version.
    pub version: &'static str,
    /// The description of all its commands.
    pub commands: fn() -> clap::Command,
    /// Makes the data directory of a first replica from a backup, as `muster backup restore` does.
    pub restore: Restore,
}

/// Shown under `muster --help`.
pub const ROOT_AFTER_HELP: &str = "\
Examples:
  muster dev                              a cluster on this machine, to try things
  muster --endpoint replica-1:7401,replica-2:7401 cluster status
  muster plan train.yaml
  muster submit train.yaml --watch
  muster run --workers 2 --accelerators h100:8 -- python train.py
  muster job explain job-3f0
  muster job list --phase pending
  muster job logs job-3f0 --rank 0 -f
  muster top

Where the cluster is: --endpoint, else MUSTER_ENDPOINTS, else `endpoints = [\"host:port\", …]` in
$XDG_CONFIG_HOME/muster/config.toml (~/.config/muster/config.toml), else a running `muster dev`.

With what: --ca, --cert and --key, else MUSTER_CA, MUSTER_CERT and MUSTER_KEY, else `[tls]` with `ca`, `cert` and
`key` in the same file; without them the cluster is spoken to in plaintext. Or with --ca and a bearer token: --token-file,
else MUSTER_TOKEN_FILE, else MUSTER_TOKEN, which has the token itself, else what `muster login` has kept for these replicas.

Where the web pages are, for `open` and `debug bundle`: --web, else MUSTER_WEB, else `web = [\"host:port\", …]` in the same file,
else those of a running `muster dev`.

A trace: the span that TRACEPARENT names (W3C Trace Context) goes along with every call, and to the workers of submitted jobs.

Exit codes: 0 ok, 1 failed or the job failed, 2 usage or a wrong job file, 3 not found, 4 denied,
5 conflict or precondition, 6 unavailable, 7 timeout, 130 interrupted; of `muster run` that of the job.";

/// What there is a schema of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Described {
    /// A job file
    Job,
}

/// What a client of the cluster can do.
#[derive(Subcommand)]
pub enum ClientCommand {
    /// Submit the jobs of a file, or a script
    Submit(submit::SubmitArgs),
    /// Submit a command and stay with it: its output here, its exit code as the exit code
    Run(Box<run::RunArgs>),
    /// Say what would become of a job if it were submitted now: where, when, and why not
    Plan(job::explanation::PlanArgs),
    /// Look at jobs, follow and cancel them
    #[command(subcommand, visible_alias = "jobs")]
    Job(job::JobCommand),
    /// Print the output of a worker: `muster job logs`
    Logs(job::logs::LogsArgs),
    /// Run a command next to a worker that runs, with what the worker has
    Exec(job::exec::ExecArgs),
    /// Type to a worker that has a terminal, and see what it writes
    Attach(job::exec::AttachArgs),
    /// Reach a port of a worker from this machine: TensorBoard, a notebook, a dashboard
    PortForward(job::port_forward::PortForwardArgs),
    /// Files that workers have left: list them, fetch them
    #[command(subcommand)]
    Artifacts(artifacts::ArtifactsCommand),
    /// Cancel jobs: `muster job cancel`
    #[command(after_help = "\
Examples:
  muster cancel job-3f0
  muster cancel 'array-3f0[1-5,7]'   members of an array by their indices
  muster cancel --mine --phase pending --dry-run")]
    Cancel(job::controls::SelectArgs),
    /// Say why a job waits and when it will start: `muster job explain`
    #[command(after_help = "\
Examples:
  muster explain job-3f0
  muster explain train                the job of that name, when there is one
  muster explain 'array-3f0[7]'       a member of an array")]
    Explain {
        /// Its id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        #[command(flatten)]
        #[allow(missing_docs, reason = "a flattened field has no help text")]
        read: reading::ReadArgs,
    },
    /// List jobs that wait or run: `muster job list`
    #[command(visible_alias = "ps")]
    List(job::list::ListArgs),
    /// Members, lag, disks and warnings of the cluster: `muster cluster status`
    #[command(after_help = "\
Examples:
  muster status
  muster status -o json | jq '.warnings[].message'")]
    Status,
    /// Watch jobs, queues, fleet, replicas and events live in the terminal
    Top(muster_top::TopArgs),
    /// Open a web page of a replica in a browser: a job, a node, a queue, the fleet, events
    Open(open::OpenArgs),
    /// Look at the nodes of the fleet; take them out of placement
    #[command(subcommand, visible_alias = "nodes")]
    Node(node::NodeCommand),
    /// Measure the network between nodes: every pair, and a ring all-reduce
    Probe(probe::ProbeArgs),
    /// Look at queues: what each tenant has waiting, holds and may use
    #[command(subcommand, visible_alias = "queues")]
    Queue(queue::QueueCommand),
    /// More quota for a tenant for some time: ask for it, approve or deny it, grant it, list what was granted
    #[command(subcommand, visible_alias = "quotas")]
    Quota(quota::QuotaCommand),
    /// Why a gang is where it is
    #[command(subcommand, visible_alias = "placements")]
    Placement(placement::PlacementCommand),
    /// Who was served out of turn, from the decision log
    #[command(subcommand)]
    Fairness(report::FairnessCommand),
    /// Look at the policy, check and set it: tenants, quotas, order, preemption, prices, windows
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Look at what receivers of notifications were told of, and what keeps them
    #[command(subcommand, visible_alias = "notifications")]
    Notification(notification::NotificationCommand),
    /// The decision log: follow it, look at single records, export and verify history
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Who did what, from the decision log; and which calls were denied, from the files of replicas
    Audit(audit::AuditArgs),
    /// What the fleet was used for, what it was idle for, and what jobs waited for: of an archive, the cluster, or both
    #[command(subcommand, visible_alias = "reports")]
    Report(report::ReportCommand),
    /// The scheduler cluster itself
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Collect what replicas say for those who look for a fault
    #[command(subcommand)]
    Debug(debug::DebugCommand),
    /// What happened around a moment, in one file without anything private: capture, replay, explain
    #[command(subcommand, visible_alias = "incidents")]
    Incident(incident::IncidentCommand),
    /// Drills on this cluster: what there are, one under way, its report; each undoes itself
    #[command(subcommand, visible_alias = "drills")]
    Drill(muster_live_drill::DrillCommand),
    /// The cluster's own certificates: make an authority, issue, rotate, look; needs no cluster
    #[command(subcommand)]
    Ca(ca::CaCommand),
    /// Nodes that are set aside over windows of time, for a tenant or for maintenance: book them, look, give them back
    #[command(subcommand, visible_alias = "bookings")]
    Booking(booking::BookingCommand),
    /// Regions, clusters and tenants that are held until further notice: hold, release, list
    #[command(subcommand, visible_alias = "regions")]
    Region(region::RegionCommand),
    /// What there is of each type in each region, by how it was bought: what is free, prices, how often nodes are taken away
    #[command(subcommand)]
    Capacity(capacity::CapacityCommand),
    /// Licences and other things that the policy counts: how many there are, who holds them, which job is next
    #[command(subcommand, visible_alias = "licences")]
    Licence(licence::LicenceCommand),
    /// Jobs that are submitted again and again: make, look at, suspend and run schedules
    #[command(subcommand, visible_alias = "schedules")]
    Schedule(schedule::ScheduleCommand),
    /// Bearer tokens of people and programs: make, list and revoke them
    #[command(subcommand, visible_alias = "tokens")]
    Token(token::TokenCommand),
    /// Sign in at an issuer that the replicas know, with a code for a browser
    Login(login::LoginArgs),
    /// Forget the sign-in of this user
    #[command(
        after_help = "Examples:\n  muster logout\n\nThe file with the token is removed. The issuer is not told: end the session there as well, if it has to end."
    )]
    Logout,
    /// Say who the replica takes the caller for, and what that role may
    #[command(after_help = "Examples:\n  muster whoami\n  muster whoami -o json | jq -r .tenant")]
    Whoami,
    /// Save the state of the cluster into one file, check such a file, begin a cluster from it
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Replay a trace under a virtual clock with this program's own scheduler; needs no cluster
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Replay a range of the log under another policy, fleet or quota, and compare
    Whatif(whatif::WhatifArgs),
    /// Follow the log and compare what another policy, fleet or quota would have done so far
    Shadow(whatif::shadow::ShadowArgs),
    /// Plan how a model is split over accelerators: sizes, memory, time, ranks; needs no cluster
    #[command(subcommand)]
    Parallel(parallel::ParallelCommand),
    /// Make alerts for a monitoring system from service level objectives; needs no cluster
    #[command(subcommand)]
    Slo(slo::SloCommand),
    /// Report events of the worker that this command runs in, or query whether it has to stop; needs no cluster
    #[command(subcommand)]
    Ctl(ctl::CtlCommand),
    /// Print a completion script for a shell
    #[command(
        after_help = "Examples:\n  source <(muster completion bash)             in ~/.bashrc\n  source <(muster completion zsh)              in ~/.zshrc\n  muster completion fish | source              in ~/.config/fish/config.fish\n\nThe script asks this program for each word: ids and names of jobs and nodes come from the cluster that the\nenvironment names. A script that is kept in a file has to be made again after an upgrade."
    )]
    Completion {
        /// For which shell
        shell: Shell,
    },
    /// Write manual pages for man(1), one for each command; packages contain them
    #[command(hide = true)]
    Man(man::ManArgs),
    /// Print the JSON Schema of what this program reads, for editors and for checks
    #[command(
        after_help = "Examples:\n  muster schema job > job.schema.json\n\nAn editor with a YAML language server takes it for a file that begins with\n# yaml-language-server: $schema=job.schema.json"
    )]
    Schema {
        /// Of what
        #[arg(value_enum)]
        of: Described,
    },
    /// Print the version of this program and, with --server, of a replica
    #[command(after_help = "\
Examples:
  muster version
  muster version --server")]
    Version {
        /// Ask a replica too
        #[arg(long)]
        server: bool,
    },
}

/// Runs one command to its exit code.
pub fn run(program: &Program, global: &Global, command: ClientCommand) -> ExitCode {
    let console = global.console();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Failure::new(Exit::Failed, format!("the runtime could not start: {error}"));
            return console.report(&failure);
        }
    };
    let done = runtime.block_on(async {
        tokio::select! {
            done = dispatch(program, global, &console, command) => done,
            () = tell_waiting(&console) => unreachable!("it waits for ever"),
        }
    });
    match done {
        Ok(exit) => exit.code(),
        Err(failure) => console.report(&failure),
    }
}

async fn dispatch(
    program: &Program,
    global: &Global,
    console: &Console,
    command: ClientCommand,
) -> Result<Exit, Failure> {
    let is_report = matches!(&command, ClientCommand::Report(_) | ClientCommand::Fairness(_));
    let is_plan = matches!(&command, ClientCommand::Parallel(parallel::ParallelCommand::Plan(_)));
    if console.format == Format::Html && !(is_report || is_plan) {
        return Err(Failure::usage("-o html is for muster parallel plan and muster report")
            .with_next("`muster open` shows jobs, nodes and queues as web pages"));
    }
    if console.format == Format::Csv && !is_report {
        return Err(Failure::usage("-o csv is for muster report")
            .with_next("use -o json, or `muster log export --form csv` for records of the log"));
    }
    match command {
        ClientCommand::Submit(args) => submit::run(global, console, args).await,
        ClientCommand::Run(args) => run::run(global, console, *args).await,
        ClientCommand::Plan(args) => job::explanation::plan(global, console, args).await,
        ClientCommand::Job(command) => job::run(global, console, command).await,
        ClientCommand::Top(args) => muster_top::run(global, console, args).await,
        ClientCommand::Open(args) => open::run(global, console, args).await,
        ClientCommand::Debug(command) => debug::run(program, global, console, command).await,
        ClientCommand::Node(command) => node::run(global, console, command).await,
        ClientCommand::Probe(args) => probe::run(global, console, args).await,
        ClientCommand::Queue(command) => queue::run(global, console, command).await,
        ClientCommand::Quota(command) => quota::run(global, console, command).await,
        ClientCommand::Placement(command) => placement::run(global, console, command).await,
        ClientCommand::Fairness(command) => report::verify_fairness(global, console, &command).await,
        ClientCommand::Policy(command) => policy::run(global, console, command).await,
        ClientCommand::Notification(command) => notification::run(global, console, command).await,
        ClientCommand::Log(command) => log::run(global, console, command).await,
        ClientCommand::Audit(args) => audit::run(global, console, args).await,
        ClientCommand::Cluster(command) => cluster::run(global, console, command).await,
        ClientCommand::Incident(command) => incident::run(program, global, console, command).await,
        ClientCommand::Drill(command) => muster_live_drill::run(global, console, command).await,
        ClientCommand::Ca(command) => ca::run(global, console, command).await,
        ClientCommand::Booking(command) => booking::run(global, console, command).await,
        ClientCommand::Region(command) => region::run(global, console, command).await,
        ClientCommand::Capacity(command) => capacity::run(global, console, command).await,
        ClientCommand::Licence(command) => licence::run(global, console, command).await,
        ClientCommand::Schedule(command) => schedule::run(global, console, command).await,
        ClientCommand::Token(command) => token::run(global, console, command).await,
        ClientCommand::Login(args) => login::run(global, console, args).await,
        ClientCommand::Logout => login::end(console).await,
        ClientCommand::Whoami => login::whoami(global, console).await,
        ClientCommand::Backup(command) => backup::run(program, global, console, command).await,
        ClientCommand::Sim(command) => sim::run(console, command),
        ClientCommand::Whatif(args) => whatif::run(global, console, &args).await,
        ClientCommand::Shadow(args) => whatif::shadow::run(global, console, &args).await,
        ClientCommand::Parallel(command) => parallel::run(global, console, command).await,
        ClientCommand::Report(command) => report::run(global, console, &command).await,
        ClientCommand::Slo(command) => slo::run(console, command),
        ClientCommand::Ctl(command) => ctl::run(global, console, command),
        ClientCommand::Logs(args) => job::logs::run(global, console, args).await,
        ClientCommand::Exec(args) => job::exec::run(global, console, args).await,
        ClientCommand::Attach(args) => job::exec::attach(global, console, args).await,
        ClientCommand::PortForward(args) => job::port_forward::run(global, console, args).await,
        ClientCommand::Artifacts(command) => artifacts::run(global, console, command).await,
        ClientCommand::Cancel(args) => job::run(global, console, job::JobCommand::Cancel(args)).await,
        ClientCommand::Explain { id, read } => {
            job::run(global, console, job::JobCommand::Explain { id, read }).await
        }
        ClientCommand::List(args) => job::list::run(global, console, args).await,
        ClientCommand::Status => cluster::run(global, console, cluster::ClusterCommand::Status).await,
        ClientCommand::Completion { shell } => completion(console, shell),
        ClientCommand::Man(args) => man::run(program, console, &args),
        ClientCommand::Schema { of: Described::Job } => {
            let schema = serde_json::to_string_pretty(&muster_manifest::job_schema());
            let text = schema.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
            console.line(&text)?;
            Ok(Exit::Ok)
        }
        ClientCommand::Version { server } => version(program, global, console, server).await,
    }
}

/// Commands of other tools, and the one here that does it.
const ELSEWHERE: &[(&str, &str)] = &[
    ("get", "muster job list, muster node list, muster queue list; one of them: muster job show ID"),
    ("describe", "muster job show ID, muster node show NAME; why a job waits: muster explain ID"),
    ("show", "muster job show ID, muster node show NAME"),
    ("delete", "muster cancel ID"),
    ("kill", "muster cancel ID"),
    ("stop", "muster cancel ID"),
    ("scancel", "muster cancel ID"),
    ("scontrol", "muster job hold|release|requeue|suspend|modify|top ID, muster job show ID"),
    ("hold", "muster job hold ID"),
    ("release", "muster job release ID"),
    ("requeue", "muster job requeue ID"),
    ("suspend", "muster job suspend ID"),
    ("resume", "muster job release ID"),
    ("update", "muster job modify ID"),
    ("apply", "muster submit FILE, muster policy set FILE"),
    ("create", "muster submit FILE"),
    ("sbatch", "muster submit SCRIPT"),
    ("srun", "muster run -- COMMAND"),
    ("start", "muster submit FILE, muster run -- COMMAND"),
    ("squeue", "muster list"),
    ("queue-status", "muster queue list"),
    ("sinfo", "muster node list"),
    ("sacct", "muster job list --all"),
    ("sacctmgr", "muster policy show|set, muster quota request TENANT TYPE:COUNT"),
    ("salloc", "muster run --detach -- sleep 8h, and then muster exec ID -it -- bash"),
    ("sattach", "muster attach ID, muster logs ID -f"),
    ("scrontab", "muster schedule create NAME -f FILE --cron TEXT, muster schedule list"),
    ("sdiag", "muster cluster status"),
    ("sprio", "muster explain ID, muster queue list -o wide"),
    ("sreport", "muster report usage"),
    ("sshare", "muster queue list -o wide"),
    ("strigger", "muster notification list"),
    ("sview", "muster top"),
    ("tail", "muster logs ID -f"),
    ("watch", "muster job watch ID, muster node watch, muster queue watch, muster cluster watch"),
    ("wait", "muster job wait ID"),
    ("info", "muster status"),
    ("why", "muster explain ID"),
    ("drain", "muster node drain NAME"),
    ("cordon", "muster node cordon NAME"),
    ("label", "muster node label NAME KEY=VALUE"),
    ("license", "muster licence list"),
    ("licenses", "muster licence list"),
    ("taint", "muster node taint NAME KEY:NoSchedule"),
];

/// Ends a command line whose first word is no command, and says what it may mean.
pub fn run_unknown(program: &Program, global: &Global, words: &[String]) -> ExitCode {
    global.console().report(&unknown(program, words))
}

fn unknown(program: &Program, words: &[String]) -> Failure {
    let word: String = words.first().map_or("", String::as_str).chars().take(40).collect();
    let failure = Failure::usage(format!("there is no command {word:?}"));
    if let Some((_, here)) = ELSEWHERE.iter().find(|(known, _)| *known == word) {
        return failure.with_next(*here);
    }
    let command = (program.commands)();
    let names: Vec<&str> =
        command.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name).collect();
    match muster_manifest::suggest::nearest(&word, &names) {
        Some(name) => failure.with_next(format!("did you mean: muster {name}")),
        None => failure.with_next("muster --help lists the commands"),
    }
}

/// How long a command may be silent before it says that it waits.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Says once, after a second, that the answer has not come: on a terminal nobody is left without a word.
async fn tell_waiting(console: &Console) {
    tokio::time::sleep(SILENCE_MAX).await;
    if console.has_been_silent() && console.shows_bars() {
        console.progress("waiting for the cluster to answer; Ctrl-C gives up");
    }
    std::future::pending::<()>().await;
}

fn completion(console: &Console, shell: Shell) -> Result<Exit, Failure> {
    let script = complete::script(shell);
    let script = script.map_err(|error| Failure::new(Exit::Failed, format!("making the script: {error}")))?;
    console.bytes(&script)?;
    Ok(Exit::Ok)
}

async fn version(
    program: &Program,
    global: &Global,
    console: &Console,
    server: bool,
) -> Result<Exit, Failure> {
    let info = if server { Some(global.client().await?.get_server_info().await?) } else { None };
    let version = view::Version::new(program.version, info);
    if console.is_structured() {
        console.object(&version)?;
        return Ok(Exit::Ok);
    }
    console.line(&format!("muster {}", version.client))?;
    if let Some(server) = &version.server {
        let at = if server.region.is_empty() { String::new() } else { format!(" in {}", server.region) };
        console.line(&format!("replica {}{at}: {}", server.replica_id, server.version))?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ELSEWHERE;

    #[test]
    fn programs_of_slurm_have_their_commands_here() {
        let programs = "sacct sacctmgr salloc sattach sbatch scancel scontrol scrontab sdiag sinfo sprio squeue sreport srun \
                        sshare strigger sview";
        for program in programs.split(' ') {
            let here = ELSEWHERE.iter().find(|(known, _)| *known == program);
            assert!(here.is_some_and(|(_, here)| here.starts_with("muster ")), "{program}");
        }
        let known: BTreeSet<&str> = ELSEWHERE.iter().map(|(known, _)| *known).collect();
        assert_eq!(known.len(), ELSEWHERE.len(), "a word is there twice");
    }
}
