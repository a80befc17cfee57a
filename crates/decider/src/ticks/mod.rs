//! What time alone brings about.

mod bookings;
mod deadlines;
mod drains;
mod fallbacks;
mod fleet_holds;
mod stuck;
pub(crate) mod tick;
mod windows;
