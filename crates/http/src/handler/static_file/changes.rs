//! Changes of a tree by name: deletions, renames. They run on the blocking pool.
//!
//! Each looks up the parent directory below the root (`openat2`, RESOLVE_BENEATH), and then names one entry of it. So
//! no link and no race leads out of the root.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use wire::ftp::is_representable;

use super::named::{NamedFiles, NamedRejection};
use super::roots::OpenedRoot;
use super::{FileTree, RESERVED, hidden_part};
use crate::handler::Now;
use crate::object_cache::{Blocking, FileStatus};

/// Permissions of new files and directories, less those that the umask of the server removes.
pub(super) const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Directories and links that are looked at before a directory moves, and the depth up to which.
const MOVED_ENTRIES_MAX: u32 = 100_000;
const MOVED_DEPTH_MAX: usize = 64;

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

fn is_same_directory(one: &OwnedFd, other: &OwnedFd) -> bool {
    match (FileStatus::of(one), FileStatus::of(other)) {
        (Ok(one), Ok(other)) => one.is_same_file(&other),
        _ => false,
    }
}

/// True if all symbolic links of an entry lead to the same places after the entry has moved to another directory. The
/// operator has made them, and a moved link with `..` could lead to the files of another user. A link inside a moved
/// directory may lead to another place inside. `depth` is the number of moved directories around the entry.
fn keeps_links(directory: &OwnedFd, name: &[u8], depth: usize, entries_left: &mut u32) -> Result<bool, NamedRejection> {
    let too_much = NamedRejection::Unavailable;
    *entries_left = entries_left.checked_sub(1).filter(|_| depth < MOVED_DEPTH_MAX).ok_or(too_much)?;
    let status = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => status,
        Err(Errno::NOENT) => return Ok(true),
        Err(error) => return Err(rejection_of(error)),
    };
    match FileType::from_raw_mode(status.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(rejection_of)?;
            Ok(!leads_out(target.to_bytes(), depth))
        }
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inside = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(rejection_of)?;
            for entry in Dir::read_from(&inside).map_err(rejection_of)? {
                let entry = entry.map_err(rejection_of)?;
                let name = entry.file_name().to_bytes();
                // The kernel knows most types without a look at the file.
                let may_lead_out =
                    matches!(entry.file_type(), FileType::Symlink | FileType::Directory | FileType::Unknown);
                if !matches!(name, b"." | b"..")
                    && may_lead_out
                    && !keeps_links(&inside, name, depth + 1, entries_left)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(true),
    }
}

/// True if a link leads to another place after the directories around it have moved, or the link itself has. An absolute
/// target stays the same; a `..` after a name may follow another link.
fn leads_out(target: &[u8], depth: usize) -> bool {
    let mut parts = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).peekable();
    let mut steps_up = 0;
    while parts.next_if_eq(&&b".."[..]).is_some() {
        steps_up += 1;
    }
    !target.starts_with(b"/") && (steps_up >= depth || parts.any(|part| part == b".."))
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
            let is_moved = !is_same_directory(&from_directory, &directory);
            let mut entries_left = MOVED_ENTRIES_MAX;
            if is_moved && !keeps_links(&from_directory, from_name, 0, &mut entries_left)? {
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

#[cfg(test)]
mod tests {
    use super::leads_out;

    #[test]
    fn links_that_lead_elsewhere_after_a_move() {
        for (target, depth, expect) in [
            ("/srv/common", 0, false),
            ("a.txt", 0, true),
            ("../a.txt", 0, true),
            ("a.txt", 1, false),
            ("./sub//a.txt", 1, false),
            ("..", 1, true),
            ("../a.txt", 2, false),
            (".././../a.txt", 2, true),
            ("../sub/../../a.txt", 3, true),
            ("../..", 3, false),
        ] {
            assert_eq!(leads_out(target.as_bytes(), depth), expect, "{target} {depth}");
        }
    }
}
