//! Rules that a special build breaks on purpose, to see that the checks notice.
//!
//! A check that has never found anything may be a check that cannot. So each rule here is a condition in the
//! product, at every place that keeps it, and asks [`breaks`] whether it is to be broken. Without the feature
//! `on` that is `false` before the compiler looks at what follows: nothing of it is in the product.
//!
//! With the feature a process breaks the one rule that `MUSTER_PLANTED_BUG` names, or none where it says
//! `none`; and so that nobody ever relies on such a build, [`admit`] lets it work only where it is told to
//! and only in directories that such a build has made.
//!
//! **Invariant:** without the feature nothing here reads the environment, a file, or anything else.

mod refusal;
mod rule;

pub use refusal::Refusal;
pub use rule::{Rule, UnknownRule};

/// Names the rule that a process breaks.
pub const VARIABLE: &str = "MUSTER_PLANTED_BUG";

/// Whether this build can break rules.
pub const IS_ON: bool = cfg!(feature = "on");

/// Whether this process breaks `rule`. Always false in a build that cannot break any.
#[cfg(not(feature = "on"))]
#[must_use]
#[inline(always)]
pub const fn breaks(_rule: Rule) -> bool {
    false
}

#[cfg(feature = "on")]
mod on;
#[cfg(feature = "on")]
pub use on::{admit, break_here, breaks, confess};

/// Breaks a rule on this thread alone; nothing, in a build that breaks none.
#[cfg(not(feature = "on"))]
#[inline(always)]
pub const fn break_here(_rule: Option<Rule>) {}

/// Whether this process may work in `directory`: always, in a build that breaks nothing.
///
/// # Errors
/// Never, in such a build.
#[cfg(not(feature = "on"))]
#[inline(always)]
pub const fn admit(_directory: &std::path::Path) -> Result<(), Refusal> {
    Ok(())
}

/// What a process that breaks rules says of itself before anything else; none in a build that breaks
/// nothing.
#[cfg(not(feature = "on"))]
#[must_use]
#[inline(always)]
pub const fn confess() -> Option<String> {
    None
}
