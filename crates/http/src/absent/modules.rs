//! In the place of [WebAssembly modules](crate::config::ModuleConfig).

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, ModuleConfig, OptionalPart};
use crate::log::ServerLog;
use crate::metrics::Metrics;

/// No modules.
#[derive(Debug, Default)]
pub struct Modules(());

/// A module, of which there is none.
pub type Module = Infallible;

/// Time that a caller waits for the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Without a limit.
    Unlimited,
    /// At most this long.
    AtMost(Duration),
}

impl Modules {
    /// Loads nothing.
    ///
    /// # Errors
    /// The configuration has modules.
    pub fn load(
        config: &Config,
        _: &ServerLog,
        _: Option<&Metrics>,
        _: Option<&Self>,
        _: Patience,
    ) -> io::Result<Self> {
        match config.module_routes().next() {
            Some(_) => Err(io::Error::other(OptionalPart::Modules.absence())),
            None => Ok(Self(())),
        }
    }

    /// Does nothing.
    pub fn apply(&self) {}

    /// No module.
    pub fn find(&self, _: &ModuleConfig) -> Option<&Arc<Module>> {
        None
    }
}

/// Ends at once, because there is nothing to keep.
pub async fn keep(_: Arc<Modules>, _: Duration) {}

/// Opens nothing, because no instance's memory is reused.
pub fn open_page_map() -> bool {
    false
}
