//! Records in a few words.

use std::fmt::Write as _;

use muster_journal::{Decision, Outcome, RankUpdate, RearrangeCause, StopCause, SubmittedPart, WorkerSlot};
use muster_types::health::Observation;
use muster_types::policy::NotificationProgress;
use muster_types::{Name, ScheduleRun};

use super::World;

impl World {
    pub(super) fn short(&self, decision: &Decision) -> String {
        match decision {
            Decision::ClusterCreated { generation, .. } => format!(" generation={generation}"),
            Decision::LeaderStarted => format!(" {}", self.speculation.leadership().replica),
            Decision::DigestRecorded { .. } => String::new(),
            Decision::JobsSubmitted { specs, .. } => {
                let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
                match names.len() {
                    1 => format!(" {}", names[0]),
                    many => format!(" {} x{many}", names[0]),
                }
            }
            Decision::ArraysSubmitted { parts, .. } => {
                let part = |part: &SubmittedPart| match &part.array {
                    Some(array) => format!(" {} x{} ({array})", part.spec.name, array.size()),
                    None => format!(" {}", part.spec.name),
                };
                parts.iter().map(part).collect()
            }
            Decision::ArrayMembersCreated { array, first, count } => {
                let from = first.map(|ordinal| format!(" from {ordinal}")).unwrap_or_default();
                format!(" {} x{count}{from}", self.array_label(*array))
            }
            Decision::ArrayReleased { array } => format!(" {}", self.array_label(*array)),
            Decision::ArrayMembersFailed { array, detail } => {
                format!(" {}: {detail}", self.array_label(*array))
            }
            Decision::ArraysControlled { by, control, arrays, jobs, .. } => {
                let arrays: Vec<String> = arrays.iter().map(|array| self.array_label(*array)).collect();
                format!(" {control} {}{}", arrays.join(" "), self.controlled(jobs, by))
            }
            Decision::ArrayThrottleSet { by, array, throttle, .. } => {
                let most = throttle.map_or("none".to_owned(), |most| most.to_string());
                format!(" {} {most}{}", self.array_label(*array), self.controlled(&[], by))
            }
            Decision::JobCancelRequested { by, jobs, .. } => self.controlled(jobs, by),
            Decision::JobHoldSet { by, jobs, held, .. } => {
                format!("{} {}", self.controlled(jobs, by), if *held { "held" } else { "released" })
            }
            Decision::JobRequeueRequested { by, jobs, suspended, .. } => {
                let how = if *suspended { " suspended" } else { "" };
                format!("{}{how}", self.controlled(jobs, by))
            }
            Decision::JobModified { by, job, changes, .. } => {
                let changes: Vec<String> = changes.iter().map(|change| format!(" {change}")).collect();
                format!("{}{}", self.controlled(&[*job], by), changes.concat())
            }
            Decision::NodeRegistered { spec, holder } => {
                let row = self.state().node_named(&spec.name).and_then(|id| self.state().node(id)).unwrap();
                format!(" {} holder={} incarnation={}", spec.name, holder.0, row.incarnation)
            }
            Decision::NodeCordonSet { node, cordoned, reason, .. } => {
                let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!(" {} {}{why}", self.node_label(*node), if *cordoned { "cordoned" } else { "open" })
            }
            Decision::NodeLost { node, incarnation, cause } => {
                format!(" {} incarnation={incarnation} {cause:?}", self.node_label(*node))
            }
            Decision::WorkersReported { node, job, updates, .. } => {
                let mut text = format!(" {} {}", self.node_label(*node), self.label(*job));
                for (rank, update) in updates {
                    match update {
                        RankUpdate::Running => write!(text, " {rank}=running").unwrap(),
                        RankUpdate::Ready => write!(text, " {rank}=ready").unwrap(),
                        RankUpdate::Exited(exit) => write!(text, " {rank}=({exit})").unwrap(),
                    }
                }
                text
            }
            Decision::GangPlaced { job, workers } => {
                format!(" {} on {}", self.label(*job), self.slots(workers))
            }
            Decision::GangStopRequested { job, cause, .. } => {
                format!(" {}: {}", self.label(*job), self.cause(cause))
            }
            Decision::JobRequeued { job, failed } => {
                format!(" {}, {}", self.label(*job), if *failed { "a failure" } else { "not to blame" })
            }
            Decision::JobFinished { job, outcome } => {
                format!(" {}: {}", self.label(*job), outcome_text(outcome))
            }
            Decision::HistoryPruned { .. } => String::new(),
            Decision::PolicySet { .. }
            | Decision::NodeAdmissionSet { .. }
            | Decision::NodeApprovalSet { .. }
            | Decision::CertificateRevoked { .. } => String::new(),
            Decision::TokenCreated { by, token, grant, lifetime_ms, .. } => {
                let tenant =
                    grant.tenant.as_ref().map(|tenant| format!(" tenant={tenant}")).unwrap_or_default();
                format!(" {token} {} {}{tenant} for {lifetime_ms}ms by {by}", grant.name, grant.role)
            }
            Decision::TokenRevoked { by, token, .. } => format!(" {token} by {by}"),
            Decision::ExecOpened { by, job, rank, command, .. } => {
                format!(" {} rank={rank} by {by}: {command}", self.label(*job))
            }
            Decision::QuotaRequested { by, grant, .. } | Decision::QuotaGranted { by, grant, .. } => {
                let region = grant.region.as_ref().map(|region| format!("@{region}")).unwrap_or_default();
                let (tenant, kind, milli) = (&grant.tenant, &grant.kind, grant.amount_milli);
                format!(" {tenant} {kind}{region} +{milli} by {by}")
            }
            Decision::QuotaAnswered { by, id, approved, .. } => {
                format!(" {id} {} by {by}", if *approved { "approved" } else { "denied" })
            }
            Decision::QuotaGrantsEnded { ids } => ids.iter().map(|id| format!(" {id}")).collect(),
            Decision::BookingCreated { by, name, spec, nodes, .. } => {
                let nodes: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
                let whose = spec.tenant.as_ref().map_or("maintenance", |owner| owner.as_str());
                let place = spec.part().map_or_else(|| nodes.join(" "), ToString::to_string);
                format!(" {name} for {whose} on {place} by {by}")
            }
            Decision::BookingDeleted { by, name, .. } => format!(" {name} by {by}"),
            Decision::BookingOpened { name } => format!(" {name}"),
            Decision::FallbackOpened { job } => format!(" {}", self.label(*job)),
            Decision::BookingEnded { name, cause } => format!(" {name}: {cause}"),
            Decision::BookingMoved { name, nodes } => {
                let nodes: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
                format!(" {name} to {}", nodes.join(" "))
            }
            Decision::ArtifactsKept { job, rank, artifacts, .. } => {
                let fault = artifacts.fault.map(|(fault, path)| format!(" {fault} at path {path}"));
                let (files, bytes) = (artifacts.files, artifacts.bytes);
                format!(
                    " {} rank={rank}: {files} files {bytes} bytes{}",
                    self.label(*job),
                    fault.unwrap_or_default()
                )
            }
            Decision::PortForwardOpened { by, job, rank, port, .. } => {
                format!(" {} rank={rank} port={port} by {by}", self.label(*job))
            }
            Decision::ScheduleSet { by, schedule, is_new, .. } => {
                let how = if *is_new { "new" } else { "changed" };
                format!(" {} {how} [{}] {} by {by}", schedule.key, schedule.cron, schedule.zone)
            }
            Decision::ScheduleDeleted { by, schedule, .. } => format!(" {schedule} by {by}"),
            Decision::ScheduleSuspensionSet { by, schedule, reason, .. } => {
                format!(" {schedule} {} by {by}", reason.as_deref().unwrap_or("resumed"))
            }
            Decision::FleetHoldSet { target, hold, .. } => {
                let how = hold.as_ref().map_or("released".to_owned(), |hold| hold.reason.clone());
                format!(" {target}: {how}")
            }
            Decision::FleetHoldEnded { target } => format!(" {target}"),
            Decision::SchedulePlanned { schedule, next } => format!(" {schedule} at {next}"),
            Decision::ScheduleRan { schedule, due, run, .. } => {
                let due = due.map_or("asked for".to_owned(), |due| due.to_string());
                match run {
                    ScheduleRun::Submitted(job) => format!(" {schedule} {due}: {}", self.label(*job)),
                    ScheduleRun::Skipped(why) => format!(" {schedule} {due}: {why}"),
                }
            }
            Decision::SessionResumed { node, incarnation } => {
                format!(" {} incarnation={incarnation}", self.node_label(*node))
            }
            Decision::AgentStarted { node, incarnation, .. } => {
                format!(" {} incarnation={incarnation}", self.node_label(*node))
            }
            Decision::Rearranged { stops, promises } => {
                let mut text = String::new();
                for stop in stops {
                    let cause = self.cause(&StopCause::Rearranged(stop.cause));
                    write!(text, " stop {} ({cause});", self.label(stop.job)).unwrap();
                }
                for promise in promises {
                    let slots = self.slots(&promise.workers);
                    write!(text, " promise {} {slots};", self.label(promise.job)).unwrap();
                }
                text.trim_end_matches(';').to_string()
            }
            Decision::PromiseDropped { job }
            | Decision::JobReleased { job }
            | Decision::CheckpointCommitted { job, step: None, .. } => format!(" {}", self.label(*job)),
            Decision::CheckpointCommitted { job, step: Some(step), .. } => {
                format!(" {} step={step}", self.label(*job))
            }
            Decision::FormatRaised { format, .. } => format!(" {format}"),
            Decision::ClusterRecovered { generation } => format!(" generation={generation}"),
            Decision::NodeForgotten { node, .. } => format!(" {node}"),
            Decision::JobContractsSet { contracts } => {
                contracts.iter().map(|(job, _)| format!(" {}", self.label(*job))).collect()
            }
            Decision::JobMetadataSet { runs } => runs
                .iter()
                .map(|(first, count, metadata)| {
                    let labels: Vec<String> =
                        metadata.labels.iter().map(|(key, value)| format!(" {key}={value}")).collect();
                    let labels = labels.concat();
                    format!(" {}x{count} by {}{labels};", self.label(*first), metadata.creator())
                })
                .collect::<String>()
                .trim_end_matches(';')
                .to_owned(),
            Decision::AttemptFailed { job, class, rank, node, detail, streak, wait_until, avoid, .. } => {
                let mut text = format!(" {}: {class}", self.label(*job));
                rank.inspect(|rank| write!(text, " of rank {rank}").unwrap());
                node.inspect(|node| write!(text, " on {}", self.node_label(*node)).unwrap());
                write!(text, " ({detail}); {streak} in a row").unwrap();
                wait_until.inspect(|at| write!(text, ", waits {} ms", at.since_ms(self.now)).unwrap());
                avoid.inspect(|at| write!(text, ", avoids it {} s", at.since_ms(self.now) / 1_000).unwrap());
                text
            }
            Decision::SparesTaken { job, ranks, .. } => {
                let ranks: Vec<String> =
                    ranks.iter().map(|(rank, slot)| format!("{rank} to {}", self.slots(&[*slot]))).collect();
                format!(" {}: {}", self.label(*job), ranks.join(", "))
            }
            Decision::StragglerNoted { job, rank, slow_milli, .. } => match slow_milli {
                Some(milli) => format!(" {}: rank {rank} takes {milli} thousandths", self.label(*job)),
                None => format!(" {}: rank {rank} keeps up", self.label(*job)),
            },
            Decision::NodeHealthChanged { node, health, events, .. } => {
                let mut text = format!(" {}", self.node_label(*node));
                for event in events {
                    write!(text, " {} {};", seen(&event.observation), event.action).unwrap();
                }
                let conditions: Vec<String> = health
                    .conditions
                    .iter()
                    .map(|c| format!("{}={}", seen(&c.observation), c.action))
                    .collect();
                format!("{text} now [{}]", conditions.join(" "))
            }
            Decision::ForeignLoadSet { node, load, .. } => format!(
                " {} closed={} devices={} cpu={} memory={}",
                self.node_label(*node),
                load.closed,
                load.devices.count(),
                load.cpu_milli,
                load.memory_bytes
            ),
            Decision::NodeDrainSet { node, drain, reason, .. } => match drain {
                None => format!(" {} ended", self.node_label(*node)),
                Some(drain) => {
                    let deadline = drain.deadline.map(|at| at.since_ms(self.now) / 1_000);
                    let deadline = deadline.map_or("none".to_string(), |s| format!("+{s}s"));
                    let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                    format!(" {} {} deadline={deadline}{why}", self.node_label(*node), drain.cause.name())
                }
            },
            Decision::NodeQuarantineSet { node, reason, .. } => {
                format!(" {} {}", self.node_label(*node), reason.as_deref().unwrap_or("ended"))
            }
            Decision::NodeRepairSet { node, step, .. } => {
                format!(" {} {}", self.node_label(*node), step.name())
            }
            Decision::NodeOverridesSet { node, overrides, .. } => {
                let labels = overrides.labels.iter().map(|(key, value)| format!(" {key}={value}"));
                let taints = overrides.taints.iter().map(|key| format!(" {key}:NoSchedule"));
                let set: String = labels.chain(taints).collect();
                let set = if set.is_empty() { " nothing" } else { set.as_str() };
                format!(" {} operators set{set}", self.node_label(*node))
            }
            Decision::HealthPolicySet { .. } => String::new(),
            Decision::NotificationsDelivered { progress } => {
                let one = |(name, now): &(Name, NotificationProgress)| {
                    let counts = (now.acknowledged, now.given_up, now.skipped);
                    format!(
                        " {name}@{} acknowledged={} given-up={} skipped={}",
                        now.delivered, counts.0, counts.1, counts.2
                    )
                };
                progress.iter().map(one).collect()
            }
            Decision::TurnsChanged { bursts } => {
                bursts.iter().map(|(group, _)| format!(" {}", self.label(*group))).collect()
            }
        }
    }

