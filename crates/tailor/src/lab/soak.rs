//! `tailor soak`: servers side by side under load for hours, in pieces. Each piece is recorded, and a run that was
//! interrupted goes on where it stopped.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::measure::{Bench, replace_option};
use super::model::{Lab, LabServer};
use super::page::{facts_table, html_table, write_table};
use super::report::{CompareReport, LabLoadResult, Measurement, ServerDescription, ServerResult, SweepStep};
use super::server::{RunningServer, ServerPlacement, free_port};
use super::{endurance, model, rounds};
use crate::end::ProgramEnd;
use crate::report::html::document;
use crate::report::plot::escape;
use crate::report::{IntervalReport, write_to};
use crate::statistics::{Slope, slope};
use crate::units::{format_count, format_date};

/// Version of the records' format.
const FORMAT_VERSION: u32 = 1;
/// Share of the requests after each start that are left out of the memory's growth: caches and pools fill.
const WARM_SHARE: f64 = 0.1;

/// Options of `tailor soak`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// Directory of the records and the report; a directory with records continues its run
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Duration of the whole run
    #[arg(long, value_name = "TIME", default_value = "90m", value_parser = crate::units::parse_duration)]
    pub duration: Duration,
    /// Duration of a piece, after which the results are recorded
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = crate::units::parse_duration)]
    pub piece: Duration,
    /// Servers that run side by side
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "tailcoat,nginx")]
    pub servers: Vec<String>,
    /// Requests per second for each server [default: the lab's]
    #[arg(short = 'R', long, value_name = "N", value_parser = crate::units::parse_count)]
    pub rate: Option<u64>,
    /// Lab file with the load [default: the lab soak]
    #[arg(long, value_name = "FILE")]
    pub lab: Option<String>,
}

/// Settings of a run, recorded at its start.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct SoakRecord {
    format_version: u32,
    tailor_version: String,
    lab_text: String,
    rate: Option<u64>,
    start_unix_seconds: f64,
    environment: Environment,
    servers: Vec<ServerDescription>,
}

/// Results of a piece.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct SoakPiece {
    /// Number of the start of the servers: memory does not continue over it.
    start: u32,
    start_unix_seconds: f64,
    /// Results by server.
    measurements: Vec<Measurement>,
}

/// Runs the pieces that are missing, and writes the report.
///
/// # Errors
/// The run is impossible: the message gives the reason.
pub(crate) fn run(options: &SoakOptions) -> Result<ProgramEnd, String> {
    let directory = &options.directory;
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    super::cgroup::remove_left_groups();
    let lab_name = options.lab.as_deref().unwrap_or("soak");
    let known = Records::read(directory)?;
    let text = match &known.record {
        Some(record) => record.lab_text.clone(),
        None => super::lab_text(lab_name)?,
    };
    let rate = known.record.as_ref().map_or(options.rate, |record| record.rate);
    let mut lab = model::parse(&text, &super::peers()?)?;
    super::select_servers(&mut lab, &options.servers)?;
    if let Some(rate) = rate {
        for load in &mut lab.loads {
            replace_option(&mut load.arguments, &["-R", "--rate"], &rate.to_string());
        }
    }
    let (servers, chosen) = rounds::choose(&Lab { is_endurance: true, ..lab.clone() }, None)?;
    if chosen.is_empty() {
        return Err("none of the servers is installed".to_owned());
    }
    let record = SoakRecord {
        format_version: FORMAT_VERSION,
        tailor_version: env!("CARGO_PKG_VERSION").to_owned(),
        lab_text: text,
        rate,
        start_unix_seconds: now(),
        environment: Environment::read(),
        servers,
    };
    let mut records = known.or_new(directory, record)?;
    let stop = crate::end::stop_on_signals()?;
    let run = SoakRun { options, lab: &lab, chosen: &chosen, stop: &stop };
    let result = if records.missing(options.duration).is_zero() { Ok(()) } else { run.pieces(&mut records) };
    let text = records.to_text();
    write_to(&directory.join("report.html"), &records.to_html())?;
    crate::output::print(&text)?;
    result?;
    Ok(match (stop.load(Ordering::Relaxed), records.has_failures()) {
        (true, _) => ProgramEnd::Interrupted,
        (false, true) => ProgramEnd::Failed,
        (false, false) => ProgramEnd::Passed,
    })
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

struct SoakRun<'a> {
    options: &'a SoakOptions,
    lab: &'a Lab,
    chosen: &'a [(String, LabServer)],
    stop: &'a AtomicBool,
}

