//! Who answers a request. Handlers are a closed set, matched in one place.

pub mod cgi;
mod client_link;
mod error_page;
mod error_pages;
mod forward;
mod forwarding;
pub mod gateway;
mod module;
mod page;
mod part;
mod passed_on;
mod request;
mod respond;
mod response;
pub mod response_cache;
mod setup;
pub mod static_file;
pub mod status;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

pub use client_link::{ClientLink, ClientLinkCell};
pub use error_pages::ErrorPages;
pub use forwarding::Forwarding;
pub use page::PageFormat;
pub use part::content_slice;
pub use passed_on::{PassedOn, ResponseFilter};
pub use request::OwnedRequest;
pub use response::{
    Body, BuiltResponse, ChangedResponse, ContentSource, ContentStream, FieldChange, Filled, Form, Forwarded, Response,
    Segment, Tunnel, TunnelStream,
};
use rustix::time::{ClockId, clock_gettime};
pub use setup::{Handler, HandlerParts, SharedSite};
use wire::http::{Request, Status, path};

use crate::config::ForwardedField;
use crate::log::LogClient;
use crate::tls::TlsInfo;
use crate::traces::Trace;

/// An error, with the page that the server has for it.
pub fn error_response(status: Status, format: PageFormat) -> Box<BuiltResponse> {
    let mut response = BuiltResponse::new(status);
    add_error_page(&mut response, format);
    response
}

/// Gives an error the page that the server has for it.
pub fn add_error_page(response: &mut BuiltResponse, format: PageFormat) {
    let page = error_page::render(response.status, format);
    response.fields.set("Content-Type", page.content_type);
    response.body = Body::from_bytes(page.body);
}

/// To the same path with a slash, so that relative links in the directory's page lead into it. The path is as it was
/// normalised: it begins with just one slash, and never names another host.
fn redirect_to_directory(routed: &Routed<'_>) -> Response {
    let mut location = Vec::with_capacity(routed.path.len() + 16);
    path::encode(routed.path, &mut location);
    location.push(b'/');
    if let Some(query) = routed.query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    let mut response = BuiltResponse::new(Status::MOVED_PERMANENTLY);
    response.fields.push("Location", location);
    Response::Built(response)
}

/// An outcome that has to be waited for. It owns what it needs of the request, and runs on the worker's thread.
pub type OutcomeFuture = Pin<Box<dyn Future<Output = HandlerOutcome>>>;

/// What a handler makes of a request.
pub enum HandlerOutcome {
    /// The answer is there at once: the way of all that is in memory.
    Ready(Response),
    /// The answer has to be waited for.
    Wait(OutcomeFuture),
    /// The next handler that matches may have it.
    Decline,
    /// The next handler that matches has it, changed perhaps; and this one has the response before the client.
    Pass(PassedOn),
    /// What was asked for is to be asked for under this path, in normal form: the file there is a program, which is for
    /// who runs it.
    Elsewhere(Vec<u8>),
}

/// A request on its way to the handlers: what routing found out about it.
#[derive(Clone, Copy)]
pub struct Routed<'a> {
    /// Head and bytes.
    pub request: Request<'a>,
    /// The path: percent-decoded, without dot segments or empty segments, beginning with `/`. May have any bytes but NUL.
    pub path: &'a [u8],
    /// The query as it was sent, without `?`.
    pub query: Option<&'a [u8]>,
    /// The host, lower case, without port; empty if there was none (HTTP/1.0).
    pub host: &'a [u8],
    /// Who sent it.
    pub client: LogClient,
    /// How the client speaks TLS, if it does.
    pub tls: Option<&'a Rc<TlsInfo>>,
    /// The proxy whose word for that was taken, if there is one.
    pub proxied: Option<Proxied>,
    /// Its place in a trace, if traces are kept.
    pub trace: Option<&'a Rc<Trace>>,
    /// The link to the client, for handlers that read content or take their time.
    pub link: &'a ClientLinkCell,
    /// Whether another handler follows, so that what isn't this one's business is better declined than refused.
    pub has_next: bool,
    /// The time.
    pub now: Now,
}

impl Routed<'_> {
    /// Whether the client came with TLS: to us, or to a proxy that is trusted.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some() || forward::told_scheme(self).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https"))
    }

    /// The scheme of the URL that the client asked for.
    pub fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }
}

/// What is known of a request that came from a proxy that is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// The proxy.
    pub peer: LogClient,
    /// The field by which proxies tell whom they got a request from.
    pub field: ForwardedField,
    /// How many entries at the end of that field trusted proxies have written: from the client's own on.
    pub entries: usize,
}

/// The time as the worker's event loop sees it: read once a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the system's monotonic clock, which never goes back: the same clock for all workers, because what
    /// one of them has just checked is good for all.
    pub monotonic_ms: u64,
    /// Seconds since 1970.
    pub unix_seconds: u64,
    /// Microseconds since 1970.
    pub unix_us: u64,
}

impl Now {
    /// Reads the clocks.
    pub fn read() -> Self {
        let monotonic = clock_gettime(ClockId::Monotonic);
        let real = clock_gettime(ClockId::Realtime);
        Self {
            monotonic_ms: (monotonic.tv_sec * 1_000 + monotonic.tv_nsec / 1_000_000) as u64,
            unix_seconds: real.tv_sec.max(0) as u64,
            unix_us: (real.tv_sec * 1_000_000 + real.tv_nsec / 1_000).max(0) as u64,
        }
    }

    /// Reads the clocks for a request that came at this time. That is never later, unless a test says so; and what was
    /// due when it came must stay due.
    pub fn read_after(came: Self) -> Self {
        let now = Self::read();
        if now.monotonic_ms < came.monotonic_ms { came } else { now }
    }
}
