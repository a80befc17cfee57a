//! Sessions of nodes, and what nodes report.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, NodeLostCause, RankUpdate, RequestKey, hash};
use muster_state::{NodeRow, NodeStatus, RankState};
use muster_types::worker_features::WorkerFeature;
use muster_types::{
    AgentStart, DeviceSet, ExitStatus, FencingToken, ForeignLoad, HolderId, JobId, Name, NodeDraft, NodeId,
    NodeSpec, Refusal, RefusalCode, RequestId, Requester, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::{admission, network};
use crate::rules::text::cut;
use crate::settle::job::{settle, settle_many};
use crate::speculation::Speculation;

/// A session of a holder, and of which of its starts, where it says that.
type Opener = (HolderId, Option<AgentStart>);

pub(super) fn register(
    speculation: &mut Speculation,
    spec: &NodeSpec,
    (holder, start): Opener,
    other_session_is_over: bool,
) -> Result<Answer, Refusal> {
    let known = speculation.state().node_named(&spec.name);
    let Some(id) = known else {
        if speculation.state().nodes().len() as u64 >= u64::from(limits::NODES_MAX) {
            let text = format!("the fleet has its most nodes already: {}", limits::NODES_MAX);
            return Err(Refusal::new(RefusalCode::FleetFull, text));
        }
        admission::check(speculation, spec)?;
        return Ok(registered(speculation, spec, (holder, start)));
    };
    let row = speculation.state().node(id).expect("a named node has a row").clone();
    if row.status == NodeStatus::Up {
        let state = speculation.state();
        let is_busy = state.gangs_on(id).chain(state.spares_on(id)).next().is_some();
        // What policy requires must not be taken for there because it was there once.
        let policy = &state.policy().policy;
        let loses_isolation = policy.lacking_isolation(spec).any(|guarantee| guarantee.is_of(&row.spec));
        // What operators have set is no part of what the agent says.
        let said = row.said();
        let is_same = **said == *spec || (is_busy && differ_in_facts(said, spec) && !loses_isolation);
        // What an older copy of a state directory knows is not what runs, so that its agent is another one.
        let is_copy = row.holder == holder && !continues(start, &row);
        let is_other = row.holder != holder || is_copy;
        if !is_other && is_same {
            admission::check_standing(speculation, spec)?;
            return Ok(resumed(speculation, id, &row, start));
        }
        if is_other && !other_session_is_over {
            return Err(held_by_another(&spec.name, is_copy));
        }
        // Before the one that is there is given up for it.
        admission::check(speculation, spec)?;
        if is_other {
            lost(speculation, id, row.incarnation, NodeLostCause::Replaced);
        } else if is_busy {
            let text =
                format!("{} changed its description while gangs run on it; cordon it and wait", spec.name);
            return Err(Refusal::new(RefusalCode::NodeChanged, text).with("node", &spec.name));
        }
    }
    admission::check(speculation, spec)?;
    admission::keep_what_it_had(speculation, &row.spec, spec);
    Ok(registered(speculation, spec, (holder, start)))
}

/// Whether a start goes on from the one that the log knows. An agent that does not say which start it is is believed.
fn continues(start: Option<AgentStart>, row: &NodeRow) -> bool {
    match (start, row.start) {
        (Some(start), Some(known)) => start.continues(known, row.replaced_start),
        _ => true,
    }
}

fn held_by_another(name: &Name, is_copy: bool) -> Refusal {
    let text = if is_copy {
        format!(
            "another agent holds {name}: one that was started since on a copy of this state directory, which is the \
             older one of the two; stop one of them, and start this one with an empty state directory if it is to go on"
        )
    } else {
        format!("another agent holds {name}, and its lease has not run out")
    };
    Refusal::new(RefusalCode::NodeHeldByAnother, text).with("node", name)
}

/// The same session goes on: nothing has changed but at whom it is, and maybe that the agent was started.
fn resumed(speculation: &mut Speculation, node: NodeId, row: &NodeRow, start: Option<AgentStart>) -> Answer {
    let incarnation = row.incarnation;
    let is_first = speculation.hears(node);
    let at = match start.filter(|start| row.start != Some(start.id)) {
        Some(AgentStart { id: start, .. }) => {
            speculation.push(Decision::AgentStarted { node, incarnation, start })
        }
        None if is_first => speculation.push(Decision::SessionResumed { node, incarnation }),
        None => speculation.last_index(),
    };
    Answer::Registered { node, incarnation, at }
}

/// Labels with this prefix say how the agent isolates workers. It gives them to its node itself, and another release of
/// it may say more or others.
const FACTS: &str = "isolation.";
/// The label by which an agent says how many NUMA nodes its host has.
const NUMA_FACT: &str = "cpu.numa-nodes";

/// Whether an agent gives this label to its node itself: how it isolates workers, and what these can have there.
fn is_fact(label: &Name) -> bool {
    let text = label.as_str();
    text.starts_with(FACTS)
        || text == NUMA_FACT
        || WorkerFeature::ALL.iter().any(|feature| text == feature.label())
}

/// Whether two descriptions of a node differ in nothing but what its agent says of itself. A newer agent that takes over
/// while gangs run is no reason to end them: it goes on under the description that is known, and says the new one when
/// it registers while nothing runs.
fn differ_in_facts(known: &NodeSpec, said: &NodeSpec) -> bool {
    let without = |spec: &NodeSpec| {
        let mut draft = NodeDraft::clone(spec);
        draft.labels.retain(|label, _| !is_fact(label));
        draft
    };
    without(known) == without(said)
}

fn registered(speculation: &mut Speculation, spec: &NodeSpec, (holder, start): Opener) -> Answer {
    let mut at = speculation.push(Decision::NodeRegistered { spec: spec.clone(), holder });
    let node = speculation.state().node_named(&spec.name).expect("the node was registered just now");
    let incarnation = speculation.state().node(node).expect("a named node has a row").incarnation;
    speculation.hears(node);
    if let Some(AgentStart { id: start, .. }) = start {
        at = speculation.push(Decision::AgentStarted { node, incarnation, start });
    }
    Answer::Registered { node, incarnation, at }
}

/// The session is over: every gang on the node is stopped, and requeued once nothing of it runs.
pub(super) fn lost(
    speculation: &mut Speculation,
    node: NodeId,
    incarnation: u32,
    cause: NodeLostCause,
) -> Answer {
    let current = speculation
        .state()
        .node(node)
        .is_some_and(|row| row.status == NodeStatus::Up && row.incarnation == incarnation);
    if !current {
        return Answer::Done { at: speculation.last_index() };
    }
    let state = speculation.state();
    let gangs: Vec<JobId> = state.gangs_on(node).chain(state.promised_on(node)).collect();
    let at = speculation.push(Decision::NodeLost { node, incarnation, cause });
    settle_many(speculation, gangs);
    Answer::Done { at }
}

/// Takes over what others hold of a host; what cannot be true of it is refused, what is known changes nothing.
pub(super) fn foreign_load(
    speculation: &mut Speculation,
    node: NodeId,
    incarnation: u32,
    load: ForeignLoad,
) -> Result<Answer, Refusal> {
    let state = speculation.state();
    let row = state.node(node).filter(|row| row.status == NodeStatus::Up && row.incarnation == incarnation);
    let Some(row) = row else {
        let text = format!("{node} is not in incarnation {incarnation} any more");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    };
    // More than the host has is all that it has.
    let all = DeviceSet::first(row.spec.device_count());
    let load = ForeignLoad {
        devices: load.devices.difference(load.devices.difference(all)),
        cpu_milli: load.cpu_milli.min(row.spec.cpu_milli),
        memory_bytes: load.memory_bytes.min(row.spec.memory_bytes),
        ..load
    };
    let decision = Decision::ForeignLoadSet { node, incarnation, load };
    if state.foreign_load(node) == load {
        return Ok(Answer::Done { at: speculation.last_index() });
    }
    let at = speculation.push(decision);
    Ok(Answer::Done { at })
}

/// Drops a lost node. Repeating that changes nothing: the id is never given again, and the request is remembered.
pub(super) fn forget(
    speculation: &mut Speculation,
    (request, by): (Option<RequestId>, &Requester),
    node: NodeId,
) -> Result<Answer, Refusal> {
    let request = request.map(|id| RequestKey { id, fingerprint: hash(&("forget", node)) });
    if let Some(key) = request
        && let Some(answer) = repeated(speculation, key)?
    {
        return Ok(answer);
    }
    let state = speculation.state();
    let Some(row) = state.node(node) else {
        if node.0 < state.nodes_registered() {
            return Ok(Answer::Done { at: speculation.last_index() });
        }
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")).with("node", node));
    };
    let name = row.spec.name.clone();
    let decision = Decision::NodeForgotten { request, by: by.clone(), node };
    if state.check(&decision).is_err() {
        let text = if row.status == NodeStatus::Up {
            format!("{name} is up; stop its agent and wait until its lease has run out")
        } else {
            format!("capacity on {name} is promised to a job; the promise ends by itself shortly")
        };
        return Err(Refusal::new(RefusalCode::NodeInUse, text).with("node", name));
    }
    let at = speculation.push(decision);
    Ok(Answer::Done { at })
}

/// Takes over what is news: reports may be repeated, late, or about placements that are gone.
pub(super) fn report(
    speculation: &mut Speculation,
    node: NodeId,
    incarnation: u32,
    job: JobId,
    token: FencingToken,
    updates: &[(u32, RankUpdate)],
) -> Result<Answer, Refusal> {
    if updates.len() > limits::REPORT_RANKS_MAX {
        let max = limits::REPORT_RANKS_MAX as u64;
        return Err(Refusal::fields(alloc::vec![Violation::limit("updates", updates.len() as u64, 0, max)]));
    }
    let state = speculation.state();
    let current =
        state.node(node).is_some_and(|row| row.status == NodeStatus::Up && row.incarnation == incarnation);
    if !current {
        let text = format!("{node} is not in incarnation {incarnation} any more");
        return Err(Refusal::new(RefusalCode::Fenced, text));
    }
    let placement = state.job(job).and_then(|row| row.placement.clone()).filter(|p| p.token == token);
    let Some(placement) = placement else {
        // Nobody counts on that placement any more.
        return Ok(Answer::Done { at: speculation.last_index() });
    };
    // Of a job that asks for nothing nobody needs to know.
    let is_asked = state.spec(job).is_some_and(|spec| spec.readiness_ms.is_some());
    let mut news: BTreeMap<u32, RankUpdate> = BTreeMap::new();
    for (rank, update) in updates {
        let at = *rank as usize;
        let (Some(slot), Some(known)) = (placement.slots.get(at), placement.ranks.get(at)) else { continue };
        let is_news = match update {
            RankUpdate::Running => *known == RankState::Assigned,
            RankUpdate::Exited(_) => !known.is_over(),
            RankUpdate::Ready => is_asked && !known.is_over() && !placement.ready.contains(rank),
        };
        // The first end of a rank is the end; whatever else one report states about it came before.
        let has_ended = matches!(news.get(rank), Some(RankUpdate::Exited(_)));
        if slot.node == node && is_news && !has_ended {
            news.insert(*rank, bounded(update));
        }
    }
    if news.is_empty() {
        return Ok(Answer::Done { at: speculation.last_index() });
    }
    let updates: Vec<(u32, RankUpdate)> = news.into_iter().collect();
    let fault = updates.iter().find_map(|(_, update)| match update {
        RankUpdate::Exited(ExitStatus::PreflightFailed(fault)) => Some(fault.clone()),
        _ => None,
    });
    let at = speculation.push(Decision::WorkersReported { node, incarnation, job, token, updates });
    settle(speculation, job);
    if let Some(fault) = fault {
        network::at_fault(speculation, node, &fault);
    }
    // What has ended may free the capacity that others were promised.
    let promised: Vec<JobId> = speculation.state().promised_on(node).collect();
    settle_many(speculation, promised);
    Ok(Answer::Done { at })
}

/// Texts of agents are cut to their bound before they reach the log.
fn bounded(update: &RankUpdate) -> RankUpdate {
    let RankUpdate::Exited(exit) = update else { return update.clone() };
    let bounded = |text| cut(text, limits::DETAIL_BYTES_MAX);
    let exit = match exit.clone() {
        ExitStatus::LaunchFailed(text) => ExitStatus::LaunchFailed(bounded(text)),
        ExitStatus::NodeFault(text) => ExitStatus::NodeFault(bounded(text)),
        ExitStatus::BackendLost(text) => ExitStatus::BackendLost(bounded(text)),
        ExitStatus::PreflightFailed(text) => ExitStatus::PreflightFailed(bounded(text)),
        other => other,
    };
    RankUpdate::Exited(exit)
}
