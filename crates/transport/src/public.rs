//! Calling servers that are not of the cluster: they show a certificate of a public authority, or of one that the operator
//! names, for the name of their host. This process shows them nothing of itself.

use crate::error::TlsError;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Bytes of a file of authorities: those of systems have some hundred KiB.
const BUNDLE_BYTES_MAX: u64 = 4 << 20;
/// Authorities of one file.
const AUTHORITIES_MAX: usize = 4_096;
/// Where systems keep the public authorities.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// TLS to servers that are not of the cluster.
#[derive(Clone)]
pub struct PublicTls {
    config: Arc<ClientConfig>,
}

impl PublicTls {
    /// With the authorities of a PEM file; without one, with those of the system.
    ///
    /// # Errors
    /// When there is no such file, or no usable authority in it.
    pub fn load(authorities: Option<&Path>) -> Result<PublicTls, TlsError> {
        let found = SYSTEM_BUNDLES.iter().map(Path::new).find(|path| path.exists());
        let path: PathBuf = match authorities.or(found) {
            Some(path) => path.to_path_buf(),
            None => {
                let detail = format!("none of these is there: {}", SYSTEM_BUNDLES.join(", "));
                return Err(TlsError::Content { path: PathBuf::from("public authorities"), detail });
            }
        };
        let content = |detail: String| TlsError::Content { path: path.clone(), detail };
        let read = |source| TlsError::Read { path: path.clone(), source };
        let size = std::fs::metadata(&path).map_err(read)?.len();
        if size > BUNDLE_BYTES_MAX {
            return Err(content(format!("has {size} bytes; authorities have at most {BUNDLE_BYTES_MAX}")));
        }
        let pem = std::fs::read(&path).map_err(read)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem).take(AUTHORITIES_MAX) {
            let certificate =
                certificate.map_err(|error| content(format!("not a PEM file of certificates: {error}")))?;
            // Systems have old authorities that the library cannot read: the others serve.
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err(content("no usable authority in it; expected PEM".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| TlsError::Configure { detail: error.to_string() })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(PublicTls { config: Arc::new(config) })
    }

    /// A connection over one that stands, to a server that proves to be `host`: a name, or an address without brackets.
    ///
    /// # Errors
    /// When the server does not speak TLS 1.3, or its certificate is not one for this host. No error names the host: it may be part of
    /// an address that is secret.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await.map_err(without_names)
    }
}

/// The same error without the name that was asked for and those that the certificate has.
fn without_names(error: io::Error) -> io::Error {
    use rustls::Error::InvalidCertificate;
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(InvalidCertificate(CertificateError::NotValidForNameContext { .. })) => {
            io::Error::new(error.kind(), InvalidCertificate(CertificateError::NotValidForName))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_name_does_not_say_it() {
        let expected = ServerName::try_from("hooks.example".to_owned()).expect("a name");
        let presented = vec!["other.example".to_owned()];
        let context = CertificateError::NotValidForNameContext { expected, presented };
        let error = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(context));
        assert!(error.to_string().contains("hooks.example"), "{error}");
        let error = without_names(error);
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(!error.to_string().contains("example"), "{error}");
        let other = without_names(io::Error::other("reset"));
        assert_eq!(other.to_string(), "reset");
    }

    #[test]
    fn files_without_an_authority_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.pem");
        assert!(matches!(PublicTls::load(Some(&path)), Err(TlsError::Read { .. })));
        let damaged = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        for text in ["", "no certificate", damaged] {
            std::fs::write(&path, text).expect("written");
            assert!(matches!(PublicTls::load(Some(&path)), Err(TlsError::Content { .. })), "{text}");
        }
    }
}
