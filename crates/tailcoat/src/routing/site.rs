use std::fmt;
use std::future::ready;
use std::rc::Rc;

use bytes::Bytes;
use wire::http::{Method, Request, Status};

use super::filters::Filters;
use super::local_redirects::LocalRedirects;
use super::rules::{RewrittenTarget, Rules, redirected_head};
use super::{RequestAccount, ResponseFuture, SiteResponse, SiteSetup};
use crate::config::PathPattern;
use crate::handler::gateway::script_paths;
use crate::handler::{
    Body, BuiltResponse, ErrorPages, FtpFiles, Handler, HandlerOutcome, OutcomeFuture, OwnedRequest, PageFormat,
    Response, Routed, add_error_page, error_response, not_found,
};
use crate::log::{LogId, ServerLog, escaped, event};
use crate::metrics::{HandlerKind, NameSlot};
use crate::traces::trace_id;

/// Site with its routes and error pages.
pub(super) struct Site {
    routes: Vec<Route>,
    /// Set if the site requires client certificates: identifier of the TLS settings that its connections must have
    /// used.
    required_tls: Option<Option<u32>>,
    error_pages: ErrorPages,
    body_bytes_max: u64,
    pub(super) rules: Option<Rules>,
    log: Option<LogId>,
    /// Patterns of paths whose requests are not logged.
    unlogged: Vec<PathPattern>,
    /// Patterns of paths that are scripts.
    scripts: Vec<PathPattern>,
    counted: NameSlot,
    server_log: ServerLog,
    /// Files over FTP; `None` for a site of HTTP.
    pub(super) ftp: Option<Rc<FtpFiles>>,
}

struct Route {
    path: PathPattern,
    handler: Handler,
}

/// Methods that the server as a whole supports (`OPTIONS *`).
const ALLOW: &str = "GET, HEAD, OPTIONS";

