//! Probes of the network between nodes: by hand, and before a large gang starts.
//!
//! Nothing of a probe is logged: it is made again by the next leader. What comes of a check is: a node that is
//! found at fault reports that its workers of that placement did not start for it, and what follows is
//! decided from that report like from any other.
//!
//! **Invariant:** a check that cannot be made holds up nobody: without a result a gang starts, and so does one that
//! checks have kept from starting [`REFUSALS_MAX`] times. Nobody is blamed by one probe alone, and of a gang on two nodes nobody
//! without others that take part as witnesses. Nodes that are kept away for their network are measured again by themselves.

use muster_consensus::Environment;
use muster_decider::Command;
use muster_state::{NodeStatus, Phase, RankState};
use muster_types::health::Finding as HealthFinding;
use muster_types::probe::{Finding, Link, LinkOutcome, Ring, WITNESSES_MIN, better_of, findings, slow_pairs};
use muster_types::{FailureClass, Feature, FencingToken, JobId, NodeId, Refusal, RefusalCode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

use crate::clock::{instant, until};
use crate::engine::Engine;
use crate::sessions::messages::{Outbound, ProbeOrder, ProbeReport};
use crate::sessions::probes::Waits;

/// Nodes of one probe by hand.
pub const PROBE_NODES_MAX: usize = 256;
/// Nodes of a gang that are checked; of a larger one the check is left out, and that is reported.
const PREFLIGHT_NODES_MAX: usize = 1_024;
/// Pairs that are measured again one by one; of more than these it is all of them again, at once.
const PAIRS_AGAIN_MAX: usize = 8;
/// How often what seems to be wrong is measured again before anybody is blamed: a host that is left out stays out until
/// somebody looks, and a busy processor looks like a slow cable once, or twice.
pub(crate) const AGAIN_MAX: u32 = 3;
/// Before the first repetition; twice as long before each further one, so that what disturbed one is over.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Nodes outside a gang on two nodes that are measured with it, to tell which of the two is slow.
const WITNESSES: usize = 2;
/// Checks that keep one job from starting. Its next attempt starts all the same: a slow network is better than none.
pub(crate) const REFUSALS_MAX: u32 = 5;
/// Between two measurements of a node that is kept away for its network, and how many others take part.
const RECHECK_EVERY: Duration = Duration::from_secs(300);
const RECHECK_PEERS: usize = 3;
/// How much is sent, and for how long. Four MiB take 3 ms at 10 Gbit/s; a node that needs longer than the time
/// is measured by what came within it.
const PAIR_BYTES: u64 = 4 << 20;
const PAIR_MS: u32 = 100;
const RING_BYTES: u64 = 1 << 20;
const BUDGET_MS: u32 = 6_000;
/// How long nodes may take to listen, and to say what they measured once their time is over.
const LISTEN_MAX: Duration = Duration::from_secs(5);
const RESULT_MAX: Duration = Duration::from_secs(2);
/// How long the check of one gang may be gathered for, or its verdict be remembered, when nothing happens.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A probe that came to its end. Places count in the order of the nodes asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResult {
    /// Every direction that was measured, the best of several probes where there were more.
    pub links: Vec<Link>,
    /// The ring, as each saw it.
    pub rings: Vec<Ring>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

fn unavailable(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::ProbeUnavailable, text)
}

/// Where each node listens, by its place among them.
async fn listening_ports<G: Environment>(
    reports: &mut mpsc::Receiver<(NodeId, ProbeReport)>,
    place_of: &BTreeMap<NodeId, usize>,
    names: &[String],
) -> Result<BTreeMap<usize, u16>, Refusal> {
    let mut ports: BTreeMap<usize, u16> = BTreeMap::new();
    let deadline = instant::<G>() + LISTEN_MAX;
    while ports.len() < names.len() {
        let Ok(Some((node, report))) = G::within(until::<G>(deadline), reports.recv()).await else {
            let silent = (0..names.len()).find(|place| !ports.contains_key(place)).unwrap_or(0);
            return Err(unavailable(format!("the agent of {} does not answer", names[silent])));
        };
        let (Some(place), ProbeReport::Listening { port, .. }) = (place_of.get(&node), report) else {
            continue;
        };
        let port = port.map_err(|why| unavailable(format!("{} cannot listen: {why}", names[*place])))?;
        ports.insert(*place, port);
    }
    Ok(ports)
}

