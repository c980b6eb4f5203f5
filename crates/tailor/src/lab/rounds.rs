//! Rounds of a lab: each server in turn, in alternating order.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::environment::Environment;
use super::measure::Bench;
use super::model::{Lab, LabServer, SearchRange};
use super::report::{CompareReport, SearchResult, ServerDescription, ServerResult, SweepStep, Try};
use super::server::{RunningServer, ServerPlacement, free_port, installed_name};
use super::vary::VariedSetting;
use crate::search::Search;

/// Pause between servers, so that the next one is not measured with the cleanup of the last.
const REST: Duration = Duration::from_millis(300);

/// Runs a lab.
pub(super) fn run(
    lab: &Lab,
    text: &str,
    (duration, vary): (Option<Duration>, Option<&VariedSetting>),
    directory: &RunDirectory,
    stop: &AtomicBool,
) -> Result<CompareReport, String> {
    let (descriptions, servers) = choose(lab, vary)?;
    if servers.is_empty() {
        return Err("none of the lab's servers is installed".into());
    }
    let rounds = Rounds { lab, servers: &servers, directory: &directory.0, duration, stop };
    let (steps, searches) = match lab.search {
        Some(range) => (Vec::new(), rounds.search(range)?),
        None => (rounds.sweep()?, Vec::new()),
    };
    let mut report = CompareReport::of_lab(lab, text, duration, stop);
    (report.servers, report.steps, report.searches) = (descriptions, steps, searches);
    Ok(report.judged())
}

impl CompareReport {
    /// Report of a lab that has ended, without its measurements.
    pub(super) fn of_lab(lab: &Lab, text: &str, duration: Option<Duration>, stop: &AtomicBool) -> Self {
        Self {
            format_version: 1,
            tailor_version: env!("CARGO_PKG_VERSION").to_owned(),
            lab: lab.name.clone(),
            about: lab.about.clone(),
            lab_text: text.to_owned(),
            start_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            duration_seconds: duration.map(|duration| duration.as_secs_f64()),
            environment: Environment::read(),
            servers: Vec::new(),
            steps: Vec::new(),
            searches: Vec::new(),
            search_precision: lab.search.map(|range| range.precision),
            is_endurance: lab.is_endurance,
            is_emulated: false,
            interrupted: stop.load(Ordering::Relaxed),
            control: None,
            control_margin: lab.control_margin,
            passed: false,
        }
    }
}

/// Settings that all rounds share.
struct Rounds<'a> {
    lab: &'a Lab,
    /// Servers by their name in the report.
    servers: &'a [(String, LabServer)],
    directory: &'a Path,
    duration: Option<Duration>,
    stop: &'a AtomicBool,
}

