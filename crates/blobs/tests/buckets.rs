//! A store keeps the same rules in a directory and in a bucket, also where the bucket's server is slow, busy or breaks off.
//!
//! `MUSTER_OBJECTS` names a Python that has a real server (`.ci/objects` installs one); the rules are held on it as well then.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod support;

use muster_blobs::{
    BYTES_MAX, BlobDirectory, BlobError, BlobStore, Bucket, Expired, PackError, UnpackError, Unpacking, pack,
    take_in, unpack,
};
use muster_types::BlobDigest;
use muster_types::bucket::{BucketConfig, BucketName};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::{BUCKET, Real, Server};

/// More than two parts, however well it is compressed: no byte says anything about the next.
const LARGE_BYTES: usize = 20 << 20;

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

fn bucket(endpoint: &str, scratch: &Path) -> Bucket {
    let keys = scratch.join("keys");
    fs::write(&keys, "aws_access_key_id = test\naws_secret_access_key = hunter2\n").unwrap();
    let config = BucketConfig {
        endpoint: Some(endpoint.to_owned()),
        credentials_file: Some(keys.to_str().unwrap().to_owned()),
        allow_http: true,
        ..BucketConfig::default()
    };
    let name = BucketName::parse(&format!("s3://{BUCKET}/below")).unwrap();
    Bucket::with_records(name, config, Some(scratch.join("records")))
}

fn digest_of(bytes: &[u8]) -> BlobDigest {
    BlobDigest::new(Sha256::digest(bytes).into())
}

