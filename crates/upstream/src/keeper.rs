//! Background work done once for all workers: looking up names, checking servers, and reloading TLS files. It runs on
//! the main thread, which otherwise only waits for signals. A busy worker would run checks late and blame the server,
//! and it may end before the other workers do.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::check::check;
use super::monotonic_ms;
use super::server::{SharedServer, UpstreamLocation};
use super::shared::SharedUpstream;
use super::tls::ClientTls;
use crate::log::event;

/// Time until a name without any address is looked up again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Looks up the addresses of a name, for connections to a port. May block.
pub type AddressLookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Looks up names, checks servers and watches files, forever, in a tokio runtime. Ends when it is dropped.
pub async fn keep(upstreams: Vec<Arc<SharedUpstream>>, lookup: AddressLookup, file_check_interval: Duration) {
    let mut tasks = JoinSet::new();
    for upstream in upstreams {
        if upstream.tls.as_ref().is_some_and(ClientTls::has_files) {
            tasks.spawn(look_at_files_regularly(Arc::clone(&upstream), file_check_interval));
        }
        tasks.spawn(keep_servers(upstream, lookup));
    }
    while tasks.join_next().await.is_some() {}
}

/// Looks up the names of an upstream's servers and checks them, also of those that are added later.
async fn keep_servers(upstream: Arc<SharedUpstream>, lookup: AddressLookup) {
    let mut kept: Vec<(Arc<SharedServer>, JoinSet<()>)> = Vec::new();
    loop {
        let mut changed = pin!(upstream.servers.changed());
        // Before the set is read, so that no change is missed in between.
        changed.as_mut().enable();
        let set = upstream.servers.get();
        // Dropping the tasks of a removed server ends them.
        kept.retain(|(server, _)| set.iter().any(|other| Arc::ptr_eq(&other.shared, server)));
        for server in set.iter().map(|server| &server.shared) {
            let needs_none = !server.location.has_name() && upstream.config.health_check.is_none();
            if needs_none || kept.iter().any(|(known, _)| Arc::ptr_eq(known, server)) {
                continue;
            }
            let mut tasks = JoinSet::new();
            if server.location.has_name() {
                tasks.spawn(resolve_regularly(Arc::clone(&upstream), Arc::clone(server), lookup));
            }
            if upstream.config.health_check.is_some() {
                tasks.spawn(check_regularly(Arc::clone(&upstream), Arc::clone(server)));
            }
            kept.push((Arc::clone(server), tasks));
        }
        drop(set);
        changed.await;
    }
}

/// Looks up a name with the system's resolver (getaddrinfo), including hosts files, search domains and caches.
///
/// # Errors
/// The name is unknown, or no name server could be reached.
pub fn system_lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

async fn resolve_regularly(upstream: Arc<SharedUpstream>, server: Arc<SharedServer>, lookup: AddressLookup) {
    let UpstreamLocation::Tcp { host, port, addresses } = &server.location else { return };
    let mut has_failed = false;
    loop {
        let (name, port) = (host.clone(), *port);
        let result = spawn_blocking(move || lookup(&name, port)).await.unwrap_or_else(|panic| Err(panic.into()));
        let found = result.as_deref().unwrap_or_default();
        let has_address = addresses.update(found);
        if found.is_empty() != has_failed {
            has_failed = found.is_empty();
            match result {
                Ok(_) if !has_failed => {
                    upstream.log.info(event("host name resolved again", &[("host", &host), ("server", &server.name)]))
                }
                result => upstream.log.warn(
                    event(
                        "resolving host name failed",
                        &[("host", &host), ("server", &server.name), ("error", &reason(result))],
                    ),
                    if has_address { "its last addresses stay in use" } else { "requests to it get 502" },
                ),
            }
        }
        let interval = upstream.config.resolve_interval;
        sleep(if has_address { interval } else { interval.min(RETRY_INTERVAL) }).await;
    }
}

fn reason(result: io::Result<Vec<SocketAddr>>) -> String {
    result.err().map_or("no address".to_owned(), |error| error.to_string())
}

async fn check_regularly(upstream: Arc<SharedUpstream>, server: Arc<SharedServer>) {
    let Some(settings) = &upstream.config.health_check else { return };
    let mut ticks = interval(settings.interval);
    // A check that took long does not make later ones catch up.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let result = check(&upstream, &server, settings).await;
        upstream.tell_check(&server, monotonic_ms(), &result);
    }
}

async fn look_at_files_regularly(upstream: Arc<SharedUpstream>, interval: Duration) {
    loop {
        sleep(interval).await;
        let upstream = Arc::clone(&upstream);
        // Files can be on a slow disk. A panic leaves the old state in place.
        let _ = spawn_blocking(move || look_at_files(&upstream)).await;
    }
}

/// Reloads the TLS files of an upstream, if they have changed.
fn look_at_files(upstream: &SharedUpstream) {
    let Some(tls) = upstream.tls.as_ref().filter(|tls| tls.has_new_files()) else { return };
    let name = &upstream.config.name;
    match tls.reload() {
        Ok(()) => {
            let files = upstream.config.tls.files().map(|path| path.display().to_string());
            let files = files.collect::<Vec<_>>().join(",");
            upstream.log.info(event("upstream certificates reloaded", &[("upstream", name), ("files", &files)]));
        }
        // Certificate and key are rarely replaced at the same instant: the next check may find both.
        Err(error) => upstream.log.warn(
            event("reloading upstream certificates failed", &[("upstream", name), ("error", &error)]),
            "the certificates in use stay in use",
        ),
    }
}
