//! One measurement: starts a server, runs the loads, and stops the server.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::model::{Lab, LabLoad, LabServer, Program};
use super::report::{LoadReport, Measurement};
use super::server::{RunningServer, ServerPlacement, launch, signal_group, start};
use crate::report::observe::Observed;
use crate::units::parse_duration;

/// Time between two samples of the server's memory while a load runs.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Settings that the measurements of a run share.
pub(super) struct Bench<'a> {
    /// Lab, reduced to the loads and commands that run at this value.
    pub(super) lab: &'a Lab,
    /// Value that replaces `@VALUE@`.
    pub(super) value: Option<&'a str>,
    /// Duration of each load; `None` means the lab's.
    pub(super) duration: Option<Duration>,
    /// Flag that ends the measurement early.
    pub(super) stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Starts a server, runs the loads against it, and stops it.
    pub(super) fn measure(&self, server: &LabServer, place: &ServerPlacement) -> Result<Measurement, String> {
        let running = self.start(server, place)?;
        let measurement = self.load(place, &running.observed());
        running.stop();
        measurement
    }

    /// Runs the lab's `before` commands, and starts a server.
    pub(super) fn start(&self, server: &LabServer, place: &ServerPlacement) -> Result<RunningServer, String> {
        for command in &self.lab.before {
            self.run_before(&command.words, place)?;
        }
        start(server, place, self.lab)
    }

    /// Runs the loads against a server.
    pub(super) fn load(&self, place: &ServerPlacement, observed: &Observed) -> Result<Measurement, String> {
        let beside = Beside::start(self, place)?;
        let mut loads = Vec::new();
        for load in &self.lab.loads {
            match self.spawn(load, place, observed) {
                Ok(child) => loads.push(child),
                Err(error) => {
                    loads.iter().for_each(|child| signal_group(child, Signal::TERM));
                    return Err(error);
                }
            }
        }
        let mut measurement = Measurement::default();
        let mut is_stopped = false;
        while loads.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
            if self.stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_stopped, true) {
                // After SIGTERM, each load reports the requests it measured so far.
                loads.iter().for_each(|child| signal_group(child, Signal::TERM));
            }
            let usage = observed.read();
            measurement.memory_bytes_max = measurement.memory_bytes_max.max(usage.memory_bytes);
            measurement.swap_bytes_max = measurement.swap_bytes_max.max(usage.swap_bytes);
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        drop(beside);
        for (load, child) in self.lab.loads.iter().zip(loads) {
            measurement.add(&load.name, read_report(load, child, place)?);
        }
        Ok(measurement)
    }

    fn run_before(&self, words: &[String], place: &ServerPlacement) -> Result<(), String> {
        let words = self.fill(words, place);
        let (program, arguments) = words.split_first().ok_or("`before` has no command")?;
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim_end())),
        }
    }

    /// Starts a load as a process of its own, with its own CPU time and resource limits. Its report goes to a file,
    /// because a pipe would fill before the load ends.
    fn spawn(&self, load: &LabLoad, place: &ServerPlacement, observed: &Observed) -> Result<Child, String> {
        let error = |error: std::io::Error| format!("load {}: {error}", load.name);
        let mut command = Command::new(std::env::current_exe().map_err(error)?);
        command.args(match load.program {
            Program::Bench => &["bench"][..],
            Program::Web99 => &["web99", "run"],
        });
        command.arg("--quiet").arg("--json").arg(report_path(load, place)).args(observed.watch_arguments());
        if load.program == Program::Bench {
            // Other loads may still run.
            command.arg("--no-calibration");
        }
        if !self.lab.client_cpus.is_empty() {
            command.args(["--cpus", &self.lab.client_cpus]);
        }
        let mut arguments = self.fill(&load.arguments, place);
        if let Some(duration) = self.duration {
            replace_duration(&mut arguments, duration);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0).spawn().map_err(error)
    }

    fn fill(&self, words: &[String], place: &ServerPlacement) -> Vec<String> {
        words.iter().map(|word| place.fill(word).replace("@VALUE@", self.value.unwrap_or_default())).collect()
    }
}

/// Commands that run beside the loads; dropping this value kills them.
struct Beside(Vec<Child>);

impl Beside {
    fn start(bench: &Bench<'_>, place: &ServerPlacement) -> Result<Self, String> {
        let mut beside = Self(Vec::new());
        for command in &bench.lab.beside {
            let words = bench.fill(&command.words, place);
            let child = launch(&words, place, &bench.lab.client_cpus, None);
            beside.0.push(child.map_err(|error| format!("{}: {error}", words.join(" ")))?);
        }
        Ok(beside)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for child in &mut self.0 {
            signal_group(child, Signal::KILL);
            // The child was killed, so this wait ends soon.
            let _ = child.wait();
        }
    }
}

fn report_path(load: &LabLoad, place: &ServerPlacement) -> PathBuf {
    place.run.join(format!("load-{}.json", load.name.replace('/', "-")))
}

fn read_report(load: &LabLoad, child: Child, place: &ServerPlacement) -> Result<LoadReport, String> {
    let output = child.wait_with_output().map_err(|error| format!("load {}: {error}", load.name))?;
    let text = std::fs::read(report_path(load, place)).unwrap_or_default();
    serde_json::from_slice(&text)
        .map_err(|_| format!("load {}: {}", load.name, String::from_utf8_lossy(&output.stderr).trim_end()))
}

/// Minimum number of intervals of a run, so that its plots have enough points.
const INTERVALS_MIN: u32 = 20;

/// Replaces the lab's duration, and shortens its interval if the run would have too few.
fn replace_duration(arguments: &mut Vec<String>, duration: Duration) {
    take_option(arguments, &["-d", "--duration"]);
    arguments.extend(["-d".to_owned(), format!("{}s", duration.as_secs_f64())]);
    let interval = take_option(arguments, &["--interval"]);
    if let Some(interval) = interval.and_then(|text| parse_duration(&text).ok()) {
        let interval = interval.min((duration / INTERVALS_MIN).max(Duration::from_millis(10)));
        arguments.extend(["--interval".to_owned(), format!("{}s", interval.as_secs_f64())]);
    }
}

/// Replaces the value of an option, or adds the option.
pub(super) fn replace_option(arguments: &mut Vec<String>, names: &[&str], value: &str) {
    take_option(arguments, names);
    arguments.extend([names[0].to_owned(), value.to_owned()]);
}

/// Removes an option and its value from the arguments. Returns the value.
fn take_option(arguments: &mut Vec<String>, names: &[&str]) -> Option<String> {
    let at = arguments.iter().position(|word| names.contains(&word.as_str()))?;
    arguments.drain(at..(at + 2).min(arguments.len())).nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_replaced() {
        for (arguments, expect) in [
            (&["-c", "1", "-d", "9s", "u"][..], &["-c", "1", "u", "-d", "2s"][..]),
            (&["u"], &["u", "-d", "2s"]),
            (&["-d", "24h", "--interval", "10s", "u"], &["u", "-d", "2s", "--interval", "0.1s"]),
            (&["--interval", "50ms", "u"], &["u", "-d", "2s", "--interval", "0.05s"]),
        ] {
            let mut arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            replace_duration(&mut arguments, Duration::from_secs(2));
            assert_eq!(arguments, expect);
        }
    }
}
