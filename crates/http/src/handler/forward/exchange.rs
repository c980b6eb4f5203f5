//! One exchange with a server: from a request to the head of its response.

mod http2;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as Task, Poll};

use wire::cgi::parse_script_head;
use wire::h1::{BodyFraming, MalformedResponse, ResponseHead, parse_response_head};
use wire::http::{Fields, Method, Span, Status};
use wire::proxy_protocol::Endpoints;

use self::http2::PendingH2Request;
pub(super) use self::http2::UpstreamUpload;
use super::content::Upstreaming;
use super::grpc::{grpc_error, is_grpc};
use super::internal_redirect;
use super::peer::{ConnectError, Connected, Connecting, GatewayPeer};
use super::records::Records;
use super::request::{UnversionedHead, forwarded_head};
use super::response::{Received, interim_fields};
use super::upload::{ForwardUpload, UploadCoding};
use super::{ErrorLines, ForwardInner, ProgramLaunch, number_of};
use crate::handler::{BuiltResponse, BuiltResult, ClientGone, ClientLink, Now, Routed};
use crate::log::{LogClient, escaped, event};
use crate::traces::{Trace, trace_id};
use crate::upstream::{
    AcquireError, AcquireOptions, ClientConnectionId, ServerId, StickyField, Tried, UpstreamFailure,
};

/// Log reason for a connection that has ended.
const CLOSED: &str = "closed the connection without a response";

/// Log reason for a deadline that has passed.
const LATE: &str = "sent no response in time";

/// Time for which content waits for the server's 100 Continue before it is sent anyway (RFC 9110, section 10.1.1).
const CONTINUE_TIMEOUT_MS: u64 = 1_000;

/// Most interim responses before a final one. More carry no information and only keep the worker busy.
const INTERIM_RESPONSES_MAX: u32 = 64;

/// Reads in a turn. Useless reads (errors for the log, records without content) must not delay other connections.
const READS_PER_TURN_MAX: u32 = 64;

/// A request to a script or application, encoded for its protocol.
pub struct GatewayRequest {
    /// Bytes sent before the content.
    pub head: Vec<u8>,
    /// Request line for logs.
    pub line: Vec<u8>,
    /// Protocol to speak.
    pub dialect: Dialect,
}

/// Protocol spoken with the server or program.
pub enum Dialect {
    /// HTTP/1.
    Http,
    /// CGI (RFC 3875): plain content, and a response that ends with the connection.
    Script,
    /// CGI in FastCGI records.
    FastCgi {
        /// Destination of the script's error output.
        errors: ErrorLines,
        /// True if the server was asked to keep the connection open.
        is_kept: bool,
    },
    /// CGI, spoken with a program that is started for the request.
    Program(Box<ProgramLaunch>),
}

/// An exchange, as a future that resolves to the response or the outcome of its failure.
pub(super) struct ForwardExchange {
    inner: Rc<ForwardInner>,
    link: Rc<ClientLink>,
    method: Method,
    expects_continue: bool,
    asks_upgrade: bool,
    is_grpc: bool,
    client: LogClient,
    /// Client connection, if the peer speaks for this client alone.
    client_connection: Option<ClientConnectionId>,
    trace: Option<Rc<Trace>>,
    key: Option<u64>,
    /// Server that the client's cookie names.
    sticky: Option<ServerId>,
    /// True if the client uses TLS.
    is_secure: bool,
    /// Names that the upstream may use for itself in URLs, if those are changed.
    own_hosts: Option<Box<[Vec<u8>]>>,
    /// True if the response is for other clients as well.
    is_shared: bool,
    tried: Tried,
    /// Head in no version's form, if only the connection decides between HTTP/1.1 and HTTP/2.
    unversioned: Option<Box<UnversionedHead>>,
    upload: ForwardUpload,
    /// Request bytes sent when the worker last waited for the server.
    sent_bytes: u64,
    interim_responses: u32,
    /// Retries so far, after responses that `retry` names.
    retries: u32,
    /// Time of the current poll; a poll is short enough to read the clock once.
    now: Now,
    /// Start of an incomplete head.
    received: Vec<u8>,
    is_http: bool,
    /// FastCGI records that carry the response, if the server speaks FastCGI.
    records: Option<Box<Records>>,
    /// Program to start, until it is started.
    launch: Option<Box<ProgramLaunch>>,
    state: ForwardState,
}

