//! Compiles modules before a server runs them.

use std::path::Path;
use std::time::{Duration, Instant};

use super::ModuleLoadError;
use super::code::ModuleCode;
use super::compiled;
use super::engine::{CacheProblem, Linkers, cache_in, engine};
use crate::config::ModulesConfig;

/// Largest table that `table-elements-max` permits.
const TABLE_ELEMENTS_MAX: usize = 10_000_000;

/// Compiles files into the directory where a server with these settings looks for them. Reports each one and the time
/// that it took.
///
/// # Errors
/// The directory must not be used, or a file cannot run in this server.
pub fn precompile<'a>(
    settings: &ModulesConfig,
    files: impl Iterator<Item = &'a Path>,
    mut tell: impl FnMut(&Path, Duration),
) -> Result<(), ModuleLoadError> {
    let directory = compiled::directory(&settings.compiled_directory).ok_or_else(|| {
        ModuleLoadError(
            "no directory for compiled modules; set one with `modules { compiled \"DIRECTORY\" }`".to_owned(),
        )
    })?;
    let cache = cache_in(directory).map_err(|problem| match problem {
        CacheProblem::Directory(problem) => {
            ModuleLoadError(format!("cannot save compiled modules: {problem}; run this command as the server's user"))
        }
        CacheProblem::Other(error) => error,
    })?;
    // Creates no instances, and permits the largest possible tables.
    let settings = ModulesConfig { instances_max: 1, ..settings.clone() };
    let engine = engine(&settings, TABLE_ELEMENTS_MAX, Some(cache))?;
    let linkers = Linkers::new(&engine).map_err(|error| ModuleLoadError(format!("{error:#}")))?;
    for file in files {
        let begun = Instant::now();
        let compiled = ModuleCode::compile(file, &engine, &linkers);
        compiled.map_err(|message| ModuleLoadError(format!("{}: {message}", file.display())))?;
        tell(file, begun.elapsed());
    }
    Ok(())
}
