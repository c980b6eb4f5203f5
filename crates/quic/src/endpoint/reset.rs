//! Stateless resets (RFC 9000, section 10.3).

use std::time::{Duration, Instant};

use aws_lc_rs::{hmac, rand};

use crate::id::{ConnectionId, ResetToken};

/// Bytes of a token.
pub(super) const TOKEN_BYTES: usize = 16;

/// Smallest packet that can be a stateless reset: 5 bytes and the token.
pub(super) const RESET_BYTES_MIN: usize = 5 + TOKEN_BYTES;

/// Largest stateless reset that is sent. Packets of this size are not rare, so that it does not stand out.
const RESET_BYTES_MAX: usize = 43;

/// Packets that an endpoint sends without a connection in each [`RESPONSES_INTERVAL`]: stateless resets, and packets of
/// Version Negotiation. More are due in a flood only.
const RESPONSES_MAX: u32 = 100;
const RESPONSES_INTERVAL: Duration = Duration::from_millis(10);

/// Key of the tokens that this server issues. A token depends on it and the connection ID only. So a process that has lost the
/// connection can reset it.
pub(super) struct ResetKey(hmac::Key);

/// Responses without a connection that may still be sent in an interval.
#[derive(Debug, Default)]
pub(super) struct ResponseBudget {
    since: Option<Instant>,
    taken: u32,
}

impl ResetKey {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Token of a connection ID.
    pub(super) fn token(&self, id: &ConnectionId) -> ResetToken {
        let tag = hmac::sign(&self.0, id);
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&tag.as_ref()[..TOKEN_BYTES]);
        ResetToken(token)
    }

    /// Appends a stateless reset in response to a packet of `received_bytes`. Returns false if the packet is too short. Each
    /// reset is shorter than the packet, so that two servers cannot go on for ever (RFC 9000, section 10.3.3).
    pub(super) fn write_reset(&self, out: &mut Vec<u8>, id: &ConnectionId, received_bytes: usize) -> bool {
        let bytes = received_bytes.saturating_sub(1).min(RESET_BYTES_MAX);
        let mut random = [0; RESET_BYTES_MAX - TOKEN_BYTES];
        if bytes < RESET_BYTES_MIN || rand::fill(&mut random).is_err() {
            return false;
        }
        // Looks like a short header.
        random[0] = random[0] & 0x3f | 0x40;
        out.extend_from_slice(&random[..bytes - TOKEN_BYTES]);
        out.extend_from_slice(&self.token(id).0);
        true
    }
}

impl ResponseBudget {
    /// Takes one response; false if there were too many of late.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= RESPONSES_INTERVAL) {
            (self.since, self.taken) = (Some(now), 0);
        }
        let has_more = self.taken < RESPONSES_MAX;
        self.taken += u32::from(has_more);
        has_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_depend_on_key_and_id() {
        let [first, second] = [[1; 8], [2; 8]].map(|bytes| ConnectionId::new(&bytes).unwrap());
        let key = ResetKey::new(&[3; 32]);
        assert_eq!(key.token(&first), ResetKey::new(&[3; 32]).token(&first));
        assert_ne!(key.token(&first), key.token(&second));
        assert_ne!(key.token(&first), ResetKey::new(&[4; 32]).token(&first));
    }

    #[test]
    fn resets_are_shorter_than_their_cause() {
        let (key, id) = (ResetKey::new(&[3; 32]), ConnectionId::new(&[1; 8]).unwrap());
        let mut out = Vec::new();
        for received_bytes in 0..1_500 {
            out.clear();
            let is_written = key.write_reset(&mut out, &id, received_bytes);
            assert_eq!(is_written, received_bytes > RESET_BYTES_MIN, "{received_bytes}");
            if is_written {
                assert!(out.len() < received_bytes && (RESET_BYTES_MIN..=RESET_BYTES_MAX).contains(&out.len()));
                assert_eq!((out[0] & 0xc0, &out[out.len() - TOKEN_BYTES..]), (0x40, &key.token(&id).0[..]));
            }
        }
    }

    #[test]
    fn responses_have_a_budget() {
        let (start, mut budget) = (Instant::now(), ResponseBudget::default());
        let mut taken = |at: Duration| (0..3 * RESPONSES_MAX).filter(|_| budget.take(start + at)).count() as u32;
        assert_eq!([Duration::ZERO, RESPONSES_INTERVAL / 2].map(&mut taken), [RESPONSES_MAX, 0]);
        assert_eq!(taken(RESPONSES_INTERVAL), RESPONSES_MAX);
    }
}
