//! Requests and their content, as an adapter reports them.

use std::rc::Rc;

use wire::IncomingRequest;
use wire::h1::{BodyFraming, MessageRejection};
use wire::http::{Fields, Method, Request, RequestHead};

use super::extended_connect::become_upgrade;
use super::stream_exchange::{Early, ExchangeWork, RequestedContent, StreamExchange};
use super::upload::StreamUpload;
use super::{ExchangeTurn, HttpStreams, StreamExchanges, StreamFault, StreamKey};
use crate::connection::arrival::{Arrived, route};
use crate::handler::{ClientLinkCell, PageFormat, Response, error_response};
use crate::routing::{PendingResponse, SiteResponse};

/// Memory of a field in addition to its name and value, in bytes.
const FIELD_BYTES: usize = 32;

/// Memory for request heads on a connection, in units of `head-bytes-max`; above it, new streams are rejected. With the
/// default limit, this is 512 KiB. That is 2 KiB of head, kept by routing and a handler, for each stream that a client
/// may open.
const HEADS_MAX: u64 = 32;

/// Buffers of the worker thread for routing requests.
pub(crate) struct RequestBuffers<'a> {
    /// Head of the request.
    pub head: &'a mut RequestHead,
    /// Text of the head.
    pub text: &'a mut Vec<u8>,
    /// Normalized path.
    pub path: &'a mut Vec<u8>,
    /// Host in lower case.
    pub host: &'a mut Vec<u8>,
}

impl<Id: StreamKey> StreamExchanges<Id> {
    /// True if the connection holds too many request heads. New streams must then be rejected until the client has
    /// accepted responses.
    pub(crate) fn holds_too_much(&self, turn: &ExchangeTurn<'_>) -> bool {
        !self.is_empty()
            && turn.context.memory.head_bytes(self.client.slot)
                >= HEADS_MAX * turn.context.generation().limits.head_bytes_max as u64
    }

    /// Routes a request whose head is complete. A response that is ready is sent at once.
    pub(crate) fn on_request<S: HttpStreams<Id = Id>>(
        &mut self,
        request: &IncomingRequest<Id>,
        buffers: &mut RequestBuffers<'_>,
        streams: &mut S,
        turn: &mut ExchangeTurn<'_>,
    ) {
        let RequestBuffers { head, text, path, host } = buffers;
        let stream = request.stream;
        let asked = match (become_upgrade(request, head, text), head.method) {
            (true, _) => RequestedContent::Protocol,
            (false, Method::Connect) => RequestedContent::Connection,
            (false, Method::Head) => RequestedContent::HeadOnly,
            (false, _) => RequestedContent::Content,
        };
        let has_content =
            request.has_content && matches!(asked, RequestedContent::Content | RequestedContent::HeadOnly);
        let link = match request.content_length {
            _ if !has_content => ClientLinkCell::without_content(turn.context.holder_source(self.client.slot)),
            Some(length) => self.content_link(BodyFraming::Length(length), turn),
            None => self.content_link(BodyFraming::Chunked, turn),
        };
        let link = link.of_connection(self.client.number);
        let tls = self.client.tls.clone();
        let arrived = Arrived { client: self.client.client, tls: tls.as_ref(), link: &link, now: turn.now };
        let message = Request { head, bytes: text };
        let routed = match route(message, &request.target(text), request.host(text), arrived, path, host) {
            Ok(routed) => routed,
            Err(rejection) => {
                self.on_rejected(stream, rejection, message.head, streams, turn);
                return;
            }
        };
        let (response, account) = turn.context.generation().router.answer(self.client.listener, &routed);
        match response {
            SiteResponse::Ready(response) => {
                if has_content {
                    streams.set_body_bytes_max(stream, link.link().body_bytes_max());
                }
                self.respond_now((stream, asked, request.priority), &routed, response, account, streams, turn);
            }
            SiteResponse::Wait(PendingResponse { future, request: request_kept }) => {
                // The limit is that of the handler, which may not be chosen yet: `StreamUpload::supply` applies it.
                let upload = has_content.then(|| StreamUpload::new(Rc::clone(link.link()), request.expects_continue));
                let early = Early { content: Vec::new(), has_ended: !request.has_content };
                let exchange = StreamExchange {
                    upload,
                    early,
                    ..self.new_exchange(stream, asked, ExchangeWork::Answering(future), request_kept, account, turn)
                };
                self.tell_destination(&exchange, streams, turn);
                self.insert(exchange);
            }
        }
    }

