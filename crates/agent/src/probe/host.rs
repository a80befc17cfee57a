//! The probes that this host takes part in, on behalf of the agent's loop.

use super::load::Load;
use super::{Limits, Measured, Plan, listen, run};
use crate::limits;
use muster_types::probe::{Link, LinkOutcome};
use muster_wire::convert::{probe_link_to_proto, probe_ring_to_proto};
use muster_wire::v1;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

type Outgoing = mpsc::Sender<v1::SessionRequest>;

/// Probes that wait for their beginning, and those that run.
pub(crate) struct Prober {
    listen_at: Option<SocketAddr>,
    waiting: BTreeMap<u64, oneshot::Sender<Plan>>,
    running: JoinSet<()>,
}

impl Prober {
    pub(crate) fn new(listen_at: Option<SocketAddr>) -> Prober {
        Prober { listen_at, waiting: BTreeMap::new(), running: JoinSet::new() }
    }

    /// Listens for a probe and says where; then measures, once it is told with whom.
    pub(crate) fn listen(&mut self, probe_id: u64, outgoing: Outgoing) {
        while self.running.try_join_next().is_some() {}
        self.waiting.retain(|_, waiting| !waiting.is_closed());
        let failure = match self.listen_at {
            Some(at) if self.running.len() < limits::PROBES_MAX => {
                let (begin, told) = oneshot::channel();
                self.waiting.insert(probe_id, begin);
                self.running.spawn(take_part(probe_id, at, told, outgoing));
                return;
            }
            Some(_) => format!("it takes part in {} probes already", limits::PROBES_MAX),
            None => "its workers run on other machines".to_owned(),
        };
        // A session that takes nothing is given up by those who speak more often.
        let _ = outgoing.try_send(listening(probe_id, Err(failure)));
    }

    /// Everybody listens.
    pub(crate) fn begin(&mut self, probe_id: u64, plan: Plan) {
        if let Some(waiting) = self.waiting.remove(&probe_id) {
            // It has given up waiting.
            let _ = waiting.send(plan);
        }
    }
}

async fn take_part(probe_id: u64, at: SocketAddr, told: oneshot::Receiver<Plan>, outgoing: Outgoing) {
    let (listener, port) = match listen(at).await {
        Ok(listening) => listening,
        Err(error) => {
            let _ = outgoing.send(listening(probe_id, Err(format!("listen on {at}: {error}")))).await;
            return;
        }
    };
    if outgoing.send(listening(probe_id, Ok(port))).await.is_err() {
        return;
    }
    let Ok(Ok(plan)) = tokio::time::timeout(limits::PROBE_BEGINS_MAX, told).await else { return };
    let load = Load::begin();
    let measured = run(plan, listener).await;
    // The session is gone: so is the probe.
    let _ = outgoing.send(result(probe_id, measured, load.milli())).await;
}

fn report(step: v1::preflight_report::Step) -> v1::SessionRequest {
    let report = v1::PreflightReport { step: Some(step) };
    v1::SessionRequest { message: Some(v1::session_request::Message::PreflightReport(report)) }
}

fn listening(probe_id: u64, port: Result<u16, String>) -> v1::SessionRequest {
    let (port, failure) = match port {
        Ok(port) => (port.into(), String::new()),
        Err(failure) => (0, failure),
    };
    report(v1::preflight_report::Step::Listening(v1::ProbeListening { probe_id, port, failure }))
}

fn result(probe_id: u64, measured: Measured, load_milli: u16) -> v1::SessionRequest {
    // What the system says of a connection is short; what it is bounded by is the protocol's.
    let bounded = |link: &Link| {
        let mut message = probe_link_to_proto(link);
        if let LinkOutcome::Failed(why) = &link.outcome {
            message.failure = why.chars().take(200).collect();
        }
        message
    };
    let links = measured.links.iter().map(bounded).collect();
    let ring = measured.ring.as_ref().map(probe_ring_to_proto);
    report(v1::preflight_report::Step::Measured(v1::ProbeMeasured {
        probe_id,
        links,
        ring,
        load_milli: load_milli.into(),
    }))
}

/// A plan from the wire; the rule that it breaks.
pub(crate) fn plan_of(order: v1::ProbeRun) -> Result<Plan, String> {
    let key: [u8; 16] = order.key.try_into().map_err(|_| "key must be 16 bytes".to_owned())?;
    let count = order.peers.len();
    if !(2..=limits::PROBE_PEERS_MAX).contains(&count) || order.own as usize >= count {
        return Err(format!("peers must be 2 to {}, and this node among them", limits::PROBE_PEERS_MAX));
    }
    let mut peers = Vec::with_capacity(count);
    for peer in order.peers {
        let port = u16::try_from(peer.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| "peers.port must be 1 to 65535".to_owned())?;
        if peer.address.is_empty() || peer.address.len() > 253 {
            return Err("peers.address must be an address or host name".to_owned());
        }
        peers.push((peer.address, port));
    }
    let limits = Limits {
        pair_bytes: order.pair_bytes.clamp(1, limits::PROBE_BYTES_MAX),
        pair: Duration::from_millis(u64::from(order.pair_ms).clamp(1, 10_000)),
        ring_bytes: order.ring_bytes.min(limits::PROBE_BYTES_MAX),
        budget: Duration::from_millis(u64::from(order.budget_ms).clamp(1, 60_000)),
    };
    Ok(Plan { key: u128::from_be_bytes(key), own: order.own, peers, limits })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> v1::ProbeRun {
        let peer = v1::ProbePeer { address: "10.0.0.1".into(), port: 9 };
        v1::ProbeRun {
            probe_id: 1,
            key: vec![1; 16],
            own: 1,
            peers: vec![peer.clone(), peer],
            pair_bytes: u64::MAX,
            pair_ms: 100,
            ring_bytes: 1 << 20,
            budget_ms: u32::MAX,
        }
    }

    #[test]
    fn a_plan_is_checked_and_held_to_its_bounds() {
        let plan = plan_of(order()).unwrap();
        assert_eq!((plan.own, plan.peers.len()), (1, 2));
        assert_eq!(plan.limits.pair_bytes, limits::PROBE_BYTES_MAX);
        assert_eq!(plan.limits.budget, Duration::from_secs(60));
        let broken = |change: fn(&mut v1::ProbeRun)| {
            let mut order = order();
            change(&mut order);
            plan_of(order).unwrap_err()
        };
        assert!(broken(|o| o.key.truncate(15)).starts_with("key"));
        assert!(broken(|o| o.own = 2).starts_with("peers must be"));
        assert!(broken(|o| o.peers.truncate(1)).starts_with("peers must be"));
        assert!(broken(|o| o.peers[0].port = 65_536).starts_with("peers.port"));
        assert!(broken(|o| o.peers[0].address.clear()).starts_with("peers.address"));
    }
}
