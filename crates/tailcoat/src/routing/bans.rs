//! Clients that an operator has kept out for some time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::config::{Network, unmapped};
use crate::log::Client;

/// Networks that can be banned at a time. Not an option: what is longer is a list for `deny`.
const BANS_MAX: usize = 100_000;

/// A ban ends after so long at the latest: ten years.
const BAN_TIME_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Networks that are banned, for all workers. They outlive configurations.
#[derive(Debug, Default)]
pub struct Bans {
    /// Whether there may be any: what most requests look at is this alone.
    is_any: AtomicBool,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    until: HashMap<Network, Instant>,
    /// When the last of them ends.
    all_over: Option<Instant>,
    /// Lengths of prefixes that there are, of IPv4 and of IPv6.
    prefixes: Vec<(bool, u8)>,
}

/// As many are banned as can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBans;

impl Bans {
    /// Whether a client is banned.
    pub fn has(&self, client: Client) -> bool {
        self.is_any.load(Ordering::Relaxed) && self.has_at(client, Instant::now())
    }

    fn has_at(&self, client: Client, now: Instant) -> bool {
        let Client::Ip(address) = client else { return false };
        let address = unmapped(address.ip());
        let table = self.read();
        if table.all_over.is_none_or(|end| end <= now) {
            // With the lock, so that no ban comes in between.
            self.is_any.store(false, Ordering::Relaxed);
            return false;
        }
        let of_length = |&(_, bits): &(bool, u8)| Network::new(address, bits).and_then(|of| table.until.get(&of));
        let lengths = table.prefixes.iter().filter(|(is_v4, _)| *is_v4 == address.is_ipv4());
        lengths.filter_map(of_length).any(|until| *until > now)
    }

    /// Bans a network for so long, ten years at most, instead of what was said of it before.
    ///
    /// # Errors
    /// There are too many.
    pub fn ban(&self, network: Network, time: Duration) -> Result<(), TooManyBans> {
        let now = Instant::now();
        let mut table = self.write();
        table.forget_expired(now);
        if table.until.len() >= BANS_MAX && !table.until.contains_key(&network) {
            return Err(TooManyBans);
        }
        table.until.insert(network, now + time.min(BAN_TIME_MAX));
        table.summarize();
        self.is_any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Bans these, each for so long, and nobody else. Of too many the first.
    pub fn replace(&self, bans: impl Iterator<Item = (Network, Duration)>) {
        let now = Instant::now();
        let mut table = self.write();
        table.until = bans.take(BANS_MAX).map(|(network, time)| (network, now + time.min(BAN_TIME_MAX))).collect();
        table.summarize();
        self.is_any.store(!table.until.is_empty(), Ordering::Relaxed);
    }

    /// Bans a network no more; `false` if it was not.
    pub fn unban(&self, network: Network) -> bool {
        let mut table = self.write();
        table.forget_expired(Instant::now());
        let was_banned = table.until.remove(&network).is_some();
        table.summarize();
        self.is_any.store(!table.until.is_empty(), Ordering::Relaxed);
        was_banned
    }

    /// All of them, each with the time that is left of it, in the order of addresses.
    pub fn list(&self) -> Vec<(Network, Duration)> {
        let now = Instant::now();
        let table = self.read();
        let left = table.until.iter().map(|(network, until)| (*network, until.saturating_duration_since(now)));
        let mut list: Vec<_> = left.filter(|(_, left)| !left.is_zero()).collect();
        list.sort_unstable_by_key(|(network, _)| (network.first, network.prefix_bits));
        list
    }

    // Whoever panicked with the lock left a whole table.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn forget_expired(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
    }

    fn summarize(&mut self) {
        self.all_over = self.until.values().max().copied();
        self.prefixes = self.until.keys().map(|of| (of.first.is_ipv4(), of.prefix_bits)).collect();
        self.prefixes.sort_unstable();
        self.prefixes.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        let (address, bits) = text.split_once('/').unwrap();
        Network::new(address.parse().unwrap(), bits.parse().unwrap()).unwrap()
    }

    #[test]
    fn who_is_banned_and_for_how_long() {
        let bans = Bans::default();
        let has = |address: &str| bans.has(Client::Ip(address.parse().unwrap()));
        assert!(!has("192.0.2.1:1"));
        for banned in ["192.0.2.1/32", "198.51.100.0/24", "2001:db8:0:1::/64"] {
            bans.ban(network(banned), Duration::from_secs(60)).unwrap();
        }
        for (address, expect) in [
            ("192.0.2.1:1", true),
            ("[::ffff:192.0.2.1]:1", true),
            ("192.0.2.2:1", false),
            ("198.51.100.255:1", true),
            ("198.51.101.0:1", false),
            ("[2001:db8:0:1:ffff::1]:1", true),
            ("[2001:db8:0:2::1]:1", false),
        ] {
            assert_eq!(has(address), expect, "{address}");
        }
        assert!(!bans.has(Client::Unix));
        let listed: Vec<_> = bans.list().iter().map(|(network, _)| network.to_string()).collect();
        assert_eq!(listed, ["192.0.2.1/32", "198.51.100.0/24", "2001:db8:0:1::/64"]);
        assert!(bans.unban(network("192.0.2.1/32")) && !bans.unban(network("192.0.2.1/32")));
        assert!(!has("192.0.2.1:1") && has("198.51.100.1:1"));
        // A shorter time takes the place of a longer one.
        bans.ban(network("198.51.100.0/24"), Duration::ZERO).unwrap();
        assert!(!has("198.51.100.1:1"));
        assert_eq!(bans.list().len(), 1);
        bans.ban(network("192.0.2.1/32"), Duration::MAX).unwrap();
        assert!(has("192.0.2.1:1"));
    }

    #[test]
    fn bans_that_are_over_cost_nothing() {
        let bans = Bans::default();
        let client = Client::Ip("192.0.2.1:1".parse().unwrap());
        let now = Instant::now();
        bans.ban(network("192.0.2.1/32"), Duration::from_secs(60)).unwrap();
        bans.ban(network("198.51.100.0/24"), Duration::from_secs(90)).unwrap();
        for (seconds, banned, is_looked_for) in [(30, true, true), (70, false, true), (91, false, false)] {
            assert_eq!(bans.has_at(client, now + Duration::from_secs(seconds)), banned, "after {seconds} s");
            assert_eq!(bans.is_any.load(Ordering::Relaxed), is_looked_for, "after {seconds} s");
        }
        bans.ban(network("192.0.2.1/32"), Duration::from_secs(60)).unwrap();
        assert!(bans.has(client), "banned anew");
    }
}
