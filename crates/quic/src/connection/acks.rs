//! Acknowledgments and losses (RFC 9002).

use std::time::{Duration, Instant};

use super::crypto::CryptoStream;
use super::ids::{LocalIds, RemoteIds};
use super::path::{DATAGRAM_BYTES_MIN, EcnOutcome, Path};
use super::space::{PacketSpace, select};
use super::{Connection, Due};
use crate::error::TransportError;
use crate::frame::{AckFrame, EcnCounts};
use crate::packet::Space;
use crate::qlog::{QlogMetrics, QlogTrace};
use crate::recovery::{ReceivedPackets, SentPackets};
use crate::streams::{SentFrame, Streams};

/// Timeouts of the probe after which a loss of everything is persistent congestion (RFC 9002, section 7.6.1).
const PERSISTENT_TIMEOUTS: u32 = 3;

/// Largest number of doublings of the probe timeout.
const BACKOFF_MAX: u32 = 10;

/// Packets that a probe repeats (RFC 9002, section 6.2.4).
const PROBES: u8 = 2;

/// Packets without an acknowledgment of the peer after as many probe timeouts, more of which end the connection. A peer on a path
/// that carries packets in one direction only stops to send much earlier.
const UNANSWERED_MAX: usize = 8_192;
const UNANSWERED_TIMEOUTS: u32 = 4;

/// Windows in both directions whose packets may be kept in addition at any time. A peer can make timeouts long.
const UNANSWERED_WINDOWS: u64 = 4;

/// Owners of the frames in a packet.
struct FrameOwners<'a> {
    streams: &'a mut Streams,
    crypto: &'a mut CryptoStream,
    received: &'a mut ReceivedPackets,
    local_ids: &'a mut LocalIds,
    remote_ids: &'a mut RemoteIds,
    due: &'a mut Due,
}

/// Parts of a connection that acknowledgments and losses in a space change.
struct AckParts<'a> {
    sent: &'a mut SentPackets,
    owners: FrameOwners<'a>,
    path: &'a mut Path,
    qlog: &'a mut Option<Box<QlogTrace>>,
    lost_packets: &'a mut u32,
    loss_at: &'a mut Option<Instant>,
    ecn_counts: &'a mut EcnCounts,
    probes: &'a mut u8,
}

impl FrameOwners<'_> {
    fn on_acked(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Ack { largest } => self.received.on_ack_acked(largest),
            SentFrame::Crypto { offset, bytes } => self.crypto.on_acked(offset, bytes),
            SentFrame::NewConnectionId { sequence } => self.local_ids.on_acked(sequence),
            SentFrame::RetireConnectionId { .. } => self.remote_ids.on_retired_acked(),
            SentFrame::NewToken => self.due.new_token = None,
            SentFrame::HandshakeDone | SentFrame::Ping => {}
            SentFrame::Stream { .. }
            | SentFrame::ResetStream { .. }
            | SentFrame::StopSending { .. }
            | SentFrame::MaxData
            | SentFrame::MaxStreamData { .. }
            | SentFrame::MaxStreams { .. } => self.streams.on_acked(&frame),
        }
    }

    fn on_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Crypto { offset, bytes } => self.crypto.on_lost(offset, bytes),
            SentFrame::NewConnectionId { sequence } => self.local_ids.on_lost(sequence),
            SentFrame::RetireConnectionId { sequence } => self.remote_ids.unsent.push(sequence),
            SentFrame::NewToken => self.due.is_new_token_unsent = self.due.new_token.is_some(),
            SentFrame::HandshakeDone => self.due.handshake_done = true,
            SentFrame::Ack { .. } | SentFrame::Ping => {}
            SentFrame::Stream { .. }
            | SentFrame::ResetStream { .. }
            | SentFrame::StopSending { .. }
            | SentFrame::MaxData
            | SentFrame::MaxStreamData { .. }
            | SentFrame::MaxStreams { .. } => self.streams.on_lost(&frame),
        }
    }
}

impl Connection {
    /// Packets of a space, if it still exists.
    pub(super) fn select(&mut self, space: Space) -> Option<&mut PacketSpace> {
        select(&mut self.handshake, &mut self.data, space)
    }

