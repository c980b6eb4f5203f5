use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::SeekFrom;
use rustix::io::{Errno, ReadWriteFlags};

use super::open_file::file_time_now_ns;
use super::{Access, FileStatus, OpenError, OpenFile, Root};

/// A file as it was read: one version of it, whole.
#[derive(Clone, Debug)]
pub struct ReadFile {
    /// What the file was.
    pub status: FileStatus,
    /// Its content.
    pub content: Content,
    /// Whether the file may change again without a trace, so that it has to be read again rather than compared.
    pub unsettled: bool,
}

/// Where content is.
#[derive(Clone, Debug)]
pub enum Content {
    /// In memory: small files.
    Memory(Bytes),
    /// In a file: large ones.
    File(Arc<OpenFile>),
}

impl Content {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.identity.size,
        }
    }
}

/// Why a file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// It could not be opened or read.
    Open(OpenError),
    /// It is being written at this moment, so that what was read may be a mixture of two versions. To be tried again
    /// after [`RETRY_AFTER_MS`], with this.
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

/// How long to wait, in milliseconds, before an unsettled file is tried again: longer than it takes to truncate a file
/// and write it anew.
pub const RETRY_AFTER_MS: u64 = 5;

/// What was read of an unsettled file, to be compared with what it is some time later.
#[derive(Clone, Debug)]
pub struct Snapshot {
    name: Box<[u8]>,
    status: FileStatus,
    /// Kept open: should another file take its name meanwhile, this one is still a version of its own.
    file: Arc<OpenFile>,
    /// The content of a small file.
    bytes: Option<Bytes>,
}

/// Reads a file: into memory up to `memory_bytes_max`, larger ones as an open descriptor.
///
/// What was just written may be half written: some pages of a read are then from before a write and some from after it,
/// or the file is truncated and not yet filled again. So a file that changed lately is read when no write is under way,
/// and one that changed just now is only believed once it is found the same some time later.
pub fn read_file(
    root: &Root,
    name: &[u8],
    memory_bytes_max: u64,
    access: Access,
    earlier: Option<&Snapshot>,
) -> Result<ReadFile, ReadError> {
    if let Some(confirmed) = earlier.filter(|earlier| *earlier.name == *name).and_then(Snapshot::confirm) {
        return Ok(confirmed);
    }
    let (fd, status) = root.open_file(name, access)?;
    let now_ns = file_time_now_ns();
    if !status.identity.is_quiet(now_ns) {
        if access == Access::Cached {
            return Err(OpenError::WouldBlock.into());
        }
        wait_for_writers(&fd);
    }
    let file = OpenFile::new(fd, &status);
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
    /// The file, if it is still what it was.
    fn confirm(&self) -> Option<ReadFile> {
        let is_same = match &self.bytes {
            None => true,
            Some(bytes) => {
                read_bytes(&self.file.fd, self.status.identity.size, Access::Blocking).is_ok_and(|now| now == *bytes)
            }
        };
        (is_same && self.file.is_unchanged()).then(|| self.clone().into_file(true))
    }

    fn into_file(self, unsettled: bool) -> ReadFile {
        let content = self.bytes.map_or(Content::File(self.file), Content::Memory);
        ReadFile { status: self.status, content, unsettled }
    }
}

/// Waits until a write that is under way has ended. Seeking for data takes the lock that writing holds in ext4, btrfs and
/// tmpfs; XFS has no need of it, for there reading takes it. (Where writes come without a new time stamp, or the file
/// system knows no such lock, it is only the later look at the file that helps.)
fn wait_for_writers(fd: &OwnedFd) {
    // An empty file has no data, which is an error.
    let _ = rustix::fs::seek(fd, SeekFrom::Data(0));
}

/// Reads the first `size` bytes. A file that is shorter by now has a new identity, which the caller will see.
pub(super) fn read_bytes(fd: &OwnedFd, size: u64, access: Access) -> Result<Bytes, OpenError> {
    let mut buffer = vec![0; size as usize];
    let flags = match access {
        Access::Cached => ReadWriteFlags::NOWAIT,
        Access::Blocking => ReadWriteFlags::empty(),
    };
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::preadv2(fd, &mut [IoSliceMut::new(&mut buffer[filled..])], filled as u64, flags) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) if access == Access::Cached => return Err(OpenError::WouldBlock),
            Err(error) => return Err(error.into()),
        }
    }
    buffer.truncate(filled);
    Ok(buffer.into())
}
