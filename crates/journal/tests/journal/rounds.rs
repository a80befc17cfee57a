use std::collections::BTreeSet;

use muster_journal::{
    Decision, DecodeError, EncodedDecisions, Estimate, FORMAT_MAX, FORMAT_MIN, REQUESTED_DECISIONS,
    ROUND_BYTES_MAX, RequestKey, Round, TEST_FORMAT_REASON, WorkerSlot, canonical, decode_round,
    encode_round, from_canonical, hash,
};
use muster_types::NodeSpec;
use muster_types::{
    Accelerators, DeviceSet, JobDraft, JobId, JobSpec, LogIndex, LogTime, Name, NodeId, QueueKey, ReplicaId,
    RequestId, Requester, TaskGroup, WorkerRequest,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::allocation::largest;
use crate::generate::{decision, node, round, spec};

const HEADER_BYTES: usize = 14;

/// As a binary that is not held back decodes.
fn decode(bytes: &[u8]) -> Result<Round, DecodeError> {
    decode_round(bytes, FORMAT_MAX)
}

/// Records are written for each submission: what is not known of who asked takes no space in them.
#[test]
fn a_requester_takes_bytes_only_for_what_is_known_of_it() {
    let plain = Requester::named("tenant/lab/ada".to_owned(), false);
    let from = Requester { address: Some([192, 0, 2, 7].into()), ..plain.clone() };
    let role = Name::new("on-call");
    let whole = Requester { role: role.clone(), is_operator: true, ..from.clone() };
    let with_role = Requester { role, ..plain.clone() };
    let (address, role) = (5, 8);
    let lengths =
        [(&plain, 16), (&from, 16 + address), (&with_role, 16 + role), (&whole, 16 + address + role)];
    for (by, length) in lengths {
        let mut bytes = canonical(by);
        assert_eq!(bytes.len(), length, "{by:?}");
        assert_eq!(from_canonical::<Requester>(&bytes).as_ref(), Some(by));
        assert_eq!(from_canonical::<Requester>(&bytes[..length - 1]), None, "a part is missing");
        // Bits that mean nothing are no other spelling of the same.
        bytes[15] |= 8;
        assert_eq!(from_canonical::<Requester>(&bytes), None, "{by:?}");
    }
}

proptest! {
    #[test]
    fn what_was_encoded_decodes(round in round()) {
        let bytes = encode_round(&round);
        prop_assert_eq!(&bytes[HEADER_BYTES..], canonical(&round));
        prop_assert_eq!(decode(&bytes), Ok(round));
    }

    #[test]
    fn runs_are_all_decisions_in_order_and_as_small_as_asked(round in round(), bytes_max in 0usize..2_000) {
        let mut encoded = EncodedDecisions::default();
        round.decisions.iter().for_each(|decision| encoded.push(decision));
        let runs = encoded.runs(bytes_max);
        let (counts, bytes): (Vec<usize>, Vec<&[u8]>) = runs.into_iter().unzip();
        prop_assert_eq!(counts.iter().sum::<usize>(), round.decisions.len());
        prop_assert_eq!(bytes.concat().len(), encoded.byte_count());
        let mut decisions = round.decisions.iter();
        for (count, run) in counts.into_iter().zip(bytes) {
            let own: Vec<u8> = decisions.by_ref().take(count).flat_map(canonical).collect();
            prop_assert_eq!(own, run);
            prop_assert!(count > 0 && (count == 1 || run.len() <= bytes_max));
        }
    }

    #[test]
    fn decisions_that_somebody_asks_for_say_who_that_was(decision in decision()) {
        prop_assert_eq!(decision.requester().is_some(), REQUESTED_DECISIONS.contains(&decision.name()));
        // A request is of somebody, and nothing else is: its text has the word only where it has a key.
        let has_request = format!("{decision:?}").contains("RequestKey");
        prop_assert!(!has_request || decision.requester().is_some(), "{}", decision.name());
    }

    #[test]
    fn values_come_back_from_their_canonical_bytes(spec in spec(), node in node()) {
        prop_assert_eq!(from_canonical::<JobSpec>(&canonical(&spec)), Some(spec.clone()));
        prop_assert_eq!(from_canonical::<NodeSpec>(&canonical(&node)), Some(node.clone()));
        prop_assert_eq!(hash(&spec), hash(&spec.clone()));
        let mut longer = canonical(&node);
        longer.push(0);
        prop_assert_eq!(from_canonical::<NodeSpec>(&longer), None);
    }

    #[test]
    fn a_flipped_bit_is_an_error(round in round(), place: prop::sample::Index, bit in 0..8u32) {
        let mut bytes = encode_round(&round);
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn a_cut_or_longer_round_is_an_error(round in round(), place: prop::sample::Index, more: Vec<u8>) {
        let mut bytes = encode_round(&round);
        prop_assert!(decode(&bytes[..place.index(bytes.len())]).is_err());
        if !more.is_empty() {
            bytes.extend_from_slice(&more);
            prop_assert_eq!(decode(&bytes), Err(DecodeError::Length));
        }
    }

    #[test]
    fn any_bytes_are_an_error_and_never_a_panic(bytes: Vec<u8>) {
        prop_assert!(decode(&bytes).is_err());
    }

    /// Bytes that pass the checksum reach the decoder of values itself.
    #[test]
    fn any_payload_is_decided(payload: Vec<u8>) {
        let _ = decode(&sealed(1, &payload));
        let _ = from_canonical::<Decision>(&payload);
    }

    #[test]
    fn a_bent_payload_is_decided(round in round(), places: Vec<(prop::sample::Index, u8)>) {
        let mut payload = encode_round(&round)[HEADER_BYTES..].to_vec();
        for (place, value) in places {
            let place = place.index(payload.len());
            payload[place] = value;
        }
        // Whatever it is, it decodes to something that encodes and keeps the rules, or not at all.
        if let Ok(round) = decode(&sealed(1, &payload)) {
            prop_assert_eq!(decode(&encode_round(&round)), Ok(round));
        }
    }
}

/// A payload under a true checksum.
fn sealed(format: u16, payload: &[u8]) -> Vec<u8> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&format.to_le_bytes());
    hasher.update(&(payload.len() as u64).to_le_bytes());
    hasher.update(payload);
    let mut bytes = b"MRND".to_vec();
    bytes.extend_from_slice(&format.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&hasher.finalize().to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn the_generator_reaches_every_variant() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for _ in 0..2_000 {
        seen.insert(decision().new_tree(&mut runner).unwrap().current().name());
    }
    assert_eq!(seen.len(), 72, "{seen:?}");
}

#[test]
fn every_byte_of_a_round_is_under_the_checksum() {
    let bytes = encode_round(&one(submitted()));
    for place in 0..bytes.len() {
        for value in 0..=255u8 {
            if value == bytes[place] {
                continue;
            }
            let mut bent = bytes.clone();
            bent[place] = value;
            assert!(decode(&bent).is_err(), "byte {place} as {value}");
        }
        assert!(decode(&bytes[..place]).is_err());
    }
}

#[test]
fn a_newer_format_is_named_and_not_mistaken_for_damage() {
    let payload = canonical(&one(Decision::LeaderStarted));
    let newer = |needed| Err(DecodeError::FormatNewer { needed, known: FORMAT_MAX });
    let newest = Round { format: FORMAT_MAX, ..one(Decision::LeaderStarted) };
    assert_eq!(decode(&sealed(FORMAT_MAX, &payload)), Ok(newest));
    assert_eq!(decode(&sealed(FORMAT_MAX + 1, b"")), newer(FORMAT_MAX + 1));
    assert_eq!(decode(&sealed(u16::MAX, &payload)), newer(u16::MAX));
    assert_eq!(decode(&sealed(0, &payload)), Err(DecodeError::Payload));
    // A newer one may also be larger than this one may be.
    let large = vec![0; ROUND_BYTES_MAX];
    assert_eq!(decode(&sealed(FORMAT_MAX + 1, &large)), newer(FORMAT_MAX + 1));
    assert_eq!(decode(&sealed(FORMAT_MAX, &large)), Err(DecodeError::Length));
}

/// A replica that is not upgraded yet reads what is written in its own format, stops before the first round
/// of a newer one, and says which format it lacks.
#[test]
fn a_binary_that_is_held_back_names_the_format_it_lacks() {
    let raised = one(Decision::FormatRaised { by: muster_types::Requester::default(), format: 2 });
    assert_eq!(decode_round(&encode_round(&raised), 1), Ok(raised));
    let next = Round { format: 2, ..one(Decision::LeaderStarted) };
    let error = decode_round(&encode_round(&next), 1).unwrap_err();
    assert_eq!(error, DecodeError::FormatNewer { needed: 2, known: 1 });
    let text = "record format 2 is needed and 1 is the highest known here: upgrade this replica";
    assert_eq!(error.to_string(), text);
    // Being held back further than anything can be reads nothing; being let on further changes nothing.
    assert_eq!(decode_round(&encode_round(&next), 0), Err(DecodeError::FormatNewer { needed: 2, known: 0 }));
    assert_eq!(decode_round(&encode_round(&next), u16::MAX), Ok(next));
}

#[test]
fn a_round_says_nothing_that_its_format_cannot() {
    let reason = Some(TEST_FORMAT_REASON.to_owned());
    let newer = one(Decision::NodeQuarantineSet {
        request: None,
        by: muster_types::Requester::default(),
        node: NodeId(3),
        reason,
    });
    let bytes = sealed(1, &canonical(&newer));
    let error = DecodeError::DecisionNewer { decision: "node_quarantine_set", needed: 2, format: 1 };
    assert_eq!(decode(&bytes), Err(error));
    let encoded = std::panic::catch_unwind(|| encode_round(&newer));
    assert!(encoded.is_err(), "nobody writes what the format cannot say");
    let said = Round { format: 2, ..newer };
    assert_eq!(decode(&encode_round(&said)), Ok(said));
}

/// Lengths are claimed before anything of them is there.
#[test]
fn huge_claims_allocate_nothing() {
    let claims = [u64::from(u32::MAX), 1 << 40, u64::MAX, 40 << 20];
    for claim in claims {
        // Term, replica, first index, basis index, log time; then the claimed number of decisions.
        let mut payload = vec![1, 1, 1, 1, 1, 253];
        payload.extend_from_slice(&claim.to_le_bytes());
        payload.extend_from_slice(&[2; 100]);
        let bytes = sealed(1, &payload);
        let asked = largest(|| assert_eq!(decode(&bytes), Err(DecodeError::Payload)));
        assert!(asked < 2 << 20, "{claim} decisions: {asked} bytes at once");
        // A submission with one spec, whose name claims that many bytes.
        let mut payload = vec![1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 253];
        payload.extend_from_slice(&claim.to_le_bytes());
        payload.extend_from_slice(&[b'a'; 100]);
        let bytes = sealed(1, &payload);
        let asked = largest(|| assert_eq!(decode(&bytes), Err(DecodeError::Payload)));
        assert!(asked < 2 << 20, "a name of {claim}: {asked} bytes at once");
        // A snapshot batch that claims that many rows, and one row that claims that many bytes.
        let mut rows = vec![253];
        rows.extend_from_slice(&claim.to_le_bytes());
        let asked = largest(|| assert_eq!(from_canonical::<Vec<Vec<u8>>>(&rows), None));
        assert!(asked < 2 << 20, "{claim} rows: {asked} bytes at once");
        rows.insert(0, 1);
        let asked = largest(|| assert_eq!(from_canonical::<Vec<Vec<u8>>>(&rows), None));
        assert!(asked < 2 << 20, "a row of {claim}: {asked} bytes at once");
    }
}

fn one(decision: Decision) -> Round {
    Round {
        format: FORMAT_MIN,
        term: 7,
        replica: ReplicaId(2),
        first_index: LogIndex(1_000_000),
        basis_index: LogIndex(999_999),
        log_time: LogTime(1_800_000_000_000),
        decisions: vec![decision],
    }
}

fn typical() -> JobSpec {
    let name = |text: &str| Name::new(text).unwrap();
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: name("h100"), count: 1 }.into()),
        cpu_milli: 8_000,
        memory_bytes: 64 << 30,
        exclusive: false,
        scratch_bytes: 0,
    };
    let command = ["python", "train.py", "--epochs", "10"].map(String::from).to_vec();
    let group = TaskGroup::new(name("main"), 1, command, request);
    let draft = JobDraft {
        run_time_limit_ms: Some(86_400_000),
        failure_retries_max: 3,
        ..JobDraft::new(name("train-resnet"), name("research"), vec![group])
    };
    draft.check().unwrap()
}

