//! Clients that an operator has banned for a limited time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::config::{Network, unmapped};
use crate::log::LogClient;

/// Maximum number of networks banned at a time. Not an option; a longer list belongs into `deny` rules.
const BANS_MAX: usize = 100_000;

/// Maximum number of them for bans by rules; the rest is left to operators.
const RULE_BANS_MAX: usize = BANS_MAX / 2;

/// Time between two searches of a full table for bans that are over.
const SWEEP_TIME: Duration = Duration::from_secs(1);

/// Maximum time of a ban: ten years.
const BAN_TIME_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Banned networks, shared by all workers. They survive a reload.
#[derive(Debug, Default)]
pub struct Bans {
    /// False if the table is empty. Most requests read only this flag.
    is_any: AtomicBool,
    table: RwLock<BanTable>,
}

#[derive(Debug, Default)]
struct BanTable {
    until: HashMap<Network, Instant>,
    /// Time at which all bans are over, or later.
    all_over: Option<Instant>,
    /// Prefix lengths in the table, or more; the flag is true for IPv4.
    prefixes: Vec<(bool, u8)>,
    /// Time of the last search for bans that are over.
    swept_at: Option<Instant>,
}

/// Error: the maximum number of networks is banned already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBans;

impl Bans {
    /// Returns true if a client is banned.
    pub fn has(&self, client: LogClient) -> bool {
        self.is_any.load(Ordering::Relaxed) && self.has_at(client, Instant::now())
    }

    fn has_at(&self, client: LogClient, now: Instant) -> bool {
        let LogClient::Ip(address) = client else { return false };
        let address = unmapped(address.ip());
        let table = self.read();
        if table.all_over.is_none_or(|end| end <= now) {
            // The flag is cleared under the lock, so that a concurrent ban is not lost.
            self.is_any.store(false, Ordering::Relaxed);
            return false;
        }
        let of_length = |&(_, bits): &(bool, u8)| Network::new(address, bits).and_then(|of| table.until.get(&of));
        let lengths = table.prefixes.iter().filter(|(is_v4, _)| *is_v4 == address.is_ipv4());
        lengths.filter_map(of_length).any(|until| *until > now)
    }

