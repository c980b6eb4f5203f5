//! Conversion of binary logs to text.

use std::fmt;
use std::io::{self, Read, Write};

use super::binary::{BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, BlockHead, MAGIC, VERSION, is_intact};
use super::format::{Formatter, TemplateError};
use super::record::StoredRecord;
use crate::config::AccessLogFormat;

/// Bytes per read.
const READ_BYTES: usize = 128 << 10;
/// Bytes of text per write.
const WRITE_BYTES: usize = 128 << 10;
/// Damaged places that are reported individually.
const DAMAGE_MAX: usize = 100;

/// Result of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConvertReport {
    /// Records converted.
    pub records: u64,
    /// Bytes skipped because they are not whole records.
    pub skipped_bytes: u64,
    /// First damaged places, in the order of the log.
    pub damage: Vec<Damage>,
}

impl ConvertReport {
    /// True if nothing in the input looks like a binary log.
    pub fn is_of_another_format(&self) -> bool {
        let is_no_block = |damage: &Damage| damage.kind == DamageKind::NoBlock && damage.bytes == self.skipped_bytes;
        self.records == 0 && self.damage.first().is_some_and(is_no_block)
    }
}

/// Damaged place in a binary log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes skipped.
    pub bytes: u64,
    /// Kind of damage.
    pub kind: DamageKind,
}

/// Kind of damage in a binary log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// No block starts here.
    NoBlock,
    /// The block does not match its checksum.
    Changed,
    /// The log ends within a block.
    Truncated,
    /// The block has a version of the format that this program does not know.
    UnknownVersion(u16),
    /// The block is intact, but has a record that this program does not understand.
    UnknownRecord,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped {} bytes at offset {}: ", self.bytes, self.offset)?;
        match self.kind {
            DamageKind::NoBlock => f.write_str("no block of records starts there"),
            DamageKind::Changed => f.write_str("the block is damaged"),
            DamageKind::Truncated => f.write_str("the log ends within a block"),
            DamageKind::UnknownVersion(version) => {
                write!(f, "unknown format version {version}; convert with the version of tailcoat that wrote the log")
            }
            DamageKind::UnknownRecord => {
                f.write_str("unknown kind of record; convert with the version of tailcoat that wrote the log")
            }
        }
    }
}

/// Error that stopped a conversion.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConvertError {
    /// The binary log could not be read.
    Read(io::Error),
    /// The text could not be written.
    Write(io::Error),
    /// The template is invalid.
    Template(TemplateError),
    /// The requested format is binary.
    NotText,
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot read the binary log: {error}"),
            Self::Write(error) => write!(f, "cannot write the text: {error}"),
            Self::Template(error) => error.fmt(f),
            Self::NotText => f.write_str("choose a text format: common, combined, json, w3c or a template"),
        }
    }
}

impl std::error::Error for ConvertError {}

