use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};

use super::open_file::file_time_now_ns;
use super::{Access, FileIdentity, FileStatus, OpenError, OpenFile, Root};

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
    File(std::sync::Arc<OpenFile>),
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

/// How long to wait, in milliseconds, before an unsettled file is tried again: longer than any one write takes to copy
/// its bytes, as long as a writer may be kept waiting for the processor in the midst of it.
pub const RETRY_AFTER_MS: u64 = 5;

/// What was read of an unsettled file, to be compared with the next attempt.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What the file was both before and after it was read; `None` if it changed meanwhile.
    identity: Option<FileIdentity>,
    /// What was read of a small file.
    bytes: Option<Bytes>,
}

/// Reads a file: into memory up to `memory_bytes_max`, larger ones as an open descriptor.
///
/// A file that was just written is only believed once two attempts, some time apart, found the same: a read beside a
/// write may get some pages from before it and some from after it, and the time stamps don't show it.
pub fn read_file(
    root: &Root,
    name: &[u8],
    memory_bytes_max: u64,
    access: Access,
    earlier: Option<&Snapshot>,
) -> Result<ReadFile, ReadError> {
    let (fd, status) = root.open_file(name, access)?;
    let settled = status.identity.is_settled(file_time_now_ns());
    if status.identity.size > memory_bytes_max {
        let snapshot = Snapshot { identity: Some(status.identity), bytes: None };
        if !settled && !earlier.is_some_and(|earlier| earlier.identity == snapshot.identity) {
            return Err(ReadError::Unsettled(snapshot));
        }
        let file = OpenFile { fd, identity: status.identity, links: status.links };
        return Ok(ReadFile { status, content: Content::File(file.into()), unsettled: !settled });
    }
    let bytes = read_bytes(&fd, status.identity.size, access)?;
    let unchanged = FileStatus::of(&fd)?.identity == status.identity;
    let snapshot = Snapshot { identity: unchanged.then_some(status.identity), bytes: Some(bytes.clone()) };
    if unchanged && settled || earlier.is_some_and(|earlier| snapshot.confirms(earlier)) {
        return Ok(ReadFile { status, content: Content::Memory(bytes), unsettled: !settled });
    }
    Err(ReadError::Unsettled(snapshot))
}

impl Snapshot {
    fn confirms(&self, earlier: &Self) -> bool {
        self.identity.is_some() && self.identity == earlier.identity && self.bytes == earlier.bytes
    }
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
