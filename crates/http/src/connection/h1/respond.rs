//! Sending and logging of responses.

use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll};

use wire::h1::MessageRejection;
use wire::http::{Method, Status, Version};

use super::states::H1Following;
use super::tunnel::H1Tunnel;
use super::{H1Connection, H1Turn, Incoming};
use crate::connection::exchange::{AlternativeService, RESPONSES_WITH_ALTERNATIVE};
use crate::connection::output::{EncodingContext, Persistence};
use crate::connection::record::{CLIENT_GONE, ClientPeer, LoggedResponse, NO_RESPONSE, record};
use crate::connection::transfer_rate::TransferMeter;
use crate::connection::transmit::{Transmission, send_now};
use crate::connection::{ConnectionStage, Context};
use crate::handler::{ClientLink, Now, OwnedRequest, PageFormat, Response, ResponseEnding, Routed, error_response};
use crate::log::Subject;
use crate::metrics::{HandlerKind, Limit};
use crate::routing::RequestAccount;

/// Output that the socket has not accepted yet.
pub(super) struct Sending {
    transmission: Transmission,
    /// Meter of what the client reads; waits while there is something to send.
    meter: TransferMeter,
    /// Bytes already recorded as progress in the table of connections.
    noted_bytes: u64,
    /// Log data of the response; `None` if it is logged already or not at all.
    exchange: Option<H1Exchange>,
    /// Link to the handler while it still produces content.
    pub(super) link: Option<Rc<ClientLink>>,
}

/// Log data of a response that is being sent.
pub(super) struct H1Exchange {
    request: OwnedRequest,
    account: RequestAccount,
    hit: &'static str,
    status: Status,
    content_bytes: u64,
    /// True if the response has been sent completely.
    is_complete: bool,
}

impl H1Connection {
    /// Adds a response to the output and logs it. Starts sending if the response has content of its own.
    pub(super) fn respond(
        &mut self,
        incoming: &Incoming<'_>,
        mut response: Response,
        account: RequestAccount,
        turn: &mut H1Turn<'_, '_>,
    ) -> io::Result<()> {
        if response.ending() != ResponseEnding::Normal {
            self.end_without_response(incoming, response.ending(), &account, turn.now);
            return Ok(());
        }
        let tunnel = response.take_tunnel();
        let persistence = self.persistence(incoming, &response, tunnel.is_some(), turn.context);
        let H1Turn { context, task, output, now, .. } = turn;
        let generation = context.generation();
        let tells_alternative =
            self.requests <= RESPONSES_WITH_ALTERNATIVE.into() && AlternativeService::is_for(self.tls.as_deref());
        let encoding = EncodingContext {
            date: &context.clock.date(*now),
            now_ms: now.monotonic_ms,
            persistence,
            is_head: incoming.routed.request.method() == Method::Head,
            server_field: generation.server_field,
            alternative: generation.alternative(self.listener).filter(|_| tells_alternative),
            may_chunk: incoming.routed.request.head.version >= Version::Http11,
        };
        let hit = response.hit();
        let (status, content_bytes) = output.write_response(response, encoding);
        drop(generation);
        // A tunnel's content has no end that could be missed.
        let is_tunnel = tunnel.is_some();
        let exchange = |account: RequestAccount| {
            // The data is not kept if the request is neither logged nor counted.
            (account.log.is_some() || account.visit.is_some() || context.metrics.is_some()).then(|| {
                let request = OwnedRequest::new(&incoming.routed);
                H1Exchange { request, account, hit, status, content_bytes, is_complete: is_tunnel }
            })
        };
        if let Some(tunnel) = tunnel {
            let early = std::mem::take(&mut self.kept);
            self.output.begin_tunnel(Box::new(H1Tunnel::new(tunnel, early, exchange(account))));
            return Ok(());
        }
        let mut sent = Ok(());
        let mut unsent_bytes = 0;
        if output.has_tail() {
            let is_streamed = output.stream.is_some();
            let mut transmission = Transmission::new(output);
            // Most responses are sent at once, and then need not be stored.
            let polled = match is_streamed {
                true => Poll::Pending,
                false => transmission.poll_send(&mut self.socket, task, &mut Vec::new()),
            };
            context.count_sent(transmission.total_sent);
            unsent_bytes = transmission.remaining();
            transmission.return_buffers(output);
            match polled {
                Poll::Ready(result) => sent = result.inspect_err(|_| self.socket.abort_on_close()),
                Poll::Pending => {
                    let link = incoming.routed.link.get().filter(|_| is_streamed).map(Rc::clone);
                    self.begin_sending(transmission, exchange(account), link);
                    return Ok(());
                }
            }
        }
        let Routed { request, host, now: received, link, .. } = incoming.routed;
        let content_bytes = content_bytes.saturating_sub(unsent_bytes);
        let is_complete = sent.is_ok();
        let (link, handler) = (link.get(), link.handler());
        let logged = LoggedResponse { link, handler, hit, sent: (status, content_bytes), is_complete };
        self.record(&account, Subject::Request(request), host, logged, received, *now);
        sent
    }

