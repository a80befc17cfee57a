//! Explanations as messages.

use muster_decider::{Borrower, Hindrance, JobExplanation, QuotaReport};
use muster_journal::WorkerSlot;
use muster_planner::{ClusterReport, NodeCounts, Plan, Score};
use muster_state::quota::QuotaLimit;
use muster_state::{GangStanding, JobRow, NominalCover, State};
use muster_types::{JobId, LogTime, Name};
use muster_wire::closed::{number, number_or_zero};
use muster_wire::time::{duration, log_time};
use muster_wire::v1;

use crate::render;

/// Where estimates of starts come from.
const START_BASIS: &str = "every job before it gets its nodes first, as what runs is expected to end: early, \
    as predicted, and late";

/// Why a job waits, or what would become of it.
pub(crate) fn waiting(view: &State, explanation: &JobExplanation) -> v1::Explanation {
    let blockers = explanation.blockers.iter().map(|blocker| v1::BlockingJob {
        job_id: blocker.job.to_string(),
        name: blocker.name.to_string(),
        workers: blocker.workers,
        start_time: log_time(blocker.starts_at),
        has_slipped: blocker.has_slipped,
    });
    v1::Explanation {
        reason: explanation.reason.code().to_owned(),
        message: explanation.sentence.clone(),
        policy_version: explanation.policy_version.0,
        placement: explanation.plan.as_ref().map(|plan| planned(view, plan)),
        queue_position: explanation.position.map(|position| v1::QueuePosition {
            requests_before: position.requests_before as u64,
            or_more: position.or_more,
        }),
        clusters: explanation.places.clusters.iter().map(cluster).collect(),
        quotas: explanation.quotas.iter().map(quota).collect(),
        blocking_jobs: blockers.collect(),
        start: explanation.start.map(|start| v1::StartEstimate {
            p10: log_time(start.q10),
            p50: log_time(start.q50),
            p90: start.q90.and_then(log_time),
            basis: START_BASIS.to_owned(),
        }),
        remedies: explanation
            .places
            .would_help
            .iter()
            .map(|text| v1::Remedy { message: text.clone() })
            .collect(),
        estimate: Some(render::estimate(&explanation.estimate)),
        borrowers: explanation.borrowers.iter().map(borrower).collect(),
        standing: 0,
        knows_reservations: explanation.knows_reservations,
    }
}

fn borrower(borrower: &Borrower) -> v1::Borrower {
    let available_time = match borrower.hindrance {
        Some(Hindrance::MinimumRun { until, .. }) => log_time(until),
        _ => None,
    };
    v1::Borrower {
        tenant: borrower.tenant.to_string(),
        accelerator_type: borrower.kind.to_string(),
        region: borrower.region.to_string(),
        devices_milli: borrower.devices_milli,
        jobs: borrower.jobs,
        largest_job_id: borrower.largest.to_string(),
        hindrance: borrower.hindrance.map(|hindrance| hindrance.code().to_owned()).unwrap_or_default(),
        hindrance_message: borrower.hindrance.map(|hindrance| hindrance.to_string()).unwrap_or_default(),
        available_time,
    }
}

/// Where a job is that does not wait, or how it ended.
pub(crate) fn placed(view: &State, job: JobId, row: &JobRow) -> v1::Explanation {
    let (reason, message) = render::status_of(view, job, row);
    let placement = row.placement.as_deref().map(|placement| v1::PlannedPlacement {
        region: placement.region.to_string(),
        cluster: placement.cluster.to_string(),
        accelerator_type: accelerator_type(view, &placement.slots),
        nodes: by_node(view, &placement.slots),
        score: Vec::new(),
    });
    v1::Explanation {
        reason,
        message,
        policy_version: view.policy().version.0,
        placement,
        estimate: Some(render::estimate(&row.estimate)),
        standing: number_or_zero(standing(view, job)),
        ..Default::default()
    }
}

/// Whether what a job holds is promised to its tenant; `None` while it holds nothing.
fn standing(view: &State, job: JobId) -> Option<v1::QuotaStanding> {
    NominalCover::of(view).standing(job).map(|standing| match standing {
        GangStanding::WithinNominal => v1::QuotaStanding::WithinNominal,
        GangStanding::Borrowing => v1::QuotaStanding::Borrowing,
        GangStanding::Unpromised => v1::QuotaStanding::Unpromised,
    })
}

/// How often to save a job's work, when it says how long that takes.
pub(crate) fn checkpoint_advice(view: &State, job: JobId, now: LogTime) -> Option<v1::CheckpointAdvice> {
    let advice = muster_decider::checkpoint_advice(view, job, now)?;
    Some(v1::CheckpointAdvice {
        nodes: advice.nodes,
        mttf: Some(duration(advice.mttf_ms)),
        save: Some(duration(advice.save_ms)),
        restart: Some(duration(advice.restart_ms)),
        interval: advice.interval_ms.map(duration),
        ettr_milli: advice.ettr_milli,
        advised_interval: Some(duration(advice.advised_interval_ms)),
        advised_ettr_milli: advice.advised_ettr_milli,
    })
}

