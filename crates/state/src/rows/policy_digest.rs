//! The digest of the row of the policy. Each round asks for the digest of the state, and the policy is as large as an operator
//! writes it, so it is not hashed each time.
//!
//! **Invariant:** it is that of the row that is asked about, whatever was noted before.

use alloc::sync::Arc;
use muster_journal::hash;

use crate::rows::PolicyRow;

/// A row and its digest; a copy shares the policy with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyDigest(Option<(PolicyRow, u64)>);

impl PolicyDigest {
    /// That of a row which is asked about from now on.
    pub(crate) fn of(row: &PolicyRow) -> PolicyDigest {
        PolicyDigest(Some((row.clone(), hash(row))))
    }

    /// The digest of a row: the one that is noted, or made now where the row is another one.
    pub(crate) fn get(&self, row: &PolicyRow) -> u64 {
        // The policy that is noted is held, so nothing else has its address.
        let is_same = |known: &PolicyRow| {
            let is_of_record = (known.version, known.set_at) == (row.version, row.set_at);
            is_of_record && Arc::ptr_eq(&known.policy, &row.policy)
        };
        match &self.0 {
            Some((known, digest)) if is_same(known) => *digest,
            _ => hash(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{LogIndex, LogTime};

    #[test]
    fn a_digest_is_that_of_the_row_that_is_asked_about() {
        let first = PolicyRow::default();
        let other = |version, set_at| PolicyRow {
            version: LogIndex(version),
            set_at: LogTime(set_at),
            policy: Arc::clone(&first.policy),
        };
        let rows = [first.clone(), other(1, 0), other(0, 1), PolicyRow::default()];
        for noted in &rows {
            let digest = PolicyDigest::of(noted);
            for row in &rows {
                assert_eq!(digest.get(row), hash(row));
                assert_eq!(PolicyDigest::default().get(row), hash(row));
            }
        }
        assert_ne!(hash(&rows[0]), hash(&rows[1]));
    }
}
