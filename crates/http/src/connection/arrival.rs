//! Steps that connections of all HTTP versions take with a received request.

use std::rc::Rc;

use wire::h1::MessageRejection;
use wire::http::{Host, Request, RequestTarget, Status, path};

use crate::handler::{ClientLinkCell, Now, Routed};
use crate::log::LogClient;
use crate::tls::TlsInfo;

/// Client, TLS state, link and time of a received request.
pub struct Arrived<'a> {
    /// Client.
    pub client: LogClient,
    /// TLS session with the client; `None` without TLS.
    pub tls: Option<&'a Rc<TlsInfo>>,
    /// Link to the client.
    pub link: &'a ClientLinkCell,
    /// Time of the receipt.
    pub now: Now,
}

/// Error response to a request that is too slow.
pub(super) const REQUEST_TIMEOUT: MessageRejection =
    MessageRejection { status: Status::REQUEST_TIMEOUT, reason: "the request took too long to arrive" };

/// Error response to a request whose connection is evicted before there is a response.
pub(super) const NO_PLACE: MessageRejection = MessageRejection {
    status: Status::SERVICE_UNAVAILABLE,
    reason: "the connection was closed to make room for other clients",
};

/// Normalizes path and host for routing and handlers.
///
/// # Errors
/// The path is malformed.
pub fn route<'a>(
    request: Request<'a>,
    target: &RequestTarget<'a>,
    host: Option<Host<'a>>,
    arrived: Arrived<'a>,
    path_buffer: &'a mut Vec<u8>,
    host_buffer: &'a mut Vec<u8>,
) -> Result<Routed<'a>, MessageRejection> {
    // The targets of OPTIONS and CONNECT may have no path.
    let path = match target.path {
        b"*" | b"" => target.path,
        raw => path::normalise(raw, path_buffer)
            .map_err(|_| MessageRejection { status: Status::BAD_REQUEST, reason: "malformed path" })?,
    };
    let host = host.map_or(&b""[..], |host| host.lower_case(host_buffer));
    let Arrived { client, tls, link, now } = arrived;
    Ok(Routed {
        request,
        path,
        query: target.query,
        host,
        client,
        tls,
        proxied: None,
        trace: None,
        locations: None,
        link,
        has_next: false,
        now,
    })
}
