use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::{Errno, ReadWriteFlags};

use super::read::read_bytes;
use super::{DiskAccess, FileMemory, OpenError};

/// Age of an inode's last change from which on the file counts as settled. A younger file may be in the middle of a
/// write, or may change again under the same time stamp. File systems before Linux 6.13 use the time of the last timer
/// tick, which is at most 10 ms old.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// Age of the last change below which the write that made it may still be running. The writer may have had to wait for a
/// disk or the CPU.
const QUIET_TIME: Duration = Duration::from_secs(2);

/// Age of the last change below which a file is sent by copying. Pages that sendfile has queued still change with the file.
const VOLATILE_TIME: Duration = Duration::from_secs(10);

/// Distance in bytes between the probes of [`OpenFile::is_resident`]. Read-ahead fills the page cache in much longer
/// runs.
const PROBE_DISTANCE_BYTES: u64 = 64 << 10;

/// Time during which a piece of a file is assumed to stay in the page cache after a probe. The value is a compromise:
/// probing takes one system call each 64 KiB, and four probes a second cost a popular file nothing. The kernel drops
/// recently used pages last. If it drops them within this time, or the file is truncated and written again, one worker
/// waits once for the disk. Clients never receive wrong bytes, because [`OpenFile::is_unchanged`] is checked as well.
const RESIDENT_TIME: Duration = Duration::from_millis(250);

/// Number of pieces of a file whose presence in the page cache is remembered. They cover its first 2 GiB and take 8
/// KiB.
const REMEMBERED_PIECES_MAX: u64 = 1 << 10;

/// Values that identify one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of the inode, in nanoseconds since 1970. Every write updates it, and no program can set
    /// it.
    pub changed_ns: i64,
}

impl FileIdentity {
    /// True if the last change is old enough, at `now_ns` (nanoseconds since 1970), that another change gets another
    /// time stamp. The write that made the change has most likely ended by then.
    pub fn is_settled(&self, now_ns: i64) -> bool {
        self.age_ns_at_least(now_ns, SETTLE_TIME)
    }

    /// True if the write that made the last change has ended by `now_ns` (nanoseconds since 1970).
    pub fn is_quiet(&self, now_ns: i64) -> bool {
        self.age_ns_at_least(now_ns, QUIET_TIME)
    }

    /// Compares absolute distances. A time stamp in the future means that the clock was set back, so no running write
    /// made it.
    fn age_ns_at_least(&self, now_ns: i64, age: Duration) -> bool {
        let age_ns = now_ns.saturating_sub(self.changed_ns);
        age_ns.unsigned_abs() >= age.as_nanos() as u64
    }
}

/// Current time in nanoseconds since 1970, from the clock that file systems use for time stamps.
pub fn file_time_now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Device, inode and version.
    pub identity: FileIdentity,
    /// Regular file, directory or other type.
    pub kind: FileType,
    /// Permission bits, including set-user-ID, set-group-ID and sticky.
    pub permissions: u32,
    /// Number of hard links.
    pub links: u32,
}

impl FileStatus {
    /// Returns the status of an open file, with or without `O_PATH`. Never waits for a disk.
    pub fn of(fd: impl AsFd) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS).map(|status| Self::from_statx(&status))
    }

    /// True if both are of the same file, in any version.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let place = |status: &Self| (status.identity.device, status.identity.inode);
        place(self) == place(other)
    }

    /// Returns the status of the file that a name leads to, following symbolic links. May wait for a disk.
    pub fn at(directory: impl AsFd, name: &[u8]) -> Result<Self, Errno> {
        let name = if name.is_empty() { b"." } else { name };
        let status = rustix::fs::statx(directory, name, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
        Ok(Self::from_statx(&status))
    }

    fn from_statx(status: &Statx) -> Self {
        let nanoseconds =
            |time: &StatxTimestamp| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec));
        Self {
            identity: FileIdentity {
                device: u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor),
                inode: status.stx_ino,
                size: status.stx_size,
                modified_ns: nanoseconds(&status.stx_mtime),
                changed_ns: nanoseconds(&status.stx_ctime),
            },
            kind: FileType::from_raw_mode(u32::from(status.stx_mode)),
            permissions: u32::from(status.stx_mode) & 0o7777,
            links: status.stx_nlink,
        }
    }
}

