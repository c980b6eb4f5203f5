//! Session tickets (RFC 8446, section 4.6.1; RFC 5077): state that a client returns to resume a session, encrypted for
//! the server.
//!
//! rustls has ticket keys, too, but does not export them. Here they can be passed to the process that takes over, so
//! that an upgrade costs no client a full handshake.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use rustls::server::ProducesTickets;
use serde::{Deserialize, Serialize};

/// Time during which a key encrypts tickets, in seconds.
const KEY_SECONDS: u64 = 6 * 3_600;

/// Lifetime of a ticket, in seconds. Its key is dropped that long after its last ticket; from then on, a break-in does
/// not reveal recorded traffic.
pub(super) const TICKET_SECONDS: u64 = 6 * 3_600;

/// Time that other instances have to replace a shared key, in seconds.
const SHARED_GRACE_SECONDS: u64 = 3_600;

/// Own keys that are kept beside shared ones.
const OWN_KEYS_MAX: usize = 6;

const NAME_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// Encrypter and decrypter of tickets.
pub struct Tickets {
    /// Keys, the newest first.
    keys: RwLock<Vec<TicketCipher>>,
    /// True once instances share the keys.
    is_shared: AtomicBool,
    now: fn() -> u64,
}

/// Key in the form in which another process gets it.
#[derive(Clone, Serialize, Deserialize)]
pub struct TicketKey {
    name: [u8; NAME_BYTES],
    secret: [u8; KEY_BYTES],
    made_unix_seconds: u64,
}

struct TicketCipher {
    of: TicketKey,
    cipher: RandomizedNonceKey,
}

impl Tickets {
    /// Creates tickets with the keys of an earlier process, if any.
    ///
    /// # Errors
    /// A key is invalid.
    pub fn new(keys: Vec<TicketKey>) -> Result<Arc<Self>, Unspecified> {
        Self::with_clock(keys, unix_seconds)
    }

