//! Receiving requests and their content.

use std::io;
use std::rc::Rc;
use std::task::Poll;

use wire::h1::{BodyFraming, MessageRejection};
use wire::h2::{ErrorCode, H2IncomingRequest, ServerEvent, StreamId};
use wire::http::{Fields, Method, Request, RequestHead};

use super::exchange::{Early, H2Exchange, H2Work, RequestedContent};
use super::extended_connect::become_upgrade;
use super::upload::H2Upload;
use super::{H2Connection, H2ConnectionState, H2Turn};
use crate::connection::arrival::{Arrived, route};
use crate::handler::{ClientLinkCell, PageFormat, Response, error_response};
use crate::log::Subject;
use crate::routing::{PendingResponse, SiteResponse};

/// Memory of a field in addition to its name and value, in bytes.
const FIELD_BYTES: usize = 32;

/// Buffers of the worker thread for reading requests.
pub(super) struct ReceiveBuffers<'a> {
    pub(super) input: &'a mut Vec<u8>,
    pub(super) head: &'a mut RequestHead,
    pub(super) text: &'a mut Vec<u8>,
    pub(super) path: &'a mut Vec<u8>,
    pub(super) host: &'a mut Vec<u8>,
}

impl H2Connection {
    /// Reads once and processes the input. Returns true if there may be more.
    pub(super) fn drive_reading(
        &mut self,
        buffers: &mut ReceiveBuffers<'_>,
        turn: &mut H2Turn<'_, '_>,
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
                    turn.context.count_received(count);
                    filled += count;
                }
                Poll::Pending => return Ok(false),
            }
        }
        buffers.input[..self.kept.len()].copy_from_slice(&self.kept);
        self.kept = Vec::new();
        self.has_unseen_input = false;
        let input = std::mem::take(buffers.input);
        let consumed = self.on_input(&input[..filled], buffers, turn);
        if let Ok(consumed) = consumed {
            self.kept = input[consumed..filled].to_vec();
            self.clocks.on_input(consumed > 0, &self.wire, !self.kept.is_empty(), turn.now);
        }
        *buffers.input = input;
        // Input that waits for output is processed after the output was sent.
        consumed.map(|consumed| consumed > 0 || !self.has_unseen_input)
    }

    /// Processes the input; returns the number of bytes consumed.
    fn on_input(
        &mut self,
        input: &[u8],
        buffers: &mut ReceiveBuffers<'_>,
        turn: &mut H2Turn<'_, '_>,
    ) -> io::Result<usize> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            self.wire.refuse_streams(self.holds_too_much(turn));
            let handled = self.wire.handle_input(rest, buffers.head, buffers.text, &mut turn.wire());
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
                ServerEvent::Rejected { stream, rejection } => self.on_rejected(stream, rejection, buffers.head, turn),
                ServerEvent::Content { stream, content, is_last } => {
                    if let Some(exchange) = self.exchanges.get(stream) {
                        turn.content_bytes += content.len();
                        let limit = turn.context.rate_limit();
                        exchange.on_content(&rest[content], is_last, turn.now.monotonic_ms, &limit);
                    }
                }
                ServerEvent::Trailers { stream, fields } => self.on_trailers(stream, fields, turn),
                ServerEvent::Reset { stream, .. } => self.on_reset(stream, turn),
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
        turn: &mut H2Turn<'_, '_>,
    ) -> io::Result<()> {
        let ReceiveBuffers { head, text, path, host, .. } = buffers;
        let stream = request.stream;
        self.count_request(turn);
        let asked = match (become_upgrade(request, head, text), head.method) {
            (true, _) => RequestedContent::Protocol,
            (false, Method::Connect) => RequestedContent::Connection,
            (false, Method::Head) => RequestedContent::HeadOnly,
            (false, _) => RequestedContent::Content,
        };
        let has_content =
            request.has_content && matches!(asked, RequestedContent::Content | RequestedContent::HeadOnly);
        let link = match request.content_length {
            _ if !has_content => ClientLinkCell::without_content(turn.context.holder_source(self.slot)),
            Some(length) => self.content_link(BodyFraming::Length(length), turn),
            None => self.content_link(BodyFraming::Chunked, turn),
        };
        let link = link.of_connection(self.number);
        let tls = self.tls.clone();
        let arrived = Arrived { client: self.client, tls: tls.as_ref(), link: &link, now: turn.now };
        let message = Request { head, bytes: text };
        let routed = match route(message, &request.target(text), request.host(text), arrived, path, host) {
            Ok(routed) => routed,
            Err(rejection) => {
                self.on_rejected(stream, rejection, message.head, turn);
                return Ok(());
            }
        };
        let (response, account) = turn.context.generation().router.answer(self.listener, &routed);
        match response {
            SiteResponse::Ready(response) => {
                if has_content {
                    self.wire.set_body_bytes_max(stream, link.link().body_bytes_max());
                }
                self.respond_now(stream, asked, request.priority, &routed, response, account, turn)
            }
            SiteResponse::Wait(PendingResponse { future, request: request_kept }) => {
                // The limit is that of the handler, which may not be chosen yet: `H2Upload::supply` applies it.
                let upload = has_content.then(|| H2Upload::new(Rc::clone(link.link()), request.expects_continue));
                let early = Early { content: Vec::new(), has_ended: !request.has_content };
                let exchange = H2Exchange {
                    upload,
                    early,
                    is_due: true,
                    ..self.new_exchange(stream, asked, H2Work::Answering(future), request_kept, account, turn)
                };
                self.tell_destination(&exchange, turn);
                self.exchanges.push(exchange);
                Ok(())
            }
        }
    }

    fn content_link(&self, framing: BodyFraming, turn: &H2Turn<'_, '_>) -> ClientLinkCell {
        let body_bytes_max = turn.context.generation().input_limits.body.body_bytes_max;
        ClientLinkCell::with_content(framing, body_bytes_max, Some(turn.context.holder_source(self.slot)))
    }

    /// Counts a request. At the configured maximum, the client must open a new connection.
    fn count_request(&mut self, turn: &mut H2Turn<'_, '_>) {
        self.requests = self.requests.saturating_add(1);
        self.clocks.on_request();
        let requests_max = turn.context.generation().limits.requests_per_connection_max;
        if requests_max != 0 && self.requests >= requests_max {
            self.wire.shut_down(&mut turn.wire());
        }
    }

    /// Gives handlers the local address of the connection, if any may need it.
    fn tell_destination(&self, exchange: &H2Exchange, turn: &H2Turn<'_, '_>) {
        if turn.context.generation().tells_destinations
            && let Some(destination) = self.destination()
        {
            exchange.request.link_made().set_destination(destination);
        }
    }

    fn on_trailers(&mut self, stream: StreamId, fields: Fields, turn: &mut H2Turn<'_, '_>) {
        let holds_too_much = self.holds_too_much(turn);
        let Some(index) = self.exchanges.find(stream) else { return };
        let exchange = self.exchanges.at(index);
        exchange.is_due = true;
        let Some(upload) = &mut exchange.upload else { return };
        if holds_too_much {
            // Trailers count like heads, because a few bytes of HPACK may stand for many.
            return self.reset_exchange(index, ErrorCode::ENHANCE_YOUR_CALM, turn);
        }
        let bytes: usize = fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len()).sum();
        exchange._trailers = Some(turn.context.memory.holder(self.slot).charge_head(bytes));
        upload.on_trailers(fields);
    }

    /// Responds to a request that is malformed or has too much content.
    pub(super) fn on_rejected(
        &mut self,
        stream: StreamId,
        rejection: MessageRejection,
        head: &RequestHead,
        turn: &mut H2Turn<'_, '_>,
    ) {
        if let Some(index) = self.exchanges.find(stream) {
            return self.reject_exchange(index, rejection, turn);
        }
        // A response to HEAD has no content, even if it is an error (RFC 9110, section 9.3.2).
        let asked = if head.method == Method::Head { RequestedContent::HeadOnly } else { RequestedContent::Content };
        self.clocks.on_request();
        let account = turn.context.generation().router.default_account(self.listener);
        let response = Response::Built(error_response(rejection.status, PageFormat::Html));
        self.respond_rejected(stream, asked, response, &account, turn);
    }

    /// Sends an error response to a request whose handler is in progress. If another response has begun, resets the
    /// stream instead.
    pub(super) fn reject_exchange(&mut self, index: usize, rejection: MessageRejection, turn: &mut H2Turn<'_, '_>) {
        let exchange = self.exchanges.at(index);
        if exchange.reply.is_some() {
            return self.reset_exchange(index, ErrorCode::CANCEL, turn);
        }
        exchange.upload = None;
        let response = Response::Built(error_response(rejection.status, PageFormat::Html));
        self.respond(index, response, turn);
    }

    /// Drops the exchange of a stream that was reset, by the client or because of its error.
    pub(super) fn on_reset(&mut self, stream: StreamId, turn: &mut H2Turn<'_, '_>) {
        if let Some(index) = self.exchanges.find(stream) {
            let exchange = self.exchanges.remove(index);
            self.record_exchange(&exchange, false, turn.now);
        }
    }

    /// Resets the stream of an exchange, and logs it.
    pub(super) fn reset_exchange(&mut self, index: usize, code: ErrorCode, turn: &mut H2Turn<'_, '_>) {
        let exchange = self.exchanges.remove(index);
        self.wire.reset(exchange.stream, code, &mut turn.wire());
        self.record_exchange(&exchange, false, turn.now);
    }
}

/// Log subject of a request that could not be parsed.
pub(super) const UNREADABLE: Subject<'static> = Subject::Malformed(b"");
