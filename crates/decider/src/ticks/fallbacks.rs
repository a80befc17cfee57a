//! Jobs that have waited for long enough take what they name as a fallback.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::{JobId, LogTime};

use crate::speculation::Speculation;

/// Jobs whose fallback is opened in one tick.
const OPENED_PER_TICK: usize = 1_000;
/// Jobs that are looked at in one tick: those that waited for others first, or wait again, are known too early.
const LOOKED_AT_PER_TICK: usize = 50_000;

/// Opens what is due. A job in the pending queue is looked for again with its next pass, because it asks for something else then.
pub(super) fn open(speculation: &mut Speculation) {
    open_some(speculation, LOOKED_AT_PER_TICK);
}

/// The same with a bound on the jobs that are looked at. Where it cuts, the next tick goes on: jobs that are known too early do not
/// keep those behind them from their fallbacks.
fn open_some(speculation: &mut Speculation, looked_at_max: usize) {
    let (state, now) = (speculation.state(), speculation.now());
    let (mut last, mut is_cut) = (speculation.fallbacks_from(), false);
    let mut due: Vec<Decision> = Vec::new();
    let known = state.closed_fallbacks_behind(last).take_while(|(at, _)| *at <= now);
    for (looked_at, place) in known.enumerate() {
        if looked_at == looked_at_max || due.len() == OPENED_PER_TICK {
            is_cut = true;
            break;
        }
        last = place;
        let decision = Decision::FallbackOpened { job: place.1 };
        let is_due = state.fallback_due(place.1).is_some_and(|at| at <= now);
        if is_due && state.check(&decision).is_ok() {
            due.push(decision);
        }
    }
    speculation.set_fallbacks_from(if is_cut { last } else { (LogTime(0), JobId(0)) });
    for decision in due {
        speculation.push(decision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::string::ToString;
    use alloc::vec;
    use muster_state::State;
    use muster_types::policy::PurchaseKind;
    use muster_types::{
        AcceleratorRequest, Accelerators, CapacityFallback, CapacityRules, ClusterId, Control, HolderId,
        JobContract, JobDraft, Leadership, Name, NodeDraft, Parameters, ReplicaId, RequestId, Submission,
        TaskGroup, WorkerRequest,
    };

    use crate::{Answer, BootstrapConfig, Command, handle};

    const SECOND_MS: u64 = 1_000;

    /// A host that was bought on demand.
    fn fleet() -> Speculation {
        let bootstrap = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), bootstrap);
        let purchase = PurchaseKind::OnDemand.as_str().to_string();
        let node = NodeDraft {
            name: Name::literal("n1"),
            region: Name::literal("eu"),
            cluster: Name::literal("c1"),
            block: Name::literal("b"),
            rack: Name::literal("r"),
            address: "n1".to_string(),
            accelerators: Some(Accelerators { kind: Name::literal("h100"), count: 8 }),
            cpu_milli: 64_000,
            memory_bytes: 1 << 40,
            labels: BTreeMap::from([(Name::literal("purchase"), purchase)]),
            taints: BTreeSet::new(),
            pod: None,
        };
        let spec = node.check().expect("a host");
        let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
        handle(&mut speculation, &register).expect("it is new");
        speculation
    }

    /// A job for spot nodes, and for nodes on demand after ten seconds.
    fn submit(speculation: &mut Speculation, request: u128) -> JobId {
        let has = Accelerators { kind: Name::literal("h100"), count: 1 };
        let worker = WorkerRequest {
            accelerators: Some(AcceleratorRequest::from(has)),
            cpu_milli: 1_000,
            memory_bytes: 1 << 20,
        };
        let group = TaskGroup::new(Name::literal("main"), 1, vec!["work".to_string()], worker);
        let rules = CapacityRules {
            purchases: [PurchaseKind::Spot].into_iter().collect(),
            fallback: Some(CapacityFallback {
                purchases: [PurchaseKind::OnDemand].into_iter().collect(),
                after_ms: 10 * SECOND_MS,
                is_open: false,
            }),
            interruptions_milli_max: None,
        };
        let draft = JobDraft {
            capacity: Some(Box::new(rules)),
            ..JobDraft::new(Name::literal("work"), Name::literal("team"), vec![group])
        };
        let jobs = [Submission::new(draft.check().expect("a job"), JobContract::default())].into();
        match handle(speculation, &Command::submit(RequestId(request), jobs)) {
            Ok(Answer::Submitted { jobs, .. }) => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_that_is_known_too_early_does_not_keep_others_from_their_fallback() {
        let mut speculation = fleet();
        let (early, due) = (submit(&mut speculation, 1), submit(&mut speculation, 2));
        let is_open = |speculation: &Speculation, job: JobId| {
            let spec = speculation.state().spec(job).expect("it is there");
            spec.capacity.as_deref().is_some_and(|asked| asked.closed_fallback().is_none())
        };
        // It has not waited for capacity while its owner held it, and is known as if it had.
        let hold = Command::control(RequestId(3), Control::Hold, early);
        handle(&mut speculation, &hold).expect("it waits");
        speculation.set_now(LogTime(60 * SECOND_MS));
        let release = Command::control(RequestId(4), Control::Release, early);
        handle(&mut speculation, &release).expect("it is held");
        assert_eq!(speculation.state().fallback_due(early), Some(LogTime(70 * SECOND_MS)));
        open_some(&mut speculation, 1);
        assert!(!is_open(&speculation, due), "the other one was looked at");
        open_some(&mut speculation, 1);
        assert!(is_open(&speculation, due));
        // From the first again.
        speculation.set_now(LogTime(70 * SECOND_MS));
        open_some(&mut speculation, 1);
        assert!(is_open(&speculation, early));
    }
}