enum ForwardState {
    /// No connection was requested yet.
    Unconnected,
    Connecting(Connecting),
    Exchanging(GatewayPeer),
    /// Exchanging over HTTP/2.
    Streaming(PendingH2Request),
    /// Waits before a retry.
    Waiting(Pin<Box<tokio::time::Sleep>>),
    /// The future has resolved.
    Done,
}

/// Effect of a peer's bytes.
enum ExchangeProgress {
    /// More bytes are needed.
    Exchanging(GatewayPeer),
    /// The request is sent again.
    Retrying,
    Responded(Box<BuiltResponse>),
}

impl ForwardExchange {
    /// Creates an exchange for this request. Fields in `changes` replace the request's fields of the same names; an
    /// empty one removes them. It must be polled at once, as [`Self::asking`] says.
    #[inline]
    pub(super) fn new(inner: Rc<ForwardInner>, routed: &Routed<'_>, changes: &Fields) -> Self {
        let framing = routed.link.link().framing();
        let fields = std::mem::take(&mut inner.scratch.borrow_mut().fields);
        let head = forwarded_head(routed, framing, &inner.plan.config, &inner.plan.authority, changes, fields);
        let (expects_continue, asks_upgrade) = (head.expects_continue, head.asks_upgrade);
        let (unversioned, head, line) = if inner.destination.may_speak_http2() {
            let head = Box::new(head.into_unversioned());
            let line = head.line.clone();
            (Some(head), Vec::new(), line)
        } else {
            let bytes = head.to_bytes();
            inner.scratch.borrow_mut().fields = head.into_cleared_fields();
            (None, bytes, Vec::new())
        };
        let mut exchange = Self::asking(inner, routed, GatewayRequest { head, line, dialect: Dialect::Http });
        exchange.unversioned = unversioned;
        exchange.expects_continue = expects_continue;
        exchange.upload.awaits_continue = expects_continue;
        exchange.asks_upgrade = asks_upgrade;
        exchange
    }

    /// Creates an exchange for a request that was encoded already. It must be polled at once: the first poll takes its time
    /// from `routed`.
    #[inline]
    pub(super) fn asking(inner: Rc<ForwardInner>, routed: &Routed<'_>, asked: GatewayRequest) -> Self {
        let link = Rc::clone(routed.link.link());
        let (mut is_http, mut records, mut launch) = (false, None, None);
        let coding = match asked.dialect {
            Dialect::Http => {
                is_http = true;
                UploadCoding::of_http(link.framing())
            }
            Dialect::Script => UploadCoding::Plain,
            Dialect::FastCgi { errors, is_kept } => {
                records = Some(Box::new(Records::new(errors, is_kept)));
                UploadCoding::Records
            }
            Dialect::Program(program) => {
                launch = Some(program);
                UploadCoding::Plain
            }
        };
        Self {
            method: routed.request.method(),
            expects_continue: false,
            asks_upgrade: false,
            is_grpc: is_grpc(routed),
            client: routed.client,
            client_connection: inner.destination.client_connection(routed),
            trace: routed.trace.map(Rc::clone),
            key: inner.destination.key(routed),
            sticky: inner.destination.sticky(routed),
            is_secure: inner.destination.is_sticky() && routed.is_secure(),
            own_hosts: inner.plan.own_hosts(routed),
            is_shared: false,
            tried: Tried::default(),
            unversioned: None,
            upload: ForwardUpload::new(asked.head, asked.line, coding, link.framing()),
            is_http,
            records,
            launch,
            sent_bytes: 0,
            interim_responses: 0,
            retries: 0,
            now: routed.now,
            received: Vec::new(),
            state: ForwardState::Unconnected,
            link,
            inner,
        }
    }

