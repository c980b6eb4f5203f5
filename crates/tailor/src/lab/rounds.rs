//! The rounds of a lab: each server in turn, there and back.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::environment::Environment;
use super::model::{Lab, Load, Server};
use super::report::{CompareReport, LoadResult, Measurement, ServerDescription, ServerResult, Step};
use super::server::{Place, free_port, is_installed, start};
use crate::report::BenchReport;
use crate::report::observe::Observed;

/// How often memory is looked at while a load runs.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// A rest between servers, so that what one left behind is done with.
const REST: Duration = Duration::from_millis(300);

/// Runs a lab from start to end.
pub(super) fn run(
    lab: &Lab,
    text: &str,
    duration: Option<Duration>,
    stop: &AtomicBool,
) -> Result<CompareReport, String> {
    let directory = Directory::make()?;
    let (descriptions, servers) = choose(lab);
    if servers.is_empty() {
        return Err("none of the lab's servers is installed".into());
    }
    let values = if lab.sweep.is_empty() { vec![None] } else { lab.sweep.iter().cloned().map(Some).collect() };
    let mut steps = Vec::new();
    for value in values {
        let root = directory.0.join(format!("site-{}", steps.len()));
        crate::site::Kind::parse(&lab.site.replace("@VALUE@", value.as_deref().unwrap_or_default()))?.write(&root)?;
        let mut results: Vec<ServerResult> = servers.iter().map(|(name, _)| ServerResult::new(name)).collect();
        for round in 0..lab.rounds {
            // A B C, then C B A: what drifts meets all of them alike.
            let order: Vec<usize> =
                if round % 2 == 0 { (0..servers.len()).collect() } else { (0..servers.len()).rev().collect() };
            for index in order {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (name, server) = &servers[index];
                let progress = value.as_ref().map_or(String::new(), |value| format!(", {value}"));
                eprintln!("round {} of {}{progress}: {name}", round + 1, lab.rounds);
                let place = Place {
                    port: free_port()?,
                    root: root.clone(),
                    run: directory.0.join(format!("run-{}-{round}-{index}", steps.len())),
                };
                let measurement = measure(lab, server, &place, value.as_deref(), duration)?;
                results[index].measurements.push(measurement);
                std::thread::sleep(REST);
            }
        }
        steps.push(Step { value, servers: results });
    }
    Ok(CompareReport {
        format_version: 1,
        tailor_version: env!("CARGO_PKG_VERSION").to_owned(),
        lab: lab.name.clone(),
        about: lab.about.clone(),
        lab_text: text.to_owned(),
        start_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        duration_seconds: duration.map(|duration| duration.as_secs_f64()),
        environment: Environment::read(),
        servers: descriptions,
        steps,
        interrupted: stop.load(Ordering::Relaxed),
        control: None,
        passed: false,
    }
    .judged())
}

/// The servers that can run, by their name in the report; the first a second time, as the A/A control.
fn choose(lab: &Lab) -> (Vec<ServerDescription>, Vec<(String, Server)>) {
    let mut servers = Vec::new();
    let mut descriptions = Vec::new();
    for server in &lab.servers {
        let missing = server.needs.iter().find(|program| !is_installed(program));
        descriptions.push(ServerDescription {
            name: server.name.clone(),
            version: if missing.is_none() { version(server) } else { String::new() },
            command: server.command.clone(),
            files: server.files.clone(),
            missing: missing.cloned(),
        });
        match missing {
            Some(program) => eprintln!("{}: left out, {program} is not installed", server.name),
            None => servers.push((server.name.clone(), server.clone())),
        }
    }
    if let Some((name, server)) = servers.first().cloned() {
        servers.push((format!("{name} (again)"), server));
    }
    (descriptions, servers)
}

/// The first line of what the version command prints.
fn version(server: &Server) -> String {
    let Some((program, arguments)) = server.version.split_first() else { return String::new() };
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    let Ok(output) = Command::new("env").arg(format!("PATH={path}")).arg(program).args(arguments).output() else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// Starts a server, runs the loads against it, and stops it.
fn measure(
    lab: &Lab,
    server: &Server,
    place: &Place,
    value: Option<&str>,
    duration: Option<Duration>,
) -> Result<Measurement, String> {
    let running = start(server, place, &lab.server_cpus, lab.ready_max)?;
    let observed = running.observed();
    let spawn = |load: &Load| Ok((load.name.clone(), spawn_load(lab, load, place, value, duration, &observed)?));
    let loads: Result<Vec<(String, Child)>, String> = lab.loads.iter().map(spawn).collect();
    let mut measurement = Measurement::default();
    let mut loads = match loads {
        Ok(loads) => loads,
        Err(error) => {
            running.stop();
            return Err(error);
        }
    };
    while loads.iter_mut().any(|(_, child)| matches!(child.try_wait(), Ok(None))) {
        let usage = observed.read();
        measurement.memory_bytes_max = measurement.memory_bytes_max.max(usage.memory_bytes);
        measurement.swap_bytes_max = measurement.swap_bytes_max.max(usage.swap_bytes);
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    running.stop();
    for (name, child) in loads {
        let output = child.wait_with_output().map_err(|error| format!("load {name}: {error}"))?;
        let report: BenchReport = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("load {name}: {}", String::from_utf8_lossy(&output.stderr).trim_end()))?;
        // Each load watched the whole server while it counted; the first is as good as any.
        let server = report.server.clone().unwrap_or_default();
        if measurement.loads.is_empty() {
            (measurement.user_seconds, measurement.system_seconds) = (server.user_seconds, server.system_seconds);
            measurement.counted_seconds = report.duration_seconds;
        }
        measurement.loads.push(LoadResult::new(name, report));
    }
    let served = measurement.loads.iter().map(|load| load.served).sum::<u64>().max(1) as f64;
    measurement.user_micros_per_request = measurement.user_seconds * 1e6 / served;
    measurement.system_micros_per_request = measurement.system_seconds * 1e6 / served;
    Ok(measurement)
}

/// A load is a process of its own, so that its processor time and its limits are its own.
fn spawn_load(
    lab: &Lab,
    load: &Load,
    place: &Place,
    value: Option<&str>,
    duration: Option<Duration>,
    observed: &Observed,
) -> Result<Child, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(executable);
    command.args(["bench", "--quiet", "--json", "-"]).args(observed.watch_arguments());
    if !lab.client_cpus.is_empty() {
        command.args(["--cpus", &lab.client_cpus]);
    }
    let mut arguments: Vec<String> =
        load.arguments.iter().map(|word| place.fill(word).replace("@VALUE@", value.unwrap_or_default())).collect();
    if let Some(duration) = duration {
        replace_duration(&mut arguments, duration);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("load {}: {error}", load.name))
}

/// Puts this duration in the place of the lab's.
fn replace_duration(arguments: &mut Vec<String>, duration: Duration) {
    if let Some(at) = arguments.iter().position(|word| word == "-d" || word == "--duration") {
        arguments.drain(at..(at + 2).min(arguments.len()));
    }
    arguments.extend(["-d".to_owned(), format!("{}s", duration.as_secs_f64())]);
}

/// A directory for the time of a run.
struct Directory(std::path::PathBuf);

impl Directory {
    fn make() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("tailor-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What can't be removed stays in the system's directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_replaced() {
        for (arguments, expect) in
            [(&["-c", "1", "-d", "9s", "u"][..], &["-c", "1", "u", "-d", "2s"][..]), (&["u"], &["u", "-d", "2s"])]
        {
            let mut arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            replace_duration(&mut arguments, Duration::from_secs(2));
            assert_eq!(arguments, expect);
        }
    }
}
