//! Discovery of the largest datagram of a path (DPLPMTUD, RFC 8899; RFC 9000, section 14.3).

use std::time::{Duration, Instant};

/// Datagram that all paths of QUIC carry (RFC 9000, section 14), in bytes.
pub(crate) const BASE_BYTES: u16 = 1200;

/// Largest datagram that is probed: a packet of IPv6 in Ethernet, in bytes.
const PROBE_BYTES_MAX: u16 = 1452;

/// Lost probes after which a size counts as too large (`MAX_PROBES` of RFC 8899): fewer could be losses by congestion.
const PROBES_MAX: u8 = 3;

/// Accuracy of the search, in bytes. More probes would cost more than they gain.
const ACCURACY_BYTES: u16 = 20;

/// Time after which a larger size is probed again (`PMTU_RAISE_TIMER` of RFC 8899).
const RAISE_TIME: Duration = Duration::from_secs(600);

/// Time without probes after a black hole.
const BLACK_HOLE_TIME: Duration = Duration::from_secs(60);

/// Losses of large packets, in as many checks and with no large packet acknowledged, that show a black hole.
const BLACK_HOLE_LOSSES: u8 = 4;

/// Search for the largest datagram of a path, and detection of black holes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MtuDiscovery {
    /// Packet number of the probe in flight; meaningless if `probe_bytes` is zero.
    probe_number: u64,
    /// Largest packet number of a large packet that the peer has acknowledged.
    acked: u64,
    /// Packet number of the first large packet lost since then; meaningless if `losses` is zero and `is_lost` is false.
    first_lost: u64,
    /// Time from which the search goes on; `None` while it runs or if nothing is left to find.
    resume_at: Option<Instant>,
    current: u16,
    /// Largest size that may still be possible.
    high: u16,
    /// Largest size to be probed at all; zero without discovery.
    max: u16,
    /// Size of the probe in flight, or zero.
    probe_bytes: u16,
    /// Probes of the size `next_bytes` that were lost.
    lost_probes: u8,
    /// Checks that have found new losses of large packets.
    losses: u8,
    /// True if a large packet was lost since the last check.
    is_lost: bool,
}

impl MtuDiscovery {
    /// Begins with datagrams of `initial` bytes. `peer_max` is the peer's transport parameter `max_udp_payload_size`.
    pub(crate) fn new(is_enabled: bool, initial: u16, peer_max: u16) -> Self {
        let peer_max = peer_max.max(BASE_BYTES);
        let current = initial.clamp(BASE_BYTES, peer_max);
        let max = if is_enabled { PROBE_BYTES_MAX.min(peer_max) } else { 0 };
        Self {
            probe_number: 0,
            acked: 0,
            first_lost: 0,
            resume_at: None,
            current,
            high: max,
            max,
            probe_bytes: 0,
            lost_probes: 0,
            losses: 0,
            is_lost: false,
        }
    }

    /// Sets the peer's transport parameter `max_udp_payload_size`, if it was not known before.
    pub(crate) fn set_peer_max(&mut self, peer_max: u16) {
        let peer_max = peer_max.max(BASE_BYTES);
        self.current = self.current.min(peer_max);
        self.max = self.max.min(peer_max);
        self.high = self.high.min(peer_max);
    }

    /// Size of datagrams, in bytes.
    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// Size of a probe that the caller must send now, with this packet number.
    pub(crate) fn poll_probe(&mut self, now: Instant, number_to_be: u64) -> Option<u16> {
        if self.probe_bytes != 0 || self.current >= self.max {
            return None;
        }
        if self.resume_at.is_some_and(|at| now < at) {
            return None;
        }
        if self.resume_at.take().is_some() {
            (self.high, self.lost_probes) = (self.max, 0);
        }
        let Some(bytes) = self.next_bytes() else {
            self.resume_at = Some(now + RAISE_TIME);
            return None;
        };
        (self.probe_bytes, self.probe_number) = (bytes, number_to_be);
        Some(bytes)
    }

    /// Size of the next probe; `None` if the search has ended.
    fn next_bytes(&self) -> Option<u16> {
        if self.high == self.max {
            // Most paths carry the largest size: one probe ends the search.
            return Some(self.max);
        }
        let distance = self.high.saturating_sub(self.current);
        (distance >= ACCURACY_BYTES).then(|| self.current + distance.div_ceil(2))
    }

    /// Lets the size of the probe in flight be probed again, because its outcome will count for another path.
    pub(crate) fn forget_probe(&mut self) {
        self.probe_bytes = 0;
    }

    /// Notes that the peer has acknowledged a packet in a datagram of this size. Returns true if the current size has changed.
    #[inline]
    pub(crate) fn on_acked(&mut self, number: u64, bytes: u16) -> bool {
        if bytes > BASE_BYTES {
            self.acked = self.acked.max(number);
            if number >= self.first_lost {
                (self.losses, self.is_lost) = (0, false);
            }
        }
        if self.probe_bytes == 0 || number != self.probe_number {
            return false;
        }
        let is_larger = self.probe_bytes > self.current;
        self.current = self.current.max(self.probe_bytes);
        (self.probe_bytes, self.lost_probes) = (0, 0);
        is_larger
    }

    /// Notes that a packet is lost. Returns true if it was the probe; its loss is no congestion signal (RFC 9000, section 14.4).
    pub(crate) fn on_probe_lost(&mut self, number: u64) -> bool {
        if self.probe_bytes == 0 || number != self.probe_number {
            return false;
        }
        self.lost_probes += 1;
        if self.lost_probes == PROBES_MAX {
            self.high = self.probe_bytes - 1;
            self.lost_probes = 0;
        }
        self.probe_bytes = 0;
        true
    }

