//! Access logs and the server log.
//!
//! A worker copies each request's [`LogRecord`] into its own ring ([`Recorder::record`]): no lock, no allocation, no
//! formatting, and no system call except to wake a sleeping writer. One writer thread reads the records of all rings,
//! formats them and writes them to the kernel in large pieces. If it cannot keep up, whole records are dropped and
//! counted, and serving continues.
//!
//! A new configuration opens its new logs ([`LogHandle::prepare`]) before it changes anything ([`LogHandle::apply`]). A
//! log keeps its id for the life of the process. A log that is no longer configured is closed; a request that began
//! before reopens it for its line.

mod binary;
mod convert;
mod event;
mod format;
mod output;
mod record;
mod recorder;
mod remote_syslog;
mod server;
mod stream;
mod syslog;
mod tap;
mod trouble;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use convert::{ConvertError, ConvertReport, Damage, DamageKind, convert};
pub use event::{cause, event};
pub use format::{LogTemplate, TemplateError, TemplateErrorKind, push_address};
pub use record::{
    BotRecord, FtpFlags, FtpSubject, LogClient, LogId, LogNeeds, LogRecord, Subject, TlsRecord, UpstreamRecord,
};
pub use recorder::Recorder;
pub use server::{LineStyle, ServerLog, Suppression, escaped};
pub use syslog::FACILITIES;
pub use tap::{LineSender, LogTail, RecordFilter, Tailed, line_channel};
pub use trouble::Trouble;

use self::output::{Counters, LogOutput};
use self::recorder::LogTable;
use self::writer::{Arrival, LogState, LogWriterCommand, LogWriterShared};
use crate::config::{AccessLog, AccessLogFormat, AccessLogTarget, Limits, ServerSettings};

/// Limits of the access logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of records that may wait for the writer, per worker. Memory is allocated on first use.
    pub ring_bytes_max: usize,
    /// Bytes of a single value (target, field, user); longer ones are cut and marked. At most 65,535.
    pub value_bytes_max: usize,
    /// Bytes of formatted lines that may wait while the target accepts nothing, per log.
    pub pending_bytes_max: usize,
    /// Longest delay of a record before it reaches its target.
    pub flush_interval: Duration,
    /// Shortest interval between reports of dropped records in the server log.
    pub report_interval: Duration,
}

impl LogOptions {
    /// Limits from a configuration.
    pub fn of(server: &ServerSettings, limits: &Limits) -> Self {
        Self {
            ring_bytes_max: limits.access_log_ring_bytes_max,
            value_bytes_max: limits.access_log_value_bytes_max,
            pending_bytes_max: limits.access_log_pending_bytes_max,
            flush_interval: server.access_log_flush_interval,
            report_interval: server.access_log_report_interval,
        }
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self::of(&ServerSettings::default(), &Limits::default())
    }
}

/// Counts of a log's records by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that the target accepted.
    pub written: u64,
    /// Records dropped because a ring was full or the target accepted nothing.
    pub dropped: u64,
}

/// Opens the logs and starts their writer. Returns the id of each log, in the order of `logs`; equal logs are opened
/// once and share an id.
///
/// # Errors
/// A target cannot be opened, or two logs configure it with different formats; the message names it.
pub fn start(logs: &[AccessLog], options: LogOptions, server_log: ServerLog) -> io::Result<(LogHandle, Vec<LogId>)> {
    let (shared, commands) = writer::start(options, server_log)?;
    let known = KnownLogs { states: Vec::new(), ids: HashMap::new(), wanted: HashSet::new(), options };
    let handle = LogHandle { shared, commands, known: Arc::new(Mutex::new(known)) };
    let change = handle.prepare(logs, options)?;
    let ids = change.ids.clone();
    handle.apply(change);
    Ok((handle, ids))
}

/// Counts of the records of all logs of a writer, readable from any thread.
#[derive(Clone, Debug)]
pub struct LogCounts(Arc<Mutex<KnownLogs>>);

impl LogCounts {
    /// Sum over all logs.
    pub fn total(&self) -> Counts {
        let known = lock(&self.0);
        let sum = |which: fn(&Counters) -> &AtomicU64| {
            known.states.iter().map(|state| which(&state.counters).load(Ordering::Relaxed)).sum()
        };
        Counts { written: sum(|counters| &counters.written), dropped: sum(|counters| &counters.dropped) }
    }
}

/// Handle to the running writer. Dropping it ends the writer without waiting.
#[derive(Debug)]
pub struct LogHandle {
    shared: Arc<LogWriterShared>,
    commands: Sender<LogWriterCommand>,
    known: Arc<Mutex<KnownLogs>>,
}

/// Logs opened so far, by id, and the current options.
#[derive(Debug)]
struct KnownLogs {
    states: Vec<Arc<LogState>>,
    ids: HashMap<AccessLog, LogId>,
    /// Logs that are not closed.
    wanted: HashSet<LogId>,
    options: LogOptions,
}

/// Newly opened logs, ready to be applied.
#[derive(Debug)]
pub struct LogChange {
    /// Id of each log, in the order of the request.
    pub ids: Vec<LogId>,
    new: Vec<(AccessLog, Arrival)>,
    options: LogOptions,
}

/// State of the logs that recorders need.
#[derive(Clone, Debug)]
pub struct LogView {
    shared: Arc<LogWriterShared>,
    commands: Sender<LogWriterCommand>,
    logs: LogTable,
    options: LogOptions,
}

