//! Protocol of a connection, which converts bytes to responses. The rest of the engine (slots, lines, TLS, time,
//! counters) is independent of it.

use super::failure::FailureReason;
use super::http2::Http2;
use super::http3::Http3;
use super::response::ResponseReader;
use super::sockets::Http2Sockets;
use super::web_socket::WebSocket;

/// Client side of a connection.
#[derive(Debug)]
pub(crate) enum ClientProtocol {
    /// HTTP/1.0 and 1.1: responses arrive one after the other, in the order of the requests.
    Http1(ResponseReader),
    /// HTTP/2: pieces of responses arrive in any order.
    Http2(Box<Http2>),
    /// HTTP/3, with its QUIC connection and socket.
    Http3(Box<Http3>),
    /// WebSocket: messages arrive in the order of the requests.
    WebSocket(Box<WebSocket>),
    /// WebSockets over HTTP/2, each with one message in flight.
    Http2Sockets(Box<Http2Sockets>),
}

impl Default for ClientProtocol {
    fn default() -> Self {
        Self::Http1(ResponseReader::default())
    }
}

impl ClientProtocol {
    /// Returns whether the server accepts another request now.
    pub(crate) fn takes_requests(&self) -> bool {
        match self {
            Self::Http1(_) | Self::WebSocket(_) => true,
            Self::Http2(http2) => http2.takes_requests(),
            Self::Http3(http3) => http3.takes_requests(),
            Self::Http2Sockets(sockets) => sockets.takes_requests(),
        }
    }

    /// Returns whether content of a request can be sent now.
    pub(crate) fn has_content_to_send(&self) -> bool {
        match self {
            Self::Http2(http2) => http2.has_content_to_send(),
            Self::Http2Sockets(sockets) => sockets.has_content_to_send(),
            // QUIC says when it accepts more.
            Self::Http1(_) | Self::Http3(_) | Self::WebSocket(_) => false,
        }
    }

    /// Returns whether input by itself causes output, such as responses to pings.
    pub(crate) fn responds_to_input(&self) -> bool {
        matches!(self, Self::Http2(_) | Self::Http2Sockets(_))
    }

    /// Handles an orderly end of the connection. Returns whether it completes the current response.
    pub(crate) fn on_close(&self) -> bool {
        match self {
            Self::Http1(reader) => reader.on_close(),
            Self::Http2(_) | Self::Http3(_) | Self::WebSocket(_) | Self::Http2Sockets(_) => false,
        }
    }

    /// Explains the end of a connection with requests in flight.
    pub(crate) fn explain_end(&self, reason: FailureReason) -> FailureReason {
        let is_silent = match self {
            Self::Http2(http2) => !http2.has_started(),
            Self::Http2Sockets(sockets) => !sockets.has_started(),
            Self::Http1(_) | Self::Http3(_) | Self::WebSocket(_) => false,
        };
        match is_silent {
            true => FailureReason::Text(
                "the server ended the connection before its first HTTP/2 frame; does it offer HTTP/2?",
            ),
            false => reason,
        }
    }

    /// Returns the bytes of content that are missing, if known.
    pub(crate) fn expected_bytes(&self) -> Option<u64> {
        match self {
            Self::Http1(reader) => reader.expected_bytes(),
            Self::Http2(_) | Self::Http3(_) | Self::WebSocket(_) | Self::Http2Sockets(_) => None,
        }
    }
}
