//! Limits on files, connections and signals (Landlock, landlock(7)).

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};

/// Version of Landlock whose rights are restricted, as far as the kernel supports them. Later versions have more
/// rights.
const VERSION: ABI = ABI::V7;

/// Types of the kernel's own file systems of pipes and sockets (statfs(2)). Landlock does not restrict these, and takes
/// no rules for them.
const UNRESTRICTED_FILE_SYSTEMS: [u64; 2] = [0x5049_5045, 0x534F_434B];

/// Rights to a file, or to everything below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) path: PathBuf,
    pub(super) rights: Rights,
}

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rights {
    /// Read files and directories.
    Read,
    /// Write to files, and create new ones: logs.
    Append,
    /// Create, write, read and remove temporary files: buffers.
    Buffer,
    /// Create and remove sockets.
    Sockets,
    /// Change anything in a directory of the server's own.
    Change,
    /// Read, and run programs.
    Execute,
}

impl Rights {
    fn accesses(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::Append => AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::Truncate,
            Self::Buffer => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile,
            Self::Sockets => AccessFs::MakeSock | AccessFs::RemoveFile,
            Self::Change => {
                let files = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
                let directories = AccessFs::MakeDir | AccessFs::RemoveDir | AccessFs::Refer;
                read | files | directories | AccessFs::MakeSym | AccessFs::MakeSock | AccessFs::MakeFifo
            }
            Self::Execute => read | AccessFs::Execute,
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Append => "writing to",
            Self::Buffer => "buffering in",
            Self::Sockets => "creating sockets in",
            Self::Change => "changing",
            Self::Execute => "running programs in",
        }
    }
}

/// Rights of a thread and all that it starts. Everything else must be out of its reach.
#[derive(Clone, Copy)]
pub(super) struct WantedAccess<'a> {
    /// Files with rights; `None` for all files.
    pub(super) files: Option<&'a [Grant]>,
    /// True to allow TCP connections.
    pub(super) connects: bool,
    /// True to allow TCP listeners on any port. Another process of the same user can take a share of listeners with
    /// SO_REUSEPORT.
    pub(super) chooses_ports: bool,
    /// True to allow signals to processes that it has not started.
    pub(super) signals_others: bool,
}

impl WantedAccess<'_> {
    /// Restrictions that a kernel with this version of Landlock does not support, for messages.
    pub(super) fn not_confined(self, version: ABI) -> Vec<&'static str> {
        let has_bounds = self.files.is_some();
        let all = [
            (has_bounds, ABI::Unsupported..ABI::V1, "files"),
            (has_bounds, ABI::V1..ABI::V3, "truncating files"),
            (has_bounds, ABI::V1..ABI::V5, "ioctl on devices"),
            (!self.connects, ABI::Unsupported..ABI::V4, "connections"),
            (!self.chooses_ports, ABI::Unsupported..ABI::V4, "listening ports of programs"),
            (!self.signals_others, ABI::Unsupported..ABI::V6, "signals from programs"),
        ];
        all.into_iter()
            .filter(|(is_wanted, lack, _)| *is_wanted && lack.contains(&version))
            .map(|(.., what)| what)
            .collect()
    }
}

/// Limits of a thread on files and connections. By default, none.
#[derive(Debug, Default)]
pub(super) struct Boundary {
    /// Rights by device and inode: the kernel checks these and not names, which may lead elsewhere by now.
    granted: Option<HashMap<(u64, u64), BitFlags<AccessFs>>>,
    forbids_connections: bool,
}

/// Ruleset to apply; `None` if nothing is restricted.
pub(super) struct PreparedBoundary(Option<RulesetCreated>);

/// Creates a boundary.
///
/// # Errors
/// Errors of the kernel. A kernel without Landlock is no error.
pub(super) fn prepare(wanted: WantedAccess<'_>) -> io::Result<(Boundary, PreparedBoundary)> {
    let WantedAccess { files, connects, chooses_ports, signals_others } = wanted;
    let mut boundary = Boundary { granted: files.map(|_| HashMap::new()), forbids_connections: !connects };
    if files.is_none() && connects && chooses_ports && signals_others {
        return Ok((boundary, PreparedBoundary(None)));
    }
    let mut ruleset = Ruleset::default();
    if files.is_some() {
        ruleset = ruleset.handle_access(AccessFs::from_all(VERSION)).map_err(io::Error::other)?;
    }
    if !connects {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp).map_err(io::Error::other)?;
    }
    if !chooses_ports {
        ruleset = ruleset.handle_access(AccessNet::BindTcp).map_err(io::Error::other)?;
    }
    if !signals_others {
        ruleset = ruleset.scope(Scope::Signal).map_err(io::Error::other)?;
    }
    let mut ruleset = ruleset.create().map_err(io::Error::other)?;
    if !chooses_ports {
        // Port 0: the kernel chooses the port, as for connections from a given address.
        ruleset = ruleset.add_rule(NetPort::new(0, AccessNet::BindTcp)).map_err(io::Error::other)?;
    }
    for grant in files.unwrap_or_default() {
        // A missing path cannot be granted. If it appears later, a reload finds that its right is missing.
        let Ok(metadata) = grant.path.metadata() else { continue };
        let Ok(file) = PathFd::new(&grant.path) else { continue };
        let mut accesses = grant.rights.accesses();
        if !metadata.is_dir() {
            accesses &= AccessFs::from_file(VERSION);
        }
        let file_system = rustix::fs::fstatfs(&file)?.f_type as u64;
        if accesses.is_empty() || UNRESTRICTED_FILE_SYSTEMS.contains(&file_system) {
            continue;
        }
        ruleset = ruleset.add_rule(PathBeneath::new(file, accesses)).map_err(io::Error::other)?;
        if let Some(granted) = &mut boundary.granted {
            *granted.entry((metadata.dev(), metadata.ino())).or_default() |= accesses;
        }
    }
    Ok((boundary, PreparedBoundary(Some(ruleset))))
}

