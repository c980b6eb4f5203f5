//! Control groups, version 1 and 2: exact CPU time and memory of a server and all processes that it starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::group_limit::GroupLimit;
use crate::report::observe::{Cgroup, Observed};

const ROOT: &str = "/sys/fs/cgroup";

/// Control group of a measured server; dropping it removes its directories.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    directories: Vec<PathBuf>,
    is_unified: bool,
}

impl ControlGroup {
    /// Creates a group. Returns `None` without permission: the lab then observes processes one by one.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let root = Path::new(ROOT);
        match root.join("cgroup.controllers").exists() {
            true => {
                unified_parents(root, &read("/proc/self/cgroup")).iter().find_map(|parent| Self::unified(parent, name))
            }
            false => Self::make(&[root.join("cpuacct"), root.join("memory")], false, name),
        }
    }

    /// Creates a group with a limit. Without permission, a run would not measure what it says.
    pub(crate) fn limited(name: &str, limit: &GroupLimit) -> Result<Self, String> {
        let root = Path::new(ROOT);
        let (controller, unified_controller) = limit.controllers();
        let fail = || format!("--vary: cannot create a control group with the controller {controller}; run as root");
        if root.join("cgroup.controllers").exists() {
            for parent in unified_parents(root, &read("/proc/self/cgroup")) {
                let _ = std::fs::write(parent.join("cgroup.subtree_control"), format!("+{unified_controller}"));
                if let Some(group) = Self::unified(&parent, name) {
                    limit.apply(&group.directories[0], true)?;
                    return Ok(group);
                }
            }
            return Err(fail());
        }
        // The first directory counts CPU time and the last memory, so the limit's is between them.
        let mut parents = vec![root.join("cpuacct"), root.join(controller), root.join("memory")];
        parents.dedup();
        let mut seen = Vec::new();
        // Controllers may be mounted together.
        parents.retain(|parent| {
            let real = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.clone());
            let is_new = !seen.contains(&real);
            seen.push(real);
            is_new
        });
        let group = Self::make(&parents, false, name).ok_or_else(fail)?;
        let directory = root.join(controller).join(group.directories[0].file_name().unwrap_or_default());
        limit.apply(&directory, false)?;
        Ok(group)
    }

    fn unified(parent: &Path, name: &str) -> Option<Self> {
        // Memory is counted only if the parent delegates the memory controller; CPU time always is.
        let _ = std::fs::write(parent.join("cgroup.subtree_control"), "+memory");
        Self::make(&[parent.to_owned()], true, name)
    }

    /// Creates a directory in each parent. Returns `None` if processes cannot join the group.
    fn make(parents: &[PathBuf], is_unified: bool, name: &str) -> Option<Self> {
        let mut group = Self { directories: Vec::new(), is_unified };
        for parent in parents {
            let directory = parent.join(format!("tailor-{}-{name}", std::process::id()));
            std::fs::create_dir(&directory).ok()?;
            group.directories.push(directory);
        }
        group.can_be_joined().then_some(group)
    }

    /// Tests whether our processes can join: permission to create a group does not imply that.
    fn can_be_joined(&self) -> bool {
        let mut shell = Command::new("sh");
        shell.args(["-c", "for file; do echo $$ > \"$file\" || exit 1; done", "sh"]).args(self.member_files());
        shell.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Files to which a process writes its id to join the group.
    pub(crate) fn member_files(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|directory| directory.join("cgroup.procs")).collect()
    }

    /// Source of the group's CPU time and memory.
    pub(crate) fn observed(&self) -> Observed {
        Observed::Cgroup(Cgroup {
            is_unified: self.is_unified,
            processor: self.directories[0].clone(),
            memory: self.directories[self.directories.len() - 1].clone(),
        })
    }

    /// Ids of the processes in the group.
    pub(crate) fn members(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.directories[0].join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            // Removal fails while a process is in the group; a leftover empty group does no harm.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Removes groups of killed processes of this program, with the servers that still run in them.
pub(crate) fn remove_left_groups() {
    let root = Path::new(ROOT);
    let mut parents = vec![root.join("cpuacct"), root.join("cpu"), root.join("memory"), root.join("blkio")];
    parents.extend(unified_parents(root, &read("/proc/self/cgroup")));
    for entry in parents.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix("tailor-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        let Some(process) = process.filter(|process| !Path::new("/proc").join(process.to_string()).exists()) else {
            continue;
        };
        eprintln!("the control group {name} is removed: process {process} ended before it could");
        let group = ControlGroup { directories: vec![entry.path()], is_unified: true };
        for _ in 0..50 {
            let members = group.members();
            for id in members.iter().filter_map(|id| rustix::process::Pid::from_raw(*id)) {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
            if members.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Directories in which a version 2 group may be created: the root, then our own group and its ancestors. systemd may
/// have delegated the latter to a user.
fn unified_parents(root: &Path, own: &str) -> Vec<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let own = root.join(own);
    let mut parents = vec![root.to_owned()];
    parents.extend(own.ancestors().take_while(|path| *path != root).map(Path::to_owned));
    parents
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn parents() {
        let check = |own, expect: &[&str]| {
            let expect: Vec<PathBuf> = expect.iter().map(PathBuf::from).collect();
            assert_eq!(unified_parents(Path::new("/c"), own), expect, "{own}");
        };
        check("0::/\n", &["/c"]);
        check("1:cpu:/x\n0::/user.slice/run.scope\n", &["/c", "/c/user.slice/run.scope", "/c/user.slice"]);
        check("", &["/c"]);
    }

    /// Checks that the group counts a busy process that joined it, and does not count one outside.
    fn check_group(make: impl Fn() -> Option<ControlGroup>, what: &str) {
        let Some(group) = make() else {
            eprintln!("not run: no group of {what} can be made here");
            return;
        };
        let joins =
            "for file; do echo $$ > \"$file\"; done; x=$(head -c 4000000 /dev/zero | tr '\\0' x); while :; do :; done";
        let start = || Command::new("sh").args(["-c", joins, "sh"]).args(group.member_files()).spawn().unwrap();
        let mut busy = start();
        // The commands that make the text end soon; the loop stays.
        let is_alone = || group.members() == [busy.id() as i32] && group.observed().read().user_micros >= 100_000;
        let start = Instant::now();
        while !is_alone() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let usage = group.observed().read();
        let members = group.members();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert_eq!(members, [busy.id() as i32], "{what}");
        let micros = usage.user_micros + usage.system_micros;
        assert!((100_000..20_000_000).contains(&micros), "{what}: {micros} us");
        assert!(usage.memory_bytes > 1_000_000, "{what}: {usage:?}");
        assert!((1..=usage.memory_bytes).contains(&usage.own_memory_bytes), "{what}: {usage:?}");
    }

    #[test]
    fn version_2_counts() {
        // On a machine with version 1, version 2 is mounted at another path and has no controllers.
        let place =
            ["/sys/fs/cgroup/unified", ROOT].into_iter().find(|root| Path::new(root).join("cgroup.procs").exists());
        check_group(|| ControlGroup::unified(Path::new(place?), "test2"), "version 2");
    }

    #[test]
    fn version_1_counts() {
        let parents = ["cpuacct", "memory"].map(|controller| Path::new(ROOT).join(controller));
        check_group(|| ControlGroup::make(&parents, false, "test1"), "version 1");
    }
}
