use std::ops::RangeInclusive;

use proptest::prelude::*;

use super::*;
use crate::codec::{VARINT_MAX, write_varint};
use crate::error::TransportError;

/// Bytes of a frame.
fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn read(payload: &[u8]) -> Result<Vec<QuicFrame<'_>>, TransportError> {
    FrameReader::new(payload).collect()
}

/// The only frame of a packet.
fn read_one(payload: &[u8]) -> QuicFrame<'_> {
    let mut frames = read(payload).unwrap();
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

fn code(payload: &[u8]) -> (u64, u64) {
    let error = read(payload).unwrap_err();
    (error.code, error.frame)
}

/// Frame of a type and integers.
fn integers(kind: u8, integers: &[u64]) -> Vec<u8> {
    bytes(|out| {
        out.push(kind);
        integers.iter().for_each(|&integer| write_varint(out, integer));
    })
}

const ID: QuicStreamId = QuicStreamId(0x1234);

/// A frame of each type but NEW_TOKEN and ACK, and its bytes.
fn samples() -> Vec<(QuicFrame<'static>, Vec<u8>)> {
    let connection_id = ConnectionId::new(b"abcdefgh").unwrap();
    let token = ResetToken([9; 16]);
    vec![
        (QuicFrame::Padding, vec![0]),
        (QuicFrame::Ping, bytes(write_ping)),
        (
            QuicFrame::ResetStream { id: ID, code: 5, final_bytes: 70_000 },
            bytes(|out| write_reset_stream(out, ID, 5, 70_000)),
        ),
        (QuicFrame::StopSending { id: ID, code: 6 }, bytes(|out| write_stop_sending(out, ID, 6))),
        (QuicFrame::Crypto { offset: 7, data: b"hello" }, bytes(|out| write_crypto(out, 7, b"hello"))),
        (QuicFrame::MaxData(VARINT_MAX), bytes(|out| write_max_data(out, VARINT_MAX))),
        (QuicFrame::MaxStreamData { id: ID, bytes: 8 }, bytes(|out| write_max_stream_data(out, ID, 8))),
        (
            QuicFrame::MaxStreams { dir: Dir::Bi, count: STREAMS_MAX },
            bytes(|out| write_max_streams(out, Dir::Bi, STREAMS_MAX)),
        ),
        (QuicFrame::MaxStreams { dir: Dir::Uni, count: 0 }, bytes(|out| write_max_streams(out, Dir::Uni, 0))),
        (QuicFrame::DataBlocked, bytes(|out| out.extend([0x14, 9]))),
        (QuicFrame::StreamDataBlocked { id: ID }, bytes(|out| out.extend([0x15, 0x52, 0x34, 10]))),
        (QuicFrame::StreamsBlocked { dir: Dir::Bi, count: 1 }, bytes(|out| out.extend([0x16, 1]))),
        (
            QuicFrame::StreamsBlocked { dir: Dir::Uni, count: STREAMS_MAX },
            bytes(|out| out.extend([&[0x17][..], &(STREAMS_MAX | 3 << 62).to_be_bytes()].concat())),
        ),
        (
            QuicFrame::NewConnectionId { sequence: 4, retire_prior_to: 4, id: connection_id, token },
            bytes(|out| write_new_connection_id(out, 4, 4, &connection_id, &token)),
        ),
        (QuicFrame::RetireConnectionId { sequence: 3 }, bytes(|out| write_retire_connection_id(out, 3))),
        (QuicFrame::PathChallenge([1; 8]), bytes(|out| write_path_challenge(out, [1; 8]))),
        (QuicFrame::PathResponse([2; 8]), bytes(|out| write_path_response(out, [2; 8]))),
        (
            QuicFrame::Close { is_application: false, code: 0x101, reason: b"why" },
            bytes(|out| write_close(out, false, 0x101, 6, b"why", 100)),
        ),
        (
            QuicFrame::Close { is_application: true, code: 0x102, reason: b"" },
            bytes(|out| write_close(out, true, 0x102, 0, b"", 100)),
        ),
        (QuicFrame::HandshakeDone, bytes(write_handshake_done)),
        (
            QuicFrame::Stream { id: ID, offset: 0, data: b"data", is_fin: true },
            bytes(|out| {
                write_stream_header(out, ID, 0, Some(4), true);
                out.extend_from_slice(b"data");
            }),
        ),
        (
            QuicFrame::Stream { id: ID, offset: 70_000, data: b"", is_fin: false },
            bytes(|out| write_stream_header(out, ID, 70_000, Some(0), false)),
        ),
    ]
}

