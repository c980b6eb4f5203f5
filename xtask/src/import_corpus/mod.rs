//! `cargo xtask import-corpus DIR`: judges translations by the responses of the original server.
//!
//! For each configuration, the original server and ours answer the same requests, with the same files and stub upstreams.
//! Each pair runs in namespaces of its own, over a copy of the file system, so that a configuration needs no change:
//! [`world`] prepares files, names and upstreams, [`stub`] answers for upstreams, and [`grid`] makes requests and compares.
//! [`random`] writes configurations to judge.

mod applications;
mod examples;
mod grid;
mod programs;
mod random;
mod stub;
mod world;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use self::random::RandomOptions;
use crate::skips;

const USAGE: &str = "\
usage: cargo xtask import-corpus [OPTION]... [DIR]
  DIR              configurations: files, or folders with nginx.conf, Caddyfile, apache2.conf or .htaccess
                   (default: tests/import-corpus)
  --short          fewer requests
  --root DIR       files that are copied to / before, such as snippets that configurations include
  --caddy PROGRAM  Caddy, if it is not in PATH
  --nginx PROGRAM  nginx, if it is not in PATH
  --tailcoat PROGRAM  server (default: target/debug/tailcoat)
  --only TEXT      configurations whose path contains a text
  --details        list each difference
  --counts FILE    write the counts, and the reasons of what is not the same, as JSON
  --random NAME    judge configurations that a grammar writes, instead of a DIR: apache, caddy, nginx
  --count N        how many of them (default: 20)
  --seed N         seed of the first one; the next ones follow (default: 1)
  --findings DIR   folder for those with a finding (default: target/import-findings)";

/// Options of a run.
#[derive(Debug, Clone)]
pub(super) struct CorpusOptions {
    directory: PathBuf,
    is_short: bool,
    root: Option<PathBuf>,
    caddy: PathBuf,
    nginx: PathBuf,
    tailcoat: PathBuf,
    only: Option<String>,
    has_details: bool,
    counts: Option<PathBuf>,
    random: RandomOptions,
    /// The configuration that this process judges in its namespaces.
    inside: Option<PathBuf>,
    /// Ports of the stubs that this process is.
    stubs: Option<String>,
}

/// A server whose configurations are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Original {
    Nginx,
    Caddy,
    Apache,
}

/// Judges all configurations. Returns `false` if one is more open than the original.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let Some(options) = read(arguments)? else {
        println!("{USAGE}");
        return Ok(true);
    };
    if let Some(ports) = &options.stubs {
        stub::serve(ports)?;
    }
    if let Some(file) = &options.inside {
        println!("{}", judge(file, &options)?);
        return Ok(true);
    }
    if !Command::new("unshare").args(["-mn", "true"]).output().is_ok_and(|output| output.status.success()) {
        skips::skip_as("import-corpus", "namespaces are not permitted");
        return Ok(true);
    }
    if let Some(language) = &options.random.language {
        return random::run(language, &options);
    }
    let mut files = Vec::new();
    collect(&options.directory, 0, &mut files)?;
    files.retain(|file| options.only.as_ref().is_none_or(|only| file.to_string_lossy().contains(only.as_str())));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut others = Vec::new();
    for file in &files {
        let verdict = in_namespaces(file, &options);
        let name = verdict["verdict"].as_str().unwrap_or("failed");
        let shown = file.strip_prefix(&options.directory).unwrap_or(file).display();
        println!("{name:<12} {shown}  {}", verdict["summary"].as_str().unwrap_or_default());
        let details = verdict["details"].as_array().cloned().unwrap_or_default();
        let shown = if options.has_details || name == MORE_OPEN { usize::MAX } else { 2 };
        for line in details.iter().take(shown) {
            println!("             {}", line.as_str().unwrap_or_default());
        }
        let name = VERDICTS.into_iter().find(|known| *known == name).unwrap_or("failed");
        *counts.entry(name).or_default() += 1;
        if name != "same" {
            let reason = details.iter().find_map(Value::as_str).or(verdict["summary"].as_str()).unwrap_or_default();
            let reason: String = reason.chars().take(REASON_LENGTH_MAX).collect();
            others.push(json!({ "name": shown_name(file, &options.directory), "verdict": name, "reason": reason }));
        }
    }
    if let Some(path) = &options.counts {
        let text = json!({ "configurations": files.len(), "counts": counts, "not the same": others });
        std::fs::write(path, format!("{}\n", serde_json::to_string_pretty(&text)?))?;
    }
    println!("{} configurations", files.len());
    for (name, count) in &counts {
        println!("{count:>6} {name}");
    }
    Ok(!counts.contains_key(MORE_OPEN))
}

/// Folder beside a configuration with files that are copied to `/`.
const ROOT: &str = "root-of-server";

/// Longest time for a configuration. A server may send requests to itself without an end.
const TIME_LIMIT: &str = "4m";

/// Most letters of a reason in a file of counts.
const REASON_LENGTH_MAX: usize = 160;

/// Name of a configuration: its path below the folder of all.
fn shown_name(file: &Path, directory: &Path) -> String {
    file.strip_prefix(directory).unwrap_or(file).display().to_string()
}

