//! Keys of an issuer, as a JSON Web Key Set has them, and the signatures that they verify.

use muster_json::{JsonFault, object};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::base64url::decode;

/// Bytes of a key set.
pub const KEY_SET_BYTES_MAX: usize = 256 << 10;
/// Keys of one set.
const KEYS_MAX: usize = 64;
/// Bytes of the name of a key.
pub(crate) const KEY_ID_BYTES_MAX: usize = 256;
/// Bytes of an RSA modulus: 2,048 to 8,192 bits.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;

/// How a token is signed. There is no other: none without a signature, and none whose key both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// RSA with SHA-256, keys of at least 2,048 bits.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Every one.
    pub const ALL: [Algorithm; 3] = [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];

    /// As tokens and key sets name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    /// By its name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == text)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One key. Which algorithm it is for follows from what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    fn algorithm(&self) -> Algorithm {
        match self {
            PublicKey::Rsa { .. } => Algorithm::Rs256,
            PublicKey::P256(_) => Algorithm::Es256,
            PublicKey::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Whether the signature of a message is by this key.
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            PublicKey::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus.as_slice(), e: exponent.as_slice() };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            PublicKey::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            PublicKey::Ed25519(point) => UnparsedPublicKey::new(&ED25519, point).verify(message, signature),
        };
        verified.is_ok()
    }

    /// A key of a set; none for one that verifies no token here: of another type, for encryption, or malformed.
    fn of(key: &Map<String, Value>) -> Option<PublicKey> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let bytes = |name: &str| text(name).and_then(decode);
        if text("use").is_some_and(|used| used != "sig") {
            return None;
        }
        let read = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let modulus = without_zeros(bytes("n")?);
                let exponent = without_zeros(bytes("e")?);
                let fits = MODULUS_BYTES.contains(&modulus.len()) && (1..=8).contains(&exponent.len());
                fits.then_some(PublicKey::Rsa { modulus, exponent })?
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes("x")?, bytes("y")?);
                // The point is not compressed.
                (x.len() == 32 && y.len() == 32).then(|| PublicKey::P256([vec![4], x, y].concat()))?
            }
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(bytes("x").filter(|point| point.len() == 32)?),
            _ => return None,
        };
        let is_for_it = text("alg").is_none_or(|algorithm| algorithm == read.algorithm().name());
        is_for_it.then_some(read)
    }
}

/// A key that an issuer publishes, with its name. An issuer that gives a name to another key has withdrawn the first: both the name and
/// the key itself are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKey {
    name: (String, Algorithm),
    public: Arc<PublicKey>,
}

impl SigningKey {
    /// Whether the signature of a message is by this key.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.public.verifies(message, signature)
    }
}

fn without_zeros(bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.into_iter().skip(zeros).collect()
}

/// Why a text is no key set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error("it is no JSON object in which every name stands once")]
    Form,
    #[error("it has no list `keys`")]
    NoKeys,
    #[error("it has more than {KEYS_MAX} keys")]
    TooMany,
    #[error("two of its keys have the same `kid`")]
    Repeated,
}

/// The keys of an issuer by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys(BTreeMap<(String, Algorithm), Arc<PublicKey>>);

impl Keys {
    /// Reads a key set. Keys that verify no token here are passed over; a set without any means that all were withdrawn.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Keys, KeySetError> {
        let set = object(bytes).map_err(|_: JsonFault| KeySetError::Form)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(KeySetError::NoKeys)?;
        if listed.len() > KEYS_MAX {
            return Err(KeySetError::TooMany);
        }
        let mut keys = BTreeMap::new();
        for key in listed.iter().filter_map(Value::as_object) {
            let id = key.get("kid").and_then(Value::as_str);
            let Some(id) = id.filter(|id| !id.is_empty() && id.len() <= KEY_ID_BYTES_MAX) else { continue };
            let Some(read) = PublicKey::of(key) else { continue };
            if keys.insert((id.to_owned(), read.algorithm()), Arc::new(read)).is_some() {
                return Err(KeySetError::Repeated);
            }
        }
        Ok(Keys(keys))
    }

    /// The key of this name for this algorithm.
    pub(crate) fn get(&self, id: &str, algorithm: Algorithm) -> Option<SigningKey> {
        let name = (id.to_owned(), algorithm);
        let public = Arc::clone(self.0.get(&name)?);
        Some(SigningKey { name, public })
    }

    /// Whether this very key is still published under its name.
    pub(crate) fn has(&self, key: &SigningKey) -> bool {
        self.0.get(&key.name).is_some_and(|public| *public == key.public)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base64url::encode;

    fn okp(id: &str) -> Value {
        serde_json::json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": encode(&[7; 32]) })
    }

    fn set(keys: &[Value]) -> Vec<u8> {
        serde_json::json!({ "keys": keys }).to_string().into_bytes()
    }

    #[test]
    fn keys_that_verify_nothing_here_are_passed_over() {
        let rsa = |bytes: usize, more: Value| {
            let mut key = serde_json::json!({
                "kty": "RSA", "kid": "r", "e": "AQAB", "n": encode(&vec![0xff; bytes]),
            });
            for (name, value) in more.as_object().into_iter().flatten() {
                key[name.as_str()] = value.clone();
            }
            key
        };
        let none = || serde_json::json!({});
        let count = |key: Value| Keys::parse(&set(&[key])).expect("it is a set").count();
        assert_eq!(count(okp("a")), 1);
        assert_eq!(count(rsa(256, none())), 1);
        assert_eq!(count(rsa(128, none())), 0, "1,024 bits can be broken");
        assert_eq!(count(rsa(2_000, none())), 0);
        assert_eq!(count(rsa(256, serde_json::json!({ "use": "enc" }))), 0);
        assert_eq!(count(rsa(256, serde_json::json!({ "alg": "RS512" }))), 0);
        assert_eq!(count(rsa(256, serde_json::json!({ "kid": "" }))), 0);
        assert_eq!(
            count(serde_json::json!({ "kty": "oct", "kid": "s", "k": "AAAA" })),
            0,
            "it is no public key"
        );
        assert_eq!(
            count(serde_json::json!({ "kty": "EC", "crv": "P-256", "kid": "e", "x": "AA", "y": "AA" })),
            0
        );
        assert_eq!(Keys::parse(&set(&[])).expect("all are withdrawn").count(), 0);
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for wrong in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[],"keys":[]}"#] {
            assert!(Keys::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(Keys::parse(&set(&[okp("a"), okp("a")])), Err(KeySetError::Repeated));
        let many: Vec<Value> = (0..=KEYS_MAX).map(|number| okp(&number.to_string())).collect();
        assert_eq!(Keys::parse(&set(&many)), Err(KeySetError::TooMany));
    }
}
