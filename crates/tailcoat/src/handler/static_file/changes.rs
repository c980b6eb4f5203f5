//! Changes of a tree by name: uploads, deletions, renames. They run on the blocking pool.
//!
//! Each looks up the parent directory below the root (`openat2`, RESOLVE_BENEATH), and then names one entry of it. So
//! no link and no race leads out of the root.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use wire::ftp::is_representable;

use super::load::is_for_everyone;
use super::named::{NamedFiles, NamedRejection};
use super::roots::OpenedRoot;
use super::{FileTree, hidden_part};
use crate::handler::Now;
use crate::object_cache::Blocking;

/// Permissions of new files and directories, less those that the umask of the server removes.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Beginning of the names of incomplete uploads. The dot hides them from clients.
const RESERVED: &str = ".tailcoat-";
const TEMPORARY: &str = ".tailcoat-upload-";
const PARTIAL: &str = ".tailcoat-partial-";

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

/// Beginning of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadStart {
    /// At this position of the present file; 0 for a new one.
    At(u64),
    /// At the end of the present file.
    End,
}

/// Upload to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRequest {
    /// Path of the file.
    pub path: Vec<u8>,
    /// Position to begin at.
    pub start: UploadStart,
    /// Maximum length of the file, in bytes.
    pub bytes_max: u64,
    /// User for whom an incomplete upload is kept; `None` if it is not kept.
    pub keeper: Option<Vec<u8>>,
}

/// Upload under a temporary name. When complete, the file gets its own name and replaces an earlier one. An incomplete
/// file is removed, or kept under a hidden name.
#[derive(Debug)]
pub struct NamedUpload {
    directory: OwnedFd,
    temporary: String,
    name: Vec<u8>,
    /// Name that an incomplete upload gets, if it is kept.
    partial: Option<String>,
    file: File,
    written_bytes: u64,
    bytes_max: u64,
    /// True if the file has its name, or was removed or kept.
    is_settled: bool,
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

    /// Begins an upload.
    pub async fn upload(
        self,
        host: Box<[u8]>,
        request: UploadRequest,
        now: Now,
    ) -> Result<NamedUpload, NamedRejection> {
        let (tree, root) = self.tree_and_root(&host, now).await?;
        let beginning = Blocking::spawn(move || NamedUpload::begin(&tree, &root, &request));
        beginning.await.unwrap_or(Err(NamedRejection::Failed))
    }

    /// Length of the kept part of an incomplete upload of a user; `None` if there is no such part.
    pub async fn partial_bytes(self, host: Box<[u8]>, path: Vec<u8>, keeper: Vec<u8>, now: Now) -> Option<u64> {
        let (tree, root) = self.tree_and_root(&host, now).await.ok()?;
        let looking = Blocking::spawn(move || {
            let (directory, name) = place(&tree, &root, &path).ok()?;
            let name = partial_name(&keeper, name);
            let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            u64::try_from(status.st_size).ok()
        });
        looking.await.ok().flatten()
    }
}

impl NamedUpload {
    fn begin(tree: &Arc<FileTree>, root: &OpenedRoot, request: &UploadRequest) -> Result<Self, NamedRejection> {
        let UploadRequest { path, start, bytes_max, keeper } = request;
        let (start, bytes_max) = (*start, *bytes_max);
        let (directory, name) = place(tree, root, path)?;
        if is_directory(&directory, name) {
            return Err(NamedRejection::IsDirectory);
        }
        let temporary = format!("{TEMPORARY}{:016x}", fastrand::u64(..));
        let partial = keeper.as_ref().map(|keeper| partial_name(keeper, name));
        // Under its new name, no other upload can take the part.
        let resumes = start != UploadStart::At(0)
            && partial
                .as_ref()
                .is_some_and(|partial| rustix::fs::renameat(&directory, partial, &directory, &temporary).is_ok());
        let create = if resumes { OFlags::empty() } else { OFlags::CREATE | OFlags::EXCL };
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | create;
        let mode = Mode::from_raw_mode(FILE_MODE);
        let file = rustix::fs::openat(&directory, &temporary, flags, mode).map_err(rejection_of)?.into();
        let (name, is_settled) = (name.to_vec(), false);
        let mut upload = Self { directory, temporary, name, partial, file, written_bytes: 0, bytes_max, is_settled };
        if resumes {
            return upload.resume(start).map(|()| upload);
        }
        let kept_bytes = match start {
            UploadStart::At(0) => return Ok(upload),
            UploadStart::At(bytes) => Some(bytes),
            UploadStart::End => None,
        };
        match root.root.open_file(path.strip_prefix(b"/").unwrap_or(path), crate::object_cache::DiskAccess::Blocking) {
            // A copy must not show clients what they cannot read.
            Ok((_, status)) if tree.files.permission_rule && !is_for_everyone(status.permissions) => {
                return Err(NamedRejection::Forbidden);
            }
            Ok((_, status)) if kept_bytes.is_some_and(|bytes| bytes > status.identity.size) => {
                return Err(NamedRejection::PastEnd);
            }
            Ok((present, status)) => {
                let mode = Mode::from_raw_mode(status.permissions & 0o777);
                rustix::fs::fchmod(&upload.file, mode).map_err(rejection_of)?;
                upload.copy(File::from(present), kept_bytes)?;
            }
            Err(error) if kept_bytes.is_some() || NamedRejection::from(error) != NamedRejection::NotFound => {
                return Err(error.into());
            }
            // APPE makes a file that is not there (RFC 959, section 4.1.3).
            Err(_) => {}
        }
        Ok(upload)
    }

