//! Modules as fresh as their files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Module, Modules};

/// What tells one state of a file from another: device, inode, size, and when it was changed.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// A file, the modules that run it, and what was last known of it.
struct Watched {
    file: PathBuf,
    modules: Vec<Arc<Module>>,
    /// The state in which it was compiled, or could not be.
    compiled: Stamp,
    /// The state at the last look.
    seen: Stamp,
}

/// Looks at the files of all modules at this interval, for ever, and compiles those that have changed.
pub async fn keep(modules: Arc<Modules>, interval: Duration) {
    let mut watched: Vec<Watched> = Vec::new();
    for module in &modules.modules {
        let file = &module.config.file;
        match watched.iter_mut().find(|watched| watched.file == *file) {
            Some(known) => known.modules.push(Arc::clone(module)),
            None => {
                let (compiled, modules) = (stamp(file), vec![Arc::clone(module)]);
                watched.push(Watched { file: file.clone(), modules, compiled, seen: compiled });
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
        let now = stamp(&self.file);
        let is_settled = now == std::mem::replace(&mut self.seen, now);
        if now.is_none() || now == self.compiled || !is_settled {
            return;
        }
        self.compiled = now;
        let Some(module) = self.modules.first() else { return };
        let (name, log) = (module.name(), module.log());
        match module.runtime.compile(&self.file) {
            Ok(code) => {
                let code = Arc::new(code);
                self.modules.iter().for_each(|module| module.replace(Arc::clone(&code)));
                log.info(format_args!("the module {name} was replaced by its new file"));
            }
            Err(error) => {
                let help = "the module that is in use is kept";
                log.warn(format_args!("the new file of the module {name} can't be used: {error}"), help);
            }
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}