    /// Marks the response as one for other clients as well. Without content, it then uses no connection reserved for
    /// this client, on which the server may send what this client provoked.
    pub(super) fn share(&mut self) {
        self.is_shared = true;
        if !self.upload.has_content() {
            self.client_connection = None;
        }
    }

    fn connect(&mut self) {
        let wanted = AcquireOptions {
            key: self.key,
            sticky: self.sticky,
            tried: self.tried,
            client: number_of(self.client),
            client_connection: self.client_connection,
            is_upgrade: self.asks_upgrade,
            endpoints: self.endpoints(),
        };
        let now = self.now;
        // A response for other clients as well does not depend on this request.
        if let Some(time) = self.inner.plan.config.total_timeout.filter(|_| !self.is_shared) {
            self.link.limit_deadlines(now.monotonic_ms + time.as_millis() as u64);
        }
        self.link.set_deadline(None);
        let destination = &self.inner.destination;
        self.link.forwarding().borrow_mut().on_wanted(destination.name(), destination.counted(), now.unix_us);
        let connecting = destination.connect(wanted, self.launch.take(), now.monotonic_ms);
        self.state = ForwardState::Connecting(connecting);
    }

    /// Both ends of the client's connection, if they have addresses.
    fn endpoints(&self) -> Option<Endpoints> {
        let LogClient::Ip(source) = self.client else { return None };
        Some(Endpoints { source, destination: self.link.destination()? })
    }

    fn on_connected(&mut self, peer: GatewayPeer) {
        if !self.may_repeat() && peer.is_stale() {
            peer.fail(UpstreamFailure::Closed, &mut self.tried, self.now.monotonic_ms);
            return self.connect();
        }
        self.await_answer(&peer.shared_name());
        if let Some(head) = &self.unversioned {
            self.upload.set_head(head.to_bytes());
        }
        self.received.clear();
        self.state = ForwardState::Exchanging(peer);
    }

    /// Starts the deadline for this server's response.
    fn await_answer(&self, server: &Rc<str>) {
        let timeout_ms = match self.expects_continue {
            true => CONTINUE_TIMEOUT_MS,
            false => self.inner.plan.config.first_byte_timeout.as_millis() as u64,
        };
        let now = self.now;
        self.link.set_deadline(Some(now.monotonic_ms + timeout_ms));
        self.link.forwarding().borrow_mut().on_connected(server, now.unix_us);
    }

    /// Sends the request and reads the response's head.
    fn poll_exchange(&mut self, mut peer: GatewayPeer, task: &mut Task<'_>) -> Poll<BuiltResult> {
        if self.link.take_late() {
            if !std::mem::take(&mut self.upload.awaits_continue) {
                return Poll::Ready(Ok(self.fail_peer(peer, UpstreamFailure::TimedOut, LATE)));
            }
            self.await_first_byte();
        }
        let inner = Rc::clone(&self.inner);
        for _ in 0..READS_PER_TURN_MAX {
            // A failed send is ignored: the server may have responded before it stopped reading.
            let _ = self.upload.poll_send(&mut peer, &self.link, &self.inner.plan.config.intermediary, task);
            let mut input = inner.lend_buffer();
            let scratch = &mut *inner.scratch.borrow_mut();
            let kept = self.received.len();
            input[..kept].copy_from_slice(&self.received);
            let count = match peer.poll_read(task, &mut input[kept..]) {
                Poll::Ready(count) => count,
                Poll::Pending => {
                    self.state = ForwardState::Exchanging(peer);
                    self.note_progress(self.upload.awaits_continue, self.upload.sent_bytes());
                    return Poll::Pending;
                }
            };
            let Ok(count @ 1..) = count else {
                self.state = ForwardState::Exchanging(peer);
                return self.on_closed(UpstreamFailure::Closed, CLOSED);
            };
            peer = match self.on_bytes(peer, kept, count, (&mut input, &mut scratch.head)) {
                ExchangeProgress::Exchanging(peer) => peer,
                ExchangeProgress::Retrying => return Poll::Pending,
                ExchangeProgress::Responded(response) => return Poll::Ready(Ok(response)),
            };
        }
        self.state = ForwardState::Exchanging(peer);
        task.waker().wake_by_ref();
        Poll::Pending
    }

