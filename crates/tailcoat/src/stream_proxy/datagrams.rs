//! Datagrams: each client has a socket of its own to a server, so that responses find their way back.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn};
use tokio::time::{Instant, interval, timeout};

use super::{Counted, Shared, StreamKind, StreamListener, StreamTarget, UDP_CLIENTS_MAX, UDP_IDLE_TIMEOUT};
use crate::metrics::StreamRejection;

/// Bytes of a datagram, at most.
const DATAGRAM_BYTES_MAX: usize = 0xffff;

/// Interval at which sockets of clients that are gone are dropped.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A client with its socket to a server.
struct UdpClient {
    socket: Arc<UdpSocket>,
    /// Gone when the task that returns responses has ended.
    counted: Weak<Counted>,
    /// Last datagram of the client, for the task that returns responses.
    heard: watch::Sender<Instant>,
    responses: AbortHandle,
}

impl Drop for UdpClient {
    fn drop(&mut self) {
        self.responses.abort();
    }
}

/// Forwards datagrams until the task is aborted.
pub(super) async fn serve(socket: UdpSocket, current: watch::Receiver<Arc<StreamListener>>, shared: Arc<Shared>) {
    let socket = Arc::new(socket);
    let mut clients: HashMap<SocketAddr, UdpClient> = HashMap::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut sweep = interval(SWEEP_INTERVAL);
    loop {
        let (length, from) = tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // An earlier datagram could not be delivered (ICMP).
                Err(_) => continue,
            },
            _ = sweep.tick() => {
                clients.retain(|_, client| !client.heard.is_closed());
                continue;
            }
        };
        let client = match clients.get(&from).filter(|client| !client.heard.is_closed()) {
            Some(client) => client,
            None => {
                let target = match &current.borrow().kind {
                    StreamKind::Udp(target) => target.clone(),
                    _ => continue,
                };
                let Some(new) = open(&socket, from, &target, clients.len(), &shared).await else { continue };
                clients.entry(from).insert_entry(new).into_mut()
            }
        };
        client.heard.send_replace(Instant::now());
        if client.socket.send(&buffer[..length]).await.is_ok()
            && let Some(counted) = client.counted.upgrade()
        {
            counted.on_bytes(length as u64, 0);
        }
    }
}

/// Opens a client's socket, and starts the task that returns responses.
async fn open(
    listener: &Arc<UdpSocket>,
    client: SocketAddr,
    target: &StreamTarget,
    count: usize,
    shared: &Arc<Shared>,
) -> Option<UdpClient> {
    if count >= UDP_CLIENTS_MAX {
        shared.metrics.reject(StreamRejection::Limit);
        return None;
    }
    let mut counted = shared.count()?;
    let Some(server) = shared.servers_of(target, &mut counted).into_iter().next() else {
        counted.fail();
        return None;
    };
    let counted = Arc::new(counted);
    let any: SocketAddr =
        if server.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = Arc::new(UdpSocket::bind(any).await.ok()?);
    socket.connect(server).await.ok()?;
    let (heard, hears) = watch::channel(Instant::now());
    let idle_timeout = target.idle_timeout.unwrap_or(UDP_IDLE_TIMEOUT);
    let (listener, of_task, of_client) = (Arc::downgrade(listener), Arc::clone(&socket), Arc::downgrade(&counted));
    let task = spawn(async move { answer(&listener, client, &of_task, hears, idle_timeout, &counted).await });
    Some(UdpClient { socket, counted: of_client, heard, responses: task.abort_handle() })
}

/// Returns responses to a client until neither side has sent anything for this time, or the listener is gone. The task does
/// not own the listener: its address would stay in use.
async fn answer(
    listener: &Weak<UdpSocket>,
    client: SocketAddr,
    socket: &UdpSocket,
    hears: watch::Receiver<Instant>,
    idle_timeout: Duration,
    counted: &Counted,
) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut last = Instant::now();
    loop {
        let heard = last.max(*hears.borrow());
        let ends = heard + idle_timeout;
        let now = Instant::now();
        if ends <= now {
            break;
        }
        let Ok(received) = timeout(ends - now, socket.recv(&mut buffer)).await else { continue };
        // An error is a closed port (ICMP); the client may try again.
        let (Ok(length), Some(listener)) = (received, listener.upgrade()) else { break };
        last = Instant::now();
        if listener.send_to(&buffer[..length], client).await.is_ok() {
            counted.on_bytes(0, length as u64);
        }
    }
}
