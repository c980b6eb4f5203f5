//! A worker in virtual time: requests arrive, wait for their pass, and are served or shed.

use std::collections::VecDeque;

use super::*;

const SECOND_US: u64 = 1_000_000;

/// Cost of shedding a request, in microseconds.
const SHED_US: u64 = 50;

/// Arrival rates: from this second on, this many requests per second.
type Phases = &'static [(u64, u64)];

/// Worker whose only work is requests of one class.
struct OverloadTestWorker {
    overload: Rc<Overload>,
    cost: RequestCost,
    service_us: u64,
    now_us: u64,
    next_tick_us: u64,
    /// Arrival time of each waiting request.
    queue: VecDeque<u64>,
    arrivals: PhasedArrivals,
    served: Vec<Served>,
    shed: Vec<u64>,
    /// Highest and lowest level in each second.
    levels: Vec<(u64, u64)>,
}

struct Served {
    came_us: u64,
    latency_us: u64,
}

/// Source of requests at the rates of `phases`.
struct PhasedArrivals {
    phases: Phases,
    next_us: u64,
}

impl PhasedArrivals {
    fn rate(&self, at_us: u64) -> u64 {
        let phase = self.phases.iter().rev().find(|(from_s, _)| from_s * SECOND_US <= at_us);
        phase.map_or(0, |(_, rate)| *rate)
    }
}

impl OverloadTestWorker {
    fn new(lag_max_ms: u64, cost: RequestCost, service_us: u64, phases: Phases) -> Self {
        let limits = OverloadLimits {
            lag_max: Duration::from_millis(lag_max_ms),
            tls_handshake_timeout: Duration::from_secs(10),
        };
        let shared = Arc::new(SharedOverload::new(ServerLog::stderr(LogLevel::Error)));
        let overload = Overload::new(0, limits, shared, None);
        overload.resume(0);
        Self {
            overload,
            cost,
            service_us,
            now_us: 0,
            next_tick_us: TICK_MS * 1_000,
            queue: VecDeque::new(),
            arrivals: PhasedArrivals { phases, next_us: 0 },
            served: Vec::new(),
            shed: Vec::new(),
            levels: Vec::new(),
        }
    }

    fn run(&mut self, seconds: u64) {
        while self.now_us < seconds * SECOND_US {
            // All requests that have arrived by now form one pass.
            self.overload.on_look(true);
            for _ in 0..self.queue.len() {
                let Some(came_us) = self.queue.pop_front() else { break };
                if self.overload.sheds(self.cost) {
                    self.pass_time(SHED_US);
                    self.shed.push(came_us);
                } else {
                    self.pass_time(self.service_us);
                    self.served.push(Served { came_us, latency_us: self.now_us - came_us });
                }
            }
            if self.queue.is_empty() {
                self.overload.on_sleep();
                self.pass_time(1_000);
            }
        }
    }

    fn pass_time(&mut self, time_us: u64) {
        self.now_us += time_us;
        while self.arrivals.next_us <= self.now_us {
            let at_us = self.arrivals.next_us;
            match self.arrivals.rate(at_us) {
                0 => self.arrivals.next_us += 1_000,
                rate => {
                    self.queue.push_back(at_us);
                    self.arrivals.next_us += SECOND_US / rate;
                }
            }
        }
        if self.now_us >= self.next_tick_us {
            self.tick();
        }
    }

    fn tick(&mut self) {
        // Behaves like a timer that restarts when it fires.
        self.next_tick_us = self.now_us + TICK_MS * 1_000;
        self.overload.on_tick(self.now_us / 1_000, HandshakeLoad::default(), false);
        let level = self.overload.report().level_permille;
        let second = (self.now_us / SECOND_US) as usize;
        self.levels.resize(second + 1, (u64::MAX, 0));
        let of_second = &mut self.levels[second];
        *of_second = (of_second.0.min(level), of_second.1.max(level));
    }

    /// Number of requests that arrived in these seconds and were served, and their p99 latency.
    fn served_in(&self, seconds: std::ops::Range<u64>) -> (u64, u64) {
        let came = |served: &&Served| seconds.contains(&(served.came_us / SECOND_US));
        let mut latencies: Vec<_> = self.served.iter().filter(came).map(|served| served.latency_us / 1_000).collect();
        latencies.sort_unstable();
        let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
        (latencies.len() as u64, p99)
    }

