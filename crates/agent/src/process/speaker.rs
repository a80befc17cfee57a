//! Who speaks on the agent's socket: which worker's process, as the kernel and `/proc` tell.
//!
//! Every process of a worker is below its shim, however it was started: what is orphaned goes to the first process of the
//! worker's namespaces, or to the shim. So a process speaks for the worker whose shim is above it, and for no other; one
//! of the host that is below no shim speaks for any if its user is the agent's: that is its operator.

use crate::process::processes;
use crate::process::task::TaskDir;
use crate::rules::WorkerKey;
use std::collections::BTreeMap;
use std::path::Path;
use tokio::net::UnixStream;

/// How far above a process its shim is looked for.
const DEPTH_MAX: usize = 256;

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    /// A process below this shim.
    Below(i32),
    /// The agent's own user, outside of any worker.
    Operator,
    /// Nobody who may say anything.
    Stranger,
}

impl Speaker {
    /// Who is at the other end of a connection. `tasks` is the directory of workers' directories.
    pub(crate) fn of(stream: &UnixStream, tasks: &Path) -> Speaker {
        let Ok(peer) = stream.peer_cred() else { return Speaker::Stranger };
        let Some(pid) = peer.pid() else { return Speaker::Stranger };
        let mut at = pid;
        // The uppermost one: a worker can start processes that look like shims, but none above its own.
        let mut shim = None;
        for _ in 0..DEPTH_MAX {
            if is_shim(at, tasks) {
                shim = Some(at);
            }
            match (processes::parent(at), shim) {
                // The first process of the machine, or of a container that the agent is in.
                (Some(0 | 1), Some(shim)) => return Speaker::Below(shim),
                (Some(0 | 1), None) if peer.uid() == nix::unistd::geteuid().as_raw() => {
                    return Speaker::Operator;
                }
                (Some(0 | 1) | None, _) => return Speaker::Stranger,
                (Some(parent), _) => at = parent,
            }
        }
        Speaker::Stranger
    }

    /// Whether it may speak for this worker.
    pub(crate) fn speaks_for(&self, key: WorkerKey, tasks: &Path) -> bool {
        match self {
            Speaker::Below(shim) => {
                let running = TaskDir::of(tasks, key).running().ok().flatten();
                running.is_some_and(|running| running.shim_pid == *shim)
            }
            Speaker::Operator => true,
            Speaker::Stranger => false,
        }
    }
}

/// Whether a process is a shim of this agent: it leads its session, and its command line names a directory of a worker.
fn is_shim(pid: i32, tasks: &Path) -> bool {
    if processes::state(pid).is_none_or(|state| state.session != pid) {
        return false;
    }
    let line = crate::disk::durable::read_bounded(format!("/proc/{pid}/cmdline").as_ref(), 64 << 10)
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip_while(|word| !matches!(*word, b"run" | b"wait"));
    let directory = words.nth(1).unwrap_or_default();
    let below = tasks.as_os_str().as_encoded_bytes();
    directory.strip_prefix(below).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// How many connections each speaker has.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    of: BTreeMap<i32, usize>,
}

impl Connections {
    fn name(speaker: &Speaker) -> i32 {
        match speaker {
            Speaker::Below(shim) => *shim,
            Speaker::Operator => 0,
            Speaker::Stranger => -1,
        }
    }

    /// Counts one more; false where that would be too many of one worker.
    pub(crate) fn begin(&mut self, speaker: &Speaker, most: usize) -> bool {
        let count = self.of.entry(Connections::name(speaker)).or_insert(0);
        if *count >= most {
            return false;
        }
        *count += 1;
        true
    }

    /// One has ended.
    pub(crate) fn end(&mut self, speaker: &Speaker) {
        let name = Connections::name(speaker);
        if let Some(count) = self.of.get_mut(&name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_process_is_an_operator_or_below_nobody() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let speaker = Speaker::of(&ours, directory.path());
        assert_eq!(speaker, Speaker::Operator);
        assert!(!is_shim(std::process::id().cast_signed(), directory.path()));
    }

    #[test]
    fn one_worker_has_so_many_connections() {
        let mut connections = Connections::default();
        let (one, other) = (Speaker::Below(7), Speaker::Below(8));
        assert!(connections.begin(&one, 2) && connections.begin(&one, 2) && !connections.begin(&one, 2));
        assert!(connections.begin(&other, 2));
        connections.end(&one);
        assert!(connections.begin(&one, 2));
    }
}
