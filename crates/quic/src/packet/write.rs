//! Writers of packets.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::quic::{HeaderProtectionKey, PacketKey};

use super::number::{NUMBER_BYTES_MAX, SAMPLE_BYTES, number_bytes};
use super::{FIXED_BIT, KEY_PHASE_BIT, LONG_BIT, PacketKind, TAG_BYTES, VERSION_1};
use crate::codec::{write_varint, write_varint2};
use crate::error::TransportError;
use crate::id::ConnectionId;

/// Length of the length of a long header, in bytes. It is written before the length is known, so it is always the same.
const LENGTH_BYTES: usize = 2;

/// Largest length of a long header that fits in [`LENGTH_BYTES`].
const LENGTH_MAX: usize = 0x3fff;

/// Key of the integrity tag of Retry packets (RFC 9001, section 5.8).
const RETRY_KEY: [u8; 16] =
    [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e];

/// Nonce of the integrity tag of Retry packets.
const RETRY_NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

/// Packet that is being written at the end of a buffer. The caller appends frames, and then calls [`PacketWriter::finish`].
#[must_use]
#[derive(Debug)]
pub(crate) struct PacketWriter {
    /// Offset of the first byte.
    start: usize,
    /// Offset of the packet number. A long header has its length before it.
    number_at: usize,
    /// Offset of the payload.
    payload_start: usize,
    is_long: bool,
}

impl PacketWriter {
    /// Begins a packet with a long header: Initial, 0-RTT or Handshake. Only Initial packets have a token.
    pub(crate) fn long(
        out: &mut Vec<u8>,
        kind: PacketKind,
        destination: &ConnectionId,
        source: &ConnectionId,
        token: &[u8],
        number: u64,
        largest_acked: Option<u64>,
    ) -> Self {
        let bytes = number_bytes(number, largest_acked);
        Self::long_with(out, kind, destination, source, token, number, bytes)
    }

    /// Begins a packet with a long header and a number of `bytes`.
    pub(super) fn long_with(
        out: &mut Vec<u8>,
        kind: PacketKind,
        destination: &ConnectionId,
        source: &ConnectionId,
        token: &[u8],
        number: u64,
        bytes: usize,
    ) -> Self {
        let start = out.len();
        out.push(LONG_BIT | FIXED_BIT | kind.long_bits() | (bytes - 1) as u8);
        write_long_ids(out, VERSION_1, destination, source);
        if kind == PacketKind::Initial {
            write_varint(out, token.len() as u64);
            out.extend_from_slice(token);
        }
        write_varint2(out, 0); // until the length is known
        Self::number(out, start, number, bytes, true)
    }

    /// Begins a packet with a short header.
    #[inline]
    pub(crate) fn short(
        out: &mut Vec<u8>,
        destination: &ConnectionId,
        number: u64,
        largest_acked: Option<u64>,
        key_phase: bool,
    ) -> Self {
        let bytes = number_bytes(number, largest_acked);
        Self::short_with(out, destination, number, bytes, key_phase)
    }

    /// Begins a packet with a short header and a number of `bytes`.
    #[inline]
    pub(super) fn short_with(
        out: &mut Vec<u8>,
        destination: &ConnectionId,
        number: u64,
        bytes: usize,
        key_phase: bool,
    ) -> Self {
        let start = out.len();
        let phase = if key_phase { KEY_PHASE_BIT } else { 0 };
        out.push(FIXED_BIT | phase | (bytes - 1) as u8);
        out.extend_from_slice(destination);
        Self::number(out, start, number, bytes, false)
    }

    #[inline]
    fn number(out: &mut Vec<u8>, start: usize, number: u64, bytes: usize, is_long: bool) -> Self {
        let number_at = out.len();
        out.extend_from_slice(&(number as u32).to_be_bytes()[NUMBER_BYTES_MAX - bytes..]);
        Self { start, number_at, payload_start: number_at + bytes, is_long }
    }

    /// Offset of the packet's first byte in the buffer.
    #[inline]
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Offset of the payload in the buffer.
    #[inline]
    pub(crate) fn payload_start(&self) -> usize {
        self.payload_start
    }

