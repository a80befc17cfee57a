//! Signing in from a terminal: the device flow (RFC 8628), and refreshing what it gave.

use muster_fetch::{Ask, FetchError, FetchRules, Fetcher};
use muster_json::object;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::error::LoginError;
use crate::refresh::{DESCRIPTION_BYTES_MAX, open};

/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a text for people, and of an address.
const TEXT_BYTES_MAX: usize = 2_048;
/// Between two questions whether somebody has confirmed, where the issuer names no other time.
const INTERVAL_S: u64 = 5;
/// The longest that it may name, and how much longer it is after each `slow_down`.
const INTERVAL_S_MAX: u64 = 60;
/// How long a code is good at most.
const CODE_S_MAX: u64 = 1_800;
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Where an issuer is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Where a code is made; none where there is no device flow.
    pub device_url: Option<String>,
    /// Where tokens are given.
    pub token_url: String,
}

/// What a person has to confirm, and where.
#[derive(Clone)]
pub struct DeviceCode {
    /// Where to go.
    pub verification_url: String,
    /// The same with the code in it, where the issuer has that.
    pub complete_url: Option<String>,
    /// What to type there.
    pub user_code: String,
    /// Known to this process alone.
    device_code: String,
    /// Between two questions.
    interval: Duration,
    /// How long the code is good.
    good_for: Duration,
}

impl fmt::Debug for DeviceCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceCode({})", self.user_code)
    }
}

/// What the issuer gave. Nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Who has signed in, for the client; none where the issuer gives none.
    pub id_token: Option<String>,
    /// For services.
    pub access_token: String,
    /// What gets new ones without a person; none where the issuer gives none.
    pub refresh_token: Option<String>,
    /// How long they are good, in seconds, where the issuer says it.
    pub expires_in_s: Option<u64>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

/// A client of one issuer.
pub struct Login {
    fetcher: Fetcher,
    issuer_url: String,
    client_id: String,
}

impl Login {
    /// Of an issuer that the user names: its host may have any address, and is reached without TLS on this machine alone. The authorities are those
    /// of a file or of the system.
    pub async fn new(issuer_url: &str, client_id: &str, ca_file: Option<&Path>) -> Login {
        let host = host_of(issuer_url);
        let rules = FetchRules {
            allow_http: issuer_url.starts_with("http://") && is_this_machine(&host),
            allowed_hosts: BTreeSet::from([host]),
            timeout: REQUEST_TIMEOUT,
        };
        let fetcher = open(rules, ca_file).await;
        Login { fetcher, issuer_url: issuer_url.to_owned(), client_id: client_id.to_owned() }
    }

    /// Where the issuer says that it is asked.
    ///
    /// # Errors
    /// When it cannot be asked, or says nothing of the form.
    pub async fn provider(&mut self) -> Result<Provider, LoginError> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer_url.trim_end_matches('/'));
        let ask = Ask { url: &url, headers: &[], body: None, answer_bytes_max: DESCRIPTION_BYTES_MAX };
        let answer = self.fetcher.ask(ask).await?;
        let description =
            object(&answer.body).map_err(|_| LoginError::Answer("its description is no JSON object"))?;
        if text(&description, "issuer").as_deref() != Some(self.issuer_url.as_str()) {
            return Err(LoginError::Answer("its description is of another issuer; name it as `iss` has it"));
        }
        let token_url = text(&description, "token_endpoint")
            .ok_or(LoginError::Answer("its description names no `token_endpoint`"))?;
        Ok(Provider { device_url: text(&description, "device_authorization_endpoint"), token_url })
    }

    /// Asks for a code that a person confirms.
    ///
    /// # Errors
    /// When the issuer has no device flow, refuses, or answers what is not of the form.
    pub async fn begin(&mut self, provider: &Provider, scope: &str) -> Result<DeviceCode, LoginError> {
        let url = provider.device_url.as_deref().ok_or(LoginError::NoDeviceFlow)?;
        let client_id = self.client_id.clone();
        let answer = self.post(url, &[("client_id", client_id.as_str()), ("scope", scope)]).await?;
        if let Some(code) = error_of(&answer) {
            return Err(LoginError::Refused { code });
        }
        let wanted =
            |name: &str| text(&answer, name).ok_or(LoginError::Answer("a part of the code is missing"));
        let verification_url =
            text(&answer, "verification_uri").or_else(|| text(&answer, "verification_url"));
        let verification_url =
            verification_url.ok_or(LoginError::Answer("it does not say where to confirm the code"))?;
        let seconds = |name: &str| answer.get(name).and_then(Value::as_u64);
        let interval_s = seconds("interval").unwrap_or(INTERVAL_S).clamp(1, INTERVAL_S_MAX);
        let good_for_s = seconds("expires_in").unwrap_or(CODE_S_MAX).clamp(1, CODE_S_MAX);
        Ok(DeviceCode {
            verification_url,
            complete_url: text(&answer, "verification_uri_complete"),
            user_code: wanted("user_code")?,
            device_code: wanted("device_code")?,
            interval: Duration::from_secs(interval_s),
            good_for: Duration::from_secs(good_for_s),
        })
    }

    /// Waits until a person has confirmed a code, asking as often as the issuer says.
    ///
    /// # Errors
    /// When it was denied, or not confirmed in time.
    pub async fn wait(&mut self, provider: &Provider, code: &DeviceCode) -> Result<Tokens, LoginError> {
        let confirmed = self.poll(provider, code);
        tokio::time::timeout(code.good_for, confirmed).await.unwrap_or(Err(LoginError::TimedOut))
    }

    async fn poll(&mut self, provider: &Provider, code: &DeviceCode) -> Result<Tokens, LoginError> {
        let client_id = self.client_id.clone();
        let mut interval = code.interval;
        loop {
            tokio::time::sleep(interval).await;
            let fields = [
                ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
                ("device_code", code.device_code.as_str()),
                ("client_id", client_id.as_str()),
            ];
            let answer = match self.post(&provider.token_url, &fields).await {
                Ok(answer) => answer,
                // The network may be back by the next time; the code runs out in any case.
                Err(LoginError::Fetch(ref error)) if !matches!(error, FetchError::Refused(_)) => continue,
                Err(error) => return Err(error),
            };
            match error_of(&answer).as_deref() {
                None => return tokens_of(&answer),
                Some("authorization_pending") => {}
                Some("slow_down") => {
                    let longer = interval + Duration::from_secs(INTERVAL_S);
                    interval = longer.min(Duration::from_secs(INTERVAL_S_MAX));
                }
                Some("expired_token") => return Err(LoginError::TimedOut),
                Some(code) => return Err(LoginError::Refused { code: code.to_owned() }),
            }
        }
    }

    /// New tokens for a refresh token. An issuer that gives no new refresh token leaves the present one good.
    ///
    /// # Errors
    /// When the issuer refuses: a person has to sign in once more.
    pub async fn refresh(&mut self, token_url: &str, refresh_token: &str) -> Result<Tokens, LoginError> {
        let client_id = self.client_id.clone();
        let fields = [
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh_token),
            ("client_id", client_id.as_str()),
        ];
        let answer = self.post(token_url, &fields).await?;
        match error_of(&answer) {
            Some(code) => Err(LoginError::Refused { code }),
            None => tokens_of(&answer),
        }
    }

    async fn post(&mut self, url: &str, fields: &[(&str, &str)]) -> Result<Map<String, Value>, LoginError> {
        let headers = [("accept", "application/json".to_owned())];
        let body = Some(("application/x-www-form-urlencoded", form(fields).into_bytes()));
        let ask = Ask { url, headers: &headers, body, answer_bytes_max: ANSWER_BYTES_MAX };
        let answer = self.fetcher.ask(ask).await?;
        // A refusal is JSON as well, with another status.
        object(&answer.body).map_err(|_| LoginError::Answer("it is no JSON object"))
    }
}