    /// Takes a piece of a request's content.
    pub(crate) fn on_content(&mut self, stream: Id, content: &[u8], is_last: bool, turn: &mut ExchangeTurn<'_>) {
        let Some(index) = self.find(stream) else { return };
        turn.received_bytes += content.len();
        let limit = turn.context.rate_limit();
        self.at(index).on_content(content, is_last, turn.now.monotonic_ms, &limit);
        self.mark_due(index);
    }

    /// Takes the trailer fields of a request, which is complete.
    pub(crate) fn on_trailers<S: HttpStreams<Id = Id>>(
        &mut self,
        stream: Id,
        fields: Fields,
        streams: &mut S,
        turn: &mut ExchangeTurn<'_>,
    ) {
        let holds_too_much = self.holds_too_much(turn);
        let Some(index) = self.find(stream) else { return };
        self.mark_due(index);
        let slot = self.client.slot;
        let exchange = self.at(index);
        let Some(upload) = &mut exchange.upload else { return };
        if holds_too_much {
            // Trailers count like heads, because a few bytes of a compressed block may stand for many.
            return self.reset_exchange(index, StreamFault::Overload, streams, turn);
        }
        let bytes: usize = fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len()).sum();
        exchange._trailers = Some(turn.context.memory.holder(slot).charge_head(bytes));
        upload.on_trailers(fields);
    }

    /// Responds to a request that is malformed or has too much content.
    pub(crate) fn on_rejected<S: HttpStreams<Id = Id>>(
        &mut self,
        stream: Id,
        rejection: MessageRejection,
        head: &RequestHead,
        streams: &mut S,
        turn: &mut ExchangeTurn<'_>,
    ) {
        if let Some(index) = self.find(stream) {
            return self.reject_exchange(index, rejection, streams, turn);
        }
        // A response to HEAD has no content, even if it is an error (RFC 9110, section 9.3.2).
        let asked = if head.method == Method::Head { RequestedContent::HeadOnly } else { RequestedContent::Content };
        let (listener, client) = (self.client.listener, self.client.client);
        turn.context.generation().router.count_malformed(listener, rejection.status, client, turn.now);
        let account = turn.context.generation().router.default_account(self.client.listener);
        let response = Response::Built(error_response(rejection.status, PageFormat::Html));
        self.respond_rejected(stream, asked, response, &account, streams, turn);
    }

    /// Drops the exchange of a stream that was reset, by the client or because of its error.
    pub(crate) fn on_reset(&mut self, stream: Id, turn: &ExchangeTurn<'_>) {
        if let Some(index) = self.find(stream) {
            let exchange = self.remove(index);
            self.record_exchange(&exchange, false, turn.context, turn.now);
        }
    }

    /// Sends an error response to a request whose handler is in progress. If another response has begun, resets the
    /// stream instead.
    pub(super) fn reject_exchange<S: HttpStreams<Id = Id>>(
        &mut self,
        index: usize,
        rejection: MessageRejection,
        streams: &mut S,
        turn: &mut ExchangeTurn<'_>,
    ) {
        let exchange = self.at(index);
        if exchange.reply.is_some() && exchange.upload.is_none() {
            // No handler reads the content, so its error does not concern the response.
            return;
        }
        if exchange.reply.is_some() {
            return self.reset_exchange(index, StreamFault::Cancelled, streams, turn);
        }
        exchange.upload = None;
        let response = Response::Built(error_response(rejection.status, PageFormat::Html));
        self.respond(index, response, streams, turn);
    }

    /// Resets the stream of an exchange, and logs it.
    pub(super) fn reset_exchange<S: HttpStreams<Id = Id>>(
        &mut self,
        index: usize,
        fault: StreamFault,
        streams: &mut S,
        turn: &ExchangeTurn<'_>,
    ) {
        let exchange = self.remove(index);
        streams.reset(exchange.stream, fault);
        self.record_exchange(&exchange, false, turn.context, turn.now);
    }

    fn content_link(&self, framing: BodyFraming, turn: &ExchangeTurn<'_>) -> ClientLinkCell {
        let body_bytes_max = turn.context.generation().input_limits.body.body_bytes_max;
        ClientLinkCell::with_content(framing, body_bytes_max, Some(turn.context.holder_source(self.client.slot)))
    }

    /// Gives handlers the local address of the connection, if any may need it.
    fn tell_destination<S: HttpStreams<Id = Id>>(
        &self,
        exchange: &StreamExchange<Id>,
        streams: &S,
        turn: &ExchangeTurn<'_>,
    ) {
        if turn.context.generation().tells_destinations
            && let Some(destination) = self.client.destination(|| streams.local_address())
        {
            exchange.request.link_made().set_destination(destination);
        }
    }
}
