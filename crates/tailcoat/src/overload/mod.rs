//! Overload: what a worker does when more comes than it can do.
//!
//! Each worker measures how long ready connections wait for it, and how long TLS handshakes wait for their turn. A worker that is
//! merely busy is left alone: only a lag that stands above `lag-max` and does not drain is overload. Then the worker sheds new
//! TLS handshakes, requests for programs and modules, and requests for upstreams, in this order. What is in memory or comes from
//! a file costs no more than an error, and is never shed; nor are the status page, metrics and challenges of ACME.
//!
//! Queues of upstreams have their own measure ([`upstream`](crate::upstream)).

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

/// Classes of cost.
const CLASSES: usize = 3;

/// A handshake may wait for its turn for this part of the time that it has before the wait is overload.
const HANDSHAKE_WAIT_DIVISOR: u32 = 4;

/// Of 1,024 handshakes, those that are shed at most, so that an operator gets through.
const HANDSHAKES_SHED_MAX: u32 = 1_008;

/// A full part: all of a class is shed.
const PART_FULL: u32 = 1_024;

/// Shedding has ended when nothing was to be shed for so many ticks. So one overload is one line in the log.
const QUIET_TICKS: u32 = 20;

/// The largest `Retry-After`, in seconds. Clients come back spread over this time.
const RETRY_AFTER_SECONDS_MAX: u64 = 3;

/// While asleep, a worker's pass over its connections has no beginning.
const ASLEEP: u64 = u64::MAX;

/// Requests and handshakes that can be shed, by cost: the costliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCost {
    /// A new TLS handshake.
    Handshake = 0,
    /// A request for a CGI program or a WebAssembly module.
    Program = 1,
    /// A request for an upstream.
    Upstream = 2,
}

/// The limits that overload is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadLimits {
    /// How long ready connections may wait for their worker; zero turns shedding by lag off.
    pub lag_max: Duration,
    /// How long a TLS handshake may take.
    pub tls_handshake_timeout: Duration,
}

/// Handshakes of a worker since the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeLoad {
    /// Handshakes that began.
    pub begun: u32,
    /// Handshakes that waited for their turn all the time.
    pub waiting: u32,
}

/// A worker's overload, for its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverloadReport {
    /// Lag in the last tick, in milliseconds.
    pub lag_ms: u64,
    /// Shed level, in parts per thousand of a class.
    pub level_permille: u64,
    /// Why it sheds, if it does.
    pub reason: Option<ShedReason>,
}

/// The overload of one worker. It stays on the worker's thread.
#[derive(Debug)]
pub struct Overload {
    /// True while anything is shed; requests and connections read it.
    sheds: Cell<bool>,
    /// The part of each class that is shed, and what is left over of it for the next.
    parts: [Cell<u32>; CLASSES],
    rests: [Cell<u32>; CLASSES],
    /// Classes that were asked for since the last tick, while something is shed.
    asked: Cell<[bool; CLASSES]>,
    reason: Cell<ShedReason>,
    /// The time of the last tick.
    tick_ms: Cell<u64>,
    /// The tick in which the current pass over ready connections began.
    pass_began_ms: Cell<u64>,
    /// The shortest pass that ended since the last tick.
    pass_min_ms: Cell<u64>,
    /// The last two, the last first.
    passes_ms: Cell<[u64; 2]>,
    report: Cell<OverloadReport>,
    limits: Cell<OverloadLimits>,
    controller: RefCell<Controller>,
    quiet_ticks: Cell<u32>,
    is_told: Cell<bool>,
    worker: usize,
    shared: Arc<SharedOverload>,
    metrics: Option<Arc<WorkerMetrics>>,
}

impl Overload {
    /// The overload of the worker with this number.
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
            is_told: Cell::new(false),
            worker,
            shared,
            metrics,
        })
    }

    /// One that never sheds, for tests of what uses it.
    pub fn off() -> Rc<Self> {
        let limits = OverloadLimits { lag_max: Duration::ZERO, tls_handshake_timeout: Duration::from_secs(10) };
        let log = ServerLog::stderr(LogLevel::Error);
        Self::new(0, limits, Arc::new(SharedOverload::new(log)), None)
    }

    /// Measures by these limits from now on.
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

    /// True if this request or handshake is shed. Counts it if it is.
    #[inline]
    pub fn sheds(&self, cost: RequestCost) -> bool {
        self.sheds.get() && self.takes_part(cost)
    }

    /// True if the class comes to its next one. Spreads those that are shed evenly over those that come.
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

    /// Seconds after which a client may try again. Random, so that clients don't come back all at once.
    pub fn retry_after_seconds() -> u64 {
        fastrand::u64(1..=RETRY_AFTER_SECONDS_MAX)
    }

    /// Takes note that the worker has looked for ready connections, and whether it has found all. Those that it finds next have
    /// become ready since.
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

    /// Takes note that the worker sleeps until something is ready.
    #[inline]
    pub fn on_sleep(&self) {
        self.pass_began_ms.set(ASLEEP);
    }

    /// Begins with the time after ticks have paused because there were no connections.
    pub fn resume(&self, now_ms: u64) {
        self.tick_ms.set(now_ms);
        self.pass_began_ms.set(ASLEEP);
        self.pass_min_ms.set(u64::MAX);
        self.passes_ms.set([0, 0]);
        self.set_level(0.0, ShedReason::Lag);
        self.controller.borrow_mut().reset();
        self.end();
    }

    /// Looks at the lag since the last tick. Called every [`TICK_MS`], as far as the worker comes to it: a tick that comes late
    /// is a lag, too. `is_out_of_memory` says that clients hold more memory than they may.
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
        // Connections that hold most are closed meanwhile, so that this lasts for a moment.
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

    /// How it stands.
    pub fn report(&self) -> OverloadReport {
        self.report.get()
    }

    /// The lag by passes, and what of it stands: the shortest pass since the last tick; if none has ended, the one before, or
    /// what the current one has taken so far. One long pass alone does not stand.
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

    /// Tells the log once when shedding begins, and once when it has ended.
    fn tell(&self, reason: Option<ShedReason>, lag_ms: u64, now_ms: u64) {
        match reason {
            Some(reason) => {
                self.quiet_ticks.set(0);
                if !self.is_told.replace(true) {
                    self.shared.begin(self.worker, reason, lag_ms, now_ms);
                }
            }
            None if self.is_told.get() => {
                self.quiet_ticks.set(self.quiet_ticks.get() + 1);
                if self.quiet_ticks.get() >= QUIET_TICKS {
                    self.end();
                }
            }
            None => {}
        }
    }

    fn end(&self) {
        if self.is_told.replace(false) {
            self.shared.end(self.worker, self.tick_ms.get());
        }
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        self.end();
    }
}

/// A time in parts per thousand of a limit; none where there is no limit.
fn permille(time_ms: u64, limit: Duration) -> u64 {
    (time_ms * 1_000).checked_div(limit.as_millis() as u64).unwrap_or_default()
}
