//! An issuer for tests: it has a key of its making, publishes it, and signs what it is told to.

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

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

/// Answers every request by its path and its body with a status and a text, on connections of one request each; gives its address, and what it
/// was asked.
///
/// # Panics
/// When this machine has no port.
pub async fn serve(
    answer: impl Fn(&str, &str) -> (u16, String) + Send + Sync + 'static,
) -> (String, UnboundedReceiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (asked, requests) = unbounded_channel();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (asked, answer) = (asked.clone(), Arc::clone(&answer));
            tokio::spawn(async move {
                let mut text = String::new();
                let mut buffer = vec![0; 16 << 10];
                // The head of a request, and the whole of its body.
                loop {
                    let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
                    text.push_str(&String::from_utf8_lossy(&buffer[..read]));
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.lines().find_map(|line| {
                        line.to_ascii_lowercase().strip_prefix("content-length: ")?.trim().parse().ok()
                    });
                    if body.len() >= length.unwrap_or(0_usize) {
                        break;
                    }
                }
                let (head, body) = text.split_once("\r\n\r\n").expect("it was read");
                let path = head.split(' ').nth(1).unwrap_or_default();
                let (status, content) = answer(path, body);
                let _ = asked.send(format!("{path} {body}"));
                let length = content.len();
                let text = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{content}"
                );
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    (url, requests)
}
