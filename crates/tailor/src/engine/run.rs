//! A run as its caller sees it, from start to end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use super::clock::{Nanos, RunClock};
use super::connection::LineUsage;
use super::groups::{GroupRecord, merge_groups};
use super::plan::LoadPlan;
use super::processor_time::ProcessorTime;
use super::recorder::IntervalRecord;
use super::scenario::ScenarioRecord;
use super::shared::Tally;
use super::worker::{LoadWorker, Message, RunContext};

/// Interval for checking whether a run was stopped during the warm-up.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A run in progress.
#[derive(Debug)]
pub(crate) struct RunningLoad {
    messages: Receiver<Message>,
    threads: Vec<JoinHandle<()>>,
    /// Start of counting, on the run's clock.
    counting_start: Nanos,
    start_time: SystemTime,
    clock: RunClock,
    stop: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    /// Intervals for which the part of some thread is missing.
    open: BTreeMap<u64, (usize, Interval)>,
    outcome: RunOutcome,
    done: usize,
}

/// Report interval of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    /// End of the interval in seconds since the start of counting.
    pub end_seconds: f64,
    /// Counters and histograms of the interval.
    pub record: IntervalRecord,
    /// CPU time of the load generator.
    pub processor_time: ProcessorTime,
    /// CPU time in nanoseconds that the load generator polled only to be punctual.
    pub spin: Nanos,
}

/// Result of a whole run.
#[derive(Clone, Debug)]
pub(crate) struct RunOutcome {
    /// Counters and histograms of all intervals together.
    pub record: IntervalRecord,
    /// CPU time of the load generator.
    pub processor_time: ProcessorTime,
    /// CPU time in nanoseconds that the load generator polled only to be punctual.
    pub spin: Nanos,
    /// Start of counting.
    pub start_time: SystemTime,
    /// Responses served during the counted time. The open loop serves some after it.
    pub served_in_time: u64,
    /// Length of the counted time. In the open loop it ends when the last request was due.
    pub duration: Duration,
    /// Traffic on the line of each simulated client.
    pub lines: Vec<LineUsage>,
    /// Counts for each request, if the plan wants them; otherwise empty.
    pub tallies: Vec<Tally>,
    /// Counts by phase of the load profile; empty without one.
    pub phases: Vec<GroupRecord>,
    /// Counts of the scenarios; empty without them.
    pub scenarios: ScenarioRecord,
    /// Requests in flight at the end: neither served nor failed.
    pub unfinished: u64,
    /// Number of source addresses in use.
    pub sources: usize,
    /// Number of times that a source address had no free port.
    pub port_shortages: u64,
    /// Number of times that no file descriptor was free.
    pub descriptor_shortages: u64,
    /// CPU time without polling of the busiest thread, as a share of the counted time. The busiest thread has the
    /// largest sum of this share and the next one.
    pub busiest_thread_share: f64,
    /// Time that the same thread waited for a CPU, as a share of the counted time.
    pub waiting_share: f64,
}

/// Starts a run. It ends as planned, or when `stop` is set.
///
/// # Errors
/// A thread or its epoll instance cannot be created.
pub(crate) fn start(plan: LoadPlan, stop: Arc<AtomicBool>) -> std::io::Result<RunningLoad> {
    let threads = plan.threads;
    let plan = Arc::new(plan);
    let (sender, messages) = channel();
    let clock = RunClock::start();
    let run =
        RunContext { plan: Arc::clone(&plan), clock, stop: Arc::clone(&stop), end: Arc::default(), messages: sender };
    let mut handles = Vec::with_capacity(threads);
    for thread in 0..threads {
        let worker = LoadWorker::new(run.clone(), thread)?;
        let processor = plan.processors.get(thread % plan.processors.len().max(1)).copied();
        let body = move || {
            // No other thread uses the descriptors that a worker opens. With a private table the kernel skips reference
            // counts on lookups, which saves some percent of the time of a small request. If this fails, the threads
            // share one table.
            let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES);
            if let Some(processor) = processor {
                let mut set = rustix::thread::CpuSet::new();
                set.set(processor);
                // The plan has rejected CPUs that do not exist.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            worker.run();
        };
        handles.push(std::thread::Builder::new().name(format!("load-{thread}")).spawn(body)?);
    }
    Ok(RunningLoad {
        messages,
        threads: handles,
        counting_start: run.counting_start(),
        start_time: SystemTime::now() + Duration::from_nanos(run.counting_start()),
        clock,
        stop,
        end: run.end,
        open: BTreeMap::new(),
        outcome: RunOutcome::empty(),
        done: 0,
    })
}