impl Site {
    pub(super) fn new(setup: SiteSetup<'_>) -> Self {
        let patterns = setup.config.routes.iter().map(|route| route.path.clone());
        Self {
            routes: patterns.zip(setup.handlers).map(|(path, handler)| Route { path, handler }).collect(),
            required_tls: setup.config.tls.client_certificates.as_ref().map(|_| setup.tls),
            error_pages: setup.error_pages,
            body_bytes_max: setup.config.body_bytes_max.answered_here(),
            rules: setup.rules,
            log: setup.log,
            unlogged: setup.config.unlogged.clone(),
            scripts: setup.config.script_patterns().cloned().collect(),
            server_log: setup.server_log,
            counted: setup.counted,
            ftp: setup.ftp.map(Rc::new),
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
        RequestAccount { log: self.log, counted: self.counted, visit: None, trace: None }
    }

    /// Applies the rules, if there are any, and asks the handlers in turn.
    pub(super) fn answer(self: &Rc<Self>, routed: &Routed<'_>) -> SiteResponse {
        if let Some(link) = routed.link.get() {
            link.set_body_bytes_max(self.body_bytes_max);
        }
        if let Some(rules) = &self.rules {
            return self.answer_by_rules(rules, routed);
        }
        let account = self.account_of(routed.path);
        let finished = match self.ask(routed, 0) {
            RouteOutcome::Answered(response) => self.finish(response, routed),
            // Sites with handlers that return this have rules. If rules were missing, the source of a program must
            // still not be sent.
            RouteOutcome::Declined | RouteOutcome::Elsewhere(_) => self.finish(declined_by_all(routed), routed),
            RouteOutcome::Wait(future, next) => {
                let request = Rc::new(OwnedRequest::new(routed));
                let response = Rc::clone(self).wait(future, Rc::clone(&request), next);
                return SiteResponse::Wait(Box::pin(response), request, account);
            }
        };
        match finished {
            SiteOutcome::Ready(response) => SiteResponse::Ready(response, account),
            SiteOutcome::Wait(response) => SiteResponse::Wait(response, Rc::new(OwnedRequest::new(routed)), account),
        }
    }

    /// Asks the handlers from this route on, until one does not decline. `has_next` is true if the caller has another
    /// way to serve the request.
    pub(super) fn ask(&self, routed: &Routed<'_>, mut from: usize) -> RouteOutcome {
        while let Some(index) = self.next_route(routed.path, from) {
            let has_next = routed.has_next || self.next_route(routed.path, index + 1).is_some();
            let handler = &self.routes[index].handler;
            routed.link.set_handler(handler.kind());
            let outcome = match has_next == routed.has_next {
                true => handler.handle(routed),
                false => handler.handle(&Routed { has_next, ..*routed }),
            };
            match outcome {
                HandlerOutcome::Ready(response) => return RouteOutcome::Answered(response),
                HandlerOutcome::Wait(future) => return RouteOutcome::Wait(future, index + 1),
                HandlerOutcome::Decline => from = index + 1,
                HandlerOutcome::Reject(rejection) => {
                    routed.link.add_rejection(rejection);
                    from = index + 1;
                }
                HandlerOutcome::Elsewhere(path) => return RouteOutcome::Elsewhere(path),
                // The task that waits for handlers processes the outcome.
                passed @ HandlerOutcome::Pass(_) => return RouteOutcome::Wait(Box::pin(ready(passed)), index + 1),
            }
        }
        routed.link.set_handler(HandlerKind::None);
        RouteOutcome::Declined
    }

    fn next_route(&self, path: &[u8], from: usize) -> Option<usize> {
        (from..self.routes.len()).find(|&index| self.routes[index].path.matches(path))
    }

    async fn wait(
        self: Rc<Self>,
        mut future: OutcomeFuture,
        mut request: Rc<OwnedRequest>,
        mut next: usize,
    ) -> Response {
        let mut redirects = LocalRedirects::default();
        let asked_for = Rc::clone(&request);
        let mut filters = Filters::default();
        loop {
            let mut asked = match future.await {
                HandlerOutcome::Ready(response) => RouteOutcome::Answered(response),
                HandlerOutcome::Pass(passed) => {
                    filters.push(passed.filter);
                    request = passed.request.map_or(request, |changed| Rc::new(*changed));
                    self.ask(&request.routed(false), next)
                }
                HandlerOutcome::Wait(again) => {
                    future = again;
                    continue;
                }
                HandlerOutcome::Decline => self.ask(&request.routed(false), next),
                HandlerOutcome::Reject(rejection) => {
                    request.routed(false).link.add_rejection(rejection);
                    self.ask(&request.routed(false), next)
                }
                HandlerOutcome::Elsewhere(path) => RouteOutcome::Elsewhere(path),
            };
            if let RouteOutcome::Answered(response) = &asked
                && let Some(target) = redirects.next(response)
            {
                asked = match target {
                    Ok(target) => {
                        request = Rc::new(redirected(&request, &target));
                        self.ask(&request.routed(false), 0)
                    }
                    Err(error) => RouteOutcome::Answered(error),
                };
            }
            let response = match asked {
                RouteOutcome::Answered(response) => response,
                RouteOutcome::Declined | RouteOutcome::Elsewhere(_) => declined_by_all(&request.routed(false)),
                RouteOutcome::Wait(another, after) => {
                    (future, next) = (another, after);
                    continue;
                }
            };
            let response = filters.apply(response).await;
            asked_for.routed(false).link.set_handler(request.handler());
            return match self.finish(response, &request.routed(false)) {
                SiteOutcome::Ready(response) => response,
                SiteOutcome::Wait(page) => page.await,
            };
        }
    }

    /// Adds the error page of the operator, or the server's own, to errors without content.
    pub(super) fn finish(self: &Rc<Self>, response: Response, routed: &Routed<'_>) -> SiteOutcome {
        let mut response = match response {
            _ if is_too_large(&response, routed) => BuiltResponse::new(Status::CONTENT_TOO_LARGE),
            Response::Built(response) => response,
            response => return SiteOutcome::Ready(response),
        };
        if response.forwarded.is_some() {
            return SiteOutcome::Ready(Response::Built(response));
        }
        if !response.reason.is_empty() {
            self.tell(&response, routed);
        }
        if response.status == Status::METHOD_NOT_ALLOWED && routed.request.method() == Method::Other {
            // A method that this server does not know gets 501, because 405 is about a single resource (RFC 9110,
            // section 15.6.2).
            response.status = Status::NOT_IMPLEMENTED;
        }
        if response.status.code() < 400 || !response.body.is_empty() {
            return SiteOutcome::Ready(Response::Built(response));
        }
        let format = PageFormat::wanted_by(&routed.request);
        let Some(page) = self.error_pages.find(response.status) else {
            return SiteOutcome::Ready(Response::Built(with_page(response, format)));
        };
        match self.error_pages.get(page, routed.host, routed.now) {
            HandlerOutcome::Wait(outcome) => {
                let future = Rc::clone(self).wait_for_page(page, outcome, response, format);
                SiteOutcome::Wait(Box::pin(future))
            }
            outcome => SiteOutcome::Ready(self.with_own_page(page, outcome, response, format)),
        }
    }

    /// Logs the reason for which a request was rejected.
    fn tell(&self, response: &BuiltResponse, routed: &Routed<'_>) {
        let (client, reason) = (routed.client, response.reason);
        let (host, target) = (escaped(routed.host), escaped(routed.request.target()));
        let (status, trace) = (response.status.code(), trace_id(routed.trace));
        let what = if status >= 500 { "request failed" } else { "request rejected" };
        let values: &[(&str, &dyn fmt::Display)] = &[
            ("status", &status),
            ("client", &client),
            ("host", &host),
            ("target", &target),
            ("reason", &reason),
            ("trace", &trace),
        ];
        self.server_log.notice_of(client, event(what, values));
    }

    async fn wait_for_page(
        self: Rc<Self>,
        page: usize,
        outcome: OutcomeFuture,
        response: Box<BuiltResponse>,
        format: PageFormat,
    ) -> Response {
        let outcome = outcome.await;
        self.with_own_page(page, outcome, response, format)
    }

    fn with_own_page(
        &self,
        page: usize,
        outcome: HandlerOutcome,
        mut response: Box<BuiltResponse>,
        format: PageFormat,
    ) -> Response {
        if self.error_pages.fill(page, outcome, &mut response) {
            return Response::Built(response);
        }
        Response::Built(with_page(response, format))
    }
}

/// Makes the request for a script's local redirect, with the same link to its client.
fn redirected(request: &OwnedRequest, target: &RewrittenTarget) -> OwnedRequest {
    let routed = request.routed(false);
    routed.link.link().forget_content();
    routed.link.forget_rejection();
    let (head, bytes) = redirected_head(&routed.request, target, Vec::new());
    let seen = Request { head: &head, bytes: &bytes };
    OwnedRequest::new(&Routed { request: seen, path: &target.path, query: target.query.as_deref(), ..routed })
}

/// Returns true if the request has more content than the site accepts. Rejections by rules for other reasons keep their
/// status.
fn is_too_large(response: &Response, routed: &Routed<'_>) -> bool {
    let is_rejected = matches!(response, Response::Built(response)
        if response.status.code() >= 400 && !matches!(response.status, Status::NOT_FOUND | Status::METHOD_NOT_ALLOWED));
    !is_rejected && routed.link.get().is_some_and(|link| link.is_too_large())
}

fn with_page(mut response: Box<BuiltResponse>, format: PageFormat) -> Box<BuiltResponse> {
    add_error_page(&mut response, format);
    response.fields.push("Vary", "Accept");
    response
}

/// Result of asking the handlers.
pub(super) enum RouteOutcome {
    Answered(Response),
    Declined,
    /// A handler found that this path serves the request.
    Elsewhere(Vec<u8>),
    /// A handler's outcome is pending; the number is the next route if that handler declines.
    Wait(OutcomeFuture, usize),
}

/// Completed response, or the completion that is pending.
pub(super) enum SiteOutcome {
    Ready(Response),
    Wait(ResponseFuture),
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

/// Makes the response to a banned client.
pub(super) fn banned(routed: &Routed<'_>) -> Response {
    Response::Built(error_response(Status::FORBIDDEN, PageFormat::wanted_by(&routed.request)))
}

/// Makes the response of a listener without sites.
pub(super) fn no_site(routed: &Routed<'_>) -> Response {
    Response::Built(error_response(Status::NOT_FOUND, PageFormat::wanted_by(&routed.request)))
}
