//! Bearer tokens: whether a call that shows one is accepted.
//!
//! **Invariant:** every token that is not accepted gets the same answer: nobody learns which tokens exist. No secret is
//! logged, kept or passed on.

use muster_engine::Engine;
use muster_state::State;
use muster_transport::{PeerInfo, Principal, Role, ShortName, TokenHolder, TokenSecret};
use muster_types::{Name, Refusal, RefusalCode, Token, TokenId};
use muster_wire::status::to_status;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::codegen::http;

use crate::shares::Account;

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

/// The token in the metadata of a request; it is taken out, so that it goes no further.
///
/// # Errors
/// When there is more than one, or it is something else.
fn presented(headers: &mut http::HeaderMap) -> Result<Option<TokenSecret>, Status> {
    let http::header::Entry::Occupied(entry) = headers.entry(http::header::AUTHORIZATION) else {
        return Ok(None);
    };
    let (_, mut values) = entry.remove_entry_mult();
    let (first, second) = (values.next(), values.next());
    // Names of schemes are compared without regard to case, as HTTP has it.
    let secret = first.as_ref().filter(|_| second.is_none()).and_then(|value| {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret)
    });
    let secret = secret.and_then(|secret| TokenSecret::parse(secret).ok());
    secret.map(Some).ok_or_else(not_accepted)
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
    })
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
        let account = Account::of(&principal);
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
    denials: Mutex<Denials>,
}

/// Which tokens are accepted. Clones share it.
#[derive(Clone)]
pub(crate) struct Tokens(Arc<Inner>);

impl Tokens {
    pub(crate) fn new(engine: Engine, is_enabled: bool) -> Tokens {
        Tokens(Arc::new(Inner { engine, is_enabled, denials: Mutex::default() }))
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
        let secret = presented(headers)?;
        let Some(secret) = secret else {
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
        self.accept(&secret).map(|holder| Some(Principal::Token(holder))).ok_or_else(not_accepted)
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

    /// Waits until a caller's token is refused; for ever where it shows none.
    pub(crate) async fn until_refused(self, principal: Principal) -> Status {
        let Principal::Token(holder) = principal else { return std::future::pending().await };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.is_accepted(holder) {
                return not_accepted();
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
            Principal::Token(TokenHolder { cluster, id, role, tenant, user: short("ada") })
        };
        let mut denials = Denials::default();
        let logged = (0..10_000).filter(|id| denials.enter(holder("loud", *id), "/a")).count();
        assert_eq!(logged, DENIALS_OF_ACCOUNT_MAX);
        assert!(denials.enter(holder("quiet", 1), "/a"));
        assert!(!denials.enter(holder("quiet", 1), "/a"), "once");
        assert!(denials.enter(Principal::Anonymous, "/a"));
    }

    #[test]
    fn one_token_of_the_right_form_is_taken_out() {
        let secret = TokenSecret::generate().expect("there is randomness");
        let text = secret.reveal();
        assert!(presented(&mut headers(&[])).expect("nothing is wrong").is_none());
        for good in [format!("Bearer {text}"), format!("bearer {text}")] {
            let mut headers = headers(&[&good]);
            let taken = presented(&mut headers).expect("it is accepted").expect("it is there");
            assert_eq!(taken.reveal(), text);
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
            let status = presented(&mut headers(wrong)).expect_err("it is no token");
            assert_eq!(status.code(), tonic::Code::Unauthenticated, "{wrong:?}");
            assert!(!status.message().contains(text), "no answer repeats a secret");
        }
    }
}
