//! Bearer tokens: whether a call that shows one is accepted. A token is one of the cluster's own making, or of an issuer that the
//! configuration lists.
//!
//! **Invariant:** every token of the cluster's making that is not accepted gets the same answer: nobody learns which tokens exist.
//! One of an issuer gets the reason, which its holder could find out from it. No token is logged, kept or passed on.

use muster_engine::Engine;
use muster_oidc::{Issuers, SignIn, SignInRefusal, is_jwt};
use muster_state::State;
use muster_transport::{PeerInfo, Principal, Role, ShortName, TokenHolder, TokenSecret};
use muster_types::{Name, Refusal, RefusalCode, Token, TokenId, TokenRole};
use muster_wire::status::to_status;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::codegen::http;

use crate::shares::Account;
use crate::verbs;

/// How often an answer that goes on looks whether its token is still accepted.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Denied calls that are logged, each once for its caller: the rest is counted alone, or a stranger could fill the log.
const DENIALS_LOGGED_MAX: usize = 1_024;
/// The same of one tenant, or of one holder that is of none: a tenant that makes tokens without end does not take all of them.
const DENIALS_OF_ACCOUNT_MAX: usize = DENIALS_LOGGED_MAX / 8;

/// What a caller is told whose token is not accepted, whatever the reason.
fn not_accepted() -> Status {
    unauthenticated("the token is not accepted: it may be malformed, expired or revoked")
}

fn unauthenticated(text: &str) -> Status {
    to_status(&Refusal::new(RefusalCode::Unauthenticated, text))
}

/// What a caller is told whose sign-in is not accepted.
fn not_signed_in(refusal: SignInRefusal) -> Status {
    let text = format!("the token is not accepted: {}", refusal.text());
    to_status(&Refusal::new(RefusalCode::Unauthenticated, text).with("reason", refusal.name()))
}

/// A token as a call shows it.
enum Presented {
    /// Of the cluster's making.
    Secret(TokenSecret),
    /// Of the form that those of issuers have.
    Issued(String),
}

/// The token in the metadata of a request; it is taken out, so that it goes no further.
///
/// # Errors
/// When there is more than one, or it is something else.
fn presented(headers: &mut http::HeaderMap, has_issuers: bool) -> Result<Option<Presented>, Status> {
    let http::header::Entry::Occupied(entry) = headers.entry(http::header::AUTHORIZATION) else {
        return Ok(None);
    };
    let (_, mut values) = entry.remove_entry_mult();
    let (first, second) = (values.next(), values.next());
    // Names of schemes are compared without regard to case, as HTTP has it.
    let text = first.as_ref().filter(|_| second.is_none()).and_then(|value| {
        let (scheme, text) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(text)
    });
    let token = text.and_then(|text| match TokenSecret::parse(text) {
        Ok(secret) => Some(Presented::Secret(secret)),
        Err(_) if has_issuers && is_jwt(text) => Some(Presented::Issued(text.to_owned())),
        Err(_) => None,
    });
    token.map(Some).ok_or_else(not_accepted)
}

/// The holder of a token that the state has, as a caller.
fn holder(view: &State, id: TokenId, token: &Token) -> Option<TokenHolder> {
    let short = |name: &Name| ShortName::new(name.as_str());
    let tenant = match &token.grant.tenant {
        Some(tenant) => Some(short(tenant)?),
        None => None,
    };
    Some(TokenHolder {
        cluster: view.cluster()?.cluster,
        id,
        role: token.grant.role,
        tenant,
        user: short(&token.grant.user)?,
        own_role: match &token.grant.own_role {
            Some(own) => Some(short(own)?),
            None => None,
        },
        issuer: None,
    })
}

