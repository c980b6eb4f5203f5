//! Proxy for connections and datagrams of other protocols: TLS by server name, TCP and UDP.
//!
//! All of it runs on one thread of its own. Workers give it connections of listeners that have HTTPS, too, and know nothing
//! else of it. Listeners, backends and certificates are replaced while connections are open; these go on with what they
//! began with.

mod datagrams;
mod relay;
mod tls;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use routes::HostTable;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, spawn};
use tokio::time::{sleep, timeout};

pub(crate) use self::tls::{StreamTls, accepted_clients};
use crate::connection::{DetachedConnection, StreamTaker};
use crate::log::{ServerLog, event};
use crate::metrics::{StreamCounts, StreamMetrics};

/// Connections of all listeners together, at most. Each holds two sockets.
pub(crate) const CONNECTIONS_MAX: u64 = 16_384;

/// Clients of a UDP listener at the same time. Each holds a socket.
pub(crate) const UDP_CLIENTS_MAX: usize = 4_096;

/// Time without data after which a connection is closed, unless its route has another.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Time without datagrams after which a client's socket is closed, unless its route has another.
pub(crate) const UDP_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time to connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Servers that are tried for a connection, at most.
const TRIES_MAX: usize = 3;

/// Length of a listener's queue.
const BACKLOG: u32 = 4_096;

/// Time until the next try after accepting has failed.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Time until the next try to bind an address that was in use.
const BIND_INTERVAL: Duration = Duration::from_secs(1);

/// A listener.
#[derive(Debug)]
pub(crate) struct StreamListener {
    /// Local address.
    pub(crate) address: SocketAddr,
    /// Traffic that it forwards.
    pub(crate) kind: StreamKind,
    /// Names of the controller's listeners that it serves.
    pub(crate) names: Vec<String>,
    /// True if the address has HTTPS, too: workers accept its connections, and give those that are not for HTTP to the proxy.
    pub(crate) is_shared: bool,
}

/// Traffic that a listener forwards.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each listener")]
pub(crate) enum StreamKind {
    /// Connections, all alike.
    Tcp(StreamTarget),
    /// Connections by the server name of TLS.
    Tls(HostTable<TlsListener>),
    /// Datagrams.
    Udp(StreamTarget),
}

/// Connections of TLS for one host name of a listener.
#[derive(Debug, Default)]
pub(crate) struct TlsListener {
    /// Settings of the handshake; `None` forwards connections unchanged.
    pub(crate) tls: Option<StreamTls>,
    /// Targets by server name.
    pub(crate) targets: HostTable<StreamTarget>,
}

/// Backends of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamTarget {
    /// Name of the controller's listener, for counts.
    listener: String,
    /// Sums of the weights up to each backend, and its name.
    backends: Vec<(u64, String)>,
    /// Time without data, if it is not the default.
    pub(crate) idle_timeout: Option<Duration>,
}

/// The proxy. Its thread runs from the first listener until this is dropped.
pub(crate) struct StreamProxy {
    orders: UnboundedSender<StreamOrder>,
    detached: UnboundedSender<(DetachedConnection, Counted)>,
    /// Other ends of the channels, until the thread has started.
    idle: Arc<Mutex<Option<StreamInbox>>>,
    has_started: AtomicBool,
    shared: Arc<Shared>,
}

/// Receivers of the proxy's thread.
struct StreamInbox {
    orders: UnboundedReceiver<StreamOrder>,
    /// Connections of shared listeners.
    detached: UnboundedReceiver<(DetachedConnection, Counted)>,
}

/// Order to the thread.
enum StreamOrder {
    /// Replace the listeners. Open connections go on.
    Apply(Vec<StreamListener>),
    /// Leave these addresses to workers until the next order; `done` is dropped when they are free.
    Release { addresses: HashSet<SocketAddr>, done: oneshot::Sender<()> },
    /// Bind released addresses again.
    Resume,
    /// Drop this after all earlier orders.
    Confirm(oneshot::Sender<()>),
}

#[derive(Debug)]
struct Shared {
    servers: Mutex<HashMap<String, Arc<[SocketAddr]>>>,
    metrics: Arc<StreamMetrics>,
    log: ServerLog,
}

/// A connection or client that is counted as open; dropped at its end.
struct Counted {
    metrics: Arc<StreamMetrics>,
    /// Counts of its listener, then those of its backend.
    counts: Vec<Arc<StreamCounts>>,
}

