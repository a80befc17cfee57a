//! What the tests of real processes share.
//!
//! **Invariant:** every process started here, and every worker below it, names its test's directory in its
//! command line or environment, and is killed when the directory is dropped; also when the test panics.

mod agents;
mod between;
mod cluster;
mod jobs;
mod load;
mod network;
mod previous;
mod process;
mod session;

pub use agents::Agents;
pub use between::Between;
pub use cluster::{Cluster, free_address};
pub use jobs::{
    accelerators, all_jobs, follow_until, is_finished, job, output, output_of_rank, submit, wait_for_job,
    work,
};
pub use load::Load;
pub use network::Network;
pub use previous::previous_release;
pub use process::{
    Ran, Scratch, example_job, marked, muster, run_program_to_end, run_to_end, signal, spawn, spawn_program,
};
pub use session::{node, register, registration, session, session_end};

use std::io::Write;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// Longest wait for anything that should take seconds; generous, because machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Between two looks at something that neither an event nor a watch tells of.
pub const LOOK_AGAIN: Duration = Duration::from_millis(25);

static HEAVY: Mutex<()> = Mutex::const_new(());

/// Held by tests with many processes, so that they do not take the time from one another.
pub async fn heavy() -> MutexGuard<'static, ()> {
    HEAVY.lock().await
}

/// Looks until there is something; panics with `what` when there is nothing for too long. For what no
/// watch covers: the status of a replica, whether a process is there.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("{what}: not within {} s", PATIENCE.as_secs()),
    }
}

/// A line for the person who runs the tests, shown also when they pass.
pub fn say(text: &str) {
    // Not `println`: the test harness would keep it to itself.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
