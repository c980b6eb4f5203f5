//! Decoder for request heads (RFC 9113, section 8.3.1; RFC 8441; RFC 9114, section 4.3.1; RFC 9220). It turns a block into
//! the form that all HTTP versions share. Sections without an RFC are those of RFC 9113; RFC 9114 has the same rules.

use super::field_rules::{Malformed, check_field, check_value};
use super::priority::Priority;
use super::{BlockDecoder, DecodedField, InvalidBlock, known_field};
use crate::h1::{BodyFraming, HeadLimits, MessageRejection, expects_continue, is_token_byte, parse_content_length};
use crate::http::{Host, KnownField, Method, Request, RequestHead, RequestTarget, Span, Status, TargetForm, Version};

/// A request with a complete head. The head itself is in the [`RequestHead`] and text it was decoded into. It always
/// has a Host field: without one from the client, the decoder adds it from `:authority`.
#[derive(Clone, Debug)]
pub struct IncomingRequest<StreamId> {
    /// Stream for the response.
    pub stream: StreamId,
    /// True if content follows. Without content the request is complete. In HTTP/3, content may be empty, because a
    /// stream can end after the head.
    pub has_content: bool,
    /// Content-Length, if the client has sent it.
    pub content_length: Option<u64>,
    /// True if the client waits for 100 (Continue) before it sends content (RFC 9110, section 10.1.1).
    pub expects_continue: bool,
    /// `:protocol` of an extended CONNECT (RFC 8441, RFC 9220). Unlike for CONNECT, the target is then a path.
    pub protocol: Option<Span>,
    /// True if `:scheme` is https. The client may send either on any connection.
    pub is_https: bool,
    /// Priority of the response.
    pub priority: Priority,
    /// Offsets of the pseudo-fields' values in the text, by kind: method, authority, scheme, path.
    pseudo_starts: [Option<u32>; 4],
    form: TargetForm,
    path: Span,
    query: Option<Span>,
    host: Option<(Span, Option<u16>)>,
}

impl<StreamId> IncomingRequest<StreamId> {
    /// Returns the target. `text` is the text that the head was decoded into.
    pub fn target<'a>(&self, text: &'a [u8]) -> RequestTarget<'a> {
        let (path, query) = (self.path.of(text), self.query.map(|query| query.of(text)));
        let host = if self.form == TargetForm::Authority { self.host(text) } else { None };
        RequestTarget { form: self.form, host, path, query }
    }

    /// First letters of the pseudo-fields, in the order in which the client has sent them: `m`, `a`, `s` and `p`.
    pub fn pseudo_fields(&self) -> Vec<u8> {
        let named = self.pseudo_starts.iter().zip(*b"masp");
        let mut sent: Vec<(u32, u8)> = named.filter_map(|(start, letter)| Some(((*start)?, letter))).collect();
        sent.sort_unstable();
        sent.into_iter().map(|(_, letter)| letter).collect()
    }

    /// Settles the priority of the request and its stream. RFC 9218, section 7: an earlier PRIORITY_UPDATE overrides the
    /// field.
    pub(crate) fn settle_priority(&mut self, known: &mut Priority) {
        if *known == Priority::default() {
            *known = self.priority;
        }
        self.priority = *known;
    }

    /// Returns the host. `text` is the text that the head was decoded into.
    pub fn host<'a>(&self, text: &'a [u8]) -> Option<Host<'a>> {
        self.host.map(|(name, port)| Host { name: name.of(text), port })
    }
}

/// Error of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadFault {
    /// Malformed: the stream is reset.
    Malformed,
    /// Rejected: an error response is sent.
    Rejected(MessageRejection),
}

impl From<Malformed> for HeadFault {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<MessageRejection> for HeadFault {
    fn from(rejection: MessageRejection) -> Self {
        Self::Rejected(rejection)
    }
}

const fn bad_request(reason: &'static str) -> HeadFault {
    HeadFault::Rejected(MessageRejection::bad_request(reason))
}

/// Rules for requests of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestRules {
    pub version: Version,
    pub head: HeadLimits,
    pub body_bytes_max: u64,
    /// True if the server has announced extended CONNECT.
    pub enables_connect_protocol: bool,
}

/// Error of a head beyond its limit.
pub(crate) const HEAD_TOO_LARGE: MessageRejection =
    MessageRejection::new(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, "header list too large");

