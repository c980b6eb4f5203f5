//! Opens connections to servers.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};
use wire::proxy_protocol::{Endpoints, write_v1, write_v2};

use super::AcquireError;
use super::addresses::UpstreamAddresses;
use super::server::{SharedServer, UpstreamLocation, UpstreamProtocol};
use super::stream::UpstreamStream;
use super::tls::{ClientTls, has_chosen_http2};
use crate::config::ProxyProtocol;

/// Wait before a unix socket with a full queue is tried again; the kernel gives no signal when it has room.
const FULL_QUEUE_INTERVAL: Duration = Duration::from_millis(5);

/// Options of a new connection.
#[derive(Clone, Copy)]
pub(super) struct ConnectRequest<'a> {
    /// Time limit for the connection and its TLS handshake.
    pub(super) limit: Duration,
    /// Bytes sent first: the PROXY protocol header, or none.
    pub(super) preamble: &'a [u8],
    /// TLS settings, used if the server's address asks for TLS.
    pub(super) tls: Option<&'a ClientTls>,
    /// True if HTTP/2 must not be negotiated.
    pub(super) wants_http1: bool,
}

/// Opens a connection. Returns it, and whether it speaks HTTP/2.
///
/// # Errors
/// `Unreachable`, `NoSocket`, `SocketDenied`, `SocketUnused`, `Exhausted`, `ConnectTimeout` if the time limit passes,
/// `NotResolved`, `Untrusted`, `NoTls`.
pub(super) async fn connect(
    server: &SharedServer,
    opened: ConnectRequest<'_>,
) -> Result<(UpstreamStream, bool), AcquireError> {
    let deadline = Instant::now() + opened.limit;
    let connect = async {
        let mut stream = match &server.location {
            UpstreamLocation::Tcp { addresses, .. } => UpstreamStream::Tcp(connect_tcp(addresses, deadline).await?),
            UpstreamLocation::Unix(path) => UpstreamStream::Unix(connect_unix(path).await?),
        };
        if !opened.preamble.is_empty() {
            stream.write_all(opened.preamble).await?;
        }
        match (stream, opened.tls, &server.location) {
            (UpstreamStream::Tcp(socket), Some(tls), UpstreamLocation::Tcp { host, .. })
                if server.protocol == UpstreamProtocol::Negotiated =>
            {
                let stream = tls.connect(socket, host, opened.wants_http1).await?;
                let is_http2 = has_chosen_http2(&stream);
                Ok((UpstreamStream::Tls(Box::new(stream)), is_http2))
            }
            (stream, ..) => Ok((stream, server.protocol == UpstreamProtocol::Http2)),
        }
    };
    timeout_at(deadline, connect).await.unwrap_or(Err(AcquireError::ConnectTimeout))
}

/// Builds the PROXY protocol header, if a version is configured. Without endpoints, it says that there is no client.
pub(super) fn proxy_preamble(version: Option<ProxyProtocol>, endpoints: Option<Endpoints>) -> Vec<u8> {
    let mut preamble = Vec::new();
    match version {
        Some(ProxyProtocol::V1) => write_v1(&mut preamble, endpoints),
        Some(ProxyProtocol::V2) => write_v2(&mut preamble, endpoints),
        None => {}
    }
    preamble
}

/// Connects to the first address that accepts. Each attempt gets an equal share of the time left, so that an address
/// without a response does not use up the others' time.
async fn connect_tcp(addresses: &UpstreamAddresses, deadline: Instant) -> Result<TcpStream, AcquireError> {
    let sockets = addresses.get().await;
    let mut error = AcquireError::NotResolved;
    for (index, &socket) in sockets.iter().enumerate() {
        let now = Instant::now();
        let limit = deadline.saturating_duration_since(now) / (sockets.len() - index) as u32;
        let result = timeout_at(now + limit, connect_to(socket)).await;
        addresses.note(socket, matches!(result, Ok(Ok(_))), Instant::now());
        match result {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(rejected)) => error = rejected.into(),
            Err(_) => error = AcquireError::ConnectTimeout,
        }
    }
    Err(error)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Heads and pieces of content are sent as soon as they are written.
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

/// Retries while the queue is full. TCP would retransmit its SYN; on a unix socket connect fails with EAGAIN
/// (unix(7)).
async fn connect_unix(path: &Path) -> Result<UnixStream, AcquireError> {
    loop {
        let error = match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        return Err(match error.kind() {
            io::ErrorKind::WouldBlock => {
                sleep(FULL_QUEUE_INTERVAL).await;
                continue;
            }
            io::ErrorKind::NotFound => AcquireError::NoSocket,
            io::ErrorKind::PermissionDenied => AcquireError::SocketDenied,
            io::ErrorKind::ConnectionRefused => AcquireError::SocketUnused,
            _ => error.into(),
        });
    }
}
