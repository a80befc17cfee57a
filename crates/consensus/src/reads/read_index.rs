//! Read index on every replica, and how fresh the state applied here is known to be.
//!
//! A read that must not miss anything needs a number from the leader: how far the log may be committed,
//! confirmed by a quorum after the read was asked for. A follower asks the leader for it, once for all
//! reads that wait. The same rounds measure freshness: what is applied here up to the number of a round
//! holds everything that was committed before the round began. A round for nobody now and then keeps the
//! measure going without reads; behind a partition it stands still, and the staleness it tells of grows.
//!
//! **Invariant:** freshness is the beginning of a round whose number is applied, on this replica's own
//! monotonic clock; no clock of another machine is believed.
//! **Invariant:** a number is believed only from the replica that was asked, for its own leadership.

use super::coalescing::{Caller, Finished, Rounds};
use super::confirmation::{Confirmation, Confirmations, confirmed};
use crate::config::ReadPace;
use crate::environment::{Environment, PeerLink as _, Peers, Raft};
use crate::leader::{LeadershipHandle, NotLeader, ReadPoint};
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_planted::{Rule, breaks};
use muster_store::ReplicaNode;
use muster_types::{Leadership, ReplicaId};
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Points that may wait to be applied before no more are made without a read that needs them: a
/// replica that has much to catch up with measures on with those it has.
const UNAPPLIED_POINTS_MAX: usize = 64;
/// Callers waiting for apply between two looks for those that have gone.
const CALLERS_BETWEEN_SWEEPS: usize = 4_096;

/// The newest instant up to which the state applied here is known to be complete.
pub(crate) struct FreshAsOf {
    base: Instant,
    /// Nanoseconds from `base`, plus one; 0 for never.
    nanos: AtomicU64,
}

impl FreshAsOf {
    pub(crate) fn new(base: Instant) -> FreshAsOf {
        FreshAsOf { base, nanos: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        let nanos = self.nanos.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.base + Duration::from_nanos(nanos))
    }

    /// Everything committed before `instant` is applied here. It must be, by now.
    fn reached(&self, instant: Instant) {
        let since = instant.saturating_duration_since(self.base).as_nanos();
        let nanos = u64::try_from(since).unwrap_or(u64::MAX - 1);
        self.nanos.fetch_max(nanos.saturating_add(1), Ordering::AcqRel);
    }
}

/// The connection to the replica that was asked last, and its address.
type LastLink<E> = Mutex<Option<(ReplicaId, ReplicaNode, <<E as Environment>::Peers as Peers>::Link)>>;

/// Gets read points from the leader.
pub(crate) struct Source<E: Environment> {
    pub(crate) own: ReplicaId,
    pub(crate) raft: Raft<E>,
    pub(crate) network: E::Peers,
    pub(crate) leadership: LeadershipHandle,
    pub(crate) confirmations: Confirmations,
    /// A leader that has not answered by then is given up.
    pub(crate) answer_max: Duration,
    /// The connection to the replica that was asked last.
    pub(crate) link: LastLink<E>,
}

impl<E: Environment> Source<E> {
    async fn point(self: Arc<Self>) -> Confirmation {
        let mut view = self.leadership.subscribe();
        let (leads, leader) = {
            let view = view.borrow();
            (view.mine.is_some(), view.leader.clone())
        };
        if breaks(Rule::ReadWithoutQuorum) {
            let leadership = Leadership { term: 0, replica: self.own };
            return Ok(ReadPoint { raft_index: 0, leadership });
        }
        if leads {
            return confirmed(&self.confirmations).await;
        }
        let Some(leader) = leader.filter(|leader| leader.replica != self.own) else {
            return Err(NotLeader::default());
        };
        let Some(link) = self.link(leader.replica) else { return Err(NotLeader { leader: Some(leader) }) };
        let asked = leader.replica;
        let replaced =
            view.wait_for(|view| view.leader.as_ref().is_none_or(|leader| leader.replica != asked));
        let answered = tokio::select! {
            biased;
            answered = E::timeout(self.answer_max, link.read_index()) => answered.ok(),
            // It may never answer.
            _ = replaced => None,
        };
        match answered {
            Some(Ok(point)) if point.leadership.replica == asked => Ok(point),
            Some(Ok(point)) => {
                tracing::error!(%asked, ?point, "a replica answered with a leadership that is not its own");
                Err(NotLeader::default())
            }
            Some(Err(error)) => {
                tracing::debug!(%asked, %error, "the leader gave no read index");
                Err(NotLeader { leader: Some(leader) })
            }
            None => Err(NotLeader { leader: Some(leader) }),
        }
    }

    /// The connection to a replica; none while no membership here names it.
    fn link(&self, replica: ReplicaId) -> Option<<E::Peers as Peers>::Link> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.membership_config.get_node(&replica.0)?;
        let mut link = self.link.lock();
        match &*link {
            Some((known, at, reader)) if *known == replica && at == node => Some(reader.clone()),
            _ => {
                let reader = self.network.link(replica, node);
                *link = Some((replica, node.clone(), reader.clone()));
                Some(reader)
            }
        }
    }
}

/// A caller, and what it is told once that is applied.
type Waiting = (Caller<Confirmation>, ReadPoint);

/// Points whose entry is not applied here yet.
#[derive(Default)]
struct Unapplied {
    /// By raft index: when the newest round with it began, and who waits.
    points: BTreeMap<u64, (Instant, Vec<Waiting>)>,
    callers: usize,
    sweep_at: usize,
}

