//! The pod of a share as its agent knows it: what is seen of it, and whether it is being deleted. Machines of few states, which
//! are told what happens and when.
//!
//! **Invariant:** what is over stays over; what is seen of the pod later changes only how its end is told.

use super::objects::PodObject;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Why nothing more comes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It has ended, as it says itself.
    Ended,
    /// The server has no such pod.
    Gone,
    /// The lease of its node ran out.
    Lapsed,
    /// Its runner was not heard of for as long as its lease stood.
    Unheard,
}

/// Since when a pod is where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// A node was found for it.
    pub(super) placed: Option<Instant>,
    /// Its runner was started.
    pub(super) runs: Option<Instant>,
    /// Something keeps it from starting, without a break.
    pub(super) hindered: Option<Instant>,
}

/// What is seen of the pod.
#[derive(Debug)]
pub(super) enum Progress {
    /// It has not been seen.
    Unseen,
    /// It is there.
    Live { pod: Arc<PodObject>, times: Times },
    /// Nothing more comes of it.
    Over { pod: Option<Arc<PodObject>>, since: Instant, cause: Cause },
}

impl Progress {
    /// The pod as it was last seen.
    pub(super) fn pod(&self) -> Option<&Arc<PodObject>> {
        match self {
            Progress::Unseen => None,
            Progress::Live { pod, .. } => Some(pod),
            Progress::Over { pod, .. } => pod.as_ref(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Progress::Over { .. })
    }

    /// The pod is seen; `is_hindered` where something keeps it from starting.
    pub(super) fn seen(&mut self, seen: &Arc<PodObject>, is_hindered: bool, now: Instant) {
        if let Progress::Over { pod, .. } = self {
            *pod = Some(Arc::clone(seen));
            return;
        }
        if seen.phase.is_over() || seen.terminated.is_some() {
            *self = Progress::Over { pod: Some(Arc::clone(seen)), since: now, cause: Cause::Ended };
            return;
        }
        let before = if let Progress::Live { times, .. } = self { *times } else { Times::default() };
        let times = Times {
            placed: before.placed.or_else(|| seen.node.is_some().then_some(now)),
            runs: before.runs.or_else(|| seen.is_running.then_some(now)),
            hindered: is_hindered.then(|| before.hindered.unwrap_or(now)),
        };
        *self = Progress::Live { pod: Arc::clone(seen), times };
    }

    /// Nothing more comes of it.
    pub(super) fn end(&mut self, cause: Cause, now: Instant) {
        if !self.is_over() {
            let pod = self.pod().cloned();
            *self = Progress::Over { pod, since: now, cause };
        }
    }
}

/// Whether the server has been asked to delete the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    NotAsked,
    /// The call runs since.
    InFlight {
        at: Instant,
    },
    /// The call has ended; it began at this time.
    Asked {
        at: Instant,
    },
}

impl Deletion {
    /// Begins a call unless one runs or began less than `pause` ago; whether it does.
    pub(super) fn begin(&mut self, now: Instant, pause: Duration) -> bool {
        let may = match self {
            Deletion::NotAsked => true,
            Deletion::InFlight { .. } => false,
            Deletion::Asked { at } => now.saturating_duration_since(*at) >= pause,
        };
        if may {
            *self = Deletion::InFlight { at: now };
        }
        may
    }

    /// The call has ended, however.
    pub(super) fn ended(&mut self) {
        if let Deletion::InFlight { at } = *self {
            *self = Deletion::Asked { at };
        }
    }

    pub(super) fn is_in_flight(self) -> bool {
        matches!(self, Deletion::InFlight { .. })
    }

    pub(super) fn is_asked(self) -> bool {
        self != Deletion::NotAsked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::{ContainerEnd, Phase};

    fn pod(change: impl FnOnce(&mut PodObject)) -> Arc<PodObject> {
        let mut pod = PodObject { name: "p".into(), ..PodObject::default() };
        change(&mut pod);
        Arc::new(pod)
    }

    #[test]
    fn each_step_counts_from_the_first_time_that_it_is_seen() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut progress = Progress::Unseen;
        let times = |progress: &Progress| match progress {
            Progress::Live { times, .. } => *times,
            other => panic!("{other:?}"),
        };
        progress.seen(&pod(|_| ()), false, after(1));
        assert_eq!(times(&progress), Times::default());
        let placed = |pod: &mut PodObject| pod.node = Some("n1".into());
        progress.seen(&pod(placed), true, after(2));
        progress.seen(&pod(placed), true, after(3));
        let expected = Times { placed: Some(after(2)), runs: None, hindered: Some(after(2)) };
        assert_eq!(times(&progress), expected);
        let runs = |pod: &mut PodObject| {
            placed(pod);
            pod.is_running = true;
        };
        progress.seen(&pod(runs), false, after(4));
        progress.seen(&pod(runs), true, after(5));
        let expected = Times { placed: Some(after(2)), runs: Some(after(4)), hindered: Some(after(5)) };
        assert_eq!(times(&progress), expected, "a hindrance counts without a break");
    }

    #[test]
    fn what_is_over_stays_over() {
        let begun = Instant::now();
        let late = begun + Duration::from_secs(9);
        let ended = |pod: &mut PodObject| pod.terminated = Some(ContainerEnd::default());
        let failed = |pod: &mut PodObject| pod.phase = Phase::Failed;
        for end in [
            |progress: &mut Progress, seen: Arc<PodObject>, at: Instant| progress.seen(&seen, false, at),
            |progress: &mut Progress, _: Arc<PodObject>, at: Instant| progress.end(Cause::Gone, at),
        ] {
            for seen in [pod(ended), pod(failed)] {
                let mut progress = Progress::Unseen;
                progress.seen(&pod(|_| ()), false, begun);
                end(&mut progress, seen, begun);
                progress.seen(&pod(|_| ()), false, late);
                progress.end(Cause::Lapsed, late);
                let Progress::Over { since, cause, .. } = &progress else { panic!("{progress:?}") };
                assert!(*since == begun && *cause != Cause::Lapsed);
                assert!(progress.pod().is_some());
            }
        }
    }

    #[test]
    fn calls_that_delete_have_a_pause_between_them() {
        let begun = Instant::now();
        let pause = Duration::from_secs(10);
        let mut deletion = Deletion::NotAsked;
        assert!(deletion.begin(begun, pause) && deletion.is_in_flight());
        assert!(!deletion.begin(begun + 2 * pause, pause), "one call at a time");
        deletion.ended();
        assert!(deletion.is_asked() && !deletion.is_in_flight());
        assert!(!deletion.begin(begun + pause / 2, pause) && deletion.begin(begun + pause, pause));
    }
}
