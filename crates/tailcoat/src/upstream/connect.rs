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
use super::shared::{Location, Server};
use super::stream::Stream;
use crate::config::ProxyProtocol;

/// How long is waited before a unix socket whose queue is full is tried again. Nothing tells when it has room.
const FULL_QUEUE_INTERVAL: Duration = Duration::from_millis(5);

/// Opens a connection, and sends `preamble` on it.
///
/// # Errors
/// `Unreachable`, `ConnectTimeout` if it does not come about within `limit`, or `NotResolved`.
pub(super) async fn connect(server: &Server, limit: Duration, preamble: &[u8]) -> Result<Stream, AcquireError> {
    let deadline = Instant::now() + limit;
    let connect = async {
        let mut stream = match &server.location {
            Location::Tcp { addresses, .. } => Stream::Tcp(connect_tcp(addresses, deadline).await?),
            Location::Unix(path) => Stream::Unix(connect_unix(path).await?),
        };
        if !preamble.is_empty() {
            stream.write_all(preamble).await?;
        }
        Ok(stream)
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
