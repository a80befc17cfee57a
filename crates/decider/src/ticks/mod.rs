//! What time alone brings about.

mod deadlines;
mod drains;
mod stuck;
pub(crate) mod tick;
mod windows;