/// Decodes a request's head into `head` and `text`.
pub(crate) fn decode_request<StreamId>(
    decoder: &mut impl BlockDecoder,
    block: &[u8],
    stream: StreamId,
    is_last: bool,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &RequestRules,
) -> Result<Result<IncomingRequest<StreamId>, HeadFault>, InvalidBlock> {
    head.clear();
    text.clear();
    head.version = limits.version;
    let mut reader =
        RequestHeadReader { head, limits, pseudo: Pseudo::default(), has_regular: false, fault: None, priority: None };
    let decoded =
        decoder.decode(block, limits.head.head_bytes_max, text, |text, field| reader.on_field(text, field))?;
    let RequestHeadReader { pseudo, fault, priority, .. } = reader;
    let fault = fault.or(decoded.is_too_large.then_some(HeadFault::Rejected(HEAD_TOO_LARGE)));
    // A rejected request gets a response, too, so its method matters.
    if let Some(method) = pseudo.method {
        head.method_name = method;
        head.method = Method::from_name(method.of(text));
    }
    if let Some(fault) = fault {
        return Ok(Err(fault));
    }
    Ok(check_head(stream, is_last, head, text, &pseudo, limits).map(|request| {
        let priority = priority.map(|value| Priority::parse(value.of(text))).unwrap_or_default();
        IncomingRequest { priority, ..request }
    }))
}

const TOO_MANY_FIELDS: MessageRejection =
    MessageRejection::new(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many fields");
const TARGET_TOO_LONG: MessageRejection = MessageRejection::new(Status::URI_TOO_LONG, "request target too long");

#[derive(Debug, Default)]
struct Pseudo {
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
}

struct RequestHeadReader<'a> {
    head: &'a mut RequestHead,
    limits: &'a RequestRules,
    pseudo: Pseudo,
    has_regular: bool,
    /// First error. The decoder checks later fields only for a more severe one.
    fault: Option<HeadFault>,
    priority: Option<Span>,
}

impl RequestHeadReader<'_> {
    fn on_field(&mut self, text: &[u8], field: DecodedField) {
        if let Err(fault) = self.try_field(text, field)
            && self.fault.is_none_or(|before| before != HeadFault::Malformed)
        {
            self.fault = Some(fault);
        }
    }

    fn try_field(&mut self, text: &[u8], field: DecodedField) -> Result<(), HeadFault> {
        let name = field.name.of(text);
        if name.first() == Some(&b':') {
            return self.on_pseudo_field(name, field, text).map_err(HeadFault::from);
        }
        self.has_regular = true;
        check_field(text, field)?;
        if self.head.fields.len() == self.limits.head.fields_max {
            return Err(TOO_MANY_FIELDS.into());
        }
        let known = match field.name_index {
            // The static table has no `priority`.
            0 if name == b"priority" => {
                self.priority = Some(field.value);
                KnownField::from_name(name)
            }
            0 => KnownField::from_name(name),
            index => known_field(index),
        };
        self.head.push_field(field.name, field.value, known);
        Ok(())
    }

    /// Section 8.3: pseudo-fields come first, must be known, and occur once.
    fn on_pseudo_field(&mut self, name: &[u8], field: DecodedField, text: &[u8]) -> Result<(), Malformed> {
        let place = match name {
            b":method" => &mut self.pseudo.method,
            b":scheme" => &mut self.pseudo.scheme,
            b":authority" => &mut self.pseudo.authority,
            b":path" => &mut self.pseudo.path,
            b":protocol" if self.limits.enables_connect_protocol => &mut self.pseudo.protocol,
            _ => return Err(Malformed),
        };
        if self.has_regular || place.is_some() {
            return Err(Malformed);
        }
        *place = Some(field.value);
        if field.is_valid { Ok(()) } else { check_value(field.value.of(text)) }
    }
}

/// Checks the rules for the head as a whole.
fn check_head<StreamId>(
    stream: StreamId,
    is_last: bool,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    pseudo: &Pseudo,
    limits: &RequestRules,
) -> Result<IncomingRequest<StreamId>, HeadFault> {
    let method = pseudo.method.ok_or(Malformed)?.of(text);
    if method.is_empty() || !method.iter().all(|byte| is_token_byte(*byte)) {
        return Err(HeadFault::Malformed);
    }
    let is_connect = head.method == Method::Connect;
    check_presence(pseudo, is_connect)?;
    let is_https = pseudo.scheme.is_some_and(|scheme| scheme.of(text).eq_ignore_ascii_case(b"https"));
    if !is_https && pseudo.scheme.is_some_and(|scheme| !scheme.of(text).eq_ignore_ascii_case(b"http")) {
        return Err(bad_request("unknown scheme"));
    }
    let host = check_host(head, text, pseudo.authority, is_https)?;
    let is_authority_form = is_connect && pseudo.protocol.is_none();
    let target_span = if is_authority_form { pseudo.authority } else { pseudo.path };
    let target_span = target_span.ok_or(Malformed)?;
    let target = check_target(target_span.of(text), head.method, is_authority_form, limits)?;
    let (form, path_bytes, has_query) = (target.form, target.path.len(), target.query.is_some());
    let path = Span::new(target_span.start(), target_span.start() + path_bytes);
    let query = has_query.then(|| Span::new(path.end() + 1, target_span.end()));
    head.target = target_span;
    let (content_length, expects_continue) = check_content(head, text, is_last, limits)?;
    join_cookies(head, text);
    if !head.has(KnownField::Host)
        && let Some(authority) = pseudo.authority
    {
        // Section 8.3.1: a proxy that forwards the request as HTTP/1.1 needs a Host field.
        let start = text.len();
        text.extend_from_slice(b"host");
        head.push_field(Span::new(start, text.len()), authority, KnownField::Host);
    }
    let (protocol, priority, has_content) = (pseudo.protocol, Priority::default(), !is_last);
    Ok(IncomingRequest {
        stream,
        has_content,
        content_length,
        expects_continue,
        protocol,
        is_https,
        priority,
        pseudo_starts: [pseudo.method, pseudo.authority, pseudo.scheme, pseudo.path]
            .map(|value| value.map(|value| value.start() as u32)),
        form,
        path,
        query,
        host,
    })
}

