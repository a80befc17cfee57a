//! Nodes, and what their agents report.

use std::collections::{BTreeMap, BTreeSet};

use muster_types::tpu::PodPosition;
use muster_types::{
    ArtifactFault, Artifacts, BlobDigest, ExitStatus, FencingToken, ForeignLoad, JobId, LogTime, Name,
    NodeDraft, NodeOverrides, NodeOverridesChange, NodeSpec, Requester, Violation, fleet::checked_name,
    limits,
};

use super::id::job_id;
use super::value::{
    accelerators_from_proto, accelerators_to_proto, device_set_from_proto, device_set_to_proto,
    exit_status_from_proto, exit_status_to_proto, fencing_token_from_proto, fencing_token_to_proto,
};
use super::{Found, below};
use crate::agent::worker_state::Subject;
use crate::time::log_time;
use crate::{agent, v1};

/// The host an agent describes. `at` is the path of the message, for example `register.node`.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn node_spec_from_proto(
    at: &str,
    message: Option<&v1::NodeDescription>,
) -> Result<NodeSpec, Vec<Violation>> {
    let Some(message) = message else {
        return Err(vec![Violation::new(at, "must be given")]);
    };
    let mut found = Found::default();
    let mut name = |field: &str, text: &str, default: &str| {
        let text = if text.is_empty() { default } else { text };
        found.take(checked_name(&below(at, field), text)).unwrap_or_else(|| Name::literal("invalid"))
    };
    let own = name("name", &message.name, "");
    let region = name("region", &message.region, "");
    let cluster = name("cluster", &message.cluster, "");
    let block = name("block", &message.block, "block-0");
    let rack = name("rack", &message.rack, "rack-0");
    let accelerators = message.accelerators.as_ref().and_then(|accelerators| {
        accelerators_from_proto(&below(at, "accelerators"), accelerators)
            .map_err(|violations| found.extend(violations))
            .ok()
    });
    let labels = labels(&below(at, "labels"), message, &mut found);
    let taints = taints(&below(at, "taints"), message, &mut found);
    let pod = message.pod.as_ref().and_then(|pod| pod_position(&below(at, "pod"), pod, &mut found));
    let draft = NodeDraft {
        name: own,
        region,
        cluster,
        block,
        rack,
        address: message.address.clone(),
        accelerators,
        cpu_milli: message.cpu_milli,
        memory_bytes: message.memory_bytes,
        scratch_bytes: message.scratch_bytes,
        labels,
        taints,
        pod,
    };
    match draft.check() {
        Ok(spec) if found.is_empty() => Ok(spec),
        Ok(_) => Err(found.into_violations()),
        Err(violations) => {
            found.extend(violations.into_iter().map(|v| v.under(at)).collect());
            Err(found.into_violations())
        }
    }
}

fn labels(field: &str, message: &v1::NodeDescription, found: &mut Found) -> BTreeMap<Name, String> {
    let max = limits::NODE_LABELS_MAX;
    if message.labels.len() > max {
        found.push(Violation::limit(field, message.labels.len() as u64, 0, max as u64));
        return Default::default();
    }
    let checked =
        message.labels.iter().map(|(key, value)| checked_name(field, key).map(|key| (key, value.clone())));
    checked.filter_map(|result| found.take(result)).collect()
}

fn taints(field: &str, message: &v1::NodeDescription, found: &mut Found) -> BTreeSet<Name> {
    let max = limits::NODE_TAINTS_MAX;
    if message.taints.len() > max {
        found.push(Violation::limit(field, message.taints.len() as u64, 0, max as u64));
    }
    let texts = message.taints.iter().take(max).enumerate();
    let checked = texts.map(|(index, text)| checked_name(&format!("{field}[{index}]"), text));
    checked.filter_map(|result| found.take(result)).collect()
}

fn pod_position(at: &str, message: &v1::PodPosition, found: &mut Found) -> Option<PodPosition> {
    let pod = found.take(checked_name(&below(at, "pod"), &message.pod));
    let cube = u16::try_from(message.cube)
        .map_err(|_| Violation::limit(&below(at, "cube"), message.cube.into(), 0, u16::MAX.into()));
    let cube = found.take(cube);
    let place = match message.at.as_slice() {
        [x, y, z] => [*x, *y, *z].map(u8::try_from),
        _ => [u8::try_from(u32::MAX); 3],
    };
    let [Ok(x), Ok(y), Ok(z)] = place else {
        found.push(Violation::new(below(at, "at"), "must be three chip coordinates x, y, z of at most 255"));
        return None;
    };
    Some(PodPosition { pod: pod?, cube: cube?, at: [x, y, z] })
}

