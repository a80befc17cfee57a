//! Base64 as tokens and keys have it: the alphabet for URLs, without padding, one spelling for each value.

fn digit(byte: u8) -> Option<u32> {
    let digit = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(u32::from(digit))
}

/// The bytes of a text; none where it is not of the form. Bits that are left over are zero: otherwise one signature would have
/// several spellings.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for byte in chunk {
            bits = (bits << 6) | digit(*byte)?;
        }
        for _ in chunk.len()..4 {
            bits <<= 6;
        }
        let [_, first, second, third] = bits.to_be_bytes();
        match (chunk.len(), second, third) {
            (2, 0, 0) => bytes.push(first),
            (3, _, 0) => bytes.extend([first, second]),
            (4, _, _) => bytes.extend([first, second, third]),
            _ => return None,
        }
    }
    Some(bytes)
}

/// The text of some bytes.
#[cfg(any(test, feature = "test-issuer"))]
pub(crate) fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0_u8; 4];
        for (place, byte) in chunk.iter().enumerate() {
            group[place + 1] = *byte;
        }
        let bits = u32::from_be_bytes(group);
        for place in 0..=chunk.len() {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_return(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn a_text_that_is_taken_is_the_only_one_of_its_bytes(text in "[A-Za-z0-9_=+/ -]{0,12}") {
            if let Some(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }

    #[test]
    fn known_values_and_wrong_ones() {
        assert_eq!(decode("").as_deref(), Some(&b""[..]));
        assert_eq!(decode("Zm9v").as_deref(), Some(&b"foo"[..]));
        assert_eq!(decode("Zm9vYg").as_deref(), Some(&b"foob"[..]));
        for wrong in ["Z", "Zm9vY", "Zm9vYh", "Zm9vYg==", "Zm9v Yg", "Zm+v", "ü"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
