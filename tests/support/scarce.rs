//! Small memory limits and small disks for servers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::PATIENCE;
use super::waiting::within;

/// Control group (cgroups(7)) with little memory; `None` where the system does not permit one.
pub(crate) struct LittleMemory(PathBuf);

impl LittleMemory {
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let groups = Path::new("/sys/fs/cgroup");
        let name = format!("tailcoat-test-{}-{bytes}", std::process::id());
        // Version 1, or version 2, where all parent groups must enable the controller.
        let (directory, limit) = match groups.join("memory").is_dir() {
            true => (groups.join("memory").join(name), "memory.limit_in_bytes"),
            false => {
                fs::write(groups.join("cgroup.subtree_control"), "+memory").ok()?;
                (groups.join(name), "memory.max")
            }
        };
        fs::create_dir(&directory).ok()?;
        let group = Self(directory);
        fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }

    /// Number of its processes that the kernel killed for lack of memory; `None` if the kernel does not count them.
    pub(crate) fn kills(&self) -> Option<u64> {
        // `memory.events` of version 2, `memory.oom_control` of version 1.
        let texts = ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(self.0.join(name)));
        let lines = texts.iter().flatten().flat_map(|text| text.lines());
        lines.filter_map(|line| line.strip_prefix("oom_kill ")).find_map(|count| count.trim().parse().ok())
    }

    /// Makes a command run in the group.
    pub(crate) fn run_inside(&self, command: &mut Command) {
        let program = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let joining = format!("echo $$ > '{}' && exec \"$@\"", self.0.join("cgroup.procs").display());
        *command = Command::new("sh");
        command.args(["-c", &joining, "sh"]).arg(program).args(arguments);
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        // The kernel takes a moment to remove a killed process.
        let _ = within(PATIENCE, || fs::remove_dir(&self.0).ok());
    }
}

/// Small disk; `None` where the system does not permit the mount.
pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    pub(crate) fn new(kib: u32) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={kib}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(directory.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}
