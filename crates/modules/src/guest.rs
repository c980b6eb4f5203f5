//! Host side of an instance: everything that it was granted, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use wasmtime_wasi::{
    FsPerms, HostMonotonicClock, HostWallClock, ResourceTable, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::Module;
use super::key_value::{KeyValueStore, KeyValueView};
use super::limiter::Limiter;
use super::lines::LineLog;
use super::meter::Meter;
use super::outgoing::Hooks;
use super::pollables::Pollables;

/// Limit of the names and values of a set of header fields, with the host's overhead, in bytes. Above the limits of
/// requests and responses.
const FIELDS_BYTES_MAX: usize = 64 << 10;

/// Limit of random bytes per call.
const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// Resolution of modules' clocks: too coarse for measuring CPU caches.
pub(super) const CLOCK_STEP: Duration = Duration::from_micros(100);

/// WASI context, and the log for the instance's output.
struct Wasi {
    context: WasiCtx,
    log: LineLog,
}

/// Host's data of an instance.
pub struct ComponentGuest {
    module: Arc<Module>,
    /// Created at first use: most instances need neither clocks, random numbers, environment nor output.
    wasi: Option<Box<Wasi>>,
    http: WasiHttpCtx,
    hooks: Hooks,
    table: ResourceTable,
    pub(super) pollables: Pollables,
    key_value: Option<Arc<KeyValueStore>>,
    pub(super) limiter: Limiter,
    pub(super) meter: Arc<Meter>,
}

impl ComponentGuest {
    /// Data for an instance of this module.
    ///
    /// # Errors
    /// A granted directory cannot be opened.
    pub(super) fn new(module: &Arc<Module>, meter: Arc<Meter>) -> wasmtime::Result<Self> {
        let config = &module.config;
        let opens_directories = !config.grants.directories.is_empty();
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(FIELDS_BYTES_MAX);
        let mut table = ResourceTable::new();
        table.set_max_capacity(config.limits.handles_max);
        Ok(Self {
            module: Arc::clone(module),
            wasi: if opens_directories { Some(context(module)?) } else { None },
            http,
            hooks: Hooks(Arc::clone(&module.outgoing)),
            table,
            pollables: Pollables::default(),
            key_value: module.key_value.clone(),
            limiter: Limiter::new(&config.limits, module.runtime.memory(), &module.metrics),
            meter,
        })
    }

    /// Prepares for another request, which may write this many bytes to the log.
    pub(super) fn restart(&mut self, log_bytes_max: usize) {
        self.meter.restart();
        self.limiter.restart();
        if let Some(wasi) = &self.wasi {
            wasi.log.restart(log_bytes_max);
        }
    }

    /// Number of handles that the instance has.
    pub(super) fn handles(&mut self) -> usize {
        self.table.iter_mut().count()
    }

    pub(super) fn key_value(&mut self) -> KeyValueView<'_> {
        KeyValueView { store: self.key_value.as_ref(), table: &mut self.table }
    }

    /// Table of the instance's handles. Unlike [`WasiView::ctx`], creates no context.
    pub(super) fn table(&mut self) -> &mut ResourceTable {
        &mut self.table
    }
}

/// Log for the output of an instance of this module.
pub(super) fn line_log(module: &Module) -> LineLog {
    LineLog::new(&module.name, module.runtime.lines(), module.config.limits.log_bytes_max)
}

/// WASI context of an instance. A new context denies sockets and name lookups.
///
/// # Errors
/// A granted directory cannot be opened.
fn context(module: &Module) -> wasmtime::Result<Box<Wasi>> {
    let (grants, log) = (&module.config.grants, line_log(module));
    let mut context = WasiCtxBuilder::new();
    context
        .stdout(log.clone())
        .stderr(log.clone())
        .envs(&grants.environment)
        .max_random_size(RANDOM_BYTES_MAX)
        .wall_clock(CoarseClock::new())
        .monotonic_clock(CoarseClock::new())
        // Passing an operation to yet another thread costs ten times as much as the operation.
        .allow_blocking_current_thread(true);
    for granted in &grants.directories {
        let permissions = if granted.is_writable { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
        context.preopened_dir(&granted.directory, &granted.name, permissions)?;
    }
    Ok(Box::new(Wasi { context: context.build(), log }))
}

impl WasiView for ComponentGuest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let Self { module, wasi, table, .. } = self;
        // Local invariant: only directories can fail to open, and with directories the context is created at the start.
        let wasi = wasi.get_or_insert_with(|| context(module).expect("a context without directories"));
        WasiCtxView { ctx: &mut wasi.context, table }
    }
}

impl WasiHttpView for ComponentGuest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

/// Clock with the resolution [`CLOCK_STEP`].
struct CoarseClock {
    start: Instant,
}

impl CoarseClock {
    fn new() -> Self {
        Self { start: Instant::now() }
    }
}

/// Time rounded down to the resolution of modules' clocks.
pub(super) fn coarse(time: Duration) -> Duration {
    let step = CLOCK_STEP.as_nanos() as u64;
    let nanoseconds = time.subsec_nanos() as u64;
    Duration::new(time.as_secs(), (nanoseconds - nanoseconds % step) as u32)
}

impl HostWallClock for CoarseClock {
    fn resolution(&self) -> Duration {
        CLOCK_STEP
    }

    fn now(&self) -> Duration {
        // A clock before 1970 was never set.
        coarse(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

impl HostMonotonicClock for CoarseClock {
    fn resolution(&self) -> u64 {
        CLOCK_STEP.as_nanos() as u64
    }

    fn now(&self) -> u64 {
        coarse(self.start.elapsed()).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_by_steps() {
        let check = |nanoseconds: u64, expect: u64| {
            assert_eq!(coarse(Duration::from_nanos(nanoseconds)), Duration::from_nanos(expect));
        };
        check(0, 0);
        check(99_999, 0);
        check(7_000_123_456, 7_000_100_000);
        assert_eq!(HostMonotonicClock::now(&CoarseClock::new()) % 100_000, 0);
    }
}
