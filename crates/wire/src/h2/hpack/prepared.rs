//! Header blocks that are encoded once for all connections.

use super::{Decoder, integer, static_name_index, write_literal, write_status};
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Status};

/// Header block of a response, encoded once and sent many times on any connection. It does not use or change the
/// dynamic table. `write` inserts the current date. The caller may append fields with [`write_literal`].
#[derive(Clone, Debug)]
pub struct PreparedBlock {
    bytes: Box<[u8]>,
    /// Offset of the date; 0 if the response has a Date field of its own.
    date_offset: u16,
}

impl PreparedBlock {
    /// Encodes a status and fields, except those specific to HTTP/1 connections (RFC 9113, section 8.2.2). A Date field
    /// in `fields`, as upstream responses have it, is sent unchanged (RFC 9110, section 6.6.1).
    pub fn new(status: Status, fields: &Fields) -> Self {
        let mut bytes = Vec::with_capacity(128);
        write_status(&mut bytes, status);
        let date_offset = if fields.has("Date") { 0 } else { write_date_place(&mut bytes) as u16 };
        for (name, value) in fields.iter().filter(|(name, _)| !is_connection_specific(name)) {
            write_literal(&mut bytes, &name.to_ascii_lowercase(), value);
        }
        Self { bytes: bytes.into_boxed_slice(), date_offset }
    }

    /// Appends the block with this date to `out`.
    #[inline]
    pub fn write(&self, date: &[u8; DATE_BYTES], out: &mut Vec<u8>) {
        let date_at = out.len() + usize::from(self.date_offset);
        out.extend_from_slice(&self.bytes);
        if self.date_offset > 0 {
            out[date_at..date_at + DATE_BYTES].copy_from_slice(date);
        }
    }

    /// Appends the block like [`PreparedBlock::write`], but only fields for which `keeps` returns `true`. It gets the
    /// names in lower case. `text` is a buffer.
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
        // Invariant: the block is valid, and its names do not use the dynamic table.
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

    /// Memory that the block uses, equal to its encoded length.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Appends a placeholder for a date and returns its offset. It is not Huffman coded, because the length would depend on
/// the date.
fn write_date_place(out: &mut Vec<u8>) -> usize {
    integer::write(out, 0, 4, usize::from(static_name_index(b"date")));
    integer::write(out, 0, 7, DATE_BYTES);
    out.extend_from_slice(&[b'-'; DATE_BYTES]);
    out.len() - DATE_BYTES
}

/// Returns whether a field is specific to HTTP/1 connections and makes an HTTP/2 message malformed (RFC 9113, section
/// 8.2.2). The name is case-insensitive. TE is not among them, because the value `trailers` is allowed.
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
