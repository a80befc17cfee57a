//! Rounds of decisions: how large they are, and how one that is too large is cut.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Outcome, ROUND_BYTES_MAX, RankUpdate, Round, StopCause, SubmittedPart};
use muster_types::health::RepairStep;
use muster_types::{ExitStatus, JobContract, JobMetadata, JobSpec, LogIndex, TaskGroup, limits};

/// Bytes of a round at which a pass stops, so that placements never make a round too large.
pub(crate) const ROUND_BYTES_SOFT: usize = 256 << 10;

/// Bytes above which a round is cut into several; one decision can have as many as a submission may.
const ROUND_BYTES_SPLIT: usize = ROUND_BYTES_MAX / 2;

/// Cuts a round that is larger than it should be into several that say the same, one after the other. Nearly every
/// round stays as it is.
#[must_use]
pub fn split_round(round: Round) -> Vec<Round> {
    let mut rounds = Vec::new();
    let (mut part, mut bytes) = (Vec::new(), 0);
    let Round { format, term, replica, first_index, basis_index, log_time, decisions } = round;
    let mut begin = (first_index, basis_index);
    let mut index = first_index;
    let cut = |(first_index, basis_index): (LogIndex, LogIndex), decisions: Vec<Decision>| Round {
        format,
        term,
        replica,
        first_index,
        basis_index,
        log_time,
        decisions,
    };
    for decision in decisions {
        let size = bytes_max(&decision);
        if !part.is_empty() && bytes + size > ROUND_BYTES_SPLIT {
            rounds.push(cut(begin, core::mem::take(&mut part)));
            begin = (index, LogIndex(index.0.saturating_sub(1)));
            bytes = 0;
        }
        bytes += size;
        part.push(decision);
        index = index.next();
    }
    rounds.push(cut(begin, part));
    rounds
}

/// Bytes of a decision at most, so that a round is bounded without encoding it twice. Integers are
/// counted with their longest encoding; a test compares this with real encodings.
pub(crate) fn bytes_max(decision: &Decision) -> usize {
    match decision {
        Decision::JobsSubmitted { specs, .. } => {
            64 + specs.iter().map(|spec| spec_bytes_max(spec)).sum::<usize>() + specs.len() * 42
        }
        Decision::ArraysSubmitted { parts, .. } => 64 + parts.iter().map(part_bytes_max).sum::<usize>(),
        Decision::ArrayMembersFailed { detail, .. } => 64 + detail.len(),
        Decision::ArraysControlled { by, arrays, jobs, .. } => {
            64 + by.name.len() + (arrays.len() + jobs.len()) * 10
        }
        Decision::Rearranged { stops, promises } => {
            64 + stops.len() * 48 + promises.iter().map(|p| 32 + p.workers.len() * 20).sum::<usize>()
        }
        Decision::TurnsChanged { bursts } => 32 + bursts.len() * 20,
        Decision::NodeHealthChanged { health, events, .. } => {
            let conditions = health.conditions.iter().chain(&health.recent).chain(events);
            let texts: usize = conditions.map(|c| 56 + c.observation.detail.len()).sum();
            128 + texts + health.reboots.len() * 24
        }
        Decision::NodeQuarantineSet { reason: Some(reason), .. } => 64 + reason.len(),
        Decision::NodeRepairSet { step: RepairStep::Fail(detail), .. } => 64 + detail.len(),
        Decision::HealthPolicySet { policy, .. } => 64 + muster_journal::canonical(policy).len(),
        Decision::NodeAdmissionSet { admission, .. } => 64 + muster_journal::canonical(admission).len(),
        Decision::NodeApprovalSet { name, approval, .. } => {
            64 + name.len() + muster_journal::canonical(approval).len()
        }
        Decision::CertificateRevoked { revocation, .. } => 128 + revocation.holder.len(),
        Decision::PolicySet { policy, .. } => 64 + muster_journal::canonical(policy).len(),
        Decision::GangPlaced { workers, .. } => 32 + workers.len() * 20,
        Decision::WorkersReported { updates, .. } => {
            let update = |update: &RankUpdate| match update {
                RankUpdate::Running => 0,
                RankUpdate::Exited(exit) => exit_bytes_max(exit),
            };
            64 + updates.iter().map(|(_, u)| 8 + update(u)).sum::<usize>()
        }
        Decision::GangStopRequested { cause: StopCause::WorkerFailed { exit, .. }, .. } => {
            64 + exit_bytes_max(exit)
        }
        Decision::GangStopRequested { cause: StopCause::Fault { detail, .. }, .. } => 96 + detail.len(),
        Decision::JobFinished { outcome: Outcome::Failed { detail }, .. } => 64 + detail.len(),
        Decision::JobContractsSet { contracts } => {
            32 + contracts.iter().map(|(_, contract)| contract_bytes_max(contract)).sum::<usize>()
        }
        Decision::JobMetadataSet { runs } => {
            32 + runs.iter().map(|(_, _, metadata)| metadata_bytes_max(metadata)).sum::<usize>()
        }
        Decision::JobCancelRequested { by, jobs, .. }
        | Decision::JobHoldSet { by, jobs, .. }
        | Decision::JobRequeueRequested { by, jobs, .. } => 64 + by.name.len() + jobs.len() * 10,
        Decision::JobModified { by, changes, .. } => {
            128 + by.name.len() + changes.iter().map(|change| 24 + change.text_bytes()).sum::<usize>()
        }
        Decision::AttemptFailed { detail, .. } => 96 + detail.len(),
        Decision::SparesTaken { ranks, .. } => 64 + ranks.len() * 26,
        Decision::NodeRegistered { spec, .. } => {
            let labels: usize = spec.labels.iter().map(|(key, value)| key.len() + value.len() + 10).sum();
            let taints: usize = spec.taints.iter().map(|taint| taint.len() + 5).sum();
            // Seven names, and the numbers.
            7 * (limits::NAME_BYTES_MAX + 5) + spec.address.len() + labels + taints + 128
        }
        _ => 128,
    }
}

