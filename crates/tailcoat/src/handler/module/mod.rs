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
use super::{BuiltResponse, Outcome, Response, Routed};
use crate::modules::{Code, Module};
use crate::overload::{Cost, Overload};

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
    pub fn handle(&self, routed: &Routed<'_>) -> Outcome {
        match routed.request.method() {
            // Neither is about a resource of the module.
            Method::Connect => return Outcome::Decline,
            Method::Options if routed.path == b"*" => return Outcome::Decline,
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
        if self.overload.sheds(Cost::Program) {
            return Outcome::Ready(Response::Built(overloaded(routed)));
        }
        // It may be replaced at any time. Who has begun with the old one goes on with it.
        let Some(code) = self.module.code() else { return wait_for_code() };
        match &*code {
            Code::HttpWasm(_) => self.http_wasm.handle(&code, routed),
            Code::Component(_) => self.components.handle(&code, routed),
        }
    }
}

/// The answer where a module has no code: it is being compiled, or its file can't be used. That holds for filters too, because
/// what they guard must not be reached without them.
fn wait_for_code() -> Outcome {
    let mut response = BuiltResponse::new(Status::SERVICE_UNAVAILABLE);
    response.fields.push("Retry-After", RETRY_AFTER_SECONDS);
    Outcome::Ready(Response::Built(response))
}

/// Seconds after which a client may ask again for what a module answers that is being compiled.
const RETRY_AFTER_SECONDS: &str = "5";

fn refuse(status: Status) -> Outcome {
    Outcome::Ready(Response::Built(BuiltResponse::new(status)))
}