fn put(store: &dyn BlobStore, bytes: &[u8]) -> BlobDigest {
    let digest = digest_of(bytes);
    let stored = compressed(bytes);
    store.put(&digest, &mut |to| to.write_all(&stored).map_err(BlobError::Local)).unwrap();
    digest
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn fetched(store: &dyn BlobStore, digest: BlobDigest, into: PathBuf) -> Result<(), UnpackError> {
    unpack(
        store,
        &Unpacking { digest, into: &into, bytes_max: BYTES_MAX, owner: None, is_given_up: &|| false },
    )
}

/// What every store keeps to.
fn conforms(store: &dyn BlobStore, scratch: &Path) {
    let absent = digest_of(b"absent");
    assert!(!store.has(&absent).unwrap());
    assert!(matches!(store.open(&absent), Err(BlobError::NotFound(digest)) if digest == absent));
    // Whole, under its own name, as often as it is put.
    for content in [&b""[..], b"content", &vec![7; 300_000][..], &noise(300_000)[..]] {
        for _ in 0..2 {
            let digest = put(store, content);
            assert!(store.has(&digest).unwrap());
            let mut stored = Vec::new();
            store.open(&digest).unwrap().read_to_end(&mut stored).unwrap();
            assert_eq!(stored, compressed(content));
        }
    }
    // Nothing of what failed.
    let failed = digest_of(b"failed");
    let put_in_vain = store.put(&failed, &mut |to| {
        to.write_all(b"some of it").map_err(BlobError::Local)?;
        Err(BlobError::Changed)
    });
    assert!(matches!(put_in_vain, Err(BlobError::Changed)), "{put_in_vain:?}");
    assert!(!store.has(&failed).unwrap());
    // What comes from others is checked before it appears.
    let (taken, wrong) = (digest_of(b"taken"), digest_of(b"wrong"));
    let stored = compressed(b"taken");
    let take = |digest: &BlobDigest| take_in(store, digest, 100, &mut &stored[..], &mut |_| Ok(()));
    assert!(matches!(take(&wrong), Err(BlobError::Mismatch(_))));
    assert!(!store.has(&wrong).unwrap());
    assert_eq!(take(&taken).unwrap(), 5);
    // A directory, with a file that is large.
    let from = scratch.join("from");
    fs::create_dir_all(from.join("deep")).unwrap();
    fs::write(from.join("deep/small"), "small").unwrap();
    let large = noise(LARGE_BYTES);
    fs::write(from.join("large"), &large).unwrap();
    let packed = pack(&from).unwrap();
    assert_eq!(packed.send(store, &mut |_| ()).unwrap().files_sent, 2);
    assert_eq!(packed.send(store, &mut |_| ()).unwrap().files_sent, 0, "it is there already");
    let into = scratch.join("into");
    fetched(store, packed.digest(), into.clone()).unwrap();
    assert_eq!(fs::read_to_string(into.join("deep/small")).unwrap(), "small");
    assert!(fs::read(into.join("large")).unwrap() == large, "the large file is another one");
    // Something else in its place is noticed.
    store.put(&packed.digest(), &mut |to| to.write_all(&stored).map_err(BlobError::Local)).unwrap();
    let mismatch = fetched(store, packed.digest(), scratch.join("again"));
    assert!(matches!(mismatch, Err(UnpackError::Blob(BlobError::Mismatch(_)))), "{mismatch:?}");
}

#[test]
fn a_directory_conforms() {
    let scratch = tempfile::tempdir().unwrap();
    let at = scratch.path().join("store");
    fs::create_dir(&at).unwrap();
    conforms(&BlobDirectory::open_or_make(at).unwrap(), scratch.path());
}

#[test]
fn a_bucket_conforms() {
    let (scratch, server) = (tempfile::tempdir().unwrap(), Server::start());
    conforms(&bucket(&server.endpoint, scratch.path()), scratch.path());
    let state = server.state.lock();
    assert!(state.objects.keys().all(|key| key.starts_with("below/objects/")), "{:?}", state.objects.keys());
    assert!(state.authorization.starts_with("AWS4-HMAC-SHA256 Credential=test/"), "{}", state.authorization);
    assert!(!state.authorization.contains("hunter2"));
    assert!(state.taken.len() >= 3, "the large file came in parts: {:?}", state.taken);
}

#[test]
fn a_bucket_of_a_real_server_conforms() {
    let Some(server) = Real::start() else {
        eprintln!("skipped: a bucket of a real server (MUSTER_OBJECTS and .ci/objects)");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let store = bucket(&server.endpoint, scratch.path());
    conforms(&store, scratch.path());
    // None of them is as old as that; nothing is lost.
    let kept = store.expire(Duration::from_secs(3_600), false).unwrap();
    assert_eq!((kept.objects, kept.kept > 5), (0, true), "{kept:?}");
    let elsewhere = BucketName::parse("s3://muster-no-such-bucket").unwrap();
    let config = BucketConfig {
        endpoint: Some(server.endpoint.clone()),
        credentials_file: Some(scratch.path().join("keys").to_str().unwrap().to_owned()),
        allow_http: true,
        ..BucketConfig::default()
    };
    let why = Bucket::at(elsewhere, config).open(&digest_of(b"x")).err().unwrap();
    assert!(matches!(&why, BlobError::Unreachable(text) if text.contains("NoSuchBucket")), "{why}");
}

#[test]
fn a_server_that_is_busy_is_asked_again_and_one_that_stays_so_is_not_reached() {
    let (scratch, server) = (tempfile::tempdir().unwrap(), Server::start());
    let store = bucket(&server.endpoint, scratch.path());
    server.state.lock().busy = 2;
    let digest = put(&store, b"content");
    assert!(store.has(&digest).unwrap());
    server.state.lock().busy = usize::MAX;
    let why = store.has(&digest).unwrap_err();
    assert!(matches!(why, BlobError::Unreachable(_)), "{why}");
    assert!(!why.to_string().contains("hunter2"), "{why}");
}

#[test]
fn an_object_that_breaks_off_is_not_taken_for_a_damaged_one() {
    let (scratch, server) = (tempfile::tempdir().unwrap(), Server::start());
    let store = bucket(&server.endpoint, scratch.path());
    let from = scratch.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), noise(1 << 20)).unwrap();
    let packed = pack(&from).unwrap();
    packed.send(&store, &mut |_| ()).unwrap();
    server.state.lock().is_cut = true;
    let cut = fetched(&store, packed.digest(), scratch.path().join("cut"));
    assert!(matches!(cut, Err(UnpackError::Blob(BlobError::Unreachable(_)))), "{cut:?}");
    server.state.lock().is_cut = false;
    fetched(&store, packed.digest(), scratch.path().join("whole")).unwrap();
}

