//! End of a connection (RFC 9000, section 10.2).

use std::borrow::Cow;
use std::time::Instant;

use super::{Connection, LostReason, QuicEvent, State};
use crate::error::TransportError;
use crate::packet::Space;
use crate::streams::Streams;

/// Longest explanation that is sent, in bytes.
const REASON_BYTES_MAX: usize = 200;

/// Connection that this side has closed.
#[derive(Debug)]
pub(super) struct Closing {
    /// Time until which packets of the peer get a response.
    pub(super) until: Instant,
    pub(super) is_application: bool,
    pub(super) error: TransportError,
    /// True if the packet that closes the connection must be sent.
    pub(super) is_due: bool,
    /// Datagrams of the peer since then, and the number at which that packet is repeated.
    datagrams: u32,
    repeats_at: u32,
}

impl Closing {
    /// Counts a datagram of the peer. The packet is repeated after 1, 2, 4, … datagrams (RFC 9000, section 10.2.1).
    pub(super) fn on_datagram(&mut self) {
        self.datagrams += 1;
        if self.datagrams >= self.repeats_at {
            (self.datagrams, self.repeats_at) = (0, self.repeats_at.saturating_mul(2));
            self.is_due = true;
        }
    }
}

impl Connection {
    /// Closes the connection with an error of the application.
    pub fn close(&mut self, now: Instant, code: u64, reason: &[u8]) {
        let reason: Cow<'static, str> = String::from_utf8_lossy(reason).into_owned().into();
        self.enter_closing(now, true, TransportError { code, frame: 0, reason });
    }

    /// Closes the connection because the peer violates the protocol.
    pub(super) fn fail(&mut self, now: Instant, error: TransportError) {
        if !self.is_closed() {
            self.events.push_back(QuicEvent::Lost(LostReason::Transport(error.clone())));
            self.enter_closing(now, false, error);
        }
    }

    fn enter_closing(&mut self, now: Instant, is_application: bool, mut error: TransportError) {
        if self.is_closed() {
            return;
        }
        if error.reason.len() > REASON_BYTES_MAX {
            error.reason = error.reason.chars().take(REASON_BYTES_MAX / 4).collect::<String>().into();
        }
        let until = self.keep_until(now);
        if let Some(qlog) = &mut self.qlog {
            qlog.connection_closed(now, is_application, error.code, &error.reason);
        }
        let closing = Closing { until, is_application, error, is_due: true, datagrams: 0, repeats_at: 1 };
        self.state = State::Closing(Box::new(closing));
        self.free();
    }

    /// Ends the connection after the peer has closed it.
    pub(super) fn enter_draining(&mut self, now: Instant) {
        self.state = State::Draining { until: self.keep_until(now) };
        if let Some(qlog) = &mut self.qlog {
            qlog.connection_closed(now, false, 0, "closed by the client");
        }
        self.free();
    }

    /// Frees what a closed connection does not need.
    fn free(&mut self) {
        self.streams = Streams::new(&self.settings.streams);
        for space in [Space::Initial, Space::Handshake, Space::Data] {
            if let Some(packets) = self.select(space) {
                packets.sent.forget_all();
            }
        }
        self.path_responses = Vec::new();
        self.previous = None;
        self.ready.clear();
    }
}
