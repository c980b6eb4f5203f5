//! Load shedding when a worker gets more work than it can do.
//!
//! Each worker measures how long ready connections wait for it, and how long TLS handshakes wait for their turn. A busy
//! worker is left alone: only a lag that stands above `lag-max` and does not drain is overload. Then the worker sheds
//! new TLS handshakes, requests for programs and modules, and requests for upstreams, in this order. It never sheds
//! responses from memory or files, which cost no more than an error, nor the status page, metrics and ACME challenges.
//!
//! Queues of upstreams have their own measure (the crate of upstreams).

mod controller;
mod shared;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use self::controller::{Controller, TickLag, part_of};
pub use self::shared::SharedOverload;
use crate::config::LogLevel;
use crate::log::ServerLog;
use crate::metrics::{ShedReason, WorkerMetrics};

/// Time between two ticks.
pub const TICK_MS: u64 = 100;

/// Number of cost classes.
const CLASSES: usize = 3;

/// A handshake may wait for its turn for its timeout divided by this. A longer wait is overload.
const HANDSHAKE_WAIT_DIVISOR: u32 = 4;

/// Largest number of handshakes shed, of 1,024, so that an operator gets through.
const HANDSHAKES_SHED_MAX: u32 = 1_008;

/// Share at which a whole class is shed.
const PART_FULL: u32 = 1_024;

/// Ticks without shedding until an overload counts as ended, so that one overload is one line in the log.
const QUIET_TICKS: u32 = 20;

/// Largest `Retry-After`, in seconds. Clients retry spread over this time.
const RETRY_AFTER_SECONDS_MAX: u64 = 3;

/// Start of a pass that is not under way, because the worker sleeps.
const ASLEEP: u64 = u64::MAX;

/// Cost classes of requests and handshakes that can be shed, the costliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCost {
    /// New TLS handshake.
    Handshake = 0,
    /// Request for a CGI program or a WebAssembly module.
    Program = 1,
    /// Request for an upstream.
    Upstream = 2,
}

/// Limits from which overload is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadLimits {
    /// Time that ready connections may wait for their worker; zero disables shedding by lag.
    pub lag_max: Duration,
    /// Time that a TLS handshake may take.
    pub tls_handshake_timeout: Duration,
}

/// Handshakes of a worker since the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeLoad {
    /// Handshakes that began.
    pub begun: u32,
    /// Handshakes that waited for their turn during the whole tick.
    pub waiting: u32,
}

/// State of a worker's overload, for `tailcoat status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverloadReport {
    /// Lag in the last tick, in milliseconds.
    pub lag_ms: u64,
    /// Shed level, in parts per thousand of a class.
    pub level_permille: u64,
    /// Reason for shedding, while anything is shed.
    pub reason: Option<ShedReason>,
}

/// Overload of one worker. It stays on the worker's thread.
#[derive(Debug)]
pub struct Overload {
    /// True while anything is shed; requests and connections read it.
    sheds: Cell<bool>,
    /// Share of each class that is shed, and the remainder carried to the class's next request.
    parts: [Cell<u32>; CLASSES],
    rests: [Cell<u32>; CLASSES],
    /// Classes that had requests since the last tick, recorded while anything is shed.
    asked: Cell<[bool; CLASSES]>,
    reason: Cell<ShedReason>,
    /// Time of the last tick.
    tick_ms: Cell<u64>,
    /// Time of the tick in which the current pass over ready connections began.
    pass_began_ms: Cell<u64>,
    /// Duration of the shortest pass that ended since the last tick.
    pass_min_ms: Cell<u64>,
    /// Durations of the last two passes, the latest first.
    passes_ms: Cell<[u64; 2]>,
    report: Cell<OverloadReport>,
    limits: Cell<OverloadLimits>,
    controller: RefCell<Controller>,
    quiet_ticks: Cell<u32>,
    is_logged: Cell<bool>,
    worker: usize,
    shared: Arc<SharedOverload>,
    metrics: Option<Arc<WorkerMetrics>>,
}

