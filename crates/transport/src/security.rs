//! The one way in and out, and keeping it up to date.

use crate::address::{AddressError, Scheme};
use crate::error::TlsError;
use crate::files::{Contents, Source, TlsFiles};
use crate::material::Material;
use crate::name::PeerName;
use crate::verify::Revoked;
use arc_swap::ArcSwap;
use muster_types::CertificateSerial;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;

/// Between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// From then on the end of a certificate is warned of.
const WARN_DAYS: i64 = 14;
/// Between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3_600);

/// How a process speaks to the others. Clones share it.
#[derive(Clone)]
pub enum Security {
    /// Without certificates: everyone who can connect is taken for what it says.
    Plaintext,
    /// With certificates at both ends.
    Tls(Tls),
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Security::Plaintext => f.write_str("Plaintext"),
            Security::Tls(tls) => f.debug_tuple("Tls").field(&tls.shown_name()).finish(),
        }
    }
}

impl Security {
    /// How addresses are spoken to.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        match self {
            Security::Plaintext => Scheme::Http,
            Security::Tls(_) => Scheme::Https,
        }
    }

    /// The whole address, with this scheme; see [`Scheme::address`].
    ///
    /// # Errors
    /// When it asks for the other one.
    pub fn address(&self, text: &str) -> Result<String, AddressError> {
        self.scheme().address(text)
    }

    /// Rises when other certificates come into force: connections made before are replaced in time.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        match self {
            Security::Plaintext => 0,
            Security::Tls(tls) => tls.epoch(),
        }
    }

    /// From here on these certificates are not good, and no others are revoked: connections with them end at once, in
    /// both directions, and none is made. Nothing happens without certificates.
    pub fn revoke(&self, serials: BTreeSet<CertificateSerial>) {
        if let Security::Tls(tls) = self {
            tls.revoke(serials);
        }
    }

    /// Whole days until the certificate in force ends, negative when it has; none without one.
    #[must_use]
    pub fn days_left(&self) -> Option<i64> {
        match self {
            Security::Plaintext => None,
            Security::Tls(tls) => tls.days_left(),
        }
    }
}

struct Inner {
    source: Source,
    current: ArcSwap<Material>,
    revoked: Arc<Revoked>,
    epoch: watch::Sender<u64>,
}

/// Certificates in force. Clones share them.
#[derive(Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

/// What checks of the files have found and logged.
struct CheckState {
    /// Content that was refused, and whether that was said: files are replaced one after the other, so a
    /// first failure may only be the middle of a replacement.
    refused: Option<(Option<Contents>, bool)>,
    warned: Option<Instant>,
}

impl Tls {
    /// Reads certificates and checks that they go together.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn load(files: TlsFiles) -> Result<Tls, TlsError> {
        Tls::of(Source::Own(files))
    }

    /// Reads authorities alone: for a client that shows a token in the place of a certificate. Replicas are verified all the
    /// same.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn load_authority(ca: PathBuf) -> Result<Tls, TlsError> {
        Tls::of(Source::Authority(ca))
    }

    fn of(source: Source) -> Result<Tls, TlsError> {
        let revoked = Arc::new(Revoked::default());
        let material = Material::of(&source, source.read()?, Arc::clone(&revoked))?;
        let current = ArcSwap::from_pointee(material);
        let inner = Inner { source, current, revoked, epoch: watch::Sender::new(1) };
        Ok(Tls { inner: Arc::new(inner) })
    }

    /// Whom the certificate in force names; none where there is none.
    #[must_use]
    pub fn name(&self) -> Option<PeerName> {
        self.inner.current.load().own().map(|own| own.name)
    }

    /// The same as text.
    fn shown_name(&self) -> String {
        self.name().map_or_else(|| "no certificate".to_owned(), |name| name.to_string())
    }

    /// See [`Security::epoch`].
    #[must_use]
    pub fn epoch(&self) -> u64 {
        *self.inner.epoch.borrow()
    }

    /// See [`Security::days_left`].
    #[must_use]
    pub fn days_left(&self) -> Option<i64> {
        let own = self.inner.current.load().own()?;
        Some((own.not_after - unix_now()).div_euclid(24 * 3_600))
    }

    fn revoke(&self, serials: BTreeSet<CertificateSerial>) {
        if **self.inner.revoked.load() == serials {
            return;
        }
        self.inner.revoked.store(Arc::new(serials));
        // Every connection looks at its peer's certificate once more.
        self.inner.epoch.send_modify(|epoch| *epoch += 1);
    }

    pub(crate) fn material(&self) -> Arc<Material> {
        self.inner.current.load_full()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.epoch.subscribe()
    }

    /// Takes over what the files hold now; whether that was anything new.
    ///
    /// # Errors
    /// When they hold nothing usable: then what was in force stays.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.take(self.inner.source.read()?)
    }

    fn take(&self, contents: Contents) -> Result<bool, TlsError> {
        let before = self.inner.current.load_full();
        if before.contents == contents {
            return Ok(false);
        }
        let material = Material::of(&self.inner.source, contents, Arc::clone(&self.inner.revoked))?;
        // A process does not become another while it runs.
        if let (Some(own), Some(before)) = (material.own(), before.own())
            && own.name != before.name
        {
            return Err(TlsError::WrongName { found: Box::new(own.name), wanted: before.name.to_string() });
        }
        self.inner.current.store(Arc::new(material));
        self.inner.epoch.send_modify(|epoch| *epoch += 1);
        Ok(true)
    }

    /// Looks at the files every few seconds and on SIGHUP, for as long as it is polled, and warns of the
    /// end of the certificate in time.
    pub async fn keep_fresh(self) {
        use tokio::signal::unix::{SignalKind, signal};
        let mut asked = signal(SignalKind::hangup())
            .inspect_err(|error| tracing::warn!(%error, "certificates are not read again on SIGHUP"))
            .ok();
        let mut looking = CheckState { refused: None, warned: None };
        loop {
            self.look(&mut looking).await;
            let hangup = async {
                match &mut asked {
                    Some(asked) => asked.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = hangup => tracing::info!("certificates are read again"),
            }
        }
    }

    async fn look(&self, looking: &mut CheckState) {
        let tls = self.clone();
        let looked = tokio::task::spawn_blocking(move || match tls.inner.source.read() {
            Ok(contents) => (Some(contents.clone()), tls.take(contents)),
            Err(error) => (None, Err(error)),
        });
        let Ok((contents, taken)) = looked.await else { return };
        match taken {
            Ok(changed) => {
                if changed {
                    tracing::info!(
                        name = self.shown_name(),
                        days_left = self.days_left(),
                        "new certificates are in force"
                    );
                    looking.warned = None;
                }
                looking.refused = None;
            }
            Err(error) => {
                let again = looking.refused.as_ref().is_some_and(|(before, _)| *before == contents);
                let said = again && looking.refused.as_ref().is_some_and(|(_, said)| *said);
                if again && !said {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, cause, "new certificates are refused; those before stay in force");
                }
                looking.refused = Some((contents, again));
            }
        }
        let Some(days_left) = self.days_left() else { return };
        if days_left < WARN_DAYS && looking.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            looking.warned = Some(Instant::now());
            tracing::warn!(name = self.shown_name(), days_left, "the certificate ends soon; issue another");
        }
    }
}

pub(crate) fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
