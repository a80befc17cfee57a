//! Envelopes of the Raft log and descriptions of snapshots, as they come from disks and peers.

use bytes::Bytes;
use muster_store::{
    ENVELOPE_HEADER_BYTES, Entry, EntryPayload, LeaderId, LogId, Membership, Payload, ReplicaNode,
    SnapshotMeta, StoredMembership, decode_entry, decode_snapshot_meta, encode_entry, encode_snapshot_meta,
};
use std::collections::{BTreeMap, BTreeSet};

fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 2 }, index }
}

fn membership() -> Membership {
    let node = |region: &str| ReplicaNode {
        region: region.to_owned(),
        peer_endpoint: "https://10.0.0.1:7500".to_owned(),
        client_endpoint: "https://10.0.0.1:7400".to_owned(),
    };
    let nodes = BTreeMap::from([(1, node("eu")), (2, node("us")), (3, node("asia"))]);
    Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])], nodes).unwrap()
}

/// Length and checksum of an envelope, made to hold for whatever follows.
fn repair_entry(input: &mut Vec<u8>) {
    if input.len() < ENVELOPE_HEADER_BYTES {
        input.resize(ENVELOPE_HEADER_BYTES, 0);
    }
    let length = (input.len() - ENVELOPE_HEADER_BYTES) as u32;
    input[8..12].copy_from_slice(&length.to_le_bytes());
    let checksum_at = ENVELOPE_HEADER_BYTES - 4;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&input[..checksum_at]);
    hasher.update(&input[ENVELOPE_HEADER_BYTES..]);
    let checksum = hasher.finalize().to_le_bytes();
    input[checksum_at..ENVELOPE_HEADER_BYTES].copy_from_slice(&checksum);
}

#[test]
fn no_bytes_of_an_envelope_make_it_panic_and_what_is_accepted_comes_back() {
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Payload(Bytes::from_static(b"a round of decisions"))),
        EntryPayload::Membership(membership()),
    ];
    let entries = payloads.into_iter().map(|payload| Entry { log_id: log_id(3, 9), payload });
    let seeds: Vec<Vec<u8>> = entries.map(|entry| encode_entry(&entry, 77).to_vec()).collect();
    muster_fuzz::run("store-entry", &seeds, repair_entry, |input| {
        let Ok((entry, chain)) = decode_entry(&Bytes::copy_from_slice(input)) else { return false };
        let (again, chain_again) =
            decode_entry(&encode_entry(&entry, chain)).expect("what is written is read");
        assert_eq!((again.log_id, chain_again), (entry.log_id, chain));
        assert_eq!(format!("{:?}", again.payload), format!("{:?}", entry.payload));
        true
    });
}

/// The checksum at the end, made to hold.
fn repair_sealed(input: &mut Vec<u8>) {
    if input.len() < 4 {
        input.resize(4, 0);
    }
    let body = input.len() - 4;
    let checksum = crc32fast::hash(&input[..body]).to_le_bytes();
    input[body..].copy_from_slice(&checksum);
}

#[test]
fn no_bytes_of_a_snapshots_description_make_it_panic_and_what_is_accepted_comes_back() {
    let stored = StoredMembership::new(Some(log_id(1, 4)), membership());
    let metas =
        [SnapshotMeta::default(), SnapshotMeta { last_log_id: Some(log_id(2, 40)), last_membership: stored }];
    let seeds: Vec<Vec<u8>> = metas.iter().map(encode_snapshot_meta).collect();
    muster_fuzz::run("store-snapshot-meta", &seeds, repair_sealed, |input| {
        let Ok(meta) = decode_snapshot_meta(input) else { return false };
        assert_eq!(decode_snapshot_meta(&encode_snapshot_meta(&meta)).ok().as_ref(), Some(&meta));
        true
    });
}
