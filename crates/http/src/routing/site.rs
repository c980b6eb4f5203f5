use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use wire::http::{Method, Request, Status};

use super::path_index::PathIndex;
use super::rules::fits;
use super::rules::{PasswordGate, RewrittenTarget, Rules, redirected_head};
use super::{RequestAccount, SiteSetup};
use crate::config::{LogFilter, PathPattern, RouteConfig, RuleConditions};
use crate::handler::gateway::script_paths;
use crate::handler::{
    Body, BuiltResponse, DefaultPages, Encoders, ErrorPages, FtpFiles, Handler, HandlerOutcome, OutcomeFuture,
    OwnedRequest, PageFormat, Response, ResponseEnding, ResponsePace, Routed, add_error_page, error_response,
    not_found,
};
use crate::known_clients::BanVerdict;
use crate::log::{LogId, ServerLog, Suppression, escaped, event};
use crate::metrics::{HandlerKind, NameSlot};
use crate::traces::trace_id;

/// Site with its routes and error pages.
pub(super) struct Site {
    routes: Vec<Route>,
    /// Paths of the routes.
    paths: PathIndex,
    /// Set if the site requires client certificates: identifier of the TLS settings that its connections must have
    /// used.
    required_tls: Option<Option<u32>>,
    error_pages: ErrorPages,
    /// Pages of the worker for errors without one in `error_pages`.
    default_pages: Rc<DefaultPages>,
    /// Encoders of the worker.
    pub(super) encoders: Rc<Encoders>,
    /// Maximum rates of responses.
    pub(super) pace: Option<Rc<ResponsePace>>,
    pub(super) body_bytes_max: u64,
    pub(super) rules: Option<Rules>,
    log: Option<LogId>,
    /// Choice of the requests that the log has. Each worker has its own, because regular expressions need scratch memory.
    log_filter: Option<Rc<LogFilter>>,
    /// Patterns of paths whose requests are not logged.
    unlogged: Vec<PathPattern>,
    /// Patterns of paths that are scripts.
    scripts: Vec<PathPattern>,
    counted: NameSlot,
    server_log: ServerLog,
    /// Rejections that the server log would suppress.
    suppression: Suppression,
    /// Files over FTP; `None` for a site of HTTP.
    pub(super) ftp: Option<Rc<FtpFiles>>,
    /// Passwords of users of FTP.
    pub(super) gate: Option<PasswordGate>,
}

struct Route {
    /// Conditions in addition to the path; `None` if there are none.
    conditions: Option<Box<RuleConditions>>,
    handler: Handler,
}

impl Route {
    #[inline]
    fn has(&self, routed: &Routed<'_>) -> bool {
        self.conditions.as_ref().is_none_or(|conditions| fits(conditions, routed))
    }
}

/// Methods that the server as a whole supports (`OPTIONS *`).
const ALLOW: &str = "GET, HEAD, OPTIONS";

impl Site {
    pub(super) fn new(setup: SiteSetup<'_>) -> Self {
        let patterns = setup.config.routes.iter().take(setup.handlers.len()).map(|route| route.path.clone());
        let paths = PathIndex::new(patterns.collect());
        let route = |(config, handler): (&RouteConfig, Handler)| Route {
            conditions: (!config.conditions.is_of_path_only()).then(|| Box::new(config.conditions.clone())),
            handler,
        };
        Self {
            routes: setup.config.routes.iter().zip(setup.handlers).map(route).collect(),
            paths,
            required_tls: setup.config.tls.client_certificates.as_ref().map(|_| setup.tls),
            error_pages: setup.error_pages,
            default_pages: setup.default_pages,
            encoders: setup.encoders,
            pace: setup.pace.map(Rc::new),
            body_bytes_max: setup.config.body_bytes_max.answered_here(),
            rules: setup.rules,
            log: setup.log,
            log_filter: setup.config.log_filter.as_ref().map(|filter| Rc::new(LogFilter::clone(filter))),
            unlogged: setup.config.unlogged.clone(),
            scripts: setup.config.script_patterns().cloned().collect(),
            server_log: setup.server_log,
            suppression: Suppression::default(),
            counted: setup.counted,
            ftp: setup.ftp.map(Rc::new),
            gate: setup.gate,
        }
    }

