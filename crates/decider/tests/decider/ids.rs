//! An id of a job is given once, whatever becomes of the cluster; so is the directory of its checkpoints.

use std::collections::BTreeSet;

use muster_decider::{Answer, BootstrapConfig, Command, Speculation, handle};
use muster_state::State;
use muster_types::{JobId, LogTime, Submission};

use crate::support::{BOOTSTRAP, accelerators, commit, founded, holder, job, leadership, node_spec, request};

/// With a host that the jobs would fit on.
fn with_host((mut speculation, mut replica): (Speculation, State)) -> (Speculation, State) {
    let spec = node_spec("n0", "eu", "c1", Some(accelerators("h100", 8)));
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &register).unwrap();
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

fn submit(speculation: &mut Speculation, n: u128) -> BTreeSet<JobId> {
    let jobs = Submission::plain([
        job("one", 1, Some(accelerators("h100", 8))),
        job("two", 1, Some(accelerators("h100", 8))),
    ]);
    let command = Command::submit(request(n), jobs);
    match handle(speculation, &command) {
        Ok(Answer::Submitted { jobs, .. }) => jobs.into_iter().collect(),
        other => panic!("{other:?}"),
    }
}

/// The ids of jobs that are submitted in twelve records.
fn ids(mut speculation: Speculation, mut replica: State, from: u128) -> BTreeSet<JobId> {
    let mut ids = BTreeSet::new();
    for n in from..from + 12 {
        ids.extend(submit(&mut speculation, n));
        commit(&mut speculation, &mut replica);
    }
    ids
}

/// A new generation of the cluster begins with an earlier state.
fn recovered(state: &State, generation: u32, term: u64) -> (Speculation, State) {
    let bootstrap = BootstrapConfig { generation, ..BOOTSTRAP };
    let now = LogTime(state.log_time().0 + 1_000);
    let mut speculation = Speculation::begin(state.clone(), leadership(term, 1), now, bootstrap);
    let mut replica = state.clone();
    commit(&mut speculation, &mut replica);
    handle(&mut speculation, &Command::Recover { generation }).unwrap();
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

#[test]
fn what_a_recovery_lost_does_not_lend_its_ids_to_others() {
    let (speculation, replica) = with_host(founded());
    let backup = replica.clone();
    let lost = ids(speculation, replica, 1_000);
    // Twice from one backup: the second time under a separate generation, which the operator has to name.
    let (second, second_replica) = recovered(&backup, 2, 2);
    let third = recovered(&backup, 3, 2);
    let later = recovered(&second_replica, 4, 3);
    let mut all = lost.clone();
    for given in
        [ids(second, second_replica, 2_000), ids(third.0, third.1, 2_000), ids(later.0, later.1, 2_000)]
    {
        assert_eq!((given.len(), given.intersection(&all).count()), (24, 0), "{given:?}");
        assert!(given.first() > all.first(), "later ids are higher");
        all.extend(given);
    }
}

/// The answer that is given again is the one that was given, also behind a recovery.
#[test]
fn a_repeated_request_is_answered_with_the_ids_it_was_given() {
    let (mut speculation, mut replica) = with_host(founded());
    let first = submit(&mut speculation, 7);
    commit(&mut speculation, &mut replica);
    let (mut speculation, mut replica) = recovered(&replica, 2, 2);
    assert_eq!(submit(&mut speculation, 7), first);
    let second = submit(&mut speculation, 8);
    commit(&mut speculation, &mut replica);
    let bytes: Vec<Vec<u8>> = replica.snapshot().collect();
    let restored = State::restore(bytes).unwrap();
    assert_eq!(restored.digest(), replica.digest());
    let (mut speculation, _) = recovered(&restored, 3, 3);
    assert_eq!((submit(&mut speculation, 7), submit(&mut speculation, 8)), (first, second));
}
