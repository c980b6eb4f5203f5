//! Clients that move to another address (RFC 9000, section 9).

use std::net::{IpAddr, SocketAddr};

use super::Connection;
use super::path::Challenge;
use super::receive::{KEEP_TIMEOUTS, PacketArrival};

/// Responses to PATH_CHALLENGE frames that wait. A peer that sends more floods this side.
const RESPONSES_MAX: usize = 4;

/// Response to a PATH_CHALLENGE frame. The response goes to the address from which the frame came.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathResponse {
    pub(super) remote: SocketAddr,
    pub(super) local: Option<IpAddr>,
    pub(super) data: Challenge,
    /// Bytes that the address may get.
    pub(super) bytes_max: usize,
}

impl Connection {
    /// Handles PATH_CHALLENGE.
    pub(super) fn on_path_challenge(&mut self, arrival: &PacketArrival, data: Challenge) {
        let PacketArrival { remote, local, datagram_bytes, .. } = *arrival;
        // The newest challenge counts. An address that is not validated gets one response, because a datagram with several
        // challenges permits no more.
        if !self.path.is_at(remote) || !self.path.is_validated {
            self.path_responses.retain(|response| response.remote != remote);
        }
        if self.path_responses.len() == RESPONSES_MAX {
            self.path_responses.remove(0);
        }
        self.path_responses.push(PathResponse { remote, local, data, bytes_max: 3 * datagram_bytes });
    }

    /// Handles PATH_RESPONSE.
    pub(super) fn on_path_response(&mut self, arrival: &PacketArrival, data: Challenge) {
        if self.path.challenge == Some(data) {
            let was_limited = !std::mem::replace(&mut self.path.is_validated, true);
            if was_limited && self.path.is_size_unproven {
                // Without the limit, the next challenge has the full size (RFC 9000, section 8.2.1).
                let data = self.challenge();
                self.path.challenge_by(data);
                self.path_fails_at = self.path_fails_at.max(Some(self.keep_until(arrival.now)));
                return;
            }
            (self.path.challenge, self.path.is_challenge_due) = (None, false);
            self.path.is_size_unproven = false;
            self.path_fails_at = None;
            self.previous = None;
            return;
        }
        // The client is at its old address: the new one was an attacker's. A client that has moved may still get the challenge, but
        // responds from its new address.
        let is_previous = self
            .previous
            .as_ref()
            .is_some_and(|previous| previous.challenge == Some(data) && previous.is_at(arrival.remote));
        if is_previous && !self.path.is_proven() {
            self.return_to_previous();
        }
    }

    /// Moves the connection to the address from which the newest packet came.
    pub(super) fn on_moved(&mut self, arrival: &PacketArrival) {
        let PacketArrival { now, remote, local, datagram_bytes, .. } = *arrival;
        let mut path = self.path.moved(now, remote, local, &self.settings, self.peer.datagram_bytes_max);
        path.on_received(datagram_bytes);
        // A client that comes back to an address that was validated needs no limit.
        path.is_validated =
            self.previous.as_ref().is_some_and(|previous| previous.is_at(remote) && previous.is_validated);
        let data = self.challenge();
        path.challenge_by(data);
        self.path_fails_at = Some(now + self.probe_timeout().max(path.rtt.pto_base()) * KEEP_TIMEOUTS);
        let mut old = std::mem::replace(&mut self.path, path);
        if old.is_proven() {
            // Asks the old address whether the client is there.
            old.challenge_by(self.challenge());
            self.previous = Some(Box::new(old));
        }
        self.remote_ids.switch();
        self.announce_token();
    }

    /// Drops a path whose challenge got no response, unless its address was validated before.
    pub(super) fn on_path_failed(&mut self) {
        self.path_fails_at = None;
        if self.previous.is_some() && !self.path.is_proven() {
            return self.return_to_previous();
        }
        if !self.path.is_validated {
            return self.lose(super::LostReason::TimedOut);
        }
        (self.path.challenge, self.path.is_challenge_due) = (None, false);
        self.previous = None;
    }

    fn return_to_previous(&mut self) {
        if let Some(previous) = self.previous.take() {
            let number = self.path.number.wrapping_add(1);
            self.path = *previous;
            // Packets of both paths before count no more.
            (self.path.number, self.path.in_flight) = (number, 0);
            self.path.challenge = None;
            self.path.is_challenge_due = false;
            self.path_fails_at = None;
        }
    }

    fn challenge(&mut self) -> Challenge {
        let mut data = [0; 8];
        // Without random numbers no handshake would have succeeded.
        if aws_lc_rs::rand::fill(&mut data).is_err() {
            data = self.random().to_be_bytes();
        }
        data
    }
}
