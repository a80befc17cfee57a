//! Stored calls about bookings, and about what operators hold.

use super::*;

/// Calls about bookings, and about what is held.
pub(super) fn bookings() -> Vec<Stored> {
    let shape = v1::BookingShape {
        nodes: Vec::new(),
        hosts: 0,
        devices: 16,
        accelerator: "h100".to_owned(),
        region: "eu".to_owned(),
        cluster: "c1".to_owned(),
        labels: [("pool".to_owned(), "research".to_owned())].into(),
    };
    let spec = v1::BookingSpec {
        tenant: "lab".to_owned(),
        user: "tenant/lab/ada".to_owned(),
        jobs: vec!["evaluate".to_owned()],
        shared: false,
        shape: Some(shape),
        start_time: Some(timestamp(4_102_444_800_000)),
        length: Some(duration(3_600_000)),
        every_days: 7,
        windows: 4,
        notice: Some(duration(7_200_000)),
        clearing: v1::BookingClearing::Fill.into(),
        reason: "evaluation".to_owned(),
        rule: None,
        maintenance: false,
    };
    let name = || "demo".to_owned();
    let create =
        v1::CreateBookingRequest { request_id: ID.to_owned(), name: name(), spec: Some(spec.clone()) };
    let plan = v1::PlanBookingRequest { name: name(), spec: Some(spec), read: read() };
    let delete = v1::DeleteBookingRequest { request_id: ID.to_owned(), name: name() };
    let hold = v1::SetFleetHoldRequest {
        request_id: ID.to_owned(),
        target: Some(v1::HoldTarget {
            region: "eu".to_owned(),
            cluster: "c1".to_owned(),
            tenant: String::new(),
        }),
        held: Some(true),
        reason: "a flood".to_owned(),
        end_time: Some(timestamp(4_102_444_800_000)),
        drain: true,
    };
    let of_region = v1::BookingShape { region: "eu".to_owned(), ..Default::default() };
    let maintenance = v1::CreateBookingRequest {
        request_id: ID.to_owned(),
        name: "upgrade".to_owned(),
        spec: Some(v1::BookingSpec {
            maintenance: true,
            shape: Some(of_region),
            length: Some(duration(14_400_000)),
            ..Default::default()
        }),
    };
    vec![
        stored("create-booking", "BookingService/CreateBooking", create),
        stored("plan-booking", "BookingService/PlanBooking", plan),
        stored(
            "get-booking",
            "BookingService/GetBooking",
            v1::GetBookingRequest { name: name(), read: read() },
        ),
        stored("list-bookings", "BookingService/ListBookings", v1::ListBookingsRequest { read: read() }),
        stored("delete-booking", "BookingService/DeleteBooking", delete),
        stored("maintenance", "BookingService/CreateBooking", maintenance),
        stored("hold-region", "FleetService/SetFleetHold", hold),
        stored("list-holds", "FleetService/ListFleetHolds", v1::ListFleetHoldsRequest { read: read() }),
    ]
}
