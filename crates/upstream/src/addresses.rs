//! Current addresses of a server's name.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Time for which an address whose connection failed comes after the others.
const AVOIDED_TIME: Duration = Duration::from_secs(60);

/// Most addresses kept for a name; the rest are dropped.
const ADDRESSES_MAX: usize = 64;

/// Addresses of a server, shared by all workers. Read only to open a connection.
#[derive(Debug)]
pub(super) struct UpstreamAddresses {
    state: Mutex<UpstreamAddressesState>,
    /// Notified when the first lookup has ended.
    looked_up: Notify,
}

#[derive(Debug)]
struct UpstreamAddressesState {
    list: Vec<UpstreamAddress>,
    /// Index at which the next connection begins; it advances so that connections spread over all addresses.
    turn: usize,
    is_looked_up: bool,
}

#[derive(Clone, Copy, Debug)]
struct UpstreamAddress {
    socket: SocketAddr,
    avoided_until: Option<Instant>,
}

impl UpstreamAddresses {
    /// Creates the address of a host that needs no lookup (an IP address; IPv6 in brackets), or an empty list.
    pub(super) fn of_host(host: &str, port: u16) -> Self {
        let list = literal(host).map(|ip| UpstreamAddress { socket: SocketAddr::new(ip, port), avoided_until: None });
        let is_looked_up = list.is_some();
        let state = UpstreamAddressesState { list: list.into_iter().collect(), turn: 0, is_looked_up };
        Self { state: Mutex::new(state), looked_up: Notify::new() }
    }

    /// Reuses the addresses known for the same name.
    pub(super) fn reuse(&self, before: &Self) {
        let before = before.lock();
        let (list, is_looked_up) = (before.list.clone(), before.is_looked_up);
        drop(before);
        let mut state = self.lock();
        (state.list, state.is_looked_up) = (list, is_looked_up);
    }

    /// Checks whether a host is an IP address and needs no lookup.
    pub(super) fn is_literal(host: &str) -> bool {
        literal(host).is_some()
    }

    /// Applies the result of a lookup. An empty result keeps the known addresses. Returns whether there is an address
    /// now.
    pub(super) fn update(&self, found: &[SocketAddr]) -> bool {
        let mut state = self.lock();
        if !found.is_empty() {
            let mut list: Vec<UpstreamAddress> = Vec::new();
            for &socket in found.iter().take(ADDRESSES_MAX) {
                // Resolvers return an address several times, once for each type of socket.
                if !list.iter().any(|known| known.socket == socket) {
                    let known = state.list.iter().find(|known| known.socket == socket).copied();
                    list.push(known.unwrap_or(UpstreamAddress { socket, avoided_until: None }));
                }
            }
            state.list = list;
        }
        state.is_looked_up = true;
        self.looked_up.notify_waiters();
        !state.list.is_empty()
    }

    /// Waits for the first lookup and returns the addresses to try, in order; empty if it found none.
    pub(super) async fn get(&self) -> Vec<SocketAddr> {
        loop {
            // Registered before the check, so that no notification is lost in between.
            let looked_up = self.looked_up.notified();
            if let Some(list) = self.next(Instant::now()) {
                return list;
            }
            looked_up.await;
        }
    }

    /// Returns what [`get`](Self::get) would; `None` if no lookup has ended.
    pub(super) fn next(&self, now: Instant) -> Option<Vec<SocketAddr>> {
        let mut state = self.lock();
        if !state.is_looked_up {
            return None;
        }
        let is_good = |address: &UpstreamAddress| address.avoided_until.is_none_or(|until| now >= until);
        let (good, avoided): (Vec<UpstreamAddress>, Vec<UpstreamAddress>) =
            state.list.iter().copied().partition(is_good);
        let mut sockets: Vec<SocketAddr> = good.into_iter().map(|address| address.socket).collect();
        if !sockets.is_empty() {
            let turn = state.turn % sockets.len();
            sockets.rotate_left(turn);
        }
        state.turn = state.turn.wrapping_add(1);
        sockets.extend(avoided.into_iter().map(|address| address.socket));
        Some(sockets)
    }

