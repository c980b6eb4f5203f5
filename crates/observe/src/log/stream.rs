//! Byte stream to a file, a pipe or standard output, made of units (lines or blocks) that must not be torn.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::binary::{BLOCK_HEAD_BYTES, BlockHead};

/// Unit of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Lines; each is a record.
    Line,
    /// Lines; those that start with `#` are directives.
    LineOrDirective,
    /// Blocks of the binary format.
    Block,
}

/// Open target and its pending bytes.
#[derive(Debug)]
pub(super) struct LogStream {
    /// Path of the file; `None` for standard output.
    path: Option<PathBuf>,
    file: File,
    unit: Unit,
    /// Bytes not written yet; starts with a whole unit.
    pub(super) pending: Vec<u8>,
    /// Records in `pending`.
    pub(super) pending_records: u64,
    /// Bytes of the first pending unit that are already written.
    torn_bytes: usize,
}

impl LogStream {
    /// Opens a file for appending; creates it if needed (mode 0640), but not its directory.
    ///
    /// # Errors
    /// Errors of open(2).
    pub(super) fn open(path: &Path, unit: Unit) -> io::Result<Self> {
        let file = open_to_append(path)?;
        // Other processes have it open, and may be writing a line, which they complete themselves.
        if unit != Unit::Block && file.try_lock().is_ok() {
            end_torn_line(path, &file);
        }
        share(&file);
        Ok(Self::new(Some(path.to_owned()), file, unit))
    }

    /// Opens standard output.
    ///
    /// # Errors
    /// Errors of dup(2).
    pub(super) fn stdout(unit: Unit) -> io::Result<Self> {
        Ok(Self::new(None, File::from(io::stdout().as_fd().try_clone_to_owned()?), unit))
    }

    fn new(path: Option<PathBuf>, file: File, unit: Unit) -> Self {
        Self { path, file, unit, pending: Vec::new(), pending_records: 0, torn_bytes: 0 }
    }

    /// Writes all pending bytes. Returns the number of records that the target accepted, and the error that stopped it.
    pub(super) fn flush(&mut self) -> (u64, io::Result<()>) {
        let mut records = 0;
        while !self.pending.is_empty() {
            match self.file.write(&self.pending[self.torn_bytes..]) {
                Ok(0) => return (records, Err(io::ErrorKind::WriteZero.into())),
                // A short write: no space is left, or a signal arrived. The next attempt tells which.
                Ok(bytes) => records += self.take_written(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.mend();
                    return (records, Err(error));
                }
            }
        }
        (records, Ok(()))
    }

