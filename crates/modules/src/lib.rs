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
mod lines;
mod meter;
mod module;
mod outgoing;
mod pauses;
mod pollables;
mod precompile;
mod run;
mod ticker;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

pub use call::{Call, ContentFrame, ResponseBody};
pub use code::ModuleCode;
pub use compiling::Patience;
pub use component::{ComponentInstance, ComponentStart};
pub use content::{RequestContent, RequestContentSupply};
pub use failure::CallFailure;
pub use inspect::{ImportAccess, Inspection, inspect};
pub use keeper::keep;
pub use module::Module;
pub use precompile::precompile;
pub use wasmtime_wasi_http::WasiBody;

use self::compiling::CompileJob;
use self::engine::Runtime;
use self::guest::ComponentGuest;
use self::module::{Loaded, ModuleStage};
use tailcoat_config::{self as config, Config};
use tailcoat_observe::{log, metrics};

/// All modules of a server.
#[derive(Debug, Default)]
pub struct Modules {
    settings: config::ModulesConfig,
    modules: Vec<Arc<Module>>,
    /// Recompiled code of modules that are reused from the old configuration.
    renewed: Vec<(Arc<Module>, Loaded)>,
}

/// Reason why a module could not be loaded.
#[derive(Debug)]
pub struct ModuleLoadError(String);

/// Opens this process's page map, with which wasmtime finds the pages that an instance has written to. A process that
/// is not dumpable cannot open it; processes that start programs are not (`confinement/`). Without it, each instance's
/// memory goes back to the system. Returns whether the kernel has such a map.
pub fn open_page_map() -> bool {
    // wasmtime keeps it open. It checks the kernel's support again when it creates the pool.
    wasmtime::PoolingAllocationConfig::is_pagemap_scan_available()
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
        log: &log::ServerLog,
        metrics: Option<&metrics::Metrics>,
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
fn compile_changed(
    modules: &[Arc<Module>],
    log: &log::ServerLog,
) -> Result<Vec<(Arc<Module>, Loaded)>, ModuleLoadError> {
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
