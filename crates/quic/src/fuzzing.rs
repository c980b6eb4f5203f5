//! Entries of fuzz targets, which are built with the feature `fuzzing`.
//!
//! A whole connection needs a handshake for each input, because only rustls can make its secrets. That is too slow for a fuzz
//! target. The entries feed the rooms that read what a client sends, without encryption.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::TransportError;
use crate::frame::{FrameReader, QuicFrame};
use crate::id::{ID_BYTES_MAX, QuicStreamId};
use crate::packet::{PacketKind, read_header};
use crate::parameters::PeerParameters;
use crate::recovery::{SentInfo, SentPackets};
use crate::streams::{StreamEvent, StreamLimits, Streams};

/// Limits of the model. They are small, so that short inputs reach them.
const LIMITS: StreamLimits =
    StreamLimits { window_bytes: 300, connection_window_bytes: 500, bidi_max: 4, uni_max: 2, send_window_bytes: 400 };

/// Payload of the largest packet of the model.
const PACKET_BYTES: usize = 120;

/// Reads a datagram, the frames of a packet, and the transport parameters of a client. What is read is within the input.
pub fn read_packets(input: &[u8]) {
    let (mut rest, mut id_bytes) = (input, input.len() % (ID_BYTES_MAX + 1));
    while let Ok(header) = read_header(rest, id_bytes) {
        assert!(header.end > 0 && header.end <= rest.len() && header.number_at <= header.end);
        assert!(header.token.start <= header.token.end && header.token.end <= header.end);
        rest = &rest[header.end..];
        id_bytes = header.destination.len();
    }
    for frame in FrameReader::new(input) {
        let Ok(frame) = frame else { break };
        let kinds = [PacketKind::Initial, PacketKind::ZeroRtt, PacketKind::Handshake, PacketKind::OneRtt];
        assert!(frame.kind() <= 0x1e && kinds.into_iter().any(|kind| frame.is_allowed(kind)));
        if let QuicFrame::Ack(ack) = &frame {
            let mut above = None;
            for range in ack.ranges() {
                assert!(!range.is_empty() && *range.end() <= ack.largest);
                assert!(above.is_none_or(|above| *range.end() + 1 < above), "ranges descend, with gaps");
                above = Some(*range.start());
            }
        }
    }
    if let Ok(parameters) = PeerParameters::read(input) {
        assert!(parameters.max_udp_payload_bytes >= 1200 && parameters.ack_delay_exponent <= 20);
    }
}

/// Runs streams and the recovery of one connection by commands: a byte for the command, the length of its argument, and the
/// argument. Memory stays within limits, and whatever is sent has valid frames.
pub fn run_streams(base: Instant, input: &[u8]) {
    let mut model = Model { now: base, streams: Streams::new(&LIMITS), sent: SentPackets::new(base) };
    model.streams.on_peer_parameters(&PeerParameters {
        initial_max_data: 300,
        initial_max_stream_data_bidi_remote: 200,
        initial_max_stream_data_bidi_local: 200,
        initial_max_stream_data_uni: 200,
        initial_max_streams_uni: 3,
        ..PeerParameters::default()
    });
    let mut rest = input;
    while let [command, length, following @ ..] = rest {
        let (argument, following) = following.split_at(usize::from(*length).min(following.len()));
        rest = following;
        if model.act(*command, argument).is_err() {
            // The connection is closed.
            return;
        }
        model.check();
    }
}

/// Streams of a connection, and the packets that it has sent.
struct Model {
    now: Instant,
    streams: Streams,
    sent: SentPackets,
}

impl Model {
    /// Handles frames of the client, or lets the application do something with a stream.
    fn act(&mut self, command: u8, argument: &[u8]) -> Result<(), TransportError> {
        let id = QuicStreamId(u64::from(command >> 4));
        let count = argument.first().copied().unwrap_or_default();
        match command & 15 {
            0..=3 => return self.handle_frames(&Bytes::copy_from_slice(argument)),
            4 => drop(self.streams.read(id, usize::from(count))),
            5 => drop(self.streams.write(id, &mut [Bytes::copy_from_slice(argument), Bytes::from_static(&[0; 64])])),
            6 => drop(self.streams.finish(id)),
            7 => self.streams.reset(id, u64::from(count)),
            8 => self.streams.stop(id, u64::from(count)),
            9 => self.streams.set_priority(id, i32::from(count) - 128),
            10 => self.streams.shrink(),
            11 => drop(self.streams.open_uni()),
            12 => self.handle_events(),
            13 => {
                self.now += Duration::from_millis(u64::from(count));
                self.detect_lost();
            }
            _ => self.send_packet(PACKET_BYTES.min(usize::from(count))),
        }
        Ok(())
    }

    fn handle_frames(&mut self, payload: &Bytes) -> Result<(), TransportError> {
        for frame in FrameReader::new(payload) {
            let streams = &mut self.streams;
            match frame? {
                QuicFrame::Stream { id, offset, data, is_fin } => {
                    streams.on_stream(id, offset, payload.slice_ref(data), is_fin)?;
                }
                QuicFrame::ResetStream { id, code, final_bytes } => streams.on_reset_stream(id, code, final_bytes)?,
                QuicFrame::StopSending { id, code } => streams.on_stop_sending(id, code)?,
                QuicFrame::MaxData(bytes) => streams.on_max_data(bytes),
                QuicFrame::MaxStreamData { id, bytes } => streams.on_max_stream_data(id, bytes)?,
                QuicFrame::MaxStreams { dir, count } => streams.on_max_streams(dir, count),
                QuicFrame::StreamDataBlocked { id } => streams.on_stream_data_blocked(id)?,
                QuicFrame::Ack(ack) => {
                    self.sent.on_ack(ack.ranges(), &mut |_, frames| {
                        frames.for_each(|frame| self.streams.on_acked(&frame));
                    })?;
                    self.detect_lost();
                    self.sent.forget_settled(self.now, Duration::from_millis(20));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn detect_lost(&mut self) {
        self.sent.detect_lost(self.now, Duration::from_millis(30), 0, &mut |_, _, frames| {
            frames.for_each(|frame| self.streams.on_lost(&frame));
        });
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.streams.poll_event() {
            if let StreamEvent::Opened { dir } = event {
                while self.streams.accept(dir).is_some() {}
            }
        }
    }

    fn send_packet(&mut self, bytes: usize) {
        let (mut out, mark) = (Vec::new(), self.sent.mark());
        self.streams.write_frames(&mut out, bytes, &mut self.sent.frames);
        assert!(out.len() <= bytes);
        if out.is_empty() {
            assert_eq!(self.sent.mark(), mark, "each frame takes bytes");
            return;
        }
        assert!(FrameReader::new(&out).all(|frame| frame.is_ok_and(|frame| frame.is_allowed(PacketKind::OneRtt))));
        let info = SentInfo {
            bytes: out.len() as u16,
            is_ack_eliciting: true,
            is_in_flight: true,
            is_mtu_probe: false,
            is_ect: false,
            path: 0,
        };
        self.sent.record(self.now, mark, info);
    }

    fn check(&self) {
        assert!(self.streams.unacked_bytes() <= LIMITS.send_window_bytes + u64::from(u8::MAX) + 64);
        assert!(self.streams.unread_bytes() <= LIMITS.connection_window_bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_take_any_bytes(input in prop::collection::vec(any::<u8>(), 0..400)) {
            read_packets(&input);
            run_streams(Instant::now(), &input);
        }
    }
}
