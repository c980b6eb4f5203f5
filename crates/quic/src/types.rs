//! Types that pass between the caller, the endpoint and its connections.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustls::quic::Keys;

use crate::congestion::CongestionAlgorithm;
use crate::id::{ConnectionId, ResetToken};
use crate::qlog::QlogSink;
use crate::streams::StreamLimits;
use crate::tls::TlsServer;

/// Index of a connection in its endpoint. Stable until the connection is drained; then another one may get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey(pub usize);

/// Explicit Congestion Notification in the IP header of a datagram (RFC 3168). Datagrams without it have `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Sender supports ECN, codepoint ECT(0).
    Ect0,
    /// Sender supports ECN, codepoint ECT(1).
    Ect1,
    /// Router on the path was congested.
    Ce,
}

/// Settings of an endpoint.
#[derive(Clone)]
pub struct EndpointConfig {
    /// Key of stateless reset tokens (RFC 9000, section 10.3).
    pub reset_key: [u8; 32],
    /// Key of address validation tokens (RFC 9000, section 8.1).
    pub token_key: [u8; 32],
    /// Time in which a client must answer a Retry packet.
    pub retry_lifetime: Duration,
    /// Time in which a client may use a token of a NEW_TOKEN frame.
    pub token_lifetime: Duration,
    /// Clients that may wait to be accepted. First packets of more clients are dropped.
    pub incoming_max: usize,
    /// Bytes that are kept for one of them, in addition to its first datagram.
    pub incoming_bytes_max: usize,
    /// Bytes that are kept for all of them, in addition to their first datagrams.
    pub incoming_total_bytes_max: usize,
}

/// Received UDP datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Address of the sender.
    pub remote: SocketAddr,
    /// Address of this host that the datagram was sent to, if the socket tells it.
    pub local: Option<IpAddr>,
    /// Mark of congestion.
    pub ecn: Option<Ecn>,
    /// Payload, with one or more QUIC packets.
    pub payload: BytesMut,
}

/// Datagrams to send to one address. Their payloads are in the buffer that was passed, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Address of the receiver.
    pub remote: SocketAddr,
    /// Address of this host to send from, if it is known.
    pub local: Option<IpAddr>,
    /// Mark to set in the IP header.
    pub ecn: Option<Ecn>,
    /// Bytes of all payloads.
    pub bytes: usize,
    /// Size of all datagrams except the last one, if there are several (GSO).
    pub segment_bytes: Option<usize>,
}

/// Connection ID that the endpoint has made for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuedId {
    /// Sequence number; 0 is the ID of the handshake.
    pub sequence: u64,
    /// ID by which the client addresses the connection.
    pub id: ConnectionId,
    /// Token by which the endpoint can reset the connection without state.
    pub token: ResetToken,
}

/// Message of a connection to its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// The connection needs as many new IDs.
    NeedIds(usize),
    /// The client has retired an ID.
    RetiredId {
        /// Sequence number of the ID.
        sequence: u64,
    },
    /// The client has a new current ID. A datagram from it that ends with the token belongs to the connection.
    ResetToken {
        /// Address of the client.
        remote: SocketAddr,
        /// Token that the client has sent with the ID.
        token: ResetToken,
    },
    /// The connection has ended, and its IDs are free.
    Drained,
}

/// Settings of new connections.
#[derive(Clone)]
pub struct TransportSettings {
    /// Limits of streams.
    pub streams: StreamLimits,
    /// Time without packets after which a connection is dropped.
    pub idle_timeout: Duration,
    /// Round-trip time that is assumed before the first sample.
    pub initial_round_trip: Duration,
    /// Algorithm of congestion control.
    pub congestion: CongestionAlgorithm,
    /// Congestion window of a new connection, in bytes.
    pub initial_window_bytes: u64,
    /// True if connections search for larger datagrams that their path carries (RFC 8899).
    pub probes_mtu: bool,
    /// Receiver of the connection's trace.
    pub qlog: Option<QlogSink>,
}

impl EndpointConfig {
    /// Makes the default settings with these keys. A Retry packet must be answered within 15 s, and other tokens are valid for a
    /// day. 512 clients may wait, with 8 KiB each and 1 MiB in total.
    pub fn new(reset_key: [u8; 32], token_key: [u8; 32]) -> Self {
        Self {
            reset_key,
            token_key,
            retry_lifetime: Duration::from_secs(15),
            token_lifetime: Duration::from_secs(86_400),
            incoming_max: 512,
            incoming_bytes_max: 8 << 10,
            incoming_total_bytes_max: 1 << 20,
        }
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the keys.
        f.write_str("EndpointConfig")
    }
}

/// State with which a connection begins.
pub(crate) struct ConnectionParts<'a> {
    /// Time of the call that accepts the connection.
    pub(crate) now: Instant,
    /// Address of the client.
    pub(crate) remote: SocketAddr,
    /// Address of this host.
    pub(crate) local: Option<IpAddr>,
    /// True if a token has proved the client's address.
    pub(crate) is_validated: bool,
    /// ID that the client has chosen for itself.
    pub(crate) client_scid: ConnectionId,
    /// Destination ID of the client's very first packet, for `original_destination_connection_id`.
    pub(crate) original_dcid: ConnectionId,
    /// Source ID of the Retry packet that the client has answered, for `retry_source_connection_id`.
    pub(crate) retry_scid: Option<ConnectionId>,
    /// First ID of the connection, with the sequence number 0.
    pub(crate) own_id: IssuedId,
    /// Keys of Initial packets.
    pub(crate) initial_keys: Keys,
    /// Datagrams that have arrived so far, still encrypted, in their order.
    pub(crate) datagrams: Vec<Datagram>,
    /// Token to send in a NEW_TOKEN frame.
    pub(crate) new_token: Vec<u8>,
    /// TLS of the listener.
    pub(crate) tls: &'a Arc<dyn TlsServer>,
    /// Settings of the connection.
    pub(crate) settings: TransportSettings,
}
