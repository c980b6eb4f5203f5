//! Packets (RFC 9000, section 17) and their protection (RFC 9001, section 5).
//!
//! [`read_header`] finds a packet in a datagram, [`unprotect`] gives its number, and a [`PacketWriter`] writes one. Headers are
//! read without allocation, and packets are written into a buffer that the caller reuses.

mod number;
#[cfg(test)]
mod tests;
mod write;

use std::ops::Range;

use crate::codec::Reader;
use crate::id::ConnectionId;

pub(crate) use number::{expand_number, unprotect};
pub(crate) use write::{PacketWriter, write_retry, write_version_negotiation};

/// Version 1 of QUIC (RFC 9000, section 15).
pub(crate) const VERSION_1: u32 = 1;

/// Length of the authentication tag of all ciphers (RFC 9001, section 5.3), in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// Bit of the first byte that marks long headers.
const LONG_BIT: u8 = 0x80;

/// Fixed bit of the first byte, also named QUIC bit. This engine sets it always. A peer may clear it, because the transport
/// parameter `grease_quic_bit` (RFC 9287) permits that.
const FIXED_BIT: u8 = 0x40;

/// Key phase bit of the first byte of short headers.
const KEY_PHASE_BIT: u8 = 0x04;

/// Packet number spaces (RFC 9000, section 12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Packets with the keys that all observers know.
    Initial = 0,
    /// Packets of the handshake.
    Handshake = 1,
    /// Packets of the application, early data included.
    Data = 2,
}

/// Types of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    /// First packets of both sides.
    Initial,
    /// Early data of a client.
    ZeroRtt,
    /// Packets of the handshake.
    Handshake,
    /// Request to send the first Initial packet again, with a token.
    Retry,
    /// Packets with a short header.
    OneRtt,
    /// List of versions that a server supports.
    VersionNegotiation,
}

/// Header, before its protection is removed. Offsets refer to the datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketHeader {
    /// Type of the packet.
    pub kind: PacketKind,
    /// Version; [`VERSION_1`] for short headers, 0 for Version Negotiation.
    pub version: u32,
    /// ID the receiver has chosen, or the first one of a client.
    pub destination: ConnectionId,
    /// ID the sender has chosen. Empty for short headers.
    pub source: ConnectionId,
    /// Token of an Initial or Retry packet. Empty for others.
    pub token: Range<usize>,
    /// Offset of the packet number. Equal to `end` for packets without a number.
    pub number_at: usize,
    /// End of the packet. Coalesced packets follow.
    pub end: usize,
}

/// Errors of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError<'a> {
    /// No packet. The rest of the datagram must be dropped.
    Malformed,
    /// Unknown version; the response is Version Negotiation (RFC 9000, section 6). IDs have up to 255 bytes.
    UnknownVersion {
        /// Destination connection ID of the packet.
        destination: &'a [u8],
        /// Source connection ID of the packet.
        source: &'a [u8],
    },
}

impl PacketKind {
    /// Packet number space; `None` for packets without a number.
    #[inline]
    pub(crate) fn space(self) -> Option<Space> {
        match self {
            Self::Initial => Some(Space::Initial),
            Self::Handshake => Some(Space::Handshake),
            Self::ZeroRtt | Self::OneRtt => Some(Space::Data),
            Self::Retry | Self::VersionNegotiation => None,
        }
    }

    /// Type bits of a long header.
    fn long_bits(self) -> u8 {
        match self {
            Self::Initial => 0x00,
            Self::ZeroRtt => 0x10,
            Self::Handshake => 0x20,
            Self::Retry | Self::OneRtt | Self::VersionNegotiation => 0x30,
        }
    }
}

/// True if a datagram begins with a long header.
#[inline]
pub(crate) fn is_long(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & LONG_BIT != 0)
}

/// Destination connection ID of a packet with a short header, without its other parts. `None` for long headers and if the datagram
/// is too short.
#[inline]
pub(crate) fn short_destination(datagram: &[u8], local_id_bytes: usize) -> Option<&[u8]> {
    if is_long(datagram) {
        return None;
    }
    datagram.get(1..1 + local_id_bytes)
}

/// Reads the header of the first packet of a datagram. Short headers have IDs of `local_id_bytes`.
///
/// # Errors
/// The datagram does not begin with a packet, or with one of an unknown version.
#[inline]
pub(crate) fn read_header(datagram: &[u8], local_id_bytes: usize) -> Result<PacketHeader, HeaderError<'_>> {
    let Some(destination) = short_destination(datagram, local_id_bytes) else {
        return read_long(datagram);
    };
    Ok(PacketHeader {
        kind: PacketKind::OneRtt,
        version: VERSION_1,
        destination: ConnectionId::new(destination).ok_or(HeaderError::Malformed)?,
        source: ConnectionId::EMPTY,
        token: 0..0,
        number_at: 1 + local_id_bytes,
        end: datagram.len(),
    })
}

/// Reads a long header.
fn read_long(datagram: &[u8]) -> Result<PacketHeader, HeaderError<'_>> {
    let mut reader = Reader::new(datagram);
    let invariant = read_invariant(&mut reader).ok_or(HeaderError::Malformed)?;
    let Invariant { first, version, destination, source } = invariant;
    if version != VERSION_1 && version != 0 {
        return Err(HeaderError::UnknownVersion { destination, source });
    }
    let (Some(destination), Some(source)) = (ConnectionId::new(destination), ConnectionId::new(source)) else {
        return Err(HeaderError::Malformed);
    };
    let whole = datagram.len();
    let mut header = PacketHeader {
        kind: PacketKind::VersionNegotiation,
        version,
        destination,
        source,
        token: 0..0,
        number_at: whole,
        end: whole,
    };
    if version == 0 {
        return Ok(header);
    }
    header.kind = match first & 0x30 {
        0x00 => PacketKind::Initial,
        0x10 => PacketKind::ZeroRtt,
        0x20 => PacketKind::Handshake,
        _ => PacketKind::Retry,
    };
    match header.kind {
        PacketKind::Retry => {
            let token = reader.left().checked_sub(TAG_BYTES).ok_or(HeaderError::Malformed)?;
            let begin = whole - reader.left();
            header.token = begin..begin + token;
            return Ok(header);
        }
        PacketKind::Initial => {
            let token = reader.prefixed().ok_or(HeaderError::Malformed)?.len();
            let end = whole - reader.left();
            header.token = end - token..end;
        }
        _ => {}
    }
    let length = reader.varint().and_then(|length| usize::try_from(length).ok()).ok_or(HeaderError::Malformed)?;
    if length > reader.left() {
        return Err(HeaderError::Malformed);
    }
    header.number_at = whole - reader.left();
    header.end = header.number_at + length;
    Ok(header)
}

/// Parts of long headers that all versions share (RFC 8999, section 5.1).
struct Invariant<'a> {
    first: u8,
    version: u32,
    destination: &'a [u8],
    source: &'a [u8],
}

fn read_invariant<'a>(reader: &mut Reader<'a>) -> Option<Invariant<'a>> {
    let first = reader.u8()?;
    if first & LONG_BIT == 0 {
        return None; // a short header, without its ID
    }
    let version = reader.u32()?;
    let mut id = || {
        let count = reader.u8()?;
        reader.bytes(usize::from(count))
    };
    Some(Invariant { first, version, destination: id()?, source: id()? })
}
