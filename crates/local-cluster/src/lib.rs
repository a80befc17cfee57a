//! A whole cluster as processes on this machine: `muster dev` to try things, and `muster quickstart` to watch it survive
//! failures.

pub mod dev;
mod fleet;
pub mod quickstart;

pub use fleet::DIE_WITH_PARENT;
