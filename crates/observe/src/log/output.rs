//! One access log: format, target and error state.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::event::event;
use super::format::{Formatter, TemplateError};
use super::record::{Capture, StoredRecord};
use super::remote_syslog::RemoteLog;
use super::server::ServerLog;
use super::stream::LogStream;
use super::syslog::{FACILITIES, SYSTEM_SOCKET, Syslog};
use crate::config::{AccessLog, AccessLogFormat, AccessLogTarget};

/// Bytes per write.
const WRITE_BYTES: usize = 128 << 10;

/// Counts of a log's records by result; any thread may read them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) written: AtomicU64,
    pub(super) dropped: AtomicU64,
}

impl Counters {
    fn add_written(&self, records: u64) {
        self.written.fetch_add(records, Ordering::Relaxed);
    }

    /// Counts lost records.
    pub(super) fn add_dropped(&self, records: u64) {
        self.dropped.fetch_add(records, Ordering::Relaxed);
    }
}

/// An open access log.
#[derive(Debug)]
pub(super) struct LogOutput {
    /// Name in messages.
    name: String,
    log: AccessLog,
    /// True while the configuration has the log. A removed log is closed, and reopened for requests that began before.
    is_wanted: bool,
    formatter: Formatter,
    sink: Sink,
    /// Error for which the target accepts nothing.
    trouble: Option<io::Error>,
    /// True if the error was reported.
    trouble_reported: bool,
    /// Dropped records already reported.
    dropped_reported: u64,
}

#[derive(Debug)]
enum Sink {
    Stream(LogStream),
    Syslog(Syslog),
    Remote(Box<RemoteLog>),
    Closed,
}

impl LogOutput {
    /// Opens a log.
    ///
    /// # Errors
    /// The target cannot be opened, or the format or facility is unknown; the message names the log.
    pub(super) fn open(log: &AccessLog) -> io::Result<Self> {
        let name = name_of(&log.target);
        let invalid = |error: TemplateError| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("cannot open access log {name}: {error}"))
        };
        let formatter = Formatter::new(&log.format).map_err(invalid)?;
        let sink = Sink::open(log, &formatter)?;
        let mut output = Self {
            name,
            log: log.clone(),
            is_wanted: true,
            formatter,
            sink,
            trouble: None,
            trouble_reported: false,
            dropped_reported: 0,
        };
        output.begin();
        Ok(output)
    }

    /// Marks the log as configured or removed.
    pub(super) fn set_wanted(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    /// Request fields that the format needs.
    pub(super) fn capture(&self) -> Capture {
        self.formatter.capture()
    }

    /// Appends a record.
    pub(super) fn append(&mut self, record: &StoredRecord<'_>, pending_bytes_max: usize, counters: &Counters) {
        if matches!(self.sink, Sink::Closed) {
            self.open_again();
        }
        match &mut self.sink {
            Sink::Closed => counters.add_dropped(1),
            // Counted when it is sent.
            Sink::Remote(remote) => {
                let push = |line: &mut Vec<u8>| self.formatter.append(record, line);
                if let Err(error) = remote.send(record.unix_us, pending_bytes_max, push) {
                    counters.add_dropped(1);
                    self.trouble = Some(error);
                }
            }
            Sink::Stream(stream) if self.trouble.is_some() && stream.pending.len() >= pending_bytes_max => {
                counters.add_dropped(1);
            }
            Sink::Stream(stream) => {
                self.formatter.append(record, &mut stream.pending);
                stream.pending_records += 1;
                // While the target accepts nothing, one attempt per flush is enough.
                if stream.pending.len() >= WRITE_BYTES && self.trouble.is_none() {
                    self.flush(counters);
                }
            }
            Sink::Syslog(syslog) => match syslog.send(|line| self.formatter.append(record, line)) {
                Ok(()) => {
                    counters.add_written(1);
                    self.trouble = None;
                }
                Err(error) => {
                    counters.add_dropped(1);
                    self.trouble = Some(error);
                }
            },
        }
    }

    /// Writes pending bytes, as far as the target accepts them.
    pub(super) fn flush(&mut self, counters: &Counters) {
        match &mut self.sink {
            Sink::Stream(stream) => {
                self.formatter.seal(&mut stream.pending);
                let (records, result) = stream.flush();
                counters.add_written(records);
                self.trouble = result.err();
            }
            Sink::Syslog(syslog) => syslog.flush(),
            Sink::Remote(remote) => {
                let report = remote.report();
                counters.add_written(report.sent);
                counters.add_dropped(report.lost);
                self.trouble = report.trouble;
            }
            Sink::Closed => {}
        }
        if !self.is_wanted && !self.is_pending() {
            self.sink = Sink::Closed;
        }
    }

    /// Reopens a log that was closed because the configuration removed it: a request that began before has ended.
    fn open_again(&mut self) {
        match Sink::open(&self.log, &self.formatter) {
            Ok(sink) => {
                self.sink = sink;
                self.begin();
            }
            Err(error) => self.trouble = Some(error),
        }
    }

    /// True if bytes wait to be written.
    pub(super) fn is_pending(&self) -> bool {
        match &self.sink {
            Sink::Stream(stream) => !stream.pending.is_empty(),
            Sink::Remote(remote) => remote.is_pending(),
            Sink::Syslog(_) | Sink::Closed => false,
        }
    }

    /// Reopens the file, after pending bytes are written to the old one as far as possible.
    pub(super) fn reopen(&mut self, counters: &Counters, server_log: &ServerLog) {
        self.flush(counters);
        let Sink::Stream(stream) = &mut self.sink else { return };
        match stream.reopen() {
            Ok(dropped) => {
                counters.add_dropped(dropped);
                self.begin();
                self.flush(counters);
            }
            Err(error) => server_log.error(
                event("reopening access log failed", &[("target", &self.name), ("error", &error)]),
                "records still go to the old file; make the directory writable for the server, then send SIGUSR1 again",
            ),
        }
    }

    /// Drops bytes that could not be written.
    pub(super) fn discard(&mut self, counters: &Counters) {
        match &mut self.sink {
            Sink::Stream(stream) => counters.add_dropped(stream.discard()),
            Sink::Remote(remote) => counters.add_dropped(remote.discard()),
            Sink::Syslog(_) | Sink::Closed => {}
        }
    }

    /// True if there is something new to report.
    pub(super) fn has_report(&self, counters: &Counters) -> bool {
        self.trouble.is_some() != self.trouble_reported
            || counters.dropped.load(Ordering::Relaxed) != self.dropped_reported
    }

    /// Logs an error of the target and its end in the server log.
    pub(super) fn report(&mut self, counters: &Counters, server_log: &ServerLog) {
        let total = counters.dropped.load(Ordering::Relaxed);
        let dropped = total - self.dropped_reported;
        let name = &self.name;
        match &self.trouble {
            Some(error) => server_log.error(
                event(
                    "writing access log failed",
                    &[("target", name), ("error", error), ("dropped", &dropped), ("dropped_total", &total)],
                ),
                "free disk space or repair the target; the server continues by itself",
            ),
            None if self.trouble_reported => {
                server_log.info(event(
                    "access log recovered",
                    &[("target", name), ("dropped", &dropped), ("dropped_total", &total)],
                ));
            }
            None => {
                server_log.warn(
                    event(
                        "access log records dropped",
                        &[("target", name), ("dropped", &dropped), ("dropped_total", &total)],
                    ),
                    "use a faster disk or a shorter format",
                );
            }
        }
        if let (1.., None, Sink::Stream(stream)) = (dropped, &self.trouble, &mut self.sink) {
            self.formatter.push_remark(dropped, &mut stream.pending);
        }
        self.trouble_reported = self.trouble.is_some();
        self.dropped_reported = total;
    }

    /// Inserts the start of a file of this format before the pending bytes.
    fn begin(&mut self) {
        let Sink::Stream(stream) = &mut self.sink else { return };
        let mut start = Vec::new();
        self.formatter.push_start(SystemTime::now(), &mut start);
        stream.pending.splice(..0, start);
    }
}

