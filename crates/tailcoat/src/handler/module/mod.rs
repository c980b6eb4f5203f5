//! WebAssembly modules: a request goes to an instance, and its answer comes back; or the request goes on to the next
//! handler, and the answer of that one to the instance.

mod content;
mod exchange;
mod http_wasm;
mod next_response;
mod request;
mod response;

use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};

use wire::http::{Method, Status, path};

use self::exchange::Exchange;
use self::http_wasm::HttpWasm;
use super::{BuiltResponse, Outcome, Response, Routed};
use crate::modules::{Code, ComponentCode, Module};

/// Has a module answer requests. Each worker has its own.
pub struct ModuleHandler {
    module: Arc<Module>,
    http_wasm: Rc<HttpWasm>,
}

impl ModuleHandler {
    /// A worker's handler.
    pub fn new(module: Arc<Module>) -> Self {
        Self { http_wasm: Rc::new(HttpWasm::new(Arc::clone(&module))), module }
    }

    /// Answers a request.
    pub fn handle(&self, routed: &Routed<'_>) -> Outcome {
        match routed.request.method() {
            // Neither is about a resource of the module.
            Method::Connect => return Outcome::Decline,
            Method::Options if routed.path == b"*" => return Outcome::Decline,
            // A module that drops parameters would look elsewhere than where we have let the client in.
            _ if path::has_hidden_dot_segments(routed.path) => return refuse(Status::BAD_REQUEST),
            _ => {}
        }
        if let Some(link) = routed.link.get() {
            link.set_body_bytes_max(self.module.config().body_bytes_max.answered_here());
            if link.is_too_large() {
                return refuse(Status::CONTENT_TOO_LARGE);
            }
        }
        // It may be replaced at any time. Who has begun with the old one goes on with it.
        let code = self.module.code();
        match &*code {
            Code::HttpWasm(_) => self.http_wasm.handle(&code, routed),
            Code::Component(component) => self.ask_component(component, routed),
        }
    }

    fn ask_component(&self, code: &ComponentCode, routed: &Routed<'_>) -> Outcome {
        let link = Rc::clone(routed.link.link());
        let request = request::module_request(routed, link.framing(), self.module.config().client_fields);
        let Some((request, supply)) = request else { return refuse(Status::BAD_REQUEST) };
        let has_content = supply.is_some();
        let mut exchange = Exchange::new(&self.module, code, link, routed, request, supply);
        if has_content {
            return Outcome::Wait(Box::pin(exchange));
        }
        // Most are done at once. One that has to wait is polled again at once.
        match Pin::new(&mut exchange).poll(&mut Task::from_waker(Waker::noop())) {
            // Content that is still to come has limits of time, which only answers that were waited for have.
            Poll::Ready(outcome) if is_stream(&outcome) => Outcome::Wait(Box::pin(ready(outcome))),
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Outcome::Wait(Box::pin(exchange)),
        }
    }
}

fn is_stream(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Ready(Response::Built(response)) if response.body.stream.is_some())
}

fn refuse(status: Status) -> Outcome {
    Outcome::Ready(Response::Built(BuiltResponse::new(status)))
}
