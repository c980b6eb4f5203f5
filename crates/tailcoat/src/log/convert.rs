//! Binary logs into text.

use std::fmt;
use std::io::{self, Read, Write};

use super::binary::{BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, BlockHead, MAGIC, VERSION, is_intact};
use super::format::{Formatter, TemplateError};
use super::record::StoredRecord;
use crate::config::AccessLogFormat;

/// Bytes that are read at once.
const READ_BYTES: usize = 128 << 10;
/// Bytes of text that are written at once.
const WRITE_BYTES: usize = 128 << 10;
/// Damaged places that are reported one by one.
const DAMAGE_MAX: usize = 100;

/// What became of a binary log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConvertReport {
    /// Records converted.
    pub records: u64,
    /// Bytes that were skipped because they are no whole records.
    pub skipped_bytes: u64,
    /// The first of the damaged places, in order.
    pub damage: Vec<Damage>,
}

/// A place in a binary log where there are no whole records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes skipped.
    pub bytes: u64,
    /// What is wrong.
    pub kind: DamageKind,
}

/// What is wrong at a damaged place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// This is no block of records.
    NoBlock,
    /// A block is not as it was written.
    Changed,
    /// The log ends within a block.
    Truncated,
    /// A block is of a version of the format that this program does not know.
    UnknownVersion(u16),
    /// A block is as it was written, but a record in it makes no sense to this program.
    UnknownRecord,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes skipped at offset {}: ", self.bytes, self.offset)?;
        match self.kind {
            DamageKind::NoBlock => f.write_str("no block of records begins there"),
            DamageKind::Changed => f.write_str("the block is damaged"),
            DamageKind::Truncated => f.write_str("the log ends within a block"),
            DamageKind::UnknownVersion(version) => {
                write!(f, "format version {version} is unknown; convert with the program that wrote it")
            }
            DamageKind::UnknownRecord => {
                f.write_str("a record of unknown form; convert with the program that wrote it")
            }
        }
    }
}

/// Why a log could not be converted at all, or not to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConvertError {
    /// The binary log could not be read.
    Read(io::Error),
    /// The text could not be written.
    Write(io::Error),
    /// The template has a fault.
    Template(TemplateError),
    /// The format is the binary one.
    NotText,
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot read the binary log: {error}"),
            Self::Write(error) => write!(f, "cannot write the text: {error}"),
            Self::Template(error) => error.fmt(f),
            Self::NotText => {
                f.write_str("a binary log is converted to a text format: common, combined, json, w3c or a template")
            }
        }
    }
}

impl std::error::Error for ConvertError {}

/// Converts a binary log to a text format. Damaged places are skipped and reported; what follows them is converted.
///
/// # Errors
/// Reading or writing failed, or the format is no text format.
pub fn convert(reader: impl Read, writer: impl Write, format: &AccessLogFormat) -> Result<ConvertReport, ConvertError> {
    if *format == AccessLogFormat::Binary {
        return Err(ConvertError::NotText);
    }
    let formatter = Formatter::new(format).map_err(ConvertError::Template)?;
    let input = Input { reader, bytes: Vec::new(), start: 0, offset: 0, is_at_end: false };
    let mut converter =
        Converter { input, writer, formatter, text: Vec::new(), has_begun: false, report: ConvertReport::default() };
    while converter.convert_block()? {}
    converter.write_text()?;
    converter.writer.flush().map_err(ConvertError::Write)?;
    Ok(converter.report)
}

struct Converter<R, W> {
    input: Input<R>,
    writer: W,
    formatter: Formatter,
    text: Vec<u8>,
    has_begun: bool,
    report: ConvertReport,
}

