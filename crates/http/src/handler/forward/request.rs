//! Request as it is forwarded: built from its parsed parts, so that nothing ambiguous is passed on.

use std::borrow::Cow;
use std::ops::Range;

use wire::h1::{BodyFraming, write_request_head};
use wire::http::forwarding::{is_hop_by_hop, is_named_by_connection, is_same_field};
use wire::http::{FieldSpan, Fields, KnownField, Method, Version, path, push_decimal};

use super::client_fields::{is_ours, push_client_fields, push_trace_fields, push_via};
use crate::config::{ClientFields, ForwardConfig, ForwardHost};
use crate::handler::{Routed, without_prefix};

/// Head of a request, and the facts needed to read its response.
#[derive(Debug)]
pub(super) struct ForwardedHead<'a> {
    method: &'a [u8],
    target: Cow<'a, [u8]>,
    fields: Fields,
    /// True if the server was asked for 100 Continue.
    pub(super) expects_continue: bool,
    /// True if the server was asked to switch protocols.
    pub(super) asks_upgrade: bool,
}

impl ForwardedHead<'_> {
    /// Encodes the head as HTTP/1.1.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let line_bytes = self.method.len() + self.target.len() + b"  HTTP/1.1\r\n\r\n".len();
        let mut bytes = Vec::with_capacity(line_bytes + self.fields.h1_bytes_max());
        write_request_head(&mut bytes, self.method, &self.target, Version::Http11, &self.fields);
        bytes
    }

    /// Memory of the fields, for another head.
    pub(super) fn into_cleared_fields(self) -> Fields {
        let mut fields = self.fields;
        fields.clear();
        fields
    }

    /// Keeps the head in no version's form, for a server that negotiates one.
    pub(super) fn into_unversioned(self) -> UnversionedHead {
        let Self { method, target, fields, .. } = self;
        let target_at = method.len() + 1;
        let line = [method, b" ", &target, b" HTTP/1.1"].concat();
        UnversionedHead { target: target_at..target_at + target.len(), line, fields }
    }
}

/// Head of a request in no version's form.
#[derive(Debug)]
pub(super) struct UnversionedHead {
    /// Request line in the form of HTTP/1.1, also for logs.
    pub(super) line: Vec<u8>,
    /// Range of the target in `line`.
    target: Range<usize>,
    /// Fields in the form of HTTP/1.1.
    pub(super) fields: Fields,
}

impl UnversionedHead {
    pub(super) fn method(&self) -> &[u8] {
        &self.line[..self.target.start - 1]
    }

    pub(super) fn target(&self) -> &[u8] {
        &self.line[self.target.clone()]
    }

    /// Encodes the head as HTTP/1.1.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_request_head(&mut bytes, self.method(), self.target(), Version::Http11, &self.fields);
        bytes
    }
}

/// True if Max-Forwards is 0 (RFC 9110, section 7.6.2).
pub(super) fn is_last_hop(routed: &Routed<'_>) -> bool {
    routed.request.field_by_name(b"max-forwards") == Some(b"0")
}

