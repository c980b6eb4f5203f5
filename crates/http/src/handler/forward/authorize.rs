//! Forward authentication: a server decides, for each request, whether it may pass.
//!
//! The server gets a GET request without content: the client's fields, and others that describe its request. Or it gets a
//! call of gRPC (`ext_authz.rs`). The exchange has a link of its own, so that it has its own time limit. If the server
//! gets the start of the client's content, that is read before and put back for the handlers.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use wire::h1::BodyFraming;
use wire::http::{Fields, Status, Version};

use super::exchange::ForwardExchange;
use super::ext_authz::{self, CheckDecision, CheckedRequest};
use super::request::{guarded_target, host_and_port};
use super::{ForwardInner, ForwardPlan, ForwardWorker, client_fields};
use crate::config::{AuthProtocol, FieldAction, ForwardAuth};
use crate::handler::{
    Body, BuiltResponse, ClientLink, ClientLinkCell, FieldChange, Filled, Now, OwnedRequest, Routed, Segment,
};
use crate::log::LogClient;
use crate::spool::SpoolStore;
use crate::upstream::{SharedUpstream, Upstream};

/// Maximum content of a response that the client gets instead of its own.
const CONTENT_BYTES_MAX: usize = 64 << 10;

/// Fields of a request that describe its content.
const OF_CONTENT: [&str; 3] = ["Content-Type", "Content-Encoding", "Content-Language"];

/// Fields of a request that each server gets.
const ALWAYS_ASKED: [&str; 2] = ["Host", "Authorization"];

