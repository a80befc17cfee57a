//! Connections between two processes that share an identity, made for them alone.
//!
//! What Muster starts inside another scheduler's allocation has no certificate of the cluster and is to get none: it
//! runs for one placement, as somebody else's batch job. It is handed a [`SharedIdentity`]: a self-signed certificate
//! with its key. Both ends present that certificate in TLS 1.3, accept it and no other, and prove that they hold its
//! key. The keys of a connection are agreed on for it alone, so who learns the identity later cannot read what was
//! recorded.
//!
//! A caller states in the clear under which name the other side knows the identity, as the one application protocol
//! (ALPN) of its hello: a host name could not hold every name, and no address is looked at.
//!
//! **Invariant:** no frame is read or written before both ends have proved the identity; a frame is at most
//! [`FRAME_BYTES_MAX`] long, and memory is only taken for bytes that have arrived.

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsConnector, TlsStream};

/// Bytes of the largest frame.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of the longest name that a caller may state.
pub const PINNED_NAME_BYTES_MAX: usize = 255;

/// What both ends hold and nobody else: a self-signed certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedIdentity {
    certificate: String,
    key: String,
}

impl SharedIdentity {
    /// A new one.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn generate() -> Result<SharedIdentity, PinnedError> {
        let failed = |error: rcgen::Error| PinnedError::Identity(error.to_string());
        let made = rcgen::generate_simple_self_signed(Vec::new()).map_err(failed)?;
        Ok(SharedIdentity { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() })
    }

    fn parse(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), PinnedError> {
        let failed = |error: rustls::pki_types::pem::Error| PinnedError::Identity(error.to_string());
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(failed)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(failed)?;
        Ok((certificate, key))
    }

    fn client(&self, name: &str) -> Result<ClientConfig, PinnedError> {
        let (certificate, key) = self.parse()?;
        let pin = Pin::of(&certificate);
        let provider = Arc::clone(&pin.provider);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pin))
            .with_client_auth_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![name.as_bytes().to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn server(&self, name: &str) -> Result<ServerConfig, PinnedError> {
        let (certificate, key) = self.parse()?;
        let pin = Pin::of(&certificate);
        let provider = Arc::clone(&pin.provider);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(pin))
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![name.as_bytes().to_vec()];
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl fmt::Debug for SharedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedIdentity(..)")
    }
}

