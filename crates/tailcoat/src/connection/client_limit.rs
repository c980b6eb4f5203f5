use std::num::NonZeroU64;

use super::Generation;
use crate::log::Client;
use crate::routing::rules::{CountTable, KeyHasher};

/// How many connections each client may have, over all workers. Proxies that are trusted speak for many and may have any
/// number, and so may unix sockets.
#[derive(Debug, Default)]
pub struct ClientLimit {
    table: CountTable,
    hasher: KeyHasher,
}

/// A place among the connections of a client, to be given back; small, for each connection has one.
#[derive(Debug)]
pub struct ClientPlace(NonZeroU64);

impl ClientLimit {
    /// A place for a connection of this client: `Ok(None)` if it needs none.
    ///
    /// # Errors
    /// There are too many.
    pub fn take(&self, client: Client, generation: &Generation) -> Result<Option<ClientPlace>, TooManyConnections> {
        let connections_max = generation.limits.connections_per_client_max;
        if connections_max == 0 || client == Client::Unix || generation.router.trusts(client) {
            return Ok(None);
        }
        // One of 2^64 clients would be another.
        let key = NonZeroU64::new(self.hasher.of_client(client)).unwrap_or(NonZeroU64::MIN);
        if self.table.add(key.get(), connections_max) { Ok(Some(ClientPlace(key))) } else { Err(TooManyConnections) }
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
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::config::{ClientPattern, Config, Limits, LogLevel, Network};
    use crate::log::ServerLog;
    use crate::routing::Router;
    use crate::routing::rules::AllRules;

    fn generation(connections_per_client_max: u32) -> Generation {
        let mut config = Config::default();
        let network = Network::new([10, 0, 0, 0].into(), 8).unwrap();
        config.server.trusted_proxies = vec![ClientPattern::Network(network)];
        let rules = AllRules::new(&config, &ServerLog::stderr(LogLevel::Error), None).unwrap();
        let router = Router::new(Vec::new(), &[]).trusting(&Arc::new(rules), &Rc::default());
        Generation::new(router, Limits { connections_per_client_max, ..Limits::default() })
    }

    #[test]
    fn places() {
        let limit = ClientLimit::default();
        let (mut generation_of_two, none) = (generation(2), generation(0));
        let take =
            |address: &str, generation: &Generation| limit.take(Client::Ip(address.parse().unwrap()), generation);
        assert!(take("192.0.2.1:1", &none).unwrap().is_none());
        let first = take("192.0.2.1:1", &generation_of_two).unwrap().unwrap();
        assert!(take("192.0.2.1:2", &generation_of_two).unwrap().is_some());
        assert!(take("192.0.2.1:3", &generation_of_two).is_err());
        assert!(take("192.0.2.2:3", &generation_of_two).unwrap().is_some(), "another client");
        limit.give_back(first);
        assert!(take("192.0.2.1:4", &generation_of_two).unwrap().is_some());
        for _ in 0..3 {
            assert!(take("10.0.0.1:1", &generation_of_two).unwrap().is_none(), "a proxy");
            assert!(limit.take(Client::Unix, &generation_of_two).unwrap().is_none());
        }
        generation_of_two.limits.connections_per_client_max = 3;
        assert!(take("192.0.2.1:5", &generation_of_two).unwrap().is_some(), "those that are open count still");
        assert!(take("192.0.2.1:6", &generation_of_two).is_err());
    }
}
