//! Reverse proxy: forwards requests to upstreams or programs, and streams their responses back.

mod authorize;
mod buffering;
mod client_fields;
mod content;
mod drain;
mod exchange;
mod ext_authz;
mod grpc;
mod http2_content;
mod internal_redirect;
mod mirror;
mod peer;
mod read_ahead;
mod read_buffer;
mod records;
mod request;
mod response;
mod rewriting;
mod split;
mod substitution;
#[cfg(test)]
mod tests;
mod upload;

use std::cell::RefCell;
use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use wire::h1::{HeadLimits, ResponseHead};
use wire::http::readings::has_hidden_dot_segments;
use wire::http::{Fields, Method, Status, Version, cookies};

pub use self::authorize::{Authorization, AuthorizationFuture, Authorizer, AuthorizerPlan};
use self::buffering::{RoomWait, awaits_room, receive_content, wait_for_room};
pub(super) use self::client_fields::push_trace_fields;
pub(crate) use self::client_fields::reported_scheme;
#[cfg(feature = "modules")]
pub(super) use self::client_fields::{is_trace_field, push_client_fields};
use self::exchange::ForwardExchange;
pub(crate) use self::exchange::{Dialect, GatewayRequest};
use self::grpc::{grpc_error, is_grpc};
pub(super) use self::internal_redirect::ACCEL_EXPIRES;
pub(crate) use self::mirror::{MirrorPlan, RequestMirror};
use self::peer::Destination;
use self::read_buffer::LentBuffer;
pub use self::read_buffer::ReadBuffer;
#[cfg(feature = "modules")]
pub(super) use self::request::target;
pub(super) use self::request::{guarded_target, host_and_port, is_passed_on};
use self::rewriting::Rewriter;
use self::split::Splits;
pub(crate) use self::split::{SetShareError, SharedSplits};
use super::cgi::{ErrorLines, ProgramLaunch, Programs};
use super::response_cache::{Fetch, FetchFuture, ResponseCache};
use super::{BuiltResponse, BuiltResult, HandlerOutcome, LateOutcome, Now, OwnedRequest, Response, Routed};
use crate::config::{self, Balance, BufferingConfig, HashKey, ResponseCompression, unmapped};
use crate::log::{LogClient, ServerLog, escaped, event};
use crate::overload::Overload;
use crate::spool::{MessageLimits, SpoolStore};
use crate::traces::trace_id;
use crate::upstream::{SharedUpstream, Upstream, hash_key};

/// Size of one read from an upstream.
const READ_BYTES: usize = 64 << 10;

/// Space in the read buffer beyond the largest head.
const HEAD_REST_BYTES: usize = 4 << 10;

/// Handler that forwards requests to the servers of an upstream or to programs. Each worker has its own.
pub struct Forward {
    inner: Rc<ForwardInner>,
    /// Response cache in front of the upstream, if configured.
    cache: Option<ResponseCache>,
    /// Other upstreams of some requests, if configured.
    shares: Option<Box<Shares>>,
}

/// Other upstreams of some requests.
struct Shares {
    splits: Option<Splits>,
    mirrors: Vec<RequestMirror>,
}

/// State that all exchanges of a worker's handler share.
struct ForwardInner {
    plan: Arc<ForwardPlan>,
    destination: Destination,
    worker: ForwardWorker,
    scratch: RefCell<ForwardScratch>,
}

/// Parts of a worker that all of its forwards share.
#[derive(Clone)]
pub struct ForwardWorker {
    /// Overload of the worker.
    pub overload: Rc<Overload>,
    /// Buffer for bytes of upstreams.
    pub buffer: Rc<ReadBuffer>,
}

/// Scratch space for one poll of an exchange; it holds nothing between polls.
struct ForwardScratch {
    head: ResponseHead,
    /// Empty; its memory is for the fields of the next request.
    fields: Fields,
}

/// Part of a handler that all workers share.
#[derive(Debug)]
pub struct ForwardPlan {
    config: config::ForwardConfig,
    head_limits: HeadLimits,
    log: ServerLog,
    /// Value of Host if the client's request has none.
    authority: String,
    spools: Arc<SpoolStore>,
    /// True if content of requests is received whole before the request is forwarded.
    buffers_requests: bool,
    /// True if responses are read ahead of slow clients. Event streams, and responses that opt out, are not.
    buffers_responses: bool,
    buffer_limits: MessageLimits,
    compression: Option<ResponseCompression>,
    /// Changes of responses.
    rewriter: Option<Rewriter>,
}

impl ForwardPlan {
    /// Creates the plan for this configuration.
    pub fn new(config: &config::ForwardConfig, upstream: &SharedUpstream, spools: &Arc<SpoolStore>) -> Arc<Self> {
        let is_limited = upstream.config().limits_connections();
        Self::with(config, upstream.log().clone(), upstream.authority(), is_limited, spools)
    }