/// Builds the head for a server at `authority`. Fields in `changes` replace the request's. `fields` is empty; its memory is
/// used.
pub(super) fn forwarded_head<'a>(
    routed: &Routed<'a>,
    framing: BodyFraming,
    config: &ForwardConfig,
    authority: &str,
    changes: &Fields,
    mut fields: Fields,
) -> ForwardedHead<'a> {
    fields.reserve(routed.request.bytes.len().min(4 << 10) + 128, 24);
    push_host(routed, config, authority, &mut fields);
    let has_content = framing != BodyFraming::None;
    // Content that was received already needs no 100 Continue.
    let is_received = routed.link.get().is_some_and(|link| link.is_buffered());
    let expects_continue =
        config.passes_fields && has_content && !is_received && routed.request.head.has(KnownField::Expect);
    let bytes = routed.request.bytes;
    for field in &routed.request.head.fields {
        let (name, value) = (field.name.of(bytes), field.value.of(bytes));
        let is_changed = || changes.iter().any(|(changed, _)| is_same_field(name, changed));
        // Content that is searched must not be compressed.
        let is_coding = config.searches_content() && field.known == KnownField::AcceptEncoding;
        let is_withheld = !config.passes_fields && !field.is_set_here;
        let is_named_well = config.underscore_fields || field.is_set_here || !name.contains(&b'_');
        if is_named_well
            && !is_withheld
            && !is_coding
            && is_passed_on(routed, field, config.client_fields)
            && !is_changed()
        {
            match field.known {
                KnownField::Expect if !expects_continue => {}
                _ if is_max_forwards(name, routed) => {
                    fields.push(name, decremented(value));
                }
                _ => {
                    fields.push_parsed(bytes, field.name, field.value);
                }
            }
        }
    }
    for (name, value) in changes.iter().filter(|(_, value)| !value.is_empty()) {
        fields.push(name, value);
    }
    push_via(routed, &config.intermediary.via_name, &mut fields);
    push_client_fields(routed, config.client_fields, &mut fields);
    push_trace_fields(routed, true, &mut fields);
    match framing {
        BodyFraming::Length(length) => {
            fields.push_with("Content-Length", |value| push_decimal(value, length));
        }
        BodyFraming::Chunked => {
            fields.push("Transfer-Encoding", "chunked");
        }
        // An explicit length of 0 says more than none: some servers want it with POST (RFC 9110, section 8.6).
        BodyFraming::None if routed.request.head.has(KnownField::ContentLength) => {
            fields.push("Content-Length", "0");
        }
        BodyFraming::None => {}
    }
    let asks_upgrade = push_connection(routed, framing, config, &mut fields);
    let (method, target) = (routed.request.method_name(), target(routed, &config.strip_prefix));
    ForwardedHead { method, target, fields, expects_continue, asks_upgrade }
}

/// Path and query in origin form (RFC 9112, section 3.2.1), as access rules saw them, without the prefix.
pub(in crate::handler) fn target<'a>(routed: &Routed<'a>, strip_prefix: &str) -> Cow<'a, [u8]> {
    let raw = routed.request.target();
    if strip_prefix.is_empty() {
        return guarded_target(raw);
    }
    let rest = without_prefix(routed.path, strip_prefix).unwrap_or(routed.path);
    let mut target = Vec::with_capacity(raw.len() + 1);
    if !rest.starts_with(b"/") {
        target.push(b'/');
    }
    path::encode(rest, &mut target);
    if let Some(query) = routed.query {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    target.into()
}

/// Target in origin form, as the client sent it. It is normalised if a program could read another path from it than
/// the access rules: with dot segments, or with two slashes at the start, which many parsers take for a host (RFC
/// 3986, section 4.2).
pub(in crate::handler) fn guarded_target(raw: &[u8]) -> Cow<'_, [u8]> {
    let raw = match raw {
        [b'/', ..] => Cow::Borrowed(raw),
        raw => Cow::Owned(origin_form(raw)),
    };
    let end = memchr::memchr(b'?', &raw).unwrap_or(raw.len());
    let (raw_path, query) = raw.split_at(end);
    let begins_host = matches!(raw_path, [b'/', b'/' | b'\\', ..]);
    if !begins_host && !path::has_dot_segment(raw_path) {
        return raw;
    }
    let (mut buffer, mut target) = (Vec::new(), Vec::with_capacity(raw.len()));
    // Local invariant: a path that can't be normalised was rejected before.
    path::encode(path::normalise(raw_path, &mut buffer).unwrap_or(b"/"), &mut target);
    target.extend_from_slice(query);
    target.into()
}

/// Part of an absolute-form target after its authority.
fn origin_form(raw: &[u8]) -> Vec<u8> {
    let after_scheme = memchr::memmem::find(raw, b"://").map_or(raw, |at| &raw[at + 3..]);
    let at = after_scheme.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(after_scheme.len());
    match &after_scheme[at..] {
        rest @ [b'/', ..] => rest.to_vec(),
        rest => [b"/", rest].concat(),
    }
}

