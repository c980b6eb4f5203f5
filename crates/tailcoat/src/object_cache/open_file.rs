use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::{Errno, ReadWriteFlags};

use super::read::read_bytes;
use super::{Access, OpenError};

/// A file whose inode changed less than this ago may be in the middle of a write, or be written again without a new
/// time stamp: file systems before Linux 6.13 stamp with the clock of the last timer tick, at most 10 ms old.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// A file that changed less than this ago may still be under the write that changed it, if the writer had to wait: for a
/// disk, or for the processor.
const QUIET_TIME: Duration = Duration::from_secs(2);

/// A file that changed less than this ago is sent by copying, because pages that sendfile has queued still change with
/// the file.
const VOLATILE_TIME: Duration = Duration::from_secs(10);

/// Distance of the bytes that [`OpenFile::is_resident`] probes. The page cache fills in runs of read-ahead far longer
/// than this.
const PROBE_DISTANCE_BYTES: u64 = 64 << 10;

/// How long a piece of a file is believed to be in the page cache after it was looked for there, which is a compromise.
/// Looking takes a system call each 64 KiB; four times a second it costs a popular file nothing. The kernel drops pages
/// last that were used a moment ago; if it does so within this time all the same, or the file is truncated and written
/// anew, then a worker waits once for the disk. What clients get does not depend on it: [`OpenFile::is_unchanged`] sees to
/// that.
const RESIDENT_TIME: Duration = Duration::from_millis(250);

/// Pieces of a file that are remembered to be in the page cache: those of its first 2 GiB, in 8 KiB.
const REMEMBERED_PIECES_MAX: u64 = 1 << 10;

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of its content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of its inode, in nanoseconds since 1970. Every write moves it, and no program can set it.
    pub changed_ns: i64,
}

impl FileIdentity {
    /// Whether the last change was long enough before `now_ns` (nanoseconds since 1970) for the next to have another time
    /// stamp, and for whoever writes to have come to an end most likely.
    pub fn is_settled(&self, now_ns: i64) -> bool {
        self.age_ns_at_least(now_ns, SETTLE_TIME)
    }

    /// Whether no write is under way that began with the last change before `now_ns`.
    pub fn is_quiet(&self, now_ns: i64) -> bool {
        self.age_ns_at_least(now_ns, QUIET_TIME)
    }

    /// A time in the future (a clock that was set back) can't be that of a running write.
    fn age_ns_at_least(&self, now_ns: i64, age: Duration) -> bool {
        let age_ns = now_ns.saturating_sub(self.changed_ns);
        age_ns.unsigned_abs() >= age.as_nanos() as u64
    }
}

/// Nanoseconds since 1970, as file systems stamp changes.
pub fn file_time_now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Which file, in which version.
    pub identity: FileIdentity,
    /// Regular, directory, …
    pub kind: FileType,
    /// Permission bits, with set-user-ID, set-group-ID and sticky.
    pub permissions: u32,
    /// Number of names it has.
    pub links: u32,
}

