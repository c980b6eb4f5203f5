//! Handshake: TLS in CRYPTO frames, and the keys that result (RFC 9001, section 4).

use std::collections::VecDeque;
use std::time::Instant;

use rustls::quic::{DirectionalKeys, KeyChange, Keys};

use super::keys::DataKeys;
use super::space::PacketSpace;
use super::{Connection, QuicEvent};
use crate::codec::VARINT_MAX;
use crate::error::TransportError;
use crate::id::ConnectionId;
use crate::packet::{PacketKind, Space};
use crate::parameters::{OwnParameters, PeerParameters};
use crate::tls::TlsSession;
use crate::types::{ConnectionParts, Datagram};

/// Packets that wait for their keys, because earlier ones are late: in number and in bytes.
const WAITING_MAX: usize = 10;
const WAITING_BYTES_MAX: usize = 12 << 10;

/// Alert for a message that came at the wrong time (RFC 8446, section 6).
const UNEXPECTED_MESSAGE: u8 = 10;

/// State of a handshake.
pub(super) struct Handshake {
    pub(super) session: Box<dyn TlsSession>,
    initial: Option<LongSpace>,
    handshake: Option<LongSpace>,
    /// Keys of the client's early data.
    pub(super) early: Option<DirectionalKeys>,
    /// Packets that can't be decrypted yet.
    waiting: VecDeque<Datagram>,
    waiting_bytes: usize,
    /// ID that the client has chosen for itself.
    client_id: ConnectionId,
    /// ID of this side, for long headers.
    pub(super) own_id: ConnectionId,
    has_parameters: bool,
}

/// Space of packets with long headers.
pub(super) struct LongSpace {
    pub(super) keys: Keys,
    pub(super) packets: PacketSpace,
}

/// Begins TLS, with the transport parameters of this side.
pub(super) fn start(parts: &ConnectionParts<'_>, random: [u8; 16]) -> Box<dyn TlsSession> {
    let settings = &parts.settings;
    let mut parameters = Vec::new();
    OwnParameters {
        max_idle_timeout_ms: settings.idle_timeout.as_millis() as u64,
        max_udp_payload_bytes: 65_527,
        initial_max_data: settings.streams.connection_window_bytes.min(VARINT_MAX),
        initial_max_stream_data_bidi_local: 0,
        initial_max_stream_data_bidi_remote: settings.streams.window_bytes.min(VARINT_MAX),
        initial_max_stream_data_uni: settings.streams.window_bytes.min(VARINT_MAX),
        initial_max_streams_bidi: settings.streams.bidi_max,
        initial_max_streams_uni: settings.streams.uni_max,
        active_connection_id_limit: super::ids::REMOTE_IDS_MAX as u64,
        stateless_reset_token: Some(parts.own_id.token),
        original_destination_connection_id: parts.original_dcid,
        initial_source_connection_id: parts.own_id.id,
        retry_source_connection_id: parts.retry_scid,
        ..OwnParameters::default()
    }
    .write(&mut parameters, random);
    parts.tls.start(parameters)
}

impl Handshake {
    pub(super) fn new(
        now: Instant,
        session: Box<dyn TlsSession>,
        keys: Keys,
        client_id: ConnectionId,
        own_id: ConnectionId,
    ) -> Self {
        Self {
            session,
            initial: Some(LongSpace { keys, packets: PacketSpace::new(now) }),
            handshake: None,
            early: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            client_id,
            own_id,
            has_parameters: false,
        }
    }

    pub(super) fn space(&self, space: Space) -> Option<&LongSpace> {
        match space {
            Space::Initial => self.initial.as_ref(),
            Space::Handshake => self.handshake.as_ref(),
            Space::Data => None,
        }
    }

    pub(super) fn space_mut(&mut self, space: Space) -> Option<&mut LongSpace> {
        match space {
            Space::Initial => self.initial.as_mut(),
            Space::Handshake => self.handshake.as_mut(),
            Space::Data => None,
        }
    }

    /// True if a packet of this kind may be decrypted later.
    pub(super) fn awaits_keys(&self, kind: PacketKind) -> bool {
        match kind {
            PacketKind::Handshake => self.handshake.is_none(),
            // Early data may be accepted when the client's first message is complete.
            PacketKind::ZeroRtt => self.early.is_none() && !self.has_parameters,
            // The server must not process requests before the handshake is complete (RFC 9001, section 5.7).
            PacketKind::OneRtt => true,
            PacketKind::Initial | PacketKind::Retry | PacketKind::VersionNegotiation => false,
        }
    }

    /// Keeps a packet until its keys are there.
    pub(super) fn keep(&mut self, packet: Datagram) {
        let bytes = packet.payload.len();
        if self.waiting.len() < WAITING_MAX && self.waiting_bytes + bytes <= WAITING_BYTES_MAX {
            self.waiting_bytes += bytes;
            self.waiting.push_back(packet);
        }
    }
}