impl LogHandle {
    /// Returns a recorder for one worker. Each recorder has its own ring; their number is not limited.
    pub fn recorder(&self) -> Recorder {
        Recorder::new(self.view())
    }

    /// Current state of the logs that recorders need.
    pub fn view(&self) -> LogView {
        let known = self.known();
        let (logs, options) = (known.states.as_slice().into(), known.options);
        LogView { shared: Arc::clone(&self.shared), commands: self.commands.clone(), logs, options }
    }

    /// Opens the logs that are new among these. Changes nothing until the result is [applied](Self::apply). Only one
    /// change may be in progress.
    ///
    /// # Errors
    /// Errors of [`start`].
    pub fn prepare(&self, logs: &[AccessLog], options: LogOptions) -> io::Result<LogChange> {
        let known = self.known();
        let mut change = LogChange { ids: Vec::with_capacity(logs.len()), new: Vec::new(), options };
        let mut wanted: HashMap<&AccessLogTarget, (LogId, &AccessLogFormat)> = HashMap::new();
        for log in logs {
            let id = match wanted.get(&log.target) {
                Some((id, format)) if *format == &log.format => *id,
                Some(_) => {
                    let message = format!("access log {} is configured with two formats", output::name_of(&log.target));
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
                None => change.open(log, &known)?,
            };
            wanted.insert(&log.target, (id, &log.format));
            change.ids.push(id);
        }
        Ok(change)
    }

    /// Makes the writer write to these logs. Other logs get only requests that began before. Must be called before
    /// anything is recorded for the new logs.
    pub fn apply(&self, change: LogChange) {
        let LogChange { ids, new, options } = change;
        let mut known = self.known();
        let mut arrivals = Vec::with_capacity(new.len());
        for (log, arrival) in new {
            let id = LogId(known.states.len() as u16);
            known.ids.insert(log, id);
            known.states.push(Arc::clone(&arrival.state));
            arrivals.push(arrival);
        }
        known.wanted = ids.iter().copied().collect();
        known.options = options;
        self.shared.add(arrivals);
        self.command(LogWriterCommand::Change(options, ids));
    }

    /// Reopens all files (SIGUSR1), after the records so far are written to the old ones. If a file cannot be opened,
    /// the error is logged and the old file stays in use.
    pub fn reopen(&self) {
        self.command(LogWriterCommand::Reopen);
    }

    /// Counts of a log's records so far.
    pub fn counts(&self, log: LogId) -> Counts {
        let counters = &self.known().states[log.index()].counters;
        Counts { written: counters.written.load(Ordering::Relaxed), dropped: counters.dropped.load(Ordering::Relaxed) }
    }

    /// Streams new records in this format. Request fields that no log captures are missing.
    ///
    /// # Errors
    /// The template is invalid.
    pub fn tail(&self, filter: RecordFilter, format: &AccessLogFormat) -> Result<LogTail, TemplateError> {
        let (tap, tail) = tap::Tap::new(filter, format)?;
        self.command(LogWriterCommand::Tap(Box::new(tap)));
        Ok(tail)
    }

    /// Counts of all records, readable from any thread.
    pub fn log_counts(&self) -> LogCounts {
        LogCounts(Arc::clone(&self.known))
    }

    /// Writes what was recorded and ends the writer. Returns false if that takes longer than `limit`, as with a target
    /// that accepts nothing; the writer is then left running. Records of recorders that still exist are lost.
    pub fn shutdown(&self, limit: Duration) -> bool {
        let (done, wait) = sync_channel(1);
        self.command(LogWriterCommand::Shutdown { limit, done });
        // The writer drops `done` without a message only if it panicked, and then it has ended, too.
        !matches!(wait.recv_timeout(limit), Err(RecvTimeoutError::Timeout))
    }

    fn command(&self, command: LogWriterCommand) {
        // Fails only if the writer ended by a panic; then records are dropped and counted, and serving continues.
        let _ = self.commands.send(command);
        self.shared.wake();
    }

    fn known(&self) -> MutexGuard<'_, KnownLogs> {
        lock(&self.known)
    }
}

fn lock(known: &Mutex<KnownLogs>) -> MutexGuard<'_, KnownLogs> {
    // No code under the lock can panic half-way through a change.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogChange {
    /// Opens a log unless it is open, and returns its id.
    fn open(&mut self, log: &AccessLog, known: &KnownLogs) -> io::Result<LogId> {
        let id = known.ids.get(log).copied();
        if let Some(id) = id.filter(|id| known.wanted.contains(id)) {
            return Ok(id);
        }
        // Opens it even if it was open once, because it may no longer be possible.
        let output = LogOutput::open(log)?;
        if let Some(id) = id {
            return Ok(id);
        }
        let id = u16::try_from(known.states.len() + self.new.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "more than 65,536 access logs since the start: restart the server",
            )
        })?;
        let state = Arc::new(LogState { capture: output.capture(), counters: Counters::default() });
        self.new.push((log.clone(), Arrival { output, state }));
        Ok(LogId(id))
    }
}

impl LogView {
    /// Creates a ring to the writer.
    fn ring(&self) -> rtrb::Producer<u8> {
        let (producer, consumer) = rtrb::RingBuffer::new(self.options.ring_bytes_max);
        // Fails only if the writer ended by a panic; then records are dropped and counted, and serving continues.
        let _ = self.commands.send(LogWriterCommand::Adopt(consumer));
        self.shared.wake();
        producer
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.command(LogWriterCommand::End);
    }
}