impl PreparedBoundary {
    /// Restricts this thread as far as the kernel can; returns its version of Landlock, if there was anything to
    /// restrict.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn restrict(&self) -> io::Result<Option<ABI>> {
        let Some(ruleset) = &self.0 else { return Ok(None) };
        let status = ruleset.try_clone()?.restrict_self().map_err(io::Error::other)?;
        Ok(Some(status.landlock.into()))
    }
}

impl Boundary {
    /// Rights among these that are missing, for messages.
    pub(super) fn lacks(&self, grants: &[Grant], connects: bool) -> Vec<String> {
        let mut lacks = Vec::new();
        if let Some(granted) = &self.granted {
            let missing = grants.iter().filter(|grant| !is_within(granted, grant));
            lacks.extend(missing.map(|grant| format!("{} {}", grant.rights.verb(), grant.path.display())));
        }
        if connects && self.forbids_connections {
            lacks.push("outgoing connections".to_owned());
        }
        lacks
    }
}

/// True if these rights were granted for the file or a directory above it.
fn is_within(granted: &HashMap<(u64, u64), BitFlags<AccessFs>>, grant: &Grant) -> bool {
    // A missing path needs no rights.
    let Ok(real) = grant.path.canonicalize() else { return true };
    let Ok(metadata) = real.metadata() else { return true };
    let mut wanted = grant.rights.accesses();
    if !metadata.is_dir() {
        wanted &= AccessFs::from_file(VERSION);
    }
    let of = |path: &Path| path.metadata().ok().and_then(|file| granted.get(&(file.dev(), file.ino())).copied());
    let accesses = real.ancestors().filter_map(of).fold(BitFlags::empty(), |all, one| all | one);
    accesses.contains(wanted)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_lies_within() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["sites/a", "sites/b", "logs", "other"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("other/file"), "").unwrap();
        std::os::unix::fs::symlink(at("sites/a"), at("link")).unwrap();
        let grant = |name: &str, rights: Rights| Grant { path: at(name), rights };
        let granted = [grant("sites", Rights::Read), grant("logs", Rights::Append), grant("logs", Rights::Read)];
        let wanted = WantedAccess { files: Some(&granted), connects: false, chooses_ports: true, signals_others: true };
        let (boundary, _) = prepare(wanted).unwrap();
        let check = |name: &str, rights: Rights, expect: bool| {
            let lacks = boundary.lacks(&[grant(name, rights)], false);
            assert_eq!(lacks.is_empty(), expect, "{name}, {rights:?}: {lacks:?}");
        };
        check("sites", Rights::Read, true);
        check("sites/a", Rights::Read, true);
        check("link", Rights::Read, true);
        check("sites/a", Rights::Execute, false);
        check("logs", Rights::Append, true);
        check("logs", Rights::Read, true);
        check("logs", Rights::Change, false);
        check("other", Rights::Read, false);
        check("other/file", Rights::Read, false);
        check("nowhere", Rights::Read, true);
        // Another directory with the old name is a different one.
        fs::rename(at("sites"), at("before")).unwrap();
        fs::create_dir(at("sites")).unwrap();
        check("sites", Rights::Read, false);
        check("before/b", Rights::Read, true);
        assert_eq!(boundary.lacks(&[], true), ["outgoing connections"]);
        assert_eq!(Boundary::default().lacks(&[grant("other", Rights::Change)], true), Vec::<String>::new());
    }

    /// `/dev/stdout` of a server in a container is a pipe.
    #[test]
    fn pipes_need_no_rights() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        let grants = [Grant { path: path.into(), rights: Rights::Append }];
        let wanted = WantedAccess { files: Some(&grants), connects: false, chooses_ports: true, signals_others: true };
        let (boundary, _) = prepare(wanted).unwrap();
        assert_eq!(boundary.lacks(&grants, false), Vec::<String>::new());
    }

    #[test]
    fn what_kernels_do_not_confine() {
        let server = WantedAccess { files: Some(&[]), connects: false, chooses_ports: true, signals_others: true };
        let proxy = WantedAccess { connects: true, ..server };
        let programs = WantedAccess { files: Some(&[]), connects: true, chooses_ports: false, signals_others: false };
        let nothing = WantedAccess { files: None, connects: true, chooses_ports: true, signals_others: true };
        let check = |wanted: WantedAccess<'_>, version: ABI, expect: &[&str]| {
            assert_eq!(wanted.not_confined(version), expect, "{version:?}");
        };
        check(server, ABI::Unsupported, &["files", "connections"]);
        check(server, ABI::V1, &["truncating files", "ioctl on devices", "connections"]);
        check(server, ABI::V3, &["ioctl on devices", "connections"]);
        check(server, ABI::V4, &["ioctl on devices"]);
        check(server, ABI::V5, &[]);
        check(proxy, ABI::Unsupported, &["files"]);
        check(proxy, ABI::V3, &["ioctl on devices"]);
        check(programs, ABI::Unsupported, &["files", "listening ports of programs", "signals from programs"]);
        check(programs, ABI::V5, &["signals from programs"]);
        check(programs, ABI::V6, &[]);
        check(nothing, ABI::Unsupported, &[]);
    }
}
