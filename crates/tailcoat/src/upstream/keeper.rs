//! What is done now and then, once for all workers: looking up names and checking servers. It runs on the main thread,
//! which otherwise only waits for signals: a worker with much to do would be late with checks and take that for the
//! server's fault, and it may end before others do.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::check::check;
use super::monotonic_ms;
use super::shared::{Location, SharedUpstream};

/// How soon a name is looked up again that has no address yet.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Looks up the addresses of a name, for connections to a port. It may wait.
pub type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Looks up names and checks servers for ever, in a runtime of tokio; ends when it is dropped, or if there is nothing to
/// do.
pub async fn keep(upstreams: Vec<Arc<SharedUpstream>>, lookup: Lookup) {
    let mut tasks = JoinSet::new();
    for upstream in upstreams {
        for server in 0..upstream.servers.len() as u16 {
            if upstream.server(server).location.has_name() {
                tasks.spawn(resolve_regularly(Arc::clone(&upstream), server, lookup));
            }
            if upstream.config.health_check.is_some() {
                tasks.spawn(check_regularly(Arc::clone(&upstream), server));
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// The system's resolver (getaddrinfo), with all it is configured for: hosts, search domains, caches.
///
/// # Errors
/// The name is not known, or nobody could be asked.
pub fn system_lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

async fn resolve_regularly(upstream: Arc<SharedUpstream>, server: u16, lookup: Lookup) {
    let server = upstream.server(server);
    let Location::Tcp { host, port, addresses } = &server.location else { return };
    let mut has_failed = false;
    loop {
        let (name, port) = (host.clone(), *port);
        let result = spawn_blocking(move || lookup(&name, port)).await.unwrap_or_else(|panic| Err(panic.into()));
        let found = result.as_deref().unwrap_or_default();
        let has_address = addresses.update(found);
        if found.is_empty() != has_failed {
            has_failed = found.is_empty();
            match result {
                Ok(_) if !has_failed => upstream.log.info(format_args!("the name {host} is found again")),
                result => upstream.log.warn(
                    format_args!("the name {host} of server {} is not found: {}", server.name, reason(result)),
                    if has_address { "the addresses that it had are kept" } else { "requests to it are answered 502" },
                ),
            }
        }
        let interval = upstream.config.resolve_interval;
        sleep(if has_address { interval } else { interval.min(RETRY_INTERVAL) }).await;
    }
}

fn reason(result: io::Result<Vec<SocketAddr>>) -> String {
    result.err().map_or("it has no address".to_owned(), |error| error.to_string())
}

async fn check_regularly(upstream: Arc<SharedUpstream>, server: u16) {
    let Some(settings) = &upstream.config.health_check else { return };
    let mut ticks = interval(settings.interval);
    // A check that took long is not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let is_good = check(&upstream, server, settings).await;
        let now_ms = monotonic_ms();
        upstream.tell(server, now_ms, |health| health.on_check(is_good, now_ms));
    }
}
