//! How many members of an array may be unfinished at a time, changed while it waits or runs.

use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::State;
use muster_types::{
    ArrayId, ArraySpec, JobId, Name, Refusal, RefusalCode, RequestId, Requester, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::commands::controls::{check_acts_for, not_found};
use crate::settle::job::advance_arrays;
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// A change of the throttle of one array, and who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks for the change, as it is recorded.
    pub by: Requester,
    /// The tenant that the one who asks acts for, and for those below it; none acts for all.
    pub acts_for: Option<Name>,
    /// Which array.
    pub array: ArrayId,
    /// How many of its members may exist as jobs that are not over; none for no limit.
    pub throttle: Option<u32>,
}

/// What every change of a throttle must pass; also the check without a change.
///
/// # Errors
/// `JOB_NOT_FOUND` when there is no such array, `JOB_FINISHED` when it is over, and `JOB_PHASE` when every member of it is a job
/// already, so that there is nothing to keep back.
pub fn check_throttle(state: &State, order: &ThrottleOrder) -> Result<(), Refusal> {
    let ThrottleOrder { by, acts_for, array, throttle, .. } = order;
    let first = JobId(array.0);
    check_acts_for(state, acts_for.as_ref(), first)?;
    let row = state.array(*array).ok_or_else(|| not_found(first))?;
    let after = ArraySpec { throttle: *throttle, ..row.template.array.clone() };
    let mut found: Vec<Violation> =
        after.violations().into_iter().map(|violation| violation.under("job.spec")).collect();
    if !by.is_valid() {
        let max = limits::CREATOR_BYTES_MAX;
        found.push(Violation::new("by", format!("must be at most {max} bytes of printable ASCII")));
    }
    if !found.is_empty() {
        return Err(Refusal::fields(found));
    }
    if row.finished_at.is_some() {
        let text = format!("{array} has already finished");
        return Err(Refusal::new(RefusalCode::JobFinished, text).with("job_id", first));
    }
    if row.uncreated == 0 {
        let text = format!(
            "every member of {array} is a job already or has ended, and its throttle keeps none of them back; `muster job hold` keeps \
             those that wait from starting"
        );
        let refusal = Refusal::new(RefusalCode::JobPhase, text).with("job_id", first);
        return Err(refusal.with("changed_at_index", row.changed_at));
    }
    Ok(())
}

/// Changes the throttle. Members that may be created now are jobs before the call is answered, as far as the round has space for them.
pub(super) fn set_throttle(speculation: &mut Speculation, order: &ThrottleOrder) -> Result<Answer, Refusal> {
    let ThrottleOrder { request, by, array, throttle, .. } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("throttle", *array, *throttle)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_throttle(speculation.state(), order)?;
    let pruning = pruning_for_request(speculation, !by.is_operator, 0)?;
    let tenant = speculation.state().tenant_of(JobId(array.0)).cloned();
    if !by.is_operator {
        speculation.count_request(tenant.iter())?;
    }
    pruning.carry_out(speculation);
    let decision =
        Decision::ArrayThrottleSet { request: key, by: by.clone(), array: *array, throttle: *throttle };
    let at = speculation.push(decision);
    advance_arrays(speculation);
    Ok(Answer::Done { at })
}