    pub(super) fn slots(&self, workers: &[WorkerSlot]) -> String {
        let texts: Vec<String> = workers
            .iter()
            .map(|slot| {
                let devices: Vec<String> = slot.devices.iter().map(|d| d.to_string()).collect();
                format!("{}[{}]", self.node_label(slot.node), devices.join(","))
            })
            .collect();
        texts.join(" ")
    }

    pub(super) fn cause(&self, cause: &StopCause) -> String {
        match cause {
            StopCause::Cancelled => "cancelled".into(),
            StopCause::WorkerFailed { rank, exit } => format!("rank {rank} failed ({exit})"),
            StopCause::Evicted { node } => format!("evicted from {}", self.node_label(*node)),
            StopCause::Fault { class, node, detail } => {
                format!("{class} on {}: {detail}", self.node_label(*node))
            }
            StopCause::RunTimeLimit => "run-time limit".into(),
            StopCause::Deadline => "deadline".into(),
            StopCause::Requested { suspended: true } => "suspended".into(),
            StopCause::Requested { suspended: false } => "requeued".into(),
            StopCause::Rearranged(RearrangeCause::Preempted { by }) => {
                format!("preempted by {}", self.label(*by))
            }
            StopCause::Rearranged(RearrangeCause::Moved { by }) => format!("moved for {}", self.label(*by)),
            StopCause::Rearranged(RearrangeCause::Resized) => "resized".into(),
            StopCause::Rearranged(RearrangeCause::Drained { node }) => {
                format!("{} is drained", self.node_label(*node))
            }
        }
    }
}

fn seen(observation: &Observation) -> String {
    match observation.device {
        Some(device) => format!("{}@{device}", observation.finding),
        None => observation.finding.to_string(),
    }
}

pub(super) fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Succeeded => "succeeded".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Failed { detail } => format!("failed, {detail}"),
    }
}
