//! The thread that takes the records of all rings and hands them to the outputs.
//!
//! It sleeps in one of two ways. With nothing to do it parks until somebody wakes it: the first record does, and is
//! written at once. After that it dozes for the flush interval, and only a ring that is filling wakes it earlier. So under
//! load it is woken once for some hundred kilobytes of records, and without load not at all.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rtrb::Consumer;

use super::output::{Counters, Output, name_of};
use super::record::{Capture, LogId, StoredRecord};
use super::server::ServerLog;
use super::tap::Tap;
use super::{LogHandle, Options};
use crate::config::{AccessLog, AccessLogFormat, AccessLogTarget};

/// What recorders and the handle share with the writer.
#[derive(Debug)]
pub(super) struct Shared {
    state: AtomicU8,
    writer: OnceLock<Thread>,
    /// By log.
    pub(super) captures: Box<[Capture]>,
    /// By log.
    pub(super) counters: Box<[Counters]>,
}

/// The writer is at work, and will look at the rings again before it sleeps.
const BUSY: u8 = 0;
/// It sleeps until its interval has passed.
const DOZING: u8 = 1;
/// It sleeps until it is woken.
const PARKED: u8 = 2;

impl Shared {
    /// Wakes the writer if it would not see in time what was just pushed.
    pub(super) fn wake_after_push(&self, is_filling: bool) {
        // The record must be in the ring before the state is read: the writer, the other way round, says that it parks
        // before it looks at the rings for the last time. One of the two sees the other (Dekker).
        fence(Ordering::SeqCst);
        let state = self.state.load(Ordering::Relaxed);
        if state == PARKED || (state == DOZING && is_filling) {
            self.wake_once(state);
        }
    }

    /// Wakes the writer, unless another thread just did.
    #[cold]
    fn wake_once(&self, state: u8) {
        if self.state.compare_exchange(state, BUSY, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.wake();
        }
    }

    /// Wakes the writer, whatever it does.
    pub(super) fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }
}

/// What the handle asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// Take records from this ring, too.
    Adopt(Consumer<u8>),
    /// Pass records on here, too, as long as somebody looks.
    Tap(Box<Tap>),
    /// Open the files again.
    Reopen,
    /// Write what is there within this time, say so, and end.
    Shutdown { limit: Duration, done: SyncSender<()> },
    /// Write what can be written at once, and end.
    End,
}

/// Opens the logs and starts the thread; see [`super::start`].
pub(super) fn start(
    logs: &[AccessLog],
    options: Options,
    server_log: ServerLog,
) -> io::Result<(LogHandle, Vec<LogId>)> {
    let (outputs, ids) = open(logs)?;
    let shared = Arc::new(Shared {
        state: AtomicU8::new(BUSY),
        writer: OnceLock::new(),
        captures: outputs.iter().map(Output::capture).collect(),
        counters: outputs.iter().map(|_| Counters::default()).collect(),
    });
    let (commands, command_queue) = channel();
    let writer = Writer {
        shared: Arc::clone(&shared),
        commands: command_queue,
        outputs,
        rings: Vec::new(),
        taps: Vec::new(),
        scratch: Vec::new(),
        options,
        server_log,
        reported_at: None,
    };
    let thread = thread::Builder::new().name("access-log".into()).spawn(move || writer.run())?;
    // Set before anybody has a recorder; a command that was sent before is seen in the first round.
    let _ = shared.writer.set(thread.thread().clone());
    Ok((LogHandle { shared, commands, options }, ids))
}

/// Opens each log once, and finds its id for each that was asked for.
fn open(logs: &[AccessLog]) -> io::Result<(Vec<Output>, Vec<LogId>)> {
    let mut opened: HashMap<&AccessLogTarget, (usize, &AccessLogFormat)> = HashMap::new();
    let (mut outputs, mut ids) = (Vec::new(), Vec::new());
    for log in logs {
        let index = match opened.get(&log.target) {
            Some(&(index, format)) if *format == log.format => index,
            Some(_) => {
                let message = format!("{} is wanted in two formats", name_of(&log.target));
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            None => {
                outputs.push(Output::open(log)?);
                opened.insert(&log.target, (outputs.len() - 1, &log.format));
                outputs.len() - 1
            }
        };
        let id = u16::try_from(index)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "more than 65,536 access logs"))?;
        ids.push(LogId(id));
    }
    Ok((outputs, ids))
}

struct Writer {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    /// By log.
    outputs: Vec<Output>,
    rings: Vec<Consumer<u8>>,
    /// Operators who look on.
    taps: Vec<Tap>,
    /// A record that lies around the end of its ring.
    scratch: Vec<u8>,
    options: Options,
    server_log: ServerLog,
    reported_at: Option<Instant>,
}