    /// Goes on with the kept part.
    fn resume(&mut self, start: UploadStart) -> Result<(), NamedRejection> {
        let kept_bytes = self.file.metadata().map_err(|error| rejection(&error))?.len();
        self.written_bytes = kept_bytes;
        if let UploadStart::At(bytes) = start {
            if bytes > kept_bytes {
                return Err(NamedRejection::PastEnd);
            }
            self.file.set_len(bytes).map_err(|error| rejection(&error))?;
            self.written_bytes = bytes;
        }
        self.file.seek(SeekFrom::Start(self.written_bytes)).map_err(|error| rejection(&error))?;
        Ok(())
    }

    /// Copies the present file, or its beginning. The upload continues after that.
    fn copy(&mut self, present: File, bytes: Option<u64>) -> Result<(), NamedRejection> {
        let wanted_bytes = bytes.unwrap_or(self.bytes_max);
        let copied_bytes =
            io::copy(&mut present.take(wanted_bytes), &mut self.file).map_err(|error| rejection(&error))?;
        if bytes.is_some_and(|bytes| copied_bytes < bytes) {
            return Err(NamedRejection::PastEnd);
        }
        self.written_bytes = copied_bytes;
        Ok(())
    }

    /// Writes the next bytes. Must run on the blocking pool.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), NamedRejection> {
        self.written_bytes += bytes.len() as u64;
        if self.written_bytes > self.bytes_max {
            return Err(NamedRejection::TooLarge);
        }
        self.file.write_all(bytes).map_err(|error| rejection(&error))
    }

    /// Gives the complete file its name. Must run on the blocking pool.
    pub fn complete(&mut self) -> Result<(), NamedRejection> {
        rustix::fs::renameat(&self.directory, &self.temporary, &self.directory, self.name.as_slice())
            .map_err(rejection_of)?;
        self.is_settled = true;
        // The part of an earlier attempt, if there is one.
        if let Some(partial) = &self.partial {
            let _ = rustix::fs::unlinkat(&self.directory, partial, AtFlags::empty());
        }
        Ok(())
    }
}

impl NamedUpload {
    /// Removes an incomplete file, or keeps it under its hidden name. Must run on the blocking pool.
    pub fn abandon(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let is_kept = self.partial.as_ref().filter(|_| self.written_bytes > 0).is_some_and(|partial| {
            rustix::fs::renameat(&self.directory, &self.temporary, &self.directory, partial).is_ok()
        });
        if !is_kept {
            let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

impl Drop for NamedUpload {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Parent directory of a path, and the name in it. Programs cannot be changed. Beside programs, no link may lead to the
/// parent, because the target of the link could belong to a program.
fn place<'p>(tree: &FileTree, root: &OpenedRoot, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), NamedRejection> {
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

/// Name of the kept part of an upload: the same for each attempt of a user, and of bounded length.
fn partial_name(keeper: &[u8], name: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(keeper);
    hash.update([0]);
    hash.update(name);
    let hash: [u8; 32] = hash.finalize().into();
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{PARTIAL}{digits}")
}

fn is_directory(directory: &OwnedFd, name: &[u8]) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statat(directory, name, flags)
        .is_ok_and(|status| rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Directory)
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

fn rejection(error: &io::Error) -> NamedRejection {
    Errno::from_io_error(error).map_or(NamedRejection::Failed, rejection_of)
}

fn rejection_of(error: Errno) -> NamedRejection {
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
