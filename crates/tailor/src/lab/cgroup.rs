//! Control groups, version 1 and 2: exact processor time and memory of all that a server starts.

use std::path::{Path, PathBuf};

use crate::report::observe::{Cgroup, Observed};

const ROOT: &str = "/sys/fs/cgroup";

/// A control group of ours, removed with its value.
#[derive(Debug)]
pub(crate) struct Group {
    directories: Vec<PathBuf>,
    is_unified: bool,
}

impl Group {
    /// Makes a group. `None` where we may not: then processes are observed one by one.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let name = format!("tailor-{}-{name}", std::process::id());
        let root = Path::new(ROOT);
        let is_unified = root.join("cgroup.controllers").exists();
        let parents = if is_unified { vec![root.to_owned()] } else { vec![root.join("cpuacct"), root.join("memory")] };
        if is_unified {
            // Memory is counted where the parent hands the controller on; processor time always is.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+cpu +memory");
        }
        let mut group = Self { directories: Vec::new(), is_unified };
        for parent in parents {
            let directory = parent.join(&name);
            std::fs::create_dir(&directory).ok()?;
            group.directories.push(directory);
        }
        Some(group)
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

impl Drop for Group {
    fn drop(&mut self) {
        for directory in &self.directories {
            // It fails while a process is in it; an empty group left behind does no harm.
            let _ = std::fs::remove_dir(directory);
        }
    }
}