    /// Second in which the first request was shed.
    fn first_shed_s(&self) -> Option<u64> {
        self.shed.first().map(|came_us| came_us / SECOND_US)
    }
}

#[test]
fn a_busy_worker_does_not_shed() {
    const CASES: [(&str, u64, Phases); 5] = [
        ("half load", 1_000, &[(0, 500)]),
        ("nearly full", 1_000, &[(0, 990)]),
        ("a short peak of twice the capacity", 1_000, &[(0, 500), (5, 2_000), (6, 500)]),
        ("requests of 50 ms", 50_000, &[(0, 19)]),
        ("a debug build", 20_000, &[(0, 49)]),
    ];
    for (name, service_us, phases) in CASES {
        let mut worker = OverloadTestWorker::new(1_000, RequestCost::Upstream, service_us, phases);
        worker.run(30);
        assert_eq!(worker.shed.len(), 0, "{name}");
    }
}

#[test]
fn a_burst_that_drains_is_served_whole() {
    let mut worker = OverloadTestWorker::new(1_000, RequestCost::Upstream, 1_000, &[(0, 100)]);
    worker.run(5);
    // Nearly two seconds of work at once.
    let now_us = worker.now_us;
    worker.queue.extend(std::iter::repeat_n(now_us, 1_800));
    worker.run(30);
    assert_eq!(worker.shed.len(), 0);
}

/// All clients of a restarted server return at once: 5 s of handshakes, which complete in time.
#[test]
fn handshakes_that_drain_are_all_done() {
    let worker = OverloadTestWorker::new(1_000, RequestCost::Handshake, 1_000, &[]);
    for tick in 1..=60_u32 {
        let waiting = 5_000_u32.saturating_sub(tick * 100);
        worker.overload.on_tick(u64::from(tick) * TICK_MS, HandshakeLoad { begun: 100, waiting }, false);
        assert!(!worker.overload.sheds(RequestCost::Handshake), "{waiting} wait");
    }
}

#[test]
fn handshakes_that_wait_too_long_are_shed_and_requests_are_not() {
    let worker = OverloadTestWorker::new(1_000, RequestCost::Handshake, 1_000, &[]);
    // 2,000 arrive per second; the worker can do 1,000.
    let (mut waiting, mut shed, mut worst) = (0, 0, 0);
    for tick in 1..=600_u64 {
        for _ in 0..200 {
            let is_shed = worker.overload.sheds(RequestCost::Handshake);
            shed += u32::from(is_shed);
            waiting += u32::from(!is_shed);
        }
        let begun = waiting.min(100);
        waiting -= begun;
        worst = worst.max(waiting);
        worker.overload.on_tick(tick * TICK_MS, HandshakeLoad { begun, waiting }, false);
        assert!(!worker.overload.sheds(RequestCost::Program) && !worker.overload.sheds(RequestCost::Upstream));
        assert!(tick < 300 || begun == 100, "as many as can be");
    }
    // A quarter of their 10 s would be 2,500.
    assert!((50_000..65_000).contains(&shed) && worst < 6_000, "{shed} shed, at worst {worst} waited");
}

#[test]
fn a_process_that_was_stopped_does_not_shed() {
    let mut worker = OverloadTestWorker::new(1_000, RequestCost::Upstream, 1_000, &[(0, 500)]);
    for _ in 0..5 {
        let until = worker.now_us / SECOND_US + 2;
        worker.run(until);
        // Stands for a debugger, a closed laptop, or a migrated virtual machine.
        worker.pass_time(3 * SECOND_US);
        worker.run(until + 8);
    }
    assert_eq!(worker.shed.len(), 0);
}

#[test]
fn clients_that_wait_for_their_answers_are_not_shed() {
    // 1,000 connections, each with one request of 0.5 ms at a time.
    let mut worker = OverloadTestWorker::new(1_000, RequestCost::Upstream, 500, &[]);
    worker.queue.extend(std::iter::repeat_n(0, 1_000));
    let mut answered = 0;
    while worker.now_us < 30 * SECOND_US {
        worker.overload.on_look(true);
        for _ in 0..worker.queue.len() {
            worker.queue.pop_front();
            assert!(!worker.overload.sheds(worker.cost));
            worker.pass_time(worker.service_us);
            worker.queue.push_back(worker.now_us);
            answered += 1;
        }
    }
    assert!(answered > 59_000);
}

