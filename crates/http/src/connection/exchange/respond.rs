//! Responses: sent at once, or as exchanges that have content to send.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use wire::Priority;
use wire::http::{ContentCoding, Status};

use super::content::OutgoingContent;
use super::extended_connect::answer_connect;
use super::head::{Chosen, send_built_head, send_object_head};
use super::stream_exchange::{ClientWait, Early, ExchangeWork, RequestedContent, SentHead, StreamExchange};
use super::stream_exchanges::ListMarks;
use super::tunnel::StreamTunnel;
use super::{ExchangeTurn, HttpStreams, StreamExchanges, StreamFault, StreamKey};
use crate::connection::Context;
use crate::connection::record::{CLIENT_GONE, LoggedResponse, NO_RESPONSE, record};
use crate::handler::{
    Body, ChangedResponse, Now, OwnedRequest, Response, ResponseEnding, Routed, Segment, content_slice,
};
use crate::log::Subject;
use crate::metrics::HandlerKind;
use crate::object_cache::{CachedObject, ObjectContent};
use crate::routing::RequestAccount;

/// Bytes of heads that a connection may hold before logged values are shortened.
const LOGGED_BYTES_MAX: u64 = 32 << 10;

/// Maximum length of a logged value in that case, in bytes; most values are shorter.
const CROWDED_VALUE_BYTES_MAX: usize = 256;

/// Response whose head has been sent.
struct ResponseStart {
    status: Status,
    content: Begin,
}

/// Log subject of a request that could not be parsed.
const UNREADABLE: Subject<'static> = Subject::Malformed(b"");

/// Content that must follow a head.
enum Begin {
    Nothing,
    /// Range of the content of an object in memory.
    Memory(Rc<CachedObject>, ContentCoding, Range<u64>),
    /// Any other content.
    Body(Body),
}

impl<Id: StreamKey> StreamExchanges<Id> {
    /// Sends a response that the handler returned at once.
    pub(super) fn respond_now<S: HttpStreams<Id = Id>>(
        &mut self,
        (stream, asked, priority): (Id, RequestedContent, Priority),
        routed: &Routed<'_>,
        response: Response,
        account: RequestAccount,
        streams: &mut S,
        turn: &mut ExchangeTurn<'_>,
    ) {
        if response.ending() != ResponseEnding::Normal {
            self.ending = response.ending();
            let (link, handler) = (routed.link.get(), routed.link.handler());
            let Some(status) = Status::new(NO_RESPONSE) else { return };
            let logged = LoggedResponse { link, handler, hit: "", sent: (status, 0), is_complete: true };
            let subject = Subject::Request(routed.request);
            return record(
                turn.context,
                self.client.peer(),
                &account,
                subject,
                routed.host,
                logged,
                routed.now..turn.now,
            );
        }
        let hit = response.hit();
        let Some(ResponseStart { status, content }) =
            begin((stream, asked, self.client.alternative()), response, false, streams, turn)
        else {
            return;
        };
        let (outgoing, content_bytes) = match content {
            Begin::Nothing => (None, 0),
            Begin::Memory(object, coding, range) => {
                let ObjectContent::Memory(content) = &object.object.representation(coding).content else {
                    return;
                };
                let content_bytes = range.end - range.start;
                let part = range.start as usize..range.end as usize;
                let sent_bytes = streams.send_content(stream, content, part, priority);
                let rest = range.start + sent_bytes..range.end;
                let outgoing = (sent_bytes < content_bytes).then(|| {
                    let rest = content.slice(rest.start as usize..rest.end as usize);
                    OutgoingContent::rest(rest, sent_bytes)
                });
                (outgoing, content_bytes)
            }
            Begin::Body(body) => (Some(OutgoingContent::new(body)), 0),
        };
        match outgoing {
            None => {
                let sent = (status, content_bytes);
                let (link, handler) = (routed.link.get(), routed.link.handler());
                let logged = LoggedResponse { link, handler, hit, sent, is_complete: true };
                let subject = Subject::Request(routed.request);
                record(turn.context, self.client.peer(), &account, subject, routed.host, logged, routed.now..turn.now);
            }
            Some(outgoing) => {
                let request = Rc::new(logged_request(routed, &account, self.client.slot, turn));
                let exchange = StreamExchange {
                    outgoing,
                    is_slim: true,
                    reply: Some(SentHead { status, hit }),
                    ..self.new_exchange(stream, asked, ExchangeWork::Responding, request, account, turn)
                };
                self.insert(exchange);
            }
        }
    }