    /// Records whether a connection to an address succeeded.
    pub(super) fn note(&self, socket: SocketAddr, is_good: bool, now: Instant) {
        let mut state = self.lock();
        if let Some(address) = state.list.iter_mut().find(|address| address.socket == socket) {
            address.avoided_until = (!is_good).then(|| now + AVOIDED_TIME);
        }
    }

    fn lock(&self) -> MutexGuard<'_, UpstreamAddressesState> {
        // No update is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(last: &[u8]) -> Vec<SocketAddr> {
        last.iter().map(|last| SocketAddr::from(([10, 0, 0, *last], 80))).collect()
    }

    /// Last bytes of the addresses, in the order in which they would be tried.
    fn next(addresses: &UpstreamAddresses, now: Instant) -> Option<Vec<u8>> {
        let last = |socket: &SocketAddr| socket.to_string().split(['.', ':']).nth(3).unwrap().parse().unwrap();
        Some(addresses.next(now)?.iter().map(last).collect())
    }

    #[test]
    fn an_address_needs_no_lookup() {
        for (host, expect) in [("10.0.0.1", Some("10.0.0.1:80")), ("[::1]", Some("[::1]:80")), ("localhost", None)] {
            let found = UpstreamAddresses::of_host(host, 80).next(Instant::now());
            assert_eq!(found.map(|found| found[0].to_string()).as_deref(), expect);
            assert_eq!(UpstreamAddresses::is_literal(host), expect.is_some());
        }
    }

    #[test]
    fn connections_are_shared_out() {
        let (addresses, now) = (UpstreamAddresses::of_host("name", 80), Instant::now());
        assert_eq!(next(&addresses, now), None);
        assert!(addresses.update(&sockets(&[1, 2, 3, 2])));
        for expect in [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]] {
            assert_eq!(next(&addresses, now).unwrap(), expect);
        }
    }

    #[test]
    fn what_was_known_is_kept_when_nothing_is_found() {
        let (addresses, now) = (UpstreamAddresses::of_host("name", 80), Instant::now());
        assert!(!addresses.update(&[]));
        assert_eq!(next(&addresses, now), Some(vec![]), "looked up, and not found");
        assert!(addresses.update(&sockets(&[1])));
        assert!(addresses.update(&[]));
        assert_eq!(next(&addresses, now), Some(vec![1]));
        assert!(addresses.update(&sockets(&[2])));
        assert_eq!(next(&addresses, now), Some(vec![2]));
    }

    #[test]
    fn an_address_that_fails_comes_last_for_a_while() {
        let (addresses, now) = (UpstreamAddresses::of_host("name", 80), Instant::now());
        addresses.update(&sockets(&[1, 2]));
        addresses.note(sockets(&[1])[0], false, now);
        for _ in 0..3 {
            assert_eq!(next(&addresses, now), Some(vec![2, 1]));
        }
        addresses.update(&sockets(&[2, 1]));
        assert_eq!(next(&addresses, now), Some(vec![2, 1]), "a lookup does not make it better");
        let tried_again = (0..2).any(|_| next(&addresses, now + AVOIDED_TIME) == Some(vec![1, 2]));
        assert!(tried_again);
        addresses.note(sockets(&[2])[0], false, now);
        addresses.note(sockets(&[1])[0], true, now);
        assert_eq!(next(&addresses, now), Some(vec![1, 2]));
    }

    #[test]
    fn a_name_has_only_so_many_addresses() {
        let addresses = UpstreamAddresses::of_host("name", 80);
        addresses.update(&sockets(&(0..=255).collect::<Vec<_>>()));
        assert_eq!(addresses.next(Instant::now()).unwrap().len(), ADDRESSES_MAX);
    }
}