impl Overload {
    /// Overload state of the worker with this index.
    pub fn new(
        worker: usize,
        limits: OverloadLimits,
        shared: Arc<SharedOverload>,
        metrics: Option<Arc<WorkerMetrics>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            sheds: Cell::new(false),
            parts: Default::default(),
            rests: Default::default(),
            asked: Cell::default(),
            reason: Cell::new(ShedReason::Lag),
            tick_ms: Cell::new(0),
            pass_began_ms: Cell::new(ASLEEP),
            pass_min_ms: Cell::new(u64::MAX),
            passes_ms: Cell::default(),
            report: Cell::default(),
            limits: Cell::new(limits),
            controller: RefCell::default(),
            quiet_ticks: Cell::new(0),
            is_logged: Cell::new(false),
            worker,
            shared,
            metrics,
        })
    }

    /// State that never sheds, for tests of other rooms.
    pub fn off() -> Rc<Self> {
        let limits = OverloadLimits { lag_max: Duration::ZERO, tls_handshake_timeout: Duration::from_secs(10) };
        let log = ServerLog::stderr(LogLevel::Error);
        Self::new(0, limits, Arc::new(SharedOverload::new(log)), None)
    }

    /// Applies new limits; restarts the controller if they differ.
    pub fn apply_limits(&self, limits: OverloadLimits) {
        if self.limits.replace(limits) != limits {
            self.controller.borrow_mut().reset();
        }
    }

    /// True if anything is shed.
    #[inline]
    pub fn is_shedding(&self) -> bool {
        self.sheds.get()
    }

    /// True if this request or handshake is shed; counts it then.
    #[inline]
    pub fn sheds(&self, cost: RequestCost) -> bool {
        self.sheds.get() && self.takes_part(cost)
    }

    /// True if the next of this class is shed. Spreads shed requests evenly over all.
    #[cold]
    fn takes_part(&self, cost: RequestCost) -> bool {
        let class = cost as usize;
        let mut asked = self.asked.get();
        asked[class] = true;
        self.asked.set(asked);
        let mut part = self.parts[class].get();
        if cost == RequestCost::Handshake {
            part = part.min(HANDSHAKES_SHED_MAX);
        }
        let sum = self.rests[class].get() + part;
        self.rests[class].set(sum % PART_FULL);
        let is_shed = sum >= PART_FULL;
        if is_shed && let Some(metrics) = &self.metrics {
            metrics.on_shed(self.reason.get());
        }
        is_shed
    }

    /// Seconds after which a client may retry. Random, so that clients don't all return at once.
    pub fn retry_after_seconds() -> u64 {
        fastrand::u64(1..=RETRY_AFTER_SECONDS_MAX)
    }

    /// Records that the worker has polled for ready connections, and whether that found all. Connections found at the
    /// next poll became ready since.
    #[inline]
    pub fn on_look(&self, has_found_all: bool) {
        let (began_ms, tick_ms) = (self.pass_began_ms.get(), self.tick_ms.get());
        if !has_found_all {
            if began_ms == ASLEEP {
                self.pass_began_ms.set(tick_ms);
            }
            return;
        }
        self.pass_began_ms.set(tick_ms);
        // Most passes take less than a tick.
        let lag_ms = if began_ms == ASLEEP { 0 } else { tick_ms - began_ms };
        if lag_ms < self.pass_min_ms.get() {
            self.pass_min_ms.set(lag_ms);
        }
    }

    /// Records that the worker sleeps until a connection is ready.
    #[inline]
    pub fn on_sleep(&self) {
        self.pass_began_ms.set(ASLEEP);
    }

    /// Restarts the measurement after ticks have paused for lack of connections.
    pub fn resume(&self, now_ms: u64) {
        self.tick_ms.set(now_ms);
        self.pass_began_ms.set(ASLEEP);
        self.pass_min_ms.set(u64::MAX);
        self.passes_ms.set([0, 0]);
        self.set_level(0.0, ShedReason::Lag);
        self.controller.borrow_mut().reset();
        self.end();
    }

    /// Evaluates the lag since the last tick. Called every [`TICK_MS`] if the worker has time; a late tick is a lag,
    /// too. `is_out_of_memory` is true while clients exceed the memory limit.
    pub fn on_tick(&self, now_ms: u64, handshakes: HandshakeLoad, is_out_of_memory: bool) {
        let elapsed_ms = now_ms.saturating_sub(self.tick_ms.replace(now_ms));
        let limits = self.limits.get();
        let late_ms = elapsed_ms.saturating_sub(TICK_MS);
        let (pass_ms, standing_ms) = self.take_pass_lags(now_ms);
        let lag_ms = pass_ms.max(late_ms);
        let wait_ms = u64::from(handshakes.waiting) * elapsed_ms / u64::from(handshakes.begun.max(1));
        let lag = permille(lag_ms, limits.lag_max);
        let standing = permille(standing_ms.max(late_ms), limits.lag_max);
        let wait = permille(wait_ms, limits.tls_handshake_timeout / HANDSHAKE_WAIT_DIVISOR);
        let level = match limits.lag_max.as_millis() as u64 {
            0 => 0.0,
            interval_ms => {
                let (asked, lag) = (self.asked.take(), TickLag { lag: lag.max(wait), standing: standing.max(wait) });
                self.controller.borrow_mut().on_tick(now_ms, lag, interval_ms, asked)
            }
        };
        // Lasts only a moment, because workers close connections of the clients that hold most.
        let (level, reason) = match is_out_of_memory {
            true => (CLASSES as f64, ShedReason::Memory),
            false if wait > lag => (level, ShedReason::Handshakes),
            false => (level, ShedReason::Lag),
        };
        self.set_level(level, reason);
        let reason = (level > 0.0).then_some(reason);
        self.report.set(OverloadReport { lag_ms, level_permille: (level * 1_000.0) as u64, reason });
        self.tell(reason, lag_ms.max(wait_ms), now_ms);
    }

    /// State after the last tick.
    pub fn report(&self) -> OverloadReport {
        self.report.get()
    }

    /// Lag by passes, and its standing part: the shortest pass since the last tick. If none has ended, the standing
    /// part is the previous pass, or the time of the current one so far. A single long pass does not stand.
    fn take_pass_lags(&self, now_ms: u64) -> (u64, u64) {
        let [last, before] = self.passes_ms.get();
        match (self.pass_min_ms.replace(u64::MAX), self.pass_began_ms.get()) {
            (u64::MAX, ASLEEP) => {
                self.passes_ms.set([0, 0]);
                (0, 0)
            }
            (u64::MAX, began_ms) => {
                let current = now_ms.saturating_sub(began_ms);
                (last.max(current), last.min(before).max(current))
            }
            (pass, _) => {
                self.passes_ms.set([pass, last]);
                (pass, pass)
            }
        }
    }

    fn set_level(&self, level: f64, reason: ShedReason) {
        self.sheds.set(level > 0.0);
        for (part, cost) in self.parts.iter().zip([RequestCost::Handshake, RequestCost::Program, RequestCost::Upstream])
        {
            part.set(part_of(level, cost));
        }
        self.reason.set(reason);
    }

    /// Logs once when shedding begins, and once when it has ended.
    fn tell(&self, reason: Option<ShedReason>, lag_ms: u64, now_ms: u64) {
        match reason {
            Some(reason) => {
                self.quiet_ticks.set(0);
                if !self.is_logged.replace(true) {
                    self.shared.begin(self.worker, reason, lag_ms, now_ms);
                }
            }
            None if self.is_logged.get() => {
                self.quiet_ticks.set(self.quiet_ticks.get() + 1);
                if self.quiet_ticks.get() >= QUIET_TICKS {
                    self.end();
                }
            }
            None => {}
        }
    }

    fn end(&self) {
        if self.is_logged.replace(false) {
            self.shared.end(self.worker, self.tick_ms.get());
        }
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        self.end();
    }
}

/// Time in thousandths of a limit; zero if there is no limit.
fn permille(time_ms: u64, limit: Duration) -> u64 {
    (time_ms * 1_000).checked_div(limit.as_millis() as u64).unwrap_or_default()
}
