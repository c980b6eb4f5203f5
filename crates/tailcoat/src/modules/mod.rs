//! WebAssembly modules, compiled ahead of time: components of the `wasi:http/proxy` world (WASI 0.2), each request in an
//! instance of its own; and core modules of the HTTP handler ABI of http-wasm ([`http_wasm`]).
//!
//! A module runs on the thread of the worker that has its request, for most are done in microseconds. It is interrupted
//! every millisecond, so that the worker's other requests have their turn; one that computes for longer goes on on threads
//! of its own (`run.rs`), which give way to workers.

mod call;
mod code;
mod compiled;
mod content;
mod engine;
mod failure;
mod guest;
pub mod http_wasm;
mod inspect;
mod keeper;
mod key_value;
mod limiter;
mod log;
mod meter;
mod outgoing;
mod run;
mod ticker;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

pub use call::{Call, Frame, ResponseBody};
pub use code::{Code, ComponentCode};
pub use content::{RequestContent, RequestContentSupply};
pub use failure::Failure;
pub use inspect::{Access, Inspection, inspect};
pub use keeper::keep;
use tokio::sync::Semaphore;

use self::engine::Runtime;
use self::guest::Guest;
use self::key_value::KeyValueStore;
use self::outgoing::Outgoing;
use crate::config::{self, Config, Handler};
use crate::log::ServerLog;
use crate::metrics::{Metrics, ModuleMetrics};

/// All modules of a server.
#[derive(Debug, Default)]
pub struct Modules {
    settings: config::Modules,
    modules: Vec<Arc<Module>>,
}

/// A module that could not be loaded, and why.
#[derive(Debug)]
pub struct LoadError(String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

impl From<LoadError> for std::io::Error {
    fn from(error: LoadError) -> Self {
        Self::other(error)
    }
}

impl Modules {
    /// Compiles all modules of a configuration, or loads what was compiled before. Without any, nothing is set up. Those that
    /// there are already, with the same configuration, go on, with what they have in their stores. What they do is counted in
    /// `metrics`, if anywhere.
    ///
    /// # Errors
    /// A module that can't be used, or not enough address space.
    pub fn load(
        config: &Config,
        log: &ServerLog,
        metrics: Option<&Metrics>,
        before: Option<&Self>,
    ) -> Result<Self, LoadError> {
        let settings = config.modules.clone();
        let before = before.filter(|before| before.settings == settings);
        let routes = config.sites.iter().flat_map(|site| &site.routes);
        let configs: Vec<&config::Module> = routes
            .filter_map(|route| match &route.handler {
                Handler::Module(module) => Some(&**module),
                _ => None,
            })
            .collect();
        let known = |config: &&config::Module| before.and_then(|before| before.find(config)).cloned();
        let mut modules: Vec<Arc<Module>> = Vec::new();
        for module in configs.iter().filter_map(known) {
            if !modules.iter().any(|other| Arc::ptr_eq(other, &module)) {
                modules.push(module);
            }
        }
        let configs: Vec<_> = configs.into_iter().filter(|config| known(config).is_none()).collect();
        if configs.is_empty() {
            return Ok(Self { settings, modules });
        }
        let runtime = Arc::new(Runtime::new(&settings, &configs, log)?);
        for config in configs {
            if modules.iter().any(|module| module.config == *config) {
                continue;
            }
            // What was compiled for another engine runs only there.
            let is_same =
                |module: &&Arc<Module>| module.config.file == config.file && Arc::ptr_eq(&module.runtime, &runtime);
            let same_file = modules.iter().find(is_same);
            let code = match same_file {
                Some(module) => module.code(),
                None => Arc::new(runtime.compile(&config.file)?),
            };
            modules.push(Arc::new(Module::new(config, code, &runtime, metrics)?));
        }
        Ok(Self { settings, modules })
    }

    /// The module of this configuration, if it was there when the modules were loaded.
    pub fn find(&self, config: &config::Module) -> Option<&Arc<Module>> {
        self.modules.iter().find(|module| module.config == *config)
    }
}

/// A module, as all workers share it.
pub struct Module {
    name: Arc<str>,
    config: config::Module,
    /// What the requests that begin now get. Requests that have begun keep what they began with.
    code: RwLock<Arc<Code>>,
    runtime: Arc<Runtime>,
    metrics: Arc<ModuleMetrics>,
    instances: Arc<Semaphore>,
    outgoing: Arc<Outgoing>,
    key_value: Option<Arc<KeyValueStore>>,
    /// What it can ask for as its settings.
    settings: Arc<[u8]>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Module {
    fn new(
        config: &config::Module,
        code: Arc<Code>,
        runtime: &Arc<Runtime>,
        metrics: Option<&Metrics>,
    ) -> Result<Self, LoadError> {
        for granted in &config.grants.directories {
            // It is opened for each instance, as it may be another by then; but a mistake should show at the start.
            let directory = &granted.directory;
            std::fs::read_dir(directory).map_err(|error| LoadError(format!("{}: {error}", directory.display())))?;
        }
        let name: Arc<str> = config.file.file_stem().unwrap_or_default().to_string_lossy().into();
        Ok(Self {
            metrics: metrics.map_or_else(Arc::default, |metrics| metrics.module(&name)),
            name,
            config: config.clone(),
            code: RwLock::new(code),
            runtime: Arc::clone(runtime),
            instances: Arc::new(Semaphore::new(config.limits.instances_max)),
            outgoing: Arc::new(Outgoing::new(config.grants.hosts.clone())),
            key_value: config.grants.key_value.then(|| Arc::new(KeyValueStore::new(config.limits.key_value_bytes_max))),
            settings: config.settings.as_bytes().into(),
        })
    }

    /// Its name: that of its file, without the extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration.
    pub fn config(&self) -> &config::Module {
        &self.config
    }

    /// The server's own log.
    pub fn log(&self) -> &ServerLog {
        self.runtime.server_log()
    }

    /// The code that requests run which begin now.
    pub fn code(&self) -> Arc<Code> {
        // A panic of one who held the lock left a whole value.
        Arc::clone(&self.code.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, code: Arc<Code>) {
        *self.code.write().unwrap_or_else(PoisonError::into_inner) = code;
    }
}
