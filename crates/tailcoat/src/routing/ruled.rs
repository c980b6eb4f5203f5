//! Passage of a request through a site that has rules.

use std::rc::Rc;

use super::filters::Filters;
use super::local_redirects::LocalRedirects;
use super::rules::{Passage, Question, RewrittenTarget, RuleDecision, Rules};
use super::site::{RouteOutcome, Site, SiteOutcome, declined_by_all};
use super::{RequestAccount, ResponseFuture, SiteResponse};
use crate::handler::{HandlerOutcome, OutcomeFuture, OwnedRequest, Response, Routed};
use crate::metrics::HandlerKind;

/// Operation that a request waits for.
enum RuleWait {
    /// Verification of a password.
    Password(Question),
    /// Outcome of a handler, and the index of the next route if that handler declines.
    Handler(OutcomeFuture, usize),
    /// Error page, or another step that completes a response.
    Response(ResponseFuture),
}

/// Next step of a request.
enum RuleStep {
    Done(Response),
    /// Response that must still pass the filters of earlier handlers.
    Answered(Response),
    Wait(RuleWait),
}

impl Site {
    /// Applies the rules and, if they admit the request, asks the handlers.
    pub(super) fn answer_by_rules(self: &Rc<Self>, rules: &Rules, routed: &Routed<'_>) -> SiteResponse {
        let (mut passage, entry) = rules.enter(routed);
        let account = RequestAccount { visit: Some(Rc::clone(&passage.visit)), ..self.account_of(routed.path) };
        match self.on_entry(entry, &mut passage, routed) {
            // No handler has passed the request on yet, so there are no filters.
            RuleStep::Done(response) | RuleStep::Answered(response) => SiteResponse::Ready(response, account),
            RuleStep::Wait(waiting) => {
                let request = Rc::new(OwnedRequest::new(routed));
                let response = Rc::clone(self).go_through(Rc::clone(&request), passage, waiting);
                SiteResponse::Wait(Box::pin(response), request, account)
            }
        }
    }

    async fn go_through(
        self: Rc<Self>,
        mut request: Rc<OwnedRequest>,
        mut passage: Passage,
        mut waiting: RuleWait,
    ) -> Response {
        let mut redirects = LocalRedirects::default();
        let mut filters = Filters::default();
        let asked_for = Rc::clone(&request);
        loop {
            let step = match waiting {
                RuleWait::Password(question) => {
                    let answer = question.verify(&passage.visit).await;
                    let routed = request.routed(false);
                    let entry = self.rules.as_ref().map(|rules| rules.on_answer(answer, &mut passage, &routed));
                    self.on_entry(entry.unwrap_or(RuleDecision::Pass), &mut passage, &routed)
                }
                RuleWait::Handler(outcome, next) => match outcome.await {
                    HandlerOutcome::Ready(response) => match redirects.next(&response) {
                        None => self.complete(response, &passage, &request.routed(false)),
                        Some(Ok(target)) => self.redirect(target, &mut passage, &request.routed(false)),
                        Some(Err(error)) => self.complete(error, &passage, &request.routed(false)),
                    },
                    HandlerOutcome::Wait(outcome) => RuleStep::Wait(RuleWait::Handler(outcome, next)),
                    HandlerOutcome::Decline => self.ask_handlers(next, &mut passage, &request.routed(false)),
                    HandlerOutcome::Reject(rejection) => {
                        request.routed(false).link.add_rejection(rejection);
                        self.ask_handlers(next, &mut passage, &request.routed(false))
                    }
                    HandlerOutcome::Elsewhere(path) => self.ask_elsewhere(path, &mut passage, &request.routed(false)),
                    HandlerOutcome::Pass(passed) => {
                        filters.push(passed.filter);
                        passage.has_filters = true;
                        let before = Rc::clone(&request);
                        request = passed.request.map_or(request, |changed| Rc::new(*changed));
                        self.pass_on(next, &mut passage, &before, &request)
                    }
                },
                RuleWait::Response(response) => {
                    let response = response.await;
                    RuleStep::Done(self.change(response, &passage, &request.routed(false)))
                }
            };
            // The handler may have received a changed request.
            asked_for.routed(false).link.set_handler(request.handler());
            match step {
                RuleStep::Done(response) => return response,
                RuleStep::Wait(next) => waiting = next,
                RuleStep::Answered(response) => {
                    let response = filters.apply(response).await;
                    passage.has_filters = false;
                    match self.complete(response, &passage, &request.routed(false)) {
                        RuleStep::Done(response) | RuleStep::Answered(response) => return response,
                        RuleStep::Wait(next) => waiting = next,
                    }
                }
            }
        }
    }