/// Checks which pseudo-fields are present (sections 8.3.1 and 8.5; RFC 8441, section 4).
fn check_presence(pseudo: &Pseudo, is_connect: bool) -> Result<(), Malformed> {
    let has_both = pseudo.scheme.is_some() && pseudo.path.is_some();
    let has_neither = pseudo.scheme.is_none() && pseudo.path.is_none();
    let is_valid = match (is_connect, pseudo.protocol.is_some()) {
        (true, false) => has_neither && pseudo.authority.is_some(),
        (true, true) => has_both && pseudo.authority.is_some(),
        (false, is_extended) => has_both && !is_extended,
    };
    if is_valid { Ok(()) } else { Err(Malformed) }
}

/// Determines the host from `:authority`, otherwise from the Host field. If both are present they must be equal
/// (section 8.3.1).
fn check_host(
    head: &RequestHead,
    text: &[u8],
    authority: Option<Span>,
    is_https: bool,
) -> Result<Option<(Span, Option<u16>)>, HeadFault> {
    if head.is_repeated(KnownField::Host) {
        return Err(HeadFault::Malformed);
    }
    let field = head.first(KnownField::Host).map(|field| field.value);
    let Some(span) = authority.or(field) else { return Err(bad_request("no authority")) };
    let parse = |span: Span| match Host::parse(span.of(text)) {
        Ok(host) if !host.name.is_empty() => Ok(host),
        _ => Err(bad_request("malformed authority")),
    };
    let host = parse(span)?;
    if let (Some(_), Some(field)) = (authority, field) {
        let other = parse(field)?;
        let default = if is_https { 443 } else { 80 };
        let is_same =
            host.name.eq_ignore_ascii_case(other.name) && host.port.unwrap_or(default) == other.port.unwrap_or(default);
        if !is_same {
            return Err(HeadFault::Malformed);
        }
    }
    // The host begins with the name, so both spans have the same start.
    Ok(Some((Span::new(span.start(), span.start() + host.name.len()), host.port)))
}

fn check_target<'a>(
    bytes: &'a [u8],
    method: Method,
    is_authority_form: bool,
    limits: &RequestRules,
) -> Result<RequestTarget<'a>, HeadFault> {
    if bytes.is_empty() {
        return Err(HeadFault::Malformed);
    }
    if bytes.len() > limits.head.target_bytes_max {
        return Err(TARGET_TOO_LONG.into());
    }
    // A path is not a URI; extended CONNECT has one like other methods.
    let is_path = bytes[0] == b'/' || bytes == b"*" && method == Method::Options;
    if !is_authority_form && !is_path {
        return Err(bad_request("malformed path"));
    }
    let method = if method == Method::Connect && !is_authority_form { Method::Get } else { method };
    RequestTarget::parse(bytes, method).map_err(|_| bad_request("malformed request target"))
}

/// Checks Content-Length and Expect.
fn check_content(
    head: &RequestHead,
    text: &[u8],
    is_last: bool,
    limits: &RequestRules,
) -> Result<(Option<u64>, bool), HeadFault> {
    let mut content_length = None;
    if let Some(field) = head.first(KnownField::ContentLength) {
        let length = parse_content_length(field.value.of(text)).ok_or(Malformed)?;
        // Section 8.1.1: the DATA frames must add up to the length.
        if head.is_repeated(KnownField::ContentLength) || is_last && length > 0 {
            return Err(HeadFault::Malformed);
        }
        if length > limits.body_bytes_max {
            return Err(MessageRejection::CONTENT_TOO_LARGE.into());
        }
        content_length = Some(length);
    }
    let framing = if is_last { BodyFraming::None } else { BodyFraming::Chunked };
    let expects_continue = expects_continue(&Request { head, bytes: text }, framing)?;
    Ok((content_length, expects_continue))
}

/// Joins Cookie lines into one: HTTP/2 allows several (section 8.2.3), other versions do not.
fn join_cookies(head: &mut RequestHead, text: &mut Vec<u8>) {
    if !head.is_repeated(KnownField::Cookie) {
        return;
    }
    let start = text.len();
    for index in 0..head.fields.len() {
        let field = head.fields[index];
        if field.known == KnownField::Cookie {
            if text.len() > start {
                text.extend_from_slice(b"; ");
            }
            text.extend_from_within(field.value.start()..field.value.end());
        }
    }
    let joined = Span::new(start, text.len());
    head.join(KnownField::Cookie, joined);
}
