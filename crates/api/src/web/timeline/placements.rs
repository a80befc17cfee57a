//! Placements of jobs as records change them.

use muster_journal::{Decision, Outcome, RearrangeCause, StopCause, WorkerSlot};
use muster_page::EndKind;
use muster_state::{Phase, State as Applied};
use muster_types::{FailureClass, JobId, LogTime, NodeId};
use std::collections::BTreeMap;

/// What a placement of a job held on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) job: JobId,
    pub(super) node: NodeId,
    pub(super) devices: u64,
    pub(super) start: LogTime,
    pub(super) end: LogTime,
    pub(super) kind: EndKind,
}

/// A placement that goes on.
struct Open {
    start: LogTime,
    /// Devices by node, in the order of the nodes.
    nodes: Box<[(NodeId, u64)]>,
    /// Why it is being stopped, once that is decided.
    cause: Option<EndKind>,
}

impl Open {
    /// Its parts if it ends so.
    fn parts(&self, job: JobId, end: LogTime, kind: EndKind) -> impl Iterator<Item = Held> + '_ {
        let start = self.start;
        self.nodes.iter().map(move |(node, devices)| Held {
            job,
            node: *node,
            devices: *devices,
            start,
            end,
            kind,
        })
    }
}

/// All placements so far.
pub(super) struct Placements {
    open: BTreeMap<JobId, Open>,
    over: Vec<Held>,
    /// Parts of placements, open and over.
    count: usize,
    count_max: usize,
}

impl Placements {
    /// None, of at most this number of parts.
    pub(super) fn new(count_max: usize) -> Placements {
        Placements { open: BTreeMap::new(), over: Vec::new(), count: 0, count_max }
    }

    /// Whether there are as many as may be kept; what comes behind them is left out.
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.count_max
    }

    /// Parts of placements that it keeps.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes over what holds devices in a state.
    pub(super) fn begin(&mut self, state: &Applied) {
        for id in state.active() {
            let Some(row) = state.job(id) else { continue };
            let Some(placement) = &row.placement else { continue };
            let cause = match &row.phase {
                Phase::Stopping(cause) => Some(of_stop(cause)),
                Phase::Pending | Phase::Starting | Phase::Running | Phase::Finished(_) => None,
            };
            self.place(id, placement.placed_at, &placement.slots);
            self.stop(id, cause);
        }
    }

    fn place(&mut self, job: JobId, start: LogTime, slots: &[WorkerSlot]) {
        self.close(job, start, EndKind::Moved);
        if self.is_full() {
            return;
        }
        let mut nodes: BTreeMap<NodeId, u64> = BTreeMap::new();
        for slot in slots {
            *nodes.entry(slot.node).or_default() += u64::from(slot.devices.count());
        }
        self.count += nodes.len();
        self.open.insert(job, Open { start, nodes: nodes.into_iter().collect(), cause: None });
    }

    /// The first cause counts: what follows from it is no other one.
    fn stop(&mut self, job: JobId, cause: Option<EndKind>) {
        if let Some(open) = self.open.get_mut(&job) {
            open.cause = open.cause.or(cause);
        }
    }

    /// Ends a placement, by the cause for which it was stopped or else by `kind`.
    fn close(&mut self, job: JobId, end: LogTime, kind: EndKind) {
        let Some(open) = self.open.remove(&job) else { return };
        let kind = match kind {
            EndKind::Succeeded | EndKind::Cancelled | EndKind::Holds => kind,
            kind => open.cause.unwrap_or(kind),
        };
        self.over.extend(open.parts(job, end, kind));
    }

    /// What a record changes.
    pub(super) fn apply(&mut self, at: LogTime, decision: &Decision) {
        match decision {
            Decision::GangPlaced { job, workers } => self.place(*job, at, workers),
            Decision::GangStopRequested { job, cause, .. } => self.stop(*job, Some(of_stop(cause))),
            Decision::Rearranged { stops, .. } => {
                for stop in stops {
                    self.stop(stop.job, Some(of_rearrangement(stop.cause)));
                }
            }
            Decision::AttemptFailed { job, class, .. } => self.stop(*job, Some(of_failure(*class))),
            Decision::JobRequeued { job, failed } => {
                self.close(*job, at, if *failed { EndKind::Failed } else { EndKind::Moved });
            }
            Decision::JobFinished { job, outcome } => self.close(
                *job,
                at,
                match outcome {
                    Outcome::Succeeded => EndKind::Succeeded,
                    Outcome::Failed { .. } => EndKind::Failed,
                    Outcome::Cancelled => EndKind::Cancelled,
                },
            ),
            // Nothing else places a gang or ends a placement.
            _ => {}
        }
    }

    /// All of them that began by `end`; what goes on is drawn up to then. A state that is later than a range, because nothing
    /// earlier is kept, has some that began behind it.
    pub(super) fn up_to(&self, end: LogTime) -> Vec<Held> {
        let open = self.open.iter().flat_map(|(job, open)| open.parts(*job, end, EndKind::Holds));
        self.over.iter().cloned().chain(open).filter(|held| held.start <= end).collect()
    }
}