fn planned(view: &State, plan: &Plan) -> v1::PlannedPlacement {
    v1::PlannedPlacement {
        region: plan.region.to_string(),
        cluster: plan.cluster.to_string(),
        accelerator_type: accelerator_type(view, &plan.workers),
        nodes: by_node(view, &plan.workers),
        score: score(&plan.score),
    }
}

fn accelerator_type(view: &State, slots: &[WorkerSlot]) -> String {
    let with_devices = slots.iter().find(|slot| !slot.devices.is_empty());
    let kind = with_devices.and_then(|slot| view.node(slot.node)?.spec.accelerators.as_ref());
    kind.map(|accelerators| accelerators.kind.to_string()).unwrap_or_default()
}

/// Workers of neighbouring ranks are on one node; a node that comes again later is named again.
fn by_node(view: &State, slots: &[WorkerSlot]) -> Vec<v1::NodeWorkers> {
    let runs = slots.chunk_by(|left, right| left.node == right.node);
    let nodes = runs.filter_map(|run| {
        let node = run.first()?.node;
        Some(v1::NodeWorkers {
            node_name: render::node_name(view, node),
            node_id: node.to_string(),
            workers: run.len() as u32,
            devices: run.iter().map(|slot| u32::from(slot.devices.count())).sum(),
        })
    });
    nodes.collect()
}

fn score(score: &Score) -> Vec<v1::ScorePart> {
    let part = |part: &muster_planner::ScorePart| v1::ScorePart {
        name: part.name.to_owned(),
        weight: part.weight.into(),
        value_milli: part.value_milli,
        points: i64::from(part.weight) * i64::from(part.value_milli),
    };
    score.parts.iter().map(part).collect()
}

fn cluster(report: &ClusterReport) -> v1::ClusterFit {
    v1::ClusterFit {
        region: report.region.to_string(),
        cluster: report.cluster.to_string(),
        accelerator_type: report.kind.as_ref().map(Name::to_string).unwrap_or_default(),
        nodes: Some(nodes(&report.nodes)),
        free_devices: report.free_devices,
        total_devices: report.total_devices,
        workers_that_fit: report.workers_that_fit,
        could_hold: report.could_hold,
        could_hold_placeable: report.could_hold_placeable,
        reserved_devices: report.reserved_devices,
        largest_domain_workers: report.largest_domain_workers,
        quota_room_milli: (report.room_milli != u64::MAX).then_some(report.room_milli),
        score: report.score.as_ref().map(score).unwrap_or_default(),
        lacking_isolation: report.lacking_isolation.iter().map(|guarantee| number(*guarantee)).collect(),
        unmet: report.unmet.iter().map(unmet).collect(),
        out_of_service_reasons: report.out_because.clone(),
    }
}

fn unmet((condition, nodes): &(String, u32)) -> v1::UnmetCondition {
    v1::UnmetCondition { condition: condition.clone(), nodes: *nodes }
}

fn nodes(counts: &NodeCounts) -> v1::NodeCounts {
    v1::NodeCounts {
        registered: counts.registered,
        not_up: counts.not_up,
        cordoned: counts.cordoned,
        wrong_labels: counts.wrong_labels,
        wrong_purchase: counts.wrong_purchase,
        tainted: counts.tainted,
        not_isolated: counts.not_isolated,
        too_small: counts.too_small,
        blocked_by_window: counts.in_window,
        kept_away: counts.kept_away,
        reserved: counts.held,
        full: counts.full,
        fit: counts.fit,
    }
}

fn quota(report: &QuotaReport) -> v1::QuotaReport {
    let block = &report.blocked_by;
    let name = |name: &Option<Name>| name.as_ref().map(Name::to_string).unwrap_or_default();
    let limit = match block.limit {
        QuotaLimit::Nominal => v1::QuotaLimit::Nominal,
        QuotaLimit::Borrowing => v1::QuotaLimit::Borrowing,
        QuotaLimit::ParentCapacity => v1::QuotaLimit::ParentCapacity,
        QuotaLimit::LentReserve => v1::QuotaLimit::LentReserve,
    };
    v1::QuotaReport {
        r#type: report.kind.to_string(),
        region: report.region.to_string(),
        wanted_milli: report.wanted_milli,
        room_milli: report.room_milli,
        short_milli: report.wanted_milli.saturating_sub(report.room_milli),
        tenant: name(&block.tenant),
        limit: number(limit),
        limit_region: name(&block.region),
        used_milli: block.used_milli,
        kept_milli: block.kept_milli,
        limit_milli: block.limit_milli,
    }
}
