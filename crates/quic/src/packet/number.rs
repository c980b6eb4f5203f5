//! Packet numbers (RFC 9000, section 17.1) and header protection (RFC 9001, section 5.4).

use rustls::quic::HeaderProtectionKey;

use super::{KEY_PHASE_BIT, LONG_BIT};

/// Length of the longest packet number, in bytes. The sample of header protection begins as if each number had it.
pub(super) const NUMBER_BYTES_MAX: usize = 4;

/// Length of the sample of header protection, in bytes. All ciphers of version 1 have it (RFC 9001, section 5.4.2).
pub(super) const SAMPLE_BYTES: usize = 16;

/// Parts of a header that were protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketNumber {
    /// First byte of the packet, without protection.
    pub first: u8,
    /// Number in the packet, which lacks its upper bits.
    pub truncated: u64,
    /// Length of the number in the packet, in bytes.
    pub bytes: usize,
}

impl PacketNumber {
    /// True if reserved bits are set. A packet that decrypts in spite of it is a PROTOCOL_VIOLATION (RFC 9000, section 17).
    #[inline]
    pub(crate) fn has_reserved_bits(&self) -> bool {
        self.first & if self.first & LONG_BIT != 0 { 0x0c } else { 0x18 } != 0
    }

    /// Key phase of a short header (RFC 9001, section 6).
    #[inline]
    pub(crate) fn key_phase(&self) -> bool {
        self.first & KEY_PHASE_BIT != 0
    }
}

/// Removes header protection in place. `packet` is one packet, from its first byte to its end. `None` if the packet is too short to
/// have a sample; such a packet must be dropped.
#[inline]
pub(crate) fn unprotect(packet: &mut [u8], number_at: usize, key: &dyn HeaderProtectionKey) -> Option<PacketNumber> {
    let (head, rest) = packet.split_at_mut_checked(number_at.checked_add(NUMBER_BYTES_MAX)?)?;
    let sample = rest.get(..SAMPLE_BYTES)?;
    let (head, number) = head.split_last_chunk_mut::<NUMBER_BYTES_MAX>()?;
    let first = head.first_mut()?;
    key.decrypt_in_place(sample, first, number).ok()?;
    let bytes = usize::from(*first & 0x03) + 1;
    let truncated = u64::from(u32::from_be_bytes(*number) >> (8 * (NUMBER_BYTES_MAX - bytes)));
    Some(PacketNumber { first: *first, truncated, bytes })
}

/// Finds the whole packet number (RFC 9000, appendix A.3). `largest` is the largest number of its space that was processed. The
/// packet's authentication must use the result, so that a wrong one does no harm.
#[inline]
pub(crate) fn expand_number(truncated: u64, bytes: usize, largest: Option<u64>) -> u64 {
    let expected = largest.map_or(0, |largest| largest + 1);
    let window = 1_u64 << (8 * bytes);
    let half = window / 2;
    let candidate = expected & !(window - 1) | truncated;
    if candidate + half <= expected && candidate < (1 << 62) - window {
        candidate + window
    } else if candidate > expected + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Length of a packet number in a packet (RFC 9000, appendix A.2), in bytes: 1 to 4.
#[inline]
pub(crate) fn number_bytes(number: u64, largest_acked: Option<u64>) -> usize {
    let unacked = match largest_acked {
        Some(largest) => number.saturating_sub(largest),
        None => number + 1,
    };
    // The number must be unambiguous among twice as many.
    match unacked {
        0..=0x80 => 1,
        0x81..=0x8000 => 2,
        0x8001..=0x80_0000 => 3,
        _ => 4,
    }
}
