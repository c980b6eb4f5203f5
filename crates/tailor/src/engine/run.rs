//! A run from its start to its end, as its caller sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use super::clock::{Clock, Nanos};
use super::connection::LineUsage;
use super::plan::Plan;
use super::processor_time::ProcessorTime;
use super::recorder::Record;
use super::shared::Tally;
use super::worker::{Message, Run, Worker};

/// How soon a run that is given up while it warms up is noticed.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A run that was started.
#[derive(Debug)]
pub struct Running {
    messages: Receiver<Message>,
    threads: Vec<JoinHandle<()>>,
    /// When counting begins, on the run's clock.
    counting_start: Nanos,
    counting_end: Nanos,
    start_time: SystemTime,
    clock: Clock,
    stop: Arc<AtomicBool>,
    /// Intervals of which some thread's part is still to come.
    open: BTreeMap<u64, (usize, Interval)>,
    outcome: Outcome,
    done: usize,
}

/// A piece of the run's time.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// Its end, in seconds since counting began.
    pub end_seconds: f64,
    /// What was counted in it.
    pub record: Record,
    /// Processor time of the load generator.
    pub processor_time: ProcessorTime,
    /// Time that it spent awake only to be in time, in nanoseconds.
    pub spin: Nanos,
}

/// What the whole run gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was counted, all intervals together.
    pub record: Record,
    /// Processor time of the load generator.
    pub processor_time: ProcessorTime,
    /// Time that it spent awake only to be in time, in nanoseconds.
    pub spin: Nanos,
    /// When counting began.
    pub start_time: SystemTime,
    /// Responses served in that time; the open loop serves some after it.
    pub served_in_time: u64,
    /// How long was counted. In the open loop, this ends when the last request was due.
    pub duration: Duration,
    /// What each simulated client's line carried.
    pub lines: Vec<LineUsage>,
    /// How often each request was sent and served, if the plan wanted it; else empty.
    pub tallies: Vec<Tally>,
    /// Requests under way when the time was over: neither served nor failed.
    pub unfinished: u64,
    /// Source addresses in use.
    pub sources: usize,
    /// How often no local port was left at an address.
    pub port_shortages: u64,
    /// How often no descriptor was left.
    pub descriptor_shortages: u64,
    /// Busiest thread, its wait for a processor included: its processor time without spinning, as a share of the time counted.
    pub busiest_thread_share: f64,
    /// The same thread's time in which it was ready to run and no processor was free, as a share of the time counted.
    pub waiting_share: f64,
}

/// Starts a run. It ends as its plan says, or when `stop` is set.
///
/// # Errors
/// A thread or its epoll instance could not be made.
pub fn start(plan: Plan, stop: Arc<AtomicBool>) -> std::io::Result<Running> {
    let threads = plan.threads;
    let plan = Arc::new(plan);
    let (sender, messages) = channel();
    let clock = Clock::start();
    let run = Run { plan: Arc::clone(&plan), clock, stop: Arc::clone(&stop), messages: sender };
    let mut handles = Vec::with_capacity(threads);
    for thread in 0..threads {
        let worker = Worker::new(run.clone(), thread)?;
        let processor = plan.processors.get(thread % plan.processors.len().max(1)).copied();
        let body = move || {
            // No other thread uses what it opens. In a table of descriptors of its own, the kernel need not count who looks one
            // up, which takes some hundredths of the time of a small request. If that fails, they go on with one for all.
            let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES);
            if let Some(processor) = processor {
                let mut set = rustix::thread::CpuSet::new();
                set.set(processor);
                // A processor that does not exist was refused when the plan was made.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            worker.run();
        };
        handles.push(std::thread::Builder::new().name(format!("load-{thread}")).spawn(body)?);
    }
    Ok(Running {
        messages,
        threads: handles,
        counting_start: run.counting_start(),
        counting_end: run.counting_end(),
        start_time: SystemTime::now() + Duration::from_nanos(run.counting_start()),
        clock,
        stop,
        open: BTreeMap::new(),
        outcome: Outcome::empty(),
        done: 0,
    })
}

