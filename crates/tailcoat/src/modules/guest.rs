//! What an instance can reach of the host: what it was granted, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use wasmtime_wasi::{
    FsPerms, HostMonotonicClock, HostWallClock, ResourceTable, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::Module;
use super::key_value::{KeyValueStore, KeyValueView};
use super::limiter::Limiter;
use super::log::LineLog;
use super::meter::Meter;
use super::outgoing::Hooks;
use super::pollables::Pollables;

/// Bytes of the names and values of a set of fields, and what the host needs to keep them. More than a request or response
/// may have anyway.
const FIELDS_BYTES_MAX: usize = 64 << 10;

/// Random bytes that are given at once.
const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// Clocks of modules go by steps of this size, too coarse to measure caches of the processor by.
pub(super) const CLOCK_STEP: Duration = Duration::from_micros(100);

/// WASI's context, and where it writes lines.
struct Wasi {
    context: WasiCtx,
    log: LineLog,
}

/// The data of an instance on the host's side.
pub struct ComponentGuest {
    module: Arc<Module>,
    /// Made when it is first asked for: most need neither clocks, random numbers, environment nor output.
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
    /// What an instance of this module has.
    ///
    /// # Errors
    /// A granted directory can't be opened.
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

    /// It begins with another request, for which it may write so many bytes to the log.
    pub(super) fn restart(&mut self, log_bytes_max: usize) {
        self.meter.restart();
        self.limiter.restart();
        if let Some(wasi) = &self.wasi {
            wasi.log.restart(log_bytes_max);
        }
    }

    /// How many handles the instance has.
    pub(super) fn handles(&mut self) -> usize {
        self.table.iter_mut().count()
    }

    pub(super) fn key_value(&mut self) -> KeyValueView<'_> {
        KeyValueView { store: self.key_value.as_ref(), table: &mut self.table }
    }

    /// What the instance has by handles. Unlike [`WasiView::ctx`] it makes nothing.
    pub(super) fn table(&mut self) -> &mut ResourceTable {
        &mut self.table
    }
}

/// Where an instance of this module writes lines.
pub(super) fn line_log(module: &Module) -> LineLog {
    LineLog::new(&module.name, module.runtime.lines(), module.config.limits.log_bytes_max)
}

/// What WASI gives an instance. Sockets and names are denied by what its context begins with.
///
/// # Errors
/// A granted directory can't be opened.
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
        // Handing an operation to yet another thread costs ten times as much as it takes.
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
        // Local invariant: only directories can fail to be opened, and with those it was made at the beginning.
        let wasi = wasi.get_or_insert_with(|| context(module).expect("a context without directories"));
        WasiCtxView { ctx: &mut wasi.context, table }
    }
}

impl WasiHttpView for ComponentGuest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

/// A clock that goes by steps.
struct CoarseClock {
    start: Instant,
}

impl CoarseClock {
    fn new() -> Self {
        Self { start: Instant::now() }
    }
}

/// A time as clocks of modules tell it.
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
        // A clock before 1970 is one that was never set.
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
