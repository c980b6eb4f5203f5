//! Datagrams to the peer.

use std::time::Instant;

use super::path::DATAGRAM_BYTES_MIN;
use super::{Connection, State};
use crate::error::TransportError;
use crate::frame::{
    write_ack, write_close, write_handshake_done, write_new_connection_id, write_new_token, write_path_challenge,
    write_path_response, write_ping, write_retire_connection_id,
};
use crate::packet::{PacketKind, PacketWriter, Space, TAG_BYTES};
use crate::recovery::{ReceivedPackets, SentInfo, SentPackets};
use crate::streams::SentFrame;
use crate::types::{Ecn, Transmit};

/// Room below which no further packet is begun in a datagram, in bytes.
const PACKET_BYTES_MIN: usize = 128;

/// Room for an acknowledgment of one range and for a challenge, with the longest header, in bytes.
const DATAGRAM_ROOM_MIN: usize = 120;

/// Room for a challenge alone, with the longest header, in bytes. The smallest datagrams of clients permit that.
const CHALLENGE_ROOM_MIN: usize = 60;

/// Most bytes of a range in an ACK frame, and of its other fields.
const ACK_RANGE_BYTES_MAX: usize = 16;
const ACK_FIELDS_BYTES_MAX: usize = 48;

/// Frames of the longest kinds that are not cut to the room: NEW_CONNECTION_ID and NEW_TOKEN, in bytes.
const FRAME_BYTES_MAX: usize = 256;

/// Largest probe of a path's size, in bytes.
const PROBE_BYTES_MAX: u64 = 1_500;

/// Rest of a datagram that is filled up if more data follows, in bytes.
const REST_BYTES_MAX: usize = 64;

/// Packets without need of an acknowledgment after which one asks for it, so that the peer's acknowledgments bound what is kept.
const QUIET_MAX: usize = 64;

/// Longest CONNECTION_CLOSE frame, in bytes, so that one of each space fits into a datagram.
const CLOSE_BYTES_MAX: usize = 256;

/// Exponent of delays in this side's ACK frames (RFC 9000, section 18.2: the default).
const ACK_DELAY_EXPONENT: u32 = 3;

/// Distances of packet numbers that are skipped, so that a peer that acknowledges what it has not received is found. The
/// distance is random, and grows with the number of packets.
const SKIP_DISTANCE_MIN: u64 = 64;

/// Packet whose frames are being written.
struct OpenPacket {
    space: Space,
    writer: PacketWriter,
    /// Place of its first frame.
    mark: u32,
    has_ack: bool,
    /// True for frames that the peer must acknowledge and that are not repeated.
    has_unrecorded: bool,
    is_mtu_probe: bool,
}

impl Connection {
    /// Writes datagrams to `out`, which must be empty: several of the same size, of which the last one may be smaller. Returns
    /// `None` if there is nothing to send now. `segments_max` is the largest number of datagrams.
    pub fn poll_transmit(&mut self, now: Instant, segments_max: usize, out: &mut Vec<u8>) -> Option<Transmit> {
        match &self.state {
            State::Open => {}
            State::Closing(_) => return self.write_closing(now, out),
            State::Draining { .. } | State::Drained => return None,
        }
        if self.has_too_many_unanswered() {
            self.fail(now, TransportError::protocol_violation("too few packets are acknowledged"));
            return self.write_closing(now, out);
        }
        if let Some(transmit) = self.write_for_other_path(now, out) {
            return Some(transmit);
        }
        // First, because a long response leaves no room for it later.
        if let Some(transmit) = self.write_mtu_probe(now, out) {
            return Some(transmit);
        }
        // The path may have ceased to carry larger datagrams, so that probes are small.
        let probes = usize::from(self.data.probes);
        let (datagram_bytes, segments_max) = match probes {
            0 => (usize::from(self.path.mtu.current()), segments_max),
            _ => (usize::from(DATAGRAM_BYTES_MIN), segments_max.min(probes)),
        };
        let mut budget_bytes = self.budget(now, datagram_bytes);
        let mut count = 0;
        while count < segments_max && !self.is_blocked() {
            let start = out.len();
            let end = start + datagram_bytes.min(self.path.room());
            self.write_datagram(now, out, end, budget_bytes >= datagram_bytes as u64);
            let bytes = out.len() - start;
            if bytes == 0 {
                break;
            }
            self.path.on_sent(bytes);
            budget_bytes = budget_bytes.saturating_sub(bytes as u64);
            count += 1;
            if bytes < datagram_bytes {
                break;
            }
        }
        if count == 0 {
            let has_room = self.path.in_flight + datagram_bytes as u64 <= self.path.congestion.window();
            self.is_app_limited |= has_room && self.pace_at.is_none();
            return None;
        }
        let segment_bytes = (count > 1).then_some(datagram_bytes);
        Some(self.transmit(self.path.mark(), out.len(), segment_bytes))
    }

