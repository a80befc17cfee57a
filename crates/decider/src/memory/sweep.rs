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
    ///
    /// What has opened since a sweep began is looked at by the next one, which follows at once: a sweep that started over would never
    /// come to its end where something opens again and again.
    pub(crate) fn due(self, policy: LogIndex, open: &[&Window], now: LogTime) -> Option<Sweep> {
        if open.is_empty() {
            return None;
        }
        if self.next.is_some() {
            return Some(self);
        }
        let has_opened = |began: LogTime| open.iter().any(|window| window.from > began);
        let is_due = self.began.is_none_or(|began| {
            self.policy != policy || has_opened(began) || now.since_ms(began) >= AGAIN_MS
        });
        is_due.then_some(Sweep { policy, began: Some(now), next: None })
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

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Name;
    use muster_types::policy::{WindowPurpose, WindowScope};

    fn place(node: u32) -> HostPosition {
        let text = Name::literal("n");
        let pool = PoolKey { region: text.clone(), cluster: text.clone(), kind: None };
        (pool, RackKey { block: text.clone(), rack: text }, NodeId(node))
    }

    fn opened_at(ms: u64) -> Window {
        Window {
            name: Name::literal("part"),
            from: LogTime(ms),
            until: LogTime(u64::MAX),
            scope: WindowScope::default(),
            purpose: WindowPurpose::Maintenance,
        }
    }

    #[test]
    fn a_sweep_comes_to_its_end_while_windows_open_and_policies_change_again_and_again() {
        let mut sweep = Sweep::default();
        for tick in 0..5u32 {
            let at = u64::from(tick);
            let window = opened_at(at);
            let due = sweep.due(LogIndex(at), &[&window], LogTime(at)).expect("it goes on");
            assert_eq!(due.next().map(|(_, _, node)| node.0), (tick > 0).then_some(tick));
            sweep = due.with_next((tick < 4).then(|| place(tick + 1)));
        }
        // What has opened meanwhile is looked at by another one, from the first host on.
        let window = opened_at(4);
        let again = sweep.due(LogIndex(4), &[&window], LogTime(5)).expect("it is due at once");
        assert!(again.next().is_none());
        let over = again.with_next(None);
        assert!(over.clone().due(LogIndex(4), &[&window], LogTime(6)).is_none(), "nothing has happened");
        assert!(over.due(LogIndex(4), &[&window], LogTime(5 + AGAIN_MS)).is_some(), "but now and then");
    }
}
