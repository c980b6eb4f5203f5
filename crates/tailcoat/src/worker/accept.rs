//! Accepting connections, and making room for them.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::Notify;

use super::listener::AsyncListener;
use crate::connection::{Connections, Context};
use crate::metrics::Limit;
use crate::routing::rules::AllRules;
use crate::tls::ListenerTls;

/// The part of the connections that is closed at once when room is needed, so that finding the longest idle (a look at
/// all) is done seldom.
const EVICTED_PART: usize = 64;

/// How long is waited before accepting again when no room could be made.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Accepts the connections of one listener.
pub(super) struct Acceptor {
    pub(super) context: Rc<Context>,
    pub(super) connections: Rc<Connections>,
    /// The listener's number in the plan.
    pub(super) number: u16,
    pub(super) connections_max: usize,
    /// With the proxies whose connections begin with the PROXY protocol, if any do.
    pub(super) proxied: Option<Arc<AllRules>>,
    /// How TLS is spoken there, if it is.
    pub(super) tls: Option<Arc<ListenerTls>>,
    /// Told when the first connection comes.
    pub(super) busy: Rc<Notify>,
}

impl Acceptor {
    /// Accepts for ever. No error ends it, and none makes it spin.
    pub(super) async fn run(self, listener: AsyncListener) {
        loop {
            match listener.accept().await {
                Ok((socket, client)) => {
                    // It is already there, and waits for its place if none can be made.
                    while self.context.table.borrow().len() >= self.connections_max {
                        self.context.count_limit(Limit::ConnectionsMax);
                        self.make_room().await;
                    }
                    self.busy.notify_one();
                    let proxies = self.proxied.as_ref().and_then(|rules| rules.trusted_proxies.as_ref());
                    let is_proxied = proxies.is_some_and(|proxies| proxies.has(client));
                    self.connections.start(socket, client, self.number, is_proxied, self.tls.as_ref());
                }
                // The connection was gone before it was accepted, or the network says that it will not come about.
                Err(error) if is_of_one_connection(&error) => {}
                // Out of descriptors or memory, above all.
                Err(_) => {
                    self.context.count_limit(Limit::OpenFiles);
                    self.make_room().await;
                }
            }
        }
    }

    /// Closes the connections that have been idle longest; if there are none, waits a little.
    async fn make_room(&self) {
        let evicted = {
            let mut table = self.context.table.borrow_mut();
            let count = table.len().div_ceil(EVICTED_PART);
            table.make_room(count)
        };
        if evicted == 0 {
            tokio::time::sleep(RETRY_INTERVAL).await;
        } else {
            // They close when they are polled next, which is before this goes on.
            tokio::task::yield_now().await;
        }
    }
}

/// accept(2): errors that are pending on the new socket are returned by accept.
fn is_of_one_connection(error: &io::Error) -> bool {
    let Some(errno) = Errno::from_io_error(error) else { return false };
    [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
        Errno::PERM,
    ]
    .contains(&errno)
}
