//! The state as it was: made from the archive of the decision log.

use muster_state::State;
use muster_types::{At, Refusal, RefusalCode};
use std::sync::Arc;

use crate::Engine;

impl Engine {
    /// The state as it was at a moment of the past.
    ///
    /// # Errors
    /// `ARCHIVE_UNAVAILABLE` on a replica that keeps no archive of its log.
    pub async fn view_at(&self, at: At) -> Result<Arc<State>, Refusal> {
        let what = match at {
            At::Index(index) => format!("log index {index}"),
            At::Time(time) => format!("log time {} ms", time.0),
        };
        let text = format!("this replica keeps no archive to make the state at {what} from");
        Err(Refusal::new(RefusalCode::ArchiveUnavailable, text))
    }
}
