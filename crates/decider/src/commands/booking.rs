//! Bookings, also for maintenance: made, and given up.

use alloc::boxed::Box;
use alloc::format;
use muster_journal::{Decision, RequestKey, hash};
use muster_types::{BookingSpec, Name, Refusal, RefusalCode, RequestId, Requester, Violation, limits};

use crate::commands::answer::{Answer, repeated};
use crate::rules::bookings::{CheckedBooking, prepare};
use crate::settle::retention::pruning_for_request;
use crate::speculation::Speculation;

/// Nodes that are to be set aside.
#[derive(Clone, Debug)]
pub struct BookingOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks.
    pub by: Requester,
    /// The tenant that the requester is bound to; none where it acts for the cluster's operators.
    pub acts_for: Option<Name>,
    /// What the booking is called.
    pub name: Name,
    /// What is to be booked. A start of 0 is now.
    pub spec: BookingSpec,
}

/// What was asked for, without the moments that were found for its windows: a repetition may be found others.
fn as_asked(spec: &BookingSpec) -> BookingSpec {
    let mut asked = spec.clone();
    if let Some(listed) = &mut asked.times.listed {
        listed.start_minutes.clear();
    }
    asked
}

pub(super) fn create(speculation: &mut Speculation, order: &BookingOrder) -> Result<Answer, Refusal> {
    let BookingOrder { request, by, acts_for, name, spec } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("create booking", name, as_asked(spec))) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_requester(by)?;
    // Bookings can be made and deleted without end, each request is remembered, and each choice looks at the whole fleet, also
    // one that ends in a refusal: those of a tenant are counted first.
    if let Some(own) = acts_for {
        speculation.count_request([own])?;
    }
    let CheckedBooking { spec, nodes } =
        prepare(speculation.state(), speculation.now(), acts_for.as_ref(), name, spec)?;
    let decision = Decision::BookingCreated {
        request: key,
        by: by.clone(),
        name: name.clone(),
        spec: Box::new(spec),
        nodes,
    };
    if let Err(error) = speculation.state().check(&decision) {
        let text = format!("booking {name} would break a rule of the log: {error:?}");
        return Err(Refusal::new(RefusalCode::BookingDoesNotFit, text));
    }
    pruning_for_request(speculation, acts_for.is_some(), 0)?.carry_out(speculation);
    Ok(Answer::Done { at: speculation.push(decision) })
}

pub(super) fn delete(
    speculation: &mut Speculation,
    (request, by): (RequestId, &Requester),
    acts_for: Option<&Name>,
    name: &Name,
) -> Result<Answer, Refusal> {
    let key = RequestKey { id: request, fingerprint: hash(&("delete booking", name)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    check_requester(by)?;
    let state = speculation.state();
    let policy = &state.policy().policy;
    let is_reached = state.booking(name).is_some_and(|booking| {
        let owner = booking.spec.tenant.as_ref();
        let is_below =
            |own: &Name| owner.is_some_and(|owner| policy.ancestry(owner).any(|above| above == own));
        acts_for.is_none_or(is_below)
    });
    let decision = Decision::BookingDeleted { request: key, by: by.clone(), name: name.clone() };
    if !is_reached || state.check(&decision).is_err() {
        let text = match acts_for {
            None => format!("there is no booking {name}"),
            Some(own) => format!("there is no booking {name} of tenant {own} or of one below it"),
        };
        return Err(Refusal::new(RefusalCode::BookingNotFound, text).with("booking", name));
    }
    // Nobody who gives nodes back is held up.
    pruning_for_request(speculation, false, 0)?.carry_out(speculation);
    Ok(Answer::Done { at: speculation.push(decision) })
}

fn check_requester(by: &Requester) -> Result<(), Refusal> {
    if by.is_valid() {
        return Ok(());
    }
    let text = format!("must be at most {} bytes of printable ASCII", limits::CREATOR_BYTES_MAX);
    Err(Refusal::fields(alloc::vec![Violation::new("by", text)]))
}