impl Counted {
    fn enter(&mut self, counts: Arc<StreamCounts>) {
        counts.on_open();
        self.counts.push(counts);
    }

    /// Notes that no server was reached.
    fn fail(&self) {
        self.counts.iter().for_each(|counts| counts.on_failure());
    }

    /// Counts bytes from the client, and to it.
    fn on_bytes(&self, received: u64, sent: u64) {
        self.counts.iter().for_each(|counts| counts.on_bytes(received, sent));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.iter().for_each(|counts| counts.on_close());
        self.metrics.leave();
    }
}

impl StreamTarget {
    /// Target of a listener, without backends.
    pub(crate) fn new(listener: &str) -> Self {
        Self { listener: listener.to_owned(), ..Self::default() }
    }

    /// Adds a backend.
    pub(crate) fn push(&mut self, weight: u32, backend: &str) {
        if weight > 0 {
            let sum = self.backends.last().map_or(0, |(sum, _)| *sum);
            self.backends.push((sum + u64::from(weight), backend.to_owned()));
        }
    }

    /// Draws a backend by weight.
    fn choose(&self) -> Option<&str> {
        let (total, _) = self.backends.last()?;
        let number = fastrand::u64(0..*total);
        let index = self.backends.partition_point(|(sum, _)| *sum <= number);
        self.backends.get(index).map(|(_, name)| name.as_str())
    }
}

impl StreamProxy {
    /// Proxy without listeners and without a thread.
    pub(crate) fn new(log: &ServerLog) -> Self {
        let ((orders, received), (detached, connections)) = (unbounded_channel(), unbounded_channel());
        let idle = Arc::new(Mutex::new(Some(StreamInbox { orders: received, detached: connections })));
        let shared = Arc::new(Shared { servers: Mutex::default(), metrics: Arc::default(), log: log.clone() });
        Self { orders, detached, idle, has_started: AtomicBool::new(false), shared }
    }

    /// Counts of connections.
    pub(crate) fn metrics(&self) -> &Arc<StreamMetrics> {
        &self.shared.metrics
    }

    /// Replaces the listeners. Open connections go on. Starts the thread for the first ones.
    ///
    /// # Errors
    /// Out of threads or file descriptors.
    pub(crate) fn apply(&self, listeners: Vec<StreamListener>) -> io::Result<()> {
        if !self.has_started() {
            if listeners.is_empty() {
                return Ok(());
            }
            self.start()?;
        }
        self.shared.metrics.keep_listeners(listeners.iter().flat_map(|listener| &listener.names).map(String::as_str));
        // The thread ends after this is dropped.
        let _ = self.orders.send(StreamOrder::Apply(listeners));
        Ok(())
    }

    /// Leaves addresses to workers, until [`Self::apply`] or [`Self::resume`]. Returns when they are free.
    pub(crate) async fn release(&self, addresses: HashSet<SocketAddr>) {
        if !self.has_started() || addresses.is_empty() {
            return;
        }
        self.order(|done| StreamOrder::Release { addresses, done }).await;
    }

    /// Returns when new connections see the latest listeners.
    pub(crate) async fn applied(&self) {
        if self.has_started() {
            self.order(StreamOrder::Confirm).await;
        }
    }

    /// Gives an order, and returns when it was carried out.
    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> StreamOrder) {
        let (done, is_done) = oneshot::channel();
        let _ = self.orders.send(order(done));
        // An error is the end of the sender.
        let _ = is_done.await;
    }

    /// Binds released addresses again.
    pub(crate) fn resume(&self) {
        let _ = self.orders.send(StreamOrder::Resume);
    }

    /// Replaces the servers of a backend. One without servers, such as one that is gone, is forgotten.
    pub(crate) fn set_servers(&self, backend: &str, servers: &[SocketAddr]) {
        match servers {
            [] => {
                self.shared.servers().remove(backend);
                self.shared.metrics.forget_backend(backend);
            }
            servers => drop(self.shared.servers().insert(backend.to_owned(), servers.into())),
        }
    }

    fn has_started(&self) -> bool {
        self.has_started.load(Ordering::Relaxed)
    }

    fn start(&self) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (shared, idle) = (Arc::clone(&self.shared), Arc::clone(&self.idle));
        std::thread::Builder::new().name("streams".to_owned()).spawn(move || {
            let inbox = lock(&idle).take();
            if let Some(inbox) = inbox {
                runtime.block_on(run(inbox, shared));
            }
        })?;
        self.has_started.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl StreamTaker for StreamProxy {
    fn take(&self, connection: DetachedConnection) {
        // Counted before the queue, so that the queue has a limit.
        if let Some(counted) = self.shared.count() {
            let _ = self.detached.send((connection, counted));
        }
    }
}

