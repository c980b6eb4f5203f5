//! What follows when CONNECT was answered by another protocol (RFC 8441): bytes both ways, whatever they mean.

use std::io;
use std::task::{Context as Task, Poll};

use bytes::Bytes;
use wire::h2::{H2ServerConnection, StreamGone, StreamId};

use super::H2Turn;
use super::content::OutgoingContent;
use crate::connection::tunnel::TunnelEnd;
use crate::handler::{Tunnel, TunnelStream};

/// A server is not asked for less than this.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// A stream and a connection to a server, joined.
pub(super) struct H2Tunnel {
    server: Box<dyn TunnelStream>,
    /// What the server has sent already.
    early: Vec<u8>,
    /// What the client has sent and the server has not taken: at most a window.
    to_server: Vec<u8>,
    client_end: TunnelEnd,
    has_server_ended: bool,
    idle_timeout_ms: u64,
    moved_at_ms: u64,
}

impl H2Tunnel {
    /// A tunnel of which nothing has been passed on.
    pub(super) fn new(tunnel: Tunnel, now_ms: u64) -> Self {
        Self {
            server: tunnel.stream,
            early: tunnel.early,
            to_server: Vec::new(),
            client_end: TunnelEnd::NotSeen,
            has_server_ended: false,
            idle_timeout_ms: tunnel.idle_timeout_ms,
            moved_at_ms: now_ms,
        }
    }

    /// Takes a piece that the client has sent.
    pub(super) fn on_content(&mut self, content: &[u8], is_last: bool, now_ms: u64) {
        self.to_server.extend_from_slice(content);
        self.moved_at_ms = now_ms;
        if is_last {
            self.client_end = TunnelEnd::Seen;
        }
    }

    /// Bytes that wait for either side.
    pub(super) fn held_bytes(&self) -> usize {
        self.early.capacity() + self.to_server.capacity()
    }

    /// Whether both have ended, and know of each other.
    pub(super) fn is_complete(&self) -> bool {
        self.has_server_ended && self.client_end == TunnelEnd::PassedOn
    }

    /// Until when something has to come, from either side.
    pub(super) fn deadline_ms(&self) -> u64 {
        self.moved_at_ms + self.idle_timeout_ms
    }

    /// Passes on what there is, both ways.
    ///
    /// # Errors
    /// The server's connection is broken, or the stream gone.
    pub(super) fn poll(
        &mut self,
        stream: StreamId,
        outgoing: &mut OutgoingContent,
        wire: &mut H2ServerConnection,
        task: &mut Task<'_>,
        turn: &mut H2Turn<'_, '_>,
    ) -> io::Result<()> {
        self.poll_to_server(stream, wire, task, turn)?;
        self.poll_to_client(stream, outgoing, wire, task, turn)
    }

    fn poll_to_server(
        &mut self,
        stream: StreamId,
        wire: &mut H2ServerConnection,
        task: &mut Task<'_>,
        turn: &mut H2Turn<'_, '_>,
    ) -> io::Result<()> {
        while !self.to_server.is_empty() {
            let Poll::Ready(length) = self.server.poll_write(task, &self.to_server)? else { return Ok(()) };
            wire.take_content(stream, length, &mut turn.wire());
            self.moved_at_ms = turn.now.monotonic_ms;
            if length == self.to_server.len() {
                self.to_server = Vec::new();
            } else {
                self.to_server.drain(..length);
            }
        }
        if self.client_end == TunnelEnd::Seen && self.server.poll_shutdown(task)?.is_ready() {
            self.client_end = TunnelEnd::PassedOn;
        }
        Ok(())
    }

    fn poll_to_client(
        &mut self,
        stream: StreamId,
        outgoing: &mut OutgoingContent,
        wire: &mut H2ServerConnection,
        task: &mut Task<'_>,
        turn: &mut H2Turn<'_, '_>,
    ) -> io::Result<()> {
        if self.has_server_ended || wire.unsent_bytes(stream).is_none_or(|bytes| bytes > 0) {
            return Ok(());
        }
        if !self.early.is_empty() {
            let early = Bytes::from(std::mem::take(&mut self.early));
            return outgoing.offer_bytes(early, stream, wire, turn).map_err(gone);
        }
        let wanted_bytes = wire.wanted_bytes(stream);
        if wanted_bytes == 0 {
            return Ok(());
        }
        let room = wanted_bytes.clamp(PIECE_BYTES_MIN, turn.content.len() as u64) as usize;
        let Poll::Ready(length) = self.server.poll_read(task, &mut turn.content[..room])? else { return Ok(()) };
        self.moved_at_ms = turn.now.monotonic_ms;
        if length == 0 {
            self.has_server_ended = true;
            return outgoing.offer_end(stream, wire, turn).map_err(gone);
        }
        let piece = Bytes::copy_from_slice(&turn.content[..length]);
        outgoing.offer_bytes(piece, stream, wire, turn).map_err(gone)
    }
}

fn gone(_: StreamGone) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
