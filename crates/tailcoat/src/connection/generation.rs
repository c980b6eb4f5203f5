//! What connections serve by: all of it changes at once when the configuration does.

use std::rc::Rc;
use std::sync::Arc;

use wire::h1::{BodyLimits, HeadLimits, InputLimits};

use super::h2;
use super::holdings::Shares;
use super::kernel_tls::KernelTls;
use crate::config::{HttpVersions, Limits};
use crate::log::LogClient;
use crate::routing::Router;
use crate::tls::ListenerTls;

/// What a worker serves by, immutable. Connections look it up when they are polled, and keep none of it between requests
/// but the limits that a client of HTTP/2 has been told; requests keep what they need to their end.
pub struct Generation {
    /// Who answers requests.
    pub router: Router,
    /// The configured limits.
    pub limits: Limits,
    /// Those that the engine of HTTP/1 needs, in its form.
    pub(super) input_limits: InputLimits,
    /// The same for HTTP/2.
    pub(super) h2_limits: Rc<wire::h2::H2Limits>,
    /// Versions of HTTP that are spoken.
    pub http_versions: HttpVersions,
    /// Whether responses carry `Server`.
    pub server_field: bool,
    /// Whether handlers want to know where clients have connected to, which costs a system call a request.
    pub tells_destinations: bool,
    /// When the kernel is to encipher what is sent over TLS, if ever.
    pub kernel_tls: Option<KernelTls>,
    /// Listeners, by their numbers.
    pub listeners: Vec<ListenerState>,
    /// Open connections that the worker may have.
    pub connections_max: usize,
    /// Shares of them that clients and networks may hold when most are taken.
    pub shares: Shares,
}

/// How connections of a listener are taken.
#[derive(Clone, Default)]
pub struct ListenerState {
    /// Whether connections of trusted proxies begin with the PROXY protocol.
    pub is_proxied: bool,
    /// How TLS is spoken there, if it is.
    pub tls: Option<Arc<ListenerTls>>,
    /// Whether there are no sites for it any more, so that its connections end with their next answers.
    pub is_retired: bool,
    /// True if it serves monitoring alone, and has places of its own for that.
    pub is_reserved: bool,
}

impl Generation {
    /// One with these sites and limits, and a listener for each that the router knows.
    pub fn new(router: Router, limits: Limits) -> Self {
        Self {
            input_limits: InputLimits {
                head: HeadLimits {
                    head_bytes_max: limits.head_bytes_max,
                    fields_max: limits.fields_max,
                    target_bytes_max: limits.target_bytes_max,
                },
                body: BodyLimits {
                    body_bytes_max: limits.body_bytes_max.answered_here(),
                    extension_bytes_max: limits.head_bytes_max,
                    trailer_bytes_max: limits.head_bytes_max,
                },
            },
            h2_limits: Rc::new(h2::engine_limits(&limits)),
            http_versions: HttpVersions::default(),
            server_field: true,
            tells_destinations: false,
            kernel_tls: None,
            listeners: vec![ListenerState::default(); router.listener_count()],
            connections_max: usize::MAX,
            shares: Shares::default(),
            router,
            limits,
        }
    }

    /// Keeps what another has for listeners that are retired: each of their connections may have a request under way.
    pub fn reuse_retired(&mut self, before: &Self) {
        let retired = |(number, listener): (usize, &ListenerState)| listener.is_retired.then_some(number);
        self.router.reuse(self.listeners.iter().enumerate().filter_map(retired), &before.router);
    }

    /// How a connection of this listener is to begin: whether with a header of the PROXY protocol, and with which TLS.
    pub(super) fn beginning(&self, listener: u16, client: LogClient) -> (bool, Option<Arc<ListenerTls>>) {
        let Some(listener) = self.listeners.get(usize::from(listener)) else { return (false, None) };
        (listener.is_proxied && self.router.trusts(client), listener.tls.clone())
    }

    /// True if a listener has reserved places.
    pub(super) fn is_reserved(&self, listener: u16) -> bool {
        self.listeners.get(usize::from(listener)).is_some_and(|listener| listener.is_reserved)
    }

    /// Whether connections of a listener end with their next answers.
    pub(super) fn is_retired(&self, listener: u16) -> bool {
        self.listeners.get(usize::from(listener)).is_some_and(|listener| listener.is_retired)
    }
}
