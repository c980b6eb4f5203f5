//! Limits of an instance's memory and tables.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::{Error, ResourceLimiter, Result};

use crate::config::ModuleLimits;
use crate::metrics::{ModuleFailure, ModuleMetrics};

/// Limit of memories per instance. Composed components have one for each part.
const MEMORIES_MAX: usize = 32;

/// Limit of tables per instance.
pub(super) const TABLES_MAX: usize = 64;

/// Limit of core instances per instance. Python's components have several tens.
pub(super) const CORE_INSTANCES_MAX: usize = 256;

/// Memory of all instances together.
#[derive(Debug)]
pub(super) struct SharedMemory {
    bytes_max: u64,
    bytes: AtomicU64,
}

impl SharedMemory {
    pub(super) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, bytes: AtomicU64::new(0) })
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_there = taken <= self.bytes_max;
        if !is_there {
            self.give_back(bytes);
        }
        is_there
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Limit that denied an instance more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExceededLimit {
    /// Limit of the module's memory.
    Memory,
    /// Limit of the memory of all modules.
    AllMemory,
    /// The system is out of memory.
    SystemMemory,
    /// Limit of the instance's table elements.
    Table,
}

impl ExceededLimit {
    /// Cause as counted in metrics.
    pub(super) fn cause(self) -> ModuleFailure {
        match self {
            Self::Memory | Self::SystemMemory => ModuleFailure::MemoryBytesMax,
            Self::AllMemory => ModuleFailure::AllMemoryBytesMax,
            Self::Table => ModuleFailure::TableElementsMax,
        }
    }
}

impl fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory-bytes-max of the module",
            Self::AllMemory => "memory-bytes-max of all modules",
            Self::SystemMemory => "memory of the system",
            Self::Table => "table-elements-max",
        })
    }
}

/// Memory and tables of an instance, and their limits. Lives as long as the instance.
#[derive(Debug)]
pub(super) struct Limiter {
    shared: Arc<SharedMemory>,
    metrics: Arc<ModuleMetrics>,
    memory_bytes_max: usize,
    memory_bytes: usize,
    table_elements_max: usize,
    table_elements: usize,
    /// Last limit that denied the instance more.
    rejected: Option<ExceededLimit>,
}

impl Limiter {
    pub(super) fn new(limits: &ModuleLimits, shared: &Arc<SharedMemory>, metrics: &Arc<ModuleMetrics>) -> Self {
        metrics.instances.add(1);
        Self {
            shared: Arc::clone(shared),
            metrics: Arc::clone(metrics),
            memory_bytes_max: limits.memory_bytes_max,
            memory_bytes: 0,
            table_elements_max: limits.table_elements_max,
            table_elements: 0,
            rejected: None,
        }
    }

    /// Limit that denied the instance more, if any did.
    pub(super) fn rejected(&self) -> Option<ExceededLimit> {
        self.rejected
    }

    /// Prepares for another request; forgets earlier denials.
    pub(super) fn restart(&mut self) {
        self.rejected = None;
    }

    /// Takes memory for the server's side of handles.
    ///
    /// # Errors
    /// The limit is reached.
    pub(super) fn take_for_handles(&mut self, bytes: usize) -> Result<()> {
        self.take_memory(bytes).map_err(|rejection| {
            self.rejected = Some(rejection);
            wasmtime::format_err!("too many stream handles")
        })
    }

    fn take_memory(&mut self, bytes: usize) -> Result<(), ExceededLimit> {
        if bytes > self.memory_bytes_max - self.memory_bytes {
            return Err(ExceededLimit::Memory);
        }
        if !self.shared.take(bytes as u64) {
            return Err(ExceededLimit::AllMemory);
        }
        self.memory_bytes += bytes;
        self.metrics.memory_bytes.add(bytes as u64);
        Ok(())
    }

    fn give_memory_back(&mut self, bytes: usize) {
        self.memory_bytes -= bytes;
        self.metrics.memory_bytes.subtract(bytes as u64);
        self.shared.give_back(bytes as u64);
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        // The module's own maximum is none of our limits.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let taken = self.take_memory(desired - current);
        self.rejected = taken.err().or(self.rejected);
        Ok(taken.is_ok())
    }

    fn memory_grow_failed(&mut self, _: Error) -> Result<()> {
        // The instance gets the error. The memory stays counted only until the instance ends.
        self.rejected = Some(ExceededLimit::SystemMemory);
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let wanted = desired - current;
        // Comes first, because the pool sets this maximum for tables that declare none.
        if wanted > self.table_elements_max - self.table_elements {
            self.rejected = Some(ExceededLimit::Table);
            return Ok(false);
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.table_elements += wanted;
        Ok(true)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.give_memory_back(self.memory_bytes);
        self.metrics.instances.subtract(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64 << 10;

    fn limits() -> ModuleLimits {
        ModuleLimits { memory_bytes_max: 4 * PAGE, table_elements_max: 10, ..ModuleLimits::default() }
    }

    #[test]
    fn memory_of_one_and_of_all() {
        let shared = SharedMemory::new(6 * PAGE as u64);
        let metrics = Arc::default();
        let limiter = || Limiter::new(&limits(), &shared, &metrics);
        let (mut first, mut second) = (limiter(), limiter());
        assert!(first.memory_growing(0, 4 * PAGE, None).unwrap());
        assert!(!first.memory_growing(4 * PAGE, 5 * PAGE, None).unwrap());
        assert_eq!(first.rejected(), Some(ExceededLimit::Memory));
        first.restart();
        assert_eq!(first.rejected(), None);
        assert!(second.memory_growing(0, 2 * PAGE, None).unwrap());
        assert!(!second.memory_growing(2 * PAGE, 3 * PAGE, None).unwrap());
        assert_eq!(second.rejected(), Some(ExceededLimit::AllMemory));
        assert_eq!((metrics.instances.get(), metrics.memory_bytes.get()), (2, 6 * PAGE as u64));
        drop(first);
        assert!(second.memory_growing(2 * PAGE, 3 * PAGE, None).unwrap());
        assert!(!second.memory_growing(3 * PAGE, 4 * PAGE, Some(3 * PAGE)).unwrap(), "the module's own maximum");
        drop(second);
        assert_eq!(shared.bytes.load(Ordering::Relaxed), 0);
        assert_eq!((metrics.instances.get(), metrics.memory_bytes.get()), (0, 0));
    }

    #[test]
    fn tables() {
        let mut limiter = Limiter::new(&limits(), &SharedMemory::new(0), &Arc::default());
        assert!(limiter.table_growing(0, 6, None).unwrap());
        assert!(limiter.table_growing(0, 4, None).unwrap(), "of a second table");
        assert!(!limiter.table_growing(4, 5, None).unwrap());
        assert_eq!(limiter.rejected(), Some(ExceededLimit::Table));
    }
}