fn push_host(routed: &Routed<'_>, config: &ForwardConfig, authority: &str, fields: &mut Fields) {
    match &config.host {
        ForwardHost::Set(host) => fields.push("Host", host),
        ForwardHost::Upstream => fields.push("Host", authority),
        // The target's host overrides the field's (RFC 9112, section 3.2.2); HTTP/1.0 may have none.
        ForwardHost::Keep if routed.host.is_empty() => fields.push("Host", authority),
        ForwardHost::Keep => fields.push("Host", host_and_port(routed)),
    };
}

/// Host and port that the client asked for, as it wrote them.
pub(in crate::handler) fn host_and_port<'a>(routed: &Routed<'a>) -> &'a [u8] {
    let raw = routed.request.target();
    if !raw.starts_with(b"/")
        && let Some(at) = memchr::memmem::find(raw, b"://")
    {
        let rest = &raw[at + 3..];
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        return &rest[..end];
    }
    routed.request.field(KnownField::Host).unwrap_or(routed.host)
}

/// True if a field of a request is passed on to the server or script; `client_fields` says how the client is named
/// there.
pub(in crate::handler) fn is_passed_on(routed: &Routed<'_>, field: &FieldSpan, client_fields: ClientFields) -> bool {
    let name = field.name.of(routed.request.bytes);
    match field.known {
        KnownField::Host
        | KnownField::Connection
        | KnownField::ContentLength
        | KnownField::TransferEncoding
        | KnownField::Te
        | KnownField::Upgrade
        | KnownField::Via => return false,
        KnownField::Other => {}
        _ => return !is_nominated(routed, name),
    }
    !is_hop_by_hop(name) && !is_nominated(routed, name) && !is_ours(field, routed, client_fields)
}

fn is_nominated(routed: &Routed<'_>, name: &[u8]) -> bool {
    routed.request.head.has(KnownField::Connection)
        && is_named_by_connection(name, routed.request.field_lines(KnownField::Connection))
}

fn is_max_forwards(name: &[u8], routed: &Routed<'_>) -> bool {
    routed.request.method() == Method::Options && name.eq_ignore_ascii_case(b"max-forwards")
}

/// Subtracts one forward; a value that is not a number stays.
fn decremented(value: &[u8]) -> Vec<u8> {
    let number = str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    number.map_or(value.to_vec(), |number| number.saturating_sub(1).to_string().into_bytes())
}

/// Adds TE and, if allowed, the request for another protocol. Returns whether it requests one.
fn push_connection(routed: &Routed<'_>, framing: BodyFraming, config: &ForwardConfig, fields: &mut Fields) -> bool {
    let is_trailers = |value: &[u8]| {
        value.split(|&byte| byte == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    };
    let wants_trailers = config.passes_fields && routed.request.field_lines(KnownField::Te).any(is_trailers);
    if wants_trailers {
        fields.push("TE", "trailers");
    }
    let upgrade = wanted_upgrade(routed, framing, config);
    if let Some(protocol) = upgrade {
        fields.push("Upgrade", protocol);
    }
    match (wants_trailers, upgrade.is_some()) {
        (true, true) => fields.push("Connection", "TE, Upgrade"),
        (true, false) => fields.push("Connection", "TE"),
        (false, true) => fields.push("Connection", "Upgrade"),
        (false, false) => fields,
    };
    upgrade.is_some()
}

/// Protocol that the client wants, if it may be tunnelled. Never h2c: requests in such a tunnel would bypass all
/// checks.
fn wanted_upgrade<'a>(routed: &Routed<'a>, framing: BodyFraming, config: &ForwardConfig) -> Option<&'a [u8]> {
    if framing != BodyFraming::None
        || !config.passes_fields
        // HTTP/1.0 has no Upgrade; requests of later versions are converted to that of HTTP/1.1.
        || routed.request.head.version == Version::Http10
        || !is_upgrade_named(routed)
        || routed.request.head.is_repeated(KnownField::Upgrade)
    {
        return None;
    }
    let protocol = routed.request.field(KnownField::Upgrade)?;
    config.upgrades.iter().any(|allowed| protocol.eq_ignore_ascii_case(allowed.as_bytes())).then_some(protocol)
}

fn is_upgrade_named(routed: &Routed<'_>) -> bool {
    is_named_by_connection(b"upgrade", routed.request.field_lines(KnownField::Connection))
}
