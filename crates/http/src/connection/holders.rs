//! Clients and networks with the most connections, for operators.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hashbrown::HashMap;

use crate::log::LogClient;
use crate::metrics::HolderCount;

/// Maximum number of clients, and of networks, that a worker reports.
const HOLDERS_REPORTED_MAX: usize = 20;

/// Prefix lengths by which connections are counted.
#[derive(Clone, Copy)]
struct Prefixes {
    v4_bits: u32,
    v6_bits: u32,
}

const CLIENTS: Prefixes = Prefixes { v4_bits: 32, v6_bits: 64 };
const NETWORKS: Prefixes = Prefixes { v4_bits: 24, v6_bits: 48 };

/// Returns the clients with the most connections, then the networks, each in descending order.
pub(super) fn top_holders(clients: impl Iterator<Item = LogClient> + Clone) -> [Vec<HolderCount>; 2] {
    [CLIENTS, NETWORKS].map(|prefixes| {
        let mut counts = HashMap::<Option<IpAddr>, u64>::new();
        clients.clone().for_each(|client| *counts.entry(prefixes.of(client)).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|(_, connections)| Reverse(*connections));
        counts.truncate(HOLDERS_REPORTED_MAX);
        let reported =
            |(address, connections): (Option<IpAddr>, u64)| HolderCount { holder: prefixes.name(address), connections };
        counts.into_iter().map(reported).collect()
    })
}

impl Prefixes {
    /// First address of the client's prefix; `None` for clients of unix sockets.
    fn of(self, client: LogClient) -> Option<IpAddr> {
        let LogClient::Ip(address) = client else { return None };
        Some(match address.ip().to_canonical() {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << (32 - self.v4_bits))).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - self.v6_bits))).into(),
        })
    }

    fn name(self, address: Option<IpAddr>) -> String {
        match address {
            None => "unix".to_owned(),
            Some(IpAddr::V4(v4)) if self.v4_bits == 32 => v4.to_string(),
            Some(IpAddr::V4(v4)) => format!("{v4}/{}", self.v4_bits),
            Some(IpAddr::V6(v6)) => format!("{v6}/{}", self.v6_bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_networks() {
        let addresses = ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.9:1", "[::ffff:192.0.2.1]:3", "[2001:db8:1:2:3::]:1"];
        let clients = addresses.map(|address| LogClient::Ip(address.parse().unwrap()));
        let [clients, networks] = top_holders(clients.into_iter().chain([LogClient::Unix, LogClient::Unix]));
        let named = |holders: Vec<HolderCount>| {
            let mut named: Vec<_> = holders.into_iter().map(|count| (count.connections, count.holder)).collect();
            named.sort_by(|one, other| other.cmp(one));
            named
        };
        let expect = |list: &[(u64, &str)]| -> Vec<(u64, String)> {
            list.iter().map(|(count, name)| (*count, (*name).to_owned())).collect()
        };
        assert_eq!(
            named(clients),
            expect(&[(3, "192.0.2.1"), (2, "unix"), (1, "2001:db8:1:2::/64"), (1, "192.0.2.9")])
        );
        assert_eq!(named(networks), expect(&[(4, "192.0.2.0/24"), (2, "unix"), (1, "2001:db8:1::/48")]));
    }

    #[test]
    fn of_many_clients_those_with_most_are_reported() {
        let client = |number: u32| LogClient::Ip((Ipv4Addr::from_bits(number), 1).into());
        let clients = (0..1000).chain([7; 5]).map(client);
        let [clients, _] = top_holders(clients);
        assert_eq!((clients.len(), clients[0].connections, &*clients[0].holder), (HOLDERS_REPORTED_MAX, 6, "0.0.0.7"));
    }
}