impl<R: Read, W: Write> Converter<R, W> {
    /// Converts the block that comes next, or skips what is none. Returns whether there was anything left.
    fn convert_block(&mut self) -> Result<bool, ConvertError> {
        let bytes = self.input.fill(BLOCK_HEAD_BYTES)?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let Some(head) = bytes.first_chunk() else {
            let may_begin = bytes.starts_with(MAGIC) || MAGIC.starts_with(bytes);
            return Ok(self.skip_to_block(if may_begin { DamageKind::Truncated } else { DamageKind::NoBlock }));
        };
        let Some(head) = BlockHead::decode(head) else { return Ok(self.skip_to_block(DamageKind::NoBlock)) };
        if head.length > BLOCK_BYTES_MAX {
            return Ok(self.skip_to_block(DamageKind::Changed));
        }
        let block_bytes = BLOCK_HEAD_BYTES + head.length;
        let Some(block) = self.input.fill(block_bytes)?.get(..block_bytes) else {
            return Ok(self.skip_to_block(DamageKind::Truncated));
        };
        if !is_intact(block) {
            return Ok(self.skip_to_block(DamageKind::Changed));
        }
        if head.version != VERSION {
            return Ok(self.skip(block_bytes, DamageKind::UnknownVersion(head.version)));
        }
        self.convert_records(block_bytes)?;
        Ok(true)
    }

    fn convert_records(&mut self, block_bytes: usize) -> Result<(), ConvertError> {
        let mut at = BLOCK_HEAD_BYTES;
        while at < block_bytes {
            let rest = &self.input.bytes()[at..block_bytes];
            let length = StoredRecord::length(rest).unwrap_or_default();
            let Some(record) = rest.get(..length).and_then(StoredRecord::decode) else { break };
            if !std::mem::replace(&mut self.has_begun, true) {
                // Directives give the time of the first record: the conversion's own says nothing about the log.
                let began = std::time::UNIX_EPOCH + std::time::Duration::from_micros(record.unix_us);
                self.formatter.push_start(began, &mut self.text);
            }
            self.formatter.append(&record, &mut self.text);
            self.report.records += 1;
            at += length;
            if self.text.len() >= WRITE_BYTES {
                self.writer.write_all(&self.text).map_err(ConvertError::Write)?;
                self.text.clear();
            }
        }
        self.input.consume(at);
        if at < block_bytes {
            self.skip(block_bytes - at, DamageKind::UnknownRecord);
        }
        Ok(())
    }

    /// Skips to where the next block may begin. Always returns true: something is left, and at least a byte is skipped.
    fn skip_to_block(&mut self, kind: DamageKind) -> bool {
        let bytes = self.input.bytes();
        let skipped = match memchr::memmem::find(&bytes[1..], MAGIC) {
            Some(at) => 1 + at,
            // A magic may have begun at the end of what is there.
            None if !self.input.is_at_end => bytes.len().saturating_sub(MAGIC.len() - 1).max(1),
            None => bytes.len(),
        };
        self.skip(skipped, kind)
    }

    fn skip(&mut self, bytes: usize, kind: DamageKind) -> bool {
        let damage = Damage { offset: self.input.offset, bytes: bytes as u64, kind };
        self.input.consume(bytes);
        self.report.skipped_bytes += damage.bytes;
        let places = &mut self.report.damage;
        let has_room = places.len() < DAMAGE_MAX;
        let last = places.last_mut().filter(|last| last.offset + last.bytes == damage.offset);
        match last {
            // More of the same, not a place of its own.
            Some(last) if kind == DamageKind::NoBlock => last.bytes += damage.bytes,
            _ if has_room => places.push(damage),
            _ => {}
        }
        true
    }

    fn write_text(&mut self) -> Result<(), ConvertError> {
        let result = self.writer.write_all(&self.text).map_err(ConvertError::Write);
        self.text.clear();
        result
    }
}

/// A reader, and what was read but not consumed.
struct Input<R> {
    reader: R,
    bytes: Vec<u8>,
    /// Where in `bytes` what is not consumed begins.
    start: usize,
    /// Offset of that in the log.
    offset: u64,
    is_at_end: bool,
}

impl<R: Read> Input<R> {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Reads until there are this many bytes or no more. Returns all that are there.
    fn fill(&mut self, wanted: usize) -> Result<&[u8], ConvertError> {
        while self.bytes().len() < wanted && !self.is_at_end {
            self.bytes.drain(..self.start);
            self.start = 0;
            let mut some = self.reader.by_ref().take(READ_BYTES as u64);
            let read = some.read_to_end(&mut self.bytes).map_err(ConvertError::Read)?;
            self.is_at_end = read == 0;
        }
        Ok(self.bytes())
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }
}
