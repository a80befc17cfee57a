//! Follows who leads.
//!
//! **Invariant:** `mine` is set only while this replica was elected and a quorum was heard recently;
//! a leader that hears nobody must not go on deciding as if it led.

use crate::config::Timing;
use crate::environment::{Environment, Metrics};
use crate::leader::{Leader, LeadershipView};
use muster_planted::{Rule, breaks};
use muster_types::{Leadership, ReplicaId};
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use openraft::{Instant as _, RaftMetrics, ServerState};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long the quorum has been silent; `None` where that says nothing: not leading, or alone.
pub(crate) fn quorum_silence<E: Environment>(
    metrics: &RaftMetrics<E>,
    leading_since: Instant,
) -> Option<Duration> {
    if metrics.state != ServerState::Leader || metrics.membership_config.voter_ids().count() <= 1 {
        return None;
    }
    Some(match &metrics.last_quorum_acked {
        Some(acked) => acked.elapsed(),
        None => E::instant().saturating_duration_since(leading_since),
    })
}

fn view_of<E: Environment>(
    metrics: &RaftMetrics<E>,
    leading_since: Instant,
    timing: Timing,
) -> LeadershipView {
    let stopped = metrics.running_state.is_err();
    // The protocol refuses proposals without a lease: before the first answer of a quorum, and
    // a lease after the last.
    let unheard = metrics.last_quorum_acked.is_none();
    let silence = quorum_silence(metrics, leading_since);
    let deaf = silence.is_some_and(|silence| unheard || silence > timing.lease())
        && !breaks(Rule::HeartbeatWithoutQuorum);
    // Forming a cluster writes its first entry under a vote of term 0 that nobody granted; the
    // protocol counts its writer as leader until the first election.
    let elected = metrics.state == ServerState::Leader
        && metrics.vote.leader_id.term > 0
        && metrics.vote.committed
        && metrics.vote.leader_id.node_id == metrics.id;
    let mine = (elected && !deaf && !stopped)
        .then_some(Leadership { term: metrics.vote.leader_id.term, replica: ReplicaId(metrics.id) });
    let leader =
        metrics.current_leader.filter(|leader| !stopped && (*leader != metrics.id || mine.is_some()));
    let leader = leader.map(|leader| Leader {
        replica: ReplicaId(leader),
        client_endpoint: metrics.membership_config.get_node(&leader).map(|node| node.client_endpoint.clone()),
    });
    LeadershipView { term: metrics.current_term, leader, mine, since: E::instant() }
}

fn is_same(one: &LeadershipView, other: &LeadershipView) -> bool {
    one.term == other.term && one.leader == other.leader && one.mine == other.mine
}

/// Keeps the view true until the protocol stops.
pub(crate) async fn watch_leadership<E: Environment>(
    mut metrics: Metrics<E>,
    timing: Timing,
    view: watch::Sender<LeadershipView>,
) {
    let mut leading_since = E::instant();
    let mut led = false;
    loop {
        let (now, running) = {
            let metrics = metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader;
            if leads && !led {
                leading_since = E::instant();
            }
            led = leads;
            (view_of(&metrics, leading_since, timing), metrics.running_state.is_ok())
        };
        view.send_if_modified(|current| {
            let changed = !is_same(current, &now);
            if changed {
                *current = now;
            }
            changed
        });
        if !running {
            return;
        }
        // Silence makes no event, so a leader looks at the clock as well.
        let pause = if led { timing.lease() / 4 } else { Duration::from_secs(3_600) };
        tokio::select! {
            biased;
            changed = metrics.changed() => {
                if changed.is_err() {
                    view.send_modify(|current| *current = LeadershipView::unknown(E::instant()));
                    return;
                }
            }
            () = E::sleep(pause) => {}
        }
    }
}
