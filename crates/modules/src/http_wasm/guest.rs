//! Host's data of an instance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::Memory;

use super::exchange::HttpWasmExchange;
use crate::Module;
use crate::guest::line_log;
use crate::limiter::Limiter;
use crate::lines::LineLog;
use crate::meter::Meter;

/// Host's data of an instance.
pub(crate) struct HttpWasmGuest {
    log: LineLog,
    settings: Arc<[u8]>,
    /// Entries of the form `NAME=value`.
    environment: Vec<String>,
    began: Instant,
    pub(super) limiter: Limiter,
    pub(super) meter: Arc<Meter>,
    /// Set by instantiation.
    pub(super) memory: Option<Memory>,
    pub(super) buffered_bytes_max: usize,
    exchange: Box<HttpWasmExchange>,
    /// Features that the guest enabled before its first request.
    features: u32,
}

impl HttpWasmGuest {
    /// Data for an instance of this module.
    pub(super) fn new(module: &Module, meter: Arc<Meter>) -> Self {
        let config = &module.config;
        let environment = config.grants.environment.iter().map(|(name, value)| format!("{name}={value}"));
        Self {
            log: line_log(module),
            settings: Arc::clone(&module.settings),
            environment: environment.collect(),
            began: Instant::now(),
            limiter: Limiter::new(&config.limits, module.runtime.memory(), &module.metrics),
            meter,
            memory: None,
            buffered_bytes_max: config.limits.buffered_bytes_max,
            exchange: Box::default(),
            features: 0,
        }
    }

    pub(super) fn exchange(&self) -> &HttpWasmExchange {
        &self.exchange
    }

    pub(super) fn exchange_mut(&mut self) -> &mut HttpWasmExchange {
        &mut self.exchange
    }

    /// Records the features that the guest enabled while it started.
    pub(super) fn on_started(&mut self) {
        self.features = self.exchange.features;
    }

    /// Starts a request: that of this exchange, or the one already set.
    pub(super) fn begin(&mut self, exchange: Option<Box<HttpWasmExchange>>) {
        if let Some(exchange) = exchange {
            self.exchange = exchange;
        }
        self.exchange.features = self.features;
    }

    /// Forgets the request.
    pub(super) fn end(&mut self, log_bytes_max: usize) {
        self.log.restart(log_bytes_max);
        self.exchange.end();
    }

    pub(super) fn settings(&self) -> &[u8] {
        &self.settings
    }

    pub(super) fn environment(&self) -> &[String] {
        &self.environment
    }

    /// Time since the instance was created.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Writes to the log; LF ends a line.
    pub(super) fn write_log(&self, bytes: &[u8]) {
        self.log.write(bytes);
    }
}