impl Unapplied {
    fn add(&mut self, point: ReadPoint, began: Instant, callers: Vec<Caller<Confirmation>>) {
        self.callers += callers.len();
        let (newest, waiting) = self.points.entry(point.raft_index).or_insert((began, Vec::new()));
        *newest = began.max(*newest);
        waiting.extend(callers.into_iter().map(|caller| (caller, point)));
        if self.callers > self.sweep_at.max(CALLERS_BETWEEN_SWEEPS) {
            // A point that is let go is one measure less, not a wrong one.
            self.points.retain(|_, (_, waiting)| {
                waiting.retain(|(caller, _)| !caller.is_closed());
                !waiting.is_empty()
            });
            self.callers = self.points.values().map(|(_, waiting)| waiting.len()).sum();
            self.sweep_at = self.callers * 2;
        }
    }

    fn applied(&mut self, index: u64, fresh: &FreshAsOf) {
        while let Some(first) = self.points.first_entry().filter(|first| *first.key() <= index) {
            let (began, waiting) = first.remove();
            fresh.reached(began);
            self.callers -= waiting.len();
            for (caller, point) in waiting {
                let _ = caller.send(Ok(point));
            }
        }
    }
}

/// Serves reads until nobody can ask any more.
pub(crate) async fn run_reads<E: Environment>(
    source: Source<E>,
    callers: mpsc::Receiver<Caller<Confirmation>>,
    mut applied: watch::Receiver<u64>,
    fresh: Arc<FreshAsOf>,
    pace: ReadPace,
) {
    let source = Arc::new(source);
    let round = || -> BoxFuture<'static, Confirmation> { Arc::clone(&source).point().boxed() };
    let mut rounds = Rounds::<E, _>::new(callers, pace.pause);
    let mut unapplied = Unapplied::default();
    let mut sample = E::instant();
    loop {
        tokio::select! {
            biased;
            finished = rounds.next(&round) => match finished {
                Some(finished) => {
                    let index = *applied.borrow();
                    settle(finished, index, &fresh, &mut unapplied);
                }
                None => return,
            },
            changed = applied.changed(), if !unapplied.points.is_empty() => {
                if changed.is_err() {
                    // The protocol has ended: callers learn it when their senders are dropped.
                    return;
                }
                let index = *applied.borrow_and_update();
                unapplied.applied(index, &fresh);
            }
            () = E::sleep(sample.saturating_duration_since(E::instant())) => {
                let now = E::instant();
                sample = now + pace.sample;
                // Reads have measured it meanwhile, where there are any.
                let began = rounds.last_began();
                let recent = began.is_some_and(|last| now.saturating_duration_since(last) * 2 < pace.sample);
                if !recent && unapplied.points.len() < UNAPPLIED_POINTS_MAX {
                    rounds.begin(&round);
                }
            }
        }
    }
}

fn settle(finished: Finished<Confirmation>, applied: u64, fresh: &FreshAsOf, unapplied: &mut Unapplied) {
    match finished.outcome {
        Ok(point) if point.raft_index > applied => unapplied.add(point, finished.began, finished.callers),
        Ok(_) => {
            fresh.reached(finished.began);
            finished.answer();
        }
        Err(_) => finished.answer(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

    use super::*;
    use tokio::sync::oneshot;

    fn point(raft_index: u64) -> ReadPoint {
        ReadPoint { raft_index, leadership: Leadership { term: 1, replica: ReplicaId(1) } }
    }

    fn finished(
        outcome: Confirmation,
        began: Instant,
    ) -> (Finished<Confirmation>, oneshot::Receiver<Confirmation>) {
        let (caller, answer) = oneshot::channel();
        (Finished { began, outcome, callers: vec![caller] }, answer)
    }

    #[test]
    fn a_round_is_worth_something_once_its_number_is_applied() {
        let fresh = FreshAsOf::new(Instant::now());
        let at = |ms| fresh.base + Duration::from_millis(ms);
        let mut unapplied = Unapplied::default();
        let (first, mut first_answer) = finished(Ok(point(7)), at(1));
        let (second, mut second_answer) = finished(Ok(point(9)), at(2));
        settle(first, 6, &fresh, &mut unapplied);
        settle(second, 6, &fresh, &mut unapplied);
        assert_eq!(fresh.get(), None);
        unapplied.applied(6, &fresh);
        assert!(first_answer.try_recv().is_err(), "not before it is applied");
        unapplied.applied(8, &fresh);
        assert_eq!((first_answer.try_recv().unwrap(), fresh.get()), (Ok(point(7)), Some(at(1))));
        assert!(second_answer.try_recv().is_err());
        unapplied.applied(9, &fresh);
        assert_eq!((second_answer.try_recv().unwrap(), fresh.get()), (Ok(point(9)), Some(at(2))));
        // One that ends late does not turn freshness back, and one that failed proves nothing.
        let (late, mut late_answer) = finished(Ok(point(9)), at(1));
        settle(late, 9, &fresh, &mut unapplied);
        let (failed, mut failed_answer) = finished(Err(NotLeader::default()), at(5));
        settle(failed, 9, &fresh, &mut unapplied);
        assert!(late_answer.try_recv().unwrap().is_ok() && failed_answer.try_recv().unwrap().is_err());
        assert_eq!(fresh.get(), Some(at(2)));
    }

    #[test]
    fn callers_that_have_gone_are_not_kept_while_apply_catches_up() {
        let mut unapplied = Unapplied::default();
        for index in 0..10 * CALLERS_BETWEEN_SWEEPS as u64 {
            let (caller, _) = oneshot::channel();
            unapplied.add(point(index), Instant::now(), vec![caller]);
            assert!(unapplied.callers <= 2 * CALLERS_BETWEEN_SWEEPS);
        }
        let kept: usize = unapplied.points.values().map(|(_, waiting)| waiting.len()).sum();
        assert_eq!(kept, unapplied.callers);
        assert!(unapplied.points.len() <= 2 * CALLERS_BETWEEN_SWEEPS);
    }
}
