//! State of an upstream that all workers share: health of the servers and connections in use.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::addresses::UpstreamAddresses;
use super::balance::hash_key;
use super::health::{FULL_SHARE, Health, HealthChange, HealthLimits, ServerFitness};
use super::monotonic_ms;
use super::tls::ClientTls;
use crate::config::{self, CertificateError, UpstreamServerAddress};
use crate::fair_queue::{FairQueue, LoadChange, QueueLimits, QueueOwner};
use crate::log::{ServerLog, event};

/// Least time between two log lines that report an overloaded queue, in milliseconds.
const OVERLOAD_LOG_INTERVAL_MS: u64 = 10_000;

/// State of an upstream that all workers share.
pub struct SharedUpstream {
    pub(super) config: config::UpstreamConfig,
    pub(super) servers: Box<[SharedServer]>,
    /// Requests that wait for a connection.
    pub(super) queue: FairQueue,
    /// Time of the last log line about an overload, in milliseconds; 0 before the first. `overload_logged` is true if
    /// the current overload was logged.
    overload_logged_ms: AtomicU64,
    overload_logged: AtomicBool,
    pub(super) log: ServerLog,
    /// TLS settings, if any server uses TLS.
    pub(super) tls: Option<ClientTls>,
}

/// A server of an upstream. Aligned, so that the counters of two servers share no cache line.
#[repr(align(128))]
pub(super) struct SharedServer {
    /// Configured name, for logs.
    pub(super) name: String,
    pub(super) location: UpstreamLocation,
    pub(super) protocol: UpstreamProtocol,
    pub(super) weight: u32,
    pub(super) is_backup: bool,
    /// Number derived from the server's address.
    pub(super) hash: u64,
    /// Connections in use, or exchanges where connections carry several.
    in_use: AtomicU32,
    /// Requests sent to it.
    requests: AtomicU64,
    /// Requests that failed by its fault.
    failures: AtomicU64,
    /// True if `health` holds more than "fit"; most requests read only this flag and take no lock.
    is_unsettled: AtomicBool,
    /// True if an operator has drained it.
    is_drained: AtomicBool,
    health: Mutex<Health>,
}

/// Protocol spoken with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamProtocol {
    /// One exchange at a time: HTTP/1.1, FastCGI and the like.
    OneAtATime,
    /// HTTP/2 without TLS.
    Http2,
    /// TLS; the server chooses HTTP/2 or HTTP/1.1.
    Negotiated,
}

/// State of a server, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerState<'a> {
    /// Configured address.
    pub name: &'a str,
    /// `up`; `trial` if one request may test whether it is back; `down`; or `drained` by an operator.
    pub health: &'static str,
    /// True if it gets requests only while no other server is up.
    pub is_backup: bool,
    /// Connections in use.
    pub in_use: u32,
    /// Requests sent to it.
    pub requests: u64,
    /// Requests that failed by its fault.
    pub failures: u64,
}

/// Address of a server.
pub(super) enum UpstreamLocation {
    Tcp { host: String, port: u16, addresses: UpstreamAddresses },
    Unix(PathBuf),
}

impl SharedUpstream {
    /// Creates an upstream whose servers count as fit. Changes of health go to `log`.
    ///
    /// # Errors
    /// A TLS file can't be read or is invalid.
    pub fn new(config: &config::UpstreamConfig, log: ServerLog) -> Result<Arc<Self>, CertificateError> {
        Self::reuse(config, log, None)
    }