    /// Ends the connection in place of a response.
    #[cold]
    fn end_without_response(
        &mut self,
        incoming: &Incoming<'_>,
        ending: ResponseEnding,
        account: &RequestAccount,
        now: Now,
    ) {
        self.following = if ending == ResponseEnding::Tarpit { H1Following::Tarpit } else { H1Following::Dropped };
        self.receiving = None;
        let Some(status) = Status::new(NO_RESPONSE) else { return };
        let Routed { request, host, now: received, link, .. } = incoming.routed;
        let (link, handler) = (link.get(), link.handler());
        let logged = LoggedResponse { link, handler, hit: "", sent: (status, 0), is_complete: true };
        self.record(account, Subject::Request(request), host, logged, received, now);
    }

    /// Decides if another request may follow; if not, stops reading.
    fn persistence(
        &mut self,
        incoming: &Incoming<'_>,
        response: &Response,
        has_tunnel: bool,
        context: &Context,
    ) -> Persistence {
        let requests_max = context.generation().limits.requests_per_connection_max;
        let request = incoming.routed.request;
        let version = request.head.version;
        let ends = !incoming.framing.is_persistent
            || context.is_ending(self.listener)
            || (requests_max != 0 && self.requests >= requests_max)
            || has_tunnel
            || (version == Version::Http10 && has_unknown_length(response))
            // Bytes after a CONNECT request are not HTTP, even if it is rejected.
            || request.method() == Method::Connect;
        if ends {
            self.following.close();
        }
        match (self.following.is_closed(), version) {
            (true, _) if has_tunnel => Persistence::Upgrade,
            (true, _) => Persistence::Close,
            (false, Version::Http10) => Persistence::PersistentHttp10,
            (false, _) => Persistence::Persistent,
        }
    }

    /// Rejects a request that cannot be parsed or was not received completely, and stops reading.
    pub(super) fn reject(&mut self, rejection: MessageRejection, input: &[u8], turn: &mut H1Turn<'_, '_>) {
        let H1Turn { context, output, now, .. } = turn;
        self.following.close_lingering();
        let open = self.take_open_request();
        // A response to HEAD has no content, even if it is an error (RFC 9110, section 9.3.2).
        let is_head = match &open {
            Some((request, _)) => request.request().method() == Method::Head,
            None => input.starts_with(b"HEAD "),
        };
        let encoding = EncodingContext {
            date: &context.clock.date(*now),
            now_ms: now.monotonic_ms,
            persistence: Persistence::Close,
            is_head,
            server_field: context.generation().server_field,
            alternative: None,
            may_chunk: false,
        };
        let response = error_response(rejection.status, PageFormat::Html);
        let sent = output.write_response(Response::Built(response), encoding);
        match open {
            Some((request, account)) => {
                let subject = Subject::Request(request.request());
                let handler = HandlerKind::None;
                let logged = LoggedResponse { link: request.link(), handler, hit: "", sent, is_complete: true };
                self.record(&account, subject, request.host(), logged, request.received(), *now);
            }
            None => {
                context.generation().router.count_malformed(self.listener, rejection.status, self.client, *now);
                let account = context.generation().router.default_account(self.listener);
                let logged =
                    LoggedResponse { link: None, handler: HandlerKind::None, hit: "", sent, is_complete: true };
                self.record(&account, Subject::Malformed(input), &[], logged, *now, *now);
            }
        }
    }

    /// Sends the output, and keeps the part that the socket does not accept.
    pub(super) fn flush(&mut self, turn: &mut H1Turn<'_, '_>) -> io::Result<()> {
        if turn.output.is_empty() {
            return Ok(());
        }
        let closes = self.following.is_closed() && self.output.is_idle();
        let output_bytes = turn.output.bytes.len() as u64;
        let rest = send_now(&mut self.socket, turn.output, closes)?;
        turn.context.count_sent(output_bytes - rest.as_ref().map_or(0, Transmission::remaining).min(output_bytes));
        if let Some(transmission) = rest {
            self.begin_sending(transmission, None, None);
        }
        Ok(())
    }

    pub(super) fn begin_sending(
        &mut self,
        transmission: Transmission,
        exchange: Option<H1Exchange>,
        link: Option<Rc<ClientLink>>,
    ) {
        let sending = Sending { transmission, meter: TransferMeter::default(), noted_bytes: 0, exchange, link };
        self.output.begin_sending(Box::new(sending));
    }

