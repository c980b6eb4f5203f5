//! Opening a connection to a server.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};
use wire::proxy_protocol::{Endpoints, write_v1, write_v2};

use super::AcquireError;
use super::addresses::Addresses;
use super::shared::{Location, Protocol, Server};
use super::stream::Stream;
use super::tls::{ClientTls, has_chosen_http2};
use crate::config::ProxyProtocol;

/// How long is waited before a unix socket whose queue is full is tried again. Nothing tells when it has room.
const FULL_QUEUE_INTERVAL: Duration = Duration::from_millis(5);

/// What a connection is opened for.
#[derive(Clone, Copy)]
pub(super) struct Opened<'a> {
    /// How long it may take to come about.
    pub(super) limit: Duration,
    /// What is sent before all else.
    pub(super) preamble: &'a [u8],
    /// How TLS is spoken, if the server's address says so.
    pub(super) tls: Option<&'a ClientTls>,
    /// HTTP/2 is of no use.
    pub(super) wants_http1: bool,
}

/// Opens a connection. Says whether HTTP/2 is to be spoken on it.
///
/// # Errors
/// `Unreachable`, `Exhausted`, `ConnectTimeout` if it does not come about in time, `NotResolved`, `Untrusted`, `NoTls`.
pub(super) async fn connect(server: &Server, opened: Opened<'_>) -> Result<(Stream, bool), AcquireError> {
    let deadline = Instant::now() + opened.limit;
    let connect = async {
        let mut stream = match &server.location {
            Location::Tcp { addresses, .. } => Stream::Tcp(connect_tcp(addresses, deadline).await?),
            Location::Unix(path) => Stream::Unix(connect_unix(path).await?),
        };
        if !opened.preamble.is_empty() {
            stream.write_all(opened.preamble).await?;
        }
        match (stream, opened.tls, &server.location) {
            (Stream::Tcp(socket), Some(tls), Location::Tcp { host, .. }) if server.protocol == Protocol::Negotiated => {
                let stream = tls.connect(socket, host, opened.wants_http1).await?;
                let is_http2 = has_chosen_http2(&stream);
                Ok((Stream::Tls(Box::new(stream)), is_http2))
            }
            (stream, ..) => Ok((stream, server.protocol == Protocol::Http2)),
        }
    };
    timeout_at(deadline, connect).await.unwrap_or(Err(AcquireError::ConnectTimeout))
}

/// What a connection begins with where the client's address is told; without endpoints, that it has none.
pub(super) fn proxy_preamble(version: Option<ProxyProtocol>, endpoints: Option<Endpoints>) -> Vec<u8> {
    let mut preamble = Vec::new();
    match version {
        Some(ProxyProtocol::V1) => write_v1(&mut preamble, endpoints),
        Some(ProxyProtocol::V2) => write_v2(&mut preamble, endpoints),
        None => {}
    }
    preamble
}

/// Connects to the first address that lets itself be connected to. The time that is left is shared out among those not
/// yet tried, so that one that does not answer keeps no other from its turn.
async fn connect_tcp(addresses: &Addresses, deadline: Instant) -> Result<TcpStream, AcquireError> {
    let sockets = addresses.get().await;
    let mut error = AcquireError::NotResolved;
    for (index, &socket) in sockets.iter().enumerate() {
        let now = Instant::now();
        let limit = deadline.saturating_duration_since(now) / (sockets.len() - index) as u32;
        let result = timeout_at(now + limit, connect_to(socket)).await;
        addresses.note(socket, matches!(result, Ok(Ok(_))), Instant::now());
        match result {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(refused)) => error = refused.into(),
            Err(_) => error = AcquireError::ConnectTimeout,
        }
    }
    Err(error)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Heads and pieces of content are sent when they are there.
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

/// unix(7): where TCP would send its request again and again, connect fails with EAGAIN.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(FULL_QUEUE_INTERVAL).await,
            result => return result,
        }
    }
}
