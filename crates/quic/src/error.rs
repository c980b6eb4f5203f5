//! Errors that close a connection.

use std::borrow::Cow;
use std::fmt;

/// Error of QUIC that closes a connection (RFC 9000, section 20.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportError {
    /// Error code.
    pub code: u64,
    /// Type of the frame that caused it, or 0.
    pub frame: u64,
    /// Explanation for the operator of the client.
    pub reason: Cow<'static, str>,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $make:ident;)*) => {
        impl TransportError {
            $($(#[doc = $doc])* pub const $name: u64 = $code;)*
            $(#[doc = concat!("Makes an error with the code `", stringify!($name), "`.")]
            pub fn $make(reason: impl Into<Cow<'static, str>>) -> Self {
                Self { code: $code, frame: 0, reason: reason.into() }
            })*
        }
    };
}

codes! {
    /// The connection ends without an error.
    NO_ERROR = 0x0, no_error;
    /// The server cannot go on.
    INTERNAL_ERROR = 0x1, internal;
    /// The server rejects a new connection.
    CONNECTION_REFUSED = 0x2, connection_refused;
    /// The peer has sent more than permitted.
    FLOW_CONTROL_ERROR = 0x3, flow_control;
    /// The peer has opened too many streams.
    STREAM_LIMIT_ERROR = 0x4, stream_limit;
    /// A frame does not fit the state of its stream.
    STREAM_STATE_ERROR = 0x5, stream_state;
    /// The final size of a stream has changed.
    FINAL_SIZE_ERROR = 0x6, final_size;
    /// A frame is malformed.
    FRAME_ENCODING_ERROR = 0x7, frame_encoding;
    /// The transport parameters are invalid.
    TRANSPORT_PARAMETER_ERROR = 0x8, transport_parameter;
    /// The peer has sent more connection IDs than permitted.
    CONNECTION_ID_LIMIT_ERROR = 0x9, connection_id_limit;
    /// Another violation of the protocol.
    PROTOCOL_VIOLATION = 0xa, protocol_violation;
    /// The token of a client is invalid.
    INVALID_TOKEN = 0xb, invalid_token;
    /// The application has closed the connection during the handshake.
    APPLICATION_ERROR = 0xc, application;
    /// The peer has sent too much in CRYPTO frames.
    CRYPTO_BUFFER_EXCEEDED = 0xd, crypto_buffer_exceeded;
    /// Invalid key update.
    KEY_UPDATE_ERROR = 0xe, key_update;
    /// The limit of a cipher is reached.
    AEAD_LIMIT_REACHED = 0xf, aead_limit_reached;
    /// The client has no address to which packets can be sent.
    NO_VIABLE_PATH = 0x10, no_viable_path;
}

impl TransportError {
    /// Makes the error for an alert of TLS (RFC 9001, section 4.8).
    pub fn alert(alert: u8, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code: 0x100 | u64::from(alert), frame: 0, reason: reason.into() }
    }

    /// Names the type of the frame that caused the error.
    pub(crate) fn in_frame(mut self, frame: u64) -> Self {
        self.frame = frame;
        self
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QUIC error 0x{:x}: {}", self.code, self.reason)
    }
}

impl std::error::Error for TransportError {}
