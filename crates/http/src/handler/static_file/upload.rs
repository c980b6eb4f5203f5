//! Uploads by name, under a temporary name until they are complete. They run on the blocking pool.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::changes::{FILE_MODE, is_directory, place, rejection, rejection_of};
use super::load::is_for_everyone;
use super::named::{NamedFiles, NamedRejection};
use super::roots::OpenedRoot;
use super::{FileTree, RESERVED};
use crate::handler::Now;
use crate::object_cache::{Blocking, DiskAccess, FileStatus};

/// Ends of the names of incomplete uploads, after [`RESERVED`].
const TEMPORARY: &str = "upload-";
const PARTIAL: &str = "partial-";

/// Length of a file up to which an upload that continues it copies it, in bytes. The copy then replaces the file in one
/// step, and downloads under way end with the version that they began with.
const COPIED_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are appended to a file in one call.
const APPENDED_BYTES: usize = 128 << 10;

/// Number of attempts to lock a file that other uploads or programs have locked, and the time between them.
const LOCK_TRIES_MAX: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

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

/// Upload under a temporary name. When complete, the file gets its own name and replaces an earlier one, or its content is
/// appended to that. An incomplete file is removed, or kept under a hidden name.
#[derive(Debug)]
pub struct NamedUpload {
    directory: OwnedFd,
    temporary: String,
    name: Vec<u8>,
    /// Name that an incomplete upload gets, if it is kept.
    partial: Option<String>,
    /// Content from the client, after the kept part.
    file: File,
    /// File that the upload continues.
    present: Option<Box<PresentFile>>,
    /// Length of the complete file so far.
    written_bytes: u64,
    bytes_max: u64,
    /// True if the file has its name, or was removed or kept.
    is_settled: bool,
}

/// File that an upload continues.
#[derive(Debug)]
struct PresentFile {
    tree: Arc<FileTree>,
    root: Arc<OpenedRoot>,
    /// Path below the root, without a slash at the start.
    path: Vec<u8>,
    /// Length of the beginning that remains; `None` for the whole file.
    kept_bytes: Option<u64>,
}

impl NamedFiles {
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
    fn begin(tree: &Arc<FileTree>, root: &Arc<OpenedRoot>, request: &UploadRequest) -> Result<Self, NamedRejection> {
        let UploadRequest { path, start, bytes_max, keeper } = request;
        let (start, bytes_max) = (*start, *bytes_max);
        let (directory, name) = place(tree, root, path)?;
        if is_directory(&directory, name) {
            return Err(NamedRejection::IsDirectory);
        }
        let partial = keeper.as_ref().map(|keeper| partial_name(keeper, name));
        let temporary = temporary_name();
        // Under its new name, no other upload can take the part.
        let resumes = start != UploadStart::At(0)
            && partial
                .as_ref()
                .is_some_and(|partial| rustix::fs::renameat(&directory, partial, &directory, &temporary).is_ok());
        let file = open_temporary(&directory, &temporary, !resumes)?;
        let (name, present, is_settled) = (name.to_vec(), None, false);
        let mut upload =
            Self { directory, temporary, name, partial, file, present, written_bytes: 0, bytes_max, is_settled };
        if resumes {
            return upload.resume(start).map(|()| upload);
        }
        let kept_bytes = match start {
            UploadStart::At(0) => return Ok(upload),
            UploadStart::At(bytes) => Some(bytes),
            UploadStart::End => None,
        };
        let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        let present = PresentFile { tree: Arc::clone(tree), root: Arc::clone(root), path, kept_bytes };
        // Rejects now what would fail at the end.
        upload.written_bytes = match present.open()? {
            Some((_, status)) => present.kept_of(&status)?,
            None => 0,
        };
        upload.present = Some(Box::new(present));
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

    /// Writes the next bytes. Must run on the blocking pool.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), NamedRejection> {
        self.written_bytes += bytes.len() as u64;
        if self.written_bytes > self.bytes_max {
            return Err(NamedRejection::TooLarge);
        }
        self.file.write_all(bytes).map_err(|error| rejection(&error))
    }

    /// Gives the complete file its name, or appends it. Must run on the blocking pool.
    pub fn complete(&mut self) -> Result<(), NamedRejection> {
        match self.present.take() {
            None => self.replace(&self.temporary, &self.name)?,
            Some(present) => {
                let result = self.continue_present(&present);
                self.present = Some(present);
                result?;
            }
        }
        self.is_settled = true;
        // The part of an earlier attempt, if there is one.
        if let Some(partial) = &self.partial {
            let _ = rustix::fs::unlinkat(&self.directory, partial, AtFlags::empty());
        }
        Ok(())
    }

