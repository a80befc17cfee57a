//! The place of a call in a distributed trace, as W3C Trace Context defines it.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Bytes of a parent as text.
pub const TRACE_PARENT_BYTES: usize = 55;

/// What a parent has to look like, in words.
pub const TRACE_PARENT_RULE: &str = "must be a traceparent of version 00: 00-, 32 and 16 lower-case hexadecimal digits that are not all \
                                     zero, and 2 of flags, with - between them";

/// The flags that this release knows: sampled, and a random trace id. Others are not passed on.
const FLAGS_KNOWN: u8 = 0b11;
const SAMPLED: u8 = 0b1;

/// The span that something is a part of, and the trace that this span is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "TraceParentParts", into = "TraceParentParts")]
pub struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

/// A parent as it is stored: trace, span and flags.
type TraceParentParts = ([u8; 16], [u8; 8], u8);

impl TraceParent {
    /// Of its parts; none where an id has no bit. Flags that nobody knows are left out.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Option<TraceParent> {
        let is_good = trace_id != [0; 16] && span_id != [0; 8];
        is_good.then_some(TraceParent { trace_id, span_id, flags: flags & FLAGS_KNOWN })
    }

    /// As headers and environments have it.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<TraceParent, &'static str> {
        TraceParent::read(text.as_bytes()).ok_or(TRACE_PARENT_RULE)
    }

    /// The same of bytes that may be no text.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<TraceParent> {
        let bytes: &[u8; TRACE_PARENT_BYTES] = bytes.try_into().ok()?;
        let rest = bytes.strip_prefix(b"00-")?;
        let (trace_id, rest) = hexadecimal::<16>(rest)?;
        let (span_id, rest) = hexadecimal::<8>(rest.strip_prefix(b"-")?)?;
        let ([flags], rest) = hexadecimal::<1>(rest.strip_prefix(b"-")?)?;
        if rest.is_empty() { TraceParent::new(trace_id, span_id, flags) } else { None }
    }

    /// The trace.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span in it.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether its spans are wanted, by the caller that began the trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(self, span_id: [u8; 8]) -> Option<TraceParent> {
        TraceParent::new(self.trace_id, span_id, self.flags)
    }

    /// The span of the same trace that follows from numbers: the same for the same numbers, on every host and after every
    /// restart.
    #[must_use]
    pub fn derived(self, numbers: &[u64]) -> TraceParent {
        let mut mixed = u64::from_be_bytes(self.span_id);
        for number in numbers {
            mixed = mix(mixed ^ mix(*number));
        }
        // An id has a bit.
        TraceParent { span_id: mixed.max(1).to_be_bytes(), ..self }
    }
}

/// Spreads the bits of a number: the last steps of `SplitMix64`.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The bytes that lower-case digits begin with, and what is behind them.
fn hexadecimal<const N: usize>(text: &[u8]) -> Option<([u8; N], &[u8])> {
    let (digits, rest) = text.split_at_checked(2 * N)?;
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = *pair else { return None };
        *byte = (value(high)? << 4) | value(low)?;
    }
    Some((bytes, rest))
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

impl From<TraceParent> for TraceParentParts {
    fn from(parent: TraceParent) -> TraceParentParts {
        (parent.trace_id, parent.span_id, parent.flags)
    }
}

impl TryFrom<TraceParentParts> for TraceParent {
    type Error = &'static str;

    fn try_from((trace_id, span_id, flags): TraceParentParts) -> Result<TraceParent, &'static str> {
        TraceParent::new(trace_id, span_id, flags).ok_or(TRACE_PARENT_RULE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_read_by_the_rules_of_version_00() {
        let parent = TraceParent::parse(TEXT).expect("the example of the specification");
        assert!(parent.is_sampled());
        assert_eq!(parent.to_string(), TEXT);
        let unsampled = TraceParent::parse(&TEXT.replace("-01", "-00")).expect("flags may be zero");
        assert!(!unsampled.is_sampled());
        let unknown = TraceParent::parse(&TEXT.replace("-01", "-ff")).expect("flags that nobody knows");
        assert!(unknown.to_string().ends_with("-03"), "they are not passed on");
        let wrong = [
            String::new(),
            TEXT.to_uppercase(),
            TEXT.replace("00-4b", "01-4b"),
            TEXT.replace("00-4b", "ff-4b"),
            TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            TEXT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            TEXT.replace("-01", "-0g"),
            TEXT.replace("-01", "_01"),
            alloc::format!("{TEXT}-"),
            alloc::format!(" {TEXT}"),
            TEXT[..54].to_string(),
        ];
        for text in wrong {
            assert_eq!(TraceParent::parse(&text), Err(TRACE_PARENT_RULE), "{text:?}");
        }
    }

    #[test]
    fn a_derived_span_is_of_the_same_trace_and_follows_from_the_numbers_alone() {
        let parent = TraceParent::parse(TEXT).expect("it is good");
        let span = parent.derived(&[7, 1, 0]);
        assert_eq!(span, parent.derived(&[7, 1, 0]));
        assert_eq!((span.trace_id(), span.is_sampled()), (parent.trace_id(), true));
        let others = [[7, 1, 1], [7, 2, 0], [8, 1, 0], [1, 7, 0]];
        assert!(others.iter().all(|numbers| parent.derived(numbers) != span));
        assert_ne!(span, parent);
    }
}