impl RunningLoad {
    /// Waits until counting begins after the warm-up, or the run is stopped.
    pub(crate) fn wait_for_counting(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.counting_start.saturating_sub(self.clock.now()) {
                0 => return,
                wait => std::thread::sleep(Duration::from_nanos(wait).min(STOP_CHECK_INTERVAL)),
            }
        }
    }

    /// Waits for the end of the next interval; `None` after the end of the run.
    pub(crate) fn next_interval(&mut self) -> Option<Interval> {
        while self.done < self.threads.len() {
            let Ok(message) = self.messages.recv() else { break };
            if let Some(interval) = self.on_message(message) {
                return Some(interval);
            }
        }
        // All that is left are intervals that some thread did not finish, and the rest after the last one.
        self.open.pop_first().map(|(_, (_, interval))| interval)
    }

    /// Returns the result. Call it when there are no more intervals.
    pub(crate) fn finish(mut self) -> RunOutcome {
        while self.next_interval().is_some() {}
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                // The panic was printed. The thread's counts since its last interval are lost, so the run must not
                // pass.
                self.outcome.unfinished += 1;
            }
        }
        self.outcome.start_time = self.start_time;
        self.outcome
    }

    /// Handles a thread's message. Returns the interval that it completes.
    fn on_message(&mut self, message: Message) -> Option<Interval> {
        let since_start = |end: Nanos| end.saturating_sub(self.counting_start);
        // A thread reports its intervals in order. Its last message contains the rest after its last whole interval.
        let number = message.interval.unwrap_or(u64::MAX);
        let entry = self.open.entry(number).or_default();
        entry.0 += 1;
        entry.1.end_seconds = since_start(message.end) as f64 / 1e9;
        entry.1.record.merge(&message.record);
        entry.1.processor_time += message.processor_time;
        entry.1.spin += message.spin;
        self.outcome.on_message(&message);
        if let Some(summary) = &message.summary {
            self.done += 1;
            let counted = since_start(message.end.min(summary.end).max(self.counting_start));
            self.outcome.duration = self.outcome.duration.max(Duration::from_nanos(counted));
        }
        if entry.0 == self.threads.len() && number != u64::MAX {
            return self.open.remove(&number).map(|(_, interval)| interval);
        }
        None
    }

    /// Ends the run now as if this were its planned end.
    pub(crate) fn end(&self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

impl RunOutcome {
    /// Creates an empty result.
    pub(crate) fn empty() -> Self {
        Self {
            record: IntervalRecord::default(),
            processor_time: ProcessorTime::default(),
            spin: 0,
            start_time: SystemTime::UNIX_EPOCH,
            served_in_time: 0,
            duration: Duration::ZERO,
            lines: Vec::new(),
            tallies: Vec::new(),
            phases: Vec::new(),
            scenarios: ScenarioRecord::default(),
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
            merge_groups(&mut self.phases, &summary.phases);
            self.scenarios.merge(&summary.scenarios);
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

    /// Adds the result of another machine.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.record.merge(&other.record);
        self.processor_time += other.processor_time;
        self.spin += other.spin;
        self.lines.extend_from_slice(&other.lines);
        merge_groups(&mut self.phases, &other.phases);
        self.scenarios.merge(&other.scenarios);
        self.unfinished += other.unfinished;
        self.sources = self.sources.max(other.sources);
        self.port_shortages += other.port_shortages;
        self.descriptor_shortages += other.descriptor_shortages;
        self.served_in_time += other.served_in_time;
        self.duration = self.duration.max(other.duration);
        if other.busiest_thread_share + other.waiting_share > self.busiest_thread_share + self.waiting_share {
            self.busiest_thread_share = other.busiest_thread_share;
            self.waiting_share = other.waiting_share;
        }
    }

    /// Returns the responses served per second.
    pub(crate) fn served_per_second(&self) -> f64 {
        self.served_in_time as f64 / self.duration.as_secs_f64().max(1e-9)
    }
}
