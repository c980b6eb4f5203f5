//! Exchanges with a server that speaks HTTP/2.

use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64ct::{Base64, Encoding};
use wire::h1::{BodyFraming, parse_content_length};
use wire::h2::OutgoingRequest;
use wire::http::forwarding::is_hop_by_hop;
use wire::http::{Fields, Method, Status};

use super::super::http2_content::Downloading;
use super::super::internal_redirect;
use super::super::read_ahead::may_read_ahead;
use super::super::response::declares_for_another;
use super::super::upload::request_trailers;
use super::{CLOSED, ForwardExchange, ForwardState, INTERIM_RESPONSES_MAX, LATE, READS_PER_TURN_MAX};
use crate::config::Intermediary;
use crate::handler::{
    Body, BuiltResponse, BuiltResult, ClientLink, ContentStream, Forwarded, Now, Tunnel, TunnelStream,
};
use crate::upstream::{ResponsePiece, StreamFailure, StreamLease, UpstreamFailure};

/// GUID appended to a WebSocket client's key (RFC 6455, section 1.3).
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A request being sent whose final head has not arrived.
pub(super) struct PendingH2Request {
    pub(super) lease: StreamLease,
    pub(super) upload: UpstreamUpload,
    has_begun: bool,
}

/// Upload of the request's content.
#[derive(Debug, Default)]
pub(in super::super) struct UpstreamUpload {
    /// True if the client sends no more, or the server accepts no more.
    is_over: bool,
    offered_bytes: u64,
    /// True while content waits for the server's 100 Continue.
    pub(super) awaits_continue: bool,
}

impl PendingH2Request {
    /// Bytes of the content that were sent so far.
    fn sent_bytes(&self) -> u64 {
        self.upload.offered_bytes.saturating_sub(self.lease.unsent_bytes() as u64)
    }
}

impl UpstreamUpload {
    /// Sends the request's content as fast as the server accepts it.
    pub(in super::super) fn poll_send(
        &mut self,
        lease: &mut StreamLease,
        link: &ClientLink,
        intermediary: &Intermediary,
        task: &mut Task<'_>,
    ) -> Poll<()> {
        while !self.is_over && !self.awaits_continue {
            // A server that accepts no more content may still respond.
            self.is_over = ready!(self.poll_piece(lease, link, intermediary, task)).unwrap_or(true);
        }
        Poll::Ready(())
    }

    /// Sends one piece; returns whether it was the last.
    fn poll_piece(
        &mut self,
        lease: &mut StreamLease,
        link: &ClientLink,
        intermediary: &Intermediary,
        task: &mut Task<'_>,
    ) -> Poll<Result<bool, StreamFailure>> {
        let room = ready!(lease.poll_room(task))?;
        let mut offered = Ok(());
        let taken = ready!(link.poll_take(task, |_, content| {
            let length = content.len().min(room);
            offered = lease.offer(&content[..length]);
            Poll::Ready(Ok(length))
        }));
        offered?;
        // The closure always succeeds.
        let taken = taken.unwrap_or_default();
        self.offered_bytes += taken as u64;
        if taken > 0 {
            return Poll::Ready(Ok(false));
        }
        lease.end_request(request_trailers(link, intermediary).map(|trailers| *trailers))?;
        Poll::Ready(Ok(true))
    }
}

impl ForwardExchange {
    /// Begins the exchange on a stream.
    pub(super) fn on_stream(&mut self, lease: StreamLease) {
        self.await_answer(lease.server_name());
        let awaits_continue = self.expects_continue;
        let is_over = self.link.framing() == BodyFraming::None && !self.asks_upgrade;
        let upload = UpstreamUpload { is_over, awaits_continue, offered_bytes: 0 };
        self.sent_bytes = 0;
        self.state = ForwardState::Streaming(PendingH2Request { lease, upload, has_begun: false });
    }

