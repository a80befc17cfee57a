//! Objects in memory above another store: records that are added to an archive while nothing in it is changed.

use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use crate::object::{ObjectInfo, ObjectStore, object_name_is_valid};

/// A store that is read, and what is written above it, which is kept in memory alone. It bounds nothing: who writes does.
pub struct MemoryStore {
    below: Arc<dyn ObjectStore>,
    own: RwLock<BTreeMap<String, Bytes>>,
}

impl MemoryStore {
    /// Nothing is written to `below`.
    #[must_use]
    pub fn above(below: Arc<dyn ObjectStore>) -> MemoryStore {
        MemoryStore { below, own: RwLock::default() }
    }

    fn own(&self, name: &str) -> Option<Bytes> {
        self.own.read().get(name).cloned()
    }
}

impl ObjectStore for MemoryStore {
    fn put(&self, name: &str, content: &mut dyn Iterator<Item = io::Result<Bytes>>) -> io::Result<()> {
        if !object_name_is_valid(name) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut bytes = BytesMut::new();
        for piece in content {
            bytes.extend_from_slice(&piece?);
        }
        self.own.write().insert(name.to_owned(), bytes.freeze());
        Ok(())
    }

    fn get(&self, name: &str, from: u64, length: usize) -> io::Result<Bytes> {
        let Some(bytes) = self.own(name) else { return self.below.get(name, from, length) };
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes.slice(from..from.saturating_add(length).min(bytes.len())))
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        match self.own(name) {
            Some(bytes) => Ok(bytes.len() as u64),
            None => self.below.size(name),
        }
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<ObjectInfo>> {
        let own = self.own.read();
        let named = own.iter().filter(|(name, _)| name.starts_with(prefix));
        let mut found: Vec<ObjectInfo> =
            named.map(|(name, bytes)| ObjectInfo { name: name.clone(), bytes: bytes.len() as u64 }).collect();
        found.extend(self.below.list(prefix)?.into_iter().filter(|object| !own.contains_key(&object.name)));
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn place(&self) -> String {
        self.below.place()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::JoinedStores;

    fn put(store: &dyn ObjectStore, name: &str, content: &'static [u8]) -> io::Result<()> {
        store.put(name, &mut std::iter::once(Ok(Bytes::from_static(content))))
    }

    #[test]
    fn what_is_written_hides_what_is_below_and_does_not_change_it() {
        let below = Arc::new(MemoryStore::above(Arc::new(JoinedStores::new(Vec::new()))));
        put(below.as_ref(), "segments/1", b"below").unwrap();
        let store = MemoryStore::above(Arc::clone(&below) as Arc<dyn ObjectStore>);
        put(&store, "segments/1", b"above").unwrap();
        put(&store, "segments/2", b"more").unwrap();
        assert_eq!(store.get("segments/1", 1, 3).unwrap(), "bov");
        assert_eq!(store.get("segments/1", 9, 3).unwrap(), "");
        assert_eq!(store.list("segments/").unwrap().len(), 2);
        assert_eq!(below.get("segments/1", 0, 9).unwrap(), "below");
        assert_eq!(below.list("").unwrap().len(), 1);
        assert!(store.get("segments/3", 0, 1).is_err() && put(&store, "../3", b"").is_err());
    }
}