/// As a message.
#[must_use]
pub fn node_spec_to_proto(spec: &NodeSpec) -> v1::NodeDescription {
    v1::NodeDescription {
        name: spec.name.to_string(),
        region: spec.region.to_string(),
        cluster: spec.cluster.to_string(),
        block: spec.block.to_string(),
        rack: spec.rack.to_string(),
        address: spec.address.clone(),
        accelerators: spec.accelerators.as_ref().map(accelerators_to_proto),
        cpu_milli: spec.cpu_milli,
        memory_bytes: spec.memory_bytes,
        labels: spec.labels.iter().map(|(key, value)| (key.to_string(), value.clone())).collect(),
        taints: spec.taints.iter().map(Name::to_string).collect(),
        pod: spec.pod.as_ref().map(|pod| v1::PodPosition {
            pod: pod.pod.to_string(),
            cube: pod.cube.into(),
            at: pod.at.iter().map(|place| (*place).into()).collect(),
        }),
        scratch_bytes: spec.scratch_bytes,
    }
}

/// What is to change about the labels and taints that operators have set on a node.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn node_overrides_change_from_proto(
    message: &v1::SetNodeLabelsRequest,
) -> Result<NodeOverridesChange, Vec<Violation>> {
    let mut found = Found::default();
    let (labels_max, taints_max) = (limits::NODE_OVERRIDE_LABELS_MAX, limits::NODE_OVERRIDE_TAINTS_MAX);
    let mut set_labels = BTreeMap::new();
    if message.set_labels.len() > labels_max {
        let count = message.set_labels.len() as u64;
        found.push(Violation::limit("set_labels", count, 0, labels_max as u64));
    } else {
        // In the order of the keys, so that a refusal reads the same every time.
        let sorted: BTreeMap<&String, &String> = message.set_labels.iter().collect();
        for (key, value) in sorted {
            if let Some(key) = found.take(checked_name("set_labels", key)) {
                set_labels.insert(key, value.clone());
            }
        }
    }
    let change = NodeOverridesChange {
        set_labels,
        remove_labels: keys("remove_labels", &message.remove_labels, labels_max, &mut found),
        set_taints: keys("set_taints", &message.set_taints, taints_max, &mut found),
        remove_taints: keys("remove_taints", &message.remove_taints, taints_max, &mut found),
    };
    if found.is_empty() {
        found.extend(change.violations());
    }
    if found.is_empty() { Ok(change) } else { Err(found.into_violations()) }
}

fn keys(field: &str, texts: &[String], max: usize, found: &mut Found) -> BTreeSet<Name> {
    if texts.len() > max {
        found.push(Violation::limit(field, texts.len() as u64, 0, max as u64));
        return BTreeSet::new();
    }
    let checked = texts.iter().enumerate().map(|(n, text)| checked_name(&format!("{field}[{n}]"), text));
    checked.filter_map(|result| found.take(result)).collect()
}

/// What operators have set on a node, who changed it last, and when.
#[must_use]
pub fn node_overrides_to_proto(
    overrides: &NodeOverrides,
    by: &Requester,
    set_at: LogTime,
) -> v1::NodeOverrides {
    v1::NodeOverrides {
        labels: overrides.labels.iter().map(|(key, value)| (key.to_string(), value.clone())).collect(),
        taints: overrides.taints.iter().map(Name::to_string).collect(),
        changed_by: by.name.clone(),
        change_time: log_time(set_at),
    }
}

/// One worker as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// The job.
    pub job: JobId,
    /// The placement it belongs to.
    pub token: FencingToken,
    /// Its place in the gang; none for "nothing of this placement is here, and none will start".
    pub rank: Option<u32>,
    /// None while it runs or is about to.
    pub exit: Option<ExitStatus>,
    /// What became of its artifacts; none where its job wants none.
    pub artifacts: Option<Artifacts>,
}

