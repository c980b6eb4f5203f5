use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::SeekFrom;
use rustix::io::{Errno, ReadWriteFlags};

use super::open_file::file_time_now_ns;
use super::{DiskAccess, FileMemory, FileStatus, OpenError, OpenFile, Root};

/// File that was read as one whole version.
#[derive(Clone, Debug)]
pub struct ReadFile {
    /// Status of the file before it was read.
    pub status: FileStatus,
    /// Content of that version.
    pub content: ObjectContent,
    /// True if the file may change again without a new time stamp. It must then be read again, because comparing
    /// versions is not enough.
    pub unsettled: bool,
}

/// Location of a representation's content.
#[derive(Clone, Debug)]
pub enum ObjectContent {
    /// Content in memory, used for small files.
    Memory(Bytes),
    /// Content in an open file, used for large files.
    File(Arc<OpenFile>),
}

impl ObjectContent {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.content_bytes,
        }
    }
}

/// Reason that a file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be opened or read.
    Open(OpenError),
    /// The file is being written, so the bytes read may mix two versions. The caller must retry after
    /// [`RETRY_AFTER_MS`] and pass this snapshot.
    Unsettled(Snapshot),
}

impl From<OpenError> for ReadError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

impl From<Errno> for ReadError {
    fn from(error: Errno) -> Self {
        Self::Open(error.into())
    }
}

/// Delay before an unsettled file is read again, in milliseconds. Longer than it takes to truncate a file and write it
/// again.
pub const RETRY_AFTER_MS: u64 = 5;

/// State of an unsettled file, to be compared with a later read.
#[derive(Clone, Debug)]
pub struct Snapshot {
    name: Box<[u8]>,
    status: FileStatus,
    /// Stays open: if another file takes the name, this one is still a consistent version.
    file: Arc<OpenFile>,
    /// Content of a small file; `None` for a large one.
    bytes: Option<Bytes>,
}

/// Reads a file: into memory up to `memory_bytes_max`, larger files as an open file descriptor. `memory` is for their content.
///
/// A file that is being written may be half written. Some pages of a read then come from before the write and some from
/// after it, or the file is truncated and not filled yet. A recently changed file is therefore read when no write is
/// under way. A file that has just changed is accepted only if a later read finds the same.
pub fn read_file(
    root: &Root,
    name: &[u8],
    memory_bytes_max: u64,
    memory: &Arc<FileMemory>,
    access: DiskAccess,
    earlier: Option<&Snapshot>,
) -> Result<ReadFile, ReadError> {
    if let Some(confirmed) = earlier.filter(|earlier| *earlier.name == *name).and_then(Snapshot::confirm) {
        return Ok(confirmed);
    }
    let (fd, status) = root.open_file(name, access)?;
    let now_ns = file_time_now_ns();
    if !status.identity.is_quiet(now_ns) {
        if access == DiskAccess::Cached {
            return Err(OpenError::WouldBlock.into());
        }
        wait_for_writers(&fd);
    }
    let file = OpenFile::new(fd, &status).keeping_in(Arc::clone(memory));
    let bytes = match status.identity.size <= memory_bytes_max {
        true => Some(read_bytes(&file.fd, status.identity.size, access)?),
        false => None,
    };
    let snapshot = Snapshot { name: name.into(), status, file: file.into(), bytes };
    if status.identity.is_settled(now_ns) && snapshot.file.is_unchanged() {
        return Ok(snapshot.into_file(false));
    }
    Err(ReadError::Unsettled(snapshot))
}

impl Snapshot {
    /// Returns the file if it has not changed since the snapshot.
    fn confirm(&self) -> Option<ReadFile> {
        let is_same = match &self.bytes {
            None => true,
            Some(bytes) => read_bytes(&self.file.fd, self.status.identity.size, DiskAccess::Blocking)
                .is_ok_and(|now| now == *bytes),
        };
        (is_same && self.file.is_unchanged()).then(|| self.clone().into_file(true))
    }

    fn into_file(self, unsettled: bool) -> ReadFile {
        let content = self.bytes.map_or(ObjectContent::File(self.file), ObjectContent::Memory);
        ReadFile { status: self.status, content, unsettled }
    }
}

/// Waits until a running write has ended. Seeking for data takes the lock that a writer holds in ext4, btrfs and tmpfs.
/// XFS does not need this, because there reading takes the lock. Some writes set no new time stamp, and some file
/// systems have no such lock; in these cases only the later read helps.
fn wait_for_writers(fd: &OwnedFd) {
    // The result is ignored: an empty file has no data, which is an error.
    let _ = rustix::fs::seek(fd, SeekFrom::Data(0));
}

/// Reads the first `size` bytes. If the file is shorter by now, its identity has changed, and the caller notices that.
pub(super) fn read_bytes(fd: &OwnedFd, size: u64, access: DiskAccess) -> Result<Bytes, OpenError> {
    let mut buffer = vec![0; size as usize];
    let flags = match access {
        DiskAccess::Cached => ReadWriteFlags::NOWAIT,
        DiskAccess::Blocking => ReadWriteFlags::empty(),
    };
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::preadv2(fd, &mut [IoSliceMut::new(&mut buffer[filled..])], filled as u64, flags) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) if access == DiskAccess::Cached => return Err(OpenError::WouldBlock),
            Err(error) => return Err(error.into()),
        }
    }
    buffer.truncate(filled);
    Ok(buffer.into())
}
