//! WebAssembly modules: a request goes to an instance of its own, and its answer comes back.

mod content;
mod exchange;
mod request;
mod response;

use std::rc::Rc;
use std::sync::Arc;

use wire::http::{Method, Status, path};

use self::exchange::Exchange;
use super::{BuiltResponse, Outcome, Response, Routed};
use crate::modules::Module;

/// Has a module answer requests. Each worker has its own.
pub struct ModuleHandler {
    module: Arc<Module>,
}

impl ModuleHandler {
    /// A worker's handler.
    pub fn new(module: Arc<Module>) -> Self {
        Self { module }
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
        let link = Rc::clone(routed.link.link());
        link.set_body_bytes_max(self.module.config().body_bytes_max.answered_here());
        if link.is_too_large() {
            return refuse(Status::CONTENT_TOO_LARGE);
        }
        match request::module_request(routed, link.framing(), self.module.config().client_fields) {
            Some((request, supply)) => {
                Outcome::Wait(Box::pin(Exchange::new(&self.module, link, routed, request, supply)))
            }
            None => refuse(Status::BAD_REQUEST),
        }
    }
}

fn refuse(status: Status) -> Outcome {
    Outcome::Ready(Response::Built(BuiltResponse::new(status)))
}