    /// Parses `input[kept..kept + count]`, which follows the start of a head.
    fn on_bytes(
        &mut self,
        peer: GatewayPeer,
        kept: usize,
        count: usize,
        (input, head): (&mut [u8], &mut ResponseHead),
    ) -> ExchangeProgress {
        let Some(records) = &mut self.records else { return self.on_input(peer, &input[..kept + count], head) };
        match records.unwrap(&mut input[kept..], count) {
            Ok(0) if !records.has_ended() => ExchangeProgress::Exchanging(peer),
            Ok(count) => {
                let is_whole = records.has_ended();
                match self.on_input(peer, &input[..kept + count], head) {
                    ExchangeProgress::Exchanging(peer) if is_whole => {
                        let reason = "ended the response within its head";
                        ExchangeProgress::Responded(self.fail_peer(peer, UpstreamFailure::Faulty, reason))
                    }
                    progress => progress,
                }
            }
            Err(_) if records.is_overloaded() => {
                self.fail_peer(peer, UpstreamFailure::Closed, "is overloaded");
                ExchangeProgress::Responded(self.response(Status::SERVICE_UNAVAILABLE))
            }
            Err(reason) => ExchangeProgress::Responded(self.fail_peer(peer, UpstreamFailure::Malformed, reason)),
        }
    }

    fn is_under_way(&self) -> bool {
        !matches!(self.state, ForwardState::Unconnected | ForwardState::Done)
    }

    /// True if the client has left and the configuration aborts its exchanges.
    fn is_abandoned(&self) -> bool {
        self.link.has_client_ended() && self.inner.plan.config.abort_with_client
    }

    /// Leaves the connection, or the queue for one.
    fn abandon(&mut self) {
        self.link.forwarding().borrow_mut().on_end(self.now.unix_us);
        self.state = ForwardState::Done;
    }

    /// Starts the deadline for the response when the last bytes of the request were sent. It is off while the worker
    /// waits for the client, which has limits of its own.
    fn note_progress(&mut self, awaits_continue: bool, sent_bytes: u64) {
        if awaits_continue {
            return;
        }
        if self.link.wants_content() {
            self.link.set_deadline(None);
        } else if sent_bytes != self.sent_bytes {
            self.await_first_byte();
        }
        self.sent_bytes = sent_bytes;
    }

    fn await_first_byte(&self) {
        let timeout_ms = self.inner.plan.config.first_byte_timeout.as_millis() as u64;
        self.link.set_deadline(Some(self.now.monotonic_ms + timeout_ms));
    }

    /// Parses bytes that begin with a head.
    fn on_input(&mut self, peer: GatewayPeer, input: &[u8], head: &mut ResponseHead) -> ExchangeProgress {
        let mut at = 0;
        loop {
            let bytes = &input[at..];
            let parsed = match self.is_http {
                true => parse_response_head(bytes, head, &self.inner.plan.head_limits)
                    .map(|found| found.map(|bytes| (bytes, None))),
                false => self.parse_script_head(bytes, head),
            };
            let (head_bytes, local_location) = match parsed {
                Ok(Some(found)) => found,
                Ok(None) => {
                    self.received = bytes.to_vec();
                    return ExchangeProgress::Exchanging(peer);
                }
                Err(malformed) => {
                    let failure = failure_of(bytes, self.is_http);
                    return ExchangeProgress::Responded(self.fail_peer(peer, failure, malformed.0));
                }
            };
            if self.begin_retry(head.status) {
                return ExchangeProgress::Retrying;
            }
            if head.status.code() >= 200 || head.status == Status::SWITCHING_PROTOCOLS {
                let received = Received { head, bytes, head_bytes, local_location };
                return ExchangeProgress::Responded(self.on_response(peer, &received));
            }
            self.interim_responses += 1;
            if self.interim_responses > INTERIM_RESPONSES_MAX {
                let reason = "sent too many interim responses";
                return ExchangeProgress::Responded(self.fail_peer(peer, UpstreamFailure::Faulty, reason));
            }
            if head.status == Status::CONTINUE {
                // The client gets its own 100 Continue when its content is read.
                self.upload.awaits_continue = false;
                self.await_first_byte();
            } else {
                let received = Received { head, bytes, head_bytes, local_location: None };
                self.link.send_interim(head.status, interim_fields(&received));
            }
            at += head_bytes;
            if at == input.len() {
                self.received.clear();
                return ExchangeProgress::Exchanging(peer);
            }
        }
    }