    /// Notes that a packet in a datagram of this size, which was no probe, is lost.
    pub(crate) fn on_lost(&mut self, number: u64, bytes: u16) {
        // Paths that carry later large packets are no black holes.
        if bytes <= BASE_BYTES || number < self.acked {
            return;
        }
        if self.losses == 0 && !self.is_lost {
            self.first_lost = number;
        }
        self.first_lost = self.first_lost.min(number);
        self.is_lost = true;
    }

    /// Returns true if the path has stopped to carry large packets; the size is the base again then. The caller checks once after
    /// the losses of each ACK frame or timer.
    pub(crate) fn is_black_hole(&mut self, now: Instant) -> bool {
        if !std::mem::take(&mut self.is_lost) {
            return false;
        }
        self.losses += 1;
        if self.losses < BLACK_HOLE_LOSSES {
            return false;
        }
        (self.losses, self.probe_bytes) = (0, 0);
        if self.current <= BASE_BYTES {
            return false;
        }
        self.current = BASE_BYTES;
        self.resume_at = (self.max != 0).then(|| now + BLACK_HOLE_TIME);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path that carries datagrams of up to `path` bytes. Polls until the search ends. Returns the number of probes.
    fn search(mtu: &mut MtuDiscovery, now: Instant, path: u16, number: &mut u64) -> u32 {
        let mut probes = 0;
        while let Some(bytes) = mtu.poll_probe(now, *number) {
            assert!(bytes > mtu.current() && mtu.poll_probe(now, *number + 1).is_none(), "one probe at a time");
            if bytes <= path {
                assert!(mtu.on_acked(*number, bytes) && mtu.current() == bytes);
                assert!(!mtu.on_acked(*number, bytes));
            } else {
                assert!(!mtu.on_probe_lost(*number + 1) && mtu.on_probe_lost(*number) && !mtu.on_probe_lost(*number));
            }
            (*number, probes) = (*number + 1, probes + 1);
        }
        probes
    }

    #[test]
    fn the_search_finds_the_size_of_each_path() {
        let now = Instant::now();
        for path in 1200..1500 {
            let mut mtu = MtuDiscovery::new(true, 1200, 65_527);
            let probes = search(&mut mtu, now, path, &mut 7);
            assert!(probes <= 16, "{probes} probes");
            let best = path.min(PROBE_BYTES_MAX);
            assert!(mtu.current() <= best && best - mtu.current() < ACCURACY_BYTES, "{} of {best}", mtu.current());
        }
        let mut mtu = MtuDiscovery::new(true, 1200, 65_527);
        assert_eq!(search(&mut mtu, now, 1500, &mut 0), 1, "one probe on Ethernet");
        assert!(size_of::<MtuDiscovery>() <= 64);
    }

    #[test]
    fn limits_of_the_peer_and_of_the_operator_hold() {
        let now = Instant::now();
        let mut mtu = MtuDiscovery::new(true, 1200, 1300);
        search(&mut mtu, now, 1500, &mut 0);
        assert_eq!(mtu.current(), 1300);
        let mut mtu = MtuDiscovery::new(true, 1200, 0);
        assert_eq!((mtu.poll_probe(now, 0), mtu.current()), (None, 1200));
        let mut mtu = MtuDiscovery::new(false, 1200, 65_527);
        assert_eq!((mtu.poll_probe(now, 0), mtu.current()), (None, 1200));
        let mut mtu = MtuDiscovery::new(true, 1200, u16::MAX);
        mtu.set_peer_max(1250);
        assert_eq!(mtu.poll_probe(now, 0), Some(1250));
    }

    #[test]
    fn the_search_is_repeated_after_ten_minutes() {
        let (now, mut number) = (Instant::now(), 0);
        let mut mtu = MtuDiscovery::new(true, 1200, 65_527);
        search(&mut mtu, now, 1300, &mut number);
        assert_eq!(mtu.poll_probe(now + RAISE_TIME - Duration::from_secs(1), number), None);
        search(&mut mtu, now + RAISE_TIME, 1500, &mut number);
        assert_eq!(mtu.current(), 1452);
        assert_eq!(mtu.poll_probe(now + 9 * RAISE_TIME, number), None, "nothing is left to find");
    }

    #[test]
    fn black_holes_lead_back_to_the_base() {
        let now = Instant::now();
        let mut mtu = MtuDiscovery::new(true, 1200, 65_527);
        search(&mut mtu, now, 1500, &mut 0);
        for number in 10..13 {
            mtu.on_lost(number, 1452);
            mtu.on_lost(100 + number, 1452);
            assert!(!mtu.is_black_hole(now) && !mtu.is_black_hole(now));
            assert!(!mtu.on_acked(500 + number, 1200), "small packets arrive");
            assert!(!mtu.on_acked(5, 1452), "sent before the losses");
        }
        mtu.on_lost(20, 1452);
        assert!(mtu.is_black_hole(now) && !mtu.is_black_hole(now));
        assert_eq!((mtu.current(), mtu.poll_probe(now, 30)), (1200, None));
        assert_eq!(mtu.poll_probe(now + BLACK_HOLE_TIME, 30), Some(1452));
    }

    #[test]
    fn congestion_is_no_black_hole() {
        let now = Instant::now();
        let mut mtu = MtuDiscovery::new(true, 1200, 65_527);
        search(&mut mtu, now, 1500, &mut 0);
        for number in (10..1000).step_by(10) {
            // Small packets are lost, and large ones of which later ones arrive.
            mtu.on_lost(number, 1200);
            mtu.on_lost(number + 1, 1452);
            mtu.on_acked(number + 3, 1452);
            mtu.on_lost(number + 2, 1452);
            assert!(!mtu.is_black_hole(now));
        }
        assert_eq!(mtu.current(), 1452);
    }
}
