//! Tunnels after an extended CONNECT (RFC 8441): bytes are forwarded both ways without interpretation.

use std::io;
use std::task::{Context as Task, Poll};

use bytes::Bytes;

use super::content::{OutgoingContent, closed};
use super::{ExchangeTurn, HttpStreams};
use crate::connection::tunnel::TunnelEnd;
use crate::handler::{Tunnel, TunnelStream};

/// Minimum number of bytes requested from an upstream.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// Tunnel between a stream and an upstream connection.
pub(super) struct StreamTunnel {
    server: Box<dyn TunnelStream>,
    /// Bytes received from the upstream together with its response.
    early: Vec<u8>,
    /// Bytes received from the client that the upstream has not accepted; at most one window.
    to_server: Vec<u8>,
    client_end: TunnelEnd,
    has_server_ended: bool,
    idle_timeout_ms: u64,
    moved_at_ms: u64,
}

impl StreamTunnel {
    /// Makes a tunnel through which nothing has been forwarded.
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

    /// Buffers bytes that the client has sent.
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

    /// True if both sides have ended and each end has been forwarded.
    pub(super) fn is_complete(&self) -> bool {
        self.has_server_ended && self.client_end == TunnelEnd::PassedOn
    }

    /// Time by which either side must send something.
    pub(super) fn deadline_ms(&self) -> u64 {
        self.moved_at_ms + self.idle_timeout_ms
    }

    /// Forwards bytes both ways, as far as possible.
    ///
    /// # Errors
    /// The upstream connection is broken, or the stream is gone.
    pub(super) fn poll<S: HttpStreams>(
        &mut self,
        stream: S::Id,
        outgoing: &mut OutgoingContent,
        streams: &mut S,
        task: &mut Task<'_>,
        turn: &mut ExchangeTurn<'_>,
    ) -> io::Result<()> {
        self.poll_to_server(stream, streams, task, turn.now.monotonic_ms)?;
        self.poll_to_client(stream, outgoing, streams, task, turn)
    }

    fn poll_to_server<S: HttpStreams>(
        &mut self,
        stream: S::Id,
        streams: &mut S,
        task: &mut Task<'_>,
        now_ms: u64,
    ) -> io::Result<()> {
        while !self.to_server.is_empty() {
            let Poll::Ready(length) = self.server.poll_write(task, &self.to_server)? else { return Ok(()) };
            streams.take_content(stream, length);
            self.moved_at_ms = now_ms;
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

    fn poll_to_client<S: HttpStreams>(
        &mut self,
        stream: S::Id,
        outgoing: &mut OutgoingContent,
        streams: &mut S,
        task: &mut Task<'_>,
        turn: &mut ExchangeTurn<'_>,
    ) -> io::Result<()> {
        if self.has_server_ended || streams.unsent_bytes(stream).is_none_or(|bytes| bytes > 0) {
            return Ok(());
        }
        if !self.early.is_empty() {
            let early = Bytes::from(std::mem::take(&mut self.early));
            return outgoing.offer_bytes(early, stream, streams).map_err(closed);
        }
        let wanted_bytes = streams.wanted_bytes(stream);
        if wanted_bytes == 0 {
            return Ok(());
        }
        let room = wanted_bytes.clamp(PIECE_BYTES_MIN, turn.content.len() as u64) as usize;
        let Poll::Ready(length) = self.server.poll_read(task, &mut turn.content[..room])? else { return Ok(()) };
        self.moved_at_ms = turn.now.monotonic_ms;
        if length == 0 {
            self.has_server_ended = true;
            return outgoing.offer_end(stream, streams).map_err(closed);
        }
        let piece = Bytes::copy_from_slice(&turn.content[..length]);
        outgoing.offer_bytes(piece, stream, streams).map_err(closed)
    }
}
