//! Heads of responses: dates, fields that change with time, and changes of fields.

use std::io::Write;
use std::ops::Range;

use wire::h1::DATE_BYTES;
use wire::http::{ContentCoding, Status};

use super::alternative::{ALT_SVC, AlternativeService};
use super::head_policy::HeadPolicy;
use super::{ExchangeTurn, HttpStreams, StreamClosed};
use crate::config::FieldAction;
use crate::handler::{Body, BuiltResponse, FieldChange, Form, SERVER};
use crate::object_cache::{EncodedHead, Object, StoredResponse};

/// Maximum length of a generated value, in bytes: three numbers of 20 digits, and the text around them.
const TEXT_BYTES_MAX: usize = 80;

/// Cached object, and the part of it to send.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    pub(super) object: &'a Object,
    pub(super) coding: ContentCoding,
    pub(super) form: Form,
    pub(super) changes: &'a [FieldChange],
    /// Listener whose alternative the head tells of.
    pub(super) alternative: Option<u16>,
}

/// Sends the head for a cached object. Returns its status, and the range of content that follows.
pub(super) fn send_object_head<S: HttpStreams>(
    stream: S::Id,
    chosen: Chosen<'_>,
    is_head: bool,
    streams: &mut S,
    turn: &ExchangeTurn<'_>,
) -> Result<(Status, Range<u64>), StreamClosed> {
    let Chosen { object, coding, form, changes, alternative } = chosen;
    let representation = object.complete_representation(coding);
    let complete_length = representation.content.length();
    let (status, head, range) = match form {
        Form::Whole => (representation.status, &representation.head, 0..complete_length),
        Form::NotModified => (Status::NOT_MODIFIED, &representation.not_modified_head, 0..0),
        Form::Part { offset, length } => {
            (Status::PARTIAL_CONTENT, &representation.partial_head, offset..offset + length)
        }
    };
    let (date, now_ms) = (turn.context.clock.date(turn.now), turn.now.monotonic_ms);
    let is_last = is_head || range.is_empty();
    streams.send_encoded(stream, is_last, |out| {
        write_changed::<S>(head, &date, changes, out);
        if matches!(form, Form::Part { .. }) {
            write_part::<S>(&range, complete_length, out);
        }
        if let Some(response) = object.response() {
            write_age::<S>(response, now_ms, out);
        }
        if let Some(listener) = alternative
            && let Some(alternative) = turn.context.generation().alternative(listener)
            && !head.has_alternative
            && !AlternativeService::is_changed_by(changes)
        {
            S::write_alternative(out, alternative);
        }
    })?;
    Ok((status, if is_last { 0..0 } else { range }))
}

/// Sends the head of a response that was built for one request. Returns its content, if any must be sent.
pub(super) fn send_built_head<S: HttpStreams>(
    stream: S::Id,
    response: BuiltResponse,
    (is_head, alternative): (bool, Option<u16>),
    streams: &mut S,
    turn: &ExchangeTurn<'_>,
) -> Result<Option<Body>, StreamClosed> {
    let policy = HeadPolicy::of(&response, is_head, turn.context.generation().server_field);
    let BuiltResponse { status, mut fields, body, .. } = response;
    if policy.adds_date {
        fields.push("date", turn.context.clock.date(turn.now));
    }
    if policy.adds_server {
        fields.push("server", SERVER);
    }
    if let Some(listener) = alternative.filter(|_| !fields.has(ALT_SVC))
        && let Some(alternative) = turn.context.generation().alternative(listener)
    {
        fields.push("alt-svc", alternative.value());
    }
    if let Some(length) = policy.content_length {
        fields.push("content-length", length.to_string());
    }
    let is_last = !policy.has_content || body.length() == Some(0);
    streams.send_response(stream, status, &fields, is_last)?;
    Ok((!is_last).then_some(body))
}

/// Appends the head with changes of its fields; each change applies to the result of the one before.
fn write_changed<S: HttpStreams>(
    head: &EncodedHead,
    date: &[u8; DATE_BYTES],
    changes: &[FieldChange],
    out: &mut Vec<u8>,
) {
    if changes.is_empty() {
        return S::write_encoded(head, date, out);
    }
    let is_set = |name: &[u8]| {
        let mut set = changes.iter().filter(|change| change.action == FieldAction::Set);
        set.any(|change| change.name.as_bytes().eq_ignore_ascii_case(name))
    };
    let mut is_there = vec![false; changes.len()];
    S::write_encoded_some(head, date, out, |name| {
        let named = changes.iter().map(|change| change.name.as_bytes().eq_ignore_ascii_case(name));
        is_there.iter_mut().zip(named).for_each(|(is_there, is_named)| *is_there |= is_named);
        !is_set(name)
    });
    let mut added: Vec<&FieldChange> = Vec::new();
    for (change, is_there) in changes.iter().zip(is_there) {
        let is_same = |other: &&FieldChange| other.name.eq_ignore_ascii_case(&change.name);
        let is_kept = is_there && !is_set(change.name.as_bytes());
        match change.action {
            FieldAction::Set => added.retain(|other| !is_same(other)),
            FieldAction::Default if is_kept || added.iter().any(is_same) => continue,
            FieldAction::Add | FieldAction::Default => {}
        }
        if !change.value.is_empty() {
            added.push(change);
        }
    }
    for FieldChange { name, value, .. } in added {
        S::write_field(out, name.to_ascii_lowercase().as_bytes(), value);
    }
}

