//! The part of the configuration about calls that are recorded outside of the log.

use muster_types::Violation;
use muster_types::config_value::{bytes, span_ms};
use muster_types::quantity::ByteCount;
use serde::Deserialize;
use std::time::Duration;

use super::ConfigError;

/// Bounds of one file, in bytes.
const FILE_SIZE: (u64, u64) = (64 << 10, 1 << 30);
/// Bounds of the number of files.
const FILES: (u32, u32) = (1, 100);
/// Bounds of the time after which what happened is written, in milliseconds.
const INTERVAL_MS: (u64, u64) = (1_000, 3_600_000);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditFile {
    #[serde(default, rename = "file_size_max", with = "bytes")]
    file_bytes_max: Option<u64>,
    files_max: Option<u32>,
    #[serde(default, rename = "interval", with = "span_ms")]
    interval_ms: Option<u64>,
}

/// How calls are recorded that were denied, or leave no record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// A file that has come to this size is kept under another name, in bytes.
    pub file_bytes_max: u64,
    /// How many files there are at most, with the one that is written.
    pub files_max: u32,
    /// Calls that are the same within this time become one line with their number.
    pub interval: Duration,
}

impl Default for AuditConfig {
    fn default() -> AuditConfig {
        AuditConfig { file_bytes_max: 16 << 20, files_max: 8, interval: Duration::from_secs(60) }
    }
}

pub(super) fn audit(
    file: &AuditFile,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<AuditConfig, ConfigError> {
    let mut config = AuditConfig::default();
    if let Some(size) = file.file_bytes_max {
        let (min, max) = FILE_SIZE;
        if !(min..=max).contains(&size) {
            let (least, most, size) = (ByteCount(min), ByteCount(max), ByteCount(size));
            let rule = format!("must be between {least} and {most}, got {size}");
            return Err(refuse("audit.file_size_max", rule));
        }
        config.file_bytes_max = size;
    }
    if let Some(files) = file.files_max {
        let (min, max) = FILES;
        if !(min..=max).contains(&files) {
            return Err(refuse("audit.files_max", format!("must be between {min} and {max}, got {files}")));
        }
        config.files_max = files;
    }
    if let Some(ms) = file.interval_ms {
        if ms < INTERVAL_MS.0 || ms > INTERVAL_MS.1 {
            let broken = Violation::span("audit.interval", ms, INTERVAL_MS.0, INTERVAL_MS.1);
            return Err(refuse(&broken.field, broken.description));
        }
        config.interval = Duration::from_millis(ms);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn read(text: &str) -> Result<AuditConfig, String> {
        let file: AuditFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let refuse = |key: &str, reason: String| ConfigError::Value {
            path: PathBuf::from("server.toml"),
            key: key.to_owned(),
            reason,
        };
        audit(&file, &refuse).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_its_default_and_what_is_there_is_taken() {
        assert_eq!(read("").expect("it is empty"), AuditConfig::default());
        let said = read("file_size_max = \"1MiB\"\nfiles_max = 3\ninterval = \"2s\"").expect("it is right");
        let expected =
            AuditConfig { file_bytes_max: 1 << 20, files_max: 3, interval: Duration::from_secs(2) };
        assert_eq!(said, expected);
    }

    #[test]
    fn values_out_of_their_bounds_are_refused_by_key() {
        for (text, key) in [
            ("file_size_max = \"1KiB\"", "audit.file_size_max"),
            ("file_size_max = \"2GiB\"", "audit.file_size_max"),
            ("files_max = 0", "audit.files_max"),
            ("files_max = 101", "audit.files_max"),
            ("interval = \"10ms\"", "audit.interval"),
            ("interval = \"2h\"", "audit.interval"),
            ("size = 3", "unknown field"),
        ] {
            let reason = read(text).expect_err(text);
            assert!(reason.contains(key), "{text}: {reason}");
        }
    }
}