/// Who has signed in, as a caller: what the configuration says of them goes for as long as the policy has the role and the tenant.
fn signed_in(view: &State, known: &SignIn) -> Result<TokenHolder, SignInRefusal> {
    let policy = &view.policy().policy;
    let (role, own_role) = match TokenRole::from_name(&known.role) {
        Some(role) => (role, None),
        None => {
            let own = policy.roles.get(&known.role).ok_or(SignInRefusal::Role)?;
            (own.part_of, Some(&known.role))
        }
    };
    if role.needs_tenant().is_some_and(|needs| needs != known.tenant.is_some()) {
        return Err(SignInRefusal::Role);
    }
    if known.tenant.as_ref().is_some_and(|tenant| !policy.tenants.contains_key(tenant)) {
        return Err(SignInRefusal::Tenant);
    }
    let short = |name: &Name, wrong| ShortName::new(name.as_str()).ok_or(wrong);
    Ok(TokenHolder {
        cluster: view.cluster().ok_or(SignInRefusal::KeysUnavailable)?.cluster,
        id: TokenId(known.id),
        role,
        tenant: known.tenant.as_ref().map(|tenant| short(tenant, SignInRefusal::Tenant)).transpose()?,
        user: short(&known.user, SignInRefusal::User)?,
        own_role: own_role.map(|own| short(own, SignInRefusal::Role)).transpose()?,
        issuer: Some(short(&known.issuer, SignInRefusal::Issuer)?),
    })
}

/// Whether the policy still has the role and the tenant of who has signed in.
fn is_granted(view: &State, known: &TokenHolder) -> bool {
    let policy = &view.policy().policy;
    let name = |short: ShortName| Name::new(short.as_str());
    let has_role = known
        .own_role
        .is_none_or(|own| name(own).is_some_and(|own| policy.own_role(&own, known.role).is_some()));
    let has_tenant = known
        .tenant
        .is_none_or(|tenant| name(tenant).is_some_and(|tenant| policy.tenants.contains_key(&tenant)));
    has_role && has_tenant
}

/// Denied calls that were logged, and how many for each account.
#[derive(Default)]
struct Denials {
    logged: HashSet<(Principal, &'static str)>,
    of_account: HashMap<Account, usize>,
}

impl Denials {
    /// Whether a call is to be logged; it counts as logged from then on.
    fn enter(&mut self, principal: Principal, path: &'static str) -> bool {
        let (account, principal) = (Account::of(&principal), principal.as_counted());
        let of_account = self.of_account.get(&account).copied().unwrap_or_default();
        let is_full = self.logged.len() >= DENIALS_LOGGED_MAX || of_account >= DENIALS_OF_ACCOUNT_MAX;
        if is_full || !self.logged.insert((principal, path)) {
            return false;
        }
        self.of_account.insert(account, of_account + 1);
        true
    }
}

struct Inner {
    engine: Engine,
    is_enabled: bool,
    issuers: Issuers,
    denials: Mutex<Denials>,
}

/// Which tokens are accepted. Clones share it.
#[derive(Clone)]
pub(crate) struct Tokens(Arc<Inner>);

impl Tokens {
    pub(crate) fn new(engine: Engine, is_enabled: bool, issuers: Issuers) -> Tokens {
        Tokens(Arc::new(Inner { engine, is_enabled, issuers, denials: Mutex::default() }))
    }

    /// Who calls, where it shows a token or no certificate; `None` where its certificate says it. A token decides where a
    /// person shows a certificate as well.
    ///
    /// # Errors
    /// When its token is not accepted, or it shows neither.
    pub(crate) fn judge(
        &self,
        headers: &mut http::HeaderMap,
        peer: PeerInfo,
    ) -> Result<Option<Principal>, Status> {
        let Some(token) = presented(headers, !self.0.issuers.is_empty())? else {
            return match peer.principal {
                Principal::Anonymous => Err(unauthenticated("show a certificate or a token")),
                _ => Ok(None),
            };
        };
        let is_of_process =
            matches!(peer.principal.role(), Some(Role::Replica(_) | Role::Agent(_) | Role::AgentGroup(_)));
        if is_of_process {
            return Err(unauthenticated(
                "tokens are for people and programs; replicas and agents have certificates",
            ));
        }
        if peer.principal == Principal::Plaintext && !peer.address.ip().is_loopback() {
            return Err(unauthenticated(
                "a token is taken over TLS only: it has been seen on the way, so revoke it",
            ));
        }
        // Without certificates, on one machine, tokens can be tried without further settings.
        if !self.0.is_enabled && peer.principal != Principal::Plaintext {
            return Err(unauthenticated(
                "this replica takes no tokens: `tokens = true` is not in its configuration",
            ));
        }
        let holder = match token {
            Presented::Secret(secret) => self.accept(&secret).ok_or_else(not_accepted)?,
            Presented::Issued(token) => self.sign_in(&token).map_err(not_signed_in)?,
        };
        Ok(Some(Principal::Token(holder)))
    }

