//! CPU time and memory of a server: of a process and its descendants, or of a control group.

use std::path::{Path, PathBuf};

/// Clock ticks per second in the kernel's statistics (USER_HZ, 100 on all common architectures).
const TICKS_PER_SECOND: u64 = 100;

/// Source of a server's CPU time and memory.
#[derive(Clone, Debug)]
pub(crate) enum Observed {
    /// A process and its descendants.
    Process(u32),
    /// A control group.
    Cgroup(Cgroup),
}

/// Directories of a control group: the same in version 2, one for each controller in version 1.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    /// True for version 2, the unified hierarchy.
    pub is_unified: bool,
    /// Directory with the figures of CPU time.
    pub processor: PathBuf,
    /// Directory with the figures of memory.
    pub memory: PathBuf,
}

/// Resources used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time in user space.
    pub user_micros: u64,
    /// CPU time in the kernel.
    pub system_micros: u64,
    /// Memory in use now.
    pub memory_bytes: u64,
    /// Part of it that is the processes' own: not the kernel's memory for them, nor files.
    pub own_memory_bytes: u64,
    /// Swap in use now.
    pub swap_bytes: u64,
}

impl Observed {
    /// Control group with these directories: one in version 2, those of cpuacct and memory in version 1.
    pub(crate) fn group(directories: &[PathBuf]) -> Self {
        let processor = directories.first().cloned().unwrap_or_default();
        Self::Cgroup(Cgroup {
            is_unified: !processor.join("cpuacct.usage").exists(),
            memory: directories.last().cloned().unwrap_or_default(),
            processor,
        })
    }

    /// Options with which `tailor bench` watches the same source.
    pub(crate) fn watch_arguments(&self) -> Vec<String> {
        match self {
            Self::Process(id) => vec!["--watch".to_owned(), id.to_string()],
            Self::Cgroup(group) => [&group.processor, &group.memory]
                .iter()
                .flat_map(|directory| ["--watch-group".to_owned(), directory.display().to_string()])
                .collect(),
        }
    }

    /// Reads the resources used so far. An unreadable figure is 0.
    pub(crate) fn read(&self) -> Usage {
        match self {
            Self::Process(root) => {
                descendants(*root).into_iter().map(process).fold(Usage::default(), |sum, usage| Usage {
                    user_micros: sum.user_micros + usage.user_micros,
                    system_micros: sum.system_micros + usage.system_micros,
                    memory_bytes: sum.memory_bytes + usage.memory_bytes,
                    own_memory_bytes: sum.own_memory_bytes + usage.own_memory_bytes,
                    swap_bytes: sum.swap_bytes + usage.swap_bytes,
                })
            }
            Self::Cgroup(group) if group.is_unified => unified(group),
            Self::Cgroup(group) => legacy(group),
        }
    }
}

/// Reads cpu.stat, memory.current and memory.swap.current of version 2.
fn unified(group: &Cgroup) -> Usage {
    let stat = read(&group.processor.join("cpu.stat"));
    let memory = group.memory.join("memory.stat");
    Usage {
        user_micros: value(&stat, "user_usec"),
        system_micros: value(&stat, "system_usec"),
        // Without the memory controller, add up the memory of the processes.
        memory_bytes: match group.memory.join("memory.current").exists() {
            true => without_files(number(&group.memory.join("memory.current")), group, ""),
            false => members(group).map(|id| process(id).memory_bytes).sum(),
        },
        own_memory_bytes: match memory.exists() {
            true => sum(&read(&memory), &["anon", "shmem"]),
            false => members(group).map(|id| process(id).own_memory_bytes).sum(),
        },
        swap_bytes: match group.memory.join("memory.swap.current").exists() {
            true => number(&group.memory.join("memory.swap.current")),
            false => members(group).map(|id| process(id).swap_bytes).sum(),
        },
    }
}

fn members(group: &Cgroup) -> impl Iterator<Item = u32> {
    let text = read(&group.processor.join("cgroup.procs"));
    text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>().into_iter()
}

/// Reads cpuacct and memory.stat of version 1. cpuacct.usage is exact; cpuacct.stat divides it, in clock ticks.
fn legacy(group: &Cgroup) -> Usage {
    let total_micros = number(&group.processor.join("cpuacct.usage")) / 1_000;
    let stat = read(&group.processor.join("cpuacct.stat"));
    let (user, system) = (value(&stat, "user"), value(&stat, "system"));
    let user_micros = (total_micros * user).checked_div(user + system).unwrap_or(total_micros);
    let memory = read(&group.memory.join("memory.stat"));
    Usage {
        user_micros,
        system_micros: total_micros - user_micros,
        memory_bytes: without_files(number(&group.memory.join("memory.usage_in_bytes")), group, "total_"),
        own_memory_bytes: sum(&memory, &["total_rss", "total_shmem"]),
        swap_bytes: value(&memory, "total_swap"),
    }
}

/// Memory of a group without cached pages of files, such as the access log: the kernel frees them when it needs to.
fn without_files(bytes: u64, group: &Cgroup, prefix: &str) -> u64 {
    let stat = read(&group.memory.join("memory.stat"));
    let files = ["active_file", "inactive_file"].map(|name| value(&stat, &format!("{prefix}{name}")));
    bytes.saturating_sub(files.iter().sum())
}

fn sum(stat: &str, names: &[&str]) -> u64 {
    names.iter().map(|name| value(stat, name)).sum()
}

fn process(id: u32) -> Usage {
    let directory = PathBuf::from(format!("/proc/{id}"));
    let status = read(&directory.join("status"));
    let stat = read(&directory.join("stat"));
    // Fields 14 to 17 of proc_pid_stat(5): the CPU time of the process and of its children that have ended.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
    let ticks: Vec<u64> = fields.take(4).filter_map(|field| field.parse().ok()).collect();
    let micros = |ticks: u64| ticks * 1_000_000 / TICKS_PER_SECOND;
    let kibibytes = |name| value(&status, name) * 1024;
    Usage {
        user_micros: micros(ticks.first().unwrap_or(&0) + ticks.get(2).unwrap_or(&0)),
        system_micros: micros(ticks.get(1).unwrap_or(&0) + ticks.get(3).unwrap_or(&0)),
        memory_bytes: kibibytes("VmRSS:"),
        own_memory_bytes: kibibytes("RssAnon:") + kibibytes("RssShmem:"),
        swap_bytes: kibibytes("VmSwap:"),
    }
}

/// Ids of a process and all its descendants.
fn descendants(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let id = found[next];
        next += 1;
        // Each thread lists the children that it created.
        let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else { continue };
        for thread in threads.flatten() {
            let children = read(&thread.path().join("children"));
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn number(path: &Path) -> u64 {
    read(path).trim().parse().unwrap_or(0)
}

/// Number that follows a name at the start of a line.
fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', '\t']));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process() {
        let usage = Observed::Process(std::process::id()).read();
        assert!((50_000..usage.memory_bytes).contains(&usage.own_memory_bytes), "{usage:?}");
    }

    #[test]
    fn values() {
        let text = "user 12\nuser_usec 34\nVmRSS:\t  56 kB\n";
        for (name, expect) in [("user", 12), ("user_usec", 34), ("VmRSS:", 56), ("usec", 0)] {
            assert_eq!(value(text, name), expect, "{name}");
        }
    }
}