    /// Creates the plan for requests that programs handle.
    pub fn of_programs(config: &config::ForwardConfig, log: &ServerLog, spools: &Arc<SpoolStore>) -> Arc<Self> {
        Self::with(config, log.clone(), String::new(), true, spools)
    }

    /// Creates a plan. `is_limited`: the upstream handles few requests at a time.
    fn with(
        config: &config::ForwardConfig,
        log: ServerLog,
        authority: String,
        is_limited: bool,
        spools: &Arc<SpoolStore>,
    ) -> Arc<Self> {
        let is_limited = is_limited || config.runs_scripts;
        let BufferingConfig { requests, responses, memory_bytes_max, .. } = *config.buffers;
        let head_limits = HeadLimits {
            head_bytes_max: config.response_head_bytes_max,
            fields_max: config.response_fields_max,
            target_bytes_max: 0,
        };
        Arc::new(Self {
            config: config.clone(),
            head_limits,
            log,
            authority,
            spools: Arc::clone(spools),
            buffers_requests: requests.is_on(is_limited),
            buffers_responses: responses.is_on(is_limited),
            compression: config.compression.resolved(),
            rewriter: Rewriter::new(config),
            buffer_limits: MessageLimits { memory_bytes_max, file_bytes_max: config.buffer_file_bytes_max() },
        })
    }
}

impl ForwardPlan {
    /// True if a plan made now would be the same. Only then the upstream's first server plays a part.
    pub(super) fn stays(&self, upstream: &SharedUpstream) -> bool {
        let names_server = self.config.host == config::ForwardHost::Upstream || self.config.rewrites.is_some();
        !names_server || self.authority == upstream.authority()
    }

    /// Names that the upstream may use for itself in URLs: the host that it gets, and its address. `None` if URLs pass
    /// unchanged.
    fn own_hosts(&self, routed: &Routed<'_>) -> Option<Box<[Vec<u8>]>> {
        self.config.rewrites.as_ref().filter(|rewrites| rewrites.is_location_automatic)?;
        let host = match &self.config.host {
            config::ForwardHost::Set(host) => host.clone().into_bytes(),
            config::ForwardHost::Upstream => self.authority.clone().into_bytes(),
            config::ForwardHost::Keep => host_and_port(routed).to_vec(),
        };
        Some([host, self.authority.clone().into_bytes()].into())
    }
}

impl Forward {
    /// Creates a worker's handler for an upstream.
    pub fn new(
        plan: Arc<ForwardPlan>,
        upstream: Rc<Upstream>,
        cache: Option<ResponseCache>,
        worker: &ForwardWorker,
    ) -> Self {
        Self::with(plan, Destination::Servers(upstream), cache, worker)
    }

    /// Creates a worker's handler for programs.
    pub fn to_programs(
        plan: Arc<ForwardPlan>,
        programs: Programs,
        cache: Option<ResponseCache>,
        worker: &ForwardWorker,
    ) -> Self {
        Self::with(plan, Destination::Programs(programs), cache, worker)
    }

    fn with(
        plan: Arc<ForwardPlan>,
        destination: Destination,
        cache: Option<ResponseCache>,
        worker: &ForwardWorker,
    ) -> Self {
        Self { inner: ForwardInner::new(plan, destination, worker), cache, shares: None }
    }

    /// Sends shares of requests to other upstreams, too.
    #[must_use]
    pub fn with_shares(self, splits: Option<(Arc<SharedSplits>, Vec<Self>)>, mirrors: Vec<RequestMirror>) -> Self {
        let splits = splits.map(|(shared, forwards)| Splits::new(shared, forwards));
        let has_any = splits.is_some() || !mirrors.is_empty();
        Self { shares: has_any.then(|| Box::new(Shares { splits, mirrors })), ..self }
    }

    /// Forwards a request.
    pub fn handle(&self, routed: &Routed<'_>) -> HandlerOutcome {
        let Some(shares) = &self.shares else { return self.handle_own(routed) };
        shares.mirrors.iter().for_each(|mirror| mirror.copy(routed));
        shares.splits.as_ref().and_then(|splits| splits.choose(routed)).unwrap_or(self).handle_own(routed)
    }

