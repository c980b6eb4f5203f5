//! A module's machine code, with all imports resolved.

use std::path::Path;

use wasmtime::component::Component;
use wasmtime::{Engine, Error, Module};
use wasmtime_wasi_http::p2::bindings::ProxyPre;

use super::engine::Linkers;
use super::guest::ComponentGuest;
use super::http_wasm;
use crate::config::read_regular;

/// First bytes of a core module: magic and version (WebAssembly, section 5.5.16).
pub(super) const CORE_PREAMBLE: &[u8] = b"\0asm\x01\0\0\0";

/// First bytes of all WebAssembly files, including components.
const MAGIC: &[u8] = b"\0asm";

/// Compiled module.
pub enum ModuleCode {
    /// Component of the world `wasi:http/proxy`.
    Component(ProxyPre<ComponentGuest>),
    /// Core module for the HTTP handler ABI of http-wasm.
    HttpWasm(http_wasm::HttpWasmCode),
}

impl ModuleCode {
    /// Compiles a file on the compiler's threads.
    ///
    /// # Errors
    /// The file's defect, in words for an operator.
    pub(super) fn compile(file: &Path, engine: &Engine, linkers: &Linkers) -> Result<Self, String> {
        let bytes = read(file)?;
        let compile = || {
            if bytes.starts_with(CORE_PREAMBLE) {
                let module = Module::from_binary(engine, &bytes).map_err(error_text)?;
                return http_wasm::HttpWasmCode::new(&module, &linkers.core).map(Self::HttpWasm);
            }
            let component = Component::from_binary(engine, &bytes).map_err(error_text)?;
            let instance = linkers.component.instantiate_pre(&component).map_err(error_text)?;
            let pre = ProxyPre::new(instance)
                .map_err(|error| format!("is not a component of the world wasi:http/proxy: {}", error_text(error)))?;
            Ok(Self::Component(pre))
        };
        // The compiler's first thread starts the others, which inherit its niceness. So compiling yields to workers.
        std::thread::scope(|scope| {
            let nice = move || {
                // Fails only in a sandbox.
                let _ = rustix::process::setpriority_process(None, super::engine::NICENESS);
                compile()
            };
            match std::thread::Builder::new().name("module-compiler".into()).spawn_scoped(scope, nice) {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err("the compiler panicked".to_owned())),
                Err(error) => Err(format!("cannot start a thread: {error}")),
            }
        })
    }
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read, or is no binary WebAssembly.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, String> {
    let bytes = read_regular(file).map_err(|error| error.to_string())?;
    match bytes.starts_with(MAGIC) {
        true => Ok(bytes),
        false => Err("is not WebAssembly; run `tailcoat module new` for a module to start from".to_owned()),
    }
}

/// Error and its causes, in one line.
pub(super) fn error_text(error: Error) -> String {
    format!("{error:#}").replace('\n', " ")
}
