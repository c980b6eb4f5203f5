//! A server's response, as it is passed on.

use bytes::Bytes;
use wire::h1::{BodyDecoder, BodyFraming, BodyLimits, ResponseFraming, ResponseHead, parse_content_length};
use wire::http::forwarding::{is_hop_by_hop, is_named_by_connection};
use wire::http::{Fields, Method, Span, Status};

use super::content::{RemainingContent, Upstreaming};
use super::internal_redirect;
use super::peer::GatewayPeer;
use super::read_ahead::may_read_ahead;
use super::upload::response_trailers;
use crate::handler::{Body, BuiltResponse, ContentSource, ContentStream, Forwarded, Segment, Tunnel};

/// Start of a response: its head, and the bytes read after it.
#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    pub(super) head: &'a ResponseHead,
    /// Bytes of the head, and those after it.
    pub(super) bytes: &'a [u8],
    pub(super) head_bytes: usize,
    /// Local path that a script redirects to.
    pub(super) local_location: Option<Span>,
}

/// True if a response without content may declare the length of another response's content. A 204 must not declare one,
/// even to HEAD, and a 205 has none (RFC 9110, sections 8.6 and 15.3.6).
pub(super) fn declares_for_another(method: Method, status: Status) -> bool {
    let is_head = method == Method::Head && !matches!(status, Status::NO_CONTENT | Status::RESET_CONTENT);
    is_head || status == Status::NOT_MODIFIED
}

/// Fields of an interim response that are passed on.
pub(super) fn interim_fields(received: &Received<'_>) -> Fields {
    received.fields()
}