/// Advice about a log file that cannot be opened.
fn advice(target: &AccessLogTarget, kind: io::ErrorKind) -> String {
    match (target, kind) {
        (AccessLogTarget::File(path), io::ErrorKind::NotFound) => {
            let directory = path.parent().unwrap_or(path);
            format!("; create the directory {}", directory.display())
        }
        (AccessLogTarget::File(_), io::ErrorKind::PermissionDenied) => {
            "; let the server's user write to the file and its directory".to_owned()
        }
        _ => String::new(),
    }
}

impl Sink {
    fn open(log: &AccessLog, formatter: &Formatter) -> io::Result<Self> {
        let in_context = |error: io::Error| {
            let advice = advice(&log.target, error.kind());
            io::Error::new(error.kind(), format!("cannot open access log {}: {error}{advice}", name_of(&log.target)))
        };
        let invalid = |message: String| in_context(io::Error::new(io::ErrorKind::InvalidInput, message));
        match &log.target {
            AccessLogTarget::File(path) => {
                LogStream::open(path, formatter.unit()).map(Self::Stream).map_err(in_context)
            }
            AccessLogTarget::Stdout => LogStream::stdout(formatter.unit()).map(Self::Stream).map_err(in_context),
            AccessLogTarget::Syslog(_) | AccessLogTarget::Remote(_) if log.format == AccessLogFormat::Binary => {
                Err(invalid("the binary format needs a file or standard output".into()))
            }
            AccessLogTarget::Remote(target) => {
                RemoteLog::new(target).map(|remote| Self::Remote(Box::new(remote))).map_err(in_context)
            }
            AccessLogTarget::Syslog(facility) => Syslog::new(Path::new(SYSTEM_SOCKET), facility)
                .map(Self::Syslog)
                .ok_or_else(|| invalid(format!("unknown facility; use one of {}", FACILITIES.join(", ")))),
        }
    }
}

/// Name of a log in messages: its path, `stdout`, `syslog:FACILITY` or the URL of a remote syslog.
pub(super) fn name_of(target: &AccessLogTarget) -> String {
    match target {
        AccessLogTarget::File(path) => path.display().to_string(),
        AccessLogTarget::Stdout => "stdout".into(),
        AccessLogTarget::Syslog(facility) => format!("syslog:{facility}"),
        AccessLogTarget::Remote(target) => target.to_string(),
    }
}
