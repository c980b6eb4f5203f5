//! Limits of a server's control group: CPU time, memory, and bytes read and written.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::units::{parse_count, parse_number};

/// Length of a period of the CPU limit, in microseconds.
const PERIOD_MICROS: u64 = 100_000;
/// Memory is limited in whole pages of up to this size.
const PAGE_BYTES: u64 = 64 << 10;

/// Resource that a control group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitedResource {
    /// CPUs.
    Cpu,
    /// Bytes of memory.
    Memory,
    /// Bytes per second, read from and written to the disk of the temporary directory.
    Io,
}

/// Limit of a resource; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupLimit {
    pub(super) resource: LimitedResource,
    value: Option<f64>,
}

impl GroupLimit {
    /// Parses `0.5` CPUs, `64M` bytes (powers of 1,000), or `max`.
    pub(super) fn parse(resource: LimitedResource, text: &str) -> Result<Self, String> {
        let value = match (resource, text) {
            (_, "max") => None,
            (LimitedResource::Cpu, text) => Some(parse_number(text)?),
            (LimitedResource::Memory | LimitedResource::Io, text) => Some(parse_count(text)? as f64),
        };
        let least = if resource == LimitedResource::Cpu { 0.01 } else { 4096.0 };
        match value {
            Some(value) if value < least => Err(format!("`{text}` is less than {least}")),
            value => Ok(Self { resource, value }),
        }
    }

    /// Name of the controller in version 1 and 2.
    pub(super) fn controllers(self) -> (&'static str, &'static str) {
        match self.resource {
            LimitedResource::Cpu => ("cpu", "cpu"),
            LimitedResource::Memory => ("memory", "memory"),
            LimitedResource::Io => ("blkio", "io"),
        }
    }

    /// Sets the limit of a group in a directory, and checks that the kernel has it.
    pub(super) fn apply(self, directory: &Path, is_unified: bool) -> Result<(), String> {
        let Some(value) = self.value else { return Ok(()) };
        let number = value.round() as u64;
        match (self.resource, is_unified) {
            (LimitedResource::Cpu, true) => {
                let text = format!("{} {PERIOD_MICROS}", quota(value));
                set(directory, "cpu.max", &text, |found| found == text)
            }
            (LimitedResource::Cpu, false) => {
                let (period, quota) = (PERIOD_MICROS.to_string(), quota(value).to_string());
                set(directory, "cpu.cfs_period_us", &period, |found| found == period)?;
                set(directory, "cpu.cfs_quota_us", &quota, |found| found == quota)
            }
            (LimitedResource::Memory, is_unified) => {
                let name = if is_unified { "memory.max" } else { "memory.limit_in_bytes" };
                let is_near = |found: &str| found.parse().is_ok_and(|found: u64| found.abs_diff(number) < PAGE_BYTES);
                set(directory, name, &number.to_string(), is_near)
            }
            (LimitedResource::Io, true) => {
                let device = disk_of_temporary_files()?;
                let text = format!("{device} rbps={number} wbps={number}");
                set(directory, "io.max", &text, |found| found.contains(&format!("rbps={number} wbps={number}")))
            }
            (LimitedResource::Io, false) => {
                let text = format!("{} {number}", disk_of_temporary_files()?);
                for name in ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"] {
                    set(directory, name, &text, |found| found.lines().any(|line| line == text))?;
                }
                Ok(())
            }
        }
    }
}

/// CPU time in a period, in microseconds.
fn quota(cpus: f64) -> u64 {
    (cpus * PERIOD_MICROS as f64).round() as u64
}

fn set(directory: &Path, name: &str, value: &str, is_right: impl Fn(&str) -> bool) -> Result<(), String> {
    let path = directory.join(name);
    let fail = |reason: String| format!("--vary: cannot set {} to {value}: {reason}", path.display());
    std::fs::write(&path, value).map_err(|error| fail(error.to_string()))?;
    let found = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
    match is_right(found.trim()) {
        true => Ok(()),
        false => Err(fail(format!("the kernel made it {}", found.trim()))),
    }
}

/// Numbers of the disk with the temporary directory, in which servers have their files: `254:0`.
fn disk_of_temporary_files() -> Result<String, String> {
    let directory = std::env::temp_dir();
    let fail = |reason: &dyn std::fmt::Display| format!("--vary: the disk of {}: {reason}", directory.display());
    let device = std::fs::metadata(&directory).map_err(|error| fail(&error))?.dev();
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let entry = Path::new("/sys/dev/block").join(&numbers);
    let entry = std::fs::canonicalize(entry).map_err(|_| fail(&"it is no block device"))?;
    // A limit concerns the whole disk.
    match (entry.join("partition").exists(), entry.parent()) {
        (true, Some(disk)) => {
            let numbers = std::fs::read_to_string(disk.join("dev")).map_err(|error| fail(&error))?;
            Ok(numbers.trim().to_owned())
        }
        _ => Ok(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        for (resource, text, expect) in [
            (LimitedResource::Cpu, "0.5", Ok(Some(0.5))),
            (LimitedResource::Memory, "64M", Ok(Some(64e6))),
            (LimitedResource::Io, "max", Ok(None)),
            (LimitedResource::Cpu, "0", Err("less than 0.01")),
            (LimitedResource::Memory, "1", Err("less than 4096")),
            (LimitedResource::Memory, "lots", Err("not a number")),
        ] {
            match (GroupLimit::parse(resource, text), expect) {
                (Ok(limit), Ok(value)) => assert_eq!(limit, GroupLimit { resource, value }, "{text}"),
                (Err(error), Err(expect)) => assert!(error.contains(expect), "{text}: {error}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }
}
