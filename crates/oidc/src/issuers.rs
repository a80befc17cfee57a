//! The issuers that a replica knows: whether it accepts a token, and which it has verified already.
//!
//! **Invariant:** a call never waits for an issuer. What was verified once is not verified again while the key that signed it is
//! published and the token has not expired; how many are remembered is bounded.

use muster_transport::JWT_BYTES_MAX;
use muster_types::Name;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

use crate::error::SignInRefusal;
use crate::jwt::{Unverified, Verified};
use crate::keys::{Keys, SigningKey};
use crate::settings::IssuerSettings;

/// Verified tokens that are remembered.
const VERIFIED_MAX: usize = 4_096;

/// Who has signed in with a token, as far as the issuer and the configuration say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    /// Tells tokens apart: the first bytes of the hash of the token.
    pub id: u64,
    /// The issuer.
    pub issuer: Name,
    /// The user.
    pub user: Name,
    /// A built-in role, or one of the policy.
    pub role: Name,
    /// The tenant.
    pub tenant: Option<Name>,
    /// From when on it is refused, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// The keys of an issuer, as they were read last.
#[derive(Default)]
struct Known {
    keys: Option<Arc<Keys>>,
    /// When.
    read: Option<Instant>,
}

pub(crate) struct Issuer {
    pub(crate) settings: IssuerSettings,
    known: Mutex<Known>,
    /// A token names a key that is not there, or no keys are.
    pub(crate) wanted: Notify,
}

impl Issuer {
    fn keys(&self) -> Result<Arc<Keys>, SignInRefusal> {
        let usable = {
            let known = self.known.lock();
            let is_recent = known.read.is_some_and(|read| read.elapsed() < self.settings.keys_kept);
            known.keys.clone().filter(|_| is_recent)
        };
        if usable.is_none() {
            // The issuer may be back: somebody waits for it, so it is asked before the pause after a failure is over.
            self.wanted.notify_one();
        }
        usable.ok_or(SignInRefusal::KeysUnavailable)
    }

    /// Puts the keys in use that were read now.
    pub(crate) fn take_keys(&self, keys: Keys) {
        *self.known.lock() = Known { keys: Some(Arc::new(keys)), read: Some(Instant::now()) };
    }
}

/// A token that was verified.
struct Remembered {
    digest: [u8; 32],
    issuer: usize,
    verified: Arc<Verified>,
}

struct Inner {
    issuers: Vec<Arc<Issuer>>,
    /// By the first bytes of the digest.
    remembered: Mutex<HashMap<u64, Remembered>>,
}

/// Clones share what is known.
#[derive(Clone)]
pub struct Issuers(Arc<Inner>);