    fn with_clock(keys: Vec<TicketKey>, now: fn() -> u64) -> Result<Arc<Self>, Unspecified> {
        let keys = keys.into_iter().map(TicketCipher::new).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { keys: RwLock::new(keys), is_shared: AtomicBool::new(false), now }))
    }

    /// Creates a key, unless there is one, before the first ticket, so that the next process knows the keys of all
    /// tickets. A server without TLS skips this: the library's random source takes half a megabyte of memory, and
    /// milliseconds.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn prepare(&self) -> Result<(), Unspecified> {
        if self.read(<[TicketCipher]>::is_empty) {
            let key = TicketCipher::generate((self.now)())?;
            self.keys.write().unwrap_or_else(PoisonError::into_inner).push(key);
        }
        Ok(())
    }

    /// Uses the keys that instances share: encrypts with the first, and decrypts with all. Own keys still decrypt their tickets.
    ///
    /// # Errors
    /// A key is invalid.
    pub fn share(&self, keys: Vec<TicketKey>) -> Result<(), Unspecified> {
        let mut shared = keys.into_iter().map(TicketCipher::new).collect::<Result<Vec<_>, _>>()?;
        let now = (self.now)();
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let is_own = |key: &TicketCipher| shared.iter().all(|shared| shared.of.name != key.of.name);
        let own = known.drain(..).filter(|key| is_own(key) && key.age(now) < KEY_SECONDS + TICKET_SECONDS);
        let own: Vec<TicketCipher> = own.take(OWN_KEYS_MAX).collect();
        shared.extend(own);
        *known = shared;
        self.is_shared.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Time during which a key encrypts tickets. Shared keys are replaced by other instances, unless the store is away.
    fn key_seconds(&self) -> u64 {
        if self.is_shared.load(Ordering::Relaxed) { KEY_SECONDS + SHARED_GRACE_SECONDS } else { KEY_SECONDS }
    }

    /// Keys for another process.
    pub fn keys(&self) -> Vec<TicketKey> {
        self.read(|keys| keys.iter().map(|key| key.of.clone()).collect())
    }

    fn read<R>(&self, read: impl FnOnce(&[TicketCipher]) -> R) -> R {
        // No code under the lock can panic half-way through a change.
        read(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a new key when it is time, and drops keys whose tickets have all expired.
    fn rotate(&self, now: u64) {
        let key_seconds = self.key_seconds();
        if !self.read(|keys| keys.first().is_none_or(|newest| newest.age(now) >= key_seconds)) {
            return;
        }
        // Without random numbers, the old key stays in use.
        let Ok(key) = TicketCipher::generate(now) else { return };
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.first().is_none_or(|newest| newest.age(now) >= key_seconds) {
            keys.insert(0, key);
            keys.retain(|key| key.age(now) < KEY_SECONDS + TICKET_SECONDS);
        }
    }
}

impl TicketKey {
    /// Key of these parts, made at this time in seconds since 1970.
    pub fn from_parts(name: [u8; NAME_BYTES], secret: [u8; KEY_BYTES], made_unix_seconds: u64) -> Self {
        Self { name, secret, made_unix_seconds }
    }
}

impl TicketCipher {
    fn new(of: TicketKey) -> Result<Self, Unspecified> {
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &of.secret)?;
        Ok(Self { of, cipher })
    }

    fn generate(made_unix_seconds: u64) -> Result<Self, Unspecified> {
        let (mut name, mut secret) = ([0; NAME_BYTES], [0; KEY_BYTES]);
        aws_lc_rs::rand::fill(&mut name)?;
        aws_lc_rs::rand::fill(&mut secret)?;
        Self::new(TicketKey { name, secret, made_unix_seconds })
    }

    /// Age of a key. A key from the future, created before the clock was set back, counts as old; otherwise it would be
    /// used until then.
    fn age(&self, now: u64) -> u64 {
        now.abs_diff(self.of.made_unix_seconds)
    }

    /// Creates a ticket: the key's name, a nonce, and the ciphertext, which authenticates the name.
    fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let mut sealed = plain.to_vec();
        let nonce = self.cipher.seal_in_place_append_tag(Aad::from(&self.of.name), &mut sealed)?;
        Ok([&self.of.name[..], nonce.as_ref(), &sealed].concat())
    }

    fn open(&self, nonce: [u8; NONCE_LEN], sealed: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let (mut opened, nonce) = (sealed.to_vec(), Nonce::assume_unique_for_key(nonce));
        let length = self.cipher.open_in_place(nonce, Aad::from(&self.of.name), &mut opened)?.len();
        opened.truncate(length);
        Ok(opened)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_SECONDS as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.rotate((self.now)());
        self.read(|keys| keys.first().and_then(|key| key.seal(plain).ok()))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = cipher.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let now = (self.now)();
        self.read(|keys| {
            let is_named = |key: &&TicketCipher| key.of.name == *name && key.age(now) < KEY_SECONDS + TICKET_SECONDS;
            keys.iter().find(is_named).and_then(|key| key.open(*nonce, sealed).ok())
        })
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the keys.
        f.write_str("Tickets")
    }
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(1_000_000) };
    }

    fn tickets(keys: Vec<TicketKey>) -> Arc<Tickets> {
        let tickets = Tickets::with_clock(keys, || NOW.get()).unwrap();
        tickets.prepare().unwrap();
        tickets
    }

    #[test]
    fn tickets_are_for_whoever_has_the_keys_as_long_as_they_last() {
        let ours = tickets(Vec::new());
        let ticket = ours.encrypt(b"session").unwrap();
        assert_ne!(ticket, ours.encrypt(b"session").unwrap(), "each has a nonce of its own");
        assert_eq!(ours.decrypt(&ticket).unwrap(), b"session");
        assert!(tickets(Vec::new()).decrypt(&ticket).is_none());
        let successor = tickets(ours.keys());
        assert_eq!(successor.decrypt(&ticket).unwrap(), b"session");
        // (seconds passed, whether the ticket is still valid, number of keys after another ticket)
        for (seconds, is_good, keys) in [
            (KEY_SECONDS - 1, true, 1),
            (1, true, 2),
            (TICKET_SECONDS - 1, true, 2),
            (1, false, 2),
            (KEY_SECONDS, false, 2),
        ] {
            NOW.set(NOW.get() + seconds);
            assert_eq!(successor.decrypt(&ticket).is_some(), is_good, "{seconds}");
            let another = successor.encrypt(b"").unwrap();
            assert_eq!(successor.decrypt(&another).unwrap(), b"");
            assert_eq!(successor.keys().len(), keys, "{seconds}");
        }
    }

    /// Two instances with the same keys, before and after a rotation.
    #[test]
    fn instances_share_keys() {
        NOW.set(5_000_000);
        let key = |number: u8, made: u64| TicketKey::from_parts([number; NAME_BYTES], [number; KEY_BYTES], made);
        let (one, other) = (tickets(Vec::new()), tickets(Vec::new()));
        let own = one.encrypt(b"own").unwrap();
        let ring =
            |current: u8| vec![key(current, NOW.get()), key(current + 1, NOW.get()), key(current - 1, NOW.get())];
        one.share(ring(2)).unwrap();
        let shared = one.encrypt(b"shared").unwrap();
        assert!(other.decrypt(&shared).is_none());
        other.share(ring(2)).unwrap();
        assert_eq!(other.decrypt(&shared).unwrap(), b"shared");
        assert_eq!(one.decrypt(&own).unwrap(), b"own", "tickets of before");
        // The other rotates late; both decrypt the other's tickets.
        NOW.set(NOW.get() + KEY_SECONDS + 30);
        one.share(ring(3)).unwrap();
        let (new, old) = (one.encrypt(b"new").unwrap(), other.encrypt(b"old").unwrap());
        assert_eq!(&new[..NAME_BYTES], [3; NAME_BYTES]);
        assert_eq!(&old[..NAME_BYTES], [2; NAME_BYTES], "no key of its own yet");
        assert_eq!((other.decrypt(&new).unwrap(), one.decrypt(&old).unwrap()), (b"new".to_vec(), b"old".to_vec()));
        // Without the store for long, a key of its own is better than an old one.
        NOW.set(NOW.get() + SHARED_GRACE_SECONDS);
        assert_ne!(&other.encrypt(b"").unwrap()[..NAME_BYTES], [2; NAME_BYTES]);
    }

    #[test]
    fn clocks_are_set() {
        const YEAR: u64 = 365 * 86_400;
        NOW.set(2 * YEAR);
        let tickets = tickets(Vec::new());
        let first = tickets.keys()[0].name;
        let ticket = tickets.encrypt(b"session").unwrap();
        // Forward, and back by more than that: there is a new key each time, and none stays for a year.
        for now in [3 * YEAR, YEAR] {
            NOW.set(now);
            assert!(tickets.decrypt(&ticket).is_none(), "{now}");
            let another = tickets.encrypt(b"session").unwrap();
            assert_eq!(tickets.decrypt(&another).unwrap(), b"session", "{now}");
            assert_ne!(tickets.keys()[0].name, first, "{now}");
        }
        // One second changes nothing.
        let ticket = tickets.encrypt(b"session").unwrap();
        NOW.set(YEAR - 1);
        assert_eq!(tickets.decrypt(&ticket).unwrap(), b"session");
    }

    #[test]
    fn what_was_changed_or_cut_is_no_ticket() {
        let tickets = tickets(Vec::new());
        let ticket = tickets.encrypt(b"session").unwrap();
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert!(tickets.decrypt(&changed).is_none(), "byte {at}");
            assert!(tickets.decrypt(&ticket[..at]).is_none(), "{at} bytes");
        }
    }
}
