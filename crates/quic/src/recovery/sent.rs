//! Packets that were sent, until they are acknowledged or lost.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use super::{REORDER_PACKETS, REORDER_PACKETS_MAX};
use crate::error::TransportError;
use crate::ranges::RangeSet;
use crate::streams::SentFrame;

/// Lost packets are remembered this many round-trip times, so that late acknowledgments are known.
const LOST_ROUND_TRIPS: u32 = 3;

/// Facts of a packet that is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentInfo {
    /// Length, in bytes.
    pub(crate) bytes: u16,
    /// True if the peer must acknowledge it.
    pub(crate) is_ack_eliciting: bool,
    /// True if it counts for congestion control.
    pub(crate) is_in_flight: bool,
    /// True if it probes a larger size of datagrams.
    pub(crate) is_mtu_probe: bool,
    /// True if it carries ECT(0).
    pub(crate) is_ect: bool,
    /// Number of the path, which changes when the peer migrates.
    pub(crate) path: u8,
}

/// Packet that was sent.
#[derive(Clone, Copy, Debug)]
struct SentPacket {
    /// Time since the base.
    sent_us: u64,
    /// Place of its first frame, counted from the first frame ever sent, modulo 2^32.
    frames_at: u32,
    bytes: u16,
    path: u8,
    flags: u8,
}

const ACK_ELICITING: u8 = 1;
const IN_FLIGHT: u8 = 2;
const MTU_PROBE: u8 = 4;
const ECT: u8 = 8;
/// Neither acknowledged nor lost.
const OUTSTANDING: u8 = 16;
const LOST: u8 = 32;
/// Never sent: a peer that acknowledges its number guesses.
const SKIPPED: u8 = 64;

/// Packet that the peer has acknowledged for the first time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedPacket {
    pub(crate) number: u64,
    pub(crate) sent_at: Instant,
    pub(crate) info: SentInfo,
    /// True if it was taken for lost before.
    pub(crate) was_lost: bool,
}

/// Result of the search for lost packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossOutcome {
    /// Bytes of lost packets that count for congestion control, on the current path.
    pub(crate) lost_bytes: u64,
    /// Time at which the newest of them was sent.
    pub(crate) newest_sent_at: Option<Instant>,
    /// Longest time between two lost packets without an acknowledged one between.
    pub(crate) lost_period: Duration,
    /// Time at which the next packet will be lost.
    pub(crate) next_loss_at: Option<Instant>,
}

/// Packets of a space that were sent.
#[derive(Debug)]
pub(crate) struct SentPackets {
    base: Instant,
    /// Number of the first packet in `packets`.
    first: u64,
    packets: VecDeque<SentPacket>,
    /// Frames of these packets, in the same order.
    pub(crate) frames: VecDeque<SentFrame>,
    /// Place of the first frame in `frames`, modulo 2^32.
    frames_first: u32,
    /// Largest number that the peer has acknowledged.
    largest_acked: Option<u64>,
    /// Packets that the peer must acknowledge, and that are outstanding.
    eliciting: u32,
    /// Numbers from `first` on that are acknowledged, so that holes between them are found without a search.
    acked: RangeSet,
    /// Numbers below are not outstanding.
    outstanding_from: u64,
    /// Distance to a newer acknowledged packet at which one is lost. Grows on paths that reorder packets.
    reorder_packets: u32,
}

impl SentPackets {
    pub(crate) fn new(base: Instant) -> Self {
        Self {
            base,
            first: 0,
            packets: VecDeque::new(),
            frames: VecDeque::new(),
            frames_first: 0,
            largest_acked: None,
            eliciting: 0,
            acked: RangeSet::default(),
            outstanding_from: 0,
            reorder_packets: REORDER_PACKETS,
        }
    }

