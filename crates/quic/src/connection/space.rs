//! Packet number spaces of a connection (RFC 9000, section 12.3).

use std::time::Instant;

use super::crypto::CryptoStream;
use super::handshake::Handshake;
use crate::frame::EcnCounts;
use crate::packet::Space;
use crate::recovery::{ReceivedPackets, SentPackets};

/// Packets of a space, in both directions.
#[derive(Debug)]
pub(super) struct PacketSpace {
    pub(super) sent: SentPackets,
    pub(super) received: ReceivedPackets,
    pub(super) crypto: CryptoStream,
    /// Time at which the next packet will be lost.
    pub(super) loss_at: Option<Instant>,
    /// Time of the last packet that the peer must acknowledge.
    pub(super) eliciting_at: Option<Instant>,
    /// ECN counts that the peer has told.
    pub(super) ecn_counts: EcnCounts,
    /// Packets that must be sent regardless of congestion control (RFC 9002, section 6.2.4).
    pub(super) probes: u8,
}

impl PacketSpace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            sent: SentPackets::new(now),
            received: ReceivedPackets::default(),
            crypto: CryptoStream::default(),
            loss_at: None,
            eliciting_at: None,
            ecn_counts: EcnCounts::default(),
            probes: 0,
        }
    }

    /// Time at which a probe is due, this long after the last packet that the peer must acknowledge.
    pub(super) fn probe_at(&self, timeout: std::time::Duration) -> Option<Instant> {
        // Lost bytes of TLS may find no room in the window.
        let is_due = self.sent.has_ack_eliciting() || self.crypto.can_send();
        self.eliciting_at.filter(|_| is_due).map(|at| at + timeout)
    }
}

/// Selects a space, if it still exists.
pub(super) fn select<'a>(
    handshake: &'a mut Option<Box<Handshake>>,
    data: &'a mut PacketSpace,
    space: Space,
) -> Option<&'a mut PacketSpace> {
    match space {
        Space::Data => Some(data),
        Space::Initial | Space::Handshake => handshake.as_mut()?.space_mut(space).map(|long| &mut long.packets),
    }
}
