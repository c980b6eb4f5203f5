use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Addresses that begin with the same bits. An IPv4 address mapped into IPv6 (RFC 4291, section 2.5.5.2) is one of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(IpNet);

impl Network {
    /// The network that begins with the address's first bits; `None` if there are not so many.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Option<Self> {
        let (address, prefix_bits) = match address {
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if prefix_bits >= MAPPED_BITS => (IpAddr::V4(v4), prefix_bits - MAPPED_BITS),
                _ => (address, prefix_bits),
            },
            IpAddr::V4(_) => (address, prefix_bits),
        };
        Some(Self(IpNet::new(address, prefix_bits).ok()?.trunc()))
    }

    /// A network, or a single address, as people write it. Bits after the prefix are an error.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let network = Self::new(address, bits.map_or(Some(width), |bits| bits.parse().ok())?)?;
        (network.first() == unmapped(address)).then_some(network)
    }

    /// First address; all bits after the prefix are 0.
    pub fn first(&self) -> IpAddr {
        self.0.addr()
    }

    /// Length of the prefix, in bits: at most 32 for IPv4 and 128 for IPv6.
    pub fn prefix_bits(&self) -> u8 {
        self.0.prefix_len()
    }

    /// First and last address, as numbers of [`number_of`].
    pub fn range(&self) -> (u128, u128) {
        (number_of(self.0.network()), number_of(self.0.broadcast()))
    }

    /// Returns `true` if the address belongs to the network.
    pub fn has(&self, address: IpAddr) -> bool {
        let (first, last) = self.range();
        (first..=last).contains(&number_of(address))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bits before the IPv4 address in an IPv6 address that it is mapped into.
const MAPPED_BITS: u8 = 96;

/// An address as a number: of IPv6 itself, of IPv4 the one it is mapped into (RFC 4291, section 2.5.5.2), so that each
/// client has one however its connection came.
pub fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from_be_bytes(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => u128::from_be_bytes(v6.octets()),
    }
}

/// An IPv4 address mapped into IPv6 as itself.
pub fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let check = |address: &str, bits: u8, expect: Option<(&str, &str, &str)>| {
            let network = Network::new(address.parse().unwrap(), bits);
            let found = network.map(|network| (network.to_string(), network.range()));
            let number = |text: &str| number_of(text.parse().unwrap());
            let expect = expect.map(|(text, first, last)| (text.to_owned(), (number(first), number(last))));
            assert_eq!(found, expect, "{address}/{bits}");
        };
        check("10.1.2.3", 8, Some(("10.0.0.0/8", "10.0.0.0", "10.255.255.255")));
        check("10.1.2.3", 32, Some(("10.1.2.3/32", "10.1.2.3", "10.1.2.3")));
        check("10.1.2.3", 0, Some(("0.0.0.0/0", "0.0.0.0", "255.255.255.255")));
        check("10.1.2.3", 33, None);
        check("2001:db8::1", 32, Some(("2001:db8::/32", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")));
        check("::1", 128, Some(("::1/128", "::1", "::1")));
        check("::1", 0, Some(("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
        check("::1", 129, None);
        check("::ffff:10.1.2.3", 104, Some(("10.0.0.0/8", "10.0.0.0", "10.255.255.255")));
        // Wider than what is mapped: all of IPv4 is in it.
        check("::ffff:0.0.0.0", 80, Some(("::/80", "::", "::ffff:ffff:ffff")));
    }
}