fn write_part<S: HttpStreams>(range: &Range<u64>, complete_length: u64, out: &mut Vec<u8>) {
    let mut text = [0; TEXT_BYTES_MAX];
    // RFC 9110, section 14.4.
    let content_range = format_args!("bytes {}-{}/{complete_length}", range.start, range.end - 1);
    S::write_field(out, b"content-range", format(&mut text, content_range));
    S::write_field(out, b"content-length", format(&mut text, format_args!("{}", range.end - range.start)));
}

/// Appends the fields that change while a response is stored (RFC 9111, section 5.1; RFC 9211, section 2).
fn write_age<S: HttpStreams>(response: &StoredResponse, now_ms: u64, out: &mut Vec<u8>) {
    let stored = &response.stored;
    let mut text = [0; TEXT_BYTES_MAX];
    S::write_field(out, b"age", format(&mut text, format_args!("{}", stored.age_seconds(now_ms))));
    if response.has_cache_status {
        let ttl = stored.remaining_ms(now_ms).div_euclid(1_000);
        S::write_field(out, b"cache-status", format(&mut text, format_args!("tailcoat; hit; ttl={ttl}")));
    }
}

/// Formats into a buffer that must be long enough.
fn format<'a>(place: &'a mut [u8], text: std::fmt::Arguments<'_>) -> &'a [u8] {
    let mut rest = &mut place[..];
    // A longer text would be cut, but none is that long.
    let _ = rest.write_fmt(text);
    let unused = rest.len();
    let used = place.len() - unused;
    &place[..used]
}

#[cfg(test)]
mod tests {
    use wire::h2::hpack::Decoder;
    use wire::http::Fields;

    use super::*;
    use crate::connection::h2::H2Streams;

    /// Decodes a header block to text.
    fn decode(block: &[u8]) -> String {
        let (mut lines, mut text) = (Vec::new(), Vec::new());
        let decoded = Decoder::default().decode(block, 10_000, &mut text, |text, field| {
            let line = [field.name.of(text), b": ", field.value.of(text)].concat();
            lines.push(String::from_utf8(line).unwrap());
        });
        assert!(decoded.is_ok());
        lines.join("; ")
    }

    #[test]
    fn changed_heads() {
        let mut fields = Fields::new();
        fields.push("X-A", "1").push("X-AB", "2").push("x-a", "3");
        let head = EncodedHead::new(Status::OK, &fields);
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
        let check = |changes: &[(FieldAction, &str, &str)], expect: &str| {
            let change = |(action, name, value): &(FieldAction, &str, &str)| FieldChange {
                action: *action,
                name: (*name).into(),
                value: (*value).into(),
            };
            let (mut out, changes) = (Vec::new(), changes.iter().map(change).collect::<Vec<_>>());
            write_changed::<H2Streams<'_>>(&head, date, &changes, &mut out);
            let expect = format!(":status: 200; date: Sun, 06 Nov 1994 08:49:37 GMT; {expect}");
            assert_eq!(decode(&out), expect, "{changes:?}");
        };
        use FieldAction::{Add, Default, Set};
        check(&[], "x-a: 1; x-ab: 2; x-a: 3");
        check(&[(Set, "X-A", "")], "x-ab: 2");
        check(&[(Set, "x-A", "5")], "x-ab: 2; x-a: 5");
        check(&[(Add, "X-A", "5")], "x-a: 1; x-ab: 2; x-a: 3; x-a: 5");
        check(&[(Default, "X-Ab", "5"), (Default, "X-B", "6")], "x-a: 1; x-ab: 2; x-a: 3; x-b: 6");
        check(&[(Set, "X-AB", ""), (Default, "X-AB", "7")], "x-a: 1; x-a: 3; x-ab: 7");
        check(&[(Add, "B", "1"), (Set, "B", "2"), (Add, "b", "3")], "x-a: 1; x-ab: 2; x-a: 3; b: 2; b: 3");
    }

    #[test]
    fn parts() {
        let mut out = Vec::new();
        write_part::<H2Streams<'_>>(&(5..7), 10, &mut out);
        assert_eq!(decode(&out), "content-range: bytes 5-6/10; content-length: 2");
        assert_eq!(format(&mut [0; TEXT_BYTES_MAX], format_args!("{}", u64::MAX)), b"18446744073709551615");
    }
}
