//! WebAssembly modules, compiled ahead of time: components of the `wasi:http/proxy` world (WASI 0.2), and core modules
//! for the HTTP handler ABI of http-wasm ([`http_wasm`]). Each request gets its own instance, unless the configuration
//! lets instances be used again.
//!
//! A module runs on the thread of the worker that has its request, because most finish within microseconds. It is
//! interrupted every millisecond, so that the worker's other requests get their turn. A module that computes for longer
//! moves to low-priority threads (`run.rs`).

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
    /// Recompiled code of modules that are reused from the old configuration.
    renewed: Vec<(Arc<Module>, Loaded)>,
}

/// Code, and the state of the file that it was compiled from.
#[derive(Clone)]
struct Loaded {
    code: Arc<ModuleCode>,
    file: Option<FileState>,
}

/// Stage of a module.
enum ModuleStage {
    /// This state of the file is being compiled.
    Compiling(Option<FileState>),
    /// This state of the file cannot be used.
    Unusable(Option<FileState>),
    /// The module answers requests.
    Ready(Loaded),
}

/// Reason why a module could not be loaded.
#[derive(Debug)]
pub struct ModuleLoadError(String);

/// Opens this process's page map, with which wasmtime finds the pages that an instance has written to. A process that
/// is not dumpable cannot open it; processes that start programs are not (`confinement/`). Without it, each instance's
/// memory goes back to the system.
pub fn open_page_map() {
    // wasmtime keeps it open. It checks the kernel's support again when it creates the pool.
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
    /// Loads all modules of a configuration from compiled code, or compiles them. Without modules, sets up nothing.
    /// Modules with an unchanged configuration are reused, with their key-value stores. If their files have changed,
    /// [`Self::apply`] switches them to the new code. `metrics` counts their work, if given. Modules that compile
    /// longer than `patience` have no code until they are compiled.
    ///
    /// # Errors
    /// A module that cannot be used, if that is known in time, or too little address space.
    pub fn load(
        config: &Config,
        log: &ServerLog,
        metrics: Option<&Metrics>,
        reused: Option<&Self>,
        patience: Patience,
    ) -> Result<Self, ModuleLoadError> {
        let settings = config.modules.clone();
        let reused = reused.filter(|reused| reused.settings == settings);
        let configs: Vec<&config::ModuleConfig> = config.module_routes().collect();
        let known = |config: &&config::ModuleConfig| reused.and_then(|reused| reused.find(config)).cloned();
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

    /// Switches reused modules to the code of their changed files.
    pub fn apply(&self) {
        self.renewed.iter().for_each(|(module, loaded)| module.set_stage(ModuleStage::Ready(loaded.clone())));
    }

    /// Module of this configuration, if it existed when the modules were loaded.
    pub fn find(&self, config: &config::ModuleConfig) -> Option<&Arc<Module>> {
        self.modules.iter().find(|module| module.config == *config)
    }
}

/// Modules, grouped by file.
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

/// Jobs that compile these modules, each file once.
fn jobs_of(modules: &[Arc<Module>]) -> Vec<CompileJob> {
    let job = |modules: Vec<Arc<Module>>| CompileJob {
        file: modules[0].config.file.clone(),
        runtime: Arc::clone(&modules[0].runtime),
        deliver: Box::new(move |loaded| modules.iter().for_each(|module| module.on_compiled(loaded.as_ref()))),
    };
    by_file(modules.iter().cloned()).into_iter().map(job).collect()
}

/// Compiles the files that have changed, or failed, since the last compilation. Compilations in progress continue.
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
        // Taken first, so that no change is missed.
        let state = FileState::of(file);
        Ok(Self { code: Arc::new(runtime.compile(file)?), file: state })
    }
}

/// Module that all workers share.
pub struct Module {
    name: Arc<str>,
    config: config::ModuleConfig,
    /// Code for new requests. Running requests keep the code that they started with.
    stage: RwLock<ModuleStage>,
    runtime: Arc<Runtime>,
    metrics: Arc<ModuleMetrics>,
    instances: Arc<Semaphore>,
    outgoing: Arc<OutgoingHosts>,
    key_value: Option<Arc<KeyValueStore>>,
    /// Settings that the module can read.
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
            // Opened again for each instance, because the directory may be replaced; this check shows mistakes at the
            // start.
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

    /// Name of the file without its extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Configuration of this module.
    pub fn config(&self) -> &config::ModuleConfig {
        &self.config
    }

    /// Server log.
    pub fn log(&self) -> &ServerLog {
        self.runtime.server_log()
    }

    /// Code for new requests; `None` while it is being compiled, or if it cannot be used.
    pub fn code(&self) -> Option<Arc<ModuleCode>> {
        match &*self.stage() {
            ModuleStage::Ready(loaded) => Some(Arc::clone(&loaded.code)),
            ModuleStage::Compiling(_) | ModuleStage::Unusable(_) => None,
        }
    }

    fn stage(&self) -> RwLockReadGuard<'_, ModuleStage> {
        // A panic under the lock leaves a whole value.
        self.stage.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of the file that was compiled last, or is being compiled.
    fn file_state(&self) -> Option<FileState> {
        match &*self.stage() {
            ModuleStage::Compiling(file) | ModuleStage::Unusable(file) => *file,
            ModuleStage::Ready(loaded) => loaded.file,
        }
    }

    /// True if a reload must compile the file again.
    fn has_changed(&self) -> bool {
        matches!(&*self.stage(), ModuleStage::Unusable(_)) || self.file_state() != FileState::of(&self.config.file)
    }

    fn set_stage(&self, stage: ModuleStage) {
        self.change_stage(|_| Some(stage));
    }

    /// Records the result of the first compilation, unless a newer file has been loaded meanwhile.
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

    /// True if the code is of this file and this engine; no other engine can run it.
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
    /// Counts a module that was added or removed.
    fn count(&self, metrics: &ModuleMetrics, change: fn(&SharedCounter, u64)) {
        match self {
            Self::Compiling(_) => change(&metrics.compiling, 1),
            Self::Unusable(_) => change(&metrics.unusable, 1),
            Self::Ready(_) => {}
        }
    }
}
