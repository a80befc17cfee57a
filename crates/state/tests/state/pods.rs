//! Hosts with a place in a TPU pod, as planning finds them.

use muster_journal::{Decision, NodeLostCause, RequestKey};
use muster_state::State;
use muster_types::tpu::PodPosition;
use muster_types::{
    Accelerators, ClusterId, HolderId, Leadership, LogTime, Name, NodeDraft, NodeId, NodeSpec, Parameters,
    ReplicaId, RequestId, Requester,
};
use std::collections::{BTreeMap, BTreeSet};

fn host(name: &'static str) -> NodeSpec {
    let draft = NodeDraft {
        name: Name::literal(name),
        region: Name::literal("eu"),
        cluster: Name::literal("c1"),
        block: Name::literal("b1"),
        rack: Name::literal("r1"),
        address: name.to_owned(),
        accelerators: Some(Accelerators { kind: Name::literal("v5p"), count: 4 }),
        cpu_milli: 64_000,
        memory_bytes: 1 << 40,
        scratch_bytes: 0,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: Some(PodPosition { pod: Name::literal("p1"), cube: 0, at: [0, 0, 0] }),
    };
    draft.check().unwrap()
}

fn apply(state: &mut State, decision: Decision) {
    let leadership = Leadership { term: 1, replica: ReplicaId(1) };
    let at = LogTime(1_790_000_000_000);
    let applied = state.apply(leadership, state.log_index().next(), at, &decision);
    assert_eq!(applied.rejection, None, "{decision:?}");
    assert_eq!(state.verify(), Ok(()), "{decision:?}");
}

fn idle(state: &State) -> Vec<NodeId> {
    state.pools().flat_map(|(_, pool)| pool.idle_hosts.iter()).map(|(_, node)| *node).collect()
}

/// What is known of hosts in one place does not depend on which of them changed last, and the one that stays is found.
#[test]
fn hosts_in_one_place_are_all_known() {
    let mut state = State::default();
    apply(&mut state, Decision::LeaderStarted);
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    apply(&mut state, Decision::ClusterCreated { cluster, generation: 1, parameters });
    for (name, holder) in [("old", 1), ("new", 2)] {
        apply(&mut state, Decision::NodeRegistered { spec: host(name), holder: HolderId(holder) });
    }
    let (old, new) = (NodeId(0), NodeId(1));
    assert_eq!(idle(&state), [old, new]);
    for (request, cordoned) in [(1, true), (2, false)] {
        let request = RequestKey { id: RequestId(request), fingerprint: 0 };
        let by = Requester::default();
        apply(&mut state, Decision::NodeCordonSet { request, by, node: old, cordoned, reason: None });
        assert_eq!(idle(&state), if cordoned { vec![new] } else { vec![old, new] });
    }
    let cause = NodeLostCause::LeaseExpired;
    apply(&mut state, Decision::NodeLost { node: old, incarnation: 1, cause });
    assert_eq!(idle(&state), [new]);
}
