//! Tokens: their form, the checks that they have to pass, and their order. Nothing of a token is believed before its signature is
//! verified, but the name of the issuer and of the key to verify it with.

use muster_json::{JsonFault, object};
use muster_transport::JWT_BYTES_MAX;
use muster_types::Name;
use serde_json::{Map, Value};

use crate::base64url::decode;
use crate::error::SignInRefusal;
use crate::keys::{Algorithm, KEY_ID_BYTES_MAX, Keys, SigningKey};
use crate::settings::{IssuerSettings, Rule};

/// When a token says that it expires, in seconds since the Unix epoch: for a client that wants to replace it in time. Nothing is verified.
#[must_use]
pub fn unverified_expiry_s(token: &str) -> Option<u64> {
    let unverified = Unverified::parse(token).ok()?;
    unverified.time("exp", SignInRefusal::Lifetime).ok().flatten().map(|ms| ms / 1_000)
}

/// A token whose form is right, and of which nothing has been verified.
pub(crate) struct Unverified<'a> {
    header: Map<String, Value>,
    claims: Map<String, Value>,
    signed: &'a [u8],
    signature: Vec<u8>,
}

/// What a verified token says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) user: Name,
    pub(crate) rule: Rule,
    /// Times in milliseconds since the Unix epoch, as the token says them.
    pub(crate) expires_ms: u64,
    pub(crate) begins_ms: u64,
    pub(crate) key: SigningKey,
}

fn fault(fault: JsonFault) -> SignInRefusal {
    match fault {
        JsonFault::Form(_) => SignInRefusal::Malformed,
        JsonFault::Repeated(_) => SignInRefusal::RepeatedClaim,
    }
}

impl<'a> Unverified<'a> {
    pub(crate) fn parse(token: &'a str) -> Result<Unverified<'a>, SignInRefusal> {
        if token.len() > JWT_BYTES_MAX {
            return Err(SignInRefusal::TooLarge);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(SignInRefusal::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(SignInRefusal::Malformed)?;
        let part = |text: &str| decode(text).ok_or(SignInRefusal::Malformed);
        Ok(Unverified {
            header: object(&part(header)?).map_err(fault)?,
            claims: object(&part(claims)?).map_err(fault)?,
            signed: signed.as_bytes(),
            signature: part(signature)?,
        })
    }

    /// Who says to have issued it.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss").and_then(Value::as_str)
    }

    /// The key that it names, and for what.
    pub(crate) fn key(&self, settings: &IssuerSettings) -> Result<(&str, Algorithm), SignInRefusal> {
        // An extension that has to be understood is one that this is not.
        if self.header.contains_key("crit") {
            return Err(SignInRefusal::Malformed);
        }
        let kind = self.header.get("typ").map(|kind| kind.as_str().unwrap_or_default());
        if kind.is_some_and(|kind| {
            !["jwt", "at+jwt", "application/at+jwt"].contains(&&*kind.to_ascii_lowercase())
        }) {
            return Err(SignInRefusal::Malformed);
        }
        // A notice of an event (RFC 8417), as of the end of a session, is signed with the same key and for the same audience.
        if self.claims.contains_key("events") {
            return Err(SignInRefusal::Malformed);
        }
        let algorithm = self.header.get("alg").and_then(Value::as_str).and_then(Algorithm::from_name);
        let algorithm = algorithm.filter(|algorithm| settings.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or(SignInRefusal::Algorithm)?;
        let id = self.header.get("kid").and_then(Value::as_str).filter(|id| id.len() <= KEY_ID_BYTES_MAX);
        Ok((id.ok_or(SignInRefusal::KeyUnknown)?, algorithm))
    }

    /// What it says, where its signature is by the key that it names and everything else is as it has to be, but for the present time.
    pub(crate) fn verify(&self, settings: &IssuerSettings, keys: &Keys) -> Result<Verified, SignInRefusal> {
        let (id, algorithm) = self.key(settings)?;
        let key = keys.get(id, algorithm).ok_or(SignInRefusal::KeyUnknown)?;
        if !key.verifies(self.signed, &self.signature) {
            return Err(SignInRefusal::Signature);
        }
        if !self.is_for(&settings.audience) {
            return Err(SignInRefusal::Audience);
        }
        let expires_ms = self.time("exp", SignInRefusal::Lifetime)?.ok_or(SignInRefusal::Lifetime)?;
        let not_before_ms = self.time("nbf", SignInRefusal::NotYetValid)?.unwrap_or_default();
        let issued_ms = self.time("iat", SignInRefusal::NotYetValid)?.unwrap_or_default();
        let user = self.claims.get(&settings.user_claim).and_then(Value::as_str);
        let user = user.and_then(|user| user.strip_suffix(settings.user_suffix.as_str()));
        let user = user
            .filter(|_| self.is_confirmed(&settings.user_claim))
            .and_then(Name::new)
            .ok_or(SignInRefusal::User)?;
        let groups = self.groups(&settings.groups_claim);
        let is_for_it =
            |rule: &&Rule| rule.group.as_ref().is_none_or(|group| groups.contains(&group.as_str()));
        let rule = settings.rules.iter().find(is_for_it).ok_or(SignInRefusal::NoRule)?.clone();
        let begins_ms = not_before_ms.max(issued_ms);
        Ok(Verified { user, rule, expires_ms, begins_ms, key })
    }

    /// Whether a claim is the holder's by more than the holder's own word: at many issuers people write any address into their
    /// account, and the issuer says next to it whether it is theirs.
    fn is_confirmed(&self, claim: &str) -> bool {
        match self.claims.get("email_verified").filter(|_| claim == "email") {
            None => true,
            // Some issuers write it as text.
            Some(Value::String(text)) => text == "true",
            Some(said) => *said == Value::Bool(true),
        }
    }

    fn is_for(&self, audience: &str) -> bool {
        match self.claims.get("aud") {
            Some(Value::String(text)) => text == audience,
            Some(Value::Array(texts)) => texts.iter().any(|text| text.as_str() == Some(audience)),
            _ => false,
        }
    }

    /// A time of it in milliseconds; `wrong` where it is none.
    fn time(&self, claim: &str, wrong: SignInRefusal) -> Result<Option<u64>, SignInRefusal> {
        let Some(value) = self.claims.get(claim) else { return Ok(None) };
        // Seconds, which may have a fraction; what is far beyond the calendar is as far as it goes.
        let seconds =
            value.as_u64().or_else(|| value.as_f64().filter(|given| *given >= 0.0).map(|given| given as u64));
        Ok(Some(seconds.ok_or(wrong)?.saturating_mul(1_000)))
    }

    fn groups(&self, claim: &str) -> Vec<&str> {
        match self.claims.get(claim) {
            Some(Value::String(group)) => vec![group.as_str()],
            Some(Value::Array(groups)) => groups.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

impl Verified {
    /// Whether it is accepted at a time, in milliseconds since the Unix epoch.
    pub(crate) fn check_time(&self, settings: &IssuerSettings, now_ms: u64) -> Result<(), SignInRefusal> {
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let skew_ms = ms(settings.clock_skew);
        if now_ms >= self.expires_ms.saturating_add(skew_ms) {
            return Err(SignInRefusal::Expired);
        }
        if now_ms.saturating_add(skew_ms) < self.begins_ms {
            return Err(SignInRefusal::NotYetValid);
        }
        let furthest_ms = now_ms.saturating_add(ms(settings.lifetime_max)).saturating_add(skew_ms);
        if self.expires_ms > furthest_ms { Err(SignInRefusal::Lifetime) } else { Ok(()) }
    }
}
