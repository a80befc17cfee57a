//! The part of the configuration about deliveries to receivers of notifications.

use muster_notify::NotifySettings;
use muster_types::Violation;
use muster_types::config_value::span_ms;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;

/// Hosts that may be listed.
const ALLOWED_HOSTS_MAX: usize = 256;
/// Bytes of the name of a host.
const HOST_BYTES_MAX: usize = 253;
/// Bounds of an attempt.
const REQUEST_TIMEOUT_MS: (u64, u64) = (100, 60_000);
/// Bounds of the time after which nothing is tried twice any more.
const GIVE_UP_AFTER_MS: (u64, u64) = (1_000, 7 * 24 * 3_600 * 1_000);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NotificationsFile {
    secrets_dir: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    #[serde(default)]
    allow_http: bool,
    #[serde(default)]
    allowed_hosts: Vec<String>,
    #[serde(default, rename = "request_timeout", with = "span_ms")]
    request_timeout_ms: Option<u64>,
    #[serde(default, rename = "give_up_after", with = "span_ms")]
    give_up_after_ms: Option<u64>,
}

pub(super) fn notifications(
    file: NotificationsFile,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<NotifySettings, ConfigError> {
    let usual = NotifySettings::default();
    let span = |key: &str, given: Option<u64>, (min, max): (u64, u64), usual: Duration| match given {
        Some(ms) if ms < min || ms > max => {
            let broken = Violation::span(&format!("notifications.{key}"), ms, min, max);
            Err(refuse(&broken.field, broken.description))
        }
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Ok(usual),
    };
    if file.allowed_hosts.len() > ALLOWED_HOSTS_MAX {
        let rule = format!("must have at most {ALLOWED_HOSTS_MAX} entries, has {}", file.allowed_hosts.len());
        return Err(refuse("notifications.allowed_hosts", rule));
    }
    for (index, host) in file.allowed_hosts.iter().enumerate() {
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.chars().all(is_host) {
            let rule = "must be the name or the address of a host as a receiver's URL has it, without scheme, brackets and port";
            return Err(refuse(&format!("notifications.allowed_hosts[{index}]"), rule.into()));
        }
    }
    Ok(NotifySettings {
        secrets_dir: file.secrets_dir,
        ca_file: file.ca_file,
        allow_http: file.allow_http,
        allowed_hosts: file.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        request_timeout: span(
            "request_timeout",
            file.request_timeout_ms,
            REQUEST_TIMEOUT_MS,
            usual.request_timeout,
        )?,
        give_up_after: span("give_up_after", file.give_up_after_ms, GIVE_UP_AFTER_MS, usual.give_up_after)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(text: &str) -> Result<NotifySettings, String> {
        let file: NotificationsFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let refuse = |key: &str, reason: String| ConfigError::Value {
            path: PathBuf::from("server.toml"),
            key: key.to_owned(),
            reason,
        };
        notifications(file, &refuse).map_err(|error| error.to_string())
    }

    #[test]
    fn good_values_are_taken() {
        assert_eq!(read(""), Ok(NotifySettings::default()));
        let read = read(
            "secrets_dir = \"/s\"\nallow_http = true\nallowed_hosts = [\"Hooks.internal\", \"::1\"]\nrequest_timeout = \"3s\"\ngive_up_after = \"10m\"",
        );
        let read = read.expect("it is right");
        assert_eq!(read.secrets_dir.as_deref(), Some(Path::new("/s")));
        assert!(read.allow_http && read.allowed_hosts.contains("hooks.internal"));
        assert_eq!((read.request_timeout.as_secs(), read.give_up_after.as_secs()), (3, 600));
    }

    #[test]
    fn bad_values_are_refused_by_their_key() {
        let bad = [
            ("request_timeout = \"1ms\"", "notifications.request_timeout"),
            ("give_up_after = \"0s\"", "notifications.give_up_after"),
            ("give_up_after = \"9d\"", "notifications.give_up_after"),
            ("allowed_hosts = [\"https://a\"]", "notifications.allowed_hosts[0]"),
            ("allowed_hosts = [\"a\", \"\"]", "notifications.allowed_hosts[1]"),
            ("secret_dir = \"/s\"", "secret_dir"),
        ];
        for (text, key) in bad {
            let error = read(text).expect_err("it is wrong");
            assert!(error.contains(key), "{text}: {error}");
        }
    }
}