    /// Splits the connection for a space, if it still exists.
    fn ack_parts(&mut self, space: Space) -> Option<AckParts<'_>> {
        let packets = select(&mut self.handshake, &mut self.data, space)?;
        let PacketSpace { sent, received, crypto, loss_at, ecn_counts, probes, .. } = packets;
        let owners = FrameOwners {
            streams: &mut self.streams,
            crypto,
            received,
            local_ids: &mut self.local_ids,
            remote_ids: &mut self.remote_ids,
            due: &mut self.due,
        };
        let (path, qlog, lost_packets) = (&mut self.path, &mut self.qlog, &mut self.lost_packets);
        Some(AckParts { sent, owners, path, qlog, lost_packets, loss_at, ecn_counts, probes })
    }

    /// Handles an ACK frame.
    pub(super) fn on_ack(&mut self, now: Instant, space: Space, ack: &AckFrame<'_>) -> Result<(), TransportError> {
        let is_app_limited = self.is_app_limited;
        let delay = self.ack_delay(space, ack.delay);
        let Some(parts) = self.ack_parts(space) else { return Ok(()) };
        let AckParts { sent, mut owners, path, lost_packets, ecn_counts, .. } = parts;
        if let Some(sent_at) = sent.sent_at_if_outstanding(ack.largest) {
            path.rtt.update(now.saturating_duration_since(sent_at), delay);
        }
        let (mut acked_packets, mut marked_packets, mut newest_sent_at) = (0_u64, 0_u64, None);
        sent.on_ack(ack.ranges(), &mut |packet, frames| {
            acked_packets += 1;
            frames.for_each(|frame| owners.on_acked(frame));
            newest_sent_at = newest_sent_at.max(Some(packet.sent_at));
            let (info, bytes) = (packet.info, u64::from(packet.info.bytes));
            if info.path != path.number {
                return;
            }
            marked_packets += u64::from(info.is_ect);
            if packet.was_lost {
                path.rtt.on_late(now.saturating_duration_since(packet.sent_at));
                *lost_packets = lost_packets.saturating_sub(1);
                if *lost_packets == 0 {
                    path.congestion.on_spurious_loss();
                }
                return;
            }
            if info.is_in_flight {
                path.in_flight = path.in_flight.saturating_sub(bytes);
            }
            if space != Space::Data {
                return;
            }
            if info.is_in_flight {
                path.congestion.on_acked(now, packet.sent_at, packet.number, bytes, is_app_limited, &path.rtt);
            }
            if path.mtu.on_acked(packet.number, info.bytes) {
                path.congestion.set_datagram_bytes(path.mtu.current());
            }
        })?;
        if acked_packets == 0 {
            return Ok(());
        }
        if space == Space::Data {
            path.congestion.on_ack_end(now, path.in_flight, is_app_limited, ack.largest);
        }
        if path.ecn.on_ack(ecn_counts, ack.ecn.as_ref(), marked_packets) == EcnOutcome::Congested
            && let Some(sent_at) = newest_sent_at
        {
            path.congestion.on_congestion(now, sent_at, false, 0);
        }
        if space == Space::Data
            && let Some(keys) = &mut self.keys
        {
            keys.on_acked(ack.largest);
        }
        self.probe_timeouts = 0;
        self.detect_lost(now, space);
        let round_trip = self.path.rtt.smoothed();
        if let Some(packets) = self.select(space) {
            packets.sent.forget_settled(now, round_trip);
        }
        self.trace_metrics(now);
        Ok(())
    }

    fn trace_metrics(&mut self, now: Instant) {
        let Some(qlog) = &mut self.qlog else { return };
        let (rtt, congestion) = (&self.path.rtt, &self.path.congestion);
        qlog.metrics_updated(
            now,
            &QlogMetrics {
                min_rtt: rtt.min(),
                smoothed_rtt: rtt.smoothed(),
                latest_rtt: rtt.latest(),
                rtt_variance: rtt.variation(),
                pto_count: self.probe_timeouts,
                congestion_window: congestion.window(),
                bytes_in_flight: self.path.in_flight,
                ssthresh: congestion.slow_start_threshold(),
                pacing_rate: congestion.pacing_rate(rtt),
            },
        );
    }

    /// Delay that the peer has added, by its ACK frame.
    fn ack_delay(&self, space: Space, delay: u64) -> Duration {
        if space != Space::Data {
            return Duration::ZERO;
        }
        let delay_us = delay.saturating_mul(1 << self.peer.ack_delay_exponent);
        Duration::from_micros(delay_us).min(self.peer.ack_delay_max)
    }

    /// Finds lost packets, and lets their frames be sent again.
    pub(super) fn detect_lost(&mut self, now: Instant, space: Space) {
        let persistent = (self.path.rtt.pto_base() + self.peer.ack_delay_max) * PERSISTENT_TIMEOUTS;
        let Some(parts) = self.ack_parts(space) else { return };
        let AckParts { sent, mut owners, path, qlog, lost_packets, loss_at, .. } = parts;
        let (mut count, number) = (0, path.number);
        let outcome = sent.detect_lost(now, path.rtt.loss_delay(), number, &mut |number, info, frames| {
            frames.for_each(|frame| owners.on_lost(frame));
            if let Some(qlog) = qlog {
                qlog.packet_lost(now, space, number);
            }
            if info.path != path.number {
                return;
            }
            if info.is_in_flight {
                path.in_flight = path.in_flight.saturating_sub(u64::from(info.bytes));
            }
            if info.is_mtu_probe {
                path.mtu.on_probe_lost(number);
            } else if space == Space::Data && info.is_in_flight {
                path.mtu.on_lost(number, info.bytes);
            }
            count += u32::from(!info.is_mtu_probe);
        });
        *loss_at = outcome.next_loss_at;
        let Some(newest_sent_at) = outcome.newest_sent_at else { return };
        // The lost packet may have had the challenge.
        path.repeat_challenge();
        *lost_packets = count;
        let is_persistent = path.rtt.is_sampled() && outcome.lost_period > persistent;
        if is_persistent {
            path.rtt.on_persistent_congestion();
        }
        path.congestion.on_congestion(now, newest_sent_at, is_persistent, outcome.lost_bytes);
        if path.mtu.is_black_hole(now) {
            path.congestion.set_datagram_bytes(path.mtu.current());
        }
    }

    /// Time after which a probe is sent, without repetitions (RFC 9002, section 6.2.1).
    pub(super) fn probe_timeout(&self) -> Duration {
        let delay = if self.is_handshaking() { Duration::ZERO } else { self.peer.ack_delay_max };
        self.path.rtt.pto_base() + delay
    }

    /// Time at which packets are lost, or a probe is due.
    pub(super) fn loss_timer(&self) -> Option<Instant> {
        let spaces = || self.spaces();
        let loss_at = spaces().filter_map(|(_, packets)| packets.loss_at).min();
        if loss_at.is_some() {
            return loss_at;
        }
        // A probe could not be sent.
        if self.is_blocked() {
            return None;
        }
        let timeout = self.probe_timeout() * (1 << self.probe_timeouts.min(BACKOFF_MAX));
        let is_handshaking = self.is_handshaking();
        let probed = spaces().filter(|(space, _)| !is_handshaking || *space != Space::Data);
        probed.filter_map(|(_, packets)| packets.probe_at(timeout)).min()
    }

    /// Spaces that exist.
    fn spaces(&self) -> impl Iterator<Item = (Space, &PacketSpace)> {
        let handshake = self.handshake.as_deref();
        let long = move |space| Some((space, &handshake?.space(space)?.packets));
        [long(Space::Initial), long(Space::Handshake), Some((Space::Data, &self.data))].into_iter().flatten()
    }

    /// True if more packets are kept than a peer leaves without an acknowledgment. Those with data are few, because windows bound
    /// it, and others ask for an acknowledgment in each round trip.
    pub(super) fn has_too_many_unanswered(&self) -> bool {
        let limits = &self.settings.streams;
        let windows_bytes = limits.send_window_bytes.saturating_add(limits.connection_window_bytes);
        let packets_max = windows_bytes / u64::from(DATAGRAM_BYTES_MIN) * UNANSWERED_WINDOWS;
        let kept = self.spaces().map(|(_, packets)| packets.sent.len()).sum::<usize>();
        kept as u64 > UNANSWERED_MAX as u64 + packets_max
    }

    /// Memory of the packets that the peer has not acknowledged, in bytes, without data of streams.
    pub fn sent_memory(&self) -> usize {
        self.spaces().map(|(_, packets)| packets.sent.memory()).sum()
    }

    /// Handles the timer of losses and probes.
    pub(super) fn on_loss_timer(&mut self, now: Instant) {
        let lost: Vec<_> = self
            .spaces()
            .filter(|(_, packets)| packets.loss_at.is_some_and(|at| at <= now))
            .map(|(space, _)| space)
            .collect();
        if !lost.is_empty() {
            lost.into_iter().for_each(|space| self.detect_lost(now, space));
            return;
        }
        self.probe_timeouts += 1;
        if self.probe_timeouts >= UNANSWERED_TIMEOUTS && self.data.sent.len() > UNANSWERED_MAX {
            // Its packets arrive and are acknowledged, which takes memory for each.
            return self.fail(now, TransportError::protocol_violation("no packet is acknowledged"));
        }
        self.path.repeat_challenge();
        let is_handshaking = self.is_handshaking();
        for space in [Space::Initial, Space::Handshake, Space::Data] {
            if is_handshaking && space == Space::Data {
                continue;
            }
            let Some(AckParts { sent, mut owners, probes, .. }) = self.ack_parts(space) else { continue };
            // Lost bytes of TLS may wait for packets of another space, which the peer can't acknowledge without them.
            if !sent.has_ack_eliciting() && !owners.crypto.can_send() {
                continue;
            }
            *probes = PROBES;
            sent.probe(usize::from(PROBES), &mut |frame| owners.on_lost(frame));
        }
    }
}
