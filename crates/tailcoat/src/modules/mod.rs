//! WebAssembly modules, compiled ahead of time: components of the `wasi:http/proxy` world (WASI 0.2), and core modules
//! of the HTTP handler ABI of http-wasm ([`http_wasm`]). Each request has an instance of its own, unless it is configured that
//! they are used again.
//!
//! A module runs on the thread of the worker that has its request, for most are done in microseconds. It is interrupted
//! every millisecond, so that the worker's other requests have their turn; one that computes for longer goes on on threads
//! of its own (`run.rs`), which give way to workers.

mod call;
mod code;
mod compiled;
mod component;
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
mod pauses;
mod run;
mod ticker;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

pub use call::{Call, Frame, ResponseBody};
pub use code::Code;
pub use component::{Begun, ComponentInstance};
pub use content::{RequestContent, RequestContentSupply};
pub use failure::Failure;
pub use inspect::{Access, Inspection, inspect};
pub use keeper::keep;
use tokio::sync::Semaphore;

use self::engine::Runtime;
use self::guest::Guest;
use self::key_value::KeyValueStore;
use self::outgoing::Outgoing;
use crate::config::{self, Config, FileState, Handler};
use crate::log::ServerLog;
use crate::metrics::{Metrics, ModuleMetrics};

/// All modules of a server.
#[derive(Debug, Default)]
pub struct Modules {
    settings: config::Modules,
    modules: Vec<Arc<Module>>,
    /// Of those that go on, what was compiled anew.
    renewed: Vec<(Arc<Module>, Loaded)>,
}

/// Code, and the file that it was compiled from.
#[derive(Clone)]
struct Loaded {
    code: Arc<Code>,
    file: Option<FileState>,
}

/// A module that could not be loaded, and why.
#[derive(Debug)]
pub struct LoadError(String);

/// Opens the file by which wasmtime finds the pages that an instance has written to, of this process. A process that is not
/// dumpable can't, as one with programs is (`confinement/`); then the memory of each instance is given back to the system.
pub fn open_page_map() {
    // It stays open in there; whether the kernel can scan it is asked again when the pool is made.
    let _ = wasmtime::PoolingAllocationConfig::is_pagemap_scan_available();
}

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
    /// there are already, with the same configuration, go on, with what they have in their stores; if their files have
    /// changed, they do so with those after [`Self::renew`]. What they do is counted in `metrics`, if anywhere.
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
        let renewed = compile_changed(&modules)?;
        let configs: Vec<_> = configs.into_iter().filter(|config| known(config).is_none()).collect();
        if configs.is_empty() {
            return Ok(Self { settings, modules, renewed });
        }
        let runtime = Arc::new(Runtime::new(&settings, &configs, log)?);
        for config in configs {
            if modules.iter().any(|module| module.config == *config) {
                continue;
            }
            let same_file = modules.iter().find(|module| module.is_of(&config.file, &runtime));
            let loaded = match same_file {
                Some(module) => module.loaded(),
                None => Loaded::from(&config.file, &runtime)?,
            };
            modules.push(Arc::new(Module::new(config, loaded, &runtime, metrics)?));
        }
        Ok(Self { settings, modules, renewed })
    }

    /// Has those that go on run their new files.
    pub fn renew(&self) {
        self.renewed.iter().for_each(|(module, loaded)| module.replace(loaded.clone()));
    }

    /// The module of this configuration, if it was there when the modules were loaded.
    pub fn find(&self, config: &config::Module) -> Option<&Arc<Module>> {
        self.modules.iter().find(|module| module.config == *config)
    }
}

/// Compiles the files that have changed since these were compiled, each once.
fn compile_changed(modules: &[Arc<Module>]) -> Result<Vec<(Arc<Module>, Loaded)>, LoadError> {
    let mut changed: Vec<(Arc<Module>, Loaded)> = Vec::new();
    for module in modules.iter().filter(|module| module.loaded().file != FileState::of(&module.config.file)) {
        let same_file = changed.iter().find(|(other, _)| other.is_of(&module.config.file, &module.runtime));
        let loaded = match same_file {
            Some((_, loaded)) => loaded.clone(),
            None => Loaded::from(&module.config.file, &module.runtime)?,
        };
        changed.push((Arc::clone(module), loaded));
    }
    Ok(changed)
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Loaded {
    fn from(file: &Path, runtime: &Runtime) -> Result<Self, LoadError> {
        // First, so that no change is missed.
        let state = FileState::of(file);
        Ok(Self { code: Arc::new(runtime.compile(file)?), file: state })
    }
}

/// A module, as all workers share it.
pub struct Module {
    name: Arc<str>,
    config: config::Module,
    /// What the requests that begin now get. Requests that have begun keep what they began with.
    loaded: RwLock<Loaded>,
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
        loaded: Loaded,
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
            loaded: RwLock::new(loaded),
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
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner).code)
    }

    fn loaded(&self) -> Loaded {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, loaded: Loaded) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
    }

    /// Whether its code is of this file, and for this engine: it runs in no other.
    fn is_of(&self, file: &Path, runtime: &Arc<Runtime>) -> bool {
        self.config.file == *file && Arc::ptr_eq(&self.runtime, runtime)
    }
}
