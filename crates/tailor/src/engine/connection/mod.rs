//! A slot: one simulated client with at most one connection at a time.

mod ending;
mod http1;
mod http2;
mod http3;
mod line;
mod session;
mod sockets;
mod streams;
mod web_socket;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustls::{ClientConnection, HandshakeKind};
use wire::http::Version;

use super::clock::{MILLISECOND, Nanos, SECOND};
use super::failure::{FailureClass, FailureReason};
use super::line::{Credit, LINE_TICK};
use super::plan::LoadVersion;
use super::protocol::ClientProtocol;
use super::scenario::Session;
use super::shared::ThreadShared;
use super::window::CongestionWindow;
use super::workload::RequestForm;

/// Maximum number of reads from a connection in one turn.
const READS_MAX: usize = 16;
/// Pause after a failed connect, so that the client does not flood a server that is down. It doubles with each further
/// failure in a row.
const REST: Nanos = 10 * MILLISECOND;
/// Time limit for the server to close a connection after it announced that. If the server closes first, TIME_WAIT is on
/// its side and the client's ports stay free.
const CLOSING_MAX: Nanos = SECOND;

/// Unsent bytes from which a connection with control frames reads no more. A server that does not read its responses
/// must not fill the client's memory.
const UNSENT_MAX: usize = 1 << 20;

/// Rate of a line that only simulates latency.
const UNLIMITED_BITS_PER_SECOND: u64 = 100_000_000_000;

/// A slot: one simulated client.
#[derive(Debug)]
pub(crate) struct LoadConnection {
    slot: u32,
    /// Incremented for each connection, to recognize events of earlier ones.
    generation: u32,
    phase: LoadPhase,
    socket: Option<OwnedFd>,
    tls: Option<Box<ClientConnection>>,
    is_readable: bool,
    is_writable: bool,
    is_peer_closed: bool,
    version: Version,
    /// Requests that may still be sent on this connection.
    requests_left: u32,
    /// Due time of a request that waits for the connection.
    claimed: Option<Nanos>,
    /// Requests in flight, in the order they were sent.
    in_flight: VecDeque<SentRequest>,
    /// Time up to which requests in flight are included in the usage.
    used_until: Nanos,
    protocol: ClientProtocol,
    /// Received bytes of incomplete responses.
    response_bytes: u64,
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Start of the current phase.
    since: Nanos,
    /// Time when TCP was connected.
    connected_at: Nanos,
    /// Pause after the next failed connect.
    rest: Nanos,
    rests_until: Nanos,
    is_idle: bool,
    timer_at: Nanos,
    receive_credit: Option<Credit>,
    send_credit: Option<Credit>,
    usage: LineUsage,
    /// Window of the server on a simulated line.
    window: Option<CongestionWindow>,
    /// Time that lost packets add to the TCP handshake.
    handshake_wait: Nanos,
    /// State of the user, if the plan has scenarios.
    session: Option<Box<Session>>,
}

/// Traffic on a slot's line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LineUsage {
    /// Bytes of responses, complete or not.
    pub bytes: u64,
    /// Time with a request in flight, or with a connection that failed.
    pub busy: Nanos,
    /// All received bytes.
    pub received_bytes: u64,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadPhase {
    Closed,
    Connecting,
    Handshaking,
    /// The handshake of WebSocket was sent.
    Upgrading,
    Open,
    /// All requests are finished; the server must close.
    Closing,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    request: u32,
    due: Nanos,
    sent: Nanos,
    /// Received bytes after which the client aborts.
    abort_after_bytes: u64,
}

impl LoadConnection {
    pub(crate) fn new(slot: u32, shared: &ThreadShared) -> Self {
        let line = shared.plan.line;
        // A line that only has latency is very fast.
        let rate_min = line.filter(|line| line.latency > 0).map(|_| UNLIMITED_BITS_PER_SECOND);
        Self {
            slot,
            generation: 0,
            phase: LoadPhase::Closed,
            socket: None,
            tls: None,
            is_readable: false,
            is_writable: false,
            is_peer_closed: false,
            version: Version::Http11,
            requests_left: 0,
            claimed: None,
            in_flight: VecDeque::with_capacity(shared.plan.pipeline),
            used_until: 0,
            protocol: ClientProtocol::default(),
            response_bytes: 0,
            unsent: Vec::new(),
            unsent_at: 0,
            since: 0,
            connected_at: 0,
            rest: REST,
            rests_until: 0,
            is_idle: false,
            timer_at: Nanos::MAX,
            receive_credit: line.and_then(|line| line.receive_bits_per_second.or(rate_min)).map(Credit::new),
            send_credit: line.and_then(|line| line.send_bits_per_second.or(rate_min)).map(Credit::new),
            usage: LineUsage::default(),
            window: None,
            handshake_wait: 0,
            session: shared.plan.scenarios.as_ref().map(|set| Box::new(Session::new(set))),
        }
    }

