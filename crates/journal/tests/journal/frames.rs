use muster_journal::frame::{FRAME_BYTES_MAX, FrameError, FrameReader, encode_frame};
use muster_journal::{hash, hash_of_bytes};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::allocation::largest;

fn read(pieces: &[&[u8]]) -> Result<Vec<(u8, Vec<u8>)>, FrameError> {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    for piece in pieces {
        reader.push(piece);
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
    }
    reader.finish()?;
    Ok(frames)
}

fn frames() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    vec((any::<u8>(), vec(any::<u8>(), 0..60)), 0..8)
}

fn bytes_of(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    frames.iter().flat_map(|(tag, payload)| encode_frame(*tag, payload)).collect()
}

proptest! {
    #[test]
    fn frames_come_back_however_they_were_cut(frames in frames(), cuts: Vec<prop::sample::Index>) {
        let bytes = bytes_of(&frames);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(&pieces), Ok(frames));
    }

    #[test]
    fn a_flipped_bit_is_an_error(frames in frames(), place: prop::sample::Index, bit in 0..8u32) {
        let mut bytes = bytes_of(&frames);
        if !bytes.is_empty() {
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            prop_assert!(read(&[&bytes]).is_err());
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_cut(frames in frames(), place: prop::sample::Index) {
        let bytes = bytes_of(&frames);
        let mut ends = vec![0];
        for (_, payload) in &frames {
            ends.push(ends[ends.len() - 1] + 9 + payload.len());
        }
        let place = place.index(bytes.len() + 1);
        let result = read(&[&bytes[..place]]);
        if ends.contains(&place) {
            prop_assert!(result.is_ok());
        } else {
            prop_assert_eq!(result, Err(FrameError::Truncated));
        }
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>) {
        let _ = read(&[&bytes]);
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    for length in [FRAME_BYTES_MAX as u32, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
        let mut bytes = vec![1];
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[0; 100]);
        let expected =
            if length as usize > FRAME_BYTES_MAX { FrameError::Length } else { FrameError::Truncated };
        let asked = largest(|| assert_eq!(read(&[&bytes]), Err(expected)));
        assert!(asked < 4_096, "{length}: {asked} bytes at once");
    }
}

#[test]
fn bytes_are_hashed_as_the_list_that_they_are() {
    // Around the lengths at which a length, or what fits without an allocation, takes another form.
    for length in [0_usize, 1, 250, 251, 252, 766, 767, 768, 769, 65_535, 65_536, 70_000] {
        let bytes: Vec<u8> = (0..length).map(|place| (place * 7 + length) as u8).collect();
        assert_eq!(hash_of_bytes(&bytes), hash(&bytes), "{length} bytes");
    }
}