/// Why a pinned connection could not be made or go on.
#[derive(Debug, thiserror::Error)]
pub enum PinnedError {
    /// The connection broke, or the other side does not hold the identity.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The identity cannot be made, or is none.
    #[error("no identity to share: {0}")]
    Identity(String),
    /// The identity cannot be used.
    #[error("the identity cannot be used: {0}")]
    Configuration(#[from] Error),
    /// The caller states no name, or one that cannot be stated.
    #[error("a caller states one name of 1 to {PINNED_NAME_BYTES_MAX} bytes of UTF-8")]
    Name,
    /// Longer than a frame may be.
    #[error("a frame of {bytes} bytes; at most {bytes_max} are allowed")]
    Long {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        bytes_max: usize,
    },
}

/// Accepts one certificate. Whether the other side holds its key, TLS 1.3 has it prove by a signature over the handshake.
#[derive(Debug)]
struct Pin {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Pin {
    fn of(certificate: &CertificateDer<'static>) -> Pin {
        Pin { certificate: certificate.clone(), provider: Arc::new(rustls::crypto::ring::default_provider()) }
    }

    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        if *presented == self.certificate {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }
}

/// Only TLS 1.3 is spoken.
fn earlier_version() -> Error {
    Error::General("TLS 1.2 is not spoken".to_owned())
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(earlier_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Pin {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(earlier_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes frames out of a connection.
pub struct PinnedReader<S> {
    from: ReadHalf<TlsStream<S>>,
    frame_bytes_max: usize,
}

/// Puts frames into a connection.
pub struct PinnedWriter<S> {
    to: WriteHalf<TlsStream<S>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PinnedReader<S> {
    /// Takes no longer frames from now on, nor any longer than [`FRAME_BYTES_MAX`]: what the other side may have in memory here.
    pub fn limit_frames(&mut self, bytes_max: usize) {
        self.frame_bytes_max = bytes_max.min(FRAME_BYTES_MAX);
    }

    /// The next frame; none when the other side is gone between two. Not cancel safe.
    ///
    /// # Errors
    /// When the connection breaks within a frame, or bytes were altered on the way; nothing after that can be read.
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>, PinnedError> {
        let mut length = [0; 4];
        match self.from.read(&mut length).await {
            Ok(0) => return Ok(None),
            Ok(read) => self.from.read_exact(&mut length[read..]).await?,
            // A process that is gone has closed nothing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > self.frame_bytes_max {
            return Err(PinnedError::Long { bytes: length, bytes_max: self.frame_bytes_max });
        }
        let mut frame = Vec::new();
        (&mut self.from).take(length as u64).read_to_end(&mut frame).await?;
        if frame.len() != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(Some(frame))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> PinnedWriter<S> {
    /// Sends a frame.
    ///
    /// # Errors
    /// When it is too long, or the connection breaks.
    pub async fn write(&mut self, frame: &[u8]) -> Result<(), PinnedError> {
        let length = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= FRAME_BYTES_MAX);
        let length = length.ok_or(PinnedError::Long { bytes: frame.len(), bytes_max: FRAME_BYTES_MAX })?;
        self.to.write_all(&length.to_le_bytes()).await?;
        self.to.write_all(frame).await?;
        self.to.flush().await?;
        Ok(())
    }
}

fn halves<S: AsyncRead + AsyncWrite + Unpin>(stream: TlsStream<S>) -> (PinnedReader<S>, PinnedWriter<S>) {
    let (from, to) = split(stream);
    (PinnedReader { from, frame_bytes_max: FRAME_BYTES_MAX }, PinnedWriter { to })
}

/// Opens a connection under a name that the other side knows the identity by. Whether that side took this one's
/// certificate shows with the first frame that it answers.
///
/// # Errors
/// When the connection breaks, the other side does not hold the identity, or the name cannot be stated.
pub async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    name: &str,
    identity: &SharedIdentity,
) -> Result<(PinnedReader<S>, PinnedWriter<S>), PinnedError> {
    if name.is_empty() || name.len() > PINNED_NAME_BYTES_MAX {
        return Err(PinnedError::Name);
    }
    let address = ServerName::try_from("pinned.muster.internal").map_err(|_| PinnedError::Name)?;
    let connector = TlsConnector::from(Arc::new(identity.client(name)?));
    Ok(halves(connector.connect(address, stream).await?.into()))
}

/// A caller that has stated a name, and proved nothing yet.
pub struct Greeted<S> {
    /// What it states.
    pub name: String,
    hello: StartHandshake<S>,
}

/// Takes the name that a caller states.
///
/// # Errors
/// When the connection breaks, or what comes is no hello with one name.
pub async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Result<Greeted<S>, PinnedError> {
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
    let mut names = hello.client_hello().alpn().into_iter().flatten().map(<[u8]>::to_vec);
    let (Some(name), None) = (names.next(), names.next()) else { return Err(PinnedError::Name) };
    drop(names);
    let name = String::from_utf8(name).map_err(|_| PinnedError::Name)?;
    Ok(Greeted { name, hello })
}

impl<S: AsyncRead + AsyncWrite + Unpin> Greeted<S> {
    /// Goes on with the identity that belongs to the name.
    ///
    /// # Errors
    /// When the connection breaks, or the caller does not hold the identity.
    pub async fn accept(
        self,
        identity: &SharedIdentity,
    ) -> Result<(PinnedReader<S>, PinnedWriter<S>), PinnedError> {
        let config = identity.server(&self.name)?;
        Ok(halves(self.hello.into_stream(Arc::new(config)).await?.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    type Ends = (PinnedReader<DuplexStream>, PinnedWriter<DuplexStream>);

    async fn pair(
        caller: &SharedIdentity,
        called: &SharedIdentity,
    ) -> (Result<Ends, PinnedError>, Result<Ends, PinnedError>) {
        let (near, far) = duplex(1 << 20);
        tokio::join!(dial(near, "job-3f.1.2 on n1", caller), async {
            let greeted = greet(far).await?;
            assert_eq!(greeted.name, "job-3f.1.2 on n1");
            greeted.accept(called).await
        })
    }

    #[tokio::test]
    async fn frames_arrive_whole_and_in_order_both_ways() {
        let identity = SharedIdentity::generate().unwrap();
        let read_again = serde_json::from_str(&serde_json::to_string(&identity).unwrap()).unwrap();
        let (near, far) = pair(&identity, &read_again).await;
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.unwrap(), far.unwrap());
        for size in [0, 1, 1_000, 100_000] {
            near_out.write(&vec![7; size]).await.unwrap();
            assert_eq!(far_in.read().await.unwrap().unwrap(), vec![7; size]);
            far_out.write(&vec![8; size]).await.unwrap();
            assert_eq!(near_in.read().await.unwrap().unwrap(), vec![8; size]);
        }
        drop((near_in, near_out));
        assert!(far_in.read().await.unwrap().is_none());
    }

    /// The caller sees it as soon as the called side presents its certificate, and so proves nothing to it.
    #[tokio::test]
    async fn another_identity_is_not_accepted_by_either_end() {
        let (one, other) = (SharedIdentity::generate().unwrap(), SharedIdentity::generate().unwrap());
        let (near, far) = pair(&one, &other).await;
        assert!(near.is_err() && far.is_err());
    }

    /// The certificate is in the clear of nobody, but who has seen it all the same is not let in with another key.
    #[tokio::test]
    async fn the_certificate_without_its_key_is_worth_nothing() {
        let (one, other) = (SharedIdentity::generate().unwrap(), SharedIdentity::generate().unwrap());
        let thief = SharedIdentity { certificate: one.certificate.clone(), key: other.key };
        let (near, far) = pair(&thief, &one).await;
        assert!(near.is_err() && far.is_err());
        let (near, far) = pair(&one, &thief).await;
        assert!(near.is_err() && far.is_err());
    }

    /// A caller with no certificate, as any TLS client is one.
    #[tokio::test]
    async fn a_caller_that_presents_nothing_is_refused() {
        let identity = SharedIdentity::generate().unwrap();
        let (certificate, _) = identity.parse().unwrap();
        let pin = Pin::of(&certificate);
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&pin.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pin))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"it".to_vec()];
        let (near, far) = duplex(1 << 20);
        let address = ServerName::try_from("x.example").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let (_near, far) = tokio::join!(connector.connect(address, near), async {
            greet(far).await?.accept(&identity).await
        });
        assert!(far.is_err());
    }

    /// Bytes from the network that are no hello, or one that states no name.
    #[tokio::test]
    async fn other_protocols_are_refused() {
        let (mut near, far) = duplex(1 << 10);
        near.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert!(matches!(greet(far).await, Err(PinnedError::Io(_))));
        let identity = SharedIdentity::generate().unwrap();
        let mut config = identity.client("it").unwrap();
        for names in [vec![], vec![b"a".to_vec(), b"b".to_vec()], vec![vec![0xff]]] {
            config.alpn_protocols = names;
            let (near, far) = duplex(1 << 20);
            let address = ServerName::try_from("x.example").unwrap();
            let connector = TlsConnector::from(Arc::new(config.clone()));
            let calling = tokio::spawn(async move { connector.connect(address, near).await.map(drop) });
            assert!(matches!(greet(far).await, Err(PinnedError::Name)));
            assert!(calling.await.unwrap().is_err());
        }
    }

    #[tokio::test]
    async fn lengths_are_bounded_and_torn_frames_are_errors() {
        let identity = SharedIdentity::generate().unwrap();
        for bytes in [&[0xff, 0xff, 0xff, 0xff, 1][..], &[100, 0, 0, 0, 1, 2][..]] {
            let (near, far) = pair(&identity, &identity).await;
            let ((near_in, mut near_out), (mut far_in, mut far_out)) = (near.unwrap(), far.unwrap());
            near_out.to.write_all(bytes).await.unwrap();
            near_out.to.flush().await.unwrap();
            drop((near_in, near_out));
            assert!(matches!(far_in.read().await, Err(PinnedError::Long { .. } | PinnedError::Io(_))));
            let long = far_out.write(&vec![0; FRAME_BYTES_MAX + 1]).await;
            assert!(matches!(long, Err(PinnedError::Long { .. })));
        }
        let (near, far) = pair(&identity, &identity).await;
        let ((_near_in, mut near_out), (mut far_in, _far_out)) = (near.unwrap(), far.unwrap());
        far_in.limit_frames(4);
        for frame in [&b"four"[..], b"longer"] {
            near_out.write(frame).await.unwrap();
        }
        assert_eq!(far_in.read().await.unwrap().as_deref(), Some(&b"four"[..]));
        let long = far_in.read().await;
        assert!(matches!(long, Err(PinnedError::Long { bytes: 6, bytes_max: 4 })));
        let (near, _far) = duplex(1 << 20);
        let long = dial(near, &"n".repeat(PINNED_NAME_BYTES_MAX + 1), &identity).await;
        assert!(matches!(long, Err(PinnedError::Name)));
    }
}
