//! Simulated time, with a server, clients and the network between them.

use std::time::{Duration, Instant};

use quinn_proto::TransportConfig;
use tailcoat_quic::TransportSettings;

use super::client::{self, Client};
use super::network::{Network, Way};
use super::server::{self, Server};
use super::tls;

/// Steps without progress of time that show an endless loop.
const SPINS_MAX: u32 = 20_000;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) network: Network,
    pub(crate) server: Server,
    pub(crate) clients: Vec<Client>,
    /// Datagrams to addresses that no client has.
    pub(crate) unclaimed: Vec<super::network::Packet>,
    spins: u32,
}

impl World {
    /// World with a client that is not connected yet.
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, server::settings(), client::transport())
    }

    pub(crate) fn with(seed: u64, settings: TransportSettings, transport: TransportConfig) -> Self {
        Self::with_tls(seed, settings, transport, &tls::client_tls(false))
    }

    pub(crate) fn with_tls(
        seed: u64,
        settings: TransportSettings,
        transport: TransportConfig,
        tls: &rustls::ClientConfig,
    ) -> Self {
        let start = Instant::now();
        Self {
            start,
            now: start,
            network: Network::new(start, seed),
            server: Server::new(settings),
            clients: vec![Client::new("192.0.2.1:5000", tls, transport)],
            unclaimed: Vec::new(),
            spins: 0,
        }
    }

    /// World with a client whose handshake is complete.
    pub(crate) fn connected(seed: u64) -> Self {
        let mut world = Self::new(seed);
        world.connect();
        world
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.clients[0]
    }

    /// Connects the first client, and waits for the end of the handshake on both sides.
    pub(crate) fn connect(&mut self) {
        let now = self.now;
        self.client().connect(now);
        let is_done = self.run(30 * SECOND, |world| {
            world.clients[0].is_connected
                && world.server.connections.values().all(|server| server.has_completed)
                && !world.server.connections.is_empty()
        });
        assert!(is_done, "no handshake: {:?}", self.clients[0].lost);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Everything that is due now.
    pub(crate) fn drive(&mut self) {
        let now = self.now;
        while let Some(packet) = self.network.poll(now) {
            match packet.way {
                Way::ToServer => self.server.handle(now, packet, &mut self.network),
                Way::ToClient => {
                    let owner = self
                        .clients
                        .iter_mut()
                        .find(|client| client.addr == packet.client || client.other_addrs.contains(&packet.client));
                    match owner {
                        Some(client) => client.handle(now, packet, &mut self.network),
                        None => self.unclaimed.push(packet),
                    }
                }
            }
        }
        self.server.handle_timeouts(now);
        self.clients.iter_mut().for_each(|client| client.handle_timeouts(now));
        self.server.drive(now, &mut self.network);
        self.clients.iter_mut().for_each(|client| client.drive(now, &mut self.network));
    }

    /// Time of the next event.
    fn next_at(&mut self) -> Option<Instant> {
        let clients = self.clients.iter_mut().filter_map(Client::next_at).min();
        [self.network.next_at(), self.server.next_at(), clients].into_iter().flatten().min()
    }

    /// Runs until the condition holds. Returns false if it does not within this time.
    pub(crate) fn run(&mut self, limit: Duration, mut is_done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.drive();
            if is_done(self) {
                return true;
            }
            let next_at = self.next_at().unwrap_or(end + MS);
            // Without events, time goes to the end.
            if next_at > end || self.now >= end {
                self.now = end;
                return false;
            }
            if next_at <= self.now {
                self.spins += 1;
                assert!(
                    self.spins < SPINS_MAX,
                    "no progress of time: network {:?}, server {:?}, now {:?}",
                    self.network.next_at(),
                    self.server.next_at(),
                    self.now
                );
            } else {
                self.spins = 0;
                self.now = next_at;
            }
        }
    }

    /// Runs this long.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        self.run(duration, |_| false);
    }

    /// Runs until all requests of the first client are done, and checks the responses. Returns the time that it took.
    pub(crate) fn finish(&mut self, limit: Duration) -> Duration {
        let start = self.now;
        let is_done = self.run(limit, |world| world.clients[0].all_done());
        let client = &self.clients[0];
        let open = client.requests.iter().filter(|(_, request)| !request.is_done).take(3).collect::<Vec<_>>();
        assert!(
            is_done,
            "not done in {limit:?}: received {}, lost {:?}, server {:?}, {open:?}, sent {:?}, received {:?}",
            client.received(),
            client.lost,
            self.server.connections.values().map(|server| (&server.lost, server.open_exchanges())).collect::<Vec<_>>(),
            self.network.counts(Way::ToClient),
            self.network.counts(Way::ToServer),
        );
        client.assert_exact();
        self.now - start
    }
}
