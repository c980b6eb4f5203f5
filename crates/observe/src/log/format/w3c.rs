//! W3C Extended Log File Format (working draft WD-logfile-960323).
//!
//! Strings stand in quotes, with quotes doubled. The draft does not cover other bytes, so backslash, control bytes and
//! bytes from 0x7f on become `\xHH` in strings. In addresses and names, which end at a space, they become `%HH`.

use super::super::record::{LogClient, RecordValue, StoredRecord, Tag};
use super::date::DateTexts;
use super::escape::{CUT_MARK, EscapeSet, is_plain, push_hex, push_percent, push_runs};
use super::number::{push_address, push_decimal, push_digits};
use super::version_name;

/// Appends the directives at the start of a log.
pub(super) fn push_directives(out: &mut Vec<u8>, unix_seconds: u64, dates: &mut DateTexts) {
    out.extend_from_slice(b"#Version: 1.0\n#Software: tailcoat ");
    out.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
    out.extend_from_slice(b"\n#Date: ");
    push_date_and_time(out, unix_seconds, dates);
    out.extend_from_slice(
        b"\n#Fields: date time c-ip cs-username cs-method cs-uri-stem cs-uri-query cs-version cs-host ",
    );
    out.extend_from_slice(b"sc-status sc-bytes time-taken cs(User-Agent) cs(Referer) ");
    // The draft has no names for these fields; applications may define names with the prefix `x-`.
    out.extend_from_slice(b"x-tls-version x-tls-cipher-suite x-tls-server-name x-tls-client\n");
}

/// Appends a remark on dropped records.
pub(super) fn push_remark(out: &mut Vec<u8>, dropped: u64) {
    out.extend_from_slice(b"#Remark: ");
    push_decimal(out, dropped);
    out.extend_from_slice(b" records were dropped before this line\n");
}

/// Appends an entry as a line. Times are in UTC, `time-taken` is in seconds, as the draft requires.
pub(super) fn push_line(out: &mut Vec<u8>, record: &StoredRecord<'_>, dates: &mut DateTexts) {
    push_date_and_time(out, record.unix_us / 1_000_000, dates);
    out.push(b' ');
    match record.client {
        LogClient::Ip(address) => push_address(out, address.ip()),
        LogClient::Unix => out.push(b'-'),
    }
    push_name(out, record.value(Tag::USER));
    push_name(out, record.method());
    // A malformed request takes the place of the path.
    let (stem, query) = record.path_and_query();
    push_name(out, if record.version.is_some() { stem } else { record.value(Tag::MALFORMED) });
    push_name(out, query);
    push_name(out, RecordValue { bytes: record.version.map_or(&b""[..], |version| version_name(version)), cut: false });
    push_name(out, record.value(Tag::HOST));
    out.push(b' ');
    push_decimal(out, u64::from(record.status));
    out.push(b' ');
    push_decimal(out, record.content_bytes);
    out.push(b' ');
    push_decimal(out, record.duration_us / 1_000_000);
    out.push(b'.');
    push_digits::<6>(out, record.duration_us);
    push_string(out, record.value(Tag::USER_AGENT));
    push_string(out, record.value(Tag::REFERER));
    push_name(out, record.value(Tag::TLS_VERSION));
    push_name(out, record.value(Tag::TLS_CIPHER_SUITE));
    push_name(out, record.value(Tag::TLS_SERVER_NAME));
    push_string(out, record.value(Tag::TLS_CLIENT));
    out.push(b'\n');
}

fn push_date_and_time(out: &mut Vec<u8>, unix_seconds: u64, dates: &mut DateTexts) {
    let dates = dates.at(unix_seconds);
    out.extend_from_slice(dates.day());
    out.push(b' ');
    out.extend_from_slice(dates.time());
}

/// Appends a space and a value that ends at a space.
fn push_name(out: &mut Vec<u8>, value: RecordValue<'_>) {
    out.push(b' ');
    if value.bytes.is_empty() {
        out.push(b'-');
    } else if is_plain::<b'!'>(value.bytes) {
        out.extend_from_slice(value.bytes);
    } else {
        push_runs(out, value.bytes, |byte| EscapeSet::WORD.has(byte), push_percent);
    }
    push_cut_mark(out, value);
}

/// Appends a space and a value in quotes.
fn push_string(out: &mut Vec<u8>, value: RecordValue<'_>) {
    if value.bytes.is_empty() {
        out.extend_from_slice(b" -");
        return;
    }
    out.extend_from_slice(b" \"");
    if is_plain::<b' '>(value.bytes) {
        out.extend_from_slice(value.bytes);
    } else {
        push_runs(
            out,
            value.bytes,
            |byte| EscapeSet::QUOTED.has(byte),
            |out, byte| match byte {
                b'"' => out.extend_from_slice(b"\"\""),
                _ => push_hex(out, byte),
            },
        );
    }
    push_cut_mark(out, value);
    out.push(b'"');
}

fn push_cut_mark(out: &mut Vec<u8>, value: RecordValue<'_>) {
    if value.cut {
        out.extend_from_slice(CUT_MARK);
    }
}
