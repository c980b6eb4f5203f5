//! Reader of frames.

use super::{AckFrame, QuicFrame, STREAMS_MAX, kind};
use crate::codec::{Reader, VARINT_MAX};
use crate::error::TransportError;
use crate::id::{ConnectionId, Dir, ID_BYTES_MAX, QuicStreamId, ResetToken};

/// Cause of a FRAME_ENCODING_ERROR. One pointer, so that results of readers stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedFrame(&'static str);

impl MalformedFrame {
    pub(super) const TRUNCATED: Self = Self("frame is truncated");
    pub(super) const RANGE: Self = Self("ACK frame has a range below 0");
    const OFFSET: Self = Self("data ends above 2^62 - 1");
    const STREAMS: Self = Self("more than 2^60 streams");
    const ID: Self = Self("connection ID must have 1 to 20 bytes");
    const RETIRED: Self = Self("connection ID is retired by its own frame");
    const TOKEN: Self = Self("token is empty");
    const UNKNOWN: Self = Self("type of frame is unknown");
}

/// Iterator over the frames of a packet. Consecutive PADDING frames are one item. An error is the last item. A packet without
/// frames is an error (RFC 9000, section 12.4).
#[derive(Clone, Debug)]
pub(crate) struct FrameReader<'a> {
    reader: Reader<'a>,
    /// True until the error of an empty packet is given.
    is_bare: bool,
}

/// Next item of a [`FrameReader`]. All its readers return this type, so that each frame is made in its final place.
type Item<'a> = Option<Result<QuicFrame<'a>, TransportError>>;

/// Unwraps a value, or returns the error of a malformed frame.
macro_rules! take {
    ($reader:ident, $kind:ident, $value:expr) => {
        match $value {
            Ok(value) => value,
            Err(malformed) => return $reader.fail($kind, malformed),
        }
    };
}