impl Shared {
    fn servers(&self) -> MutexGuard<'_, HashMap<String, Arc<[SocketAddr]>>> {
        lock(&self.servers)
    }

    /// Counts a connection; `None` above the limit.
    fn count(&self) -> Option<Counted> {
        let metrics = &self.metrics;
        metrics.enter(CONNECTIONS_MAX).then(|| Counted { metrics: Arc::clone(metrics), counts: Vec::new() })
    }

    /// Servers of a target in the order of the tries. Counts the connection for its listener and backend.
    fn servers_of(&self, target: &StreamTarget, counted: &mut Counted) -> Vec<SocketAddr> {
        self.metrics.listener(&target.listener).into_iter().for_each(|counts| counted.enter(counts));
        let Some(backend) = target.choose() else { return Vec::new() };
        let Some(servers) = self.servers().get(backend).cloned() else { return Vec::new() };
        counted.enter(self.metrics.backend(backend));
        let mut servers = servers.to_vec();
        fastrand::shuffle(&mut servers);
        servers.truncate(TRIES_MAX);
        servers
    }

    /// Connects to a server of a target.
    async fn connect(&self, target: &StreamTarget, counted: &mut Counted) -> Option<TcpStream> {
        for server in self.servers_of(target, counted) {
            if let Ok(Ok(socket)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(server)).await {
                // Without it, small messages wait; with an error, they still arrive.
                let _ = socket.set_nodelay(true);
                return Some(socket);
            }
        }
        counted.fail();
        None
    }

    fn warn_of_binding(&self, address: SocketAddr, error: &io::Error) {
        let help = "another program may use the address; the server tries again each second";
        self.log.warn(event("listener of streams not opened", &[("listen", &address), ("error", error)]), help);
    }
}

/// A panic leaves no half-made change of what these locks protect.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Address of a listener; true for datagrams.
type StreamKey = (SocketAddr, bool);

/// A listener, and the channel for its replacement.
struct Running {
    current: watch::Sender<Arc<StreamListener>>,
    accepting: Accepting,
}

/// Origin of a listener's connections.
enum Accepting {
    /// A task accepts them.
    Task(JoinHandle<()>),
    /// No origin until the address can be bound.
    Waiting,
    /// No origin, because the address will be the workers'.
    Released,
    /// Workers.
    Workers,
}

/// Listeners of the thread.
struct StreamListeners {
    running: HashMap<StreamKey, Running>,
    shared: Arc<Shared>,
}

async fn run(mut inbox: StreamInbox, shared: Arc<Shared>) {
    let mut listeners = StreamListeners { running: HashMap::new(), shared };
    loop {
        tokio::select! {
            order = inbox.orders.recv() => match order {
                Some(StreamOrder::Apply(new)) => listeners.apply(new).await,
                Some(StreamOrder::Release { addresses, done }) => {
                    listeners.release(&addresses).await;
                    drop(done);
                }
                Some(StreamOrder::Resume) => listeners.resume(),
                Some(StreamOrder::Confirm(done)) => drop(done),
                None => return,
            },
            Some((connection, counted)) = inbox.detached.recv() => listeners.start_detached(connection, counted),
            () = sleep(BIND_INTERVAL), if listeners.has_waiting() => listeners.bind_waiting().await,
        }
    }
}

impl StreamListeners {
    async fn apply(&mut self, new: Vec<StreamListener>) {
        let key = |listener: &StreamListener| (listener.address, matches!(listener.kind, StreamKind::Udp(_)));
        let kept: HashSet<StreamKey> = new.iter().map(key).collect();
        let gone: Vec<_> = self.running.extract_if(|key, _| !kept.contains(key)).collect();
        for (_, listener) in gone {
            listener.accepting.end().await;
        }
        for listener in new {
            let (key, is_shared, listener) = (key(&listener), listener.is_shared, Arc::new(listener));
            let running = match self.running.entry(key) {
                Entry::Occupied(known) => {
                    known.get().current.send_replace(listener);
                    known.into_mut()
                }
                Entry::Vacant(place) => {
                    place.insert(Running { current: watch::channel(listener).0, accepting: Accepting::Waiting })
                }
            };
            match (&running.accepting, is_shared) {
                (_, true) => std::mem::replace(&mut running.accepting, Accepting::Workers).end().await,
                (Accepting::Task(_), false) => {}
                (_, false) => {
                    running.accepting = Accepting::Waiting;
                    if let Err(error) = running.start(key, &self.shared).await {
                        self.shared.warn_of_binding(key.0, &error);
                    }
                }
            }
        }
    }