impl<G: Environment> Engine<G> {
    /// Measures the network between these nodes, each named once; again when something seems to be wrong, so that
    /// nobody is blamed for a moment. This replica must lead.
    ///
    /// # Errors
    /// When a node cannot take part, or too many probes run.
    pub async fn probe(&self, nodes: &[NodeId]) -> Result<ProbeResult, Refusal> {
        let _permit = self.inner.probes.enter()?;
        let view = self.view();
        let names: Vec<String> = nodes
            .iter()
            .map(|node| view.node(*node).map_or_else(|| node.to_string(), |row| row.spec.name.to_string()))
            .collect();
        let (mut links, mut rings) = self.probe_once(nodes, &names).await?;
        let mut found = findings(&names, &links, &rings);
        for round in 0..AGAIN_MAX {
            // What cannot be used at all takes its time to fail, and fails in the same way the second time.
            let is_dead = |link: &Link| matches!(link.outcome, LinkOutcome::Failed(_));
            if found.is_empty() || (round > 0 && links.iter().any(is_dead)) {
                break;
            }
            G::pause(AGAIN_AFTER * (1 << round)).await;
            let pairs = slow_pairs(&links);
            let again =
                if found.iter().all(|finding| finding.other.is_some()) && pairs.len() <= PAIRS_AGAIN_MAX {
                    self.probe_pairs(nodes, &names, pairs).await?
                } else {
                    let (again, of_all) = self.probe_once(nodes, &names).await?;
                    rings = of_all;
                    again
                };
            links = better_of(links, again);
            found = findings(&names, &links, &rings);
        }
        self.note_sound(nodes, &links, &found).await;
        Ok(ProbeResult { links, rings, findings: found })
    }

    /// Takes back what was known against the network of nodes that a probe finds nothing wrong with.
    async fn note_sound(&self, nodes: &[NodeId], links: &[Link], found: &[Finding]) {
        let view = self.view();
        let is_blamed = |node: &NodeId| {
            let health = view.restriction(*node).map(|row| &row.health);
            let mut known =
                health.into_iter().flat_map(|health| health.conditions.iter().chain(&health.recent));
            known.any(|condition| condition.observation.finding == HealthFinding::Network)
        };
        let sound = sound_among(nodes.len(), links, found);
        let nodes: Vec<NodeId> = sound.into_iter().map(|place| nodes[place]).filter(is_blamed).collect();
        if nodes.is_empty() {
            return;
        }
        tracing::info!(?nodes, "a probe finds the network of nodes sound that was at fault before");
        if let Err(refusal) = self.execute_for_node(Command::NoteSoundNetwork { nodes }).await {
            // The next probe finds it again.
            tracing::info!(%refusal, "what a probe found was not taken over");
        }
    }

    /// Measures some pairs again, one after another: while all hosts measure at a time, a pair can be held up by
    /// what others do with a shared network, or a shared processor.
    async fn probe_pairs(
        &self,
        nodes: &[NodeId],
        names: &[String],
        pairs: BTreeSet<(u32, u32)>,
    ) -> Result<Vec<Link>, Refusal> {
        let mut links = Vec::new();
        for (low, high) in pairs {
            let of = [low as usize, high as usize];
            let (measured, _) =
                self.probe_once(&of.map(|at| nodes[at]), &of.map(|at| names[at].clone())).await?;
            let place = |at: u32| if at == 0 { low } else { high };
            links.extend(measured.into_iter().map(|link| Link {
                from: place(link.from),
                to: place(link.to),
                ..link
            }));
        }
        Ok(links)
    }

