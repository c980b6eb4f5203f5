//! Forwarding: what is not answered here is answered by another server, and its answer comes back untouched.

mod client_fields;
mod content;
mod exchange;
mod grpc;
mod http2_content;
mod peer;
mod records;
mod request;
mod response;
#[cfg(test)]
mod tests;
mod upload;

use std::cell::RefCell;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use wire::h1::{HeadLimits, ResponseHead};
use wire::http::{Fields, KnownField, Method, Status, path};

pub use self::client_fields::told_scheme;
pub(super) use self::client_fields::{is_trace_field, push_client_fields, push_trace_fields};
use self::exchange::Exchange;
pub use self::exchange::{Asked, Dialect};
use self::grpc::{grpc_error, is_grpc};
use self::peer::Destination;
pub(super) use self::request::{host_and_port, is_passed_on, target};
use super::cgi::{Launch, Programs};
use super::gateway::ErrorLines;
use super::response_cache::{Fetch, FetchFuture, ResponseCache};
use super::{BuiltResponse, Outcome, OwnedRequest, Response, Routed};
use crate::config::{self, Balance, HashKey, unmapped};
use crate::log::{Client, ServerLog};
use crate::overload::Overload;
use crate::upstream::{SharedUpstream, Upstream, hash_key};

/// Bytes of a response that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Bytes that are read beside the largest head.
const HEAD_REST_BYTES: usize = 4 << 10;

/// Forwards requests to the servers of an upstream. Each worker has its own.
pub struct Forward {
    inner: Rc<Inner>,
    /// What stands before it.
    cache: Option<ResponseCache>,
}

/// What the exchanges of a worker's handler share.
struct Inner {
    plan: Arc<Plan>,
    destination: Destination,
    overload: Rc<Overload>,
    scratch: RefCell<Scratch>,
}

/// What an exchange uses while it is polled, and none keeps.
struct Scratch {
    input: Vec<u8>,
    head: ResponseHead,
}

/// What workers share of a handler.
#[derive(Debug)]
pub struct Plan {
    config: config::Forward,
    head_limits: HeadLimits,
    log: ServerLog,
    /// What Host says where the client's request does not.
    authority: String,
}

impl Plan {
    /// The plan for this configuration.
    pub fn new(config: &config::Forward, upstream: &SharedUpstream) -> Arc<Self> {
        Self::with(config, upstream.log().clone(), upstream.authority())
    }

    /// The plan for requests that programs answer.
    pub fn of_programs(config: &config::Forward, log: &ServerLog) -> Arc<Self> {
        Self::with(config, log.clone(), String::new())
    }

    fn with(config: &config::Forward, log: ServerLog, authority: String) -> Arc<Self> {
        let head_limits = HeadLimits {
            head_bytes_max: config.response_head_bytes_max,
            fields_max: config.response_fields_max,
            target_bytes_max: 0,
        };
        Arc::new(Self { config: config.clone(), head_limits, log, authority })
    }
}

impl Forward {
    /// A worker's handler.
    pub fn new(plan: Arc<Plan>, upstream: Rc<Upstream>, cache: Option<ResponseCache>, overload: Rc<Overload>) -> Self {
        Self::with(plan, Destination::Servers(upstream), cache, overload)
    }

    /// The same, for requests that programs answer.
    pub fn to_programs(
        plan: Arc<Plan>,
        programs: Programs,
        cache: Option<ResponseCache>,
        overload: Rc<Overload>,
    ) -> Self {
        Self::with(plan, Destination::Programs(programs), cache, overload)
    }

    fn with(plan: Arc<Plan>, destination: Destination, cache: Option<ResponseCache>, overload: Rc<Overload>) -> Self {
        // A head has to fit in, with a byte to see that it is too large.
        let input = vec![0; READ_BYTES.max(plan.head_limits.head_bytes_max + HEAD_REST_BYTES)];
        let scratch = RefCell::new(Scratch { input, head: ResponseHead::default() });
        Self { inner: Rc::new(Inner { plan, destination, overload, scratch }), cache }
    }

