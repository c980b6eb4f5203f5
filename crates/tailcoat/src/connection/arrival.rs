//! What connections of all versions do with a request that has come.

use std::rc::Rc;

use wire::h1::MessageRejection;
use wire::http::{Host, Request, RequestTarget, Status, path};

use super::Context;
use crate::handler::{ClientLinkCell, Now, Routed};
use crate::log::LogClient;
use crate::tls::TlsInfo;

/// From whom, by which way and when a request came.
pub(super) struct Arrived<'a> {
    pub(super) client: LogClient,
    pub(super) tls: Option<&'a Rc<TlsInfo>>,
    pub(super) link: &'a ClientLinkCell,
    pub(super) now: Now,
}

/// The refusal of a request that is too slow.
pub(super) const REQUEST_TIMEOUT: MessageRejection =
    MessageRejection { status: Status::REQUEST_TIMEOUT, reason: "the request took too long to arrive" };

/// The request's connection gave up its place before there was a response.
pub(super) const NO_PLACE: MessageRejection = MessageRejection {
    status: Status::SERVICE_UNAVAILABLE,
    reason: "the connection was closed to make room for other clients",
};

/// Whether a body or response is slower than allowed, measured from its beginning.
pub(super) fn is_too_slow(bytes: u64, elapsed_ms: u64, context: &Context) -> bool {
    let limits = &context.generation().limits;
    elapsed_ms > limits.write_timeout.as_millis() as u64
        && bytes.saturating_mul(1_000) < limits.rate_bytes_per_second_min.saturating_mul(elapsed_ms)
}

/// Brings path and host into the form that routing and handlers read.
pub(super) fn route<'a>(
    request: Request<'a>,
    target: &RequestTarget<'a>,
    host: Option<Host<'a>>,
    arrived: Arrived<'a>,
    path_buffer: &'a mut Vec<u8>,
    host_buffer: &'a mut Vec<u8>,
) -> Result<Routed<'a>, MessageRejection> {
    // The targets of OPTIONS and CONNECT may have none.
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
        link,
        has_next: false,
        now,
    })
}