impl Received<'_> {
    /// Builds the response for the client. If it can't be passed on, returns the peer and the reason.
    #[inline]
    pub(super) fn into_response(
        self,
        method: Method,
        asks_upgrade: bool,
        upstreaming: Upstreaming,
    ) -> Result<Box<BuiltResponse>, (GatewayPeer, &'static str)> {
        if self.head.status == Status::SWITCHING_PROTOCOLS {
            return self.into_tunnel(asks_upgrade, upstreaming);
        }
        let framing = match self.head.framing(self.bytes, method) {
            Ok(framing) => framing,
            Err(malformed) => return Err((upstreaming.peer, malformed.0)),
        };
        let mut response = BuiltResponse::with_fields(self.head.status, self.fields(), Body::default());
        let mut forwarded = self.forwarded();
        if !upstreaming.is_http && forwarded.reason.is_empty() {
            forwarded.reason = self.head.status.reason().as_bytes().into();
        }
        let redirect = internal_redirect::take(&mut response.fields, &upstreaming.inner.plan, upstreaming.client);
        let is_redirect = redirect.is_some();
        forwarded.internal_redirect = redirect;
        let rest = &self.bytes[self.head_bytes..];
        let may_read_ahead = may_read_ahead(&response.fields, upstreaming.inner.plan.buffers_responses);
        let location = self.local_location.filter(|_| !is_redirect);
        if location.is_some() || (is_redirect && !upstreaming.is_http) {
            forwarded.local_redirect = location.map(|location| location.of(self.bytes).to_vec());
            response.forwarded = Some(Box::new(forwarded));
            upstreaming.drain();
            return Ok(response);
        }
        let is_persistent = upstreaming.is_http && self.head.is_persistent(self.bytes);
        match framing {
            ResponseFraming::Delimited(BodyFraming::None) => {
                let is_for_another = declares_for_another(method, self.head.status);
                forwarded.content_length = self.declared_length().filter(|_| is_for_another);
                let declares_content = self.declares_content();
                match upstreaming.is_http {
                    true => upstreaming.finish_without_content(
                        is_persistent && rest.is_empty() && (method == Method::Head || !declares_content),
                        declares_content,
                    ),
                    false => upstreaming.drain(),
                }
            }
            // A 205 has no content (RFC 9110, section 15.3.6): strict clients would take it for the next response.
            _ if self.head.status == Status::RESET_CONTENT => {
                let is_empty = framing == ResponseFraming::Delimited(BodyFraming::Length(0)) && rest.is_empty();
                match upstreaming.is_http {
                    true => upstreaming.finish(is_persistent && is_empty),
                    false => upstreaming.drain(),
                }
            }
            ResponseFraming::Delimited(BodyFraming::Length(length)) if upstreaming.records.is_some() => {
                response.body = in_records(Some(length), rest, may_read_ahead, upstreaming)?;
            }
            ResponseFraming::UntilClose if upstreaming.records.is_some() => {
                response.body = in_records(None, rest, may_read_ahead, upstreaming)?;
            }
            ResponseFraming::Delimited(BodyFraming::Chunked) if upstreaming.records.is_some() => {
                return Err((upstreaming.peer, "sent chunked content in FastCGI records"));
            }
            ResponseFraming::Delimited(BodyFraming::Length(length)) => {
                response.body = with_length(length, rest, is_persistent, may_read_ahead, upstreaming);
            }
            ResponseFraming::Delimited(BodyFraming::Chunked) => {
                response.body = chunked(rest, is_persistent, may_read_ahead, upstreaming)?;
            }
            ResponseFraming::UntilClose => {
                let source = upstreaming.stream(RemainingContent::Close, false).into_source(may_read_ahead);
                response.body = streamed(Bytes::copy_from_slice(rest), None, source);
            }
        }
        if is_redirect {
            // The client gets other content.
            response.body = Body::default();
        }
        response.forwarded = Some(Box::new(forwarded));
        Ok(response)
    }

    /// Switches protocols, if the client requested it. Only to one that `upgrade` allows (RFC 9110, section 7.8).
    fn into_tunnel(
        self,
        asks_upgrade: bool,
        upstreaming: Upstreaming,
    ) -> Result<Box<BuiltResponse>, (GatewayPeer, &'static str)> {
        if !asks_upgrade {
            return Err((upstreaming.peer, "switched protocols without a request to"));
        }
        let allowed = &upstreaming.inner.plan.config.upgrades;
        let is_allowed = |protocol: &[u8]| allowed.iter().any(|name| protocol.eq_ignore_ascii_case(name.as_bytes()));
        if !self.head.values(self.bytes, b"upgrade").all(is_allowed) {
            return Err((upstreaming.peer, "switched to a protocol that `upgrade` does not name"));
        }
        let mut response = BuiltResponse::with_fields(self.head.status, self.fields(), Body::default());
        for protocol in self.head.values(self.bytes, b"upgrade") {
            response.fields.push("Upgrade", protocol);
        }
        upstreaming.link.remove_deadlines();
        let mut forwarded = self.forwarded();
        forwarded.tunnel = Some(Tunnel {
            early: self.bytes[self.head_bytes..].to_vec(),
            idle_timeout_ms: upstreaming.inner.plan.config.tunnel_timeout.as_millis() as u64,
            stream: upstreaming.into_tunnel().map_err(|peer| (peer, "switched protocols without a request to"))?,
        });
        response.forwarded = Some(Box::new(forwarded));
        Ok(response)
    }

    fn forwarded(&self) -> Forwarded {
        let (reported, usual) = (self.head.reason.of(self.bytes), self.head.status.reason().as_bytes());
        let reason = if reported == usual { usual.into() } else { reported.to_vec().into() };
        Forwarded { reason, ..Forwarded::default() }
    }

    fn declared_length(&self) -> Option<u64> {
        self.head.values(self.bytes, b"content-length").next().and_then(parse_content_length)
    }

    /// True if fields declare content, even where it belongs to another response.
    fn declares_content(&self) -> bool {
        let has_coding = self.head.values(self.bytes, b"transfer-encoding").next().is_some();
        has_coding || self.head.values(self.bytes, b"content-length").any(|length| length != b"0")
    }

    /// Fields that are passed on, in their order.
    fn fields(&self) -> Fields {
        // Compression adds a line, of which many responses need none.
        let mut fields = Fields::with_capacity(self.head_bytes, self.head.fields.len() + 1);
        let has_connection = self.head.values(self.bytes, b"connection").next().is_some();
        for field in &self.head.fields {
            let name = field.name.of(self.bytes);
            let is_nominated =
                has_connection && is_named_by_connection(name, self.head.values(self.bytes, b"connection"));
            // A client can only upgrade if the response names the protocol (RFC 9110, section 15.5.22).
            let is_wanted_upgrade =
                self.head.status == Status::UPGRADE_REQUIRED && name.eq_ignore_ascii_case(b"upgrade");
            // Ports of the upstream mean nothing to clients of this server (RFC 7838).
            let is_alternative = name.eq_ignore_ascii_case(b"alt-svc");
            if is_wanted_upgrade || (!is_hop_by_hop(name) && !is_nominated && !is_alternative) {
                fields.push_parsed(self.bytes, field.name, field.value);
            }
        }
        fields
    }
}

