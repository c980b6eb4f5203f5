//! Facts about the machine.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::{Config, HandlerConfig, RootPiece};
use crate::confinement;

/// The machine, as far as it matters.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineFacts {
    /// True in a container, which cannot change most settings.
    pub(super) is_container: bool,
    /// Settings of the kernel, by their names as sysctl(8) has them: those that could be read.
    pub(super) settings: HashMap<&'static str, String>,
    /// Descriptors that a process started here may open.
    pub(super) open_files_max: u64,
    /// True if the kernel can confine names to a root.
    pub(super) confines_names: bool,
    /// Reason why the kernel cannot encrypt, if the configuration asks for it.
    pub(super) kernel_tls_missing: Option<String>,
    /// Cores that a process may use.
    pub(super) cores: usize,
    /// CPU time that a container may use, in thousandths of a core.
    pub(super) cpu_quota_thousandths: Option<u64>,
    /// Memory of the machine, or what a container may use.
    pub(super) memory_bytes: Option<u64>,
    /// Frequency governor of the first core.
    pub(super) frequency_governor: Option<String>,
    /// True if a server started by this user stays root.
    pub(super) stays_root: bool,
    /// Files of the configuration, and the bits of their permissions.
    pub(super) files: Vec<(FileRole, PathBuf, u32)>,
    /// Files with secrets that CGI programs may read.
    pub(super) shown_to_programs: Vec<PathBuf>,
}

/// Purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRole {
    Config,
    Key,
    Passwords,
    Root,
}

/// The settings that are looked at.
const SETTINGS: [&str; 12] = [
    "net.core.somaxconn",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_wmem",
    "net.ipv4.ip_local_port_range",
    "fs.inotify.max_user_watches",
    "fs.inotify.max_user_instances",
    "fs.protected_symlinks",
];

impl MachineFacts {
    /// Looks at this machine, and at the files that the configuration names.
    pub(super) fn gather(config: Option<&Config>, config_file: Option<&Path>) -> Self {
        let settings = SETTINGS.iter().filter_map(|&name| {
            let path = Path::new("/proc/sys").join(name.replace('.', "/"));
            Some((name, fs::read_to_string(path).ok()?.trim().to_owned()))
        });
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let files = files(config, config_file);
        Self {
            is_container: is_container(),
            settings: settings.collect(),
            open_files_max: limit.maximum.unwrap_or(u64::MAX),
            confines_names: crate::object_cache::check_kernel().is_ok(),
            kernel_tls_missing: config.filter(|config| config.server.kernel_tls.is_wanted).and_then(|_| {
                let missing = crate::connection::Abilities::find().err()?;
                Some(missing.to_string())
            }),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_quota_thousandths: cpu_quota(),
            memory_bytes: Some(crate::server::memory_bytes()),
            frequency_governor: fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .ok()
                .map(|text| text.trim().to_owned()),
            stays_root: rustix::process::geteuid().is_root() && is_no_other_user_wanted(config),
            shown_to_programs: config.map(|config| shown_to_programs(config, &files)).unwrap_or_default(),
            files,
        }
    }

    /// A setting as a number: the last, if it has several.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.settings.get(name)?.split_whitespace().next_back()?.parse().ok()
    }
}

fn is_no_other_user_wanted(config: Option<&Config>) -> bool {
    let wanted = confinement::wanted_user(config.and_then(|config| config.server.user));
    wanted.ok().flatten().is_none_or(|user| user.user_id == 0)
}

/// Returns `true` if marks of container runtimes exist.
fn is_container() -> bool {
    let files = ["/.dockerenv", "/run/.containerenv"];
    let variables = ["container", "KUBERNETES_SERVICE_HOST"];
    files.iter().any(|file| Path::new(file).exists()) || variables.iter().any(|name| std::env::var_os(name).is_some())
}

/// Of a container: by control groups of the second version, or of the first.
fn cpu_quota() -> Option<u64> {
    let read = |file: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok();
    let of_first = || Some(format!("{} {}", read("cpu/cpu.cfs_quota_us")?.trim(), read("cpu/cpu.cfs_period_us")?));
    quota_thousandths(&read("cpu.max").or_else(of_first)?)
}

/// Of a quota and the period that it is for; `max` and -1 are none.
fn quota_thousandths(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    (quota.parse::<u64>().ok()? * 1_000).checked_div(period.parse().ok()?)
}

fn files(config: Option<&Config>, config_file: Option<&Path>) -> Vec<(FileRole, PathBuf, u32)> {
    let mut named: Vec<(FileRole, PathBuf)> = Vec::new();
    named.extend(config_file.map(|file| (FileRole::Config, file.to_owned())));
    for site in config.iter().flat_map(|config| &config.sites) {
        named.extend(site.tls.certificates.iter().map(|certificate| (FileRole::Key, certificate.key.clone())));
        let passwords = site.rules.passwords.iter().filter_map(|rule| rule.file.as_ref());
        named.extend(passwords.map(|file| (FileRole::Passwords, file.clone())));
        for route in &site.routes {
            if let HandlerConfig::Files(files) = &route.handler
                && let [RootPiece::Literal(directory)] = files.root.pieces.as_slice()
            {
                named.push((FileRole::Root, directory.into()));
            }
        }
    }
    named.sort_by(|one, other| one.1.cmp(&other.1));
    named.dedup();
    let with_mode = |(role, path): (FileRole, PathBuf)| {
        let mode = fs::metadata(&path).ok()?.mode() & 0o7777;
        Some((role, path, mode))
    };
    named.into_iter().filter_map(with_mode).collect()
}

fn shown_to_programs(config: &Config, files: &[(FileRole, PathBuf, u32)]) -> Vec<PathBuf> {
    let secrets = files.iter().filter(|(role, ..)| matches!(role, FileRole::Key | FileRole::Passwords));
    let paths = secrets.map(|(_, path, _)| path);
    paths.filter(|path| confinement::is_shown_to_programs(config, path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(quota_thousandths(text), expect, "{text:?}");
        check("max 100000\n", None);
        check("-1 100000\n", None);
        check("150000 100000\n", Some(1_500));
        check("150000 0", None);
        check("", None);
    }
}