impl Rounds<'_> {
    /// Measures all servers at each value of the sweep.
    fn sweep(&self) -> Result<Vec<SweepStep>, String> {
        let sweep = &self.lab.sweep;
        let values = if sweep.is_empty() { vec![None] } else { sweep.iter().cloned().map(Some).collect() };
        let mut steps: Vec<SweepStep> = Vec::new();
        let mut site = None;
        for value in values {
            let lab = self.lab.at(value.as_deref());
            let root = self.make_site(&lab, value.as_deref().unwrap_or_default(), &mut site)?;
            let mut results: Vec<ServerResult> = self.servers.iter().map(|(name, _)| ServerResult::new(name)).collect();
            let bench = Bench { lab: &lab, value: value.as_deref(), duration: self.duration, stop: self.stop };
            for round in 0..lab.rounds {
                let progress = value.as_ref().map_or(String::new(), |value| format!(", {value}"));
                let progress = format!("round {} of {}{progress}", round + 1, lab.rounds);
                let names = format!("run-{}-{round}", steps.len());
                match lab.turns {
                    1 => self.round(&bench, &root, round, (&progress, &names), &mut results)?,
                    _ => self.round_of_turns(&bench, &root, round, (&progress, &names), &mut results)?,
                }
            }
            steps.push(SweepStep { value, servers: results, control: None });
        }
        Ok(steps)
    }

    /// Starts, loads and stops each server in turn. `names` has the name in the progress lines, and the prefix of
    /// directories.
    fn round(
        &self,
        bench: &Bench<'_>,
        root: &Path,
        round: usize,
        names: (&str, &str),
        results: &mut [ServerResult],
    ) -> Result<(), String> {
        for index in self.order(round) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            eprintln!("{}: {}", names.0, self.servers[index].0);
            let place = self.place(root, &format!("{}-{index}", names.1))?;
            let _settings = self.servers[index].1.apply_settings()?;
            results[index].measurements.push(bench.measure(&self.servers[index].1, &place)?);
            std::thread::sleep(REST);
        }
        Ok(())
    }

    /// Starts all servers, loads them in turns, and stops them.
    fn round_of_turns(
        &self,
        bench: &Bench<'_>,
        root: &Path,
        round: usize,
        names: (&str, &str),
        results: &mut [ServerResult],
    ) -> Result<(), String> {
        let mut running = Vec::new();
        let result = self
            .servers
            .iter()
            .enumerate()
            .try_for_each(|(index, (_, server))| {
                let place = self.place(root, &format!("{}-{index}", names.1))?;
                running.push((bench.start(server, &place)?, place));
                Ok(())
            })
            .and_then(|()| self.take_turns(bench, &running, round, names.0, results));
        running.into_iter().for_each(|(running, _)| running.stop());
        result
    }

    fn take_turns(
        &self,
        bench: &Bench<'_>,
        running: &[(RunningServer, ServerPlacement)],
        round: usize,
        progress: &str,
        results: &mut [ServerResult],
    ) -> Result<(), String> {
        // Turn 0 fills caches and is not counted.
        for turn in 0..=self.lab.turns {
            eprintln!("{progress}: turn {turn} of {}", self.lab.turns);
            let mut measurements = Vec::new();
            // Turn 0 does not count. With an odd number of turns, the next round begins in the other order.
            for index in self.order(round * self.lab.turns + turn) {
                if self.stop.load(Ordering::Relaxed) {
                    // Only whole turns are compared.
                    return Ok(());
                }
                let (running, place) = &running[index];
                measurements.push((index, bench.load(place, &running.observed())?));
            }
            let empty = measurements.iter().find(|(_, it)| it.is_empty());
            if let Some((index, _)) = empty {
                // Its time per request would be 0, and only whole turns are compared.
                eprintln!("{progress}: turn {turn} skipped: {} got too little CPU time", self.servers[*index].0);
            } else if turn > 0 {
                measurements.into_iter().for_each(|(index, it)| results[index].measurements.push(it));
            }
        }
        Ok(())
    }

    /// Searches the highest value at which the loads pass, for each server and round.
    fn search(&self, range: SearchRange) -> Result<Vec<SearchResult>, String> {
        let root = self.make_site(self.lab, &range.to.to_string(), &mut None)?;
        let mut results: Vec<SearchResult> = self.servers.iter().map(|(name, _)| SearchResult::new(name)).collect();
        for round in 0..self.lab.rounds {
            for index in self.order(round) {
                let (name, server) = &self.servers[index];
                let mut search = Search::new(range.from, range.to, range.precision);
                let mut tries = Vec::new();
                while let Some(number) = search.next().filter(|_| !self.stop.load(Ordering::Relaxed)) {
                    let value = number.to_string();
                    let bench = Bench { lab: self.lab, value: Some(&value), duration: self.duration, stop: self.stop };
                    let place = self.place(&root, &format!("run-{round}-{index}-{}", tries.len()))?;
                    let _settings = server.apply_settings()?;
                    let measurement = bench.measure(server, &place)?;
                    let has_passed = measurement.loads.iter().all(|load| load.passed);
                    eprintln!("{name}: {number}: {}", if has_passed { "passed" } else { "not passed" });
                    search.on_tried(number, has_passed);
                    tries.push(Try { value: number, has_passed, measurement });
                    std::thread::sleep(REST);
                }
                let result = &mut results[index];
                if search.next().is_none() {
                    let end = search.end();
                    result.best.push(end.best.unwrap_or(0));
                    result.low.push(end.low);
                    result.high.push(end.high);
                }
                result.tries.extend(tries);
            }
        }
        Ok(results)
    }

    fn order(&self, round: usize) -> Vec<usize> {
        order(self.servers.len(), round)
    }

    /// Creates the site for a value, unless it equals the last one.
    fn make_site(&self, lab: &Lab, value: &str, last: &mut Option<(String, PathBuf)>) -> Result<PathBuf, String> {
        let kind = lab.site.replace("@VALUE@", value);
        if let Some((_, root)) = last.as_ref().filter(|(last, _)| *last == kind) {
            return Ok(root.clone());
        }
        if let Some((_, root)) = last.take() {
            // Remove the last site, because several large file sets could fill the disk.
            let _ = std::fs::remove_dir_all(root);
        }
        let root = self.directory.join(format!("site-{}", kind.replace([':', ','], "-")));
        crate::site::SiteKind::parse(&kind)?.write(&root)?;
        // Otherwise the kernel would write the site during the first measurement: minutes, for a large one.
        std::fs::File::open(&root)
            .and_then(|directory| Ok(rustix::fs::syncfs(directory)?))
            .map_err(|error| format!("cannot write {} to the disk: {error}", root.display()))?;
        *last = Some((kind, root.clone()));
        Ok(root)
    }

    fn place(&self, root: &Path, name: &str) -> Result<ServerPlacement, String> {
        let run = self.directory.join(name);
        let (port, backend_port, tls_port) = (free_port()?, free_port()?, free_port()?);
        Ok(ServerPlacement { port, backend_port, tls_port, root: root.to_owned(), run })
    }
}

