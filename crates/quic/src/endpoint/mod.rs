//! Endpoint: finds the connection of each datagram, and makes connections of new clients.
//!
//! A datagram with an ID that the endpoint has issued costs one look-up. The first packet of a client costs the derivation of
//! its keys and one decryption. A forged one costs not more, and leaves nothing in memory.

mod incoming;
mod reset;
mod routes;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::rand;
use rustls::quic::Keys;

use self::incoming::{IncomingState, Waiting, WaitingLimits, exact};
use self::reset::{RESET_BYTES_MIN, ResetKey, ResponseBudget};
use self::routes::{RouteTarget, Routes};
use self::token::{Checked, Tokens};
use crate::connection::Connection;
use crate::error::TransportError;
use crate::frame::write_close;
use crate::id::{ConnectionId, IdSource};
use crate::packet::{
    HeaderError, PacketHeader, PacketKind, PacketWriter, expand_number, read_header, unprotect, write_retry,
    write_version_negotiation,
};
use crate::tls::TlsServer;
use crate::types::{
    ConnectionKey, ConnectionParts, Datagram, EndpointConfig, EndpointEvent, IssuedId, Transmit, TransportSettings,
};

pub use incoming::NewClient;

/// Smallest datagram with an Initial packet (RFC 9000, section 14.1).
const INITIAL_DATAGRAM_BYTES_MIN: usize = 1_200;

/// Shortest destination ID that a client may choose (RFC 9000, section 7.2).
const FIRST_ID_BYTES_MIN: usize = 8;

/// New IDs that are tried before the endpoint stops issuing some. IDs are long enough that the first one is free.
const ID_TRIES_MAX: usize = 16;

/// Finder of connections, and maker of new ones. Has no sockets, no clock, and no connections: the caller keeps these.
pub struct ServerEndpoint {
    ids: Box<dyn IdSource>,
    /// Length of own IDs.
    id_bytes: usize,
    /// TLS for the first packets of clients; `None` accepts no new clients.
    server: Option<Arc<dyn TlsServer>>,
    reset_key: ResetKey,
    tokens: Tokens,
    routes: Routes,
    waiting: Waiting,
    responses: ResponseBudget,
    /// Copy of a first packet that is decrypted. Kept for its capacity, which is at most that of a datagram.
    scratch: Vec<u8>,
}

/// Result of [`ServerEndpoint::handle`].
pub enum Handled {
    /// The datagram belongs to a connection.
    Connection(ConnectionKey, Datagram),
    /// A new client has sent its first packet.
    NewClient(NewClient),
    /// The endpoint responds itself. The payload is at the end of the buffer that was passed.
    Response(Transmit),
    /// The datagram needs nothing more.
    Dropped,
}