    /// True if the limit for addresses that are not validated leaves no room for a datagram. Those of a handshake have the whole
    /// size (RFC 9000, section 14.1).
    pub(super) fn is_blocked(&self) -> bool {
        let needed = if self.is_handshaking() { usize::from(DATAGRAM_BYTES_MIN) } else { DATAGRAM_ROOM_MIN };
        self.path.room() < needed
    }

    fn transmit(&self, ecn: Option<Ecn>, bytes: usize, segment_bytes: Option<usize>) -> Transmit {
        Transmit { remote: self.path.remote, local: self.path.local, ecn, bytes, segment_bytes }
    }

    /// Bytes that congestion control and pacing permit now.
    fn budget(&mut self, now: Instant, datagram_bytes: usize) -> u64 {
        self.pace_at = None;
        if !self.has_data() {
            return 0;
        }
        let window = self.path.congestion.window();
        let room = window.saturating_sub(self.path.in_flight);
        self.is_app_limited = false;
        if room < datagram_bytes as u64 {
            return 0;
        }
        let rate = self.path.congestion.pacing_rate(&self.path.rtt);
        let size = self.path.mtu.current();
        self.pace_at = self.path.pacer.wait(now, u64::from(size), rate, size, window);
        if self.pace_at.is_some() {
            return 0;
        }
        room.min(self.path.pacer.batch_bytes(size))
    }

    /// True if there are frames that congestion control limits.
    fn has_data(&self) -> bool {
        let due = self.is_data_due();
        let handshake = self.handshake.as_deref();
        let crypto = |space| {
            let long = handshake.and_then(|handshake| handshake.space(space));
            long.is_some_and(|long| long.packets.crypto.can_send())
        };
        due || handshake.is_some() && (crypto(Space::Initial) || crypto(Space::Handshake))
    }

    /// True if there are frames for the data space that congestion control limits.
    #[inline]
    fn is_data_due(&self) -> bool {
        self.keys.is_some()
            && (self.streams.can_send()
                || self.due.ping
                || self.due.handshake_done
                || self.due.is_new_token_unsent
                || self.path.is_challenge_due
                || self.local_ids.has_unsent()
                || !self.remote_ids.unsent.is_empty()
                || self.data.crypto.can_send())
    }

