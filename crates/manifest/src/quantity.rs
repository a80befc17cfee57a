//! Durations, times, CPUs, memory, devices, money and counts as people write them, and back.
//!
//! **Invariant:** exact or refused. `1.5Gi` is a whole number of bytes and fine; what would have to be
//! rounded is not guessed at.

use std::fmt;

use muster_types::quantity::{self, ByteCount, scaled, whole};
use muster_types::{ArraySpec, Span};
use muster_wire::convert::array_to_proto;
use muster_wire::time::MOMENT_MS_MAX;
use muster_wire::v1;
use muster_wire::v1::accelerator_request::Amount;
use serde::{Serialize, Serializer};

const ARRAY_FORMS: &str = "a number of members like 100, or indices like 0-99:5,200,300-310, and may end in %N, the \
     number that may be unfinished at a time";

/// Why a quantity was refused; reads on behind the name of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError(String);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

fn refuse(expected: &str, text: &str) -> QuantityError {
    let short: String = text.chars().take(40).collect();
    QuantityError(format!("must be {expected}, got {short:?}"))
}

/// No quantity is longer; what follows may then be simple.
const TEXT_BYTES_MAX: usize = 64;

/// Milliseconds. `0` needs no unit; everything else does, and units come largest first.
pub fn duration_ms(text: &str) -> Result<u64, QuantityError> {
    quantity::span_ms(text).ok_or_else(|| refuse(quantity::SPAN_RULE, text))
}

/// Milli-CPUs: `2`, `0.5` or `500m`.
pub fn cpu_milli(text: &str) -> Result<u64, QuantityError> {
    quantity::cpu_milli(text).ok_or_else(|| refuse(quantity::CPU_RULE, text))
}

/// Bytes: `4Gi`, `512Mi`, `1.5Ti`, `64G` or a plain number. A `B` may follow.
pub fn memory_bytes(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "memory like 4Gi, 512Mi or 64G (units: Ki, Mi, Gi, Ti, k, M, G, T)";
    quantity::bytes(text).ok_or_else(|| refuse(EXPECTED, text))
}

/// The fewest bytes of memory or scratch that a worker may ask for: 1 MiB. Less is a number whose unit was forgotten.
const WORKER_BYTES_MIN: u64 = 1 << 20;

/// Bytes of memory or scratch of a worker, as [`memory_bytes`] reads them. Zero is left to the field, which knows what to do in its place.
pub fn worker_bytes(text: &str) -> Result<u64, QuantityError> {
    let bytes = memory_bytes(text)?;
    if bytes == 0 || bytes >= WORKER_BYTES_MIN {
        return Ok(bytes);
    }
    let least = ByteCount(WORKER_BYTES_MIN);
    // `16` is meant as 16Gi more often than as 16 bytes, and neither is guessed.
    let advice =
        whole(text).map(|number| format!(" bytes; give it a unit, like {number}Gi")).unwrap_or_default();
    Err(QuantityError(format!("must be {least} or more, got {text}{advice}")))
}

/// What a number is that is too large for any count; which counts are right is judged with the rest of the job.
const COUNT_MAX: &str = "at most 4294967295";

/// A count.
pub fn count(text: &str) -> Result<u32, QuantityError> {
    whole(text).and_then(|value| u32::try_from(value).ok()).ok_or_else(|| {
        refuse(if whole(text).is_some() { COUNT_MAX } else { "a whole number, 0 or more" }, text)
    })
}

/// Workers of a group. Which numbers are right is judged with the rest of the job; what is none is told which are.
pub fn workers(text: &str) -> Result<u32, QuantityError> {
    let most = muster_types::limits::GANG_WORKERS_MAX;
    count(text).map_err(|_| refuse(&format!("a whole number from 1 to {most}"), text))
}

/// A nice value.
pub fn nice(text: &str) -> Result<i32, QuantityError> {
    let max = i32::from(muster_types::limits::NICE_MAX);
    let value = text.parse::<i32>().ok().filter(|value| (-max..=max).contains(value));
    value.ok_or_else(|| refuse("a whole number from -100 to 100", text))
}

