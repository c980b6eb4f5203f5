//! QUIC (RFC 9000, RFC 9001, RFC 9002) for servers, without input and output.
//!
//! An [`ServerEndpoint`] finds the connection of each datagram, and makes connections of new clients. A [`Connection`] takes datagrams and
//! the time, and gives datagrams, events and its next timer. The caller has the sockets and the clock.

mod codec;
mod congestion;
mod connection;
mod endpoint;
mod error;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod id;
mod mtu;
mod pacer;
mod packet;
mod parameters;
mod qlog;
mod ranges;
mod recovery;
mod rtt;
mod streams;
mod tls;
mod types;

pub use congestion::CongestionAlgorithm;
pub use connection::{Connection, LostReason, QuicEvent};
pub use endpoint::{Handled, NewClient, Refused, ServerEndpoint};
pub use error::TransportError;
pub use id::{ConnectionId, Dir, IdSource, QuicStreamId, ResetToken};
pub use qlog::QlogSink;
pub use streams::{ReadEnd, StreamEvent, StreamLimits, Streams, WriteEnd};
pub use tls::{TlsServer, TlsSession};
pub use types::{ConnectionKey, Datagram, Ecn, EndpointConfig, EndpointEvent, IssuedId, Transmit, TransportSettings};