impl SoakRun<'_> {
    /// Starts the servers, and runs pieces until the duration is reached or a signal comes.
    fn pieces(&self, records: &mut Records) -> Result<(), String> {
        let directory = std::path::absolute(&self.options.directory).map_err(|error| error.to_string())?;
        let start = records.pieces.last().map_or(0, |piece| piece.start + 1);
        let root = directory.join("site");
        crate::site::SiteKind::parse(&self.lab.site)?.write(&root)?;
        let bench = Bench { lab: self.lab, value: None, duration: None, stop: self.stop };
        let mut running: Vec<(RunningServer, ServerPlacement)> = Vec::new();
        let result = self.chosen.iter().enumerate().try_for_each(|(index, (_, server))| {
            let run = directory.join(format!("run-{start}-{index}"));
            let (port, backend_port, tls_port) = (free_port()?, free_port()?, free_port()?);
            let place = ServerPlacement { port, backend_port, tls_port, root: root.clone(), run };
            running.push((bench.start(server, &place)?, place));
            Ok(())
        });
        let result = result.and_then(|()| self.run_pieces(&running, start, records));
        running.into_iter().for_each(|(running, _)| running.stop());
        result
    }

    fn run_pieces(
        &self,
        running: &[(RunningServer, ServerPlacement)],
        start: u32,
        records: &mut Records,
    ) -> Result<(), String> {
        while !self.stop.load(Ordering::Relaxed) {
            let missing = records.missing(self.options.duration);
            if missing.is_zero() {
                break;
            }
            let duration = missing.min(self.options.piece);
            let bench = Bench { lab: self.lab, value: None, duration: Some(duration), stop: self.stop };
            let start_unix_seconds = now();
            // All servers are loaded at the same time, so the machine is the same for all.
            let measurements = std::thread::scope(|scope| {
                let load =
                    |(server, place): &'_ (RunningServer, ServerPlacement)| bench.load(place, &server.observed());
                let threads: Vec<_> = running.iter().map(|server| scope.spawn(move || load(server))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Measurement, String>>| {
                    thread.join().unwrap_or_else(|_| Err("a load ended unexpectedly".to_owned()))
                };
                threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
            })?;
            records.add(SoakPiece { start, start_unix_seconds, measurements })?;
            eprintln!("{:.0} of {:.0} s", records.seconds(), self.options.duration.as_secs_f64());
        }
        Ok(())
    }
}

/// Records of a run in its directory.
#[derive(Debug)]
struct Records {
    directory: PathBuf,
    record: Option<SoakRecord>,
    pieces: Vec<SoakPiece>,
}

