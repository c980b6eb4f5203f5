//! Process 1 of the machine: starts the server, loads it, and prints what both cost.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::system::{RebootCommand, reboot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::counter::MARK;
use super::timing;
use super::verdict::PrecisionRule;
use crate::lab::cgroup::ControlGroup;
use crate::lab::server::{ServerPlacement, launch};
use crate::programs::call;

/// Path of the plan in the machine.
pub(super) const PLAN: &str = "/plan.json";

/// Begins the line with the report, or with the reason why there is none.
pub(super) const REPORT_MARK: &str = "tailor-guest-report: ";
pub(super) const FAILURE_MARK: &str = "tailor-guest-failure: ";

/// Iterations of the control.
const CONTROL_ITERATIONS: u64 = 20_000_000;
/// Largest difference between the control and its best, as a share, in a machine that has nothing else to do; and the number of
/// controls in a row that must be so close.
const SETTLED_SHARE: f64 = 0.001;
const SETTLED_COUNT: usize = 4;
/// Number of controls after which a machine that never settles ends.
const CONTROLS_MAX: usize = 400;
/// Longest time until the server listens, in the machine's own time.
const READY_MAX: Duration = Duration::from_secs(120);
/// Pause after a load, in the machine's own time, which passes at once. Server and kernel then do what they put off, such as
/// closing connections: it would count for the next load.
const PAUSE: Duration = Duration::from_secs(5);

/// Work of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum GuestTask {
    /// Shows that the machine runs.
    Probe,
    /// Counts instructions.
    Count(CountPlan),
    /// Measures time.
    Time(timing::TimePlan),
}

/// Server and load whose instructions are counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CountPlan {
    pub(super) backends: Vec<Vec<String>>,
    /// Commands of the server: helpers, and the server itself at the end.
    pub(super) commands: Vec<Vec<String>>,
    /// Unix domain sockets that must accept connections before the load begins.
    pub(super) sockets: Vec<String>,
    pub(super) place: ServerPlacement,
    /// Arguments of `tailor bench`.
    pub(super) load: Vec<String>,
    /// Requests of the shorter load.
    pub(super) requests: u64,
    /// Instructions after which no further pair of loads begins.
    pub(super) instructions_max: u64,
}

/// Report of the machine. Instructions are counted as nanoseconds of its clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CountReport {
    /// Version of the running kernel.
    pub(super) kernel: String,
    /// Instructions of the control.
    pub(super) control: u64,
    /// Loads, in the order in which they ran: N requests, 2 N, and so on.
    pub(super) loads: Vec<GuestLoad>,
}

/// A load and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct GuestLoad {
    /// Requests.
    pub requests: u64,
    /// Instructions of the server, with those of the kernel in its place.
    pub server: u64,
    /// Instructions of the load generator, likewise.
    pub client: u64,
    /// Instructions of the whole machine in user space, if the emulator counted them.
    #[serde(default)]
    pub user: Option<u64>,
    /// Instructions of the whole machine in the kernel, likewise.
    #[serde(default)]
    pub kernel: Option<u64>,
}

impl GuestLoad {
    /// Instructions of server and load generator.
    pub(super) fn all(&self) -> u64 {
        self.server + self.client
    }
}

