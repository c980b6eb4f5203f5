//! The protocol that a connection speaks: where bytes become responses. All else of the engine (slots, lines, TLS, time,
//! counting) is the same for all of them.

use super::http2::Http2;
use super::response::ResponseReader;

/// The client's side of one connection.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// HTTP/1.0 and 1.1: responses come whole, in the order of their requests.
    Http1(ResponseReader),
    /// HTTP/2: responses come in pieces, in any order.
    Http2(Box<Http2>),
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Http1(ResponseReader::default())
    }
}

impl Protocol {
    /// Whether the server takes another request now.
    pub(crate) fn takes_requests(&self) -> bool {
        match self {
            Self::Http1(_) => true,
            Self::Http2(http2) => http2.takes_requests(),
        }
    }

    /// Whether there is content of requests that could be sent now.
    pub(crate) fn has_content_to_send(&self) -> bool {
        match self {
            Self::Http1(_) => false,
            Self::Http2(http2) => http2.has_content_to_send(),
        }
    }

    /// The server ended the connection in order. Returns whether the response under way is whole with that.
    pub(crate) fn on_close(&self) -> bool {
        match self {
            Self::Http1(reader) => reader.on_close(),
            Self::Http2(_) => false,
        }
    }

    /// Bytes of content that are still to come, if it is known.
    pub(crate) fn expected_bytes(&self) -> Option<u64> {
        match self {
            Self::Http1(reader) => reader.expected_bytes(),
            Self::Http2(_) => None,
        }
    }
}
