//! State of an upstream that all workers share: health of the servers and connections in use.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::discovered::{Discovered, all_servers};
use super::health::{Health, HealthChange, HealthLimits};
use super::monotonic_ms;
use super::server::{ServerState, SharedServer, UpstreamProtocol};
use super::server_set::{LiveServers, ServerSet};
use super::sticky::StickySigner;
use super::tls::ClientTls;
use crate::config::{self, CertificateError, UpstreamServerAddress};
use crate::fair_queue::{FairQueue, LoadChange, QueueLimits, QueueOwner};
use crate::log::{ServerLog, event};

/// Least time between two log lines that report an overloaded queue, in milliseconds.
const OVERLOAD_LOG_INTERVAL_MS: u64 = 10_000;

/// State of an upstream that all workers share.
pub struct SharedUpstream {
    /// Configuration. Its servers are those of the file.
    pub(super) config: Arc<config::UpstreamConfig>,
    pub(super) servers: LiveServers,
    /// Servers that a source names, if the upstream has one.
    pub(super) discovered: Option<Discovered>,
    /// Requests that wait for a connection.
    pub(super) queue: FairQueue,
    /// Time of the last log line about an overload, in milliseconds; 0 before the first. `overload_logged` is true if
    /// the current overload was logged.
    overload_logged_ms: AtomicU64,
    overload_logged: AtomicBool,
    pub(super) log: ServerLog,
    /// TLS settings, if any server uses TLS.
    pub(super) tls: Option<ClientTls>,
    /// Signer of cookies that keep a client with a server.
    pub(super) sticky: Option<StickySigner>,
}

/// Error of a server at `https://…` for an upstream that was configured without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTlsSettings;

impl SharedUpstream {
    /// Creates an upstream whose servers count as fit. Changes of health go to `log`.
    ///
    /// # Errors
    /// A TLS file can't be read or is invalid.
    pub fn new(config: &config::UpstreamConfig, log: ServerLog) -> Result<Arc<Self>, CertificateError> {
        Self::reuse(&Arc::new(config.clone()), log, None)
    }

