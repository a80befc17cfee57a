//! Where a store is: a directory that all share, or a bucket. Configuration files and options name both in the same place.

use crate::bucket::Bucket;
use crate::store::{BlobDirectory, BlobError, BlobStore};
use muster_types::BlobDigest;
use muster_types::bucket::{BUCKET_RULE, BucketConfig, BucketName};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// A store of either kind.
#[derive(Clone, Debug)]
pub enum Store {
    /// A directory that clients and nodes share.
    Directory(BlobDirectory),
    /// A bucket that clients and nodes reach.
    Bucket(Bucket),
    /// Nothing that can be meant.
    Unusable(String),
}

/// The bucket that a place names; none for a directory.
fn bucket_at(place: &Path) -> Option<Result<BucketName, &'static str>> {
    let text = place.to_str().filter(|text| BucketName::is_meant(text))?;
    Some(BucketName::parse(text))
}

/// The rule that a place or the configuration of its bucket breaks, with the key of the latter.
#[must_use]
pub fn place_violation(place: &Path, config: &BucketConfig) -> Option<(Option<&'static str>, String)> {
    match bucket_at(place) {
        Some(Ok(_)) => config.violation().map(|(key, rule)| (Some(key), rule)),
        Some(Err(rule)) => Some((None, rule.to_owned())),
        None if place.is_absolute() => None,
        None => Some((None, "must be an absolute path, or s3:// and a bucket".to_owned())),
    }
}

impl Store {
    /// The store at a place, which may not be reached at the moment.
    #[must_use]
    pub fn at(place: PathBuf, config: &BucketConfig) -> Store {
        match bucket_at(&place) {
            None => Store::Directory(BlobDirectory::at(place)),
            Some(Ok(name)) => Store::Bucket(Bucket::at(name, config.clone())),
            Some(Err(_)) => Store::Unusable(format!("{}: {BUCKET_RULE}", place.display())),
        }
    }

    /// The store at a place, for who puts files there: an empty directory becomes one. In `records` it is kept what a bucket has of
    /// large files whose sending was interrupted.
    ///
    /// # Errors
    /// When there is no such directory, it holds something else, or it cannot be written.
    pub fn open_or_make(
        place: PathBuf,
        config: &BucketConfig,
        records: Option<PathBuf>,
    ) -> Result<Store, BlobError> {
        match bucket_at(&place) {
            None => BlobDirectory::open_or_make(place).map(Store::Directory),
            Some(Ok(name)) => Ok(Store::Bucket(Bucket::with_records(name, config.clone(), records))),
            Some(Err(_)) => Err(BlobError::Unreachable(format!("{}: {BUCKET_RULE}", place.display()))),
        }
    }
}

fn unusable(why: &str) -> BlobError {
    BlobError::Unreachable(why.to_owned())
}

impl BlobStore for Store {
    fn has(&self, digest: &BlobDigest) -> Result<bool, BlobError> {
        match self {
            Store::Directory(store) => store.has(digest),
            Store::Bucket(store) => store.has(digest),
            Store::Unusable(why) => Err(unusable(why)),
        }
    }

    fn put(
        &self,
        digest: &BlobDigest,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        match self {
            Store::Directory(store) => store.put(digest, write),
            Store::Bucket(store) => store.put(digest, write),
            Store::Unusable(why) => Err(unusable(why)),
        }
    }

    fn open(&self, digest: &BlobDigest) -> Result<Box<dyn Read>, BlobError> {
        match self {
            Store::Directory(store) => store.open(digest),
            Store::Bucket(store) => store.open(digest),
            Store::Unusable(why) => Err(unusable(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_or_a_bucket() {
        let config = BucketConfig::default();
        let at = |text: &str| Store::at(PathBuf::from(text), &config);
        assert!(matches!(at("/mnt/shared"), Store::Directory(_)));
        assert!(matches!(at("s3://files/prod"), Store::Bucket(_)));
        let bad = at("s3://Files");
        assert!(matches!(bad.has(&BlobDigest::new([1; 32])), Err(BlobError::Unreachable(_))));
        let broken =
            |text: &str, config: &BucketConfig| place_violation(Path::new(text), config).map(|(key, _)| key);
        assert_eq!(broken("/mnt/shared", &config), None);
        assert_eq!(broken("s3://files/prod", &config), None);
        assert_eq!(broken("store", &config), Some(None));
        assert_eq!(broken("s3://Files", &config), Some(None));
        let plain = BucketConfig { endpoint: Some("http://minio:9000".to_owned()), ..config };
        assert_eq!(broken("s3://files", &plain), Some(Some("endpoint")));
        assert_eq!(broken("/mnt/shared", &plain), None, "of a bucket that nobody names");
    }
}
