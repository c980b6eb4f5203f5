//! A request's way to a component: most have their answer at once, and of those nothing is kept.

use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use wire::h1::BodyFraming;
use wire::http::{KnownField, Status};

use super::exchange::ModuleExchange;
use super::idle::IdleInstances;
use super::refuse;
use super::request::{module_request, module_trailers};
use crate::handler::{ClientLink, HandlerOutcome, Response, Routed};
use crate::modules::{
    Call, ComponentInstance, ComponentStart, Module, ModuleCode, RequestContent, RequestContentSupply,
};

/// Content of at most this size is on its way when a request comes. So its first piece is waited for before there is an
/// instance, which it holds up no more then, and which need not ask for it.
const SHORT_CONTENT_BYTES_MAX: u64 = 64 << 10;

/// A worker's part of a module: the instances that wait for requests.
pub(super) struct Components {
    pub(super) module: Arc<Module>,
    idle: IdleInstances<ComponentInstance>,
}

impl Components {
    pub(super) fn new(module: Arc<Module>) -> Self {
        Self { idle: IdleInstances::new(module.config().limits.idle_instances_max), module }
    }

    /// Has an instance answer a request.
    pub(super) fn handle(self: &Rc<Self>, code: &Arc<ModuleCode>, routed: &Routed<'_>) -> HandlerOutcome {
        let link = Rc::clone(routed.link.link());
        let framing = link.framing();
        let request = module_request(routed, framing, self.module.config().client_fields);
        let Some(request) = request else { return refuse(Status::BAD_REQUEST) };
        let exchange = ModuleExchange::new(Rc::clone(self), Arc::clone(code), link, routed);
        match framing {
            BodyFraming::None => {
                let content = Empty::new().map_err(|never| match never {}).boxed_unsync();
                answer_at_once(exchange.begin(request.map(|()| content), None))
            }
            // Who expects to be told to go on may also be told not to.
            BodyFraming::Length(length) if length <= SHORT_CONTENT_BYTES_MAX && !expects(routed) => {
                HandlerOutcome::Wait(Box::pin(answer_with_content(exchange, request)))
            }
            BodyFraming::Length(_) | BodyFraming::Chunked => {
                let (content, supply) = RequestContent::new();
                let request = request.map(|()| content.boxed_unsync());
                HandlerOutcome::Wait(Box::pin(exchange.begin(request, Some(supply))))
            }
        }
    }

    /// Where a request begins: in an instance that waits for one, or in a fresh one.
    pub(super) fn begin(&self, code: &Arc<ModuleCode>) -> ComponentStart {
        match self.idle.take(code) {
            Some(instance) => ComponentStart::Used(instance),
            None => ComponentStart::Fresh(Arc::clone(code)),
        }
    }

    /// Ends a call whose response is complete, and keeps its instance for another request if it may be used again.
    pub(super) fn finish(&self, call: Call, code: Arc<ModuleCode>) {
        if let Some(instance) = call.finish(self.module.config().limits.between_bytes_timeout) {
            self.idle.put(instance, code);
        }
    }
}

fn expects(routed: &Routed<'_>) -> bool {
    routed.request.head.fields.iter().any(|field| field.known == KnownField::Expect)
}

/// One that has to wait is polled again at once.
fn answer_at_once(mut exchange: ModuleExchange) -> HandlerOutcome {
    match Pin::new(&mut exchange).poll(&mut Task::from_waker(Waker::noop())) {
        // Content that is still to come has limits of time, which only answers that were waited for have.
        Poll::Ready(outcome) if is_stream(&outcome) => HandlerOutcome::Wait(Box::pin(ready(outcome))),
        Poll::Ready(outcome) => outcome,
        Poll::Pending => HandlerOutcome::Wait(Box::pin(exchange)),
    }
}

async fn answer_with_content(exchange: ModuleExchange, request: http::Request<()>) -> HandlerOutcome {
    match begun_content(exchange.link()).await {
        Ok((content, supply)) => exchange.begin(request.map(|()| content.boxed_unsync()), supply).await,
        Err(_) => refuse(Status::BAD_REQUEST),
    }
}

/// Waits for the first piece of content, which mostly is all of it.
async fn begun_content(link: &ClientLink) -> io::Result<(RequestContent, Option<RequestContentSupply>)> {
    let mut first = Bytes::new();
    let mut take = |task: &mut Task<'_>| {
        link.poll_take(task, |_, piece| {
            first = Bytes::copy_from_slice(piece);
            Poll::Ready(Ok(piece.len()))
        })
    };
    poll_fn(&mut take).await?;
    if link.is_at_end() {
        let trailers = link.take_trailers().as_deref().map(module_trailers);
        return Ok((RequestContent::whole(first, trailers), None));
    }
    let (content, supply) = RequestContent::new();
    supply.supply(first);
    Ok((content, Some(supply)))
}

fn is_stream(outcome: &HandlerOutcome) -> bool {
    matches!(outcome, HandlerOutcome::Ready(Response::Built(response)) if response.body.stream.is_some())
}
