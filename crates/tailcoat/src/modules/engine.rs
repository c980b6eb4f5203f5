//! What all modules run in: the engine and its pools, the clock that interrupts them, threads for those that take long.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime::{Cache, CacheConfig, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};
use wasmtime_wasi_io::bindings::wasi::io;

use super::code::ModuleCode;
use super::guest::ComponentGuest;
use super::limiter::{CORE_INSTANCES_MAX, SharedMemory, TABLES_MAX};
use super::log::LineWriter;
use super::ticker::Ticker;
use super::{ModuleLoadError, compiled, http_wasm, key_value, pollables};
use crate::config;
use crate::log::{ServerLog, event};

/// Niceness of threads for modules that take long: they give way to workers.
pub(super) const NICENESS: i32 = 10;

/// Bytes of a core instance's own data: Python's has tens of thousands of functions.
const CORE_INSTANCE_BYTES_MAX: usize = 8 << 20;

/// Bytes at the beginning of an instance's memory, and of its tables, that are kept and cleared for the next one instead of
/// being given back. More is cheaper to give back.
const KEPT_BYTES: usize = 64 << 10;

/// What all modules run in.
pub(super) struct Runtime {
    engine: Engine,
    linkers: Linkers,
    ticker: Ticker,
    threads: Threads,
    lines: LineWriter,
    log: ServerLog,
    memory: Arc<SharedMemory>,
}

/// All that modules may import, by kind.
pub(super) struct Linkers {
    pub(super) component: Linker<ComponentGuest>,
    pub(super) core: wasmtime::Linker<http_wasm::HttpWasmGuest>,
}

/// Threads for modules that take long.
struct Threads(Option<runtime::Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        // Waiting for them is not possible everywhere, and nobody wants what they do.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Runtime {
    /// Sets up what these modules need.
    ///
    /// # Errors
    /// Not enough address space, or threads.
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

    /// Compiles a file, or takes what was compiled of it before.
    ///
    /// # Errors
    /// It is no component, or one that wants what is not there.
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

    /// Where modules run that take long.
    pub(super) fn threads(&self) -> &runtime::Handle {
        // Local invariant: only dropping takes it.
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

/// The cache of compiled code, if there is a place for it that nobody else can write in.
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

/// Why there is no cache.
pub(super) enum CacheProblem {
    /// The directory is none that may be used.
    Directory(String),
    Other(ModuleLoadError),
}

/// The cache of compiled code in this directory.
pub(super) fn cache_in(directory: PathBuf) -> Result<Cache, CacheProblem> {
    compiled::prepare(&directory).map_err(CacheProblem::Directory)?;
    let mut config = CacheConfig::new();
    config.with_directory(directory);
    Cache::new(config).map_err(|error| CacheProblem::Other(ModuleLoadError(format!("{error:#}"))))
}

/// The engine, with room for these instances. What it compiles does not depend on how many they are.
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
    /// What was not granted is there, and denied when it is called.
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

/// What instances reach of their own handles.
struct InstanceHandles;

impl HasData for InstanceHandles {
    type Data<'a> = &'a mut ResourceTable;
}

/// Streams, which need nothing of WASI's context: it is not made for those who answer with one.
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
            // Fails only where a sandbox forbids it.
            let _ = rustix::process::setpriority_process(None, NICENESS);
        })
        .build()
}
