//! Calling a replica.

use crate::address::Scheme;
use crate::name::Expect;
use crate::security::{Security, Tls};
use crate::validity::{PeerKind, Validity, over};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::{Service, http::Uri};

/// How long a handshake may take; the caller's own patience may be shorter.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

impl Security {
    /// Makes connections, for `Endpoint::connect_with_connector` and its lazy sister: verifies chain and
    /// name of who answers, whatever the address says.
    #[must_use]
    pub fn connector(&self, expect: Expect) -> Connector {
        Connector { security: self.clone(), expect }
    }
}

/// Makes connections to replicas.
#[derive(Clone, Debug)]
pub struct Connector {
    security: Security,
    expect: Expect,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ClientConnection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Connector { security, expect } = self.clone();
        Box::pin(async move { connect(&security, expect, &uri).await.map(TokioIo::new) })
    }
}

async fn connect(security: &Security, expect: Expect, uri: &Uri) -> io::Result<ClientConnection> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    // The callers have checked it; a second look costs nothing and keeps plaintext from slipping through.
    security.address(&uri.to_string()).map_err(|error| invalid(error.to_string()))?;
    let host = uri.host().ok_or_else(|| invalid(format!("{uri} names no host")))?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let usual = if security.scheme() == Scheme::Https { 443 } else { 80 };
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(usual))).await?;
    stream.set_nodelay(true)?;
    match security {
        Security::Plaintext => {
            Ok(ClientConnection { io: Io::Plain(stream), validity: None, is_unread: true })
        }
        Security::Tls(tls) => secure(tls, expect, stream).await,
    }
}

async fn secure(tls: &Tls, expect: Expect, stream: TcpStream) -> io::Result<ClientConnection> {
    let changes = tls.changes();
    let config = tls.material().client(expect).map_err(io::Error::other)?;
    // The name is not looked at: who answers is told by the URI in its certificate.
    let name = ServerName::try_from("muster").map_err(io::Error::other)?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let stream = tokio::time::timeout(HANDSHAKE_MAX, handshake)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer to the TLS handshake"))?
        .map_err(explain)?;
    let chain: Vec<_> = stream
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|c| c.clone().into_owned())
        .collect();
    let not_after = match chain.first().map(crate::verify::facts) {
        Some(Ok(facts)) => facts.not_after,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the replica showed no certificate")),
    };
    let validity = Validity::new(tls.clone(), changes, chain, not_after, PeerKind::Server(expect));
    Ok(ClientConnection { io: Io::Tls(Box::new(stream)), validity: Some(validity), is_unread: true })
}

/// What the library says of a peer that does not speak TLS at all helps nobody.
fn explain(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => io::Error::new(
            io::ErrorKind::InvalidData,
            "what answers there does not speak TLS; a plaintext cluster is reached by http:// without ca, cert and key",
        ),
        Some(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired)) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the replica takes no caller without a certificate: give --cert and --key; it takes tokens where its \
             configuration has `tokens = true`",
        ),
        Some(rustls::Error::AlertReceived(alert)) => {
            let text = format!("the replica refuses this certificate (alert {alert:?})");
            io::Error::new(io::ErrorKind::PermissionDenied, text)
        }
        _ => error,
    }
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection to a replica.
pub struct ClientConnection {
    io: Io,
    validity: Option<Validity>,
    /// Nothing was read so far.
    is_unread: bool,
}

/// The first byte of what a TLS server says to somebody who does not speak TLS: a record that is an alert.
const ALERT_RECORD: u8 = 21;

/// The first bytes that a plaintext connection brings; an error that helps where they are those of TLS.
fn check_plaintext(first: &[u8]) -> io::Result<()> {
    if first.first() != Some(&ALERT_RECORD) {
        return Ok(());
    }
    let text = "what answers there speaks TLS; give --ca, --cert and --key, or name an endpoint without TLS";
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

impl AsyncRead for ClientConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(validity) = &mut self.validity
            && validity.poll_over(context).is_ready()
        {
            return Poll::Ready(Err(over()));
        }
        match &mut self.io {
            Io::Plain(stream) => {
                let before = buffer.filled().len();
                let read = Pin::new(stream).poll_read(context, buffer);
                match buffer.filled().get(before..) {
                    Some(first) if self.is_unread && !first.is_empty() => {
                        check_plaintext(first)?;
                        self.is_unread = false;
                        read
                    }
                    _ => read,
                }
            }
            // A certificate that the replica refuses is refused after the handshake.
            Io::Tls(stream) => Pin::new(stream).poll_read(context, buffer).map_err(explain),
        }
    }
}

impl AsyncWrite for ClientConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(context),
            Io::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plaintext_client_is_told_that_a_cluster_speaks_tls() {
        // An alert as a TLS server answers what is no handshake: unexpected message.
        let alert = [ALERT_RECORD, 3, 3, 0, 2, 2, 10];
        let error = check_plaintext(&alert).expect_err("HTTP/2 does not begin like this");
        assert!(error.to_string().contains("speaks TLS; give --ca"), "{error}");
        // The settings that an HTTP/2 server begins with.
        check_plaintext(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).expect("a server without certificates");
        check_plaintext(&[]).expect("nothing was read so far");
    }
}
