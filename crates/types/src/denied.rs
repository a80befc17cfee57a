//! Lines of the file of denied calls: a replica writes and reads them, and so does who has copied the file.

use alloc::string::String;
use serde::{Deserialize, Serialize};

use crate::token::user_of;

/// Bytes of a line that are read; those that are written are far shorter.
pub const DENIED_LINE_BYTES_MAX: u64 = 64 << 10;

/// Calls of one caller that ended the same way, within one interval. The file has them as JSON, one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeniedLine {
    /// When the first was, by RFC 3339; none where the clock had no time of the calendar.
    #[serde(default)]
    pub time: Option<String>,
    /// When the last was.
    #[serde(default)]
    pub last_time: Option<String>,
    /// The replica that received them.
    pub replica: u64,
    /// Who called; empty where calls were counted together.
    #[serde(default)]
    pub caller: String,
    /// The role by which it was judged: that of the policy, a built-in one, or the kind of its certificate. Empty where nobody knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// From where the last came.
    #[serde(default)]
    pub address: String,
    /// Which call, or which page.
    #[serde(default)]
    pub call: String,
    /// The stable code of the refusal, or `OK` for calls that were accepted.
    pub code: String,
    /// What the last was answered.
    #[serde(default)]
    pub reason: String,
    /// How many calls there were.
    pub count: u64,
}

impl DeniedLine {
    /// Whether this one called: a name as it is shown, the same without the token or the issuer that spoke for it, or the user at
    /// its end.
    #[must_use]
    pub fn is_of(&self, who: &str) -> bool {
        let name = user_of(&self.caller);
        self.caller == who || name == who || name.rsplit('/').next() == Some(who)
    }

    /// Whether the calls ended with this code, or this text is in what was answered.
    #[must_use]
    pub fn is_because_of(&self, reason: &str) -> bool {
        self.code == reason || self.reason.contains(reason)
    }

    /// Whether any of the calls may lie between these times, in milliseconds since the Unix epoch. One without a time may. `ms` reads a
    /// time: there is no calendar here.
    #[must_use]
    pub fn is_within(
        &self,
        (from, to): (Option<u64>, Option<u64>),
        ms: impl Fn(&str) -> Option<u64>,
    ) -> bool {
        let of = |time: &Option<String>| time.as_deref().and_then(&ms);
        let ends_before = from.zip(of(&self.last_time)).is_some_and(|(from, last)| last < from);
        let begins_after = to.zip(of(&self.time)).is_some_and(|(to, first)| first > to);
        !(ends_before || begins_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_who_why_and_when() {
        let line = DeniedLine {
            time: Some("7".into()),
            last_time: Some("9".into()),
            caller: "tenant/speech/eve+token/00c0ffee".into(),
            code: "PERMISSION_DENIED".into(),
            reason: "not yours".into(),
            ..DeniedLine::default()
        };
        for who in ["eve", "tenant/speech/eve", "tenant/speech/eve+token/00c0ffee"] {
            assert!(line.is_of(who), "{who}");
        }
        for who in ["ada", "speech", "", "ve"] {
            assert!(!line.is_of(who), "{who}");
        }
        assert!(line.is_because_of("PERMISSION_DENIED") && line.is_because_of("yours"));
        assert!(!line.is_because_of("PERMISSION"));
        let ms = |text: &str| text.parse::<u64>().ok();
        for (from, to, is_within) in [
            (None, None, true),
            (Some(9), None, true),
            (Some(10), None, false),
            (None, Some(7), true),
            (None, Some(6), false),
            (Some(8), Some(8), true),
        ] {
            assert_eq!(line.is_within((from, to), ms), is_within, "{from:?} {to:?}");
        }
        let together = DeniedLine { time: None, last_time: None, ..line };
        assert!(together.is_within((Some(1), Some(2)), ms), "it may have been at any time");
    }
}
