//! WebAssembly modules: a request goes to an instance, and its answer comes back; or the request goes on to the next
//! handler, and the answer of that one to the instance.

mod component;
mod content;
mod exchange;
mod http_wasm;
mod idle;
mod next_response;
mod request;
mod response;

use std::rc::Rc;
use std::sync::Arc;

use wire::http::readings::has_hidden_dot_segments;
use wire::http::{Method, Status};

use self::component::Components;
use self::http_wasm::HttpWasm;
use super::forward::overloaded;
use super::{BuiltResponse, HandlerOutcome, Response, Routed};
use crate::modules::{Module, ModuleCode};
use crate::overload::{Overload, RequestCost};

/// Has a module answer requests. Each worker has its own.
pub struct ModuleHandler {
    module: Arc<Module>,
    http_wasm: Rc<HttpWasm>,
    components: Rc<Components>,
    overload: Rc<Overload>,
}

impl ModuleHandler {
    /// A worker's handler.
    pub fn new(module: Arc<Module>, overload: Rc<Overload>) -> Self {
        Self {
            overload,
            http_wasm: Rc::new(HttpWasm::new(Arc::clone(&module))),
            components: Rc::new(Components::new(Arc::clone(&module))),
            module,
        }
    }

    /// Answers a request.
    pub fn handle(&self, routed: &Routed<'_>) -> HandlerOutcome {
        match routed.request.method() {
            // Neither is about a resource of the module.
            Method::Connect => return HandlerOutcome::Decline,
            Method::Options if routed.path == b"*" => return HandlerOutcome::Decline,
            // A module that drops parameters would look elsewhere than where we have let the client in.
            _ if has_hidden_dot_segments(routed.path) => return refuse(Status::BAD_REQUEST),
            _ => {}
        }
        if let Some(link) = routed.link.get() {
            link.set_body_bytes_max(self.module.config().body_bytes_max.answered_here());
            if link.is_too_large() {
                return refuse(Status::CONTENT_TOO_LARGE);
            }
        }
        if self.overload.sheds(RequestCost::Program) {
            return HandlerOutcome::Ready(Response::Built(overloaded(routed)));
        }
        // It may be replaced at any time. Who has begun with the old one goes on with it.
        let Some(code) = self.module.code() else { return wait_for_code() };
        match &*code {
            ModuleCode::HttpWasm(_) => self.http_wasm.handle(&code, routed),
            ModuleCode::Component(_) => self.components.handle(&code, routed),
        }
    }
}

/// The answer where a module has no code: it is being compiled, or its file can't be used. That holds for filters too, because
/// what they guard must not be reached without them.
fn wait_for_code() -> HandlerOutcome {
    let mut response = BuiltResponse::new(Status::SERVICE_UNAVAILABLE);
    response.fields.push("Retry-After", RETRY_AFTER_SECONDS);
    HandlerOutcome::Ready(Response::Built(response))
}

/// Seconds after which a client may ask again for what a module answers that is being compiled.
const RETRY_AFTER_SECONDS: &str = "5";

fn refuse(status: Status) -> HandlerOutcome {
    HandlerOutcome::Ready(Response::Built(BuiltResponse::new(status)))
}
