//! Quota for some time, as a client asks for it.

use muster_types::fleet::checked_name;
use muster_types::policy::QuotaGrant;
use muster_types::{LogTime, Violation};

use super::{Found, below, moment};
use crate::v1;

/// Reads what is asked for or granted. `at` is the path of the message, for example `grant`.
///
/// # Errors
/// Lists every field that breaks a rule by itself.
pub fn quota_grant_from_proto(
    at: &str,
    message: Option<&v1::QuotaGrant>,
) -> Result<QuotaGrant, Vec<Violation>> {
    let Some(message) = message else {
        return Err(vec![Violation::new(at, "must be given")]);
    };
    let mut found = Found::default();
    let tenant = found.take(checked_name(&below(at, "tenant"), &message.tenant));
    let kind = found.take(checked_name(&below(at, "type"), &message.r#type));
    let region = match message.region.as_str() {
        "" => None,
        text => found.take(checked_name(&below(at, "region"), text)),
    };
    let until = moment(at, "end_time", message.end_time, &mut found);
    if message.end_time.is_none() {
        found.push(Violation::new(below(at, "end_time"), "must be given: quota is granted for some time"));
    }
    let (Some(tenant), Some(kind)) = (tenant, kind) else { return Err(found.into_violations()) };
    let grant = QuotaGrant {
        tenant,
        kind,
        region,
        amount_milli: message.amount_milli,
        until: until.unwrap_or(LogTime(0)),
        reason: message.reason.clone(),
    };
    found.extend(grant.violations().into_iter().map(|violation| violation.under(at)).collect());
    if found.is_empty() { Ok(grant) } else { Err(found.into_violations()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::timestamp;

    fn asked() -> v1::QuotaGrant {
        v1::QuotaGrant {
            tenant: "vision".to_owned(),
            r#type: "h100".to_owned(),
            amount_milli: 8_000,
            end_time: Some(timestamp(1_000)),
            reason: "a deadline".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn a_grant_is_read() {
        let grant = quota_grant_from_proto("grant", Some(&asked())).expect("it is right");
        assert_eq!((grant.tenant.as_str(), grant.kind.as_str()), ("vision", "h100"));
        assert_eq!((grant.amount_milli, grant.until, grant.region), (8_000, LogTime(1_000), None));
    }

    #[test]
    fn wrong_fields_are_named() {
        type Change = fn(&mut v1::QuotaGrant);
        let cases: [(Change, &str); 8] = [
            (|grant| grant.tenant.clear(), "grant.tenant"),
            (|grant| grant.r#type = "H 100".to_owned(), "grant.type"),
            (|grant| grant.region = "e\u{200b}u".to_owned(), "grant.region"),
            (|grant| grant.amount_milli = 0, "grant.amount_milli"),
            (|grant| grant.amount_milli = u64::MAX, "grant.amount_milli"),
            (|grant| grant.end_time = None, "grant.end_time"),
            (|grant| grant.end_time.iter_mut().for_each(|time| time.nanos = -1), "grant.end_time"),
            (|grant| grant.reason = "x".repeat(10_000), "grant.reason"),
        ];
        for (change, field) in cases {
            let mut message = asked();
            change(&mut message);
            let found = quota_grant_from_proto("grant", Some(&message)).expect_err(field);
            assert!(found.iter().any(|violation| violation.field == field), "{field}: {found:?}");
        }
        assert_eq!(quota_grant_from_proto("grant", None).expect_err("nothing")[0].field, "grant");
    }
}
