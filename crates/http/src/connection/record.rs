//! Access log and metrics of requests, for connections of all versions.

use std::ops::Range;
use std::rc::Rc;

use wire::http::{Request, RequestTarget, Status, path};

use super::Context;
use crate::config::{LogFilter, unmapped};
use crate::handler::{ClientLink, ClientLinkCell, Forwarding, Now, Routed};
use crate::log::{BotRecord, LogClient, LogRecord, Subject};
use crate::metrics::{BotKind, CacheResult, HandlerKind, Limit, RequestFacts, WorkerMetrics};
use crate::routing::RequestAccount;
use crate::routing::rules::{RoutedFacts, Visit};
use crate::tls::TlsInfo;
use crate::traces::{ClientSpan, ServerSpan, Trace};

/// Logged status of a request whose client disconnected before the response, as in nginx; never sent.
pub(super) const CLIENT_GONE: u16 = 499;

/// Logged status of a request whose connection was closed or kept without a response, as in nginx; never sent.
pub(super) const NO_RESPONSE: u16 = 444;

/// Sender of a request as the connection reports it, and the TLS state.
#[derive(Clone, Copy)]
pub(super) struct ClientPeer<'a> {
    pub(super) client: LogClient,
    pub(super) tls: Option<&'a TlsInfo>,
}

/// Log data of a response, in addition to request and time.
pub(super) struct LoggedResponse<'a> {
    pub(super) link: Option<&'a Rc<ClientLink>>,
    pub(super) handler: HandlerKind,
    /// Word for the tier that had a stored upstream response, as in [`Response::hit`](crate::handler::Response::hit).
    pub(super) hit: &'static str,
    /// Status, and number of bytes of content.
    pub(super) sent: (Status, u64),
    /// True if the content was sent completely.
    pub(super) is_complete: bool,
}

/// Logs and counts a request; `time` is from its arrival to its response.
pub(super) fn record(
    context: &Context,
    peer: ClientPeer<'_>,
    account: &RequestAccount,
    subject: Subject<'_>,
    host: &[u8],
    logged: LoggedResponse<'_>,
    time: Range<Now>,
) {
    let visit = account.visit.as_deref();
    let forwarding = logged.link.map(|link| link.forwarding().borrow());
    let cache_status = match forwarding.as_ref().map_or("", |forwarding| forwarding.cache_status()) {
        "" => logged.hit,
        word => word,
    };
    let (status, content_bytes) = logged.sent;
    let duration_us = time.end.unix_us.saturating_sub(time.start.unix_us);
    if let Some(metrics) = context.metrics() {
        let version = match &subject {
            Subject::Request(request) => Some(request.head.version),
            Subject::Malformed(_) | Subject::Ftp(_) => None,
        };
        let facts = RequestFacts {
            site: account.counted,
            handler: logged.handler,
            version: version.into(),
            status: status.code(),
            content_bytes,
            duration_us,
        };
        count(metrics, &facts, forwarding.as_deref(), cache_status, visit);
    }
    if let Some(trace) = account.trace.as_deref().filter(|trace| trace.is_recorded())
        && let Subject::Request(request) = subject
    {
        let client = visit.map_or(peer.client, Visit::client);
        let seen = LoggedRequest { request, host, client, peer };
        record_spans(trace, &seen, &logged, forwarding.as_deref(), &time);
    }
    let Some(log) = account.log else { return };
    if let Some(filter) = &account.log_filter
        && !is_chosen(filter, context, peer, visit, &subject, host, status)
    {
        return;
    }
    let bot = match context.recorder.borrow().needs(log) {
        Some(needs) if needs.has_bot() => Some(BotTexts::new(context, peer, visit)),
        _ => None,
    };
    context.recorder.borrow_mut().record(&LogRecord {
        log,
        subject,
        client: visit.map_or(peer.client, Visit::client),
        host,
        user: visit.map_or(b"", Visit::user),
        tls: peer.tls.map(TlsInfo::record),
        upstream: forwarding.as_ref().and_then(|forwarding| forwarding.record()),
        cache_status,
        request_id: visit.map_or("", Visit::given_request_id),
        trace: account.trace.as_ref().map(|trace| (trace.trace_id(), trace.span_id())),
        bot: bot.as_ref().map(|texts| texts.record(peer, visit)),
        is_complete: logged.is_complete,
        status,
        content_bytes,
        unix_us: time.start.unix_us,
        duration_us,
    });
}

