//! Requests to components: most finish at the first poll, and keep no state.

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
use super::reject;
use super::request::{module_request, module_trailers};
use crate::handler::{ClientLink, HandlerOutcome, LateOutcome, Response, Routed};
use crate::modules::{
    Call, ComponentInstance, ComponentStart, Module, ModuleCode, RequestContent, RequestContentSupply,
};

/// Content up to this size is usually on its way already. The handler waits for its first piece before it takes an
/// instance. So the instance is not blocked, and need not ask for the content.
const SHORT_CONTENT_BYTES_MAX: u64 = 64 << 10;

/// A worker's part of a module: the idle instances.
pub(super) struct Components {
    pub(super) module: Arc<Module>,
    idle: IdleInstances<ComponentInstance>,
}

impl Components {
    pub(super) fn new(module: Arc<Module>) -> Self {
        Self { idle: IdleInstances::new(module.config().limits.idle_instances_max), module }
    }

    /// Gives a request to an instance.
    pub(super) fn handle(self: &Rc<Self>, code: &Arc<ModuleCode>, routed: &Routed<'_>) -> HandlerOutcome {
        let link = Rc::clone(routed.link.link());
        let framing = link.framing();
        let request = module_request(routed, framing, self.module.config().client_fields);
        let Some(request) = request else { return reject(Status::BAD_REQUEST) };
        let exchange = ModuleExchange::new(Rc::clone(self), Arc::clone(code), link, routed);
        match framing {
            BodyFraming::None => {
                let content = Empty::new().map_err(|never| match never {}).boxed_unsync();
                answer_at_once(exchange.begin(request.map(|()| content), None))
            }
            // A client that expects 100 Continue may get a rejection instead.
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

    /// Takes an idle instance for a request, or prepares a fresh one.
    pub(super) fn begin(&self, code: &Arc<ModuleCode>) -> ComponentStart {
        match self.idle.take(code) {
            Some(instance) => ComponentStart::Used(instance),
            None => ComponentStart::Fresh(Arc::clone(code)),
        }
    }

    /// Ends a call after its complete response, and keeps its instance if it can be reused.
    pub(super) fn finish(&self, call: Call, code: Arc<ModuleCode>) {
        if let Some(instance) = call.finish(self.module.config().limits.between_bytes_timeout) {
            self.idle.put(instance, code);
        }
    }
}

fn expects(routed: &Routed<'_>) -> bool {
    routed.request.head.fields.iter().any(|field| field.known == KnownField::Expect)
}

/// Polls the exchange once; one that must wait is polled again by the connection.
fn answer_at_once(mut exchange: ModuleExchange) -> HandlerOutcome {
    match Pin::new(&mut exchange).poll(&mut Task::from_waker(Waker::noop())) {
        // Streamed content has time limits, which only a delayed outcome has.
        Poll::Ready(outcome) if is_stream(&outcome) => HandlerOutcome::Wait(Box::pin(ready(outcome))),
        Poll::Ready(outcome) => outcome.at_once(),
        Poll::Pending => HandlerOutcome::Wait(Box::pin(exchange)),
    }
}

async fn answer_with_content(exchange: ModuleExchange, request: http::Request<()>) -> LateOutcome {
    match begun_content(exchange.link()).await {
        Ok((content, supply)) => exchange.begin(request.map(|()| content.boxed_unsync()), supply).await,
        Err(_) => reject(Status::BAD_REQUEST),
    }
}

/// Waits for the first piece of content, usually all of it.
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

fn is_stream(outcome: &LateOutcome) -> bool {
    matches!(outcome, HandlerOutcome::Ready(Response::Built(response)) if response.body.stream.is_some())
}
