//! One request to a module: from its wait for an instance to the head of the response.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use tokio::sync::OwnedSemaphorePermit;
use wire::http::{Method, Status};

use super::component::Components;
use super::content::{ModuleContent, ModuleUpload, await_until};
use super::response::ModuleResponse;
use crate::handler::{BuiltResponse, ClientLink, HandlerOutcome, LateOutcome, Response, Routed};
use crate::metrics::ModuleFailure;
use crate::modules::{Call, CallFailure, ModuleCode, RequestContentSupply, ResponseBody, WasiBody};

type ModuleRequest = http::Request<WasiBody>;

/// The exchange, as a future that resolves to the response or the outcome of its failure.
pub(super) struct ModuleExchange {
    handler: Rc<Components>,
    code: Arc<ModuleCode>,
    upload: ModuleUpload,
    method: Method,
    is_tls: bool,
    state: ModuleExchangeState,
}

enum ModuleExchangeState {
    /// Not begun.
    AwaitingRequest,
    /// All instances are busy.
    AwaitingInstance(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>>>>, Box<ModuleRequest>),
    AwaitingResponse(Call),
    /// The head of the response was received.
    AwaitingContent(Box<ModuleResponse>),
    /// The future has resolved.
    Done,
}

impl ModuleExchange {
    /// Creates an exchange that [`Self::begin`] starts.
    pub(super) fn new(
        handler: Rc<Components>,
        code: Arc<ModuleCode>,
        link: Rc<ClientLink>,
        routed: &Routed<'_>,
    ) -> Self {
        let (method, is_tls) = (routed.request.method(), routed.is_secure());
        Self {
            handler,
            code,
            upload: ModuleUpload::new(link, None),
            method,
            is_tls,
            state: ModuleExchangeState::AwaitingRequest,
        }
    }

    /// Gives the request to an instance, or waits for one.
    pub(super) fn begin(mut self, request: ModuleRequest, supply: Option<RequestContentSupply>) -> Self {
        self.upload.supply = supply;
        let module = &self.handler.module;
        match module.try_instance() {
            Some(place) => self.call(place, request),
            None => {
                await_until(self.link(), module.config().limits.queue_timeout);
                self.state = ModuleExchangeState::AwaitingInstance(Box::pin(module.instance()), Box::new(request));
            }
        }
        self
    }

    pub(super) fn link(&self) -> &ClientLink {
        self.upload.link()
    }

    fn call(&mut self, place: OwnedSemaphorePermit, request: ModuleRequest) {
        let Components { module, .. } = &*self.handler;
        await_until(self.link(), module.config().limits.first_byte_timeout);
        let begun = self.handler.begin(&self.code);
        self.state = ModuleExchangeState::AwaitingResponse(module.call(begun, place, self.is_tls, request));
    }

    /// Handles a passed deadline; returns the status for the client.
    fn on_late(&mut self) -> Status {
        match std::mem::replace(&mut self.state, ModuleExchangeState::Done) {
            ModuleExchangeState::AwaitingInstance(..) => {
                self.handler.module.note(&no_instance(), None);
                Status::SERVICE_UNAVAILABLE
            }
            ModuleExchangeState::AwaitingRequest
            | ModuleExchangeState::AwaitingResponse(_)
            | ModuleExchangeState::AwaitingContent(_)
            | ModuleExchangeState::Done => {
                self.handler.module.note(&no_answer(), None);
                Status::GATEWAY_TIMEOUT
            }
        }
    }

    fn poll_answer(&mut self, task: &mut Task<'_>) -> Poll<Result<Box<BuiltResponse>, Status>> {
        loop {
            match std::mem::replace(&mut self.state, ModuleExchangeState::Done) {
                ModuleExchangeState::AwaitingInstance(mut instance, waiting) => {
                    let Poll::Ready(place) = instance.as_mut().poll(task) else {
                        self.state = ModuleExchangeState::AwaitingInstance(instance, waiting);
                        return Poll::Pending;
                    };
                    // Local invariant: the semaphore is never closed.
                    let Some(place) = place else { return Poll::Ready(Err(Status::SERVICE_UNAVAILABLE)) };
                    self.call(place, *waiting);
                }
                ModuleExchangeState::AwaitingResponse(mut call) => match call.poll_response(task) {
                    Poll::Ready(Ok(response)) => self.on_response(call, response),
                    Poll::Ready(Err(failure)) => return Poll::Ready(Err(status_of(&failure))),
                    // After reading some content, the instance runs again.
                    Poll::Pending => {
                        self.state = ModuleExchangeState::AwaitingResponse(call);
                        let time = self.handler.module.config().limits.first_byte_timeout;
                        ready!(self.upload.poll_supply_within(time, task)).map_err(|_| Status::BAD_REQUEST)?;
                    }
                },
                ModuleExchangeState::AwaitingContent(mut answer) => {
                    let Poll::Ready(built) = answer.poll(self.method, task) else {
                        self.state = ModuleExchangeState::AwaitingContent(answer);
                        return Poll::Pending;
                    };
                    // The failure was logged already.
                    return Poll::Ready(built.map_err(|_| Status::INTERNAL_SERVER_ERROR));
                }
                state @ (ModuleExchangeState::AwaitingRequest | ModuleExchangeState::Done) => {
                    self.state = state;
                    return Poll::Pending;
                }
            }
        }
    }

    fn on_response(&mut self, call: Call, response: http::Response<ResponseBody>) {
        let (head, body) = response.into_parts();
        let content =
            ModuleContent::new(call, body, self.upload.take(), Rc::clone(&self.handler), Arc::clone(&self.code));
        self.state = ModuleExchangeState::AwaitingContent(Box::new(ModuleResponse::new(head, content)));
    }
}

impl Future for ModuleExchange {
    type Output = LateOutcome;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<LateOutcome> {
        let link = self.upload.link();
        let answered = if link.take_late() {
            Err(self.on_late())
        } else if link.has_client_ended() {
            self.state = ModuleExchangeState::Done;
            self.upload.link().set_deadline(None);
            return Poll::Ready(HandlerOutcome::ClientGone);
        } else {
            ready!(self.poll_answer(task))
        };
        self.upload.link().set_deadline(None);
        let mut response = answered.unwrap_or_else(BuiltResponse::new);
        response.compression = self.handler.module.config().compression.resolved();
        Poll::Ready(HandlerOutcome::Ready(Response::Built(response)))
    }
}

/// Failure of a request that got no instance in time.
pub(super) fn no_instance() -> CallFailure {
    CallFailure::new(ModuleFailure::InstancesMax, "had no free instance within queue-timeout")
}

/// Failure of a module that sent no response head in time.
pub(super) fn no_answer() -> CallFailure {
    CallFailure::new(ModuleFailure::FirstByteTimeout, "sent no response within first-byte-timeout")
}

/// Status of the response to the client after a failure.
pub(super) fn status_of(failure: &CallFailure) -> Status {
    match failure.cause() {
        ModuleFailure::InstancesMax | ModuleFailure::AllMemoryBytesMax => Status::SERVICE_UNAVAILABLE,
        ModuleFailure::BufferedBytesMax => Status::CONTENT_TOO_LARGE,
        ModuleFailure::ProcessorTimeMax | ModuleFailure::FirstByteTimeout | ModuleFailure::BetweenBytesTimeout => {
            Status::GATEWAY_TIMEOUT
        }
        ModuleFailure::Failed
        | ModuleFailure::MemoryBytesMax
        | ModuleFailure::TableElementsMax
        | ModuleFailure::ResponseBytesMax => Status::INTERNAL_SERVER_ERROR,
    }
}
