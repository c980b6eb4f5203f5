//! Control plane: gets listeners, routes and endpoints from a controller, and translates them to sites.
//!
//! | step | where |
//! |---|---|
//! | connect, read messages, answer them | `client.rs` |
//! | routes to sites and upstreams, without input and output | `translate.rs`, `parts.rs`, `rules.rs`, `rule.rs` |
//! | certificates and the last state as files | `state.rs` |
//! | listeners of other protocols | `streams.rs`, `stream_proxy/` |
//! | apply to the running server | `server/routes.rs` |
//!
//! A change of endpoints alone replaces servers of upstreams. Any other change goes the way of a reload, in proportion to
//! its size: it translates what has changed, and sites, upstreams and rules of listeners that stay are the same objects in
//! the next configuration. The server, and each worker, then use again what they have made of them.

mod client;
mod parts;
mod rule;
mod rules;
mod state;
mod streams;
#[cfg(test)]
mod tests;
mod translate;

use std::sync::Arc;

pub(crate) use self::client::ControlPlaneClient;
pub(crate) use self::state::{RouteState, StateError};
use crate::config::{RouteParts, UpstreamServer};
use crate::control::ControlReply;

/// Order to the server to apply what a controller has sent. The reply tells when all workers serve by it.
pub(crate) enum RoutesOrder {
    /// Replace all routes.
    Replace {
        /// The new routes.
        parts: Arc<RouteParts>,
        /// Channel for the report.
        reply: ControlReply,
    },
    /// Replace the servers of some upstreams.
    SetServers {
        /// Servers by the name of their upstream.
        servers: Vec<(String, Vec<UpstreamServer>)>,
        /// Channel for the report.
        reply: ControlReply,
    },
}