impl Records {
    /// Reads the records of a directory; there are none at first. A piece that was not written whole is missing.
    fn read(directory: &Path) -> Result<Self, String> {
        let mut records = Self { directory: directory.to_owned(), record: None, pieces: Vec::new() };
        let path = directory.join("soak.json");
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(records) };
        let record: SoakRecord = serde_json::from_str(&text)
            .map_err(|error| format!("{}: not a record of tailor soak: {error}", path.display()))?;
        if record.format_version != FORMAT_VERSION {
            return Err(format!("{}: has format {}, not {FORMAT_VERSION}", path.display(), record.format_version));
        }
        let count = record.servers.iter().filter(|server| server.missing.is_none()).count();
        let pieces = std::fs::read_to_string(directory.join("pieces.ndjson")).unwrap_or_default();
        let pieces = pieces.lines().filter_map(|line| serde_json::from_str::<SoakPiece>(line).ok());
        records.pieces = pieces.filter(|piece| piece.measurements.len() == count).collect();
        records.record = Some(record);
        Ok(records)
    }

    /// The records, or new ones with these settings. The servers must be the same.
    fn or_new(mut self, directory: &Path, record: SoakRecord) -> Result<Self, String> {
        let names = |record: &SoakRecord| {
            record.servers.iter().map(|it| (it.name.clone(), it.version.clone())).collect::<Vec<_>>()
        };
        match &self.record {
            Some(known) if names(known) == names(&record) => Ok(self),
            Some(known) => Err(format!(
                "{}: records the servers {:?}, not {:?}; use another directory",
                directory.display(),
                names(known),
                names(&record)
            )),
            None => {
                let text = serde_json::to_string_pretty(&record).map_err(|error| error.to_string())?;
                write_to(&directory.join("soak.json"), &text)?;
                self.record = Some(record);
                Ok(self)
            }
        }
    }

    /// Appends a piece, and makes sure that it is on the disk.
    fn add(&mut self, piece: SoakPiece) -> Result<(), String> {
        let path = self.directory.join("pieces.ndjson");
        let line = serde_json::to_string(&piece).map_err(|error| error.to_string())?;
        let append = || -> std::io::Result<()> {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&path)?;
            // A piece that was not written whole may end the file.
            file.write_all(format!("\n{line}\n").as_bytes())?;
            file.sync_data()
        };
        append().map_err(|error| format!("{}: {error}", path.display()))?;
        self.pieces.push(piece);
        Ok(())
    }

    /// Time under load so far.
    fn seconds(&self) -> f64 {
        self.pieces.iter().filter_map(|piece| piece.measurements.first()).map(|it| it.counted_seconds).sum()
    }

    /// Time that is missing; a part of a second is none.
    fn missing(&self, duration: Duration) -> Duration {
        let missing = duration.saturating_sub(Duration::from_secs_f64(self.seconds()));
        if missing < Duration::from_secs(1) { Duration::ZERO } else { missing }
    }

    fn has_failures(&self) -> bool {
        let loads = self.pieces.iter().flat_map(|piece| &piece.measurements).flat_map(|it| &it.loads);
        loads.map(|load| load.failures.total()).sum::<u64>() > 0
    }

    /// Names of the servers that ran.
    fn names(&self) -> Vec<&str> {
        let servers = self.record.iter().flat_map(|record| &record.servers);
        servers.filter(|server| server.missing.is_none()).map(|server| server.name.as_str()).collect()
    }

    /// All pieces of a server as one measurement.
    fn joined(&self, server: usize) -> Measurement {
        let mut joined = Measurement::default();
        for part in self.pieces.iter().filter_map(|piece| piece.measurements.get(server)) {
            let offset = joined.counted_seconds;
            joined.user_seconds += part.user_seconds;
            joined.system_seconds += part.system_seconds;
            joined.counted_seconds += part.counted_seconds;
            joined.memory_bytes_max = joined.memory_bytes_max.max(part.memory_bytes_max);
            joined.swap_bytes_max = joined.swap_bytes_max.max(part.swap_bytes_max);
            for (index, load) in part.loads.iter().enumerate() {
                match joined.loads.get_mut(index) {
                    Some(joined) => join_load(joined, load, offset),
                    None => joined.loads.push(load.clone()),
                }
            }
        }
        let seconds = joined.counted_seconds.max(1e-9);
        joined.loads.iter_mut().for_each(|load| load.served_per_second = load.served as f64 / seconds);
        joined
    }

    /// Growth of a server's memory by requests, in bytes per request. Each start has its own level.
    fn growth(&self, server: usize, bytes: fn(&IntervalReport) -> Option<u64>) -> Option<Slope> {
        let mut starts: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut last = None;
        let mut served = 0;
        for piece in &self.pieces {
            if last.replace(piece.start) != Some(piece.start) {
                starts.push(Vec::new());
                served = 0;
            }
            let Some(load) = piece.measurements.get(server).and_then(|it| it.loads.first()) else { continue };
            for interval in &load.intervals {
                served += interval.served;
                if let (Some(points), Some(bytes)) = (starts.last_mut(), bytes(interval)) {
                    points.push((served as f64, bytes as f64));
                }
            }
        }
        for points in &mut starts {
            let warm = points.last().map_or(0.0, |point| point.0) * WARM_SHARE;
            points.retain(|point| point.0 > warm);
        }
        slope(&starts)
    }

    /// The run as a report of a lab.
    fn report(&self) -> Option<CompareReport> {
        let record = self.record.clone()?;
        let names = self.names();
        let servers = names
            .iter()
            .enumerate()
            .map(|(index, name)| ServerResult { name: (*name).to_owned(), measurements: vec![self.joined(index)] });
        Some(CompareReport {
            format_version: 1,
            tailor_version: record.tailor_version,
            lab: "soak".to_owned(),
            about: String::new(),
            lab_text: record.lab_text,
            start_unix_seconds: record.start_unix_seconds,
            duration_seconds: Some(self.seconds()),
            environment: record.environment,
            steps: vec![SweepStep { value: None, servers: servers.collect(), control: None }],
            servers: record.servers,
            searches: Vec::new(),
            search_precision: None,
            is_endurance: true,
            is_emulated: false,
            interrupted: false,
            control: None,
            control_margin: super::report::CONTROL_MARGIN,
            passed: false,
        })
    }

    /// The table with a column for each server.
    fn rows(&self, report: &CompareReport) -> Vec<Vec<String>> {
        let mut rows = endurance::rows(report);
        let mut add = |name: &str, bytes| {
            let growth = |server| self.growth(server, bytes).map_or("unknown".to_owned(), |it| it.to_string());
            rows.push([name.to_owned()].into_iter().chain((0..self.names().len()).map(growth)).collect());
        };
        add("memory growth, bytes per request", |it| it.server_memory_bytes);
        add("growth of own memory, likewise", |it| it.server_own_memory_bytes);
        rows
    }

    /// Summary of the pieces.
    fn summary(&self) -> String {
        let starts = self.pieces.last().map_or(0, |piece| piece.start + 1);
        let record = self.record.as_ref();
        format!(
            "{:.1} minutes from {} in {} pieces, servers started {} time{}",
            self.seconds() / 60.0,
            format_date(record.map_or(0.0, |record| record.start_unix_seconds)),
            format_count(self.pieces.len() as u64),
            starts,
            if starts == 1 { "" } else { "s" }
        )
    }

    fn to_text(&self) -> String {
        let Some(report) = self.report() else { return String::new() };
        let mut out = format!("soak: {}\n\n", self.summary());
        write_table(&mut out, &self.rows(&report));
        out
    }

    fn to_html(&self) -> String {
        let Some(report) = self.report() else { return String::new() };
        let title = format!("Soak of {}", self.names().join(" and "));
        let mut out = format!("<h1>{}</h1>\n<p>{}</p>\n", escape(&title), escape(&self.summary()));
        out.push_str(&html_table(&self.rows(&report)));
        out.push_str(&endurance::plots(&report));
        out.push_str("<h2>Environment</h2>");
        out.push_str(&facts_table(&report.environment.facts()));
        for server in report.servers.iter().filter(|server| server.missing.is_none()) {
            let _ = write!(out, "<h2>{}</h2><p>{}</p>", escape(&server.name), escape(&server.version));
            for (name, text) in &server.files {
                let _ = writeln!(out, "<p>{}</p><pre>{}</pre>", escape(name), escape(text));
            }
        }
        let _ = writeln!(out, "<h2>The lab</h2><pre>{}</pre>", escape(&report.lab_text));
        document(&format!("tailor soak: {title}, {}", format_date(report.start_unix_seconds)), &out)
    }
}

/// Adds the results of a load that begins this long after the first.
fn join_load(joined: &mut LabLoadResult, load: &LabLoadResult, offset: f64) {
    let served = (joined.served + load.served).max(1) as f64;
    joined.mean_nanos = (joined.mean_nanos * joined.served as f64 + load.mean_nanos * load.served as f64) / served;
    joined.served += load.served;
    joined.failures.merge(&load.failures);
    joined.max_nanos = joined.max_nanos.max(load.max_nanos);
    // Percentiles of pieces do not add up.
    (joined.p50_nanos, joined.p99_nanos) = (None, None);
    joined.intervals.extend(load.intervals.iter().map(|interval| IntervalReport {
        start_seconds: interval.start_seconds + offset,
        end_seconds: interval.end_seconds + offset,
        ..interval.clone()
    }));
}
