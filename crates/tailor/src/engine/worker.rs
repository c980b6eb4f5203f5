//! Thread of the load generator: one epoll loop for its connections.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::clock::{MILLISECOND, Nanos, RunClock, SECOND, nanos};
use super::connection::{LineUsage, LoadConnection};
use super::groups::GroupRecord;
use super::plan::LoadPlan;
use super::processor_time::{ProcessorTime, thread_nanos};
use super::recorder::IntervalRecord;
use super::scenario::ScenarioRecord;
use super::shared::{Tally, ThreadShared};

/// Maximum number of events per call of epoll.
const EVENTS_MAX: usize = 256;
/// Maximum number of connections to start before the thread looks at the clock and at its events again.
const STARTS_MAX: usize = 64;
/// Interval for checking time limits.
const CHECK_INTERVAL: Nanos = 50 * MILLISECOND;
/// Open loop: time to connect before the first request is due.
const SETTLE: Nanos = 200 * MILLISECOND;
/// Open loop: the thread polls instead of sleeping for a shorter wait, because the kernel might wake it too late.
const SPIN_MAX: Nanos = 60_000;

/// Message of a thread at the end of each interval.
#[derive(Debug)]
pub(crate) struct Message {
    /// Number of the interval; `None` for the final message, with the rest after the last interval.
    pub(crate) interval: Option<u64>,
    /// End of the interval.
    pub(crate) end: Nanos,
    pub(crate) record: IntervalRecord,
    pub(crate) processor_time: ProcessorTime,
    /// CPU time spent polling until a request is due.
    pub(crate) spin: Nanos,
    pub(crate) summary: Option<Summary>,
}

/// Message of a thread at the end of the run.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) lines: Vec<LineUsage>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) phases: Vec<GroupRecord>,
    pub(crate) scenarios: ScenarioRecord,
    /// Requests in flight at the end.
    pub(crate) unfinished: u64,
    pub(crate) sources: usize,
    pub(crate) port_shortages: u64,
    pub(crate) descriptor_shortages: u64,
    /// Time after which no request began.
    pub(crate) end: Nanos,
    /// Responses served during the counted time. The open loop serves some after it.
    pub(crate) served_in_time: u64,
    /// CPU time without polling, as a share of the counted time.
    pub(crate) busy_share: f64,
    /// Time that the thread waited for a CPU, as a share of the counted time.
    pub(crate) waiting_share: f64,
}

/// Common data of all threads of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunContext {
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) clock: RunClock,
    /// Set to stop the run early.
    pub(crate) stop: Arc<AtomicBool>,
    /// Set to end the run now as if this were its planned end: the open loop still waits for what was due.
    pub(crate) end: Arc<AtomicBool>,
    pub(crate) messages: Sender<Message>,
}

impl RunContext {
    /// Returns the start of counting.
    pub(crate) fn counting_start(&self) -> Nanos {
        let is_open = !matches!(self.plan.pace, super::arrivals::ArrivalPace::Closed);
        nanos(self.plan.warm_up) + if is_open { SETTLE } else { 0 }
    }

    /// Returns the time after which no request begins.
    pub(crate) fn counting_end(&self) -> Nanos {
        self.plan.duration.map_or(Nanos::MAX, |duration| self.counting_start().saturating_add(nanos(duration)))
    }
}

/// Thread of the load generator.
pub(crate) struct LoadWorker {
    run: RunContext,
    connections: Vec<LoadConnection>,
    shared: ThreadShared,
    end: Nanos,
    /// Connections to start.
    unstarted: std::ops::Range<usize>,
    /// Next time to check time limits.
    next_check: Nanos,
    /// Next time to start connections or to check time limits.
    next_turn: Nanos,
    next_interval: Nanos,
    intervals: u64,
    is_warm: bool,
    processor_time: ProcessorTime,
    /// CPU time of polling that found nothing to do.
    spin: Nanos,
    /// CPU time of the thread when polling began to find nothing; `None` while there is work.
    spin_from: Option<Nanos>,
    /// Sums over the reported intervals.
    reported: IntervalSums,
}

