//! TLS of a connection (RFC 9001), which the caller provides.

use std::any::Any;

use rustls::quic::{DirectionalKeys, KeyChange, Keys};

use crate::error::TransportError;
use crate::id::ConnectionId;

/// TLS of a listener.
pub trait TlsServer {
    /// Keys of Initial packets to a connection ID that a client has chosen (RFC 9001, section 5.2).
    fn initial_keys(&self, id: &ConnectionId) -> Keys;

    /// Begins a handshake. `parameters` are the encoded transport parameters of the server.
    fn start(&self, parameters: Vec<u8>) -> Box<dyn TlsSession>;
}

/// Handshake of a connection.
pub trait TlsSession: Any {
    /// Handles bytes of the client's CRYPTO frames, of the present level.
    ///
    /// # Errors
    /// The handshake has failed.
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError>;

    /// Appends bytes of CRYPTO frames of the present level. Must be called until it appends nothing and returns `None`. After
    /// `Some`, the keys of the next level are in use.
    fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange>;

    /// Keys of the client's early data, if it is accepted. Known after the client's first message.
    fn early_keys(&self) -> Option<DirectionalKeys>;

    /// Encoded transport parameters of the client, after its first message.
    fn peer_parameters(&self) -> Option<&[u8]>;

    /// True until the handshake is complete.
    fn is_handshaking(&self) -> bool;
}
