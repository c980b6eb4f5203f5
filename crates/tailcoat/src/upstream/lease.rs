use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::Upstream;
use super::health::Health;
use super::pool::{ClientConnection, Connection};
use super::shared::Protocol;
use super::stream::Stream;
use super::tried::Tried;
use crate::config::Reuse;

/// A connection to a server, for one exchange. Dropping it closes the connection, and says nothing of the server.
#[derive(Debug)]
pub struct Lease {
    // Before `slot`, so that the connection is closed when its slot is given to another.
    connection: Connection,
    slot: Slot,
    is_reused: bool,
    /// The client connection that the exchange is for, if it speaks for one client.
    client: Option<ClientConnection>,
    has_read: bool,
}

/// How an exchange ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Another request may be sent on the connection.
    Reusable,
    /// The same, but the server may take for another request what was sent as content, and for the next response what it
    /// sends as content: `reuse` decides whose request may follow.
    ReusableBySameClient,
    /// Not on this one: server, client or protocol want it closed.
    Close,
}

/// How an exchange failed, by the server's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection ended, or broke, before the response did.
    Closed,
    /// The server took too long.
    TimedOut,
    /// What came is no HTTP.
    Malformed,
    /// What came is HTTP, but can't be passed on. That is the fault of one answer, for which a client may have asked: it
    /// says nothing of the server.
    Faulty,
    /// The server has not looked at the request, and says so: it may be sent again.
    Refused,
}

/// A slot among the connections in use to a server; it is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) upstream: Rc<Upstream>,
    pub(super) server: u16,
    /// Whether the request is the one that a server is tried out with.
    pub(super) is_trial: bool,
}

impl Lease {
    pub(super) fn new(connection: Connection, slot: Slot, is_reused: bool, client: Option<ClientConnection>) -> Self {
        Self { connection, slot, is_reused, client, has_read: false }
    }

    /// Reads what has come into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.connection.stream.poll_read(task, buffer);
        self.has_read |= matches!(read, Poll::Ready(Ok(1..)));
        read
    }

    /// Sends what the kernel takes of `bytes`.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.stream.poll_write(task, bytes)
    }

    /// Sends what the kernel takes of several pieces.
    pub fn poll_write_vectored(&mut self, task: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.connection.stream.poll_write_vectored(task, pieces)
    }

    /// Whether requests were sent on the connection before. The server may just have closed it: if it ends before a byte
    /// was read, that is no fault of anybody's.
    pub fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Whether requests were sent on the connection before, and the server has closed it since, or sent what nobody asked
    /// for. Asks the kernel: worth it for a request that can't be sent twice.
    pub fn is_stale(&self) -> bool {
        self.is_reused && !self.connection.stream.is_quiet_for_certain()
    }

    /// Whether the connection can be used again after this exchange; if not, the request may as well say so.
    pub fn may_be_kept(&self) -> bool {
        self.slot.upstream.pool_limits.may_be_kept(self.connection.requests)
    }

    /// The server as it is configured, for logs.
    pub fn server_name(&self) -> &str {
        self.shared_server_name()
    }

    /// The same, to be kept.
    pub fn shared_server_name(&self) -> &Rc<str> {
        self.slot.server_name()
    }

    /// Tells that the server has begun to answer as it should: a server that is tried out is then back without the end of
    /// a long response having to be waited for.
    pub fn answered(&mut self, now_ms: u64) {
        self.slot.report_success(now_ms);
    }

    /// The exchange has ended well.
    pub fn finish(mut self, ending: Ending, now_ms: u64) {
        self.slot.report_success(now_ms);
        match (self.slot.upstream.shared.config.reuse, ending) {
            (_, Ending::Close) => return,
            (Reuse::Always, _) | (Reuse::Safe, Ending::Reusable) => {}
            (Reuse::Safe, Ending::ReusableBySameClient) | (Reuse::Never, _) => match self.client {
                // Once reserved it stays so: it was taken by the same client.
                Some(client) => self.connection.reserved_for = Some(client),
                None => return,
            },
        }
        self.slot.upstream.keep(self.slot.server, self.connection, now_ms);
    }

    /// The exchange has failed; notes in `tried` what need not be tried again, should the request be repeated.
    pub fn fail(mut self, failure: Failure, tried: &mut Tried, now_ms: u64) {
        if failure == Failure::Closed && self.is_reused && !self.has_read {
            // Where one kept connection was closed, all are: the server was started again, most likely. A reserved one may
            // also have been closed because of what its client sent.
            if self.connection.reserved_for.is_none() {
                self.slot.upstream.forget_kept(self.slot.server);
            }
            tried.add_stale();
            return;
        }
        tried.add(self.slot.server);
        if !matches!(failure, Failure::Faulty | Failure::Refused) {
            self.slot.report_failure(now_ms);
        }
    }

    /// The exchange ends, and the connection is now a tunnel for bytes of another protocol.
    pub fn into_tunnel(mut self, now_ms: u64) -> Tunnel {
        self.slot.report_success(now_ms);
        Tunnel { stream: self.connection.stream, _slot: self.slot }
    }
}

/// A connection to a server that carries another protocol than HTTP. It counts as in use as long as it lasts.
#[derive(Debug)]
pub struct Tunnel {
    stream: Stream,
    _slot: Slot,
}

impl Tunnel {
    /// Reads what has come into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.stream.poll_read(task, buffer)
    }

    /// Sends what the kernel takes of `bytes`.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.poll_write(task, bytes)
    }

    /// Ends the sending side.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(task)
    }
}

impl Slot {
    /// The server as it is configured, for logs.
    pub(super) fn server_name(&self) -> &Rc<str> {
        &self.upstream.server_names[usize::from(self.server)]
    }

    /// Whether the server is spoken to by TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.upstream.shared.server(self.server).protocol == Protocol::Negotiated
    }

    pub(super) fn report_success(&mut self, now_ms: u64) {
        self.is_trial = false;
        let shared = &self.upstream.shared;
        if shared.server(self.server).is_unsettled() {
            shared.tell(self.server, now_ms, |health| health.on_success(now_ms));
        }
    }

    pub(super) fn report_failure(&mut self, now_ms: u64) {
        let is_trial = std::mem::take(&mut self.is_trial);
        self.upstream.shared.server(self.server).count_failure();
        self.upstream.shared.tell(self.server, now_ms, |health| health.on_failure(is_trial, now_ms));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let shared = &self.upstream.shared;
        if self.is_trial {
            // Whatever the time is: another may follow at once.
            shared.server(self.server).with_health(0, Health::abandon_trial);
        }
        shared.release(self.server);
    }
}
