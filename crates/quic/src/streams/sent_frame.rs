//! Frames of sent packets, as far as their acknowledgment or loss matters.

use crate::id::{Dir, QuicStreamId};

/// Frame of a packet that was sent. Most packets in flight have one or a few, so that a frame is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    /// Data of a stream.
    Stream { id: QuicStreamId, offset: u64, bytes: u16, is_fin: bool },
    /// RESET_STREAM.
    ResetStream { id: QuicStreamId },
    /// STOP_SENDING.
    StopSending { id: QuicStreamId },
    /// MAX_DATA.
    MaxData,
    /// MAX_STREAM_DATA.
    MaxStreamData { id: QuicStreamId },
    /// MAX_STREAMS.
    MaxStreams { dir: Dir },
    /// Data of the handshake.
    Crypto { offset: u32, bytes: u16 },
    /// HANDSHAKE_DONE.
    HandshakeDone,
    /// NEW_CONNECTION_ID.
    NewConnectionId { sequence: u64 },
    /// RETIRE_CONNECTION_ID.
    RetireConnectionId { sequence: u64 },
    /// NEW_TOKEN.
    NewToken,
    /// ACK, up to this packet number.
    Ack { largest: u64 },
    /// PING.
    Ping,
}

const _: () = assert!(size_of::<SentFrame>() <= 24);
