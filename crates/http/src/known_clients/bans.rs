//! Clients that an operator, a rule or CrowdSec has banned for a limited time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bots::crowdsec::DecisionChanges;

use super::config::{BanAction, Network, unmapped};
use super::log::LogClient;

/// Maximum number of networks banned at a time. Not an option; a longer list belongs into `deny` rules.
const BANS_MAX: usize = 100_000;

/// Maximum number of them for bans by rules; the rest is left to operators.
const RULE_BANS_MAX: usize = BANS_MAX / 2;

/// Changes of bans by rules that wait to be told to other instances. Further ones stay with this instance.
const UNTOLD_MAX: usize = 2_048;

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
    /// Bans of CrowdSec, apart from the others: their source ends them, too.
    decided: Option<Box<Self>>,
    /// Connections that are kept without a response.
    tarpitted: AtomicUsize,
}

/// Effect of a ban on a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanVerdict {
    /// Connections are closed, and requests get status 403.
    Reject,
    /// Connections are closed without a response.
    Close,
    /// Connections are kept without a response.
    Tarpit,
    /// Requests above a rate get status 429, for so many seconds.
    Limit(u64),
}

/// A ban.
#[derive(Debug)]
struct Ban {
    until: Instant,
    action: BanAction,
    /// True if a rule has set it, here or at another instance.
    is_by_rule: bool,
    /// Of a limited client: time at which its rate is whole again, in milliseconds since `from`.
    whole_at_ms: AtomicU64,
    from: Instant,
}

/// Place of a connection in the tarpit.
#[derive(Debug)]
pub struct TarpitPlace(Arc<Bans>);

impl Drop for TarpitPlace {
    fn drop(&mut self) {
        self.0.tarpitted.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct BanTable {
    bans: HashMap<Network, Ban>,
    /// Time at which all bans are over, or later.
    all_over: Option<Instant>,
    /// Prefix lengths in the table, or more; the flag is true for IPv4.
    prefixes: Vec<(bool, u8)>,
    /// Time of the last search for bans that are over.
    swept_at: Option<Instant>,
    /// Networks whose bans by rules have changed since the last report to other instances; `None` without reports.
    untold: Option<Vec<Network>>,
}

/// Remaining time and action of a ban by a rule; `None` if it has ended early.
pub type RuleBan = Option<(Duration, BanAction)>;

/// Error: the maximum number of networks is banned already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBans;

impl Bans {
    /// Makes an empty table, with another one for the decisions of CrowdSec.
    pub fn with_decisions() -> Self {
        Self { decided: Some(Box::default()), ..Self::default() }
    }

    /// Returns true if connections of a client are closed, or its requests rejected.
    pub fn has(&self, client: LogClient) -> bool {
        self.verdict(client).is_some_and(|verdict| !matches!(verdict, BanVerdict::Limit(_)))
    }

    /// Effect of a ban on a connection of a client; `None` if it has none. A limit is for requests.
    #[inline]
    pub fn verdict_on_connection(&self, client: LogClient) -> Option<BanVerdict> {
        self.verdict_if(client, |action| !matches!(action, BanAction::Limit(..)))
    }

    /// Effect of a ban on a request of a client; `None` if it may go on.
    #[inline]
    pub fn verdict(&self, client: LogClient) -> Option<BanVerdict> {
        self.verdict_if(client, |_| true)
    }

    #[inline]
    fn verdict_if(&self, client: LogClient, counts: fn(BanAction) -> bool) -> Option<BanVerdict> {
        let own = || self.is_any.load(Ordering::Relaxed).then(|| self.verdict_at(client, counts, Instant::now()))?;
        own().or_else(|| self.decided.as_ref()?.verdict_if(client, counts))
    }

    /// Takes a place in the tarpit; `None` if there are `connections_max` already.
    pub fn take_tarpit_place(self: &Arc<Self>, connections_max: usize) -> Option<TarpitPlace> {
        let taken = self
            .tarpitted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < connections_max).then_some(count + 1));
        taken.ok().map(|_| TarpitPlace(Arc::clone(self)))
    }

    /// Number of connections in the tarpit.
    pub fn tarpitted(&self) -> usize {
        self.tarpitted.load(Ordering::Relaxed)
    }

