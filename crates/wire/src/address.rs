//! Names as parts of the addresses of web pages: the same in the command line and on the pages.

use core::fmt::Write as _;

/// Text as a part of an address: everything but unreserved characters (RFC 3986) in its encoded form.
#[must_use]
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing into a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_addresses_are_encoded() {
        assert_eq!(encoded("eu-1.a_b~c"), "eu-1.a_b~c");
        assert_eq!(encoded("a b&c=\"<ü"), "a%20b%26c%3D%22%3C%C3%BC");
        assert_eq!(encoded("../#?%"), "..%2F%23%3F%25");
    }
}
