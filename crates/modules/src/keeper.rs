//! Recompiles modules whose files have changed.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Loaded, Module, ModuleStage, Modules};
use crate::config::FileState;
use crate::log::event;

/// Modules that run the same file, and the file's last known state.
struct Watched {
    /// Never empty.
    modules: Vec<Arc<Module>>,
    /// State of the file that was compiled, or failed to compile.
    compiled: Option<FileState>,
    /// State at the last check.
    seen: Option<FileState>,
}

/// Checks the files of all modules at this interval, forever, and compiles those that have changed.
pub async fn keep(modules: Arc<Modules>, interval: Duration) {
    let mut watched: Vec<Watched> = Vec::new();
    for module in &modules.modules {
        let is_same = |watched: &&mut Watched| watched.modules[0].is_of(&module.config.file, &module.runtime);
        match watched.iter_mut().find(is_same) {
            Some(known) => known.modules.push(Arc::clone(module)),
            None => {
                let compiled = module.file_state();
                watched.push(Watched { modules: vec![Arc::clone(module)], compiled, seen: compiled });
            }
        }
    }
    if watched.is_empty() {
        return;
    }
    loop {
        sleep(interval).await;
        // Runs on a thread, because compiling takes time and disks can be slow.
        let looked = spawn_blocking(move || {
            watched.iter_mut().for_each(Watched::look);
            watched
        });
        match looked.await {
            Ok(looked) => watched = looked,
            // The check panicked; the modules in use stay.
            Err(_) => return,
        }
    }
}

impl Watched {
    /// Compiles a changed file once two checks in a row find the same state: then no program is writing it.
    fn look(&mut self) {
        let module = &self.modules[0];
        let now = FileState::of(&module.config.file);
        let is_settled = now == std::mem::replace(&mut self.seen, now);
        if now.is_none() || now == self.compiled || !is_settled {
            return;
        }
        self.compiled = now;
        let (name, log) = (module.name(), module.log());
        match Loaded::from(&module.config.file, &module.runtime) {
            Ok(loaded) => {
                self.modules.iter().for_each(|module| module.set_stage(ModuleStage::Ready(loaded.clone())));
                log.info(event("module replaced by its new file", &[("module", &name)]));
            }
            Err(error) => {
                let help = match module.code() {
                    Some(_) => "the old module stays in use",
                    None => "its paths get 503",
                };
                log.warn(event("loading new module file failed", &[("module", &name), ("error", &error)]), help);
            }
        }
    }
}
