//! Upstreams: from a request to forward to a connection to a server that may take it. Balance and health choose the
//! server; the connection is a kept one or a new one; requests queue while servers have reached their limits.
//!
//! [`SharedUpstream`] is the state that all workers share; [`Upstream`] is a worker's own, with its kept connections.
//! [`Upstream::acquire`] returns a [`Lease`] of a connection. [`keep`] does the background work once for all workers.

mod acquire;
mod addresses;
mod balance;
mod check;
mod connect;
mod discovered;
mod health;
mod http2;
mod keeper;
mod lease;
mod pool;
mod server;
mod server_set;
mod shared;
mod sticky;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod tried;
mod worker_server;

use std::fmt;
use std::io;
use std::rc::Rc;

pub use acquire::{Acquire, AcquireOptions, Leased, Upstream};
pub use balance::hash_key;
pub use discovered::DiscoveryState;
pub use http2::{H2UpstreamTunnel, ResponsePiece, StreamFailure, StreamLease};
pub use keeper::{AddressLookup, keep, system_lookup};
pub use lease::{Ending, Lease, UpstreamFailure, UpstreamTunnel};
pub use pool::ClientConnectionId;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
pub use server::{ServerId, ServerState};
pub use shared::{NoTlsSettings, SharedUpstream};
pub use sticky::StickyField;
use tailcoat_config as config;
use tailcoat_limits::{fair_queue, memory_budget, overload};
use tailcoat_observe::{log, metrics};
pub use tls::client_config;
pub use tried::Tried;
use wire::http::Status;

use crate::overload::Overload;

/// Reason to reject a server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateProblem {
    /// No trusted CA has issued it.
    UnknownCa,
    /// Valid until a time in the past.
    Expired,
    /// Valid from a time in the future.
    NotYetValid,
    /// Valid for other names than the server's.
    OtherName,
    /// Another problem, such as a wrong signature or purpose.
    Invalid,
}

/// Reason that a request got no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireError {
    /// No server is up, or all that are up have failed this request.
    NoServer,
    /// All servers have reached their limit of connections, and the queue is full.
    QueueFull,
    /// The request waited in the queue for too long.
    QueueTimeout,
    /// The queue is overloaded, and the request has waited for too long, or a newer one takes its place.
    QueueOverloaded,
    /// Connecting failed: the server rejects it, or there is no route.
    Unreachable(io::ErrorKind),
    /// The server's unix socket does not exist.
    NoSocket,
    /// This process must not connect to the server's unix socket.
    SocketDenied,
    /// The server's unix socket exists, but no process accepts connections from it.
    SocketUnused,
    /// This process has no file descriptor, memory or port left for a connection.
    Exhausted,
    /// The connection was not established in time.
    ConnectTimeout,
    /// The server's name has no address.
    NotResolved,
    /// The server's certificate does not prove its name.
    Untrusted(CertificateProblem),
    /// The TLS handshake failed for another reason.
    NoTls,
}

impl AcquireError {
    /// Status of the response to the client (RFC 9110, section 15.6).
    pub fn status(self) -> Status {
        match self {
            Self::NoServer | Self::QueueFull | Self::QueueTimeout | Self::QueueOverloaded | Self::Exhausted => {
                Status::SERVICE_UNAVAILABLE
            }
            Self::Unreachable(_)
            | Self::NoSocket
            | Self::SocketDenied
            | Self::SocketUnused
            | Self::NotResolved
            | Self::Untrusted(_)
            | Self::NoTls => Status::BAD_GATEWAY,
            Self::ConnectTimeout => Status::GATEWAY_TIMEOUT,
        }
    }
}

impl AcquireError {
    /// Value of Retry-After in seconds (RFC 9110, section 10.2.3), for errors with status 503.
    pub fn retry_after_seconds(self, config: &config::UpstreamConfig) -> Option<u64> {
        match self {
            Self::NoServer => Some(config.eject_time.as_secs().max(1)),
            Self::QueueFull | Self::QueueTimeout | Self::QueueOverloaded => Some(Overload::retry_after_seconds()),
            Self::Exhausted => Some(1),
            Self::Unreachable(_)
            | Self::NoSocket
            | Self::SocketDenied
            | Self::SocketUnused
            | Self::NotResolved
            | Self::ConnectTimeout
            | Self::Untrusted(_)
            | Self::NoTls => None,
        }
    }

    /// Advice for the operator, or an empty text.
    pub fn help(self) -> &'static str {
        match self {
            Self::NoSocket => "is the application running, and is this the path of its socket?",
            Self::SocketDenied => {
                "give this server's user write permission for the socket, and `x` on the directories above it"
            }
            Self::SocketUnused => "is the application running?",
            Self::Untrusted(CertificateProblem::UnknownCa) => "name its CA in `tls-ca-file`",
            Self::Untrusted(CertificateProblem::Expired) => "renew it on the server",
            Self::Untrusted(CertificateProblem::NotYetValid) => "check the clocks of both machines",
            Self::Untrusted(CertificateProblem::OtherName) => "set `tls-server-name` to a name in it",
            Self::NoServer
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::QueueOverloaded
            | Self::Unreachable(_)
            | Self::Exhausted
            | Self::ConnectTimeout
            | Self::NotResolved
            | Self::Untrusted(CertificateProblem::Invalid)
            | Self::NoTls => "",
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
            Self::NoSocket => f.write_str("no such socket"),
            Self::SocketDenied => f.write_str("cannot connect to the socket: permission denied"),
            Self::SocketUnused => f.write_str("no process listens on the socket"),
            Self::Untrusted(problem) => f.write_str(match problem {
                CertificateProblem::UnknownCa => "no trusted CA has issued the server's certificate",
                CertificateProblem::Expired => "the server's certificate has expired",
                CertificateProblem::NotYetValid => "the server's certificate is not valid yet",
                CertificateProblem::OtherName => "the server's certificate is for other names",
                CertificateProblem::Invalid => "the server's certificate is invalid",
            }),
            Self::NoTls => f.write_str("the TLS handshake failed"),
        }
    }
}

impl std::error::Error for AcquireError {}

/// Failure to get a connection.
#[derive(Clone, Debug)]
pub struct AcquireFailure {
    /// Reason.
    pub error: AcquireError,
    /// Name of the server that failed last; `None` if none was tried.
    pub server: Option<Rc<str>>,
}

impl From<AcquireError> for AcquireFailure {
    fn from(error: AcquireError) -> Self {
        Self { error, server: None }
    }
}

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