fn spec_bytes_max(spec: &JobSpec) -> usize {
    let path = |path: &Option<String>| path.as_ref().map_or(1, |p| p.len() + 6);
    let group = |group: &TaskGroup| {
        let command: usize = group.command.iter().map(|word| word.len() + 5).sum();
        let environment: usize = group.environment.iter().map(|(k, v)| k.len() + v.len() + 10).sum();
        let choices = group.request.accelerators.as_ref().map_or(0, |a| a.choices.len());
        // The group's name and those of the types, and the numbers.
        command + environment + (1 + choices) * (limits::NAME_BYTES_MAX + 10) + 112
    };
    let values = |values: &BTreeSet<String>| values.iter().map(|v| v.len() + 5).sum::<usize>() + 5;
    let selector: usize =
        spec.node_selector.iter().map(|(label, of_label)| label.len() + 5 + values(of_label)).sum();
    let tolerations: usize = spec.tolerations.iter().map(|name| name.len() + 5).sum();
    let datasets: usize = spec.datasets.iter().map(|name| name.len() + 5).sum();
    let regions: usize = spec.regions.iter().map(|region| region.len() + 5).sum();
    spec.name.len()
        + spec.tenant.len()
        + regions
        + path(&spec.checkpoint_directory)
        + path(&spec.working_directory)
        + spec.groups.iter().map(group).sum::<usize>()
        + selector
        + tolerations
        + datasets
        + spec.dependencies.len() * 12
        + 192
}

fn metadata_bytes_max(metadata: &JobMetadata) -> usize {
    let texts = metadata.labels.len() + metadata.annotations.len();
    64 + metadata.text_bytes() + texts * 10
}

/// With the estimate, the throttle and the numbers of each range.
fn part_bytes_max(part: &SubmittedPart) -> usize {
    let SubmittedPart { spec, contract, metadata, array, .. } = part;
    64 + spec_bytes_max(spec)
        + contract.as_ref().map_or(0, |contract| contract_bytes_max(contract))
        + metadata.as_ref().map_or(0, |metadata| metadata_bytes_max(metadata))
        + array.as_ref().map_or(0, |array| 16 + array.ranges.len() * 15)
}

fn contract_bytes_max(contract: &JobContract) -> usize {
    let place = contract.checkpoint.place.as_ref().map_or(0, |place| place.len());
    // The numbers: a dozen of them, and the job's.
    192 + contract.retry.limits.len() * 12 + place + contract.notice.http_path.len()
}

fn exit_bytes_max(exit: &ExitStatus) -> usize {
    8 + exit.text().map_or(0, str::len)
}
