//! Secrets of bearer tokens: made by the client that asks for one, shown once, and compared by their hashes. And tokens of issuers, as a
//! client shows them.
//!
//! **Invariant:** nothing prints a secret but [`TokenSecret::reveal`] and [`Bearer::reveal`]; a comparison takes as long for a wrong secret as for
//! the right one.

use muster_types::TokenId;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// Random bytes of a secret, apart from those of its id.
const SECRET_BYTES: usize = 32;
/// What every secret begins with, so that people and scanners of source code recognise one.
const PREFIX: &str = "muster_";
/// Bytes of a whole secret: prefix, 16 digits of the id, `_`, and two digits for each random byte.
pub const TOKEN_TEXT_BYTES: usize = PREFIX.len() + 16 + 1 + 2 * SECRET_BYTES;
/// Bytes of a token of an issuer.
pub const JWT_BYTES_MAX: usize = 8 << 10;
/// Bytes of a file with a token: the token and some white space.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// Why a text or a file is no secret of a token. It never repeats the text.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Not of the form.
    #[error(
        "a token is `muster_`, 16 hexadecimal digits, `_`, and {} hexadecimal digits, or a signed token of an issuer",
        2 * SECRET_BYTES
    )]
    Form,
    /// The file could not be read.
    #[error("reading the token file {}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file can be read by others than its owner and group.
    #[error("the token file {} is open to everybody (mode {mode:o}); run `chmod 600` on it", .path.display())]
    OpenFile {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The system has no randomness.
    #[error("the system gives no random bytes")]
    Random,
}

/// The secret of one token, of the right form. Clones share it.
#[derive(Clone)]
pub struct TokenSecret {
    id: TokenId,
    text: Arc<str>,
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSecret({})", self.id)
    }
}

impl TokenSecret {
    /// A secret of 256 random bits, with a random id.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn generate() -> Result<TokenSecret, TokenError> {
        let mut bytes = [0_u8; 8 + SECRET_BYTES];
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut bytes).map_err(|_| TokenError::Random)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (id, secret) = digits.split_at(16);
        TokenSecret::parse(&format!("{PREFIX}{id}_{secret}"))
    }

    /// Reads a whole secret. Strict: one spelling for each, nothing before or behind it.
    ///
    /// # Errors
    /// When it is of another form.
    pub fn parse(text: &str) -> Result<TokenSecret, TokenError> {
        if text.len() != TOKEN_TEXT_BYTES {
            return Err(TokenError::Form);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(TokenError::Form)?;
        let (id, secret) = rest.split_once('_').ok_or(TokenError::Form)?;
        let id = id.parse().map_err(|_| TokenError::Form)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if secret.len() != 2 * SECRET_BYTES || !secret.bytes().all(is_digit) {
            return Err(TokenError::Form);
        }
        Ok(TokenSecret { id, text: text.into() })
    }

    /// Reads the secret in a file, with white space around it. The file must not be open to everybody.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<TokenSecret, TokenError> {
        TokenSecret::parse(read_closed(path)?.trim())
    }

    /// Which token it is of.
    #[must_use]
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// The secret itself, to be shown once, or sent.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// What the cluster keeps of it.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(self.text.as_bytes()).into()
    }

    /// Whether this is the secret that a hash is of.
    #[must_use]
    pub fn is_of(&self, sha256: &[u8; 32]) -> bool {
        bool::from(self.sha256()[..].ct_eq(&sha256[..]))
    }
}

/// Reads a file that is not open to everybody.
fn read_closed(path: &Path) -> Result<String, TokenError> {
    use std::os::unix::fs::MetadataExt as _;
    let failed = |source| TokenError::Read { path: path.to_path_buf(), source };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    // A pipe, as of a shell's `<(…)`, has no readers but its own.
    if metadata.is_file() && mode & 0o007 != 0 {
        return Err(TokenError::OpenFile { path: path.to_path_buf(), mode });
    }
    let bytes = muster_files::read_bounded(path, FILE_BYTES_MAX).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| TokenError::Form)
}

/// Whether a text has the form of a signed token of an issuer: three parts of digits of base64url, with dots between them. How long
/// it is does not matter.
#[must_use]
pub fn is_jwt(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let mut parts = text.split('.');
    let is_part =
        |part: Option<&str>| part.is_some_and(|part| !part.is_empty() && part.bytes().all(is_digit));
    is_part(parts.next()) && is_part(parts.next()) && is_part(parts.next()) && parts.next().is_none()
}

/// What a client shows with each call: the secret of a token of the cluster's making, or a token of an issuer. Clones share it.
#[derive(Clone)]
pub struct Bearer(Arc<str>);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer")
    }
}

impl From<&TokenSecret> for Bearer {
    fn from(secret: &TokenSecret) -> Bearer {
        Bearer(Arc::clone(&secret.text))
    }
}

