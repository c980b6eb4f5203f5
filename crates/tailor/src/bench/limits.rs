//! Limits of the client itself, which make a result say less about the server.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::engine::{LoadPlan, RunOutcome, TargetAddress};

/// Share of a CPU from which a client thread counts as the limit.
const BUSY_SHARE_MAX: f64 = 0.9;
/// Share of the port range in TIME_WAIT from which ports will soon run out.
const PORT_SHARE_MAX: f64 = 0.8;
/// Share of its speed from which a network interface counts as the limit.
const BANDWIDTH_SHARE_MAX: f64 = 0.8;
/// Quantile of the start delays that [`LAG_MAX_NANOS`] bounds.
const LAG_QUANTILE: f64 = 0.99;
/// Maximum delay of a request's start in an open loop.
const LAG_MAX_NANOS: u64 = 100_000;

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
    /// Network interfaces that the load may use, with their speed in Mbit/s; empty for a loopback address.
    interfaces: Vec<(String, u64)>,
}

impl Machine {
    pub(super) fn read(plan: &LoadPlan) -> Self {
        let interfaces = if is_loopback(plan) { Vec::new() } else { interfaces() };
        Self { time_wait: time_wait_sockets(), ports: local_ports(), interfaces }
    }

    /// Describes each limit that the client reached. `self` was read before the run, `now` after it.
    pub(super) fn limits(&self, now: &Self, plan: &LoadPlan, outcome: &RunOutcome) -> Vec<String> {
        let mut limits = Vec::new();
        if outcome.busiest_thread_share + outcome.waiting_share > BUSY_SHARE_MAX {
            limits.push(format!(
                "CPU: a client thread was {:.0} % busy and waited {:.0} % of the time for a CPU; the server may be faster than this result (use more -t, or another machine)",
                outcome.busiest_thread_share * 100.0,
                outcome.waiting_share * 100.0
            ));
        }
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
            limits.push(format!("ports: none was free {} times{cause}; {spread}", outcome.port_shortages));
        } else if matches!(plan.address, TargetAddress::Tcp(_)) {
            let time_wait = now.time_wait.saturating_sub(self.time_wait);
            let ports = now.ports * outcome.sources as u64;
            if time_wait as f64 > ports as f64 * PORT_SHARE_MAX {
                limits.push(format!("ports: the run left {time_wait} of {ports} ports in TIME_WAIT"));
            }
        }
        if outcome.descriptor_shortages > 0 {
            limits.push(format!(
                "file descriptors: none was free {} times (raise `ulimit -n`)",
                outcome.descriptor_shortages
            ));
        }
        limits.extend(self.bandwidth(outcome));
        let lag = &outcome.record.lag;
        if !lag.is_empty() && lag.value_at_quantile(LAG_QUANTILE) > LAG_MAX_NANOS {
            let waited_share = outcome.record.waited as f64 / lag.len() as f64;
            let cause = match waited_share > 1.0 - LAG_QUANTILE {
                true => format!("{:.1} % of the requests found no free connection: use more -c", waited_share * 100.0),
                false => "the client was too slow, or got too little CPU time".into(),
            };
            limits.push(format!(
                "send times: p99 of the delay is {1}, more than {0} ({cause}); latency counts from the scheduled time",
                crate::units::format_nanos(LAG_MAX_NANOS),
                crate::units::format_nanos(lag.value_at_quantile(LAG_QUANTILE))
            ));
        }
        limits
    }

    fn bandwidth(&self, outcome: &RunOutcome) -> Option<String> {
        let carried = outcome.record.bytes_received.max(outcome.record.bytes_sent) as f64;
        let bits_per_second = carried * 8.0 / outcome.duration.as_secs_f64().max(1e-9);
        let (name, speed) = self.interfaces.iter().max_by_key(|(_, speed)| *speed)?;
        let speed = *speed as f64 * 1e6;
        (bits_per_second > speed * BANDWIDTH_SHARE_MAX).then(|| {
            format!(
                "bandwidth: {:.0} Mbit/s of payload, on an interface ({name}) of {:.0} Mbit/s",
                bits_per_second / 1e6,
                speed / 1e6
            )
        })
    }
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

/// Network interfaces whose speed is known, in Mbit/s.
fn interfaces() -> Vec<(String, u64)> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let speed = |entry: std::fs::DirEntry| {
        let speed = std::fs::read_to_string(entry.path().join("speed")).ok()?.trim().parse().ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), speed))
    };
    entries.flatten().filter_map(speed).filter(|(_, speed)| *speed > 0).collect()
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

    fn plan(url: &str) -> LoadPlan {
        plan::make(&<Command as clap::Parser>::parse_from(["bench", url]).options).unwrap()
    }

    /// Checks the limits that a run reports after `change`, on a machine of 100 ports and 100 Mbit/s.
    fn check(change: impl FnOnce(&mut Machine, &mut RunOutcome), expect: &[&str]) {
        let machine = || Machine { time_wait: 5, ports: 100, interfaces: vec![("eth0".into(), 100)] };
        let mut outcome = RunOutcome { duration: std::time::Duration::from_secs(1), sources: 1, ..RunOutcome::empty() };
        let mut now = machine();
        change(&mut now, &mut outcome);
        let limits = machine().limits(&now, &plan("http://192.0.2.1/"), &outcome);
        assert_eq!(limits.len(), expect.len(), "{limits:?}");
        for (limit, expect) in limits.iter().zip(expect) {
            assert!(limit.starts_with(expect), "{limit}");
        }
    }

    #[test]
    fn limits() {
        check(|_, _| {}, &[]);
        check(|_, outcome| outcome.busiest_thread_share = 0.89, &[]);
        check(|_, outcome| outcome.busiest_thread_share = 0.95, &["CPU: a client thread was 95 % busy"]);
        check(|_, outcome| (outcome.busiest_thread_share, outcome.waiting_share) = (0.4, 0.55), &["CPU: "]);
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
        check(late(20, 0), &[&format!("{text} (the client was too slow")]);
        check(late(20, 20), &[&format!("{text} (2.0 % of the requests found no free connection")]);
    }
}
