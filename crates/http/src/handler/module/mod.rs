//! WebAssembly modules. An instance handles a request itself, or passes it to the next handler and then filters the
//! response.

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

/// Handler that passes requests to a module. Each worker has its own.
pub struct ModuleHandler {
    module: Arc<Module>,
    http_wasm: Rc<HttpWasm>,
    components: Rc<Components>,
    overload: Rc<Overload>,
}

impl ModuleHandler {
    /// Creates a worker's handler.
    pub fn new(module: Arc<Module>, overload: Rc<Overload>) -> Self {
        Self {
            overload,
            http_wasm: Rc::new(HttpWasm::new(Arc::clone(&module))),
            components: Rc::new(Components::new(Arc::clone(&module))),
            module,
        }
    }

    /// Handles a request.
    pub fn handle(&self, routed: &Routed<'_>) -> HandlerOutcome {
        match routed.request.method() {
            // Neither concerns a resource of the module.
            Method::Connect => return HandlerOutcome::Decline,
            Method::Options if routed.path == b"*" => return HandlerOutcome::Decline,
            // A module that drops path parameters would resolve a path other than the one that was checked here.
            _ if has_hidden_dot_segments(routed.path) => return reject(Status::BAD_REQUEST),
            _ => {}
        }
        if let Some(link) = routed.link.get() {
            link.set_body_bytes_max(self.module.config().body_bytes_max.answered_here());
            if link.is_too_large() {
                return reject(Status::CONTENT_TOO_LARGE);
            }
        }
        if self.overload.sheds(RequestCost::Program) {
            return HandlerOutcome::Ready(Response::Built(overloaded(routed)));
        }
        // The code may be replaced at any time. A request keeps the code that it began with.
        let Some(code) = self.module.code() else { return wait_for_code() };
        match &*code {
            ModuleCode::HttpWasm(_) => self.http_wasm.handle(&code, routed),
            ModuleCode::Component(_) => self.components.handle(&code, routed),
        }
    }
}

/// Response while a module has no code, because it is being compiled or its file is invalid. Filters respond so, too:
/// the handlers that they guard must not be reached without them.
fn wait_for_code() -> HandlerOutcome {
    let mut response = BuiltResponse::new(Status::SERVICE_UNAVAILABLE);
    response.fields.push("Retry-After", RETRY_AFTER_SECONDS);
    HandlerOutcome::Ready(Response::Built(response))
}

/// Value of Retry-After while a module is being compiled, in seconds.
const RETRY_AFTER_SECONDS: &str = "5";

fn reject<W>(status: Status) -> HandlerOutcome<W> {
    HandlerOutcome::Ready(Response::Built(BuiltResponse::new(status)))
}
