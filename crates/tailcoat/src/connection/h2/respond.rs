//! Responses: sent as frames at once, or as exchanges that have content to send.

use std::io;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use wire::h2::{ErrorCode, Placement, Priority, StreamId};
use wire::http::{ContentCoding, Status};

use super::content::OutgoingContent;
use super::exchange::{ClientWait, Early, H2Exchange, H2ResponseHead, H2Work, RequestedContent};
use super::extended_connect::answer_connect;
use super::head::{Chosen, send_built_head, send_object_head};
use super::receive::UNREADABLE;
use super::tunnel::H2Tunnel;
use super::{H2Connection, H2Turn, OUTPUT_BYTES};
use crate::connection::record::{CLIENT_GONE, ClientPeer, LoggedResponse, is_hit, record};
use crate::handler::{Body, ChangedResponse, Now, OwnedRequest, Response, Routed, Segment, content_slice};
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

/// Content that must follow a head.
enum Begin {
    Nothing,
    /// Range of the content of an object in memory.
    Memory(Rc<CachedObject>, ContentCoding, Range<u64>),
    /// Any other content.
    Body(Body),
}

impl H2Connection {
    /// Sends a response that the handler returned at once.
    #[expect(clippy::too_many_arguments, reason = "all that is known of a request when it has been answered")]
    pub(super) fn respond_now(
        &mut self,
        stream: StreamId,
        asked: RequestedContent,
        priority: Priority,
        routed: &Routed<'_>,
        response: Response,
        account: RequestAccount,
        turn: &mut H2Turn<'_, '_>,
    ) -> io::Result<()> {
        let is_hit = is_hit(&response);
        let Some(ResponseStart { status, content }) = self.begin(stream, asked, response, false, turn) else {
            return Ok(());
        };
        let (outgoing, content_bytes) = match content {
            Begin::Nothing => (None, 0),
            Begin::Memory(object, coding, range) => {
                let ObjectContent::Memory(content) = &object.object.representation(coding).content else {
                    return Ok(());
                };
                let content_bytes = range.end - range.start;
                let bytes = &content[range.start as usize..range.end as usize];
                let sent_bytes = self.send_memory(stream, bytes, priority, turn);
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
                let logged = LoggedResponse { link, handler, is_hit, sent, is_complete: true };
                let subject = Subject::Request(routed.request);
                record(turn.context, self.peer(), &account, subject, routed.host, logged, routed.now..turn.now);
            }
            Some(outgoing) => {
                let request = Rc::new(logged_request(routed, &account, self.slot, turn));
                let exchange = H2Exchange {
                    outgoing,
                    is_due: true,
                    is_slim: true,
                    reply: Some(H2ResponseHead { status, is_hit }),
                    ..self.new_exchange(stream, asked, H2Work::Responding, request, account, turn)
                };
                self.exchanges.push(exchange);
            }
        }
        if turn.output.length() >= OUTPUT_BYTES {
            self.write_full(turn)?;
        }
        Ok(())
    }

    /// Sends an error response to a request that could not be parsed.
    pub(super) fn respond_rejected(
        &mut self,
        stream: StreamId,
        asked: RequestedContent,
        response: Response,
        account: &RequestAccount,
        turn: &mut H2Turn<'_, '_>,
    ) {
        let Some(ResponseStart { status, content }) = self.begin(stream, asked, response, false, turn) else { return };
        let mut content_bytes = 0;
        if let Begin::Body(body) = content {
            // A page of this server consists of one piece.
            for segment in body.segments {
                if let Segment::Bytes(bytes) = segment {
                    content_bytes = self.send_page(stream, &bytes, turn);
                }
            }
        }
        let (handler, sent) = (HandlerKind::None, (status, content_bytes));
        let logged = LoggedResponse { link: None, handler, is_hit: false, sent, is_complete: true };
        record(turn.context, self.peer(), account, UNREADABLE, &[], logged, turn.now..turn.now);
    }

