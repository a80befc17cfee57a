//! What a record is to receivers of notifications: most are nothing to them.

use muster_journal::{Decision, Outcome, RankUpdate, RearrangeCause, StopCause};
use muster_state::{Phase, State};
use muster_types::policy::NotificationEvent;
use muster_types::{JobId, Name, NodeId, Requester, ScheduleKey};
use std::sync::Arc;

use crate::watch::changes::Change;

/// What a record may be to receivers, known before it is applied. Whether it was that is known from the changes that it made:
/// a record that is refused makes none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// Workers of a gang that had not started have.
    Starting(JobId),
    /// A job is over.
    Over(JobId),
    /// This happens to a job.
    Job(JobId, NotificationEvent),
    /// Jobs are preempted.
    Preempted(Vec<JobId>),
    /// A node registers; a new one has no id yet.
    Registered(Name),
    /// This happens to a node.
    Node(NodeId, NotificationEvent),
    /// A schedule that made jobs makes none any more.
    Suspended {
        /// Which.
        schedule: ScheduleKey,
        /// Who asked; nobody when the replicas did it.
        by: Requester,
        /// Why.
        reason: Arc<str>,
    },
}

impl Happening {
    pub(super) fn before(state: &State, decision: &Decision) -> Option<Happening> {
        use NotificationEvent as E;
        Some(match decision {
            Decision::WorkersReported { job, updates, .. } => {
                let starts = updates.iter().any(|(_, update)| *update == RankUpdate::Running)
                    && state.job(*job).is_some_and(|row| row.phase == Phase::Starting);
                return starts.then_some(Happening::Starting(*job));
            }
            Decision::JobFinished { job, .. } => Happening::Over(*job),
            Decision::JobRequeued { job, failed: true } => Happening::Job(*job, E::JobRetried),
            // What becomes of it is told once it has ended.
            Decision::GangStopRequested { cause: StopCause::Fault { class, .. }, .. }
                if class.is_of_application() =>
            {
                return None;
            }
            Decision::GangStopRequested {
                job,
                cause: StopCause::Evicted { .. } | StopCause::Fault { .. },
                ..
            } => Happening::Job(*job, E::JobEvicted),
            Decision::Rearranged { stops, .. } => {
                let is_preempted = |cause: &RearrangeCause| matches!(cause, RearrangeCause::Preempted { .. });
                let preempted: Vec<JobId> =
                    stops.iter().filter(|stop| is_preempted(&stop.cause)).map(|stop| stop.job).collect();
                Happening::Preempted(preempted)
            }
            Decision::NodeRegistered { spec, .. } => Happening::Registered(spec.name.clone()),
            Decision::NodeLost { node, .. } => Happening::Node(*node, E::NodeDown),
            Decision::NodeHealthChanged { node, events, .. } => {
                let lasts = events.iter().any(|event| event.action.lasts());
                return lasts.then_some(Happening::Node(*node, E::NodeUnhealthy));
            }
            Decision::NodeQuarantineSet { node, reason, .. } => {
                let was = state.restriction(*node).is_some_and(|row| row.quarantine.is_some());
                match (was, reason.is_some()) {
                    (false, true) => Happening::Node(*node, E::NodeQuarantined),
                    (true, false) => Happening::Node(*node, E::NodeReleased),
                    _ => return None,
                }
            }
            Decision::NodeDrainSet { node, drain: Some(_), .. } => Happening::Node(*node, E::NodeDraining),
            Decision::ScheduleSuspensionSet { by, schedule, reason: Some(reason), .. } => {
                // An operator's takes the place of another one, and stops nothing that was not stopped.
                let made_jobs = state.schedule(schedule).is_some_and(|row| row.suspension.is_none());
                let (schedule, by, reason) = (schedule.clone(), by.clone(), Arc::from(reason.as_str()));
                return made_jobs.then_some(Happening::Suspended { schedule, by, reason });
            }
            _ => return None,
        })
    }

