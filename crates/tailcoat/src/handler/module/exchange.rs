//! One request's way to a module: from its place among the instances to the head of the response.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use tokio::sync::OwnedSemaphorePermit;
use wasmtime_wasi_http::WasiBody;
use wire::http::{Method, Status};

use super::content::{ModuleContent, Upload, await_until};
use super::response::Answer;
use crate::handler::{BuiltResponse, ClientLink, Outcome, Response, Routed};
use crate::metrics::ModuleFailure;
use crate::modules::{Call, ComponentCode, Failure, Module, RequestContentSupply, ResponseBody};

type Request = http::Request<WasiBody>;

/// The exchange, as a future that is ready with the response or with what became of it.
pub(super) struct Exchange {
    module: Arc<Module>,
    upload: Upload,
    method: Method,
    is_tls: bool,
    state: State,
}

enum State {
    /// All instances are at work.
    AwaitingInstance(
        Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>>>>,
        Option<Box<(ComponentCode, Request)>>,
    ),
    AwaitingResponse(Call),
    /// The head of the response is there.
    AwaitingContent(Box<Answer>),
    /// The answer has been given.
    Done,
}

impl Exchange {
    pub(super) fn new(
        module: &Arc<Module>,
        code: &ComponentCode,
        link: Rc<ClientLink>,
        routed: &Routed<'_>,
        request: Request,
        supply: Option<RequestContentSupply>,
    ) -> Self {
        let limits = &module.config().limits;
        let is_tls = routed.is_secure();
        let state = match module.try_instance() {
            Some(place) => {
                await_until(&link, limits.first_byte_timeout);
                State::AwaitingResponse(module.call(code.clone(), place, is_tls, request))
            }
            None => {
                await_until(&link, limits.queue_timeout);
                State::AwaitingInstance(Box::pin(module.instance()), Some(Box::new((code.clone(), request))))
            }
        };
        let upload = Upload::new(link, supply);
        let (module, method) = (Arc::clone(module), routed.request.method());
        Self { module, upload, method, is_tls, state }
    }

    /// Takes note that the time is up.
    fn on_late(&mut self) -> Status {
        match std::mem::replace(&mut self.state, State::Done) {
            State::AwaitingInstance(..) => {
                self.module.note(&no_instance(), None);
                Status::SERVICE_UNAVAILABLE
            }
            State::AwaitingResponse(_) | State::AwaitingContent(_) | State::Done => {
                self.module.note(&no_answer(), None);
                Status::GATEWAY_TIMEOUT
            }
        }
    }

    fn poll_answer(&mut self, task: &mut Task<'_>) -> Poll<Result<Box<BuiltResponse>, Status>> {
        loop {
            match &mut self.state {
                State::AwaitingInstance(instance, waiting) => {
                    let place = ready!(instance.as_mut().poll(task));
                    // Local invariants: nobody closes the queue, and a request waits in it once.
                    let (Some(place), Some(waiting)) = (place, waiting.take()) else {
                        return Poll::Ready(Err(Status::SERVICE_UNAVAILABLE));
                    };
                    let (code, request) = *waiting;
                    self.await_response();
                    self.state = State::AwaitingResponse(self.module.call(code, place, self.is_tls, request));
                }
                State::AwaitingResponse(call) => match call.poll_response(task) {
                    Poll::Ready(Ok(response)) => self.on_response(response),
                    Poll::Ready(Err(failure)) => return Poll::Ready(Err(status_of(&failure))),
                    // An instance that has read something goes on.
                    Poll::Pending => {
                        let time = self.module.config().limits.first_byte_timeout;
                        ready!(self.upload.poll_supply_within(time, task)).map_err(|_| Status::BAD_REQUEST)?;
                    }
                },
                State::AwaitingContent(answer) => {
                    // What is wrong has been logged.
                    let built = ready!(answer.poll(self.method, task)).map_err(|_| Status::INTERNAL_SERVER_ERROR);
                    return Poll::Ready(built);
                }
                State::Done => return Poll::Pending,
            }
        }
    }

    fn await_response(&self) {
        await_until(self.upload.link(), self.module.config().limits.first_byte_timeout);
    }

    fn on_response(&mut self, response: http::Response<ResponseBody>) {
        let State::AwaitingResponse(call) = std::mem::replace(&mut self.state, State::Done) else {
            unreachable!("a response comes when it is awaited")
        };
        let (head, body) = response.into_parts();
        let content = ModuleContent::new(call, body, self.upload.take(), Arc::clone(&self.module));
        self.state = State::AwaitingContent(Box::new(Answer::new(head, content)));
    }
}

impl Future for Exchange {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Outcome> {
        let link = self.upload.link();
        let answered = if link.take_late() {
            Err(self.on_late())
        } else if link.has_client_ended() {
            // Nobody waits for the answer. What is sent is only for the log.
            self.state = State::Done;
            Err(Status::CLIENT_CLOSED_REQUEST)
        } else {
            ready!(self.poll_answer(task))
        };
        self.upload.link().set_deadline(None);
        let response = answered.unwrap_or_else(BuiltResponse::new);
        Poll::Ready(Outcome::Ready(Response::Built(response)))
    }
}

/// No instance has become free for a request.
pub(super) fn no_instance() -> Failure {
    Failure::new(ModuleFailure::InstancesMax, "had no instance within queue-timeout")
}

/// The head of the response did not come.
pub(super) fn no_answer() -> Failure {
    Failure::new(ModuleFailure::FirstByteTimeout, "gave no answer within first-byte-timeout")
}

/// What the client is told of a failure.
pub(super) fn status_of(failure: &Failure) -> Status {
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