fn of_stop(cause: &StopCause) -> EndKind {
    match cause {
        StopCause::Cancelled => EndKind::Cancelled,
        StopCause::WorkerFailed { .. } => EndKind::Failed,
        StopCause::Evicted { .. } => EndKind::Node,
        StopCause::Fault { class, .. } => of_failure(*class),
        StopCause::RunTimeLimit | StopCause::Deadline => EndKind::Limit,
        StopCause::Rearranged(cause) => of_rearrangement(*cause),
        StopCause::Requested { .. } => EndKind::Moved,
    }
}

fn of_rearrangement(cause: RearrangeCause) -> EndKind {
    match cause {
        RearrangeCause::Preempted { .. } => EndKind::Preempted,
        RearrangeCause::Drained { .. } => EndKind::Node,
        RearrangeCause::Moved { .. } | RearrangeCause::Resized => EndKind::Moved,
    }
}

fn of_failure(class: FailureClass) -> EndKind {
    match class {
        FailureClass::Application | FailureClass::OutOfMemory | FailureClass::LaunchFailed => EndKind::Failed,
        FailureClass::Preempted => EndKind::Preempted,
        FailureClass::NodeFault
        | FailureClass::Preflight
        | FailureClass::Evicted
        | FailureClass::Lost
        | FailureClass::BackendLost => EndKind::Node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{DeviceSet, FencingToken};

    const JOB: JobId = JobId(7);

    fn placed(nodes: &[u32]) -> Decision {
        let slot = |node: &u32| WorkerSlot { node: NodeId(*node), incarnation: 1, devices: DeviceSet(3) };
        Decision::GangPlaced { job: JOB, workers: nodes.iter().map(slot).collect() }
    }

    fn run(records: &[(u64, Decision)]) -> Vec<(u32, u64, u64, EndKind)> {
        let mut placements = Placements::new(100);
        for (at, decision) in records {
            placements.apply(LogTime(*at), decision);
        }
        let held = placements.up_to(LogTime(1_000)).into_iter();
        held.map(|held| (held.node.0, held.start.0, held.end.0, held.kind)).collect()
    }

    #[test]
    fn placements_end_by_the_first_cause() {
        let requeued = Decision::JobRequeued { job: JOB, failed: false };
        let finished = |outcome| Decision::JobFinished { job: JOB, outcome };
        let token = FencingToken::default();
        let stop = |cause| Decision::GangStopRequested { job: JOB, token, cause };
        let records = [
            (10, placed(&[1, 1, 2])),
            (20, stop(StopCause::Rearranged(RearrangeCause::Preempted { by: JobId(8) }))),
            (25, stop(StopCause::Cancelled)),
            (30, requeued.clone()),
            (40, placed(&[3])),
            (50, stop(StopCause::RunTimeLimit)),
            (60, finished(Outcome::Failed { detail: "secret".to_owned() })),
        ];
        assert_eq!(
            run(&records),
            [(1, 10, 30, EndKind::Preempted), (2, 10, 30, EndKind::Preempted), (3, 40, 60, EndKind::Limit),]
        );
        assert_eq!(run(&[(10, placed(&[1]))]), [(1, 10, 1_000, EndKind::Holds)]);
        let won = [(10, placed(&[1])), (11, stop(StopCause::Deadline)), (12, finished(Outcome::Succeeded))];
        assert_eq!(run(&won), [(1, 10, 12, EndKind::Succeeded)]);
        assert!(run(&[(1_001, placed(&[1]))]).is_empty(), "it began behind the end");
        assert!(run(&[(10, requeued)]).is_empty(), "of what was never placed nothing is known");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut placements = Placements::new(3);
        for number in 0..100 {
            let Decision::GangPlaced { workers, .. } = placed(&[1, 2]) else { unreachable!() };
            placements.apply(LogTime(number), &Decision::GangPlaced { job: JobId(number), workers });
        }
        assert!(placements.is_full());
        assert_eq!(placements.up_to(LogTime(1_000)).len(), 4);
    }
}
