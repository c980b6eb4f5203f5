//! Runtime of all modules: engine, memory pools, the ticker that interrupts modules, and threads for long computations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime::{Cache, CacheConfig, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};
use wasmtime_wasi_io::bindings::wasi::io;

use super::code::ModuleCode;
use super::guest::ComponentGuest;
use super::limiter::{CORE_INSTANCES_MAX, SharedMemory, TABLES_MAX};
use super::lines::LineWriter;
use super::ticker::Ticker;
use super::{ModuleLoadError, compiled, http_wasm, key_value, pollables};
use crate::config;
use crate::log::{ServerLog, event};

/// Niceness of the threads for long computations, so that they yield to workers.
pub(super) const NICENESS: i32 = 10;

/// Limit of a core instance's own data, in bytes. Python's has tens of thousands of functions.
const CORE_INSTANCE_BYTES_MAX: usize = 8 << 20;

/// Bytes at the start of an instance's memory, and of its tables, that the pool clears and keeps for the next instance.
/// Returning more than this to the system is cheaper than clearing it.
const KEPT_BYTES: usize = 64 << 10;

/// Runtime that all modules share.
pub(super) struct Runtime {
    engine: Engine,
    linkers: Linkers,
    ticker: Ticker,
    threads: Threads,
    lines: LineWriter,
    log: ServerLog,
    memory: Arc<SharedMemory>,
}

/// Everything that modules may import, by kind of module.
pub(super) struct Linkers {
    pub(super) component: Linker<ComponentGuest>,
    pub(super) core: wasmtime::Linker<http_wasm::HttpWasmGuest>,
}

/// Threads for long computations.
struct Threads(Option<runtime::Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        // Does not wait for the threads: that is not possible everywhere, and their results are not needed.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Runtime {
    /// Creates the runtime for these modules.
    ///
    /// # Errors
    /// Not enough address space, or no threads.
    pub(super) fn new(
        shared: &config::ModulesConfig,
        modules: &[&config::ModuleConfig],
        log: &ServerLog,
    ) -> Result<Self, ModuleLoadError> {
        let table_elements_max = modules.iter().map(|module| module.limits.table_elements_max).max();
        let engine = engine(shared, table_elements_max.unwrap_or_default(), cache(shared, log)?)?;
        let linkers = Linkers::new(&engine).map_err(|error| ModuleLoadError(format!("{error:#}")))?;
        let cannot_start =
            |error: std::io::Error| ModuleLoadError(format!("cannot start a thread for modules: {error}"));
        Ok(Self {
            ticker: Ticker::start(engine.clone()).map_err(cannot_start)?,
            threads: Threads(Some(threads(shared.threads).map_err(cannot_start)?)),
            lines: LineWriter::start(log.clone()).map_err(cannot_start)?,
            memory: SharedMemory::new(shared.memory_bytes_max),
            log: log.clone(),
            engine,
            linkers,
        })
    }

    /// Compiles a file, or loads its cached code.
    ///
    /// # Errors
    /// The file is no module, or imports something that the server lacks.
    pub(super) fn compile(&self, file: &Path) -> Result<ModuleCode, ModuleLoadError> {
        ModuleCode::compile(file, &self.engine, &self.linkers)
            .map_err(|message| ModuleLoadError(format!("{}: {message}", file.display())))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    /// Threads for modules that compute for long.
    pub(super) fn threads(&self) -> &runtime::Handle {
        // Local invariant: only dropping takes the threads.
        self.threads.0.as_ref().expect("the threads are there until the end").handle()
    }

    pub(super) fn lines(&self) -> &LineWriter {
        &self.lines
    }

    pub(super) fn server_log(&self) -> &ServerLog {
        &self.log
    }

    pub(super) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }
}