/// Open regular file, and its identity at the time of opening.
#[derive(Debug)]
pub struct OpenFile {
    /// File descriptor, open for reading.
    pub fd: OwnedFd,
    /// Identity at the time of opening.
    pub identity: FileIdentity,
    /// Number of hard links at the time of opening.
    pub links: u32,
    /// Length of the content, in bytes: all of the file, or the first part of a disk cache's entry.
    pub content_bytes: u64,
    /// True for an entry of a disk cache. Its bytes never change, unless another program damages it.
    is_entry: bool,
    /// True if the disk failed to read the file.
    is_broken: AtomicBool,
    /// Time at which each piece was last seen in the page cache, in nanoseconds since 1970. Allocated when the first
    /// piece is seen.
    resident_ns: OnceLock<Box<[AtomicI64]>>,
    /// Last bytes of the file, read at their first use.
    end: OnceLock<Box<[u8]>>,
    /// Memory that the content may be kept in.
    memory: Option<Arc<FileMemory>>,
    /// True if the content was wanted in memory before.
    was_wanted: AtomicBool,
    /// The content, once it is kept in memory.
    content: OnceLock<Bytes>,
}

impl OpenFile {
    /// Number of bytes at the end of a file that are kept in memory.
    pub const END_BYTES: u64 = 1 << 10;

    /// Number of bytes that are probed in the page cache, and remembered, as one unit.
    pub const PIECE_BYTES: u64 = 2 << 20;

    /// Wraps a file that was just opened with this status.
    pub fn new(fd: OwnedFd, status: &FileStatus) -> Self {
        let FileStatus { identity, links, .. } = *status;
        Self {
            fd,
            identity,
            links,
            content_bytes: identity.size,
            is_entry: false,
            is_broken: AtomicBool::new(false),
            resident_ns: OnceLock::new(),
            end: OnceLock::new(),
            memory: None,
            was_wanted: AtomicBool::new(false),
            content: OnceLock::new(),
        }
    }

