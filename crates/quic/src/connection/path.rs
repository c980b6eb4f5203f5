//! Path to the peer: addresses, validation, congestion control (RFC 9000, sections 8, 9 and 13.4).

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::congestion::Congestion;
use crate::frame::EcnCounts;
use crate::mtu::MtuDiscovery;
use crate::pacer::Pacer;
use crate::rtt::Rtt;
use crate::types::{Ecn, TransportSettings};

/// Bytes that may be sent for each byte that an address has sent, before it is validated (RFC 9000, section 8.1).
const AMPLIFICATION_MAX: u64 = 3;

/// Size of datagrams that each path carries (RFC 9000, section 14).
pub(super) const DATAGRAM_BYTES_MIN: u16 = 1_200;

/// Data of a PATH_CHALLENGE frame.
pub(super) type Challenge = [u8; 8];

/// Path of a connection.
pub(super) struct Path {
    pub(super) remote: SocketAddr,
    pub(super) local: Option<IpAddr>,
    /// Number of the path, modulo 256.
    pub(super) number: u8,
    /// True if the peer is at the address, so that the limit for new addresses is lifted.
    pub(super) is_validated: bool,
    /// True if a challenge went out in a datagram below the full size, and none of the full size has its response.
    pub(super) is_size_unproven: bool,
    /// Bytes received and sent while the address is not validated.
    received_bytes: u64,
    sent_bytes: u64,
    /// Challenge whose response is awaited.
    pub(super) challenge: Option<Challenge>,
    /// True if the challenge must be sent.
    pub(super) is_challenge_due: bool,
    pub(super) rtt: Rtt,
    pub(super) congestion: Congestion,
    pub(super) pacer: Pacer,
    pub(super) mtu: MtuDiscovery,
    pub(super) ecn: EcnState,
    /// Bytes of outstanding packets.
    pub(super) in_flight: u64,
}

/// Use of ECN on a path.
#[derive(Debug)]
pub(super) struct EcnState {
    /// True if datagrams carry ECT(0).
    pub(super) is_on: bool,
}

/// Outcome of ECN counts in an ACK frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EcnOutcome {
    Nothing,
    /// Routers on the path are congested.
    Congested,
}

impl Path {
    pub(super) fn new(
        now: Instant,
        remote: SocketAddr,
        local: Option<IpAddr>,
        settings: &TransportSettings,
        peer_datagram_bytes: u16,
    ) -> Self {
        let mtu = MtuDiscovery::new(settings.probes_mtu, DATAGRAM_BYTES_MIN, peer_datagram_bytes);
        let rtt = Rtt::new(settings.initial_round_trip);
        let congestion = Congestion::new(settings.congestion, settings.initial_window_bytes, mtu.current(), now);
        Self {
            remote,
            local,
            number: 0,
            is_validated: false,
            is_size_unproven: false,
            received_bytes: 0,
            sent_bytes: 0,
            challenge: None,
            is_challenge_due: false,
            pacer: Pacer::new(now),
            rtt,
            congestion,
            mtu,
            ecn: EcnState { is_on: true },
            in_flight: 0,
        }
    }

    /// Path to another address of the peer. Only another port is a new binding of a NAT, and the same line
    /// (RFC 9000, section 9.4).
    pub(super) fn moved(
        &self,
        now: Instant,
        remote: SocketAddr,
        local: Option<IpAddr>,
        settings: &TransportSettings,
        peer_datagram_bytes: u16,
    ) -> Self {
        let mut path = Self::new(now, remote, local, settings, peer_datagram_bytes);
        path.number = self.number.wrapping_add(1);
        if remote.ip() == self.remote.ip() {
            path.rtt = self.rtt;
            path.congestion = self.congestion.clone();
            path.mtu = self.mtu;
            path.mtu.forget_probe();
        }
        path
    }

    /// Counts a datagram from the peer.
    pub(super) fn on_received(&mut self, bytes: usize) {
        self.received_bytes = self.received_bytes.saturating_add(bytes as u64);
    }