/// Twice the capacity and more for a minute: the worker serves what it can in bounded time, and recovers within a
/// second.
#[test]
fn a_standing_lag_sheds_what_is_too_much() {
    const CASES: [(u64, Phases); 4] = [
        (1_000, &[(0, 500), (10, 1_500), (70, 500)]),
        (1_000, &[(0, 500), (10, 2_000), (70, 500)]),
        (500, &[(0, 500), (10, 2_000), (70, 500)]),
        (1_000, &[(0, 500), (10, 8_000), (70, 500)]),
    ];
    for (lag_max_ms, phases) in CASES {
        for cost in [RequestCost::Program, RequestCost::Upstream] {
            let mut worker = OverloadTestWorker::new(lag_max_ms, cost, 1_000, phases);
            worker.run(100);
            let name = format!("{} a second, lag-max {lag_max_ms} ms, {cost:?}", phases[1].1);
            let first_s = worker.first_shed_s().unwrap();
            assert!((10..10 + 6).contains(&first_s), "{name}: sheds from {first_s} s");
            let of_shedding = (phases[1].1 * SHED_US * 60) / 1_000;
            let (served, p99_ms) = worker.served_in(10..70);
            assert!(served + of_shedding >= 60_000 * 9 / 10, "{name}: {served} served");
            assert!(p99_ms <= 4 * lag_max_ms, "{name}: p99 {p99_ms} ms");
            // The level does not oscillate: something is shed all the time.
            assert!(worker.levels[40..70].iter().all(|(lowest, _)| *lowest > 1_000), "{name}: {:?}", worker.levels);
            let (served, p99_ms) = worker.served_in(72..100);
            assert!(served == 28 * 500 && p99_ms < lag_max_ms, "{name}: {served} served after, p99 {p99_ms} ms");
        }
    }
}

/// While clients exceed the memory limit, everything that may hold more is shed; once they don't, nothing is.
#[test]
fn memory_sheds_for_as_long_as_it_is_out() {
    let worker = OverloadTestWorker::new(1_000, RequestCost::Upstream, 1_000, &[]);
    let overload = &worker.overload;
    let shed = |of: RequestCost| (0..1_024).filter(|_| overload.sheds(of)).count();
    for (now_ms, is_out, expect) in
        [(100, false, [0, 0, 0]), (200, true, [1_008, 1_024, 1_024]), (300, false, [0, 0, 0])]
    {
        overload.on_tick(now_ms, HandshakeLoad::default(), is_out);
        assert_eq!(
            [RequestCost::Handshake, RequestCost::Program, RequestCost::Upstream].map(shed),
            expect,
            "at {now_ms} ms"
        );
        assert_eq!(overload.report().reason, is_out.then_some(ShedReason::Memory));
    }
}

/// A poll that leaves connections for the next one does not end a pass.
#[test]
fn a_pass_of_several_looks_is_one_pass() {
    let worker = OverloadTestWorker::new(1_000, RequestCost::Upstream, 1_000, &[]);
    let overload = &worker.overload;
    let tick = |now_ms: u64| {
        overload.on_tick(now_ms, HandshakeLoad::default(), false);
        overload.report().lag_ms
    };
    assert_eq!(tick(100), 0, "asleep");
    overload.on_look(false);
    assert_eq!([tick(200), tick(300)], [100, 200], "what the pass has taken so far");
    overload.on_look(true);
    overload.on_look(true);
    assert_eq!(tick(400), 0, "the shortest pass counts");
    overload.on_sleep();
    assert_eq!([tick(500), tick(600)], [0, 0]);
}

#[test]
fn programs_are_shed_before_upstreams() {
    let worker = OverloadTestWorker::new(1_000, RequestCost::Program, 1_000, &[]);
    let (mut programs, mut upstreams) = (0, 0);
    for tick in 1..=30 {
        // Each tick is 1.3 s late.
        worker.overload.on_tick(tick * (TICK_MS + 1_300), HandshakeLoad::default(), false);
        for _ in 0..100 {
            programs += u32::from(worker.overload.sheds(RequestCost::Program));
            upstreams += u32::from(worker.overload.sheds(RequestCost::Upstream));
        }
    }
    assert!(programs > 0 && upstreams == 0, "{programs} and {upstreams} were shed");
}