    /// Parses a script's head; returns its length, and the local path it redirects to, if any.
    fn parse_script_head(
        &self,
        bytes: &[u8],
        head: &mut ResponseHead,
    ) -> Result<Option<(usize, Option<Span>)>, MalformedResponse> {
        let found = parse_script_head(bytes, head, &self.inner.plan.head_limits)?;
        if head.status.code() < 200 && found.is_some() {
            // Only a status line could announce one.
            return Err(MalformedResponse("interim response from a script"));
        }
        Ok(found.map(|found| (found.bytes, found.local_location)))
    }

    fn on_response(&mut self, peer: GatewayPeer, received: &Received<'_>) -> Box<BuiltResponse> {
        let upload = std::mem::replace(
            &mut self.upload,
            ForwardUpload::new(Vec::new(), Vec::new(), UploadCoding::Plain, BodyFraming::None),
        );
        self.link.forget_consumed();
        let upstreaming = Upstreaming {
            peer,
            upload,
            link: Rc::clone(&self.link),
            client: self.client,
            inner: Rc::clone(&self.inner),
            records: self.records.take(),
            is_http: self.is_http,
            may_have_content: false,
            is_grpc: self.is_grpc,
            trailer_limits: self.inner.plan.head_limits.head_bytes_max,
            now: self.now,
        };
        self.link.forwarding().borrow_mut().on_response(received.head.status, self.now.unix_us);
        let sticky_field = upstreaming.peer.sticky_field(self.sticky, self.is_secure);
        match received.into_response(self.method, self.asks_upgrade, upstreaming) {
            Ok(mut response) => {
                self.complete(&mut response, sticky_field);
                response
            }
            Err((peer, reason)) => self.fail_peer(peer, UpstreamFailure::Faulty, reason),
        }
    }

    /// Changes a server's response as the configuration says.
    fn complete(&self, response: &mut BuiltResponse, sticky_field: Option<StickyField>) {
        response.compression = self.inner.plan.compression;
        internal_redirect::strip(&mut response.fields, self.inner.plan.config.cache.is_some());
        if let Some(rewriter) = &self.inner.plan.rewriter {
            let hosts: Vec<&[u8]> = self.own_hosts.iter().flatten().map(Vec::as_slice).collect();
            rewriter.apply(response, &hosts);
        }
        let Some(field) = sticky_field else { return };
        match (&mut response.forwarded, self.is_shared) {
            // The cache must not store it.
            (Some(forwarded), true) => forwarded.own_field = Some(field),
            _ => _ = response.fields.push(field.name, field.value),
        }
    }

    /// True if the request can be sent twice: its method is idempotent (RFC 9110, section 9.2.2), and all of its
    /// content is still there.
    fn may_repeat(&self) -> bool {
        is_idempotent(self.method) && self.link.can_rewind()
    }

    /// Starts a retry if this status calls for one; returns true if so. The connection is closed with its response.
    pub(super) fn begin_retry(&mut self, status: Status) -> bool {
        let Some(retry) = &self.inner.plan.config.retry else { return false };
        let is_wanted = retry.statuses.contains(&status) && self.retries < retry.attempts_max;
        if !is_wanted || self.interim_responses > 0 || !self.may_repeat() {
            return false;
        }
        let backoff = retry.backoff;
        self.retries += 1;
        self.link.set_deadline(None);
        self.link.rewind();
        self.upload.restart(self.link.framing(), self.expects_continue);
        self.received.clear();
        self.state = match backoff.is_zero() {
            true => ForwardState::Unconnected,
            false => ForwardState::Waiting(Box::pin(tokio::time::sleep(backoff))),
        };
        true
    }

