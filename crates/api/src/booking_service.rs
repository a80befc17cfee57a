//! `muster.v1beta1.BookingService`.

use muster_decider::{BookingExcesses, BookingOrder, BookingPlan, Command};
use muster_engine::calendar::windows_of;
use muster_engine::{Engine, Reading};
use muster_state::State;
use muster_types::fleet::checked_name;
use muster_types::{Booking, BookingSpec, Consistency, LogTime, Name, Refusal, RefusalCode, Violation};
use muster_wire::convert::{UNSAID_OF_LISTS, booking_spec_from_proto, booking_to_proto, request_id};
use muster_wire::status::to_status;
use muster_wire::time::log_time;
use muster_wire::v1;
use muster_wire::v1::booking_service_client::BookingServiceClient;
use muster_wire::v1::booking_service_server::BookingService;
use tonic::{Request, Response, Status};

use crate::controls::requester;
use crate::forward::{Caller, Router};
use crate::read::{freshness, invalid, written};
use crate::visibility::Visibility;

pub(crate) struct Bookings {
    router: Router,
}

impl Bookings {
    pub(crate) fn new(router: Router) -> Bookings {
        Bookings { router }
    }
}

/// A booking as it is shown: of another tenant's it is not said who made it, for which user and jobs, and why.
fn shown(
    (view, excesses): (&State, &BookingExcesses),
    visibility: Visibility,
    name: &Name,
    booking: &Booking,
) -> v1::Booking {
    let mut message = booking_to_proto(name, booking);
    // Quotas and booked nodes are shown to everybody.
    message.above_quota = excesses.with(view, booking).map(ToString::to_string).unwrap_or_default();
    let owner = booking.spec.tenant.as_ref();
    if visibility == Visibility::All || owner.is_some_and(|owner| visibility.sees(view, owner)) {
        return message;
    }
    message.creator.clear();
    if owner.is_none() {
        // Why there is maintenance concerns everybody.
        return message;
    }
    if let Some(spec) = &mut message.spec {
        spec.user.clear();
        spec.jobs.clear();
        spec.reason.clear();
    }
    message
}

/// All bookings, by name, as they are shown.
pub(crate) fn list(view: &Reading, visibility: Visibility) -> Vec<v1::Booking> {
    let excesses = BookingExcesses::of(view);
    view.bookings().map(|(name, booking)| shown((view, &excesses), visibility, name, booking)).collect()
}

/// Finds the windows of a rule: the log has their moments, so that no replica that reads it needs to know zones.
fn with_windows(mut spec: BookingSpec, now: LogTime) -> Result<BookingSpec, Vec<Violation>> {
    let Some(listed) = &mut spec.times.listed else { return Ok(spec) };
    let from = if spec.times.start == LogTime(0) { now } else { spec.times.start };
    let Some(starts) = windows_of(&listed.rule, from, spec.times.windows) else {
        let text =
            format!("there is no time zone {:?}; name one like Europe/Berlin or UTC", listed.rule.zone);
        return Err(vec![Violation::new("spec.rule.zone", text)]);
    };
    listed.start_minutes = starts;
    let mut violations = spec.violations();
    if violations.is_empty() && !spec.times.is_whole() {
        violations
            .push(Violation::new("windows", "must be fewer: the calendar ends before the last of them"));
    }
    if violations.is_empty() {
        return Ok(spec);
    }
    Err(violations.into_iter().map(|violation| violation.under("spec")).collect())
}

/// The name and what is to be booked, or every field that is wrong.
fn asked(
    name: &str,
    spec: Option<v1::BookingSpec>,
    now: LogTime,
) -> Result<(Name, BookingSpec), Vec<Violation>> {
    let spec = booking_spec_from_proto(spec).and_then(|spec| with_windows(spec, now));
    match (checked_name("name", name), spec) {
        (Ok(name), Ok(spec)) => Ok((name, spec)),
        (name, spec) => {
            let mut violations: Vec<Violation> = name.err().into_iter().collect();
            violations.extend(spec.err().unwrap_or_default());
            Err(violations)
        }
    }
}

