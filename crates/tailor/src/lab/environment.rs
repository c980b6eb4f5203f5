//! Environment of a measurement: the facts that a reader needs to judge or repeat it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::format_bytes;

/// Kernel settings that affect a server's performance, as paths below /proc/sys.
const SETTINGS: [&str; 12] = [
    "kernel/randomize_va_space",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/tcp_wmem",
    "vm/swappiness",
];

/// Machine and settings of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Environment {
    /// Kernel release and build.
    pub kernel: String,
    /// Model of the CPU.
    pub processor: String,
    /// Number of CPUs that the process may use.
    pub processors: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Swap in bytes.
    pub swap_bytes: u64,
    /// Frequency governor of the CPUs, if the kernel has one.
    pub governor: String,
    /// Clock source of the kernel.
    pub clock_source: String,
    /// Maximum number of open file descriptors of a process.
    pub descriptors_max: u64,
    /// Kernel settings by their path below /proc/sys.
    pub settings: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment of this machine.
    pub(crate) fn read() -> Self {
        let uname = rustix::system::uname();
        let cpuinfo = read("/proc/cpuinfo");
        let meminfo = read("/proc/meminfo");
        let after_colon = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let kibibytes =
            |name: &str| after_colon(&meminfo, name).trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024;
        Self {
            kernel: format!("{} {}", uname.release().to_string_lossy(), uname.version().to_string_lossy()),
            processor: after_colon(&cpuinfo, "model name"),
            processors: rustix::thread::sched_getaffinity(None).map_or(1, |set| u64::from(set.count())),
            memory_bytes: kibibytes("MemTotal"),
            swap_bytes: kibibytes("SwapTotal"),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            descriptors_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
            settings: SETTINGS.iter().map(|name| ((*name).to_owned(), read(&format!("/proc/sys/{name}")))).collect(),
        }
    }

    /// All facts as pairs of name and value.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let fixed = [
            ("kernel", self.kernel.clone()),
            ("processor", self.processor.clone()),
            ("processors", self.processors.to_string()),
            ("memory", format_bytes(self.memory_bytes as f64)),
            ("swap", format_bytes(self.swap_bytes as f64)),
            ("governor", self.governor.clone()),
            ("clock source", self.clock_source.clone()),
            ("descriptors", self.descriptors_max.to_string()),
        ];
        let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
        let settings = self.settings.iter().map(|(name, value)| (name.clone(), value.replace('\t', " ")));
        fixed.chain(settings).collect()
    }

    /// Describes each difference as `name: old -> new`.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |name: &str, old: &str, new: &str| {
            if old != new {
                found.push(format!("{name}: {old} -> {new}"));
            }
        };
        compare("kernel", &self.kernel, &other.kernel);
        compare("processor", &self.processor, &other.processor);
        compare("processors", &self.processors.to_string(), &other.processors.to_string());
        compare("memory", &self.memory_bytes.to_string(), &other.memory_bytes.to_string());
        compare("governor", &self.governor, &other.governor);
        compare("clock source", &self.clock_source, &other.clock_source);
        compare("descriptors", &self.descriptors_max.to_string(), &other.descriptors_max.to_string());
        for (name, old) in &self.settings {
            compare(name, old, other.settings.get(name).map_or("", String::as_str));
        }
        found
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Environment;

    #[test]
    fn differences_are_named() {
        let here = Environment::read();
        assert!(!here.kernel.is_empty() && here.processors > 0 && here.memory_bytes > 0);
        assert_eq!(here.differences(&here), Vec::<String>::new());
        let mut other = here.clone();
        other.kernel = "7.0".into();
        other.settings.insert("vm/swappiness".into(), "-1".into());
        let differences = here.differences(&other);
        assert!(differences.len() == 2 && differences[0].ends_with("-> 7.0"), "{differences:?}");
    }
}