/// Fields of a request that are about its framing, or that could make the response depend on an earlier one.
const OMITTED: [&str; 8] =
    ["Expect", "Trailer", "Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"];

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
    /// True if the first of these fields is the user.
    pub names_user: bool,
    /// Names of fields that the request loses.
    pub removed: Vec<String>,
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
        let content = match routed.link.get() {
            Some(link) if self.config.body_bytes_max > 0 && link.framing() != BodyFraming::None => {
                Some(Rc::clone(link))
            }
            _ => None,
        };
        match self.config.protocol {
            AuthProtocol::Http => self.ask_over_http(routed, content),
            AuthProtocol::Grpc => self.ask_over_grpc(routed, content),
        }
    }

    /// Asks with a request like the client's, with the start of its content if there is a link to take it from.
    fn ask_over_http(&self, routed: &Routed<'_>, content: Option<Rc<ClientLink>>) -> AuthorizationFuture {
        let mut fields = Fields::new();
        for (name, value) in self.asked_fields(routed, content.is_some()) {
            fields.push(name, value);
        }
        let method = if content.is_some() { routed.request.method_name() } else { b"GET" };
        let link = ClientLinkCell::default();
        let asked = Routed { link: &link, ..*routed };
        let Some(request) = OwnedRequest::changed(&asked, method, self.config.target.as_bytes(), &fields) else {
            return rejected(Status::INTERNAL_SERVER_ERROR, "the `uri` of `forward-auth` is not a path");
        };
        let description = description(routed, content.is_some());
        let (inner, config) = (Rc::clone(&self.inner), Arc::clone(&self.config));
        Box::pin(async move {
            if let Some(link) = content {
                let (content, _) = start_of_content(&link, config.body_bytes_max as usize).await;
                request.link_made().replace_content(content);
            }
            let routed = Routed { now: Now::read_after(request.received()), ..request.routed(false) };
            let exchange = ForwardExchange::new(inner, &routed, &description);
            within(config.forward.first_byte_timeout, decide(exchange, &config)).await
        })
    }

    /// Asks with a call of gRPC that describes the client's request.
    fn ask_over_grpc(&self, routed: &Routed<'_>, content: Option<Rc<ClientLink>>) -> AuthorizationFuture {
        let mut fields = Fields::new();
        fields.push("Host", host_and_port(routed));
        fields.push("Content-Type", "application/grpc");
        fields.push("TE", "trailers");
        let link = ClientLinkCell::default();
        let asked = Routed { link: &link, ..*routed };
        let Some(request) = OwnedRequest::changed(&asked, b"POST", ext_authz::TARGET, &fields) else {
            return rejected(Status::INTERNAL_SERVER_ERROR, "no call describes the request");
        };
        let mut checked = self.checked_request(routed, content.is_some());
        let (inner, config) = (Rc::clone(&self.inner), Arc::clone(&self.config));
        Box::pin(async move {
            let mut start = Vec::new();
            if let Some(link) = content {
                let is_whole;
                (start, is_whole) = start_of_content(&link, config.body_bytes_max as usize).await;
                checked.headers.insert("x-envoy-auth-partial-body".to_owned(), (!is_whole).to_string());
            }
            let now = Now::read_after(request.received());
            let time = std::time::UNIX_EPOCH + Duration::from_micros(now.unix_us);
            request.link_made().replace_content(checked.into_message(&start, time));
            let routed = Routed { now, ..request.routed(false) };
            let exchange = ForwardExchange::new(inner, &routed, &Fields::new());
            within(config.forward.first_byte_timeout, decide_check(exchange)).await
        })
    }

    /// Fields of a request that the server gets.
    fn asked_fields<'a>(
        &'a self,
        routed: &Routed<'a>,
        has_content: bool,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let (asked, bytes) = (&self.config.asked_fields, routed.request.bytes);
        let is_one_of =
            |name: &[u8], names: &[&str]| names.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()));
        let all = routed.request.head.fields.iter().map(move |field| (field.name.of(bytes), field.value.of(bytes)));
        all.filter(move |(name, _)| match is_one_of(name, &OF_CONTENT) {
            true => has_content,
            false => {
                asked.is_empty()
                    || is_one_of(name, &ALWAYS_ASKED)
                    || asked.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
            }
        })
    }

    /// Description of a request for a call of gRPC.
    fn checked_request(&self, routed: &Routed<'_>, has_content: bool) -> CheckedRequest {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let method = text(routed.request.method_name());
        let path = text(&guarded_target(routed.request.target_asked()));
        let (host, scheme) = (text(host_and_port(routed)), routed.scheme());
        let mut headers = BTreeMap::new();
        for (name, value) in [(":method", &method), (":path", &path), (":authority", &host)] {
            headers.insert(name.to_owned(), value.clone());
        }
        headers.insert(":scheme".to_owned(), scheme.to_owned());
        for (name, value) in self.asked_fields(routed, has_content) {
            let lines: &mut String = headers.entry(text(name).to_ascii_lowercase()).or_default();
            if !lines.is_empty() {
                lines.push(',');
            }
            lines.push_str(&text(value));
        }
        let link = routed.link.get();
        CheckedRequest {
            client: match routed.client {
                LogClient::Ip(address) => Some(address),
                LogClient::Unix => None,
            },
            destination: link.and_then(|link| link.destination()),
            principal: routed.tls.and_then(|tls| tls.client_subject.as_deref()).unwrap_or_default().to_owned(),
            method,
            path,
            host,
            scheme,
            protocol: match routed.request.head.version {
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
                Version::Http2 => "HTTP/2",
                Version::Http3 => "HTTP/3",
            },
            size: match link.map_or(BodyFraming::None, |link| link.framing()) {
                BodyFraming::None => Some(0),
                BodyFraming::Length(length) => Some(length),
                _ => None,
            },
            headers,
        }
    }
}

