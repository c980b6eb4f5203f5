//! Limits of an instance's memory and tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::{Error, ResourceLimiter, Result};

use crate::config::ModuleLimits;

/// Memories of an instance. Components that were composed of others have one for each.
const MEMORIES_MAX: usize = 32;

/// Tables of an instance.
pub(super) const TABLES_MAX: usize = 64;

/// Core instances of an instance: Python's components have several tens.
pub(super) const CORE_INSTANCES_MAX: usize = 256;

/// The name of what [`SharedMemory`] keeps.
pub(super) const SHARED_MEMORY_LIMIT: &str = "memory-bytes-max of all modules";

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

/// What an instance has of memory and tables, and may have.
#[derive(Debug)]
pub(super) struct Limiter {
    shared: Arc<SharedMemory>,
    memory_bytes_max: usize,
    memory_bytes: usize,
    table_elements_max: usize,
    table_elements: usize,
    /// What it did not get.
    refused: Option<&'static str>,
}

impl Limiter {
    pub(super) fn new(limits: &ModuleLimits, shared: &Arc<SharedMemory>) -> Self {
        Self {
            shared: Arc::clone(shared),
            memory_bytes_max: limits.memory_bytes_max,
            memory_bytes: 0,
            table_elements_max: limits.table_elements_max,
            table_elements: 0,
            refused: None,
        }
    }

    /// The limit that kept something from the instance.
    pub(super) fn refused(&self) -> Option<&'static str> {
        self.refused
    }

    fn take_memory(&mut self, bytes: usize) -> Result<(), &'static str> {
        if bytes > self.memory_bytes_max - self.memory_bytes {
            return Err("memory-bytes-max of the module");
        }
        if !self.shared.take(bytes as u64) {
            return Err(SHARED_MEMORY_LIMIT);
        }
        self.memory_bytes += bytes;
        Ok(())
    }

    fn give_memory_back(&mut self, bytes: usize) {
        self.memory_bytes -= bytes;
        self.shared.give_back(bytes as u64);
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        // What the module itself forbids is none of our limits.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let taken = self.take_memory(desired - current);
        self.refused = taken.err().or(self.refused);
        Ok(taken.is_ok())
    }

    fn memory_grow_failed(&mut self, _: Error) -> Result<()> {
        // The instance is told. That it was counted all the same lasts no longer than the instance.
        self.refused = Some("memory of the system");
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let wanted = desired - current;
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if wanted > self.table_elements_max - self.table_elements {
            self.refused = Some("table-elements-max");
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
        let (mut first, mut second) = (Limiter::new(&limits(), &shared), Limiter::new(&limits(), &shared));
        assert!(first.memory_growing(0, 4 * PAGE, None).unwrap());
        assert!(!first.memory_growing(4 * PAGE, 5 * PAGE, None).unwrap());
        assert_eq!(first.refused(), Some("memory-bytes-max of the module"));
        assert!(second.memory_growing(0, 2 * PAGE, None).unwrap());
        assert!(!second.memory_growing(2 * PAGE, 3 * PAGE, None).unwrap());
        assert_eq!(second.refused(), Some("memory-bytes-max of all modules"));
        drop(first);
        assert!(second.memory_growing(2 * PAGE, 3 * PAGE, None).unwrap());
        assert!(!second.memory_growing(3 * PAGE, 4 * PAGE, Some(3 * PAGE)).unwrap(), "the module's own maximum");
        drop(second);
        assert_eq!(shared.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn tables() {
        let mut limiter = Limiter::new(&limits(), &SharedMemory::new(0));
        assert!(limiter.table_growing(0, 6, None).unwrap());
        assert!(limiter.table_growing(0, 4, None).unwrap(), "of a second table");
        assert!(!limiter.table_growing(4, 5, None).unwrap());
        assert_eq!(limiter.refused(), Some("table-elements-max"));
    }
}
