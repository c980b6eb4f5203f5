//! Parser for frames (RFC 9113, sections 4 and 6; RFC 9218, section 7.1).

use super::{ConnectionError, ErrorCode};

/// Length of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 9;

/// Connection preface of a client (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Largest payload that every peer accepts (section 4.2). This side accepts no larger ones, because they would delay
/// other streams.
pub const FRAME_BYTES_MAX: usize = 16_384;

/// Types of frames (section 6).
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of frames (section 6).
pub(super) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub payload_bytes: usize,
    pub kind: u8,
    pub flags: u8,
    /// Stream id without the reserved bit.
    pub stream: u32,
}

/// A frame with its whole payload. DATA has no variant: its payload is passed on as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum H2Frame<'a> {
    Headers {
        fragment: &'a [u8],
        /// True if the stream depends on itself (RFC 7540, section 5.3.1).
        is_own_dependency: bool,
    },
    Continuation {
        fragment: &'a [u8],
    },
    /// Priority signal of RFC 7540, which is deprecated (RFC 9113, section 5.3.2) and ignored.
    Priority,
    ResetStream(ErrorCode),
    Settings(&'a [u8]),
    SettingsAck,
    Ping([u8; 8]),
    PingAck([u8; 8]),
    GoAway {
        last_stream: u32,
        code: ErrorCode,
    },
    /// Window increment. 0 is an error of the stream or of the connection, depending on the frame's stream.
    WindowUpdate(u32),
    PriorityUpdate {
        stream: u32,
        value: &'a [u8],
    },
    Unknown,
}

impl FrameHeader {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FRAME_HEADER_BYTES] = bytes.first_chunk()?;
        let [high, middle, low, kind, flags, stream @ ..] = *bytes;
        let payload_bytes = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some(Self { payload_bytes, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks what does not depend on the payload: length and stream id (section 6, each type).
    pub(super) fn check(&self) -> Result<(), ConnectionError> {
        if self.payload_bytes > FRAME_BYTES_MAX {
            return Err(ConnectionError::frame_size("frame too large"));
        }
        let is_of_connection = matches!(self.kind, kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE);
        let is_of_stream = matches!(
            self.kind,
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::PUSH_PROMISE | kind::CONTINUATION
        );
        if is_of_connection && self.stream != 0 {
            return Err(ConnectionError::protocol("frame of the connection on a stream"));
        }
        if is_of_stream && self.stream == 0 {
            return Err(ConnectionError::protocol("frame of a stream on stream 0"));
        }
        let is_length_valid = match self.kind {
            kind::PRIORITY => self.payload_bytes == 5,
            kind::RST_STREAM | kind::WINDOW_UPDATE => self.payload_bytes == 4,
            kind::SETTINGS if self.has(flag::ACK) => self.payload_bytes == 0,
            kind::SETTINGS => self.payload_bytes.is_multiple_of(6),
            kind::PING => self.payload_bytes == 8,
            kind::GOAWAY => self.payload_bytes >= 8,
            kind::PRIORITY_UPDATE => self.payload_bytes >= 4,
            _ => true,
        };
        if is_length_valid { Ok(()) } else { Err(ConnectionError::frame_size("payload of the wrong length")) }
    }

    /// Parses the payload of a frame that passed [`FrameHeader::check`].
    pub(super) fn read<'a>(&self, payload: &'a [u8]) -> Result<H2Frame<'a>, ConnectionError> {
        let number = |at: usize| payload[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        Ok(match self.kind {
            kind::HEADERS => self.read_headers(payload)?,
            kind::CONTINUATION => H2Frame::Continuation { fragment: payload },
            // A stream error would need RST_STREAM, which must not be sent on an idle stream. So it is a connection
            // error.
            kind::PRIORITY if number(0) & 0x7fff_ffff == self.stream => {
                return Err(ConnectionError::protocol("stream that depends on itself"));
            }
            kind::PRIORITY => H2Frame::Priority,
            kind::RST_STREAM => H2Frame::ResetStream(ErrorCode(number(0))),
            kind::SETTINGS if self.has(flag::ACK) => H2Frame::SettingsAck,
            kind::SETTINGS => H2Frame::Settings(payload),
            // RFC 9113, section 8.4: clients must not push, and this side has disabled push as a client.
            kind::PUSH_PROMISE => return Err(ConnectionError::protocol("PUSH_PROMISE")),
            kind::PING => {
                let opaque = payload.first_chunk().copied().unwrap_or_default();
                if self.has(flag::ACK) { H2Frame::PingAck(opaque) } else { H2Frame::Ping(opaque) }
            }
            kind::GOAWAY => H2Frame::GoAway { last_stream: number(0) & 0x7fff_ffff, code: ErrorCode(number(4)) },
            kind::WINDOW_UPDATE => H2Frame::WindowUpdate(number(0) & 0x7fff_ffff),
            kind::PRIORITY_UPDATE => H2Frame::PriorityUpdate { stream: number(0) & 0x7fff_ffff, value: &payload[4..] },
            _ => H2Frame::Unknown,
        })
    }

    fn read_headers<'a>(&self, payload: &'a [u8]) -> Result<H2Frame<'a>, ConnectionError> {
        let mut fragment = payload;
        if self.has(flag::PADDED) {
            let (padding, rest) = fragment.split_first().ok_or(TOO_SHORT)?;
            let content_bytes = rest.len().checked_sub(usize::from(*padding)).ok_or(TOO_MUCH_PADDING)?;
            fragment = &rest[..content_bytes];
        }
        let mut is_own_dependency = false;
        if self.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_at_checked(5).ok_or(TOO_SHORT)?;
            let dependency = priority.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            is_own_dependency = dependency & 0x7fff_ffff == self.stream;
            fragment = rest;
        }
        Ok(H2Frame::Headers { fragment, is_own_dependency })
    }
}

