//! Accepts connections, and evicts others when places run out.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::net::UdpSocket;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::task::coop::unconstrained;

use super::listener::AsyncListener;
use super::{LEFT_KEY, ListenerKey, OpenListener};
use crate::connection::{
    Claimant, ConnectionStage, ConnectionTable, Connections, Context, EndpointRole, EndpointSockets, Newcomer,
    QuicBuffers, QuicEndpoint, QuicKeys, QuicSocket, Room,
};
use crate::log::{LogClient, Trouble, event};
use crate::metrics::Limit;

/// Limit of connections accepted from a queue after a stop. Without it, clients that connect faster than the worker
/// accepts would keep it going.
const ACCEPTED_AT_END_MAX: u32 = 65_536;

/// Time until the next try when no connection could be evicted or the kernel reported an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Acceptors of a worker's listeners.
pub(super) struct Acceptors {
    pub(super) context: Rc<Context>,
    pub(super) connections: Rc<Connections>,
    /// Notified when the worker's first connection arrives.
    pub(super) busy: Rc<Notify>,
    pub(super) running: RefCell<HashMap<ListenerKey, Rc<Stop>>>,
    /// Endpoints of UDP sockets, by those of slots. They end with their last connection after they were stopped.
    pub(super) endpoints: RefCell<HashMap<ListenerKey, RunningEndpoint>>,
    /// Closed when all acceptors have ended, because each holds a receiver.
    pub(super) accepting: watch::Sender<()>,
    pub(super) quic_keys: Arc<QuicKeys>,
    pub(super) quic_buffers: Rc<QuicBuffers>,
    /// Log line about connections that cannot be accepted.
    pub(super) trouble: Arc<Trouble>,
    /// Log line about `connections-max`.
    pub(super) place_trouble: Arc<Trouble>,
}

/// Endpoint with its task.
pub(super) struct RunningEndpoint {
    endpoint: Weak<QuicEndpoint>,
    task: AbortHandle,
}

/// Tells an acceptor to stop.
#[derive(Default)]
pub(super) struct Stop {
    is_set: Cell<bool>,
    on_evicted: Notify,
}

impl Acceptors {
    /// Starts an acceptor for each of these sockets.
    ///
    /// # Errors
    /// Out of file descriptors or memory.
    pub(super) fn start(&self, listeners: Vec<OpenListener>) -> io::Result<()> {
        for OpenListener { key, listener, accepting, keeper } in listeners {
            let listener = match listener.into_udp() {
                Ok(socket) => {
                    self.start_quic(key, socket, accepting, keeper)?;
                    continue;
                }
                Err(listener) => listener,
            };
            let acceptor = Acceptor {
                context: Rc::clone(&self.context),
                connections: Rc::clone(&self.connections),
                number: key.0,
                busy: Rc::clone(&self.busy),
                stop: Rc::default(),
                _accepting: self.accepting.subscribe(),
                trouble: Arc::clone(&self.trouble),
                place_trouble: Arc::clone(&self.place_trouble),
            };
            if let Some(before) = self.running.borrow_mut().insert(key, Rc::clone(&acceptor.stop)) {
                before.tell();
            }
            tokio::task::spawn_local(acceptor.run(listener.into_async()?));
        }
        Ok(())
    }

    /// Starts the endpoint of UDP sockets, or continues it if its last connections have not ended.
    fn start_quic(
        &self,
        key: ListenerKey,
        socket: UdpSocket,
        accepting: Option<UdpSocket>,
        keeper: Option<Arc<dyn Any + Send + Sync>>,
    ) -> io::Result<()> {
        let (number, socket_number) = key;
        let role = if socket_number & LEFT_KEY == 0 { EndpointRole::Accepts } else { EndpointRole::Resets };
        let endpoints = &mut *self.endpoints.borrow_mut();
        let running = endpoints.get(&key).filter(|running| !running.task.is_finished());
        if let Some(endpoint) = running.and_then(|running| running.endpoint.upgrade()) {
            endpoint.set_role(role);
            return Ok(());
        }
        let accepting = accepting.map(|socket| QuicSocket::new(socket, None)).transpose()?;
        let sockets = EndpointSockets { accepting, own: QuicSocket::new(socket, keeper)? };
        let slot = socket_number.to_le_bytes()[0];
        let (keys, buffers) = (&self.quic_keys, &self.quic_buffers);
        let endpoint =
            QuicEndpoint::new(sockets, slot, number, keys, buffers, &self.context, &self.connections, &self.busy);
        endpoint.set_role(role);
        let running = Rc::downgrade(&endpoint);
        let task = tokio::task::spawn_local(unconstrained(endpoint.run())).abort_handle();
        endpoints.insert(key, RunningEndpoint { endpoint: running, task });
        Ok(())
    }

    /// Stops these acceptors; each drains its queue first. An endpoint without connections stops at once.
    pub(super) fn stop(&self, keys: &[ListenerKey]) {
        let mut running = self.running.borrow_mut();
        keys.iter().filter_map(|key| running.remove(key)).for_each(|stop| stop.tell());
        self.end_endpoints(|key| keys.contains(key));
    }