    /// Writes one datagram, or nothing. With `has_budget`, it may have more than acknowledgments.
    fn write_datagram(&mut self, now: Instant, out: &mut Vec<u8>, end: usize, has_budget: bool) {
        let start = out.len();
        let mut open: Option<OpenPacket> = None;
        let mut has_initial = false;
        if self.handshake.is_some() {
            for space in [Space::Initial, Space::Handshake] {
                if !self.can_send_long(space, has_budget) || end - out.len() < PACKET_BYTES_MIN + 2 * TAG_BYTES {
                    continue;
                }
                self.finish_packet(now, out, open.take());
                open = self.write_long(now, space, out, end - TAG_BYTES, has_budget);
                has_initial |= space == Space::Initial;
            }
        }
        // A datagram of what may be sent to an address that is not validated is left for a probe of the handshake. The client may
        // wait for it, and send nothing.
        let keeps_reserve =
            open.is_some() || !self.is_handshaking() || self.path.room() >= 2 * usize::from(DATAGRAM_BYTES_MIN);
        let may_send = has_budget && keeps_reserve || self.data.probes > 0;
        let is_due = may_send && self.is_data_due() || self.data.probes > 0;
        let is_ack_due = self.data.received.due_at().is_some_and(|at| at <= now);
        let has_room = open.is_none() || end >= out.len() + PACKET_BYTES_MIN + 2 * TAG_BYTES;
        if self.keys.is_some() && (is_due || is_ack_due) && has_room {
            self.finish_packet(now, out, open.take());
            let packet_start = out.len();
            open = self.write_short(now, out, end - TAG_BYTES, may_send);
            if open.is_none() {
                out.truncate(packet_start);
            }
        }
        // So that the path is known to carry such datagrams (RFC 9000, section 8.2.1).
        if open.as_ref().is_some_and(|packet| packet.has_unrecorded) {
            let padded = end.min(start + usize::from(DATAGRAM_BYTES_MIN)) - TAG_BYTES;
            out.resize(out.len().max(padded), 0);
            self.path.is_size_unproven |= out.len() + TAG_BYTES < start + usize::from(DATAGRAM_BYTES_MIN);
        }
        // RFC 9000, section 14.1.
        if has_initial && let Some(packet) = &open {
            let padded = (start + usize::from(DATAGRAM_BYTES_MIN) - TAG_BYTES).max(packet.writer.payload_start());
            if out.len() < padded {
                out.resize(padded, 0);
            }
        } else if has_initial && out.len() < start + usize::from(DATAGRAM_BYTES_MIN) {
            // Bytes after the last packet are no packet, and are ignored.
            out.resize(start + usize::from(DATAGRAM_BYTES_MIN), 0);
        }
        self.finish_packet(now, out, open);
    }

    /// True if there is something to send in the space of a handshake.
    fn can_send_long(&self, space: Space, has_budget: bool) -> bool {
        let long = self.handshake.as_ref().and_then(|handshake| handshake.space(space));
        long.is_some_and(|long| {
            let packets = &long.packets;
            packets.received.has_news() || packets.probes > 0 || has_budget && packets.crypto.can_send()
        })
    }

    /// Begins a packet with a long header, and writes its frames.
    fn write_long(
        &mut self,
        now: Instant,
        space: Space,
        out: &mut Vec<u8>,
        end: usize,
        has_budget: bool,
    ) -> Option<OpenPacket> {
        let mut packet = self.begin_packet(space, out)?;
        let packets = self.select(space)?;
        let has_ack = write_ack_frame(now, &mut packets.received, &mut packets.sent, out, end);
        if has_budget || packets.probes > 0 {
            packets.crypto.write_frames(out, end, &mut packets.sent);
        }
        if packets.probes > 0 {
            packets.probes -= 1;
            if packets.sent.mark().wrapping_sub(packet.mark) == u32::from(has_ack) {
                write_ping(out);
                packets.sent.frames.push_back(SentFrame::Ping);
            }
        }
        packet.has_ack = has_ack;
        Some(packet)
    }

    /// Begins a packet with a short header, and writes its frames. Returns `None` if there are none.
    fn write_short(&mut self, now: Instant, out: &mut Vec<u8>, end: usize, may_send: bool) -> Option<OpenPacket> {
        // Packets that probe a path have numbers, too, but skip none.
        let number = self.data.sent.next_number();
        if number >= self.skips_at {
            self.data.sent.skip_number();
            self.skips_at = self.next_skip(number);
        }
        let mut packet = self.begin_packet(Space::Data, out)?;
        let payload_start = out.len();
        let sent = &mut self.data.sent;
        let has_ack = write_ack_frame(now, &mut self.data.received, sent, out, end);
        if may_send {
            if std::mem::take(&mut self.due.handshake_done) {
                write_handshake_done(out);
                sent.frames.push_back(SentFrame::HandshakeDone);
            }
            if let Some(challenge) = self.path.challenge.filter(|_| std::mem::take(&mut self.path.is_challenge_due)) {
                write_path_challenge(out, challenge);
                packet.has_unrecorded = true;
            }
            self.write_rare_frames(out, end);
            let sent = &mut self.data.sent;
            self.data.crypto.write_frames(out, end, sent);
            self.streams.write_frames(out, end, &mut sent.frames);
        }
        let sent = &mut self.data.sent;
        // A datagram that is a little smaller would end the batch. Frames have no room in the rest.
        if out.len() < end && end - out.len() <= REST_BYTES_MAX && self.streams.can_send() {
            out.resize(end, 0);
        }
        let is_quiet = sent.mark().wrapping_sub(packet.mark) == u32::from(has_ack) && !packet.has_unrecorded;
        let wants_ack = self.data.probes > 0 || has_ack && sent.is_quiet(QUIET_MAX);
        if is_quiet && (wants_ack || may_send && self.due.ping) {
            write_ping(out);
            sent.frames.push_back(SentFrame::Ping);
        }
        if may_send {
            self.due.ping = false;
        }
        self.data.probes = self.data.probes.saturating_sub(1);
        packet.has_ack = has_ack;
        (out.len() > payload_start).then_some(packet)
    }

