//! Frames and types of streams (RFC 9114, sections 6.2 and 7; RFC 9204, section 4.2; RFC 9218, section 7.2).

use super::engine::H3Side;
use super::{H3Error, varint};

pub(super) mod kind {
    pub(crate) const DATA: u64 = 0;
    pub(crate) const HEADERS: u64 = 1;
    pub(crate) const CANCEL_PUSH: u64 = 3;
    pub(crate) const SETTINGS: u64 = 4;
    pub(crate) const PUSH_PROMISE: u64 = 5;
    pub(crate) const GOAWAY: u64 = 7;
    pub(crate) const MAX_PUSH_ID: u64 = 13;
    pub(crate) const PRIORITY_UPDATE: u64 = 0xf_0700;
    pub(crate) const PRIORITY_UPDATE_OF_PUSH: u64 = 0xf_0701;
}

pub(super) mod stream_kind {
    pub(crate) const CONTROL: u64 = 0;
    pub(crate) const PUSH: u64 = 1;
    pub(crate) const QPACK_ENCODER: u64 = 2;
    pub(crate) const QPACK_DECODER: u64 = 3;
}

/// Type and length of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct H3FrameHeader {
    pub kind: u64,
    pub payload_bytes: u64,
}

impl H3FrameHeader {
    /// Parses the header at `*at`. Moves `*at` after it, unless it is incomplete.
    #[inline]
    pub(super) fn parse(input: &[u8], at: &mut usize) -> Option<Self> {
        let mut end = *at;
        let kind = varint::read(input, &mut end)?;
        let payload_bytes = varint::read(input, &mut end)?;
        *at = end;
        Some(Self { kind, payload_bytes })
    }

    /// Returns whether the receiver ignores the frame (section 9): its type is unknown, or reserved to be ignored.
    pub(super) fn is_unknown(&self) -> bool {
        !matches!(self.kind, 0..=9 | kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_OF_PUSH)
    }

    /// Checks that the frame may come on a request stream (section 7.2). `role` is that of the receiver.
    pub(super) fn check_on_request(&self, role: H3Side) -> Result<(), H3Error> {
        match self.kind {
            kind::DATA | kind::HEADERS => Ok(()),
            // Section 7.2.5: a client that has sent no MAX_PUSH_ID permits no push.
            kind::PUSH_PROMISE if role == H3Side::Client => Err(H3Error::id("PUSH_PROMISE that was not permitted")),
            _ if self.is_unknown() => Ok(()),
            _ => Err(H3Error::unexpected("frame on a request stream")),
        }
    }

    /// Checks that the frame may come on the control stream, after SETTINGS (section 7.2).
    pub(super) fn check_on_control(&self, role: H3Side) -> Result<(), H3Error> {
        match self.kind {
            kind::CANCEL_PUSH | kind::GOAWAY => Ok(()),
            kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_OF_PUSH if role == H3Side::Server => {
                Ok(())
            }
            _ if self.is_unknown() => Ok(()),
            _ => Err(H3Error::unexpected("frame on the control stream")),
        }
    }
}

pub(super) fn write_header(out: &mut Vec<u8>, kind: u64, payload_bytes: u64) {
    varint::write(out, kind);
    varint::write(out, payload_bytes);
}

/// Writes a HEADERS frame with the section that `write` appends.
pub(super) fn write_headers(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    // Nearly all lengths need two bytes. A shorter one may have them, too.
    out.extend_from_slice(&[kind::HEADERS as u8, 0x40, 0]);
    let start = out.len();
    write(out);
    let section_bytes = out.len() - start;
    match u16::try_from(section_bytes) {
        Ok(length) if length < 0x4000 => out[start - 2..start].copy_from_slice(&(length | 0x4000).to_be_bytes()),
        _ => write_long_length(out, start, section_bytes),
    }
}

#[cold]
fn write_long_length(out: &mut Vec<u8>, start: usize, section_bytes: usize) {
    let section = out.split_off(start);
    out.truncate(start - 2);
    varint::write(out, section_bytes as u64);
    out.extend_from_slice(&section);
}

/// Writes a frame whose payload is one number.
pub(super) fn write_number(out: &mut Vec<u8>, kind: u64, number: u64) {
    let at = out.len() + 1;
    write_header(out, kind, 0);
    varint::write(out, number);
    out[at] = (out.len() - at - 1) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        for (bytes, expect) in [
            (&b"\x00\x05"[..], Some((kind::DATA, 5))),
            (b"\x40\x01\x80\0\0\x07", Some((kind::HEADERS, 7))),
            (b"\x80\x0f\x07\x00\x00", Some((kind::PRIORITY_UPDATE, 0))),
            (b"\x21\x3f", Some((0x21, 63))),
            (b"\x21", None),
            (b"\x01\x40", None),
            (b"", None),
        ] {
            let mut at = 0;
            let header = H3FrameHeader::parse(bytes, &mut at);
            assert_eq!(header.map(|header| (header.kind, header.payload_bytes)), expect, "{bytes:x?}");
            assert_eq!(at, if expect.is_some() { bytes.len() } else { 0 });
        }
    }

    #[test]
    fn sections_of_all_lengths() {
        for length in [0, 1, 63, 64, 0x3fff, 0x4000, 70_000] {
            let mut out = b"before".to_vec();
            write_headers(&mut out, |out| out.resize(out.len() + length, b'x'));
            let mut at = 6;
            let header = H3FrameHeader::parse(&out, &mut at);
            assert_eq!(header, Some(H3FrameHeader { kind: kind::HEADERS, payload_bytes: length as u64 }));
            assert_eq!(out.len() - at, length);
        }
    }
}