#[test]
fn frames_are_read_as_written() {
    for (frame, text) in samples() {
        assert_eq!(read_one(&text), frame);
        let mask = if let QuicFrame::Stream { .. } = frame { kind::STREAM_LENGTH } else { 0 };
        assert_eq!(frame.kind(), u64::from(text[0] & !mask));
        for end in 1..text.len() {
            assert_eq!(code(&text[..end]), (TransportError::FRAME_ENCODING_ERROR, text[0].into()), "{frame:?}");
        }
    }
    let all: Vec<u8> = samples().into_iter().flat_map(|(_, text)| text).collect();
    let frames: Vec<_> = samples().into_iter().map(|(frame, _)| frame).collect();
    assert_eq!(read(&all).unwrap(), frames);
}

#[test]
fn tokens_are_read_without_their_bytes() {
    let text = bytes(|out| write_new_token(out, b"token"));
    assert_eq!(read_one(&text), QuicFrame::NewToken);
    assert_eq!(text, b"\x07\x05token");
    assert_eq!(code(&[kind::NEW_TOKEN, 0]), (TransportError::FRAME_ENCODING_ERROR, 7));
}

#[test]
fn stream_frames_without_length_fill_the_packet() {
    for (offset, length) in [(0, Some(3)), (1, Some(3)), (0, None), (1 << 40, None), (63, Some(64)), (64, Some(63))] {
        let header = bytes(|out| write_stream_header(out, ID, offset, length, false));
        assert_eq!(header.len(), stream_header_bytes(ID, offset, length));
    }
    let text = bytes(|out| {
        write_ping(out);
        write_stream_header(out, ID, 5, None, true);
        out.extend_from_slice(b"\0\0 the rest");
    });
    let expected = QuicFrame::Stream { id: ID, offset: 5, data: b"\0\0 the rest", is_fin: true };
    assert_eq!(expected.kind(), 0x0d);
    assert_eq!(read(&text).unwrap(), [QuicFrame::Ping, expected]);
}

#[test]
fn padding_is_one_frame() {
    for count in [1, 2, 15, 16, 17, 31, 32, 33, 1200] {
        let mut text = vec![0; count];
        assert_eq!(read_one(&text), QuicFrame::Padding);
        text.push(kind::PING);
        assert_eq!(read(&text).unwrap(), [QuicFrame::Padding, QuicFrame::Ping]);
    }
}

#[test]
fn packets_must_have_frames() {
    let mut reader = FrameReader::new(&[]);
    assert_eq!(reader.next().unwrap().unwrap_err().code, TransportError::PROTOCOL_VIOLATION);
    assert!(reader.next().is_none());
}