    /// Bans a network for this time, at most ten years, replacing an earlier ban of the same network.
    ///
    /// # Errors
    /// The maximum number of networks is banned already.
    pub fn ban(&self, network: Network, time: Duration) -> Result<(), TooManyBans> {
        let now = Instant::now();
        let mut table = self.write();
        table.make_room(network, BANS_MAX, now)?;
        table.insert(network, now + time.min(BAN_TIME_MAX));
        self.is_any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Bans a network by a rule. Returns false if it is banned already; that ban stays. The cost does not grow with the
    /// number of bans, because clients decide how often this happens.
    ///
    /// # Errors
    /// The maximum number of networks that rules may ban is banned already.
    pub fn ban_automatically(&self, network: Network, time: Duration) -> Result<bool, TooManyBans> {
        let now = Instant::now();
        let mut table = self.write();
        if table.until.get(&network).is_some_and(|until| *until > now) {
            return Ok(false);
        }
        table.make_room(network, RULE_BANS_MAX, now)?;
        table.insert(network, now + time.min(BAN_TIME_MAX));
        self.is_any.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Replaces all bans with these, each with its time. If there are too many, only the first are kept.
    pub fn replace(&self, bans: impl Iterator<Item = (Network, Duration)>) {
        let now = Instant::now();
        let mut table = self.write();
        table.until = bans.take(BANS_MAX).map(|(network, time)| (network, now + time.min(BAN_TIME_MAX))).collect();
        table.summarize();
        self.is_any.store(!table.until.is_empty(), Ordering::Relaxed);
    }

    /// Ends the ban of a network; returns false if it was not banned.
    pub fn unban(&self, network: Network) -> bool {
        let mut table = self.write();
        table.forget_expired(Instant::now());
        let was_banned = table.until.remove(&network).is_some();
        table.summarize();
        self.is_any.store(!table.until.is_empty(), Ordering::Relaxed);
        was_banned
    }

    /// Lists all bans with their remaining time, in the order of addresses.
    pub fn list(&self) -> Vec<(Network, Duration)> {
        let now = Instant::now();
        let table = self.read();
        let left = table.until.iter().map(|(network, until)| (*network, until.saturating_duration_since(now)));
        let mut list: Vec<_> = left.filter(|(_, left)| !left.is_zero()).collect();
        list.sort_unstable_by_key(|(network, _)| *network);
        list
    }

    // A panic while the lock is held leaves a consistent table.
    fn read(&self) -> RwLockReadGuard<'_, BanTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BanTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BanTable {
    /// Makes room for a network among at most `bans_max`.
    fn make_room(&mut self, network: Network, bans_max: usize, now: Instant) -> Result<(), TooManyBans> {
        let is_full = |table: &Self| table.until.len() >= bans_max && !table.until.contains_key(&network);
        if is_full(self) && self.swept_at.is_none_or(|at| now >= at + SWEEP_TIME) {
            self.swept_at = Some(now);
            self.forget_expired(now);
            self.summarize();
        }
        if is_full(self) { Err(TooManyBans) } else { Ok(()) }
    }

    fn insert(&mut self, network: Network, until: Instant) {
        self.until.insert(network, until);
        self.all_over = self.all_over.max(Some(until));
        let prefix = (network.first().is_ipv4(), network.prefix_bits());
        if let Err(at) = self.prefixes.binary_search(&prefix) {
            self.prefixes.insert(at, prefix);
        }
    }

    fn forget_expired(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
    }

    fn summarize(&mut self) {
        self.all_over = self.until.values().max().copied();
        self.prefixes = self.until.keys().map(|of| (of.first().is_ipv4(), of.prefix_bits())).collect();
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
        let has = |address: &str| bans.has(LogClient::Ip(address.parse().unwrap()));
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
        assert!(!bans.has(LogClient::Unix));
        let listed: Vec<_> = bans.list().iter().map(|(network, _)| network.to_string()).collect();
        assert_eq!(listed, ["192.0.2.1/32", "198.51.100.0/24", "2001:db8:0:1::/64"]);
        assert!(bans.unban(network("192.0.2.1/32")) && !bans.unban(network("192.0.2.1/32")));
        assert!(!has("192.0.2.1:1") && has("198.51.100.1:1"));
        // A shorter time replaces a longer one.
        bans.ban(network("198.51.100.0/24"), Duration::ZERO).unwrap();
        assert!(!has("198.51.100.1:1"));
        assert_eq!(bans.list().len(), 1);
        bans.ban(network("192.0.2.1/32"), Duration::MAX).unwrap();
        assert!(has("192.0.2.1:1"));
    }

    /// Clients decide how often rules ban.
    #[test]
    fn rules_leave_room_for_operators() {
        let bans = Bans::default();
        let of = |number: usize| Network::new(std::net::Ipv4Addr::from(number as u32).into(), 32).unwrap();
        let hour = Duration::from_secs(3_600);
        for number in 0..RULE_BANS_MAX {
            assert_eq!(bans.ban_automatically(of(number), hour), Ok(true));
        }
        assert_eq!(bans.ban_automatically(of(0), Duration::ZERO), Ok(false), "a ban stays");
        assert_eq!(bans.ban_automatically(of(RULE_BANS_MAX), hour), Err(TooManyBans));
        bans.ban(network("198.51.100.0/24"), hour).unwrap();
        assert!(bans.unban(of(7)) && bans.unban(of(8)));
        assert_eq!(bans.ban_automatically(of(RULE_BANS_MAX), hour), Ok(true));
        assert!(bans.has(LogClient::Ip("198.51.100.1:1".parse().unwrap())));
    }

    #[test]
    fn bans_that_are_over_cost_nothing() {
        let bans = Bans::default();
        let client = LogClient::Ip("192.0.2.1:1".parse().unwrap());
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
