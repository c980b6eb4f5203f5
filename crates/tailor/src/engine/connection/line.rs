//! Simulated lines of slots: when bytes may pass, and what they carried.

use super::{LineUsage, LoadConnection, LoadPhase};
use crate::engine::clock::{Nanos, SECOND};
use crate::engine::line::LINE_SLACK;
use crate::engine::shared::ThreadShared;
use crate::engine::window::retransmission_time;

/// Time until a SYN is sent again (RFC 6298).
const HANDSHAKE_TIME_OUT: Nanos = SECOND;

impl LoadConnection {
    /// Returns the traffic of requests that ended since the last call.
    pub(crate) fn take_usage(&mut self) -> LineUsage {
        std::mem::take(&mut self.usage)
    }

    /// Returns the traffic since the last call, with that of requests in flight.
    pub(crate) fn finish_usage(&mut self, now: Nanos) -> LineUsage {
        self.use_line(now);
        self.take_usage()
    }

    /// Adds what the requests in flight have received, or the time for which one waits for its connection. Without it a
    /// line whose requests never end would have no usage, and would be missing among the slow ones.
    pub(super) fn use_line(&mut self, now: Nanos) {
        let from = match self.phase {
            LoadPhase::Connecting | LoadPhase::Handshaking | LoadPhase::Upgrading if self.claimed.is_some() => {
                self.since
            }
            _ if !self.in_flight.is_empty() => self.used_until,
            _ => return,
        };
        self.usage.bytes += self.response_bytes;
        self.usage.busy += now.saturating_sub(from);
        self.used_until = now;
    }

    /// Begins the lines of a new connection. Lost packets of the TCP handshake delay it.
    pub(super) fn begin_line(&mut self, shared: &mut ThreadShared) {
        let Some(line) = shared.plan.line else { return };
        self.window = line.send_window();
        self.handshake_wait = line.draw_wait(HANDSHAKE_TIME_OUT, &mut shared.rng);
    }

    /// Delays sending by the way to the server, and by lost packets.
    pub(super) fn hold_request(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let Some(line) = shared.plan.line else { return };
        let wait = line.draw_wait(retransmission_time(line.latency), &mut shared.rng);
        self.hold_sending(now + line.latency / 2 + wait);
    }

    /// Delays sending until this time.
    fn hold_sending(&mut self, until: Nanos) {
        if let Some(credit) = &mut self.send_credit {
            credit.begin(until);
        }
    }

    /// Returns how many bytes the line permits now. Sets a timer and returns `None` if it permits none.
    pub(super) fn receivable_bytes(
        &mut self,
        length_max: usize,
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> Option<usize> {
        let Some(credit) = &mut self.receive_credit else { return Some(length_max) };
        credit.begin(match self.response_bytes {
            0 => now + shared.plan.line.map_or(0, |line| line.latency / 2),
            // Within a response the line was not idle for lack of data; its buffer was only emptied faster than the
            // server filled it.
            _ => now.saturating_sub(LINE_SLACK),
        });
        // Before the head is complete, the bytes in the socket are the best estimate.
        let available = || self.socket.as_ref().and_then(|socket| rustix::io::ioctl_fionread(socket).ok());
        let expected = self.protocol.expected_bytes().or_else(available);
        if expected == Some(0) {
            return Some(length_max); // The end of the connection, which weighs nothing.
        }
        let ready_at = credit.ready_at(expected);
        if now < ready_at {
            self.set_timer(ready_at, shared);
            return None;
        }
        let allowed = usize::try_from(credit.allowed_bytes(now)).unwrap_or(usize::MAX).clamp(1, length_max);
        let Some(window) = &mut self.window else { return Some(allowed) };
        if self.response_bytes == 0 {
            window.begin(now);
        }
        match window.arrived_bytes(now) {
            Ok(arrived) => Some(allowed.min(usize::try_from(arrived).unwrap_or(usize::MAX))),
            Err(at) => {
                self.set_timer(at, shared);
                None
            }
        }
    }
}
