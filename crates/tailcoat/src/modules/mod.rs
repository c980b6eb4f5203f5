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
mod compiling;
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
mod pollables;
mod precompile;
mod run;
mod ticker;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

pub use call::{Call, ContentFrame, ResponseBody};
pub use code::ModuleCode;
pub use compiling::Patience;
pub use component::{ComponentInstance, ComponentStart};
pub use content::{RequestContent, RequestContentSupply};
pub use failure::CallFailure;
pub use inspect::{ImportAccess, Inspection, inspect};
pub use keeper::keep;
pub use precompile::precompile;
use tokio::sync::Semaphore;

use self::compiling::CompileJob;
use self::engine::Runtime;
use self::guest::ComponentGuest;
use self::key_value::KeyValueStore;
use self::outgoing::OutgoingHosts;
use crate::config::{self, Config, FileState};
use crate::log::ServerLog;
use crate::metrics::{Metrics, ModuleMetrics, SharedCounter};

/// All modules of a server.
#[derive(Debug, Default)]
pub struct Modules {
    settings: config::ModulesConfig,
    modules: Vec<Arc<Module>>,
    /// Of those that go on, what was compiled anew.
    renewed: Vec<(Arc<Module>, Loaded)>,
}

/// Code, and the file that it was compiled from.
#[derive(Clone)]
struct Loaded {
    code: Arc<ModuleCode>,
    file: Option<FileState>,
}

/// How far a module is.
enum ModuleStage {
    /// This state of its file is compiled.
    Compiling(Option<FileState>),
    /// This state of its file can't be used.
    Unusable(Option<FileState>),
    /// Requests are answered.
    Ready(Loaded),
}

/// A module that could not be loaded, and why.
#[derive(Debug)]
pub struct ModuleLoadError(String);

/// Opens the file by which wasmtime finds the pages that an instance has written to, of this process. A process that is not
/// dumpable can't, as one with programs is (`confinement/`); then the memory of each instance is given back to the system.
pub fn open_page_map() {
    // It stays open in there; whether the kernel can scan it is asked again when the pool is made.
    let _ = wasmtime::PoolingAllocationConfig::is_pagemap_scan_available();
}

impl fmt::Display for ModuleLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ModuleLoadError {}

impl From<ModuleLoadError> for std::io::Error {
    fn from(error: ModuleLoadError) -> Self {
        Self::other(error)
    }
}

impl Modules {
    /// Compiles all modules of a configuration, or loads what was compiled before. Without any, nothing is set up. Those that
    /// there are already, with the same configuration, go on, with what they have in their stores; if their files have
    /// changed, they do so with those after [`Self::apply`]. What they do is counted in `metrics`, if anywhere. Modules that
    /// take longer than `patience` have no code until they are compiled.
    ///
    /// # Errors
    /// A module that can't be used, as far as that is known in time, or not enough address space.
    pub fn load(
        config: &Config,
        log: &ServerLog,
        metrics: Option<&Metrics>,
        before: Option<&Self>,
        patience: Patience,
    ) -> Result<Self, ModuleLoadError> {
        let settings = config.modules.clone();
        let before = before.filter(|before| before.settings == settings);
        let configs: Vec<&config::ModuleConfig> = config.module_routes().collect();
        let known = |config: &&config::ModuleConfig| before.and_then(|before| before.find(config)).cloned();
        let mut modules: Vec<Arc<Module>> = Vec::new();
        for module in configs.iter().filter_map(known) {
            if !modules.iter().any(|other| Arc::ptr_eq(other, &module)) {
                modules.push(module);
            }
        }
        let renewed = compile_changed(&modules, log)?;
        let configs: Vec<_> = configs.into_iter().filter(|config| known(config).is_none()).collect();
        if configs.is_empty() {
            return Ok(Self { settings, modules, renewed });
        }
        let runtime = Arc::new(Runtime::new(&settings, &configs, log)?);
        let mut new: Vec<Arc<Module>> = Vec::new();
        for config in configs {
            if !new.iter().any(|module| module.config == *config) {
                new.push(Arc::new(Module::new(config, &runtime, metrics)?));
            }
        }
        compiling::compile(jobs_of(&new), patience, log)?;
        modules.append(&mut new);
        Ok(Self { settings, modules, renewed })
    }