    /// Sends an error response to a request that could not be parsed.
    pub(super) fn respond_rejected<S: HttpStreams<Id = Id>>(
        &mut self,
        stream: Id,
        asked: RequestedContent,
        response: Response,
        account: &RequestAccount,
        streams: &mut S,
        turn: &ExchangeTurn<'_>,
    ) {
        let Some(ResponseStart { status, content }) =
            begin((stream, asked, self.client.alternative()), response, false, streams, turn)
        else {
            return;
        };
        let mut content_bytes = 0;
        if let Begin::Body(body) = content {
            // A page of this server consists of one piece.
            for segment in body.segments {
                if let Segment::Bytes(bytes) = segment {
                    content_bytes = send_page(stream, &bytes, streams);
                }
            }
        }
        let (handler, sent) = (HandlerKind::None, (status, content_bytes));
        let logged = LoggedResponse { link: None, handler, hit: "", sent, is_complete: true };
        record(turn.context, self.client.peer(), account, UNREADABLE, &[], logged, turn.now..turn.now);
    }

    /// Sends the response of an exchange.
    pub(super) fn respond<S: HttpStreams<Id = Id>>(
        &mut self,
        index: usize,
        mut response: Response,
        streams: &mut S,
        turn: &ExchangeTurn<'_>,
    ) {
        if response.ending() != ResponseEnding::Normal {
            self.ending = response.ending();
            let status = Status::new(NO_RESPONSE);
            self.at(index).reply = status.map(|status| SentHead { status, hit: "" });
            return;
        }
        let exchange = self.at(index);
        let (stream, asked) = (exchange.stream, exchange.asked);
        let tunnel = response.take_tunnel().filter(|_| asked == RequestedContent::Protocol);
        let hit = response.hit();
        let started = begin((stream, asked, self.client.alternative()), response, tunnel.is_some(), streams, turn);
        let Some(ResponseStart { status, content }) = started else {
            // The stream was reset.
            return self.on_reset(stream, turn);
        };
        self.mark_due(index);
        let exchange = self.at(index);
        exchange.reply = Some(SentHead { status, hit });
        if let Some(tunnel) = tunnel {
            let Early { content, has_ended } = std::mem::take(&mut exchange.early);
            let mut tunneling = StreamTunnel::new(tunnel, turn.now.monotonic_ms);
            tunneling.on_content(&content, has_ended, turn.now.monotonic_ms);
            exchange.work = ExchangeWork::Tunneling(Box::new(tunneling));
            return;
        }
        exchange.work = ExchangeWork::Responding;
        exchange.outgoing = match content {
            // The response ends with its head.
            Begin::Nothing => OutgoingContent::ended(),
            Begin::Memory(object, coding, range) => {
                let content = &object.object.representation(coding).content;
                OutgoingContent::new(Body::from_segments(vec![content_slice(content, &range)]))
            }
            Begin::Body(body) => OutgoingContent::new(body),
        };
    }

    /// Drops all but the logged parts of a request. Called when its response is being sent and the client is slow.
    pub(super) fn slim(&mut self, index: usize, turn: &ExchangeTurn<'_>) {
        let slot = self.client.slot;
        let exchange = self.at(index);
        let slim = logged_request(&exchange.request.routed(false), &exchange.account, slot, turn);
        (exchange.request, exchange.is_slim) = (Rc::new(slim), true);
    }

    /// Makes an exchange of which nothing has been sent.
    pub(super) fn new_exchange(
        &mut self,
        stream: Id,
        asked: RequestedContent,
        work: ExchangeWork,
        request: Rc<OwnedRequest>,
        account: RequestAccount,
        turn: &ExchangeTurn<'_>,
    ) -> StreamExchange<Id> {
        StreamExchange {
            stream,
            request,
            account,
            asked,
            work,
            upload: None,
            early: Early::default(),
            outgoing: OutgoingContent::default(),
            reply: None,
            waker: self.waker(stream, turn.waker),
            marks: ListMarks::default(),
            _trailers: None,
            is_slim: false,
            wait: ClientWait::default(),
        }
    }

