//! In the place of the handler of WebAssembly modules.

use std::rc::Rc;
use std::sync::Arc;

use crate::handler::{HandlerOutcome, Routed};
use crate::modules::Module;
use crate::overload::Overload;

/// Handler of modules, of which there is none.
pub enum ModuleHandler {}

impl ModuleHandler {
    /// No handler, because there is no module.
    pub fn new(module: Arc<Module>, _: Rc<Overload>) -> Self {
        match *module {}
    }

    /// No response, because there is no handler.
    pub fn handle(&self, _: &Routed<'_>) -> HandlerOutcome {
        match *self {}
    }
}