    /// Creates the upstream that replaces `reused`, or returns `reused` itself if neither its configuration nor its
    /// files have changed. Servers with the same name keep their health and addresses. Connections in use still count
    /// for `reused`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn reuse(
        config: &Arc<config::UpstreamConfig>,
        log: ServerLog,
        reused: Option<&Arc<Self>>,
    ) -> Result<Arc<Self>, CertificateError> {
        let is_same = |reused: &&Arc<Self>| Arc::ptr_eq(&reused.config, config) || reused.config == *config;
        if let Some(reused) = reused.filter(is_same).filter(|reused| !reused.has_new_files()) {
            return Ok(Arc::clone(reused));
        }
        let (limits, before) = (HealthLimits::new(config), reused.map(|reused| reused.servers.get()));
        let discovered = config.discovery.as_ref().map(|_| {
            let same = reused.filter(|reused| reused.config.discovery == config.discovery);
            same.and_then(|reused| reused.discovered.as_ref()).map(Discovered::reuse).unwrap_or_default()
        });
        let servers = ServerSet::new(&all_servers(config, discovered.as_ref()), |address| {
            let new = SharedServer::new(address, limits);
            if let Some(known) = before.as_ref().and_then(|before| before.find(&new.name)) {
                new.reuse(&known.shared);
            }
            Arc::new(new)
        });
        // Only its files are new: the servers that a controller has sent stay.
        let of_controller = reused.filter(|reused| config.servers.is_empty() && reused.config == *config);
        let servers = match before.filter(|_| of_controller.is_some() && discovered.is_none()) {
            Some(before) => LiveServers::replaced(before),
            None => LiveServers::new(servers),
        };
        let tls = ClientTls::load(config)?;
        let sticky = StickySigner::load(config, &log, reused.and_then(|reused| reused.sticky.as_ref()))?;
        let queue = FairQueue::default();
        reused.iter().for_each(|reused| queue.reuse(&reused.queue));
        let (config, overload_logged_ms, overload_logged) =
            (Arc::clone(config), AtomicU64::new(0), AtomicBool::new(false));
        Ok(Arc::new(Self { config, servers, discovered, queue, overload_logged_ms, overload_logged, log, tls, sticky }))
    }

    /// Checks whether files of TLS or keys have changed since they were read.
    fn has_new_files(&self) -> bool {
        let has_new_key = match (&self.sticky, &self.config.sticky) {
            (Some(signer), Some(sticky)) => signer.is_outdated(sticky),
            _ => false,
        };
        has_new_key || self.tls.as_ref().is_some_and(ClientTls::has_new_files)
    }

    /// True if it was made from this very configuration.
    pub fn is_of(&self, config: &Arc<config::UpstreamConfig>) -> bool {
        Arc::ptr_eq(&self.config, config)
    }

    /// Name of the upstream in the configuration.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Drains a server, or returns it to service; `None` if there is no such server. Requests in progress continue.
    pub fn set_drained(&self, server: &str, is_drained: bool) -> Option<()> {
        self.servers.get().find(server)?.shared.set_drained(is_drained);
        self.queue.call_first();
        Some(())
    }

    /// Replaces the servers while requests are in progress. Servers that stay keep their health, connections and counts.
    /// A removed server completes its requests and gets no others.
    ///
    /// # Errors
    /// A server at `https://…`, for an upstream whose TLS settings were not loaded.
    pub fn set_servers(&self, servers: &[config::UpstreamServer]) -> Result<(), NoTlsSettings> {
        let limits = HealthLimits::new(&self.config);
        let set = |before: &ServerSet, removed: &dyn Fn(&str) -> Option<Arc<SharedServer>>| {
            ServerSet::new(servers, |address| {
                let name = address.to_string();
                let known = before.find(&name).map(|known| Arc::clone(&known.shared));
                known.or_else(|| removed(&name)).unwrap_or_else(|| Arc::new(SharedServer::new(address, limits)))
            })
        };
        let is_tls = |server: &config::UpstreamServer| matches!(server.address, UpstreamServerAddress::Tls(..));
        if self.tls.is_none() && servers.iter().any(is_tls) {
            return Err(NoTlsSettings);
        }
        self.servers.replace(set);
        // Each request that finds a place calls the next.
        self.queue.call_first();
        Ok(())
    }

    /// Sets the servers that a controller has sent, unless others were set already.
    pub fn set_first_servers(&self, routes: &config::RouteParts) {
        if let Some(servers) = routes.servers.get(self.name()).filter(|_| self.servers.version() == 0) {
            // Their TLS settings were loaded, because they are expected.
            let _ = self.set_servers(servers);
        }
    }

    /// Returns to the servers of the configuration after [`Self::set_servers`]. Those of a controller stay.
    pub fn reset_servers(&self) {
        // An order never replaces servers of a source.
        if self.servers.version() > 0 && !self.config.servers.is_empty() && self.discovered.is_none() {
            // The TLS settings were loaded for these servers.
            let _ = self.set_servers(&self.config.servers);
        }
    }

    /// Names of the servers, and the connections that each has in use.
    pub fn servers_in_use(&self) -> Vec<(String, u32)> {
        let set = self.servers.get();
        set.iter().map(|server| (server.shared.name.clone(), server.shared.in_use())).collect()
    }

    /// Configuration of the upstream.
    pub fn config(&self) -> &config::UpstreamConfig {
        &self.config
    }

    /// Checks whether a server with this protocol may speak HTTP/2.
    pub(super) fn may_speak_http2(&self, protocol: UpstreamProtocol) -> bool {
        match protocol {
            UpstreamProtocol::OneAtATime => false,
            UpstreamProtocol::Http2 => true,
            UpstreamProtocol::Negotiated => self.tls.as_ref().is_some_and(|tls| tls.offers_http2),
        }
    }

    /// Value of Host for the first server.
    pub fn authority(&self) -> String {
        self.servers.get().iter().next().map(|server| server.shared.authority()).unwrap_or_default()
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
            places: u64::from(self.config.connections_max) * self.servers.count() as u64,
        }
    }

    /// States of the servers, for operators.
    pub fn server_states(&self) -> Vec<ServerState> {
        let now_ms = monotonic_ms();
        self.servers.get().iter().map(|server| server.shared.state(server.is_backup, now_ms)).collect()
    }

    /// Log that changes of health go to.
    pub fn log(&self) -> &ServerLog {
        &self.log
    }

    /// Takes a slot for a connection to a server; `false` if all are in use.
    pub(super) fn take_slot(&self, server: &SharedServer) -> bool {
        server.take_slot(self.config.connections_max)
    }

    /// Releases a slot.
    pub(super) fn release(&self, server: &SharedServer) {
        server.release_slot();
        self.queue.call_first();
    }

    /// Server with this index.
    #[cfg(test)]
    pub(super) fn server(&self, index: usize) -> Arc<SharedServer> {
        Arc::clone(&self.servers.get().iter().nth(index).unwrap().shared)
    }

    /// Updates a server's health and logs the change, if any.
    pub(super) fn tell(
        &self,
        server: &SharedServer,
        now_ms: u64,
        what: impl FnOnce(&mut Health) -> Option<HealthChange>,
    ) {
        if let Some(change) = server.with_health(now_ms, what) {
            self.log_change(&server.name, change, "");
        }
    }

    /// Updates a server's health with the result of a check, and logs the change, if any.
    pub(super) fn tell_check(&self, server: &SharedServer, now_ms: u64, result: &Result<(), String>) {
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

impl fmt::Debug for SharedUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers_in_use();
        f.debug_struct("SharedUpstream").field("name", &self.config.name).field("servers", &servers).finish()
    }
}
