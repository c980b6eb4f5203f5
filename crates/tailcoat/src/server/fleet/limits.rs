//! Rate limits that instances share: grants go to the store in batches, and the backlogs of all instances come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailcoat_store::{LimitCharge, Measured, SharedStore, StoreError};

use crate::config::LimitsWithoutStore;
use crate::handler::Now;
use crate::routing::rules::{RateTable, UnsentGrants};

/// Interval between two batches.
const INTERVAL: Duration = Duration::from_millis(100);

/// Interval between two attempts while the store is away.
const AWAY_INTERVAL: Duration = Duration::from_secs(1);

/// Keys in a batch.
const BATCH_MAX: usize = 4_096;

/// Rate limits that instances share.
pub(super) struct SharedLimits {
    tables: Vec<Arc<RateTable>>,
    without_store: LimitsWithoutStore,
    next_at: Instant,
    is_in_flight: bool,
    is_away: bool,
}

/// Grants of one batch, with the index of their table.
pub(super) struct Batch(Vec<(usize, UnsentGrants)>);

/// Result of a batch.
pub(super) type Charged = (Batch, Result<Vec<u64>, StoreError>);

impl SharedLimits {
    pub(super) fn new(without_store: LimitsWithoutStore) -> Self {
        let next_at = Instant::now();
        Self { tables: Vec::new(), without_store, next_at, is_in_flight: false, is_away: false }
    }

    pub(super) fn set_tables(&mut self, tables: Vec<Arc<RateTable>>) {
        self.tables = tables;
        self.close();
    }

    /// Time until the next batch.
    pub(super) fn wait(&self) -> Option<Duration> {
        let is_idle = self.tables.is_empty() || self.is_in_flight;
        (!is_idle).then(|| self.next_at.saturating_duration_since(Instant::now()))
    }

    /// Next batch, if one is due.
    pub(super) fn collect(&mut self) -> Option<Batch> {
        if self.wait().is_none_or(|wait| !wait.is_zero()) {
            return None;
        }
        let mut batch = Vec::new();
        for (index, table) in self.tables.iter().enumerate() {
            let mut grants = Vec::new();
            table.collect(&mut grants, BATCH_MAX - batch.len());
            batch.extend(grants.into_iter().map(|grants| (index, grants)));
        }
        if batch.is_empty() && !self.is_away {
            self.next_at = Instant::now() + INTERVAL;
            return None;
        }
        self.is_in_flight = true;
        Some(Batch(batch))
    }

    /// Takes the result of a batch. What a failed batch has told is lost: instances then grant more than the limit, by at most
    /// their own.
    pub(super) fn on_charged(&mut self, (batch, result): Charged) {
        self.is_in_flight = false;
        let is_away = result.is_err();
        self.next_at = Instant::now() + if is_away { AWAY_INTERVAL } else { INTERVAL };
        if let Ok(backlogs) = result {
            let now_ms = Now::read().monotonic_ms;
            for ((index, grants), backlog_ns) in batch.0.into_iter().zip(backlogs) {
                if let Some(table) = self.tables.get(index) {
                    table.settle(grants.key, backlog_ns, now_ms);
                }
            }
        }
        if self.is_away != is_away {
            self.is_away = is_away;
            self.close();
        }
    }

    fn close(&self) {
        let is_closed = self.is_away && self.without_store == LimitsWithoutStore::Closed;
        self.tables.iter().for_each(|table| table.close(is_closed));
    }
}

impl Drop for SharedLimits {
    fn drop(&mut self) {
        self.tables.iter().for_each(|table| table.close(false));
    }
}

/// Sends a batch. An empty one asks whether the store is back.
pub(super) async fn charge(store: &Measured, batch: Batch) -> Charged {
    let mut charges: Vec<LimitCharge> = Vec::with_capacity(batch.0.len().max(1));
    for (_, grants) in &batch.0 {
        let UnsentGrants { shared_key, cost_ns, backlog_ns_max, .. } = *grants;
        charges.push(LimitCharge { key: shared_key, cost_ns, backlog_ns_max });
    }
    if charges.is_empty() {
        charges.push(LimitCharge { key: 0, cost_ns: 0, backlog_ns_max: 0 });
    }
    let result = store.charge(&charges).await;
    (batch, result)
}
