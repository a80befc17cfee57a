//! Jobs that have waited for long enough take what they name as a fallback.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::{JobId, LogTime};

use crate::speculation::Speculation;

/// Jobs whose fallback is opened in one tick.
const OPENED_PER_TICK: usize = 1_000;
/// Jobs that are looked at in one tick: those that waited for others first are known too early.
const LOOKED_AT_PER_TICK: usize = 50_000;

/// Opens what is due. A job in the pending queue is looked for again with its next pass, because it asks for something else then.
pub(super) fn open(speculation: &mut Speculation) {
    open_some(speculation, LOOKED_AT_PER_TICK);
}

/// The same with a bound of the jobs that are looked at. The next tick goes on behind them: very many that are known too early
/// must not keep all others waiting.
fn open_some(speculation: &mut Speculation, looked_at_max: usize) {
    let (state, now) = (speculation.state(), speculation.now());
    let last = speculation.fallback_place();
    let is_known = |(at, _): &(LogTime, JobId)| *at <= now;
    let behind = last.into_iter().flat_map(|last| state.closed_fallbacks_behind(last)).take_while(is_known);
    let up_to = state.closed_fallbacks().take_while(is_known);
    let up_to = up_to.take_while(|place| last.is_none_or(|last| *place <= last));
    let (mut due, mut looked_at) = (Vec::new(), 0);
    // The last one that was looked at; none once all of them were.
    let (mut place, mut is_cut) = (None, false);
    // Of those that are known too early; what an earlier look left out is still to come.
    let mut next = speculation.fallback_due().filter(|at| *at > now);
    for (at, job) in behind.chain(up_to) {
        if looked_at == looked_at_max || due.len() == OPENED_PER_TICK {
            is_cut = true;
            break;
        }
        looked_at += 1;
        place = Some((at, job));
        let decision = Decision::FallbackOpened { job };
        match state.fallback_due(job) {
            Some(at) if at > now => next = next.map_or(Some(at), |next| Some(next.min(at))),
            Some(_) if state.check(&decision).is_ok() => due.push(decision),
            _ => {}
        }
    }
    speculation.set_fallback_place(place.filter(|_| is_cut));
    speculation.set_fallback_due(next);
    for decision in due {
        speculation.push(decision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::collections::BTreeSet;
    use alloc::string::ToString;
    use alloc::vec;
    use muster_state::State;
    use muster_types::policy::PurchaseKind;
    use muster_types::{
        CapacityFallback, CapacityRules, ClusterId, Dependency, DependencyRule, HolderId, JobDraft,
        Leadership, Name, NodeDraft, Parameters, PurchaseSet, ReplicaId, RequestId, Submission, TaskGroup,
        WorkerRequest,
    };

    use crate::{Answer, BootstrapConfig, Command, handle, tick};

    const HOUR_MS: u64 = 3_600_000;

    /// A spot host that jobs could be on, so that they are no jobs which never fit.
    fn register(speculation: &mut Speculation) {
        let name = |text| Name::new(text).expect("a name");
        let spec = NodeDraft {
            name: name("n1"),
            region: name("eu"),
            cluster: name("c1"),
            block: name("b"),
            rack: name("r"),
            address: "n1".to_string(),
            accelerators: None,
            cpu_milli: 64_000,
            memory_bytes: 1 << 38,
            labels: [(name("purchase"), "spot".to_string())].into_iter().collect(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        };
        let spec = spec.check().expect("a host");
        let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
        handle(speculation, &register).expect("it is new");
    }

    /// A job that takes more after an hour, and waits for others first.
    fn submit(speculation: &mut Speculation, request: u128, others: &[JobId]) -> JobId {
        let name = |text| Name::new(text).expect("a name");
        let asks = WorkerRequest {
            accelerators: None,
            cpu_milli: 1_000,
            memory_bytes: 1,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(name("main"), 1, vec!["run".to_string()], asks);
        let mut draft = JobDraft::new(name("job"), name("team"), vec![group]);
        let set = |kind: PurchaseKind| -> PurchaseSet { [kind].into_iter().collect() };
        draft.capacity = Some(Box::new(CapacityRules {
            purchases: set(PurchaseKind::Spot),
            fallback: Some(CapacityFallback {
                purchases: set(PurchaseKind::OnDemand),
                after_ms: HOUR_MS,
                is_open: false,
            }),
            interruptions_milli_max: None,
        }));
        let dependency = |job: &JobId| Dependency::new(*job, DependencyRule::Finished);
        draft.dependencies = others.iter().map(dependency).collect();
        let jobs = Submission::plain([draft.check().expect("a job")]);
        match handle(speculation, &Command::submit(RequestId(request), jobs)).expect("it is taken") {
            Answer::Submitted { jobs, .. } => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn many_that_are_known_too_early_do_not_keep_others_waiting() {
        let bootstrap = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), bootstrap);
        let to = |speculation: &mut Speculation, time| {
            speculation.take_round();
            speculation.set_now(LogTime(time));
        };
        register(&mut speculation);
        let first = submit(&mut speculation, 1, &[]);
        let early: Vec<JobId> = (2..7).map(|request| submit(&mut speculation, request, &[first])).collect();
        to(&mut speculation, HOUR_MS);
        let waits = submit(&mut speculation, 7, &[]);
        // The others wait for their capacity from here on, and were submitted long before.
        to(&mut speculation, HOUR_MS + HOUR_MS / 2);
        handle(&mut speculation, &Command::cancel(RequestId(8), first)).expect("it is taken");
        tick(&mut speculation);
        assert_eq!(speculation.state().closed_fallbacks().count(), 6);
        to(&mut speculation, 2 * HOUR_MS);
        for _ in 0..3 {
            open_some(&mut speculation, 2);
        }
        assert_eq!(speculation.state().fallback_due(waits), None, "it takes more now");
        assert!(early.iter().all(|job| speculation.state().fallback_due(*job).is_some()));
        // The next tick that opens one is known, though the index has all of them too early.
        let due = speculation.state().fallback_due(early[0]).expect("it waits");
        assert_eq!(speculation.next_fallback(speculation.now()), Some(due));
        // And all of them once they are due.
        to(&mut speculation, 3 * HOUR_MS);
        for _ in 0..4 {
            open_some(&mut speculation, 2);
        }
        assert_eq!(speculation.state().closed_fallbacks().count(), 0);
    }
}