fn submitted() -> Decision {
    let request = RequestKey { id: RequestId(u128::MAX / 3), fingerprint: u64::MAX / 5 };
    let estimate = Estimate {
        run_ms: 3_600_000,
        run_high_ms: 7_200_000,
        turn: QueueKey::urgent(LogTime(1_800_000_000_000)),
        burst: None,
    };
    Decision::JobsSubmitted {
        request,
        by: muster_types::Requester::default(),
        specs: vec![typical().into()],
        estimates: vec![estimate],
    }
}

/// Growth of a record is growth of every log and every snapshot: a change here is a decision.
#[test]
fn sizes_of_typical_records() {
    let slot = |n: u32| WorkerSlot { node: NodeId(n), incarnation: 1, devices: DeviceSet(1 << (n % 8)) };
    let placed = |count: u32| Decision::GangPlaced {
        job: JobId(1_000_000 * JobId::PER_RECORD),
        workers: (0..count).map(|n| slot(1_000 + n)).collect(),
    };
    let sizes = [
        ("round around a decision", encode_round(&one(Decision::LeaderStarted)).len() - 1, 36),
        ("jobs_submitted, one worker", canonical(&submitted()).len(), 177),
        ("gang_placed, one worker", canonical(&placed(1)).len(), 12),
        ("gang_placed, 64 workers", canonical(&placed(64)).len(), 327),
    ];
    for (what, actual, _) in sizes {
        println!("{what}: {actual} bytes");
    }
    for (what, actual, expected) in sizes {
        assert_eq!(actual, expected, "{what}");
    }
}
