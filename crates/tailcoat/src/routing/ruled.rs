//! Passage of a request through a site that has rules.

use std::rc::Rc;

use super::filters::Filters;
use super::local_redirects::LocalRedirects;
use super::rules::{Entry, Passage, Question, Rules, Target};
use super::site::{Asked, Finished, Site, declined_by_all};
use super::{Account, Answer, ResponseFuture};
use crate::handler::{Outcome, OutcomeFuture, OwnedRequest, Response, Routed};
use crate::metrics::HandlerKind;

/// Operation that a request waits for.
enum Waiting {
    /// Verification of a password.
    Password(Question),
    /// Outcome of a handler, and the index of the next route if that handler declines.
    Handler(OutcomeFuture, usize),
    /// Error page, or another step that completes a response.
    Response(ResponseFuture),
}

/// Next step of a request.
enum Step {
    Done(Response),
    /// Response that must still pass the filters of earlier handlers.
    Answered(Response),
    Wait(Waiting),
}

impl Site {
    /// Applies the rules and, if they admit the request, asks the handlers.
    pub(super) fn answer_by_rules(self: &Rc<Self>, rules: &Rules, routed: &Routed<'_>) -> Answer {
        let (mut passage, entry) = rules.enter(routed);
        let account = Account { visit: Some(Rc::clone(&passage.visit)), ..self.account_of(routed.path) };
        match self.on_entry(entry, &mut passage, routed) {
            // No handler has passed the request on yet, so there are no filters.
            Step::Done(response) | Step::Answered(response) => Answer::Ready(response, account),
            Step::Wait(waiting) => {
                let request = Rc::new(OwnedRequest::new(routed));
                let response = Rc::clone(self).go_through(Rc::clone(&request), passage, waiting);
                Answer::Wait(Box::pin(response), request, account)
            }
        }
    }

    async fn go_through(
        self: Rc<Self>,
        mut request: Rc<OwnedRequest>,
        mut passage: Passage,
        mut waiting: Waiting,
    ) -> Response {
        let mut redirects = LocalRedirects::default();
        let mut filters = Filters::default();
        let asked_for = Rc::clone(&request);
        loop {
            let step = match waiting {
                Waiting::Password(question) => {
                    let answer = question.verify(&passage.visit).await;
                    let routed = request.routed(false);
                    let entry = self.rules.as_ref().map(|rules| rules.on_answer(answer, &mut passage, &routed));
                    self.on_entry(entry.unwrap_or(Entry::Pass), &mut passage, &routed)
                }
                Waiting::Handler(outcome, next) => match outcome.await {
                    Outcome::Ready(response) => match redirects.next(&response) {
                        None => self.complete(response, &passage, &request.routed(false)),
                        Some(Ok(target)) => self.redirect(target, &mut passage, &request.routed(false)),
                        Some(Err(error)) => self.complete(error, &passage, &request.routed(false)),
                    },
                    Outcome::Wait(outcome) => Step::Wait(Waiting::Handler(outcome, next)),
                    Outcome::Decline => self.ask_handlers(next, &mut passage, &request.routed(false)),
                    Outcome::Elsewhere(path) => self.ask_elsewhere(path, &mut passage, &request.routed(false)),
                    Outcome::Pass(passed) => {
                        filters.push(passed.filter);
                        passage.has_filters = true;
                        let before = Rc::clone(&request);
                        request = passed.request.map_or(request, |changed| Rc::new(*changed));
                        self.pass_on(next, &mut passage, &before, &request)
                    }
                },
                Waiting::Response(response) => {
                    let response = response.await;
                    Step::Done(self.change(response, &passage, &request.routed(false)))
                }
            };
            // The handler may have received a changed request.
            asked_for.routed(false).link.set_handler(request.handler());
            match step {
                Step::Done(response) => return response,
                Step::Wait(next) => waiting = next,
                Step::Answered(response) => {
                    let response = filters.apply(response).await;
                    passage.has_filters = false;
                    match self.complete(response, &passage, &request.routed(false)) {
                        Step::Done(response) | Step::Answered(response) => return response,
                        Step::Wait(next) => waiting = next,
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
    ) -> Step {
        let routed = request.routed(false);
        if Rc::ptr_eq(before, request) {
            return self.ask_handlers(next, passage, &routed);
        }
        let entry = self.rules.as_ref().map(|rules| rules.enter_changed(next, passage, &before.routed(false), &routed));
        self.on_entry(entry.unwrap_or(Entry::Pass), passage, &routed)
    }

    /// Continues as if the client had requested this target.
    fn redirect(self: &Rc<Self>, target: Target, passage: &mut Passage, routed: &Routed<'_>) -> Step {
        routed.link.link().forget_content();
        let entry = self.rules.as_ref().map(|rules| rules.enter_redirected(passage, routed, target));
        self.on_entry(entry.unwrap_or(Entry::Pass), passage, routed)
    }

    fn on_entry(self: &Rc<Self>, entry: Entry, passage: &mut Passage, routed: &Routed<'_>) -> Step {
        match entry {
            Entry::Pass => self.ask_handlers(passage.next_route, passage, routed),
            Entry::Answer(response) => {
                routed.link.set_handler(HandlerKind::Rules);
                self.complete(Response::Built(response), passage, routed)
            }
            Entry::Ask(question) => Step::Wait(Waiting::Password(question)),
        }
    }

    /// Asks the handlers from this route on. If all decline, applies the rules for missing files.
    fn ask_handlers(self: &Rc<Self>, from: usize, passage: &mut Passage, routed: &Routed<'_>) -> Step {
        let rules =
            self.rules.as_ref().filter(|rules| !passage.is_last() && rules.has_for_missing(&passage.seen(routed)));
        passage.tell_user(routed);
        let asked = {
            let seen = passage.seen(routed);
            self.ask(&Routed { has_next: rules.is_some(), ..seen }, from)
        };
        match asked {
            Asked::Answered(response) => self.complete(response, passage, routed),
            Asked::Wait(outcome, next) => Step::Wait(Waiting::Handler(outcome, next)),
            Asked::Elsewhere(path) => self.ask_elsewhere(path, passage, routed),
            Asked::Declined => match rules.and_then(|rules| rules.enter_again(passage, routed)) {
                Some(entry) => self.on_entry(entry, passage, routed),
                None => {
                    let response = declined_by_all(&passage.seen(routed));
                    self.complete(response, passage, routed)
                }
            },
        }
    }

    /// Asks for a program by its own path. Guards and handlers treat that path like any other.
    fn ask_elsewhere(self: &Rc<Self>, path: Vec<u8>, passage: &mut Passage, routed: &Routed<'_>) -> Step {
        match self.rules.as_ref().and_then(|rules| rules.enter_elsewhere(path, passage, routed)) {
            Some(entry) => self.on_entry(entry, passage, routed),
            None => self.complete(declined_by_all(&passage.seen(routed)), passage, routed),
        }
    }

    /// Completes a response: adds an error page and applies the rules for response fields.
    fn complete(self: &Rc<Self>, response: Response, passage: &Passage, routed: &Routed<'_>) -> Step {
        if passage.has_filters {
            return Step::Answered(response);
        }
        match self.finish(response, routed) {
            Finished::Ready(response) => Step::Done(self.change(response, passage, routed)),
            Finished::Wait(response) => Step::Wait(Waiting::Response(response)),
        }
    }

    fn change(&self, response: Response, passage: &Passage, routed: &Routed<'_>) -> Response {
        match &self.rules {
            Some(rules) => rules.change_response(response, passage, routed),
            None => response,
        }
    }
}