/// Sums over the intervals that a thread has reported.
#[derive(Debug, Default)]
struct IntervalSums {
    served: u64,
    busy: Nanos,
    waited: Nanos,
    served_in_time: Option<u64>,
}

impl LoadWorker {
    /// Creates the worker of thread `thread`, with its share of the connections and requests.
    pub(crate) fn new(run: RunContext, thread: usize) -> rustix::io::Result<Self> {
        let plan = &run.plan;
        let part = |whole: u64| whole / plan.threads as u64 + u64::from((thread as u64) < whole % plan.threads as u64);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let requests_max = plan.requests_max.map_or(u64::MAX, part);
        let mut shared = ThreadShared::new(plan, run.clock, epoll, thread, requests_max);
        if shared.arrivals.is_open() {
            shared.counted_from = run.counting_start();
        }
        let connections: Vec<LoadConnection> =
            (0..part(plan.connections as u64) as u32).map(|slot| LoadConnection::new(slot, &shared)).collect();
        Ok(Self {
            end: run.counting_end(),
            unstarted: 0..connections.len(),
            next_check: 0,
            next_turn: 0,
            next_interval: run.counting_start(),
            intervals: 0,
            is_warm: false,
            processor_time: ProcessorTime::default(),
            spin: 0,
            spin_from: None,
            reported: IntervalSums::default(),
            connections,
            shared,
            run,
        })
    }

    /// Runs to the end and reports each interval.
    pub(crate) fn run(mut self) {
        self.run_to_end();
        self.finish();
    }

