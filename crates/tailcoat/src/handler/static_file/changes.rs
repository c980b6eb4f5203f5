//! Changes of a tree by name: deletions, renames. They run on the blocking pool.
//!
//! Each looks up the parent directory below the root (`openat2`, RESOLVE_BENEATH), and then names one entry of it. So
//! no link and no race leads out of the root.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use wire::ftp::is_representable;

use super::named::{NamedFiles, NamedRejection};
use super::roots::OpenedRoot;
use super::{FileTree, RESERVED, hidden_part};
use crate::handler::Now;
use crate::object_cache::Blocking;

/// Permissions of new files and directories, less those that the umask of the server removes.
pub(super) const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Change of a tree. Paths begin with a slash, and have no dot segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedChange {
    /// Deletes a file.
    Delete(Vec<u8>),
    /// Makes a directory.
    MakeDirectory(Vec<u8>),
    /// Removes an empty directory.
    RemoveDirectory(Vec<u8>),
    /// Renames a file or directory. An existing file of the new name is replaced.
    Rename(Vec<u8>, Vec<u8>),
    /// Sets the time of the last modification, in seconds since 1970.
    SetModified(Vec<u8>, u64),
}

impl NamedChange {
    /// Bytes of the paths.
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Delete(path) | Self::MakeDirectory(path) | Self::RemoveDirectory(path) => path.capacity(),
            Self::Rename(from, to) => from.capacity() + to.capacity(),
            Self::SetModified(path, _) => path.capacity(),
        }
    }
}

impl NamedFiles {
    /// Changes the tree.
    pub async fn change(self, host: Box<[u8]>, change: NamedChange, now: Now) -> Result<(), NamedRejection> {
        let (tree, root) = self.tree_and_root(&host, now).await?;
        let changing = Blocking::spawn(move || apply(&tree, &root, &change));
        changing.await.unwrap_or(Err(NamedRejection::Failed))
    }
}

/// Parent directory of a path, and the name in it. Programs cannot be changed. Beside programs, no link may lead to the
/// parent, because the target of the link could belong to a program.
pub(super) fn place<'p>(
    tree: &FileTree,
    root: &OpenedRoot,
    path: &'p [u8],
) -> Result<(OwnedFd, &'p [u8]), NamedRejection> {
    if hidden_part(path, tree.files.hidden).is_some() {
        return Err(NamedRejection::NotFound);
    }
    let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let (parent, name) = (path.get(1..slash).unwrap_or_default(), path.get(slash + 1..).unwrap_or_default());
    if matches!(name, b"" | b"." | b"..") || !is_representable(name) || name.starts_with(RESERVED.as_bytes()) {
        return Err(NamedRejection::Forbidden);
    }
    if tree.runners.is_empty() {
        return Ok((root.root.open_directory(parent)?, name));
    }
    if tree.is_program(path.strip_prefix(b"/").unwrap_or(path)) {
        return Err(NamedRejection::Forbidden);
    }
    Ok((root.root.open_directory_without_links(parent)?, name))
}

pub(super) fn is_directory(directory: &OwnedFd, name: &[u8]) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statat(directory, name, flags)
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

fn apply(tree: &FileTree, root: &OpenedRoot, change: &NamedChange) -> Result<(), NamedRejection> {
    let done = match change {
        NamedChange::Delete(path) => {
            let (directory, name) = place(tree, root, path)?;
            rustix::fs::unlinkat(directory, name, AtFlags::empty())
        }
        NamedChange::MakeDirectory(path) => {
            let (directory, name) = place(tree, root, path)?;
            rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(DIRECTORY_MODE))
        }
        NamedChange::RemoveDirectory(path) => {
            let (directory, name) = place(tree, root, path)?;
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
        }
        NamedChange::Rename(from, to) => {
            let ((from_directory, from_name), (directory, name)) = (place(tree, root, from)?, place(tree, root, to)?);
            // With a new path, the files below could become programs, or programs become files that clients can read.
            if !tree.runners.is_empty() && is_directory(&from_directory, from_name) {
                return Err(NamedRejection::Forbidden);
            }
            rustix::fs::renameat(from_directory, from_name, directory, name)
        }
        NamedChange::SetModified(path, seconds) => {
            let (directory, name) = place(tree, root, path)?;
            let last_modification = Timespec { tv_sec: i64::try_from(*seconds).unwrap_or(i64::MAX), tv_nsec: 0 };
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
            let times = Timestamps { last_access, last_modification };
            rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
    };
    done.map_err(rejection_of)
}

pub(super) fn rejection(error: &io::Error) -> NamedRejection {
    Errno::from_io_error(error).map_or(NamedRejection::Failed, rejection_of)
}

pub(super) fn rejection_of(error: Errno) -> NamedRejection {
    match error {
        Errno::EXIST => NamedRejection::Exists,
        Errno::NOTEMPTY => NamedRejection::NotEmpty,
        Errno::ISDIR => NamedRejection::IsDirectory,
        Errno::NOTDIR => NamedRejection::NotDirectory,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => NamedRejection::Full,
        Errno::ROFS => NamedRejection::Forbidden,
        error => crate::object_cache::OpenError::from(error).into(),
    }
}
