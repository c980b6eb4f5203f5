//! One JSON object (RFC 8259) per line, in ASCII. A key is present if its value is.

use super::super::record::{LogClient, RecordValue, StoredRecord, Tag};
use super::date::DateTexts;
use super::escape::{is_plain, push_hex};
use super::number::{push_address, push_decimal, push_timestamp};
use super::version_name;

/// Appends the object, as a line.
pub(super) fn push_line(out: &mut Vec<u8>, record: &StoredRecord<'_>, dates: &mut DateTexts) {
    out.extend_from_slice(b"{\"time\":\"");
    push_timestamp(out, record.unix_us, dates);
    out.push(b'"');
    if let LogClient::Ip(address) = record.client {
        out.extend_from_slice(b",\"client\":\"");
        push_address(out, address.ip());
        out.push(b'"');
        push_number(out, b",\"client_port\":", u64::from(address.port()));
    }
    push_string(out, b",\"user\":\"", record.value(Tag::USER));
    push_string(out, b",\"host\":\"", record.value(Tag::HOST));
    push_string(out, b",\"method\":\"", record.method());
    push_string(out, b",\"target\":\"", record.value(Tag::TARGET));
    if let Some(version) = record.version {
        push_string(out, b",\"version\":\"", RecordValue { bytes: version_name(version), cut: false });
    }
    push_string(out, b",\"malformed\":\"", record.value(Tag::MALFORMED));
    push_number(out, b",\"status\":", u64::from(record.status));
    push_number(out, b",\"bytes\":", record.content_bytes);
    push_number(out, b",\"duration_us\":", record.duration_us);
    push_string(out, b",\"tls_version\":\"", record.value(Tag::TLS_VERSION));
    push_string(out, b",\"tls_cipher_suite\":\"", record.value(Tag::TLS_CIPHER_SUITE));
    push_string(out, b",\"tls_server_name\":\"", record.value(Tag::TLS_SERVER_NAME));
    push_string(out, b",\"tls_client\":\"", record.value(Tag::TLS_CLIENT));
    push_string(out, b",\"upstream\":\"", record.value(Tag::UPSTREAM));
    let numbers = record.upstream_numbers();
    for (key, number) in [
        (&b",\"upstream_tries\":"[..], numbers.tries),
        (b",\"upstream_status\":", numbers.status),
        (b",\"upstream_connect_us\":", numbers.connect_us),
        (b",\"upstream_first_byte_us\":", numbers.first_byte_us),
        (b",\"upstream_duration_us\":", numbers.duration_us),
    ] {
        if let Some(number) = number {
            push_number(out, key, number);
        }
    }
    push_string(out, b",\"cache_status\":\"", record.value(Tag::CACHE_STATUS));
    push_string(out, b",\"request_id\":\"", record.value(Tag::REQUEST_ID));
    push_string(out, b",\"trace_id\":\"", record.value(Tag::TRACE_ID));
    push_string(out, b",\"span_id\":\"", record.value(Tag::SPAN_ID));
    for (key, tag) in [
        (&b",\"bot_class\":\""[..], Tag::BOT_CLASS),
        (b",\"bot_score\":\"", Tag::BOT_SCORE),
        (b",\"bot_name\":\"", Tag::BOT_NAME),
        (b",\"bot_signals\":\"", Tag::BOT_SIGNALS),
        (b",\"ja4\":\"", Tag::JA4),
        (b",\"http2_fingerprint\":\"", Tag::HTTP2_FINGERPRINT),
        (b",\"country\":\"", Tag::COUNTRY),
        (b",\"asn\":\"", Tag::ASN),
    ] {
        push_string(out, key, record.value(tag));
    }
    if !record.is_complete() {
        out.extend_from_slice(b",\"completion\":\"aborted\"");
    }
    push_string(out, b",\"referer\":\"", record.value(Tag::REFERER));
    push_string(out, b",\"user_agent\":\"", record.value(Tag::USER_AGENT));
    out.extend_from_slice(b"}\n");
}

fn push_number(out: &mut Vec<u8>, key: &[u8], number: u64) {
    out.extend_from_slice(key);
    push_decimal(out, number);
}

/// Appends key and value.
fn push_string(out: &mut Vec<u8>, key: &[u8], value: RecordValue<'_>) {
    if value.bytes.is_empty() {
        return;
    }
    out.extend_from_slice(key);
    push_part(out, value);
    out.push(b'"');
}

/// Appends a value as part of a string; a cut value ends with an ellipsis.
pub(super) fn push_part(out: &mut Vec<u8>, value: RecordValue<'_>) {
    if is_plain::<b' '>(value.bytes) {
        out.extend_from_slice(value.bytes);
    } else {
        push_escaped(out, value.bytes);
    }
    if value.cut {
        out.extend_from_slice(b"\\u2026");
    }
}

/// Appends method, target and version of a request as part of a string.
pub(super) fn push_request_line(out: &mut Vec<u8>, record: &StoredRecord<'_>) {
    push_part(out, record.method());
    out.push(b' ');
    push_part(out, record.value(Tag::TARGET));
    out.push(b' ');
    if let Some(version) = record.version {
        out.extend_from_slice(version_name(version));
    }
}

/// Appends text with all but printable ASCII as `\uHHHH`, so that neither control characters nor bidirectional
/// overrides reach a terminal. Bytes that are not UTF-8 become the text `\xHH`.
#[cold]
fn push_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => out.extend_from_slice(&[b'\\', character as u8]),
                ' '..='~' => out.push(character as u8),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        push_code_unit(out, *unit);
                    }
                }
            }
        }
        for byte in chunk.invalid() {
            out.push(b'\\');
            push_hex(out, *byte);
        }
    }
}

fn push_code_unit(out: &mut Vec<u8>, unit: u16) {
    out.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        out.push(b"0123456789abcdef"[usize::from(unit >> shift & 15)]);
    }
}
