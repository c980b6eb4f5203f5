//! Request handlers: a closed set, matched in one place.

pub mod cgi;
mod client_link;
mod compression;
mod error_page;
mod error_pages;
mod forward;
mod forwarding;
pub mod gateway;
#[cfg(feature = "modules")]
mod module;
mod pace;
mod paced;
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
mod unpacked;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

pub use client_link::{ClientLink, ClientLinkCell};
pub use compression::{Encoders, EncodingFuture};
pub use error_page::DefaultPages;
pub use error_pages::ErrorPages;
pub use forward::{Authorization, AuthorizationFuture, Authorizer, AuthorizerPlan, ForwardWorker, ReadBuffer};
pub use forwarding::Forwarding;
pub use pace::{Pace, SharedPace};
pub use paced::ResponsePace;
pub use page::PageFormat;
pub use part::content_slice;
pub use passed_on::{PassedOn, ResponseFilter};
pub use request::OwnedRequest;
pub(crate) use response::ProducedContent;
pub use response::{
    Body, BuiltResponse, ChangedResponse, ContentSource, ContentStream, FieldChange, Filled, Form, Forwarded,
    InternalRedirect, Response, ResponseEnding, Segment, Tunnel, TunnelStream, change_fields,
};
use rustix::time::{ClockId, clock_gettime};
pub use setup::{FtpFiles, Handler, HandlerParts, SharedSite, UpstreamTable, WorkerParts, WorkerUpstreams};
pub use static_file::{
    FileRejection, ListingScope, NamedChange, NamedContent, NamedEntry, NamedFiles, NamedListing, NamedRejection,
    NamedUpload, UploadRequest, UploadStart, not_found,
};
#[cfg(feature = "modules")]
pub(in crate::handler) use unpacked::{body_of, head_of, read_part};
use wire::http::{Request, Status, path};

use crate::config::ForwardedField;
use crate::known_clients::Locations;
use crate::log::LogClient;
use crate::tls::TlsInfo;
use crate::traces::Trace;

/// Value of the Server field.
pub(crate) const SERVER: &str = "tailcoat";

/// Builds an error with the default page.
pub fn error_response(status: Status, format: PageFormat) -> Box<BuiltResponse> {
    let mut response = BuiltResponse::new(status);
    add_error_page(&mut response, format);
    response
}

/// Adds the default page to an error.
pub fn add_error_page(response: &mut BuiltResponse, format: PageFormat) {
    let page = error_page::render(response.status, format);
    response.fields.set("Content-Type", page.content_type);
    response.body = Body::from_bytes(page.body);
}

/// Redirects to the same path with a slash, so that relative links in the directory's page resolve within it. The
/// path is normalised: it begins with a single slash, and so never names another host.
fn redirect_to_directory(routed: &Routed<'_>) -> Response {
    let mut response = BuiltResponse::new(Status::MOVED_PERMANENTLY);
    response.fields.push("Location", directory_url(routed.path, routed.query));
    Response::Built(response)
}

/// Path without a prefix, in upper or lower case: the pattern of the handler has decided about that already.
#[inline]
pub(crate) fn without_prefix<'p>(path: &'p [u8], prefix: &str) -> Option<&'p [u8]> {
    let (start, rest) = path.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix.as_bytes()).then_some(rest)
}

/// Target of a redirect to a path with a slash.
pub(crate) fn directory_url(path: &[u8], query: Option<&[u8]>) -> Vec<u8> {
    let mut location = Vec::with_capacity(path.len() + 16);
    path::encode(path, &mut location);
    location.push(b'/');
    if let Some(query) = query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    location
}

/// Delayed outcome. It owns what it needs of the request, and runs on the worker's thread.
pub type OutcomeFuture = Pin<Box<dyn Future<Output = LateOutcome>>>;

/// Outcome of a handler that no longer waits.
pub type LateOutcome = HandlerOutcome<Infallible>;

/// The client has left, and the handler has stopped. No response is sent.
#[derive(Debug)]
pub struct ClientGone;

/// Response that was built, unless the client has left.
pub type BuiltResult = Result<Box<BuiltResponse>, ClientGone>;

