//! An issuer for tests: it has a key of its making, publishes it, and signs what it is told to.

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::base64url::encode;

/// A key that signs tokens.
pub struct TestIssuer {
    key: Ed25519KeyPair,
    id: String,
}

impl TestIssuer {
    /// With a new key of this name.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    #[must_use]
    pub fn new(id: &str) -> TestIssuer {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("there is randomness");
        let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("it was made just now");
        TestIssuer { key, id: id.to_owned() }
    }

    /// Its key, as a set has it.
    #[must_use]
    pub fn key(&self) -> Value {
        let point = encode(self.key.public_key().as_ref());
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": self.id, "use": "sig", "alg": "EdDSA", "x": point })
    }

    /// A set of its key alone.
    #[must_use]
    pub fn key_set(&self) -> String {
        json!({ "keys": [self.key()] }).to_string()
    }

    /// A token with these claims.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_text(
            &json!({ "alg": "EdDSA", "typ": "JWT", "kid": self.id }).to_string(),
            &claims.to_string(),
        )
    }

    /// A token of a header and claims that are taken as they are.
    #[must_use]
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let signed = unsigned(header, claims);
        let signature = encode(self.key.sign(signed.as_bytes()).as_ref());
        format!("{signed}.{signature}")
    }
}

/// What is signed of a token.
#[must_use]
pub fn unsigned(header: &str, claims: &str) -> String {
    format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()))
}

/// A signature as a token has it.
#[must_use]
pub fn encoded(signature: &[u8]) -> String {
    encode(signature)
}
