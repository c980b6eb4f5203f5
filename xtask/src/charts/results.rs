//! Results files of benchmark runs: `benches/results/*.json`, as `benches/harness/record.py` writes them.

use std::path::Path;

use serde_json::Value;

/// The directory of the published results files.
pub(crate) const DIRECTORY: &str = "benches/results";

/// One run of one scenario.
#[derive(Debug)]
pub(crate) struct BenchRun {
    pub(crate) name: String,
    pub(crate) command: String,
    pub(crate) commit: String,
    /// ISO 8601, UTC.
    pub(crate) started: String,
    pub(crate) machine: String,
    /// Server name and version, in the order of the run.
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) parts: Vec<BenchPart>,
    pub(crate) marks: Vec<Mark>,
    /// Reasons why the run does not count; empty: it counts.
    pub(crate) void: Vec<String>,
    pub(crate) attempts: u64,
}

/// One comparison within a run.
#[derive(Debug)]
pub(crate) struct BenchPart {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) turns: u64,
    /// Median ratio of Tailcoat to itself.
    pub(crate) control: Option<f64>,
    /// Server name and figure, in the order of the run.
    pub(crate) servers: Vec<(String, Figure)>,
}

/// Measured values of a server.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) absolute: Spread,
    /// Paired ratio to Tailcoat; none for Tailcoat itself.
    pub(crate) ratio: Option<Spread>,
    /// Paired ratio to the floor.
    pub(crate) of_floor: Option<Spread>,
    pub(crate) per_second: Option<f64>,
    pub(crate) p99_us: Option<f64>,
}

/// Median and quartiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

/// A limit that a figure must keep, and whether it does.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) text: String,
    /// None: never within the run.
    pub(crate) measured: Option<f64>,
    pub(crate) limit: f64,
    pub(crate) at_least: bool,
    pub(crate) met: bool,
    /// The servers whose ratio it is about.
    pub(crate) of: Option<(String, String)>,
}

/// All results files below `root`, by name.
pub(crate) fn load(root: &Path) -> Result<Vec<BenchRun>, String> {
    let directory = root.join(DIRECTORY);
    let Ok(entries) = std::fs::read_dir(&directory) else { return Ok(Vec::new()) };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| read(path).map_err(|error| format!("{}: {error}", path.display()))).collect()
}

fn read(path: &Path) -> Result<BenchRun, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let run = parse(&text)?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if run.name == stem { Ok(run) } else { Err(format!("its name is {:?}, not that of the file", run.name)) }
}

/// A run from the text of its file.
pub(crate) fn parse(text: &str) -> Result<BenchRun, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let machine = &value["machine"];
    Ok(BenchRun {
        name: string(&value, "name")?,
        command: string(&value, "command")?,
        commit: string(&value, "commit")?,
        started: string(&value, "started")?,
        machine: format!(
            "{}, {}, {} {}cores, {} GiB, {} with {}",
            string(machine, "kernel")?,
            string(machine, "cpu")?,
            machine["cores"].as_u64().ok_or("machine: no `cores`")?,
            if machine["virtual"] == true { "virtual " } else { "" },
            number(machine, "memory_gib")?.round(),
            string(machine, "network")?,
            string(machine, "congestion_control")?,
        ),
        versions: members(&value, "servers")?
            .map(|(name, server)| Ok((name.clone(), string(server, "version")?)))
            .collect::<Result<_, String>>()?,
        parts: elements(&value, "parts")?.map(part).collect::<Result<_, _>>()?,
        marks: elements(&value, "marks")?.map(mark).collect::<Result<_, _>>()?,
        void: elements(&value, "void")?.filter_map(|reason| Some(reason.as_str()?.to_owned())).collect(),
        attempts: value["attempts"].as_u64().unwrap_or(1),
    })
}

fn part(value: &Value) -> Result<BenchPart, String> {
    Ok(BenchPart {
        name: string(value, "part")?,
        unit: string(value, "unit")?,
        turns: value["turns"].as_u64().ok_or("a part has no `turns`")?,
        control: value["control"].as_f64(),
        servers: members(value, "servers")?
            .map(|(name, server)| Ok((name.clone(), figure(server)?)))
            .collect::<Result<_, String>>()?,
    })
}

fn figure(value: &Value) -> Result<Figure, String> {
    let ratio = |key: &str| value.get(key).map(spread).transpose();
    Ok(Figure {
        absolute: spread(value)?,
        ratio: ratio("ratio")?,
        of_floor: ratio("of_floor")?,
        per_second: value["per_second"].as_f64(),
        p99_us: value["p99_us"].as_f64(),
    })
}

fn spread(value: &Value) -> Result<Spread, String> {
    Ok(Spread { median: number(value, "median")?, lower: number(value, "lower")?, upper: number(value, "upper")? })
}

fn mark(value: &Value) -> Result<Mark, String> {
    let name = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
    Ok(Mark {
        text: string(value, "text")?,
        measured: value["measured"].as_f64(),
        limit: number(value, "limit")?,
        at_least: value["at_least"] == true,
        met: value["met"] == true,
        of: name("name").zip(name("base")),
    })
}

fn string(value: &Value, key: &str) -> Result<String, String> {
    Ok(value[key].as_str().ok_or_else(|| format!("no text `{key}`"))?.to_owned())
}

fn number(value: &Value, key: &str) -> Result<f64, String> {
    value[key].as_f64().ok_or_else(|| format!("no number `{key}`"))
}

fn elements<'a>(value: &'a Value, key: &str) -> Result<impl Iterator<Item = &'a Value>, String> {
    Ok(value[key].as_array().ok_or_else(|| format!("no list `{key}`"))?.iter())
}

fn members<'a>(value: &'a Value, key: &str) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, String> {
    Ok(value[key].as_object().ok_or_else(|| format!("no object `{key}`"))?.iter())
}