    /// Forwards a request to this handler's own upstream.
    fn handle_own(&self, routed: &Routed<'_>) -> HandlerOutcome {
        match routed.request.method() {
            // Neither concerns a resource of the upstream.
            Method::Connect => return HandlerOutcome::Decline,
            Method::Options if routed.path == b"*" => return HandlerOutcome::Decline,
            // TRACE reveals fields that a browser hides from scripts, and hardly any server enables it.
            Method::Trace => return not_allowed(Status::METHOD_NOT_ALLOWED),
            Method::Options if request::is_last_hop(routed) => return not_allowed(Status::NO_CONTENT),
            // Servers that drop path parameters would resolve a path other than the one that was checked here.
            _ if has_hidden_dot_segments(routed.path) => {
                return HandlerOutcome::Ready(Response::Built(BuiltResponse::new(Status::BAD_REQUEST)));
            }
            // Before the cache, where a request in a loop would wait for itself.
            _ if client_fields::is_loop(routed, &self.inner.plan.config.intermediary) => return self.on_loop(routed),
            _ => {}
        }
        if let Some(rejected) = self.reject_content(routed) {
            return HandlerOutcome::Ready(Response::Built(rejected));
        }
        match &self.cache {
            Some(cache) => cache.handle(routed, &self.inner),
            None => match self.inner.shed(routed) {
                Some(response) => HandlerOutcome::Ready(Response::Built(response)),
                None if self.inner.waits_for_client(routed) => {
                    let (inner, request) = (Rc::clone(&self.inner), Rc::new(OwnedRequest::new(routed)));
                    let answered = inner.receive_and_ask(request, Fields::new(), false);
                    HandlerOutcome::Wait(Box::pin(async move { HandlerOutcome::of_built(answered.await) }))
                }
                None => {
                    let exchange = ForwardExchange::new(Rc::clone(&self.inner), routed, &Fields::new());
                    HandlerOutcome::Wait(Box::pin(OutcomeOf(exchange)))
                }
            },
        }
    }
}

impl Forward {
    #[cold]
    fn on_loop(&self, routed: &Routed<'_>) -> HandlerOutcome {
        let ForwardPlan { log, config, .. } = &*self.inner.plan;
        let request = escaped(routed.request.target());
        let (upstream, passes) = (&config.upstream, config.intermediary.via_passes_max);
        let (client, trace) = (routed.client, trace_id(routed.trace));
        log.warn_of(
            client,
            event(
                "request rejected in a forwarding loop",
                &[
                    ("upstream", upstream),
                    ("via_passes_max", &passes),
                    ("target", &request),
                    ("client", &client),
                    ("trace", &trace),
                ],
            ),
            "",
        );
        HandlerOutcome::Ready(Response::Built(match is_grpc(routed) {
            true => grpc_error(Status::LOOP_DETECTED),
            false => BuiltResponse::new(Status::LOOP_DETECTED),
        }))
    }

    /// Sets the content limit; returns the response for a request above it.
    pub fn reject_content(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        let link = routed.link.get()?;
        link.set_body_bytes_max(self.inner.plan.config.body_bytes_max.forwarded());
        link.is_too_large().then(|| BuiltResponse::new(Status::CONTENT_TOO_LARGE))
    }

    /// Waits for space for the response, and for the request's content if it must be whole before forwarding. Returns
    /// the response if that fails.
    pub async fn receive_content(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        if !self.inner.waits_for_client(routed) {
            return None;
        }
        if let Some(response) = self.inner.shed(routed) {
            return Some(response);
        }
        self.inner.wait_for_client(routed, true).await.err()
    }

    /// Response cache in front of the upstream, if configured.
    pub fn cache(&self) -> Option<&ResponseCache> {
        self.cache.as_ref()
    }

    /// Sends a request to a script or application, and returns its response.
    pub async fn ask(&self, routed: &Routed<'_>, asked: GatewayRequest) -> BuiltResult {
        if let Some(response) = self.inner.shed(routed) {
            return Ok(response);
        }
        let routed = Routed { now: Now::read_after(routed.now), ..*routed };
        ForwardExchange::asking(Rc::clone(&self.inner), &routed, asked).await
    }
}

/// Builds the response for a request that is shed, in the client's protocol.
pub(super) fn overloaded(routed: &Routed<'_>) -> Box<BuiltResponse> {
    let status = Status::SERVICE_UNAVAILABLE;
    let mut response = if is_grpc(routed) { grpc_error(status) } else { BuiltResponse::new(status) };
    response.fields.push("Retry-After", Overload::retry_after_seconds().to_string());
    response
}

/// An exchange as the outcome of a handler.
struct OutcomeOf(ForwardExchange);

impl Future for OutcomeOf {
    type Output = LateOutcome;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<LateOutcome> {
        Pin::new(&mut self.0).poll(task).map(HandlerOutcome::of_built)
    }
}

impl ForwardInner {
    /// Creates the state of a worker's handler.
    fn new(plan: Arc<ForwardPlan>, destination: Destination, worker: &ForwardWorker) -> Rc<Self> {
        let scratch = RefCell::new(ForwardScratch { head: ResponseHead::default(), fields: Fields::new() });
        Rc::new(Self { plan, destination, worker: worker.clone(), scratch })
    }

