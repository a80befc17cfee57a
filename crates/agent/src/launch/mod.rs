//! Launchers for frameworks that start from one place: `mpirun`, and a Ray cluster with its driver.
//!
//! Such a framework wants to reach its hosts from the first one, usually by ssh. Here it reaches them through
//! the gang's own workers: what every worker executes is a launcher, rank 0's is the *hub*, and
//! the others, the *members*, connect to it on the gang's rendezvous port. The hub tells a member what to start,
//! and every process of the framework runs below the shim of a worker of the gang: under its lease, in
//! its control group, stopped with it. Nothing needs an account, a key or a daemon on the hosts.
//!
//! - `mpi` (`mpi.rs`): rank 0 runs `mpirun` with a host file of the ranks and, where it expects ssh, `remote`.
//! - `ray` (`ray.rs`): rank 0 runs the head and, when the members have joined, the driver.
//! - `remote` (`remote.rs`): what `mpirun` starts in place of ssh; hands the command to the hub.
//!
//! SIGTERM goes to what the user wrote alone, that is to `mpirun` or the driver in rank 0; the framework's
//! processes stay while it saves, and end with it, or with the worker when the grace is over.
//!
//! Trust: hub and members prove to each other that they know the gang's secret, which came with their start orders and which
//! nobody else is shown. What they say then is neither encrypted nor sealed, and the frameworks themselves believe
//! programs that use their own ports.
//!
//! **Invariant:** a member starts nothing but what the hub of its placement tells it, and ends when the
//! hub does; the exit code of the worker of rank 0 is the user's.

mod child;
mod hub;
mod identity;
mod member;
mod mpi;
mod protocol;
mod ray;
mod remote;

use child::{Children, Event};
use identity::Identity;
use muster_types::LaunchForm as Form;
use std::io::Write;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// First argument of a launcher, behind those of the shim.
pub(crate) const LAUNCH: &str = "launch";
/// The word behind it for the command that takes ssh's place.
const REMOTE: &str = "remote";
/// What the members of a gang may take to find the hub: their starts differ by what their nodes take.
const GATHER_MAX: Duration = Duration::from_secs(300);
/// What members may take to end what they run when the work is done.
const PART_MAX: Duration = Duration::from_secs(10);
/// Of that, what a process has from SIGTERM to SIGKILL: the user's work is over.
const TERM_MAX: Duration = Duration::from_secs(3);
/// Events not yet looked at; senders wait beyond.
const EVENTS_MAX: usize = 256;

/// Why a launcher gives up; the text is for the worker's log.
type Failure = String;

/// `args` are those after [`LAUNCH`]. Returns the exit code.
pub(crate) fn main(args: &[&str]) -> i32 {
    let (outcome, who) = match args {
        [REMOTE, rest @ ..] => (remote::run(rest), "remote"),
        [form, command @ ..] if !command.is_empty() => match Form::parse(form) {
            Some(Form::Mpi) => (run(Form::Mpi, command), "mpi"),
            Some(Form::Ray) => (run(Form::Ray, command), "ray"),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            say(&format!("{who}: {failure}"));
            1
        }
    }
}

fn usage() -> i32 {
    say("this command is the agent's own: it starts workers with it whose job has a launch form");
    2
}

/// One line on standard error, which is the worker's log.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "muster launch: {line}");
}

fn run(form: Form, command: &[&str]) -> Result<i32, Failure> {
    let identity = Identity::from_env()?;
    // Before any thread exists, so that no thread takes a signal.
    let (events, incoming) = sync_channel(EVENTS_MAX);
    child::watch_signals(events.clone())?;
    let mut gang = Gang { identity, children: Children::new(events), incoming };
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    match (gang.identity.rank, form) {
        (0, Form::Ray) => ray::head(&mut gang, &command),
        (0, _) => mpi::first(&mut gang, &command),
        _ => member::run(&mut gang, &command),
    }
}

/// What a launcher has.
struct Gang {
    identity: Identity,
    children: Children,
    incoming: Receiver<Event>,
}
