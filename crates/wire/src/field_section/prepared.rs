//! Blocks that are encoded once for all connections.

use std::fmt;
use std::marker::PhantomData;

use super::{StaticCoding, sendable};
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Status};

/// Head of a response, encoded once and sent many times on any connection. It does not use or change the dynamic table.
/// `write` inserts the current date. The caller may append fields with `write_literal` of the same coding.
pub struct PreparedResponseHead<C> {
    bytes: Box<[u8]>,
    /// Offset of the date; 0 if the response has a Date field of its own.
    date_offset: u16,
    coding: PhantomData<C>,
}

impl<C> Clone for PreparedResponseHead<C> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), date_offset: self.date_offset, coding: PhantomData }
    }
}

impl<C> fmt::Debug for PreparedResponseHead<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedResponseHead").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<C: StaticCoding> PreparedResponseHead<C> {
    /// Encodes a status and fields, except those specific to HTTP/1 connections (RFC 9113, section 8.2.2). A Date field
    /// in `fields`, as upstream responses have it, is sent unchanged (RFC 9110, section 6.6.1).
    pub fn new(status: Status, fields: &Fields) -> Self {
        let mut bytes = Vec::with_capacity(128);
        C::write_prefix(&mut bytes);
        C::write_status(&mut bytes, status);
        let date_offset = if fields.has("Date") { 0 } else { write_date_place::<C>(&mut bytes) as u16 };
        sendable(fields).for_each(|(name, value)| C::write_literal(&mut bytes, &name.to_ascii_lowercase(), value));
        Self { bytes: bytes.into_boxed_slice(), date_offset, coding: PhantomData }
    }

    /// Block without any bytes, in place of one that is encoded later.
    pub fn empty() -> Self {
        Self { bytes: Box::default(), date_offset: 0, coding: PhantomData }
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

    /// Appends the block like [`PreparedResponseHead::write`], but only fields for which `keeps` returns `true`. It gets the
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
        let (mut from, mut to) = (block_start, block_start);
        let fields = C::decode_places(&out[block_start..block_end], text);
        // The prefix of the block stays.
        let prefix_bytes = block_end - block_start - fields.iter().map(|(_, length)| length).sum::<usize>();
        from += prefix_bytes;
        to += prefix_bytes;
        for (name, length) in fields {
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
fn write_date_place<C: StaticCoding>(out: &mut Vec<u8>) -> usize {
    C::write_date_name(out, DATE_BYTES);
    out.extend_from_slice(&[b'-'; DATE_BYTES]);
    out.len() - DATE_BYTES
}

/// Example for the tests of both codings.
#[cfg(test)]
pub(crate) struct PreparedExample {
    pub date: &'static [u8; DATE_BYTES],
    /// Fields after `date` is inserted, with Content-Length at the end.
    pub decoded: [(&'static str, &'static str); 6],
}

#[cfg(test)]
pub(crate) const PREPARED: PreparedExample = PreparedExample {
    date: b"Sun, 06 Nov 1994 08:49:37 GMT",
    decoded: [
        (":status", "200"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("server", "tailcoat"),
        ("etag", "\"1\""),
        ("vary", "Accept-Encoding"),
        ("content-length", "3"),
    ],
};

#[cfg(test)]
impl PreparedExample {
    pub(crate) fn fields(&self) -> Fields {
        let mut fields = Fields::new();
        fields.push("Server", "tailcoat").push("Connection", "close").push("ETag", "\"1\"");
        fields.push("Vary", "Accept-Encoding");
        fields
    }
}
