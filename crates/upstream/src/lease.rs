use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::health::Health;
use super::pool::{ClientConnectionId, PooledConnection};
use super::server::{ServerId, UpstreamProtocol};
use super::sticky::StickyField;
use super::stream::UpstreamStream;
use super::tried::Tried;
use super::worker_server::WorkerServer;
use crate::config::ConnectionReuse;

/// A connection to a server, for one exchange. Dropping it closes the connection and does not affect the server's
/// health.
#[derive(Debug)]
pub struct Lease {
    // Declared before `slot`: the connection closes before its slot goes to another request.
    connection: PooledConnection,
    slot: ServerSlot,
    is_reused: bool,
    /// Client connection that the exchange is for, if it speaks for one client.
    client: Option<ClientConnectionId>,
    has_read: bool,
}

/// Way in which a successful exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Another request may be sent on the connection.
    Reusable,
    /// Reusable, but with a risk of request smuggling: the server may take request content for another request, or
    /// send content that looks like the next response. `reuse` decides whose request may follow.
    ReusableBySameClient,
    /// Not reusable: server, client or protocol require that it closes.
    Close,
}

/// Failure of an exchange that the server caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// The connection ended or broke before the response did.
    Closed,
    /// The server took too long.
    TimedOut,
    /// The response is not HTTP.
    Malformed,
    /// The response is HTTP but can't be forwarded. A client may have provoked this one response, so it does not
    /// affect the server's health.
    Faulty,
    /// The server reports that it has not processed the request: any request may be sent again.
    Rejected,
}

/// A slot among the connections in use to a server; released on drop.
#[derive(Debug)]
pub(super) struct ServerSlot {
    pub(super) server: Rc<WorkerServer>,
    /// True if this is the trial request of an ejected server.
    pub(super) is_trial: bool,
}

impl Lease {
    pub(super) fn new(
        connection: PooledConnection,
        slot: ServerSlot,
        is_reused: bool,
        client: Option<ClientConnectionId>,
    ) -> Self {
        Self { connection, slot, is_reused, client, has_read: false }
    }

    /// Reads received bytes into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.connection.stream.poll_read(task, buffer);
        self.has_read |= matches!(read, Poll::Ready(Ok(1..)));
        read
    }

    /// Writes as much of `bytes` as the kernel accepts.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.stream.poll_write(task, bytes)
    }

    /// True if requests were sent on the connection before. The server may just have closed it: an end before the
    /// first byte is then not a failure.
    pub fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Checks whether a reused connection was closed by the server, or has unexpected bytes to read. Costs a system
    /// call: worth it for a request that can't be sent twice.
    pub fn is_stale(&self) -> bool {
        self.is_reused && !self.connection.stream.is_quiet_for_certain()
    }

    /// Checks whether the connection can be reused after this exchange; if not, the request may say `Connection:
    /// close`.
    pub fn may_be_kept(&self) -> bool {
        self.slot.server.pool_limits.may_be_kept(self.connection.requests)
    }

    /// Configured name of the server, for logs.
    pub fn server_name(&self) -> &str {
        self.shared_server_name()
    }

    /// Value of Set-Cookie that keeps the client with this server, unless its cookie names the server already.
    pub fn sticky_field(&self, named: Option<ServerId>, is_secure: bool) -> Option<StickyField> {
        self.slot.sticky_field(named, is_secure)
    }

    /// Configured name of the server, as an `Rc` to keep.
    pub fn shared_server_name(&self) -> &Rc<str> {
        self.slot.server_name()
    }

    /// Records that the server has begun a good response. A server on trial is then back before a long response ends.
    pub fn answered(&mut self, now_ms: u64) {
        self.slot.report_success(now_ms);
    }

    /// Ends the exchange as a success, and keeps the connection if the policy allows it.
    pub fn finish(mut self, ending: Ending, now_ms: u64) {
        self.slot.report_success(now_ms);
        match (self.slot.server.upstream.config.reuse, ending) {
            (_, Ending::Close) => return,
            (ConnectionReuse::Always, _) | (ConnectionReuse::Safe, Ending::Reusable) => {}
            (ConnectionReuse::Safe, Ending::ReusableBySameClient) | (ConnectionReuse::Never, _) => match self.client {
                // A reserved connection stays reserved: only the same client can have taken it.
                Some(client) => self.connection.reserved_for = Some(client),
                None => return,
            },
        }
        let Self { slot, connection, .. } = self;
        slot.server.keep(connection, now_ms);
    }

    /// Ends the exchange as a failure. Adds to `tried` what a retry must avoid.
    pub fn fail(mut self, failure: UpstreamFailure, tried: &mut Tried, now_ms: u64) {
        if failure == UpstreamFailure::Closed && self.is_reused && !self.has_read {
            // If the server closed one kept connection it closed all, most likely in a restart. A reserved one may
            // also have been closed because of what its client sent.
            if self.connection.reserved_for.is_none() {
                self.slot.server.pool.borrow_mut().clear();
            }
            tried.add_stale();
            return;
        }
        tried.add(self.slot.server.shared.id);
        if !matches!(failure, UpstreamFailure::Faulty | UpstreamFailure::Rejected) {
            self.slot.report_failure(now_ms);
        }
    }

    /// Ends the exchange and turns the connection into a tunnel for bytes of another protocol.
    pub fn into_tunnel(mut self, now_ms: u64) -> UpstreamTunnel {
        self.slot.report_success(now_ms);
        UpstreamTunnel { stream: self.connection.stream, _slot: self.slot }
    }
}

/// A connection to a server that carries a protocol other than HTTP. It counts as in use while it lasts.
#[derive(Debug)]
pub struct UpstreamTunnel {
    stream: UpstreamStream,
    _slot: ServerSlot,
}

impl UpstreamTunnel {
    /// Reads received bytes into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.stream.poll_read(task, buffer)
    }

    /// Writes as much of `bytes` as the kernel accepts.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.poll_write(task, bytes)
    }

    /// Ends the sending side.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(task)
    }
}

impl ServerSlot {
    /// Value of Set-Cookie for a client whose cookie names the server `named`.
    pub(super) fn sticky_field(&self, named: Option<ServerId>, is_secure: bool) -> Option<StickyField> {
        let value = self.server.sticky_value.as_deref().filter(|_| named != Some(self.server.shared.id))?;
        let sticky = self.server.upstream.config.sticky.as_ref()?;
        Some(StickyField::new(sticky, value, is_secure))
    }

    /// Configured name of the server, for logs.
    pub(super) fn server_name(&self) -> &Rc<str> {
        &self.server.name
    }

    /// True if the server is spoken to over TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.server.shared.protocol == UpstreamProtocol::Negotiated
    }

    pub(super) fn report_success(&mut self, now_ms: u64) {
        self.is_trial = false;
        let WorkerServer { shared: server, upstream, .. } = &*self.server;
        if server.is_unsettled() {
            upstream.tell(server, now_ms, |health| health.on_success(now_ms));
        }
    }

    pub(super) fn report_failure(&mut self, now_ms: u64) {
        let is_trial = std::mem::take(&mut self.is_trial);
        let WorkerServer { shared: server, upstream, .. } = &*self.server;
        server.count_failure();
        upstream.tell(server, now_ms, |health| health.on_failure(is_trial, now_ms));
    }
}

impl Drop for ServerSlot {
    fn drop(&mut self) {
        let WorkerServer { shared: server, upstream, .. } = &*self.server;
        if self.is_trial {
            // The time does not matter: the next trial may follow at once.
            server.with_health(0, Health::abandon_trial);
        }
        upstream.release(server);
    }
}
