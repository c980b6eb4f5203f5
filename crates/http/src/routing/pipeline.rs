//! Pipeline of a request in its site: rules, if there are any, handlers in turn, filters and error pages.
//!
//! [`Site::answer`] runs it until the request must wait. [`Site::go_on`] continues it as a future. Both take the same
//! steps.

use std::rc::Rc;

use wire::http::Status;

use super::filters::Filters;
use super::local_redirects::{LocalRedirects, redirect_filter};
use super::rules::{Passage, RewrittenTarget, RuleDecision, Rules, VerdictFuture};
use super::site::{PageWait, Site, declined_by_all, redirected};
use super::{PendingResponse, RequestAccount, ResponseFuture, SiteResponse};
use crate::handler::{
    AuthorizationFuture, BuiltResponse, ClientGone, EncodingFuture, HandlerOutcome, OutcomeFuture, OwnedRequest,
    PassedOn, Response, Routed,
};
use crate::known_clients::ClaimFuture;
use crate::metrics::HandlerKind;

/// Reason for which a request goes on in a future.
enum RequestWait {
    /// A password must be verified.
    Password(VerdictFuture),
    /// The authentication server of the rule with this index must decide.
    Authorization(AuthorizationFuture, usize),
    /// The claim to be a crawler must be confirmed.
    Claim(ClaimFuture),
    /// The outcome of a handler is pending.
    Handler(OutcomeFuture),
    /// A handler has passed the request on. Its filter waits for the response.
    Filter(PassedOn),
    /// The client has left.
    ClientGone,
}

/// Result of a step of the pipeline.
type Step = SiteResponse<RequestWait>;

/// State that rules keep for a request. Requests of sites without rules carry none.
trait RuleState: 'static {
    /// Passage of the request through the rules; `None` if the site has no rules.
    fn passage(&mut self) -> Option<&mut Passage>;
}

impl RuleState for () {
    fn passage(&mut self) -> Option<&mut Passage> {
        None
    }
}

impl RuleState for Passage {
    fn passage(&mut self) -> Option<&mut Passage> {
        Some(self)
    }
}

/// Progress of a request in its site.
struct SiteProgress<S> {
    rules: S,
    /// First route that may still handle the request.
    next_route: usize,
}

impl Site {
    /// Applies the rules, if there are any, and asks the handlers in turn.
    pub(super) fn answer(self: &Rc<Self>, routed: &Routed<'_>) -> (SiteResponse, RequestAccount) {
        if let Some(link) = routed.link.get() {
            link.set_body_bytes_max(self.body_bytes_max);
        }
        let account = self.account_of(routed.path);
        let Some(rules) = &self.rules else {
            let mut progress = SiteProgress { rules: (), next_route: 0 };
            let step = self.ask_handlers(&mut progress, routed);
            return (self.respond(step, progress, routed), account);
        };
        let (passage, decision) = rules.enter(routed);
        let account = RequestAccount { visit: Some(Rc::clone(&passage.visit)), ..account };
        let mut progress = SiteProgress { rules: passage, next_route: 0 };
        let step = self.follow(decision, &mut progress, routed);
        (self.respond(step, progress, routed), account)
    }

    /// Completes a response that is available at once. Anything else goes on in a future.
    #[inline]
    fn respond<S: RuleState>(
        self: &Rc<Self>,
        step: Step,
        mut progress: SiteProgress<S>,
        routed: &Routed<'_>,
    ) -> SiteResponse {
        let (future, request) = match step {
            SiteResponse::Ready(mut response) => match self.finish(&mut response, routed) {
                None => match self.encoders.encode(response, routed) {
                    Ok(response) => return SiteResponse::Ready(self.change(response, &mut progress, routed)),
                    Err(encoding) => {
                        let (site, request) = (Rc::clone(self), Rc::new(OwnedRequest::new(routed)));
                        (site.wait_for_encoding(Rc::clone(&request), progress, encoding), request)
                    }
                },
                Some(page) => {
                    let (site, request) = (Rc::clone(self), Rc::new(OwnedRequest::new(routed)));
                    (site.wait_for_page(Rc::clone(&request), progress, response, page), request)
                }
            },
            SiteResponse::Wait(waiting) => {
                let (site, request) = (Rc::clone(self), Rc::new(OwnedRequest::new(routed)));
                (site.go_on(Rc::clone(&request), progress, waiting), request)
            }
        };
        SiteResponse::Wait(PendingResponse { future, request })
    }