/// Runs as process 1, and switches the machine off at the end.
pub(crate) fn become_guest() -> Result<(), String> {
    match run() {
        Ok(report) => println!("\n{REPORT_MARK}{report}"),
        Err(reason) => println!("\n{FAILURE_MARK}{}", reason.replace('\n', " | ")),
    }
    if rustix::process::getpid().is_init() {
        reboot(RebootCommand::PowerOff).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Does the work. Returns the report as JSON.
fn run() -> Result<String, String> {
    for words in [
        &["mount", "-t", "proc", "proc", "/proc"][..],
        &["mount", "-t", "sysfs", "sysfs", "/sys"],
        &["mount", "-t", "devtmpfs", "devtmpfs", "/dev"],
        &["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"],
        &["ip", "link", "set", "lo", "up"],
    ] {
        call(words)?;
    }
    let text = std::fs::read_to_string(PLAN).map_err(|error| format!("{PLAN}: {error}"))?;
    let task = serde_json::from_str(&text).map_err(|error| format!("{PLAN}: {error}"))?;
    let report = match task {
        GuestTask::Probe => serde_json::to_string(&()),
        GuestTask::Count(plan) => serde_json::to_string(&count(&plan)?),
        GuestTask::Time(plan) => serde_json::to_string(&plan.measure()?),
    };
    report.map_err(|error| error.to_string())
}

fn count(plan: &CountPlan) -> Result<CountReport, String> {
    let control = settled_control()?;
    let group = |name: &str| ControlGroup::new(name).ok_or("the kernel has no control groups of version 2");
    let (server, client) = (group("server")?, group("client")?);
    let start = |words: &[String], group: &ControlGroup| {
        launch(words, &plan.place, "", Some(group)).map_err(|error| format!("{words:?}: {error}"))
    };
    for words in &plan.backends {
        start(words, &client)?;
    }
    for words in &plan.commands {
        start(words, &server)?;
    }
    wait_until_ready(plan)?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?.display().to_string();
    let load = |requests: u64| -> Result<GuestLoad, String> {
        let options = ["bench", "--quiet", "--no-calibration", "--warm-up", "0s", "--require", "failures=0", "-n"];
        let mut words = vec![program.clone()];
        words.extend(options.map(str::to_owned));
        words.push(requests.to_string());
        words.extend(plan.load.iter().cloned());
        let before = (used(&server), used(&client));
        mark();
        let status = start(&words, &client)?.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("the load failed: {status}\n{}", output_of(&plan.place.run)));
        }
        std::thread::sleep(PAUSE);
        mark();
        let (server, client) = (used(&server) - before.0, used(&client) - before.1);
        Ok(GuestLoad { requests, server, client, user: None, kernel: None })
    };
    // The first pair fills caches, and is not counted.
    load(plan.requests)?;
    load(2 * plan.requests)?;
    let mut loads: Vec<GuestLoad> = Vec::new();
    let mut rule = PrecisionRule::default();
    let is_paid = |loads: &[GuestLoad]| loads.iter().map(GuestLoad::all).sum::<u64>() < plan.instructions_max;
    // An interval needs two pairs.
    while loads.len() < 4 || (!rule.is_met() && is_paid(&loads)) {
        loads.push(load(plan.requests)?);
        loads.push(load(2 * plan.requests)?);
        rule.look(&loads);
    }
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Ok(CountReport { kernel, control, loads })
}

/// Makes the emulator write the instructions so far.
fn mark() {
    black_box(MARK);
}

/// Instructions of a control group since it exists: its CPU time in nanoseconds.
fn used(group: &ControlGroup) -> u64 {
    let usage = group.observed().read();
    (usage.user_micros + usage.system_micros) * 1_000
}

/// Instructions of the control, once the kernel has no more work from booting: that would count as the load's.
fn settled_control() -> Result<u64, String> {
    settled(std::iter::repeat_with(control).take(CONTROLS_MAX))
        .ok_or("the kernel is never idle after booting".to_owned())
}

/// Smallest control, once enough in a row are close to it.
fn settled(controls: impl Iterator<Item = u64>) -> Option<u64> {
    let (mut best, mut close) = (u64::MAX, 0);
    for took in controls {
        let is_close = |took: u64, best: u64| (took as f64) < best as f64 * (1.0 + SETTLED_SHARE);
        close = if is_close(took, best) && is_close(best, took) { close + 1 } else { 0 };
        best = best.min(took);
        if close == SETTLED_COUNT {
            return Some(best);
        }
    }
    None
}

/// A loop in user space that has the same instructions on each kernel.
fn control() -> u64 {
    let start = Instant::now();
    let mut sum = 0_u64;
    for number in 0..CONTROL_ITERATIONS {
        sum = black_box(sum ^ number);
    }
    start.elapsed().as_nanos() as u64
}

fn wait_until_ready(plan: &CountPlan) -> Result<(), String> {
    let listens = |port: u16| TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok();
    let start = Instant::now();
    while start.elapsed() < READY_MAX {
        let is_ready = plan.sockets.iter().all(|path| UnixStream::connect(path).is_ok())
            && (plan.backends.is_empty() || listens(plan.place.backend_port))
            && listens(plan.place.port);
        if is_ready {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("the server does not listen: {}", output_of(&plan.place.run)))
}

/// Output of the server and of the load.
fn output_of(run: &Path) -> String {
    std::fs::read_to_string(run.join("output")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_settle_when_the_kernel_is_idle() {
        let settled = |controls: &[u64]| settled(controls.iter().copied());
        assert_eq!(settled(&[150_000, 130_000, 100_000, 100_010, 100_000, 99_990, 100_005]), Some(99_990));
        // Work that comes back begins the count again, and so does a shorter control.
        assert_eq!(settled(&[100_000, 100_000, 100_000, 101_000, 100_000, 100_000]), None);
        assert_eq!(settled(&[100_000, 100_000, 99_000, 99_000, 99_000, 99_000, 99_000]), Some(99_000));
        assert_eq!(settled(&[]), None);
    }

    #[test]
    fn the_control_counts() {
        assert!(control() > CONTROL_ITERATIONS / 100);
    }
}
