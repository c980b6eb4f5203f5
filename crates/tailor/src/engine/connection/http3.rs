//! HTTP/3 connections: a QUIC connection with a UDP socket of its own.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{LoadConnection, LoadPhase, READS_MAX};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::http3::{Http3, Http3Event, Http3Reply};
use crate::engine::protocol::ClientProtocol;
use crate::engine::quic::ClientDatagramSocket;
use crate::engine::shared::ThreadShared;

impl LoadConnection {
    /// Begins a QUIC handshake.
    pub(super) fn connect_quic(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let socket = match shared.connector.open().and_then(ClientDatagramSocket::new) {
            Ok(socket) => socket,
            Err(errno) => return self.fail_to_connect(errno, shared, now),
        };
        self.generation = self.generation.wrapping_add(1);
        if let Err(errno) = epoll::add(&shared.epoll, &socket, self.event_data(), Self::EVENTS) {
            return self.fail_to_connect(errno, shared, now);
        }
        let instant = shared.clock.instant(now);
        let connected = match &mut shared.quic {
            Some(client) => client.connect(instant),
            None => Err("the TLS settings do not fit QUIC".to_owned()),
        };
        let mut http3 = match connected {
            Ok(quic) => Box::new(Http3::new(socket, quic, &shared.http3_limits, now)),
            Err(reason) => return self.fail(FailureClass::Connect, FailureReason::Message(reason), shared, now),
        };
        let is_early = http3.begin_early(shared, now);
        self.protocol = ClientProtocol::Http3(http3);
        (self.since, self.connected_at) = (now, now);
        self.draw_persistence(shared);
        if is_early {
            self.phase = LoadPhase::Open;
            self.fill(shared, now);
        } else {
            self.phase = LoadPhase::Handshaking;
            self.flush_http3(shared, now);
        }
    }

    /// Advances the connection as far as possible.
    pub(super) fn drive_http3(&mut self, shared: &mut ThreadShared, mut now: Nanos) {
        let ClientProtocol::Http3(mut http3) = std::mem::take(&mut self.protocol) else { return };
        let (generation, mut opened, mut reads) = (self.generation, None, 0);
        http3.handle_timeout(shared, now);
        while self.generation == generation {
            let mut on_event = |event: Http3Event, shared: &mut ThreadShared| {
                if let Http3Event::Open { is_early } = event {
                    opened = Some(is_early);
                }
                self.on_http3_event(event, shared, now)
            };
            if !http3.handle_events(shared, now, &mut on_event) || !self.is_readable {
                break;
            }
            if reads == READS_MAX {
                self.set_timer(now, shared);
                break;
            }
            reads += 1;
            shared.record.datagrams.receive_calls += 1;
            match http3.receive(shared, now) {
                Ok(batch) => {
                    now = shared.clock.now();
                    self.is_readable = !batch.is_last;
                    shared.record.datagrams.received += batch.datagrams;
                    shared.record.bytes_received += batch.bytes;
                    self.usage.received_bytes += batch.bytes;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.is_readable = false,
                Err(errno) => {
                    self.is_readable = false;
                    self.on_icmp_error(errno, shared, now);
                }
            }
        }
        if self.generation != generation {
            // This connection is over; the slot may be at the next.
            return http3.close(shared, now);
        }
        self.response_bytes = if http3.is_within_response() { 1 } else { 0 };
        let (is_full_handshake, awaits_ticket) = (http3.is_full_handshake(), http3.awaits_ticket());
        self.move_if_due(&mut http3, shared);
        self.protocol = ClientProtocol::Http3(http3);
        if let Some(is_early) = opened {
            shared.record.handshake.saturating_record(now.saturating_sub(self.connected_at));
            let handshakes = &mut shared.record.handshakes;
            let count = if is_full_handshake { &mut handshakes.full } else { &mut handshakes.resumed };
            *count += 1;
            handshakes.early += u64::from(is_early);
            match self.phase {
                LoadPhase::Handshaking => return self.on_open(shared, now),
                // Its requests were sent as early data.
                _ => self.count_connection(shared, now),
            }
        }
        match self.phase {
            LoadPhase::Open => self.fill(shared, now),
            LoadPhase::Closing if !awaits_ticket => self.close_and_go_on(shared, now),
            _ => self.flush_http3(shared, now),
        }
    }

    /// Ends a connection whose requests are finished. With early data, the next one needs a ticket of this one.
    pub(super) fn end_http3(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if matches!(&self.protocol, ClientProtocol::Http3(http3) if http3.awaits_ticket()) {
            (self.phase, self.since) = (LoadPhase::Closing, now);
            return self.flush_http3(shared, now);
        }
        self.close_and_go_on(shared, now);
    }

    /// Moves the connection to another UDP port, if it is time.
    fn move_if_due(&mut self, http3: &mut Http3, shared: &mut ThreadShared) {
        if !shared.plan.moves_after.is_some_and(|after| http3.is_move_due(after)) {
            return;
        }
        // Without a descriptor or port for another socket, the connection stays where it is.
        let Ok(socket) = shared.connector.open().and_then(ClientDatagramSocket::new) else { return };
        if epoll::add(&shared.epoll, &socket, self.event_data(), Self::EVENTS).is_ok() {
            http3.move_to(socket);
            shared.record.datagrams.moves += 1;
        }
    }

    fn on_http3_event(&mut self, event: Http3Event, shared: &mut ThreadShared, now: Nanos) -> Http3Reply {
        let generation = self.generation;
        let cancelled = match event {
            Http3Event::Open { .. } => None,
            Http3Event::Response(event) => self.on_response_event(event, shared, now),
            Http3Event::Lost(class, reason) => {
                self.fail(class, reason, shared, now);
                None
            }
        };
        match cancelled {
            _ if self.generation != generation => Http3Reply::Stop,
            Some(place) => Http3Reply::Cancel(place),
            None => Http3Reply::Continue,
        }
    }

    /// Handles an error that another machine or the kernel has reported: no server has the port.
    fn on_icmp_error(&mut self, errno: Errno, shared: &mut ThreadShared, now: Nanos) {
        match self.phase {
            LoadPhase::Handshaking => self.fail_to_connect(errno, shared, now),
            _ => self.fail(FailureClass::EarlyClose, FailureReason::of_errno(errno), shared, now),
        }
    }

    /// Sends what QUIC permits, and sets its timer.
    pub(super) fn flush_http3(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http3(http3) = &mut self.protocol else { return };
        http3.flush(shared, now);
        if let Some(at) = http3.next_timeout(shared) {
            self.set_timer(at, shared);
        }
    }
}
