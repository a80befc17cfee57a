//! How leadership is won, watched, given up and handed to a better placed voter.

mod check_quorum;
mod election;
mod transfer;
mod watch;

pub use check_quorum::CheckQuorum;
pub(crate) use election::Elections;
pub use election::VoteKind;
pub(crate) use transfer::LeadershipTransfer;
pub(crate) use watch::watch_leadership;