    /// Asks the handlers from this route on, after an earlier handler has passed the request on and perhaps changed it.
    fn pass_on(
        self: &Rc<Self>,
        next: usize,
        passage: &mut Passage,
        before: &Rc<OwnedRequest>,
        request: &Rc<OwnedRequest>,
    ) -> RuleStep {
        let routed = request.routed(false);
        if Rc::ptr_eq(before, request) {
            return self.ask_handlers(next, passage, &routed);
        }
        let entry = self.rules.as_ref().map(|rules| rules.enter_changed(next, passage, &before.routed(false), &routed));
        self.on_entry(entry.unwrap_or(RuleDecision::Pass), passage, &routed)
    }

    /// Continues as if the client had requested this target.
    fn redirect(self: &Rc<Self>, target: RewrittenTarget, passage: &mut Passage, routed: &Routed<'_>) -> RuleStep {
        routed.link.link().forget_content();
        routed.link.forget_rejection();
        let entry = self.rules.as_ref().map(|rules| rules.enter_redirected(passage, routed, target));
        self.on_entry(entry.unwrap_or(RuleDecision::Pass), passage, routed)
    }

    fn on_entry(self: &Rc<Self>, entry: RuleDecision, passage: &mut Passage, routed: &Routed<'_>) -> RuleStep {
        match entry {
            RuleDecision::Pass => self.ask_handlers(passage.next_route, passage, routed),
            RuleDecision::Answer(response) => {
                routed.link.set_handler(HandlerKind::Rules);
                self.complete(Response::Built(response), passage, routed)
            }
            RuleDecision::Ask(question) => RuleStep::Wait(RuleWait::Password(question)),
        }
    }

    /// Asks the handlers from this route on. If all decline, applies the rules for missing files.
    fn ask_handlers(self: &Rc<Self>, from: usize, passage: &mut Passage, routed: &Routed<'_>) -> RuleStep {
        let rules =
            self.rules.as_ref().filter(|rules| !passage.is_last() && rules.has_for_missing(&passage.seen(routed)));
        passage.tell_user(routed);
        let asked = {
            let seen = passage.seen(routed);
            self.ask(&Routed { has_next: rules.is_some(), ..seen }, from)
        };
        match asked {
            RouteOutcome::Answered(response) => self.complete(response, passage, routed),
            RouteOutcome::Wait(outcome, next) => RuleStep::Wait(RuleWait::Handler(outcome, next)),
            RouteOutcome::Elsewhere(path) => self.ask_elsewhere(path, passage, routed),
            RouteOutcome::Declined => match rules.and_then(|rules| rules.enter_again(passage, routed)) {
                Some(entry) => {
                    routed.link.forget_rejection();
                    self.on_entry(entry, passage, routed)
                }
                None => {
                    let response = declined_by_all(&passage.seen(routed));
                    self.complete(response, passage, routed)
                }
            },
        }
    }

    /// Asks for a program by its own path. Guards and handlers treat that path like any other.
    fn ask_elsewhere(self: &Rc<Self>, path: Vec<u8>, passage: &mut Passage, routed: &Routed<'_>) -> RuleStep {
        routed.link.forget_rejection();
        match self.rules.as_ref().and_then(|rules| rules.enter_elsewhere(path, passage, routed)) {
            Some(entry) => self.on_entry(entry, passage, routed),
            None => self.complete(declined_by_all(&passage.seen(routed)), passage, routed),
        }
    }

    /// Completes a response: adds an error page and applies the rules for response fields.
    fn complete(self: &Rc<Self>, response: Response, passage: &Passage, routed: &Routed<'_>) -> RuleStep {
        if passage.has_filters {
            return RuleStep::Answered(response);
        }
        match self.finish(response, routed) {
            SiteOutcome::Ready(response) => RuleStep::Done(self.change(response, passage, routed)),
            SiteOutcome::Wait(response) => RuleStep::Wait(RuleWait::Response(response)),
        }
    }

    fn change(&self, response: Response, passage: &Passage, routed: &Routed<'_>) -> Response {
        match &self.rules {
            Some(rules) => rules.change_response(response, passage, routed),
            None => response,
        }
    }
}