    /// Counts a datagram to the peer.
    pub(super) fn on_sent(&mut self, bytes: usize) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes as u64);
    }

    /// True if a datagram of this size may be sent, by the limit for addresses that are not validated.
    pub(super) fn may_send(&self, bytes: usize) -> bool {
        self.is_validated || self.sent_bytes + bytes as u64 <= AMPLIFICATION_MAX * self.received_bytes
    }

    /// Bytes that may be sent, by that limit.
    pub(super) fn room(&self) -> usize {
        if self.is_validated {
            return usize::MAX;
        }
        let room = (AMPLIFICATION_MAX * self.received_bytes).saturating_sub(self.sent_bytes);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// True if the peer has this address.
    pub(super) fn is_at(&self, remote: SocketAddr) -> bool {
        self.remote == remote
    }

    /// True if the path is validated, and carries datagrams of the full size.
    pub(super) fn is_proven(&self) -> bool {
        self.is_validated && !self.is_size_unproven
    }

    /// Begins to validate the address.
    pub(super) fn challenge_by(&mut self, challenge: Challenge) {
        (self.challenge, self.is_challenge_due) = (Some(challenge), true);
    }

    /// Has the challenge sent again, if its response is awaited.
    pub(super) fn repeat_challenge(&mut self) {
        self.is_challenge_due = self.challenge.is_some();
    }

    /// Mark for datagrams of the path.
    pub(super) fn mark(&self) -> Option<Ecn> {
        self.ecn.is_on.then_some(Ecn::Ect0)
    }
}

impl EcnState {
    /// Checks the counts of an ACK frame that acknowledges packets with ECT(0) for the first time (RFC 9000, section
    /// 13.4.2.1). `known` are the counts of the space before.
    pub(super) fn on_ack(&mut self, known: &mut EcnCounts, counts: Option<&EcnCounts>, newly_acked: u64) -> EcnOutcome {
        if !self.is_on || newly_acked == 0 {
            return EcnOutcome::Nothing;
        }
        // A path that clears the mark, or a peer that does not count.
        let Some(counts) = counts else {
            self.is_on = false;
            return EcnOutcome::Nothing;
        };
        let known = std::mem::replace(known, *counts);
        let added = counts.ect0.checked_sub(known.ect0).zip(counts.ce.checked_sub(known.ce));
        let is_valid = counts.ect1 == 0 && added.is_some_and(|(ect0, ce)| ect0.saturating_add(ce) >= newly_acked);
        if !is_valid {
            self.is_on = false;
            return EcnOutcome::Nothing;
        }
        if counts.ce > known.ce { EcnOutcome::Congested } else { EcnOutcome::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_is_used_while_the_path_keeps_its_marks() {
        let state = || (EcnState { is_on: true }, EcnCounts::default());
        let counts = |ect0, ect1, ce| EcnCounts { ect0, ect1, ce };
        let (mut good, mut known) = state();
        assert_eq!(good.on_ack(&mut known, Some(&counts(2, 0, 0)), 2), EcnOutcome::Nothing);
        assert_eq!(good.on_ack(&mut known, Some(&counts(3, 0, 1)), 2), EcnOutcome::Congested);
        assert_eq!(good.on_ack(&mut known, None, 0), EcnOutcome::Nothing);
        assert!(good.is_on);
        for (bad, newly_acked) in [(Some(counts(1, 0, 0)), 2), (Some(counts(0, 2, 0)), 2), (None, 1)] {
            let (mut ecn, mut known) = state();
            ecn.on_ack(&mut known, bad.as_ref(), newly_acked);
            assert!(!ecn.is_on, "{bad:?}");
        }
        let (mut less, mut known) = state();
        less.on_ack(&mut known, Some(&counts(5, 0, 0)), 5);
        less.on_ack(&mut known, Some(&counts(4, 0, 3)), 1);
        assert!(!less.is_on);
    }
}