    /// Continues sending. Ready when all is sent.
    pub(super) fn drive_sending(&mut self, turn: &mut H1Turn<'_, '_>) -> Poll<io::Result<()>> {
        let context = turn.context;
        let result = loop {
            let Some(sending) = self.output.sending_mut() else { return Poll::Ready(Ok(())) };
            let sent_before = sending.transmission.total_sent;
            let polled = {
                let buffer = &mut context.scratch.borrow_mut().content;
                sending.transmission.poll_send(&mut self.socket, turn.task, buffer)
            };
            let awaits_source = sending.transmission.awaits_source();
            if polled.is_pending() && !awaits_source {
                sending.transmission.poll_ahead(turn.task);
            }
            let sent_bytes = sending.transmission.total_sent - sent_before;
            let has_sent = sent_bytes > 0;
            context.count_sent(sent_bytes);
            self.take_back_buffer(context);
            match polled {
                Poll::Ready(result) => break result,
                Poll::Pending if awaits_source => match self.poll_supply(turn) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => break Err(error),
                    Poll::Pending => {
                        if let Some(sending) = self.output.sending_mut() {
                            sending.meter.end_wait(context.clock.now().monotonic_ms);
                        }
                        return Poll::Pending;
                    }
                },
                Poll::Pending => match self.await_client(has_sent, context, turn.task) {
                    Ok(()) => return Poll::Pending,
                    Err(error) => break Err(error),
                },
            }
        };
        if result.is_err() {
            // Content that is delimited only by the end of the connection must not look complete.
            self.socket.abort_on_close();
        }
        if self.following.is_closed() && self.output.answering().is_none() {
            // No handler reads the content any more.
            self.receiving = None;
        }
        if let Some(exchange) = self.output.sending_mut().and_then(|sending| sending.exchange.as_mut()) {
            exchange.is_complete = result.is_ok();
        }
        self.finish_sending();
        Poll::Ready(result)
    }

    /// Sets the deadline by which the client must accept more output.
    fn await_client(&mut self, has_sent: bool, context: &Context, task: &mut Task<'_>) -> io::Result<()> {
        let Some(sending) = self.output.sending_mut() else { return Ok(()) };
        let now_ms = context.clock.now().monotonic_ms;
        let mut table = context.table.borrow_mut();
        sending.meter.end_wait(now_ms);
        let total_bytes = sending.transmission.total_sent;
        let moved_bytes = total_bytes - std::mem::replace(&mut sending.noted_bytes, total_bytes);
        table.note_progress(self.slot, moved_bytes);
        let limit = context.rate_limit();
        sending.meter.on_bytes(moved_bytes, &limit);
        sending.meter.begin_wait(now_ms);
        if sending.meter.is_too_slow(now_ms, &limit) {
            context.count_limit(Limit::RateMin);
            return Err(io::ErrorKind::TimedOut.into());
        }
        if has_sent || table.stage(self.slot) != ConnectionStage::Write {
            let deadline_ms = now_ms + context.generation().limits.write_timeout.as_millis() as u64;
            table.enter(self.slot, ConnectionStage::Write, Some(deadline_ms), task.waker());
        }
        Ok(())
    }

    /// Logs a response that was sent completely or in part.
    pub(super) fn finish_sending(&mut self) {
        let Some(sending) = self.output.end_sending() else { return };
        let Sending { transmission, exchange: Some(mut exchange), .. } = *sending else { return };
        let unsent_bytes = transmission.remaining();
        exchange.content_bytes = (exchange.content_bytes + transmission.streamed_bytes()).saturating_sub(unsent_bytes);
        self.record_exchange(&exchange);
    }

    /// Logs a response with its outcome.
    pub(super) fn record_exchange(&self, exchange: &H1Exchange) {
        let H1Exchange { request, account, hit, status, content_bytes, is_complete } = exchange;
        let subject = Subject::Request(request.request());
        let now = self.context.clock.now();
        let (link, handler) = (request.link(), request.handler());
        let logged = LoggedResponse { link, handler, hit, sent: (*status, *content_bytes), is_complete: *is_complete };
        self.record(account, subject, request.host(), logged, request.received(), now);
    }

    /// Logs a request whose client disconnected before the response.
    pub(super) fn record_gone(&mut self) {
        let (open, status) = (self.take_open_request(), Status::new(CLIENT_GONE));
        let (Some((request, account)), Some(status)) = (open, status) else { return };
        let (link, handler) = (request.link(), request.handler());
        let now = self.context.clock.now();
        self.record(
            &account,
            Subject::Request(request.request()),
            request.host(),
            LoggedResponse { link, handler, hit: "", sent: (status, 0), is_complete: false },
            request.received(),
            now,
        );
    }

    fn record(
        &self,
        account: &RequestAccount,
        subject: Subject<'_>,
        host: &[u8],
        logged: LoggedResponse<'_>,
        received: Now,
        now: Now,
    ) {
        let peer = ClientPeer { client: self.client, tls: self.tls.as_deref() };
        record(&self.context, peer, account, subject, host, logged, received..now);
    }
}

impl Sending {
    /// Bytes of output that wait for the client.
    pub(super) fn held_bytes(&self) -> usize {
        self.transmission.held_bytes()
    }

    /// Request in progress, and the number of bytes sent.
    pub(super) fn request(&self) -> Option<(&OwnedRequest, u64)> {
        Some((&self.exchange.as_ref()?.request, self.transmission.total_sent))
    }
}

impl H1Exchange {
    /// Request as it was received.
    pub(super) fn request(&self) -> &OwnedRequest {
        &self.request
    }

    /// Counts content sent in addition to the response's own.
    pub(super) fn add_content_bytes(&mut self, bytes: u64) {
        self.content_bytes += bytes;
    }
}

fn has_unknown_length(response: &Response) -> bool {
    matches!(response, Response::Built(response) if response.body.length().is_none())
}
