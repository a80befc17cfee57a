//! Changes as they go to watchers, kept a while: a thousand watchers of one change, and it is rendered and
//! encoded once.

use muster_engine::WatchPosition;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use tonic::codegen::Bytes;

/// Bytes kept of each kind of watch. Watchers read close to the end of the log; who is further behind
/// renders for itself.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Changes kept of each kind of watch.
const KEPT_MAX: usize = 4_096;

#[derive(Default)]
struct CachedChanges {
    /// By place: a place has one change.
    changes: BTreeMap<WatchPosition, Bytes>,
    bytes: usize,
}

/// What was rendered for one kind of watch.
#[derive(Default)]
pub(crate) struct Rendered {
    kept: RwLock<CachedChanges>,
}

impl Rendered {
    /// The change at a place, rendered now unless it was before.
    pub(crate) fn get_or_render(
        &self,
        at: WatchPosition,
        render: impl FnOnce() -> Option<Bytes>,
    ) -> Option<Bytes> {
        let known = self.kept.read().changes.get(&at).cloned();
        if known.is_some() {
            return known;
        }
        // Not under the lock: should two render the same, both are right.
        let bytes = render()?;
        self.keep(at, bytes.clone());
        Some(bytes)
    }

    fn keep(&self, at: WatchPosition, bytes: Bytes) {
        let mut kept = self.kept.write();
        kept.bytes += bytes.len();
        if let Some(same) = kept.changes.insert(at, bytes) {
            kept.bytes -= same.len();
        }
        while kept.bytes > KEPT_BYTES_MAX || kept.changes.len() > KEPT_MAX {
            let Some((_, oldest)) = kept.changes.pop_first() else { break };
            kept.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    fn at(log_index: u64) -> WatchPosition {
        WatchPosition { log_index: LogIndex(log_index), ordinal: 1 }
    }

    fn bytes(length: usize) -> impl FnOnce() -> Option<Bytes> {
        move || Some(vec![1; length].into())
    }

    #[test]
    fn a_change_is_rendered_once_while_it_is_kept() {
        let rendered = Rendered::default();
        assert_eq!(rendered.get_or_render(at(1), || None), None);
        let first = rendered.get_or_render(at(1), bytes(3)).expect("it was rendered");
        let again = rendered.get_or_render(at(1), || panic!("it is there")).expect("it is there");
        assert_eq!(first.as_ptr(), again.as_ptr(), "not even copied");
    }

    #[test]
    fn the_oldest_go_first_and_both_bounds_hold() {
        let rendered = Rendered::default();
        for index in 1..=KEPT_MAX as u64 + 10 {
            rendered.get_or_render(at(index), bytes(1));
        }
        assert_eq!(rendered.get_or_render(at(10), || None), None);
        assert!(rendered.get_or_render(at(11), || None).is_some());
        rendered.get_or_render(at(90_000), bytes(KEPT_BYTES_MAX));
        assert!(rendered.get_or_render(at(90_000), || None).is_some());
        assert_eq!(rendered.get_or_render(at(KEPT_MAX as u64 + 10), || None), None);
        // One that is older than all that is kept, where there is no free space, is not kept.
        rendered.get_or_render(at(2), bytes(1));
        assert_eq!(rendered.get_or_render(at(2), || None), None);
        let kept = rendered.kept.read();
        assert_eq!(kept.bytes, kept.changes.values().map(Bytes::len).sum::<usize>());
    }
}
