//! The probes that this host takes part in, on behalf of the agent's loop.

use super::load::Load;
use super::{Measured, listen, run};
use crate::limits;
use crate::rules::Plan;
use muster_types::probe::{Link, LinkOutcome};
use muster_wire::agent;
use muster_wire::convert::{probe_link_to_proto, probe_ring_to_proto};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

type Outgoing = mpsc::Sender<agent::SessionRequest>;

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

fn report(step: agent::preflight_report::Step) -> agent::SessionRequest {
    let report = agent::PreflightReport { step: Some(step) };
    agent::SessionRequest { message: Some(agent::session_request::Message::PreflightReport(report)) }
}

fn listening(probe_id: u64, port: Result<u16, String>) -> agent::SessionRequest {
    let (port, failure) = match port {
        Ok(port) => (port.into(), String::new()),
        Err(failure) => (0, failure),
    };
    report(agent::preflight_report::Step::Listening(agent::ProbeListening { probe_id, port, failure }))
}

fn result(probe_id: u64, measured: Measured, load_milli: u16) -> agent::SessionRequest {
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
    report(agent::preflight_report::Step::Measured(agent::ProbeMeasured {
        probe_id,
        links,
        ring,
        load_milli: load_milli.into(),
    }))
}
