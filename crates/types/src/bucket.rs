//! A bucket of an object store that speaks S3's protocol: how configuration files name one, and what they say of it.
//!
//! **Invariant:** nothing here holds a secret. Keys are in a file or in the environment, and are read where they are used.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// What a store that is a bucket begins with, where a directory would stand.
pub const BUCKET_SCHEME: &str = "s3://";
/// What the name of a bucket has to look like, in words.
pub const BUCKET_RULE: &str = "must be s3://BUCKET or s3://BUCKET/PREFIX: a bucket of 3 to 63 small letters, digits, '-' and '.', and a \
                               prefix of at most 256 letters, digits and '-', '_', '.', '/'";

const BUCKET_BYTES: (usize, usize) = (3, 63);
const PREFIX_BYTES_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 1_024;
const REGION_BYTES_MAX: usize = 64;

/// A bucket, and where in it the objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketName {
    /// The bucket.
    pub bucket: String,
    /// What the names of all objects begin with, without `/` at either end; it may be empty.
    pub prefix: String,
}

impl BucketName {
    /// Whether a text is meant to name a bucket, and not a directory.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(BUCKET_SCHEME)
    }

    /// As people write it: `s3://bucket/prefix`.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<BucketName, &'static str> {
        let text = text.strip_prefix(BUCKET_SCHEME).ok_or(BUCKET_RULE)?;
        let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
        let prefix = prefix.trim_matches('/');
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = bucket.as_bytes();
        let plain =
            |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(*byte, b'-' | b'.');
        let is_bucket = (BUCKET_BYTES.0..=BUCKET_BYTES.1).contains(&bytes.len())
            && bytes.iter().all(plain)
            && is_end(bytes.first())
            && is_end(bytes.last())
            && !bucket.contains("..");
        let is_part = |part: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
        };
        let is_prefix =
            prefix.is_empty() || (prefix.len() <= PREFIX_BYTES_MAX && prefix.split('/').all(is_part));
        if !is_bucket || !is_prefix {
            return Err(BUCKET_RULE);
        }
        Ok(BucketName { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// How a bucket is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BucketConfig {
    /// `https://host[:port]` of the object store; that of AWS for the region when absent.
    pub endpoint: Option<String>,
    /// What requests are signed for. Servers other than AWS mostly take any.
    pub region: String,
    /// Whether the bucket is the first part of the path, which most servers other than AWS need. Else it is a part of the host's name.
    pub path_style: bool,
    /// A file with `aws_access_key_id = …` and `aws_secret_access_key = …`, and `aws_session_token = …` where there is one. It is read
    /// again when it was replaced. When absent, the environment has `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    pub credentials_file: Option<String>,
    /// Authorities of the server's certificate, in PEM; those of the system when absent.
    pub ca_file: Option<String>,
    /// Whether the endpoint may be `http://`: then everyone on the way can read and change what is sent.
    pub allow_http: bool,
}

impl Default for BucketConfig {
    fn default() -> BucketConfig {
        BucketConfig {
            endpoint: None,
            region: "us-east-1".to_owned(),
            path_style: true,
            credentials_file: None,
            ca_file: None,
            allow_http: false,
        }
    }
}

impl BucketConfig {
    /// The first key that breaks its rule, and the rule.
    #[must_use]
    pub fn violation(&self) -> Option<(&'static str, String)> {
        if let Some(endpoint) = &self.endpoint {
            let host = match (endpoint.strip_prefix("https://"), endpoint.strip_prefix("http://")) {
                (Some(host), _) => host,
                (None, Some(host)) if self.allow_http => host,
                (None, Some(_)) => {
                    let rule =
                        "must be https://, unless `allow_http = true` says that the network is trusted";
                    return Some(("endpoint", rule.to_owned()));
                }
                (None, None) => return Some(("endpoint", "must be https://HOST[:PORT]".to_owned())),
            };
            // A name and a password could stand in front of `@`, and would be in every message about it.
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#' | b'@');
            let host = host.strip_suffix('/').unwrap_or(host);
            if host.is_empty() || host.len() > TEXT_BYTES_MAX || !host.bytes().all(is_plain) {
                return Some(("endpoint", "must be https://HOST[:PORT] and nothing behind it".to_owned()));
            }
        }
        let is_region = !self.region.is_empty()
            && self.region.len() <= REGION_BYTES_MAX
            && self.region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_region {
            let rule = format!("must be at most {REGION_BYTES_MAX} letters, digits and '-'");
            return Some(("region", rule));
        }
        for (key, path) in [("credentials_file", &self.credentials_file), ("ca_file", &self.ca_file)] {
            if path.as_deref().is_some_and(|path| !path.starts_with('/')) {
                return Some((key, "must be an absolute path".to_owned()));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_read_as_it_is_written_or_refused() {
        let read = |text: &str| BucketName::parse(text).map(|name| (name.bucket, name.prefix));
        let named = |bucket: &str, prefix: &str| Ok((bucket.to_owned(), prefix.to_owned()));
        assert_eq!(read("s3://muster-files"), named("muster-files", ""));
        assert_eq!(read("s3://muster-files/"), named("muster-files", ""));
        assert_eq!(read("s3://a.b/eu/Prod_1/"), named("a.b", "eu/Prod_1"));
        for bad in [
            "",
            "/mnt/shared",
            "s3://",
            "s3://ab",
            "s3://Upper",
            "s3://-abc",
            "s3://a..b",
            "s3://abc/../x",
            "s3://abc/a b",
            "s3://abc/a//b",
        ] {
            assert_eq!(read(bad), Err(BUCKET_RULE), "{bad}");
        }
        assert!(BucketName::is_meant("s3://x") && !BucketName::is_meant("/s3://x"));
    }

    #[test]
    fn keys_that_cannot_be_meant_are_named() {
        let usual = BucketConfig::default();
        assert_eq!(usual.violation(), None);
        let with = |endpoint: &str, allow_http| BucketConfig {
            endpoint: Some(endpoint.to_owned()),
            allow_http,
            ..BucketConfig::default()
        };
        let key = |config: BucketConfig| config.violation().map(|(key, _)| key);
        assert_eq!(key(with("https://minio.example:9000", false)), None);
        assert_eq!(key(with("http://127.0.0.1:9000", true)), None);
        for bad in [
            "http://127.0.0.1:9000",
            "minio.example",
            "https://",
            "https://a/b",
            "https://key:secret@a",
            "https://a b",
        ] {
            assert_eq!(key(with(bad, false)), Some("endpoint"), "{bad}");
        }
        assert_eq!(key(BucketConfig { region: String::new(), ..usual.clone() }), Some("region"));
        let relative = Some("keys".to_owned());
        assert_eq!(
            key(BucketConfig { credentials_file: relative.clone(), ..usual.clone() }),
            Some("credentials_file")
        );
        assert_eq!(key(BucketConfig { ca_file: relative, ..usual }), Some("ca_file"));
    }
}