/// Alternates the order, A B C then C B A, so that drift of the machine affects all servers equally.
pub(super) fn order(count: usize, round: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..count).collect(),
        _ => (0..count).rev().collect(),
    }
}

/// Descriptions of all servers, and those that can run by their name in the report.
pub(super) type ChosenServers = (Vec<ServerDescription>, Vec<(String, LabServer)>);

/// Servers that can run, by their name in the report. The first is repeated at the end as the A/A control.
pub(super) fn choose(lab: &Lab, vary: Option<&VariedSetting>) -> Result<ChosenServers, String> {
    let mut servers = Vec::new();
    let mut descriptions = Vec::new();
    for server in &varied(lab, vary)? {
        descriptions.push(describe(server));
        match descriptions.last().and_then(|it| it.missing.as_ref()) {
            Some(program) => eprintln!("{}: skipped, {program} is not installed", server.name),
            None => servers.push((server.name.clone(), server.clone())),
        }
    }
    // In an endurance test the control would double the time, and would run on another day.
    if let Some((name, server)) = servers.first().cloned().filter(|_| !lab.is_endurance) {
        servers.push((format!("{name} (again)"), server));
    }
    Ok((descriptions, servers))
}

/// Server and its settings, as the report names them.
pub(super) fn describe(server: &LabServer) -> ServerDescription {
    let missing = server.needs.iter().find(|names| installed_name(names).is_none());
    ServerDescription {
        name: server.name.clone(),
        version: if missing.is_none() { version(server) } else { String::new() },
        command: installed_command(&server.command),
        helpers: server.helpers.iter().map(|words| installed_command(words)).collect(),
        backends: server.backends.iter().map(|words| installed_command(words)).collect(),
        files: server.files.clone(),
        missing: missing.cloned(),
    }
}

/// Servers of a lab, with each value of the varied setting.
fn varied(lab: &Lab, vary: Option<&VariedSetting>) -> Result<Vec<LabServer>, String> {
    let Some(vary) = vary else { return Ok(lab.servers.clone()) };
    let mut variants = Vec::new();
    for server in lab.servers.iter().filter(|server| server.needs.iter().all(|it| installed_name(it).is_some())) {
        // Before `env` stands before it, the program must have the name under which it is installed.
        let server = LabServer { command: installed_command(&server.command), ..server.clone() };
        variants.extend(vary.servers(&server)?);
    }
    Ok(variants)
}

/// The command with the installed one of its program's alternative names.
fn installed_command(words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    if let Some(program) = words.first_mut() {
        *program = installed_name(program).unwrap_or(program).to_owned();
    }
    words
}

/// First line of the version command's output.
fn version(server: &LabServer) -> String {
    let Some((names, arguments)) = server.version.split_first() else { return String::new() };
    let program = installed_name(names).unwrap_or(names);
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    let Ok(output) = Command::new("env").arg(format!("PATH={path}")).arg(program).args(arguments).output() else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// Temporary directory of a run; dropping it removes the directory.
pub(super) struct RunDirectory(PathBuf);

impl RunDirectory {
    pub(super) fn make() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("tailor-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // A directory that cannot be removed stays in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