    fn run_to_end(&mut self) {
        if self.shared.arrivals.is_open() {
            // By default the kernel wakes the thread up to 50 us late (timer slack), so it would miss due times.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        }
        self.processor_time = ProcessorTime::of_thread();
        let start = self.run.counting_start() - nanos(self.run.plan.warm_up);
        self.shared.arrivals.start(start, self.end, &mut self.shared.rng);
        // Without a warm-up counting begins here, because a connection may fail immediately.
        self.check(self.shared.clock.now());
        self.schedule_ramp();
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let spin = nanos(self.run.plan.spin);
        let mut awake_until = 0;
        loop {
            let mut now = self.shared.clock.now();
            if now >= self.next_turn || self.is_done(now) {
                self.end_spin();
                if now >= self.next_check || self.is_done(now) {
                    self.check(now);
                }
                if self.is_over(now) {
                    break;
                }
                self.start_connections();
                self.next_turn = if self.unstarted.is_empty() { self.next_check } else { now };
            }
            self.dispatch(now);
            self.run_timers(now);
            let timeout = if now < awake_until { ZERO } else { self.timeout() };
            if timeout != ZERO {
                self.end_spin();
            }
            match epoll::wait(&self.shared.epoll, &mut events, Some(&timeout)) {
                Ok((ready, _)) => {
                    now = self.shared.clock.now();
                    if ready.is_empty() {
                        self.begin_spin();
                    } else {
                        awake_until = now + spin;
                        self.end_spin();
                    }
                    for event in ready.iter() {
                        let (data, flags) = (event.data.u64(), event.flags);
                        let connection = &mut self.connections[data as u32 as usize];
                        if connection.is_current((data >> 32) as u32) {
                            connection.on_event(flags, &mut self.shared, now);
                        }
                        if self.shared.arrivals.is_open() {
                            // Requests that become due meanwhile do not wait for the other events.
                            now = self.shared.clock.now();
                            self.dispatch(now);
                        }
                    }
                }
                Err(Errno::INTR) => {}
                // Only invalid arguments can cause an error here.
                Err(_) => break,
            }
        }
    }

    /// Spreads the starts of all connections over the ramp-up, if there is one.
    fn schedule_ramp(&mut self) {
        let ramp = nanos(self.run.plan.ramp_up);
        if ramp == 0 {
            return;
        }
        let count = self.connections.len() as u64;
        let now = self.shared.clock.now();
        for slot in std::mem::take(&mut self.unstarted) {
            let at = now + ramp * slot as u64 / count;
            self.shared.timers.push(std::cmp::Reverse((at, slot as u32)));
        }
    }

    /// Starts the next connections. Tens of thousands take seconds, and a run must end in time nevertheless.
    fn start_connections(&mut self) {
        let now = self.shared.clock.now();
        for slot in self.unstarted.by_ref().take(STARTS_MAX) {
            self.connections[slot].start(&mut self.shared, now);
        }
    }

    /// Open loop: assigns due requests to idle slots.
    fn dispatch(&mut self, now: Nanos) {
        while self.shared.arrivals.next_due().is_some_and(|due| due <= now) {
            let Some(slot) = self.shared.idle_slots.pop_front() else {
                self.shared.starved_at = now;
                return;
            };
            self.end_spin();
            // Each start gets the current time, because many may start here.
            let now = self.shared.clock.now();
            self.connections[slot as usize].wake(&mut self.shared, now);
        }
    }

    fn run_timers(&mut self, now: Nanos) {
        while let Some(&std::cmp::Reverse((at, slot))) = self.shared.timers.peek() {
            if at > now {
                return;
            }
            self.end_spin();
            self.shared.timers.pop();
            self.connections[slot as usize].on_timer(&mut self.shared, now);
        }
    }

    /// Begins a time of polling without work. Its CPU time is measured, because the time on the clock includes the time
    /// in which other threads had the CPU. Only an empty wait begins it, so a busy thread does not read the CPU time.
    fn begin_spin(&mut self) {
        if self.spin_from.is_none() {
            self.spin_from = Some(thread_nanos());
        }
    }

    fn end_spin(&mut self) {
        if let Some(from) = self.spin_from.take() {
            self.spin += thread_nanos() - from;
        }
    }

    /// Returns how long to wait for events.
    fn timeout(&mut self) -> Timespec {
        let now = self.shared.clock.now();
        let timer = self.shared.timers.peek().map_or(Nanos::MAX, |timer| timer.0.0);
        let mut wait = timer.min(self.next_turn).saturating_sub(now);
        if !self.shared.idle_slots.is_empty()
            && let Some(due) = self.shared.arrivals.next_due()
        {
            let until_due = due.saturating_sub(now);
            // Sleep first, and poll for the last part.
            wait = wait.min(until_due.saturating_sub(SPIN_MAX));
        }
        Timespec { tv_sec: (wait / SECOND) as i64, tv_nsec: (wait % SECOND) as i64 }
    }

    /// Checks time limits and the end of an interval.
    fn check(&mut self, now: Nanos) {
        for connection in &mut self.connections {
            connection.check_time(&mut self.shared, now);
        }
        // First, so that the warm-up is not counted, even if the run was delayed beyond its end.
        if now >= self.next_interval {
            self.end_interval(now);
        }
        if self.run.end.load(Ordering::Relaxed) && now < self.end {
            self.end = now;
            self.shared.arrivals.end(now);
        }
        if now >= self.end && self.reported.served_in_time.is_none() {
            self.reported.served_in_time = Some(self.reported.served + self.shared.record.served);
        }
        self.next_check = (now + CHECK_INTERVAL).min(self.next_interval).min(self.end.max(now + 1));
    }

    /// Returns whether all planned requests are finished.
    fn is_done(&self, now: Nanos) -> bool {
        self.shared.active == 0 && self.shared.arrivals.is_over(now)
    }

    /// Returns whether the run is over. The closed loop ends on time. The open loop waits for all requests that were
    /// due before, so a server that stalls at the end cannot hide it.
    fn is_over(&self, now: Nanos) -> bool {
        let is_cut_off = now >= self.end && !self.shared.arrivals.is_open();
        is_cut_off || self.is_done(now) || self.run.stop.load(Ordering::Relaxed)
    }

    fn end_interval(&mut self, now: Nanos) {
        let is_warm = std::mem::replace(&mut self.is_warm, true);
        self.next_interval += nanos(self.run.plan.interval.max(Duration::from_millis(1)));
        if is_warm {
            self.intervals += 1;
            self.send(Some(self.intervals), now, None);
        } else {
            // Drop the counts of the warm-up. Without a warm-up these are the counts of connecting in advance.
            let mut record = std::mem::take(&mut self.shared.record);
            if !self.run.plan.warm_up.is_zero() {
                record.drop_connections();
            }
            if !self.shared.arrivals.is_open() {
                record.drop_requests();
                if let Some(scenarios) = &mut self.shared.scenarios {
                    scenarios.reset();
                }
            }
            record.drop_bytes();
            self.shared.record = record;
            self.processor_time = ProcessorTime::of_thread();
            self.spin = 0;
            for connection in &mut self.connections {
                connection.take_usage();
            }
        }
    }

    fn send(&mut self, interval: Option<u64>, end: Nanos, summary: Option<Summary>) {
        let used = ProcessorTime::of_thread();
        let processor_time = used.since(self.processor_time);
        self.reported.served += self.shared.record.served;
        self.reported.busy += processor_time.total.saturating_sub(self.spin);
        self.reported.waited += processor_time.waited;
        let message = Message {
            interval,
            end,
            record: std::mem::take(&mut self.shared.record),
            processor_time,
            spin: std::mem::take(&mut self.spin),
            summary,
        };
        self.processor_time = used;
        // If the receiver is gone, the run is being stopped.
        let _ = self.run.messages.send(message);
    }

    fn finish(mut self) {
        self.end_spin();
        let now = self.shared.clock.now();
        if !self.is_warm {
            self.shared.record = IntervalRecord::default();
        }
        let counted = now.saturating_sub(self.run.counting_start()).max(1);
        let used = ProcessorTime::of_thread().since(self.processor_time);
        let busy = self.reported.busy + used.total.saturating_sub(self.spin);
        let scenarios = self.shared.scenarios.take();
        let (scenarios, open_runs) = scenarios.map_or_else(Default::default, |it| (it.record, it.open_runs));
        let summary = Summary {
            served_in_time: self.reported.served_in_time.unwrap_or(self.reported.served + self.shared.record.served),
            end: self.end,
            busy_share: busy as f64 / counted as f64,
            waiting_share: (self.reported.waited + used.waited) as f64 / counted as f64,
            lines: self.connections.iter_mut().map(|connection| connection.finish_usage(now)).collect(),
            tallies: std::mem::take(&mut self.shared.tallies),
            phases: std::mem::take(&mut self.shared.phases),
            scenarios,
            unfinished: self.shared.active - open_runs,
            sources: self.shared.connector.sources(),
            port_shortages: self.shared.connector.port_shortages,
            descriptor_shortages: self.shared.connector.descriptor_shortages,
        };
        for connection in &mut self.connections {
            connection.end(&mut self.shared, now);
        }
        self.send(None, now, Some(summary));
    }
}

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use wire::h2::{EngineTurn, H2Limits, H2Output, H2ServerConnection, Placement, ServerEvent, StreamId};
    use wire::http::{Fields, RequestHead, Status};

