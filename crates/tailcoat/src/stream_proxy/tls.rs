//! Connections of TLS, by the server name of their ClientHello.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use routes::{ClientValidation, HostTable, Listener};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::Acceptor;
use rustls::sign::SingleCertAndKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{Counted, IDLE_TIMEOUT, Shared, TlsListener, relay};
use crate::config::{AcceptedClients, Certificate};
use crate::metrics::StreamRejection;
use crate::tls::client_verifier;

/// Length of a ClientHello, at most, with the headers of its records.
const HELLO_BYTES_MAX: usize = 0xffff;

/// Time for the ClientHello, and for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of handshakes that end here: one for each certificate.
#[derive(Debug)]
pub(crate) struct StreamTls {
    settings: Vec<(Certificate, Arc<ServerConfig>)>,
}

impl StreamTls {
    /// Settings of a listener.
    ///
    /// # Errors
    /// A certificate or CA is not valid.
    pub(crate) fn new(listener: &Listener) -> Result<Self, String> {
        let provider = Arc::new(default_provider());
        let verifier = match &listener.client_validation {
            None => None,
            Some(validation) => Some(client_verifier(roots(&validation.authorities)?, accepted_clients(validation))),
        };
        let setting = |of: &routes::Certificate| {
            let certificate = Certificate::from_pem(of.chain.as_bytes(), of.key.as_bytes());
            let certificate = certificate.map_err(|fault| fault.to_string())?;
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
            let builder = match &verifier {
                None => builder.with_no_client_auth(),
                Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
            };
            let resolver = Arc::new(SingleCertAndKey::from(Arc::clone(&certificate.key)));
            Ok((certificate, Arc::new(builder.with_cert_resolver(resolver))))
        };
        let settings = listener.certificates.iter().map(setting).collect::<Result<Vec<_>, String>>()?;
        if settings.is_empty() { Err("there is no certificate".to_owned()) } else { Ok(Self { settings }) }
    }

    /// Settings for a server name: those of a certificate for it, otherwise the first.
    fn find(&self, name: &str) -> Option<&Arc<ServerConfig>> {
        let found = self.settings.iter().find(|(certificate, _)| certificate.is_for(name));
        found.or(self.settings.first()).map(|(_, config)| config)
    }
}

/// Clients that a listener with client certificates accepts.
pub(crate) fn accepted_clients(validation: &ClientValidation) -> AcceptedClients {
    if validation.allows_invalid { AcceptedClients::All } else { AcceptedClients::Verified }
}

/// CA certificates of a PEM text.
fn roots(text: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("there is no CA certificate".to_owned()) } else { Ok(roots) }
}

/// Forwards a connection to the target of its server name. A connection for an unknown name is closed.
pub(super) async fn forward(
    mut client: TcpStream,
    hosts: &HostTable<TlsListener>,
    shared: &Shared,
    counted: &mut Counted,
) {
    let Ok(Ok((name, hello))) = timeout(HANDSHAKE_TIMEOUT, read_hello(&mut client)).await else {
        return shared.metrics.reject(StreamRejection::Hello);
    };
    forward_hello(client, hosts, (&name, hello), shared, counted).await;
}

/// Forwards a connection whose ClientHello was read, with its server name.
pub(super) async fn forward_hello(
    client: TcpStream,
    hosts: &HostTable<TlsListener>,
    (name, hello): (&str, Vec<u8>),
    shared: &Shared,
    counted: &mut Counted,
) {
    let listener = hosts.all(name.as_bytes()).next();
    let target = listener.and_then(|listener| Some((listener, listener.targets.all(name.as_bytes()).next()?)));
    let Some((listener, target)) = target else { return shared.metrics.reject(StreamRejection::ServerName) };
    let idle_timeout = target.idle_timeout.unwrap_or(IDLE_TIMEOUT);
    match listener.tls.as_ref() {
        None => {
            let Some(mut server) = shared.connect(target, counted).await else { return };
            if server.write_all(&hello).await.is_ok() {
                counted.on_bytes(hello.len() as u64, 0);
                relay::relay(client, server, idle_timeout, counted).await;
            }
        }
        Some(tls) => {
            let Some(config) = tls.find(name) else { return };
            let client = Replayed { bytes: hello, at: 0, socket: client };
            let handshake = TlsAcceptor::from(Arc::clone(config)).accept(client);
            let Ok(Ok(client)) = timeout(HANDSHAKE_TIMEOUT, handshake).await else { return };
            let Some(server) = shared.connect(target, counted).await else { return };
            relay::relay(client, server, idle_timeout, counted).await;
        }
    }
}

/// Reads a whole ClientHello; returns its server name in lower case, empty without one, and the bytes.
async fn read_hello(client: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let (mut bytes, mut acceptor) = (Vec::new(), Acceptor::default());
    loop {
        if bytes.len() >= HELLO_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let start = bytes.len();
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut new = &bytes[start..];
        while !new.is_empty() {
            acceptor.read_tls(&mut new)?;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().unwrap_or_default().to_ascii_lowercase();
                return Ok((name, bytes));
            }
            Err(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A socket whose first bytes were read already.
struct Replayed {
    bytes: Vec<u8>,
    at: usize,
    socket: TcpStream,
}

impl AsyncRead for Replayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.at < self.bytes.len() {
            let length = buffer.remaining().min(self.bytes.len() - self.at);
            buffer.put_slice(&self.bytes[self.at..self.at + length]);
            self.at += length;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Replayed {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