fn create_command(
    caller: &Caller,
    message: &v1::CreateBookingRequest,
    now: LogTime,
) -> Result<Command, Status> {
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    let asked = asked(&message.name, message.spec.clone(), now);
    match (request_id("request_id", &message.request_id), asked) {
        (Ok(request), Ok((name, spec))) => {
            let order = BookingOrder { request, by: requester(caller), acts_for, name, spec };
            Ok(Command::CreateBooking(Box::new(order)))
        }
        (request, asked) => {
            let mut violations: Vec<Violation> = request.err().into_iter().collect();
            violations.extend(asked.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

fn delete_command(caller: &Caller, message: &v1::DeleteBookingRequest) -> Result<Command, Status> {
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    match (request_id("request_id", &message.request_id), checked_name("name", &message.name)) {
        (Ok(request), Ok(name)) => {
            Ok(Command::DeleteBooking { request, by: requester(caller), acts_for, name })
        }
        (request, name) => Err(invalid(request.err().into_iter().chain(name.err()).collect())),
    }
}

/// The booking that a message asked for, as the state has it now and the caller may see it: when a repetition is answered,
/// another tenant may have one under that name.
fn created(engine: &Engine, visibility: Visibility, name: &str) -> Option<v1::Booking> {
    let name = Name::new(name)?;
    let view = engine.view();
    let booking = view.booking(&name)?;
    Some(shown((&view, &BookingExcesses::of(&view)), visibility, &name, booking))
}

fn planned(engine: &Engine, view: &Reading, plan: &BookingPlan) -> v1::PlanBookingResponse {
    let overrunning = plan.overrunning.iter();
    let overrunning = overrunning
        .map(|(job, end)| v1::OverrunningJob { job_id: job.to_string(), expected_end_time: log_time(*end) });
    v1::PlanBookingResponse {
        nodes: plan.nodes.iter().map(Name::to_string).collect(),
        overrunning: overrunning.collect(),
        displaced_job_ids: plan.displaced.iter().map(ToString::to_string).collect(),
        truncated: plan.is_cut,
        knows_reservations: plan.knows_reservations,
        node_count: u32::try_from(plan.node_count).unwrap_or(u32::MAX),
        met_bookings: plan.met.iter().map(Name::to_string).collect(),
        freshness: Some(freshness(engine, view)),
    }
}

#[tonic::async_trait]
impl BookingService for Bookings {
    async fn create_booking(
        &self,
        request: Request<v1::CreateBookingRequest>,
    ) -> Result<Response<v1::CreateBookingResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let engine = self.router.engine();
        let command = create_command(&caller, &message, engine.now(&engine.view()))?;
        let visibility = caller.visibility();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            let booking = created(engine, visibility, &message.name);
            Ok(v1::CreateBookingResponse { booking, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(BookingServiceClient::new(channel).create_booking(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn plan_booking(
        &self,
        request: Request<v1::PlanBookingRequest>,
    ) -> Result<Response<v1::PlanBookingResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let account = caller.account();
        let message = request.into_inner();
        let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
        let engine = self.router.engine();
        let now = engine.now(&engine.view());
        let (name, spec) = asked(&message.name, message.spec, now).map_err(invalid)?;
        let view =
            self.router.fresh(account, (message.read.as_ref(), Consistency::Linearizable), deadline).await?;
        let work = {
            let (engine, view) = (engine.clone(), (*view).clone());
            async move { engine.plan_booking(&view, (acts_for, name), spec).await }
        };
        let plan = self.router.in_turn(account, work).await.map_err(|refusal| to_status(&refusal))?;
        Ok(Response::new(planned(engine, &view, &plan)))
    }

    async fn get_booking(
        &self,
        request: Request<v1::GetBookingRequest>,
    ) -> Result<Response<v1::GetBookingResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let message = request.into_inner();
        let name = checked_name("name", &message.name).map_err(|violation| invalid(vec![violation]))?;
        let engine = self.router.engine();
        let asked = (message.read.as_ref(), Consistency::Linearizable);
        let view = self.router.fresh(caller.account(), asked, deadline).await?;
        let excesses = BookingExcesses::of(&view);
        let booking = view.booking(&name);
        let booking = booking.map(|booking| shown((&view, &excesses), caller.visibility(), &name, booking));
        if booking.is_none() {
            let refusal = Refusal::new(RefusalCode::BookingNotFound, format!("there is no booking {name}"));
            return Err(to_status(&refusal.with("booking", &name)));
        }
        Ok(Response::new(v1::GetBookingResponse { booking, freshness: Some(freshness(engine, &view)) }))
    }

    async fn list_bookings(
        &self,
        request: Request<v1::ListBookingsRequest>,
    ) -> Result<Response<v1::ListBookingsResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let (account, visibility) = (caller.account(), caller.visibility());
        let message = request.into_inner();
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let bytes = view.bookings().map(|(_, booking)| 1_024 + booking.nodes.len() * 64).sum();
        let make = move || {
            let bookings = list(&view, visibility);
            Ok(v1::ListBookingsResponse { bookings, freshness: Some(freshness(&engine, &view)) })
        };
        self.router.page(account, bytes, make).await
    }

    async fn delete_booking(
        &self,
        request: Request<v1::DeleteBookingRequest>,
    ) -> Result<Response<v1::DeleteBookingResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let command = delete_command(&caller, &message)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            Ok(v1::DeleteBookingResponse { freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(BookingServiceClient::new(channel).delete_booking(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }
}