/// One worker. `at` is the path of the message.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn worker_report_from_proto(
    at: &str,
    message: &agent::WorkerState,
) -> Result<WorkerReport, Vec<Violation>> {
    let mut found = Found::default();
    let job = found.take(job_id(&below(at, "job_id"), &message.job_id));
    let token = found.take(fencing_token_from_proto(&below(at, "token"), message.token.as_ref()));
    let rank = match message.subject {
        Some(Subject::Rank(rank)) if rank >= limits::GANG_WORKERS_MAX => {
            let max = u64::from(limits::GANG_WORKERS_MAX) - 1;
            found.push(Violation::limit(&below(at, "rank"), rank.into(), 0, max));
            None
        }
        Some(Subject::Rank(rank)) => Some(rank),
        Some(Subject::WholePlacement(agent::WholePlacement {})) => {
            if message.exit.is_none() {
                found.push(Violation::new(below(at, "exit"), "must be given with `whole_placement`"));
            }
            None
        }
        None => {
            found.push(Violation::new(below(at, "subject"), "must be given"));
            None
        }
    };
    let exit = message.exit.as_ref().and_then(|e| found.take(exit_status_from_proto(&below(at, "exit"), e)));
    let kept = message.artifacts.as_ref();
    let artifacts = kept.and_then(|kept| found.take(kept_from_proto(&below(at, "artifacts"), kept)));
    match (job, token) {
        (Some(job), Some(token)) if found.is_empty() => {
            Ok(WorkerReport { job, token, rank, exit, artifacts })
        }
        _ => Err(found.into_violations()),
    }
}

/// As a message.
#[must_use]
pub fn worker_report_to_proto(report: &WorkerReport) -> agent::WorkerState {
    agent::WorkerState {
        job_id: report.job.to_string(),
        token: Some(fencing_token_to_proto(report.token)),
        subject: Some(report.rank.map_or(Subject::WholePlacement(agent::WholePlacement {}), Subject::Rank)),
        exit: report.exit.as_ref().map(exit_status_to_proto),
        artifacts: report.artifacts.as_ref().map(kept_to_proto),
    }
}

/// What became of the artifacts of a worker. A fault of another release is taken for one of reading.
fn kept_from_proto(at: &str, message: &agent::KeptArtifacts) -> Result<Artifacts, Violation> {
    let digest = Some(message.digest.as_str()).filter(|digest| !digest.is_empty());
    let digest = digest.map(BlobDigest::parse).transpose();
    let digest = digest.map_err(|rule| Violation::new(below(at, "digest"), rule))?;
    let fault = (!message.fault.is_empty())
        .then(|| ArtifactFault::of_word(&message.fault).unwrap_or(ArtifactFault::Unreadable));
    Ok(Artifacts {
        digest,
        files: message.files,
        bytes: message.bytes,
        left_out: message.left_out,
        fault: fault.map(|fault| (fault, message.fault_path)),
    })
}

/// What became of the artifacts of a worker, as a message.
#[must_use]
pub fn kept_to_proto(artifacts: &Artifacts) -> agent::KeptArtifacts {
    agent::KeptArtifacts {
        digest: artifacts.digest.map(|digest| digest.to_string()).unwrap_or_default(),
        files: artifacts.files,
        bytes: artifacts.bytes,
        left_out: artifacts.left_out,
        fault: artifacts.fault.map(|(fault, _)| fault.word().to_owned()).unwrap_or_default(),
        fault_path: artifacts.fault.map_or(0, |(_, path)| path),
    }
}

/// What others hold of a node.
#[must_use]
pub fn foreign_load_to_proto(load: ForeignLoad) -> v1::ForeignLoad {
    v1::ForeignLoad {
        closed: load.closed,
        devices: device_set_to_proto(load.devices),
        cpu_milli: load.cpu_milli,
        memory_bytes: load.memory_bytes,
    }
}

/// What others hold of a node.
///
/// # Errors
/// When it names a device that no node has.
pub fn foreign_load_from_proto(field: &str, message: &v1::ForeignLoad) -> Result<ForeignLoad, Violation> {
    Ok(ForeignLoad {
        closed: message.closed,
        devices: device_set_from_proto(&format!("{field}.devices"), &message.devices)?,
        cpu_milli: message.cpu_milli,
        memory_bytes: message.memory_bytes,
    })
}