    /// Reopens the file. Pending bytes go to the new file, except a unit that is partly in the old one. Returns the
    /// number of records of that unit.
    ///
    /// # Errors
    /// Errors of open(2); the old file stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<u64> {
        let Some(path) = &self.path else { return Ok(0) };
        self.file = open_to_append(path)?;
        share(&self.file);
        if self.torn_bytes == 0 {
            return Ok(0);
        }
        self.torn_bytes = 0;
        let first = self.unit_bytes(&self.pending).unwrap_or(self.pending.len());
        Ok(self.take_units(first))
    }

    /// Drops the pending bytes. Returns their number of records.
    pub(super) fn discard(&mut self) -> u64 {
        self.mend();
        self.torn_bytes = 0;
        self.take_units(self.pending.len())
    }

    /// Removes written bytes, except the start of a unit whose end is not written. Returns the number of whole records.
    fn take_written(&mut self, bytes: usize) -> u64 {
        let written = self.torn_bytes + bytes;
        let whole = if written == self.pending.len() { written } else { self.whole_units_bytes(written) };
        self.torn_bytes = written - whole;
        self.take_units(whole)
    }

    /// Removes the first units. Returns their number of records.
    fn take_units(&mut self, bytes: usize) -> u64 {
        let is_all = bytes == self.pending.len();
        let records = if is_all { self.pending_records } else { self.records_in(&self.pending[..bytes]) };
        self.pending.drain(..bytes);
        self.pending_records -= records;
        records
    }

    /// Removes the start of a torn unit from a regular file, so that no reader sees half a line. If another process has
    /// appended meanwhile, or the target is a pipe, the rest of the unit follows when the target accepts it.
    fn mend(&mut self) {
        if self.torn_bytes == 0 || self.path.is_none() {
            return;
        }
        // After a write with O_APPEND, the file's position is the end of the written bytes.
        let (Ok(metadata), Ok(written_to)) = (self.file.metadata(), self.file.stream_position()) else { return };
        if !metadata.is_file() || metadata.len() != written_to {
            return;
        }
        let whole = written_to.checked_sub(self.torn_bytes as u64);
        if whole.is_some_and(|whole| self.file.set_len(whole).is_ok()) {
            self.torn_bytes = 0;
        }
    }

    /// Bytes of the whole units within the first `limit` pending bytes.
    fn whole_units_bytes(&self, limit: usize) -> usize {
        if self.unit != Unit::Block {
            return memchr::memrchr(b'\n', &self.pending[..limit]).map_or(0, |at| at + 1);
        }
        let mut whole = 0;
        while let Some(bytes) = self.unit_bytes(&self.pending[whole..]).filter(|bytes| whole + bytes <= limit) {
            whole += bytes;
        }
        whole
    }

    /// Bytes of the first unit.
    fn unit_bytes(&self, units: &[u8]) -> Option<usize> {
        match self.unit {
            Unit::Block => Some(BLOCK_HEAD_BYTES + block_head(units)?.length),
            Unit::Line | Unit::LineOrDirective => memchr::memchr(b'\n', units).map(|at| at + 1),
        }
    }

    fn records_in(&self, units: &[u8]) -> u64 {
        match self.unit {
            Unit::Line => memchr::memchr_iter(b'\n', units).count() as u64,
            Unit::LineOrDirective => {
                units.split_inclusive(|byte| *byte == b'\n').filter(|line| line[0] != b'#').count() as u64
            }
            Unit::Block => {
                let (mut records, mut rest) = (0, units);
                while let Some(head) = block_head(rest) {
                    records += u64::from(head.records);
                    rest = rest.get(BLOCK_HEAD_BYTES + head.length..).unwrap_or_default();
                }
                records
            }
        }
    }
}

fn block_head(blocks: &[u8]) -> Option<BlockHead> {
    BlockHead::decode(blocks.first_chunk()?)
}

/// Ends the last line of a regular file that a killed process left incomplete, so that the next record has its own
/// line. (Readers of the binary format find the next block themselves.)
fn end_torn_line(path: &Path, file: &File) {
    let Some(last) = file.metadata().ok().filter(|file| file.is_file()).and_then(|file| file.len().checked_sub(1))
    else {
        return;
    };
    let mut byte = [b'\n'];
    // An unreadable file is left as it is.
    let read = File::open(path).and_then(|read| read.read_exact_at(&mut byte, last));
    if read.is_ok() && byte != [b'\n'] {
        let _ = { file }.write_all(b"\n");
    }
}

/// Shows other processes that the file is in use, by a lock. Without file locks they do not see it.
fn share(file: &File) {
    let _ = file.try_lock_shared();
}