    fn replace(&self, from: &str, to: &[u8]) -> Result<(), NamedRejection> {
        rustix::fs::renameat(&self.directory, from, &self.directory, to).map_err(rejection_of)
    }

    /// Puts the received content after the present file. Other uploads that continue it wait, so nothing is lost.
    fn continue_present(&mut self, present: &PresentFile) -> Result<(), NamedRejection> {
        for _ in 0..LOCK_TRIES_MAX {
            let Some((file, _)) = present.open()? else {
                if self.takes_free_name()? {
                    return Ok(());
                }
                continue;
            };
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            // Other errors mean that the file system has no locks.
            if matches!(locked, Err(Errno::WOULDBLOCK | Errno::INTR)) {
                std::thread::sleep(LOCK_PAUSE);
                continue;
            }
            let status = FileStatus::of(&file).map_err(rejection_of)?;
            // Another upload may have replaced the file in between.
            match present.open()? {
                Some((_, now)) if now.is_same_file(&status) => return self.extend(present, &File::from(file), &status),
                _ => {}
            }
        }
        Err(NamedRejection::Unavailable)
    }

    /// Gives the upload its name unless another file has it.
    fn takes_free_name(&self) -> Result<bool, NamedRejection> {
        let (from, to) = (&self.temporary, self.name.as_slice());
        match rustix::fs::renameat_with(&self.directory, from, &self.directory, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // The file system has no such rename.
            Err(Errno::INVAL | Errno::NOSYS) => self.replace(from, to).map(|()| true),
            Err(error) => Err(rejection_of(error)),
        }
    }

    /// Continues this file, which remains locked until that is done.
    fn extend(&mut self, present: &PresentFile, file: &File, status: &FileStatus) -> Result<(), NamedRejection> {
        let kept_bytes = present.kept_of(status)?;
        let own_bytes = self.file.metadata().map_err(|error| rejection(&error))?.len();
        if kept_bytes.saturating_add(own_bytes) > self.bytes_max {
            return Err(NamedRejection::TooLarge);
        }
        let is_large = kept_bytes == status.identity.size && kept_bytes > COPIED_BYTES_MAX;
        let target = if is_large { self.appendable(status) } else { None };
        if self.assemble(file, kept_bytes, status, target.is_none())? {
            return self.replace(&self.temporary, &self.name);
        }
        match target {
            Some(target) => self.append_to(target, kept_bytes, own_bytes),
            // Local invariant: without a target, the file was copied.
            None => Err(NamedRejection::Failed),
        }
    }

    /// Puts a copy of the present file before the received content. False if the file system cannot share the blocks of the
    /// two, and must not copy them.
    fn assemble(
        &mut self,
        present: &File,
        kept_bytes: u64,
        status: &FileStatus,
        may_copy: bool,
    ) -> Result<bool, NamedRejection> {
        let mut temporary = temporary_name();
        let mut whole = open_temporary(&self.directory, &temporary, true)?;
        let result = self.fill(&mut whole, present, kept_bytes, status, may_copy);
        if matches!(result, Ok(true)) {
            std::mem::swap(&mut self.temporary, &mut temporary);
            self.file = whole;
        }
        // One of the two has become superfluous.
        let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        result
    }

    fn fill(
        &mut self,
        whole: &mut File,
        present: &File,
        kept_bytes: u64,
        status: &FileStatus,
        may_copy: bool,
    ) -> Result<bool, NamedRejection> {
        let is_cloned = kept_bytes == status.identity.size && rustix::fs::ioctl_ficlone(&*whole, present).is_ok();
        if !is_cloned && !may_copy {
            return Ok(false);
        }
        let mode = Mode::from_raw_mode(status.permissions & 0o777);
        rustix::fs::fchmod(&*whole, mode).map_err(rejection_of)?;
        if !is_cloned {
            let copied_bytes = io::copy(&mut present.take(kept_bytes), whole).map_err(|error| rejection(&error))?;
            if copied_bytes < kept_bytes {
                return Err(NamedRejection::PastEnd);
            }
        }
        whole.seek(SeekFrom::End(0)).map_err(|error| rejection(&error))?;
        self.copy_own(|piece| whole.write_all(piece)).map_err(|error| rejection(&error))?;
        Ok(true)
    }