/// True if a log with this filter has the request. A message that is no request always is: it has nothing to test.
#[cold]
fn is_chosen(
    filter: &LogFilter,
    context: &Context,
    peer: ClientPeer<'_>,
    visit: Option<&Visit>,
    subject: &Subject<'_>,
    host: &[u8],
    status: Status,
) -> bool {
    let Subject::Request(request) = *subject else { return true };
    if let Some(when) = &filter.when {
        let target = RequestTarget::parse(request.target(), request.method()).ok();
        let raw_path = target.as_ref().map_or(&b""[..], |target| target.path);
        let mut buffer = Vec::new();
        let path = path::normalise(raw_path, &mut buffer).unwrap_or(raw_path);
        let tls = peer.tls.map(|tls| Rc::new(tls.clone()));
        let link = ClientLinkCell::default();
        if let Some(report) = visit.and_then(Visit::shared_bot) {
            link.set_bot(Rc::clone(report));
        }
        let generation = context.generation();
        let routed = Routed {
            request,
            path,
            query: target.and_then(|target| target.query),
            host,
            client: peer.client,
            tls: tls.as_ref(),
            proxied: None,
            trace: None,
            link: &link,
            locations: generation.router.locations(),
            has_next: false,
            now: Now::read(),
        };
        let facts = RoutedFacts::new(&routed).with_status(status);
        let facts = visit.map_or(facts, |visit| facts.with_visit(visit));
        // A request whose condition cannot be told is logged.
        if !when.evaluate(&facts).may_be_true() {
            return false;
        }
    }
    filter.sample_millionths.is_none_or(|share| fastrand::u32(..1_000_000) < share)
}

/// Texts about a client's program and place that a log needs.
#[derive(Default)]
struct BotTexts {
    score: String,
    signals: String,
    country: String,
    asn: String,
}

impl BotTexts {
    #[cold]
    fn new(context: &Context, peer: ClientPeer<'_>, visit: Option<&Visit>) -> Self {
        let mut texts = Self::default();
        if let Some(report) = visit.and_then(Visit::bot) {
            (texts.score, texts.signals) = (report.score.to_string(), report.signal_names());
        }
        let generation = context.generation();
        if let Some(locations) = generation.router.locations()
            && let LogClient::Ip(address) = visit.map_or(peer.client, Visit::client)
        {
            let address = unmapped(address.ip());
            (texts.country, texts.asn) = (locations.country(address), locations.asn(address));
        }
        texts
    }

    fn record<'t>(&'t self, peer: ClientPeer<'t>, visit: Option<&'t Visit>) -> BotRecord<'t> {
        let report = visit.and_then(Visit::bot);
        BotRecord {
            class: report.map_or("", |report| report.class.name()),
            score: &self.score,
            name: report.and_then(|report| report.name.as_deref()).unwrap_or_default(),
            signals: &self.signals,
            ja4: peer.tls.map_or("", TlsInfo::ja4),
            http2_fingerprint: peer.tls.map_or("", TlsInfo::http2_fingerprint),
            country: &self.country,
            asn: &self.asn,
        }
    }
}

/// Request with its client.
struct LoggedRequest<'a> {
    request: Request<'a>,
    host: &'a [u8],
    client: LogClient,
    peer: ClientPeer<'a>,
}

/// Records the spans of a request for traces.
fn record_spans(
    trace: &Trace,
    seen: &LoggedRequest<'_>,
    logged: &LoggedResponse<'_>,
    forwarding: Option<&Forwarding>,
    time: &Range<Now>,
) {
    let &LoggedRequest { request, host, client, peer } = seen;
    let (status, content_bytes) = logged.sent;
    let server = ServerSpan {
        request,
        client,
        peer: peer.client,
        host,
        is_tls: peer.tls.is_some(),
        status,
        content_bytes,
        is_complete: logged.is_complete,
        start_unix_us: time.start.unix_us,
        end_unix_us: time.end.unix_us,
    };
    let upstream = forwarding.and_then(|forwarding| Some((forwarding.record()?, forwarding.began_us())));
    let client = upstream.map(|(upstream, start_unix_us)| ClientSpan { request, upstream, start_unix_us });
    trace.record(&server, client.as_ref());
}

/// Counts a request and its outcome.
fn count(
    metrics: &WorkerMetrics,
    facts: &RequestFacts,
    forwarding: Option<&Forwarding>,
    cache_status: &str,
    visit: Option<&Visit>,
) {
    metrics.on_request(facts);
    if let Some(result) = CacheResult::of(cache_status) {
        metrics.on_cache(result);
    }
    let forwarded = forwarding.and_then(Forwarding::facts);
    if let Some(forwarded) = &forwarded {
        metrics.on_forwarded(forwarded);
    }
    if let Some(visit) = visit {
        if let Some(report) = visit.bot() {
            metrics.on_bot(BotKind::ALL[report.class as usize]);
        }
        if let Some(result) = visit.challenge() {
            metrics.on_challenge(result);
        }
    }
    let of_rejection = || Limit::of_rejection(facts.status).filter(|_| forwarded.is_none());
    if let Some(limit) = visit.and_then(Visit::limit).or_else(of_rejection) {
        metrics.on_limit(limit);
    }
}
