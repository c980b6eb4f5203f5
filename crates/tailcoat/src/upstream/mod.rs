//! From "this request is to be forwarded" to "here is a connection to a server that may take it": which server, by
//! balance and health; a kept connection or a new one; a queue where servers have as many as they may.
//!
//! [`SharedUpstream`] is what all workers know of the servers; [`Upstream`] is a worker's own, with its kept connections.
//! [`Upstream::acquire`] gives a [`Lease`] of a connection. What has to be done now and then, once for all workers, is
//! done by [`keep`].

mod acquire;
mod addresses;
mod balance;
mod check;
mod connect;
mod health;
mod http2;
mod keeper;
mod lease;
mod pool;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod tried;

use std::fmt;
use std::io;

pub use acquire::{Acquire, Leased, Upstream, Wanted};
pub use balance::hash_key;
pub use http2::{ResponsePiece, StreamFailure, StreamLease, StreamTunnel};
pub use keeper::{Lookup, keep, system_lookup};
pub use lease::{Ending, Failure, Lease, Tunnel};
pub use pool::ClientConnection;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
pub use shared::{ServerState, SharedUpstream};
pub use tried::Tried;
use wire::http::Status;

use crate::config;
use crate::overload::Overload;

/// Why there is no connection for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireError {
    /// No server is up, or all that are have failed the request already.
    NoServer,
    /// All servers have as many connections in use as they may, and the queue is full.
    QueueFull,
    /// A place in the queue was waited for too long.
    QueueTimeout,
    /// The queue is overloaded, and the request has waited for too long, or a newer one takes its place.
    QueueOverloaded,
    /// The server could not be connected to: it refuses, or there is no way to it.
    Unreachable(io::ErrorKind),
    /// This process has no descriptor, memory or port left for a connection.
    Exhausted,
    /// The connection did not come about in time.
    ConnectTimeout,
    /// The server's name has no address.
    NotResolved,
    /// The server has not proved to be the one that was asked for.
    Untrusted,
    /// There is no common way to speak TLS.
    NoTls,
}

impl AcquireError {
    /// The status that a client is answered with (RFC 9110, section 15.6).
    pub fn status(self) -> Status {
        match self {
            Self::NoServer | Self::QueueFull | Self::QueueTimeout | Self::QueueOverloaded | Self::Exhausted => {
                Status::SERVICE_UNAVAILABLE
            }
            Self::Unreachable(_) | Self::NotResolved | Self::Untrusted | Self::NoTls => Status::BAD_GATEWAY,
            Self::ConnectTimeout => Status::GATEWAY_TIMEOUT,
        }
    }
}

impl AcquireError {
    /// When it may be worth while to ask again (RFC 9110, section 10.2.3), for those that a 503 is answered with.
    pub fn retry_after_seconds(self, config: &config::Upstream) -> Option<u64> {
        match self {
            Self::NoServer => Some(config.eject_time.as_secs().max(1)),
            Self::QueueFull | Self::QueueTimeout | Self::QueueOverloaded => Some(Overload::retry_after_seconds()),
            Self::Exhausted => Some(1),
            Self::Unreachable(_) | Self::NotResolved | Self::ConnectTimeout | Self::Untrusted | Self::NoTls => None,
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServer => f.write_str("no server is up"),
            Self::QueueFull => f.write_str("all servers are busy, and the queue is full"),
            Self::QueueTimeout => f.write_str("all servers are busy"),
            Self::QueueOverloaded => f.write_str("all servers are busy, and the queue is overloaded"),
            Self::Unreachable(kind) => write!(f, "cannot connect: {kind}"),
            Self::Exhausted => f.write_str("no file descriptor, memory or port is left for a connection"),
            Self::ConnectTimeout => f.write_str("no connection in time"),
            Self::NotResolved => f.write_str("the server's name has no address"),
            Self::Untrusted => f.write_str("the server's certificate is not trusted for its name"),
            Self::NoTls => f.write_str("the TLS handshake failed"),
        }
    }
}

impl std::error::Error for AcquireError {}

/// Milliseconds of the monotonic clock, as workers count them.
fn monotonic_ms() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec * 1_000 + time.tv_nsec / 1_000_000) as u64
}

impl From<io::Error> for AcquireError {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::ADDRNOTAVAIL) => Self::Exhausted,
            Some(Errno::TIMEDOUT) => Self::ConnectTimeout,
            _ if error.kind() == io::ErrorKind::TimedOut => Self::ConnectTimeout,
            _ => Self::Unreachable(error.kind()),
        }
    }
}
