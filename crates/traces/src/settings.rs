//! `[traces]` of a configuration file.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Bytes of the address of a collector.
const ENDPOINT_BYTES_MAX: usize = 1_024;
/// The largest number below the line of a ratio.
const WHOLE_MAX: u32 = 1_000_000;
/// Where collectors take spans over HTTP, by the specification of OTLP.
const PATH: &str = "/v1/traces";

/// Where spans are sent, as a file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracesFile {
    /// The collector: `http://host:port` or `https://host:port` of OTLP over HTTP. Without it nothing is recorded.
    pub endpoint: Option<String>,
    /// Which part of the traces that begin here is recorded: `1`, `0`, or a fraction such as `1/100`. A call that brings a trace
    /// is recorded when its caller wants that.
    pub sample_ratio: Option<String>,
}

/// A key of `[traces]` that breaks its rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {rule}")]
pub struct TracesError {
    /// The key, with its table.
    pub key: &'static str,
    /// What it needs.
    pub rule: String,
}

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesSettings {
    /// The whole address.
    pub url: String,
    /// Its host, in lower case.
    pub host: String,
    /// Which part of the traces that begin here is recorded.
    pub ratio: SampleRatio,
}

/// A part of all traces, as a fraction of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio {
    part: u32,
    whole: u32,
}

impl Default for SampleRatio {
    fn default() -> SampleRatio {
        SampleRatio { part: 1, whole: 100 }
    }
}

impl FromStr for SampleRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<SampleRatio, String> {
        let rule = || {
            format!(
                "must be 0, 1, or a fraction like 1/100 with at most {WHOLE_MAX} below the line, got {text:?}"
            )
        };
        let (part, whole) = text.split_once('/').unwrap_or((text, "1"));
        let number = |digits: &str| -> Option<u32> {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse().ok())?
        };
        let ratio = number(part).zip(number(whole)).map(|(part, whole)| SampleRatio { part, whole });
        ratio
            .filter(|ratio| (1..=WHOLE_MAX).contains(&ratio.whole) && ratio.part <= ratio.whole)
            .ok_or_else(rule)
    }
}

impl SampleRatio {
    /// Whether a trace is in this part. Every process with the same ratio says the same of it.
    #[must_use]
    pub fn takes(self, trace_id: u128) -> bool {
        trace_id % u128::from(self.whole) < u128::from(self.part)
    }
}

impl TracesFile {
    /// What it says; none where it names no collector.
    ///
    /// # Errors
    /// The key that breaks its rule.
    pub fn check(&self) -> Result<Option<TracesSettings>, TracesError> {
        let ratio = self.sample_ratio.as_deref().map(str::parse::<SampleRatio>).transpose();
        let ratio = ratio.map_err(|rule| TracesError { key: "traces.sample_ratio", rule })?;
        let Some(endpoint) = &self.endpoint else {
            return match ratio {
                None => Ok(None),
                Some(_) => {
                    let rule = "must be given with traces.sample_ratio".to_owned();
                    Err(TracesError { key: "traces.endpoint", rule })
                }
            };
        };
        let (url, host) = address(endpoint).map_err(|rule| TracesError { key: "traces.endpoint", rule })?;
        Ok(Some(TracesSettings { url, host, ratio: ratio.unwrap_or_default() }))
    }
}

/// The whole address of a collector, and its host.
fn address(endpoint: &str) -> Result<(String, String), String> {
    let rule = || {
        let most = ENDPOINT_BYTES_MAX;
        format!(
            "must be the address of OTLP over HTTP, such as http://127.0.0.1:4318, of at most {most} bytes, got {endpoint:?}"
        )
    };
    let (scheme, rest) = endpoint.split_once("://").ok_or_else(rule)?;
    let is_plain = endpoint.bytes().all(|byte| byte.is_ascii_graphic());
    if !matches!(scheme, "http" | "https") || !is_plain || endpoint.len() > ENDPOINT_BYTES_MAX {
        return Err(rule());
    }
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    // No password of anybody is in a file that others read.
    if authority.contains(['@', '?', '#']) || path.contains(['?', '#']) {
        return Err(rule());
    }
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').map(|(host, _)| host),
        None => authority.split(':').next(),
    };
    let host = host.filter(|host| !host.is_empty()).ok_or_else(rule)?.to_ascii_lowercase();
    let path = if path.trim_end_matches('/').is_empty() { PATH } else { path };
    Ok((format!("{scheme}://{authority}{path}"), host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<TracesSettings>, String> {
        let file: TracesFile = toml::from_str(text).map_err(|error| error.to_string())?;
        file.check().map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_is_completed_and_what_is_left_out_has_its_default() {
        assert_eq!(read(""), Ok(None));
        let settings =
            read("endpoint = \"http://Collector:4318\"").expect("it is right").expect("it is there");
        assert_eq!(settings.url, "http://Collector:4318/v1/traces");
        assert_eq!((settings.host.as_str(), settings.ratio), ("collector", SampleRatio::default()));
        let other = read("endpoint = \"https://[::1]:4318/otlp/v1/traces\"\nsample_ratio = \"1\"");
        let other = other.expect("it is right").expect("it is there");
        assert_eq!((other.url.as_str(), other.host.as_str()), ("https://[::1]:4318/otlp/v1/traces", "::1"));
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_key() {
        for (text, key) in [
            ("endpoint = \"collector:4318\"", "traces.endpoint"),
            ("endpoint = \"grpc://collector:4317\"", "traces.endpoint"),
            ("endpoint = \"http://\"", "traces.endpoint"),
            ("endpoint = \"http://user:secret@collector\"", "traces.endpoint"),
            ("sample_ratio = \"1\"", "traces.endpoint"),
            ("endpoint = \"http://c\"\nsample_ratio = \"0.1\"", "traces.sample_ratio"),
            ("endpoint = \"http://c\"\nsample_ratio = \"3/2\"", "traces.sample_ratio"),
            ("endpoint = \"http://c\"\nsample_ratio = \"1/0\"", "traces.sample_ratio"),
            ("endpoint = \"http://c\"\nsample_ratio = \"+1\"", "traces.sample_ratio"),
            ("address = \"http://c\"", "unknown field"),
        ] {
            let said = read(text).expect_err(text);
            assert!(said.contains(key), "{text}: {said}");
        }
    }

    #[test]
    fn a_ratio_takes_its_part() {
        let taken = |text: &str| {
            let ratio: SampleRatio = text.parse().expect("it is a ratio");
            (0..1_000).filter(|trace| ratio.takes(*trace)).count()
        };
        assert_eq!([taken("0"), taken("1/100"), taken("1/2"), taken("1")], [0, 10, 500, 1_000]);
    }
}
