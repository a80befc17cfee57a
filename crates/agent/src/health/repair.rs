//! Repairs that the leader orders once the host is empty, by a program of the operator.
//!
//! The number of a repair is written down before its program is started: an agent that comes back does not start it
//! again, and one that comes back after a boot knows that the reboot it was to bring about has happened.

use super::Inventory;
use crate::disk::durable::{read_record, write_record};
use muster_types::health::{HealthAction, RepairEnd};
use muster_types::limits::DETAIL_BYTES_MAX;
use muster_wire::agent;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::task::JoinHandle;

/// What a repair may take.
const REPAIR_MAX: Duration = Duration::from_secs(1_800);
/// Devices that an order may name.
const DEVICES_MAX: usize = muster_types::limits::HOST_DEVICES_MAX as usize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StartedRepair {
    number: u64,
    boot: u64,
    reboots: bool,
}

/// The repairs of one agent.
pub(crate) struct Repairs {
    command: Vec<String>,
    path: PathBuf,
    boot: u64,
    begun: Option<StartedRepair>,
    running: Option<(u64, JoinHandle<RepairEnd>)>,
    outcome: Option<(u64, RepairEnd)>,
    /// The order that nobody here carries out; said once.
    said: Option<u64>,
}

impl Repairs {
    pub(crate) fn new(command: Vec<String>, path: PathBuf, boot: u64) -> Repairs {
        let begun = read_record(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "the record of repairs cannot be read; a repair that is ordered begins again");
            None
        });
        Repairs { command, path, boot, begun, running: None, outcome: None, said: None }
    }

    /// The leader wants one.
    pub(crate) fn ordered(&mut self, order: agent::RepairOrder, inventory: Option<Inventory>) {
        let number = order.number;
        let is_known = self.outcome.as_ref().is_some_and(|(known, _)| *known == number);
        if is_known || self.running.as_ref().is_some_and(|(running, _)| *running == number) {
            return;
        }
        let Some(action) = HealthAction::of_name(&order.action).filter(|action| action.stops_work()) else {
            self.outcome =
                Some((number, RepairEnd::Failed(format!("no such action here: {:.64}", order.action))));
            return;
        };
        let reboots = action == HealthAction::RebootNode;
        if let Some(begun) = self.begun.as_ref().filter(|begun| begun.number == number) {
            let has_booted = begun.reboots && begun.boot != self.boot;
            let end = if has_booted {
                RepairEnd::Done
            } else {
                RepairEnd::Failed("the agent was restarted while the repair ran".to_owned())
            };
            self.outcome = Some((number, end));
            return;
        }
        if self.command.is_empty() || action == HealthAction::Inspect {
            if self.said.replace(number) != Some(number) {
                tracing::warn!(%action, "this host is empty and waits for a person: `muster node repair --done` ends it");
            }
            return;
        }
        let begun = StartedRepair { number, boot: self.boot, reboots };
        if let Err(error) = write_record(&self.path, &begun) {
            tracing::error!(%error, "a repair is not begun, because that cannot be written down");
            self.outcome = Some((number, RepairEnd::Failed("it could not be written down".to_owned())));
            return;
        }
        self.begun = Some(begun);
        tracing::warn!(number, %action, devices = ?order.devices, "a repair begins");
        let uuids = inventory.map(|inventory| inventory.uuids(&order.devices)).unwrap_or_default();
        let numbers: Vec<String> = order.devices.iter().take(DEVICES_MAX).map(u32::to_string).collect();
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env("MUSTER_REPAIR_ACTION", action.name())
            .env("MUSTER_REPAIR_DEVICES", numbers.join(","))
            .env("MUSTER_REPAIR_DEVICE_UUIDS", uuids.join(","))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        self.running = Some((number, tokio::spawn(carry_out(command))));
    }

    /// Resolves when a repair has ended; never while none runs.
    pub(crate) async fn ended(&mut self) {
        let Some((number, running)) = &mut self.running else { return std::future::pending().await };
        let number = *number;
        let end = running.await.unwrap_or_else(|error| RepairEnd::Failed(error.to_string()));
        self.running = None;
        let reboots = self.begun.as_ref().is_some_and(|begun| begun.reboots);
        tracing::warn!(number, ?end, "the program of a repair has ended");
        // A reboot that was begun is over when the next boot shows it.
        if !(reboots && end == RepairEnd::Done) {
            self.outcome = Some((number, end));
        }
    }

    /// How a repair ended that the leader has to be told of.
    pub(crate) fn outcome(&self) -> Option<(u64, RepairEnd)> {
        self.outcome.clone()
    }

    /// The leader knows how this one ended.
    pub(crate) fn acknowledged(&mut self, number: Option<u64>) {
        self.outcome.take_if(|(known, _)| Some(*known) == number);
    }
}

