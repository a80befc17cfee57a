//! Bookings: made, planned, looked at and given up.

use muster_wire::v1;
use v1::booking_service_client::BookingServiceClient;

use crate::Client;
use crate::calls::{ANSWER_BYTES_MAX, changes, ensure_request_id, repeatable, within};
use crate::channel::Channel;
use crate::error::CallError;
use crate::retry::Subject;

fn bookings(channel: Channel) -> BookingServiceClient<Channel> {
    BookingServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

impl Client {
    changes! {
        bookings:
        /// Sets nodes aside for a tenant.
        "create booking", create_booking: CreateBookingRequest -> CreateBookingResponse;
        /// Gives a booking up.
        "delete booking", delete_booking: DeleteBookingRequest -> DeleteBookingResponse;
    }

    /// What a booking would come to, without a change.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn plan_booking(
        &self,
        mut request: v1::PlanBookingRequest,
    ) -> Result<v1::PlanBookingResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { bookings(channel).plan_booking(within(limit, request)).await }
        };
        let answer: v1::PlanBookingResponse = self.retry(repeatable("plan booking"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One booking.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_booking(
        &self,
        mut request: v1::GetBookingRequest,
    ) -> Result<v1::GetBookingResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { bookings(channel).get_booking(within(limit, request)).await }
        };
        let answer: v1::GetBookingResponse = self.retry(repeatable("get booking"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// All bookings that are not over, by name.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_bookings(
        &self,
        mut request: v1::ListBookingsRequest,
    ) -> Result<v1::ListBookingsResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| async move { bookings(channel).list_bookings(within(limit, request)).await };
        let answer: v1::ListBookingsResponse = self.retry(repeatable("list bookings"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }
}
