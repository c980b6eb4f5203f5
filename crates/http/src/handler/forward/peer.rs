//! Peers of an exchange: a server of an upstream, or a program started for the request.

use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use wire::h1::BodyFraming;
use wire::http::forwarding::is_same_field;
use wire::http::{Method, Request, Status};

use super::hash_key_of;
use crate::config::ConnectionReuse;
use crate::handler::Routed;
use crate::handler::cgi::{CgiProcess, ProgramLaunch, ProgramStartError, Programs, Starting};
use crate::log::LogClient;
use crate::metrics::NameSlot;
use crate::overload::RequestCost;
use crate::upstream::{
    Acquire, AcquireFailure, AcquireOptions, ClientConnectionId, Ending, Lease, Leased, ServerId, StickyField,
    StreamLease, Tried, Upstream, UpstreamFailure, UpstreamTunnel,
};

/// Fields that proxies add about themselves and their clients (RFC 9110, section 7.6.3, and RFC 7239).
const PROXY_FIELDS: [&[u8]; 3] = [b"via", b"forwarded", b"x-forwarded-for"];

/// Destination of forwarded requests.
pub(super) enum Destination {
    /// Servers of an upstream.
    Servers(Rc<Upstream>),
    /// Programs started for each request.
    Programs(Programs),
}

/// A peer being connected or started.
pub(super) enum Connecting {
    Server(Acquire),
    Program(Starting),
}

/// A connected peer, by protocol.
pub(super) enum Connected {
    /// A byte stream.
    Peer(GatewayPeer),
    /// An HTTP/2 stream.
    Stream(StreamLease),
}

/// A peer that handles one request over a byte stream.
pub(super) enum GatewayPeer {
    Server(Lease),
    Program(Box<CgiProcess>),
}

/// Reason that an exchange got no peer.
pub(super) enum ConnectError {
    Server(AcquireFailure),
    Program(ProgramStartError),
}

impl Destination {
    /// Key for consistent hashing, if the upstream balances by one.
    pub(super) fn key(&self, routed: &Routed<'_>) -> Option<u64> {
        match self {
            Self::Servers(upstream) => hash_key_of(upstream.shared().config(), routed),
            Self::Programs(_) => None,
        }
    }

    /// Server that the client's cookie names, if sessions are sticky.
    pub(super) fn sticky(&self, routed: &Routed<'_>) -> Option<ServerId> {
        match self {
            Self::Servers(upstream) => upstream.sticky_server(&routed.request),
            Self::Programs(_) => None,
        }
    }

    /// True if cookies keep clients with a server.
    pub(super) fn is_sticky(&self) -> bool {
        matches!(self, Self::Servers(upstream) if upstream.shared().config().sticky.is_some())
    }

    /// Cost of a request to this destination.
    pub(super) fn cost(&self) -> RequestCost {
        match self {
            Self::Servers(_) => RequestCost::Upstream,
            Self::Programs(_) => RequestCost::Program,
        }
    }

    /// Number of the client connection, if kept connections may be reserved for it; `None` for a proxy, which speaks
    /// for several clients.
    pub(super) fn client_connection(&self, routed: &Routed<'_>) -> Option<ClientConnectionId> {
        let Self::Servers(upstream) = self else { return None };
        // Other requests only take a connection that was reserved before.
        let may_reserve = routed.request.method() == Method::Head
            || routed.link.link().framing() != BodyFraming::None
            || upstream.shared().config().reuse == ConnectionReuse::Never;
        let is_by_proxy = |request: &Request<'_>| {
            let mut fields = request.head.fields.iter().map(|field| field.name.of(request.bytes));
            fields.any(|name| PROXY_FIELDS.iter().any(|field| is_same_field(name, field)))
        };
        let speaks_for_many = routed.client == LogClient::Unix
            || routed.proxied.is_some()
            || (may_reserve && is_by_proxy(&routed.request));
        if speaks_for_many { None } else { routed.link.client_connection() }
    }

    /// Name for logs.
    pub(super) fn name(&self) -> &Rc<str> {
        match self {
            Self::Servers(upstream) => upstream.name(),
            Self::Programs(programs) => programs.name(),
        }
    }

    /// True if some server may speak HTTP/2.
    pub(super) fn may_speak_http2(&self) -> bool {
        matches!(self, Self::Servers(upstream) if upstream.may_speak_http2())
    }

    /// Slot in which its requests are counted.
    pub(super) fn counted(&self) -> NameSlot {
        match self {
            Self::Servers(upstream) => upstream.counted(),
            Self::Programs(_) => NameSlot::NONE,
        }
    }

    /// Most servers tried for a request.
    pub(super) fn tries_max(&self) -> usize {
        match self {
            Self::Servers(upstream) => upstream.shared().config().tries_max,
            Self::Programs(_) => 1,
        }
    }

    /// Begins to connect to a server, or to start the program in `launch`.
    pub(super) fn connect(
        &self,
        wanted: AcquireOptions,
        launch: Option<Box<ProgramLaunch>>,
        now_ms: u64,
    ) -> Connecting {
        match self {
            Self::Servers(upstream) => Connecting::Server(upstream.acquire(wanted, now_ms)),
            Self::Programs(programs) => Connecting::Program(programs.start(launch, wanted.client)),
        }
    }

    /// Value of Retry-After in seconds, if a retry may help.
    pub(super) fn retry_after_seconds(&self, error: &ConnectError) -> Option<u64> {
        match (self, error) {
            (Self::Servers(upstream), ConnectError::Server(failure)) => {
                failure.error.retry_after_seconds(upstream.shared().config())
            }
            (_, ConnectError::Program(ProgramStartError::Busy)) => Some(1),
            _ => None,
        }
    }
}

