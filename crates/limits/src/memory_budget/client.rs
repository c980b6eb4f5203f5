use std::net::IpAddr;

/// Client and network that memory counts for. Prefixes are those of `connections-per-client-max` and
/// `connections-per-network-max`: a customer may use any address in an IPv6 network of 64 bits (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderClient {
    pub(super) client: Prefix,
    pub(super) network: Prefix,
}

/// First bits of an address: for IPv4 of its form in IPv6.
pub(super) type Prefix = u128;

impl HolderClient {
    /// Client with this address.
    pub fn of(address: IpAddr) -> Self {
        let (bits, client_bits, network_bits) = match address.to_canonical() {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), 128, 120),
            IpAddr::V6(v6) => (v6.to_bits(), 64, 48),
        };
        let first = |count: u32| bits & (u128::MAX << (128 - count));
        Self { client: first(client_bits), network: first(network_bits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_networks_are_those_of_the_connection_limits() {
        let of = |address: &str| HolderClient::of(address.parse().unwrap());
        for (one, other, is_client, is_network) in [
            ("192.0.2.1", "192.0.2.1", true, true),
            ("192.0.2.1", "::ffff:192.0.2.1", true, true),
            ("192.0.2.1", "192.0.2.2", false, true),
            ("192.0.2.1", "192.0.3.1", false, false),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true, true),
            ("2001:db8::1", "2001:db8:0:1::1", false, true),
            ("2001:db8::1", "2001:db8:1::1", false, false),
        ] {
            let (left, right) = (of(one), of(other));
            let found = (left.client == right.client, left.network == right.network);
            assert_eq!(found, (is_client, is_network), "{one} {other}");
        }
    }
}
