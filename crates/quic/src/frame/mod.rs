//! Frames (RFC 9000, section 19).
//!
//! A [`FrameReader`] reads the frames of a packet without allocation: data stays in the packet. The `write_` functions append one
//! frame each to a packet.

mod ack;
mod read;
#[cfg(test)]
mod tests;
mod write;

use crate::id::{ConnectionId, Dir, QuicStreamId, ResetToken};
use crate::packet::PacketKind;

pub(crate) use ack::{AckFrame, EcnCounts, write_ack};
pub(crate) use read::FrameReader;
pub(crate) use write::{
    stream_header_bytes, write_close, write_crypto, write_handshake_done, write_max_data, write_max_stream_data,
    write_max_streams, write_new_connection_id, write_new_token, write_path_challenge, write_path_response, write_ping,
    write_reset_stream, write_retire_connection_id, write_stop_sending, write_stream_header,
};

/// Largest number of streams of a kind (RFC 9000, section 4.6), because their IDs are integers of variable length.
pub(crate) const STREAMS_MAX: u64 = 1 << 60;

/// Types of frames (RFC 9000, section 12.4).
pub(crate) mod kind {
    pub(crate) const PADDING: u8 = 0x00;
    pub(crate) const PING: u8 = 0x01;
    pub(crate) const ACK: u8 = 0x02;
    pub(crate) const ACK_ECN: u8 = 0x03;
    pub(crate) const RESET_STREAM: u8 = 0x04;
    pub(crate) const STOP_SENDING: u8 = 0x05;
    pub(crate) const CRYPTO: u8 = 0x06;
    pub(crate) const NEW_TOKEN: u8 = 0x07;
    /// First type of STREAM frames. The lower bits follow.
    pub(crate) const STREAM: u8 = 0x08;
    /// Bit of STREAM frames that end the stream.
    pub(crate) const STREAM_FIN: u8 = 0x01;
    /// Bit of STREAM frames with a length.
    pub(crate) const STREAM_LENGTH: u8 = 0x02;
    /// Bit of STREAM frames with an offset.
    pub(crate) const STREAM_OFFSET: u8 = 0x04;
    /// Last type of STREAM frames.
    pub(crate) const STREAM_LAST: u8 = 0x0f;
    pub(crate) const MAX_DATA: u8 = 0x10;
    pub(crate) const MAX_STREAM_DATA: u8 = 0x11;
    pub(crate) const MAX_STREAMS_BIDI: u8 = 0x12;
    pub(crate) const MAX_STREAMS_UNI: u8 = 0x13;
    pub(crate) const DATA_BLOCKED: u8 = 0x14;
    pub(crate) const STREAM_DATA_BLOCKED: u8 = 0x15;
    pub(crate) const STREAMS_BLOCKED_BIDI: u8 = 0x16;
    pub(crate) const STREAMS_BLOCKED_UNI: u8 = 0x17;
    pub(crate) const NEW_CONNECTION_ID: u8 = 0x18;
    pub(crate) const RETIRE_CONNECTION_ID: u8 = 0x19;
    pub(crate) const PATH_CHALLENGE: u8 = 0x1a;
    pub(crate) const PATH_RESPONSE: u8 = 0x1b;
    /// CONNECTION_CLOSE with an error of QUIC.
    pub(crate) const CLOSE: u8 = 0x1c;
    /// CONNECTION_CLOSE with an error of the application.
    pub(crate) const CLOSE_APPLICATION: u8 = 0x1d;
    pub(crate) const HANDSHAKE_DONE: u8 = 0x1e;
}