    async fn release(&mut self, addresses: &HashSet<SocketAddr>) {
        for (key, running) in &mut self.running {
            let is_bound = matches!(running.accepting, Accepting::Task(_) | Accepting::Waiting);
            if is_bound && !key.1 && addresses.contains(&key.0) {
                std::mem::replace(&mut running.accepting, Accepting::Released).end().await;
            }
        }
    }

    fn resume(&mut self) {
        let released = self.running.values_mut().filter(|it| matches!(it.accepting, Accepting::Released));
        released.for_each(|running| running.accepting = Accepting::Waiting);
    }

    fn has_waiting(&self) -> bool {
        self.running.values().any(|running| matches!(running.accepting, Accepting::Waiting))
    }

    async fn bind_waiting(&mut self) {
        for (key, running) in &mut self.running {
            if matches!(running.accepting, Accepting::Waiting) {
                // The first error was logged.
                let _ = running.start(*key, &self.shared).await;
            }
        }
    }

    /// Starts a connection that a worker has accepted.
    fn start_detached(&self, connection: DetachedConnection, mut counted: Counted) {
        let DetachedConnection { socket, server_name, received, place } = connection;
        let Ok(client) = TcpStream::from_std(socket.into()) else { return };
        let Some(listener) = client.local_addr().ok().and_then(|address| self.at(address)) else { return };
        let shared = Arc::clone(&self.shared);
        spawn(async move {
            if let StreamKind::Tls(hosts) = &listener.kind {
                tls::forward_hello(client, hosts, (&server_name, received), &shared, &mut counted).await;
            }
            drop((counted, place));
        });
    }

    /// Listener of connections to this address: its own, or that of all addresses.
    fn at(&self, address: SocketAddr) -> Option<Arc<StreamListener>> {
        let any: IpAddr = if address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let of = |address| self.running.get(&(address, false));
        let found = of(address).or_else(|| of(SocketAddr::new(any, address.port())));
        found.map(|running| Arc::clone(&running.current.borrow()))
    }
}

impl Accepting {
    /// Ends the task. Its socket is closed then, so that a later listener can have the address.
    async fn end(self) {
        if let Self::Task(task) = self {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Running {
    /// Binds the address, and accepts connections or datagrams.
    async fn start(&mut self, (address, is_udp): StreamKey, shared: &Arc<Shared>) -> io::Result<()> {
        let (receiver, shared) = (self.current.subscribe(), Arc::clone(shared));
        self.accepting = Accepting::Task(match is_udp {
            true => spawn(datagrams::serve(UdpSocket::bind(address).await?, receiver, shared)),
            false => spawn(accept(bind(address)?, receiver, shared)),
        });
        Ok(())
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(socket: TcpListener, current: watch::Receiver<Arc<StreamListener>>, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = socket.accept().await else {
            // Out of file descriptors: another try at once would spin.
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        let Some(mut counted) = shared.count() else { continue };
        let listener = Arc::clone(&current.borrow());
        let shared = Arc::clone(&shared);
        spawn(async move {
            let _ = client.set_nodelay(true);
            match &listener.kind {
                StreamKind::Tcp(target) => {
                    if let Some(server) = shared.connect(target, &mut counted).await {
                        relay::relay(client, server, target.idle_timeout.unwrap_or(IDLE_TIMEOUT), &counted).await;
                    }
                }
                StreamKind::Tls(hosts) => tls::forward(client, hosts, &shared, &mut counted).await,
                StreamKind::Udp(_) => {}
            }
            drop(counted);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogLevel;

    #[test]
    fn backends_without_servers_are_forgotten() {
        let proxy = StreamProxy::new(&ServerLog::stderr(LogLevel::Error));
        let server = SocketAddr::from(([127, 0, 0, 1], 1));
        for number in 0..100 {
            let name = format!("backend-{number}");
            proxy.set_servers(&name, &[server]);
            assert_eq!(proxy.shared.servers()[&name][..], [server]);
            proxy.set_servers(&name, &[]);
        }
        assert!(proxy.shared.servers().is_empty());
    }
}
