//! Proxy for connections and datagrams of other protocols: TLS by server name, TCP and UDP.
//!
//! All of it runs on one thread of its own, so that workers know nothing of it. Listeners, backends and certificates are
//! replaced while connections are open; these go on with what they began with.

mod datagrams;
mod relay;
mod tls;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use routes::HostTable;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn};
use tokio::time::{sleep, timeout};

pub(crate) use self::tls::{StreamTls, accepted_clients};
use crate::log::{ServerLog, event};

/// Connections of all listeners together, at most. Each holds two sockets.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;

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
    /// Sums of the weights up to each backend, and its name.
    backends: Vec<(u64, String)>,
    /// Time without data, if it is not the default.
    pub(crate) idle_timeout: Option<Duration>,
}

/// Counts of all connections, for metrics.
#[derive(Debug, Default)]
pub(crate) struct StreamCounts {
    /// Connections and clients of UDP at present.
    pub(crate) open: AtomicUsize,
    /// Connections and clients of UDP since the start.
    pub(crate) accepted: AtomicU64,
    /// Connections that reached no server, or were above a limit.
    pub(crate) failed: AtomicU64,
    /// Bytes from clients.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes to clients.
    pub(crate) bytes_out: AtomicU64,
}

/// The proxy. Its thread runs until this is dropped.
#[derive(Debug)]
pub(crate) struct StreamProxy {
    orders: UnboundedSender<Vec<StreamListener>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    servers: Mutex<HashMap<String, Arc<[SocketAddr]>>>,
    counts: StreamCounts,
    log: ServerLog,
}

/// A connection or client that is counted as open; dropped at its end.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StreamTarget {
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
    /// Starts the thread.
    ///
    /// # Errors
    /// Out of threads or file descriptors.
    pub(crate) fn start(log: &ServerLog) -> io::Result<Self> {
        let (orders, received) = unbounded_channel();
        let shared = Arc::new(Shared { servers: Mutex::default(), counts: StreamCounts::default(), log: log.clone() });
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("streams".to_owned()).spawn(move || {
            runtime.block_on(run(received, of_thread));
        })?;
        Ok(Self { orders, shared })
    }

    /// Replaces the listeners. Open connections go on.
    pub(crate) fn apply(&self, listeners: Vec<StreamListener>) {
        // The thread ends after this is dropped.
        let _ = self.orders.send(listeners);
    }

    /// Replaces the servers of a backend. One without servers, such as one that is gone, is forgotten.
    pub(crate) fn set_servers(&self, backend: &str, servers: &[SocketAddr]) {
        match servers {
            [] => drop(self.shared.servers().remove(backend)),
            servers => drop(self.shared.servers().insert(backend.to_owned(), servers.into())),
        }
    }
}

impl Shared {
    fn servers(&self) -> MutexGuard<'_, HashMap<String, Arc<[SocketAddr]>>> {
        // Each value is replaced as a whole.
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection; `None` above the limit.
    fn count(self: &Arc<Self>) -> Option<Counted> {
        let counts = &self.counts;
        let more = |open: usize| (open < CONNECTIONS_MAX).then_some(open + 1);
        if counts.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        Some(Counted(Arc::clone(self)))
    }

    /// Servers of a target in the order of the tries.
    fn servers_of(&self, target: &StreamTarget) -> Vec<SocketAddr> {
        let Some(servers) = target.choose().and_then(|name| self.servers().get(name).cloned()) else {
            return Vec::new();
        };
        let mut servers = servers.to_vec();
        fastrand::shuffle(&mut servers);
        servers.truncate(TRIES_MAX);
        servers
    }

    /// Connects to a server of a target.
    async fn connect(&self, target: &StreamTarget) -> Option<TcpStream> {
        for server in self.servers_of(target) {
            if let Ok(Ok(socket)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(server)).await {
                // Without it, small messages wait; with an error, they still arrive.
                let _ = socket.set_nodelay(true);
                return Some(socket);
            }
        }
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// A listener, and the channel for its replacement.
struct Running {
    current: watch::Sender<Arc<StreamListener>>,
    /// `None` until its address can be bound.
    task: Option<JoinHandle<()>>,
}

impl Running {
    /// Binds the address, and accepts connections or datagrams.
    async fn start(&mut self, (address, is_udp): (SocketAddr, bool), shared: &Arc<Shared>) -> io::Result<()> {
        let (receiver, shared) = (self.current.subscribe(), Arc::clone(shared));
        self.task = Some(match is_udp {
            true => spawn(datagrams::serve(UdpSocket::bind(address).await?, receiver, shared)),
            false => spawn(accept(bind(address)?, receiver, shared)),
        });
        Ok(())
    }
}

async fn run(mut orders: UnboundedReceiver<Vec<StreamListener>>, shared: Arc<Shared>) {
    let mut running: HashMap<(SocketAddr, bool), Running> = HashMap::new();
    loop {
        let is_complete = running.values().all(|listener| listener.task.is_some());
        let listeners = tokio::select! {
            listeners = orders.recv() => listeners,
            () = sleep(BIND_INTERVAL), if !is_complete => {
                for (key, listener) in running.iter_mut().filter(|(_, listener)| listener.task.is_none()) {
                    // The first error was logged.
                    let _ = listener.start(*key, &shared).await;
                }
                continue;
            }
        };
        let Some(listeners) = listeners else { return };
        let is_udp = |listener: &StreamListener| matches!(listener.kind, StreamKind::Udp(_));
        let wanted: Vec<_> = listeners.iter().map(|listener| (listener.address, is_udp(listener))).collect();
        let kept: HashSet<_> = wanted.iter().copied().collect();
        for (_, gone) in running.extract_if(|key, _| !kept.contains(key)) {
            let Some(task) = gone.task else { continue };
            task.abort();
            // Its socket is closed then, so that a later listener can have the address.
            let _ = task.await;
        }
        for (key, listener) in wanted.into_iter().zip(listeners) {
            let listener = Arc::new(listener);
            if let Some(known) = running.get(&key) {
                known.current.send_replace(listener);
                continue;
            }
            let mut new = Running { current: watch::channel(listener).0, task: None };
            if let Err(error) = new.start(key, &shared).await {
                shared.warn_of_binding(key.0, &error);
            }
            running.insert(key, new);
        }
    }
}

impl Shared {
    fn warn_of_binding(&self, address: SocketAddr, error: &io::Error) {
        let help = "another program may use the address; the server tries again each second";
        self.log.warn(event("listener of streams not opened", &[("listen", &address), ("error", error)]), help);
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
        let Some(counted) = shared.count() else { continue };
        let listener = Arc::clone(&current.borrow());
        let shared = Arc::clone(&shared);
        spawn(async move {
            let _ = client.set_nodelay(true);
            match &listener.kind {
                StreamKind::Tcp(target) => {
                    if let Some(server) = shared.connect(target).await {
                        relay::relay(client, server, target.idle_timeout.unwrap_or(IDLE_TIMEOUT), &shared.counts).await;
                    }
                }
                StreamKind::Tls(hosts) => tls::forward(client, hosts, &shared).await,
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
        let proxy = StreamProxy::start(&ServerLog::stderr(LogLevel::Error)).unwrap();
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