    /// Returns true if the request's connection used another site's client certificate settings, or none.
    pub(super) fn is_misdirected(&self, routed: &Routed<'_>) -> bool {
        self.required_tls.is_some_and(|id| routed.tls.is_none_or(|tls| Some(tls.site) != id))
    }

    /// Log and metrics of a request for this path before rules have seen it.
    pub(super) fn account_of(&self, path: &[u8]) -> RequestAccount {
        if self.unlogged.is_empty() {
            return self.account();
        }
        let is_skipped = |path: &[u8]| self.unlogged.iter().any(|unlogged| unlogged.matches(path));
        let mut scripts = self.scripts.iter().flat_map(|pattern| script_paths(pattern, path));
        // Excluded from the log only if the path and each script in it are excluded. Otherwise a client could hide
        // requests by text after a script's path.
        let is_logged = !is_skipped(path) || !scripts.all(is_skipped);
        RequestAccount { log: self.log.filter(|_| is_logged), ..self.account() }
    }

    /// Log and metrics of a message without a path.
    pub(super) fn account(&self) -> RequestAccount {
        let log_filter = self.log_filter.as_ref().map(Rc::clone);
        RequestAccount { log: self.log, log_filter, counted: self.counted, visit: None, trace: None }
    }

    /// Asks the routes from `next_route` on, until a handler does not decline. Sets `next_route` to the one after that
    /// handler. If all decline, the outcome is [`HandlerOutcome::Decline`]. `has_next` of the request is true if its
    /// rules have another way to serve it.
    #[inline]
    pub(super) fn ask_routes(&self, routed: &Routed<'_>, next_route: &mut usize) -> HandlerOutcome {
        while let Some(index) = self.next_route(routed, *next_route) {
            if routed.link.is_redirected() && self.ends_redirect(*next_route, index) {
                break;
            }
            *next_route = index + 1;
            let has_next = routed.has_next || self.next_route(routed, index + 1).is_some();
            let handler = &self.routes[index].handler;
            routed.link.set_handler(handler.kind());
            let outcome = match has_next == routed.has_next {
                true => handler.handle(routed),
                false => handler.handle(&Routed { has_next, ..*routed }),
            };
            match outcome {
                HandlerOutcome::Decline => {}
                HandlerOutcome::Reject(rejection) => routed.link.add_rejection(rejection),
                outcome => return outcome,
            }
        }
        routed.link.set_handler(HandlerKind::None);
        HandlerOutcome::Decline
    }

    /// True if files were looked for in the place that an upstream has named, and the next handler has none: it must not
    /// be asked, or the upstream would get its own redirect.
    #[cold]
    fn ends_redirect(&self, from: usize, next: usize) -> bool {
        let is_files = |index: usize| self.routes[index].handler.kind() == HandlerKind::Files;
        from.checked_sub(1).is_some_and(is_files) && !is_files(next)
    }

    /// First route from `from` on that a request fits.
    pub(super) fn next_route(&self, routed: &Routed<'_>, from: usize) -> Option<usize> {
        self.paths.find(routed.path, from, |index| self.routes[index].has(routed))
    }

    /// Number of routes.
    pub(super) fn route_count(&self) -> usize {
        self.routes.len()
    }

    /// Conditions of a route, if its pattern matches the path.
    pub(super) fn conditions_of(&self, route: usize, path: &[u8]) -> Option<&RuleConditions> {
        static NONE: RuleConditions =
            RuleConditions { methods: None, query: None, field: None, when: None, is_missing: false };
        let conditions = self.routes[route].conditions.as_deref().unwrap_or(&NONE);
        self.paths.find(path, route, |index| index == route).map(|_| conditions)
    }

