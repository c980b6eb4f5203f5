//! Limits of a run: the client, its kernel, the line, or the server. All but the last make a result say less about the
//! server.

use rustix::process::{Resource, getrlimit, setrlimit};

use super::SharedLine;
use super::null_server::Calibration;
use crate::engine::{LineUsage, LoadPlan, RunOutcome, TargetAddress};
use crate::report::{Limit, LimitedBy};
use crate::units::{format_bits, format_nanos, format_rate};

/// Share of a CPU from which a client thread counts as the limit.
const BUSY_SHARE_MAX: f64 = 0.9;
/// Share of the port range in TIME_WAIT from which ports will soon run out.
const PORT_SHARE_MAX: f64 = 0.8;
/// Share of its speed from which a network interface counts as the limit.
const BANDWIDTH_SHARE_MAX: f64 = 0.8;
/// Quantile of the start delays that [`LAG_MAX_NANOS`] bounds.
pub(super) const LAG_QUANTILE: f64 = 0.99;
/// Maximum delay of a request's start in an open loop.
const LAG_MAX_NANOS: u64 = 100_000;
/// Minimum number of requests for a verdict on their start delays.
const LAG_COUNT_MIN: u64 = 100;
/// Share of a CPU from which a client thread counts as slow, if requests start late even on a server that answers at once.
const SLOW_SHARE_MIN: f64 = 0.5;
/// Share of its rate from which a simulated line counts as full.
const LINE_SHARE_MIN: f64 = 0.9;

/// Raises the soft limit of file descriptors to the hard limit.
pub(super) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the run reports when file descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// State of the machine that can limit the client.
#[derive(Debug)]
pub(super) struct Machine {
    /// Number of sockets in TIME_WAIT.
    time_wait: u64,
    /// Number of ports that the kernel may give to connections.
    ports: u64,
    /// Network interfaces that the load may use, with their speeds in bits per second to the client and to the server; empty for a
    /// loopback address.
    interfaces: Vec<(String, [u64; 2])>,
}

impl Machine {
    pub(super) fn read(plan: &LoadPlan, line: Option<SharedLine>) -> Self {
        let interfaces = match line {
            Some(line) => vec![("the shared line".to_owned(), line.rates().map(|rate| rate.unwrap_or(u64::MAX)))],
            None if is_loopback(plan) => Vec::new(),
            None => interfaces(),
        };
        Self { time_wait: time_wait_sockets(), ports: local_ports(), interfaces }
    }

    /// Describes each limit that the run reached. `self` was read before the run, `now` after it. `calibrate` loads a
    /// server that answers at once; it runs only if the result depends on it.
    pub(super) fn limits(
        &self,
        now: &Self,
        plan: &LoadPlan,
        outcome: &RunOutcome,
        calibrate: impl FnOnce() -> Option<Calibration>,
    ) -> Vec<Limit> {
        let mut limits: Vec<Limit> = Vec::new();
        let is_busy = outcome.busiest_thread_share + outcome.waiting_share > BUSY_SHARE_MAX;
        let late = late_starts(outcome);
        let has_full_slots = late.is_some_and(|late| late.waited_share > 1.0 - LAG_QUANTILE);
        let calibration = if is_busy || (late.is_some() && !has_full_slots) { calibrate() } else { None };
        if is_busy {
            limits.push(busy_thread(outcome, calibration));
        }
        limits.extend(self.ports(now, plan, outcome));
        if outcome.descriptor_shortages > 0 {
            let text =
                format!("file descriptors: none was free {} times (raise `ulimit -n`)", outcome.descriptor_shortages);
            limits.push(Limit { by: LimitedBy::Kernel, text });
        }
        limits.extend(self.bandwidth(outcome));
        match late {
            Some(late) if has_full_slots => limits.push(full_slots(late, plan, outcome, is_busy)),
            // The busy thread explains it.
            Some(late) if !is_busy => limits.push(late_client(late, outcome, calibration)),
            _ => {}
        }
        limits
    }

    fn ports(&self, now: &Self, plan: &LoadPlan, outcome: &RunOutcome) -> Option<Limit> {
        let by = LimitedBy::Kernel;
        if outcome.port_shortages > 0 {
            let spread = match outcome.sources {
                1 => "no other source address is available".into(),
                count => format!("{count} source addresses are in use"),
            };
            // One source address has enough ports for all connections that are open at a time.
            let cause = if plan.connections as u64 <= now.ports {
                " because closed connections hold them in TIME_WAIT"
            } else {
                ""
            };
            let text = format!("ports: none was free {} times{cause}; {spread}", outcome.port_shortages);
            return Some(Limit { by, text });
        }
        let time_wait = now.time_wait.saturating_sub(self.time_wait);
        let ports = now.ports * outcome.sources as u64;
        let is_short =
            matches!(plan.address, TargetAddress::Tcp(_)) && time_wait as f64 > ports as f64 * PORT_SHARE_MAX;
        is_short.then(|| Limit { by, text: format!("ports: the run left {time_wait} of {ports} ports in TIME_WAIT") })
    }