    fn sign_in(&self, token: &str) -> Result<TokenHolder, SignInRefusal> {
        let engine = &self.0.engine;
        let view = engine.view();
        let known = self.0.issuers.judge(token, engine.now(&view).0)?;
        signed_in(&view, &known)
    }

    fn accept(&self, secret: &TokenSecret) -> Option<TokenHolder> {
        let engine = &self.0.engine;
        let view = engine.view();
        let token = view.live_token(secret.id(), engine.now(&view));
        // A secret of an unknown id is hashed and compared too: the time of an answer does not tell which tokens there are.
        let sha256 = token.map_or([0; 32], |token| token.grant.secret_sha256);
        let is_right = secret.is_of(&sha256);
        token.filter(|_| is_right).and_then(|token| holder(&view, secret.id(), token))
    }

    /// Whether a token that was accepted before still is, for the same holder: an id may have become that of another token.
    fn is_accepted(&self, known: TokenHolder) -> bool {
        let engine = &self.0.engine;
        let view = engine.view();
        if known.issuer.is_some() {
            return is_granted(&view, &known);
        }
        let token = view.live_token(known.id, engine.now(&view));
        token.and_then(|token| holder(&view, known.id, token)) == Some(known)
    }

    /// For whom another replica passes a call on. That replica may be behind, so the leader looks at a token once more. It can
    /// tell as soon as it has applied the first record of its leadership: nobody has applied a record before that it lacks.
    ///
    /// # Errors
    /// When the token is not accepted any more.
    pub(crate) fn check_passed_on(&self, principal: Principal) -> Result<Principal, Status> {
        let Principal::Token(known) = principal else { return Ok(principal) };
        let mine = self.0.engine.leadership().borrow().mine;
        let is_current = mine.is_some() && mine == self.0.engine.view().leadership();
        if is_current && !self.is_accepted(known) { Err(not_accepted()) } else { Ok(principal) }
    }

    /// Whether a caller's role has a call, where it is one that the policy defines.
    pub(crate) fn has_call(&self, principal: &Principal, path: &str) -> bool {
        match principal {
            Principal::Token(holder) if holder.own_role.is_some() => {
                verbs::has_call(&self.0.engine.view(), principal, path)
            }
            _ => true,
        }
    }

    /// Waits until a caller's token is refused, or its role lacks the call; for ever where it shows none. The token of a sign-in is
    /// known only to the replica that it was shown to: that one looks at its end and its key.
    pub(crate) async fn until_refused(
        self,
        principal: Principal,
        path: &'static str,
        is_passed_on: bool,
    ) -> Status {
        let Principal::Token(holder) = principal else { return std::future::pending().await };
        let issuers = &self.0.issuers;
        let signed = match holder.issuer.filter(|_| !is_passed_on) {
            Some(issuer) => match issuers.key_of(holder.id.0) {
                Some((key, expires_ms)) => Some((issuer, key, expires_ms)),
                None => return not_signed_in(SignInRefusal::KeyUnknown),
            },
            None => None,
        };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.is_accepted(holder) || !self.has_call(&principal, path) {
                return not_accepted();
            }
            let Some((issuer, key, expires_ms)) = &signed else { continue };
            let engine = &self.0.engine;
            if engine.now(&engine.view()).0 >= *expires_ms {
                return not_signed_in(SignInRefusal::Expired);
            }
            if !issuers.is_accepted(issuer.as_str(), key) {
                return not_signed_in(SignInRefusal::KeyUnknown);
            }
        }
    }

