//! What time alone brings about.

mod bookings;
mod deadlines;
mod drains;
mod fallbacks;
mod stuck;
pub(crate) mod tick;
mod windows;
