//! Receiving requests and their content.

use std::io;
use std::task::Poll;

use wire::h2::{H2IncomingRequest, ServerEvent};

use super::{H2Connection, H2ConnectionState, H2Turn, OUTPUT_BYTES};
use crate::connection::exchange::RequestBuffers;

/// Bytes of a client's beginning that a fingerprint is made of; some 200 in browsers.
const BEGINNING_BYTES_MAX: usize = 1024;

/// Buffers of the worker thread for reading requests.
pub(super) struct ReceiveBuffers<'a> {
    pub(super) input: &'a mut Vec<u8>,
    pub(super) request: RequestBuffers<'a>,
}

impl H2Connection {
    /// Reads once and processes the input. Returns true if there may be more.
    pub(super) fn drive_reading(
        &mut self,
        buffers: &mut ReceiveBuffers<'_>,
        turn: &mut H2Turn<'_>,
    ) -> io::Result<bool> {
        if self.state != H2ConnectionState::Open {
            return Ok(false);
        }
        let mut filled = self.kept.len();
        if !self.has_unseen_input {
            match self.socket.poll_read(&mut buffers.input[filled..]) {
                // A client that has ended the connection reads no responses either.
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Poll::Ready(count) => {
                    let count = count?;
                    turn.exchange.context.count_received(count);
                    filled += count;
                }
                Poll::Pending => return Ok(false),
            }
        }
        if let Some(beginning) = &mut self.beginning {
            let kept = &self.kept[..if self.has_unseen_input { self.kept.len() } else { 0 }];
            let fresh = kept.iter().chain(&buffers.input[self.kept.len()..filled]);
            beginning.extend(fresh.take(BEGINNING_BYTES_MAX.saturating_sub(beginning.len())));
        }
        buffers.input[..self.kept.len()].copy_from_slice(&self.kept);
        self.kept = Vec::new();
        self.has_unseen_input = false;
        // Any frame may open a window.
        self.exchanges.on_windows();
        let input = std::mem::take(buffers.input);
        let consumed = self.on_input(&input[..filled], buffers, turn);
        if let Ok(consumed) = consumed {
            self.kept = input[consumed..filled].to_vec();
            let is_block_open = self.wire.awaits_continuation();
            let is_partial = is_block_open || !self.kept.is_empty();
            self.clocks.on_partial(is_partial, consumed > 0 && !is_block_open, turn.exchange.now);
        }
        *buffers.input = input;
        // Input that waits for output is processed after the output was sent.
        consumed.map(|consumed| consumed > 0 || !self.has_unseen_input)
    }

    /// Processes the input; returns the number of bytes consumed.
    fn on_input(&mut self, input: &[u8], buffers: &mut ReceiveBuffers<'_>, turn: &mut H2Turn<'_>) -> io::Result<usize> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            self.wire.refuse_streams(self.exchanges.holds_too_much(&turn.exchange));
            let handled = self.wire.handle_input(rest, buffers.request.head, buffers.request.text, &mut turn.wire());
            at += handled.consumed_bytes;
            match handled.event {
                ServerEvent::NeedInput => return Ok(at),
                ServerEvent::AwaitOutput => {
                    if turn.is_over() || !self.write_full(turn)? {
                        self.has_unseen_input = at < input.len();
                        return Ok(at);
                    }
                }
                ServerEvent::Request(request) => self.on_request(&request, buffers, turn)?,
                ServerEvent::Rejected { stream, rejection } => {
                    self.clocks.on_request();
                    let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
                    let head = &*buffers.request.head;
                    self.exchanges.on_rejected(stream, rejection, head, &mut streams, exchange_turn);
                }
                ServerEvent::Content { stream, content, is_last } => {
                    self.exchanges.on_content(stream, &rest[content], is_last, &mut turn.exchange);
                }
                ServerEvent::Trailers { stream, fields } => {
                    let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
                    self.exchanges.on_trailers(stream, fields, &mut streams, exchange_turn);
                }
                ServerEvent::Reset { stream, .. } => self.exchanges.on_reset(stream, &turn.exchange),
                ServerEvent::GoAway => {}
                ServerEvent::Closed(_) => {
                    self.on_closed(turn);
                    return Ok(input.len());
                }
            }
        }
    }

    fn on_request(
        &mut self,
        request: &H2IncomingRequest,
        buffers: &mut ReceiveBuffers<'_>,
        turn: &mut H2Turn<'_>,
    ) -> io::Result<()> {
        if let Some(beginning) = self.beginning.take() {
            self.exchanges.note_beginning(&beginning, &request.pseudo_fields());
        }
        self.count_request(turn);
        let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
        self.exchanges.on_request(request, &mut buffers.request, &mut streams, exchange_turn);
        if turn.output.length() >= OUTPUT_BYTES {
            self.write_full(turn)?;
        }
        Ok(())
    }

    /// Counts a request. At the configured maximum, the client must open a new connection.
    fn count_request(&mut self, turn: &mut H2Turn<'_>) {
        self.requests = self.requests.saturating_add(1);
        self.clocks.on_request();
        let requests_max = turn.exchange.context.generation().limits.requests_per_connection_max;
        if requests_max != 0 && self.requests >= requests_max {
            self.wire.shut_down(&mut turn.wire());
        }
    }
}