    /// Applies decisions of CrowdSec. `is_all` means that earlier ones are replaced. Returns the number in force.
    pub(super) fn apply_decisions(&self, changes: DecisionChanges, is_all: bool) -> usize {
        let Some(decided) = &self.decided else { return 0 };
        let now = Instant::now();
        let mut table = decided.write();
        if is_all {
            table.bans.clear();
        }
        // A network may have several decisions; the one that ends is not the last to be listed.
        for network in &changes.deleted {
            table.bans.remove(network);
        }
        for (network, time) in changes.banned {
            if table.make_room(network, BANS_MAX, now).is_err() {
                break;
            }
            let until = now + time.min(BAN_TIME_MAX);
            if table.bans.get(&network).is_none_or(|ban| ban.until < until) {
                table.insert(network, until, BanAction::Reject, false, now);
            }
        }
        table.forget_expired(now);
        table.summarize();
        decided.is_any.store(!table.bans.is_empty(), Ordering::Relaxed);
        table.bans.len()
    }

    /// Ends all decisions of CrowdSec, which is asked no more.
    pub fn end_decisions(&self) {
        let Some(decided) = &self.decided else { return };
        let mut table = decided.write();
        table.bans.clear();
        decided.is_any.store(false, Ordering::Relaxed);
    }

    #[cold]
    fn verdict_at(&self, client: LogClient, counts: fn(BanAction) -> bool, now: Instant) -> Option<BanVerdict> {
        let LogClient::Ip(address) = client else { return None };
        let address = unmapped(address.ip());
        let table = self.read();
        if table.all_over.is_none_or(|end| end <= now) {
            // The flag is cleared under the lock, so that a concurrent ban is not lost.
            self.is_any.store(false, Ordering::Relaxed);
            return None;
        }
        let of_length = |&(_, bits): &(bool, u8)| Network::new(address, bits).and_then(|of| table.bans.get(&of));
        let lengths = table.prefixes.iter().filter(|(is_v4, _)| *is_v4 == address.is_ipv4());
        let in_force = lengths.filter_map(of_length).filter(|ban| ban.until > now && counts(ban.action));
        // Of several bans, the strictest counts.
        in_force.filter_map(|ban| ban.verdict(now)).min_by_key(|verdict| match verdict {
            BanVerdict::Reject => 0,
            BanVerdict::Close => 1,
            BanVerdict::Tarpit => 2,
            BanVerdict::Limit(_) => 3,
        })
    }

