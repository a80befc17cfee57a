//! What Slurm's word on an ended batch job means for its workers, where their runner has said nothing.
//!
//! **Invariant:** the runner's own word always counts first; of Slurm's only what it can know is believed:
//! an exit code is the runner's, and a cancellation is ours only when we asked.

use super::parse::SlurmJob;
use crate::remote::lost;
use crate::remote::runner::code;
use crate::rules::detail;
use muster_types::ExitStatus;

/// How a worker ended that its runner had launched, and then said nothing more of.
pub(super) fn after_launch(job: &SlurmJob, asked: bool) -> ExitStatus {
    let (code, signal) = (job.wait_status >> 8 & 0xff, job.wait_status & 0x7f);
    let text = |what: &str| {
        format!("Slurm ended batch job {} on {}: {what} ({}, {})", job.id, job.nodes, job.state, job.reason)
    };
    let told = |what: &str| lost(&text(what));
    match job.state.as_str() {
        "COMPLETED" => ExitStatus::Code(0),
        "FAILED" if signal != 0 => told(&format!("its runner was ended by signal {signal}")),
        "FAILED" => ExitStatus::Code(i32::try_from(code).unwrap_or(1)),
        "CANCELLED" if asked => ExitStatus::Signal(15),
        "CANCELLED" => told("somebody cancelled it in Slurm"),
        "TIMEOUT" | "DEADLINE" => told("at its time limit"),
        "PREEMPTED" => told("for another job"),
        "OUT_OF_MEMORY" => ExitStatus::OutOfMemory,
        "NODE_FAIL" | "BOOT_FAIL" => ExitStatus::NodeFault(detail(&text("its node failed"))),
        _ => told("for its own reasons"),
    }
}

/// Why nothing was launched by a batch job that is over.
pub(super) fn before_launch(job: &SlurmJob) -> ExitStatus {
    let exit = u8::try_from(job.wait_status >> 8 & 0xff).unwrap_or(0);
    let why = match (job.state.as_str(), exit) {
        ("FAILED", 126 | 127) => {
            "the runner's program cannot be executed there; see runner_command in the agent's configuration"
                .to_owned()
        }
        ("FAILED", code::UNREACHABLE) => {
            "its runner could not reach the agent; see slurm.advertise in the agent's configuration"
                .to_owned()
        }
        ("FAILED", code::REFUSED) => "its runner was turned away".to_owned(),
        ("FAILED", code::SETUP) => {
            "its runner could not make its directory; see slurm.runner_directory in the agent's configuration"
                .to_owned()
        }
        ("CANCELLED", _) => "somebody cancelled it in Slurm".to_owned(),
        ("NODE_FAIL" | "BOOT_FAIL", _) => "its node failed".to_owned(),
        ("PREEMPTED", _) => "another job went before it".to_owned(),
        _ => "it ended without a word".to_owned(),
    };
    let place = if job.nodes.is_empty() { "no node".to_owned() } else { job.nodes.clone() };
    let text = format!(
        "Slurm's batch job {} on {place} launched nothing: {why} ({}, {}, exit code {exit})",
        job.id, job.state, job.reason
    );
    match job.state.as_str() {
        // The place was to blame, not the program that never ran.
        "NODE_FAIL" | "BOOT_FAIL" => ExitStatus::NodeFault(detail(&text)),
        "CANCELLED" | "PREEMPTED" | "TIMEOUT" | "DEADLINE" => lost(&text),
        _ => ExitStatus::LaunchFailed(detail(&text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: &str, wait_status: u32) -> SlurmJob {
        SlurmJob {
            id: 7,
            name: "muster-x".into(),
            comment: "muster:x".into(),
            state: state.into(),
            reason: "None".into(),
            wait_status,
            nodes: "n1".into(),
        }
    }

    #[test]
    fn raw_wait_statuses_become_ends() {
        assert_eq!(after_launch(&job("COMPLETED", 0), false), ExitStatus::Code(0));
        assert_eq!(after_launch(&job("FAILED", 768), false), ExitStatus::Code(3));
        assert_eq!(after_launch(&job("FAILED", 35_072), false), ExitStatus::Code(137));
        assert_eq!(after_launch(&job("CANCELLED", 15), true), ExitStatus::Signal(15));
        let text = |state: &str, wait: u32| after_launch(&job(state, wait), false).to_string();
        assert!(text("FAILED", 9).contains("ended by signal 9"), "{}", text("FAILED", 9));
        assert!(text("CANCELLED", 15).contains("somebody cancelled it"));
        for state in ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "WHATEVER"] {
            assert!(text(state, 0).contains(state), "{}", text(state, 0));
        }
        assert_eq!(after_launch(&job("OUT_OF_MEMORY", 0), false), ExitStatus::OutOfMemory);
        assert!(matches!(after_launch(&job("NODE_FAIL", 0), false), ExitStatus::NodeFault(_)));
        assert!(matches!(after_launch(&job("TIMEOUT", 0), false), ExitStatus::BackendLost(_)));
    }

    #[test]
    fn why_nothing_was_launched_names_the_key_to_change() {
        let text = |code: u32| before_launch(&job("FAILED", code << 8)).to_string();
        assert!(text(127).contains("runner_command"));
        assert!(text(69).contains("slurm.advertise"));
        assert!(text(71).contains("slurm.runner_directory"));
        assert!(text(1).contains("exit code 1"));
    }
}