    /// Creates the upstream that replaces `reused`, or returns `reused` itself if neither its configuration nor its
    /// files have changed. Servers with the same name keep their health and addresses. Connections in use still count
    /// for `reused`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn reuse(
        config: &config::UpstreamConfig,
        log: ServerLog,
        reused: Option<&Arc<Self>>,
    ) -> Result<Arc<Self>, CertificateError> {
        if let Some(reused) = reused.filter(|reused| reused.config == *config && !reused.has_new_files()) {
            return Ok(Arc::clone(reused));
        }
        let limits = HealthLimits::new(config);
        let servers = config.servers.iter().map(|server| {
            let new = SharedServer::new(server, limits);
            let mut others = reused.iter().flat_map(|reused| reused.servers.iter());
            if let Some(known) = others.find(|other| other.name == new.name) {
                new.reuse(known);
            }
            new
        });
        let servers = servers.collect();
        let tls = ClientTls::load(config)?;
        let queue = FairQueue::default();
        reused.iter().for_each(|reused| queue.reuse(&reused.queue));
        let (config, overload_logged_ms, overload_logged) = (config.clone(), AtomicU64::new(0), AtomicBool::new(false));
        Ok(Arc::new(Self { config, servers, queue, overload_logged_ms, overload_logged, log, tls }))
    }

    /// Checks whether TLS files have changed since they were read.
    fn has_new_files(&self) -> bool {
        self.tls.as_ref().is_some_and(ClientTls::has_new_files)
    }

    /// Name of the upstream in the configuration.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Drains a server, or returns it to service; `None` if there is no such server. Requests in progress continue.
    pub fn set_drained(&self, server: &str, is_drained: bool) -> Option<()> {
        let server = self.servers.iter().find(|of| of.name == server)?;
        server.is_drained.store(is_drained, Ordering::Relaxed);
        self.queue.call_first();
        Some(())
    }

    /// Names of the servers, and the connections that each has in use.
    pub fn servers_in_use(&self) -> impl Iterator<Item = (&str, u32)> {
        self.servers.iter().map(|server| (server.name.as_str(), server.in_use()))
    }

    /// Configuration of the upstream.
    pub fn config(&self) -> &config::UpstreamConfig {
        &self.config
    }

    /// Checks whether any server may speak HTTP/2.
    pub fn may_speak_http2(&self) -> bool {
        let offers_http2 = self.tls.as_ref().is_some_and(|tls| tls.offers_http2);
        self.servers.iter().any(|server| match server.protocol {
            UpstreamProtocol::OneAtATime => false,
            UpstreamProtocol::Http2 => true,
            UpstreamProtocol::Negotiated => offers_http2,
        })
    }

    /// Value of Host for the first server.
    pub fn authority(&self) -> String {
        self.servers.first().map(SharedServer::authority).unwrap_or_default()
    }

    /// Number of requests that wait for a connection.
    pub fn queue_length(&self) -> usize {
        self.queue.length()
    }

    /// True if the queue is overloaded: requests wait too long, and not all can be served.
    pub fn is_queue_overloaded(&self) -> bool {
        self.queue.is_overloaded()
    }

    /// Number of requests rejected because the queue was overloaded.
    pub fn queue_shed(&self) -> u64 {
        self.queue.shed()
    }

    /// Checks whether to log that an overload has begun. An overload may come and go, so this is limited in rate.
    fn may_tell_overload(&self) -> bool {
        let (now_ms, logged_ms) = (monotonic_ms(), self.overload_logged_ms.load(Ordering::Relaxed));
        let may_tell = logged_ms == 0 || now_ms.saturating_sub(logged_ms) >= OVERLOAD_LOG_INTERVAL_MS;
        if may_tell {
            self.overload_logged_ms.store(now_ms, Ordering::Relaxed);
            self.overload_logged.store(true, Ordering::Relaxed);
        }
        may_tell
    }

    /// Limits beyond which the queue counts as overloaded.
    pub(super) fn queue_limits(&self) -> QueueLimits {
        QueueLimits {
            wait_max_ms: self.config.queue_wait_max().as_millis() as u64,
            timeout_ms: self.config.queue_timeout.as_millis() as u64,
            places: u64::from(self.config.connections_max) * self.servers.len() as u64,
        }
    }

    /// States of the servers, for operators.
    pub fn server_states(&self) -> impl Iterator<Item = ServerState<'_>> {
        let now_ms = monotonic_ms();
        self.servers.iter().map(move |server| ServerState {
            name: &server.name,
            health: match server.standing(now_ms) {
                _ if server.is_drained() => "drained",
                ServerFitness::Fit(_) => "up",
                ServerFitness::Trial => "trial",
                ServerFitness::Out => "down",
            },
            is_backup: server.is_backup,
            in_use: server.in_use(),
            requests: server.requests.load(Ordering::Relaxed),
            failures: server.failures.load(Ordering::Relaxed),
        })
    }

    /// Log that changes of health go to.
    pub fn log(&self) -> &ServerLog {
        &self.log
    }

    /// Takes a slot for a connection to a server; `false` if all are in use.
    pub(super) fn take_slot(&self, server: u16) -> bool {
        let server = self.server(server);
        let has_taken = if self.config.connections_max == 0 {
            server.in_use.fetch_add(1, Ordering::Relaxed);
            true
        } else {
            let more = |count| (count < self.config.connections_max).then_some(count + 1);
            server.in_use.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
        };
        // In the same cache line, which this core owns now.
        server.requests.fetch_add(has_taken.into(), Ordering::Relaxed);
        has_taken
    }

    /// Releases a slot.
    pub(super) fn release(&self, server: u16) {
        self.server(server).in_use.fetch_sub(1, Ordering::SeqCst);
        self.queue.call_first();
    }

    pub(super) fn server(&self, server: u16) -> &SharedServer {
        &self.servers[usize::from(server)]
    }

    /// Updates a server's health and logs the change, if any.
    pub(super) fn tell(&self, server: u16, now_ms: u64, what: impl FnOnce(&mut Health) -> Option<HealthChange>) {
        let server = self.server(server);
        if let Some(change) = server.with_health(now_ms, what) {
            self.log_change(&server.name, change, "");
        }
    }

    /// Updates a server's health with the result of a check, and logs the change, if any.
    pub(super) fn tell_check(&self, server: u16, now_ms: u64, result: &Result<(), String>) {
        let server = self.server(server);
        if let Some(change) = server.with_health(now_ms, |health| health.on_check(result.is_ok(), now_ms)) {
            self.log_change(&server.name, change, result.as_ref().err().map_or("", String::as_str));
        }
    }

    fn log_change(&self, server: &str, change: HealthChange, why: &str) {
        let upstream = &self.config.name;
        let place: [(&str, &dyn fmt::Display); 2] = [("upstream", upstream), ("server", &server)];
        match change {
            HealthChange::Ejected(length_ms) => self.log.warn(
                event("upstream server ejected", &[place[0], place[1], ("seconds", &(length_ms as f64 / 1_000.0))]),
                "check that it runs and responds",
            ),
            HealthChange::Back => self.log.info(event("upstream server restored", &place)),
            HealthChange::ChecksBad => self.log.warn(
                event("upstream server went down: health checks failed", &[place[0], place[1], ("reason", &why)]),
                "check that it responds to the path of `health-check`",
            ),
            HealthChange::ChecksGood => self.log.info(event("upstream server came up: health checks passed", &place)),
        }
    }
}

