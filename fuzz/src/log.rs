//! The part of `crates/observe/src/log` that encodes, formats and converts records, without the threads and files.

#[path = "../../crates/observe/src/log/binary.rs"]
mod binary;
#[path = "../../crates/observe/src/log/convert.rs"]
mod convert;
#[path = "../../crates/observe/src/log/format/mod.rs"]
#[allow(dead_code, unused_imports)]
mod format;
#[path = "../../crates/observe/src/log/record.rs"]
#[allow(dead_code)]
mod record;
#[path = "../../crates/observe/src/log/stream.rs"]
#[allow(dead_code)]
mod stream;
#[path = "../../crates/observe/src/log/tap.rs"]
#[allow(dead_code)]
mod tap;

pub use convert::{ConvertReport, Damage, DamageKind, convert};
pub use record::{BotRecord, LogClient, LogId, LogRecord, Subject, TlsRecord, UpstreamRecord};
pub use tap::RecordFilter;

use crate::config::AccessLogFormat;
use format::Formatter;
use record::StoredRecord;

/// Writes records as a worker and the log's writer do together. Text formats get the request fields that a binary log has.
pub fn write(records: &[LogRecord<'_>], format: &AccessLogFormat, value_bytes_max: usize) -> Vec<u8> {
    let new = |format| Formatter::new(format).expect("a format without a template");
    let (capture, mut formatter) = (new(&AccessLogFormat::Binary).capture(), new(format));
    let mut out = Vec::new();
    for record in records {
        let mut ring = Vec::new();
        record::encode(record, &capture, value_bytes_max, &mut ring);
        formatter.append(&StoredRecord::decode(&ring).expect("what was encoded is decoded"), &mut out);
    }
    formatter.seal(&mut out);
    out
}

/// The id of the first access log.
pub fn first_log() -> LogId {
    LogId(0)
}