impl Running {
    /// Waits until the warm-up is over and counting begins, or the run is given up.
    pub fn wait_for_counting(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.counting_start.saturating_sub(self.clock.now()) {
                0 => return,
                wait => std::thread::sleep(Duration::from_nanos(wait).min(STOP_CHECK_INTERVAL)),
            }
        }
    }

    /// Waits for the next interval to end; `None` once the run is over.
    pub fn next_interval(&mut self) -> Option<Interval> {
        while self.done < self.threads.len() {
            let Ok(message) = self.messages.recv() else { break };
            if let Some(interval) = self.on_message(message) {
                return Some(interval);
            }
        }
        // Intervals that some thread did not see to their end, and what came after the last.
        self.open.pop_first().map(|(_, (_, interval))| interval)
    }

    /// What the whole run gave; called when there are no more intervals.
    pub fn finish(mut self) -> Outcome {
        while self.next_interval().is_some() {}
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                // Its panic was printed; what it counted since its last interval is lost, so nothing passes.
                self.outcome.unfinished += 1;
            }
        }
        self.outcome.start_time = self.start_time;
        self.outcome
    }

    /// Takes a thread's message; returns an interval that is complete with it.
    fn on_message(&mut self, message: Message) -> Option<Interval> {
        let since_start = |end: Nanos| end.saturating_sub(self.counting_start);
        // An interval is told after the one before; the last word is the part after the last whole interval.
        let number = message.interval.unwrap_or(u64::MAX);
        let entry = self.open.entry(number).or_default();
        entry.0 += 1;
        entry.1.end_seconds = since_start(message.end) as f64 / 1e9;
        entry.1.record.merge(&message.record);
        entry.1.processor_time += message.processor_time;
        entry.1.spin += message.spin;
        self.outcome.on_message(&message);
        if message.summary.is_some() {
            self.done += 1;
            let counted = since_start(message.end.min(self.counting_end).max(self.counting_start));
            self.outcome.duration = self.outcome.duration.max(Duration::from_nanos(counted));
        }
        if entry.0 == self.threads.len() && number != u64::MAX {
            return self.open.remove(&number).map(|(_, interval)| interval);
        }
        None
    }

    /// Time since counting began.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.clock.now().saturating_sub(self.counting_start))
    }
}

impl Outcome {
    /// Nothing was counted yet.
    pub(crate) fn empty() -> Self {
        Self {
            record: Record::default(),
            processor_time: ProcessorTime::default(),
            spin: 0,
            start_time: SystemTime::UNIX_EPOCH,
            served_in_time: 0,
            duration: Duration::ZERO,
            lines: Vec::new(),
            tallies: Vec::new(),
            unfinished: 0,
            sources: 0,
            port_shortages: 0,
            descriptor_shortages: 0,
            busiest_thread_share: 0.0,
            waiting_share: 0.0,
        }
    }

    fn on_message(&mut self, message: &Message) {
        self.record.merge(&message.record);
        self.processor_time += message.processor_time;
        self.spin += message.spin;
        if let Some(summary) = &message.summary {
            self.lines.extend_from_slice(&summary.lines);
            self.tallies.resize(summary.tallies.len(), Tally::default());
            for (sum, more) in self.tallies.iter_mut().zip(&summary.tallies) {
                sum.sent += more.sent;
                sum.served += more.served;
            }
            self.unfinished += summary.unfinished;
            self.sources = self.sources.max(summary.sources);
            self.port_shortages += summary.port_shortages;
            self.descriptor_shortages += summary.descriptor_shortages;
            self.served_in_time += summary.served_in_time;
            if summary.busy_share + summary.waiting_share > self.busiest_thread_share + self.waiting_share {
                self.busiest_thread_share = summary.busy_share;
                self.waiting_share = summary.waiting_share;
            }
        }
    }

    /// Responses served a second.
    pub fn served_per_second(&self) -> f64 {
        self.served_in_time as f64 / self.duration.as_secs_f64().max(1e-9)
    }
}