    /// The sessions of nodes that are to probe. An agent that comes back is waited for a moment, all of them at once.
    async fn probed_sessions(
        &self,
        nodes: &[NodeId],
        names: &[String],
    ) -> Result<Vec<mpsc::Sender<Outbound>>, Refusal> {
        let sessions = nodes.iter().zip(names).map(|(node, name)| async move {
            let session = self.session_of(*node).await.map_err(|refusal| match refusal.code {
                RefusalCode::LogsUnavailable | RefusalCode::OutputNotFound => {
                    unavailable(format!("{name} has no session"))
                }
                _ => refusal,
            })?;
            if !self.inner.sessions.takes(*node).has(Feature::Preflight) {
                return Err(unavailable(format!("the agent of {name} is of a release that cannot probe")));
            }
            Ok(session)
        });
        futures::future::try_join_all(sessions).await
    }

    async fn probe_once(
        &self,
        nodes: &[NodeId],
        names: &[String],
    ) -> Result<(Vec<Link>, Vec<Ring>), Refusal> {
        // Two reports of each node at most; a node that says more is not waited for.
        let mut running = self.inner.probes.begin(2 * nodes.len());
        let (probe, key) = (running.probe, running.key);
        let view = self.view();
        let sessions = self.probed_sessions(nodes, names).await?;
        let send = |place: usize, order: ProbeOrder| {
            let sent = sessions[place].try_send(Outbound::Probe(order));
            sent.map_err(|_| unavailable(format!("the session of {} takes nothing at present", names[place])))
        };
        for place in 0..nodes.len() {
            send(place, ProbeOrder::Listen { probe })?;
        }
        let place_of: BTreeMap<NodeId, usize> =
            nodes.iter().enumerate().map(|(at, node)| (*node, at)).collect();
        let ports = listening_ports::<G>(&mut running.reports, &place_of, names).await?;
        let address = |place: &usize| view.node(nodes[*place]).map(|row| row.spec.address.clone());
        let peers = ports.iter().map(|(place, port)| (address(place).unwrap_or_default(), *port)).collect();
        let peers: Arc<Vec<(String, u16)>> = Arc::new(peers);
        for place in 0..nodes.len() {
            let run = ProbeOrder::Run {
                probe,
                key,
                own: place as u32,
                peers: Arc::clone(&peers),
                pair_bytes: PAIR_BYTES,
                pair_ms: PAIR_MS,
                ring_bytes: RING_BYTES,
                budget_ms: BUDGET_MS,
            };
            send(place, run)?;
        }
        let (mut links, mut rings, mut told) = (Vec::new(), Vec::new(), BTreeMap::new());
        let deadline = instant::<G>() + Duration::from_millis(BUDGET_MS.into()) + RESULT_MAX;
        while told.len() < nodes.len() {
            let Ok(Some((node, report))) = G::within(until::<G>(deadline), running.reports.recv()).await
            else {
                break;
            };
            let (Some(place), ProbeReport::Measured { links: own, ring, load_milli, .. }) =
                (place_of.get(&node), report)
            else {
                continue;
            };
            let place = *place as u32;
            // Each speaks of the pairs that it led, and of nobody else's.
            let is_own = |link: &Link| {
                let (low, high) = (link.from.min(link.to), link.from.max(link.to));
                low == place && low < high && (high as usize) < nodes.len()
            };
            if told.insert(place, load_milli).is_none() {
                links.extend(own.into_iter().filter(is_own));
                rings.extend(ring.map(|ring| Ring { host: place, ..ring }));
            }
        }
        let load = |place: u32| told.get(&place).copied().unwrap_or(0);
        links.iter_mut().for_each(|link| link.load_milli = load(link.from).max(load(link.to)));
        Ok((links, rings))
    }

    /// Other nodes of the fleet cluster of this one that could take part in a probe, those that are free of blame alone.
    fn witnesses(&self, nodes: &[NodeId], count: usize) -> Vec<NodeId> {
        let view = self.view();
        let Some(first) = nodes.first().and_then(|node| view.node(*node)) else { return Vec::new() };
        let place = (&first.spec.region, &first.spec.cluster);
        let can = |node: &NodeId| {
            self.inner.sessions.takes(*node).has(Feature::Preflight)
                && self.inner.sessions.outbound(*node).is_some()
                && view.restriction(*node).is_none_or(|row| !row.health.out_of_service)
        };
        let here = view.nodes().iter().filter(|(node, row)| {
            row.status == NodeStatus::Up
                && (&row.spec.region, &row.spec.cluster) == place
                && !nodes.contains(node)
        });
        here.map(|(node, _)| *node).filter(can).take(count).collect()
    }

