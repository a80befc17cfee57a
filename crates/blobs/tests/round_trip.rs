//! Directories are the same behind a store, and lists that break rules write nothing.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

use muster_blobs::{
    BYTES_MAX, BlobDirectory, BlobStore as _, PackError, UnpackError, Unpacking, pack, unpack,
};
use muster_types::BlobDigest;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    File(Vec<u8>, bool),
    Link(String),
    Empty,
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        6 => (vec(any::<u8>(), 0..300), any::<bool>()).prop_map(|(bytes, executable)| Content::File(bytes, executable)),
        1 => "(\\.\\./){0,2}[a-c]{1,2}(/[a-c])?".prop_map(Content::Link),
        1 => Just(Content::Empty),
    ]
}

/// Writes what fits to what is there already.
fn write(root: &Path, asked: BTreeMap<String, Content>) {
    for (path, content) in asked {
        let at = root.join(&path);
        // A directory that leads through a link would be outside.
        let mut parents = at.ancestors().skip(1).take_while(|above| *above != root);
        if parents.any(|above| fs::symlink_metadata(above).is_ok_and(|found| found.is_symlink())) {
            continue;
        }
        if fs::create_dir_all(at.parent().unwrap()).is_err() || fs::symlink_metadata(&at).is_ok() {
            continue;
        }
        match &content {
            Content::File(bytes, executable) => {
                fs::write(&at, bytes).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            }
            Content::Link(target) => symlink(target, &at).unwrap(),
            Content::Empty => fs::create_dir(&at).unwrap(),
        }
    }
}

/// Everything below a directory but the directories that are not empty.
fn read(root: &Path, below: &str, all: &mut BTreeMap<String, Content>) {
    let mut is_empty = true;
    for entry in fs::read_dir(root.join(below)).unwrap() {
        is_empty = false;
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            read(root, &path, all);
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap().to_str().unwrap().to_owned();
            all.insert(path, Content::Link(target));
        } else {
            let executable = entry.metadata().unwrap().permissions().mode() & 0o111 != 0;
            all.insert(path, Content::File(fs::read(entry.path()).unwrap(), executable));
        }
    }
    if is_empty && !below.is_empty() {
        all.insert(below.to_owned(), Content::Empty);
    }
}

fn fetch(store: &BlobDirectory, digest: BlobDigest, into: &Path, bytes_max: u64) -> Result<(), UnpackError> {
    let asked = Unpacking { digest, into, bytes_max, owner: None, is_given_up: &|| false };
    unpack(store, &asked)
}

