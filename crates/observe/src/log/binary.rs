//! Binary log format: a sequence of self-contained blocks. Logs can be appended to after a restart, concatenated, and
//! read from any offset.
//!
//! A block is, little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..10 | version of the format, 1 |
//! | 10..12 | reserved, 0 |
//! | 12..16 | number of records |
//! | 16..20 | bytes of all records |
//! | 20..24 | CRC-32 (as in gzip) of bytes 8..20 and the records |
//! | 24.. | the records, each as [`super::record`] describes |
//!
//! The magic contains a line feed and a control byte, which no value in a record can contain. So a client cannot forge
//! the start of a block.

use std::ops::Range;

use flate2::Crc;

use super::record::StoredRecord;

/// Start of every block.
pub(super) const MAGIC: &[u8; 8] = b"\x89TClog\n\x1a";
/// Version of the format that this program writes.
pub(super) const VERSION: u16 = 1;
/// Bytes of a block before its records.
pub(super) const BLOCK_HEAD_BYTES: usize = 24;
/// Bytes of records after which a block ends.
const BLOCK_BYTES: usize = 64 << 10;
/// Largest block that a reader accepts, in bytes of records.
pub(super) const BLOCK_BYTES_MAX: usize = 16 << 20;

const COUNT: Range<usize> = 12..16;
const LENGTH: Range<usize> = 16..20;
const CHECKSUM: Range<usize> = 20..24;

/// Writer of records into blocks.
#[derive(Debug, Default)]
pub(super) struct BlockWriter {
    /// Offset of the open block in the output.
    open: Option<usize>,
    records: u32,
}

impl BlockWriter {
    /// Appends a record to the open block; starts one if none is open.
    pub(super) fn append(&mut self, record: &StoredRecord<'_>, out: &mut Vec<u8>) {
        let start = *self.open.get_or_insert_with(|| {
            let start = out.len();
            out.extend_from_slice(MAGIC);
            out.extend_from_slice(&VERSION.to_le_bytes());
            out.resize(start + BLOCK_HEAD_BYTES, 0);
            start
        });
        record.push_to_file(out);
        self.records += 1;
        if out.len() - start >= BLOCK_BYTES {
            self.seal(out);
        }
    }

    /// Ends the open block.
    pub(super) fn seal(&mut self, out: &mut [u8]) {
        let Some(start) = self.open.take() else { return };
        let block = &mut out[start..];
        let length = (block.len() - BLOCK_HEAD_BYTES) as u32;
        block[COUNT].copy_from_slice(&self.records.to_le_bytes());
        block[LENGTH].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(block);
        block[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        self.records = 0;
    }
}

/// Head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockHead {
    pub(super) version: u16,
    pub(super) records: u32,
    /// Bytes of all records.
    pub(super) length: usize,
}

impl BlockHead {
    /// Reads the head of a block; `None` if the bytes are not one.
    pub(super) fn decode(head: &[u8; BLOCK_HEAD_BYTES]) -> Option<Self> {
        let number = |range: Range<usize>| head[range].iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        head.starts_with(MAGIC).then(|| Self {
            version: number(8..10) as u16,
            records: number(COUNT),
            length: number(LENGTH) as usize,
        })
    }
}

/// Compares a whole block with its checksum.
pub(super) fn is_intact(block: &[u8]) -> bool {
    block[CHECKSUM] == checksum(block).to_le_bytes()
}

pub(super) fn checksum(block: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&block[MAGIC.len()..CHECKSUM.start]);
    crc.update(&block[CHECKSUM.end..]);
    crc.sum()
}
