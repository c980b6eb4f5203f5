//! Limits that instances share. Grants of rate limits go to the store in batches, and the backlogs of all instances come back;
//! so do numbers of requests in progress.

use std::time::{Duration, Instant};

use tailcoat_store::{InstanceCount, LimitCharge, Measured, SharedStore, StoreError};

use crate::config::LimitsWithoutStore;
use crate::handler::Now;
use crate::routing::rules::{OwnCount, SharedTables, UnsentGrants};

/// Interval between two batches.
const INTERVAL: Duration = Duration::from_millis(100);

/// Interval between two attempts while the store is away.
const AWAY_INTERVAL: Duration = Duration::from_secs(1);

/// Keys in a batch, of each kind of limit.
const BATCH_MAX: usize = 4_096;

/// Limits that instances share.
pub(super) struct SharedLimits {
    tables: SharedTables,
    without_store: LimitsWithoutStore,
    next_at: Instant,
    is_in_flight: bool,
    is_away: bool,
}

/// Grants and counts of one batch, each with the index of its table.
#[derive(Default)]
pub(super) struct Batch {
    grants: Vec<(usize, UnsentGrants)>,
    counts: Vec<(usize, OwnCount)>,
}

/// Result of a batch: backlogs, and counts of other instances.
pub(super) type Charged = (Batch, Result<(Vec<u64>, Vec<u32>), StoreError>);

impl SharedLimits {
    pub(super) fn new(without_store: LimitsWithoutStore) -> Self {
        let (tables, next_at) = (SharedTables::default(), Instant::now());
        // Until the store has responded once, nothing says that it will.
        let is_away = without_store == LimitsWithoutStore::Closed;
        Self { tables, without_store, next_at, is_in_flight: false, is_away }
    }

    pub(super) fn set_tables(&mut self, tables: SharedTables) {
        self.tables = tables;
        self.close();
    }

    /// Time until the next batch.
    pub(super) fn wait(&self) -> Option<Duration> {
        let has_none = self.tables.rates.is_empty() && self.tables.counts.is_empty();
        let is_idle = has_none || self.is_in_flight;
        (!is_idle).then(|| self.next_at.saturating_duration_since(Instant::now()))
    }

    /// Next batch, if one is due.
    pub(super) fn collect(&mut self) -> Option<Batch> {
        if self.wait().is_none_or(|wait| !wait.is_zero()) {
            return None;
        }
        let mut batch = Batch::default();
        for (index, table) in self.tables.rates.iter().enumerate() {
            let mut grants = Vec::new();
            table.collect(&mut grants, BATCH_MAX - batch.grants.len());
            batch.grants.extend(grants.into_iter().map(|grants| (index, grants)));
        }
        for (index, table) in self.tables.counts.iter().enumerate() {
            let mut counts = Vec::new();
            table.collect(&mut counts, BATCH_MAX - batch.counts.len());
            batch.counts.extend(counts.into_iter().map(|count| (index, count)));
        }
        if batch.grants.is_empty() && batch.counts.is_empty() && !self.is_away {
            self.next_at = Instant::now() + INTERVAL;
            return None;
        }
        self.is_in_flight = true;
        Some(batch)
    }

    /// Takes the result of a batch. What a failed batch has told is lost: instances then grant more than the limit, by at most
    /// their own.
    pub(super) fn on_charged(&mut self, (batch, result): Charged) {
        self.is_in_flight = false;
        let is_away = result.is_err();
        self.next_at = Instant::now() + if is_away { AWAY_INTERVAL } else { INTERVAL };
        if let Ok((backlogs, others)) = result {
            let now_ms = Now::read().monotonic_ms;
            for ((index, grants), backlog_ns) in batch.grants.into_iter().zip(backlogs) {
                if let Some(table) = self.tables.rates.get(index) {
                    table.settle(grants.key, backlog_ns, now_ms);
                }
            }
            for ((index, count), others) in batch.counts.into_iter().zip(others) {
                if let Some(table) = self.tables.counts.get(index) {
                    table.settle(count.key, others);
                }
            }
        }
        if self.is_away != is_away {
            self.is_away = is_away;
            if is_away {
                self.tables.counts.iter().for_each(|table| table.forget_others());
            }
            self.close();
        }
    }

    fn close(&self) {
        let is_closed = self.is_away && self.without_store == LimitsWithoutStore::Closed;
        self.tables.rates.iter().for_each(|table| table.close(is_closed));
        self.tables.counts.iter().for_each(|table| table.close(is_closed));
    }
}

impl Drop for SharedLimits {
    fn drop(&mut self) {
        // Limits that are no longer shared open when a configuration without them is applied.
        let is_closed = self.without_store == LimitsWithoutStore::Closed;
        self.tables.rates.iter().for_each(|table| table.close(is_closed));
        self.tables.counts.iter().for_each(|table| {
            table.close(is_closed);
            table.forget_others();
        });
    }
}

/// Sends a batch of an instance. An empty one asks whether the store is back.
pub(super) async fn charge(store: &Measured, instance: &str, batch: Batch) -> Charged {
    let of_grants = |(_, grants): &(usize, UnsentGrants)| {
        let UnsentGrants { shared_key, cost_ns, backlog_ns_max, .. } = *grants;
        LimitCharge { key: shared_key, cost_ns, backlog_ns_max }
    };
    let mut charges: Vec<LimitCharge> = batch.grants.iter().map(of_grants).collect();
    let of_count = |(_, count): &(usize, OwnCount)| InstanceCount { key: count.shared_key, count: count.count };
    let counts: Vec<InstanceCount> = batch.counts.iter().map(of_count).collect();
    if charges.is_empty() && counts.is_empty() {
        charges.push(LimitCharge { key: 0, cost_ns: 0, backlog_ns_max: 0 });
    }
    let result = async {
        let backlogs = if charges.is_empty() { Vec::new() } else { store.charge(&charges).await? };
        let others = if counts.is_empty() { Vec::new() } else { store.share_counts(instance, &counts).await? };
        Ok((backlogs, others))
    };
    let result = result.await;
    (batch, result)
}
