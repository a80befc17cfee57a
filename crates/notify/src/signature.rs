//! Signatures of deliveries: HMAC-SHA256 over the time, a dot and the body.

use ring::hmac;
use std::fmt::Write as _;

/// The signature of a body sent at a time, as the header has it: `v1=` and 64 hexadecimal digits.
pub(crate) fn sign(key: &[u8], timestamp_s: u64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    context.update(timestamp_s.to_string().as_bytes());
    context.update(b".");
    context.update(body);
    let mut text = String::from("v1=");
    for byte in context.sign().as_ref() {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with another implementation: `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac …`.
    #[test]
    fn the_signature_is_that_of_others() {
        let key = b"0123456789abcdef0123456789abcdef";
        let signature = sign(key, 1_700_000_000, br#"{"a":1}"#);
        assert_eq!(signature, "v1=f05f2539e3ae1c49aec5f8cfdad75ef6b06480b133973ffbb7ec9e18827af177");
        assert_ne!(signature, sign(key, 1_700_000_001, br#"{"a":1}"#));
        assert_ne!(signature, sign(key, 1_700_000_000, br#"{"a":2}"#));
        assert_ne!(signature, sign(b"another key of 32 bytes, or more", 1_700_000_000, br#"{"a":1}"#));
    }
}
