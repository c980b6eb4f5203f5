//! Datagrams of the peer: packets are decrypted, and their frames handled.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::keys::Decrypted;
use super::{Connection, LostReason, State};
use crate::error::TransportError;
use crate::frame::{FrameReader, QuicFrame};
use crate::id::ResetToken;
use crate::packet::{PacketHeader, PacketKind, Space, expand_number, read_header, unprotect};
use crate::types::{Datagram, Ecn};

/// ACK frames in a packet. One tells all, and each costs a look at all packets that it names.
const ACKS_MAX: u32 = 4;

/// Timeouts of the probe for which keys and paths of before are kept (RFC 9001, section 6.5).
pub(super) const KEEP_TIMEOUTS: u32 = 3;

/// Packet of a datagram.
pub(super) struct PacketArrival {
    pub(super) now: Instant,
    pub(super) remote: SocketAddr,
    pub(super) local: Option<IpAddr>,
    pub(super) ecn: Option<Ecn>,
    pub(super) kind: PacketKind,
    pub(super) space: Space,
    pub(super) number: u64,
    /// Bytes of the datagram.
    pub(super) datagram_bytes: usize,
}

impl Connection {
    /// Handles a datagram that the endpoint has found to be of this connection.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Datagram) {
        match &mut self.state {
            State::Open => {}
            State::Closing(closing) => {
                closing.on_datagram();
                return self.path.on_received(datagram.payload.len());
            }
            State::Draining { .. } | State::Drained => return,
        }
        // Clients must not move during the handshake (RFC 9000, section 9).
        if self.is_handshaking() && !self.path.is_at(datagram.remote) {
            return;
        }
        if self.path.is_at(datagram.remote) {
            self.path.on_received(datagram.payload.len());
        }
        self.handle_packets(now, datagram);
        while let Some(datagram) = self.ready.pop_front() {
            self.handle_packets(now, datagram);
        }
    }

    /// Handles the packets of a datagram.
    fn handle_packets(&mut self, now: Instant, datagram: Datagram) {
        let Datagram { remote, local, ecn, mut payload } = datagram;
        let datagram_bytes = payload.len();
        let mut first_id = None;
        while !payload.is_empty() && !self.is_closed() {
            // All IDs of this side have the length of the first one.
            let Ok(header) = read_header(&payload, usize::from(self.id_bytes)) else { return };
            // RFC 9000, section 12.2.
            if *first_id.get_or_insert(header.destination) != header.destination {
                return;
            }
            let packet = match header.end == payload.len() {
                true => std::mem::take(&mut payload),
                false => payload.split_to(header.end),
            };
            let arrival = Datagram { remote, local, ecn, payload: packet };
            if let Err(error) = self.handle_packet(now, arrival, &header, datagram_bytes) {
                self.fail(now, error);
            }
        }
    }

    fn handle_packet(
        &mut self,
        now: Instant,
        packet: Datagram,
        header: &PacketHeader,
        datagram_bytes: usize,
    ) -> Result<(), TransportError> {
        let Some(space) = header.kind.space() else { return Ok(()) };
        if let Some(handshake) = &mut self.handshake
            && handshake.awaits_keys(header.kind)
        {
            handshake.keep(packet);
            return Ok(());
        }
        let Datagram { remote, local, ecn, mut payload } = packet;
        // Decryption overwrites it, even if it fails.
        let end = payload.last_chunk::<16>().copied();
        let Some(plain) = self.decrypt(now, header, space, &mut payload)? else {
            if self.is_reset(header.kind, remote, end) {
                self.lose(LostReason::Reset);
            }
            return Ok(());
        };
        let arrival =
            PacketArrival { now, remote, local, ecn, kind: header.kind, space, number: plain.number, datagram_bytes };
        let payload = payload.freeze().slice(plain.start..plain.end);
        self.on_packet(&arrival, payload)
    }

    /// Decrypts a packet in place. Returns `None` if it must be dropped.
    fn decrypt(
        &mut self,
        now: Instant,
        header: &PacketHeader,
        space: Space,
        packet: &mut BytesMut,
    ) -> Result<Option<Plain>, TransportError> {
        let is_short = header.kind == PacketKind::OneRtt;
        let header_key = match header.kind {
            PacketKind::OneRtt => self.keys.as_ref().map(|keys| keys.remote_header()),
            PacketKind::ZeroRtt => {
                let early = self.handshake.as_ref().and_then(|handshake| handshake.early.as_ref());
                early.map(|keys| &*keys.header)
            }
            _ => {
                let long = self.handshake.as_ref().and_then(|handshake| handshake.space(space));
                long.map(|long| &*long.keys.remote.header)
            }
        };
        let Some(header_key) = header_key else { return Ok(None) };
        let Some(unprotected) = unprotect(packet, header.number_at, header_key) else { return Ok(None) };
        let largest = match self.select(space) {
            Some(packets) => packets.received.largest(),
            None => return Ok(None),
        };
        let number = expand_number(unprotected.truncated, unprotected.bytes, largest);
        let start = header.number_at + unprotected.bytes;
        let (head, payload) = packet.split_at_mut(start);
        let plain_bytes = if is_short {
            let Some(keys) = &mut self.keys else { return Ok(None) };
            let phase = unprotected.key_phase();
            match keys.decrypt(number, phase, head, payload) {
                Decrypted::Plain(bytes) => {
                    keys.on_received(number, phase);
                    bytes
                }
                Decrypted::Updated(bytes) => {
                    let (next_number, until) = (self.data.sent.next_number(), self.keep_until(now));
                    self.keys.as_mut().map_or(Ok(()), |keys| keys.on_peer_update(number, next_number, until))?;
                    bytes
                }
                Decrypted::Failed if keys.is_integrity_spent() => {
                    return Err(TransportError::aead_limit_reached("too many packets could not be decrypted"));
                }
                Decrypted::Failed => return Ok(None),
            }
        } else {
            let handshake = self.handshake.as_ref();
            let key = match header.kind {
                PacketKind::ZeroRtt => {
                    handshake.and_then(|handshake| handshake.early.as_ref()).map(|keys| &keys.packet)
                }
                _ => handshake.and_then(|handshake| handshake.space(space)).map(|long| &long.keys.remote.packet),
            };
            let Some(key) = key else { return Ok(None) };
            let Ok(plain) = key.decrypt_in_place(number, head, payload) else { return Ok(None) };
            plain.len()
        };
        if unprotected.has_reserved_bits() {
            return Err(TransportError::protocol_violation("reserved bits are set"));
        }
        if self.select(space).is_none_or(|packets| packets.received.is_duplicate(number)) {
            return Ok(None);
        }
        Ok(Some(Plain { number, start, end: start + plain_bytes }))
    }

    /// Handles the frames of a packet.
    fn on_packet(&mut self, arrival: &PacketArrival, payload: Bytes) -> Result<(), TransportError> {
        let PacketArrival { now, space, number, kind, .. } = *arrival;
        if payload.is_empty() {
            return Err(TransportError::protocol_violation("packet without frames"));
        }
        self.idle_at = Some(now + self.idle_timeout());
        self.has_sent_eliciting = false;
        if kind == PacketKind::Handshake {
            // The client can only have the keys from a packet to its address (RFC 9000, section 8.1).
            self.path.is_validated = true;
            self.drop_initial();
        }
        let is_newest = self.data.received.largest().is_none_or(|largest| number > largest);
        let (mut is_ack_eliciting, mut is_probing, mut acks) = (false, true, 0);
        for frame in FrameReader::new(&payload) {
            let frame = frame?;
            let frame_kind = frame.kind();
            if !frame.is_allowed(kind) {
                let error = TransportError::protocol_violation("frame in a packet that must not have it");
                return Err(error.in_frame(frame_kind));
            }
            acks += u32::from(matches!(frame, QuicFrame::Ack(_)));
            if acks > ACKS_MAX {
                return Err(TransportError::protocol_violation("too many acknowledgments in a packet"));
            }
            is_ack_eliciting |= frame.is_ack_eliciting();
            is_probing &= frame.is_probing();
            self.on_frame(arrival, &payload, frame).map_err(|error| error.in_frame(frame_kind))?;
            if self.is_closed() {
                break;
            }
        }
        let is_handshake = space != Space::Data;
        if let Some(packets) = self.select(space) {
            packets.received.record(now, number, is_ack_eliciting, arrival.ecn, is_handshake);
        }
        if let Some(qlog) = &mut self.qlog {
            qlog.packet_received(now, kind, number, arrival.datagram_bytes, &payload);
        }
        if is_newest && !is_probing && space == Space::Data && !self.path.is_at(arrival.remote) && !self.is_closed() {
            self.on_moved(arrival);
        }
        Ok(())
    }

    /// True if a packet that can't be decrypted is a stateless reset (RFC 9000, section 10.3.1).
    fn is_reset(&self, kind: PacketKind, remote: SocketAddr, end: Option<[u8; 16]>) -> bool {
        let Some((ResetToken(token), end)) = self.remote_ids.token().zip(end) else { return false };
        let is_same = aws_lc_rs::constant_time::verify_slices_are_equal(&end, &token).is_ok();
        kind == PacketKind::OneRtt && self.path.is_at(remote) && is_same
    }
}

/// Plain payload in the buffer of its packet.
struct Plain {
    number: u64,
    start: usize,
    end: usize,
}
