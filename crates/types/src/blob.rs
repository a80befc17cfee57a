//! Digests of content that is kept outside of the log: who fetches something by its digest can check what came.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use serde::{Deserialize, Serialize};

/// The label of a node that has the store of files that clients share with it.
pub const STORE_LABEL: &str = "files.store";
/// The value of [`STORE_LABEL`] on such a node; the others do not have the label.
pub const HAS_STORE: &str = "yes";

/// What a digest has to look like, in words.
pub const DIGEST_RULE: &str = "must be sha256: and 64 lower-case hexadecimal digits";

/// What stands before the digits.
const PREFIX: &str = "sha256:";

/// The SHA-256 of some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobDigest([u8; 32]);

impl BlobDigest {
    /// Of a hash that was computed.
    #[must_use]
    pub const fn new(hash: [u8; 32]) -> BlobDigest {
        BlobDigest(hash)
    }

    /// As people write it: `sha256:` and 64 digits.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<BlobDigest, &'static str> {
        let digits = text.strip_prefix(PREFIX).ok_or(DIGEST_RULE)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return Err(DIGEST_RULE);
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: &u8| match digit {
                b'0'..=b'9' => Ok(digit - b'0'),
                b'a'..=b'f' => Ok(digit - b'a' + 10),
                _ => Err(DIGEST_RULE),
            };
            let [high, low] = pair else { return Err(DIGEST_RULE) };
            *byte = (value(high)? << 4) | value(low)?;
        }
        Ok(BlobDigest(hash))
    }

    /// The digits alone.
    #[must_use]
    pub fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl TryFrom<String> for BlobDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<BlobDigest, &'static str> {
        BlobDigest::parse(&text)
    }
}

impl From<BlobDigest> for String {
    fn from(digest: BlobDigest) -> String {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written_or_refused() {
        let mut hash = [0; 32];
        for (place, byte) in hash.iter_mut().enumerate() {
            *byte = (place * 9) as u8;
        }
        let digest = BlobDigest::new(hash);
        let text = digest.to_string();
        assert_eq!(BlobDigest::parse(&text), Ok(digest));
        assert_eq!(text.strip_prefix(PREFIX), Some(digest.digits().as_str()));
        let long = format!("{text}0");
        let upper = text.replace("sha256:0009", "sha256:000A");
        let short = text.get(..70).unwrap_or_default();
        let foreign = text.replace("sha256", "md5");
        let wide = text.replace("sha256:0009", "sha256:00é");
        for bad in ["", "sha256:", &*long, &*upper, short, &*foreign, &*wide] {
            assert_eq!(BlobDigest::parse(bad), Err(DIGEST_RULE), "{bad}");
        }
    }
}