    fn bandwidth(&self, outcome: &RunOutcome) -> Option<Limit> {
        let (name, speeds) = self.interfaces.iter().max_by_key(|(_, speeds)| *speeds)?;
        let carried = [outcome.record.bytes_received, outcome.record.bytes_sent];
        let rates = carried.map(|bytes| bytes as f64 * 8.0 / outcome.duration.as_secs_f64().max(1e-9));
        let mut full = rates.into_iter().zip(speeds.map(|speed| speed as f64));
        let (rate, speed) = full.find(|(rate, speed)| *rate > speed * BANDWIDTH_SHARE_MAX)?;
        let [rate, speed] = [rate, speed].map(format_bits);
        Some(Limit {
            by: LimitedBy::Line,
            text: format!("bandwidth: {rate} of payload, on an interface ({name}) of {speed}"),
        })
    }
}

/// Requests of an open loop that started too late.
#[derive(Clone, Copy, Debug)]
struct LateStarts {
    /// 99th percentile of the delay.
    lag_nanos: u64,
    /// Share of the requests that found no free connection.
    waited_share: f64,
}

impl LateStarts {
    fn text(self) -> String {
        let [bound, lag] = [LAG_MAX_NANOS, self.lag_nanos].map(format_nanos);
        format!("send times: p99 of the delay is {lag}, more than {bound}; latency counts from the scheduled time")
    }
}

/// Returns the late starts; `None` if requests started in time, or were too few to say.
fn late_starts(outcome: &RunOutcome) -> Option<LateStarts> {
    let lag = &outcome.record.lag;
    let lag_nanos = lag.value_at_quantile(LAG_QUANTILE);
    let is_late = lag.len() >= LAG_COUNT_MIN && lag_nanos > LAG_MAX_NANOS;
    is_late.then(|| LateStarts { lag_nanos, waited_share: outcome.record.waited as f64 / lag.len() as f64 })
}

/// Limit of a thread that had no CPU time left.
fn busy_thread(outcome: &RunOutcome, calibration: Option<Calibration>) -> Limit {
    // If the thread waited more than it ran, other processes took its CPU.
    let (by, advice) = match outcome.waiting_share > outcome.busiest_thread_share {
        true => (LimitedBy::Kernel, "give the client CPUs of its own with --cpus"),
        false => (LimitedBy::Client, "use more -t, or another machine"),
    };
    let null = calibration.map_or(String::new(), |calibration| {
        format!("; against a server that answers at once it reached {}/s", format_rate(calibration.served_per_second))
    });
    let text = format!(
        "CPU: a client thread was {:.0} % busy and waited {:.0} % of the time for a CPU{null}; the server may be faster than this result ({advice})",
        outcome.busiest_thread_share * 100.0,
        outcome.waiting_share * 100.0
    );
    Limit { by, text }
}

/// Limit of an open loop whose connections were all in use.
fn full_slots(late: LateStarts, plan: &LoadPlan, outcome: &RunOutcome, is_busy: bool) -> Limit {
    let slots = plan.connections * if plan.version.has_streams() { plan.pipeline } else { 1 };
    let (by, cause) = match () {
        () if is_busy => (LimitedBy::Client, "because the client was too slow to use them"),
        () if has_full_lines(plan, outcome) => (LimitedBy::Line, "while responses came over the simulated lines"),
        () => (LimitedBy::Server, "while responses were missing"),
    };
    let text = format!(
        "{:.1} % of the requests found no free connection: all {slots} were in use {cause}; the client was {:.0} % busy; {}",
        late.waited_share * 100.0,
        outcome.busiest_thread_share * 100.0,
        late.text()
    );
    Limit { by, text }
}

/// Returns whether simulated lines explain why all connections were in use: most lines carried their rate, or their
/// latency is most of the response time.
fn has_full_lines(plan: &LoadPlan, outcome: &RunOutcome) -> bool {
    let Some(line) = plan.line else { return false };
    let is_full = |usage: &&LineUsage| {
        let rate = usage.bytes as f64 * 8e9 / usage.busy.max(1) as f64;
        line.receive_bits_per_second.is_some_and(|bits| rate >= bits as f64 * LINE_SHARE_MIN)
    };
    let full = outcome.lines.iter().filter(is_full).count();
    full * 2 > outcome.lines.len() || line.latency * 2 > outcome.record.service.value_at_quantile(0.5)
}

