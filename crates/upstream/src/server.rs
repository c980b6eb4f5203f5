//! A server of an upstream: the state that all workers share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::addresses::UpstreamAddresses;
use super::balance::hash_key;
use super::health::{FULL_SHARE, Health, HealthLimits, ServerFitness};
use crate::config::UpstreamServerAddress;

/// Number of the next server.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// Number of a server, unique in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerId(u32);

/// A server of an upstream. Aligned, so that the counters of two servers share no cache line.
#[repr(align(128))]
pub(super) struct SharedServer {
    pub(super) id: ServerId,
    /// Configured name, for logs.
    pub(super) name: String,
    pub(super) location: UpstreamLocation,
    pub(super) protocol: UpstreamProtocol,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// Configured address.
    pub name: String,
    /// `up`; `failing` if the last request failed by its fault; `trial` if one request may test whether it is back; `down`; or `drained` by an operator.
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

impl SharedServer {
    /// Creates a server that counts as fit.
    pub(super) fn new(address: &UpstreamServerAddress, limits: HealthLimits) -> Self {
        let name = address.to_string();
        Self {
            id: ServerId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            hash: hash_key(name.as_bytes()),
            name,
            location: match address {
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
            protocol: match address {
                UpstreamServerAddress::Tcp(..)
                | UpstreamServerAddress::OtherTcp(..)
                | UpstreamServerAddress::Unix(_) => UpstreamProtocol::OneAtATime,
                UpstreamServerAddress::Http2(..) => UpstreamProtocol::Http2,
                UpstreamServerAddress::Tls(..) => UpstreamProtocol::Negotiated,
            },
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
    pub(super) fn reuse(&self, before: &Self) {
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

    /// Takes a slot for a connection; `false` if all are in use. A limit of 0 is none.
    pub(super) fn take_slot(&self, connections_max: u32) -> bool {
        let has_taken = if connections_max == 0 {
            self.in_use.fetch_add(1, Ordering::Relaxed);
            true
        } else {
            let more = |count| (count < connections_max).then_some(count + 1);
            self.in_use.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
        };
        // In the same cache line, which this core owns now.
        self.requests.fetch_add(has_taken.into(), Ordering::Relaxed);
        has_taken
    }

    /// Releases a slot.
    pub(super) fn release_slot(&self) {
        self.in_use.fetch_sub(1, Ordering::SeqCst);
    }

    /// State for operators, at this time.
    pub(super) fn state(&self, is_backup: bool, now_ms: u64) -> ServerState {
        ServerState {
            name: self.name.clone(),
            health: match self.standing(now_ms) {
                _ if self.is_drained() => "drained",
                ServerFitness::Fit(_) if self.is_failing(now_ms) => "failing",
                ServerFitness::Fit(_) => "up",
                ServerFitness::Trial => "trial",
                ServerFitness::Out => "down",
            },
            is_backup,
            in_use: self.in_use(),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    /// Drains it for an operator, or ends that.
    pub(super) fn set_drained(&self, is_drained: bool) {
        self.is_drained.store(is_drained, Ordering::Relaxed);
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

    /// True if its last request failed by its fault, while it still gets requests.
    fn is_failing(&self, now_ms: u64) -> bool {
        self.is_unsettled() && self.with_health(now_ms, |health| health.is_failing())
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