    use super::*;
    use crate::engine::{
        ArrivalPace, BodyCheck, ConnectionPersistence, Http2Request, LoadVersion, RequestOrder, ResponseCheck,
        TargetAddress, Workload, WorkloadRequest,
    };

    #[test]
    fn a_warm_request_allocates_nothing() {
        let head = "HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 12:00:0@ GMT\r\n";
        let plain = format!("{head}Content-Length: 10\r\n\r\n0123456789");
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\n012\r\n7;a=b\r\n3456789\r\n0\r\n\r\n");
        let interim = format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{plain}");
        for (name, pace, pipeline, response, piece_bytes) in [
            ("closed loop", ArrivalPace::Closed, 1, &plain, usize::MAX),
            ("pipelined", ArrivalPace::Closed, 8, &plain, usize::MAX),
            ("chunked", ArrivalPace::Closed, 1, &chunked, usize::MAX),
            ("after an interim response", ArrivalPace::Closed, 1, &interim, usize::MAX),
            ("a head in two pieces", ArrivalPace::Closed, 1, &plain, 30),
            ("open loop", ArrivalPace::Constant(20_000.0), 1, &plain, usize::MAX),
        ] {
            let server = |stream| serve(stream, response, piece_bytes);
            let count = |requests| allocations(requests, &pace, pipeline, LoadVersion::Http1, server);
            // The run's other allocations are equal for both, but the first run of the process has additional ones.
            let (_, few, many) = (count(100), count(100), count(600));
            assert_eq!(many, few, "{name}: allocations with and without 500 requests more");
        }
    }