/// Limit of an open loop whose requests started late although connections were free.
fn late_client(late: LateStarts, outcome: &RunOutcome, calibration: Option<Calibration>) -> Limit {
    let busy = format!("the client was {:.0} % busy", outcome.busiest_thread_share * 100.0);
    let (by, cause) = match calibration {
        Some(calibration) if calibration.lag_nanos > LAG_MAX_NANOS => {
            let null = format!(
                "{busy}; against a server that answers at once the delay is {}",
                format_nanos(calibration.lag_nanos)
            );
            match outcome.busiest_thread_share > SLOW_SHARE_MIN {
                true => (LimitedBy::Client, null),
                false => (LimitedBy::Kernel, format!("{null}, so the kernel wakes the client late")),
            }
        }
        Some(_) => (
            LimitedBy::Kernel,
            format!(
                "{busy}; against a server that answers at once it was in time, so the server or other processes took its CPU"
            ),
        ),
        None if outcome.busiest_thread_share > SLOW_SHARE_MIN => (LimitedBy::Client, busy),
        None => (LimitedBy::Kernel, format!("{busy}, so the kernel woke it late or gave its CPU to others")),
    };
    Limit { by, text: format!("{} ({cause})", late.text()) }
}

fn is_loopback(plan: &LoadPlan) -> bool {
    match &plan.address {
        TargetAddress::Tcp(address) => address.ip().is_loopback(),
        TargetAddress::Unix(_) => true,
    }
}

/// Number of sockets in TIME_WAIT, as /proc/net/sockstat gives it.
fn time_wait_sockets() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let mut words = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default().split(' ');
    words.find(|word| *word == "tw").and_then(|_| words.next()?.parse().ok()).unwrap_or(0)
}

/// Number of ports that the kernel may give to connections.
fn local_ports() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let (low, high) = (bounds.next().unwrap_or(32_768), bounds.next().unwrap_or(60_999));
    high.saturating_sub(low) + 1
}

