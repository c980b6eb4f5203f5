//! Connection IDs of both sides (RFC 9000, section 5.1).

use std::collections::VecDeque;

use crate::error::TransportError;
use crate::id::{ConnectionId, ResetToken};
use crate::types::IssuedId;

/// IDs of the peer that are kept at a time: one in use, and spare ones for migrations.
pub(super) const REMOTE_IDS_MAX: usize = 4;

/// IDs of this side that the peer may have at a time.
const LOCAL_IDS_MAX: usize = 4;

/// Retirements of the peer's IDs that it has not acknowledged. A peer that makes this side retire more floods it
/// (RFC 9000, section 5.1.2).
const RETIRED_MAX: usize = 32;

/// ID of the peer.
#[derive(Clone, Copy, Debug)]
struct RemoteId {
    sequence: u64,
    id: ConnectionId,
    token: Option<ResetToken>,
}

/// IDs of the peer, which packets to it carry.
#[derive(Debug)]
pub(super) struct RemoteIds {
    /// The first one is in use.
    ids: VecDeque<RemoteId>,
    /// IDs below were retired.
    retired_below: u64,
    /// All IDs below have arrived.
    seen_below: u64,
    /// Bits of the IDs from `seen_below` on that have arrived.
    seen: u64,
    /// Retirements to send.
    pub(super) unsent: Vec<u64>,
    /// Retirements that the peer has not acknowledged, sent or not.
    retiring: usize,
}

/// IDs of this side.
#[derive(Debug)]
pub(super) struct LocalIds {
    /// Sequence numbers that the peer may use.
    active: Vec<u64>,
    /// IDs to send, or to send again.
    unsent: Vec<IssuedId>,
    /// IDs that the peer has not acknowledged.
    unacked: Vec<IssuedId>,
    /// IDs requested from the endpoint that have not come.
    requested: usize,
    /// Number of the next ID, to check what the peer retires.
    next: u64,
    /// IDs that the peer may have at a time.
    limit: usize,
}

impl RemoteIds {
    pub(super) fn new(id: ConnectionId) -> Self {
        let ids = VecDeque::from([RemoteId { sequence: 0, id, token: None }]);
        Self { ids, retired_below: 0, seen_below: 1, seen: 0, unsent: Vec::new(), retiring: 0 }
    }

    /// ID for packets to the peer.
    pub(super) fn current(&self) -> ConnectionId {
        self.ids.front().map_or(ConnectionId::EMPTY, |id| id.id)
    }

    /// Token by which the peer resets the connection.
    pub(super) fn token(&self) -> Option<ResetToken> {
        self.ids.front()?.token
    }

    /// Handles NEW_CONNECTION_ID. Returns true if another ID is in use now.
    ///
    /// # Errors
    /// The peer sends too many IDs, or contradicts itself.
    pub(super) fn on_new(
        &mut self,
        sequence: u64,
        retire_prior_to: u64,
        id: ConnectionId,
        token: ResetToken,
    ) -> Result<bool, TransportError> {
        if self.current().is_empty() {
            return Err(TransportError::protocol_violation("NEW_CONNECTION_ID from a peer without connection IDs"));
        }
        let known = self.ids.iter().find(|known| known.sequence == sequence || *known.id == *id);
        if let Some(known) = known {
            if known.sequence == sequence && *known.id == *id && known.token.is_none_or(|known| known == token) {
                return Ok(false);
            }
            return Err(TransportError::protocol_violation("NEW_CONNECTION_ID contradicts an earlier one"));
        }
        if !self.see(sequence)? {
            // The ID was retired since then.
            return Ok(false);
        }
        // Before others are retired: the packet that closes the connection after an error needs an ID.
        let is_retired = sequence < self.retired_below.max(retire_prior_to);
        if !is_retired {
            self.ids.push_back(RemoteId { sequence, id, token: Some(token) });
        }
        let mut has_changed = false;
        if retire_prior_to > self.retired_below {
            self.retired_below = retire_prior_to;
            let first = self.ids.front().map(|id| id.sequence);
            let retired: Vec<_> = self.ids.iter().map(|id| id.sequence).filter(|&id| id < retire_prior_to).collect();
            self.ids.retain(|id| id.sequence >= retire_prior_to);
            has_changed = self.ids.front().map(|id| id.sequence) != first;
            retired.into_iter().try_for_each(|sequence| self.retire(sequence))?;
        }
        if is_retired {
            self.retire(sequence)?;
        }
        if self.ids.len() > REMOTE_IDS_MAX {
            return Err(TransportError::connection_id_limit("too many connection IDs"));
        }
        match self.ids.is_empty() {
            true => Err(TransportError::protocol_violation("all connection IDs are retired")),
            false => Ok(has_changed),
        }
    }