/// Result of a handler. `W` is what it waits for.
pub enum HandlerOutcome<W = OutcomeFuture> {
    /// The response, available at once: the path of all content in memory.
    Ready(Response),
    /// A response that must be waited for.
    Wait(W),
    /// No response, because the client has left.
    ClientGone,
    /// The request is not this handler's; the next matching one gets it.
    Decline,
    /// As [`Self::Decline`]; but if no other handler has the path, this is the reason for the client and the log.
    Reject(FileRejection),
    /// The next matching handler gets the request, possibly changed; this handler then filters the response.
    Pass(PassedOn),
    /// The request must be routed again with this normalised path, because the file there is a script for another
    /// handler.
    Elsewhere(Vec<u8>),
}

impl<W> HandlerOutcome<W> {
    /// Outcome with this response, unless the client has left.
    fn of_response(result: Result<Response, ClientGone>) -> Self {
        match result {
            Ok(response) => Self::Ready(response),
            Err(ClientGone) => Self::ClientGone,
        }
    }

    /// Outcome with this built response, unless the client has left.
    fn of_built(result: BuiltResult) -> Self {
        Self::of_response(result.map(Response::Built))
    }

    /// The outcome with its wait converted, or the error of the conversion.
    fn try_map_wait<V, E>(self, map: impl FnOnce(W) -> Result<V, E>) -> Result<HandlerOutcome<V>, E> {
        Ok(match self {
            Self::Ready(response) => HandlerOutcome::Ready(response),
            Self::Wait(wait) => HandlerOutcome::Wait(map(wait)?),
            Self::ClientGone => HandlerOutcome::ClientGone,
            Self::Decline => HandlerOutcome::Decline,
            Self::Reject(rejection) => HandlerOutcome::Reject(rejection),
            Self::Pass(passed) => HandlerOutcome::Pass(passed),
            Self::Elsewhere(path) => HandlerOutcome::Elsewhere(path),
        })
    }
}

impl HandlerOutcome {
    /// Waits for the outcome, in a handler that waits itself.
    async fn late(self) -> LateOutcome {
        match self.try_map_wait(Err) {
            Ok(outcome) => outcome,
            Err(future) => future.await,
        }
    }
}

impl LateOutcome {
    /// Outcome of a handler that has not waited.
    #[inline]
    pub(crate) fn at_once(self) -> HandlerOutcome {
        let Ok(outcome): Result<_, Infallible> = self.try_map_wait(|never: Infallible| match never {});
        outcome
    }
}

/// A request with the results of routing, as handlers get it.
#[derive(Clone, Copy)]
pub struct Routed<'a> {
    /// Head and bytes.
    pub request: Request<'a>,
    /// Path: percent-decoded, without dot segments or empty segments, beginning with `/`. May have any bytes except
    /// NUL.
    pub path: &'a [u8],
    /// Query as it was sent, without `?`.
    pub query: Option<&'a [u8]>,
    /// Host, lower case, without port; empty if there was none (HTTP/1.0).
    pub host: &'a [u8],
    /// Address of the client.
    pub client: LogClient,
    /// TLS session with the client, if there is one.
    pub tls: Option<&'a Rc<TlsInfo>>,
    /// Trusted proxy that reported the client's address, if there is one.
    pub proxied: Option<Proxied>,
    /// Trace that the request belongs to, if traces are recorded.
    pub trace: Option<&'a Rc<Trace>>,
    /// Databases of countries and network operators, if there are some.
    pub locations: Option<&'a Arc<Locations>>,
    /// Link to the client, for handlers that read content or respond later.
    pub link: &'a ClientLinkCell,
    /// True if another handler follows: then declining is better than an error.
    pub has_next: bool,
    /// Time for freshness and deadlines: that of the request's receipt, or later.
    pub now: Now,
}

impl Routed<'_> {
    /// True if the client used TLS: with us, or with a trusted proxy.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some() || forward::reported_scheme(self).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https"))
    }

    /// Scheme of the URL that the client asked for.
    pub fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }
}

/// Facts about a request from a trusted proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// Address of the proxy.
    pub peer: LogClient,
    /// Field that names the client.
    pub field: ForwardedField,
    /// Entries at the end of that field that trusted proxies have written, beginning with the client's own.
    pub entries: usize,
}

/// Current time in the worker's event loop, read once a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the system's monotonic clock. All workers share it, because what one of them has checked holds
    /// for all.
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

    /// Reads the clocks for a request received at `came`. The result is never earlier than that, even in tests with
    /// times of their own: work that was due then stays due.
    pub fn read_after(came: Self) -> Self {
        let now = Self::read();
        if now.monotonic_ms < came.monotonic_ms { came } else { now }
    }
}