/// Network interfaces whose speed is known.
fn interfaces() -> Vec<(String, [u64; 2])> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let speed = |entry: std::fs::DirEntry| {
        // In Mbit/s.
        let speed: u64 = std::fs::read_to_string(entry.path().join("speed")).ok()?.trim().parse().ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), [speed * 1_000_000; 2]))
    };
    entries.flatten().filter_map(speed).filter(|(_, speeds)| speeds[0] > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{LoadOptions, plan};

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        options: LoadOptions,
    }

    fn plan(words: &str) -> LoadPlan {
        let words = std::iter::once("bench").chain(words.split(' '));
        plan::make(&<Command as clap::Parser>::parse_from(words).options).unwrap()
    }

    /// Checks the limits that a run reports after `change`, on a machine of 100 ports and 100 Mbit/s.
    fn check(change: impl FnOnce(&mut Machine, &mut RunOutcome), expect: &[&str]) {
        check_calibrated("http://192.0.2.1/", None, change, expect);
    }

    /// Checks the limits of a run that `words` describe. The calibration gives the same rate and this delay.
    fn check_calibrated(
        words: &str,
        null_lag_nanos: Option<u64>,
        change: impl FnOnce(&mut Machine, &mut RunOutcome),
        expect: &[&str],
    ) {
        let machine = || Machine { time_wait: 5, ports: 100, interfaces: vec![("eth0".into(), [100_000_000; 2])] };
        let mut outcome = RunOutcome { duration: std::time::Duration::from_secs(1), sources: 1, ..RunOutcome::empty() };
        let mut now = machine();
        change(&mut now, &mut outcome);
        let calibration = null_lag_nanos.map(|lag_nanos| Calibration { served_per_second: 5e4, lag_nanos });
        let limits = machine().limits(&now, &plan(words), &outcome, || calibration);
        assert_eq!(limits.len(), expect.len(), "{limits:?}");
        for (limit, expect) in limits.iter().map(Limit::sentence).zip(expect) {
            assert!(expect.split('*').all(|part| limit.contains(part)), "{limit}\n{expect}");
        }
    }

    #[test]
    fn limits() {
        check(|_, _| {}, &[]);
        check(|_, outcome| outcome.busiest_thread_share = 0.89, &[]);
        check(
            |_, outcome| outcome.busiest_thread_share = 0.95,
            &["THE CLIENT WAS THE LIMIT: CPU: a client thread was 95 % busy"],
        );
        check(
            |_, outcome| (outcome.busiest_thread_share, outcome.waiting_share) = (0.4, 0.55),
            &["THE CLIENT'S KERNEL WAS THE LIMIT: CPU: *waited 55 % of the time for a CPU;*--cpus"],
        );
        // The plan has 64 connections.
        check(
            |now, outcome| (now.ports, outcome.port_shortages) = (63, 3),
            &["ports: none was free 3 times; no other source"],
        );
        check(
            |now, outcome| (now.ports, outcome.port_shortages, outcome.sources) = (64, 3, 4),
            &[
                "ports: none was free 3 times because closed connections hold them in TIME_WAIT; 4 source addresses are in use",
            ],
        );
        check(
            |now, outcome| (now.time_wait, outcome.port_shortages) = (90, 1),
            &["ports: none was free 1 times because closed connections hold them in TIME_WAIT; no other source"],
        );
        check(|now, _| now.time_wait = 84, &[]);
        check(|now, _| now.time_wait = 90, &["ports: the run left 85 of 100 ports in TIME_WAIT"]);
        check(|now, outcome| (now.time_wait, outcome.sources) = (90, 2), &[]);
        check(|_, outcome| outcome.descriptor_shortages = 1, &["file descriptors"]);
        check(|_, outcome| outcome.record.bytes_received = 9_000_000, &[]);
        check(|_, outcome| outcome.record.bytes_received = 11_000_000, &["bandwidth: 88 Mbit/s"]);
        check(|_, outcome| outcome.record.bytes_sent = 11_000_000, &["bandwidth: 88 Mbit/s"]);
        let late = |late: u64, waited: u64| {
            move |_: &mut Machine, outcome: &mut RunOutcome| {
                outcome.record.lag.record_n(1_000, 1_000 - late).unwrap();
                outcome.record.lag.record_n(1_000_000, late).unwrap();
                outcome.record.waited = waited;
            }
        };
        check(late(9, 9), &[]);
        let text = "send times: p99 of the delay is 1.00 ms, more than 100 us";
        check(late(20, 0), &[&format!("THE CLIENT'S KERNEL WAS THE LIMIT: {text}*0 % busy, so the kernel")]);
        let too_few = |_: &mut Machine, outcome: &mut RunOutcome| outcome.record.lag.record_n(1_000_000, 99).unwrap();
        check(too_few, &[]);
    }

    /// If all connections are in use and the client is idle, the server is the limit, or the lines are.
    #[test]
    fn limits_of_full_connections() {
        let full = |busy: f64, service_nanos: u64, line_bytes: u64| {
            move |_: &mut Machine, outcome: &mut RunOutcome| {
                outcome.record.lag.record_n(1_000_000, 1_000).unwrap();
                outcome.record.service.record_n(service_nanos, 1_000).unwrap();
                outcome.record.waited = 700;
                outcome.busiest_thread_share = busy;
                outcome.lines = vec![LineUsage { bytes: line_bytes, busy: 1_000_000_000, received_bytes: line_bytes }];
            }
        };
        let text = "70.0 % of the requests found no free connection: all 64 were in use *; the client was 3 % busy";
        let url = "http://192.0.2.1/";
        for (words, service_nanos, line_bytes, by) in [
            (url, 1_000_000, 0, "the server was the limit: "),
            ("http://192.0.2.1/ --line 8k", 1_000_000, 950, "THE LINE WAS THE LIMIT: "),
            ("http://192.0.2.1/ --line 8k", 1_000_000, 500, "the server was the limit: "),
            ("http://192.0.2.1/ --line -,latency=60ms", 100_000_000, 0, "THE LINE WAS THE LIMIT: "),
            ("http://192.0.2.1/ --line -,latency=60ms", 900_000_000, 0, "the server was the limit: "),
        ] {
            check_calibrated(words, None, full(0.03, service_nanos, line_bytes), &[&format!("{by}{text}")]);
        }
        check(full(0.95, 1_000_000, 0), &["THE CLIENT WAS THE LIMIT: CPU", "THE CLIENT WAS THE LIMIT: 70.0 %"]);
    }

    /// A load on a server that answers at once shows whether the client can keep its times.
    #[test]
    fn calibrated_limits() {
        let late = |busy: f64| {
            move |_: &mut Machine, outcome: &mut RunOutcome| {
                outcome.record.lag.record_n(1_000_000, 1_000).unwrap();
                outcome.busiest_thread_share = busy;
            }
        };
        for (null_lag_nanos, busy, expect) in [
            (500_000, 0.7, "THE CLIENT WAS THE LIMIT: send times*answers at once the delay is 500 us"),
            (500_000, 0.1, "THE CLIENT'S KERNEL WAS THE LIMIT: send times*so the kernel wakes the client late"),
            (50_000, 0.7, "THE CLIENT'S KERNEL WAS THE LIMIT: send times*it was in time, so the server or other"),
            (500_000, 0.95, "THE CLIENT WAS THE LIMIT: CPU*answers at once it reached 50,000/s"),
        ] {
            check_calibrated("http://192.0.2.1/", Some(null_lag_nanos), late(busy), &[expect]);
        }
    }
}