#[test]
fn parts_that_have_arrived_are_not_sent_again() {
    let (scratch, server) = (tempfile::tempdir().unwrap(), Server::start());
    let from = scratch.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("large"), noise(LARGE_BYTES)).unwrap();
    let packed = pack(&from).unwrap();
    server.state.lock().parts_max = Some(1);
    let refused = packed.send(&bucket(&server.endpoint, scratch.path()), &mut |_| ());
    assert!(matches!(refused, Err(PackError::Send { error: BlobError::Unreachable(_), .. })), "{refused:?}");
    assert_eq!(server.state.lock().taken, [1]);
    server.state.lock().parts_max = None;
    // By another program, which finds the record of the first.
    let store = bucket(&server.endpoint, scratch.path());
    packed.send(&store, &mut |_| ()).unwrap();
    assert_eq!(server.state.lock().taken, [1, 2, 3]);
    assert_eq!(fs::read_dir(scratch.path().join("records")).unwrap().count(), 0, "nothing is unfinished");
    fetched(&store, packed.digest(), scratch.path().join("into")).unwrap();
}

#[test]
fn a_server_that_has_forgotten_the_parts_gets_all_of_them_in_the_end() {
    let (scratch, server) = (tempfile::tempdir().unwrap(), Server::start());
    let from = scratch.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("large"), noise(LARGE_BYTES)).unwrap();
    let packed = pack(&from).unwrap();
    let store = bucket(&server.endpoint, scratch.path());
    server.state.lock().parts_max = Some(1);
    assert!(packed.send(&store, &mut |_| ()).is_err());
    {
        let mut state = server.state.lock();
        (state.parts_max, state.forgotten) = (None, 1);
    }
    let attempts = (0..9).take_while(|_| packed.send(&store, &mut |_| ()).is_err()).count();
    assert!(attempts > 0 && attempts < 9, "{attempts}");
    fetched(&store, packed.digest(), scratch.path().join("into")).unwrap();
}

#[test]
fn what_is_old_is_written_again_when_it_is_used_and_goes_when_it_is_not() {
    let (scratch, server) = (tempfile::tempdir().unwrap(), Server::start());
    let store = bucket(&server.endpoint, scratch.path());
    let (used, unused, new) = (put(&store, b"used"), put(&store, b"unused"), put(&store, b"new"));
    let key = |digest: &BlobDigest| {
        let digits = digest.digits();
        format!("below/objects/{}/{digits}", &digits[..2])
    };
    server.state.lock().objects.insert("below/objects/notes.txt".to_owned(), b"of a person".to_vec());
    server.state.lock().old = vec![key(&used), key(&unused), "below/objects/notes.txt".to_owned()];
    assert!(!store.has(&used).unwrap(), "so that it is sent again");
    server.state.lock().old.remove(0);
    let day = Duration::from_secs(24 * 3_600);
    let expected = Expired { objects: 1, bytes: compressed(b"unused").len() as u64, kept: 2 };
    assert_eq!(store.expire(day, true).unwrap(), expected);
    assert_eq!(server.state.lock().objects.len(), 4, "it was only counted");
    assert_eq!(store.expire(day, false).unwrap(), expected);
    let left = server.state.lock();
    assert!(left.objects.contains_key(&key(&used)) && left.objects.contains_key(&key(&new)));
    assert!(left.objects.contains_key("below/objects/notes.txt") && left.objects.len() == 3);
}