    /// Has those that go on run their new files.
    pub fn apply(&self) {
        self.renewed.iter().for_each(|(module, loaded)| module.set_stage(ModuleStage::Ready(loaded.clone())));
    }

    /// The module of this configuration, if it was there when the modules were loaded.
    pub fn find(&self, config: &config::ModuleConfig) -> Option<&Arc<Module>> {
        self.modules.iter().find(|module| module.config == *config)
    }
}

/// The modules of each file.
fn by_file(modules: impl Iterator<Item = Arc<Module>>) -> Vec<Vec<Arc<Module>>> {
    let mut files: Vec<Vec<Arc<Module>>> = Vec::new();
    for module in modules {
        let same_file = files.iter_mut().find(|others| others[0].is_of(&module.config.file, &module.runtime));
        match same_file {
            Some(others) => others.push(module),
            None => files.push(vec![module]),
        }
    }
    files
}

/// Compilation of these modules: each file is compiled once.
fn jobs_of(modules: &[Arc<Module>]) -> Vec<CompileJob> {
    let job = |modules: Vec<Arc<Module>>| CompileJob {
        file: modules[0].config.file.clone(),
        runtime: Arc::clone(&modules[0].runtime),
        deliver: Box::new(move |loaded| modules.iter().for_each(|module| module.on_compiled(loaded.as_ref()))),
    };
    by_file(modules.iter().cloned()).into_iter().map(job).collect()
}

