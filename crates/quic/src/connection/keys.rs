//! Keys of packets after the handshake, and their updates (RFC 9001, section 6).

use std::time::Instant;

use rustls::quic::{HeaderProtectionKey, Keys, PacketKey, PacketKeySet, Secrets};

use crate::error::TransportError;

/// Share of a cipher's limit after which keys are updated, in percent.
const UPDATE_AT_PERCENT: u64 = 90;

/// Keys of the data space.
pub(super) struct DataKeys {
    local_header: Box<dyn HeaderProtectionKey>,
    remote_header: Box<dyn HeaderProtectionKey>,
    local: Box<dyn PacketKey>,
    remote: Box<dyn PacketKey>,
    secrets: Secrets,
    /// Bit in packets that tells which keys encrypt them.
    pub(super) phase: bool,
    /// Keys after the next update, once they are needed.
    next: Option<PacketKeySet>,
    /// Keys of the peer before the last update, and the time at which they are dropped.
    previous: Option<(Box<dyn PacketKey>, Instant)>,
    /// First packet number of the peer with the current keys.
    first_received: u64,
    /// First packet number of this side with the current keys.
    first_sent: u64,
    /// True if the peer has acknowledged a packet with the current keys, so that they may be updated.
    is_confirmed: bool,
    /// Packets encrypted with the current keys.
    encrypted: u64,
    /// Packets that could not be decrypted, with all keys.
    failures: u64,
}

/// Outcome of decryption.
pub(super) enum Decrypted {
    /// Length of the plain payload, in bytes.
    Plain(usize),
    /// Likewise. The peer has updated its keys.
    Updated(usize),
    Failed,
}

impl DataKeys {
    pub(super) fn new(keys: Keys, secrets: Secrets) -> Self {
        Self {
            local_header: keys.local.header,
            remote_header: keys.remote.header,
            local: keys.local.packet,
            remote: keys.remote.packet,
            secrets,
            phase: false,
            next: None,
            previous: None,
            first_received: 0,
            first_sent: 0,
            is_confirmed: false,
            encrypted: 0,
            failures: 0,
        }
    }

    /// Keys for the next packet of this side.
    pub(super) fn local(&self) -> (&dyn PacketKey, &dyn HeaderProtectionKey) {
        (&*self.local, &*self.local_header)
    }

    pub(super) fn remote_header(&self) -> &dyn HeaderProtectionKey {
        &*self.remote_header
    }

    /// Decrypts the payload of a packet in place.
    pub(super) fn decrypt(&mut self, number: u64, phase: bool, header: &[u8], payload: &mut [u8]) -> Decrypted {
        let is_current = phase == self.phase;
        let key: &dyn PacketKey = if is_current {
            &*self.remote
        } else if number < self.first_received {
            let Some((previous, _)) = &self.previous else { return Decrypted::Failed };
            &**previous
        } else {
            &*self.next.get_or_insert_with(|| self.secrets.next_packet_keys()).remote
        };
        let Ok(plain) = key.decrypt_in_place(number, header, payload) else {
            self.failures += 1;
            return Decrypted::Failed;
        };
        match is_current || number < self.first_received {
            true => Decrypted::Plain(plain.len()),
            false => Decrypted::Updated(plain.len()),
        }
    }

    /// Applies an update of the peer, whose packet with this number has the new keys.
    ///
    /// # Errors
    /// The peer updates again before this side could acknowledge the last update.
    pub(super) fn on_peer_update(
        &mut self,
        number: u64,
        next_number: u64,
        until: Instant,
    ) -> Result<(), TransportError> {
        // The client may know by an acknowledgment, which it does not acknowledge itself.
        if self.previous.is_some() && !self.is_confirmed && self.encrypted == 0 {
            return Err(TransportError::key_update("key update before the last one was acknowledged"));
        }
        self.update(next_number, until);
        self.first_received = number;
        Ok(())
    }

    /// Counts a packet of this side. Returns true if the cipher's limit is near, so that the keys must be updated.
    pub(super) fn on_encrypted(&mut self) -> bool {
        self.encrypted += 1;
        self.encrypted >= self.local.confidentiality_limit() / 100 * UPDATE_AT_PERCENT
    }

    /// Updates the keys before the cipher's limit is reached.
    ///
    /// # Errors
    /// The limit is reached, because the peer has acknowledged nothing since the last update.
    pub(super) fn update_at_limit(&mut self, next_number: u64, until: Instant) -> Result<(), TransportError> {
        if self.is_confirmed && self.previous.is_none() {
            self.update(next_number, until);
            // Packets of the peer with the old keys have lower numbers than the first with the new ones.
            self.first_received = u64::MAX;
            return Ok(());
        }
        match self.encrypted >= self.local.confidentiality_limit() {
            true => Err(TransportError::aead_limit_reached("no key update was possible")),
            false => Ok(()),
        }
    }

    /// Handles an acknowledgment of a packet of this side.
    pub(super) fn on_acked(&mut self, number: u64) {
        self.is_confirmed |= number >= self.first_sent;
    }

    /// Records that a packet with the current keys has arrived.
    pub(super) fn on_received(&mut self, number: u64, phase: bool) {
        if phase == self.phase && number < self.first_received {
            self.first_received = number;
        }
    }

    /// Time at which the keys before the last update are dropped.
    pub(super) fn drop_at(&self) -> Option<Instant> {
        self.previous.as_ref().map(|(_, until)| *until)
    }

    /// Drops the keys before the last update.
    pub(super) fn drop_previous(&mut self, now: Instant) {
        self.previous.take_if(|(_, until)| *until <= now);
    }

    /// True if too many packets could not be decrypted (RFC 9001, section 6.6).
    pub(super) fn is_integrity_spent(&self) -> bool {
        self.failures >= self.remote.integrity_limit()
    }

    fn update(&mut self, next_number: u64, until: Instant) {
        let next = self.next.take().unwrap_or_else(|| self.secrets.next_packet_keys());
        self.local = next.local;
        self.previous = Some((std::mem::replace(&mut self.remote, next.remote), until));
        self.phase = !self.phase;
        (self.first_sent, self.is_confirmed, self.encrypted) = (next_number, false, 0);
    }
}
