//! Packet keys of QUIC after a key update (RFC 9001, section 6).
//!
//! The engine wants the next keys in advance, and most connections never use them. So they are derived at their first
//! use; until then, a connection keeps their secrets only.

use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, KeyPair, PacketKey};
use rustls::quic::{PacketKey as RustlsPacketKey, PacketKeySet, Secrets};

/// Length of the tag of all cipher suites of QUIC, in bytes (RFC 9001, section 5.3).
const TAG_BYTES: usize = 16;

/// Keys of the next update.
pub(super) struct NextKeys {
    generation: Arc<KeyGeneration>,
    /// True if the engine has these keys.
    is_taken: bool,
}

/// Keys of an update, for both directions.
struct KeyGeneration {
    secrets: Secrets,
    keys: OnceLock<PacketKeySet>,
}

/// Key of one direction.
struct UpdatedKey {
    generation: Arc<KeyGeneration>,
    is_local: bool,
}

impl NextKeys {
    /// Makes the keys of the first update.
    pub(super) fn new(secrets: Secrets) -> Self {
        Self { generation: Arc::new(KeyGeneration { secrets, keys: OnceLock::new() }), is_taken: false }
    }

    /// Returns the keys of the next update.
    pub(super) fn take(&mut self) -> KeyPair<Box<dyn PacketKey>> {
        if self.is_taken {
            let mut secrets = self.generation.secrets.clone();
            // The keys of the update that is in use.
            let _ = secrets.next_packet_keys();
            *self = Self::new(secrets);
        }
        self.is_taken = true;
        let key = |is_local| Box::new(UpdatedKey { generation: Arc::clone(&self.generation), is_local });
        KeyPair { local: key(true), remote: key(false) }
    }
}

impl UpdatedKey {
    #[expect(clippy::borrowed_box, reason = "the engine implements its trait for the box")]
    fn key(&self) -> &Box<dyn RustlsPacketKey> {
        let KeyGeneration { secrets, keys } = &*self.generation;
        let keys = keys.get_or_init(|| secrets.clone().next_packet_keys());
        if self.is_local { &keys.local } else { &keys.remote }
    }
}

impl PacketKey for UpdatedKey {
    fn encrypt(&self, packet: u64, buffer: &mut [u8], header_bytes: usize) {
        PacketKey::encrypt(self.key(), packet, buffer, header_bytes);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        PacketKey::decrypt(self.key(), packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        PacketKey::confidentiality_limit(self.key())
    }

    fn integrity_limit(&self) -> u64 {
        PacketKey::integrity_limit(self.key())
    }
}