/// Compiles the files that have changed since these were compiled, or could not be. What is still being compiled goes on.
fn compile_changed(modules: &[Arc<Module>], log: &ServerLog) -> Result<Vec<(Arc<Module>, Loaded)>, ModuleLoadError> {
    let changed = Arc::<Mutex<Vec<_>>>::default();
    let job = |modules: Vec<Arc<Module>>| {
        let changed = Arc::clone(&changed);
        CompileJob {
            file: modules[0].config.file.clone(),
            runtime: Arc::clone(&modules[0].runtime),
            deliver: Box::new(move |loaded| {
                let renewed = modules.into_iter().filter_map(|module| Some((module, loaded.clone()?)));
                changed.lock().unwrap_or_else(PoisonError::into_inner).extend(renewed);
            }),
        }
    };
    let jobs = by_file(modules.iter().filter(|module| module.has_changed()).cloned()).into_iter().map(job).collect();
    compiling::compile(jobs, Patience::Unlimited, log)?;
    let changed = std::mem::take(&mut *changed.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(changed)
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Loaded {
    fn from(file: &Path, runtime: &Runtime) -> Result<Self, ModuleLoadError> {
        // First, so that no change is missed.
        let state = FileState::of(file);
        Ok(Self { code: Arc::new(runtime.compile(file)?), file: state })
    }
}

/// A module, as all workers share it.
pub struct Module {
    name: Arc<str>,
    config: config::ModuleConfig,
    /// What the requests that begin now get. Requests that have begun keep what they began with.
    stage: RwLock<ModuleStage>,
    runtime: Arc<Runtime>,
    metrics: Arc<ModuleMetrics>,
    instances: Arc<Semaphore>,
    outgoing: Arc<OutgoingHosts>,
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
        config: &config::ModuleConfig,
        runtime: &Arc<Runtime>,
        metrics: Option<&Metrics>,
    ) -> Result<Self, ModuleLoadError> {
        for granted in &config.grants.directories {
            // It is opened for each instance, as it may be another by then; but a mistake should show at the start.
            let directory = &granted.directory;
            std::fs::read_dir(directory)
                .map_err(|error| ModuleLoadError(format!("{}: {error}", directory.display())))?;
        }
        let name: Arc<str> = config.file.file_stem().unwrap_or_default().to_string_lossy().into();
        let metrics = metrics.map_or_else(Arc::default, |metrics| metrics.module(&name));
        let stage = ModuleStage::Compiling(FileState::of(&config.file));
        stage.count(&metrics, SharedCounter::add);
        Ok(Self {
            metrics,
            name,
            config: config.clone(),
            stage: RwLock::new(stage),
            runtime: Arc::clone(runtime),
            instances: Arc::new(Semaphore::new(config.limits.instances_max)),
            outgoing: Arc::new(OutgoingHosts::new(config.grants.hosts.clone())),
            key_value: config.grants.key_value.then(|| Arc::new(KeyValueStore::new(config.limits.key_value_bytes_max))),
            settings: config.settings.as_bytes().into(),
        })
    }

    /// Its name: that of its file, without the extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration.
    pub fn config(&self) -> &config::ModuleConfig {
        &self.config
    }

    /// The server's own log.
    pub fn log(&self) -> &ServerLog {
        self.runtime.server_log()
    }

    /// The code that requests run which begin now; `None` while it is compiled, or if it can't be used.
    pub fn code(&self) -> Option<Arc<ModuleCode>> {
        match &*self.stage() {
            ModuleStage::Ready(loaded) => Some(Arc::clone(&loaded.code)),
            ModuleStage::Compiling(_) | ModuleStage::Unusable(_) => None,
        }
    }

    fn stage(&self) -> RwLockReadGuard<'_, ModuleStage> {
        // A panic of one who held the lock left a whole value.
        self.stage.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of its file that was compiled last, or is.
    fn file_state(&self) -> Option<FileState> {
        match &*self.stage() {
            ModuleStage::Compiling(file) | ModuleStage::Unusable(file) => *file,
            ModuleStage::Ready(loaded) => loaded.file,
        }
    }

    /// True if its file is to be compiled again by a reload.
    fn has_changed(&self) -> bool {
        matches!(&*self.stage(), ModuleStage::Unusable(_)) || self.file_state() != FileState::of(&self.config.file)
    }

    fn set_stage(&self, stage: ModuleStage) {
        self.change_stage(|_| Some(stage));
    }

    /// Takes note of what has come of the first compilation, unless a newer file is there by now.
    fn on_compiled(&self, loaded: Option<&Loaded>) {
        self.change_stage(|stage| match (stage, loaded) {
            (ModuleStage::Compiling(_), Some(loaded)) => Some(ModuleStage::Ready(loaded.clone())),
            (ModuleStage::Compiling(file), None) => Some(ModuleStage::Unusable(*file)),
            _ => None,
        });
    }

    fn change_stage(&self, next: impl FnOnce(&ModuleStage) -> Option<ModuleStage>) {
        let mut stage = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = next(&stage) {
            next.count(&self.metrics, SharedCounter::add);
            std::mem::replace(&mut *stage, next).count(&self.metrics, SharedCounter::subtract);
        }
    }

    /// Whether its code is of this file, and for this engine: it runs in no other.
    fn is_of(&self, file: &Path, runtime: &Arc<Runtime>) -> bool {
        self.config.file == *file && Arc::ptr_eq(&self.runtime, runtime)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.stage().count(&self.metrics, SharedCounter::subtract);
    }
}

impl ModuleStage {
    /// Counts a module that is here, or is no more.
    fn count(&self, metrics: &ModuleMetrics, change: fn(&SharedCounter, u64)) {
        match self {
            Self::Compiling(_) => change(&metrics.compiling, 1),
            Self::Unusable(_) => change(&metrics.unusable, 1),
            Self::Ready(_) => {}
        }
    }
}
