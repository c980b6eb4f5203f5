use std::num::NonZeroU64;

use super::Generation;
use crate::log::LogClient;
use crate::metrics::Limit;
use crate::routing::rules::{CountTable, KeyHasher};

/// Counts connections by client and by network, over all workers, if the configuration limits them. Trusted proxies and
/// unix sockets are not limited. Without a configured limit, [`super::Shares`] apply.
#[derive(Debug, Default)]
pub struct ClientLimit {
    clients: CountTable,
    networks: CountTable,
    hasher: KeyHasher,
}

/// Place of a connection in the counts of its client and of its network. Must be returned to
/// [`ClientLimit::give_back`]. Kept small, because each connection has one.
#[derive(Debug, Default)]
pub struct ClientPlace {
    client: Option<NonZeroU64>,
    network: Option<NonZeroU64>,
}

impl ClientLimit {
    /// Counts a connection of this client; the place is empty if no limit applies.
    ///
    /// # Errors
    /// Returns the limit that is exceeded.
    pub fn take(&self, client: LogClient, generation: &Generation) -> Result<ClientPlace, Limit> {
        let limits = &generation.limits;
        let mut place = ClientPlace::default();
        let client_max = limits.connections_per_client_max.unwrap_or(0);
        let network_max = limits.connections_per_network_max.unwrap_or(0);
        if (client_max, network_max) == (0, 0) || client == LogClient::Unix || generation.router.trusts(client) {
            return Ok(place);
        }
        let of_network = take(&self.networks, self.hasher.of_network(client), network_max);
        place.network = of_network.ok_or(Limit::ConnectionsPerNetworkMax)?;
        match take(&self.clients, self.hasher.of_client(client), client_max) {
            Some(of_client) => place.client = of_client,
            None => {
                self.give_back(place);
                return Err(Limit::ConnectionsPerClientMax);
            }
        }
        Ok(place)
    }

    /// Ends the count of a closed connection.
    pub fn give_back(&self, place: ClientPlace) {
        place.client.iter().for_each(|key| self.clients.give_back(key.get()));
        place.network.iter().for_each(|key| self.networks.give_back(key.get()));
    }
}

/// Counts one more for `key`, up to `count_max`; 0 means no limit. Returns the key to give back, if the connection was
/// counted; `None` if the limit is exceeded.
fn take(table: &CountTable, key: u64, count_max: u32) -> Option<Option<NonZeroU64>> {
    if count_max == 0 {
        return Some(None);
    }
    // The key 0 shares its count with 1; the chance of that is 1 in 2^64.
    let key = NonZeroU64::new(key).unwrap_or(NonZeroU64::MIN);
    table.add(key.get(), count_max).then_some(Some(key))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::config::{ClientPattern, Config, Limits, LogLevel, Network};
    use crate::log::ServerLog;
    use crate::routing::Router;
    use crate::routing::rules::AllRules;

    fn generation(client_max: u32, network_max: u32) -> Generation {
        let mut config = Config::default();
        let network = Network::new([10, 0, 0, 0].into(), 8).unwrap();
        config.server.trusted_proxies = vec![ClientPattern::Network(network)];
        let secret = bots::challenge::ChallengeSecret::generate().unwrap();
        let rules = AllRules::new(&config, &ServerLog::stderr(LogLevel::Error), &secret, None).unwrap();
        let router = Router::new(&[], &[]).trusting(&Arc::new(rules), &Rc::default());
        let limits = Limits {
            connections_per_client_max: Some(client_max),
            connections_per_network_max: Some(network_max),
            ..Limits::default()
        };
        Generation::new(router, limits)
    }

    #[test]
    fn places() {
        let limit = ClientLimit::default();
        let (mut generation_of_two, none) = (generation(2, 0), generation(0, 0));
        let take =
            |address: &str, generation: &Generation| limit.take(LogClient::Ip(address.parse().unwrap()), generation);
        assert!(take("192.0.2.1:1", &none).unwrap().client.is_none());
        let first = take("192.0.2.1:1", &generation_of_two).unwrap();
        assert!(take("192.0.2.1:2", &generation_of_two).unwrap().client.is_some());
        assert_eq!(take("192.0.2.1:3", &generation_of_two).unwrap_err(), Limit::ConnectionsPerClientMax);
        assert!(take("192.0.2.2:3", &generation_of_two).is_ok(), "another client");
        limit.give_back(first);
        assert!(take("192.0.2.1:4", &generation_of_two).is_ok());
        for _ in 0..3 {
            assert!(take("10.0.0.1:1", &generation_of_two).unwrap().client.is_none(), "a proxy");
            assert!(limit.take(LogClient::Unix, &generation_of_two).unwrap().client.is_none());
        }
        generation_of_two.limits.connections_per_client_max = Some(3);
        assert!(take("192.0.2.1:5", &generation_of_two).is_ok(), "those that are open count still");
        assert!(take("192.0.2.1:6", &generation_of_two).is_err());
    }

    #[test]
    fn networks() {
        let limit = ClientLimit::default();
        let generation = generation(2, 3);
        let take = |address: &str| limit.take(LogClient::Ip(address.parse().unwrap()), &generation);
        let places: Vec<_> = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.2:2"].map(|address| take(address).unwrap()).into();
        assert_eq!(take("192.0.2.3:1").unwrap_err(), Limit::ConnectionsPerNetworkMax);
        assert!(take("192.0.3.1:1").is_ok(), "another network");
        places.into_iter().for_each(|place| limit.give_back(place));
        // A client rejected for its own limit takes no place of its network.
        let _two = ["192.0.2.2:1", "192.0.2.2:2"].map(|address| take(address).unwrap());
        for _ in 0..5 {
            assert_eq!(take("192.0.2.2:3").unwrap_err(), Limit::ConnectionsPerClientMax);
        }
        assert!(take("192.0.2.4:1").is_ok());
        for network in ["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:ffff::1"] {
            assert!(take(&format!("[{network}]:1")).is_ok());
        }
        assert_eq!(take("[2001:db8:1:3::1]:1").unwrap_err(), Limit::ConnectionsPerNetworkMax);
        assert!(take("[2001:db8:2::1]:1").is_ok());
    }
}