async fn carry_out(mut command: Command) -> RepairEnd {
    let ran = match tokio::time::timeout(REPAIR_MAX, command.output()).await {
        Err(_) => return RepairEnd::Failed(format!("it took longer than {} s", REPAIR_MAX.as_secs())),
        Ok(Err(error)) => return RepairEnd::Failed(format!("its program could not be run: {error}")),
        Ok(Ok(ran)) => ran,
    };
    if ran.status.success() {
        return RepairEnd::Done;
    }
    let text = String::from_utf8_lossy(&ran.stderr);
    let last = text.trim().lines().next_back().unwrap_or_default();
    let mut why = format!("{}: {last}", ran.status);
    while why.len() > DETAIL_BYTES_MAX {
        why.pop();
    }
    RepairEnd::Failed(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(number: u64, action: &str) -> agent::RepairOrder {
        agent::RepairOrder { number, action: action.into(), devices: vec![3] }
    }

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn a_program_repairs_and_its_failure_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("repair");
        let script = "echo $MUSTER_REPAIR_ACTION $MUSTER_REPAIR_DEVICES >&2; exit 3";
        let mut repairs = Repairs::new(shell(script), path.clone(), 1);
        repairs.ordered(order(5, "reset-gpu"), None);
        repairs.ended().await;
        let expected = RepairEnd::Failed("exit status: 3: reset-gpu 3".into());
        assert_eq!(repairs.outcome(), Some((5, expected)));
        repairs.acknowledged(Some(4));
        assert!(repairs.outcome().is_some());
        repairs.acknowledged(Some(5));
        assert_eq!(repairs.outcome(), None);
        let mut repairs = Repairs::new(shell("true"), path, 1);
        repairs.ordered(order(6, "reset-gpu"), None);
        repairs.ended().await;
        assert_eq!(repairs.outcome(), Some((6, RepairEnd::Done)));
    }

    #[tokio::test]
    async fn a_reboot_is_done_when_the_next_boot_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("repair");
        let mut repairs = Repairs::new(shell("true"), path.clone(), 1);
        repairs.ordered(order(7, "reboot-node"), None);
        repairs.ended().await;
        assert_eq!(repairs.outcome(), None, "the host is still going down");
        let mut restarted = Repairs::new(shell("exit 9"), path.clone(), 1);
        restarted.ordered(order(7, "reboot-node"), None);
        assert!(matches!(restarted.outcome(), Some((7, RepairEnd::Failed(_)))));
        let mut booted = Repairs::new(shell("exit 9"), path, 2);
        booted.ordered(order(7, "reboot-node"), None);
        assert_eq!(booted.outcome(), Some((7, RepairEnd::Done)), "and it is not rebooted again");
    }

    #[tokio::test]
    async fn without_a_program_a_person_does_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut repairs = Repairs::new(Vec::new(), dir.path().join("repair"), 1);
        repairs.ordered(order(1, "reset-gpu"), None);
        assert_eq!(repairs.outcome(), None);
        repairs.ordered(order(2, "format-disk"), None);
        assert!(matches!(repairs.outcome(), Some((2, RepairEnd::Failed(_)))));
        let mut missing = Repairs::new(vec!["/no/such/program".into()], dir.path().join("repair"), 1);
        missing.ordered(order(3, "reset-gpu"), None);
        missing.ended().await;
        assert!(
            matches!(missing.outcome(), Some((3, RepairEnd::Failed(why))) if why.contains("could not be run"))
        );
    }
}
