//! Live records for an operator's `log tail`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::format::{Formatter, TemplateError};
use super::record::{StoredRecord, Tag};
use crate::config::AccessLogFormat;

/// Lines that may wait for the operator's terminal. More are skipped and counted, so that a stopped terminal blocks
/// nothing.
const LINES_MAX: usize = 1_000;

/// Filter of records; all conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordFilter {
    /// Lowest and highest status.
    pub status: Option<(u16, u16)>,
    /// Method.
    pub method: Option<String>,
    /// Host in lower case.
    pub host: Option<String>,
    /// Prefix of the target.
    pub target_prefix: Option<String>,
    /// Address of the client, or its prefix if it ends with a dot or colon.
    pub client: Option<String>,
    /// Shortest duration, in microseconds.
    pub duration_us_min: u64,
}

/// Receiving end of a tap.
#[derive(Debug)]
pub struct LogTail {
    lines: Receiver<String>,
    missed: Arc<AtomicU64>,
    reported_missed: u64,
}

/// Item of a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tailed {
    /// Record as a line, without a line feed.
    Line(String),
    /// Number of records skipped because the receiver was too slow.
    Missed(u64),
}

/// Sending end of lines for an operator.
#[derive(Clone, Debug)]
pub struct LineSender {
    lines: Sender<String>,
    missed: Arc<AtomicU64>,
}

/// Sending end of a tap, used by the writer.
#[derive(Debug)]
pub(super) struct Tap {
    filter: RecordFilter,
    formatter: Formatter,
    lines: LineSender,
    scratch: Vec<u8>,
}

/// Creates both ends of a channel of lines.
pub fn line_channel() -> (LineSender, LogTail) {
    let (sender, lines) = channel(LINES_MAX);
    let missed = Arc::new(AtomicU64::new(0));
    let tail = LogTail { lines, missed: Arc::clone(&missed), reported_missed: 0 };
    (LineSender { lines: sender, missed }, tail)
}

impl LineSender {
    /// Sends a line, or counts it as missed if too many wait. Returns false if the receiver is gone.
    pub fn send(&self, line: String) -> bool {
        match self.lines.try_send(line) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }

    /// True while the receiver exists.
    pub fn is_watched(&self) -> bool {
        !self.lines.is_closed()
    }
}

impl Tap {
    /// Creates both ends of a tap.
    ///
    /// # Errors
    /// The template is invalid.
    pub(super) fn new(filter: RecordFilter, format: &AccessLogFormat) -> Result<(Self, LogTail), TemplateError> {
        let formatter = Formatter::new(format)?;
        let (lines, tail) = line_channel();
        Ok((Self { filter, formatter, lines, scratch: Vec::new() }, tail))
    }

    /// Passes a record on if it matches the filter. Returns false if the receiver is gone.
    pub(super) fn on_record(&mut self, record: &StoredRecord<'_>) -> bool {
        if !self.filter.fits(record) {
            return self.lines.is_watched();
        }
        self.scratch.clear();
        self.formatter.append(record, &mut self.scratch);
        let line = String::from_utf8_lossy(&self.scratch).trim_end_matches('\n').to_owned();
        self.lines.send(line)
    }

    /// True while the receiver exists.
    pub(super) fn is_watched(&self) -> bool {
        self.lines.is_watched()
    }
}

impl LogTail {
    /// Waits for the next item; `None` at the end.
    pub async fn next(&mut self) -> Option<Tailed> {
        let missed = self.missed.load(Ordering::Relaxed);
        if missed > self.reported_missed && self.lines.is_empty() {
            let since = missed - std::mem::replace(&mut self.reported_missed, missed);
            return Some(Tailed::Missed(since));
        }
        self.lines.recv().await.map(Tailed::Line)
    }
}

impl RecordFilter {
    fn fits(&self, record: &StoredRecord<'_>) -> bool {
        let is =
            |wanted: &Option<String>, value: &[u8]| wanted.as_ref().is_none_or(|wanted| wanted.as_bytes() == value);
        self.status.is_none_or(|(from, to)| (from..=to).contains(&record.status))
            && record.duration_us >= self.duration_us_min
            && is(&self.method, record.method().bytes)
            && is(&self.host, record.value(Tag::HOST).bytes)
            && self
                .target_prefix
                .as_ref()
                .is_none_or(|prefix| record.value(Tag::TARGET).bytes.starts_with(prefix.as_bytes()))
            && self.client.as_ref().is_none_or(|wanted| fits_client(wanted, record.client))
    }
}

fn fits_client(wanted: &str, client: super::LogClient) -> bool {
    let text = match client {
        super::LogClient::Ip(address) => address.ip().to_canonical().to_string(),
        super::LogClient::Unix => "unix".to_owned(),
    };
    if wanted.ends_with(['.', ':']) { text.starts_with(wanted) } else { text == wanted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogClient;

    #[test]
    fn clients() {
        let client = LogClient::Ip("[::ffff:192.0.2.7]:1".parse().unwrap());
        for (wanted, expect) in
            [("192.0.2.7", true), ("192.0.2.", true), ("192.0.2.70", false), ("192.0.2", false), ("unix", false)]
        {
            assert_eq!(fits_client(wanted, client), expect, "{wanted}");
        }
        assert!(fits_client("unix", LogClient::Unix));
    }
}
