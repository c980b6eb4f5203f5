//! Connection with a client: packets, frames, recovery and streams.

mod acks;
mod closing;
mod crypto;
mod frames;
mod handshake;
mod ids;
mod keys;
mod migration;
mod path;
mod receive;
mod space;
mod timers;
mod transmit;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::closing::Closing;
use self::handshake::Handshake;
use self::ids::{LocalIds, RemoteIds};
use self::keys::DataKeys;
use self::migration::PathResponse;
use self::path::Path;
use self::space::PacketSpace;
use crate::error::TransportError;
use crate::parameters::PeerParameters;
use crate::qlog::QlogTrace;
use crate::streams::{StreamEvent, Streams};
use crate::tls::TlsSession;
use crate::types::{ConnectionParts, Datagram, EndpointEvent, IssuedId, TransportSettings};

/// QUIC connection of a server.
pub struct Connection {
    settings: TransportSettings,
    state: State,
    /// State of the handshake, until it is complete.
    handshake: Option<Box<Handshake>>,
    /// Packets after the handshake, and early data.
    data: PacketSpace,
    keys: Option<DataKeys>,
    path: Path,
    /// Path before the peer moved, until its new address is validated.
    previous: Option<Box<Path>>,
    path_responses: Vec<PathResponse>,
    remote_ids: RemoteIds,
    local_ids: LocalIds,
    peer: Peer,
    streams: Streams,
    events: VecDeque<QuicEvent>,
    endpoint_events: VecDeque<EndpointEvent>,
    /// Packets that have waited for their keys.
    ready: VecDeque<Datagram>,
    due: Due,
    /// Expirations of the probe timeout without an acknowledgment (RFC 9002, section 6.2).
    probe_timeouts: u32,
    /// Packets of the last loss that were not acknowledged later.
    lost_packets: u32,
    /// True if less was sent than congestion control permits, because there was no more to send.
    is_app_limited: bool,
    /// Time at which the connection ends, unless a packet arrives.
    idle_at: Option<Instant>,
    /// True if the peer must acknowledge a packet that was sent after the last one received.
    has_sent_eliciting: bool,
    /// Time at which the pacer permits more.
    pace_at: Option<Instant>,
    /// Time at which the validation of a new path has failed.
    path_fails_at: Option<Instant>,
    /// Next packet number that is skipped.
    skips_at: u64,
    /// Length of this side's connection IDs.
    id_bytes: u8,
    /// State of a generator of numbers that need not be secret.
    random: u64,
    qlog: Option<Box<QlogTrace>>,
}

/// State of a connection (RFC 9000, section 10).
#[derive(Debug)]
enum State {
    Open,
    /// This side has closed the connection.
    Closing(Box<Closing>),
    /// The peer has closed the connection. Packets that are on their way still arrive.
    Draining {
        until: Instant,
    },
    Drained,
}

/// Limits of the peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    ack_delay_exponent: u8,
    ack_delay_max: Duration,
    datagram_bytes_max: u16,
    /// Time without packets after which either side drops the connection.
    idle_timeout: Duration,
}

/// Frames to send that belong to no stream.
#[derive(Debug, Default)]
struct Due {
    handshake_done: bool,
    ping: bool,
    /// Token for the client's next connection, until the client has it.
    new_token: Option<Box<[u8]>>,
    is_new_token_unsent: bool,
}

/// News of a connection.
pub enum QuicEvent {
    /// The client's first message is processed, so that early data may follow.
    HelloReceived,
    /// The handshake is complete. The connection doesn't need its TLS any more.
    Connected(Box<dyn TlsSession>),
    /// The connection has ended.
    Lost(LostReason),
    /// News of a stream.
    Stream(StreamEvent),
}

/// Cause of the end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// The peer has violated the protocol.
    Transport(TransportError),
    /// The peer has closed the connection with an error of QUIC.
    PeerTransport {
        /// Error code (RFC 9000, section 20.1).
        code: u64,
        /// Explanation of the peer.
        reason: Bytes,
    },
    /// The application of the peer has closed the connection.
    PeerApplication {
        /// Error code of the application.
        code: u64,
        /// Explanation of the peer.
        reason: Bytes,
    },
    /// The peer has lost its state (RFC 9000, section 10.3).
    Reset,
    /// No packet arrived in time.
    TimedOut,
}