/// The translation lets clients at something that the original rejects.
const MORE_OPEN: &str = "MORE OPEN";
const VERDICTS: [&str; 6] = ["same", "differs", "refused", MORE_OPEN, "no original", "failed"];

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<CorpusOptions>, Box<dyn Error>> {
    let mut options = CorpusOptions {
        directory: "tests/import-corpus".into(),
        is_short: false,
        root: None,
        caddy: "caddy".into(),
        nginx: "nginx".into(),
        tailcoat: "target/debug/tailcoat".into(),
        only: None,
        has_details: false,
        counts: None,
        random: RandomOptions::default(),
        inside: None,
        stubs: None,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--short" => options.is_short = true,
            "--details" => options.has_details = true,
            "--counts" => options.counts = Some(value()?.into()),
            "--root" => options.root = Some(std::path::absolute(value()?)?),
            "--caddy" => options.caddy = value()?.into(),
            "--nginx" => options.nginx = value()?.into(),
            "--tailcoat" => options.tailcoat = value()?.into(),
            "--only" => options.only = Some(value()?),
            "--random" => options.random.language = Some(value()?),
            "--count" => options.random.count = value()?.parse()?,
            "--seed" => options.random.seed = value()?.parse()?,
            "--findings" => options.random.findings = value()?.into(),
            "--stub" => options.stubs = Some(value()?),
            "--inside" => options.inside = Some(value()?.into()),
            "--help" => return Ok(None),
            option if option.starts_with("--") => return Err(format!("unknown option {option}\n{USAGE}").into()),
            directory => options.directory = directory.into(),
        }
    }
    options.tailcoat = std::path::absolute(&options.tailcoat)?;
    Ok(Some(options))
}

/// Files and folders that are a configuration each.
fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    for name in ["nginx.conf", "Caddyfile", "apache2.conf", "httpd.conf", ".htaccess"] {
        if depth > 0 && path.join(name).is_file() {
            files.push(path.join(name));
            return Ok(());
        }
    }
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    entries.sort();
    for entry in entries.iter().filter(|_| depth < 3) {
        collect(entry, depth + 1, files)?;
    }
    Ok(())
}

/// Judges a configuration in a process with namespaces of its own.
fn in_namespaces(file: &Path, options: &CorpusOptions) -> Value {
    let failed = |why: String| json!({ "verdict": "failed", "summary": why });
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(error.to_string()),
    };
    let mut command = Command::new("timeout");
    // An own PID namespace ends all servers with this process.
    command.args(["--signal=KILL", TIME_LIMIT, "unshare"]);
    command.args(["-mnpf", "--kill-child"]).arg(program).arg("import-corpus");
    command.arg("--inside").arg(std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
    command
        .arg("--caddy")
        .arg(&options.caddy)
        .arg("--nginx")
        .arg(&options.nginx)
        .arg("--tailcoat")
        .arg(&options.tailcoat);
    if let Some(root) = &options.root {
        command.arg("--root").arg(root);
    }
    if options.is_short {
        command.arg("--short");
    }
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let last = text.lines().next_back().unwrap_or_default();
            serde_json::from_str(last).unwrap_or_else(|_| {
                let error = String::from_utf8_lossy(&output.stderr);
                let early = format!("it ended early, or did not end within {TIME_LIMIT}");
                failed(error.lines().next_back().map_or(early, str::to_owned))
            })
        }
        Err(error) => failed(error.to_string()),
    }
}

/// Starts both servers, one after the other, and compares their responses.
fn judge(file: &Path, options: &CorpusOptions) -> Result<Value, Box<dyn Error>> {
    let world = world::prepare(file, options)?;
    let translated = world.translate()?;
    let mut original = match world.start_original() {
        Ok(original) => original,
        Err(why) => return Ok(json!({ "verdict": "no original", "summary": why.to_string() })),
    };
    let requests = grid::requests(&world, &translated, options.is_short)?;
    let expected = grid::answers(&requests)?;
    world.end(&mut original)?;
    if let Some(why) = &translated.refusal {
        return Ok(json!({ "verdict": "refused", "summary": why }));
    }
    let mut ours = match world.start_ours() {
        Ok(ours) => ours,
        Err(why) => return Ok(json!({ "verdict": "differs", "summary": format!("does not start: {why}") })),
    };
    let found = grid::answers(&requests)?;
    world.end(&mut ours)?;
    let (differences, open) = grid::compare(&requests, &expected, &found);
    let verdict = match (open.is_empty(), differences.is_empty(), translated.rejected) {
        (false, ..) => MORE_OPEN,
        (true, true, _) => "same",
        (true, false, 0) => "differs",
        (true, false, _) => "refused",
    };
    let details: Vec<String> = open.iter().chain(&differences).chain(&translated.remarks).cloned().collect();
    let summary = format!(
        "{} requests, {} differ, {} lines rejected, {} not translated",
        requests.len(),
        differences.len(),
        translated.rejected,
        translated.left
    );
    let notes = translated.rejected + translated.left;
    Ok(json!({ "verdict": verdict, "summary": summary, "details": details, "notes": notes }))
}
