//! Configuration of a worker's connections. A reload replaces it as a whole.

use std::rc::Rc;
use std::sync::Arc;

use wire::h1::{BodyLimits, InputLimits};

use super::detached::StreamTaker;
use super::exchange::{AlternativeService, message_limits};
use super::holdings::Shares;
use super::kernel_tls::KernelTls;
use super::quic::QuicSettings;
use super::{h2, h3};
use crate::config::{HttpVersions, Limits};
use crate::log::LogClient;
use crate::routing::Router;
use crate::tls::ListenerTls;

/// Immutable configuration of a worker's connections. Connections look it up when they are polled.
/// Between requests they keep only the limits that were sent to an HTTP/2 client.
/// Requests keep what they need until their end.
pub struct Generation {
    /// Router that selects the sites of requests.
    pub router: Router,
    /// Configured limits.
    pub limits: Limits,
    /// Limits in the form of the HTTP/1 engine.
    pub(super) input_limits: InputLimits,
    /// Limits in the form of the HTTP/2 engine.
    pub(super) h2_limits: Rc<wire::h2::H2Limits>,
    /// Limits in the form of the HTTP/3 engine.
    pub(super) h3_limits: Rc<wire::h3::H3Limits>,
    /// Enabled versions of HTTP.
    pub http_versions: HttpVersions,
    /// True if responses have a `Server` field.
    pub server_field: bool,
    /// True if handlers need the local address of connections, which costs a system call for each request.
    pub tells_destinations: bool,
    /// True if fingerprints of TLS handshakes and HTTP/2 connections are taken.
    pub wants_fingerprints: bool,
    /// Settings for encryption by the kernel; `None` if it is off.
    pub kernel_tls: Option<KernelTls>,
    /// Proxy of connections that are not for HTTP; `None` without any.
    pub stream_taker: Option<Arc<dyn StreamTaker>>,
    /// Listeners by number.
    pub listeners: Vec<ListenerState>,
    /// Maximum number of open connections of the worker.
    pub connections_max: usize,
    /// Shares of these places that clients and networks may hold when most places are taken.
    pub shares: Shares,
}

/// Settings for the connections of a listener.
#[derive(Clone, Default)]
pub struct ListenerState {
    /// True if connections of trusted proxies begin with the PROXY protocol.
    pub is_proxied: bool,
    /// TLS settings; `None` without TLS.
    pub tls: Option<Arc<ListenerTls>>,
    /// Settings for QUIC; `None` without HTTP/3.
    pub quic: Option<Arc<QuicSettings>>,
    /// Alternative that responses tell of; `None` without HTTP/3.
    pub alternative: Option<AlternativeService>,
    /// True if connections begin with TLS; false if a command begins it, as in FTP.
    pub begins_with_tls: bool,
    /// True if no site uses the listener any more, so that its connections end after their next responses.
    pub is_retired: bool,
    /// True if the listener serves only monitoring, and has reserved places for that.
    pub is_reserved: bool,
}

impl Generation {
    /// Makes a generation with these sites and limits, and with one listener for each that the router knows.
    pub fn new(router: Router, limits: Limits) -> Self {
        Self {
            input_limits: request_limits(&limits),
            h2_limits: Rc::new(h2::engine_limits(&limits)),
            h3_limits: Rc::new(h3::engine_limits(&limits)),
            http_versions: HttpVersions::default(),
            server_field: true,
            tells_destinations: false,
            wants_fingerprints: false,
            kernel_tls: None,
            stream_taker: None,
            listeners: vec![ListenerState::default(); router.listener_count()],
            connections_max: usize::MAX,
            shares: Shares::default(),
            router,
            limits,
        }
    }

    /// Keeps the sites of retired listeners from the previous generation. Each of their connections may have a request
    /// in progress.
    pub fn reuse_retired(&mut self, before: &Self) {
        let retired = |(number, listener): (usize, &ListenerState)| listener.is_retired.then_some(number);
        self.router.reuse(self.listeners.iter().enumerate().filter_map(retired), &before.router);
    }

    /// Beginning of a connection of this listener: true if the PROXY protocol comes first, and the TLS settings.
    pub(super) fn beginning(&self, listener: u16, client: LogClient) -> (bool, Option<Arc<ListenerTls>>) {
        let Some(listener) = self.listeners.get(usize::from(listener)) else { return (false, None) };
        let tls = listener.tls.as_ref().filter(|_| listener.begins_with_tls);
        (listener.is_proxied && self.router.trusts(client), tls.cloned())
    }

    /// Settings for QUIC of a listener; `None` if it accepts no HTTP/3.
    pub(super) fn quic(&self, listener: u16) -> Option<&Arc<QuicSettings>> {
        self.listeners.get(usize::from(listener))?.quic.as_ref()
    }

    /// Alternative that responses to clients of this listener tell of.
    pub(super) fn alternative(&self, listener: u16) -> Option<&AlternativeService> {
        self.listeners.get(usize::from(listener))?.alternative.as_ref()
    }

    /// TLS that clients of this listener begin with a command.
    pub(super) fn late_tls(&self, listener: u16) -> Option<&Arc<ListenerTls>> {
        let listener = self.listeners.get(usize::from(listener))?;
        listener.tls.as_ref().filter(|_| !listener.begins_with_tls)
    }

    /// Returns true if a listener has reserved places.
    pub(super) fn is_reserved(&self, listener: u16) -> bool {
        self.listeners.get(usize::from(listener)).is_some_and(|listener| listener.is_reserved)
    }

    /// Returns true if connections of a listener end after their next responses.
    pub(super) fn is_retired(&self, listener: u16) -> bool {
        self.listeners.get(usize::from(listener)).is_some_and(|listener| listener.is_retired)
    }
}

/// Limits of requests over HTTP/1.
pub fn request_limits(limits: &Limits) -> InputLimits {
    let (head, body) = message_limits(limits);
    InputLimits { head, body: BodyLimits { body_bytes_max: limits.body_bytes_max.answered_here(), ..body } }
}
