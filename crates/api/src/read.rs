//! What all reads share: which state they are answered from, freshness and page sizes.
//!
//! **Invariant:** a read gets the state that it answers from by [`fresh`], or by [`present`] where any state will do. What follows
//! changes shows each by the state that is there by then.

use muster_engine::{Engine, Reading, staleness_ms};
use muster_state::State;
use muster_types::{ClusterId, Consistency, LogIndex, ReadFrom, Refusal, RefusalCode, Violation};
use muster_wire::convert::{ReadAsked, read_from_proto};
use muster_wire::status::to_status;
use muster_wire::time::{duration, log_time};
use muster_wire::token::TokenError;
use muster_wire::v1;
use std::ops::Deref;
use tokio::time::Instant;
use tonic::Status;

use crate::shares::Account;
use crate::turns::QueuePermit;

const PAGE_SIZE_DEFAULT: u32 = 100;
const PAGE_SIZE_MAX: u32 = 1_000;

/// The refusal of a page token.
pub(crate) fn bad_page(error: TokenError) -> Status {
    to_status(&Refusal::new(RefusalCode::PageTokenInvalid, error.to_string()))
}

/// A state that was read, with what had to be waited for before it could be: the number of those of the past is bounded.
pub(crate) struct Fresh {
    reading: Reading,
    _turn: Option<QueuePermit>,
}

impl Deref for Fresh {
    type Target = Reading;

    fn deref(&self) -> &Reading {
        &self.reading
    }
}

/// The state that a read asks for, before its caller's time is over, or where it says nothing of that, one of the
/// consistency that its call has then. A read of the past waits for a turn first.
pub(crate) async fn fresh(
    engine: &Engine,
    (account, past): (Account, impl Future<Output = Result<QueuePermit, Refusal>>),
    (options, unsaid): (Option<&v1::ReadOptions>, Consistency),
    deadline: Instant,
) -> Result<Fresh, Status> {
    let here = |options| in_generation(engine.view().generation(), options);
    let options = options.copied().map(here).transpose().map_err(|refusal| to_status(&refusal))?;
    let asked = read_from_proto("read", options.as_ref(), unsaid).map_err(invalid)?;
    let ReadAsked { from, min_log_index } = asked;
    let turn = match from {
        ReadFrom::Present { .. } => None,
        ReadFrom::Past(_) => {
            let waited = tokio::time::timeout_at(deadline, past).await;
            let turn = waited.map_err(|_| to_status(&past_waits(account)))?;
            Some(turn.map_err(|refusal| to_status(&refusal))?)
        }
    };
    if turn.is_some() {
        let applied = engine.read_present(Consistency::Any, min_log_index, deadline).await;
        applied.map_err(|refusal| to_status(&refusal))?;
    }
    let reading = engine.read_view(from, deadline).await.map_err(|refusal| to_status(&refusal))?;
    Ok(Fresh { reading, _turn: turn })
}

/// The state that is here: what [`fresh`] answers a read with that accepts any, at once.
pub(crate) fn present(engine: &Engine) -> Reading {
    engine.reading()
}

fn past_waits(account: Account) -> Refusal {
    let text =
        format!("{account} has other reads of the past before this one, and its time was over; try again");
    Refusal::new(RefusalCode::Overloaded, text).with("retry_after_ms", 1_000).with("account", account)
}

/// A position of an earlier generation of the cluster asks for nothing: its record may be lost, and another one have its number.
/// One of a later generation is not reached by a replica that was left behind in its own, whatever the number.
fn in_generation(generation: u32, options: v1::ReadOptions) -> Result<v1::ReadOptions, Refusal> {
    if options.generation > generation && options.min_log_index > 0 {
        let text = format!(
            "this replica is in generation {generation} of the cluster, and the position is one of generation {}",
            options.generation
        );
        return Err(Refusal::new(RefusalCode::LogIndexNotReached, text));
    }
    let is_earlier = options.generation > 0 && options.generation < generation;
    Ok(v1::ReadOptions { min_log_index: if is_earlier { 0 } else { options.min_log_index }, ..options })
}

/// What an answer from `reading` says about itself.
pub(crate) fn freshness(engine: &Engine, reading: &Reading) -> v1::Freshness {
    v1::Freshness {
        log_index: reading.log_index().0,
        log_time: log_time(reading.log_time()),
        staleness: reading.staleness().map(|staleness| duration(staleness_ms(staleness))),
        replica_id: engine.info().replica.0,
        leader_id: engine.leader_id().map_or(0, |leader| leader.0),
        generation: reading.generation(),
    }
}

/// What the answer to a write says about itself: complete up to its own record.
pub(crate) fn written(engine: &Engine, at: LogIndex) -> Option<v1::Freshness> {
    let own = freshness(engine, &engine.reading());
    // The rest is of whatever state is here by now.
    Some(v1::Freshness { log_index: at.0, log_time: None, staleness: None, ..own })
}

/// A page ends when it has come to this size: with one row behind that it stays below the 4 MiB that gRPC libraries read without
/// being told otherwise. Only rows with many long labels come to it; pages of full jobs have a bound of less.
pub(crate) const PAGE_BYTES_MAX: usize = 3 << 20;

/// Rows of a page.
pub(crate) fn page_size(asked: u32) -> Result<usize, Status> {
    match asked {
        0 => Ok(PAGE_SIZE_DEFAULT as usize),
        1..=PAGE_SIZE_MAX => Ok(asked as usize),
        _ => Err(invalid(vec![Violation::limit("page_size", asked.into(), 0, PAGE_SIZE_MAX.into())])),
    }
}

/// The cluster's identity; it exists once the first leader has written it.
pub(crate) fn cluster(view: &State) -> Result<ClusterId, Status> {
    view.cluster().map(|c| c.cluster).ok_or_else(|| {
        to_status(&Refusal::new(
            RefusalCode::ClusterNotReady,
            "the cluster has not elected its first leader yet",
        ))
    })
}

/// A refusal for fields.
pub(crate) fn invalid(violations: Vec<Violation>) -> Status {
    to_status(&Refusal::fields(violations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_of_an_earlier_generation_asks_for_nothing() {
        let asked = |generation| v1::ReadOptions { min_log_index: 900, generation, ..Default::default() };
        let index = |generation| in_generation(2, asked(generation)).map(|read| read.min_log_index);
        assert_eq!([0, 1, 2].map(|generation| index(generation).unwrap()), [900, 0, 900]);
        assert_eq!(index(3).unwrap_err().code, RefusalCode::LogIndexNotReached);
    }
}
