//! Modules as fresh as their files.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Loaded, Module, ModuleStage, Modules};
use crate::config::FileState;
use crate::log::event;

/// Modules that run the same file, and what was last known of it.
struct Watched {
    /// At least one.
    modules: Vec<Arc<Module>>,
    /// The state in which it was compiled, or could not be.
    compiled: Option<FileState>,
    /// The state at the last look.
    seen: Option<FileState>,
}

/// Looks at the files of all modules at this interval, for ever, and compiles those that have changed.
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
        // Compiling takes its time, and disks can be slow.
        let looked = spawn_blocking(move || {
            watched.iter_mut().for_each(Watched::look);
            watched
        });
        match looked.await {
            Ok(looked) => watched = looked,
            // A panic; the modules that are in use stay.
            Err(_) => return,
        }
    }
}

impl Watched {
    /// Compiles the file if it has changed, and is the same as at the last look: nobody is writing it any more.
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
