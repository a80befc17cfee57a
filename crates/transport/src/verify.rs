//! Whether a peer's certificate is good, for which name, and how long.
//!
//! **Invariant:** a chain is verified before a name is read from it, and both before a byte is exchanged.

use crate::error::TlsError;
use crate::name::{Expect, PeerName, Role};
use arc_swap::ArcSwap;
use muster_types::{CertificateSerial, ClusterId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError};
use rustls::{RootCertStore, SignatureScheme};
use std::collections::BTreeSet;
use std::sync::Arc;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a certificate says of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CertificateInfo {
    pub(crate) name: PeerName,
    /// None for one that is no serial number of a certificate: it cannot be revoked, and is refused.
    pub(crate) serial: Option<CertificateSerial>,
    /// Unix time, seconds.
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

/// Reads name and end of a certificate; its signature is somebody else's matter.
pub(crate) fn facts(certificate: &CertificateDer<'_>) -> Result<CertificateInfo, TlsError> {
    let unreadable = || TlsError::Names { count: 0 };
    let (rest, parsed) = X509Certificate::from_der(certificate.as_ref()).map_err(|_| unreadable())?;
    if !rest.is_empty() {
        return Err(unreadable());
    }
    let names = parsed.subject_alternative_name().map_err(|_| unreadable())?.ok_or_else(unreadable)?;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let (Some(uri), more) = (uris.next(), uris.count()) else { return Err(unreadable()) };
    if more > 0 {
        return Err(TlsError::Names { count: more + 1 });
    }
    let name =
        uri.parse().map_err(|source| TlsError::Name { text: uri.chars().take(128).collect(), source })?;
    let validity = parsed.validity();
    let serial = CertificateSerial::from_bytes(parsed.raw_serial());
    Ok(CertificateInfo {
        name,
        serial,
        not_before: validity.not_before.timestamp(),
        not_after: validity.not_after.timestamp(),
    })
}

/// Certificates that are revoked, as far as this process was told. Shared by all that is made of one set of files.
pub(crate) type Revoked = ArcSwap<BTreeSet<CertificateSerial>>;

/// Whom this process accepts.
#[derive(Debug)]
pub(crate) struct Trust {
    /// The own one; none where this process shows no certificate. Then the authority alone says which cluster it is.
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) provider: Arc<CryptoProvider>,
    /// Of the same roots.
    pub(crate) of_clients: Arc<dyn ClientCertVerifier>,
    /// Certificates that are no longer valid, independent of who signed them.
    pub(crate) revoked: Arc<Revoked>,
}

fn refused(reason: TlsError) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}

impl Trust {
    /// Whether the peer that called may, and who it is.
    pub(crate) fn client(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<CertificateInfo, Error> {
        let (leaf, between) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.of_clients.verify_client_cert(leaf, between, now)?;
        self.member(leaf)
    }

    /// Whether the peer that was called is the one that was meant.
    pub(crate) fn server(
        &self,
        chain: &[CertificateDer<'_>],
        expect: Expect,
        now: UnixTime,
    ) -> Result<CertificateInfo, Error> {
        let (leaf, between) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        let parsed = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms)?;
        let facts = self.member(leaf)?;
        let meant = match (facts.name.role, expect) {
            (Role::Replica(_), Expect::AnyReplica) => true,
            (Role::Replica(found), Expect::Replica(wanted)) => found == wanted,
            _ => false,
        };
        if meant {
            return Ok(facts);
        }
        Err(refused(TlsError::WrongName { found: Box::new(facts.name), wanted: expect.to_string() }))
    }

    fn member(&self, leaf: &CertificateDer<'_>) -> Result<CertificateInfo, Error> {
        let facts = facts(leaf).map_err(refused)?;
        if facts.serial.is_none_or(|serial| self.revoked.load().contains(&serial)) {
            return Err(refused(TlsError::Revoked { name: Box::new(facts.name) }));
        }
        let Some(cluster) = self.cluster.filter(|cluster| *cluster != facts.name.cluster) else {
            return Ok(facts);
        };
        let wanted = format!("a member of cluster {cluster}");
        Err(refused(TlsError::WrongName { found: Box::new(facts.name), wanted }))
    }
}

/// The verifier of a listener.
#[derive(Debug)]
pub(crate) struct OfClients {
    pub(crate) trust: Arc<Trust>,
    /// Whether a peer has to show a certificate. One that is shown is verified in any case.
    pub(crate) is_mandatory: bool,
}

impl ClientCertVerifier for OfClients {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A peer has one certificate; nothing is gained by telling strangers about ours.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.trust.of_clients.verify_client_cert(end_entity, intermediates, now)?;
        self.trust.member(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.of_clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.of_clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.of_clients.supported_verify_schemes()
    }
}

/// The verifier of one who calls.
#[derive(Debug)]
pub(crate) struct OfServer {
    pub(crate) trust: Arc<Trust>,
    pub(crate) expect: Expect,
}

impl ServerCertVerifier for OfServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(end_entity)
            .chain(intermediates)
            .map(|c| CertificateDer::from(c.as_ref()))
            .collect();
        self.trust.server(&chain, self.expect, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.of_clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.of_clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.of_clients.supported_verify_schemes()
    }
}