    #[test]
    fn a_warm_request_of_http2_allocates_nothing() {
        for (name, pace, streams) in [
            ("closed loop", ArrivalPace::Closed, 1),
            ("streams side by side", ArrivalPace::Closed, 8),
            ("open loop", ArrivalPace::Constant(20_000.0), 8),
        ] {
            let count = |requests| allocations(requests, &pace, streams, LoadVersion::Http2, serve_http2);
            let (_, few, many) = (count(100), count(100), count(600));
            assert_eq!(many, few, "{name}: allocations with and without 500 requests more");
        }
    }

    /// A client that polls until requests are due, on a CPU that it shares with a busy thread. The time that the busy
    /// thread takes is neither polling nor work.
    #[test]
    fn polling_counts_in_cpu_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = TargetAddress::Tcp(listener.local_addr().unwrap());
        let cpu = *allowed_cpus().last().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let plan = LoadPlan {
            processors: vec![cpu],
            ..plan(address, 100, &ArrivalPace::Constant(200.0), 1, LoadVersion::Http1)
        };
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                serve(
                    listener.accept().unwrap().0,
                    "HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 10\r\n\r\n0123456789",
                    usize::MAX,
                )
            });
            scope.spawn(|| {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                rustix::thread::sched_setaffinity(None, &set).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let outcome = crate::engine::start(plan, Arc::default()).unwrap().finish();
            stop.store(true, Ordering::Relaxed);
            outcome
        });
        let (total, spin) = (outcome.processor_time.total, outcome.spin);
        assert_eq!(outcome.record.served, 100);
        // A request costs some microseconds: two system calls and a wake-up.
        assert!(spin + 100 * 500 < total, "{spin} ns of {total} ns are polling");
        assert!(outcome.busiest_thread_share > 0.0);
    }

    /// A run ends in time although it has not started all of its connections.
    #[test]
    fn more_connections_than_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = TargetAddress::Tcp(listener.local_addr().unwrap());
        let plan = LoadPlan {
            connections: 5_000,
            duration: Some(Duration::from_millis(1)),
            requests_max: None,
            ..plan(address, 1, &ArrivalPace::Closed, 1, LoadVersion::Http1)
        };
        let (messages, _received) = std::sync::mpsc::channel();
        let run = RunContext {
            plan: Arc::new(plan),
            clock: RunClock::start(),
            stop: Arc::default(),
            end: Arc::default(),
            messages,
        };
        let mut worker = LoadWorker::new(run, 0).unwrap();
        worker.run_to_end();
        // No machine connects 5,000 times in a millisecond.
        assert!(!worker.unstarted.is_empty(), "all connections were started");
    }

    fn allowed_cpus() -> Vec<usize> {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
    }

    /// Returns the allocations of a run with `requests` on one connection to a server that runs `serve`.
    fn allocations(
        requests: u64,
        pace: &ArrivalPace,
        pipeline: usize,
        version: LoadVersion,
        serve: impl Fn(TcpStream) + Sync,
    ) -> u64 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = TargetAddress::Tcp(listener.local_addr().unwrap());
        let plan = plan(address, requests, pace, pipeline, version);
        let (messages, received) = std::sync::mpsc::channel();
        let run = RunContext {
            plan: Arc::new(plan),
            clock: RunClock::start(),
            stop: Arc::default(),
            end: Arc::default(),
            messages,
        };
        let worker = LoadWorker::new(run, 0).unwrap();
        let counts = std::thread::scope(|scope| {
            scope.spawn(|| serve(listener.accept().unwrap().0));
            allocation_counter::measure(move || worker.run())
        });
        assert_eq!(received.iter().map(|message| message.record.served).sum::<u64>(), requests);
        counts.count_total
    }

    /// Plan of a run with `requests` on one connection, whose content must be ten digits.
    fn plan(
        address: TargetAddress,
        requests: u64,
        pace: &ArrivalPace,
        pipeline: usize,
        version: LoadVersion,
    ) -> LoadPlan {
        let mut fields = Fields::new();
        fields.push("Host", "localhost");
        let check = ResponseCheck {
            length_bytes: Some(10),
            fields: vec![(b"date".to_vec(), None)],
            body: Some(BodyCheck::bytes(*b"0123456789")),
            ..ResponseCheck::default()
        };
        let http2 = Http2Request::new("GET", false, "/", &fields, b"");
        let request = WorkloadRequest::new("GET", "/", &fields, b"", check).with_http2(http2);
        LoadPlan {
            address,
            tls: None,
            workload: Workload::new([request].into(), RequestOrder::InTurn),
            pace: pace.clone(),
            connections: 1,
            threads: 1,
            processors: Vec::new(),
            scenarios: None,
            web_socket: None,
            duration: None,
            deadline: None,
            requests_max: Some(requests),
            warm_up: Duration::ZERO,
            ramp_up: Duration::ZERO,
            interval: Duration::from_secs(3600),
            spin: Duration::ZERO,
            time_out: Duration::from_secs(60),
            persistence: ConnectionPersistence::default(),
            pipeline,
            version,
            line: None,
            abort: None,
            sources: Vec::new(),
            has_fast_open: false,
            moves_after: None,
            seed: 1,
            is_tallied: false,
        }
    }

    /// Answers each request. The heads differ, as they do when Date changes.
    fn serve(mut stream: TcpStream, response: &str, piece_bytes: usize) {
        stream.set_nodelay(true).unwrap();
        let mut input = vec![0; 64 << 10];
        for number in 0.. {
            let (mut length, mut answers) = (0, Vec::new());
            while !input[..length].ends_with(b"\r\n\r\n") {
                match stream.read(&mut input[length..]).unwrap() {
                    0 => return,
                    read_bytes => length += read_bytes,
                }
            }
            let requests = input[..length].windows(4).filter(|window| window == b"\r\n\r\n").count();
            for request in 0..requests {
                let digit = ((number + request) % 10).to_string();
                answers.extend_from_slice(response.replace('@', &digit).as_bytes());
            }
            let (first, second) = answers.split_at(piece_bytes.min(answers.len()));
            stream.write_all(first).unwrap();
            if !second.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
                stream.write_all(second).unwrap();
            }
        }
    }

    /// Answers each request over HTTP/2, with another date each time.
    fn serve_http2(mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let (limits, now) = (H2Limits::default(), Duration::ZERO);
        let (mut connection, mut output) = (H2ServerConnection::new(now, &limits), H2Output::default());
        let (mut head, mut text, mut input) = (RequestHead::default(), Vec::new(), Vec::new());
        let mut piece = vec![0; 64 << 10];
        connection.start(&mut EngineTurn { now, limits: &limits, output: &mut output });
        for number in 0.. {
            stream.write_all(output.bytes()).unwrap();
            output.clear();
            match stream.read(&mut piece) {
                Ok(length @ 1..) => input.extend_from_slice(&piece[..length]),
                _ => return,
            }
            let mut turn = EngineTurn { now, limits: &limits, output: &mut output };
            let mut at = 0;
            loop {
                text.clear();
                let handled = connection.handle_input(&input[at..], &mut head, &mut text, &mut turn);
                at += handled.consumed_bytes;
                match handled.event {
                    ServerEvent::NeedInput => break,
                    ServerEvent::Request(request) => answer(&mut connection, request.stream, number, &mut turn),
                    _ => {}
                }
            }
            input.drain(..at);
            connection.poll_output(usize::MAX, &mut turn, |_, _, out| {
                out.extend_from_slice(b"0123456789");
                Placement::Copied
            });
        }
    }

    fn answer(connection: &mut H2ServerConnection, stream: StreamId, number: usize, turn: &mut EngineTurn<'_>) {
        let mut fields = Fields::new();
        fields.push("date", format!("Sat, 21 Nov 2026 12:00:0{} GMT", number % 10)).push("server", "test");
        // The client may have cancelled the request.
        let _ = connection.send_response(stream, Status::new(200).unwrap(), &fields, false, turn);
        let _ = connection.offer_content(stream, 10, true, turn);
    }
}
