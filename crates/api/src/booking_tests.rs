//! Bookings, through a real listener.

use muster_transport::Role;
use muster_types::RefusalCode;
use muster_wire::status::Refused;
use muster_wire::time::duration;
use muster_wire::v1;
use muster_wire::v1::booking_service_client::BookingServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use tonic::Status;

use crate::access_tests::{World, guarded, of_tenant, short, submission};

fn code<T>(answer: Result<T, Status>) -> Option<RefusalCode> {
    answer.err().and_then(|status| Refused::from_status(&status).code)
}

fn id(number: u32) -> String {
    format!("00000000-0000-4000-9000-{number:012}")
}

fn spec(tenant: &str) -> v1::BookingSpec {
    v1::BookingSpec {
        tenant: tenant.to_owned(),
        shape: Some(v1::BookingShape { nodes: vec!["h1".to_owned()], ..Default::default() }),
        length: Some(duration(3_600_000)),
        clearing: v1::BookingClearing::Stop.into(),
        reason: "a demonstration".to_owned(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_booking_is_planned_made_shown_and_given_up() {
    let world = World::with_tenants().await;
    world.job_of("speech").await;
    let mut root = BookingServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let plan = v1::PlanBookingRequest { name: "demo".to_owned(), spec: Some(spec("vision")), read: None };
    let planned = guarded("a plan", root.plan_booking(plan.clone())).await.expect("it fits").into_inner();
    assert_eq!(planned.nodes, ["h1"]);
    let create =
        v1::CreateBookingRequest { request_id: id(1), name: "demo".to_owned(), spec: Some(spec("vision")) };
    let made = guarded("a booking", root.create_booking(create.clone())).await.expect("it fits");
    let made = made.into_inner().booking.expect("it is there");
    assert_eq!((made.name.as_str(), made.creator.as_str()), ("demo", "admin/root"));
    let again = guarded("a booking", root.create_booking(create)).await.expect("it was made").into_inner();
    assert_eq!(
        again.booking.map(|booking| booking.name).as_deref(),
        Some("demo"),
        "repeating it makes no other"
    );
    assert_eq!(code(guarded("a plan", root.plan_booking(plan)).await), Some(RefusalCode::BookingExists));

    // Others see which nodes it keeps, and not why.
    let get = || v1::GetBookingRequest { name: "demo".to_owned(), read: None };
    for (tenant, is_shown) in [("vision", true), ("video", false), ("speech", false)] {
        let mut client = BookingServiceClient::new(world.channel(of_tenant(tenant, "ada")).await);
        let shown = guarded("a booking", client.get_booking(get())).await.expect("everybody looks");
        let shown = shown.into_inner().booking.expect("it is there");
        let reason = shown.spec.expect("it has one").reason;
        assert_eq!((shown.nodes.len(), !reason.is_empty()), (1, is_shown), "{tenant}");
        let listed = guarded("a list", client.list_bookings(v1::ListBookingsRequest::default())).await;
        let listed = listed.expect("everybody looks").into_inner().bookings;
        assert_eq!(listed.len(), 1);
        assert_eq!(!listed[0].creator.is_empty(), is_shown, "{tenant}");
        let mine =
            v1::CreateBookingRequest { request_id: id(2), name: "mine".to_owned(), spec: Some(spec(tenant)) };
        let refused = code(guarded("a booking", client.create_booking(mine)).await);
        assert_eq!(
            refused,
            Some(RefusalCode::PermissionDenied),
            "{tenant}: a certificate alone does not book"
        );
    }
    let delete = v1::DeleteBookingRequest { request_id: id(3), name: "demo".to_owned() };
    guarded("the end", root.delete_booking(delete)).await.expect("it is there");
    assert_eq!(code(guarded("a booking", root.get_booking(get())).await), Some(RefusalCode::BookingNotFound));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_fields_and_names_are_refused() {
    let world = World::with_tenants().await;
    world.job_of("speech").await;
    let channel = world.channel(Role::Admin(short("root"))).await;
    let mut root = BookingServiceClient::new(channel.clone());
    let create = |number: u32, name: &str, spec: v1::BookingSpec| v1::CreateBookingRequest {
        request_id: id(number),
        name: name.to_owned(),
        spec: Some(spec),
    };
    let invalid = RefusalCode::InvalidField;
    let elsewhere = v1::BookingShape { nodes: vec!["h9".to_owned()], ..Default::default() };
    for (request, expected) in [
        (create(1, "No Name", spec("vision")), invalid),
        (create(2, "demo", v1::BookingSpec::default()), invalid),
        (create(3, "demo", spec("nobody")), invalid),
        (
            v1::CreateBookingRequest { request_id: "x".to_owned(), ..create(4, "demo", spec("vision")) },
            invalid,
        ),
        (
            create(5, "demo", v1::BookingSpec { shape: Some(elsewhere), ..spec("vision") }),
            RefusalCode::NodeNotFound,
        ),
    ] {
        let text = format!("{request:?}");
        assert_eq!(code(guarded("a booking", root.create_booking(request)).await), Some(expected), "{text}");
    }
    let mut job = submission("vision", 3);
    job.job.as_mut().expect("it has one").spec_mut().booking = "demo".to_owned();
    let refused = guarded("a job", JobServiceClient::new(channel).submit_job(job)).await;
    assert_eq!(code(refused), Some(invalid), "there is no such booking");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_a_rule_are_found_where_the_booking_is_made() {
    let world = World::with_tenants().await;
    world.job_of("speech").await;
    let mut root = BookingServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let with_rule = |zone: &str, length_ms| {
        let (weekdays, time, zone) = ("daily".to_owned(), "09:00".to_owned(), zone.to_owned());
        let rule = Some(v1::BookingRule { weekdays, time, zone });
        v1::BookingSpec { windows: 20, length: Some(duration(length_ms)), rule, ..spec("vision") }
    };
    let create = |number, spec| v1::CreateBookingRequest {
        request_id: id(number),
        name: "office".to_owned(),
        spec: Some(spec),
    };
    const HOUR_MS: u64 = 3_600_000;
    for bad in [with_rule("Europe/Nowhere", HOUR_MS), with_rule("UTC", 25 * HOUR_MS)] {
        let refused = guarded("a booking", root.create_booking(create(1, bad))).await;
        assert_eq!(code(refused), Some(RefusalCode::InvalidField));
    }
    let asked = create(2, with_rule("Europe/Berlin", 8 * HOUR_MS));
    let made = guarded("a booking", root.create_booking(asked.clone())).await.expect("it fits").into_inner();
    let booking = made.booking.expect("it is there");
    assert_eq!(
        (booking.windows_left, booking.spec.expect("one").rule.expect("one").time),
        (20, "09:00".into())
    );
    // Berlin is one or two hours ahead of UTC.
    let start = booking.window_start_time.expect("a moment").seconds;
    assert!([7, 8].contains(&(start / 3_600 % 24)), "{start}");
    // A repetition is found other moments, and is the same request.
    guarded("a repetition", root.create_booking(asked)).await.expect("it is answered");
}
