//! Whether the client itself was the limit.

use crate::engine::{Address, Outcome, Plan};

/// A thread that is busier than this is the limit.
const BUSY_SHARE_MAX: f64 = 0.9;
/// More ports in TIME_WAIT than this share of the range are a limit soon.
const PORT_SHARE_MAX: f64 = 0.8;
/// A network interface that carries more than this share of its speed is the limit.
const BANDWIDTH_SHARE_MAX: f64 = 0.8;
/// The share of requests that may start later than [`LAG_MAX_NANOS`].
const LAG_QUANTILE: f64 = 0.99;
/// Open loop: how late a request may start.
const LAG_MAX_NANOS: u64 = 100_000;

/// The state of the machine before the run.
#[derive(Debug)]
pub(super) struct Before {
    time_wait: u64,
    interfaces: Vec<(String, u64)>,
}

impl Before {
    pub(super) fn read(plan: &Plan) -> Self {
        Self { time_wait: time_wait_sockets(), interfaces: if is_loopback(plan) { Vec::new() } else { interfaces() } }
    }

    /// What the client ran short of in the run, as sentences.
    pub(super) fn compare(&self, plan: &Plan, outcome: &Outcome) -> Vec<String> {
        let mut limits = Vec::new();
        if outcome.busiest_thread_share > BUSY_SHARE_MAX {
            limits.push(format!(
                "processor: a thread of the client was {:.0} % busy; the server may be faster than this shows (more -t, or another machine)",
                outcome.busiest_thread_share * 100.0
            ));
        }
        if outcome.port_shortages > 0 {
            let spread = match outcome.sources {
                1 => "no further source address to take them from".into(),
                count => format!("{count} source addresses were used"),
            };
            limits.push(format!("ports: none was left {} times; {spread}", outcome.port_shortages));
        }
        let time_wait = time_wait_sockets().saturating_sub(self.time_wait);
        let ports = local_ports() * outcome.sources as u64;
        if matches!(plan.address, Address::Tcp(_)) && time_wait as f64 > ports as f64 * PORT_SHARE_MAX {
            limits.push(format!("ports: the run left {time_wait} connections in TIME_WAIT, of {ports} ports"));
        }
        if outcome.descriptor_shortages > 0 {
            limits.push(format!("descriptors: none was left {} times (ulimit -n)", outcome.descriptor_shortages));
        }
        limits.extend(self.bandwidth(outcome));
        let lag = &outcome.record.lag;
        if !lag.is_empty() && lag.value_at_quantile(LAG_QUANTILE) > LAG_MAX_NANOS {
            let waited_share = outcome.record.waited as f64 / lag.len() as f64;
            let cause = match waited_share > 1.0 - LAG_QUANTILE {
                true => format!("{:.1} % of the requests found no free connection: more -c", waited_share * 100.0),
                false => "the client was too slow, or did not get its processor".into(),
            };
            limits.push(format!(
                "send times: not kept within {} at the 99th percentile but within {} ({cause}); latency counts from the time due",
                crate::units::format_nanos(LAG_MAX_NANOS),
                crate::units::format_nanos(lag.value_at_quantile(LAG_QUANTILE))
            ));
        }
        limits
    }

    fn bandwidth(&self, outcome: &Outcome) -> Option<String> {
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

fn is_loopback(plan: &Plan) -> bool {
    match &plan.address {
        Address::Tcp(address) => address.ip().is_loopback(),
        Address::Unix(_) => true,
    }
}

/// Sockets in TIME_WAIT, as /proc/net/sockstat has them.
fn time_wait_sockets() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let mut words = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default().split(' ');
    words.find(|word| *word == "tw").and_then(|_| words.next()?.parse().ok()).unwrap_or(0)
}

/// Ports that a connection may be given.
fn local_ports() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let (low, high) = (bounds.next().unwrap_or(32_768), bounds.next().unwrap_or(60_999));
    high.saturating_sub(low) + 1
}

/// Network interfaces that tell their speed, in Mbit/s.
fn interfaces() -> Vec<(String, u64)> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let speed = |entry: std::fs::DirEntry| {
        let speed = std::fs::read_to_string(entry.path().join("speed")).ok()?.trim().parse().ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), speed))
    };
    entries.flatten().filter_map(speed).filter(|(_, speed)| *speed > 0).collect()
}
