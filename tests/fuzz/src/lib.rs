//! Feeds every decoder with damaged input for a fixed time.
//!
//! Stable Rust has no coverage-guided fuzzer, and bytes drawn at random never pass a checksum. So this
//! one starts from real inputs, damages them in the ways that decoders trip over (bits, lengths,
//! extremes, pieces moved between inputs), lets the target repair the checksums of what was damaged, and
//! keeps what was accepted as a start for the next rounds.
//!
//! `MUSTER_FUZZ_MS` says how long each target runs (default 1,500), `MUSTER_FUZZ_SEED` where it starts
//! (default: another one every run, printed). An input that makes a target panic is written to
//! `target/fuzz/` and named in the failure; put into `tests/fuzz/found/<target>/` it is tried first in
//! every later run.
//!
//! **Invariant:** a run ends at its time whatever the target accepts, and says how much it tried.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Accepted inputs kept as starts for further damage.
const CORPUS_MAX: usize = 256;
/// Bytes of an input; what grows beyond is cut.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Damages in one input.
const DAMAGES_MAX: u64 = 6;
/// Values that lengths and counts trip over.
const EXTREMES: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0xffff_ffff_ffff_ffff];

/// SplitMix64: small, and the same everywhere.
pub struct Draw(u64);

impl Draw {
    /// Draws that follow from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 where that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.number() % bound as u64) as usize }
    }
}

/// Damages `input` a few times; `other` is where pieces come from.
pub fn damage(draw: &mut Draw, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=draw.number() % DAMAGES_MAX {
        let at = draw.below(input.len());
        match draw.number() % 9 {
            0 | 1 if !input.is_empty() => input[at] ^= 1 << draw.below(8),
            2 if !input.is_empty() => input[at] = draw.number() as u8,
            3 => input.truncate(at),
            4 => input.insert(at, draw.number() as u8),
            5 if !input.is_empty() => {
                let end = (at + 1 + draw.below(16)).min(input.len());
                input.drain(at..end);
            }
            6 => {
                let value = EXTREMES[draw.below(EXTREMES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][draw.below(4)];
                for (place, byte) in value.iter().take(width).enumerate() {
                    if let Some(target) = input.get_mut(at + place) {
                        *target = *byte;
                    }
                }
            }
            7 if !other.is_empty() => {
                let from = draw.below(other.len());
                let piece = &other[from..(from + 1 + draw.below(64)).min(other.len())];
                let end = (at + piece.len()).min(input.len());
                input.splice(at..end, piece.iter().copied());
            }
            _ if !input.is_empty() => {
                let end = (at + 1 + draw.below(32)).min(input.len());
                let piece = input[at..end].to_vec();
                let to = draw.below(input.len());
                input.splice(to..to, piece);
            }
            _ => {}
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn setting(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn found(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target);
    let Ok(files) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut inputs: Vec<_> = files
        .flatten()
        .map(|file| file.path())
        .filter_map(|path| std::fs::read(&path).ok().map(|bytes| (path, bytes)))
        .collect();
    inputs.sort();
    inputs
}

fn keep(target: &str, input: &[u8]) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fuzz").join(target);
    let name = input.iter().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let path = directory.join(format!("{name:016x}.bin"));
    if let Err(error) = std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&path, input)) {
        eprintln!("the input could not be kept: {error}; it is {input:02x?}");
    }
    path
}

/// Runs one target for its time. `seeds` are real inputs, `repair` makes checksums and lengths of a
/// damaged input hold again, and `decode` says whether it was accepted.
///
/// # Panics
/// When `decode` panics, with where the input is kept; and when no seed is accepted, because then the
/// target tests nothing.
pub fn run(
    target: &str,
    seeds: &[Vec<u8>],
    repair: impl Fn(&mut Vec<u8>),
    mut decode: impl FnMut(&[u8]) -> bool,
) {
    let mut feed = |input: &[u8], origin: &str| -> bool {
        catch_unwind(AssertUnwindSafe(|| decode(input))).unwrap_or_else(|_| {
            let path = keep(target, input);
            panic!("{target}: {origin} makes it panic; kept as {}", path.display());
        })
    };
    for (path, input) in found(target) {
        feed(&input, &path.display().to_string());
    }
    let mut corpus: Vec<Vec<u8>> = seeds.to_vec();
    let good = seeds.iter().filter(|seed| feed(seed, "a real input")).count();
    assert!(good > 0, "{target}: none of the {} real inputs is accepted", seeds.len());
    let seed = setting("MUSTER_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(target));
    let time = Duration::from_millis(setting("MUSTER_FUZZ_MS").unwrap_or(1_500));
    let mut draw = Draw::new(seed);
    let (begun, mut tried, mut accepted) = (Instant::now(), 0u64, 0u64);
    let origin = format!("an input of MUSTER_FUZZ_SEED={seed}");
    while begun.elapsed() < time {
        let mut input = corpus[draw.below(corpus.len())].clone();
        let other = corpus[draw.below(corpus.len())].clone();
        damage(&mut draw, &mut input, &other);
        // Some go in as they are: the checks of checksums are decoders too.
        if !draw.number().is_multiple_of(8) {
            repair(&mut input);
        }
        tried += 1;
        if feed(&input, &origin) {
            accepted += 1;
            if corpus.len() < CORPUS_MAX {
                corpus.push(input);
            } else {
                let place = seeds.len() + draw.below(CORPUS_MAX.saturating_sub(seeds.len()));
                if let Some(old) = corpus.get_mut(place) {
                    *old = input;
                }
            }
        }
    }
    println!("{target}: {tried} inputs, {accepted} accepted, seed {seed}");
    assert!(tried > 0, "{target}: nothing was tried in {time:?}");
}
