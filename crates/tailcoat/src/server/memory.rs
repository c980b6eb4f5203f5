//! Memory available to this process.

use std::fs;
use std::path::Path;

use rustix::system::sysinfo;

/// Mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Memory available to the process, in bytes: the machine's, or the limit of its container if that is lower.
pub(crate) fn memory_bytes() -> u64 {
    let machine = sysinfo();
    let of_machine = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = limit_of(&groups, |file| fs::read_to_string(file).ok());
    of_groups.map_or(of_machine, |limit| limit.min(of_machine))
}

/// Lowest memory limit of these control groups and their parents (cgroups(7), `/proc/PID/cgroup`), versions 1 and 2.
fn limit_of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let lowest_of = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (mount, file) = match controllers {
            "" => (GROUPS.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (format!("{GROUPS}/memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let mount = Path::new(&mount);
        let own = mount.join(group.trim_start_matches('/'));
        // In a container the group's name may differ from its mount point. The mount point's limit counts then.
        let above = own.ancestors().take_while(|path| path.starts_with(mount));
        above.filter_map(|path| read(&path.join(file))?.trim().parse().ok()).min()
    };
    groups.lines().filter_map(lowest_of).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_groups() {
        let check = |groups: &str, files: &[(&str, &str)], expect: Option<u64>| {
            let read = |path: &Path| {
                let found = files.iter().find(|(name, _)| path == Path::new("/sys/fs/cgroup").join(name));
                found.map(|(_, text)| format!("{text}\n"))
            };
            assert_eq!(limit_of(groups, read), expect, "{groups:?}, {files:?}");
        };
        check("", &[], None);
        check("0::/\n", &[], None);
        // A container with its own namespace.
        check("0::/\n", &[("memory.max", "536870912")], Some(512 << 20));
        check("0::/\n", &[("memory.max", "max")], None);
        // A service: the slice above it may have a lower limit.
        let service = "0::/system.slice/tailcoat.service\n";
        check(service, &[("system.slice/tailcoat.service/memory.max", "1000")], Some(1_000));
        let both = [("system.slice/tailcoat.service/memory.max", "1000"), ("system.slice/memory.max", "900")];
        check(service, &both, Some(900));
        // Version 1, also where the container's group is mounted under another name.
        let first = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n";
        check(first, &[("memory/docker/abc/memory.limit_in_bytes", "5000")], Some(5_000));
        check(first, &[("memory/memory.limit_in_bytes", "6000")], Some(6_000));
        check("4:memory:/../..\n", &[("memory/memory.limit_in_bytes", "7000")], Some(7_000));
    }
}
