//! The access log and the server's own log.
//!
//! A worker copies each request's [`Record`] into a ring of its own ([`Recorder::record`]): no lock, no allocation, no
//! formatting, no system call but to wake a writer that sleeps. One writer thread takes the records of all rings, formats
//! them and hands them to the kernel in large pieces. If it cannot keep up, records are dropped whole and counted, and
//! serving goes on.
//!
//! When the configuration changes, what it has new is opened ([`LogHandle::prepare`]) before anything is changed
//! ([`LogHandle::apply`]). A log keeps its id for good. One that is not wanted any more is closed; a request that began
//! while it was opens it once more for its line.

mod binary;
mod convert;
mod format;
mod output;
mod record;
mod recorder;
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
pub(crate) use format::push_address;
pub use format::{Template, TemplateError, TemplateErrorKind};
pub use record::{Client, LogId, LogNeeds, Record, Subject, TlsRecord, UpstreamRecord};
pub use recorder::Recorder;
pub use server::{ServerLog, Style, escaped};
pub use syslog::FACILITIES;
pub use tap::{RecordFilter, Tail, Tailed};
pub use trouble::Trouble;

use self::output::{Counters, Output};
use self::recorder::LogTable;
use self::writer::{Arrival, Command, LogState, Shared};
use crate::config::{AccessLog, AccessLogFormat, AccessLogTarget, Limits, Server};

/// Limits of the access logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of records that may wait for the writer, for each worker. Memory is taken as it is first used.
    pub ring_bytes_max: usize,
    /// Bytes of a single value (target, field, user); longer ones are cut and marked. At most 65,535.
    pub value_bytes_max: usize,
    /// Bytes of formatted lines that may wait, for each log, while its target takes nothing.
    pub pending_bytes_max: usize,
    /// A record reaches its target after this time at the latest.
    pub flush_interval: Duration,
    /// Dropped records are reported in the server's own log at most this often.
    pub report_interval: Duration,
}

impl Options {
    /// Those of a configuration.
    pub fn of(server: &Server, limits: &Limits) -> Self {
        Self {
            ring_bytes_max: limits.access_log_ring_bytes_max,
            value_bytes_max: limits.access_log_value_bytes_max,
            pending_bytes_max: limits.access_log_pending_bytes_max,
            flush_interval: server.access_log_flush_interval,
            report_interval: server.access_log_report_interval,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::of(&Server::default(), &Limits::default())
    }
}

/// What became of a log's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that the target took.
    pub written: u64,
    /// Records that were dropped, because a ring was full or the target took nothing.
    pub dropped: u64,
}

/// Opens the logs and starts their writer. Returns the id of each log, in the order of `logs`; equal logs are opened once
/// and have the same id.
///
/// # Errors
/// A target that cannot be opened, or one that two logs want in different formats; the message says which.
pub fn start(logs: &[AccessLog], options: Options, server_log: ServerLog) -> io::Result<(LogHandle, Vec<LogId>)> {
    let (shared, commands) = writer::start(options, server_log)?;
    let known = Known { states: Vec::new(), ids: HashMap::new(), wanted: HashSet::new(), options };
    let handle = LogHandle { shared, commands, known: Arc::new(Mutex::new(known)) };
    let change = handle.prepare(logs, options)?;
    let ids = change.ids.clone();
    handle.apply(change);
    Ok((handle, ids))
}

/// What became of the records of all logs of a writer, for whoever looks from elsewhere.
#[derive(Clone, Debug)]
pub struct LogCounts(Arc<Mutex<Known>>);

impl LogCounts {
    /// All logs together.
    pub fn total(&self) -> Counts {
        let known = lock(&self.0);
        let sum = |which: fn(&Counters) -> &AtomicU64| {
            known.states.iter().map(|state| which(&state.counters).load(Ordering::Relaxed)).sum()
        };
        Counts { written: sum(|counters| &counters.written), dropped: sum(|counters| &counters.dropped) }
    }
}

/// The running writer. Dropping it ends the writer without waiting for it.
#[derive(Debug)]
pub struct LogHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    known: Arc<Mutex<Known>>,
}

/// The logs that there have been so far, by their ids, and the options of now.
#[derive(Debug)]
struct Known {
    states: Vec<Arc<LogState>>,
    ids: HashMap<AccessLog, LogId>,
    /// Those that are not closed.
    wanted: HashSet<LogId>,
    options: Options,
}

/// Logs that are open, and could be written to.
#[derive(Debug)]
pub struct LogChange {
    /// The id of each log, in the order in which they were asked for.
    pub ids: Vec<LogId>,
    new: Vec<(AccessLog, Arrival)>,
    options: Options,
}