    /// Starts the slot: sends the first request (closed loop) or connects in advance (open loop).
    pub(crate) fn start(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if shared.arrivals.is_open() {
            self.connect(shared, now);
        } else {
            self.fill(shared, now);
        }
    }

    /// Passes on a due request from the dispatcher of the open loop.
    pub(crate) fn wake(&mut self, shared: &mut ThreadShared, now: Nanos) {
        self.is_idle = false;
        self.fill(shared, now);
    }

    /// Returns whether an event belongs to the current connection.
    pub(crate) fn is_current(&self, generation: u32) -> bool {
        self.generation == generation
    }

    /// Handles an event of the socket.
    pub(crate) fn on_event(&mut self, flags: epoll::EventFlags, shared: &mut ThreadShared, now: Nanos) {
        use epoll::EventFlags as Flags;
        self.is_writable |= flags.intersects(Flags::OUT | Flags::ERR | Flags::HUP);
        self.is_readable |= flags.intersects(Flags::IN | Flags::RDHUP | Flags::ERR | Flags::HUP);
        // A UDP socket has no end.
        self.is_peer_closed |= self.socket.is_some() && flags.intersects(Flags::RDHUP | Flags::ERR | Flags::HUP);
        self.drive(shared, now);
    }

    /// Handles an expired timer of this slot.
    pub(crate) fn on_timer(&mut self, shared: &mut ThreadShared, now: Nanos) {
        self.timer_at = Nanos::MAX;
        self.drive(shared, now);
    }

    /// Checks the time limit of the current phase.
    pub(crate) fn check_time(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let time_out = super::clock::nanos(shared.plan.time_out);
        match self.phase {
            LoadPhase::Connecting | LoadPhase::Handshaking | LoadPhase::Upgrading if self.since + time_out <= now => {
                self.fail(FailureClass::TimeOut, FailureReason::Text("no connection in time"), shared, now);
            }
            LoadPhase::Open if shared.plan.version.has_streams() && shared.plan.web_socket.is_none() => {
                self.check_streams(time_out, shared, now)
            }
            LoadPhase::Open if self.in_flight.front().is_some_and(|exchange| exchange.sent + time_out <= now) => {
                self.fail(FailureClass::TimeOut, FailureReason::Unknown, shared, now);
            }
            LoadPhase::Closing if self.since + CLOSING_MAX <= now => self.close_and_go_on(shared, now),
            _ => {}
        }
    }

    /// Advances the connection as far as possible.
    fn drive(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if matches!(self.protocol, ClientProtocol::Http3(_)) {
            return self.drive_http3(shared, now);
        }
        if self.phase == LoadPhase::Connecting && (self.is_writable || self.is_peer_closed) {
            self.on_connected(shared, now);
        }
        match self.phase {
            // An earlier timer of the slot has taken the place of the one at the end of the rest.
            LoadPhase::Closed if !self.is_idle && now < self.rests_until => self.set_timer(self.rests_until, shared),
            LoadPhase::Closed if !self.is_idle => self.fill(shared, now),
            LoadPhase::Handshaking | LoadPhase::Upgrading | LoadPhase::Open | LoadPhase::Closing => {
                self.flush(shared, now);
                self.read(shared, now);
                if self.unsent.is_empty() && (self.protocol.has_content_to_send() || self.is_step_due(now)) {
                    self.fill(shared, now);
                }
            }
            _ => {}
        }
    }

    /// Events of a socket: edge-triggered and all, so that they are registered once and never changed.
    const EVENTS: epoll::EventFlags = epoll::EventFlags::IN
        .union(epoll::EventFlags::OUT)
        .union(epoll::EventFlags::RDHUP)
        .union(epoll::EventFlags::ET);

