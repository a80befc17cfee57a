//! Certificates in force: read from files, checked against one another, and made into configurations.

use crate::error::TlsError;
use crate::files::{Contents, Source, TlsFiles};
use crate::name::{Expect, Role};
use crate::verify::{CertificateInfo, OfClients, OfServer, Revoked, Trust, facts};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// Certificates of one file: an authority and its successors, or a leaf and what is between.
const CERTIFICATES_MAX: usize = 8;

/// All that one set of files amounts to.
pub(crate) struct Material {
    pub(crate) contents: Contents,
    pub(crate) trust: Arc<Trust>,
    /// None for a process that has authorities alone.
    own: Option<OwnCertificate>,
}

/// What a process shows of itself.
struct OwnCertificate {
    info: CertificateInfo,
    key: Arc<CertifiedKey>,
    server: Arc<ServerConfig>,
    /// The same for callers that need not show a certificate.
    open_server: Arc<ServerConfig>,
}

fn content(path: &Path, detail: impl Into<String>) -> TlsError {
    TlsError::Content { path: path.to_path_buf(), detail: detail.into() }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|error| content(path, format!("not a PEM file of certificates: {error}")))?;
        found.push(certificate);
        if found.len() > CERTIFICATES_MAX {
            return Err(content(path, format!("more than {CERTIFICATES_MAX} certificates")));
        }
    }
    if found.is_empty() {
        return Err(content(path, "no certificate in it; expected PEM"));
    }
    Ok(found)
}

fn configure(error: impl std::fmt::Display) -> TlsError {
    TlsError::Configure { detail: error.to_string() }
}

impl Material {
    pub(crate) fn of(
        source: &Source,
        contents: Contents,
        revoked: Arc<Revoked>,
    ) -> Result<Material, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in certificates(source.ca(), &contents.ca)? {
            roots.add(authority).map_err(|error| content(source.ca(), error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let of_clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(configure)?;
        let trust = Trust { cluster: None, roots, provider, of_clients, revoked };
        let Source::Own(files) = source else {
            return Ok(Material { contents, trust: Arc::new(trust), own: None });
        };
        let chain = certificates(&files.cert, &contents.cert)?;
        let info = facts(&chain[0])?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|error| content(&files.key, format!("not a PEM file of a private key: {error}")))?;
        let key = CertifiedKey::from_der(chain.clone(), key, &trust.provider).map_err(|error| {
            content(&files.key, format!("does not go with {}: {error}", files.cert.display()))
        })?;
        let trust = Arc::new(Trust { cluster: Some(info.name.cluster), ..trust });
        let (server, open_server) = (server(&trust, &key, true)?, server(&trust, &key, false)?);
        stands_up(&trust, info, files, &chain)?;
        Ok(Material {
            contents,
            trust,
            own: Some(OwnCertificate { info, key: Arc::new(key), server, open_server }),
        })
    }

    /// What the own certificate says; none without one.
    pub(crate) fn own(&self) -> Option<CertificateInfo> {
        self.own.as_ref().map(|own| own.info)
    }

    /// What connections are taken with; none without a certificate. `is_open` takes callers that show none as well.
    pub(crate) fn server(&self, is_open: bool) -> Option<Arc<ServerConfig>> {
        let own = self.own.as_ref()?;
        Some(Arc::clone(if is_open { &own.open_server } else { &own.server }))
    }

    /// What one call to a replica is made with.
    pub(crate) fn client(&self, expect: Expect) -> Result<ClientConfig, TlsError> {
        let verifier = Arc::new(OfServer { trust: Arc::clone(&self.trust), expect });
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.trust.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(configure)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.own {
            Some(own) => {
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&own.key))))
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.enable_sni = false;
        // Certificates are read again with every connection.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }
}

/// Whether the others, who have the same authorities, will accept this process.
fn stands_up(
    trust: &Trust,
    own: CertificateInfo,
    files: &TlsFiles,
    chain: &[CertificateDer<'_>],
) -> Result<(), TlsError> {
    let now = UnixTime::now();
    let as_server = match own.name.role {
        Role::Replica(id) => trust.server(chain, Expect::Replica(id), now).map(drop),
        Role::Agent(_)
        | Role::AgentGroup(_)
        | Role::Client(_)
        | Role::AllTenants(_)
        | Role::Admin(_)
        | Role::TenantClient { .. } => Ok(()),
    };
    trust.client(chain, now).map(drop).and(as_server).map_err(|error| TlsError::Chain {
        path: files.cert.clone(),
        ca: files.ca.clone(),
        detail: error.to_string(),
    })
}

fn server(trust: &Arc<Trust>, key: &CertifiedKey, is_mandatory: bool) -> Result<Arc<ServerConfig>, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::clone(&trust.provider);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(configure)?
        .with_client_cert_verifier(Arc::new(OfClients { trust: Arc::clone(trust), is_mandatory }))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key.clone())));
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