/// Cache of compiled code, if there is a safe directory for it.
fn cache(shared: &config::ModulesConfig, log: &ServerLog) -> Result<Option<Cache>, ModuleLoadError> {
    let Some(directory) = compiled::directory(&shared.compiled_directory) else { return Ok(None) };
    cache_in(directory).map(Some).or_else(|problem| match problem {
        CacheProblem::Directory(problem) => {
            let help = "every start compiles the modules again; set another directory with `modules { compiled \"DIRECTORY\" }`";
            log.warn(event("compiled modules not saved", &[("reason", &problem)]), help);
            Ok(None)
        }
        CacheProblem::Other(error) => Err(error),
    })
}

/// Reason why there is no cache.
pub(super) enum CacheProblem {
    /// The directory must not be used.
    Directory(String),
    Other(ModuleLoadError),
}

/// Cache of compiled code in this directory.
pub(super) fn cache_in(directory: PathBuf) -> Result<Cache, CacheProblem> {
    compiled::prepare(&directory).map_err(CacheProblem::Directory)?;
    let mut config = CacheConfig::new();
    config.with_directory(directory);
    Cache::new(config).map_err(|error| CacheProblem::Other(ModuleLoadError(format!("{error:#}"))))
}

/// Engine with room for these instances. Compiled code does not depend on their number.
pub(super) fn engine(
    shared: &config::ModulesConfig,
    table_elements_max: usize,
    cache: Option<Cache>,
) -> Result<Engine, ModuleLoadError> {
    let count = shared.instances_max;
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(count)
        .total_stacks(count)
        .total_memories(count.saturating_mul(2))
        .total_tables(count.saturating_mul(4))
        .total_core_instances(count.saturating_mul(CORE_INSTANCES_MAX as u32))
        .max_core_instances_per_component(CORE_INSTANCES_MAX as u32)
        .max_tables_per_component(TABLES_MAX as u32)
        .max_core_instance_size(CORE_INSTANCE_BYTES_MAX)
        .max_component_instance_size(CORE_INSTANCE_BYTES_MAX)
        .max_tables_per_module(8)
        .table_elements(table_elements_max)
        .linear_memory_keep_resident(KEPT_BYTES)
        .table_keep_resident(KEPT_BYTES)
        .pagemap_scan(wasmtime::Enabled::Auto);
    let mut config = wasmtime::Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(true)
        .concurrency_support(false)
        .cache(cache);
    Engine::new(&config).map_err(|error| {
        ModuleLoadError(format!(
            "cannot reserve memory for {count} module instances: {error:#}; \
             lower `modules {{ instances-max … }}`"
        ))
    })
}

impl Linkers {
    /// Links all interfaces. Calls of those that are not granted are denied at runtime.
    pub(super) fn new(engine: &Engine) -> wasmtime::Result<Self> {
        let mut component = Linker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut component)?;
        add_streams(component.allow_shadowing(true))?;
        pollables::add_to_linker(&mut component)?;
        component.allow_shadowing(false);
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut component)?;
        key_value::add_to_linker(&mut component, ComponentGuest::key_value)?;
        Ok(Self { component, core: http_wasm::linker(engine)? })
    }
}

/// Gives interfaces access to an instance's handles only.
struct InstanceHandles;

impl HasData for InstanceHandles {
    type Data<'a> = &'a mut ResourceTable;
}

/// Links streams without WASI's context, which instances that only answer with one never create.
fn add_streams(linker: &mut Linker<ComponentGuest>) -> wasmtime::Result<()> {
    io::error::add_to_linker::<_, InstanceHandles>(linker, ComponentGuest::table)?;
    io::poll::add_to_linker::<_, InstanceHandles>(linker, ComponentGuest::table)?;
    io::streams::add_to_linker::<_, InstanceHandles>(linker, ComponentGuest::table)
}

fn threads(count: Option<usize>) -> std::io::Result<runtime::Runtime> {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    runtime::Builder::new_multi_thread()
        .worker_threads(count.unwrap_or_else(cores))
        .thread_name("module")
        .enable_all()
        .on_thread_start(|| {
            // Fails only in a sandbox.
            let _ = rustix::process::setpriority_process(None, NICENESS);
        })
        .build()
}