    /// Handles an end of the exchange before a whole head: by the end of the connection, or as `what` says.
    fn on_closed(&mut self, failure: UpstreamFailure, what: &str) -> Poll<BuiltResult> {
        let is_repeatable = match failure {
            UpstreamFailure::Rejected => self.link.can_rewind(),
            _ => self.may_repeat(),
        };
        // A partial head was not passed on, but interim responses were.
        let may_repeat = self.interim_responses == 0 && is_repeatable;
        let tries_before = self.tried;
        let is_expected = match &self.state {
            ForwardState::Exchanging(peer) => peer.is_reused(),
            ForwardState::Streaming(streaming) => streaming.lease.is_reused() || failure == UpstreamFailure::Rejected,
            _ => false,
        };
        if !may_repeat || !is_expected {
            let is_program = matches!(&self.state, ForwardState::Exchanging(GatewayPeer::Program(_)));
            self.warn(if is_program { "ended without a response" } else { what });
        }
        let outcome = self.abort(failure);
        let tries_max = self.inner.destination.tries_max();
        if !may_repeat || self.tried == tries_before || self.tried.count() >= tries_max {
            return Poll::Ready(Ok(outcome));
        }
        self.link.rewind();
        self.upload.restart(self.link.framing(), self.expects_continue);
        if let Some(records) = &mut self.records {
            records.restart();
        }
        self.connect();
        Poll::Pending
    }

    /// Gives the peer up for this reason, logs it, and returns the response.
    fn fail_peer(&mut self, peer: GatewayPeer, failure: UpstreamFailure, what: &str) -> Box<BuiltResponse> {
        self.state = ForwardState::Exchanging(peer);
        self.fail(failure, what)
    }

    /// Gives the connection up for this reason, logs it, and returns the response.
    fn fail(&mut self, failure: UpstreamFailure, what: &str) -> Box<BuiltResponse> {
        self.warn(what);
        self.abort(failure)
    }

    fn abort(&mut self, failure: UpstreamFailure) -> Box<BuiltResponse> {
        let now = self.now;
        match std::mem::replace(&mut self.state, ForwardState::Done) {
            ForwardState::Exchanging(peer) => peer.fail(failure, &mut self.tried, now.monotonic_ms),
            ForwardState::Streaming(streaming) => streaming.lease.fail(failure, &mut self.tried, now.monotonic_ms),
            ForwardState::Unconnected | ForwardState::Connecting(_) | ForwardState::Waiting(_) | ForwardState::Done => {
            }
        }
        self.link.forwarding().borrow_mut().on_end(now.unix_us);
        self.response(if failure == UpstreamFailure::TimedOut { Status::GATEWAY_TIMEOUT } else { Status::BAD_GATEWAY })
    }

    /// Logs which server failed how, and for which request.
    fn warn(&self, what: &str) {
        let name = match &self.state {
            ForwardState::Exchanging(peer) => peer.name(),
            ForwardState::Streaming(streaming) => streaming.lease.server_name(),
            ForwardState::Unconnected | ForwardState::Connecting(_) | ForwardState::Waiting(_) | ForwardState::Done => {
                return;
            }
        };
        let request = escaped(self.upload.request_line());
        let (client, trace) = (self.client, trace_id(self.trace.as_ref()));
        let values: &[(&str, &dyn fmt::Display)] =
            &[("server", &name), ("reason", &what), ("request", &request), ("client", &client), ("trace", &trace)];
        self.inner.plan.log.warn_of(client, event("upstream request failed", values), "");
    }

    /// Builds an error response in the client's protocol: HTTP or gRPC.
    fn response(&self, status: Status) -> Box<BuiltResponse> {
        if self.is_grpc { grpc_error(status) } else { BuiltResponse::new(status) }
    }

