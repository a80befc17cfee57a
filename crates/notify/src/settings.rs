//! What the configuration of a replica says about deliveries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_types::Name;
use muster_types::policy::{Receiver, url_fault};

use crate::error::DeliveryError;

/// Bytes of a file with a key or an address.
const SECRET_BYTES_MAX: u64 = 4_096;
/// Bytes of a key: shorter ones can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// What one replica needs for deliveries, apart from the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifySettings {
    /// Where keys (`NAME.key`) and secret addresses (`NAME.url`) of receivers are, by the names of the receivers.
    pub secrets_dir: Option<PathBuf>,
    /// A PEM file of the authorities that receivers' certificates are of; none for those of the system.
    pub ca_file: Option<PathBuf>,
    /// Whether receivers may be reached without TLS.
    pub allow_http: bool,
    /// Hosts that may have any address, in lower case.
    pub allowed_hosts: BTreeSet<String>,
    /// How long one attempt may take.
    pub request_timeout: Duration,
    /// How long a receiver may fail before events are given up after one attempt each.
    pub give_up_after: Duration,
}

impl Default for NotifySettings {
    fn default() -> NotifySettings {
        NotifySettings {
            secrets_dir: None,
            ca_file: None,
            allow_http: false,
            allowed_hosts: BTreeSet::new(),
            request_timeout: Duration::from_secs(10),
            give_up_after: Duration::from_secs(3_600),
        }
    }
}

impl NotifySettings {
    /// The key of a receiver; none when it has none. It is read for every attempt, so that it can be replaced at any time.
    pub(crate) async fn key(&self, receiver: &Name) -> Result<Option<Vec<u8>>, DeliveryError> {
        let Some(key) = self.secret(receiver, "key").await? else { return Ok(None) };
        if key.len() < KEY_BYTES_MIN {
            let text = format!("{receiver}.key has {} bytes; a key has at least {KEY_BYTES_MIN}", key.len());
            return Err(DeliveryError::Secret(text));
        }
        Ok(Some(key))
    }

    /// The address of a receiver: that of the policy, or that of its file.
    pub(crate) async fn url(&self, receiver: &Receiver) -> Result<String, DeliveryError> {
        if !receiver.url.is_empty() {
            return Ok(receiver.url.clone());
        }
        let name = &receiver.name;
        let Some(bytes) = self.secret(name, "url").await? else {
            let text = format!("the policy has no address for it, and secrets_dir has no {name}.url");
            return Err(DeliveryError::Secret(text));
        };
        let url = String::from_utf8(bytes).ok().filter(|url| url_fault(url).is_none());
        // What is in the file is a secret, and so is what is wrong with it.
        url.ok_or_else(|| DeliveryError::Secret(format!("{name}.url holds no address as a policy has them")))
    }

    async fn secret(&self, receiver: &Name, kind: &str) -> Result<Option<Vec<u8>>, DeliveryError> {
        let Some(directory) = &self.secrets_dir else { return Ok(None) };
        let file = format!("{receiver}.{kind}");
        let path = directory.join(&file);
        match read_bounded(&path).await {
            Ok(bytes) => Ok(Some(bytes.trim_ascii_end().to_vec())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DeliveryError::Secret(format!("reading {file} failed: {error}"))),
        }
    }
}

async fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let size = tokio::fs::metadata(path).await?.len();
    if size > SECRET_BYTES_MAX {
        let text = format!("it has {size} bytes, and a secret at most {SECRET_BYTES_MAX}");
        return Err(std::io::Error::other(text));
    }
    tokio::fs::read(path).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::policy::{NotificationBody, NotificationEvent};

    fn settings(directory: &Path) -> NotifySettings {
        NotifySettings { secrets_dir: Some(directory.to_path_buf()), ..NotifySettings::default() }
    }

    #[tokio::test]
    async fn secrets_are_read_by_name_and_bad_ones_are_refused_without_being_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = settings(directory.path());
        let name = Name::new("ops").expect("a name");
        let write =
            |file: &str, text: &[u8]| std::fs::write(directory.path().join(file), text).expect("written");
        assert_eq!(settings.key(&name).await.expect("it may have none"), None);
        write("ops.key", b"0123456789abcdef\n");
        assert_eq!(settings.key(&name).await.expect("it is there"), Some(b"0123456789abcdef".to_vec()));
        for bad in [&b"short"[..], &[b'x'; 5_000]] {
            write("ops.key", bad);
            let error = settings.key(&name).await.expect_err("it is no key").to_string();
            assert!(error.contains("ops.key") && !error.contains("short"), "{error}");
        }
        let receiver = Receiver {
            name,
            url: String::new(),
            tenant: None,
            events: BTreeSet::from([NotificationEvent::JobFailed]),
            body: NotificationBody::Slack,
            for_jobs: false,
        };
        assert!(settings.url(&receiver).await.is_err());
        write("ops.url", b"https://hooks.example/T0/secret\n");
        assert_eq!(settings.url(&receiver).await.expect("it is there"), "https://hooks.example/T0/secret");
        write("ops.url", b"ftp://hooks.example/T0/secret");
        let error = settings.url(&receiver).await.expect_err("it is no address").to_string();
        assert!(!error.contains("T0"), "{error}");
    }
}