    /// Writes frames that most packets do not have.
    fn write_rare_frames(&mut self, out: &mut Vec<u8>, end: usize) {
        let sent = &mut self.data.sent;
        while end >= out.len() + FRAME_BYTES_MAX && self.local_ids.has_unsent() {
            let Some(id) = self.local_ids.pop_unsent() else { break };
            write_new_connection_id(out, id.sequence, 0, &id.id, &id.token);
            sent.frames.push_back(SentFrame::NewConnectionId { sequence: id.sequence });
        }
        while end >= out.len() + FRAME_BYTES_MAX
            && let Some(sequence) = self.remote_ids.unsent.pop()
        {
            write_retire_connection_id(out, sequence);
            sent.frames.push_back(SentFrame::RetireConnectionId { sequence });
        }
        if self.due.is_new_token_unsent
            && let Some(token) = &self.due.new_token
            && end >= out.len() + token.len() + 8
        {
            write_new_token(out, token);
            sent.frames.push_back(SentFrame::NewToken);
            self.due.is_new_token_unsent = false;
        }
    }

    /// Encrypts a packet, and records it.
    fn finish_packet(&mut self, now: Instant, out: &mut Vec<u8>, packet: Option<OpenPacket>) {
        let Some(OpenPacket { space, writer, mark, has_ack, has_unrecorded, is_mtu_probe }) = packet else { return };
        let (start, payload_start) = (writer.start(), writer.payload_start());
        let (path, is_ect) = (self.path.number, self.path.ecn.is_on);
        let finished = match space {
            Space::Data => {
                if let Some(qlog) = &mut self.qlog {
                    qlog.packet_sent(now, PacketKind::OneRtt, self.data.sent.next_number(), &out[payload_start..]);
                }
                let Some(keys) = &mut self.keys else { return };
                let number = self.data.sent.next_number();
                let (packet_key, header_key) = keys.local();
                let finished = writer.finish(out, number, packet_key, header_key);
                match keys.on_encrypted() {
                    true => finished.and_then(|()| self.update_keys(now, number + 1)),
                    false => finished,
                }
            }
            Space::Initial | Space::Handshake => {
                let kind = if space == Space::Initial { PacketKind::Initial } else { PacketKind::Handshake };
                let long = self.handshake.as_mut().and_then(|handshake| handshake.space_mut(space));
                let Some(long) = long else { return };
                let number = long.packets.sent.next_number();
                if let Some(qlog) = &mut self.qlog {
                    qlog.packet_sent(now, kind, number, &out[payload_start..]);
                }
                let keys = &long.keys.local;
                writer.finish(out, number, &*keys.packet, &*keys.header)
            }
        };
        let bytes = out.len() - start;
        let Some(packets) = self.select(space) else { return };
        let frames = packets.sent.mark().wrapping_sub(mark) - u32::from(has_ack);
        let is_ack_eliciting = frames > 0 || has_unrecorded;
        let info = SentInfo {
            bytes: bytes as u16,
            is_ack_eliciting,
            is_in_flight: is_ack_eliciting,
            is_mtu_probe,
            is_ect,
            path,
        };
        let number = packets.sent.record(now, mark, info);
        if is_ack_eliciting {
            packets.eliciting_at = Some(now);
            self.on_eliciting(now, space, number, bytes);
        }
        if let Err(error) = finished {
            self.fail(now, error);
        }
    }