/// The members of an array: a number of them, or indices; and its throttle.
pub fn array(text: &str) -> Result<v1::JobArray, QuantityError> {
    let array = ArraySpec::parse(text.trim()).map_err(|_| refuse(ARRAY_FORMS, text))?;
    // A count of none is named by the field, as other counts are.
    Ok(match array.ranges.is_empty() {
        true => v1::JobArray { throttle: array.throttle, ..v1::JobArray::default() },
        false => array_to_proto(&array),
    })
}

/// An array as [`array`] reads it.
pub fn show_array(array: &v1::JobArray) -> String {
    let members = match array.indices.as_str() {
        "" => array.size.to_string(),
        // One number by itself would be a count.
        one if one.bytes().all(|b| b.is_ascii_digit()) => format!("{one}-{one}"),
        indices => indices.to_owned(),
    };
    array.throttle.map_or(members.clone(), |throttle| format!("{members}%{throttle}"))
}

/// A position in the log.
pub fn index(text: &str) -> Result<u64, QuantityError> {
    whole(text).ok_or_else(|| refuse("a log index", text))
}

/// `true` or `false`.
pub fn flag(text: &str) -> Result<bool, QuantityError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(refuse("true or false", text)),
    }
}

/// Devices of a worker: a number of whole ones, or a share of one.
pub fn devices(text: &str) -> Result<Amount, QuantityError> {
    const EXPECTED: &str = "a whole number of devices, or a share of one like 0.25";
    if let Some(count) = whole(text) {
        return u32::try_from(count).map(Amount::Count).map_err(|_| refuse(EXPECTED, text));
    }
    match scaled(text, 1_000) {
        Some(milli @ 0..1_000) => Ok(Amount::ShareMilli(u32::try_from(milli).unwrap_or_default())),
        _ => Err(refuse(EXPECTED, text)),
    }
}

/// Throughput of an accelerator type against the one a job was written for, in thousandths.
pub fn throughput_milli(text: &str) -> Result<u32, QuantityError> {
    const EXPECTED: &str = "a number like 1.0 or 0.45, against the type the job was written for";
    small(text, 1_000, EXPECTED)
}

/// Thousandths of whatever has no unit: devices of a quota, the weight of a tenant.
pub fn milli(text: &str) -> Result<u64, QuantityError> {
    scaled(text, 1_000).ok_or_else(|| refuse("a number like 64 or 0.5, with at most three decimals", text))
}

/// The same, for what fits into 32 bits.
pub fn milli_small(text: &str) -> Result<u32, QuantityError> {
    small(text, 1_000, "a number like 2 or 0.5, with at most three decimals")
}

/// Millionths of a dollar.
pub fn micro_dollars(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "dollars like 2 or 1.45, with at most six decimals and no sign";
    scaled(text, 1_000_000).ok_or_else(|| refuse(EXPECTED, text))
}

fn small(text: &str, scale: u64, expected: &str) -> Result<u32, QuantityError> {
    scaled(text, scale).and_then(|value| u32::try_from(value).ok()).ok_or_else(|| refuse(expected, text))
}

/// A moment as milliseconds since the Unix epoch: RFC 3339, or so long from now.
pub fn time_ms(text: &str, now_ms: u64) -> Result<u64, QuantityError> {
    const EXPECTED: &str =
        "a time like 2027-01-31T18:00:00Z, with at most three decimals, or +2h for two hours from now";
    let error = || refuse(EXPECTED, text);
    if text.len() > TEXT_BYTES_MAX {
        return Err(error());
    }
    if let Some(duration) = text.strip_prefix('+') {
        let ms = duration_ms(duration).map_err(|_| error())?;
        return now_ms.checked_add(ms).filter(|ms| *ms <= MOMENT_MS_MAX).ok_or_else(error);
    }
    let time: jiff::Timestamp = text.parse().map_err(|_| error())?;
    // Nothing is rounded: what is shown later is what was written.
    let is_whole = time.subsec_nanosecond() % 1_000_000 == 0;
    let ms = u64::try_from(time.as_millisecond()).ok().filter(|ms| (1..=MOMENT_MS_MAX).contains(ms));
    ms.filter(|_| is_whole).ok_or_else(error)
}

