//! What other users of a Slurm cluster hold of a node, and whether Slurm gives anything out there at all.
//!
//! Slurm says what is allocated on a node in sum; what our own running batch jobs asked for is known here.
//! The difference is somebody else's: jobs, and what Slurm rounds up.
//!
//! **Invariant:** a controller that is silent for a moment changes nothing; one that is silent for longer
//! closes its nodes.

use super::backend::{Backend, Held, View};
use super::parse::SlurmNode;
use crate::executor::Foreign;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Without a look at Slurm for this long, nothing new is to be placed on its nodes.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Keeps the report of a node up to date, for ever.
pub(super) async fn follow(backend: Arc<Backend>, node: String, said: watch::Sender<Foreign>) {
    let mut views = backend.views();
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        let now = if view.number == 0 || view.began.elapsed() > SILENCE_MAX {
            Foreign { closed: true, ..*said.borrow() }
        } else {
            on_node(&backend, &node, &view)
        };
        said.send_if_modified(|before| std::mem::replace(before, now) != now);
        let silent = (view.began + SILENCE_MAX).max(Instant::now() + Duration::from_secs(1));
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(silent) => {}
        }
    }
}

fn on_node(backend: &Backend, name: &str, view: &View) -> Foreign {
    let found = view.nodes.iter().find(|node| node.name == name);
    let Some(node) = found else { return Foreign { closed: true, ..Foreign::default() } };
    let kind = backend.offered(node).map(|gres| gres.kind.as_str());
    let closed = !node.is_usable() || backend.partition_for(view, node).is_none();
    Foreign { closed, ..taken(node, kind, &backend.held_on(name, view)) }
}

/// What is allocated on a node beyond what is ours.
fn taken(node: &SlurmNode, kind: Option<&str>, own: &Held) -> Foreign {
    let used = kind.and_then(|kind| node.gpus_used.iter().find(|gres| gres.kind == kind));
    Foreign {
        closed: false,
        devices: used.map_or(0, |gres| gres.count).saturating_sub(own.devices),
        cpu_milli: node.cpus_allocated.saturating_sub(own.cpus).saturating_mul(1_000),
        memory_bytes: node.memory_allocated_mib.saturating_sub(own.memory_mib).saturating_mul(1 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::parse;

    #[test]
    fn what_is_not_ours_is_somebody_elses() {
        let line = "NodeName=n1 CPUAlloc=10 CPUTot=16 Gres=gpu:h100:4 GresUsed=gpu:h100:3(IDX:0-2) \
            RealMemory=1000 AllocMem=600 State=MIXED Partitions=p";
        let node = parse::nodes(line).remove(0);
        let own = |cpus, memory_mib, devices| Held { node: "n1".into(), cpus, memory_mib, devices };
        let found = taken(&node, Some("h100"), &own(4, 100, 1));
        let expected = Foreign { closed: false, devices: 2, cpu_milli: 6_000, memory_bytes: 500 << 20 };
        assert_eq!(found, expected);
        // Ours have begun since Slurm counted.
        assert_eq!(taken(&node, Some("h100"), &own(99, 9_999, 9)), Foreign::default());
        assert_eq!(taken(&node, None, &own(0, 0, 0)).devices, 0);
    }
}
