//! Sessions with early data (0-RTT).
//!
//! An attacker can send a copy of early data. So the server keeps each of these sessions, and forgets it when a client
//! resumes it (RFC 8446, section 8.1). A copy of its first flight then needs a full handshake, which takes its early
//! data away.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use rustls::server::{ProducesTickets, StoresServerSessions};

use super::tickets::{TICKET_SECONDS, unix_seconds};
use crate::config::Limits;

/// Sessions kept, of all sites. The oldest make room for new ones.
const SESSIONS_MAX: usize = 16_384;

/// Largest session kept, in bytes. Sessions without client certificates are much smaller.
const SESSION_BYTES_MAX: usize = 1_024;

/// Length of identifiers, in bytes.
const ID_BYTES: usize = 32;

type Id = [u8; ID_BYTES];

/// Sessions with early data, for all workers.
pub struct EarlySessions {
    remembered: RememberedLimits,
    sessions: Mutex<Sessions>,
    now: fn() -> u64,
}

/// Limits that clients remember with a session, and apply to early data (RFC 9000, section 7.4.1; RFC 9114, section
/// 7.2.4.2). Sessions of other limits can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RememberedLimits {
    streams: u32,
    window_bytes: u32,
    head_bytes: usize,
}

#[derive(Default)]
struct Sessions {
    by_id: HashMap<Id, Session>,
    /// Identifiers, the oldest first, also of sessions that were used.
    order: VecDeque<Id>,
}

struct Session {
    value: Box<[u8]>,
    made_unix_seconds: u64,
}

/// No tickets: early data needs sessions that the server keeps.
#[derive(Debug)]
pub(super) struct NoTickets;

impl RememberedLimits {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            streams: limits.http2.concurrent_streams_max,
            window_bytes: limits.http2.window_bytes_max,
            head_bytes: limits.head_bytes_max,
        }
    }
}

impl EarlySessions {
    pub(super) fn new(remembered: RememberedLimits) -> Self {
        Self { remembered, sessions: Mutex::default(), now: unix_seconds }
    }

    /// Limits of all sessions kept here.
    pub(super) fn remembered(&self) -> RememberedLimits {
        self.remembered
    }

    fn with<R>(&self, act: impl FnOnce(&mut Sessions) -> R) -> R {
        // No code under the lock can panic half-way through a change.
        act(&mut self.sessions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StoresServerSessions for EarlySessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let Ok(id) = Id::try_from(key) else { return false };
        if value.len() > SESSION_BYTES_MAX {
            return false;
        }
        let session = Session { value: value.into(), made_unix_seconds: (self.now)() };
        self.with(|sessions| {
            if sessions.order.len() == SESSIONS_MAX
                && let Some(oldest) = sessions.order.pop_front()
            {
                sessions.by_id.remove(&oldest);
            }
            sessions.order.push_back(id);
            sessions.by_id.insert(id, session);
        });
        true
    }

    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        // TLS 1.2 would use a session several times. QUIC has TLS 1.3.
        None
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let id = Id::try_from(key).ok()?;
        let session = self.with(|sessions| sessions.by_id.remove(&id))?;
        let is_valid = (self.now)().abs_diff(session.made_unix_seconds) < TICKET_SECONDS;
        is_valid.then(|| session.value.into())
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for EarlySessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the secrets.
        f.write_str("EarlySessions")
    }
}

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(1_000_000) };
    }

    fn sessions() -> EarlySessions {
        EarlySessions { now: || NOW.get(), ..EarlySessions::new(RememberedLimits::of(&Limits::default())) }
    }

    fn id(number: usize) -> Vec<u8> {
        let mut id = vec![0; ID_BYTES];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id
    }

    #[test]
    fn a_session_is_used_once() {
        let sessions = sessions();
        assert!(sessions.put(id(1), b"session".to_vec()));
        assert_eq!(sessions.take(&id(1)).as_deref(), Some(&b"session"[..]));
        assert_eq!(sessions.take(&id(1)), None);
        assert_eq!(sessions.take(&id(2)), None);
        assert_eq!(sessions.take(b"short"), None);
        assert!(!sessions.put(b"short".to_vec(), Vec::new()));
        assert!(!sessions.put(id(3), vec![0; SESSION_BYTES_MAX + 1]));
    }

    #[test]
    fn sessions_expire() {
        let sessions = sessions();
        for (seconds, is_valid) in [(TICKET_SECONDS - 1, true), (TICKET_SECONDS, false)] {
            sessions.put(id(1), Vec::new());
            NOW.set(NOW.get() + seconds);
            assert_eq!(sessions.take(&id(1)).is_some(), is_valid, "{seconds}");
        }
    }

    #[test]
    fn the_oldest_sessions_make_room() {
        let sessions = sessions();
        for number in 0..SESSIONS_MAX + 10 {
            sessions.put(id(number), Vec::new());
        }
        let kept = sessions.with(|sessions| (sessions.by_id.len(), sessions.order.len()));
        assert_eq!(kept, (SESSIONS_MAX, SESSIONS_MAX));
        for (number, is_kept) in [(0, false), (9, false), (10, true), (SESSIONS_MAX + 9, true)] {
            assert_eq!(sessions.take(&id(number)).is_some(), is_kept, "{number}");
        }
    }
}