    /// Measures this node again when it is kept away for its network and [`RECHECK_EVERY`] is over, so that no node stays
    /// away for what is over. Called with every heartbeat.
    pub(super) fn recheck(&self, node: NodeId) {
        let view = self.view();
        let Some(row) = view.restriction(node) else { return };
        if !row.health.conditions.iter().any(|c| c.observation.finding == HealthFinding::Network) {
            return;
        }
        let is_away = |node: NodeId| view.restriction(node).is_some_and(|row| row.health.out_of_service);
        if !self.inner.probes.is_due(node, instant::<G>(), RECHECK_EVERY, is_away) {
            return;
        }
        let mut nodes = vec![node];
        nodes.extend(self.witnesses(&nodes, RECHECK_PEERS));
        let engine = self.clone();
        G::detach(async move {
            if let Err(refusal) = engine.probe(&nodes).await {
                tracing::info!(%node, %refusal, "a node that is kept away for its network could not be measured again");
            }
        });
    }

    /// An agent says something of a probe.
    pub(super) fn probe_reported(&self, node: NodeId, report: ProbeReport) {
        let probe = match &report {
            ProbeReport::Waiting { job, token } => return self.check_waits(node, *job, *token),
            ProbeReport::Listening { probe, .. } | ProbeReport::Measured { probe, .. } => *probe,
        };
        self.inner.probes.heard(probe, node, report);
    }

    /// A node is ready for a placement but for the check. The first one begins it; one that comes back after
    /// the verdict is told it.
    fn check_waits(&self, node: NodeId, job: JobId, token: FencingToken) {
        let view = self.view();
        let is_starting = |(job, token): &(JobId, FencingToken)| is_starting(&view, *job, *token);
        match self.inner.probes.waits(node, (job, token), is_starting) {
            Waits::Over(fault) => self.tell_verdict(node, job, token, fault),
            Waits::On => {}
            Waits::First(changed) => {
                let engine = self.clone();
                G::detach(async move { engine.check(job, token, changed).await });
            }
        }
    }

    fn tell_verdict(&self, node: NodeId, job: JobId, token: FencingToken, fault: Option<String>) {
        // Without a session the node will say again that it waits.
        if let Some(session) = self.inner.sessions.outbound(node) {
            let _ = session.try_send(Outbound::Probe(ProbeOrder::Verdict { job, token, fault }));
        }
    }

    /// Gathers the nodes of a placement, has them measured, and tells them what came of it.
    async fn check(&self, job: JobId, token: FencingToken, changed: Arc<Notify>) {
        let Some(nodes) = self.gather(job, token, &changed).await else {
            self.inner.probes.give_up((job, token));
            return;
        };
        let faults = self.faults_among(job, &nodes).await;
        let Some(told) = self.inner.probes.conclude((job, token), faults.clone()) else { return };
        for node in told {
            // Where somebody is at fault the others are stopped by what follows from that.
            if faults.is_empty() || faults.contains_key(&node) {
                self.tell_verdict(node, job, token, faults.get(&node).cloned());
            }
        }
    }

    /// Waits until every node of the placement waits for the check, or has started without it; those that wait.
    async fn gather(&self, job: JobId, token: FencingToken, changed: &Notify) -> Option<Vec<NodeId>> {
        let mut applied = self.inner.shared.applied.subscribe();
        loop {
            applied.mark_unchanged();
            let view = self.view();
            if !is_starting(&view, job, token) || !self.is_leader() {
                return None;
            }
            let placement = view.job(job).and_then(|row| row.placement.clone())?;
            let unstarted: BTreeSet<NodeId> = placement
                .slots
                .iter()
                .zip(&placement.ranks)
                .filter(|(_, state)| **state == RankState::Assigned)
                .map(|(slot, _)| slot.node)
                .collect();
            let waiting = self.inner.probes.waiting((job, token))?;
            if unstarted.is_subset(&waiting) {
                return Some(unstarted.into_iter().collect());
            }
            tokio::select! {
                biased;
                () = self.stopping() => return None,
                () = changed.notified() => {}
                _ = applied.changed() => {}
                // Leadership may end without a record.
                () = G::pause(LOOK_AGAIN) => {}
            }
        }
    }

