//! Keys of TLS session tickets: the previous, the current and the next.
//!
//! A key is known to all instances for the whole time of its predecessor before the first ticket is encrypted with it. So an
//! instance that could not reach the store for that long still decrypts all tickets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

/// Time during which a key encrypts tickets, in seconds.
pub const TICKET_KEY_SECONDS: u64 = 6 * 3_600;

/// Time after which an instance that does not keep house rotates the keys all the same, in seconds.
const OVERDUE_SECONDS: u64 = 600;

/// Interval between two looks at the keys.
const LOOK: Duration = Duration::from_secs(30);

/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

const KEY: &str = "tickets";

/// Key that encrypts session tickets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKey {
    /// Name, which tickets begin with.
    pub name: [u8; 16],
    /// Secret.
    pub secret: [u8; 32],
}

/// Keys of all instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketRing {
    /// Number of rotations so far.
    pub generation: u64,
    /// Time of the last rotation, in seconds since 1970, by the clock of the instance that did it.
    pub rotated_unix_seconds: u64,
    /// Key that still decrypts.
    pub previous: SessionKey,
    /// Key that encrypts.
    pub current: SessionKey,
    /// Key that will encrypt next, and decrypts already.
    pub next: SessionKey,
}

/// Keeps the keys of one instance equal to those of the store.
#[derive(Debug, Default)]
pub(super) struct TicketKeeper {
    known: Option<TicketRing>,
    /// Ring that is being written.
    written: Option<TicketRing>,
    is_in_flight: bool,
    next_at: InstanceTime,
}

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Does not show the secret.
        f.write_str("SessionKey")
    }
}

impl TicketKeeper {
    pub(super) fn next_wake(&self) -> Option<InstanceTime> {
        (!self.is_in_flight).then_some(self.next_at)
    }

    pub(super) fn poll(&mut self, now: InstanceTime) -> Option<StoreRequest> {
        if self.is_in_flight || now < self.next_at {
            return None;
        }
        self.is_in_flight = true;
        Some(StoreRequest::Get(KEY.to_owned()))
    }

    /// Takes a reply. Returns changed keys, and the next request.
    pub(super) fn handle_reply(
        &mut self,
        now: InstanceTime,
        unix_seconds: u64,
        is_housekeeper: bool,
        new_key: &mut dyn FnMut() -> SessionKey,
        result: StoreResult,
    ) -> (Option<TicketRing>, Option<StoreRequest>) {
        self.is_in_flight = false;
        let written = self.written.take();
        match (result, written) {
            (Ok(StoreReply::Done(_)), Some(ring)) => {
                self.next_at = now + LOOK;
                (self.learn(ring), None)
            }
            (Ok(StoreReply::Entry(entry)), None) => {
                self.next_at = now + LOOK;
                let (stored, version) = match entry {
                    Some((value, version)) => (serde_json::from_slice::<TicketRing>(&value).ok(), Some(version)),
                    None => (None, None),
                };
                let ring = match &stored {
                    Some(ring) => {
                        let age = unix_seconds.abs_diff(ring.rotated_unix_seconds);
                        let due =
                            if is_housekeeper { TICKET_KEY_SECONDS } else { TICKET_KEY_SECONDS + OVERDUE_SECONDS };
                        (age >= due).then(|| ring.rotated(unix_seconds, new_key()))
                    }
                    // The store is new, or was wiped: the known keys stay in use.
                    None => Some(match &self.known {
                        Some(ring) => ring.clone(),
                        None => TicketRing {
                            generation: 0,
                            rotated_unix_seconds: unix_seconds,
                            previous: new_key(),
                            current: new_key(),
                            next: new_key(),
                        },
                    }),
                };
                let changed = stored.and_then(|ring| self.learn(ring));
                let request = ring.map(|ring| {
                    let value = serde_json::to_vec(&ring).unwrap_or_default();
                    self.written = Some(ring);
                    self.is_in_flight = true;
                    let expect = version.map_or(Expected::Absent, Expected::Version);
                    StoreRequest::Put { key: KEY.to_owned(), value, expect }
                });
                (changed, request)
            }
            // Another instance was first, or the result is unknown: looks again.
            (Ok(StoreReply::Conflict), Some(_)) => {
                self.next_at = now;
                (None, None)
            }
            _ => {
                self.next_at = now + RETRY;
                (None, None)
            }
        }
    }

    fn learn(&mut self, ring: TicketRing) -> Option<TicketRing> {
        if self.known.as_ref() == Some(&ring) {
            return None;
        }
        self.known = Some(ring.clone());
        Some(ring)
    }
}

impl TicketRing {
    /// Ring in which the next key is the current one.
    fn rotated(&self, unix_seconds: u64, next: SessionKey) -> Self {
        Self {
            generation: self.generation.saturating_add(1),
            rotated_unix_seconds: unix_seconds,
            previous: self.current.clone(),
            current: self.next.clone(),
            next,
        }
    }
}