    /// Sends the response of an exchange.
    pub(super) fn respond(&mut self, index: usize, mut response: Response, turn: &mut H2Turn<'_, '_>) {
        let exchange = self.exchanges.at(index);
        let (stream, asked) = (exchange.stream, exchange.asked);
        let tunnel = response.take_tunnel().filter(|_| asked == RequestedContent::Protocol);
        let is_hit = is_hit(&response);
        let Some(ResponseStart { status, content }) = self.begin(stream, asked, response, tunnel.is_some(), turn)
        else {
            // The stream was reset.
            return self.on_reset(stream, turn);
        };
        let exchange = self.exchanges.at(index);
        exchange.reply = Some(H2ResponseHead { status, is_hit });
        exchange.is_due = true;
        if let Some(tunnel) = tunnel {
            let Early { content, has_ended } = std::mem::take(&mut exchange.early);
            let mut tunneling = H2Tunnel::new(tunnel, turn.now.monotonic_ms);
            tunneling.on_content(&content, has_ended, turn.now.monotonic_ms);
            exchange.work = H2Work::Tunneling(Box::new(tunneling));
            return;
        }
        exchange.work = H2Work::Responding;
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
    pub(super) fn slim(&mut self, index: usize, turn: &H2Turn<'_, '_>) {
        let slot = self.slot;
        let exchange = self.exchanges.at(index);
        let slim = logged_request(&exchange.request.routed(false), &exchange.account, slot, turn);
        (exchange.request, exchange.is_slim) = (Rc::new(slim), true);
    }

    /// Makes an exchange of which nothing has been sent.
    pub(super) fn new_exchange(
        &mut self,
        stream: StreamId,
        asked: RequestedContent,
        work: H2Work,
        request: Rc<OwnedRequest>,
        account: RequestAccount,
        turn: &H2Turn<'_, '_>,
    ) -> H2Exchange {
        H2Exchange {
            stream,
            request,
            account,
            asked,
            work,
            upload: None,
            early: Early::default(),
            outgoing: OutgoingContent::default(),
            reply: None,
            waker: self.exchanges.waker(stream, turn.task.waker()),
            is_due: false,
            _trailers: None,
            is_slim: false,
            wait: ClientWait::default(),
        }
    }

    /// Sends the head of a response; `None` if the stream is gone.
    fn begin(
        &mut self,
        stream: StreamId,
        asked: RequestedContent,
        response: Response,
        has_tunnel: bool,
        turn: &mut H2Turn<'_, '_>,
    ) -> Option<ResponseStart> {
        let is_connect = matches!(asked, RequestedContent::Connection | RequestedContent::Protocol);
        let response = if is_connect { answer_connect(response, has_tunnel) } else { response };
        if is_connect && !has_tunnel {
            self.wire.reject_tunnel(stream);
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
                let wire = &mut self.wire;
                let body = match has_tunnel {
                    true => {
                        wire.send_response(stream, status, &response.fields, false, &mut turn.wire()).ok()?;
                        None
                    }
                    false => send_built_head(stream, *response, is_head, wire, turn).ok()?,
                };
                return Some(ResponseStart { status, content: body.map_or(Begin::Nothing, Begin::Body) });
            }
        };
        let chosen = Chosen { object: &object.object, coding, form, changes: &changes };
        let (status, range) = send_object_head(stream, chosen, is_head, &mut self.wire, turn).ok()?;
        let content = match &object.object.representation(coding).content {
            _ if range.is_empty() => Begin::Nothing,
            ObjectContent::Memory(_) => Begin::Memory(object, coding, range),
            file => Begin::Body(Body::from_segments(vec![content_slice(file, &range)])),
        };
        Some(ResponseStart { status, content })
    }

    /// Sends content that is in memory, if no other content must be sent first. Returns the number of bytes that the
    /// engine accepted; the rest stays offered.
    fn send_memory(&mut self, stream: StreamId, bytes: &[u8], priority: Priority, turn: &mut H2Turn<'_, '_>) -> u64 {
        let is_first = bytes.len() <= OUTPUT_BYTES
            && !self.wire.has_content_to_send()
            && priority.urgency <= Priority::default().urgency;
        let offered = self.wire.offer_content(stream, bytes.len() as u64, true, &mut turn.wire());
        if offered.is_err() || !is_first {
            return 0;
        }
        self.wire.poll_output(usize::MAX, &mut turn.wire(), |_, range, out| {
            out.extend_from_slice(&bytes[range.start as usize..range.end as usize]);
            Placement::Copied
        });
        bytes.len() as u64 - self.wire.unsent_bytes(stream).unwrap_or(0)
    }

    /// Sends a page of this server. Resets the stream if the client does not accept all of it at once.
    fn send_page(&mut self, stream: StreamId, bytes: &Bytes, turn: &mut H2Turn<'_, '_>) -> u64 {
        let sent_bytes = self.send_memory(stream, bytes, Priority::default(), turn);
        if sent_bytes < bytes.len() as u64 {
            self.wire.reset(stream, ErrorCode::CANCEL, &mut turn.wire());
        }
        sent_bytes
    }

    fn peer(&self) -> ClientPeer<'_> {
        ClientPeer { client: self.client, tls: self.tls.as_deref() }
    }

    /// Logs an exchange with its outcome.
    pub(super) fn record_exchange(&self, exchange: &H2Exchange, is_complete: bool, now: Now) {
        let H2Exchange { request, account, reply, outgoing, work, .. } = exchange;
        // An exchange without a response ended because its client has gone.
        let Some(gone) = Status::new(CLIENT_GONE) else { return };
        let (status, is_hit) = reply.map_or((gone, false), |reply| (reply.status, reply.is_hit));
        // A tunnel's content has no end that could be missed.
        let is_complete = is_complete || matches!(work, H2Work::Tunneling(_));
        let (link, handler) = (request.link(), request.handler());
        let logged = LoggedResponse { link, handler, is_hit, sent: (status, outgoing.sent_bytes), is_complete };
        let subject = Subject::Request(request.request());
        record(&self.context, self.peer(), account, subject, request.host(), logged, request.received()..now);
    }
}

/// Copies the logged parts of a request whose client reads the response slowly.
fn logged_request(routed: &Routed<'_>, account: &RequestAccount, slot: u32, turn: &H2Turn<'_, '_>) -> OwnedRequest {
    let recorder = turn.context.recorder.borrow();
    let needs = account.log.and_then(|log| recorder.needs(log));
    let is_crowded = turn.context.memory.head_bytes(slot) >= LOGGED_BYTES_MAX;
    OwnedRequest::for_log(routed, needs, if is_crowded { CROWDED_VALUE_BYTES_MAX } else { usize::MAX - 1 })
}
