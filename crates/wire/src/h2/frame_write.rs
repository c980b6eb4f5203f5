//! Encoder for frames.

use super::frame::{FRAME_HEADER_BYTES, flag, kind};
use super::{ConnectionError, ErrorCode};

pub(super) fn write_header(out: &mut Vec<u8>, payload_bytes: usize, kind: u8, flags: u8, stream: u32) {
    debug_assert!(payload_bytes < 1 << 24);
    let [_, length @ ..] = (payload_bytes as u32).to_be_bytes();
    let [a, b, c, d] = stream.to_be_bytes();
    out.extend_from_slice(&[length[0], length[1], length[2], kind, flags, a, b, c, d]);
}

/// Writes a header block that `write` appends: a HEADERS frame, and CONTINUATION frames if it is too large for one.
pub(super) fn write_headers(
    out: &mut Vec<u8>,
    stream: u32,
    is_last: bool,
    frame_bytes_max: usize,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    let end_stream = if is_last { flag::END_STREAM } else { 0 };
    write_header(out, 0, kind::HEADERS, end_stream | flag::END_HEADERS, stream);
    write(out);
    let block_bytes = out.len() - start - FRAME_HEADER_BYTES;
    if block_bytes > frame_bytes_max {
        return split_headers(out, start, stream, end_stream, frame_bytes_max);
    }
    let [_, length @ ..] = (block_bytes as u32).to_be_bytes();
    out[start..start + 3].copy_from_slice(&length);
}

#[cold]
fn split_headers(out: &mut Vec<u8>, start: usize, stream: u32, end_stream: u8, frame_bytes_max: usize) {
    let block = out.split_off(start + FRAME_HEADER_BYTES);
    out.truncate(start);
    let mut fragments = block.chunks(frame_bytes_max).peekable();
    let (mut frame_kind, mut flags) = (kind::HEADERS, end_stream);
    while let Some(fragment) = fragments.next() {
        if fragments.peek().is_none() {
            flags |= flag::END_HEADERS;
        }
        write_header(out, fragment.len(), frame_kind, flags, stream);
        out.extend_from_slice(fragment);
        (frame_kind, flags) = (kind::CONTINUATION, 0);
    }
}

pub(super) fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write_header(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(super) fn write_settings(out: &mut Vec<u8>, settings: impl Iterator<Item = (u16, u32)>) {
    let start = out.len();
    write_header(out, 0, kind::SETTINGS, 0, 0);
    for (identifier, value) in settings {
        out.extend_from_slice(&identifier.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    // A SETTINGS frame has about ten settings of six bytes, so the length fits into one byte.
    out[start + 2] = (out.len() - start - FRAME_HEADER_BYTES) as u8;
}

pub(super) fn write_settings_ack(out: &mut Vec<u8>) {
    write_header(out, 0, kind::SETTINGS, flag::ACK, 0);
}

pub(super) fn write_ping(out: &mut Vec<u8>, opaque: [u8; 8], is_ack: bool) {
    write_header(out, 8, kind::PING, if is_ack { flag::ACK } else { 0 }, 0);
    out.extend_from_slice(&opaque);
}

pub(super) fn write_go_away(out: &mut Vec<u8>, last_stream: u32, error: ConnectionError) {
    write_header(out, 8 + error.reason.len(), kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&error.code.0.to_be_bytes());
    out.extend_from_slice(error.reason.as_bytes());
}

pub(super) fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    write_header(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(super) fn write_data_header(out: &mut Vec<u8>, stream: u32, content_bytes: usize, is_last: bool) {
    write_header(out, content_bytes, kind::DATA, if is_last { flag::END_STREAM } else { 0 }, stream);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::frame::{FrameHeader, H2Frame};

    /// Returns the frames in `bytes`: type, flags, stream and payload.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let mut frames = Vec::new();
        while let Some(header) = FrameHeader::parse(bytes) {
            let (payload, rest) = bytes[FRAME_HEADER_BYTES..].split_at(header.payload_bytes);
            frames.push((header.kind, header.flags, header.stream, payload.to_vec()));
            bytes = rest;
        }
        frames
    }

    #[test]
    fn header_blocks_are_split() {
        for (block, expect) in [
            ("", vec![(kind::HEADERS, 5, "")]),
            ("abc", vec![(kind::HEADERS, 5, "abc")]),
            ("abcd", vec![(kind::HEADERS, 1, "abc"), (kind::CONTINUATION, 4, "d")]),
            ("abcdefg", vec![(kind::HEADERS, 1, "abc"), (kind::CONTINUATION, 0, "def"), (kind::CONTINUATION, 4, "g")]),
        ] {
            let mut out = b"before".to_vec();
            write_headers(&mut out, 7, true, 3, |out| out.extend_from_slice(block.as_bytes()));
            let expect: Vec<_> = expect
                .into_iter()
                .map(|(kind, flags, fragment)| (kind, flags, 7, fragment.as_bytes().to_vec()))
                .collect();
            assert_eq!(frames(&out[6..]), expect);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut out = Vec::new();
        write_reset(&mut out, 3, ErrorCode::CANCEL);
        write_settings(&mut out, [(1, 2), (3, 4)].into_iter());
        write_settings_ack(&mut out);
        write_ping(&mut out, *b"12345678", true);
        write_go_away(&mut out, 5, ConnectionError::protocol("why"));
        write_window_update(&mut out, 9, 77);
        let read: Vec<_> = frames(&out)
            .into_iter()
            .map(|(kind, flags, stream, payload)| {
                let header = FrameHeader { payload_bytes: payload.len(), kind, flags, stream };
                header.check().unwrap();
                format!("{stream}: {:?}", header.read(&payload).unwrap())
            })
            .collect();
        let expect = [
            (3, H2Frame::ResetStream(ErrorCode::CANCEL)),
            (0, H2Frame::Settings(&[0, 1, 0, 0, 0, 2, 0, 3, 0, 0, 0, 4])),
            (0, H2Frame::SettingsAck),
            (0, H2Frame::PingAck(*b"12345678")),
            (0, H2Frame::GoAway { last_stream: 5, code: ErrorCode::PROTOCOL_ERROR }),
            (9, H2Frame::WindowUpdate(77)),
        ];
        assert_eq!(read, expect.map(|(stream, frame)| format!("{stream}: {frame:?}")));
    }
}