    /// Forwards a request.
    pub fn handle(&self, routed: &Routed<'_>) -> Outcome {
        match routed.request.method() {
            // Neither is about a resource of the other server.
            Method::Connect => return Outcome::Decline,
            Method::Options if routed.path == b"*" => return Outcome::Decline,
            // It shows what a browser hides from scripts, and hardly any server has it on.
            Method::Trace => return not_allowed(Status::METHOD_NOT_ALLOWED),
            Method::Options if request::is_last_hop(routed) => return not_allowed(Status::NO_CONTENT),
            // Servers that drop parameters would look elsewhere than where we have let the client in.
            _ if path::has_hidden_dot_segments(routed.path) => {
                return Outcome::Ready(Response::Built(BuiltResponse::new(Status::BAD_REQUEST)));
            }
            _ => {}
        }
        if let Some(refused) = self.refuse_content(routed) {
            return Outcome::Ready(Response::Built(refused));
        }
        match &self.cache {
            Some(cache) => cache.handle(routed, &self.inner),
            None => match self.inner.shed(routed) {
                Some(response) => Outcome::Ready(Response::Built(response)),
                None => Outcome::Wait(Box::pin(Exchange::new(Rc::clone(&self.inner), routed, &Fields::new()))),
            },
        }
    }
}

impl Forward {
    /// Sets how much content there may be; answers a request that has more.
    pub fn refuse_content(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        let link = routed.link.get()?;
        link.set_body_bytes_max(self.inner.plan.config.body_bytes_max.forwarded());
        link.is_too_large().then(|| BuiltResponse::new(Status::CONTENT_TOO_LARGE))
    }

    /// What stands before it.
    pub fn cache(&self) -> Option<&ResponseCache> {
        self.cache.as_ref()
    }

    /// Asks for what a script or application answers.
    pub async fn ask(&self, routed: &Routed<'_>, asked: Asked) -> Box<BuiltResponse> {
        if let Some(response) = self.inner.shed(routed) {
            return response;
        }
        built(Exchange::asking(Rc::clone(&self.inner), routed, asked).await)
    }
}

impl Inner {
    /// The response to a request that is shed because its worker is overloaded.
    fn shed(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        self.overload.sheds(self.destination.cost()).then(|| overloaded(routed))
    }
}

/// The response to a request that is shed, in the form that its client reads.
pub(super) fn overloaded(routed: &Routed<'_>) -> Box<BuiltResponse> {
    let status = Status::SERVICE_UNAVAILABLE;
    let mut response = if is_grpc(routed) { grpc_error(status) } else { BuiltResponse::new(status) };
    response.fields.push("Retry-After", Overload::retry_after_seconds().to_string());
    response
}

/// The response that an exchange has ended with.
fn built(outcome: Outcome) -> Box<BuiltResponse> {
    match outcome {
        Outcome::Ready(Response::Built(response)) => response,
        // Local invariant: an exchange ends with a response that was built.
        _ => BuiltResponse::new(Status::BAD_GATEWAY),
    }
}

impl Fetch for Inner {
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture {
        if let Some(response) = self.shed(&request.routed(false)) {
            return Box::pin(ready(response));
        }
        let mut exchange = Exchange::new(self, &request.routed(false), &changes);
        exchange.share();
        Box::pin(async move { built(exchange.await) })
    }
}

/// An answer about methods: those that are forwarded.
pub(super) fn not_allowed(status: Status) -> Outcome {
    let mut response = BuiltResponse::new(status);
    response.fields.push("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    Outcome::Ready(Response::Built(response))
}

/// What chooses the server, where the upstream chooses by a key.
fn hash_key_of(upstream: &config::Upstream, routed: &Routed<'_>) -> Option<u64> {
    let Balance::Hash(key) = &upstream.balance else { return None };
    match key {
        HashKey::Address => match routed.client {
            Client::Ip(address) => Some(match address.ip().to_canonical() {
                std::net::IpAddr::V4(address) => hash_key(&address.octets()),
                std::net::IpAddr::V6(address) => hash_key(&address.octets()),
            }),
            Client::Unix => None,
        },
        HashKey::Field(name) => routed.request.field_by_name(name.as_bytes()).map(hash_key),
        HashKey::Cookie(name) => cookie(routed, name.as_bytes()).map(hash_key),
    }
}

/// What stands for a client among those that wait for a connection; `None` for one behind a unix socket, which speaks for
/// many. Of an IPv6 address the first 64 bits count, of which the customer can't choose any (RFC 6177).
fn number_of(client: Client) -> Option<u64> {
    let Client::Ip(address) = client else { return None };
    Some(match unmapped(address.ip()) {
        std::net::IpAddr::V4(address) => u64::from(address.to_bits()),
        std::net::IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    })
}

/// The value of a cookie (RFC 6265, section 4.2).
fn cookie<'a>(routed: &Routed<'a>, name: &[u8]) -> Option<&'a [u8]> {
    let pairs = routed.request.field_lines(KnownField::Cookie).flat_map(|line| line.split(|&byte| byte == b';'));
    let mut values = pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="));
    values.next()
}