    /// The present file, if content can be appended in place. A link is replaced, and no other name of a file may change.
    fn appendable(&self, status: &FileStatus) -> Option<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let target = rustix::fs::openat(&self.directory, self.name.as_slice(), flags, Mode::empty()).ok()?;
        let now = FileStatus::of(&target).ok()?;
        (now.is_same_file(status) && now.links == 1).then(|| File::from(target))
    }

    /// Appends the received content to the file in place; if that fails, the file gets its former length again.
    fn append_to(&mut self, mut target: File, former_bytes: u64, own_bytes: u64) -> Result<(), NamedRejection> {
        // If the disk is full, fails before anything is written.
        let reserved = rustix::fs::fallocate(&target, FallocateFlags::KEEP_SIZE, former_bytes, own_bytes.max(1));
        // Other errors mean that the file system cannot reserve space.
        if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
            return Err(rejection_of(error));
        }
        let mut appended_bytes = 0;
        let result = self.copy_own(|piece| {
            target.write_all(piece)?;
            appended_bytes += piece.len() as u64;
            Ok(())
        });
        if let Err(error) = result {
            let length = target.metadata().map(|metadata| metadata.len());
            // Otherwise a program on this machine has written to it, too.
            if length.is_ok_and(|length| length <= former_bytes + appended_bytes + APPENDED_BYTES as u64) {
                let _ = target.set_len(former_bytes);
            }
            return Err(rejection(&error));
        }
        self.remove()
    }

    /// Passes the received content on in pieces.
    fn copy_own(&mut self, mut to: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        let mut piece = vec![0; APPENDED_BYTES];
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => to(&piece[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the temporary file.
    fn remove(&self) -> Result<(), NamedRejection> {
        rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty()).map_err(rejection_of)
    }

    /// Removes an incomplete file, or keeps it under its hidden name. Must run on the blocking pool.
    pub fn abandon(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        if self.keep().is_none() {
            let _ = self.remove();
        }
    }

    /// Keeps the incomplete file, with the beginning that it continues; `None` if it is not kept.
    fn keep(&mut self) -> Option<()> {
        let partial = self.partial.clone().filter(|_| self.written_bytes > 0)?;
        if let Some(present) = self.present.take() {
            if self.file.metadata().ok()?.len() == 0 {
                return None;
            }
            if let Some((file, status)) = present.open().ok()? {
                let kept_bytes = present.kept_of(&status).ok()?;
                self.assemble(&File::from(file), kept_bytes, &status, true).ok()?;
            }
        }
        self.replace(&self.temporary, partial.as_bytes()).ok()
    }
}

impl Drop for NamedUpload {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl PresentFile {
    /// Opens the file; `None` if there is none.
    fn open(&self) -> Result<Option<(OwnedFd, FileStatus)>, NamedRejection> {
        match self.root.root.open_file(&self.path, DiskAccess::Blocking) {
            Ok(opened) => Ok(Some(opened)),
            // APPE makes a file that is not there (RFC 959, section 4.1.3).
            Err(error) => match NamedRejection::from(error) {
                NamedRejection::NotFound if self.kept_bytes.is_none() => Ok(None),
                rejection => Err(rejection),
            },
        }
    }

    /// Length of its beginning that the upload continues.
    fn kept_of(&self, status: &FileStatus) -> Result<u64, NamedRejection> {
        let size = status.identity.size;
        // A copy must not show clients what they cannot read.
        if self.tree.files.permission_rule && !is_for_everyone(status.permissions) {
            return Err(NamedRejection::Forbidden);
        }
        match self.kept_bytes {
            Some(bytes) if bytes > size => Err(NamedRejection::PastEnd),
            Some(bytes) => Ok(bytes),
            None => Ok(size),
        }
    }
}

fn temporary_name() -> String {
    format!("{RESERVED}{TEMPORARY}{:016x}", fastrand::u64(..))
}

/// Opens a temporary file, which must not exist if it `is_new`.
fn open_temporary(directory: &OwnedFd, name: &str, is_new: bool) -> Result<File, NamedRejection> {
    let create = if is_new { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | create;
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(FILE_MODE)).map_err(rejection_of)?;
    Ok(file.into())
}

/// Name of the kept part of an upload: the same for each attempt of a user, and of bounded length.
fn partial_name(keeper: &[u8], name: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(keeper);
    hash.update([0]);
    hash.update(name);
    let hash: [u8; 32] = hash.finalize().into();
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{RESERVED}{PARTIAL}{digits}")
}