    /// Logs an exchange with its outcome.
    pub(super) fn record_exchange(
        &self,
        exchange: &StreamExchange<Id>,
        is_complete: bool,
        context: &Context,
        now: Now,
    ) {
        let StreamExchange { request, account, reply, outgoing, work, .. } = exchange;
        // An exchange without a response ended because its client has gone.
        let Some(gone) = Status::new(CLIENT_GONE) else { return };
        let (status, hit) = reply.map_or((gone, ""), |reply| (reply.status, reply.hit));
        // A tunnel's content has no end that could be missed.
        let is_complete = is_complete || matches!(work, ExchangeWork::Tunneling(_));
        let (link, handler) = (request.link(), request.handler());
        let logged = LoggedResponse { link, handler, hit, sent: (status, outgoing.sent_bytes), is_complete };
        let subject = Subject::Request(request.request());
        record(context, self.client.peer(), account, subject, request.host(), logged, request.received()..now);
    }
}

/// Sends the head of a response; `None` if the stream is closed.
fn begin<S: HttpStreams>(
    (stream, asked, alternative): (S::Id, RequestedContent, Option<u16>),
    response: Response,
    has_tunnel: bool,
    streams: &mut S,
    turn: &ExchangeTurn<'_>,
) -> Option<ResponseStart> {
    let is_connect = matches!(asked, RequestedContent::Connection | RequestedContent::Protocol);
    let response = if is_connect { answer_connect(response, has_tunnel) } else { response };
    if is_connect && !has_tunnel {
        streams.reject_tunnel(stream);
    }
    let is_head = asked == RequestedContent::HeadOnly;
    let (object, coding, form, changes) = match response {
        Response::Cached { object, coding, form } => (object, coding, form, Vec::new()),
        Response::Changed(response) => {
            let ChangedResponse { object, coding, form, changes } = *response;
            (object, coding, form, changes)
        }
        Response::Built(response) => {
            let status = response.status;
            let body = match has_tunnel {
                true => {
                    streams.send_response(stream, status, &response.fields, false).ok()?;
                    None
                }
                false => send_built_head(stream, *response, (is_head, alternative), streams, turn).ok()?,
            };
            return Some(ResponseStart { status, content: body.map_or(Begin::Nothing, Begin::Body) });
        }
    };
    let chosen = Chosen { object: &object.object, coding, form, changes: &changes, alternative };
    let (status, range) = send_object_head(stream, chosen, is_head, streams, turn).ok()?;
    let content = match &object.object.representation(coding).content {
        _ if range.is_empty() => Begin::Nothing,
        ObjectContent::Memory(_) => Begin::Memory(object, coding, range),
        file => Begin::Body(Body::from_segments(vec![content_slice(file, &range)])),
    };
    Some(ResponseStart { status, content })
}

/// Sends a page of this server. Resets the stream if the client does not accept all of it at once.
fn send_page<S: HttpStreams>(stream: S::Id, bytes: &Bytes, streams: &mut S) -> u64 {
    let sent_bytes = streams.send_content(stream, bytes, 0..bytes.len(), Priority::default());
    if sent_bytes < bytes.len() as u64 {
        streams.reset(stream, StreamFault::Cancelled);
    }
    sent_bytes
}

/// Copies the logged parts of a request whose client reads the response slowly.
fn logged_request(routed: &Routed<'_>, account: &RequestAccount, slot: u32, turn: &ExchangeTurn<'_>) -> OwnedRequest {
    let recorder = turn.context.recorder.borrow();
    let needs = account.log.and_then(|log| recorder.needs(log));
    let is_crowded = turn.context.memory.head_bytes(slot) >= LOGGED_BYTES_MAX;
    let keeps_fields = account.log_filter.as_ref().is_some_and(|filter| filter.when.is_some());
    OwnedRequest::for_log(
        routed,
        needs,
        keeps_fields,
        if is_crowded { CROWDED_VALUE_BYTES_MAX } else { usize::MAX - 1 },
    )
}
