//! Pools, queue and connecting, with real servers on the loopback interface. No test sleeps: where time matters, the
//! test passes it in, or the runtime's clock advances by itself when the test is idle.

mod connecting;
mod health;
mod kept;
mod live;
mod names;
mod queueing;

use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};

use super::*;
use crate::config::{self, ConnectionReuse, LogLevel, UpstreamServer, UpstreamServerAddress};
use crate::log::{LineStyle, ServerLog};

/// Real time after which a test counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test as a worker would; if `is_paused`, the clock advances whenever the test is idle.
fn on_worker<T>(is_paused: bool, test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(is_paused)
        .build_local(LocalOptions::default())
        .unwrap();
    runtime.block_on(test)
}

fn quiet_log() -> ServerLog {
    ServerLog::new(LogLevel::Error, LineStyle::Plain, Box::new(std::io::sink()))
}

/// An upstream of servers at these addresses, configured further by `change`.
fn shared(
    addresses: &[UpstreamServerAddress],
    change: impl FnOnce(&mut config::UpstreamConfig),
) -> Arc<SharedUpstream> {
    let mut config = config::UpstreamConfig::named("test");
    config.servers.extend(addresses.iter().map(|address| UpstreamServer {
        address: address.clone(),
        weight: 1,
        backup: false,
    }));
    change(&mut config);
    SharedUpstream::new(&config, quiet_log()).unwrap()
}

fn upstream(addresses: &[UpstreamServerAddress], change: impl FnOnce(&mut config::UpstreamConfig)) -> Rc<Upstream> {
    Upstream::new(shared(addresses, change), 1)
}

/// A new listener, and its address as a server's.
fn listen() -> (TcpListener, UpstreamServerAddress) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(&listener);
    (listener, address)
}

fn address_of(listener: &TcpListener) -> UpstreamServerAddress {
    UpstreamServerAddress::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port())
}

/// Address of a server that rejects connections. The port is bound, so that no other process gets it, but does not
/// listen.
fn refusing() -> (socket2::Socket, UpstreamServerAddress) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, UpstreamServerAddress::Tcp("127.0.0.1".into(), port))
}

async fn acquire(upstream: &Rc<Upstream>, tried: Tried, now_ms: u64) -> Result<Lease, AcquireError> {
    let acquire = upstream.acquire(AcquireOptions { tried, ..AcquireOptions::default() }, now_ms);
    match tokio::time::timeout(PATIENCE * 1_000, acquire).await {
        Ok(result) => result.map(connection).map_err(|failure| failure.error),
        Err(_) => panic!("neither a connection nor an error"),
    }
}

/// Connection of an HTTP/1 upstream.
fn connection(leased: Leased) -> Lease {
    match leased {
        Leased::Connection(lease) => lease,
        Leased::Stream(_) => panic!("HTTP/2, which no test requested"),
    }
}

async fn lease(upstream: &Rc<Upstream>, now_ms: u64) -> Lease {
    acquire(upstream, Tried::default(), now_ms).await.unwrap()
}

/// Waits until the runtime has seen the latest socket events.
async fn turn() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Writes `bytes` to the server, which reads them.
async fn send(lease: &mut Lease, server: &mut TcpStream, bytes: &[u8]) {
    let count = std::future::poll_fn(|task| lease.poll_write(task, bytes)).await.unwrap();
    assert_eq!(count, bytes.len());
    let mut read = vec![0; bytes.len()];
    server.read_exact(&mut read).unwrap();
    assert_eq!(read, bytes);
}

/// Reads what the server writes.
async fn receive(lease: &mut Lease, server: &mut TcpStream, bytes: &[u8]) {
    server.write_all(bytes).unwrap();
    let mut read = [0; 64];
    let count = std::future::poll_fn(|task| lease.poll_read(task, &mut read)).await.unwrap();
    assert_eq!(&read[..count], bytes);
}
