//! The xferlog of wu-ftpd, vsftpd and ProFTPD, see xferlog(5): file transfers over FTP, a line for each.

use super::super::record::{LogClient, LoggedProtocol, RecordValue, StoredRecord, Tag};
use super::date::DateTexts;
use super::number::{push_address, push_decimal};

/// Reply to a complete transfer.
const COMPLETE: u16 = 226;

/// Appends `time seconds client bytes path type _ direction access user ftp 0 * completion`, as a line. The time is that of
/// the end, in UTC. Listings and requests of HTTP have no place in this format.
pub(super) fn push_line(out: &mut Vec<u8>, record: &StoredRecord<'_>, dates: &mut DateTexts) {
    let direction = match record.method().bytes {
        _ if record.version != Some(LoggedProtocol::Ftp) => return,
        b"RETR" => b'o',
        b"STOR" | b"STOU" | b"APPE" => b'i',
        _ => return,
    };
    let flags = record.ftp_flags();
    let end_us = record.unix_us.saturating_add(record.duration_us);
    out.extend_from_slice(&dates.at(end_us / 1_000_000).ctime());
    out.push(b' ');
    // A transfer takes at least a second, because readers divide by the time.
    push_decimal(out, record.duration_us.div_ceil(1_000_000).max(1));
    out.push(b' ');
    match record.client {
        LogClient::Ip(address) => push_address(out, address.ip()),
        LogClient::Unix => out.extend_from_slice(b"localhost"),
    }
    out.push(b' ');
    push_decimal(out, record.content_bytes);
    push_name(out, record.value(Tag::TARGET));
    out.push(b' ');
    out.push(if flags.is_ascii { b'a' } else { b'b' });
    out.extend_from_slice(b" _ ");
    out.push(direction);
    out.push(b' ');
    out.push(if flags.is_anonymous { b'a' } else { b'r' });
    push_name(out, record.value(Tag::USER));
    out.extend_from_slice(b" ftp 0 * ");
    out.push(if record.status == COMPLETE { b'c' } else { b'i' });
    out.push(b'\n');
}

/// Appends a space and a name. The format cannot escape, so bytes other than printable ASCII become underscores, as
/// vsftpd writes them.
fn push_name(out: &mut Vec<u8>, value: RecordValue<'_>) {
    out.push(b' ');
    if value.bytes.is_empty() {
        return out.push(b'*');
    }
    out.extend(value.bytes.iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b'_' }));
}