    /// Completes the packet: pads it so that it has a frame and a sample, writes the length of a long header, encrypts the
    /// payload and protects the header. The packet grows by [`TAG_BYTES`]. A payload of less than 3 bytes may also get up to 3
    /// bytes of padding.
    ///
    /// # Errors
    /// The packet is too long.
    pub(crate) fn finish(
        self,
        out: &mut Vec<u8>,
        number: u64,
        packet: &dyn PacketKey,
        header: &dyn HeaderProtectionKey,
    ) -> Result<(), TransportError> {
        let failed = || TransportError::internal("cannot encrypt a packet");
        // The tag is as long as the sample, so number and payload must be as long as the longest number. PADDING is a byte 0.
        let end_min = (self.number_at + NUMBER_BYTES_MAX).max(self.payload_start + 1);
        if out.len() < end_min {
            out.resize(end_min, 0);
        }
        if self.is_long {
            let length = out.len() - self.number_at + TAG_BYTES;
            if length > LENGTH_MAX {
                return Err(TransportError::internal("packet is too long"));
            }
            out[self.number_at - LENGTH_BYTES..self.number_at].copy_from_slice(&(length as u16 | 0x4000).to_be_bytes());
        }
        let (head, payload) = out[self.start..].split_at_mut(self.payload_start - self.start);
        let tag = packet.encrypt_in_place(number, head, payload).map_err(|_| failed())?;
        out.extend_from_slice(tag.as_ref());
        let (head, rest) = out[self.start..].split_at_mut(self.number_at - self.start);
        let (number_bytes, rest) = rest.split_at_mut(NUMBER_BYTES_MAX);
        let number_bytes = &mut number_bytes[..self.payload_start - self.number_at];
        header.encrypt_in_place(&rest[..SAMPLE_BYTES], &mut head[0], number_bytes).map_err(|_| failed())
    }
}

/// Writes the version and the IDs of a long header.
fn write_long_ids(out: &mut Vec<u8>, version: u32, destination: &[u8], source: &[u8]) {
    out.extend_from_slice(&version.to_be_bytes());
    for id in [destination, source] {
        debug_assert!(id.len() <= 255, "IDs of all versions have a length of one byte");
        out.push(id.len() as u8);
        out.extend_from_slice(id);
    }
}

/// Writes a Version Negotiation packet (RFC 9000, section 17.2.1) with version 1 and a reserved version (section 15).
/// `destination` is the source ID of the client's packet, `source` its destination ID.
pub(crate) fn write_version_negotiation(out: &mut Vec<u8>, destination: &[u8], source: &[u8], random: u8) {
    out.push(LONG_BIT | FIXED_BIT | random);
    write_long_ids(out, 0, destination, source);
    // Clients must ignore versions like 0x?a?a?a?a, so that new versions stay possible.
    let reserved = 0x0a0a_0a0a | (u32::from(random & 0xf0) * 0x0101_0101);
    let versions = if random & 1 == 0 { [VERSION_1, reserved] } else { [reserved, VERSION_1] };
    for version in versions {
        out.extend_from_slice(&version.to_be_bytes());
    }
}

/// Writes a Retry packet (RFC 9000, section 17.2.5) with its integrity tag (RFC 9001, section 5.8). `destination` is the client's
/// ID, `source` the new ID of the server, `original` the ID to which the client has sent its Initial packet.
pub(crate) fn write_retry(
    out: &mut Vec<u8>,
    destination: &ConnectionId,
    source: &ConnectionId,
    original: &ConnectionId,
    token: &[u8],
) {
    let start = out.len();
    // The tag also covers the original ID, which is not part of the packet.
    let mut covered = Vec::with_capacity(1 + original.len() + 7 + destination.len() + source.len() + token.len());
    covered.push(original.len() as u8);
    covered.extend_from_slice(original);
    // The lower four bits are unused.
    out.push(LONG_BIT | FIXED_BIT | PacketKind::Retry.long_bits() | 0x0f);
    write_long_ids(out, VERSION_1, destination, source);
    out.extend_from_slice(token);
    covered.extend_from_slice(&out[start..]);
    // Local invariant: the key has the length that AES-128 needs.
    let key = UnboundKey::new(&AES_128_GCM, &RETRY_KEY).map(LessSafeKey::new).expect("key of 16 bytes");
    let nonce = Nonce::assume_unique_for_key(RETRY_NONCE);
    // Local invariant: an empty text is never too long.
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(covered), &mut []).expect("text without bytes");
    out.extend_from_slice(tag.as_ref());
}