    /// Logs a denied call, once for its caller. Every one is counted with the calls and their reasons.
    pub(crate) fn note_denied(
        &self,
        peer: &PeerInfo,
        principal: Principal,
        path: &'static str,
        reason: tonic::Code,
    ) {
        let is_new = self.0.denials.lock().enter(principal, path);
        if !is_new {
            return;
        }
        tracing::warn!(%principal, address = %peer.address, path, ?reason, "a call is denied; repetitions are counted alone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> http::HeaderMap {
        let mut headers = http::HeaderMap::new();
        for value in values {
            headers.append(http::header::AUTHORIZATION, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn no_tenant_takes_all_places_of_logged_denials() {
        let short = |text| ShortName::new(text).expect("a name");
        let holder = |tenant, id| {
            let (cluster, role) = (muster_types::ClusterId(1), muster_types::TokenRole::Submitter);
            let (id, tenant) = (TokenId(id), Some(short(tenant)));
            let (own_role, issuer) = (None, None);
            Principal::Token(TokenHolder { cluster, id, role, tenant, user: short("ada"), own_role, issuer })
        };
        let mut denials = Denials::default();
        let logged = (0..10_000).filter(|id| denials.enter(holder("loud", *id), "/a")).count();
        assert_eq!(logged, DENIALS_OF_ACCOUNT_MAX);
        assert!(denials.enter(holder("quiet", 1), "/a"));
        assert!(!denials.enter(holder("quiet", 1), "/a"), "once");
        assert!(denials.enter(Principal::Anonymous, "/a"));
        let signed_in = |id| {
            let Principal::Token(known) = holder("issued", id) else { panic!("it is a token") };
            Principal::Token(TokenHolder { issuer: Some(short("corp")), ..known })
        };
        assert!(denials.enter(signed_in(1), "/a"));
        assert!(!denials.enter(signed_in(2), "/a"), "another token of the same person");
    }

    #[test]
    fn one_token_of_the_right_form_is_taken_out() {
        let secret = TokenSecret::generate().expect("there is randomness");
        let text = secret.reveal();
        assert!(presented(&mut headers(&[]), false).expect("nothing is wrong").is_none());
        for good in [format!("Bearer {text}"), format!("bearer {text}")] {
            let mut headers = headers(&[&good]);
            let taken = presented(&mut headers, true).expect("it is accepted").expect("it is there");
            assert!(matches!(taken, Presented::Secret(secret) if secret.reveal() == text));
            assert!(headers.is_empty(), "it goes no further");
        }
        let good = format!("Bearer {text}");
        let (basic, spaced, long) =
            (format!("Basic {text}"), format!("Bearer  {text}"), format!("Bearer {}", "a".repeat(8_192)));
        let short = &good[..good.len() - 1];
        let behind = format!("{good} ");
        for wrong in [
            &[good.as_str(), good.as_str()][..],
            &[basic.as_str()],
            &[spaced.as_str()],
            &[long.as_str()],
            &[short],
            &[behind.as_str()],
            &[text],
            &["Bearer"],
            &["Bearer "],
            &[""],
        ] {
            for has_issuers in [false, true] {
                let Err(status) = presented(&mut headers(wrong), has_issuers) else {
                    panic!("it is no token: {wrong:?}")
                };
                assert_eq!(status.code(), tonic::Code::Unauthenticated, "{wrong:?}");
                assert!(!status.message().contains(text), "no answer repeats a secret");
            }
        }
        // One of an issuer is looked at where there are issuers.
        let issued = ["Bearer aa.bb.cc"];
        assert!(presented(&mut headers(&issued), false).is_err());
        let taken = presented(&mut headers(&issued), true).expect("it is of the form");
        assert!(matches!(taken, Some(Presented::Issued(token)) if token == "aa.bb.cc"));
    }
}