    /// Number of the next packet.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    pub(crate) fn largest_acked(&self) -> Option<u64> {
        self.largest_acked
    }

    /// True if a packet that the peer must acknowledge is outstanding.
    pub(crate) fn has_ack_eliciting(&self) -> bool {
        self.eliciting > 0
    }

    /// True if more packets than this are kept, and the peer must acknowledge none of them.
    pub(crate) fn is_quiet(&self, count: usize) -> bool {
        self.packets.len() > count && self.eliciting == 0
    }

    /// Number of packets that are kept.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Memory of packets that are kept, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.packets.len() * size_of::<SentPacket>() + self.frames.len() * size_of::<SentFrame>()
    }

    /// Forgets all packets, because no acknowledgment counts any more. Numbers go on.
    pub(crate) fn forget_all(&mut self) {
        (self.first, self.frames_first) = (self.next_number(), self.mark());
        (self.packets, self.frames, self.acked) = Default::default();
        (self.eliciting, self.outstanding_from) = (0, self.first);
    }

    /// Frees memory that is not used.
    pub(crate) fn shrink(&mut self) {
        self.forget_front(None);
        self.packets.shrink_to_fit();
        self.frames.shrink_to_fit();
        self.acked.shrink();
    }

    /// Place at which the frames of the next packet begin.
    pub(crate) fn mark(&self) -> u32 {
        self.frames_first.wrapping_add(self.frames.len() as u32)
    }

    /// Records a packet whose frames were added to `frames` since `mark`. Returns its number.
    pub(crate) fn record(&mut self, now: Instant, mark: u32, info: SentInfo) -> u64 {
        let number = self.next_number();
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = OUTSTANDING
            | flag(info.is_ack_eliciting, ACK_ELICITING)
            | flag(info.is_in_flight, IN_FLIGHT)
            | flag(info.is_mtu_probe, MTU_PROBE)
            | flag(info.is_ect, ECT);
        self.eliciting += u32::from(info.is_ack_eliciting);
        let sent_us = now.saturating_duration_since(self.base).as_micros() as u64;
        self.packets.push_back(SentPacket { sent_us, frames_at: mark, bytes: info.bytes, path: info.path, flags });
        number
    }

    /// Skips a number. Only a peer that acknowledges what it has not received names it.
    pub(crate) fn skip_number(&mut self) {
        let frames_at = self.mark();
        let sent_us = self.packets.back().map_or(0, |packet| packet.sent_us);
        self.packets.push_back(SentPacket { sent_us, frames_at, bytes: 0, path: 0, flags: SKIPPED });
    }

    /// Time at which a packet was sent that the peer must acknowledge and has not.
    pub(crate) fn sent_at_if_outstanding(&self, number: u64) -> Option<Instant> {
        let packet = self.packets.get(usize::try_from(number.checked_sub(self.first)?).ok()?)?;
        let flags = OUTSTANDING | ACK_ELICITING;
        (packet.flags & flags == flags).then(|| self.sent_at(packet))
    }

    /// Handles the ranges of an ACK frame, which descend: calls `on_acked` with each packet that is acknowledged for the
    /// first time, and its frames.
    ///
    /// # Errors
    /// The peer acknowledges packets that were not sent.
    pub(crate) fn on_ack(
        &mut self,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
        on_acked: &mut dyn FnMut(AckedPacket, &mut dyn Iterator<Item = SentFrame>),
    ) -> Result<(), TransportError> {
        let mut near = self.acked.len();
        for range in ranges {
            if *range.end() >= self.next_number() {
                return Err(TransportError::protocol_violation("acknowledgment of a packet that was not sent"));
            }
            let range = self.first.max(*range.start())..range.end() + 1;
            if range.is_empty() {
                break;
            }
            // After losses, a frame has many ranges, and all but the first were in the frame before.
            if !self.acked.covers(&range, &mut near) {
                self.on_ack_range(range, on_acked)?;
            }
        }
        Ok(())
    }

    /// Handles a range that has packets without an acknowledgment.
    fn on_ack_range(
        &mut self,
        range: Range<u64>,
        on_acked: &mut dyn FnMut(AckedPacket, &mut dyn Iterator<Item = SentFrame>),
    ) -> Result<(), TransportError> {
        let mut at = range.start;
        while let Some(gap) = self.gap(at..range.end) {
            at = gap.end;
            for number in gap {
                self.on_acked(number, on_acked)?;
            }
        }
        self.largest_acked = self.largest_acked.max(Some(range.end - 1));
        self.acked.insert(range);
        Ok(())
    }

    /// First numbers that are not acknowledged.
    fn gap(&self, within: Range<u64>) -> Option<Range<u64>> {
        if within.is_empty() { None } else { self.acked.gaps(within).next() }
    }

    /// Handles the first acknowledgment of a packet.
    fn on_acked(
        &mut self,
        number: u64,
        on_acked: &mut dyn FnMut(AckedPacket, &mut dyn Iterator<Item = SentFrame>),
    ) -> Result<(), TransportError> {
        let index = (number - self.first) as usize;
        let packet = self.packets[index];
        if packet.flags & SKIPPED != 0 {
            return Err(TransportError::protocol_violation("acknowledgment of a packet number that was skipped"));
        }
        let was_lost = packet.flags & LOST != 0;
        if was_lost && let Some(largest) = self.largest_acked {
            // The packet was late only (RFC 9002, section 6.1.1). The other threshold still finds losses in time.
            let distance = largest.saturating_sub(number) + 1;
            self.reorder_packets = self.reorder_packets.max(distance.min(REORDER_PACKETS_MAX.into()) as u32);
        }
        if !was_lost && packet.flags & ACK_ELICITING != 0 {
            self.eliciting -= 1;
        }
        self.packets[index].flags &= !(OUTSTANDING | LOST);
        let acked = AckedPacket { number, sent_at: self.sent_at(&packet), info: info(&packet), was_lost };
        on_acked(acked, &mut self.frames_of(index));
        Ok(())
    }

    /// Forgets packets at the front that are settled. Lost ones are kept for a while if `lost_before` says so.
    pub(crate) fn forget_settled(&mut self, now: Instant, round_trip: Duration) {
        let keep = round_trip.saturating_mul(LOST_ROUND_TRIPS);
        self.forget_front(now.checked_sub(keep));
    }

    fn forget_front(&mut self, lost_before: Option<Instant>) {
        let lost_before_us = lost_before.map_or(0, |at| at.saturating_duration_since(self.base).as_micros() as u64);
        let mut count = 0;
        for packet in &self.packets {
            let is_settled = match packet.flags & (OUTSTANDING | LOST) {
                0 => true,
                LOST => packet.sent_us < lost_before_us,
                _ => false,
            };
            // A skipped number is remembered until the peer has acknowledged a later one.
            if !is_settled || packet.flags & SKIPPED != 0 && self.largest_acked < Some(self.first + count as u64) {
                break;
            }
            count += 1;
        }
        if count == 0 {
            return;
        }
        let frames_at = self.packets.get(count).map_or_else(|| self.mark(), |packet| packet.frames_at);
        self.packets.drain(..count);
        self.first += count as u64;
        self.acked.remove_below(self.first);
        let frames = frames_at.wrapping_sub(self.frames_first) as usize;
        self.frames.drain(..frames);
        self.frames_first = frames_at;
    }

    /// Finds lost packets (RFC 9002, section 6.1): calls `on_lost` with the number, facts and frames of each.
    pub(crate) fn detect_lost(
        &mut self,
        now: Instant,
        loss_delay: Duration,
        path: u8,
        on_lost: &mut dyn FnMut(u64, SentInfo, &mut dyn Iterator<Item = SentFrame>),
    ) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        let Some(largest) = self.largest_acked else { return outcome };
        let now_us = now.saturating_duration_since(self.base).as_micros() as u64;
        let delay_us = loss_delay.as_micros() as u64;
        let mut at = self.outstanding_from.max(self.first);
        self.outstanding_from = largest;
        // Packets between acknowledged ones.
        'search: while let Some(gap) = self.gap(at..largest) {
            at = gap.end;
            // An acknowledged packet between lost ones ends their period.
            let mut period_from: Option<u64> = None;
            for number in gap {
                let index = (number - self.first) as usize;
                let packet = self.packets[index];
                if packet.flags & OUTSTANDING == 0 {
                    continue;
                }
                let is_late = packet.sent_us + delay_us <= now_us;
                if !is_late && number + u64::from(self.reorder_packets) > largest {
                    outcome.next_loss_at = Some(self.base + Duration::from_micros(packet.sent_us + delay_us));
                    self.outstanding_from = number;
                    break 'search;
                }
                let flags = packet.flags;
                self.packets[index].flags = flags & !OUTSTANDING | LOST;
                if flags & ACK_ELICITING != 0 {
                    self.eliciting -= 1;
                    let from = *period_from.get_or_insert(packet.sent_us);
                    outcome.lost_period = outcome.lost_period.max(Duration::from_micros(packet.sent_us - from));
                }
                if flags & IN_FLIGHT != 0 && flags & MTU_PROBE == 0 && packet.path == path {
                    outcome.lost_bytes += u64::from(packet.bytes);
                    outcome.newest_sent_at = Some(self.sent_at(&packet));
                }
                on_lost(number, info(&packet), &mut self.frames_of(index));
            }
        }
        outcome
    }

    /// Calls `on_frame` with the frames of the oldest outstanding packets that the peer must acknowledge, at most `count`. They
    /// are sent again as a probe, and the packets stay outstanding.
    pub(crate) fn probe(&self, count: usize, on_frame: &mut dyn FnMut(SentFrame)) {
        let eliciting = OUTSTANDING | ACK_ELICITING;
        let oldest = (0..self.packets.len()).filter(|&index| self.packets[index].flags & eliciting == eliciting);
        for index in oldest.take(count) {
            self.frames_of(index).for_each(&mut *on_frame);
        }
    }

    /// Bytes of outstanding packets that count for congestion control, on a path.
    pub(crate) fn in_flight(&self, path: u8) -> u64 {
        let flags = OUTSTANDING | IN_FLIGHT;
        let packets = self.packets.iter().filter(|packet| packet.flags & flags == flags && packet.path == path);
        packets.map(|packet| u64::from(packet.bytes)).sum()
    }

    fn sent_at(&self, packet: &SentPacket) -> Instant {
        self.base + Duration::from_micros(packet.sent_us)
    }

    fn frames_of(&self, index: usize) -> impl Iterator<Item = SentFrame> + '_ {
        let begin = self.packets[index].frames_at;
        let end = self.packets.get(index + 1).map_or_else(|| self.mark(), |next| next.frames_at);
        let at = |mark: u32| mark.wrapping_sub(self.frames_first) as usize;
        self.frames.range(at(begin)..at(end)).copied()
    }
}

