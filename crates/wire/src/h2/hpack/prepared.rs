//! Header blocks encoded once for all connections.

use super::{Decoder, integer, static_name_index, write_literal, write_status};
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Status};

/// The header block of a response encoded once, to be sent many times on any connection: it neither uses nor changes the
/// dynamic table. The current date is put in while it is copied, and fields may be added behind it by
/// [`write_literal`].
#[derive(Clone, Debug)]
pub struct PreparedBlock {
    bytes: Box<[u8]>,
    /// 0 if the response has a date of its own.
    date_offset: u16,
}

impl PreparedBlock {
    /// Encodes a status and fields, but for those that are about an HTTP/1 connection (RFC 9113, section 8.2.2). If there
    /// is a Date, as responses that another server made have, that one is sent (RFC 9110, section 6.6.1).
    pub fn new(status: Status, fields: &Fields) -> Self {
        let mut bytes = Vec::with_capacity(128);
        write_status(&mut bytes, status);
        let date_offset = if fields.has("Date") { 0 } else { write_date_place(&mut bytes) as u16 };
        for (name, value) in fields.iter().filter(|(name, _)| !is_connection_specific(name)) {
            write_literal(&mut bytes, &name.to_ascii_lowercase(), value);
        }
        Self { bytes: bytes.into_boxed_slice(), date_offset }
    }

    /// Appends the block, with this date, to `out`.
    #[inline]
    pub fn write(&self, date: &[u8; DATE_BYTES], out: &mut Vec<u8>) {
        let date_at = out.len() + usize::from(self.date_offset);
        out.extend_from_slice(&self.bytes);
        if self.date_offset > 0 {
            out[date_at..date_at + DATE_BYTES].copy_from_slice(date);
        }
    }

    /// Appends the block as [`PreparedBlock::write`], but for fields that `keeps` does not want; it is given their names,
    /// in lower case. `text` is room to read them in.
    pub fn write_some(
        &self,
        date: &[u8; DATE_BYTES],
        out: &mut Vec<u8>,
        text: &mut Vec<u8>,
        mut keeps: impl FnMut(&[u8]) -> bool,
    ) {
        let block_start = out.len();
        self.write(date, out);
        let block_end = out.len();
        text.clear();
        // Local invariant: it is a block, with names that need no dynamic table.
        let fields = Decoder::default().decode_places(&out[block_start..block_end], text);
        let (mut from, mut to) = (block_start, block_start);
        for (name, length) in fields.into_iter().flatten() {
            if name.of(text) == b":status" || keeps(name.of(text)) {
                out.copy_within(from..from + length, to);
                to += length;
            }
            from += length;
        }
        out.truncate(to);
    }

    /// Bytes of memory it takes, which is what it takes in a block.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Appends a date of dashes, not in the Huffman code, for that has not the same length for all dates; returns its place.
fn write_date_place(out: &mut Vec<u8>) -> usize {
    integer::write(out, 0, 4, usize::from(static_name_index(b"date")));
    integer::write(out, 0, 7, DATE_BYTES);
    out.extend_from_slice(&[b'-'; DATE_BYTES]);
    out.len() - DATE_BYTES
}

/// Whether a field, its name in any case, is about an HTTP/1 connection, so that it makes a message of HTTP/2 malformed
/// (RFC 9113, section 8.2.2). TE is another matter: it may say `trailers`.
pub fn is_connection_specific(name: &[u8]) -> bool {
    let known: &[u8] = match name.len() {
        7 => b"upgrade",
        10 if name[0].eq_ignore_ascii_case(&b'k') => b"keep-alive",
        10 => b"connection",
        16 => b"proxy-connection",
        17 => b"transfer-encoding",
        _ => return false,
    };
    name.eq_ignore_ascii_case(known)
}
