use std::num::NonZeroU64;
use std::sync::Arc;

use crate::config::Config;
use crate::log::Client;
use crate::routing::rules::{AddressSet, CountTable, KeyHasher};

/// How many connections each client may have, over all workers. Proxies that are trusted speak for many and may have any
/// number, and so may unix sockets.
#[derive(Debug)]
pub struct ClientLimit {
    connections_max: u32,
    exempt: AddressSet,
    table: CountTable,
    hasher: KeyHasher,
}

/// A place among the connections of a client, to be given back; small, for each connection has one.
#[derive(Debug)]
pub struct ClientPlace(NonZeroU64);

impl ClientLimit {
    /// The limit of a configuration, if it has one.
    pub fn new(config: &Config) -> Option<Arc<Self>> {
        let connections_max = config.limits.connections_per_client_max;
        (connections_max > 0).then(|| {
            Arc::new(Self {
                connections_max,
                exempt: AddressSet::new(&config.server.trusted_proxies),
                table: CountTable::default(),
                hasher: KeyHasher::default(),
            })
        })
    }

    /// A place for a connection of this client: `Ok(None)` if it needs none.
    ///
    /// # Errors
    /// There are too many.
    pub fn take(&self, client: Client) -> Result<Option<ClientPlace>, TooManyConnections> {
        if client == Client::Unix || self.exempt.has(client) {
            return Ok(None);
        }
        // One of 2^64 clients would be another.
        let key = NonZeroU64::new(self.hasher.of_client(client)).unwrap_or(NonZeroU64::MIN);
        if self.table.add(key.get(), self.connections_max) {
            Ok(Some(ClientPlace(key)))
        } else {
            Err(TooManyConnections)
        }
    }

    /// A connection has ended.
    pub fn give_back(&self, place: ClientPlace) {
        self.table.give_back(place.0.get());
    }
}

/// A client has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClientPattern, Network};

    #[test]
    fn places() {
        let mut config = Config::default();
        assert!(ClientLimit::new(&config).is_none());
        config.limits.connections_per_client_max = 2;
        let network = Network::new([10, 0, 0, 0].into(), 8).unwrap();
        config.server.trusted_proxies = vec![ClientPattern::Network(network)];
        let limit = ClientLimit::new(&config).unwrap();
        let take = |address: &str| limit.take(Client::Ip(address.parse().unwrap()));
        let first = take("192.0.2.1:1").unwrap().unwrap();
        assert!(take("192.0.2.1:2").unwrap().is_some());
        assert!(take("192.0.2.1:3").is_err());
        assert!(take("192.0.2.2:3").unwrap().is_some(), "another client");
        limit.give_back(first);
        assert!(take("192.0.2.1:4").unwrap().is_some());
        for _ in 0..3 {
            assert!(take("10.0.0.1:1").unwrap().is_none(), "a proxy");
            assert!(limit.take(Client::Unix).unwrap().is_none());
        }
    }
}