/// Converts a binary log to a text format. Skips and reports damaged places, and continues after them.
///
/// # Errors
/// Reading or writing failed, or the format is not a text format.
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
    /// Converts the next block, or skips bytes that are not one. Returns false at the end of the log.
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
                // W3C directives state the time of the first record, because the time of the conversion says nothing
                // about the log.
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

    /// Skips to the next possible start of a block. Always returns true, because at least one byte is skipped.
    fn skip_to_block(&mut self, kind: DamageKind) -> bool {
        let bytes = self.input.bytes();
        let skipped = match memchr::memmem::find(&bytes[1..], MAGIC) {
            Some(at) => 1 + at,
            // The buffer may end with the first bytes of a magic.
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
            // Adjacent bytes without a block count as one damaged place.
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

/// Reader with a buffer of unconsumed bytes.
struct Input<R> {
    reader: R,
    bytes: Vec<u8>,
    /// Offset in `bytes` of the first unconsumed byte.
    start: usize,
    /// Offset of that byte in the log.
    offset: u64,
    is_at_end: bool,
}

impl<R: Read> Input<R> {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Reads until `wanted` bytes are available or the input ends; returns all available bytes.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::Formatter;
    use super::super::record::{self, LogId, StoredRecord};
    use super::super::tests::{LogTestRequest, record_of};
    use super::*;

    /// Log of `blocks` blocks with `records` records each; the target of a record is its number.
    fn binary_log(blocks: usize, records: usize) -> Vec<u8> {
        let mut formatter = Formatter::new(&AccessLogFormat::Binary).unwrap();
        let mut log = Vec::new();
        for block in 0..blocks {
            for record in 0..records {
                let request =
                    LogTestRequest::new(format!("/{block}/{record}").as_bytes(), &[("User-Agent", b"a\xffb")]);
                let mut bytes = Vec::new();
                record::encode(&record_of(LogId(7), request.subject()), &formatter.capture(), 100, &mut bytes);
                formatter.append(&StoredRecord::decode(&bytes).unwrap(), &mut log);
            }
            formatter.seal(&mut log);
        }
        log
    }

    fn targets(log: &[u8]) -> (String, ConvertReport) {
        let mut out = Vec::new();
        let report = convert(log, &mut out, &AccessLogFormat::Template("{target}".into())).unwrap();
        (String::from_utf8(out).unwrap().replace('\n', " "), report)
    }

    #[test]
    fn every_text_format() {
        let check = |format: AccessLogFormat, expect: &str| {
            let mut out = Vec::new();
            let report = convert(&binary_log(1, 1)[..], &mut out, &format).unwrap();
            assert_eq!(report, ConvertReport { records: 1, ..ConvertReport::default() });
            assert_eq!(String::from_utf8(out).unwrap(), expect);
        };
        let common = "192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"GET /0/0 HTTP/1.1\" 200 1024";
        check(AccessLogFormat::Common, &format!("{common}\n"));
        check(AccessLogFormat::Combined, &format!("{common} \"-\" \"a\\xFFb\"\n"));
        check(AccessLogFormat::Template("{host} {request.header.x}".into()), "example.com -\n");
        check(
            AccessLogFormat::Json,
            "{\"time\":\"1994-11-06T08:49:37.123456Z\",\"client\":\"192.0.2.7\",\"client_port\":50000,\
             \"host\":\"example.com\",\"method\":\"GET\",\"target\":\"/0/0\",\"version\":\"HTTP/1.1\",\"status\":200,\
             \"bytes\":1024,\"duration_us\":1234,\"user_agent\":\"a\\\\xFFb\"}\n",
        );
        check(
            AccessLogFormat::W3c,
            concat!(
                "#Version: 1.0\n#Software: tailcoat ",
                env!("CARGO_PKG_VERSION"),
                "\n#Date: 1994-11-06 08:49:37\n#Fields: date time c-ip cs-username cs-method cs-uri-stem cs-uri-query ",
                "cs-version cs-host sc-status sc-bytes time-taken cs(User-Agent) cs(Referer) x-tls-version ",
                "x-tls-cipher-suite x-tls-server-name x-tls-client\n1994-11-06 08:49:37 ",
                "192.0.2.7 - GET /0/0 - HTTP/1.1 example.com 200 1024 0.001234 \"a\\xFFb\" - - - - -\n",
            ),
        );
    }

    #[test]
    fn errors() {
        let convert = |format| convert(&b""[..], Vec::new(), &format);
        assert!(matches!(convert(AccessLogFormat::Binary), Err(ConvertError::NotText)));
        assert!(matches!(convert(AccessLogFormat::Template("{x".into())), Err(ConvertError::Template(_))));
        assert_eq!(convert(AccessLogFormat::Common).unwrap(), ConvertReport::default());
    }

    #[test]
    fn damaged_places_are_skipped_and_reported() {
        let intact = binary_log(3, 2);
        let block = intact.len() / 3;
        let check = |log: Vec<u8>, expect: &str, damage: &[(usize, usize, DamageKind)]| {
            let (text, report) = targets(&log);
            assert_eq!(text, expect);
            let found: Vec<_> =
                report.damage.iter().map(|place| (place.offset as usize, place.bytes as usize, place.kind)).collect();
            assert_eq!(found, damage, "{expect}");
            assert_eq!(report.skipped_bytes as usize, damage.iter().map(|place| place.1).sum::<usize>());
        };
        let changed = |at: usize, to: u8| {
            let mut log = intact.clone();
            log[at] = to;
            log
        };
        let all = "/0/0 /0/1 /1/0 /1/1 /2/0 /2/1 ";
        check(intact.clone(), all, &[]);
        check([&intact[..], &intact[..]].concat(), &format!("{all}{all}"), &[]);
        let torn = intact.len() - 5;
        check(intact[..torn].to_vec(), &all[..20], &[(2 * block, block - 5, DamageKind::Truncated)]);
        check(intact[..10].to_vec(), "", &[(0, 10, DamageKind::Truncated)]);
        check(intact[..3].to_vec(), "", &[(0, 3, DamageKind::Truncated)]);
        // A crash tore a block, and the restarted server appended to the log.
        let appended = [&intact[..torn], &intact[..]].concat();
        check(appended, &format!("{}{all}", &all[..20]), &[(2 * block, block - 5, DamageKind::Changed)]);
        // Damage in the second block: a record, a record's length (more bytes wanted than available), the magic, the
        // version.
        let without_second = "/0/0 /0/1 /2/0 /2/1 ";
        check(changed(block + 90, b'!'), without_second, &[(block, block, DamageKind::Changed)]);
        check(changed(block + 18, 1), without_second, &[(block, block, DamageKind::Truncated)]);
        check(changed(block + 19, 255), without_second, &[(block, block, DamageKind::Changed)]);
        check(changed(block + 3, 0), without_second, &[(block, block, DamageKind::NoBlock)]);
        check(changed(block + 8, 2), without_second, &[(block, block, DamageKind::Changed)]);
        check(b"127.0.0.1 - - text".to_vec(), "", &[(0, 18, DamageKind::NoBlock)]);
        for (log, expect) in [
            (&b"127.0.0.1 - - text"[..], true),
            (&[b'x'; 300_000], true),
            (b"", false),
            (&intact, false),
            (&intact[..10], false),
            (&changed(3, 0)[..block], true),
            (&changed(3, 0), false),
            (&changed(90, b'!')[..block], false),
        ] {
            assert_eq!(targets(log).1.is_of_another_format(), expect, "{} bytes", log.len());
        }
        let text_after = [&vec![b'x'; 500_000][..], &intact[..]].concat();
        check(text_after, all, &[(0, 500_000, DamageKind::NoBlock)]);
    }

    #[test]
    fn blocks_and_records_of_a_later_version() {
        let mut log = binary_log(2, 1);
        let block = log.len() / 2;
        let mark = |log: &mut Vec<u8>, at: usize, to: u8| {
            log[at] = to;
            let checksum = super::super::binary::checksum(&log[..block]);
            log[20..24].copy_from_slice(&checksum.to_le_bytes());
        };
        mark(&mut log, 8, 2);
        assert_eq!(targets(&log).1.damage[0].kind, DamageKind::UnknownVersion(2));
        assert_eq!(targets(&log).0, "/1/0 ");
        mark(&mut log, 8, 1);
        // Method of the first record.
        mark(&mut log, BLOCK_HEAD_BYTES + 52, 77);
        assert_eq!(targets(&log).1.damage[0].kind, DamageKind::UnknownRecord);
        assert_eq!(targets(&log).0, "/1/0 ");
    }

    /// Reader that returns few bytes at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let length = self.0.len().min(out.len()).min(7);
            let (now, later) = self.0.split_at(length);
            out[..length].copy_from_slice(now);
            self.0 = later;
            Ok(length)
        }
    }

    #[test]
    fn the_same_however_it_is_read() {
        let log = [&binary_log(3, 200)[..], b"rubbish", &binary_log(1, 900)].concat();
        let mut out = Vec::new();
        let report = convert(Trickle(&log), &mut out, &AccessLogFormat::Template("{target}".into())).unwrap();
        let (expect, expect_report) = targets(&log);
        assert_eq!((String::from_utf8(out).unwrap().replace('\n', " "), report), (expect, expect_report));
    }

    proptest! {
        /// Arbitrary bytes, with and without the start of a block: no panic, and every byte is accounted for.
        #[test]
        fn any_bytes(start in proptest::collection::vec(any::<u8>(), 0..200), rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            for log in [[&start[..], &rest[..]].concat(), [&start[..], MAGIC, &rest[..]].concat()] {
                let (_, report) = targets(&log);
                prop_assert_eq!((report.records, report.skipped_bytes), (0, log.len() as u64));
            }
        }

        /// A log with changed bytes: all converted records were in the log, in its order.
        #[test]
        fn changed_bytes(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
            let mut log = binary_log(4, 3);
            for (at, to) in changes {
                let at = at.index(log.len());
                log[at] = to;
            }
            let (text, _) = targets(&log);
            let mut all = targets(&binary_log(4, 3)).0.split(' ').map(str::to_owned).collect::<Vec<_>>().into_iter();
            for target in text.split(' ') {
                prop_assert!(all.any(|expect| expect == target));
            }
        }

        /// Records of the right length with arbitrary values: no panic, and only text comes out.
        #[test]
        fn any_record(
            kinds in (prop::sample::select(vec![0_u8, 4, 6]), prop::sample::select(vec![0_u8, 10, 11, 20, 30]), 0_u8..=10),
            tag in prop_oneof![0_u8..9, 126_u8..130],
            value in proptest::collection::vec(any::<u8>(), 0..60),
            rest in proptest::collection::vec(any::<u8>(), 0..10),
        ) {
            let mut record = vec![0xff; 56];
            (record[50], record[51], record[52]) = kinds;
            record.extend_from_slice(&[tag, 1, value.len() as u8, 0]);
            record.extend_from_slice(&value);
            let whole = record.len();
            record.extend_from_slice(&rest);
            for length in [whole, record.len()] {
                record[..4].copy_from_slice(&(length as u32).to_le_bytes());
                let Some(stored) = StoredRecord::decode(&record[..length]) else {
                    prop_assert!(length > whole || kinds.2 == 10, "a whole record is understood");
                    continue;
                };
                for format in [AccessLogFormat::Combined, AccessLogFormat::Json, AccessLogFormat::W3c] {
                    let mut out = Vec::new();
                    Formatter::new(&format).unwrap().append(&stored, &mut out);
                    prop_assert!(out.iter().all(|byte| *byte == b'\n' || (b' '..=b'~').contains(byte)));
                }
            }
        }
    }
}