/// Frame of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QuicFrame<'a> {
    /// One or more PADDING frames.
    Padding,
    /// Request of an acknowledgement.
    Ping,
    /// Acknowledgement of packets.
    Ack(AckFrame<'a>),
    /// The sender of a stream ends it before its data is complete.
    ResetStream {
        id: QuicStreamId,
        /// Error code of the application.
        code: u64,
        /// Number of bytes that the sender has sent.
        final_bytes: u64,
    },
    /// The receiver of a stream wants no more data.
    StopSending {
        id: QuicStreamId,
        /// Error code of the application.
        code: u64,
    },
    /// Data of the handshake.
    Crypto { offset: u64, data: &'a [u8] },
    /// Token for the client's next connection. Only servers send it.
    NewToken,
    /// Data of a stream.
    Stream {
        id: QuicStreamId,
        offset: u64,
        data: &'a [u8],
        /// True if the data is the last of the stream.
        is_fin: bool,
    },
    /// Largest number of bytes on all streams.
    MaxData(u64),
    /// Largest number of bytes on a stream.
    MaxStreamData { id: QuicStreamId, bytes: u64 },
    /// Largest number of streams.
    MaxStreams { dir: Dir, count: u64 },
    /// The sender has more data than the connection may carry.
    DataBlocked,
    /// The sender has more data than a stream may carry.
    StreamDataBlocked { id: QuicStreamId },
    /// The sender wants more streams.
    StreamsBlocked { dir: Dir, count: u64 },
    /// New connection ID of the sender.
    NewConnectionId { sequence: u64, retire_prior_to: u64, id: ConnectionId, token: ResetToken },
    /// The sender does not use a connection ID any more.
    RetireConnectionId { sequence: u64 },
    /// Check of a path.
    PathChallenge([u8; 8]),
    /// Answer to the check of a path.
    PathResponse([u8; 8]),
    /// End of the connection (CONNECTION_CLOSE).
    Close {
        /// True for an error of the application.
        is_application: bool,
        code: u64,
        /// Explanation, which should be UTF-8.
        reason: &'a [u8],
    },
    /// The server has confirmed the handshake. Only servers send it.
    HandshakeDone,
}

impl QuicFrame<'_> {
    /// Type of the frame. STREAM frames lose the bit of their length.
    pub(crate) fn kind(&self) -> u64 {
        let kind = match self {
            Self::Padding => kind::PADDING,
            Self::Ping => kind::PING,
            Self::Ack(ack) if ack.ecn.is_some() => kind::ACK_ECN,
            Self::Ack(_) => kind::ACK,
            Self::ResetStream { .. } => kind::RESET_STREAM,
            Self::StopSending { .. } => kind::STOP_SENDING,
            Self::Crypto { .. } => kind::CRYPTO,
            Self::NewToken => kind::NEW_TOKEN,
            Self::Stream { offset, is_fin, .. } => {
                let offset_bit = if *offset != 0 { kind::STREAM_OFFSET } else { 0 };
                kind::STREAM | offset_bit | u8::from(*is_fin)
            }
            Self::MaxData(_) => kind::MAX_DATA,
            Self::MaxStreamData { .. } => kind::MAX_STREAM_DATA,
            Self::MaxStreams { dir: Dir::Bi, .. } => kind::MAX_STREAMS_BIDI,
            Self::MaxStreams { dir: Dir::Uni, .. } => kind::MAX_STREAMS_UNI,
            Self::DataBlocked => kind::DATA_BLOCKED,
            Self::StreamDataBlocked { .. } => kind::STREAM_DATA_BLOCKED,
            Self::StreamsBlocked { dir: Dir::Bi, .. } => kind::STREAMS_BLOCKED_BIDI,
            Self::StreamsBlocked { dir: Dir::Uni, .. } => kind::STREAMS_BLOCKED_UNI,
            Self::NewConnectionId { .. } => kind::NEW_CONNECTION_ID,
            Self::RetireConnectionId { .. } => kind::RETIRE_CONNECTION_ID,
            Self::PathChallenge(_) => kind::PATH_CHALLENGE,
            Self::PathResponse(_) => kind::PATH_RESPONSE,
            Self::Close { is_application: false, .. } => kind::CLOSE,
            Self::Close { is_application: true, .. } => kind::CLOSE_APPLICATION,
            Self::HandshakeDone => kind::HANDSHAKE_DONE,
        };
        u64::from(kind)
    }

    /// True if a packet with the frame must be acknowledged (RFC 9002, section 2).
    #[inline]
    pub(crate) fn is_ack_eliciting(&self) -> bool {
        !matches!(self, Self::Padding | Self::Ack(_) | Self::Close { .. })
    }

    /// True if packets of this kind may carry the frame (RFC 9000, table 3). The frames that a client cannot send in early data
    /// (section 12.5) are not allowed there.
    #[inline]
    pub(crate) fn is_allowed(&self, kind: PacketKind) -> bool {
        match kind {
            PacketKind::OneRtt => true,
            PacketKind::Initial | PacketKind::Handshake => matches!(
                self,
                Self::Padding
                    | Self::Ping
                    | Self::Ack(_)
                    | Self::Crypto { .. }
                    | Self::Close { is_application: false, .. }
            ),
            PacketKind::ZeroRtt => !matches!(
                self,
                Self::Ack(_)
                    | Self::Crypto { .. }
                    | Self::NewToken
                    | Self::RetireConnectionId { .. }
                    | Self::PathResponse(_)
                    | Self::HandshakeDone
            ),
            PacketKind::Retry | PacketKind::VersionNegotiation => false,
        }
    }

    /// True if the frame may probe a new path without a migration to it (RFC 9000, section 9.1).
    #[inline]
    pub(crate) fn is_probing(&self) -> bool {
        matches!(self, Self::Padding | Self::PathChallenge(_) | Self::PathResponse(_) | Self::NewConnectionId { .. })
    }
}
