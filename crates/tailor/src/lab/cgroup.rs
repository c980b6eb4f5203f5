//! Control groups, version 1 and 2: exact processor time and memory of all that a server starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::report::observe::{Cgroup, Observed};

const ROOT: &str = "/sys/fs/cgroup";

/// A control group of ours, removed with its value.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    directories: Vec<PathBuf>,
    is_unified: bool,
}

impl ControlGroup {
    /// Makes a group. `None` where we may not: then processes are observed one by one.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let root = Path::new(ROOT);
        match root.join("cgroup.controllers").exists() {
            true => {
                unified_parents(root, &read("/proc/self/cgroup")).iter().find_map(|parent| Self::unified(parent, name))
            }
            false => Self::make(&[root.join("cpuacct"), root.join("memory")], false, name),
        }
    }

    fn unified(parent: &Path, name: &str) -> Option<Self> {
        // Memory is counted where the parent hands the controller on; processor time always is.
        let _ = std::fs::write(parent.join("cgroup.subtree_control"), "+memory");
        Self::make(&[parent.to_owned()], true, name)
    }

    /// Makes a directory in each parent, if processes may join what it stands for.
    fn make(parents: &[PathBuf], is_unified: bool, name: &str) -> Option<Self> {
        let mut group = Self { directories: Vec::new(), is_unified };
        for parent in parents {
            let directory = parent.join(format!("tailor-{}-{name}", std::process::id()));
            std::fs::create_dir(&directory).ok()?;
            group.directories.push(directory);
        }
        group.can_be_joined().then_some(group)
    }

    /// Whether a process of ours may join: making a group below what was delegated to us does not mean that.
    fn can_be_joined(&self) -> bool {
        let mut shell = Command::new("sh");
        shell.args(["-c", "for file; do echo $$ > \"$file\" || exit 1; done", "sh"]).args(self.member_files());
        shell.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// The files a process writes its id to, to be in the group.
    pub(crate) fn member_files(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|directory| directory.join("cgroup.procs")).collect()
    }

    /// To read what it uses.
    pub(crate) fn observed(&self) -> Observed {
        Observed::Cgroup(Cgroup {
            is_unified: self.is_unified,
            processor: self.directories[0].clone(),
            memory: self.directories[self.directories.len() - 1].clone(),
        })
    }

    /// The processes in it.
    pub(crate) fn members(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.directories[0].join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            // It fails while a process is in it; an empty group left behind does no harm.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Where a group may be made in version 2: at the root, or else, for what systemd delegated to a user, below our own group
/// and those it is in.
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
    use std::time::Duration;

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

    /// A process that is busy for a while is seen, and one that is outside is not.
    fn check_group(make: impl Fn() -> Option<ControlGroup>, what: &str) {
        let Some(group) = make() else {
            eprintln!("not run: no group of {what} can be made here");
            return;
        };
        let joins =
            "for file; do echo $$ > \"$file\"; done; x=$(head -c 4000000 /dev/zero | tr '\\0' x); while :; do :; done";
        let start = || Command::new("sh").args(["-c", joins, "sh"]).args(group.member_files()).spawn().unwrap();
        let mut busy = start();
        std::thread::sleep(Duration::from_millis(400));
        let usage = group.observed().read();
        let members = group.members();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert_eq!(members, [busy.id() as i32], "{what}");
        let micros = usage.user_micros + usage.system_micros;
        assert!((20_000..2_000_000).contains(&micros), "{what}: {micros} us of a loop of 400 ms");
        assert!(usage.memory_bytes > 1_000_000, "{what}: {usage:?}");
    }

    #[test]
    fn version_2_counts() {
        // Beside version 1 it is at another place, without controllers.
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
