//! Holds of parts of the fleet and of tenants: set and released.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_types::{
    FleetHold, HoldTarget, JobId, Refusal, RefusalCode, RequestId, Requester, Violation, limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::settle::job::settle_many;
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// What is to be held, or released.
#[derive(Clone, Debug)]
pub struct FleetHoldOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks.
    pub by: Requester,
    /// What.
    pub target: HoldTarget,
    /// How; none releases it.
    pub hold: Option<FleetHold>,
}

pub(super) fn set(speculation: &mut Speculation, order: &FleetHoldOrder) -> Result<Answer, Refusal> {
    let FleetHoldOrder { request, by, target, hold } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("hold", target, hold)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check(speculation, order)?;
    let decision = Decision::FleetHoldSet {
        request: key,
        by: by.clone(),
        target: target.clone(),
        hold: hold.clone().map(Box::new),
    };
    if let Err(error) = speculation.state().check(&decision) {
        let text = format!("a hold of {target} would break a rule of the log: {error:?}");
        return Err(Refusal::new(RefusalCode::StateFull, text));
    }
    // Nobody who releases something is held up.
    pruning_for_request(speculation, hold.is_some(), 0)?.carry_out(speculation);
    let at = speculation.push(decision);
    // Capacity that is promised there now goes to nobody.
    let state = speculation.state();
    let covered = state.nodes_by_name().filter(|(_, id)| {
        let row = state.node(*id);
        hold.is_some() && row.is_some_and(|row| target.part().covers(&row.spec))
    });
    let promised: Vec<JobId> = covered.flat_map(|(_, id)| state.promised_on(id)).collect();
    settle_many(speculation, promised);
    Ok(Answer::Done { at })
}

fn check(speculation: &Speculation, order: &FleetHoldOrder) -> Result<(), Refusal> {
    let (state, now) = (speculation.state(), speculation.now());
    let FleetHoldOrder { request: _, by, target, hold } = order;
    let mut violations = target.violations();
    if !by.is_valid() {
        let text = format!("must be at most {} bytes of printable ASCII", limits::CREATOR_BYTES_MAX);
        violations.push(Violation::new("by", text));
    }
    if let HoldTarget::Tenant(tenant) = target
        && hold.is_some()
        && !state.policy().policy.tenants.contains_key(tenant)
    {
        let text = format!("the policy lists no tenant {tenant}; add it with `muster policy set`");
        violations.push(Violation::new("target.tenant", text));
    }
    if let Some(hold) = hold {
        violations.extend(hold.violations());
        if hold.until.is_some_and(|until| until <= now) {
            violations.push(Violation::new("end_time", format!("must be later than now; log time is {now}")));
        }
        if hold.stops_work && matches!(target, HoldTarget::Tenant(_)) {
            let text = "must be left out for a tenant; `muster job suspend --tenant` stops its jobs";
            violations.push(Violation::new("drain", text));
        }
    }
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let is_there = state.fleet_hold(target).is_some();
    if hold.is_none() && !is_there {
        let text = format!("nobody holds {target}; `muster region list` lists what is held");
        return Err(Refusal::fields(alloc::vec![Violation::new("target", text)]));
    }
    let held = state.fleet_holds().count();
    if !is_there && held >= limits::FLEET_HOLDS_MAX {
        let text = format!("{held} holds are in use, which is the limit: release one");
        let refusal = Refusal::new(RefusalCode::StateFull, text).with("limit", "fleet_holds_max");
        return Err(refusal.with("held", held).with("held_max", limits::FLEET_HOLDS_MAX));
    }
    Ok(())
}