/// Takes the start of a request's content and puts it back. Returns it, and true if it is all.
async fn start_of_content(link: &ClientLink, bytes_max: usize) -> (Vec<u8>, bool) {
    let mut start = Vec::new();
    while start.len() < bytes_max {
        let taken = poll_fn(|task| {
            link.poll_take(task, |_, bytes| {
                let length = bytes.len().min(bytes_max - start.len());
                start.extend_from_slice(&bytes[..length]);
                Poll::Ready(Ok(length))
            })
        });
        // An error of a buffer is one for the handler, too.
        if !matches!(taken.await, Ok(1..)) {
            break;
        }
    }
    let is_whole = match link.framing() {
        BodyFraming::Length(length) => length <= start.len() as u64,
        _ => link.is_at_end(),
    };
    link.put_back(start.clone());
    (start, is_whole)
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
fn description(routed: &Routed<'_>, has_content: bool) -> Fields {
    let mut fields = Fields::new();
    let of_content = OF_CONTENT.iter().filter(|_| !has_content);
    for name in OMITTED.iter().chain(of_content) {
        fields.push(name, "");
    }
    let target = guarded_target(routed.request.target_asked());
    let method = routed.request.method_name();
    fields.push("X-Forwarded-Method", method);
    fields.push("X-Forwarded-Uri", &*target);
    // For oauth2-proxy, which takes the client's address from it.
    let client = match routed.client {
        LogClient::Ip(address) => address.ip().to_canonical().to_string(),
        LogClient::Unix => String::new(),
    };
    fields.push("X-Real-IP", client);
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
    let content = content(std::mem::take(&mut response.body)).await.map(|(content, _)| content);
    match response.status.code() {
        200..=299 => Authorization::Permitted(permission(&response.fields, config)),
        304 => bad_gateway("the authentication server sent 304 to a request without conditions"),
        300..=499 => Authorization::Rejected(rejection(response, content)),
        _ => bad_gateway("the authentication server failed"),
    }
}

/// Decision of a call of gRPC. Without one, the request is rejected.
async fn decide_check(exchange: ForwardExchange) -> Authorization {
    let reject = |status, reason| Authorization::Rejected(BuiltResponse::rejection(status, reason));
    let bad_gateway = |reason| reject(Status::BAD_GATEWAY, reason);
    let Ok(mut response) = exchange.await else { return bad_gateway("the authorization server was not asked") };
    if response.forwarded.is_none() {
        // The server could not be reached, and the log says why.
        let is_late = response.status == Status::GATEWAY_TIMEOUT;
        let status = if is_late { Status::GATEWAY_TIMEOUT } else { Status::BAD_GATEWAY };
        return reject(status, "the authorization server could not be asked");
    }
    if response.status != Status::OK {
        return bad_gateway("the authorization server speaks no gRPC");
    }
    let Some((content, trailers)) = content(std::mem::take(&mut response.body)).await else {
        return bad_gateway("the decision of the authorization server is too long or cut short");
    };
    match ext_authz::decision(&response.fields, &content, trailers.as_deref()) {
        Ok(CheckDecision::Permitted { fields, removed, of_response }) => {
            Authorization::Permitted(Permission { fields, names_user: false, removed, cookies: of_response })
        }
        Ok(CheckDecision::Denied { status, fields, content }) => {
            let mut response = BuiltResponse::rejection(status, "the authorization server denied the request");
            for (name, value) in &fields {
                response.fields.push(name, value);
            }
            if !content.is_empty() {
                response.body = Body::from_bytes(Bytes::from(content));
            }
            Authorization::Rejected(response)
        }
        Err(reason) => bad_gateway(reason),
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
    Permission { fields: config.copies.iter().map(copy).collect(), names_user: true, removed: Vec::new(), cookies }
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

/// Whole content with its trailers; `None` if it is longer than the limit or cut short.
async fn content(body: Body) -> Option<(Bytes, Option<Box<Fields>>)> {
    let mut content = Vec::new();
    for segment in &body.segments {
        let Segment::Bytes(bytes) = segment else { return None };
        content.extend_from_slice(bytes);
    }
    let Some(mut stream) = body.stream else {
        return (content.len() <= CONTENT_BYTES_MAX).then(|| (content.into(), None));
    };
    let mut buffer = vec![0; 8 << 10];
    loop {
        match poll_fn(|task| stream.source.poll_fill(task, &mut buffer)).await {
            Ok(Filled::Content(count)) => content.extend_from_slice(&buffer[..count]),
            Ok(Filled::End(trailers)) => return Some((content.into(), trailers)),
            Err(_) => return None,
        }
        if content.len() > CONTENT_BYTES_MAX {
            return None;
        }
    }
}