/// Error of [`ServerEndpoint::accept`]: there is no place or no ID for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl ServerEndpoint {
    /// Makes an endpoint that accepts no clients yet.
    pub fn new(config: EndpointConfig, ids: Box<dyn IdSource>) -> Self {
        let limits = WaitingLimits {
            clients: config.incoming_max,
            bytes: config.incoming_bytes_max,
            total_bytes: config.incoming_total_bytes_max,
        };
        Self {
            id_bytes: ids.id_bytes(),
            ids,
            server: None,
            reset_key: ResetKey::new(&config.reset_key),
            tokens: Tokens::new(&config.token_key, config.retry_lifetime, config.token_lifetime),
            routes: Routes::default(),
            waiting: Waiting::new(limits),
            responses: ResponseBudget::default(),
            scratch: Vec::new(),
        }
    }

    /// Sets the TLS with which new clients begin. With `None`, their packets are dropped.
    pub fn set_accepts(&mut self, server: Option<Arc<dyn TlsServer>>) {
        self.server = server;
    }

    /// Number of connections that are not drained.
    pub fn connections(&self) -> usize {
        self.routes.len()
    }

    /// Finds the receiver of a datagram. A response is appended to `out`.
    pub fn handle(&mut self, now: Instant, datagram: Datagram, out: &mut Vec<u8>) -> Handled {
        let payload = &datagram.payload[..];
        match payload.first() {
            Some(first) if first & 0x80 == 0 => {
                match payload.get(1..1 + self.id_bytes).and_then(|id| self.routes.by_own(id)) {
                    Some(key) => Handled::Connection(key, datagram),
                    None => self.handle_unknown(now, datagram, out),
                }
            }
            Some(_) => self.handle_long(now, datagram, out),
            None => Handled::Dropped,
        }
    }

    /// Handles a datagram with a short header whose ID is not in use.
    #[cold]
    fn handle_unknown(&mut self, now: Instant, datagram: Datagram, out: &mut Vec<u8>) -> Handled {
        let payload = &datagram.payload[..];
        if payload.len() < RESET_BYTES_MIN {
            return Handled::Dropped;
        }
        if let Some(key) = self.routes.by_reset(datagram.remote, payload) {
            return Handled::Connection(key, datagram);
        }
        let id = payload.get(1..1 + self.id_bytes).and_then(ConnectionId::new);
        let Some(id) = id.filter(|id| !id.is_empty() && self.ids.is_own(id)) else { return Handled::Dropped };
        let before = out.len();
        let is_written = self.responses.take(now) && self.reset_key.write_reset(out, &id, payload.len());
        if is_written { Handled::Response(response(&datagram, out.len() - before)) } else { Handled::Dropped }
    }

    /// Handles a datagram with a long header.
    fn handle_long(&mut self, now: Instant, datagram: Datagram, out: &mut Vec<u8>) -> Handled {
        let payload = &datagram.payload[..];
        // Version 1, then the destination ID after its length.
        if let [_, 0, 0, 0, 1, id_bytes, rest @ ..] = payload
            && let Some(id) = rest.get(..usize::from(*id_bytes))
        {
            if id.len() == self.id_bytes
                && let Some(key) = self.routes.by_own(id)
            {
                return Handled::Connection(key, datagram);
            }
            match self.routes.by_first(id) {
                Some(RouteTarget::Connection(number)) => {
                    return Handled::Connection(ConnectionKey(number as usize), datagram);
                }
                Some(RouteTarget::Waiting(number)) => {
                    self.waiting.keep(number, datagram);
                    return Handled::Dropped;
                }
                None => {}
            }
        }
        if self.server.is_none() || payload.len() < INITIAL_DATAGRAM_BYTES_MIN {
            return Handled::Dropped;
        }
        match read_header(payload, self.id_bytes) {
            Ok(header) if header.kind == PacketKind::Initial => self.handle_first(datagram, &header, out),
            Err(HeaderError::UnknownVersion { destination, source }) if self.responses.take(now) => {
                let (before, mut random) = (out.len(), [0]);
                if rand::fill(&mut random).is_err() {
                    return Handled::Dropped;
                }
                write_version_negotiation(out, source, destination, random[0]);
                Handled::Response(response(&datagram, out.len() - before))
            }
            _ => Handled::Dropped,
        }
    }

    /// Handles the first packet of a client.
    fn handle_first(&mut self, datagram: Datagram, header: &PacketHeader, out: &mut Vec<u8>) -> Handled {
        let dcid = header.destination;
        // After a Retry packet, clients use an ID of this server, which may be shorter.
        let may_be_own = !header.token.is_empty() && dcid.len() == self.id_bytes;
        let Some(server) = self.server.as_ref().filter(|_| dcid.len() >= FIRST_ID_BYTES_MIN || may_be_own) else {
            return Handled::Dropped;
        };
        if self.waiting.is_full() {
            return Handled::Dropped;
        }
        let keys = server.initial_keys(&dcid);
        let packet = datagram.payload.get(..header.end).unwrap_or_default();
        if !can_decrypt(&keys, packet, header.number_at, &mut self.scratch) {
            return Handled::Dropped;
        }
        let token = packet.get(header.token.clone()).unwrap_or_default();
        let (is_validated, original_dcid) = match self.tokens.check(token, datagram.remote, &dcid) {
            Checked::Unknown => (false, None),
            Checked::Known => (true, None),
            Checked::Retry { original_dcid } => (true, Some(original_dcid)),
            Checked::BadRetry => {
                let before = out.len();
                let is_written = self.write_refusal(out, &keys, header);
                return match is_written {
                    Ok(()) => Handled::Response(response(&datagram, out.len() - before)),
                    Err(_) => Handled::Dropped,
                };
            }
        };
        let Some(number) = self.waiting.add() else { return Handled::Dropped };
        self.routes.wait(dcid, number);
        Handled::NewClient(NewClient(Box::new(IncomingState {
            number,
            client_scid: header.source,
            dcid,
            original_dcid,
            is_validated,
            keys,
            datagram: exact(datagram),
        })))
    }

    /// Appends the packet that rejects a client whose Retry token is not valid (RFC 9000, section 8.1.3). The server keeps no
    /// state of it.
    fn write_refusal(&mut self, out: &mut Vec<u8>, keys: &Keys, header: &PacketHeader) -> Result<(), TransportError> {
        let own_id = self.ids.next_id();
        let packet = PacketWriter::long(out, PacketKind::Initial, &header.source, &own_id, &[], 0, None);
        write_close(out, false, TransportError::INVALID_TOKEN, 0, b"invalid Retry token", usize::MAX);
        packet.finish(out, 0, &*keys.local.packet, &*keys.local.header)
    }

    /// Makes the connection of a new client.
    ///
    /// # Errors
    /// There is no place or no ID for it. The client is ignored.
    pub fn accept(
        &mut self,
        incoming: NewClient,
        now: Instant,
        server: &Arc<dyn TlsServer>,
        transport: &TransportSettings,
    ) -> Result<(ConnectionKey, Connection), Refused> {
        let (key, parts) = self.begin(incoming, now, server, transport)?;
        Ok((key, Connection::new(parts)))
    }

    fn begin<'a>(
        &mut self,
        incoming: NewClient,
        now: Instant,
        server: &'a Arc<dyn TlsServer>,
        transport: &TransportSettings,
    ) -> Result<(ConnectionKey, ConnectionParts<'a>), Refused> {
        let further = self.remove(&incoming).ok_or(Refused)?;
        let state = *incoming.0;
        let (remote, local) = (state.datagram.remote, state.datagram.local);
        let key = self.routes.add(state.dcid).ok_or(Refused)?;
        self.routes.reserve(key, 1);
        let Some(own_id) = self.issue(key) else {
            self.routes.remove(key);
            return Err(Refused);
        };
        let mut datagrams = Vec::with_capacity(1 + further.len());
        datagrams.push(state.datagram);
        datagrams.extend(further);
        let parts = ConnectionParts {
            now,
            remote,
            local,
            is_validated: state.is_validated,
            client_scid: state.client_scid,
            original_dcid: state.original_dcid.unwrap_or(state.dcid),
            // The client sends to the ID that the Retry packet has named.
            retry_scid: state.original_dcid.map(|_| state.dcid),
            own_id,
            initial_keys: state.keys,
            datagrams,
            new_token: self.tokens.new_token(remote.ip()).unwrap_or_default(),
            tls: server,
            settings: transport.clone(),
        };
        Ok((key, parts))
    }

    /// Demands a token from a new client, by a Retry packet (RFC 9000, section 8.1.2), which is appended to `out`. The server
    /// keeps no state of the client. Returns `None` if the client has answered such a packet already; it is ignored then.
    pub fn retry(&mut self, incoming: NewClient, out: &mut Vec<u8>) -> Option<Transmit> {
        let is_known = self.remove(&incoming).is_some();
        if !is_known || !incoming.may_retry() {
            return None;
        }
        let state = *incoming.0;
        let (before, own_id) = (out.len(), self.ids.next_id());
        let token = self.tokens.retry_token(state.datagram.remote, &state.dcid, &own_id)?;
        write_retry(out, &state.client_scid, &own_id, &state.dcid, &token);
        Some(response(&state.datagram, out.len() - before))
    }

    /// Drops a new client. It may send its packet again.
    pub fn ignore(&mut self, incoming: NewClient) {
        self.remove(&incoming);
    }

    /// Removes a client from those that wait. Returns its further datagrams; `None` if it is one of another endpoint.
    fn remove(&mut self, incoming: &NewClient) -> Option<Vec<Datagram>> {
        let state = &*incoming.0;
        self.routes.stop_waiting(&state.dcid, state.number).then(|| self.waiting.remove(state.number))
    }

    /// Handles an event of a connection. Returns new IDs for it.
    pub fn handle_event(&mut self, key: ConnectionKey, event: EndpointEvent) -> Option<Vec<IssuedId>> {
        match event {
            EndpointEvent::NeedIds(count) => {
                self.routes.reserve(key, count);
                let ids: Vec<_> = (0..count).map_while(|_| self.issue(key)).collect();
                return (!ids.is_empty()).then_some(ids);
            }
            EndpointEvent::RetiredId { sequence } => self.routes.retire(key, sequence),
            EndpointEvent::ResetToken { remote, token } => self.routes.set_reset(key, remote, token),
            EndpointEvent::Drained => self.routes.remove(key),
        }
        None
    }

    /// Issues an ID to a connection.
    fn issue(&mut self, key: ConnectionKey) -> Option<IssuedId> {
        (0..ID_TRIES_MAX).find_map(|_| {
            let id = self.ids.next_id();
            let sequence = self.routes.issue(key, id)?;
            Some(IssuedId { sequence, id, token: self.reset_key.token(&id) })
        })
    }
}

/// True if the client's keys decrypt the packet. Decrypts a copy in `scratch`, because the connection needs the packet as it is.
fn can_decrypt(keys: &Keys, packet: &[u8], number_at: usize, scratch: &mut Vec<u8>) -> bool {
    scratch.clear();
    scratch.extend_from_slice(packet);
    let Some(number) = unprotect(scratch, number_at, &*keys.remote.header) else { return false };
    let Some((head, body)) = scratch.split_at_mut_checked(number_at + number.bytes) else { return false };
    let number = expand_number(number.truncated, number.bytes, None);
    keys.remote.packet.decrypt_in_place(number, head, body).is_ok()
}

/// Datagram of `bytes` that answers another one.
fn response(datagram: &Datagram, bytes: usize) -> Transmit {
    Transmit { remote: datagram.remote, local: datagram.local, ecn: None, bytes, segment_bytes: None }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no place for a connection")
    }
}

impl std::error::Error for Refused {}
