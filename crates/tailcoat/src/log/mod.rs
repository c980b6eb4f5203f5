//! The access log and the server's own log.
//!
//! A worker copies each request's [`Record`] into a ring of its own ([`Recorder::record`]): no lock, no allocation, no
//! formatting, no system call but to wake a writer that sleeps. One writer thread takes the records of all rings, formats
//! them and hands them to the kernel in large pieces. If it cannot keep up, records are dropped whole and counted, and
//! serving goes on.
//!
//! Nothing here is global: a new configuration [`start`]s a writer of its own, and the old one is shut down when the last
//! worker has let go of it.

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
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::time::Duration;

pub use convert::{ConvertError, ConvertReport, Damage, DamageKind, convert};
pub use format::{Template, TemplateError, TemplateErrorKind};
pub use record::{Client, LogId, Record, Subject, TlsRecord, UpstreamRecord};
pub use recorder::Recorder;
pub use server::{ServerLog, Style, escaped};
pub use syslog::FACILITIES;
pub use tap::{RecordFilter, Tail, Tailed};
use writer::{Command, Shared};

use crate::config::{AccessLog, AccessLogFormat, Limits, Server};

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
    writer::start(logs, options, server_log)
}

/// What became of the records of all logs of a writer, for whoever looks from elsewhere.
#[derive(Clone, Debug)]
pub struct LogCounts(Arc<Shared>);

impl LogCounts {
    /// All logs together.
    pub fn total(&self) -> Counts {
        let sum = |which: fn(&output::Counters) -> &AtomicU64| {
            self.0.counters.iter().map(|counters| which(counters).load(Ordering::Relaxed)).sum()
        };
        Counts { written: sum(|counters| &counters.written), dropped: sum(|counters| &counters.dropped) }
    }
}

/// The running writer. Dropping it ends the writer without waiting for it.
#[derive(Debug)]
pub struct LogHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    options: Options,
}

impl LogHandle {
    /// A recorder for one worker. Any number may exist; each has a ring of its own.
    pub fn recorder(&self) -> Recorder {
        let (producer, consumer) = rtrb::RingBuffer::new(self.options.ring_bytes_max);
        self.command(Command::Adopt(consumer));
        Recorder::new(producer, Arc::clone(&self.shared), self.options)
    }

    /// Opens all files again (SIGUSR1), after what was recorded so far has been written to the old ones. A file that
    /// cannot be opened is reported, and the old one stays in use.
    pub fn reopen(&self) {
        self.command(Command::Reopen);
    }

    /// What became of the records of a log so far.
    pub fn counts(&self, log: LogId) -> Counts {
        let counters = &self.shared.counters[log.index()];
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
        LogCounts(Arc::clone(&self.shared))
    }

    /// Writes what was recorded and ends the writer. Returns whether it ended within `limit`; a target that takes nothing
    /// may keep it longer, and then it is left behind. Recorders should be gone by now: what they record from here on is
    /// lost.
    pub fn shutdown(self, limit: Duration) -> bool {
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
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.command(Command::End);
    }
}
