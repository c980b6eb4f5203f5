//! Clients whose connections are not accepted yet.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use rustls::quic::Keys;

use crate::id::ConnectionId;
use crate::types::Datagram;

/// Bytes that are counted for each further datagram, in addition to its payload. Otherwise many small ones would take much
/// more memory than their payloads.
const OVERHEAD_BYTES: usize = 2 * size_of::<Datagram>();

/// New client, whose first packet could be decrypted. Must be passed to [`ServerEndpoint::accept`](super::ServerEndpoint::accept),
/// [`ServerEndpoint::retry`](super::ServerEndpoint::retry) or [`ServerEndpoint::ignore`](super::ServerEndpoint::ignore). Otherwise it keeps its place
/// among the clients that wait.
#[must_use]
pub struct NewClient(pub(super) Box<IncomingState>);

/// State of a new client.
pub(super) struct IncomingState {
    /// Place among the clients that wait.
    pub(super) number: u32,
    /// ID that the client has chosen for itself.
    pub(super) client_scid: ConnectionId,
    /// Destination ID of the packet, from which `keys` are derived.
    pub(super) dcid: ConnectionId,
    /// Destination ID of the client's very first packet, if a Retry packet has followed it.
    pub(super) original_dcid: Option<ConnectionId>,
    /// True if a token has proved the client's address.
    pub(super) is_validated: bool,
    /// Keys of Initial packets.
    pub(super) keys: Keys,
    /// First datagram, encrypted.
    pub(super) datagram: Datagram,
}

/// Limits of memory for clients that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingLimits {
    /// Clients at once.
    pub(super) clients: usize,
    /// Bytes of further datagrams of a client.
    pub(super) bytes: usize,
    /// Bytes of further datagrams of all clients.
    pub(super) total_bytes: usize,
}

/// Clients that wait for their connections.
pub(super) struct Waiting {
    limits: WaitingLimits,
    /// Further datagrams of each client, or `None` for free places.
    clients: Vec<Option<Further>>,
    /// Free places.
    free: Vec<u32>,
    total_bytes: usize,
}

/// Datagrams of a client after the first one.
#[derive(Default)]
struct Further {
    datagrams: Vec<Datagram>,
    bytes: usize,
}

impl NewClient {
    /// Address of the client.
    pub fn remote(&self) -> SocketAddr {
        self.0.datagram.remote
    }

    /// Address of this host that the client has sent to, if the socket tells it.
    pub fn local(&self) -> Option<IpAddr> {
        self.0.datagram.local
    }

    /// True if a token has proved the client's address.
    pub fn is_validated(&self) -> bool {
        self.0.is_validated
    }

    /// True if the client may get a Retry packet. It gets one at most.
    pub fn may_retry(&self) -> bool {
        self.0.original_dcid.is_none()
    }
}

impl Waiting {
    pub(super) fn new(limits: WaitingLimits) -> Self {
        Self { limits, clients: Vec::new(), free: Vec::new(), total_bytes: 0 }
    }

    /// True if no further client may wait.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.limits.clients
    }

    /// Number of clients that wait.
    pub(super) fn len(&self) -> usize {
        self.clients.len() - self.free.len()
    }

    /// Adds a client and returns its place; `None` if there are too many.
    pub(super) fn add(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let further = Some(Further::default());
        if let Some(number) = self.free.pop() {
            *self.clients.get_mut(number as usize)? = further;
            return Some(number);
        }
        let number = u32::try_from(self.clients.len()).ok()?;
        self.clients.push(further);
        Some(number)
    }

    /// Keeps a further datagram of a client. Drops it if there are too many bytes; the client will send its content again.
    pub(super) fn keep(&mut self, number: u32, datagram: Datagram) {
        let Some(Some(client)) = self.clients.get_mut(number as usize) else { return };
        let added = datagram.payload.len() + OVERHEAD_BYTES;
        if client.bytes + added <= self.limits.bytes && self.total_bytes + added <= self.limits.total_bytes {
            client.bytes += added;
            self.total_bytes += added;
            client.datagrams.push(exact(datagram));
        }
    }

    /// Removes a client. Returns its further datagrams.
    pub(super) fn remove(&mut self, number: u32) -> Vec<Datagram> {
        let Some(client) = self.clients.get_mut(number as usize).and_then(Option::take) else { return Vec::new() };
        self.total_bytes -= client.bytes;
        self.free.push(number);
        if self.len() == 0 {
            (self.clients, self.free) = (Vec::new(), Vec::new());
        }
        client.datagrams
    }
}

/// Copies a datagram that is kept for a while, because its payload may be a part of a large buffer.
pub(super) fn exact(datagram: Datagram) -> Datagram {
    Datagram { payload: BytesMut::from(&datagram.payload[..]), ..datagram }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WaitingLimits =
        WaitingLimits { clients: 3, bytes: 2_000 + 2 * OVERHEAD_BYTES, total_bytes: 4_000 + 4 * OVERHEAD_BYTES };

    fn datagram(bytes: usize) -> Datagram {
        let mut payload = BytesMut::with_capacity(65_536);
        payload.resize(bytes, 1);
        Datagram { remote: "192.0.2.1:5".parse().unwrap(), local: None, ecn: None, payload }
    }

    #[test]
    fn clients_and_their_bytes_are_limited() {
        let mut waiting = Waiting::new(LIMITS);
        let numbers: Vec<_> = (0..5).map_while(|_| waiting.add()).collect();
        assert_eq!((numbers.as_slice(), waiting.is_full()), (&[0, 1, 2][..], true));
        for &number in &numbers {
            for bytes in [1_200, 900, 800, 1] {
                waiting.keep(number, datagram(bytes));
            }
        }
        waiting.keep(7, datagram(1));
        let sizes = |datagrams: Vec<Datagram>| -> Vec<_> {
            assert!(datagrams.iter().all(|kept| kept.payload.capacity() < 2_000), "no large buffers");
            datagrams.iter().map(|kept| kept.payload.len()).collect()
        };
        assert_eq!(sizes(waiting.remove(1)), [1_200, 800], "the limit of a client");
        assert_eq!(sizes(waiting.remove(1)), [0; 0], "removed");
        assert_eq!(waiting.add(), Some(1));
        waiting.keep(1, datagram(1_500));
        assert_eq!(sizes(waiting.remove(2)), [0; 0], "the limit of all");
        assert_eq!(sizes(waiting.remove(0)), [1_200, 800]);
        assert_eq!(sizes(waiting.remove(1)), [1_500]);
        assert_eq!((waiting.len(), waiting.total_bytes, waiting.clients.capacity()), (0, 0, 0));
    }
}