    /// Stops all acceptors; each drains its queue first.
    pub(super) fn stop_all(&self) {
        self.running.borrow_mut().drain().for_each(|(_, stop)| stop.tell());
        self.end_endpoints(|_| true);
    }

    fn end_endpoints(&self, is_chosen: impl Fn(&ListenerKey) -> bool) {
        self.endpoints.borrow_mut().retain(|key, running| {
            let Some(endpoint) = running.endpoint.upgrade() else { return false };
            if !is_chosen(key) {
                return true;
            }
            endpoint.set_role(EndpointRole::Ends);
            if endpoint.is_idle() {
                running.task.abort();
            }
            !endpoint.is_idle()
        });
    }

    /// True until all acceptors have drained their queues and ended.
    pub(super) fn is_accepting(&self) -> bool {
        !self.accepting.is_closed()
    }

    /// Waits until all acceptors have ended.
    pub(super) async fn all_ended(&self) {
        self.accepting.closed().await;
    }
}

impl Stop {
    fn tell(&self) {
        self.is_set.set(true);
        self.on_evicted.notify_one();
    }
}

/// Accepts the connections of one listening socket.
struct Acceptor {
    context: Rc<Context>,
    connections: Rc<Connections>,
    /// Number of the listener.
    number: u16,
    /// Notified when the worker's first connection arrives.
    busy: Rc<Notify>,
    stop: Rc<Stop>,
    _accepting: watch::Receiver<()>,
    trouble: Arc<Trouble>,
    place_trouble: Arc<Trouble>,
}

impl Acceptor {
    /// Accepts until it must stop, and then drains the queue, because the kernel has completed those handshakes. No
    /// error ends the loop, and none makes it spin.
    async fn run(self, listener: AsyncListener) {
        let mut left = ACCEPTED_AT_END_MAX;
        while left > 0 {
            let is_stopped = self.stop.is_set.get();
            let accepted = if is_stopped {
                left -= 1;
                listener.accept_now()
            } else {
                tokio::select! {
                    biased;
                    accepted = listener.accept() => accepted,
                    // The runtime may not know yet that there are connections in the queue.
                    () = self.stop.on_evicted.notified() => continue,
                }
            };
            match accepted {
                Err(error) if is_stopped && error.kind() == io::ErrorKind::WouldBlock => return,
                Ok((socket, client)) => {
                    let Some(admission) = self.connections.admit(client, self.number) else { continue };
                    if self.find_place(client, admission.newcomer).await {
                        self.busy.notify_one();
                        self.connections.start(socket, client, self.number, admission);
                    } else {
                        self.connections.turn_away(admission);
                    }
                }
                // The client closed the connection before it was accepted, or the network reported an error.
                Err(error) if is_of_one_connection(&error) => {}
                // Mostly a lack of file descriptors or memory.
                Err(error) => {
                    self.context.count_limit(Limit::OpenFiles);
                    self.trouble.tell(event("accepting a connection failed", &[("error", &error)]));
                    if !self.evict(|table, on_evicted| table.free_descriptors(on_evicted)).await {
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        }
    }

    /// Waits for a place for an accepted connection and evicts others for it. A client above its share mostly replaces
    /// its own connections. If that fails and no place is free, returns false at once, because other clients wait.
    async fn find_place(&self, client: LogClient, newcomer: Newcomer) -> bool {
        let mut has_evicted = false;
        loop {
            let room = {
                let generation = self.context.generation();
                self.context.table.borrow_mut().room(newcomer, generation.shares, generation.connections_max)
            };
            match room {
                Room::Free => return true,
                Room::OverShare(_, true) if has_evicted => return true,
                Room::OverShare(claimant, is_free) => {
                    self.context.count_limit(match claimant {
                        Claimant::Client(_) => Limit::ConnectionsPerClientMax,
                        Claimant::Network(_) => Limit::ConnectionsPerNetworkMax,
                    });
                    self.tell_of_places(format_args!("{client} or its network has more than its share of connections"));
                    has_evicted = self
                        .evict(|table, on_evicted| table.make_room_within(claimant, newcomer, is_free, on_evicted))
                        .await;
                    if is_free || !has_evicted {
                        return is_free;
                    }
                }
                Room::None => {
                    self.context.count_limit(Limit::ConnectionsMax);
                    self.tell_of_places("all connections are in use");
                    if !self.evict(|table, on_evicted| table.make_room(newcomer, on_evicted)).await {
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        }
    }

    fn tell_of_places(&self, reason: impl Display) {
        let connections_max = self.context.generation().connections_max;
        let values: &[(&str, &dyn Display)] = &[("reason", &reason), ("connections_per_worker_max", &connections_max)];
        self.place_trouble.tell(event("connection limit reached", values));
    }

    /// Evicts connections and waits until they are closed. Returns true if there were any.
    async fn evict(&self, evict: impl FnOnce(&mut ConnectionTable, &mut dyn FnMut(ConnectionStage)) -> usize) -> bool {
        let evicted = evict(&mut self.context.table.borrow_mut(), &mut |stage| self.context.count_eviction(stage));
        if evicted > 0 {
            // Evicted connections close at their next poll, which comes before this task continues.
            tokio::task::yield_now().await;
        }
        evicted > 0
    }
}

/// True for errors that concern one connection only: accept(2) also returns errors pending on the new socket.
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