    /// Buffer for one read and the start of a head before it.
    fn lend_buffer(&self) -> LentBuffer<'_> {
        // Space for the largest head and one byte, to see that a head is too large.
        self.worker.buffer.lend(READ_BYTES.max(self.plan.head_limits.head_bytes_max + HEAD_REST_BYTES))
    }

    /// Builds the response for a request that is shed because its worker is overloaded.
    fn shed(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        self.worker.overload.sheds(self.destination.cost()).then(|| overloaded(routed))
    }

    /// True if the request has content that must be received whole before forwarding. A gRPC call that a gRPC server can
    /// receive must stream. Any client can claim to make one, so other upstreams are protected from it.
    fn buffers_request(&self, routed: &Routed<'_>) -> bool {
        let must_stream = || {
            let is_http2 = routed.request.head.version == Version::Http2 && self.destination.may_speak_http2();
            is_http2 && is_grpc(routed)
        };
        self.plan.buffers_requests && routed.link.get().is_some_and(|link| !link.is_received()) && !must_stream()
    }

    /// True if the request waits for its client before forwarding.
    fn waits_for_client(&self, routed: &Routed<'_>) -> bool {
        self.buffers_request(routed) || awaits_room(&self.plan, routed.client)
    }

    /// Waits as [`Self::waits_for_client`] says. `needs_length`: the upstream cannot take content of unknown length.
    async fn wait_for_client(&self, routed: &Routed<'_>, needs_length: bool) -> Result<(), Box<BuiltResponse>> {
        let (plan, link) = (&self.plan, routed.link.link());
        // Before the content is received, because that uses space itself.
        let mut room = RoomWait::default();
        wait_for_room(plan, routed.client, link, &mut room).await?;
        if self.buffers_request(routed) {
            receive_content(plan, routed.client, link, needs_length, &mut room).await?;
        }
        Ok(())
    }

    /// Forwards a request after its content was received. `is_shared`: the response may be for several clients.
    async fn receive_and_ask(
        self: Rc<Self>,
        request: Rc<OwnedRequest>,
        changes: Fields,
        is_shared: bool,
    ) -> BuiltResult {
        let routed = request.routed(false);
        if let Err(rejected) = self.wait_for_client(&routed, false).await {
            return Ok(rejected);
        }
        let routed = Routed { now: Now::read_after(request.received()), ..routed };
        let mut exchange = ForwardExchange::new(self, &routed, &changes);
        if is_shared {
            exchange.share();
        }
        exchange.await
    }
}

impl Fetch for ForwardInner {
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture {
        if let Some(response) = self.shed(&request.routed(false)) {
            return Box::pin(ready(Ok(response)));
        }
        if self.waits_for_client(&request.routed(false)) {
            return Box::pin(self.receive_and_ask(request, changes, true));
        }
        let routed = Routed { now: Now::read_after(request.received()), ..request.routed(false) };
        let mut exchange = ForwardExchange::new(self, &routed, &changes);
        exchange.share();
        Box::pin(exchange)
    }
}

/// Builds a response that lists the methods that are forwarded.
pub(super) fn not_allowed(status: Status) -> HandlerOutcome {
    let mut response = BuiltResponse::new(status);
    response.fields.push("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    HandlerOutcome::Ready(Response::Built(response))
}

/// Key for consistent hashing, if the upstream balances by one.
fn hash_key_of(upstream: &config::UpstreamConfig, routed: &Routed<'_>) -> Option<u64> {
    let Balance::Hash(key) = &upstream.balance else { return None };
    hash_key_by(key, routed)
}

/// Number of a request's address, field or cookie, if it has it.
fn hash_key_by(key: &HashKey, routed: &Routed<'_>) -> Option<u64> {
    match key {
        HashKey::Address => match routed.client {
            LogClient::Ip(address) => Some(match address.ip().to_canonical() {
                std::net::IpAddr::V4(address) => hash_key(&address.octets()),
                std::net::IpAddr::V6(address) => hash_key(&address.octets()),
            }),
            LogClient::Unix => None,
        },
        HashKey::Field(name) => routed.request.field_by_name(name.as_bytes()).map(hash_key),
        HashKey::Cookie(name) => {
            let value = cookies(&routed.request).find(|(other, _)| *other == name.as_bytes());
            value.map(|(_, value)| hash_key(value))
        }
    }
}

/// Number of a client, for its share of queues; `None` for a unix socket, through which many clients come. Only the
/// first 64 bits of an IPv6 address count: a customer can choose the others at will (RFC 6177).
fn number_of(client: LogClient) -> Option<u64> {
    let LogClient::Ip(address) = client else { return None };
    Some(match unmapped(address.ip()) {
        std::net::IpAddr::V4(address) => u64::from(address.to_bits()),
        std::net::IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    })
}
