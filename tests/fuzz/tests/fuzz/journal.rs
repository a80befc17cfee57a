//! Rounds, as a replica reads them from its log and from its peers.

use muster_journal::{FORMAT_MAX, decode_round, encode_round};
use muster_state::State;

/// Length and checksum of a round's header, made to hold for whatever follows.
pub(crate) fn repair(input: &mut Vec<u8>) {
    if input.len() < 14 {
        input.resize(14, 0);
    }
    let (header, payload) = input.split_at_mut(14);
    header[..4].copy_from_slice(b"MRND");
    header[6..10].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[4..6]);
    hasher.update(&(payload.len() as u64).to_le_bytes());
    hasher.update(payload);
    header[10..14].copy_from_slice(&hasher.finalize().to_le_bytes());
}

#[test]
fn no_bytes_of_a_round_make_it_panic_and_what_is_accepted_comes_back() {
    muster_fuzz::run("journal-round", &crate::rounds(), repair, |input| {
        let Ok(round) = decode_round(input, FORMAT_MAX) else { return false };
        // Integers may be written longer than need be; decoded again they are the same round.
        assert_eq!(decode_round(&encode_round(&round), FORMAT_MAX).as_ref(), Ok(&round));
        true
    });
}

/// A leader with a bug, or one taken over: its rounds decode. The guard may refuse every record, but
/// the state must stand.
#[test]
fn no_round_that_decodes_makes_guard_or_fold_panic() {
    let rounds = crate::rounds();
    let mut states = vec![State::default()];
    for bytes in &rounds {
        let mut state = states[states.len() - 1].clone();
        state.apply_round(&decode_round(bytes, FORMAT_MAX).unwrap());
        states.push(state);
    }
    let mut turn = 0;
    muster_fuzz::run("state-apply", &rounds, repair, |input| {
        let Ok(round) = decode_round(input, FORMAT_MAX) else { return false };
        turn = (turn + 1) % states.len();
        let mut state = states[turn].clone();
        state.apply_round(&round);
        true
    });
}
