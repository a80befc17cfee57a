//! What policy promises, held as bounds over generated worlds.
//!
//! A world is a fleet, a tree of tenants with quotas and rights, what its tenants submit and what an operator
//! does; `world` makes one from a seed. `drive` lets virtual time pass over it: agents start and stop what
//! they are told to, and jobs end when they are done, which nobody told the scheduler. `measure` looks at
//! every decision. Each of the other modules states one promise and the bound that a world may not break.
//!
//! The scheduler is a black box here: commands and time go in, decisions come out. What is right is worked
//! out a second time, by simple and slow means, in `book` (who borrows, who may be stopped for whom)
//! and `strict` (first come, first served). `choices` has what policy may choose and limit for a tenant, what each choice takes from the
//! promises, and what holds in its place.
//!
//! A failure names its seed, which is the whole bug report. `MUSTER_PROMISE_SEEDS` sets how many seeds each
//! property tries; by default so few that all of them together take seconds.
// A test may read the environment; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod adversaries;
mod book;
mod choices;
mod drive;
mod guarantee;
mod least_harm;
mod measure;
mod passes;
#[path = "../decider/random.rs"]
mod random;
mod rights;
mod shares;
mod starvation;
mod strict;
mod trees;
mod unrest;
mod user_shares;
mod world;

/// How many seeds a property tries.
pub fn seeds(default: u64) -> u64 {
    std::env::var("MUSTER_PROMISE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