    /// Adds the error page of the operator, or the server's own, to errors without content. Returns the page if it must
    /// be waited for.
    #[inline]
    pub(super) fn finish(&self, response: &mut Response, routed: &Routed<'_>) -> Option<PageWait> {
        if is_too_large(response, routed) {
            *response = Response::Built(BuiltResponse::new(Status::CONTENT_TOO_LARGE));
        }
        match response {
            Response::Built(built) if built.forwarded.is_none() => self.finish_built(response, routed),
            _ => None,
        }
    }

    fn finish_built(&self, response: &mut Response, routed: &Routed<'_>) -> Option<PageWait> {
        let Response::Built(built) = response else { return None };
        if !built.reason.is_empty() {
            self.tell(built.status, built.reason, routed);
        }
        if built.ending != ResponseEnding::Normal {
            return None;
        }
        if built.status == Status::METHOD_NOT_ALLOWED && routed.request.method() == Method::Other {
            // A method that this server does not know gets 501, because 405 is about a single resource (RFC 9110,
            // section 15.6.2).
            built.status = Status::NOT_IMPLEMENTED;
        }
        if built.status.code() < 400 || !built.body.is_empty() {
            return None;
        }
        let format = PageFormat::wanted_by(&routed.request);
        let Some(page) = self.error_pages.find(built.status) else {
            match self.default_pages.get(built.status, format).filter(|_| built.fields.is_empty()) {
                Some(stored) => *response = stored,
                None => add_default_page(built, format),
            }
            return None;
        };
        match self.error_pages.get(page, routed.host, routed.now) {
            HandlerOutcome::Wait(outcome) => Some(PageWait { page, outcome, format }),
            outcome => {
                self.fill(page, outcome, built, format);
                None
            }
        }
    }

    /// Rejects a request as a bot's, with the error page of the operator or a short one.
    pub(super) fn reject_bot(&self, reason: &'static str, routed: &Routed<'_>) -> Response {
        if self.error_pages.find(Status::FORBIDDEN).is_some() {
            // Its page is added, and its reason told, when the response is finished.
            return Response::Built(BuiltResponse::rejection(Status::FORBIDDEN, reason));
        }
        self.tell(Status::FORBIDDEN, reason, routed);
        self.default_pages.rejection(PageFormat::wanted_by(&routed.request))
    }

    /// Waits for an error page, and adds it.
    pub(super) async fn fill_late(&self, response: &mut Response, wait: PageWait) {
        let PageWait { page, outcome, format } = wait;
        let outcome = outcome.await;
        if let Response::Built(response) = response {
            self.fill(page, outcome, response, format);
        }
    }

    fn fill<W>(&self, page: usize, outcome: HandlerOutcome<W>, response: &mut BuiltResponse, format: PageFormat) {
        if !self.error_pages.fill(page, outcome, response) {
            add_default_page(response, format);
        }
    }

    /// Logs the reason for which a request was rejected.
    fn tell(&self, status: Status, reason: &str, routed: &Routed<'_>) {
        let client = routed.client;
        if self.suppression.takes(client, routed.now.monotonic_ms) {
            return;
        }
        let (host, target) = (escaped(routed.host), escaped(routed.request.target()));
        let (status, trace) = (status.code(), trace_id(routed.trace));
        let what = if status >= 500 { "request failed" } else { "request rejected" };
        let values: &[(&str, &dyn fmt::Display)] = &[
            ("status", &status),
            ("client", &client),
            ("host", &host),
            ("target", &target),
            ("reason", &reason),
            ("trace", &trace),
        ];
        self.server_log.notice_for(&self.suppression, client, routed.now.monotonic_ms, event(what, values));
    }
}