impl Connection {
    /// Handles a CRYPTO frame.
    pub(super) fn on_crypto(
        &mut self,
        now: Instant,
        space: Space,
        offset: u64,
        data: &[u8],
    ) -> Result<(), TransportError> {
        let Some(handshake) = &mut self.handshake else {
            // Clients have nothing to say after the handshake (RFC 9001, section 6: no KeyUpdate).
            return Err(TransportError::alert(UNEXPECTED_MESSAGE, "the handshake is complete"));
        };
        let Handshake { session, initial, handshake: later, .. } = &mut **handshake;
        let is_late = space == Space::Initial && later.is_some();
        let long = match space {
            Space::Initial => initial.as_mut(),
            Space::Handshake => later.as_mut(),
            Space::Data => return Err(TransportError::alert(UNEXPECTED_MESSAGE, "the handshake is not complete")),
        };
        let Some(long) = long else { return Ok(()) };
        let before = long.packets.crypto.read_bytes();
        long.packets.crypto.receive(offset, data, &mut |bytes| {
            if is_late {
                return Err(TransportError::alert(UNEXPECTED_MESSAGE, "a message of the level before"));
            }
            session.read(bytes)
        })?;
        if long.packets.crypto.read_bytes() == before {
            return Ok(());
        }
        self.drive_handshake(now)?;
        self.release_waiting();
        Ok(())
    }

    /// Sends what TLS has to say, installs keys, and completes the handshake.
    fn drive_handshake(&mut self, now: Instant) -> Result<(), TransportError> {
        self.read_parameters()?;
        loop {
            let Some(handshake) = &mut self.handshake else { return Ok(()) };
            let mut output = Vec::new();
            let change = handshake.session.write(&mut output);
            let crypto = match (&mut handshake.handshake, &self.keys) {
                (_, Some(_)) => Some(&mut self.data.crypto),
                (Some(long), None) => Some(&mut long.packets.crypto),
                (None, None) => handshake.initial.as_mut().map(|long| &mut long.packets.crypto),
            };
            if let Some(crypto) = crypto {
                crypto.push(&output);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    handshake.handshake = Some(LongSpace { keys, packets: PacketSpace::new(now) });
                }
                Some(KeyChange::OneRtt { keys, next }) => self.keys = Some(DataKeys::new(keys, next)),
                None if output.is_empty() => break,
                None => {}
            }
        }
        if self.handshake.as_ref().is_some_and(|handshake| !handshake.session.is_handshaking()) && self.keys.is_some() {
            self.complete_handshake();
        }
        Ok(())
    }

    /// Reads the transport parameters of the client once.
    fn read_parameters(&mut self) -> Result<(), TransportError> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        if handshake.has_parameters {
            return Ok(());
        }
        let Some(bytes) = handshake.session.peer_parameters() else { return Ok(()) };
        let parameters = PeerParameters::read(bytes)?;
        if parameters.initial_source_connection_id != Some(handshake.client_id) {
            return Err(TransportError::transport_parameter("the parameters name another connection ID"));
        }
        handshake.has_parameters = true;
        handshake.early = handshake.session.early_keys();
        self.on_peer_parameters(&parameters);
        self.events.push_back(QuicEvent::HelloReceived);
        Ok(())
    }

    /// Ends the handshake. A server confirms it at once (RFC 9001, section 4.1.2).
    fn complete_handshake(&mut self) {
        let Some(handshake) = self.handshake.take() else { return };
        for long in [&handshake.initial, &handshake.handshake].into_iter().flatten() {
            self.path.in_flight = self.path.in_flight.saturating_sub(long.packets.sent.in_flight(self.path.number));
        }
        let Handshake { session, waiting, .. } = *handshake;
        self.path.is_validated = true;
        self.probe_timeouts = 0;
        self.due.handshake_done = true;
        self.events.push_back(QuicEvent::Connected(session));
        self.request_ids();
        self.ready = waiting;
    }

    /// Drops the keys of Initial packets, because the client has those that follow (RFC 9001, section 4.9.1).
    pub(super) fn drop_initial(&mut self) {
        let Some(handshake) = &mut self.handshake else { return };
        if let Some(long) = handshake.initial.take() {
            self.path.in_flight = self.path.in_flight.saturating_sub(long.packets.sent.in_flight(self.path.number));
            self.probe_timeouts = 0;
        }
    }

    /// Lets packets whose keys may be there now be handled.
    pub(super) fn release_waiting(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.waiting_bytes = 0;
            self.ready.append(&mut handshake.waiting);
        }
    }

    /// Requests IDs that the peer may use after it has moved.
    pub(super) fn request_ids(&mut self) {
        if let Some(count) = self.local_ids.request() {
            self.endpoint_events.push_back(crate::types::EndpointEvent::NeedIds(count));
        }
    }
}