    /// Which of these nodes are at fault. None when that cannot be found out.
    async fn faults_among(&self, job: JobId, nodes: &[NodeId]) -> BTreeMap<NodeId, String> {
        if nodes.len() < 2 {
            return BTreeMap::new();
        }
        if nodes.len() > PREFLIGHT_NODES_MAX {
            tracing::warn!(%job, nodes = nodes.len(), "the gang is too large to be checked; it starts");
            return BTreeMap::new();
        }
        let view = self.view();
        let counts = view.recovery(job).map(|recovery| &recovery.counts);
        let refused = counts.and_then(|counts| counts.get(&FailureClass::Preflight)).copied().unwrap_or(0);
        if refused >= REFUSALS_MAX {
            tracing::warn!(%job, refused, "checks have kept the gang from starting often enough; it starts unchecked");
            return BTreeMap::new();
        }
        let begun = instant::<G>();
        let findings = match self.findings_among(nodes).await {
            Ok(findings) => findings,
            Err(refusal) => {
                tracing::warn!(%job, %refusal, "the network of the gang could not be checked; it starts");
                return BTreeMap::new();
            }
        };
        if findings.is_empty() {
            let took_ms = instant::<G>().saturating_duration_since(begun).as_millis() as u64;
            tracing::info!(%job, nodes = nodes.len(), took_ms, "the network of the gang is sound");
        }
        let mut faults = BTreeMap::new();
        for finding in findings {
            let node = nodes.get(finding.host as usize).copied().filter(|_| finding.is_blamed);
            match node {
                Some(node) => {
                    tracing::warn!(%job, %finding, "a gang does not start on a node that the check found at fault");
                    faults.insert(node, finding.text);
                }
                None => {
                    tracing::warn!(%job, %finding, "a link of the gang is slow, and no node is known to be at fault")
                }
            }
        }
        faults
    }

    /// What a probe of these nodes finds wrong with them; where they are too few to tell which one it is, of them and of
    /// witnesses.
    async fn findings_among(&self, nodes: &[NodeId]) -> Result<Vec<Finding>, Refusal> {
        let alone = self.probe(nodes).await?.findings;
        if alone.is_empty() || nodes.len() > WITNESSES_MIN {
            return Ok(alone);
        }
        let witnesses = self.witnesses(nodes, WITNESSES);
        if nodes.len() + witnesses.len() <= WITNESSES_MIN {
            return Ok(alone);
        }
        let all: Vec<NodeId> = nodes.iter().copied().chain(witnesses).collect();
        let own = |finding: &Finding| (finding.host as usize) < nodes.len();
        Ok(self.probe(&all).await?.findings.into_iter().filter(own).collect())
    }
}

/// Places of a probe that are free of blame: all their links were measured, none is slow, and there were others to
/// compare with. Two hosts have but one link, which is as fast as itself.
fn sound_among(count: usize, links: &[Link], found: &[Finding]) -> Vec<usize> {
    if count < 3 {
        return Vec::new();
    }
    let mut measured = vec![0; count];
    for link in links.iter().filter(|link| matches!(link.outcome, LinkOutcome::Measured { .. })) {
        for place in [link.from, link.to] {
            if let Some(links) = measured.get_mut(place as usize) {
                *links += 1;
            }
        }
    }
    let blamed = |place: usize| {
        let is_end = |end: u32| end as usize == place;
        found.iter().any(|f| is_end(f.host) || f.other.is_some_and(is_end))
    };
    (0..count).filter(|place| measured[*place] == 2 * (count - 1) && !blamed(*place)).collect()
}

fn is_starting(view: &muster_state::State, job: JobId, token: FencingToken) -> bool {
    view.job(job).is_some_and(|row| {
        let current = row.placement.as_ref().is_some_and(|placement| placement.token == token);
        current && matches!(row.phase, Phase::Starting | Phase::Running)
    })
}
