//! Connections that leave their worker, because the server name of their ClientHello belongs to another protocol.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{ClientLimit, ClientPlace};

/// Connection of TLS that is not for HTTP, on a listener of HTTPS.
#[derive(Debug)]
pub struct DetachedConnection {
    /// Non-blocking socket.
    pub socket: OwnedFd,
    /// Server name of the ClientHello, in lower case; empty without one.
    pub server_name: String,
    /// Received bytes: at least the ClientHello.
    pub received: Vec<u8>,
    /// Place of the connection, which must be dropped at its end.
    pub place: HeldPlace,
}

/// Place of a connection in the counts of its client; dropped at the end of the connection.
#[derive(Debug)]
pub struct HeldPlace {
    limit: Arc<ClientLimit>,
    place: ClientPlace,
}

/// Proxy that continues connections of other protocols.
pub trait StreamTaker: Send + Sync {
    /// Takes a connection. Must not wait: workers call it.
    fn take(&self, connection: DetachedConnection);
}

impl HeldPlace {
    pub(super) fn new(limit: Arc<ClientLimit>, place: ClientPlace) -> Self {
        Self { limit, place }
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.limit.give_back(std::mem::take(&mut self.place));
    }
}