/// A duration as [`duration_ms`] reads it.
pub fn show_duration(ms: u64) -> String {
    Span(ms).to_string()
}

/// A duration in its two largest units.
pub fn show_about(ms: u64) -> String {
    Span::about(ms).to_string()
}

/// Bytes as [`memory_bytes`] reads them, in the largest unit that says it exactly.
pub fn show_bytes(bytes: u64) -> String {
    ByteCount(bytes).to_string()
}

/// A number of thousandths or millionths (`places` 3 or 6), without the zeros at its end.
pub fn show_scaled(value: u64, places: usize) -> String {
    let scale = 10u64.pow(u32::try_from(places).unwrap_or(0));
    let (units, fraction) = (value / scale, value % scale);
    let text = format!("{units}.{fraction:0places$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number with decimals, as people write it: `8`, `0.25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    value: u64,
    places: u32,
}

impl Decimal {
    /// A number of thousandths.
    pub fn milli(value: u64) -> Decimal {
        Decimal { value, places: 3 }
    }

    /// A number of millionths.
    pub fn micro(value: u64) -> Decimal {
        Decimal { value, places: 6 }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&show_scaled(self.value, self.places as usize))
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scale = 10u64.pow(self.places);
        if self.value.is_multiple_of(scale) {
            return serializer.serialize_u64(self.value / scale);
        }
        // YAML and JSON would have smaller ones with an exponent, which no quantity is read from.
        if self.value.saturating_mul(10_000) < scale {
            return serializer.collect_str(self);
        }
        // The shortest digits that mean the same double are those that were written.
        serializer.serialize_f64(self.value as f64 / scale as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("1d12h", 129_600_000),
            ("250ms", 250),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(duration_ms(text), Ok(ms), "{text}");
        }
        for text in [
            "",
            "5",
            "h",
            "1.5h",
            "1w",
            "-1s",
            "+1s",
            "1m1h",
            "1s1s",
            "1 h",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus() {
        for (text, milli) in [("2", 2_000), ("0.5", 500), ("1.250", 1_250), ("500m", 500), ("0", 0)] {
            assert_eq!(cpu_milli(text), Ok(milli), "{text}");
        }
        for text in ["", "m", "-1", "+1", "0.0005", "1.5m", "2 ", "two", ".5", "5.", "99999999999999999999"] {
            assert!(cpu_milli(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory() {
        for (text, bytes) in [
            ("4Gi", 4 << 30),
            ("1.5Gi", 3 << 29),
            ("512MiB", 512 << 20),
            ("64G", 64_000_000_000),
            ("1k", 1_000),
            ("1073741824", 1 << 30),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(memory_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "Gi", "4gi", "4 Gi", "-4Gi", "0.3", "1.2.3G", "4GiGi", "99999999Ti"] {
            assert!(memory_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_of_a_worker_without_its_unit_is_refused() {
        assert_eq!(worker_bytes("1Mi"), Ok(1 << 20));
        assert_eq!(worker_bytes("1048576"), Ok(1 << 20));
        assert_eq!(worker_bytes("0"), Ok(0));
        let refused = |text: &str| worker_bytes(text).unwrap_err().to_string();
        assert_eq!(refused("5"), "must be 1Mi or more, got 5 bytes; give it a unit, like 5Gi");
        assert_eq!(
            refused("1048575"),
            "must be 1Mi or more, got 1048575 bytes; give it a unit, like 1048575Gi"
        );
        assert_eq!(refused("512Ki"), "must be 1Mi or more, got 512Ki");
        assert_eq!(worker_bytes("lots"), memory_bytes("lots"));
    }

    #[test]
    fn counts() {
        assert_eq!(count("64"), Ok(64));
        for text in ["", "-1", "+1", "1.0", "4294967296", "x"] {
            assert!(count(text).is_err() && workers(text).is_err(), "{text}");
        }
        let refused = |text: &str| count(text).unwrap_err().to_string();
        assert_eq!(refused("-1"), "must be a whole number, 0 or more, got \"-1\"");
        assert_eq!(refused("4294967296"), "must be at most 4294967295, got \"4294967296\"");
    }

    #[test]
    fn amounts_of_devices() {
        for (text, amount) in
            [("8", Amount::Count(8)), ("0.25", Amount::ShareMilli(250)), ("0.001", Amount::ShareMilli(1))]
        {
            assert_eq!(devices(text), Ok(amount), "{text}");
        }
        for text in ["", "1.5", "0.0005", "-1", "4294967296", "half"] {
            assert!(devices(text).is_err(), "{text}");
        }
        assert_eq!(
            (throughput_milli("0.45"), milli("64"), micro_dollars("2.5")),
            (Ok(450), Ok(64_000), Ok(2_500_000))
        );
        assert!(throughput_milli("4294968").is_err() && micro_dollars("-1").is_err());
        assert_eq!((flag("true"), flag("false")), (Ok(true), Ok(false)));
        assert!(flag("yes").is_err());
    }

    #[test]
    fn times() {
        assert_eq!(time_ms("+1h30m", 1_000), Ok(5_401_000));
        assert_eq!(time_ms("1970-01-01T00:01:00Z", 9), Ok(60_000));
        assert_eq!(time_ms("1970-01-01T02:00:00+01:00", 9), Ok(3_600_000));
        for text in
            ["", "+", "+90", "tomorrow", "2027-01-31", "1970-01-01T00:00:00Z", "1960-01-01T00:00:00Z", "-2h"]
        {
            assert!(time_ms(text, 1_000).is_err(), "{text}");
        }
        assert!(time_ms("+1d", u64::MAX).is_err());
    }

    #[test]
    fn what_is_shown_is_what_was_meant() {
        assert_eq!([0, 7_200_000, 90_061_001].map(show_duration), ["0s", "2h", "1d1h1m1s1ms"]);
        assert_eq!([0, 59_999, 7_265_000, 90_061_001].map(show_about), ["0s", "59s999ms", "2h1m", "1d1h"]);
        assert_eq!([0, 1, 1 << 30, 150 << 30, 3 << 29].map(show_bytes), ["0", "1", "1Gi", "150Gi", "1536Mi"]);
        assert_eq!([0, 64_000, 250].map(|v| show_scaled(v, 3)), ["0", "64", "0.25"]);
        assert_eq!(show_scaled(2_450_000, 6), "2.45");
    }

    proptest! {
        #[test]
        fn nothing_panics(text: String, near in "[0-9.+-]{0,30}[a-zA-Z]{0,3}[0-9]{0,20}[a-z]{0,2}") {
            for text in [text, near] {
                let _ = (duration_ms(&text), cpu_milli(&text), memory_bytes(&text), count(&text));
                let _ = (devices(&text), throughput_milli(&text), micro_dollars(&text), time_ms(&text, 1));
            }
        }

        #[test]
        fn what_is_shown_returns(value: u64) {
            let is_span = value <= quantity::SPAN_MS_MAX;
            prop_assert_eq!(duration_ms(&show_duration(value)).ok(), Some(value).filter(|_| is_span));
            prop_assert_eq!(memory_bytes(&show_bytes(value)), Ok(value));
            prop_assert_eq!(milli(&show_scaled(value, 3)), Ok(value));
            prop_assert_eq!(micro_dollars(&show_scaled(value, 6)), Ok(value));
        }

        #[test]
        fn whole_values_return(value in 0u64..1_000_000_000) {
            prop_assert_eq!(duration_ms(&format!("{value}ms")), Ok(value));
            prop_assert_eq!(cpu_milli(&format!("{value}m")), Ok(value));
            prop_assert_eq!(memory_bytes(&value.to_string()), Ok(value));
            prop_assert_eq!(cpu_milli(&format!("{}.{:03}", value / 1_000, value % 1_000)), Ok(value));
        }
    }
}
