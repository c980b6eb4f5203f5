//! Process as the kernel sees it.

use std::fs;

use serde::{Deserialize, Serialize};

/// Kernel's counts for this process; unknown ones are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// CPU time in user space, in microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub system_us: u64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Virtual memory in bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// Limit of open file descriptors.
    pub open_files_max: u64,
    /// Number of threads.
    pub threads: u64,
}

impl ProcessStatus {
    /// Reads the current values.
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        // proc(5): the name in parentheses may contain spaces; the third value follows it.
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
            // The descriptor that reads the directory is one of them.
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