    #[cold]
    fn update_keys(&mut self, now: Instant, next_number: u64) -> Result<(), TransportError> {
        let until = self.keep_until(now);
        self.keys.as_mut().map_or(Ok(()), |keys| keys.update_at_limit(next_number, until))
    }

    /// Counts a packet that the peer must acknowledge.
    fn on_eliciting(&mut self, now: Instant, space: Space, number: u64, bytes: usize) {
        let path = &mut self.path;
        // Congestion control tells round trips by the numbers of one space.
        if space == Space::Data {
            path.congestion.on_sent(now, number, bytes as u64, path.in_flight);
        }
        path.pacer.on_sent(bytes as u64);
        path.in_flight += bytes as u64;
        if !std::mem::replace(&mut self.has_sent_eliciting, true) {
            self.idle_at = Some(now + self.idle_timeout());
        }
    }

    /// Writes a probe for a larger size of datagrams.
    fn write_mtu_probe(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        if self.is_handshaking() || !self.path.is_validated || self.keys.is_none() {
            return None;
        }
        if self.path.in_flight + PROBE_BYTES_MAX > self.path.congestion.window() {
            return None;
        }
        let number = self.data.sent.next_number();
        let bytes = usize::from(self.path.mtu.poll_probe(now, number)?);
        let packet = OpenPacket { is_mtu_probe: true, ..self.begin_packet(Space::Data, out)? };
        write_ping(out);
        self.data.sent.frames.push_back(SentFrame::Ping);
        out.resize(bytes - TAG_BYTES, 0);
        self.finish_packet(now, out, Some(packet));
        Some(self.transmit(self.path.mark(), out.len(), None))
    }

    /// Writes a datagram to an address that the path does not have: a response to its challenge, or a challenge to the address
    /// that the client had before. Writes also the challenge to an address that may get nothing more yet.
    fn write_for_other_path(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        self.keys.as_ref()?;
        while let Some(response) = self.path_responses.pop() {
            // The whole size shows that the path carries it, if the limit for new addresses permits (RFC 9000, section 8.2.2).
            let is_here = self.path.is_at(response.remote);
            let bytes_max = if is_here { self.path.room() } else { response.bytes_max };
            if bytes_max < CHALLENGE_ROOM_MIN {
                continue;
            }
            let pads = bytes_max >= usize::from(DATAGRAM_BYTES_MIN);
            let bytes = self.write_probing(now, out, pads, |out| write_path_response(out, response.data))?;
            if is_here {
                self.path.on_sent(bytes);
            }
            let (remote, local) = (response.remote, response.local);
            return Some(Transmit { remote, local, ecn: self.path.mark(), bytes, segment_bytes: None });
        }
        if let Some(challenge) = self.path.challenge.filter(|_| self.path.is_challenge_due)
            && self.is_blocked()
            && self.path.room() >= CHALLENGE_ROOM_MIN
        {
            (self.path.is_challenge_due, self.path.is_size_unproven) = (false, true);
            let bytes = self.write_probing(now, out, false, |out| write_path_challenge(out, challenge))?;
            self.path.on_sent(bytes);
            return Some(self.transmit(self.path.mark(), bytes, None));
        }
        let previous = self.previous.as_mut()?;
        let challenge = previous.challenge.filter(|_| previous.is_challenge_due)?;
        previous.is_challenge_due = false;
        let (remote, local) = (previous.remote, previous.local);
        let bytes = self.write_probing(now, out, true, |out| write_path_challenge(out, challenge))?;
        Some(Transmit { remote, local, ecn: self.path.mark(), bytes, segment_bytes: None })
    }

