//! A persistent ordered table that carries the digest of its rows.
//!
//! The digest is the wrapping sum of one hash per row (key and value, canonically encoded), so it
//! does not depend on the order of changes and costs one hash per change, not per row. Rows are
//! changed only through methods that keep the digest right.

use core::ops::RangeBounds;
use muster_journal::hash;
use serde::Serialize;

use crate::tree::{Builder, Map};

/// What is derived from a row and kept with it, because to make it again costs more than to keep it.
pub trait Derived<K, V>: Clone {
    /// From a new row.
    fn of(value: &V) -> Self;

    /// After a change of the row where it stands.
    fn refresh(&mut self, _value: &V) {}

    /// The hash of a row. What is derived may stand for the part of the row that it was made from.
    fn hash(&self, key: &K, value: &V) -> u64;
}

/// Nothing is kept.
impl<K: Serialize, V: Serialize> Derived<K, V> for () {
    fn of(_: &V) {}

    fn hash(&self, key: &K, value: &V) -> u64 {
        hash(&(key, value))
    }
}

#[derive(Clone, Debug)]
struct Row<V, F> {
    value: V,
    facts: F,
    hash: u64,
}

/// Rows of one kind by key. Cloning is constant-time.
#[derive(Clone, Debug)]
pub struct Table<K: Ord, V, F = ()> {
    rows: Map<K, Row<V, F>>,
    digest: u64,
}

impl<K: Ord, V, F> Default for Table<K, V, F> {
    fn default() -> Self {
        Table { rows: Map::default(), digest: 0 }
    }
}

impl<K: Ord + Clone, V: Clone, F: Derived<K, V>> Table<K, V, F> {
    /// Adds or replaces a row.
    pub fn insert(&mut self, key: K, value: V) {
        let facts = F::of(&value);
        let hash = facts.hash(&key, &value);
        self.digest = self.digest.wrapping_add(hash);
        if let Some(old) = self.rows.replace(key, Row { value, facts, hash }) {
            self.digest = self.digest.wrapping_sub(old.hash);
        }
    }

    /// Changes a row where it stands; none when there is no such row.
    pub(crate) fn change<T>(&mut self, key: &K, change: impl FnOnce(&mut V, &F) -> T) -> Option<T> {
        let row = self.rows.get_mut(key)?;
        let result = change(&mut row.value, &row.facts);
        row.facts.refresh(&row.value);
        let hash = row.facts.hash(key, &row.value);
        self.digest = self.digest.wrapping_sub(row.hash).wrapping_add(hash);
        row.hash = hash;
        Some(result)
    }

    /// Removes a row; whether there was one.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(old) = self.rows.take(key) else { return false };
        self.digest = self.digest.wrapping_sub(old.hash);
        true
    }
}

impl<K: Ord, V, F> Table<K, V, F> {
    /// The row.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key).map(|row| &row.value)
    }

    /// The row and what is derived from it.
    #[must_use]
    pub(crate) fn get_with_facts(&self, key: &K) -> Option<(&V, &F)> {
        self.rows.get(key).map(|row| (&row.value, &row.facts))
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

    /// Rows of a range, in key order, each with what is derived from it.
    pub(crate) fn range_with_facts<R: RangeBounds<K>>(
        &self,
        range: R,
    ) -> impl DoubleEndedIterator<Item = (&K, &V, &F)> {
        self.rows.range(range).map(|(key, row)| (key, &row.value, &row.facts))
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

impl<K: Ord + Clone, V: Clone, F: Derived<K, V>> Table<K, V, F> {
    /// Whether the digest is that of the rows as they are. Costs the whole table.
    pub(crate) fn has_digest_of_rows(&self) -> bool {
        let hashes = self.rows.iter().map(|(key, row)| row.facts.hash(key, &row.value));
        hashes.fold(0, u64::wrapping_add) == self.digest
    }
}

/// Builds a table from rows in key order, as a snapshot holds them.
pub(crate) struct TableBuilder<K, V, F> {
    rows: Builder<K, Row<V, F>>,
    digest: u64,
}

impl<K, V, F> Default for TableBuilder<K, V, F> {
    fn default() -> Self {
        TableBuilder { rows: Builder::default(), digest: 0 }
    }
}

impl<K: Ord + Clone, V: Clone, F: Derived<K, V>> TableBuilder<K, V, F> {
    /// Adds the next row; whether its key is above the last.
    pub(crate) fn push(&mut self, key: K, value: V) -> bool {
        if self.rows.last().is_some_and(|last| *last >= key) {
            return false;
        }
        let facts = F::of(&value);
        let hash = facts.hash(&key, &value);
        self.digest = self.digest.wrapping_add(hash);
        self.rows.push(key, Row { value, facts, hash });
        true
    }

    pub(crate) fn finish(self) -> Table<K, V, F> {
        Table { rows: self.rows.finish(), digest: self.digest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_is_not_of_the_rows_is_noticed() {
        let mut table: Table<u8, u8> = Table::default();
        table.insert(1, 2);
        assert!(table.has_digest_of_rows());
        table.digest ^= 1;
        assert!(!table.has_digest_of_rows());
    }
}
