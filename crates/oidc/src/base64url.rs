//! Base64 as tokens and keys have it: the alphabet for URLs, without padding, one spelling for each value.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The bytes of a text; none where it is not of the form. Bits that are left over are zero: otherwise one signature would have
/// several spellings.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The text of some bytes.
#[cfg(any(test, feature = "test-issuer"))]
pub(crate) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
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
