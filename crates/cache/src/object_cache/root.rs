use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::FileStatus;
use super::links::open_outside;
use crate::config::SymlinkRule;

/// Maximum number of retries of a lookup that the kernel could not finish because of a concurrent rename.
const RENAME_RETRIES_MAX: u32 = 16;

/// Permission of a lookup to wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAccess {
    /// Use only what the kernel has in memory; fail with [`OpenError::WouldBlock`] otherwise. For workers.
    Cached,
    /// Wait for the disk if necessary. For the blocking pool.
    Blocking,
}

/// Reason that a file or directory could not be opened or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The operation needs [`DiskAccess::Blocking`].
    WouldBlock,
    /// No file has this name.
    NotFound,
    /// The file must not be read, is outside the root, or is neither a file nor a directory.
    Forbidden,
    /// The name leads to a directory where a file was expected.
    Directory,
    /// The system is out of file descriptors or memory.
    Exhausted,
    /// Another error, such as a failing disk.
    Failed(Errno),
}

impl From<Errno> for OpenError {
    fn from(error: Errno) -> Self {
        match error {
            // AGAIN: from RESOLVE_CACHED and RWF_NOWAIT. INTR: the wait of a network file system was interrupted.
            Errno::AGAIN | Errno::INTR => Self::WouldBlock,
            // A name that is invalid for the file system cannot exist.
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::ILSEQ | Errno::INVAL => Self::NotFound,
            // XDEV: outside the root. LOOP: a cycle of links, or a magic link. NXIO, NODEV: a socket or device.
            Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP | Errno::NXIO | Errno::NODEV => Self::Forbidden,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Self::Exhausted,
            other => Self::Failed(other),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("not in memory"),
            Self::NotFound => f.write_str("not found"),
            Self::Forbidden => f.write_str("permission denied"),
            Self::Directory => f.write_str("is a directory"),
            Self::Exhausted => f.write_str("out of file descriptors or memory"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// Open directory that confines lookups to the files below it. The kernel rejects names that leave it by `..`, by links
/// or by races between the two; links that a [`SymlinkRule`] allows are an exception.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    status: FileStatus,
    /// Links that lead out of the directory and are followed all the same.
    symlinks: SymlinkRule,
    /// True until an open with `O_NOATIME` is forbidden but works without it.
    no_access_time: AtomicBool,
}

impl Root {
    /// Opens a directory as a root.
    pub fn open(path: &Path, symlinks: &SymlinkRule, access: DiskAccess) -> Result<Self, OpenError> {
        let resolve = match access {
            DiskAccess::Cached => ResolveFlags::CACHED,
            DiskAccess::Blocking => ResolveFlags::empty(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
        let status = FileStatus::of(&directory)?;
        Ok(Self { directory, status, symlinks: symlinks.clone(), no_access_time: AtomicBool::new(true) })
    }

    /// True if both are the same directory.
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |root: &Self| (root.status.identity.device, root.status.identity.inode);
        place(self) == place(other)
    }

    /// Looks up a name without opening the file for reading. Names are relative; an empty name is the root itself.
    pub fn find(&self, name: &[u8], access: DiskAccess) -> Result<(OwnedFd, FileStatus), OpenError> {
        let fd = self.resolve(name, OFlags::PATH, access)?;
        let status = FileStatus::of(&fd)?;
        Ok((fd, status))
    }

    /// Returns true if the kernel knows without a disk that this name does not exist, and no symbolic link is on the way to
    /// it.
    pub(super) fn is_missing(&self, name: &[u8]) -> bool {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::CACHED;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.directory, name, flags, Mode::empty(), resolve).err() == Some(Errno::NOENT)
    }

    /// Returns the status of the file that a name leads to. With [`DiskAccess::Blocking`], works even if no file descriptor
    /// is free.
    pub fn status(&self, name: &[u8], access: DiskAccess) -> Result<FileStatus, OpenError> {
        match (self.find(name, access), access) {
            (Err(OpenError::Exhausted), DiskAccess::Cached) => Err(OpenError::WouldBlock),
            // This lookup is not confined to the root. Its result is used only to check that a file found below the
            // root has not changed.
            (Err(OpenError::Exhausted), DiskAccess::Blocking) => Ok(FileStatus::at(&self.directory, name)?),
            (result, _) => result.map(|(_, status)| status),
        }
    }

    /// Opens a regular file for reading, and returns its status. Other types are not opened, because opening a FIFO or
    /// a device can have side effects.
    pub fn open_file(&self, name: &[u8], access: DiskAccess) -> Result<(OwnedFd, FileStatus), OpenError> {
        let (_, status) = self.find(name, access)?;
        expect_file(&status)?;
        // If another file has taken the name in between, O_NONBLOCK avoids waiting for the writer of a FIFO.
        let fd = self.open_for_reading(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, access)?;
        let status = FileStatus::of(&fd)?;
        expect_file(&status)?;
        Ok((fd, status))
    }

    /// Opens a directory for reading its entries.
    pub fn open_directory(&self, name: &[u8]) -> Result<OwnedFd, OpenError> {
        self.resolve(name, OFlags::RDONLY | OFlags::DIRECTORY, DiskAccess::Blocking)
    }

    /// Opens a directory for changing its entries, unless a symbolic link is on the way to it.
    pub fn open_directory_without_links(&self, name: &[u8]) -> Result<OwnedFd, OpenError> {
        let name = if name.is_empty() { b"." } else { name };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(open_retrying(&self.directory, name, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)?)
    }

    /// Opens a name with `O_NOATIME` if permitted; only the file's owner may use it. Without it, a read updates the
    /// access time in the inode. That costs disk writes, and may wait for the file system's journal.
    fn open_for_reading(&self, name: &[u8], flags: OFlags, access: DiskAccess) -> Result<OwnedFd, OpenError> {
        if self.no_access_time.load(Ordering::Relaxed) {
            match self.resolve(name, flags | OFlags::NOATIME, access) {
                Err(OpenError::Forbidden) => {}
                result => return result,
            }
        }
        let fd = self.resolve(name, flags, access)?;
        self.no_access_time.store(false, Ordering::Relaxed);
        Ok(fd)
    }

    fn resolve(&self, name: &[u8], flags: OFlags, access: DiskAccess) -> Result<OwnedFd, OpenError> {
        let name = if name.is_empty() { b"." } else { name };
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        match access {
            DiskAccess::Cached => {
                match rustix::fs::openat2(&self.directory, name, flags, Mode::empty(), beneath | ResolveFlags::CACHED) {
                    // The name may contain an absolute link to a target inside the root.
                    Err(Errno::XDEV) => Err(OpenError::WouldBlock),
                    result => Ok(result?),
                }
            }
            DiskAccess::Blocking => {
                let open = |name: &[u8]| open_retrying(&self.directory, name, flags, beneath);
                match open(name) {
                    Err(Errno::XDEV) => {
                        let inside = self.resolve_absolute_links(name).and_then(|inside| Ok(open(&inside)?));
                        match inside {
                            Err(OpenError::Forbidden) if self.symlinks != SymlinkRule::Inside => {
                                open_outside(&self.directory, name, flags, &self.symlinks)
                            }
                            inside => inside,
                        }
                    }
                    result => Ok(result?),
                }
            }
        }
    }

    /// Replaces a name with absolute links by the path that the kernel resolves it to. RESOLVE_BENEATH rejects all
    /// absolute links, even links into the root. The returned path must be opened with RESOLVE_BENEATH again.
    fn resolve_absolute_links(&self, name: &[u8]) -> Result<Vec<u8>, OpenError> {
        let outside = |_| OpenError::Forbidden;
        let target = rustix::fs::openat(&self.directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let target = path_of(&target.map_err(outside)?).map_err(outside)?;
        let root = path_of(&self.directory).map_err(outside)?;
        let inside = match target.strip_prefix(root.as_slice()) {
            Some(inside) if root == b"/" => inside,
            Some(inside) => inside.strip_prefix(b"/").ok_or(OpenError::Forbidden)?,
            None => return Err(OpenError::Forbidden),
        };
        let slash: &[u8] = if name.ends_with(b"/") { b"/" } else { b"" };
        Ok([inside, slash].concat())
    }
}

fn expect_file(status: &FileStatus) -> Result<(), OpenError> {
    match status.kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(OpenError::Directory),
        _ => Err(OpenError::Forbidden),
    }
}

/// Checks that the kernel can confine names to a root (openat2, Linux 5.6; RESOLVE_CACHED, Linux 5.12). Without this,
/// no file is served.
pub fn check_kernel() -> Result<(), Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::CACHED;
    match rustix::fs::openat2(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a name; retries if a component was renamed meanwhile, because the kernel then cannot tell if it is below the
/// root.
pub(super) fn open_retrying(
    directory: &OwnedFd,
    name: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut retries = 0;
    loop {
        match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if retries < RENAME_RETRIES_MAX => retries += 1,
            Err(Errno::AGAIN | Errno::INTR) => return Err(Errno::BUSY),
            result => return result,
        }
    }
}

/// Path of an open file, as the kernel reports it.
pub(super) fn path_of(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    Ok(rustix::fs::readlink(descriptor_path(fd), Vec::new())?.into_bytes())
}

/// Path that stands for an open file, for system calls that take only paths.
pub(super) fn descriptor_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{DiskAccess, OpenError, Root, check_kernel};
    use crate::config::SymlinkRule;

    #[test]
    fn names_stay_below_the_root() {
        check_kernel().unwrap();
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("root");
        let make = |name: &str| fs::write(path.join(name), name).unwrap();
        fs::create_dir_all(path.join("directory")).unwrap();
        fs::write(outer.path().join("secret"), "secret").unwrap();
        fs::create_dir(outer.path().join("root-too")).unwrap();
        fs::write(outer.path().join("root-too/secret"), "secret").unwrap();
        make("file");
        make("directory/file");
        make("name with \u{e9}\u{1}\n");
        symlink("directory/file", path.join("inside")).unwrap();
        symlink(path.join("directory"), path.join("absolute-inside")).unwrap();
        symlink("../secret", path.join("outside")).unwrap();
        symlink(outer.path().join("root-too"), path.join("absolute-outside")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        symlink("circle", path.join("circle")).unwrap();
        symlink("/proc/self/root", path.join("magic")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("fifo"), 0o644.into()).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();

        let root = Root::open(&path, &SymlinkRule::Inside, DiskAccess::Blocking).unwrap();
        let check = |name: &[u8], expect: Result<(), OpenError>| {
            let result = root.open_file(name, DiskAccess::Blocking).map(drop);
            assert_eq!(result, expect, "{}", name.escape_ascii());
            let cached = root.open_file(name, DiskAccess::Cached).map(drop);
            assert!(
                cached == expect || cached == Err(OpenError::WouldBlock),
                "{} cached: {cached:?}",
                name.escape_ascii()
            );
        };
        check(b"file", Ok(()));
        check(b"directory/file", Ok(()));
        check("name with \u{e9}\u{1}\n".as_bytes(), Ok(()));
        check(b"inside", Ok(()));
        check(b"absolute-inside/file", Ok(()));
        check(b"directory/../file", Ok(()));
        check(b"missing", Err(OpenError::NotFound));
        check(b"file/", Err(OpenError::NotFound));
        check(b"file/below", Err(OpenError::NotFound));
        check(&[b'n'; 300], Err(OpenError::NotFound));
        check(&b"directory/".repeat(500), Err(OpenError::NotFound));
        check(b"dangling", Err(OpenError::NotFound));
        for rejected in [
            "..",
            "../secret",
            "directory/../../secret",
            "outside",
            "absolute-outside/secret",
            "circle",
            "magic/etc/passwd",
            "/etc/passwd",
            "fifo",
            "socket",
        ] {
            check(rejected.as_bytes(), Err(OpenError::Forbidden));
        }
        if !rustix::process::getuid().is_root() {
            fs::set_permissions(path.join("file"), fs::Permissions::from_mode(0o000)).unwrap();
            check(b"file", Err(OpenError::Forbidden));
        }
    }

    #[test]
    fn a_replaced_root_is_another() {
        let outer = tempfile::tempdir().unwrap();
        let current = outer.path().join("current");
        for release in ["1", "2"] {
            fs::create_dir(outer.path().join(release)).unwrap();
        }
        symlink("1", &current).unwrap();
        let open = |path: &Path| Root::open(path, &SymlinkRule::Inside, DiskAccess::Blocking).unwrap();
        let first = open(&current);
        assert!(first.is_same(&open(&current)));
        symlink("2", outer.path().join("next")).unwrap();
        fs::rename(outer.path().join("next"), &current).unwrap();
        assert!(!first.is_same(&open(&current)));
        assert_eq!(
            Root::open(&outer.path().join("3"), &SymlinkRule::Inside, DiskAccess::Blocking).err(),
            Some(OpenError::NotFound)
        );
    }
}
