//! Standard output and error of modules: lines in the server log.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Poll};
use std::{io, thread};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::log::{ServerLog, escaped, event};

/// Limit of lines that wait for a slow reader of the log. Not an option: a log that is stuck for so long has lost some
/// anyway.
const LINES_WAITING_MAX: usize = 1_000;

/// Limit of a line in bytes; longer ones are split.
const LINE_BYTES_MAX: usize = 4_096;

/// Writes lines on a thread of its own, because the log may wait for its reader, and workers must not.
#[derive(Clone, Debug)]
pub(super) struct LineWriter {
    sender: SyncSender<String>,
    /// Number of lines dropped because too many waited.
    lost: Arc<AtomicU64>,
}

impl LineWriter {
    /// Starts the thread. It ends when all senders are dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(log: ServerLog) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(LINES_WAITING_MAX);
        let lost = Arc::<AtomicU64>::default();
        let writer = Self { sender, lost: Arc::clone(&lost) };
        thread::Builder::new().name("module-log".into()).spawn(move || write_lines(&receiver, &lost, &log))?;
        Ok(writer)
    }

    fn write(&self, line: String) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_lines(receiver: &Receiver<String>, lost: &AtomicU64, log: &ServerLog) {
    for line in receiver {
        log.info(line);
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            log.warn(
                event("module log lines dropped", &[("lines", &lost)]),
                "the server log is slower than the modules write",
            );
        }
    }
}

/// Output of one instance, both streams together.
#[derive(Clone)]
pub(super) struct LineLog(Arc<Mutex<ModuleLines>>);

struct ModuleLines {
    module: Arc<str>,
    writer: LineWriter,
    /// Line that has no end yet.
    begun: Vec<u8>,
    bytes_left: usize,
    is_full: bool,
}

impl LineLog {
    pub(super) fn new(module: &Arc<str>, writer: &LineWriter, bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(ModuleLines {
            module: Arc::clone(module),
            writer: writer.clone(),
            begun: Vec::new(),
            bytes_left: bytes_max,
            is_full: false,
        })))
    }

    /// Writes bytes; LF ends a line.
    pub(super) fn write(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes);
    }

    /// Prepares for another request, which may write this many bytes.
    pub(super) fn restart(&self, bytes_max: usize) {
        let lines = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !lines.begun.is_empty() {
            lines.end_line();
        }
        (lines.bytes_left, lines.is_full) = (bytes_max, false);
    }
}

impl ModuleLines {
    fn write(&mut self, bytes: &[u8]) {
        let taken = &bytes[..bytes.len().min(self.bytes_left)];
        self.bytes_left -= taken.len();
        for piece in taken.split_inclusive(|&byte| byte == b'\n') {
            for part in piece.chunks(LINE_BYTES_MAX) {
                if self.begun.len() + part.len() > LINE_BYTES_MAX {
                    self.end_line();
                }
                self.begun.extend_from_slice(part);
            }
            if self.begun.pop_if(|byte| *byte == b'\n').is_some() {
                self.end_line();
            }
        }
        if taken.len() < bytes.len() && !std::mem::replace(&mut self.is_full, true) {
            if !self.begun.is_empty() {
                self.end_line();
            }
            self.writer.write(format!("{}: wrote more than log-bytes-max; the rest is dropped", self.module));
        }
    }

    fn end_line(&mut self) {
        self.writer.write(format!("{}: {}", self.module, escaped(&self.begun)));
        self.begun.clear();
    }
}

impl Drop for ModuleLines {
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            self.end_line();
        }
    }
}

impl IsTerminal for LineLog {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LineLog {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for LineLog {
    fn poll_write(self: Pin<&mut Self>, _: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Task<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Task<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for LineLog {
    async fn ready(&mut self) {}
}

impl OutputStream for LineLog {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        Self::write(self, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(LINE_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let check = |bytes_max: usize, pieces: &[&str], expect: &[&str]| {
            let (sender, receiver) = sync_channel(100);
            let writer = LineWriter { sender, lost: Arc::default() };
            let log = LineLog::new(&"m".into(), &writer, bytes_max);
            pieces.iter().for_each(|piece| log.write(piece.as_bytes()));
            drop((log, writer));
            assert_eq!(receiver.iter().collect::<Vec<_>>(), expect, "{pieces:?}");
        };
        check(100, &["a\nb", "c\n", "\nd"], &["m: a", "m: bc", "m: ", "m: d"]);
        check(3, &["ab", "cd\n", "ef"], &["m: abc", "m: wrote more than log-bytes-max; the rest is dropped"]);
        check(0, &["a", "b"], &["m: wrote more than log-bytes-max; the rest is dropped"]);
        let long = "x".repeat(LINE_BYTES_MAX);
        check(9_999, &[&long, "y\n"], &[&format!("m: {long}"), "m: y"]);
        check(9_999, &[&format!("{long}{long}")], &[&format!("m: {long}"), &format!("m: {long}")]);
    }

    #[test]
    fn a_log_that_takes_nothing_loses_lines() {
        let (sender, receiver) = sync_channel(1);
        let writer = LineWriter { sender, lost: Arc::default() };
        ["a", "b", "c"].iter().for_each(|line| writer.write((*line).to_owned()));
        assert_eq!((receiver.recv().unwrap(), writer.lost.load(Ordering::Relaxed)), ("a".to_owned(), 2));
    }
}