    /// Writes a datagram with one frame that is not repeated.
    fn write_probing(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        pads: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Option<usize> {
        let packet = OpenPacket { has_unrecorded: true, ..self.begin_packet(Space::Data, out)? };
        write(out);
        if pads {
            out.resize(usize::from(DATAGRAM_BYTES_MIN) - TAG_BYTES, 0);
        }
        self.finish_packet(now, out, Some(packet));
        Some(out.len())
    }

    /// Writes the packets that close the connection.
    fn write_closing(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        let may_send = self.path.may_send(usize::from(DATAGRAM_BYTES_MIN));
        let State::Closing(closing) = &mut self.state else { return None };
        if !may_send || !std::mem::take(&mut closing.is_due) {
            return None;
        }
        let (is_application, error) = (closing.is_application, closing.error.clone());
        let all = [Space::Initial, Space::Handshake, Space::Data];
        let spaces: Vec<_> = all.into_iter().filter(|space| self.has_keys(*space)).collect();
        for space in &spaces {
            let packet = self.begin_packet(*space, out)?;
            // An error of the application must not be told before the handshake is complete (RFC 9000, section 10.2.3).
            match is_application && *space != Space::Data {
                true => write_close(out, false, TransportError::APPLICATION_ERROR, 0, b"", CLOSE_BYTES_MAX),
                false => {
                    write_close(out, is_application, error.code, error.frame, error.reason.as_bytes(), CLOSE_BYTES_MAX);
                }
            }
            // RFC 9000, section 14.1.
            let padded = usize::from(DATAGRAM_BYTES_MIN) - TAG_BYTES;
            if spaces.first() == Some(&Space::Initial) && spaces.last() == Some(space) && out.len() < padded {
                out.resize(padded, 0);
            }
            self.finish_packet(now, out, Some(packet));
        }
        self.path.on_sent(out.len());
        Some(self.transmit(None, out.len(), None))
    }

    /// True if packets of a space can be encrypted.
    fn has_keys(&self, space: Space) -> bool {
        match space {
            Space::Data => self.keys.is_some(),
            _ => self.handshake.as_ref().is_some_and(|handshake| handshake.space(space).is_some()),
        }
    }

    /// Begins a packet.
    fn begin_packet(&mut self, space: Space, out: &mut Vec<u8>) -> Option<OpenPacket> {
        let destination = self.remote_ids.current();
        let own_id = self.handshake.as_ref().map(|handshake| handshake.own_id);
        let phase = self.keys.as_ref().is_some_and(|keys| keys.phase);
        let sent = &self.select(space)?.sent;
        let (number, largest_acked, mark) = (sent.next_number(), sent.largest_acked(), sent.mark());
        let kind = if space == Space::Initial { PacketKind::Initial } else { PacketKind::Handshake };
        let writer = match space {
            Space::Data => PacketWriter::short(out, &destination, number, largest_acked, phase),
            _ => PacketWriter::long(out, kind, &destination, &own_id?, &[], number, largest_acked),
        };
        Some(OpenPacket { space, writer, mark, has_ack: false, has_unrecorded: false, is_mtu_probe: false })
    }

    /// Number of the next packet that is skipped after this one.
    pub(super) fn next_skip(&mut self, number: u64) -> u64 {
        let distance = SKIP_DISTANCE_MIN.max(number);
        number + SKIP_DISTANCE_MIN + self.random() % distance
    }
}

/// Writes an ACK frame, if it would tell the peer something. With little room before `end`, it leaves out old ranges.
#[inline]
fn write_ack_frame(
    now: Instant,
    received: &mut ReceivedPackets,
    sent: &mut SentPackets,
    out: &mut Vec<u8>,
    end: usize,
) -> bool {
    if !received.has_news() {
        return false;
    }
    let Some(largest) = received.largest() else { return false };
    let (numbers, delay, ecn) = received.ack(now);
    let room = end.saturating_sub(out.len() + ACK_FIELDS_BYTES_MAX);
    let ranges = numbers.iter().rev().take(1 + room / ACK_RANGE_BYTES_MAX);
    let ranges = ranges.map(|range| range.start..=range.end - 1);
    write_ack(out, ranges, delay.as_micros() as u64 >> ACK_DELAY_EXPONENT, ecn);
    sent.frames.push_back(SentFrame::Ack { largest });
    received.on_ack_sent();
    true
}
