//! TLS of FTP: data connections resume the session of their control connection.
//!
//! Each control connection has its own settings, whose tickets carry its identity. A data connection uses the same
//! settings. So a resumed handshake proves that the peer has a secret of the control connection.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::server::{ProducesTickets, StoresServerSessions};

/// Application protocol (RFC 7301). A client that names others speaks to the wrong server, or is made to (ALPACA).
const FTP: &[u8] = b"ftp";

/// Tickets that a client gets on a connection: one is used for each data connection, which gets new ones.
const TICKETS: usize = 2;

/// Length of the identity of a control connection, in bytes.
const ID_BYTES: usize = 16;

/// Tickets of a control connection and its data connections.
struct SessionTickets {
    tickets: Arc<dyn ProducesTickets>,
    id: [u8; ID_BYTES],
}

/// Sessions kept for clients without tickets: that of the control connection, and the latest of a data connection.
const STORED_MAX: usize = 2;

/// Sessions of a control connection, by identifier: curl uses no tickets with TLS 1.2.
#[derive(Default)]
struct StoredSessions {
    sessions: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// Settings for a control connection and its data connections, from those of the site.
pub(super) fn settings_for_control(site: &ServerConfig, tickets: Arc<dyn ProducesTickets>) -> Arc<ServerConfig> {
    let mut settings = site.clone();
    settings.alpn_protocols = vec![FTP.to_vec()];
    let mut id = [0; ID_BYTES];
    match aws_lc_rs::rand::fill(&mut id) {
        Ok(()) => {
            settings.send_tls13_tickets = TICKETS;
            settings.ticketer = Arc::new(SessionTickets { tickets, id });
            settings.session_storage = Arc::new(StoredSessions::default());
        }
        // Without random numbers, the handshake fails as well.
        Err(_) => settings.send_tls13_tickets = 0,
    }
    Arc::new(settings)
}

impl ProducesTickets for SessionTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.tickets.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.tickets.encrypt(&[&self.id[..], plain].concat())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.tickets.decrypt(cipher)?.strip_prefix(&self.id).map(<[u8]>::to_vec)
    }
}

impl StoredSessions {
    fn sessions(&self) -> MutexGuard<'_, Vec<(Vec<u8>, Vec<u8>)>> {
        // No code under the lock can panic half-way through a change.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoresServerSessions for StoredSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let sessions = &mut *self.sessions();
        sessions.retain(|(known, _)| *known != key);
        sessions.truncate(STORED_MAX - 1);
        sessions.push((key, value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.sessions().iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let sessions = &mut *self.sessions();
        let at = sessions.iter().position(|(known, _)| known == key)?;
        Some(sessions.remove(at).1)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for StoredSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the secrets.
        f.write_str("StoredSessions")
    }
}

impl fmt::Debug for SessionTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the identity.
        f.write_str("SessionTickets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_for_one_control_connection() {
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
        let session = |id| SessionTickets { tickets: Arc::clone(&tickets), id: [id; ID_BYTES] };
        let (one, other) = (session(1), session(2));
        let ticket = one.encrypt(b"session").unwrap();
        assert_eq!(one.decrypt(&ticket).unwrap(), b"session");
        assert!(other.decrypt(&ticket).is_none());
        assert!(one.decrypt(&tickets.encrypt(b"session").unwrap()).is_none(), "a ticket of HTTPS");
        assert_ne!(tickets.decrypt(&ticket).unwrap(), b"session", "HTTPS cannot use it either");
    }

    #[test]
    fn few_sessions_are_stored() {
        let stored = StoredSessions::default();
        for number in 0..5_u8 {
            assert!(stored.put(vec![number], vec![number + 10]));
        }
        let kept: Vec<_> = (0..5).filter_map(|number| stored.get(&[number])).collect();
        assert_eq!(kept, [[10], [14]], "the first and the last");
        assert_eq!((stored.take(&[0]), stored.take(&[0])), (Some(vec![10]), None));
    }
}
