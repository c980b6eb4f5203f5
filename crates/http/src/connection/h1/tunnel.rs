//! Tunnels after 101 (Switching Protocols): bytes are forwarded both ways without interpretation.

use std::io;
use std::task::{Context as Task, Poll};

use super::H1Connection;
use super::respond::H1Exchange;
use super::states::H1Output;
use crate::connection::tunnel::TunnelEnd;
use crate::connection::{ConnectionStage, Context, Transport};
use crate::handler::{OwnedRequest, Tunnel, TunnelStream};

/// Maximum number of bytes forwarded one way before other connections get their turn.
const TURN_BYTES_MAX: usize = 1 << 20;

/// Tunnel between a client and an upstream. Holds no buffer while no bytes are in transit.
pub(super) struct H1Tunnel {
    server: Box<dyn TunnelStream>,
    /// Bytes that the upstream has not accepted yet.
    to_server: Vec<u8>,
    /// Bytes that the client has not accepted yet.
    to_client: Vec<u8>,
    client_end: TunnelEnd,
    server_end: TunnelEnd,
    idle_timeout_ms: u64,
    /// Bytes sent to the client.
    sent_bytes: u64,
    exchange: Option<H1Exchange>,
}

impl H1Tunnel {
    /// Makes a tunnel; `to_server` is what the client has already sent.
    pub(super) fn new(tunnel: Tunnel, to_server: Vec<u8>, exchange: Option<H1Exchange>) -> Self {
        Self {
            server: tunnel.stream,
            to_server,
            to_client: tunnel.early,
            client_end: TunnelEnd::NotSeen,
            server_end: TunnelEnd::NotSeen,
            idle_timeout_ms: tunnel.idle_timeout_ms,
            sent_bytes: 0,
            exchange,
        }
    }

    /// Request that opened the tunnel, and the number of bytes sent to the client.
    pub(super) fn request(&self) -> Option<(&OwnedRequest, u64)> {
        Some((self.exchange.as_ref()?.request(), self.sent_bytes))
    }
}

impl H1Connection {
    /// Forwards bytes both ways. Ready when both directions have ended.
    pub(super) fn drive_tunneling(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let H1Output::Tunnel(tunneling) = &mut self.output else { return Poll::Ready(Ok(())) };
        let buffer = &mut context.scratch.borrow_mut().content;
        let mut moved_bytes = 0;
        loop {
            let to_server = tunneling.poll_to_server(&mut self.socket, task, buffer)?;
            let to_client = tunneling.poll_to_client(&mut self.socket, task, buffer)?;
            context.count_received(to_server.unwrap_or(0));
            context.count_sent(to_client.unwrap_or(0) as u64);
            if (tunneling.client_end, tunneling.server_end) == (TunnelEnd::PassedOn, TunnelEnd::PassedOn) {
                return Poll::Ready(Ok(()));
            }
            if to_server.is_none() && to_client.is_none() {
                break;
            }
            moved_bytes += to_server.unwrap_or(0) + to_client.unwrap_or(0);
            if moved_bytes > TURN_BYTES_MAX {
                task.waker().wake_by_ref();
                break;
            }
        }
        let mut table = context.table.borrow_mut();
        if moved_bytes > 0 || table.stage(self.slot) != ConnectionStage::Tunnel {
            let deadline_ms = context.clock.now().monotonic_ms + tunneling.idle_timeout_ms;
            table.enter(self.slot, ConnectionStage::Tunnel, Some(deadline_ms), task.waker());
            table.note_progress(self.slot, moved_bytes as u64);
        }
        Poll::Pending
    }

    pub(super) fn finish_tunneling(&mut self) {
        if let Some(tunneling) = self.output.take_tunnel()
            && let Some(mut exchange) = tunneling.exchange
        {
            exchange.add_content_bytes(tunneling.sent_bytes);
            self.record_exchange(&exchange);
        }
    }
}

impl H1Tunnel {
    /// Forwards a piece from the client to the upstream. Returns its length, or `None` if either side must be waited
    /// for.
    fn poll_to_server(
        &mut self,
        client: &mut Transport,
        task: &mut Task<'_>,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        if self.to_server.is_empty() {
            match self.client_end {
                TunnelEnd::NotSeen => {
                    let Poll::Ready(length) = client.poll_read(buffer)? else { return Ok(None) };
                    if length == 0 {
                        self.client_end = TunnelEnd::Seen;
                    }
                    self.to_server = buffer[..length].to_vec();
                }
                TunnelEnd::Seen => {
                    let Poll::Ready(()) = self.server.poll_shutdown(task)? else { return Ok(None) };
                    self.client_end = TunnelEnd::PassedOn;
                }
                TunnelEnd::PassedOn => return Ok(None),
            }
            if self.to_server.is_empty() {
                return Ok(Some(0));
            }
        }
        let Poll::Ready(length) = self.server.poll_write(task, &self.to_server)? else { return Ok(None) };
        take_front(&mut self.to_server, length);
        Ok(Some(length))
    }

    /// Forwards a piece from the upstream to the client, in the same way.
    fn poll_to_client(
        &mut self,
        client: &mut Transport,
        task: &mut Task<'_>,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        if self.to_client.is_empty() {
            match self.server_end {
                TunnelEnd::NotSeen => {
                    let Poll::Ready(length) = self.server.poll_read(task, buffer)? else { return Ok(None) };
                    if length == 0 {
                        self.server_end = TunnelEnd::Seen;
                    }
                    self.to_client = buffer[..length].to_vec();
                }
                TunnelEnd::Seen => {
                    let Poll::Ready(()) = client.poll_drained() else { return Ok(None) };
                    client.shutdown_write()?;
                    self.server_end = TunnelEnd::PassedOn;
                }
                TunnelEnd::PassedOn => return Ok(None),
            }
            if self.to_client.is_empty() {
                return Ok(Some(0));
            }
        }
        let Poll::Ready(length) = client.poll_write(&self.to_client)? else { return Ok(None) };
        take_front(&mut self.to_client, length);
        self.sent_bytes += length as u64;
        Ok(Some(length))
    }
}

/// Removes bytes that were sent; frees the memory with the last of them.
fn take_front(bytes: &mut Vec<u8>, length: usize) {
    if length == bytes.len() {
        *bytes = Vec::new();
    } else {
        bytes.drain(..length);
    }
}