    /// Bans a network for this time, at most ten years, replacing an earlier ban of the same network.
    ///
    /// # Errors
    /// The maximum number of networks is banned already.
    pub fn ban(&self, network: Network, time: Duration) -> Result<(), TooManyBans> {
        let now = Instant::now();
        let mut table = self.write();
        table.make_room(network, BANS_MAX, now)?;
        table.insert(network, now + time.min(BAN_TIME_MAX), BanAction::Reject, false, now);
        self.is_any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Bans a network by a rule. Returns false if it is banned already; that ban stays. The cost does not grow with the
    /// number of bans, because clients decide how often this happens.
    ///
    /// # Errors
    /// The maximum number of networks that rules may ban is banned already.
    pub fn ban_automatically(&self, network: Network, time: Duration, action: BanAction) -> Result<bool, TooManyBans> {
        let now = Instant::now();
        let mut table = self.write();
        if table.bans.get(&network).is_some_and(|ban| ban.until > now) {
            return Ok(false);
        }
        table.make_room(network, RULE_BANS_MAX, now)?;
        table.insert(network, now + time.min(BAN_TIME_MAX), action, true, now);
        table.note(network);
        self.is_any.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Keeps changes of bans by rules for other instances, or stops to.
    pub fn share(&self, is_shared: bool) {
        let untold = &mut self.write().untold;
        match is_shared {
            true => _ = untold.get_or_insert_default(),
            false => *untold = None,
        }
    }

    /// Changes of bans by rules that other instances do not know. They count as told.
    pub fn take_changes(&self) -> Vec<(Network, RuleBan)> {
        let now = Instant::now();
        let mut table = self.write();
        let networks = table.untold.as_mut().map(std::mem::take).unwrap_or_default();
        let of_rule = |network: &Network| table.bans.get(network).filter(|ban| ban.is_by_rule && ban.until > now);
        let left = |ban: &Ban| (ban.until.saturating_duration_since(now), ban.action);
        networks.iter().map(|network| (*network, of_rule(network).map(left))).collect()
    }

    /// Applies a change of a ban by a rule of another instance. Bans of operators stay. Returns true if it has changed
    /// something.
    pub fn apply_change(&self, network: Network, change: RuleBan) -> bool {
        let now = Instant::now();
        let mut table = self.write();
        let known = table.bans.get(&network).filter(|ban| ban.until > now);
        match (change, known) {
            (_, Some(known)) if !known.is_by_rule => return false,
            (Some((time, action)), _) => {
                if table.make_room(network, RULE_BANS_MAX, now).is_err() {
                    return false;
                }
                table.insert(network, now + time.min(BAN_TIME_MAX), action, true, now);
            }
            (None, Some(_)) => {
                table.bans.remove(&network);
                table.summarize();
            }
            (None, None) => return false,
        }
        self.is_any.store(!table.bans.is_empty(), Ordering::Relaxed);
        true
    }

    /// Replaces all bans with these, each with its time and action. If there are too many, only the first are kept.
    pub fn replace(&self, bans: impl Iterator<Item = (Network, Duration, BanAction)>) {
        let now = Instant::now();
        let mut table = self.write();
        table.bans.clear();
        for (network, time, action) in bans.take(BANS_MAX) {
            table.insert(network, now + time.min(BAN_TIME_MAX), action, true, now);
        }
        table.summarize();
        self.is_any.store(!table.bans.is_empty(), Ordering::Relaxed);
    }

    /// Ends the ban of a network; returns false if it was not banned.
    pub fn unban(&self, network: Network) -> bool {
        let mut table = self.write();
        table.forget_expired(Instant::now());
        let mut was_banned = table.bans.remove(&network).is_some();
        table.note(network);
        table.summarize();
        self.is_any.store(!table.bans.is_empty(), Ordering::Relaxed);
        drop(table);
        was_banned |= self.decided.as_ref().is_some_and(|decided| decided.unban(network));
        was_banned
    }

    /// Lists the bans of operators and rules with their remaining time and action, in the order of addresses.
    pub fn list(&self) -> Vec<(Network, Duration, BanAction)> {
        let now = Instant::now();
        let table = self.read();
        let left =
            table.bans.iter().map(|(network, ban)| (*network, ban.until.saturating_duration_since(now), ban.action));
        let mut list: Vec<_> = left.filter(|(_, left, _)| !left.is_zero()).collect();
        list.sort_unstable_by_key(|(network, ..)| *network);
        list
    }

    /// Lists the bans of CrowdSec with their remaining time, in the order of addresses.
    pub fn list_decisions(&self) -> Vec<(Network, Duration)> {
        let listed = self.decided.as_ref().map(|decided| decided.list()).unwrap_or_default();
        listed.into_iter().map(|(network, left, _)| (network, left)).collect()
    }

    // A panic while the lock is held leaves a consistent table.
    fn read(&self) -> RwLockReadGuard<'_, BanTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BanTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ban {
    /// Effect of the ban; `None` for a request within the rate of a limit, which is counted.
    fn verdict(&self, now: Instant) -> Option<BanVerdict> {
        Some(match self.action {
            BanAction::Reject => BanVerdict::Reject,
            BanAction::Close => BanVerdict::Close,
            BanAction::Tarpit => BanVerdict::Tarpit,
            BanAction::Limit(count, seconds) => {
                let period_ms = u64::from(seconds) * 1_000;
                let interval_ms = (period_ms / u64::from(count.max(1))).max(1);
                let now_ms = now.saturating_duration_since(self.from).as_millis() as u64;
                let take = |whole_at_ms: u64| {
                    let next_ms = whole_at_ms.max(now_ms) + interval_ms;
                    (next_ms - now_ms <= period_ms).then_some(next_ms)
                };
                let taken = self.whole_at_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
                return taken.err().map(|whole_at_ms| {
                    BanVerdict::Limit((whole_at_ms + interval_ms).saturating_sub(now_ms + period_ms).div_ceil(1_000))
                });
            }
        })
    }
}

impl BanTable {
    /// Makes room for a network among at most `bans_max`.
    fn make_room(&mut self, network: Network, bans_max: usize, now: Instant) -> Result<(), TooManyBans> {
        let is_full = |table: &Self| table.bans.len() >= bans_max && !table.bans.contains_key(&network);
        if is_full(self) && self.swept_at.is_none_or(|at| now >= at + SWEEP_TIME) {
            self.swept_at = Some(now);
            self.forget_expired(now);
            self.summarize();
        }
        if is_full(self) { Err(TooManyBans) } else { Ok(()) }
    }

    fn insert(&mut self, network: Network, until: Instant, action: BanAction, is_by_rule: bool, from: Instant) {
        self.bans.insert(network, Ban { until, action, is_by_rule, whole_at_ms: AtomicU64::new(0), from });
        self.all_over = self.all_over.max(Some(until));
        let prefix = (network.first().is_ipv4(), network.prefix_bits());
        if let Err(at) = self.prefixes.binary_search(&prefix) {
            self.prefixes.insert(at, prefix);
        }
    }

    /// Notes that the ban of a network has changed, for other instances.
    fn note(&mut self, network: Network) {
        if let Some(untold) = self.untold.as_mut().filter(|untold| untold.len() < UNTOLD_MAX) {
            untold.push(network);
        }
    }

    fn forget_expired(&mut self, now: Instant) {
        self.bans.retain(|_, ban| ban.until > now);
    }

    fn summarize(&mut self) {
        self.all_over = self.bans.values().map(|ban| ban.until).max();
        self.prefixes = self.bans.keys().map(|of| (of.first().is_ipv4(), of.prefix_bits())).collect();
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
        let listed: Vec<_> = bans.list().iter().map(|(network, ..)| network.to_string()).collect();
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
            assert_eq!(bans.ban_automatically(of(number), hour, BanAction::Reject), Ok(true));
        }
        assert_eq!(bans.ban_automatically(of(0), Duration::ZERO, BanAction::Reject), Ok(false), "a ban stays");
        assert_eq!(bans.ban_automatically(of(RULE_BANS_MAX), hour, BanAction::Reject), Err(TooManyBans));
        bans.ban(network("198.51.100.0/24"), hour).unwrap();
        assert!(bans.unban(of(7)) && bans.unban(of(8)));
        assert_eq!(bans.ban_automatically(of(RULE_BANS_MAX), hour, BanAction::Reject), Ok(true));
        assert!(bans.has(LogClient::Ip("198.51.100.1:1".parse().unwrap())));
    }

    #[test]
    fn bans_by_rules_are_told() {
        let (here, there) = (Bans::default(), Bans::default());
        let (one, two) = (network("192.0.2.1/32"), network("192.0.2.2/32"));
        let hour = Duration::from_secs(3_600);
        let tell = |from: &Bans, to: &Bans| {
            let changes = from.take_changes().into_iter();
            changes.map(|(network, change)| to.apply_change(network, change)).collect::<Vec<_>>()
        };
        here.ban_automatically(one, hour, BanAction::Tarpit).unwrap();
        assert_eq!(here.take_changes(), [], "no other instance");
        [&here, &there].into_iter().for_each(|bans| bans.share(true));
        here.ban_automatically(two, hour, BanAction::Tarpit).unwrap();
        here.ban(network("198.51.100.0/24"), hour).unwrap();
        assert_eq!(tell(&here, &there), [true], "an operator's ban is an order");
        assert!(matches!(there.list()[..], [(found, _, BanAction::Tarpit)] if found == two));
        assert_eq!(tell(&there, &here), Vec::<bool>::new(), "what others have told is not told");
        here.unban(two);
        assert_eq!((tell(&here, &there), there.list().len()), (vec![true], 0));
        // A ban of an operator outlasts that of a rule.
        there.ban(one, hour).unwrap();
        assert!(!there.apply_change(one, None) && !there.apply_change(one, Some((hour, BanAction::Close))));
        assert!(there.has(LogClient::Ip("192.0.2.1:1".parse().unwrap())));
        for number in 0..UNTOLD_MAX + 10 {
            here.ban_automatically(
                Network::new(std::net::Ipv4Addr::from(number as u32).into(), 32).unwrap(),
                hour,
                BanAction::Reject,
            )
            .unwrap();
        }
        assert_eq!(here.take_changes().len(), UNTOLD_MAX);
    }

    #[test]
    fn bans_that_are_over_cost_nothing() {
        let bans = Bans::default();
        let client = LogClient::Ip("192.0.2.1:1".parse().unwrap());
        let now = Instant::now();
        bans.ban(network("192.0.2.1/32"), Duration::from_secs(60)).unwrap();
        bans.ban(network("198.51.100.0/24"), Duration::from_secs(90)).unwrap();
        for (seconds, banned, is_looked_for) in [(30, true, true), (70, false, true), (91, false, false)] {
            let verdict = bans.verdict_at(client, |_| true, now + Duration::from_secs(seconds));
            assert_eq!(verdict.is_some(), banned, "after {seconds} s");
            assert_eq!(bans.is_any.load(Ordering::Relaxed), is_looked_for, "after {seconds} s");
        }
        bans.ban(network("192.0.2.1/32"), Duration::from_secs(60)).unwrap();
        assert!(bans.has(client), "banned again");
    }
    #[test]
    fn actions() {
        let bans = Arc::new(Bans::with_decisions());
        let client = |text: &str| LogClient::Ip(text.parse().unwrap());
        let hour = Duration::from_secs(3_600);
        for (network_text, action) in [
            ("192.0.2.1/32", BanAction::Close),
            ("192.0.2.2/32", BanAction::Tarpit),
            ("192.0.2.3/32", BanAction::Limit(2, 10)),
        ] {
            bans.ban_automatically(network(network_text), hour, action).unwrap();
        }
        assert_eq!(bans.verdict(client("192.0.2.1:1")), Some(BanVerdict::Close));
        assert_eq!(bans.verdict(client("192.0.2.2:1")), Some(BanVerdict::Tarpit));
        assert_eq!(bans.verdict_on_connection(client("192.0.2.3:1")), None, "a limit is for requests");
        let limited = client("192.0.2.3:1");
        assert_eq!([bans.verdict(limited), bans.verdict(limited)], [None, None]);
        assert!(matches!(bans.verdict(limited), Some(BanVerdict::Limit(1..=10))));
        let later = Instant::now() + Duration::from_secs(6);
        assert_eq!(bans.verdict_at(limited, |_| true, later), None, "half of the rate is back");
        // Of two bans, the stricter.
        bans.ban(network("192.0.2.0/24"), hour).unwrap();
        assert_eq!(bans.verdict(client("192.0.2.2:1")), Some(BanVerdict::Reject));
        let places: Vec<_> = (0..3).filter_map(|_| bans.take_tarpit_place(2)).collect();
        assert_eq!((places.len(), bans.tarpitted()), (2, 2));
        drop(places);
        assert_eq!(bans.tarpitted(), 0);
    }

    #[test]
    fn decisions_are_apart() {
        let bans = Bans::with_decisions();
        let client = LogClient::Ip("192.0.2.1:1".parse().unwrap());
        let hour = Duration::from_secs(3_600);
        let changes = |banned: &[&str], deleted: &[&str]| DecisionChanges {
            banned: banned.iter().map(|text| (network(text), hour)).collect(),
            deleted: deleted.iter().map(|text| network(text)).collect(),
            ignored: 0,
        };
        assert_eq!(bans.apply_decisions(changes(&["192.0.2.1/32", "198.51.100.0/24"], &[]), true), 2);
        assert!(bans.has(client) && bans.list().is_empty());
        assert_eq!(bans.list_decisions().len(), 2);
        bans.ban(network("192.0.2.1/32"), hour).unwrap();
        assert_eq!(bans.apply_decisions(changes(&[], &["192.0.2.1/32"]), false), 1);
        assert!(bans.has(client), "the operator's ban stays");
        assert!(bans.unban(network("192.0.2.1/32")) && !bans.has(client));
        assert_eq!(bans.apply_decisions(changes(&["192.0.2.9/32"], &[]), true), 1, "all are replaced");
    }
}