#[test]
fn errors_are_last() {
    let mut reader = FrameReader::new(&[kind::PING, kind::MAX_STREAM_DATA, 0x3f, kind::PING]);
    reader.next().unwrap().unwrap();
    reader.next().unwrap().unwrap();
    assert!(reader.next().is_none());
    let mut reader = FrameReader::new(&[kind::PING, 0x1f, kind::PING]);
    reader.next().unwrap().unwrap();
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn unknown_types_are_errors() {
    assert_eq!(code(&[0x1f]), (TransportError::FRAME_ENCODING_ERROR, 0x1f));
    assert_eq!(code(&[0x30, 0]), (TransportError::FRAME_ENCODING_ERROR, 0x30), "DATAGRAM");
    assert_eq!(code(&[0x52, 0x34]), (TransportError::FRAME_ENCODING_ERROR, 0x1234));
    assert_eq!(code(&[0x52]), (TransportError::FRAME_ENCODING_ERROR, 0), "half of a type");
    assert_eq!(code(&[0x40, 0x01]), (TransportError::PROTOCOL_VIOLATION, 0x01), "PING in two bytes");
    assert_eq!(code(&[0x80, 0, 0, 0x08, 0, 0]), (TransportError::PROTOCOL_VIOLATION, 0x08));
}

#[test]
fn limits_are_checked() {
    let connection_id = |bytes: &[u8]| [&[kind::NEW_CONNECTION_ID, 1, 0, bytes.len() as u8], bytes, &[9; 16]].concat();
    assert!(read(&connection_id(&[1; 1])).is_ok());
    assert!(read(&connection_id(&[1; 20])).is_ok());
    assert!(read(&[integers(kind::CRYPTO, &[VARINT_MAX - 1, 1]), vec![1]].concat()).is_ok());
    assert!(read(&integers(kind::STREAM | 6, &[0, VARINT_MAX, 0])).is_ok());
    for bad in [
        connection_id(&[]),
        connection_id(&[1; 21]),
        connection_id(&[1; 255]),
        [&[kind::NEW_CONNECTION_ID, 1, 2, 1, 1][..], &[9; 16]].concat(),
        integers(kind::MAX_STREAMS_BIDI, &[STREAMS_MAX + 1]),
        integers(kind::MAX_STREAMS_UNI, &[VARINT_MAX]),
        integers(kind::STREAMS_BLOCKED_BIDI, &[STREAMS_MAX + 1]),
        integers(kind::STREAMS_BLOCKED_UNI, &[STREAMS_MAX + 1]),
        [integers(kind::CRYPTO, &[VARINT_MAX, 1]), vec![1]].concat(),
        [integers(kind::STREAM | 6, &[0, VARINT_MAX, 1]), vec![1]].concat(),
        [integers(kind::STREAM | 4, &[0, VARINT_MAX]), vec![1]].concat(),
        integers(kind::STREAM | 2, &[0, VARINT_MAX]),
        integers(kind::CRYPTO, &[0, VARINT_MAX]),
    ] {
        assert_eq!(code(&bad), (TransportError::FRAME_ENCODING_ERROR, bad[0].into()), "{bad:?}");
    }
}

/// Writes an ACK frame and reads it.
fn ranges_of(text: &[u8]) -> Vec<RangeInclusive<u64>> {
    let QuicFrame::Ack(ack) = read_one(text) else { panic!("no ACK frame") };
    ack.ranges().collect()
}

#[test]
fn acks_are_read_as_written() {
    let ranges = [90..=100, 50..=50, 0..=10];
    let ecn = EcnCounts { ect0: 1, ect1: 0, ce: 70_000 };
    for ecn in [None, Some(ecn)] {
        let text = bytes(|out| write_ack(out, ranges.iter().cloned(), 1000, ecn.as_ref()));
        let frame = read_one(&text);
        assert_eq!(frame.kind(), u64::from(text[0]));
        let QuicFrame::Ack(ack) = frame else { panic!("no ACK frame") };
        assert_eq!((ack.largest, ack.delay, ack.ecn), (100, 1000, ecn));
        assert_eq!(ranges_of(&text), ranges);
        for end in 1..text.len() {
            assert_eq!(code(&text[..end]).0, TransportError::FRAME_ENCODING_ERROR);
        }
    }
    assert_eq!(bytes(|out| write_ack(out, std::iter::empty(), 0, None)), b"", "no ranges");
    assert_eq!(ranges_of(&bytes(|out| write_ack(out, std::iter::once(0..=0), 0, None))), [0..=0]);
}

#[test]
fn bad_acks_are_errors() {
    // Fields: largest, delay, number of further ranges, first range, then gaps and lengths.
    assert_eq!(ranges_of(&integers(kind::ACK, &[10, 0, 1, 3, 5, 0])), [7..=10, 0..=0]);
    for bad in [
        &[3, 0, 0, 4][..],
        &[10, 0, 1, 3, 5, 1],
        &[10, 0, 1, 3, 6, 0],
        &[10, 0, 1, 10, 0, 0],
        &[10, 0, 1, 3, VARINT_MAX, VARINT_MAX],
        &[10, 0, VARINT_MAX, 0],
        &[10, 0, 2, 0, 0, 0],
        &[VARINT_MAX, 0, 1, 0, VARINT_MAX, 0],
    ] {
        assert_eq!(code(&integers(kind::ACK, bad)), (TransportError::FRAME_ENCODING_ERROR, 2), "{bad:?}");
    }
    assert_eq!(code(&integers(kind::ACK_ECN, &[3, 0, 0, 3, 1, 1])), (TransportError::FRAME_ENCODING_ERROR, 3));
}

#[test]
fn reasons_are_cut() {
    let reason = "reason é".repeat(20);
    for bytes_max in 0..reason.len() + 10 {
        let text = bytes(|out| write_close(out, false, 0x100, 0, reason.as_bytes(), bytes_max));
        assert!(text.len() <= bytes_max.max(5));
        let QuicFrame::Close { code, reason: read, .. } = read_one(&text) else { panic!("another frame") };
        assert_eq!(code, 0x100);
        assert!(reason.as_bytes().starts_with(read));
        assert!(std::str::from_utf8(read).is_ok(), "cut within a character");
        if let Some(left) = bytes_max.checked_sub(8) {
            assert!(read.len() >= left.min(reason.len()), "cut more than necessary");
        }
    }
    let text = bytes(|out| write_close(out, true, 1, 0, &[0x80; 50], 20));
    assert_eq!(text.len(), 20, "no UTF-8 at all");
}

#[test]
fn packets_limit_frames() {
    let ack = bytes(|out| write_ack(out, std::iter::once(0..=0), 0, None));
    let mut frames: Vec<_> = samples().into_iter().map(|(frame, _)| frame).collect();
    frames.extend([read_one(&ack), QuicFrame::NewToken]);
    for frame in frames {
        // Columns of RFC 9000, table 3, in this order: Initial, Handshake, 0-RTT, 1-RTT.
        let columns = match frame {
            QuicFrame::Padding | QuicFrame::Ping | QuicFrame::Close { is_application: false, .. } => "IH01",
            QuicFrame::Ack(_) | QuicFrame::Crypto { .. } => "IH_1",
            // The table permits RETIRE_CONNECTION_ID in early data, section 12.5 says that no client can send it.
            QuicFrame::NewToken
            | QuicFrame::PathResponse(_)
            | QuicFrame::HandshakeDone
            | QuicFrame::RetireConnectionId { .. } => "___1",
            _ => "__01",
        };
        let kinds = [PacketKind::Initial, PacketKind::Handshake, PacketKind::ZeroRtt, PacketKind::OneRtt];
        for (kind, column) in kinds.into_iter().zip(columns.chars()) {
            assert_eq!(frame.is_allowed(kind), column != '_', "{frame:?} in {kind:?}");
        }
        assert!(!frame.is_allowed(PacketKind::Retry));
        let is_quiet = matches!(frame, QuicFrame::Padding | QuicFrame::Ack(_) | QuicFrame::Close { .. });
        assert_eq!(frame.is_ack_eliciting(), !is_quiet);
        let is_probing = matches!(frame.kind(), 0x00 | 0x18 | 0x1a | 0x1b);
        assert_eq!(frame.is_probing(), is_probing);
    }
}

#[test]
fn frames_are_small() {
    assert!(size_of::<QuicFrame<'_>>() <= 80);
    assert!(size_of::<FrameReader<'_>>() <= 24);
}

proptest! {
    #[test]
    fn any_ranges_are_acknowledged(
        parts in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 40), 1..40),
        largest_gap in 0_u64..1 << 50,
    ) {
        // From the gaps and lengths to ranges that descend.
        let mut ranges = Vec::new();
        let mut end = parts.iter().map(|(gap, length)| gap + length + 2).sum::<u64>() + largest_gap;
        for (gap, length) in parts {
            ranges.push(end - length..=end);
            end = (end - length).saturating_sub(gap + 2);
        }
        let text = bytes(|out| write_ack(out, ranges.iter().cloned(), 3, None));
        prop_assert_eq!(ranges_of(&text), ranges);
    }

    #[test]
    fn any_bytes_are_read_without_panic(payload: Vec<u8>) {
        for frame in FrameReader::new(&payload).flatten() {
            if let QuicFrame::Ack(ack) = frame {
                let ranges: Vec<_> = ack.ranges().collect();
                prop_assert_eq!(*ranges[0].end(), ack.largest);
                prop_assert!(ranges.iter().all(|range| range.start() <= range.end()));
                prop_assert!(ranges.windows(2).all(|pair| *pair[1].end() + 1 < *pair[0].start()));
            }
        }
    }

    #[test]
    fn any_frames_of_small_integers_are_read_without_panic(payload in prop::collection::vec(0_u8..0x20, 1..100)) {
        let frames = FrameReader::new(&payload).count();
        prop_assert!((1..=payload.len()).contains(&frames));
    }
}