    fn on_not_connected(&mut self, error: &ConnectError) -> Box<BuiltResponse> {
        self.state = ForwardState::Done;
        self.link.forwarding().borrow_mut().on_end(self.now.unix_us);
        let is_left_without_server =
            matches!(error, ConnectError::Server(failure) if failure.error == AcquireError::NoServer);
        if is_left_without_server && self.tried.count() > 0 {
            // A server was tried; its failure is the cause and was logged.
            return self.response(Status::BAD_GATEWAY);
        }
        let destination = &self.inner.destination;
        let request = escaped(self.upload.request_line());
        let (upstream, client, trace) = (destination.name(), self.client, trace_id(self.trace.as_ref()));
        // An upstream without a block has the name of its one server.
        let server = error.server().filter(|server| **server != **upstream).unwrap_or_default();
        let values: &[(&str, &dyn fmt::Display)] = &[
            ("upstream", &upstream),
            ("server", &server),
            ("reason", error),
            ("request", &request),
            ("client", &client),
            ("trace", &trace),
        ];
        self.inner.plan.log.warn_of(client, event("upstream request failed", values), error.help());
        let mut response = self.response(error.status());
        if let Some(seconds) = destination.retry_after_seconds(error) {
            response.fields.push("Retry-After", seconds.to_string());
        }
        response
    }
}

/// Classifies a malformed or too large head. If it begins like one, or is a script's, only this response is faulty.
fn failure_of(head: &[u8], is_http: bool) -> UpstreamFailure {
    if is_http && !head.starts_with(b"HTTP/") { UpstreamFailure::Malformed } else { UpstreamFailure::Faulty }
}

/// True for idempotent methods (RFC 9110, section 9.2.2). Unknown methods count as not idempotent.
fn is_idempotent(method: Method) -> bool {
    matches!(method, Method::Get | Method::Head | Method::Options | Method::Put | Method::Delete)
}

impl Future for ForwardExchange {
    type Output = BuiltResult;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<BuiltResult> {
        let this = self.get_mut();
        if !matches!(this.state, ForwardState::Unconnected) {
            this.now = Now::read();
        }
        loop {
            if this.is_abandoned() && this.is_under_way() {
                this.abandon();
                return Poll::Ready(Err(ClientGone));
            }
            if this.link.is_over_limit(this.now.monotonic_ms) && this.is_under_way() {
                this.link.remove_deadlines();
                return Poll::Ready(Ok(this.fail(UpstreamFailure::TimedOut, "was not done within `total-timeout`")));
            }
            match std::mem::replace(&mut this.state, ForwardState::Done) {
                ForwardState::Unconnected => this.connect(),
                ForwardState::Connecting(mut connecting) => match connecting.poll_connect(task) {
                    Poll::Ready(Ok(Connected::Peer(peer))) => this.on_connected(peer),
                    Poll::Ready(Ok(Connected::Stream(lease))) => this.on_stream(lease),
                    Poll::Ready(Err(error)) => return Poll::Ready(Ok(this.on_not_connected(&error))),
                    Poll::Pending => {
                        this.state = ForwardState::Connecting(connecting);
                        return Poll::Pending;
                    }
                },
                ForwardState::Exchanging(peer) => {
                    let polled = this.poll_exchange(peer, task);
                    if polled.is_ready() || matches!(this.state, ForwardState::Exchanging(_)) {
                        return polled;
                    }
                }
                ForwardState::Streaming(streaming) => {
                    let polled = this.poll_stream(streaming, task);
                    if polled.is_ready() || matches!(this.state, ForwardState::Streaming(_)) {
                        return polled;
                    }
                }
                ForwardState::Waiting(mut sleep) => {
                    if sleep.as_mut().poll(task).is_pending() {
                        this.state = ForwardState::Waiting(sleep);
                        return Poll::Pending;
                    }
                    this.connect();
                }
                // Polled again after it was ready, which no caller should do.
                ForwardState::Done => return Poll::Pending,
            }
        }
    }
}