    /// Mark by which events name the current connection.
    fn event_data(&self) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.generation) << 32 | u64::from(self.slot))
    }

    fn connect(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if shared.plan.version == LoadVersion::Http3 {
            return self.connect_quic(shared, now);
        }
        let socket = match shared.connector.open() {
            Ok(socket) => socket,
            Err(errno) => return self.fail_to_connect(errno, shared, now),
        };
        self.generation = self.generation.wrapping_add(1);
        if let Err(errno) = epoll::add(&shared.epoll, &socket, self.event_data(), Self::EVENTS) {
            return self.fail_to_connect(errno, shared, now);
        }
        self.socket = Some(socket);
        self.phase = LoadPhase::Connecting;
        self.since = now;
        self.draw_persistence(shared);
        self.begin_line(shared);
    }

    /// Draws the persistence of this connection.
    fn draw_persistence(&mut self, shared: &mut ThreadShared) {
        let persistence = &shared.plan.persistence;
        let is_kept_alive = persistence.keep_alive_share >= 1.0 || shared.rng.f64() < persistence.keep_alive_share;
        self.requests_left = if is_kept_alive { shared.rng.u32(persistence.requests.clone()) } else { 1 };
        let http10_share = if is_kept_alive { persistence.http10_share } else { persistence.http10_single_share };
        let is_http10 = http10_share > 0.0 && shared.rng.f64() < http10_share;
        self.version = if is_http10 { Version::Http10 } else { Version::Http11 };
    }

    fn on_connected(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let Some(socket) = &self.socket else { return };
        if let Ok(Err(errno)) | Err(errno) = sockopt::socket_error(socket) {
            return self.fail_to_connect(errno, shared, now);
        }
        if let Some(line) = shared.plan.line.filter(|line| line.latency > 0) {
            // On a real line the TCP handshake takes a round trip.
            let connected_at = self.since + line.latency + self.handshake_wait;
            if now < connected_at {
                return self.set_timer(connected_at, shared);
            }
        }
        self.connected_at = now;
        match &shared.plan.tls {
            None => self.on_open(shared, now),
            Some((config, name)) => match ClientConnection::new(config.clone(), name.clone()) {
                Ok(mut tls) => {
                    // The request limits the unsent bytes; a limit here would reject long requests.
                    tls.set_buffer_limit(None);
                    self.tls = Some(Box::new(tls));
                    self.phase = LoadPhase::Handshaking;
                    self.encrypt();
                    self.hold_request(shared, now);
                }
                Err(error) => self.fail_by_tls(&error, shared, now),
            },
        }
    }

    fn on_open(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if let Some(handshake) = shared.plan.web_socket.as_ref().map(Arc::clone) {
            return match handshake.http2 {
                Some(_) => self.begin_sockets(shared, now),
                None => self.upgrade(&handshake, shared, now),
            };
        }
        self.count_connection(shared, now);
        self.phase = LoadPhase::Open;
        if shared.plan.version == LoadVersion::Http2 && !self.begin_http2(shared, now) {
            return self.fail_without_http2(shared, now);
        }
        self.fill(shared, now);
    }

    /// Counts an established connection.
    fn count_connection(&mut self, shared: &mut ThreadShared, now: Nanos) {
        self.rest = REST;
        shared.record.connections += 1;
        shared.record.connect.saturating_record(now.saturating_sub(self.since));
        if let Some(tls) = &self.tls {
            shared.record.handshake.saturating_record(now.saturating_sub(self.connected_at));
            match tls.handshake_kind() {
                Some(HandshakeKind::Resumed) => shared.record.handshakes.resumed += 1,
                _ => shared.record.handshakes.full += 1,
            }
        }
    }

    /// Sends as many requests as are due and permitted. One write sends all of them.
    fn fill(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if self.phase == LoadPhase::Closed {
            self.claimed = self.claimed.or_else(|| self.claim(shared, now));
            return if self.claimed.is_some() { self.connect(shared, now) } else { self.idle(shared) };
        }
        if self.has_finished_streams(shared) {
            return match self.protocol {
                ClientProtocol::Http3(_) => self.end_http3(shared, now),
                ClientProtocol::Http2Sockets(_) => self.end_sockets(shared, now),
                _ => self.end_http2(shared, now),
            };
        }
        if self.phase == LoadPhase::Upgrading {
            return self.send_handshakes(shared, now);
        }
        // The server has closed the connection. It is not used again; the next read finds its end.
        if self.phase != LoadPhase::Open || (self.is_peer_closed && self.in_flight.is_empty()) {
            return;
        }
        shared.output.clear();
        while self.has_room(shared) {
            let Some(due) = self.claimed.take().or_else(|| self.claim(shared, now)) else { break };
            self.send_request(due, shared, now);
        }
        self.flush_http3(shared, now);
        self.take_http2_output(shared, now);
        self.take_web_socket_output(shared, now);
        self.take_sockets_output(shared, now);
        if !shared.output.is_empty() {
            self.transmit(shared, now);
        }
        if self.phase == LoadPhase::Open && self.takes_more(shared) {
            self.idle(shared);
        }
    }

    /// Returns whether another request may be sent now.
    fn has_room(&self, shared: &ThreadShared) -> bool {
        self.in_flight.len() < shared.plan.pipeline && self.requests_left > 0 && self.protocol.takes_requests()
    }

    /// Returns whether the connection accepts a due request. An HTTP/1 connection must have no response in flight,
    /// because the request would wait for it.
    fn takes_more(&self, shared: &ThreadShared) -> bool {
        match self.protocol {
            ClientProtocol::Http1(_) => self.in_flight.is_empty(),
            ClientProtocol::Http2(_)
            | ClientProtocol::Http3(_)
            | ClientProtocol::WebSocket(_)
            | ClientProtocol::Http2Sockets(_) => self.has_room(shared),
        }
    }

    /// Appends the next request to the unsent bytes.
    fn send_request(&mut self, due: Nanos, shared: &mut ThreadShared, now: Nanos) {
        let request = match &self.session {
            Some(session) => session.request(),
            None => shared.workload.next(&mut shared.rng),
        };
        if let Some(tally) = shared.tallies.get_mut(request as usize) {
            tally.sent += 1;
        }
        self.requests_left -= 1;
        match &mut self.protocol {
            ClientProtocol::Http1(_) => {
                let form = RequestForm { version: self.version, is_last: self.requests_left == 0 };
                match &mut self.session {
                    Some(session) => {
                        session.write_request(form.connection_field(), &mut shared.rng, &mut shared.output);
                    }
                    None => shared.output.extend_from_slice(shared.requests[request as usize].encoded(form)),
                }
            }
            ClientProtocol::Http2(http2) => http2.request(request, shared, now),
            ClientProtocol::Http3(http3) => http3.request(request, shared, now),
            ClientProtocol::WebSocket(_) => {
                let form = RequestForm { version: Version::Http11, is_last: false };
                shared.output.extend_from_slice(shared.requests[request as usize].encoded(form));
            }
            ClientProtocol::Http2Sockets(sockets) => {
                let form = RequestForm { version: Version::Http11, is_last: false };
                sockets.send(shared.requests[request as usize].encoded(form), shared, now);
            }
        }
        let abort_after_bytes = match shared.plan.abort {
            Some(abort) if shared.rng.f64() < abort.share => abort.after_bytes,
            _ => u64::MAX,
        };
        if self.in_flight.is_empty() {
            self.used_until = now;
        }
        self.in_flight.push_back(SentRequest { request, due, sent: now, abort_after_bytes });
    }

    /// Waits for a due request.
    fn idle(&mut self, shared: &mut ThreadShared) {
        if shared.arrivals.is_open() && !self.is_idle && !self.is_in_run() {
            self.is_idle = true;
            shared.idle_slots.push_back(self.slot);
        }
    }

    /// Sends the thread's output buffer.
    fn transmit(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if let Some(tls) = &mut self.tls {
            if std::io::Write::write_all(&mut tls.writer(), &shared.output).is_err() {
                return self.fail(FailureClass::Tls, FailureReason::Unknown, shared, now);
            }
            self.encrypt();
            self.hold_request(shared, now);
            return self.flush(shared, now);
        }
        let is_direct = self.unsent.is_empty() && self.is_writable && shared.plan.line.is_none();
        let Some(socket) = self.socket.as_ref().filter(|_| is_direct) else {
            self.unsent.extend_from_slice(&shared.output);
            self.hold_request(shared, now);
            return self.flush(shared, now);
        };
        let sent_bytes = match send(socket, &shared.output, SendFlags::NOSIGNAL) {
            Ok(sent_bytes) => sent_bytes,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(errno) => return self.fail_to_send(errno, shared, now),
        };
        shared.record.bytes_sent += sent_bytes as u64;
        if sent_bytes < shared.output.len() {
            self.unsent.extend_from_slice(&shared.output[sent_bytes..]);
            self.flush(shared, now);
        }
    }

    /// Moves TLS records to the unsent bytes.
    fn encrypt(&mut self) {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                // Writing to memory cannot fail.
                let _ = tls.write_tls(&mut self.unsent);
            }
        }
    }

    /// Sends unsent bytes, as far as socket and line accept them.
    fn flush(&mut self, shared: &mut ThreadShared, now: Nanos) {
        while self.unsent_at < self.unsent.len() && self.is_writable {
            let Some(socket) = &self.socket else { return };
            let mut length = self.unsent.len() - self.unsent_at;
            if let Some(credit) = &mut self.send_credit {
                credit.begin(now);
                let ready_at = credit.ready_at(Some(length as u64));
                if now < ready_at {
                    return self.set_timer(ready_at, shared);
                }
                length = length.min(usize::try_from(credit.allowed_bytes(now)).unwrap_or(usize::MAX));
            }
            match send(socket, &self.unsent[self.unsent_at..][..length], SendFlags::NOSIGNAL) {
                Ok(sent_bytes) => {
                    self.unsent_at += sent_bytes;
                    shared.record.bytes_sent += sent_bytes as u64;
                    if let Some(credit) = &mut self.send_credit {
                        credit.pay(sent_bytes as u64);
                    }
                }
                Err(Errno::AGAIN) => self.is_writable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return self.fail_to_send(errno, shared, now),
            }
        }
        if self.unsent_at == self.unsent.len() {
            self.unsent.clear();
            self.unsent_at = 0;
            if let Some(credit) = &mut self.send_credit {
                credit.end();
            }
        }
    }

    /// Reads from the socket as far as the line permits.
    fn read(&mut self, shared: &mut ThreadShared, mut now: Nanos) {
        let mut input = std::mem::take(&mut shared.input);
        let generation = self.generation;
        let mut reads = 0;
        while self.is_readable && self.generation == generation {
            if reads == READS_MAX {
                self.set_timer(now, shared);
                break;
            }
            if self.unsent.len() > UNSENT_MAX && self.protocol.responds_to_input() {
                break; // The event for room in the socket continues.
            }
            reads += 1;
            let Some(length) = self.receivable_bytes(input.len(), shared, now) else { break };
            let Some(socket) = &self.socket else { break };
            match recv(socket, &mut input[..length], RecvFlags::empty()) {
                Ok((0, _)) => {
                    self.is_readable = false;
                    // Over TLS an end without close_notify may come from an attacker, so the response is incomplete
                    // (RFC 9112, section 9.8).
                    match self.tls {
                        None => self.on_peer_closed(shared, now),
                        Some(_) => {
                            let reason = FailureReason::Text("the server closed the connection without close_notify");
                            self.on_peer_reset(reason, shared, now);
                        }
                    }
                }
                Ok((received_bytes, _)) => {
                    now = shared.clock.now();
                    // A short read has emptied the socket. New data triggers a new event, but the event for the end of
                    // the connection may already have come.
                    if received_bytes < length && !self.is_peer_closed {
                        self.is_readable = false;
                    }
                    if let Some(window) = &mut self.window {
                        window.pay(received_bytes as u64, now, &mut shared.rng);
                    }
                    if let Some(credit) = &mut self.receive_credit {
                        credit.pay(received_bytes as u64);
                        if received_bytes < length {
                            credit.end();
                        }
                    }
                    shared.record.bytes_received += received_bytes as u64;
                    self.usage.received_bytes += received_bytes as u64;
                    self.feed(&input[..received_bytes], shared, now);
                }
                Err(Errno::AGAIN) => {
                    self.is_readable = false;
                    if let Some(credit) = &mut self.receive_credit {
                        credit.end();
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.is_readable = false;
                    self.on_peer_reset(FailureReason::of_errno(errno), shared, now);
                }
            }
        }
        shared.input = input;
    }

    fn set_timer(&mut self, at: Nanos, shared: &mut ThreadShared) {
        let at = if shared.plan.line.is_some() { at.next_multiple_of(LINE_TICK) } else { at };
        if at < self.timer_at {
            self.timer_at = at;
            shared.timers.push(std::cmp::Reverse((at, self.slot)));
        }
    }

    /// Handles bytes from the socket; decrypts them if necessary.
    fn feed(&mut self, bytes: &[u8], shared: &mut ThreadShared, now: Nanos) {
        let Some(mut tls) = self.tls.take() else { return self.feed_plain(bytes, shared, now) };
        let generation = self.generation;
        let mut plaintext = std::mem::take(&mut shared.plaintext);
        let result = self.feed_tls(&mut tls, bytes, &mut plaintext, shared, now);
        shared.plaintext = plaintext;
        if self.generation != generation || self.socket.is_none() {
            return; // This connection is over; the slot may be at the next.
        }
        self.tls = Some(tls);
        let is_peer_closed = match result {
            Ok(is_peer_closed) => is_peer_closed,
            Err(error) => return self.fail_by_tls(&error, shared, now),
        };
        if is_peer_closed {
            return self.on_peer_closed(shared, now);
        }
        self.encrypt();
        if self.phase == LoadPhase::Handshaking && self.tls.as_ref().is_some_and(|tls| !tls.is_handshaking()) {
            self.on_open(shared, now);
        } else {
            self.fill(shared, now);
        }
        self.flush(shared, now);
    }

    /// Decrypts bytes and handles the content. Returns whether the server has sent close_notify.
    fn feed_tls(
        &mut self,
        tls: &mut ClientConnection,
        mut bytes: &[u8],
        plaintext: &mut [u8],
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> Result<bool, rustls::Error> {
        let generation = self.generation;
        let mut is_peer_closed = false;
        while !bytes.is_empty() && self.generation == generation && self.socket.is_some() {
            if !matches!(tls.read_tls(&mut bytes), Ok(1..)) {
                break;
            }
            is_peer_closed = tls.process_new_packets()?.peer_has_closed();
            while self.generation == generation && self.socket.is_some() {
                // An error means that there is no more plaintext.
                match std::io::Read::read(&mut tls.reader(), plaintext) {
                    Ok(length @ 1..) => self.feed_plain(&plaintext[..length], shared, now),
                    _ => break,
                }
            }
        }
        Ok(is_peer_closed)
    }

    /// Handles bytes of responses.
    fn feed_plain(&mut self, bytes: &[u8], shared: &mut ThreadShared, now: Nanos) {
        let generation = self.generation;
        match self.protocol {
            ClientProtocol::Http1(_) => self.feed_http1(bytes, shared, now),
            ClientProtocol::Http2(_) => self.feed_http2(bytes, shared, now),
            ClientProtocol::WebSocket(_) => self.feed_web_socket(bytes, shared, now),
            ClientProtocol::Http2Sockets(_) => self.feed_sockets(bytes, shared, now),
            // Its bytes come in datagrams.
            ClientProtocol::Http3(_) => {}
        }
        // With TLS the caller sends requests after it has restored the TLS state.
        if shared.plan.tls.is_none() && self.generation == generation {
            self.fill(shared, now);
        }
    }

    /// Counts a request whose response is complete. Messages have no status.
    fn count(
        &mut self,
        exchange: &SentRequest,
        status: Option<u16>,
        verdict: Option<(FailureClass, FailureReason)>,
        response_bytes: u64,
        shared: &mut ThreadShared,
        now: Nanos,
    ) {
        shared.active -= 1;
        if verdict.is_none()
            && let Some(tally) = shared.tallies.get_mut(exchange.request as usize)
        {
            tally.served += 1;
        }
        self.usage.bytes += response_bytes;
        self.usage.busy += now.saturating_sub(self.used_until);
        self.used_until = now;
        if exchange.due < shared.counted_from {
            return;
        }
        if let Some(status) = status {
            shared.record.statuses[usize::from(status / 100).min(9)] += 1;
        }
        match verdict {
            Some((class, reason)) => {
                shared.record.fail(class, reason);
                shared.phase_of(exchange.due, |phase, at| phase.fail(at));
            }
            None => {
                shared.serve(exchange.due, now);
                if shared.arrivals.is_open() {
                    shared.record.service.saturating_record(now.saturating_sub(exchange.sent));
                }
            }
        }
    }
}