    /// Notes that an ID has arrived. Returns false if it has arrived before.
    fn see(&mut self, sequence: u64) -> Result<bool, TransportError> {
        let Some(distance) = sequence.checked_sub(self.seen_below) else { return Ok(false) };
        if distance >= u64::from(u64::BITS) {
            return Err(TransportError::connection_id_limit("too many connection IDs are missing"));
        }
        let is_new = self.seen & 1 << distance == 0;
        self.seen |= 1 << distance;
        let below = self.seen.trailing_ones();
        self.seen = self.seen.checked_shr(below).unwrap_or_default();
        self.seen_below += u64::from(below);
        Ok(is_new)
    }

    /// Uses another ID from now on, if the peer has given one, so that observers can't link the paths.
    pub(super) fn switch(&mut self) -> bool {
        if self.ids.len() < 2 {
            return false;
        }
        match self.ids.pop_front() {
            // Too many retirements are an error only if the peer asks for them.
            Some(old) if self.retiring < RETIRED_MAX => self.retire(old.sequence).is_ok(),
            Some(old) => {
                self.ids.push_front(old);
                false
            }
            None => false,
        }
    }

    fn retire(&mut self, sequence: u64) -> Result<(), TransportError> {
        if self.retiring >= RETIRED_MAX {
            return Err(TransportError::connection_id_limit("too many connection IDs to retire"));
        }
        self.retiring += 1;
        self.unsent.push(sequence);
        Ok(())
    }

    /// Handles the acknowledgment of a retirement.
    pub(super) fn on_retired_acked(&mut self) {
        self.retiring = self.retiring.saturating_sub(1);
    }
}

impl LocalIds {
    /// IDs of a connection whose first one the handshake has used.
    pub(super) fn new() -> Self {
        Self { active: vec![0], unsent: Vec::new(), unacked: Vec::new(), requested: 0, next: 1, limit: 1 }
    }