    /// Sends the request and reads the response's head.
    pub(super) fn poll_stream(&mut self, mut streaming: PendingH2Request, task: &mut Task<'_>) -> Poll<BuiltResult> {
        if self.link.take_late() {
            if !std::mem::take(&mut streaming.upload.awaits_continue) {
                return Poll::Ready(Ok(self.fail_stream(streaming, UpstreamFailure::TimedOut, LATE)));
            }
            self.await_first_byte();
        }
        for _ in 0..READS_PER_TURN_MAX {
            if !streaming.has_begun {
                match self.poll_begin(&mut streaming, task) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(Some(failure))) => return self.on_stream_failure(streaming, failure),
                    Poll::Ready(Err(None)) => {
                        let what = "does not support protocol upgrades over HTTP/2 (RFC 8441)";
                        return Poll::Ready(Ok(self.fail_stream(streaming, UpstreamFailure::Faulty, what)));
                    }
                    Poll::Pending => {
                        self.state = ForwardState::Streaming(streaming);
                        return Poll::Pending;
                    }
                }
            }
            // A tunnel's content is sent once the tunnel exists.
            if !self.asks_upgrade {
                let intermediary = &self.inner.plan.config.intermediary;
                let _ = streaming.upload.poll_send(&mut streaming.lease, &self.link, intermediary, task);
            }
            match streaming.lease.poll_response(task, &mut []) {
                Poll::Pending => {
                    self.note_progress(streaming.upload.awaits_continue, streaming.sent_bytes());
                    self.state = ForwardState::Streaming(streaming);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(ResponsePiece::Head { status, .. })) if self.begin_retry(status) => {
                    return Poll::Pending;
                }
                Poll::Ready(Ok(ResponsePiece::Head { status, fields, is_last })) if status.code() >= 200 => {
                    return Poll::Ready(Ok(self.on_stream_head(streaming, status, &fields, is_last)));
                }
                Poll::Ready(Ok(ResponsePiece::Head { status, fields, .. })) => {
                    self.interim_responses += 1;
                    if self.interim_responses > INTERIM_RESPONSES_MAX {
                        let what = "sent too many interim responses";
                        return Poll::Ready(Ok(self.fail_stream(streaming, UpstreamFailure::Faulty, what)));
                    }
                    if status == Status::CONTINUE {
                        // The client gets its own 100 Continue when its content is read.
                        streaming.upload.awaits_continue = false;
                        self.await_first_byte();
                    } else {
                        self.link.send_interim(status, passed_on(&fields));
                    }
                }
                Poll::Ready(Ok(ResponsePiece::Content(_) | ResponsePiece::End(_))) => {
                    // The engine rejects content before a head.
                    let what = "sent a response without a head";
                    return Poll::Ready(Ok(self.fail_stream(streaming, UpstreamFailure::Faulty, what)));
                }
                Poll::Ready(Err(failure)) => return self.on_stream_failure(streaming, failure),
            }
        }
        self.state = ForwardState::Streaming(streaming);
        task.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends the request's head. `Err(None)`: the server does not support tunnels.
    fn poll_begin(
        &self,
        streaming: &mut PendingH2Request,
        task: &mut Task<'_>,
    ) -> Poll<Result<(), Option<StreamFailure>>> {
        let Some(head) = &self.unversioned else { return Poll::Ready(Err(Some(StreamFailure::Closed))) };
        let protocol = head.fields.get("upgrade").filter(|_| self.asks_upgrade);
        if protocol.is_some() && !ready!(streaming.lease.poll_enables_connect(task)).map_err(Some)? {
            return Poll::Ready(Err(None));
        }
        let request = OutgoingRequest {
            method: if protocol.is_some() { b"CONNECT" } else { head.method() },
            scheme: Some(if streaming.lease.is_secure() { b"https" } else { b"http" }),
            authority: head.fields.get("host"),
            path: Some(head.target()),
            protocol,
        };
        let is_last = streaming.upload.is_over;
        let fields = request_fields(&head.fields, protocol.is_some());
        let begun = streaming.lease.begin(&request, &fields, is_last, self.link.holder().charge(0));
        streaming.has_begun = true;
        Poll::Ready(begun.map_err(Some))
    }

    /// Gives the stream up for this reason, logs it, and returns the response.
    fn fail_stream(&mut self, streaming: PendingH2Request, failure: UpstreamFailure, what: &str) -> Box<BuiltResponse> {
        self.state = ForwardState::Streaming(streaming);
        self.fail(failure, what)
    }

    fn on_stream_failure(&mut self, streaming: PendingH2Request, failure: StreamFailure) -> Poll<BuiltResult> {
        let what = failure.to_string();
        self.state = ForwardState::Streaming(streaming);
        match failure {
            StreamFailure::Rejected => self.on_closed(UpstreamFailure::Rejected, &what),
            StreamFailure::Closed => self.on_closed(UpstreamFailure::Closed, CLOSED),
            StreamFailure::Reset(_) => self.on_closed(UpstreamFailure::Faulty, &what),
            StreamFailure::Malformed => Poll::Ready(Ok(self.fail(UpstreamFailure::Faulty, &what))),
            StreamFailure::NotHttp2(_) => Poll::Ready(Ok(self.fail(UpstreamFailure::Malformed, &what))),
        }
    }

    fn on_stream_head(
        &mut self,
        streaming: PendingH2Request,
        status: Status,
        fields: &Fields,
        is_last: bool,
    ) -> Box<BuiltResponse> {
        let limits = &self.inner.plan.head_limits;
        let (bytes, count) = fields
            .iter()
            .fold((0, 0), |(bytes, count), (name, value)| (bytes + name.len() + value.len() + 4, count + 1));
        if bytes > limits.head_bytes_max || count > limits.fields_max {
            return self.fail_stream(streaming, UpstreamFailure::Faulty, "sent a response head that is too large");
        }
        let PendingH2Request { mut lease, upload, .. } = streaming;
        let now = self.now;
        self.link.forwarding().borrow_mut().on_response(status, now.unix_us);
        self.link.set_deadline(None);
        if self.asks_upgrade && (200..300).contains(&status.code()) && !is_last {
            return self.tunnel(fields, lease, now);
        }
        let has_content =
            !is_last && self.method != Method::Head && !status.has_no_content() && status != Status::RESET_CONTENT;
        let is_for_another = declares_for_another(self.method, status);
        let declared = fields.get("content-length").and_then(parse_content_length);
        let mut response = BuiltResponse::with_fields(status, passed_on(fields), Body::default());
        let internal_redirect = internal_redirect::take(&mut response.fields, &self.inner.plan, self.client);
        let is_redirect = internal_redirect.is_some();
        response.forwarded = Some(Box::new(Forwarded {
            internal_redirect,
            reason: status.reason().as_bytes().into(),
            content_length: declared.filter(|_| is_for_another),
            ..Forwarded::default()
        }));
        let sticky_field = lease.sticky_field(self.sticky, self.is_secure);
        self.link.forget_consumed();
        if has_content {
            lease.answered(now.monotonic_ms);
        }
        let request_line = self.upload.request_line().to_vec();
        let (link, inner) = (Rc::clone(&self.link), Rc::clone(&self.inner));
        let downloading = Downloading { lease, upload, link, inner, request_line, is_grpc: self.is_grpc };
        if has_content {
            let may_read_ahead = may_read_ahead(&response.fields, self.inner.plan.buffers_responses);
            let source = downloading.into_source(self.client, may_read_ahead);
            // The client of a redirect gets other content.
            response.body.stream = Some(ContentStream { source, length: declared }).filter(|_| !is_redirect);
        } else {
            downloading.finish();
        }
        self.complete(&mut response, sticky_field);
        response
    }

    /// Builds the response to extended CONNECT in the form of HTTP/1.1 (RFC 8441, section 5).
    fn tunnel(&self, fields: &Fields, lease: StreamLease, now: Now) -> Box<BuiltResponse> {
        let mut fields = passed_on(fields);
        if let Some(head) = &self.unversioned {
            if let Some(protocol) = head.fields.get("upgrade") {
                fields.push("Upgrade", protocol);
            }
            if let Some(key) = head.fields.get("sec-websocket-key") {
                let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, WEBSOCKET_GUID].concat());
                fields.set("Sec-WebSocket-Accept", Base64::encode_string(digest.as_ref()));
            }
        }
        let stream: Box<dyn TunnelStream> = Box::new(lease.into_tunnel(now.monotonic_ms));
        let idle_timeout_ms = self.inner.plan.config.tunnel_timeout.as_millis() as u64;
        let tunnel = Some(Tunnel { stream, early: Vec::new(), idle_timeout_ms });
        let mut response = BuiltResponse::with_fields(Status::SWITCHING_PROTOCOLS, fields, Body::default());
        let reason = Status::SWITCHING_PROTOCOLS.reason().as_bytes().into();
        response.forwarded = Some(Box::new(Forwarded { reason, tunnel, ..Forwarded::default() }));
        response
    }
}

/// Request fields without Host and the WebSocket key, which HTTP/2 replaces. The engine leaves out connection fields.
fn request_fields(fields: &Fields, is_tunnel: bool) -> Fields {
    let mut own = fields.clone();
    own.retain(|name| {
        let is_of_handshake = is_tunnel && name.eq_ignore_ascii_case(b"sec-websocket-key");
        !name.eq_ignore_ascii_case(b"host") && !is_of_handshake
    });
    own
}

/// Response fields that are passed on, in their order.
fn passed_on(fields: &Fields) -> Fields {
    let mut passed_on = fields.clone();
    passed_on.retain(|name| !is_hop_by_hop(name));
    passed_on
}
