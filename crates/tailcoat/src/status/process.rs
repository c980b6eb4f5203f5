//! The process as the kernel sees it.

use std::fs;

use serde::{Deserialize, Serialize};

/// What the kernel counts of this process. What it doesn't tell is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Processor time in user space, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// Memory that is in use, in bytes.
    pub resident_bytes: u64,
    /// Addresses that are in use, in bytes.
    pub virtual_bytes: u64,
    /// Open descriptors.
    pub open_files: u64,
    /// How many there may be.
    pub open_files_max: u64,
    /// Threads.
    pub threads: u64,
}

impl ProcessStatus {
    /// As it is now.
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        // proc(5): the name in parentheses may have spaces of its own; behind it comes the third value.
        let values: Vec<u64> = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split(' ')
            .map(|value| value.parse().unwrap_or(0))
            .collect();
        let value = |number: usize| values.get(number - 2).copied().unwrap_or(0);
        let pages = |index: usize| statm.split(' ').nth(index).and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        let page_bytes = rustix::param::page_size() as u64;
        let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            user_us: value(14) * tick_us,
            system_us: value(15) * tick_us,
            threads: value(20),
            virtual_bytes: pages(0) * page_bytes,
            resident_bytes: pages(1) * page_bytes,
            // The directory that is read is one of them.
            open_files: fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1) as u64),
            open_files_max: limit.current.unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells() {
        let before = ProcessStatus::read();
        let file = fs::File::open("/proc/self/stat").unwrap();
        assert!(before.resident_bytes > 1 << 16 && before.resident_bytes < before.virtual_bytes, "{before:?}");
        assert!(before.threads > 0 && before.open_files_max > before.open_files, "{before:?}");
        drop(file);
    }
}
