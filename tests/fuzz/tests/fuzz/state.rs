//! Snapshots, as a replica restores them from its disk and from its peers.

use muster_state::State;

/// The checksum of every frame, made to hold; a frame whose length leads nowhere ends the repair.
fn repair(input: &mut [u8]) {
    let mut at = 0;
    while at + 9 <= input.len() {
        let length =
            u32::from_le_bytes([input[at + 1], input[at + 2], input[at + 3], input[at + 4]]) as usize;
        let Some(end) = (at + 9).checked_add(length).filter(|end| *end <= input.len()) else { return };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&input[at..=at]);
        hasher.update(&(length as u64).to_le_bytes());
        hasher.update(&input[at + 9..end]);
        let checksum = hasher.finalize().to_le_bytes();
        input[at + 5..at + 9].copy_from_slice(&checksum);
        at = end;
    }
}

#[test]
fn no_bytes_of_a_snapshot_make_it_panic_and_what_is_accepted_comes_back() {
    let seeds: Vec<Vec<u8>> =
        crate::GOLDEN_FORMATS.map(|format| crate::golden(format, "snapshot.bin")).into();
    muster_fuzz::run(
        "state-snapshot",
        &seeds,
        |input| repair(input),
        |input| {
            let Ok(state) = State::restore([input]) else { return false };
            let again: Vec<u8> = state.snapshot().flatten().collect();
            let restored = State::restore([&again]).expect("what a state writes, it reads");
            assert_eq!(restored.digest(), state.digest());
            true
        },
    );
}
