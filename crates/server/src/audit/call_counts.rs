//! Calls that are the same, as one line with their number.
//!
//! **Invariant:** what is kept between two writes is bounded, whatever callers do.

use muster_api::RecordedCall;
use muster_transport::Principal;
use muster_types::{DeniedLine, ReplicaId};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::SystemTime;

/// Different calls that are told apart between two writes; the rest is counted together. Calls that were accepted have as
/// many more, which denied ones cannot take: a flood of these hides nothing of what operators do.
pub(super) const APART_MAX: usize = 1_024;

/// What makes calls the same: who, which call, and what came of it.
type CallKey = (Principal, &'static str, &'static str);

struct Row {
    first: SystemTime,
    last: SystemTime,
    address: IpAddr,
    reason: String,
    count: u64,
}

/// What has been recorded since the last write.
#[derive(Default)]
pub(super) struct CallCounts {
    rows: HashMap<CallKey, Row>,
    /// Those that were not told apart: since when, and how many.
    beyond: Option<(SystemTime, u64)>,
}

impl CallCounts {
    pub(super) fn add(&mut self, call: RecordedCall) {
        let RecordedCall { at, caller, address, call, code, reason } = call;
        let caller = caller.as_counted();
        let rows_max = if code == RecordedCall::ACCEPTED { 2 * APART_MAX } else { APART_MAX };
        let is_full = self.rows.len() >= rows_max;
        match self.rows.get_mut(&(caller, call, code)) {
            Some(row) => {
                row.count += 1;
                (row.last, row.address, row.reason) = (at, address, reason);
            }
            None if is_full => self.beyond.get_or_insert((at, 0)).1 += 1,
            None => {
                let row = Row { first: at, last: at, address, reason, count: 1 };
                self.rows.insert((caller, call, code), row);
            }
        }
    }

    /// How many calls there are.
    pub(super) fn calls(&self) -> u64 {
        let beyond = self.beyond.map_or(0, |(_, count)| count);
        self.rows.values().map(|row| row.count).sum::<u64>() + beyond
    }

    /// The lines of what was recorded, in the order of time, and of what could not be; it is empty afterwards.
    pub(super) fn take(&mut self, replica: ReplicaId, dropped: u64, now: SystemTime) -> Vec<String> {
        let mut rows: Vec<(CallKey, Row)> = self.rows.drain().collect();
        rows.sort_by(|(a, x), (b, y)| (x.first, a).cmp(&(y.first, b)));
        let line = |((caller, call, code), row): (CallKey, Row)| DeniedLine {
            time: time(row.first),
            last_time: time(row.last),
            replica: replica.0,
            caller: caller.to_string(),
            role: caller.role_name().unwrap_or_default().to_owned(),
            address: row.address.to_string(),
            call: call.to_owned(),
            code: code.to_owned(),
            reason: row.reason,
            count: row.count,
        };
        let mut lines: Vec<DeniedLine> = rows.into_iter().map(line).collect();
        let more = |since: SystemTime, count: u64, reason: &str| DeniedLine {
            time: time(since),
            last_time: time(now),
            replica: replica.0,
            code: "NOT_TOLD_APART".to_owned(),
            reason: reason.to_owned(),
            count,
            ..DeniedLine::default()
        };
        if let Some((since, count)) = self.beyond.take() {
            lines.push(more(since, count, "more different calls than are told apart"));
        }
        if dropped > 0 {
            lines.push(more(now, dropped, "calls that came faster than they could be recorded"));
        }
        // Texts and numbers always have a form in JSON.
        lines.iter().filter_map(|line| serde_json::to_string(line).ok()).collect()
    }
}