/// Content in FastCGI records that begins with `rest`; the head may have declared its length.
fn in_records(
    length: Option<u64>,
    rest: &[u8],
    may_read_ahead: bool,
    upstreaming: Upstreaming,
) -> Result<Body, (GatewayPeer, &'static str)> {
    let there = length.map_or(rest.len(), |length| rest.len().min(usize::try_from(length).unwrap_or(usize::MAX)));
    let content = Bytes::copy_from_slice(&rest[..there]);
    let remaining = length.map(|length| length - there as u64);
    match &upstreaming.records {
        Some(records) if records.has_ended() => {
            if matches!(remaining, Some(1..)) {
                return Err((upstreaming.peer, "sent less content than its Content-Length"));
            }
            let is_reusable = records.is_reusable();
            upstreaming.finish(is_reusable);
            Ok(Body::from_bytes(content))
        }
        _ => {
            let source = upstreaming.stream(RemainingContent::Records(remaining), true).into_source(may_read_ahead);
            Ok(streamed(content, remaining, source))
        }
    }
}

/// Content of known length that begins with `rest`.
#[inline]
fn with_length(length: u64, rest: &[u8], is_persistent: bool, may_read_ahead: bool, upstreaming: Upstreaming) -> Body {
    let there = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
    let content = Bytes::copy_from_slice(&rest[..there]);
    let remaining = length - there as u64;
    if remaining == 0 {
        // Unexpected bytes after it make the connection unusable.
        upstreaming.finish(is_persistent && there == rest.len());
        return Body::from_bytes(content);
    }
    let source = upstreaming.stream(RemainingContent::Length(remaining), is_persistent).into_source(may_read_ahead);
    streamed(content, Some(remaining), source)
}

/// Chunked content that begins with `rest`.
fn chunked(
    rest: &[u8],
    is_persistent: bool,
    may_read_ahead: bool,
    upstreaming: Upstreaming,
) -> Result<Body, (GatewayPeer, &'static str)> {
    let limits = body_limits(upstreaming.trailer_limits);
    // Always `Some` for chunked framing.
    let Some(mut decoder) = BodyDecoder::new(BodyFraming::Chunked) else { return Ok(Body::default()) };
    let (mut content, mut at) = (Vec::with_capacity(rest.len()), 0);
    loop {
        let decoded = match decoder.decode(&rest[at..], &limits) {
            Ok(decoded) => decoded,
            Err(rejection) => return Err((upstreaming.peer, rejection.reason)),
        };
        content.extend_from_slice(&rest[at..][decoded.content]);
        at += decoded.consumed_bytes;
        if decoded.is_complete {
            let intermediary = &upstreaming.inner.plan.config.intermediary;
            let trailers = response_trailers(Box::new(decoder.take_trailers()), intermediary, upstreaming.is_grpc);
            let is_clean = is_persistent && at == rest.len();
            if trailers.is_none() {
                upstreaming.finish(is_clean);
                return Ok(Body::from_bytes(content));
            }
            let source = upstreaming.stream(RemainingContent::Nothing(trailers), is_clean);
            return Ok(streamed(content.into(), None, source.into_source(false)));
        }
        if decoded.consumed_bytes == 0 || at == rest.len() {
            let source = upstreaming.stream(RemainingContent::Chunks(Box::new(decoder)), is_persistent);
            return Ok(streamed(content.into(), None, source.into_source(may_read_ahead)));
        }
    }
}

/// Limits of chunked content, whose total length is not limited.
pub(super) fn body_limits(trailer_bytes_max: usize) -> BodyLimits {
    BodyLimits { body_bytes_max: u64::MAX, extension_bytes_max: trailer_bytes_max, trailer_bytes_max }
}

fn streamed(content: Bytes, length: Option<u64>, source: Box<dyn ContentSource>) -> Body {
    let segments = if content.is_empty() { Vec::new() } else { vec![Segment::Bytes(content)] };
    Body { segments, stream: Some(ContentStream { source, length }) }
}