impl<'a> FrameReader<'a> {
    /// Reads the decrypted payload of a packet.
    #[inline]
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { reader: Reader::new(payload), is_bare: payload.is_empty() }
    }

    #[inline]
    fn read_stream(&mut self, kind: u8) -> Item<'a> {
        let id = QuicStreamId(take!(self, kind, self.varint()));
        let offset = if kind & kind::STREAM_OFFSET != 0 { take!(self, kind, self.varint()) } else { 0 };
        let data = if kind & kind::STREAM_LENGTH != 0 {
            take!(self, kind, self.prefixed())
        } else {
            let data = self.reader.rest();
            self.reader = Reader::new(&[]);
            data
        };
        take!(self, kind, check_end(offset, data));
        Some(Ok(QuicFrame::Stream { id, offset, data, is_fin: kind & kind::STREAM_FIN != 0 }))
    }

    #[inline]
    fn read_ack(&mut self, kind: u8) -> Item<'a> {
        let ack = take!(self, kind, AckFrame::read(&mut self.reader, kind == kind::ACK_ECN));
        Some(Ok(QuicFrame::Ack(ack)))
    }

    #[inline]
    fn skip_padding(&mut self) {
        let mut rest = self.reader.rest();
        while let Some((&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], after)) = rest.split_first_chunk() {
            rest = after;
        }
        while let Some((0, after)) = rest.split_first() {
            rest = after;
        }
        self.reader = Reader::new(rest);
    }

    /// Reads a frame that is rare.
    #[inline(never)]
    fn read_other(&mut self, kind: u8) -> Item<'a> {
        macro_rules! varint {
            () => {
                take!(self, kind, self.varint())
            };
        }
        let frame = match kind {
            kind::PING => QuicFrame::Ping,
            kind::RESET_STREAM => {
                QuicFrame::ResetStream { id: QuicStreamId(varint!()), code: varint!(), final_bytes: varint!() }
            }
            kind::STOP_SENDING => QuicFrame::StopSending { id: QuicStreamId(varint!()), code: varint!() },
            kind::CRYPTO => {
                let (offset, data) = (varint!(), take!(self, kind, self.prefixed()));
                take!(self, kind, check_end(offset, data));
                QuicFrame::Crypto { offset, data }
            }
            kind::NEW_TOKEN => {
                if take!(self, kind, self.prefixed()).is_empty() {
                    return self.fail(kind, MalformedFrame::TOKEN);
                }
                QuicFrame::NewToken
            }
            kind::MAX_DATA => QuicFrame::MaxData(varint!()),
            kind::MAX_STREAM_DATA => QuicFrame::MaxStreamData { id: QuicStreamId(varint!()), bytes: varint!() },
            kind::MAX_STREAMS_BIDI => QuicFrame::MaxStreams { dir: Dir::Bi, count: take!(self, kind, self.streams()) },
            kind::MAX_STREAMS_UNI => QuicFrame::MaxStreams { dir: Dir::Uni, count: take!(self, kind, self.streams()) },
            kind::DATA_BLOCKED => {
                varint!();
                QuicFrame::DataBlocked
            }
            kind::STREAM_DATA_BLOCKED => {
                let id = QuicStreamId(varint!());
                varint!();
                QuicFrame::StreamDataBlocked { id }
            }
            kind::STREAMS_BLOCKED_BIDI => {
                QuicFrame::StreamsBlocked { dir: Dir::Bi, count: take!(self, kind, self.streams()) }
            }
            kind::STREAMS_BLOCKED_UNI => {
                QuicFrame::StreamsBlocked { dir: Dir::Uni, count: take!(self, kind, self.streams()) }
            }
            kind::NEW_CONNECTION_ID => take!(self, kind, self.read_new_connection_id()),
            kind::RETIRE_CONNECTION_ID => QuicFrame::RetireConnectionId { sequence: varint!() },
            kind::PATH_CHALLENGE => QuicFrame::PathChallenge(take!(self, kind, self.array())),
            kind::PATH_RESPONSE => QuicFrame::PathResponse(take!(self, kind, self.array())),
            kind::CLOSE | kind::CLOSE_APPLICATION => {
                let code = varint!();
                let is_application = kind == kind::CLOSE_APPLICATION;
                if !is_application {
                    varint!(); // type of the frame that caused the error
                }
                QuicFrame::Close { is_application, code, reason: take!(self, kind, self.prefixed()) }
            }
            kind::HANDSHAKE_DONE => QuicFrame::HandshakeDone,
            _ => return self.fail(kind, MalformedFrame::UNKNOWN),
        };
        Some(Ok(frame))
    }

    fn read_new_connection_id(&mut self) -> Result<QuicFrame<'a>, MalformedFrame> {
        let (sequence, retire_prior_to) = (self.varint()?, self.varint()?);
        if retire_prior_to > sequence {
            return Err(MalformedFrame::RETIRED);
        }
        let count = usize::from(self.reader.u8().ok_or(MalformedFrame::TRUNCATED)?);
        if !(1..=ID_BYTES_MAX).contains(&count) {
            return Err(MalformedFrame::ID);
        }
        let bytes = self.reader.bytes(count).ok_or(MalformedFrame::TRUNCATED)?;
        let id = ConnectionId::new(bytes).ok_or(MalformedFrame::ID)?;
        Ok(QuicFrame::NewConnectionId { sequence, retire_prior_to, id, token: ResetToken(self.array()?) })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, MalformedFrame> {
        self.reader.varint().ok_or(MalformedFrame::TRUNCATED)
    }

    #[inline]
    fn prefixed(&mut self) -> Result<&'a [u8], MalformedFrame> {
        self.reader.prefixed().ok_or(MalformedFrame::TRUNCATED)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedFrame> {
        self.reader.array().ok_or(MalformedFrame::TRUNCATED)
    }

    fn streams(&mut self) -> Result<u64, MalformedFrame> {
        let count = self.varint()?;
        if count > STREAMS_MAX { Err(MalformedFrame::STREAMS) } else { Ok(count) }
    }

    /// Makes the error of a frame, and ends the iteration.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, kind: u8, malformed: MalformedFrame) -> Item<'a> {
        let rest = std::mem::replace(&mut self.reader, Reader::new(&[])).rest();
        // All known types fit in one byte.
        if kind < 0x40 {
            return Some(Err(TransportError::frame_encoding(malformed.0).in_frame(kind.into())));
        }
        let further = (1 << (kind >> 6)) - 1;
        let Some(further) = rest.get(..further) else {
            return Some(Err(TransportError::frame_encoding(MalformedFrame::TRUNCATED.0)));
        };
        let whole = further.iter().fold(u64::from(kind & 0x3f), |whole, &byte| whole << 8 | u64::from(byte));
        // Known types in a longer encoding are a violation (RFC 9000, section 12.4).
        let error = if whole <= kind::HANDSHAKE_DONE.into() {
            TransportError::protocol_violation("type of frame is longer than necessary")
        } else {
            TransportError::frame_encoding(malformed.0)
        };
        Some(Err(error.in_frame(whole)))
    }

    /// Ends the iteration, with an error if the packet had no frames.
    #[cold]
    fn end(&mut self) -> Item<'a> {
        let is_bare = std::mem::take(&mut self.is_bare);
        is_bare.then(|| Err(TransportError::protocol_violation("packet has no frames")))
    }
}

impl<'a> Iterator for FrameReader<'a> {
    type Item = Result<QuicFrame<'a>, TransportError>;

    #[inline]
    fn next(&mut self) -> Item<'a> {
        let Some(kind) = self.reader.u8() else { return self.end() };
        match kind {
            kind::STREAM..=kind::STREAM_LAST => self.read_stream(kind),
            kind::ACK | kind::ACK_ECN => self.read_ack(kind),
            kind::PADDING => {
                self.skip_padding();
                Some(Ok(QuicFrame::Padding))
            }
            _ => self.read_other(kind),
        }
    }
}

/// Checks that data ends within the largest offset.
#[inline]
fn check_end(offset: u64, data: &[u8]) -> Result<(), MalformedFrame> {
    // Both are below 2^63, so the sum does not overflow.
    if offset + data.len() as u64 > VARINT_MAX { Err(MalformedFrame::OFFSET) } else { Ok(()) }
}