const TOO_SHORT: ConnectionError = ConnectionError::frame_size("payload too short");
/// Sections 6.1 and 6.2 demand PROTOCOL_ERROR, although other length errors are FRAME_SIZE_ERROR.
pub(super) const TOO_MUCH_PADDING: ConnectionError = ConnectionError::protocol("more padding than payload");

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<H2Frame<'_>, ErrorCode> {
        let header = FrameHeader { payload_bytes: payload.len(), kind, flags, stream };
        header.check().and_then(|()| header.read(payload)).map_err(|error| error.code)
    }

    #[test]
    fn headers_of_frames() {
        assert_eq!(FrameHeader::parse(&[0; 8]), None);
        let bytes = [1, 2, 3, 4, 5, 0x80, 0, 0, 7, 9];
        assert_eq!(
            FrameHeader::parse(&bytes),
            Some(FrameHeader { payload_bytes: 0x01_0203, kind: 4, flags: 5, stream: 7 })
        );
    }

    #[test]
    fn frames() {
        let headers = |fragment, is_own_dependency| Ok(H2Frame::Headers { fragment, is_own_dependency });
        for (kind, flags, stream, payload, expect) in [
            (kind::HEADERS, 0, 1, &b"ab"[..], headers(b"ab", false)),
            (kind::HEADERS, flag::PADDED, 1, b"\x01ab", headers(b"a", false)),
            (kind::HEADERS, flag::PADDED, 1, b"\x02ab", headers(b"", false)),
            (kind::HEADERS, flag::PADDED | flag::PRIORITY, 3, b"\x01\0\0\0\x01\0ab", headers(b"a", false)),
            (kind::HEADERS, flag::PRIORITY, 3, b"\x80\0\0\x03\0", headers(b"", true)),
            (kind::CONTINUATION, 0, 1, b"ab", Ok(H2Frame::Continuation { fragment: b"ab" })),
            (kind::PRIORITY, 0, 3, b"\0\0\0\x01\0", Ok(H2Frame::Priority)),
            (kind::RST_STREAM, 0, 3, b"\0\0\0\x08", Ok(H2Frame::ResetStream(ErrorCode::CANCEL))),
            (kind::SETTINGS, 0, 0, b"\0\x01\0\0\0\0", Ok(H2Frame::Settings(b"\0\x01\0\0\0\0"))),
            (kind::SETTINGS, flag::ACK, 0, b"", Ok(H2Frame::SettingsAck)),
            (kind::PING, 0, 0, b"12345678", Ok(H2Frame::Ping(*b"12345678"))),
            (kind::PING, flag::ACK, 0, b"12345678", Ok(H2Frame::PingAck(*b"12345678"))),
            (
                kind::GOAWAY,
                0,
                0,
                b"\x80\0\0\x05\0\0\0\0debug",
                Ok(H2Frame::GoAway { last_stream: 5, code: ErrorCode::NO_ERROR }),
            ),
            (kind::WINDOW_UPDATE, 0, 0, b"\x80\0\0\x01", Ok(H2Frame::WindowUpdate(1))),
            (kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1", Ok(H2Frame::PriorityUpdate { stream: 1, value: b"u=1" })),
            (0xbe, 0xff, 77, b"anything", Ok(H2Frame::Unknown)),
        ] {
            assert_eq!(read(kind, flags, stream, payload), expect, "type {kind}, flags {flags}, {payload:?}");
        }
    }

    #[test]
    fn rejected() {
        let (protocol, size) = (ErrorCode::PROTOCOL_ERROR, ErrorCode::FRAME_SIZE_ERROR);
        let large = [0; FRAME_BYTES_MAX + 1];
        for (kind, flags, stream, payload, expect) in [
            (kind::DATA, 0, 0, &b"a"[..], protocol),
            (kind::DATA, 0, 1, &large, size),
            (kind::HEADERS, 0, 0, b"", protocol),
            (kind::HEADERS, flag::PADDED, 1, b"", size),
            (kind::HEADERS, flag::PADDED, 1, b"\x02a", protocol),
            (kind::HEADERS, flag::PRIORITY, 1, b"\0\0\0\0", size),
            (kind::CONTINUATION, 0, 0, b"", protocol),
            (kind::PRIORITY, 0, 0, b"\0\0\0\x01\0", protocol),
            (kind::PRIORITY, 0, 1, b"\0\0\0\0", size),
            (kind::PRIORITY, 0, 1, b"\0\0\0\x01\0", protocol),
            (kind::RST_STREAM, 0, 0, b"\0\0\0\0", protocol),
            (kind::RST_STREAM, 0, 1, b"\0\0\0", size),
            (kind::SETTINGS, 0, 1, b"", protocol),
            (kind::SETTINGS, 0, 0, b"\0\0\0", size),
            (kind::SETTINGS, flag::ACK, 0, b"\0\x01\0\0\0\0", size),
            (kind::PUSH_PROMISE, 0, 1, b"\0\0\0\x02", protocol),
            (kind::PING, 0, 1, b"12345678", protocol),
            (kind::PING, 0, 0, b"1234567", size),
            (kind::GOAWAY, 0, 1, b"\0\0\0\0\0\0\0\0", protocol),
            (kind::GOAWAY, 0, 0, b"\0\0\0\0\0\0\0", size),
            (kind::WINDOW_UPDATE, 0, 0, b"\0\0\0", size),
            (kind::PRIORITY_UPDATE, 0, 1, b"\0\0\0\x01", protocol),
            (kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0", size),
            (0xbe, 0, 0, &large, size),
        ] {
            assert_eq!(read(kind, flags, stream, payload), Err(expect), "type {kind}, flags {flags}, stream {stream}");
        }
    }
}
