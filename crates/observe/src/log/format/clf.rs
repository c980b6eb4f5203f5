//! Common Log Format and combined, as defined by Apache httpd and written by nginx.

use super::super::record::{LogClient, StoredRecord, Tag};
use super::date::DateTexts;
use super::escape::{push_quoted, push_word};
use super::number::{push_address, push_decimal};
use super::version_name;

/// Appends `client - user [date] "request" status bytes` and, for combined, ` "referer" "user-agent"`, as a line.
pub(super) fn push_line(out: &mut Vec<u8>, record: &StoredRecord<'_>, dates: &mut DateTexts, combined: bool) {
    push_client(out, record.client);
    out.extend_from_slice(b" - ");
    push_word(out, record.value(Tag::USER));
    out.extend_from_slice(b" [");
    out.extend_from_slice(dates.at(record.unix_us / 1_000_000).common());
    out.extend_from_slice(b"] \"");
    push_request_line(out, record);
    out.extend_from_slice(b"\" ");
    push_decimal(out, u64::from(record.status));
    out.push(b' ');
    push_decimal(out, record.content_bytes);
    if combined {
        out.extend_from_slice(b" \"");
        push_quoted(out, record.value(Tag::REFERER));
        out.extend_from_slice(b"\" \"");
        push_quoted(out, record.value(Tag::USER_AGENT));
        out.extend_from_slice(b"\"\n");
    } else {
        out.push(b'\n');
    }
}

/// Appends the client's address; `unix:` for a unix socket, as nginx has it.
pub(super) fn push_client(out: &mut Vec<u8>, client: LogClient) {
    match client {
        LogClient::Ip(address) => push_address(out, address.ip()),
        LogClient::Unix => out.extend_from_slice(b"unix:"),
    }
}

/// Appends method, target and version, or the first line of a malformed request. No parser accepts a space in a target;
/// one would not end the field.
pub(super) fn push_request_line(out: &mut Vec<u8>, record: &StoredRecord<'_>) {
    let Some(version) = record.version else {
        push_quoted(out, record.value(Tag::MALFORMED));
        return;
    };
    match record.known_method() {
        Some(name) => out.extend_from_slice(name),
        None => push_word(out, record.method()),
    }
    out.push(b' ');
    push_word(out, record.value(Tag::TARGET));
    out.push(b' ');
    out.extend_from_slice(version_name(version));
}