impl Connection {
    /// Makes the connection of a new client, and handles what it has sent.
    pub(crate) fn new(parts: ConnectionParts<'_>) -> Self {
        let ConnectionParts { now, remote, local, client_scid, .. } = parts;
        let mut random = [0; 16];
        // Numbers that need not be secret. Without random numbers no handshake would succeed.
        let _ = aws_lc_rs::rand::fill(&mut random);
        let seed = u64::from_le_bytes(std::array::from_fn(|index| random[index])) | 1;
        let session = handshake::start(&parts, random);
        let ConnectionParts { settings, datagrams, new_token, original_dcid, initial_keys, own_id, .. } = parts;
        let handshake = Handshake::new(now, session, initial_keys, client_scid, own_id.id);
        // The peer's limit comes with its parameters.
        let mut path = Path::new(now, remote, local, &settings, u16::MAX);
        path.is_validated = parts.is_validated;
        let peer = Peer {
            ack_delay_exponent: 3,
            ack_delay_max: Duration::from_millis(25),
            datagram_bytes_max: path::DATAGRAM_BYTES_MIN,
            idle_timeout: settings.idle_timeout,
        };
        let mut due = Due::default();
        if !new_token.is_empty() {
            due.new_token = Some(new_token.into());
            due.is_new_token_unsent = true;
        }
        let qlog = settings.qlog.clone().map(|sink| Box::new(QlogTrace::new(now, sink, &original_dcid, remote)));
        let mut connection = Self {
            state: State::Open,
            handshake: Some(Box::new(handshake)),
            data: PacketSpace::new(now),
            keys: None,
            path,
            previous: None,
            path_responses: Vec::new(),
            remote_ids: RemoteIds::new(client_scid),
            local_ids: LocalIds::new(),
            peer,
            streams: Streams::new(&settings.streams),
            events: VecDeque::new(),
            endpoint_events: VecDeque::new(),
            ready: VecDeque::new(),
            due,
            probe_timeouts: 0,
            lost_packets: 0,
            is_app_limited: true,
            idle_at: Some(now + settings.idle_timeout),
            has_sent_eliciting: false,
            pace_at: None,
            path_fails_at: None,
            skips_at: 0,
            id_bytes: own_id.id.len() as u8,
            random: seed,
            qlog,
            settings,
        };
        connection.skips_at = connection.next_skip(0);
        for datagram in datagrams {
            connection.handle_datagram(now, datagram);
        }
        connection
    }

    /// Takes IDs that the endpoint has made.
    pub fn handle_ids(&mut self, ids: Vec<IssuedId>) {
        self.local_ids.on_issued(ids);
    }

    /// Next event of the connection or its streams.
    pub fn poll_event(&mut self) -> Option<QuicEvent> {
        match self.events.pop_front() {
            Some(event) => Some(event),
            None => self.streams.poll_event().map(QuicEvent::Stream),
        }
    }

    /// Next message for the endpoint.
    pub fn poll_endpoint_event(&mut self) -> Option<EndpointEvent> {
        self.endpoint_events.pop_front()
    }

    /// Streams of the connection.
    pub fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    /// Has the peer acknowledge a packet.
    pub fn ping(&mut self) {
        self.due.ping = true;
    }

    /// Size of datagrams, in bytes.
    pub fn datagram_bytes(&self) -> u16 {
        self.path.mtu.current()
    }

    /// Bytes that may be on their way.
    pub fn congestion_window(&self) -> u64 {
        self.path.congestion.window()
    }

    /// Address of the peer.
    pub fn remote(&self) -> SocketAddr {
        self.path.remote
    }

    /// True until the handshake is complete.
    pub fn is_handshaking(&self) -> bool {
        self.handshake.is_some()
    }

    /// True if the connection is closed, by either side.
    pub fn is_closed(&self) -> bool {
        !matches!(self.state, State::Open)
    }

    /// True if no packet needs the connection any more.
    pub fn is_drained(&self) -> bool {
        matches!(self.state, State::Drained)
    }

    /// True if the client may send early data in this handshake.
    pub fn has_early_data(&self) -> bool {
        self.handshake.as_ref().is_some_and(|handshake| handshake.early.is_some())
    }

    /// TLS of the connection, during the handshake.
    pub fn session(&self) -> Option<&dyn TlsSession> {
        self.handshake.as_ref().map(|handshake| &*handshake.session)
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.streams.shrink();
        self.data.sent.shrink();
        self.data.received.shrink();
        self.events.shrink_to_fit();
        self.endpoint_events.shrink_to_fit();
        self.path_responses.shrink_to_fit();
    }

    /// Number that need not be secret.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Ends the connection without a packet.
    fn lose(&mut self, reason: LostReason) {
        if !self.is_closed() {
            self.events.push_back(QuicEvent::Lost(reason));
        }
        self.drain();
    }

    /// Ends the connection for good.
    fn drain(&mut self) {
        if !self.is_drained() {
            self.state = State::Drained;
            self.endpoint_events.push_back(EndpointEvent::Drained);
        }
    }

    /// Applies the transport parameters of the peer.
    fn on_peer_parameters(&mut self, parameters: &PeerParameters) {
        self.streams.on_peer_parameters(parameters);
        let own = self.settings.idle_timeout;
        let idle_timeout = match parameters.max_idle_timeout_ms {
            0 => own,
            theirs => own.min(Duration::from_millis(theirs)),
        };
        self.peer = Peer {
            ack_delay_exponent: parameters.ack_delay_exponent,
            ack_delay_max: Duration::from_millis(parameters.max_ack_delay_ms),
            datagram_bytes_max: parameters.max_udp_payload_bytes,
            idle_timeout,
        };
        self.path.mtu.set_peer_max(self.peer.datagram_bytes_max);
        // A peer without IDs of its own has nothing to move with, but its address may change all the same.
        self.local_ids.set_limit(parameters.active_connection_id_limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Connection>() <= 2_304, "{}", size_of::<Connection>());
    }
}
