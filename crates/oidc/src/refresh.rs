//! Keeps the keys of issuers up to date, apart from every call.
//!
//! They are read at the beginning, then at regular times, and sooner where a token names a key that is not there, but never more often
//! than the configuration says: nobody makes a replica ask an issuer without end.

use muster_fetch::{Answer, Ask, FetchRules, Fetcher};
use muster_json::object;
use muster_transport::PublicTls;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::KeysError;
use crate::issuers::{Issuer, Issuers};
use crate::keys::{KEY_SET_BYTES_MAX, Keys};
use crate::settings::KeySource;

/// The first pause after a failure; it grows to the regular one.
const RETRY_FIRST: Duration = Duration::from_secs(5);
/// Bytes of an issuer's description.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Where that is, below the issuer's address.
const DESCRIPTION: &str = "/.well-known/openid-configuration";

impl Issuers {
    /// Reads the keys of all issuers, again and again, until it is dropped.
    pub async fn keep_fresh(self) {
        let mut tasks = JoinSet::new();
        for issuer in self.all() {
            tasks.spawn(keep_fresh(Arc::clone(issuer)));
        }
        while tasks.join_next().await.is_some() {}
        std::future::pending().await
    }
}

async fn keep_fresh(issuer: Arc<Issuer>) {
    let settings = &issuer.settings;
    let mut fetcher = None;
    let mut failures = 0_u32;
    loop {
        let begun = Instant::now();
        let pause = match read(&issuer, &mut fetcher).await {
            Ok(keys) => {
                if failures > 0 {
                    tracing::info!(issuer = %settings.name, "the keys of an issuer can be read again");
                }
                failures = 0;
                issuer.take_keys(keys);
                settings.refresh
            }
            Err(error) => {
                if failures == 0 {
                    let kept_s = settings.keys_kept.as_secs();
                    tracing::warn!(issuer = %settings.name, %error, kept_s, "the keys of an issuer cannot be read; its last keys serve for a while");
                }
                failures = failures.saturating_add(1);
                // It may have been made with authorities that have been exchanged.
                fetcher = None;
                (RETRY_FIRST * 2_u32.saturating_pow(failures.min(10) - 1)).min(settings.refresh)
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(begun + pause) => {}
            () = issuer.wanted.notified() => {
                tokio::time::sleep_until(begun + settings.refetch_gap.min(pause)).await;
            }
        }
    }
}

async fn read(issuer: &Issuer, fetcher: &mut Option<Fetcher>) -> Result<Keys, KeysError> {
    let settings = &issuer.settings;
    let url = match &settings.keys {
        KeySource::File(path) => return read_file(path).await,
        KeySource::Url(url) => url.clone(),
        KeySource::Described => {
            let fetcher = opened(fetcher, &settings.fetch, settings.ca_file.as_deref()).await;
            described(fetcher, &settings.url, "jwks_uri").await?
        }
    };
    let fetcher = opened(fetcher, &settings.fetch, settings.ca_file.as_deref()).await;
    let body = get(fetcher, &url, KEY_SET_BYTES_MAX).await?;
    Ok(Keys::parse(&body)?)
}

async fn read_file(path: &Path) -> Result<Keys, KeysError> {
    let size = tokio::fs::metadata(path).await.map_err(KeysError::File)?.len();
    if size > KEY_SET_BYTES_MAX as u64 {
        return Err(KeysError::TooLong);
    }
    Ok(Keys::parse(&tokio::fs::read(path).await.map_err(KeysError::File)?)?)
}

async fn opened<'a>(
    fetcher: &'a mut Option<Fetcher>,
    rules: &FetchRules,
    ca_file: Option<&Path>,
) -> &'a mut Fetcher {
    if fetcher.is_none() {
        *fetcher = Some(open(rules.clone(), ca_file).await);
    }
    fetcher.as_mut().expect("it was opened above")
}

/// A client of an issuer, with the authorities of a file or of the system.
pub(crate) async fn open(rules: FetchRules, ca_file: Option<&Path>) -> Fetcher {
    let ca_file = ca_file.map(Path::to_path_buf);
    let tls = tokio::task::spawn_blocking(move || {
        PublicTls::load(ca_file.as_deref()).map_err(|error| error.to_string())
    });
    let tls = tls.await.unwrap_or_else(|_| Err("reading them failed".to_owned()));
    Fetcher::new(rules, Arc::new(tls))
}

async fn get(fetcher: &mut Fetcher, url: &str, bytes_max: usize) -> Result<Vec<u8>, KeysError> {
    let headers = [("accept", "application/json".to_owned())];
    let ask = Ask { url, headers: &headers, body: None, answer_bytes_max: bytes_max };
    match fetcher.ask(ask).await? {
        Answer { status, .. } if !status.is_success() => Err(KeysError::Status(status)),
        Answer { is_whole: false, .. } => Err(KeysError::TooLong),
        Answer { body, .. } => Ok(body),
    }
}

/// An address in an issuer's description of itself.
pub(crate) async fn described(
    fetcher: &mut Fetcher,
    issuer_url: &str,
    field: &str,
) -> Result<String, KeysError> {
    let url = format!("{}{DESCRIPTION}", issuer_url.trim_end_matches('/'));
    let body = get(fetcher, &url, DESCRIPTION_BYTES_MAX).await?;
    let description = object(&body).map_err(|_| KeysError::Description)?;
    let text = |name: &str| description.get(name).and_then(Value::as_str);
    // Another one's description would name that one's keys.
    let is_its_own = text("issuer") == Some(issuer_url);
    text(field).filter(|_| is_its_own).map(str::to_owned).ok_or(KeysError::Description)
}