    /// Continues after a wait, until the response is complete.
    fn go_on<S: RuleState>(
        self: Rc<Self>,
        asked_for: Rc<OwnedRequest>,
        mut progress: SiteProgress<S>,
        mut waiting: RequestWait,
    ) -> ResponseFuture {
        // A block, because an async function would store its parameters twice.
        Box::pin(async move {
            let mut redirects = LocalRedirects::default();
            let mut filters = Filters::default();
            let mut request = Rc::clone(&asked_for);
            let response = loop {
                let step = match waiting {
                    RequestWait::Password(verdict) => {
                        let verdict = verdict.await;
                        let routed = request.routed(false);
                        self.resume(&mut progress, &routed, |rules, passage| rules.on_answer(verdict, passage, &routed))
                    }
                    RequestWait::Authorization(authorization, rule) => {
                        let decision = (authorization.await, rule);
                        let routed = request.routed(false);
                        self.resume(&mut progress, &routed, |rules, passage| {
                            rules.on_authorization(decision, passage, &routed)
                        })
                    }
                    RequestWait::Claim(confirmation) => {
                        let verdict = confirmation.await;
                        let routed = request.routed(false);
                        self.resume(&mut progress, &routed, |rules, passage| {
                            rules.on_confirmation(verdict, passage, &routed)
                        })
                    }
                    RequestWait::Handler(outcome) => match outcome.await {
                        HandlerOutcome::Ready(response) => match redirects.next(&response) {
                            None => SiteResponse::Ready(response),
                            Some(Ok(target)) => {
                                if response.is_internal_redirect() {
                                    request.routed(false).link.set_redirected();
                                }
                                filters.extend(redirect_filter(response));
                                self.redirect(target, &mut progress, &mut request)
                            }
                            Some(Err(error)) => SiteResponse::Ready(error),
                        },
                        HandlerOutcome::Decline => self.ask_handlers(&mut progress, &request.routed(false)),
                        HandlerOutcome::Reject(rejection) => {
                            request.routed(false).link.add_rejection(rejection);
                            self.ask_handlers(&mut progress, &request.routed(false))
                        }
                        outcome => self.on_outcome(outcome.at_once(), &mut progress, &request.routed(false)),
                    },
                    RequestWait::Filter(passed) => {
                        filters.push(passed.filter);
                        self.pass_on(passed.request, &mut progress, &mut request)
                    }
                    RequestWait::ClientGone => return Err(ClientGone),
                };
                // The handler may have received a changed request.
                asked_for.routed(false).link.set_handler(request.handler());
                match step {
                    SiteResponse::Ready(response) => break response,
                    SiteResponse::Wait(next) => waiting = next,
                }
            };
            let mut response = filters.apply(response).await?;
            // Named, because a temporary value would be kept while the future waits.
            let page = self.finish(&mut response, &request.routed(false));
            if let Some(page) = page {
                return self.wait_for_page(request, progress, response, page).await;
            }
            // A filter may have changed the request; the client has not.
            let encoded = self.encoders.encode(response, &asked_for.routed(false));
            let response = match encoded {
                Ok(response) => response,
                Err(encoding) => encoding.await,
            };
            Ok(self.change(response, &mut progress, &request.routed(false)))
        })
    }

    /// Completes a stored response that must be compressed first.
    #[cold]
    fn wait_for_encoding<S: RuleState>(
        self: Rc<Self>,
        request: Rc<OwnedRequest>,
        mut progress: SiteProgress<S>,
        encoding: EncodingFuture,
    ) -> ResponseFuture {
        Box::pin(async move {
            let response = encoding.await;
            Ok(self.change(response, &mut progress, &request.routed(false)))
        })
    }