/// As RFC 3339; a clock before 1970 or beyond the calendar has no time.
fn time(at: SystemTime) -> Option<String> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let ms = i64::try_from(since.as_millis()).ok()?;
    Some(jiff::Timestamp::from_millisecond(ms).ok()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::{PeerName, Role, ShortName, TokenHolder};
    use muster_types::{ClusterId, TokenId, TokenRole};
    use serde_json::Value;
    use std::time::Duration;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + second)
    }

    fn call(user: &str, call: &'static str, code: &'static str, second: u64) -> RecordedCall {
        let role = Role::Client(ShortName::new(user).expect("a name"));
        RecordedCall {
            at: at(second),
            caller: Principal::Named(PeerName { cluster: ClusterId(1), role }),
            address: [192, 0, 2, u8::try_from(second % 200).expect("it is small")].into(),
            call,
            code,
            reason: format!("no\n\"{second}\""),
        }
    }

    fn lines(counted: &mut CallCounts, dropped: u64) -> Vec<Value> {
        let lines = counted.take(ReplicaId(2), dropped, at(60));
        assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
        lines.iter().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    }

    #[test]
    fn calls_that_are_the_same_are_one_line_with_their_number() {
        let mut counted = CallCounts::default();
        for second in 0..50 {
            counted.add(call("eve", "S/Cancel", "PERMISSION_DENIED", second));
        }
        counted.add(call("eve", "S/Cancel", "UNAUTHENTICATED", 3));
        counted.add(call("eve", "S/Submit", "PERMISSION_DENIED", 4));
        counted.add(call("bob", "S/Cancel", "PERMISSION_DENIED", 2));
        let told = lines(&mut counted, 0);
        let shown: Vec<(&str, &str, u64)> = told
            .iter()
            .map(|line| {
                let text = |key: &str| line[key].as_str().expect("it is a text");
                (text("caller"), text("code"), line["count"].as_u64().expect("a number"))
            })
            .collect();
        let expected = [
            ("client/eve", "PERMISSION_DENIED", 50),
            ("client/bob", "PERMISSION_DENIED", 1),
            ("client/eve", "UNAUTHENTICATED", 1),
            ("client/eve", "PERMISSION_DENIED", 1),
        ];
        assert_eq!(shown, expected);
        assert_eq!(told[0]["time"], "2023-11-14T22:13:20Z");
        assert_eq!(told[0]["lastTime"], "2023-11-14T22:14:09Z");
        assert_eq!((told[0]["address"].as_str(), told[0]["replica"].as_u64()), (Some("192.0.2.49"), Some(2)));
        assert_eq!(told[0]["reason"], "no\n\"49\"", "the last one");
        assert_eq!(told[0]["role"], "client", "the kind of its certificate");
        assert!(lines(&mut counted, 0).is_empty(), "they were taken");
    }

    #[test]
    fn a_line_says_with_which_role_somebody_called() {
        let short = |text: &str| ShortName::new(text).expect("a name");
        let signed_in = |own_role: Option<&str>, id| {
            let caller = Principal::Token(TokenHolder {
                cluster: ClusterId(1),
                id: TokenId(id),
                role: TokenRole::Submitter,
                tenant: Some(short("vision")),
                user: short("ada"),
                own_role: own_role.map(short),
                issuer: Some(short("corp")),
            });
            RecordedCall { caller, ..call("ada", "S/Cancel", "PERMISSION_DENIED", id) }
        };
        let mut counted = CallCounts::default();
        for call in [signed_in(None, 1), signed_in(Some("ci"), 2), signed_in(Some("ci"), 3)] {
            counted.add(call);
        }
        let told = lines(&mut counted, 0);
        let roles: Vec<(&Value, &Value)> = told.iter().map(|line| (&line["role"], &line["count"])).collect();
        assert_eq!(serde_json::json!(roles), serde_json::json!([["submitter", 1], ["ci", 2]]));
    }

    #[test]
    fn a_flood_of_different_callers_is_bounded_and_counted() {
        let mut counted = CallCounts::default();
        for user in 0..APART_MAX + 500 {
            counted.add(call(&format!("u{user}"), "S/Cancel", "PERMISSION_DENIED", 1));
        }
        // One that is known is told apart all the same.
        counted.add(call("u0", "S/Cancel", "PERMISSION_DENIED", 2));
        assert_eq!(counted.calls(), APART_MAX as u64 + 501);
        let told = lines(&mut counted, 7);
        assert_eq!((told.len(), counted.calls()), (APART_MAX + 2, 0));
        let total: u64 = told.iter().filter_map(|line| line["count"].as_u64()).sum();
        assert_eq!(total, (APART_MAX + 501 + 7) as u64, "nothing is lost without a number");
        assert_eq!(told[APART_MAX]["count"], 500);
        assert_eq!(told[APART_MAX + 1]["count"], 7);
    }

    #[test]
    fn a_flood_of_denied_calls_does_not_hide_what_operators_do() {
        let mut counted = CallCounts::default();
        for user in 0..APART_MAX + 5 {
            counted.add(call(&format!("u{user}"), "S/Cancel", "PERMISSION_DENIED", 1));
        }
        for user in 0..APART_MAX + 3 {
            counted.add(call(&format!("ops{user}"), "S/RemoveReplica", RecordedCall::ACCEPTED, 2));
        }
        let told = lines(&mut counted, 0);
        let accepted = told.iter().filter(|line| line["code"] == RecordedCall::ACCEPTED).count();
        assert_eq!(accepted, APART_MAX);
        assert_eq!(told.len(), 2 * APART_MAX + 1, "they are bounded as well");
        assert_eq!(told[2 * APART_MAX]["count"], 8);
    }
}
