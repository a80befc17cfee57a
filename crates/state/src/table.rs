//! A persistent ordered table that carries the digest of its rows.
//!
//! The digest is the wrapping sum of one hash per row (key and value, canonically encoded), so it
//! does not depend on the order of changes and costs one hash per change, not per row. Rows are
//! reached only through methods that keep it true.

use core::ops::RangeBounds;
use muster_journal::hash;
use rpds::RedBlackTreeMapSync;
use serde::Serialize;

#[derive(Clone, Debug)]
struct Row<V> {
    value: V,
    hash: u64,
}

/// Rows of one kind by key. Cloning is constant-time.
#[derive(Clone, Debug)]
pub struct Table<K: Ord, V> {
    rows: RedBlackTreeMapSync<K, Row<V>>,
    digest: u64,
}

impl<K: Ord + Clone + Serialize, V: Clone + Serialize> Default for Table<K, V> {
    fn default() -> Self {
        Table { rows: RedBlackTreeMapSync::new_sync(), digest: 0 }
    }
}

impl<K: Ord + Clone + Serialize, V: Clone + Serialize> Table<K, V> {
    /// Adds or replaces a row.
    pub fn insert(&mut self, key: K, value: V) {
        let hash = hash(&(&key, &value));
        if let Some(old) = self.rows.get(&key) {
            self.digest = self.digest.wrapping_sub(old.hash);
        }
        self.digest = self.digest.wrapping_add(hash);
        self.rows.insert_mut(key, Row { value, hash });
    }

    /// Removes a row; whether there was one.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(old) = self.rows.get(key) else { return false };
        self.digest = self.digest.wrapping_sub(old.hash);
        self.rows.remove_mut(key)
    }

    /// The row.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key).map(|row| &row.value)
    }

    /// Whether there is a row.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.rows.contains_key(key)
    }

    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.size()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.iter().map(|(key, row)| (key, &row.value))
    }

    /// Rows of a range, in key order.
    pub fn range<R: RangeBounds<K>>(&self, range: R) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.range(range).map(|(key, row)| (key, &row.value))
    }

    /// The greatest key.
    #[must_use]
    pub fn last_key(&self) -> Option<&K> {
        self.rows.last().map(|(key, _)| key)
    }

    /// Sum of the rows' hashes.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
