use std::fmt::Debug;
use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;
use wire::Priority;
use wire::http::date::DATE_BYTES;
use wire::http::{Fields, Status};

use super::AlternativeService;
use crate::object_cache::EncodedHead;

/// Id of a stream. Ids are unique on a connection, and newer streams have higher ones.
pub(crate) trait StreamKey: Copy + Ord + Debug + Send + Sync + 'static {}

impl<T: Copy + Ord + Debug + Send + Sync + 'static> StreamKey for T {}

/// Error of an operation on a stream that is closed. Its end is reported as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamClosed;

/// Reason to reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// The response is not completed, or no longer needed.
    Cancelled,
    /// The content of the response could not be completed.
    Internal,
    /// The upstream connection of a tunnel is broken.
    TunnelBroken,
    /// The client is too slow, or holds too much memory.
    Overload,
}

/// Streams of a connection while it is polled: sink and source of each stream, as a version of HTTP has them.
///
/// Outgoing content is offered first, by its length. The adapter decides, by windows and priorities, when it calls
/// [`StreamExchanges::place`](super::StreamExchanges::place) for it.
pub(crate) trait HttpStreams {
    /// Id of a stream.
    type Id: StreamKey;

    /// Local address that the client connected to; `None` for a unix socket.
    fn local_address(&self) -> Option<SocketAddr>;

    /// Appends a head that was encoded before, with this date, in the form of the version.
    fn write_encoded(head: &EncodedHead, date: &[u8; DATE_BYTES], out: &mut Vec<u8>);

    /// Appends the fields of an encoded head for which `keeps` returns true. It gets the names in lower case.
    fn write_encoded_some(
        head: &EncodedHead,
        date: &[u8; DATE_BYTES],
        out: &mut Vec<u8>,
        keeps: impl FnMut(&[u8]) -> bool,
    );

    /// Appends a field, with its name in lower case, to an encoded head.
    fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]);

    /// Appends the field that tells of another version.
    fn write_alternative(out: &mut Vec<u8>, alternative: &AlternativeService);

    /// Sends the head that `write` appends; `is_last` if there is no content.
    fn send_encoded(
        &mut self,
        stream: Self::Id,
        is_last: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamClosed>;

    /// Sends the head of a response; `is_last` if there is no content.
    fn send_response(
        &mut self,
        stream: Self::Id,
        status: Status,
        fields: &Fields,
        is_last: bool,
    ) -> Result<(), StreamClosed>;

    /// Sends a head with status 1xx (RFC 9110, section 15.2).
    fn send_informational(&mut self, stream: Self::Id, status: Status, fields: &Fields) -> Result<(), StreamClosed>;

    /// Turns a CONNECT stream into an ordinary one, because its response does not open a tunnel.
    fn reject_tunnel(&mut self, stream: Self::Id);

    /// Offers further content, after the content offered before. An empty last piece ends the response.
    fn offer_content(&mut self, stream: Self::Id, bytes: u64, is_last: bool) -> Result<(), StreamClosed>;

    /// Offers all content of a response, this part of `bytes`, and sends it at once unless other content must be sent
    /// first. Returns the number of bytes sent; the rest stays offered.
    fn send_content(&mut self, stream: Self::Id, bytes: &Bytes, part: Range<usize>, priority: Priority) -> u64;

    /// Ends a response with trailers, after all content that was offered.
    fn send_trailers(&mut self, stream: Self::Id, fields: Fields) -> Result<(), StreamClosed>;

    /// Bytes of content that the client accepts beyond those offered; 0 if the stream is closed.
    fn wanted_bytes(&mut self, stream: Self::Id) -> u64;

    /// Bytes of content that were offered but not placed; `None` if the stream is closed.
    fn unsent_bytes(&mut self, stream: Self::Id) -> Option<u64>;

    /// Reports that a handler has taken `bytes` of a request's content. The client may then send as many again.
    fn take_content(&mut self, stream: Self::Id, bytes: usize);

    /// Sets the limit of a request's content, for content that arrives from now on.
    fn set_body_bytes_max(&mut self, stream: Self::Id, body_bytes_max: u64);

    /// Resets a stream in both directions.
    fn reset(&mut self, stream: Self::Id, fault: StreamFault);
}