impl Writer {
    fn run(mut self) {
        loop {
            self.shared.state.store(BUSY, Ordering::Relaxed);
            let ending = self.take_commands();
            let moved = self.drain();
            self.flush();
            self.report();
            if let Some((limit, done)) = ending {
                self.end(limit);
                // Closed before anybody hears of it.
                self.outputs.clear();
                // Nobody waits if the handle was dropped.
                let _ = done.map(|done| done.send(()));
                return;
            }
            self.sleep(moved);
        }
    }

    /// Does what was asked for. Returns how long an end may take, and whom to tell.
    fn take_commands(&mut self) -> Option<(Duration, Option<SyncSender<()>>)> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Adopt(ring) => self.rings.push(ring),
                Command::Tap(tap) => {
                    self.taps.retain(Tap::is_watched);
                    self.taps.push(*tap);
                }
                Command::Reopen => {
                    self.drain();
                    for (output, counters) in self.outputs.iter_mut().zip(&self.shared.counters) {
                        output.reopen(counters, &self.server_log);
                    }
                }
                Command::Shutdown { limit, done } => return Some((limit, Some(done))),
                Command::End => return Some((Duration::ZERO, None)),
            }
        }
        None
    }

    /// Takes what the rings hold by now. Returns whether there was anything.
    fn drain(&mut self) -> bool {
        let Self { outputs, rings, taps, scratch, shared, options, .. } = self;
        let mut moved = false;
        let mut take = |bytes: &[u8]| {
            let Some(record) = StoredRecord::decode(bytes) else {
                debug_assert!(false, "a recorder pushes only whole records");
                return;
            };
            taps.retain_mut(|tap| tap.on_record(&record));
            let log = record.log.index();
            outputs[log].append(&record, options.pending_bytes_max, &shared.counters[log]);
        };
        rings.retain_mut(|ring| {
            // Asked first: what was pushed before the recorder went is then seen below.
            let is_abandoned = ring.is_abandoned();
            moved |= drain_ring(ring, scratch, &mut take);
            !is_abandoned
        });
        moved
    }

    fn flush(&mut self) {
        for (output, counters) in self.outputs.iter_mut().zip(&self.shared.counters) {
            output.flush(counters);
        }
    }

    fn report(&mut self) {
        if self.reported_at.is_some_and(|at| at.elapsed() < self.options.report_interval) {
            return;
        }
        for (output, counters) in self.outputs.iter_mut().zip(&self.shared.counters) {
            if output.has_report(counters) {
                output.report(counters, &self.server_log);
                self.reported_at = Some(Instant::now());
            }
        }
    }

    fn sleep(&self, moved: bool) {
        let mut outputs = self.outputs.iter().zip(&self.shared.counters);
        if moved || outputs.any(|(output, counters)| output.is_pending() || output.has_report(counters)) {
            self.shared.state.store(DOZING, Ordering::Relaxed);
            thread::park_timeout(self.options.flush_interval);
            return;
        }
        self.shared.state.store(PARKED, Ordering::Relaxed);
        // See `Shared::wake_after_push`.
        fence(Ordering::SeqCst);
        if self.rings.iter().all(Consumer::is_empty) {
            thread::park();
        }
    }

    /// Writes the rest, as far as that goes within `limit`.
    fn end(&mut self, limit: Duration) {
        let began = Instant::now();
        while self.outputs.iter().any(Output::is_pending) && began.elapsed() < limit {
            thread::sleep(limit.min(Duration::from_millis(20)));
            self.flush();
        }
        for (output, counters) in self.outputs.iter_mut().zip(&self.shared.counters) {
            output.discard(counters);
            if output.has_report(counters) {
                output.report(counters, &self.server_log);
            }
        }
    }
}

/// Calls `take` with each record of a ring. Returns whether there was any.
fn drain_ring(ring: &mut Consumer<u8>, scratch: &mut Vec<u8>, take: &mut impl FnMut(&[u8])) -> bool {
    // Recorders push whole records at once, so that what is there ends with the end of a record.
    let Ok(chunk) = ring.read_chunk(ring.slots()) else { return false };
    if chunk.is_empty() {
        return false;
    }
    let (mut first, mut second) = chunk.as_slices();
    take_records(&mut first, take);
    if !first.is_empty() {
        scratch.clear();
        scratch.extend_from_slice(first);
        let known = first.len();
        scratch.extend_from_slice(&second[..second.len().min(4)]);
        let length = StoredRecord::length(scratch).unwrap_or_default().saturating_sub(known);
        scratch.truncate(known);
        if let Some((rest, others)) = second.split_at_checked(length) {
            scratch.extend_from_slice(rest);
            take(scratch);
            second = others;
        }
    }
    take_records(&mut second, take);
    chunk.commit_all();
    true
}

/// Calls `take` with each record that is whole.
fn take_records(records: &mut &[u8], take: &mut impl FnMut(&[u8])) {
    while let Some((record, rest)) =
        StoredRecord::length(records).filter(|length| *length > 0).and_then(|length| records.split_at_checked(length))
    {
        take(record);
        *records = rest;
    }
}
