//! Process 1 of the emulated machine: starts the server, loads it, and prints what both cost.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::system::{RebootCommand, reboot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lab::cgroup::ControlGroup;
use crate::lab::server::{ServerPlacement, launch};

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
/// Pairs of loads: N requests and 2 N.
const PAIRS: usize = 2;

/// Work of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GuestPlan {
    pub(super) backends: Vec<Vec<String>>,
    /// Commands of the server: helpers, and the server itself at the end.
    pub(super) commands: Vec<Vec<String>>,
    /// Unix domain sockets that must accept connections before the load begins.
    pub(super) sockets: Vec<String>,
    pub(super) port: u16,
    pub(super) backend_port: Option<u16>,
    /// Directories of the server's own files and of the site.
    pub(super) run: PathBuf,
    pub(super) root: PathBuf,
    /// Arguments of `tailor bench`.
    pub(super) load: Vec<String>,
    /// Requests of the shorter load.
    pub(super) requests: u64,
    pub(super) processors: Processors,
}

/// Processors of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Processors {
    /// One, which counts all instructions.
    One,
    /// Two: on the second, whose kernel divides time between user space and itself, are server and load.
    Two,
}

impl Processors {
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Self::One => "counts instructions",
            Self::Two => "divides them between user space and kernel",
        }
    }

    /// Processor of server and load.
    fn measured(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Two => "1",
        }
    }
}

/// Report of the machine. Instructions are counted as nanoseconds of its clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct GuestReport {
    /// Version of the running kernel.
    pub kernel: String,
    /// Instructions of the control.
    pub control: u64,
    /// Loads, in the order in which they ran: N requests, 2 N, and so on.
    pub loads: Vec<GuestLoad>,
}

/// A load and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct GuestLoad {
    /// Requests.
    pub requests: u64,
    /// All instructions of the machine.
    pub all: u64,
    /// Instructions of the server in user space.
    pub server_user: u64,
    /// Instructions of the load generator in user space.
    pub client_user: u64,
}

/// Runs as process 1, and switches the machine off at the end.
pub(crate) fn become_guest() -> Result<(), String> {
    match run() {
        Ok(report) => {
            let json = serde_json::to_string(&report).map_err(|error| error.to_string())?;
            println!("\n{REPORT_MARK}{json}");
        }
        Err(reason) => println!("\n{FAILURE_MARK}{}", reason.replace('\n', " | ")),
    }
    if rustix::process::getpid().is_init() {
        reboot(RebootCommand::PowerOff).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn run() -> Result<GuestReport, String> {
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
    let plan: GuestPlan = serde_json::from_str(&text).map_err(|error| format!("{PLAN}: {error}"))?;
    let control = settled_control()?;
    let place = ServerPlacement {
        port: plan.port,
        backend_port: plan.backend_port.unwrap_or_default(),
        tls_port: 0,
        root: plan.root.clone(),
        run: plan.run.clone(),
    };
    let group = |name: &str| ControlGroup::new(name).ok_or("the kernel has no control groups of version 2");
    let (server, client) = (group("server")?, group("client")?);
    let start = |words: &[String], group: &ControlGroup| {
        launch(words, &place, plan.processors.measured(), Some(group)).map_err(|error| format!("{words:?}: {error}"))
    };
    for words in &plan.backends {
        start(words, &client)?;
    }
    for words in &plan.commands {
        start(words, &server)?;
    }
    wait_until_ready(&plan)?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?.display().to_string();
    let load = |requests: u64| -> Result<GuestLoad, String> {
        let options = ["bench", "--quiet", "--no-calibration", "--warm-up", "0s", "--require", "failures=0", "-n"];
        let mut words = vec![program.clone()];
        words.extend(options.map(str::to_owned));
        words.push(requests.to_string());
        words.extend(plan.load.iter().cloned());
        let user = |group: &ControlGroup| group.observed().read().user_micros;
        let before = (Instant::now(), user(&server), user(&client));
        let status = start(&words, &client)?.wait().map_err(|error| error.to_string())?;
        let all = before.0.elapsed().as_nanos() as u64;
        if !status.success() {
            return Err(format!("the load failed: {status}\n{}", output_of(&plan.run)));
        }
        let used = |now: u64, before: u64| (now - before) * 1_000;
        let (server_user, client_user) = (used(user(&server), before.1), used(user(&client), before.2));
        Ok(GuestLoad { requests, all, server_user, client_user })
    };
    // The first fills caches, and is not counted.
    load(plan.requests)?;
    let mut loads = Vec::new();
    for _ in 0..PAIRS {
        loads.push(load(plan.requests)?);
        loads.push(load(2 * plan.requests)?);
    }
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Ok(GuestReport { kernel, control, loads })
}

/// Instructions of the control, once the kernel has no more work from booting: that would count as the load's.
fn settled_control() -> Result<u64, String> {
    let (mut best, mut close) = (u64::MAX, 0);
    for _ in 0..CONTROLS_MAX {
        let took = control();
        let is_close = |took: u64, best: u64| (took as f64) < best as f64 * (1.0 + SETTLED_SHARE);
        close = if is_close(took, best) && is_close(best, took) { close + 1 } else { 0 };
        best = best.min(took);
        if close == SETTLED_COUNT {
            return Ok(best);
        }
    }
    Err("the kernel is never idle after booting".to_owned())
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

fn wait_until_ready(plan: &GuestPlan) -> Result<(), String> {
    let listens = |port: u16| TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok();
    let start = Instant::now();
    while start.elapsed() < READY_MAX {
        let is_ready = plan.sockets.iter().all(|path| UnixStream::connect(path).is_ok())
            && plan.backend_port.is_none_or(listens)
            && listens(plan.port);
        if is_ready {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("the server does not listen: {}", output_of(&plan.run)))
}

/// Output of the server and of the load.
fn output_of(run: &Path) -> String {
    std::fs::read_to_string(run.join("output")).unwrap_or_default()
}

fn call(words: &[&str]) -> Result<(), String> {
    let status = Command::new(words[0]).args(&words[1..]).status();
    match status.map_err(|error| format!("{}: {error}", words[0]))? {
        status if status.success() => Ok(()),
        status => Err(format!("{}: {status}", words.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_settles() {
        // On a machine with other work it may not; then it says so.
        match settled_control() {
            Ok(control) => assert!(control > CONTROL_ITERATIONS / 100, "{control}"),
            Err(reason) => assert!(reason.contains("never idle"), "{reason}"),
        }
    }
}