    /// Completes a response whose error page must be loaded first.
    #[cold]
    fn wait_for_page<S: RuleState>(
        self: Rc<Self>,
        request: Rc<OwnedRequest>,
        mut progress: SiteProgress<S>,
        mut response: Response,
        page: PageWait,
    ) -> ResponseFuture {
        Box::pin(async move {
            self.fill_late(&mut response, page).await;
            Ok(self.change(response, &mut progress, &request.routed(false)))
        })
    }

    /// Continues with what the rules decide after a wait of theirs.
    fn resume<S: RuleState>(
        &self,
        progress: &mut SiteProgress<S>,
        routed: &Routed<'_>,
        decide: impl FnOnce(&Rules, &mut Passage) -> RuleDecision,
    ) -> Step {
        let decision = match self.rules.as_ref().zip(progress.rules.passage()) {
            Some((rules, passage)) => decide(rules, passage),
            // Local invariant: only rules wait for passwords and authentication servers.
            None => RuleDecision::Answer(BuiltResponse::new(Status::FORBIDDEN)),
        };
        self.follow(decision, progress, routed)
    }

    /// Asks the next handlers, after an earlier one has passed the request on and perhaps changed it.
    fn pass_on<S: RuleState>(
        &self,
        changed: Option<Box<OwnedRequest>>,
        progress: &mut SiteProgress<S>,
        request: &mut Rc<OwnedRequest>,
    ) -> Step {
        let Some(changed) = changed else { return self.ask_handlers(progress, &request.routed(false)) };
        let before = std::mem::replace(request, Rc::new(*changed));
        let routed = request.routed(false);
        match self.rules.as_ref().zip(progress.rules.passage()) {
            None => self.ask_handlers(progress, &routed),
            Some((rules, passage)) => {
                let decision = rules.enter_changed(passage, &before.routed(false), &routed);
                self.follow(decision, progress, &routed)
            }
        }
    }

    /// Continues as if the client had requested this target.
    fn redirect<S: RuleState>(
        &self,
        target: RewrittenTarget,
        progress: &mut SiteProgress<S>,
        request: &mut Rc<OwnedRequest>,
    ) -> Step {
        progress.next_route = 0;
        let routed = request.routed(false);
        routed.link.link().forget_content();
        routed.link.forget_rejection();
        match self.rules.as_ref().zip(progress.rules.passage()) {
            None => {
                *request = Rc::new(redirected(request, &target));
                self.ask_handlers(progress, &request.routed(false))
            }
            Some((rules, passage)) => {
                let decision = rules.enter_redirected(passage, &routed, target);
                self.follow(decision, progress, &routed)
            }
        }
    }

    /// Acts on a decision of the rules.
    fn follow<S: RuleState>(
        &self,
        decision: RuleDecision,
        progress: &mut SiteProgress<S>,
        routed: &Routed<'_>,
    ) -> Step {
        match decision {
            RuleDecision::Pass => self.ask_handlers(progress, routed),
            RuleDecision::Answer(response) => {
                routed.link.set_handler(HandlerKind::Rules);
                SiteResponse::Ready(Response::Built(response))
            }
            RuleDecision::RejectBot(reason) => {
                routed.link.set_handler(HandlerKind::Rules);
                SiteResponse::Ready(self.reject_bot(reason, routed))
            }
            RuleDecision::Authorize(authorization, rule) => {
                SiteResponse::Wait(RequestWait::Authorization(authorization, rule))
            }
            RuleDecision::Confirm(confirmation) => SiteResponse::Wait(RequestWait::Claim(confirmation)),
            RuleDecision::Ask(question) => SiteResponse::Wait(RequestWait::Password(question.verify())),
        }
    }

