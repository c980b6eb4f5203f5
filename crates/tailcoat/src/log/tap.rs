//! Records as they come, for an operator who looks on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::format::{Formatter, TemplateError};
use super::record::{StoredRecord, Tag};
use crate::config::AccessLogFormat;

/// Lines that may wait for whoever looks on. Those too many are left out and counted: a terminal that stands still must
/// hold up nobody.
const LINES_MAX: usize = 1_000;

/// Which records are wanted: those that fit all that is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordFilter {
    /// Lowest and highest status.
    pub status: Option<(u16, u16)>,
    /// This method.
    pub method: Option<String>,
    /// This host, lower case.
    pub host: Option<String>,
    /// Targets that begin so.
    pub target_prefix: Option<String>,
    /// Clients whose address is written so, or begins so if it ends with a dot or colon.
    pub client: Option<String>,
    /// Requests that took at least so long, in microseconds.
    pub duration_us_min: u64,
}

/// What an operator gets who looks on.
#[derive(Debug)]
pub struct Tail {
    lines: Receiver<String>,
    missed: Arc<AtomicU64>,
    told_missed: u64,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tailed {
    /// A record, as a line without its end.
    Line(String),
    /// So many records were left out, for nobody took them.
    Missed(u64),
}

/// Where the writer puts what somebody looks at.
#[derive(Debug)]
pub(super) struct Tap {
    filter: RecordFilter,
    formatter: Formatter,
    lines: Sender<String>,
    missed: Arc<AtomicU64>,
    scratch: Vec<u8>,
}

impl Tap {
    /// A tap, and who looks on.
    ///
    /// # Errors
    /// A template with a fault.
    pub(super) fn new(filter: RecordFilter, format: &AccessLogFormat) -> Result<(Self, Tail), TemplateError> {
        let formatter = Formatter::new(format)?;
        let (sender, lines) = channel(LINES_MAX);
        let missed = Arc::new(AtomicU64::new(0));
        let tail = Tail { lines, missed: Arc::clone(&missed), told_missed: 0 };
        Ok((Self { filter, formatter, lines: sender, missed, scratch: Vec::new() }, tail))
    }

    /// Passes a record on if it is wanted. `false` if nobody looks any more.
    pub(super) fn on_record(&mut self, record: &StoredRecord<'_>) -> bool {
        if !self.filter.fits(record) {
            return !self.lines.is_closed();
        }
        self.scratch.clear();
        self.formatter.append(record, &mut self.scratch);
        let line = String::from_utf8_lossy(&self.scratch).trim_end_matches('\n').to_owned();
        match self.lines.try_send(line) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }

    /// Whether somebody still looks.
    pub(super) fn is_watched(&self) -> bool {
        !self.lines.is_closed()
    }
}

impl Tail {
    /// Waits for the next. `None` when no more comes.
    pub async fn next(&mut self) -> Option<Tailed> {
        let missed = self.missed.load(Ordering::Relaxed);
        if missed > self.told_missed && self.lines.is_empty() {
            let since = missed - std::mem::replace(&mut self.told_missed, missed);
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

fn fits_client(wanted: &str, client: super::Client) -> bool {
    let text = match client {
        super::Client::Ip(address) => address.ip().to_canonical().to_string(),
        super::Client::Unix => "unix".to_owned(),
    };
    if wanted.ends_with(['.', ':']) { text.starts_with(wanted) } else { text == wanted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Client;

    #[test]
    fn clients() {
        let client = Client::Ip("[::ffff:192.0.2.7]:1".parse().unwrap());
        for (wanted, expect) in
            [("192.0.2.7", true), ("192.0.2.", true), ("192.0.2.70", false), ("192.0.2", false), ("unix", false)]
        {
            assert_eq!(fits_client(wanted, client), expect, "{wanted}");
        }
        assert!(fits_client("unix", Client::Unix));
    }
}
