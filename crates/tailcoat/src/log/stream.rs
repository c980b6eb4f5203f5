//! A file, a pipe or standard output: bytes in a row, made of units (lines or blocks) that must never be torn.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::binary::{BLOCK_HEAD_BYTES, BlockHead};

/// What a stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Lines, each of which is a record.
    Line,
    /// Lines, of which those that begin with `#` are directives.
    LineOrDirective,
    /// Blocks of the binary format.
    Block,
}

/// An open target and what waits to be written to it.
#[derive(Debug)]
pub(super) struct Stream {
    /// `None` for standard output.
    path: Option<PathBuf>,
    file: File,
    unit: Unit,
    /// What is not written yet; begins with a whole unit.
    pub(super) pending: Vec<u8>,
    /// Bytes of the first unit in `pending` that are written already.
    torn_bytes: usize,
}

impl Stream {
    /// Opens a file to append to; it is created if need be (mode 0640), its directory is not.
    ///
    /// # Errors
    /// Those of open(2).
    pub(super) fn open(path: &Path, unit: Unit) -> io::Result<Self> {
        Ok(Self::new(Some(path.to_owned()), open_to_append(path)?, unit))
    }

    /// Standard output.
    ///
    /// # Errors
    /// Those of dup(2).
    pub(super) fn stdout(unit: Unit) -> io::Result<Self> {
        Ok(Self::new(None, File::from(io::stdout().as_fd().try_clone_to_owned()?), unit))
    }

    fn new(path: Option<PathBuf>, file: File, unit: Unit) -> Self {
        Self { path, file, unit, pending: Vec::new(), torn_bytes: 0 }
    }

    /// Writes all that is pending. Returns how many records the target took, and why it did not take the rest.
    pub(super) fn flush(&mut self) -> (u64, io::Result<()>) {
        let mut records = 0;
        while !self.pending.is_empty() {
            match self.file.write(&self.pending[self.torn_bytes..]) {
                Ok(0) => return (records, Err(io::ErrorKind::WriteZero.into())),
                // Less than all: there is no room for more, or a signal came. The next attempt tells which.
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

    /// Opens the file again. What is pending goes to the new one, but for a unit of which a part is in the old one.
    /// Returns how many records that one held.
    ///
    /// # Errors
    /// Those of open(2); the old file stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<u64> {
        let Some(path) = &self.path else { return Ok(0) };
        self.file = open_to_append(path)?;
        if self.torn_bytes == 0 {
            return Ok(0);
        }
        self.torn_bytes = 0;
        let first = self.unit_bytes(&self.pending).unwrap_or(self.pending.len());
        let records = self.records_in(&self.pending[..first]);
        self.pending.drain(..first);
        Ok(records)
    }

    /// Gives up what is pending. Returns how many records it held.
    pub(super) fn discard(&mut self) -> u64 {
        let records = self.records_in(&self.pending);
        self.pending.clear();
        self.torn_bytes = 0;
        records
    }

    /// Takes away what was just written, but for the beginning of a unit whose end was not. Returns the whole records.
    fn take_written(&mut self, bytes: usize) -> u64 {
        let written = self.torn_bytes + bytes;
        let whole = if written == self.pending.len() { written } else { self.whole_units_bytes(written) };
        let records = self.records_in(&self.pending[..whole]);
        self.pending.drain(..whole);
        self.torn_bytes = written - whole;
        records
    }

    /// Takes the beginning of a torn unit out of a regular file again, so that nobody ever reads half a line. If somebody
    /// has appended since, or it is a pipe, the rest of the unit follows when there is room again.
    fn mend(&mut self) {
        if self.torn_bytes == 0 || self.path.is_none() {
            return;
        }
        // After a write with O_APPEND, the file's position is where the bytes that were written end.
        let (Ok(metadata), Ok(written_to)) = (self.file.metadata(), self.file.stream_position()) else { return };
        if !metadata.is_file() || metadata.len() != written_to {
            return;
        }
        let whole = written_to.checked_sub(self.torn_bytes as u64);
        if whole.is_some_and(|whole| self.file.set_len(whole).is_ok()) {
            self.torn_bytes = 0;
        }
    }

    /// The bytes of all units that are whole in the first `limit` bytes of what is pending.
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

    /// The bytes of the first unit.
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

fn open_to_append(path: &Path) -> io::Result<File> {
    // Not blocking, so that a pipe that nobody reads does not hold up the other logs. Regular files know no such thing.
    let flags = OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
    let is_pipe = match rustix::fs::stat(path) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Fifo,
        Err(_) => false,
    };
    // Open for reading, too, a pipe can be opened before its reader has come, and outlives it (fifo(7)).
    let access = if is_pipe { OFlags::RDWR } else { OFlags::WRONLY };
    Ok(File::from(rustix::fs::open(path, flags | access, mode)?))
}