/// What recorders have to know of the logs.
#[derive(Clone, Debug)]
pub struct LogView {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    logs: LogTable,
    options: Options,
}

impl LogHandle {
    /// A recorder for one worker. Any number may exist; each has a ring of its own.
    pub fn recorder(&self) -> Recorder {
        Recorder::new(self.view())
    }

    /// What recorders have to know now.
    pub fn view(&self) -> LogView {
        let known = self.known();
        let (logs, options) = (known.states.as_slice().into(), known.options);
        LogView { shared: Arc::clone(&self.shared), commands: self.commands.clone(), logs, options }
    }

    /// Opens what is new among these logs. Nothing is changed before that is [applied](Self::apply); only one change may
    /// be on its way.
    ///
    /// # Errors
    /// Those of [`start`].
    pub fn prepare(&self, logs: &[AccessLog], options: Options) -> io::Result<LogChange> {
        let known = self.known();
        let mut change = LogChange { ids: Vec::with_capacity(logs.len()), new: Vec::new(), options };
        let mut wanted: HashMap<&AccessLogTarget, (LogId, &AccessLogFormat)> = HashMap::new();
        for log in logs {
            let id = match wanted.get(&log.target) {
                Some((id, format)) if *format == &log.format => *id,
                Some(_) => {
                    let message = format!("{} is wanted in two formats", output::name_of(&log.target));
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
                None => change.open(log, &known)?,
            };
            wanted.insert(&log.target, (id, &log.format));
            change.ids.push(id);
        }
        Ok(change)
    }

    /// Has the writer write to these logs, and to no others but what began while they were wanted. To be called before
    /// anything is recorded for them.
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
        self.command(Command::Change(options, ids));
    }

    /// Opens all files again (SIGUSR1), after what was recorded so far has been written to the old ones. A file that
    /// cannot be opened is reported, and the old one stays in use.
    pub fn reopen(&self) {
        self.command(Command::Reopen);
    }

    /// What became of the records of a log so far.
    pub fn counts(&self, log: LogId) -> Counts {
        let counters = &self.known().states[log.index()].counters;
        Counts { written: counters.written.load(Ordering::Relaxed), dropped: counters.dropped.load(Ordering::Relaxed) }
    }

    /// Records as they come, from now on, in this format; fields of requests that no log has are not there.
    ///
    /// # Errors
    /// A template with a fault.
    pub fn tail(&self, filter: RecordFilter, format: &AccessLogFormat) -> Result<Tail, TemplateError> {
        let (tap, tail) = tap::Tap::new(filter, format)?;
        self.command(Command::Tap(Box::new(tap)));
        Ok(tail)
    }

    /// What became of all records, for whoever looks from elsewhere.
    pub fn log_counts(&self) -> LogCounts {
        LogCounts(Arc::clone(&self.known))
    }

    /// Writes what was recorded and ends the writer. Returns whether it ended within `limit`; a target that takes nothing
    /// may keep it longer, and then it is left behind. Recorders should be gone by now: what they record from here on is
    /// lost.
    pub fn shutdown(&self, limit: Duration) -> bool {
        let (done, wait) = sync_channel(1);
        self.command(Command::Shutdown { limit, done });
        // The writer drops `done` without a message only when it has panicked, and then it has ended, too.
        !matches!(wait.recv_timeout(limit), Err(RecvTimeoutError::Timeout))
    }

    fn command(&self, command: Command) {
        // Fails only if the writer has ended by a panic; then records are dropped and counted, and serving goes on.
        let _ = self.commands.send(command);
        self.shared.wake();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    // Nothing is left half done where it could panic.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogChange {
    /// Opens a log, if it isn't, and returns its id.
    fn open(&mut self, log: &AccessLog, known: &Known) -> io::Result<LogId> {
        let id = known.ids.get(log).copied();
        if let Some(id) = id.filter(|id| known.wanted.contains(id)) {
            return Ok(id);
        }
        // Also if it was open once, for it may be that it can't be any more.
        let output = Output::open(log)?;
        if let Some(id) = id {
            return Ok(id);
        }
        let id = u16::try_from(known.states.len() + self.new.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "more than 65,536 access logs so far"))?;
        let state = Arc::new(LogState { capture: output.capture(), counters: Counters::default() });
        self.new.push((log.clone(), Arrival { output, state }));
        Ok(LogId(id))
    }
}

impl LogView {
    /// A ring to the writer.
    fn ring(&self) -> rtrb::Producer<u8> {
        let (producer, consumer) = rtrb::RingBuffer::new(self.options.ring_bytes_max);
        // Fails only if the writer has ended by a panic; then records are dropped and counted, and serving goes on.
        let _ = self.commands.send(Command::Adopt(consumer));
        self.shared.wake();
        producer
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.command(Command::End);
    }
}