impl Bearer {
    /// Reads one of the two, with nothing before or behind it.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Bearer, TokenError> {
        match TokenSecret::parse(text) {
            Ok(secret) => Ok(Bearer::from(&secret)),
            Err(_) if text.len() <= JWT_BYTES_MAX && is_jwt(text) => Ok(Bearer(text.into())),
            Err(error) => Err(error),
        }
    }

    /// Reads the one in a file, with white space around it. The file must not be open to everybody.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Bearer, TokenError> {
        Bearer::parse(read_closed(path)?.trim())
    }

    /// The token itself, to be sent.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_client_shows_a_secret_or_a_token_of_an_issuer() {
        let secret = TokenSecret::generate().unwrap();
        for good in [secret.reveal(), "eyJhbGciOiJFZERTQSJ9.e30.c2ln", "a.b.c"] {
            let bearer = Bearer::parse(good).unwrap();
            assert_eq!(bearer.reveal(), good);
            assert!(!format!("{bearer:?}").contains(good), "nothing prints it");
        }
        let long = format!("{}.b.c", "a".repeat(JWT_BYTES_MAX));
        assert!(is_jwt(&long));
        for wrong in ["", "..", "a.b", "a.b.c.d", "a..c", "a.b.c=", " a.b.c", "muster_0", &long] {
            assert!(Bearer::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_secret_goes_there_and_back() {
        let (one, other) = (TokenSecret::generate().unwrap(), TokenSecret::generate().unwrap());
        assert_ne!(one.reveal(), other.reveal());
        let again = TokenSecret::parse(one.reveal()).unwrap();
        assert_eq!((again.id(), again.sha256()), (one.id(), one.sha256()));
        assert!(again.is_of(&one.sha256()) && !other.is_of(&one.sha256()));
        assert!(!format!("{one:?}").contains(&one.reveal()[24..]), "nothing prints it");
    }

    /// The cluster keeps a plain hash of a secret, which is enough only for one that nobody can guess.
    #[test]
    fn every_bit_of_a_secret_is_random() {
        let begin = TOKEN_TEXT_BYTES - 2 * SECRET_BYTES;
        let (mut ones, mut zeros, mut seen) = ([0_u8; SECRET_BYTES], [0_u8; SECRET_BYTES], HashSet::new());
        for _ in 0..256 {
            let digits = TokenSecret::generate().unwrap().reveal()[begin..].to_owned();
            for (at, (ones, zeros)) in ones.iter_mut().zip(&mut zeros).enumerate() {
                let byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
                *ones |= byte;
                *zeros |= !byte;
            }
            assert!(seen.insert(digits), "it came twice");
        }
        // A bit that is fixed would be one of these alone; by chance that happens once in 2^247 runs.
        assert_eq!((ones, zeros), ([u8::MAX; SECRET_BYTES], [u8::MAX; SECRET_BYTES]));
        // The id is hashed with the secret, so that equal digits below two ids have two hashes.
        let digits = "7".repeat(2 * SECRET_BYTES);
        let below = |id: u64| TokenSecret::parse(&format!("{PREFIX}{id:016x}_{digits}")).unwrap().sha256();
        assert_ne!(below(1), below(2));
    }

    #[test]
    fn there_is_one_spelling_of_each() {
        let good = TokenSecret::generate().unwrap();
        let good = good.reveal();
        let long = format!("{good}0");
        let upper = good.to_uppercase();
        let shouted = format!("{}{}", &good[..24], good[24..].replace(|c: char| c.is_ascii_hexdigit(), "F"));
        let moved = good.replacen('_', "-", 2);
        for text in [
            "",
            "muster_",
            &good[1..],
            &good[..good.len() - 1],
            &long,
            &upper,
            &shouted,
            &moved,
            &"ä".repeat(44),
        ] {
            assert!(TokenSecret::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_file_is_read_only_where_it_is_closed_to_others() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let secret = TokenSecret::generate().unwrap();
        std::fs::write(&path, format!("{}\n", secret.reveal())).unwrap();
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o644);
        assert!(matches!(TokenSecret::read(&path), Err(TokenError::OpenFile { .. })));
        set(0o600);
        assert_eq!(TokenSecret::read(&path).unwrap().reveal(), secret.reveal());
        for wrong in [&b""[..], b"\xff", b"muster_", &[b'a'; 1 << 15]] {
            std::fs::write(&path, wrong).unwrap();
            let error = TokenSecret::read(&path).expect_err("it is no secret");
            assert!(matches!(error, TokenError::Form | TokenError::Read { .. }), "{error}");
        }
        assert!(matches!(TokenSecret::read(&directory.path().join("none")), Err(TokenError::Read { .. })));
    }
}
