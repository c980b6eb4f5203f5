use std::ops::Range;

use super::{H3Error, H3ErrorCode, H3StreamId, Priority};
use crate::h1::MessageRejection;
use crate::http::Fields;

/// Meaning of the input of a stream. `Head` is the head of a request for a server, of a response for a client.
#[derive(Debug)]
pub enum H3Event<Head> {
    /// The caller must provide more input of the stream. After its end, nothing follows.
    NeedInput,
    /// The caller must send the [output](super::H3Output) before the connection handles more input.
    AwaitOutput,
    /// The stream waits for the peer's QPACK encoder. The caller keeps the input, and hands it over again when
    /// [`poll_unblocked`](super::H3Connection::poll_unblocked) returns the stream.
    Blocked,
    /// Head of a message; it is valid.
    Head(Head),
    /// A request that the server must answer with an error; the caller's head contains its decoded part. The connection
    /// drops the request's content. If a response has begun, the caller must reset the stream instead.
    Rejected {
        /// Stream for the response.
        stream: H3StreamId,
        /// Error to send.
        rejection: MessageRejection,
    },
    /// Piece of a message's content. It may be empty if it is the last.
    Content {
        /// Stream of the message.
        stream: H3StreamId,
        /// Range of the input that is content.
        content: Range<usize>,
        /// True if the message is complete.
        is_last: bool,
    },
    /// Trailer fields; the message is complete. They come from the peer; only their syntax has been checked.
    Trailers {
        /// Stream of the message.
        stream: H3StreamId,
        /// Trailer fields in order.
        fields: Fields,
    },
    /// The stream is closed before its end. It delivers no more events, and nothing can be sent on it. The caller must
    /// drop its input, and send RESET_STREAM and STOP_SENDING with the code.
    Reset {
        /// Stream that was reset.
        stream: H3StreamId,
        /// Error code of the reset. After [`H3ErrorCode::H3_REQUEST_REJECTED`] a client may retry the request (RFC 9114,
        /// section 4.1.1).
        code: H3ErrorCode,
        /// True if the peer has reset the stream. Otherwise this side must, because the peer violated the protocol.
        is_by_peer: bool,
    },
    /// The caller must send STOP_SENDING on a unidirectional stream, whose type is not known.
    StopSending {
        /// Stream to stop.
        stream: H3StreamId,
        /// Error code to send.
        code: H3ErrorCode,
    },
    /// The client has changed the priority of a response (RFC 9218, section 7).
    PriorityChanged {
        /// Stream of the response.
        stream: H3StreamId,
        /// New priority.
        priority: Priority,
    },
    /// The peer closes the connection gracefully. A server names the first stream that it will not handle: the client may
    /// retry requests from there on. They are closed.
    GoAway {
        /// First stream (from a server) or push (from a client) that is not handled.
        first_unhandled: u64,
    },
    /// The connection has failed. The caller must close it with the error's code.
    Closed(H3Error),
}

/// Event, and the input that it consumed.
#[derive(Debug)]
pub struct H3Handled<Head> {
    /// Bytes of the input that the caller may drop, after it has read the event's content.
    pub consumed_bytes: usize,
    /// Meaning of the consumed input.
    pub event: H3Event<Head>,
}