    /// Asks the handlers from `next_route` on.
    #[inline]
    fn ask_handlers<S: RuleState>(&self, progress: &mut SiteProgress<S>, routed: &Routed<'_>) -> Step {
        let SiteProgress { rules, next_route } = progress;
        let outcome = match self.rules.as_ref().zip(rules.passage()) {
            None => self.ask_routes(routed, next_route),
            Some((rules, passage)) if rules.is_as_asked(passage) && !routed.has_next => {
                passage.tell_user(routed);
                self.ask_routes(routed, next_route)
            }
            Some((rules, passage)) => {
                let seen = passage.seen(routed);
                let has_next = rules.has_for_missing(passage, &seen);
                passage.tell_user(routed);
                self.ask_routes(&Routed { has_next, ..seen }, next_route)
            }
        };
        self.on_outcome(outcome, progress, routed)
    }

    /// Acts on the outcome of a handler. [`HandlerOutcome::Decline`] means that all handlers have declined.
    #[inline]
    fn on_outcome<S: RuleState>(
        &self,
        outcome: HandlerOutcome,
        progress: &mut SiteProgress<S>,
        routed: &Routed<'_>,
    ) -> Step {
        match outcome {
            HandlerOutcome::Ready(response) => SiteResponse::Ready(response),
            HandlerOutcome::Wait(outcome) => SiteResponse::Wait(RequestWait::Handler(outcome)),
            HandlerOutcome::Pass(passed) => SiteResponse::Wait(RequestWait::Filter(passed)),
            HandlerOutcome::ClientGone => SiteResponse::Wait(RequestWait::ClientGone),
            HandlerOutcome::Elsewhere(path) => self.on_elsewhere(path, progress, routed),
            HandlerOutcome::Decline | HandlerOutcome::Reject(_) => self.on_declined(progress, routed),
        }
    }

    /// Continues with the path of a program that a handler has found. Guards and handlers treat that path like any
    /// other. Sites with such handlers have rules. If rules were missing, the program's source must still not be sent.
    #[cold]
    fn on_elsewhere<S: RuleState>(&self, path: Vec<u8>, progress: &mut SiteProgress<S>, routed: &Routed<'_>) -> Step {
        routed.link.forget_rejection();
        let ruled = self.rules.as_ref().zip(progress.rules.passage());
        match ruled.and_then(|(rules, passage)| rules.enter_elsewhere(path, passage, routed)) {
            Some(decision) => self.begin_again(decision, progress, routed),
            None => declined(progress, routed),
        }
    }

    /// Applies the rules for missing files after all handlers have declined.
    #[cold]
    fn on_declined<S: RuleState>(&self, progress: &mut SiteProgress<S>, routed: &Routed<'_>) -> Step {
        let ruled = self.rules.as_ref().zip(progress.rules.passage());
        match ruled.and_then(|(rules, passage)| rules.enter_again(passage, routed)) {
            Some(decision) => {
                routed.link.forget_rejection();
                self.begin_again(decision, progress, routed)
            }
            None => declined(progress, routed),
        }
    }

    /// Acts on a decision about a new path, which all handlers may serve.
    fn begin_again<S: RuleState>(
        &self,
        decision: RuleDecision,
        progress: &mut SiteProgress<S>,
        routed: &Routed<'_>,
    ) -> Step {
        progress.next_route = 0;
        self.follow(decision, progress, routed)
    }

    /// Applies the rules for response fields, and the maximum rates.
    #[inline]
    fn change<S: RuleState>(
        &self,
        response: Response,
        progress: &mut SiteProgress<S>,
        routed: &Routed<'_>,
    ) -> Response {
        let response = match self.rules.as_ref().zip(progress.rules.passage()) {
            Some((rules, passage)) => rules.change_response(response, passage, routed),
            None => response,
        };
        match &self.pace {
            None => response,
            Some(pace) => pace.apply(response, routed),
        }
    }
}