    /// Permits the content to be kept in this memory.
    #[must_use]
    pub fn keeping_in(self, memory: Arc<FileMemory>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Wraps the file of a disk cache's entry that was just opened with this status.
    pub(crate) fn of_entry(fd: OwnedFd, status: &FileStatus) -> Self {
        Self { is_entry: true, ..Self::new(fd, status) }
    }

    /// True for an entry of a disk cache, whose bytes never change.
    pub fn is_entry(&self) -> bool {
        self.is_entry
    }

    /// Notes the error of a transfer from the file. If the disk has failed, the file counts as changed from now on.
    pub fn note_error(&self, error: &io::Error) {
        if error.raw_os_error() == Some(Errno::IO.raw_os_error()) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the last [`Self::END_BYTES`] of the file, or the whole file if it is shorter; `None` if the file has
    /// changed. A sender that fetches these bytes last, and sends them last, has sent one single version.
    ///
    /// # Errors
    /// Errors of [`Self::read_exact_at`].
    pub fn unchanged_end(&self) -> io::Result<Option<&[u8]>> {
        if let Some(end) = self.end.get() {
            return Ok(self.is_unchanged().then_some(end));
        }
        let length = self.identity.size.min(Self::END_BYTES);
        let mut end = vec![0; length as usize];
        self.read_exact_at(&mut end, self.identity.size - length)?;
        Ok(self.is_unchanged().then(|| &**self.end.get_or_init(|| end.into())))
    }

    /// Checks that the file has not changed since it was opened. A sender calls this before the last bytes, and closes
    /// the connection if the file has changed. The client then knows that the content is incomplete.
    pub fn is_unchanged(&self) -> bool {
        if self.is_broken.load(Ordering::Relaxed) {
            return false;
        }
        let Ok(now) = FileStatus::of(&self.fd) else { return false };
        // Removing a name also updates the inode's time of change. After a rename over the file, its open descriptor
        // still holds the old, unchanged version.
        let changed_ns = if now.links == self.links { now.identity.changed_ns } else { self.identity.changed_ns };
        FileIdentity { changed_ns, ..now.identity } == self.identity
    }

    /// True if the file changed so recently before `now_ns` (nanoseconds since 1970) that it may change again while it
    /// is sent. Such a file is read into a buffer and sent from there. With sendfile, the socket queue refers to pages
    /// of the page cache, so later writes would reach the client.
    pub fn is_volatile(&self, now_ns: i64) -> bool {
        !self.is_entry && !self.identity.age_ns_at_least(now_ns, VOLATILE_TIME)
    }

    /// Number of bytes from `offset`, at most `length`, that are most likely in the page cache. Counts to the end of
    /// the piece that contains `offset`, and includes the next piece if that leaves few bytes. Returns 0 if any of
    /// these bytes is not cached.
    pub fn resident_bytes(&self, offset: u64, length: u64, now_ns: i64) -> u64 {
        match self.resident_bytes_in_piece(offset, length, now_ns) {
            0 => 0,
            few if few < length.min(PROBE_DISTANCE_BYTES) => {
                match self.resident_bytes_in_piece(offset + few, length - few, now_ns) {
                    0 => 0,
                    more => few + more,
                }
            }
            bytes => bytes,
        }
    }

    fn resident_bytes_in_piece(&self, offset: u64, length: u64, now_ns: i64) -> u64 {
        let piece = offset / Self::PIECE_BYTES;
        let piece_end = ((piece + 1) * Self::PIECE_BYTES).min(self.content_bytes);
        let bytes = length.min(piece_end.saturating_sub(offset));
        if self.was_resident(piece, now_ns) {
            return bytes;
        }
        if !self.is_resident(offset, bytes) {
            return 0;
        }
        if offset == piece * Self::PIECE_BYTES && offset + bytes == piece_end {
            self.remember_resident(piece, now_ns);
        }
        bytes
    }

    /// True if these bytes are most likely in the page cache, so that sending them does not wait for a disk. Makes one
    /// system call for each 64 KiB; none of them blocks.
    pub fn is_resident(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length).min(self.identity.size);
        let Some(last) = end.checked_sub(1).filter(|last| *last >= offset) else { return true };
        let mut probe = offset;
        loop {
            match self.read_at(&mut [0], probe, ReadWriteFlags::NOWAIT) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                // If the file system cannot answer, assume that all bytes are cached; otherwise each send would go to
                // the blocking pool.
                Err(Errno::OPNOTSUPP) => return true,
                Err(_) => return false,
            }
            if probe == last {
                return true;
            }
            probe = (probe + PROBE_DISTANCE_BYTES).min(last);
        }
    }

    /// True if a piece was in the page cache within `RESIDENT_TIME` before `now_ns` (nanoseconds since 1970), as far as
    /// remembered.
    fn was_resident(&self, piece: u64, now_ns: i64) -> bool {
        let Some(resident_ns) = self.resident_ns.get().and_then(|pieces| pieces.get(piece as usize)) else {
            return false;
        };
        let since_ns = now_ns.saturating_sub(resident_ns.load(Ordering::Relaxed));
        (0..RESIDENT_TIME.as_nanos() as i64).contains(&since_ns)
    }