impl Connecting {
    pub(super) fn poll_connect(&mut self, task: &mut Task<'_>) -> Poll<Result<Connected, ConnectError>> {
        Poll::Ready(match self {
            Self::Server(acquire) => match ready!(acquire.poll_acquire(task)) {
                Ok(Leased::Connection(lease)) => Ok(Connected::Peer(GatewayPeer::Server(lease))),
                Ok(Leased::Stream(lease)) => Ok(Connected::Stream(lease)),
                Err(failure) => Err(ConnectError::Server(failure)),
            },
            Self::Program(starting) => ready!(starting.poll_start(task))
                .map(|process| Connected::Peer(GatewayPeer::Program(Box::new(process))))
                .map_err(ConnectError::Program),
        })
    }
}

impl ConnectError {
    /// Status of the response to the client.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Server(failure) => failure.error.status(),
            Self::Program(error) => error.status(),
        }
    }

    /// Advice for the operator, or an empty text.
    pub(super) fn help(&self) -> &'static str {
        match self {
            Self::Server(failure) => failure.error.help(),
            Self::Program(_) => "",
        }
    }

    /// Name of the server that failed last, if one was tried.
    pub(super) fn server(&self) -> Option<&str> {
        match self {
            Self::Server(failure) => failure.server.as_deref(),
            Self::Program(_) => None,
        }
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(failure) => failure.error.fmt(f),
            Self::Program(error) => error.fmt(f),
        }
    }
}

impl GatewayPeer {
    /// Reads as [`Lease::poll_read`] does.
    pub(super) fn poll_read(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Server(lease) => lease.poll_read(task, buffer),
            Self::Program(process) => process.poll_read(task, buffer),
        }
    }

    /// Writes as [`Lease::poll_write`] does.
    pub(super) fn poll_write(&mut self, task: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Server(lease) => lease.poll_write(task, bytes),
            Self::Program(process) => process.poll_write(task, bytes),
        }
    }

    /// Closes a program's input; servers see the end in the framing.
    pub(super) fn end_request(&mut self) {
        if let Self::Program(process) = self {
            process.end_input();
        }
    }

    /// True if [`Lease::is_reused`] is; programs never are.
    pub(super) fn is_reused(&self) -> bool {
        matches!(self, Self::Server(lease) if lease.is_reused())
    }

    /// True if [`Lease::is_stale`] is; programs never are.
    pub(super) fn is_stale(&self) -> bool {
        matches!(self, Self::Server(lease) if lease.is_stale())
    }

    /// Name of the server or program, for logs.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Server(lease) => lease.server_name(),
            Self::Program(process) => process.name(),
        }
    }

    /// Name as an `Rc` to keep.
    pub(super) fn shared_name(&self) -> Rc<str> {
        match self {
            Self::Server(lease) => Rc::clone(lease.shared_server_name()),
            Self::Program(process) => Rc::clone(process.shared_name()),
        }
    }

    /// Header field that keeps the client with a server, as [`Lease::sticky_field`].
    pub(super) fn sticky_field(&self, named: Option<ServerId>, is_secure: bool) -> Option<StickyField> {
        match self {
            Self::Server(lease) => lease.sticky_field(named, is_secure),
            Self::Program(_) => None,
        }
    }

    /// Records a good response, as [`Lease::answered`].
    pub(super) fn answered(&mut self, now_ms: u64) {
        if let Self::Server(lease) = self {
            lease.answered(now_ms);
        }
    }

    /// Ends a successful exchange, as [`Lease::finish`].
    pub(super) fn finish(self, ending: Ending, now_ms: u64) {
        match self {
            Self::Server(lease) => lease.finish(ending, now_ms),
            Self::Program(process) => process.finish(),
        }
    }

    /// Ends a failed exchange, as [`Lease::fail`].
    pub(super) fn fail(self, failure: UpstreamFailure, tried: &mut Tried, now_ms: u64) {
        match self {
            Self::Server(lease) => lease.fail(failure, tried, now_ms),
            // Dropping the process ends it.
            Self::Program(_) => {}
        }
    }

    /// Turns a connection into a tunnel, as [`Lease::into_tunnel`]; programs have none.
    pub(super) fn into_tunnel(self, now_ms: u64) -> Result<UpstreamTunnel, Self> {
        match self {
            Self::Server(lease) => Ok(lease.into_tunnel(now_ms)),
            program @ Self::Program(_) => Err(program),
        }
    }
}