/// Makes the request for a script's local redirect, with the same link to its client.
pub(super) fn redirected(request: &OwnedRequest, target: &RewrittenTarget) -> OwnedRequest {
    let routed = request.routed(false);
    let (head, bytes) = redirected_head(&routed.request, target, Vec::new());
    let seen = Request { head: &head, bytes: &bytes };
    OwnedRequest::new(&Routed { request: seen, path: &target.path, query: target.query.as_deref(), ..routed })
}

/// Returns true if the request has more content than the site accepts. Rejections by rules for other reasons keep their
/// status.
fn is_too_large(response: &Response, routed: &Routed<'_>) -> bool {
    if !routed.link.get().is_some_and(|link| link.is_too_large()) {
        return false;
    }
    let status = match response {
        Response::Built(response) => response.status,
        Response::Cached { object, .. } if object.object.is_of_server() => response.status(),
        Response::Cached { .. } | Response::Changed(_) => return true,
    };
    status.code() < 400 || matches!(status, Status::NOT_FOUND | Status::METHOD_NOT_ALLOWED)
}

fn add_default_page(response: &mut BuiltResponse, format: PageFormat) {
    add_error_page(response, format);
    response.fields.push("Vary", "Accept");
}

/// Error page that a response waits for.
pub(super) struct PageWait {
    page: usize,
    outcome: OutcomeFuture,
    format: PageFormat,
}

/// Makes the response if all handlers decline.
pub(super) fn declined_by_all(routed: &Routed<'_>) -> Response {
    let mut response = match (routed.path, routed.request.method()) {
        (b"*", _) => BuiltResponse::new(Status::NO_CONTENT),
        (_, Method::Connect) => BuiltResponse::new(Status::METHOD_NOT_ALLOWED),
        (_, Method::Other) => BuiltResponse::new(Status::NOT_IMPLEMENTED),
        _ => return not_found(routed),
    };
    if matches!(response.status, Status::NO_CONTENT | Status::METHOD_NOT_ALLOWED) {
        response.fields.push("Allow", ALLOW);
    }
    Response::Built(response)
}

/// Makes the response to a request whose connection is not for this site (RFC 9110, section 15.5.20).
pub(super) fn misdirected(routed: &Routed<'_>) -> Response {
    Response::Built(error_response(Status::MISDIRECTED_REQUEST, PageFormat::wanted_by(&routed.request)))
}

/// Makes the response to an ACME challenge (RFC 8555, section 8.3).
pub(super) fn validation(content: Bytes) -> Response {
    let mut response = BuiltResponse::new(Status::OK);
    response.fields.push("Content-Type", "application/octet-stream");
    response.body = Body::from_bytes(content);
    Response::Built(response)
}

/// Makes the response to a banned client. The connection of a proxy is kept, because it has requests of other clients.
pub(super) fn banned(verdict: BanVerdict, routed: &Routed<'_>) -> Response {
    let status = match verdict {
        BanVerdict::Limit(_) => Status::TOO_MANY_REQUESTS,
        BanVerdict::Reject | BanVerdict::Close | BanVerdict::Tarpit => Status::FORBIDDEN,
    };
    let ending = match verdict {
        BanVerdict::Close if routed.proxied.is_none() => ResponseEnding::Close,
        BanVerdict::Tarpit if routed.proxied.is_none() => ResponseEnding::Tarpit,
        _ => ResponseEnding::Normal,
    };
    if ending != ResponseEnding::Normal {
        return Response::Built(Box::new(BuiltResponse { ending, ..*BuiltResponse::new(status) }));
    }
    let mut response = error_response(status, PageFormat::wanted_by(&routed.request));
    if let BanVerdict::Limit(wait_s) = verdict {
        response.fields.push("Retry-After", wait_s.max(1).to_string());
    }
    Response::Built(response)
}

/// Makes the response of a listener without sites.
pub(super) fn no_site(routed: &Routed<'_>) -> Response {
    Response::Built(error_response(Status::NOT_FOUND, PageFormat::wanted_by(&routed.request)))
}
