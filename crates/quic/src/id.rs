//! Identifiers of connections and streams.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Longest connection ID of version 1 (RFC 9000, section 17.2), in bytes.
pub(crate) const ID_BYTES_MAX: usize = 20;

/// Connection ID (RFC 9000, section 5.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConnectionId {
    length: u8,
    /// Zero after the length.
    bytes: [u8; ID_BYTES_MAX],
}

/// Token of a stateless reset (RFC 9000, section 10.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResetToken(pub [u8; 16]);

/// Source of connection IDs of an endpoint.
pub trait IdSource {
    /// Makes a new ID.
    fn next_id(&mut self) -> ConnectionId;

    /// True if the endpoint may have made the ID, so that packets with it may get stateless resets.
    fn is_own(&self, id: &ConnectionId) -> bool;

    /// Length of all IDs, in bytes.
    fn id_bytes(&self) -> usize;
}

/// Stream of a connection (RFC 9000, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuicStreamId(pub u64);

/// Directions of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dir {
    /// Both sides send.
    Bi,
    /// Only the side that has opened the stream sends.
    Uni,
}

impl ConnectionId {
    /// ID without bytes.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; ID_BYTES_MAX] };

    /// Makes an ID; `None` if there are too many bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self { length: bytes.len() as u8, bytes: [0; ID_BYTES_MAX] };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }
}

impl Deref for ConnectionId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Hash for ConnectionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self);
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ResetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secret until it is used.
        f.write_str("ResetToken")
    }
}

impl QuicStreamId {
    /// Makes the ID of a stream: the stream of this number, from 0 on, among those of its kind.
    pub const fn of(number: u64, dir: Dir, is_by_server: bool) -> Self {
        Self(number << 2 | (dir as u64) << 1 | is_by_server as u64)
    }

    /// True if the server has opened the stream.
    pub const fn is_by_server(self) -> bool {
        self.0 & 1 != 0
    }

    /// Directions of the stream.
    pub const fn dir(self) -> Dir {
        if self.0 & 2 == 0 { Dir::Bi } else { Dir::Uni }
    }

    /// Number of the stream, from 0 on, among those of its kind.
    pub const fn number(self) -> u64 {
        self.0 >> 2
    }
}
