//! QUIC (RFC 9000): UDP sockets of a worker, and the connections on them.
//!
//! `tailcoat_quic` has the protocol, without input and output. Each worker has sockets and an [`QuicEndpoint`] of its own for each
//! address. The endpoint receives many datagrams in one call, and then polls each connection that has news once. A connection
//! sends all its datagrams in one call, which the kernel or the device splits.

mod budget;
mod config;
mod endpoint;
mod qlog;
mod slots;
mod socket;
mod timers;
mod transport;

pub use config::{QuicKeys, QuicSettings};
pub use endpoint::{EndpointRole, EndpointSockets, QuicBuffers, QuicEndpoint};
pub use qlog::QlogTraces;
pub use slots::{SLOTS_MAX, TagKey, steer};
pub use socket::QuicSocket;
pub(crate) use transport::QuicTransport;