/// Puts bytes under their digest, as a client could that follows no rule.
fn put(store: &BlobDirectory, bytes: &[u8]) -> BlobDigest {
    let digest = BlobDigest::new(Sha256::digest(bytes).into());
    let put = store.put(&digest, &mut |to: &mut dyn std::io::Write| {
        let mut encoder = flate2::write::ZlibEncoder::new(to, flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap();
        Ok(())
    });
    put.unwrap();
    digest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_packed_is_unpacked(asked in btree_map("[a-c]{1,2}(/[a-c]{1,2}){0,3}", content(), 0..12)) {
        let scratch = tempfile::tempdir().unwrap();
        let [from, to, at] = ["from", "to", "store"].map(|name| scratch.path().join(name));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&at).unwrap();
        write(&from, asked);
        let mut expected = BTreeMap::new();
        read(&from, "", &mut expected);
        let store = BlobDirectory::open_or_make(at).unwrap();
        match pack(&from) {
            Ok(packed) => {
                packed.send(&store, &mut |_| ()).unwrap();
                fetch(&store, packed.digest(), &to, BYTES_MAX).unwrap();
                let mut found = BTreeMap::new();
                read(&to, "", &mut found);
                prop_assert_eq!(found, expected);
            }
            // A link that leads out.
            Err(PackError::Unfit { .. }) => {
                prop_assert!(expected.values().any(|content| matches!(content, Content::Link(_))));
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }

    #[test]
    fn no_list_writes_outside(
        paths in vec("(/|\\.\\./|\\./|[a-b]/){0,3}[a-b.]{0,2}", 1..5),
        targets in vec("(/|\\.\\./|[a-b]/){0,4}[a-b.]{0,2}", 5),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path().join("store");
        fs::create_dir(&at).unwrap();
        let store = BlobDirectory::open_or_make(at).unwrap();
        let content = put(&store, b"evil");
        let entries: Vec<serde_json::Value> = paths
            .iter()
            .zip(&targets)
            .enumerate()
            .map(|(number, (path, target))| match number % 2 {
                0 => serde_json::json!({"kind": "link", "path": path, "target": target}),
                _ => serde_json::json!({
                    "kind": "file", "path": path, "size": 4, "digest": content.to_string(), "executable": true,
                }),
            })
            .collect();
        let list = serde_json::json!({"version": 1, "entries": entries}).to_string();
        let digest = put(&store, list.as_bytes());
        let top = scratch.path().join("top");
        fs::create_dir(&top).unwrap();
        // A list that is accepted has written below alone, and its links lead nowhere else.
        let into = top.join("a");
        let accepted = fetch(&store, digest, &into, 1_000).is_ok();
        let names: Vec<_> = fs::read_dir(&top).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        prop_assert!(names.iter().all(|name| name == "a"), "{names:?}");
        if accepted {
            let mut all = BTreeMap::new();
            read(&into, "", &mut all);
            for path in all.keys() {
                if let Ok(leads_to) = fs::canonicalize(into.join(path)) {
                    prop_assert!(leads_to.starts_with(fs::canonicalize(&into).unwrap()), "{path}: {leads_to:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_damaged_missing_or_too_large_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let at = scratch.path().join("store");
    fs::create_dir(&at).unwrap();
    let store = BlobDirectory::open_or_make(at.clone()).unwrap();
    let content = put(&store, b"four");
    let list = |size: u64, digest: BlobDigest| {
        let entry = serde_json::json!({
            "kind": "file", "path": "a/b", "size": size, "digest": digest.to_string(), "executable": false,
        });
        serde_json::json!({"version": 1, "entries": [entry]}).to_string()
    };
    let mut number = 0;
    let mut fetched = |digest: BlobDigest, max: u64| {
        number += 1;
        fetch(&store, digest, &scratch.path().join(format!("into-{number}")), max)
    };
    let good = put(&store, list(4, content).as_bytes());
    fetched(good, 4).unwrap();
    assert!(matches!(fetched(good, 3), Err(UnpackError::Tree(_))));
    // A list may not say less than there is, nor more.
    for (size, bad) in [(3, "too large"), (5, "too small")] {
        let digest = put(&store, list(size, content).as_bytes());
        assert!(matches!(fetched(digest, 10), Err(UnpackError::Blob(_) | UnpackError::Size { .. })), "{bad}");
    }
    let absent = BlobDigest::new([9; 32]);
    assert!(matches!(fetched(absent, 10), Err(UnpackError::Blob(_))));
    let without = put(&store, list(4, absent).as_bytes());
    assert!(matches!(fetched(without, 10), Err(UnpackError::Blob(_))));
    assert!(matches!(fetched(content, 10), Err(UnpackError::Tree(_))), "it is no list");
    // What was put under this digest was exchanged.
    let object = |digest: BlobDigest| at.join("objects").join(&digest.digits()[..2]).join(digest.digits());
    fs::copy(object(good), object(content)).unwrap();
    assert!(matches!(fetched(good, 10), Err(UnpackError::Blob(_))));
    // A directory that is there is not written into.
    let into = scratch.path().join("into-1");
    assert!(matches!(fetch(&store, good, &into, 10), Err(UnpackError::Write { .. })));
    let asked = Unpacking {
        digest: good,
        into: &scratch.path().join("given-up"),
        bytes_max: 10,
        owner: None,
        is_given_up: &|| true,
    };
    assert!(matches!(unpack(&store, &asked), Err(UnpackError::GivenUp)));
}
