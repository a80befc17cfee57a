//! What all reads share: freshness and page sizes.

use muster_engine::Engine;
use muster_state::State;
use muster_types::{ClusterId, LogIndex, Refusal, RefusalCode, Violation};
use muster_wire::status::to_status;
use muster_wire::v1;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// How long a read waits for this replica to reach what the caller has already seen.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);
const PAGE_SIZE_DEFAULT: u32 = 100;
const PAGE_SIZE_MAX: u32 = 1_000;

/// The applied state, at least as fresh as asked.
pub(crate) async fn fresh(engine: &Engine, min_log_index: u64) -> Result<Arc<State>, Status> {
    let view = engine.view();
    if view.log_index().0 >= min_log_index {
        return Ok(view);
    }
    engine.wait_applied(LogIndex(min_log_index), CATCH_UP_MAX).await.map_err(|refusal| to_status(&refusal))
}

/// What an answer from `view` says about itself.
pub(crate) fn freshness(engine: &Engine, view: &State) -> v1::Freshness {
    v1::Freshness {
        log_index: view.log_index().0,
        replica_id: engine.info().replica.0,
        leader_id: engine.leader().map_or(0, |leader| leader.replica.0),
    }
}

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
        to_status(&Refusal::new(RefusalCode::NotLeader, "the cluster has not elected its first leader yet"))
    })
}

/// A refusal for fields.
pub(crate) fn invalid(violations: Vec<Violation>) -> Status {
    to_status(&Refusal::fields(violations))
}