impl QueueOwner for SharedUpstream {
    fn queue(&self) -> &FairQueue {
        &self.queue
    }

    fn on_load_change(&self, change: LoadChange) {
        let name = &self.config.name;
        match change {
            LoadChange::Began if !self.may_tell_overload() => {}
            LoadChange::Began => {
                let (length, wait_ms) = (self.queue_length(), self.config.queue_wait_max().as_millis());
                self.log.warn(
                    event(
                        "overload began",
                        &[("reason", &"queue"), ("upstream", name), ("queue", &length), ("wait_ms", &wait_ms)],
                    ),
                    "add servers, raise `connections-max` if they can serve more requests at once, or find out why they are slow",
                );
            }
            LoadChange::Ended if !self.overload_logged.swap(false, Ordering::Relaxed) => {}
            LoadChange::Ended => {
                let shed = self.queue_shed();
                self.log
                    .info(event("overload ended", &[("reason", &"queue"), ("upstream", name), ("shed_total", &shed)]));
            }
        }
    }
}

impl SharedServer {
    fn new(config: &config::UpstreamServer, limits: HealthLimits) -> Self {
        let name = config.address.to_string();
        Self {
            hash: hash_key(name.as_bytes()),
            name,
            location: match &config.address {
                UpstreamServerAddress::Tcp(host, port)
                | UpstreamServerAddress::Http2(host, port)
                | UpstreamServerAddress::Tls(host, port)
                | UpstreamServerAddress::OtherTcp(host, port) => UpstreamLocation::Tcp {
                    host: host.clone(),
                    port: *port,
                    addresses: UpstreamAddresses::of_host(host, *port),
                },
                UpstreamServerAddress::Unix(path) => UpstreamLocation::Unix(path.clone()),
            },
            protocol: match &config.address {
                UpstreamServerAddress::Tcp(..)
                | UpstreamServerAddress::OtherTcp(..)
                | UpstreamServerAddress::Unix(_) => UpstreamProtocol::OneAtATime,
                UpstreamServerAddress::Http2(..) => UpstreamProtocol::Http2,
                UpstreamServerAddress::Tls(..) => UpstreamProtocol::Negotiated,
            },
            weight: config.weight,
            is_backup: config.backup,
            in_use: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_unsettled: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
            health: Mutex::new(Health::new(limits)),
        }
    }