impl FileStatus {
    /// The status of an open file, `O_PATH` or not. Does not wait for a disk.
    pub fn of(fd: impl AsFd) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS).map(|status| Self::from_statx(&status))
    }

    /// The status of what a name stands for, links followed. May wait for a disk.
    pub(super) fn at(directory: impl AsFd, name: &[u8]) -> Result<Self, Errno> {
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

/// An open regular file, and what it was when it was opened.
#[derive(Debug)]
pub struct OpenFile {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// What it was.
    pub identity: FileIdentity,
    /// Number of names it had.
    pub links: u32,
    /// When each of its pieces was last known to be in the page cache, in nanoseconds since 1970, once one was.
    resident_ns: OnceLock<Box<[AtomicI64]>>,
    /// Its last bytes, once they have been asked for.
    end: OnceLock<Box<[u8]>>,
}

impl OpenFile {
    /// Bytes at the end of a file that are kept in memory.
    pub const END_BYTES: u64 = 1 << 10;

    /// Bytes of a file that are looked for in the page cache, and remembered to be there, together.
    pub const PIECE_BYTES: u64 = 2 << 20;

    /// A file that was just opened and had this status.
    pub fn new(fd: OwnedFd, status: &FileStatus) -> Self {
        let FileStatus { identity, links, .. } = *status;
        Self { fd, identity, links, resident_ns: OnceLock::new(), end: OnceLock::new() }
    }

    /// The last [`Self::END_BYTES`], or all if there are less; `None` if the file is no longer what it was. Whoever sends
    /// them last, and asks for them only then, has sent one version.
    ///
    /// # Errors
    /// As [`Self::read_exact_at`].
    pub fn unchanged_end(&self) -> io::Result<Option<&[u8]>> {
        if let Some(end) = self.end.get() {
            return Ok(self.is_unchanged().then_some(end));
        }
        let length = self.identity.size.min(Self::END_BYTES);
        let mut end = vec![0; length as usize];
        self.read_exact_at(&mut end, self.identity.size - length)?;
        Ok(self.is_unchanged().then(|| &**self.end.get_or_init(|| end.into())))
    }

    /// Whether the file is still what it was when it was opened. Whoever sends a part of it asks before the last bytes,
    /// and breaks the connection off if it isn't: the client then knows that the content is not whole.
    pub fn is_unchanged(&self) -> bool {
        let Ok(now) = FileStatus::of(&self.fd) else { return false };
        // Losing a name moves the time of change as well: a file that was replaced by renaming another over it stays
        // what it was for those who are still reading it.
        let changed_ns = if now.links == self.links { now.identity.changed_ns } else { self.identity.changed_ns };
        FileIdentity { changed_ns, ..now.identity } == self.identity
    }

    /// Whether the file changed so lately (before `now_ns`, nanoseconds since 1970) that it may well change again while
    /// it is sent. Such a file is better read into a buffer and sent from there: sendfile queues the pages of the page
    /// cache themselves, and what is written to them later is what the client gets.
    pub fn is_volatile(&self, now_ns: i64) -> bool {
        !self.identity.age_ns_at_least(now_ns, VOLATILE_TIME)
    }

    /// How many bytes from this offset on, at most `length`, are (most likely) in the page cache: those up to the end of
    /// the piece that the offset is in, and the next piece if they are few. Zero, if some of these are not.
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
        let piece_end = ((piece + 1) * Self::PIECE_BYTES).min(self.identity.size);
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

    /// Whether these bytes are (most likely) in the page cache, so that sending them won't wait for a disk.
    /// One system call for each 64 KiB, and none of them waits.
    pub fn is_resident(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length).min(self.identity.size);
        let Some(last) = end.checked_sub(1).filter(|last| *last >= offset) else { return true };
        let mut probe = offset;
        loop {
            match self.read_at(&mut [0], probe, ReadWriteFlags::NOWAIT) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                // A file system that can't tell is treated as if all were cached: else each send would go to the pool.
                Err(Errno::OPNOTSUPP) => return true,
                Err(_) => return false,
            }
            if probe == last {
                return true;
            }
            probe = (probe + PROBE_DISTANCE_BYTES).min(last);
        }
    }

    /// Whether a piece was in the page cache a moment before `now_ns` (nanoseconds since 1970), as far as remembered.
    fn was_resident(&self, piece: u64, now_ns: i64) -> bool {
        let Some(resident_ns) = self.resident_ns.get().and_then(|pieces| pieces.get(piece as usize)) else {
            return false;
        };
        let since_ns = now_ns.saturating_sub(resident_ns.load(Ordering::Relaxed));
        (0..RESIDENT_TIME.as_nanos() as i64).contains(&since_ns)
    }

    /// Remembers that a piece was in the page cache at this time.
    fn remember_resident(&self, piece: u64, now_ns: i64) {
        let pieces = self.identity.size.div_ceil(Self::PIECE_BYTES).min(REMEMBERED_PIECES_MAX);
        let pieces = self.resident_ns.get_or_init(|| (0..pieces).map(|_| AtomicI64::new(i64::MIN)).collect());
        if let Some(resident_ns) = pieces.get(piece as usize) {
            resident_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Brings these bytes into the page cache. Waits for the disk: for the blocking pool only.
    pub fn warm(&self, offset: u64, length: u64) {
        // Sending to where nothing is kept waits for each page, and copies none: that would be time taken from the worker,
        // which runs on the same core. Whatever goes wrong, the send will meet again and knows what to do about it.
        let Ok(nowhere) = rustix::fs::open(c"/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return;
        };
        let end = offset.saturating_add(length).min(self.identity.size);
        let mut position = offset;
        while position < end {
            let remaining = (end - position) as usize;
            match rustix::fs::sendfile(&nowhere, &self.fd, Some(&mut position), remaining) {
                // Shorter than it was: whoever sends it will find out.
                Ok(0) => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Reads the whole file. Waits for the disk: for the blocking pool only.
    pub fn read_whole(&self) -> Result<Bytes, OpenError> {
        read_bytes(&self.fd, self.identity.size, Access::Blocking)
    }

    /// Fills the buffer from this offset. May wait for a disk, unless the bytes are known to be in the page cache.
    ///
    /// # Errors
    /// The disk's; `UnexpectedEof` if the file is shorter.
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

    fn read_at(&self, buffer: &mut [u8], offset: u64, flags: ReadWriteFlags) -> Result<usize, Errno> {
        rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(buffer)], offset, flags)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Advice, CWD, Mode, OFlags};

    use super::{FileStatus, OpenFile};

    #[test]
    fn what_was_cold_is_warm() {
        // Not in the temporary directory, which may be in memory.
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
    fn what_is_resident_is_told_to_the_end_of_its_piece() {
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