fn info(packet: &SentPacket) -> SentInfo {
    let has = |flag: u8| packet.flags & flag != 0;
    SentInfo {
        bytes: packet.bytes,
        is_ack_eliciting: has(ACK_ELICITING),
        is_in_flight: has(IN_FLIGHT),
        is_mtu_probe: has(MTU_PROBE),
        is_ect: has(ECT),
        path: packet.path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: SentInfo = SentInfo {
        bytes: 1_000,
        is_ack_eliciting: true,
        is_in_flight: true,
        is_mtu_probe: false,
        is_ect: false,
        path: 0,
    };

    fn send(sent: &mut SentPackets, at: Instant, frames: &[SentFrame]) -> u64 {
        let mark = sent.mark();
        sent.frames.extend(frames);
        sent.record(at, mark, INFO)
    }

    fn ack(sent: &mut SentPackets, range: RangeInclusive<u64>) -> Result<Vec<(u64, Vec<SentFrame>)>, TransportError> {
        let mut acked = Vec::new();
        sent.on_ack(std::iter::once(range), &mut |packet, frames| acked.push((packet.number, frames.collect())))?;
        Ok(acked)
    }

    fn lost(sent: &mut SentPackets, now: Instant) -> (Vec<u64>, LossOutcome) {
        let mut numbers = Vec::new();
        let outcome = sent.detect_lost(now, Duration::from_millis(100), 0, &mut |number, _, _| numbers.push(number));
        (numbers, outcome)
    }

    #[test]
    fn each_packet_is_acknowledged_once_with_its_frames() {
        let start = Instant::now();
        let mut sent = SentPackets::new(start);
        for number in 0..5 {
            let frames = vec![SentFrame::NewConnectionId { sequence: number }; number as usize % 3];
            assert_eq!(send(&mut sent, start, &frames), number);
        }
        let all = ack(&mut sent, 2..=3).unwrap();
        assert_eq!(all.iter().map(|(number, frames)| (*number, frames.len())).collect::<Vec<_>>(), [(2, 2), (3, 0)]);
        assert_eq!(all[0].1[1], SentFrame::NewConnectionId { sequence: 2 });
        assert_eq!(ack(&mut sent, 0..=4).unwrap().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 4]);
        assert!(!sent.has_ack_eliciting());
        sent.forget_settled(start, Duration::ZERO);
        assert!(sent.packets.is_empty() && sent.frames.is_empty());
        assert_eq!((sent.next_number(), ack(&mut sent, 0..=4).unwrap().len()), (5, 0));
        assert!(ack(&mut sent, 0..=5).is_err(), "a packet that was not sent");
    }

    #[test]
    fn frames_with_known_ranges_name_new_packets_only() {
        let start = Instant::now();
        let mut sent = SentPackets::new(start);
        (0..30).for_each(|_| _ = send(&mut sent, start, &[]));
        let mut ack = |ranges: &[RangeInclusive<u64>]| {
            let mut acked = Vec::new();
            sent.on_ack(ranges.iter().cloned(), &mut |packet, _| acked.push(packet.number)).unwrap();
            acked
        };
        assert_eq!(ack(&[12..=14, 8..=10, 4..=6, 0..=2]), [12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2]);
        assert_eq!(ack(&[16..=20, 12..=14, 8..=10, 4..=6, 0..=2]), [16, 17, 18, 19, 20]);
        assert_eq!(ack(&[25..=26, 16..=21, 8..=14, 5..=5, 0..=3]), [25, 26, 21, 11, 3]);
        assert_eq!(ack(&[0..=29]), [7, 15, 22, 23, 24, 27, 28, 29]);
    }

    #[test]
    fn packets_are_lost_by_number_and_by_time() {
        let start = Instant::now();
        let mut sent = SentPackets::new(start);
        let at = |ms| start + Duration::from_millis(ms);
        for ms in 0..6 {
            send(&mut sent, at(ms), &[SentFrame::Ping]);
        }
        assert!(lost(&mut sent, at(500)).0.is_empty(), "no packet is lost before an acknowledgment");
        ack(&mut sent, 4..=4).unwrap();
        let (numbers, outcome) = lost(&mut sent, at(6));
        assert_eq!((numbers, outcome.next_loss_at), (vec![0, 1], Some(at(102))));
        assert_eq!((outcome.lost_bytes, outcome.newest_sent_at), (2_000, Some(at(1))));
        assert_eq!(lost(&mut sent, at(102)).0, [2]);
        assert_eq!(lost(&mut sent, at(110)).0, [3], "5 is newer than the largest acknowledged");
        // A late acknowledgment.
        let mut late = Vec::new();
        sent.on_ack(std::iter::once(1..=1), &mut |packet, _| late.push(packet.was_lost)).unwrap();
        assert_eq!(late, [true]);
        sent.forget_settled(at(110), Duration::from_millis(100));
        assert!(!sent.packets.is_empty());
        ack(&mut sent, 5..=5).unwrap();
        sent.forget_settled(at(1_000), Duration::from_millis(100));
        assert!(sent.packets.is_empty());
    }

    #[test]
    fn a_period_of_loss_ends_at_an_acknowledged_packet() {
        let start = Instant::now();
        let mut sent = SentPackets::new(start);
        for second in 0..8 {
            send(&mut sent, start + Duration::from_secs(second), &[]);
        }
        ack(&mut sent, 3..=3).unwrap();
        ack(&mut sent, 7..=7).unwrap();
        let (numbers, outcome) = lost(&mut sent, start + Duration::from_secs(8));
        assert_eq!((numbers, outcome.lost_period), (vec![0, 1, 2, 4, 5, 6], Duration::from_secs(2)));
    }

    #[test]
    fn a_skipped_number_shows_a_peer_that_guesses() {
        let start = Instant::now();
        let mut sent = SentPackets::new(start);
        send(&mut sent, start, &[]);
        sent.skip_number();
        assert_eq!(send(&mut sent, start, &[]), 2);
        assert!(ack(&mut sent, 0..=2).is_err());
        let mut sent = SentPackets::new(start);
        send(&mut sent, start, &[]);
        sent.skip_number();
        send(&mut sent, start, &[]);
        ack(&mut sent, 2..=2).unwrap();
        ack(&mut sent, 0..=0).unwrap();
        sent.forget_settled(start, Duration::ZERO);
        assert!(sent.packets.is_empty());
    }

    #[test]
    fn a_probe_repeats_the_oldest_packets() {
        let start = Instant::now();
        let mut sent = SentPackets::new(start);
        for sequence in 0..4 {
            send(&mut sent, start, &[SentFrame::NewConnectionId { sequence }]);
        }
        ack(&mut sent, 0..=0).unwrap();
        let mut frames = Vec::new();
        sent.probe(2, &mut |frame| frames.push(frame));
        assert_eq!(frames, [1, 2].map(|sequence| SentFrame::NewConnectionId { sequence }));
        assert_eq!(sent.in_flight(0), 3_000);
        assert!(size_of::<SentPacket>() <= 16 && size_of::<SentFrame>() <= 24);
    }
}
