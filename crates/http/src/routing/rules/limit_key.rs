//! Keys of limits, as numbers that clients cannot choose.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use wire::http::{Request, cookies};

use expression::FactSource;

use super::RoutedFacts;
use crate::config::{LimitKey, unmapped};
use crate::handler::Routed;
use crate::log::LogClient;

/// Hashes keys of limits with a random key, so that no client can construct a collision.
#[derive(Clone, Debug, Default)]
pub struct KeyHasher(HashKey);

/// Key of hashes.
#[derive(Clone)]
enum HashKey {
    /// Of this process.
    Random(RandomState),
    /// Of all instances that know a secret.
    Shared(Sha256),
}

/// Hash that all instances with the same secret compute.
struct SharedHasher(Sha256);

impl Default for HashKey {
    fn default() -> Self {
        Self::Random(RandomState::default())
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Does not show the key.
        f.write_str("HashKey")
    }
}

impl HashKey {
    fn hash_one(&self, value: impl Hash) -> u64 {
        match self {
            Self::Random(state) => state.hash_one(value),
            Self::Shared(keyed) => {
                let mut hasher = SharedHasher(keyed.clone());
                value.hash(&mut hasher);
                hasher.finish()
            }
        }
    }
}

impl Hasher for SharedHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

impl KeyHasher {
    /// Hasher whose hashes are the same at all instances that know the secret.
    pub fn of_secret(secret: &[u8]) -> Self {
        // The secret also encrypts values, so its digest keys the hashes.
        let key = Sha256::new().chain_update(b"tailcoat limits").chain_update(secret).finalize();
        Self(HashKey::Shared(Sha256::new().chain_update(key)))
    }

    /// Hash of an identity among instances; not 0.
    pub fn of_identity(&self, identity: &str) -> u64 {
        self.0.hash_one(identity) | 1
    }

    /// True if other instances compute the same hashes.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, HashKey::Shared(_))
    }

    /// Hash of a request's key.
    pub fn of_request(&self, key: &LimitKey, routed: &Routed<'_>, client: LogClient) -> u64 {
        let (kind, value) = match key {
            LimitKey::Client => return self.of_client(client),
            LimitKey::Network => return self.of_network(client),
            LimitKey::Host => (1_u8, Some(routed.host)),
            LimitKey::Fact(fact) => {
                let facts = RoutedFacts::new(routed);
                let value = facts.fact(fact).filter(|value| !value.is_empty());
                return value.map_or_else(|| self.of_client(client), |value| self.0.hash_one((4_u8, &*value)));
            }
            LimitKey::Field(name) => (2, routed.request.field_by_name(name.as_bytes())),
            LimitKey::Cookie(name) => (3, cookie(&routed.request, name.as_bytes())),
        };
        match value {
            Some(value) => self.0.hash_one((kind, value)),
            None => self.of_client(client),
        }
    }

    /// Hash of a client. For an IPv6 address, only the first 64 bits count. A customer gets at least a network of that
    /// size (RFC 6177) and may use any address in it.
    pub fn of_client(&self, client: LogClient) -> u64 {
        match client {
            LogClient::Unix => self.0.hash_one(0_u8),
            LogClient::Ip(address) => match unmapped(address.ip()) {
                IpAddr::V4(v4) => self.0.hash_one((4_u8, v4.octets())),
                IpAddr::V6(v6) => self.0.hash_one((6_u8, &v6.octets()[..8])),
            },
        }
    }

    /// Hash of a client's network. For an IPv4 address, this is the first 24 bits, the longest prefix that is routed
    /// separately. For an IPv6 address, this is the first 48 bits, the size of a site (RFC 6177).
    pub fn of_network(&self, client: LogClient) -> u64 {
        match client {
            LogClient::Unix => self.of_client(client),
            LogClient::Ip(address) => match unmapped(address.ip()) {
                IpAddr::V4(v4) => self.0.hash_one((24_u8, &v4.octets()[..3])),
                IpAddr::V6(v6) => self.0.hash_one((48_u8, &v6.octets()[..6])),
            },
        }
    }
}

/// Value of the first cookie of this name.
fn cookie<'a>(request: &Request<'a>, name: &[u8]) -> Option<&'a [u8]> {
    cookies(request).find(|(other, _)| *other == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rules::tests::RuleTestRequest;

    #[test]
    fn what_counts_as_one() {
        let hasher = KeyHasher::default();
        let of = |address: &str| hasher.of_client(LogClient::Ip(address.parse().unwrap()));
        assert_eq!(of("192.0.2.1:1"), of("192.0.2.1:2"));
        assert_eq!(of("192.0.2.1:1"), of("[::ffff:192.0.2.1]:1"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.2.2:1"));
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:ffff:ffff:ffff]:1"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        let key = |key: &LimitKey, fields: &str| {
            let request = RuleTestRequest::new(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
            hasher.of_request(key, &request.routed(), LogClient::Unix)
        };
        let (field, cookie) = (LimitKey::Field("x-key".into()), LimitKey::Cookie("id".into()));
        assert_eq!(key(&field, "X-Key: a\r\n"), key(&field, "x-key: a\r\nOther: b\r\n"));
        assert_ne!(key(&field, "X-Key: a\r\n"), key(&field, "X-Key: b\r\n"));
        assert_eq!(key(&field, ""), hasher.of_client(LogClient::Unix), "without it, the client counts");
        assert_eq!(key(&cookie, "Cookie: id=a\r\n"), key(&cookie, "Cookie: xid=c; id=a;b=d\r\n"));
        assert_ne!(key(&cookie, "Cookie: id=a\r\n"), key(&cookie, "Cookie: id=b\r\n"));
        assert_eq!(key(&cookie, "Cookie: xid=a\r\n"), hasher.of_client(LogClient::Unix));
        assert_eq!(key(&LimitKey::Host, ""), key(&LimitKey::Host, "X-Key: a\r\n"));
    }
}