    /// Value of Host for requests that Tailcoat sends itself.
    pub(super) fn authority(&self) -> String {
        let default_port = if self.protocol == UpstreamProtocol::Negotiated { 443 } else { 80 };
        match &self.location {
            UpstreamLocation::Tcp { host, port, .. } if *port == default_port => host.clone(),
            UpstreamLocation::Tcp { host, port, .. } => format!("{host}:{port}"),
            UpstreamLocation::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Reuses what is known of the same server.
    fn reuse(&self, before: &Self) {
        self.is_drained.store(before.is_drained(), Ordering::Relaxed);
        if let (UpstreamLocation::Tcp { addresses, .. }, UpstreamLocation::Tcp { addresses: known, .. }) =
            (&self.location, &before.location)
        {
            addresses.reuse(known);
        }
        // The first request that reads it finds out what still holds.
        self.is_unsettled.store(true, Ordering::Relaxed);
        let known = before.health.lock().unwrap_or_else(PoisonError::into_inner);
        self.health.lock().unwrap_or_else(PoisonError::into_inner).reuse(&known);
    }

    /// True if an operator has drained it.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// Connections in use, or exchanges where connections carry several.
    pub(super) fn in_use(&self) -> u32 {
        self.in_use.load(Ordering::SeqCst)
    }

    /// Tells whether a request may be sent to it.
    pub(super) fn standing(&self, now_ms: u64) -> ServerFitness {
        if !self.is_unsettled() {
            return ServerFitness::Fit(FULL_SHARE);
        }
        self.with_health(now_ms, |health| health.standing(now_ms))
    }

    /// True if `health` must be read to know more than "fit".
    pub(super) fn is_unsettled(&self) -> bool {
        self.is_unsettled.load(Ordering::Relaxed)
    }

    /// Counts a request that failed by its fault.
    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn with_health<R>(&self, now_ms: u64, what: impl FnOnce(&mut Health) -> R) -> R {
        // No update is left half done by a panic.
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let result = what(&mut health);
        self.is_unsettled.store(!health.is_settled(now_ms), Ordering::Relaxed);
        result
    }
}

impl UpstreamLocation {
    /// True if the host is a name, which must be looked up.
    pub(super) fn has_name(&self) -> bool {
        matches!(self, Self::Tcp { host, .. } if !UpstreamAddresses::is_literal(host))
    }
}

impl fmt::Debug for SharedUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<_> = self.servers.iter().map(|server| (&server.name, server.in_use())).collect();
        f.debug_struct("SharedUpstream").field("name", &self.config.name).field("servers", &servers).finish()
    }
}
