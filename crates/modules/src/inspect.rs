//! Report on a module's imports and needs, for an operator who considers running it.

use std::path::Path;
use std::time::{Duration, Instant};

use wasmtime::component::Component;
use wasmtime::{Config, Engine, Module};
use wasmtime_wasi_http::p2::bindings::ProxyPre;

use super::code::{CORE_PREAMBLE, error_text, read};
use super::engine::Linkers;
use super::http_wasm;

/// Findings in a module's file.
#[derive(Debug)]
pub struct Inspection {
    /// True for a component; false for a core module, which must use http-wasm to answer requests.
    pub is_component: bool,
    /// Size of the file, in bytes.
    pub file_bytes: u64,
    /// Size of the compiled machine code and data, in bytes.
    pub compiled_bytes: usize,
    /// Time that compiling took.
    pub compile_time: Duration,
    /// Imported interfaces or functions, and the access that each needs.
    pub imports: Vec<(String, ImportAccess)>,
    /// Names of exports.
    pub exports: Vec<String>,
    /// Initial memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Initial number of table elements.
    pub table_elements: Option<u64>,
    /// Reason why it cannot answer requests, if it cannot.
    pub problem: Option<String>,
}

/// Access that an import needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportAccess {
    /// Nothing that must be granted.
    Always,
    /// An option grants it; without the option, calls are denied.
    Granted(&'static str),
    /// Always denied.
    Never,
    /// The server has no such interface.
    Unknown,
}

/// Compiles and inspects a file. Runs none of its code.
///
/// # Errors
/// The file cannot be read, or is no WebAssembly.
pub fn inspect(file: &Path) -> Result<Inspection, String> {
    let bytes = read(file)?;
    let mut config = Config::new();
    config.epoch_interruption(true).concurrency_support(false);
    let engine = Engine::new(&config).map_err(error_text)?;
    let start = Instant::now();
    if bytes.starts_with(CORE_PREAMBLE) {
        let module = Module::from_binary(&engine, &bytes).map_err(error_text)?;
        return inspect_core(&engine, &module, bytes.len(), start.elapsed());
    }
    let component = Component::from_binary(&engine, &bytes).map_err(error_text)?;
    let compile_time = start.elapsed();
    let world = component.component_type();
    let resources = component.resources_required();
    let image = component.image_range();
    Ok(Inspection {
        is_component: true,
        file_bytes: bytes.len() as u64,
        compiled_bytes: image.end as usize - image.start as usize,
        compile_time,
        imports: world.imports(&engine).map(|(name, _)| (name.to_owned(), access(name))).collect(),
        exports: world.exports(&engine).map(|(name, _)| name.to_owned()).collect(),
        memory_bytes: resources.as_ref().and_then(|resources| resources.max_initial_memory_size.map(bytes_of_pages)),
        table_elements: resources.and_then(|resources| resources.max_initial_table_size),
        problem: problem(&engine, &component).err(),
    })
}

fn inspect_core(
    engine: &Engine,
    module: &Module,
    file_bytes: usize,
    compile_time: Duration,
) -> Result<Inspection, String> {
    let image = module.image_range();
    let resources = module.resources_required();
    let linkers = Linkers::new(engine).map_err(error_text)?;
    let imports = module.imports().map(|import| {
        let name = format!("{} {}", import.module(), import.name());
        (name, core_access(import.module(), import.name()))
    });
    Ok(Inspection {
        is_component: false,
        file_bytes: file_bytes as u64,
        compiled_bytes: image.end as usize - image.start as usize,
        compile_time,
        imports: imports.collect(),
        exports: module.exports().map(|export| export.name().to_owned()).collect(),
        memory_bytes: resources.max_initial_memory_size.map(bytes_of_pages),
        table_elements: resources.max_initial_table_size,
        problem: http_wasm::HttpWasmCode::new(module, &linkers.core).err(),
    })
}

fn problem(engine: &Engine, component: &Component) -> Result<(), String> {
    let linkers = Linkers::new(engine).map_err(error_text)?;
    let instance = linkers.component.instantiate_pre(component).map_err(error_text)?;
    ProxyPre::new(instance).map_err(|_| "it does not export wasi:http/incoming-handler".to_owned())?;
    Ok(())
}

/// Memory is counted in pages (WebAssembly, section 4.2.8).
fn bytes_of_pages(pages: u64) -> u64 {
    pages * (64 << 10)
}

/// Access that an interface needs, by its name without version.
fn access(name: &str) -> ImportAccess {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let Some((package, interface)) = name.split_once('/') else { return ImportAccess::Unknown };
    match (package, interface) {
        ("wasi:http", "outgoing-handler") => ImportAccess::Granted("outgoing"),
        ("wasi:cli", "environment") => ImportAccess::Granted("environment"),
        ("wasi:filesystem", _) => ImportAccess::Granted("directory"),
        ("wasi:keyvalue", "store" | "atomics" | "batch") => ImportAccess::Granted("key-value"),
        ("wasi:sockets", _) => ImportAccess::Never,
        ("wasi:http" | "wasi:cli" | "wasi:io" | "wasi:clocks" | "wasi:random", _) => ImportAccess::Always,
        _ => ImportAccess::Unknown,
    }
}

/// Access that an imported function of a core module needs.
fn core_access(module: &str, name: &str) -> ImportAccess {
    match (module, name) {
        ("http_handler", _) => ImportAccess::Always,
        ("wasi_snapshot_preview1", name) if name.starts_with("environ_") => ImportAccess::Granted("environment"),
        ("wasi_snapshot_preview1", name) if name.starts_with("path_") || name.starts_with("sock_") => {
            ImportAccess::Never
        }
        ("wasi_snapshot_preview1", _) => ImportAccess::Always,
        _ => ImportAccess::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_interfaces_reach() {
        let check = |name: &str, expect: ImportAccess| assert_eq!(access(name), expect, "{name}");
        check("wasi:http/types@0.2.0", ImportAccess::Always);
        check("wasi:http/outgoing-handler@0.2.12", ImportAccess::Granted("outgoing"));
        check("wasi:filesystem/preopens@0.2.3", ImportAccess::Granted("directory"));
        check("wasi:keyvalue/store@0.2.0-draft", ImportAccess::Granted("key-value"));
        check("wasi:keyvalue/watcher@0.2.0-draft", ImportAccess::Unknown);
        check("wasi:sockets/tcp@0.2.0", ImportAccess::Never);
        check("shop:prices/list", ImportAccess::Unknown);
        check("run", ImportAccess::Unknown);
    }

    #[test]
    fn what_functions_reach() {
        let check =
            |module: &str, name: &str, expect: ImportAccess| assert_eq!(core_access(module, name), expect, "{name}");
        check("http_handler", "get_uri", ImportAccess::Always);
        check("wasi_snapshot_preview1", "environ_get", ImportAccess::Granted("environment"));
        check("wasi_snapshot_preview1", "path_open", ImportAccess::Never);
        check("wasi_snapshot_preview1", "sock_recv", ImportAccess::Never);
        check("wasi_snapshot_preview1", "fd_write", ImportAccess::Always);
        check("env", "abort", ImportAccess::Unknown);
    }
}