impl Issuers {
    /// Without keys: [`Issuers::keep_fresh`] reads them.
    #[must_use]
    pub fn new(settings: Vec<IssuerSettings>) -> Issuers {
        let issuer = |settings| Arc::new(Issuer { settings, known: Mutex::default(), wanted: Notify::new() });
        Issuers(Arc::new(Inner {
            issuers: settings.into_iter().map(issuer).collect(),
            remembered: Mutex::default(),
        }))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.issuers.is_empty()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Issuer>> {
        self.0.issuers.iter()
    }

    /// Who has signed in with a token, at a time in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn judge(&self, token: &str, now_ms: u64) -> Result<SignIn, SignInRefusal> {
        if token.len() > JWT_BYTES_MAX {
            return Err(SignInRefusal::TooLarge);
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let id = digest.first_chunk::<8>().map_or(0, |first| u64::from_be_bytes(*first));
        let known = self.remembered(id).filter(|known| known.digest == digest);
        let is_new = known.is_none();
        let (place, verified) = match known {
            Some(known) => (known.issuer, known.verified),
            None => self.verify(token)?,
        };
        let issuer = self.0.issuers.get(place).ok_or(SignInRefusal::Issuer)?;
        let settings = &issuer.settings;
        if !issuer.keys()?.has(&verified.key) {
            return Err(self.missing(issuer));
        }
        verified.check_time(settings, now_ms)?;
        if is_new {
            self.remember(id, Remembered { digest, issuer: place, verified: Arc::clone(&verified) }, now_ms);
        }
        let skew_ms = u64::try_from(settings.clock_skew.as_millis()).unwrap_or(u64::MAX);
        Ok(SignIn {
            id,
            issuer: settings.name.clone(),
            user: verified.user.clone(),
            role: verified.rule.role.clone(),
            tenant: verified.rule.tenant.clone(),
            expires_ms: verified.expires_ms.saturating_add(skew_ms),
        })
    }

    fn verify(&self, token: &str) -> Result<(usize, Arc<Verified>), SignInRefusal> {
        let unverified = Unverified::parse(token)?;
        let said = unverified.issuer().ok_or(SignInRefusal::Issuer)?;
        let place = self.0.issuers.iter().position(|issuer| issuer.settings.url == said);
        let place = place.ok_or(SignInRefusal::Issuer)?;
        let issuer = self.0.issuers.get(place).ok_or(SignInRefusal::Issuer)?;
        // What can never be accepted is no reason to ask the issuer.
        unverified.key(&issuer.settings)?;
        let keys = issuer.keys()?;
        match unverified.verify(&issuer.settings, &keys) {
            Err(SignInRefusal::KeyUnknown) => Err(self.missing(issuer)),
            verified => verified.map(|verified| (place, Arc::new(verified))),
        }
    }

    /// Has the keys read again soon; how soon is bounded where they are read.
    fn missing(&self, issuer: &Issuer) -> SignInRefusal {
        issuer.wanted.notify_one();
        SignInRefusal::KeyUnknown
    }

    fn remembered(&self, id: u64) -> Option<Remembered> {
        let remembered = self.0.remembered.lock();
        remembered.get(&id).map(|known| Remembered {
            digest: known.digest,
            issuer: known.issuer,
            verified: Arc::clone(&known.verified),
        })
    }

    fn remember(&self, id: u64, known: Remembered, now_ms: u64) {
        let mut remembered = self.0.remembered.lock();
        if remembered.len() >= VERIFIED_MAX && !remembered.contains_key(&id) {
            remembered.retain(|_, known| known.verified.expires_ms > now_ms);
            // All of them are in use: any one is verified once more when it comes again.
            if remembered.len() >= VERIFIED_MAX
                && let Some(other) = remembered.keys().next().copied()
            {
                remembered.remove(&other);
            }
        }
        remembered.insert(id, known);
    }

    /// Whether a token that was accepted as this one still is: it has not expired, and its key is published. `issuer` and `key` are
    /// those of [`Issuers::key_of`].
    #[must_use]
    pub fn is_accepted(&self, issuer: &str, key: &SigningKey) -> bool {
        let issuer = self.0.issuers.iter().find(|known| known.settings.name.as_str() == issuer);
        issuer.is_some_and(|issuer| issuer.keys().is_ok_and(|keys| keys.has(key)))
    }

    /// The key that signed a token which was accepted a moment ago, and until when it is accepted, in milliseconds.
    #[must_use]
    pub fn key_of(&self, id: u64) -> Option<(SigningKey, u64)> {
        let known = self.remembered(id)?;
        let skew = self.0.issuers.get(known.issuer)?.settings.clock_skew;
        let skew_ms = u64::try_from(skew.as_millis()).unwrap_or(u64::MAX);
        Some((known.verified.key.clone(), known.verified.expires_ms.saturating_add(skew_ms)))
    }

    /// How many tokens are remembered.
    #[cfg(test)]
    pub(crate) fn remembered_count(&self) -> usize {
        self.0.remembered.lock().len()
    }

    /// Gives an issuer keys that nobody has read, for tests.
    ///
    /// # Panics
    /// When there is no such issuer, or it is no key set.
    #[cfg(any(test, feature = "test-issuer"))]
    pub fn set_keys(&self, place: usize, key_set: &str) {
        let keys = Keys::parse(key_set.as_bytes()).expect("a key set");
        self.0.issuers.get(place).expect("an issuer").take_keys(keys);
    }
}