    /// What a change of the record is to receivers.
    pub(super) fn of(&self, change: &Change) -> Option<NotificationEvent> {
        match (self, change) {
            (Happening::Starting(job), Change::Job { id, row, .. }) => {
                (job == id && row.phase == Phase::Running).then_some(NotificationEvent::JobStarted)
            }
            (Happening::Over(job), Change::Job { id, row, .. }) if job == id => match &row.phase {
                Phase::Finished(Outcome::Succeeded) => Some(NotificationEvent::JobSucceeded),
                Phase::Finished(Outcome::Failed { .. }) => Some(NotificationEvent::JobFailed),
                Phase::Finished(Outcome::Cancelled) => Some(NotificationEvent::JobCancelled),
                _ => None,
            },
            (Happening::Job(job, event), Change::Job { id, .. }) => (job == id).then_some(*event),
            (Happening::Preempted(jobs), Change::Job { id, row, .. }) => {
                (matches!(row.phase, Phase::Stopping(_)) && jobs.contains(id))
                    .then_some(NotificationEvent::JobPreempted)
            }
            (Happening::Registered(name), Change::Node { row, .. }) => {
                (row.spec.name == *name).then_some(NotificationEvent::NodeUp)
            }
            (Happening::Node(node, event), Change::Node { id, .. }) => (node == id).then_some(*event),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_journal::{Estimate, NodeLostCause};
    use muster_state::JobRow;
    use muster_types::LogTime;
    use std::sync::Arc;

    fn job(id: u64, phase: Phase) -> Change {
        let spec = Arc::new(crate::sample::job("train", 1));
        let row = JobRow { phase, ..JobRow::submitted(LogTime(0), Estimate::default(), &spec) };
        Change::Job { id: JobId(id), row: Arc::new(row), spec, metadata: None, before: None }
    }

    #[test]
    fn an_end_is_told_by_its_outcome_and_of_its_job_alone() {
        let over = |outcome: &Outcome| {
            let decision = Decision::JobFinished { job: JobId(3), outcome: outcome.clone() };
            Happening::before(&State::default(), &decision).expect("somebody wants to know")
        };
        let failed = Outcome::Failed { detail: "code 1".to_owned() };
        let ends = [
            (Outcome::Succeeded, NotificationEvent::JobSucceeded),
            (failed, NotificationEvent::JobFailed),
            (Outcome::Cancelled, NotificationEvent::JobCancelled),
        ];
        for (outcome, event) in ends {
            assert_eq!(over(&outcome).of(&job(3, Phase::Finished(outcome.clone()))), Some(event));
            assert_eq!(over(&outcome).of(&job(4, Phase::Finished(outcome.clone()))), None);
            assert_eq!(over(&outcome).of(&Change::JobForgotten(JobId(3))), None);
        }
    }

    #[test]
    fn what_changes_nothing_for_anybody_is_told_to_nobody() {
        let state = State::default();
        let none = [
            Decision::LeaderStarted,
            Decision::JobRequeued { job: JobId(3), failed: false },
            Decision::NodeQuarantineSet {
                request: None,
                by: muster_types::Requester::default(),
                node: NodeId(1),
                reason: None,
            },
            Decision::NodeDrainSet {
                request: None,
                by: muster_types::Requester::default(),
                node: NodeId(1),
                drain: None,
                reason: None,
            },
            Decision::NotificationsDelivered { progress: Vec::new() },
            // There is no such schedule.
            Decision::ScheduleSuspensionSet {
                request: None,
                by: Requester::default(),
                schedule: ScheduleKey { tenant: Name::literal("lab"), name: Name::literal("nightly") },
                reason: Some("its owner's token was revoked".to_owned()),
            },
        ];
        for decision in none {
            assert_eq!(Happening::before(&state, &decision), None, "{}", decision.name());
        }
        let lost = Decision::NodeLost { node: NodeId(1), incarnation: 1, cause: NodeLostCause::LeaseExpired };
        let lost = Happening::before(&state, &lost).expect("somebody wants to know");
        assert_eq!(lost, Happening::Node(NodeId(1), NotificationEvent::NodeDown));
        // The jobs that were on the node are told by what becomes of them.
        assert_eq!(lost.of(&job(3, Phase::Pending)), None);
    }
}