    /// Sets the number of IDs that the peer keeps.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit.min(LOCAL_IDS_MAX as u64) as usize;
    }

    /// Number of IDs that the endpoint must make now.
    pub(super) fn request(&mut self) -> Option<usize> {
        let count = self.limit.saturating_sub(self.active.len() + self.requested);
        self.requested += count;
        (count > 0).then_some(count)
    }

    /// Takes IDs that the endpoint has made.
    pub(super) fn on_issued(&mut self, ids: Vec<IssuedId>) {
        self.requested = self.requested.saturating_sub(ids.len());
        for id in ids {
            self.next = self.next.max(id.sequence + 1);
            self.active.push(id.sequence);
            self.unsent.push(id);
        }
    }

    /// True if IDs must be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Next ID to send.
    pub(super) fn pop_unsent(&mut self) -> Option<IssuedId> {
        let id = self.unsent.pop()?;
        self.unacked.push(id);
        Some(id)
    }

    pub(super) fn on_acked(&mut self, sequence: u64) {
        self.unacked.retain(|id| id.sequence != sequence);
        self.unsent.retain(|id| id.sequence != sequence);
        if self.unacked.is_empty() {
            self.unacked = Vec::new();
            self.unsent.shrink_to_fit();
        }
    }

    pub(super) fn on_lost(&mut self, sequence: u64) {
        if let Some(index) = self.unacked.iter().position(|id| id.sequence == sequence) {
            self.unsent.push(self.unacked.swap_remove(index));
        }
    }

    /// Handles RETIRE_CONNECTION_ID. Returns true if the ID was active.
    ///
    /// # Errors
    /// The ID was not issued.
    pub(super) fn on_retired(&mut self, sequence: u64) -> Result<bool, TransportError> {
        if sequence >= self.next {
            return Err(TransportError::protocol_violation("retirement of a connection ID that was not issued"));
        }
        let index = self.active.iter().position(|active| *active == sequence);
        index.map(|index| self.active.swap_remove(index));
        self.on_acked(sequence);
        Ok(index.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> ConnectionId {
        ConnectionId::new(&[byte; 8]).unwrap()
    }

    fn token(byte: u8) -> ResetToken {
        ResetToken([byte; 16])
    }

    #[test]
    fn the_peers_ids_are_used_and_retired() {
        let mut ids = RemoteIds::new(id(0));
        assert!(!ids.switch(), "there is no other");
        assert!(!ids.on_new(1, 0, id(1), token(1)).unwrap());
        assert!(!ids.on_new(1, 0, id(1), token(1)).unwrap(), "a copy");
        assert!(ids.on_new(1, 0, id(2), token(1)).is_err() && ids.on_new(2, 0, id(1), token(1)).is_err());
        assert!(ids.switch());
        assert_eq!((ids.current(), ids.token(), ids.unsent.clone()), (id(1), Some(token(1)), vec![0]));
        assert!(ids.on_new(3, 3, id(3), token(3)).unwrap());
        assert_eq!((ids.current(), ids.unsent.clone()), (id(3), vec![0, 1]));
        assert!(!ids.on_new(2, 0, id(2), token(2)).unwrap(), "late");
        assert_eq!(ids.unsent, [0, 1, 2]);
    }

    #[test]
    fn a_repeated_frame_does_not_revive_a_retired_id() {
        let mut ids = RemoteIds::new(id(0));
        for byte in [2, 1, 3] {
            ids.on_new(u64::from(byte), 0, id(byte), token(byte)).unwrap();
        }
        assert!(ids.switch() && ids.switch());
        for byte in [1, 2, 3] {
            assert!(!ids.on_new(u64::from(byte), 0, id(byte), token(byte)).unwrap());
        }
        assert_eq!((ids.ids.len(), ids.seen_below, ids.seen), (2, 4, 0));
        assert!(ids.on_new(4 + 64, 0, id(68), token(68)).is_err());
    }

    #[test]
    fn a_flood_of_ids_is_an_error() {
        let mut ids = RemoteIds::new(id(0));
        let result = (1..10).try_for_each(|byte| ids.on_new(u64::from(byte), 0, id(byte), token(byte)).map(|_| ()));
        assert_eq!(result.unwrap_err().code, TransportError::CONNECTION_ID_LIMIT_ERROR);
        let mut ids = RemoteIds::new(id(0));
        let result = (1..100)
            .try_for_each(|byte| ids.on_new(u64::from(byte), u64::from(byte), id(byte), token(byte)).map(|_| ()));
        assert_eq!(result.unwrap_err().code, TransportError::CONNECTION_ID_LIMIT_ERROR);
        assert!(RemoteIds::new(ConnectionId::EMPTY).on_new(1, 0, id(1), token(1)).is_err());
    }

    #[test]
    fn own_ids_replace_retired_ones() {
        let mut ids = LocalIds::new();
        assert_eq!(ids.request(), None, "the limit of the peer is not known");
        ids.set_limit(100);
        assert_eq!((ids.request(), ids.request()), (Some(LOCAL_IDS_MAX - 1), None));
        let issued = |sequence: u64| IssuedId { sequence, id: id(sequence as u8), token: token(sequence as u8) };
        ids.on_issued((1..4).map(issued).collect());
        let sent: Vec<_> = std::iter::from_fn(|| ids.pop_unsent()).map(|id| id.sequence).collect();
        assert_eq!(sent, [3, 2, 1]);
        ids.on_lost(2);
        ids.on_acked(3);
        assert!(ids.has_unsent() && ids.pop_unsent().is_some_and(|id| id.sequence == 2));
        assert!(ids.on_retired(0).unwrap() && !ids.on_retired(0).unwrap() && ids.on_retired(4).is_err());
        assert_eq!(ids.request(), Some(1));
    }
}
