//! One target for each way bytes of others come in. `cargo test -p muster-fuzz -- --nocapture` says how
//! much was tried.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod agent;
mod journal;
mod messages;
mod state;
mod store;

use std::path::Path;

/// The formats that have golden logs. Builds for tests know one more format.
const GOLDEN_FORMATS: [u16; 1] = [1];

/// A file of the golden logs: real inputs of every kind.
fn golden(format: u16, file: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../golden/v{format}/{file}"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rounds of the golden logs, as they are in Raft's entries.
fn rounds() -> Vec<Vec<u8>> {
    let mut rounds = Vec::new();
    for format in GOLDEN_FORMATS {
        let log = golden(format, "rounds.log");
        let mut rest = &log[..];
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (round, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            rounds.push(round.to_vec());
            rest = behind;
        }
    }
    rounds
}
