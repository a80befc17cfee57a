//! How far the hosts of open windows have been looked at.

use muster_state::{PoolKey, RackKey};
use muster_types::policy::Window;
use muster_types::{LogIndex, LogTime, NodeId};

/// Time from one look at all hosts of open windows to the next, when nothing happens.
const AGAIN_MS: u64 = 10_000;

/// How far the hosts of open windows have been looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    /// Under which policy.
    policy: LogIndex,
    /// When it began; none before the first.
    began: Option<LogTime>,
    /// The host to continue with; `None` when all have been looked at.
    next: Option<HostPosition>,
}

/// A host among all of them, in the order in which they are looked at.
pub(crate) type HostPosition = (PoolKey, RackKey, NodeId);

impl Sweep {
    /// The sweep to continue, or a new one when it is due; `None` when there is nothing to do.
    pub(crate) fn due(self, policy: LogIndex, open: &[&Window], now: LogTime) -> Option<Sweep> {
        if open.is_empty() {
            return None;
        }
        let Some(began) = self.began.filter(|_| self.policy == policy) else {
            return Some(Sweep { policy, began: Some(now), next: None });
        };
        let has_opened = open.iter().any(|window| window.from > began);
        let is_over = self.next.is_none();
        if has_opened || (is_over && now.since_ms(began) >= AGAIN_MS) {
            return Some(Sweep { policy, began: Some(now), next: None });
        }
        (!is_over).then_some(self)
    }

    /// The host to continue with; `None` when all have been looked at.
    pub(crate) fn next(&self) -> Option<&HostPosition> {
        self.next.as_ref()
    }

    /// The same sweep, which goes on with this host.
    pub(crate) fn with_next(self, next: Option<HostPosition>) -> Sweep {
        Sweep { next, ..self }
    }
}