/// A text that can be shown and sent: without control characters, and not too long.
fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    let text = object.get(name)?.as_str()?;
    let is_good = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    is_good.then(|| text.to_owned())
}

/// The code of a refusal.
fn error_of(answer: &Map<String, Value>) -> Option<String> {
    let code = answer.get("error")?.as_str().unwrap_or_default();
    Some(code.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(64).collect())
}

fn tokens_of(answer: &Map<String, Value>) -> Result<Tokens, LoginError> {
    let token = |name: &str| {
        let text = answer.get(name)?.as_str()?;
        // What goes into a header, and no more than that may have.
        let is_good =
            !text.is_empty() && text.len() <= ANSWER_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        is_good.then(|| text.to_owned())
    };
    Ok(Tokens {
        id_token: token("id_token"),
        access_token: token("access_token").ok_or(LoginError::Answer("it gave no `access_token`"))?,
        refresh_token: token("refresh_token"),
        expires_in_s: answer.get("expires_in").and_then(Value::as_u64),
    })
}

/// Fields as a form has them.
fn form(fields: &[(&str, &str)]) -> String {
    let mut form = String::new();
    for (name, value) in fields {
        if !form.is_empty() {
            form.push('&');
        }
        form.push_str(name);
        form.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                form.push(char::from(byte));
            } else {
                form.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    form
}

/// The host of an address, in lower case and without brackets; empty where there is none.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.to_ascii_lowercase()
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_forms() {
        assert_eq!(host_of("https://Login.Example.org:8443/realms/a"), "login.example.org");
        assert_eq!(host_of("http://[::1]:80/a"), "::1");
        assert_eq!(host_of("nonsense"), "nonsense");
        assert!(is_this_machine("127.0.0.1") && is_this_machine("::1") && !is_this_machine("10.0.0.1"));
        assert_eq!(form(&[("a", "b c"), ("d", "ü&=")]), "a=b%20c&d=%C3%BC%26%3D");
    }

    #[test]
    fn nothing_of_an_answer_reaches_a_terminal_unread() {
        let answer = serde_json::json!({ "user_code": "A\u{1b}[2J", "error": "bad\u{1b}[2Jcode", "n": 7 });
        let answer = answer.as_object().expect("an object");
        assert_eq!(text(answer, "user_code"), None);
        assert_eq!(text(answer, "n"), None);
        assert_eq!(error_of(answer).as_deref(), Some("bad2Jcode"));
        assert!(tokens_of(answer).is_err());
        assert!(
            !format!(
                "{:?}",
                Tokens {
                    id_token: None,
                    access_token: "hunter2".to_owned(),
                    refresh_token: None,
                    expires_in_s: None,
                }
            )
            .contains("hunter2")
        );
    }
}
