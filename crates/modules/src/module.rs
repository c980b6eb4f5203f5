//! A module: its configuration, its code, and the stages of compiling it.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::Semaphore;

use super::ModuleLoadError;
use super::code::ModuleCode;
use super::engine::Runtime;
use super::key_value::KeyValueStore;
use super::outgoing::OutgoingHosts;
use crate::config::{self, FileState};
use crate::log::ServerLog;
use crate::metrics::{Metrics, ModuleMetrics, SharedCounter};

/// Code, and the state of the file that it was compiled from.
#[derive(Clone)]
pub(super) struct Loaded {
    pub(super) code: Arc<ModuleCode>,
    pub(super) file: Option<FileState>,
}

/// Stage of a module.
pub(super) enum ModuleStage {
    /// This state of the file is being compiled.
    Compiling(Option<FileState>),
    /// This state of the file cannot be used.
    Unusable(Option<FileState>),
    /// The module answers requests.
    Ready(Loaded),
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Loaded {
    pub(super) fn from(file: &Path, runtime: &Runtime) -> Result<Self, ModuleLoadError> {
        // Taken first, so that no change is missed.
        let state = FileState::of(file);
        Ok(Self { code: Arc::new(runtime.compile(file)?), file: state })
    }
}

/// Module that all workers share.
pub struct Module {
    pub(super) name: Arc<str>,
    pub(super) config: config::ModuleConfig,
    /// Code for new requests. Running requests keep the code that they started with.
    stage: RwLock<ModuleStage>,
    pub(super) runtime: Arc<Runtime>,
    pub(super) metrics: Arc<ModuleMetrics>,
    pub(super) instances: Arc<Semaphore>,
    pub(super) outgoing: Arc<OutgoingHosts>,
    pub(super) key_value: Option<Arc<KeyValueStore>>,
    /// Settings that the module can read.
    pub(super) settings: Arc<[u8]>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Module {
    pub(super) fn new(
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
    pub(super) fn file_state(&self) -> Option<FileState> {
        match &*self.stage() {
            ModuleStage::Compiling(file) | ModuleStage::Unusable(file) => *file,
            ModuleStage::Ready(loaded) => loaded.file,
        }
    }

    /// True if a reload must compile the file again.
    pub(super) fn has_changed(&self) -> bool {
        matches!(&*self.stage(), ModuleStage::Unusable(_)) || self.file_state() != FileState::of(&self.config.file)
    }

    pub(super) fn set_stage(&self, stage: ModuleStage) {
        self.change_stage(|_| Some(stage));
    }

    /// Records the result of the first compilation, unless a newer file has been loaded meanwhile.
    pub(super) fn on_compiled(&self, loaded: Option<&Loaded>) {
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
    pub(super) fn is_of(&self, file: &Path, runtime: &Arc<Runtime>) -> bool {
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