fn open_to_append(path: &Path) -> io::Result<File> {
    // Non-blocking, so that a pipe without a reader does not block the other logs. Regular files ignore the flag.
    let flags = OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
    let is_pipe = match rustix::fs::stat(path) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Fifo,
        Err(_) => false,
    };
    // A pipe that is also open for reading can be opened before its reader exists, and outlives it (fifo(7)).
    let access = if is_pipe { OFlags::RDWR } else { OFlags::WRONLY };
    Ok(File::from(rustix::fs::open(path, flags | access, mode)?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::binary::{BLOCK_HEAD_BYTES, MAGIC, VERSION};
    use super::*;

    fn block(records: u32, content: &[u8]) -> Vec<u8> {
        let mut block = MAGIC.to_vec();
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&[0; 2]);
        block.extend_from_slice(&records.to_le_bytes());
        block.extend_from_slice(&(content.len() as u32).to_le_bytes());
        block.resize(BLOCK_HEAD_BYTES, 0);
        block.extend_from_slice(content);
        block
    }

    /// Stream to a file whose target has accepted only the first pending bytes.
    fn half_written(path: &Path, unit: Unit, pending: &[u8], records: u64, taken: usize) -> (LogStream, u64) {
        let mut stream = LogStream::open(path, unit).unwrap();
        stream.pending = pending.to_vec();
        stream.pending_records = records;
        stream.file.write_all(&pending[..taken]).unwrap();
        let records = stream.take_written(taken);
        (stream, records)
    }

    #[test]
    fn a_unit_that_did_not_fit_is_taken_out_of_the_file_again() {
        let directory = tempfile::tempdir().unwrap();
        let blocks = [block(2, b"first"), block(3, b"second")].concat();
        let first_block = BLOCK_HEAD_BYTES + 5;
        let check = |unit, pending: &[u8], records, taken, expect_in_file: usize, expect_records| {
            let path = directory.path().join("log");
            let _ = fs::remove_file(&path);
            fs::write(&path, "before\n").unwrap();
            let (mut stream, written) = half_written(&path, unit, pending, records, taken);
            stream.mend();
            assert_eq!(fs::read(&path).unwrap(), [b"before\n", &pending[..expect_in_file]].concat());
            assert_eq!((written, stream.pending_records), (expect_records, records - expect_records));
            assert_eq!(stream.pending, &pending[expect_in_file..]);
            let (rest, result) = stream.flush();
            result.unwrap();
            assert_eq!(rest + written, records);
            assert_eq!(fs::read(&path).unwrap(), [b"before\n", pending].concat());
        };
        check(Unit::Line, b"one\ntwo\nthree\n", 3, 0, 0, 0);
        check(Unit::Line, b"one\ntwo\nthree\n", 3, 2, 0, 0);
        check(Unit::Line, b"one\ntwo\nthree\n", 3, 4, 4, 1);
        check(Unit::Line, b"one\ntwo\nthree\n", 3, 9, 8, 2);
        check(Unit::Line, b"one\ntwo\nthree\n", 3, 14, 14, 3);
        check(Unit::LineOrDirective, b"#one\ntwo\n#three\nfour\n", 2, 12, 9, 1);
        check(Unit::Block, &blocks, 5, 10, 0, 0);
        check(Unit::Block, &blocks, 5, first_block, first_block, 2);
        check(Unit::Block, &blocks, 5, first_block + 29, first_block, 2);
        check(Unit::Block, &blocks, 5, blocks.len(), blocks.len(), 5);
    }

    #[test]
    fn where_others_have_written_the_rest_follows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (mut stream, _) = half_written(&path, Unit::Line, b"one\ntwo\n", 2, 5);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"OTHER").unwrap();
        stream.mend();
        stream.flush().1.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntOTHERwo\n");
    }

    #[test]
    fn reopening_leaves_a_torn_unit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (mut stream, _) = half_written(&path, Unit::Line, b"one\ntwo\nthree\n", 3, 5);
        fs::rename(&path, directory.path().join("log.1")).unwrap();
        assert_eq!(stream.reopen().unwrap(), 1);
        assert_eq!(stream.flush().0, 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_line_that_was_torn_by_the_end_of_a_process_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for (before, expect) in [("", "next\n"), ("line\n", "line\nnext\n"), ("line\nto", "line\nto\nnext\n")] {
            fs::write(&path, before).unwrap();
            let mut stream = LogStream::open(&path, Unit::Line).unwrap();
            stream.pending.extend_from_slice(b"next\n");
            stream.pending_records = 1;
            assert!(matches!(stream.flush(), (1, Ok(()))));
            assert_eq!(fs::read_to_string(&path).unwrap(), expect, "{before:?}");
        }
        // A process that has it open still writes the rest.
        let (mut stream, _) = half_written(&path, Unit::Line, b"one\ntwo\n", 2, 6);
        let before = fs::read_to_string(&path).unwrap();
        for _ in 0..2 {
            drop(LogStream::open(&path, Unit::Line).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
            stream.reopen().unwrap();
        }
        drop(stream);
        drop(LogStream::open(&path, Unit::Line).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), before + "\n");
        fs::write(&path, "TCLOG").unwrap();
        drop(LogStream::open(&path, Unit::Block).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "TCLOG");
    }

    #[test]
    fn files_are_created_for_owner_and_group_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for _ in 0..2 {
            let mut stream = LogStream::open(&path, Unit::Line).unwrap();
            stream.pending = b"line\n".to_vec();
            stream.flush().1.unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\nline\n");
        // The process' umask may clear more bits, but nothing gives others access.
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o640, 0);
        let error = LogStream::open(&directory.path().join("none/log"), Unit::Line).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