    /// Records that a piece was in the page cache at this time.
    fn remember_resident(&self, piece: u64, now_ns: i64) {
        let pieces = self.content_bytes.div_ceil(Self::PIECE_BYTES).min(REMEMBERED_PIECES_MAX);
        let pieces = self.resident_ns.get_or_init(|| (0..pieces).map(|_| AtomicI64::new(i64::MIN)).collect());
        if let Some(resident_ns) = pieces.get(piece as usize) {
            resident_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Loads these bytes into the page cache. Waits for the disk, so it must run on the blocking pool.
    pub fn warm(&self, offset: u64, length: u64) {
        // Sending to `/dev/null` waits for each page but copies none. Copying would take CPU time from the worker on
        // the same core. Errors are ignored, because the later send meets and handles them.
        let Ok(nowhere) = rustix::fs::open(c"/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return;
        };
        let end = offset.saturating_add(length).min(self.identity.size);
        let mut position = offset;
        while position < end {
            let remaining = (end - position) as usize;
            match rustix::fs::sendfile(&nowhere, &self.fd, Some(&mut position), remaining) {
                // The file is shorter now; the sender notices that itself.
                Ok(0) => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return self.note_error(&error.into()),
            }
        }
    }

    /// Fills the buffer from this offset, if the kernel has all of these bytes in memory; returns whether it had. Never waits
    /// for a disk.
    pub fn read_now(&self, buffer: &mut [u8], offset: u64) -> bool {
        loop {
            match self.read_at(buffer, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                read => return read == Ok(buffer.len()),
            }
        }
    }

    /// Appends bytes of the file as [`read_now`](Self::read_now) reads them.
    pub fn append_now(&self, offset: u64, length: usize, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.resize(start + length, 0);
        let is_read = self.read_now(&mut out[start..], offset);
        if !is_read {
            out.truncate(start);
        }
        is_read
    }

    /// Content in memory, for connections that need its bytes rather than its pages. It is read at the second call if the
    /// kernel has it in memory, the file is small enough, and there is memory.
    pub fn content_in_use(&self) -> Option<&Bytes> {
        if let Some(content) = self.content.get() {
            return Some(content);
        }
        let memory = self.memory.as_ref()?;
        if !self.was_wanted.swap(true, Ordering::Relaxed) || self.is_volatile(file_time_now_ns()) {
            return None;
        }
        let reserved = memory.reserve(self.content_bytes)?;
        let mut content = vec![0; self.content_bytes as usize];
        if !self.read_now(&mut content, 0) || !self.is_unchanged() {
            return None;
        }
        Some(self.content.get_or_init(|| reserved.hold(content.into())))
    }

    /// Reads the whole file. Waits for the disk, so it must run on the blocking pool.
    pub fn read_whole(&self) -> Result<Bytes, OpenError> {
        read_bytes(&self.fd, self.identity.size, DiskAccess::Blocking)
    }

    /// Fills the buffer from this offset. May wait for a disk, unless the bytes are known to be in the page cache.
    ///
    /// # Errors
    /// Fails with the error of the read, or with `UnexpectedEof` if the file is shorter.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset, ReadWriteFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    buffer = &mut buffer[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads this many bytes from this offset into memory of their size, as [`read_exact_at`](Self::read_exact_at) does.
    ///
    /// # Errors
    /// As those of `read_exact_at`.
    pub fn read_bytes_at(&self, length: usize, mut offset: u64) -> io::Result<Bytes> {
        let mut buffer = Vec::with_capacity(length);
        while buffer.len() < length {
            match rustix::io::pread(&self.fd, rustix::buffer::spare_capacity(&mut buffer), offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => offset += count as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Bytes::from(buffer))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64, flags: ReadWriteFlags) -> Result<usize, Errno> {
        rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(buffer)], offset, flags)
            .inspect_err(|error| self.note_error(&(*error).into()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::fs::{Advice, CWD, Mode, OFlags};

    use super::{FileMemory, FileStatus, OpenFile, VOLATILE_TIME};

    #[test]
    fn content_in_use_is_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![b'a'; 100]).unwrap();
        let memory = Arc::new(FileMemory::default());
        memory.set_limit(3_200);
        let open = |age: Duration| {
            let fd = rustix::fs::openat(CWD, &path, OFlags::RDONLY, Mode::empty()).unwrap();
            let mut status = FileStatus::of(&fd).unwrap();
            let file = OpenFile::new(fd, &status);
            status.identity.changed_ns -= age.as_nanos() as i64;
            OpenFile { identity: status.identity, links: 0, ..file }.keeping_in(Arc::clone(&memory))
        };
        let young = open(Duration::ZERO);
        assert!((0..3).all(|_| young.content_in_use().is_none()), "it may change");
        let old = open(VOLATILE_TIME);
        assert!(old.content_in_use().is_none(), "the first use");
        assert_eq!(old.content_in_use().unwrap(), &vec![b'a'; 100]);
        assert_eq!(memory.bytes(), 100);
        let others: Vec<OpenFile> = (0..32).map(|_| open(VOLATILE_TIME)).collect();
        let count =
            others.iter().filter(|file| file.content_in_use().or_else(|| file.content_in_use()).is_some()).count();
        assert_eq!((count, memory.take_shortage()), (31, true));
        drop(others);
        let slice = old.content_in_use().unwrap().slice(10..20);
        drop(old);
        assert_eq!(memory.bytes(), 100, "a reader has it");
        drop(slice);
        assert_eq!(memory.bytes(), 0);
        let changed = open(VOLATILE_TIME);
        std::fs::write(&path, "shorter").unwrap();
        assert!((0..2).all(|_| changed.content_in_use().is_none()));
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn what_was_cold_is_warm() {
        // The system's temporary directory may be in memory, where no page is ever cold.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![b'x'; 3 << 20]).unwrap();
        let fd = rustix::fs::openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        rustix::fs::fsync(&fd).unwrap();
        rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed).unwrap();
        let status = FileStatus::of(&fd).unwrap();
        let file = OpenFile::new(fd, &status);
        file.warm(1 << 20, 1 << 20);
        assert!(file.is_resident(1 << 20, 1 << 20));
        file.warm(0, u64::MAX);
        assert!(file.is_resident(0, u64::MAX));
        assert!(file.is_resident(3 << 20, 1) && file.is_resident(0, 0), "nothing to wait for");
        assert!(file.is_unchanged());
        assert_eq!(file.unchanged_end().unwrap(), Some(&[b'x'; OpenFile::END_BYTES as usize][..]));
        std::fs::write(&path, b"other").unwrap();
        assert!(!file.is_unchanged());
        assert_eq!(file.unchanged_end().unwrap(), None);
    }

    #[test]
    fn residency_is_remembered_for_a_moment() {
        let fd = rustix::fs::openat(CWD, c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut status = FileStatus::of(&fd).unwrap();
        status.identity.size = 2 * OpenFile::PIECE_BYTES;
        let file = OpenFile::new(fd, &status);
        assert!(!file.was_resident(1, 0));
        file.remember_resident(1, 1_000);
        for (now_ns, expect) in
            [(999, false), (1_000, true), (250_000_999, true), (250_001_000, false), (i64::MAX, false)]
        {
            assert_eq!(file.was_resident(1, now_ns), expect, "{now_ns}");
        }
        file.remember_resident(2, 1_000);
        for piece in [0, 2, u64::MAX] {
            assert!(!file.was_resident(piece, 1_000), "{piece}");
        }
    }

    #[test]
    fn what_is_resident_is_reported_to_the_end_of_its_piece() {
        const PIECE: u64 = OpenFile::PIECE_BYTES;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![b'x'; PIECE as usize + 100]).unwrap();
        let fd = rustix::fs::openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let file = OpenFile::new(fd.try_clone().unwrap(), &FileStatus::of(&fd).unwrap());
        for (offset, length, expect) in [
            (1, PIECE + 99, PIECE - 1),
            (0, 10, 10),
            (0, PIECE + 100, PIECE),
            (PIECE - 1, 1, 1),
            (PIECE - 1, 101, 101),
            (PIECE, 100, 100),
            (PIECE + 99, 1, 1),
            (PIECE + 100, 1, 0),
        ] {
            assert_eq!(file.resident_bytes(offset, length, 0), expect, "{offset} {length}");
        }
        assert!(file.was_resident(0, 0) && file.was_resident(1, 0), "pieces that were looked through whole");
    }
}
