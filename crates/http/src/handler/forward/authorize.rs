//! Forward authentication: a server decides, for each request, whether it may pass.
//!
//! The server gets a GET request without content: the client's fields, and others that describe its request. The
//! exchange has a link of its own, so that it reads nothing of the client's content and has its own time limit.

use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wire::http::{Fields, Status};

use super::exchange::ForwardExchange;
use super::request::{guarded_target, host_and_port};
use super::{ForwardInner, ForwardPlan, ForwardWorker, client_fields};
use crate::config::{FieldAction, ForwardAuth};
use crate::handler::{Body, BuiltResponse, ClientLinkCell, FieldChange, Filled, OwnedRequest, Routed, Segment};
use crate::spool::SpoolStore;
use crate::upstream::{SharedUpstream, Upstream};

/// Maximum content of a response that the client gets instead of its own.
const CONTENT_BYTES_MAX: usize = 64 << 10;

/// Fields of a request that are about its content, or that could make the response depend on an earlier one.
const OMITTED: [&str; 11] = [
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Expect",
    "Trailer",
    "Range",
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "If-Range",
];

/// Decision of an authentication server.
pub enum Authorization {
    /// The request may pass.
    Permitted(Permission),
    /// The client gets this response.
    Rejected(Box<BuiltResponse>),
}

/// Facts that an authentication server has added to a request.
#[derive(Debug, Default)]
pub struct Permission {
    /// Fields for the request, in the order of the configuration; an empty value removes the field.
    pub fields: Vec<FieldChange>,
    /// Fields for the response.
    pub cookies: Vec<FieldChange>,
}

/// Pending decision.
pub type AuthorizationFuture = Pin<Box<dyn Future<Output = Authorization>>>;

/// Part of an [`Authorizer`] that all workers share.
#[derive(Debug)]
pub struct AuthorizerPlan {
    config: Arc<ForwardAuth>,
    plan: Arc<ForwardPlan>,
}

/// A worker's way to an authentication server.
pub struct Authorizer {
    config: Arc<ForwardAuth>,
    inner: Rc<ForwardInner>,
}

impl AuthorizerPlan {
    /// Creates the plan for this configuration.
    pub fn new(config: &ForwardAuth, upstream: &SharedUpstream, spools: &Arc<SpoolStore>) -> Arc<Self> {
        let plan = ForwardPlan::new(&config.forward, upstream, spools);
        Arc::new(Self { config: Arc::new(config.clone()), plan })
    }
}

impl Authorizer {
    /// Creates a worker's part.
    pub fn new(plan: &AuthorizerPlan, upstream: Rc<Upstream>, worker: &ForwardWorker) -> Self {
        let inner = ForwardInner::new(Arc::clone(&plan.plan), super::Destination::Servers(upstream), worker);
        Self { config: Arc::clone(&plan.config), inner }
    }

    /// Asks the server about a request, as the client sent it.
    pub fn ask(&self, routed: &Routed<'_>) -> AuthorizationFuture {
        // A server that leads back to a guarded path would be asked about its own requests.
        if client_fields::is_loop(routed, &self.inner.plan.config.intermediary) {
            return rejected(Status::LOOP_DETECTED, "`forward-auth` leads to a path that it guards");
        }
        if let Some(response) = self.inner.shed(routed) {
            return Box::pin(ready(Authorization::Rejected(response)));
        }
        let link = ClientLinkCell::default();
        let mut fields = Fields::new();
        for field in &routed.request.head.fields {
            fields.push(field.name.of(routed.request.bytes), field.value.of(routed.request.bytes));
        }
        let asked = Routed { link: &link, ..*routed };
        let Some(request) = OwnedRequest::changed(&asked, b"GET", self.config.target.as_bytes(), &fields) else {
            return rejected(Status::INTERNAL_SERVER_ERROR, "the `uri` of `forward-auth` is not a path");
        };
        let exchange = ForwardExchange::new(Rc::clone(&self.inner), &request.routed(false), &description(routed));
        let (config, limit) = (Arc::clone(&self.config), self.config.forward.first_byte_timeout);
        Box::pin(async move { within(limit, decide(exchange, &config)).await })
    }
}