fn declined<S: RuleState>(progress: &mut SiteProgress<S>, routed: &Routed<'_>) -> Step {
    SiteResponse::Ready(match progress.rules.passage() {
        Some(passage) => declined_by_all(&passage.seen(routed)),
        None => declined_by_all(routed),
    })
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::task::{Context as Task, Poll, Waker};

    use super::super::SiteSetup;
    use super::super::rules::tests::{RuleTestRequest, site};
    use super::super::rules::{AllRules, Rules};
    use super::*;
    use crate::config::LogLevel;
    use crate::handler::{Encoders, ErrorPages, LateOutcome};
    use crate::log::ServerLog;
    use crate::metrics::NameSlot;

    /// A site without handlers, whose rules are in `text`.
    fn site_with(text: &str) -> Rc<Site> {
        let (config, server_log) = (site(text), ServerLog::stderr(LogLevel::Error));
        let secret = bots::challenge::ChallengeSecret::generate().unwrap();
        let rules = AllRules::new(&config, &server_log, &secret, None).unwrap();
        let rules = rules.sites[0].as_ref().map(|shared| Rules::new(shared, &Rc::default()));
        assert_eq!(rules.is_some(), !text.is_empty());
        Rc::new(Site::new(SiteSetup {
            gate: None,
            config: &config.sites[0],
            handlers: Vec::new(),
            error_pages: ErrorPages::default(),
            default_pages: Rc::default(),
            pace: None,
            encoders: Rc::new(Encoders::without_store()),
            rules,
            log: None,
            server_log,
            counted: NameSlot::NONE,
            tls: None,
            ftp: None,
        }))
    }

    fn asked_for() -> Rc<OwnedRequest> {
        let request = RuleTestRequest::new("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        let request = Rc::new(OwnedRequest::new(&request.routed()));
        request.link_made();
        request
    }

    fn response(status: u16) -> Box<BuiltResponse> {
        BuiltResponse::new(Status::new(status).unwrap())
    }

    fn answered(status: u16) -> LateOutcome {
        HandlerOutcome::Ready(Response::Built(response(status)))
    }

    /// Continues a request after a handler's outcome, on a site with these rules.
    fn go_on(text: &str, request: &Rc<OwnedRequest>, outcome: LateOutcome) -> ResponseFuture {
        let (site, waiting) = (site_with(text), RequestWait::Handler(Box::pin(ready(outcome))));
        let passage = site.rules.as_ref().map(|rules| rules.enter(&request.routed(false)).0);
        match passage {
            Some(rules) => site.go_on(Rc::clone(request), SiteProgress { rules, next_route: 0 }, waiting),
            None => site.go_on(Rc::clone(request), SiteProgress { rules: (), next_route: 0 }, waiting),
        }
    }

    type MakeOutcome = fn() -> LateOutcome;

    const RULES: [&str; 2] = ["", "response-header \"x-rule\" \"y\""];

    #[test]
    fn late_outcomes() {
        // Outcome of the handler; the status of the response, if one is sent.
        let cases: [(MakeOutcome, Option<u16>); 5] = [
            (|| answered(200), Some(200)),
            (|| HandlerOutcome::Decline, Some(404)),
            (|| HandlerOutcome::Elsewhere(b"/b".to_vec()), Some(404)),
            // A handler with a fixed status has a client.
            (|| answered(499), Some(499)),
            (|| HandlerOutcome::ClientGone, None),
        ];
        for rules in RULES {
            for (index, (outcome, expect)) in cases.iter().enumerate() {
                let request = asked_for();
                let task = &mut Task::from_waker(Waker::noop());
                let Poll::Ready(result) = go_on(rules, &request, outcome()).as_mut().poll(task) else { panic!() };
                let found = result.ok().map(|response| {
                    let has_field = match &response {
                        Response::Built(built) => built.fields.has("x-rule"),
                        Response::Changed(changed) => changed.changes.iter().any(|change| change.name == "x-rule"),
                        Response::Cached { .. } => false,
                    };
                    assert_eq!(has_field, !rules.is_empty(), "{rules} {index}");
                    response.status().code()
                });
                assert_eq!(found, *expect, "{rules} {index}");
            }
        }
    }

    /// Each request that waits holds such a future. Bounds in bytes, without and with rules.
    #[test]
    fn futures_are_small() {
        for (rules, bytes_max) in RULES.iter().zip([416, 672]) {
            let bytes = size_of_val(&*go_on(rules, &asked_for(), HandlerOutcome::Decline));
            assert!(bytes <= bytes_max, "{rules}: {bytes}");
        }
    }
}
