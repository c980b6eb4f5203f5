//! Writers of frames. Each appends one frame.

use super::kind;
use crate::codec::{varint_bytes, write_varint};
use crate::id::{ConnectionId, Dir, QuicStreamId, ResetToken};

/// Writes a type and integers.
#[inline]
fn write_integers<const N: usize>(out: &mut Vec<u8>, kind: u8, integers: [u64; N]) {
    out.push(kind);
    for integer in integers {
        write_varint(out, integer);
    }
}

/// Writes PING.
#[inline]
pub(crate) fn write_ping(out: &mut Vec<u8>) {
    out.push(kind::PING);
}

/// Writes RESET_STREAM. `final_bytes` is the number of bytes that were sent.
pub(crate) fn write_reset_stream(out: &mut Vec<u8>, id: QuicStreamId, code: u64, final_bytes: u64) {
    write_integers(out, kind::RESET_STREAM, [id.0, code, final_bytes]);
}

/// Writes STOP_SENDING.
pub(crate) fn write_stop_sending(out: &mut Vec<u8>, id: QuicStreamId, code: u64) {
    write_integers(out, kind::STOP_SENDING, [id.0, code]);
}

/// Writes CRYPTO.
pub(crate) fn write_crypto(out: &mut Vec<u8>, offset: u64, data: &[u8]) {
    write_integers(out, kind::CRYPTO, [offset, data.len() as u64]);
    out.extend_from_slice(data);
}

/// Writes NEW_TOKEN. The token must not be empty.
pub(crate) fn write_new_token(out: &mut Vec<u8>, token: &[u8]) {
    debug_assert!(!token.is_empty());
    write_integers(out, kind::NEW_TOKEN, [token.len() as u64]);
    out.extend_from_slice(token);
}

/// Writes STREAM up to its data. A frame without `length` must be the last of its packet, which it fills.
#[inline]
pub(crate) fn write_stream_header(
    out: &mut Vec<u8>,
    id: QuicStreamId,
    offset: u64,
    length: Option<usize>,
    is_fin: bool,
) {
    let offset_bit = if offset != 0 { kind::STREAM_OFFSET } else { 0 };
    let length_bit = if length.is_some() { kind::STREAM_LENGTH } else { 0 };
    out.push(kind::STREAM | offset_bit | length_bit | u8::from(is_fin));
    write_varint(out, id.0);
    if offset != 0 {
        write_varint(out, offset);
    }
    if let Some(length) = length {
        write_varint(out, length as u64);
    }
}

/// Length of a STREAM frame up to its data, in bytes.
#[inline]
pub(crate) fn stream_header_bytes(id: QuicStreamId, offset: u64, length: Option<usize>) -> usize {
    let offset_bytes = if offset != 0 { varint_bytes(offset) } else { 0 };
    1 + varint_bytes(id.0) + offset_bytes + length.map_or(0, |length| varint_bytes(length as u64))
}

/// Writes MAX_DATA.
pub(crate) fn write_max_data(out: &mut Vec<u8>, bytes: u64) {
    write_integers(out, kind::MAX_DATA, [bytes]);
}

/// Writes MAX_STREAM_DATA.
pub(crate) fn write_max_stream_data(out: &mut Vec<u8>, id: QuicStreamId, bytes: u64) {
    write_integers(out, kind::MAX_STREAM_DATA, [id.0, bytes]);
}

/// Writes MAX_STREAMS. `count` must be at most [`STREAMS_MAX`](super::STREAMS_MAX).
pub(crate) fn write_max_streams(out: &mut Vec<u8>, dir: Dir, count: u64) {
    write_integers(out, kind::MAX_STREAMS_BIDI | dir as u8, [count]);
}

/// Writes NEW_CONNECTION_ID.
pub(crate) fn write_new_connection_id(
    out: &mut Vec<u8>,
    sequence: u64,
    retire_prior_to: u64,
    id: &ConnectionId,
    token: &ResetToken,
) {
    write_integers(out, kind::NEW_CONNECTION_ID, [sequence, retire_prior_to]);
    out.push(id.len() as u8);
    out.extend_from_slice(id);
    out.extend_from_slice(&token.0);
}

/// Writes RETIRE_CONNECTION_ID.
pub(crate) fn write_retire_connection_id(out: &mut Vec<u8>, sequence: u64) {
    write_integers(out, kind::RETIRE_CONNECTION_ID, [sequence]);
}

/// Writes PATH_CHALLENGE.
pub(crate) fn write_path_challenge(out: &mut Vec<u8>, data: [u8; 8]) {
    out.push(kind::PATH_CHALLENGE);
    out.extend_from_slice(&data);
}

/// Writes PATH_RESPONSE.
pub(crate) fn write_path_response(out: &mut Vec<u8>, data: [u8; 8]) {
    out.push(kind::PATH_RESPONSE);
    out.extend_from_slice(&data);
}

/// Writes CONNECTION_CLOSE. The reason is cut so that the frame has at most `bytes_max`. A frame without any reason has up to 18
/// bytes, even if `bytes_max` is less. `frame` is the type of the frame that caused an error of QUIC.
pub(crate) fn write_close(
    out: &mut Vec<u8>,
    is_application: bool,
    code: u64,
    frame: u64,
    reason: &[u8],
    bytes_max: usize,
) {
    let start = out.len();
    if is_application {
        write_integers(out, kind::CLOSE_APPLICATION, [code]);
    } else {
        write_integers(out, kind::CLOSE, [code, frame]);
    }
    let left = bytes_max.saturating_sub(out.len() - start);
    let fitting = left.saturating_sub(varint_bytes(reason.len().min(left) as u64));
    let reason = cut(reason, fitting);
    write_varint(out, reason.len() as u64);
    out.extend_from_slice(reason);
}

/// Begin of a text, at most `bytes_max`, which does not end within a character of UTF-8.
fn cut(text: &[u8], bytes_max: usize) -> &[u8] {
    if text.len() <= bytes_max {
        return text;
    }
    let is_begin = |at: &usize| text[*at] & 0xc0 != 0x80;
    let end = (bytes_max.saturating_sub(3)..=bytes_max).rev().find(is_begin).unwrap_or(bytes_max);
    &text[..end]
}

/// Writes HANDSHAKE_DONE.
pub(crate) fn write_handshake_done(out: &mut Vec<u8>) {
    out.push(kind::HANDSHAKE_DONE);
}
