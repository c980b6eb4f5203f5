//! Number of a worker's places that each client and network holds.

use hashbrown::HashMap;

use super::eviction::CLIENTS_A_NETWORK;

/// Divisor of the places: one client may hold this part when most are taken. A client above its share makes room for
/// new connections with its own.
const CLIENT_PART: usize = 8;

/// Divisor for the share of a network.
const NETWORK_PART: usize = 4;

/// Minimum share, which matters when there are few places.
const SHARE_MIN: usize = 4;

/// Client and network that a connection counts for, as short hashes. A collision of two clients is rare, and clients
/// cannot cause one, because the key is random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientOrigin {
    client: u32,
    network: u32,
}

/// Owner of a full share, whose own connections are closed for its new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimant {
    /// Client of the connection.
    Client(ClientOrigin),
    /// Network of the client.
    Network(ClientOrigin),
}

/// Shares that apply when places run out. `None` if the configuration sets the limit or allows any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Share of a client.
    pub client: Option<u32>,
    /// Share of a network.
    pub network: Option<u32>,
}

/// Number of places held by each client and network.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    clients: HashMap<u32, u32>,
    networks: HashMap<u32, u32>,
}

impl ClientOrigin {
    /// Origin without a limit: unix sockets, trusted proxies, and proxies on this machine.
    pub const EXEMPT: Self = Self { client: 0, network: 0 };

    /// Makes an origin from the hashes of client and network.
    pub fn new(client: u64, network: u64) -> Self {
        // 0 stands for `EXEMPT`.
        Self { client: (client as u32).max(1), network: (network as u32).max(1) }
    }

    /// True if the origin may hold any number of places.
    pub fn is_exempt(self) -> bool {
        self == Self::EXEMPT
    }
}

impl Claimant {
    /// True if a connection of this origin counts for the claimant.
    pub(super) fn has(self, origin: ClientOrigin) -> bool {
        match self {
            Self::Client(own) => origin.client == own.client,
            Self::Network(own) => origin.network == own.network,
        }
    }
}

impl Shares {
    /// Shares of so many places; `has_client` and `has_network` tell which shares apply.
    pub fn of(connections_max: usize, has_client: bool, has_network: bool) -> Self {
        let part = |part: usize| u32::try_from((connections_max / part).max(SHARE_MIN)).unwrap_or(u32::MAX);
        Self { client: has_client.then(|| part(CLIENT_PART)), network: has_network.then(|| part(NETWORK_PART)) }
    }
}

impl Holdings {
    pub(super) fn of(origins: impl Iterator<Item = ClientOrigin>) -> Self {
        let mut holdings = Self::default();
        origins.for_each(|origin| holdings.add(origin));
        holdings
    }

    pub(super) fn add(&mut self, origin: ClientOrigin) {
        if !origin.is_exempt() {
            *self.clients.entry(origin.client).or_default() += 1;
            *self.networks.entry(origin.network).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, origin: ClientOrigin) {
        if origin.is_exempt() {
            return;
        }
        for (counts, key) in [(&mut self.clients, origin.client), (&mut self.networks, origin.network)] {
            if let Some(count) = counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&key);
                }
            }
        }
    }

    /// Number of places that count for a connection of this origin. That is the number of its client, or the network's
    /// divided by `CLIENTS_A_NETWORK`, whichever is higher.
    pub(super) fn held(&self, origin: ClientOrigin) -> u32 {
        let client = self.clients.get(&origin.client).copied().unwrap_or(0);
        let network = self.networks.get(&origin.network).copied().unwrap_or(0);
        client.max(network / CLIENTS_A_NETWORK)
    }

    /// Client or network of this origin that holds its full share; `None` if neither does.
    pub(super) fn over_share(&self, origin: ClientOrigin, shares: Shares) -> Option<Claimant> {
        let reaches = |counts: &HashMap<u32, u32>, key, share: Option<u32>| {
            share.is_some_and(|share| counts.get(&key).is_some_and(|count| *count >= share))
        };
        if origin.is_exempt() {
            None
        } else if reaches(&self.clients, origin.client, shares.client) {
            Some(Claimant::Client(origin))
        } else {
            reaches(&self.networks, origin.network, shares.network).then_some(Claimant::Network(origin))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(client: u64, network: u64) -> ClientOrigin {
        ClientOrigin::new(client, network)
    }

    #[test]
    fn shares() {
        for (places, expect) in [(16, (4, 4)), (100, (12, 25)), (400, (50, 100)), (500_000, (62_500, 125_000))] {
            let Shares { client, network } = Shares::of(places, true, true);
            assert_eq!((client, network), (Some(expect.0), Some(expect.1)), "{places}");
        }
        assert_eq!(Shares::of(400, false, false), Shares { client: None, network: None });
    }

    #[test]
    fn who_holds_a_whole_share() {
        let held = [vec![origin(1, 1); 4], vec![origin(2, 1); 3], vec![origin(3, 1); 1], vec![ClientOrigin::EXEMPT; 9]];
        let mut holdings = Holdings::of(held.concat().into_iter());
        let both = Shares { client: Some(4), network: Some(8) };
        let client = Shares { network: None, ..both };
        let network = Shares { client: None, ..both };
        for (name, origin, shares, expect) in [
            ("client", origin(1, 1), both, Some(Claimant::Client(origin(1, 1)))),
            ("network", origin(2, 1), both, Some(Claimant::Network(origin(2, 1)))),
            ("no share of networks", origin(2, 1), client, None),
            ("no share of clients", origin(1, 1), network, Some(Claimant::Network(origin(1, 1)))),
            ("another", origin(4, 2), both, None),
            ("a proxy", ClientOrigin::EXEMPT, both, None),
        ] {
            assert_eq!(holdings.over_share(origin, shares), expect, "{name}");
        }
        holdings.remove(origin(1, 1));
        holdings.remove(ClientOrigin::EXEMPT);
        assert_eq!(holdings.over_share(origin(1, 1), both), None);
        assert_eq!((holdings.held(origin(1, 1)), holdings.held(ClientOrigin::EXEMPT)), (3, 0));
        for _ in 0..3 {
            holdings.remove(origin(1, 1));
        }
        assert_eq!(holdings.clients.len(), 2, "nothing remains");
        assert_eq!(holdings.held(origin(9, 1)), 1, "a part of what its network holds");
    }
}
