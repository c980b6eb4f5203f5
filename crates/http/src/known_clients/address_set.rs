use std::net::IpAddr;

use crate::config::{ClientPattern, number_of};
use crate::log::LogClient;

/// Set of client addresses; a lookup takes logarithmic time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// First and last address of each range, as numbers; sorted, and with gaps between the ranges.
    ranges: Vec<(u128, u128)>,
    has_unix: bool,
}

impl AddressSet {
    /// Makes the set of clients that match one of these patterns.
    pub fn new(patterns: &[ClientPattern]) -> Self {
        let mut set = Self::default();
        for pattern in patterns {
            match pattern {
                ClientPattern::All => {
                    set.ranges.push((0, u128::MAX));
                    set.has_unix = true;
                }
                ClientPattern::Unix => set.has_unix = true,
                ClientPattern::Network(network) => set.ranges.push(network.range()),
            }
        }
        set.ranges.sort_unstable();
        set.ranges.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1.saturating_add(1);
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
        set
    }

    /// Returns true if the set has no client.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.has_unix
    }

    /// Returns true if the set contains a client.
    pub fn has(&self, client: LogClient) -> bool {
        match client {
            LogClient::Ip(address) => self.has_address(address.ip()),
            LogClient::Unix => self.has_unix,
        }
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let number = number_of(address);
        let after = self.ranges.partition_point(|(first, _)| *first <= number);
        after > 0 && number <= self.ranges[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::config::Network;

    fn network(text: &str) -> ClientPattern {
        let (address, bits) = text.split_once('/').unwrap();
        ClientPattern::Network(Network::new(address.parse().unwrap(), bits.parse().unwrap()).unwrap())
    }

    #[test]
    fn clients() {
        let patterns =
            ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.7/32", "192.0.2.8/32", "2001:db8::/32", "::/128"].map(network);
        let set = AddressSet::new(&patterns);
        assert_eq!(set.ranges.len(), 4, "what overlaps or touches is one");
        for (address, expect) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("9.255.255.255", false),
            ("11.0.0.0", false),
            ("192.0.2.6", false),
            ("192.0.2.7", true),
            ("192.0.2.8", true),
            ("192.0.2.9", false),
            ("::ffff:10.2.3.4", true),
            ("::10.2.3.4", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("::", true),
            ("::1", false),
        ] {
            assert_eq!(set.has_address(address.parse().unwrap()), expect, "{address}");
        }
        assert!(!set.has(LogClient::Unix));
        assert!(AddressSet::new(&[ClientPattern::Unix]).has(LogClient::Unix));
        let all = AddressSet::new(&[ClientPattern::All, network("10.0.0.0/8")]);
        assert!(all.has(LogClient::Unix) && all.has_address("::1".parse().unwrap()));
        assert!(AddressSet::new(&[]).is_empty());
    }

    proptest! {
        /// A lookup agrees with a linear search of all networks.
        #[test]
        fn as_each_network_by_itself(
            networks in proptest::collection::vec((any::<[u8; 4]>(), 0_u8..=32), 0..20),
            others in proptest::collection::vec((any::<u128>(), 0_u8..=128), 0..20),
            address in any::<[u8; 4]>(),
        ) {
            let four = networks.iter().map(|(octets, bits)| Network::new((*octets).into(), *bits).unwrap());
            let six = others.iter().map(|(number, bits)| {
                Network::new(std::net::Ipv6Addr::from(number.to_be_bytes()).into(), *bits).unwrap()
            });
            let networks: Vec<Network> = four.chain(six).collect();
            let patterns: Vec<_> = networks.iter().copied().map(ClientPattern::Network).collect();
            let set = AddressSet::new(&patterns);
            let tried = networks.iter().map(|network| network.first()).chain([address.into()]);
            for address in tried {
                let number = number_of(address);
                let expect = networks.iter().any(|network| {
                    let (first, last) = network.range();
                    (first..=last).contains(&number)
                });
                prop_assert_eq!(set.has(LogClient::Ip(SocketAddr::new(address, 1))), expect);
            }
        }
    }
}