fn rejected(status: Status, reason: &'static str) -> AuthorizationFuture {
    Box::pin(ready(Authorization::Rejected(BuiltResponse::rejection(status, reason))))
}

async fn within(limit: Duration, decision: impl Future<Output = Authorization>) -> Authorization {
    tokio::time::timeout(limit, decision).await.unwrap_or_else(|_| {
        let reason = "the authentication server did not respond in time";
        Authorization::Rejected(BuiltResponse::rejection(Status::GATEWAY_TIMEOUT, reason))
    })
}

/// Fields that describe the client's request. They replace those that the client may have sent.
fn description(routed: &Routed<'_>) -> Fields {
    let mut fields = Fields::new();
    for name in OMITTED {
        fields.push(name, "");
    }
    let target = guarded_target(routed.request.target_asked());
    let method = routed.request.method_name();
    fields.push("X-Forwarded-Method", method);
    fields.push("X-Forwarded-Uri", &*target);
    fields.push("X-Original-Method", method);
    fields.push("X-Original-URI", &*target);
    fields.push_with("X-Original-URL", |url| {
        url.extend_from_slice(routed.scheme().as_bytes());
        url.extend_from_slice(b"://");
        url.extend_from_slice(host_and_port(routed));
        url.extend_from_slice(&target);
    });
    fields
}

async fn decide(exchange: ForwardExchange, config: &ForwardAuth) -> Authorization {
    let bad_gateway = |reason| Authorization::Rejected(BuiltResponse::rejection(Status::BAD_GATEWAY, reason));
    // The exchange has no client of its own that could leave.
    let Ok(mut response) = exchange.await else { return bad_gateway("the authentication server was not asked") };
    if response.forwarded.is_none() {
        // The server could not be reached, and the log says why.
        return Authorization::Rejected(response);
    }
    // Read in each case, so that the connection can be reused.
    let content = content(std::mem::take(&mut response.body)).await;
    match response.status.code() {
        200..=299 => Authorization::Permitted(permission(&response.fields, config)),
        304 => bad_gateway("the authentication server sent 304 to a request without conditions"),
        300..=499 => Authorization::Rejected(rejection(response, content)),
        _ => bad_gateway("the authentication server failed"),
    }
}

fn permission(fields: &Fields, config: &ForwardAuth) -> Permission {
    let copy = |copy: &crate::config::FieldCopy| FieldChange {
        action: FieldAction::Set,
        name: copy.to.clone(),
        value: fields.values(copy.from.as_bytes()).collect::<Vec<_>>().join(&b", "[..]),
    };
    let cookie =
        |value: &[u8]| FieldChange { action: FieldAction::Add, name: "Set-Cookie".into(), value: value.into() };
    let cookies = match config.passes_cookies {
        true => fields.values(b"set-cookie").map(cookie).collect(),
        false => Vec::new(),
    };
    Permission { fields: config.copies.iter().map(copy).collect(), cookies }
}

/// Response for the client. Without content, an error gets the site's page.
fn rejection(mut response: Box<BuiltResponse>, content: Option<Bytes>) -> Box<BuiltResponse> {
    response.forwarded = None;
    response.compression = None;
    match content {
        Some(content) if !content.is_empty() => response.body = Body::from_bytes(content),
        _ => {
            response.fields.set("Content-Encoding", "");
        }
    }
    response
}

/// Whole content; `None` if it is longer than the limit or cut short.
async fn content(body: Body) -> Option<Bytes> {
    let mut content = Vec::new();
    for segment in &body.segments {
        let Segment::Bytes(bytes) = segment else { return None };
        content.extend_from_slice(bytes);
    }
    let Some(mut stream) = body.stream else { return (content.len() <= CONTENT_BYTES_MAX).then(|| content.into()) };
    let mut buffer = vec![0; 8 << 10];
    loop {
        match poll_fn(|task| stream.source.poll_fill(task, &mut buffer)).await {
            Ok(Filled::Content(count)) => content.extend_from_slice(&buffer[..count]),
            Ok(Filled::End(_)) => return Some(content.into()),
            Err(_) => return None,
        }
        if content.len() > CONTENT_BYTES_MAX {
            return None;
        }
    }
}
